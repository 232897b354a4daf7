use super::*;
use crate::Namespace;
use crate::placement::tests::view;
use crate::{ChunkKind, ClusterCommand, Command, NodeState, Outcome};
use holdfast_base::ids::{Durability, Index, NodeId};

const CHUNK_MIB: u64 = 20;

struct World {
    namespace: Namespace,
    index: u64,
}

impl World {
    fn new() -> World {
        World { namespace: Namespace::new(0), index: 1 }
    }

    fn ok(&mut self, command: Command) -> Outcome {
        let index = Index(self.index);
        self.index += 1;
        self.namespace.apply_bytes(index, &command.to_entry()).unwrap()
    }

    /// A sealed chunk of these MiB on these stores.
    fn chunk(&mut self, mib: u64, stores: &[u64]) -> ChunkId {
        self.chunk_on(Tier::Disk, mib, stores)
    }

    fn chunk_on(&mut self, tier: Tier, mib: u64, stores: &[u64]) -> ChunkId {
        let path = format!("/{}", self.index);
        let begin = Command::Begin { path, class: None, mode: 0o600, mtime: 3 };
        let Outcome::File { file: owner } = self.ok(begin) else { panic!("no file") };
        let replicas: Vec<StoreId> = stores.iter().map(|store| StoreId(*store)).collect();
        let Outcome::Chunk { chunk } = self.ok(Command::AllocateCopies {
            kind: ChunkKind::Raw,
            owner,
            node: NodeId(1),
            replicas: replicas.clone(),
            copies: replicas.len() as u8,
            tier,
            durability: if tier == Tier::Disk { Durability::Durable } else { Durability::Memory },
        }) else {
            panic!("no chunk")
        };
        self.ok(Command::SealChunk { chunk, length: mib * MIB, replicas });
        chunk
    }

    /// What is to move, by target.
    fn moves(&self, view: &ClusterView) -> Vec<(ChunkId, u64)> {
        moves(&[self.namespace.chunks()], view)
            .iter()
            .map(|task| (task.chunk, task.to.unwrap().0))
            .collect()
    }
}

/// Three nodes with 600 MiB of chunks each, and an empty one, all of 1 GiB.
fn one_is_empty() -> (World, ClusterView) {
    let mut world = World::new();
    for _ in 0..600 / CHUNK_MIB {
        world.chunk(CHUNK_MIB, &[1, 2, 3]);
    }
    (world, view(&[("a", "", 424), ("b", "", 424), ("c", "", 424), ("d", "", 1024)]))
}

#[test]
fn an_empty_store_gets_its_share_and_every_chunk_keeps_its_copies() {
    let (mut world, view) = one_is_empty();
    let moves = moves(&[world.namespace.chunks()], &view);
    // 1800 MiB over four stores: 450 each.
    assert!((19..=23).contains(&moves.len()), "{}", moves.len());
    for task in &moves {
        assert_eq!((task.to, task.live, task.wanted), (Some(StoreId(4)), 3, 4));
        let (chunk, generation) = (task.chunk, task.generation);
        world.ok(Command::AddReplica { chunk, generation, store: StoreId(4) });
    }
    let surplus = surplus(&[world.namespace.chunks()], &view);
    assert_eq!(surplus.len(), moves.len());
    for (chunk, generation, store) in surplus {
        assert_ne!(store, StoreId(4), "the emptiest store is not the one to give it up");
        world.ok(Command::DropReplica { chunk, generation, store, lost: false });
    }
    assert!(world.namespace.chunks().iter().all(|chunk| chunk.replicas.len() == 3));
    assert_eq!(super::surplus(&[world.namespace.chunks()], &view), []);
}

/// A node was lost for good with a chunk in its memory, which was short of a copy from then on.
#[test]
fn what_is_in_memory_is_never_short_of_a_copy() {
    let mut world = World::new();
    let view = view(&[("a", "", 424), ("b", "", 424)]);
    let nowhere = &[9];
    world.chunk_on(Tier::Dram, 1, nowhere);
    assert_eq!(crate::repair::tasks(&[world.namespace.chunks()], &view), []);
    let on_disk = world.chunk_on(Tier::Disk, 1, nowhere);
    let tasks = crate::repair::tasks(&[world.namespace.chunks()], &view);
    assert_eq!(tasks.iter().map(|task| task.chunk).collect::<Vec<_>>(), [on_disk]);
}

#[test]
fn stores_that_are_alike_and_chunks_too_large_to_help_stay() {
    let mut world = World::new();
    for _ in 0..5 {
        world.chunk(CHUNK_MIB, &[1, 2, 3]);
    }
    // 10% beside nothing, of which the mean is 7.3%.
    let alike = view(&[("a", "", 924), ("b", "", 924), ("c", "", 924), ("d", "", 980)]);
    world.chunk(44, &[4]);
    assert_eq!(world.moves(&alike), []);
    let mut world = World::new();
    world.chunk(60, &[1, 2, 3]);
    let large = view(&[("a", "", 43), ("b", "", 43), ("c", "", 43), ("d", "", 104)]);
    assert_eq!(world.moves(&large), [], "it would only be another store that is full");
}

#[test]
fn no_rack_is_given_up_and_no_host_gets_two_copies() {
    let mut world = World::new();
    for _ in 0..10 {
        world.chunk(CHUNK_MIB, &[1, 2]);
    }
    let to = |host: &str, rack: &str| {
        world.moves(&view(&[("a", "r1", 100), ("b", "r2", 1 << 20), (host, rack, 1 << 20)])).len()
    };
    // From store 1, which is full: its rack would be empty, or a host would have both.
    assert_eq!(to("c", "r2"), 0);
    assert_eq!(to("b", "r3"), 0);
    assert_eq!(to("c", "r1"), 9);
    assert_eq!(to("c", "r3"), 9);
}

/// The fullest store is the only one of its host here, and keeps what it has.
#[test]
fn a_copy_too_many_goes_where_hosts_and_racks_do_not_miss_it() {
    let mut world = World::new();
    let chunk = world.chunk(CHUNK_MIB, &[1, 2]);
    let generation = Generation(0);
    world.ok(Command::AddReplica { chunk, generation, store: StoreId(3) });
    let view = view(&[("a", "r1", 10), ("b", "r2", 50), ("b", "r2", 1 << 20)]);
    assert_eq!(surplus(&[world.namespace.chunks()], &view), [(chunk, generation, StoreId(2))]);
}

/// A chunk remembered every store that it ever was on: after thirteen lost disks there was no
/// room for the next copy, and it stayed short for ever.
#[test]
fn of_copies_on_lost_stores_as_many_are_remembered_as_there_should_be() {
    let mut world = World::new();
    let chunk = world.chunk(CHUNK_MIB, &[1, 2]);
    let generation = Generation(0);
    let nodes: Vec<_> = ["a", "b", "c", "d", "e", "f"].map(|host| (host, "", 1000)).to_vec();
    let mut view = view(&nodes);
    let mut index = 100;
    let mut lose = |view: &mut ClusterView, node: u32| {
        index += 1;
        let node = NodeId(node);
        let incarnation = view.node(node).unwrap().incarnation;
        let lost = ClusterCommand::SetNode { node, incarnation, state: NodeState::Lost };
        view.apply(Index(index), &lost).unwrap();
    };
    for gone in 1..=4 {
        lose(&mut view, gone);
        let dropped = surplus(&[world.namespace.chunks()], &view);
        let expected =
            if gone > 2 { vec![(chunk, generation, StoreId(gone as u64 - 2))] } else { vec![] };
        assert_eq!(dropped, expected, "after {gone} losses");
        for (chunk, generation, store) in dropped {
            world.ok(Command::DropReplica { chunk, generation, store, lost: false });
        }
        world.ok(Command::AddReplica { chunk, generation, store: StoreId(gone as u64 + 2) });
    }
    // The last ones are all that is left, and may come back: nothing of them is dropped.
    lose(&mut view, 5);
    lose(&mut view, 6);
    assert_eq!(surplus(&[world.namespace.chunks()], &view), []);
}

#[test]
fn what_is_to_move_stays_so_until_it_did_or_something_is_short() {
    let (mut world, view) = one_is_empty();
    let mut balance = Balance::default();
    let first = balance.tasks(0, &[world.namespace.chunks()], &view);
    assert_eq!(balance.tasks(1, &[world.namespace.chunks()], &view), first);
    let Task { chunk, generation, .. } = first[0];
    world.ok(Command::AddReplica { chunk, generation, store: StoreId(4) });
    assert_eq!(balance.tasks(2, &[world.namespace.chunks()], &view), first[1..]);
    // The empty store fills with something else: nothing more goes there.
    let filled = crate::placement::tests::view(&[
        ("a", "", 424),
        ("b", "", 424),
        ("c", "", 424),
        ("d", "", 50),
    ]);
    assert_eq!(balance.tasks(2, &[world.namespace.chunks()], &filled), []);
    assert_eq!(balance.tasks(3, &[world.namespace.chunks()], &view), [], "it has looked just now");
    assert!(!balance.tasks(LOOK_MS * MS, &[world.namespace.chunks()], &view).is_empty());
}
