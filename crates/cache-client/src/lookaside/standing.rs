//! Which servers a lookaside, or a router, takes values from: those that hold a lease of whoever invalidates
//! them, which says that they were told what changed until seconds ago. docs/decisions/0028 says what holds. Pure:
//! answers and the time come in.

/// Between two looks at a server's lease.
pub const LOOK_NS: u64 = 1_000_000_000;
/// How long one is believed: somebody may have stood still since.
pub const BELIEVED_NS: u64 = 2_000_000_000;
/// How long no server that answers has had a lease before that is told: longer than it takes to give the first ones.
pub const NOBODY_NS: u64 = 10_000_000_000;
const _: () = assert!(LOOK_NS < BELIEVED_NS && BELIEVED_NS < NOBODY_NS);

/// What keys of leases begin with, in front of the pool's name.
const KEY: &str = "holdfast:invalidate:";

/// The key of the lease that a pool's servers are given.
pub fn lease_key(pool: &str) -> Vec<u8> {
    format!("{KEY}{pool}").into_bytes()
}

/// Whether anybody gives leases of a name. Of one that is misspelt nobody does: every read is a miss for ever, which
/// looks like a cache that is merely empty.
#[derive(Clone, Debug, Default)]
pub struct Given {
    /// When a server had one, or the first was looked at.
    since_ns: Option<u64>,
    is_told: bool,
}

impl Given {
    /// A server has answered; whether it is to be told now that none has a lease. Once, and once more when one had.
    pub fn looked(&mut self, has_lease: bool, now_ns: u64) -> bool {
        let since_ns = *self.since_ns.get_or_insert(now_ns);
        if has_lease {
            *self = Given { since_ns: Some(now_ns), is_told: false };
        }
        let is_long = now_ns.saturating_sub(since_ns) >= NOBODY_NS;
        let is_new = !has_lease && is_long && !self.is_told;
        self.is_told |= is_new;
        is_new
    }
}

/// What is told then, of the lease with this key.
pub fn nobody_gives(key: &[u8]) -> String {
    let name = String::from_utf8_lossy(key);
    let (pool, seconds) = (name.strip_prefix(KEY).unwrap_or(&name), NOBODY_NS / 1_000_000_000);
    format!(
        "take values of servers by leases of pool `{pool}`: no server that answers has had one for {seconds} s, so \
         everything is a miss and nothing is stored: run `holdfast invalidate run --to {pool} --server-lease SECONDS`, \
         or correct the name that `server_lease` gives"
    )
}

/// What a server said of its lease.
#[derive(Clone, Copy, Debug)]
struct Look {
    /// Before it was asked.
    asked_ns: u64,
    /// Connections to it that had ended then: behind another one may be another process.
    ended: u64,
    has_lease: bool,
}

/// Servers, by their numbers.
#[derive(Clone, Debug)]
pub struct Standing {
    looks: Vec<Option<Look>>,
}

impl Standing {
    pub fn new(servers: usize) -> Standing {
        Standing { looks: vec![None; servers] }
    }

    pub fn servers(&self) -> u32 {
        self.looks.len() as u32
    }

    /// Whether a server is to be asked for its lease.
    pub fn is_due(&self, server: u32, ended: u64, now_ns: u64) -> bool {
        self.looks[server as usize].is_none_or(|look| {
            look.ended != ended || now_ns.saturating_sub(look.asked_ns) >= LOOK_NS
        })
    }

    /// When it is due at the latest; 0 if nobody has looked.
    pub fn due_ns(&self, server: u32) -> u64 {
        self.looks[server as usize].map_or(0, |look| look.asked_ns.saturating_add(LOOK_NS))
    }

    /// A server's answer, or that it gave none.
    pub fn looked(&mut self, server: u32, has_lease: bool, ended: u64, asked_ns: u64) {
        self.looks[server as usize] = Some(Look { asked_ns, ended, has_lease });
    }

    /// Whether what a server says counts that comes now.
    pub fn counts(&self, server: u32, now_ns: u64) -> bool {
        let is_good =
            |look: Look| look.has_lease && now_ns.saturating_sub(look.asked_ns) < BELIEVED_NS;
        self.looks[server as usize].is_some_and(is_good)
    }

    /// Whether what a server is asked now may count: not over another connection than it was looked at.
    pub fn may_count(&self, server: u32, ended: u64, now_ns: u64) -> bool {
        self.looks[server as usize].is_some_and(|look| look.ended == ended)
            && self.counts(server, now_ns)
    }

    /// Whether that is so of all.
    pub fn all_count(&self, now_ns: u64) -> bool {
        (0..self.servers()).all(|server| self.counts(server, now_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    /// A name that nobody gives leases of was a miss for ever, and nobody was told.
    #[test]
    fn a_lease_that_nobody_gives_is_told_once_until_somebody_does() {
        let mut given = Given::default();
        // Seconds, of a server that has one now and then, and of one that never has.
        let mut told = |has: bool, s: u64| given.looked(has, s * S);
        assert!(!(100..110).any(|s| told(false, s)), "it may be on its way");
        assert!(told(false, 110) && !(110..200).any(|s| told(false, s)), "once");
        assert!(!told(true, 200) && !(200..210).any(|s| told(false, s)), "one of two is enough");
        assert!(told(false, 210) && !told(false, 211), "there were some, and are none");
        let said = nobody_gives(&lease_key("shpo"));
        assert!(said.contains("`shpo`") && said.contains("--to shpo --server-lease"), "{said}");
    }

    #[test]
    fn a_server_counts_that_had_a_lease_when_it_was_asked_last() {
        let mut standing = Standing::new(2);
        assert!(standing.is_due(0, 0, 0) && !standing.counts(0, 0), "nobody has asked it");
        standing.looked(0, true, 0, 10 * S);
        assert!(standing.counts(0, 10 * S) && !standing.all_count(10 * S));
        standing.looked(1, true, 0, 10 * S);
        assert!(standing.all_count(10 * S));
        assert!(!standing.is_due(0, 0, 11 * S - 1) && standing.is_due(0, 0, 11 * S));
        assert!(standing.is_due(0, 1, 10 * S), "it may be another process");
        assert!(standing.counts(0, 12 * S - 1));
        assert!(standing.may_count(0, 0, 12 * S - 1) && !standing.may_count(0, 1, 12 * S - 1));
        assert!(!standing.counts(0, 12 * S), "this reader stood still");
        standing.looked(0, false, 0, 11 * S);
        assert!(!standing.counts(0, 11 * S) && standing.counts(1, 11 * S));
        assert!(!standing.is_due(0, 0, 11 * S), "it is not asked for every key");
    }
}
