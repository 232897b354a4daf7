//! Housekeeping of one node's blobs: ends what uploads left behind, compacts chunks of which much
//! is dead, and frees those in which nothing lives. Bounded rounds; `step` takes the time. What
//! lives is what the rows say behind the entry that closes a chunk.

use crate::command::Command;
use crate::model::{ChunkUse, Hold};
use crate::names::decoded;
use crate::rows;
use crate::service::Blobs;
use holdfast_base::ids::{ChunkId, Durability, Slot};
use holdfast_base::{Error, Kind, Result};
use holdfast_cluster::{BLOBS, ChunkState};
use holdfast_env::HoldMutex;
use holdfast_node::FaceChunk;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A chunk is rewritten when this share of it is dead, in percent.
const GARBAGE_PERCENT: u64 = 40;
/// How long a chunk must have been worth it: what was written to it may not be named yet.
const SETTLE_MS: u64 = 10_000;
/// How long nothing must live in a chunk before it goes: for readers that found it before.
const GRACE_MS: u64 = 10_000;
/// Chunks that one round rewrites.
const COMPACTIONS: usize = 1;
/// Bytes that are not data: an object's header and description.
const NEEDLE_BYTES: u64 = 512;
/// How long an upload's bytes are held that neither comes to an end nor is taken back.
const HOLD_MS_MAX: i64 = 24 * 3_600_000;
const HOLDS_EVERY_MS: u64 = 60_000;

/// Housekeeping's own memory; nothing in it is needed after a restart.
pub struct Housekeeping {
    blobs: Arc<Blobs>,
    /// Since when a chunk is worth rewriting, or empty.
    since: BTreeMap<ChunkId, u64>,
    given_up: BTreeSet<ChunkId>,
    holds_next_ms: u64,
}

/// Trouble that is over by itself, or is known elsewhere.
fn passes(e: &Error) -> bool {
    matches!(e.kind, Kind::Full | Kind::Retry | Kind::Fenced)
}

impl Housekeeping {
    pub fn new(blobs: &Arc<Blobs>) -> Housekeeping {
        Housekeeping {
            blobs: blobs.clone(),
            since: BTreeMap::new(),
            given_up: BTreeSet::new(),
            holds_next_ms: 0,
        }
    }

    /// One round. What fails is tried again in the next one.
    pub fn step(&mut self, now_ns: u64) {
        let now_ms = now_ns / 1_000_000;
        for (what, done) in [
            ("go on with the view of blobs", self.blobs.resume()),
            ("compact chunks of blobs", self.compact(now_ms, GARBAGE_PERCENT)),
            ("end what uploads left", self.end_holds(now_ms)),
        ] {
            match done {
                Err(e) if !passes(&e) => {
                    self.blobs.node.report_finding(format!("{what}: {e}"));
                }
                _ => {}
            }
        }
    }

    /// Rewrites, now, every chunk of this node in which anything is dead. Answers how many.
    pub fn compact_all(&mut self) -> Result<usize> {
        let mut done = 0;
        for chunk in self.blobs.node.face_chunks(BLOBS)? {
            if chunk.state != ChunkState::Open && !chunk.has_old && self.is_worth(&chunk, 1)? {
                self.rewrite(&chunk)?;
                done += 1;
            }
        }
        Ok(done)
    }

    fn used(&self, chunk: ChunkId) -> Result<ChunkUse> {
        Ok(self.blobs.row(&rows::chunk(chunk), "a chunk's use")?.unwrap_or_default())
    }

    fn is_worth(&self, chunk: &FaceChunk, percent: u64) -> Result<bool> {
        let used = self.used(chunk.chunk)?;
        let dead = chunk.needles.saturating_sub(used.live as u64);
        let dead_bytes =
            chunk.stored_bytes.saturating_sub(used.live_bytes + chunk.needles * NEEDLE_BYTES);
        Ok(dead > 0
            && (dead * 100 >= chunk.needles * percent
                || dead_bytes * 100 >= chunk.stored_bytes * percent))
    }

    fn compact(&mut self, now_ms: u64, percent: u64) -> Result<()> {
        let mut left = COMPACTIONS;
        let mut since = BTreeMap::new();
        for chunk in self.blobs.node.face_chunks(BLOBS)? {
            let id = chunk.chunk;
            let open = matches!(chunk.state, ChunkState::Open | ChunkState::Doomed);
            if open || chunk.has_old || self.given_up.contains(&id) {
                continue;
            }
            let empty = self.used(id)?.live == 0;
            if !empty && !self.is_worth(&chunk, percent)? {
                continue;
            }
            let first = self.since.get(&id).copied().unwrap_or(now_ms);
            since.insert(id, first);
            if now_ms - first < if empty { GRACE_MS.max(SETTLE_MS) } else { SETTLE_MS } {
                continue;
            }
            if left == 0 {
                continue;
            }
            left -= 1;
            if let Err(e) = self.rewrite(&chunk) {
                if !passes(&e) {
                    self.given_up.insert(id);
                }
                return Err(e.context(format_args!("chunk `{id}`")));
            }
            since.remove(&id);
        }
        self.since = since;
        Ok(())
    }

    /// Ends naming, then rewrites what lives; a chunk in which nothing does goes.
    fn rewrite(&self, chunk: &FaceChunk) -> Result<()> {
        let (blobs, node) = (&self.blobs, &self.blobs.node);
        let _alone = blobs.compacting.held();
        let id = chunk.chunk;
        // Whoever held the lock before may have freed it.
        if node.read_chunk(id, |view, _| view.get(id).is_none())? {
            return Ok(());
        }
        blobs.propose_and_wait(&Command::CloseChunk { chunk: id })?;
        let next = match node.begin_rewrite(id) {
            // Whoever held the lock before had freed it, and its last file went just now.
            Err(e) if e.kind == Kind::NotFound => {
                blobs.propose_and_wait(&Command::ForgetChunk { chunk: id })?;
                return Ok(());
            }
            begun => begun?,
        };
        let live = self.live_slots(id)?;
        if !live.is_empty() {
            return next.map_or(Ok(()), |next| node.rewrite(id, next, &live));
        }
        let free = holdfast_cluster::Command::FreeChunk { chunk: id };
        match node.propose_and_wait(free, Durability::Durable) {
            // Here, too, its last file may go at any time.
            Err(e) if e.kind == Kind::NotFound => {}
            freed => drop(freed?),
        }
        blobs.propose_and_wait(&Command::ForgetChunk { chunk: id })?;
        Ok(())
    }

    fn live_slots(&self, chunk: ChunkId) -> Result<BTreeSet<Slot>> {
        let mut live = BTreeSet::new();
        let prefix = rows::slots(chunk);
        self.blobs.index.scan(&prefix, &rows::behind(&prefix), &mut |row, _| {
            live.extend(rows::parse_slot(row));
            Ok(true)
        })?;
        Ok(live)
    }

    fn end_holds(&mut self, now_ms: u64) -> Result<()> {
        if now_ms < self.holds_next_ms || !self.blobs.node.leads() {
            return Ok(());
        }
        self.holds_next_ms = now_ms + HOLDS_EVERY_MS;
        let oldest_ms = self.blobs.now_ms() - HOLD_MS_MAX;
        let mut over = Vec::new();
        self.blobs.index.scan(&[rows::HOLD], &[rows::HOLD + 1], &mut |row, value| {
            let held: Hold = decoded(value, "a hold")?;
            over.extend(rows::parse_hold(row).filter(|_| held.begun_ms < oldest_ms));
            Ok(true)
        })?;
        for id in over {
            self.blobs.propose_and_wait(&Command::ReleaseHold { id })?;
        }
        Ok(())
    }
}
