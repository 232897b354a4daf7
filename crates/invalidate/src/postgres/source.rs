//! PostgreSQL as a [`Source`]: its connections, each lent to the runtime that asks, and the reader of its log,
//! which tells the slot what is in the topic, and so needed no more.

use super::catalog::{self, Checked, Shape};
use super::connection::{Connection, Server};
use super::output::Sent;
use super::rows::{Rows, YEAR_2000_S};
use super::seen::{At, Seen};
use super::slot::{self, Slot};
use super::wire::name;
use crate::ahead::{Given, REST, Reads, Tells, ahead};
use crate::position::{Lsn, Origin, Position, PostgresAt};
use crate::source::{ANSWER, About, Late, Read, Reshaped, Servers, Source, answered, refused};
use holdfast_base::{Error, Kind, Result};
use holdfast_env::runtime::{Background, sleep, unless, within};
use std::collections::{BTreeSet, VecDeque};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How soon a request to stop is heard while the database is asked.
const HEAR: Duration = Duration::from_millis(100);
/// How soon the slot is told what is needed no more.
const TELL: Duration = Duration::from_millis(200);
/// How often it is told that somebody reads; the server gives up who is silent for a minute.
const TELL_AT_LEAST_US: u64 = 5_000_000;
/// Some hundred of them, when a life begins.
const CHECKS: Duration = Duration::from_secs(60);
/// A slot is made behind all transactions that run: when it is told that those take long, and given up.
const SLOT_IS_LATE: Duration = Duration::from_secs(5);
const SLOT: Duration = Duration::from_secs(3600);

/// One life of the connections.
pub struct Postgres {
    about: Arc<About>,
    from: Server,
    asks: Background,
    /// Of the server whose log is read; lent to the runtime while it is asked.
    conn: Option<Connection>,
    /// Of standbys that are read instead, with their names.
    readers: Vec<(Connection, String)>,
    origin: Origin,
    checked: Checked,
    /// Tables are of another shape than the topic's position says, while transactions run that may not be logged
    /// by it.
    unsettled: Option<Unsettled>,
    /// What the topic has, for the reader of the log.
    kept: Arc<AtomicU64>,
    log: Option<Background>,
    /// Of the log, when it was asked for last.
    log_end: Option<Lsn>,
}

/// A moment in the database: who still ran then, and the end of its log.
pub struct End {
    running: BTreeSet<u64>,
    lsn: Lsn,
}

/// A shape for which servers were emptied, and who ran when it was seen.
///
/// A publication changes while others write: what they changed before is decoded by what it was then, and left
/// out. They commit behind the order to empty, which so is given once more when they have ended.
struct Unsettled {
    sum: u64,
    running: BTreeSet<u64>,
}

/// What a future comes to, unless a stop is requested, or it takes too long.
async fn heard<T>(
    about: &About,
    patience: Duration,
    future: impl Future<Output = Result<T>>,
) -> Result<T> {
    let stopped = async {
        while !about.stop.is_requested() {
            sleep(HEAR).await;
        }
    };
    let told = || Error::retry("ask the database: told to end");
    unless(stopped, answered(patience, future)).await.ok_or_else(told)?
}

impl Source for Postgres {
    type Server = Server;
    type Mark = At;
    type End = End;

    fn connect(servers: &Servers<Server>, about: &Arc<About>) -> Result<Postgres> {
        let asks = Background::start("invalidate-ask")?;
        let (asked, checks) = (servers.clone(), about.clone());
        let connecting = async move {
            let mut conn = asked.from.connect(false).await?;
            let checked = catalog::check(&mut conn, &checks.map, &checks.slot).await?;
            if let Some(slot) = Slot::find(&mut conn, &checks.slot).await? {
                slot.check_ours(&checks.slot, asked.from.database())?;
            }
            let missing = |e: Error| match e.kind {
                Kind::Invalid => {
                    e.context("read the log: is the role's right REPLICATION missing?")
                }
                _ => e,
            };
            let mut log = asked.from.connect(true).await.map_err(missing)?;
            let (system, timeline) = catalog::identify(&mut log).await?;
            let mut readers = Vec::new();
            for server in &asked.reads {
                let mut conn = server.connect(false).await?;
                catalog::check_standby(&mut conn, &server.name, system).await?;
                readers.push((conn, server.name.clone()));
            }
            let origin = Origin { system, timeline, database: checked.database };
            Ok((conn, readers, origin, checked))
        };
        let hears = about.clone();
        let (conn, readers, origin, checked) =
            asks.wait_for(async move { heard(&hears, CHECKS, connecting).await })?;
        Ok(Postgres {
            about: about.clone(),
            from: servers.from.clone(),
            asks,
            conn: Some(conn),
            readers,
            origin,
            checked,
            unsettled: None,
            kept: Arc::default(),
            log: None,
            log_end: None,
        })
    }

    fn anew(&mut self, late: Late) -> Result<(Position, End)> {
        (self.log, self.unsettled) = (None, None);
        let (about, version) = (self.about.clone(), self.checked.version);
        let (lsn, shape) = self.ask(SLOT, move |mut conn| async move {
            let slot = Slot::find(&mut conn, &about.slot).await?;
            if let Some(slot) = &slot {
                slot.check_free(&about.slot)?;
            }
            let tells = async {
                sleep(SLOT_IS_LATE).await;
                late();
                std::future::pending().await
            };
            let making = slot::make(&mut conn, &about.slot, slot.is_some());
            let lsn = unless(tells, making).await.expect("it tells and waits on")?;
            let shape = catalog::shape(&mut conn, &about.map, &about.slot, version).await?;
            Ok((conn, (lsn, shape)))
        })?;
        let at = PostgresAt { origin: self.origin, shape: shape.sum, lsn };
        Ok((Position::Postgres(at), End { running: shape.running, lsn: shape.end }))
    }

    fn shows(&mut self, end: &End) -> Result<bool> {
        Ok(self.look()?.iter().all(|seen| match seen.replayed {
            Some(replayed) => replayed >= end.lsn,
            None => seen.snapshot.is_behind_all(&end.running),
        }))
    }

    fn follow(&mut self, from: &Position) -> Result<Reads<At>> {
        let Position::Postgres(at) = from.clone() else {
            return Err(refused(from, "PostgreSQL"));
        };
        // The one before has ended before another begins.
        self.log = None;
        let (about, origin, checked) = (self.about.clone(), self.origin, self.checked);
        let position = at.clone();
        // An answer, and no failure: the connection is needed again.
        let found = self.ask(ANSWER, move |mut conn| async move {
            let slot = Slot::find(&mut conn, &about.slot).await?;
            if let Some(slot) = &slot {
                slot.check_free(&about.slot)?;
            }
            if let Some(why) = slot::missing(&position, origin, slot.as_ref()) {
                return Ok((conn, Err(why)));
            }
            let shape = catalog::shape(&mut conn, &about.map, &about.slot, checked.version).await?;
            Ok((conn, Ok(shape)))
        })?;
        let shape = found.map_err(Error::not_found)?;
        let log = Background::start("invalidate-log")?;
        let (about, server) = (self.about.clone(), self.from.clone());
        let start = format!(
            "START_REPLICATION SLOT {slot} LOGICAL {} (proto_version '1', publication_names '{slot}')",
            at.lsn,
            slot = name(&self.about.slot),
        );
        let conn = log.wait_for(async move {
            let begun = async {
                let mut conn = server.connect(true).await?;
                if checked.has_no_encoding {
                    conn.ask("SET client_encoding = 'SQL_ASCII'").await?;
                }
                conn.copy(&start).await?;
                Ok(conn)
            };
            heard(&about, CHECKS, begun).await
        })?;
        self.kept.store(at.lsn.0, Ordering::Relaxed);
        let (changes, reads) = ahead();
        let reader = Reader {
            rows: Rows::new(Arc::new(self.about.map.clone()), shape.tables),
            about: self.about.clone(),
            conn,
            kept: self.kept.clone(),
            received: at.lsn,
            told: Lsn(0),
            told_us: 0,
            changes,
        };
        log.spawn(reader.run());
        self.log = Some(log);
        Ok(reads)
    }

    fn end(&mut self) -> Result<Position> {
        let lsn = self.ask(ANSWER, move |mut conn| async move {
            let lsn = catalog::log_end(&mut conn).await?;
            Ok((conn, lsn))
        })?;
        Ok(Position::Postgres(PostgresAt { origin: self.origin, shape: 0, lsn }))
    }

    fn look(&mut self) -> Result<Vec<Seen>> {
        if self.readers.is_empty() {
            return self.ask(ANSWER, move |mut conn| async move {
                let snapshot = catalog::snapshot(&mut conn).await?;
                Ok((conn, vec![Seen { snapshot, replayed: None }]))
            });
        }
        let (mut readers, about) = (std::mem::take(&mut self.readers), self.about.clone());
        let (readers, seen) = self.asks.wait_for(async move {
            let asking = async {
                let mut seen = Vec::new();
                for (conn, name) in &mut readers {
                    let answer = within(ANSWER, catalog::replayed(conn, name)).await;
                    let silent =
                        || Error::retry(format!("ask standby `{name}`: it does not answer"));
                    seen.push(answer.ok_or_else(silent)??);
                }
                Ok(seen)
            };
            let seen = heard(&about, CHECKS, asking).await?;
            Ok((readers, seen))
        })?;
        self.readers = readers;
        Ok(seen)
    }

    fn reshaped(&mut self, position: &mut Position) -> Result<Option<Reshaped<End>>> {
        let Position::Postgres(at) = position else {
            return Err(refused(position, "PostgreSQL"));
        };
        let (about, version) = (self.about.clone(), self.checked.version);
        let (shape, slot, now) = self.ask(ANSWER, move |mut conn| async move {
            let shape = catalog::shape(&mut conn, &about.map, &about.slot, version).await?;
            let slot = Slot::find(&mut conn, &about.slot).await?;
            let now = catalog::snapshot(&mut conn).await?;
            Ok((conn, (shape, slot, now)))
        })?;
        self.log_end = slot.as_ref().map(|slot| slot.end);
        let retained_bytes = slot.map(|slot| slot.retained_bytes);
        self.about.progress.change(|counts| counts.retained_bytes = retained_bytes);
        let Shape { sum, end, running, .. } = shape;
        let before = self.unsettled.as_ref().map_or(at.shape, |unsettled| unsettled.sum);
        let why = match &self.unsettled {
            _ if sum != before => "tables of the map, or their publication, are not what they were",
            Some(unsettled) if now.is_behind_all(&unsettled.running) => {
                "what ran while tables of the map, or their publication, changed has ended"
            }
            _ => return Ok(None),
        };
        self.unsettled = None;
        if sum != before && !running.is_empty() {
            self.unsettled = Some(Unsettled { sum, running });
        } else {
            at.shape = sum;
        }
        let trouble = self.trouble()?;
        // The catalog was read as others read it: what ran then had not changed it.
        let end = End { running: BTreeSet::new(), lsn: end };
        Ok(Some(Reshaped { why: why.to_owned(), end, trouble }))
    }

    fn behind_bytes(&mut self, position: &Position, _last: Option<&At>) -> Result<Option<u64>> {
        Ok(match position {
            Position::Postgres(at) => self.log_end.map(|end| end.0.saturating_sub(at.lsn.0)),
            Position::MariaDb(_) | Position::Table(_) => None,
        })
    }

    fn kept(&mut self, position: &Position) {
        if let Position::Postgres(at) = position {
            self.kept.store(at.lsn.0, Ordering::Relaxed);
        }
    }
}

impl Postgres {
    /// Why the map does not fit its tables now.
    fn trouble(&mut self) -> Result<Option<String>> {
        let about = self.about.clone();
        self.ask(CHECKS, move |mut conn| async move {
            let trouble = match catalog::check(&mut conn, &about.map, &about.slot).await {
                Err(e) if matches!(e.kind, Kind::Invalid | Kind::Unsupported) => Some(e.message),
                checked => checked.map(|_| None)?,
            };
            Ok((conn, trouble))
        })
    }

    /// Lends the connection to a question, for so long.
    fn ask<T, F>(
        &mut self,
        patience: Duration,
        question: impl FnOnce(Connection) -> F + Send + 'static,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<(Connection, T)>> + Send,
    {
        let failed = || Error::retry("ask the database: its connection failed");
        let (conn, about) = (self.conn.take().ok_or_else(failed)?, self.about.clone());
        let (conn, answer) =
            self.asks.wait_for(async move { heard(&about, patience, question(conn)).await })?;
        self.conn = Some(conn);
        Ok(answer)
    }
}

/// Reads the log ahead, and tells the slot how far the topic is.
struct Reader {
    about: Arc<About>,
    conn: Connection,
    rows: Rows,
    kept: Arc<AtomicU64>,
    received: Lsn,
    /// What the slot knows, and since when.
    told: Lsn,
    told_us: u64,
    changes: Tells<At>,
}

impl Reader {
    async fn run(mut self) {
        loop {
            if let Err(e) = self.read().await {
                // Whoever takes them may have ended.
                self.changes.give_in_time(Err(e)).await;
                return;
            }
        }
    }

    /// Takes what has come, and gives it on.
    async fn read(&mut self) -> Result<()> {
        let doing = |e: Error| e.context("read the row log");
        let (mut reads, mut wants_answer) = (VecDeque::new(), false);
        let (rows, received) = (&mut self.rows, &mut self.received);
        let mut take = |body: &[u8]| {
            match Sent::read(body)? {
                Sent::Data(message) => {
                    if let Some((change, why)) = rows.take(message)? {
                        *received = (*received).max(change.mark.end);
                        reads.push_back(Read::Change(change, why));
                    }
                }
                Sent::Alive { end, wants_answer: wants } => {
                    wants_answer |= wants;
                    if !rows.is_open() {
                        *received = (*received).max(end);
                        // The last one says it all.
                        reads.pop_back_if(|read| matches!(read, Read::Quiet(_)));
                        reads.push_back(Read::Quiet(At { xid: None, end }));
                    }
                }
            }
            Ok(())
        };
        self.conn.copied(TELL, &mut take).await.map_err(doing)?;
        self.tell(wants_answer).await?;
        while let Some(read) = reads.pop_front() {
            let mut read = Ok(read);
            loop {
                match self.changes.give(read) {
                    Given::Taken => break,
                    Given::Full(back) => read = back,
                    Given::Over => return Err(Error::retry("read the row log: nobody takes it")),
                }
                sleep(REST).await;
                self.tell(false).await?;
            }
        }
        Ok(())
    }

    /// Tells the slot what the topic has, if that is news.
    async fn tell(&mut self, at_once: bool) -> Result<()> {
        let kept = Lsn(self.kept.load(Ordering::Relaxed));
        let now_us = self.about.clock.unix_ms().saturating_mul(1000);
        let is_late = now_us.abs_diff(self.told_us) >= TELL_AT_LEAST_US;
        if at_once || is_late || kept > self.told {
            (self.told, self.told_us) = (kept, now_us);
            let time_us = now_us.saturating_sub(YEAR_2000_S * 1_000_000);
            self.conn.stand(self.received.0, kept.0, time_us).await?;
        }
        Ok(())
    }
}
