//! How many bytes a process's TCP connections have carried, each direction. Links count into it;
//! whoever shares a link between kinds of traffic looks at the difference.

use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug, Default)]
pub struct Meter {
    received: AtomicU64,
    sent: AtomicU64,
}

/// Bytes, or bytes a second, of the two directions of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    pub received: u64,
    pub sent: u64,
}

impl Meter {
    pub fn count(&self, flow: Flow) {
        // No order with anything else: totals that are read now and then.
        self.received.fetch_add(flow.received, Ordering::Relaxed);
        self.sent.fetch_add(flow.sent, Ordering::Relaxed);
    }

    /// Since the start.
    pub fn total(&self) -> Flow {
        let [received, sent] =
            [&self.received, &self.sent].map(|bytes| bytes.load(Ordering::Relaxed));
        Flow { received, sent }
    }
}
