//! A table as a [`Source`]: one connection asks, another one follows.

use super::at::TableAt;
use super::keys::{keys_of, needs_values};
use crate::ahead::{Given, REST, Reads, Tells, ahead};
use crate::gate::{Change, Mark};
use crate::position::Position;
use crate::run::Connect;
use crate::source::{About, Late, Read, Servers, Source, TRANSACTION_KEYS_MAX};
use holdfast_base::{Error, Kind, Result};
use holdfast_client::Client;
use holdfast_env::tasks::{self, Stop, Task};
use holdfast_wire::table::{Changes, ChangesAt, TabletChanges};
use std::sync::Arc;

/// For how long a node waits for something to tell: so soon an end is heard, too.
const WAIT_MS: u32 = 200;

/// A table, and how its cluster is reached.
#[derive(Clone)]
pub struct Server {
    pub name: String,
    pub table: String,
    pub connect: Connect,
}

/// Behind all that one answer told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct At(Arc<Vec<ChangesAt>>);

impl Mark for At {
    type Seen = ();

    /// What is told shows, where all read.
    fn is_in(&self, (): &()) -> bool {
        true
    }

    fn pass(&self, position: &mut Position) {
        match position {
            Position::Table(at) => at.tablets.clone_from(&self.0),
            Position::MariaDb(_) | Position::Postgres(_) => {
                unreachable!("a topic follows one kind of database")
            }
        }
    }
}

/// One life of the connections.
pub struct Table {
    about: Arc<About>,
    server: Server,
    client: Client,
    follows: Option<(Stop, Task)>,
}

impl Source for Table {
    type Server = Server;
    type Mark = At;
    /// What is told shows.
    type End = ();

    fn connect(servers: &Servers<Server>, about: &Arc<About>) -> Result<Table> {
        let (about, server) = (about.clone(), servers.from.clone());
        let client = (server.connect)()?;
        Ok(Table { about, server, client, follows: None })
    }

    /// Of a table that is not there, too: what is cached of it is of one that was.
    fn anew(&mut self, _late: Late) -> Result<(Position, ())> {
        let tablets = match now(&mut self.client, &self.server.table) {
            Err(e) if e.kind == Kind::NotFound => Vec::new(),
            tablets => tablets?,
        };
        Ok((self.position(tablets), ()))
    }

    fn shows(&mut self, (): &()) -> Result<bool> {
        Ok(true)
    }

    fn follow(&mut self, from: &Position) -> Result<Reads<At>> {
        self.end_following();
        let tablets = match from {
            Position::Table(at) if at.table == self.server.table => at.tablets.clone(),
            other => {
                return Err(Error::invalid(format!(
                    "follow {}: the pool's topic follows {}, and is at `{other}`: give a pool of another name, or \
                     `--from` what it followed",
                    self.server.name,
                    other.kind()
                )));
            }
        };
        if tablets.is_empty() {
            return Err(match now(&mut self.client, &self.server.table) {
                Ok(_) => Error::not_found("the table was made meanwhile"),
                // Until there is one.
                Err(e) if e.kind == Kind::NotFound => Error::retry(e.message),
                Err(e) => e,
            });
        }
        let follower = Follower {
            client: (self.server.connect)()?,
            about: self.about.clone(),
            table: self.server.table.clone(),
            values: needs_values(&self.about.map),
            ends: Stop::new(),
        };
        let ends = follower.ends.clone();
        let (tells, reads) = ahead();
        let mut follower = follower;
        // Whether the place is known is said here, and not by the first that is read.
        let first = follower.ask(tablets, 0)?;
        let task = tasks::spawn("invalidate-log", move || follower.read_on(first, &tells))?;
        self.follows = Some((ends, task));
        Ok(reads)
    }

    fn end(&mut self) -> Result<Position> {
        let tablets = now(&mut self.client, &self.server.table)?;
        Ok(self.position(tablets))
    }

    fn look(&mut self) -> Result<Vec<()>> {
        Ok(vec![()])
    }

    /// Steps are counted, and not their bytes.
    fn behind_bytes(&mut self, _: &Position, _: Option<&At>) -> Result<Option<u64>> {
        Ok(None)
    }
}

impl Table {
    fn position(&self, tablets: Vec<ChangesAt>) -> Position {
        Position::Table(TableAt { table: self.server.table.clone(), tablets })
    }

    fn end_following(&mut self) {
        if let Some((ends, task)) = self.follows.take() {
            ends.request();
            task.join();
        }
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        self.end_following();
    }
}

/// Where a table is now.
fn now(client: &mut Client, table: &str) -> Result<Vec<ChangesAt>> {
    let asked = Changes { table: table.to_owned(), from: Vec::new(), values: false, wait_ms: 0 };
    let told = client.table_changes(&asked)?;
    Ok(told.into_iter().map(|tablet| tablet.at).collect())
}

/// How many steps of a table a position lacks, where that can be told.
pub fn behind(client: &mut Client, at: &TableAt) -> Result<Option<u64>> {
    let now = now(client, &at.table)?;
    let lacks = |(now, at): (&ChangesAt, &ChangesAt)| {
        (now.life == at.life).then(|| now.next.saturating_sub(at.next))
    };
    match now.len() == at.tablets.len() {
        true => Ok(now.iter().zip(&at.tablets).map(lacks).sum()),
        false => Ok(None),
    }
}

/// Reads ahead.
struct Follower {
    client: Client,
    about: Arc<About>,
    table: String,
    values: bool,
    ends: Stop,
}

impl Follower {
    fn ask(&mut self, from: Vec<ChangesAt>, wait_ms: u32) -> Result<Vec<TabletChanges>> {
        let tablets = from.len();
        let asked = Changes { table: self.table.clone(), from, values: self.values, wait_ms };
        let told = self.client.table_changes(&asked)?;
        // Of more, where some of them were split since.
        match told.len() >= tablets {
            true => Ok(told),
            false => {
                Err(Error::bug("follow a table: fewer tablets are told of than were asked for"))
            }
        }
    }

    /// Until that fails, or nobody takes it.
    fn read_on(mut self, first: Vec<TabletChanges>, tells: &Tells<At>) {
        let mut told = Ok(first);
        while !self.ends.is_requested() {
            let (read, at) = match told {
                Ok(told) => {
                    let at: Vec<ChangesAt> = told.iter().map(|tablet| tablet.at.clone()).collect();
                    (Ok(self.read(told, &at)), Some(at))
                }
                Err(e) => (Err(e), None),
            };
            if !self.give(tells, read) {
                return;
            }
            let Some(at) = at else { return };
            told = self.ask(at, WAIT_MS);
        }
    }

    fn read(&self, told: Vec<TabletChanges>, at: &[ChangesAt]) -> Read<At> {
        let mark = At(Arc::new(at.to_vec()));
        let changes: Vec<_> = told.into_iter().flat_map(|tablet| tablet.changes).collect();
        if changes.is_empty() {
            return Read::Quiet(mark);
        }
        // When it was told: the steps have no time.
        let changed_s = self.about.clock.unix_ms() / 1000;
        let (keys, why) = match keys_of(&self.about.map, &self.table, &changes) {
            Ok(keys) if keys.len() <= TRANSACTION_KEYS_MAX => {
                (Some(keys.into_iter().collect()), None)
            }
            Ok(keys) => {
                let keys = keys.len();
                (
                    None,
                    Some(format!(
                        "{keys} keys changed at once: {TRANSACTION_KEYS_MAX} are sent one by one"
                    )),
                )
            }
            Err(why) => (None, Some(why)),
        };
        Read::Change(Change { mark, changed_s, keys }, why)
    }

    /// False if nobody will ever take it.
    fn give(&self, tells: &Tells<At>, mut read: Result<Read<At>>) -> bool {
        loop {
            match tells.give(read) {
                Given::Taken => return true,
                Given::Over => return false,
                Given::Full(back) => read = back,
            }
            if self.ends.sleep_until_stop(REST) {
                return false;
            }
        }
    }
}
