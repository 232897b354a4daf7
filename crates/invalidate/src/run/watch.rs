//! From the database to the topic: reads the row log behind the topic's last position, lets changes through
//! when they are visible, and appends their keys.

use super::{REST, Shared, known};
use crate::entry::{Entry, KEYS_MAX};
use crate::gate::{Change, Gate, Seen};
use crate::mariadb;
use crate::position::{Place, Position};
use holdfast_base::codec::Encode;
use holdfast_base::{Error, Kind, Result};
use holdfast_client::Client;
use holdfast_env::event;
use holdfast_env::runtime::Background;
use mysql_async::Conn;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

/// Transactions that are read ahead.
const AHEAD: usize = 1024;
/// Between two questions what is visible.
const LOOK: Duration = Duration::from_millis(1);
/// How soon a request to stop is heard.
const HEAR: Duration = Duration::from_millis(100);
/// How old the topic's position may be while no key changes.
const POSITION_AGE_NS: u64 = 10_000_000_000;

const WHAT: &str = "changes are read";

pub fn run(shared: &Arc<Shared>, ready: impl FnOnce() -> Result<()>) -> Result<()> {
    let mut ready = Some(ready);
    while !shared.stop.is_requested() {
        let ended = watch(shared, &mut || match ready.take() {
            Some(ready) => ready(),
            None => Ok(()),
        });
        match ended {
            Err(e) if matches!(e.kind, Kind::Invalid | Kind::Unsupported) => return Err(e),
            Err(e) => shared.waits(WHAT, &e.message),
            Ok(()) => {}
        }
        shared.stop.sleep_until_stop(REST);
    }
    Ok(())
}

type Read = Result<(Change, Option<String>)>;

/// One life of the connections; ends with the first that fails.
fn watch(shared: &Arc<Shared>, ready: &mut impl FnMut() -> Result<()>) -> Result<()> {
    let asks = Background::start("invalidate-ask")?;
    let checks = shared.clone();
    let conn = asks.wait_for(async move {
        let mut conn = checks.settings.from.connect().await?;
        mariadb::check(&mut conn, &checks.settings.map).await?;
        Ok(conn)
    })?;
    let reads = shared.clone();
    let readers = asks.wait_for(async move {
        let mut conns = Vec::new();
        for server in &reads.settings.reads {
            let mut conn = server.connect().await?;
            mariadb::check_replica(&mut conn, &server.name).await?;
            conns.push(conn);
        }
        Ok(conns)
    })?;
    let mut writer = Writer { shared, client: (shared.connect)()?, written_ns: 0 };
    let mut eyes = Eyes { asks, source: Some(conn), readers };
    let position = known(&mut writer.client, &shared.topic)?.position;
    let mut position = match position {
        Some((_, position, _)) => position,
        None => empty(&mut writer, &mut eyes, "the pool is new to this topic")?,
    };
    loop {
        // A runtime of its own: reading ahead may block it.
        let log = Background::start("invalidate-log")?;
        let changes = follow(shared, &log, position.clone());
        ready()?;
        match pass(&mut writer, &mut eyes, &changes, &mut position) {
            Err(e) if e.kind == Kind::NotFound => {
                let why = format!(
                    "the database's log has no more what follows `{position}`: {}",
                    e.message
                );
                position = empty(&mut writer, &mut eyes, &why)?;
            }
            ended => return ended,
        }
    }
}

fn follow(shared: &Arc<Shared>, log: &Background, from: Position) -> Receiver<Read> {
    let (changes, read) = sync_channel(AHEAD);
    let shared = shared.clone();
    log.spawn(async move {
        let settings = &shared.settings;
        let begun = async {
            let conn = settings.from.connect().await?;
            mariadb::follow(conn, &from, settings.server_id).await
        };
        match begun.await {
            Err(e) => drop(changes.send(Err(e))),
            Ok(mut log) => loop {
                let next = log.next(&settings.map).await;
                let has_failed = next.is_err();
                if changes.send(next).is_err() || has_failed {
                    return;
                }
            },
        }
    });
    read
}

/// Brings changes to the topic until something fails, or a stop is requested.
fn pass(
    writer: &mut Writer<'_>,
    eyes: &mut Eyes,
    changes: &Receiver<Read>,
    position: &mut Position,
) -> Result<()> {
    let shared = writer.shared;
    let mut gate = Gate::default();
    while !shared.stop.is_requested() {
        if gate.is_empty() {
            match changes.recv_timeout(HEAR) {
                Ok(read) => take(&mut gate, read?),
                Err(RecvTimeoutError::Timeout) => {
                    shared.goes_on(WHAT);
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::retry("read the row log: its thread ended"));
                }
            }
        }
        while gate.len() < AHEAD
            && let Ok(read) = changes.try_recv()
        {
            match read {
                Ok(read) => take(&mut gate, read),
                // What was read before it counts, too, but another try reads it again.
                Err(e) => return Err(e),
            }
        }
        show(shared, &gate);
        let visible = gate.pass(&eyes.look()?);
        let is_waiting = visible.is_empty();
        writer.write(visible, position)?;
        show(shared, &gate);
        shared.goes_on(WHAT);
        if is_waiting {
            shared.stop.sleep_until_stop(LOOK);
        }
    }
    Ok(())
}

fn show(shared: &Shared, gate: &Gate) {
    shared.settings.progress.change(|counts| {
        (counts.waiting, counts.waiting_since_s) = (gate.len() as u64, gate.since_s());
    });
}

fn take(gate: &mut Gate, (change, unknown): (Change, Option<String>)) {
    if let Some(why) = unknown {
        event!(InvalidateEmptied, why);
    }
    gate.push(change);
}

/// Empties the servers as of the end of the log, since nobody knows what changed before.
fn empty(writer: &mut Writer<'_>, eyes: &mut Eyes, why: &str) -> Result<Position> {
    event!(InvalidateEmptied, why);
    let (position, place) = eyes.end()?;
    let is_visible = |seen: &Seen| match seen {
        Seen::Snapshot(at) => at.covers(&place),
        Seen::Applied(at) => at.covers_all(&position),
    };
    while !eyes.look()?.iter().all(is_visible) {
        if writer.shared.stop.sleep_until_stop(LOOK) {
            return Err(Error::retry("wait for a replica: told to end"));
        }
    }
    let changed_s = writer.shared.clock.unix_ms() / 1000;
    writer.append(&[Entry::Empty { position: position.clone(), changed_s }])?;
    Ok(position)
}

/// Where rows are read.
struct Eyes {
    asks: Background,
    /// Of the server whose log is read; lent to the runtime while it is asked.
    source: Option<Conn>,
    /// Of replicas that are read instead.
    readers: Vec<Conn>,
}

impl Eyes {
    fn source(&mut self) -> Result<Conn> {
        self.source.take().ok_or_else(|| Error::retry("ask the database: its connection failed"))
    }

    fn end(&mut self) -> Result<(Position, Place)> {
        let mut conn = self.source()?;
        let (conn, end) = self.asks.wait_for(async move {
            let end = mariadb::end(&mut conn).await?;
            Ok((conn, end))
        })?;
        self.source = Some(conn);
        Ok(end)
    }

    /// What a SELECT that begins now sees.
    fn look(&mut self) -> Result<Vec<Seen>> {
        if self.readers.is_empty() {
            let mut conn = self.source()?;
            let (conn, seen) = self.asks.wait_for(async move {
                let seen = mariadb::snapshot(&mut conn).await?;
                Ok((conn, seen))
            })?;
            self.source = Some(conn);
            return Ok(vec![seen]);
        }
        let mut conns = std::mem::take(&mut self.readers);
        let (conns, seen) = self.asks.wait_for(async move {
            let mut seen = Vec::new();
            for conn in &mut conns {
                seen.push(mariadb::applied(conn).await?);
            }
            Ok((conns, seen))
        })?;
        self.readers = conns;
        Ok(seen)
    }
}

/// Appends to the topic.
struct Writer<'a> {
    shared: &'a Arc<Shared>,
    client: Client,
    /// When it was written last.
    written_ns: u64,
}

impl Writer<'_> {
    fn append(&mut self, entries: &[Entry]) -> Result<()> {
        let bytes: Vec<Vec<u8>> = entries.iter().map(Entry::to_bytes).collect();
        for some in bytes.chunks(8) {
            self.client.log().append(&self.shared.topic, some)?;
        }
        self.shared.settings.progress.change(|counts| {
            for entry in entries {
                match entry {
                    Entry::Keys { keys, .. } => counts.keys += keys.len() as u64,
                    Entry::Empty { .. } => counts.emptied += 1,
                    Entry::Confirmed { .. } => {}
                }
            }
        });
        self.written_ns = self.shared.clock.monotonic_ns();
        Ok(())
    }

    /// Writes the keys of visible changes, and moves the position behind them.
    fn write(&mut self, changes: Vec<Change>, position: &mut Position) -> Result<()> {
        let Some(last) = changes.last() else { return Ok(()) };
        let (changed_s, transactions) = (last.changed_s, changes.len() as u64);
        let (mut entries, mut keys) = (Vec::new(), BTreeSet::new());
        let mut at = position.clone();
        for change in changes {
            match change.keys {
                Some(of) => keys.extend(of),
                None => {
                    // All that came before is in it.
                    (entries, keys) = (Vec::new(), BTreeSet::new());
                    let mut position = at.clone();
                    position.pass(change.gtid);
                    entries.push(Entry::Empty { position, changed_s });
                }
            }
            at.pass(change.gtid);
        }
        let keys: Vec<Vec<u8>> = keys.into_iter().collect();
        let parts = keys.chunks(KEYS_MAX).count();
        for (number, some) in keys.chunks(KEYS_MAX).enumerate() {
            // Only the last part is behind all of the changes.
            let position = if number + 1 == parts { at.clone() } else { position.clone() };
            entries.push(Entry::Keys { position, changed_s, keys: some.to_vec() });
        }
        let age_ns = self.shared.clock.monotonic_ns().saturating_sub(self.written_ns);
        if entries.is_empty() && age_ns >= POSITION_AGE_NS {
            entries.push(Entry::Keys { position: at.clone(), changed_s, keys: Vec::new() });
        }
        if !entries.is_empty() {
            self.append(&entries)?;
        }
        self.shared.settings.progress.change(|counts| counts.transactions += transactions);
        *position = at;
        Ok(())
    }
}
