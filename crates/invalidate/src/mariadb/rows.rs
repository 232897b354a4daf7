//! Rows of MariaDB's log as changes: transactions are gathered until they end, and each image of a row is turned into
//! the keys that it is in. What cannot be read, or is not known to change nothing, makes its transaction unknown. Bytes
//! come in, changes go out; it holds no connection. Pure.

use super::At;
use super::event::{self, Event, Images, Table, kind};
use crate::gate::Change;
use crate::map::Map;
use crate::position::{Gtid, Place};
use crate::source::TRANSACTION_KEYS_MAX;
use holdfast_base::{Error, Result};
use holdfast_env::planted;
use std::collections::{BTreeMap, BTreeSet};

/// Tables whose rows one transaction has. They are described anew in each.
pub const TABLES_MAX: usize = 10_000;

/// A transaction whose end has not come.
struct Open {
    gtid: Gtid,
    changed_s: u64,
    /// Of one event, without an end of its own.
    is_alone: bool,
    /// By their numbers, those of the map with what they are like.
    tables: BTreeMap<u64, Option<Table>>,
    keys: BTreeSet<Vec<u8>>,
    /// Why nobody knows its keys.
    unknown: Option<String>,
}

/// What is known in the middle of a log.
#[derive(Default)]
pub struct Rows {
    /// Which of the log's files is read.
    file: String,
    open: Option<Open>,
}

impl Open {
    /// It cannot be said which keys it changed: of several reasons, the first.
    fn is_unknown(&mut self, why: impl Into<String>) {
        // What it has is of no use any more.
        self.keys.clear();
        self.unknown.get_or_insert_with(|| why.into());
    }

    fn describe(&mut self, data: &[u8], map: &Map) -> Result<()> {
        let (number, name) = Table::title(data)?;
        if self.tables.len() >= TABLES_MAX && !self.tables.contains_key(&number) {
            self.is_unknown(format!("one transaction changed more than {TABLES_MAX} tables"));
            return Ok(());
        }
        // Those that are in no key may be like nothing that is known here.
        let table = map.has(&name).then(|| Table::read(data)).transpose()?;
        self.tables.insert(number, table);
        Ok(())
    }

    fn rows(&mut self, event: &Event<'_>, map: &Map) -> Result<()> {
        let Some(about) = self.tables.get(&event::table_of(event.data)?) else {
            self.is_unknown("rows came of a table that has no description");
            return Ok(());
        };
        let Some(table) = about.as_ref().filter(|_| self.unknown.is_none()) else { return Ok(()) };
        for image in Images::of(event.kind, event.data, table)? {
            let image = image?;
            match map.keys(&table.name, |column| image.cell(column)) {
                Ok(keys) => self.keys.extend(keys),
                Err(column) => {
                    let name = &table.name;
                    let why = format!(
                        "rows of `{name}` have no column `{column}` that a key can be made of"
                    );
                    self.is_unknown(why);
                    return Ok(());
                }
            }
            if self.keys.len() > TRANSACTION_KEYS_MAX {
                let why = format!("one transaction changed more than {TRANSACTION_KEYS_MAX} keys");
                self.is_unknown(why);
                return Ok(());
            }
        }
        Ok(())
    }
    /// A statement; whether it ends its transaction.
    fn query(&mut self, text: &str, map: &Map) -> bool {
        let upper = text.to_ascii_uppercase();
        let words = words(&upper);
        let mut each =
            words.split(|c: char| !c.is_ascii_alphabetic()).filter(|word| !word.is_empty());
        let (first, second) = (each.next().unwrap_or_default(), each.next().unwrap_or_default());
        let names_a_table = || {
            // A schema goes with its tables, and names none of them.
            let is_schema = matches!(second, "DATABASE" | "SCHEMA");
            map.tables().any(|(table, _)| {
                let (schema, name) = table.split_once('.').expect("a map's table has a schema");
                upper.contains(&if is_schema { schema } else { name }.to_ascii_uppercase())
            })
        };
        match first {
            "INSERT" | "UPDATE" | "DELETE" | "REPLACE" | "LOAD" => {
                self.is_unknown(format!("{STATEMENTS}: `{first}`"));
            }
            "TRUNCATE" | "DROP" | "RENAME" | "ALTER" | "CREATE" if names_a_table() => {
                let short: String = text.chars().take(100).collect();
                self.is_unknown(format!("a table of the map was changed: `{short}`"));
            }
            "XA" if upper.contains("COMMIT") => {
                self.is_unknown("a transaction of two phases (XA) was committed");
            }
            _ => {}
        }
        // `ROLLBACK TO SAVEPOINT` ends nothing.
        self.is_alone || matches!(words.trim_end(), "COMMIT" | "ROLLBACK")
    }
}

const STATEMENTS: &str = "a session writes statements instead of rows (`binlog_format`)";

impl Rows {
    /// Whether a transaction has begun and not ended.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Which of the log's files is read; empty before the first is named.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Takes the log's next event; a transaction if that ends one, and why its keys are not known if they are not.
    /// Fails where nothing behind it can be told apart.
    pub fn take(
        &mut self,
        event: &Event<'_>,
        map: &Map,
    ) -> Result<Option<(Change<At>, Option<String>)>> {
        match event.kind {
            kind::GTID => {
                let before = self.open.replace(begin(event)?);
                return Ok(before.map(|mut open| {
                    open.is_unknown("a transaction has no end");
                    self.change(open, event.end)
                }));
            }
            kind::ROTATE => self.file = file_of(event.data)?,
            // A server began anew, and took back what was open.
            kind::FORMAT => self.open = None,
            kind::INCIDENT if self.open.is_none() => {
                // Before this, or behind: as if it had purged them.
                return Err(Error::not_found("it lost changes on their way to it"));
            }
            _ => {}
        }
        let Some(open) = &mut self.open else { return Ok(None) };
        let ends = match open.take(event, map) {
            Ok(ends) => ends,
            Err(e) => {
                // Where it ends is not lost, unless it is the one event of its transaction.
                open.is_unknown(format!("an event of kind {} cannot be read: {e}", event.kind));
                open.is_alone && event.kind == kind::QUERY
            }
        };
        if !ends {
            return Ok(None);
        }
        let open = self.open.take().expect("is open");
        Ok(Some(self.change(open, event.end)))
    }

    /// What a transaction has changed, which ends there.
    fn change(&self, open: Open, offset: u64) -> (Change<At>, Option<String>) {
        let end = Place { file: self.file.clone(), offset };
        let Open { gtid, changed_s, keys, unknown, .. } = open;
        let keys = unknown.is_none().then(|| keys.into_iter().collect());
        (Change { mark: At { gtid, end }, changed_s, keys }, unknown)
    }
}

impl Open {
    /// What an event says of it; whether that ends it.
    fn take(&mut self, event: &Event<'_>, map: &Map) -> Result<bool> {
        match event.kind {
            kind::GTID => {}
            kind::TABLE_MAP => self.describe(event.data, map)?,
            rows if event::is_rows(rows) => self.rows(event, map)?,
            kind::QUERY => return Ok(self.query(&event::query(event.data)?, map)),
            kind::EXECUTE_LOAD_QUERY => self.is_unknown(format!("{STATEMENTS}: `LOAD`")),
            kind::INCIDENT => {
                self.is_unknown("the database lost changes on their way to its log");
            }
            // What it changed is seen when it is committed, which comes as a statement.
            kind::XA_PREPARE => (self.keys, self.unknown) = (BTreeSet::new(), None),
            kind::QUERY_COMPRESSED..=kind::DELETE_ROWS_COMPRESSED
                if !planted!("invalidate.compressed-unseen") =>
            {
                self.is_unknown("the database compresses its log (`log_bin_compress`)");
            }
            other if !kind::is_idle(other) && !planted!("invalidate.compressed-unseen") => {
                self.is_unknown(format!("an event of kind {other} is not known"));
            }
            _ => {}
        }
        Ok(matches!(event.kind, kind::XID | kind::XA_PREPARE))
    }
}

/// Of a sum that ends an event.
const SUM_BYTES: usize = 4;

/// The file in which the log goes on. Its name may have a sum behind it: the first one comes before anything says
/// whether there are sums, and a setting may have changed since the file began. It was taken for a part of the name.
fn file_of(data: &[u8]) -> Result<String> {
    let name = event::rotate(data)?;
    let bare = &name[..name.len().saturating_sub(SUM_BYTES)];
    let names = if planted!("invalidate.sum-in-name") { [name, name] } else { [bare, name] };
    // Numbers have six digits or more, of which a sum's length leaves fewer.
    let name = names.into_iter().find(|name| Place::is_name(name)).ok_or_else(|| {
        let name = name.escape_ascii();
        Error::corrupt(format!("read the row log: the name of its file, `{name}`, has no number"))
    })?;
    Ok(String::from_utf8_lossy(name).into_owned())
}

/// Reads MariaDB's beginning of a transaction.
fn begin(event: &Event<'_>) -> Result<Open> {
    let (sequence, domain, is_alone) = event::gtid(event.data)?;
    Ok(Open {
        gtid: Gtid { domain, server: event.server, sequence },
        changed_s: event.changed_s,
        is_alone,
        tables: BTreeMap::new(),
        keys: BTreeSet::new(),
        unknown: None,
    })
}

/// A statement from its first word on: programs put comments in front, which a log keeps. One that is carried
/// out (`/*!40000 TRUNCATE t */`) is a statement.
fn words(text: &str) -> &str {
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches(|c: char| c.is_whitespace() || c == '(' || c == ';');
        let carried_out = rest.strip_prefix("/*!").or_else(|| rest.strip_prefix("/*M!"));
        if let Some(inside) = carried_out {
            rest = inside.trim_start_matches(|c: char| c.is_ascii_digit());
        } else if let Some(comment) = rest.strip_prefix("/*") {
            rest = comment.split_once("*/").map_or("", |(_, behind)| behind);
        } else if rest.starts_with("--") || rest.starts_with('#') {
            rest = rest.split_once('\n').map_or("", |(_, behind)| behind);
        } else {
            return rest;
        }
    }
}

#[cfg(test)]
mod tests;
