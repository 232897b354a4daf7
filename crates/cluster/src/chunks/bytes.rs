//! Chunks as bytes of a snapshot, and from them: docs/formats/namespace.md. What is read is checked
//! before it is believed.

use super::chunk::Bitmap;
use super::space::check_replicas;
use super::{Chunk, ChunkState, Chunks, Dropped, Freed, FreedThing, OldGeneration};
use crate::ChunkKind;
use crate::command::{BLOBS, REPLICAS_MAX};
use crate::namespace::{VERSION_BEFORE_ATTEMPTS, VERSION_BEFORE_COPIES, ensure};
use holdfast_base::codec::{Decode, DecodeError, Encode, Reader};
use holdfast_base::ids::{ChunkId, FileId, Generation};
use holdfast_base::limits::{CHUNK_BYTES, CHUNK_SLOTS_MAX, PACKED_BYTES_MAX};
use holdfast_base::stream::{Source, Writer};
use holdfast_base::{Error, Result, codec_enum, codec_struct};
use holdfast_env::planted;
use std::collections::BTreeSet;

codec_struct!(Dropped { generation, store });
codec_struct!(OldGeneration { generation, replicas, released });
codec_enum!(FreedThing: "freed thing" {
    1 => Slot { chunk, slot, bytes },
    2 => Chunk { chunk },
    3 => Generation { chunk, generation },
});
codec_struct!(Freed { index, what });

impl Chunks {
    /// Shard, counter and chunks.
    pub(crate) fn write(&self, out: &mut Writer<'_>) {
        out.put(&self.shard);
        out.put(&self.next);
        out.put(&(self.table.len() as u32));
        self.table.iter().for_each(|chunk| out.put_with(|out| encode_chunk(chunk, out)));
    }

    /// What waits for a `Release`.
    pub(crate) fn write_freed(&self, out: &mut Writer<'_>) {
        let freed = if planted!("cluster.snapshot-without-graces") { 0 } else { self.freed.len() };
        out.put(&(freed as u32));
        self.freed.iter().take(freed).for_each(|freed| out.put(freed));
    }

    pub(crate) fn read(version: u8, source: &mut Source<'_>) -> Result<Chunks> {
        let mut chunks = Chunks::new(source.get()?);
        chunks.next = source.get()?;
        ensure(chunks.next <= 1 << 48, || format!("chunk counter {} is too high", chunks.next))?;
        let mut last = None;
        for _ in 0..source.get::<u32>()? {
            let chunk = source.get_with(|reader| decode_chunk(version, reader))?;
            check_chunk(&chunk).map_err(|e| e.context(format_args!("chunk `{}`", chunk.id)))?;
            let known = chunk.id.shard() == chunks.shard && chunk.id.counter() < chunks.next;
            ensure(known && last < Some(chunk.id), || {
                format!("chunk `{}` is out of place", chunk.id)
            })?;
            last = Some(chunk.id);
            chunks.table.insert(chunk);
        }
        Ok(chunks)
    }

    pub(crate) fn read_freed(&mut self, source: &mut Source<'_>) -> Result<()> {
        for _ in 0..source.get::<u32>()? {
            self.restore_freed(source.get()?)?;
        }
        Ok(())
    }

    /// Marks a slot that a node or a reader's grace holds.
    pub(crate) fn restore_object(&mut self, chunk: ChunkId, slot: u32, bytes: u64) -> Result<()> {
        let room = slot < CHUNK_SLOTS_MAX && bytes > 0 && bytes <= PACKED_BYTES_MAX;
        if room && !self.is_own(chunk) {
            self.take_slot(chunk, slot);
            return Ok(());
        }
        let chunk = self.table.get_mut(chunk).filter(|chunk| {
            let alive = chunk.kind == ChunkKind::Packed && chunk.state != ChunkState::Doomed;
            room && alive && !chunk.live.contains(slot) && !chunk.dead.contains(slot)
        });
        let chunk =
            chunk.ok_or_else(|| Error::corrupt(format!("slot {slot} cannot hold its bytes")))?;
        chunk.give_birth(slot, bytes as u32);
        Ok(())
    }

    fn restore_freed(&mut self, freed: Freed) -> Result<()> {
        match freed.what {
            FreedThing::Slot { chunk, slot, bytes } => {
                ensure(self.is_own(chunk), || format!("chunk `{chunk}` is another shard's"))?;
                self.restore_object(chunk, slot, bytes as u64)?;
            }
            FreedThing::Chunk { chunk } => {
                let known = self.table.get(chunk).is_some_and(|chunk| chunk.freed);
                ensure(known, || format!("chunk `{chunk}` is not freed"))?;
            }
            FreedThing::Generation { chunk, generation } => {
                let old = self.table.get(chunk).and_then(|chunk| {
                    chunk.old.iter().find(|old| old.generation == generation && !old.released)
                });
                ensure(old.is_some(), || format!("chunk `{chunk}` has no `{generation}` to free"))?;
            }
        }
        self.freed.push_back(freed);
        Ok(())
    }

    /// What waits for its release is told once, and what a chunk says of its graces is in the list.
    pub(crate) fn check_freed(&self) -> Result<()> {
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
        for chunk in self.table.iter() {
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
        }
        Ok(())
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
    chunk.begun.encode(out);
}

fn decode_chunk(version: u8, reader: &mut Reader<'_>) -> std::result::Result<Chunk, DecodeError> {
    let mut chunk = Chunk {
        id: Decode::decode(reader)?,
        kind: Decode::decode(reader)?,
        state: Decode::decode(reader)?,
        generation: Decode::decode(reader)?,
        begun: Generation(0),
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
    chunk.begun = match version {
        ..=VERSION_BEFORE_ATTEMPTS => chunk.generation,
        _ => Decode::decode(reader)?,
    };
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
        chunk.begun == chunk.generation
            || chunk.begun > chunk.generation
                && matches!(chunk.state, ChunkState::Closed | ChunkState::Doomed),
        chunk.length <= CHUNK_BYTES && (chunk.state != ChunkState::Open || chunk.length == 0),
        dead.len() <= CHUNK_SLOTS_MAX as usize / 64,
        replicas && old && dropped,
        (1..=REPLICAS_MAX).contains(&(chunk.copies as usize)),
        chunk.state != ChunkState::Open || chunk.dropped.is_empty(),
        chunk.state != ChunkState::Open || chunk.replicas.len() <= chunk.copies as usize,
    ];
    ensure(!rules.contains(&false), || "its parts do not agree".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_base::ids::{Durability, NodeId, StoreId, Tier};

    /// Sealed, of blobs, rewritten twice; one replica was dropped.
    fn packed() -> Chunk {
        let replicas = [1, 2, 3].map(StoreId).to_vec();
        let (id, what) = (ChunkId::new(0, 1), (ChunkKind::Packed, FileId(0)));
        let how = (Tier::Disk, Durability::Durable);
        let mut chunk = Chunk::new(id, what, NodeId(1), (replicas.clone(), 3), how);
        chunk.state = ChunkState::Closed;
        (chunk.generation, chunk.begun, chunk.length) = (Generation(2), Generation(5), 9);
        let old = |generation| OldGeneration {
            generation: Generation(generation),
            replicas: replicas.clone(),
            released: false,
        };
        chunk.old = vec![old(0), old(1)];
        let dropped = |generation, store| Dropped {
            generation: Generation(generation),
            store: StoreId(store),
        };
        chunk.dropped = vec![dropped(1, 1), dropped(2, 4)];
        chunk.dead = Bitmap::from_words(vec![1]).unwrap();
        chunk
    }

    /// Open, of a file.
    fn raw() -> Chunk {
        let (id, what) = (ChunkId::new(0, 1), (ChunkKind::Raw, FileId(7)));
        let how = (Tier::Disk, Durability::Durable);
        Chunk::new(id, what, NodeId(1), (vec![StoreId(1), StoreId(2)], 2), how)
    }

    /// A snapshot whose checksum is right and whose parts are not is from another program, or of a
    /// bug: what it would do to the chunks of a cluster, nobody knows.
    #[test]
    fn a_chunk_whose_parts_do_not_agree_is_refused() {
        type Change = fn(&mut Chunk);
        let well: [(fn() -> Chunk, Change); 8] = [
            (packed, |_| ()),
            (raw, |_| ()),
            (packed, |chunk| chunk.owner = BLOBS),
            (packed, |chunk| chunk.replicas.clear()),
            (packed, |chunk| chunk.state = ChunkState::Doomed),
            (packed, |chunk| {
                (chunk.state, chunk.replicas, chunk.old) =
                    (ChunkState::Doomed, Vec::new(), Vec::new());
            }),
            (raw, |chunk| (chunk.state, chunk.freed, chunk.length) = (ChunkState::Sealed, true, 5)),
            (raw, |chunk| chunk.copies = 16),
        ];
        for (at, (chunk, change)) in well.into_iter().enumerate() {
            let mut chunk = chunk();
            change(&mut chunk);
            assert_eq!(check_chunk(&chunk), Ok(()), "{at}: {chunk:?}");
        }
        let wrong: [(fn() -> Chunk, Change); 28] = [
            (packed, |chunk| chunk.owner = FileId(7)),
            (raw, |chunk| chunk.owner = FileId(0)),
            (raw, |chunk| chunk.replicas.clear()),
            (raw, |chunk| chunk.replicas = vec![StoreId(2), StoreId(2)]),
            (packed, |chunk| chunk.replicas = vec![StoreId(2), StoreId(2)]),
            (packed, |chunk| {
                *chunk = Chunk { old: Vec::new(), dropped: Vec::new(), ..chunk.clone() };
                (chunk.state, chunk.replicas) = (ChunkState::Doomed, Vec::new());
            }),
            (packed, |chunk| chunk.dropped.reverse()),
            (packed, |chunk| chunk.dropped[1] = chunk.dropped[0]),
            (packed, |chunk| chunk.dropped[1].store = StoreId(3)),
            (packed, |chunk| chunk.dropped[1].generation = Generation(3)),
            (packed, |chunk| chunk.old.reverse()),
            (packed, |chunk| chunk.old[1].generation = Generation(0)),
            (packed, |chunk| chunk.old[1].generation = Generation(2)),
            (packed, |chunk| chunk.old[1].replicas.clear()),
            (packed, |chunk| chunk.begun = Generation(1)),
            (raw, |chunk| chunk.begun = Generation(1)),
            (packed, |chunk| chunk.state = ChunkState::Sealed),
            (packed, |chunk| {
                *chunk = Chunk { old: Vec::new(), dropped: Vec::new(), ..chunk.clone() };
                (chunk.state, chunk.length) = (ChunkState::Open, 0);
            }),
            (packed, |chunk| chunk.freed = true),
            (packed, |chunk| chunk.length = CHUNK_BYTES + 1),
            (packed, |chunk| chunk.copies = 0),
            (packed, |chunk| chunk.copies = REPLICAS_MAX as u8 + 1),
            (packed, |chunk| {
                let mut words = vec![0; CHUNK_SLOTS_MAX as usize / 64 + 1];
                *words.last_mut().unwrap() = 1;
                chunk.dead = Bitmap::from_words(words).unwrap();
            }),
            (raw, |chunk| chunk.dead = Bitmap::from_words(vec![1]).unwrap()),
            (raw, |chunk| (chunk.state, chunk.generation) = (ChunkState::Sealed, Generation(1))),
            (raw, |chunk| chunk.state = ChunkState::Closed),
            (raw, |chunk| (chunk.state, chunk.freed) = (ChunkState::Doomed, true)),
            (raw, |chunk| chunk.length = 1),
        ];
        for (at, (chunk, change)) in wrong.into_iter().enumerate() {
            let mut chunk = chunk();
            change(&mut chunk);
            assert!(check_chunk(&chunk).is_err(), "{at}: {chunk:?}");
        }
        let mut chunk = raw();
        chunk.dropped = vec![Dropped { generation: Generation(0), store: StoreId(9) }];
        assert!(check_chunk(&chunk).is_err(), "nothing of an open chunk is dropped");
        chunk.dropped.clear();
        chunk.copies = 1;
        assert!(check_chunk(&chunk).is_err(), "an open chunk has no more replicas than are wanted");
    }
}
