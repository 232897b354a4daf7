//! From the database to the topic: reads the row log behind the topic's last position, lets changes through
//! when they are visible, and appends their keys.

use super::{REST, Shared, known};
use crate::ahead::Reads;
use crate::entry::{Entry, KEYS_MAX};
use crate::fence::Ahead;
use crate::gate::{Change, Gate, Mark};
use crate::mariadb::MariaDb;
use crate::position::Position;
use crate::postgres::Postgres;
use crate::source::{Database, Read, Reshaped, Servers, Source, refused};
use crate::table::Table;
use holdfast_base::codec::Encode;
use holdfast_base::{Error, Kind, Result};
use holdfast_client::Client;
use holdfast_env::event;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

/// Between two questions what is visible.
const LOOK: Duration = Duration::from_millis(1);
/// Behind the first of them: what is not visible yet is mostly so within a part of a millisecond.
const LOOK_FIRST: Duration = Duration::from_micros(100);
/// How soon a request to stop is heard.
const HEAR: Duration = Duration::from_millis(100);
/// Between two looks at the shape of tables.
const SHAPE_NS: u64 = 1_000_000_000;
/// Between two questions how many bytes of the log the topic lacks.
const BEHIND_NS: u64 = 5_000_000_000;
/// How old the topic's position may be while no key changes.
const POSITION_AGE_NS: u64 = 10_000_000_000;
/// When it is told that something is waited for.
const LONG_NS: u64 = 5_000_000_000;

const WHAT: &str = "changes are read";
const BEGINS: &str = "the database began a log for this pool";
const SEEN: &str = "what was changed before is visible";
const FITS: &str = "the map fits the tables";

pub fn run(shared: &Arc<Shared>, ready: impl FnOnce() -> Result<()>) -> Result<()> {
    let mut ready = Some(ready);
    let mut ready = || ready.take().map_or(Ok(()), |ready| ready());
    // Before a database is waited for that this topic has never followed.
    match fits_kind(shared) {
        Err(e) if e.kind == Kind::Invalid => return Err(e),
        // What else is wrong comes again, and is waited for.
        _ => {}
    }
    while !shared.stop.is_requested() {
        let ended = match &shared.settings.database {
            Database::MariaDb(servers) => watch::<MariaDb>(shared, servers, &mut ready),
            Database::Postgres(servers) => watch::<Postgres>(shared, servers, &mut ready),
            Database::Table(servers) => watch::<Table>(shared, servers, &mut ready),
        };
        match ended {
            Err(e) if matches!(e.kind, Kind::Invalid | Kind::Unsupported) => return Err(e),
            Err(e) => shared.waits(WHAT, &e.message),
            Ok(()) => {}
        }
        shared.stop.sleep_until_stop(REST);
    }
    Ok(())
}

fn fits_kind(shared: &Shared) -> Result<()> {
    let (mut client, kind) = ((shared.connect)()?, shared.settings.database.kind());
    match known(&mut client, &shared.topic)?.position {
        Some((_, position, _)) if position.kind() != kind => Err(refused(&position, kind)),
        _ => Ok(()),
    }
}

/// One life of the connections; ends with the first that fails.
fn watch<S: Source>(
    shared: &Arc<Shared>,
    servers: &Servers<S::Server>,
    ready: &mut impl FnMut() -> Result<()>,
) -> Result<()> {
    let mut source = S::connect(servers, &shared.settings.about)?;
    let mut writer =
        Writer { shared, client: (shared.connect)()?, written_ns: 0, is_behind: false, kept: None };
    let mut position = match known(&mut writer.client, &shared.topic)?.position {
        Some((_, position, _)) => position,
        None => empty(&mut writer, &mut source, "the pool is new to this topic")?,
    };
    loop {
        let ended = match source.follow(&position) {
            Ok(reads) => {
                ready()?;
                pass(&mut writer, &mut source, &reads, &mut position)
            }
            Err(e) => Err(e),
        };
        match ended {
            Err(e) if e.kind == Kind::NotFound => {
                // Another invalidator may have gone on meanwhile, and ended.
                if let Some((_, now, _)) = known(&mut writer.client, &shared.topic)?.position
                    && now != position
                {
                    position = now;
                    continue;
                }
                let why = format!(
                    "the database's log has no more what follows `{position}`: {}",
                    e.message
                );
                position = empty(&mut writer, &mut source, &why)?;
            }
            ended => return ended,
        }
    }
}

/// Brings changes to the topic until something fails, or a stop is requested.
fn pass<S: Source>(
    writer: &mut Writer<'_>,
    source: &mut S,
    reads: &Reads<S::Mark>,
    position: &mut Position,
) -> Result<()> {
    let shared = writer.shared;
    let mut gate = Gate::default();
    let mut ahead = Ahead::default();
    let (mut looks, mut last) = (Looks::default(), None);
    let mut look = LOOK_FIRST;
    source.kept(position);
    while !shared.stop.is_requested() {
        if let Some(asked_ns) = ahead.to_ask(&shared.fence) {
            ahead.ends(asked_ns, source.end()?);
            // A shape that readers see now is told by no log.
            looks.shape_ns = 0;
        }
        // What the topic has by now: what was read is in it, or would be read again.
        looks.look(writer, source, position, last.as_ref())?;
        ahead.passed(position, &shared.fence);
        if gate.is_empty() {
            match reads.wait(HEAR) {
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
        while !gate.is_full()
            && let Some(read) = reads.take()
        {
            // What was read before it counts, too, but another try reads it again.
            take(&mut gate, read?);
        }
        show(shared, &gate);
        let is_waiting = match gate.is_empty() {
            true => false,
            false => {
                let visible = gate.pass(&source.look()?);
                let is_waiting = visible.is_empty();
                let is_unknown = visible.iter().any(|change| change.keys.is_none());
                if is_unknown && let Some(reshaped) = source.reshaped(position)? {
                    // One order serves both: whoever is emptied sees the new shape.
                    wait_for(shared, source, &reshaped.end)?;
                    fits(shared, &reshaped);
                }
                let passed = visible.last().map(|change| change.mark.clone());
                writer.write(visible, position)?;
                last = passed.or(last);
                is_waiting
            }
        };
        if let Some(mark) = gate.pass_quiet() {
            writer.write_quiet(&mark, position)?;
        }
        if let Some(kept) = writer.kept.take() {
            source.kept(&kept);
        }
        show(shared, &gate);
        shared.goes_on(WHAT);
        look = match is_waiting {
            true => {
                shared.stop.sleep_until_stop(look);
                LOOK.min(look * 2)
            }
            false => LOOK_FIRST,
        };
    }
    Ok(())
}

/// When it was looked at what no log tells; 0 for at once.
#[derive(Default)]
struct Looks {
    shape_ns: u64,
    behind_ns: u64,
}

impl Looks {
    /// Looks at what is due. `last`: the last transaction that the topic has, if it is known.
    fn look<S: Source>(
        &mut self,
        writer: &mut Writer<'_>,
        source: &mut S,
        position: &mut Position,
        last: Option<&S::Mark>,
    ) -> Result<()> {
        let now_ns = writer.shared.clock.monotonic_ns();
        let is_due = |since_ns: u64, rest_ns: u64| {
            since_ns == 0 || now_ns.saturating_sub(since_ns) >= rest_ns
        };
        if is_due(self.shape_ns, SHAPE_NS) {
            self.shape_ns = now_ns.max(1);
            if let Some(reshaped) = source.reshaped(position)? {
                empty_reshaped(writer, source, reshaped, position)?;
            }
        }
        if is_due(self.behind_ns, BEHIND_NS) {
            self.behind_ns = now_ns.max(1);
            let bytes = source.behind_bytes(position, last)?;
            writer.shared.settings.about.progress.change(|counts| counts.lag_bytes = bytes);
        }
        Ok(())
    }
}

fn show<M: Mark>(shared: &Shared, gate: &Gate<M>) {
    shared.settings.about.progress.change(|counts| {
        (counts.waiting, counts.waiting_since_s) = (gate.len() as u64, gate.since_s());
    });
}

fn take<M: Mark>(gate: &mut Gate<M>, read: Read<M>) {
    match read {
        Read::Quiet(mark) => gate.push_quiet(mark),
        Read::Change(change, unknown) => {
            if let Some(why) = unknown {
                event!(InvalidateEmptied, why);
            }
            gate.push(change);
        }
    }
}

/// Empties the servers as of now, since nobody knows what changed before.
fn empty<S: Source>(writer: &mut Writer<'_>, source: &mut S, why: &str) -> Result<Position> {
    event!(InvalidateEmptied, why);
    let shared = writer.shared.clone();
    let late = move || {
        let why = "wait until the database begins a log for this pool, behind all transactions that run: one is \
                   open for long, or prepared and not ended: the pool is emptied then";
        shared.waits(BEGINS, why);
    };
    let (position, end) = source.anew(Box::new(late))?;
    writer.shared.goes_on(BEGINS);
    wait_for(writer.shared, source, &end)?;
    writer.append_empty(&position)?;
    Ok(position)
}

fn empty_reshaped<S: Source>(
    writer: &mut Writer<'_>,
    source: &mut S,
    reshaped: Reshaped<S::End>,
    position: &Position,
) -> Result<()> {
    let why = reshaped.why.as_str();
    event!(InvalidateEmptied, why);
    wait_for(writer.shared, source, &reshaped.end)?;
    writer.append_empty(position)?;
    fits(writer.shared, &reshaped);
    Ok(())
}

/// The rest of the map goes on while a table of it does not fit; whoever watches is told.
fn fits<E>(shared: &Shared, reshaped: &Reshaped<E>) {
    match &reshaped.trouble {
        Some(why) => shared.waits(FITS, why),
        None => shared.goes_on(FITS),
    }
}

/// Waits until readers see what was changed before a moment, and says so if that takes long.
fn wait_for<S: Source>(shared: &Shared, source: &mut S, end: &S::End) -> Result<()> {
    let begun_ns = shared.clock.monotonic_ns();
    while !source.shows(end)? {
        if shared.stop.sleep_until_stop(LOOK) {
            return Err(Error::retry("wait until a change is visible: told to end"));
        }
        if shared.clock.monotonic_ns().saturating_sub(begun_ns) >= LONG_NS {
            let why = "wait until what was changed before is visible: a transaction of the database is open \
                       for long, or a replica is behind: the pool is emptied then";
            shared.waits(SEEN, why);
        }
    }
    shared.goes_on(SEEN);
    Ok(())
}

/// Appends to the topic.
struct Writer<'a> {
    shared: &'a Arc<Shared>,
    client: Client,
    /// When it was written last.
    written_ns: u64,
    /// Nothing changed up to a position that the topic does not have.
    is_behind: bool,
    /// The last position that the topic has for sure.
    kept: Option<Position>,
}

impl Writer<'_> {
    fn append(&mut self, entries: &[Entry]) -> Result<()> {
        let bytes: Vec<Vec<u8>> = entries.iter().map(Entry::to_bytes).collect();
        for some in bytes.chunks(8) {
            self.client.log().append(&self.shared.topic, some)?;
        }
        self.shared.settings.about.progress.change(|counts| {
            for entry in entries {
                match entry {
                    Entry::Keys { keys, .. } => counts.keys += keys.len() as u64,
                    Entry::Empty { .. } => counts.emptied += 1,
                    Entry::Confirmed { .. } => {}
                }
            }
        });
        self.written_ns = self.shared.clock.monotonic_ns();
        self.is_behind = false;
        let at = |entry: &Entry| match entry {
            Entry::Keys { position, .. } | Entry::Empty { position, .. } => Some(position.clone()),
            Entry::Confirmed { .. } => None,
        };
        self.kept = entries.iter().rev().find_map(at).or(self.kept.take());
        Ok(())
    }

    /// Servers are emptied of what changed up to now.
    fn append_empty(&mut self, position: &Position) -> Result<()> {
        let changed_s = self.shared.clock.unix_ms() / 1000;
        self.append(&[Entry::Empty { position: position.clone(), changed_s }])
    }

    /// Nothing changed up to there.
    fn write_quiet<M: Mark>(&mut self, mark: &M, position: &mut Position) -> Result<()> {
        let mut at = position.clone();
        mark.pass(&mut at);
        let age_ns = self.shared.clock.monotonic_ns().saturating_sub(self.written_ns);
        self.is_behind |= at != *position;
        if self.is_behind && age_ns >= POSITION_AGE_NS {
            let changed_s = self.shared.clock.unix_ms() / 1000;
            self.append(&[Entry::Keys { position: at.clone(), changed_s, keys: Vec::new() }])?;
        }
        *position = at;
        Ok(())
    }

    /// Writes the keys of visible changes, and moves the position behind them.
    fn write<M: Mark>(&mut self, changes: Vec<Change<M>>, position: &mut Position) -> Result<()> {
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
                    change.mark.pass(&mut position);
                    entries.push(Entry::Empty { position, changed_s });
                }
            }
            change.mark.pass(&mut at);
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
        self.shared.settings.about.progress.change(|counts| counts.transactions += transactions);
        *position = at;
        Ok(())
    }
}
