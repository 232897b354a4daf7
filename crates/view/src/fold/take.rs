//! Taking snapshots: when one is due, on a thread beside the fold, and what may be trimmed behind it.
//! Never applies an entry, and holds up who does for as long as the view needs to be held.

use super::blocks::Header;
use super::machine::Machine;
use super::member::closed;
use super::{Fold, FoldOptions, Role, Shared, SnapshotPart, View, snapshot};
use holdfast_base::ids::Index;
use holdfast_base::{Error, Result};
use holdfast_env::{HoldMutex, planted};
use std::sync::atomic::Ordering;

impl<V: View> Fold<V> {
    /// Writes and verifies a snapshot, keeps the last two, and trims the log up to the older one.
    pub fn snapshot_now(&self) -> Result<Index> {
        self.shared.snapshot()
    }

    /// Part of the file of one of this fold's snapshots (none: of the newest), for another node. Of
    /// a view that its owner has stopped, none.
    pub fn snapshot_part(
        &self,
        index: Option<Index>,
        offset: u64,
        bytes: u32,
    ) -> Result<SnapshotPart> {
        let withdrawn = {
            let machine = self.shared.read();
            machine.stopped.clone().filter(|_| machine.withdrawn)
        };
        if let Some(why) = withdrawn {
            return Err(why.context(format_args!("lend a snapshot of `{}`", V::NAME)));
        }
        let store = &self.shared.store;
        let index = match index {
            Some(index) => index,
            None => snapshot::newest(store)?.ok_or_else(|| {
                Error::not_found(format!("read a snapshot of `{}`: there is none", V::NAME))
            })?,
        };
        snapshot::part(store, index, offset, bytes)
    }
}

impl<V: View> Shared<V> {
    pub(super) fn count(&self, entries: u64, bytes: u64) {
        let entries = self.entries_since.fetch_add(entries, Ordering::Relaxed) + entries;
        let bytes = self.bytes_since.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if is_due(self.options, entries, bytes, self.worth_bytes.load(Ordering::Relaxed)) {
            // Counting starts anew here, so that the next entry does not ask again.
            self.entries_since.store(0, Ordering::Relaxed);
            self.bytes_since.store(0, Ordering::Relaxed);
            self.background().due = true;
            self.wake.notify_all();
        }
    }

    pub(super) fn run_snapshots(&self) {
        let mut background = self.background();
        while !background.stopping {
            if !background.due {
                background = self.wake.wait(background).expect("no holder panics");
                continue;
            }
            background.due = false;
            drop(background);
            let result = self.snapshot();
            background = self.background();
            if let Err(e) = result {
                background.failed(e);
            }
        }
    }

    fn snapshot(&self) -> Result<Index> {
        let _one = self.snapshotting.held();
        let (header, draft) = {
            let machine = self.read();
            if let Some(e) = &machine.stopped
                && !planted!("log.snapshot-of-a-stopped-view")
            {
                return Err(e.clone().context("take a snapshot"));
            }
            if machine.applied.0 == 0 {
                return Err(Error::invalid(format!(
                    "take a snapshot of view `{}`: nothing was applied yet: append first",
                    V::NAME
                )));
            }
            if self.background().snapshot == Some(machine.applied) {
                return Ok(machine.applied);
            }
            let header = Header {
                view: V::NAME.to_owned(),
                view_version: V::VERSION,
                topic: self.topic.clone(),
                index: machine.applied,
                entry_crc: machine.entry_crc,
                digest: machine.digest,
                has_term: true,
            };
            // To the page cache: who applies does not wait for a device.
            let draft = snapshot::Draft::create(&self.store)?;
            // Of many rows it takes long, and an end does not wait.
            let goes_on = || match self.ended.load(Ordering::Acquire) {
                true => Err(closed()),
                false => Ok(()),
            };
            draft.fill(&header, |out| Machine::write(machine, goes_on, out))?;
            (header, draft)
        };
        let index = header.index;
        // A snapshot must never hold what a power cut can take from the log.
        let believed = planted!("log.snapshot-not-durable");
        if !believed {
            self.log.sync(&self.topic)?;
        }
        if self.log.info(&self.topic)?.durable <= index && !believed {
            return Err(Error::bug(format!(
                "take a snapshot of topic `{}`: entry {index} is not durable after a sync",
                self.topic
            )));
        }
        let bytes = draft.bytes()?;
        if draft.finish()? != header {
            return Err(Error::corrupt(format!(
                "take a snapshot of topic `{}`: reading it back gave another header",
                self.topic
            )));
        }
        let (oldest, damaged) = snapshot::publish(&self.store, index)?;
        let oldest = if planted!("log.trimmed-past-a-hold") { Some(index) } else { oldest };
        {
            let mut background = self.background();
            damaged.into_iter().for_each(|what| background.report(what));
            background.snapshot = Some(index);
            background.covered = oldest;
        }
        if V::WEIGHS {
            self.worth_bytes.store(bytes, Ordering::Relaxed);
        }
        if let Some(oldest) = oldest.filter(|_| self.role == Role::Owner) {
            // The entry at the snapshot itself stays: a boot compares it with the snapshot's.
            self.log.trim(&self.topic, oldest)?;
        }
        Ok(index)
    }
}

fn is_due(options: FoldOptions, entries: u64, bytes: u64, worth_bytes: u64) -> bool {
    let FoldOptions { snapshot_entries, snapshot_bytes } = options;
    let many = snapshot_entries > 0 && entries >= snapshot_entries;
    let much = snapshot_bytes > 0 && bytes >= snapshot_bytes;
    (many || much) && bytes >= worth_bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_due_when_the_entries_are_worth_it() {
        let due = |entries, bytes, worth| {
            let options = FoldOptions { snapshot_entries: 10, snapshot_bytes: 100 };
            is_due(options, entries, bytes, worth)
        };
        assert!(!due(9, 99, 0) && due(10, 10, 0) && due(1, 100, 0));
        assert!(!due(10, 499, 500) && !due(1, 499, 500) && due(1, 500, 500));
        let never = FoldOptions { snapshot_entries: 0, snapshot_bytes: 0 };
        assert!(!is_due(never, 1 << 40, 1 << 60, 0));
    }
}
