//! Which blocks of which attempt at which split of the input count. Pure.
//!
//! A split is mapped by an attempt, and by another one where that was lost, and sometimes by both at
//! once. What counts is the first attempt that was *finished whole*: its sender said how many blocks
//! and which sums it had sent, and they are here. All other blocks are as if they had never come.

use crate::kept::Kept;
use holdfast_base::limits::SECTOR_BYTES;
use holdfast_base::{Error, Result, codec_struct};
use holdfast_env::planted;
use holdfast_sort::hash::Sum;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Where a block is.
#[derive(Clone)]
pub enum Place {
    /// In the receiver's file, from a whole number of sectors on.
    File(u64),
    /// In its memory, as long as somebody has this.
    Memory(Arc<Kept>),
}

/// A block that arrived.
#[derive(Clone)]
pub struct Extent {
    /// Where it is.
    pub place: Place,
    /// Bytes that count.
    pub bytes: u32,
    /// CRC32C of them, as the sender made it.
    pub crc: u32,
}

impl Extent {
    /// Bytes that it is read into: none where it is in memory, else its whole sectors.
    pub fn room(&self) -> usize {
        match self.place {
            Place::Memory(_) => 0,
            Place::File(_) => (self.bytes as usize).next_multiple_of(SECTOR_BYTES),
        }
    }
}

/// One attempt at one split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attempt {
    /// Number of the split: equal records come in the order of these.
    pub split: u64,
    /// Drawn at random by whoever maps it.
    pub id: u64,
}
codec_struct!(Attempt { split, id });

/// What a sender says at its end: the sums of the records that it sent to each partition.
pub type Sums = Vec<(u32, Sum)>;

#[derive(Default)]
struct Sent {
    blocks: BTreeMap<u32, Vec<Extent>>,
    count: u64,
    sums: BTreeMap<u32, Sum>,
}

/// What a receiver knows of its partitions.
pub struct Ledger {
    partitions: BTreeSet<u32>,
    forgotten: BTreeSet<u32>,
    open: HashMap<Attempt, Sent>,
    finished: BTreeMap<u64, Sent>,
}

impl Ledger {
    /// Of a receiver of these partitions.
    pub fn new(partitions: impl IntoIterator<Item = u32>) -> Ledger {
        let partitions = partitions.into_iter().collect();
        Ledger {
            partitions,
            forgotten: BTreeSet::new(),
            open: HashMap::new(),
            finished: BTreeMap::new(),
        }
    }

    /// Begins an attempt; false if the split is there already, and nothing of it is wanted.
    pub fn begin(&mut self, attempt: Attempt) -> Result<bool> {
        if self.finished.contains_key(&attempt.split) {
            return Ok(false);
        }
        if self.open.contains_key(&attempt) {
            return Err(Error::invalid(format!(
                "receive split {}: attempt {:x} is under way on another connection",
                attempt.split, attempt.id
            )));
        }
        self.open.insert(attempt, Sent::default());
        Ok(true)
    }

    /// Whether blocks of this partition are received here.
    pub fn check(&self, partition: u32) -> Result<()> {
        match self.partitions.contains(&partition) {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "receive a block of partition {partition}: this receiver has others"
            ))),
        }
    }

    /// Adds a block that is written. Blocks of a partition are added in the order of its records.
    pub fn add(&mut self, attempt: Attempt, partition: u32, extent: Extent) {
        assert!(self.partitions.contains(&partition), "partition {partition} is another's");
        let sent = self.open.get_mut(&attempt).expect("an attempt is begun before it has blocks");
        sent.blocks.entry(partition).or_default().push(extent);
        sent.count += 1;
    }

    /// Ends an attempt whole; true if it is the one that counts.
    pub fn finish(&mut self, attempt: Attempt, blocks: u64, sums: Sums) -> Result<bool> {
        let mut sent = self.open.remove(&attempt).expect("an attempt is begun before it ends");
        sums.iter().try_for_each(|(partition, _)| self.check(*partition))?;
        let told: u64 = sums.iter().map(|(_, sum)| sum.bytes).sum();
        let here: u64 = sent.blocks.values().flatten().map(|extent| u64::from(extent.bytes)).sum();
        if blocks != sent.count || told != here {
            return Err(Error::corrupt(format!(
                "receive split {}: {} blocks of {here} bytes came, {blocks} of {told} were sent",
                attempt.split, sent.count
            )));
        }
        if self.finished.contains_key(&attempt.split) && !planted!("shuffle.later-attempt-counts") {
            return Ok(false);
        }
        sent.sums = sums.into_iter().collect();
        self.finished.insert(attempt.split, sent);
        Ok(true)
    }

    /// Forgets an attempt whose connection ended before it was whole.
    pub fn abandon(&mut self, attempt: Attempt) {
        let Some(sent) = self.open.remove(&attempt) else { return };
        if planted!("shuffle.torn-attempt-counts") {
            self.finished.entry(attempt.split).or_insert(sent);
        }
    }

    /// Forgets the blocks of a partition, which is finished. An attempt that nobody waits for may still send some.
    pub fn forget(&mut self, partition: u32) {
        self.forgotten.insert(partition);
        for sent in self.finished.values_mut().chain(self.open.values_mut()) {
            sent.blocks.remove(&partition);
        }
    }

    /// Splits that are here whole, in order.
    pub fn splits(&self) -> Vec<u64> {
        self.finished.keys().copied().collect()
    }

    /// The blocks of a partition: a chain for each split, in the order of the splits.
    pub fn chains(&self, partition: u32) -> Result<Vec<Vec<Extent>>> {
        self.check(partition)?;
        if self.forgotten.contains(&partition) {
            return Err(Error::invalid(format!(
                "sort partition {partition}: it was finished, and what arrived of it given up"
            )));
        }
        let blocks = |sent: &Sent| sent.blocks.get(&partition).cloned();
        Ok(self.finished.values().filter_map(blocks).collect())
    }

    /// The sum of a partition's records, as their senders made it.
    pub fn sum(&self, partition: u32) -> Sum {
        let mut all = Sum::default();
        let sums = self.finished.values().filter_map(|sent| sent.sums.get(&partition));
        sums.for_each(|sum| all.merge(sum));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_base::random::Random;

    /// Attempts at a few splits, many at once, which end or are torn at any moment: a partition is
    /// the blocks of the first whole attempt at each split, as a model that keeps everything has it.
    #[test]
    fn what_counts_is_the_first_whole_attempt_at_each_split() {
        let (mut again, mut torn) = (0, 0);
        for seed in 0..300 {
            let mut random = Random::new(seed);
            let mut ledger = Ledger::new([3, 5]);
            let mut open: Vec<(Attempt, Vec<(u32, u32)>)> = Vec::new();
            let mut model: BTreeMap<u64, Vec<(u32, u32)>> = BTreeMap::new();
            for step in 0..120u64 {
                let pick = random.next() as usize % open.len().max(1);
                match random.next() % 6 {
                    0 | 1 => {
                        let attempt = Attempt { split: random.next() % 5, id: step };
                        let wanted = ledger.begin(attempt).unwrap();
                        assert_eq!(wanted, !model.contains_key(&attempt.split));
                        if wanted {
                            assert!(ledger.begin(attempt).is_err());
                            open.push((attempt, Vec::new()));
                        }
                    }
                    2 | 3 if !open.is_empty() => {
                        let partition = [3, 5][random.next() as usize % 2];
                        let extent =
                            Extent { place: Place::File(step * 4096), bytes: 7, crc: step as u32 };
                        ledger.add(open[pick].0, partition, extent);
                        open[pick].1.push((partition, step as u32));
                    }
                    4 if !open.is_empty() => {
                        let (attempt, blocks) = open.swap_remove(pick);
                        let sum = |p| {
                            let bytes = 7 * blocks.iter().filter(|b| b.0 == p).count() as u64;
                            Sum { records: bytes, bytes, hash: step }
                        };
                        let sums = vec![(3, sum(3)), (5, sum(5))];
                        let kept = ledger.finish(attempt, blocks.len() as u64, sums).unwrap();
                        assert_eq!(kept, !model.contains_key(&attempt.split));
                        again += u32::from(!kept);
                        model.entry(attempt.split).or_insert(blocks);
                    }
                    5 if !open.is_empty() => {
                        ledger.abandon(open.swap_remove(pick).0);
                        torn += 1;
                    }
                    _ => {}
                }
                for partition in [3, 5] {
                    let of = |blocks: &Vec<(u32, u32)>| -> Vec<u32> {
                        blocks.iter().filter(|b| b.0 == partition).map(|b| b.1).collect()
                    };
                    let chains: Vec<Vec<u32>> =
                        model.values().map(of).filter(|chain| !chain.is_empty()).collect();
                    // By their checksums, which are all different.
                    let found = ledger.chains(partition).unwrap();
                    let found = found.iter().map(|chain| chain.iter().map(|e| e.crc).collect());
                    assert_eq!(
                        found.collect::<Vec<Vec<u32>>>(),
                        chains,
                        "seed {seed}, step {step}"
                    );
                    let bytes = 7 * chains.iter().flatten().count() as u64;
                    assert_eq!(ledger.sum(partition).bytes, bytes);
                }
                assert_eq!(ledger.splits(), model.keys().copied().collect::<Vec<_>>());
            }
        }
        assert!(again > 50 && torn > 50, "{again} came twice, {torn} were torn");
    }

    #[test]
    fn an_attempt_that_lacks_a_block_does_not_count() {
        let mut ledger = Ledger::new([0]);
        let attempt = Attempt { split: 1, id: 1 };
        let sum = Sum { records: 1, bytes: 10, hash: 1 };
        ledger.begin(attempt).unwrap();
        ledger.add(attempt, 0, Extent { place: Place::File(0), bytes: 10, crc: 0 });
        let missing = ledger.finish(attempt, 2, vec![(0, sum)]).unwrap_err();
        assert!(missing.message.contains("1 blocks of 10 bytes came, 2 of 10 were sent"));
        assert!(ledger.splits().is_empty() && ledger.check(1).is_err());
    }

    #[test]
    fn what_is_finished_is_given_up_and_its_late_blocks_too() {
        let room = crate::kept::Room::new(100);
        let extent = || {
            let kept = room.keep(&[0; 10]).unwrap();
            Extent { place: Place::Memory(kept), bytes: 10, crc: 0 }
        };
        let mut ledger = Ledger::new([0, 1]);
        let attempt = |id| Attempt { split: id, id };
        let sum = Sum { records: 1, bytes: 10, hash: 1 };
        for id in [1, 2] {
            ledger.begin(attempt(id)).unwrap();
            ledger.add(attempt(id), 0, extent());
            ledger.add(attempt(id), 1, extent());
        }
        ledger.finish(attempt(1), 2, vec![(0, sum), (1, sum)]).unwrap();
        assert_eq!((ledger.chains(0).unwrap().len(), room.left_bytes()), (1, 60));
        ledger.forget(0);
        assert_eq!(room.left_bytes(), 80);
        assert!(ledger.chains(0).err().unwrap().message.contains("it was finished"));
        assert_eq!((ledger.chains(1).unwrap().len(), ledger.sum(0)), (1, sum));
        ledger.add(attempt(2), 0, extent());
        assert_eq!(room.left_bytes(), 70);
        ledger.abandon(attempt(2));
        assert_eq!(room.left_bytes(), 90);
    }
}
