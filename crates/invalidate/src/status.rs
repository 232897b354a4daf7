//! How an invalidation topic stands: what `holdfast invalidate status` says.

use crate::heat::{Heat, Hot, pattern};
use crate::position::Position;
use crate::run::{Noted, known_and, topic};
use crate::send::Lack;
use holdfast_base::ids::Index;
use holdfast_base::{Error, Result};
use holdfast_client::Client;

/// Over so many seconds keys are counted.
pub const RATE_S: u64 = 60;
/// Keys, and patterns, that are named.
pub const HOTTEST: usize = 10;

/// How far a pool's invalidations have come.
pub struct Standing {
    /// In the database's row log.
    pub position: Position,
    /// When the last change up to there was made, in seconds since 1970, by the database's clock.
    pub changed_s: u64,
    /// What servers lack that have confirmed something. One that is to be emptied is left out.
    pub servers: Vec<Lack>,
    /// Keys that changed lately.
    pub rate: Rate,
    /// Keys of which the next two were counted: all that the topic still has.
    pub counted: u64,
    pub hottest_keys: Vec<Hot>,
    pub hottest_patterns: Vec<Hot>,
}

/// How many keys changed in how many seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rate {
    pub keys: u64,
    /// Up to now: [`RATE_S`], or fewer where the topic has no more of what was before.
    pub seconds: u64,
}

#[derive(Default)]
struct Hottest {
    counted: u64,
    keys: Heat,
    patterns: Heat,
}

/// A pool's standing at a time, in seconds since 1970.
pub fn standing(client: &mut Client, pool: &str, now_s: u64) -> Result<Standing> {
    let topic = topic(pool);
    let (known, hottest) = known_and(client, &topic, |hottest: &mut Hottest, key| {
        hottest.counted += 1;
        hottest.keys.count(key);
        hottest.patterns.count(&pattern(key));
    })?;
    let Some((_, position, changed_s)) = known.position else {
        return Err(Error::not_found(format!(
            "read topic `{topic}`: it has no invalidations: run `holdfast invalidate run --to {pool}` first"
        )));
    };
    let servers = known.confirmed.map(|(_, servers)| servers).unwrap_or_default();
    let changes = known.changes;
    let lack = |(server, next): (String, Index)| lack(server, next, &changes);
    Ok(Standing {
        position,
        changed_s,
        servers: servers.into_iter().map(lack).collect(),
        rate: rate(&changes, now_s),
        counted: hottest.counted,
        hottest_keys: hottest.keys.hottest(HOTTEST),
        hottest_patterns: hottest.patterns.hottest(HOTTEST),
    })
}

/// What a server lacks that has confirmed all before an entry.
fn lack(server: String, next: Index, changes: &[Noted]) -> Lack {
    let lacked = &changes[changes.partition_point(|noted| noted.index < next)..];
    Lack {
        server,
        entries: lacked.len() as u64,
        bytes: lacked.iter().map(|noted| noted.key_bytes).sum(),
        since_s: lacked.first().map(|noted| noted.changed_s),
        is_to_be_emptied: false,
    }
}

/// Keys of the last minute, by the database's clock on one side and ours on the other.
fn rate(changes: &[Noted], now_s: u64) -> Rate {
    let Some(first) = changes.first() else { return Rate::default() };
    let since_s = now_s.saturating_sub(RATE_S);
    let lately = changes.iter().filter(|noted| noted.changed_s > since_s);
    let seconds = now_s.saturating_sub(first.changed_s).clamp(1, RATE_S);
    Rate { keys: lately.map(|noted| noted.keys).sum(), seconds }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(index: u64, changed_s: u64, keys: u64) -> Noted {
        Noted { index: Index(index), changed_s, keys, key_bytes: keys * 10, bytes: 0 }
    }

    #[test]
    fn keys_are_counted_over_a_minute_or_as_far_back_as_is_known() {
        let changes = [noted(1, 100, 50), noted(2, 190, 6), noted(5, 199, 7)];
        assert_eq!(rate(&[], 200), Rate { keys: 0, seconds: 0 });
        assert_eq!(rate(&changes, 200), Rate { keys: 13, seconds: 60 });
        assert_eq!(rate(&changes[1..], 200), Rate { keys: 13, seconds: 10 });
        assert_eq!(rate(&changes, 900), Rate { keys: 0, seconds: 60 }, "it is quiet");
        // The database's clock may be ahead.
        assert_eq!(rate(&changes[2..], 150), Rate { keys: 7, seconds: 1 });
    }

    #[test]
    fn a_server_lacks_the_entries_and_the_bytes_behind_what_it_confirmed() {
        let changes = [noted(1, 100, 50), noted(2, 190, 6), noted(5, 199, 7)];
        let of = |next| {
            let lack = lack("s".to_owned(), Index(next), &changes);
            (lack.entries, lack.bytes, lack.since_s)
        };
        assert_eq!(of(1), (3, 630, Some(100)));
        assert_eq!(of(3), (1, 70, Some(199)));
        assert_eq!(of(6), (0, 0, None));
    }
}
