//! Names as bytes of a snapshot, and from them: docs/formats/namespace.md. What a snapshot leaves
//! out (the table, the order of children, totals) is found again; what is read is checked before it
//! is believed.

use super::nodes::{ARRIVING, DETACHED, EXTENTS, HAS_CRC, LEAVING, PACKED, ROOT, UNCLOSED};
use super::tree::{check_metadata, check_mode};
use super::{FileExtents, Names, Unclosed, table};
use crate::chunks::{ChunkState, Chunks};
use crate::moves::Arriving;
use crate::namespace::ensure;
use crate::{ChunkKind, Location, NodeKind, RawExtent, Remainder, StorageClass};
use holdfast_base::codec::{Decode, DecodeError, Encode, Reader, put_bytes};
use holdfast_base::ids::Pointer;
use holdfast_base::limits::PATH_BYTES_MAX;
use holdfast_base::stream::{Source, Writer};
use holdfast_base::{Error, Result, path};
use std::collections::{BTreeMap, BTreeSet};

impl Names {
    /// Places and nodes.
    pub(crate) fn write(&self, chunks: &Chunks, out: &mut Writer<'_>) {
        out.put(&(self.nodes.free.len() as u32));
        for at in &self.nodes.free {
            out.put(at);
            out.put(&self.nodes[*at].generation);
        }
        out.put(&self.retired());
        out.put(&(self.nodes.iter().count() as u32));
        self.nodes.iter().for_each(|at| out.put_with(|out| self.encode_node(chunks, at, out)));
    }

    /// Roots of deleted subtrees.
    pub(crate) fn write_detached(&self, out: &mut Writer<'_>) {
        out.put(&self.detached);
    }

    /// Roots of what has left for another shard.
    pub(crate) fn write_leaving(&self, out: &mut Writer<'_>) {
        out.put(&self.leaving);
    }

    /// Places that are neither used nor free: their generations are used up.
    fn retired(&self) -> Vec<u32> {
        let gone = |at: &u32| {
            let node = &self.nodes[*at];
            node.kind().is_none() && node.generation == self.nodes.generation_max()
        };
        let candidates: Vec<u32> = (1..self.nodes.len()).filter(gone).collect();
        if candidates.is_empty() {
            return candidates;
        }
        let free: std::collections::BTreeSet<u32> = self.nodes.free.iter().copied().collect();
        candidates.into_iter().filter(|at| !free.contains(at)).collect()
    }

    fn encode_node(&self, chunks: &Chunks, at: u32, out: &mut Vec<u8>) {
        let node = &self.nodes[at];
        let kind = self.kind(at);
        at.encode(out);
        node.generation.encode(out);
        kind.encode(out);
        node.flags.encode(out);
        node.parent.encode(out);
        put_bytes(out, self.nodes.name(at));
        node.mode.encode(out);
        node.mtime.encode(out);
        node.class().encode(out);
        put_bytes(out, self.nodes.arena.get(node.metadata));
        node.crc.encode(out);
        if kind == NodeKind::Symlink {
            put_bytes(out, self.nodes.arena.get(node.slot));
        }
        if node.flags & PACKED != 0 {
            if let Location::Packed { pointer } = self.location(chunks, at) {
                pointer.encode(out);
            }
            node.size.encode(out);
        }
        if node.flags & EXTENTS != 0
            && let Some(list) = self.extents.get(&at)
        {
            list.extents.encode(out);
            list.remainder.encode(out);
        }
        if node.flags & UNCLOSED != 0
            && let Some(file) = self.unclosed.get(&at)
        {
            file.path.encode(out);
        }
    }

    pub(crate) fn read(&mut self, chunks: &mut Chunks, source: &mut Source<'_>) -> Result<()> {
        let mut free: Vec<(u32, u32)> = Vec::new();
        for _ in 0..source.get::<u32>()? {
            free.push((source.get()?, source.get()?));
        }
        let retired: Vec<u32> = source.get()?;
        let count: u32 = source.get()?;
        // Each living node has more than 8 bytes, so this also bounds what a lie can allocate.
        ensure(count as u64 <= source.left_max() / 8, || {
            format!("{count} nodes do not fit into the snapshot")
        })?;
        let len = 1 + free.len() as u64 + retired.len() as u64 + count as u64;
        let len = u32::try_from(len).map_err(|_| Error::corrupt("there are too many nodes"))?;
        self.nodes.restore_len(len);
        let mut taken = BTreeSet::new();
        let last = self.nodes.generation_max();
        let retired = retired.into_iter().map(|at| (at, last));
        for (at, generation) in free.iter().copied().chain(retired) {
            ensure(at > 0 && at < len && taken.insert(at), || format!("place {at} is free twice"))?;
            ensure(generation <= last, || format!("place {at} was used {generation} times"))?;
            self.nodes.restore_free(at, generation);
        }
        self.nodes.free = free.into_iter().map(|(at, _)| at).collect();
        let mut last = 0;
        for _ in 0..count {
            last = source.get_with(|reader| {
                let node = KeptNode::decode(reader)?;
                let fits = node.at > last && node.at < len && !taken.contains(&node.at);
                Ok(ensure(fits, || "it is out of place".to_owned())
                    .and_then(|()| self.restore_node(chunks, &node))
                    .map_err(|e| e.context(format_args!("node {}", node.at)))
                    .map(|()| node.at))
            })??;
        }
        Ok(())
    }

    fn restore_node(&mut self, chunks: &mut Chunks, kept: &KeptNode<'_>) -> Result<()> {
        let KeptNode { at, kind, flags, parent, name, .. } = *kept;
        let nameless = flags & (UNCLOSED | DETACHED | ARRIVING | LEAVING) != 0 || at == ROOT;
        ensure(nameless == name.is_empty() && nameless == (parent == 0), || {
            "its name and its place do not agree".to_owned()
        })?;
        if !nameless {
            path::check_name(name).map_err(|e| Error::corrupt(e.message))?;
        }
        check_flags(kind, flags)?;
        ensure(kept.generation <= self.nodes.generation_max(), || {
            format!("its place was used {} times", kept.generation)
        })?;
        self.nodes.restore_node(at, kind, kept.generation);
        self.nodes.set_name(at, name.as_bytes());
        check_mode(kept.mode).map_err(|e| Error::corrupt(e.message))?;
        let node = &mut self.nodes[at];
        (node.flags, node.parent, node.mode) = (flags, parent, kept.mode);
        node.mtime = kept.mtime;
        node.set_class(kept.class);
        check_metadata(kept.metadata).map_err(|e| Error::corrupt(e.message))?;
        self.set_metadata(at, kept.metadata);
        self.nodes[at].crc = kept.crc;
        if let Some(target) = kept.target {
            ensure(!target.is_empty() && target.len() <= PATH_BYTES_MAX, || {
                "its target is empty or too long".to_owned()
            })?;
            self.nodes[at].slot = self.nodes.arena.put(target.as_bytes());
        }
        if let Some((pointer, bytes)) = kept.packed {
            chunks.restore_object(pointer.chunk, pointer.slot.0, bytes as u64)?;
            let node = &mut self.nodes[at];
            (node.slot, node.cookie, node.size) = (pointer.slot.0, pointer.cookie.0, bytes);
            node.chunk = chunks.place(pointer.chunk).unwrap_or_default();
        }
        if let Some((extents, remainder)) = &kept.extents {
            self.restore_extents(chunks, at, extents, *remainder)?;
        }
        if let Some(path) = kept.path {
            path::check(path).map_err(|e| Error::corrupt(e.message))?;
            self.unclosed.insert(at, Unclosed { path: path.to_owned(), chunks: Vec::new() });
        }
        Ok(())
    }

    fn restore_extents(
        &mut self,
        chunks: &mut Chunks,
        at: u32,
        extents: &[RawExtent],
        remainder: Option<Remainder>,
    ) -> Result<()> {
        ensure(!extents.is_empty(), || "its list of extents is empty".to_owned())?;
        let mut size = 0;
        let mut seen = BTreeSet::new();
        for extent in extents {
            chunks.check_listed(*extent).map_err(|e| Error::corrupt(e.message))?;
            ensure(seen.insert(extent.chunk), || {
                format!("chunk `{}` is named twice", extent.chunk)
            })?;
            size += extent.length;
        }
        if let Some(Remainder { pointer, length }) = remainder {
            chunks.restore_object(pointer.chunk, pointer.slot.0, length)?;
            size += length;
        }
        self.extents.insert(at, FileExtents { size, extents: extents.to_vec(), remainder });
        Ok(())
    }

    pub(crate) fn restore_detached(&mut self, detached: Vec<u32>) -> Result<()> {
        let listed: BTreeSet<u32> = detached.iter().copied().collect();
        let marked: BTreeSet<u32> =
            self.nodes.iter().filter(|at| self.nodes[*at].flags & DETACHED != 0).collect();
        ensure(listed == marked && listed.len() == detached.len(), || {
            "the deleted subtrees do not agree with the nodes".to_owned()
        })?;
        self.detached = detached;
        Ok(())
    }

    /// What is on its way, as the borders and the nodes have it.
    pub(crate) fn restore_moving(
        &mut self,
        leaving: Vec<u32>,
        arriving: &BTreeMap<String, Arriving>,
    ) -> Result<()> {
        let marked = |flag: u8| -> BTreeSet<u32> {
            self.nodes.iter().filter(|at| self.nodes[*at].flags & flag != 0).collect()
        };
        let listed: BTreeSet<u32> = leaving.iter().copied().collect();
        ensure(listed == marked(LEAVING) && listed.len() == leaving.len(), || {
            "what has left does not agree with the nodes".to_owned()
        })?;
        let roots: BTreeSet<u32> = arriving.values().map(|arriving| arriving.root).collect();
        ensure(roots == marked(ARRIVING) && roots.len() == arriving.len(), || {
            "what arrives does not agree with the nodes".to_owned()
        })?;
        for Arriving { root, last, .. } in arriving.values() {
            let mut at = *last;
            while at != *root && at > 0 && at < self.nodes.len() {
                at = self.nodes[at].parent;
            }
            ensure(at == *root, || format!("node {last} did not arrive in node {root}"))?;
        }
        self.leaving = leaving;
        Ok(())
    }

    pub(crate) fn restore_tree(&mut self) -> Result<()> {
        let places: Vec<u32> = self.nodes.iter().collect();
        let root = places.first() == Some(&ROOT) && self.kind(ROOT) == NodeKind::Directory;
        ensure(root && self.nodes[ROOT].generation == 0, || "there is no root".to_owned())?;
        for &at in &places {
            let parent = self.nodes[at].parent;
            if parent != 0 {
                let holds = parent < self.nodes.len()
                    && self.nodes[parent].kind().is_some_and(|kind| kind.may_hold(self.kind(at)));
                ensure(holds, || format!("node {at} is in node {parent}, which cannot hold it"))?;
                let hash = table::hash(parent, self.nodes.name(at));
                let name = self.nodes.name(at);
                let taken = self.table.find(hash, |other| self.nodes.is_named(other, parent, name));
                ensure(taken.is_none(), || format!("two nodes of node {parent} share a name"))?;
                self.attach(at, parent);
            }
            if self.nodes[at].flags & UNCLOSED == 0 {
                self.count(at, true);
            }
        }
        self.check_cycles(&places)
    }

    /// Every way up must end: at the root, or at a deleted subtree's.
    fn check_cycles(&self, places: &[u32]) -> Result<()> {
        let mut good = vec![false; self.nodes.len() as usize];
        let mut way = Vec::new();
        for &place in places {
            let mut at = place;
            while at != 0 && !good[at as usize] {
                ensure(way.len() < places.len(), || format!("node {place} is its own ancestor"))?;
                way.push(at);
                at = self.nodes[at].parent;
            }
            way.drain(..).for_each(|at| good[at as usize] = true);
        }
        Ok(())
    }

    /// Every raw chunk has its file: one that lists it, or one that is being written, which gets it.
    pub(crate) fn take_chunks(&mut self, chunks: &Chunks) -> Result<()> {
        let mut moved = BTreeMap::new();
        for (at, list) in &self.extents {
            for chunk in list.extents.iter().map(|extent| extent.chunk) {
                let is_born_here = chunks.get(chunk).is_some_and(|c| c.owner == self.nodes.id(*at));
                if !is_born_here {
                    let fresh = moved.insert(chunk, *at).is_none();
                    ensure(fresh, || format!("chunk `{chunk}` is named twice"))?;
                }
            }
        }
        self.moved = moved;
        for chunk in chunks.iter() {
            if chunk.kind == ChunkKind::Raw && chunk.state != ChunkState::Doomed && !chunk.freed {
                let at = self.nodes.at(chunk.owner);
                let open = at.filter(|at| self.unclosed.contains_key(at));
                let listed = at
                    .and_then(|at| self.extents.get(&at))
                    .is_some_and(|list| list.extents.iter().any(|extent| extent.chunk == chunk.id));
                let moved = self.moved.contains_key(&chunk.id);
                let held = chunks.is_held_whole(chunk.id);
                let files = [open.is_some(), listed, moved, held].into_iter().filter(|has| *has);
                ensure(files.count() == 1, || format!("chunk `{}` has not one file", chunk.id))?;
                if let Some(file) = open.and_then(|at| self.unclosed.get_mut(&at)) {
                    file.chunks.push(chunk.id);
                }
            }
        }
        Ok(())
    }
}

/// A node as its snapshot has it.
struct KeptNode<'a> {
    at: u32,
    generation: u32,
    kind: NodeKind,
    flags: u8,
    parent: u32,
    name: &'a str,
    mode: u16,
    mtime: i64,
    class: StorageClass,
    metadata: &'a [u8],
    crc: u32,
    /// Of a symbolic link.
    target: Option<&'a str>,
    /// Of a file in one packed chunk: where, and its bytes.
    packed: Option<(Pointer, u32)>,
    /// Of a file in several.
    extents: Option<(Vec<RawExtent>, Option<Remainder>)>,
    /// Of a file that was not closed: its name to be.
    path: Option<&'a str>,
}

impl<'a> KeptNode<'a> {
    fn decode(reader: &mut Reader<'a>) -> std::result::Result<KeptNode<'a>, DecodeError> {
        let mut node = KeptNode {
            at: Decode::decode(reader)?,
            generation: Decode::decode(reader)?,
            kind: Decode::decode(reader)?,
            flags: Decode::decode(reader)?,
            parent: Decode::decode(reader)?,
            name: reader.str()?,
            mode: Decode::decode(reader)?,
            mtime: Decode::decode(reader)?,
            class: Decode::decode(reader)?,
            metadata: reader.bytes()?,
            crc: Decode::decode(reader)?,
            target: None,
            packed: None,
            extents: None,
            path: None,
        };
        if node.kind == NodeKind::Symlink {
            node.target = Some(reader.str()?);
        }
        if node.flags & PACKED != 0 {
            node.packed = Some((Decode::decode(reader)?, Decode::decode(reader)?));
        }
        if node.flags & EXTENTS != 0 {
            node.extents = Some((Decode::decode(reader)?, Decode::decode(reader)?));
        }
        if node.flags & UNCLOSED != 0 {
            node.path = Some(reader.str()?);
        }
        Ok(node)
    }
}

/// Which flags a node of a kind may have.
fn check_flags(kind: NodeKind, flags: u8) -> Result<()> {
    let allowed = match kind {
        NodeKind::File => [0, UNCLOSED, PACKED, EXTENTS].as_slice(),
        NodeKind::KeyValue => &[0, PACKED, EXTENTS],
        _ => &[0],
    };
    let crc = if kind.is_data() && flags & UNCLOSED == 0 { HAS_CRC } else { 0 };
    let nameless = flags & (DETACHED | LEAVING | ARRIVING);
    let moves = match nameless {
        0 | DETACHED | LEAVING => flags & UNCLOSED == 0 || nameless == 0,
        _ => nameless == ARRIVING && kind == NodeKind::Directory,
    };
    ensure(moves && allowed.contains(&(flags & !crc & !nameless)), || {
        format!("flags {flags:#x} do not suit a {}", kind.name())
    })
}
