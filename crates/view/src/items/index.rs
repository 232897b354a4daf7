//! Which keys of a collection have which value in a field of theirs, in memory. It is parted by value:
//! whatever a key's hash is, what it has of the values in the index's range is kept. So it folds every
//! change of its collection, and who looks for a value asks one part.

use super::catalog::{Catalog, Does, accepted};
use super::command::Command;
use super::stream;
use crate::{Applied, Context, View};
use holdfast_base::Result;
use holdfast_base::ids::Index;
use holdfast_base::stream::{Source, Writer};
use holdfast_env::planted;
use holdfast_wire::slab::{self, Content, Hashed, Item, Range};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

/// What an index is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Indexed {
    /// The collection's name.
    pub collection: String,
    /// A field of its values, which are JSON objects.
    pub field: String,
}

/// What a key has: the entry that made its newest value, and that value's part of the index.
#[derive(Debug)]
struct Has {
    index: Index,
    /// In order, each once. Kept to take them out again when the key's value is another one.
    values: Vec<Arc<[u8]>>,
}

/// The newest values of one field.
#[derive(Debug)]
pub struct IndexView {
    /// Of values' hashes.
    range: Range,
    of: Indexed,
    catalog: Catalog,
    /// By value.
    keys: BTreeMap<Arc<[u8]>, BTreeSet<Arc<[u8]>>>,
    /// By key: of those that have a value in the range.
    has: BTreeMap<Arc<[u8]>, Has>,
}

impl IndexView {
    /// Which part of an index has a value.
    pub fn hash(value: &[u8]) -> u32 {
        slab::hash(Hashed::All, value)
    }

    /// Keys that have this value, each with the entry that gave it to them, in their order, behind one
    /// of them or from the first on.
    pub fn find(&self, value: &[u8], after: Option<&[u8]>) -> impl Iterator<Item = (&[u8], Index)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let keys = self.keys.get(value).into_iter();
        let keys = keys.flat_map(move |keys| keys.range::<[u8], _>((from, Bound::Unbounded)));
        keys.map(|key| (&**key, self.has[key].index))
    }

    /// Keys that have a value in its range.
    pub fn len(&self) -> usize {
        self.has.len()
    }

    /// Whether no key has one.
    pub fn is_empty(&self) -> bool {
        self.has.is_empty()
    }

    fn is_of(&self, collection: u16) -> bool {
        self.catalog.collection(collection).is_some_and(|one| one.name == self.of.collection)
    }

    /// A key has this value from now on, or none.
    fn change(&mut self, key: &[u8], index: Index, value: Option<&[u8]>) {
        if let Some(before) = self.has.remove(key)
            && !planted!("items.index-keeps-old-values")
        {
            for value in &before.values {
                let keys = self.keys.get_mut(value).expect("a value that a key has");
                keys.remove(key);
                if keys.is_empty() {
                    self.keys.remove(value);
                }
            }
        }
        let mut found: BTreeSet<Vec<u8>> = BTreeSet::new();
        slab::values(value.unwrap_or_default(), &self.of.field, &mut |value| {
            if self.range.contains(IndexView::hash(value)) {
                found.insert(value.to_vec());
            }
        });
        if found.is_empty() {
            return;
        }
        let key: Arc<[u8]> = key.into();
        let values = found.into_iter().map(|value| {
            // One copy of a value, however many keys have it.
            let value = match self.keys.get_key_value(&*value) {
                Some((known, _)) => known.clone(),
                None => value.into(),
            };
            self.keys.entry(value.clone()).or_default().insert(key.clone());
            value
        });
        let values = values.collect();
        self.has.insert(key, Has { index, values });
    }
}

impl View for IndexView {
    const NAME: &'static str = "items-index";
    const VERSION: u32 = 1;

    fn begin(context: &Context) -> IndexView {
        let of = context.indexed.clone().expect("who opens an index says of what");
        let (catalog, keys, has) = (Catalog::default(), BTreeMap::new(), BTreeMap::new());
        IndexView { range: context.range, of, catalog, keys, has }
    }

    fn apply(&mut self, index: Index, command: &[u8]) -> Applied {
        let changed = match self.catalog.apply(index, command) {
            Err(applied) => return applied,
            Ok(Does::Catalog) => return accepted(index),
            Ok(Does::Change(changed)) => changed,
        };
        for change in changed.iter() {
            if self.is_of(change.collection) {
                self.change(change.key, index, change.value);
            }
        }
        accepted(index)
    }

    fn describe(command: &[u8]) -> String {
        Command::describe(command)
    }

    /// Items, as any view's, so that it begins with its own snapshot as with what another view gives:
    /// of each value no more than what is indexed.
    fn snapshot(&self, out: &mut Writer<'_>) {
        let number = self.catalog.all().find(|(_, one)| one.name == self.of.collection);
        let number = number.map_or(0, |(number, _)| number);
        let hashed = self.has.iter().map(|(key, has)| (self.catalog.hash(number, key), key, has));
        let mut all: Vec<(u32, &Arc<[u8]>, &Has)> = hashed.collect();
        all.sort_unstable_by_key(|(hash, key, _)| (*hash, *key));
        let index = all.iter().map(|(.., has)| has.index).max().unwrap_or_default();
        stream::write(out, &self.catalog, (Range::ALL, index), |put| {
            all.iter().try_for_each(|(hash, key, has)| {
                let values = has.values.iter().map(|value| &**value);
                let value = slab::object_of(&self.of.field, values);
                let (hash, collection, index) = (*hash, number, has.index.0);
                put(&Item { hash, collection, key, index, value: Some(&value) })
            })
        });
    }

    fn restore(context: &Context, source: &mut Source<'_>) -> Result<IndexView> {
        let mut view = IndexView::begin(context);
        view.catalog = source.get()?;
        stream::read_items(source, &mut |received| {
            if let Content::Value(value) = received.content
                && received.newest
                && view.is_of(received.collection)
            {
                view.change(received.key, Index(received.index), Some(value));
            }
            Ok(())
        })?;
        Ok(view)
    }
}
