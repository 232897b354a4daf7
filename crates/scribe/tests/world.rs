//! Agents of Scribe in the simulated world (`holdfast_sim::guests::scribe`), by themselves and with bugs that are
//! planted.

use holdfast_sim::guests;
use holdfast_sim::on_a_deep_stack;
use holdfast_sim::world::{Report, Schedule, run};
use std::collections::BTreeSet;

/// In so many a rule that is broken on purpose is noticed.
const SCHEDULES_MAX: u64 = 12;

fn with_agents(seed: u64, planted: &[&str]) -> Report {
    with(guests::scribe, seed, planted)
}

fn seeds() -> u64 {
    let seeds = std::env::var("HOLDFAST_SCRIBE_SEEDS").ok().and_then(|n| n.parse().ok());
    seeds.unwrap_or(4)
}

fn with(guest: guests::Make, seed: u64, planted: &[&str]) -> Report {
    let guests = vec![guest];
    let planted = planted.iter().map(|bug| bug.to_string()).collect();
    let schedule = Schedule { guests, planted, ..Schedule::new(seed) };
    on_a_deep_stack(|| run(&schedule))
}

/// Batches come twice, late and by two ways, through nodes that die.
#[test]
fn messages_of_agents_are_read_once_and_in_their_order() {
    let mut seen = BTreeSet::new();
    for seed in 1..=seeds() {
        let report = with_agents(seed, &[]);
        assert_eq!(report.violations, Vec::<String>::new(), "seed {seed}");
        seen.extend(report.seen.into_keys());
    }
    for what in [
        "a spool was replayed",
        "a batch went by two ways",
        "a batch went by two carriers",
        "a carrier gathered batches of two spools",
        "a carrier was erased with batches in it",
        "an answer came to a carrier that was gone",
        "the power failed while a spool kept a message",
        "log messages were read once",
    ] {
        assert!(seen.contains(what), "{what}: {seen:?}");
    }
}

/// Whoever is slower than its category's limits goes on behind what was given up, and misses nothing else.
#[test]
fn a_reader_that_is_overtaken_goes_on_where_there_is_something() {
    let mut seen = BTreeSet::new();
    for seed in 1..=seeds() {
        let report = with(guests::overtaken, seed, &[]);
        assert_eq!(report.violations, Vec::<String>::new(), "seed {seed}");
        seen.extend(report.seen.into_keys());
    }
    assert!(seen.contains("a reader crossed a trim"), "{seen:?}");
}

/// As a gap that nobody is told of.
#[test]
fn messages_that_a_reader_is_not_shown_are_noticed() {
    let violations = |seed| with(guests::overtaken, seed, &["scribe.read-skips"]).violations;
    assert!((1..=SCHEDULES_MAX).any(|seed| !violations(seed).is_empty()), "they go unnoticed");
}

/// A check that never fails checks nothing: each rule of how messages travel, broken on purpose, is noticed within
/// so many schedules.
fn notices(bug: &str) {
    let violations = |seed| with_agents(seed, &[bug]).violations;
    assert!((1..=SCHEDULES_MAX).any(|seed| !violations(seed).is_empty()), "{bug} goes unnoticed");
}

#[test]
fn ok_before_the_sync_is_noticed() {
    notices("scribe.ok-before-the-sync");
}

#[test]
fn a_spool_that_gives_up_what_a_carrier_has_is_noticed() {
    notices("scribe.carrier-answers-early");
}

#[test]
fn carriers_that_number_anew_are_noticed() {
    notices("scribe.carrier-numbers-anew");
}

#[test]
fn numbers_that_begin_anew_with_the_process_are_noticed() {
    notices("scribe.numbers-begin-anew");
}

/// What a carrier says is of each spool's own.
#[test]
fn a_carrier_that_mixes_up_spools_is_noticed() {
    notices("scribe.carrier-mixes-up-spools");
}

#[test]
fn batches_that_were_dropped_and_are_shown_are_noticed() {
    notices("scribe.dropped-batches-shown");
}
