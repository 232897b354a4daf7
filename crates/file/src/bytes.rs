//! Requests that move bytes: of packed objects and of raw chunks. What lies in memory is answered
//! on the reactor thread, straight from the region; the rest by a thread that may wait.

use crate::service::{Answer, FileService, answer, request};
use crate::writes::decode_or_refuse;
use holdfast_base::checksum::{crc32c, crc32c_combine};
use holdfast_base::codec::Encode;
use holdfast_base::ids::{ChunkId, Durability, Tier};
use holdfast_base::limits::{BLOCK_BYTES, FRAME_BODY_BYTES_MAX};
use holdfast_base::{Error, Kind, Result};
use holdfast_chunk::{Bytes, NeedleRead, RawRead, Store};
use holdfast_client::wire::{chunk as msg, file};
use holdfast_cluster::{FileInfo, Location, Namespace};
use holdfast_env::net::{Batch, Body, BodyPart, BodyTarget, Parts, Reply, Response};
use holdfast_env::region::{FRAME_BYTES, Region, RegionSlice};
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

impl FileService {
    /// The store that holds a chunk, if it is one that answers from memory.
    pub(crate) fn store_of(&self, view: &Namespace, chunk: ChunkId) -> Result<Option<&Store>> {
        let Some(known) = view.chunk(chunk) else {
            return Err(Error::not_found(format!("read chunk `{chunk}`: it was deleted")));
        };
        if known.tier != Tier::Dram {
            return Ok(None);
        }
        match self.node.stores.holding(&known.replicas) {
            Some(store) => Ok(Some(store)),
            None => Err(self.lost(chunk, known.tier)),
        }
    }

    fn lost(&self, chunk: ChunkId, tier: Tier) -> Error {
        Error::not_found(format!(
            "read chunk `{chunk}`: {}",
            match tier {
                Tier::Dram =>
                    "it was in the memory of a process that has ended; class `dram` keeps nothing over a restart",
                Tier::Disk => "none of this node's stores holds it; is a directory missing?",
            }
        ))
    }

    /// Any store that holds a chunk, for threads that may wait.
    fn any_store_of(&self, chunk: ChunkId) -> Result<Store> {
        let known = self
            .node
            .namespace
            .read(|view, _| view.chunk(chunk).map(|known| (known.tier, known.replicas.clone())))?;
        let Some((tier, replicas)) = known else {
            return Err(Error::not_found(format!("read chunk `{chunk}`: it was deleted")));
        };
        self.node.stores.holding(&replicas).cloned().ok_or_else(|| self.lost(chunk, tier))
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

    pub(crate) fn get_from_disk(&self, meta: &[u8], reply: Reply) {
        let get: file::Get = decode_or_refuse!(meta, "get", reply);
        let node = self.node.clone();
        // The name is looked up again: between the two the file may have been replaced.
        let found = node.namespace.read(|view, _| {
            let info = crate::reads::find(view, &get.path, get.follow)?;
            Ok((info, crate::reads::wire_info(view, &info)))
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
        let store = match self.any_store_of(pointer.chunk) {
            Ok(store) => store,
            Err(e) => return reply.send(Response::error(e)),
        };
        self.node.workers.run(move || {
            let read = store.read_needle(pointer).map(|read| {
                let crc = info.crc.unwrap_or_else(|| combined(&read.crcs, read.bytes.len()));
                let content = file::Content::Body { crc };
                let meta = file::GetReply { info: wire_info, content }.to_bytes();
                (meta, parts(read.bytes))
            });
            answer(reply, read.map_err(|e| e.context(format_args!("get `{}`", get.path))));
        });
    }

    pub(crate) fn read_raw_now(&self, view: &Namespace, meta: &[u8]) -> Result<Answer> {
        let read: msg::Read = request(meta, "read")?;
        check_bytes(read.bytes)?;
        let Some(store) = self.store_of(view, read.chunk)? else { return Ok(Answer::Later) };
        let read = store.read_raw(read.chunk, read.generation, read.offset, read.bytes as u64)?;
        let (meta, parts) = read_reply(read);
        Ok(Answer::Now(meta, parts))
    }

    pub(crate) fn read_raw_from_disk(&self, meta: &[u8], reply: Reply) {
        let read: msg::Read = decode_or_refuse!(meta, "read", reply);
        match self.any_store_of(read.chunk) {
            Ok(store) => self.node.workers.run(move || {
                let raw =
                    store.read_raw(read.chunk, read.generation, read.offset, read.bytes as u64);
                answer(reply, raw.map(read_reply));
            }),
            Err(e) => reply.send(Response::error(e)),
        }
    }

    /// Part of a packed object, by its pointer, verified here.
    pub(crate) fn read_object(&self, meta: &[u8], reply: Reply) {
        let read: msg::ReadObject = decode_or_refuse!(meta, "read an object", reply);
        let store = check_bytes(read.bytes).and_then(|()| self.any_store_of(read.pointer.chunk));
        let store = match store {
            Ok(store) => store,
            Err(e) => return reply.send(Response::error(e)),
        };
        self.node.workers.run(move || {
            let wanted = read.offset..read.offset.saturating_add(read.bytes as u64);
            let part = store
                .read_needle_part(read.pointer, wanted)
                .map(|(bytes, crcs)| (msg::ReadReply { crcs }.to_bytes(), parts(bytes)));
            answer(reply, part);
        });
    }

    /// Where a raw chunk's bytes lie in the region, for a client that has it mapped.
    pub(crate) fn locate(&self, view: &Namespace, meta: &[u8]) -> Result<Answer> {
        let read: msg::Read = request(meta, "locate")?;
        let (Some(store), Some(region)) = (self.store_of(view, read.chunk)?, &self.region) else {
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
        let Ok(append) = request::<msg::Append>(meta, "append") else { return BodyTarget::Buffer };
        for own in self.node.stores.iter().filter(|own| own.tier == Tier::Dram) {
            match own.store.reserve_raw(append.chunk, append.at, body_bytes as usize) {
                Some(Ok(window)) => return BodyTarget::Region(window),
                Some(Err(e)) if e.kind != Kind::NotFound => return BodyTarget::Refuse(e),
                _ => {}
            }
        }
        BodyTarget::Buffer
    }

    pub(crate) fn append(&self, meta: &[u8], body: Body<'_>, reply: Reply) {
        let append: msg::Append = decode_or_refuse!(meta, "append", reply);
        let done: holdfast_chunk::Done<u64> = Box::new(move |length| {
            answer(reply, length.map(|length| (length.to_bytes(), Parts::None)));
        });
        let store = match self.any_store_of(append.chunk) {
            Ok(store) => store,
            Err(e) => return done(Err(e)),
        };
        match body {
            Body::Region(window) => {
                // Other stores check what they copy; here the bytes are in place already.
                if msg::piece_crcs(append.at, &window) != append.crcs {
                    return done(Err(Error::retry(format!(
                        "append to chunk `{}` at {}: the bytes were damaged on their way; send them again",
                        append.chunk, append.at
                    ))));
                }
                done(store.commit_raw(append.chunk, window, &append.crcs))
            }
            body => {
                let body = Box::new(body.into_vec());
                let durability: Durability = append.durability;
                store.append_raw(append.chunk, append.at, body, append.crcs, durability, done);
            }
        }
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
