//! What a store's journal holds at a start, and how a chunk's file gets what it misses of it.
//! Called by `load.rs`, before the store exists; knows nothing of other files.

use crate::format::{FileHeader, SECTOR};
use crate::journal_format::{SegmentHeader, Walked, last_use, walk};
use crate::open::Core;
use holdfast_base::checksum::crc32c;
use holdfast_base::ids::{ChunkId, StoreId};
use holdfast_base::limits::BLOCK_BYTES;
use holdfast_base::units::MIB;
use holdfast_env::File;
use holdfast_env::buf::AlignedBuf;
use holdfast_env::planted;
use std::collections::HashMap;
use std::path::PathBuf;

/// An acknowledged append.
struct Record {
    nonce: u64,
    at: u64,
    body: Vec<u8>,
}

/// A batch that was never acknowledged.
pub struct Torn {
    pub offset: u64,
    pub bytes: Vec<u8>,
}

/// Everything that a journal holds.
#[derive(Default)]
pub struct Replay {
    records: HashMap<ChunkId, Vec<Record>>,
    /// Sentences about acknowledged batches that are invalid now.
    pub damage: Vec<String>,
    pub torn: Vec<Torn>,
}

/// What one file misses.
pub struct Missed {
    /// Each follows the one before it, the first one the file.
    pub appends: Vec<(u64, Vec<u8>)>,
    /// Acknowledged bytes that neither file nor journal has, in words.
    pub gap: Option<String>,
}

impl Replay {
    /// Reads segments, given with their paths. Those of other stores and those that were never
    /// used hold nothing.
    pub fn read(store: StoreId, segments: Vec<(PathBuf, Vec<u8>)>) -> Replay {
        let mut replay = Replay::default();
        // With the number of its use, and where the use before it ended.
        let mut used: Vec<(u64, Option<u64>, PathBuf, Vec<u8>)> = Vec::new();
        for (path, bytes) in segments {
            let header = SegmentHeader::decode_sector(&bytes).ok().filter(|h| h.store == store);
            match header {
                Some(h) => used.push((h.number, Some(h.previous_end), path, bytes)),
                // Of a clean segment, torn, or damaged: its batches say where they belong.
                None => used.extend(last_use(store, &bytes).map(|n| (n, None, path, bytes))),
            }
        }
        used.sort_by_key(|(number, ..)| *number);
        for i in 0..used.len() {
            let (number, _, path, bytes) = &used[i];
            let walked = replay.follow(store, *number, bytes);
            let successor = used.get(i + 1).filter(|next| next.0 == number + 1);
            let end = successor.and_then(|next| next.1).unwrap_or(walked.end);
            let short = (walked.end < end).then_some(walked.end..end);
            for place in walked.damage.into_iter().chain(short) {
                replay.damage.push(format!(
                    "`{}`: bytes {} to {} fail their checksums and were acknowledged",
                    path.display(),
                    place.start,
                    place.end
                ));
            }
            if let Some(torn) = walked.torn.filter(|_| successor.is_none()) {
                let bytes = bytes[torn.start as usize..torn.end as usize].to_vec();
                replay.torn.push(Torn { offset: torn.start, bytes });
            }
        }
        replay
    }

    fn follow(&mut self, store: StoreId, number: u64, bytes: &[u8]) -> Walked {
        walk(store, number, bytes, |record, body| {
            let (nonce, at, body) = (record.nonce, record.at, body.to_vec());
            self.records.entry(record.chunk).or_default().push(Record { nonce, at, body });
        })
    }

    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Whether anything in it belongs to the file of `header`.
    pub fn has(&self, header: &FileHeader) -> bool {
        let records = self.records.get(&header.chunk);
        records.is_some_and(|records| records.iter().any(|r| r.nonce == header.nonce))
    }

    /// What the file of `header`, which has `length` bytes of its chunk, misses.
    pub fn missed(&mut self, header: &FileHeader, length: u64) -> Missed {
        let mut missed = Missed { appends: Vec::new(), gap: None };
        let mut length = length;
        let mut records = self.records.remove(&header.chunk).unwrap_or_default();
        if planted!("chunk.replay-skips-the-last") {
            records.pop();
        }
        for record in records {
            let end = record.at + record.body.len() as u64;
            if record.nonce != header.nonce || end <= length {
                continue;
            }
            let Some(skip) = length.checked_sub(record.at) else {
                missed.gap = Some(format!(
                    "bytes {length} to {} of the chunk were acknowledged and are lost with a \
                     damaged journal; what follows is not served",
                    record.at
                ));
                break;
            };
            missed.appends.push((length, record.body[skip as usize..].to_vec()));
            length = end;
        }
        missed
    }
}

/// Writes zeros from `start`, a sector's, up to the end of the sector that holds `end`.
pub fn clear(file: &dyn File, start: u64, end: u64) -> std::io::Result<()> {
    let zeros = AlignedBuf::zeroed(MIB as usize);
    let end = end.next_multiple_of(SECTOR);
    for at in (start..end).step_by(zeros.len()) {
        file.write_at(&zeros[..(end - at).min(zeros.len() as u64) as usize], at)?;
    }
    Ok(())
}

/// Gives a chunk's file what it misses, durably.
pub fn replay(
    header: &FileHeader,
    file: &dyn File,
    core: &mut Core,
    appends: Vec<(u64, Vec<u8>)>,
) -> std::io::Result<()> {
    for (at, body) in appends {
        let crcs = piece_crcs(at, &body);
        core.adopt(at, body, crcs);
    }
    while core.has_work() {
        let Some(batch) = core.take_batch(header) else { break };
        let mut buf = AlignedBuf::zeroed(batch.padded_bytes() as usize);
        batch.encode(header, &mut buf);
        file.write_at(&buf, batch.offset)?;
        core.finish(&batch);
        core.allocated = core.allocated.max(core.data_end);
        core.in_flight = false;
    }
    file.sync("chunk.replay")
}

/// Checksums of the parts of `body`, which begins at byte `at`, between borders of blocks.
fn piece_crcs(at: u64, mut body: &[u8]) -> Vec<u32> {
    let mut crcs = Vec::new();
    let mut room = (BLOCK_BYTES - at % BLOCK_BYTES) as usize;
    while !body.is_empty() {
        let (piece, rest) = body.split_at(room.min(body.len()));
        crcs.push(crc32c(piece));
        (body, room) = (rest, BLOCK_BYTES as usize);
    }
    crcs
}
