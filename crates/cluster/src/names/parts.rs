//! The content of a directory on its way from shard to shard: the next part of one that stays as it is, a part
//! that is taken into one that has no name yet, and the names of one that has left, which go piece by piece.
//! Which part is next, and of which move, is `moves.rs`'s to say.

use super::nodes::{ARRIVING, EXTENTS, HAS_CRC, LEAVING, PACKED, ROOT};
use super::tree::{check_metadata, check_mode};
use super::{FileExtents, Names};
use crate::borders::{DirAttributes, top};
use crate::chunks::Chunks;
use crate::moves::{Arriving, node_bytes};
use crate::{NodeKind, Outcome, RawExtent, Remainder, StorageClass};
use holdfast_base::ids::{ChunkId, Index, Pointer};
use holdfast_base::limits::{PATH_BYTES_MAX, PATH_DEPTH_MAX};
use holdfast_base::{Error, Result, codec_enum, codec_struct, path};
use holdfast_env::trial::Knob;
use std::collections::BTreeSet;

/// Bytes of a part, about; one node is a part, however large.
pub static PART_BYTES: Knob = Knob::new("namespace.part-bytes", 60_000, &[1, 100, 1000]);

/// A node on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartNode {
    /// Directories above it, from the one that moves on: 1 and more.
    pub depth: u16,
    pub name: String,
    pub kind: NodeKind,
    pub mode: u16,
    pub mtime: i64,
    pub class: StorageClass,
    pub metadata: Vec<u8>,
    pub crc: Option<u32>,
    pub content: Content,
}
codec_struct!(PartNode { depth, name, kind, mode, mtime, class, metadata, crc, content });

/// What a node is beside its attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    None {},
    Packed {
        pointer: Pointer,
        bytes: u32,
    },
    Extents {
        extents: Vec<RawExtent>,
        remainder: Option<Remainder>,
    },
    /// Of a symbolic link.
    Target {
        target: String,
    },
}
codec_enum!(Content: "content" {
    1 => None {},
    2 => Packed { pointer, bytes },
    3 => Extents { extents, remainder },
    4 => Target { target },
});

pub(super) fn wrong(why: &str) -> Error {
    Error::invalid(format!("a part of a directory that moves: {why}"))
}

impl Names {
    /// The nodes that follow `after` (names from the directory on down) below a directory of the root, in
    /// order of paths, as many as a part has; empty where there are no more. Nothing of a tree that cannot
    /// move: nodes are deeper in it than a part can say, by hundreds of renames that each took it below a path
    /// of the greatest depth.
    pub(crate) fn next_part(
        &self,
        chunks: &Chunks,
        dir: &str,
        after: &[String],
    ) -> Option<Vec<PartNode>> {
        let root = self.in_root(top(dir))?;
        let mut at = root;
        for name in after {
            // The tree is frozen: what was read of it before is there.
            at = self.child(at, name.as_bytes())?;
        }
        let (mut depth, mut nodes, mut bytes) = (after.len(), Vec::new(), 0);
        while let Some((next, below)) = self.following(root, at, depth) {
            (at, depth) = (next, below);
            let node = self.part_node(chunks, at, u16::try_from(depth).ok()?);
            bytes += node_bytes(&node);
            if !nodes.is_empty() && bytes > PART_BYTES.size() {
                PART_BYTES.cross();
                break;
            }
            nodes.push(node);
        }
        Some(nodes)
    }

    /// The next node below `root` in order of paths, and its depth.
    pub(super) fn following(&self, root: u32, at: u32, depth: usize) -> Option<(u32, usize)> {
        if let Some(child) = self.children(at).and_then(|children| children.first()) {
            return Some((child, depth + 1));
        }
        self.following_all_of(root, at, depth)
    }

    /// As [`Names::following`], of what is not below `at` itself.
    pub(super) fn following_all_of(
        &self,
        root: u32,
        at: u32,
        depth: usize,
    ) -> Option<(u32, usize)> {
        let (mut at, mut depth) = (at, depth);
        while at != root {
            let parent = self.nodes[at].parent;
            let after = Some(self.nodes.name_str(at));
            let next = self.children(parent).and_then(|c| c.above(&self.nodes, after).next());
            if let Some(next) = next {
                return Some((next, depth));
            }
            (at, depth) = (parent, depth - 1);
        }
        None
    }

    pub(super) fn part_node(&self, chunks: &Chunks, at: u32, depth: u16) -> PartNode {
        let (node, kind) = (&self.nodes[at], self.kind(at));
        let content = if kind == NodeKind::Symlink {
            let target = String::from_utf8_lossy(self.nodes.arena.get(node.slot));
            Content::Target { target: target.into_owned() }
        } else if let crate::Location::Packed { pointer } = self.location(chunks, at) {
            Content::Packed { pointer, bytes: node.size }
        } else if let Some(list) = self.extents.get(&at) {
            Content::Extents { extents: list.extents.clone(), remainder: list.remainder }
        } else {
            Content::None {}
        };
        PartNode {
            depth,
            name: self.nodes.name_str(at).to_owned(),
            kind,
            mode: node.mode,
            mtime: node.mtime,
            class: node.class(),
            metadata: self.nodes.arena.get(node.metadata).to_vec(),
            crc: (node.flags & HAS_CRC != 0).then_some(node.crc),
            content,
        }
    }

    /// The names of the last node that came, from the directory on down.
    pub(crate) fn last_taken(&self, arriving: &Arriving) -> Vec<String> {
        let chain = self.chain(arriving);
        chain.iter().skip(1).map(|at| self.nodes.name_str(*at).to_owned()).collect()
    }

    /// Places from the arriving directory down to its last node.
    fn chain(&self, arriving: &Arriving) -> Vec<u32> {
        let (mut chain, mut at) = (vec![arriving.last], arriving.last);
        while at != arriving.root {
            at = self.nodes[at].parent;
            chain.push(at);
        }
        chain.reverse();
        chain
    }

    /// Takes a part aside, behind what came before, or as the first; tells what there is now. Checks all
    /// of it before it changes anything.
    pub(crate) fn take_part(
        &mut self,
        chunks: &mut Chunks,
        before: Option<Arriving>,
        nodes: &[PartNode],
    ) -> Result<(u32, u32)> {
        let mut chain = self.check_taken(chunks, before, nodes)?;
        if chain.is_empty() {
            chain.push(self.make_arriving());
        }
        for node in nodes {
            chain.truncate(node.depth as usize);
            let parent = chain[node.depth as usize - 1];
            chain.push(self.take_node(chunks, parent, node));
        }
        Ok((chain[0], chain[chain.len() - 1]))
    }

    /// A directory that has no name yet.
    pub(super) fn make_arriving(&mut self) -> u32 {
        let (kind, class) = (NodeKind::Directory, StorageClass::DEFAULT);
        let root = self.nodes.make(kind, 0, 0, class);
        self.nodes[root].flags |= ARRIVING;
        self.count(root, true);
        root
    }

    /// Refuses what [`Names::take_part`] does not take; answers with the nodes from the directory's own down to
    /// the last that came before.
    pub(crate) fn check_taken(
        &self,
        chunks: &Chunks,
        before: Option<Arriving>,
        nodes: &[PartNode],
    ) -> Result<Vec<u32>> {
        let chain = before.map_or(Vec::new(), |arriving| self.chain(&arriving));
        self.check_part(chunks, &chain, nodes)?;
        Ok(chain)
    }

    pub(super) fn take_node(&mut self, chunks: &mut Chunks, parent: u32, node: &PartNode) -> u32 {
        let at = self.nodes.make(node.kind, node.mode, node.mtime, node.class);
        self.set_metadata(at, &node.metadata);
        if let Some(crc) = node.crc {
            self.nodes[at].flags |= HAS_CRC;
            self.nodes[at].crc = crc;
        }
        match &node.content {
            Content::None {} => {}
            Content::Target { target } => {
                self.nodes[at].slot = self.nodes.arena.put(target.as_bytes());
            }
            Content::Packed { pointer, bytes } => {
                chunks.take_slot(pointer.chunk, pointer.slot.0);
                let place = chunks.place(pointer.chunk).expect("it was checked");
                let node = &mut self.nodes[at];
                node.flags |= PACKED;
                (node.chunk, node.slot, node.cookie) = (place, pointer.slot.0, pointer.cookie.0);
                node.size = *bytes;
            }
            Content::Extents { extents, remainder } => {
                let mut size = 0;
                for extent in extents {
                    chunks.take_chunk(extent.chunk);
                    self.moved.insert(extent.chunk, at);
                    size += extent.length;
                }
                if let Some(Remainder { pointer, length }) = remainder {
                    chunks.take_slot(pointer.chunk, pointer.slot.0);
                    size += length;
                }
                self.nodes[at].flags |= EXTENTS;
                let (extents, remainder) = (extents.clone(), *remainder);
                self.extents.insert(at, FileExtents { size, extents, remainder });
            }
        }
        self.link(at, parent, &node.name);
        at
    }

    /// Refuses what is no part of a tree behind this node, and bytes that cannot be its.
    fn check_part(&self, chunks: &Chunks, chain: &[u32], nodes: &[PartNode]) -> Result<()> {
        if !self.nodes.has_room(nodes.len() + 1) {
            return Err(Error::full("the shard holds as many nodes as it can: delete some"));
        }
        let on_way = |at: &u32| (self.kind(*at), self.nodes.name_str(*at));
        let mut way: Vec<(NodeKind, &str)> = chain.iter().map(on_way).collect();
        if way.is_empty() {
            way.push((NodeKind::Directory, ""));
        }
        let mut seen = BTreeSet::new();
        for node in nodes {
            let depth = node.depth as usize;
            // As deep as it is: a rename takes a subtree below a path of any depth.
            if depth == 0 || depth > way.len() {
                return Err(wrong("a node is below none"));
            }
            path::check_name(&node.name)?;
            if way.get(depth).is_some_and(|(_, before)| *before >= node.name.as_str()) {
                return Err(wrong("its names are not in order"));
            }
            if !way[depth - 1].0.may_hold(node.kind) {
                return Err(wrong("a node is in one that cannot hold it"));
            }
            check_mode(node.mode)?;
            check_metadata(&node.metadata)?;
            self.check_content(chunks, node, &mut seen)?;
            way.truncate(depth);
            way.push((node.kind, &node.name));
        }
        Ok(())
    }

    pub(super) fn check_content(
        &self,
        chunks: &Chunks,
        node: &PartNode,
        seen: &mut BTreeSet<(ChunkId, Option<u32>)>,
    ) -> Result<()> {
        let mut slot = |pointer: Pointer, bytes: u64| {
            chunks.check_taken_slot(pointer, bytes)?;
            match seen.insert((pointer.chunk, Some(pointer.slot.0))) {
                true => Ok(()),
                false => Err(wrong("a slot is named twice")),
            }
        };
        let (is_data, is_link) = (node.kind.is_data(), node.kind == NodeKind::Symlink);
        let suits = match &node.content {
            Content::None {} => !is_link,
            Content::Target { target } => {
                is_link && !target.is_empty() && target.len() <= PATH_BYTES_MAX
            }
            Content::Packed { pointer, bytes } => {
                slot(*pointer, u64::from(*bytes))?;
                is_data
            }
            Content::Extents { extents, remainder } => {
                if let Some(Remainder { pointer, length }) = remainder {
                    slot(*pointer, *length)?;
                }
                for extent in extents {
                    chunks.check_taken_chunk(*extent)?;
                    let is_new = seen.insert((extent.chunk, None));
                    if !is_new || self.moved.contains_key(&extent.chunk) {
                        return Err(wrong("a chunk is named twice"));
                    }
                }
                is_data && !extents.is_empty()
            }
        };
        if !suits || node.crc.is_some() && !is_data {
            return Err(wrong("a node has what its kind has not"));
        }
        Ok(())
    }

    /// Gives what has arrived its name, in the place of an empty directory.
    pub(crate) fn arrive(
        &mut self,
        chunks: &mut Chunks,
        dir: &str,
        root: u32,
        attributes: &DirAttributes,
    ) -> Result<()> {
        self.check_arrive(dir)?;
        let name = top(dir);
        if let Some(at) = self.in_root(name) {
            self.unlink(at);
            self.drop_node(chunks, Index(0), at);
        }
        self.nodes[root].flags &= !ARRIVING;
        self.nodes.set_name(root, name.as_bytes());
        self.attach(root, ROOT);
        self.set_dir(root, attributes);
        Ok(())
    }

    /// Refuses where an empty directory is not all that is in the place.
    pub(crate) fn check_arrive(&self, dir: &str) -> Result<()> {
        match self.in_root(top(dir)) {
            Some(at) if !self.is_container(at) || self.child_count(at) > 0 => {
                Err(Error::exists("something of its name is there"))
            }
            _ => Ok(()),
        }
    }

    /// Refuses where a directory and all that may be above it would find no room.
    pub(crate) fn check_room(&self) -> Result<()> {
        match self.nodes.has_room(PATH_DEPTH_MAX + 1) {
            true => Ok(()),
            false => Err(Error::full("the shard holds as many nodes as it can: delete some")),
        }
    }

    pub(super) fn set_dir(&mut self, at: u32, attributes: &DirAttributes) {
        (self.nodes[at].mode, self.nodes[at].mtime) = (attributes.mode, attributes.mtime);
        self.nodes[at].set_class(attributes.class);
        self.set_metadata(at, &attributes.metadata);
    }

    /// A directory of the root leaves with all that is in it. Its name stays where the root is.
    pub(crate) fn depart(
        &mut self,
        chunks: &mut Chunks,
        dir: &str,
        attributes: &DirAttributes,
        is_root: bool,
    ) -> Result<()> {
        self.check_room()?;
        let at = self.in_root(top(dir)).ok_or_else(|| Error::not_found("it does not exist"))?;
        self.unlink(at);
        self.leave(at);
        match is_root {
            true => self.take_dir(chunks, dir, attributes),
            false => Ok(()),
        }
    }

    /// What has no name any more, or has none yet, goes with the next entries.
    pub(crate) fn leave(&mut self, at: u32) {
        self.nodes.set_name(at, &[]);
        self.nodes[at].flags &= !ARRIVING;
        self.nodes[at].flags |= LEAVING;
        self.leaving.push(at);
    }

    /// Whether something waits for a `Forget`.
    pub fn is_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// As `reclaim`, of what is elsewhere now: its bytes stay.
    pub(crate) fn forget(&mut self, chunks: &mut Chunks, budget: u32) -> Outcome {
        let free = |names: &mut Names, at| {
            names.count(at, false);
            names.yield_bytes(chunks, at);
            names.nodes.release(at);
        };
        self.take_apart(budget, |names| &mut names.leaving, Names::leave, free)
    }

    /// A node lets go of its bytes for whoever has it now.
    pub(super) fn yield_bytes(&mut self, chunks: &mut Chunks, at: u32) {
        if let Some(list) = self.extents.remove(&at) {
            for extent in &list.extents {
                self.moved.remove(&extent.chunk);
                chunks.yield_chunk(extent.chunk);
            }
            if let Some(Remainder { pointer, length }) = list.remainder {
                chunks.yield_slot(pointer.chunk, pointer.slot.0, length as u32);
            }
        }
        let node = self.nodes[at];
        if node.flags & PACKED != 0 {
            chunks.yield_slot(chunks.id_at(node.chunk), node.slot, node.size);
        }
    }

    /// The file that lists a raw chunk which is not of its making.
    pub(crate) fn moved_owner(&self, chunk: ChunkId) -> Option<holdfast_base::ids::FileId> {
        self.moved.get(&chunk).map(|at| self.nodes.id(*at))
    }
}
