//! Where events end in their file, in 64 bits. An event's header has 32 of them, and a file may be larger than
//! 4 GiB, since a transaction is never divided: an end that is taken for 4 GiB less is visible long before it is, and
//! its keys are dropped in front of what readers still see. Pure.

use super::event::kind;
use crate::position::{Gtid, Gtids, Place};
use holdfast_env::planted;
use std::collections::BTreeSet;

/// What a header can say.
const NARROW: u64 = 1 << 32;

/// How far the log had come when it was begun to be read.
#[derive(Clone, Debug)]
pub struct Known {
    /// All transactions that end behind `behind` in its file are not among these.
    pub gtids: Gtids,
    /// The log's end, before it was asked for them, and after.
    pub behind: Place,
    pub before: Place,
    /// Files that a header's numbers are too short for.
    pub large: BTreeSet<String>,
}

impl Known {
    /// By the log's files, with their sizes.
    pub fn new(gtids: Gtids, behind: Place, before: Place, files: Vec<(String, u64)>) -> Known {
        let large = files.into_iter().filter(|(_, bytes)| *bytes >= NARROW);
        Known { gtids, behind, before, large: large.map(|(name, _)| name).collect() }
    }
}

/// See the module.
pub struct Ends {
    known: Known,
    /// Behind the last event whose end is known, in this file.
    at: u64,
    file: String,
}

impl Ends {
    /// Of a log that is begun to be read anywhere.
    pub fn new(known: Known) -> Ends {
        Ends { known, at: 0, file: String::new() }
    }

    /// The log goes on in this file, or begins there; events of one that was begun in the middle may be anywhere.
    pub fn goes_on_in(&mut self, file: &str) {
        if file != self.file {
            (self.at, self.file) = (0, file.to_owned());
        }
    }

    /// A transaction begins. One that was not in the log when reading began lies behind what was there.
    pub fn begins(&mut self, gtid: Gtid) {
        let Known { gtids, behind, .. } = &self.known;
        if behind.file == self.file && !gtids.covers(gtid) {
            self.at = self.at.max(behind.offset);
        }
    }

    /// Where an event ends whose header says `said`.
    pub fn end(&mut self, event: u8, said: u32) -> u64 {
        if planted!("invalidate.ends-of-32-bits") {
            return said.into();
        }
        // What the server makes up for who begins to read, and says in between, has no place, or another one.
        if kind::is_idle(event) && event != kind::XID && event != kind::XA_PREPARE {
            return said.into();
        }
        if said == 0 {
            return self.at;
        }
        let mut end = self.at / NARROW * NARROW + u64::from(said);
        // No event is so long: a smaller number is one that began anew.
        if end + NARROW / 2 < self.at {
            end += NARROW;
        }
        self.at = self.at.max(end);
        end
    }

    /// A place at or behind a transaction's end. Of those that were in a large file when reading began, which may
    /// have begun in its middle, the end may be one of several, and the log's end of then will do.
    pub fn place(&self, gtid: Gtid, end: Place) -> Place {
        let Known { gtids, before, large, .. } = &self.known;
        match large.contains(&end.file) && gtids.covers(gtid) {
            true => before.clone(),
            false => end,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_base::random::Random;

    const GIB: u64 = 1 << 30;

    fn gtid(sequence: u64) -> Gtid {
        Gtid { domain: 0, server: 1, sequence }
    }

    fn place(file: &str, offset: u64) -> Place {
        Place { file: file.to_owned(), offset }
    }

    /// A log of files of up to 12 GiB, read from any of its transactions on, while more are written: every end that is
    /// told is at or behind the real one, exact where nothing was larger than 4 GiB, and never behind what the log
    /// had when it was told.
    #[test]
    fn an_end_is_never_in_front_of_the_real_one() {
        let (mut wrapped, mut unsure) = (0, 0);
        for seed in 0..2000 {
            let mut random = Random::new(seed);
            let mut log: Vec<(u64, Place)> = Vec::new();
            let (mut file, mut at) = (1, 4);
            for sequence in 1..30 {
                let most = [GIB / 64, GIB, 2 * GIB - 200][random.below(3) as usize];
                at += 100 + random.below(most);
                log.push((sequence, place(&format!("bin.{file:06}"), at)));
                if random.below(12) == 0 {
                    (file, at) = (file + 1, 4);
                }
            }
            let begun = 1 + random.below(28) as usize;
            let from = random.below(begun as u64) as usize;
            let end_at = |at: usize| log[at - 1].1.clone();
            let gtids = Gtids::parse(&format!("0-1-{begun}")).unwrap();
            let sizes = log[..begun].iter().map(|(_, end)| (end.file.clone(), end.offset));
            let known = Known::new(gtids, end_at(begun), end_at(begun), sizes.collect());
            let mut ends = Ends::new(known.clone());
            for (sequence, real) in &log[from..] {
                ends.goes_on_in(&real.file);
                ends.begins(gtid(*sequence));
                // The server says in between how far it is, and what it has said before.
                ends.end(kind::HEARTBEAT, random.next() as u32);
                let end = ends.end(kind::XID, real.offset as u32);
                let told = ends.place(gtid(*sequence), place(&real.file, end));
                assert!(told.covers(real), "seed {seed}: {told:?} in front of {real:?}");
                let is_exact = told == *real;
                let was_there = *sequence <= begun as u64;
                assert!(
                    is_exact || was_there && known.before.covers(&told),
                    "seed {seed}: {told:?}"
                );
                assert!(is_exact || known.large.contains(&real.file), "seed {seed}: {told:?}");
                wrapped += u64::from(is_exact && real.offset >= NARROW);
                unsure += u64::from(!is_exact);
            }
        }
        assert!(wrapped > 1000 && unsure > 1000, "{wrapped} wrapped, {unsure} unsure");
    }

    /// What has no end of its own is as far as what was in front of it.
    #[test]
    fn an_event_without_an_end_is_not_in_front_of_the_last_one() {
        let nowhere = Place::default();
        let start = Known::new(Gtids::default(), nowhere.clone(), nowhere, Vec::new());
        let mut ends = Ends::new(start);
        ends.goes_on_in("bin.000001");
        assert_eq!(ends.end(kind::XID, 500), 500);
        assert_eq!(ends.end(kind::QUERY, 0), 500);
        assert_eq!(ends.end(kind::XID, 400), 400, "an older one, as it says");
        assert_eq!(ends.end(kind::XID, 900), 900);
    }
}
