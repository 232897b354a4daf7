//! Names made again from what the stores hold, for a node whose log and snapshots are lost: small
//! files from the paths that their needles carry, large ones from their chunks' owner and path.
//! The node is a fresh one over copies of the stores; nothing is ever removed from the originals.
//! Which of several versions is the newest, what was renamed and what was deleted, nobody knows.
//! Chunks of other shards are theirs again: what is in them is named there, in a directory that then
//! moves to shard 0 as any does; chunks stay.

use super::Node;
use holdfast_base::checksum::crc32c_combine;
use holdfast_base::ids::{ChunkId, Durability, FileId, Pointer, Slot, StoreId};
use holdfast_base::limits::{BLOCK_BYTES, LIST_PAGE_MAX};
use holdfast_base::{Error, Kind, Result, path};
use holdfast_chunk::{ChunkInfo, NEEDLE_HINT_BYTES_MAX, NeedleRead, ReplicaState, Store};
use holdfast_cluster::command::BLOBS;
use holdfast_cluster::moves::unfinished;
use holdfast_cluster::{
    ChunkKind, Command, Location, NodeKind, Outcome, RawExtent, Remainder, SHARDS_MAX,
};
use holdfast_env::planted;
use holdfast_wire::Call;
use std::collections::BTreeMap;

/// Chunks that one shard may have drawn: each took an entry.
const DRAWN_MAX: u64 = 1 << 40;
/// Where everything goes that has no path of its own.
const RECOVERED: &str = "/recovered";
/// A longer hint may have been cut, at the next character before its end.
const HINT_WHOLE_MAX: usize = NEEDLE_HINT_BYTES_MAX - 4;

/// What was found, and what came of it.
#[derive(Clone, Debug, Default)]
pub struct RebuiltNames {
    /// At the path that they were written to.
    pub files: u64,
    /// Under `/recovered`: earlier versions, and those whose path is lost, cut, or another's.
    pub elsewhere: u64,
    /// Chunks of blobs, whose names their face makes again.
    pub blob_chunks: u64,
    /// What could not be read or named, a sentence each.
    pub refused: Vec<String>,
}

/// One version of a small file.
#[derive(Clone, Copy)]
struct Version {
    pointer: Pointer,
    size: u64,
    crc: u32,
}

/// A large file: as it is begun here, and what it consists of.
struct Large {
    file: FileId,
    path: Option<String>,
    extents: Vec<RawExtent>,
}

#[derive(Default)]
struct Found {
    /// By path, in the order of chunk and slot; the last one is taken for the newest.
    small: BTreeMap<String, Vec<Version>>,
    /// Without a path that can be one.
    nameless: Vec<Version>,
    /// By the number that it had.
    large: BTreeMap<u64, Large>,
    /// The packed ends of large files, by their number; of several, the last.
    ends: BTreeMap<u64, Version>,
}

impl Node {
    /// Makes every sealed chunk of this node's stores known, and names what is in it. The namespace
    /// must be empty.
    pub fn rebuild_names(&self) -> Result<RebuiltNames> {
        if !self.gather_chunks(|view| view.iter().next().map(|known| known.id))?.is_empty() {
            return Err(Error::invalid("make names again: this node knows chunks already"));
        }
        let mut rebuilt = RebuiltNames::default();
        let mut found = Found::default();
        let mut held: Vec<(ChunkInfo, StoreId, Store)> = Vec::new();
        for own in self.stores.iter() {
            held.extend(own.store.list().into_iter().map(|i| (i, own.id, own.store.clone())));
        }
        // Ids are adopted in their order. Of a chunk that two stores hold, one is enough.
        held.sort_by_key(|(info, store, _)| (info.chunk, info.damaged, *store));
        held.dedup_by_key(|(info, ..)| info.chunk);
        held.retain(|(info, ..)| match check_id(info.chunk) {
            Ok(()) => true,
            Err(e) => {
                rebuilt.refused.push(format!("chunk `{}`: {e}", info.chunk));
                planted!("node.one-bad-id-ends-a-rebuild")
            }
        });
        // Ids begin with their shard's number.
        let last = held.last().map_or(0, |(info, ..)| info.chunk.shard());
        self.add_homes(last)?;
        for (info, id, store) in held {
            if let Err(e) = self.adopt(info, id, &store, &mut found, &mut rebuilt) {
                rebuilt.refused.push(format!("chunk `{}`: {e}", info.chunk));
            }
        }
        self.make_dir(RECOVERED, Durability::Durable)?;
        self.name_large(&mut found, &mut rebuilt);
        self.name_small(found, &mut rebuilt);
        for shard in 1..=last {
            if let Err(e) = self.bring_home(shard, &mut rebuilt) {
                let home = home_of(shard);
                rebuilt.refused.push(format!("files of shard {shard} are below `{home}`: {e}"));
            }
        }
        Ok(rebuilt)
    }

    /// The shards up to this one, each with a directory for what is in its chunks.
    fn add_homes(&self, last: u16) -> Result<()> {
        for shard in 1..=last {
            self.propose_to(0, &Command::AddShard { shard })?;
        }
        self.open_shards();
        for shard in 1..=last {
            let dir = home_of(shard);
            self.make_dir(&dir, Durability::Memory)?;
            self.propose_to(0, &Command::Forward { dir, to: shard })?;
        }
        self.finish_moves()
    }

    fn propose_to(&self, shard: u16, command: &Command) -> Result<()> {
        let asked = |done| {
            self.propose_in(shard, Call::default(), command, Durability::Durable, done);
        };
        self.wait_for::<Outcome>(asked).map(drop)
    }

    /// As who leads does; nobody else is here.
    fn finish_moves(&self) -> Result<()> {
        loop {
            let left = self.read_all(unfinished)?;
            if left.is_empty() {
                return Ok(());
            }
            left.iter().try_for_each(|step| self.propose_to(step.shard, &step.command))?;
        }
    }

    /// Gives the names of a shard's chunks to shard 0, and then those in its directory their places.
    fn bring_home(&self, shard: u16, rebuilt: &mut RebuiltNames) -> Result<()> {
        let dir = home_of(shard);
        self.propose_to(shard, &Command::Freeze { dir: dir.clone(), to: 0 })?;
        self.finish_moves()?;
        self.merge(&dir, "", rebuilt)
    }

    /// Puts what is in a directory of shard 0 into another one, and ends it. What is in the way stays.
    fn merge(&self, from: &str, to: &str, rebuilt: &mut RebuiltNames) -> Result<()> {
        loop {
            let page = self.read_all(|all| all.list(from, None, LIST_PAGE_MAX))??;
            for name in page.entries.iter().map(|entry| &entry.name) {
                let (from, to) = (format!("{from}/{name}"), format!("{to}/{name}"));
                let is_dir = |path: &str| {
                    let found = self.read_all(|all| all.lookup(path))?;
                    Ok::<_, Error>(found?.map(|info| info.kind.is_container()))
                };
                match (is_dir(&from)?, is_dir(&to)?) {
                    (Some(true), Some(true)) => self.merge(&from, &to, rebuilt)?,
                    (_, None) => self.rename(&from, to)?,
                    // Something else has the name.
                    (is_dir, Some(_)) => {
                        let aside = format!("{RECOVERED}/other{to}");
                        if let Some((above, _)) = path::split(&aside) {
                            self.make_dir(above, Durability::Memory)?;
                        }
                        self.rename(&from, aside)?;
                        if is_dir == Some(false) {
                            rebuilt.files -= 1;
                            rebuilt.elsewhere += 1;
                        }
                    }
                }
            }
            if !page.more {
                break;
            }
        }
        let delete = Command::Delete { path: from.to_owned(), recursive: false };
        self.propose_and_wait(delete, Durability::Memory).map(drop)
    }

    fn rename(&self, from: &str, to: String) -> Result<()> {
        let rename = Command::Rename { from: from.to_owned(), to, replace: false };
        self.propose_and_wait(rename, Durability::Memory).map(drop)
    }

    fn make_dir(&self, path: &str, durability: Durability) -> Result<()> {
        let (path, kind, mode, mtime) =
            (path.to_owned(), NodeKind::Directory, 0o755, self.now_ns());
        let make = Command::MakeDir { path, kind, mode, mtime, class: None, parents: true };
        self.propose_and_wait(make, durability).map(drop)
    }

    fn now_ns(&self) -> i64 {
        self.machine.clock.unix_ms() as i64 * 1_000_000
    }

    /// Makes one chunk known and takes note of what is in it.
    fn adopt(
        &self,
        info: ChunkInfo,
        id: StoreId,
        store: &Store,
        found: &mut Found,
        rebuilt: &mut RebuiltNames,
    ) -> Result<()> {
        let chunk = info.chunk;
        if info.length == 0 {
            // In the copy: it would be reported as unknown for ever.
            return store.unlink(chunk, info.generation);
        }
        if info.state != ReplicaState::Sealed {
            store.seal(chunk, info.length)?;
        }
        let (kind, owner) = match info.kind {
            holdfast_chunk::ChunkKind::Raw => (ChunkKind::Raw, self.owner_of(&info, store, found)?),
            holdfast_chunk::ChunkKind::Packed => {
                (ChunkKind::Packed, look_at(&info, store, found, rebuilt))
            }
        };
        rebuilt.blob_chunks += (owner == BLOBS) as u64;
        let tier = holdfast_base::ids::Tier::Disk;
        let (node, generation, length) = (self.id, info.generation, info.length);
        let replicas = vec![id];
        let adopt =
            Command::AdoptChunk { chunk, kind, owner, node, generation, length, replicas, tier };
        self.propose_and_wait(adopt, Durability::Memory)?;
        if kind == ChunkKind::Raw
            && let Some(large) = found.large.get_mut(&info.owner)
        {
            large.extents.push(RawExtent { chunk, length });
        }
        Ok(())
    }

    /// The file, begun here, that a raw chunk belongs to.
    fn owner_of(&self, info: &ChunkInfo, store: &Store, found: &mut Found) -> Result<FileId> {
        if let Some(large) = found.large.get(&info.owner) {
            return Ok(large.file);
        }
        let hint = store.hint(info.chunk)?;
        let path = String::from_utf8(hint)
            .ok()
            .filter(|path| path.len() <= HINT_WHOLE_MAX && path::check(path).is_ok());
        let begun = path.clone().unwrap_or_else(|| recovered_file(info.owner));
        let begun = format!("{}{begun}", home_of(info.chunk.shard()));
        let (class, mode, mtime) = (None, 0o644, self.now_ns());
        let begin = Command::Begin { path: begun, class, mode, mtime };
        let Outcome::File { file } = self.propose_and_wait(begin, Durability::Memory)? else {
            return Err(Error::bug("begin a file: the view answered something else"));
        };
        found.large.insert(info.owner, Large { file, path, extents: Vec::new() });
        Ok(file)
    }

    fn name_large(&self, found: &mut Found, rebuilt: &mut RebuiltNames) {
        for (number, large) in std::mem::take(&mut found.large) {
            let end = found.ends.remove(&number);
            let remainder = end.map(|v| Remainder { pointer: v.pointer, length: v.size });
            // Where a small file has that path, too, nobody knows which came later.
            let own = large.path.clone().filter(|path| !found.small.contains_key(path));
            let other = recovered_file(number);
            let mut named = Err(Error::invalid("no path"));
            for path in own.iter().chain([&other]) {
                named = self.close_as(path, &large, remainder);
                if named.is_ok() {
                    let there = own.as_ref() == Some(path);
                    rebuilt.files += there as u64;
                    rebuilt.elsewhere += !there as u64;
                    break;
                }
            }
            if let Err(e) = named {
                rebuilt.refused.push(format!("large file `{number}`: {e}"));
            }
        }
        for (number, version) in std::mem::take(&mut found.ends) {
            // All of it that there is: the file had no chunk of its own, or has it no more.
            self.put_at(&recovered_file(number), version, rebuilt);
        }
    }

    fn close_as(&self, path: &str, large: &Large, remainder: Option<Remainder>) -> Result<()> {
        let (mtime, path) = (self.now_ns(), format!("{}{path}", home_of(large.file.shard())));
        if let Some((parent, _)) = path::split(&path).filter(|(parent, _)| *parent != "/") {
            self.make_dir(parent, Durability::Memory)?;
        }
        let size = large.extents.iter().map(|extent| extent.length).sum::<u64>()
            + remainder.map_or(0, |remainder| remainder.length);
        let close = Command::Close {
            file: large.file,
            path,
            size,
            crc: None,
            extents: large.extents.clone(),
            remainder,
            mode: 0o644,
            mtime,
            replace: false,
            metadata: Vec::new(),
        };
        self.propose_and_wait(close, Durability::Memory).map(|_| ())
    }

    fn name_small(&self, found: Found, rebuilt: &mut RebuiltNames) {
        for (path, mut versions) in found.small {
            let newest = versions.pop().filter(|_| path.len() <= HINT_WHOLE_MAX);
            if let Some(version) = newest {
                match self.put(&path, version) {
                    Ok(()) => rebuilt.files += 1,
                    // Something else has the name, or stands where a directory should.
                    Err(_) => versions.push(version),
                }
            } else {
                rebuilt.refused.push(format!("`{path}` may have been cut: see `{RECOVERED}`"));
            }
            for version in versions {
                let aside = format!("{RECOVERED}/older{path}.{}", place(version.pointer));
                self.put_at(&aside, version, rebuilt);
            }
        }
        for version in found.nameless {
            let aside = format!("{RECOVERED}/{}", place(version.pointer));
            self.put_at(&aside, version, rebuilt);
        }
    }

    /// Under `/recovered`, there or at a name that is free for sure.
    fn put_at(&self, wanted: &str, version: Version, rebuilt: &mut RebuiltNames) {
        let free = format!("{RECOVERED}/{}", place(version.pointer));
        match self.put(wanted, version).or_else(|_| self.put(&free, version)) {
            Ok(()) => rebuilt.elsewhere += 1,
            Err(e) => rebuilt.refused.push(format!("object `{}`: {e}", version.pointer)),
        }
    }

    fn put(&self, path: &str, version: Version) -> Result<()> {
        let put = Command::Put {
            path: format!("{}{path}", home_of(version.pointer.chunk.shard())),
            kind: NodeKind::File,
            mode: 0o644,
            mtime: self.now_ns(),
            size: version.size,
            crc: version.crc,
            class: None,
            location: Location::Packed { pointer: version.pointer },
            replace: false,
            parents: true,
            metadata: Vec::new(),
        };
        self.propose_and_wait(put, Durability::Memory).map(|_| ())
    }
}

/// Refuses an id that no shard has drawn: names of it could not be kept, and others' not behind it.
fn check_id(chunk: ChunkId) -> Result<()> {
    if chunk.shard() as usize >= SHARDS_MAX {
        return Err(Error::invalid(format!(
            "its id names shard {}, and there are {SHARDS_MAX} at most: it is left as it is: look \
             whose file that is",
            chunk.shard()
        )));
    }
    if chunk.counter() > DRAWN_MAX {
        return Err(Error::invalid(format!(
            "its id is the {}th of its shard, and none has drawn so many: it is left as it is: look \
             whose file that is",
            chunk.counter()
        )));
    }
    Ok(())
}

/// Takes note of every object of a packed chunk; answers whose names they are.
fn look_at(
    info: &ChunkInfo,
    store: &Store,
    found: &mut Found,
    rebuilt: &mut RebuiltNames,
) -> FileId {
    let chunk: ChunkId = info.chunk;
    for slot in (0..info.length).map(|slot| Slot(slot as u32)) {
        let read = match store.read_slot(chunk, slot) {
            Ok(Some(read)) => read,
            Ok(None) => continue,
            Err(e) => {
                debug_assert!(e.kind != Kind::NotFound, "an object that is not there is none");
                rebuilt.refused.push(format!("slot {slot} of chunk `{chunk}`: {e}"));
                continue;
            }
        };
        if read.needle.owner == BLOBS {
            return BLOBS;
        }
        let pointer = Pointer { chunk, slot, cookie: read.needle.cookie };
        let version = Version { pointer, size: read.bytes.len() as u64, crc: whole_crc(&read) };
        if read.needle.owner != FileId(0) {
            found.ends.insert(read.needle.owner.0, version);
            continue;
        }
        match String::from_utf8(read.needle.hint).ok().filter(|hint| path::check(hint).is_ok()) {
            Some(path) => found.small.entry(path).or_default().push(version),
            None => found.nameless.push(version),
        }
    }
    FileId(0)
}

/// The checksum of an object, from those of its blocks.
fn whole_crc(read: &NeedleRead) -> u32 {
    let mut left = read.bytes.len() as u64;
    let mut whole = 0;
    for crc in &read.crcs {
        let bytes = left.min(BLOCK_BYTES);
        whole = crc32c_combine(whole, *crc, bytes);
        left -= bytes;
    }
    whole
}

/// Where names of a shard's chunks are until they are brought to their places.
fn home_of(shard: u16) -> String {
    match shard {
        0 => String::new(),
        shard => format!("/.names-of-shard-{shard}"),
    }
}

fn recovered_file(number: u64) -> String {
    format!("{RECOVERED}/{number}")
}

fn place(pointer: Pointer) -> String {
    format!("{}-{}", pointer.chunk, pointer.slot)
}
