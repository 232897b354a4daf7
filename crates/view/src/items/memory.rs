//! The newest values, in memory: looked up and sought without a disk. Begins with what a disk view
//! gives, and follows the topic from there.

use super::catalog::{Catalog, Does, accepted};
use super::command::Command;
use super::stream;
use super::values::{Values, in_order, place};
use crate::{Applied, Context, View};
use holdfast_base::Result;
use holdfast_base::ids::Index;
use holdfast_base::stream::{Source, Writer};
use holdfast_env::planted;
use holdfast_wire::slab::{Item, Range};

/// The newest value of each key that has one.
#[derive(Debug)]
pub struct MemoryView {
    range: Range,
    catalog: Catalog,
    values: Values,
}

impl MemoryView {
    /// What is known of the topic as a whole.
    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// A key's value, with the entry that made it.
    pub fn get(&self, collection: u16, key: &[u8]) -> Option<(Index, &[u8])> {
        let place = place(self.catalog.hash(collection, key), collection, key);
        let item = self.values.get(&place)?;
        Some((Index(item.index), item.value?))
    }

    /// Keys that begin so, in their order, behind one of them or from the first on. `Invalid` where
    /// they have not all one hash.
    pub fn scan<'a>(
        &'a self,
        collection: u16,
        prefix: &'a [u8],
        after: Option<&'a [u8]>,
    ) -> Result<impl Iterator<Item = (&'a [u8], Index, &'a [u8])>> {
        let hash = self.catalog.hash_of_prefix(collection, prefix)?;
        let from = self.values.from(place(hash, collection, after.unwrap_or(prefix)));
        let behind = from.skip_while(move |item| {
            (item.hash, item.collection) == (hash, collection) && Some(item.key) == after
        });
        let found = behind.take_while(move |item| {
            (item.hash, item.collection) == (hash, collection) && item.key.starts_with(prefix)
        });
        Ok(found.filter_map(|item| Some((item.key, Index(item.index), item.value?))))
    }

    /// Keys that have a value.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether no key has one.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Items with hashes from a range, in the order in which items travel.
    pub(super) fn each(&self, range: Range) -> impl Iterator<Item = Item<'_>> {
        // A range that has nothing begins behind the last hash.
        let from = u32::try_from(range.low()).unwrap_or(u32::MAX);
        let from = self.values.from(place(from, 0, &[]));
        from.take_while(move |item| u64::from(item.hash) < range.high())
    }
}

impl View for MemoryView {
    const NAME: &'static str = "items-memory";
    const VERSION: u32 = 1;

    fn begin(context: &Context) -> MemoryView {
        let (catalog, values) = (Catalog::default(), Values::default());
        MemoryView { range: context.range, catalog, values }
    }

    fn apply(&mut self, index: Index, command: &[u8]) -> Applied {
        let changed = match self.catalog.apply(index, command) {
            Err(applied) => return applied,
            Ok(Does::Catalog) => return accepted(index),
            Ok(Does::Change(changed)) => changed,
        };
        for change in changed.iter() {
            let (collection, key) = (change.collection, change.key);
            let hash = self.catalog.hash(collection, key);
            match change.value {
                _ if !self.range.contains(hash) => {}
                Some(_) => {
                    let value = change.value;
                    self.values.put(&Item { hash, collection, key, index: index.0, value });
                }
                None if planted!("items.deleted-key-stays") => {}
                None => self.values.remove(&place(hash, collection, key)),
            }
        }
        accepted(index)
    }

    fn describe(command: &[u8]) -> String {
        Command::describe(command)
    }

    fn snapshot(&self, out: &mut Writer<'_>) {
        // It holds what is applied, all of it: no item is newer than the newest one.
        let index = self.each(Range::ALL).map(|item| item.index).max().unwrap_or_default();
        stream::write(out, &self.catalog, (self.range, Index(index)), |put| {
            self.each(Range::ALL).try_for_each(|item| put(&item))
        });
    }

    fn restore(context: &Context, source: &mut Source<'_>) -> Result<MemoryView> {
        let mut view = MemoryView::begin(context);
        let MemoryView { range, catalog, values } = &mut view;
        *catalog = source.get()?;
        stream::read_slabs(source, &mut |slab| {
            let newest = slab.items().filter(|received| received.newest);
            let own = newest.filter(|received| range.contains(received.hash));
            let mut items: Vec<Item<'_>> =
                own.filter_map(|received| received.item()).filter(|i| i.value.is_some()).collect();
            // A slab has one collection behind the other, each in order.
            items.sort_by(in_order);
            values.append(&items);
            Ok(())
        })?;
        Ok(view)
    }
}
