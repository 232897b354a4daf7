//! Directories that are copied from shard to shard while they change: whatever commands come between whatever
//! steps, what arrives is what a directory has that never moved. The commands and when they come are drawn, by
//! whom steps are proposed, how often, and from how old a view; `moves.rs` searches the entries state by state.

use holdfast_base::ids::{
    ChunkId, Cookie, Durability, FileId, Index, NodeId, Pointer, Slot, StoreId, Tier,
};
use holdfast_base::{Error, Kind};
use holdfast_cluster::moves::{CHANGES_MAX, SUBTREE_MAX, Unfinished, unfinished, waiting};
use holdfast_cluster::names::{Changed, Content, NODES_MAX, PART_BYTES, PartNode, Reach};
use holdfast_cluster::{
    AllShards, ChunkKind, Command, FileInfo, Location, Namespace, NodeKind, Outcome,
};
use holdfast_env::trial::Trial;
use holdfast_env::{Rng, SeededRng};

fn make(path: &str) -> Command {
    let (kind, mode, mtime, class) = (NodeKind::Directory, 0o750, 7, None);
    Command::MakeDir { path: path.into(), kind, mode, mtime, class, parents: true }
}

fn rename(from: &str, to: &str) -> Command {
    Command::Rename { from: from.into(), to: to.into(), replace: true }
}

fn delete(path: &str) -> Command {
    Command::Delete { path: path.into(), recursive: true }
}

fn copy(to: u16) -> Command {
    Command::Copy { dir: "/d".into(), to }
}

/// Shards, and the packed chunk that each of them writes.
struct Shards {
    views: Vec<Namespace>,
    index: u64,
    chunks: Vec<ChunkId>,
    slot: u32,
}

impl Shards {
    fn new(count: u16) -> Shards {
        let views = (0..count).map(Namespace::new).collect();
        let mut shards = Shards { views, index: 0, chunks: Vec::new(), slot: 0 };
        for shard in 1..count {
            shards.apply(0, &Command::AddShard { shard }).unwrap();
        }
        for shard in 0..count {
            let (tier, durability, owner) = (Tier::Disk, Durability::Durable, FileId(0));
            let (kind, node, replicas) = (ChunkKind::Packed, NodeId(1), vec![StoreId(1)]);
            let allocate = Command::AllocateChunk { kind, owner, node, replicas, tier, durability };
            let Ok(Outcome::Chunk { chunk }) = shards.apply(shard, &allocate) else { panic!() };
            shards.chunks.push(chunk);
        }
        shards.apply(0, &make("/d")).unwrap();
        shards
    }

    fn apply(&mut self, shard: u16, command: &Command) -> Result<Outcome, Error> {
        let entry = command.to_entry_by(self.views[0].borders());
        self.index += 1;
        self.views[shard as usize].apply_bytes(Index(self.index), &entry)
    }

    /// Who has `/d`, or has it until somebody else does.
    fn keeper(&self) -> u16 {
        self.views[0].shard_at("/d")
    }

    fn all<T>(&self, read: impl FnOnce(&AllShards<'_>) -> T) -> T {
        let others: Vec<_> = self.views[1..].iter().map(Some).collect();
        read(&AllShards::new(&self.views[0], &others))
    }

    fn finish(&mut self) {
        for _ in 0..100_000 {
            let left = self.all(unfinished);
            if left.is_empty() {
                return;
            }
            for step in left {
                if let Err(e) = self.apply(step.shard, &step.command) {
                    assert_eq!(e.kind, Kind::Retry, "it cannot go on: {e}");
                }
            }
        }
        panic!("it never ends: {:?}", self.all(unfinished));
    }

    fn put(&mut self, path: &str, bytes: u64, metadata: &[u8]) -> Result<Outcome, Error> {
        let keeper = self.keeper();
        let (chunk, slot, cookie) = (self.chunks[keeper as usize], Slot(self.slot), Cookie(3));
        self.slot += 1;
        let location = match bytes {
            0 => Location::Inline {},
            _ => Location::Packed { pointer: Pointer { chunk, slot, cookie } },
        };
        let (kind, mode, mtime, crc, class) = (NodeKind::File, 0o600, 5, 7, None);
        let put = Command::Put {
            path: path.to_owned(),
            kind,
            mode,
            mtime,
            size: bytes,
            crc,
            class,
            location,
            replace: true,
            parents: true,
            metadata: metadata.to_vec(),
        };
        self.apply(keeper, &put)
    }

    /// All that is below `/d` with everything that is known of it but its ids and where its bytes are. Those
    /// are alive where they are.
    fn told(&self) -> Vec<(String, FileInfo, Option<Vec<u8>>)> {
        self.all(|all| {
            let (mut told, mut dirs) = (Vec::new(), vec!["/d".to_owned()]);
            let view = all.of_path("/d").unwrap();
            while let Some(dir) = dirs.pop() {
                for entry in all.list(&dir, None, 100_000).unwrap().entries {
                    let (path, info) = (format!("{dir}/{}", entry.name), entry.info);
                    if info.kind.is_container() {
                        dirs.push(path.clone());
                    }
                    if let Location::Packed { pointer } = info.location {
                        let home = all.of_chunk(pointer.chunk).unwrap();
                        let live = home.chunks().live_slots(pointer.chunk).unwrap();
                        assert!(live.contains(&pointer.slot), "`{path}`: {pointer} is dead");
                    }
                    let metadata = view.metadata(info.id).map(<[u8]>::to_vec);
                    let (id, location) = (FileId(1), Location::Inline {});
                    told.push((path, FileInfo { id, location, ..info }, metadata));
                }
            }
            told.sort_by(|a, b| a.0.cmp(&b.0));
            told
        })
    }

    /// All bytes that are alive are named, and what is held is what is named elsewhere.
    fn check_nothing_left(&mut self) {
        for shard in 0..self.views.len() as u16 {
            self.apply(shard, &Command::Reclaim { budget: 100_000 }).unwrap();
        }
        self.finish();
        for shard in 0..self.views.len() as u16 {
            let (before, budget) = (Index(1 << 40), 100_000);
            self.apply(shard, &Command::Release { before, budget }).unwrap();
        }
        let named =
            self.told().iter().filter(|(_, info, _)| info.size > 0 && info.kind.is_data()).count();
        let live = |view: &Namespace| view.chunks().iter().map(|c| c.live_objects).sum::<u32>();
        let alive: u32 = self.views.iter().map(live).sum();
        assert_eq!(alive as usize, named, "alive, and named");
        for view in &self.views {
            assert_eq!(view.chunks().owing(), 0);
            let mut bytes = Vec::new();
            view.snapshot(&mut bytes);
            let again = Namespace::restore(&bytes).unwrap();
            let mut twice = Vec::new();
            again.snapshot(&mut twice);
            assert!(bytes == twice);
        }
    }
}

/// The moved world, and one beside it that has no other shard.
struct Twins {
    moved: Shards,
    still: Shards,
    rng: SeededRng,
    bytes: u64,
    /// Views of some time ago, and entries that were proposed then.
    old: Vec<Vec<u8>>,
    late: Vec<Unfinished>,
    carried_out: usize,
}

impl Twins {
    fn new(seed: u64) -> Twins {
        let (moved, still, rng) = (Shards::new(3), Shards::new(1), SeededRng::new(seed));
        let (old, late) = (Vec::new(), Vec::new());
        Twins { moved, still, rng, bytes: 0, old, late, carried_out: 0 }
    }

    fn below(&self, limit: u64) -> u64 {
        self.rng.next_u64() % limit
    }

    fn path(&self) -> String {
        let depth = 1 + self.below(3);
        let name = |_| ["a", "b", "c", "dd"][self.below(4) as usize];
        let names: Vec<&str> = (0..depth).map(name).collect();
        format!("/d/{}", names.join("/"))
    }

    /// Something that anybody may ask for, of both.
    fn change(&mut self) {
        let (path, other) = (self.path(), self.path());
        let keeper = self.moved.keeper();
        let drawn = self.below(12);
        let command = match drawn {
            0..=1 => make(&path),
            2 => delete(&path),
            3..=5 => rename(&path, &other),
            6 => Command::SetAttributes {
                path,
                mode: Some(self.below(0o777) as u16),
                mtime: Some(9),
                metadata: Some(vec![4; self.below(30) as usize]),
            },
            7 => {
                let (target, mtime) = (other, 4);
                Command::Symlink { path, target, mtime }
            }
            8 => {
                let (kind, mode, mtime, class, parents) = (NodeKind::Table, 0o700, 3, None, false);
                Command::MakeDir { path, kind, mode, mtime, class, parents }
            }
            _ => {
                self.bytes += 1;
                let bytes = if drawn == 9 { 0 } else { self.bytes };
                let moved = self.moved.put(&path, bytes, b"m");
                if moved.is_ok() {
                    self.carried_out += 1;
                    self.still.put(&path, bytes, b"m").unwrap();
                }
                return;
            }
        };
        let moved = self.moved.apply(keeper, &command);
        match moved {
            Ok(_) => {
                self.carried_out += 1;
                drop(self.still.apply(0, &command).unwrap());
            }
            Err(e) if e.kind == Kind::Retry => {}
            Err(e) => assert_eq!(self.still.apply(0, &command).unwrap_err().kind, e.kind, "{e}"),
        }
    }

    fn seen_long_ago(&self) -> Option<Vec<Namespace>> {
        let mut views = Vec::new();
        for (shard, old) in self.old.iter().enumerate() {
            let mut now = Vec::new();
            self.moved.views[shard].snapshot(&mut now);
            // One of them may be older than the others.
            let bytes = if self.below(2) == 0 { old } else { &now };
            views.push(Namespace::restore(bytes).unwrap());
        }
        (!views.is_empty()).then_some(views)
    }

    /// Something that a leader does, of which there may be two, one with old views.
    fn lead(&mut self) {
        let entries = match self.below(4) {
            0 if !self.late.is_empty() => vec![self.late.swap_remove(0)],
            1 => match self.seen_long_ago() {
                Some(views) => {
                    let others: Vec<_> = views[1..].iter().map(Some).collect();
                    unfinished(&AllShards::new(&views[0], &others))
                }
                None => Vec::new(),
            },
            _ => self.moved.all(unfinished),
        };
        for entry in entries {
            let fate = self.below(6);
            if fate < 3 {
                self.late.push(entry.clone());
            }
            // Or it is lost, for now.
            if fate > 0 {
                let _ = self.moved.apply(entry.shard, &entry.command);
            }
        }
        if self.below(8) == 0 {
            // Somebody saw no room for the rest.
            let keeper = self.moved.keeper();
            let moves = self.moved.views[keeper as usize].borders().moves();
            let again = moves.frozen().next().map(|(_, frozen)| Command::Still {
                dir: "/d".into(),
                copy: frozen.at,
                still: false,
            });
            again.map(|again| self.moved.apply(keeper, &again).unwrap());
        }
        if self.below(8) == 0 {
            let snapshot = |view: &Namespace| {
                let mut bytes = Vec::new();
                view.snapshot(&mut bytes);
                bytes
            };
            self.old = self.moved.views.iter().map(snapshot).collect();
        }
    }

    fn is_broken(&self) -> bool {
        let broken = |view: &Namespace| {
            view.borders().moves().following("d").is_some_and(|following| following.is_broken)
        };
        self.moved.views.iter().any(broken)
    }
}

/// There, back, and to a third shard, with changes between all steps of it.
#[test]
fn what_changes_while_it_is_copied_arrives_as_it_is() {
    let (mut arrived, mut carried_out, mut spoilt) = (0, 0, 0);
    for seed in 0..300 {
        let mut twins = Twins::new(seed);
        let drawn = |of: &[u64]| of[twins.below(of.len() as u64) as usize];
        let trial = Trial::new()
            .with(&PART_BYTES, drawn(&[1, 90, 500, 60_000]))
            .with(&SUBTREE_MAX, drawn(&[2, 1024]))
            .with(&CHANGES_MAX, drawn(&[8, 40, 65_536]));
        let _trial = trial.enter();
        (0..40).for_each(|_| twins.change());
        for to in [1, 0, 2, 0] {
            let keeper = twins.moved.keeper();
            if keeper != to {
                twins.moved.apply(keeper, &copy(to)).unwrap();
            }
            for _ in 0..60 {
                match twins.below(3) {
                    0 => twins.change(),
                    _ => twins.lead(),
                }
                assert!(!twins.is_broken(), "seed {seed}: each step fits");
                let moves =
                    |view: &Namespace| view.borders().moves().copying().any(|(_, c)| c.is_spoilt);
                spoilt += usize::from(twins.moved.views.iter().any(moves));
                if twins.moved.keeper() == to && twins.moved.all(unfinished).is_empty() {
                    arrived += 1;
                    break;
                }
            }
            twins.moved.finish();
            assert_eq!(twins.moved.keeper(), to, "seed {seed}");
            assert_eq!(twins.moved.told(), twins.still.told(), "seed {seed}, to shard {to}");
            twins.moved.check_nothing_left();
            // What is late of it changes nothing any more.
            for entry in std::mem::take(&mut twins.late) {
                let _ = twins.moved.apply(entry.shard, &entry.command);
            }
            twins.moved.finish();
            assert_eq!(twins.moved.told(), twins.still.told(), "seed {seed}, behind what is late");
            twins.old.clear();
        }
        carried_out += twins.carried_out;
    }
    assert!(arrived > 300 && carried_out > 5000 && spoilt > 30, "{arrived} {carried_out} {spoilt}");
}

fn refused(result: Result<Outcome, Error>, kind: Kind, word: &str) {
    let e = result.expect_err("it is refused");
    assert!(e.kind == kind && e.message.contains(word), "{e:?}");
}

/// Steps one entry of each thing that moves on.
fn step(shards: &mut Shards) -> Vec<Command> {
    let left = shards.all(unfinished);
    for entry in &left {
        shards.apply(entry.shard, &entry.command).unwrap();
    }
    left.into_iter().map(|entry| entry.command).collect()
}

/// A directory was frozen for as long as the copy of it took, which is seconds for a million names.
#[test]
fn a_directory_takes_changes_until_all_but_the_last_of_it_is_copied() {
    let _trial = Trial::new().with(&PART_BYTES, 1000).enter();
    let mut shards = Shards::new(2);
    for i in 0..1000 {
        shards.put(&format!("/d/{i:04}"), 5, b"").unwrap();
    }
    shards.apply(0, &copy(1)).unwrap();
    let (mut copied, mut frozen) = (0, 0);
    for i in 0.. {
        let is_frozen = shards.views[0].borders().moves().frozen().next().is_some();
        let written = shards.put(&format!("/d/{:04}", i * 7 % 1000), 6, b"");
        match is_frozen {
            true => refused(written, Kind::Retry, "moving to shard 1"),
            false => drop(written.unwrap()),
        }
        let entries = step(&mut shards);
        if shards.keeper() == 1 {
            break;
        }
        let steps = entries.iter().filter(|e| matches!(e, Command::Step { .. })).count();
        *if is_frozen { &mut frozen } else { &mut copied } += steps;
    }
    assert!(copied > 50 && frozen <= 1, "{copied} steps before the freeze, {frozen} behind it");
    shards.finish();
    assert_eq!(shards.told().len(), 1000);
}

/// A directory that had departed waited for room where it went, and was nowhere meanwhile; one that had not was
/// frozen for as long.
#[test]
fn a_directory_for_which_there_is_no_room_stays_where_it_is_and_takes_changes() {
    let _trial = Trial::new().with(&NODES_MAX, 700).with(&PART_BYTES, 300).enter();
    let mut shards = Shards::new(2);
    shards.apply(0, &make("/full")).unwrap();
    shards.apply(0, &Command::Copy { dir: "/full".into(), to: 1 }).unwrap();
    shards.finish();
    for i in 0..400 {
        shards.put(&format!("/d/{i}"), 5, b"").unwrap();
    }
    shards.apply(0, &copy(1)).unwrap();
    for _ in 0..3 {
        step(&mut shards);
    }
    let mut made = 0;
    while shards.apply(1, &make(&format!("/full/{made}"))).is_ok() {
        made += 1;
    }
    while let Some(left) = shards.all(|all| unfinished(all).pop().filter(|s| s.check(all).is_ok()))
    {
        shards.apply(left.shard, &left.command).unwrap();
    }
    assert!(!shards.all(unfinished).is_empty() && shards.keeper() == 0);
    let told = shards.all(waiting).join("\n");
    for word in ["`/d`", "shard 1 cannot", "delete", "--to 0", "is read and written where it is"] {
        assert!(told.contains(word), "`{word}` in {told}");
    }
    shards.put("/d/new", 9, b"").unwrap();
    assert_eq!(shards.told().len(), 401);
    for i in 0..made {
        shards.apply(1, &delete(&format!("/full/{i}"))).unwrap();
    }
    shards.finish();
    assert_eq!((shards.keeper(), shards.told().len()), (1, 401));
}

/// A rest for which there is no room is not waited for: the directory takes changes again.
#[test]
fn a_directory_that_is_still_takes_changes_again_where_there_is_no_room_for_its_rest() {
    let _trial = Trial::new().with(&NODES_MAX, 1600).with(&PART_BYTES, 60_000).enter();
    let mut shards = Shards::new(2);
    shards.apply(0, &make("/full")).unwrap();
    shards.apply(0, &Command::Copy { dir: "/full".into(), to: 1 }).unwrap();
    shards.finish();
    for i in 0..20 {
        shards.put(&format!("/d/{i}"), 5, b"").unwrap();
    }
    shards.apply(0, &copy(1)).unwrap();
    step(&mut shards);
    // More names than are copied.
    for i in 0..300 {
        shards.put(&format!("/d/late{i}"), 5, b"").unwrap();
    }
    step(&mut shards);
    let frozen = |shards: &Shards| shards.views[0].borders().moves().frozen().next().is_some();
    assert!(frozen(&shards));
    refused(shards.put("/d/no", 5, b""), Kind::Retry, "moving to shard 1");
    let mut made = 0;
    while shards.apply(1, &make(&format!("/full/{made}"))).is_ok() {
        made += 1;
    }
    let entries = step(&mut shards);
    assert!(matches!(entries[..], [Command::Still { still: false, .. }]), "{entries:?}");
    assert!(!frozen(&shards));
    shards.put("/d/yes", 5, b"").unwrap();
    let left = shards.all(unfinished);
    assert!(shards.all(|all| left.iter().all(|step| step.check(all).is_err())), "{left:?}");
    assert!(shards.all(waiting).join("\n").contains("is read and written where it is"));
    for i in 0..made {
        shards.apply(1, &delete(&format!("/full/{i}"))).unwrap();
    }
    shards.finish();
    assert_eq!((shards.keeper(), shards.told().len()), (1, 321));
}

/// On its way home a directory takes names aside whose bytes are there. What was deleted of it meanwhile was not
/// let go there before the next step, which waited for room; nor was anything else of the shard that had it, and
/// the entry was written, and refused, in every round.
#[test]
fn what_is_deleted_on_the_way_to_a_full_shard_is_freed_and_holds_up_no_other() {
    let _trial = Trial::new().with(&NODES_MAX, 1000).with(&PART_BYTES, 300).enter();
    let mut shards = Shards::new(2);
    shards.apply(0, &make("/e")).unwrap();
    for i in 0..400 {
        shards.put(&format!("/d/{i:03}"), 5, b"").unwrap();
    }
    for dir in ["/d", "/e"] {
        shards.apply(0, &Command::Copy { dir: dir.into(), to: 1 }).unwrap();
        shards.finish();
    }
    shards.apply(0, &make("/full")).unwrap();
    shards.apply(1, &copy(0)).unwrap();
    for _ in 0..3 {
        step(&mut shards);
    }
    let mut made = 0;
    while shards.apply(0, &make(&format!("/full/{made}"))).is_ok() {
        made += 1;
    }
    let go_on = |shards: &mut Shards| {
        let mut written = 0;
        loop {
            let left = shards.all(|all| {
                let left = unfinished(all).into_iter();
                left.filter(|step| step.check(all).is_ok()).collect::<Vec<_>>()
            });
            if left.is_empty() {
                return written;
            }
            for entry in left {
                written += 1;
                assert!(written < 2000, "it is written in vain: {entry:?}");
                let _ = shards.apply(entry.shard, &entry.command);
            }
        }
    };
    go_on(&mut shards);
    assert_eq!((shards.keeper(), shards.views[1].chunks().owing()), (1, 0));
    let held = shards.views[0].chunks().held().0;
    assert!(held > 100 && held < 400, "{held}: some are on their way");
    // One that is on its way, and one that is not yet.
    for path in ["/d/000", "/d/399"] {
        shards.apply(1, &delete(path)).unwrap();
    }
    assert_eq!(shards.views[1].chunks().owing(), 2);
    go_on(&mut shards);
    assert_eq!(shards.views[1].chunks().owing(), 0);
    assert_eq!(shards.views[0].chunks().held().0, held - 1);
    // Behind something that needs room it waits, and nothing is written.
    shards.put("/d/new", 9, b"").unwrap();
    shards.apply(1, &delete("/d/001")).unwrap();
    assert_eq!(go_on(&mut shards), 0);
    for i in 0..made {
        shards.apply(0, &delete(&format!("/full/{i}"))).unwrap();
    }
    shards.finish();
    assert_eq!((shards.keeper(), shards.told().len()), (0, 398));
    shards.apply(0, &delete("/full")).unwrap();
    shards.check_nothing_left();
}

/// Moves are taken back at any time before the directory has gone; files that are written for it refuse a move,
/// and hold up one that has begun.
#[test]
fn a_copy_is_taken_back_and_waits_for_files_that_are_written() {
    let mut shards = Shards::new(3);
    shards.put("/d/x", 5, b"").unwrap();
    let begin = Command::Begin { path: "/d/large".into(), class: None, mode: 0o644, mtime: 1 };
    let Ok(Outcome::File { file }) = shards.apply(0, &begin) else { panic!() };
    refused(shards.apply(0, &copy(1)), Kind::Invalid, "being written");
    shards.apply(0, &Command::Abandon { file }).unwrap();
    refused(shards.apply(0, &copy(0)), Kind::Invalid, "keeps it already");
    refused(shards.apply(0, &copy(3)), Kind::NotFound, "there is no shard 3");
    shards.apply(0, &copy(1)).unwrap();
    shards.apply(0, &copy(1)).unwrap();
    refused(shards.apply(0, &copy(2)), Kind::Exists, "moving to shard 1 already");
    let Ok(Outcome::File { file }) = shards.apply(0, &begin) else { panic!() };
    step(&mut shards);
    let told = shards.all(waiting).join("\n");
    for word in ["files are being written", "once that is so", "--to 0"] {
        assert!(told.contains(word), "`{word}` in {told}");
    }
    shards.apply(0, &copy(0)).unwrap();
    shards.finish();
    assert_eq!(shards.views[1].totals().files, 0, "what was taken is discarded");
    shards.apply(0, &Command::Abandon { file }).unwrap();
    // Deleted, or another one, the directory does not go.
    for command in [delete("/d"), rename("/d", "/e")] {
        shards.apply(0, &copy(1)).unwrap();
        step(&mut shards);
        shards.apply(0, &command).unwrap();
        shards.finish();
        assert_eq!((shards.keeper(), shards.views[1].totals().files), (0, 0));
        shards.apply(0, &make("/d")).unwrap();
        shards.put("/d/x", 5, b"").unwrap();
    }
    shards.apply(0, &copy(1)).unwrap();
    shards.finish();
    assert_eq!(shards.keeper(), 1);
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// docs/formats/namespace.md: the entries.
#[test]
fn the_bytes_of_copies_stay() {
    let stamp = holdfast_cluster::moves::Stamp { number: Index(3), freeze: Index(4) };
    let d = || "/d".to_owned();
    let node = PartNode {
        depth: 1,
        name: "x".into(),
        kind: NodeKind::File,
        mode: 0o600,
        mtime: 2,
        class: holdfast_cluster::StorageClass::DEFAULT,
        metadata: b"m".to_vec(),
        crc: Some(3),
        content: Content::None {},
    };
    let changes = vec![
        Changed::Drop { path: "a/b".into() },
        Changed::Set { above: "a".into(), node: node.clone() },
    ];
    let (dir, stamped) = ("02000000 2f64", "0300000000000000 0400000000000000");
    let step = |reach| Command::Step {
        dir: d(),
        stamp,
        step: 5,
        through: 6,
        changes: changes.clone(),
        reach,
    };
    let told = format!(
        "0129 {dir} {stamped} 05000000 0600000000000000 02000000 01 03000000 612f62 \
         02 01000000 61 0100 01000000 78 02 8001 0200000000000000 0210 01000000 6d 01 03000000 01"
    );
    for (command, bytes) in [
        (Command::Copy { dir: d(), to: 1 }, format!("0128 {dir} 0100")),
        (step(Reach::Path { path: "a".into() }), format!("{told} 01 01000000 61")),
        (step(Reach::End {}), format!("{told} 02")),
        (
            Command::Copied { dir: d(), copy: Index(4), through: 2 },
            format!("012a {dir} 0400000000000000 0200000000000000"),
        ),
        (
            Command::Still { dir: d(), copy: Index(4), still: true },
            format!("012b {dir} 0400000000000000 01"),
        ),
        (
            Command::Go { dir: d(), copy: Index(4), steps: 2, changes: 3 },
            format!("012c {dir} 0400000000000000 02000000 0300000000000000"),
        ),
    ] {
        assert_eq!(hex(&command.to_entry()), bytes.replace(' ', ""), "{command:?}");
        assert_eq!(Command::from_entry(&command.to_entry()), Ok(command));
    }
}

/// The same page: the last section of a snapshot, in the shard that copies and in the one that is copied to.
#[test]
fn the_bytes_of_copies_in_snapshots_stay() {
    let mut shards = Shards::new(2);
    shards.put("/d/x", 5, b"").unwrap();
    let tail = |shards: &Shards, shard: usize, version: u8, end: &str| {
        let mut bytes = Vec::new();
        shards.views[shard].snapshot(&mut bytes);
        assert_eq!(bytes[4], version);
        let told = hex(&bytes[..bytes.len() - 4]);
        assert!(told.ends_with(&end.replace(' ', "")), "{told} does not end with {end}");
        Namespace::restore(&bytes).unwrap();
    };
    tail(&shards, 1, 3, "");
    shards.apply(0, &copy(1)).unwrap();
    let at = format!("{:02x}00000000000000", shards.index);
    let (zero, none) = ("0000000000000000", "00000000");
    // To where, since when, told, spoilt; changes.
    let begun = format!("01000000 01000000 64 0100 {at} {zero} 00 {none} {none}");
    tail(&shards, 0, 6, &begun);
    shards.put("/d/x", 6, b"").unwrap();
    shards.apply(0, &delete("/d/x")).unwrap();
    let changes = "02000000 01 01000000 78 02 01000000 78";
    tail(&shards, 0, 6, &format!("01000000 01000000 64 0100 {at} {zero} 00 {changes} {none}"));
    shards.put("/d/y", 7, b"").unwrap();
    step(&mut shards);
    // Heard, reach, broken, waits: the end, for there is one name.
    let there = format!("{none} 01000000 01000000 64 0300000000000000 02 00 00");
    tail(&shards, 1, 6, &there);
    shards.finish();
    // Nothing is copied any more: as builds before have it.
    let versions = [0, 1].map(|shard| {
        let mut bytes = Vec::new();
        shards.views[shard as usize].snapshot(&mut bytes);
        bytes[4]
    });
    assert_eq!(versions, [5, 4]);
}
