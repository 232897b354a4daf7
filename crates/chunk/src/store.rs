//! The store's face: finds the chunk and hands the work on.

use crate::api::*;
use holdfast_base::Result;
use holdfast_base::ids::{ChunkId, Durability, Generation, Pointer, Slot};
use holdfast_env::{Disk, Rng};
use std::sync::Arc;

/// One directory or one memory region full of chunks. Cheap to clone; every call may come from
/// any thread. Calls that end in a callback do not block; all others may wait for the disk.
#[derive(Clone)]
pub struct Store {}

#[allow(unused_variables, clippy::todo)]
impl Store {
    /// Opens the store in `config.dir`, or makes one there, and recovers what it held.
    pub fn open(
        disk: Arc<dyn Disk>,
        rng: Arc<dyn Rng>,
        config: StoreConfig,
    ) -> Result<(Store, Recovered)> {
        todo!()
    }
    /// Makes an empty chunk, durably.
    pub fn create(&self, spec: ChunkSpec) -> Result<()> {
        todo!()
    }
    /// Appends `body` at byte `at`, which must be the end of what was appended before.
    /// `crcs`: crc32c of each part of the body between 64 KiB boundaries of the chunk.
    /// Answers the acknowledged length.
    pub fn append_raw(
        &self,
        chunk: ChunkId,
        at: u64,
        body: Body,
        crcs: Vec<u32>,
        durability: Durability,
        done: Done<u64>,
    ) {
        todo!()
    }
    /// Appends an object; `crcs`: crc32c of each 64 KiB of it (one for an empty object).
    /// Answers its slot.
    pub fn append_needle(
        &self,
        chunk: ChunkId,
        needle: Needle,
        body: Body,
        crcs: Vec<u32>,
        durability: Durability,
        done: SlotDone,
    ) {
        todo!()
    }
    /// Reads acknowledged bytes; a range that reaches past them is cut there.
    pub fn read_raw(
        &self,
        chunk: ChunkId,
        generation: Generation,
        offset: u64,
        bytes: u64,
    ) -> Result<RawRead> {
        todo!()
    }
    pub fn read_needle(&self, pointer: Pointer) -> Result<NeedleRead> {
        todo!()
    }
    /// As `read_needle` when that needs no disk; `None`: ask a thread that may wait.
    pub fn try_read_needle(&self, pointer: Pointer) -> Option<Result<NeedleRead>> {
        todo!()
    }
    /// Acknowledged length (raw: bytes, packed: next slot).
    pub fn length(&self, chunk: ChunkId) -> Result<u64> {
        todo!()
    }
    /// Bytes that the open chunk can still take in one append; 0 when not open.
    pub fn room(&self, chunk: ChunkId) -> Result<u64> {
        todo!()
    }
    /// Ends appends for good, across restarts, and answers the verified length.
    pub fn fence(&self, chunk: ChunkId) -> Result<u64> {
        todo!()
    }
    /// Fixes the length (raw: bytes, packed: slots), which must not exceed the verified one.
    pub fn seal(&self, chunk: ChunkId, length: u64) -> Result<()> {
        todo!()
    }
    /// Computes generation `next` of a sealed packed chunk from the slots for which `live` says
    /// yes. The current generation goes on serving.
    pub fn compact(
        &self,
        chunk: ChunkId,
        live: &dyn Fn(Slot) -> bool,
        next: Generation,
    ) -> Result<CompactionDigest> {
        todo!()
    }
    /// Makes `generation` the one that is read.
    pub fn switch(&self, chunk: ChunkId, generation: Generation) -> Result<()> {
        todo!()
    }
    /// Removes a generation that is not current, or the last one of the chunk.
    pub fn unlink(&self, chunk: ChunkId, generation: Generation) -> Result<()> {
        todo!()
    }
    pub fn list(&self) -> Vec<ChunkInfo> {
        todo!()
    }
    pub fn usage(&self) -> Usage {
        todo!()
    }
    /// Writes pending commits here and now, in the order they came; for stores without threads.
    pub fn pump(&self) {
        todo!()
    }
}
