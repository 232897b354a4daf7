//! Hours of a category: which entries came in which hour, by the clock of the node that looks after the log, and
//! which of them are in a file. Entries of the topic say so, so that whoever goes on writes no hour twice, and
//! none that is there already. Part of a category's view ([`crate::view`]): total, and deterministic.

use holdfast_base::codec::{DecodeError, Reader};
use holdfast_base::ids::Index;
use holdfast_base::stream::{Source, Writer};
use holdfast_base::text::utc;
use holdfast_base::{Error, Result};
use holdfast_env::planted;
use std::collections::{BTreeMap, BTreeSet};

/// Of such an entry; all others have smaller ones.
pub const VERSION: u8 = 4;
const _: () = assert!(VERSION > crate::word::VERSION);
/// Hours of a category that are remembered, seven years of them. The files of older ones stay when their entries
/// go.
pub const HOURS_MAX: usize = 1 << 16;

const HOUR_S: u64 = 3600;
const BEGINS: u8 = 1;
const WRITTEN: u8 = 2;
const GIVEN_UP: u8 = 3;
const ENDS: u8 = 4;

/// An hour, counted since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hour(pub u64);

impl Hour {
    pub fn at_ms(unix_ms: u64) -> Hour {
        Hour(unix_ms / (1000 * HOUR_S))
    }

    /// `2026-11-22/13`, in UTC: a day's directory, and a file's name.
    pub fn name(self) -> String {
        // Beyond what a calendar has, all hours are one.
        let seconds = i64::try_from(self.0.saturating_mul(HOUR_S)).unwrap_or_default();
        let text = utc(seconds, '/');
        text.split(':').next().unwrap_or_default().to_owned()
    }
}

/// An entry about hours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// What comes behind it is of this hour, unless that is not later than the last one was: a clock that was set
    /// back begins no hour again.
    Begins(Hour),
    /// The hour's file is there.
    Written(Hour),
    /// It is gone, as its entries are.
    GivenUp(Hour),
    /// No more files, but of what came until now.
    Ends,
}

/// Whether an entry is one.
pub fn is_one(entry: &[u8]) -> bool {
    entry.first() == Some(&VERSION)
}

impl Mark {
    /// As an entry.
    pub fn encode(self) -> Vec<u8> {
        let (kind, hour) = match self {
            Mark::Begins(hour) => (BEGINS, hour),
            Mark::Written(hour) => (WRITTEN, hour),
            Mark::GivenUp(hour) => (GIVEN_UP, hour),
            Mark::Ends => (ENDS, Hour(0)),
        };
        let mut out = vec![VERSION, kind];
        out.extend_from_slice(&hour.0.to_le_bytes());
        out
    }

    /// Reads an entry.
    pub fn decode(entry: &[u8]) -> Result<Mark> {
        let parse = || {
            let mut reader = Reader::new(entry);
            let [version, kind] = reader.array()?;
            let hour = Hour(u64::from_le_bytes(reader.array()?));
            reader.finish()?;
            match (version, kind) {
                (VERSION, BEGINS) => Ok(Mark::Begins(hour)),
                (VERSION, WRITTEN) => Ok(Mark::Written(hour)),
                (VERSION, GIVEN_UP) => Ok(Mark::GivenUp(hour)),
                (VERSION, ENDS) => Ok(Mark::Ends),
                _ => Err(DecodeError::BadValue("mark")),
            }
        };
        parse().map_err(|e| Error::from(e).context("read a mark of hours"))
    }
}

/// An hour that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Over {
    /// Its entries, up to but without `until`.
    pub from: Index,
    pub until: Index,
    pub is_written: bool,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hours {
    /// Whether files are asked for.
    is_on: bool,
    /// The latest one that ever began.
    last: Hour,
    /// Where the one under way began, which is the last, and whether messages came since.
    open: Option<(Index, bool)>,
    /// Those with messages in them.
    over: BTreeMap<Hour, Over>,
    /// Those of them that are in no file: each second it is asked whether there are any, over years of hours.
    waiting: BTreeSet<Hour>,
}

impl Hours {
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    pub fn last(&self) -> Hour {
        self.last
    }

    /// Whether there is anything to look after.
    pub fn has_some(&self) -> bool {
        self.is_on || !self.over.is_empty()
    }

    /// How many hours are in files, and how many wait to be.
    pub fn counts(&self) -> (u64, u64) {
        let waiting = self.waiting.len() as u64;
        (self.over.len() as u64 - waiting, waiting)
    }

    /// The first one that is to be written.
    pub fn to_write(&self) -> Option<(Hour, Over)> {
        let hour = self.waiting.first()?;
        Some((*hour, self.over[hour]))
    }

    /// The first one whose file goes, where the topic begins with this entry.
    pub fn to_give_up(&self, first: Index) -> Option<Hour> {
        let (hour, over) = self.over.first_key_value()?;
        (over.is_written && over.until <= first).then_some(*hour)
    }

    /// The first entry that is in no file yet.
    pub fn needed(&self) -> Option<Index> {
        self.to_write().map(|(_, over)| over.from).or(self.open.map(|(from, _)| from))
    }

    /// Messages came.
    pub fn took(&mut self) {
        if let Some((_, has_some)) = &mut self.open {
            *has_some = true;
        }
    }

    /// Takes the entry `at`.
    pub fn mark(&mut self, at: Index, mark: Mark) {
        match mark {
            Mark::Begins(hour) => {
                self.is_on = true;
                if hour > self.last || planted!("scribe.hours-again") {
                    self.close(at);
                    (self.last, self.open) = (hour, Some((at, false)));
                }
            }
            Mark::Written(hour) => {
                if let Some(over) = self.over.get_mut(&hour) {
                    over.is_written = true;
                    self.waiting.remove(&hour);
                }
            }
            Mark::GivenUp(hour) => self.forget(hour),
            Mark::Ends => {
                self.is_on = false;
                self.close(at);
            }
        }
    }

    fn close(&mut self, until: Index) {
        let Some((from, true)) = self.open.take() else { return };
        self.over.insert(self.last, Over { from, until, is_written: false });
        self.waiting.insert(self.last);
        if self.over.len() > HOURS_MAX
            && let Some((oldest, _)) = self.over.first_key_value()
        {
            self.forget(*oldest);
        }
    }

    fn forget(&mut self, hour: Hour) {
        self.over.remove(&hour);
        self.waiting.remove(&hour);
    }

    /// As a part of the view's snapshot.
    pub fn write(&self, out: &mut Writer<'_>) {
        out.put(&self.is_on);
        out.put(&self.last.0);
        let (from, has_some) = self.open.unwrap_or_default();
        out.put(&from.0);
        out.put(&has_some);
        out.put(&(self.over.len() as u64));
        for (hour, Over { from, until, is_written }) in &self.over {
            [hour.0, from.0, until.0].iter().for_each(|number| out.put(number));
            out.put(is_written);
        }
    }

    /// The inverse.
    pub fn read(source: &mut Source<'_>) -> Result<Hours> {
        let (is_on, last) = (source.get()?, Hour(source.get()?));
        let open = (Index(source.get()?), source.get()?);
        let open = Some(open).filter(|(from, _)| *from != Index(0));
        let mut over = BTreeMap::new();
        for _ in 0..source.get::<u64>()? {
            let hour = Hour(source.get()?);
            let (from, until) = (Index(source.get()?), Index(source.get()?));
            over.insert(hour, Over { from, until, is_written: source.get()? });
        }
        let waiting = over.iter().filter(|(_, over): &(_, &Over)| !over.is_written);
        let waiting = waiting.map(|(hour, _)| *hour).collect();
        Ok(Hours { is_on, last, open, over, waiting })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_base::stream;
    use holdfast_env::{Rng, SeededRng};

    #[test]
    fn the_bytes_stay_as_they_are_documented_and_what_is_none_is_refused() {
        let hour = Hour(0x0102);
        for (mark, kind) in [
            (Mark::Begins(hour), 1),
            (Mark::Written(hour), 2),
            (Mark::GivenUp(hour), 3),
            (Mark::Ends, 4),
        ] {
            let entry = mark.encode();
            let low = if kind == 4 { [0, 0] } else { [2, 1] };
            assert_eq!(entry, [4, kind, low[0], low[1], 0, 0, 0, 0, 0, 0]);
            assert_eq!(Mark::decode(&entry), Ok(mark));
            for at in 0..entry.len() {
                assert!(Mark::decode(&entry[..at]).is_err());
            }
        }
        assert!(Mark::decode(&[4, 9, 0, 0, 0, 0, 0, 0, 0, 0]).is_err());
    }

    #[test]
    fn hours_have_names_of_a_calendar() {
        assert_eq!(Hour::at_ms(1_795_352_399_999).name(), "2026-11-22/12");
        assert_eq!(Hour::at_ms(1_795_352_400_000).name(), "2026-11-22/13");
        assert_eq!(Hour(0).name(), "1970-01-01/00");
        assert_eq!(Hour(u64::MAX).name(), "1970-01-01/00", "no such hour is a name all the same");
    }

    /// A clock that is set an hour back had the hour written a second time, over the first.
    #[test]
    fn each_hour_is_once_whatever_the_clock_says() {
        let mut hours = Hours::default();
        let mut at = 0;
        let mut mark = |hours: &mut Hours, mark| {
            at += 10;
            hours.mark(Index(at), mark);
            hours.took();
        };
        mark(&mut hours, Mark::Begins(Hour(100)));
        mark(&mut hours, Mark::Begins(Hour(101)));
        let first = Over { from: Index(10), until: Index(20), is_written: false };
        assert_eq!(hours.to_write(), Some((Hour(100), first)));
        mark(&mut hours, Mark::Begins(Hour(100)));
        mark(&mut hours, Mark::Begins(Hour(101)));
        assert_eq!(hours.counts(), (0, 1), "the hour that is under way goes on");
        mark(&mut hours, Mark::Written(Hour(100)));
        mark(&mut hours, Mark::Begins(Hour(102)));
        let second = Over { from: Index(20), until: Index(60), is_written: false };
        assert_eq!(hours.to_write(), Some((Hour(101), second)));
        // It ends, and begins again in the same hour: what is written stays.
        mark(&mut hours, Mark::Ends);
        mark(&mut hours, Mark::Begins(Hour(102)));
        assert!(hours.is_on() && hours.counts() == (1, 2));
        mark(&mut hours, Mark::Begins(Hour(103)));
        mark(&mut hours, Mark::Begins(Hour(104)));
        assert_eq!(hours.counts(), (1, 3));
        // Files go with their entries, the oldest first.
        assert_eq!(
            (hours.to_give_up(Index(19)), hours.to_give_up(Index(20))),
            (None, Some(Hour(100)))
        );
        mark(&mut hours, Mark::GivenUp(Hour(100)));
        assert_eq!(hours.to_give_up(Index(1000)), None, "it is not written yet");
        assert_eq!(hours.needed(), Some(Index(20)));
        let mut bytes = Vec::new();
        stream::collect(&mut bytes, |out| hours.write(out));
        assert_eq!(stream::read_all(&bytes, Hours::read), Ok(hours));
    }

    /// What waits is counted as it changes: the same as by a walk over all hours, whatever came.
    #[test]
    fn what_waits_is_what_a_walk_finds() {
        let rng = SeededRng::new(7);
        let below = |n: u64| rng.next_u64() % n;
        let mut hours = Hours::default();
        for at in 1..4000 {
            let near = Hour(hours.last.0.saturating_sub(6) + below(8));
            let marks = [Mark::Begins(near), Mark::Written(near), Mark::GivenUp(near), Mark::Ends];
            hours.mark(Index(at), marks[below(4) as usize]);
            if below(2) == 0 {
                hours.took();
            }
            let walk = || hours.over.iter().filter(|(_, over)| !over.is_written);
            assert_eq!(hours.to_write(), walk().next().map(|(hour, over)| (*hour, *over)));
            let waiting = walk().count() as u64;
            assert_eq!(hours.counts(), (hours.over.len() as u64 - waiting, waiting));
            if at % 100 == 0 {
                let mut bytes = Vec::new();
                stream::collect(&mut bytes, |out| hours.write(out));
                assert_eq!(stream::read_all(&bytes, Hours::read).as_ref(), Ok(&hours));
            }
        }
        assert!(hours.last.0 > 100);
    }

    #[test]
    fn an_hour_without_messages_has_no_file_and_their_number_is_bounded() {
        let mut hours = Hours::default();
        hours.mark(Index(1), Mark::Begins(Hour(1)));
        hours.mark(Index(2), Mark::Begins(Hour(2)));
        assert_eq!((hours.counts(), hours.needed()), ((0, 0), Some(Index(2))));
        for hour in 3..HOURS_MAX as u64 + 10 {
            hours.took();
            hours.mark(Index(hour), Mark::Begins(Hour(hour)));
        }
        assert_eq!(hours.counts().1, HOURS_MAX as u64);
    }
}
