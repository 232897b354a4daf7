//! The chunk store on a disk whose syncs fail or that runs full: what was acknowledged before is
//! there after the next start, whatever the power cut behind it does to the rest.

use crate::chunk::{crcs, open, read_raw};
use crate::common::{Answer, failing_disk, noise};
use holdfast_base::ids::{ChunkId, Durability, Generation};
use holdfast_base::{Kind, Result};
use holdfast_chunk::{ChunkKind, ChunkSpec, Store};
use holdfast_env::Disk;
use holdfast_sim::SimDisk;

/// Bytes of each append, whose content depends on chunk and place alone. No block ends with one.
const APPEND: u64 = 3000;
const CHUNKS: u64 = 3;

fn body(chunk: u64, at: u64) -> Vec<u8> {
    noise(chunk << 32 | at, APPEND as usize)
}

fn create(store: &Store, chunk: u64, capacity_bytes: u64) -> Result<()> {
    let spec = ChunkSpec::new(ChunkId(chunk), ChunkKind::Raw, 9);
    store.create(ChunkSpec { capacity_bytes, ..spec })
}

/// Appends at byte `at`; answers the acknowledged length.
fn append(store: &Store, chunk: u64, at: u64, class: Durability) -> Result<u64> {
    let body = body(chunk, at);
    let sums = crcs(at, &body);
    let (answer, done) = Answer::<u64>::new();
    store.append_raw(ChunkId(chunk), at, Box::new(body), sums, class, done);
    store.pump();
    answer.get()
}

/// All of what `acknowledged` says is there and right, can be sealed at what is found, and is there
/// after one more power cut.
fn check(disk: &SimDisk, acknowledged: &[u64], what: &str) {
    let found = check_once(disk, acknowledged, what);
    let lengths = check_once(&disk.power_cut_losing_all(), acknowledged, what);
    assert_eq!(lengths, found, "{what}: sealed at these lengths");
}

fn check_once(disk: &SimDisk, acknowledged: &[u64], what: &str) -> Vec<u64> {
    let (store, found) = open(disk, 1).unwrap();
    assert!(found.damaged.is_empty() && found.journal_damage.is_empty(), "{what}: {found:?}");
    let mut lengths = Vec::new();
    for (chunk, &length) in (1..).zip(acknowledged).filter(|(_, length)| **length > 0) {
        let there = store.length(ChunkId(chunk)).unwrap();
        assert!(there >= length, "{what}: chunk {chunk} has {there} of {length}");
        let wanted: Vec<u8> = (0..length / APPEND).flat_map(|i| body(chunk, i * APPEND)).collect();
        assert_eq!(read_raw(&store, ChunkId(chunk), 0, length).unwrap(), wanted, "{what}");
        store.seal(ChunkId(chunk), there).unwrap();
        lengths.push(there);
    }
    lengths
}

/// Each sync of a run fails once, the journal's and the write-back's among them. The store takes no
/// writes from there on, acknowledges none, and the next start finds what was acknowledged.
#[test]
fn a_sync_that_fails_loses_nothing_that_was_acknowledged() {
    let mut broke = 0;
    for nth in 1..80 {
        let disk = failing_disk(nth / 2);
        disk.fail_sync(nth);
        let Ok((store, _)) = open(&disk, 1) else {
            check(&disk.power_cut(nth), &[], "while it was opened");
            continue;
        };
        let mut acknowledged = [0; CHUNKS as usize];
        let mut failed = (1..=CHUNKS).any(|chunk| create(&store, chunk, 256 << 10).is_err());
        for step in 0..90 {
            let chunk = step % CHUNKS + 1;
            let length = &mut acknowledged[chunk as usize - 1];
            let read_only = store.usage().read_only;
            match append(&store, chunk, *length, Durability::Durable) {
                Ok(end) => {
                    assert!(!read_only, "sync {nth}: acknowledged all the same");
                    *length = end;
                }
                Err(_) => failed = true,
            }
        }
        failed |= store.usage().read_only;
        for seed in 0..3 {
            check(&disk.power_cut(seed), &acknowledged, &format!("sync {nth}, cut {seed}"));
        }
        check(&disk.process_kill(), &acknowledged, &format!("sync {nth}, killed"));
        // Not the one that the journal is made with: without it, the store goes on.
        broke += failed as u32;
    }
    assert!(broke > 40, "{broke} syncs were made to fail");
}

/// Appends are refused as full, reads go on, and what an unlink frees is used without a restart.
/// The power is cut when it is full, or when it has gone on.
#[test]
fn a_full_disk_keeps_what_it_has_and_goes_on_when_space_is_freed() {
    let rooms = [2_200_000, 2_300_000, 2_500_000, 2_600_000];
    for (room, goes_on) in rooms.into_iter().flat_map(|room| [(room, false), (room, true)]) {
        let disk = SimDisk::new(room);
        disk.set_capacity(room / 4096 * 4096);
        let (store, _) = open(&disk, 1).unwrap();
        let mut acknowledged = vec![0; 24];
        let mut refused = 0;
        for (chunk, kept) in (1..).zip(&mut acknowledged) {
            let class = if chunk % 3 == 0 { Durability::Memory } else { Durability::Durable };
            let filled = create(&store, chunk, 64 << 10).and_then(|()| {
                for at in (0..20 * APPEND).step_by(APPEND as usize) {
                    let end = append(&store, chunk, at, class)?;
                    if class == Durability::Durable {
                        *kept = end;
                    }
                }
                Ok(())
            });
            if let Err(e) = filled {
                assert_eq!(e.kind, Kind::Full, "{e}");
                refused += 1;
            }
        }
        assert!(refused > 0 && !store.usage().read_only, "{room}: {refused} refused");
        for (chunk, &length) in (1..).zip(&acknowledged).filter(|(_, length)| **length > 0) {
            let read = read_raw(&store, ChunkId(chunk), 0, length).unwrap();
            assert_eq!(read.len() as u64, length);
        }
        if goes_on {
            store.unlink(ChunkId(1), Generation(0)).unwrap();
            acknowledged[0] = 0;
            create(&store, 25, 32 << 10).unwrap();
            acknowledged.push(append(&store, 25, 0, Durability::Durable).unwrap());
        }
        check(&disk.power_cut(room), &acknowledged, &format!("{room}, goes on: {goes_on}"));
    }
}

/// What is set aside makes way for a copy, which takes its name: a power cut behind that took the
/// file out of the store's directory, and did not put it into `quarantine`.
#[test]
fn what_was_set_aside_is_kept_when_the_power_is_cut() {
    let mut lost = 0;
    for (seed, synced) in (0..40).flat_map(|seed| [(seed, true), (seed, false)]) {
        let disk = SimDisk::new(seed);
        if !synced {
            disk.disable_site("chunk.aside-name");
        }
        let (store, _) = open(&disk, 1).unwrap();
        create(&store, 1, 64 << 10).unwrap();
        append(&store, 1, 0, Durability::Durable).unwrap();
        let kept = store.set_aside(ChunkId(1), Generation(0), 1000).unwrap();
        // Another chunk's creation makes the names of the store's directory durable.
        create(&store, 2, 64 << 10).unwrap();
        let there = disk.power_cut(seed).exists(&kept).unwrap();
        assert!(there || !synced, "cut {seed}: it is gone");
        lost += !there as u32;
    }
    assert!(lost > 0, "the sync is for nothing");
}
