//! An open chunk on disk: its appends, and its core behind the chunk's locks. Does no I/O;
//! `commit.rs` drives it and writes what the core says.

mod batch;
mod core;

pub use batch::{Batch, Class};
pub use core::{COMMIT_BYTES_MAX, Core, DEFERRED_BYTES_MAX};

use crate::api::{Body, Done, Needle, SlotDone};
use crate::format::{FileHeader, RECORD_ALIGN, RECORD_HEADER_BYTES};
use core::Deferred;
use holdfast_base::ids::{Durability, Slot};
use holdfast_base::{Error, Result};
use holdfast_env::sync::{Condvar, Mutex, MutexGuard};
use holdfast_env::{File, HoldMutex, planted};
use std::path::PathBuf;
use std::sync::Arc;

pub enum Append {
    Raw {
        at: u64,
        done: Done<u64>,
    },
    /// With `expected`, refused unless that is the slot it would get.
    Needle {
        needle: Needle,
        expected: Option<Slot>,
        done: SlotDone,
    },
}

pub struct Pending {
    pub append: Append,
    pub body: Body,
    pub crcs: Vec<u32>,
    pub durability: Durability,
}

impl Pending {
    fn payload_bytes(&self) -> u64 {
        (*self.body).as_ref().len() as u64
    }

    /// Upper bound of what it takes in a commit of its own.
    fn stored_bytes(&self) -> u64 {
        let hint = match &self.append {
            Append::Needle { needle, .. } => needle.hint.len() as u64,
            Append::Raw { .. } => 0,
        };
        let head = RECORD_HEADER_BYTES as u64 + 4 * self.crcs.len() as u64 + hint;
        (head + self.payload_bytes()).next_multiple_of(RECORD_ALIGN)
    }

    pub fn fail(self, error: Error) {
        match self.append {
            Append::Raw { done, .. } => done(Err(error)),
            Append::Needle { done, .. } => done(Err(error)),
        }
    }
}

/// A chunk that takes appends, or waits for its seal.
pub struct Open {
    pub header: FileHeader,
    /// For commits, past the page cache.
    pub writer: Arc<dyn File>,
    /// For reads, through it.
    pub reader: Arc<dyn File>,
    pub path: PathBuf,
    /// Staged and acknowledged state. Held for list work only, never during I/O or callbacks.
    core: Mutex<Core>,
    /// Waited on by seal, fence and unlink, notified when a commit has ended.
    idle: Condvar,
}

impl Open {
    pub fn new(
        header: FileHeader,
        writer: Arc<dyn File>,
        reader: Arc<dyn File>,
        path: PathBuf,
        core: Core,
    ) -> Open {
        let mut core = core;
        let half = DEFERRED_BYTES_MAX.get() / 2;
        core.deferred_bytes_max = half + header.nonce % half;
        Open { header, writer, reader, path, core: Mutex::new(core), idle: Condvar::new() }
    }

    pub fn core(&self) -> MutexGuard<'_, Core> {
        self.core.held()
    }

    /// Tells whoever waits that no commit is in flight any more.
    pub fn commit_ended(&self) {
        let mut core = self.core();
        core.in_flight = false;
        core.in_flight_slots = 0;
        core.in_flight_bytes = 0;
        self.notify(core);
    }

    /// Tells whoever waits that the driver rests or a commit has ended.
    pub fn notify(&self, core: MutexGuard<'_, Core>) {
        let heard = core.waiters > 0;
        drop(core);
        if heard {
            self.idle.notify_all();
        }
    }

    /// Waits once, or while `waits` says so.
    fn wait(&self, mut core: MutexGuard<'_, Core>, waits: impl Fn(&Core) -> bool, again: bool) {
        core.waiters += 1;
        while waits(&core) {
            core = self.idle.wait(core).expect("no holder of this lock panics");
            if !again {
                break;
            }
        }
        core.waiters -= 1;
    }

    /// Ends appends, and waits for the commit and the journal's batch in flight; answers what was
    /// waiting.
    pub fn stop_appends(&self) -> Vec<Pending> {
        let mut core = self.core();
        core.fenced = true;
        let dropped = core.drain();
        let waits = !planted!("chunk.fence-ignores-the-commit-in-flight");
        self.wait(core, |core| waits && (core.in_flight || !core.journaling.is_empty()), true);
        dropped
    }

    /// Waits until a commit has ended, or the driver has nothing more to do.
    pub fn wait_for_commit(&self, core: MutexGuard<'_, Core>) {
        self.wait(core, |_| true, false);
    }

    /// The journal's batch with this chunk's oldest append has ended, in this use of a segment:
    /// answers it.
    pub fn journal_ended(self: &Arc<Open>, written: &Result<u64>) -> Journaled {
        let mut ended = Journaled::default();
        let mut core = self.core();
        let Some(mut item) = core.journaling.pop_front() else { return ended };
        let Append::Raw { at, .. } = item.append else { return ended };
        let end = at + item.payload_bytes();
        let append = Append::Raw { at, done: Box::new(|_| ()) };
        let answered = std::mem::replace(&mut item.append, append);
        match written {
            Ok(number) => {
                core.unwritten_bytes += item.payload_bytes();
                core.deferred.push_back(Deferred { item, number: *number });
                ended.first_in_use = std::mem::replace(&mut core.dirty_in, *number) != *number;
            }
            Err(_) => {
                core.journal_forgets(&item);
                core.staged_end = core.length();
            }
        }
        if core.has_work() && !std::mem::replace(&mut core.busy, true) {
            core.for_later = core.pending.is_empty();
            ended.due = Some(if core.for_later { Due::Later } else { Due::Now });
        }
        self.notify(core);
        if let Append::Raw { done, .. } = answered {
            done(written.clone().map(|_| end));
        }
        ended
    }
}

/// What the journal does about a chunk, one of whose appends it has answered.
#[derive(Default)]
pub struct Journaled {
    /// It belongs on the list of those whose files miss something of the segment.
    pub first_in_use: bool,
    /// A driver must take it up.
    pub due: Option<Due>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Somebody waits for an acknowledgement.
    Now,
    Later,
}
