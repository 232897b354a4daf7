//! What a request meets in a node: names, slots, and a small object in memory.

use holdfast_base::checksum::crc32c;
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::ids::{
    ChunkId, Cookie, Durability, FileId, Index, NodeId, Pointer, Slot, StoreId, Tier,
};
use holdfast_base::node::{NodeKind, StorageClass};
use holdfast_chunk::{ChunkKind, ChunkSpec, Needle, SlotTable, Store};
use holdfast_cluster::{ChunkKind as Kind, Command, Location, Namespace, Outcome};
use holdfast_env::region::Region;
use holdfast_wire::file as msg;
use std::hint::black_box;

const FILES: u32 = 100_000;
const OBJECT_BYTES: usize = 512;
/// Of the table of slots.
const SLOTS: u32 = 10_000;

/// A number that jumps about below `below`, the same in every run.
fn next(turn: &mut u32, below: u32) -> u32 {
    *turn = turn.wrapping_add(0x9e37_79b1);
    ((*turn as u64 * below as u64) >> 32) as u32
}

fn path(file: u32) -> String {
    format!("/table/{:03}/{file:07}", file / 1000)
}

/// A hundred thousand small files, whose bytes lie in one chunk of the memory tier.
fn namespace() -> (Namespace, ChunkId) {
    let mut ns = Namespace::new(0);
    let mut index = 0;
    let mut apply = |command| {
        index += 1;
        ns.apply(Index(index), &command).expect("the commands are right")
    };
    let allocate = Command::AllocateChunk {
        kind: Kind::Packed,
        owner: FileId(0),
        node: NodeId(1),
        replicas: vec![StoreId(1)],
        tier: Tier::Dram,
        durability: Durability::Memory,
    };
    let Outcome::Chunk { chunk } = apply(allocate) else { unreachable!("it allocates a chunk") };
    for file in 0..FILES {
        let pointer = Pointer { chunk, slot: Slot(file), cookie: Cookie(7) };
        apply(Command::Put {
            path: path(file),
            kind: NodeKind::File,
            mode: 0o644,
            mtime: 0,
            size: OBJECT_BYTES as u64,
            crc: 1,
            class: None,
            location: Location::Packed { pointer },
            replace: true,
            parents: true,
            metadata: Vec::new(),
        });
    }
    (ns, chunk)
}

pub fn name_lookup() -> Box<dyn FnMut()> {
    let (ns, _) = namespace();
    let paths: Vec<String> = (0..FILES).map(path).collect();
    let mut turn = 0;
    Box::new(move || {
        let path = &paths[next(&mut turn, FILES) as usize];
        assert!(black_box(ns.lookup(path)).is_some());
    })
}

pub fn name_lookup_16() -> Box<dyn FnMut()> {
    let (ns, _) = namespace();
    let paths: Vec<String> = (0..FILES).map(path).collect();
    let mut turn = 0;
    Box::new(move || {
        let batch: [&str; 16] = std::array::from_fn(|_| &*paths[next(&mut turn, FILES) as usize]);
        let mut found = [None; 16];
        ns.lookup_batch(&batch, &mut found);
        assert!(black_box(found).iter().all(Option::is_some));
    })
}

pub fn slot_lookup() -> Box<dyn FnMut()> {
    let offsets: Vec<Option<u32>> =
        (0..SLOTS).map(|slot| (slot % 8 != 3).then_some(slot * 1500)).collect();
    let table = SlotTable::new(offsets.into_iter());
    let mut turn = 0;
    Box::new(move || {
        black_box(table.get(next(&mut turn, SLOTS)));
    })
}

/// A get of 512 bytes from memory without its sockets: name, object, checksum, answer.
pub fn small_get() -> Box<dyn FnMut()> {
    let (ns, chunk) = namespace();
    let region = Region::create("hotpaths", StoreId(1), 64 << 20).expect("memory is there");
    let store = Store::in_region(region);
    let spec = ChunkSpec::new(chunk, ChunkKind::Packed, 1);
    store.create(spec).expect("the chunk is new");
    let body = vec![7u8; OBJECT_BYTES];
    let crc = crc32c(&body);
    for _ in 0..FILES {
        let needle = Needle { cookie: Cookie(7), ..Needle::default() };
        let done = Box::new(|slot: holdfast_base::Result<Slot>| assert!(slot.is_ok()));
        store.append_needle(
            chunk,
            needle,
            Box::new(body.clone()),
            vec![crc],
            Durability::Memory,
            done,
        );
    }
    let paths: Vec<String> = (0..FILES).map(path).collect();
    let (mut turn, mut out) = (0, Vec::new());
    Box::new(move || {
        let info = ns.lookup(&paths[next(&mut turn, FILES) as usize]).expect("it was put");
        let Location::Packed { pointer } = info.location else { unreachable!("it is small") };
        let read = store.try_read_needle(pointer).expect("it is in memory").expect("it is whole");
        let content = msg::Content::Body { crc: read.crcs[0] };
        out.clear();
        msg::GetReply { info: file_info(), content }.encode(&mut out);
        black_box((&out, read.bytes.len()));
    })
}

fn file_info() -> msg::FileInfo {
    msg::FileInfo {
        id: FileId(77),
        kind: NodeKind::File,
        mode: 0o644,
        mtime_ns: 1_700_000_000_000_000_000,
        size: OBJECT_BYTES as u64,
        class: StorageClass::DEFAULT,
        target: String::new(),
        metadata: Vec::new(),
    }
}

pub fn file_info_encode() -> Box<dyn FnMut()> {
    let (info, mut out) = (file_info(), Vec::new());
    Box::new(move || {
        out.clear();
        black_box(&info).encode(&mut out);
        black_box(&out);
    })
}

pub fn file_info_decode() -> Box<dyn FnMut()> {
    let bytes = file_info().to_bytes();
    Box::new(move || {
        black_box(msg::FileInfo::from_bytes(black_box(&bytes))).expect("it was encoded");
    })
}
