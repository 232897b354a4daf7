//! A view as the model sees it: at each index other keys, some of them so large that they go on
//! over many slabs. Rows are drawn from the index, so what a snapshot holds is known to whoever
//! knows its index.

use holdfast_base::random::{Random, mix};
use holdfast_ride::carousel::{Slab, Span};

/// One version of one key; its pieces count from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Row {
    pub key: u8,
    pub piece: u8,
}

/// A slab with what is in it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Content {
    /// The index of the snapshot that it was made of.
    pub index: u64,
    pub slab: Slab,
    pub rows: Vec<Row>,
}

/// What is drawn.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct View {
    pub seed: u64,
    pub heads: usize,
    /// Slabs of a head, about.
    pub slabs: u64,
}

/// Hashes of a head.
pub const HEAD: u64 = 1000;

impl View {
    pub fn spans(&self) -> Vec<Span> {
        (0..self.heads as u64).map(|at| Span { low: at * HEAD, high: (at + 1) * HEAD }).collect()
    }

    /// A head's slabs at an index, in order.
    pub fn slabs(&self, index: u64, head: usize) -> Vec<Content> {
        let mut random = Random::new(mix(self.seed ^ mix(index) ^ mix(head as u64 + 7)));
        let wanted = random.below(self.slabs + 1);
        let mut groups: Vec<Vec<Row>> = Vec::new();
        let mut key = 0;
        while (groups.len() as u64) < wanted {
            match random.below(3) {
                // A few small keys in one slab, with several versions each.
                0 | 1 => {
                    let mut rows = Vec::new();
                    for _ in 0..=random.below(3) {
                        let pieces = random.below(3) as u8;
                        rows.extend((0..=pieces).map(|piece| Row { key, piece }));
                        key += 1;
                    }
                    groups.push(rows);
                }
                // A large key in slabs of its own.
                _ => {
                    let pieces = 2 + random.below(self.slabs) as u8;
                    groups.extend((0..pieces).map(|piece| vec![Row { key, piece }]));
                    key += 1;
                }
            }
        }
        if groups.is_empty() {
            groups.push(Vec::new());
        }
        let count = groups.len();
        let slab = |(number, rows): (usize, Vec<Row>)| {
            let slab = Slab {
                number: number as u64,
                bytes: 20 + random.below(100),
                joinable: rows.first().is_none_or(|row| row.piece == 0),
                first: rows.first().map_or(Vec::new(), |row| vec![row.key, row.piece]),
                last: number + 1 == count,
            };
            Content { index, slab, rows }
        };
        groups.into_iter().enumerate().map(slab).collect()
    }
}
