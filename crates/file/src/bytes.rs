//! Requests that move bytes: of packed objects and of raw chunks. What lies in memory is answered
//! on the reactor thread, straight from the region; the rest by a thread that may wait.

use crate::face::{Answer, FileFace};
use crate::within;
use holdfast_base::checksum::{crc32c, crc32c_combine};
use holdfast_base::codec::Encode;
use holdfast_base::ids::{ChunkId, Tier};
use holdfast_base::limits::{BLOCK_BYTES, FRAME_BODY_BYTES_MAX};
use holdfast_base::{Error, Kind, Result};
use holdfast_chunk::{Bytes, NeedleRead, RawRead, Store};
use holdfast_cluster::{AllShards, Chunk, FileInfo, Location};
use holdfast_env::net::{Batch, Body, BodyPart, BodyTarget, Parts, Response};
use holdfast_env::planted;
use holdfast_env::region::{FRAME_BYTES, Region, RegionSlice};
use holdfast_node::Source;
use holdfast_node::replicas::{Answer as Answered, Wanted};
use holdfast_server::{Request, answer, decoded};
use holdfast_wire::{self as wire, chunk as msg, file};
use std::sync::Arc;

/// CRC32C of each 64 KiB of an object; one of nothing for an empty one.
pub(crate) fn block_crcs(bytes: &[u8]) -> Vec<u32> {
    if bytes.is_empty() {
        return vec![0];
    }
    bytes.chunks(BLOCK_BYTES as usize).map(crc32c).collect()
}

/// CRC32C of the whole, from its blocks'.
pub(crate) fn combined(crcs: &[u32], bytes: usize) -> u32 {
    let mut left = bytes as u64;
    crcs.iter().fold(0, |whole, crc| {
        let block = left.min(BLOCK_BYTES);
        left -= block;
        crc32c_combine(whole, *crc, block)
    })
}

/// A store's bytes as an answer's body: no copy.
fn parts(bytes: Bytes) -> Parts {
    match bytes {
        Bytes::Owned { buf, range } => BodyPart::Shared(Arc::new(buf), range).into(),
        Bytes::Region(slice) => slice.into(),
    }
}

fn read_reply(read: RawRead) -> (Vec<u8>, Parts) {
    (msg::ReadReply { crcs: read.crcs }.to_bytes(), parts(read.bytes))
}

fn answered_reply(read: Answered) -> (Vec<u8>, Parts) {
    (msg::ReadReply { crcs: read.crcs }.to_bytes(), parts(read.bytes))
}

fn deleted(chunk: ChunkId) -> Error {
    Error::not_found(format!("read chunk `{chunk}`: it was deleted"))
}

fn lost(chunk: ChunkId, tier: Tier) -> Error {
    match tier {
        Tier::Dram => Error::not_found(format!(
            "read chunk `{chunk}`: it was in the memory of a process that has ended; class `dram` \
             keeps nothing over a restart"
        )),
        // It is named, and should be there.
        Tier::Disk => Error::corrupt(format!(
            "read chunk `{chunk}`: no store that is left holds it; is a directory or a node missing?"
        )),
    }
}

/// What this node's view names is there, so that no store has it is no answer: the view, or a
/// store that was just replaced, may be behind.
fn named(e: Error) -> Error {
    match e.kind {
        Kind::NotFound => Error::retry(format!("{}; it is named, so ask again", e.message)),
        _ => e,
    }
}

impl FileFace {
    /// The store that holds a chunk, if it is one that answers from memory.
    pub(crate) fn store_of(&self, all: &AllShards<'_>, chunk: ChunkId) -> Result<Option<&Store>> {
        let Some(known) = all.chunk(chunk)? else { return Err(deleted(chunk)) };
        if known.tier != Tier::Dram {
            return Ok(None);
        }
        match self.node.stores.holding(&known.replicas) {
            Some(store) => Ok(Some(store)),
            // In the memory of another node, or of a process that has ended.
            None if self.node.is_within_reach(&known.replicas)
                && !planted!("file.memory-of-others-gone") =>
            {
                Ok(None)
            }
            None => Err(lost(chunk, known.tier)),
        }
    }

    /// What the view knows of a chunk, and where it can be read, for threads that may wait.
    fn known(&self, chunk: ChunkId) -> Result<Chunk> {
        let known = self.node.read_chunk(chunk, |view, _| view.get(chunk).cloned())?;
        let known = known.ok_or_else(|| deleted(chunk))?;
        match self.node.source(&known) {
            Source::Replicas(replicas) if !self.node.is_within_reach(&replicas) => {
                Err(lost(chunk, known.tier))
            }
            _ => Ok(known),
        }
    }

    /// What a small get answers with: bytes, or where they lie for a client that has them mapped.
    pub(crate) fn small_content(
        &self,
        get: &file::Get,
        info: &FileInfo,
        read: NeedleRead,
    ) -> (file::Content, Parts) {
        let crc = info.crc.unwrap_or_else(|| combined(&read.crcs, read.bytes.len()));
        // A few bytes are cheaper sent than described.
        const LOCATE_BYTES_MIN: u64 = 4096;
        match (&read.bytes, &self.region) {
            (Bytes::Region(slice), Some(region)) if get.locate && info.size > LOCATE_BYTES_MIN => {
                let pieces = pieces(region, slice);
                (file::Content::Mapped { pieces, crc }, Parts::None)
            }
            _ => (file::Content::Body { crc }, parts(read.bytes)),
        }
    }

    pub(crate) fn get_from_disk(&self, request: Request<'_>) {
        let (meta, within) = (request.meta, request.within.clone());
        let Some((get, reply)) = request.decode::<file::Get>("get") else { return };
        let node = self.node.clone();
        // The name is looked up again: between the two the file may have been replaced.
        let found = node.read_all(|all| {
            if let Some(client) = &within {
                within::check(all, &self.given, wire::OP_GET, meta, client)?;
            }
            let info = crate::reads::find(all, &get.path, get.follow)?;
            Ok((info, crate::reads::wire_info(all, &info)))
        });
        let (info, wire_info) = match found.and_then(|found| found) {
            Ok(found) => found,
            Err(e) => return reply.send(Response::error(e)),
        };
        let Location::Packed { pointer } = info.location else {
            return reply.send(Response::error(Error::retry(format!(
                "get `{}`: it was replaced meanwhile; ask again",
                get.path.escape_debug()
            ))));
        };
        let known = match self.known(pointer.chunk) {
            Ok(known) => known,
            Err(e) => return reply.send(Response::error(e)),
        };
        let done = move |read: Result<(Bytes, Vec<u32>)>| {
            let read = read.map(|(bytes, crcs)| {
                let crc = info.crc.unwrap_or_else(|| combined(&crcs, bytes.len()));
                let content = file::Content::Body { crc };
                let meta = file::GetReply { info: wire_info, content }.to_bytes();
                (meta, parts(bytes))
            });
            let read = read.map_err(|e| named(e).context(format_args!("get `{}`", get.path)));
            answer(reply, read);
        };
        match node.source(&known) {
            Source::Own(store) => self.node.workers.run(move || {
                done(store.read_needle(pointer).map(|read| (read.bytes, read.crcs)));
            }),
            Source::Replicas(replicas) => self.node.workers.run(move || {
                let wanted = Wanted::Object { pointer, offset: 0, bytes: info.size as u32 };
                let done = |read: Result<_>| done(read.map(|a: Answered| (a.bytes, a.crcs)));
                node.replicator.read(&replicas, wanted, Box::new(done));
            }),
        }
    }

    pub(crate) fn read_raw_now(&self, all: &AllShards<'_>, meta: &[u8]) -> Result<Answer> {
        let read: msg::Read = decoded(meta, "read")?;
        check_bytes(read.bytes)?;
        let Some(store) = self.store_of(all, read.chunk)? else {
            return Ok(Answer::Later(read.bytes as u64));
        };
        let read = store.read_raw(read.chunk, read.generation, read.offset, read.bytes as u64)?;
        let (meta, parts) = read_reply(read);
        Ok(Answer::Now(meta, parts))
    }

    pub(crate) fn read_raw_from_disk(&self, request: Request<'_>) {
        let Some((read, reply)) = request.decode::<msg::Read>("read") else { return };
        let known = match check_bytes(read.bytes).and_then(|()| self.known(read.chunk)) {
            Ok(known) => known,
            Err(e) => return reply.send(Response::error(e)),
        };
        let (chunk, generation, offset, bytes) =
            (read.chunk, read.generation, read.offset, read.bytes);
        match self.node.source(&known) {
            Source::Own(store) => self.node.workers.run(move || {
                if !reply.is_wanted() {
                    return;
                }
                let raw = store.read_raw(chunk, generation, offset, bytes as u64);
                answer(reply, raw.map(read_reply).map_err(named));
            }),
            Source::Replicas(_) => {
                let node = self.node.clone();
                let done = |read: Result<Answered>| {
                    answer(reply, read.map(answered_reply).map_err(named));
                };
                self.node.workers.run(move || {
                    node.read_replicated(&known, generation, (offset, bytes), Box::new(done));
                });
            }
        }
    }

    /// Part of a packed object, by its pointer, verified here.
    pub(crate) fn read_object(&self, request: Request<'_>) {
        let Some((read, reply)) = request.decode::<msg::ReadObject>("read an object") else {
            return;
        };
        let known = match check_bytes(read.bytes).and_then(|()| self.known(read.pointer.chunk)) {
            Ok(known) => known,
            Err(e) => return reply.send(Response::error(e)),
        };
        let (pointer, offset, bytes) = (read.pointer, read.offset, read.bytes);
        match self.node.source(&known) {
            Source::Own(store) => self.node.workers.run(move || {
                if !reply.is_wanted() {
                    return;
                }
                let wanted = offset..offset.saturating_add(bytes as u64);
                let part = store
                    .read_needle_part(pointer, wanted)
                    .map(|(bytes, crcs)| (msg::ReadReply { crcs }.to_bytes(), parts(bytes)));
                answer(reply, part);
            }),
            Source::Replicas(replicas) => {
                let node = self.node.clone();
                let done = |read: Result<Answered>| answer(reply, read.map(answered_reply));
                self.node.workers.run(move || {
                    let wanted = Wanted::Object { pointer, offset, bytes };
                    node.replicator.read(&replicas, wanted, Box::new(done));
                });
            }
        }
    }

    /// Where a raw chunk's bytes lie in the region, for a client that has it mapped.
    pub(crate) fn locate(&self, all: &AllShards<'_>, meta: &[u8]) -> Result<Answer> {
        let read: msg::Read = decoded(meta, "locate")?;
        let (Some(store), Some(region)) = (self.store_of(all, read.chunk)?, &self.region) else {
            return Err(Error::invalid(format!(
                "locate chunk `{}`: it does not lie in mapped memory; read it instead",
                read.chunk
            )));
        };
        let raw = store.read_raw(read.chunk, read.generation, read.offset, read.bytes as u64)?;
        let Bytes::Region(slice) = &raw.bytes else {
            return Err(Error::bug("locate a chunk: the memory store answered from elsewhere"));
        };
        let pieces = pieces(region, slice);
        let located = msg::Located { pieces, crcs: raw.crcs };
        Ok(Answer::Now(located.to_bytes(), Parts::None))
    }

    /// An append to memory is received where it belongs.
    pub(crate) fn append_target(&self, meta: &[u8], body_bytes: u32) -> BodyTarget {
        let Ok(append) = decoded::<msg::Append>(meta, "append") else { return BodyTarget::Buffer };
        for own in self.node.stores.iter().filter(|own| own.tier == Tier::Dram) {
            match own.store.reserve_raw(append.chunk, append.at, body_bytes as usize) {
                Some(Ok(window)) => return BodyTarget::Region(window),
                Some(Err(e)) if e.kind != Kind::NotFound => return BodyTarget::Refuse(e),
                _ => {}
            }
        }
        BodyTarget::Buffer
    }

    pub(crate) fn append(&self, request: Request<'_>) {
        let Some((append, body, reply)) = request.decode_with_body::<msg::Append>("append") else {
            return;
        };
        let done: holdfast_chunk::Done<u64> = Box::new(move |length| {
            answer(reply, length.map(|length| (length.to_bytes(), Parts::None)));
        });
        let Body::Region(window) = body else {
            let body = body.into_vec();
            return self.node.append_raw(
                append.chunk,
                append.at,
                body,
                append.crcs,
                append.durability,
                done,
            );
        };
        // Other stores check what they copy; here the bytes are in place already.
        if msg::piece_crcs(append.at, &window) != append.crcs {
            return done(Err(Error::retry(format!(
                "append to chunk `{}` at {}: the bytes were damaged on their way; send them again",
                append.chunk, append.at
            ))));
        }
        let store = self.node.read_all(|all| match self.store_of(all, append.chunk)? {
            Some(store) => Ok(store.clone()),
            None => Err(lost(append.chunk, Tier::Dram)),
        });
        done(store.and_then(|store| store?.commit_raw(append.chunk, window, &append.crcs)));
    }

    pub(crate) fn offer_region(&self, batch: &mut Batch<'_>, i: usize) {
        let offer = self.region.as_ref().ok_or_else(|| {
            Error::invalid("map the region: this node has no memory store; read over the socket")
        });
        let offered = offer.and_then(|region| {
            let fd = region.client_fd()?;
            let region_bytes = region.frames() * FRAME_BYTES;
            let offer = msg::RegionOffer { store: region.store(), region_bytes };
            batch.reply_with_fd(i, |out| offer.encode(out), fd)
        });
        if let Err(e) = offered {
            batch.reply_error(i, &e);
        }
    }
}

fn check_bytes(bytes: u32) -> Result<()> {
    if bytes <= FRAME_BODY_BYTES_MAX {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "read {bytes} bytes: one request carries at most {FRAME_BODY_BYTES_MAX}; ask in parts"
    )))
}

/// A run of the region, frame by frame.
fn pieces(region: &Region, slice: &RegionSlice) -> Vec<msg::Piece> {
    let (mut offset, end) = (slice.region_offset(), slice.region_offset() + slice.len() as u64);
    let first = region.frame_offset(0);
    let mut pieces = Vec::new();
    while offset < end {
        let frame = (offset - first) / FRAME_BYTES;
        let bytes = (region.frame_offset(frame) + FRAME_BYTES).min(end) - offset;
        let frame_generation = region.frame_generation(frame);
        pieces.push(msg::Piece { offset, bytes: bytes as u32, frame_generation });
        offset += bytes;
    }
    pieces
}
