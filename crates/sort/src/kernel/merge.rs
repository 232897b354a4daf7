//! Merging sorted sources: a tree of losers (Knuth, volume 3, 5.4.1), in which the next record
//! costs one comparison a level, of the prefixes alone where these differ.

use crate::order::Order;
use std::cmp::Ordering;

/// What a merge knows of a source's next record.
#[derive(Clone, Debug, Default)]
pub struct Head {
    pub prefix: u128,
    pub body: Vec<u8>,
    /// The source has no more records.
    pub ended: bool,
}

/// Chooses among sources, numbered from 0; equal records come in the order of their sources.
pub struct LoserTree {
    /// Inner nodes: the source that lost there. The first is the winner of all.
    losers: Vec<usize>,
    heads: Vec<Head>,
}

impl LoserTree {
    /// One head a source, at least one.
    pub fn new(heads: Vec<Head>, order: &Order) -> LoserTree {
        let count = heads.len();
        let mut tree = LoserTree { losers: vec![usize::MAX; count.max(1)], heads };
        for source in 0..count {
            tree.rise(source, order);
        }
        tree
    }

    /// The source whose record is next; none when all have ended.
    #[inline]
    pub fn winner(&self) -> Option<usize> {
        let winner = self.losers[0];
        self.heads.get(winner).is_some_and(|head| !head.ended).then_some(winner)
    }

    pub fn head(&self, source: usize) -> &Head {
        &self.heads[source]
    }

    /// Lets `change` replace the winner's head by its source's next, and finds the new winner.
    pub fn advance(&mut self, winner: usize, order: &Order, change: impl FnOnce(&mut Head)) {
        change(&mut self.heads[winner]);
        self.rise(winner, order);
    }

    /// Plays from the leaf of `source` to the root. While the tree fills, the first to come to a
    /// node waits there for its opponent.
    fn rise(&mut self, source: usize, order: &Order) {
        let mut winner = source;
        let mut node = (source + self.losers.len()) / 2;
        while node > 0 {
            let opponent = self.losers[node];
            if opponent == usize::MAX {
                self.losers[node] = winner;
                return;
            }
            if self.compare(opponent, winner, order).is_lt() {
                self.losers[node] = winner;
                winner = opponent;
            }
            node /= 2;
        }
        self.losers[0] = winner;
    }

    fn compare(&self, a: usize, b: usize, order: &Order) -> Ordering {
        let (x, y) = (&self.heads[a], &self.heads[b]);
        match (x.ended, y.ended) {
            (false, false) => {}
            (one, other) => return one.cmp(&other).then(a.cmp(&b)),
        }
        x.prefix
            .cmp(&y.prefix)
            .then_with(|| order.compare(&x.body, &y.body))
            .then_with(|| a.cmp(&b))
    }
}
