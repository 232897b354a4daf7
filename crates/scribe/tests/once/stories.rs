//! What goes wrong without the rules, one story each.

use super::world::World;
use holdfast_base::ids::Index;
use holdfast_base::random::Random;
use holdfast_scribe::batch::{self, Position, SpoolId};
use holdfast_scribe::category::Category;
use holdfast_scribe::gather::{Messages, Round};
use holdfast_scribe::spool::{Kept, Progress, Spool, decode_entry};
use std::collections::BTreeSet;

fn deliver_all(world: &mut World) {
    let mut random = Random::new(1);
    while !world.bag().is_empty() {
        world.deliver(&mut random);
    }
}

/// Aggregator A held messages 1 to 3 of a spool and was down; the agent sent what came later through B. A
/// came back, and its messages were dropped as old.
#[test]
fn what_a_carrier_brings_late_is_not_lost_behind_what_came_another_way() {
    let mut world = World::new(1);
    world.call(0, 3, 0);
    world.sync(0);
    world.send(0, 9);
    let by_a = std::mem::take(world.bag());
    world.call(0, 2, 0);
    world.sync(0);
    world.send(0, 9);
    // B has the second batch alone.
    world.bag().remove(0);
    deliver_all(&mut world);
    assert!(world.texts(0).is_empty(), "it is early");
    *world.bag() = by_a;
    deliver_all(&mut world);
    assert_eq!(world.texts(0), ["1", "2", "3"]);
    world.settle(&mut Random::new(2));
    assert_eq!(world.texts(0), ["1", "2", "3", "4", "5"]);
}

/// An erased spool that kept its name sent number 1 again, which was dropped as known.
#[test]
fn an_erased_spool_is_another_one() {
    let mut world = World::new(1);
    world.call(0, 2, 0);
    world.sync(0);
    world.settle(&mut Random::new(1));
    world.erase(0);
    world.call(0, 1, 0);
    world.sync(0);
    world.settle(&mut Random::new(2));
    assert_eq!(world.texts(0), ["1", "2", "3"]);
}

/// Everything was delivered and given up; the process began again, and its numbers with it.
#[test]
fn numbers_go_on_when_all_was_given_up_and_the_process_began_again() {
    let mut world = World::new(1);
    for _ in 0..3 {
        world.call(0, 2, 0);
        world.sync(0);
        world.settle(&mut Random::new(1));
        world.mark_and_trim(0);
        world.crash(0);
    }
    world.call(0, 1, 0);
    world.sync(0);
    world.settle(&mut Random::new(2));
    assert_eq!(world.texts(0), ["1", "2", "3", "4", "5", "6", "7"]);
    world.check(0);
}

/// A machine was cloned. The clone's messages had the numbers of the first one's, and were dropped as known.
#[test]
fn a_copied_spool_is_found_before_it_gives_anything_up() {
    let mut world = World::new(1);
    world.call(0, 1, 0);
    world.sync(0);
    world.copy(0);
    world.call(0, 2, 0);
    world.sync(0);
    world.settle(&mut Random::new(1));
    world.call(1, 1, 0);
    world.sync(1);
    world.settle(&mut Random::new(2));
    assert_eq!(world.texts(0), ["1", "2", "3"]);
    assert_eq!(world.agents[1].spool.copied().count(), 1);
    assert_eq!(world.agents[0].spool.copied().count(), 0);
    world.check(0);
}

#[test]
fn answers_from_elsewhere_give_nothing_up() {
    let mut spool = Spool::new(SpoolId(7));
    let web = Category::new("web").unwrap();
    let mut round = Round::default();
    round.add(&Messages { messages: vec![(web.clone(), b"x".to_vec())] });
    let numbered = spool.number(&round.pack());
    spool.marked(Index(1));
    spool.kept(Index(2), &numbered[0]);
    assert_eq!(spool.trim_before(), Some(Index(1)));
    let unknown = Category::new("other").unwrap();
    assert_eq!(spool.learn(&unknown, Position::START), Progress::Has(0));
    assert_eq!(spool.learn(&unknown, Position { next: 2, checksum: 1 }), Progress::Copied);
    assert_eq!(spool.learn(&web, Position::START), Progress::Has(0));
    assert_eq!(spool.pending(), 1);
    assert_eq!(spool.learn(&web, Position { next: 2, checksum: 1 }), Progress::Copied);
    assert_eq!((spool.pending(), spool.first_to_send(&BTreeSet::new())), (1, None));
    assert!(spool.knows_or_may(&unknown));
}

/// A category was one too many for its cluster. What was kept of it could never leave, and since files are
/// given up from the front, the spool filled up behind it and took nothing of any category.
#[test]
fn what_its_topic_never_takes_is_let_go_and_its_numbers_are_given_again() {
    let mut spool = Spool::new(SpoolId(7));
    let mut log = vec![spool.mark()];
    spool.marked(Index(1));
    let [web, beyond] = ["web", "beyond"].map(|name| Category::new(name).unwrap());
    let keep = |spool: &mut Spool, log: &mut Vec<Vec<u8>>, of: &Category| {
        let mut round = Round::default();
        round.add(&Messages { messages: vec![(of.clone(), b"x".to_vec())] });
        for numbered in spool.number(&round.pack()) {
            log.push(numbered.entry.clone());
            spool.kept(Index(log.len() as u64), &numbered);
        }
    };
    let ends = |entry: &[u8]| {
        let Kept::Group(batches) = decode_entry(entry).unwrap() else { panic!() };
        batch::decode(batches[0]).unwrap().0.ends()
    };
    // One is taken before the category is refused.
    [&beyond, &beyond, &web, &beyond].iter().for_each(|of| keep(&mut spool, &mut log, of));
    let taken = ends(&log[1]);
    assert_eq!(spool.learn(&beyond, taken), Progress::Has(1));
    assert_eq!(spool.first_pending(&beyond), Some(Index(3)));
    log.push(spool.turn(&beyond).unwrap());
    assert_eq!(spool.turned(Index(6), &beyond), 2);
    assert_eq!((spool.turn(&beyond), spool.pending()), (None, 1));
    // It is taken after all, and what is new follows what its topic has.
    keep(&mut spool, &mut log, &beyond);
    let Kept::Group(batches) = decode_entry(&log[6]).unwrap() else { panic!() };
    let (head, _) = batch::decode(batches[0]).unwrap();
    assert_eq!(head.begins(), taken);
    let Kept::Group(aside) = decode_entry(&log[2]).unwrap() else { panic!() };
    let (old, _) = batch::decode(aside[0]).unwrap();
    assert_eq!(old.first, head.first, "it has the number of one that was set aside");
    for from in [1, 0] {
        // As it is, and as a process finds it that begins again.
        let mut spool = match from {
            1 => Spool::opening(),
            _ => std::mem::replace(&mut spool, Spool::opening()),
        };
        if from == 1 {
            for (at, entry) in log.iter().enumerate() {
                spool.recover(Index(at as u64 + 1), entry).unwrap();
            }
        }
        assert!(!spool.wants_to_send(Index(3), &old) && spool.wants_to_send(Index(7), &head));
        assert_eq!(spool.pending(), 2);
        assert_eq!(spool.first_to_send(&BTreeSet::from([web.clone()])), Some(Index(7)));
        assert_eq!(spool.learn(&web, ends(&log[3])), Progress::Has(1));
        assert_eq!(spool.learn(&beyond, head.ends()), Progress::Has(1));
        spool.marked(Index(8));
        assert_eq!(spool.trim_before(), Some(Index(8)), "nothing pins the files");
    }
}

/// A directory was erased with messages in it that nobody had brought out, and nobody heard of it: the next agent
/// there was another spool, and all looked well.
#[test]
fn what_an_erased_spool_lost_is_named() {
    let mut world = World::new(1);
    world.call(0, 2, 0);
    world.sync(0);
    world.settle(&mut Random::new(1));
    let erased = world.agents[0].spool.id();
    world.call(0, 3, 0);
    world.sync(0);
    world.erase(0);
    assert_eq!(world.lost(0), [], "nobody is in its place");
    world.call(0, 1, 0);
    world.sync(0);
    world.settle(&mut Random::new(2));
    assert_eq!(world.lost(0), [(erased, "1".to_owned(), 3)]);
    world.check(0);
}

/// An agent that ended with nothing left may have its directory removed, or another one begin elsewhere under its
/// name, and nobody is woken for it.
#[test]
fn a_spool_that_ended_with_nothing_left_is_not_lost() {
    let mut world = World::new(1);
    world.call(0, 2, 0);
    world.sync(0);
    world.settle(&mut Random::new(1));
    world.end(0);
    world.erase(0);
    world.call(0, 1, 0);
    world.sync(0);
    world.settle(&mut Random::new(2));
    assert_eq!(world.lost(0), []);
    // It goes on behind its last word: then there is something to lose again.
    let erased = world.agents[0].spool.id();
    world.end(0);
    world.call(0, 1, 0);
    world.sync(0);
    world.settle(&mut Random::new(3));
    world.erase(0);
    world.call(0, 1, 0);
    world.sync(0);
    world.settle(&mut Random::new(4));
    assert_eq!(world.lost(0), [(erased, "1".to_owned(), 3)]);
}

/// What was under way when a directory was erased comes in when another spool is in its place: it counts, and
/// the spool is lost all the same, from behind it on.
#[test]
fn a_batch_that_was_under_way_brings_no_erased_spool_back() {
    let mut world = World::new(1);
    world.call(0, 2, 0);
    world.sync(0);
    world.say(0);
    let mut random = Random::new(1);
    (0..20).for_each(|_| world.deliver_word(&mut random));
    world.send(0, 9);
    let under_way = std::mem::take(world.bag());
    let erased = world.agents[0].spool.id();
    world.erase(0);
    world.call(0, 1, 0);
    world.sync(0);
    world.settle(&mut Random::new(2));
    assert_eq!(world.lost(0), [(erased, "1".to_owned(), 1)]);
    *world.bag() = under_way;
    deliver_all(&mut world);
    assert_eq!(world.lost(0), [(erased, "1".to_owned(), 3)]);
}
