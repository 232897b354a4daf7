//! How the memory that was given is divided. Pure arithmetic: every buffer of a sort is counted
//! here, so that one number is obeyed.

use crate::kernel::ENTRY_BYTES;
use crate::kernel::combine::Combiner;
use holdfast_base::limits::SECTOR_BYTES;
use holdfast_base::units::{MIB, format_bytes};
use holdfast_base::{Error, Result};
use holdfast_env::planted;
use holdfast_env::trial::Knob;

/// A machine so many times smaller: a test crosses with two megabytes the borders that else take
/// a gigabyte. Smaller blocks than of a sector there are none.
pub static SMALLER: Knob = Knob::new("sort.smaller", 1, &[8, 16]);

/// Bytes of a machine of the usual size.
fn small(bytes: u64) -> u64 {
    bytes / SMALLER.get()
}

/// The least memory that a sort takes.
pub fn memory_bytes_min() -> u64 {
    small(MEMORY_BYTES_MIN)
}

/// What a process has before the first buffer: code, stacks, the sample, tables.
const FIXED_BYTES: u64 = 12 * MIB;
/// Less cannot keep a disk busy.
const MEMORY_BYTES_MIN: u64 = 32 * MIB;

/// Blocks that leave for the temporary disks: what TritonSort found to keep a disk sequential.
const SPILL_BLOCK_BYTES_MAX: u64 = 8 * MIB;
const SPILL_BLOCK_BYTES_MIN: u64 = 64 << 10;
const READ_BLOCK_BYTES_MAX: u64 = 4 * MIB;
const READ_BLOCK_BYTES_MIN: u64 = 64 << 10;
/// Of blocks that the output is written in.
const CHUNK_BYTES_MAX: u64 = 4 * MIB;
const CHUNK_BYTES_MIN: u64 = 64 << 10;
/// Files smaller than this are read by one lane.
const LANE_BYTES_MIN: u64 = 4 * MIB;
/// Blocks of a lane on their way from the input.
pub static READ_BLOCKS: Knob = Knob::new("sort.read-blocks", 4, &[1, 2]);
/// A partition should be so small a part of the memory that several are under way at once, and
/// that a bad guess still fits.
static PARTITIONS_A_MEMORY: Knob = Knob::new("sort.partitions-a-memory", 10, &[2, 3, 30]);
static PARTITIONS_MAX: Knob = Knob::new("sort.partitions-max", 4096, &[4, 5]);
/// Of a sort in memory: small enough that entries stay in the cache.
const MEMORY_PARTITION_BYTES: u64 = 8 * MIB;
static MEMORY_PARTITIONS_MAX: Knob = Knob::new("sort.memory-partitions-max", 1024, &[4, 7]);
/// Of blocks that stay in memory: a partition's last ones are half empty.
const KEPT_BLOCK_BYTES_MAX: u64 = 256 << 10;
const KEPT_BLOCK_BYTES_MIN: u64 = 32 << 10;
/// Blocks that leave are not made smaller than this for the sake of partitions that stay.
const SPILL_BLOCK_BYTES_GOOD: u64 = 2 * MIB;
/// Of the memory, for partitions that stay in it: at least one part in so many, at most one in so
/// many, as the second phase needs room to read the others.
const KEPT_PART_LEAST: u64 = 8;
const KEPT_PART_MOST: u64 = 2;
/// Blocks of a lane that leave though they should have stayed: the guess was too low.
pub static KEPT_SPARE_BLOCKS: Knob = Knob::new("sort.kept-spare-blocks", 4, &[1, 2]);
/// The output is made durable, and what is done noted, so many times or more often.
const CHECKPOINTS: u64 = 8;
const CHECKPOINT_BYTES_MIN: u64 = MIB;
const CHECKPOINT_BYTES_MAX: u64 = 1024 * MIB;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SortPlan {
    /// All buffers together may take so many bytes.
    pub buffers: u64,
    /// Each byte is read and written once; partitions stay in memory.
    pub in_memory: bool,
    pub partitions: usize,
    /// Of the blocks in which a partition's bytes leave.
    pub block_bytes: usize,
    /// Of the blocks in which a partition's bytes stay in memory, and of all of these.
    pub kept_block_bytes: usize,
    pub kept_bytes: u64,
    /// Output between two checkpoints.
    pub checkpoint_bytes: u64,
    /// Blocks a lane has beyond one a partition.
    pub spare_blocks: usize,
    pub read_block_bytes: usize,
    /// Of the blocks that the output is written in.
    pub chunk_bytes: usize,
}

/// What a plan is made for.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    pub memory_bytes: u64,
    /// Of the input; as good a guess as there is.
    pub total_bytes: u64,
    /// Mean of the records in the sample.
    pub record_bytes: u64,
    pub lanes: u64,
    pub threads: u64,
    /// Of blocks that are full before anything is planned: they go as what they hold is distributed.
    pub primed_bytes: u64,
    /// The whole input is known to have no more than `total_bytes`.
    pub total_known: bool,
}

/// Output blocks: those that each sorter fills, and those on their way.
pub fn chunks(threads: u64) -> usize {
    threads as usize * 3 + 2
}

/// Lanes that so many bytes in files are cut into for so many threads.
pub fn lanes(bytes: u64, threads: usize) -> u64 {
    (bytes / small(LANE_BYTES_MIN)).clamp(1, threads as u64)
}

/// Threads that so much memory can keep busy: beyond them output blocks alone would fill it.
pub fn threads_max(memory_bytes: u64) -> usize {
    let chunks = memory_bytes.saturating_sub(small(FIXED_BYTES)) / 4 / small(CHUNK_BYTES_MIN);
    (chunks.saturating_sub(2) / 3).max(1) as usize
}

fn sectors(bytes: u64) -> usize {
    let sector = SECTOR_BYTES as u64;
    (bytes / sector * sector).max(sector) as usize
}

impl SortPlan {
    pub fn new(need: &Need) -> Result<SortPlan> {
        if need.memory_bytes < memory_bytes_min() {
            return Err(Error::invalid(format!(
                "sort with {} of memory: give `--memory` at least {}",
                format_bytes(need.memory_bytes),
                format_bytes(memory_bytes_min())
            )));
        }
        let buffers = need.memory_bytes - small(FIXED_BYTES);
        let read_block = (buffers / 64 / need.lanes / READ_BLOCKS.get() * 8)
            .clamp(small(READ_BLOCK_BYTES_MIN), small(READ_BLOCK_BYTES_MAX));
        let read_block_bytes = sectors(read_block);
        let chunk_bytes = sectors(
            (buffers / 4 / chunks(need.threads) as u64)
                .clamp(small(CHUNK_BYTES_MIN), small(CHUNK_BYTES_MAX)),
        );
        let reading = need.lanes * READ_BLOCKS.get() * read_block_bytes as u64;
        let mut plan = SortPlan {
            buffers,
            in_memory: false,
            partitions: 1,
            block_bytes: 0,
            kept_block_bytes: 0,
            kept_bytes: 0,
            checkpoint_bytes: (need.total_bytes / CHECKPOINTS)
                .clamp(small(CHECKPOINT_BYTES_MIN), small(CHECKPOINT_BYTES_MAX)),
            spare_blocks: 0,
            read_block_bytes,
            chunk_bytes,
        };
        if need.total_known && plan.fits_in_memory(need, reading) {
            return Ok(plan);
        }
        // Both phases must fit: blocks of all partitions in the first, partitions in the second.
        let record = need.record_bytes.max(1);
        let entries = |bytes: u64| bytes / record * ENTRY_BYTES;
        let target = buffers / PARTITIONS_A_MEMORY.get();
        let partition =
            (target as u128 * target as u128 / (target + entries(target)).max(1) as u128) as u64;
        let blocks = (buffers - reading) / 8 * 7;
        // What `partitions` take in blocks of `bytes`; a quarter of these is on its way to the disk.
        let spare = |partitions: u64| partitions / 4 + 4;
        let taken = |partitions: u64, bytes: u64| {
            let stages = need.lanes * Combiner::stage_bytes(partitions as usize) as u64;
            stages + need.lanes * (partitions + spare(partitions)) * bytes
        };
        let mut partitions =
            need.total_bytes.div_ceil(partition.max(1)).clamp(4, PARTITIONS_MAX.get());
        if partitions > 4 {
            PARTITIONS_A_MEMORY.cross();
        }
        let kept_most = blocks / KEPT_PART_MOST;
        let kept_least = blocks / KEPT_PART_LEAST;
        if partitions == PARTITIONS_MAX.get() {
            PARTITIONS_MAX.cross();
        }
        SMALLER.cross();
        // At first what was primed is there, then what stays; the blocks that leave are there all
        // the time, at once, as they share pages.
        let primed = if planted!("sort.primed-blocks-uncounted") { 0 } else { need.primed_bytes };
        while partitions > 4
            && taken(partitions, small(SPILL_BLOCK_BYTES_MIN))
                > blocks.saturating_sub(kept_least.max(primed))
        {
            partitions -= partitions.div_ceil(16);
        }
        let kept = blocks
            .saturating_sub(taken(partitions, small(SPILL_BLOCK_BYTES_GOOD)))
            .clamp(kept_least, kept_most);
        let left = blocks.saturating_sub(kept.max(primed) + taken(partitions, 0));
        let block_bytes = left / (need.lanes * (partitions + spare(partitions)));
        plan.partitions = partitions as usize;
        plan.block_bytes = sectors(block_bytes.min(small(SPILL_BLOCK_BYTES_MAX)));
        plan.spare_blocks = spare(partitions) as usize;
        plan.kept_bytes = kept;
        plan.kept_block_bytes =
            sectors((kept / 64).clamp(small(KEPT_BLOCK_BYTES_MIN), small(KEPT_BLOCK_BYTES_MAX)));
        Ok(plan)
    }

    /// Which partitions stay in memory, by the bytes that each is expected to have; each lane has
    /// an open block for it, too.
    pub fn kept(&self, expected: &[u64], lanes: u64) -> Vec<bool> {
        let mut left = self.kept_bytes / 10 * 9;
        let keeps = |bytes: &u64| {
            let need =
                bytes + lanes * (1 + KEPT_SPARE_BLOCKS.get() / 4) * self.kept_block_bytes as u64;
            let keep = self.in_memory || need <= left;
            left -= if keep { need.min(left) } else { 0 };
            keep
        };
        expected.iter().map(keeps).collect()
    }

    /// Whether everything stays in memory; then plans so.
    fn fits_in_memory(&mut self, need: &Need, reading: u64) -> bool {
        let partitions = need
            .total_bytes
            .div_ceil(small(MEMORY_PARTITION_BYTES))
            .clamp(4, MEMORY_PARTITIONS_MAX.get());
        if partitions == MEMORY_PARTITIONS_MAX.get() {
            MEMORY_PARTITIONS_MAX.cross();
        }
        let bytes = need.total_bytes / partitions * 2;
        let entries = need.threads * (bytes / need.record_bytes.max(1)) * ENTRY_BYTES;
        // Half of each open block is empty in the end, and each is one more where it is cut.
        let blocks = need.total_bytes + need.lanes * partitions * small(KEPT_BLOCK_BYTES_MAX);
        let stages = need.lanes * Combiner::stage_bytes(partitions as usize) as u64;
        let chunks = chunks(need.threads) as u64 * self.chunk_bytes as u64;
        if blocks + stages + reading.max(entries + chunks) > self.buffers {
            return false;
        }
        self.in_memory = true;
        self.partitions = partitions as usize;
        self.kept_block_bytes = sectors(small(KEPT_BLOCK_BYTES_MAX));
        self.kept_bytes = blocks;
        true
    }

    /// Bytes that partitions may take that are read back in the second phase, beside the `kept`.
    pub fn partition_budget(&self, threads: u64, kept: u64) -> u64 {
        let chunks = chunks(threads) as u64 * self.chunk_bytes as u64;
        self.buffers.saturating_sub(chunks + kept) / 16 * 15
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_base::units::GIB;

    #[test]
    fn all_buffers_of_a_phase_fit_into_the_memory() {
        for memory_bytes in [32 * MIB, 64 * MIB, 100 * MIB, GIB, 2 * GIB, 64 * GIB] {
            for total in [1, MIB, 30 * MIB, 200 * MIB, 2 * GIB, 100 * GIB, 10_000 * GIB] {
                for (record_bytes, lanes) in [(1, 1), (8, 2), (100, 2), (100, 16), (5000, 4)] {
                    let need = Need {
                        memory_bytes,
                        total_bytes: total,
                        record_bytes,
                        lanes,
                        threads: lanes,
                        primed_bytes: 0,
                        total_known: true,
                    };
                    let plan = SortPlan::new(&need).unwrap();
                    let reading = lanes * READ_BLOCKS.get() * plan.read_block_bytes as u64;
                    let stages = lanes * Combiner::stage_bytes(plan.partitions) as u64;
                    let blocks = lanes * (plan.partitions + plan.spare_blocks) as u64;
                    let spilled = blocks * plan.block_bytes as u64;
                    let sum = plan.kept_bytes + stages + reading + spilled;
                    let slack = if memory_bytes / lanes < 8 * MIB { 4 * MIB } else { 0 };
                    assert!(sum <= plan.buffers + slack, "{need:?} {plan:?} {sum}");
                    let kept = if plan.in_memory { 0 } else { plan.kept_bytes };
                    let budget = plan.partition_budget(lanes, kept);
                    assert!(budget > plan.buffers / 5, "{need:?} {plan:?}");
                    let expected = vec![total / plan.partitions as u64; plan.partitions];
                    let stay = plan.kept(&expected, lanes);
                    assert_eq!(stay.iter().all(|kept| *kept), plan.in_memory, "{need:?} {plan:?}");
                }
            }
        }
    }

    /// A stream's front was in memory beside all that had been planned.
    #[test]
    fn what_was_read_before_is_part_of_the_memory() {
        for memory_bytes in [32 * MIB, 64 * MIB, GIB, 64 * GIB] {
            let primed_bytes = memory_bytes / 3;
            let need = Need {
                memory_bytes,
                total_bytes: 16 * memory_bytes,
                record_bytes: 100,
                lanes: 1,
                threads: 4,
                primed_bytes,
                total_known: false,
            };
            let plan = SortPlan::new(&need).unwrap();
            let leaving = (plan.partitions + plan.spare_blocks) * plan.block_bytes;
            let stages = Combiner::stage_bytes(plan.partitions);
            let reading = READ_BLOCKS.size() * plan.read_block_bytes;
            let all = (leaving + stages + reading) as u64 + plan.kept_bytes.max(primed_bytes);
            assert!(all <= plan.buffers, "{plan:?}");
        }
    }

    #[test]
    fn too_little_memory_is_refused() {
        let need = Need {
            memory_bytes: 1 << 20,
            total_bytes: 1,
            record_bytes: 1,
            lanes: 1,
            threads: 1,
            primed_bytes: 0,
            total_known: true,
        };
        assert!(SortPlan::new(&need).unwrap_err().message.contains("`--memory` at least 32.0 MiB"));
    }
}
