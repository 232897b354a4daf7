//! What a tree does for moves of directories from shard to shard: looks whether one is empty, or written to,
//! takes one out, puts one in. Which it may be is for the borders to say, content is `parts.rs`'s.

use super::nodes::ROOT;
use super::tree::{Fresh, Spot};
use super::{Names, NodeKind};
use crate::borders::{Borders, DirAttributes, is_top, top};
use crate::chunks::Chunks;
use crate::namespace::ensure;
use holdfast_base::ids::Index;
use holdfast_base::{Error, Result};

impl Names {
    pub(super) fn in_root(&self, name: &str) -> Option<u32> {
        self.child(ROOT, name.as_bytes())
    }

    /// What a directory of the root has beside its entries; of another node, nothing.
    pub(crate) fn dir_attributes(&self, name: &str) -> Option<DirAttributes> {
        let at = self.in_root(name).filter(|at| self.kind(*at) == NodeKind::Directory)?;
        let node = &self.nodes[at];
        let metadata = self.nodes.arena.get(node.metadata).to_vec();
        Some(DirAttributes { mode: node.mode, mtime: node.mtime, class: node.class(), metadata })
    }

    /// What an empty directory of the root has; refused while there is anything in it, or written for it.
    pub(crate) fn empty_dir(&self, dir: &str) -> Result<DirAttributes> {
        let attributes = self.still_dir(dir)?;
        let entries = self.in_root(top(dir)).map_or(0, |at| self.child_count(at));
        if entries > 0 {
            return Err(Error::invalid(format!(
                "it has {entries} entries: only an empty directory goes with one entry: ask again"
            )));
        }
        Ok(attributes)
    }

    /// What a directory of the root has; refused while anything is written for it.
    pub(crate) fn still_dir(&self, dir: &str) -> Result<DirAttributes> {
        let name = top(dir);
        let at = self.in_root(name).ok_or_else(|| {
            Error::not_found("it does not exist: make the directory first (`holdfast fs mkdir`)")
        })?;
        let attributes = self.dir_attributes(name).ok_or_else(|| {
            Error::invalid(format!("it is a {}, not a directory", self.kind(at).name()))
        })?;
        if self.unclosed.values().any(|file| top(&file.path) == name && !is_top(&file.path)) {
            return Err(Error::invalid(
                "files are being written for it: have them closed or given up first (`holdfast fs \
                 unclosed`)",
            ));
        }
        Ok(attributes)
    }

    /// Takes out an empty directory of the root.
    pub(crate) fn drop_dir(&mut self, chunks: &mut Chunks, index: Index, dir: &str) {
        let at = self.in_root(top(dir)).expect("it was found empty");
        self.unlink(at);
        self.drop_node(chunks, index, at);
    }

    /// Refuses what [`Names::take_dir`] does not take.
    pub(crate) fn check_dir(&self, dir: &str) -> Result<()> {
        self.spot_of_dir(dir).map(drop)
    }

    /// Where a directory goes; `Exists` where something else is.
    fn spot_of_dir<'a>(&self, dir: &'a str) -> Result<Spot<'a>> {
        let spot = self.spot(dir, NodeKind::Directory, false)?;
        match spot.existing {
            Some(at) if self.kind(at) != NodeKind::Directory => {
                Err(Error::exists(format!("a {} is there", self.kind(at).name())))
            }
            _ => Ok(spot),
        }
    }

    /// Puts in a directory of the root, or gives the one that is there these attributes.
    pub(crate) fn take_dir(
        &mut self,
        chunks: &mut Chunks,
        dir: &str,
        attributes: &DirAttributes,
    ) -> Result<()> {
        let DirAttributes { mode, mtime, class, .. } = attributes;
        let spot = self.spot_of_dir(dir)?;
        let at = match spot.existing {
            Some(at) => at,
            None => {
                let (kind, class) = (NodeKind::Directory, Some(*class));
                let fresh = Fresh { kind, mode: *mode, mtime: *mtime, class };
                self.make_at(chunks, Index(0), &spot, fresh)
            }
        };
        self.set_dir(at, attributes);
        Ok(())
    }

    /// A snapshot's borders are those of its tree: what they speak of is there, and in a shard that is
    /// not the first nothing else.
    pub(crate) fn check_borders(&self, borders: &Borders) -> Result<()> {
        let is_dir = |name: &str| self.dir_attributes(name).is_some();
        for (name, _) in borders.forwarded() {
            let empty = self.in_root(name).is_some_and(|at| self.child_count(at) == 0);
            ensure(empty && is_dir(name), || format!("`{}` is forwarded", name.escape_debug()))?;
        }
        let kept = borders.kept().inspect(|name| debug_assert!(!name.is_empty()));
        let mut count = 0;
        for name in kept {
            ensure(is_dir(name), || format!("`{}` is kept and not there", name.escape_debug()))?;
            count += 1;
        }
        let is_root = borders.count() > 0;
        ensure(is_root || self.child_count(ROOT) == count, || {
            "there are names that another shard keeps".to_owned()
        })
    }
}
