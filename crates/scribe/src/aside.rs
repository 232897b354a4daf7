//! What can never be taken, kept aside: batches that their topic refuses for good, and messages that are
//! none. A topic of its own, bounded: the oldest is given up for the newest, and both are counted. Of an agent it
//! lies beside the spool's, of a node's own door in a log that has nothing else ([`Place`]). Decides nothing about
//! what is refused.

use crate::batch;
use crate::store::{self, SEGMENT_BYTES};
use holdfast_base::codec::{Reader, put_bytes};
use holdfast_base::ids::Index;
use holdfast_base::{Error, Kind, Result};
use holdfast_env::disk::{Access, read_file};
use holdfast_env::{Disk, HoldMutex};
use holdfast_log::{Drive, EmbeddedLog, Log, Scope};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

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
/// Where a log keeps its topics.
const TOPICS: &str = "topics";
/// Copies that are made of what somebody writes meanwhile, until one of them can be read.
const COPIES_MAX: usize = 8;

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

/// A place of its own, for whoever has no spool.
pub struct Place {
    log: EmbeddedLog,
    kept: Kept,
}

impl Place {
    /// Opens the one in `directory`, which is made if it is not there.
    pub fn open(disk: Arc<dyn Disk>, directory: &Path, drive: Drive) -> Result<Place> {
        let log = store::open_log(disk, directory, SEGMENT_BYTES, drive)?;
        let kept = Kept::open(&log, drive)?;
        Ok(Place { log, kept })
    }

    /// Keeps these, synced, by one commit.
    pub fn keep(&self, all: &[Aside<'_>]) -> Result<()> {
        self.kept.keep(&self.log, all)
    }

    /// As [`Kept::counts`].
    pub fn counts(&self) -> (u64, u64) {
        self.kept.counts()
    }
}

/// As [`each`], of a directory that an agent or a node may have open. Then a copy is read, which is made below
/// `scratch`: a directory of the caller's alone, who removes it.
pub fn look(
    disk: &Arc<dyn Disk>,
    directory: &Path,
    scratch: &Path,
    drive: Drive,
    call: &mut dyn FnMut(Index, &[u8]) -> Result<()>,
) -> Result<()> {
    if !disk.exists(&directory.join(TOPICS))? {
        return Err(Error::not_found(format!(
            "look at what is aside in `{}`: nothing was ever kept there: name the spool of an agent, or the data \
             directory of a node whose `scribe_port` is on",
            directory.display()
        )));
    }
    match store::open_log(disk.clone(), directory, SEGMENT_BYTES, drive) {
        Ok(log) => each(&log, call),
        Err(e) if e.kind == Kind::Retry => {
            let copied = (0..COPIES_MAX).map(|at| {
                let to = scratch.join(at.to_string());
                copy(&**disk, directory, &to)?;
                entries(&store::open_log(disk.clone(), &to, SEGMENT_BYTES, drive)?)
            });
            // Whoever has it open may have written while it was copied, or given a file up: then it is no log.
            let mut last = e;
            for copied in copied {
                match copied {
                    Ok(all) => {
                        return all.iter().try_for_each(|(index, entry)| call(*index, entry));
                    }
                    Err(e) => last = e,
                }
            }
            Err(last.context(format_args!("look at what is aside in `{}`", directory.display())))
        }
        Err(e) => Err(e),
    }
}

/// The topic's files, as they are while somebody may write them.
fn copy(disk: &dyn Disk, from: &Path, to: &Path) -> Result<()> {
    let [from, to] = [from, to].map(|log: &Path| -> PathBuf { log.join(TOPICS).join(TOPIC) });
    disk.create_dir_all(&to)?;
    if !disk.exists(&from)? {
        return Ok(());
    }
    for entry in disk.list(&from)?.iter().filter(|entry| !entry.is_dir) {
        let bytes = read_file(disk, &from.join(&entry.name), SEGMENT_BYTES)?;
        disk.create_private(&to.join(&entry.name), Access::Cached)?.write_at(&bytes, 0)?;
    }
    Ok(())
}

fn entries(log: &EmbeddedLog) -> Result<Vec<(Index, Vec<u8>)>> {
    let mut all = Vec::new();
    each(log, &mut |index, entry| {
        all.push((index, entry.to_vec()));
        Ok(())
    })?;
    Ok(all)
}

/// Calls back with what a log has aside, oldest first.
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
    use holdfast_log::LogOptions;
    use holdfast_sim::SimDisk;

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

    /// What a node's door keeps aside could be looked at by ending the node alone, for whose log it was.
    #[test]
    fn what_is_aside_is_shown_while_somebody_keeps_more() {
        let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(2));
        let (directory, scratch) = (Path::new("/node/scribe"), Path::new("/tmp/look"));
        let shown = |number: u64| {
            let mut shown = Vec::new();
            let scratch = scratch.join(number.to_string());
            let looked = look(&disk, directory, &scratch, Drive::Pump, &mut |_, entry| {
                let Aside::Message { category, .. } = Aside::decode(entry)? else { panic!() };
                shown.push(String::from_utf8(category.to_vec()).unwrap());
                Ok(())
            });
            looked.map(|()| shown)
        };
        let none = shown(0).unwrap_err();
        assert!(none.kind == Kind::NotFound && none.message.contains("scribe_port"), "{none}");
        let place = Place::open(disk.clone(), directory, Drive::Pump).unwrap();
        assert_eq!(shown(1), Ok(vec![]), "nothing was bad by now");
        for number in 1..=3 {
            let name = number.to_string();
            place.keep(&[Aside::message("too long", name.as_bytes(), b"m", 9)]).unwrap();
            let wanted: Vec<String> = (1..=number).map(|number: u64| number.to_string()).collect();
            assert_eq!(shown(1 + number), Ok(wanted.clone()), "while it is open");
            assert_eq!(place.counts(), (number, 0));
        }
        drop(place);
        assert_eq!(shown(9).unwrap().len(), 3, "when it is not");
        assert!(!disk.exists(&scratch.join("9")).unwrap(), "nothing was copied then");
    }
}
