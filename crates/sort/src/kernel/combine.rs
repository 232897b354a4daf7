//! Write combining: records on their way to many partitions are gathered in a small stage each,
//! which stays in the cache, and leave it in whole cache lines past the caches. Without it, a few
//! hundred partitions would mean a miss and a page walk for every record.

use super::stream::{self, LINE_BYTES};
use holdfast_base::Result;
use holdfast_base::limits::SECTOR_BYTES;
use holdfast_env::buf::AlignedBuf;
use holdfast_env::trial::Knob;

/// Of one partition's stage.
const STAGE_BYTES: usize = 1600;
static STAGE: Knob = Knob::new("sort.stage-bytes", STAGE_BYTES as u64, &[64, 128]);
const _: () = assert!(STAGE_BYTES.is_multiple_of(LINE_BYTES));

/// Where the bytes of a partition go.
pub trait Blocks {
    /// Takes a block of partition `p` whose first `filled` bytes count, whole sectors, and answers
    /// an empty one.
    fn replace(&mut self, p: usize, block: AlignedBuf, filled: usize) -> Result<AlignedBuf>;
}

struct Target {
    /// None only while it is replaced.
    block: Option<AlignedBuf>,
    /// Bytes in the block: whole lines.
    filled: usize,
    /// At which it is handed over: its length, but for the first, lest all partitions that fill
    /// alike hand over at the same time.
    limit: usize,
    /// Bytes in the stage.
    staged: usize,
}

/// The stages and open blocks of all partitions.
pub struct Combiner {
    stages: AlignedBuf,
    /// [`STAGE`], asked for once.
    stage_bytes: usize,
    targets: Vec<Target>,
}

impl Combiner {
    /// Memory that `partitions` stages take.
    pub fn stage_bytes(partitions: usize) -> usize {
        partitions * STAGE.size()
    }

    /// Of one stage; in release builds a constant, which makes the loops below shorter.
    #[inline(always)]
    fn stage(&self) -> usize {
        if cfg!(debug_assertions) { self.stage_bytes } else { STAGE_BYTES }
    }

    /// One block a partition, all of the same size.
    pub fn new(blocks: Vec<AlignedBuf>) -> Combiner {
        let stages = AlignedBuf::zeroed(Combiner::stage_bytes(blocks.len()));
        let count = blocks.len();
        let first = |p: usize, bytes: usize| {
            (bytes * (p + 1) / count).next_multiple_of(SECTOR_BYTES).min(bytes)
        };
        let targets = blocks
            .into_iter()
            .enumerate()
            .map(|(p, block)| Target {
                limit: first(p, block.len()),
                block: Some(block),
                filled: 0,
                staged: 0,
            })
            .collect();
        Combiner { stages, stage_bytes: STAGE.size(), targets }
    }

    #[inline]
    pub fn add(&mut self, p: usize, record: &[u8], blocks: &mut dyn Blocks) -> Result<()> {
        let stage_bytes = self.stage();
        let target = &mut self.targets[p];
        let stage = &mut self.stages[p * stage_bytes..][..stage_bytes];
        let end = target.staged + record.len();
        if end <= stage_bytes {
            stage[target.staged..end].copy_from_slice(record);
            target.staged = end;
            return Ok(());
        }
        STAGE.cross();
        // Fills the stage, which then is whole lines, and goes on with the rest.
        let mut rest = record;
        while target.staged + rest.len() > stage_bytes {
            let (now, later) = rest.split_at(stage_bytes - target.staged);
            stage[target.staged..].copy_from_slice(now);
            target.flush(p, stage, blocks)?;
            rest = later;
        }
        stage[target.staged..target.staged + rest.len()].copy_from_slice(rest);
        target.staged += rest.len();
        Ok(())
    }

    /// Hands over what is left: the last block of each partition and the bytes in it.
    pub fn finish(self, blocks: &mut dyn Blocks) -> Result<Vec<(AlignedBuf, usize)>> {
        let stage_bytes = self.stage();
        let mut last = Vec::with_capacity(self.targets.len());
        for (p, mut target) in self.targets.into_iter().enumerate() {
            let staged = target.staged;
            target.flush(p, &self.stages[p * stage_bytes..][..staged], blocks)?;
            last.extend(target.block.map(|block| (block, target.filled)));
        }
        Ok(last)
    }
}

impl Target {
    /// Moves what is staged into the block, and the block on when it is full.
    fn flush(&mut self, p: usize, mut stage: &[u8], blocks: &mut dyn Blocks) -> Result<()> {
        while !stage.is_empty()
            && let Some(block) = &mut self.block
        {
            let (now, later) = stage.split_at(stage.len().min(self.limit - self.filled));
            stream::copy(&mut block[self.filled..self.filled + now.len()], now);
            self.filled += now.len();
            stage = later;
            debug_assert!(self.filled <= self.limit, "more in a block than it takes");
            if self.filled == self.limit
                && let Some(full) = self.block.take()
            {
                let empty = blocks.replace(p, full, self.filled)?;
                (self.filled, self.limit) = (0, empty.len());
                self.block = Some(empty);
            }
        }
        self.staged = 0;
        Ok(())
    }
}
