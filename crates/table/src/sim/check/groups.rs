//! Of writes that stand or fall together: nobody sees a half of one, and each of its records is linearizable as a
//! single write's is.

use super::super::histories::{History, Told};
use super::super::linear::Call;
use super::{Version, number};
use crate::entry::Refusal;
use crate::ids::{Key, Place, StreamId};
use crate::message::{Answer, Expect, GroupDo, GroupWrite, Level, Op};
use crate::sessions::Outcome;
use crate::tablet::Tablet;
use std::collections::BTreeMap;

/// Whoever has read one record of a group as the group has left it, or later, reads the others so from then on: by a
/// read that shows the newest, whoever reads; or by his session, which has seen the one.
pub fn are_whole(history: &History) -> Result<(), String> {
    if !history.faults.lost_behind.is_empty() {
        return Ok(());
    }
    for group in &history.told {
        let written = group.written();
        if written.len() < 2 {
            continue;
        }
        let reads: Vec<(&Told, u64, u64)> =
            history.told.iter().filter_map(|told| read_of(told, &written)).collect();
        let first = |told: &Told| reads.iter().find(|(read, ..)| std::ptr::eq(*read, told));
        for told in &history.told {
            let Some((read, version, is_of_group)) = first(told) else { continue };
            if version >= is_of_group {
                continue;
            }
            let before = |(other, seen, of_group): &&(&Told, u64, u64)| {
                let ended = other.ends_us.is_some_and(|ends| ends < read.begins_us);
                let knows = match &read.request.op {
                    Op::Read(Level::Strong | Level::Latest) => is_newest(other),
                    Op::Read(Level::Session(_)) => other.client == read.client,
                    _ => false,
                };
                ended && knows && seen >= of_group && other.request.key != read.request.key
            };
            if let Some((other, ..)) = reads.iter().find(before) {
                return Err(format!("T6: half of a group: {group:?}, {other:?}, then {read:?}"));
            }
        }
    }
    Ok(())
}

fn is_newest(read: &Told) -> bool {
    matches!(read.request.op, Op::Read(Level::Strong | Level::Latest))
}

/// A read of one of these records that has found something: the version, and that of the group.
fn read_of<'a>(told: &'a Told, written: &[(&Key, u64)]) -> Option<(&'a Told, u64, u64)> {
    let (_, of_group) = written.iter().find(|(key, _)| **key == told.request.key)?;
    match (&told.request.op, &told.answer) {
        (Op::Read(_), Some(Answer::Value { found: Some((version, _)), .. })) => {
            Some((told, *version, *of_group))
        }
        _ => None,
    }
}

/// Whether what a region shows has a half of a group that it holds.
pub fn half_shown(tablet: &Tablet, history: &History) -> Option<String> {
    for ((stream, place), entry) in &history.groups {
        if !tablet.stream(*stream).holds(*place) {
            continue;
        }
        // A record that is not there may be forgotten, or not there yet.
        let shows = entry.iter().filter_map(|(key, version)| {
            let record = tablet.record(key)?;
            Some(record.version >= *version)
        });
        let shows: Vec<bool> = shows.collect();
        if shows.contains(&true) && shows.contains(&false) {
            return Some(format!(
                "T6: half of a group shows: {entry:?} at {place} of {}",
                stream.0
            ));
        }
    }
    None
}

/// Versions of records that one entry has brought.
pub type Groups = BTreeMap<(StreamId, Place), Vec<(Key, u64)>>;

/// What a group was to one of its records.
pub(super) fn call(
    told: &Told,
    at: usize,
    write: &GroupWrite,
    value_of: &dyn Fn(u64) -> Option<u64>,
    line: Option<&BTreeMap<u64, Version>>,
) -> Option<Call> {
    let asked = told.request.asked()?;
    match &told.answer {
        Some(Answer::Done { outcome: Outcome::Group(_), .. }) => {}
        Some(Answer::Done { outcome: Outcome::Refused(refusal), .. }) => match refusal {
            Refusal::OfGroup { at: wrong, found } if usize::from(*wrong) == at => {
                return Some(Call::Refused(found.and_then(value_of)));
            }
            // Nothing is said of this one; those in front of the wrong one were as expected.
            _ => return None,
        },
        // Whether it has happened, the line says.
        _ => drop(line?.values().find(|version| version.is_of(asked))?),
    }
    let expected = match write.expect {
        Expect::Any => None,
        Expect::Absent => Some(None),
        Expect::Version(version) => Some(value_of(version)),
    };
    Some(match (&write.what, expected) {
        (GroupDo::Put(value), None) => Call::Put(Some(number(value))),
        (GroupDo::Put(value), Some(before)) => Call::Swap(before, Some(number(value))),
        (GroupDo::Delete, None) => Call::Delete,
        (GroupDo::Delete, Some(before)) => Call::Swap(before, None),
        (GroupDo::Check, expected) => Call::Read(expected?),
    })
}
