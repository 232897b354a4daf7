//! Hours of categories, where the log is looked after: what the view says of them, and marks as entries.

use super::ScribeFace;
use crate::category::Category;
use crate::hour::{Hours, Mark};
use crate::hours::Indexed;
use holdfast_base::Result;
use holdfast_base::ids::Index;
use holdfast_env::{HoldMutex, planted};
use holdfast_log::Mode;
use holdfast_wire::{Call, scribe as msg};

impl ScribeFace {
    /// The categories of which hours are written, or were; none where another node looks after them.
    pub(crate) fn with_hours(&self) -> Vec<Category> {
        if !self.node.looks_after_log() {
            return Vec::new();
        }
        self.open_others();
        let all: Vec<Category> = self.folds.held().keys().cloned().collect();
        let has_some = |category: &Category| self.hours(category, Hours::has_some) == Ok(true);
        all.into_iter().filter(has_some).collect()
    }

    /// Opens the categories that other nodes have made: where brokers keep the log, any node makes one that is sent
    /// to, and another one may look after it.
    pub(super) fn open_others(&self) {
        if self.node.hosted().is_some() || planted!("scribe.others-categories-unknown") {
            return;
        }
        for category in self.node.log.topics().iter().filter_map(|topic| Category::of_topic(topic))
        {
            // What is wrong with one is told whoever asks about it.
            let _ = self.fold(&category, false);
        }
    }

    pub(crate) fn hours<R>(
        &self,
        category: &Category,
        look: impl FnOnce(&Hours) -> R,
    ) -> Result<R> {
        self.fold(category, false)?.read(|view, _| look(view.hours()))
    }

    /// The category's oldest entry.
    pub(crate) fn first(&self, category: &Category) -> Result<Index> {
        Ok(self.node.log.info(&category.topic())?.first)
    }

    /// A mark as an entry; durable on return.
    pub(crate) fn mark_hours(&self, category: &Category, mark: Mark) -> Result<()> {
        let fold = self.fold(category, false)?;
        let request = holdfast_view::Request::of(Call::default(), mark.encode(), Mode::Synced);
        self.node.wait_for(|done| fold.propose(request, done)).map(drop)
    }

    /// Batches that count from an entry on, and where to read on.
    pub(crate) fn batches(
        &self,
        category: &Category,
        from: Index,
    ) -> Result<(Vec<Indexed>, Index)> {
        let bytes_max = msg::READ_BYTES_MAX as u32;
        let read = msg::Read { category: category.name().to_owned(), from, bytes_max, wait: false };
        let (batches, body) = self.read(&read)?;
        let mut rest = &body[..];
        let mut all = Vec::with_capacity(batches.batches.len());
        for msg::Indexed { index, bytes } in batches.batches {
            let (batch, behind) = rest.split_at(bytes as usize);
            all.push((index, batch.to_vec()));
            rest = behind;
        }
        Ok((all, batches.next))
    }
}
