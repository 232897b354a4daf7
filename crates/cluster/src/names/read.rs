//! The reads: look-ups one by one and in batches, listings, and what reports need. None changes
//! anything, so they run side by side under a shared lock. Symlinks are followed by `resolve` only.

use super::nodes::{ARRIVING, DETACHED, EXTENTS, HAS_CRC, LEAVING, PACKED, ROOT, UNCLOSED};
use super::{Names, table};
use crate::Namespace;
use crate::chunks::Chunks;
use crate::namespace::Shown;
use crate::{ChunkKind, Location, NodeKind, RawExtent, Remainder, StorageClass};
use holdfast_base::ids::{ChunkId, Cookie, FileId, Pointer, Slot};
use holdfast_base::limits::{LIST_PAGE_MAX, PATH_BYTES_MAX};
use holdfast_base::{Error, Result, path};

/// Symlinks that one `resolve` follows (as many as Linux does).
pub const SYMLINKS_MAX: usize = 40;

/// Paths whose cache misses one round of `lookup_batch` overlaps.
const BATCH: usize = 16;

/// What is known of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileInfo {
    pub id: FileId,
    pub kind: NodeKind,
    pub mode: u16,
    pub class: StorageClass,
    /// Nanoseconds since 1970.
    pub mtime: i64,
    /// Bytes of a file or of a link's target; entries of a container.
    pub size: u64,
    /// CRC32C of the whole, where it is known.
    pub crc: Option<u32>,
    pub location: Location,
    /// Whether [`Names::metadata`] has any.
    pub has_metadata: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub name: String,
    pub info: FileInfo,
}

/// Part of a listing, in order of the names' bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    pub entries: Vec<Entry>,
    /// Whether names follow the last one.
    pub more: bool,
}

/// What lies at and below a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub files: u64,
    pub directories: u64,
    pub symlinks: u64,
    pub bytes: u64,
}

/// All nodes that have a name, and those that have none any more, or not yet: of deleted subtrees, and of
/// directories on their way from shard to shard.
pub type Totals = Usage;

/// A file that was begun and not closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnclosedInfo {
    pub file: FileId,
    /// What it was begun as; it has no name.
    pub path: String,
    pub mtime: i64,
    pub chunks: Vec<ChunkId>,
}

/// One path of a batch on its way down.
#[derive(Clone, Copy)]
struct Step<'a> {
    /// What is left of the path; `None` when the way is over.
    rest: Option<&'a [u8]>,
    name: &'a [u8],
    /// Where it is, 0 when it got lost.
    at: u32,
    hash: u64,
    /// The first node that may be the next one, 0 for none.
    candidate: u32,
}

impl<'a> Step<'a> {
    fn start(path: &'a str) -> Step<'a> {
        let (rest, at) = match below_root(path) {
            Some([]) => (None, ROOT),
            Some(rest) => (Some(rest), ROOT),
            None => (None, 0),
        };
        Step { rest, name: &[], at, hash: 0, candidate: 0 }
    }
}

/// The path's bytes without the slashes at its ends.
#[inline]
fn below_root(path: &str) -> Option<&[u8]> {
    let rest = path.as_bytes().strip_prefix(b"/")?;
    Some(rest.strip_suffix(b"/").unwrap_or(rest))
}

/// The first component, and what follows it.
#[inline]
fn split_name(rest: &[u8]) -> (&[u8], Option<&[u8]>) {
    match rest.iter().position(|byte| *byte == b'/') {
        Some(cut) => (&rest[..cut], Some(&rest[cut + 1..])),
        None => (rest, None),
    }
}

impl Names {
    /// The node at a path. No node has a name that `path::check` refuses, and nameless nodes are
    /// in no table, so the path is not checked.
    #[inline]
    pub(super) fn walk(&self, path: &str) -> Option<u32> {
        let mut rest = Some(below_root(path)?).filter(|rest| !rest.is_empty());
        let mut at = ROOT;
        while let Some(path) = rest {
            let (name, tail) = split_name(path);
            at = self.child(at, name)?;
            rest = tail;
        }
        Some(at)
    }

    /// How many components of a path lead to something that exists.
    pub(crate) fn depth_of_existing(&self, path: &str) -> usize {
        let mut at = ROOT;
        let exists = |name: &&str| match self.child(at, name.as_bytes()) {
            Some(child) => {
                at = child;
                true
            }
            None => false,
        };
        path::components(path).take_while(exists).count()
    }

    /// The deepest directory on the way to a path.
    pub(super) fn deepest(&self, path: &str) -> u32 {
        let mut at = ROOT;
        for name in path::components(path) {
            match self.child(at, name.as_bytes()).filter(|child| self.is_container(*child)) {
                Some(child) => at = child,
                None => break,
            }
        }
        at
    }

    /// The bytes of a file, 0 for nodes without bytes.
    pub(super) fn size(&self, at: u32) -> u64 {
        let node = &self.nodes[at];
        if node.flags & EXTENTS != 0 {
            return self.extents.get(&at).map_or(0, |list| list.size);
        }
        node.size as u64
    }

    pub(super) fn location(&self, chunks: &Chunks, at: u32) -> Location {
        let node = &self.nodes[at];
        if node.flags & PACKED != 0 {
            let chunk = chunks.id_at(node.chunk);
            let pointer = Pointer { chunk, slot: Slot(node.slot), cookie: Cookie(node.cookie) };
            Location::Packed { pointer }
        } else if node.flags & EXTENTS != 0 {
            Location::Extents {}
        } else {
            Location::Inline {}
        }
    }

    fn info_at(&self, chunks: &Chunks, at: u32) -> FileInfo {
        let node = &self.nodes[at];
        let kind = self.kind(at);
        FileInfo {
            id: self.nodes.id(at),
            kind,
            mode: node.mode,
            class: node.class(),
            mtime: node.mtime,
            size: match kind {
                NodeKind::File | NodeKind::KeyValue => self.size(at),
                NodeKind::Symlink => self.nodes.arena.len(node.slot) as u64,
                _ => self.child_count(at) as u64,
            },
            crc: (node.flags & HAS_CRC != 0).then_some(node.crc),
            location: self.location(chunks, at),
            has_metadata: node.metadata != 0,
        }
    }

    /// What a path names. A path that cannot be one names nothing.
    pub fn lookup(&self, chunks: &Chunks, path: &str) -> Option<FileInfo> {
        self.walk(path).map(|at| self.info_at(chunks, at))
    }

    /// [`Names::lookup`] of many paths, several times as fast: the memory that a level of
    /// each path needs is asked for before any of it is used. `infos` is as long as `paths`.
    pub fn lookup_batch(&self, chunks: &Chunks, paths: &[&str], infos: &mut [Option<FileInfo>]) {
        assert_eq!(paths.len(), infos.len(), "one place for each path");
        for (paths, infos) in paths.chunks(BATCH).zip(infos.chunks_mut(BATCH)) {
            let mut steps = [Step::start(""); BATCH];
            let steps = &mut steps[..paths.len()];
            for (step, path) in steps.iter_mut().zip(paths) {
                *step = Step::start(path);
            }
            while self.step_all(steps) {}
            for (step, info) in steps.iter().zip(infos) {
                *info = (step.at != 0).then(|| self.info_at(chunks, step.at));
            }
        }
    }

    /// Takes every path of a batch one level down; false when all are done.
    fn step_all(&self, steps: &mut [Step<'_>]) -> bool {
        let mut busy = false;
        for step in steps.iter_mut() {
            step.name = &[];
            if let Some(rest) = step.rest {
                (step.name, step.rest) = split_name(rest);
                if step.name.is_empty() {
                    (step.at, step.rest) = (0, None);
                    continue;
                }
                step.hash = table::hash(step.at, step.name);
                self.table.prefetch(step.hash);
                busy = true;
            }
        }
        if !busy {
            return false;
        }
        for step in steps.iter_mut().filter(|step| !step.name.is_empty()) {
            step.candidate = self.table.find(step.hash, |_| true).unwrap_or(0);
            if step.candidate != 0 {
                self.nodes.prefetch(step.candidate);
            }
        }
        for step in steps.iter_mut().filter(|step| !step.name.is_empty()) {
            let is_it = |at: u32| self.nodes.is_named(at, step.at, step.name);
            // Tags rarely collide, so the second search is rare.
            step.at = match step.candidate {
                0 => 0,
                at if is_it(at) => at,
                _ => self.table.find(step.hash, is_it).unwrap_or(0),
            };
            if step.at == 0 {
                step.rest = None;
            }
        }
        true
    }

    /// What an id names: a named or an unclosed file.
    pub fn info(&self, chunks: &Chunks, file: FileId) -> Option<FileInfo> {
        let at = self.attached(file)?;
        Some(self.info_at(chunks, at))
    }

    /// The place of a node that is named or unclosed, not one of a subtree that is deleted, elsewhere, or
    /// not here yet.
    fn attached(&self, file: FileId) -> Option<u32> {
        let at = self.nodes.at(file)?;
        let mut above = at;
        while self.nodes[above].parent != 0 {
            above = self.nodes[above].parent;
        }
        (self.nodes[above].flags & (DETACHED | ARRIVING | LEAVING) == 0).then_some(at)
    }

    /// The path of a named node.
    pub fn path_of(&self, file: FileId) -> Option<String> {
        let mut at = self.attached(file)?;
        if self.nodes[at].flags & UNCLOSED != 0 {
            return None;
        }
        let mut names = Vec::new();
        while at != ROOT {
            names.push(self.nodes.name_str(at));
            at = self.nodes[at].parent;
        }
        if names.is_empty() {
            return Some("/".to_owned());
        }
        Some(names.iter().rev().flat_map(|name| ["/", name]).collect())
    }

    /// The path of a named node, or what an unclosed file was begun as.
    pub fn path_or_begun(&self, file: FileId) -> Option<String> {
        let begun = || Some(self.unclosed.get(&self.nodes.at(file)?)?.path.clone());
        self.path_of(file).or_else(begun)
    }

    /// The bytes of a file that is a list of chunks; `None` for every other one.
    pub fn extents(&self, file: FileId) -> Option<(&[RawExtent], Option<Remainder>)> {
        let list = self.extents.get(&self.attached(file)?)?;
        Some((&list.extents, list.remainder))
    }

    /// A node's user metadata, empty unless it was set.
    pub fn metadata(&self, file: FileId) -> Option<&[u8]> {
        let at = self.attached(file)?;
        Some(self.nodes.arena.get(self.nodes[at].metadata))
    }

    /// Where a symlink points.
    pub fn link_target(&self, file: FileId) -> Option<&str> {
        let at = self.attached(file).filter(|at| self.kind(*at) == NodeKind::Symlink)?;
        std::str::from_utf8(self.nodes.arena.get(self.nodes[at].slot)).ok()
    }

    fn find_for(&self, doing: &str, path: &str) -> Result<u32> {
        path::check(path)?;
        self.walk(path).ok_or_else(|| {
            Error::not_found(format!("{doing} {}: it does not exist: check the path", Shown(path)))
        })
    }

    /// Up to `limit` entries of a container, from the first name above `after`.
    pub fn list(
        &self,
        chunks: &Chunks,
        path: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page> {
        let at = self.find_for("list", path)?;
        if !self.is_container(at) {
            return Err(Error::invalid(format!(
                "list {}: it is a {}, not a directory: name one",
                Shown(path),
                self.kind(at).name()
            )));
        }
        let mut page = Page { entries: Vec::new(), more: false };
        let Some(children) = self.children(at) else { return Ok(page) };
        let limit = limit.clamp(1, LIST_PAGE_MAX);
        for child in children.above(&self.nodes, after) {
            if page.entries.len() == limit {
                page.more = true;
                break;
            }
            let name = self.nodes.name_str(child).to_owned();
            page.entries.push(Entry { name, info: self.info_at(chunks, child) });
        }
        Ok(page)
    }

    /// Counts what is at and below a path; takes time in proportion.
    pub fn usage(&self, path: &str) -> Result<Usage> {
        let mut stack = vec![self.find_for("measure", path)?];
        let mut usage = Usage::default();
        while let Some(at) = stack.pop() {
            match self.kind(at) {
                NodeKind::File | NodeKind::KeyValue => usage.files += 1,
                NodeKind::Symlink => usage.symlinks += 1,
                NodeKind::Directory | NodeKind::MultiFile | NodeKind::Table => {
                    usage.directories += 1;
                    let children = self.children(at).into_iter();
                    stack.extend(children.flat_map(|c| c.above(&self.nodes, None)));
                }
            }
            usage.bytes += self.size(at);
        }
        Ok(usage)
    }

    /// Files that were begun and not closed.
    pub fn unclosed(&self) -> Vec<UnclosedInfo> {
        let info = |at: u32, path: &str, chunks: &[ChunkId]| UnclosedInfo {
            file: self.nodes.id(at),
            path: path.to_owned(),
            mtime: self.nodes[at].mtime,
            chunks: chunks.to_vec(),
        };
        self.unclosed.iter().map(|(at, file)| info(*at, &file.path, &file.chunks)).collect()
    }

    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Whether deleted subtrees wait for a `Reclaim`.
    pub fn needs_reclaim(&self) -> bool {
        !self.detached.is_empty()
    }

    /// Paths of up to `max` files with bytes in a chunk, for reports: looks at every node when the
    /// chunk is packed.
    pub fn files_of(&self, chunks: &Chunks, chunk: ChunkId, max: usize) -> Vec<String> {
        let path = |file: FileId| self.path_or_begun(file);
        if let Some(owner) = self.moved_owner(chunk) {
            return path(owner).into_iter().take(max).collect();
        }
        let known = chunks.get(chunk);
        if let Some(known) = known.filter(|known| known.kind == ChunkKind::Raw) {
            return path(known.owner).into_iter().take(max).collect();
        }
        let Some(index) = chunks.place(chunk) else { return Vec::new() };
        let in_it = |at: &u32| {
            let node = &self.nodes[*at];
            node.flags & PACKED != 0 && node.chunk == index
                || self
                    .extents
                    .get(at)
                    .and_then(|list| list.remainder)
                    .is_some_and(|remainder| remainder.pointer.chunk == chunk)
        };
        let named = self.nodes.iter().filter(in_it).filter_map(|at| path(self.nodes.id(at)));
        named.take(max).collect()
    }
}

/// Follows every symlink of a path, the last component's too; tells the path without them. `keeper` says
/// which of the shards has a name of the root's: a link may lead from any to any.
pub fn resolve<'a>(
    root: &'a Namespace,
    keeper: &dyn Fn(&str) -> Result<&'a Namespace>,
    path: &str,
) -> Result<(String, FileInfo)> {
    path::check(path)?;
    let mut first: Vec<&str> = path::components(path).rev().collect();
    // What links on the way have put in front of the rest.
    let mut todo: Vec<&'a str> = Vec::new();
    let (mut shard, mut at) = (root, ROOT);
    let mut links = 0;
    loop {
        let name: &str = match todo.pop() {
            Some(name) => name,
            None => match first.pop() {
                Some(name) => name,
                None => break,
            },
        };
        let names = shard.names();
        if !names.is_container(at) {
            return Err(Error::invalid(format!(
                "look up {}: `{}` on its way is a {}, not a directory: check the path",
                Shown(path),
                names.nodes.name_str(at),
                names.kind(at).name()
            )));
        }
        if matches!(name, "" | ".") {
            continue;
        }
        if name == ".." {
            at = names.nodes[at].parent.max(ROOT);
            continue;
        }
        if at == ROOT {
            // The root is every shard's.
            shard = keeper(name)?;
        }
        let names = shard.names();
        let child = names.child(at, name.as_bytes()).ok_or_else(|| {
            Error::not_found(format!(
                "look up {}: `{name}` does not exist: check the path",
                Shown(path)
            ))
        })?;
        if names.kind(child) != NodeKind::Symlink {
            at = child;
            continue;
        }
        links += 1;
        let target = names.link_target(names.nodes.id(child)).unwrap_or_default();
        if links > SYMLINKS_MAX || todo.len() + first.len() > PATH_BYTES_MAX {
            return Err(Error::invalid(format!(
                "resolve {}: more than {SYMLINKS_MAX} symlinks, the last one to {}: is it a \
                 loop?",
                Shown(path),
                Shown(target)
            )));
        }
        if target.starts_with('/') {
            at = ROOT;
        }
        todo.extend(target.split('/').rev());
    }
    if at == ROOT {
        shard = root;
    }
    let info = shard.names().info_at(shard.chunks(), at);
    Ok((shard.path_of(info.id).unwrap_or_default(), info))
}
