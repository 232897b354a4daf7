//! The names and chunks of all shards as one: what is read of a path or an id comes from the shard that
//! keeps it, as the root's view has it. Borrowed for one question, while none of the views changes;
//! a shard that is not there (not opened yet, or stopped) fails what asks for it and nothing else.

use crate::names::{FileInfo, Page, Totals, Usage};
use crate::{Chunk, Namespace};
use holdfast_base::Result;
use holdfast_base::ids::{ChunkId, FileId};

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

    /// Who keeps a path.
    pub fn of_path(&self, path: &str) -> Result<&'a Namespace> {
        self.get(self.root.shard_at(path))
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

    /// See [`Namespace::totals`].
    pub fn totals(&self) -> Totals {
        self.iter().fold(Totals::default(), |sum, shard| {
            let more = shard.totals();
            Totals {
                files: sum.files + more.files,
                directories: sum.directories + more.directories,
                symlinks: sum.symlinks + more.symlinks,
                bytes: sum.bytes + more.bytes,
            }
        })
    }

    /// See [`Namespace::lookup`].
    pub fn lookup(&self, path: &str) -> Result<Option<FileInfo>> {
        Ok(self.of_path(path)?.lookup(path))
    }

    /// See [`Namespace::lookup_batch`]; of what is not there nothing is found.
    pub fn lookup_batch(&self, paths: &[&str], infos: &mut [Option<FileInfo>]) {
        self.root.lookup_batch(paths, infos);
    }

    /// See [`Namespace::resolve`].
    pub fn resolve(&self, path: &str) -> Result<(String, FileInfo)> {
        self.root.resolve(path)
    }

    /// See [`Namespace::list`].
    pub fn list(&self, path: &str, after: Option<&str>, limit: usize) -> Result<Page> {
        self.of_path(path)?.list(path, after, limit)
    }

    /// See [`Namespace::usage`].
    pub fn usage(&self, path: &str) -> Result<Usage> {
        self.of_path(path)?.usage(path)
    }
}
