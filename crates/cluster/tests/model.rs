//! Random commands against a naive model: a map from path to node. The view must accept what the
//! model accepts, refuse what it refuses, and list what it lists; a replay and a restored snapshot
//! must be equal to it byte for byte; and no bytes whatsoever may make it panic.

use holdfast_base::Result;
use holdfast_base::ids::{
    ChunkId, Cookie, Durability, FileId, Index, NodeId, Pointer, Slot, StoreId, Tier,
};
use holdfast_cluster::{ChunkKind, Command, Location, Namespace, NodeKind, Outcome};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// What the model knows of a path: its kind and size.
type Model = BTreeMap<String, (NodeKind, u64)>;

fn parent(path: &str) -> &str {
    match path.rsplit_once('/') {
        Some(("", _)) | None => "/",
        Some((parent, _)) => parent,
    }
}

fn below<'a>(model: &'a Model, path: &str) -> impl Iterator<Item = &'a String> {
    let inside = format!("{}/", path.trim_end_matches('/'));
    model.keys().filter(move |other| other.starts_with(&inside) && other.len() > inside.len())
}

/// Whether a node of `kind` may be made at `path`.
fn has_place(model: &Model, path: &str, kind: NodeKind) -> bool {
    model.get(parent(path)).is_some_and(|(holder, _)| holder.may_hold(kind))
}

/// The commands that the model understands.
#[derive(Clone, Debug)]
enum Step {
    Make { path: String, kind: NodeKind },
    Put { path: String, bytes: bool, replace: bool, value: bool },
    Link { path: String },
    Rename { from: String, to: String, replace: bool },
    Delete { path: String, recursive: bool },
    Reclaim { budget: u32 },
    Release,
    Garbage { bytes: Vec<u8> },
}

fn path() -> impl Strategy<Value = String> {
    // One short and one long name, so that both places of names are used.
    let long = "a-name-that-is-too-long-for-a-node".to_owned();
    let name =
        prop_oneof![Just("a".to_owned()), Just("b".to_owned()), Just("c".to_owned()), Just(long)];
    prop::collection::vec(name, 1..5).prop_map(|names| format!("/{}", names.join("/")))
}

fn step() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![
        4 => Just(NodeKind::Directory), 1 => Just(NodeKind::Table), 1 => Just(NodeKind::MultiFile)
    ];
    prop_oneof![
        5 => (path(), kind).prop_map(|(path, kind)| Step::Make { path, kind }),
        5 => (path(), any::<bool>(), any::<bool>(), any::<bool>())
            .prop_map(|(path, bytes, replace, value)| Step::Put { path, bytes, replace, value }),
        1 => path().prop_map(|path| Step::Link { path }),
        4 => (path(), path(), any::<bool>())
            .prop_map(|(from, to, replace)| Step::Rename { from, to, replace }),
        2 => (path(), any::<bool>()).prop_map(|(path, recursive)| Step::Delete { path, recursive }),
        2 => (0..6u32).prop_map(|budget| Step::Reclaim { budget }),
        1 => Just(Step::Release),
        1 => prop::collection::vec(any::<u8>(), 0..40).prop_map(|bytes| Step::Garbage { bytes }),
    ]
}

/// Applies a step to the model; whether it is accepted.
fn model_step(model: &mut Model, step: &Step) -> bool {
    match step {
        Step::Make { path, kind } => {
            let fine = has_place(model, path, *kind) && !model.contains_key(path);
            if fine {
                model.insert(path.clone(), (*kind, 0));
            }
            fine
        }
        Step::Put { path, bytes, replace, value } => {
            let kind = if *value { NodeKind::KeyValue } else { NodeKind::File };
            let fine = has_place(model, path, kind)
                && match model.get(path) {
                    Some((old, _)) => !old.is_container() && (*replace || *value),
                    None => true,
                };
            if fine {
                model.insert(path.clone(), (kind, if *bytes { 100 } else { 0 }));
            }
            fine
        }
        Step::Link { path } => {
            let fine = has_place(model, path, NodeKind::Symlink) && !model.contains_key(path);
            if fine {
                model.insert(path.clone(), (NodeKind::Symlink, 0));
            }
            fine
        }
        Step::Rename { from, to, replace } => model_rename(model, from, to, *replace),
        Step::Delete { path, recursive } => {
            let inside: Vec<String> = below(model, path).cloned().collect();
            let fine = model.contains_key(path) && (*recursive || inside.is_empty());
            if fine {
                model.remove(path);
                model.retain(|path, _| !inside.contains(path));
            }
            fine
        }
        Step::Reclaim { .. } | Step::Release => true,
        Step::Garbage { .. } => false,
    }
}

fn model_rename(model: &mut Model, from: &str, to: &str, replace: bool) -> bool {
    let Some(&(kind, _)) = model.get(from) else { return false };
    if !has_place(model, to, kind) || to.starts_with(&format!("{from}/")) {
        return false;
    }
    if from == to {
        return true;
    }
    if let Some(&(old, _)) = model.get(to) {
        let alike =
            kind.is_container() == old.is_container() && (!kind.is_container() || kind == old);
        if !replace || !alike || below(model, to).next().is_some() {
            return false;
        }
    }
    let inside: Vec<String> = below(model, from).cloned().collect();
    for path in inside.iter().map(String::as_str).chain([from]) {
        let node = model.remove(path).unwrap();
        model.insert(format!("{to}{}", &path[from.len()..]), node);
    }
    true
}

fn entry(step: &Step, chunk: ChunkId, index: u64) -> Vec<u8> {
    let command = match step.clone() {
        Step::Make { path, kind } => {
            Command::MakeDir { path, kind, mode: 0o755, mtime: 1, class: None, parents: false }
        }
        Step::Put { path, bytes, replace, value } => {
            let pointer = Pointer { chunk, slot: Slot(index as u32), cookie: Cookie(3) };
            Command::Put {
                path,
                kind: if value { NodeKind::KeyValue } else { NodeKind::File },
                mode: 0o644,
                mtime: 1,
                size: if bytes { 100 } else { 0 },
                crc: 5,
                class: None,
                location: if bytes { Location::Packed { pointer } } else { Location::Inline {} },
                replace,
                parents: false,
                metadata: vec![1; index as usize % 3],
            }
        }
        Step::Link { path } => Command::Symlink { path, target: "/a/b".into(), mtime: 1 },
        Step::Rename { from, to, replace } => Command::Rename { from, to, replace },
        Step::Delete { path, recursive } => Command::Delete { path, recursive },
        Step::Reclaim { budget } => Command::Reclaim { budget },
        Step::Release => Command::Release { before: Index(index / 2), budget: 3 },
        Step::Garbage { bytes } => return [&[1, 200][..], &bytes].concat(),
    };
    command.to_entry()
}

fn first_chunk(ns: &mut Namespace) -> ChunkId {
    let allocate = Command::AllocateChunk {
        kind: ChunkKind::Packed,
        owner: FileId(0),
        node: NodeId(1),
        replicas: vec![StoreId(1)],
        tier: Tier::Disk,
        durability: Durability::Durable,
    };
    match ns.apply(Index(1), &allocate) {
        Ok(Outcome::Chunk { chunk }) => chunk,
        other => panic!("{other:?}"),
    }
}

fn snapshot(ns: &Namespace) -> Vec<u8> {
    let mut out = Vec::new();
    ns.snapshot(&mut out);
    out
}

/// Everything below the root, by listing; each node is also found by path, batch and id.
fn walk(ns: &Namespace) -> Model {
    let mut model = Model::from([("/".to_owned(), (NodeKind::Directory, 0))]);
    let mut todo = vec!["/".to_owned()];
    while let Some(dir) = todo.pop() {
        let mut after = None;
        loop {
            let page = ns.list(&dir, after.as_deref(), 2).unwrap();
            for entry in &page.entries {
                let path = format!("{}/{}", dir.trim_end_matches('/'), entry.name);
                let kind = entry.info.kind;
                assert_eq!(ns.lookup(&path), Some(entry.info));
                assert_eq!(ns.path_of(entry.info.id).as_ref(), Some(&path));
                model
                    .insert(path.clone(), (kind, if kind.is_data() { entry.info.size } else { 0 }));
                if kind.is_container() {
                    todo.push(path);
                }
            }
            after = page.entries.last().map(|entry| entry.name.clone());
            if !page.more {
                break;
            }
        }
    }
    let paths: Vec<&str> = model.keys().map(String::as_str).chain(["/no", "x", "/a//b"]).collect();
    let mut infos = vec![None; paths.len()];
    ns.lookup_batch(&paths, &mut infos);
    for (path, info) in paths.iter().zip(infos) {
        assert_eq!(info, ns.lookup(path), "{path}");
    }
    model
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..Default::default() })]

    #[test]
    fn the_view_agrees_with_a_naive_model_a_replay_and_its_snapshots(
        steps in prop::collection::vec(step(), 1..150),
    ) {
        let mut ns = Namespace::new(0);
        let mut replay = Namespace::new(0);
        let chunk = first_chunk(&mut ns);
        prop_assert_eq!(first_chunk(&mut replay), chunk);
        let mut model = Model::from([("/".to_owned(), (NodeKind::Directory, 0))]);
        for (i, step) in steps.iter().enumerate() {
            let index = i as u64 + 2;
            let bytes = entry(step, chunk, index);
            let before = model.clone();
            let accepted = model_step(&mut model, step);
            let result: Result<Outcome> = ns.apply_bytes(Index(index), &bytes);
            prop_assert_eq!(result.is_ok(), accepted, "{:?} on {:?}: {:?}", step, before, result);
            prop_assert_eq!(result, replay.apply_bytes(Index(index), &bytes));
            if i % 40 == 39 {
                // The rest of the run continues from a snapshot.
                replay = Namespace::restore(&snapshot(&ns)).unwrap();
            }
        }
        prop_assert_eq!(walk(&ns), model.clone());
        prop_assert_eq!(snapshot(&ns), snapshot(&replay));
        let usage = ns.usage("/").unwrap();
        prop_assert_eq!(usage.bytes, model.values().map(|node| node.1).sum::<u64>());
        // Once everything is reclaimed and released, what lives in the chunk is what is named.
        let reclaim = Command::Reclaim { budget: u32::MAX };
        ns.apply(Index(1000), &reclaim).unwrap();
        ns.apply(Index(1001), &Command::Release { before: Index(1001), budget: u32::MAX }).unwrap();
        prop_assert_eq!(ns.totals(), usage);
        let live = ns.chunks().get(chunk).unwrap();
        prop_assert_eq!(live.live_bytes, usage.bytes);
        prop_assert_eq!(live.live_objects as u64, usage.bytes / 100);
        prop_assert_eq!(ns.chunks().live_slots(chunk).unwrap().len() as u64, usage.bytes / 100);
    }

    #[test]
    fn no_bytes_make_apply_or_restore_panic(
        steps in prop::collection::vec(step(), 1..30),
        flips in prop::collection::vec((any::<u16>(), any::<u8>()), 1..60),
    ) {
        let mut ns = Namespace::new(0);
        let chunk = first_chunk(&mut ns);
        let mut index = 2;
        for step in &steps {
            let bytes = entry(step, chunk, index);
            for (at, with) in &flips {
                let mut damaged = bytes.clone();
                let at = *at as usize % damaged.len();
                damaged[at] = *with;
                index += 1;
                let _ = ns.apply_bytes(Index(index), &damaged);
                let _ = ns.apply_bytes(Index(index), &bytes[..at]);
            }
            let _ = ns.apply_bytes(Index(index), &bytes);
        }
        let good = snapshot(&ns);
        prop_assert_eq!(snapshot(&Namespace::restore(&good).unwrap()), good.clone());
        for (at, with) in &flips {
            let mut damaged = good.clone();
            let at = *at as usize % damaged.len();
            damaged[at] ^= *with;
            prop_assert_eq!(Namespace::restore(&damaged).is_ok(), *with == 0);
            prop_assert!(Namespace::restore(&good[..at]).is_err());
            // Lies with a right checksum must be refused, or be a state that is its own snapshot.
            let end = damaged.len() - 4;
            let crc = holdfast_base::checksum::crc32c(&damaged[..end]);
            damaged[end..].copy_from_slice(&crc.to_le_bytes());
            if let Ok(lie) = Namespace::restore(&damaged) {
                prop_assert_eq!(snapshot(&lie), damaged);
            }
        }
    }
}
