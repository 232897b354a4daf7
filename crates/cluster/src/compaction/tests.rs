//! Who is waited for, who is left out, and what is gone back to.

use super::*;
use crate::{ChunkKind, Namespace};
use holdfast_base::ids::{Durability, FileId, Index, NodeId, Tier};

const CHUNK: ChunkId = ChunkId(1);

fn stores(ids: &[u64]) -> Vec<StoreId> {
    ids.iter().copied().map(StoreId).collect()
}

/// A closed chunk of two slots on three stores.
fn closed() -> Namespace {
    let mut ns = Namespace::new(0);
    let replicas = stores(&[2, 6, 7]);
    let (kind, owner, node) = (ChunkKind::Packed, crate::BLOBS, NodeId(1));
    let (tier, durability) = (Tier::Disk, Durability::Durable);
    for command in [
        Command::AllocateCopies {
            kind,
            owner,
            node,
            replicas: replicas.clone(),
            copies: 3,
            tier,
            durability,
        },
        Command::SealChunk { chunk: CHUNK, length: 2, replicas },
        Command::CloseChunk { chunk: CHUNK },
    ] {
        ns.apply(Index(1), &command).unwrap();
    }
    ns
}

fn live() -> BTreeSet<Slot> {
    BTreeSet::from([Slot(0)])
}

fn lost(ids: &[u64]) -> impl Fn(StoreId) -> bool {
    let ids = stores(ids);
    move |store| ids.contains(&store)
}

const GOOD: Made = Made { needles: 1, digest: 7 };

fn answers(said: &[(u64, Result<Made>)]) -> BTreeMap<StoreId, Result<Made>> {
    said.iter().map(|(store, answer)| (StoreId(*store), answer.clone())).collect()
}

/// With nodes 6 and 7 out of reach of node 2 for eight seconds, the chunk was switched to a
/// generation that node 2 had alone. When its disk went, 80 acknowledged files went with it, while
/// 6 and 7 held the generation before whole.
#[test]
fn a_switch_waits_for_every_copy_that_counts_and_is_not_lost() {
    let ns = closed();
    let chunk = ns.chunks().get(CHUNK).unwrap();
    let rewriting = Rewriting::new(chunk, live(), lost(&[])).unwrap();
    assert_eq!(rewriting.stores(), stores(&[2, 6, 7]));
    let cut = || Err(Error::retry("no answer in time"));
    for said in [
        vec![(2, Ok(GOOD)), (6, cut()), (7, cut())],
        vec![(2, Ok(GOOD)), (6, Ok(GOOD)), (7, Err(Error::full("no room")))],
        vec![(2, Ok(GOOD)), (6, Ok(GOOD))],
        vec![],
    ] {
        let verdict = rewriting.judge(&answers(&said));
        let Verdict::Wait(e) = verdict else { panic!("{verdict:?}") };
        assert_eq!(e.kind, Kind::Retry, "{e}");
    }
    let all = answers(&[(2, Ok(GOOD)), (6, Ok(GOOD)), (7, Ok(GOOD))]);
    let Verdict::Switch(Command::Rewrite { replicas, without, .. }) = rewriting.judge(&all) else {
        panic!("all have it")
    };
    assert_eq!((replicas, without), (stores(&[2, 6, 7]), vec![]));
}

#[test]
fn what_is_lost_is_not_waited_for_and_the_entry_says_so() {
    let mut ns = closed();
    let rewriting = Rewriting::new(ns.chunks().get(CHUNK).unwrap(), live(), lost(&[2])).unwrap();
    let Verdict::Switch(switch) = rewriting.judge(&answers(&[(6, Ok(GOOD)), (7, Ok(GOOD))])) else {
        panic!("those that are left have it")
    };
    // Counted meanwhile, and of the generation before: it has to be asked, too.
    let (chunk, generation) = (CHUNK, Generation(0));
    let add = Command::AddReplica { chunk, generation, store: StoreId(4) };
    ns.apply(Index(2), &add).unwrap();
    let refused = ns.apply(Index(3), &switch).unwrap_err();
    assert!(refused.message.contains("has not computed it"), "{refused}");
    let drop = Command::DropReplica { chunk, generation, store: StoreId(4), lost: false };
    ns.apply(Index(4), &drop).unwrap();
    ns.apply(Index(5), &switch).unwrap();
    assert_eq!(ns.chunks().get(CHUNK).unwrap().replicas, stores(&[6, 7]));
    // A single copy is made two before anything else.
    let short = Rewriting::new(ns.chunks().get(CHUNK).unwrap(), live(), lost(&[6])).unwrap_err();
    assert!(short.kind == Kind::Retry && short.message.contains("repair"), "{short}");
}

#[test]
fn damaged_copies_are_named_and_nothing_is_switched() {
    let ns = closed();
    let rewriting = Rewriting::new(ns.chunks().get(CHUNK).unwrap(), live(), lost(&[])).unwrap();
    let few = Made { needles: 0, digest: 3 };
    let said = [(2, Ok(GOOD)), (6, Err(Error::corrupt("a bad block"))), (7, Ok(few))];
    let Verdict::Damaged(bad) = rewriting.judge(&answers(&said)) else { panic!("two are bad") };
    assert_eq!(bad.iter().map(|(store, _)| store.0).collect::<Vec<_>>(), [6, 7]);
    let other = Made { needles: 1, digest: 8 };
    let said = [(2, Ok(GOOD)), (6, Ok(GOOD)), (7, Ok(other))];
    let Verdict::Wait(e) = rewriting.judge(&answers(&said)) else { panic!("they differ") };
    assert_eq!(e.kind, Kind::Corrupt);
}

#[test]
fn live_slots_are_final_only_behind_the_close() {
    let mut ns = Namespace::new(0);
    let allocate = Command::AllocateChunk {
        kind: ChunkKind::Packed,
        owner: FileId(0),
        node: NodeId(1),
        replicas: stores(&[2]),
        tier: Tier::Disk,
        durability: Durability::Durable,
    };
    ns.apply(Index(1), &allocate).unwrap();
    let seal = Command::SealChunk { chunk: CHUNK, length: 2, replicas: stores(&[2]) };
    ns.apply(Index(2), &seal).unwrap();
    let chunk = ns.chunks().get(CHUNK).unwrap();
    assert!(!is_ready(chunk) && Rewriting::new(chunk, live(), lost(&[])).is_err());
}

/// What builds before this one have left: the last generation on one store, the one before on two.
#[test]
fn a_chunk_whose_last_generation_is_lost_goes_on_from_the_one_before() {
    let mut ns = closed();
    let (chunk, generation) = (CHUNK, Generation(1));
    let old =
        Command::SwitchReplicas { chunk, generation, length: 2, digest: 7, replicas: stores(&[2]) };
    ns.apply(Index(2), &old).unwrap();
    ns.apply(Index(3), &Command::Release { before: Index(3), budget: 9 }).unwrap();
    assert_eq!(
        ns.chunks().unlinkable().count(),
        0,
        "the generation before is all that could be gone back to"
    );
    assert_eq!(Rewriting::from_before(ns.chunks().get(CHUNK).unwrap(), lost(&[6, 7])), None);
    let back = Rewriting::from_before(ns.chunks().get(CHUNK).unwrap(), lost(&[2])).unwrap();
    assert_eq!((back.from, back.next), (Generation(0), Generation(2)));
    assert_eq!((back.stores(), back.live.len()), (&stores(&[6, 7])[..], 2));
    // Nobody must switch to it while a copy of the last generation may be there.
    let hasty = Command::Rewrite {
        chunk,
        from: Generation(0),
        generation: Generation(2),
        digest: 7,
        replicas: stores(&[6, 7]),
        without: vec![],
    };
    assert!(ns.apply(Index(4), &hasty).is_err());
    let Verdict::Switch(switch) = back.judge(&answers(&[(6, Ok(GOOD)), (7, Ok(GOOD))])) else {
        panic!("both have it")
    };
    ns.apply(Index(5), &switch).unwrap();
    let known = ns.chunks().get(CHUNK).unwrap();
    assert_eq!((known.generation, &known.replicas), (Generation(2), &stores(&[6, 7])));
    // Its number is never used again, so that what comes back is told from what is made.
    assert!(known.dropped.iter().any(|d| d.store == StoreId(2) && d.generation == Generation(1)));
    let mut bytes = Vec::new();
    ns.snapshot(&mut bytes);
    let mut again = Vec::new();
    Namespace::restore(&bytes).unwrap().snapshot(&mut again);
    assert_eq!(bytes, again);
}
