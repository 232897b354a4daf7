//! A commit on its way: which appends it takes, where their records lie, its bytes, and the answers
//! once it is written. Made by [`super::Core`], written by `commit.rs` and `writeback.rs`.

use super::{Append, Pending};
use crate::api::ChunkKind;
use crate::format::{
    BLOCK, COMMIT_HEADER_BYTES, CommitHeader, FileHeader, RECORD_ALIGN, RecordHeader, SECTOR,
};
use holdfast_base::checksum::crc32c_combine;
use holdfast_base::ids::Slot;
use holdfast_base::{Error, Result};
use holdfast_env::planted;

/// Appends taken out for one commit, and where they go.
pub struct Batch {
    pub(super) items: Vec<Pending>,
    pub(super) records: Vec<Planned>,
    pub header: CommitHeader,
    pub offset: u64,
    pub class: Class,
    pub(super) first_slot: u32,
    /// Appends that did not fit any more.
    pub refused: Vec<Pending>,
}

/// What a commit is, once it has been written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Durable, with all before it.
    Durable,
    /// Written.
    Written,
    /// Written; its appends were acknowledged before, from the journal, which keeps them until a
    /// sync of the file.
    Deferred,
}

/// One record of a commit to be.
pub(super) struct Planned {
    /// From the commit's start.
    pub(super) at: u64,
    pub(super) header: RecordHeader,
    pub(super) crcs: Vec<u32>,
}

impl Batch {
    /// Whether anything is to be written.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub fn padded_bytes(&self) -> u64 {
        let border = u64::from(planted!("chunk.sector-border-skipped"));
        (self.header.bytes + border).next_multiple_of(SECTOR)
    }

    /// Places the records. All appends to a raw chunk are one record: they follow each other, and
    /// their checksums combine.
    pub(super) fn layout(&mut self, file: &FileHeader) {
        let mut at = COMMIT_HEADER_BYTES as u64;
        let sequence = self.header.sequence;
        match (file.kind, self.items.first().map(|i| &i.append)) {
            (ChunkKind::Raw, Some(&Append::Raw { at: first, .. })) => {
                let bytes = self.items.iter().map(Pending::payload_bytes).sum::<u64>();
                let header = RecordHeader::raw(first, file.owner, bytes as u32, sequence);
                let crcs = merge_crcs(first, &self.items);
                self.records.push(Planned { at, header, crcs });
                at += header.record_bytes();
            }
            _ => {
                for (i, item) in self.items.iter_mut().enumerate() {
                    let Append::Needle { needle, .. } = &item.append else { continue };
                    let slot = Slot(self.first_slot + i as u32);
                    let bytes = item.payload_bytes() as u32;
                    let header = RecordHeader::needle(slot, needle, bytes, sequence);
                    let crcs = std::mem::take(&mut item.crcs);
                    self.records.push(Planned { at, header, crcs });
                    at += header.record_bytes();
                }
            }
        }
        self.header.bytes = at;
    }

    /// Writes the commit into `out`, which is as long as [`Batch::padded_bytes`] and may hold
    /// old bytes. The bodies' only copy.
    pub fn encode(&self, file: &FileHeader, out: &mut [u8]) {
        self.header.encode_into(file, self.offset, out);
        let mut at = COMMIT_HEADER_BYTES;
        let mut items = self.items.iter();
        for record in &self.records {
            let offset = self.offset + record.at;
            let share = match file.kind {
                ChunkKind::Raw => usize::MAX,
                ChunkKind::Packed => 1,
            };
            let mut hint: &[u8] = &[];
            let start = at;
            at += record.header.head_bytes() as usize;
            for item in items.by_ref().take(share) {
                if let Append::Needle { needle, .. } = &item.append {
                    hint = &needle.hint;
                }
                let body = (*item.body).as_ref();
                out[at..at + body.len()].copy_from_slice(body);
                at += body.len();
            }
            record.header.encode_into(file, offset, &record.crcs, hint, &mut out[start..]);
            let end = at.next_multiple_of(RECORD_ALIGN as usize);
            out[at..end].fill(0);
            at = end;
        }
        out[at..].fill(0);
    }

    /// Calls everybody back. Without locks.
    pub fn answer(self, result: Result<()>) {
        for (slot, item) in (self.first_slot..).zip(self.items) {
            let end = match &item.append {
                Append::Raw { at, .. } => at + item.payload_bytes(),
                Append::Needle { .. } => 0,
            };
            match (item.append, &result) {
                (Append::Raw { done, .. }, result) => done(result.clone().map(|()| end)),
                (Append::Needle { done, .. }, result) => done(result.clone().map(|()| Slot(slot))),
            }
        }
        for item in self.refused {
            item.fail(Error::full(
                "append to a chunk: its file cannot take the commit; seal it and go on in a new one",
            ));
        }
    }
}

/// Checksums of the pieces of all items together, which begin at byte `first` of the chunk.
fn merge_crcs(first: u64, items: &[Pending]) -> Vec<u32> {
    let mut merged: Vec<u32> = Vec::new();
    let mut at = first;
    for item in items {
        let end = at + item.payload_bytes();
        for &crc in &item.crcs {
            let next = ((at / BLOCK + 1) * BLOCK).min(end);
            match merged.last_mut() {
                Some(last) if at != first && !at.is_multiple_of(BLOCK) => {
                    *last = crc32c_combine(*last, crc, next - at);
                }
                _ => merged.push(crc),
            }
            at = next;
        }
    }
    merged
}
