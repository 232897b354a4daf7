//! Directories as people really have them, moved from shard to shard: whatever a sequence of commands has made
//! of one arrives as it was. Small worlds have short paths, few names and one way to come to be; here a tree is
//! made by drawn commands, renames of whole subtrees among them, with names at their limits.

use holdfast_base::ids::{
    ChunkId, Cookie, Durability, FileId, Index, NodeId, Pointer, Slot, StoreId, Tier,
};
use holdfast_base::limits::{NAME_BYTES_MAX, PATH_DEPTH_MAX};
use holdfast_base::{Error, Kind};
use holdfast_cluster::moves::unfinished;
use holdfast_cluster::names::PART_BYTES;
use holdfast_cluster::{
    AllShards, ChunkKind, Command, FileInfo, Location, Namespace, NodeKind, Outcome,
};
use holdfast_env::trial::Trial;
use holdfast_env::{Rng, SeededRng};

const BYTES: u64 = 100;

/// A path, what is known of it but its id, its metadata, the target of a link.
type Told = (String, FileInfo, Option<Vec<u8>>, Option<String>);

/// Shards whose entries all come at once, and nothing is killed: `moves.rs` has the rest.
struct Shards {
    views: Vec<Namespace>,
    index: u64,
    chunk: ChunkId,
    slot: u32,
}

impl Shards {
    fn new(count: u16) -> Shards {
        let views = (0..count).map(Namespace::new).collect();
        let mut shards = Shards { views, index: 0, chunk: ChunkId(0), slot: 0 };
        for shard in 1..count {
            shards.apply(0, &Command::AddShard { shard }).unwrap();
        }
        let (tier, durability, owner) = (Tier::Disk, Durability::Durable, FileId(0));
        let (kind, node, replicas) = (ChunkKind::Packed, NodeId(1), vec![StoreId(1)]);
        let allocate = Command::AllocateChunk { kind, owner, node, replicas, tier, durability };
        let Ok(Outcome::Chunk { chunk }) = shards.apply(0, &allocate) else { panic!() };
        shards.chunk = chunk;
        shards.apply(0, &make("/d")).unwrap();
        shards
    }

    fn apply(&mut self, shard: u16, command: &Command) -> Result<Outcome, Error> {
        let entry = command.to_entry_by(self.views[0].borders());
        self.index += 1;
        self.views[shard as usize].apply_bytes(Index(self.index), &entry)
    }

    fn all<T>(&self, read: impl FnOnce(&AllShards<'_>) -> T) -> T {
        let others: Vec<_> = self.views[1..].iter().map(Some).collect();
        read(&AllShards::new(&self.views[0], &others))
    }

    /// `/d` goes to a shard, as its leader has it go: in parts, or copied first.
    fn move_to(&mut self, to: u16, copied: bool) {
        let (keeper, dir) = (self.views[0].shard_at("/d"), "/d".to_owned());
        let begin = match copied {
            true => Command::Copy { dir, to },
            false => Command::Freeze { dir, to },
        };
        self.apply(keeper, &begin).unwrap();
        for _ in 0..100_000 {
            let left = self.all(unfinished);
            if left.is_empty() {
                break;
            }
            for step in left {
                if let Err(e) = self.apply(step.shard, &step.command) {
                    assert_eq!(e.kind, Kind::Retry, "it cannot go on: {e}");
                }
            }
        }
        assert_eq!(self.views[0].shard_at("/d"), to);
        assert!(self.all(unfinished).is_empty(), "it has an end");
    }

    fn put(&mut self, path: &str, metadata: Vec<u8>) -> Result<Outcome, Error> {
        let (chunk, slot, cookie) = (self.chunk, Slot(self.slot), Cookie(3));
        self.slot += 1;
        let location = Location::Packed { pointer: Pointer { chunk, slot, cookie } };
        let (kind, mode, mtime, size, crc, class) = (NodeKind::File, 0o600, 5, BYTES, 7, None);
        let (path, replace, parents) = (path.to_owned(), true, false);
        self.apply(
            0,
            &Command::Put {
                path,
                kind,
                mode,
                mtime,
                size,
                crc,
                class,
                location,
                replace,
                parents,
                metadata,
            },
        )
    }

    /// All that is below `/d` with everything that is known of it but its ids, as far as a path reaches; and
    /// how much there is in all.
    fn told(&self) -> (String, Vec<Told>) {
        self.all(|all| {
            let (mut told, mut dirs) = (Vec::new(), vec!["/d".to_owned()]);
            let view = all.of_path("/d").unwrap();
            while let Some(dir) = dirs.pop() {
                let Ok(page) = all.list(&dir, None, 100_000) else { continue };
                assert!(!page.more);
                for entry in page.entries {
                    let (path, id) = (format!("{dir}/{}", entry.name), entry.info.id);
                    if entry.info.kind.is_container() {
                        dirs.push(path.clone());
                    }
                    let metadata = view.metadata(id).map(<[u8]>::to_vec);
                    let target = view.link_target(id).map(str::to_owned);
                    told.push((path, FileInfo { id: FileId(1), ..entry.info }, metadata, target));
                }
            }
            (format!("{:?}", all.usage("/d").unwrap()), told)
        })
    }
}

fn make(path: &str) -> Command {
    let (kind, mode, mtime, class) = (NodeKind::Directory, 0o750, 7, None);
    Command::MakeDir { path: path.into(), kind, mode, mtime, class, parents: false }
}

fn rename(from: &str, to: &str) -> Command {
    Command::Rename { from: from.into(), to: to.into(), replace: true }
}

/// A rename takes a subtree below a path of any depth, so a tree may be deeper than a path can say. Its parts
/// were refused for good, and the directory stayed frozen for as long as nobody took that back.
#[test]
fn a_tree_that_is_deeper_than_any_path_moves_too() {
    let mut shards = Shards::new(2);
    let deep = |top: &str| format!("{top}{}", "/n".repeat(PATH_DEPTH_MAX - 2));
    for top in ["/a", "/b"] {
        let mut path = top.to_owned();
        shards.apply(0, &make(&path)).unwrap();
        while path != deep(top) {
            path.push_str("/n");
            shards.apply(0, &make(&path)).unwrap();
        }
    }
    shards.put(&format!("{}/file", deep("/a")), b"meta".to_vec()).unwrap();
    shards.apply(0, &rename("/a", &format!("{}/a", deep("/b")))).unwrap();
    shards.apply(0, &rename("/b", "/d/b")).unwrap();
    let before = shards.told();
    assert!(before.0.contains("files: 1, directories: 511"), "{}", before.0);
    for (to, copied) in [(1, false), (0, true), (1, true), (0, false)] {
        shards.move_to(to, copied);
        assert!(shards.told() == before, "to shard {to}");
    }
    // It can be taken up again where a path reaches.
    shards.apply(0, &rename("/d/b/n/n/n/n", "/d/c")).unwrap();
    shards.move_to(1, true);
    assert!(shards.told().0 == before.0);
}

fn name(rng: &SeededRng) -> String {
    let one = |of: &str| {
        let all: Vec<char> = of.chars().collect();
        all[rng.next_u64() as usize % all.len()]
    };
    match rng.next_u64() % 8 {
        0 => one("0a\u{1}\u{7f}é\u{10ffff}\\").to_string().repeat(1 + rng.next_u64() as usize % 60),
        1 => "n".repeat(NAME_BYTES_MAX),
        2 => format!("{}{}", "x".repeat(16), one("ab")),
        _ => one("abcde").to_string(),
    }
}

#[test]
fn whatever_commands_have_made_of_a_directory_arrives_as_it_was() {
    let (mut nodes, mut renamed) = (0, 0);
    for seed in 0..30 {
        let rng = SeededRng::new(seed);
        let part_bytes = [1, 70, 500, 60_000][rng.next_u64() as usize % 4];
        let _trial = Trial::new().with(&PART_BYTES, part_bytes).enter();
        let mut shards = Shards::new(3);
        let mut paths = vec!["/d".to_owned()];
        let drawn = |paths: &[String]| paths[rng.next_u64() as usize % paths.len()].clone();
        for _ in 0..120 {
            let path = format!("{}/{}", drawn(&paths), name(&rng));
            let done = match rng.next_u64() % 16 {
                0..4 => shards.apply(0, &make(&path)),
                4 => {
                    let (kind, class) = (NodeKind::Table, None);
                    let (path, mode, mtime, parents) = (path.clone(), 0o700, 3, false);
                    shards.apply(0, &Command::MakeDir { path, kind, mode, mtime, class, parents })
                }
                5 => {
                    let (path, target) = (path.clone(), "../\u{2}/é".to_owned());
                    shards.apply(0, &Command::Symlink { path, target, mtime: 4 })
                }
                6 | 7 => {
                    let done = shards.apply(0, &rename(&drawn(&paths), &path));
                    renamed += u32::from(done.is_ok());
                    done
                }
                8 if paths.len() > 1 => {
                    let recursive = true;
                    shards.apply(0, &Command::Delete { path: drawn(&paths[1..]), recursive })
                }
                _ => {
                    let metadata = vec![9; (rng.next_u64() % 3 * 40_000 % 65_000) as usize];
                    shards.put(&path, metadata)
                }
            };
            if done.is_ok() {
                let known = shards.told().1.into_iter().map(|(path, ..)| path);
                paths = std::iter::once("/d".to_owned()).chain(known).collect();
            }
        }
        let before = shards.told();
        nodes += before.1.len();
        for (to, copied) in [(1, true), (0, true), (2, false), (0, false), (1, false), (0, true)] {
            shards.move_to(to, copied);
            assert!(shards.told() == before, "seed {seed}, to shard {to}");
        }
        for view in &shards.views {
            let mut bytes = Vec::new();
            view.snapshot(&mut bytes);
            Namespace::restore(&bytes).unwrap();
            assert_eq!(view.chunks().held(), (0, 0));
        }
    }
    assert!(nodes > 400 && renamed > 80, "{nodes} nodes, {renamed} renames");
}
