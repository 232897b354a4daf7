//! What an invalidator asks of a kind of database, whatever its row log is like: where the log can be read on,
//! what is in it, and what of that a reader of rows sees. [`crate::run`] is written against this alone.

use crate::gate::{Change, Mark};
use crate::map::Map;
use crate::mariadb;
use crate::position::Position;
use crate::progress::Progress;
use holdfast_base::Result;
use holdfast_env::Clock;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

/// Keys of one transaction; one with more empties the servers instead.
pub const TRANSACTION_KEYS_MAX: usize = 100_000;
/// Transactions that are read ahead.
pub const AHEAD: usize = 1024;

/// The servers of one kind of database.
#[derive(Clone)]
pub struct Servers<T> {
    /// Whose row log is read.
    pub from: T,
    /// Replicas that rows are read from; if there are none, `from` is read.
    pub reads: Vec<T>,
}

/// A database of a kind that can be followed.
#[derive(Clone)]
pub enum Database {
    MariaDb(Servers<mariadb::Server>),
}

impl Database {
    /// From the addresses of the server whose log is read, and of those whose rows are.
    pub fn parse(from: &str, reads: &[String]) -> Result<Database> {
        let reads = reads.iter().map(|url| mariadb::Server::parse(url)).collect::<Result<_>>()?;
        Ok(Database::MariaDb(Servers { from: mariadb::Server::parse(from)?, reads }))
    }

    /// The server whose log is read, without its password.
    pub fn name(&self) -> &str {
        match self {
            Database::MariaDb(servers) => &servers.from.name,
        }
    }
}

/// What all sources need to know.
pub struct About {
    pub map: Map,
    /// Among the database's replicas; no two have the same.
    pub server_id: u32,
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

/// Reads of a log, in order. `NotFound` if the log has no more what follows.
pub type Reads<M> = Receiver<Result<Read<M>>>;

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
    /// may see older rows when servers have been emptied.
    fn anew(&mut self) -> Result<(Position, Self::End)>;

    /// Whether a SELECT that begins now sees all that was changed before a moment.
    fn shows(&mut self, end: &Self::End) -> Result<bool>;

    /// The log behind a position. `NotFound` if it is there no more.
    fn follow(&mut self, from: &Position) -> Result<Reads<Self::Mark>>;

    /// What a SELECT that begins now sees, on each server that rows are read from.
    fn look(&mut self) -> Result<Vec<<Self::Mark as Mark>::Seen>>;

    /// Whether tables of the map changed in a way that the log does not tell; the position then says of which
    /// shape they are.
    fn reshaped(&mut self, _position: &mut Position) -> Result<Option<Reshaped<Self::End>>> {
        Ok(None)
    }

    /// A position is in the topic, and what the log has before it is needed no more.
    fn kept(&mut self, _position: &Position) {}
}
