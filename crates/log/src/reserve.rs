//! Room on the log's disk. Some topics must go on where the disk is full, or nobody could free
//! anything: a deletion is an entry, too. For them files are kept ready that hold nothing but
//! their space, to be given up one by one; all other topics leave more room than that. Says how
//! large a segment may be; never decides what goes into one. Called by the driver.

use crate::driver::SEGMENT_BYTES_MIN;
use crate::format::SECTOR;
use crate::segment::make_spare;
use holdfast_base::units::format_bytes;
use holdfast_base::{Error, Kind, Result};
use holdfast_env::disk::Access;
use holdfast_env::{Disk, HoldMutex};
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

/// Files that are kept. Only what frees space is written once half of them are gone.
const PIECES: u64 = 16;
/// Each is this part of a segment: 1 MiB usually, which is thousands of deletions.
const PIECE_PART: u64 = 64;
/// Segments' worth of free space below which topics that are not needed get no further segment: a
/// store that shares the disk keeps two for compaction, and takes chunks as long as one more is
/// free.
const OTHERS_LEAVE_SEGMENTS: u64 = 3;
/// On a small disk, this part of it is enough.
const OTHERS_LEAVE_PART: u64 = 4;

const _: () = assert!(PIECES / 2 > 0 && PIECES < PIECE_PART);

/// Which topics are needed: what frees space is written there.
pub type Needed = fn(&str) -> bool;

pub struct Reserve {
    disk: Arc<dyn Disk>,
    /// The log's, and below it the pieces'.
    log: PathBuf,
    directory: PathBuf,
    segment_bytes: u64,
    needed: Option<Needed>,
    state: Mutex<State>,
    /// Held while pieces are made, which several threads may want at once.
    refilling: Mutex<()>,
}

#[derive(Default)]
struct State {
    /// The pieces that are there, by their names.
    held: BTreeSet<u64>,
    /// Less than half of the pieces are there, and there is no room for more.
    short: bool,
    /// The last refusal for want of room, until there is room again.
    refused: Option<String>,
}

impl Reserve {
    /// Without `needed` no topic comes before others, and nothing is kept.
    pub fn open(
        disk: Arc<dyn Disk>,
        log: &Path,
        segment_bytes: u64,
        needed: Option<Needed>,
    ) -> io::Result<Reserve> {
        let directory = log.join("reserve");
        let log = log.to_owned();
        let (state, refilling) = (Mutex::default(), Mutex::default());
        let reserve = Reserve { disk, log, directory, segment_bytes, needed, state, refilling };
        reserve.find()?;
        Ok(reserve)
    }

    /// What an earlier process has kept; one that was killed may have left a shorter piece.
    fn find(&self) -> io::Result<()> {
        if !self.disk.exists(&self.directory)? {
            return Ok(());
        }
        let bytes = self.piece_bytes();
        let found = self.disk.list(&self.directory)?.into_iter();
        let whole = found.filter(|entry| entry.bytes == bytes);
        self.state().held = whole.filter_map(|entry| entry.name.parse().ok()).collect();
        Ok(())
    }

    pub fn is_needed(&self, topic: &str) -> bool {
        self.needed.is_none_or(|needed| needed(topic))
    }

    fn pieces(&self) -> u64 {
        if self.needed.is_some() { PIECES } else { 0 }
    }

    fn piece_bytes(&self) -> u64 {
        (self.segment_bytes / PIECE_PART).next_multiple_of(SECTOR).max(SEGMENT_BYTES_MIN)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.held()
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(self.disk.space(&self.log)?.free_bytes)
    }

    /// Does what must be done, giving up a piece for as long as it finds no room.
    pub fn in_need<T, E: IsFull>(
        &self,
        mut act: impl FnMut() -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        loop {
            match act() {
                Err(e) if e.is_full() && self.give_up_piece() => {}
                other => return other,
            }
        }
    }

    fn give_up_piece(&self) -> bool {
        let mut state = self.state();
        let Some(piece) = state.held.pop_first() else { return false };
        if (state.held.len() as u64) < self.pieces() / 2 {
            state.short = true;
        }
        self.disk.remove(&self.directory.join(piece.to_string())).is_ok()
    }

    /// Makes the pieces that are missing, of at most half of what is free, and forgets what was
    /// refused once there is room.
    pub fn refill(&self) {
        let _one = self.refilling.held();
        let full = self.refill_held();
        let roomy = self.others_may_grow().is_ok();
        let mut state = self.state();
        state.short = full.is_err() && (state.held.len() as u64) < self.pieces() / 2;
        if full.is_ok() && roomy {
            state.refused = None;
        }
    }

    fn refill_held(&self) -> io::Result<()> {
        let bytes = self.piece_bytes();
        for piece in 0..self.pieces() {
            if self.state().held.contains(&piece) {
                continue;
            }
            if self.free_bytes()? / 2 < bytes {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.disk.create_dir_all(&self.directory)?;
            let path = self.directory.join(piece.to_string());
            if self.disk.exists(&path)? {
                self.disk.remove(&path)?;
            }
            let file = self.disk.create(&path, Access::Cached)?;
            if let Err(e) = file.allocate(bytes) {
                // The error that matters is the first.
                let _ = self.disk.remove(&path);
                return Err(e);
            }
            self.state().held.insert(piece);
        }
        Ok(())
    }

    /// Fails where topics that are not needed must leave what is free to those that are.
    pub fn others_may_grow(&self) -> Result<()> {
        // A disk that cannot say how full it is says what is wrong where it is written.
        let (Some(_), Ok(space)) = (self.needed, self.disk.space(&self.log)) else {
            return Ok(());
        };
        if space.free_files == 0 {
            return Err(Error::full(format!(
                "the file system of `{}` takes no more files (its inodes are used up): remove files on that disk",
                self.log.display()
            )));
        }
        let most = space.total_bytes / OTHERS_LEAVE_PART;
        let kept = most.min(OTHERS_LEAVE_SEGMENTS * self.segment_bytes);
        if space.free_bytes >= kept {
            return Ok(());
        }
        Err(Error::full(format!(
            "{} are free in `{}`, where {} are kept for names and compaction: delete something or make room on that disk",
            format_bytes(space.free_bytes),
            self.log.display(),
            format_bytes(kept),
        )))
    }

    /// Makes the spare of a topic's directory ahead of need; returns its length. The fuller the
    /// disk, the smaller it is: at most half of what is free, so that one topic leaves some to
    /// others.
    pub fn prepare(&self, directory: &Path, needed: bool) -> io::Result<u64> {
        if !needed && self.others_may_grow().is_err() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let (free, mut bytes) = (self.free_bytes()?, self.segment_bytes);
        while self.needed.is_some() && bytes > free / 2 && bytes > self.piece_bytes() {
            bytes = (bytes / 2).next_multiple_of(SECTOR);
        }
        make_spare(&*self.disk, directory, bytes)?;
        Ok(bytes)
    }

    /// As [`Reserve::prepare`], now that a commit needs `bytes_min` of it.
    pub fn make(&self, directory: &Path, needed: bool, bytes_min: u64) -> io::Result<u64> {
        match self.prepare(directory, needed) {
            Ok(bytes) if bytes >= bytes_min => return Ok(bytes),
            Err(e) if !e.is_full() || !needed => return Err(e),
            _ => {}
        }
        let piece = self.piece_bytes().max(bytes_min);
        let made = self.in_need(|| make_spare(&*self.disk, directory, piece));
        made.map(|()| piece)
    }

    /// Takes note of a refusal, for [`Reserve::shortage`].
    pub fn refused(&self, why: &Error) {
        self.state().refused = Some(why.message.clone());
    }

    /// Fails where only what frees space is taken.
    pub fn check(&self) -> Result<()> {
        if !self.state().short {
            return Ok(());
        }
        Err(Error::full(format!(
            "append to the log in `{}`: its disk is full, and what is left is kept for deletions: delete something or make room on that disk",
            self.log.display()
        )))
    }

    /// What is refused for want of room, and what to do.
    pub fn shortage(&self) -> Option<String> {
        let short = self.check().err().map(|e| e.message);
        let refused = || self.state().refused.clone();
        let few = || self.others_may_grow().err();
        let grows = |e: Error| e.context("give topics of clients room in the log").message;
        short.or_else(refused).or_else(|| few().map(grows))
    }
}

/// Whether an error says that there is no room.
pub trait IsFull {
    fn is_full(&self) -> bool;
}

impl IsFull for io::Error {
    fn is_full(&self) -> bool {
        matches!(
            self.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
        )
    }
}

impl IsFull for Error {
    fn is_full(&self) -> bool {
        self.kind == Kind::Full
    }
}
