//! Objects' bytes. A read of an object of one needle is one read of its chunk's file: the view of
//! the chunks is in memory, and so is each chunk's table of slots.

use crate::model::{Object, ObjectExtent};
use crate::needle::Trailer;
use crate::service::{Answer, Blobs};
use holdfast_base::ids::Pointer;
use holdfast_base::{Error, Result};
use holdfast_chunk::{Bytes, NeedleRead};
use holdfast_cluster::BLOBS;
use holdfast_env::runtime;
use holdfast_node::Source;
use holdfast_node::replicas::{Answer as Answered, Wanted};
use std::ops::Range;
use std::sync::Arc;

/// Bytes of one read: what a slow client makes the node keep.
pub const READ_BYTES: u64 = 1 << 20;

impl Blobs {
    fn source(&self, pointer: Pointer) -> Result<Source> {
        let found = self.node.read_chunk(pointer.chunk, |view, _| {
            let known = view.get(pointer.chunk).filter(|known| known.owner == BLOBS);
            known.map(|known| self.node.source(known))
        })?;
        found.ok_or_else(|| Error::not_found(format!("read object `{pointer}`: there is none")))
    }

    /// Part of an extent. Waits for the disk where this node has the bytes.
    pub async fn read(&self, extent: &ObjectExtent, wanted: Range<u64>) -> Answer<Bytes> {
        let pointer = extent.pointer;
        match self.source(pointer)? {
            // The description behind the data is read along: one read.
            Source::Own(store) if wanted == (0..extent.bytes as u64) => {
                Ok(cut(store.read_needle(pointer)?.bytes, extent.bytes as usize))
            }
            Source::Own(store) => Ok(store.read_needle_part(pointer, wanted)?.0),
            Source::Replicas(replicas) => {
                let (offset, bytes) = (wanted.start, (wanted.end - wanted.start) as u32);
                let wanted = Wanted::Object { pointer, offset, bytes };
                let read = runtime::answer(|done: holdfast_chunk::Done<Answered>| {
                    self.node.replicator.read(&replicas, wanted, done);
                });
                match read.await {
                    Some(read) => Ok(read?.bytes),
                    None => Err(Error::retry("read a blob: the node is ending").into()),
                }
            }
        }
    }

    /// A needle by its pointer alone, with what it says of itself: one read, no look-up of names.
    pub fn read_pointer(&self, pointer: Pointer) -> Result<(Trailer, Bytes)> {
        self.source(pointer)?;
        let replicas = self.node.read_chunk(pointer.chunk, |view, _| {
            view.get(pointer.chunk).map(|known| known.replicas.clone()).unwrap_or_default()
        })?;
        let Some(store) = self.node.stores.holding(&replicas) else {
            return Err(Error::unsupported(format!(
                "read object `{pointer}`: this node has no copy of its chunk; read it by its key"
            )));
        };
        let NeedleRead { bytes, .. } = store.read_needle(pointer)?;
        let (trailer, data) = Trailer::of(bytes.as_slice())?;
        Ok((trailer, cut(bytes, data)))
    }

    /// Reads a range of an object's bytes, piece by piece.
    pub fn reader(self: &Arc<Self>, object: &Object, wanted: Range<u64>) -> ObjectReader {
        let mut pieces = Vec::new();
        let mut start = 0;
        for extent in &object.extents {
            let end = start + extent.bytes as u64;
            let (from, to) = (wanted.start.max(start), wanted.end.min(end));
            if from < to {
                pieces.push((*extent, from - start..to - start));
            }
            start = end;
        }
        pieces.reverse();
        ObjectReader { blobs: self.clone(), pieces }
    }
}

/// The first `len` bytes.
fn cut(bytes: Bytes, len: usize) -> Bytes {
    match bytes {
        Bytes::Owned { buf, range } => {
            let end = (range.start + len).min(range.end);
            Bytes::Owned { buf, range: range.start..end }
        }
        Bytes::Region(slice) => {
            let buf = slice[..len.min(slice.len())].to_vec();
            let range = 0..buf.len();
            Bytes::Owned { buf, range }
        }
    }
}

/// What is left to read of an object; the next piece is the last one.
pub struct ObjectReader {
    blobs: Arc<Blobs>,
    pieces: Vec<(ObjectExtent, Range<u64>)>,
}

impl ObjectReader {
    /// The next bytes; `None` at the end.
    pub async fn next(&mut self) -> Option<Answer<Bytes>> {
        let (extent, wanted) = self.pieces.pop()?;
        let end = wanted.end.min(wanted.start + READ_BYTES);
        if end < wanted.end {
            self.pieces.push((extent, end..wanted.end));
        }
        Some(self.blobs.read(&extent, wanted.start..end).await)
    }
}
