//! The first phase: every lane reads its part of the input, finds each record's partition and
//! combines it into the partition's open block; full blocks go to the temporary disks, or stay in
//! memory when everything fits. A lane is a reader and a distributor; writers are shared.

use crate::failure::Failure;
use crate::hash::Sum;
use crate::input::{Filled, Piece};
use crate::kernel::combine::{Blocks, Combiner};
use crate::kernel::extend;
use crate::local;
use crate::order::Order;
use crate::plan::{Plan, READ_BLOCKS};
use crate::progress::Progress;
use crate::record::Format;
use crate::spill::{Extent, Spills};
use crate::split::Splitters;
use holdfast_base::limits::SECTOR_BYTES;
use holdfast_base::{Error, Result};
use holdfast_env::buf::AlignedBuf;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;

/// Threads that write blocks, beyond one a lane.
const MORE_WRITERS: usize = 1;

/// What a lane made of one partition, in the order of the input.
#[derive(Default)]
pub(crate) struct Chain {
    pub sum: Sum,
    /// On the temporary disks.
    pub extents: Vec<Extent>,
    /// In memory: the block and how much of it counts.
    pub blocks: Vec<(AlignedBuf, usize)>,
}

/// What is distributed, and how.
pub(crate) struct Work<'a> {
    pub format: Format,
    pub order: &'a Order,
    pub splitters: &'a Splitters,
    pub plan: &'a Plan,
    /// None keeps everything in memory.
    pub spills: Option<&'a Spills>,
    pub progress: &'a Progress,
    pub failure: &'a Failure,
}

/// Blocks that were read before the lanes began, and what is still to read.
pub(crate) struct Lane {
    pub primed: Vec<Filled>,
    pub pieces: Vec<Piece>,
}

/// A block on its way to a temporary disk.
struct Outgoing {
    block: AlignedBuf,
    filled: usize,
    file: usize,
    offset: u64,
    /// Where the block goes when it is written.
    home: Sender<AlignedBuf>,
}

/// Distributes all lanes; answers the chains by lane and partition.
pub(crate) fn run(work: &Work<'_>, lanes: Vec<Lane>) -> Result<Vec<Vec<Chain>>> {
    let count = lanes.len();
    let (out, outgoing) = channel::<Outgoing>();
    let outgoing = Mutex::new(outgoing);
    let chains = thread::scope(|scope| {
        let mut distributors = Vec::new();
        for Lane { primed, pieces } in lanes {
            let (free, frees) = channel();
            let (filled, filleds) = sync_channel(READ_BLOCKS as usize + primed.len());
            for _ in 0..READ_BLOCKS {
                let _ = free.send(AlignedBuf::zeroed(work.plan.read_block_bytes));
            }
            primed.into_iter().for_each(|block| drop(filled.send(block)));
            local::scoped(scope, "sort-read", move || {
                work.failure.note(read(pieces, &frees, &filled, work.progress));
            });
            let out = out.clone();
            distributors.push(local::scoped(scope, "sort-split", move || {
                let chains = distribute(work, &filleds, &free, out);
                chains.map_err(|e| work.failure.set(e)).unwrap_or_default()
            }));
        }
        drop(out);
        let writers = if work.spills.is_some() { count + MORE_WRITERS } else { 0 };
        for _ in 0..writers {
            local::scoped(scope, "sort-spill", || work.failure.note(write(work, &outgoing)));
        }
        distributors.into_iter().map(|thread| thread.join().unwrap_or_default()).collect()
    });
    work.failure.result()?;
    Ok(chains)
}

/// Reads pieces until they end or nobody wants more.
fn read(
    pieces: Vec<Piece>,
    frees: &Receiver<AlignedBuf>,
    filled: &SyncSender<Filled>,
    progress: &Progress,
) -> Result<()> {
    for mut piece in pieces {
        loop {
            let Ok(block) = frees.recv() else { return Ok(()) };
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

fn write(work: &Work<'_>, outgoing: &Mutex<Receiver<Outgoing>>) -> Result<()> {
    let Some(spills) = work.spills else { return Ok(()) };
    loop {
        let next = outgoing.lock().expect("no holder of this lock panics").recv();
        let Ok(Outgoing { block, filled, file, offset, home }) = next else { return Ok(()) };
        // After a failure blocks only go home, so that nobody waits for them.
        if !work.failure.is_set() {
            if let Err(e) = spills.write(&block[..filled], file, offset) {
                work.failure.set(e);
            }
            work.progress.wrote(filled);
        }
        let _ = home.send(block);
    }
}

/// One lane's blocks and chains.
struct Keeper<'a> {
    work: &'a Work<'a>,
    chains: Vec<Chain>,
    out: Sender<Outgoing>,
    home: Sender<AlignedBuf>,
    homes: Receiver<AlignedBuf>,
}

fn stopped() -> Error {
    Error::bug("distribute records: another thread stopped without saying why")
}

impl Keeper<'_> {
    fn keep(&mut self, p: usize, block: AlignedBuf, bytes: usize) -> Result<()> {
        let chain = &mut self.chains[p];
        let Some(spills) = self.work.spills else {
            chain.blocks.push((block, bytes));
            return Ok(());
        };
        let filled = bytes.next_multiple_of(SECTOR_BYTES);
        let (file, offset) = spills.place(filled as u64);
        chain.extents.push(Extent { file, offset, bytes: bytes as u64 });
        let home = self.home.clone();
        let outgoing = Outgoing { block, filled, file, offset, home };
        self.out.send(outgoing).map_err(|_| stopped())
    }
}

impl Blocks for Keeper<'_> {
    fn replace(&mut self, p: usize, block: AlignedBuf, filled: usize) -> Result<AlignedBuf> {
        self.keep(p, block, filled)?;
        if self.work.spills.is_none() {
            return Ok(AlignedBuf::zeroed(self.work.plan.block_bytes));
        }
        self.work.failure.result()?;
        self.homes.recv().map_err(|_| stopped())
    }
}

fn distribute(
    work: &Work<'_>,
    filleds: &Receiver<Filled>,
    free: &Sender<AlignedBuf>,
    out: Sender<Outgoing>,
) -> Result<Vec<Chain>> {
    let partitions = work.splitters.partitions();
    let block = || AlignedBuf::zeroed(work.plan.block_bytes);
    let (home, homes) = channel();
    if work.spills.is_some() {
        (0..work.plan.spare_blocks).for_each(|_| drop(home.send(block())));
    }
    let chains = (0..partitions).map(|_| Chain::default()).collect();
    let mut keeper = Keeper { work, chains, out, home, homes };
    let mut combiner = Combiner::new((0..partitions).map(|_| block()).collect());
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
                add(work, &rest, &mut combiner, &mut keeper)?;
                rest.clear();
            }
        }
        if rest.is_empty() {
            at += add_all(work, &block[at..end], &mut combiner, &mut keeper)?;
            rest.extend_from_slice(&block[at..end]);
        }
        check_length(work, rest.len())?;
        if let Some(name) = ends
            && !rest.is_empty()
        {
            let whole = work.format.complete(&mut rest);
            whole.map_err(|e| e.context(format_args!("sort `{name}`")))?;
            add(work, &rest, &mut combiner, &mut keeper)?;
            rest.clear();
        }
        // Blocks that were primed are more than the reader needs; it takes what it wants.
        let _ = free.send(block);
    }
    work.failure.result()?;
    for (p, (block, bytes)) in combiner.finish(&mut keeper)?.into_iter().enumerate() {
        if bytes > 0 {
            keeper.keep(p, block, bytes)?;
        }
    }
    Ok(keeper.chains)
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

#[inline(always)]
fn add(work: &Work<'_>, record: &[u8], to: &mut Combiner, keeper: &mut Keeper<'_>) -> Result<()> {
    let p = work.splitters.find(work.order, work.format.body(record));
    keeper.chains[p].sum.add(record);
    to.add(p, record, keeper)
}

/// Adds the whole records of `bytes`; answers how many bytes they were.
fn add_all(
    work: &Work<'_>,
    bytes: &[u8],
    to: &mut Combiner,
    keeper: &mut Keeper<'_>,
) -> Result<usize> {
    let mut at = 0;
    while let Some(n) = work.format.record_bytes(&bytes[at..]) {
        add(work, &bytes[at..at + n], to, keeper)?;
        at += n;
    }
    Ok(at)
}
