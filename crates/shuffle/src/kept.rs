//! Blocks that stay in memory while there is room, so that a job whose intermediate data fit there writes
//! and reads none of them. Their room is free again when the last who knows of them forgets them: with an
//! attempt that was lost, or a partition that is finished.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Memory for blocks.
pub struct Room {
    left_bytes: Arc<AtomicU64>,
}

/// A block in memory.
pub struct Kept {
    bytes: Box<[u8]>,
    left_bytes: Arc<AtomicU64>,
}

impl Room {
    /// For so many bytes.
    pub fn new(bytes: u64) -> Room {
        Room { left_bytes: Arc::new(AtomicU64::new(bytes)) }
    }

    /// Keeps a copy, if there is room for it.
    pub fn keep(&self, block: &[u8]) -> Option<Arc<Kept>> {
        let bytes = block.len() as u64;
        let taken = self
            .left_bytes
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(bytes));
        taken.ok()?;
        let left_bytes = self.left_bytes.clone();
        Some(Arc::new(Kept { bytes: block.into(), left_bytes }))
    }

    /// What is free.
    pub fn left_bytes(&self) -> u64 {
        self.left_bytes.load(Ordering::Acquire)
    }
}

impl Kept {
    /// As they arrived.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.left_bytes.fetch_add(self.bytes.len() as u64, Ordering::AcqRel);
    }
}
