//! A store with all its threads, and clients beside them, under orders of their steps that a seed
//! draws: at each lock, wait, start and disk operation it decides who goes on. What threads.rs
//! catches by arranging one order, this looks for in thousands. `make interleaved` runs it.
//!
//! After each order the power fails (or failed in its midst): what had been acknowledged as
//! durable must be there. While it runs, readers see what was acknowledged and nothing else, and
//! nothing is acknowledged past a fence's answer. A thread that is never woken is a deadlock,
//! which ends the run.

use crate::common::*;
use holdfast_base::Kind;
use holdfast_base::ids::{ChunkId, Durability, Generation, Pointer, Slot};
use holdfast_chunk::*;
use holdfast_env::sync::{mpsc, thread};
use holdfast_env::trial::Trial;
use holdfast_env::{Rng, SeededRng};
use holdfast_interleaved::{CutDisk, after_a_while, below, in_many_orders};
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex};

/// Takes objects of two clients.
const PACKED: ChunkId = ChunkId(1);
/// Takes the bytes of one.
const RAW: ChunkId = ChunkId(2);
const APPENDS: u64 = 6;

/// What clients know.
#[derive(Clone, Default)]
struct Known {
    /// Acknowledged objects by slot: number and whether they are durable.
    objects: BTreeMap<u32, (u64, bool)>,
    /// Acknowledged bytes of the raw chunk, and how many of them are durable.
    raw: u64,
    raw_durable: u64,
    /// What a fence answered.
    fenced: BTreeMap<ChunkId, u64>,
    /// Where a seal cut, without a fence before it: what is behind is gone, acknowledged or not.
    sealed: BTreeMap<ChunkId, u64>,
}

static NOISE: LazyLock<Vec<u8>> = LazyLock::new(|| noise(7, 1 << 16));

/// Of one object.
fn body(number: u64) -> &'static [u8] {
    let (at, bytes) = (number as usize * 131 % (1 << 15), number as usize * 701 % 9000);
    &NOISE[at..][..1 + bytes]
}

struct Run {
    store: Store,
    known: Mutex<Known>,
}

impl Run {
    /// One object after the other, until the chunk is fenced.
    fn put_objects(&self, client: u64) {
        for i in 0..APPENDS {
            let number = client * 100 + i;
            let body = body(number);
            let durable = below(3) > 0;
            let class = if durable { Durability::Durable } else { Durability::Memory };
            let (tx, rx) = mpsc::channel();
            let done = Box::new(move |slot| tx.send(slot).unwrap());
            let sums = crcs(0, body);
            self.store.append_needle(
                PACKED,
                needle(number),
                Box::new(body.to_vec()),
                sums,
                class,
                done,
            );
            match rx.recv().unwrap() {
                Ok(Slot(slot)) => {
                    let mut known = self.known.lock().unwrap();
                    let before = known.objects.insert(slot, (number, durable));
                    assert_eq!(before, None, "slot {slot} was given out twice");
                    let fenced = known.fenced.get(&PACKED);
                    assert!(
                        fenced.is_none_or(|&n| u64::from(slot) < n),
                        "{slot} behind {fenced:?}"
                    );
                }
                Err(e) => {
                    assert_eq!(e.kind, Kind::Fenced, "{e}");
                    return;
                }
            }
        }
    }

    /// Slices of noise, several under way.
    fn put_bytes(&self) {
        let (mut at, mut under_way) = (0, Vec::new());
        // What the journal takes, or of every kind.
        let (appends, sizes) = match below(2) {
            0 => (3 * APPENDS, &[1, 100, 700][..]),
            _ => (APPENDS, &[1, 700, 4096, 9000][..]),
        };
        for _ in 0..appends {
            let bytes = sizes[below(sizes.len() as u64) as usize];
            let durable = appends > APPENDS || below(3) > 0;
            let class = if durable { Durability::Durable } else { Durability::Memory };
            let slice = NOISE[at as usize..][..bytes as usize].to_vec();
            let (tx, rx) = mpsc::channel();
            let done = Box::new(move |end| tx.send(end).unwrap());
            let sums = crcs(at, &slice);
            self.store.append_raw(RAW, at, Box::new(slice), sums, class, done);
            at += bytes;
            under_way.push((at, durable, rx));
            if below(2) == 0 && !self.hear(&mut under_way) {
                return;
            }
        }
        self.hear(&mut under_way);
    }

    /// Whether all that is under way was acknowledged, in order.
    fn hear(
        &self,
        under_way: &mut Vec<(u64, bool, mpsc::Receiver<holdfast_base::Result<u64>>)>,
    ) -> bool {
        for (at, durable, rx) in under_way.drain(..) {
            match rx.recv().unwrap() {
                Ok(end) => {
                    assert!(end >= at, "{end} of {at} bytes acknowledged");
                    let mut known = self.known.lock().unwrap();
                    known.raw = known.raw.max(at);
                    if durable {
                        known.raw_durable = known.raw_durable.max(at);
                    }
                    let fenced = known.fenced.get(&RAW);
                    assert!(fenced.is_none_or(|&n| at <= n), "{at} behind {fenced:?}");
                }
                Err(e) => {
                    assert_eq!(e.kind, Kind::Fenced, "{e}");
                    return false;
                }
            }
        }
        true
    }

    /// What was acknowledged before the question is answered, and right.
    fn read(&self) {
        for _ in 0..APPENDS {
            let (objects, raw) = {
                let known = self.known.lock().unwrap();
                (known.objects.clone(), known.raw)
            };
            for (slot, (number, _)) in objects {
                let read = read_object(&self.store, slot, number);
                let sealed = self.known.lock().unwrap().sealed.get(&PACKED).copied();
                match read {
                    Ok(read) => assert_eq!(read, body(number)),
                    Err(e) => assert!(sealed.is_some_and(|n| u64::from(slot) >= n), "{slot}: {e}"),
                }
            }
            let got = read_bytes(&self.store, 1 << 16);
            let raw = self.known.lock().unwrap().kept(RAW, raw);
            assert!(got.len() as u64 >= raw, "{} of {raw} bytes", got.len());
            assert!(NOISE.starts_with(&got));
            let length = self.store.length(RAW).unwrap();
            let seen = self.known.lock().unwrap().kept(RAW, got.len() as u64);
            assert!(length >= seen, "{length} bytes, {seen} were read");
        }
    }

    /// As whoever heard lengths of other replicas does.
    fn seal(&self, chunk: ChunkId) {
        let length = self.store.length(chunk).unwrap();
        // From here on it may be cut there.
        self.known.lock().unwrap().sealed.insert(chunk, length);
        self.store.seal(chunk, length).unwrap();
        assert_eq!(self.store.length(chunk).unwrap(), length);
    }

    fn fence(&self, chunk: ChunkId) {
        let length = self.store.fence(chunk).unwrap();
        {
            let mut known = self.known.lock().unwrap();
            known.fenced.insert(chunk, length);
            match chunk {
                RAW => assert!(known.raw <= length, "{} of {length}", known.raw),
                _ => assert!(known.objects.keys().all(|&slot| u64::from(slot) < length)),
            }
        }
        if below(2) == 0 {
            self.store.seal(chunk, length).unwrap();
        }
    }
}

impl Known {
    /// Of so much of a chunk, what no seal has cut off.
    fn kept(&self, chunk: ChunkId, length: u64) -> u64 {
        self.sealed.get(&chunk).map_or(length, |&sealed| sealed.min(length))
    }
}

fn read_object(store: &Store, slot: u32, number: u64) -> holdfast_base::Result<Vec<u8>> {
    let pointer = Pointer { chunk: PACKED, ..pointer(slot, number) };
    store.read_needle(pointer).map(|read| read.bytes.to_vec())
}

fn read_bytes(store: &Store, most: u64) -> Vec<u8> {
    store.read_raw(RAW, Generation(0), 0, most).unwrap().bytes.to_vec()
}

fn store_config(commit_threads: usize) -> StoreConfig {
    let journal_segment_bytes = [0, 16 << 10, 64 << 10][below(3) as usize];
    StoreConfig { commit_threads, journal_segment_bytes, ..config() }
}

/// After the power came back: whatever had been acknowledged as durable.
fn check(disk: Arc<CutDisk>, known: &Known) {
    let rng: Arc<dyn Rng> = Arc::new(SeededRng::new(2));
    let (store, _) = Store::open(disk, rng, store_config(0))
        .unwrap_or_else(|e| panic!("the store does not open: {e}"));
    for (&slot, &(number, durable)) in &known.objects {
        if durable && known.kept(PACKED, u64::from(slot) + 1) > u64::from(slot) {
            assert_eq!(read_object(&store, slot, number).unwrap(), body(number));
        }
    }
    let (got, durable) = (read_bytes(&store, 1 << 16), known.kept(RAW, known.raw_durable));
    assert!(got.len() as u64 >= durable, "{} of {durable}", got.len());
    assert!(NOISE.starts_with(&got));
}

fn one_order() {
    let _trial = Trial::drawn(below(u64::MAX)).enter();
    let disk = CutDisk::new();
    let rng = Arc::new(SeededRng::new(1));
    let (store, _) = Store::open(disk.clone(), rng, store_config(2)).unwrap();
    for (chunk, kind) in [(PACKED, ChunkKind::Packed), (RAW, ChunkKind::Raw)] {
        let spec = ChunkSpec { capacity_bytes: 1 << 17, ..ChunkSpec::new(chunk, kind, 99) };
        store.create(spec).unwrap();
    }
    let run = Arc::new(Run { store, known: Mutex::default() });
    let spawn = |work: Box<dyn FnOnce(&Run) + Send>| {
        let run = run.clone();
        thread::spawn(move || work(&run))
    };
    let mut clients = vec![
        spawn(Box::new(|run| run.put_objects(1))),
        spawn(Box::new(|run| run.put_objects(2))),
        spawn(Box::new(|run| run.put_bytes())),
        spawn(Box::new(|run| run.read())),
    ];
    if below(2) == 0 {
        let chunk = if below(2) == 0 { RAW } else { PACKED };
        match below(3) {
            0 => clients.push(spawn(Box::new(move |run| after_a_while(|| run.seal(chunk))))),
            _ => clients.push(spawn(Box::new(move |run| after_a_while(|| run.fence(chunk))))),
        }
    }
    let cutting = (below(2) == 0).then(|| {
        let (run, disk) = (run.clone(), disk.clone());
        thread::spawn(move || {
            after_a_while(|| {
                // In one step: nothing is acknowledged between the two.
                let known = run.known.lock().unwrap();
                (disk.cut(), known.clone())
            })
        })
    });
    clients.into_iter().for_each(|client| client.join().unwrap());
    if let Some(cutting) = cutting {
        let (disk, known) = cutting.join().unwrap();
        check(disk, &known);
    }
    let run = Arc::into_inner(run).unwrap();
    let known = run.known.into_inner().unwrap();
    if below(2) == 0 {
        // An orderly end: all of it, durable or not.
        drop(run.store);
        let all =
            known.objects.iter().map(|(&slot, &(number, _))| (slot, (number, true))).collect();
        let all = Known { objects: all, raw_durable: known.raw, ..known };
        check(disk.cut(), &all);
    } else {
        check(disk.cut(), &known);
        drop(run.store);
    }
}

/// A journal whose segments are soon full: it turns, its chunks are written back and synced, and
/// reads ask for what their files miss, all the time.
fn one_order_of_a_small_journal() {
    let _trial = Trial::drawn(below(u64::MAX)).enter();
    let disk = CutDisk::new();
    let config = StoreConfig { journal_segment_bytes: 16 << 10, ..store_config(1) };
    let (store, _) = Store::open(disk.clone(), Arc::new(SeededRng::new(1)), config).unwrap();
    let chunks = [ChunkId(1), ChunkId(2)];
    let clients = chunks.map(|chunk| {
        let spec =
            ChunkSpec { capacity_bytes: 1 << 17, ..ChunkSpec::new(chunk, ChunkKind::Raw, 9) };
        store.create(spec).unwrap();
        let store = store.clone();
        thread::spawn(move || {
            let mut at = 0;
            for _ in 0..8 {
                let bytes = 1 + below(4000);
                let slice = NOISE[at as usize..][..bytes as usize].to_vec();
                let (tx, rx) = mpsc::channel();
                let done = Box::new(move |end| tx.send(end).unwrap());
                let (sums, class) = (crcs(at, &slice), Durability::Durable);
                store.append_raw(chunk, at, Box::new(slice), sums, class, done);
                at = rx.recv().unwrap().unwrap();
                if below(4) == 0 {
                    let read = store.read_raw(chunk, Generation(0), 0, at).unwrap();
                    assert_eq!(read.bytes.to_vec(), NOISE[..at as usize]);
                }
            }
            at
        })
    });
    let ends = clients.map(|client| client.join().unwrap());
    let (store, _disk) = match below(2) {
        0 => (store, disk),
        _ => {
            let after = disk.cut();
            drop(store);
            let rng = Arc::new(SeededRng::new(2));
            (Store::open(after.clone(), rng, store_config(0)).unwrap().0, after)
        }
    };
    for (chunk, end) in chunks.into_iter().zip(ends) {
        let read = store.read_raw(chunk, Generation(0), 0, 1 << 16).unwrap();
        assert_eq!(read.bytes.to_vec(), NOISE[..end as usize]);
    }
}

#[test]
fn whatever_the_order_of_a_stores_threads_what_was_acknowledged_is_there() {
    in_many_orders(one_order);
}

/// The write-back waited for a chunk to be written that had been left to the write-back: small
/// durable appends to all chunks of the store then waited for ever, and so did its end.
#[test]
fn whatever_the_order_of_a_journals_threads_none_waits_for_itself() {
    in_many_orders(one_order_of_a_small_journal);
}
