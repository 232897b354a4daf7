//! Stories that are told step by step: what a rule says, where drawn schedules only show that
//! nothing is broken.

use crate::view::{HEAD, View};
use crate::world::{Task, World};
use holdfast_base::ids::Index;
use holdfast_base::{Error, Kind};
use holdfast_ride::carousel::{Boarding, Carousel, Effect, Limits, RiderId, Span, Ticket};

pub const NOW: Ticket = Ticket::Shared { at_least: Index(0) };
pub const MS: u64 = 1_000_000;

pub fn limits() -> Limits {
    Limits { window_bytes: 1, private_max: 2, ..Limits::usual() }
}

/// One head of so many slabs, at all of which riders can join.
fn view(slabs: usize) -> View {
    let fits = |view: &View| {
        let found = view.slabs(1, 0);
        found.len() == slabs && found.iter().all(|content| content.slab.joinable)
    };
    let views = (0..).map(|seed| View { seed, heads: 1, slabs: slabs as u64 });
    views.into_iter().find(fits).expect("there is one among all seeds")
}

impl World {
    /// Everything that is under way answers, and what follows from it.
    fn rest(&mut self) {
        while !self.tasks.is_empty() {
            self.answer(0, false);
        }
    }

    /// Tasks answer until none is left but those.
    fn answer_until(&mut self, stays: impl Fn(&Task) -> bool) {
        while let Some(at) = self.tasks.iter().position(|task| !stays(task)) {
            self.answer(at, false);
        }
    }

    /// The first one of those answers.
    fn answer_first(&mut self, answers: impl Fn(&Task) -> bool, fails: bool) {
        let at = self.tasks.iter().position(answers).expect("there is one");
        self.answer(at, fails);
    }

    /// A rider asks so often, with time for everything between; the numbers that have come.
    fn numbers(&mut self, rider: u64, pulls: usize) -> Vec<u64> {
        for _ in 0..pulls {
            self.pull(rider, 0);
            self.rest();
        }
        self.numbers_of(rider, 0)
    }

    /// The same, with nothing answered.
    fn numbers_of(&mut self, rider: u64, pulls: usize) -> Vec<u64> {
        for _ in 0..pulls {
            self.pull(rider, 0);
        }
        let got = &self.riders[&RiderId(rider)].got[&0];
        got.iter().map(|content| content.slab.number).collect()
    }

    fn outcome(&self, rider: u64) -> &Option<Result<(), Error>> {
        &self.riders[&RiderId(rider)].ended
    }
}

#[test]
fn who_joins_in_the_middle_gets_the_beginning_last() {
    let mut world = World::new(view(4), limits());
    world.join(1, 0..1, NOW);
    world.rest();
    assert_eq!(world.numbers(1, 1), [0]);
    world.join(2, 0..1, NOW);
    world.rest();
    // The second slab was made before the other one came: the window had room for it.
    assert_eq!(world.numbers(1, 2), [0, 1, 2]);
    assert_eq!(world.numbers(2, 1), [2]);
    assert_eq!(world.numbers(1, 1), [0, 1, 2, 3]);
    assert_eq!(world.outcome(1), &Some(Ok(())));
    assert_eq!(world.numbers(2, 3), [2, 3, 0, 1]);
    assert_eq!(world.outcome(2), &Some(Ok(())));
    world.finish();
}

#[test]
fn who_comes_behind_lap_1_gets_a_spin_of_a_later_index_and_the_third_waits() {
    let mut world = World::new(view(2), limits());
    for (rider, index) in [(1, 1), (2, 2)] {
        world.index = index;
        world.join(rider, 0..1, NOW);
        world.rest();
        assert_eq!(world.riders[&RiderId(rider)].index, Some(index));
        let slabs = world.view.slabs(index, 0).len();
        // Its last slab is made, and not asked for.
        world.numbers(rider, slabs - 1);
    }
    world.index = 3;
    world.join(3, 0..1, NOW);
    world.rest();
    assert_eq!(world.riders[&RiderId(3)].index, None, "two spins are as many as may be");
    world.leave(1);
    world.rest();
    assert_eq!(world.riders[&RiderId(3)].index, Some(3));
    world.finish();
}

/// Riders that read nothing had both spins for a minute, and who came then waited for their end.
#[test]
fn of_those_that_ask_for_nothing_one_makes_way_for_who_waits_for_a_spin() {
    let mut world = World::new(view(2), limits());
    for (rider, index) in [(1, 1), (2, 2)] {
        world.index = index;
        world.join(rider, 0..1, NOW);
        world.rest();
        world.numbers(rider, world.view.slabs(index, 0).len() - 1);
    }
    world.pass(3_000 * MS);
    world.index = 3;
    world.join(3, 0..1, NOW);
    world.rest();
    world.pass(1_999 * MS);
    assert_eq!((world.outcome(1), world.riders[&RiderId(3)].index), (&None, None));
    world.pass(MS);
    world.rest();
    let Some(Err(error)) = world.outcome(1) else { panic!("it ended") };
    assert!(error.message.starts_with("ride at index 1: nothing was asked for in 5 s"));
    assert_eq!(world.riders[&RiderId(3)].index, Some(3));
    // There is nobody else for whom there would have to be room.
    world.pass(10_000 * MS);
    assert_eq!(world.outcome(2), &None);
    world.finish();
}

#[test]
fn of_two_spins_that_serve_the_newer_one_is_joined() {
    let mut world = World::new(view(4), limits());
    for index in [1, 2] {
        world.index = index;
        world.join(index, 0..1, Ticket::Shared { at_least: Index(index) });
        world.rest();
    }
    world.join(3, 0..1, NOW);
    assert_eq!(world.riders[&RiderId(3)].index, Some(2));
    world.finish();
}

#[test]
fn who_is_moved_before_lap_2_reads_what_it_missed_and_nothing_twice() {
    let mut world = World::new(view(4), limits());
    world.join(1, 0..1, NOW);
    world.rest();
    world.numbers(1, 1);
    for rider in [2, 3] {
        world.join(rider, 0..1, NOW);
    }
    // All three go on to the end of lap 1, side by side.
    for riders in [vec![1], vec![1, 2, 3], vec![1, 2, 3]] {
        riders.into_iter().for_each(|rider| world.pull(rider, 0));
        world.rest();
    }
    assert_eq!(world.outcome(1), &Some(Ok(())));
    assert_eq!(world.numbers_of(3, 0), [2, 3]);
    assert_eq!(world.numbers(2, 2), [2, 3, 0], "the third rider holds up the second");
    world.pass(100 * MS);
    assert_eq!(world.moves, 1);
    world.rest();
    assert_eq!(world.numbers(2, 0), [2, 3, 0, 1]);
    assert_eq!(world.numbers(3, 2), [2, 3, 0, 1]);
    assert_eq!(world.outcome(3), &Some(Ok(())));
    world.finish();
}

#[test]
fn who_holds_up_others_is_moved_after_20_ms_and_a_fiftieth_of_its_time_and_holds_up_nobody() {
    let mut world = World::new(view(4), limits());
    world.join(1, 0..1, NOW);
    world.join(2, 0..1, NOW);
    world.rest();
    world.numbers(1, 1);
    world.numbers(2, 1);
    world.pass(1000 * MS);
    assert_eq!(world.moves, 0, "nobody has asked for more");
    world.pull(2, 0);
    assert_eq!(world.numbers(2, 0), [0, 1]);
    world.pull(2, 0);
    world.rest();
    assert_eq!(world.numbers(2, 0), [0, 1], "the first rider holds up the second");
    // 20 ms, and 2 % of 1,000 ms and of the stall itself.
    world.pass(40 * MS);
    assert_eq!(world.moves, 0);
    world.pass(MS);
    world.rest();
    assert_eq!(world.moves, 1);
    assert_eq!(world.numbers(2, 1), [0, 1, 2, 3]);
    assert_eq!(world.numbers(1, 3), [0, 1, 2, 3], "it goes on from its own place");
    world.finish();
}

/// Of twenty riders on a machine that had too much to do each was behind at times, and was moved though
/// one or two waited for it alone: their own passes gave the machine more to do, so that more were behind.
#[test]
fn who_holds_up_half_of_the_others_is_moved_after_twice_the_time() {
    for (waiting, ms) in [(&[1][..], 40), (&[1, 2], 20)] {
        let mut world = World::new(view(4), limits());
        (1..=3).for_each(|rider| world.join(rider, 0..1, NOW));
        world.rest();
        (1..=3).for_each(|rider| drop(world.numbers(rider, 1)));
        for rider in waiting {
            world.pull(*rider, 0);
            world.rest();
            assert_eq!(world.numbers(*rider, 1), [0, 1], "others hold it up");
        }
        // And 2 % of the stall itself.
        world.pass(ms * MS);
        assert_eq!(world.moves, 0, "{waiting:?} wait");
        world.pass(MS);
        assert_eq!(world.moves, 3 - waiting.len(), "{waiting:?} wait");
        world.finish();
    }
}

#[test]
fn a_rider_that_never_asks_gives_the_snapshot_back_after_a_minute_and_is_told_why() {
    let mut world = World::new(view(3), limits());
    world.join(1, 0..1, NOW);
    world.rest();
    world.pass(59_999 * MS);
    assert_eq!(world.outcome(1), &None);
    world.pass(MS);
    let Some(Err(error)) = world.outcome(1) else { panic!("it ended") };
    assert_eq!(error.kind, Kind::Retry);
    assert!(error.message.starts_with("ride at index 1: nothing was asked for in 60 s"));
    world.finish();
}

#[test]
fn an_image_that_is_whole_frees_the_snapshot_from_who_is_behind() {
    let mut world = World::new(view(4), Limits { window_bytes: 1 << 20, ..limits() });
    world.image_due();
    world.answer(0, false);
    world.join(1, 0..1, NOW);
    world.join(2, 0..1, NOW);
    world.rest();
    assert_eq!(world.images, [1].into(), "it was written while the riders rested");
    world.pass(70_000 * MS);
    assert!(world.outcome(1).is_some() && world.outcome(2).is_some(), "they held the snapshot");
    // Who comes later reads the image.
    world.join(3, 0..1, Ticket::At { index: Index(1), from: None });
    assert_eq!(world.numbers(3, 2), [0, 1]);
    let (index, row) = world.token(RiderId(3), 0).expect("it has had some");
    world.leave(3);
    world.join(4, 0..1, Ticket::At { index: Index(index), from: Some(row) });
    assert_eq!(world.numbers(4, 2), [2, 3]);
    assert_eq!(world.outcome(4), &Some(Ok(())));
    world.finish();
}

#[test]
fn a_moved_rider_reads_the_image_and_lets_go_of_the_snapshot_when_that_is_whole() {
    let mut world = World::new(view(4), limits());
    world.image_due();
    world.answer(0, false);
    world.join(1, 0..1, NOW);
    world.rest();
    assert_eq!(world.numbers(1, 1), [0]);
    // The image's writer is the one that it holds up.
    world.pass(100 * MS);
    assert_eq!(world.moves, 1);
    world.rest();
    assert_eq!(world.images, [1].into());
    world.pass(50_000 * MS);
    assert_eq!(world.outcome(1), &None, "no snapshot is kept for it");
    assert_eq!(world.numbers(1, 3), [0, 1, 2, 3]);
    assert_eq!(world.outcome(1), &Some(Ok(())));
    world.finish();
}

#[test]
fn an_image_that_cannot_be_read_is_not_asked_again_while_the_snapshot_is_there() {
    let mut world = World::new(view(4), limits());
    world.image_due();
    world.answer(0, false);
    world.join(1, 0..1, NOW);
    let spools = |task: &Task| matches!(task, Task::Spool { .. });
    world.answer_until(spools);
    world.answer_first(spools, false);
    // It holds up the image's writer, which has written one slab.
    world.pass(100 * MS);
    world.answer_until(spools);
    assert_eq!(world.moves, 1);
    world.pull(1, 0);
    let reads = world.tasks.len() - 1;
    assert!(world.reads_image(reads));
    world.answer(reads, true);
    for slabs in 1..=4 {
        assert!((0..world.tasks.len()).all(|task| !world.reads_image(task)));
        world.rest();
        assert_eq!(world.numbers_of(1, 0).len(), slabs, "it comes from the snapshot");
        world.pull(1, 0);
    }
    assert_eq!(world.outcome(1), &Some(Ok(())));
    world.finish();
}

#[test]
fn a_failure_in_lap_2_ends_who_needs_it_and_not_who_takes_the_image() {
    let scans = |task: &Task| matches!(task, Task::Scan(_));
    let spools = |task: &Task| matches!(task, Task::Spool { .. });
    let mut world = World::new(view(4), Limits { window_bytes: 1 << 20, ..limits() });
    world.image_due();
    world.answer(0, false);
    world.answer_first(scans, false);
    world.join(1, 0..1, NOW);
    world.answer_first(scans, false);
    world.join(2, 0..1, NOW);
    world.answer_until(spools);
    world.answer_first(spools, false);
    // One slab is written: all that the first rider missed, and half of what the second did.
    assert_eq!(world.numbers_of(2, 2), [2, 3]);
    world.answer_first(scans, true);
    assert_eq!(world.outcome(2).as_ref().map(Result::is_err), Some(true));
    assert_eq!(world.outcome(1), &None);
    world.rest();
    assert_eq!(world.numbers(1, 4), [1, 2, 3, 0]);
    assert_eq!(world.outcome(1), &Some(Ok(())));
    world.finish();
}

/// Riders of images were let be: who was killed while it rode one stayed for as long as the image did, the horizon
/// waited for it, and a thousand of them were all that a view takes.
#[test]
fn a_rider_of_an_image_that_never_asks_is_ended_after_a_minute_too() {
    let mut world = World::new(view(3), limits());
    world.image_found();
    world.join(1, 0..1, Ticket::At { index: Index(1), from: None });
    world.numbers(1, 1);
    world.pass(59_999 * MS);
    assert_eq!(world.outcome(1), &None);
    world.pass(MS);
    let Some(Err(error)) = world.outcome(1) else { panic!("it ended") };
    assert!(error.message.starts_with("ride at index 1: nothing was asked for in 60 s"));
    // Its token goes on.
    let (index, row) = world.token(RiderId(1), 0).expect("it has had some");
    world.join(2, 0..1, Ticket::At { index: Index(index), from: Some(row) });
    assert_eq!(world.numbers(2, 2), [1, 2]);
    world.finish();
}

#[test]
fn an_image_that_is_to_go_waits_for_its_readers_but_not_for_ever() {
    let mut world = World::new(view(3), limits());
    world.image_found();
    for rider in [1, 2] {
        world.join(rider, 0..1, Ticket::At { index: Index(1), from: None });
        world.numbers(rider, 1);
    }
    world.pass(50_000 * MS);
    world.image_retired(1);
    assert_eq!(world.numbers(1, 1), [0, 1]);
    world.pass(50_000 * MS);
    assert_eq!(world.outcome(1), &None, "it asks now and then");
    assert_eq!(world.outcome(2).as_ref().map(Result::is_err), Some(true));
    assert!(world.images.contains(&1));
    assert_eq!(world.numbers(1, 1), [0, 1, 2]);
    assert_eq!(world.outcome(1), &Some(Ok(())));
    assert!(world.images.is_empty());
    world.finish();
}

#[test]
fn private_readers_take_turns_in_the_order_in_which_they_came() {
    let mut world = World::new(view(4), Limits { private_max: 1, ..limits() });
    world.join(1, 0..1, NOW);
    world.rest();
    let row = world.view.slabs(1, 0)[0].slab.first.clone();
    for rider in 2..=4 {
        let ticket = Ticket::At { index: Index(1), from: Some(row.clone()) };
        world.join(rider, 0..1, ticket);
        world.pull(rider, 0);
        world.pull(rider, 0);
    }
    for rider in 2..=4 {
        assert_eq!(world.tasks.len(), 1, "one scan at a time");
        world.answer(0, false);
        world.answer(0, false);
        assert_eq!(world.numbers_of(rider, 0), [0, 1], "nobody overtakes");
    }
    world.finish();
}

#[test]
fn an_image_is_written_when_nobody_rides_and_given_up_where_the_disk_is_full() {
    for fails in [false, true] {
        let mut world = World::new(view(3), limits());
        world.image_due();
        world.answer(0, false);
        // The first slab is made, then it is written, or is not.
        world.answer(0, false);
        let written = |task: &Task| matches!(task, Task::Spool { .. });
        let at = world.tasks.iter().position(written).expect("a slab is being written");
        world.answer(at, fails);
        world.rest();
        assert_eq!(world.images.contains(&1), !fails);
        world.finish();
    }
}

#[test]
fn of_two_images_that_wait_the_later_one_is_made() {
    let mut world = World::new(view(2), Limits { spins_max: 1, ..limits() });
    world.join(1, 0..1, NOW);
    world.rest();
    for index in [2, 3] {
        world.index = index;
        world.image_due();
    }
    assert_eq!(world.for_images, [3].into(), "the earlier snapshot was given back");
    world.finish();
    assert_eq!(world.images, [3].into());
}

#[test]
fn dedicated_riders_scan_snapshots_of_their_own() {
    let mut world = World::new(view(3), limits());
    for rider in 1..=3 {
        world.join(rider, 0..1, Ticket::Dedicated { at_least: Index(0) });
    }
    world.rest();
    for rider in 1..=3 {
        assert_eq!(world.numbers(rider, 3), [0, 1, 2], "in their order, and from the beginning");
        assert_eq!(world.outcome(rider), &Some(Ok(())));
    }
    world.finish();
}

#[test]
fn an_index_that_is_not_here_and_hashes_that_are_not_are_refused() {
    let mut world = World::new(view(3), limits());
    world.join(1, 0..1, Ticket::At { index: Index(7), from: None });
    // A spin that is about to begin may be at that index: who knows.
    world.join(2, 0..1, NOW);
    world.join(3, 0..1, Ticket::At { index: Index(1), from: None });
    for rider in [1, 3] {
        let Some(Err(error)) = world.outcome(rider) else { panic!("it ended") };
        assert_eq!(error.kind, Kind::NotFound);
    }
    let mut core = Carousel::new(limits(), world.view.spans());
    let span = Span { low: HEAD, high: 2 * HEAD };
    core.join(0, RiderId(1), Boarding { span, ticket: NOW });
    let Some(Effect::End { result: Err(error), .. }) = core.next_effect() else {
        panic!("it ended")
    };
    assert_eq!(error.kind, Kind::Invalid);
}
