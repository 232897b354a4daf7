//! Writes to chunks' files what was acknowledged from the journal: when much of it waits for one
//! file, and before a segment of the journal is used again. Only the latter needs a sync: each
//! costs a commit of the file system's own journal, for which the store's journal waits. Runs on a
//! thread of its own, or within `pump` when the store has none.

use crate::commit;
use crate::disk::DiskStore;
use crate::journal::Later;
use crate::open::Open;
use holdfast_base::Result;
use holdfast_base::units::MIB;
use holdfast_env::buf::AlignedBuf;
use std::sync::Arc;

/// The write-back's thread: until the journal's has ended. Then nobody commits any more.
pub fn run(store: &DiskStore) {
    commit::mark_commit_thread();
    let mut buf = AlignedBuf::zeroed(MIB as usize);
    while let Some(later) = store.journal.wait_later() {
        do_it(store, later, &mut buf);
    }
    store.queue.stop();
}

/// One piece of work, here and now; false if there was none.
pub fn step(store: &DiskStore) -> bool {
    let Some(later) = store.journal.next_later() else { return false };
    do_it(store, later, &mut AlignedBuf::zeroed(MIB as usize));
    true
}

fn do_it(store: &DiskStore, later: Later, buf: &mut AlignedBuf) {
    match later {
        Later::Write(open) => {
            if open.core().take_up_late() && commit::commit_once(store, &open, buf) {
                store.queue.push(open);
            }
        }
        Later::Checkpoint(open, number) => {
            let Some(open) = open.upgrade() else { return };
            if checkpoint(store, &open, number).is_err() {
                // The store takes no writes any more, and says why to everybody who asks. What its
                // journal holds must stay there.
                store.journal.store_broke();
            }
        }
    }
}

/// Makes durable in the chunk's file what the journal's segments hold of it up to this use.
fn checkpoint(store: &DiskStore, open: &Arc<Open>, number: u64) -> Result<()> {
    if open.core().misses(number) {
        store.write_deferred(open, u64::MAX)?;
    }
    let Some(written) = open.core().unsynced() else { return Ok(()) };
    let chunk = open.header.chunk;
    open.writer
        .sync("chunk.checkpoint")
        .map_err(|e| store.write_broke(format_args!("sync chunk `{chunk}`"), e))?;
    let mut core = open.core();
    core.synced = core.synced.max(written);
    Ok(())
}
