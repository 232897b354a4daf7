//! Changes of the tree: making, renaming and deleting nodes. Each function checks everything
//! first and then changes without failing.

use super::children::Children;
use super::nodes::{DETACHED, ROOT, UNCLOSED};
use super::{Names, table};
use crate::chunks::Chunks;
use crate::command::METADATA_BYTES_MAX;
use crate::namespace::{MODE_MAX, STEPS_MAX, Shown, misrouted};
use crate::{Command, NodeKind, Outcome, StorageClass};
use holdfast_base::ids::Index;
use holdfast_base::limits::PATH_BYTES_MAX;
use holdfast_base::{Error, Result, path};

/// Where a new name goes.
pub(super) struct Spot<'a> {
    /// The deepest directory that exists.
    parent: u32,
    /// Directories to make below it.
    missing: Vec<&'a str>,
    name: &'a str,
    /// Who has the name now.
    pub existing: Option<u32>,
}

/// The attributes that every new node has.
pub(super) struct Fresh {
    pub kind: NodeKind,
    pub mode: u16,
    pub mtime: i64,
    pub class: Option<StorageClass>,
}

impl Names {
    #[inline]
    pub(super) fn child(&self, parent: u32, name: &[u8]) -> Option<u32> {
        self.table.find(table::hash(parent, name), |node| self.nodes.is_named(node, parent, name))
    }

    pub(super) fn kind(&self, at: u32) -> NodeKind {
        // Only living nodes are reached: through the table, the lists and checked ids.
        self.nodes[at].kind().expect("the node lives")
    }

    pub(super) fn is_container(&self, at: u32) -> bool {
        self.kind(at).is_container()
    }

    /// The children of a container; `None` for one without any, and for other nodes.
    pub(super) fn children(&self, at: u32) -> Option<&Children> {
        let container = self.is_container(at);
        container.then(|| self.families.get(self.nodes[at].slot)).flatten()
    }

    pub(super) fn child_count(&self, at: u32) -> u32 {
        self.children(at).map_or(0, |children| children.len())
    }

    /// The node at a path, for a change of it.
    fn find(&self, path: &str) -> Result<u32> {
        path::check(path)?;
        self.walk(path).ok_or_else(|| Error::not_found("it does not exist: check the path"))
    }

    /// Finds where `path` goes for a node of `kind`, without changing anything.
    pub(super) fn spot<'a>(
        &self,
        path: &'a str,
        kind: NodeKind,
        parents: bool,
    ) -> Result<Spot<'a>> {
        path::check(path)?;
        let Some((above, name)) = path::split(path) else {
            return Err(Error::exists("`/` is the root: name something below it"));
        };
        let mut spot = Spot { parent: ROOT, missing: Vec::new(), name, existing: None };
        for (depth, part) in path::components(above).enumerate() {
            let child = match spot.missing.is_empty() {
                true => self.child(spot.parent, part.as_bytes()),
                false => None,
            };
            let Some(child) = child else {
                if !parents {
                    return Err(Error::not_found(format!(
                        "directory {} does not exist: make it first, or ask for parents (-p)",
                        Shown(&prefix(path, depth + 1))
                    )));
                }
                spot.missing.push(part);
                continue;
            };
            if !self.is_container(child) {
                return Err(Error::invalid(format!(
                    "{} is a {}, not a directory: choose another place",
                    Shown(&prefix(path, depth + 1)),
                    self.kind(child).name()
                )));
            }
            spot.parent = child;
        }
        let holder = self.kind(spot.parent);
        let next = if spot.missing.is_empty() { kind } else { NodeKind::Directory };
        let last = if spot.missing.is_empty() { holder } else { NodeKind::Directory };
        if !holder.may_hold(next) || !last.may_hold(kind) {
            return Err(Error::invalid(format!(
                "a {} cannot hold a {}: choose another place",
                if holder.may_hold(next) { last } else { holder }.name(),
                if holder.may_hold(next) { kind } else { next }.name()
            )));
        }
        if spot.missing.is_empty() {
            spot.existing = self.child(spot.parent, name.as_bytes());
        }
        self.check_room()?;
        Ok(spot)
    }

    /// Refuses unless the spot is free, or holds a file and `replace` is given.
    pub(super) fn check_replace(&self, spot: &Spot<'_>, replace: bool) -> Result<()> {
        match spot.existing {
            Some(at) if self.is_container(at) => {
                Err(Error::exists(format!("it is a {}: delete it first", self.kind(at).name())))
            }
            Some(_) if !replace => {
                Err(Error::exists("it exists: ask to replace it (-f), or choose another name"))
            }
            _ => Ok(()),
        }
    }

    /// Makes the directories that a spot misses and frees its name; tells the parent. Missing
    /// directories inherit their class, and take mode and mtime from what they are made for.
    pub(super) fn prepare(
        &mut self,
        chunks: &mut Chunks,
        index: Index,
        spot: &Spot<'_>,
        mode: u16,
        mtime: i64,
    ) -> u32 {
        let mut parent = spot.parent;
        // A directory can be searched by whoever may read it.
        let mode = mode | (mode & 0o444) >> 2;
        for name in &spot.missing {
            let class = self.nodes[parent].class();
            let at = self.nodes.make(NodeKind::Directory, mode, mtime, class);
            self.link(at, parent, name);
            parent = at;
        }
        if let Some(at) = spot.existing {
            self.unlink(at);
            self.drop_node(chunks, index, at);
        }
        parent
    }

    /// Makes a node at a spot that was checked.
    pub(super) fn make_at(
        &mut self,
        chunks: &mut Chunks,
        index: Index,
        spot: &Spot<'_>,
        fresh: Fresh,
    ) -> u32 {
        let parent = self.prepare(chunks, index, spot, fresh.mode, fresh.mtime);
        let class = fresh.class.unwrap_or_else(|| self.nodes[parent].class());
        let at = self.nodes.make(fresh.kind, fresh.mode, fresh.mtime, class);
        self.link(at, parent, spot.name);
        at
    }

    /// Links a nameless node to a spot that was checked.
    pub(super) fn link_at(&mut self, chunks: &mut Chunks, index: Index, spot: &Spot<'_>, at: u32) {
        let (mode, mtime) = (self.nodes[at].mode, self.nodes[at].mtime);
        let parent = self.prepare(chunks, index, spot, mode, mtime);
        self.link(at, parent, spot.name);
    }

    pub(super) fn link(&mut self, at: u32, parent: u32, name: &str) {
        self.nodes.set_name(at, name.as_bytes());
        self.attach(at, parent);
        self.count(at, true);
    }

    /// Enters a node whose name is set.
    pub(super) fn attach(&mut self, at: u32, parent: u32) {
        self.nodes[at].parent = parent;
        self.table.insert(table::hash(parent, self.nodes.name(at)), at);
        let handle = self.nodes[parent].slot;
        self.nodes[parent].slot = self.families.insert(&self.nodes, handle, at);
    }

    /// Takes a named node out of its directory; its name stays in it.
    pub(super) fn unlink(&mut self, at: u32) {
        let parent = self.nodes[at].parent;
        self.table.remove(table::hash(parent, self.nodes.name(at)), at);
        let handle = self.nodes[parent].slot;
        self.nodes[parent].slot = self.families.remove(&self.nodes, handle, at);
        self.nodes[at].parent = 0;
    }

    /// Frees a node that is in no directory and has no children, and what it keeps.
    pub(super) fn drop_node(&mut self, chunks: &mut Chunks, index: Index, at: u32) {
        if self.nodes[at].flags & UNCLOSED == 0 {
            self.count(at, false);
        }
        self.free_bytes(chunks, index, at);
        self.nodes.release(at);
    }

    /// Keeps the totals.
    pub(super) fn count(&mut self, at: u32, more: bool) {
        let size = self.size(at);
        let kind = self.kind(at);
        let totals = &mut self.totals;
        let counter = match kind {
            NodeKind::File | NodeKind::KeyValue => &mut totals.files,
            NodeKind::Symlink => &mut totals.symlinks,
            _ => &mut totals.directories,
        };
        if more {
            *counter += 1;
            totals.bytes += size;
        } else {
            *counter -= 1;
            totals.bytes -= size;
        }
    }

    pub(crate) fn make_dir(&mut self, chunks: &mut Chunks, command: &Command) -> Result<Outcome> {
        let Command::MakeDir { path, kind, mode, mtime, class, parents } = command else {
            return Err(misrouted());
        };
        if !kind.is_container() {
            return Err(Error::invalid(format!("a {} is not made as a directory", kind.name())));
        }
        check_mode(*mode)?;
        if *parents && *kind == NodeKind::Directory && path::split(path).is_none() {
            path::check(path)?;
            return Ok(Outcome::File { file: self.nodes.id(ROOT) });
        }
        let spot = self.spot(path, *kind, *parents)?;
        if let Some(at) = spot.existing {
            if *parents && self.kind(at) == *kind {
                return Ok(Outcome::File { file: self.nodes.id(at) });
            }
            return Err(Error::exists(format!("it exists, as a {}", self.kind(at).name())));
        }
        let fresh = Fresh { kind: *kind, mode: *mode, mtime: *mtime, class: *class };
        let at = self.make_at(chunks, Index(0), &spot, fresh);
        Ok(Outcome::File { file: self.nodes.id(at) })
    }

    pub(crate) fn symlink(
        &mut self,
        chunks: &mut Chunks,
        path: &str,
        target: &str,
        mtime: i64,
    ) -> Result<Outcome> {
        if target.is_empty() || target.len() > PATH_BYTES_MAX || target.contains('\0') {
            return Err(Error::invalid(format!(
                "its target {} is empty, longer than {PATH_BYTES_MAX} bytes, or holds a NUL byte",
                Shown(target)
            )));
        }
        let spot = self.spot(path, NodeKind::Symlink, false)?;
        self.check_replace(&spot, false)?;
        let fresh = Fresh { kind: NodeKind::Symlink, mode: 0o777, mtime, class: None };
        let at = self.make_at(chunks, Index(0), &spot, fresh);
        self.nodes[at].slot = self.nodes.arena.put(target.as_bytes());
        Ok(Outcome::File { file: self.nodes.id(at) })
    }

    pub(crate) fn rename(
        &mut self,
        chunks: &mut Chunks,
        index: Index,
        from: &str,
        to: &str,
        replace: bool,
    ) -> Result<Outcome> {
        let at = self.find(from)?;
        if at == ROOT {
            return Err(Error::invalid("the root keeps its name"));
        }
        let spot = self.spot(to, self.kind(at), false)?;
        let mut above = spot.parent;
        while above != ROOT {
            if above == at {
                return Err(Error::invalid(
                    "a directory cannot move into its own subtree: choose a place outside",
                ));
            }
            above = self.nodes[above].parent;
        }
        if spot.existing == Some(at) {
            return Ok(Outcome::Done {});
        }
        if let Some(old) = spot.existing {
            self.check_rename_over(at, old, replace)?;
            self.unlink(old);
            self.drop_node(chunks, index, old);
        }
        self.unlink(at);
        self.nodes.set_name(at, spot.name.as_bytes());
        self.attach(at, spot.parent);
        Ok(Outcome::Done {})
    }

    fn check_rename_over(&self, at: u32, old: u32, replace: bool) -> Result<()> {
        if !replace {
            return Err(Error::exists("the new name is taken: ask to replace it (-f)"));
        }
        let (kind, old_kind) = (self.kind(at), self.kind(old));
        if kind.is_container() != old_kind.is_container() || kind.is_container() && kind != old_kind
        {
            return Err(Error::exists(format!(
                "a {} cannot replace a {}: delete it first",
                kind.name(),
                old_kind.name()
            )));
        }
        if self.child_count(old) > 0 {
            return Err(Error::exists(format!(
                "the {} of that name is not empty: delete it first",
                old_kind.name()
            )));
        }
        Ok(())
    }

    pub(crate) fn delete(
        &mut self,
        chunks: &mut Chunks,
        index: Index,
        path: &str,
        recursive: bool,
    ) -> Result<Outcome> {
        let at = self.find(path)?;
        if at == ROOT {
            return Err(Error::invalid("the root cannot be deleted: delete what is in it"));
        }
        let children = self.child_count(at);
        if children > 0 && !recursive {
            return Err(Error::invalid(format!(
                "it is a {} with {children} entries: delete them first, or ask for everything below (-r)",
                self.kind(at).name()
            )));
        }
        self.unlink(at);
        if children > 0 {
            self.detach(at);
        } else {
            self.drop_node(chunks, index, at);
        }
        Ok(Outcome::Done {})
    }

    fn detach(&mut self, at: u32) {
        self.nodes.set_name(at, &[]);
        self.nodes[at].flags |= DETACHED;
        self.detached.push(at);
    }

    /// Frees up to `budget` nodes of deleted subtrees.
    pub(crate) fn reclaim(&mut self, chunks: &mut Chunks, index: Index, budget: u32) -> Outcome {
        let free = |names: &mut Names, at| names.drop_node(chunks, index, at);
        self.take_apart(budget, |names| &mut names.detached, Names::detach, free)
    }

    /// Takes subtrees without a name apart, from the last of their `roots` on. Each step either takes one
    /// child out of the directory in hand, which becomes a root by `uproot`, or frees one node, so that
    /// the work of an entry is bounded whatever the subtree's shape.
    pub(super) fn take_apart(
        &mut self,
        budget: u32,
        roots: fn(&mut Names) -> &mut Vec<u32>,
        uproot: fn(&mut Names, u32),
        mut free: impl FnMut(&mut Names, u32),
    ) -> Outcome {
        let mut steps = 0;
        while let Some(&at) = roots(self).last() {
            if steps == STEPS_MAX.get() as u32 {
                STEPS_MAX.cross();
            }
            if steps == budget.min(STEPS_MAX.get() as u32) {
                break;
            }
            steps += 1;
            match self.children(at).and_then(|children| children.first()) {
                Some(child) => {
                    self.unlink(child);
                    uproot(self, child);
                }
                None => {
                    roots(self).pop();
                    free(self, at);
                }
            }
        }
        Outcome::Progress { steps, more: !roots(self).is_empty() }
    }

    pub(crate) fn set_attributes(
        &mut self,
        path: &str,
        mode: Option<u16>,
        mtime: Option<i64>,
        metadata: Option<&[u8]>,
    ) -> Result<Outcome> {
        let at = self.find(path)?;
        check_mode(mode.unwrap_or(0))?;
        check_metadata(metadata.unwrap_or(&[]))?;
        if !self.nodes.has_room(0) {
            return Err(Error::full("the shard holds as much metadata as it can: delete some"));
        }
        if let Some(metadata) = metadata {
            self.set_metadata(at, metadata);
        }
        let node = &mut self.nodes[at];
        node.mode = mode.unwrap_or(node.mode);
        node.mtime = mtime.unwrap_or(node.mtime);
        Ok(Outcome::Done {})
    }

    pub(super) fn set_metadata(&mut self, at: u32, metadata: &[u8]) {
        let old = self.nodes[at].metadata;
        self.nodes.arena.free(old);
        self.nodes[at].metadata = self.nodes.arena.put(metadata);
    }

    pub(crate) fn set_class(&mut self, path: &str, class: StorageClass) -> Result<Outcome> {
        let at = self.find(path)?;
        if !self.is_container(at) {
            return Err(Error::invalid(format!(
                "it is a {}, whose bytes are where they were put: copy it to change that",
                self.kind(at).name()
            )));
        }
        self.nodes[at].set_class(class);
        Ok(Outcome::Done {})
    }
}

/// The first `parts` components of a path.
fn prefix(path: &str, parts: usize) -> String {
    path::components(path).take(parts).flat_map(|part| ["/", part]).collect()
}

pub(super) fn check_mode(mode: u16) -> Result<()> {
    if mode > MODE_MAX {
        return Err(Error::invalid(format!("mode {mode:o} has more than the permission bits")));
    }
    Ok(())
}

pub(super) fn check_metadata(metadata: &[u8]) -> Result<()> {
    if metadata.len() > METADATA_BYTES_MAX {
        return Err(Error::invalid(format!(
            "its metadata of {} bytes exceeds {METADATA_BYTES_MAX}: put it into a file",
            metadata.len()
        )));
    }
    Ok(())
}
