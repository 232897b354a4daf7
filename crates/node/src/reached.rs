//! How far the log was when this node looked last, noted beside it: a log and snapshots that were
//! both put back from an older copy agree with each other, and this file does not go back with
//! them. It names durable entries only, so no power cut is taken for a log put back; it is not
//! synced itself, so it costs no commit anything, and one that was lost or torn says nothing. The
//! chunks, which do not go back either, are asked too.

use super::Node;
use holdfast_base::checksum::crc32c;
use holdfast_base::ids::{ChunkId, Index, StoreId, Tier};
use holdfast_base::{Error, Result};
use holdfast_cluster::AllShards;
use holdfast_cluster::topics::folded_by;
use holdfast_env::disk::{Access, read_file};
use holdfast_env::{Disk, HoldMutex, planted};
use holdfast_log::{Log, Scope, TOPIC_BYTES_MAX, missing};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const FILE: &str = "REACHED";
/// More topics than a log has.
const TOPICS_MAX: usize = 2000;
/// So many, with names as long as they may be, indices and checksums: of a file that is longer nothing is read, and it
/// would say nothing.
const FILE_BYTES_MAX: u64 = (TOPICS_MAX * (TOPIC_BYTES_MAX + 31) + 15) as u64;

/// A topic's last durable entry, and the CRC32C of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    index: Index,
    crc: u32,
}

/// What the file says.
#[derive(Debug, Default)]
pub(super) struct Reached {
    marks: BTreeMap<String, Mark>,
}

/// Topics whose log was put back from an older copy, and why that is known.
pub(super) type Older = BTreeMap<String, Error>;

/// The topics of a log that views are folded of.
pub(super) fn folded_topics(log: &dyn Log) -> impl Iterator<Item = String> {
    log.topics().into_iter().filter(|topic| folded_by(topic).is_some())
}

fn text(marks: &BTreeMap<String, Mark>) -> String {
    let line =
        |(topic, mark): (&String, &Mark)| format!("{topic} {} {:08x}\n", mark.index, mark.crc);
    let lines: String = marks.iter().map(line).collect();
    format!("{lines}check {:08x}\n", crc32c(lines.as_bytes()))
}

fn parse(bytes: &[u8]) -> Option<BTreeMap<String, Mark>> {
    let mut marks = BTreeMap::new();
    for line in std::str::from_utf8(bytes).ok()?.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [topic, index, crc] = words[..] else { continue };
        folded_by(topic)?;
        let (index, crc) = (Index(index.parse().ok()?), u32::from_str_radix(crc, 16).ok()?);
        marks.insert(topic.to_owned(), Mark { index, crc });
    }
    // The checksum, and every other byte.
    (text(&marks).as_bytes() == bytes).then_some(marks)
}

impl Reached {
    /// Reads the file in `data` and holds the log against it: gives the topics whose log is older than
    /// the mark, with the sentence for people, too.
    pub fn load(disk: &dyn Disk, data: &Path, log: &dyn Log) -> Result<(Reached, Older)> {
        let path = data.join(FILE);
        if !disk.exists(&path)? {
            return Ok(Default::default());
        }
        // What cannot be read says nothing either.
        let bytes_max = if planted!("node.few-topics-noted") { 4096 } else { FILE_BYTES_MAX };
        let bytes = read_file(disk, &path, bytes_max).unwrap_or_default();
        let marks = parse(&bytes).unwrap_or_default();
        let older = marks.iter().filter_map(|(topic, mark)| {
            let what = missing(log, topic, mark.index, Some(mark.crc))?;
            let why = Error::corrupt(format!(
                "the log is older than this node knows it: {what}: entries are missing, and what \
                 they said would be: put back the log as it was, with its snapshots; nothing was \
                 touched; to go on without them, remove `{}`",
                path.display()
            ));
            Some((topic.clone(), why))
        });
        let older = older.filter(|_| !planted!("node.rolled-back-log-believed")).collect();
        Ok((Reached { marks }, older))
    }
}

impl Mark {
    /// Of the topic's last entry; `known` if it is that one.
    fn of(topic: &str, log: &dyn Log, known: Option<&Mark>) -> Option<Mark> {
        let info = log.info(topic).ok()?;
        let (end, scope) = match planted!("node.mark-ahead-of-the-log") {
            true => (info.next, Scope::Written),
            false => (info.durable, Scope::Durable),
        };
        let last = Index(end.0.checked_sub(1)?);
        if let Some(known) = known.filter(|known| known.index == last) {
            return Some(*known);
        }
        let page = log.read(topic, last, 1, 1, scope).ok()?;
        let (index, entry) = page.first().filter(|(index, _)| *index == last)?;
        Some(Mark { index: *index, crc: crc32c(entry) })
    }
}

impl Node {
    /// Notes how far the log is, where it is kept here. Loses nothing if it fails.
    pub(super) fn note_reached(&self) -> Result<()> {
        let Some(log) = self.hosted() else { return Ok(()) };
        if !self.has_names() {
            // It may be an old one: what it got since is not what the right one has there.
            return Ok(());
        }
        let older = self.older.held().clone();
        let mut reached = self.reached.held();
        let mut marks = reached.marks.clone();
        // Marks of older ones stay as they are, until somebody removes the file, as who wants to go on without what
        // is missing: it is not to be missing again at the next start.
        let is_gone = !self.machine.disk.exists(&self.data.join(FILE))?;
        if is_gone && !planted!("node.removed-mark-comes-back") {
            marks.retain(|topic, _| !older.contains_key(topic));
        }
        for topic in folded_topics(&**log).filter(|topic| !older.contains_key(topic)) {
            if let Some(mark) = Mark::of(&topic, &**log, reached.marks.get(&topic)) {
                marks.insert(topic, mark);
            }
        }
        if marks != reached.marks || is_gone && !marks.is_empty() {
            self.check_place()?;
            write(&*self.machine.disk, &self.data, &text(&marks))?;
            reached.marks = marks;
        }
        Ok(())
    }

    /// Chunks are allocated by durable entries before they have a byte. A store that the cluster
    /// knew before this start, with bytes in chunks that the names never heard of, was written after
    /// the last entry that is here: the log is an older copy, and would be served with files missing.
    pub(super) fn check_age(&self, known_stores: &BTreeSet<StoreId>) -> Result<()> {
        let mut unheard = Vec::new();
        for own in self.stores.iter() {
            if own.tier != Tier::Disk || !known_stores.contains(&own.id) {
                continue;
            }
            let held = own.store.list().into_iter().filter(|info| info.stored_bytes > 0);
            let chunks: Vec<ChunkId> = held.map(|info| info.chunk).collect();
            let never = |all: &AllShards<'_>, chunk: ChunkId| {
                // Of one that is not there it is not known.
                all.of_chunk(chunk).is_ok_and(|view| {
                    view.chunks().get(chunk).is_none() && !view.chunks().was_allocated(chunk)
                })
            };
            unheard.extend(
                match self.read_all(|all| {
                    chunks.into_iter().filter(|chunk| never(all, *chunk)).collect::<Vec<_>>()
                }) {
                    Ok(unheard) => unheard.into_iter().map(|chunk| (chunk, own.place.clone())),
                    // It has stopped, and says why.
                    Err(_) => return Ok(()),
                },
            );
        }
        let Some((chunk, place)) = unheard.first() else { return Ok(()) };
        if !planted!("node.older-log-believed") {
            let fold = self.shard_of_chunk(*chunk)?;
            fold.stop(Error::corrupt(format!(
                "the log is older than the chunks: `{place}` holds chunk `{chunk}`, one of {} that \
                 no entry up to {} has made: entries are missing, and files would be: put back the \
                 log as it was, with its snapshots; no chunk was touched",
                unheard.len(),
                fold.applied()
            )));
        }
        Ok(())
    }
}

fn write(disk: &dyn Disk, data: &Path, text: &str) -> Result<()> {
    let (path, aside) = (data.join(FILE), data.join("REACHED.tmp"));
    if disk.exists(&aside)? {
        disk.remove(&aside)?;
    }
    disk.create(&aside, Access::Cached)?.write_at(text.as_bytes(), 0)?;
    Ok(disk.rename(&aside, &path)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_log::LogOptions;

    #[test]
    fn marks_come_back_and_whatever_is_not_as_it_was_written_says_nothing() {
        let mark = |index, crc| Mark { index: Index(index), crc };
        let marks = [("cluster", mark(12, 7)), ("namespace/0", mark(9, 1))];
        let marks = BTreeMap::from(marks.map(|(topic, mark)| (topic.to_owned(), mark)));
        let bytes = text(&marks).into_bytes();
        assert_eq!(
            String::from_utf8_lossy(&bytes),
            "cluster 12 00000007\nnamespace/0 9 00000001\ncheck c98f8127\n"
        );
        assert_eq!(parse(&bytes), Some(marks));
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(parse(&bad), None, "bit {bit}");
        }
        for cut in 0..bytes.len() {
            assert_eq!(parse(&bytes[..cut]), None, "cut at {cut}");
        }
        assert_eq!(parse(&vec![0; bytes.len()]), None);
    }

    #[test]
    fn marks_of_as_many_topics_as_there_may_be_are_read() {
        assert!(2 * LogOptions::default().topics_max <= TOPICS_MAX);
        let mark = Mark { index: Index(u64::MAX), crc: u32::MAX };
        let topic = |number| {
            let name = format!("table/{number}");
            name.clone() + &"x".repeat(TOPIC_BYTES_MAX - name.len())
        };
        let marks: BTreeMap<_, _> = (0..TOPICS_MAX).map(|number| (topic(number), mark)).collect();
        assert_eq!(text(&marks).len() as u64, FILE_BYTES_MAX);
        assert_eq!(parse(text(&marks).as_bytes()), Some(marks));
    }
}
