//! A sealed generation of a chunk on disk: immutable. Its index is in memory as long as there is room
//! for it (see [`Indexes`]), and read from its footer again when it is not.

use crate::api::{ChunkInfo, ChunkKind, ReplicaState};
use crate::format::{FileHeader, Footer, Table};
use crate::index::RawIndex;
use crate::read::{NeedlePlan, damaged};
use crate::slot_table::SlotTable;
use holdfast_base::ids::Slot;
use holdfast_base::units::{KIB, MIB};
use holdfast_base::{Error, Result};
use holdfast_env::disk::Access;
use holdfast_env::sync::Mutex;
use holdfast_env::trial::Knob;
use holdfast_env::{Disk, File, HoldMutex};
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// Sealed files held open at once. Opening costs a few microseconds; descriptors are scarce.
static HANDLES_MAX: Knob = Knob::new("chunk.handles", 256, &[1, 2, 3]);

pub enum SealedIndex {
    Raw(RawIndex),
    Packed { table: SlotTable, damaged: Vec<u32> },
}

pub struct Sealed {
    pub header: FileHeader,
    /// While it is in memory. Held to look and to swap.
    index: Mutex<Option<Arc<SealedIndex>>>,
    /// It was looked at since room was last looked for.
    used: AtomicBool,
    /// Of its objects, if it was computed or read for that since the start.
    pub digest: OnceLock<u64>,
    needles: u64,
    /// Part of it is lost.
    holes: bool,
    pub length: u64,
    pub data_end: u64,
    pub file_bytes: u64,
    /// The footer was lost and the index made again from the records.
    pub rescued: bool,
    /// The file's name, which a switch changes, and its handle while it is open. Held while the
    /// file is opened, so that it is opened once.
    place: Mutex<(PathBuf, Option<Arc<dyn File>>)>,
    /// Where its readers are; held to look and to note.
    readers: Mutex<Readers>,
}

/// A file is read ahead of who reads it front to back in large pieces: this far, in requests of
/// at least this much. The kernel's own read-ahead (128 KiB, once) keeps no disk busy.
const AHEAD_BYTES: u64 = 4 * MIB;
const AHEAD_STEP_BYTES: u64 = 512 * KIB;
/// Reads below are no stream.
const STREAM_READ_BYTES_MIN: u64 = 64 * KIB;

#[derive(Default)]
struct Readers {
    /// Where the furthest read of the stream ended.
    end: u64,
    /// How far the file was asked for.
    asked: u64,
}

impl Readers {
    /// Notes a read, and answers what to ask for before it, of a file whose data end there.
    fn ahead(&mut self, read: Range<u64>, data_end: u64) -> Option<Range<u64>> {
        if read.end - read.start < STREAM_READ_BYTES_MIN {
            return None;
        }
        // Pieces of one stream come in any order, two or three at a time.
        if read.start.abs_diff(self.end) > AHEAD_BYTES {
            *self = Readers { end: read.end, asked: read.end };
            // Whoever begins at the front means to go on.
            if read.start >= STREAM_READ_BYTES_MIN {
                return None;
            }
        }
        self.end = self.end.max(read.end);
        let from = self.asked.max(read.end);
        let to = (self.end + AHEAD_BYTES).min(data_end);
        let worth = to >= from + AHEAD_STEP_BYTES || (to == data_end && to > from);
        worth.then(|| {
            self.asked = to;
            from..to
        })
    }
}

impl SealedIndex {
    pub fn new(header: &FileHeader, footer: Footer) -> SealedIndex {
        match footer.table {
            Table::Raw { extents, blocks } => {
                let plain = |(i, crc): (usize, &u32)| crc ^ header.stamp(i as u64);
                let blocks = blocks.iter().enumerate().map(plain).collect();
                SealedIndex::Raw(RawIndex { extents, blocks, length: footer.length })
            }
            Table::Packed { entries, damaged } => {
                let mut offsets = vec![None; footer.length as usize];
                for entry in entries {
                    offsets[entry.slot as usize] = Some(entry.offset_units);
                }
                SealedIndex::Packed { table: SlotTable::new(offsets.into_iter()), damaged }
            }
        }
    }

    /// Where the needle of `sealed`, whose index this is, lies; `None` if there is none in this slot.
    pub fn needle(&self, sealed: &Sealed, slot: Slot) -> Result<Option<NeedlePlan>> {
        let SealedIndex::Packed { table, damaged: lost } = self else { return Ok(None) };
        match table.get(slot.0) {
            Some((units, next)) => Ok(Some(NeedlePlan::new(units, next, sealed.data_end))),
            None if lost.binary_search(&slot.0).is_ok() => {
                Err(damaged(&sealed.header, format_args!("object {slot} was lost to damage")))
            }
            None => Ok(None),
        }
    }

    pub fn raw(&self, header: &FileHeader) -> Result<&RawIndex> {
        match self {
            SealedIndex::Raw(raw) => Ok(raw),
            SealedIndex::Packed { .. } => Err(wrong_kind(header)),
        }
    }

    /// Memory that it takes, nearly.
    fn bytes(&self) -> u64 {
        let bytes = match self {
            SealedIndex::Raw(raw) => {
                size_of_val(raw.extents.as_slice()) + size_of_val(raw.blocks.as_slice())
            }
            SealedIndex::Packed { table, damaged } => {
                table.bytes() + size_of_val(damaged.as_slice())
            }
        };
        (bytes + size_of::<SealedIndex>()) as u64
    }
}

impl Sealed {
    pub fn new(
        header: FileHeader,
        footer: Footer,
        path: PathBuf,
        file_bytes: u64,
        rescued: bool,
    ) -> Sealed {
        let (length, data_end) = (footer.length, footer.data_end);
        let index = SealedIndex::new(&header, footer);
        let (needles, holes) = match &index {
            SealedIndex::Raw(raw) => (0, raw.has_gap()),
            SealedIndex::Packed { table, damaged } => (table.count() as u64, !damaged.is_empty()),
        };
        Sealed {
            header,
            index: Mutex::new(Some(Arc::new(index))),
            used: AtomicBool::new(false),
            digest: OnceLock::new(),
            needles,
            holes,
            length,
            data_end,
            file_bytes,
            rescued,
            place: Mutex::new((path, None)),
            readers: Mutex::default(),
        }
    }

    /// The index, if it is in memory.
    pub fn resident(&self) -> Option<Arc<SealedIndex>> {
        self.used.store(true, Ordering::Relaxed);
        self.index.held().clone()
    }

    /// What to ask the file for, ahead of this read of it.
    pub fn ahead(&self, read: Range<u64>) -> Option<Range<u64>> {
        self.readers.held().ahead(read, self.data_end)
    }

    /// A footer from disk may verify and still contradict itself only through a bug; it is
    /// checked all the same before it is trusted with offsets.
    pub fn footer_is_sound(footer: &Footer) -> bool {
        match &footer.table {
            Table::Raw { extents, blocks } => {
                let ordered = extents.windows(2).all(|w| {
                    w[0].logical.checked_add(w[0].bytes).is_some_and(|e| e <= w[1].logical)
                });
                let inside = extents.iter().all(|e| {
                    e.physical.checked_add(e.bytes).is_some_and(|end| end <= footer.data_end)
                        && e.logical + e.bytes <= footer.length
                });
                ordered
                    && inside
                    && blocks.len() as u64 == footer.length.div_ceil(crate::format::BLOCK)
            }
            Table::Packed { entries, damaged } => {
                let ordered = entries
                    .windows(2)
                    .all(|w| w[0].slot < w[1].slot && w[0].offset_units < w[1].offset_units);
                let slots = entries.iter().map(|e| &e.slot).chain(damaged);
                ordered
                    && slots.into_iter().all(|&s| (s as u64) < footer.length)
                    && footer.length <= holdfast_base::limits::CHUNK_SLOTS_MAX as u64
                    && entries.last().is_none_or(|e| {
                        (e.offset_units as u64) * crate::format::RECORD_ALIGN < footer.data_end
                    })
            }
        }
    }

    pub fn info(&self) -> ChunkInfo {
        ChunkInfo {
            chunk: self.header.chunk,
            generation: self.header.generation,
            kind: self.header.kind,
            owner: self.header.owner,
            state: ReplicaState::Sealed,
            length: self.length,
            needles: self.needles,
            stored_bytes: self.file_bytes,
            damaged: self.holes || self.rescued,
        }
    }

    pub fn path(&self) -> PathBuf {
        self.place.held().0.clone()
    }

    pub fn renamed(&self, path: PathBuf) {
        self.place.held().0 = path;
    }

    /// Uses a handle that is already there: readers that began on the open chunk go on with it.
    pub fn adopt(&self, file: Arc<dyn File>) {
        self.place.held().1 = Some(file);
    }

    fn close(&self) {
        self.place.held().1 = None;
    }
}

pub fn wrong_kind(header: &FileHeader) -> Error {
    let is = match header.kind {
        ChunkKind::Raw => "raw: read it by offset",
        ChunkKind::Packed => "packed: read it by slot",
    };
    Error::invalid(format!("use chunk `{}`: it is {is}", header.chunk))
}

/// Which sealed files are open, in the order they were opened.
#[derive(Default)]
pub struct Handles {
    /// Held for list work; never while a file is opened.
    opened: Mutex<VecDeque<Weak<Sealed>>>,
}

impl Handles {
    pub fn get(&self, disk: &dyn Disk, sealed: &Arc<Sealed>) -> Result<Arc<dyn File>> {
        self.open(disk, sealed).map_err(|e| {
            let name = sealed.path();
            Error::from(e).context(format_args!("open chunk file `{}`", name.display()))
        })
    }

    /// As [`Handles::get`], for those who ask why not.
    pub fn open(&self, disk: &dyn Disk, sealed: &Arc<Sealed>) -> io::Result<Arc<dyn File>> {
        let file = {
            let mut place = sealed.place.held();
            if let Some(file) = &place.1 {
                return Ok(file.clone());
            }
            let file = disk.open(&place.0, Access::Cached)?;
            place.1 = Some(file.clone());
            file
        };
        self.opened_now(sealed);
        Ok(file)
    }

    /// Counts a handle, and closes the oldest beyond the limit. Readers keep what they hold.
    pub fn opened_now(&self, sealed: &Arc<Sealed>) {
        let evicted = {
            let mut opened = self.opened.held();
            opened.push_back(Arc::downgrade(sealed));
            let over = opened.len() > HANDLES_MAX.size();
            if over {
                HANDLES_MAX.cross();
            }
            if over { opened.pop_front() } else { None }
        };
        if let Some(old) = evicted.and_then(|weak| weak.upgrade()) {
            old.close();
        }
    }
}

/// Which indexes are in memory, bounded by their bytes: the longest there goes first, unless it was
/// looked at since. One that was made again from the records stays, for it is nowhere else.
pub struct Indexes {
    bytes_max: u64,
    /// Held for list work.
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    /// With their bytes, in the order they came.
    queue: VecDeque<(Weak<Sealed>, u64)>,
    bytes: u64,
}

impl Indexes {
    pub fn new(bytes_max: u64) -> Indexes {
        Indexes { bytes_max, kept: Mutex::default() }
    }

    /// Counts the index of a generation that is new here.
    pub fn keep(&self, sealed: &Arc<Sealed>) {
        let index = sealed.index.held();
        let Some(bytes) = index.as_ref().map(|index| index.bytes()) else { return };
        drop(index);
        if sealed.rescued {
            return;
        }
        let mut kept = self.kept.held();
        let Kept { queue, bytes: sum } = &mut *kept;
        queue.push_back((Arc::downgrade(sealed), bytes));
        *sum += bytes;
        let mut chances = queue.len();
        while *sum > self.bytes_max
            && let Some((weak, bytes)) = queue.pop_front()
        {
            let sealed = weak.upgrade();
            if let Some(sealed) = &sealed
                && chances > 0
                && sealed.used.swap(false, Ordering::Relaxed)
            {
                chances -= 1;
                queue.push_back((weak, bytes));
                continue;
            }
            *sum -= bytes;
            if let Some(sealed) = sealed {
                *sealed.index.held() = None;
            }
        }
    }

    /// Takes in an index that was read again.
    pub fn put(&self, sealed: &Arc<Sealed>, index: Arc<SealedIndex>) {
        {
            let mut place = sealed.index.held();
            if place.is_some() {
                // Somebody else was faster.
                return;
            }
            *place = Some(index);
        }
        self.keep(sealed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_read_ahead_and_who_jumps_is_not() {
        let mut readers = Readers::default();
        let slice = 512 * KIB;
        let end = 32 * slice;
        let mut read = |i: u64| readers.ahead(i * slice..(i + 1) * slice, end);
        // Two slices at a time, each pair in the wrong order.
        let mut asked: Vec<_> = (0..32).filter_map(|i| read(i ^ 1)).collect();
        asked.sort_by_key(|range| range.start);
        assert_eq!(asked.last().map(|range| range.end), Some(end));
        assert!(asked.windows(2).all(|pair| pair[0].end <= pair[1].start), "{asked:?}: asked once");
        assert!(read(0).is_some(), "the front again");
        assert_eq!(read(20), None, "a jump");
        assert!(read(21).is_some(), "and a stream again");
        let small = 22 * slice..22 * slice + 4096;
        assert_eq!(readers.ahead(small, end), None, "too small");
    }
}
