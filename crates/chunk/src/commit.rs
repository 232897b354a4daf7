//! Writes commits: one in flight a chunk, all appends that wait for it in one write. Runs on a
//! few threads a store, or in `pump` when the store has none.

use crate::disk::DiskStore;
use crate::open::{Batch, COMMIT_BYTES_MAX, Class, Open};
use holdfast_base::Result;
use holdfast_base::limits::SECTOR_BYTES;
use holdfast_base::units::MIB;
use holdfast_env::buf::AlignedBuf;
use holdfast_env::sync::{Condvar, Mutex, thread_local};
use holdfast_env::trial::Knob;
use holdfast_env::{HoldMutex, planted};
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;

/// A file that must grow grows by this much.
static GROW_BYTES: Knob = Knob::new("chunk.grow-bytes", 4 * MIB, &[4096, 65_536]);

/// Chunks that have something to commit, first come first served.
#[derive(Default)]
pub struct Queue {
    /// Held to push and pop.
    state: Mutex<QueueState>,
    /// Waited on by commit threads (and the spare's), notified for each push and at the end.
    work: Condvar,
    spare_work: Condvar,
}

#[derive(Default)]
struct QueueState {
    ready: VecDeque<Arc<Open>>,
    spare_wanted: bool,
    stop: bool,
}

impl Queue {
    pub fn push(&self, open: Arc<Open>) {
        self.state.held().ready.push_back(open);
        self.work.notify_one();
    }

    /// Puts a chunk back by a thread that takes the next one itself: it wakes another only when
    /// there is work for two, for a wake costs as much as a small commit.
    fn push_back_for_me(&self, open: Arc<Open>) {
        let mut state = self.state.held();
        state.ready.push_back(open);
        if state.ready.len() > 1 {
            self.work.notify_one();
        }
    }

    pub fn try_pop(&self) -> Option<Arc<Open>> {
        self.state.held().ready.pop_front()
    }

    /// Waits for a chunk; `None` when the store ends and nothing is left.
    fn pop(&self) -> Option<Arc<Open>> {
        let state = self.state.held();
        let mut state = self
            .work
            .wait_while(state, |state| state.ready.is_empty() && !state.stop)
            .expect("no holder of this lock panics");
        state.ready.pop_front()
    }

    pub fn wake_spare(&self) {
        self.state.held().spare_wanted = true;
        self.spare_work.notify_one();
    }

    /// Waits until a spare is wanted; false when the store ends.
    pub fn wait_spare(&self) -> bool {
        let state = self.state.held();
        let mut state = self
            .spare_work
            .wait_while(state, |state| !state.spare_wanted && !state.stop)
            .expect("no holder of this lock panics");
        state.spare_wanted = false;
        !state.stop
    }

    pub fn is_stopping(&self) -> bool {
        self.state.held().stop
    }

    pub fn stop(&self) {
        self.state.held().stop = true;
        self.work.notify_all();
        self.spare_work.notify_all();
    }
}

thread_local! {
    /// Set on commit threads: a callback there may drop the store's last handle, and a thread
    /// cannot wait for its own end.
    static IS_COMMIT_THREAD: Cell<bool> = const { Cell::new(false) };
}

pub fn on_commit_thread() -> bool {
    IS_COMMIT_THREAD.with(Cell::get)
}

pub fn mark_commit_thread() {
    IS_COMMIT_THREAD.with(|is| is.set(true));
}

/// A commit thread: until the store ends.
pub fn run(store: &DiskStore) {
    mark_commit_thread();
    let mut buf = AlignedBuf::zeroed(MIB as usize);
    while let Some(open) = store.queue.pop() {
        if commit_once(store, &open, &mut buf) {
            store.queue.push_back_for_me(open);
        }
    }
}

/// Writes what is queued here and now; false if nothing was.
pub fn commit_queued(store: &DiskStore) -> bool {
    // It grows when a commit needs more: most calls find nothing to write.
    let mut buf = AlignedBuf::zeroed(SECTOR_BYTES);
    let mut any = false;
    while let Some(open) = store.queue.try_pop() {
        if commit_once(store, &open, &mut buf) {
            store.queue.push(open);
        }
        any = true;
    }
    any
}

/// One commit of `open`, which the caller has taken up ([`crate::open::Core::busy`]). True when
/// more waits: it stays taken up, and the caller sees to it that somebody goes on.
#[must_use]
pub fn commit_once(store: &DiskStore, open: &Arc<Open>, buf: &mut AlignedBuf) -> bool {
    let early = planted!("chunk.indexed-before-it-is-written");
    let batch = {
        let mut core = open.core();
        match core.take_batch(&open.header) {
            Some(batch) if early && !batch.is_empty() => {
                core.finish(&batch);
                batch
            }
            Some(batch) => batch,
            // In one step: what is asked for between the two would be nobody's.
            None => {
                core.rest();
                open.notify(core);
                return false;
            }
        }
    };
    let result = write(store, open, &batch, buf);
    let mut dropped = Vec::new();
    {
        let mut core = open.core();
        match &result {
            Ok(()) if batch.is_empty() || early => {}
            Ok(()) => core.finish(&batch),
            // Appends to a raw chunk that wait now begin where the failed ones would have ended.
            Err(_) => dropped = core.drain(),
        }
    }
    open.commit_ended();
    let error = result.clone().err();
    batch.answer(result);
    for item in dropped {
        let error = error.clone().unwrap_or_else(|| holdfast_base::Error::retry("not written"));
        item.fail(error);
    }
    // Only now, so that callbacks of one chunk come in its order.
    let mut core = open.core();
    // What a store that takes no writes has in its journal stays there until the next start.
    core.busy = core.rest() && store.writable().is_ok();
    let more = core.busy;
    if !more {
        open.notify(core);
    }
    more
}

fn write(store: &DiskStore, open: &Open, batch: &Batch, buf: &mut AlignedBuf) -> Result<()> {
    store.writable()?;
    if batch.is_empty() {
        return Ok(());
    }
    let bytes = batch.padded_bytes() as usize;
    grow(store, open, batch.offset + bytes as u64)?;
    if buf.len() < bytes {
        *buf = AlignedBuf::zeroed(bytes);
    }
    let out = &mut buf[..bytes];
    batch.encode(&open.header, out);
    let written = write_batch(open, batch, out);
    if buf.len() as u64 > 2 * COMMIT_BYTES_MAX.usual() {
        *buf = AlignedBuf::zeroed(MIB as usize);
    }
    let chunk = open.header.chunk;
    let what = format_args!("commit to chunk `{chunk}`");
    written.map_err(|e| match batch.class {
        // Its space was reserved before it was acknowledged.
        Class::Deferred => store.write_broke(what, e),
        Class::Durable | Class::Written => store.write_failed(what, e),
    })
}

fn write_batch(open: &Open, batch: &Batch, out: &[u8]) -> std::io::Result<()> {
    if batch.class != Class::Durable || planted!("chunk.acknowledged-before-its-sync") {
        return open.writer.write_at(out, batch.offset);
    }
    if batch.header.synced_before + 1 == batch.header.sequence {
        return open.writer.write_at_durable(out, batch.offset, "chunk.commit");
    }
    // Commits before this one were only written (or refused): one sync for all.
    open.writer.write_at(out, batch.offset)?;
    open.writer.sync("chunk.commit-sync")
}

/// Reserves space for a commit that ends at `end`, before it is written.
fn grow(store: &DiskStore, open: &Open, end: u64) -> Result<()> {
    let allocated = open.core().allocated;
    if end <= allocated {
        return Ok(());
    }
    let wanted = end.max(allocated + GROW_BYTES.get());
    GROW_BYTES.cross();
    store.take_space(wanted - allocated, false)?;
    match open.writer.allocate(wanted) {
        Ok(()) => {
            open.core().allocated = wanted;
            Ok(())
        }
        Err(e) => {
            store.give_space(wanted - allocated);
            let chunk = open.header.chunk;
            Err(store.write_failed(format_args!("reserve space for chunk `{chunk}`"), e))
        }
    }
}
