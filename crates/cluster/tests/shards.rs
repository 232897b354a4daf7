//! Shards: who keeps a directory at any pair of indices, searched state by state over the production views;
//! what is refused where; and the forms of what they write down.

use holdfast_base::codec::Encode;
use holdfast_base::ids::{FileId, Index};
use holdfast_base::{Error, Kind};
use holdfast_cluster::borders::{DirAttributes, shows_moves};
use holdfast_cluster::moves::{Unfinished, unfinished};
use holdfast_cluster::{AllShards, Command, Location, Namespace, NodeKind, Outcome, StorageClass};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

fn make(path: &str) -> Command {
    let (kind, mode, mtime, class) = (NodeKind::Directory, 0o750, 7, None);
    Command::MakeDir { path: path.into(), kind, mode, mtime, class, parents: false }
}

fn put(path: &str) -> Command {
    Command::Put {
        path: path.into(),
        kind: NodeKind::File,
        mode: 0o644,
        mtime: 1,
        size: 0,
        crc: 0,
        class: None,
        location: Location::Inline {},
        replace: false,
        parents: false,
        metadata: Vec::new(),
    }
}

fn delete(path: &str) -> Command {
    Command::Delete { path: path.into(), recursive: false }
}

fn forward(dir: &str, to: u16) -> Command {
    Command::Forward { dir: dir.into(), to }
}

fn snapshot(view: &Namespace) -> Vec<u8> {
    let mut bytes = Vec::new();
    view.snapshot(&mut bytes);
    bytes
}

/// Several shards, each with the index of its next entry.
#[derive(Clone)]
struct World {
    /// As bytes, which are what two states are compared by.
    shards: Vec<(u64, Vec<u8>)>,
}

impl World {
    /// A directory `/d`, in shard 0.
    fn new(shards: u16) -> World {
        let views = (0..shards).map(|shard| (1, snapshot(&Namespace::new(shard))));
        let mut world = World { shards: views.collect() };
        for shard in 1..shards {
            world.apply(0, &Command::AddShard { shard }).unwrap();
        }
        world.apply(0, &make("/d")).unwrap();
        world
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
        self.apply_entry(shard, &entry)
    }

    fn apply_entry(&mut self, shard: u16, entry: &[u8]) -> Result<Outcome, Error> {
        let mut view = self.view(shard);
        let (next, bytes) = &mut self.shards[shard as usize];
        let outcome = view.apply_bytes(Index(*next), entry);
        *next += 1;
        *bytes = snapshot(&view);
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
        for _ in 0..4 {
            for left in self.unfinished() {
                self.apply(left.shard, &left.command).unwrap();
            }
        }
        assert_eq!(self.unfinished(), []);
    }
}

/// Whether a shard would take a name below `/d` at its index, from whoever knows of this many of its moves.
fn takes_behind(view: &Namespace, number: Index) -> bool {
    let mut view = Namespace::restore(&snapshot(view)).unwrap();
    let numbers = vec![number];
    let command = Command::Behind { numbers, command: put("/d/probe").to_entry() };
    match view.apply(Index(1 << 40), &command) {
        Ok(_) => true,
        Err(e) => {
            assert!(matches!(e.kind, Kind::Retry | Kind::NotFound), "{e}");
            // The directory itself may have been deleted: the name would be made with parents.
            e.kind == Kind::NotFound
        }
    }
}

/// From anybody.
fn takes(view: &Namespace) -> bool {
    let behind = |number| takes_behind(view, Index(number));
    (0..20)
        .filter(|number| behind(*number))
        .inspect(|number| {
            // Who asked before the last move is refused, however late that comes.
            let newest = view.borders().number_of("/d").0;
            let given = view.borders().given().next().map_or(newest, |(_, given)| given.number.0);
            assert_eq!(*number, given);
        })
        .count()
        == 1
}

/// What is asked for, of whichever shard.
fn people() -> [(u16, Command); 6] {
    let both = |command: Command| [(0, command.clone()), (1, command)];
    let [a, b] = both(put("/d/x"));
    let [c, d] = both(delete("/d/x"));
    [(0, forward("/d", 1)), (1, forward("/d", 0)), a, b, c, d]
}

/// Two shards; moves there and back by people at any time, a name made and deleted in whichever takes it,
/// and two leaders whose proposals arrive in any order, late, and twice: at most one shard takes a name of
/// the directory, nothing that was made is lost, and from everywhere a move comes to an end.
#[test]
fn at_no_pair_of_indices_has_a_directory_two_keepers() {
    const DEPTH: u32 = 12;
    // The shards' bytes, proposals that are on their way, and whether `/d/x` exists.
    type Key = (Vec<Vec<u8>>, BTreeSet<(u16, Vec<u8>)>, bool);
    struct State {
        world: World,
        flying: Vec<(u16, Command)>,
        exists: bool,
        depth: u32,
    }
    let key = |state: &State| -> Key {
        let flying = state.flying.iter().map(|(shard, command)| (*shard, command.to_bytes()));
        let bytes = state.world.shards.iter().map(|(_, bytes)| bytes.clone()).collect();
        (bytes, flying.collect(), state.exists)
    };
    let start = State { world: World::new(2), flying: Vec::new(), exists: false, depth: 0 };
    let mut seen: BTreeMap<Key, ()> = BTreeMap::from([(key(&start), ())]);
    let mut todo = VecDeque::from([start]);
    let (mut moved, mut returned, mut late) = (0, 0, 0);
    while let Some(state) = todo.pop_front() {
        let keepers = state.world.views().iter().filter(|view| takes(view)).count();
        assert!(keepers <= 1, "{keepers} shards take names of it");
        let here = state.world.views().iter().filter(|v| v.lookup("/d/x").is_some()).count();
        assert_eq!(here, state.exists as usize, "a name that was made is in one shard");
        let mut world = state.world.clone();
        world.finish();
        assert!(world.views().iter().any(takes), "every move comes to an end");
        if state.depth == DEPTH {
            continue;
        }
        let mut next = |world: World, flying: Vec<(u16, Command)>, exists: bool| {
            let state = State { world, flying, exists, depth: state.depth + 1 };
            if seen.insert(key(&state), ()).is_none() {
                todo.push_back(state);
            }
        };
        // People, through gateways whose map may be old: any of these goes to any shard.
        for (shard, command) in people() {
            let mut world = state.world.clone();
            if world.apply(shard, &command).is_ok() {
                let exists = match command {
                    Command::Put { .. } => true,
                    Command::Delete { .. } => false,
                    _ => state.exists,
                };
                next(world, state.flying.clone(), exists);
            }
        }
        // A leader looks, and proposes; another one may have proposed the same.
        for left in state.world.unfinished() {
            let command = (left.shard, left.command);
            if state.flying.len() < 3 && !state.flying.contains(&command) {
                let flying = state.flying.iter().cloned().chain([command]).collect();
                next(state.world.clone(), flying, state.exists);
            }
        }
        // One arrives; it may arrive again.
        for (at, (shard, command)) in state.flying.iter().enumerate() {
            let mut world = state.world.clone();
            let before = world.shards[*shard as usize].1.clone();
            assert_eq!(world.apply(*shard, command), Ok(Outcome::Done {}));
            let changed = world.shards[*shard as usize].1 != before;
            moved += (changed && *shard == 1) as u32;
            returned += (changed && *shard == 0) as u32;
            late += !changed as u32;
            let mut left = state.flying.clone();
            left.remove(at);
            next(world.clone(), left, state.exists);
            next(world, state.flying.clone(), state.exists);
        }
    }
    assert!(seen.len() > 300 && moved > 20 && returned > 10 && late > 20, "{}", seen.len());
}

fn refused(result: Result<Outcome, Error>, kind: Kind, word: &str) {
    let e = result.expect_err("it is refused");
    assert!(e.kind == kind && e.message.contains(word), "{e:?}");
}

#[test]
fn what_a_shard_does_not_keep_it_refuses_and_says_who_does() {
    let mut world = World::new(3);
    world.apply(0, &make("/full")).unwrap();
    world.apply(0, &put("/full/x")).unwrap();
    world.apply(0, &put("/file")).unwrap();
    refused(world.apply(0, &forward("/full", 1)), Kind::Invalid, "only an empty directory");
    refused(world.apply(0, &forward("/file", 1)), Kind::Invalid, "not a directory");
    refused(world.apply(0, &forward("/no", 1)), Kind::NotFound, "does not exist");
    refused(world.apply(0, &forward("/d/e", 1)), Kind::Invalid, "right below the root");
    refused(world.apply(0, &forward("/d", 3)), Kind::NotFound, "there is no shard 3");
    refused(world.apply(0, &forward("/d", 0)), Kind::Invalid, "keeps it already");
    let begin =
        |path: &str| Command::Begin { path: path.into(), class: None, mode: 0o644, mtime: 1 };
    let Ok(Outcome::File { file }) = world.apply(0, &begin("/d/large")) else { panic!() };
    refused(world.apply(0, &forward("/d", 1)), Kind::Invalid, "being written");
    world.apply(0, &Command::Abandon { file }).unwrap();
    let Ok(Outcome::File { file }) = world.apply(0, &begin("/large")) else { panic!() };

    world.apply(0, &forward("/d", 1)).unwrap();
    refused(world.apply(0, &forward("/d", 2)), Kind::Retry, "`/d` is kept by shard 1 (now)");
    refused(world.apply(1, &put("/d/x")), Kind::Retry, "`/d` is not kept by shard 1 (now)");
    world.finish();
    for command in [put("/d/x"), make("/d/y"), delete("/d/x"), begin("/d/z"), delete("/d")] {
        refused(world.apply(0, &command), Kind::Retry, "kept by shard 1");
        refused(world.apply(2, &command), Kind::Retry, "not kept by shard 2");
    }
    // A file keeps its shard, and a name does not change its own.
    let close = Command::Salvage { file, path: "/d/large".into(), extents: Vec::new() };
    refused(world.apply(0, &close), Kind::Invalid, "another shard");
    let rename =
        |from: &str, to: &str| Command::Rename { from: from.into(), to: to.into(), replace: true };
    world.apply(1, &put("/d/x")).unwrap();
    world.apply(1, &rename("/d/x", "/d/y")).unwrap();
    refused(world.apply(1, &rename("/d/y", "/y")), Kind::Invalid, "copy it there");
    refused(world.apply(0, &rename("/file", "/d/file")), Kind::Invalid, "copy it there");
    refused(world.apply(1, &delete("/d")), Kind::Invalid, "shard move");
    refused(world.apply(1, &forward("/d", 0)), Kind::Invalid, "only an empty directory");
    refused(world.apply(1, &forward("/d", 2)), Kind::Invalid, "to shard 0 alone");
    refused(world.apply(1, &Command::AddShard { shard: 2 }), Kind::Invalid, "shard 0 does");
    world.apply(1, &delete("/d/y")).unwrap();
    let set = Command::SetAttributes {
        path: "/d".into(),
        mode: Some(0o700),
        mtime: Some(9),
        metadata: Some(b"m".to_vec()),
    };
    world.apply(1, &set).unwrap();
    world.apply(1, &forward("/d", 0)).unwrap();
    refused(world.apply(1, &put("/d/x")), Kind::Retry, "not kept");
    refused(world.apply(0, &put("/d/x")), Kind::Retry, "kept by shard 1");
    world.finish();
    world.apply(0, &put("/d/x")).unwrap();
    // What it was given elsewhere came back with it.
    let info = world.view(0).lookup("/d").unwrap();
    assert_eq!((info.mode, info.mtime, info.has_metadata), (0o700, 9, true));
    world.apply(0, &delete("/d/x")).unwrap();
    // What was asked before all that, and comes now.
    let late = world.apply_entry(0, &put("/d/x").to_entry());
    refused(late, Kind::Retry, "before its move");
    world.apply(0, &forward("/d", 2)).unwrap();
    world.finish();
    world.apply(2, &put("/d/x")).unwrap();
}

/// What was asked in a directory while it was elsewhere is answered there: who has not seen all of that does
/// not know whether something is asked again.
#[test]
fn a_directory_that_came_back_is_served_by_who_has_seen_all_of_where_it_was() {
    let mut world = World::new(3);
    world.apply(0, &forward("/d", 1)).unwrap();
    let mut behind = vec![world.view(1)];
    world.finish();
    behind.push(world.view(1));
    world.apply(1, &put("/d/x")).unwrap();
    world.apply(1, &delete("/d/x")).unwrap();
    behind.push(world.view(1));
    world.apply(1, &forward("/d", 0)).unwrap();
    let level = |world: &World, one: &Namespace| {
        let (root, two) = (world.view(0), world.view(2));
        let others = [Some(one), Some(&two)];
        let all = AllShards::new(&root, &others);
        assert!(shows_moves(&all, "/e/x"), "it never was elsewhere");
        shows_moves(&all, "/d/x")
    };
    assert!(level(&world, &behind[0]), "it has not come back");
    world.finish();
    assert!(behind.iter().all(|view| !level(&world, view)));
    assert!(level(&world, &world.view(1)));
    world.apply(0, &forward("/d", 1)).unwrap();
    world.finish();
    world.apply(1, &forward("/d", 0)).unwrap();
    let before = world.view(1);
    world.finish();
    assert!(level(&world, &before));
    assert!(!level(&world, &behind[2]));
    // And on to another one.
    let kept = world.view(1);
    world.apply(0, &forward("/d", 2)).unwrap();
    assert!(level(&world, &kept));
    world.finish();
    assert!(level(&world, &kept) && !level(&world, &behind[2]));
}

#[test]
fn all_shards_are_read_as_one_tree() {
    let mut world = World::new(2);
    world.apply(0, &forward("/d", 1)).unwrap();
    world.finish();
    let link = |path: &str, target: &str| Command::Symlink {
        path: path.into(),
        target: target.into(),
        mtime: 1,
    };
    for (shard, command) in [
        (0, make("/e")),
        (0, put("/e/in0")),
        (0, link("/e/there", "../d/s/in1")),
        (1, make("/d/s")),
        (1, put("/d/s/in1")),
        (1, link("/d/back", "/e/there")),
        (1, link("/d/far", "s/../../e/./../d/s/in1")),
        (1, link("/d/up", "s/../..")),
        (1, link("/d/loop", "../e/loop")),
        (0, link("/e/loop", "/d/loop")),
    ] {
        world.apply(shard, &command).unwrap();
    }
    world.with(|all| {
        let id = |path: &str| all.lookup(path).unwrap().map(|info| info.id);
        assert_eq!(id("/d/s/in1").unwrap().shard(), 1);
        assert_eq!(id("/e/in0").unwrap().shard(), 0);
        assert_eq!((id("/e/in1"), id("/d/in0")), (None, None));
        let resolve = |path: &str| all.resolve(path).map(|(path, info)| (path, info.id));
        let in1 = Ok(("/d/s/in1".to_owned(), id("/d/s/in1").unwrap()));
        for path in ["/e/there", "/d/back", "/d/far"] {
            assert_eq!(resolve(path), in1, "{path}");
        }
        assert_eq!(resolve("/d/up").unwrap(), ("/".to_owned(), FileId(1)));
        assert!(resolve("/d/loop").unwrap_err().message.contains("a loop?"));
        let paths = ["/e/in0", "/d/s/in1", "/none", "/d", "/"];
        let mut infos = [None; 5];
        all.lookup_batch(&paths, &mut infos);
        assert_eq!(infos.map(|info| info.map(|info| info.id)), paths.map(id));
        let page = all.list("/", None, 10).unwrap();
        let entries: Vec<_> = page.entries.iter().map(|e| (e.name.as_str(), e.info)).collect();
        let info = |path: &str| all.lookup(path).unwrap().unwrap();
        assert_eq!(entries, [("d", info("/d")), ("e", info("/e"))]);
        assert_eq!(info("/d").size, 5, "as its shard has it");
        // The root, two directories right below it, and one in one of them.
        let usage = all.usage("/").unwrap();
        assert_eq!((usage.files, usage.directories, usage.symlinks), (2, 4, 6));
        assert_eq!(all.totals(), usage);
        assert_eq!(all.usage("/d").unwrap().files, 1);
    });
    let root = world.view(0);
    let none: [Option<&Namespace>; 1] = [None];
    let gone = AllShards::new(&root, &none);
    assert_eq!(gone.lookup("/d/s/in1").unwrap_err().kind, Kind::Retry);
    assert_eq!(gone.get(7).err().unwrap().kind, Kind::NotFound);
    assert!(gone.lookup("/e/in0").unwrap().is_some(), "the others are served");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// docs/formats/namespace.md: entries, results and the last section of a snapshot.
#[test]
fn the_bytes_of_shards_stay() {
    let attributes = DirAttributes {
        mode: 0o750,
        mtime: 7,
        class: StorageClass::DEFAULT,
        metadata: b"m".to_vec(),
    };
    let own = Command::Own { dir: "/d".into(), number: Index(3), attributes };
    for (command, bytes) in [
        (Command::AddShard { shard: 2 }, "011c0200"),
        (forward("/d", 1), "011d020000002f640100"),
        (own, "011e020000002f640300000000000000e8010700000000000000021001000000 6d"),
    ] {
        let bytes = bytes.replace(' ', "");
        assert_eq!(hex(&command.to_entry()), bytes);
        assert_eq!(Command::from_entry(&command.to_entry()), Ok(command));
    }
    let behind = Command::Behind { numbers: vec![Index(3)], command: vec![1, 28] };
    assert_eq!(hex(&behind.to_entry()), "011f01000000030000000000000002000000011c");
    assert_eq!(hex(&Outcome::Shard { shard: 2 }.to_bytes()), "070200");
    let mut world = World::new(2);
    let plain = snapshot(&Namespace::new(0));
    assert_eq!(plain[4], 3, "as it was before there were shards");
    world.apply(0, &forward("/d", 1)).unwrap();
    let number = "0300000000000000";
    // Count; forwarded: how many, name, to, number; back, given: how many.
    let end = format!("0200 01000000 0100000064 0100 {number} 00000000 00000000").replace(' ', "");
    let tail = |view: &Namespace| {
        let bytes = snapshot(view);
        assert_eq!(bytes[4], 4);
        hex(&bytes[..bytes.len() - 4])
    };
    assert!(tail(&world.view(0)).ends_with(&end));
    world.finish();
    // Count; forwarded, back: none; given: how many, name, number, still here.
    let end = format!("0000 00000000 00000000 01000000 0100000064 {number} 00").replace(' ', "");
    assert!(tail(&world.view(1)).ends_with(&end));
    world.apply(1, &forward("/d", 0)).unwrap();
    let gone = "01e801 0700000000000000 0210 00000000".replace(' ', "");
    assert!(tail(&world.view(1)).ends_with(&gone), "{}", tail(&world.view(1)));
}

/// An order whose answer was lost was given again, and there was one shard more than anybody wanted.
#[test]
fn a_shard_that_is_asked_for_twice_is_added_once() {
    let mut world = World::new(1);
    let add = |shard| Command::AddShard { shard };
    for _ in 0..2 {
        assert_eq!(world.apply(0, &add(1)).unwrap(), Outcome::Shard { shard: 1 });
    }
    refused(world.apply(0, &add(3)), Kind::Invalid, "there are 2 shards");
    for shard in 2..64 {
        world.apply(0, &add(shard)).unwrap();
    }
    world.apply(0, &add(63)).unwrap();
    refused(world.apply(0, &add(64)), Kind::Full, "there are 64 shards");
}
