//! What an invalidator asks of a kind of database, whatever its row log is like: where the log can be read on,
//! what is in it, and what of that a reader of rows sees. [`crate::run`] is written against this alone.

use crate::ahead::Reads;
use crate::gate::{Change, Mark};
use crate::map::Map;
use crate::mariadb;
use crate::position::Position;
use crate::postgres;
use crate::progress::Progress;
use crate::run::Connect;
use crate::table::{self, SCHEME};
use holdfast_base::{Error, Result};
use holdfast_env::Clock;
use holdfast_env::runtime::within;
use holdfast_env::tasks::Stop;
use std::sync::Arc;
use std::time::Duration;

/// Keys of one transaction; one with more empties the servers instead.
pub const TRANSACTION_KEYS_MAX: usize = 100_000;

/// The servers of one kind of database.
#[derive(Clone)]
pub struct Servers<T> {
    /// Whose row log is read.
    pub from: T,
    /// Replicas that rows are read from; if there are none, `from` is read.
    pub reads: Vec<T>,
}

impl<T> Servers<T> {
    fn parse(from: &str, reads: &[String], parse: fn(&str) -> Result<T>) -> Result<Servers<T>> {
        let reads = reads.iter().map(|url| parse(url)).collect::<Result<_>>()?;
        Ok(Servers { from: parse(from)?, reads })
    }
}

/// A database of a kind that can be followed.
#[derive(Clone)]
pub enum Database {
    MariaDb(Servers<mariadb::Server>),
    Postgres(Servers<postgres::Server>),
    Table(Servers<table::Server>),
}

/// The kinds, by how their addresses begin.
const SCHEMES: [(&str, bool); 3] = [("mysql:", false), ("postgres:", true), ("postgresql:", true)];

impl Database {
    /// From the addresses of the server whose log is read, and of those whose rows are.
    pub fn parse(from: &str, reads: &[String]) -> Result<Database> {
        let is_postgres = |url: &str| -> Result<bool> {
            let known = SCHEMES.iter().find(|(scheme, _)| url.starts_with(scheme));
            known.map(|(_, is_postgres)| *is_postgres).ok_or_else(|| {
                Error::invalid(
                    "read the database's address: write mysql://USER:PASSWORD@HOST:PORT, or \
                     postgres://USER:PASSWORD@HOST:PORT/DATABASE, or table:NAME for a table of this cluster",
                )
            })
        };
        let kind = is_postgres(from)?;
        for url in reads {
            if is_postgres(url)? != kind {
                return Err(Error::invalid(
                    "read the addresses of `--reads`: they are of another kind of database than `--from`: \
                     give replicas of that one",
                ));
            }
        }
        Ok(match kind {
            true => Database::Postgres(Servers::parse(from, reads, postgres::Server::parse)?),
            false => Database::MariaDb(Servers::parse(from, reads, mariadb::Server::parse)?),
        })
    }

    /// The same, or a table of the cluster that is reached so.
    pub fn parse_with(from: &str, reads: &[String], connect: &Connect) -> Result<Database> {
        let Some(table) = from.strip_prefix(SCHEME) else { return Database::parse(from, reads) };
        if !reads.is_empty() {
            return Err(Error::invalid(
                "read the addresses of `--reads`: a table is read in its cluster: leave them out",
            ));
        }
        let (name, table) = (from.to_owned(), table.to_owned());
        let from = table::Server { name, table, connect: connect.clone() };
        Ok(Database::Table(Servers { from, reads: Vec::new() }))
    }

    /// Reads a map for it.
    pub fn read_map(&self, text: &str) -> Result<Map> {
        match self {
            Database::Table(servers) => Map::of_table(text, &servers.from.table),
            Database::MariaDb(_) | Database::Postgres(_) => Map::parse(text),
        }
    }

    /// As [`Position::kind`] has it.
    pub fn kind(&self) -> &'static str {
        match self {
            Database::MariaDb(_) => "MariaDB",
            Database::Postgres(_) => "PostgreSQL",
            Database::Table(_) => "a table",
        }
    }

    /// The server whose log is read, without its password.
    pub fn name(&self) -> &str {
        match self {
            Database::MariaDb(servers) => &servers.from.name,
            Database::Postgres(servers) => &servers.from.name,
            Database::Table(servers) => &servers.from.name,
        }
    }
}

/// What all sources need to know.
pub struct About {
    pub map: Map,
    /// Among the database's replicas; no two have the same.
    pub server_id: u32,
    /// The slot of the log and the publication, where a kind has them.
    pub slot: String,
    /// Asked for by who runs it.
    pub stop: Stop,
    pub progress: Arc<Progress>,
    pub clock: Arc<dyn Clock>,
}

/// What a log says next.
#[derive(Debug)]
pub enum Read<M> {
    /// A transaction, and why its keys are not known if they are not.
    Change(Change<M>, Option<String>),
    /// Nothing of the map changed up to here, behind the transactions that were read before.
    Quiet(M),
}

/// A topic's position that a kind of database cannot be read from.
pub fn refused(position: &Position, kind: &str) -> Error {
    Error::invalid(format!(
        "read what changed in {kind}: the pool's topic follows {}, and is at `{position}`: give a pool of another name, \
         or `--from` the database that it followed",
        position.kind()
    ))
}

/// A question that a server answers from memory: one that does not is away, though nobody was told.
pub const ANSWER: Duration = Duration::from_secs(10);

/// What an answer comes to, if it comes in time.
pub async fn answered<T>(patience: Duration, answer: impl Future<Output = Result<T>>) -> Result<T> {
    let silent = || {
        let seconds = patience.as_secs();
        Error::retry(format!("ask the database: it does not answer within {seconds} s"))
    };
    within(patience, answer).await.ok_or_else(silent)?
}

/// Told when something takes long.
pub type Late = Box<dyn FnOnce() + Send>;

/// Tables are not what they were, and the log does not say so.
pub struct Reshaped<E> {
    pub why: String,
    /// Readers see it once this is shown.
    pub end: E,
    /// Why the map does not fit them now.
    pub trouble: Option<String>,
}

/// One life of the connections to a database.
pub trait Source: Sized {
    type Server;
    type Mark: Mark;
    /// A moment in the database.
    type End;

    /// Connects, and refuses what would leave changes out, by the setting's name.
    fn connect(servers: &Servers<Self::Server>, about: &Arc<About>) -> Result<Self>;

    /// A position from which the log can be followed, and the moment before which nothing is known: no reader
    /// may see older rows when servers have been emptied. `late` is called if the database takes long.
    fn anew(&mut self, late: Late) -> Result<(Position, Self::End)>;

    /// Whether a SELECT that begins now sees all that was changed before a moment.
    fn shows(&mut self, end: &Self::End) -> Result<bool>;

    /// The log behind a position, in order. `NotFound`, here or as what is read, if it has no more what follows.
    fn follow(&mut self, from: &Position) -> Result<Reads<Self::Mark>>;

    /// Where the log ends, or will end without anything more being written: behind all changes that anybody sees
    /// now, on whichever server. Those that nobody sees yet may lie before it.
    fn end(&mut self) -> Result<Position>;

    /// What a SELECT that begins now sees, on each server that rows are read from.
    fn look(&mut self) -> Result<Vec<<Self::Mark as Mark>::Seen>>;

    /// Whether tables of the map changed in a way that the log does not tell; the position then says of which
    /// shape they are.
    fn reshaped(&mut self, _position: &mut Position) -> Result<Option<Reshaped<Self::End>>> {
        Ok(None)
    }

    /// Bytes of the log that lie between what the topic has and the log's end, where that can be told. `last`: the
    /// last transaction that the topic has, of those that were read in this life.
    fn behind_bytes(
        &mut self,
        position: &Position,
        last: Option<&Self::Mark>,
    ) -> Result<Option<u64>>;

    /// A position is in the topic, and what the log has before it is needed no more.
    fn kept(&mut self, _position: &Position) {}
}
