//! What a small file costs in memory, counted by the allocator.

use holdfast_base::ids::{
    ChunkId, Cookie, Durability, FileId, Index, NodeId, Pointer, Slot, StoreId, Tier,
};
use holdfast_cluster::{ChunkKind, Command, Location, Namespace, NodeKind, Outcome};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

struct Counting;

static BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is handed to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const FILES: u32 = 200_000;
const SLOTS: u32 = 10_000;

fn bytes_per_file(metadata_bytes: usize) -> usize {
    let before = BYTES.load(Ordering::Relaxed);
    let mut ns = Namespace::new(0);
    let mut index = 0;
    let mut apply = |ns: &mut Namespace, command: Command| {
        index += 1;
        ns.apply(Index(index), &command).unwrap()
    };
    for d in 0..FILES / 1000 {
        let path = format!("/dir-{d}");
        let kind = NodeKind::Directory;
        let (mode, mtime, class, parents) = (0o755, 0, None, false);
        apply(&mut ns, Command::MakeDir { path, kind, mode, mtime, class, parents });
    }
    let mut chunk = ChunkId(0);
    for f in 0..FILES {
        if f % SLOTS == 0 {
            let allocate = Command::AllocateChunk {
                kind: ChunkKind::Packed,
                owner: FileId(0),
                node: NodeId(1),
                replicas: vec![StoreId(1)],
                tier: Tier::Disk,
                durability: Durability::Durable,
            };
            let Outcome::Chunk { chunk: drawn } = apply(&mut ns, allocate) else { panic!() };
            chunk = drawn;
        }
        // In no order, as names come from many writers; 12 to 16 bytes long.
        let number = f as u64 * 7919 % FILES as u64;
        let pad = "x".repeat(f as usize % 5);
        let pointer = Pointer { chunk, slot: Slot(f % SLOTS), cookie: Cookie(f) };
        let put = Command::Put {
            path: format!("/dir-{}/file-{number:07}{pad}", f % (FILES / 1000)),
            kind: NodeKind::File,
            mode: 0o644,
            mtime: f as i64,
            size: 4096,
            crc: f,
            class: None,
            location: Location::Packed { pointer },
            replace: false,
            parents: false,
            metadata: vec![7; metadata_bytes],
        };
        apply(&mut ns, put);
    }
    (BYTES.load(Ordering::Relaxed) - before) / FILES as usize
}

#[test]
fn a_small_file_costs_at_most_150_bytes_even_with_64_bytes_of_metadata() {
    let (plain, with_metadata) = (bytes_per_file(0), bytes_per_file(64));
    println!("{plain} bytes a file, {with_metadata} with 64 bytes of metadata");
    assert!(plain <= 90, "{plain} bytes a file");
    assert!(with_metadata <= 150, "{with_metadata} bytes a file with 64 bytes of metadata");
}
