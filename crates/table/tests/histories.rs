//! Whole histories from seeds, each judged by all checkers.

use holdfast_env::trial::Trial;
use holdfast_table::sim::histories::{Plan, run};
use std::collections::BTreeMap;

/// What a run that never saw it says nothing about.
const SOMETIMES: &[&str] = &[
    "a home moved",
    "a log was erased",
    "a new log began with an image",
    "a new log was admitted",
    "a record moved under a read",
    "a repetition got its first answer",
    "a repetition joined its first request",
    "a stream forgot with several regions",
    "a suffix was dropped",
    "a tombstone was forgotten",
    "an asker's copy made a majority",
    "an entry waited for another stream",
    "an image broke off and began anew",
    "an old log came back",
    "two takeovers met",
];

/// So many seeds, from this one on; a single one is a failure's, to be looked at.
fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let first = number("HOLDFAST_TABLE_SEED").unwrap_or(0);
    first..first + number("HOLDFAST_TABLE_HISTORIES").unwrap_or(60)
}

#[test]
fn histories_keep_every_promise() {
    let mut happened: BTreeMap<&'static str, u64> = BTreeMap::new();
    for seed in seeds() {
        let entered = Trial::drawn(seed).enter();
        match run(seed, Plan::of(seed)) {
            Ok(summary) => println!("seed {seed}: {summary:?}"),
            Err(wrong) => panic!("seed {seed}: {wrong}"),
        }
        for (what, times) in entered.happened() {
            *happened.entry(what).or_default() += times;
        }
    }
    println!("{happened:#?}");
    let missing: Vec<_> = SOMETIMES.iter().filter(|what| !happened.contains_key(*what)).collect();
    let few = seeds().count() < 60;
    assert!(few || missing.is_empty(), "never happened: {missing:?}");
}
