//! Who holds a chunk: replicas that count, dropped ones, and which may go.

use super::*;
use std::collections::BTreeSet;

const G0: Generation = Generation(0);

fn stores(ids: &[u64]) -> Vec<StoreId> {
    ids.iter().map(|id| StoreId(*id)).collect()
}

fn allocate_copies(kind: ChunkKind, owner: FileId, replicas: &[u64], copies: u8) -> Command {
    Command::AllocateCopies {
        kind,
        owner,
        node: NodeId(1),
        replicas: stores(replicas),
        copies,
        tier: Tier::Disk,
        durability: Durability::Durable,
    }
}

fn seal_on(chunk: ChunkId, length: u64, replicas: &[u64]) -> Command {
    Command::SealChunk { chunk, length, replicas: stores(replicas) }
}

fn add(chunk: ChunkId, store: u64) -> Command {
    Command::AddReplica { chunk, generation: G0, store: StoreId(store) }
}

fn drop_one(chunk: ChunkId, store: u64, lost: bool) -> Command {
    Command::DropReplica { chunk, generation: G0, store: StoreId(store), lost }
}

fn unlink_from(chunk: ChunkId, generation: u32, store: u64) -> Command {
    Command::Unlink { chunk, generation: Generation(generation), store: StoreId(store) }
}

impl World {
    /// A sealed raw chunk of a closed file `/f`.
    fn raw(&mut self, replicas: &[u64], copies: u8, sealed_on: &[u64]) -> (ChunkId, FileId) {
        let file = self.file(begin("/f"));
        let Outcome::Chunk { chunk } =
            self.ok(allocate_copies(ChunkKind::Raw, file, replicas, copies))
        else {
            panic!("no chunk")
        };
        self.ok(seal_on(chunk, 10, sealed_on));
        self.ok(close(file, "/f", &[(chunk, 10)]));
        (chunk, file)
    }

    /// A packed chunk whose slot 0 is named `/p`.
    fn packed(&mut self, replicas: &[u64]) -> ChunkId {
        let allocate = allocate_copies(ChunkKind::Packed, FileId(0), replicas, 3);
        let Outcome::Chunk { chunk } = self.ok(allocate) else { panic!("no chunk") };
        self.ok(put("/p", Some(pointer(chunk, 0)), false));
        chunk
    }

    fn held(&self, chunk: ChunkId) -> Vec<u64> {
        self.ns.chunks().get(chunk).unwrap().replicas.iter().map(|store| store.0).collect()
    }

    fn short(&self, bad: &[u64]) -> Vec<(u64, usize)> {
        let short = self.ns.chunks().short(|store| !bad.contains(&store.0));
        short.into_iter().map(|short| (short.chunk.0, short.live)).collect()
    }

    fn unlinkable(&self) -> Vec<(u32, u64)> {
        self.ns
            .chunks()
            .unlinkable()
            .map(|(_, generation, store)| (generation.0, store.0))
            .collect()
    }
}

#[test]
fn copies_are_as_many_as_replicas_unless_said() {
    let mut world = World::new();
    let Outcome::Chunk { chunk } = world.ok(allocate(ChunkKind::Packed, FileId(0))) else {
        panic!("no chunk")
    };
    assert_eq!(world.ns.chunks().get(chunk).unwrap().copies as usize, world.held(chunk).len());
    let file = FileId(0);
    let bad = [(&[1, 2, 3][..], 2), (&[1], 0), (&[], 3), (&[1, 1], 2), (&[1], 17)];
    for (replicas, copies) in bad {
        let allocate = allocate_copies(ChunkKind::Packed, file, replicas, copies);
        world.refused(allocate, Kind::Invalid, "stores");
    }
}

#[test]
fn a_seal_leaves_a_replica_out_and_repair_makes_up_for_it() {
    let mut world = World::new();
    let (chunk, _) = world.raw(&[1, 2, 3], 3, &[2, 3]);
    assert_eq!(world.held(chunk), [2, 3]);
    assert_eq!(world.short(&[]), [(chunk.0, 2)]);
    // What was left out is the last resort until there are enough copies.
    world.refused(unlink_from(chunk, 0, 1), Kind::Invalid, "2 of 3 copies");
    assert_eq!(world.unlinkable(), []);
    world.ok(add(chunk, 4));
    assert_eq!(world.short(&[]), []);
    assert_eq!(world.unlinkable(), [(0, 1)]);
    world.refused(unlink_from(chunk, 0, 2), Kind::Invalid, "it stays");
    world.ok(unlink_from(chunk, 0, 1));
    world.refused(unlink_from(chunk, 0, 1), Kind::Invalid, "it stays");
    assert_eq!(world.unlinkable(), []);
}

#[test]
fn repair_may_write_over_what_was_left_out() {
    let mut world = World::new();
    let (chunk, _) = world.raw(&[1, 2], 2, &[2]);
    world.ok(add(chunk, 1));
    world.ok(add(chunk, 1));
    assert_eq!(world.held(chunk), [2, 1]);
    assert_eq!(world.ns.chunks().get(chunk).unwrap().dropped, []);
    world.refused(
        Command::AddReplica { chunk, generation: Generation(1), store: StoreId(3) },
        Kind::Invalid,
        "generation",
    );
}

#[test]
fn an_open_chunk_and_a_deleted_one_keep_their_replicas() {
    let mut world = World::new();
    let open = world.packed(&[1, 2]);
    world.refused(add(open, 3), Kind::Invalid, "seal it first");
    world.refused(drop_one(open, 2, false), Kind::Invalid, "seal it first");
    assert_eq!(world.short(&[1]), [], "an open chunk is its writer's");
    let (chunk, _) = world.raw(&[1, 2, 3], 3, &[1, 2, 3]);
    world.ok(delete("/f", false));
    world.refused(add(chunk, 4), Kind::Invalid, "deleted");
    assert_eq!(world.short(&[1, 2]), [], "nobody copies what is deleted");
}

#[test]
fn chunks_are_found_by_bad_stores_fewest_copies_first() {
    let mut world = World::new();
    let mut chunks = Vec::new();
    for replicas in [[1, 2, 3], [2, 3, 4], [3, 4, 5]] {
        let (chunk, _) = world.raw(&replicas, 3, &replicas);
        world.ok(rename("/f", &format!("/f{}", chunk.0), false));
        chunks.push(chunk.0);
    }
    let [a, b, c] = chunks[..] else { panic!() };
    assert_eq!(world.short(&[]), []);
    assert_eq!(world.short(&[1]), [(a, 2)]);
    assert_eq!(world.short(&[2, 4]), [(b, 1), (a, 2), (c, 2)]);
    assert_eq!(world.short(&[1, 2, 3]), [(a, 0), (b, 1), (c, 2)]);
    let on =
        |store| world.ns.chunks().on(StoreId(store)).map(|chunk| chunk.id.0).collect::<Vec<_>>();
    assert_eq!((on(3), on(5), on(9)), (vec![a, b, c], vec![c], vec![]));
}

#[test]
fn the_last_replica_is_dropped_only_as_lost_and_its_files_are_named() {
    let mut world = World::new();
    let (chunk, _) = world.raw(&[1, 2], 2, &[1, 2]);
    world.ok(drop_one(chunk, 1, false));
    world.ok(drop_one(chunk, 1, false));
    world.refused(drop_one(chunk, 2, false), Kind::Invalid, "last replica");
    assert_eq!(world.ns.chunks().lost(|_| true), []);
    world.ok(drop_one(chunk, 2, true));
    let lost = world.ns.chunks().lost(|_| true);
    assert_eq!(lost, [chunk]);
    assert_eq!(world.ns.files_of(chunk, 9), ["/f"]);
    assert_eq!(world.short(&[]), [(chunk.0, 0)]);
    // Whatever files are left of it stay: one of them may turn out to be good.
    world.refused(unlink_from(chunk, 0, 2), Kind::Invalid, "0 of 2 copies");
    world.ok(add(chunk, 2));
    assert_eq!(world.ns.chunks().lost(|_| true), []);
    assert_eq!(world.held(chunk), [2]);
}

#[test]
fn files_of_a_lost_packed_chunk_are_named_up_to_a_limit() {
    let mut world = World::new();
    let chunk = world.packed(&[1]);
    let other = world.packed_again(&[1]);
    for slot in 1..5 {
        world.ok(put(&format!("/p{slot}"), Some(pointer(chunk, slot)), false));
    }
    world.ok(put("/q", Some(pointer(other, 1)), false));
    assert_eq!(world.ns.files_of(chunk, 9).len(), 5);
    assert_eq!(world.ns.files_of(chunk, 2).len(), 2);
    assert_eq!(world.ns.files_of(other, 9), ["/q"]);
    assert_eq!(world.ns.files_of(ChunkId(99), 9), Vec::<String>::new());
}

impl World {
    fn packed_again(&mut self, replicas: &[u64]) -> ChunkId {
        match self.ok(allocate_copies(ChunkKind::Packed, FileId(0), replicas, 3)) {
            Outcome::Chunk { chunk } => chunk,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_lost_chunk_ends_with_its_last_file() {
    let mut world = World::new();
    let (chunk, _) = world.raw(&[1], 1, &[1]);
    world.ok(drop_one(chunk, 1, true));
    world.ok(delete("/f", false));
    world.release_all();
    assert_eq!(world.unlinkable(), [(0, 1)]);
    world.ok(unlink_from(chunk, 0, 1));
    assert!(world.ns.chunks().get(chunk).is_none());
}

#[test]
fn a_dropped_replica_outlives_the_others_of_a_doomed_chunk() {
    let mut world = World::new();
    let (chunk, _) = world.raw(&[1, 2], 3, &[2]);
    world.ok(delete("/f", false));
    world.release_all();
    assert_eq!(world.unlinkable(), [(0, 1)], "the current ones go last");
    world.ok(unlink_from(chunk, 0, 1));
    assert_eq!(world.unlinkable(), [(0, 2)]);
    world.ok(unlink_from(chunk, 0, 2));
    assert!(world.ns.chunks().get(chunk).is_none());
}

#[test]
fn a_switch_names_who_has_the_new_generation_and_the_others_keep_the_old_one() {
    let mut world = World::new();
    let chunk = world.packed(&[1, 2, 3]);
    world.ok(seal_on(chunk, 1, &[1, 2, 3]));
    world.ok(Command::CloseChunk { chunk });
    let switch = |replicas: &[u64]| Command::SwitchReplicas {
        chunk,
        generation: Generation(1),
        length: 1,
        digest: 7,
        replicas: stores(replicas),
    };
    world.refused(switch(&[]), Kind::Invalid, "stores were given");
    world.refused(switch(&[1, 9]), Kind::Invalid, "no replica that counts");
    world.ok(switch(&[1, 2]));
    assert_eq!(world.held(chunk), [1, 2]);
    assert_eq!(world.short(&[]), [(chunk.0, 2)]);
    world.refused(unlink_from(chunk, 0, 1), Kind::Invalid, "grace");
    world.ok(Command::Release { before: Index(world.index), budget: 9 });
    // Store 3 has nothing but the old generation: it is a copy, of sorts, until there are three.
    assert_eq!(world.unlinkable(), [(0, 1), (0, 2)]);
    world.refused(unlink_from(chunk, 0, 3), Kind::Invalid, "2 of 3 copies");
    world.ok(unlink_from(chunk, 0, 1));
    let copied =
        |store| Command::AddReplica { chunk, generation: Generation(1), store: StoreId(store) };
    world.refused(add(chunk, 3), Kind::Invalid, "generation `g1`");
    world.ok(copied(3));
    assert_eq!(world.unlinkable(), [(0, 2), (0, 3)]);
    world.ok(unlink_from(chunk, 0, 2));
    world.ok(unlink_from(chunk, 0, 3));
    assert_eq!(world.ns.chunks().get(chunk).unwrap().old, []);
}

/// A store's copy of the new generation was let go while the one before lay beside it for its
/// readers: the store could not remove the file, and no entry named it any more, so that it was taken
/// for a leftover that nobody knows.
#[test]
fn a_dropped_copy_waits_for_the_generation_before_in_the_same_store() {
    let mut world = World::new();
    let chunk = world.packed(&[1, 2, 3]);
    world.ok(seal_on(chunk, 1, &[1, 2, 3]));
    world.ok(Command::CloseChunk { chunk });
    let (generation, replicas) = (Generation(1), stores(&[1, 2, 3]));
    world.ok(Command::SwitchReplicas { chunk, generation, length: 1, digest: 7, replicas });
    world.ok(Command::AddReplica { chunk, generation, store: StoreId(4) });
    world.ok(Command::DropReplica { chunk, generation, store: StoreId(1), lost: false });
    assert_eq!(world.unlinkable(), [], "readers of the generation before have their grace");
    world.ok(Command::Release { before: Index(world.index), budget: 9 });
    assert_eq!(world.unlinkable(), [(0, 1), (0, 2), (0, 3)]);
    world.ok(unlink_from(chunk, 0, 1));
    assert_eq!(world.unlinkable(), [(0, 2), (0, 3), (1, 1)]);
}

/// A store lay about how far it had come, or a writer about where its bytes were: the name of a
/// slot that the seal cut off would be a name of nothing.
#[test]
fn a_slot_beyond_a_sealed_length_is_not_named() {
    let mut world = World::new();
    let chunk = world.packed(&[1, 2, 3]);
    world.ok(seal_on(chunk, 3, &[1, 2, 3]));
    world.ok(put("/q", Some(pointer(chunk, 2)), false));
    world.refused(put("/r", Some(pointer(chunk, 3)), false), Kind::Retry, "sealed at 3 slots");
}

/// After a cut of twelve seconds two chunks were said to be short "for ever as things are", with no
/// bytes left to copy: they were sealed empty, and nobody ever made a copy of nothing.
#[test]
fn a_chunk_that_was_sealed_empty_is_not_short() {
    let mut world = World::new();
    let chunk = world.packed(&[1, 2, 3]);
    world.ok(Command::Delete { path: "/p".into(), recursive: false });
    world.ok(seal_on(chunk, 0, &[1]));
    assert_eq!(world.short(&[1]), []);
    assert_eq!(world.ns.chunks().lost(|_| false), []);
}

#[test]
fn the_index_of_short_chunks_survives_a_restore() {
    let mut world = World::new();
    let (chunk, _) = world.raw(&[1, 2, 3], 3, &[1, 2]);
    let back = Namespace::restore(&world.bytes()).unwrap();
    for bad in [vec![], vec![1], vec![1, 2]] {
        let bad: BTreeSet<u64> = bad.into_iter().collect();
        let short = |ns: &Namespace| ns.chunks().short(|store| !bad.contains(&store.0));
        assert_eq!(short(&world.ns), short(&back));
    }
    assert_eq!(back.chunks().on(StoreId(2)).map(|chunk| chunk.id).collect::<Vec<_>>(), [chunk]);
}

/// Chunks of a single host want one copy. When others had joined, they stayed at that for ever.
#[test]
fn chunks_of_a_single_host_want_more_copies_once_an_entry_says_so() {
    let mut world = World::new();
    let (chunk, _) = world.raw(&[1], 1, &[1]);
    let everywhere = |_: StoreId| true;
    assert_eq!(world.ns.chunks().short(everywhere), []);
    let gone = ChunkId(99);
    world.ok(Command::RaiseCopies { chunks: vec![gone, chunk], copies: 3 });
    let short = world.ns.chunks().short(everywhere);
    assert_eq!(
        short.iter().map(|s| (s.chunk, s.live, s.wanted)).collect::<Vec<_>>(),
        [(chunk, 1, 3)]
    );
    world.ok(add(chunk, 2));
    world.ok(add(chunk, 3));
    assert_eq!(world.ns.chunks().short(everywhere), []);
    // Never fewer; and no number that no chunk can have.
    world.ok(Command::RaiseCopies { chunks: vec![chunk], copies: 1 });
    assert_eq!(world.ns.chunks().get(chunk).unwrap().copies, 3);
    world.refused(
        Command::RaiseCopies { chunks: vec![chunk], copies: 0 },
        Kind::Invalid,
        "1 to 16",
    );
    world.refused(
        Command::RaiseCopies { chunks: vec![chunk], copies: 17 },
        Kind::Invalid,
        "1 to 16",
    );
}

/// A file was abandoned while its chunk took appends. Once the grace was over the chunk was doomed,
/// and still listed among the open ones until its last replica was unlinked, so that its writer
/// went on sealing it; a view that was restored meanwhile did not list it.
#[test]
fn a_chunk_that_was_never_sealed_is_open_no_more_once_its_file_is_gone() {
    let mut world = World::new();
    let file = world.file(begin("/f"));
    let chunk = world.chunk(ChunkKind::Raw, file);
    let open = |ns: &Namespace| ns.chunks().open().map(|chunk| chunk.id).collect::<Vec<_>>();
    world.ok(Command::Abandon { file });
    assert_eq!(open(&world.ns), [chunk]);
    world.ok(Command::Release { before: Index(world.index + 1), budget: 1 });
    assert_eq!(world.ns.chunks().get(chunk).unwrap().state, ChunkState::Doomed);
    assert_eq!(open(&world.ns), []);
    assert_eq!(open(&Namespace::restore(&world.bytes()).unwrap()), []);
}
