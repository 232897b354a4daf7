//! A category that is kept for as little as there is, and whoever reads it slowly, as a guest: what has not been read is
//! given up, and the reader is told from where on there is something. Whatever faults come between, a reader sees in
//! front of such a gap, and behind it, everything once and in one order, which is everybody's.

use crate::SimNet;
use crate::world::guest::{Guest, Lodging, Visitor, Work};
use holdfast_base::codec::{Decode, Encode, put_bytes};
use holdfast_base::ids::Index;
use holdfast_base::{Error, Kind, Result, random};
use holdfast_env::HoldMutex;
use holdfast_node::Node;
use holdfast_scribe::batch::{Builder, Messages};
use holdfast_scribe::category::Category;
use holdfast_scribe::face::ScribeFace;
use holdfast_wire::{self as wire, scribe as msg};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

const CATEGORY: &str = "short";
/// Of a message: a few fill one of the topic's files.
const MESSAGE_BYTES: usize = 40 << 10;
/// So often something is asked that does not come.
const ATTEMPTS: usize = 200;
/// Pages of a slow reader in a row.
const PAGES: u64 = 2;

#[derive(Default)]
struct Overtaken {
    /// Clients that have begun: one writes, the others read.
    clients: AtomicUsize,
    /// Messages that were taken, in the order in which that was told: each was sent when the one before was taken.
    taken: Mutex<Vec<u64>>,
    /// What readers saw without a gap.
    runs: Mutex<Vec<Vec<u64>>>,
    /// Which entry each of the messages is.
    entries: Mutex<BTreeMap<u64, Index>>,
}

/// A guest of a schedule.
pub fn overtaken() -> Arc<dyn Guest> {
    Arc::new(Overtaken::default())
}

/// A message, and whether its category took it.
async fn send(visitor: &Visitor, number: u64) -> bool {
    let mut builder = Builder::default();
    let rest = random::bytes(visitor.below(u64::MAX), MESSAGE_BYTES);
    builder.push(&[&number.to_le_bytes()[..], &rest].concat());
    let category = Category::new(CATEGORY).expect("its name is allowed");
    let mut body = Vec::new();
    put_bytes(&mut body, &builder.pack(category).without_number());
    let meta = msg::Append { categories: vec![CATEGORY.to_owned()] }.to_bytes();
    let gateway = visitor.any_gateway();
    let answer = visitor.ask(gateway, wire::OP_SCRIBE_APPEND, meta, Some(&body)).await;
    let positions = answer.and_then(|reply| Ok(msg::Positions::from_bytes(&reply.meta)?.positions));
    positions.is_ok_and(|all| all.iter().all(|position| position.refused.is_empty()))
}

/// Messages of the next entries, and where to read on.
async fn page(
    visitor: &Visitor,
    gateway: usize,
    from: Index,
) -> Result<(Vec<(Index, u64)>, Index)> {
    let (category, bytes_max) = (CATEGORY.to_owned(), 1 << 17);
    let read = msg::Read { category, from, bytes_max, wait: false };
    let reply = visitor.ask(gateway, wire::OP_SCRIBE_READ, read.to_bytes(), None).await?;
    let batches = msg::Batches::from_bytes(&reply.meta)?;
    let (mut rest, mut read) = (&reply.body[..], Vec::new());
    let cut = || Error::corrupt("read a category: an answer is cut");
    for indexed in batches.batches {
        let (batch, behind) = rest.split_at_checked(indexed.bytes as usize).ok_or_else(cut)?;
        for message in Messages::of(batch)?.iter() {
            let number = message.first_chunk().ok_or_else(cut)?;
            read.push((indexed.index, u64::from_le_bytes(*number)));
        }
        rest = behind;
    }
    Ok((read, batches.next))
}

/// Whether entries in front of a reader's place were given up.
fn is_gone(e: &Error) -> bool {
    e.kind == Kind::NotFound && e.message.contains("is given up")
}

impl Overtaken {
    async fn write(&self, visitor: &Visitor, end_ns: u64) {
        let keep = msg::Keep {
            category: CATEGORY.to_owned(),
            retain_bytes: Some(1),
            retain_ms: None,
            hold_bytes: None,
            hold_ms: None,
            hourly_files: None,
        };
        let mut is_short = false;
        let mut number = 0;
        while visitor.now_ns() < end_ns && !visitor.is_over() {
            visitor.pause().await;
            visitor.count_operation();
            if !is_short {
                let (gateway, keep) = (visitor.any_gateway(), keep.to_bytes());
                is_short = visitor.ask(gateway, wire::OP_SCRIBE_KEEP, keep, None).await.is_ok();
            }
            number += 1;
            if send(visitor, number).await {
                self.taken.held().push(number);
            }
        }
    }

    async fn read(&self, visitor: &Visitor, end_ns: u64) {
        let (mut from, mut run) = (Index(0), Vec::new());
        while visitor.now_ns() < end_ns && !visitor.is_over() {
            // Slow, and now and then not there at all.
            for _ in 0..1 + visitor.below(8) {
                visitor.think().await;
            }
            for _ in 0..PAGES {
                visitor.count_operation();
                match page(visitor, visitor.any_gateway(), from).await {
                    Ok((read, next)) => {
                        if read.first().is_some_and(|(index, _)| *index < from) || next < from {
                            return visitor.violate("a reader is shown what it has read");
                        }
                        run.extend(self.see(visitor, &read));
                        from = next;
                    }
                    Err(e) if is_gone(&e) => {
                        visitor.sometimes(!run.is_empty(), "a reader crossed a trim");
                        self.runs.held().push(std::mem::take(&mut run));
                        from = self.behind(visitor, from).await;
                    }
                    Err(_) => break,
                }
            }
        }
        self.runs.held().push(run);
    }

    /// Where there is something again behind a place that was given up.
    async fn behind(&self, visitor: &Visitor, from: Index) -> Index {
        for _ in 0..ATTEMPTS {
            match page(visitor, visitor.any_gateway(), Index(0)).await {
                Ok((read, _)) if read.first().is_some_and(|(index, _)| *index < from) => {
                    visitor.violate("what is said to be given up is shown");
                    return from;
                }
                Ok((read, next)) => return read.first().map_or(next, |(index, _)| *index),
                Err(_) => visitor.pause().await,
            }
        }
        from
    }

    /// Everybody is shown one order, and nothing twice.
    fn see(&self, visitor: &Visitor, read: &[(Index, u64)]) -> Vec<u64> {
        let mut entries = self.entries.held();
        for (index, number) in read {
            let known = *entries.entry(*number).or_insert(*index);
            if known != *index {
                visitor.violate(&format!("message {number} is entry {index}, and was {known}"));
            }
        }
        read.iter().map(|(_, number)| *number).collect()
    }

    /// Whether messages that were taken follow each other as they were sent, with nothing left out between them.
    fn follow(&self, run: &[u64]) -> bool {
        let taken = self.taken.held();
        let mut at = run.iter().filter_map(|number| taken.binary_search(number).ok());
        let Some(first) = at.next() else { return true };
        at.zip(first + 1..).all(|(at, wanted)| at == wanted)
    }
}

/// All that there is, as a node shows it.
async fn all(visitor: &Visitor, gateway: usize) -> Option<Vec<(Index, u64)>> {
    let (mut all, mut from) = (Vec::new(), Index(0));
    for _ in 0..ATTEMPTS {
        match page(visitor, gateway, from).await {
            Ok((_, next)) if next == from => return Some(all),
            Ok((read, next)) => {
                all.extend(read);
                from = next;
            }
            // It was overtaken once more.
            Err(e) if is_gone(&e) => (all, from) = (Vec::new(), Index(0)),
            Err(_) => visitor.pause().await,
        }
    }
    None
}

impl Guest for Overtaken {
    fn open(&self, node: &Arc<Node>, _: &SimNet) -> Result<Lodging> {
        let face = ScribeFace::new(node.clone());
        face.open_all()?;
        Ok(Lodging { face, round: Box::new(|| {}) })
    }

    fn clients(&self) -> usize {
        3
    }

    fn work(self: Arc<Self>, visitor: Visitor, end_ns: u64) -> Work {
        Box::pin(async move {
            match self.clients.fetch_add(1, Ordering::Relaxed) {
                0 => self.write(&visitor, end_ns).await,
                _ => self.read(&visitor, end_ns).await,
            }
        })
    }

    fn check(self: Arc<Self>, visitor: Visitor) -> Work {
        Box::pin(async move {
            if self.taken.held().is_empty() {
                return;
            }
            for gateway in 1..=visitor.gateways() {
                let Some(all) = all(&visitor, gateway).await else {
                    return visitor.violate(&format!("node {gateway} does not say what there is"));
                };
                let numbers = self.see(&visitor, &all);
                let last = self.taken.held().last().copied();
                let has_last = last.is_none_or(|last| numbers.contains(&last));
                let is_once = numbers.iter().collect::<BTreeSet<_>>().len() == numbers.len();
                if !has_last || !is_once || !self.follow(&numbers) {
                    return visitor.violate(&format!("node {gateway} shows {numbers:?}"));
                }
            }
            if let Some(run) = self.runs.held().iter().find(|run| !self.follow(run)) {
                visitor.violate(&format!("a reader was shown {run:?}"));
            }
        })
    }
}
