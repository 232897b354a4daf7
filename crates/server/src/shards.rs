//! Shards, for people: which there are, one more, a directory for one of them. Begins a move with its first
//! entry; whoever leads goes on with it.

use crate::route::answer;
use holdfast_base::codec::Encode;
use holdfast_base::ids::{Durability, Index};
use holdfast_base::{Result, path};
use holdfast_cluster::{AllShards, Command, Namespace, Outcome};
use holdfast_env::net::{Parts, Reply};
use holdfast_node::Node;
use holdfast_wire::{Call, admin as msg};

/// What a shard says of moves with content.
fn moving(view: &Namespace) -> msg::Moving {
    let moves = view.borders().moves();
    let frozen = moves.frozen().map(|(name, frozen)| (name.to_owned(), frozen.to));
    let taken = moves.arriving().map(|(name, arriving)| (name.to_owned(), arriving.parts));
    let (slots, chunks) = view.chunks().held();
    msg::Moving {
        frozen: frozen.map(|(dir, to)| msg::Frozen { dir, to }).collect(),
        taken: taken.map(|(dir, parts)| msg::Taken { dir, parts }).collect(),
        is_leaving: view.names().is_leaving(),
        held: (slots + chunks) as u64,
        owing: view.chunks().owing() as u64,
    }
}

fn shards_of(all: &AllShards<'_>) -> Vec<msg::Shard> {
    let shard = |shard: u16| {
        let view = all.get(shard).ok();
        let root = all.root().borders();
        let to_it = root.forwarded().filter(|(_, forwarded)| forwarded.to == shard);
        let keeps = |name: &str| {
            view.is_some_and(|view| shard != 0 && view.borders().kept().any(|kept| kept == name))
        };
        let (directories, mut coming): (Vec<String>, Vec<String>) =
            to_it.map(|(name, _)| name.to_owned()).partition(|name: &String| keeps(name));
        let frozen = all.iter().flat_map(|source| source.borders().moves().frozen());
        let frozen = frozen.filter(|(_, frozen)| frozen.to == shard);
        coming.extend(frozen.map(|(name, _)| name.to_owned()));
        let copying = all.iter().flat_map(|source| source.borders().moves().copying());
        coming.extend(copying.filter(|(_, c)| c.to == shard).map(|(name, _)| name.to_owned()));
        coming.sort();
        coming.dedup();
        let moving = view.map(moving).unwrap_or_default();
        let totals = view.map(|view| view.totals()).unwrap_or_default();
        let (files, bytes) = (totals.files, totals.bytes);
        // Looked up when the views are let go.
        let index = Index(0);
        msg::Shard { shard, index, files, bytes, directories, coming, moving }
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
pub fn add_shard(node: &Node, shard: u16, reply: Reply) {
    let add = Command::AddShard { shard };
    node.propose_in(0, Call::default(), &add, Durability::Durable, done(reply));
}

/// It is copied while it changes, held still for the last of it, and goes; until it has gone, the shard that
/// keeps it takes that back where it is asked to keep it. Asked once more, it is as good as done.
pub fn move_directory(node: &Node, dir: String, to: u16, reply: Reply) {
    let looked = path::check(&dir).and_then(|()| {
        node.read_all(|all| {
            let keeper = all.root().shard_at(&dir);
            let view = all.get(keeper)?;
            let name = dir.trim_matches('/');
            let moves = view.borders().moves();
            let is_moving = moves.frozen().any(|(frozen, _)| frozen == name)
                || moves.copying().any(|(copying, _)| copying == name);
            if keeper != to
                && !is_moving
                && let Ok(target) = all.get(to)
            {
                // It would wait for as long as there is no room.
                target.check_gets(&dir)?;
            }
            Ok((keeper, is_moving))
        })?
    });
    let (keeper, is_moving) = match looked {
        Ok(looked) => looked,
        Err(e) => return answer(reply, Err(e)),
    };
    let is_top = path::components(&dir).count() == 1;
    if keeper == to && keeper != 0 && !is_moving && is_top {
        return answer(reply, Ok((Vec::new(), Parts::None)));
    }
    let begin = Command::Copy { dir, to };
    node.propose_in(keeper, Call::default(), &begin, Durability::Durable, done(reply));
}
