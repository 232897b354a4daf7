//! Rows of PostgreSQL's log as changes: transactions are gathered until they end, and each image of a row is
//! turned into the keys that it is in. What the log does not say of a key makes its transaction unknown. Pure.

use super::output::{Column, Datum, Message, Old, Row};
use super::seen::At;
use crate::gate::Change;
use crate::map::{Cell, Map};
use crate::source::TRANSACTION_KEYS_MAX;
use holdfast_base::{Error, Result};
use holdfast_env::planted;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Seconds between 1970 and 2000, where PostgreSQL's times begin.
pub const YEAR_2000_S: u64 = 946_684_800;

/// Types that pad with blanks, and that are bytes; all others are taken as their text.
const BPCHAR: u32 = 1042;
const BYTEA: u32 = 17;

/// A transaction whose end has not come.
struct Open {
    xid: u32,
    changed_s: u64,
    keys: BTreeSet<Vec<u8>>,
    /// Why nobody knows its keys.
    unknown: Option<String>,
}

struct Relation {
    table: String,
    columns: Vec<Column>,
    /// Under the name that the map has.
    is_mapped: bool,
    /// It is a table of the map under another name.
    was_mapped: bool,
}

/// What is known in the middle of a log.
pub struct Rows {
    map: Arc<Map>,
    /// Tables of the map by their number, as they were when reading began.
    known: BTreeSet<u32>,
    relations: BTreeMap<u32, Relation>,
    open: Option<Open>,
}

impl Rows {
    pub fn new(map: Arc<Map>, known: BTreeSet<u32>) -> Rows {
        Rows { map, known, relations: BTreeMap::new(), open: None }
    }

    /// Whether a transaction has begun and not ended.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Takes the plugin's next message; a transaction if that ends one, and why its keys are not known if they
    /// are not.
    pub fn take(&mut self, message: &[u8]) -> Result<Option<(Change<At>, Option<String>)>> {
        match Message::read(message)? {
            Message::Begin { time_us, xid } => {
                let changed_s = YEAR_2000_S.saturating_add_signed(time_us / 1_000_000);
                let keys = BTreeSet::new();
                self.open = Some(Open { xid, changed_s, keys, unknown: None });
            }
            Message::Commit { end } => {
                let Open { xid, changed_s, keys, unknown } = self.open.take().ok_or_else(|| {
                    Error::corrupt("read the row log: a transaction ends that has not begun")
                })?;
                let keys = unknown.is_none().then(|| keys.into_iter().collect());
                let change = Change { mark: At { xid: Some(xid), end }, changed_s, keys };
                return Ok(Some((change, unknown)));
            }
            Message::Relation { number, schema, table, columns } => {
                let table = format!("{schema}.{table}");
                let is_mapped = self.map.has(&table);
                let before = self.relations.get(&number);
                let was = before.is_some_and(|one| one.is_mapped || one.was_mapped);
                let was_mapped = was || self.known.contains(&number);
                self.relations.insert(number, Relation { table, columns, is_mapped, was_mapped });
            }
            Message::Insert { relation, new } => {
                self.images(relation, |relation, map| relation.keys(map, &new, None, false));
            }
            Message::Update { relation, old, new } => {
                self.images(relation, |relation, map| relation.update(map, &old, &new));
            }
            Message::Delete { relation, old } => {
                self.images(relation, |relation, map| match &old {
                    Old::Nothing => Ok(Vec::new()),
                    Old::Identity(row) => relation.keys(map, row, None, true),
                    Old::Whole(row) => relation.keys(map, row, None, false),
                });
            }
            Message::Truncate { relations } => {
                for number in relations {
                    self.images(number, |relation, _| {
                        Err(format!("a table of the map was truncated: `{}`", relation.table))
                    });
                }
            }
            Message::Other => {}
        }
        Ok(None)
    }

    /// Adds the keys of a row's images to the open transaction.
    fn images(
        &mut self,
        number: u32,
        keys: impl FnOnce(&Relation, &Map) -> std::result::Result<Vec<Vec<u8>>, String>,
    ) {
        let Some(open) = &mut self.open else { return };
        let Some(relation) = self.relations.get(&number) else {
            open.unknown
                .get_or_insert_with(|| "rows came of a table that has no description".into());
            return;
        };
        if open.unknown.is_some() || !relation.is_mapped && !relation.was_mapped {
            return;
        }
        if !relation.is_mapped {
            let table = &relation.table;
            open.unknown = Some(format!("a table of the map was renamed: now `{table}`"));
            return;
        }
        match keys(relation, &self.map) {
            Ok(keys) => open.keys.extend(keys),
            Err(why) => open.unknown = Some(why),
        }
        if open.keys.len() > TRANSACTION_KEYS_MAX {
            open.keys.clear();
            open.unknown =
                Some(format!("one transaction changed more than {TRANSACTION_KEYS_MAX} keys"));
        }
    }
}

impl Relation {
    /// The keys of a row before and after.
    fn update(
        &self,
        map: &Map,
        old: &Old<'_>,
        new: &Row<'_>,
    ) -> std::result::Result<Vec<Vec<u8>>, String> {
        let mut keys = match old {
            Old::Whole(row) => self.keys(map, row, None, false)?,
            Old::Identity(row) => self.keys(map, row, None, true)?,
            // Its identity is what it was: so are its keys, if they are made of that.
            Old::Nothing => self.keys(map, new, None, true)?,
        };
        let before = match old {
            Old::Whole(row) | Old::Identity(row) => Some(row),
            Old::Nothing => None,
        };
        if !planted!("invalidate.new-key-forgotten") {
            keys.extend(self.keys(map, new, before, false)?);
        }
        Ok(keys)
    }

    /// The keys of one image; what it leaves out stands in `before`. With `is_identity`, only columns of the
    /// replica identity are in it.
    fn keys(
        &self,
        map: &Map,
        row: &Row<'_>,
        before: Option<&Row<'_>>,
        is_identity: bool,
    ) -> std::result::Result<Vec<Vec<u8>>, String> {
        let mut is_hidden = false;
        let cell = |column: &str| {
            let number = self.columns.iter().position(|of| of.name == column)?;
            let about = &self.columns[number];
            if is_identity && !about.is_identity && !planted!("invalidate.identity-unasked") {
                is_hidden = true;
                return None;
            }
            let value = match row.get(number)? {
                Datum::Unchanged => before.and_then(|row| row.get(number)).copied(),
                value => Some(*value),
            };
            match value {
                Some(Datum::Null) => Some(Cell::Null),
                Some(Datum::Text(text)) => Some(Cell::Text(text_of(about.kind, text)?)),
                Some(Datum::Unchanged) | None => {
                    is_hidden = true;
                    None
                }
            }
        };
        map.keys(&self.table, cell).map_err(|column| {
            let table = &self.table;
            if is_hidden {
                return format!(
                    "rows of `{table}` do not say what `{column}` was: ALTER TABLE {table} REPLICA IDENTITY \
                     FULL"
                );
            }
            format!("rows of `{table}` have no column `{column}` that a key can be made of")
        })
    }
}

/// A value as it is in a key: of `char(n)` without the blanks that pad it, of `bytea` the bytes.
fn text_of(kind: u32, text: &[u8]) -> Option<Vec<u8>> {
    match kind {
        BPCHAR => {
            let end = text.iter().rposition(|byte| *byte != b' ').map_or(0, |at| at + 1);
            Some(text[..end].to_vec())
        }
        BYTEA => {
            let digits = text.strip_prefix(b"\\x")?;
            let digit = |byte: u8| (byte as char).to_digit(16);
            let byte = |pair: &[u8]| match pair {
                [high, low] => Some((digit(*high)? << 4 | digit(*low)?) as u8),
                _ => None,
            };
            digits.chunks(2).map(byte).collect()
        }
        _ => Some(text.to_vec()),
    }
}

#[cfg(test)]
mod tests;
