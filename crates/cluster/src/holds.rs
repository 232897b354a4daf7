//! What rides hold: a ride places a hold on its topic, so that the log from the entry behind the ride's
//! on is there when it ends, and the horizon does not pass it. Judged from what nodes tell of theirs,
//! and from nothing else. Pure.

use holdfast_base::ids::{Index, NodeId};
use holdfast_env::trial::Knob;

/// Bytes of log that a hold may keep: past that it runs out, so that a rider who is slow or gone for good
/// does not fill the disk of the log's host.
pub static HOLD_BYTES_MAX: Knob = Knob::new("holds.bytes-max", 1 << 30, &[1, 5_000, 50_000]);

/// How far something may go that holds are in the way of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounded {
    /// What was wanted, or the lowest hold in front of that.
    pub until: Index,
    /// Holds that are passed, for they have run out: of which node, at which entry.
    pub ran_out: Vec<(NodeId, Index)>,
}

/// The trim of a log, or the horizon of its topic, goes up to `wanted` but past no hold, unless there are
/// more than `bytes_max` bytes of log behind it. `bytes_from` says how many there are from an entry on.
pub fn bounded(
    wanted: Index,
    held: impl Iterator<Item = (NodeId, Index)>,
    bytes_from: impl Fn(Index) -> u64,
    bytes_max: u64,
) -> Bounded {
    let mut in_the_way: Vec<(NodeId, Index)> = held.filter(|(_, at)| *at < wanted).collect();
    // The later one is, the less is behind it.
    in_the_way.sort_by_key(|(node, at)| (*at, *node));
    let fits = in_the_way.partition_point(|(_, at)| bytes_from(*at) > bytes_max);
    let until = in_the_way.get(fits).map_or(wanted, |(_, at)| *at);
    in_the_way.truncate(fits);
    Bounded { until, ran_out: in_the_way }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A log of entries of ten bytes each, of which 100 are there.
    fn of(wanted: u64, held: &[(u32, u64)], bytes_max: u64) -> (u64, Vec<u64>) {
        let held = held.iter().map(|(node, at)| (NodeId(*node), Index(*at)));
        let bytes_from = |at: Index| (100 - at.0) * 10;
        let Bounded { until, ran_out } = bounded(Index(wanted), held, bytes_from, bytes_max);
        (until.0, ran_out.into_iter().map(|(_, at)| at.0).collect())
    }

    #[test]
    fn the_lowest_hold_that_has_not_run_out_is_not_passed() {
        assert_eq!(of(50, &[], 100), (50, vec![]));
        assert_eq!(of(50, &[(1, 70), (2, 50)], 10_000), (50, vec![]), "behind what is wanted");
        assert_eq!(of(50, &[(1, 40), (2, 20), (1, 30)], 10_000), (20, vec![]));
        // Of two holds the one with too much behind it runs out, and the other one holds.
        assert_eq!(of(50, &[(1, 40), (2, 20), (3, 20)], 600), (40, vec![20, 20]));
        assert_eq!(of(50, &[(1, 40), (2, 20)], 599), (50, vec![20, 40]));
        // One with exactly as much as it may have holds.
        assert_eq!(of(50, &[(2, 20)], 800), (20, vec![]));
        assert_eq!(of(50, &[(2, 20)], 799), (50, vec![20]));
    }
}
