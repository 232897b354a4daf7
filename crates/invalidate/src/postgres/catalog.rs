//! What PostgreSQL's settings and catalog say: refuses what would leave changes out, by the name of what is to
//! be mended, and sums up the shape of tables, which may change without a word in the log.

use super::connection::{APPLICATION, Connection, Texts};
use super::seen::{Seen, Snapshot};
use super::wire::{literal, name};
use crate::map::Map;
use crate::position::Lsn;
use holdfast_base::{Error, Result};
use ring::digest;
use std::collections::BTreeSet;

/// The oldest server that is tested, and still looked after.
const VERSION_MIN: u32 = 140_000;
/// From here on, publications choose rows and columns.
const VERSION_CHOOSES: u32 = 150_000;

/// Types of columns that keys may name, by their numbers: int8, int2, int4, text, varchar, char(n), uuid, bytea.
const TYPES: &str = "20, 21, 23, 25, 1043, 1042, 2950, 17";
const TYPE_NAMES: &str =
    "`smallint`, `integer`, `bigint`, `text`, `varchar`, `char(n)`, `uuid` or `bytea`";

/// Who commits wait for.
const NAMES: &str = "current_setting('synchronous_standby_names')";

/// A server that is known not to leave changes out.
#[derive(Clone, Copy, Debug, Default)]
pub struct Checked {
    /// The database's number.
    pub database: u32,
    pub version: u32,
    /// Its texts are bytes, which may be no UTF-8: a server refuses to send such ones as that.
    pub has_no_encoding: bool,
}

fn text(row: &Texts, column: usize) -> &str {
    row.get(column).and_then(Option::as_deref).unwrap_or_default()
}

fn is_true(row: &Texts, column: usize) -> bool {
    text(row, column) == "t"
}

/// Refuses a server whose log does not say which rows changed, and a map that does not fit its tables. The slot
/// and the publication have the same name.
pub async fn check(conn: &mut Connection, map: &Map, slot: &str) -> Result<Checked> {
    let doing = "check the database's settings";
    let query = format!(
        "SELECT current_setting('server_version_num'), current_setting('wal_level'), pg_is_in_recovery(), \
         (SELECT oid FROM pg_database WHERE datname = current_database()), \
         current_setting('max_replication_slots')::int <= (SELECT count(*) FROM pg_replication_slots) \
         AND NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = {}), \
         current_setting('server_encoding'), {NAMES}",
        literal(slot)
    );
    let rows = conn.ask(&query).await.map_err(|e| e.context(doing))?;
    let row = rows.first().ok_or_else(|| Error::retry(format!("{doing}: it says nothing")))?;
    let version: u32 = text(row, 0).parse().unwrap_or_default();
    let refused = |why: &str| Err(Error::invalid(format!("{doing}: {why}")));
    if version < VERSION_MIN {
        return Err(Error::unsupported(format!(
            "{doing}: its version is {}: PostgreSQL 14 or newer can be followed",
            version / 10_000
        )));
    }
    if is_true(row, 2) {
        return refused(
            "it is a standby, whose log is not read: give its primary by `--from`, and this one by `--reads`",
        );
    }
    if text(row, 1) != "logical" {
        return refused(&format!(
            "`wal_level` is `{}`, and the log does not say which rows changed: set `wal_level = logical` and \
             restart it",
            text(row, 1)
        ));
    }
    if is_true(row, 4) {
        return refused("no slot is free: raise `max_replication_slots`, or drop one");
    }
    check_not_waited_for(text(row, 6))?;
    let database = text(row, 3).parse().unwrap_or_default();
    let checked = Checked { database, version, has_no_encoding: text(row, 5) == "SQL_ASCII" };
    check_publication(conn, map, slot).await?;
    for (table, columns) in map.tables() {
        check_table(conn, slot, table, &columns, version).await?;
    }
    Ok(checked)
}

/// Refuses a primary whose commits may wait for this reader: it does not confirm a commit before a SELECT shows
/// it, and no SELECT shows a commit that waits. Whoever counts any standbys of a list (`ANY`) has others to wait
/// for, and is not kept by one that is late.
fn check_not_waited_for(names: &str) -> Result<()> {
    let (before, list) = names.split_once('(').unwrap_or(("", names));
    let is_any =
        before.split_whitespace().next().is_some_and(|how| how.eq_ignore_ascii_case("any"));
    let mut names_here = list.trim().trim_end_matches(')').split(',').map(|name| {
        let name = name.trim();
        name.strip_prefix('"').and_then(|name| name.strip_suffix('"')).unwrap_or(name)
    });
    let is_us = |name: &str| name == "*" || name.eq_ignore_ascii_case(APPLICATION);
    if is_any || !names_here.any(is_us) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "check the database's settings: `synchronous_standby_names` is `{names}`, which takes this reader of the \
         log for a standby: commits would wait for it, and it for them: name the standbys instead of `*`, or \
         count them by ANY"
    )))
}

fn split(table: &str) -> (&str, &str) {
    table.split_once('.').expect("a map's table has a schema")
}

/// A table in a statement.
fn named(table: &str) -> String {
    let (schema, table) = split(table);
    format!("{}.{}", name(schema), name(table))
}

fn make_publication(map: &Map, publication: &str) -> String {
    let tables: Vec<String> = map.tables().map(|(table, _)| named(table)).collect();
    format!(
        "CREATE PUBLICATION {publication} FOR TABLE {} WITH (publish_via_partition_root = true)",
        tables.join(", ")
    )
}

async fn check_publication(conn: &mut Connection, map: &Map, publication: &str) -> Result<()> {
    let doing = format!("check publication `{publication}`");
    let query = format!(
        "SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate, pubviaroot \
         FROM pg_publication WHERE pubname = {}",
        literal(publication)
    );
    let rows = conn.ask(&query).await.map_err(|e| e.context(&doing))?;
    let Some(row) = rows.first() else {
        return Err(Error::invalid(format!(
            "{doing}: there is none: {}",
            make_publication(map, publication)
        )));
    };
    if !is_true(row, 0) || !is_true(row, 1) {
        return Err(Error::invalid(format!(
            "{doing}: it leaves changes out: ALTER PUBLICATION {publication} SET (publish = \
             'insert, update, delete, truncate', publish_via_partition_root = true)"
        )));
    }
    Ok(())
}

async fn check_table(
    conn: &mut Connection,
    publication: &str,
    table: &str,
    columns: &BTreeSet<&str>,
    version: u32,
) -> Result<()> {
    let doing = format!("check table `{table}` of the map");
    let (schema, short) = split(table);
    let names: Vec<String> = columns.iter().map(|column| literal(column)).collect();
    let names = names.join(", ");
    let chosen = match version >= VERSION_CHOOSES {
        true => format!("rowfilter IS NULL AND attnames @> ARRAY[{names}]::name[]"),
        false => "true".to_owned(),
    };
    let query = format!(
        "SELECT c.oid, c.relkind IN ('r', 'p'), \
         c.relkind = 'r' AND EXISTS (SELECT FROM pg_inherits i WHERE i.inhparent = c.oid), \
         (SELECT {chosen} FROM pg_publication_tables p WHERE p.pubname = {} \
         AND p.schemaname = n.nspname AND p.tablename = c.relname) \
         FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
         WHERE n.nspname = {} AND c.relname = {}",
        literal(publication),
        literal(schema),
        literal(short)
    );
    let rows = conn.ask(&query).await.map_err(|e| e.context(&doing))?;
    let refused = |why: String| Err(Error::invalid(format!("{doing}: {why}")));
    let Some(row) = rows.first() else {
        return refused("there is none: name another".to_owned());
    };
    if !is_true(row, 1) {
        return refused("it is no table of rows: name the tables that it is made of".to_owned());
    }
    if is_true(row, 2) {
        return refused("other tables inherit from it, whose rows it shows: map those".to_owned());
    }
    let oid = text(row, 0);
    check_columns(conn, &doing, oid, columns).await?;
    let named = named(table);
    match row.get(3).and_then(Option::as_deref) {
        Some("t") => {}
        Some(_) => {
            return refused(format!(
                "publication `{publication}` leaves out some of its rows, or columns of a key: ALTER \
                 PUBLICATION {publication} DROP TABLE {named}, ADD it without a list and without WHERE"
            ));
        }
        None => {
            return refused(format!(
                "publication `{publication}` does not have it: ALTER PUBLICATION {publication} ADD TABLE {named}"
            ));
        }
    }
    check_identity(conn, &doing, oid, &names).await
}

async fn check_columns(
    conn: &mut Connection,
    doing: &str,
    oid: &str,
    columns: &BTreeSet<&str>,
) -> Result<()> {
    let query = format!(
        "SELECT attname, format_type(atttypid, atttypmod), atttypid IN ({TYPES}), attgenerated <> '' \
         FROM pg_attribute WHERE attrelid = {oid} AND attnum > 0 AND NOT attisdropped"
    );
    let rows = conn.ask(&query).await.map_err(|e| e.context(doing))?;
    let refused = |why: String| Err(Error::invalid(format!("{doing}: {why}")));
    for column in columns {
        let Some(row) = rows.iter().find(|row| text(row, 0) == *column) else {
            let names: Vec<&str> = rows.iter().map(|row| text(row, 0)).collect();
            return refused(format!(
                "it has no column `{column}`: name one of `{}`",
                names.join("`, `")
            ));
        };
        if !is_true(row, 2) {
            let kind = text(row, 1);
            return refused(format!(
                "column `{column}` is `{kind}`: keys are made of {TYPE_NAMES}"
            ));
        }
        if is_true(row, 3) {
            return refused(format!(
                "column `{column}` is generated, and the log does not have it: name those it is made of"
            ));
        }
    }
    Ok(())
}

/// A table, and those that it is parted into. Not by `pg_partition_tree()`, which locks them: whoever truncates a
/// partition, or rewrites it for an hour, would be waited for.
fn family(oid: &str) -> String {
    format!(
        "(WITH RECURSIVE below AS (SELECT {oid}::oid AS oid UNION SELECT i.inhrelid FROM below b \
         JOIN pg_inherits i ON i.inhparent = b.oid) SELECT oid FROM below)"
    )
}

/// What a row was, the log says of its replica identity alone.
async fn check_identity(conn: &mut Connection, doing: &str, oid: &str, names: &str) -> Result<()> {
    let query = format!(
        "SELECT n.nspname, c.relname, a.attname, \
         c.relkind NOT IN ('r', 'p') OR c.relpersistence <> 'p' \
         FROM {} f JOIN pg_class c ON c.oid = f.oid JOIN pg_namespace n ON n.oid = c.relnamespace \
         JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname IN ({names}) \
         WHERE c.relkind NOT IN ('r', 'p') OR c.relpersistence <> 'p' OR c.relreplident <> 'f' \
         AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisvalid \
         AND i.indimmediate AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]) \
         AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident \
         ELSE false END) ORDER BY 1, 2, 3 LIMIT 1",
        family(oid)
    );
    let rows = conn.ask(&query).await.map_err(|e| e.context(doing))?;
    let Some(row) = rows.first() else { return Ok(()) };
    let (table, column) = (format!("{}.{}", text(row, 0), text(row, 1)), text(row, 2));
    if is_true(row, 3) {
        return Err(Error::invalid(format!(
            "{doing}: rows of `{table}` are in no log: make it an ordinary table (SET LOGGED)"
        )));
    }
    Err(Error::invalid(format!(
        "{doing}: `{column}` is no part of its replica identity, so the log does not say what it was: ALTER \
         TABLE {} REPLICA IDENTITY FULL",
        named(&table)
    )))
}

/// What the catalog says of the tables of the map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Another one, if anything is not as it was. Never 0.
    pub sum: u64,
    /// The tables of the map, by number.
    pub tables: BTreeSet<u32>,
    /// The end of the log, once that could be seen.
    pub end: Lsn,
    /// The transactions that ran then: what they had changed before may be logged as it was decided then.
    pub running: BTreeSet<u64>,
}

/// Rows change without a word in the log when a table is rewritten, dropped, renamed, or a part of it goes
/// elsewhere, and the log says nothing while a publication lacks a table, or names it by what it is a part of.
/// The catalog tells: a table's file is another one, or its number, its columns, its name; a publication's row,
/// or one that makes a table part of another, is of another transaction. Nothing here waits for a lock.
pub async fn shape(
    conn: &mut Connection,
    map: &Map,
    publication: &str,
    version: u32,
) -> Result<Shape> {
    let doing = |e: Error| e.context("ask what tables are like");
    let pairs: Vec<String> = map
        .tables()
        .map(|(table, _)| {
            let (schema, table) = split(table);
            format!("({}, {})", literal(schema), literal(table))
        })
        .collect();
    let schemas = match version >= VERSION_CHOOSES {
        true => {
            "UNION ALL SELECT 's', concat_ws(' ', s.oid, s.xmin) \
             FROM pg_publication_namespace s JOIN published p ON s.pnpubid = p.oid "
        }
        false => "",
    };
    let query = format!(
        "WITH RECURSIVE roots AS (SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
         WHERE (n.nspname, c.relname) IN ({pairs})), \
         family AS (SELECT oid FROM roots UNION \
         SELECT i.inhrelid FROM family f JOIN pg_inherits i ON i.inhparent = f.oid), \
         above AS (SELECT oid FROM roots UNION \
         SELECT i.inhparent FROM above a JOIN pg_inherits i ON i.inhrelid = a.oid), \
         kin AS (SELECT oid FROM family UNION SELECT oid FROM above), \
         published AS (SELECT oid, xmin FROM pg_publication WHERE pubname = {publication}), \
         said AS (SELECT 'r' AS kind, oid::text AS what FROM roots \
         UNION ALL SELECT 't', concat_ws(' ', c.oid, c.relnamespace, c.relname, c.relkind, c.relfilenode, \
         c.relreplident, c.relpersistence) FROM family f JOIN pg_class c ON c.oid = f.oid \
         UNION ALL SELECT 'c', concat_ws(' ', a.attrelid, a.attnum, a.attname, a.atttypid, a.attgenerated) \
         FROM family f JOIN pg_attribute a ON a.attrelid = f.oid AND a.attnum > 0 AND NOT a.attisdropped \
         UNION ALL SELECT 'i', concat_ws(' ', i.inhrelid, i.inhparent, i.xmin) \
         FROM pg_inherits i JOIN kin k ON i.inhrelid = k.oid \
         UNION ALL SELECT 'p', concat_ws(' ', oid, xmin) FROM published \
         UNION ALL SELECT 'm', concat_ws(' ', m.oid, m.xmin) FROM pg_publication_rel m \
         JOIN published p ON m.prpubid = p.oid JOIN kin k ON m.prrelid = k.oid {schemas}) \
         SELECT kind, what FROM said ORDER BY kind, what COLLATE \"C\"",
        pairs = pairs.join(", "),
        publication = literal(publication),
    );
    let rows = conn.ask(&query).await.map_err(doing)?;
    let mut sum = digest::Context::new(&digest::SHA256);
    let mut tables = BTreeSet::new();
    for row in &rows {
        sum.update(format!("{} {}\n", text(row, 0), text(row, 1)).as_bytes());
        if text(row, 0) == "r" {
            tables.extend(text(row, 1).parse::<u32>());
        }
    }
    let sum = sum.finish();
    let first = sum.as_ref().first_chunk::<8>().expect("32 bytes");
    // Later than what the catalog said, or at it.
    let query = format!("SELECT pg_current_wal_insert_lsn(), pg_current_snapshot(), {NAMES}");
    let rows = conn.ask(&query).await.map_err(doing)?;
    let row = rows.first().ok_or_else(|| doing(Error::retry("it says nothing")))?;
    let (end, snapshot) = (Lsn::parse(text(row, 0)), Snapshot::parse(text(row, 1)));
    // Whoever waits for this reader meanwhile is let go by its end.
    check_not_waited_for(text(row, 2))?;
    let running = snapshot.map_err(doing)?.running;
    Ok(Shape { sum: u64::from_be_bytes(*first).max(1), tables, end: end.map_err(doing)?, running })
}

/// The log's end, behind each commit that somebody sees now: also those that are not on a disk yet
/// (`synchronous_commit = off`), which a slot is not sent. What lies behind the last commit may stay off the disk
/// for as long as nothing is committed, and the log would not be sent up to its end: a number that is taken for
/// that alone is committed behind it, which the server writes to its disk within three rounds of its log's writer.
pub async fn log_end(conn: &mut Connection) -> Result<Lsn> {
    let doing = |e: Error| e.context("ask for the end of the log");
    let query = "SELECT pg_current_wal_insert_lsn(), pg_current_wal_flush_lsn()";
    let rows = conn.ask(query).await.map_err(doing)?;
    let at = |number| rows.first().map_or("", |row| text(row, number));
    let (end, flushed) = (Lsn::parse(at(0)).map_err(doing)?, Lsn::parse(at(1)).map_err(doing)?);
    if flushed < end {
        conn.ask("SELECT pg_current_xact_id()").await.map_err(doing)?;
    }
    Ok(end)
}

/// What a SELECT that begins now sees, on the server whose log is read.
pub async fn snapshot(conn: &mut Connection) -> Result<Snapshot> {
    let doing = |e: Error| e.context("ask what a snapshot holds");
    let rows = conn.ask("SELECT pg_current_snapshot()").await.map_err(doing)?;
    Snapshot::parse(rows.first().map_or("", |row| text(row, 0))).map_err(doing)
}

/// The same on a standby, and how much of the log it has replayed. Asked in this order: what is replayed first
/// is in the snapshot that is taken then.
pub async fn replayed(conn: &mut Connection, name: &str) -> Result<Seen> {
    let doing = |e: Error| e.context(format_args!("ask what standby `{name}` has replayed"));
    let query = "SELECT pg_is_in_recovery(), pg_last_wal_replay_lsn()";
    let rows = conn.ask(query).await.map_err(doing)?;
    let row = rows.first().filter(|row| is_true(row, 0)).ok_or_else(|| {
        Error::retry(format!("ask standby `{name}` what it has replayed: it is none any more"))
    })?;
    let replayed = Some(Lsn::parse(text(row, 1)).map_err(doing)?);
    Ok(Seen { snapshot: snapshot(conn).await?, replayed })
}

/// Refuses a server whose replayed position would never be that of the log which is read.
pub async fn check_standby(conn: &mut Connection, name: &str, system: u64) -> Result<()> {
    let doing = format!("read standby `{name}`");
    let query = "SELECT pg_is_in_recovery(), (SELECT system_identifier FROM pg_control_system())";
    let rows = conn.ask(query).await.map_err(|e| e.context(&doing))?;
    let row = rows.first().ok_or_else(|| Error::retry(format!("{doing}: it says nothing")))?;
    if !is_true(row, 0) || text(row, 1) != system.to_string() {
        return Err(Error::invalid(format!(
            "{doing}: it is no standby of the database of `--from`: let it follow that, or leave `--reads` away \
             if that one is read"
        )));
    }
    Ok(())
}

/// Whose log it is: the system's number and the timeline. On a connection that reads the log.
pub async fn identify(conn: &mut Connection) -> Result<(u64, u32)> {
    let doing = "ask whose log it is";
    let rows = conn.ask("IDENTIFY_SYSTEM").await.map_err(|e| e.context(doing))?;
    let said =
        rows.first().and_then(|row| Some((text(row, 0).parse().ok()?, text(row, 1).parse().ok()?)));
    said.ok_or_else(|| Error::corrupt(format!("{doing}: it does not say")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With `*` every commit of the shop hung: it waited for the invalidator to confirm it, which waited until a
    /// SELECT showed it.
    #[test]
    fn a_primary_whose_commits_may_wait_for_us_is_refused() {
        for names in ["*", " * ", "FIRST 1 (s1, *)", "1 (*)", "2(s1,\"*\")", "Holdfast Invalidate"]
        {
            let e = check_not_waited_for(names).unwrap_err();
            assert!(
                e.message.contains(&format!("`{names}`")) && e.message.contains("ANY"),
                "{e:?}"
            );
        }
        for names in ["", "s1", "FIRST 1 (s1, s2)", "ANY 1 (*)", "any 2 (s1, *)", "\"a*\""] {
            check_not_waited_for(names).unwrap();
        }
    }
}
