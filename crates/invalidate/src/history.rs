//! The last entries of a topic that say something, which stay in it though no server needs them any more: for who asks
//! how fast keys change, and which. Bounded in entries and in bytes. Pure.

use holdfast_base::ids::Index;
use holdfast_env::planted;
use std::collections::VecDeque;

/// Entries that stay.
pub const ENTRIES_MAX: usize = 4096;
/// Their bytes.
pub const BYTES_MAX: usize = 4 << 20;

/// Which entries stay.
#[derive(Debug, Default)]
pub struct History {
    entries: VecDeque<(Index, usize)>,
    bytes: usize,
}

impl History {
    /// One more, behind the others.
    pub fn push(&mut self, index: Index, bytes: usize) {
        self.entries.push_back((index, bytes));
        self.bytes += bytes;
        let is_full =
            |history: &History| history.entries.len() > ENTRIES_MAX || history.bytes > BYTES_MAX;
        while is_full(self)
            && !planted!("invalidate.history-without-end")
            && let Some((_, bytes)) = self.entries.pop_front()
        {
            self.bytes -= bytes;
        }
    }

    /// The first of them, if there are any.
    pub fn first(&self) -> Option<Index> {
        self.entries.front().map(|(index, _)| *index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_entries_and_so_many_bytes_stay() {
        let mut history = History::default();
        assert_eq!(history.first(), None);
        (0..=ENTRIES_MAX as u64).for_each(|index| history.push(Index(index), 1));
        assert_eq!(history.first(), Some(Index(1)));
        history.push(Index(9000), BYTES_MAX - 10);
        assert_eq!(history.first(), Some(Index(ENTRIES_MAX as u64 - 9)));
        history.push(Index(9001), BYTES_MAX + 1);
        assert_eq!(history.first(), None, "one that is too large alone does not stay");
        history.push(Index(9002), 7);
        assert_eq!(history.first(), Some(Index(9002)));
    }
}
