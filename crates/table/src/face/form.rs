//! What requests to tables may be, and what their answers look like. Pure.

use crate::entry::Refusal;
use crate::ids::{Epoch, Place, StreamId};
use crate::message::{Answer, Expect};
use crate::sessions::Outcome;
use crate::token::Token;
use holdfast_base::{Error, Result};
use holdfast_wire::table::{
    self as msg, ANSWER_BYTES_MAX, KEY_BYTES_MAX, SEEN_MAX, Seen, VALUE_BYTES_MAX,
};
use std::collections::BTreeSet;

/// On what a write insists.
pub fn expected(expect: msg::Expect) -> Expect {
    match expect {
        msg::Expect::Any => Expect::Any,
        msg::Expect::Absent => Expect::Absent,
        msg::Expect::Version { version } => Expect::Version(version),
    }
}

/// A repetition gets the first answer, which is none to what was asked now.
fn numbered_twice() -> Error {
    Error::invalid(
        "its session and number are those of another request before it: give each write of a session a number of its own",
    )
}

/// What came of a write to this tablet, and where it was decided.
pub fn written(answer: Answer, tablet: u16) -> Result<(msg::Written, Seen)> {
    let Answer::Done { outcome, stream, place } = answer else {
        return Err(Error::bug(format!("a write was answered {answer:?}")));
    };
    let written = match outcome {
        Outcome::Written(version) => msg::Written::Version { version },
        Outcome::Refused(Refusal::Found(version)) => msg::Written::Found { version },
        Outcome::Refused(Refusal::Absent) => msg::Written::Absent,
        _ => return Err(numbered_twice()),
    };
    Ok((written, seen_at(tablet, stream, place)))
}

/// A place in one of a tablet's streams.
pub fn seen_at(tablet: u16, stream: StreamId, place: Place) -> Seen {
    let (epoch, number) = (place.epoch.0, place.number);
    Seen { tablet, stream: stream.0, epoch, number }
}

/// What came of a group of these rows in this tablet, and where it was decided.
pub fn group_written(
    answer: Answer,
    tablet: u16,
    rows: &[(msg::Expect, bool)],
) -> Result<(msg::GroupWritten, Seen)> {
    let Answer::Done { outcome, stream, place } = answer else {
        return Err(Error::bug(format!("a group was answered {answer:?}")));
    };
    let written = match outcome {
        Outcome::Group(versions) => {
            let mut written = versions.iter();
            let version = |(expect, writes): &(msg::Expect, bool)| match (writes, expect) {
                (true, _) => written.next().copied(),
                (false, msg::Expect::Version { version }) => Some(*version),
                (false, _) => Some(0),
            };
            let versions: Option<Vec<u64>> = rows.iter().map(version).collect();
            let versions = versions.ok_or_else(numbered_twice)?;
            msg::GroupWritten::Versions { versions }
        }
        Outcome::Refused(Refusal::OfGroup { at, found: Some(version) }) => {
            msg::GroupWritten::Found { at, version }
        }
        Outcome::Refused(Refusal::OfGroup { at, found: None }) => msg::GroupWritten::Absent { at },
        Outcome::Refused(Refusal::Apart { at }) => msg::GroupWritten::OtherHome { at },
        _ => return Err(numbered_twice()),
    };
    Ok((written, seen_at(tablet, stream, place)))
}

/// What a read has found, and seen.
pub fn found(answer: Answer) -> Result<(Option<msg::Record>, Token)> {
    match answer {
        Answer::Value { found, seen } => {
            let record = |(version, value): (u64, crate::ids::Value)| msg::Record {
                version,
                value: value.to_vec(),
            };
            Ok((found.map(record), seen))
        }
        Answer::Branched => Err(Error::fenced(
            "what this session has seen was lost with a region's log: begin another session",
        )),
        other => Err(Error::bug(format!("a read was answered {other:?}"))),
    }
}

/// A home that does not show the version which was asked for does not have it.
pub fn check_level(
    found: (Option<msg::Record>, Token),
    level: msg::Level,
) -> Result<(Option<msg::Record>, Token)> {
    match (&found.0, level) {
        (Some(record), msg::Level::Critical { version }) if record.version < version => {
            Err(Error::invalid(format!(
                "version {version} was asked for, and the record's home has version {}: ask for what \
                 there is",
                record.version
            )))
        }
        _ => Ok(found),
    }
}

/// Whether there is room for one record more in an answer that has so many bytes, which it adds.
pub fn fits(bytes: &mut usize, record: Option<&msg::Record>) -> bool {
    *bytes += record.map_or(0, |record| record.value.len());
    *bytes <= ANSWER_BYTES_MAX
}

/// What a client has seen of one tablet.
pub fn token_of(seen: &[Seen], tablet: u16) -> Token {
    let mut token = Token::default();
    for seen in seen.iter().filter(|seen| seen.tablet == tablet) {
        token.see(StreamId(seen.stream), Place::new(Epoch(seen.epoch), seen.number));
    }
    token
}

pub fn check_seen(seen: &[Seen]) -> Result<()> {
    match seen.len() <= SEEN_MAX {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "a session of {} places: let some go, down to {SEEN_MAX}",
            seen.len()
        ))),
    }
}

fn check_key(key: &[u8]) -> Result<()> {
    match key.len() {
        0 => Err(Error::invalid("a key is empty: give it one byte or more")),
        1..=KEY_BYTES_MAX => Ok(()),
        bytes => {
            Err(Error::invalid(format!("a key has {bytes} bytes: give it up to {KEY_BYTES_MAX}")))
        }
    }
}

pub fn check_keys(keys: &[Vec<u8>]) -> Result<()> {
    if keys.is_empty() || keys.len() > msg::READ_KEYS_MAX {
        let most = msg::READ_KEYS_MAX;
        return Err(Error::invalid(format!("{} keys: ask for 1 to {most} at once", keys.len())));
    }
    keys.iter().try_for_each(|key| check_key(key))
}

/// What a group of rows may be.
pub fn check_group(rows: &[msg::GroupRow]) -> Result<()> {
    if rows.is_empty() || rows.len() > msg::GROUP_WRITES_MAX {
        let most = msg::GROUP_WRITES_MAX;
        return Err(Error::invalid(format!(
            "{} records in a group: let 1 to {most} stand or fall together",
            rows.len()
        )));
    }
    let mut keys = BTreeSet::new();
    for (at, row) in rows.iter().enumerate() {
        check_key(&row.key)?;
        check_value(value_bytes(row).unwrap_or(0))?;
        if !keys.insert(&row.key) {
            return Err(Error::invalid(format!(
                "record {at} of the group, from 0, has a key that one in front of it has: say at once what is to \
                 become of it"
            )));
        }
        if (&row.what, row.expect) == (&msg::GroupDo::Check, msg::Expect::Any) {
            return Err(Error::invalid(format!(
                "record {at} of the group, from 0, is to be looked at, and anything is right: say what it is to be, \
                 or leave it out"
            )));
        }
    }
    let sizes = rows.iter().map(|row| (row.key.len(), value_bytes(row).unwrap_or(0)));
    match msg::group_bytes(sizes) {
        Some(_) => Ok(()),
        None => Err(Error::invalid(format!(
            "the group's keys and values are together more than {} bytes, with {} for each record: write less at once",
            msg::GROUP_BYTES_MAX,
            msg::GROUP_WRITE_BYTES
        ))),
    }
}

/// Of what a row of a group puts.
pub fn value_bytes(row: &msg::GroupRow) -> Option<usize> {
    match &row.what {
        msg::GroupDo::Put(value) => Some(value.len()),
        msg::GroupDo::Delete | msg::GroupDo::Check => None,
    }
}

fn check_value(bytes: usize) -> Result<()> {
    match bytes <= VALUE_BYTES_MAX {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "a value has {bytes} bytes: give it up to {VALUE_BYTES_MAX}, and put what is larger into a file or an object"
        ))),
    }
}

pub fn check_rows(rows: &[msg::Row]) -> Result<()> {
    if rows.is_empty() || rows.len() > msg::WRITES_MAX {
        let most = msg::WRITES_MAX;
        return Err(Error::invalid(format!("{} writes: send 1 to {most} at once", rows.len())));
    }
    for row in rows {
        check_key(&row.key)?;
        check_value(row.value.as_ref().map_or(0, Vec::len))?;
        if row.sequence == 0 {
            return Err(Error::invalid("a write has number 0: number a session's writes from 1"));
        }
    }
    let bytes: usize =
        rows.iter().filter_map(|row| Some(row.key.len() + row.value.as_ref()?.len())).sum();
    match bytes <= msg::WRITE_BYTES_MAX {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "{bytes} bytes at once: send up to {}",
            msg::WRITE_BYTES_MAX
        ))),
    }
}
