//! What requests to tables may be, and what their answers look like. Pure.

use crate::entry::Refusal;
use crate::message::Answer;
use crate::sessions::Outcome;
use holdfast_base::{Error, Result};
use holdfast_wire::table::{self as msg, ANSWER_BYTES_MAX, KEY_BYTES_MAX, VALUE_BYTES_MAX};

pub fn written(answer: Answer) -> Result<msg::Written> {
    match answer {
        Answer::Done { outcome: Outcome::Written(version), .. } => {
            Ok(msg::Written::Version { version })
        }
        Answer::Done { outcome: Outcome::Refused(Refusal::Found(version)), .. } => {
            Ok(msg::Written::Found { version })
        }
        Answer::Done { outcome: Outcome::Refused(Refusal::Absent), .. } => Ok(msg::Written::Absent),
        other => Err(Error::bug(format!("a write was answered {other:?}"))),
    }
}

pub fn found(answer: Answer) -> Result<Option<msg::Record>> {
    match answer {
        Answer::Value { found, .. } => {
            Ok(found.map(|(version, value)| msg::Record { version, value: value.to_vec() }))
        }
        other => Err(Error::bug(format!("a read was answered {other:?}"))),
    }
}

/// A home that does not show the version which was asked for does not have it.
pub fn check_level(found: Option<msg::Record>, level: msg::Level) -> Result<Option<msg::Record>> {
    match (&found, level) {
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

/// Those from the first on that there is room for.
pub fn bounded(
    found: impl Iterator<Item = Result<Option<msg::Record>>>,
) -> Result<Vec<Option<msg::Record>>> {
    let (mut fits, mut bytes) = (Vec::new(), 0);
    for record in found {
        let record = record?;
        bytes += record.as_ref().map_or(0, |record| record.value.len());
        if bytes > ANSWER_BYTES_MAX && !fits.is_empty() {
            break;
        }
        fits.push(record);
    }
    Ok(fits)
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

pub fn check_rows(rows: &[msg::Row]) -> Result<()> {
    if rows.is_empty() || rows.len() > msg::WRITES_MAX {
        let most = msg::WRITES_MAX;
        return Err(Error::invalid(format!("{} writes: send 1 to {most} at once", rows.len())));
    }
    for row in rows {
        check_key(&row.key)?;
        let bytes = row.value.as_ref().map_or(0, Vec::len);
        if bytes > VALUE_BYTES_MAX {
            return Err(Error::invalid(format!(
                "a value has {bytes} bytes: give it up to {VALUE_BYTES_MAX}, and put what is larger into \
                 a file or an object"
            )));
        }
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
