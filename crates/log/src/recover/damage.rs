//! Damage in front of everything that is still needed: a snapshot covers it, or it was trimmed. The
//! topic then begins behind it; what was damaged is named and kept aside. Never passes over an
//! entry that nothing covers.

use super::{CUT_SITES, TRIM_MARK, TRIM_SITES};
use crate::format::{CommitHeader, SECTOR, encode_trim_mark};
use crate::segment::{SCAN_BYTES, Segment, Window};
use crate::topic::{directory_name, hash};
use holdfast_base::checksum::crc32c;
use holdfast_base::ids::Index;
use holdfast_base::limits::SECTOR_BYTES;
use holdfast_base::{Error, Result};
use holdfast_env::buf::AlignedBuf;
use holdfast_env::disk::{create_dir_durable, replace_file};
use holdfast_env::{Disk, planted};
use std::path::{Path, PathBuf};

/// Entries that cannot be read any more and that a verified snapshot contains: the topic begins
/// behind them now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassedOver {
    /// Whose entries they were.
    pub topic: String,
    /// The damaged file.
    pub segment: PathBuf,
    /// Where the damage begins in the segment, and what it takes: the entries from `first` up to
    /// `next`, without it.
    pub offset: u64,
    /// See `offset`.
    pub first: Index,
    /// See `offset`: the first entry that can be read again.
    pub next: Index,
    /// The file that keeps the damaged bytes.
    pub kept: PathBuf,
}

/// A place that a walk cannot read and need not.
pub struct Gap {
    pub segment: PathBuf,
    /// Damaged bytes of the segment.
    pub from: u64,
    pub to: u64,
    /// Entries that lie there: up to `next`, without it.
    pub first: u64,
    pub next: u64,
}

/// The first valid commit of a segment at or behind `at` whose entries go on behind `first`; only
/// one that begins at `floor` or before will do, or entries would be missing.
pub fn resume(
    segment: &Segment,
    topic_hash: u64,
    at: u64,
    (first, floor): (u64, u64),
) -> std::io::Result<Option<CommitHeader>> {
    if first >= floor {
        return Ok(None);
    }
    let capacity = segment.direct.len()?;
    let mut window = Window::new(&*segment.direct, super::scan_bytes(capacity));
    let mut at = at;
    while at + SECTOR <= capacity {
        let sector = window.get(at, SECTOR_BYTES)?;
        if let Ok((commit, _)) = CommitHeader::decode(sector, topic_hash, at)
            && commit.first >= first
            && commit.count > 0
        {
            // Later ones lie farther behind.
            let covered = commit.first <= floor || planted!("log.uncovered-damage-passed");
            return Ok(covered.then_some(commit));
        }
        at += SECTOR;
    }
    Ok(None)
}

/// Keeps the damaged bytes aside, then has the topic begin behind them, durably.
pub fn pass_over(
    disk: &dyn Disk,
    topic: &str,
    directory: &Path,
    lost_and_found: &Path,
    gap: &Gap,
) -> Result<PassedOver> {
    let doing = |e: std::io::Error| {
        let what = format!("pass over damage of `{}`", gap.segment.display());
        Error::from(e).context(what)
    };
    create_dir_durable(disk, lost_and_found, 1, "log.cut-directory").map_err(doing)?;
    let file = disk.open(&gap.segment, holdfast_env::disk::Access::Direct).map_err(doing)?;
    let mut bytes =
        AlignedBuf::zeroed(((gap.to - gap.from) as usize).next_multiple_of(SECTOR_BYTES));
    for (number, piece) in bytes.chunks_mut(SCAN_BYTES).enumerate() {
        let at = gap.from + (number * SCAN_BYTES) as u64;
        // A sector that cannot be read is kept as zeros.
        if file.read_at(piece, at).is_err() {
            piece.fill(0);
        }
    }
    let kept = lost_and_found.join(format!(
        "{}-{:020}-{}-{:08x}.damaged",
        directory_name(topic),
        gap.first,
        gap.from,
        crc32c(&bytes)
    ));
    replace_file(disk, &kept, &bytes, CUT_SITES).map_err(doing)?;
    let mark = encode_trim_mark(hash(topic), gap.next);
    replace_file(disk, &directory.join(TRIM_MARK), &mark, TRIM_SITES).map_err(doing)?;
    Ok(PassedOver {
        topic: topic.to_owned(),
        segment: gap.segment.clone(),
        offset: gap.from,
        first: Index(gap.first),
        next: Index(gap.next),
        kept,
    })
}
