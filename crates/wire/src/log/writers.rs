//! Numbered entries: which entries of a topic repeat an earlier one. A writer that does not hear of
//! its append sends it again, so the log may hold it twice: the log keeps both, for it interprets no
//! entry, and every reader leaves out the same ones by the one rule that stands here.
//!
//! The rule: an entry of a writer is a repeat if one of the [`WINDOW_ENTRIES`] indices before its own
//! has an entry of that writer with its number or a larger one. So it follows from the log alone, and
//! not from where a reader began: one that begins at an index has [`Repeats`] see the window before
//! it, without showing it, and agrees with all others. Pure; called by clients and by the HTTP port.

use super::Indexed;
use holdfast_base::checksum::crc32c;
use holdfast_base::ids::Index;
use holdfast_base::{Error, Result};
use holdfast_env::planted;
use std::collections::{BTreeMap, VecDeque};

/// How far behind itself an entry is looked for, in indices. What is sent again later than so many
/// entries of its topic is not recognised. It also bounds what a reader holds, as there can be no more
/// writers in a window than entries.
pub const WINDOW_ENTRIES: u64 = 4096;
/// Longest name of a writer.
pub const WRITER_BYTES_MAX: usize = 64;

/// Largest number of an entry.
pub const NUMBER_MAX: u64 = u64::MAX >> 1;

/// In front of a numbered entry. No text begins so, and what is in front of the bytes has a checksum:
/// no entry is taken for a numbered one by chance.
const MAGIC: [u8; 8] = *b"\x89HFLW\r\n\x01";
/// Magic, checksum, number, length of the name.
const HEAD_BYTES: usize = 8 + 4 + 8 + 1;

const _: () = assert!(WRITER_BYTES_MAX <= u8::MAX as usize);

/// An entry that a writer has numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbered<'a> {
    /// Of one process at a time.
    pub writer: &'a str,
    /// Larger than those of the writer's entries before.
    pub number: u64,
    /// What was to be appended.
    pub bytes: &'a [u8],
}

/// Refuses what is no writer's name.
pub fn check_writer(writer: &str) -> Result<()> {
    let is_letter = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    if (1..=WRITER_BYTES_MAX).contains(&writer.len()) && writer.bytes().all(is_letter) {
        return Ok(());
    }
    let shown: String = writer.chars().take(WRITER_BYTES_MAX).collect();
    Err(Error::invalid(format!(
        "append as writer `{}`: a writer's name has 1 to {WRITER_BYTES_MAX} letters, digits, `.`, `_` \
         and `-`: name it otherwise",
        shown.escape_debug()
    )))
}

/// The numbers of so many entries, of which the first has this one. Refused where they would not be small
/// enough: behind the largest one a writer could append nothing any more that is read.
pub fn numbers(first: u64, entries: usize) -> Result<std::ops::Range<u64>> {
    let end = first.checked_add(entries as u64).filter(|end| *end <= NUMBER_MAX);
    match end {
        Some(end) => Ok(first..end),
        None => Err(Error::invalid(format!(
            "number {entries} entries from {first} on: a number is below {NUMBER_MAX}: choose smaller ones, \
             or another writer's name"
        ))),
    }
}

impl<'a> Numbered<'a> {
    /// The entry that is appended; the name was checked.
    pub fn encode(&self) -> Vec<u8> {
        assert!(check_writer(self.writer).is_ok(), "a writer's name is checked where it comes in");
        let mut out = Vec::with_capacity(HEAD_BYTES + self.writer.len() + self.bytes.len());
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.number.to_le_bytes());
        out.push(self.writer.len() as u8);
        out.extend_from_slice(self.writer.as_bytes());
        let crc = crc32c(&out[12..]);
        out[8..12].copy_from_slice(&crc.to_le_bytes());
        out.extend_from_slice(self.bytes);
        out
    }

    /// Nothing of an entry that no writer has numbered: its bytes are all that it is.
    pub fn of(entry: &'a [u8]) -> Option<Numbered<'a>> {
        let head = entry.get(..HEAD_BYTES).filter(|head| head.starts_with(&MAGIC))?;
        let crc = u32::from_le_bytes(head[8..12].try_into().expect("four bytes"));
        let number = u64::from_le_bytes(head[12..20].try_into().expect("eight bytes"));
        let end = HEAD_BYTES + usize::from(head[20]);
        let writer = std::str::from_utf8(entry.get(HEAD_BYTES..end)?).ok()?;
        let is_right = crc32c(&entry[12..end]) == crc && check_writer(writer).is_ok();
        is_right.then_some(Numbered { writer, number, bytes: &entry[end..] })
    }
}

/// What an entry says, without the number that a writer has given it.
pub fn content(entry: &[u8]) -> &[u8] {
    Numbered::of(entry).map_or(entry, |numbered| numbered.bytes)
}

/// Where a reader that shows entries from `from` on begins to look.
pub fn look_from(from: Index) -> Index {
    Index(from.0.saturating_sub(WINDOW_ENTRIES).max(1))
}

/// The rule's memory: the numbers in the window behind the entry that was seen last.
#[derive(Clone, Debug, Default)]
pub struct Repeats {
    /// Of each writer, by index: those numbers that no later entry of it has reached, so they fall.
    writers: BTreeMap<String, VecDeque<(u64, u64)>>,
    /// Index and writer of each of them, oldest first.
    seen: VecDeque<(u64, String)>,
    last: u64,
}

impl Repeats {
    /// Sees the next entry, and says whether it repeats an earlier one. Entries come in order.
    pub fn see(&mut self, index: Index, entry: &[u8]) -> bool {
        assert!(self.last < index.0, "entry {index} comes behind entry {}", self.last);
        self.last = index.0;
        self.forget_below(index.0.saturating_sub(WINDOW_ENTRIES));
        let Some(Numbered { writer, number, .. }) = Numbered::of(entry) else { return false };
        if !self.writers.contains_key(writer) {
            self.writers.insert(writer.to_owned(), VecDeque::new());
        }
        let numbers = self.writers.get_mut(writer).expect("it is there by now");
        let repeats =
            numbers.front().is_some_and(|(_, largest)| match planted!("wire.last-alone-repeats") {
                true => *largest == number,
                false => *largest >= number,
            });
        while numbers.back().is_some_and(|(_, earlier)| *earlier <= number) {
            numbers.pop_back();
        }
        numbers.push_back((index.0, number));
        self.seen.push_back((index.0, writer.to_owned()));
        repeats
    }

    fn forget_below(&mut self, low: u64) {
        while let Some((index, writer)) = self.seen.pop_front_if(|(index, _)| *index < low) {
            let numbers = self.writers.get_mut(&writer).expect("who was seen is known");
            numbers.pop_front_if(|(at, _)| *at <= index);
            if numbers.is_empty() {
                self.writers.remove(&writer);
            }
        }
    }

    /// The largest number of a writer in the window behind the next entry: a new process of it goes on
    /// behind that. Outside of the window, any number is new.
    pub fn last_of(&mut self, writer: &str) -> Option<u64> {
        self.forget_below((self.last + 1).saturating_sub(WINDOW_ENTRIES));
        self.writers.get(writer)?.front().map(|(_, number)| *number)
    }

    /// Writers that are known now.
    pub fn writers(&self) -> usize {
        self.writers.len()
    }
}

/// Where somebody reads a topic without repeats, whoever fetches the entries.
#[derive(Clone, Debug)]
pub struct Reading {
    /// Where it goes on.
    next: Index,
    /// What was looked at in front of that.
    back: Index,
    repeats: Repeats,
}

impl Reading {
    /// From an index on, of a topic whose first entry is this one.
    pub fn new(from: Index, first: Index) -> Reading {
        Reading { next: from, back: look_from(from).max(first), repeats: Repeats::default() }
    }

    /// What is to be read back before anything is shown: from where on, and how many entries at most.
    pub fn back(&self) -> Option<(Index, u32)> {
        let left = self.next.0.checked_sub(self.back.0).filter(|left| *left > 0)?;
        Some((self.back, u32::try_from(left).unwrap_or(u32::MAX)))
    }

    /// These were; where there is none, there is no more of them.
    pub fn seen_back(&mut self, seen: &[Indexed]) {
        self.back = seen.last().map_or(self.next, |last| Index(last.index.0 + 1));
        for entry in seen.iter().filter(|entry| entry.index < self.next) {
            self.repeats.see(entry.index, &entry.bytes);
        }
    }

    /// Where it goes on.
    pub fn next(&self) -> Index {
        self.next
    }

    /// The largest number of a writer, as [`Repeats::last_of`].
    pub fn last_of(&mut self, writer: &str) -> Option<u64> {
        self.repeats.last_of(writer)
    }

    /// What is shown of the next entries: no repeats, and no numbers. Nothing where there are none.
    pub fn show(&mut self, mut entries: Vec<Indexed>) -> Option<Vec<Indexed>> {
        self.next = Index(entries.last()?.index.0 + 1);
        entries.retain(|entry| !self.repeats.see(entry.index, &entry.bytes));
        for entry in &mut entries {
            let front = entry.bytes.len() - content(&entry.bytes).len();
            entry.bytes.drain(..front);
        }
        Some(entries)
    }
}

#[cfg(test)]
mod tests;
