//! Bytes whose names are in another shard than their chunks. Where the chunk is: *holds*, as alive as names.
//! Where the name is: the chunks that are named as *guests*, and what is owed to their homes once nothing
//! names it any more. A part of the chunks of a shard, asked and changed by its names and by entries.
//!
//! **Invariant:** a slot that was named and is not dead is of exactly one of: a name here, a hold, a grace.

use super::{Chunk, ChunkState, Chunks};
use crate::namespace::ensure;
use crate::{ChunkKind, Outcome, RawExtent};
use holdfast_base::ids::{ChunkId, Index, Pointer};
use holdfast_base::limits::{CHUNK_BYTES, CHUNK_SLOTS_MAX, PACKED_BYTES_MAX};
use holdfast_base::stream::{Source, Writer};
use holdfast_base::{Error, Result, codec_enum};
use holdfast_env::{planted, sometimes};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Debts that one entry tells of.
pub(crate) const DEBTS_MAX: usize = 2048;

/// The places of guests begin here: as many chunks of its own no shard has.
const GUEST: u32 = 1 << 31;

/// Bytes that nothing names any more, which their chunk's shard is to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Debt {
    Slot { chunk: ChunkId, slot: u32 },
    Chunk { chunk: ChunkId },
}
codec_enum!(Debt: "debt" {
    1 => Slot { chunk, slot },
    2 => Chunk { chunk },
});

impl Debt {
    fn chunk(&self) -> ChunkId {
        let (Debt::Slot { chunk, .. } | Debt::Chunk { chunk }) = self;
        *chunk
    }
}

/// What is owed to one shard, oldest first.
#[derive(Default)]
pub(super) struct Owed {
    /// Debts before the first, which were paid: they are numbered from 0 on.
    paid: u64,
    debts: VecDeque<Debt>,
}

/// Chunks of other shards that names here point to, by a number as small as those of the shard's own. Not
/// part of the state: found again from the names.
#[derive(Default)]
pub(super) struct Guests {
    slab: Vec<(ChunkId, u32)>,
    free: Vec<u32>,
    by_id: BTreeMap<ChunkId, u32>,
}

impl Guests {
    fn place(&self, id: ChunkId) -> Option<u32> {
        self.by_id.get(&id).map(|at| GUEST | at)
    }

    fn id_at(&self, place: u32) -> ChunkId {
        self.slab.get((place & !GUEST) as usize).map_or(ChunkId(0), |(id, _)| *id)
    }

    fn enter(&mut self, id: ChunkId) {
        let at = *self.by_id.entry(id).or_insert_with(|| match self.free.pop() {
            Some(at) => {
                self.slab[at as usize] = (id, 0);
                at
            }
            None => {
                self.slab.push((id, 0));
                self.slab.len() as u32 - 1
            }
        });
        self.slab[at as usize].1 += 1;
    }

    fn leave(&mut self, id: ChunkId) {
        let Some(at) = self.by_id.get(&id).copied() else { return };
        let uses = &mut self.slab[at as usize].1;
        *uses -= 1;
        if *uses == 0 {
            self.by_id.remove(&id);
            self.free.push(at);
        }
    }
}

/// What a shard knows of names elsewhere, and owes for its own.
#[derive(Default)]
pub(super) struct Elsewhere {
    /// Bytes of each slot that a name in another shard points to.
    slots: BTreeMap<(ChunkId, u32), u32>,
    chunks: BTreeSet<ChunkId>,
    pub(super) guests: Guests,
    owed: BTreeMap<u16, Owed>,
    /// How many debts of each shard were heard here.
    heard: BTreeMap<u16, u64>,
}

impl Elsewhere {
    pub(super) fn is_none(&self) -> bool {
        self.slots.is_empty()
            && self.chunks.is_empty()
            && self.owed.is_empty()
            && self.heard.is_empty()
    }
}

impl Chunks {
    pub(crate) fn is_own(&self, chunk: ChunkId) -> bool {
        chunk.shard() == self.shard
    }

    pub(super) fn guest_place(&self, chunk: ChunkId) -> Option<u32> {
        self.elsewhere.guests.place(chunk)
    }

    pub(super) fn is_guest_place(place: u32) -> bool {
        place & GUEST != 0
    }

    pub(super) fn guest_at(&self, place: u32) -> ChunkId {
        self.elsewhere.guests.id_at(place)
    }

    /// Slots and whole chunks of this shard that names elsewhere point to.
    pub fn held(&self) -> (usize, usize) {
        (self.elsewhere.slots.len(), self.elsewhere.chunks.len())
    }

    /// Whether a name elsewhere points into a chunk.
    pub fn is_held(&self, chunk: ChunkId) -> bool {
        self.elsewhere.chunks.contains(&chunk) || self.held_slots(chunk).next().is_some()
    }

    pub(super) fn held_slots(&self, chunk: ChunkId) -> impl Iterator<Item = u32> {
        let of = (chunk, 0)..=(chunk, u32::MAX);
        self.elsewhere.slots.range(of).map(|((_, slot), _)| *slot)
    }

    pub(crate) fn is_held_whole(&self, chunk: ChunkId) -> bool {
        self.elsewhere.chunks.contains(&chunk)
    }

    /// Bytes of other shards' chunks that nothing names any more, and which they were not told.
    pub fn owing(&self) -> usize {
        self.elsewhere.owed.values().map(|owed| owed.debts.len()).sum()
    }

    /// By shard, how many debts were paid, and the next that are to be.
    pub(crate) fn owed(&self) -> impl Iterator<Item = (u16, u64, Vec<Debt>)> {
        self.elsewhere.owed.iter().map(|(home, owed)| {
            (*home, owed.paid, owed.debts.iter().copied().take(DEBTS_MAX).collect())
        })
    }

    /// How many debts of a shard were heard here.
    pub(crate) fn heard_of(&self, from: u16) -> u64 {
        self.elsewhere.heard.get(&from).copied().unwrap_or(0)
    }

    /// Refuses a slot that cannot come with a name: one of another shard's that cannot be, one of this
    /// shard that no name elsewhere has.
    pub(crate) fn check_taken_slot(&self, pointer: Pointer, bytes: u64) -> Result<()> {
        let (chunk, slot) = (pointer.chunk, pointer.slot.0);
        let possible = bytes > 0 && bytes <= PACKED_BYTES_MAX && slot < CHUNK_SLOTS_MAX;
        let held = || self.elsewhere.slots.get(&(chunk, slot)).is_some_and(|b| *b as u64 == bytes);
        match possible && (!self.is_own(chunk) || held()) {
            true => Ok(()),
            false => Err(Error::invalid(format!("slot {slot} of chunk `{chunk}` is not held"))),
        }
    }

    /// As [`Chunks::check_taken_slot`], of a raw chunk.
    pub(crate) fn check_taken_chunk(&self, extent: RawExtent) -> Result<()> {
        let held = || self.elsewhere.chunks.contains(&extent.chunk);
        match !self.is_own(extent.chunk) || held() {
            true => self.check_listed(extent),
            false => Err(Error::invalid(format!("chunk `{}` is not held", extent.chunk))),
        }
    }

    /// Refuses an extent that no file can have, whoever's it is.
    pub(crate) fn check_listed(&self, extent: RawExtent) -> Result<()> {
        let most = match (self.is_own(extent.chunk), self.table.get(extent.chunk)) {
            (false, _) => CHUNK_BYTES,
            (true, Some(chunk)) if is_whole(chunk) => chunk.length,
            (true, _) => 0,
        };
        match extent.length > 0 && extent.length <= most {
            true => Ok(()),
            false => Err(Error::invalid(format!("chunk `{}` has no such bytes", extent.chunk))),
        }
    }

    /// A name came that points to a slot: a guest, or one that was held until now.
    pub(crate) fn take_slot(&mut self, chunk: ChunkId, slot: u32) {
        match self.is_own(chunk) {
            true => drop(self.elsewhere.slots.remove(&(chunk, slot))),
            false => self.elsewhere.guests.enter(chunk),
        }
    }

    pub(crate) fn take_chunk(&mut self, chunk: ChunkId) {
        self.elsewhere.chunks.remove(&chunk);
    }

    /// A name goes whose file is elsewhere: what it held here is held for that one.
    pub(crate) fn yield_slot(&mut self, chunk: ChunkId, slot: u32, bytes: u32) {
        match self.is_own(chunk) {
            true if planted!("cluster.forgotten-not-held") => {
                self.free_object(Index(0), chunk, slot, bytes);
            }
            true => drop(self.elsewhere.slots.insert((chunk, slot), bytes)),
            false => self.elsewhere.guests.leave(chunk),
        }
    }

    pub(crate) fn yield_chunk(&mut self, chunk: ChunkId) {
        if self.is_own(chunk) {
            self.elsewhere.chunks.insert(chunk);
        }
    }

    /// Nothing names a guest's slot any more.
    pub(super) fn owe_slot(&mut self, chunk: ChunkId, slot: u32) {
        self.elsewhere.guests.leave(chunk);
        self.owe(Debt::Slot { chunk, slot });
    }

    pub(super) fn owe_chunk(&mut self, chunk: ChunkId) {
        self.owe(Debt::Chunk { chunk });
    }

    fn owe(&mut self, debt: Debt) {
        let home = debt.chunk().shard();
        self.elsewhere.owed.entry(home).or_default().debts.push_back(debt);
    }

    /// What another shard owed, from its debt `first` on: nothing anywhere names it any more. Their readers
    /// have their grace from here on.
    pub(crate) fn let_go(
        &mut self,
        index: Index,
        from: u16,
        first: u64,
        debts: &[Debt],
    ) -> Result<Outcome> {
        let heard = self.heard_of(from);
        if first > heard {
            return Err(Error::retry(format!("shard {from} owed {heard} so far, not {first}")));
        }
        let known = ((heard - first) as usize).min(debts.len());
        // A name that has left is not forgotten yet, or one that was to come back is not discarded.
        if debts[known..].iter().any(|debt| self.is_not_held_yet(debt))
            && !planted!("cluster.let-go-before-it-is-held")
        {
            return Err(Error::retry("some are not held yet: ask again"));
        }
        for debt in &debts[known..] {
            match *debt {
                Debt::Slot { chunk, slot } => {
                    if let Some(bytes) = self.elsewhere.slots.remove(&(chunk, slot)) {
                        sometimes!("a moved file's slot was released");
                        self.free_object(index, chunk, slot, bytes);
                    }
                }
                Debt::Chunk { chunk } if self.elsewhere.chunks.remove(&chunk) => {
                    self.free_chunk(index, chunk);
                }
                Debt::Chunk { .. } => {}
            }
        }
        self.elsewhere.heard.insert(from, heard.max(first + debts.len() as u64));
        Ok(Outcome::Done {})
    }

    /// Whether a name that comes, or has left, is not given up here yet: it is held once that is so.
    pub(crate) fn is_not_held_yet(&self, debt: &Debt) -> bool {
        let Some(chunk) = self.table.get(debt.chunk()) else { return false };
        match *debt {
            Debt::Slot { chunk: id, slot } => {
                chunk.live.contains(slot) && !self.elsewhere.slots.contains_key(&(id, slot))
            }
            Debt::Chunk { chunk: id } => is_whole(chunk) && !self.is_held_whole(id),
        }
    }

    /// The first `through` debts to a shard were heard there.
    pub(crate) fn pay(&mut self, home: u16, through: u64) -> Result<Outcome> {
        let owed = self.elsewhere.owed.get_mut(&home);
        let owes = owed.as_ref().map_or(0, |owed| owed.paid + owed.debts.len() as u64);
        if through > owes {
            let what = format!("shard {home} was owed {owes} so far, not {through}");
            return Err(Error::invalid(what));
        }
        if let Some(owed) = owed {
            let paid = through.saturating_sub(owed.paid);
            owed.debts.drain(..paid as usize);
            owed.paid += paid;
        }
        Ok(Outcome::Done {})
    }

    /// Whether anything is held, owed, or was heard of.
    pub(crate) fn is_any_elsewhere(&self) -> bool {
        !self.elsewhere.is_none()
    }

    pub(crate) fn write_elsewhere(&self, out: &mut Writer<'_>) {
        let Elsewhere { slots, chunks, owed, heard, .. } = &self.elsewhere;
        out.put(&(slots.len() as u32));
        for ((chunk, slot), bytes) in slots {
            out.put(chunk);
            out.put(slot);
            out.put(bytes);
        }
        out.put(&(chunks.len() as u32));
        chunks.iter().for_each(|chunk| out.put(chunk));
        out.put(&(owed.len() as u32));
        for (home, Owed { paid, debts }) in owed {
            out.put(home);
            out.put(paid);
            out.put(&(debts.len() as u32));
            debts.iter().for_each(|debt| out.put(debt));
        }
        out.put(&(heard.len() as u32));
        for (from, count) in heard {
            out.put(from);
            out.put(count);
        }
    }

    /// The inverse of [`Chunks::write_elsewhere`]; chunks and what names keep of them are there.
    pub(crate) fn read_elsewhere(&mut self, source: &mut Source<'_>) -> Result<()> {
        for _ in 0..source.get::<u32>()? {
            let (chunk, slot, bytes): (ChunkId, u32, u32) =
                (source.get()?, source.get()?, source.get()?);
            let last = self.elsewhere.slots.last_key_value().map(|(last, _)| *last);
            ensure(self.is_own(chunk) && last < Some((chunk, slot)), || {
                format!("slot {slot} of chunk `{chunk}` is held out of order")
            })?;
            self.restore_object(chunk, slot, bytes as u64)?;
            self.elsewhere.slots.insert((chunk, slot), bytes);
        }
        for _ in 0..source.get::<u32>()? {
            let chunk: ChunkId = source.get()?;
            let last = self.elsewhere.chunks.last().copied();
            let whole = self.is_own(chunk) && self.table.get(chunk).is_some_and(is_whole);
            ensure(whole && last < Some(chunk), || format!("chunk `{chunk}` cannot be held"))?;
            self.elsewhere.chunks.insert(chunk);
        }
        for _ in 0..source.get::<u32>()? {
            let (home, paid): (u16, u64) = (source.get()?, source.get()?);
            let mut debts = VecDeque::new();
            for _ in 0..source.get::<u32>()? {
                let debt: Debt = source.get()?;
                ensure(debt.chunk().shard() == home, || "a debt is another's".to_owned())?;
                debts.push_back(debt);
            }
            let last = self.elsewhere.owed.last_key_value().map(|(last, _)| *last);
            ensure(home != self.shard && last < Some(home), || "debts are out of order".into())?;
            self.elsewhere.owed.insert(home, Owed { paid, debts });
        }
        for _ in 0..source.get::<u32>()? {
            let (from, count) = (source.get()?, source.get()?);
            let last = self.elsewhere.heard.last_key_value().map(|(last, _)| *last);
            ensure(last < Some(from), || "what was heard is out of order".to_owned())?;
            self.elsewhere.heard.insert(from, count);
        }
        Ok(())
    }
}

/// Raw, sealed, and not deleted.
fn is_whole(chunk: &Chunk) -> bool {
    chunk.kind == ChunkKind::Raw && chunk.state == ChunkState::Sealed && !chunk.freed
}
