//! Snapshot files, each a snapshot as [`blocks`]. Written aside, synced, read back from the device
//! and only then named; the last two are kept. Knows nothing of views. Format: docs/formats/log.md.

use super::SnapshotStore;
use super::blocks::{self, Blocks, Header};
use holdfast_base::ids::Index;
use holdfast_base::stream::{Source, Writer};
use holdfast_base::{Error, Kind, Result};
use holdfast_env::disk::{Access, create_dir_durable};
use holdfast_env::{Disk, File, planted};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const TEMPORARY: &str = "snapshot.tmp";
/// Snapshots that are kept; the log is trimmed up to the oldest of them.
pub const KEPT: usize = 2;

/// Part of a snapshot's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Of which snapshot.
    pub index: Index,
    /// Bytes of the whole file.
    pub bytes_total: u64,
    /// From the offset that was asked for on; empty at the end.
    pub bytes: Vec<u8>,
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

/// Removes what was left by a process that ended while it wrote a snapshot: for who writes none yet.
pub fn remove_left(store: &SnapshotStore) -> std::io::Result<()> {
    let left = store.directory.join(TEMPORARY);
    if store.disk.exists(&left)? { store.disk.remove(&left) } else { Ok(()) }
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

/// A snapshot that is being written aside. One that comes to nothing goes: it may be what the disk has
/// no room for.
pub struct Draft {
    file: Arc<dyn File>,
    path: PathBuf,
    disk: Arc<dyn Disk>,
    is_whole: bool,
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.is_whole && !planted!("log.failed-snapshot-stays") {
            // The error that matters is the first; a start removes it, too.
            let _ = self.disk.remove(&self.path);
        }
    }
}

impl Draft {
    pub fn create(store: &SnapshotStore) -> Result<Draft> {
        let path = store.directory.join(TEMPORARY);
        let make = || {
            remove_left(store)?;
            store.disk.create(&path, Access::Cached)
        };
        match make() {
            Ok(file) => Ok(Draft { file, path, disk: store.disk.clone(), is_whole: false }),
            Err(e) => Err(writing(&path, e.into())),
        }
    }

    /// Writes all of it, as a stream; nothing is durable yet.
    pub fn fill(
        &self,
        header: &Header,
        fill: impl FnOnce(&mut Writer<'_>) -> Result<()>,
    ) -> Result<()> {
        blocks::write(&*self.file, header, fill).map_err(|e| writing(&self.path, e))
    }

    /// Of the whole file.
    pub fn bytes(&self) -> Result<u64> {
        self.file.len().map_err(|e| writing(&self.path, e.into()))
    }

    /// Makes it durable, and verifies it as a boot would. [`publish`] gives it its name.
    pub fn finish(mut self) -> Result<Header> {
        self.file.sync("snapshot.data").map_err(|e| writing(&self.path, e.into()))?;
        let header = verify(&*self.disk, &self.path)?;
        self.is_whole = true;
        Ok(header)
    }
}

fn writing(path: &Path, e: Error) -> Error {
    e.context(format_args!("write snapshot `{}`", path.display()))
}

/// The newest snapshot whose every byte is good.
pub fn newest(store: &SnapshotStore) -> Result<Option<Index>> {
    let named = list(store)?.into_iter().rev();
    let mut good = named.filter(|index| verify(&*store.disk, &path(store, *index)).is_ok());
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
    let draft = Draft::create(store)?;
    let (mut at, mut part) = (0, bytes);
    loop {
        if part.is_empty() {
            return Err(Error::retry(format!("it ends at {at} of {bytes_total} bytes")));
        }
        draft.file.write_at(&part, at).map_err(|e| writing(&draft.path, e.into()))?;
        at += part.len() as u64;
        if at >= bytes_total {
            break;
        }
        part = fetch(Some(index), at)?.bytes;
    }
    if draft.finish()?.index != index {
        return Err(corrupt(&store.directory.join(TEMPORARY), "its header names another index"));
    }
    publish(store, index)?;
    Ok(index)
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
        match verify(&*store.disk, &path(store, index)) {
            Ok(_) => verified.push(index),
            // It counts for nothing, and stays for people to look at.
            Err(e) => damaged.push(e.message),
        }
    }
    Ok(((verified.len() == KEPT).then(|| verified[KEPT - 1]), damaged))
}

/// Has `restore` read the payload of a named snapshot, and believes what it made of it once
/// everything was read and is right.
pub fn read<T>(
    store: &SnapshotStore,
    index: Index,
    restore: impl FnOnce(&Header, &mut Source<'_>) -> Result<T>,
) -> Result<T> {
    let path = path(store, index);
    let file = open(&*store.disk, &path)?;
    let bytes = file.len().map_err(|e| reading(&path, e.into()))?;
    let mut blocks = Blocks::open(&*file).map_err(|e| reading(&path, e))?;
    let header = blocks.header.clone();
    if header.index != index {
        return Err(corrupt(&path, "its header names another index"));
    }
    let mut more = |out: &mut Vec<u8>| blocks.next(out).map_err(|e| reading(&path, e));
    let mut source = Source::new(bytes, &mut more);
    let restored = restore(&header, &mut source)?;
    source.finish().map_err(|e| reading(&path, e))?;
    Ok(restored)
}

/// Past the page cache: what is read is what the device holds.
fn open(disk: &dyn Disk, path: &Path) -> Result<Arc<dyn File>> {
    disk.open(path, Access::Direct).map_err(|e| reading(path, e.into()))
}

/// Verifies every byte of the file that will ever be read.
pub fn verify(disk: &dyn Disk, path: &Path) -> Result<Header> {
    let file = open(disk, path)?;
    Blocks::open(&*file).and_then(Blocks::verify).map_err(|e| reading(path, e))
}

fn reading(path: &Path, e: Error) -> Error {
    match e.kind {
        Kind::Corrupt => corrupt(path, &e.message),
        _ => e.context(format_args!("read snapshot `{}`", path.display())),
    }
}

fn corrupt(path: &Path, why: &str) -> Error {
    Error::corrupt(format!(
        "read snapshot `{}`: {why}: an older snapshot is used if there is one",
        path.display()
    ))
}
