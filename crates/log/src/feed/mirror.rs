//! What a node has of a topic that another one hosts: the durable entries of one unbroken run, in
//! memory. Pure: who asks, and when, is the driver's.

use holdfast_base::ids::Index;
use holdfast_base::{Error, Result};
use holdfast_env::planted;
use holdfast_env::trial::Knob;
use std::collections::VecDeque;

/// Entries that nobody has read yet; no more is fetched before some are.
pub static MIRROR_BYTES_MAX: Knob = Knob::new("log.mirror-bytes", 16 << 20, &[200, 1000, 4000]);
/// Entries that were read are kept up to here, for whoever looks back.
static READ_BYTES_KEPT: Knob = Knob::new("log.mirror-read-bytes", 1 << 20, &[1, 100, 500]);

/// Never so much that there is no room for what comes.
fn read_bytes_kept() -> usize {
    READ_BYTES_KEPT.size().min(MIRROR_BYTES_MAX.size() / 2)
}

pub struct Mirror {
    /// Every entry of the topic from `start` up to `next`, and no other.
    entries: VecDeque<(Index, Vec<u8>)>,
    bytes: usize,
    start: Index,
    next: Index,
    /// Where somebody read last.
    read: Index,
}

/// What a reader finds.
#[derive(Debug, PartialEq, Eq)]
pub enum Page {
    Entries(Vec<(Index, Vec<u8>)>),
    /// Not here yet.
    Later,
    /// Not here any more, or never: has to be fetched anew.
    Before,
}

impl Mirror {
    pub fn new(start: Index) -> Mirror {
        Mirror { entries: VecDeque::new(), bytes: 0, start, next: start, read: start }
    }

    /// The index behind the last entry; what is fetched next begins there.
    pub fn next(&self) -> Index {
        self.next
    }

    pub fn holds(&self, from: Index) -> bool {
        self.start <= from && from < self.next
    }

    pub fn is_before(&self, from: Index) -> bool {
        from < self.start
    }

    /// Whether more is to be fetched.
    pub fn has_room(&self) -> bool {
        let room = self.bytes < MIRROR_BYTES_MAX.size();
        if !room {
            MIRROR_BYTES_MAX.cross();
        }
        room
    }

    /// Takes what was fetched from `next` on.
    pub fn push(&mut self, entries: Vec<(Index, Vec<u8>)>) -> Result<()> {
        for (index, entry) in entries {
            if index < self.next && !planted!("log.mirror-takes-entries-twice") {
                return Err(Error::bug(format!(
                    "the host answered with entry {index} where {} was asked for",
                    self.next
                )));
            }
            self.bytes += entry.len();
            self.next = Index(index.0 + 1);
            self.entries.push_back((index, entry));
        }
        Ok(())
    }

    pub fn page(&mut self, from: Index, entries_max: usize, bytes_max: usize) -> Page {
        if from < self.start {
            return Page::Before;
        }
        self.read = from;
        let until = if planted!("log.mirror-drops-unread") { from.0 + 1 } else { from.0 };
        while self.bytes > read_bytes_kept()
            && self.entries.front().is_some_and(|(index, _)| index.0 < until)
            && let Some((index, entry)) = self.entries.pop_front()
        {
            READ_BYTES_KEPT.cross();
            self.bytes -= entry.len();
            self.start = Index(index.0 + 1);
        }
        let at = self.entries.partition_point(|(index, _)| *index < from);
        let mut page: Vec<(Index, Vec<u8>)> = Vec::new();
        let mut bytes = 0;
        for (index, entry) in self.entries.range(at..).take(entries_max.max(1)) {
            bytes += entry.len();
            if bytes > bytes_max && !page.is_empty() {
                break;
            }
            page.push((*index, entry.clone()));
        }
        if page.is_empty() { Page::Later } else { Page::Entries(page) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_env::trial::Trial;
    use holdfast_env::{Rng, SeededRng};

    fn entry(index: u64, bytes: usize) -> (Index, Vec<u8>) {
        (Index(index), vec![index as u8; bytes])
    }

    fn indices(page: Page) -> Vec<u64> {
        let Page::Entries(entries) = page else { panic!("{page:?}") };
        entries.into_iter().map(|(index, _)| index.0).collect()
    }

    #[test]
    fn pages_respect_their_limits_and_gaps_are_no_entries() {
        let mut mirror = Mirror::new(Index(3));
        assert_eq!(mirror.page(Index(3), 9, 9), Page::Later);
        mirror.push(vec![entry(3, 10), entry(5, 10), entry(9, 10)]).unwrap();
        assert_eq!(indices(mirror.page(Index(4), 9, 100)), [5, 9]);
        assert_eq!(indices(mirror.page(Index(3), 2, 100)), [3, 5]);
        assert_eq!(indices(mirror.page(Index(3), 9, 1)), [3], "one, however long");
        assert_eq!(mirror.page(Index(10), 9, 100), Page::Later);
        assert_eq!(mirror.page(Index(2), 9, 100), Page::Before);
        assert!(mirror.push(vec![entry(9, 1)]).is_err());
        assert!(mirror.holds(Index(4)) && !mirror.holds(Index(10)) && !mirror.holds(Index(2)));
        assert!(mirror.is_before(Index(2)) && !mirror.is_before(Index(3)));
        assert!(!mirror.is_before(Index(10)));
    }

    #[test]
    fn what_was_read_makes_room_and_what_was_not_stays() {
        let mut mirror = Mirror::new(Index(1));
        mirror.push((1..=16).map(|i| entry(i, 1 << 20)).collect()).unwrap();
        assert!(!mirror.has_room());
        assert_eq!(indices(mirror.page(Index(1), 1, 1)), [1]);
        assert!(!mirror.has_room(), "nothing lies before what is read");
        assert_eq!(indices(mirror.page(Index(10), 99, 2 << 20)), [10, 11]);
        assert!(mirror.has_room());
        assert_eq!(mirror.page(Index(9), 1, 1), Page::Before);
        assert_eq!(indices(mirror.page(Index(16), 1, 1)), [16]);
        assert_eq!(mirror.next(), Index(17));
    }

    /// Random fetches and reads of a topic with gaps, beside the topic itself: a page is a run of
    /// its entries from the asked one on, none missing; what is before comes again by a fetch.
    #[test]
    fn a_mirror_does_what_the_topic_itself_does() {
        for seed in 0..300 {
            let _trial = Trial::drawn(seed).enter();
            let rng = SeededRng::new(seed);
            let below = |n: u64| rng.next_u64() % n;
            let mut index = 0;
            let topic: Vec<(Index, Vec<u8>)> = (0..200)
                .map(|_| {
                    index += 1 + below(3) / 2;
                    entry(index, below(60) as usize)
                })
                .collect();
            let mut mirror = Mirror::new(Index(1));
            let mut from = 1;
            let mut steps = 0;
            while from <= index {
                steps += 1;
                assert!(steps < 20_000, "seed {seed}: stuck at {from}");
                if mirror.has_room() && below(2) == 0 {
                    let at = topic.partition_point(|(index, _)| *index < mirror.next());
                    let end = topic.len().min(at + 1 + below(5) as usize);
                    let fetched = topic[at..end].to_vec();
                    let again = fetched.first().cloned();
                    mirror.push(fetched).unwrap();
                    if let Some(again) = again {
                        assert!(mirror.push(vec![again]).is_err(), "an answer that came twice");
                    }
                }
                let back = if below(8) == 0 { below(10) } else { 0 };
                let asked = Index(from.saturating_sub(back).max(1));
                let (entries_max, bytes_max) = (1 + below(6) as usize, 1 + below(200) as usize);
                match mirror.page(asked, entries_max, bytes_max) {
                    Page::Before => {
                        assert!(back > 0, "seed {seed}: {asked} was never read, and is gone");
                        mirror = Mirror::new(asked);
                        from = asked.0;
                    }
                    Page::Later => assert!(
                        asked >= mirror.next() || !mirror.holds(asked) || {
                            // Only a gap lies there.
                            !topic
                                .iter()
                                .any(|(index, _)| *index >= asked && *index < mirror.next())
                        }
                    ),
                    Page::Entries(page) => {
                        let at = topic.partition_point(|(index, _)| *index < asked);
                        assert_eq!(page, topic[at..at + page.len()], "seed {seed}");
                        let bytes: usize = page.iter().map(|(_, entry)| entry.len()).sum();
                        assert!(page.len() <= entries_max);
                        assert!(bytes <= bytes_max || page.len() == 1);
                        from = page.last().unwrap().0.0 + 1;
                    }
                }
            }
        }
    }
}
