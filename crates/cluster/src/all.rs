//! The names and chunks of all shards as one: what is read of a path or an id comes from the shard that
//! keeps it, as the root's view has it. Borrowed for one question, while none of the views changes;
//! a shard that is not there (not opened yet, or stopped) fails what asks for it and nothing else.

use crate::borders::top;
use crate::names::{FileInfo, Page, Totals, Usage, resolve};
use crate::{Chunk, Namespace};
use holdfast_base::ids::{ChunkId, FileId};
use holdfast_base::{Error, Result, path};

/// Shards of a cluster, the root's included: each is a topic and a fold on every node, and a leader
/// looks at all of them in every round.
pub const SHARDS_MAX: usize = 64;

/// The views of all shards, at one time.
pub struct AllShards<'a> {
    root: &'a Namespace,
    /// Shard `n` at `n - 1`.
    others: &'a [Option<&'a Namespace>],
}

impl<'a> AllShards<'a> {
    /// `others`: shard `n` at `n - 1`, as far as they are there.
    pub fn new(root: &'a Namespace, others: &'a [Option<&'a Namespace>]) -> AllShards<'a> {
        AllShards { root, others }
    }

    /// Of the root directory.
    pub fn root(&self) -> &'a Namespace {
        self.root
    }

    /// Those that are there, the root's first.
    pub fn iter(&self) -> impl Iterator<Item = &'a Namespace> + use<'a> {
        std::iter::once(self.root).chain(self.others.iter().copied().flatten())
    }

    /// Whether all are there that the map knows of.
    pub fn is_whole(&self) -> bool {
        self.iter().count() == self.root.shard_count() as usize
    }

    /// A shard's; `Retry` for one that is not there.
    pub fn get(&self, shard: u16) -> Result<&'a Namespace> {
        match shard.checked_sub(1) {
            None => Ok(self.root),
            Some(at) => {
                let there = self.others.get(at as usize).copied().flatten();
                there.ok_or_else(|| self.root.no_shard(shard))
            }
        }
    }

    /// Who keeps a path. `Retry` for what is on its way from shard to shard: it is there in a moment.
    pub fn of_path(&self, path: &str) -> Result<&'a Namespace> {
        match self.root.borders().is_any_away() {
            true => self.of_name(top(path)),
            false => Ok(self.root),
        }
    }

    /// As [`AllShards::of_path`], of a name in the root.
    fn of_name(&self, name: &str) -> Result<&'a Namespace> {
        let keeper = self.root.borders().keeper_of(name);
        let view = self.get(keeper)?;
        match keeper == 0 || view.borders().keeps(name) {
            true => Ok(view),
            false => {
                Err(Error::retry(format!("`/{name}` is on its way from shard to shard: ask again")))
            }
        }
    }

    /// Who keeps a file.
    pub fn of_file(&self, file: FileId) -> Result<&'a Namespace> {
        self.get(file.shard())
    }

    /// Who keeps a chunk.
    pub fn of_chunk(&self, chunk: ChunkId) -> Result<&'a Namespace> {
        self.get(chunk.shard())
    }

    /// What is known of a chunk; `None` where it was deleted, or never was.
    pub fn chunk(&self, chunk: ChunkId) -> Result<Option<&'a Chunk>> {
        Ok(self.of_chunk(chunk)?.chunks().get(chunk))
    }

    /// Paths of up to `max` files with bytes in a chunk, whichever shard has their names.
    pub fn files_of(&self, chunk: ChunkId, max: usize) -> Vec<String> {
        let named = self.iter().flat_map(|shard| shard.files_of(chunk, max));
        named.take(max).collect()
    }

    /// The file whose bytes a raw chunk has: where it was begun, or where it has moved since.
    pub fn owner_of(&self, chunk: &Chunk) -> FileId {
        let moved = self.iter().find_map(|shard| shard.names().moved_owner(chunk.id));
        moved.unwrap_or(chunk.owner)
    }

    /// See [`Namespace::totals`].
    pub fn totals(&self) -> Totals {
        let others = self.iter().skip(1);
        others.fold(self.root.totals(), |sum, shard| {
            let more = shard.totals();
            // The root, and what is kept of it, count in the first.
            let twice = 1 + shard.borders().kept().count() as u64;
            added(sum, Totals { directories: more.directories - twice, ..more })
        })
    }

    /// See [`Namespace::lookup`].
    pub fn lookup(&self, path: &str) -> Result<Option<FileInfo>> {
        Ok(self.of_path(path)?.lookup(path))
    }

    /// See [`Namespace::lookup_batch`]; of what is not there nothing is found.
    pub fn lookup_batch(&self, paths: &[&str], infos: &mut [Option<FileInfo>]) {
        let elsewhere = |path: &&str| self.root.shard_at(path) != 0;
        if !self.root.borders().is_any_away() || !paths.iter().any(elsewhere) {
            return self.root.lookup_batch(paths, infos);
        }
        for (path, info) in paths.iter().zip(infos) {
            *info = self.lookup(path).ok().flatten();
        }
    }

    /// See [`Namespace::resolve`].
    pub fn resolve(&self, path: &str) -> Result<(String, FileInfo)> {
        resolve(self.root, &|name| self.of_name(name), path)
    }

    /// See [`Namespace::list`]. The root shows what other shards keep as they have it.
    pub fn list(&self, path: &str, after: Option<&str>, limit: usize) -> Result<Page> {
        let mut page = self.of_path(path)?.list(path, after, limit)?;
        let elsewhere = path::components(path).next().is_none()
            && self.root.borders().forwarded().next().is_some();
        if elsewhere {
            for entry in &mut page.entries {
                let path = format!("/{}", entry.name);
                // On its way it is as it was.
                if let Ok(Some(info)) = self.lookup(&path) {
                    entry.info = info;
                }
            }
        }
        Ok(page)
    }

    /// See [`Namespace::usage`]. Of the root it is that of all shards, as far as they are there.
    pub fn usage(&self, path: &str) -> Result<Usage> {
        let mut usage = self.of_path(path)?.usage(path)?;
        if path::components(path).next().is_some() {
            return Ok(usage);
        }
        for shard in self.iter().skip(1) {
            for name in shard.borders().kept() {
                let more = shard.usage(&format!("/{name}"))?;
                // Its name counts in the root.
                usage = added(usage, Usage { directories: more.directories - 1, ..more });
            }
        }
        Ok(usage)
    }
}

fn added(a: Usage, b: Usage) -> Usage {
    Usage {
        files: a.files + b.files,
        directories: a.directories + b.directories,
        symlinks: a.symlinks + b.symlinks,
        bytes: a.bytes + b.bytes,
    }
}
