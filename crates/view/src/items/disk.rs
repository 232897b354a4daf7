//! Every version of every key, in rows: what is read at an index, and what others begin with. Holds
//! nothing itself; readers have moments of the rows.

use super::catalog::{Catalog, Does, accepted};
use super::command::Command;
use super::pass::Pass;
use super::rows::{self, CATALOG, Item};
use super::stream;
use crate::{Applied, Context, Page, PutRow, RowsView, damaged, position};
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::ids::Index;
use holdfast_base::stream::{Source, Writer};
use holdfast_base::{Error, Result};
use holdfast_env::rows::{Batch, Moment};
use holdfast_wire::slab::Range;
use std::sync::Arc;

/// The view, which is its rows.
pub struct DiskView;

fn catalog(found: Option<Vec<u8>>) -> Result<Catalog> {
    match found {
        Some(bytes) => Catalog::from_bytes(&bytes).map_err(|_| damaged("the catalog")),
        None => Ok(Catalog::default()),
    }
}

impl RowsView for DiskView {
    const NAME: &'static str = "items-disk";
    const VERSION: u32 = 1;

    fn apply(
        page: &Page<'_>,
        index: Index,
        command: &[u8],
        changes: &mut Batch,
    ) -> Result<Applied> {
        let mut catalog = catalog(page.get(CATALOG)?)?;
        let changed = match catalog.apply(index, command) {
            Err(applied) => return Ok(applied),
            Ok(Does::Catalog) => {
                changes.put(CATALOG.to_vec(), catalog.to_bytes());
                return Ok(accepted(index));
            }
            Ok(Does::Change(changed)) => changed,
        };
        for change in changed.iter() {
            let hash = catalog.hash(change.collection, change.key);
            if page.range().contains(hash) {
                let versions = rows::versions(hash, change.collection, change.key);
                changes.put(rows::version(&versions, index), rows::value(change.value));
            }
        }
        Ok(accepted(index))
    }

    fn is_mark(command: &[u8]) -> bool {
        Command::is_mark(command)
    }

    fn describe(command: &[u8]) -> String {
        Command::describe(command)
    }

    fn write(
        moment: &dyn Moment,
        out: &mut Writer<'_>,
        goes_on: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        let catalog = catalog(moment.get(CATALOG)?)?;
        let index = position(moment)?.map_or(Index(0), |position| position.applied);
        let mut pass = Pass::new(moment, &catalog, Range::ALL, None)?;
        stream::write(out, &catalog, (Range::ALL, index), |put| {
            while pass.advance(&mut |item| {
                goes_on()?;
                put(item).map(|()| true)
            })? {}
            Ok(())
        });
        Ok(())
    }

    fn read(context: &Context, source: &mut Source<'_>, put: &mut PutRow<'_>) -> Result<()> {
        let mut catalog = Catalog::default();
        stream::read(source, &mut catalog, &mut |received| {
            let item = received.item().ok_or_else(|| damaged("what a view begins with"))?;
            if !context.range.contains(item.hash) {
                return Ok(());
            }
            let versions = rows::versions(item.hash, item.collection, item.key);
            put(rows::version(&versions, Index(item.index)), rows::value(item.value))
        })?;
        put(CATALOG.to_vec(), catalog.to_bytes())
    }
}

/// A key's version that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Of the entry that made it.
    pub index: Index,
    /// As it was put.
    pub value: Vec<u8>,
}

/// A key with its version.
pub type Keyed = (Vec<u8>, Found);

/// Keys that are sought side by side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sought {
    /// The collection's number.
    pub collection: u16,
    /// What they begin with: enough of it that all have one hash.
    pub prefix: Vec<u8>,
    /// Behind this one.
    pub after: Option<Vec<u8>>,
    /// Keys of one answer, and bytes of their values; there is always one key, if there is any.
    pub keys_max: usize,
    /// See `keys_max`.
    pub bytes_max: usize,
}

/// The view at one moment.
pub struct Reader {
    moment: Arc<dyn Moment>,
    catalog: Catalog,
    applied: Index,
}

impl Reader {
    /// Of rows as they were at a moment.
    pub fn new(moment: Arc<dyn Moment>) -> Result<Reader> {
        let catalog = catalog(moment.get(CATALOG)?)?;
        let applied = position(&*moment)?.map_or(Index(0), |position| position.applied);
        Ok(Reader { moment, catalog, applied })
    }

    /// The last entry that it shows.
    pub fn applied(&self) -> Index {
        self.applied
    }

    /// What it knows of the topic as a whole.
    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// The rows as they are read.
    pub(super) fn moment(&self) -> &dyn Moment {
        &*self.moment
    }

    /// The index to read at: the latest, or one that is not behind the horizon and was reached.
    pub(super) fn at(&self, wanted: Option<Index>) -> Result<Index> {
        let at = wanted.unwrap_or(self.applied);
        let horizon = self.catalog.horizon();
        if at > self.applied {
            return Err(Error::retry(format!(
                "read items at index {at}: the view has applied entries up to {}",
                self.applied
            )));
        }
        if at < horizon {
            return Err(Error::invalid(format!(
                "read items at index {at}: versions before {horizon} are gone: ask for that index or \
                 a later one"
            )));
        }
        Ok(at)
    }

    /// A key's value at an index, or the latest.
    pub fn get(&self, collection: u16, key: &[u8], at: Option<Index>) -> Result<Option<Found>> {
        let at = self.at(at)?;
        self.catalog.check_for("read items", collection, key)?;
        let hash = self.catalog.hash(collection, key);
        let versions = rows::versions(hash, collection, key);
        let (from, until) =
            (rows::version(&versions, Index(0)), rows::version(&versions, Index(at.0 + 1)));
        let Some((row, value)) = self.moment.last(&from, &until)? else { return Ok(None) };
        let item = parse(&row, &value)?;
        Ok(item.value.map(|value| Found { index: item.index, value: value.to_vec() }))
    }

    /// Keys in their order, with their values at an index or the latest; and whether there are more.
    pub fn scan(&self, sought: &Sought, at: Option<Index>) -> Result<(Vec<Keyed>, bool)> {
        let at = self.at(at)?;
        let Sought { collection, prefix, after, keys_max, bytes_max } = sought;
        let hash = self.catalog.hash_of_prefix(*collection, prefix)?;
        let from = match after {
            Some(after) => rows::behind(rows::versions(hash, *collection, after)),
            None => rows::beginning(hash, *collection, prefix),
        };
        let until = rows::behind(rows::beginning(hash, *collection, prefix));
        let mut found = Vec::new();
        let (mut bytes, mut more) = (0, false);
        // The newest version so far of the key that is being passed.
        let mut newest: Option<(Vec<u8>, Option<Found>)> = None;
        let mut settle = |newest: Option<(Vec<u8>, Option<Found>)>| {
            let Some((key, Some(value))) = newest else { return true };
            bytes += key.len() + value.value.len();
            let fits = found.is_empty() || (found.len() < *keys_max && bytes <= *bytes_max);
            if fits {
                found.push((key, value));
            }
            fits
        };
        self.moment.cursor(&from, &until)?.advance(&mut |row, value| {
            let item = parse(row, value)?;
            if newest.as_ref().is_none_or(|(key, _)| *key != *item.key) {
                more = !settle(newest.replace((item.key.into_owned(), None)));
            }
            if item.index <= at
                && let Some((_, newest)) = &mut newest
            {
                *newest = item.value.map(|v| Found { index: item.index, value: v.to_vec() });
            }
            Ok(!more)
        })?;
        more = more || !settle(newest);
        Ok((found, more))
    }
}

pub(super) fn parse<'a>(row: &'a [u8], value: &'a [u8]) -> Result<Item<'a>> {
    rows::parse(row, value).map_err(|_| damaged("an item"))
}
