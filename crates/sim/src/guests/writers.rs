//! Writers of a plain topic as a guest: each numbers its entries and sends them through any node while
//! faults are drawn, again and again until one is acknowledged, and now and then one that was. In the
//! end nobody who reads the topic, from wherever, sees an entry twice, nor misses one that was
//! acknowledged.

use super::names::until_told;
use crate::SimNet;
use crate::world::guest::{Guest, Lodging, Visitor, Work};
use holdfast_base::Result;
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::ids::Index;
use holdfast_env::HoldMutex;
use holdfast_node::Node;
use holdfast_wire::log::writers::{Numbered, Repeats, look_from};
use holdfast_wire::{self as wire, log};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

const CLIENTS: usize = 3;
const TOPIC: &str = "writers/shared";
/// How often an append is sent, before its writer goes on without knowing of it.
const SENDS: usize = 30;

#[derive(Default)]
struct Writers {
    /// By writer, the numbers that were acknowledged.
    kept: Mutex<BTreeMap<String, BTreeSet<u64>>>,
}

/// A guest of a schedule.
pub fn writers() -> Arc<dyn Guest> {
    Arc::new(Writers::default())
}

/// What a writer says under a number.
fn content(writer: &str, number: u64) -> String {
    format!("{writer} says {number}")
}

async fn send(visitor: &Visitor, writer: &str, number: u64) -> bool {
    let content = content(writer, number);
    let bytes = Numbered { writer, number, bytes: content.as_bytes() }.encode();
    let entries = vec![log::Entry { bytes }];
    let append = log::Append { topic: TOPIC.to_owned(), synced: true, entries };
    let gateway = visitor.any_gateway();
    let sent = visitor.ask(gateway, wire::OP_LOG_APPEND, append.to_bytes(), None).await;
    if let Err(e) = &sent {
        visitor.note(&format!("does not know about {number}: {e}"));
    }
    sent.is_ok()
}

async fn page(visitor: &Visitor, gateway: usize, from: Index) -> Option<Vec<log::Indexed>> {
    let read = log::Read { topic: TOPIC.to_owned(), from, entries_max: 1000, wait: false };
    let reply = visitor.ask(gateway, wire::OP_LOG_READ, read.to_bytes(), None).await.ok()?;
    Some(log::Entries::from_bytes(&reply.meta).ok()?.entries)
}

impl Guest for Writers {
    fn open(&self, _: &Arc<Node>, _: &SimNet) -> Result<Lodging> {
        Ok(Lodging::nothing())
    }

    fn clients(&self) -> usize {
        CLIENTS
    }

    fn work(self: Arc<Self>, visitor: Visitor, end_ns: u64) -> Work {
        Box::pin(async move {
            let writer = visitor.name().replace('/', ".");
            let mut next: u64 = 1;
            while visitor.now_ns() < end_ns {
                visitor.think().await;
                visitor.count_operation();
                if next > 1 && visitor.below(4) == 0 {
                    // As a process does that has forgotten how far it was heard.
                    let back = 1 + visitor.below(3);
                    send(&visitor, &writer, (next - 1).saturating_sub(back).max(1)).await;
                }
                for sent in 1..=SENDS {
                    if send(&visitor, &writer, next).await {
                        self.kept.held().entry(writer.clone()).or_default().insert(next);
                        visitor.sometimes(sent > 1, "an append was sent again until it was kept");
                        break;
                    }
                    if visitor.now_ns() >= end_ns {
                        break;
                    }
                    visitor.pause().await;
                }
                next += 1;
            }
        })
    }

    fn check(self: Arc<Self>, visitor: Visitor) -> Work {
        Box::pin(async move {
            if self.kept.held().is_empty() {
                return;
            }
            let mut all = Vec::new();
            let gateway = visitor.any_gateway();
            loop {
                let from =
                    all.last().map_or(Index(1), |last: &log::Indexed| Index(last.index.0 + 1));
                let ask = || page(&visitor, gateway, from);
                match until_told(&visitor, (gateway, TOPIC), ask).await {
                    None => return,
                    Some(entries) if entries.is_empty() => break,
                    Some(entries) => all.extend(entries),
                }
            }
            let kept = self.kept.held().clone();
            let seen = match seen(&all, Index(1)) {
                Ok(seen) => seen,
                Err(twice) => return visitor.violate(&twice),
            };
            for (writer, number) in
                kept.iter().flat_map(|(writer, numbers)| numbers.iter().map(move |n| (writer, *n)))
            {
                if !seen.contains_key(&content(writer, number)) {
                    return visitor
                        .violate(&format!("{writer}'s {number} was kept, and is not read"));
                }
            }
            visitor.sometimes(seen.len() < all.len(), "a repeat was left out");
            // Whoever begins anywhere sees what others see from there on.
            for _ in 0..10 {
                let from = Index(1 + visitor.below(all.len() as u64));
                let rest = seen.iter().filter(|(_, index)| **index >= from);
                let rest: BTreeMap<String, Index> = rest.map(|(s, i)| (s.clone(), *i)).collect();
                if self::seen(&all, from) != Ok(rest) {
                    return visitor.violate(&format!("a reader from {from} on sees other entries"));
                }
            }
        })
    }
}

/// What a reader sees that begins at an index; or what it sees twice.
fn seen(all: &[log::Indexed], from: Index) -> std::result::Result<BTreeMap<String, Index>, String> {
    let (mut rule, mut seen) = (Repeats::default(), BTreeMap::new());
    for entry in all.iter().filter(|entry| entry.index >= look_from(from)) {
        let is_repeat = rule.see(entry.index, &entry.bytes);
        let Some(Numbered { bytes, .. }) = Numbered::of(&entry.bytes) else {
            return Err(format!("entry {} is nobody's", entry.index));
        };
        let said = String::from_utf8_lossy(bytes).into_owned();
        if !is_repeat
            && entry.index >= from
            && let Some(before) = seen.insert(said.clone(), entry.index)
        {
            return Err(format!("`{said}` is read as entry {before} and as {}", entry.index));
        }
    }
    Ok(seen)
}
