//! Who is waited for, who is left out, and what is gone back to.

use super::*;
use crate::{ChunkKind, Namespace, Outcome};
use holdfast_base::ids::{Durability, FileId, Index, NodeId, Tier};

const CHUNK: ChunkId = ChunkId(1);

fn stores(ids: &[u64]) -> Vec<StoreId> {
    ids.iter().copied().map(StoreId).collect()
}

/// What the first attempt at [`begun`] draws.
const FIRST: Generation = Generation(2);

/// A chunk of two slots on three stores.
fn sealed() -> Namespace {
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
    ] {
        ns.apply(Index(1), &command).unwrap();
    }
    ns
}

/// As builds before attempts left it.
fn closed() -> Namespace {
    let mut ns = sealed();
    ns.apply(Index(1), &Command::CloseChunk { chunk: CHUNK }).unwrap();
    ns
}

/// An attempt at its rewrite has begun.
fn begun() -> Namespace {
    let mut ns = sealed();
    assert_eq!(begin(&mut ns, 1), FIRST);
    ns
}

fn live() -> BTreeSet<Slot> {
    BTreeSet::from([Slot(0)])
}

fn lost(ids: &[u64]) -> impl Fn(StoreId) -> bool {
    let ids = stores(ids);
    move |store| ids.contains(&store)
}

/// Another attempt begins: what it draws.
fn begin(ns: &mut Namespace, index: u64) -> Generation {
    match ns.apply(Index(index), &Command::BeginRewrite { chunk: CHUNK }) {
        Ok(Outcome::Begun { generation }) => generation,
        other => panic!("{other:?}"),
    }
}

fn attempt(ns: &Namespace, next: Generation, gone: &[u64]) -> Result<Rewriting> {
    Rewriting::new(ns.chunks().get(CHUNK).unwrap(), next, live(), lost(gone))
}

/// What the log is asked for when all have computed the same.
fn agreed(rewriting: &Rewriting, made: Made) -> Command {
    let said = rewriting.stores().iter().map(|store| (store.0, Ok(made))).collect::<Vec<_>>();
    match rewriting.judge(&answers(&said)) {
        Verdict::Switch(switch) => switch,
        other => panic!("{other:?}"),
    }
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
    let ns = begun();
    let chunk = ns.chunks().get(CHUNK).unwrap();
    let rewriting = Rewriting::new(chunk, FIRST, live(), lost(&[])).unwrap();
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
    let mut ns = begun();
    let rewriting = attempt(&ns, FIRST, &[2]).unwrap();
    let Verdict::Switch(switch) = rewriting.judge(&answers(&[(6, Ok(GOOD)), (7, Ok(GOOD))])) else {
        panic!("those that are left have it")
    };
    // Counted meanwhile, and of the generation before: it has to be asked, too.
    let (chunk, generation) = (CHUNK, Generation(0));
    let add = Command::AddReplica { chunk, generation, store: StoreId(4) };
    ns.apply(Index(2), &add).unwrap();
    let refused = ns.apply(Index(3), &switch).unwrap_err();
    assert!(refused.message.contains("has not computed it"), "{refused}");
    // A node's health named this, though nothing was wrong: the next attempt asks all four.
    let is_overtaken = |ns: &Namespace| rewriting.is_overtaken(ns.chunks().get(CHUNK).unwrap());
    assert!(is_overtaken(&ns));
    let drop = Command::DropReplica { chunk, generation, store: StoreId(4), lost: false };
    ns.apply(Index(4), &drop).unwrap();
    assert!(!is_overtaken(&ns));
    ns.apply(Index(5), &switch).unwrap();
    assert!(is_overtaken(&ns), "what is done is not done again");
    assert_eq!(ns.chunks().get(CHUNK).unwrap().replicas, stores(&[6, 7]));
    // A single copy is made two before anything else.
    let next = begin(&mut ns, 6);
    let short = attempt(&ns, next, &[6]).unwrap_err();
    assert!(short.kind == Kind::Retry && short.message.contains("repair"), "{short}");
}

#[test]
fn damaged_copies_are_named_and_nothing_is_switched() {
    let ns = begun();
    let rewriting = attempt(&ns, FIRST, &[]).unwrap();
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
    assert!(!is_ready(chunk) && Rewriting::new(chunk, FIRST, live(), lost(&[])).is_err());
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
    assert_eq!(Rewriting::way_back(ns.chunks().get(CHUNK).unwrap(), lost(&[6, 7])), None);
    let next = begin(&mut ns, 4);
    assert_eq!(next, Generation(3), "the one behind the current one was never asked for");
    let known = ns.chunks().get(CHUNK).unwrap();
    let back = Rewriting::from_before(known, next, lost(&[2])).unwrap().unwrap();
    assert_eq!((back.from, back.next), (Generation(0), next));
    assert_eq!((back.stores(), back.live.len()), (&stores(&[6, 7])[..], 2));
    // Nobody must switch to it while a copy of the last generation may be there.
    let hasty = Command::Rewrite {
        chunk,
        from: Generation(0),
        generation: next,
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
    assert_eq!((known.generation, &known.replicas), (next, &stores(&[6, 7])));
    // Its number is never used again, so that what comes back is told from what is made.
    assert!(known.dropped.iter().any(|d| d.store == StoreId(2) && d.generation == Generation(1)));
    let mut bytes = Vec::new();
    ns.snapshot(&mut bytes);
    let mut again = Vec::new();
    Namespace::restore(&bytes).unwrap().snapshot(&mut again);
    assert_eq!(bytes, again);
}

/// A planner was killed while the log had its entry and it no answer. Its next life planned anew,
/// with fewer live slots, under the same number, and had the stores compute that; then the first
/// entry came, and the chunk switched to files of which some held the one plan and some the other.
#[test]
fn an_entry_of_an_attempt_before_switches_nothing() {
    let mut ns = begun();
    let late = agreed(&attempt(&ns, FIRST, &[]).unwrap(), GOOD);
    let second = begin(&mut ns, 3);
    assert!(second > FIRST, "each attempt has a number of its own");
    let refused = ns.apply(Index(4), &late).unwrap_err();
    assert!(refused.message.contains("began since"), "{refused}");
    // Nor does anybody go on with it.
    let over = attempt(&ns, FIRST, &[]).unwrap_err();
    assert!(over.kind == Kind::Retry && over.message.contains("began since"), "{over}");
    let few = Made { needles: 1, digest: 9 };
    let switch = agreed(&attempt(&ns, second, &[]).unwrap(), few);
    ns.apply(Index(5), &switch).unwrap();
    let known = ns.chunks().get(CHUNK).unwrap();
    assert_eq!((known.generation, known.begun, known.digest), (second, second, few.digest));
    // Both entries once more, and one as builds before would write it: all come too late.
    let number = |generation| match late.clone() {
        Command::Rewrite { chunk, from, digest, replicas, without, .. } => {
            Command::Rewrite { chunk, from, generation, digest, replicas, without }
        }
        other => panic!("{other:?}"),
    };
    for late in [late.clone(), switch, number(Generation(1))] {
        assert!(ns.apply(Index(6), &late).is_err(), "{late:?}");
    }
}

/// The attempt before came to its switch, and nobody heard of it: what was begun since goes on from
/// there.
#[test]
fn a_switch_in_front_of_the_next_attempt_counts() {
    let mut ns = begun();
    let first = agreed(&attempt(&ns, FIRST, &[]).unwrap(), GOOD);
    ns.apply(Index(2), &first).unwrap();
    let second = begin(&mut ns, 3);
    let rewriting = attempt(&ns, second, &[]).unwrap();
    assert_eq!((rewriting.from, rewriting.next), (FIRST, second));
    assert!(ns.apply(Index(4), &first).is_err(), "it was applied");
    ns.apply(Index(5), &agreed(&rewriting, GOOD)).unwrap();
    assert_eq!(ns.chunks().get(CHUNK).unwrap().generation, second);
}

/// A build before computed the next generation, and perhaps proposed it, when this one took over.
#[test]
fn what_builds_before_have_begun_is_another_number() {
    let mut ns = closed();
    let old = Command::Rewrite {
        chunk: CHUNK,
        from: Generation(0),
        generation: Generation(1),
        digest: 7,
        replicas: stores(&[2, 6, 7]),
        without: vec![],
    };
    let mut taken = closed();
    taken.apply(Index(2), &old).unwrap();
    assert_eq!(taken.chunks().get(CHUNK).unwrap().generation, Generation(1));
    assert_eq!(begin(&mut ns, 2), FIRST, "its number is passed over");
    assert!(ns.apply(Index(3), &old).is_err(), "this attempt counts");
}

#[test]
fn only_what_can_never_be_switched_to_is_given_up() {
    let mut ns = begun();
    let given_up = |ns: &Namespace, current, at| {
        is_given_up(ns.chunks().get(CHUNK).unwrap(), Generation(current), Generation(at))
    };
    assert!(!given_up(&ns, 0, 2), "it may be switched to");
    assert!(given_up(&ns, 0, 1), "a build before tried that");
    let second = begin(&mut ns, 2);
    assert!(given_up(&ns, 0, 2) && !given_up(&ns, 0, second.0));
    let switch = agreed(&attempt(&ns, second, &[]).unwrap(), GOOD);
    ns.apply(Index(3), &switch).unwrap();
    assert!(given_up(&ns, 0, 2), "a store that has not followed the switch");
    assert!(!given_up(&ns, 0, second.0) && !given_up(&ns, second.0, 0), "named, or was");
    let third = begin(&mut ns, 4);
    assert!(!given_up(&ns, 0, second.0) && !given_up(&ns, second.0, third.0));
}
