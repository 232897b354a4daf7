//! PostgreSQL as a [`Source`]: its connections, each lent to the runtime that asks, and the reader of its log,
//! which tells the slot what is in the topic, and so needed no more.

use super::catalog::{self, Shape};
use super::connection::{Connection, Server};
use super::output::Sent;
use super::rows::{Rows, YEAR_2000_S};
use super::seen::{At, Seen};
use super::slot::{self, Slot};
use super::wire::name;
use crate::position::{Lsn, Origin, Position, PostgresAt};
use crate::source::{AHEAD, About, Read, Reads, Reshaped, Servers, Source, refused};
use holdfast_base::{Error, Kind, Result};
use holdfast_env::runtime::{Background, sleep, unless, within};
use std::collections::{BTreeSet, VecDeque};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::time::Duration;

/// How soon a request to stop is heard while the database is asked.
const HEAR: Duration = Duration::from_millis(100);
/// How soon the slot is told what is needed no more.
const TELL: Duration = Duration::from_millis(200);
/// How often it is told that somebody reads; the server gives up who is silent for a minute.
const TELL_AT_LEAST_US: u64 = 5_000_000;
/// Before something is tried again for which there was no room.
const REST: Duration = Duration::from_millis(10);
/// A question that the server answers from memory.
const ANSWER: Duration = Duration::from_secs(30);

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
    version: u32,
    /// What the topic has, for the reader of the log.
    kept: Arc<AtomicU64>,
    log: Option<Background>,
}

/// A moment in the database: who still ran then, and the end of its log.
pub struct End {
    running: BTreeSet<u64>,
    lsn: Lsn,
}

/// What a future comes to, unless a stop is requested.
async fn heard<T>(about: &About, future: impl Future<Output = Result<T>>) -> Result<T> {
    let stopped = async {
        while !about.stop.is_requested() {
            sleep(HEAR).await;
        }
    };
    let told = || Error::retry("ask the database: told to end");
    unless(stopped, future).await.ok_or_else(told)?
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
            Ok((conn, readers, origin, checked.version))
        };
        let hears = about.clone();
        let (conn, readers, origin, version) =
            asks.wait_for(async move { heard(&hears, connecting).await })?;
        Ok(Postgres {
            about: about.clone(),
            from: servers.from.clone(),
            asks,
            conn: Some(conn),
            readers,
            origin,
            version,
            kept: Arc::default(),
            log: None,
        })
    }

    fn anew(&mut self) -> Result<(Position, End)> {
        self.log = None;
        let (about, version) = (self.about.clone(), self.version);
        let (lsn, shape, running) = self.ask(move |mut conn| async move {
            let slot = Slot::find(&mut conn, &about.slot).await?;
            if let Some(slot) = &slot {
                slot.check_free(&about.slot)?;
            }
            // A slot is made behind all transactions that run then.
            let lsn = slot::make(&mut conn, &about.slot, slot.is_some()).await?;
            let shape = catalog::shape(&mut conn, &about.map, &about.slot, version).await?;
            let snapshot = catalog::snapshot(&mut conn).await?;
            Ok((conn, (lsn, shape, snapshot.running)))
        })?;
        let at = PostgresAt { origin: self.origin, shape: shape.sum, lsn };
        Ok((Position::Postgres(at), End { running, lsn: shape.end }))
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
        let (about, origin, version) = (self.about.clone(), self.origin, self.version);
        let position = at.clone();
        // An answer, and no failure: the connection is needed again.
        let found = self.ask(move |mut conn| async move {
            let slot = Slot::find(&mut conn, &about.slot).await?;
            if let Some(slot) = &slot {
                slot.check_free(&about.slot)?;
            }
            if let Some(why) = slot::missing(&position, origin, slot.as_ref()) {
                return Ok((conn, Err(why)));
            }
            let shape = catalog::shape(&mut conn, &about.map, &about.slot, version).await?;
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
                conn.copy(&start).await?;
                Ok(conn)
            };
            heard(&about, begun).await
        })?;
        self.kept.store(at.lsn.0, Ordering::Relaxed);
        let (changes, reads) = sync_channel(AHEAD);
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

    fn look(&mut self) -> Result<Vec<Seen>> {
        if self.readers.is_empty() {
            return self.ask(move |mut conn| async move {
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
            let seen = heard(&about, asking).await?;
            Ok((readers, seen))
        })?;
        self.readers = readers;
        Ok(seen)
    }

    fn reshaped(&mut self, position: &mut Position) -> Result<Option<Reshaped<End>>> {
        let Position::Postgres(at) = position else {
            return Err(refused(position, "PostgreSQL"));
        };
        let (about, version, before) = (self.about.clone(), self.version, at.shape);
        let (shape, slot, trouble) = self.ask(move |mut conn| async move {
            let shape = catalog::shape(&mut conn, &about.map, &about.slot, version).await?;
            let slot = Slot::find(&mut conn, &about.slot).await?;
            let mut trouble = None;
            if shape.sum != before {
                match catalog::check(&mut conn, &about.map, &about.slot).await {
                    Err(e) if matches!(e.kind, Kind::Invalid | Kind::Unsupported) => {
                        trouble = Some(e.message);
                    }
                    checked => drop(checked?),
                }
            }
            Ok((conn, (shape, slot, trouble)))
        })?;
        let retained_bytes = slot.map(|slot| slot.retained_bytes);
        self.about.progress.change(|counts| counts.retained_bytes = retained_bytes);
        let Shape { sum, end, .. } = shape;
        if sum == at.shape {
            return Ok(None);
        }
        at.shape = sum;
        let why = "tables of the map, or their publication, are not what they were".to_owned();
        // The catalog was read as others read it: what ran then had not changed it.
        let end = End { running: BTreeSet::new(), lsn: end };
        Ok(Some(Reshaped { why, end, trouble }))
    }

    fn kept(&mut self, position: &Position) {
        if let Position::Postgres(at) = position {
            self.kept.store(at.lsn.0, Ordering::Relaxed);
        }
    }
}

impl Postgres {
    /// Lends the connection to a question.
    fn ask<T, F>(&mut self, question: impl FnOnce(Connection) -> F + Send + 'static) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<(Connection, T)>> + Send,
    {
        let failed = || Error::retry("ask the database: its connection failed");
        let (conn, about) = (self.conn.take().ok_or_else(failed)?, self.about.clone());
        let (conn, answer) =
            self.asks.wait_for(async move { heard(&about, question(conn)).await })?;
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
    changes: SyncSender<Result<Read<At>>>,
}

impl Reader {
    async fn run(mut self) {
        loop {
            if let Err(e) = self.read().await {
                // Whoever takes them may have ended.
                let _ = self.changes.send(Err(e));
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
            while let Err(e) = self.changes.try_send(read) {
                let TrySendError::Full(back) = e else {
                    return Err(Error::retry("read the row log: nobody takes it"));
                };
                read = back;
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
