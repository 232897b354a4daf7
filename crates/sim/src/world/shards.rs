//! Shards of the simulated cluster: a person adds them while it works, and each client has its directory moved
//! to one of them now and then, with what is in it or empty, and now and then back before it is there.

use super::World;
use super::client::Client;
use super::guest::Visitor;
use super::model::Change;
use holdfast_base::Kind;
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::ids::Pointer;
use holdfast_base::limits::LIST_PAGE_MAX;
use holdfast_cluster::{AllShards, Chunk, FileInfo, Location};
use holdfast_wire::{self as wire, admin, file as msg};
use std::collections::BTreeMap;

/// Until there are so many beside the first.
pub(super) async fn add(person: Visitor, count: u16) {
    loop {
        let gateway = person.any_gateway();
        let told = person.ask(gateway, wire::OP_SHARDS, Vec::new(), None).await;
        let shards = told.and_then(|told| Ok(Vec::<admin::Shard>::from_bytes(&told.meta)?));
        match shards {
            Ok(shards) if shards.len() > count as usize => return,
            Ok(shards) => {
                let shard = shards.len() as u16;
                let order = admin::Order::AddShard { shard }.to_bytes();
                let _ = person.ask(gateway, wire::OP_ORDER, order, None).await;
                // As long as it takes until all have heard of it, or another is added.
                person.think().await;
            }
            Err(_) => {}
        }
        person.pause().await;
        if person.is_over() {
            return;
        }
    }
}

/// All files that have a name: path, where its bytes are, and the shard that has the name.
fn files(all: &AllShards<'_>) -> Vec<(String, FileInfo, u16)> {
    let (mut files, mut dirs) = (Vec::new(), vec![String::new()]);
    while let Some(dir) = dirs.pop() {
        let shown = if dir.is_empty() { "/" } else { &dir };
        let mut after = None;
        while let Ok(page) = all.list(shown, after.as_deref(), LIST_PAGE_MAX) {
            after = page.entries.last().map(|entry| entry.name.clone());
            for entry in page.entries {
                let path = format!("{dir}/{}", entry.name);
                match entry.info.kind.is_container() {
                    true => dirs.push(path),
                    false => files.push((path, entry.info, entry.info.id.shard())),
                }
            }
            if !page.more {
                break;
            }
        }
    }
    files
}

impl World {
    /// What any name points to is alive in its chunk's shard, and what is held there is named elsewhere.
    pub(super) fn check_named(&self) -> std::result::Result<(), String> {
        let Some(host) = self.host() else { return Ok(()) };
        let looked = host.read_all(|all| {
            let mut away: BTreeMap<u16, usize> = BTreeMap::new();
            for (path, info, keeper) in files(all) {
                let extents = all.of_file(info.id).ok().and_then(|view| view.extents(info.id));
                let (raw, end) = extents.unwrap_or_default();
                let packed = match info.location {
                    Location::Packed { pointer } => Some(pointer),
                    _ => end.map(|end| end.pointer),
                };
                if let Some(Pointer { chunk, slot, .. }) = packed {
                    let live = all.of_chunk(chunk).ok().and_then(|home| home.chunks().live_slots(chunk));
                    if !live.unwrap_or_default().contains(&slot) {
                        return Err(format!("`{path}`: slot {slot} of `{chunk}` is dead"));
                    }
                }
                for extent in raw {
                    let known = all.chunk(extent.chunk).ok().flatten();
                    if !known.is_some_and(Chunk::is_kept) {
                        return Err(format!("`{path}`: chunk `{}` is deleted", extent.chunk));
                    }
                }
                let chunks = raw.iter().map(|extent| extent.chunk);
                for chunk in chunks.chain(packed.map(|pointer| pointer.chunk)) {
                    *away.entry(chunk.shard()).or_default() += (chunk.shard() != keeper) as usize;
                }
            }
            for shard in all.iter() {
                let (slots, chunks) = shard.chunks().held();
                let named = away.get(&shard.shard()).copied().unwrap_or(0);
                if slots + chunks != named {
                    return Err(format!(
                        "shard {} holds {slots} slots and {chunks} chunks, and {named} are named elsewhere",
                        shard.shard()
                    ));
                }
            }
            Ok(())
        });
        looked.unwrap_or(Ok(()))
    }
}

impl Client {
    /// Has its directory moved, after it was emptied one time of three. Whether it is: the next changes show.
    pub(super) async fn move_own(&mut self) {
        let emptied = if self.one_time_of_three() { self.paths() } else { Vec::new() };
        for path in emptied {
            let action = msg::Action::Delete { path: path.clone(), recursive: false };
            let message = move |call| msg::Change { call, action: action.clone() };
            self.carry_out(Change::Delete(path), wire::OP_CHANGE, None, message).await;
        }
        let dir = self.directory();
        for file in self.unclosed().await {
            let action = msg::Action::Abandon { file };
            let message = move |call| msg::Change { call, action: action.clone() };
            let _ = self.change(wire::OP_CHANGE, None, message).await;
        }
        self.order_move(&dir).await;
        // Somebody changes their mind.
        if self.one_time_of_three() {
            self.order_move(&dir).await;
        }
    }

    async fn order_move(&self, dir: &str) {
        let to = self.any_shard();
        let order = admin::Order::MoveDirectory { dir: dir.to_owned(), to };
        let moved = self.ask(wire::OP_ORDER, order.to_bytes()).await;
        match moved {
            Ok(_) => self.note(&format!("has `{dir}` moved to shard {to}")),
            Err(e) => {
                self.note(&format!("cannot have `{dir}` moved to shard {to}: {e}"));
                if e.kind == Kind::Bug {
                    self.violate(&format!("move `{dir}`: {e}"));
                }
            }
        }
    }
}
