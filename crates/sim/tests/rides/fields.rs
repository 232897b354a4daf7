//! How often fields of values are made on whole rides.

use super::world::*;
use holdfast_base::codec::Decode;
use holdfast_env::events;
use holdfast_env::trial::Trial;
use holdfast_env::{Rng, SeededRng};
use holdfast_ride::carousel::WINDOW_BYTES;
use holdfast_wire::slab::SLAB_BYTES;
use holdfast_wire::{self as wire, view as msg};
use std::sync::atomic::Ordering;

struct Rider {
    asks: Asks,
    ride: u64,
    /// Slabs that have come.
    came: usize,
    /// Requests under way.
    asked: usize,
    over: bool,
}

impl Rider {
    fn new(world: &mut World, fields: &[&str]) -> Rider {
        let mut asks = world.connect();
        let fields = fields.iter().map(|name| (*name).to_owned()).collect();
        let (collections, versions) = (Some(vec![2]), false);
        let board =
            msg::Board { collections, versions, fields: Some(fields), ..all_of(disk_view()) };
        let (_, meta, _) = asks.now(wire::OP_RIDE_BEGIN, &board, &[]);
        let ride = msg::Boarded::from_bytes(&meta).unwrap().ride;
        Rider { asks, ride, came: 0, asked: 0, over: false }
    }

    fn ask(&mut self) {
        // With each the clock is looked at.
        if self.asked < 8 && !self.over {
            self.asked += 1;
            self.asks.send(wire::OP_RIDE_NEXT, &msg::Next { ride: self.ride, head: 0 }, &[]);
        }
        self.hear();
    }

    fn hear(&mut self) {
        for (_, meta, _) in self.asks.answers() {
            self.asked = self.asked.saturating_sub(1);
            self.over = meta.is_empty();
            self.came += usize::from(!self.over);
        }
    }
}

/// Of each slab fields are made once for all who ask for the same, over whole rides; who is moved has slabs of its own
/// from there on, and who asks for others has others.
#[test]
fn fields_are_made_once_a_slab_on_whole_rides_also_where_a_rider_is_moved() {
    // The first one stops asking here, until the others are through.
    const STOPS: usize = 5;
    for (seed, is_slow) in (0..5).flat_map(|seed| [(seed, false), (seed, true)]) {
        let trial = Trial::new().with(&SLAB_BYTES, 300).with(&WINDOW_BYTES, 1).enter();
        let rng = SeededRng::new(seed);
        let below = |n: u64| rng.next_u64() % n;
        let mut world = World::new(seed, 1);
        let (mut asks, mut model) = (world.connect(), Model::default());
        (0..40).for_each(|_| change(&mut asks, &mut model, &below));
        let (came, told) = events::told_by(|| {
            let sets: [&[&str]; 5] = [&["a"], &["a"], &["a"], &["a"], &["b", "a"]];
            let mut riders = sets.map(|fields| Rider::new(&mut world, fields));
            for round in 0.. {
                assert!(round < 10_000, "seed {seed}: they come to no end");
                world.time.0.fetch_add(30_000_000, Ordering::Relaxed);
                let stops = is_slow && riders[0].came >= STOPS;
                let rests = stops && !riders[1..].iter().all(|rider| rider.over);
                riders[usize::from(rests)..].iter_mut().for_each(Rider::ask);
                if riders.iter().all(|rider| rider.over) {
                    break;
                }
            }
            riders.map(|rider| rider.came)
        });
        let slabs = came[1];
        assert!(slabs > 2 * STOPS && came == [slabs; 5], "seed {seed}: {came:?}");
        let was_moved = told.iter().any(|event| event.to_string().contains("ride.moved"));
        assert_eq!(was_moved, is_slow, "seed {seed}: {told:?}");
        let made = trial.happened()["fields of values were made"] as usize;
        // For the first four, and for the last one. The first slab was made before the others came: it is made once
        // more for them, behind all others.
        let shared = slabs + 1 + slabs;
        let own = if is_slow { slabs - STOPS } else { 0 };
        assert_eq!(made, shared + own, "seed {seed}");
        world.views.end().unwrap();
    }
}

/// Values that are bytes have no fields: who asks for some is told of which collection that is so, before anything is sent.
#[test]
fn fields_of_values_that_are_bytes_are_refused() {
    let mut world = World::new(1, 1);
    let mut asks = world.connect();
    for (collections, is_refused) in
        [(None, true), (Some(vec![1, 2]), true), (Some(vec![2]), false)]
    {
        let fields = Some(vec!["a".to_owned()]);
        let board = msg::Board { collections, fields, ..all_of(disk_view()) };
        asks.send(wire::OP_RIDE_BEGIN, &board, &[]);
        let told = asks.outcomes().remove(0).1;
        let says = |told: &String| told.contains("`c1` are bytes") && told.contains("JSON");
        assert_eq!(told.as_ref().is_err_and(says), is_refused, "{told:?}");
        assert_eq!(told.is_ok(), !is_refused);
    }
    world.views.end().unwrap();
}
