//! Sealed chunks moved from one store to another: whole or not at all.

mod common;

use common::*;
use holdfast_base::checksum::crc32c;
use holdfast_base::ids::{Durability, Generation, Slot, StoreId};
use holdfast_base::units::MIB;
use holdfast_base::{Kind, Result};
use holdfast_chunk::*;
use holdfast_env::SeededRng;
use holdfast_env::region::Region;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const G0: Generation = Generation(0);
/// For imports that are refused before anything comes.
const NOBODY: StoreId = StoreId(5);
const BLOCK: u64 = 256 << 10;

fn raw_source() -> (Arc<MemDisk>, Store, Vec<u8>) {
    let disk = MemDisk::new();
    let (store, _) = open(&disk);
    store.create(spec(ChunkKind::Raw, 4 * MIB)).unwrap();
    let data = noise(3, 3_000_000);
    let mut at = 0;
    for part in data.chunks(350_001) {
        at = append_raw(&store, at, part, Durability::Durable).unwrap();
    }
    store.seal(CHUNK, 2_900_000).unwrap();
    (disk, store, data[..2_900_000].to_vec())
}

fn packed_source() -> (Arc<MemDisk>, Store) {
    let disk = MemDisk::new();
    let (store, _) = open(&disk);
    store.create(spec(ChunkKind::Packed, 4 * MIB)).unwrap();
    for i in 0..40 {
        append_needle(&store, i, &noise(i, i as usize * 2000)).unwrap();
    }
    store.seal(CHUNK, 40).unwrap();
    (disk, store)
}

/// A second store, with another id.
fn target() -> (Arc<MemDisk>, Store) {
    let disk = MemDisk::new();
    let (store, _) = Store::open(disk.clone(), Arc::new(SeededRng::new(2)), config()).unwrap();
    (disk, store)
}

fn total(source: &Store, generation: Generation) -> u64 {
    source.export(CHUNK, generation, 0, 1).unwrap().bytes_total
}

fn id(store: &Store) -> StoreId {
    store.usage().store
}

/// Blocks from where the import is up to `end`.
fn pull(source: &Store, import: &mut Import, generation: Generation, end: u64) -> Result<()> {
    while import.offset() < end {
        let block = source.export(CHUNK, generation, import.offset(), BLOCK)?;
        import.write(import.offset(), &block.bytes, block.crc)?;
    }
    Ok(())
}

fn copy(source: &Store, target: &Store, generation: Generation) -> Result<ChunkInfo> {
    let bytes = total(source, generation);
    let mut import = target.import(CHUNK, generation, bytes, id(source))?;
    pull(source, &mut import, generation, bytes)?;
    import.finish()
}

#[test]
fn a_copy_reads_as_its_source_and_belongs_to_its_own_store() {
    let (_, source, data) = raw_source();
    let (disk, store) = target();
    let used = store.usage().used_bytes;
    let info = copy(&source, &store, G0).unwrap();
    assert_eq!((info.state, info.length), (ReplicaState::Sealed, data.len() as u64));
    assert_eq!(store.usage().used_bytes, used + total(&source, G0));
    drop(store);
    let (store, found) = Store::open(disk.clone(), Arc::new(SeededRng::new(2)), config()).unwrap();
    assert!(found.quarantined.is_empty(), "{found:?}");
    assert_eq!(read_raw(&store, 0, 3_000_000).unwrap(), data);
    // A copy of a copy is as good.
    let (_, third) = target();
    copy(&store, &third, G0).unwrap();
    assert_eq!(read_raw(&third, 0, 3_000_000).unwrap(), data);
    assert_eq!(copy(&source, &store, G0).unwrap_err().kind, Kind::Exists);
}

#[test]
fn packed_chunks_and_compacted_generations_move_with_their_slots() {
    let (_, source) = packed_source();
    let (_, store) = target();
    copy(&source, &store, G0).unwrap();
    for i in 0..40 {
        let read = store.read_needle(pointer(i as u32, i)).unwrap();
        assert_eq!(read.bytes.to_vec(), noise(i, i as usize * 2000));
    }
    // The next generation waits beside the current one for its switch.
    let next = Generation(1);
    let made = source.compact(CHUNK, &|slot| slot.0 % 3 == 0, next).unwrap();
    assert!(copy(&source, &store, next).is_ok());
    assert_eq!(store.list()[0].generation, G0);
    source.switch(CHUNK, next).unwrap();
    store.switch(CHUNK, next).unwrap();
    assert_eq!(store.list()[0].needles, made.needles);
    assert!(store.read_needle(pointer(39, 39)).is_ok());
    assert_eq!(store.read_needle(pointer(38, 38)).err().unwrap().kind, Kind::NotFound);
}

#[test]
fn an_import_goes_on_after_a_restart_where_its_bytes_verify() {
    for generation in [G0, Generation(1)] {
        let (_, source) = packed_source();
        source.compact(CHUNK, &|slot| slot != Slot(5), Generation(1)).unwrap();
        let (disk, store) = target();
        let bytes = total(&source, generation);
        let mut import = store.import(CHUNK, generation, bytes, id(&source)).unwrap();
        pull(&source, &mut import, generation, 1_000_000).unwrap();
        let reached = import.offset();
        drop((import, store));
        let open = || Store::open(disk.clone(), Arc::new(SeededRng::new(2)), config()).unwrap();
        let (store, found) = open();
        assert_eq!(found.partial, [(CHUNK, generation)]);
        assert!(store.list().is_empty(), "nobody sees a part of a chunk");
        let mut import = store.import(CHUNK, generation, bytes, id(&source)).unwrap();
        let resumed = import.offset();
        assert!(resumed <= reached && reached - resumed < 200_000, "{resumed} of {reached}");
        pull(&source, &mut import, generation, bytes).unwrap();
        drop((import, store));
        // A page that did not reach the disk ends what verifies.
        disk.content(&disk.find(".part")).lock().unwrap()[600_000..604_096].fill(0);
        let (store, _) = open();
        let used = store.usage().used_bytes;
        let mut import = store.import(CHUNK, generation, bytes, id(&source)).unwrap();
        assert!((400_000..=600_000).contains(&import.offset()), "{}", import.offset());
        pull(&source, &mut import, generation, bytes).unwrap();
        import.finish().unwrap();
        assert_eq!(store.usage().used_bytes, used, "its space was counted from the start");
        assert_eq!(store.read_needle(pointer(7, 7)).unwrap().bytes.to_vec(), noise(7, 14_000));
    }
}

/// Two replicas of one chunk have the same objects, and files of their own. A copy that was broken off
/// and went on from the other one was found at its end to be nobody's, after all of it had been sent.
#[test]
fn a_copy_from_another_store_begins_again() {
    let replica = |seed: u64| {
        let disk = MemDisk::new();
        let rng = Arc::new(SeededRng::new(seed));
        let (store, _) = Store::open(disk, rng, config()).unwrap();
        store.create(spec(ChunkKind::Packed, 4 * MIB)).unwrap();
        for i in 0..40 {
            append_needle(&store, i, &noise(i, 20_000)).unwrap();
        }
        store.seal(CHUNK, 40).unwrap();
        let own = id(&store);
        (store, own)
    };
    let ((one, first), (two, second)) = (replica(11), replica(12));
    let (_, store) = target();
    let bytes = total(&one, G0);
    let mut import = store.import(CHUNK, G0, bytes, first).unwrap();
    pull(&one, &mut import, G0, 500_000).unwrap();
    drop(import);
    assert!(store.import(CHUNK, G0, bytes, first).unwrap().offset() > 0);
    let mut import = store.import(CHUNK, G0, bytes, second).unwrap();
    assert_eq!(import.offset(), 0, "from the beginning");
    pull(&two, &mut import, G0, bytes).unwrap();
    import.finish().unwrap();
    assert_eq!(store.read_needle(pointer(7, 7)).unwrap().bytes.to_vec(), noise(7, 20_000));
}

#[test]
fn damage_is_refused_wherever_it_happens() {
    let (disk, source, _) = raw_source();
    let bytes = total(&source, G0);
    let (target_disk, store) = target();
    let mut import = store.import(CHUNK, G0, bytes, id(&source)).unwrap();
    let block = source.export(CHUNK, G0, 0, BLOCK).unwrap();
    assert_eq!(import.write(0, &block.bytes, block.crc ^ 1).unwrap_err().kind, Kind::Retry);
    assert_eq!(import.write(4096, &block.bytes, block.crc).unwrap_err().kind, Kind::Invalid);
    // On the source's disk: the block's own checksum is right, the chunk's is not.
    disk.content(&disk.find(".chunk")).lock().unwrap()[1_000_000] ^= 1;
    pull(&source, &mut import, G0, bytes).unwrap();
    let e = import.finish().unwrap_err();
    assert_eq!(e.kind, Kind::Corrupt, "{e}");
    assert!(store.list().is_empty());
    assert!(!target_disk.paths().iter().any(|path| path.to_string_lossy().contains("c0.7")));
    assert_eq!(store.usage().used_bytes, 0, "what failed is removed");
    disk.content(&disk.find(".chunk")).lock().unwrap()[1_000_000] ^= 1;
    copy(&source, &store, G0).unwrap();
}

/// A replica that was dropped because it was short stayed open in its store, and the copy that
/// should have made up for it was refused there for ever. A damaged one was taken for the copy.
#[test]
fn a_short_or_damaged_replica_is_set_aside_for_a_whole_one() {
    let (_, source, data) = raw_source();
    let (short_disk, short) = target();
    short.create(spec(ChunkKind::Raw, 4 * MIB)).unwrap();
    append_raw(&short, 0, &data[..5000], Durability::Durable).unwrap();
    let (bad_disk, bad) = target();
    copy(&source, &bad, G0).unwrap();
    bad_disk.content(&bad_disk.find(".chunk")).lock().unwrap()[1_000_000] ^= 1;
    for (disk, store, ending) in [(short_disk, short, ".open"), (bad_disk, bad, ".chunk")] {
        assert_eq!(copy(&source, &store, G0).unwrap_err().kind, Kind::Corrupt);
        let before = store.usage().used_bytes;
        let kept = store.set_aside(CHUNK, G0, 1000).unwrap();
        assert!(kept.starts_with("/store/quarantine"), "{kept:?}");
        assert!(kept.to_string_lossy().ends_with(&format!("{ending}.until-1000")));
        assert!(store.list().is_empty() && disk.paths().contains(&kept));
        assert_eq!(store.usage().used_bytes, before, "it takes its space for that time");
        copy(&source, &store, G0).unwrap();
        assert_eq!(read_raw(&store, 0, 3_000_000).unwrap(), data);
        assert_eq!(copy(&source, &store, G0).unwrap_err().kind, Kind::Exists);
    }
}

#[test]
fn what_is_no_sealed_chunk_or_finds_no_room_is_refused() {
    let disk = MemDisk::new();
    let (open_source, _) = open(&disk);
    open_source.create(spec(ChunkKind::Raw, MIB)).unwrap();
    assert_eq!(open_source.export(CHUNK, G0, 0, 9).unwrap_err().kind, Kind::Invalid);
    assert_eq!(
        open_source.import(CHUNK, Generation(1), 8192, NOBODY).err().unwrap().kind,
        Kind::Corrupt
    );
    let (disk, store) = target();
    assert_eq!(store.export(CHUNK, G0, 0, 9).unwrap_err().kind, Kind::NotFound);
    assert_eq!(store.import(CHUNK, G0, 5000, NOBODY).err().unwrap().kind, Kind::Invalid);
    disk.shared.total_bytes.store(3 * MIB, Ordering::SeqCst);
    assert_eq!(store.import(CHUNK, G0, 2 * MIB + 4096, NOBODY).err().unwrap().kind, Kind::Full);
    let import = store.import(CHUNK, G0, MIB, NOBODY).unwrap();
    assert_eq!(
        store.import(CHUNK, G0, MIB, NOBODY).err().unwrap().kind,
        Kind::Retry,
        "one at a time"
    );
    assert_eq!(import.finish().unwrap_err().kind, Kind::Invalid, "not all of it is there");
    store.discard_import(CHUNK, G0).unwrap();
    assert_eq!(store.usage().used_bytes, 0);
    let memory = Store::in_region(Region::create("t", StoreId(9), 4 * MIB).unwrap());
    let e = memory.export(CHUNK, G0, 0, 9).unwrap_err();
    assert!(e.kind == Kind::Unsupported && e.message.contains("memory"), "{e}");
}

#[test]
fn a_needle_is_taken_at_the_slot_it_expects_and_refused_at_any_other() {
    let disk = MemDisk::new();
    let (store, _) = open(&disk);
    store.create(spec(ChunkKind::Packed, MIB)).unwrap();
    let append = |slot: u32| {
        let (tx, rx) = std::sync::mpsc::channel();
        let done = Box::new(move |result| tx.send(result).unwrap());
        let (body, sums) = (Box::new(vec![1; 9]), vec![crc32c(&[1; 9])]);
        let class = Durability::Durable;
        store.append_needle_at(CHUNK, Slot(slot), needle(1), body, sums, class, done);
        rx
    };
    // Several of one commit, and what waits behind it.
    let answers = [append(0), append(1), append(1), append(3), append(2)];
    store.pump();
    let kinds = answers.map(|rx| rx.recv().unwrap().map_err(|e| e.kind));
    let refused = Err(Kind::Invalid);
    assert_eq!(kinds, [Ok(Slot(0)), Ok(Slot(1)), refused, refused, Ok(Slot(2))]);
    assert_eq!(store.length(CHUNK).unwrap(), 3);
}
