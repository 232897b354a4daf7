//! Tables as a guest of the simulated world (`crates/sim/src/guests/tables.rs`), by themselves: two seeds of each mode,
//! `HOLDFAST_TABLE_SEEDS=N` for more. Mixed schedules have them, too.

use holdfast_sim::world::{Report, Schedule, run};
use holdfast_sim::{guests, on_a_deep_stack};
use holdfast_wire::table::TableMode;
use std::collections::BTreeSet;

fn with_tables(mode: TableMode, seed: u64, planted: &[&str]) -> Report {
    let guests = match mode {
        TableMode::Timeline => vec![guests::tables as guests::Make],
        TableMode::Strong => vec![guests::strong_tables as guests::Make],
    };
    let planted = planted.iter().map(|bug| (*bug).to_owned()).collect();
    let schedule = Schedule { guests, planted, ..Schedule::new(seed) };
    on_a_deep_stack(|| run(&schedule))
}

#[test]
fn every_version_has_one_value_and_nothing_acknowledged_is_lost_whatever_fails() {
    let seeds = std::env::var("HOLDFAST_TABLE_SEEDS").ok().and_then(|n| n.parse().ok());
    let mut seen = BTreeSet::new();
    for seed in 1..=seeds.unwrap_or(2) {
        for mode in [TableMode::Timeline, TableMode::Strong] {
            let report = with_tables(mode, seed, &[]);
            assert_eq!(report.violations, Vec::<String>::new(), "seed {seed}, {mode:?}");
            seen.extend(report.seen.into_keys());
        }
    }
    for what in [
        "a group was written",
        "a record was written",
        "a tablet was split and served",
        "a write in doubt was repeated",
        "a write was refused for what it found",
    ] {
        assert!(seen.contains(what), "{what}: {seen:?}");
    }
}

/// A check that never fails checks nothing.
#[test]
fn a_table_that_shows_less_after_a_start_is_noticed() {
    // Which seeds notice it depends on all that happens in the world beside: the first eight did for long, and then
    // none of them.
    let noticed = (9..=60).any(|seed| {
        let report = with_tables(TableMode::Strong, seed, &["table.start-shows-less"]);
        report.violations.iter().any(|what| what.contains("behind"))
    });
    assert!(noticed);
}
