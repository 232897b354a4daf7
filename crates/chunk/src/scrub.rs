//! Reads everything again, slowly, and says what no longer verifies. A core: it is handed the
//! time, reads at most what its rate has earned, and can be stopped and resumed at its cursor.
//! Repair is for those who know other replicas.

use crate::api::{ChunkKind, Damage};
use crate::disk::{DiskStore, Version, open_needle};
use crate::format::BLOCK;
use crate::store::Store;
use holdfast_base::ids::{ChunkId, Cookie, Generation, Pointer, Slot};
use holdfast_base::units::MIB;
use holdfast_base::{Kind, Result};
use holdfast_env::sockets::is_out_of_descriptors;
use holdfast_env::trial::Knob;
use holdfast_env::{HoldRwLock, planted};
use std::collections::BTreeSet;

/// A pause in the calls does not earn more than this many seconds' worth of reading.
const BURST_SECONDS: u64 = 1;
/// A pass begins so long after the last one ended, at least: damage grows over weeks, and a small
/// store that nobody uses must not keep its disk awake. A store that takes days to read is read
/// all the time, or nearly.
static PAUSE_S: Knob = Knob::new("chunk.scrub-pause-s", 3600, &[1, 5, 20]);
/// Damaged places that are remembered, to count each once; further ones are reported and not
/// counted.
const KNOWN_MAX: usize = 100_000;
const SECOND_NS: u64 = 1_000_000_000;

/// What comes next: a chunk, and a block or slot in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubCursor {
    pub chunk: ChunkId,
    pub position: u64,
}

/// What one step did.
#[derive(Clone, Debug, Default)]
pub struct ScrubStep {
    pub bytes: u64,
    pub damaged: Vec<Damage>,
    /// Of these, those that an earlier pass did not find.
    pub newly_damaged: u64,
    /// The last chunk was passed; after a pause, a step begins with the first again.
    pub finished_pass: bool,
    /// When the rate allows more, from the `now` that was given.
    pub wait_ns: u64,
}

/// A token bucket over one store.
pub struct Scrubber {
    store: Store,
    bytes_per_second: u64,
    cursor: ScrubCursor,
    /// Bytes that may be read; negative after a block that was larger than what was there.
    tokens: i64,
    filled_at_ns: Option<u64>,
    /// The last pass is over, and the next one begins then.
    rests_until_ns: u64,
    /// Damaged when they were last read.
    known: BTreeSet<(ChunkId, Generation, u64)>,
}

impl Scrubber {
    pub fn new(store: Store, bytes_per_second: u64, cursor: ScrubCursor) -> Scrubber {
        let bytes_per_second = bytes_per_second.max(1);
        Scrubber {
            store,
            bytes_per_second,
            cursor,
            tokens: 0,
            filled_at_ns: None,
            rests_until_ns: 0,
            known: BTreeSet::new(),
        }
    }

    /// Where a later scrubber may go on.
    pub fn cursor(&self) -> ScrubCursor {
        self.cursor
    }

    /// Reads what the rate allows at `now_ns`, at most one MiB. Blocks for the disk.
    pub fn step(&mut self, now_ns: u64) -> ScrubStep {
        self.fill(now_ns);
        let mut step = ScrubStep::default();
        if now_ns < self.rests_until_ns && !planted!("chunk.scrub-never-rests") {
            step.wait_ns = self.rests_until_ns - now_ns;
            return step;
        }
        while self.tokens > 0 && step.bytes < MIB {
            let Some(chunk) = self.next_chunk() else {
                self.cursor = ScrubCursor::default();
                step.finished_pass = true;
                self.rests_until_ns = now_ns + PAUSE_S.get() * SECOND_NS;
                PAUSE_S.cross();
                break;
            };
            let position = self.cursor.position;
            let (bytes, generation, damage) = self.unit(chunk);
            self.tokens -= bytes as i64;
            step.bytes += bytes;
            step.newly_damaged += u64::from(self.is_new((chunk, generation, position), &damage));
            step.damaged.extend(damage);
        }
        let missing = (1 - self.tokens).max(0) as u64;
        step.wait_ns = (missing as u128 * 1_000_000_000 / self.bytes_per_second as u128) as u64;
        step
    }

    /// Whether a place is damaged and was not when it was read last. What is well again may be
    /// damaged anew.
    fn is_new(&mut self, place: (ChunkId, Generation, u64), damage: &Option<Damage>) -> bool {
        if damage.is_none() {
            self.known.remove(&place);
            return false;
        }
        if planted!("chunk.bad-block-counted-again") {
            return true;
        }
        self.known.len() < KNOWN_MAX && self.known.insert(place)
    }

    fn fill(&mut self, now_ns: u64) {
        let since = now_ns.saturating_sub(self.filled_at_ns.unwrap_or(now_ns));
        let earned = since as u128 * self.bytes_per_second as u128 / 1_000_000_000;
        if earned > 0 || self.filled_at_ns.is_none() {
            // Only when something was earned: fractions of a byte must not be lost.
            self.filled_at_ns = Some(now_ns);
        }
        let burst = (self.bytes_per_second * BURST_SECONDS) as i64;
        self.tokens = self.tokens.saturating_add(earned.min(burst as u128) as i64).min(burst);
    }

    /// The chunk at the cursor, or the first one behind it.
    fn next_chunk(&mut self) -> Option<ChunkId> {
        let chunks = self.store.disk()?.chunks.held_shared();
        let chunk = *chunks.range(self.cursor.chunk..).next()?.0;
        if chunk != self.cursor.chunk {
            self.cursor = ScrubCursor { chunk, position: 0 };
        }
        Some(chunk)
    }

    /// One block or one object; moves the cursor behind it.
    fn unit(&mut self, chunk: ChunkId) -> (u64, Generation, Option<Damage>) {
        let position = self.cursor.position;
        self.cursor.position += 1;
        let Some(disk) = self.store.disk() else { return (0, Generation(0), None) };
        let unit = disk.current(chunk).map(|version| {
            let generation = version.generation();
            // Who has no descriptor left knows nothing of the bytes.
            if let Version::Sealed(sealed) = &version
                && disk.handles.open(&*disk.disk, sealed).is_err_and(|e| is_out_of_descriptors(&e))
            {
                return (generation, None);
            }
            let read = match version.info() {
                info if info.kind == ChunkKind::Raw => {
                    let bytes = info.length.saturating_sub(position * BLOCK).min(BLOCK);
                    (bytes > 0).then(|| raw_block(disk, chunk, generation, position, bytes))
                }
                info => (position < info.length)
                    .then(|| needle(disk, &version, chunk, Slot(position as u32))),
            };
            (generation, read)
        });
        match unit {
            Ok((generation, Some(Ok(bytes)))) => (bytes, generation, None),
            Ok((generation, Some(Err((bytes, what))))) => {
                (bytes, generation, Some(Damage { chunk, generation, what }))
            }
            // Past its end, unlinked meanwhile, or not to be opened now: on to the next.
            Ok((_, None)) | Err(_) => {
                self.cursor = ScrubCursor { chunk: ChunkId(chunk.0 + 1), position: 0 };
                (0, Generation(0), None)
            }
        }
    }
}

/// Bytes read, and what was wrong with them.
type Unit = Result<u64, (u64, String)>;

fn judge<T>(read: Result<T>, bytes: u64) -> Unit {
    match read {
        // Unlinked or switched meanwhile: nothing to report. Or a store that takes no writes has to
        // put bytes from the journal into the file first: they are where they were.
        Err(e) if matches!(e.kind, Kind::NotFound | Kind::ReadOnly) => Ok(0),
        Err(e) => Err((bytes, e.message)),
        Ok(_) => Ok(bytes),
    }
}

fn raw_block(
    disk: &DiskStore,
    chunk: ChunkId,
    generation: Generation,
    block: u64,
    bytes: u64,
) -> Unit {
    judge(disk.read_raw(chunk, generation, block * BLOCK, bytes, true), bytes)
}

fn needle(disk: &DiskStore, version: &Version, chunk: ChunkId, slot: Slot) -> Unit {
    let pointer = Pointer { chunk, slot, cookie: Cookie(0) };
    let (plan, header, file) = match version {
        Version::Open(open) => (open_needle(open, pointer), &open.header, Ok(open.reader.clone())),
        Version::Sealed(sealed) => {
            let plan = disk.index(sealed).and_then(|index| index.needle(sealed, slot));
            (plan, &sealed.header, disk.handles.get(&*disk.disk, sealed))
        }
    };
    let plan = match plan {
        Ok(Some(plan)) => plan,
        Ok(None) => return Ok(0),
        Err(e) => return Err((0, e.message)),
    };
    let bytes = plan.end - plan.offset;
    judge(file.and_then(|file| plan.read(header, &*file, pointer, true)), bytes)
}
