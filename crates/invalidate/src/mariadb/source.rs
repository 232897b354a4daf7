//! MariaDB as a [`Source`]: its connections, each lent to the runtime that asks.

use super::behind::{bytes_between, files};
use super::{At, Log, Seen, Server, applied, check, check_replica, end, follow, snapshot};
use crate::ahead::{Reads, Tells, ahead};
use crate::position::{Gtids, Place, Position};
use crate::source::{ANSWER, About, Late, Read, Servers, Source, answered, refused};
use holdfast_base::{Error, Result};
use holdfast_env::runtime::Background;
use mysql_async::Conn;
use std::sync::Arc;

/// One life of the connections.
pub struct MariaDb {
    about: Arc<About>,
    from: Server,
    asks: Background,
    /// Of the server whose log is read; lent to the runtime while it is asked.
    source: Option<Conn>,
    /// Of replicas that are read instead.
    readers: Vec<Conn>,
    /// Reads the log: a runtime of its own, for reading ahead may block it.
    log: Option<Background>,
}

impl Source for MariaDb {
    type Server = Server;
    type Mark = At;
    /// The end of the log: its position, and a place at or behind that.
    type End = (Gtids, Place);

    fn connect(servers: &Servers<Server>, about: &Arc<About>) -> Result<MariaDb> {
        let asks = Background::start("invalidate-ask")?;
        let (asked, checks) = (servers.clone(), about.clone());
        let (conn, readers) = asks.wait_for(async move {
            let mut conn = asked.from.connect().await?;
            check(&mut conn, &checks.map).await?;
            let mut readers = Vec::new();
            for server in &asked.reads {
                let mut conn = server.connect().await?;
                check_replica(&mut conn, &server.name).await?;
                readers.push(conn);
            }
            Ok((conn, readers))
        })?;
        let (about, from) = (about.clone(), servers.from.clone());
        Ok(MariaDb { about, from, asks, source: Some(conn), readers, log: None })
    }

    fn anew(&mut self, _late: Late) -> Result<(Position, (Gtids, Place))> {
        let end = self.log_end()?;
        Ok((Position::MariaDb(end.0.clone()), end))
    }

    fn shows(&mut self, (gtids, place): &(Gtids, Place)) -> Result<bool> {
        Ok(self.look()?.iter().all(|seen| match seen {
            Seen::Snapshot(at) => at.covers(place),
            Seen::Applied(at) => at.covers_all(gtids),
        }))
    }

    fn follow(&mut self, from: &Position) -> Result<Reads<At>> {
        let Position::MariaDb(gtids) = from.clone() else { return Err(refused(from, "MariaDB")) };
        // The one before has ended before another begins.
        self.log = None;
        let log = Background::start("invalidate-log")?;
        let (about, server) = (self.about.clone(), self.from.clone());
        let (changes, reads) = ahead();
        let begun = log.wait_for(async move {
            let conn = server.connect().await?;
            follow(conn, &gtids, about.server_id).await
        })?;
        log.spawn(read_on(begun, self.about.clone(), changes));
        self.log = Some(log);
        Ok(reads)
    }

    /// A transaction has its number before any SELECT sees it.
    fn end(&mut self) -> Result<Position> {
        Ok(Position::MariaDb(self.log_end()?.0))
    }

    fn behind_bytes(&mut self, position: &Position, last: Option<&At>) -> Result<Option<u64>> {
        let (gtids, end) = self.log_end()?;
        if position.covers(&Position::MariaDb(gtids)) {
            return Ok(Some(0));
        }
        let Some(last) = last.map(|last| last.end.clone()) else { return Ok(None) };
        if last.file == end.file {
            return Ok(Some(end.offset.saturating_sub(last.offset)));
        }
        let mut conn = self.source()?;
        let (conn, files) = self.asks.wait_for(async move {
            let files = answered(ANSWER, files(&mut conn)).await?;
            Ok((conn, files))
        })?;
        self.source = Some(conn);
        Ok(bytes_between(&last, &end, &files))
    }

    fn look(&mut self) -> Result<Vec<Seen>> {
        if self.readers.is_empty() {
            let mut conn = self.source()?;
            let (conn, seen) = self.asks.wait_for(async move {
                let seen = answered(ANSWER, snapshot(&mut conn)).await?;
                Ok((conn, seen))
            })?;
            self.source = Some(conn);
            return Ok(vec![seen]);
        }
        let mut conns = std::mem::take(&mut self.readers);
        let (conns, seen) = self.asks.wait_for(async move {
            let mut seen = Vec::new();
            for conn in &mut conns {
                seen.push(answered(ANSWER, applied(conn)).await?);
            }
            Ok((conns, seen))
        })?;
        self.readers = conns;
        Ok(seen)
    }
}

impl MariaDb {
    fn source(&mut self) -> Result<Conn> {
        self.source.take().ok_or_else(|| Error::retry("ask the database: its connection failed"))
    }

    fn log_end(&mut self) -> Result<(Gtids, Place)> {
        let mut conn = self.source()?;
        let (conn, end) = self.asks.wait_for(async move {
            let end = answered(ANSWER, end(&mut conn)).await?;
            Ok((conn, end))
        })?;
        self.source = Some(conn);
        Ok(end)
    }
}

/// Reads ahead until that fails, or nobody takes it.
async fn read_on(mut log: Log, about: Arc<About>, changes: Tells<At>) {
    loop {
        let next = log.next(&about.map).await.map(|(change, why)| Read::Change(change, why));
        let has_failed = next.is_err();
        if !changes.give_in_time(next).await || has_failed {
            return;
        }
    }
}
