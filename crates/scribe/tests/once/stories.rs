//! What goes wrong without the rules, one story each.

use super::world::World;
use holdfast_base::ids::Index;
use holdfast_base::random::Random;
use holdfast_scribe::batch::{Position, SpoolId};
use holdfast_scribe::category::Category;
use holdfast_scribe::gather::{Messages, Round};
use holdfast_scribe::spool::{Progress, Spool};

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
    assert_eq!((spool.pending(), spool.first_to_send()), (1, None));
    assert!(spool.knows_or_may(&unknown));
}
