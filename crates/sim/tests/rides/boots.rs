//! Views that begin with images, beside a plain model: of any part, on disk and in memory, in front
//! of a log that was trimmed behind the images' mark, also after a node that was killed in the middle.
//! All of them tell what the model tells.

use super::world::*;
use holdfast_base::codec::Decode;
use holdfast_base::ids::Index;
use holdfast_env::Disk;
use holdfast_env::trial::Trial;
use holdfast_env::{Rng, SeededRng};
use holdfast_view::items::log_topic;
use holdfast_wire::slab::Range;
use holdfast_wire::{self as wire, Call, view as msg};
use std::path::{Path, PathBuf};

pub fn mark(world: &World, asks: &mut Asks) {
    let mark = msg::Mark { topic: TOPIC.into(), call: Call::default() };
    asks.now(wire::OP_VIEW_MARK, &mark, &[]);
    // The first takes the moment, and an image is made at once where nobody waits.
    world.views.round();
    world.node.pump();
}

pub fn name(kind: msg::ViewKind, part: u32, of: u32) -> msg::ViewName {
    msg::ViewName { topic: TOPIC.into(), kind, part, of }
}

/// Everything that a view says of the model's keys: as of an index, or the latest.
pub fn check(world: &World, view: &msg::ViewName, model: &Model, told: &str) {
    let range = Range::part(view.part, view.of);
    let found = world.views.view(view).unwrap();
    let status = found.status();
    assert_eq!(status.stopped, None, "{told}");
    let newest = |versions: &[Version]| versions.last().cloned();
    for ((collection, key), versions) in &model.versions {
        if !range.contains(hash_of(*collection, key)) {
            continue;
        }
        let held = match &found.kept {
            holdfast_ride::KeptView::Memory { fold } => {
                let held = fold.read(|v, _| {
                    v.get(*collection, key).map(|(index, value)| (index.0, value.to_vec()))
                });
                held.unwrap()
            }
            holdfast_ride::KeptView::Index { .. } => unreachable!("none is run here"),
            holdfast_ride::KeptView::Disk { rows, .. } => {
                let reader = holdfast_view::items::Reader::new(rows.moment().unwrap()).unwrap();
                for (made, value) in versions {
                    let at = reader.get(*collection, key, Some(Index(*made))).unwrap();
                    let at = at.map(|found| (found.index.0, found.value));
                    assert_eq!(at, value.clone().map(|value| (*made, value)), "{told}, at {made}");
                }
                let found = reader.get(*collection, key, None).unwrap();
                found.map(|found| (found.index.0, found.value))
            }
        };
        let wanted = newest(versions).and_then(|(made, value)| Some((made, value?)));
        assert_eq!(held, wanted, "{told}: {key:?}");
    }
}

/// A view that began with others' images had none of the newest mark, and would have had none before the next
/// one, a million entries later: the topic had one copy fewer, and nobody knew. It is as if it had lost one.
#[test]
fn a_view_that_began_with_others_images_lacks_its_own_until_the_next_mark() {
    let _trial = Trial::new().enter();
    let rng = SeededRng::new(3);
    let below = |n: u64| rng.next_u64() % n;
    let mut world = World::new(3, 1);
    let mut asks = world.connect();
    let mut model = Model::default();
    change(&mut asks, &mut model, &below);
    mark(&world, &mut asks);
    change(&mut asks, &mut model, &below);
    assert_eq!(world.views.lost_image(TOPIC), Index(0));
    let at = world.views.status()[0].images[0].index;
    world.views.topic(TOPIC).unwrap().snapshot_now().unwrap();
    world.node.log.trim(&log_topic(TOPIC).unwrap(), at).unwrap();
    let half = name(msg::ViewKind::Disk {}, 1, 2);
    world.views.run(&half).unwrap();
    world.node.pump();
    check(&world, &half, &model, "it began with images");
    assert_eq!(world.views.lost_image(TOPIC), at);
    mark(&world, &mut asks);
    world.views.round();
    world.node.pump();
    assert_eq!(world.views.lost_image(TOPIC), Index(0));
}

#[test]
fn views_of_any_part_begin_with_images_and_tell_what_the_log_told() {
    let (mut booted, mut trimmed, mut restarts) = (0, 0, 0);
    for seed in 0..30 {
        let trial = Trial::drawn(seed).enter();
        let rng = SeededRng::new(seed ^ 77);
        let below = |n: u64| rng.next_u64() % n;
        let mut world = World::new(seed, 1 + below(3) as u32);
        let mut asks = world.connect();
        let mut model = Model::default();
        let mut first = 1;
        for step in 0..60 {
            let told = format!("seed {seed}, step {step}");
            world.time.0.fetch_add(1_000_000, std::sync::atomic::Ordering::Relaxed);
            match below(8) {
                0 => mark(&world, &mut asks),
                1 => {
                    // As the log's host does, once images allow it.
                    let images = &world.views.status();
                    let of = |s: &msg::ViewStatus| s.images.first().map(|image| image.index);
                    let oldest = images.iter().filter_map(of).min();
                    let has_two = images.iter().any(|status| status.images.len() > 1);
                    if let Some(oldest) = oldest.filter(|oldest| has_two && oldest.0 > first) {
                        // What takes changes has a snapshot; views have their rows, and images.
                        world.views.topic(TOPIC).unwrap().snapshot_now().unwrap();
                        let topic = log_topic(TOPIC).unwrap();
                        world.node.log.trim(&topic, oldest).unwrap();
                        first = oldest.0;
                        trimmed += 1;
                        world.views.round();
                    }
                }
                2 if below(3) == 0 => {
                    drop(asks);
                    world = world.restarted(1 + below(3) as u32);
                    asks = world.connect();
                    restarts += 1;
                    // One that the log left behind begins again.
                    world.views.round();
                    check(&world, &disk_view(), &model, &told);
                }
                3 => {
                    let of = 1 + below(6) as u32;
                    let part = below(of.into()) as u32;
                    let kind = match below(2) {
                        0 => msg::ViewKind::Disk {},
                        _ => msg::ViewKind::Memory {},
                    };
                    let view = name(kind, part, of);
                    if view == disk_view() || world.views.view(&view).is_ok() {
                        continue;
                    }
                    world.views.run(&view).unwrap();
                    world.node.pump();
                    booted += u32::from(first > 1);
                    check(&world, &view, &model, &format!("{told}: {view:?}"));
                    if below(2) == 0 {
                        world.views.stop(&view).unwrap();
                    }
                }
                _ => change(&mut asks, &mut model, &below),
            }
        }
        for status in world.views.status() {
            check(&world, &status.view, &model, &format!("seed {seed}, {:?}", status.view));
        }
        world.views.end().unwrap();
        drop(trial);
    }
    let told = format!("{booted} began with images, {trimmed} trims, {restarts} restarts");
    assert!(booted > 40 && trimmed > 20 && restarts > 10, "{told}");
}

/// Files of images, in the directories of views.
pub fn image_files(world: &World) -> Vec<PathBuf> {
    let list = |path: &Path| world.disk.list(path).unwrap_or_default();
    let place = Path::new("/data/views");
    let mut files = Vec::new();
    for view in list(place) {
        let view = place.join(view.name);
        let images = list(&view).into_iter().filter(|entry| entry.name.starts_with("image-"));
        files.extend(images.map(|entry| view.join(entry.name)));
    }
    files
}

pub fn images(world: &World) -> Vec<u64> {
    let status = world.views.status();
    status[0].images.iter().map(|image| image.index.0).collect()
}

pub fn filled(seed: u64) -> (World, Asks, Model) {
    let rng = SeededRng::new(seed);
    let below = |n: u64| rng.next_u64() % n;
    let mut world = World::new(seed, 2);
    let (mut asks, mut model) = (world.connect(), Model::default());
    (0..40).for_each(|_| change(&mut asks, &mut model, &below));
    (world, asks, model)
}

/// A bit of an image's slabs flips on the device: who rides it hears that, nobody begins to read it any
/// more, and the next mark makes another one. One with a flipped bit in its table, or without one of its parts,
/// is no image: it was passed over, and its files stayed for ever. They are removed.
#[test]
fn a_damaged_image_is_given_up_and_another_one_is_made() {
    for (of_table, is_gone) in [(false, false), (false, true), (true, false)] {
        let (mut world, mut asks, model) = filled(3);
        mark(&world, &mut asks);
        let at = images(&world)[0];
        let files = image_files(&world);
        let is_table = |path: &PathBuf| path.extension().is_none();
        let file = files.iter().find(|path| is_table(path) == of_table).unwrap();
        if of_table || is_gone {
            match is_gone {
                // Else the power cut may give it back.
                true => {
                    world.disk.remove(file).unwrap();
                    world.disk.sync_dir(file.parent().unwrap(), "lose.image").unwrap();
                }
                false => world.disk.flip_bit(file, 60, 3).unwrap(),
            }
            world = world.restarted(2);
            assert_eq!(images(&world), [0; 0], "it is not read any more");
            assert!(image_files(&world).is_empty(), "it takes no room any more");
        } else {
            // In the header of the first slab, however little that holds.
            world.disk.flip_bit(file, 60, 3).unwrap();
            let mut board = all_of(disk_view());
            board.at = Some(Index(at));
            let mut rider = world.connect();
            let (_, meta, _) = rider.now(wire::OP_RIDE_BEGIN, &board, &[]);
            let ride = msg::Boarded::from_bytes(&meta).unwrap().ride;
            let failed = (0..2).any(|head| {
                rider.send(wire::OP_RIDE_NEXT, &msg::Next { ride, head }, &[]);
                rider.failures().iter().any(|why| why.contains("checksum"))
            });
            assert!(failed, "who rides it hears of it");
            assert_eq!(images(&world), [0; 0]);
        }
        asks = world.connect();
        mark(&world, &mut asks);
        assert!(images(&world)[0] > at);
        let view = name(msg::ViewKind::Memory {}, 0, 1);
        world.views.run(&view).unwrap();
        check(&world, &view, &model, "after the damage");
        world.views.end().unwrap();
    }
}

/// A disk without room for an image costs the image, and nobody's ride.
#[test]
fn a_full_disk_costs_the_image_and_no_ride() {
    let (mut world, mut asks, model) = filled(5);
    let message = msg::Mark { topic: TOPIC.into(), call: Call::default() };
    asks.now(wire::OP_VIEW_MARK, &message, &[]);
    world.disk.set_capacity(0);
    world.views.round();
    world.node.pump();
    assert_eq!(images(&world), [0; 0]);
    assert_eq!(world.views.moments()[0].1, 0, "nothing of it keeps rows");
    let mut rider = world.connect();
    let (_, meta, _) = rider.now(wire::OP_RIDE_BEGIN, &all_of(disk_view()), &[]);
    assert!(msg::Boarded::from_bytes(&meta).is_ok());
    world.disk.set_capacity(u64::MAX);
    mark(&world, &mut asks);
    assert_eq!(images(&world).len(), 1);
    check(&world, &disk_view(), &model, "after the full disk");
    world.views.end().unwrap();
}
