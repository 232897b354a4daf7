//! The first phase: every lane reads its part of the input, finds each record's partition and
//! combines it into the partition's open block; full blocks go to the temporary disks, or stay in
//! memory as far as there is room. A lane is a reader and a distributor; writers are shared, and
//! go on into the second phase.

use crate::failure::Failure;
use crate::hash::Sum;
use crate::input::{self, Filled};
use crate::kernel::combine::{Blocks, Combiner};
use crate::kernel::{extend, scan};
use crate::local::{Crew, Role};
use crate::order::Order;
use crate::plan::{KEPT_SPARE_BLOCKS, READ_BLOCKS, SortPlan};
use crate::progress::Progress;
use crate::record::Format;
use crate::spill::{Settled, SpillExtent, Spills};
use crate::split::Splitters;
use holdfast_base::limits::SECTOR_BYTES;
use holdfast_base::{Error, Result};
use holdfast_env::buf::AlignedBuf;
use holdfast_env::trial::Knob;
use holdfast_env::{HoldMutex, planted};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Condvar, Mutex};
use std::thread;

/// Blocks that stay in memory are taken so many at a time.
static POOL_STEP: Knob = Knob::new("sort.pool-step", 64, &[1, 3]);

/// Bytes of a partition in a row.
pub(crate) enum Piece {
    /// In memory: the block and how much of it counts.
    Kept(AlignedBuf, usize),
    /// On the temporary disks.
    Spilled(SpillExtent),
}

impl Piece {
    /// Bytes in memory.
    pub fn kept_bytes(&self) -> u64 {
        match self {
            Piece::Kept(_, bytes) => *bytes as u64,
            Piece::Spilled(_) => 0,
        }
    }
}

/// What a lane made of one partition, in the order of the input.
#[derive(Default)]
pub(crate) struct Chain {
    pub sum: Sum,
    pub pieces: Vec<Piece>,
}

/// What is distributed, and how.
pub(crate) struct Work<'a> {
    pub format: Format,
    pub order: &'a Order,
    pub splitters: &'a Splitters,
    pub plan: &'a SortPlan,
    /// Partitions that stay in memory as far as there is room.
    pub kept: &'a [bool],
    /// Partitions whose records are wanted; none means all.
    pub wanted: Option<Vec<bool>>,
    /// Only so many records in front of the output are wanted.
    pub first: Option<u64>,
    pub spills: Option<&'a Spills>,
    pub progress: &'a Progress,
    pub failure: &'a Failure,
    pub crew: Crew,
}

/// Blocks that were read before the lanes began, and what is still to read.
pub(crate) struct Lane {
    pub primed: Vec<Filled>,
    pub pieces: Vec<input::Piece>,
}

/// A block on its way to a temporary disk.
pub(crate) struct Outgoing {
    block: AlignedBuf,
    filled: usize,
    file: usize,
    offset: u64,
    /// Where the block goes when it is written.
    home: Sender<AlignedBuf>,
}

/// Blocks on their way to the temporary disks, between lanes and writers.
pub(crate) struct Outbox {
    queue: Mutex<Receiver<Outgoing>>,
    /// Writers that still wait for blocks.
    writing: Mutex<usize>,
    written: Condvar,
}

impl Outbox {
    /// For so many writers.
    pub fn new(writers: usize) -> (Sender<Outgoing>, Outbox) {
        let (out, queue) = channel();
        let (queue, writing) = (Mutex::new(queue), Mutex::new(writers));
        (out, Outbox { queue, writing, written: Condvar::new() })
    }

    /// Writes blocks until all lanes have ended.
    pub fn write(&self, spills: &Spills, progress: &Progress, failure: &Failure) {
        loop {
            let next = self.queue.held().recv();
            let Ok(Outgoing { block, filled, file, offset, home }) = next else { break };
            // After a failure blocks only go home, so that nobody waits for them.
            if !failure.is_set() {
                failure.note(spills.write(&block[..filled], file, offset));
                progress.wrote(filled);
            }
            let _ = home.send(block);
        }
        *self.writing.held() -= 1;
        self.written.notify_all();
    }

    /// Waits until all is written. What is left in the queue would else be read as what was in
    /// the file before.
    pub fn settle<'a>(&self, spills: &'a Spills) -> Settled<'a> {
        let mut writing = self.writing.held();
        while *writing > 0 && !planted!("sort.reads-before-written") {
            writing = self.written.wait(writing).expect("no holder of this lock panics");
        }
        Settled::new(spills)
    }
}

/// Blocks for what stays in memory, shared by all lanes.
struct Pool {
    /// Those at hand, and how many more there may be.
    blocks: Mutex<(Vec<AlignedBuf>, usize)>,
    block_bytes: usize,
}

impl Pool {
    fn take(&self) -> Option<AlignedBuf> {
        let mut blocks = self.blocks.held();
        let (ready, left) = &mut *blocks;
        if ready.is_empty() {
            POOL_STEP.cross();
            let more = POOL_STEP.size().min(*left);
            *left -= more;
            *ready = AlignedBuf::pieces(more, self.block_bytes);
        }
        ready.pop()
    }
}

/// Distributes all lanes; answers the chains by lane and partition. Blocks that leave go `out`.
pub(crate) fn run(
    work: &Work<'_>,
    lanes: Vec<Lane>,
    out: Sender<Outgoing>,
) -> Result<Vec<Vec<Chain>>> {
    let block_bytes = work.plan.kept_block_bytes.max(SECTOR_BYTES);
    let most = match work.plan.in_memory {
        true => usize::MAX,
        false => work.plan.kept_bytes as usize / block_bytes,
    };
    // What each lane holds in any case is taken from it.
    let held = work.kept.iter().filter(|kept| **kept).count() + KEPT_SPARE_BLOCKS.size();
    let left = most.saturating_sub(lanes.len() * held);
    let shared = Shared {
        pool: Pool { blocks: Mutex::new((Vec::new(), left)), block_bytes },
        last: AtomicUsize::new(usize::MAX),
    };
    let chains = thread::scope(|scope| {
        let mut distributors = Vec::new();
        for Lane { primed, pieces } in lanes {
            let (free, frees) = channel();
            let early = primed.len();
            let (filled, filleds) = sync_channel(READ_BLOCKS.size() + early);
            for _ in 0..READ_BLOCKS.get() {
                let _ = free.send(AlignedBuf::zeroed(work.plan.read_block_bytes));
            }
            primed.into_iter().for_each(|block| drop(filled.send(block)));
            work.crew.scoped(scope, "sort-read", Role::Waits, move || {
                work.failure.note(read(pieces, &frees, &filled, work.progress));
            });
            let (out, shared) = (out.clone(), &shared);
            distributors.push(work.crew.scoped(scope, "sort-split", Role::Computes, move || {
                let chains = distribute(work, shared, &filleds, &free, early, out);
                chains.map_err(|e| work.failure.set(e)).unwrap_or_default()
            }));
        }
        drop(out);
        distributors.into_iter().map(|thread| thread.join().unwrap_or_default()).collect()
    });
    work.failure.result()?;
    Ok(chains)
}

/// What lanes share.
struct Shared {
    pool: Pool,
    /// The last partition that is wanted.
    last: AtomicUsize,
}

/// Reads pieces until they end or nobody wants more.
fn read(
    pieces: Vec<input::Piece>,
    frees: &Receiver<AlignedBuf>,
    filled: &SyncSender<Filled>,
    progress: &Progress,
) -> Result<()> {
    let mut blocks = 0;
    for mut piece in pieces {
        loop {
            let Ok(block) = frees.recv() else { return Ok(()) };
            blocks += 1;
            if blocks > READ_BLOCKS.get() {
                READ_BLOCKS.cross();
            }
            let (block, done) = piece.fill(block)?;
            progress.read(block.end - block.start);
            if filled.send(block).is_err() {
                return Ok(());
            }
            if done {
                break;
            }
        }
    }
    Ok(())
}

/// One lane's blocks and chains.
struct Keeper<'a> {
    work: &'a Work<'a>,
    pool: &'a Pool,
    chains: Vec<Chain>,
    out: Sender<Outgoing>,
    /// Of blocks that leave, and of those that leave though they should have stayed.
    homes: Homes,
    kept_homes: Homes,
}

/// Where blocks come back to.
struct Homes {
    home: Sender<AlignedBuf>,
    homes: Receiver<AlignedBuf>,
}

impl Homes {
    fn of(blocks: impl Iterator<Item = AlignedBuf>) -> Homes {
        let (home, homes) = channel();
        blocks.for_each(|block| drop(home.send(block)));
        Homes { home, homes }
    }
}

fn stopped() -> Error {
    Error::bug("distribute records: another thread stopped without saying why")
}

impl Keeper<'_> {
    fn spill(&mut self, p: usize, block: AlignedBuf, bytes: usize) -> Result<()> {
        let Some(spills) = self.work.spills else {
            return Err(Error::bug("distribute records: there is no temporary file"));
        };
        let filled = bytes.next_multiple_of(SECTOR_BYTES);
        assert!(bytes > 0 && filled <= block.len(), "{bytes} bytes of a block of {}", block.len());
        let (file, offset) = spills.place(filled as u64);
        let extent = SpillExtent { file, offset, bytes: bytes as u64 };
        self.chains[p].pieces.push(Piece::Spilled(extent));
        let homes = if self.work.kept[p] { &self.kept_homes } else { &self.homes };
        let outgoing = Outgoing { block, filled, file, offset, home: homes.home.clone() };
        self.out.send(outgoing).map_err(|_| stopped())
    }

    /// Takes the last block of a partition.
    fn last(&mut self, p: usize, block: AlignedBuf, bytes: usize) -> Result<()> {
        if !self.work.kept[p] {
            return self.spill(p, block, bytes);
        }
        self.chains[p].pieces.push(Piece::Kept(block, bytes));
        Ok(())
    }
}

impl Blocks for Keeper<'_> {
    fn replace(&mut self, p: usize, block: AlignedBuf, filled: usize) -> Result<AlignedBuf> {
        let kept = self.work.kept[p];
        if kept && let Some(empty) = self.pool.take() {
            self.chains[p].pieces.push(Piece::Kept(block, filled));
            return Ok(empty);
        }
        if kept {
            KEPT_SPARE_BLOCKS.cross();
        }
        self.spill(p, block, filled)?;
        self.work.failure.result()?;
        let homes = if kept { &self.kept_homes } else { &self.homes };
        homes.homes.recv().map_err(|_| stopped())
    }
}

fn distribute(
    work: &Work<'_>,
    shared: &Shared,
    filleds: &Receiver<Filled>,
    free: &Sender<AlignedBuf>,
    mut primed: usize,
    out: Sender<Outgoing>,
) -> Result<Vec<Chain>> {
    let mut lane = Distributor::new(work, shared, out);
    // A record that blocks cut.
    let mut rest = Vec::new();
    for Filled { block, start, end, ends } in filleds {
        if work.progress.is_stopped() {
            return Err(Error::retry("sort: interrupted"));
        }
        let mut at = start;
        if !rest.is_empty() {
            at += extend(work.format, &mut rest, &block[start..end]);
            if work.format.record_bytes(&rest).is_some() {
                lane.add(&rest)?;
                rest.clear();
            }
        }
        if rest.is_empty() {
            at += lane.add_all(&block[at..end])?;
            rest.extend_from_slice(&block[at..end]);
        }
        check_length(work, rest.len())?;
        if let Some(name) = ends
            && !rest.is_empty()
        {
            let whole = work.format.complete(&mut rest);
            whole.map_err(|e| e.context(format_args!("sort `{name}`")))?;
            lane.add(&rest)?;
            rest.clear();
        }
        lane.look(shared);
        // Blocks that were primed are more than the reader needs, and go as their bytes are
        // elsewhere: the plan has no room for both.
        if primed > 0 {
            primed -= 1;
        } else {
            let _ = free.send(block);
        }
    }
    work.failure.result()?;
    lane.finish()
}

/// A record must fit into a part of the memory several times.
fn check_length(work: &Work<'_>, bytes: usize) -> Result<()> {
    let most = work.plan.buffers / 8;
    if bytes as u64 > most {
        return Err(Error::invalid(format!(
            "sort a record of more than {}: give more `--memory`, at least ten times its length",
            holdfast_base::units::format_bytes(most)
        )));
    }
    Ok(())
}

/// What a lane adds records to.
struct Distributor<'a> {
    work: &'a Work<'a>,
    combiner: Combiner,
    keeper: Keeper<'a>,
    wanted: Option<Vec<bool>>,
}

impl<'a> Distributor<'a> {
    fn new(work: &'a Work<'a>, shared: &'a Shared, out: Sender<Outgoing>) -> Distributor<'a> {
        let plan = work.plan;
        let kept = work.kept.iter().filter(|kept| **kept).count();
        let mut spare = if work.spills.is_some() { plan.spare_blocks } else { 0 };
        spare += work.kept.len() - kept;
        let mut leaving = AlignedBuf::pieces(spare, plan.block_bytes).into_iter();
        let extra = if work.spills.is_some() { KEPT_SPARE_BLOCKS.size() } else { 0 };
        let staying = AlignedBuf::pieces(kept + extra, shared.pool.block_bytes);
        let mut staying = staying.into_iter();
        let block = |kept: &bool| if *kept { staying.next() } else { leaving.next() };
        let open: Vec<AlignedBuf> = work.kept.iter().filter_map(block).collect();
        let keeper = Keeper {
            work,
            pool: &shared.pool,
            chains: work.kept.iter().map(|_| Chain::default()).collect(),
            out,
            homes: Homes::of(leaving),
            kept_homes: Homes::of(staying),
        };
        Distributor { work, combiner: Combiner::new(open), keeper, wanted: work.wanted.clone() }
    }

    #[inline(always)]
    fn add(&mut self, record: &[u8]) -> Result<()> {
        let p = self.work.splitters.find(self.work.order, self.work.format.body(record));
        if self.wanted.as_ref().is_some_and(|wanted| !wanted[p]) {
            return Ok(());
        }
        self.keeper.chains[p].sum.add(record);
        self.combiner.add(p, record, &mut self.keeper)
    }

    /// Adds the whole records of `bytes`; answers how many bytes they were.
    fn add_all(&mut self, bytes: &[u8]) -> Result<usize> {
        if let Format::Delimited(delimiter) = self.work.format {
            return scan::records(bytes, delimiter, |start, end| self.add(&bytes[start..end]));
        }
        let mut at = 0;
        while let Some(n) = self.work.format.record_bytes(&bytes[at..]) {
            self.add(&bytes[at..at + n])?;
            at += n;
        }
        Ok(at)
    }

    /// Where only the first records are wanted: those of partitions behind them are dropped from
    /// now on, once one lane alone has enough.
    fn look(&mut self, shared: &Shared) {
        let Some(first) = self.work.first else { return };
        let mut records = 0;
        let last = self.keeper.chains.iter().position(|chain| {
            records += chain.sum.records;
            records >= first
        });
        let last = last.unwrap_or(usize::MAX);
        let last = shared.last.fetch_min(last, Ordering::Relaxed).min(last);
        if last < self.work.kept.len() {
            let wanted = self.wanted.get_or_insert_with(|| vec![true; self.work.kept.len()]);
            wanted[last + 1..].fill(false);
        }
    }

    fn finish(mut self) -> Result<Vec<Chain>> {
        let last = self.combiner.finish(&mut self.keeper)?;
        for (p, (block, bytes)) in last.into_iter().enumerate() {
            if bytes > 0 {
                self.keeper.last(p, block, bytes)?;
            }
        }
        Ok(self.keeper.chains)
    }
}
