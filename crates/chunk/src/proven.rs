//! The closing mark: up to where the chunks that were open are known to have been acknowledged, in
//! one small file of a store. Written when a store ends in order and when a start has made durable
//! what it found; read at the next start, where an invalid place below it is damage and not a torn
//! tail. Each line of it stays true for as long as the file with that nonce is there, so an old
//! mark says less, and never anything wrong.

use crate::disk::{DiskStore, Version};
use crate::format::{HeaderError, PROVEN_MAGIC, PROVEN_VERSION, get_u32};
use crate::names;
use crate::open::Open;
use holdfast_base::checksum::crc32c;
use holdfast_base::codec::{Decode, Encode, Reader};
use holdfast_base::codec_struct;
use holdfast_base::ids::{ChunkId, StoreId};
use holdfast_base::units::MIB;
use holdfast_env::disk::{ReplaceSites, read_file, replace_file};
use holdfast_env::planted;
use holdfast_env::{Disk, HoldRwLock};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// A longer one is none of ours: 48 bytes for each open chunk are a million of them.
const FILE_BYTES_MAX: u64 = 64 * MIB;
const SITES: ReplaceSites = ReplaceSites { data: "closing.mark-data", name: "closing.mark-name" };

/// What is known of one open chunk's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proven {
    pub chunk: ChunkId,
    /// The file's: another file of the same chunk has nothing to do with it.
    pub nonce: u64,
    /// Commits up to this one were durable.
    pub sequence: u64,
    /// Where they end.
    pub data_end: u64,
    /// Bytes (raw) or slots (packed) in them.
    pub in_file: u64,
    /// Bytes or slots that were acknowledged; those beyond `in_file` are in the journal.
    pub length: u64,
}
codec_struct!(Proven { chunk, nonce, sequence, data_end, in_file, length });

/// What is known of every open chunk of a store.
pub type Mark = BTreeMap<ChunkId, Proven>;

pub fn encode(store: StoreId, mark: &Mark) -> Vec<u8> {
    let mut out = PROVEN_MAGIC.to_vec();
    PROVEN_VERSION.encode(&mut out);
    0u16.encode(&mut out);
    (mark.len() as u32).encode(&mut out);
    store.encode(&mut out);
    mark.values().for_each(|proven| proven.encode(&mut out));
    let crc = crc32c(&out);
    crc.encode(&mut out);
    out
}

pub fn decode(store: StoreId, bytes: &[u8]) -> Result<Mark, HeaderError> {
    if bytes.len() < PROVEN_MAGIC.len() + 2 || bytes[..8] != PROVEN_MAGIC {
        return Err(HeaderError::NotAChunk);
    }
    let version = u16::from_le_bytes([bytes[8], bytes[9]]);
    if version != PROVEN_VERSION {
        return Err(HeaderError::Version(version));
    }
    let body = &bytes[..bytes.len() - 4];
    if get_u32(bytes, body.len()) != crc32c(body) {
        return Err(HeaderError::Checksum);
    }
    let mut reader = Reader::new(body.get(12..).ok_or(HeaderError::NotAChunk)?);
    let read = |reader: &mut Reader<'_>| {
        let count = u32::decode(reader)?;
        let id = StoreId::decode(reader)?;
        let lines: Result<Vec<Proven>, _> = (0..count).map(|_| Proven::decode(reader)).collect();
        Ok::<_, holdfast_base::codec::DecodeError>((id, lines?))
    };
    match read(&mut reader) {
        Ok((id, lines)) if id == store && reader.finish().is_ok() => {
            Ok(lines.into_iter().map(|proven| (proven.chunk, proven)).collect())
        }
        _ => Err(HeaderError::NotAChunk),
    }
}

/// The mark of a directory, or why what stands there says nothing. A start goes on without it: then
/// it knows as much as after a crash.
pub fn read(disk: &dyn Disk, dir: &Path, store: StoreId) -> io::Result<Result<Mark, String>> {
    let path = dir.join(names::PROVEN);
    if !disk.exists(&path)? {
        return Ok(Ok(Mark::new()));
    }
    let bytes = match read_file(disk, &path, FILE_BYTES_MAX) {
        Ok(bytes) => bytes,
        Err(e) => return Ok(Err(format!("`{}`: the disk did not give it: {e}", path.display()))),
    };
    Ok(decode(store, &bytes).map_err(|e| {
        let what = match e {
            HeaderError::NotAChunk => "it is no closing mark of this store".to_owned(),
            HeaderError::Version(version) => format!("its format is version {version}"),
            HeaderError::Checksum => "it fails its checksum".to_owned(),
        };
        format!(
            "`{}`: {what}; whether an invalid end of an open chunk was acknowledged cannot be told",
            path.display()
        )
    }))
}

/// Durable; nothing where nothing is open.
pub fn write(disk: &dyn Disk, dir: &Path, store: StoreId, mark: &Mark) -> io::Result<()> {
    let path = dir.join(names::PROVEN);
    if !mark.is_empty() {
        return replace_file(disk, &path, &encode(store, mark), SITES);
    }
    // Not synced: if it comes back, what it says is true and of no use.
    if disk.exists(&path)? { disk.remove(&path) } else { Ok(()) }
}

/// What is known of a chunk all of whose commits are durable.
pub fn of(open: &Open) -> Option<Proven> {
    let core = open.core();
    let ends = core.gone || core.sealed.is_some() || core.in_flight;
    assert!(core.index.length() <= core.length(), "what is in the file was acknowledged");
    (!ends && !core.torn).then(|| Proven {
        chunk: open.header.chunk,
        nonce: open.header.nonce,
        sequence: core.next_sequence - 1,
        data_end: core.data_end,
        in_file: core.index.length(),
        length: core.length(),
    })
}

/// Ends a store in order: makes durable what was only written, then says so. Called when nobody
/// commits any more. A failure leaves the mark as it was, which is true.
pub fn close(store: &DiskStore) {
    if store.writable().is_err() || planted!("chunk.no-closing-mark") {
        return;
    }
    let open: Vec<Arc<Open>> = {
        let chunks = store.chunks.held_shared();
        let open = |version: &Version| match version {
            Version::Open(open) => Some(open.clone()),
            Version::Sealed(_) => None,
        };
        chunks.values().filter_map(|held| open(&held.current)).collect()
    };
    let mut mark = Mark::new();
    for open in open {
        let unsynced = {
            let core = open.core();
            core.synced + 1 < core.next_sequence
        };
        if unsynced && open.writer.sync("closing.commits").is_err() {
            continue;
        }
        mark.extend(of(&open).map(|proven| (proven.chunk, proven)));
    }
    // Nobody is left to be told; the next start finds what there is.
    let _ = write(&*store.disk, &store.dir, store.id, &mark);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_comes_back_and_any_changed_byte_makes_it_none() {
        let line = |i: u64| Proven {
            chunk: ChunkId(i),
            nonce: i ^ 77,
            sequence: i + 1,
            data_end: 4096 * i,
            in_file: 10 * i,
            length: 11 * i,
        };
        for count in [0, 1, 5] {
            let mark: Mark = (1..=count).map(|i| (ChunkId(i), line(i))).collect();
            let bytes = encode(StoreId(9), &mark);
            assert_eq!(bytes.len() as u64, 28 + 48 * count);
            assert_eq!(decode(StoreId(9), &bytes), Ok(mark));
            assert!(decode(StoreId(8), &bytes).is_err(), "another store's");
            for at in 0..bytes.len() {
                let mut flipped = bytes.clone();
                flipped[at] ^= 1;
                assert!(decode(StoreId(9), &flipped).is_err(), "byte {at}");
                assert!(decode(StoreId(9), &bytes[..at]).is_err(), "cut at {at}");
            }
        }
    }

    #[test]
    fn a_mark_of_another_version_says_so_as_soon_as_that_is_there() {
        let mut bytes = encode(StoreId(9), &Mark::new());
        bytes[8..10].copy_from_slice(&999u16.to_le_bytes());
        for len in 0..bytes.len() {
            let expected =
                if len < 10 { HeaderError::NotAChunk } else { HeaderError::Version(999) };
            assert_eq!(decode(StoreId(9), &bytes[..len]), Err(expected), "{len} bytes");
        }
    }
}
