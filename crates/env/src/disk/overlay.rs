//! A disk that leaves the one below as it is: what is written is kept in memory, and gone with it. So
//! whoever only looks at a directory can open what is there with the code that opens it to work, which
//! may mend, cut and note as it does.

use super::{Access, Disk, Entry, File, Lock, NotAFile, Space, Stamp};
use crate::HoldMutex;
use crate::buf::AlignedBuf;
use holdfast_base::limits::SECTOR_BYTES;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

const PAGE: u64 = SECTOR_BYTES as u64;

/// See the module. The one below must not change meanwhile; locks are taken there.
pub struct Overlay {
    below: Arc<dyn Disk>,
    room: Arc<Room>,
    /// What paths name here, where that is not what they name below.
    names: Mutex<BTreeMap<PathBuf, Name>>,
}

#[derive(Clone)]
enum Name {
    File(Arc<Layer>),
    Directory,
    Gone,
}

/// Pages that may still be written.
struct Room(AtomicU64);

/// What is different in a file.
struct Layer {
    /// Its path below, if it comes from there.
    origin: Option<PathBuf>,
    bytes: Mutex<Bytes>,
}

#[derive(Default)]
struct Bytes {
    len: u64,
    /// So far in front of its end it is as below, but for the pages.
    kept: u64,
    pages: BTreeMap<u64, AlignedBuf>,
}

struct Handle {
    layer: Arc<Layer>,
    below: Option<Arc<dyn File>>,
    room: Arc<Room>,
}

impl Overlay {
    /// May have so many bytes written at once; then its disk is full.
    pub fn new(below: Arc<dyn Disk>, bytes_max: u64) -> Overlay {
        let room = Arc::new(Room(AtomicU64::new(bytes_max / PAGE)));
        Overlay { below, room, names: Mutex::default() }
    }

    /// The file here; one from below is known here from now on.
    fn layer(&self, names: &mut BTreeMap<PathBuf, Name>, path: &Path) -> io::Result<Arc<Layer>> {
        match names.get(path) {
            Some(Name::File(layer)) => return Ok(layer.clone()),
            Some(Name::Directory) => return Err(io::ErrorKind::IsADirectory.into()),
            Some(Name::Gone) => return Err(io::ErrorKind::NotFound.into()),
            None => {}
        }
        let len = self.below.open_to_read(path, Access::Cached)?.len()?;
        let bytes = Mutex::new(Bytes { len, kept: len, pages: BTreeMap::new() });
        let layer = Arc::new(Layer { origin: Some(path.to_owned()), bytes });
        names.insert(path.to_owned(), Name::File(layer.clone()));
        Ok(layer)
    }

    fn handle(&self, layer: Arc<Layer>, access: Access) -> io::Result<Arc<dyn File>> {
        let open = |origin: &PathBuf| self.below.open_to_read(origin, access);
        let below = layer.origin.as_ref().map(open).transpose()?;
        Ok(Arc::new(Handle { layer, below, room: self.room.clone() }))
    }

    fn is_there(&self, names: &BTreeMap<PathBuf, Name>, path: &Path) -> io::Result<bool> {
        match names.get(path) {
            Some(name) => Ok(!matches!(name, Name::Gone)),
            None => self.below.exists(path),
        }
    }

    fn is_directory(&self, names: &BTreeMap<PathBuf, Name>, path: &Path) -> bool {
        match names.get(path) {
            Some(name) => matches!(name, Name::Directory),
            None => self.below.list(path).is_ok(),
        }
    }

    fn entries(&self, names: &BTreeMap<PathBuf, Name>, path: &Path) -> io::Result<Vec<Entry>> {
        let mut entries = match (self.below.list(path), names.get(path)) {
            (_, Some(Name::Gone)) => return Err(io::ErrorKind::NotFound.into()),
            (_, Some(Name::File(_))) => return Err(io::ErrorKind::NotADirectory.into()),
            (Ok(entries), _) => entries.into_iter().collect::<BTreeSet<_>>(),
            (Err(_), Some(Name::Directory)) => BTreeSet::new(),
            (Err(e), None) => return Err(e),
        };
        entries.retain(|entry| !names.contains_key(&path.join(&entry.name)));
        for (there, name) in names.iter().filter(|(there, _)| there.parent() == Some(path)) {
            let name_of = || there.file_name().unwrap_or_default().to_string_lossy().into_owned();
            match name {
                Name::File(layer) => {
                    let bytes = layer.bytes.held().len;
                    entries.insert(Entry { name: name_of(), is_dir: false, bytes });
                }
                Name::Directory => {
                    entries.insert(Entry { name: name_of(), is_dir: true, bytes: 0 });
                }
                Name::Gone => {}
            }
        }
        Ok(entries.into_iter().collect())
    }

    fn move_all(
        &self,
        names: &mut BTreeMap<PathBuf, Name>,
        from: &Path,
        to: &Path,
    ) -> io::Result<()> {
        if !self.is_directory(names, from) {
            let layer = match self.layer(names, from) {
                // A pipe, say: where it was moved to it is an empty file, as nobody may read it.
                Err(e) if NotAFile::is_why(&e) => {
                    Arc::new(Layer { origin: None, bytes: Mutex::default() })
                }
                layer => layer?,
            };
            names.insert(from.to_owned(), Name::Gone);
            names.insert(to.to_owned(), Name::File(layer));
            return Ok(());
        }
        for entry in self.entries(names, from)? {
            self.move_all(names, &from.join(&entry.name), &to.join(&entry.name))?;
        }
        names.insert(from.to_owned(), Name::Gone);
        names.insert(to.to_owned(), Name::Directory);
        Ok(())
    }
}

impl Disk for Overlay {
    fn create(&self, path: &Path, access: Access) -> io::Result<Arc<dyn File>> {
        let mut names = self.names.held();
        if self.is_there(&names, path)? {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let layer = Arc::new(Layer { origin: None, bytes: Mutex::default() });
        names.insert(path.to_owned(), Name::File(layer.clone()));
        self.handle(layer, access)
    }

    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn File>> {
        let layer = self.layer(&mut self.names.held(), path)?;
        self.handle(layer, access)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut names = self.names.held();
        if !self.is_there(&names, from)? {
            return Err(io::ErrorKind::NotFound.into());
        }
        if from == to {
            return Ok(());
        }
        if self.is_there(&names, to)? {
            match (self.is_directory(&names, from), self.is_directory(&names, to)) {
                (true, false) => return Err(io::ErrorKind::NotADirectory.into()),
                (false, true) => return Err(io::ErrorKind::IsADirectory.into()),
                (true, true) if !self.entries(&names, to)?.is_empty() => {
                    return Err(io::ErrorKind::DirectoryNotEmpty.into());
                }
                _ => {}
            }
        }
        self.move_all(&mut names, from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut names = self.names.held();
        if self.is_directory(&names, path) {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        if !self.is_there(&names, path)? {
            return Err(io::ErrorKind::NotFound.into());
        }
        names.insert(path.to_owned(), Name::Gone);
        Ok(())
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let mut names = self.names.held();
        for above in path.ancestors().filter(|above| !above.as_os_str().is_empty()) {
            if self.is_there(&names, above)? {
                return match self.is_directory(&names, above) {
                    true => Ok(()),
                    false => Err(io::ErrorKind::AlreadyExists.into()),
                };
            }
            names.insert(above.to_owned(), Name::Directory);
        }
        Ok(())
    }

    fn list(&self, path: &Path) -> io::Result<Vec<Entry>> {
        self.entries(&self.names.held(), path)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.is_there(&self.names.held(), path)
    }

    fn sync_dir(&self, path: &Path, _: &'static str) -> io::Result<()> {
        match self.is_directory(&self.names.held(), path) {
            true => Ok(()),
            false => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        self.below.space(path)
    }

    fn device_bytes(&self, path: &Path) -> Option<u64> {
        self.below.device_bytes(path)
    }

    /// Keeps out whoever locks the same file; where there is none, nobody has ever.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn Lock>> {
        Ok(self.below.lock_there(path)?.unwrap_or_else(|| Box::new(Nobodys)))
    }
}

/// The lock of a file that is not there below.
struct Nobodys;

impl Lock for Nobodys {
    fn is_in_place(&self) -> io::Result<bool> {
        Ok(true)
    }
}

impl Handle {
    /// What of a page is from below.
    fn page_below(&self, kept: u64, page: u64) -> io::Result<AlignedBuf> {
        let mut buf = AlignedBuf::zeroed(PAGE as usize);
        let begin = page * PAGE;
        if let Some(below) = self.below.as_ref().filter(|_| begin < kept) {
            let read = below.read_at(&mut buf, begin)?.min((kept - begin) as usize);
            buf[read..].fill(0);
        }
        Ok(buf)
    }
}

impl File for Handle {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let bytes = self.layer.bytes.held();
        let wanted = (buf.len() as u64).min(bytes.len.saturating_sub(offset)) as usize;
        let mut from_below = 0;
        if let Some(below) = self.below.as_ref().filter(|_| offset < bytes.kept) {
            // The whole of it, for its length may have to be one of sectors.
            let read = below.read_at(buf, offset)?;
            from_below = read.min((bytes.kept - offset).min(wanted as u64) as usize);
        }
        buf[from_below..wanted].fill(0);
        let end = offset + wanted as u64;
        for (page, there) in bytes.pages.range(offset / PAGE..end.div_ceil(PAGE)) {
            let (low, high) = ((page * PAGE).max(offset), ((page + 1) * PAGE).min(end));
            let within = &there[(low - page * PAGE) as usize..(high - page * PAGE) as usize];
            buf[(low - offset) as usize..(high - offset) as usize].copy_from_slice(within);
        }
        Ok(wanted)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        if buf.is_empty() {
            // No page is touched, and the file is not extended.
            return Ok(());
        }
        let mut bytes = self.layer.bytes.held();
        let end = offset + buf.len() as u64;
        for page in offset / PAGE..end.div_ceil(PAGE) {
            if !bytes.pages.contains_key(&page) {
                let take = |left: u64| left.checked_sub(1);
                let room = &self.room.0;
                room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
                    .map_err(|_| io::Error::from(io::ErrorKind::StorageFull))?;
                let below = self.page_below(bytes.kept, page)?;
                bytes.pages.insert(page, below);
            }
            let there = bytes.pages.get_mut(&page).expect("it was just put there");
            let (low, high) = ((page * PAGE).max(offset), ((page + 1) * PAGE).min(end));
            let part = &buf[(low - offset) as usize..(high - offset) as usize];
            there[(low - page * PAGE) as usize..(high - page * PAGE) as usize]
                .copy_from_slice(part);
            bytes.len = bytes.len.max(high);
        }
        Ok(())
    }

    fn write_at_durable(&self, buf: &[u8], offset: u64, _: &'static str) -> io::Result<()> {
        self.write_at(buf, offset)
    }

    fn sync(&self, _: &'static str) -> io::Result<()> {
        Ok(())
    }

    fn will_need(&self, offset: u64, bytes: u64) {
        self.below.iter().for_each(|below| below.will_need(offset, bytes));
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.layer.bytes.held().len)
    }

    fn stamp(&self) -> io::Result<Stamp> {
        self.below.as_ref().map_or(Ok(Stamp::default()), |below| below.stamp())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut bytes = self.layer.bytes.held();
        let gone = bytes.pages.split_off(&len.div_ceil(PAGE));
        self.room.0.fetch_add(gone.len() as u64, Ordering::Relaxed);
        if let Some(last) = bytes.pages.get_mut(&(len / PAGE)) {
            last[(len % PAGE) as usize..].fill(0);
        }
        (bytes.len, bytes.kept) = (len, bytes.kept.min(len));
        Ok(())
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        let mut bytes = self.layer.bytes.held();
        bytes.len = bytes.len.max(len);
        Ok(())
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "what is below is the real file system")]
mod tests;
