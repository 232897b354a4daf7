//! The namespace as bytes: docs/formats/namespace.md. The same state has one form, whatever its
//! history: everything is in order of id, and what can be found again is left out. From bytes,
//! everything is checked before it is believed: damage, and what no build writes, is refused with
//! the reason and never panics.

use super::Namespace;
use crate::chunks::Chunks;
use crate::names::Names;
use holdfast_base::checksum::crc32c;
use holdfast_base::codec::{Decode, Encode, Reader};
use holdfast_base::{Error, Result};
use std::ops::RangeInclusive;

const MAGIC: [u8; 4] = *b"HFNV";
const VERSION: u8 = 2;
/// Its chunks want as many copies as they have replicas, and remember none that was dropped.
pub(crate) const VERSION_BEFORE_COPIES: u8 = 1;

/// A snapshot's version, and what is between it and the checksum, once both are right.
pub(crate) fn checked_body(
    bytes: &[u8],
    magic: [u8; 4],
    versions: RangeInclusive<u8>,
) -> Result<(u8, &[u8])> {
    let Some((body, crc)) = bytes.split_last_chunk::<4>().filter(|(body, _)| body.len() > 4) else {
        return Err(Error::corrupt("the snapshot is cut short: use an older one"));
    };
    if body[..4] != magic {
        return Err(Error::corrupt("these bytes are no snapshot of this view"));
    }
    if crc32c(body) != u32::from_le_bytes(*crc) {
        return Err(Error::corrupt("the snapshot fails its checksum: use an older one"));
    }
    if !versions.contains(&body[4]) {
        return Err(Error::unsupported(format!(
            "the snapshot has version {}, this build reads versions up to {}: use a newer build",
            body[4],
            versions.end()
        )));
    }
    Ok((body[4], &body[5..]))
}

pub(crate) fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::corrupt(what())) }
}

impl Namespace {
    /// Appends the state's one byte form.
    pub fn snapshot(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&MAGIC);
        out.push(VERSION);
        self.chunks.encode(out);
        self.names.encode(&self.chunks, out);
        self.names.encode_detached(out);
        self.chunks.encode_freed(out);
        crc32c(&out[start..]).encode(out);
    }

    /// The inverse of [`Namespace::snapshot`].
    pub fn restore(bytes: &[u8]) -> Result<Namespace> {
        checked_body(bytes, MAGIC, VERSION_BEFORE_COPIES..=VERSION)
            .and_then(|(version, body)| Namespace::restore_body(version, body))
            .map_err(|e| e.context("restore the namespace"))
    }

    fn restore_body(version: u8, body: &[u8]) -> Result<Namespace> {
        let reader = &mut Reader::new(body);
        let mut chunks = Chunks::decode(version, reader)?;
        let mut names = Names::hollow();
        names.decode(&mut chunks, reader)?;
        let detached = Vec::<u32>::decode(reader)?;
        chunks.decode_freed(reader)?;
        reader.clone().finish()?;
        names.restore_detached(detached)?;
        names.restore_tree()?;
        chunks.check_freed()?;
        names.take_chunks(&chunks)?;
        Ok(Namespace { names, chunks })
    }
}
