//! Whole clusters over a log that promises no more than every engine does.

use holdfast_sim::on_a_deep_stack;
use holdfast_sim::world::{Report, Schedule, run};
use std::collections::BTreeSet;

fn unruly(seed: u64) -> Report {
    let schedule = Schedule { unruly: true, ..Schedule::new(seed) };
    on_a_deep_stack(|| run(&schedule))
}

/// What a node commanded itself was done again where the log delivered it again: a token that had been
/// revoked was there once more (seeds 5 and 11). And who waits for the end of the log waits for an entry,
/// not for a gap: a node that joined waited for ever (seed 12).
#[test]
fn nothing_is_done_twice_and_nobody_waits_for_a_gap() {
    let mut seen = BTreeSet::new();
    for seed in [1, 5, 8, 11, 12] {
        let report = unruly(seed);
        assert_eq!(report.violations, Vec::<String>::new(), "seed {seed}");
        seen.extend(report.seen.into_keys());
    }
    for what in [
        "an entry appeared that had been answered before",
        "the answer of an append that was kept was lost",
        "the log failed over",
        "the log left a gap",
        "the log was slow for one topic",
    ] {
        assert!(seen.contains(what), "never: {what}");
    }
}
