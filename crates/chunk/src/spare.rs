//! Zero-filled files made ahead, for durable packed chunks: a synced write into zeros that are on
//! disk takes about half as long as one into space that is only reserved, because no extent has
//! to be converted. A thread of its own makes them; a store without one simply has none.

use crate::disk::DiskStore;
use crate::format::SECTOR;
use crate::names;
use holdfast_base::Result;
use holdfast_base::limits::CHUNK_BYTES;
use holdfast_base::units::MIB;
use holdfast_env::HoldMutex;
use holdfast_env::buf::AlignedBuf;
use holdfast_env::disk::Access;
use holdfast_env::sync::Mutex;
use std::path::PathBuf;

/// What a packed chunk of the default capacity takes.
const SPARE_BYTES: u64 = CHUNK_BYTES + 2 * SECTOR;

#[derive(Default)]
pub struct Spares {
    /// The file that is ready, and the number of the next. Held to take and to put.
    state: Mutex<(Option<PathBuf>, u64)>,
}

impl Spares {
    /// The file, if one of this size is ready. Its space is already taken.
    pub fn take(&self, bytes: u64) -> Option<PathBuf> {
        if bytes != SPARE_BYTES {
            return None;
        }
        self.state.held().0.take()
    }
}

/// The spare's thread: until the store ends.
pub fn run(store: &DiskStore) {
    while store.queue.wait_spare() {
        // A failure here is not one: chunks are then made in reserved space. A disk that fails
        // writes will say so to the next commit.
        let _ = make(store);
    }
}

fn make(store: &DiskStore) -> Result<()> {
    let Some(spares) = &store.spares else { return Ok(()) };
    let path = {
        let mut state = spares.state.held();
        if state.0.is_some() {
            return Ok(());
        }
        state.1 += 1;
        store.dir.join(names::spare(state.1))
    };
    store.take_space(SPARE_BYTES, false)?;
    if let Err(e) = fill(store, &path) {
        // Best effort: the next start removes it.
        let _ = store.disk.remove(&path);
        store.give_space(SPARE_BYTES);
        return Err(e.into());
    }
    spares.state.held().0 = Some(path);
    Ok(())
}

fn fill(store: &DiskStore, path: &std::path::Path) -> std::io::Result<()> {
    let file = store.disk.create(path, Access::Direct)?;
    file.allocate(SPARE_BYTES)?;
    let zeros = AlignedBuf::zeroed(MIB as usize);
    let mut at = 0;
    while at < SPARE_BYTES {
        if store.queue.is_stopping() {
            return Err(std::io::ErrorKind::Interrupted.into());
        }
        let bytes = (SPARE_BYTES - at).min(MIB);
        file.write_at(&zeros[..bytes as usize], at)?;
        at += bytes;
    }
    // Not for safety: the first commit must not pay for it.
    file.sync("chunk.spare")
}
