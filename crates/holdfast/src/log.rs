//! `holdfast log`: topics and their entries, by hand. Prints an entry as its index and its bytes;
//! as JSON, bytes that are no UTF-8 appear as their hexadecimal digits.

mod doctor;
mod moving;

use crate::cli::{Limits, Log};
use crate::tail::until_answered;
use holdfast_base::Result;
use holdfast_base::ids::Index;
use holdfast_base::text::to_hex;
use holdfast_base::units::{format_bytes, format_setting};
use holdfast_client::{Client, LogClient, LogWriter};
use holdfast_command::output::Output;
use holdfast_wire::log::writers::Numbered;
use holdfast_wire::log::{Indexed, Info, Retention, Set};
use serde_json::{Value, json};
use std::io::BufRead;
use std::time::Duration;

/// Entries of one append from standard input, and their bytes: they go in one frame.
const APPEND_ENTRIES_MAX: usize = 1000;
const APPEND_BYTES_MAX: usize = 256 << 10;

/// One wait of `tail`; it goes on afterwards.
const TAIL_WAIT: Duration = Duration::from_secs(20);

/// Entries of one read.
const READ_ENTRIES_MAX: u32 = 4096;

/// Reads `7d`, in milliseconds; 0 for no limit.
pub fn age_ms(text: &str) -> std::result::Result<u64, String> {
    let wrong = || "write 0, or a number and s, m, h or d: e.g. 7d".to_owned();
    if text == "0" {
        return Ok(0);
    }
    let unit_ms = match text.chars().last() {
        Some('s') => 1000,
        Some('m') => 60_000,
        Some('h') => 3_600_000,
        Some('d') => 86_400_000,
        _ => return Err(wrong()),
    };
    let number: u64 = text[..text.len() - 1].parse().map_err(|_| wrong())?;
    number.checked_mul(unit_ms).ok_or_else(wrong)
}

/// Carries out one `log` command; `tail` ends only with the process.
pub fn run(
    connect: impl FnOnce() -> Result<Client>,
    command: &Log,
    out: &mut Output,
) -> Result<()> {
    match command {
        Log::Move { data, to } => moving::run(data, to, out),
        // Asks brokers, and a node at most where they are.
        Log::Doctor(asked) => doctor::run(asked, connect, out),
        command => run_at(&mut connect()?, command, out),
    }
}

fn run_at(client: &mut Client, command: &Log, out: &mut Output) -> Result<()> {
    let mut log = client.log();
    match command {
        Log::Append { ordered, writer, number, topic, entries } => {
            let mut append = Append::begin(&mut log, topic, *ordered, writer.as_deref(), *number)?;
            match entries.is_empty() {
                true => append_lines(&mut append, out),
                false => append.append(entries, out),
            }
        }
        Log::Read { topic, from, count, repeats } => {
            let from = match from {
                Some(from) => Index(*from),
                None => log.info(topic)?.first,
            };
            match repeats {
                true => read_all(&mut log, topic, from, *count, out),
                false => read(&mut log, topic, from, *count, out),
            }
        }
        Log::Tail { topic, from, repeats } => {
            let mut next = match from {
                Some(from) => Index(*from),
                None => log.info(topic)?.next,
            };
            if !repeats {
                let mut reader = log.reader(topic, next)?;
                loop {
                    let read = || reader.read(&mut log, READ_ENTRIES_MAX, TAIL_WAIT);
                    let entries = until_answered(read)?;
                    entries.iter().flatten().try_for_each(|entry| print(entry, false, out))?;
                }
            }
            loop {
                let entries = until_answered(|| log.tail(topic, next, TAIL_WAIT))?;
                entries.iter().try_for_each(|entry| print(entry, true, out))?;
                next = entries.last().map_or(next, |last| Index(last.index.0 + 1));
            }
        }
        Log::Create { topic, limits } => set(&mut log, topic, true, limits, out),
        Log::Set { topic, limits } => set(&mut log, topic, false, limits, out),
        Log::Verify { topic } => verify(&mut log, topic, out),
        Log::Trim { topic, before } => log.trim(topic, Index(*before)),
        Log::Info { topic } => {
            let (info, kept) = (log.info(topic)?, log.retention(topic)?);
            describe(&info, Some(&kept), out)
        }
        Log::Doctor(_) | Log::Move { .. } => unreachable!("no node carries it out"),
        Log::Ls => log.topics()?.iter().try_for_each(|info| describe(info, None, out)),
    }
}

fn set(
    log: &mut LogClient<'_>,
    topic: &str,
    create: bool,
    limits: &Limits,
    out: &mut Output,
) -> Result<()> {
    let Limits { retain_bytes, retain_age } = *limits;
    let set = Set { topic: topic.to_owned(), create, retain_bytes, retain_ms: retain_age };
    let kept = log.set(&set)?;
    out.line(
        || format!("{topic}  {}", kept_for(&kept)),
        || json!({"topic": topic, "retain_bytes": kept.bytes, "retain_ms": kept.age_ms}),
    )
}

pub fn kept_for(kept: &Retention) -> String {
    let bytes = (kept.bytes > 0).then(|| format!("up to {}", format_setting(kept.bytes)));
    let age = (kept.age_ms > 0).then(|| {
        let units = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];
        let fits = units.into_iter().find(|(_, ms)| kept.age_ms.is_multiple_of(*ms));
        let (unit, ms) = fits.expect("one millisecond fits");
        format!("for {}{unit}", kept.age_ms / ms)
    });
    match (bytes, age) {
        (None, None) => "kept until it is trimmed".to_owned(),
        (bytes, age) => {
            let limits: Vec<String> = [bytes, age].into_iter().flatten().collect();
            format!("kept {}", limits.join(", "))
        }
    }
}

fn verify(log: &mut LogClient<'_>, topic: &str, out: &mut Output) -> Result<()> {
    let first = log.info(topic)?.first;
    let (mut next, mut entries, mut bytes) = (first, 0, 0);
    loop {
        let verified = log.verify(topic, next)?;
        if verified.entries == 0 {
            break;
        }
        next = verified.next;
        entries += verified.entries;
        bytes += verified.bytes;
    }
    out.line(
        || format!("{topic}  {entries} entries, {}: all checksums are right", format_bytes(bytes)),
        || json!({"topic": topic, "first": first.0, "next": next.0, "entries": entries, "bytes": bytes}),
    )
}

/// How entries are appended.
enum Append<'a, 'b> {
    Plain { log: &'a mut LogClient<'b>, topic: &'a str, ordered: bool },
    Numbered { writer: LogWriter<'a>, topic: &'a str },
}

impl<'a, 'b> Append<'a, 'b> {
    fn begin(
        log: &'a mut LogClient<'b>,
        topic: &'a str,
        ordered: bool,
        writer: Option<&str>,
        number: Option<u64>,
    ) -> Result<Append<'a, 'b>> {
        let Some(name) = writer else { return Ok(Append::Plain { log, topic, ordered }) };
        let mut writer = log.writer(topic, name)?;
        number.into_iter().for_each(|number| writer.set_next(number));
        Ok(Append::Numbered { writer, topic })
    }

    fn append<E: AsRef<[u8]>>(&mut self, entries: &[E], out: &mut Output) -> Result<()> {
        let (indices, topic, number) = match self {
            Append::Plain { log, topic, ordered: true } => {
                (log.append_ordered(topic, entries)?, topic, None)
            }
            Append::Plain { log, topic, ordered: false } => {
                (log.append(topic, entries)?, topic, None)
            }
            Append::Numbered { writer, topic } => {
                let number = writer.next();
                (writer.append(entries)?, topic, Some(number))
            }
        };
        let (first, last) = (indices.first(), indices.last());
        out.line(
            || {
                let numbered = number.map_or(String::new(), |n| format!(", numbered from {n}"));
                match entries.len() {
                    1 => format!("appended entry {first}{numbered}"),
                    _ => format!("appended entries {first} to {last}{numbered}"),
                }
            },
            || match number {
                None => json!({"topic": topic, "first": first.0, "last": last.0}),
                Some(number) => {
                    json!({"topic": topic, "first": first.0, "last": last.0, "number": number})
                }
            },
        )
    }
}

fn append_lines(to: &mut Append<'_, '_>, out: &mut Output) -> Result<()> {
    let mut input = std::io::stdin().lock();
    let mut lines = Vec::new();
    let mut bytes = 0;
    loop {
        let mut line = Vec::new();
        let end = input.read_until(b'\n', &mut line)? == 0;
        let full = lines.len() >= APPEND_ENTRIES_MAX || bytes + line.len() > APPEND_BYTES_MAX;
        if (end || full) && !lines.is_empty() {
            to.append(&lines, out)?;
            lines.clear();
            bytes = 0;
        }
        if end {
            return Ok(());
        }
        if line.ends_with(b"\n") {
            line.pop();
        }
        bytes += line.len();
        lines.push(line);
    }
}

/// Without repeats.
fn read(
    log: &mut LogClient<'_>,
    topic: &str,
    from: Index,
    mut left: u64,
    out: &mut Output,
) -> Result<()> {
    let mut reader = log.reader(topic, from)?;
    while left > 0 {
        let count = u32::try_from(left).unwrap_or(u32::MAX);
        let Some(entries) = reader.read(log, count, Duration::ZERO)? else { return Ok(()) };
        left -= entries.len() as u64;
        entries.iter().try_for_each(|entry| print(entry, false, out))?;
    }
    Ok(())
}

/// Repeats, too.
fn read_all(
    log: &mut LogClient<'_>,
    topic: &str,
    mut from: Index,
    mut left: u64,
    out: &mut Output,
) -> Result<()> {
    while left > 0 {
        let entries = log.read(topic, from, u32::try_from(left).unwrap_or(u32::MAX))?;
        let Some(last) = entries.last() else { return Ok(()) };
        from = Index(last.index.0 + 1);
        left -= entries.len() as u64;
        entries.iter().try_for_each(|entry| print(entry, true, out))?;
    }
    Ok(())
}

/// `whole`: as it is in the log, with who numbered it.
fn print(entry: &Indexed, whole: bool, out: &mut Output) -> Result<()> {
    let numbered = Numbered::of(&entry.bytes).filter(|_| whole);
    let bytes = numbered.map_or(&entry.bytes[..], |numbered| numbered.bytes);
    out.line(
        || {
            let who = numbered.map_or(String::new(), |n| format!("{} {}  ", n.writer, n.number));
            let text = String::from_utf8_lossy(bytes);
            format!("{}  {who}{}", entry.index, text.escape_debug())
        },
        || {
            let mut line = as_json(entry.index, bytes);
            if let Some(Numbered { writer, number, .. }) = numbered {
                (line["writer"], line["number"]) = (json!(writer), json!(number));
            }
            line
        },
    )
}

/// An entry as an object.
pub fn as_json(index: Index, bytes: &[u8]) -> Value {
    let mut object = text_or_hex(bytes);
    object["index"] = json!(index.0);
    object
}

/// Bytes as an object's only member: those that are no UTF-8 by their hexadecimal digits.
pub fn text_or_hex(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => json!({"text": text}),
        Err(_) => json!({"hex": to_hex(bytes)}),
    }
}

fn describe(info: &Info, kept: Option<&Retention>, out: &mut Output) -> Result<()> {
    out.line(
        || {
            let kept = kept.map_or(String::new(), |kept| format!("; {}", kept_for(kept)));
            format!(
                "{}  entries {} to {}, {} in {} segments{kept}",
                info.topic,
                info.first,
                info.next.0.saturating_sub(1),
                format_bytes(info.bytes),
                info.segments
            )
        },
        || {
            let mut line = json!({
                "topic": info.topic,
                "first": info.first.0,
                "next": info.next.0,
                "durable": info.durable.0,
                "bytes": info.bytes,
                "segments": info.segments,
            });
            if let Some(kept) = kept {
                (line["retain_bytes"], line["retain_ms"]) = (json!(kept.bytes), json!(kept.age_ms));
            }
            line
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_read_as_they_are_shown() {
        for (text, ms) in
            [("7d", 604_800_000), ("1s", 1000), ("90m", 5_400_000), ("36h", 129_600_000)]
        {
            assert_eq!(age_ms(text), Ok(ms));
            assert_eq!(kept_for(&Retention { bytes: 0, age_ms: ms }), format!("kept for {text}"));
        }
        assert_eq!(age_ms("0"), Ok(0));
        for wrong in ["", "7", "d", "-1d", "7 d", "1é", "99999999999999999d"] {
            assert!(age_ms(wrong).is_err(), "{wrong}");
        }
        let both = Retention { bytes: 1 << 30, age_ms: 1000 };
        assert_eq!(kept_for(&both), "kept up to 1 GB, for 1s");
        assert_eq!(kept_for(&Retention::default()), "kept until it is trimmed");
    }
}
