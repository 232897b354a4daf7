//! What a node has of a topic that another one hosts: the durable entries of one unbroken run, in
//! memory. Pure: who asks, and when, is the driver's.

use holdfast_base::ids::Index;
use holdfast_base::{Error, Result};
use std::collections::VecDeque;

/// Entries that nobody has read yet; no more is fetched before some are.
pub const MIRROR_BYTES_MAX: usize = 16 << 20;
/// Entries that were read are kept up to here, for whoever looks back.
const READ_BYTES_KEPT: usize = 1 << 20;

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
        self.bytes < MIRROR_BYTES_MAX
    }

    /// Takes what was fetched from `next` on.
    pub fn push(&mut self, entries: Vec<(Index, Vec<u8>)>) -> Result<()> {
        for (index, entry) in entries {
            if index < self.next {
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
        while self.bytes > READ_BYTES_KEPT
            && self.entries.front().is_some_and(|(index, _)| *index < from)
            && let Some((index, entry)) = self.entries.pop_front()
        {
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
}
