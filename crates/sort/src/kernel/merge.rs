//! Merging sorted sources: a tree of losers (Knuth, volume 3, 5.4.1), in which the next record
//! costs one comparison a level, of the prefixes alone where these differ.

use holdfast_env::planted;
use std::cmp::Ordering;

/// Above all prefixes: of a source that has no more records.
const ENDED: u128 = u128::MAX;

/// Chooses among sources, numbered from 0; equal records come in the order of their sources.
pub struct LoserTree {
    /// Inner nodes: the source that lost there. The first is the winner of all.
    losers: Vec<usize>,
    /// Prefixes of the sources' next records.
    heads: Vec<u128>,
}

impl LoserTree {
    /// One prefix a source, at least one; none for a source without records. `ties` compares the
    /// next records of two sources whose prefixes are equal.
    pub fn new(
        heads: impl Iterator<Item = Option<u128>>,
        ties: impl Fn(usize, usize) -> Ordering,
    ) -> LoserTree {
        let heads: Vec<u128> = heads.map(|head| head.unwrap_or(ENDED)).collect();
        let count = heads.len();
        let mut tree = LoserTree { losers: vec![usize::MAX; count.max(1)], heads };
        for source in 0..count {
            tree.rise(source, &ties);
        }
        tree
    }

    /// The source whose record is next; none when all have ended.
    #[inline]
    pub fn winner(&self) -> Option<usize> {
        let winner = self.losers[0];
        self.heads.get(winner).is_some_and(|head| *head != ENDED).then_some(winner)
    }

    /// Replaces the winner's prefix by that of its source's next record, and finds the new winner.
    #[inline]
    pub fn advance(&mut self, head: Option<u128>, ties: impl Fn(usize, usize) -> Ordering) {
        let winner = self.losers[0];
        self.heads[winner] = head.unwrap_or(ENDED);
        self.rise(winner, &ties);
    }

    /// Plays from the leaf of `source` to the root. While the tree fills, the first to come to a
    /// node waits there for its opponent.
    #[inline]
    fn rise(&mut self, source: usize, ties: &impl Fn(usize, usize) -> Ordering) {
        let (mut winner, mut head) = (source, self.heads[source]);
        let mut node = (source + self.losers.len()) / 2;
        while node > 0 {
            let opponent = self.losers[node];
            if opponent == usize::MAX {
                self.losers[node] = winner;
                return;
            }
            let other = self.heads[opponent];
            let mut loses = other < head;
            if other == head {
                let tie = if head == ENDED { Ordering::Equal } else { ties(opponent, winner) };
                let first = tie.then(opponent.cmp(&winner));
                loses = first.is_lt() != (tie.is_eq() && planted!("sort.merge-turns-ties"));
            }
            // Who wins is a coin's toss: chosen, not branched on.
            self.losers[node] = if loses { winner } else { opponent };
            winner = if loses { opponent } else { winner };
            head = if loses { other } else { head };
            node /= 2;
        }
        self.losers[0] = winner;
    }
}
