//! The newest values, in memory: looked up and sought without a disk. Begins with what a disk view
//! gives, and follows the topic from there.

use super::catalog::{Catalog, Does, accepted};
use super::command::Command;
use super::stream;
use crate::{Applied, Context, View};
use holdfast_base::Result;
use holdfast_base::ids::Index;
use holdfast_base::stream::{Source, Writer};
use holdfast_env::planted;
use holdfast_wire::slab::{Content, Item, Range};
use std::collections::BTreeMap;
use std::ops::Bound;

type Values = BTreeMap<Box<[u8]>, (Index, Box<[u8]>)>;

/// The newest value of each key that has one.
#[derive(Debug)]
pub struct MemoryView {
    range: Range,
    catalog: Catalog,
    /// By collection.
    values: BTreeMap<u16, Values>,
}

impl MemoryView {
    /// What is known of the topic as a whole.
    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// A key's value, with the entry that made it.
    pub fn get(&self, collection: u16, key: &[u8]) -> Option<(Index, &[u8])> {
        self.values.get(&collection)?.get(key).map(|(index, value)| (*index, &**value))
    }

    /// Keys that begin so, in their order, behind one of them or from the first on.
    pub fn scan(
        &self,
        collection: u16,
        prefix: &[u8],
        after: Option<&[u8]>,
    ) -> impl Iterator<Item = (&[u8], Index, &[u8])> {
        let from = after.map_or(Bound::Included(prefix), Bound::Excluded);
        let all = self.values.get(&collection).map(|values| {
            values.range::<[u8], _>((from, Bound::Unbounded)).map(|(k, (i, v))| (&**k, *i, &**v))
        });
        let prefix = prefix.to_vec();
        all.into_iter().flatten().take_while(move |(key, ..)| key.starts_with(&prefix))
    }

    /// Keys that have a value.
    pub fn len(&self) -> usize {
        self.values.values().map(BTreeMap::len).sum()
    }

    /// Whether no key has one.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn change(&mut self, collection: u16, key: &[u8], index: Index, value: Option<&[u8]>) {
        let values = self.values.entry(collection).or_default();
        match value {
            Some(value) => drop(values.insert(key.into(), (index, value.into()))),
            None if planted!("items.deleted-key-stays") => {}
            None => drop(values.remove(key)),
        }
    }

    /// All of it, in the order of collections and keys.
    pub(super) fn each(&self) -> impl Iterator<Item = Item<'_>> {
        self.values.iter().flat_map(|(collection, values)| {
            values.iter().map(|(key, (index, value))| {
                let (collection, hash) = (*collection, self.catalog.hash(*collection, key));
                Item { hash, collection, key, index: index.0, value: Some(value) }
            })
        })
    }

    /// In the order in which items travel.
    fn items(&self) -> Vec<Item<'_>> {
        let mut items: Vec<Item<'_>> = self.each().collect();
        items.sort_unstable_by_key(|item| (item.hash, item.collection, item.key));
        items
    }
}

impl View for MemoryView {
    const NAME: &'static str = "items-memory";
    const VERSION: u32 = 1;

    fn begin(context: &Context) -> MemoryView {
        let (catalog, values) = (Catalog::default(), BTreeMap::new());
        MemoryView { range: context.range, catalog, values }
    }

    fn apply(&mut self, index: Index, command: &[u8]) -> Applied {
        let changed = match self.catalog.apply(index, command) {
            Err(applied) => return applied,
            Ok(Does::Catalog) => return accepted(index),
            Ok(Does::Change(changed)) => changed,
        };
        for change in changed.iter() {
            if self.range.contains(self.catalog.hash(change.collection, change.key)) {
                self.change(change.collection, change.key, index, change.value);
            }
        }
        accepted(index)
    }

    fn describe(command: &[u8]) -> String {
        Command::describe(command)
    }

    fn snapshot(&self, out: &mut Writer<'_>) {
        // It holds what is applied, all of it: no item is newer than the newest one.
        let items = self.items();
        let index = items.iter().map(|item| item.index).max().unwrap_or_default();
        stream::write(out, &self.catalog, (self.range, Index(index)), |put| {
            items.iter().try_for_each(put)
        });
    }

    fn restore(context: &Context, source: &mut Source<'_>) -> Result<MemoryView> {
        let mut view = MemoryView::begin(context);
        let MemoryView { range, catalog, values } = &mut view;
        stream::read(source, catalog, &mut |received| {
            let Content::Value(value) = received.content else { return Ok(()) };
            if received.newest && range.contains(received.hash) {
                let of = values.entry(received.collection).or_default();
                of.insert(received.key.into(), (Index(received.index), value.into()));
            }
            Ok(())
        })?;
        Ok(view)
    }
}
