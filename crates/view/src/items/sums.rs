//! Sums of what a view holds, by which it is compared with others: docs/formats/slab.md.

use super::disk::Reader;
use super::memory::MemoryView;
use super::pass::Pass;
use holdfast_base::Result;
use holdfast_base::ids::Index;
use holdfast_env::planted;
use holdfast_wire::slab::{Item, Range, Sums};

/// What was summed up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Keys that have a value.
    pub keys: u64,
    /// Of the newest items, and of all that are shown.
    pub sums: Sums,
}

impl Totals {
    fn add(&mut self, item: &Item<'_>, newest: bool) {
        self.keys += u64::from(newest);
        self.sums.add(item, newest);
    }
}

impl Reader {
    /// Of a range of hashes, as of an index or the latest.
    pub fn totals(&self, range: Range, at: Option<Index>) -> Result<Totals> {
        let at = self.at(at)?;
        let mut totals = Totals::default();
        let mut held = Held::default();
        let mut pass = Pass::new(self.moment(), self.catalog(), range, None)?;
        while pass.advance(&mut |item| {
            if item.index <= at.0 || planted!("items.sums-of-later-entries") {
                held.settle(Some(item), &mut totals);
                held.hold(item);
            }
            Ok(true)
        })? {}
        held.settle(None, &mut totals);
        Ok(totals)
    }
}

impl MemoryView {
    /// Of a range of hashes, as it is now: it has no version but the newest.
    pub fn totals(&self, range: Range) -> Totals {
        let mut totals = Totals::default();
        self.each(range).for_each(|item| totals.add(&item, true));
        totals
    }
}

/// The version before: whether it is the newest of its key, what follows it says.
#[derive(Default)]
struct Held {
    is_there: bool,
    hash: u32,
    collection: u16,
    index: u64,
    is_deletion: bool,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Held {
    fn hold(&mut self, item: &Item<'_>) {
        let Item { hash, collection, key, index, value } = *item;
        (self.hash, self.collection, self.index) = (hash, collection, index);
        (self.is_there, self.is_deletion) = (true, value.is_none());
        self.key.clear();
        self.key.extend_from_slice(key);
        self.value.clear();
        self.value.extend_from_slice(value.unwrap_or_default());
    }

    fn settle(&mut self, next: Option<&Item<'_>>, totals: &mut Totals) {
        if !self.is_there {
            return;
        }
        let Held { hash, collection, index, .. } = *self;
        let value = (!self.is_deletion).then_some(&*self.value);
        let item = Item { hash, collection, key: &self.key, index, value };
        let goes_on = next.is_some_and(|next| {
            (next.hash, next.collection, next.key) == (hash, collection, &*self.key)
        });
        totals.add(&item, value.is_some() && !goes_on);
        self.is_there = false;
    }
}
