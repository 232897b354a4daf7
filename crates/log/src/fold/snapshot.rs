//! Snapshot files: a header sector that says of what and up to where, then blocks with their own
//! checksums. Written aside, synced, read back from the device and only then named; the last two
//! are kept. Knows nothing of views. Format: docs/formats/log.md.

use super::SnapshotStore;
use crate::segment::Window;
use holdfast_base::checksum::{crc32c, stamp};
use holdfast_base::ids::{ChunkId, Generation, Index};
use holdfast_base::limits::SECTOR_BYTES;
use holdfast_base::{Error, Result};
use holdfast_env::buf::AlignedBuf;
use holdfast_env::disk::{Access, create_dir_durable};
use holdfast_env::{Disk, File};
use std::path::{Path, PathBuf};

pub const MAGIC: [u8; 4] = *b"HFSS";
pub const VERSION: u16 = 1;
/// A block on disk: length, checksum, payload. A multiple of the sector, so that every block can
/// be read past the page cache.
pub const BLOCK_BYTES: usize = 64 << 10;
const BLOCK_HEADER_BYTES: usize = 8;
const BLOCK_PAYLOAD_BYTES: usize = BLOCK_BYTES - BLOCK_HEADER_BYTES;
/// The largest payload that a header may announce; more is a damaged header.
const PAYLOAD_BYTES_MAX: u64 = 64 << 30;
const NAMES_AT: usize = 56;
const NAME_BYTES_MAX: usize = 255;
const TEMPORARY: &str = "snapshot.tmp";
/// Snapshots that are kept; the log is trimmed up to the oldest of them.
pub const KEPT: usize = 2;

const _: () = {
    assert!(BLOCK_BYTES.is_multiple_of(SECTOR_BYTES));
    assert!(NAMES_AT + NAME_BYTES_MAX + crate::topic::TOPIC_BYTES_MAX <= SECTOR_BYTES - 4);
};

/// Part of a snapshot's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Of which snapshot.
    pub index: Index,
    /// Bytes of the whole file.
    pub bytes_total: u64,
    pub bytes: Vec<u8>,
}

/// What a snapshot is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    pub view: String,
    pub view_version: u32,
    pub topic: String,
    /// The last entry that it contains, that entry's CRC32C, and the digest after it.
    pub index: Index,
    pub entry_crc: u32,
    pub digest: u64,
    pub payload_bytes: u64,
    pub payload_crc: u32,
}

impl Header {
    fn encode(&self, sector: &mut [u8]) {
        sector.fill(0);
        let mut out = Vec::with_capacity(SECTOR_BYTES);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&self.index.0.to_le_bytes());
        out.extend_from_slice(&self.digest.to_le_bytes());
        out.extend_from_slice(&self.payload_bytes.to_le_bytes());
        out.extend_from_slice(&self.payload_crc.to_le_bytes());
        out.extend_from_slice(&self.entry_crc.to_le_bytes());
        out.extend_from_slice(&self.view_version.to_le_bytes());
        out.extend_from_slice(&(self.view.len() as u16).to_le_bytes());
        out.extend_from_slice(&(self.topic.len() as u16).to_le_bytes());
        out.resize(NAMES_AT, 0);
        out.extend_from_slice(self.view.as_bytes());
        out.extend_from_slice(self.topic.as_bytes());
        sector[..out.len()].copy_from_slice(&out);
        let crc = crc32c(&sector[..SECTOR_BYTES - 4]);
        sector[SECTOR_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
    }

    fn decode(sector: &[u8]) -> std::result::Result<Header, String> {
        use holdfast_base::codec::{Decode, Reader};
        let (body, crc) = sector.split_at(SECTOR_BYTES - 4);
        if body[..4] != MAGIC {
            return Err("it is no snapshot".into());
        }
        if crc32c(body).to_le_bytes() != *crc {
            return Err("its header fails its checksum".into());
        }
        let mut reader = Reader::new(&body[4..NAMES_AT]);
        let mut fields = || -> std::result::Result<_, holdfast_base::codec::DecodeError> {
            let version = u16::decode(&mut reader)?;
            u16::decode(&mut reader)?;
            let numbers = (
                u64::decode(&mut reader)?,
                u64::decode(&mut reader)?,
                u64::decode(&mut reader)?,
                u32::decode(&mut reader)?,
                u32::decode(&mut reader)?,
                u32::decode(&mut reader)?,
            );
            let lengths = (u16::decode(&mut reader)? as usize, u16::decode(&mut reader)? as usize);
            Ok((version, numbers, lengths))
        };
        let (version, numbers, (view_bytes, topic_bytes)) = fields().map_err(|e| e.to_string())?;
        if version != VERSION {
            return Err(format!("it has version {version}, this build reads {VERSION}"));
        }
        let name = |at: usize, len: usize| {
            let bytes = body.get(at..at + len).ok_or("its names are too long")?;
            std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| "its names are no text")
        };
        let (index, digest, payload_bytes, payload_crc, entry_crc, view_version) = numbers;
        if payload_bytes > PAYLOAD_BYTES_MAX {
            return Err(format!("it announces {payload_bytes} bytes"));
        }
        Ok(Header {
            view: name(NAMES_AT, view_bytes)?,
            view_version,
            topic: name(NAMES_AT + view_bytes, topic_bytes)?,
            index: Index(index),
            entry_crc,
            digest,
            payload_bytes,
            payload_crc,
        })
    }
}

/// A block's checksum binds it to its snapshot and its place in it.
fn block_crc(index: Index, block: u64, payload: &[u8]) -> u32 {
    crc32c(payload) ^ stamp(ChunkId(index.0), Generation(payload.len() as u32), block)
}

fn file_name(index: Index) -> String {
    format!("snapshot-{:020}.hfs", index.0)
}

/// Makes the store's directory, durably: a snapshot whose directory a power cut can take would
/// not cover what is trimmed for its sake.
pub fn prepare(store: &SnapshotStore) -> Result<()> {
    let making = |e: std::io::Error| {
        Error::from(e)
            .context(format_args!("make snapshot directory `{}`", store.directory.display()))
    };
    // The directory above is made here, too: one for the snapshots of all folds.
    let site = "snapshot.directory";
    create_dir_durable(&*store.disk, &store.directory, 2, site).map_err(making)
}

/// Indices of the snapshots that have a name, ascending.
pub fn list(store: &SnapshotStore) -> Result<Vec<Index>> {
    let listing = |e: std::io::Error| {
        Error::from(e).context(format_args!("list snapshots `{}`", store.directory.display()))
    };
    let names = store.disk.list(&store.directory).map_err(listing)?;
    let index = |name: &str| {
        let digits = name.strip_prefix("snapshot-")?.strip_suffix(".hfs")?;
        (digits.len() == 20).then(|| digits.parse().ok().map(Index))?
    };
    Ok(names.iter().filter_map(|e| index(&e.name)).collect())
}

pub fn path(store: &SnapshotStore, index: Index) -> PathBuf {
    store.directory.join(file_name(index))
}

/// Writes a snapshot aside, durably, and reads it back. [`publish`] gives it its name.
pub fn write(store: &SnapshotStore, header: &Header, payload: &[u8]) -> Result<()> {
    let back = write_aside(store, |file| Ok(write_blocks(file, header, payload)?))?;
    if back != *header {
        return Err(corrupt(
            &store.directory.join(TEMPORARY),
            "reading it back gave another header",
        ));
    }
    Ok(())
}

/// Has `fill` write the temporary file, makes it durable, and verifies it as a boot would.
fn write_aside(
    store: &SnapshotStore,
    fill: impl FnOnce(&dyn File) -> Result<()>,
) -> Result<Header> {
    let path = store.directory.join(TEMPORARY);
    let writing = |e: std::io::Error| {
        Error::from(e).context(format_args!("write snapshot `{}`", path.display()))
    };
    if store.disk.exists(&path).map_err(writing)? {
        store.disk.remove(&path).map_err(writing)?;
    }
    let file = store.disk.create(&path, Access::Cached).map_err(writing)?;
    fill(&*file).map_err(|e| e.context(format_args!("write snapshot `{}`", path.display())))?;
    file.sync("snapshot.data").map_err(writing)?;
    Ok(read_file(&*store.disk, &path, false)?.0)
}

/// The newest snapshot whose every byte is good.
pub fn newest(store: &SnapshotStore) -> Result<Option<Index>> {
    let named = list(store)?.into_iter().rev();
    let mut good =
        named.filter(|index| read_file(&*store.disk, &path(store, *index), false).is_ok());
    Ok(good.next())
}

/// Part of a named snapshot's file, for another node.
pub fn part(store: &SnapshotStore, index: Index, offset: u64, bytes: u32) -> Result<Part> {
    let path = path(store, index);
    let reading = |e: std::io::Error| {
        Error::from(e).context(format_args!("read snapshot `{}`", path.display()))
    };
    let file = store.disk.open(&path, Access::Cached).map_err(reading)?;
    let bytes_total = file.len().map_err(reading)?;
    let mut part = vec![0; bytes_total.saturating_sub(offset).min(bytes as u64) as usize];
    file.read_exact_at(&mut part, offset).map_err(reading)?;
    Ok(Part { index, bytes_total, bytes: part })
}

/// Takes over another node's snapshot, which `fetch` gets in parts: those of an index (none: of the
/// newest) from an offset on. It counts once every byte was verified as a boot would.
pub fn install(
    store: &SnapshotStore,
    mut fetch: impl FnMut(Option<Index>, u64) -> Result<Part>,
) -> Result<Index> {
    prepare(store)?;
    let Part { index, bytes_total, bytes } = fetch(None, 0)?;
    let header = write_aside(store, |file| {
        let (mut at, mut part) = (0, bytes);
        loop {
            if part.is_empty() {
                return Err(Error::retry(format!("it ends at {at} of {bytes_total} bytes")));
            }
            file.write_at(&part, at)?;
            at += part.len() as u64;
            if at >= bytes_total {
                return Ok(());
            }
            part = fetch(Some(index), at)?.bytes;
        }
    })?;
    if header.index != index {
        return Err(corrupt(&store.directory.join(TEMPORARY), "its header names another index"));
    }
    publish(store, index)?;
    Ok(index)
}

fn write_blocks(file: &dyn File, header: &Header, payload: &[u8]) -> std::io::Result<()> {
    let mut sector = AlignedBuf::zeroed(SECTOR_BYTES);
    header.encode(&mut sector);
    file.write_at(&sector, 0)?;
    let mut block = AlignedBuf::zeroed(BLOCK_BYTES);
    for (number, part) in (0u64..).zip(payload.chunks(BLOCK_PAYLOAD_BYTES)) {
        block[..4].copy_from_slice(&(part.len() as u32).to_le_bytes());
        let crc = block_crc(header.index, number, part);
        block[4..BLOCK_HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
        block[BLOCK_HEADER_BYTES..][..part.len()].copy_from_slice(part);
        block[BLOCK_HEADER_BYTES + part.len()..].fill(0);
        let len = (BLOCK_HEADER_BYTES + part.len()).next_multiple_of(SECTOR_BYTES);
        file.write_at(&block[..len], SECTOR_BYTES as u64 + number * BLOCK_BYTES as u64)?;
    }
    Ok(())
}

/// Gives the written snapshot its name, durably, and removes all but the last [`KEPT`]. Returns
/// the oldest that is left, once there are that many, and which are damaged.
pub fn publish(store: &SnapshotStore, index: Index) -> Result<(Option<Index>, Vec<String>)> {
    let naming = |e: std::io::Error| {
        Error::from(e).context(format_args!("name snapshot `{}`", file_name(index)))
    };
    let to = path(store, index);
    store.disk.rename(&store.directory.join(TEMPORARY), &to).map_err(naming)?;
    store.disk.sync_dir(&store.directory, "snapshot.name").map_err(naming)?;
    let (mut verified, mut damaged) = (Vec::new(), Vec::new());
    for index in list(store)?.into_iter().rev() {
        if verified.len() == KEPT {
            store.disk.remove(&path(store, index)).map_err(naming)?;
            continue;
        }
        match read_file(&*store.disk, &path(store, index), false) {
            Ok(_) => verified.push(index),
            // It counts for nothing, and stays for people to look at.
            Err(e) => damaged.push(e.message),
        }
    }
    Ok(((verified.len() == KEPT).then(|| verified[KEPT - 1]), damaged))
}

/// Header and payload of a named snapshot, verified.
pub fn read(store: &SnapshotStore, index: Index) -> Result<(Header, Vec<u8>)> {
    let path = path(store, index);
    let (header, payload) = read_file(&*store.disk, &path, true)?;
    if header.index != index {
        return Err(corrupt(&path, "its header names another index"));
    }
    Ok((header, payload))
}

/// Verifies every byte of the file that will ever be read; keeps the payload if asked.
fn read_file(disk: &dyn Disk, path: &Path, keep: bool) -> Result<(Header, Vec<u8>)> {
    let reading = |e: std::io::Error| {
        Error::from(e).context(format_args!("read snapshot `{}`", path.display()))
    };
    // Past the page cache: what is verified is what the device holds.
    let file = disk.open(path, Access::Direct).map_err(reading)?;
    let mut window = Window::new(&*file, BLOCK_BYTES);
    let sector = window.get(0, SECTOR_BYTES).map_err(reading)?;
    let header = Header::decode(sector).map_err(|why| corrupt(path, &why))?;
    let mut payload = Vec::new();
    let (mut left, mut crc, mut block) = (header.payload_bytes, 0, 0u64);
    while left > 0 {
        let len = left.min(BLOCK_PAYLOAD_BYTES as u64) as usize;
        let at = SECTOR_BYTES as u64 + block * BLOCK_BYTES as u64;
        let bytes = window.get(at, BLOCK_HEADER_BYTES + len).map_err(reading)?;
        let (head, part) = bytes.split_at(BLOCK_HEADER_BYTES);
        let expected = block_crc(header.index, block, part);
        if head[..4] != (len as u32).to_le_bytes() || head[4..] != expected.to_le_bytes() {
            return Err(corrupt(path, &format!("block {block} fails its checksum")));
        }
        crc = holdfast_base::checksum::crc32c_combine(crc, crc32c(part), len as u64);
        if keep {
            payload.extend_from_slice(part);
        }
        left -= len as u64;
        block += 1;
    }
    if crc != header.payload_crc {
        return Err(corrupt(path, "its payload is not the one that its header describes"));
    }
    Ok((header, payload))
}

fn corrupt(path: &Path, why: &str) -> Error {
    Error::corrupt(format!(
        "read snapshot `{}`: {why}: an older snapshot is used if there is one",
        path.display()
    ))
}
