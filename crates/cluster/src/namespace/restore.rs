//! The namespace from bytes. Everything is checked before it is believed: damage, and what no
//! build writes, is refused with the reason and never panics. What a snapshot leaves out (the
//! table, the order of children, live slots, totals) is found again here.

use super::chunks::{Bitmap, Chunk};
use super::nodes::{DETACHED, EXTENTS, HAS_CRC, PACKED, ROOT, UNCLOSED};
use super::snapshot::{MAGIC, VERSION, VERSION_BEFORE_COPIES};
use super::space::check_replicas;
use super::tree::{check_metadata, check_mode};
use super::{ChunkState, FileExtents, Freed, FreedThing, Namespace, Unclosed, table};
use crate::command::{BLOBS, REPLICAS_MAX};
use crate::{ChunkKind, Extent, NodeKind, Remainder, StorageClass};
use holdfast_base::checksum::crc32c;
use holdfast_base::codec::{Decode, Reader};
use holdfast_base::ids::{ChunkId, FileId, Generation, Pointer};
use holdfast_base::limits::{CHUNK_BYTES, CHUNK_SLOTS_MAX, PACKED_BYTES_MAX, PATH_BYTES_MAX};
use holdfast_base::{Error, Result, path};
use std::collections::BTreeSet;
use std::ops::RangeInclusive;

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

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::corrupt(what())) }
}

impl Namespace {
    /// The inverse of [`Namespace::snapshot`].
    pub fn restore(bytes: &[u8]) -> Result<Namespace> {
        checked_body(bytes, MAGIC, VERSION_BEFORE_COPIES..=VERSION)
            .and_then(|(version, body)| Namespace::restore_body(version, body))
            .map_err(|e| e.context("restore the namespace"))
    }

    fn restore_body(version: u8, body: &[u8]) -> Result<Namespace> {
        let mut reader = Reader::new(body);
        let reader = &mut reader;
        let mut ns = Namespace::hollow(u16::decode(reader)?);
        ns.chunk_next = u64::decode(reader)?;
        ensure(ns.chunk_next <= 1 << 48, || {
            format!("chunk counter {} is too high", ns.chunk_next)
        })?;
        let mut last = None;
        for _ in 0..u32::decode(reader)? {
            let chunk = decode_chunk(version, reader)?;
            let known = chunk.id.shard() == ns.shard && chunk.id.counter() < ns.chunk_next;
            ensure(known && last < Some(chunk.id), || {
                format!("chunk `{}` is out of place", chunk.id)
            })?;
            last = Some(chunk.id);
            ns.chunks.insert(chunk);
        }
        ns.restore_places(reader)?;
        let detached = Vec::<u32>::decode(reader)?;
        for _ in 0..u32::decode(reader)? {
            ns.restore_freed(Freed::decode(reader)?)?;
        }
        reader.clone().finish()?;
        ns.restore_detached(detached)?;
        ns.restore_tree()?;
        ns.check_chunks()?;
        Ok(ns)
    }

    fn restore_places(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        let mut free = Vec::new();
        for _ in 0..u32::decode(reader)? {
            free.push((u32::decode(reader)?, u32::decode(reader)?));
        }
        let retired = Vec::<u32>::decode(reader)?;
        let count = u32::decode(reader)?;
        // Each living node has more than 8 bytes, so this also bounds what a lie can allocate.
        ensure(count as usize <= reader.remaining() / 8, || {
            format!("{count} nodes do not fit into the snapshot")
        })?;
        let len = 1 + free.len() as u64 + retired.len() as u64 + count as u64;
        let len = u32::try_from(len).map_err(|_| Error::corrupt("there are too many nodes"))?;
        self.nodes.restore_len(len);
        let mut taken = BTreeSet::new();
        let retired = retired.into_iter().map(|at| (at, u32::MAX));
        for (at, generation) in free.iter().copied().chain(retired) {
            ensure(at > 0 && at < len && taken.insert(at), || format!("place {at} is free twice"))?;
            self.nodes.restore_free(at, generation);
        }
        self.nodes.free = free.into_iter().map(|(at, _)| at).collect();
        let mut last = 0;
        for _ in 0..count {
            let at = u32::decode(reader)?;
            ensure(at > last && at < len && !taken.contains(&at), || {
                format!("node {at} is out of place")
            })?;
            last = at;
            self.restore_node(at, reader).map_err(|e| e.context(format_args!("node {at}")))?;
        }
        Ok(())
    }

    fn restore_node(&mut self, at: u32, reader: &mut Reader<'_>) -> Result<()> {
        let generation = u32::decode(reader)?;
        let kind = NodeKind::decode(reader)?;
        let flags = u8::decode(reader)?;
        let parent = u32::decode(reader)?;
        let name = reader.str()?;
        let nameless = flags & (UNCLOSED | DETACHED) != 0 || at == ROOT;
        ensure(nameless == name.is_empty() && nameless == (parent == 0), || {
            "its name and its place do not agree".to_owned()
        })?;
        if !nameless {
            path::check_name(name).map_err(|e| Error::corrupt(e.message))?;
        }
        check_flags(kind, flags)?;
        self.nodes.restore_node(at, kind, generation);
        self.nodes.set_name(at, name.as_bytes());
        let mode = u16::decode(reader)?;
        check_mode(mode).map_err(|e| Error::corrupt(e.message))?;
        let node = &mut self.nodes[at];
        (node.flags, node.parent, node.mode) = (flags, parent, mode);
        node.mtime = i64::decode(reader)?;
        node.set_class(StorageClass::decode(reader)?);
        let metadata = reader.bytes()?;
        check_metadata(metadata).map_err(|e| Error::corrupt(e.message))?;
        self.set_metadata(at, metadata);
        self.nodes[at].crc = u32::decode(reader)?;
        if kind == NodeKind::Symlink {
            let target = reader.str()?;
            ensure(!target.is_empty() && target.len() <= PATH_BYTES_MAX, || {
                "its target is empty or too long".to_owned()
            })?;
            self.nodes[at].slot = self.nodes.arena.put(target.as_bytes());
        }
        if flags & PACKED != 0 {
            let pointer = Pointer::decode(reader)?;
            let bytes = u32::decode(reader)?;
            self.restore_slot(pointer.chunk, pointer.slot.0, bytes as u64)?;
            let node = &mut self.nodes[at];
            (node.slot, node.cookie, node.size) = (pointer.slot.0, pointer.cookie.0, bytes);
            node.chunk = self.chunks.index(pointer.chunk).unwrap_or_default();
        }
        if flags & EXTENTS != 0 {
            self.restore_extents(at, reader)?;
        }
        if flags & UNCLOSED != 0 {
            let path = String::decode(reader)?;
            path::check(&path).map_err(|e| Error::corrupt(e.message))?;
            self.unclosed.insert(at, Unclosed { path, chunks: Vec::new() });
        }
        Ok(())
    }

    /// Marks a slot that a node or a reader's grace holds.
    fn restore_slot(&mut self, chunk: ChunkId, slot: u32, bytes: u64) -> Result<()> {
        let room = slot < CHUNK_SLOTS_MAX && bytes > 0 && bytes <= PACKED_BYTES_MAX;
        let chunk = self.chunks.get_mut(chunk).filter(|chunk| {
            let alive = chunk.kind == ChunkKind::Packed && chunk.state != ChunkState::Doomed;
            room && alive && !chunk.live.contains(slot) && !chunk.dead.contains(slot)
        });
        let chunk =
            chunk.ok_or_else(|| Error::corrupt(format!("slot {slot} cannot hold its bytes")))?;
        chunk.give_birth(slot, bytes as u32);
        Ok(())
    }

    fn restore_extents(&mut self, at: u32, reader: &mut Reader<'_>) -> Result<()> {
        let extents = Vec::<Extent>::decode(reader)?;
        let remainder = Option::<Remainder>::decode(reader)?;
        ensure(!extents.is_empty(), || "its list of extents is empty".to_owned())?;
        let mut size = 0;
        let mut seen = BTreeSet::new();
        for extent in &extents {
            self.check_extent(self.nodes.id(at), *extent).map_err(|e| Error::corrupt(e.message))?;
            ensure(seen.insert(extent.chunk), || {
                format!("chunk `{}` is named twice", extent.chunk)
            })?;
            size += extent.length;
        }
        if let Some(Remainder { pointer, length }) = remainder {
            self.restore_slot(pointer.chunk, pointer.slot.0, length)?;
            size += length;
        }
        self.extents.insert(at, FileExtents { size, extents, remainder });
        Ok(())
    }

    fn restore_freed(&mut self, freed: Freed) -> Result<()> {
        match freed.what {
            FreedThing::Slot { chunk, slot, bytes } => {
                self.restore_slot(chunk, slot, bytes as u64)?;
            }
            FreedThing::Chunk { chunk } => {
                let known = self.chunks.get(chunk).is_some_and(|chunk| chunk.freed);
                ensure(known, || format!("chunk `{chunk}` is not freed"))?;
            }
            FreedThing::Generation { chunk, generation } => {
                let old = self.chunks.get(chunk).and_then(|chunk| {
                    chunk.old.iter().find(|old| old.generation == generation && !old.released)
                });
                ensure(old.is_some(), || format!("chunk `{chunk}` has no `{generation}` to free"))?;
            }
        }
        self.freed.push_back(freed);
        Ok(())
    }

    fn restore_detached(&mut self, detached: Vec<u32>) -> Result<()> {
        let listed: BTreeSet<u32> = detached.iter().copied().collect();
        let marked: BTreeSet<u32> =
            self.nodes.iter().filter(|at| self.nodes[*at].flags & DETACHED != 0).collect();
        ensure(listed == marked && listed.len() == detached.len(), || {
            "the deleted subtrees do not agree with the nodes".to_owned()
        })?;
        self.detached = detached;
        Ok(())
    }

    fn restore_tree(&mut self) -> Result<()> {
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

    /// What chunks say of files must be what files say of chunks.
    fn check_chunks(&mut self) -> Result<()> {
        let mut waiting = BTreeSet::new();
        for freed in &self.freed {
            let mut fresh = true;
            match freed.what {
                FreedThing::Chunk { chunk } => fresh = waiting.insert((chunk, None)),
                FreedThing::Generation { chunk, generation } => {
                    fresh = waiting.insert((chunk, Some(generation)));
                }
                FreedThing::Slot { .. } => {}
            }
            ensure(fresh, || "something is freed twice".to_owned())?;
        }
        let mut unclosed = Vec::new();
        for chunk in self.chunks.iter() {
            // A face's chunk that was never written to is doomed at its close; one that a rewrite
            // left empty waits for the face's word.
            let unwritten = chunk.length == 0 && chunk.generation == Generation(0);
            let empty = chunk.state == ChunkState::Closed
                && chunk.live_objects == 0
                && (chunk.owner != BLOBS || unwritten);
            let forgotten = chunk.freed && !waiting.contains(&(chunk.id, None))
                || chunk.old.iter().any(|old| {
                    !old.released && !waiting.contains(&(chunk.id, Some(old.generation)))
                });
            ensure(!empty && !forgotten, || format!("chunk `{}` waits for nothing", chunk.id))?;
            if chunk.kind == ChunkKind::Raw && chunk.state != ChunkState::Doomed && !chunk.freed {
                let at = self.nodes.at(chunk.owner);
                let open = at.filter(|at| self.unclosed.contains_key(at));
                let listed = at
                    .and_then(|at| self.extents.get(&at))
                    .is_some_and(|list| list.extents.iter().any(|extent| extent.chunk == chunk.id));
                ensure(open.is_some() || listed, || format!("chunk `{}` has no file", chunk.id))?;
                unclosed.extend(open.map(|at| (at, chunk.id)));
            }
        }
        for (at, chunk) in unclosed {
            if let Some(file) = self.unclosed.get_mut(&at) {
                file.chunks.push(chunk);
            }
        }
        Ok(())
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
    let detached = if flags & UNCLOSED == 0 { DETACHED } else { 0 };
    ensure(allowed.contains(&(flags & !crc & !detached)), || {
        format!("flags {flags:#x} do not suit a {}", kind.name())
    })
}

fn decode_chunk(version: u8, reader: &mut Reader<'_>) -> Result<Chunk> {
    let mut chunk = Chunk {
        id: Decode::decode(reader)?,
        kind: Decode::decode(reader)?,
        state: Decode::decode(reader)?,
        generation: Decode::decode(reader)?,
        tier: Decode::decode(reader)?,
        durability: Decode::decode(reader)?,
        owner: Decode::decode(reader)?,
        node: Decode::decode(reader)?,
        length: Decode::decode(reader)?,
        replicas: Decode::decode(reader)?,
        copies: 0,
        old: Decode::decode(reader)?,
        dropped: Vec::new(),
        digest: Decode::decode(reader)?,
        freed: Decode::decode(reader)?,
        live_objects: 0,
        live_bytes: 0,
        live: Bitmap::default(),
        dead: Bitmap::from_words(Decode::decode(reader)?)?,
    };
    if version == VERSION_BEFORE_COPIES {
        chunk.copies = chunk.replicas.len().clamp(1, REPLICAS_MAX) as u8;
    } else {
        (chunk.copies, chunk.dropped) = (Decode::decode(reader)?, Decode::decode(reader)?);
    }
    check_chunk(&chunk).map_err(|e| e.context(format_args!("chunk `{}`", chunk.id)))?;
    Ok(chunk)
}

fn check_chunk(chunk: &Chunk) -> Result<()> {
    let packed = chunk.kind == ChunkKind::Packed;
    let dead = chunk.dead.words();
    let rewritten = chunk.generation != Generation(0) || !chunk.old.is_empty();
    // No replicas is a state too: of a lost chunk, and of one that was unlinked but for leftovers.
    let replicas = chunk.replicas.is_empty() && chunk.state != ChunkState::Open && !chunk.is_over()
        || check_replicas(&chunk.replicas).is_ok();
    let dropped = chunk.dropped.is_sorted_by(|a, b| a < b)
        && chunk.dropped.iter().all(|dropped| {
            dropped.generation < chunk.generation
                || dropped.generation == chunk.generation
                    && !chunk.replicas.contains(&dropped.store)
        });
    let old = chunk.old.windows(2).all(|pair| pair[0].generation < pair[1].generation)
        && chunk
            .old
            .iter()
            .all(|old| old.generation < chunk.generation && check_replicas(&old.replicas).is_ok());
    let rules = [
        packed == (chunk.owner == FileId(0) || chunk.owner == BLOBS),
        packed || dead.is_empty() && !rewritten && chunk.state != ChunkState::Closed,
        !packed || !chunk.freed,
        !chunk.freed || chunk.state != ChunkState::Doomed,
        // A chunk that was adopted may have been rewritten where it comes from.
        chunk.generation == Generation(0) || chunk.state != ChunkState::Open,
        chunk.old.is_empty() || matches!(chunk.state, ChunkState::Closed | ChunkState::Doomed),
        chunk.length <= CHUNK_BYTES && (chunk.state != ChunkState::Open || chunk.length == 0),
        dead.len() <= CHUNK_SLOTS_MAX as usize / 64,
        replicas && old && dropped,
        (1..=REPLICAS_MAX).contains(&(chunk.copies as usize)),
        chunk.state != ChunkState::Open || chunk.dropped.is_empty(),
        chunk.state != ChunkState::Open || chunk.replicas.len() <= chunk.copies as usize,
    ];
    ensure(!rules.contains(&false), || "its parts do not agree".to_owned())
}
