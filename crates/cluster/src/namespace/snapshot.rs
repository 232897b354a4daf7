//! The namespace as bytes: docs/formats/namespace.md. The same state has one form, whatever its
//! history: everything is in order of id, and what can be found again is left out.

use super::chunks::{Chunk, Dropped, OldGeneration};
use super::nodes::{EXTENTS, PACKED, UNCLOSED};
use super::{Freed, FreedThing, Namespace};
use crate::{Location, NodeKind};
use holdfast_base::checksum::crc32c;
use holdfast_base::codec::{Encode, put_bytes};
use holdfast_base::{codec_enum, codec_struct};
use holdfast_env::planted;

pub(super) const MAGIC: [u8; 4] = *b"HFNV";
pub(super) const VERSION: u8 = 2;
/// Its chunks want as many copies as they have replicas, and remember none that was dropped.
pub(super) const VERSION_BEFORE_COPIES: u8 = 1;

codec_struct!(Dropped { generation, store });
codec_struct!(OldGeneration { generation, replicas, released });
codec_enum!(FreedThing: "freed thing" {
    1 => Slot { chunk, slot, bytes },
    2 => Chunk { chunk },
    3 => Generation { chunk, generation },
});
codec_struct!(Freed { index, what });

impl Namespace {
    /// Appends the state's one byte form.
    pub fn snapshot(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&MAGIC);
        out.push(VERSION);
        self.shard.encode(out);
        self.chunk_next.encode(out);
        (self.chunks.len() as u32).encode(out);
        self.chunks.iter().for_each(|chunk| encode_chunk(chunk, out));
        (self.nodes.free.len() as u32).encode(out);
        for at in &self.nodes.free {
            at.encode(out);
            self.nodes[*at].generation.encode(out);
        }
        self.retired().encode(out);
        (self.nodes.iter().count() as u32).encode(out);
        self.nodes.iter().for_each(|at| self.encode_node(at, out));
        self.detached.encode(out);
        let freed = if planted!("cluster.snapshot-without-graces") { 0 } else { self.freed.len() };
        (freed as u32).encode(out);
        self.freed.iter().take(freed).for_each(|freed| freed.encode(out));
        crc32c(&out[start..]).encode(out);
    }

    /// Places that are neither used nor free: their generations are used up.
    fn retired(&self) -> Vec<u32> {
        let gone =
            |at: &u32| self.nodes[*at].kind().is_none() && self.nodes[*at].generation == u32::MAX;
        let candidates: Vec<u32> = (1..self.nodes.len()).filter(gone).collect();
        if candidates.is_empty() {
            return candidates;
        }
        let free: std::collections::BTreeSet<u32> = self.nodes.free.iter().copied().collect();
        candidates.into_iter().filter(|at| !free.contains(at)).collect()
    }

    fn encode_node(&self, at: u32, out: &mut Vec<u8>) {
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
            if let Location::Packed { pointer } = self.location(at) {
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
}

fn encode_chunk(chunk: &Chunk, out: &mut Vec<u8>) {
    chunk.id.encode(out);
    chunk.kind.encode(out);
    chunk.state.encode(out);
    chunk.generation.encode(out);
    chunk.tier.encode(out);
    chunk.durability.encode(out);
    chunk.owner.encode(out);
    chunk.node.encode(out);
    chunk.length.encode(out);
    chunk.replicas.encode(out);
    chunk.old.encode(out);
    chunk.digest.encode(out);
    chunk.freed.encode(out);
    chunk.dead.words().encode(out);
    chunk.copies.encode(out);
    chunk.dropped.encode(out);
}
