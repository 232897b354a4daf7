//! MariaDB as a source: its settings and tables checked, its row log as changes, and what it shows to who
//! reads. Asks; decides nothing about keys and when they go.

mod server;
mod source;

pub use server::Server;
pub use source::MariaDb;

use crate::gate::{Change, Mark};
use crate::map::{Cell, Map};
use crate::position::{Gtid, Gtids, Place, Position};
use crate::source::TRANSACTION_KEYS_MAX;
use futures_core::Stream;
use holdfast_base::{Error, Result};
use holdfast_env::runtime::within;
use mysql_async::binlog::events::{Event, EventData, RowsEventData};
use mysql_async::binlog::row::BinlogRow;
use mysql_async::binlog::value::BinlogValue;
use mysql_async::consts::ColumnType;
use mysql_async::prelude::Queryable;
use mysql_async::{BinlogStream, BinlogStreamRequest, Conn, Value};
use server::failed;
use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::pin::pin;
use std::time::Duration;

/// A log in which nothing happens says so every now and then; one that is silent for longer has lost its server,
/// though nobody was told.
const HEARTBEAT: Duration = Duration::from_secs(5);
const SILENCE: Duration = Duration::from_secs(30);
/// Types of columns that keys may name, as the information schema calls them.
const TYPES: &[&str] = &[
    "tinyint",
    "smallint",
    "mediumint",
    "int",
    "bigint",
    "char",
    "varchar",
    "binary",
    "varbinary",
];

/// A transaction's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct At {
    pub gtid: Gtid,
    /// Where it ends in the log of the server that it was read from.
    pub end: Place,
}

/// What a database showed to a reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The server whose log is read: what its snapshot holds.
    Snapshot(Place),
    /// A replica: what it has applied.
    Applied(Gtids),
}

impl Mark for At {
    type Seen = Seen;

    fn is_in(&self, seen: &Seen) -> bool {
        match seen {
            Seen::Snapshot(place) => place.covers(&self.end),
            Seen::Applied(gtids) => gtids.covers(self.gtid),
        }
    }

    fn pass(&self, position: &mut Position) {
        match position {
            Position::MariaDb(gtids) => gtids.pass(self.gtid),
            Position::Postgres(_) => unreachable!("a topic follows one kind of database"),
        }
    }
}

/// Refuses a database whose log does not say which rows changed, and a map that does not fit its tables.
pub async fn check(conn: &mut Conn, map: &Map) -> Result<()> {
    let doing = "check the database's settings";
    let wanted = [
        ("log_bin", "ON", "log_bin = ON"),
        ("binlog_format", "ROW", "binlog_format = ROW"),
        ("binlog_row_image", "FULL", "binlog_row_image = FULL"),
        ("binlog_row_metadata", "FULL", "binlog_row_metadata = FULL"),
        ("log_bin_compress", "OFF", "log_bin_compress = OFF"),
    ];
    let version: Option<String> =
        conn.query_first("SELECT VERSION()").await.map_err(|e| failed(doing, &e))?;
    let version = version.unwrap_or_default();
    if !version.contains("MariaDB") {
        return Err(Error::unsupported(format!(
            "{doing}: it is `{version}`: only MariaDB, 10.5 or newer, can be read by now"
        )));
    }
    for (name, value, setting) in wanted {
        let query = format!("SELECT CAST(@@GLOBAL.{name} AS CHAR)");
        let is: Option<String> = conn.query_first(query).await.map_err(|e| failed(doing, &e))?;
        let is = is.unwrap_or_default();
        if is != value {
            return Err(Error::invalid(format!(
                "{doing}: `{name}` is `{is}`, and the log does not say what a key needs: set \
                 `{setting}` and restart the sessions that write"
            )));
        }
    }
    for (table, columns) in map.tables() {
        check_table(conn, table, &columns).await?;
    }
    Ok(())
}

async fn check_table(conn: &mut Conn, table: &str, columns: &BTreeSet<&str>) -> Result<()> {
    let doing = format!("check table `{table}` of the map");
    let (schema, name) = table.split_once('.').expect("a map's table has a schema");
    let found: Vec<(String, String)> = conn
        .exec(
            "SELECT COLUMN_NAME, DATA_TYPE FROM information_schema.COLUMNS \
             WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ?",
            (schema, name),
        )
        .await
        .map_err(|e| failed(&doing, &e))?;
    if found.is_empty() {
        return Err(Error::invalid(format!(
            "{doing}: there is none, or its user may not see it: name another, or grant SELECT"
        )));
    }
    let types: BTreeMap<&str, &str> = found.iter().map(|(n, t)| (n.as_str(), t.as_str())).collect();
    for column in columns {
        match types.get(column) {
            None => {
                let names: Vec<&str> = types.keys().copied().collect();
                return Err(Error::invalid(format!(
                    "{doing}: it has no column `{column}`: name one of `{}`",
                    names.join("`, `")
                )));
            }
            Some(kind) if !TYPES.contains(kind) => {
                return Err(Error::invalid(format!(
                    "{doing}: column `{column}` is `{kind}`: keys are made of `{}`",
                    TYPES.join("`, `")
                )));
            }
            Some(_) => {}
        }
    }
    check_cascades(conn, &doing, schema, name).await
}

/// What a foreign key changes in its table when another table's row goes, is in no log.
async fn check_cascades(conn: &mut Conn, doing: &str, schema: &str, name: &str) -> Result<()> {
    let cascade: Option<(String, String)> = conn
        .exec_first(
            "SELECT CONSTRAINT_NAME, REFERENCED_TABLE_NAME \
             FROM information_schema.REFERENTIAL_CONSTRAINTS \
             WHERE CONSTRAINT_SCHEMA = ? AND TABLE_NAME = ? \
             AND (DELETE_RULE IN ('CASCADE', 'SET NULL') OR UPDATE_RULE IN ('CASCADE', 'SET NULL'))",
            (schema, name),
        )
        .await
        .map_err(|e| failed(doing, &e))?;
    match cascade {
        None => Ok(()),
        Some((constraint, other)) => Err(Error::invalid(format!(
            "{doing}: foreign key `{constraint}` changes its rows when rows of `{other}` go, and the log does \
             not say so: make it `RESTRICT`, and let the application change them"
        ))),
    }
}

/// The end of the log: its position, and a place at or behind that.
pub async fn end(conn: &mut Conn) -> Result<(Gtids, Place)> {
    let doing = "ask for the end of the row log";
    let gtid: Option<String> =
        conn.query_first("SELECT @@GLOBAL.gtid_binlog_pos").await.map_err(|e| failed(doing, &e))?;
    let place: Option<(String, u64, Value, Value)> =
        conn.query_first("SHOW MASTER STATUS").await.map_err(|e| failed(doing, &e))?;
    let (file, offset, ..) =
        place.ok_or_else(|| Error::invalid(format!("{doing}: `log_bin` is off: switch it on")))?;
    Ok((Gtids::parse(&gtid.unwrap_or_default())?, Place { file, offset }))
}

/// What a SELECT that begins now sees, on the server whose log is read.
pub async fn snapshot(conn: &mut Conn) -> Result<Seen> {
    let doing = "ask what a snapshot holds";
    let ask = async {
        conn.query_drop("START TRANSACTION WITH CONSISTENT SNAPSHOT").await?;
        let said: Vec<(String, String)> =
            conn.query("SHOW STATUS LIKE 'binlog_snapshot_%'").await?;
        conn.query_drop("COMMIT").await?;
        Ok(said)
    };
    let said = ask.await.map_err(|e: mysql_async::Error| failed(doing, &e))?;
    let of = |wanted: &str| {
        said.iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(wanted))
            .map(|(_, value)| value.clone())
    };
    let file = of("binlog_snapshot_file").unwrap_or_default();
    let offset = of("binlog_snapshot_position").and_then(|text| text.parse().ok());
    let offset = offset.ok_or_else(|| Error::unsupported(format!("{doing}: it does not say")))?;
    Ok(Seen::Snapshot(Place { file, offset }))
}

/// What a SELECT that begins now sees, on a replica.
pub async fn applied(conn: &mut Conn) -> Result<Seen> {
    let doing = "ask what a replica has applied";
    let text: Option<String> =
        conn.query_first("SELECT @@GLOBAL.gtid_slave_pos").await.map_err(|e| failed(doing, &e))?;
    Ok(Seen::Applied(Gtids::parse(&text.unwrap_or_default())?))
}

/// Refuses a server whose applied position would never grow: changes would wait for it for ever.
pub async fn check_replica(conn: &mut Conn, name: &str) -> Result<()> {
    match applied(conn).await? {
        Seen::Applied(position) if position.is_empty() => Err(Error::invalid(format!(
            "read replica `{name}`: it has applied nothing: let it follow the database of `--from`, or leave \
             `--reads` away if that one is read"
        ))),
        _ => Ok(()),
    }
}

/// The row log behind a position. `NotFound` if the server has it no more.
pub async fn follow(mut conn: Conn, from: &Gtids, server_id: u32) -> Result<Log> {
    let doing = format!("read the row log behind `{from}`");
    let ask = async {
        // 4: knows MariaDB's transaction ids, and holes in them.
        conn.query_drop("SET @mariadb_slave_capability = 4").await?;
        conn.query_drop(format!("SET @slave_connect_state = '{from}'")).await?;
        conn.query_drop("SET @slave_gtid_strict_mode = 0").await?;
        conn.query_drop(format!("SET @master_heartbeat_period = {}", HEARTBEAT.as_nanos())).await?;
        conn.get_binlog_stream(BinlogStreamRequest::new(server_id).with_pos(4)).await
    };
    let stream = ask.await.map_err(|e| failed(&doing, &e))?;
    Ok(Log { stream, file: String::new(), open: None })
}

/// A transaction whose end has not come.
struct Open {
    gtid: Gtid,
    changed_s: u64,
    /// Of one event, without an end of its own.
    is_alone: bool,
    keys: BTreeSet<Vec<u8>>,
    /// Why nobody knows its keys.
    unknown: Option<String>,
}

/// A row log that is read.
pub struct Log {
    stream: BinlogStream,
    file: String,
    open: Option<Open>,
}

// Events that only MariaDB has.
const MARIADB_GTID: u8 = 162;
/// Behind it comes one event, and no end.
const GTID_IS_ALONE: u8 = 1;
const QUERY: u8 = 2;
const XID: u8 = 16;
const INCIDENT: u8 = 26;
const HEARTBEAT_EVENT: u8 = 27;
const XA_PREPARE: u8 = 38;

impl Log {
    /// The next transaction, and why its keys are not known if they are not. `NotFound` if the log has it no
    /// more.
    pub async fn next(&mut self, map: &Map) -> Result<(Change<At>, Option<String>)> {
        let doing = "read the row log";
        loop {
            let event = poll_fn(|cx| pin!(&mut self.stream).poll_next(cx));
            let silent = || {
                let seconds = SILENCE.as_secs();
                Error::retry(format!("{doing}: the database does not answer within {seconds} s"))
            };
            let event = within(SILENCE, event).await.ok_or_else(silent)?;
            let event = event
                .ok_or_else(|| Error::retry(format!("{doing}: the database ended it")))?
                .map_err(|e| failed(doing, &e))?;
            if let Some(change) = self.take(&event, map)? {
                return Ok(change);
            }
        }
    }

    fn take(&mut self, event: &Event, map: &Map) -> Result<Option<(Change<At>, Option<String>)>> {
        let kind = event.header().event_type_raw();
        if kind == MARIADB_GTID {
            self.open = Some(begin(event)?);
            return Ok(None);
        }
        if kind == HEARTBEAT_EVENT {
            return Ok(None);
        }
        let broken = |e: std::io::Error| Error::corrupt(format!("read the row log: {e}"));
        // Of those that neither begin nor end anything, only rows matter, and where the log goes on.
        let data = match event.read_data() {
            Ok(data) => data,
            Err(e) => match &mut self.open {
                Some(open) => {
                    open.unknown
                        .get_or_insert(format!("an event of kind {kind} cannot be read: {e}"));
                    return Ok(None);
                }
                None => return Err(broken(e)),
            },
        };
        let mut ends = kind == XID || kind == XA_PREPARE;
        match data {
            Some(EventData::RotateEvent(rotate)) => self.file = rotate.name().into_owned(),
            Some(EventData::RowsEvent(rows)) => self.rows(&rows, map),
            Some(EventData::QueryEvent(query)) if kind == QUERY => {
                ends = self.query(&query.query(), map);
            }
            _ => {}
        }
        let Some(open) = &mut self.open else { return Ok(None) };
        if kind == INCIDENT {
            open.unknown.get_or_insert("the database lost changes on their way to its log".into());
        }
        if kind == XA_PREPARE {
            // What it changed is seen when it is committed, which comes as a statement.
            (open.keys, open.unknown) = (BTreeSet::new(), None);
        }
        if !ends {
            return Ok(None);
        }
        let offset = event.header().log_pos().into();
        let end = Place { file: self.file.clone(), offset };
        let Open { gtid, changed_s, keys, unknown, .. } = self.open.take().expect("is open");
        let keys = unknown.is_none().then(|| keys.into_iter().collect());
        Ok(Some((Change { mark: At { gtid, end }, changed_s, keys }, unknown)))
    }

    /// A statement; whether it ends its transaction.
    fn query(&mut self, text: &str, map: &Map) -> bool {
        let Some(open) = &mut self.open else { return false };
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
                open.unknown.get_or_insert_with(|| {
                    format!(
                        "a session writes statements instead of rows (`binlog_format`): `{first}`"
                    )
                });
            }
            "TRUNCATE" | "DROP" | "RENAME" | "ALTER" | "CREATE" if names_a_table() => {
                let short: String = text.chars().take(100).collect();
                open.unknown
                    .get_or_insert_with(|| format!("a table of the map was changed: `{short}`"));
            }
            "XA" if upper.contains("COMMIT") => {
                open.unknown
                    .get_or_insert_with(|| "a transaction of two phases (XA) was committed".into());
            }
            _ => {}
        }
        // `ROLLBACK TO SAVEPOINT` ends nothing.
        open.is_alone || matches!(words.trim_end(), "COMMIT" | "ROLLBACK")
    }

    fn rows(&mut self, rows: &RowsEventData<'_>, map: &Map) {
        let Some(open) = &mut self.open else { return };
        let Some(about) = self.stream.get_tme(rows.table_id()) else {
            open.unknown
                .get_or_insert_with(|| "rows came of a table that has no description".into());
            return;
        };
        let table = format!("{}.{}", about.database_name(), about.table_name());
        if !map.has(&table) || open.unknown.is_some() {
            return;
        }
        for images in rows.rows(about) {
            let images = match images {
                Ok((before, after)) => [before, after],
                Err(e) => {
                    open.unknown = Some(format!("a row of `{table}` cannot be read: {e}"));
                    return;
                }
            };
            for image in images.iter().flatten() {
                match map.keys(&table, |column| cell(image, column)) {
                    Ok(keys) => open.keys.extend(keys),
                    Err(column) => {
                        open.unknown = Some(format!(
                            "rows of `{table}` have no column `{column}` that a key can be made of"
                        ));
                        return;
                    }
                }
            }
            if open.keys.len() > TRANSACTION_KEYS_MAX {
                open.keys.clear();
                open.unknown =
                    Some(format!("one transaction changed more than {TRANSACTION_KEYS_MAX} keys"));
                return;
            }
        }
    }
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

/// Reads MariaDB's beginning of a transaction: number, domain, flags.
fn begin(event: &Event) -> Result<Open> {
    let short = || Error::corrupt("read the row log: a transaction's beginning is too short");
    let data = event.data();
    let (sequence, rest) = data.split_first_chunk::<8>().ok_or_else(short)?;
    let (domain, rest) = rest.split_first_chunk::<4>().ok_or_else(short)?;
    let flags = *rest.first().ok_or_else(short)?;
    Ok(Open {
        gtid: Gtid {
            domain: u32::from_le_bytes(*domain),
            server: event.header().server_id(),
            sequence: u64::from_le_bytes(*sequence),
        },
        changed_s: event.header().timestamp().into(),
        is_alone: flags & GTID_IS_ALONE != 0,
        keys: BTreeSet::new(),
        unknown: None,
    })
}

/// A column's text; nothing if the row has no such column, or one that is no part of a key.
fn cell(row: &BinlogRow, column: &str) -> Option<Cell> {
    use ColumnType::*;
    let number = row.columns_ref().iter().position(|of| of.name_ref() == column.as_bytes())?;
    let kind = row.columns_ref()[number].column_type();
    if !matches!(
        kind,
        MYSQL_TYPE_TINY
            | MYSQL_TYPE_SHORT
            | MYSQL_TYPE_INT24
            | MYSQL_TYPE_LONG
            | MYSQL_TYPE_LONGLONG
            | MYSQL_TYPE_VARCHAR
            | MYSQL_TYPE_VAR_STRING
            | MYSQL_TYPE_STRING
    ) {
        return None;
    }
    match row.as_ref(number)? {
        BinlogValue::Value(Value::NULL) => Some(Cell::Null),
        BinlogValue::Value(Value::Bytes(bytes)) => Some(Cell::Text(bytes.clone())),
        BinlogValue::Value(Value::Int(n)) => Some(Cell::Text(n.to_string().into_bytes())),
        BinlogValue::Value(Value::UInt(n)) => Some(Cell::Text(n.to_string().into_bytes())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A statement behind a comment was taken for none: a table was truncated, and its keys stayed.
    #[test]
    fn a_statement_begins_behind_its_comments() {
        for text in [
            "TRUNCATE t",
            " \n TRUNCATE t",
            "/* shop */ TRUNCATE t",
            "/*a*//*b*/\t(TRUNCATE t",
            "-- why\n# and why\nTRUNCATE t",
            "/*!40000 TRUNCATE t",
            "/*M!100100 /* x */ TRUNCATE t",
        ] {
            assert_eq!(words(text), "TRUNCATE t", "{text}");
        }
        for text in ["", "/*", "--", "# TRUNCATE t", "/* TRUNCATE t */"] {
            assert_eq!(words(text), "", "{text}");
        }
    }
}
