//! One file of the simulated disk, sector by sector: what a reader sees, what is durable, and
//! every version written between the two. Never knows its name. Called by [`super::SimDisk`].

use super::cut::Cut;
use holdfast_base::limits::SECTOR_BYTES;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

const SECTOR: u64 = SECTOR_BYTES as u64;
/// Where a torn sector may be torn.
const TEAR_BYTES: usize = 512;

type Bytes = Arc<[u8; SECTOR_BYTES]>;

#[derive(Clone)]
struct Sector {
    visible: Bytes,
    /// `None`: never synced, zeros on disk.
    durable: Option<Bytes>,
    /// Versions since the last sync, the newest last; each may be what reached the disk.
    pending: Vec<Bytes>,
    /// Cut off and not written since: takes no space.
    hole: bool,
}

#[derive(Clone, Default)]
pub(super) struct Content {
    sectors: BTreeMap<u64, Sector>,
    /// Numbers of the sectors with pending versions.
    dirty: BTreeSet<u64>,
    bytes: u64,
    bytes_durable: u64,
    /// Lengths since the last sync.
    bytes_pending: Vec<u64>,
    /// The smallest length it was cut to since the last sync.
    cut_to: Option<u64>,
    /// Sectors below this one have space reserved.
    reserved: u64,
    /// How many from there on are written and no holes; kept, because every write asks.
    written_beyond: u64,
}

/// Shared: files are mostly made of zeros before they are made of anything else.
fn zeros() -> Bytes {
    thread_local!(static ZEROS: Bytes = Arc::new([0; SECTOR_BYTES]));
    ZEROS.with(Arc::clone)
}

/// The sectors that `len` bytes at `offset` touch.
pub(super) fn sectors_of(offset: u64, len: u64) -> Range<u64> {
    offset / SECTOR..(offset + len).div_ceil(SECTOR)
}

impl Content {
    pub fn len(&self) -> u64 {
        self.bytes
    }

    pub fn sectors_used(&self) -> u64 {
        self.reserved + self.written_beyond
    }

    fn count_written(&mut self) {
        let beyond = self.sectors.range(self.reserved..);
        self.written_beyond = beyond.filter(|(_, sector)| !sector.hole).count() as u64;
    }

    /// Sectors that must be taken from the free ones before `range` can be written.
    pub fn sectors_missing(&self, range: Range<u64>) -> u64 {
        let range = range.start.max(self.reserved)..range.end;
        if range.is_empty() {
            return 0;
        }
        let there = self.sectors.range(range.clone()).filter(|(_, sector)| !sector.hole).count();
        range.end - range.start - there as u64
    }

    pub fn read(&self, buf: &mut [u8], offset: u64) -> usize {
        let len = self.bytes.saturating_sub(offset).min(buf.len() as u64) as usize;
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let within = (at % SECTOR) as usize;
            let part = (SECTOR_BYTES - within).min(len - done);
            let target = &mut buf[done..done + part];
            match self.sectors.get(&(at / SECTOR)) {
                Some(sector) => target.copy_from_slice(&sector.visible[within..within + part]),
                None => target.fill(0),
            }
            done += part;
        }
        len
    }

    fn change(&mut self, number: u64, change: impl FnOnce(&mut Bytes), hole: bool) {
        let sector = self.sectors.entry(number).or_insert_with(|| Sector {
            visible: zeros(),
            durable: None,
            pending: Vec::new(),
            hole: true,
        });
        if sector.hole && !hole && number >= self.reserved {
            self.written_beyond += 1;
        }
        change(&mut sector.visible);
        sector.pending.push(sector.visible.clone());
        sector.hole = hole;
        self.dirty.insert(number);
    }

    fn resize(&mut self, bytes: u64) {
        self.bytes = bytes;
        self.bytes_pending.push(bytes);
    }

    pub fn write(&mut self, buf: &[u8], offset: u64) {
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let within = (at % SECTOR) as usize;
            let part = (SECTOR_BYTES - within).min(buf.len() - done);
            let source = &buf[done..done + part];
            let change = |sector: &mut Bytes| match <&[u8; SECTOR_BYTES]>::try_from(source) {
                Ok(whole) if whole == &[0; SECTOR_BYTES] => *sector = zeros(),
                Ok(whole) => *sector = Arc::new(*whole),
                Err(_) => Arc::make_mut(sector)[within..within + part].copy_from_slice(source),
            };
            self.change(at / SECTOR, change, false);
            done += part;
        }
        let end = offset + buf.len() as u64;
        if end > self.bytes && !buf.is_empty() {
            self.resize(end);
        }
    }

    pub fn set_len(&mut self, bytes: u64) {
        if bytes < self.bytes {
            let within = (bytes % SECTOR) as usize;
            if within > 0 && self.sectors.contains_key(&(bytes / SECTOR)) {
                let change = |sector: &mut Bytes| Arc::make_mut(sector)[within..].fill(0);
                self.change(bytes / SECTOR, change, false);
            }
            let first = bytes.div_ceil(SECTOR);
            let beyond: Vec<u64> = self.sectors.range(first..).map(|(number, _)| *number).collect();
            for number in beyond {
                self.change(number, |sector| *sector = zeros(), true);
            }
            self.reserved = self.reserved.min(first);
            self.count_written();
            self.cut_to = Some(self.cut_to.unwrap_or(u64::MAX).min(bytes));
        }
        if bytes != self.bytes {
            self.resize(bytes);
        }
    }

    pub fn reserve(&mut self, bytes: u64) {
        self.reserved = self.reserved.max(bytes.div_ceil(SECTOR));
        self.count_written();
        if bytes > self.bytes {
            self.resize(bytes);
        }
    }

    /// fdatasync: everything written is durable, and the length.
    pub fn harden(&mut self) {
        for number in std::mem::take(&mut self.dirty) {
            self.harden_sector(number);
        }
        if !self.bytes_pending.is_empty() {
            self.bytes_durable = self.bytes;
        }
        self.bytes_pending.clear();
        self.cut_to = None;
    }

    /// One durable write: its sectors, and a length that covers it. Other dirty sectors stay so.
    pub fn harden_range(&mut self, offset: u64, len: u64) {
        for number in sectors_of(offset, len) {
            if self.dirty.remove(&number) {
                self.harden_sector(number);
            }
        }
        if let Some(cut_to) = self.cut_to.take() {
            // The length is written with the inode, so an earlier cut is durable now as well:
            // what it cut off must never come back.
            for (number, sector) in self.sectors.range_mut(cut_to / SECTOR..) {
                if let (true, Some(durable)) = (self.dirty.contains(number), &mut sector.durable) {
                    let from = cut_to.saturating_sub(number * SECTOR) as usize;
                    Arc::make_mut(durable)[from..].fill(0);
                }
            }
            self.bytes_durable = self.bytes;
            self.bytes_pending.clear();
        } else {
            self.bytes_durable = self.bytes_durable.max((offset + len).min(self.bytes));
            let durable = self.bytes_durable;
            self.bytes_pending.retain(|bytes| *bytes > durable);
        }
    }

    fn harden_sector(&mut self, number: u64) {
        let Some(sector) = self.sectors.get_mut(&number) else { return };
        if sector.hole {
            self.sectors.remove(&number);
            return;
        }
        sector.durable = Some(sector.visible.clone());
        sector.pending.clear();
    }

    /// A failed sync, as on Linux: some sectors reached the disk, the others never will, yet all
    /// are clean and readable until the power goes. A later sync says Ok and does not help. With
    /// `length` the same is true of the file's length.
    pub fn drop_dirty(&mut self, range: Range<u64>, length: bool, cut: &Cut) {
        let dropped: Vec<u64> = self.dirty.range(range).copied().collect();
        for number in dropped {
            self.dirty.remove(&number);
            if let Some(sector) = self.sectors.get_mut(&number) {
                if let Some(kept) = cut.pick(&sector.pending) {
                    sector.durable = Some(kept.clone());
                }
                sector.pending.clear();
            }
        }
        // As a rule the length goes through the file system's journal with the next sync.
        if length {
            if let Some(kept) = cut.pick(&self.bytes_pending) {
                self.bytes_durable = *kept;
            }
            self.bytes_pending.clear();
            self.cut_to = None;
        }
    }

    /// The file after a power cut. `in_flight` are sectors whose write was under way.
    pub fn survive(&self, cut: &Cut, in_flight: Range<u64>) -> Content {
        let bytes = *cut.pick(&self.bytes_pending).unwrap_or(&self.bytes_durable);
        let mut after = Content {
            bytes,
            bytes_durable: bytes,
            reserved: self.reserved.min(bytes.div_ceil(SECTOR)),
            ..Content::default()
        };
        for (&number, sector) in &self.sectors {
            let tears = cut.tears && (sector.durable.is_none() || in_flight.contains(&number));
            let Some(mut kept) = sector.survive(cut, tears) else { continue };
            let end = bytes.saturating_sub(number * SECTOR).min(SECTOR) as usize;
            if end == 0 {
                continue;
            }
            if end < SECTOR_BYTES {
                Arc::make_mut(&mut kept)[end..].fill(0);
            }
            let durable = Some(kept.clone());
            let sector = Sector { visible: kept, durable, pending: Vec::new(), hole: false };
            after.sectors.insert(number, sector);
        }
        after.count_written();
        after
    }

    /// Damages the medium and every cached copy alike.
    pub fn flip_bit(&mut self, byte: u64, bit: u32) {
        let sector = self.sectors.entry(byte / SECTOR).or_insert_with(|| Sector {
            visible: zeros(),
            durable: Some(zeros()),
            pending: Vec::new(),
            hole: true,
        });
        let versions = sector.pending.iter_mut().chain(&mut sector.durable);
        for version in versions.chain([&mut sector.visible]) {
            Arc::make_mut(version)[(byte % SECTOR) as usize] ^= 1 << bit;
        }
    }
}

impl Sector {
    fn survive(&self, cut: &Cut, tears: bool) -> Option<Bytes> {
        let Some(kept) = cut.pick(&self.pending) else { return self.durable.clone() };
        if !tears || cut.below(4) > 0 {
            return Some(kept.clone());
        }
        // The front is new, the rest is what was there before.
        let mut torn = self.durable.clone().unwrap_or_else(zeros);
        let at = TEAR_BYTES * (1 + cut.below(SECTOR_BYTES / TEAR_BYTES - 1));
        Arc::make_mut(&mut torn)[..at].copy_from_slice(&kept[..at]);
        Some(torn)
    }
}
