//! What a shard knows of its files: a tree of directories, and of each file a pointer or extents.
//! Knows no store and no replica: what it asks of chunks is in `chunks/naming.rs`. A part of the
//! namespace's fold, which routes entries here; wholly in memory, about 80 bytes a small file.

mod arena;
mod bytes;
mod children;
mod copies;
mod files;
mod nodes;
mod parts;
mod prefetch;
mod read;
mod shared;
mod table;
#[cfg(test)]
mod tests;
mod tree;

pub use copies::{Changed, Reach};
pub(crate) use copies::{Next, Taken, Target};
pub use nodes::NODES_MAX;
pub use parts::{Content, PART_BYTES, PartNode};
pub use read::{Entry, FileInfo, Page, Totals, UnclosedInfo, Usage, resolve};

use crate::{NodeKind, RawExtent, Remainder, StorageClass};
use children::Families;
use holdfast_base::ids::ChunkId;
use nodes::{Nodes, ROOT};
use std::collections::BTreeMap;
use table::Table;

/// The names of one shard.
pub struct Names {
    nodes: Nodes,
    /// (parent, name) to node, for every named node.
    table: Table,
    families: Families,
    /// Of the files whose bytes are a list, by node.
    extents: BTreeMap<u32, FileExtents>,
    unclosed: BTreeMap<u32, Unclosed>,
    /// Roots of deleted subtrees; the last one is reclaimed first.
    detached: Vec<u32>,
    /// Roots of what another shard has now; the last one is forgotten first.
    leaving: Vec<u32>,
    /// Raw chunks that a file lists which was not begun in its place here. Found again from the extents.
    moved: BTreeMap<ChunkId, u32>,
    totals: Totals,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct FileExtents {
    size: u64,
    extents: Vec<RawExtent>,
    remainder: Option<Remainder>,
}

/// A file that was begun.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Unclosed {
    path: String,
    /// Those it owns; found again from the chunks' owners.
    chunks: Vec<ChunkId>,
}

impl Names {
    /// A root directory of the default class.
    pub(crate) fn new(shard: u16) -> Names {
        let mut names = Names::hollow(shard);
        let root = names.nodes.make(NodeKind::Directory, 0o755, 0, StorageClass::DEFAULT);
        assert_eq!(root, ROOT);
        names.count(root, true);
        names
    }

    /// Without even a root, to be filled by a restore.
    pub(crate) fn hollow(shard: u16) -> Names {
        Names {
            nodes: Nodes::new(shard),
            table: Table::new(),
            families: Families::default(),
            extents: BTreeMap::new(),
            unclosed: BTreeMap::new(),
            detached: Vec::new(),
            leaving: Vec::new(),
            moved: BTreeMap::new(),
            totals: Totals::default(),
        }
    }
}
