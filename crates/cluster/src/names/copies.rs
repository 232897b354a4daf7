//! A directory that is copied from shard to shard while it goes on changing: in the source what its next step
//! is, read from both trees; in the target the step, carried out on what has no name yet. What has changed, and
//! whose turn it is, is `moves/copies.rs`'s to say.
//!
//! **Invariant:** of all paths up to its reach, the target has what the source has at the change that the target
//! has heard of last, but for what later changes name.

use super::parts::{PartNode, wrong};
use super::tree::{check_metadata, check_mode};
use super::{Content, Names, PART_BYTES};
use crate::borders::top;
use crate::chunks::Chunks;
use crate::moves::{Change, Copying, Following, node_bytes};
use crate::{NodeKind, Remainder};
use holdfast_base::ids::ChunkId;
use holdfast_base::limits::{PATH_BYTES_MAX, PATH_DEPTH_MAX};
use holdfast_base::{Error, Result, codec_enum, path};
use holdfast_env::planted;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// One thing of a step. Paths are those below the directory, without a slash in front.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changed {
    /// Nothing is there any more, nor below it.
    Drop { path: String },
    /// This is in the directory `above`, in the place of what it replaced. Its depth is 1.
    Set { above: String, node: PartNode },
}
codec_enum!(Changed: "change of a directory" {
    1 => Drop { path },
    2 => Set { above, node },
});

/// How far a copy has come, in order of paths, a directory before what is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Up to this path, and with it; the empty one is the directory alone.
    Path { path: String },
    /// All of it.
    End {},
}
codec_enum!(Reach: "reach of a copy" {
    1 => Path { path },
    2 => End {},
});

/// What an entry is compared by: the names one after the other.
fn compare(a: &str, b: &str) -> Ordering {
    parts(a).cmp(parts(b))
}

fn parts(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|name| !name.is_empty())
}

impl Reach {
    /// Nothing but the directory itself.
    pub(crate) fn start() -> Reach {
        Reach::Path { path: String::new() }
    }

    fn covers(&self, of: &str) -> bool {
        match self {
            Reach::Path { path } => compare(of, path) != Ordering::Greater,
            Reach::End {} => true,
        }
    }
}

/// What is next of a copy.
pub(crate) enum Next {
    Step {
        /// The changes that it tells of, from those on that were heard.
        through: u64,
        changes: Vec<Changed>,
        reach: Reach,
    },
    TooDeep {},
}

/// What came of a step.
pub(crate) struct Taken {
    /// Place of the directory that has no name yet.
    pub root: u32,
    /// Else all of it is worth nothing.
    pub fits: bool,
    /// Something waits for a `Forget`, and the next step for that.
    pub leaves: bool,
}

/// What the target has of the directory.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub names: &'a Names,
    pub root: u32,
    pub following: &'a Following,
}

impl Target<'_> {
    /// Whether something goes that has anything below it here.
    fn has_below(&self, changed: Option<&Changed>) -> bool {
        let Some(Changed::Drop { path }) = changed else { return false };
        let at = self.names.walk_from(self.root, path);
        at.is_some_and(|at| self.names.child_count(at) > 0)
    }
}

/// Which of the changes that are to be told is the last one about a path.
struct Latest<'a> {
    set: BTreeMap<&'a str, u64>,
    dropped: BTreeMap<&'a str, u64>,
}

impl<'a> Latest<'a> {
    fn of(changes: impl Iterator<Item = (u64, &'a Change)>) -> Latest<'a> {
        let (mut set, mut dropped) = (BTreeMap::new(), BTreeMap::new());
        for (number, change) in changes {
            match change {
                Change::Set { path } => set.insert(path.as_str(), number),
                Change::Drop { path } => dropped.insert(path.as_str(), number),
            };
        }
        Latest { set, dropped }
    }

    /// Whether a path, or one above it, is dropped by a change behind this one.
    fn is_dropped_behind(&self, path: &str, number: u64) -> bool {
        let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
        let mut above = ends.map(|end| &path[..end]);
        above.any(|above| self.dropped.get(above).is_some_and(|at| *at > number))
    }
}

impl Names {
    /// Below a node, what is at a path.
    fn walk_from(&self, root: u32, path: &str) -> Option<u32> {
        parts(path).try_fold(root, |at, name| self.child(at, name.as_bytes()))
    }

    /// The next step of a directory that is being copied: `None` where nothing is left, or this view is behind
    /// what the target has heard. A directory that is deeper than a path may be is not copied, but taken in parts.
    /// Without room it is what goes before anything comes.
    pub(crate) fn next_step(
        &self,
        chunks: &Chunks,
        dir: &str,
        copying: &Copying,
        target: Option<Target<'_>>,
        has_room: bool,
    ) -> Option<Next> {
        let root = self.in_root(top(dir))?;
        let start = (0, Reach::start());
        let following = target.map(|target| target.following);
        let (heard, reach) = following.map_or(start, |f| (f.heard, f.reach.clone()));
        if heard > copying.total() || heard < copying.told {
            return None;
        }
        let mut bytes = 0;
        let (mut through, mut changes) = (heard, Vec::new());
        let latest = Latest::of(copying.behind(heard));
        for (number, change) in copying.behind(heard) {
            if bytes > PART_BYTES.size() {
                PART_BYTES.cross();
                return Some(Next::Step { through, changes, reach });
            }
            if !has_room && matches!(change, Change::Set { .. }) {
                break;
            }
            through = number + 1;
            if planted!("cluster.changes-since-the-copy-forgotten") {
                continue;
            }
            let changed = self.changed(chunks, root, (number, change), &latest, &reach);
            bytes += changed.as_ref().map_or(0, changed_bytes);
            let is_many = |target: Target<'_>| target.has_below(changed.as_ref());
            let ends = target.is_some_and(is_many);
            changes.extend(changed);
            if ends {
                // It is forgotten with entries of its own, and what follows may have its bytes.
                return Some(Next::Step { through, changes, reach });
            }
        }
        if !has_room {
            let is_any = following.is_some() && through > heard;
            return is_any.then_some(Next::Step { through, changes, reach });
        }
        let Some((more, reached)) = self.next_nodes(chunks, root, &reach, bytes) else {
            return Some(Next::TooDeep {});
        };
        let is_new = following.is_none() || through > heard || reached != reach;
        changes.extend(more);
        is_new.then_some(Next::Step { through, changes, reach: reached })
    }

    /// What a change comes to, as the tree is now.
    fn changed(
        &self,
        chunks: &Chunks,
        root: u32,
        (number, change): (u64, &Change),
        latest: &Latest<'_>,
        reach: &Reach,
    ) -> Option<Changed> {
        let path = match change {
            Change::Drop { path } => return Some(Changed::Drop { path: path.clone() }),
            Change::Set { path } => path,
        };
        // What lies further on is read when the copy comes there. What is to go by a change behind this one
        // comes again behind that, if there is something.
        if !reach.covers(path) || latest.is_dropped_behind(path, number) {
            return None;
        }
        let at = self.walk_from(root, path)?;
        // Bytes have one name: what it had before is dropped by changes before the last one.
        let is_last = latest.set.get(path.as_str()).is_none_or(|last| *last == number);
        if !self.is_container(at) && !is_last {
            return None;
        }
        let above = path.rsplit_once('/').map_or("", |(above, _)| above).to_owned();
        Some(Changed::Set { above, node: self.part_node(chunks, at, 1) })
    }

    /// What follows a reach, as much as there is room for, and how far that comes; `None` where that is deeper
    /// than a path may be.
    fn next_nodes(
        &self,
        chunks: &Chunks,
        root: u32,
        reach: &Reach,
        mut bytes: usize,
    ) -> Option<(Vec<Changed>, Reach)> {
        let Reach::Path { path } = reach else { return Some((Vec::new(), Reach::End {})) };
        let mut names: Vec<String> = parts(path).map(str::to_owned).collect();
        let mut next = self.behind(root, &names);
        let (mut nodes, mut last) = (Vec::new(), String::new());
        while let Some((at, depth)) = next {
            let node = self.part_node(chunks, at, 1);
            names.truncate(depth - 1);
            let above = names.join("/");
            bytes += above.len() + node_bytes(&node);
            if !nodes.is_empty() && bytes > PART_BYTES.size() {
                PART_BYTES.cross();
                return Some((nodes, Reach::Path { path: last }));
            }
            last = joined(&above, &node.name);
            if last.len() > PATH_BYTES_MAX {
                return None;
            }
            names.push(node.name.clone());
            nodes.push(Changed::Set { above, node });
            next = self.following(root, at, depth);
        }
        Some((nodes, Reach::End {}))
    }

    /// The first node behind a path, in order of paths, and its depth; the path need not be there any more.
    fn behind(&self, root: u32, names: &[String]) -> Option<(u32, usize)> {
        let mut at = root;
        for (depth, name) in names.iter().enumerate() {
            match self.child(at, name.as_bytes()) {
                Some(child) => at = child,
                None => {
                    let children = self.children(at);
                    let next = children.and_then(|c| c.above(&self.nodes, Some(name)).next());
                    let next = next.map(|next| (next, depth + 1));
                    return next.or_else(|| self.following_all_of(root, at, depth));
                }
            }
        }
        self.following(root, at, names.len())
    }

    /// Paths of all that is at and below a path, as it is now, a directory before what is in it; `None` for more
    /// than `max`, or for paths that are longer than one may be.
    pub(crate) fn paths_below(&self, path: &str, max: usize) -> Option<Vec<String>> {
        let Some(root) = self.walk(path) else { return Some(Vec::new()) };
        let mut names: Vec<&str> = path::components(path).skip(1).collect();
        let base = names.len();
        let mut paths = vec![names.join("/")];
        let mut next = self.following(root, root, 0);
        while let Some((at, depth)) = next {
            names.truncate(base + depth - 1);
            names.push(self.nodes.name_str(at));
            let path = names.join("/");
            if paths.len() >= max || path.len() > PATH_BYTES_MAX || names.len() > PATH_DEPTH_MAX {
                return None;
            }
            paths.push(path);
            next = self.following(root, at, depth);
        }
        Some(paths)
    }

    /// Refuses a step that no source writes, or for which there is no room.
    pub(crate) fn check_step(&self, changes: &[Changed]) -> Result<()> {
        let sets = changes.iter().filter(|change| matches!(change, Changed::Set { .. })).count();
        if sets > 0 && !self.nodes.has_room(sets + 1) {
            return Err(Error::full("the shard holds as many nodes as it can: delete some"));
        }
        for change in changes {
            match change {
                Changed::Drop { path } if parts(path).next().is_none() => {
                    return Err(wrong("all of it is dropped"));
                }
                Changed::Drop { .. } => {}
                Changed::Set { node, .. } => {
                    path::check_name(&node.name)?;
                    check_mode(node.mode)?;
                    check_metadata(&node.metadata)?;
                    check_form(node)?;
                }
            }
        }
        Ok(())
    }

    /// Carries a checked step out on what has no name yet, which is made with the first.
    pub(crate) fn take_step(
        &mut self,
        chunks: &mut Chunks,
        root: Option<u32>,
        changes: &[Changed],
    ) -> Taken {
        let root = root.unwrap_or_else(|| self.make_arriving());
        let (mut fits, mut leaves) = (true, false);
        for change in changes {
            match change {
                Changed::Set { above, node } => fits &= self.set_node(chunks, root, above, node),
                Changed::Drop { path } => match self.walk_from(root, path) {
                    Some(at) if self.child_count(at) > 0 => {
                        self.unlink(at);
                        self.leave(at);
                        leaves = true;
                    }
                    // At once: what follows may have its bytes by another name.
                    Some(at) => self.yield_node(chunks, at),
                    None => {}
                },
            }
        }
        Taken { root, fits, leaves }
    }

    /// Ends a node that has nothing below it; its bytes are whose they were.
    fn yield_node(&mut self, chunks: &mut Chunks, at: u32) {
        self.unlink(at);
        self.count(at, false);
        self.yield_bytes(chunks, at);
        self.nodes.release(at);
    }

    fn set_node(&mut self, chunks: &mut Chunks, root: u32, above: &str, node: &PartNode) -> bool {
        let Some(parent) = self.walk_from(root, above) else { return false };
        if !self.is_container(parent) || !self.kind(parent).may_hold(node.kind) {
            return false;
        }
        if let Some(at) = self.child(parent, node.name.as_bytes()) {
            if self.kind(at) == node.kind && self.is_container(at) {
                (self.nodes[at].mode, self.nodes[at].mtime) = (node.mode, node.mtime);
                self.nodes[at].set_class(node.class);
                self.set_metadata(at, &node.metadata);
                return true;
            }
            if self.child_count(at) > 0 {
                return false;
            }
            self.yield_node(chunks, at);
        }
        if self.check_content(chunks, node, &mut BTreeSet::new()).is_err() {
            return false;
        }
        self.take_node(chunks, parent, node);
        true
    }

    /// Refuses where so many nodes more would find no room.
    pub(crate) fn check_room_for(&self, count: u64) -> Result<()> {
        match usize::try_from(count).is_ok_and(|count| self.nodes.has_room(count)) {
            true => Ok(()),
            false => Err(Error::full(format!(
                "the shard has no room for {count} more names: delete some"
            ))),
        }
    }
}

fn changed_bytes(changed: &Changed) -> usize {
    match changed {
        Changed::Drop { path } => 8 + path.len(),
        Changed::Set { above, node } => above.len() + node_bytes(node),
    }
}

fn joined(above: &str, name: &str) -> String {
    match above.is_empty() {
        true => name.to_owned(),
        false => format!("{above}/{name}"),
    }
}

/// Refuses what no node can be, whatever there is of chunks.
fn check_form(node: &PartNode) -> Result<()> {
    let (is_data, is_link) = (node.kind.is_data(), node.kind == NodeKind::Symlink);
    let suits = match &node.content {
        Content::None {} => !is_link,
        Content::Target { target } => {
            is_link && !target.is_empty() && target.len() <= PATH_BYTES_MAX
        }
        Content::Packed { .. } => is_data,
        Content::Extents { extents, remainder } => {
            let chunks: BTreeSet<ChunkId> = extents.iter().map(|extent| extent.chunk).collect();
            let end = remainder.is_none_or(|Remainder { length, .. }| length > 0);
            is_data && !extents.is_empty() && chunks.len() == extents.len() && end
        }
    };
    match suits && (node.crc.is_none() || is_data) && node.depth == 1 {
        true => Ok(()),
        false => Err(wrong("a node has what its kind has not")),
    }
}
