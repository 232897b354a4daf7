//! The bytes of entries and snapshots, as docs/formats/namespace.md describes them. A change here
//! is a change of a format: it needs a new version, not a new golden file.

use holdfast_base::codec::Encode;
use holdfast_base::ids::{
    ChunkId, Cookie, Durability, FileId, Generation, Index, NodeId, Pointer, Slot, StoreId, Tier,
};
use holdfast_cluster::{
    ChunkKind, ClusterCommand, ClusterView, Command, FreeSpace, Location, Namespace, NodeKind,
    NodeState, RawExtent, Remainder, StartedStore, StorageClass, StoreState,
};
use holdfast_wire::admin::RecoverySettings;
use std::fmt::Write;

const P: Pointer = Pointer { chunk: ChunkId(1), slot: Slot(2), cookie: Cookie(0xc0ffee) };

/// One of each command, in an order in which all are accepted; first those of a build before
/// clusters.
fn commands() -> Vec<Command> {
    old_commands().into_iter().chain(copies_commands()).collect()
}

fn copies_commands() -> Vec<Command> {
    let (chunk, store) = (ChunkId(4), StoreId);
    let (generation, mode, mtime) = (Generation(0), 0o600, 5);
    vec![
        Command::AllocateCopies {
            kind: ChunkKind::Packed,
            owner: FileId(0),
            node: NodeId(3),
            replicas: vec![store(7), store(8)],
            copies: 3,
            tier: Tier::Disk,
            durability: Durability::Durable,
        },
        Command::Put {
            path: "/copied".into(),
            kind: NodeKind::File,
            mode,
            mtime,
            size: 3,
            crc: 1,
            class: None,
            location: Location::Packed { pointer: Pointer { chunk, slot: Slot(0), ..P } },
            replace: false,
            parents: false,
            metadata: vec![],
        },
        Command::SealChunk { chunk, length: 9, replicas: vec![store(7)] },
        Command::AddReplica { chunk, generation, store: store(9) },
        Command::DropReplica { chunk, generation, store: store(7), lost: false },
        Command::CloseChunk { chunk },
        Command::SwitchReplicas {
            chunk,
            generation: Generation(1),
            length: 9,
            digest: 6,
            replicas: vec![store(9)],
        },
        Command::RaiseCopies { chunks: vec![chunk], copies: 3 },
    ]
}

/// Of builds since snapshots of version 2.
fn later_commands() -> Vec<Command> {
    let chunk = ChunkId(4);
    let rewrite = |from, generation| Command::Rewrite {
        chunk,
        from: Generation(from),
        generation: Generation(generation),
        digest: 8,
        replicas: vec![StoreId(9)],
        without: vec![StoreId(7)],
    };
    let begin = Command::BeginRewrite { chunk };
    vec![rewrite(1, 2), begin.clone(), rewrite(2, 4), begin]
}

fn small_put() -> Command {
    Command::Put {
        path: "/d/small".into(),
        kind: NodeKind::File,
        mode: 0o644,
        mtime: 1_700_000_000_000_000_000,
        size: 11,
        crc: 0xdead_beef,
        class: None,
        location: Location::Packed { pointer: P },
        replace: false,
        parents: true,
        metadata: b"user".to_vec(),
    }
}

fn old_commands() -> Vec<Command> {
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
        small_put(),
        Command::Symlink { path: "/d/link".into(), target: "small".into(), mtime },
        begin(),
        allocate(ChunkKind::Raw, file(6)),
        seal(2, 1 << 26),
        Command::Close {
            file: file(6),
            path: "/d/a-name-of-more-than-17-bytes".into(),
            size: (1 << 26) + 5,
            crc: Some(1),
            extents: vec![RawExtent { chunk: chunk(2), length: 1 << 26 }],
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
            extents: vec![RawExtent { chunk: chunk(3), length: 8 }],
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

/// Written where names are made again, and nowhere else.
#[test]
fn the_bytes_of_an_adopted_chunk_stay() {
    let adopt = Command::AdoptChunk {
        chunk: ChunkId(9),
        kind: ChunkKind::Packed,
        owner: FileId(0),
        node: NodeId(3),
        generation: Generation(2),
        length: 5,
        replicas: vec![StoreId(7)],
        tier: Tier::Disk,
    };
    let entry = adopt.to_entry();
    let mut ns = Namespace::new(0);
    let outcome = ns.apply_bytes(Index(1), &entry).unwrap();
    let text = format!("AdoptChunk {} > {}\n", hex(&entry), hex(&outcome.to_bytes()));
    assert_golden(&text, include_str!("golden/namespace-adopt.txt"), "namespace-adopt.txt");
}

#[test]
fn the_bytes_of_namespace_entries_and_of_a_snapshot_stay() {
    let mut ns = Namespace::new(0);
    let mut text = String::new();
    let commands: Vec<Command> = commands().into_iter().chain(later_commands()).collect();
    for (i, command) in commands.iter().enumerate() {
        let entry = command.to_entry();
        assert_eq!(Command::from_entry(&entry).as_ref(), Ok(command));
        let outcome = ns.apply_bytes(Index(i as u64 + 1), &entry).unwrap();
        let name = format!("{command:?}");
        let name = name.split([' ', '{']).next().unwrap_or_default();
        let _ = writeln!(text, "{name} {} > {}", hex(&entry), hex(&outcome.to_bytes()));
    }
    assert_golden(&text, include_str!("golden/namespace-entries.txt"), "namespace-entries.txt");
    assert_golden(
        &lines(&snapshot(&ns)),
        include_str!("golden/namespace-snapshot-3.txt"),
        "namespace-snapshot-3.txt",
    );
}

/// Version 2 knew of no attempt at a rewrite: what such a chunk's next switch makes current is what
/// builds of that time took, until an attempt has begun.
#[test]
fn snapshots_of_builds_before_attempts_are_still_read() {
    let bytes = unhex(include_str!("golden/namespace-snapshot-2.txt"));
    let mut old = Namespace::restore(&bytes).unwrap();
    let mut now = Namespace::new(0);
    for (i, command) in commands().iter().enumerate() {
        now.apply(Index(i as u64 + 1), command).unwrap();
    }
    assert_eq!(snapshot(&old), snapshot(&now));
    for (i, command) in later_commands().iter().enumerate() {
        let index = Index(i as u64 + 50);
        assert_eq!(old.apply(index, command), now.apply(index, command));
    }
    assert_eq!(snapshot(&old), snapshot(&now));
}

fn snapshot(ns: &Namespace) -> Vec<u8> {
    let mut snapshot = Vec::new();
    ns.snapshot(&mut snapshot);
    snapshot
}

fn lines(bytes: &[u8]) -> String {
    bytes.chunks(32).map(|line| hex(line) + "\n").collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.chars().filter_map(|c| Some(c.to_digit(16)? as u8)).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

#[test]
fn snapshots_of_builds_before_clusters_are_still_read() {
    let old = Namespace::restore(&unhex(include_str!("golden/namespace-snapshot-1.txt"))).unwrap();
    let mut now = Namespace::new(0);
    for (i, command) in old_commands().iter().enumerate() {
        now.apply(Index(i as u64 + 1), command).unwrap();
    }
    // The old form did not say how many copies a chunk of one replica less should have.
    let copies =
        |ns: &Namespace| ns.chunks().iter().map(|c| (c.id.0, c.copies)).collect::<Vec<_>>();
    assert_eq!(copies(&old), [(1, 2), (2, 2), (3, 1)]);
    assert_eq!(copies(&now), [(1, 2), (2, 2), (3, 2)]);
    assert_eq!((old.totals(), old.unclosed()), (now.totals(), now.unclosed()));

    let old = include_str!("golden/cluster-1.txt").lines().last().unwrap();
    let old = ClusterView::restore(&unhex(old)).unwrap();
    let mut now = ClusterView::new();
    for (i, command) in old_cluster_commands().iter().enumerate() {
        now.apply(Index(i as u64), command).unwrap();
    }
    assert_eq!(old, now);
    assert_eq!((old.id(), old.leader()), (None, None));

    // Version 2 lacked what a person said about recovery.
    let old = include_str!("golden/cluster-2.txt").lines().last().unwrap();
    let mut old = ClusterView::restore(&unhex(old)).unwrap();
    assert_eq!(old.recovery(), RecoverySettings::default());
    let later = 10 + (cluster_commands().len() - since_view_nodes().len()) as u64;
    let mut now = ClusterView::new();
    for (i, command) in cluster_commands().iter().enumerate() {
        let index = Index(i as u64 + 10);
        now.apply(index, command).unwrap();
        if let ClusterCommand::SetRecovery { .. } = command {
            old.apply(index, command).unwrap();
        }
    }
    for command in identity_commands() {
        old.apply(Index(30), &command).unwrap();
    }
    for (i, command) in since_view_nodes().iter().enumerate() {
        old.apply(Index(i as u64 + later), command).unwrap();
    }
    assert_eq!(old, now);

    // Version 3 lacked who the certificates are.
    let old = include_str!("golden/cluster-3.txt").lines().last().unwrap();
    let mut old = ClusterView::restore(&unhex(old)).unwrap();
    assert_eq!((old.name_of(NodeId(1)), old.revoked().count()), (None, 0));
    for command in identity_commands() {
        old.apply(Index(30), &command).unwrap();
    }
    for (i, command) in since_view_nodes().iter().enumerate() {
        old.apply(Index(i as u64 + later), command).unwrap();
    }
    assert_eq!(old, now);
}

/// Version 4 lacked which nodes keep views alone.
#[test]
fn a_cluster_view_from_before_view_nodes_is_read() {
    let old = include_str!("golden/cluster-4.txt").lines().last().unwrap();
    let mut old = ClusterView::restore(&unhex(old)).unwrap();
    let mut now = ClusterView::new();
    let before = cluster_commands().len() - since_view_nodes().len();
    for (i, command) in cluster_commands().iter().enumerate() {
        let index = Index(i as u64 + 10);
        now.apply(index, command).unwrap();
        if i >= before {
            old.apply(index, command).unwrap();
        }
    }
    assert_eq!(old, now);
    assert_eq!((now.keeps_chunks(NodeId(3)), now.keeps_chunks(NodeId(4))), (false, true));
}

/// Version 5 lacked which process a node's last start was of.
#[test]
fn a_cluster_view_from_before_starts_had_nonces_is_read() {
    let old = include_str!("golden/cluster-5.txt").lines().last().unwrap();
    let mut old = ClusterView::restore(&unhex(old)).unwrap();
    let mut now = ClusterView::new();
    let before = cluster_commands().len() - start_commands().len();
    for (i, command) in cluster_commands().iter().enumerate() {
        let index = Index(i as u64 + 10);
        let outcome = now.apply(index, command).unwrap();
        if i >= before {
            assert_eq!(old.apply(index, command), Ok(outcome));
        }
    }
    assert_eq!(old, now);
    assert_eq!(now.node(NodeId(4)).unwrap().incarnation, Index(36));
}

fn identity_commands() -> Vec<ClusterCommand> {
    let name = |name: &str| name.to_owned();
    vec![
        ClusterCommand::BindName { node: NodeId(1), name: name("a.example") },
        ClusterCommand::BindName { node: NodeId(2), name: name("node-2") },
        ClusterCommand::ReleaseName { name: name("node-2") },
        ClusterCommand::Revoke { serial: name("0a1b"), until_s: 1 << 33, now_s: 1 << 31 },
        put_token("gone"),
        put_token("backup"),
        ClusterCommand::RemoveToken { name: name("gone") },
    ]
}

fn since_view_nodes() -> Vec<ClusterCommand> {
    view_node_commands().into_iter().chain(start_commands()).collect()
}

/// Behind starts of builds before and behind each other; the last is a copy.
fn start_commands() -> Vec<ClusterCommand> {
    let start = |node, nonce, after, stores| {
        let (host, rack, address) = ("k".to_owned(), "r".to_owned(), "k:7400".to_owned());
        let (node, after) = (NodeId(node), Index(after));
        ClusterCommand::Start { node, nonce, after, host, rack, address, stores }
    };
    let store =
        StartedStore { store: StoreId(9), tier: Tier::Disk, capacity: 1 << 31, free_mib: 2000 };
    let begun = start(4, 0x0a0b_0c0d, 34, Some(vec![store]));
    vec![start(3, 1, 31, Some(vec![])), begun.clone(), start(3, 2, 35, None), begun]
}

/// A node that keeps chunks becomes one again when it is started so.
fn view_node_commands() -> Vec<ClusterCommand> {
    let place = || ("j".to_owned(), "r".to_owned(), "j:7400".to_owned());
    let join = |nonce| {
        let (host, rack, address) = place();
        ClusterCommand::JoinNode { nonce, host, rack, address }
    };
    let start = |node| {
        let (host, rack, address) = place();
        ClusterCommand::StartViewNode { node: NodeId(node), host, rack, address }
    };
    let (host, rack, address) = place();
    let as_other =
        ClusterCommand::StartNode { node: NodeId(4), host, rack, address, stores: vec![] };
    vec![join(100), start(3), join(101), start(4), as_other]
}

fn put_token(name: &str) -> ClusterCommand {
    ClusterCommand::PutToken {
        name: name.to_owned(),
        id: 0x0102_0304_0506_0708,
        until_s: 1 << 33,
        now_s: 1 << 31,
        rules: vec!["fs:/a:rw".to_owned(), "log:b/*:r".to_owned()],
    }
}

fn old_cluster_commands() -> Vec<ClusterCommand> {
    let (node, store) = (NodeId(1), StoreId(7));
    vec![
        ClusterCommand::RegisterNode { node, host: "h".into(), address: "h:7400".into() },
        ClusterCommand::RegisterStore { store, node, tier: Tier::Disk, capacity: 1 << 30 },
        ClusterCommand::SetStoreState { store, state: StoreState::ReadOnly },
        ClusterCommand::SetDataFormat { version: 1 },
    ]
}

fn cluster_commands() -> Vec<ClusterCommand> {
    let host = |name: &str| (name.to_owned(), "r".to_owned(), format!("{name}:7400"));
    let start = |node, name, store| {
        let (host, rack, address) = host(name);
        let store = StartedStore {
            store: StoreId(store),
            tier: Tier::Disk,
            capacity: 1 << 31,
            free_mib: 2000,
        };
        ClusterCommand::StartNode { node: NodeId(node), host, rack, address, stores: vec![store] }
    };
    let (host, rack, address) = host("i");
    let free = vec![FreeSpace { store: StoreId(7), free_mib: 1000 }];
    // A node's incarnation is the index of its start: 10 plus its place here.
    let (first, second) = (Index(15), Index(17));
    [
        old_cluster_commands(),
        vec![
            ClusterCommand::FoundCluster { id: 0x1122_3344_5566_7788 },
            start(1, "h", 7),
            ClusterCommand::JoinNode { nonce: 99, host, rack, address },
            start(2, "i", 8),
            ClusterCommand::Beat { node: NodeId(1), incarnation: first, free: free.clone() },
            ClusterCommand::SetNode {
                node: NodeId(2),
                incarnation: second,
                state: NodeState::Unavailable,
            },
            ClusterCommand::Drain { node: NodeId(2), on: true },
            ClusterCommand::Usage { node: NodeId(1), incarnation: first, free },
            ClusterCommand::SetRecovery {
                settings: RecoverySettings {
                    p90_budget_percent: 5,
                    alpha_per_mille: 800,
                    floor_bytes_per_second: 1 << 20,
                    rate_max: 1 << 24,
                },
            },
        ],
        identity_commands(),
        since_view_nodes(),
    ]
    .concat()
}

#[test]
fn the_bytes_of_cluster_entries_and_of_a_snapshot_stay() {
    let mut view = ClusterView::new();
    let mut text = String::new();
    for (i, command) in cluster_commands().iter().enumerate() {
        let entry = command.to_entry();
        assert_eq!(ClusterCommand::from_entry(&entry).as_ref(), Ok(command));
        let outcome = view.apply_bytes(Index(i as u64 + 10), &entry).unwrap();
        let _ = writeln!(text, "{} > {}", hex(&entry), hex(&outcome.to_result()));
    }
    let mut snapshot = Vec::new();
    view.snapshot(&mut snapshot);
    let _ = writeln!(text, "{}", hex(&snapshot));
    assert_golden(&text, include_str!("golden/cluster-6.txt"), "cluster-6.txt");
    assert_eq!(ClusterView::restore(&snapshot), Ok(view));
}
