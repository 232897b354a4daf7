//! Chunks with replicas on several nodes: whatever is lost on the way, what was acknowledged is on
//! every replica that a seal names, with the right bytes.

mod world;

use holdfast_base::codec::{Decode, Encode};
use holdfast_base::ids::*;
use holdfast_base::limits::BLOCK_BYTES;
use holdfast_base::{Error, Kind, Result};
use holdfast_chunk::{ChunkKind, ChunkSpec, Needle, ReplicaState, Store};
use holdfast_env::net::{Flow, PeerReply, PeerRequest};
use holdfast_node::replicas::{Answer, ReplicaSet, WRITER_LIMIT_MS, Wanted};
use holdfast_wire::chunk::piece_crcs;
use holdfast_wire::peer;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use world::{CLUSTER, Fate, Slot as Left, World};

const CHUNK: ChunkId = ChunkId(8);
const G0: Generation = Generation(0);

fn counted(event: &AtomicU64) -> u64 {
    event.load(Ordering::Relaxed)
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    holdfast_base::random::bytes(seed, len)
}

fn spec(kind: ChunkKind) -> ChunkSpec {
    ChunkSpec { capacity_bytes: 4 << 20, ..ChunkSpec::new(CHUNK, kind, 9) }
}

/// A set of a chunk on `nodes`, written by node 1.
fn create(world: &World, kind: ChunkKind, nodes: &[u32]) -> Arc<ReplicaSet> {
    let (left, leave) = Left::new();
    ReplicaSet::create(&world.node(1), spec(kind), &world.stores(nodes), leave);
    world.settle();
    left.get()
}

fn append(set: &Arc<ReplicaSet>, at: u64, bytes: Vec<u8>) -> Left<Result<u64>> {
    let (left, leave) = Left::new();
    let crcs = piece_crcs(at, &bytes);
    set.append_raw(at, Arc::new(bytes), crcs, Durability::Durable, leave);
    left
}

fn append_needle(set: &Arc<ReplicaSet>, i: u64, bytes: Vec<u8>) -> Left<Result<Slot>> {
    let (left, leave) = Left::new();
    let crcs = piece_crcs(0, &bytes);
    let needle = Needle { owner: FileId(i), cookie: Cookie(i as u32), flags: 0, hint: vec![7] };
    set.append_needle(needle, Arc::new(bytes), crcs, leave);
    left
}

fn raw_bytes(store: &Store, length: u64) -> Result<Vec<u8>> {
    Ok(store.read_raw(CHUNK, G0, 0, length)?.bytes.to_vec())
}

fn read(world: &World, node: u32, nodes: &[u32], wanted: Wanted) -> Result<Answer> {
    let (left, leave) = Left::new();
    world.node(node).read(&world.stores(nodes), wanted, leave);
    world.settle();
    left.get()
}

fn raw_wanted(offset: u64, bytes: u32) -> Wanted {
    Wanted::Raw { chunk: CHUNK, generation: G0, offset, bytes }
}

/// Appends `parts` of `data` at once, from node 1 to nodes 1, 2 and 3.
fn written(world: &World, data: &[u8], part: usize) -> Arc<ReplicaSet> {
    let set = create(world, ChunkKind::Raw, &[1, 2, 3]);
    let mut at = 0;
    let answers: Vec<_> = data
        .chunks(part)
        .map(|bytes| {
            at += bytes.len() as u64;
            (at, append(&set, at - bytes.len() as u64, bytes.to_vec()))
        })
        .collect();
    world.settle();
    answers.into_iter().for_each(|(end, answer)| assert_eq!(answer.get(), Ok(end)));
    set
}

/// Fences, decides and seals from node 2, as a leader does for a silent writer.
fn seal_silently(world: &World, nodes: &[u32]) -> Result<(u64, Vec<StoreId>)> {
    let (left, leave) = Left::new();
    world.node(2).fence_replicas(CHUNK, ChunkKind::Raw, &world.stores(nodes), leave);
    world.settle();
    let decision = left.get()?;
    let (left, leave) = Left::new();
    world.node(2).seal_replicas(CHUNK, decision.length, &decision.replicas, leave);
    world.settle();
    let report = left.get();
    assert_eq!(report.short, [], "a named replica reaches the length");
    Ok((decision.length, decision.replicas))
}

#[test]
fn appends_are_acknowledged_in_order_and_replicas_are_equal() {
    let world = World::new(3);
    let data = noise(1, 900_000);
    let set = written(&world, &data, 70_001);
    assert_eq!((set.acknowledged(), set.ended()), (900_000, false));
    assert_eq!(set.end(), 900_000);
    let (left, leave) = Left::new();
    world.node(1).seal_replicas(CHUNK, 900_000, &set.holders(), leave);
    world.settle();
    assert_eq!(left.get().sealed.len(), 3);
    for node in 1..=3 {
        assert_eq!(raw_bytes(&world.store(node), 1 << 20).unwrap(), data);
        assert_eq!(world.store(node).list()[0].state, ReplicaState::Sealed);
    }
    // Repeated, by anybody: the same.
    let (left, leave) = Left::new();
    world.node(3).seal_replicas(CHUNK, 900_000, &set.holders(), leave);
    world.settle();
    assert_eq!(left.get().sealed.len(), 3);
}

#[test]
fn objects_get_the_same_slot_everywhere_however_their_messages_are_delayed() {
    let world = World::new(3);
    let set = create(&world, ChunkKind::Packed, &[1, 2, 3]);
    let room = set.room();
    let mut turn = 0;
    world.script(move |_, to, _| {
        turn += 1;
        // One connection keeps its order; the two have their own pace.
        Fate::Late(1 + to as u64 * 7 + turn)
    });
    let answers: Vec<_> =
        (0..30).map(|i| append_needle(&set, i, noise(i, i as usize * 997))).collect();
    assert!(set.room() < room - 30 * 8192, "what is on its way takes room");
    world.settle();
    for (i, answer) in (0..30).zip(answers) {
        assert_eq!(answer.get(), Ok(Slot(i)));
        let pointer = Pointer { chunk: CHUNK, slot: Slot(i), cookie: Cookie(i) };
        for node in 1..=3 {
            let read = world.store(node).read_needle(pointer).unwrap();
            assert_eq!(read.bytes.to_vec(), noise(i as u64, i as usize * 997));
        }
    }
    assert!(set.room() > room - 1_000_000 && set.room() < room);
}

/// One message of an append, from the first create to the last answer, has one of these fates.
/// What was acknowledged until then is on every replica that the seal names.
#[test]
fn whatever_happens_to_one_message_acknowledged_bytes_survive() {
    let fates = [Fate::Lost, Fate::AnswerLost, Fate::Late(4000), Fate::Damaged, Fate::Twice];
    let (mut ended, mut whole) = (0, 0);
    for fate in fates {
        // Two creates, then two messages for each of four appends.
        for step in 0..10 {
            let world = World::new(3);
            let mut message = 0;
            world.script(move |from, _, _| {
                message += (from == 1) as usize;
                if from == 1 && message == step + 1 { fate } else { Fate::Arrives }
            });
            let set = create(&world, ChunkKind::Raw, &[1, 2, 3]);
            let data = noise(step as u64, 80_000);
            let mut acknowledged = 0;
            for part in data.chunks(20_000) {
                let answer = append(&set, acknowledged, part.to_vec());
                world.settle();
                match answer.get() {
                    Ok(end) => acknowledged = end,
                    // The kind on which writers seal and move on.
                    Err(e) => {
                        assert_eq!(e.kind, Kind::Fenced, "{e}");
                        break;
                    }
                }
            }
            ended += set.ended() as u32;
            whole += (acknowledged == 80_000) as u32;
            assert_eq!(set.acknowledged(), acknowledged);
            assert_eq!(set.ended(), acknowledged < 80_000, "{fate:?} at {step}");
            world.script(|_, _, _| Fate::Arrives);
            let (length, replicas) = seal_silently(&world, &[1, 2, 3]).unwrap();
            assert!(length >= acknowledged, "{fate:?} at {step}: {length} of {acknowledged}");
            assert!(length == 0 || !replicas.is_empty());
            for node in 1..=3 {
                let store = world.store(node);
                if replicas.contains(&store.id()) {
                    let found = raw_bytes(&store, 1 << 20).unwrap();
                    assert_eq!(found, data[..length as usize], "{fate:?} at {step}");
                }
            }
        }
    }
    assert!(ended >= 30 && whole >= 10, "{ended} sets ended, {whole} were whole");
}

#[test]
fn a_node_killed_at_any_append_loses_nothing_that_was_acknowledged() {
    for (victim, kill_at) in (1..=3).flat_map(|victim| (0..4).map(move |at| (victim, at))) {
        let mut world = World::new(4);
        let set = create(&world, ChunkKind::Raw, &[1, 2, 3]);
        let data = noise(3, 80_000);
        let mut answers = Vec::new();
        for (i, part) in data.chunks(20_000).enumerate() {
            if i == kill_at {
                world.kill(victim);
            }
            answers.push(append(&set, i as u64 * 20_000, part.to_vec()));
            if i % 2 == 0 {
                world.settle();
            }
        }
        world.settle();
        let acknowledged =
            answers.iter().filter_map(Left::take).filter_map(Result::ok).max().unwrap_or(0);
        // The leader is a survivor, and asks everybody.
        let (left, leave) = Left::new();
        let leader = world.node(if victim == 2 { 3 } else { 2 });
        leader.fence_replicas(CHUNK, ChunkKind::Raw, &world.stores(&[1, 2, 3]), leave);
        world.settle();
        let decision = left.get().unwrap();
        assert!(decision.length >= acknowledged, "{victim} at {kill_at}");
        assert_eq!(decision.replicas.len(), 2, "the dead one is not named");
        // It comes back, and follows the seal, or says that it is short.
        let disk = world.disks[&victim].power_cut(kill_at as u64);
        world.start(victim, disk);
        let (left, leave) = Left::new();
        leader.seal_replicas(CHUNK, decision.length, &world.stores(&[1, 2, 3]), leave);
        world.settle();
        let report = left.get();
        assert_eq!(report.silent, []);
        for node in 1..=3 {
            let store = world.store(node);
            if report.sealed.contains(&store.id()) {
                let found = raw_bytes(&store, 1 << 20).unwrap();
                assert_eq!(found, data[..decision.length as usize]);
            } else {
                assert!(store.length(CHUNK).unwrap_or(0) < decision.length);
                assert_eq!(node, victim);
            }
        }
    }
}

/// It was believed: the chunk was sealed at a length that nobody had, with the liar alone. Beside two
/// others nobody asks what it claims, for it cannot decide; beside one it must show it.
#[test]
fn a_replica_that_lies_about_its_length_is_left_out_and_named() {
    let world = World::new(3);
    let data = noise(9, 100_000);
    let set = written(&world, &data, 20_000);
    drop(set);
    let fence = |nodes: &[u32]| {
        let (left, leave) = Left::new();
        world.node(2).fence_replicas(CHUNK, ChunkKind::Raw, &world.stores(nodes), leave);
        world.settle();
        left.get().unwrap()
    };
    let mut all = world.stores(&[1, 2, 3]);
    all.sort();
    for lie in [1, BLOCK_BYTES, 1 << 40] {
        world.script(move |_, to, opcode| match opcode {
            peer::OP_PEER_FENCE if to == 3 => Fate::Longer(lie),
            _ => Fate::Arrives,
        });
        let decision = fence(&[1, 2, 3]);
        assert_eq!((decision.length, decision.replicas), (100_000, all.clone()));
        assert_eq!(world.node(2).take_bad_blocks(), []);
        let decision = fence(&[2, 3]);
        assert_eq!((decision.length, decision.replicas), (100_000, world.stores(&[2])));
        let bad = world.node(2).take_bad_blocks();
        assert!(bad.iter().any(|b| b.what.contains("does not show the last of them")), "{bad:?}");
        assert!(bad.iter().all(|b| b.store == world.stores(&[3])[0]), "{bad:?}");
    }
}

/// Its writer's seal came between the two questions and cut off what it had said that it has. It
/// was taken for a liar, and its whole copy dropped as damaged.
#[test]
fn a_replica_that_was_sealed_between_two_questions_has_not_lied() {
    let world = World::new(3);
    let data = noise(9, 100_000);
    let set = written(&world, &data, 20_000);
    drop(set);
    let longer = world.store(3);
    let (appended, done) = Left::new();
    let piece = noise(10, 5000);
    let crcs = piece_crcs(100_000, &piece);
    longer.append_raw(CHUNK, 100_000, Box::new(piece), crcs, Durability::Durable, done);
    longer.pump();
    assert_eq!(appended.get(), Ok(105_000));
    world.script(move |_, to, opcode| {
        if (to, opcode) == (3, peer::OP_PEER_READ_RAW) {
            longer.seal(CHUNK, 100_000).unwrap();
        }
        Fate::Arrives
    });
    let (left, leave) = Left::new();
    let stores = world.stores(&[1, 2, 3]);
    world.node(2).fence_replicas(CHUNK, ChunkKind::Raw, &stores, leave);
    world.settle();
    let decision = left.get().unwrap();
    let mut all = world.stores(&[1, 2, 3]);
    all.sort();
    assert_eq!((decision.length, decision.replicas), (100_000, all));
    assert_eq!(world.node(2).take_bad_blocks(), []);
}

#[test]
fn a_replica_slower_than_the_limit_ends_the_chunk_and_a_late_answer_changes_nothing() {
    let world = World::new(3);
    let set = create(&world, ChunkKind::Raw, &[1, 2, 3]);
    world.script(|_, to, _| if to == 3 { Fate::Late(2 * WRITER_LIMIT_MS) } else { Fate::Arrives });
    let began = world.now_ms();
    let slow = append(&set, 0, noise(1, 1000));
    world.settle();
    let e = slow.get().unwrap_err();
    assert!(e.kind == Kind::Fenced && e.message.contains("store `"), "{e}");
    assert!(world.now_ms() - began >= 2 * WRITER_LIMIT_MS, "the late message did arrive");
    assert_eq!((set.acknowledged(), set.room()), (0, 0));
    // Wherever its writer thinks the end is: it is to move, not to despair.
    for at in [0, 1000, 7000] {
        assert_eq!(append(&set, at, vec![1]).get().unwrap_err().kind, Kind::Fenced);
    }
    let slow = world.store(3).id();
    assert!(world.node(1).is_suspect(slow), "no new chunks for it");
    assert_eq!(counted(&world.node(1).events.slow_replicas), 1);
    assert_eq!(seal_silently(&world, &[1, 2, 3]).unwrap().0, 1000);
}

/// The first message of a chunk is its creation. One that was carried out before is as good; any
/// other refusal ends the chunk before a byte is sent, and nobody calls that replica a holder.
#[test]
fn a_set_begins_when_every_replica_was_made_and_not_without_one() {
    let world = World::new(3);
    let set = create(&world, ChunkKind::Raw, &[1, 2, 3]);
    assert_eq!((set.ended(), set.holders()), (false, world.stores(&[1, 2, 3])));
    let own = world.store(1).room(CHUNK).unwrap();
    assert!(set.room() > own / 2 && set.room() <= own, "{} of {own}", set.room());
    let again = create(&world, ChunkKind::Raw, &[1, 2, 3]);
    assert_eq!((again.ended(), again.holders()), (false, world.stores(&[1, 2, 3])));
    let world = World::new(3);
    world.script(|_, to, _| if to == 3 { Fate::Lost } else { Fate::Arrives });
    let set = create(&world, ChunkKind::Raw, &[1, 2, 3]);
    assert_eq!((set.ended(), set.room(), set.holders()), (true, 0, world.stores(&[1, 2])));
    assert_eq!(set.cause().unwrap().kind, Kind::Retry);
    assert!(world.node(1).is_suspect(world.store(3).id()));
    // Nobody is to write before the last one has answered.
    let world = World::new(3);
    world.script(|_, to, _| if to == 3 { Fate::Late(500) } else { Fate::Arrives });
    let (left, leave) = Left::<Arc<ReplicaSet>>::new();
    ReplicaSet::create(&world.node(1), spec(ChunkKind::Raw), &world.stores(&[1, 2, 3]), leave);
    let third = world.store(3);
    world.settle_until(|_| !third.list().is_empty());
    assert!(left.take().is_none());
    world.settle();
    assert_eq!(left.get().holders().len(), 3);
}

/// A replica that has less than what the log decided, has none of it, or was sealed at another
/// length, is to be dropped; one that does not answer follows later.
#[test]
fn a_seal_names_who_is_short_and_who_is_silent() {
    let world = World::new(4);
    let set = written(&world, &noise(1, 9000), 9000);
    set.end();
    world.store(2).fence(CHUNK).unwrap();
    world.store(2).seal(CHUNK, 5000).unwrap();
    world.script(|_, to, _| if to == 3 { Fate::Lost } else { Fate::Arrives });
    let (left, leave) = Left::new();
    world.node(1).seal_replicas(CHUNK, 9000, &world.stores(&[1, 2, 3, 4]), leave);
    world.settle();
    let report = left.get();
    assert_eq!((report.sealed, report.silent), (world.stores(&[1]), world.stores(&[3])));
    let short: Vec<StoreId> = report.short.iter().map(|(store, _)| *store).collect();
    assert_eq!(short, world.stores(&[2, 4]), "{:?}", report.short);
}

#[test]
fn an_append_at_a_wrong_place_is_refused_and_ends_nothing() {
    let world = World::new(2);
    let set = create(&world, ChunkKind::Raw, &[1, 2]);
    assert_eq!(append(&set, 5, vec![1]).get().unwrap_err().kind, Kind::Invalid);
    assert_eq!(append(&set, 0, vec![]).get().unwrap_err().kind, Kind::Invalid);
    let first = append(&set, 0, vec![1; 10]);
    let second = append(&set, 10, vec![2; 10]);
    world.settle();
    assert_eq!((first.get(), second.get()), (Ok(10), Ok(20)));
}

#[test]
fn messages_of_another_cluster_or_an_older_start_are_refused() {
    let mut world = World::new(2);
    let store = world.store(2).id();
    let old = peer::Sender { cluster: CLUSTER, node: NodeId(1), incarnation: Index(1) };
    let ask = |world: &World, sender: peer::Sender, store: StoreId| -> Error {
        let (left, leave) = Left::<Result<PeerReply>>::new();
        let fence = peer::Fence { sender, store, chunk: CHUNK };
        let (op, meta) = (peer::OP_PEER_FENCE, fence.to_bytes());
        world.node(2).handle(op, &meta, Vec::new(), leave);
        world.settle();
        left.get().unwrap_err()
    };
    assert_eq!(ask(&world, old, store).kind, Kind::NotFound, "it may ask; there is no such chunk");
    let stranger = peer::Sender { cluster: 1, ..old };
    assert_eq!(ask(&world, stranger, store).kind, Kind::Invalid);
    assert!(ask(&world, old, StoreId(1)).message.contains("does not have it"));
    let disk = world.disks[&1].process_kill();
    world.start(1, disk);
    assert_eq!(ask(&world, old, store).kind, Kind::Fenced);
    // An unknown operation, and bytes that are no message.
    for (op, meta) in [(0x04ff, old.to_bytes()), (peer::OP_PEER_FENCE, vec![1, 2, 3])] {
        let (left, leave) = Left::<Result<PeerReply>>::new();
        world.node(2).handle(op, &meta, Vec::new(), leave);
        let kind = left.get().unwrap_err().kind;
        assert!(matches!(kind, Kind::Unsupported | Kind::Invalid));
    }
}

#[test]
fn reads_come_from_the_own_store_or_a_peer_and_bad_blocks_from_another() {
    let world = World::new(4);
    let data = noise(1, 300_000);
    written(&world, &data, 100_000).end();
    seal_silently(&world, &[1, 2, 3]).unwrap();
    let whole = |node, wanted| read(&world, node, &[1, 2, 3], wanted).map(|a| a.bytes.to_vec());
    assert_eq!(whole(1, raw_wanted(0, 300_000)).unwrap(), data);
    assert_eq!(world.arrived(peer::OP_PEER_READ_RAW), 0, "its own store has it");
    assert_eq!(whole(4, raw_wanted(65_000, 70_000)).unwrap(), data[65_000..135_000]);
    // Damaged on its way, then at rest: another replica answers, and it is told.
    let mut first = true;
    world.script(move |_, _, _| match std::mem::take(&mut first) {
        true => Fate::Damaged,
        false => Fate::Arrives,
    });
    assert_eq!(whole(4, raw_wanted(0, 300_000)).unwrap(), data);
    assert_eq!(world.node(4).take_bad_blocks().len(), 1);
    assert_eq!(world.node(4).take_bad_blocks(), []);
    let path = std::path::Path::new("/store").join(format!("{CHUNK}.g0.chunk"));
    world.disks[&1].flip_bit(&path, 100_000, 3).unwrap();
    assert_eq!(whole(1, raw_wanted(0, 300_000)).unwrap(), data);
    let bad = world.node(1).take_bad_blocks();
    assert!(bad.len() == 1 && bad[0].store == world.store(1).id(), "{bad:?}");
    // More than there is: nobody lies about a length unnoticed.
    assert_eq!(whole(4, raw_wanted(0, 300_001)).unwrap_err().kind, Kind::Corrupt);
}

#[test]
fn a_slow_node_is_hedged_and_a_fast_one_asked_first() {
    let world = World::new(4);
    let data = noise(1, 10_000);
    written(&world, &data, 10_000).end();
    seal_silently(&world, &[1, 2, 3]).unwrap();
    let slow = 1;
    world.script(move |_, to, _| if to == slow { Fate::Late(400) } else { Fate::Late(3) });
    let mut took = Vec::new();
    for _ in 0..40 {
        let began = world.now_ms();
        let (left, leave) = Left::new();
        let node = world.node(4);
        let (clock, stores) = (node.clock.clone(), world.stores(&[1, 2, 3]));
        let done = Box::new(move |answer: Result<Answer>| {
            leave((answer.map(|a| a.bytes.to_vec()), clock.monotonic_ns() / 1_000_000));
        });
        node.read(&stores, raw_wanted(0, 10_000), done);
        world.settle();
        let (bytes, at) = left.get();
        assert_eq!(bytes.unwrap(), data);
        took.push(at - began);
    }
    assert!(took.iter().all(|ms| *ms <= 60), "never the slow node's 400 ms: {took:?}");
    assert!(took[20..].iter().all(|ms| *ms <= 8), "later the fast ones alone: {took:?}");
    let asked = |node| {
        let net = world.net.lock().unwrap();
        net.arrived.iter().filter(|(to, op)| (*to, *op) == (node, peer::OP_PEER_READ_RAW)).count()
    };
    assert!(asked(slow) < 15, "{}", asked(slow));
    assert!(counted(&world.node(4).events.hedged_reads) > 0);
}

fn copy_order(world: &World, source: u32) -> peer::Copy {
    peer::Copy {
        store: world.store(4).id(),
        chunk: CHUNK,
        generation: G0,
        source: world.store(source).id(),
        source_address: source.to_string(),
        bytes_per_second: 1 << 20,
    }
}

/// Has node 2, as the leader, tell node 4 what to copy, and lets the world settle.
fn plan(world: &World, number: u64, copies: Vec<peer::Copy>) -> Result<peer::Report> {
    let (left, leave) = Left::<Result<PeerReply>>::new();
    let sender = peer::Sender { cluster: CLUSTER, node: NodeId(2), incarnation: Index(1) };
    let plan = peer::CopyPlan { sender, epoch: Index(5), number, copies, ..Default::default() };
    let (meta, node) = (plan.to_bytes(), world.node(2));
    let request =
        PeerRequest { opcode: peer::OP_PEER_PLAN, meta, body: None, deadline_ms: 1_000_000 };
    node.peers.call("4", request, leave);
    world.settle();
    left.get().map(|reply| peer::Report::from_bytes(&reply.meta).unwrap())
}

/// What node 4 says without being told anything.
fn look(world: &World, epoch: u64, heard: u64) -> peer::Report {
    let (epoch, number) = (Index(epoch), 99);
    let plan = peer::CopyPlan { epoch, number, look: true, heard, ..Default::default() };
    world.node(4).follow(plan).unwrap()
}

#[test]
fn a_copy_is_resumed_verified_and_throttled() {
    let mut world = World::new(4);
    let data = noise(1, 3_500_000);
    written(&world, &data, 500_000).end();
    seal_silently(&world, &[1, 2, 3]).unwrap();
    // The fourth block does not come; a restart keeps what had.
    let mut exports = 0;
    world.script(move |_, _, op| {
        exports += (op == peer::OP_PEER_EXPORT) as u32;
        if op == peer::OP_PEER_EXPORT && exports == 4 { Fate::Lost } else { Fate::Arrives }
    });
    let first = plan(&world, 1, vec![copy_order(&world, 2)]).unwrap();
    assert_eq!((first.number, first.flights.len()), (1, 1));
    let ended = look(&world, 5, 0).ended;
    assert!(ended[0].failure.contains("overdue"), "{ended:?}");
    assert!(world.store(4).list().is_empty());
    let disk = world.disks[&4].process_kill();
    world.start(4, disk);
    // A new process knows no plan.
    let before = world.arrived(peer::OP_PEER_EXPORT);
    // The plan that is repeated, as each round does, is one copy.
    let began = world.now_ms();
    for number in [1, 2] {
        plan(&world, number, vec![copy_order(&world, 2)]).unwrap();
    }
    let report = look(&world, 5, 0);
    assert_eq!((report.ended.len(), report.ended[0].failure.as_str()), (1, ""));
    assert!(report.ended[0].bytes < 2 << 20, "what was there is not sent again");
    assert!(report.flights.is_empty() && look(&world, 5, 1).ended.is_empty());
    let blocks = world.arrived(peer::OP_PEER_EXPORT) - before;
    assert!(blocks <= 4, "{blocks} requests: it began anew");
    assert_eq!(counted(&world.node(4).events.resumed_copies), 1);
    assert!(world.now_ms() > began);
    assert_eq!(raw_bytes(&world.store(4), 4 << 20).unwrap(), data);
    // What is there is there.
    let again = peer::CopyPlan {
        epoch: Index(7),
        copies: vec![copy_order(&world, 2)],
        ..Default::default()
    };
    world.node(4).follow(again).unwrap();
    world.settle();
    let report =
        world.node(4).follow(peer::CopyPlan { epoch: Index(8), look: true, ..Default::default() });
    assert!(report.unwrap().ended.last().unwrap().failure.is_empty());
}

/// A copy that cannot even begin is no copy: its end says why, and nothing counts.
#[test]
fn a_copy_to_a_full_disk_ends_with_a_failure() {
    let world = World::new(4);
    let data = noise(1, 1_500_000);
    written(&world, &data, 500_000).end();
    seal_silently(&world, &[1, 2, 3]).unwrap();
    world.disks[&4].set_capacity(1 << 20);
    plan(&world, 1, vec![copy_order(&world, 2)]).unwrap();
    let ended = look(&world, 5, 0).ended;
    assert_eq!(ended.len(), 1);
    assert!(!ended[0].failure.is_empty(), "{ended:?}");
    assert!(world.store(4).list().is_empty());
}

/// However much its target may take: what a node gives away waits for its own link.
#[test]
fn a_source_gives_away_no_more_than_its_link_may_carry() {
    let world = World::new(4);
    let data = noise(1, 3_500_000);
    written(&world, &data, 500_000).end();
    seal_silently(&world, &[1, 2, 3]).unwrap();
    let terms = peer::CopyPlan { epoch: Index(5), rate_max: 100_000, ..Default::default() };
    world.node(2).follow(terms).unwrap();
    world.node(2).regulate(Flow::default());
    let began = world.now_ms();
    let fast = peer::Copy { bytes_per_second: 1 << 30, ..copy_order(&world, 2) };
    let copies = peer::CopyPlan { epoch: Index(5), copies: vec![fast], ..Default::default() };
    world.node(4).follow(copies).unwrap();
    while look(&world, 5, 0).ended.is_empty() {
        let next = world.now_ms() + 100;
        // Or time would go on to the next answer that is overdue.
        world.node(4).peers.after(100, Box::new(|| ()));
        world.settle_until(|net| net.now_ms >= next);
    }
    let took_ms = world.now_ms() - began;
    assert!((25_000..50_000).contains(&took_ms), "{took_ms} ms for 3.5 MB at 100 kB/s");
    assert_eq!(raw_bytes(&world.store(4), 4 << 20).unwrap(), data);
}

#[test]
fn a_damaged_source_is_refused_and_the_other_one_copied() {
    let world = World::new(4);
    let data = noise(1, 1_500_000);
    written(&world, &data, 500_000).end();
    seal_silently(&world, &[1, 2, 3]).unwrap();
    let path = std::path::Path::new("/store").join(format!("{CHUNK}.g0.chunk"));
    world.disks[&2].flip_bit(&path, 700_000, 3).unwrap();
    plan(&world, 1, vec![copy_order(&world, 2)]).unwrap();
    let ended = plan(&world, 2, Vec::new()).unwrap().ended;
    assert!(ended[0].failure.contains("checksum"), "{ended:?}");
    assert!(world.store(4).list().is_empty());
    assert_eq!(world.store(4).usage().used_bytes, 0);
    let heard = peer::CopyPlan {
        epoch: Index(5),
        number: 3,
        heard: 1,
        copies: vec![copy_order(&world, 3)],
        ..Default::default()
    };
    world.node(4).follow(heard).unwrap();
    world.settle();
    assert_eq!(look(&world, 5, 0).ended[0].failure, "");
    assert_eq!(raw_bytes(&world.store(4), 4 << 20).unwrap(), data);
}

#[test]
fn an_old_leaders_plan_is_refused_and_what_no_plan_has_is_given_up() {
    let world = World::new(4);
    written(&world, &noise(1, 3_500_000), 500_000).end();
    seal_silently(&world, &[1, 2, 3]).unwrap();
    // The second block takes its time.
    let mut exports = 0;
    world.script(move |_, _, op| {
        exports += (op == peer::OP_PEER_EXPORT) as u32;
        if op == peer::OP_PEER_EXPORT && exports == 3 { Fate::Lost } else { Fate::Arrives }
    });
    let order = |epoch: u64, number, copies| peer::CopyPlan {
        epoch: Index(epoch),
        number,
        copies,
        ..Default::default()
    };
    let node = world.node(4);
    node.follow(order(5, 7, vec![copy_order(&world, 2)])).unwrap();
    let late = node.follow(order(5, 6, Vec::new())).unwrap_err();
    assert_eq!(late.kind, Kind::Fenced);
    assert_eq!(node.follow(order(4, 9, Vec::new())).unwrap_err().kind, Kind::Fenced);
    // Another source's file may be laid out otherwise: it begins anew, and only there.
    node.follow(order(6, 1, vec![copy_order(&world, 3)])).unwrap();
    assert_eq!(look(&world, 6, 0).flights[0].source, world.store(3).id());
    // The next leader wants nothing of it.
    node.follow(order(7, 1, Vec::new())).unwrap();
    world.settle();
    let report = node.follow(order(7, 2, Vec::new())).unwrap();
    assert!(report.flights.is_empty() && report.ended.is_empty(), "{report:?}");
    assert_eq!(world.store(4).usage().used_bytes, 0, "nothing of it stays");
}

/// A copy whose source was replaced for being slow went on to wait for what that owed it.
#[test]
fn another_source_is_asked_at_once_and_what_the_slow_one_sends_is_late() {
    let world = World::new(4);
    let data = noise(1, 3_500_000);
    written(&world, &data, 500_000).end();
    seal_silently(&world, &[1, 2, 3]).unwrap();
    let mut exports = 0;
    world.script(move |_, to, op| {
        let export = op == peer::OP_PEER_EXPORT;
        exports += u32::from(export && to == 2);
        // The second block of the first source.
        if export && to == 2 && exports == 3 { Fate::Late(20_000) } else { Fate::Arrives }
    });
    let node = world.node(4);
    let order =
        |number, copies| peer::CopyPlan { epoch: Index(5), number, copies, ..Default::default() };
    node.follow(order(1, vec![copy_order(&world, 2)])).unwrap();
    world.settle_until(|net| net.sent_late > 0);
    assert!(look(&world, 5, 0).flights[0].bytes_done > 0);
    node.follow(order(100, vec![copy_order(&world, 3)])).unwrap();
    world.settle();
    let report = look(&world, 6, 0);
    assert_eq!((report.ended.len(), report.ended[0].failure.as_str()), (1, ""));
    assert_eq!(raw_bytes(&world.store(4), 4 << 20).unwrap(), data);
    let arrived = &world.net.lock().unwrap().arrived;
    let exports = arrived.iter().filter(|(_, op)| *op == peer::OP_PEER_EXPORT);
    let sources: Vec<u32> = exports.map(|(node, _)| *node).collect();
    let late = sources.iter().rposition(|node| *node == 2).unwrap();
    assert!(late == sources.len() - 1 && sources.len() > 5, "{sources:?}");
}

/// A node had been given next to nothing for a moment. A copy to it waited a minute for its next
/// block, and the plans that gave it more meanwhile changed nothing.
#[test]
fn a_copy_that_waits_goes_on_at_the_rate_of_the_next_plan() {
    let world = World::new(4);
    let data = noise(1, 3_500_000);
    written(&world, &data, 500_000).end();
    seal_silently(&world, &[1, 2, 3]).unwrap();
    let node = world.node(4);
    let order =
        |number, copies| peer::CopyPlan { epoch: Index(5), number, copies, ..Default::default() };
    let slow = peer::Copy { bytes_per_second: 1000, ..copy_order(&world, 2) };
    node.follow(order(1, vec![slow])).unwrap();
    let exports =
        |net: &world::Net| net.arrived.iter().filter(|(_, op)| *op == peer::OP_PEER_EXPORT).count();
    world.settle_until(|net| exports(net) == 2);
    let began = world.now_ms();
    // The block has come meanwhile, and the next one's turn would come after more than a minute.
    world.settle_until(|net| net.now_ms >= began + 5000);
    node.follow(order(2, vec![copy_order(&world, 2)])).unwrap();
    world.settle();
    let report = look(&world, 6, 0);
    assert_eq!((report.ended.len(), report.ended[0].failure.as_str()), (1, ""));
    assert_eq!(raw_bytes(&world.store(4), 4 << 20).unwrap(), data);
    let took_ms = world.now_ms() - began;
    assert!(took_ms < 60_000, "{took_ms} ms");
}

#[test]
fn compaction_switch_and_unlink_go_by_message_and_may_be_repeated() {
    let world = World::new(3);
    let set = create(&world, ChunkKind::Packed, &[1, 2, 3]);
    (0..20).for_each(|i| drop(append_needle(&set, i, noise(i, 3000))));
    world.settle();
    set.end();
    seal_silently(&world, &[1, 2, 3]).unwrap();
    let sender = peer::Sender { cluster: CLUSTER, node: NodeId(1), incarnation: Index(1) };
    let ask = |node: u32, opcode: u16, meta: Vec<u8>| {
        let (left, leave) = Left::<Result<PeerReply>>::new();
        let request = PeerRequest { opcode, meta, body: None, deadline_ms: 1000 };
        world.node(1).peers.call(&node.to_string(), request, leave);
        world.settle();
        left.get()
    };
    let (next, live) = (Generation(1), vec![0b1010_1010]);
    let mut made = Vec::new();
    for node in [2, 3, 2] {
        let (store, live) = (world.store(node).id(), live.clone());
        let compact = peer::Compact { sender, store, chunk: CHUNK, next, live };
        made.push(ask(node, peer::OP_PEER_COMPACT, compact.to_bytes()).unwrap());
    }
    assert!(made[0] == made[1] && made[1] == made[2], "one digest everywhere");
    let store = world.store(2).id();
    for _ in 0..2 {
        let switch = peer::Switch { sender, store, chunk: CHUNK, generation: next };
        ask(2, peer::OP_PEER_SWITCH, switch.to_bytes()).unwrap();
        let index = Index(1);
        let unlink = peer::Unlink { sender, store, chunk: CHUNK, generation: G0, index };
        ask(2, peer::OP_PEER_UNLINK, unlink.to_bytes()).unwrap();
    }
    // A repetition that comes that late is refused, and what is read by now stays.
    let late = peer::Compact { sender, store, chunk: CHUNK, next, live };
    let refused = ask(2, peer::OP_PEER_COMPACT, late.to_bytes()).unwrap_err();
    assert!(refused.message.contains("is current"), "{refused}");
    // One that the receiver's view still names stays.
    let chunk = ChunkId(9);
    let unlink = peer::Unlink { sender, store, chunk, generation: G0, index: Index(1) };
    assert_eq!(ask(2, peer::OP_PEER_UNLINK, unlink.to_bytes()).unwrap_err().kind, Kind::Retry);
    let inventory = peer::Inventory { sender, store, from: ChunkId(0), entries_max: 10 };
    let page = ask(2, peer::OP_PEER_INVENTORY, inventory.to_bytes()).unwrap();
    let page: peer::InventoryPage = holdfast_base::codec::Decode::from_bytes(&page.meta).unwrap();
    let held = page.entries[0];
    assert_eq!((held.chunk, held.generation, held.state, held.length), (CHUNK, next, 3, 20));
    assert!(page.entries.len() == 1 && !page.more);
}
