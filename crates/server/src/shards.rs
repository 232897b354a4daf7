//! Shards, for people: which there are, one more, a directory for one of them. Begins a move with its first
//! entry; whoever leads goes on with it.

use crate::route::answer;
use holdfast_base::codec::Encode;
use holdfast_base::ids::{Durability, Index};
use holdfast_base::{Result, path};
use holdfast_cluster::{AllShards, Command, Outcome};
use holdfast_env::net::{Parts, Reply};
use holdfast_node::Node;
use holdfast_wire::{Call, admin as msg};

fn shards_of(all: &AllShards<'_>) -> Vec<msg::Shard> {
    let shard = |shard: u16| {
        let view = all.get(shard).ok();
        let root = all.root().borders();
        let to_it = root.forwarded().filter(|(_, forwarded)| forwarded.to == shard);
        let keeps = |name: &str| {
            view.is_some_and(|view| shard != 0 && view.borders().kept().any(|kept| kept == name))
        };
        let (directories, coming) =
            to_it.map(|(name, _)| name.to_owned()).partition(|name: &String| keeps(name));
        let totals = view.map(|view| view.totals()).unwrap_or_default();
        let (files, bytes) = (totals.files, totals.bytes);
        // Looked up when the views are let go.
        let index = Index(0);
        msg::Shard { shard, index, files, bytes, directories, coming }
    };
    (0..all.root().shard_count()).map(shard).collect()
}

/// Answers what this node knows of the shards.
pub fn answer_shards(node: &Node, reply: Reply) {
    let shards = node.read_all(shards_of).map(|mut shards| {
        for shard in &mut shards {
            shard.index = node.shards.get(shard.shard).map_or(Index(0), |fold| fold.applied());
        }
        shards
    });
    answer(reply, shards.map(|shards| (shards.to_bytes(), Parts::None)));
}

fn done(reply: Reply) -> Box<dyn FnOnce(Result<Outcome>) + Send> {
    Box::new(move |outcome| answer(reply, outcome.map(|_| (Vec::new(), Parts::None))))
}

/// Every node opens it when it hears of it.
pub fn add_shard(node: &Node, reply: Reply) {
    let add = Command::AddShard {};
    node.propose_in(0, Call::default(), &add, Durability::Durable, done(reply));
}

/// Asked once more, it is as good as done.
pub fn move_directory(node: &Node, dir: String, to: u16, reply: Reply) {
    let keeper = path::check(&dir).and_then(|()| node.shard_at(&dir));
    match keeper {
        Err(e) => answer(reply, Err(e)),
        Ok(keeper) if keeper == to && keeper != 0 => answer(reply, Ok((Vec::new(), Parts::None))),
        Ok(keeper) => {
            let forward = Command::Forward { dir, to };
            node.propose_in(keeper, Call::default(), &forward, Durability::Durable, done(reply));
        }
    }
}
