//! How far a topic's last segment may have been written: a mark beside its segments, durable before
//! any commit that lies behind it. So opening the topic need not look at zeros that nobody ever wrote
//! over. The mark saves reading and proves nothing: one that is missing, damaged, of another segment or
//! short of what is found has the whole file looked at. Called by the driver and by recovery.

use crate::format::{REACH_MARK_BYTES, ReachMark, SECTOR};
use crate::reserve::IsFull;
use crate::segment::Segment;
use holdfast_base::limits::SECTOR_BYTES;
use holdfast_env::buf::AlignedBuf;
use holdfast_env::disk::{Access, read_file};
use holdfast_env::trial::Knob;
use holdfast_env::{Disk, planted};
use std::io;
use std::path::Path;

/// Beside a topic's segments.
const NAME: &str = "reach";
/// The mark is at least so far ahead of what it is written for: what opening a topic of a few entries
/// reads at the most. Tests set it; no seed draws it, for simulated logs are too small to need marks.
pub static REACH_BYTES: Knob = Knob::new("log.reach-bytes", 256 << 10, &[256 << 10]);
/// It is as far ahead as the segment is long, up to so many times the least: a file of 64 MiB has
/// twenty marks written.
const REACH_FACTOR_MAX: u64 = 16;

/// The mark that is on the disk, as its topic's committer knows it.
pub struct Reach {
    /// The segment that it is of; 0 of none.
    first: u64,
    /// Commits of that segment that end here or before need no other mark.
    below: u64,
}

impl Reach {
    pub fn of(found: Option<&ReachMark>) -> Reach {
        found.map_or(Reach { first: 0, below: 0 }, |mark| Reach {
            first: mark.first,
            below: mark.below,
        })
    }

    /// Has the mark cover a commit of the segment that ends at `end`, before that is written. An error
    /// means that it must not be.
    pub fn cover(
        &mut self,
        disk: &dyn Disk,
        topic_hash: u64,
        segment: &Segment,
        end: u64,
    ) -> io::Result<()> {
        let is_new = self.first != segment.first;
        if !is_new && end <= self.below {
            return Ok(());
        }
        let (first, least) = (segment.first, REACH_BYTES.get());
        let capacity = segment.direct.len()?;
        if is_new && capacity <= 2 * least {
            // Read as fast without.
            *self = Reach { first, below: u64::MAX };
            return Ok(());
        }
        REACH_BYTES.cross();
        let below = (end + end.clamp(least, REACH_FACTOR_MAX * least)).next_multiple_of(SECTOR);
        let path = segment.path.with_file_name(NAME);
        let written = match is_new || !planted!("log.mark-behind-its-commits") {
            true => write(disk, &path, &ReachMark { topic_hash, first, below }),
            false => Ok(()),
        };
        let below = match written {
            // The segment has none, then: one of another segment says nothing of it.
            Err(e) if is_new && e.is_full() => u64::MAX,
            written => written.map(|()| below)?,
        };
        *self = Reach { first, below };
        Ok(())
    }
}

fn write(disk: &dyn Disk, path: &Path, mark: &ReachMark) -> io::Result<()> {
    let file = match disk.exists(path)? {
        true => disk.open(path, Access::Direct)?,
        // Its name is not synced: without it, all of the segment is looked at.
        false => disk.create(path, Access::Direct)?,
    };
    let mut sector = AlignedBuf::zeroed(SECTOR_BYTES);
    sector[..REACH_MARK_BYTES].copy_from_slice(&mark.encode());
    file.write_at_durable(&sector, 0, "log.reach")
}

/// The mark of a topic's directory. Nothing where it cannot be read, for then nothing is known.
pub fn read(disk: &dyn Disk, directory: &Path, topic_hash: u64) -> Option<ReachMark> {
    let bytes = read_file(disk, &directory.join(NAME), SECTOR).ok()?;
    let mark = ReachMark::decode(&bytes, topic_hash).ok();
    mark.filter(|_| !planted!("log.unwritten-zeros-read"))
}
