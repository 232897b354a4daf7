//! The log trimmed between any two steps of riders, as its host does it: bounded by what rides hold, until that runs
//! out. What a rider received and what the log has behind it are together the log folded anew, or it hears which
//! image to ride, and that brings everything. Nobody is given other items.

use super::boots::{images, mark};
use super::world::*;
use holdfast_base::codec::Decode;
use holdfast_base::ids::Index;
use holdfast_client::view::{Follow, Rode};
use holdfast_env::trial::Trial;
use holdfast_env::{Clock, Rng, SeededRng};
use holdfast_node::Held;
use holdfast_view::items::log_topic;
use holdfast_wire::slab::{Content, Range, Reader, Received};
use holdfast_wire::{self as wire, Call, log as log_msg, view as msg};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

const RIDERS: usize = 6;
/// What a hold outlives its ride by.
const LINGERS_NS: u64 = 60_000_000_000;

/// Keys and what they have.
type There = BTreeMap<(u16, Vec<u8>), (u64, Vec<u8>)>;

struct Rider {
    asks: Asks,
    board: msg::Board,
    boarded: Option<(msg::Boarded, Vec<u8>)>,
    there: There,
    /// The last item that came.
    last: Option<msg::Place>,
    /// It has asked for more.
    asked: bool,
    stage: Stage,
}

enum Stage {
    Rides,
    /// It has left in the middle, and comes back.
    Away,
    /// Everything has come by then; and what follows it.
    Follows(u64, Box<Follow>),
    /// What it was told in the end.
    Refused(String),
}

fn put(there: &mut There, item: Received<'_>) {
    let key = (item.collection, item.key.to_vec());
    let before = there.get(&key).map_or(0, |(before, _)| *before);
    assert!(item.index > before, "each once, in the log's order: {item:?}");
    match item.content {
        Content::Deleted => drop(there.remove(&key)),
        Content::Value(value) => drop(there.insert(key, (item.index, value.to_vec()))),
        Content::NotSent => unreachable!("values were asked for"),
    }
}

impl Rider {
    fn new(world: &mut World, board: msg::Board) -> Rider {
        let mut asks = world.connect();
        asks.send(wire::OP_RIDE_BEGIN, &board, &[]);
        let (there, last, boarded) = (There::new(), None, None);
        Rider { asks, board, boarded, there, last, asked: false, stage: Stage::Rides }
    }

    fn hear(&mut self, now_ns: u64) {
        for (_, outcome) in self.asks.outcomes() {
            let (meta, body) = match outcome {
                Ok(answer) => answer,
                Err(why) => {
                    self.stage = Stage::Refused(why);
                    continue;
                }
            };
            if self.boarded.is_none() {
                self.boarded = Some((msg::Boarded::from_bytes(&meta).unwrap(), body));
                continue;
            }
            self.asked = false;
            if meta.is_empty() {
                let (boarded, front) = self.boarded.clone().unwrap();
                let rode = Rode { range: Range::ALL, boarded, front };
                let follow = Follow::new(&self.board, &[rode]).unwrap();
                self.stage = Stage::Follows(now_ns, Box::new(follow));
                continue;
            }
            let slab = Reader::new(&meta, &body).unwrap();
            assert_eq!(slab.header.index, self.boarded.as_ref().unwrap().0.index.0);
            for item in slab.items() {
                let place = msg::Place {
                    hash: item.hash,
                    collection: item.collection,
                    key: item.key.to_vec(),
                    index: Index(item.index),
                };
                put(&mut self.there, item);
                self.last = self.last.take().max(Some(place));
            }
        }
    }

    /// Asks for what comes next.
    fn ask(&mut self) {
        if let (Some((boarded, _)), false) = (&self.boarded, self.asked) {
            let next = msg::Next { ride: boarded.ride, head: 0 };
            self.asked = true;
            self.asks.send(wire::OP_RIDE_NEXT, &next, &[]);
        }
    }

    /// Leaves a ride of an image in the middle.
    fn leave(&mut self) {
        if let (Some((boarded, _)), false, Some(_)) = (&self.boarded, self.asked, self.board.at) {
            self.asks.send(wire::OP_RIDE_END, &boarded.ride, &[]);
            self.asks.outcomes();
            self.stage = Stage::Away;
        }
    }

    /// Goes on where it left, if there is still an image.
    fn come_back(&mut self, world: &mut World) {
        let behind = self.last.clone();
        let low = behind.as_ref().map_or(0, |place| u64::from(place.hash));
        let board = msg::Board { low, behind, ..self.board.clone() };
        (self.asks, self.boarded, self.stage) = (world.connect(), None, Stage::Rides);
        self.asks.send(wire::OP_RIDE_BEGIN, &board, &[]);
    }
}

/// What a node would do that looks after the log of one with all images: the trim of a round.
fn trim(world: &World) -> bool {
    let whole = images(world);
    let topic = log_topic(TOPIC).unwrap();
    let Some(wanted) = whole.len().checked_sub(2).map(|at| Index(whole[at])) else { return false };
    // What takes changes has a snapshot; views have their rows, and images.
    world.views.topic(TOPIC).unwrap().snapshot_now().unwrap();
    let held = world.node.holds.of(&topic, world.time.monotonic_ns());
    let held: Held = BTreeMap::from([(world.node.id, held)]);
    let before = world.node.bounded_by_holds(&topic, wanted, &held);
    let moves = before > world.node.log.info(&topic).unwrap().first;
    if moves {
        world.node.log.trim(&topic, before).unwrap();
    }
    world.views.round();
    world.node.pump();
    moves
}

fn model_at(model: &Model, index: u64) -> There {
    let wanted = model.wanted(&msg::Board::of(disk_view(), Range::ALL), index).into_iter();
    wanted.map(|((of, key, made, value), _)| ((of, key), (made, value.unwrap()))).collect()
}

/// The entry that is named behind these words.
fn named(told: &str, words: &str) -> Option<u64> {
    let behind = &told[told.find(words)? + words.len()..];
    behind.chars().take_while(char::is_ascii_digit).collect::<String>().parse().ok()
}

/// Who was told so rides the image that it was told of, and has everything. Whether there was one.
fn rides_instead(world: &mut World, model: &Model, told: &str) -> bool {
    let there = images(world);
    let Some(at) = named(told, "; ride at ").or_else(|| named(told, "--at ")) else {
        assert!(told.contains("no image here") && there.is_empty(), "it names none: {told}");
        return false;
    };
    assert!(there.contains(&at), "{told}: there are {there:?}");
    let board = msg::Board { at: Some(Index(at)), ..msg::Board::of(disk_view(), Range::ALL) };
    let mut rider = Rider::new(world, board);
    while let Stage::Rides = rider.stage {
        rider.ask();
        rider.hear(0);
    }
    assert!(matches!(rider.stage, Stage::Follows(..)), "{told}");
    assert_eq!(rider.there, model_at(model, at), "{told}");
    true
}

#[derive(Default)]
struct Counts {
    trims: usize,
    /// Rides with what follows them that were the log folded anew, ...
    whole: usize,
    /// ... and those that found it trimmed, or no image to go on with.
    cut: usize,
    lost: usize,
    resumed: usize,
}

/// One step of a rider. False when it has come to its end.
fn step(
    rider: &mut Rider,
    world: &mut World,
    model: &Model,
    below: &dyn Fn(u64) -> u64,
    counts: &mut Counts,
) -> bool {
    let topic = log_topic(TOPIC).unwrap();
    match &mut rider.stage {
        Stage::Rides if below(6) == 0 => rider.leave(),
        Stage::Rides => {
            // A part of it, or all the rest.
            let slabs = [1, 10, 10_000][below(3) as usize];
            for _ in 0..slabs {
                if !matches!(rider.stage, Stage::Rides) || rider.asked {
                    break;
                }
                rider.ask();
                rider.hear(world.time.monotonic_ns());
            }
        }
        Stage::Away => {
            counts.resumed += 1;
            rider.come_back(world);
        }
        Stage::Refused(_) => unreachable!("it was heard at once"),
        Stage::Follows(ended_ns, follow) => {
            let (ended_ns, from) = (*ended_ns, follow.next());
            let (entries_max, wait) = (1 + below(5) as u32, false);
            let read = log_msg::Read { topic: topic.clone(), from, entries_max, wait };
            let mut asks = world.connect();
            asks.send(wire::OP_LOG_READ, &read, &[]);
            let (_, outcome) = asks.outcomes().remove(0);
            let entries = match outcome {
                Ok((meta, _)) => log_msg::Entries::from_bytes(&meta).unwrap().entries,
                Err(told) => {
                    let at = rider.boarded.as_ref().unwrap().0.index;
                    let held = world.time.monotonic_ns() - ended_ns < LINGERS_NS;
                    let ran_out = world.node.has_run_out(&topic, world.node.id, at);
                    let is_present = rider.board.at.is_none();
                    // Behind what it has read it holds nothing.
                    let has_read = from.0 > at.0 + 1;
                    assert!(!held || ran_out || has_read || !is_present, "it held: {told}");
                    assert!(told.contains("were trimmed"), "{told}");
                    assert!(rides_instead(world, model, &told), "{told}");
                    counts.cut += 1;
                    return false;
                }
            };
            let there = &mut rider.there;
            for entry in &entries {
                let mut each = |_: &Follow, item: Received<'_>| {
                    put(there, item);
                    Ok(())
                };
                follow.take(entry.index, &entry.bytes, &mut each).unwrap();
            }
            if entries.is_empty() {
                assert_eq!(*there, model_at(model, u64::MAX), "ride and log, folded");
                counts.whole += 1;
                return false;
            }
        }
    }
    true
}

#[test]
fn riders_that_a_trim_cuts_hear_which_image_to_ride_and_others_have_everything() {
    let mut counts = Counts::default();
    for seed in 0..60 {
        let trial = Trial::drawn(seed).enter();
        let rng = SeededRng::new(seed ^ 0x7213);
        let below = |n: u64| rng.next_u64() % n;
        let mut world = World::new(seed, 1);
        let mut asks = world.connect();
        let mut model = Model::default();
        let mut riders: Vec<Rider> = Vec::new();
        // Also those of which there is nothing any more.
        let mut marks = BTreeSet::new();
        change(&mut asks, &mut model, &below);
        for _ in 0..250 {
            let ns = match below(16) {
                0 => LINGERS_NS + 1,
                1 | 2 => LINGERS_NS / 3,
                _ => 1_000_000,
            };
            world.time.0.fetch_add(ns, Ordering::Relaxed);
            match below(12) {
                0 | 1 => change(&mut asks, &mut model, &below),
                2 => mark(&world, &mut asks),
                3 => counts.trims += usize::from(trim(&world)),
                4 if riders.len() < RIDERS => {
                    let at = marks.iter().nth(below(marks.len() as u64 + 1) as usize).copied();
                    let board = msg::Board { at, ..msg::Board::of(disk_view(), Range::ALL) };
                    riders.push(Rider::new(&mut world, board));
                }
                5 if below(4) == 0 => {
                    // Of no matter to whoever rides: its snapshot, or its image, is as it was.
                    let (topic, index) = (TOPIC.into(), Index(below(model.last() + 1)));
                    let horizon = msg::Horizon { topic, call: Call::default(), index };
                    asks.now(wire::OP_VIEW_HORIZON, &horizon, &[]);
                }
                _ if !riders.is_empty() => {
                    let at = below(riders.len() as u64) as usize;
                    if !step(&mut riders[at], &mut world, &model, &below, &mut counts) {
                        riders.swap_remove(at);
                    }
                }
                _ => {}
            }
            marks.extend(images(&world).into_iter().map(Index));
            let now_ns = world.time.monotonic_ns();
            riders.iter_mut().for_each(|rider| rider.hear(now_ns));
            riders.retain(|rider| {
                let Stage::Refused(told) = &rider.stage else { return true };
                // Who has asked for nothing while a snapshot was kept for it rides again.
                if !told.contains("nothing was asked for") {
                    counts.lost += usize::from(rides_instead(&mut world, &model, told));
                }
                false
            });
        }
        world.views.end().unwrap();
        drop(trial);
    }
    let Counts { trims, whole, cut, lost, resumed } = counts;
    let told = format!(
        "{trims} trims, {whole} rides and what followed, {cut} that were cut, {lost} of no image, {resumed} resumed"
    );
    println!("{told}");
    assert!(trims > 100 && whole > 100 && cut > 30 && lost > 30 && resumed > 30, "{told}");
}
