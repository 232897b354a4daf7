//! The namespace view: directories, files and chunks of one shard, as a deterministic fold of the
//! shard's topic. Wholly in memory, about 80 bytes a small file. `apply` decides and is total: it
//! takes any command, reads no clock, setting or randomness, and refuses whole or applies whole.
//! The log's runtime calls `apply`, `snapshot` and `restore`; the file face calls the reads.

mod arena;
mod children;
mod chunks;
mod files;
mod nodes;
mod prefetch;
mod read;
mod replicas;
mod restore;
mod snapshot;
mod space;
mod table;
mod tree;

#[cfg(test)]
mod tests;

pub use chunks::{Chunk, ChunkState, Dropped, OldGeneration};
pub use read::{Entry, FileInfo, Page, Totals, UnclosedInfo, Usage};
pub use replicas::ShortChunk;
pub(crate) use restore::checked_body;

use crate::command::REPLICAS_MAX;
use crate::{Command, Extent, NodeKind, Outcome, Remainder, StorageClass};
use children::Families;
use chunks::Chunks;
use holdfast_base::ids::{ChunkId, Generation, Index};
use holdfast_base::{Error, Result};
use holdfast_env::trial::Knob;
use nodes::{Nodes, ROOT};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use table::Table;

/// Nodes that one `Reclaim`, and freed things that one `Release`, may touch: what keeps an entry's
/// work, and so the pause of all other requests, to milliseconds. Larger budgets mean this one.
pub static STEPS_MAX: Knob = Knob::new("namespace.steps", 1 << 14, &[1, 2, 3]);

/// Permission bits, with set-user-id, set-group-id and sticky.
pub const MODE_MAX: u16 = 0o7777;

pub struct Namespace {
    shard: u16,
    nodes: Nodes,
    /// (parent, name) to node, for every named node.
    table: Table,
    families: Families,
    /// Of the files whose bytes are a list, by node.
    extents: BTreeMap<u32, FileExtents>,
    unclosed: BTreeMap<u32, Unclosed>,
    /// Roots of deleted subtrees; the last one is reclaimed first.
    detached: Vec<u32>,
    chunks: Chunks,
    /// Counter of the next chunk id.
    chunk_next: u64,
    /// What was freed and may still be read, oldest first.
    freed: VecDeque<Freed>,
    totals: Totals,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct FileExtents {
    size: u64,
    extents: Vec<Extent>,
    remainder: Option<Remainder>,
}

/// A file that was begun.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Unclosed {
    path: String,
    /// Those it owns; found again from the chunks' owners.
    chunks: Vec<ChunkId>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Freed {
    /// Of the entry that freed it.
    index: Index,
    what: FreedThing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FreedThing {
    Slot { chunk: ChunkId, slot: u32, bytes: u32 },
    Chunk { chunk: ChunkId },
    Generation { chunk: ChunkId, generation: Generation },
}

/// A path in a message: shortened and without control characters.
struct Shown<'a>(&'a str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const CHARS_MAX: usize = 200;
        match self.0.char_indices().nth(CHARS_MAX) {
            Some((cut, _)) => write!(f, "`{}...`", self.0[..cut].escape_debug()),
            None => write!(f, "`{}`", self.0.escape_debug()),
        }
    }
}

impl Default for Namespace {
    fn default() -> Namespace {
        Namespace::new(0)
    }
}

impl Namespace {
    /// The empty namespace of a shard: a root directory of the default class.
    pub fn new(shard: u16) -> Namespace {
        let mut ns = Namespace::hollow(shard);
        let root = ns.nodes.make(NodeKind::Directory, 0o755, 0, StorageClass::DEFAULT);
        assert_eq!(root, ROOT);
        ns.count(root, true);
        ns
    }

    /// Without even a root, to be filled by a restore.
    fn hollow(shard: u16) -> Namespace {
        Namespace {
            shard,
            nodes: Nodes::new(),
            table: Table::new(),
            families: Families::default(),
            extents: BTreeMap::new(),
            unclosed: BTreeMap::new(),
            detached: Vec::new(),
            chunks: Chunks::default(),
            chunk_next: 1,
            freed: VecDeque::new(),
            totals: Totals::default(),
        }
    }

    pub fn shard(&self) -> u16 {
        self.shard
    }

    /// Decodes and applies an entry. `Unsupported` means that the view must stop before this
    /// entry; every other error is a refusal, and the next entry can be applied.
    pub fn apply_bytes(&mut self, index: Index, bytes: &[u8]) -> Result<Outcome> {
        self.apply(index, &Command::from_entry(bytes)?)
    }

    /// Applies a command whole, or refuses it and changes nothing.
    pub fn apply(&mut self, index: Index, command: &Command) -> Result<Outcome> {
        let result = match command {
            Command::MakeDir { .. } => self.make_dir(command),
            Command::Put { .. } => self.put(index, command),
            Command::Symlink { path, target, mtime } => self.symlink(path, target, *mtime),
            Command::Begin { path, class, mode, mtime } => self.begin(path, *class, *mode, *mtime),
            Command::AllocateChunk { kind, owner, node, replicas, tier, durability } => {
                let copies = replicas.len().min(REPLICAS_MAX) as u8;
                self.allocate(*kind, *owner, *node, replicas, copies, (*tier, *durability))
            }
            Command::AllocateCopies { kind, owner, node, replicas, copies, tier, durability } => {
                self.allocate(*kind, *owner, *node, replicas, *copies, (*tier, *durability))
            }
            Command::Close { .. } => self.close(index, command),
            Command::Abandon { file } => self.abandon(index, *file),
            Command::Salvage { file, path, extents } => self.salvage(index, *file, path, extents),
            Command::SealChunk { chunk, length, replicas } => {
                self.seal_chunk(*chunk, *length, replicas)
            }
            Command::Rename { from, to, replace } => self.rename(index, from, to, *replace),
            Command::Delete { path, recursive } => self.delete(index, path, *recursive),
            Command::Reclaim { budget } => Ok(self.reclaim(index, *budget)),
            Command::SetAttributes { path, mode, mtime, metadata } => {
                self.set_attributes(path, *mode, *mtime, metadata.as_deref())
            }
            Command::SetClass { path, class } => self.set_class(path, *class),
            Command::CloseChunk { chunk } => self.close_chunk(*chunk),
            Command::SwitchGeneration { chunk, generation, length, digest } => {
                self.switch_generation(index, *chunk, *generation, *length, *digest, None)
            }
            Command::SwitchReplicas { chunk, generation, length, digest, replicas } => {
                let replicas = Some(replicas.as_slice());
                self.switch_generation(index, *chunk, *generation, *length, *digest, replicas)
            }
            Command::AddReplica { chunk, generation, store } => {
                self.add_replica(*chunk, *generation, *store)
            }
            Command::DropReplica { chunk, generation, store, lost } => {
                self.drop_replica(*chunk, *generation, *store, *lost)
            }
            Command::Unlink { chunk, generation, store } => {
                self.unlink_replica(*chunk, *generation, *store)
            }
            Command::RaiseCopies { chunks, copies } => self.raise_copies(chunks, *copies),
            Command::Release { before, budget } => Ok(self.release(*before, *budget)),
            Command::FreeChunk { chunk } => self.free_face_chunk(*chunk),
            Command::Rewrite { .. } => self.rewrite(index, command),
            Command::AdoptChunk { .. } => self.adopt_chunk(command),
        };
        result.map_err(|e| e.context(Doing(command)))
    }
}

/// What a refused command was doing, as the start of a sentence.
struct Doing<'a>(&'a Command);

impl fmt::Display for Doing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Command::MakeDir { path, kind, .. } => {
                write!(f, "make {} {}", kind.name(), Shown(path))
            }
            Command::Put { path, .. } => write!(f, "put {}", Shown(path)),
            Command::Symlink { path, .. } => write!(f, "link {}", Shown(path)),
            Command::Begin { path, .. } => write!(f, "begin file {}", Shown(path)),
            Command::AllocateChunk { owner, .. } | Command::AllocateCopies { owner, .. } => {
                write!(f, "allocate a chunk for `{owner}`")
            }
            Command::Close { file, path, .. } => write!(f, "close `{file}` as {}", Shown(path)),
            Command::Abandon { file } => write!(f, "abandon `{file}`"),
            Command::Salvage { file, path, .. } => write!(f, "salvage `{file}` as {}", Shown(path)),
            Command::SealChunk { chunk, .. } => write!(f, "seal chunk `{chunk}`"),
            Command::Rename { from, to, .. } => {
                write!(f, "rename {} to {}", Shown(from), Shown(to))
            }
            Command::Delete { path, .. } => write!(f, "delete {}", Shown(path)),
            Command::Reclaim { .. } => f.write_str("reclaim deleted nodes"),
            Command::SetAttributes { path, .. } => write!(f, "set attributes of {}", Shown(path)),
            Command::SetClass { path, .. } => write!(f, "set the class of {}", Shown(path)),
            Command::CloseChunk { chunk } => write!(f, "close chunk `{chunk}`"),
            Command::SwitchGeneration { chunk, generation, .. }
            | Command::SwitchReplicas { chunk, generation, .. }
            | Command::Rewrite { chunk, generation, .. } => {
                write!(f, "switch chunk `{chunk}` to generation `{generation}`")
            }
            Command::Unlink { chunk, generation, store } => {
                write!(f, "unlink chunk `{chunk}` generation `{generation}` from `{store}`")
            }
            Command::AddReplica { chunk, generation, store } => {
                write!(
                    f,
                    "count `{store}` as a replica of chunk `{chunk}` generation `{generation}`"
                )
            }
            Command::DropReplica { chunk, generation, store, .. } => {
                write!(f, "drop chunk `{chunk}` generation `{generation}` on `{store}`")
            }
            Command::RaiseCopies { copies, .. } => write!(f, "want {copies} copies"),
            Command::Release { before, .. } => write!(f, "release what was freed before {before}"),
            Command::FreeChunk { chunk } => write!(f, "free chunk `{chunk}`"),
            Command::AdoptChunk { chunk, .. } => write!(f, "adopt chunk `{chunk}`"),
        }
    }
}

/// For commands that are handed on whole: a match that cannot fail said in one place.
fn misrouted() -> Error {
    Error::bug("the command reached the wrong part of the namespace")
}
