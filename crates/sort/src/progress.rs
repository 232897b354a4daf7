//! How far a sort is, for whoever draws it, and the order to stop; and the names that it has made
//! and will take away, for whoever has to end it from outside.

use holdfast_env::HoldMutex;
use holdfast_env::disk::Disk;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

/// Counters that threads of a sort add to; shared by reference.
#[derive(Debug, Default)]
pub struct Progress {
    phase: AtomicU8,
    /// Bytes to be read and written altogether, as far as is known.
    total: AtomicU64,
    read: AtomicU64,
    written: AtomicU64,
    stop: AtomicBool,
    /// Taken for as long as a name is made, renamed or removed.
    names: Mutex<Names>,
}

#[derive(Debug, Default)]
struct Names {
    /// Of files that are gone when the sort is over, however it ends.
    temporary: BTreeSet<PathBuf>,
    /// Nothing is made any more.
    closed: bool,
}

/// What a sort is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Sample,
    Distribute,
    Sort,
    Finish,
}

impl Progress {
    pub(crate) fn begin(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
    }

    pub(crate) fn set_total(&self, bytes: u64) {
        self.total.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn read(&self, bytes: usize) {
        self.read.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn wrote(&self, bytes: usize) {
        self.written.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Relaxed) {
            0 => Phase::Sample,
            1 => Phase::Distribute,
            2 => Phase::Sort,
            _ => Phase::Finish,
        }
    }

    /// Bytes read and written so far, and those in total, 0 if nobody knows.
    pub fn bytes(&self) -> (u64, u64, u64) {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (of(&self.read), of(&self.written), of(&self.total))
    }

    /// Asks the sort to clean up and fail.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.held()
    }

    /// Makes, or finds, a file that is gone when the sort is over.
    pub(crate) fn name<T>(
        &self,
        path: &Path,
        make: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        let mut names = self.names();
        if names.closed {
            return Err(io::Error::new(io::ErrorKind::Interrupted, "the sort was interrupted"));
        }
        let made = make()?;
        names.temporary.insert(path.to_owned());
        Ok(made)
    }

    /// Gives a file that was temporary the name under which it stays.
    pub(crate) fn rename(&self, disk: &dyn Disk, from: &Path, to: &Path) -> io::Result<()> {
        let mut names = self.names();
        disk.rename(from, to)?;
        names.temporary.remove(from);
        Ok(())
    }

    /// Removes all temporary files. That one cannot be removed stops nobody: its name says whose it
    /// was.
    pub(crate) fn remove_names(&self, disk: &dyn Disk) {
        for path in std::mem::take(&mut self.names().temporary) {
            let _ = disk.remove(&path);
        }
    }

    /// Removes what a sort has made that still goes on, and makes no more: for a process that is
    /// about to end, whatever its threads wait for.
    pub fn abandon(&self, disk: &dyn Disk) {
        self.names().closed = true;
        self.remove_names(disk);
    }
}
