//! Rides over one disk view beside a plain model: riders who want different things board and ask at
//! any time while keys change, with slabs and windows drawn small. Each gets exactly the items of its
//! one index that it wants, once, in the log's order within keys, whoever rides beside it. Some ride
//! from images of marks, also while those are written, and some break off and go on from there.

mod boots;
mod fields;
mod holds;
mod nodes;
mod origins;
mod stops;
mod sums;
mod trims;
mod world;

use holdfast_base::codec::Decode;
use holdfast_base::ids::Index;
use holdfast_env::trial::Trial;
use holdfast_env::{Rng, SeededRng};
use holdfast_wire::slab::{Content, Range, Reader};
use holdfast_wire::{self as wire, Call, view as msg};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use world::*;

const RIDERS: usize = 6;

struct Rider {
    asks: Asks,
    board: msg::Board,
    boarded: Option<msg::Boarded>,
    /// Requests under way, and the head of each.
    under_way: BTreeMap<u64, u32>,
    items: BTreeSet<(Item, bool)>,
    /// The last index of each key.
    last: BTreeMap<(u16, Vec<u8>), u64>,
    over: bool,
    /// Rides that it has begun.
    rides: u32,
}

impl Rider {
    fn new(world: &mut World, board: msg::Board) -> Rider {
        let mut asks = world.connect();
        asks.send(wire::OP_RIDE_BEGIN, &board, &[]);
        let (items, last) = (BTreeSet::new(), BTreeMap::new());
        let under_way = BTreeMap::new();
        Rider { asks, board, boarded: None, under_way, items, last, over: false, rides: 1 }
    }

    /// Ends its ride in the middle, and goes on from there with another one.
    fn break_off(&mut self, world: &mut World) {
        let boarded = self.boarded.take().unwrap();
        self.asks.send(wire::OP_RIDE_END, &boarded.ride, &[]);
        self.asks = world.connect();
        self.under_way.clear();
        let place = |((collection, key, index, _), _): &(Item, bool)| msg::Place {
            hash: hash_of(*collection, key),
            collection: *collection,
            key: key.clone(),
            index: Index(*index),
        };
        let behind = self.items.iter().map(place).max();
        let low = behind.as_ref().map_or(self.board.low, |place| u64::from(place.hash));
        let board = msg::Board { low, behind, at: Some(boarded.index), ..self.board.clone() };
        self.asks.send(wire::OP_RIDE_BEGIN, &board, &[]);
        self.rides += 1;
    }

    fn hear(&mut self, told: &str) {
        for (request, meta, body) in self.asks.answers() {
            if self.boarded.is_none() {
                self.boarded = Some(msg::Boarded::from_bytes(&meta).unwrap());
                continue;
            }
            self.under_way.remove(&request);
            if meta.is_empty() {
                self.over = true;
                continue;
            }
            assert!(!self.over, "{told}: something comes behind the end");
            for item in Reader::new(&meta, &body).unwrap().items() {
                let key = (item.collection, item.key.to_vec());
                let before = self.last.insert(key.clone(), item.index);
                assert!(before.is_none_or(|before| before < item.index), "{told}: {key:?}");
                let value = match item.content {
                    Content::Value(value) => Some(value.to_vec()),
                    Content::Deleted | Content::NotSent => None,
                };
                let item = ((key.0, key.1, item.index, value), item.content == Content::Deleted);
                assert!(self.items.insert(item), "{told}: an item came twice");
            }
        }
    }

    /// Asks for more of a head, but not for more than that at a time.
    fn ask(&mut self, head: u32, at_a_time: usize) {
        let Some(boarded) = self.boarded else { return };
        let under_way = self.under_way.values().filter(|of| **of == head).count();
        if !self.over && under_way < at_a_time {
            let next = msg::Next { ride: boarded.ride, head };
            let request = self.asks.send(wire::OP_RIDE_NEXT, &next, &[]);
            self.under_way.insert(request, head);
        }
    }
}

fn draw_board(below: &dyn Fn(u64) -> u64, last: u64) -> msg::Board {
    // Between hashes that keys have: so borders lie inside slabs.
    let border = || u64::from(hash_of(1, &key(below))) + below(2);
    let range = match (below(3), border(), border()) {
        (0, ..) => Range::ALL,
        (_, low, high) => Range::new(low.min(high), low.max(high) + 1),
    };
    let collections = match below(6) {
        0 => Some(Vec::new()),
        1 => Some(vec![1]),
        2..=3 => Some(vec![2]),
        _ => None,
    };
    let fields = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect());
    let fields = match (&collections, below(4)) {
        (Some(listed), 0) if !listed.contains(&1) => fields(&["a"]),
        (Some(listed), 1) if !listed.contains(&1) => fields(&["b"]),
        (Some(listed), 2) if !listed.contains(&1) => fields(&["b", "none", "a"]),
        _ => None,
    };
    let indices = match (below(5), below(last + 2), below(last + 2)) {
        (0, from, _) => (from, None),
        (1, from, until) if from < until => (from, Some(Index(until))),
        _ => (0, None),
    };
    msg::Board {
        collections,
        keys_only: fields.is_none() && below(3) == 0,
        versions: below(2) == 0,
        since: Index(indices.0),
        below: indices.1,
        fields,
        dedicated: below(5) == 0,
        ..msg::Board::of(disk_view(), range)
    }
}

/// Those whose rides are over have what they wanted, and go; how many there were.
fn through(riders: &mut Vec<Rider>, model: &Model, told: &str) -> usize {
    let before = riders.len();
    riders.retain(|rider| {
        if rider.over {
            let index = rider.boarded.unwrap().index.0;
            assert_eq!(rider.items, model.wanted(&rider.board, index), "{told}");
        }
        !rider.over
    });
    before - riders.len()
}

/// Images that others are told of are whole, which their names say, and nothing else does.
fn are_named(images: &[Index], world: &World, told: &str) {
    let named = boots::image_files(world);
    for image in images {
        let name = format!("image-{:020}", image.0);
        assert!(named.iter().any(|file| file.ends_with(&name)), "{told}: {named:?}, {image}");
    }
}

/// One that rides an image may go on with another ride. Whether it does.
fn may_break_off(rider: &mut Rider, images: &[Index], world: &mut World) -> bool {
    let of_image =
        rider.boarded.is_some_and(|boarded| boarded.heads == 1 && images.contains(&boarded.index));
    let breaks = of_image && !rider.over && rider.board.at.is_some();
    if breaks {
        rider.break_off(world);
    }
    breaks
}

#[test]
fn each_rider_gets_what_it_wants_of_one_index_whoever_rides_beside_it() {
    let (mut rides, mut shared, mut from_images, mut broken_off) = (0, 0, 0, 0);
    for seed in 0..40 {
        let trial = Trial::drawn(seed).enter();
        let rng = SeededRng::new(seed);
        let below = |n: u64| rng.next_u64() % n;
        let mut world = World::new(seed, 1 + below(3) as u32);
        let mut asks = world.connect();
        let mut model = Model::default();
        let mut riders: Vec<Rider> = Vec::new();
        // What was there of images: of retired ones readers come to their end.
        let mut images: Vec<Index> = Vec::new();
        for step in 0..700 {
            let told = format!("seed {seed}, step {step}");
            world.time.0.fetch_add(below(3_000_000), Ordering::Relaxed);
            match below(9) {
                8 if below(6) == 0 => {
                    let mark = msg::Mark { topic: TOPIC.into(), call: Call::default() };
                    asks.now(wire::OP_VIEW_MARK, &mark, &[]);
                    world.views.round();
                    world.node.pump();
                }
                8 if !riders.is_empty() => {
                    let at = below(riders.len() as u64) as usize;
                    broken_off += u32::from(may_break_off(&mut riders[at], &images, &mut world));
                }
                0 => change(&mut asks, &mut model, &below),
                1 if riders.len() < RIDERS => {
                    let mut board = draw_board(&below, model.last());
                    if let Some(at) = images.last().filter(|_| below(3) == 0) {
                        (board.at, board.dedicated) = (Some(*at), false);
                        from_images += 1;
                    }
                    riders.push(Rider::new(&mut world, board));
                }
                // Some are slow.
                _ if !riders.is_empty() => {
                    let at = (below(riders.len() as u64) * below(2)) as usize;
                    let head = below(3) as u32;
                    let rider = &mut riders[at];
                    if rider.boarded.is_some_and(|boarded| head < boarded.heads) {
                        rider.ask(head, 1 + below(3) as usize);
                    }
                }
                _ => {}
            }
            let status = world.views.status();
            images = status[0].images.iter().map(|image| image.index).collect();
            are_named(&images, &world, &told);
            riders.iter_mut().for_each(|rider| rider.hear(&told));
            shared += (riders.iter().filter(|r| r.boarded.is_some()).count() > 1) as u32;
            rides += through(&mut riders, &model, &told);
        }
        // Whoever goes on asking comes to its end.
        for round in 0.. {
            let told = format!("seed {seed}, round {round} of the end");
            assert!(round < 20_000, "{told}: {} riders have no end", riders.len());
            world.time.0.fetch_add(1_000_000, Ordering::Relaxed);
            for rider in &mut riders {
                let heads = rider.boarded.map_or(0, |boarded| boarded.heads);
                (0..heads).for_each(|head| rider.ask(head, 1));
            }
            riders.iter_mut().for_each(|rider| rider.hear(&told));
            rides += through(&mut riders, &model, &told);
            if riders.is_empty() {
                break;
            }
        }
        assert_eq!(world.views.moments()[0].1, 0, "seed {seed}: nobody rides, and rows are kept");
        world.views.end().unwrap();
        drop(trial);
    }
    assert!(rides > 200 && shared > 3000, "{rides} rides, {shared} steps with several at once");
    let told = format!("{from_images} rides of images, {broken_off} went on");
    assert!(from_images > 50 && broken_off > 10, "{told}");
}
