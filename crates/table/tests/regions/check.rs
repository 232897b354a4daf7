//! What must be true once all is quiet: every record has one line of versions, the same in all regions' logs
//! (T1, T5), nobody was told what is not in it (T4), nothing that was read is older than what was asked for
//! (T2), and strong records are linearizable (T3). Of a timeline table whose log was erased, what no other
//! region held may be gone.

use crate::Plan;
use crate::faults::Erasure;
use crate::people::{Answer, Op, Told, number};
use crate::world::{Entries, TABLE, World};
use holdfast_env::HoldMutex;
use holdfast_table::entry::{ChangeKind, StreamEntry};
use holdfast_table::ids::{Place, StreamId};
use holdfast_table::name::TableName;
use holdfast_table::sim::linear::{Call, Operation, is_linearizable};
use holdfast_table::tablet::Tablet;
use holdfast_table::tablet::branch::Branch;
use holdfast_wire::table::{Expect, Level, TableMode, Written};
use std::collections::BTreeMap;

/// What of a connection that broke may come later than this is gone.
const LATE_NS: u64 = 10_000_000_000;

/// One version of a record.
#[derive(Clone, Debug)]
struct Version {
    stream: StreamId,
    entry: StreamEntry,
    after: u64,
    value: Option<u64>,
}

type Line = BTreeMap<u64, Version>;

struct Judge<'a> {
    plan: Plan,
    lines: BTreeMap<Vec<u8>, Line>,
    branches: Vec<Branch>,
    erasures: &'a [Erasure],
    told: &'a [Told],
}

/// Says what is broken; `shown` is what the regions show, all the same.
pub fn all(
    world: &World,
    told: &[Told],
    erasures: &[Erasure],
    shown: &[(Vec<u8>, u64, u64)],
) -> Result<(), String> {
    let copies: Vec<Vec<Tablet>> = world.cells.iter().map(|cell| cell.tablets()).collect();
    let plan = world.shared.plan;
    if copies[0].len() != usize::from(plan.tablets) {
        return Err("T5: tablets are missing".to_owned());
    }
    for (region, tablets) in copies.iter().enumerate() {
        equal(region, tablets, &copies[0])?;
    }
    let mut lines = BTreeMap::new();
    let known = world.shared.entries.held();
    for (number, tablet) in copies[0].iter().enumerate() {
        let topic = TableName::new(TABLE).unwrap().topic(number as u16);
        line_up(tablet, (&topic, &known), &mut lines)?;
    }
    let last = |(key, line): (&Vec<u8>, &Line)| {
        let (version, last) = line.last_key_value()?;
        Some((key.clone(), *version, last.value?))
    };
    let wanted: Vec<_> = lines.iter().filter_map(last).collect();
    if wanted != shown {
        return Err(format!("T5: regions show {shown:?}, and their logs say {wanted:?}"));
    }
    let branches = copies[0].iter().flat_map(|tablet| tablet.branches().said().values().cloned());
    let judge = Judge { plan, lines, branches: branches.collect(), erasures, told };
    for told in told {
        judge.told(told)?;
    }
    match plan.mode {
        TableMode::Strong => judge.linear(),
        // Whoever was sealed off answers by itself until it hears of that.
        TableMode::Timeline if plan.seals => Ok(()),
        TableMode::Timeline => judge.newest(),
    }
}

fn equal(region: usize, tablets: &[Tablet], first: &[Tablet]) -> Result<(), String> {
    if tablets.len() != first.len() {
        return Err(format!("T5: region {region} has {} tablets", tablets.len()));
    }
    for (one, other) in tablets.iter().zip(first) {
        for id in one.form().streams() {
            let of = |tablet: &Tablet| (tablet.stream(id).tail(), tablet.stream(id).epochs());
            if of(one) != of(other) {
                return Err(format!("T5: region {region} holds another stream {}", id.0));
            }
        }
        if one.branches() != other.branches() {
            return Err(format!("T5: region {region} has other branches"));
        }
    }
    Ok(())
}

/// T1, of the streams as they are in the end.
fn line_up(
    tablet: &Tablet,
    (topic, known): (&str, &Entries),
    lines: &mut BTreeMap<Vec<u8>, Line>,
) -> Result<(), String> {
    let mut own = BTreeMap::<Vec<u8>, Line>::new();
    for id in tablet.form().streams() {
        let stream = tablet.stream(id);
        for number in 1..=stream.tail().number {
            let place = Place::new(stream.epoch_at(number).unwrap_or_default(), number);
            let entry = known
                .get(&(topic.to_owned(), id, place))
                .ok_or(format!("nobody ever held {place} of stream {}", id.0))?;
            for change in entry.body.changes() {
                let (stream, after) = (id, change.after);
                let version = Version { stream, entry: entry.clone(), after, value: None };
                let line = own.entry(change.key.clone()).or_default();
                if let Some(other) = line.insert(change.version, version) {
                    let (a, b) = (entry, &other.entry);
                    return Err(format!("T1: two entries for one version: {a:?} and {b:?}"));
                }
            }
        }
    }
    for (key, line) in &mut own {
        let (mut last, mut home, mut value) = (0, None, None);
        for (version, one) in line.iter_mut() {
            let Some(change) = one.entry.body.change_of(key) else { continue };
            let follows = match home {
                Some(_) => change.after == last && *version == last + 1,
                None => change.after == 0 && *version > last,
            };
            if !follows || one.stream != home.unwrap_or(tablet.form().home) {
                return Err(format!("T1: {one:?} does not follow on {last}, at home in {home:?}"));
            }
            match &change.kind {
                ChangeKind::Put(bytes) => value = Some(number(bytes)),
                ChangeKind::Delete | ChangeKind::Forget => value = None,
                ChangeKind::Move => {}
            }
            one.value = value;
            last = *version;
            home = (change.kind != ChangeKind::Forget).then_some(change.home);
        }
    }
    lines.append(&mut own);
    Ok(())
}

impl Judge<'_> {
    fn version(&self, key: &[u8], version: u64) -> Option<&Version> {
        self.lines.get(key)?.get(&version)
    }

    /// Whether this version is in a branch: its region was sealed off with it.
    fn is_in_branch(&self, key: &[u8], version: u64) -> bool {
        let has = |branch: &Branch| (branch.after + 1..=branch.version).contains(&version);
        self.branches.iter().any(|branch| branch.id.key == key && has(branch))
    }

    /// Whether this version may have gone with a log, for somebody who asked for it then; or is in a branch.
    fn may_be_lost(&self, key: &[u8], version: u64, begins_ns: u64) -> bool {
        if self.is_in_branch(key, version) {
            return true;
        }
        let lost = |e: &Erasure| version > e.held(key) && begins_ns <= e.at_ns + LATE_NS;
        self.plan.mode == TableMode::Timeline && self.erasures.iter().any(lost)
    }

    fn told(&self, told: &Told) -> Result<(), String> {
        let lost = |version| self.may_be_lost(&told.key, version, told.begins_ns);
        match &told.answer {
            Some(Answer::Written(Written::Version { version })) => {
                match self.is_kept(told, *version) {
                    true => Ok(()),
                    false if lost(*version) => Ok(()),
                    false => Err(format!(
                        "T4: acknowledged and lost: {told:?}; there is {:?}",
                        self.version(&told.key, *version)
                    )),
                }
            }
            Some(Answer::Written(Written::Found { version })) => {
                match self.version(&told.key, *version).is_some() || lost(*version) {
                    true => Ok(()),
                    false => Err(format!("T1: refused for a version that there is not: {told:?}")),
                }
            }
            Some(Answer::Found(Some((version, value)))) => {
                let there = self.version(&told.key, *version);
                if there.is_none_or(|there| there.value != Some(*value)) && !lost(*version) {
                    return Err(format!(
                        "T1: read with another value: {told:?}; there is {there:?}"
                    ));
                }
                self.is_new_enough(told, Some(*version))
            }
            Some(Answer::Found(None)) => self.is_new_enough(told, None),
            _ => Ok(()),
        }
    }

    /// Whether the version is this very write, and followed on what it insisted on.
    fn is_kept(&self, told: &Told, version: u64) -> bool {
        let Op::Write { value, expect } = &told.op else { return false };
        let Some(there) = self.version(&told.key, version) else { return false };
        let own = there.entry.asked.map(|asked| (asked.session, asked.sequence));
        let before = self.version(&told.key, there.after).filter(|_| there.after > 0);
        let fits = match expect {
            Expect::Any => true,
            Expect::Absent => before.is_none_or(|before| before.value.is_none()),
            Expect::Version { version } => there.after == *version,
        };
        own == Some((told.session, told.sequence)) && there.value == *value && fits
    }

    /// Whether nothing was found because of a deletion that went with a log afterwards: no line has it.
    fn deletion_may_be_lost(&self, found: Option<u64>, begins_ns: u64) -> bool {
        let timeline = self.plan.mode == TableMode::Timeline;
        if self.plan.seals && found.is_none() {
            return true;
        }
        timeline && found.is_none() && self.erasures.iter().any(|e| e.at_ns >= begins_ns)
    }

    /// T2: a critical read shows what its client has seen, or that it was deleted since.
    fn is_new_enough(&self, told: &Told, found: Option<u64>) -> Result<(), String> {
        let Op::Read(Level::Critical { version }) = &told.op else { return Ok(()) };
        match self.shows(&told.key, found, *version)
            || self.may_be_lost(&told.key, *version, told.begins_ns)
            || self.deletion_may_be_lost(found, told.begins_ns)
        {
            true => Ok(()),
            false => Err(format!("T2: older than what was asked for: {told:?}")),
        }
    }

    /// Whether who shows this shows nothing older than a version.
    fn shows(&self, key: &[u8], found: Option<u64>, least: u64) -> bool {
        let gone = || {
            let line = self.lines.get(key);
            line.is_some_and(|line| line.range(least..).any(|(_, one)| one.value.is_none()))
        };
        found.map_or_else(gone, |found| found >= least)
    }

    /// The newest of a timeline table is no older than what was acknowledged before somebody asked for it.
    fn newest(&self) -> Result<(), String> {
        let newest = |told: &&Told| matches!(told.op, Op::Read(Level::Latest | Level::Strong));
        for read in self.told.iter().filter(newest) {
            let Some(Answer::Found(found)) = &read.answer else { continue };
            for write in self.told.iter().filter(|write| write.key == read.key) {
                let Some(Answer::Written(Written::Version { version })) = write.answer else {
                    continue;
                };
                if write.ends_ns.is_none_or(|ends| ends >= read.begins_ns) {
                    continue;
                }
                // A home that lost its log shows again what others had followed once the streams that it waits
                // for are there, too.
                let between = |e: &Erasure| e.at_ns >= write.begins_ns && e.at_ns <= read.begins_ns;
                let lost = self.may_be_lost(&read.key, version, write.begins_ns)
                    || self.erasures.iter().any(between)
                    || self.deletion_may_be_lost(found.map(|(version, _)| version), read.begins_ns);
                if !lost && !self.shows(&read.key, found.map(|(version, _)| version), version) {
                    return Err(format!("the newest is older than {write:?}: {read:?}"));
                }
            }
        }
        Ok(())
    }

    /// T3, record by record.
    fn linear(&self) -> Result<(), String> {
        let mut calls = BTreeMap::<&Vec<u8>, Vec<Operation>>::new();
        for told in self.told {
            let Some(call) = self.call(told) else { continue };
            let operation = Operation { call, begins: told.begins_ns, ends: told.ends_ns };
            calls.entry(&told.key).or_default().push(operation);
        }
        for (key, mut operations) in calls {
            if !is_linearizable(&operations) {
                operations.sort_by_key(|o| o.ends.unwrap_or(u64::MAX));
                let key = String::from_utf8_lossy(key);
                return Err(format!("T3: `{key}` is not linearizable: {:?}", shortest(operations)));
            }
        }
        Ok(())
    }

    fn call(&self, told: &Told) -> Option<Call> {
        let value_of = |version| self.version(&told.key, version).and_then(|one| one.value);
        match (&told.op, &told.answer) {
            (Op::Read(Level::Latest | Level::Strong), Some(Answer::Found(found))) => {
                Some(Call::Read(found.map(|(_, value)| value)))
            }
            (Op::Read(_), _) => None,
            (_, Some(Answer::Written(Written::Found { version }))) => {
                Some(Call::Refused(value_of(*version)))
            }
            (_, Some(Answer::Written(Written::Absent))) => Some(Call::Refused(None)),
            (Op::Write { value, expect }, answer) => {
                if answer.is_none() {
                    // Whether it has happened, its line says.
                    let asked = (told.session, told.sequence);
                    let own = |one: &Version| {
                        one.entry.asked.is_some_and(|own| (own.session, own.sequence) == asked)
                    };
                    self.lines.get(&told.key)?.values().find(|one| own(one))?;
                }
                Some(match (expect, *value) {
                    (Expect::Absent, value) => Call::Swap(None, value),
                    (Expect::Version { version }, value) => Call::Swap(value_of(*version), value),
                    (Expect::Any, None) => Call::Delete,
                    (Expect::Any, value) => Call::Put(value),
                })
            }
        }
    }
}

/// As much of a history, in order of ends, as is needed to see that it is not linearizable.
fn shortest(mut operations: Vec<Operation>) -> Vec<Operation> {
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
