//! Who has ridden, and goes on with the log behind that, through whichever node: both together are what was
//! acknowledged, up to the last entry that was read.

use super::rides::{Brought, Came, Ridden, Wish, take};
use super::{HALVES, Items, LOG_TOPIC, disks_of};
use crate::world::guest::Visitor;
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::ids::Index;
use holdfast_base::{Error, Kind};
use holdfast_client::view::{Follow, Rode};
use holdfast_wire::slab::{Content, Range, Reader, Received};
use holdfast_wire::{self as wire, log, view as msg};
use std::collections::BTreeMap;

/// Pages that are asked for, with answer or without.
const PAGES: usize = 40;
/// Entries of one, at most: few, so that something happens between two.
const PAGE_ENTRIES: u64 = 20;

impl Items {
    /// Rides a node's half, and then reads what comes behind it up to what was acknowledged by then.
    pub(super) async fn follow(&self, visitor: &Visitor, gateway: usize) {
        let Some(disks) = disks_of(visitor, gateway).await else { return };
        let Some(disk) = disks.into_iter().find(|one| one.view.of == HALVES) else { return };
        let range = Range::part(disk.view.part, disk.view.of);
        let wish = Wish::newest();
        let board = wish.board(disk.view, range);
        let (mut brought, mut front) = (Brought::new(), Vec::new());
        let begins = |_: &msg::Boarded, said: &[u8]| {
            front = said.to_vec();
            true
        };
        let mut each = |_: &[u8], items: &Reader<'_>| take(visitor, items, &wish, &mut brought);
        let boarded = match self.receive(visitor, gateway, &board, begins, &mut each).await {
            Ok(Some(boarded)) => boarded,
            Ok(None) => return,
            Err(e) => return self.does_not_ride(visitor, gateway, None, &e),
        };
        let rode = Rode { range, boarded, front };
        let mut follow = match Follow::new(&board, &[rode]) {
            Ok(follow) => follow,
            Err(e) => return visitor.violate(&format!("to follow a ride: {e}")),
        };
        let last = self.last();
        for _ in 0..PAGES {
            if follow.next() > last {
                break;
            }
            let entries = match page(visitor, follow.next()).await {
                Ok(entries) => entries,
                Err(e) if matches!(e.kind, Kind::Bug | Kind::Corrupt | Kind::Invalid) => {
                    return visitor.violate(&format!("to follow a ride: {e}"));
                }
                Err(e) if e.kind == Kind::Retry => {
                    visitor.pause().await;
                    continue;
                }
                // Whoever held the log for it was killed.
                Err(e) => return visitor.note(&format!("does not follow its ride: {e}")),
            };
            for log::Indexed { index, bytes } in entries {
                let mut change = |_: &Follow, received: Received<'_>| {
                    changed(&mut brought, &received);
                    Ok(())
                };
                if let Err(e) = follow.take(index, &bytes, &mut change) {
                    return visitor.violate(&format!("to follow a ride: {e}"));
                }
            }
        }
        let index = Index(follow.next().0 - 1);
        visitor.sometimes(index > boarded.index, "a ride went on with the log");
        // Who asks for the newest does not see the horizon.
        self.arrived(visitor, &wish, &Ridden { range, index, horizon: boarded.horizon }, &brought);
    }
}

/// The next entries, from whichever node.
async fn page(visitor: &Visitor, from: Index) -> Result<Vec<log::Indexed>, Error> {
    let topic = LOG_TOPIC.to_owned();
    let entries_max = 1 + visitor.below(PAGE_ENTRIES) as u32;
    let read = log::Read { topic, from, entries_max, wait: false };
    let gateway = visitor.any_gateway();
    let reply = visitor.ask(gateway, wire::OP_LOG_READ, read.to_bytes(), None).await?;
    Ok(log::Entries::from_bytes(&reply.meta).expect("what was answered").entries)
}

fn changed(brought: &mut Brought, received: &Received<'_>) {
    let Received { key, index, content, .. } = received;
    match content {
        Content::Value(value) => {
            let newest = BTreeMap::from([(*index, Came::Value(value.to_vec()))]);
            brought.insert(key.to_vec(), newest);
        }
        Content::Deleted | Content::NotSent => drop(brought.remove(*key)),
    }
}
