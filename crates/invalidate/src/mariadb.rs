//! MariaDB as a source: its settings and tables checked, its row log as changes, and what it shows to who
//! reads. Asks; decides nothing about keys and when they go.

mod behind;
mod ends;
pub mod event;
mod follower;
pub mod rows;
mod server;
mod source;

use behind::files;
pub use behind::{Behind, READ_BYTES_MAX, behind};
pub use server::Server;
pub use source::MariaDb;

use crate::gate::{Change, Mark};
use crate::map::Map;
use crate::position::{Gtid, Gtids, Place, Position};
use ends::Known;
use follower::{Follower, Said};
use futures_core::Stream;
use holdfast_base::{Error, Result};
use holdfast_env::runtime::within;
use mysql_async::prelude::Queryable;
use mysql_async::{BinlogStream, BinlogStreamRequest, Conn, Value};
use server::failed;
use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;
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
            Position::Postgres(_) | Position::Table(_) => {
                unreachable!("a topic follows one kind of database")
            }
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
    let (_, behind) = end(&mut conn).await?;
    let (gtids, before) = end(&mut conn).await?;
    let follower = Follower::new(Known::new(gtids, behind, before, files(&mut conn).await?));
    let ask = async {
        // 4: knows MariaDB's transaction ids, and holes in them.
        conn.query_drop("SET @mariadb_slave_capability = 4").await?;
        conn.query_drop(format!("SET @slave_connect_state = '{from}'")).await?;
        conn.query_drop("SET @slave_gtid_strict_mode = 0").await?;
        conn.query_drop(format!("SET @master_heartbeat_period = {}", HEARTBEAT.as_nanos())).await?;
        conn.get_binlog_stream(BinlogStreamRequest::new(server_id).with_pos(4)).await
    };
    let stream = ask.await.map_err(|e| failed(&doing, &e))?;
    Ok(Log { stream, follower })
}

/// A row log that is read.
pub struct Log {
    stream: BinlogStream,
    follower: Follower,
}

impl Log {
    /// The next transaction, and why its keys are not known if they are not. `NotFound` if the log has it no
    /// more.
    pub async fn next(&mut self, map: &Map) -> Result<(Change<At>, Option<String>)> {
        let doing = "read the row log";
        loop {
            let event = poll_fn(|cx| contained(|| pin!(&mut self.stream).poll_next(cx)));
            let silent = || {
                let seconds = SILENCE.as_secs();
                Error::retry(format!("{doing}: the database does not answer within {seconds} s"))
            };
            let event = within(SILENCE, event).await.ok_or_else(silent)?;
            let read =
                event.ok_or_else(|| Error::retry(format!("{doing}: the database ended it")))??;
            let header = read.header();
            let said = Said {
                kind: header.event_type_raw(),
                changed_s: header.timestamp(),
                server: header.server_id(),
                end: header.log_pos(),
                bytes: header.event_size(),
                data: read.data(),
            };
            if let Some(change) = self.follower.take(&said, map)? {
                return Ok(change);
            }
        }
    }

    /// What the transactions that were read take in the log.
    pub fn bytes(&self) -> u64 {
        self.follower.bytes()
    }
}

/// What the driver has read. It takes an event for whole that says so, and panics where it is not.
fn contained<T>(
    poll: impl FnOnce() -> Poll<Option<mysql_async::Result<T>>>,
) -> Poll<Option<Result<T>>> {
    let doing = "read the row log";
    match catch_unwind(AssertUnwindSafe(poll)) {
        Ok(poll) => poll.map(|read| read.map(|event| event.map_err(|e| failed(doing, &e)))),
        Err(_) => Poll::Ready(Some(Err(Error::corrupt(format!(
            "{doing}: the database sent what is no event: it is read anew; if that goes on, see what is \
             between it and this machine"
        ))))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An event that is shorter than it says makes the driver panic, and ended the log's thread without a word.
    #[test]
    fn a_panic_of_the_driver_is_an_error_that_says_so() {
        let broken = contained::<()>(|| panic!("as the driver does"));
        let Poll::Ready(Some(Err(e))) = broken else { panic!("{broken:?}") };
        assert_eq!(e.kind, holdfast_base::Kind::Corrupt);
        assert!(e.message.contains("no event"), "{e}");
        assert!(matches!(contained(|| Poll::Ready(Some(Ok(7)))), Poll::Ready(Some(Ok(7)))));
        assert!(contained::<()>(|| Poll::Pending).is_pending());
    }
}
