//! Random commands of every kind over few ids, so that files, chunks and graces meet in every
//! order. After each entry the view must equal its own snapshot's restore (which checks that
//! names, live slots and chunks agree), and no live bytes may ever be allowed to go.

use holdfast_base::ids::{
    ChunkId, Cookie, Durability, FileId, Generation, Index, NodeId, Pointer, Slot, StoreId, Tier,
};
use holdfast_cluster::Chunk;
use holdfast_cluster::{
    ChunkKind, ChunkState, Command, Location, Namespace, NodeKind, Outcome, RawExtent, Remainder,
    StorageClass,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

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

fn extents() -> impl Strategy<Value = Vec<RawExtent>> {
    let extent = (chunk(), 1..3u64).prop_map(|(chunk, length)| RawExtent { chunk, length });
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
    let all = || vec![StoreId(1), StoreId(2), StoreId(3)];
    let stores = || prop::sample::subsequence(all(), 1..=3);
    let copies = move |owner: FileId, replicas: Vec<StoreId>, copies| Command::AllocateCopies {
        kind: if owner == FileId(0) { ChunkKind::Packed } else { ChunkKind::Raw },
        owner,
        node: NodeId(1),
        replicas,
        copies,
        tier: Tier::Disk,
        durability: Durability::Durable,
    };
    let held = || (chunk(), (0..3u32).prop_map(Generation), (1..5u64).prop_map(StoreId));
    prop_oneof![
        (chunk(), prop::option::of(file()), 0..2u32, 0..3u64, stores()).prop_map(
            |(chunk, file, generation, length, replicas)| Command::AdoptChunk {
                chunk,
                kind: if file.is_some() { ChunkKind::Raw } else { ChunkKind::Packed },
                owner: file.unwrap_or(FileId(0)),
                node: NodeId(1),
                generation: Generation(generation),
                length,
                replicas,
                tier: Tier::Disk,
            }
        ),
        (file(), stores(), 2..4u8).prop_map(move |(file, stores, n)| copies(file, stores, n)),
        (stores(), 2..4u8).prop_map(move |(stores, n)| copies(FileId(0), stores, n)),
        held().prop_map(|(chunk, generation, store)| Command::AddReplica {
            chunk,
            generation,
            store
        }),
        (held(), any::<bool>()).prop_map(|((chunk, generation, store), lost)| {
            Command::DropReplica { chunk, generation, store, lost }
        }),
        (chunk(), 1..3u32, stores()).prop_map(|(chunk, generation, replicas)| {
            let generation = Generation(generation);
            Command::SwitchReplicas { chunk, generation, length: 5, digest: 6, replicas }
        }),
        (chunk(), 0..3u32, 1..4u32, stores(), prop::sample::subsequence(all(), 0..=3)).prop_map(
            |(chunk, from, next, replicas, without)| {
                let (from, generation) = (Generation(from), Generation(next));
                Command::Rewrite { chunk, from, generation, digest: 6, replicas, without }
            }
        ),
        (prop::collection::vec(chunk(), 0..3), 0..5u8)
            .prop_map(|(chunks, copies)| Command::RaiseCopies { chunks, copies }),
        file().prop_map(move |file| allocate(ChunkKind::Raw, file)),
        Just(allocate(ChunkKind::Packed, FileId(0))),
        (chunk(), 0..4u64, stores()).prop_map(|(chunk, length, replicas)| Command::SealChunk {
            chunk,
            length,
            replicas
        }),
        chunk().prop_map(|chunk| Command::CloseChunk { chunk }),
        chunk().prop_map(|chunk| Command::BeginRewrite { chunk }),
        (chunk(), 1..3u32).prop_map(|(chunk, generation)| Command::SwitchGeneration {
            chunk,
            generation: Generation(generation),
            length: 5,
            digest: 6,
        }),
        held().prop_map(|(chunk, generation, store)| Command::Unlink { chunk, generation, store }),
        (0..300u64, 0..5u32)
            .prop_map(|(before, budget)| Command::Release { before: Index(before), budget }),
    ]
}

/// Files that stores may have of a chunk, by generation and store: what an entry has put there and
/// no `Unlink` has named.
type Files = BTreeMap<ChunkId, BTreeSet<(Generation, StoreId)>>;

/// Keeps `files`, and checks what an accepted command may do to them.
fn follow(files: &mut Files, before: &Namespace, command: &Command, outcome: &Outcome) {
    match (command, outcome) {
        (
            Command::AllocateChunk { replicas, .. } | Command::AllocateCopies { replicas, .. },
            Outcome::Chunk { chunk },
        ) => {
            let all = replicas.iter().map(|store| (Generation(0), *store));
            files.insert(*chunk, all.collect());
        }
        (Command::AdoptChunk { chunk, generation, replicas, .. }, _) => {
            files.insert(*chunk, replicas.iter().map(|store| (*generation, *store)).collect());
        }
        (Command::AddReplica { chunk, generation, store }, _) => {
            files.get_mut(chunk).unwrap().insert((*generation, *store));
        }
        (Command::SwitchGeneration { chunk, generation, .. }, _) => {
            let replicas = before.chunks().get(*chunk).unwrap().replicas.clone();
            files.get_mut(chunk).unwrap().extend(replicas.iter().map(|s| (*generation, *s)));
        }
        (Command::SwitchReplicas { chunk, generation, replicas, .. }, _) => {
            files.get_mut(chunk).unwrap().extend(replicas.iter().map(|s| (*generation, *s)));
        }
        (Command::Rewrite { chunk, from, generation, replicas, without, .. }, _) => {
            let known = before.chunks().get(*chunk).unwrap();
            let said = |store| replicas.contains(store) || without.contains(store);
            assert!(known.replicas.iter().all(said), "a copy that counts was left out");
            let has = |store: &StoreId| files[chunk].contains(&(*from, *store));
            assert!(replicas.iter().all(has), "made from nothing");
            files.get_mut(chunk).unwrap().extend(replicas.iter().map(|s| (*generation, *s)));
        }
        (Command::Unlink { chunk, generation, store }, _) => {
            let known = before.chunks().get(*chunk).unwrap();
            assert!(files.get_mut(chunk).unwrap().remove(&(*generation, *store)), "unlinked twice");
            let proposed = before.unlinkable_at_all(*chunk, *generation, *store);
            // What nobody proposes: the only copies of what may have to be gone back to.
            assert!(proposed || known.old.iter().any(|old| old.generation == *generation));
            if known.state != ChunkState::Doomed {
                let current = *generation == known.generation && known.replicas.contains(store);
                assert!(!current, "a copy that counts was unlinked");
                let copies = known.replicas.iter().filter(|held| *held != store).count();
                let enough = copies >= known.copies as usize || known.replicas.contains(store);
                assert!(enough, "a last resort was unlinked");
            }
        }
        _ => {}
    }
}

/// What the view says of files is what entries made of them, and its indices agree with a look at
/// every chunk.
fn check_files(files: &Files, ns: &Namespace) {
    for (chunk, files) in files {
        let Some(known) = ns.chunks().get(*chunk) else {
            assert!(files.is_empty(), "{chunk} was forgotten, and {files:?} are left");
            continue;
        };
        let current = known.replicas.iter().map(|store| (known.generation, *store));
        let dropped = known.dropped.iter().map(|dropped| (dropped.generation, dropped.store));
        let old = known.old.iter();
        let old = old.flat_map(|old| old.replicas.iter().map(|store| (old.generation, *store)));
        let said: BTreeSet<_> = current.chain(dropped).chain(old).collect();
        assert_eq!(&said, files, "{chunk}");
    }
    for bad in 0..16u64 {
        let counts = |store: StoreId| bad >> (store.0 - 1) & 1 == 0;
        let live = |chunk: &&Chunk| chunk.replicas.iter().filter(|store| counts(**store)).count();
        let bytes = |c: &&Chunk| c.is_kept() && c.length > 0;
        let short = ns.chunks().iter().filter(bytes).filter(|c| live(c) < c.copies as usize);
        let mut short: Vec<(usize, ChunkId)> =
            short.map(|chunk| (live(&chunk), chunk.id)).collect();
        short.sort_by_key(|(live, chunk)| (*live, ns.chunks().get(*chunk).unwrap().copies, *chunk));
        let found = ns.chunks().short(counts);
        assert_eq!(found.iter().map(|s| (s.live, s.chunk)).collect::<Vec<_>>(), short);
    }
    for store in (1..5).map(StoreId) {
        let on = ns
            .chunks()
            .iter()
            .filter(|chunk| chunk.replicas.contains(&store))
            .map(|chunk| chunk.id);
        assert!(ns.chunks().on(store).map(|chunk| chunk.id).eq(on));
    }
}

trait Unlinkable {
    fn unlinkable_at_all(&self, chunk: ChunkId, generation: Generation, store: StoreId) -> bool;
}

impl Unlinkable for Namespace {
    /// Listed, or listed once older generations are gone.
    fn unlinkable_at_all(&self, chunk: ChunkId, generation: Generation, store: StoreId) -> bool {
        let known = self.chunks().get(chunk).unwrap();
        self.chunks().unlinkable().any(|free| free == (chunk, generation, store))
            || known.state == ChunkState::Doomed && generation == known.generation
    }
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
        let mut files = Files::new();
        for (i, command) in commands.iter().enumerate() {
            let earlier = Namespace::restore(&before).unwrap();
            let result = ns.apply(Index(i as u64 + 1), command);
            let after = snapshot(&ns);
            if result.is_err() {
                prop_assert!(before == after, "refused, and changed: {:?}", command);
                continue;
            }
            follow(&mut files, &earlier, command, result.as_ref().unwrap());
            check_files(&files, &ns);
            let back = Namespace::restore(&after);
            prop_assert!(back.is_ok(), "{:?} after {:?}", back.err(), command);
            let back = back.unwrap();
            prop_assert!(snapshot(&back) == after, "{:?}", command);
            prop_assert_eq!(back.totals(), ns.totals());
            let lives = |ns: &Namespace| -> Vec<_> {
                ns.chunks().iter().map(|chunk| (chunk.clone(), ns.chunks().live_slots(chunk.id))).collect()
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
