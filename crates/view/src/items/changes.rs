//! What the last entry of a topic of items has changed: for readers that follow changes and keep no item.

use super::catalog::{Catalog, Does, accepted};
use super::command::{Change, Changes, Command, Decoded, decode};
use crate::{Applied, Context, View};
use holdfast_base::Result;
use holdfast_base::ids::Index;
use holdfast_base::stream::{Source, Writer};
use std::collections::BTreeMap;

/// Knows the catalog, and the last entry that has changed keys.
#[derive(Debug, Default)]
pub struct ChangesView {
    catalog: Catalog,
    index: Index,
    command: Vec<u8>,
}

impl ChangesView {
    /// As the entries so far have left it.
    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// What this entry has changed, if it is the last one: each key once, in the order of collections and
    /// keys. Nothing of one that was refused, or repeats another.
    pub fn of(&self, index: Index) -> impl Iterator<Item = Change<'_>> {
        let command = (self.index == index).then(|| decode(&self.command));
        let changes = match command {
            Some(Decoded::Command(Command::Change(changes))) => Some(changes),
            _ => None,
        };
        let all = changes.into_iter().flat_map(Changes::iter);
        // The later one counts.
        let last: BTreeMap<_, _> = all.map(|one| ((one.collection, one.key), one)).collect();
        last.into_values()
    }
}

impl View for ChangesView {
    const NAME: &'static str = "items-changes";
    const VERSION: u32 = 1;

    fn begin(_: &Context) -> ChangesView {
        ChangesView::default()
    }

    fn apply(&mut self, index: Index, command: &[u8]) -> Applied {
        let is_change = match self.catalog.apply(index, command) {
            Err(applied) => return applied,
            Ok(does) => matches!(does, Does::Change(_)),
        };
        if is_change {
            self.index = index;
            self.command.clear();
            self.command.extend_from_slice(command);
        }
        accepted(index)
    }

    fn describe(command: &[u8]) -> String {
        Command::describe(command)
    }

    fn snapshot(&self, out: &mut Writer<'_>) {
        out.put(&self.catalog);
    }

    fn restore(_: &Context, source: &mut Source<'_>) -> Result<ChangesView> {
        Ok(ChangesView { catalog: source.get()?, ..ChangesView::default() })
    }
}
