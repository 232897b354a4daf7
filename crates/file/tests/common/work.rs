//! A node's own work by hand, and moves of directories from shard to shard.

use super::World;
use holdfast_base::ids::Durability;
use holdfast_client::Client;
use holdfast_cluster::moves::unfinished;
use holdfast_cluster::{Command, Outcome};
use holdfast_node::{Keeper, KeeperOptions, Member, MemberOptions};
use holdfast_wire::Call;
use holdfast_wire::admin::Order;

/// The node's own work, round by round, as its thread does it.
pub struct Work {
    pub keeper: Keeper,
    pub member: Member,
    pub now_ns: u64,
}

impl Work {
    pub fn new(world: &World) -> Work {
        let options = KeeperOptions { grace_ms: 0, ..KeeperOptions::default() };
        let member = Member::new(world.node().clone(), MemberOptions::default());
        Work { keeper: Keeper::new(world.node().clone(), options), member, now_ns: 1 }
    }

    /// Until this holds.
    pub fn until(&mut self, world: &World, holds: impl Fn(&World) -> bool) {
        // Beats are real; the number is a bound, not a time.
        for _ in 0..200_000 {
            if holds(world) {
                return;
            }
            // As much as a beat: who opened a shard claims it behind one.
            self.now_ns = world.node().machine.clock.monotonic_ns().max(self.now_ns + 1);
            self.member.step(self.now_ns).unwrap();
            self.keeper.step(self.now_ns);
            std::thread::yield_now();
        }
        panic!("it never came to that: {:?}", world.node().findings());
    }

    /// So many rounds, a second after the other.
    pub fn rounds(&mut self, count: usize) {
        for _ in 0..count {
            self.now_ns += 1_000_000_000;
            self.member.step(self.now_ns).unwrap();
            self.keeper.step(self.now_ns);
        }
    }
}

pub fn keeps(world: &World, shard: u16, name: &str) -> bool {
    let kept = |view: &holdfast_cluster::Namespace, _| view.borders().kept().any(|k| k == name);
    world.node().shards.get(shard).is_ok_and(|fold| fold.read(kept).unwrap())
}

pub fn add_shards(world: &World, work: &mut Work, client: &mut Client, count: u16) {
    for shard in 1..=count {
        client.order(&Order::AddShard { shard }).unwrap();
        work.until(world, |world| world.node().shards.get(shard).is_ok() && world.node().leads());
    }
}

pub fn move_to(world: &World, work: &mut Work, client: &mut Client, dir: &str, to: u16) {
    client.order(&Order::MoveDirectory { dir: dir.into(), to }).unwrap();
    work.until(world, |world| {
        let name = &dir[1..];
        let here = world.node().shards.root().read(|root, _| root.shard_at(dir)).unwrap();
        here == to && (to == 0 || keeps(world, to, name))
    });
}

pub fn shard_of(client: &mut Client, path: &str) -> u16 {
    client.stat(path).unwrap().id.shard()
}

pub fn order_move(client: &mut Client, dir: &str, to: u16) {
    client.order(&Order::MoveDirectory { dir: dir.into(), to }).unwrap();
}

pub fn is_settled(world: &World) -> bool {
    world.node().read_all(unfinished).unwrap().is_empty()
}

/// A command that builds before moved directories with: they were frozen while they were copied, and an empty
/// one went with one entry.
pub fn by_an_older_build(world: &World, command: &Command) {
    let told = world.node().wait_for::<Outcome>(|done| {
        world.node().propose_in(0, Call::default(), command, Durability::Durable, done);
    });
    told.unwrap();
}

pub fn freeze(world: &World, dir: &str, to: u16) {
    by_an_older_build(world, &Command::Freeze { dir: dir.into(), to });
}

pub fn forward(world: &World, dir: &str, to: u16) {
    by_an_older_build(world, &Command::Forward { dir: dir.into(), to });
}
