//! Any sequence of any entries: every command of both views, its fields drawn from what the view
//! holds by then, from what it held before, and from the ends of their ranges, and bytes of it
//! damaged. Applying never panics; a refusal changes nothing; a view restored from a snapshot at
//! any place gives the same answers and the same state from there on.

use holdfast_base::Kind;
use holdfast_base::ids::{
    ChunkId, Cookie, Durability, FileId, Generation, Index, NodeId, Pointer, Slot, StoreId, Tier,
};
use holdfast_cluster::{
    BLOBS, ChunkKind, ChunkState, ClusterCommand, ClusterView, Command, FreeSpace, Location,
    Namespace, NodeKind, NodeState, Outcome, RawExtent, Remainder, StartedStore, StorageClass,
    StoreState,
};
use holdfast_env::trial::Trial;
use holdfast_wire::admin::RecoverySettings;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Mutex;

/// Draws values out of the numbers that a test case is; zeros once they are used up.
#[derive(Clone)]
struct Draw<'a>(&'a [u32]);

impl Draw<'_> {
    fn number(&mut self) -> u64 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        u64::from(*first)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.number() % end.max(1) as u64) as usize
    }

    fn bool(&mut self) -> bool {
        self.below(2) == 1
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// One of those known, now and then another one.
    fn known<T: Copy>(&mut self, known: &[T], other: T) -> T {
        match known.is_empty() || self.below(16) == 0 {
            true => other,
            false => self.one(known),
        }
    }

    fn length(&mut self) -> u64 {
        self.one(&[0, 1, 2, 100, 100, 100, 100, 100, 100, 65_536, u64::from(u32::MAX), u64::MAX])
    }

    fn option<T>(&mut self, value: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.bool().then(|| value(self))
    }

    fn stores(&mut self) -> Vec<StoreId> {
        let count = self.one(&[0, 1, 2, 2, 3, 3, 3, 17]);
        (0..count).map(|_| StoreId(1 + self.below(5) as u64)).collect()
    }

    fn path(&mut self) -> String {
        let depth = self.one(&[1, 1, 1, 2, 2, 3]);
        let name = |draw: &mut Self| match draw.below(38) {
            0 => "a-name-that-is-too-long-for-a-node".to_owned(),
            1 => draw.one(&["", "..", "n\0l", "/"]).to_owned(),
            n => format!("f{n}"),
        };
        (0..depth).map(|_| format!("/{}", name(self))).collect()
    }

    fn class(&mut self) -> Option<StorageClass> {
        let classes = [StorageClass::DEFAULT];
        self.option(|draw| draw.one(&classes))
    }

    fn metadata(&mut self) -> Vec<u8> {
        vec![7; self.one(&[0, 0, 0, 1, 40])]
    }
}

/// What entries may refer to: what there is, mostly, and what there was.
struct Seen<'a> {
    ns: &'a Namespace,
    chunks: &'a [ChunkId],
}

impl Seen<'_> {
    fn chunk(&self, draw: &mut Draw<'_>) -> ChunkId {
        let there: Vec<ChunkId> = self.ns.chunks().iter().map(|chunk| chunk.id).take(8).collect();
        let once = draw.known(self.chunks, ChunkId(u64::MAX));
        draw.known(&there, once)
    }

    /// The replicas that count, or some of them, or any stores.
    fn replicas(&self, draw: &mut Draw<'_>, chunk: ChunkId) -> Vec<StoreId> {
        match (draw.below(8), self.ns.chunks().get(chunk)) {
            (0, _) | (_, None) => draw.stores(),
            (1..4, Some(chunk)) => chunk.replicas.iter().skip(1).copied().collect(),
            (_, Some(chunk)) => chunk.replicas.clone(),
        }
    }

    /// Replicas that count and are not among these.
    fn others(&self, chunk: ChunkId, these: &[StoreId]) -> Vec<StoreId> {
        let all = self.ns.chunks().get(chunk).map_or(&[][..], |chunk| &chunk.replicas);
        all.iter().copied().filter(|store| !these.contains(store)).collect()
    }

    /// That of the chunk, mostly, plus `more`.
    fn generation(&self, draw: &mut Draw<'_>, chunk: ChunkId, more: u32) -> Generation {
        let current = self.ns.chunks().get(chunk).map_or(0, |chunk| chunk.generation.0);
        Generation(draw.known(&[current.saturating_add(more)], draw.clone().one(&[0, 1, u32::MAX])))
    }

    /// What a switch may make current, or an attempt before would.
    fn next(&self, draw: &mut Draw<'_>, chunk: ChunkId) -> Generation {
        let known = self.ns.chunks().get(chunk).filter(|known| known.begun > known.generation);
        match known {
            Some(known) => Generation(draw.known(&[known.begun.0], known.generation.0 + 1)),
            None => self.generation(draw, chunk, 1),
        }
    }

    fn file(&self, draw: &mut Draw<'_>) -> FileId {
        let unclosed: Vec<FileId> = self.ns.unclosed().iter().map(|file| file.file).collect();
        let other = draw.one(&[FileId(0), FileId(1), FileId(2), FileId(u64::MAX)]);
        draw.known(&unclosed, other)
    }

    fn pointer(&self, draw: &mut Draw<'_>, fresh: u64) -> Pointer {
        let chunk = self.chunk(draw);
        let slot = draw.one(&[fresh as u32, fresh as u32, fresh as u32, 0, 3, u32::MAX]);
        Pointer { chunk, slot: Slot(slot), cookie: Cookie(9) }
    }

    fn extents(&self, draw: &mut Draw<'_>) -> Vec<RawExtent> {
        let count = draw.one(&[0, 1, 1, 2]);
        let extent = |draw: &mut Draw<'_>| {
            let chunk = self.chunk(draw);
            let length = self.ns.chunks().get(chunk).map_or(0, |chunk| chunk.length);
            RawExtent { chunk, length: draw.known(&[length], 7) }
        };
        (0..count).map(|_| extent(draw)).collect()
    }

    fn command(&self, draw: &mut Draw<'_>, index: u64) -> Command {
        let store = StoreId(1 + draw.below(5) as u64);
        match draw.below(38) {
            kind @ (0..=8 | 12..=15 | 18..=22) => self.of_names(draw, kind, index),
            kind => self.of_chunks(draw, kind, index, store),
        }
    }

    /// A command that changes names.
    fn of_names(&self, draw: &mut Draw<'_>, kind: usize, index: u64) -> Command {
        let kinds = [NodeKind::Directory, NodeKind::Table, NodeKind::MultiFile];
        let data = [NodeKind::File, NodeKind::File, NodeKind::KeyValue, NodeKind::Directory];
        match kind {
            0 | 1 => Command::MakeDir {
                path: draw.path(),
                kind: draw.one(&kinds),
                mode: draw.one(&[0o755, u16::MAX]),
                mtime: i64::MIN,
                class: draw.class(),
                parents: draw.bool(),
            },
            2..=5 => {
                let (size, location) = match draw.below(16) {
                    0 => (draw.length(), Location::Inline {}),
                    1 => (draw.length(), Location::Extents {}),
                    2 => (draw.length(), Location::Packed { pointer: self.pointer(draw, index) }),
                    3..=8 => (100, Location::Packed { pointer: self.pointer(draw, index) }),
                    _ => (0, Location::Inline {}),
                };
                Command::Put {
                    path: draw.path(),
                    kind: draw.one(&data),
                    mode: 0o644,
                    mtime: i64::MAX,
                    size,
                    crc: 5,
                    class: draw.class(),
                    location,
                    replace: draw.bool(),
                    parents: draw.bool(),
                    metadata: draw.metadata(),
                }
            }
            6 => Command::Symlink { path: draw.path(), target: draw.path(), mtime: 0 },
            7 | 8 => Command::Begin { path: draw.path(), class: draw.class(), mode: 0, mtime: 1 },
            12 | 13 => Command::Close {
                file: self.file(draw),
                path: draw.path(),
                size: draw.length(),
                crc: draw.option(|_| 5),
                extents: self.extents(draw),
                remainder: draw.option(|draw| Remainder {
                    pointer: self.pointer(draw, index),
                    length: draw.length(),
                }),
                mode: 0o600,
                mtime: 3,
                replace: draw.bool(),
                metadata: draw.metadata(),
            },
            14 => Command::Abandon { file: self.file(draw) },
            15 => Command::Salvage {
                file: self.file(draw),
                path: draw.path(),
                extents: self.extents(draw),
            },
            18 => Command::Rename { from: draw.path(), to: draw.path(), replace: draw.bool() },
            19 => Command::Delete { path: draw.path(), recursive: draw.bool() },
            20 => Command::Reclaim { budget: draw.one(&[0, 1, 2, u32::MAX]) },
            21 => Command::SetAttributes {
                path: draw.path(),
                mode: draw.option(|draw| draw.one(&[0o700, u16::MAX])),
                mtime: draw.option(|_| 0),
                metadata: draw.option(Draw::metadata),
            },
            _ => Command::SetClass { path: draw.path(), class: StorageClass::DEFAULT },
        }
    }

    /// A command that changes what is known of chunks.
    fn of_chunks(&self, draw: &mut Draw<'_>, kind: usize, index: u64, store: StoreId) -> Command {
        match kind {
            9 => Command::AllocateChunk {
                kind: draw.one(&[ChunkKind::Raw, ChunkKind::Packed]),
                owner: self.file(draw),
                node: NodeId(1),
                replicas: draw.stores(),
                tier: draw.one(&[Tier::Disk, Tier::Dram]),
                durability: draw.one(&[Durability::Durable, Durability::Memory]),
            },
            10 | 11 => Command::AllocateCopies {
                kind: draw.one(&[ChunkKind::Raw, ChunkKind::Packed, ChunkKind::Packed]),
                owner: draw.one(&[FileId(0), FileId(0), BLOBS, self.file(&mut draw.clone())]),
                node: NodeId(1 + draw.below(3) as u32),
                replicas: draw.stores(),
                copies: draw.one(&[0, 1, 3, 3, 3, u8::MAX]),
                tier: Tier::Disk,
                durability: Durability::Durable,
            },
            16 | 17 => {
                let chunk = self.chunk(draw);
                let (length, replicas) = (draw.length(), self.replicas(draw, chunk));
                Command::SealChunk { chunk, length, replicas }
            }
            23 => Command::CloseChunk { chunk: self.chunk(draw) },
            24 | 32..=37 => self.rewriting(draw),
            25 | 26 => {
                let may: Vec<_> = self.ns.chunks().unlinkable().take(4).collect();
                let chunk = self.chunk(draw);
                let any = (chunk, self.generation(draw, chunk, 0), store);
                let (chunk, generation, store) = draw.known(&may, any);
                Command::Unlink { chunk, generation, store }
            }
            27 => Command::Release {
                before: Index(draw.one(&[0, index / 2, index, u64::MAX])),
                budget: draw.one(&[0, 1, u32::MAX]),
            },
            28 => {
                let chunk = self.chunk(draw);
                let generation = self.generation(draw, chunk, 0);
                Command::AddReplica { chunk, generation, store }
            }
            29 => {
                let (chunk, lost) = (self.chunk(draw), draw.bool());
                let generation = self.generation(draw, chunk, 0);
                Command::DropReplica { chunk, generation, store, lost }
            }
            30 => {
                let next = self.chunks.iter().map(|chunk| chunk.0).max().unwrap_or(0);
                Command::AdoptChunk {
                    chunk: ChunkId(draw.known(&[next + 1, next + 3], draw.clone().length())),
                    kind: draw.one(&[ChunkKind::Raw, ChunkKind::Packed, ChunkKind::Packed]),
                    owner: draw.one(&[FileId(0), FileId(0), BLOBS, self.file(&mut draw.clone())]),
                    node: NodeId(1),
                    generation: Generation(draw.one(&[0, 0, 0, 1, u32::MAX])),
                    length: draw.length(),
                    replicas: draw.stores(),
                    tier: Tier::Disk,
                }
            }
            _ => match draw.bool() {
                true => Command::RaiseCopies {
                    chunks: vec![self.chunk(draw), self.chunk(draw)],
                    copies: draw.one(&[0, 2, 3, u8::MAX]),
                },
                false => Command::FreeChunk { chunk: self.chunk(draw) },
            },
        }
    }

    /// A step of a compaction.
    fn rewriting(&self, draw: &mut Draw<'_>) -> Command {
        let digest = 77;
        let (chunk, length) = (self.chunk(draw), draw.length());
        let generation = self.next(draw, chunk);
        match draw.below(6) {
            4 | 5 => Command::BeginRewrite { chunk },
            0 | 1 => {
                let from = self.generation(draw, chunk, 0);
                let replicas = self.replicas(draw, chunk);
                let without = match draw.below(4) {
                    0 => draw.stores(),
                    _ => self.others(chunk, &replicas),
                };
                Command::Rewrite { chunk, from, generation, digest, replicas, without }
            }
            2 => Command::SwitchGeneration { chunk, generation, length, digest },
            _ => {
                let replicas = self.replicas(draw, chunk);
                Command::SwitchReplicas { chunk, generation, length, digest, replicas }
            }
        }
    }
}

fn bytes_of(ns: &Namespace) -> Vec<u8> {
    let mut out = Vec::new();
    ns.snapshot(&mut out);
    out
}

/// What both hold, what a restore computes anew included.
fn same(ns: &Namespace, other: &Namespace) {
    assert!(bytes_of(ns) == bytes_of(other), "one of them holds something else");
    assert_eq!(ns.totals(), other.totals());
    assert_eq!(ns.usage("/").unwrap(), other.usage("/").unwrap());
    assert_eq!(ns.chunks().count(), other.chunks().count());
    for (chunk, restored) in ns.chunks().iter().zip(other.chunks().iter()) {
        assert_eq!(chunk, restored);
        assert_eq!(ns.chunks().live_slots(chunk.id), other.chunks().live_slots(chunk.id));
        assert_eq!(ns.files_of(chunk.id, 9), other.files_of(chunk.id, 9));
        for store in chunk.replicas.iter().copied() {
            assert!(ns.chunks().on(store).any(|on| on.id == chunk.id));
        }
    }
    assert!(ns.chunks().unlinkable().eq(other.chunks().unlinkable()));
    assert_eq!(ns.chunks().freed(), other.chunks().freed());
    assert_eq!(ns.chunks().short(counts), other.chunks().short(counts));
    let short: BTreeSet<ChunkId> =
        ns.chunks().short(counts).iter().map(|short| short.chunk).collect();
    let wanted = ns.chunks().iter().filter(|chunk| {
        let live = chunk.replicas.iter().filter(|store| counts(**store)).count();
        chunk.is_kept() && chunk.length > 0 && live < chunk.copies as usize
    });
    assert!(short.into_iter().eq(wanted.map(|chunk| chunk.id)));
}

/// Of five stores, one does not count.
fn counts(store: StoreId) -> bool {
    store.0 != 2
}

/// What no accepted entry may do, checked without asking the code that decides.
#[derive(Default)]
struct Witness {
    /// What the first seal decided, and the slots that were ever named.
    sealed: BTreeMap<ChunkId, u64>,
    named: BTreeSet<(ChunkId, u32)>,
    /// What attempts at a rewrite have drawn.
    drawn: BTreeSet<(ChunkId, Generation)>,
    /// The entries that freed what waits for its release, oldest first.
    freed: VecDeque<u64>,
    accepted: BTreeMap<String, u64>,
}

impl Witness {
    /// `before` is the namespace that accepted the command at `index`, as it was before.
    fn look(
        &mut self,
        index: u64,
        command: &Command,
        outcome: &Outcome,
        before: &Namespace,
        ns: &Namespace,
    ) {
        let word = format!("{command:?}");
        let word = word.split(' ').next().unwrap_or_default();
        *self.accepted.entry(word.to_owned()).or_default() += 1;
        let chunk_before = |id: ChunkId| before.chunks().get(id).unwrap();
        match command {
            Command::SealChunk { chunk, .. } => {
                let Outcome::Sealed { length, .. } = outcome else { panic!("{outcome:?}") };
                let first = *self.sealed.entry(*chunk).or_insert(*length);
                let rewritten = chunk_before(*chunk).generation.0 > 0;
                assert!(first == *length || rewritten, "a later seal decided: {command:?}");
            }
            Command::Put { location: Location::Packed { pointer }, .. } => {
                self.names(*pointer, before)
            }
            Command::Close { remainder: Some(Remainder { pointer, .. }), .. } => {
                self.names(*pointer, before)
            }
            Command::Rewrite { chunk, from, generation, replicas, without, .. } => {
                let was = chunk_before(*chunk);
                // The last attempt's, or that of a build which began none.
                let begun = was.begun.max(Generation(was.generation.0 + 1));
                assert_eq!(begun, *generation, "{command:?}");
                let named = |store: &StoreId| replicas.contains(store) || without.contains(store);
                assert!(was.replicas.iter().all(named), "{command:?} of {was:?}");
                assert!(
                    *from == was.generation || was.replicas.iter().all(|s| without.contains(s))
                );
            }
            Command::BeginRewrite { chunk } => {
                if let Outcome::Begun { generation } = outcome {
                    let drawn = self.drawn.insert((*chunk, *generation));
                    assert!(drawn, "{generation} of `{chunk}` was drawn twice");
                }
            }
            Command::AddReplica { chunk, generation, .. } => {
                assert_eq!(chunk_before(*chunk).generation, *generation, "{command:?}");
            }
            Command::DropReplica { chunk, generation, lost, .. } => {
                assert_eq!(chunk_before(*chunk).generation, *generation, "{command:?}");
                let last = ns.chunks().get(*chunk).is_some_and(|chunk| chunk.replicas.is_empty());
                let had = !chunk_before(*chunk).replicas.is_empty();
                assert!(!(last && had) || *lost, "the last replica: {command:?}");
            }
            Command::Unlink { chunk, store, .. } => {
                let was = chunk_before(*chunk);
                let spare = was.state == ChunkState::Doomed
                    || was.replicas.contains(store)
                    || was.replicas.len() >= was.copies as usize;
                assert!(spare, "{command:?} of {was:?}");
            }
            Command::Release { before, budget } => {
                let gone = self.freed.len() - ns.chunks().freed().0;
                assert!(gone <= *budget as usize);
                for freed in self.freed.drain(..gone) {
                    assert!(freed < before.0, "freed by entry {freed}, released by {command:?}");
                }
            }
            _ => {}
        }
        assert!(ns.chunks().freed().0 >= self.freed.len(), "something was released by {command:?}");
        self.freed.resize(ns.chunks().freed().0, index);
        assert_eq!(ns.chunks().freed().1, self.freed.front().map(|index| Index(*index)));
    }

    fn names(&mut self, pointer: Pointer, before: &Namespace) {
        let state = before.chunks().get(pointer.chunk).unwrap().state;
        assert!(matches!(state, ChunkState::Open | ChunkState::Sealed), "{pointer} is {state:?}");
        assert!(self.named.insert((pointer.chunk, pointer.slot.0)), "{pointer} was named before");
    }
}

/// How often each command was accepted, over all cases.
static ACCEPTED: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());

/// Entries of a step: a few numbers that its fields are drawn from.
fn steps(most: usize) -> impl Strategy<Value = Vec<Vec<u32>>> {
    prop::collection::vec(prop::collection::vec(any::<u32>(), 1..24), 1..most)
}

/// Flips something now and then, so that bytes that no build writes are applied as well.
fn damaged(draw: &mut Draw<'_>, mut entry: Vec<u8>) -> Vec<u8> {
    if draw.below(24) == 1 {
        let at = draw.below(entry.len());
        match draw.bool() {
            true => entry[at] ^= 1 << draw.below(8),
            false => entry.truncate(at),
        }
    }
    entry
}

/// A hundred cases, or as many as PROPTEST_CASES says.
fn config() -> ProptestConfig {
    let config = ProptestConfig::default();
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { config.cases } else { 100 };
    ProptestConfig { cases, failure_persistence: None, ..config }
}

proptest! {
    #![proptest_config(config())]

    fn any_entries_of_a_namespace(steps in steps(250), limits in any::<u64>()) {
        let _trial = Trial::drawn(limits).enter();
        let mut ns = Namespace::new(0);
        let mut other = Namespace::new(0);
        let mut chunks = Vec::new();
        let mut witness = Witness::default();
        for (i, numbers) in steps.iter().enumerate() {
            let index = Index(i as u64 + 1);
            let mut draw = Draw(numbers);
            let command = Seen { ns: &ns, chunks: &chunks }.command(&mut draw, index.0);
            let entry = damaged(&mut draw, command.to_entry());
            let before = bytes_of(&ns);
            let result = ns.apply_bytes(index, &entry);
            if let (Ok(outcome), Ok(command)) = (&result, Command::from_entry(&entry)) {
                witness.look(index.0, &command, outcome, &Namespace::restore(&before).unwrap(), &ns);
            }
            prop_assert_eq!(&result, &other.apply_bytes(index, &entry), "{:?}", command);
            match result {
                Ok(Outcome::Chunk { chunk }) => chunks.push(chunk),
                Ok(_) => {}
                Err(e) => {
                    prop_assert!(e.kind != Kind::Bug, "{e}");
                    prop_assert!(bytes_of(&ns) == before, "a refusal changed something: {command:?}");
                }
            }
            if draw.below(12) == 1 {
                other = Namespace::restore(&bytes_of(&ns)).unwrap();
                same(&ns, &other);
            }
        }
        same(&ns, &other);
        let mut all = ACCEPTED.lock().unwrap();
        for (word, times) in witness.accepted {
            *all.entry(word).or_default() += times;
        }
    }

    #[test]
    fn a_cluster_view_takes_any_entries(steps in steps(250), limits in any::<u64>()) {
        let _trial = Trial::drawn(limits).enter();
        let mut view = ClusterView::new();
        let mut other = ClusterView::new();
        for (i, numbers) in steps.iter().enumerate() {
            let index = Index(i as u64 + 1);
            let mut draw = Draw(numbers);
            let command = cluster_command(&mut draw, &view, index.0);
            let entry = damaged(&mut draw, command.to_entry());
            let before = cluster_bytes(&view);
            let result = view.apply_bytes(index, &entry);
            prop_assert_eq!(&result, &other.apply_bytes(index, &entry), "{:?}", command);
            if result.is_ok() {
                let restored = ClusterView::restore(&before).unwrap();
                nothing_comes_back(&command, &restored, &view);
            }
            if let Err(e) = result {
                prop_assert!(e.kind != Kind::Bug, "{e}");
                prop_assert!(cluster_bytes(&view) == before, "a refusal changed something: {command:?}");
            }
            if draw.below(12) == 1 {
                other = ClusterView::restore(&cluster_bytes(&view)).unwrap();
            }
            prop_assert_eq!(view.leader(), other.leader());
        }
        prop_assert!(cluster_bytes(&view) == cluster_bytes(&other));
    }
}

#[test]
fn a_namespace_takes_any_entries_and_accepts_some_of_each() {
    any_entries_of_a_namespace();
    let accepted = ACCEPTED.lock().unwrap();
    assert_eq!(accepted.len(), 27, "commands that were never accepted say nothing: {accepted:?}");
}

fn cluster_bytes(view: &ClusterView) -> Vec<u8> {
    let mut out = Vec::new();
    view.snapshot(&mut out);
    out
}

/// What is gone stays gone, and an earlier process of a node is not heard.
fn nothing_comes_back(command: &ClusterCommand, before: &ClusterView, view: &ClusterView) {
    for (store, _) in before.stores().filter(|(_, info)| info.state == StoreState::Gone) {
        assert_eq!(view.store(store).unwrap().state, StoreState::Gone, "{command:?}");
    }
    if let ClusterCommand::Beat { node, incarnation, .. }
    | ClusterCommand::SetNode { node, incarnation, .. }
    | ClusterCommand::Usage { node, incarnation, .. }
    | ClusterCommand::Resign { node, incarnation } = command
        // Damage may have made another command of it, which answers for itself.
        && before.node(*node).is_some()
    {
        let last = before.node(*node).unwrap().incarnation;
        let changed = cluster_bytes(before) != cluster_bytes(view);
        assert!(!changed || last == *incarnation, "{command:?} after a start at {last}");
    }
    if let ClusterCommand::Start { node, nonce, after, .. } = command
        && let (Some(last), Some(now)) = (before.node(*node), view.node(*node))
        && last.incarnation != now.incarnation
    {
        assert_eq!(last.incarnation, *after, "{command:?}");
        assert_ne!(last.start_nonce, *nonce, "{command:?} is a copy");
    }
}

/// Of builds before, and of this one, with and without stores.
fn start_command(draw: &mut Draw<'_>, node: NodeId, after: Index) -> ClusterCommand {
    let name = |draw: &mut Draw<'_>| draw.one(&["", "a", "h", "\n\u{1b}"]).to_owned();
    let started = |draw: &mut Draw<'_>| StartedStore {
        store: StoreId(u64::from(node.0) * 2 + draw.below(2) as u64),
        tier: Tier::Disk,
        capacity: draw.length(),
        free_mib: 1000,
    };
    let stores: Vec<_> = (0..draw.one(&[0, 1, 1, 2])).map(|_| started(draw)).collect();
    let (host, rack, address) = (name(draw), name(draw), name(draw));
    let nonce = draw.below(6) as u64;
    match draw.below(4) {
        0 => ClusterCommand::StartNode { node, host, rack, address, stores },
        drawn => {
            let stores = (drawn > 1).then_some(stores);
            ClusterCommand::Start { node, nonce, after, host, rack, address, stores }
        }
    }
}

fn cluster_command(draw: &mut Draw<'_>, view: &ClusterView, index: u64) -> ClusterCommand {
    let node = draw.known(&[1, 2, 3, 4, 5, 6, 7, 8, 9].map(NodeId), NodeId(u32::MAX));
    // A beat of an older start comes late.
    let incarnation = view.node(node).map_or(0, |info| info.incarnation.0);
    let incarnation = Index(draw.known(&[incarnation; 4], index.saturating_sub(3)));
    let store = StoreId(u64::from(node.0) * 2 + draw.below(2) as u64);
    let name = |draw: &mut Draw<'_>| draw.one(&["", "a", "h", "\n\u{1b}"]).to_owned();
    let free = FreeSpace { store, free_mib: draw.one(&[0, 64, 1000, u32::MAX]) };
    let free = vec![free; draw.one(&[0, 1, 1, 2])];
    match draw.below(33) {
        0 => ClusterCommand::RegisterNode { node, host: name(draw), address: name(draw) },
        1 => {
            let (tier, capacity) = (draw.one(&[Tier::Disk, Tier::Dram]), draw.length());
            ClusterCommand::RegisterStore { store, node, tier, capacity }
        }
        2 => {
            use StoreState::*;
            ClusterCommand::SetStoreState {
                store,
                state: draw.one(&[Live, ReadOnly, Gone, Absent]),
            }
        }
        3 => ClusterCommand::SetDataFormat { version: draw.one(&[0, 1, 2, u32::MAX]) },
        4 => ClusterCommand::FoundCluster { id: draw.number() },
        5..=7 => ClusterCommand::JoinNode {
            nonce: draw.below(12) as u64,
            host: name(draw),
            rack: name(draw),
            address: name(draw),
        },
        8..=11 | 29..=32 => start_command(draw, node, incarnation),
        12..=18 => ClusterCommand::Beat { node, incarnation, free },
        19 => {
            use NodeState::*;
            let state = draw.one(&[Live, Unavailable, Lost]);
            ClusterCommand::SetNode { node, incarnation, state }
        }
        20 => ClusterCommand::Drain { node, on: draw.bool() },
        21 => ClusterCommand::Usage { node, incarnation, free },
        22 => {
            let rate_max = draw.length();
            let settings = RecoverySettings { rate_max, ..RecoverySettings::default() };
            ClusterCommand::SetRecovery { settings }
        }
        23 => {
            let name = draw.one(&["", "a", "b", "n-3", "a/b"]).to_owned();
            ClusterCommand::BindName { node, name }
        }
        24 => ClusterCommand::ReleaseName { name: draw.one(&["", "a", "b", "n-3"]).to_owned() },
        25 => {
            let (until_s, now_s) = (draw.one(&[i64::MIN, 0, 9, i64::MAX]), draw.one(&[0, 9, 10]));
            let serial = draw.one(&["", "0a", "0b", "x"]).to_owned();
            ClusterCommand::Revoke { serial, until_s, now_s }
        }
        26 => {
            let (until_s, now_s) = (draw.one(&[i64::MIN, 9, i64::MAX]), draw.one(&[0, 9, 10]));
            let name = draw.one(&["", "a", "b", "n-3", "a/b"]).to_owned();
            let rule = draw.one(&["fs:/a:rw", "fs:/b/:r", "log:*:r", "fs", "admin:rw"]);
            let (id, rules) = (draw.one(&[1, 2]), vec![rule.to_owned()]);
            ClusterCommand::PutToken { name, id, until_s, now_s, rules }
        }
        27 => ClusterCommand::RemoveToken { name: draw.one(&["", "a", "b"]).to_owned() },
        _ => ClusterCommand::Resign { node, incarnation },
    }
}
