//! The nodes themselves: records of one cache line in pages that never move. A file's id is its
//! place and how often the place was used, so an id needs no table and is never reused.

use super::arena::Arena;
use super::prefetch::prefetch;
use crate::{NodeKind, StorageClass};
use holdfast_base::ids::FileId;
use holdfast_env::trial::Knob;

/// Places of a shard, by the width of their numbers. Tests ask for fewer by name; none is drawn, for what a
/// full shard refuses is no border inside it.
pub static NODES_MAX: Knob = Knob::new("namespace.nodes", u32::MAX as u64, &[u32::MAX as u64]);

pub(super) const PAGE_NODES: usize = 4096;
/// Names up to this length live in the node.
const NAME_INLINE_MAX: usize = 17;

/// The node that every path starts at.
pub(super) const ROOT: u32 = 1;

/// The checksum of the whole is known.
pub(super) const HAS_CRC: u8 = 1;
/// The bytes are one packed object: `chunk`, `slot`, `cookie`, `size`.
pub(super) const PACKED: u8 = 2;
/// The bytes are a list: `Namespace::extents`.
pub(super) const EXTENTS: u8 = 4;
/// Begun and not closed: nameless.
pub(super) const UNCLOSED: u8 = 8;
/// Deleted and waiting for `Reclaim`: nameless.
pub(super) const DETACHED: u8 = 16;
/// A directory that comes from another shard, and has no name yet.
pub(super) const ARRIVING: u8 = 32;
/// In another shard now, and waiting for `Forget`: nameless.
pub(super) const LEAVING: u8 = 64;

/// One node: 64 bytes, so that a look-up misses the cache once for it.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub(super) struct Node {
    pub parent: u32,
    /// How often this place was used before.
    pub generation: u32,
    /// 0 for a nameless node.
    name_len: u8,
    /// The name, or the arena's handle of a long one.
    name: [u8; NAME_INLINE_MAX],
    /// A `NodeKind`'s code; 0 for a free place.
    kind: u8,
    pub flags: u8,
    pub mode: u16,
    class: StorageClass,
    /// User metadata in the arena.
    pub metadata: u32,
    /// Bytes of a packed file; a list's length is with the list.
    pub size: u32,
    pub mtime: i64,
    pub crc: u32,
    /// Index in the chunk table.
    pub chunk: u32,
    /// Packed: slot. Container: handle of its children. Symlink: target in the arena.
    pub slot: u32,
    pub cookie: u32,
}

const _: () = assert!(size_of::<Node>() == 64);

const FREE: Node = Node {
    parent: 0,
    generation: 0,
    name_len: 0,
    name: [0; NAME_INLINE_MAX],
    kind: 0,
    flags: 0,
    mode: 0,
    class: StorageClass::DEFAULT,
    metadata: 0,
    size: 0,
    mtime: 0,
    crc: 0,
    chunk: 0,
    slot: 0,
    cookie: 0,
};

impl Node {
    #[inline]
    pub(super) fn kind(&self) -> Option<NodeKind> {
        NodeKind::from_code(self.kind)
    }

    pub(super) fn class(&self) -> StorageClass {
        self.class
    }

    pub(super) fn set_class(&mut self, class: StorageClass) {
        self.class = class;
    }
}

pub(super) struct Nodes {
    /// Whose ids its nodes have, and what they all have in common: ids are made in every look-up.
    shard: u16,
    id_base: u64,
    pages: Vec<Box<[Node]>>,
    /// Places that were ever used, 0 among them, which stays empty.
    len: u32,
    /// Places to use again, last freed first. Part of the state: it decides later ids.
    pub free: Vec<u32>,
    pub arena: Arena,
}

impl std::ops::Index<u32> for Nodes {
    type Output = Node;
    #[inline]
    fn index(&self, at: u32) -> &Node {
        &self.pages[at as usize / PAGE_NODES][at as usize % PAGE_NODES]
    }
}

impl std::ops::IndexMut<u32> for Nodes {
    #[inline]
    fn index_mut(&mut self, at: u32) -> &mut Node {
        &mut self.pages[at as usize / PAGE_NODES][at as usize % PAGE_NODES]
    }
}

impl Nodes {
    pub(super) fn new(shard: u16) -> Nodes {
        let id_base = FileId::new(shard, 0, 0).0;
        Nodes {
            shard,
            id_base,
            pages: Vec::new(),
            len: 1,
            free: Vec::new(),
            arena: Arena::default(),
        }
    }

    /// Places that were ever used, place 0 included.
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// Whether `count` nodes with their strings can be made.
    pub(super) fn has_room(&self, count: usize) -> bool {
        let left = NODES_MAX.size().saturating_sub(self.len as usize) + self.free.len();
        left > count && self.arena.has_room()
    }

    /// A fresh node without a name.
    pub(super) fn make(
        &mut self,
        kind: NodeKind,
        mode: u16,
        mtime: i64,
        class: StorageClass,
    ) -> u32 {
        let at = match self.free.pop() {
            Some(at) => at,
            None => {
                let at = self.len;
                self.len += 1;
                self.reach(at);
                at
            }
        };
        let generation = self[at].generation;
        self[at] = Node { generation, kind: kind as u8, mode, mtime, class, ..FREE };
        at
    }

    fn reach(&mut self, at: u32) {
        while self.pages.len() * PAGE_NODES <= at as usize {
            self.pages.push(vec![FREE; PAGE_NODES].into_boxed_slice());
        }
    }

    /// Gives a node's place back; its strings go with it.
    pub(super) fn release(&mut self, at: u32) {
        let node = self[at];
        self.set_name(at, &[]);
        self.arena.free(node.metadata);
        if node.kind == NodeKind::Symlink as u8 {
            self.arena.free(node.slot);
        }
        // A place whose generations are used up is never handed out again.
        if node.generation >= self.generation_max() {
            self[at] = Node { generation: node.generation, ..FREE };
        } else {
            self[at] = Node { generation: node.generation + 1, ..FREE };
            self.free.push(at);
        }
    }

    pub(super) fn set_kind(&mut self, at: u32, kind: NodeKind) {
        self[at].kind = kind as u8;
    }

    /// Extends to `len` places and sets what a free one remembers, for a restore.
    pub(super) fn restore_free(&mut self, at: u32, generation: u32) {
        self[at].generation = generation;
    }

    pub(super) fn restore_len(&mut self, len: u32) {
        self.len = len;
        self.reach(len.saturating_sub(1));
    }

    pub(super) fn restore_node(&mut self, at: u32, kind: NodeKind, generation: u32) {
        self[at] = Node { generation, kind: kind as u8, ..FREE };
    }

    #[inline]
    pub(super) fn name(&self, at: u32) -> &[u8] {
        self.name_of(&self[at])
    }

    // Always: in every look-up, once a component, and the compiler changes its mind about it.
    #[inline(always)]
    fn name_of<'a>(&'a self, node: &'a Node) -> &'a [u8] {
        let len = node.name_len as usize;
        if len <= NAME_INLINE_MAX {
            &node.name[..len]
        } else {
            self.arena.get(name_handle(&node.name))
        }
    }

    /// The name as text; names were checked before they came in.
    pub(super) fn name_str(&self, at: u32) -> &str {
        std::str::from_utf8(self.name(at)).unwrap_or("\u{fffd}")
    }

    pub(super) fn set_name(&mut self, at: u32, name: &[u8]) {
        let old = &self[at];
        if old.name_len as usize > NAME_INLINE_MAX {
            let handle = name_handle(&old.name);
            self.arena.free(handle);
        }
        let mut bytes = [0; NAME_INLINE_MAX];
        if name.len() <= NAME_INLINE_MAX {
            bytes[..name.len()].copy_from_slice(name);
        } else {
            let handle = self.arena.put(name);
            bytes[..4].copy_from_slice(&handle.to_le_bytes());
        }
        let node = &mut self[at];
        node.name_len = name.len() as u8;
        node.name = bytes;
    }

    #[inline]
    pub(super) fn is_named(&self, at: u32, parent: u32, name: &[u8]) -> bool {
        let node = &self[at];
        node.parent == parent && self.name_of(node) == name
    }

    #[inline]
    pub(super) fn prefetch(&self, at: u32) {
        prefetch(&self[at]);
    }

    /// The last generation of a place.
    pub(super) fn generation_max(&self) -> u32 {
        FileId::generation_max(self.shard)
    }

    pub(super) fn id(&self, at: u32) -> FileId {
        let generation = self[at].generation;
        debug_assert!(generation <= self.generation_max());
        FileId(self.id_base | u64::from(generation) << FileId::PLACE_BITS | u64::from(at))
    }

    /// The place of a living node.
    pub(super) fn at(&self, id: FileId) -> Option<u32> {
        let at = id.place();
        if at == 0 || at >= self.len {
            return None;
        }
        let node = &self[at];
        (node.kind != 0 && self.id(at) == id).then_some(at)
    }

    /// The places of all living nodes, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (1..self.len).filter(|at| self[*at].kind != 0)
    }
}

fn name_handle(name: &[u8; NAME_INLINE_MAX]) -> u32 {
    u32::from_le_bytes([name[0], name[1], name[2], name[3]])
}
