//! How far a sort is, for whoever draws it, and the order to stop.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

/// Counters that threads of a sort add to; shared by reference.
#[derive(Debug, Default)]
pub struct Progress {
    phase: AtomicU8,
    /// Bytes to be read and written altogether, as far as is known.
    total: AtomicU64,
    read: AtomicU64,
    written: AtomicU64,
    stop: AtomicBool,
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

    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}
