//! The bytes of entries and snapshots, as docs/formats/namespace.md describes them. A change here
//! is a change of a format: it needs a new version, not a new golden file.

use holdfast_base::codec::Encode;
use holdfast_base::ids::{
    ChunkId, Cookie, Durability, FileId, Generation, Index, NodeId, Pointer, Slot, StoreId, Tier,
};
use holdfast_cluster::cluster::StoreState;
use holdfast_cluster::{
    ChunkKind, ClusterCommand, ClusterView, Command, Extent, Location, Namespace, NodeKind,
    Remainder, StorageClass,
};
use std::fmt::Write;

const P: Pointer = Pointer { chunk: ChunkId(1), slot: Slot(2), cookie: Cookie(0xc0ffee) };

/// One of each command, in an order in which all are accepted.
fn commands() -> Vec<Command> {
    let stores = vec![StoreId(7), StoreId(8)];
    let class = StorageClass::new(&[Tier::Dram, Tier::Disk], Durability::Memory).unwrap();
    let file = |place: u64| FileId(place);
    let chunk = ChunkId;
    let kind = NodeKind::Directory;
    let (mode, mtime, replace, parents) = (0o755, -1, false, true);
    let allocate = |kind, owner| Command::AllocateChunk {
        kind,
        owner,
        node: NodeId(3),
        replicas: stores.clone(),
        tier: Tier::Disk,
        durability: Durability::Durable,
    };
    let seal =
        |id, length| Command::SealChunk { chunk: chunk(id), length, replicas: stores.clone() };
    let begin = || Command::Begin { path: "/d/big".into(), class: None, mode, mtime };
    vec![
        Command::MakeDir { path: "/d/e".into(), kind, mode, mtime, class: Some(class), parents },
        allocate(ChunkKind::Packed, FileId(0)),
        Command::Put {
            path: "/d/small".into(),
            kind: NodeKind::File,
            mode: 0o644,
            mtime: 1_700_000_000_000_000_000,
            size: 11,
            crc: 0xdead_beef,
            class: None,
            location: Location::Packed { pointer: P },
            replace,
            parents,
            metadata: b"user".to_vec(),
        },
        Command::Symlink { path: "/d/link".into(), target: "small".into(), mtime },
        begin(),
        allocate(ChunkKind::Raw, file(6)),
        seal(2, 1 << 26),
        Command::Close {
            file: file(6),
            path: "/d/a-name-of-more-than-17-bytes".into(),
            size: (1 << 26) + 5,
            crc: Some(1),
            extents: vec![Extent { chunk: chunk(2), length: 1 << 26 }],
            remainder: Some(Remainder { pointer: Pointer { slot: Slot(3), ..P }, length: 5 }),
            mode,
            mtime,
            replace,
            metadata: vec![],
        },
        begin(),
        Command::Abandon { file: file(7) },
        begin(),
        allocate(ChunkKind::Raw, FileId(1 << 32 | 7)),
        seal(3, 9),
        Command::Salvage {
            file: FileId(1 << 32 | 7),
            path: "/saved".into(),
            extents: vec![Extent { chunk: chunk(3), length: 8 }],
        },
        begin(),
        Command::Rename { from: "/d/e".into(), to: "/e".into(), replace },
        Command::SetAttributes {
            path: "/e".into(),
            mode: Some(0o700),
            mtime: None,
            metadata: Some(b"m".to_vec()),
        },
        Command::SetClass { path: "/d".into(), class },
        Command::Delete { path: "/saved".into(), recursive: false },
        seal(1, 4096),
        Command::CloseChunk { chunk: chunk(1) },
        Command::SwitchGeneration {
            chunk: chunk(1),
            generation: Generation(1),
            length: 2048,
            digest: 0x0102_0304_0506_0708,
        },
        Command::Release { before: Index(20), budget: 10 },
        Command::Unlink { chunk: chunk(3), generation: Generation(0), store: StoreId(8) },
        Command::Delete { path: "/d".into(), recursive: true },
        Command::Reclaim { budget: 3 },
    ]
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn assert_golden(actual: &str, golden: &str, name: &str) {
    assert!(actual == golden, "tests/golden/{name} differs; the bytes are now:\n{actual}");
}

#[test]
fn the_bytes_of_namespace_entries_and_of_a_snapshot_stay() {
    let mut ns = Namespace::new(0);
    let mut text = String::new();
    for (i, command) in commands().iter().enumerate() {
        let entry = command.to_entry();
        assert_eq!(Command::from_entry(&entry).as_ref(), Ok(command));
        let outcome = ns.apply_bytes(Index(i as u64 + 1), &entry).unwrap();
        let name = format!("{command:?}");
        let name = name.split([' ', '{']).next().unwrap_or_default();
        let _ = writeln!(text, "{name} {} > {}", hex(&entry), hex(&outcome.to_bytes()));
    }
    assert_golden(&text, include_str!("golden/namespace-entries.txt"), "namespace-entries.txt");
    let mut snapshot = Vec::new();
    ns.snapshot(&mut snapshot);
    let lines: Vec<String> = snapshot.chunks(32).map(hex).collect();
    let text = lines.join("\n") + "\n";
    assert_golden(&text, include_str!("golden/namespace-snapshot.txt"), "namespace-snapshot.txt");
}

#[test]
fn the_bytes_of_cluster_entries_and_of_a_snapshot_stay() {
    let mut view = ClusterView::new();
    let mut text = String::new();
    let (node, store) = (NodeId(1), StoreId(7));
    for (i, command) in [
        ClusterCommand::RegisterNode { node, host: "h".into(), address: "h:7400".into() },
        ClusterCommand::RegisterStore { store, node, tier: Tier::Disk, capacity: 1 << 30 },
        ClusterCommand::SetStoreState { store, state: StoreState::ReadOnly },
        ClusterCommand::SetDataFormat { version: 1 },
    ]
    .iter()
    .enumerate()
    {
        let entry = command.to_entry();
        view.apply_bytes(Index(i as u64), &entry).unwrap();
        let _ = writeln!(text, "{}", hex(&entry));
    }
    let mut snapshot = Vec::new();
    view.snapshot(&mut snapshot);
    let _ = writeln!(text, "{}", hex(&snapshot));
    assert_golden(&text, include_str!("golden/cluster.txt"), "cluster.txt");
    assert_eq!(ClusterView::restore(&snapshot), Ok(view));
}
