//! Entries that views of items cannot apply: of a stranger who wrote to the topic before it was one of items, and of a
//! build to come. Whoever meets them says which entry it is, and what does not depend on it goes on. And riders that end
//! their rides in the middle.

use super::boots::{filled, images, mark, name};
use super::sums::ridden;
use super::world::*;
use holdfast_base::codec::{Decode, Encode, put_bytes};
use holdfast_base::ids::Index;
use holdfast_log::Mode;
use holdfast_view::items::log_topic;
use holdfast_wire::slab::{Content, Hashed, Reader};
use holdfast_wire::{self as wire, Call, view as msg};
use std::collections::{BTreeMap, BTreeSet};

const OTHER: &str = "u";

/// Appends past everything that looks at what is appended, and says where it lies.
fn append(world: &World, topic: &str, entry: &[u8]) -> Index {
    let topic = log_topic(topic).unwrap();
    let entries = vec![entry.to_vec()];
    world.node.log.append(&topic, entries, Mode::Synced, Box::new(|done| assert!(done.is_ok())));
    world.node.log.sync(&topic).unwrap();
    world.node.pump();
    Index(world.node.log.info(&topic).unwrap().next.0 - 1)
}

fn make(asks: &mut Asks, topic: &str) -> Outcome {
    let collection = msg::Collection { name: "c1".into(), hashed: Hashed::All, json: false };
    asks.send(wire::OP_VIEW_MAKE, &msg::Make { topic: topic.into(), collection }, &[]);
    asks.outcomes().remove(0).1
}

fn put(asks: &mut Asks, topic: &str, key: &[u8]) -> Outcome {
    let mut body = 1u32.to_bytes();
    1u16.encode(&mut body);
    put_bytes(&mut body, key);
    true.encode(&mut body);
    put_bytes(&mut body, b"v");
    let change = msg::Change { topic: topic.into(), call: Call::default() };
    asks.send(wire::OP_VIEW_CHANGE, &change, &body);
    asks.outcomes().remove(0).1
}

fn run(world: &World, topic: &str, kind: msg::ViewKind) -> Result<(), String> {
    let view = msg::ViewName { topic: topic.into(), ..name(kind, 0, 1) };
    world.views.run(&view).map_err(|e| e.message)
}

/// Bytes of a stranger's are no items, and a topic with some is none of items.
#[test]
fn a_topic_that_holds_raw_entries_is_refused() {
    let mut world = World::new(1, 1);
    let mut asks = world.connect();
    world.node.log.create(&log_topic("raw").unwrap()).unwrap();
    let at = append(&world, "raw", b"hello");
    for told in [
        make(&mut asks, "raw").unwrap_err(),
        run(&world, "raw", msg::ViewKind::Disk {}).unwrap_err(),
        run(&world, "raw", msg::ViewKind::Memory {}).unwrap_err(),
    ] {
        assert!(told.contains("view/raw") && told.contains(&format!("entry {at}")), "{told}");
    }
    assert!(world.views.status().iter().all(|one| one.view.topic != "raw"), "none is run");
    world.views.end().unwrap();
}

/// An entry that a later build has written stops the views of its topic in front of it, and no others.
#[test]
fn an_entry_that_views_do_not_know_stops_those_of_its_topic_and_is_named() {
    let (world, mut asks, _) = filled(7);
    run(&world, TOPIC, msg::ViewKind::Memory {}).unwrap();
    make(&mut asks, OTHER).unwrap();
    run(&world, OTHER, msg::ViewKind::Disk {}).unwrap();
    put(&mut asks, OTHER, b"before").unwrap();
    let at = append(&world, TOPIC, &[2, 9, 9]);
    world.views.round();
    world.node.pump();
    let views = world.views.status();
    let of = |topic: &str| {
        let views: Vec<_> = views.iter().filter(|one| one.view.topic == topic).cloned().collect();
        views
    };
    assert_eq!((of(TOPIC).len(), of(OTHER).len()), (2, 1));
    for one in of(TOPIC) {
        assert!(one.stopped.contains(&format!("entry {at}")), "{one:?}");
        assert!(one.applied < at, "{one:?}");
    }
    assert!(put(&mut asks, TOPIC, b"key").unwrap_err().contains(&format!("entry {at}")));
    let changed = msg::Changed::from_bytes(&put(&mut asks, OTHER, b"behind").unwrap().0).unwrap();
    let other = world.views.status().into_iter().find(|one| one.view.topic == OTHER).unwrap();
    assert_eq!((other.applied, &other.stopped[..]), (changed.index, ""));
    world.views.end().unwrap();
}

/// A disk view held everything that was before the entry that it did not know, and said none of it: the topic's catalog
/// had stopped, too, and was asked first. Reads as of an entry are answered, and images are ridden; the latest is not
/// there, and who asks for it is told why.
#[test]
fn what_was_before_an_entry_that_nobody_knows_is_read_and_ridden() {
    let (mut world, mut asks, model) = filled(7);
    mark(&world, &mut asks);
    let index = images(&world)[0];
    let at = append(&world, TOPIC, &[2, 9, 9]);
    world.views.round();
    world.node.pump();
    assert!(world.views.status()[0].stopped.contains(&format!("entry {at}")));
    let board = msg::Board { at: Some(Index(index)), ..all_of(disk_view()) };
    let mut came = BTreeSet::new();
    for (header, columns) in ridden(&mut world, &board).0 {
        for item in Reader::new(&header, &columns).unwrap().items() {
            let value = match item.content {
                Content::Value(value) => Some(value.to_vec()),
                Content::Deleted | Content::NotSent => None,
            };
            let is_deleted = item.content == Content::Deleted;
            came.insert(((item.collection, item.key.to_vec(), item.index, value), is_deleted));
        }
    }
    assert_eq!(came, model.wanted(&board, index));
    let catalog =
        msg::Catalog::from_bytes(&asks.now(wire::OP_VIEW_CATALOG, &TOPIC.to_owned(), &[]).1);
    let catalog = catalog.unwrap();
    assert_eq!(catalog.collections.len(), usize::from(COLLECTIONS));
    assert!(catalog.applied < at, "as of the entry that it has come to");
    let get = |at: Option<Index>, (collection, key): &(u16, Vec<u8>)| {
        let keys = vec![msg::Key { collection: *collection, key: key.clone() }];
        msg::Get { topic: TOPIC.into(), reached: Index(0), at, keys }
    };
    for (key, versions) in &model.versions {
        for (made, value) in versions {
            let (_, meta, _) = asks.now(wire::OP_VIEW_GET, &get(Some(Index(*made)), key), &[]);
            let found = msg::Got::from_bytes(&meta).unwrap().found.remove(0);
            assert_eq!(found.map(|found| found.value), *value);
        }
    }
    let key = model.versions.keys().next().unwrap();
    for late in [None, Some(at)] {
        asks.send(wire::OP_VIEW_GET, &get(late, key), &[]);
        let told = asks.failures().remove(0);
        assert!(told.contains(&format!("entry {at}")), "{late:?}: {told}");
    }
    world.views.end().unwrap();
}

/// A rider that has had enough had asked for more: what it had asked for was dropped, told as a bug of the server's.
#[test]
fn who_ends_its_ride_in_the_middle_is_answered_whatever_it_had_asked_for() {
    let (world, mut asks, _) = filled(2);
    let (_, meta, _) = asks.now(wire::OP_RIDE_BEGIN, &all_of(disk_view()), &[]);
    let msg::Boarded { ride, heads, .. } = msg::Boarded::from_bytes(&meta).unwrap();
    assert!(heads > 1);
    // Whoever asks for more of a head than it has waits for the others' end.
    let waits = loop {
        let request = asks.send(wire::OP_RIDE_NEXT, &msg::Next { ride, head: 0 }, &[]);
        if asks.answers().is_empty() {
            break request;
        }
    };
    let ends = asks.send(wire::OP_RIDE_END, &ride, &[]);
    let outcomes: BTreeMap<u64, Outcome> = asks.outcomes().into_iter().collect();
    assert_eq!(outcomes.keys().copied().collect::<Vec<_>>(), [waits, ends]);
    let told = outcomes[&waits].as_ref().unwrap_err();
    assert!(told.contains("ended by its rider"), "{told}");
    assert!(outcomes[&ends].is_ok());
    world.views.end().unwrap();
}
