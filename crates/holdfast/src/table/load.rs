//! `holdfast table load`: records from lines of JSON, as `holdfast --json table scan` prints them.

use holdfast_base::text::from_hex;
use holdfast_base::{Error, Result};
use holdfast_client::{Client, TableWrite};
use holdfast_command::output::Output;
use holdfast_wire::table::{Expect, KEY_BYTES_MAX, VALUE_BYTES_MAX, WRITES_MAX, Written};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

/// A line of a file: what a scan prints has fewer, also where each byte of a record is escaped.
const LINE_BYTES_MAX: usize = 8 << 20;
const _: () = assert!(6 * (KEY_BYTES_MAX + VALUE_BYTES_MAX) < LINE_BYTES_MAX);
/// Of one request: its answer says that all of it is durable.
const REQUEST_BYTES: usize = 1 << 20;

/// Bytes, as text where they are that.
#[derive(Deserialize)]
#[serde(untagged)]
enum Bytes {
    Text(String),
    Shown(Shown),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Shown {
    text: Option<String>,
    hex: Option<String>,
}

/// One line: a scan's, or one with `value`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    key: Bytes,
    value: Option<Bytes>,
    text: Option<String>,
    hex: Option<String>,
    /// A record gets a version of its own.
    #[serde(rename = "version")]
    _version: Option<IgnoredAny>,
}

const SHAPE: &str =
    "a line is {\"key\": .., \"value\": ..}, or what `holdfast --json table scan` prints";

fn shown(text: Option<String>, hex: Option<String>) -> Result<Vec<u8>, &'static str> {
    match (text, hex) {
        (Some(text), None) => Ok(text.into_bytes()),
        (None, Some(hex)) => from_hex(&hex).ok_or("`hex` is not of pairs of hexadecimal digits"),
        _ => Err("say one of `text` and `hex`"),
    }
}

impl Bytes {
    fn into_bytes(self) -> Result<Vec<u8>, &'static str> {
        match self {
            Bytes::Text(text) => Ok(text.into_bytes()),
            Bytes::Shown(Shown { text, hex }) => shown(text, hex),
        }
    }
}

fn record(line: &[u8], expect: Expect) -> Result<TableWrite, String> {
    let line: Line = serde_json::from_slice(line).map_err(|e| format!("{e}: {SHAPE}"))?;
    let value = match (line.value, line.text, line.hex) {
        (Some(value), None, None) => value.into_bytes()?,
        (None, None, None) => return Err(format!("it has no value: {SHAPE}")),
        (None, text, hex) => shown(text, hex)?,
        _ => return Err("it has more than one value: keep one".to_owned()),
    };
    Ok(TableWrite { key: line.key.into_bytes()?, value: Some(value), expect })
}

/// The next record and the number of its line; none at the end. Empty lines are passed over.
fn next(input: &mut dyn BufRead, number: &mut u64, expect: Expect) -> Result<Option<TableWrite>> {
    let wrong = |number: u64, why: String| {
        Error::invalid(format!(
            "line {number}: {why}; what is in front of it may be loaded already, and can be loaded again"
        ))
    };
    let mut line = Vec::new();
    loop {
        line.clear();
        Read::take(&mut *input, LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut line)?;
        *number += 1;
        match line.trim_ascii() {
            _ if line.len() > LINE_BYTES_MAX => {
                return Err(wrong(*number, format!("it has more than {LINE_BYTES_MAX} bytes")));
            }
            _ if line.is_empty() => return Ok(None),
            [] => {}
            text => return record(text, expect).map(Some).map_err(|why| wrong(*number, why)),
        }
    }
}

/// Writes all of them, a request at a time.
#[expect(clippy::disallowed_methods, reason = "a file that the user named")]
pub fn load(
    client: &mut Client,
    (table, file): (&str, &Path),
    if_absent: bool,
    out: &mut Output,
) -> Result<()> {
    let doing = |e: Error| e.context(format_args!("load `{}`", file.display()));
    let mut input: Box<dyn BufRead> = match file == Path::new("-") {
        true => Box::new(std::io::stdin().lock()),
        false => Box::new(BufReader::new(File::open(file).map_err(|e| doing(e.into()))?)),
    };
    let expect = if if_absent { Expect::Absent } else { Expect::Any };
    let mut records = client.table(table);
    let (mut number, mut loaded, mut passed_over) = (0, 0u64, 0u64);
    loop {
        let (mut some, mut bytes, mut ended) = (Vec::new(), 0, false);
        let first = number + 1;
        while some.len() < WRITES_MAX && bytes < REQUEST_BYTES {
            let Some(write) = next(&mut input, &mut number, expect).map_err(doing)? else {
                ended = true;
                break;
            };
            bytes += write.key.len() + write.value.as_ref().map_or(0, Vec::len);
            some.push(write);
        }
        let written = records.write(&some).map_err(|e| {
            let lines = format_args!("load lines {first} to {number} of `{}`", file.display());
            e.context(lines)
        })?;
        let stand = |written: &&Written| matches!(written, Written::Version { .. });
        let count = written.iter().filter(stand).count() as u64;
        loaded += count;
        passed_over += written.len() as u64 - count;
        if ended {
            break;
        }
    }
    out.line(
        || match if_absent {
            true => format!("{loaded} records loaded, {passed_over} were there"),
            false => format!("{loaded} records loaded"),
        },
        || json!({"table": table, "loaded": loaded, "were_there": passed_over}),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Result<(Vec<u8>, Vec<u8>), String> {
        record(line.as_bytes(), Expect::Any).map(|write| (write.key, write.value.unwrap()))
    }

    #[test]
    fn lines_are_those_of_a_scan_or_have_a_value() {
        let (key, value) = (b"k".to_vec(), vec![0xff, 0]);
        let both = Ok((key.clone(), value.clone()));
        assert_eq!(of(r#"{"hex":"ff00","key":{"text":"k"},"version":7}"#), both);
        assert_eq!(of(r#"{"key":"k","value":{"hex":"FF00"}}"#), both);
        assert_eq!(of(r#"{"key":{"hex":"ff00"},"value":"k"}"#), Ok((value, key)));
        assert_eq!(of(r#"{"key":{"text":""},"text":""}"#), Ok((Vec::new(), Vec::new())));
        for (wrong, why) in [
            ("{}", "missing field `key`"),
            ("[", "a line is"),
            (r#"{"key":"k"}"#, "no value"),
            (r#"{"key":"k","value":"1","text":"1"}"#, "more than one"),
            (r#"{"key":"k","text":"1","hex":"00"}"#, "one of `text` and `hex`"),
            (r#"{"key":{},"text":"1"}"#, "one of `text` and `hex`"),
            (r#"{"key":"k","hex":"0"}"#, "pairs of hexadecimal digits"),
            (r#"{"key":"k","value":"1","delete":true}"#, "delete"),
        ] {
            let e = of(wrong).unwrap_err();
            assert!(e.contains(why), "{wrong}: {e}");
        }
    }

    #[test]
    fn a_line_that_is_wrong_is_named_by_its_number() {
        let long = " ".repeat(LINE_BYTES_MAX + 1);
        for (text, line, why) in [
            ("{\"key\":\"a\",\"value\":\"\"}\n\n\r\n{", "line 4: ", "EOF"),
            ("{\"key\":\"a\",\"value\":\"\"}\r\n{\"key\":1}\n", "line 2: ", "a line is"),
            (long.as_str(), "line 1: ", "more than 8388608 bytes"),
        ] {
            let (mut input, mut number) = (text.as_bytes(), 0);
            let e = loop {
                match next(&mut input, &mut number, Expect::Any) {
                    Ok(record) => assert!(record.is_some(), "{why}"),
                    Err(e) => break e,
                }
            };
            assert!(e.message.starts_with(line) && e.message.contains(why), "{e}");
        }
    }
}
