//! Faces beside files in the simulated world.

use holdfast_sim::guests;
use holdfast_sim::on_a_deep_stack;
use holdfast_sim::world::{Report, Schedule, run};
use std::collections::BTreeSet;

fn with_blobs(seed: u64) -> Report {
    with(guests::blobs, seed)
}

fn with(guest: guests::Make, seed: u64) -> Report {
    let schedule = Schedule { guests: vec![guest], ..Schedule::new(seed) };
    on_a_deep_stack(|| run(&schedule))
}

/// Runs schedules from `first` on, until all of `what` was seen, and 3 at least. What one seed shows changes
/// with every draw that is added in front of it; that it is shown within so many must not.
fn until_seen(guest: guests::Make, first: u64, what: &[&str]) {
    const SCHEDULES_MAX: u64 = 12;
    let mut seen = BTreeSet::new();
    let missing = |seen: &BTreeSet<_>| what.iter().find(|what| !seen.contains(**what)).copied();
    for seed in first..first + SCHEDULES_MAX {
        let report = with(guest, seed);
        assert_eq!(report.violations, Vec::<String>::new(), "seed {seed}");
        seen.extend(report.seen.into_keys());
        if seed - first >= 2 && missing(&seen).is_none() {
            return;
        }
    }
    panic!("never: {:?}: {seen:?}", missing(&seen));
}

/// A writer was allocated a chunk and heard of it seconds later. Whoever led had fenced the chunk
/// meanwhile where nobody held it, and sealed it as empty; the writer made it behind that, and what
/// it put there was acknowledged and gone.
#[test]
fn what_a_slow_writer_puts_is_in_a_chunk_that_is_there() {
    // Schedules that show the bug where it is planted; without shards, of which the guest has nothing.
    for seed in [19, 24] {
        let (guests, shards) = (vec![guests::blobs as guests::Make], 0);
        let schedule = Schedule { guests, shards, ..Schedule::new(seed) };
        let report = on_a_deep_stack(|| run(&schedule));
        assert_eq!(report.violations, Vec::<String>::new(), "seed {seed}");
    }
}

#[test]
fn objects_are_what_was_acknowledged_through_every_node() {
    let seeds = std::env::var("HOLDFAST_BLOB_SEEDS").ok().and_then(|n| n.parse().ok());
    for seed in 1..=seeds.unwrap_or(4) {
        let report = with_blobs(seed);
        assert_eq!(report.violations, Vec::<String>::new(), "seed {seed}");
        assert!(report.seen.contains_key("an object was put"), "seed {seed}: {:?}", report.seen);
    }
}

#[test]
fn what_is_in_memory_is_whole_or_said_to_have_ended_with_its_process() {
    for seed in 2..=5 {
        let report = with(guests::memory, seed);
        assert_eq!(report.violations, Vec::<String>::new(), "seed {seed}");
        for what in ["what was in memory was gone", "what was in memory was there in the end"] {
            assert!(report.seen.contains_key(what), "seed {seed}: {what}: {:?}", report.seen);
        }
    }
}

#[test]
fn what_writers_send_twice_is_read_once_and_what_was_kept_is_read() {
    until_seen(
        guests::writers,
        1,
        &["an append was sent again until it was kept", "a repeat was left out"],
    );
}

#[test]
fn tokens_are_taken_while_they_stand_and_for_what_their_rules_say() {
    until_seen(
        guests::tokens,
        2,
        &[
            "a client with a token put a file",
            "what no rule covers was refused",
            "a revoked token was refused",
            "a token stood in the end",
            "a token was revoked in the end",
            "a client was slowed",
            "a client was slowed and another one went on",
            "a client had all of its connections",
            "a client took a place that a connection had given back",
        ],
    );
}

#[test]
fn rides_show_one_index_and_all_that_was_acknowledged_up_to_there() {
    until_seen(
        guests::items,
        1,
        &[
            "an item was changed",
            "a change of items was sent again",
            "a ride came to its end",
            "an image was ridden",
            "a view began with images",
            "the log of items was trimmed",
            "keys were found by their tag",
            "the horizon was moved",
            "a ride was in front of the horizon",
            "a trim happened during a ride",
            "a hold ran out",
            "items were swept",
        ],
    );
}
