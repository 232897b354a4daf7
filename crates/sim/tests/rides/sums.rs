//! What came, held against what images say of themselves: by riders, and by views that begin with images. Images whose
//! every byte passes its checksum, and that are wrong all the same, are those of which the sums were changed.

use super::boots::{check, filled, image_files, images, mark, name};
use super::holds::pass_seconds;
use super::world::*;
use holdfast_base::checksum::crc32c;
use holdfast_base::codec::{Decode, Encode, Reader as Bytes};
use holdfast_base::ids::Index;
use holdfast_env::disk::{Disk, ReplaceSites, read_file, replace_file};
use holdfast_env::events;
use holdfast_env::trial::Trial;
use holdfast_view::Position;
use holdfast_view::items::log_topic;
use holdfast_wire::slab::{Item, Range, Reader, Sums, Tallied, Tally};
use holdfast_wire::{self as wire, view as msg};
use std::path::Path;
use std::sync::atomic::Ordering;

/// A table that says that there is one item more than there is.
fn with_one_more(table: &[u8]) -> Vec<u8> {
    let (table, _) = table.split_last_chunk::<4>().unwrap();
    let mut rest = Bytes::new(table);
    assert_eq!(u16::decode(&mut rest).unwrap(), 2);
    u64::decode(&mut rest).unwrap();
    msg::ViewName::decode(&mut rest).unwrap();
    Position::decode(&mut rest).unwrap();
    Vec::<u8>::decode(&mut rest).unwrap();
    let front = table.len() - rest.remaining();
    let mut sums = Sums::decode(&mut rest).unwrap();
    // Of the greatest hash, which the second half has.
    let (hash, value) = (u32::MAX, Some(&b"v"[..]));
    sums.add(&Item { hash, collection: 1, key: b"none", index: 1, value }, true);
    let mut other = table[..front].to_vec();
    sums.encode(&mut other);
    other.extend_from_slice(&table[table.len() - rest.remaining()..]);
    crc32c(&other).encode(&mut other);
    other
}

/// As if one item of an image had been lost: it has no byte that is not as it was written.
pub fn lose_one(disk: &dyn Disk, table: &Path) {
    let bytes = with_one_more(&read_file(disk, table, 1 << 24).unwrap());
    let sites = ReplaceSites { data: "put.data", name: "put.name" };
    replace_file(disk, table, &bytes, sites).unwrap();
}

/// A slab's header and its columns.
pub type Slab = (Vec<u8>, Vec<u8>);

/// Slabs that a rider received, and what it was told at the end.
pub fn ridden(world: &mut World, board: &msg::Board) -> (Vec<Slab>, Vec<u8>) {
    let mut asks = world.connect();
    let (_, meta, _) = asks.now(wire::OP_RIDE_BEGIN, board, &[]);
    let msg::Boarded { ride, heads, .. } = msg::Boarded::from_bytes(&meta).unwrap();
    let mut slabs = Vec::new();
    for head in 0..heads {
        loop {
            asks.send(wire::OP_RIDE_NEXT, &msg::Next { ride, head }, &[]);
            // A head without more waits for the others.
            let answers = asks.answers();
            if answers.is_empty() {
                break;
            }
            for (_, meta, body) in answers {
                if meta.is_empty() {
                    return (slabs, body);
                }
                slabs.push((meta, body));
            }
        }
    }
    panic!("it has no end");
}

/// At the end of its ride a rider hears the sums of its entry's image, whether it rode that or the snapshot: what it
/// received is that, and less or more is not.
#[test]
fn a_rider_hears_at_the_end_what_its_image_has_and_finds_what_it_lacks() {
    for seed in 0..6 {
        let _trial = Trial::drawn(seed).enter();
        let (mut world, mut asks, model) = filled(seed);
        let now = all_of(disk_view());
        let (_, told) = ridden(&mut world, &now);
        assert!(told.is_empty(), "there is no image yet");
        mark(&world, &mut asks);
        let at = Some(Index(images(&world)[0]));
        for board in [now.clone(), msg::Board { at, ..now }] {
            for versions in [true, false] {
                let board = msg::Board { versions, ..board.clone() };
                let (slabs, told) = ridden(&mut world, &board);
                let sums = msg::Ended::from_bytes(&told).unwrap().sums;
                let tallied = |slabs: &mut dyn Iterator<Item = &Slab>| {
                    let mut tally = Tally::default();
                    tally.said(Range::ALL, &sums);
                    slabs.for_each(|(header, columns)| {
                        tally.came(&Reader::new(header, columns).unwrap()).unwrap();
                    });
                    tally.compared(&[Range::ALL], versions)
                };
                assert_eq!(tallied(&mut slabs.iter()), Tallied::default(), "seed {seed}");
                for lost in (0..slabs.len()).step_by(slabs.len() / 8 + 1) {
                    let others = slabs.iter().enumerate().filter(|(at, _)| *at != lost);
                    let found = tallied(&mut others.map(|(_, slab)| slab));
                    let s = Reader::new(&slabs[lost].0, &slabs[lost].1).unwrap().header.first_hash
                        >> 24;
                    assert_eq!(found.differing, [s as u8], "seed {seed}");
                    let twice = slabs.iter().chain([&slabs[lost]]).collect::<Vec<_>>();
                    assert_eq!(tallied(&mut twice.into_iter()).differing, [s as u8]);
                }
            }
        }
        check(&world, &disk_view(), &model, "the view");
        world.views.end().unwrap();
    }
}

/// Sums are of all that a view holds: who is sent less of it was sent them all the same, eight kilobytes for nothing.
#[test]
fn who_filters_is_told_no_sums() {
    let (mut world, mut asks, _) = filled(3);
    mark(&world, &mut asks);
    let at = Some(Index(images(&world)[0]));
    let all = msg::Board { at, ..all_of(disk_view()) };
    // A part is none of its own: what it has is compared by sub-range.
    let part = msg::Board { high: 1 << 31, ..all.clone() };
    for board in [all.clone(), part, msg::Board { versions: false, ..all.clone() }] {
        assert!(!ridden(&mut world, &board).1.is_empty(), "{board:?}");
    }
    for board in [
        msg::Board { keys_only: true, ..all.clone() },
        msg::Board { since: Index(1), versions: false, ..all.clone() },
        msg::Board { below: Some(Index(1 << 40)), ..all.clone() },
        msg::Board { collections: Some(vec![1]), ..all.clone() },
        msg::Board { collections: Some(vec![2]), fields: Some(vec!["f".into()]), ..all },
    ] {
        assert!(ridden(&mut world, &board).1.is_empty(), "{board:?}");
    }
    world.views.end().unwrap();
}

/// Who found an image wrong, by the sums of what came of it, told nobody: it was ridden on, views began with it, and it
/// counted for the trim of the log. Its node looks when it is told, and believes nobody but itself.
#[test]
fn an_image_that_a_rider_doubts_is_used_no_more_if_it_is_wrong() {
    let (mut world, mut asks, model) = filled(4);
    mark(&world, &mut asks);
    let at = Index(images(&world)[0]);
    let doubt = |asks: &mut Asks, index: Index| {
        asks.now(wire::OP_RIDE_DOUBT, &msg::Doubt { view: disk_view(), index }, &[]);
    };
    doubt(&mut asks, at);
    doubt(&mut asks, Index(at.0 + 1));
    world.node.pump();
    assert_eq!(images(&world), [at.0], "it is what it says of itself");
    let files = image_files(&world);
    let table = files.iter().find(|file| file.extension().is_none()).unwrap();
    lose_one(&world.disk, table);
    drop(asks);
    // Tables are read at the start.
    world = world.restarted(2);
    world.node.pump();
    asks = world.connect();
    assert_eq!(images(&world), [at.0], "nobody has found out");
    let board = msg::Board { at: Some(at), ..all_of(disk_view()) };
    let (slabs, told) = ridden(&mut world, &board);
    let mut tally = Tally::default();
    tally.said(Range::ALL, &msg::Ended::from_bytes(&told).unwrap().sums);
    for (header, columns) in &slabs {
        tally.came(&Reader::new(header, columns).unwrap()).unwrap();
    }
    assert_eq!(tally.compared(&[Range::ALL], true).differing, [0xff]);
    let ((), events) = events::told_by(|| {
        doubt(&mut asks, at);
        world.node.pump();
    });
    assert_eq!(images(&world), [0; 0], "nobody begins with it, or rides it");
    let events: Vec<String> = events.iter().map(|event| event.to_string()).collect();
    let is_said = |event: &String| {
        event.contains("view.image-given-up") && event.contains("with hashes ff are not those")
    };
    assert!(events.iter().any(is_said), "{events:?}");
    mark(&world, &mut asks);
    assert!(images(&world)[0] > at.0, "the next mark makes another one");
    check(&world, &disk_view(), &model, "the view");
    world.views.end().unwrap();
}

/// Whoever rides may doubt, as often as they like, and each doubt had all of the image read: a client that asked without
/// end kept the disk busy. Within a minute of a look it is told what came of that.
#[test]
fn who_doubts_an_image_that_was_just_looked_at_is_told_what_came_of_that() {
    let (mut world, mut asks, _) = filled(4);
    mark(&world, &mut asks);
    let index = Index(images(&world)[0]);
    let doubt = |asks: &mut Asks| {
        asks.send(wire::OP_RIDE_DOUBT, &msg::Doubt { view: disk_view(), index }, &[]);
        asks.outcomes().remove(0).1.map(drop)
    };
    let turn = |world: &World, seconds: u64| {
        world.time.0.fetch_add(seconds * 1_000_000_000, Ordering::Relaxed);
    };
    assert_eq!(doubt(&mut asks), Ok(()), "it is looked at");
    turn(&world, 12);
    let mut other = world.connect();
    for asks in [&mut asks, &mut other] {
        let told = doubt(asks).unwrap_err();
        let words = ["t disk 0/1", "12 s ago", "is what it says of itself", "before 48 s"];
        assert!(words.iter().all(|words| told.contains(words)), "{told}");
    }
    assert_eq!(images(&world), [index.0]);
    turn(&world, 48);
    assert_eq!(doubt(&mut asks), Ok(()), "a minute later it is looked at again");
    assert!(doubt(&mut other).unwrap_err().contains("0 s ago"));
    world.views.end().unwrap();
}

/// Views began with whatever came: an item that was missing from an image was missing from every view that began with
/// it. It is found before the view counts, the image is used no more, and others are.
#[test]
fn a_view_does_not_begin_with_less_than_its_images_say() {
    // With others' images of the same mark, and alone; with rows that are lost, too: then it is its own.
    for (halves, own) in [(true, false), (false, false), (true, true)] {
        let ((), told) = events::told_by(|| {
            let (mut world, mut asks, model) = filled(8);
            let parts = [0, 1].map(|part| name(msg::ViewKind::Disk {}, part, 2));
            if halves {
                parts.iter().for_each(|half| world.views.run(half).unwrap());
            }
            mark(&world, &mut asks);
            let at = Index(images(&world)[0]);
            drop(asks);
            let files = image_files(&world);
            let is_whole = |file: &&std::path::PathBuf| file.to_string_lossy().contains("disk-0-1");
            let table =
                files.iter().filter(is_whole).find(|file| file.extension().is_none()).unwrap();
            lose_one(&world.disk, table);
            world.views.topic(TOPIC).unwrap().snapshot_now().unwrap();
            world.node.log.trim(&log_topic(TOPIC).unwrap(), at).unwrap();
            if own {
                let rows = table.parent().unwrap().join("rows");
                let files = world.disk.list(&rows).unwrap().into_iter();
                files.for_each(|file| world.disk.remove(&rows.join(file.name)).unwrap());
                // Else the power cut may give them back.
                world.disk.sync_dir(&rows, "lose.rows").unwrap();
            }
            world = world.restarted(2);
            let view = match own {
                true => disk_view(),
                false => name(msg::ViewKind::Memory {}, 0, 1),
            };
            if !own {
                world.views.run(&view).unwrap();
            }
            world.node.pump();
            if own {
                // The halves were not open yet when it began.
                pass_seconds(&world, 6);
                world.views.round();
                world.node.pump();
            }
            if halves {
                check(&world, &view, &model, "it began with the halves");
            } else {
                let status = world.views.status();
                let why = status.iter().find(|one| one.view == view).map(|one| one.stopped.clone());
                let why = why.unwrap();
                assert!(why.contains("with hashes ff is not what they say"), "{why}");
                // The next mark makes another one.
                let mut asks = world.connect();
                mark(&world, &mut asks);
                pass_seconds(&world, 6);
                world.views.round();
                world.node.pump();
                check(&world, &view, &model, "it began with the next image");
            }
            assert!(!world.disk.exists(table).unwrap(), "it is used no more");
            world.views.end().unwrap();
        });
        let told: Vec<String> = told.iter().map(|event| event.to_string()).collect();
        let finding =
            told.iter().any(|event| event.contains("node.finding") && event.contains("hashes ff"));
        assert!(finding, "{told:?}");
    }
}
