//! What is asked of names and chunks together, and the way to what is asked of either. None changes
//! anything, so reads run side by side under a shared lock.

use super::Namespace;
use crate::borders::{Borders, DirAttributes};
use crate::chunks::Chunks;
use crate::names::{FileInfo, Names, Page, Totals, UnclosedInfo, Usage, resolve};
use crate::{RawExtent, Remainder};
use holdfast_base::ids::{ChunkId, FileId};
use holdfast_base::{Error, Result};

impl Namespace {
    /// What is known of chunks.
    pub fn chunks(&self) -> &Chunks {
        &self.chunks
    }

    /// Which shard keeps a path.
    #[inline]
    pub fn shard_at(&self, path: &str) -> u16 {
        self.borders.keeper(path)
    }

    /// Which directories of the root which shard keeps, as far as this one has a say.
    pub fn borders(&self) -> &Borders {
        &self.borders
    }

    /// What a directory of the root has beside its entries.
    pub fn dir_attributes(&self, name: &str) -> Option<DirAttributes> {
        self.names.dir_attributes(name)
    }

    /// How many shards there are, the root's included: of the root's view.
    pub fn shard_count(&self) -> u16 {
        self.borders.count()
    }

    /// Why a shard is not there, as the root's view sees it.
    pub fn no_shard(&self, shard: u16) -> Error {
        if shard < self.shard_count() {
            return Error::retry(format!(
                "use shard {shard}: this node does not have it (yet): ask again"
            ));
        }
        let count = self.shard_count();
        Error::not_found(format!("use shard {shard}: there are {count}, from 0 on: check the id"))
    }

    /// What is known of names alone.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// See [`Names::lookup`].
    pub fn lookup(&self, path: &str) -> Option<FileInfo> {
        self.names.lookup(&self.chunks, path)
    }

    /// See [`Names::lookup_batch`].
    pub fn lookup_batch(&self, paths: &[&str], infos: &mut [Option<FileInfo>]) {
        self.names.lookup_batch(&self.chunks, paths, infos);
    }

    /// See [`Names::info`].
    pub fn info(&self, file: FileId) -> Option<FileInfo> {
        self.names.info(&self.chunks, file)
    }

    /// See [`Names::list`].
    pub fn list(&self, path: &str, after: Option<&str>, limit: usize) -> Result<Page> {
        self.names.list(&self.chunks, path, after, limit)
    }

    /// See [`resolve`]; within this shard.
    pub fn resolve(&self, path: &str) -> Result<(String, FileInfo)> {
        resolve(self, &|_| Ok(self), path)
    }

    /// See [`Names::files_of`].
    pub fn files_of(&self, chunk: ChunkId, max: usize) -> Vec<String> {
        self.names.files_of(&self.chunks, chunk, max)
    }

    /// See [`Names::path_of`].
    pub fn path_of(&self, file: FileId) -> Option<String> {
        self.names.path_of(file)
    }

    /// See [`Names::path_or_begun`].
    pub fn path_or_begun(&self, file: FileId) -> Option<String> {
        self.names.path_or_begun(file)
    }

    /// See [`Names::extents`].
    pub fn extents(&self, file: FileId) -> Option<(&[RawExtent], Option<Remainder>)> {
        self.names.extents(file)
    }

    /// See [`Names::metadata`].
    pub fn metadata(&self, file: FileId) -> Option<&[u8]> {
        self.names.metadata(file)
    }

    /// See [`Names::link_target`].
    pub fn link_target(&self, file: FileId) -> Option<&str> {
        self.names.link_target(file)
    }

    /// See [`Names::usage`].
    pub fn usage(&self, path: &str) -> Result<Usage> {
        self.names.usage(path)
    }

    /// See [`Names::unclosed`].
    pub fn unclosed(&self) -> Vec<UnclosedInfo> {
        self.names.unclosed()
    }

    pub fn totals(&self) -> Totals {
        self.names.totals()
    }
}
