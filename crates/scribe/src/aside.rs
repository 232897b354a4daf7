//! What can never be taken, kept aside: batches that their topic refuses for good, and messages that are
//! none. A topic of its own beside the spool's, bounded: the oldest is given up for the newest, and both are
//! counted. Decides nothing about what is refused.

use crate::batch;
use crate::store;
use holdfast_base::codec::{Reader, put_bytes};
use holdfast_base::ids::Index;
use holdfast_base::{Error, Kind, Result};
use holdfast_env::HoldMutex;
use holdfast_log::{Drive, EmbeddedLog, Log, Scope};
use std::sync::Mutex;

/// Its topic, in the spool's log.
pub const TOPIC: &str = "aside";
/// Files that it may have; of the spool's bound.
pub const SEGMENTS_MAX: u64 = 1;
/// Of a message that is too long, its beginning is kept.
pub const BEGINNING_BYTES_MAX: usize = 64 << 10;
/// Of a name that is none, and of a reason.
const TEXT_BYTES_MAX: usize = 1 << 10;
const READ_ENTRIES_MAX: usize = 256;
const READ_BYTES_MAX: usize = 1 << 20;

const _: () = {
    let most = batch::ENCODED_BYTES_MAX + TEXT_BYTES_MAX + 64;
    assert!(most <= holdfast_base::limits::ENTRY_BYTES_MAX);
};

const VERSION: u8 = 1;
const BATCH: u8 = 1;
const MESSAGE: u8 = 2;

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Aside<'a> {
    /// What its topic refused, as it was sent.
    Batch { why: &'a str, batch: &'a [u8] },
    /// A message that no topic could have: how long it was, and its beginning.
    Message { why: &'a str, category: &'a [u8], bytes: u64, beginning: &'a [u8] },
}

impl<'a> Aside<'a> {
    /// A message of so many bytes as a client sent it, or its beginning.
    pub fn message(why: &'a str, category: &'a [u8], message: &'a [u8], bytes: usize) -> Aside<'a> {
        let beginning = &message[..message.len().min(BEGINNING_BYTES_MAX)];
        let category = &category[..category.len().min(TEXT_BYTES_MAX)];
        Aside::Message { why, category, bytes: bytes as u64, beginning }
    }

    /// As an entry.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Aside::Batch { why, batch } => {
                let mut out = vec![VERSION, BATCH];
                put_bytes(&mut out, cut(why).as_bytes());
                put_bytes(&mut out, batch);
                out
            }
            Aside::Message { why, category, bytes, beginning } => {
                let mut out = vec![VERSION, MESSAGE];
                put_bytes(&mut out, cut(why).as_bytes());
                put_bytes(&mut out, category);
                out.extend_from_slice(&bytes.to_le_bytes());
                put_bytes(&mut out, beginning);
                out
            }
        }
    }

    /// Reads an entry.
    pub fn decode(entry: &'a [u8]) -> Result<Aside<'a>> {
        let parse = || {
            let mut reader = Reader::new(entry);
            let aside = match reader.array::<2>()? {
                [VERSION, BATCH] => Aside::Batch { why: reader.str()?, batch: reader.bytes()? },
                [VERSION, MESSAGE] => Aside::Message {
                    why: reader.str()?,
                    category: reader.bytes()?,
                    bytes: u64::from_le_bytes(reader.array()?),
                    beginning: reader.bytes()?,
                },
                [version, kind] => {
                    return Err(Error::unsupported(format!(
                        "it has version {version} and kind {kind}: use a newer build"
                    )));
                }
            };
            reader.finish()?;
            Ok(aside)
        };
        parse().map_err(|e| e.context("read what was kept aside"))
    }

    /// Messages of it.
    pub fn count(&self) -> u64 {
        match self {
            Aside::Batch { batch, .. } => {
                batch::decode(batch).map_or(0, |(head, _)| head.count.into())
            }
            Aside::Message { .. } => 1,
        }
    }
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_BYTES_MAX)]
}

/// What is kept aside in a spool's log.
pub struct Kept {
    drive: Drive,
    /// Messages that were ever kept and are counted, and how many of them were given up.
    counts: Mutex<(u64, u64)>,
}

impl Kept {
    /// Takes in what is there.
    pub fn open(log: &EmbeddedLog, drive: Drive) -> Result<Kept> {
        let mut messages = 0;
        each(log, &mut |_, entry| {
            messages += Aside::decode(entry)?.count();
            Ok(())
        })?;
        Ok(Kept { drive, counts: Mutex::new((messages, 0)) })
    }

    /// Messages that were kept aside, and how many of them were given up again since the start.
    pub fn counts(&self) -> (u64, u64) {
        *self.counts.held()
    }

    /// Its files, of the spool's bound.
    pub fn segments(&self, log: &EmbeddedLog) -> u64 {
        log.info(TOPIC).map_or(0, |info| info.segments as u64)
    }

    /// Keeps these, synced, by one commit.
    pub fn keep(&self, log: &EmbeddedLog, all: &[Aside<'_>]) -> Result<()> {
        if all.is_empty() {
            return Ok(());
        }
        log.create(TOPIC)?;
        let indices =
            store::append(log, TOPIC, self.drive, all.iter().map(Aside::encode).collect())?;
        let mut counts = self.counts.held();
        let (messages, given_up) = &mut *counts;
        // A commit lies in one file: what is in front of it is in others.
        if self.segments(log) > SEGMENTS_MAX {
            log.trim(TOPIC, indices[0])?;
            *given_up = *messages;
        }
        *messages += all.iter().map(Aside::count).sum::<u64>();
        Ok(())
    }
}

/// Calls back with what a spool's log has aside, oldest first.
pub fn each(log: &EmbeddedLog, call: &mut dyn FnMut(Index, &[u8]) -> Result<()>) -> Result<()> {
    let mut from = match log.info(TOPIC) {
        Ok(info) => info.first,
        Err(e) if e.kind == Kind::NotFound => return Ok(()),
        Err(e) => return Err(e),
    };
    loop {
        let page = log.read(TOPIC, from, READ_ENTRIES_MAX, READ_BYTES_MAX, Scope::Durable)?;
        let Some((last, _)) = page.last() else { return Ok(()) };
        from = Index(last.0 + 1);
        for (index, entry) in &page {
            call(*index, entry)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::SEGMENT_BYTES;
    use holdfast_log::LogOptions;
    use holdfast_sim::SimDisk;
    use std::path::Path;
    use std::sync::Arc;

    fn open(disk: &SimDisk, segment_bytes: u64) -> (EmbeddedLog, Kept) {
        let options = LogOptions { drive: Drive::Pump, segment_bytes, ..LogOptions::default() };
        let log = EmbeddedLog::open(Arc::new(disk.clone()), Path::new("/s"), options).unwrap();
        let kept = Kept::open(&log, Drive::Pump).unwrap();
        (log, kept)
    }

    #[test]
    fn entries_come_back_and_long_ones_are_cut() {
        let long = vec![b'x'; BEGINNING_BYTES_MAX + 1];
        let (why, name) = ("é".repeat(TEXT_BYTES_MAX), vec![0xff; TEXT_BYTES_MAX + 9]);
        let aside = Aside::message(&why, &name, &long, long.len());
        let entry = aside.encode();
        let Aside::Message { why: read, category, bytes, beginning } =
            Aside::decode(&entry).unwrap()
        else {
            panic!()
        };
        assert_eq!((read.len(), category.len()), (TEXT_BYTES_MAX, TEXT_BYTES_MAX));
        assert_eq!((bytes, beginning), (long.len() as u64, &long[..BEGINNING_BYTES_MAX]));
        let batch = Aside::Batch { why: "no", batch: b"bytes" };
        assert_eq!(Aside::decode(&batch.encode()).unwrap(), batch);
        for at in 0..entry.len() {
            assert!(Aside::decode(&entry[..at]).is_err(), "cut at {at}");
        }
    }

    /// A stranger that sends rubbish for days would fill the disk, and take the room of what is good.
    #[test]
    fn the_oldest_is_given_up_and_everything_is_counted() {
        let (disk, segment_bytes) = (SimDisk::new(1), 16 * 4096);
        assert!(segment_bytes < SEGMENT_BYTES);
        let (log, kept) = open(&disk, segment_bytes);
        assert_eq!(kept.segments(&log), 0, "it takes nothing before it is needed");
        let message = vec![b'x'; 3000];
        for round in 1..=200_u64 {
            kept.keep(&log, &[Aside::message("too long", b"c", &message, 9000)]).unwrap();
            assert!(kept.segments(&log) <= SEGMENTS_MAX, "round {round}");
            assert_eq!(kept.counts().0, round);
        }
        let read = |log: &EmbeddedLog| {
            let mut read = 0;
            each(log, &mut |_, _| {
                read += 1;
                Ok(())
            })
            .unwrap();
            read
        };
        let (messages, given_up) = kept.counts();
        let left = read(&log);
        assert!(given_up > 0 && left >= messages - given_up, "{given_up} given up, {left} left");
        drop((log, kept));
        let (log, kept) = open(&disk, segment_bytes);
        assert_eq!((kept.counts(), read(&log)), ((left, 0), left));
    }
}
