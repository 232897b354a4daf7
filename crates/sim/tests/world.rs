//! Whole clusters in one thread. `make sim` runs many more schedules, longer ones and faster.

use holdfast_sim::world::cell::SECOND;
use holdfast_sim::world::{Report, Schedule, run};

/// Waits nest, so a schedule wants a deep stack.
fn on_a_deep_stack(schedule: Schedule) -> Report {
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().stack_size(256 << 20);
        builder.spawn_scoped(scope, || run(&schedule)).unwrap().join().unwrap()
    })
}

fn short(seed: u64) -> Schedule {
    Schedule { work_ns: 20 * SECOND, faults_ns: 15 * SECOND, ..Schedule::new(seed) }
}

#[test]
fn the_same_seed_gives_the_same_events_byte_for_byte() {
    let traced = |seed| on_a_deep_stack(Schedule { trace: true, ..short(seed) });
    let (one, two) = (traced(1), traced(1));
    assert_eq!(one.violations, Vec::<String>::new());
    assert!(one.faults > 0 && one.operations > 50, "{} {}", one.faults, one.operations);
    assert!(one.trace.len() > 1000);
    for (a, b) in one.trace.iter().zip(&two.trace) {
        assert_eq!(a, b);
    }
    assert_eq!((one.digest, one.trace.len()), (two.digest, two.trace.len()));
}

/// A writer sealed a chunk with nothing in it after a replica could not be made. No store had it,
/// the last replica is never dropped, and repair tried to copy it for ever.
#[test]
fn a_chunk_that_was_sealed_empty_needs_no_copies() {
    let report = on_a_deep_stack(Schedule::new(3));
    assert_eq!(report.violations, Vec::<String>::new());
}
