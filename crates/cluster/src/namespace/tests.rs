//! The rules, one by one. `tests/model.rs` tries them in random order against a naive model.

mod replicas;

use super::*;
use crate::names::{Totals, Usage};
use crate::{ChunkState, Location, NodeKind, RawExtent, Remainder, StorageClass};
use holdfast_base::Kind;
use holdfast_base::ids::{Cookie, Generation, Pointer, Slot};
use holdfast_base::limits::CHUNK_BYTES;

/// A namespace and the index of its next entry.
struct World {
    ns: Namespace,
    index: u64,
}

impl World {
    fn new() -> World {
        World { ns: Namespace::new(0), index: 1 }
    }

    fn apply(&mut self, command: Command) -> Result<Outcome> {
        let before = self.bytes();
        let entry = command.to_entry();
        let result = self.ns.apply_bytes(Index(self.index), &entry);
        self.index += 1;
        match &result {
            Err(_) => assert!(self.bytes() == before, "a refusal changed something: {command:?}"),
            // Every state that a test passes through must come back from its bytes.
            Ok(_) => {
                let bytes = self.bytes();
                let back = Namespace::restore(&bytes).unwrap();
                let mut again = Vec::new();
                back.snapshot(&mut again);
                assert!(bytes == again, "{command:?}");
                assert_eq!(back.totals(), self.ns.totals());
            }
        }
        result
    }

    fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.ns.snapshot(&mut out);
        out
    }

    fn ok(&mut self, command: Command) -> Outcome {
        self.apply(command).unwrap()
    }

    fn refused(&mut self, command: Command, kind: Kind, why: &str) {
        let error = self.apply(command.clone()).expect_err(&format!("{command:?}"));
        assert!(error.message.contains(why), "{error} should say {why}");
        assert_eq!(error.kind, kind, "{error}");
    }

    fn file(&mut self, command: Command) -> FileId {
        match self.ok(command) {
            Outcome::File { file } => file,
            other => panic!("{other:?}"),
        }
    }

    fn dir(&mut self, path: &str) -> FileId {
        self.file(make(path, NodeKind::Directory))
    }

    fn chunk(&mut self, kind: ChunkKind, owner: FileId) -> ChunkId {
        match self.ok(allocate(kind, owner)) {
            Outcome::Chunk { chunk } => chunk,
            other => panic!("{other:?}"),
        }
    }

    fn sealed(&mut self, owner: FileId, length: u64) -> ChunkId {
        let chunk = self.chunk(ChunkKind::Raw, owner);
        self.ok(seal(chunk, length));
        chunk
    }

    fn release_all(&mut self) {
        self.ok(Command::Release { before: Index(self.index), budget: u32::MAX });
    }

    fn names(&self, path: &str) -> Vec<String> {
        self.ns.list(path, None, 4096).unwrap().entries.into_iter().map(|e| e.name).collect()
    }
}

fn make(path: &str, kind: NodeKind) -> Command {
    Command::MakeDir { path: path.into(), kind, mode: 0o755, mtime: 5, class: None, parents: false }
}

fn allocate(kind: ChunkKind, owner: FileId) -> Command {
    Command::AllocateChunk {
        kind,
        owner,
        node: NodeId(1),
        replicas: vec![StoreId(7)],
        tier: Tier::Disk,
        durability: Durability::Durable,
    }
}

fn seal(chunk: ChunkId, length: u64) -> Command {
    Command::SealChunk { chunk, length, replicas: vec![StoreId(7)] }
}

fn unlink(chunk: ChunkId, generation: u32) -> Command {
    Command::Unlink { chunk, generation: Generation(generation), store: StoreId(7) }
}

fn pointer(chunk: ChunkId, slot: u32) -> Pointer {
    Pointer { chunk, slot: Slot(slot), cookie: Cookie(slot + 1) }
}

/// Puts 100 bytes, or none.
fn put(path: &str, at: Option<Pointer>, replace: bool) -> Command {
    put_kind(path, NodeKind::File, at, replace)
}

fn put_kind(path: &str, kind: NodeKind, at: Option<Pointer>, replace: bool) -> Command {
    Command::Put {
        path: path.into(),
        kind,
        mode: 0o644,
        mtime: 9,
        size: if at.is_some() { 100 } else { 0 },
        crc: 77,
        class: None,
        location: at.map_or(Location::Inline {}, |pointer| Location::Packed { pointer }),
        replace,
        parents: false,
        metadata: Vec::new(),
    }
}

fn begin(path: &str) -> Command {
    Command::Begin { path: path.into(), class: None, mode: 0o600, mtime: 3 }
}

fn close(file: FileId, path: &str, extents: &[(ChunkId, u64)]) -> Command {
    Command::Close {
        file,
        path: path.into(),
        size: extents.iter().map(|e| e.1).sum(),
        crc: None,
        extents: extents
            .iter()
            .map(|(chunk, length)| RawExtent { chunk: *chunk, length: *length })
            .collect(),
        remainder: None,
        mode: 0o640,
        mtime: 4,
        replace: false,
        metadata: b"user".to_vec(),
    }
}

fn rename(from: &str, to: &str, replace: bool) -> Command {
    Command::Rename { from: from.into(), to: to.into(), replace }
}

fn delete(path: &str, recursive: bool) -> Command {
    Command::Delete { path: path.into(), recursive }
}

#[test]
fn every_bad_path_is_refused_by_every_command_with_the_reason() {
    let mut w = World::new();
    let file = w.file(begin("/x"));
    let long = format!("/{}", "n/".repeat(2048));
    let name = format!("/{}", "n".repeat(256));
    for (bad, why) in [
        ("", "absolute"),
        ("a", "absolute"),
        ("/a//b", "doubled"),
        ("/../a", "relative"),
        ("/a\0", "NUL"),
        (long.as_str(), "4095"),
        (name.as_str(), "255"),
    ] {
        for command in [
            make(bad, NodeKind::Directory),
            put(bad, None, false),
            Command::Symlink { path: bad.into(), target: "/".into(), mtime: 0 },
            begin(bad),
            close(file, bad, &[]),
            Command::Salvage { file, path: bad.into(), extents: vec![] },
            rename(bad, "/ok", false),
            delete(bad, true),
            Command::SetClass { path: bad.into(), class: StorageClass::DEFAULT },
            Command::SetAttributes { path: bad.into(), mode: None, mtime: None, metadata: None },
        ] {
            w.refused(command, Kind::Invalid, why);
        }
        assert_eq!(w.ns.lookup(bad), None);
        assert!(w.ns.list(bad, None, 10).is_err() && w.ns.resolve(bad).is_err());
    }
    assert_eq!(w.ns.totals(), Totals { directories: 1, ..Totals::default() });
}

#[test]
fn directories_are_made_with_parents_only_when_asked() {
    let mut w = World::new();
    w.refused(make("/a/b/c", NodeKind::Directory), Kind::NotFound, "directory `/a` does not exist");
    let mut deep = make("/a/b/c", NodeKind::Table);
    if let Command::MakeDir { parents, .. } = &mut deep {
        *parents = true;
    }
    let id = w.file(deep.clone());
    assert_eq!(w.file(deep), id, "mkdir -p twice is no error");
    w.refused(make("/a/b/c", NodeKind::Table), Kind::Exists, "it exists, as a table");
    w.refused(
        make("/a/b/c/d", NodeKind::Directory),
        Kind::Invalid,
        "a table cannot hold a directory",
    );
    w.refused(make("/", NodeKind::Directory), Kind::Exists, "root");
    assert_eq!(w.ns.lookup("/a/b").unwrap().kind, NodeKind::Directory);
    assert_eq!(w.ns.lookup("/a/b/").unwrap().id, w.ns.lookup("/a/b").unwrap().id);
    w.ok(put("/a/f", None, false));
    w.refused(
        make("/a/f/g", NodeKind::Directory),
        Kind::Invalid,
        "`/a/f` is a file, not a directory",
    );
}

#[test]
fn classes_are_inherited_at_creation_and_can_be_given() {
    let mut w = World::new();
    let fast = StorageClass::new(&[Tier::Dram, Tier::Disk], Durability::Memory).unwrap();
    w.dir("/d");
    w.ok(put("/d/old", None, false));
    w.ok(Command::SetClass { path: "/d".into(), class: fast });
    w.ok(put("/d/new", None, false));
    let unclosed = w.file(begin("/d/no/such/dir"));
    assert_eq!(w.ns.info(unclosed).unwrap().class, fast);
    assert_eq!(w.ns.lookup("/d/old").unwrap().class, StorageClass::DEFAULT);
    assert_eq!(w.ns.lookup("/d/new").unwrap().class, fast);
    let class = Some(StorageClass::DEFAULT);
    let given = Command::Begin { path: "/d/x".into(), class, mode: 0, mtime: 0 };
    let given = w.file(given);
    assert_eq!(w.ns.info(given).unwrap().class, StorageClass::DEFAULT);
    let set = Command::SetClass { path: "/d/old".into(), class: fast };
    w.refused(set, Kind::Invalid, "copy it");
}

#[test]
fn put_replaces_only_when_asked_except_in_tables() {
    let mut w = World::new();
    let chunk = w.chunk(ChunkKind::Packed, FileId(0));
    let first = w.file(put("/f", Some(pointer(chunk, 0)), false));
    w.refused(put("/f", Some(pointer(chunk, 1)), false), Kind::Exists, "ask to replace");
    let second = w.file(put("/f", Some(pointer(chunk, 1)), true));
    assert_ne!(first, second);
    assert_eq!(w.ns.info(first), None, "an id is never used again");
    assert_eq!(
        w.ns.lookup("/f").unwrap().location,
        Location::Packed { pointer: pointer(chunk, 1) }
    );
    w.dir("/d");
    w.refused(put("/d", None, true), Kind::Exists, "it is a directory");
    w.refused(
        put_kind("/kv", NodeKind::KeyValue, None, false),
        Kind::Invalid,
        "cannot hold a key-value",
    );
    w.refused(put_kind("/kv", NodeKind::Table, None, false), Kind::Invalid, "no bytes to put");
    w.ok(make("/t", NodeKind::Table));
    w.refused(put("/t/k", None, false), Kind::Invalid, "a table cannot hold a file");
    w.ok(put_kind("/t/k", NodeKind::KeyValue, None, false));
    w.ok(put_kind("/t/k", NodeKind::KeyValue, Some(pointer(chunk, 2)), false));
    assert_eq!(w.ns.lookup("/t/k").unwrap().size, 100);
    assert_eq!(w.ns.totals(), Totals { files: 2, directories: 3, symlinks: 0, bytes: 200 });
}

#[test]
fn pointers_need_a_known_open_chunk_and_a_fresh_slot() {
    let mut w = World::new();
    let chunk = w.chunk(ChunkKind::Packed, FileId(0));
    let owner = w.file(begin("/x"));
    let raw = w.chunk(ChunkKind::Raw, owner);
    let unknown = ChunkId::new(0, 99);
    w.refused(
        put("/f", Some(pointer(unknown, 0)), false),
        Kind::Invalid,
        "`c0.99`, which is not known",
    );
    w.refused(put("/f", Some(pointer(raw, 0)), false), Kind::Invalid, "not packed");
    w.refused(put("/f", Some(pointer(chunk, 1 << 20)), false), Kind::Invalid, "beyond the last");
    w.ok(put("/f", Some(pointer(chunk, 3)), false));
    w.refused(put("/g", Some(pointer(chunk, 3)), false), Kind::Invalid, "named before");
    w.ok(seal(chunk, 1000));
    w.ok(put("/g", Some(pointer(chunk, 4)), false));
    w.ok(Command::CloseChunk { chunk });
    w.refused(put("/h", Some(pointer(chunk, 5)), false), Kind::Retry, "which is closed");
    w.ok(delete("/f", false));
    w.ok(delete("/g", false));
    w.release_all();
    w.refused(put("/h", Some(pointer(chunk, 5)), false), Kind::Retry, "which is doomed");
}

#[test]
fn a_dead_slot_is_never_named_again() {
    let mut w = World::new();
    let chunk = w.chunk(ChunkKind::Packed, FileId(0));
    w.ok(put("/a", Some(pointer(chunk, 0)), false));
    w.ok(put("/b", Some(pointer(chunk, 70)), false));
    w.ok(delete("/a", false));
    assert_eq!(
        w.ns.chunks().live_slots(chunk).unwrap(),
        [Slot(0), Slot(70)],
        "a reader may hold it"
    );
    w.release_all();
    assert_eq!(w.ns.chunks().live_slots(chunk).unwrap(), [Slot(70)]);
    let info = w.ns.chunks().get(chunk).unwrap();
    assert_eq!((info.live_objects, info.live_bytes), (1, 100));
    w.refused(put("/c", Some(pointer(chunk, 0)), false), Kind::Invalid, "named before");
}

#[test]
fn a_large_file_is_invisible_until_closed_and_keeps_its_id() {
    let mut w = World::new();
    w.dir("/d");
    let file = w.file(begin("/d/f"));
    let (a, b, spare) =
        (w.sealed(file, CHUNK_BYTES), w.chunk(ChunkKind::Raw, file), w.chunk(ChunkKind::Raw, file));
    assert_eq!(w.ns.lookup("/d/f"), None);
    assert_eq!(w.ns.path_of(file), None);
    assert_eq!(w.ns.unclosed()[0].chunks, [a, b, spare]);
    let all = [(a, CHUNK_BYTES), (b, 10)];
    w.refused(close(file, "/d/f", &all), Kind::Invalid, "not sealed");
    w.ok(seal(b, 9));
    w.refused(close(file, "/d/f", &all), Kind::Invalid, "sealed at 9 bytes, an extent of 10");
    w.refused(close(file, "/d/f", &[(a, 5), (a, 5)]), Kind::Invalid, "twice");
    w.refused(close(file, "/no/f", &[]), Kind::NotFound, "`/no`");
    let other = w.file(begin("/o"));
    w.refused(close(other, "/o", &[(a, 5)]), Kind::Invalid, "another file");
    let packed = w.chunk(ChunkKind::Packed, FileId(0));
    let mut command = close(file, "/d/f", &[(a, CHUNK_BYTES), (b, 9)]);
    if let Command::Close { remainder, size, crc, .. } = &mut command {
        *remainder = Some(Remainder { pointer: pointer(packed, 2), length: 50 });
        *crc = Some(123);
        w.refused(close(FileId(99), "/d/f", &[]), Kind::NotFound, "`f99` is no file being written");
        *size += 50;
    }
    assert_eq!(w.file(command.clone()), file);
    w.refused(command, Kind::NotFound, "no file being written");
    let info = w.ns.lookup("/d/f").unwrap();
    assert_eq!((info.size, info.crc, info.mode), (CHUNK_BYTES + 59, Some(123), 0o640));
    assert_eq!(w.ns.path_of(file).unwrap(), "/d/f");
    assert_eq!(w.ns.metadata(file).unwrap(), b"user");
    let (extents, remainder) = w.ns.extents(file).unwrap();
    assert_eq!((extents.len(), remainder.unwrap().length), (2, 50));
    assert!(w.ns.chunks().get(spare).unwrap().freed, "chunks without bytes of the file are freed");
    w.release_all();
    w.refused(unlink(a, 0), Kind::Invalid, "it stays");
    w.ok(unlink(spare, 0));
    assert_eq!(w.ns.chunks().get(spare), None);
}

#[test]
fn abandon_and_salvage_end_an_unclosed_file() {
    let mut w = World::new();
    let (dead, saved) = (w.file(begin("/dead")), w.file(begin("/saved")));
    let (a, b) = (w.chunk(ChunkKind::Raw, dead), w.sealed(saved, 40));
    w.ok(Command::Abandon { file: dead });
    w.refused(Command::Abandon { file: dead }, Kind::NotFound, "no file being written");
    w.refused(allocate(ChunkKind::Raw, dead), Kind::NotFound, "no file being written");
    w.release_all();
    w.ok(unlink(a, 0));
    w.ok(Command::Salvage {
        file: saved,
        path: "/found".into(),
        extents: vec![RawExtent { chunk: b, length: 30 }],
    });
    assert_eq!(w.ns.lookup("/found").unwrap().size, 30);
    assert!(w.ns.unclosed().is_empty());
}

#[test]
fn the_first_seal_decides_and_later_ones_are_told() {
    let mut w = World::new();
    let file = w.file(begin("/x"));
    let chunk = w.chunk(ChunkKind::Raw, file);
    let foreign = Command::SealChunk { chunk, length: 5, replicas: vec![StoreId(8)] };
    w.refused(foreign.clone(), Kind::Invalid, "store `st8` never held it");
    w.refused(seal(chunk, CHUNK_BYTES + 1), Kind::Invalid, "more than a chunk's");
    let first = Outcome::Sealed { length: 5, replicas: vec![StoreId(7)] };
    assert_eq!(w.ok(seal(chunk, 5)), first);
    assert_eq!(w.ok(seal(chunk, 9)), first);
    assert_eq!(w.ok(foreign), first);
    w.refused(seal(ChunkId::new(0, 50), 5), Kind::NotFound, "seal chunk `c0.50`");
}

#[test]
fn directories_move_whole_but_never_into_themselves() {
    let mut w = World::new();
    for path in ["/a", "/a/b", "/a/b/c", "/z"] {
        w.dir(path);
    }
    let file = w.file(put("/a/b/c/f", None, false));
    for to in ["/a/x", "/a/b/x", "/a/b/c/x"] {
        w.refused(rename("/a", to, true), Kind::Invalid, "own subtree");
    }
    w.refused(rename("/a/b/c", "/a/b", true), Kind::Exists, "not empty");
    w.refused(rename("/", "/r", true), Kind::Invalid, "root");
    w.refused(rename("/a", "/", true), Kind::Exists, "root");
    w.refused(rename("/no", "/x", true), Kind::NotFound, "does not exist");
    w.ok(rename("/a", "/a", false));
    w.ok(rename("/a/b", "/z/b2", false));
    assert_eq!(w.ns.path_of(file).unwrap(), "/z/b2/c/f");
    assert_eq!(w.ns.lookup("/a/b/c/f"), None);
    assert_eq!(w.ns.lookup("/z/b2/c/f").unwrap().id, file);
    let long = format!("/z/{}", "l".repeat(255));
    w.ok(rename("/z/b2", &long, false));
    assert_eq!(w.ns.path_of(file).unwrap(), format!("{long}/c/f"));
}

#[test]
fn rename_replaces_like_by_like() {
    let mut w = World::new();
    let chunk = w.chunk(ChunkKind::Packed, FileId(0));
    for path in ["/d", "/empty", "/full", "/full/x"] {
        w.dir(path);
    }
    w.ok(make("/t", NodeKind::Table));
    w.ok(put("/f", Some(pointer(chunk, 0)), false));
    w.ok(put("/g", Some(pointer(chunk, 1)), false));
    w.refused(rename("/f", "/g", false), Kind::Exists, "taken");
    w.refused(rename("/f", "/d", true), Kind::Exists, "a file cannot replace a directory");
    w.refused(rename("/d", "/f", true), Kind::Exists, "a directory cannot replace a file");
    w.refused(rename("/d", "/full", true), Kind::Exists, "not empty");
    w.refused(rename("/d", "/t", true), Kind::Exists, "a directory cannot replace a table");
    w.refused(rename("/f", "/t/f", true), Kind::Invalid, "a table cannot hold a file");
    w.ok(rename("/d", "/empty", true));
    w.ok(rename("/f", "/g", true));
    assert_eq!(w.names("/"), ["empty", "full", "g", "t"]);
    assert_eq!(
        w.ns.lookup("/g").unwrap().location,
        Location::Packed { pointer: pointer(chunk, 0) }
    );
    assert_eq!(w.ns.chunks().freed().0, 1, "what was replaced waits for its readers");
}

#[test]
fn a_recursive_delete_is_one_entry_and_bounded_work_later() {
    let mut w = World::new();
    let chunk = w.chunk(ChunkKind::Packed, FileId(0));
    w.dir("/top");
    let mut path = "/top".to_owned();
    let mut files = Vec::new();
    for i in 0..20 {
        path += "/d";
        w.dir(&path);
        files.push(w.file(put(&format!("{path}/f"), Some(pointer(chunk, i)), false)));
    }
    w.refused(delete("/top", false), Kind::Invalid, "a directory with 1 entries");
    w.refused(delete("/", true), Kind::Invalid, "root");
    w.ok(delete("/top", true));
    assert_eq!(w.ns.lookup("/top"), None);
    assert_eq!(w.ns.info(files[19]), None, "ids below a deleted directory name nothing");
    assert_eq!(w.ns.path_of(files[0]), None);
    w.dir("/top");
    // Each entry makes progress, however small its budget and however deep the tree.
    let mut entries = 0;
    while w.ns.names().needs_reclaim() {
        let Outcome::Progress { steps, more } = w.ok(Command::Reclaim { budget: 3 }) else {
            panic!()
        };
        assert!(steps <= 3 && more == w.ns.names().needs_reclaim());
        entries += 1;
    }
    assert_eq!(entries, 27, "41 nodes freed, 40 of them detached first: 81 steps");
    assert_eq!(w.ns.chunks().freed().0, 20);
    assert_eq!(w.ns.totals(), Totals { directories: 2, ..Totals::default() });
    assert_eq!(w.names("/top"), [""; 0]);
}

#[test]
fn nothing_goes_before_its_grace_is_over() {
    let mut w = World::new();
    let file = w.file(begin("/f"));
    let raw = w.sealed(file, 10);
    w.ok(close(file, "/f", &[(raw, 10)]));
    w.refused(unlink(raw, 0), Kind::Invalid, "it is sealed");
    let deleted = w.index;
    w.ok(delete("/f", false));
    w.refused(unlink(raw, 0), Kind::Invalid, "grace");
    w.ok(Command::Release { before: Index(deleted), budget: 100 });
    w.refused(unlink(raw, 0), Kind::Invalid, "grace");
    w.ok(Command::Release { before: Index(deleted + 1), budget: 0 });
    w.refused(unlink(raw, 0), Kind::Invalid, "grace");
    w.ok(Command::Release { before: Index(deleted + 1), budget: 1 });
    w.refused(unlink(raw, 1), Kind::NotFound, "no such generation");
    let elsewhere = Command::Unlink { chunk: raw, generation: Generation(0), store: StoreId(9) };
    w.refused(elsewhere, Kind::NotFound, "does not hold it");
    w.ok(unlink(raw, 0));
    w.refused(unlink(raw, 0), Kind::NotFound, "not known");
}

#[test]
fn compaction_switches_generations_and_old_ones_go_after_their_grace() {
    let mut w = World::new();
    let chunk = w.chunk(ChunkKind::Packed, FileId(0));
    w.ok(put("/a", Some(pointer(chunk, 0)), false));
    let switch = |to| Command::SwitchGeneration {
        chunk,
        generation: Generation(to),
        length: 100,
        digest: 42,
    };
    w.refused(Command::CloseChunk { chunk }, Kind::Invalid, "seal it first");
    w.refused(switch(1), Kind::Invalid, "only a closed chunk");
    w.ok(seal(chunk, 1000));
    w.ok(Command::CloseChunk { chunk });
    w.ok(Command::CloseChunk { chunk });
    w.refused(switch(2), Kind::Invalid, "it is at generation `g0`");
    w.ok(switch(1));
    w.refused(unlink(chunk, 0), Kind::Invalid, "grace");
    w.refused(unlink(chunk, 1), Kind::Invalid, "1 live objects");
    w.release_all();
    w.ok(unlink(chunk, 0));
    assert_eq!(
        w.ns.lookup("/a").unwrap().location,
        Location::Packed { pointer: pointer(chunk, 0) }
    );
    w.ok(switch(2));
    w.ok(delete("/a", false));
    w.release_all();
    assert_eq!(w.ns.chunks().get(chunk).unwrap().state, ChunkState::Doomed);
    w.refused(switch(3), Kind::Invalid, "it is doomed");
    w.ok(unlink(chunk, 2));
    assert!(w.ns.chunks().get(chunk).is_some(), "the old generation is still somewhere");
    w.ok(unlink(chunk, 1));
    assert_eq!(w.ns.chunks().count(), 0);
    let fresh = w.chunk(ChunkKind::Packed, FileId(0));
    assert_eq!(fresh.counter(), chunk.counter() + 1, "chunk ids are never used again");
}

#[test]
fn listings_page_in_order_while_names_come_and_go() {
    let mut w = World { ns: Namespace::new(0), index: 1 };
    let apply = |w: &mut World, command: Command| {
        w.ns.apply(Index(w.index), &command).unwrap();
        w.index += 1;
    };
    for i in 0..5000u32 {
        let name = i.wrapping_mul(2_654_435_761) % 5000 * 2;
        let path = format!("/n{name:05}");
        if w.ns.lookup(&path).is_none() {
            apply(&mut w, put(&path, None, false));
        }
    }
    let (mut after, mut seen, mut page) = (None::<String>, Vec::new(), 0);
    loop {
        let list = w.ns.list("/", after.as_deref(), 300).unwrap();
        seen.extend(list.entries.iter().map(|entry| entry.name.clone()));
        after = seen.last().cloned();
        if !list.more {
            break;
        }
        // One name behind the cursor and one before it come, the cursor's own goes.
        page += 1;
        apply(&mut w, put(&format!("/m{page}"), None, false));
        apply(&mut w, put(&format!("{}x", "/n09999"), None, true));
        apply(&mut w, delete(&format!("/{}", after.as_deref().unwrap()), false));
    }
    assert!(seen.is_sorted() && seen.windows(2).all(|pair| pair[0] != pair[1]));
    assert_eq!(seen.last().unwrap(), "n09999x");
    assert!(!seen.iter().any(|name| name.starts_with('m')));
    assert!(page > 10 && w.names("/").len() == 4096);
}

#[test]
fn symlinks_are_followed_by_resolve_only() {
    let mut w = World::new();
    for path in ["/a", "/a/b"] {
        w.dir(path);
    }
    let file = w.file(put("/a/b/f", None, false));
    for (path, target) in [
        ("/abs", "/a/b"),
        ("/a/up", "../a/./b/f"),
        ("/l1", "l2"),
        ("/l2", "/l1"),
        ("/broken", "nowhere"),
        ("/above", "../../../a"),
    ] {
        w.ok(Command::Symlink { path: path.into(), target: target.into(), mtime: 1 });
    }
    let link = w.ns.lookup("/abs").unwrap();
    assert_eq!((link.kind, link.size), (NodeKind::Symlink, 4));
    assert_eq!(w.ns.link_target(link.id), Some("/a/b"));
    assert_eq!(w.ns.lookup("/abs/f"), None);
    for path in ["/abs/f", "/a/up", "/above/b/f", "/above/../abs/f"] {
        if !path.contains("..") {
            let (plain, info) = w.ns.resolve(path).unwrap();
            assert_eq!((plain.as_str(), info.id), ("/a/b/f", file), "{path}");
        }
    }
    assert!(w.ns.resolve("/l1").unwrap_err().message.contains("loop"));
    assert!(w.ns.resolve("/broken").unwrap_err().message.contains("`nowhere` does not exist"));
    assert!(w.ns.resolve("/a/b/f/g").unwrap_err().message.contains("`f` on its way is a file"));
    let empty = Command::Symlink { path: "/e".into(), target: String::new(), mtime: 1 };
    w.refused(empty, Kind::Invalid, "target");
}

#[test]
fn attributes_change_and_their_limits_hold() {
    let mut w = World::new();
    let id = w.file(put("/f", None, false));
    let set = |mode, metadata: Option<Vec<u8>>| Command::SetAttributes {
        path: "/f".into(),
        mode,
        mtime: None,
        metadata,
    };
    w.ok(set(Some(0o4755), Some(vec![1; 64 << 10])));
    assert_eq!(w.ns.metadata(id).unwrap().len(), 64 << 10);
    assert!(w.ns.lookup("/f").unwrap().has_metadata);
    w.refused(set(None, Some(vec![1; (64 << 10) + 1])), Kind::Invalid, "metadata of 65537 bytes");
    w.refused(set(Some(0o10000), None), Kind::Invalid, "permission bits");
    w.ok(set(None, Some(vec![])));
    let info = w.ns.lookup("/f").unwrap();
    assert_eq!((info.mode, info.mtime, info.has_metadata), (0o4755, 9, false));
}

#[test]
fn usage_and_totals_agree() {
    let mut w = World::new();
    let chunk = w.chunk(ChunkKind::Packed, FileId(0));
    w.dir("/d");
    w.ok(make("/d/m", NodeKind::MultiFile));
    w.ok(put("/d/m/1", Some(pointer(chunk, 1)), false));
    w.ok(put("/d/m/2", Some(pointer(chunk, 2)), false));
    w.ok(put("/d/f", None, false));
    w.ok(Command::Symlink { path: "/d/l".into(), target: "f".into(), mtime: 1 });
    let usage = w.ns.usage("/").unwrap();
    assert_eq!(usage, w.ns.totals());
    assert_eq!(usage, Usage { files: 3, directories: 3, symlinks: 1, bytes: 200 });
    assert_eq!(w.ns.usage("/d/m/1").unwrap().bytes, 100);
    assert!(w.ns.usage("/no").is_err());
}
