//! Directories that move with their content: the entries of a move searched state by state over the production
//! views, with deletes, an overwrite, a compaction and people who change their mind; trees of any form, cut
//! into parts of any size; and the forms of what is written down.

use holdfast_base::codec::Encode;
use holdfast_base::ids::{
    ChunkId, Cookie, Durability, FileId, Index, NodeId, Pointer, Slot, StoreId, Tier,
};
use holdfast_base::{Error, Kind};
use holdfast_cluster::moves::{Stamp, Unfinished, unfinished};
use holdfast_cluster::names::{Content, PART_BYTES, PartNode};
use holdfast_cluster::{
    AllShards, ChunkKind, Command, Debt, Location, Namespace, NodeKind, Outcome, RawExtent,
    Remainder, StorageClass,
};
use holdfast_env::trial::Trial;
use holdfast_env::{Rng, SeededRng};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

fn make(path: &str) -> Command {
    let (kind, mode, mtime, class) = (NodeKind::Directory, 0o750, 7, None);
    Command::MakeDir { path: path.into(), kind, mode, mtime, class, parents: false }
}

fn put_at(path: &str, pointer: Option<Pointer>) -> Command {
    let (location, size) = match pointer {
        Some(pointer) => (Location::Packed { pointer }, BYTES),
        None => (Location::Inline {}, 0),
    };
    Command::Put {
        path: path.into(),
        kind: NodeKind::File,
        mode: 0o644,
        mtime: 1,
        size,
        crc: 9,
        class: None,
        location,
        replace: true,
        parents: false,
        metadata: b"meta".to_vec(),
    }
}

/// Of each packed object here.
const BYTES: u64 = 100;

fn freeze(to: u16) -> Command {
    Command::Freeze { dir: "/d".into(), to }
}

fn copy(to: u16) -> Command {
    Command::Copy { dir: "/d".into(), to }
}

fn delete(path: &str) -> Command {
    Command::Delete { path: path.into(), recursive: true }
}

fn snapshot(view: &Namespace) -> Vec<u8> {
    let mut bytes = Vec::new();
    view.snapshot(&mut bytes);
    bytes
}

/// Several shards, each with the index of its next entry; and the slots that the bytes of packed chunks have.
#[derive(Clone)]
struct World {
    shards: Vec<(u64, Vec<u8>)>,
    there: BTreeMap<ChunkId, BTreeSet<Slot>>,
    /// The packed chunk that each shard writes, and its next slot.
    open: Vec<(ChunkId, u32)>,
}

impl World {
    fn new(shards: u16) -> World {
        let views = (0..shards).map(|shard| (1, snapshot(&Namespace::new(shard))));
        let mut world = World { shards: views.collect(), there: BTreeMap::new(), open: Vec::new() };
        for shard in 1..shards {
            world.apply(0, &Command::AddShard { shard }).unwrap();
        }
        for shard in 0..shards {
            let chunk = world.allocate(shard, ChunkKind::Packed, FileId(0));
            world.open.push((chunk, 0));
        }
        world.apply(0, &make("/d")).unwrap();
        world
    }

    fn allocate(&mut self, shard: u16, kind: ChunkKind, owner: FileId) -> ChunkId {
        let (tier, durability) = (Tier::Disk, Durability::Durable);
        let (node, replicas) = (NodeId(1), vec![StoreId(1)]);
        let allocate = Command::AllocateChunk { kind, owner, node, replicas, tier, durability };
        match self.apply(shard, &allocate) {
            Ok(Outcome::Chunk { chunk }) => chunk,
            other => panic!("{other:?}"),
        }
    }

    /// The next object of a shard's packed chunk: its bytes are there before its name.
    fn pack(&mut self, shard: u16) -> Pointer {
        let (chunk, next) = &mut self.open[shard as usize];
        let pointer = Pointer { chunk: *chunk, slot: Slot(*next), cookie: Cookie(5) };
        *next += 1;
        self.there.entry(pointer.chunk).or_default().insert(pointer.slot);
        pointer
    }

    fn view(&self, shard: u16) -> Namespace {
        Namespace::restore(&self.shards[shard as usize].1).unwrap()
    }

    fn views(&self) -> Vec<Namespace> {
        (0..self.shards.len() as u16).map(|shard| self.view(shard)).collect()
    }

    /// As a gateway proposes it that has the newest map.
    fn apply(&mut self, shard: u16, command: &Command) -> Result<Outcome, Error> {
        let entry = command.to_entry_by(self.view(0).borders());
        let mut view = self.view(shard);
        let (next, bytes) = &mut self.shards[shard as usize];
        let outcome = view.apply_bytes(Index(*next), &entry);
        let after = snapshot(&view);
        if outcome.is_err() {
            assert!(*bytes == after, "a refused entry changes nothing: {command:?}");
        }
        // What changes nothing takes no index here: fewer states differ by nothing but those.
        *next += u64::from(*bytes != after);
        *bytes = after;
        outcome
    }

    fn with<T>(&self, read: impl FnOnce(&AllShards<'_>) -> T) -> T {
        let views = self.views();
        let others: Vec<_> = views[1..].iter().map(Some).collect();
        read(&AllShards::new(&views[0], &others))
    }

    fn unfinished(&self) -> Vec<Unfinished> {
        self.with(unfinished)
    }

    /// What the leader does, until nothing is left.
    fn finish(&mut self) {
        for _ in 0..10_000 {
            let left = self.unfinished();
            if left.is_empty() {
                return;
            }
            for left in left {
                // One before it may have been the same thing's.
                if let Err(e) = self.apply(left.shard, &left.command) {
                    assert_eq!(e.kind, Kind::Retry, "{left:?}: {e}");
                }
            }
        }
        panic!("it never ends: {:?}", self.unfinished());
    }

    fn moved(&mut self, to: u16, begin: fn(u16) -> Command) {
        let keeper = self.view(0).shard_at("/d");
        self.apply(keeper, &begin(to)).unwrap();
        self.finish();
        assert_eq!(self.view(0).shard_at("/d"), to);
    }

    /// A packed chunk is rewritten with what its shard says is alive: the rest is gone.
    fn compact(&mut self, shard: u16) -> bool {
        let chunk = self.open[shard as usize].0;
        if self.view(shard).chunks().get(chunk).is_none() {
            return false;
        }
        let live = self.view(shard).chunks().live_slots(chunk).unwrap();
        let length = u64::from(self.open[shard as usize].1);
        let seal = Command::SealChunk { chunk, length, replicas: vec![StoreId(1)] };
        self.apply(shard, &seal).unwrap();
        let Ok(Outcome::Begun { generation }) = self.apply(shard, &Command::BeginRewrite { chunk })
        else {
            return false;
        };
        let from = self.view(shard).chunks().get(chunk).unwrap().generation;
        let (digest, replicas, without) = (1, vec![StoreId(1)], Vec::new());
        let rewrite = Command::Rewrite { chunk, from, generation, digest, replicas, without };
        self.apply(shard, &rewrite).unwrap();
        self.there.insert(chunk, live.into_iter().collect());
        // What is written from now on is in another.
        self.open[shard as usize] = (self.allocate(shard, ChunkKind::Packed, FileId(0)), 0);
        true
    }

    /// Every name that a reader may be told of, with where its bytes are.
    fn names(&self) -> BTreeMap<String, Pointer> {
        let mut names = BTreeMap::new();
        self.with(|all| {
            let mut dirs = vec![String::new()];
            while let Some(dir) = dirs.pop() {
                let shown = if dir.is_empty() { "/" } else { &dir };
                let Ok(page) = all.list(shown, None, 1000) else { continue };
                for entry in page.entries {
                    let path = format!("{dir}/{}", entry.name);
                    if let Location::Packed { pointer } = entry.info.location {
                        names.insert(path, pointer);
                    } else if entry.info.kind.is_container() {
                        dirs.push(path);
                    }
                }
            }
        });
        names
    }

    /// No slot that a name points to is dead in its shard, or missing in its chunk.
    fn check_bytes(&self) {
        for (path, Pointer { chunk, slot, .. }) in self.names() {
            let live = self.view(chunk.shard()).chunks().live_slots(chunk).unwrap_or_default();
            assert!(live.contains(&slot), "`{path}`: slot {slot} of {chunk} is dead");
            assert!(self.there[&chunk].contains(&slot), "`{path}`: slot {slot} is not there");
        }
    }

    /// Behind all graces, what is alive is what is named, and what is held is what is named elsewhere.
    fn check_nothing_left(&mut self) {
        self.finish();
        for shard in 0..self.shards.len() as u16 {
            let (before, budget) = (Index(1 << 40), 1000);
            self.apply(shard, &Command::Release { before, budget }).unwrap();
        }
        let names = self.names();
        for (shard, view) in self.views().iter().enumerate() {
            let here = |pointer: &&Pointer| pointer.chunk.shard() as usize == shard;
            let named = names.values().filter(here).count();
            let live: u32 = view.chunks().iter().map(|chunk| chunk.live_objects).sum();
            assert_eq!(live as usize, named, "shard {shard}: alive, and named");
            let keeper = |path: &str| self.view(0).shard_at(path) as usize;
            let away = names.iter().filter(|(path, p)| here(p) && keeper(path) != shard);
            assert_eq!(view.chunks().held().0, away.count(), "shard {shard}: held");
            assert_eq!(view.chunks().owing(), 0);
        }
    }
}

/// Who takes a name below `/d`, from whoever knows of its last move.
fn takes(view: &Namespace) -> bool {
    let borders = view.borders();
    let given = borders.given().next().map(|(_, given)| given.number);
    let numbers = vec![given.unwrap_or(borders.number_of("/d"))];
    let command = Command::Behind { numbers, command: put_at("/d/probe", None).to_entry() };
    let mut view = Namespace::restore(&snapshot(view)).unwrap();
    view.apply(Index(1 << 40), &command).is_ok()
}

#[derive(Clone)]
struct State {
    world: World,
    /// Entries that may come (again): of leaders that were deposed, or that the log shows twice.
    late: Vec<(u16, Command)>,
    /// Where the bytes of `/d/x` are, if it exists.
    x: Option<Pointer>,
    /// A shard's view as a leader has it that is behind.
    behind: Option<(u16, Vec<u8>)>,
}

type Key =
    (Vec<Vec<u8>>, Vec<(u16, Vec<u8>)>, Option<Slot>, Vec<BTreeSet<Slot>>, Option<(u16, Vec<u8>)>);

impl State {
    fn new() -> State {
        let mut world = World::new(2);
        let x = world.pack(0);
        world.apply(0, &put_at("/d/x", Some(x))).unwrap();
        let kept = world.pack(0);
        world.apply(0, &put_at("/kept", Some(kept))).unwrap();
        State { world, late: Vec::new(), x: Some(x), behind: None }
    }

    fn key(&self) -> Key {
        let bytes = self.world.shards.iter().map(|(_, bytes)| bytes.clone()).collect();
        let mut late: Vec<_> =
            self.late.iter().map(|(shard, command)| (*shard, command.to_bytes())).collect();
        late.sort();
        let there = self.world.there.values().cloned().collect();
        (bytes, late, self.x.map(|x| x.slot), there, self.behind.clone())
    }

    fn check(&self) {
        let takers = self.world.views().iter().filter(|view| takes(view)).count();
        assert!(takers <= 1, "{takers} shards take names of it");
        self.world.check_bytes();
        for view in self.world.views() {
            let following = view.borders().moves().following("d");
            assert!(following.is_none_or(|f| !f.is_broken), "each step fits");
        }
        let seen = self.world.with(|all| all.lookup("/d/x"));
        if let Ok(found) = seen {
            let pointer = found.map(|info| info.location);
            let expected = self.x.map(|pointer| Location::Packed { pointer });
            assert_eq!(pointer, expected, "what is read is what was written");
        }
        // From everywhere it comes to an end, on one side, with all that was there.
        let mut world = self.world.clone();
        world.check_nothing_left();
        assert!(world.views().iter().any(takes), "every move comes to an end");
        let names = world.names();
        assert_eq!(names.get("/d/x").copied(), self.x, "names before and after are the same");
        assert!(names.contains_key("/kept"));
        world.check_bytes();
        let mut world = world.clone();
        for shard in 0..2 {
            world.compact(shard);
        }
        world.check_bytes();
    }

    /// What is said of a directory's next entry before it is written is what it comes to.
    fn check_foretold(&self, left: &Unfinished) {
        use Command::{Arrive, Depart, Go, Own, Step, Take};
        let of_directory = matches!(
            left.command,
            Take { .. } | Depart { .. } | Arrive { .. } | Own { .. } | Step { .. } | Go { .. }
        );
        if !of_directory {
            return;
        }
        let said = self.world.with(|all| left.check(all)).map_err(|e| e.message);
        let came = self.world.clone().apply(left.shard, &left.command).map(drop);
        match (&said, &came) {
            (Err(said), Err(came)) => assert!(came.message.ends_with(said), "{said} {came}"),
            _ => assert_eq!(said.is_ok(), came.is_ok(), "{left:?}: {said:?} {came:?}"),
        }
    }

    /// What a leader does whose view of one shard is behind.
    fn led_from_behind(&self) -> Vec<State> {
        let Some((shard, bytes)) = &self.behind else { return Vec::new() };
        let mut seen = self.world.clone();
        seen.shards[*shard as usize].1 = bytes.clone();
        let led = |left: Unfinished| {
            let mut state = self.clone();
            state.world.apply(left.shard, &left.command).is_ok().then_some(state)
        };
        seen.unfinished().into_iter().filter_map(led).collect()
    }

    /// Everything that may happen next.
    fn next(&self) -> Vec<State> {
        let mut all = Vec::new();
        let mut push = |change: &dyn Fn(&mut State) -> bool| {
            let mut state = self.clone();
            if change(&mut state) {
                all.push(state);
            }
        };
        for shard in 0..2 {
            for to in 0..2 {
                push(&|state| state.world.apply(shard, &freeze(to)).is_ok());
                push(&|state| state.world.apply(shard, &copy(to)).is_ok());
            }
            push(&|state| {
                state.behind = Some((shard, state.world.shards[shard as usize].1.clone()));
                true
            });
            push(&|state| {
                let is_done = state.world.apply(shard, &delete("/d/x")).is_ok();
                state.x = state.x.filter(|_| !is_done);
                is_done
            });
            push(&|state| {
                let pointer = state.world.pack(shard);
                let put = put_at("/d/x", Some(pointer));
                let is_done = state.world.apply(shard, &put).is_ok();
                if is_done {
                    state.x = Some(pointer);
                }
                is_done
            });
            push(&|state| {
                let (before, budget) = (Index(1 << 40), 1);
                state.world.apply(shard, &Command::Release { before, budget }).is_ok()
            });
        }
        push(&|state| state.world.compact(0));
        for left in self.world.unfinished() {
            self.check_foretold(&left);
            for stays in [false, true] {
                push(&|state| {
                    let command = (left.shard, left.command.clone());
                    if stays && state.late.len() == 2 {
                        state.late.remove(0);
                    }
                    if stays {
                        state.late.push(command);
                    }
                    // Or it is lost, for now.
                    true
                });
                push(&|state| {
                    let _ = state.world.apply(left.shard, &left.command);
                    if stays {
                        state.late.push((left.shard, left.command.clone()));
                    }
                    state.late.len() < 3
                });
            }
        }
        for at in 0..self.late.len() {
            push(&|state| {
                let (shard, command) = state.late.remove(at);
                match state.world.apply(shard, &command) {
                    Ok(_) => true,
                    Err(e) => {
                        assert_eq!(e.kind, Kind::Retry, "{command:?}: {e}");
                        false
                    }
                }
            });
        }
        all.extend(self.led_from_behind());
        all
    }
}

fn search(start: State, states_max: usize) -> usize {
    let mut seen = BTreeSet::from([start.key()]);
    let mut todo = VecDeque::from([start]);
    while let Some(state) = todo.pop_front() {
        state.check();
        if seen.len() >= states_max {
            continue;
        }
        for next in state.next() {
            if seen.insert(next.key()) {
                todo.push_back(next);
            }
        }
    }
    seen.len()
}

/// How many states are looked at from each start: more with a longer run.
fn states_max() -> usize {
    let given = std::env::var("HOLDFAST_MOVE_STATES").ok();
    given.and_then(|given| given.parse().ok()).unwrap_or(60)
}

/// From each step of a move there, of one back, and of what follows when the file is deleted or replaced:
/// whatever may happen in the next steps, entry by entry, in any order, late and twice.
#[test]
fn a_move_that_is_killed_anywhere_ends_on_one_side_with_all_it_had() {
    let _trial = Trial::new().with(&PART_BYTES, 1).enter();
    search_from_each_step_of(freeze);
}

/// The same of a directory that is copied while it changes, by leaders of which one may be behind.
#[test]
fn a_copy_that_is_killed_anywhere_ends_on_one_side_with_all_it_had() {
    let _trial = Trial::new().with(&PART_BYTES, 1).enter();
    search_from_each_step_of(copy);
}

fn search_from_each_step_of(begin: fn(u16) -> Command) {
    let mut starts = vec![State::new()];
    let mut state = State::new();
    for to in [1, 0] {
        let keeper = state.world.view(0).shard_at("/d");
        state.world.apply(keeper, &begin(to)).unwrap();
        while let Some(left) = state.world.unfinished().first().cloned() {
            starts.push(state.clone());
            state.world.apply(left.shard, &left.command).unwrap();
        }
        starts.push(state.clone());
        let mut deleted = state.clone();
        deleted.world.apply(to, &delete("/d/x")).unwrap();
        deleted.x = None;
        starts.push(deleted.clone());
        while let Some(left) = deleted.world.unfinished().first().cloned() {
            deleted.world.apply(left.shard, &left.command).unwrap();
            starts.push(deleted.clone());
        }
    }
    assert!(starts.len() > 12, "{}", starts.len());
    let states: usize = starts.into_iter().map(|start| search(start, states_max())).sum();
    assert!(states > 600, "{states}");
}

/// Long ways through the same: what a search from near states does not reach.
#[test]
fn on_any_long_way_no_byte_of_a_name_dies() {
    let _trial = Trial::new().with(&PART_BYTES, 1).enter();
    let mut moves = 0;
    for seed in 0..20 {
        let rng = SeededRng::new(seed);
        let mut state = State::new();
        for _ in 0..60 {
            let mut next = state.next();
            let at = rng.next_u64() as usize % next.len();
            let before = state.world.view(0).shard_at("/d");
            state = next.swap_remove(at);
            moves += u32::from(state.world.view(0).shard_at("/d") != before);
            state.world.check_bytes();
        }
        state.check();
    }
    assert!(moves > 10, "{moves}");
}

/// A tree with one of everything, and some of many.
fn tree(world: &mut World) {
    for dir in ["/d/empty", "/d/deep", "/d/deep/er", "/d/deep/er/still", "/d/z"] {
        world.apply(0, &make(dir)).unwrap();
    }
    let kind = NodeKind::Table;
    let (mode, mtime, class, parents) = (0o700, 3, None, false);
    let table = Command::MakeDir { path: "/d/t".into(), kind, mode, mtime, class, parents };
    world.apply(0, &table).unwrap();
    for i in 0..20 {
        let pointer = world.pack(0);
        let path = format!("/d/deep/er/{i}-a-name-that-is-too-long-for-a-node");
        world.apply(0, &put_at(&path, Some(pointer))).unwrap();
    }
    world.apply(0, &put_at("/d/nothing", None)).unwrap();
    let (target, mtime) = ("../d/nothing".to_owned(), 4);
    world.apply(0, &Command::Symlink { path: "/d/link".into(), target, mtime }).unwrap();
    large(world, 0, "/d/z/large", 30);
}

/// A file of many chunks and the rest of it packed.
fn large(world: &mut World, shard: u16, path: &str, chunks: usize) {
    let (path, class, mode, mtime) = (path.to_owned(), None, 0o600, 8);
    let begin = Command::Begin { path: path.clone(), class, mode, mtime };
    let Ok(Outcome::File { file }) = world.apply(shard, &begin) else { panic!() };
    let mut extents = Vec::new();
    for i in 0..chunks as u64 {
        let chunk = world.allocate(shard, ChunkKind::Raw, file);
        let (length, replicas) = (i + 1, vec![StoreId(1)]);
        world.apply(shard, &Command::SealChunk { chunk, length, replicas }).unwrap();
        extents.push(RawExtent { chunk, length });
    }
    let size = extents.iter().map(|extent| extent.length).sum::<u64>() + BYTES;
    let remainder = Some(Remainder { pointer: world.pack(shard), length: BYTES });
    let (crc, replace, metadata) = (None, true, Vec::new());
    let close = Command::Close {
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
    };
    world.apply(shard, &close).unwrap();
}

/// All that can be known of a tree but the ids of its nodes.
fn told(world: &World) -> Vec<String> {
    world.with(|all| {
        let (mut told, mut dirs) = (Vec::new(), vec!["/d".to_owned()]);
        let view = all.of_path("/d").unwrap();
        told.push(format!("{:?} {:?}", all.usage("/d").unwrap(), view.dir_attributes("d")));
        while let Some(dir) = dirs.pop() {
            for entry in all.list(&dir, None, 1000).unwrap().entries {
                let (path, id) = (format!("{dir}/{}", entry.name), entry.info.id);
                assert_eq!(id.shard(), view.shard());
                assert_eq!(view.path_of(id).as_ref(), Some(&path));
                if entry.info.kind.is_container() {
                    dirs.push(path.clone());
                }
                let info = holdfast_cluster::FileInfo { id: FileId(1), ..entry.info };
                let (extents, target) = (view.extents(id), view.link_target(id));
                told.push(format!(
                    "{path} {info:?} {extents:?} {target:?} {:?}",
                    view.metadata(id)
                ));
            }
        }
        told
    })
}

/// Whatever a part has: what arrives is what was there, also back again and by way of a third shard; and
/// every view's bytes are the same when they are read again.
#[test]
fn what_arrives_is_what_left_however_it_is_cut() {
    let begins: [fn(u16) -> Command; 2] = [freeze, copy];
    let cuts = [1, 90, 300, 1000, 60_000];
    for (bytes, begin) in cuts.iter().flat_map(|bytes| begins.map(|begin| (*bytes, begin))) {
        let _trial = Trial::new().with(&PART_BYTES, bytes).enter();
        let mut world = World::new(3);
        tree(&mut world);
        let before = told(&world);
        let large = world.view(0).lookup("/d/z/large").unwrap().id;
        let chunk = world.view(0).extents(large).unwrap().0[3].chunk;
        for to in [1, 0, 2, 0, 1] {
            world.moved(to, begin);
            assert_eq!(told(&world), before, "cut at {bytes}, to shard {to}");
            world.check_bytes();
            world.with(|all| {
                assert_eq!(all.files_of(chunk, 2), ["/d/z/large"]);
                let known = all.chunk(chunk).unwrap().unwrap();
                let owner = all.owner_of(known);
                assert_eq!(all.of_file(owner).unwrap().path_of(owner).unwrap(), "/d/z/large");
            });
            let held = world.view(0).chunks().held();
            assert_eq!(held, if to == 0 { (0, 0) } else { (21, 30) });
        }
        // And all of it can go.
        world.apply(1, &delete("/d/deep")).unwrap();
        world.apply(1, &delete("/d/z")).unwrap();
        world.apply(1, &Command::Reclaim { budget: 1000 }).unwrap();
        assert_eq!(world.view(1).chunks().owing(), 51);
        world.check_nothing_left();
        let kept = world.view(0).chunks().iter().filter(|c| c.kind == ChunkKind::Raw).count();
        let doomed = world.view(0).chunks().unlinkable().count();
        assert_eq!((kept, doomed), (30, 30), "raw chunks wait for their unlinks");
    }
}

/// More names than one entry forgets, and one more entry of each kind than one tells of.
#[test]
fn a_move_of_many_names_takes_bounded_entries() {
    let _trial = Trial::new().with(&PART_BYTES, 2000).enter();
    let mut world = World::new(2);
    // Commands are applied to one view, or each would cost a snapshot.
    let (mut view, mut index) = (world.view(0), world.shards[0].0);
    for i in 0..5000 {
        let pointer = world.pack(0);
        view.apply(Index(index), &put_at(&format!("/d/{i}"), Some(pointer))).unwrap();
        index += 1;
    }
    world.shards[0] = (index, snapshot(&view));
    world.apply(0, &freeze(1)).unwrap();
    let mut parts = 0;
    let mut entry = |left: &Unfinished| {
        parts += u32::from(matches!(left.command, Command::Take { .. }));
        assert!(left.command.to_entry().len() < 60_000);
    };
    let views = world.views();
    let mut views: Vec<_> = views.into_iter().collect();
    for _ in 0..2000 {
        let others = [Some(&views[1])];
        let left = unfinished(&AllShards::new(&views[0], &others));
        let Some(left) = left.first() else { break };
        entry(left);
        index += 1;
        views[left.shard as usize].apply(Index(index), &left.command).unwrap();
    }
    assert!(parts > 100, "{parts}");
    assert_eq!(views[0].chunks().held().0, 5000);
    assert_eq!((views[0].totals().files, views[1].totals().files), (0, 5000));
    assert_eq!(views[1].lookup("/d").unwrap().size, 5000);
}

fn refused(result: Result<Outcome, Error>, kind: Kind, word: &str) {
    let e = result.expect_err("it is refused");
    assert!(e.kind == kind && e.message.contains(word), "{e:?}");
}

/// Who leads looks first whether it is; an entry that was decided on an older view comes all the same, and a debt that was
/// heard once is told no more.
#[test]
fn a_debt_that_comes_before_its_slot_is_held_is_not_heard() {
    let mut world = World::new(2);
    let pointer = world.pack(0);
    world.apply(0, &put_at("/d/x", Some(pointer))).unwrap();
    let debt = Debt::Slot { chunk: pointer.chunk, slot: pointer.slot.0 };
    let told = Command::LetGo { from: 1, first: 0, debts: vec![debt] };
    refused(world.apply(0, &told), Kind::Retry, "not held yet");
    world.moved(1, freeze);
    world.apply(0, &told).unwrap();
}

#[test]
fn what_is_frozen_takes_no_changes_until_it_is_there_or_stays_after_all() {
    let mut world = World::new(3);
    world.apply(0, &put_at("/d/x", None)).unwrap();
    world.apply(0, &make("/e")).unwrap();
    let begin =
        |path: &str| Command::Begin { path: path.into(), class: None, mode: 0o644, mtime: 1 };
    let Ok(Outcome::File { file }) = world.apply(0, &begin("/d/large")) else { panic!() };
    refused(world.apply(0, &freeze(1)), Kind::Invalid, "being written");
    world.apply(0, &Command::Abandon { file }).unwrap();
    let Ok(Outcome::File { file }) = world.apply(0, &begin("/e/large")) else { panic!() };
    refused(world.apply(0, &freeze(0)), Kind::Invalid, "keeps it already");
    refused(world.apply(0, &freeze(3)), Kind::NotFound, "there is no shard 3");
    world.apply(0, &freeze(1)).unwrap();
    world.apply(0, &freeze(1)).unwrap();
    refused(world.apply(0, &freeze(2)), Kind::Exists, "it is moving to shard 1 already");
    let rename =
        |from: &str, to: &str| Command::Rename { from: from.into(), to: to.into(), replace: true };
    let salvage = Command::Salvage { file, path: "/d/large".into(), extents: Vec::new() };
    let forward = Command::Forward { dir: "/d".into(), to: 1 };
    for command in [
        put_at("/d/y", None),
        delete("/d/x"),
        delete("/d"),
        make("/d/dir"),
        begin("/d/z"),
        salvage.clone(),
        rename("/d/x", "/d/y"),
        rename("/e", "/d/e"),
        forward,
    ] {
        refused(world.apply(0, &command), Kind::Retry, "moving to shard 1");
    }
    assert!(world.with(|all| all.lookup("/d/x")).unwrap().is_some(), "it is read");
    world.apply(0, &freeze(0)).unwrap();
    assert_eq!(world.unfinished(), []);
    world.apply(0, &delete("/d/x")).unwrap();
    // A part of that freeze that was long on its way is not taken for one of the next.
    world.apply(0, &put_at("/d/new", None)).unwrap();
    world.apply(0, &freeze(1)).unwrap();
    let take = world.unfinished().remove(0);
    world.apply(0, &freeze(0)).unwrap();
    world.apply(0, &delete("/d/new")).unwrap();
    world.apply(0, &freeze(1)).unwrap();
    world.apply(1, &take.command).unwrap();
    world.finish();
    assert_eq!(world.view(0).shard_at("/d"), 1);
    assert_eq!(world.with(|all| all.usage("/d")).unwrap().files, 0);
    refused(world.apply(1, &freeze(2)), Kind::Invalid, "to shard 0 alone");
    refused(world.apply(0, &salvage), Kind::Invalid, "another shard");
}

fn node(depth: u16, name: &str, content: Content) -> PartNode {
    let (kind, class, metadata) = (NodeKind::File, StorageClass::DEFAULT, b"m".to_vec());
    let (mode, mtime, crc) = (0o600, 2, Some(3));
    PartNode { depth, name: name.into(), kind, mode, mtime, class, metadata, crc, content }
}

#[test]
fn what_is_no_part_is_refused_whole() {
    let mut world = World::new(2);
    world.apply(0, &freeze(1)).unwrap();
    let at = world.view(0).borders().moves().frozen().next().unwrap().1.at;
    let stamp = Stamp { number: at, freeze: at };
    let mut take = |part: u32, nodes: Vec<PartNode>| {
        world.apply(1, &Command::Take { dir: "/d".into(), stamp, part, nodes })
    };
    let plain = |depth, name: &str| node(depth, name, Content::None {});
    let dir =
        |depth, name: &str| PartNode { kind: NodeKind::Directory, crc: None, ..plain(depth, name) };
    let pointer = |shard, slot| Pointer {
        chunk: ChunkId::new(shard, 1),
        slot: Slot(slot),
        cookie: Cookie(1),
    };
    let packed = |name: &str, pointer| node(1, name, Content::Packed { pointer, bytes: 5 });
    let listed = |name: &str, chunks: &[u64]| {
        let extent = |at: &u64| RawExtent { chunk: ChunkId::new(0, *at), length: 5 };
        let extents = chunks.iter().map(extent).collect();
        node(1, name, Content::Extents { extents, remainder: None })
    };
    let link = |target: &str| PartNode {
        kind: NodeKind::Symlink,
        crc: None,
        ..node(1, "l", Content::Target { target: target.into() })
    };
    take(0, vec![dir(1, "b"), plain(2, "x"), listed("c", &[7])]).unwrap();
    for (nodes, word) in [
        (vec![plain(0, "d")], "below none"),
        (vec![plain(3, "d")], "below none"),
        (vec![plain(2, "d")], "cannot hold"),
        (vec![plain(1, "b")], "not in order"),
        (vec![plain(1, "c")], "not in order"),
        (vec![plain(1, "e"), plain(1, "d")], "not in order"),
        (vec![plain(1, "e"), plain(2, "d")], "cannot hold"),
        (vec![plain(1, "..")], ""),
        (vec![link("")], "its kind has not"),
        (vec![PartNode { kind: NodeKind::Directory, ..plain(1, "d") }], "its kind has not"),
        (vec![PartNode { mode: 0o10000, ..plain(1, "d") }], "permission bits"),
        // Its own chunk, of which nothing is held.
        (vec![packed("d", pointer(1, 0))], "is not held"),
        (vec![packed("d", pointer(0, u32::MAX))], "is not held"),
        (vec![packed("d", pointer(0, 1)), packed("e", pointer(0, 1))], "named twice"),
        (vec![listed("d", &[8, 8])], "named twice"),
        (vec![listed("d", &[7])], "named twice"),
        (vec![listed("d", &[])], "its kind has not"),
    ] {
        refused(take(1, nodes), Kind::Invalid, word);
    }
    refused(take(2, vec![plain(1, "d")]), Kind::Retry, "not the next one");
    assert_eq!(take(0, vec![plain(1, "a")]), Ok(Outcome::Done {}), "it was taken");
    take(1, vec![packed("d", pointer(0, 1)), link("x")]).unwrap();
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// docs/formats/namespace.md: the entries.
#[test]
fn the_bytes_of_moves_stay() {
    let stamp = Stamp { number: Index(3), freeze: Index(4) };
    let attributes = holdfast_cluster::borders::DirAttributes {
        mode: 0o750,
        mtime: 7,
        class: StorageClass::DEFAULT,
        metadata: b"m".to_vec(),
    };
    let chunk = ChunkId::new(0, 9);
    let pointer = Pointer { chunk, slot: Slot(2), cookie: Cookie(5) };
    let extents = vec![RawExtent { chunk, length: 6 }];
    let (dir, stamped) = ("02000000 2f64", "0300000000000000 0400000000000000");
    let contents = [
        (Content::None {}, "01"),
        (Content::Packed { pointer, bytes: 8 }, "02 0900000000000000 02000000 05000000 08000000"),
        (
            Content::Extents { extents, remainder: None },
            "03 01000000 0900000000000000 0600000000000000 00",
        ),
        (Content::Target { target: "t".into() }, "04 01000000 74"),
    ];
    let d = || "/d".to_owned();
    let debts = vec![Debt::Slot { chunk, slot: 2 }, Debt::Chunk { chunk }];
    let mut all = vec![
        (Command::Freeze { dir: d(), to: 1 }, format!("0120 {dir} 0100")),
        (
            Command::Depart { dir: d(), freeze: Index(4), parts: 2 },
            format!("0122 {dir} 0400000000000000 02000000"),
        ),
        (
            Command::Arrive { dir: d(), stamp, parts: 2, attributes },
            format!("0123 {dir} {stamped} 02000000 e801 0700000000000000 0210 01000000 6d"),
        ),
        (Command::Discard { dir: d(), stamp }, format!("0124 {dir} {stamped}")),
        (Command::Forget { budget: 7 }, "0125 07000000".to_owned()),
        (
            Command::LetGo { from: 1, first: 2, debts },
            "0126 0100 0200000000000000 02000000 01 0900000000000000 02000000 \
             02 0900000000000000"
                .to_owned(),
        ),
        (Command::LetGone { home: 1, through: 2 }, "0127 0100 0200000000000000".to_owned()),
    ];
    for (content, bytes) in contents {
        let nodes = vec![node(1, "x", content)];
        let take = Command::Take { dir: d(), stamp, part: 5, nodes };
        let expected = format!(
            "0121 {dir} {stamped} 05000000 01000000 0100 01000000 78 02 8001 0200000000000000 \
             0210 01000000 6d 01 03000000 {bytes}"
        );
        all.push((take, expected));
    }
    for (command, bytes) in all {
        assert_eq!(hex(&command.to_entry()), bytes.replace(' ', ""), "{command:?}");
        assert_eq!(Command::from_entry(&command.to_entry()), Ok(command));
    }
}

/// The same page: the last sections of a snapshot, from entry to entry of a move.
#[test]
fn the_bytes_of_moves_in_snapshots_stay() {
    let mut world = World::new(2);
    let x = world.pack(0);
    world.apply(0, &put_at("/d/x", Some(x))).unwrap();
    assert_eq!(world.shards[0].1[4], 4, "nothing has moved with its content");
    world.apply(0, &freeze(1)).unwrap();
    let at = "0500000000000000";
    let tail = |world: &World, shard: usize, end: &str| {
        let bytes = &world.shards[shard].1;
        assert_eq!(bytes[4], 5);
        let told = hex(&bytes[..bytes.len() - 4]);
        assert!(told.ends_with(&end.replace(' ', "")), "{told} does not end with {end}");
    };
    // Frozen; undone, left, arriving; leaving; slots, chunks, debts, heard.
    let none = "00000000";
    let frozen = format!(
        "01000000 01000000 64 0100 {at} {none} {none} {none} {none} {none} {none} {none} {none}"
    );
    tail(&world, 0, &frozen);
    let take = world.unfinished().remove(0);
    world.apply(1, &take.command).unwrap();
    let arriving = format!(
        "{none} {none} {none} 01000000 01000000 64 {at} {at} 01000000 02000000 03000000 \
         {none} {none} {none} {none} {none}"
    );
    tail(&world, 1, &arriving);
    let depart = world.unfinished().remove(0);
    world.apply(0, &depart.command).unwrap();
    let left = format!("{none} {none} 01000000 01000000 64 {at} 01000000 {none} 01000000 02000000");
    let told = hex(&world.shards[0].1);
    assert!(told.contains(&left.replace(' ', "")), "{told}");
    world.finish();
    let held = "01000000 0100000000000000 00000000 64000000";
    tail(&world, 0, &format!("{held} {none} {none} {none}"));
    world.apply(1, &delete("/d/x")).unwrap();
    tail(
        &world,
        1,
        &format!(
            "{none} {none} {none} {none} {none} {none} {none} 01000000 0000 0000000000000000 \
             01000000 01 0100000000000000 00000000 {none}"
        ),
    );
    world.finish();
    tail(&world, 0, &format!("{none} {none} {none} 01000000 0100 0100000000000000"));
}
