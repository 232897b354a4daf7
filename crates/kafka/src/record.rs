//! What a record of ours is in a topic of a broker: its topic's name there, and the header by which it is
//! known. Pure. Format: docs/formats/log.md.

use holdfast_base::checksum::{crc32c, crc32c_combine};
use holdfast_base::{Error, Result};
use holdfast_env::planted;
use holdfast_log::{check_topic, topic_hash};

/// The header's key.
pub const HEADER: &str = "holdfast";
const VERSION: u8 = 1;
/// In the place of the version: no entry, but where the topic counts from.
const MARK: u8 = 2;
const HEADER_BYTES: usize = 29;
/// Those in front of the checksum, which it covers.
const COVERED_BYTES: usize = 25;

/// Longest name of a topic at a broker.
const NAME_BYTES_MAX: usize = 249;
/// Longest prefix that a log's topics share.
const PREFIX_BYTES_MAX: usize = 40;
/// Between the prefix and a topic's name: no name has it, so what is in front of the last one is the
/// prefix.
const BETWEEN: char = '.';

/// Refuses what is no prefix of topics.
pub fn check_prefix(prefix: &str) -> Result<()> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.');
    if prefix.is_empty() || prefix.len() > PREFIX_BYTES_MAX || !prefix.bytes().all(plain) {
        return Err(Error::invalid(format!(
            "use topics of a broker: `{}` is no prefix of theirs: take 1 to {PREFIX_BYTES_MAX} letters, \
             digits, `-` and `.`",
            prefix.escape_debug()
        )));
    }
    Ok(())
}

/// What a topic is called at the broker: letters, digits and `-` are themselves, all else is `_` and two
/// hexadecimal digits, so no two topics are called the same.
pub fn name_of(prefix: &str, topic: &str) -> Result<String> {
    check_topic(topic)?;
    let mut name = format!("{prefix}{BETWEEN}");
    for b in topic.bytes() {
        match b {
            b'a'..=b'z' | b'0'..=b'9' | b'-' => name.push(char::from(b)),
            _ => name.push_str(&format!("_{b:02x}")),
        }
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(Error::invalid(format!(
            "topic `{topic}` has a name of {} bytes at the broker, which takes {NAME_BYTES_MAX}: shorten \
             it",
            name.len()
        )));
    }
    Ok(name)
}

/// The inverse of [`name_of`]; `None` for what no topic of the prefix is called.
pub fn topic_of(prefix: &str, name: &str) -> Option<String> {
    let rest = name.strip_prefix(prefix)?.strip_prefix(BETWEEN)?;
    let (mut topic, mut bytes) = (Vec::new(), rest.bytes());
    while let Some(b) = bytes.next() {
        match b {
            b'_' => {
                let digits = [bytes.next()?, bytes.next()?];
                topic.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
            }
            _ => topic.push(b),
        }
    }
    let topic = String::from_utf8(topic).ok()?;
    name_of(prefix, &topic).is_ok_and(|same| same == name).then_some(topic)
}

/// Whose record it is, and the index in front of its topic's first offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    pub log: u64,
    pub base: u64,
}

/// What a record turns out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    Entry {
        base: u64,
    },
    /// Says where the topic counts from, and is no entry: what lay in front of it was trimmed before the log
    /// came here.
    Mark {
        base: u64,
    },
    /// Somebody else's: there is no entry at its index.
    Strange(&'static str),
    /// One of ours that is not as it was written, or that this build cannot read.
    Refused(&'static str),
}

impl Stamp {
    /// The header of a record of `topic` that is no entry and has no bytes, see [`Reading::Mark`].
    pub fn mark(&self, topic: &str) -> [u8; HEADER_BYTES] {
        self.header_of(MARK, topic, &[])
    }

    /// The header of an entry of `topic`.
    pub fn header(&self, topic: &str, entry: &[u8]) -> [u8; HEADER_BYTES] {
        self.header_of(VERSION, topic, entry)
    }

    fn header_of(&self, version: u8, topic: &str, entry: &[u8]) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[0] = version;
        header[1..9].copy_from_slice(&self.log.to_le_bytes());
        header[9..17].copy_from_slice(&topic_hash(topic).to_le_bytes());
        header[17..25].copy_from_slice(&self.base.to_le_bytes());
        let crc = crc_of(&header, entry);
        header[COVERED_BYTES..].copy_from_slice(&crc.to_le_bytes());
        header
    }
}

fn crc_of(header: &[u8; HEADER_BYTES], entry: &[u8]) -> u32 {
    crc32c_combine(crc32c(&header[..COVERED_BYTES]), crc32c(entry), entry.len() as u64)
}

/// What a record of `topic` in the log `log` is, by its header and its bytes.
pub fn read(log: u64, topic: &str, header: Option<&[u8]>, entry: &[u8]) -> Reading {
    let Some(header) = header else { return Reading::Strange("it has no header of Holdfast's") };
    let Ok(header) = <&[u8; HEADER_BYTES]>::try_from(header) else {
        return Reading::Strange("its header has another length than Holdfast's");
    };
    if !matches!(header[0], VERSION | MARK) {
        return Reading::Refused("its header is of another version: use the build that wrote it");
    }
    let number = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("8 bytes"));
    let crc = u32::from_le_bytes(header[COVERED_BYTES..].try_into().expect("4 bytes"));
    // First of all: what a damaged header says of its log or topic makes no gap of an entry.
    if crc != crc_of(header, entry) && !planted!("kafka.checksum-ignored") {
        return Reading::Refused("its bytes do not have the checksum in its header");
    }
    if number(1) != log {
        return Reading::Strange("it is of another log");
    }
    if number(9) != topic_hash(topic) && !planted!("kafka.copies-are-entries") {
        return Reading::Strange("it is an entry of another topic, copied here");
    }
    match header[0] {
        MARK => Reading::Mark { base: number(17) },
        _ => Reading::Entry { base: number(17) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_one_to_one_and_a_prefix_may_begin_with_another() {
        let mut names = std::collections::BTreeSet::new();
        for prefix in ["a", "a.b", "a-b", "holdfast"] {
            for topic in ["b", "b/c", "b_c", "b.c", "b-c", "b/2fc", "b_2fc", "blob/pho.to_s", "0"] {
                let name = name_of(prefix, topic).unwrap();
                let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
                assert!(name.bytes().all(plain), "{name}");
                assert_eq!(topic_of(prefix, &name).as_deref(), Some(topic), "{name}");
                assert!(names.insert(name.clone()), "{name} twice");
                for other in ["a", "a.b", "a-b", "holdfast"].iter().filter(|p| **p != prefix) {
                    assert_eq!(topic_of(other, &name), None, "{name}");
                }
            }
        }
        for strange in ["a", "a.", "a.B", "a._", "a._2", "a._zz", "a.b c", "a._61", "b.x", "a.b.c"]
        {
            assert_eq!(topic_of("a", strange), None, "{strange}");
        }
        assert!(name_of("a", "../b").is_err() && name_of("a", &"/".repeat(9)).is_err());
        assert!(name_of("a", "b/".repeat(99).trim_end_matches('/')).is_err(), "too long");
        for bad in ["", "a b", "a/b", "a_b", "é", &"x".repeat(41)] {
            assert!(check_prefix(bad).is_err(), "{bad}");
        }
        check_prefix("eu-1.holdfast").unwrap();
    }

    #[test]
    fn a_record_is_ours_as_it_was_written_or_not_at_all() {
        let stamp = Stamp { log: 7, base: 40 };
        let header = stamp.header("a/b", b"entry");
        let read_of =
            |log, topic, header: &[u8], entry: &[u8]| read(log, topic, Some(header), entry);
        assert_eq!(read_of(7, "a/b", &header, b"entry"), Reading::Entry { base: 40 });
        assert!(matches!(read_of(8, "a/b", &header, b"entry"), Reading::Strange(_)));
        assert!(matches!(read(7, "a/b", None, b"entry"), Reading::Strange(_)));
        assert!(matches!(read_of(7, "a/b", &header[1..], b"entry"), Reading::Strange(_)));
        // Somebody copied a record of another topic: that stopped whoever read it, for good.
        assert!(matches!(read_of(7, "a/c", &header, b"entry"), Reading::Strange(_)));
        assert!(matches!(read_of(7, "a/b", &header, b"entrx"), Reading::Refused(_)));
        // No byte of it may differ: a damaged one makes no gap of an entry.
        for at in 0..header.len() {
            let mut other = header;
            other[at] ^= 1;
            assert!(matches!(read_of(7, "a/b", &other, b"entry"), Reading::Refused(_)), "{at}");
        }
        assert_eq!(
            header[..17],
            [1, 7, 0, 0, 0, 0, 0, 0, 0, 0x61, 0xcf, 0x68, 0x04, 0x19, 0xc3, 0x20, 0xe6]
        );
    }
}
