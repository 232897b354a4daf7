//! What rides hold, and what goes once they do not.

use super::world::*;
use holdfast_base::codec::Decode;
use holdfast_base::ids::Index;
use holdfast_cluster::holds::HOLD_BYTES_MAX;
use holdfast_env::trial::Trial;
use holdfast_env::{Rng, SeededRng};
use holdfast_node::Held;
use holdfast_ride::KeptView;
use holdfast_wire::{self as wire, Call, view as msg};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

pub fn pass_seconds(world: &World, seconds: u64) {
    world.time.0.fetch_add(seconds * 1_000_000_000, Ordering::Relaxed);
}

fn move_horizon(asks: &mut Asks, index: u64) -> msg::Moved {
    let horizon = msg::Horizon { topic: TOPIC.into(), call: Call::default(), index: Index(index) };
    let (_, meta, _) = asks.now(wire::OP_VIEW_HORIZON, &horizon, &[]);
    msg::Moved::from_bytes(&meta).unwrap()
}

fn last(model: &Model) -> u64 {
    model.versions.values().flatten().map(|(made, _)| *made).max().unwrap()
}

/// Rows of items that the view has.
fn rows(world: &World) -> usize {
    let view = world.views.view(&disk_view()).unwrap();
    let KeptView::Disk { rows, .. } = &view.kept else { panic!("a disk view") };
    let mut count = 0;
    let each = &mut |_: &[u8], _: &[u8]| {
        count += 1;
        Ok(true)
    };
    rows.scan(b"i", b"j", each).unwrap();
    count
}

#[test]
fn the_horizon_comes_up_to_a_ride_and_passes_it_a_while_after_its_end() {
    let _trial = Trial::drawn(1).with(&HOLD_BYTES_MAX, 1 << 30).enter();
    let rng = SeededRng::new(5);
    let below = |n: u64| rng.next_u64() % n;
    let mut world = World::new(1, 2);
    let mut asks = world.connect();
    let mut model = Model::default();
    (0..30).for_each(|_| change(&mut asks, &mut model, &below));
    let (_, meta, _) = asks.now(wire::OP_RIDE_BEGIN, &all_of(disk_view()), &[]);
    let ride = msg::Boarded::from_bytes(&meta).unwrap();
    (0..30).for_each(|_| change(&mut asks, &mut model, &below));

    let end = last(&model);
    assert!(ride.index.0 < end);
    // In front of the ride it goes where it is asked to go.
    assert_eq!(move_horizon(&mut asks, 3).horizon, Index(3));
    assert_eq!(move_horizon(&mut asks, end).horizon, ride.index);
    asks.now(wire::OP_RIDE_END, &ride.ride, &[]);
    assert_eq!(move_horizon(&mut asks, end).horizon, ride.index, "its rider needs the log yet");
    pass_seconds(&world, 59);
    assert_eq!(move_horizon(&mut asks, end).horizon, ride.index);
    pass_seconds(&world, 1);
    let moved = move_horizon(&mut asks, end);
    assert!(moved.horizon.0 == end && moved.index.0 > end, "{moved:?}");
    // It never goes back, and an entry for nothing is not written: each asked for wrote one.
    let next = |world: &World| {
        world.node.log.info(&holdfast_view::items::log_topic(TOPIC).unwrap()).unwrap().next
    };
    let before = next(&world);
    for index in [0, 3, end] {
        assert_eq!(move_horizon(&mut asks, index).horizon, Index(end));
    }
    assert_eq!(next(&world), before);

    // What it has passed goes from the rows, round by round, also over a power cut.
    let newest = |versions: &&Vec<Version>| versions.last().unwrap().1.is_some();
    let wanted = model.versions.values().filter(newest).count();
    let before = rows(&world);
    assert!(before > wanted);
    (0..3).for_each(|_| world.views.round());
    drop(asks);
    let world = world.restarted(2);
    for _ in 0..before {
        world.node.pump();
        world.views.round();
    }
    assert_eq!(rows(&world), wanted);
}

/// A trim judges by what nodes said some seconds ago, a horizon by what they say now. A hold that had run out
/// was forgotten when it was not among the older ones, and told of again.
#[test]
fn a_hold_that_has_run_out_stays_so_whoever_asks() {
    let _trial = Trial::drawn(1).with(&HOLD_BYTES_MAX, 1).enter();
    let rng = SeededRng::new(5);
    let below = |n: u64| rng.next_u64() % n;
    let mut world = World::new(1, 1);
    let mut asks = world.connect();
    let mut model = Model::default();
    (0..3).for_each(|_| change(&mut asks, &mut model, &below));
    let topic = holdfast_view::items::log_topic(TOPIC).unwrap();
    let (id, end) = (world.node.id, Index(last(&model)));
    let at = Index(end.0 - 1);
    let held: Held = BTreeMap::from([(id, vec![at])]);
    assert_eq!(world.node.bounded_by_holds(&topic, end, &held), end);
    assert!(world.node.has_run_out(&topic, id, at) && !world.node.has_run_out(&topic, id, end));
    assert_eq!(world.node.bounded_by_holds(&topic, end, &Held::new()), end);
    assert!(world.node.has_run_out(&topic, id, at));
}

/// A hold that keeps more of the log than it may runs out; one that keeps less does not.
#[test]
fn a_trim_stops_at_a_hold_until_that_has_run_out() {
    let _trial = Trial::drawn(1).with(&HOLD_BYTES_MAX, 20_000).enter();
    let rng = SeededRng::new(5);
    let below = |n: u64| rng.next_u64() % n;
    let mut world = World::new(1, 1);
    let mut asks = world.connect();
    let mut model = Model::default();
    change(&mut asks, &mut model, &below);
    let (_, meta, _) = asks.now(wire::OP_RIDE_BEGIN, &all_of(disk_view()), &[]);
    let at = msg::Boarded::from_bytes(&meta).unwrap().index;
    let topic = holdfast_view::items::log_topic(TOPIC).unwrap();
    let held: Held = BTreeMap::from([(world.node.id, world.node.holds.of(&topic, 0))]);
    assert_eq!(held[&world.node.id], [at]);
    let (mut held_for, mut ran_out_at) = (0, None);
    for round in 0..200 {
        change(&mut asks, &mut model, &below);
        let end = Index(last(&model));
        let until = world.node.bounded_by_holds(&topic, end, &held);
        let has_run_out = world.node.has_run_out(&topic, world.node.id, at);
        assert_eq!(until, if has_run_out { end } else { at });
        let bytes = world.node.hosted().unwrap().bytes_behind(&topic, at).unwrap();
        assert_eq!(has_run_out, bytes > 20_000, "{bytes} bytes");
        held_for += u64::from(!has_run_out);
        ran_out_at = ran_out_at.or(has_run_out.then_some(round));
    }
    assert!(held_for > 0 && ran_out_at.is_some());
}
