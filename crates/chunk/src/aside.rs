//! The directory `quarantine`: chunks' files that do not count any more wait there for a time, for
//! nobody may have been right about that; what no store wrote stays for ever. Called for nodes that
//! make way for a copy, or find at a start what should have been removed, and by `load.rs`.

use crate::disk::{DiskStore, Version};
use crate::names;
use holdfast_base::Result;
use holdfast_base::ids::{ChunkId, Generation};
use holdfast_env::Disk;
use holdfast_env::disk::{Entry, create_dir_durable};
use std::path::{Path, PathBuf};

/// How long a file that does not count any more is kept.
pub const QUARANTINE_S: u64 = 24 * 3600;

impl DiskStore {
    /// Takes a file out of the store and keeps it in `quarantine` until that time, and longer while
    /// nobody calls [`DiskStore::empty_quarantine`]. Whoever calls knows that it does not count. An
    /// older generation beside it is read again. Answers where it is kept.
    pub fn set_aside(
        &self,
        chunk: ChunkId,
        generation: Generation,
        until_unix_s: u64,
    ) -> Result<PathBuf> {
        let doing = || format!("set aside chunk `{chunk}` generation `{generation}`");
        self.writable()?;
        let _busy = self.mark_busy(chunk)?;
        let version = match self.current(chunk).map_err(|e| e.context(doing()))? {
            open @ Version::Open(_) => open,
            Version::Sealed(_) => self.version(chunk, generation)?,
        };
        if let Version::Open(open) = &version {
            open.core().gone = true;
            self.stop_appends(open);
        }
        let path = match &version {
            Version::Sealed(sealed) => sealed.path(),
            Version::Open(open) => open.path.clone(),
        };
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let kept = self.move_aside(&name, until_unix_s);
        let kept = kept.map_err(|e| self.write_failed(format_args!("{}", doing()), e))?;
        self.forget(chunk, version.generation());
        Ok(kept)
    }

    /// Durable before the name can be used again: a copy that takes its place does not end it.
    fn move_aside(&self, name: &str, until_unix_s: u64) -> std::io::Result<PathBuf> {
        let aside = self.dir.join(names::QUARANTINE);
        create_dir_durable(&*self.disk, &aside, 1, "chunk.quarantine")?;
        let mut until = until_unix_s;
        while self.disk.exists(&aside.join(names::aside(name, until)))? {
            until += 1;
        }
        let kept = aside.join(names::aside(name, until));
        self.disk.rename(&self.dir.join(name), &kept)?;
        self.disk.sync_dir(&aside, "chunk.aside-name")?;
        Ok(kept)
    }

    /// Removes what was set aside until this time or an earlier one.
    pub fn empty_quarantine(&self, now_unix_s: u64) -> Result<()> {
        for (entry, until) in waiting(&*self.disk, &self.dir)? {
            if until <= now_unix_s {
                // Not synced: if it comes back, it goes again.
                self.disk.remove(&self.dir.join(names::QUARANTINE).join(&entry.name))?;
                self.give_space(entry.bytes);
            }
        }
        Ok(())
    }
}

/// What waits in `quarantine` for its removal, and until when.
pub fn waiting(disk: &dyn Disk, dir: &Path) -> std::io::Result<Vec<(Entry, u64)>> {
    let entries = match disk.list(&dir.join(names::QUARANTINE)) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        listed => listed?,
    };
    let until = |entry: Entry| names::aside_until(&entry.name).map(|until| (entry, until));
    Ok(entries.into_iter().filter_map(until).collect())
}

/// Moves what no store wrote into `quarantine`, under a name that is free there, for a person.
pub fn keep_stranger(disk: &dyn Disk, dir: &Path, name: &str) -> std::io::Result<()> {
    let aside = dir.join(names::QUARANTINE);
    create_dir_durable(disk, &aside, 1, "chunk.quarantine")?;
    let mut target = aside.join(name);
    let mut number = 1;
    while disk.exists(&target)? {
        number += 1;
        target = aside.join(format!("{name}.{number}"));
    }
    disk.rename(&dir.join(name), &target)
}
