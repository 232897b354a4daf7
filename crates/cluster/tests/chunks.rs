//! Random commands of every kind over few ids, so that files, chunks and graces meet in every
//! order. After each entry the view must equal its own snapshot's restore (which checks that
//! names, live slots and chunks agree), and no live bytes may ever be allowed to go.

use holdfast_base::ids::{
    ChunkId, Cookie, Durability, FileId, Generation, Index, NodeId, Pointer, Slot, StoreId, Tier,
};
use holdfast_cluster::{
    ChunkKind, Command, Extent, Location, Namespace, NodeKind, Remainder, StorageClass,
};
use proptest::prelude::*;

fn path() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["/a", "/b", "/d", "/d/a", "/d/b", "/t", "/t/a", "/d/d", "/d/d/a"])
        .prop_map(str::to_owned)
}

fn file() -> impl Strategy<Value = FileId> {
    (0..2u64, 1..8u64).prop_map(|(generation, place)| FileId(generation << 32 | place))
}

fn chunk() -> impl Strategy<Value = ChunkId> {
    (1..8u64).prop_map(ChunkId)
}

fn pointer() -> impl Strategy<Value = Pointer> {
    (chunk(), 0..20u32).prop_map(|(chunk, slot)| Pointer {
        chunk,
        slot: Slot(slot),
        cookie: Cookie(1),
    })
}

fn extents() -> impl Strategy<Value = Vec<Extent>> {
    let extent = (chunk(), 1..3u64).prop_map(|(chunk, length)| Extent { chunk, length });
    prop::collection::vec(extent, 0..3)
}

fn make_file() -> impl Strategy<Value = Command> {
    let (mode, mtime, class) = (0o644, 1, None);
    prop_oneof![
        (path(), pointer(), any::<[bool; 3]>()).prop_map(move |(path, pointer, [a, b, c])| {
            Command::Put {
                path,
                kind: if a { NodeKind::KeyValue } else { NodeKind::File },
                mode,
                mtime,
                size: 10,
                crc: 1,
                class,
                location: Location::Packed { pointer },
                replace: b,
                parents: c,
                metadata: vec![],
            }
        }),
        path().prop_map(move |path| Command::Begin { path, class, mode, mtime }),
        (file(), path(), extents(), prop::option::of(pointer()), any::<bool>()).prop_map(
            move |(file, path, extents, pointer, replace)| {
                let remainder = pointer.map(|pointer| Remainder { pointer, length: 10 });
                let size = extents.iter().map(|e| e.length).sum::<u64>();
                let size = size + remainder.map_or(0, |r| r.length);
                let (crc, metadata) = (Some(7), vec![1]);
                Command::Close {
                    file,
                    path,
                    size,
                    crc,
                    extents,
                    remainder,
                    mode,
                    mtime,
                    replace,
                    metadata,
                }
            }
        ),
        file().prop_map(|file| Command::Abandon { file }),
        (file(), path(), extents()).prop_map(|(file, path, extents)| Command::Salvage {
            file,
            path,
            extents
        }),
    ]
}

fn change_tree() -> impl Strategy<Value = Command> {
    let kinds = vec![NodeKind::Directory, NodeKind::Table, NodeKind::MultiFile];
    prop_oneof![
        (path(), prop::sample::select(kinds), any::<bool>()).prop_map(|(path, kind, parents)| {
            Command::MakeDir { path, kind, mode: 0o755, mtime: 1, class: None, parents }
        }),
        (path(), path(), any::<bool>()).prop_map(|(from, to, replace)| Command::Rename {
            from,
            to,
            replace
        }),
        (path(), any::<bool>()).prop_map(|(path, recursive)| Command::Delete { path, recursive }),
        (0..4u32).prop_map(|budget| Command::Reclaim { budget }),
        path().prop_map(|path| Command::Symlink { path, target: "/d".into(), mtime: 1 }),
        path().prop_map(|path| Command::SetClass { path, class: StorageClass::DEFAULT }),
    ]
}

fn change_chunks() -> impl Strategy<Value = Command> {
    let allocate = |kind, owner| Command::AllocateChunk {
        kind,
        owner,
        node: NodeId(1),
        replicas: vec![StoreId(1), StoreId(2)],
        tier: Tier::Disk,
        durability: Durability::Durable,
    };
    let stores = prop::sample::subsequence(vec![StoreId(1), StoreId(2)], 1..=2);
    prop_oneof![
        file().prop_map(move |file| allocate(ChunkKind::Raw, file)),
        Just(allocate(ChunkKind::Packed, FileId(0))),
        (chunk(), 0..4u64, stores).prop_map(|(chunk, length, replicas)| Command::SealChunk {
            chunk,
            length,
            replicas
        }),
        chunk().prop_map(|chunk| Command::CloseChunk { chunk }),
        (chunk(), 1..3u32).prop_map(|(chunk, generation)| Command::SwitchGeneration {
            chunk,
            generation: Generation(generation),
            length: 5,
            digest: 6,
        }),
        (chunk(), 0..3u32, 1..3u64).prop_map(|(chunk, generation, store)| Command::Unlink {
            chunk,
            generation: Generation(generation),
            store: StoreId(store),
        }),
        (0..300u64, 0..5u32)
            .prop_map(|(before, budget)| Command::Release { before: Index(before), budget }),
    ]
}

fn snapshot(ns: &Namespace) -> Vec<u8> {
    let mut out = Vec::new();
    ns.snapshot(&mut out);
    out
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..Default::default() })]

    #[test]
    fn every_state_is_its_own_snapshot_and_refusals_change_nothing(
        commands in prop::collection::vec(
            prop_oneof![make_file(), change_tree(), change_chunks()], 1..250,
        ),
    ) {
        let mut ns = Namespace::new(0);
        let mut before = snapshot(&ns);
        for (i, command) in commands.iter().enumerate() {
            let result = ns.apply(Index(i as u64 + 1), command);
            let after = snapshot(&ns);
            if result.is_err() {
                prop_assert!(before == after, "refused, and changed: {:?}", command);
                continue;
            }
            let back = Namespace::restore(&after);
            prop_assert!(back.is_ok(), "{:?} after {:?}", back.err(), command);
            let back = back.unwrap();
            prop_assert!(snapshot(&back) == after, "{:?}", command);
            prop_assert_eq!(back.totals(), ns.totals());
            let lives = |ns: &Namespace| -> Vec<_> {
                ns.chunks().map(|chunk| (chunk.clone(), ns.live_slots(chunk.id))).collect()
            };
            for ((a, slots_a), (b, slots_b)) in lives(&ns).iter().zip(lives(&back)) {
                prop_assert_eq!((a.live_objects, a.live_bytes), (b.live_objects, b.live_bytes));
                prop_assert_eq!(slots_a, &slots_b);
            }
            prop_assert_eq!(ns.unclosed(), back.unclosed());
            before = after;
        }
    }
}
