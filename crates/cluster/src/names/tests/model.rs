//! What names promise, as a map from paths: each path to what was put there. Nothing is kept that
//! can be counted.

use super::super::{FileInfo, Usage};
use crate::{Command, Location, NodeKind, Outcome, RawExtent, Remainder, StorageClass};
use holdfast_base::ids::{ChunkId, FileId, Pointer};
use std::collections::{BTreeMap, BTreeSet};

/// Of each packed object.
pub(super) const PACKED_BYTES: u64 = 10;
const MODE_MAX: u16 = 0o7777;

#[derive(Clone, Debug)]
pub(super) enum Bytes {
    None,
    Packed(Pointer),
    Many(Vec<RawExtent>, Option<Remainder>),
    Link(String),
}

impl Bytes {
    fn size(&self) -> u64 {
        match self {
            Bytes::None | Bytes::Link(_) => 0,
            Bytes::Packed(_) => PACKED_BYTES,
            Bytes::Many(list, last) => {
                list.iter().map(|extent| extent.length).sum::<u64>() + last.map_or(0, |l| l.length)
            }
        }
    }

    /// What is not to be freed while this is named.
    fn held(&self) -> Vec<(ChunkId, u32)> {
        let slot = |pointer: &Pointer| (pointer.chunk, pointer.slot.0);
        match self {
            Bytes::None | Bytes::Link(_) => vec![],
            Bytes::Packed(pointer) => vec![slot(pointer)],
            Bytes::Many(list, last) => {
                let last = last.iter().map(|last| slot(&last.pointer));
                list.iter().map(|extent| (extent.chunk, 0)).chain(last).collect()
            }
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub id: FileId,
    pub kind: NodeKind,
    mode: u16,
    mtime: i64,
    class: StorageClass,
    crc: Option<u32>,
    pub bytes: Bytes,
    pub metadata: Vec<u8>,
}

pub(super) struct Model {
    pub nodes: BTreeMap<String, Node>,
    /// The path of its `Begin`, and its chunks.
    pub unclosed: BTreeMap<FileId, (String, Vec<ChunkId>)>,
    /// Class, mode and mtime of files that are begun.
    begun: BTreeMap<FileId, (StorageClass, u16, i64)>,
    /// Slots that were ever named.
    slots: BTreeSet<u32>,
    /// Ids that name nothing any more.
    pub gone: BTreeSet<FileId>,
    /// What deleted subtrees hold until their `Reclaim`.
    deleted: BTreeSet<(ChunkId, u32)>,
    waiting: Usage,
}

fn parent(path: &str) -> &str {
    match path.rsplit_once('/') {
        Some(("", _)) | None => "/",
        Some((parent, _)) => parent,
    }
}

fn is_below(path: &str, above: &str) -> bool {
    above == "/" && path != "/"
        || path.strip_prefix(above).is_some_and(|rest| rest.starts_with('/'))
}

impl Model {
    pub(super) fn new() -> Model {
        let root = Node {
            id: FileId(1),
            kind: NodeKind::Directory,
            mode: 0o755,
            mtime: 0,
            class: StorageClass::DEFAULT,
            crc: None,
            bytes: Bytes::None,
            metadata: vec![],
        };
        Model {
            nodes: BTreeMap::from([("/".to_owned(), root)]),
            unclosed: BTreeMap::new(),
            begun: BTreeMap::new(),
            slots: BTreeSet::new(),
            gone: BTreeSet::new(),
            deleted: BTreeSet::new(),
            waiting: Usage::default(),
        }
    }

    pub(super) fn children(&self, path: &str) -> Vec<String> {
        let own = self.nodes.keys().filter(|key| *key != "/" && parent(key) == path);
        let mut names: Vec<_> = own.map(|key| key.rsplit('/').next().unwrap().to_owned()).collect();
        names.sort();
        names
    }

    fn subtree(&self, path: &str) -> Vec<String> {
        let own = self.nodes.keys().filter(|key| *key == path || is_below(key, path));
        own.cloned().collect()
    }

    pub(super) fn usage(&self, path: &str) -> Usage {
        let mut usage = Usage::default();
        for node in self.subtree(path).iter().map(|path| &self.nodes[path]) {
            match node.kind {
                NodeKind::File | NodeKind::KeyValue => usage.files += 1,
                NodeKind::Symlink => usage.symlinks += 1,
                _ => usage.directories += 1,
            }
            usage.bytes += node.bytes.size();
        }
        usage
    }

    pub(super) fn is_told_by(&self, path: &str, info: &FileInfo) {
        let node = &self.nodes[path];
        let (size, location) = match &node.bytes {
            Bytes::Link(target) => (target.len() as u64, Location::Inline {}),
            Bytes::Packed(pointer) => (PACKED_BYTES, Location::Packed { pointer: *pointer }),
            Bytes::Many(..) => (node.bytes.size(), Location::Extents {}),
            Bytes::None => (self.children(path).len() as u64, Location::Inline {}),
        };
        let expected = FileInfo {
            id: node.id,
            kind: node.kind,
            mode: node.mode,
            class: node.class,
            mtime: node.mtime,
            size,
            crc: node.crc,
            location,
            has_metadata: !node.metadata.is_empty(),
        };
        assert_eq!(*info, expected, "{path}");
    }

    /// All that is named, or being written, and what deleted subtrees still hold: this is freed by
    /// a `Reclaim` alone.
    pub(super) fn held_by_names_is(&mut self, held: BTreeSet<(ChunkId, u32)>, reclaimed: bool) {
        let mut named: BTreeSet<_> = self.nodes.values().flat_map(|n| n.bytes.held()).collect();
        let written = self.unclosed.values().flat_map(|(_, chunks)| chunks);
        named.extend(written.map(|chunk| (*chunk, 0)));
        let left: BTreeSet<_> = held.difference(&named).copied().collect();
        assert!(named.is_subset(&held), "freed while named: {:?}", named.difference(&held));
        assert!(left.is_subset(&self.deleted), "{left:?} is kept for ever: {:?}", self.deleted);
        assert!(reclaimed || left == self.deleted, "{left:?} of {:?}", self.deleted);
        self.deleted = left;
    }

    pub(super) fn waiting_is(&mut self, waiting: Usage, more: bool, reclaimed: bool) {
        let of = |usage: Usage| [usage.files, usage.directories, usage.symlinks, usage.bytes];
        let fewer = of(waiting).iter().zip(of(self.waiting)).all(|(now, before)| *now <= before);
        assert!(if reclaimed { fewer } else { waiting == self.waiting }, "{waiting:?}");
        assert_eq!(more, waiting != Usage::default(), "{waiting:?}");
        assert!(more || self.deleted.is_empty());
        self.waiting = waiting;
    }

    /// The missing directories that a new node of `kind` at `path` needs; `None` if it has no place.
    fn place(&self, path: &str, kind: NodeKind, parents: bool) -> Option<Vec<String>> {
        let mut missing = Vec::new();
        let mut above = (path != "/").then(|| parent(path))?;
        while !self.nodes.contains_key(above) {
            missing.push(above.to_owned());
            above = parent(above);
        }
        let mut holder = self.nodes[above].kind;
        for _ in &missing {
            if !parents || !holder.may_hold(NodeKind::Directory) {
                return None;
            }
            holder = NodeKind::Directory;
        }
        missing.reverse();
        holder.may_hold(kind).then_some(missing)
    }

    fn may_take(&self, path: &str, replace: bool) -> bool {
        self.nodes.get(path).is_none_or(|old| replace && !old.kind.is_container())
    }

    fn may_name(&self, slot: u32) -> bool {
        !self.slots.contains(&slot)
    }

    /// Enters a node, its missing directories, and lets go who had the name.
    fn enter(&mut self, path: &str, missing: &[String], class: Option<StorageClass>, node: Node) {
        for dir in missing {
            // Whoever may read a directory may search it.
            let mode = node.mode | (node.mode & 0o444) >> 2;
            let above = self.nodes[parent(dir)].class;
            let (kind, bytes) = (NodeKind::Directory, Bytes::None);
            let id = FileId(0);
            let (mtime, crc, metadata) = (node.mtime, None, vec![]);
            let made = Node { id, kind, mode, mtime, class: above, crc, bytes, metadata };
            self.nodes.insert(dir.clone(), made);
        }
        let class = class.unwrap_or_else(|| self.nodes[parent(path)].class);
        if let Bytes::Packed(Pointer { slot, .. })
        | Bytes::Many(_, Some(Remainder { pointer: Pointer { slot, .. }, .. })) = &node.bytes
        {
            self.slots.insert(slot.0);
        }
        let old = self.nodes.insert(path.to_owned(), Node { class, ..node });
        self.gone.extend(old.map(|old| old.id));
    }

    /// No answer tells the ids of directories that were made on the way.
    pub(super) fn learn_ids(&mut self, lookup: impl Fn(&str) -> Option<FileId>) {
        for (path, node) in self.nodes.iter_mut().filter(|(_, node)| node.id == FileId(0)) {
            node.id = lookup(path).unwrap();
            assert!(!self.gone.contains(&node.id), "{path} has an id of another node");
        }
        let ids: BTreeSet<_> = self.nodes.values().map(|node| node.id).collect();
        assert_eq!(ids.len(), self.nodes.len());
    }

    /// Whether it is accepted; what it answers tells the ids of what was made.
    pub(super) fn apply(&mut self, command: &Command, answer: Option<&Outcome>) -> bool {
        let done = self.decide(command, answer);
        done.is_some()
    }

    fn decide(&mut self, command: &Command, answer: Option<&Outcome>) -> Option<()> {
        let id = match answer {
            Some(Outcome::File { file }) => *file,
            _ => FileId(0),
        };
        let need = |holds: bool| holds.then_some(());
        match command {
            Command::MakeDir { path, kind, mode, mtime, class, parents } => {
                need(kind.is_container() && *mode <= MODE_MAX)?;
                if let Some(old) = self.nodes.get(path) {
                    need(*parents && old.kind == *kind)?;
                    return need(answer.is_none() || id == old.id);
                }
                let missing = self.place(path, *kind, *parents)?;
                let (bytes, metadata) = (Bytes::None, vec![]);
                let node = self.node(id, (*kind, *mode, *mtime), None, bytes, metadata);
                self.enter(path, &missing, *class, node);
            }
            Command::Put { path, kind, mode, mtime, size, crc, class, location, .. } => {
                let Command::Put { replace, parents, metadata, .. } = command else { return None };
                need(kind.is_data() && *mode <= MODE_MAX)?;
                let missing = self.place(path, *kind, *parents)?;
                need(self.may_take(path, *replace || *kind == NodeKind::KeyValue))?;
                let bytes = match location {
                    Location::Packed { pointer } => Bytes::Packed(*pointer),
                    _ => Bytes::None,
                };
                need(bytes.size() == *size)?;
                if let Bytes::Packed(pointer) = &bytes {
                    need(self.may_name(pointer.slot.0))?;
                }
                let metadata = metadata.clone();
                let node = self.node(id, (*kind, *mode, *mtime), Some(*crc), bytes, metadata);
                self.enter(path, &missing, *class, node);
            }
            Command::Symlink { path, target, mtime } => self.link(id, path, target, *mtime)?,
            Command::Begin { path, class, mode, mtime } => {
                need(*mode <= MODE_MAX)?;
                let above = self.nodes.iter().filter(|(above, node)| {
                    node.kind.is_container() && (*above == path || is_below(path, above))
                });
                let deepest = above.max_by_key(|(above, _)| above.len())?.1.class;
                self.begun.insert(id, (class.unwrap_or(deepest), *mode, *mtime));
                self.unclosed.insert(id, (path.clone(), vec![]));
            }
            Command::Close { file, path, size, crc, extents, remainder, mode, mtime, .. } => {
                let Command::Close { replace, metadata, .. } = command else { return None };
                need(*mode <= MODE_MAX)?;
                let (what, bytes) =
                    (Some((*mode, *mtime)), (&extents[..], *remainder, Some(*size)));
                self.name_begun((*file, path, *replace), what, *crc, bytes, metadata)?;
                need(answer.is_none() || id == *file)?;
            }
            Command::Salvage { file, path, extents } => {
                let bytes = (&extents[..], None, None);
                self.name_begun((*file, path, false), None, None, bytes, &[])?;
            }
            Command::Abandon { file } => {
                self.unclosed.remove(file)?;
                self.gone.insert(*file);
            }
            Command::Rename { from, to, replace } => self.rename(from, to, *replace)?,
            Command::Delete { path, recursive } => self.delete(path, *recursive)?,
            Command::Reclaim { .. } => {}
            Command::SetAttributes { path, mode, mtime, metadata } => {
                let node = self.nodes.get_mut(path)?;
                need(mode.is_none_or(|mode| mode <= MODE_MAX))?;
                node.mode = mode.unwrap_or(node.mode);
                node.mtime = mtime.unwrap_or(node.mtime);
                node.metadata = metadata.clone().unwrap_or(node.metadata.clone());
            }
            Command::SetClass { path, class } => {
                let node = self.nodes.get_mut(path).filter(|node| node.kind.is_container())?;
                node.class = *class;
            }
            other => panic!("{other:?} is none of names"),
        }
        Some(())
    }

    fn node(
        &self,
        id: FileId,
        (kind, mode, mtime): (NodeKind, u16, i64),
        crc: Option<u32>,
        bytes: Bytes,
        metadata: Vec<u8>,
    ) -> Node {
        assert!(!self.gone.contains(&id), "{id} was another node's");
        Node { id, kind, mode, mtime, class: StorageClass::DEFAULT, crc, bytes, metadata }
    }

    /// Names a file that was begun, which keeps what its `Begin` said unless `what` says otherwise;
    /// chunks of it that are no extents are freed.
    fn name_begun(
        &mut self,
        (file, path, replace): (FileId, &str, bool),
        what: Option<(u16, i64)>,
        crc: Option<u32>,
        (extents, remainder, size): (&[RawExtent], Option<Remainder>, Option<u64>),
        metadata: &[u8],
    ) -> Option<()> {
        let need = |holds: bool| holds.then_some(());
        let own = self.unclosed.get(&file)?.1.clone();
        need(extents.iter().all(|extent| own.contains(&extent.chunk)))?;
        need(remainder.is_none_or(|last| self.may_name(last.pointer.slot.0)))?;
        let bytes = match (extents, remainder) {
            ([], None) => Bytes::None,
            ([], Some(last)) => Bytes::Packed(last.pointer),
            _ => Bytes::Many(extents.to_vec(), remainder),
        };
        need(size.is_none_or(|size| size == bytes.size()))?;
        let in_table = self.nodes.get(parent(path)).is_some_and(|at| at.kind == NodeKind::Table);
        let kind = if in_table { NodeKind::KeyValue } else { NodeKind::File };
        let missing = self.place(path, kind, false)?;
        need(self.may_take(path, replace))?;
        self.unclosed.remove(&file);
        let (class, mode, mtime) = self.begun.remove(&file)?;
        let (mode, mtime) = what.unwrap_or((mode, mtime));
        let node = self.node(file, (kind, mode, mtime), crc, bytes, metadata.to_vec());
        self.enter(path, &missing, Some(class), node);
        Some(())
    }

    fn delete(&mut self, path: &str, recursive: bool) -> Option<()> {
        let need = |holds: bool| holds.then_some(());
        need(self.nodes.contains_key(path) && path != "/")?;
        let below = self.subtree(path);
        need(below.len() == 1 || recursive)?;
        if below.len() > 1 {
            let all = self.usage(path);
            self.waiting.files += all.files;
            self.waiting.directories += all.directories;
            self.waiting.symlinks += all.symlinks;
            self.waiting.bytes += all.bytes;
            let held = below.iter().flat_map(|path| self.nodes[path].bytes.held());
            self.deleted.extend(held.collect::<Vec<_>>());
        }
        for path in below {
            self.gone.extend(self.nodes.remove(&path).map(|node| node.id));
        }
        Some(())
    }

    fn link(&mut self, id: FileId, path: &str, target: &str, mtime: i64) -> Option<()> {
        let need = |holds: bool| holds.then_some(());
        let missing = self.place(path, NodeKind::Symlink, false)?;
        need(!target.is_empty() && self.may_take(path, false))?;
        let bytes = Bytes::Link(target.to_owned());
        let what = (NodeKind::Symlink, 0o777, mtime);
        let node = self.node(id, what, None, bytes, vec![]);
        self.enter(path, &missing, None, node);
        Some(())
    }

    fn rename(&mut self, from: &str, to: &str, replace: bool) -> Option<()> {
        let need = |holds: bool| holds.then_some(());
        let kind = self.nodes.get(from)?.kind;
        need(from != "/")?;
        self.place(to, kind, false)?;
        need(!is_below(to, from))?;
        if from == to {
            return Some(());
        }
        if let Some(old) = self.nodes.get(to) {
            let both = kind.is_container() || old.kind.is_container();
            need(replace && (!both || kind == old.kind) && self.children(to).is_empty())?;
            self.gone.extend(self.nodes.remove(to).map(|old| old.id));
        }
        for path in self.subtree(from) {
            let node = self.nodes.remove(&path)?;
            self.nodes.insert(format!("{to}{}", &path[from.len()..]), node);
        }
        Some(())
    }
}
