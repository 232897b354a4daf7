//! Counters, one set a thread: its owner adds without a lock and without an atomic addition, and
//! whoever asks adds the sets up.

use std::sync::atomic::{AtomicU64, Ordering};

/// Written by one thread, read by all.
#[derive(Default, Debug)]
pub struct Counter(AtomicU64);

impl Counter {
    #[inline(always)]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    pub fn subtract(&self, n: u64) {
        self.add(n.wrapping_neg());
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident $(= $reset:ident)?,)*) => {
        /// What one thread counted. Aligned, so that no two threads write to one cache line.
        #[derive(Default, Debug)]
        #[repr(align(128))]
        pub struct Counters {
            $($(#[doc = $doc])* pub $name: Counter,)*
        }

        /// The sum over all threads.
        #[derive(Default, Clone, Debug, PartialEq, Eq)]
        pub struct Totals {
            $($(#[doc = $doc])* pub $name: u64,)*
        }

        impl Totals {
            pub fn of<'a>(threads: impl IntoIterator<Item = &'a Counters>) -> Totals {
                let mut totals = Totals::default();
                for counters in threads {
                    $(totals.$name = totals.$name.wrapping_add(counters.$name.get());)*
                }
                totals
            }

            /// Each by its name, and whether it is a level.
            pub fn each(&self, mut visit: impl FnMut(&'static str, u64, bool)) {
                $(visit(stringify!($name), self.$name, counters!(@level $($reset)?));)*
            }

            /// What was counted since `before`; what is a level and not a count stays.
            pub fn since(&self, before: &Totals) -> Totals {
                let mut since = self.clone();
                $(counters!(@since since, before, $name $(, $reset)?);)*
                since
            }
        }
    };
    (@level) => { false };
    (@level level) => { true };
    (@since $since:ident, $before:ident, $name:ident) => {
        $since.$name = $since.$name.wrapping_sub($before.$name);
    };
    (@since $since:ident, $before:ident, $name:ident, level) => {};
}

counters! {
    curr_connections = level,
    total_connections,
    rejected_connections,
    idle_kicks,
    cmd_get,
    cmd_set,
    cmd_flush,
    cmd_touch,
    cmd_meta,
    get_hits,
    get_misses,
    get_expired,
    get_flushed,
    delete_misses,
    delete_hits,
    incr_misses,
    incr_hits,
    decr_misses,
    decr_hits,
    cas_misses,
    cas_hits,
    cas_badval,
    touch_hits,
    touch_misses,
    store_too_large,
    store_no_memory,
    auth_cmds,
    auth_errors,
    bytes_read,
    bytes_written,
    conn_yields,
    ssl_handshake_errors,
    /// Items that the index points to.
    items = level,
    /// Bytes of those, with everything that belongs to them.
    bytes = level,
    total_items,
    evictions,
    evicted_unfetched,
    /// Items whose memory was taken back because they had expired.
    reclaimed,
    /// Items that were copied so that segments could be freed.
    moved,
    udp_requests,
    udp_datagrams_sent,
    /// Replies not sent: too long, or too many to one peer.
    udp_refused,
    /// Connection buffers in use, in bytes.
    connection_bytes = level,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_add_up_and_levels_survive_a_reset() {
        let threads = [Counters::default(), Counters::default()];
        threads[0].cmd_get.add(3);
        threads[1].cmd_get.add(4);
        // One thread may remove what another stored.
        threads[0].items.add(1);
        threads[1].items.subtract(1);
        threads[1].items.add(5);
        let before = Totals::of(&threads);
        assert_eq!((before.cmd_get, before.items), (7, 5));
        threads[0].cmd_get.add(1);
        let since = Totals::of(&threads).since(&before);
        assert_eq!((since.cmd_get, since.items), (1, 5));
    }
}
