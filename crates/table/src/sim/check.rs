//! What must be true of a history: one line of versions a record (T1), sessions that never go back
//! (T2), strong records that are linearizable (T3), nothing acknowledged that is lost (T4), and
//! regions that are equal once all is quiet (T5).

pub mod groups;

use super::histories::{History, Told};
use super::linear::{Call, Operation, is_linearizable};
use super::world::World;
use crate::entry::{Asked, Change, ChangeKind, Refusal, StreamEntry};
use crate::ids::{Key, Place, RegionId, StreamId};
use crate::message::{Answer, Expect, Level, Op};
use crate::region::{Policy, Region};
use crate::sessions::Outcome;
use crate::stream::Stream;
use crate::tablet::branch::Branch;
use crate::tablet::{Mode, Tablet};
use std::collections::BTreeMap;

/// One version of a record, as the streams have it in the end.
#[derive(Clone, Debug)]
struct Version {
    stream: StreamId,
    entry: StreamEntry,
    /// The value from here on.
    value: Option<u64>,
}

impl Version {
    /// Whether it answers this request.
    fn is_of(&self, asked: Asked) -> bool {
        let same = |own: Asked| (own.session, own.sequence) == (asked.session, asked.sequence);
        self.entry.asked.is_some_and(same)
    }
}

/// Versions of each key in their order.
type Lines = BTreeMap<Key, BTreeMap<u64, Version>>;

/// Why a world is not at rest yet.
pub fn restless(world: &World, policy: Policy) -> Option<String> {
    if world.running().count() < world.regions() {
        return Some("a region does not run".to_owned());
    }
    for at in 0..world.regions() {
        let region = world.region(at)?;
        let home = StreamId::of(RegionId(at as u8));
        if !region.leads(home) && policy == Policy::Takeover {
            let how = |other: &Region| {
                let stream = other.tablet().stream(home);
                let counts = stream.counts(RegionId(at as u8), world.log(at));
                format!(
                    "promised {:?}, holds {}, matched {}, knows {} to be kept, leads {}, counts it {counts}",
                    stream.promised(),
                    stream.tail(),
                    stream.matched(),
                    stream.kept(),
                    other.leads(home)
                )
            };
            let all: Vec<String> = world.running().map(how).collect();
            return Some(format!("region {at} does not lead its stream: {all:#?}"));
        }
        for stream in region.tablet().streams() {
            let id = stream.id();
            let shown = region.tablet().shown(id).place;
            if shown != stream.tail() {
                let (tail, kept) = (stream.tail(), stream.kept());
                let next = stream.entry(shown.number + 1);
                let members = stream.members();
                return Some(format!(
                    "region {at} shows {shown} of {}, holds {tail}, knows {kept} to be kept; next is {next:?}; {members:?}",
                    id.0
                ));
            }
            let other = world.region(0)?.tablet().stream(id).tail();
            if other != stream.tail() {
                return Some(format!("region {at} has {} of {}, 0 {other}", stream.tail(), id.0));
            }
            if world.running().filter(|region| region.leads(id)).count() != 1 {
                return Some(format!("not one region leads stream {}", id.0));
            }
        }
    }
    for (at, region) in world.running().enumerate() {
        if let Some(lost) = region.tablet().lost() {
            return Some(format!("region {at} takes {lost} for lost"));
        }
        if !region.tablet().branches().unsaid().is_empty() {
            return Some(format!("region {at} has branches that it did not say"));
        }
        if !region.tablet().tombstones().is_empty() {
            let tombstones = region.tablet().tombstones().iter();
            let records: Vec<_> = tombstones.map(|key| region.tablet().record(key)).collect();
            return Some(format!("region {at} has tombstones: {records:?}"));
        }
    }
    None
}

/// Everything, of a world that is quiet.
pub fn all(world: &World, history: &History, mode: Mode) -> Result<(), String> {
    let tablet = world.region(0).ok_or("no region runs")?.tablet();
    equal(world, tablet)?;
    folds_agree(world)?;
    branches(tablet, history)?;
    let lines = lines(tablet, history)?;
    for told in &history.told {
        is_kept(tablet, &lines, history, mode, told)?;
    }
    sessions(&lines, history)?;
    groups::are_whole(history)?;
    match mode {
        Mode::Strong => linear(&lines, history),
        Mode::Timeline => newest(history),
    }
}

/// T5, and T1 of the lines, however branches were resolved since.
pub fn settled(world: &World, history: &History) -> Result<(), String> {
    let tablet = world.region(0).ok_or("no region runs")?.tablet();
    equal(world, tablet)?;
    folds_agree(world)?;
    lines(tablet, history).map(drop)
}

fn equal(world: &World, first: &Tablet) -> Result<(), String> {
    for region in world.running() {
        let tablet = region.tablet();
        for id in first.form().streams() {
            if tablet.shown(id) != first.shown(id) {
                let (a, b) = (tablet.shown(id), first.shown(id));
                return Err(format!("T5: digests of stream {} differ: {a:?}, {b:?}", id.0));
            }
        }
        if tablet.records() != first.records() || tablet.floor() != first.floor() {
            return Err("T5: records differ".to_owned());
        }
        if tablet.branches() != first.branches() {
            return Err("T5: branches differ".to_owned());
        }
    }
    Ok(())
}

/// Every fold of a topic holds, has promised and has forgotten the same, whatever it knows to be kept.
fn folds_agree(world: &World) -> Result<(), String> {
    for at in 0..world.regions() {
        let Some(region) = world.region(at) else { continue };
        let anew = world.folded_anew(at).map_err(|e| format!("region {at}: {e}"))?;
        for stream in anew.streams() {
            let held = region.tablet().stream(stream.id());
            let of =
                |s: &Stream| (s.tail(), s.forgotten_to(), s.promised(), s.leading(), s.matched());
            if of(stream) != of(held) || stream.behind(0, usize::MAX) != held.behind(0, usize::MAX)
            {
                let (a, b) = (of(stream), of(held));
                return Err(format!("two folds of region {at}'s topic differ: {a:?}, {b:?}"));
            }
        }
    }
    Ok(())
}

/// T1: beside the line of each record there are exactly the sealed branches. Whatever a region had in its log
/// and no stream has any more is in one of them, and each is what its region had. (Where logs were lost,
/// nobody has it.)
fn branches(tablet: &Tablet, history: &History) -> Result<(), String> {
    let said = tablet.branches().said();
    for (id, branch) in said {
        let entry = history.entries.get(&(id.stream, id.place));
        let change = entry.and_then(|entry| entry.body.change_of(&id.key));
        let same = change.is_some_and(|change| {
            let value = match &change.kind {
                ChangeKind::Put(value) => Some(value),
                _ => None,
            };
            change.key == id.key
                && change.version == branch.version
                && branch.value.as_ref() == value
        });
        if !same || tablet.stream(id.stream).holds(id.place) {
            return Err(format!("T1: a branch that was none: {branch:?}, {entry:?}"));
        }
    }
    for ((stream, place), entry) in &history.entries {
        if !history.seals() || tablet.stream(*stream).holds(*place) {
            continue;
        }
        let writes =
            |change: &&Change| matches!(change.kind, ChangeKind::Put(_) | ChangeKind::Delete);
        for change in entry.body.changes().iter().filter(writes) {
            // Its region may have opened another epoch in it before it heard that it was sealed off.
            let covers = |branch: &Branch| {
                branch.id.key == change.key
                    && branch.id.stream == *stream
                    && branch.id.place >= *place
                    && (branch.after + 1..=branch.version).contains(&change.version)
            };
            if !said.values().any(covers) {
                return Err(format!(
                    "T4: in no stream and in no branch: {entry:?} of {}",
                    stream.0
                ));
            }
        }
    }
    Ok(())
}

fn number(value: &[u8]) -> u64 {
    value.try_into().map_or(0, u64::from_le_bytes)
}

/// What a stream says there, though no region may have it in memory any more.
fn entry_of<'a>(history: &'a History, stream: &Stream, number: u64) -> Option<&'a StreamEntry> {
    let place = Place::new(stream.epoch_at(number)?, number);
    history.entries.get(&(stream.id(), place))
}

/// T1, of the streams as they are in the end.
fn lines(tablet: &Tablet, history: &History) -> Result<Lines, String> {
    let mut lines = Lines::new();
    for stream in tablet.streams() {
        for number in 1..=stream.tail().number {
            let entry = entry_of(history, stream, number)
                .ok_or(format!("nobody ever held {number} of stream {}", stream.id().0))?;
            for change in entry.body.changes() {
                let line = lines.entry(change.key.clone()).or_default();
                let version = Version { stream: stream.id(), entry: entry.clone(), value: None };
                if let Some(other) = line.insert(change.version, version) {
                    let (a, b) = (entry, &other.entry);
                    return Err(format!("T1: two entries for one version: {a:?} and {b:?}"));
                }
            }
        }
    }
    for (key, line) in &mut lines {
        let mut before: Option<(u64, Option<StreamId>)> = None;
        let mut value = None;
        for (number_of, version) in line.iter_mut() {
            let Some(change) = version.entry.body.change_of(key) else { continue };
            let (last, home) = before.unwrap_or((0, None));
            let home_now = home.unwrap_or(tablet.form().home);
            let follows = match home {
                Some(_) => change.after == last && *number_of == last + 1,
                None => change.after == 0 && *number_of > last,
            };
            if !follows || version.stream != home_now {
                let (entry, now) = (&version.entry, home_now.0);
                return Err(format!(
                    "T1: {entry:?} in stream {} does not follow on version {last}, at home in {now}",
                    version.stream.0
                ));
            }
            match &change.kind {
                ChangeKind::Put(bytes) => value = Some(number(bytes)),
                ChangeKind::Delete | ChangeKind::Forget => value = None,
                ChangeKind::Move => {}
            }
            version.value = value;
            let forgets = change.kind == ChangeKind::Forget;
            before = Some((*number_of, (!forgets).then_some(change.home)));
        }
    }
    Ok(lines)
}

/// T4, and that an answer says what its entry does: whatever anybody was told is still there.
fn is_kept(
    tablet: &Tablet,
    lines: &Lines,
    history: &History,
    mode: Mode,
    told: &Told,
) -> Result<(), String> {
    let may_be_lost = |stream: StreamId, place: Place| {
        let behind = history.faults.lost_behind.get(&stream);
        mode == Mode::Timeline && behind.is_some_and(|behind| place.number > *behind)
    };
    let held = |stream: StreamId, place: Place| tablet.stream(stream).holds(place);
    let key = &told.request.key;
    match &told.answer {
        Some(Answer::Done { outcome, stream, place }) => {
            if !held(*stream, *place) {
                return match may_be_lost(*stream, *place) {
                    true => Ok(()),
                    false => Err(format!("T4: acknowledged and lost: {told:?}")),
                };
            }
            let Some(asked) = told.request.asked() else {
                return Err(format!("a read was answered as a write: {told:?}"));
            };
            let entry = entry_of(history, tablet.stream(*stream), place.number);
            let own = entry.and_then(|entry| entry.asked);
            let same =
                own.is_some_and(|o| (o.session, o.sequence) == (asked.session, asked.sequence));
            let says = entry.and_then(|entry| Outcome::of(&entry.body));
            if says.as_ref() != Some(outcome) || (!same && place.number > 0) {
                return Err(format!("an answer that is not its entry's: {told:?}, {entry:?}"));
            }
            Ok(())
        }
        Some(Answer::Value { found: Some((version, value)), seen }) => {
            let lost = seen.places().any(|(s, p)| may_be_lost(s, p) && !held(s, p));
            let line = lines.get(key).and_then(|line| line.get(version));
            let same = line.is_some_and(|v| v.value == Some(number(value)));
            match same || lost {
                true => Ok(()),
                false => Err(format!("T1: a version was read with another value: {told:?}")),
            }
        }
        _ => Ok(()),
    }
}

/// T2: what a session reads is never older than what it has seen, of each record.
fn sessions(lines: &Lines, history: &History) -> Result<(), String> {
    let mut seen: BTreeMap<(usize, &Key), u64> = BTreeMap::new();
    for told in &history.told {
        for (key, version) in told.written() {
            let last = seen.entry((told.client, key)).or_default();
            *last = version.max(*last);
        }
        let key = &told.request.key;
        let least = seen.get(&(told.client, key)).copied().unwrap_or(0);
        let (now, checked) = match (&told.request.op, &told.answer) {
            (_, Some(Answer::Branched)) => {
                seen.retain(|(client, _), _| *client != told.client);
                continue;
            }
            (Op::Read(level), Some(Answer::Value { found, .. })) => {
                let checked = match level {
                    Level::Session(_) => least,
                    // One that was lost with its log comes from nowhere.
                    Level::Critical(version) if history.faults.lost_behind.is_empty() => *version,
                    _ => 0,
                };
                (found.as_ref().map(|(version, _)| *version), checked)
            }
            _ => continue,
        };
        let gone = || {
            let line = lines.get(key)?;
            let mut later = line.range(checked..);
            later.find(|(_, version)| version.value.is_none()).map(|(number, _)| *number)
        };
        let now = match now {
            Some(version) => version,
            // Absent: by the first deletion behind what was seen.
            None if checked == 0 => 0,
            // By one that was lost with its log.
            None if !history.faults.lost_behind.is_empty() => least,
            None => gone().ok_or(format!("T2: what was seen is absent: {told:?}"))?,
        };
        if now < checked {
            return Err(format!("T2: older than version {checked}: {told:?}"));
        }
        seen.insert((told.client, key), now.max(least));
    }
    Ok(())
}

/// Read-latest shows at least every version that was acknowledged before it began.
fn newest(history: &History) -> Result<(), String> {
    for read in &history.told {
        let Op::Read(Level::Latest | Level::Strong) = &read.request.op else { continue };
        let Some(Answer::Value { found: Some((version, _)), .. }) = &read.answer else { continue };
        for told in &history.told {
            let Some(Answer::Done { stream, .. }) = told.answer else { continue };
            let of_key = |(key, _): &(&Key, u64)| **key == read.request.key;
            let Some((_, written)) = told.written().into_iter().find(of_key) else { continue };
            let before = told.ends_us.is_some_and(|ends| ends < read.begins_us);
            let lossy = history.faults.lost_behind.contains_key(&stream);
            if before && !lossy && written > *version {
                return Err(format!("the newest is older than {told:?}: {read:?}"));
            }
        }
    }
    Ok(())
}

/// T3, record by record.
fn linear(lines: &Lines, history: &History) -> Result<(), String> {
    let mut calls: BTreeMap<&Key, Vec<Operation>> = BTreeMap::new();
    for told in &history.told {
        for (at, key) in told.keys().into_iter().enumerate() {
            let line = lines.get(key);
            let value_of = |version: u64| line.and_then(|l| l.get(&version)).and_then(|v| v.value);
            let call = match &told.request.op {
                Op::Group { writes, .. } => groups::call(told, at, &writes[at], &value_of, line),
                _ => call(told, &value_of, line),
            };
            let Some(call) = call else { continue };
            let operation = Operation { call, begins: told.begins_us, ends: told.ends_us };
            calls.entry(key).or_default().push(operation);
        }
    }
    for (key, operations) in calls {
        if !is_linearizable(&operations) {
            let key = String::from_utf8_lossy(key);
            let shortest = shortest(operations);
            return Err(format!("T3: `{key}` is not linearizable: {shortest:?}"));
        }
    }
    Ok(())
}

/// As much of a history as is needed to see that it is not linearizable: what ended later is left
/// out, and whoever reads it looks at the end.
fn shortest(mut operations: Vec<Operation>) -> Vec<Operation> {
    operations.sort_by_key(|o| o.ends.unwrap_or(u64::MAX));
    let wrong = |n: &usize| {
        let at = operations[n - 1].ends.unwrap_or(u64::MAX);
        let until: Vec<Operation> = operations.iter().filter(|o| o.begins <= at).copied().collect();
        let cut = |o: Operation| Operation { ends: o.ends.filter(|ends| *ends <= at), ..o };
        !is_linearizable(&until.into_iter().map(cut).collect::<Vec<_>>())
    };
    let count = (1..=operations.len()).find(wrong).unwrap_or(operations.len());
    operations.truncate(count);
    operations
}

fn call(
    told: &Told,
    value_of: &dyn Fn(u64) -> Option<u64>,
    line: Option<&BTreeMap<u64, Version>>,
) -> Option<Call> {
    match (&told.request.op, &told.answer) {
        (Op::Read(Level::Strong | Level::Latest), Some(Answer::Value { found, .. })) => {
            Some(Call::Read(found.as_ref().map(|(_, value)| number(value))))
        }
        (Op::Read(_) | Op::Group { .. } | Op::Resolve { .. }, _) => None,
        (Op::Write { .. }, Some(Answer::Done { outcome: Outcome::Refused(refusal), .. })) => {
            Some(Call::Refused(match refusal {
                Refusal::Found(version) => value_of(*version),
                _ => None,
            }))
        }
        (Op::Write { asked, value, expect }, answer) => {
            if !matches!(answer, Some(Answer::Done { .. })) {
                // Whether it has happened, the line says.
                line?.values().find(|version| version.is_of(*asked))?;
            }
            let value = value.as_ref().map(|value| number(value));
            Some(match (expect, value) {
                (Expect::Absent, value) => Call::Swap(None, value),
                (Expect::Version(version), value) => Call::Swap(value_of(*version), value),
                (Expect::Any, None) => Call::Delete,
                (Expect::Any, value) => Call::Put(value),
            })
        }
    }
}
