//! Compaction of one packed chunk on two stores, with names and deletes that come at any moment, a
//! copy to a third store, a store lost, and unlinks tried all the time. The log's part is the
//! production namespace: whatever the actors propose, its `apply` decides. Every copy that counts
//! must hold every live object, in the current generation, and all must hold the same.

use super::checker::{Model, check};
use holdfast_base::ids::{
    ChunkId, Cookie, Durability, FileId, Generation, Index, NodeId, Pointer, Slot, StoreId, Tier,
};
use holdfast_cluster::{ChunkKind, ChunkState, Command, Location, Namespace, NodeKind};
use std::collections::BTreeSet;

const CHUNK: ChunkId = ChunkId(1);
const SLOTS: usize = 2;
const STORES: usize = 3;
/// Of every entry: only their order matters here, and states that differ in numbers alone are one.
const INDEX: Index = Index(1);
const ALL: u8 = (1 << SLOTS) - 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rules {
    Chosen,
    /// The live slots are taken before the chunk is closed.
    PlanBeforeClose,
    /// Every store takes the live slots of its own moment, and nobody compares digests.
    OwnLiveSlots,
    /// The switch takes every replica that counts for one that has the new generation.
    SwitchNamesAll,
    /// A finished copy is entered as whatever generation is current then.
    CopyWithoutGeneration,
}

/// Slots of the generations that a store has a file of.
type Files = [Option<u8>; 2];

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    /// The namespace's snapshot: the same state has the same bytes.
    namespace: Vec<u8>,
    stores: [Files; STORES],
    /// The live slots that the next generation is made of.
    plan: Option<u8>,
    /// To the last store: generation and slots of the file as it was read.
    copying: Option<(usize, u8)>,
    copied: bool,
    lost: Option<usize>,
}

#[derive(Clone, Debug)]
enum Action {
    Name(usize),
    Delete(usize),
    Release,
    Close,
    Plan,
    Compute(usize),
    Switch,
    StartCopy(usize),
    EndCopy,
    Lose(usize),
    Drop(usize),
    Unlink(usize, usize),
}

struct Compaction {
    rules: Rules,
}

fn store(s: usize) -> StoreId {
    StoreId(s as u64 + 1)
}

fn place(store: StoreId) -> usize {
    store.0 as usize - 1
}

fn snapshot(ns: &Namespace) -> Vec<u8> {
    let mut out = Vec::new();
    ns.snapshot(&mut out);
    out
}

fn live(ns: &Namespace) -> u8 {
    ns.live_slots(CHUNK).unwrap_or_default().iter().fold(0, |set, slot| set | 1 << slot.0)
}

impl State {
    fn view(&self) -> Namespace {
        Namespace::restore(&self.namespace).unwrap()
    }

    /// Proposes; `None` for a refusal, which changes nothing.
    fn apply(&mut self, command: &Command) -> Option<()> {
        let mut ns = self.view();
        ns.apply(INDEX, command).ok()?;
        self.namespace = snapshot(&ns);
        Some(())
    }

    /// Replicas that count and were not lost behind the view's back.
    fn counted(&self, ns: &Namespace) -> Vec<usize> {
        let replicas = ns.chunk(CHUNK).map(|chunk| chunk.replicas.clone()).unwrap_or_default();
        replicas.into_iter().map(place).filter(|s| self.lost != Some(*s)).collect()
    }

    fn current(&self, ns: &Namespace) -> usize {
        ns.chunk(CHUNK).map_or(0, |chunk| chunk.generation.0 as usize)
    }
}

impl Compaction {
    fn compute(&self, next: &mut State, s: usize) -> Option<()> {
        let old = next.stores[s][0]?;
        let wanted = match self.rules {
            Rules::OwnLiveSlots => next.plan.map(|_| live(&next.view()))?,
            _ => next.plan?,
        };
        next.stores[s][1] = Some(old & wanted);
        Some(())
    }

    /// Once every copy that is there has the next generation, of one digest.
    fn switch(&self, next: &mut State) -> Option<()> {
        let plan = next.plan?;
        let ns = next.view();
        let made = |s: &usize| match self.rules {
            Rules::OwnLiveSlots => next.stores[*s][1].is_some(),
            _ => next.stores[*s][1] == Some(plan),
        };
        let counted = next.counted(&ns);
        // The last store has a copy of the old generation: it will be given the new one.
        let (named, rest): (Vec<usize>, Vec<usize>) = counted.iter().partition(|s| made(s));
        if named.is_empty() || rest.iter().any(|s| *s != STORES - 1) {
            return None;
        }
        let replicas = match self.rules {
            Rules::SwitchNamesAll => ns.chunk(CHUNK)?.replicas.clone(),
            _ => named.into_iter().map(store).collect(),
        };
        let (chunk, generation) = (CHUNK, Generation(1));
        let digest = plan as u64;
        next.apply(&Command::SwitchReplicas { chunk, generation, length: 2, digest, replicas })
    }

    fn end_copy(&self, next: &mut State) -> Option<()> {
        let (copied, slots) = next.copying.take()?;
        let generation = match self.rules {
            Rules::CopyWithoutGeneration => next.current(&next.view()),
            _ => copied,
        };
        let generation = Generation(generation as u32);
        let target = STORES - 1;
        let mut added = next.clone();
        let add = Command::AddReplica { chunk: CHUNK, generation, store: store(target) };
        // A copy that came too late is thrown away by its store, which no view knows it has.
        if added.apply(&add).is_some() {
            added.stores[target][copied] = Some(slots);
            *next = added;
        }
        Some(())
    }
}

impl Model for Compaction {
    type State = State;
    type Action = Action;

    fn initial(&self) -> State {
        let mut ns = Namespace::new(0);
        let replicas = vec![store(0), store(1)];
        let allocate = Command::AllocateCopies {
            kind: ChunkKind::Packed,
            owner: FileId(0),
            node: NodeId(1),
            replicas: replicas.clone(),
            copies: 2,
            tier: Tier::Disk,
            durability: Durability::Durable,
        };
        ns.apply(INDEX, &allocate).unwrap();
        let seal = Command::SealChunk { chunk: CHUNK, length: SLOTS as u64, replicas };
        ns.apply(INDEX, &seal).unwrap();
        State {
            namespace: snapshot(&ns),
            stores: [[Some(ALL), None], [Some(ALL), None], [None, None]],
            plan: None,
            copying: None,
            copied: false,
            lost: None,
        }
    }

    fn actions(&self, state: &State, out: &mut Vec<Action>) {
        out.extend((0..SLOTS).map(Action::Name));
        out.extend((0..SLOTS).map(Action::Delete));
        out.extend([Action::Release, Action::Close, Action::Plan, Action::Switch, Action::EndCopy]);
        for s in 0..STORES {
            out.extend([Action::Compute(s), Action::Drop(s)]);
            out.extend([0, 1].map(|generation| Action::Unlink(generation, s)));
            if !state.copied && s != STORES - 1 {
                out.push(Action::StartCopy(s));
            }
            if state.lost.is_none() {
                out.push(Action::Lose(s));
            }
        }
    }

    fn next(&self, state: &State, action: &Action) -> Option<State> {
        let mut next = state.clone();
        let ns = || state.view();
        match *action {
            Action::Name(slot) => {
                let pointer = Pointer { chunk: CHUNK, slot: Slot(slot as u32), cookie: Cookie(0) };
                next.apply(&Command::Put {
                    path: format!("/{slot}"),
                    kind: NodeKind::File,
                    mode: 0,
                    mtime: 0,
                    size: 1,
                    crc: 0,
                    class: None,
                    location: Location::Packed { pointer },
                    replace: false,
                    parents: false,
                    metadata: Vec::new(),
                })?;
            }
            Action::Delete(slot) => {
                next.apply(&Command::Delete { path: format!("/{slot}"), recursive: false })?;
            }
            Action::Release => {
                ns().freed().1?;
                next.apply(&Command::Release { before: Index(INDEX.0 + 1), budget: 9 })?;
            }
            Action::Close => {
                let open = ns().chunk(CHUNK).is_some_and(|c| c.state == ChunkState::Sealed);
                open.then_some(())?;
                next.apply(&Command::CloseChunk { chunk: CHUNK })?;
            }
            Action::Plan => {
                let ns = ns();
                let chunk = ns.chunk(CHUNK).filter(|c| c.generation.0 == 0 && c.is_kept())?;
                let early = self.rules == Rules::PlanBeforeClose;
                let ready = chunk.state == ChunkState::Closed || early && live(&ns) != 0;
                (ready && next.plan.is_none()).then_some(())?;
                next.plan = Some(live(&ns));
            }
            Action::Compute(s) => self.compute(&mut next, s)?,
            Action::Switch => self.switch(&mut next)?,
            Action::StartCopy(s) => {
                let generation = state.current(&ns());
                next.copying = Some((generation, state.stores[s][generation]?));
                next.copied = true;
            }
            Action::EndCopy => self.end_copy(&mut next)?,
            Action::Lose(s) => {
                next.stores[s] = [None, None];
                next.lost = Some(s);
            }
            Action::Drop(s) => {
                (state.lost == Some(s)).then_some(())?;
                let generation = Generation(state.current(&ns()) as u32);
                let (chunk, store) = (CHUNK, store(s));
                next.apply(&Command::DropReplica { chunk, generation, store, lost: false })?;
            }
            Action::Unlink(generation, s) => {
                let (chunk, store) = (CHUNK, store(s));
                let unlink =
                    Command::Unlink { chunk, generation: Generation(generation as u32), store };
                next.apply(&unlink)?;
                next.stores[s][generation] = None;
            }
        }
        (next != *state).then_some(next)
    }

    fn wrong(&self, state: &State) -> Option<String> {
        let ns = state.view();
        ns.chunk(CHUNK)?;
        let (live, generation) = (live(&ns), state.current(&ns));
        let mut first = None;
        for s in state.counted(&ns) {
            let name = store(s);
            let Some(slots) = state.stores[s][generation] else {
                return Some(format!("`{name}` counts, and has no file of g{generation}"));
            };
            if slots & live != live {
                return Some(format!(
                    "`{name}` counts, and lacks live objects: {slots:b} {live:b}"
                ));
            }
            if *first.get_or_insert(slots) != slots {
                return Some("copies of one generation differ".to_owned());
            }
        }
        let none = first.is_none() && live != 0;
        none.then(|| "no copy is left of what is named".to_owned())
    }

    fn shows(&self, state: &State, out: &mut BTreeSet<&'static str>) {
        let ns = state.view();
        let Some(chunk) = ns.chunk(CHUNK) else {
            out.insert("everything was unlinked");
            return;
        };
        if chunk.generation.0 == 1 && chunk.replicas.contains(&store(2)) {
            out.insert("the new generation was copied");
        }
        if chunk.generation.0 == 1 && chunk.old.iter().any(|old| old.replicas.len() == 3) {
            out.insert("a copy of the old generation met the switch");
        }
        if chunk.generation.0 == 1 && chunk.old.is_empty() && chunk.replicas.len() == 2 {
            out.insert("the old generation went");
        }
    }
}

#[test]
fn every_copy_that_counts_holds_every_live_object() {
    let report = check("compaction", &Compaction { rules: Rules::Chosen });
    assert!(report.wrong.is_none(), "{:?}", report.wrong);
    let points = [
        "a copy of the old generation met the switch",
        "everything was unlinked",
        "the new generation was copied",
        "the old generation went",
    ];
    assert!(report.seen.iter().eq(points.iter()), "{:?}", report.seen);
}

#[test]
fn each_rule_of_compaction_is_needed() {
    for rules in [
        Rules::PlanBeforeClose,
        Rules::OwnLiveSlots,
        Rules::SwitchNamesAll,
        Rules::CopyWithoutGeneration,
    ] {
        let report = check(&format!("compaction, {rules:?}"), &Compaction { rules });
        assert!(report.wrong.is_some(), "{rules:?} was not found");
    }
}
