//! A disk in memory that keeps exactly what [`env::Disk`] promises and no more: what was not
//! synced may be lost or kept in any combination, sector by sector and name by name, chosen by a
//! seed. It also fails on demand: full, read errors, failing syncs, flipped bits, a crash at any
//! operation. Never blocks, never reads a clock. Used by the tests of every crate that has files.
//!
//! What is modelled more kindly than the trait's words: a sector (4096 bytes) that was synced
//! once is replaced whole or not at all; directories are durable when made, unless
//! [`SimDiskOptions::volatile_dirs`] asks for the strict rule.
//!
//! [`env::Disk`]: holdfast_env::Disk

mod content;
mod cut;
mod names;
#[cfg(test)]
mod tests;

use content::{Content, sectors_of};
use cut::Cut;
use holdfast_base::checksum::crc32c;
use holdfast_base::limits::SECTOR_BYTES;
use holdfast_env::HoldMutex;
use holdfast_env::disk::{Access, Disk, Entry, File, Lock, Space, Stamp};
use names::{Names, Node};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

/// How strict the simulated disk is.
#[derive(Clone, Copy, Debug)]
pub struct SimDiskOptions {
    /// Space in bytes, whole sectors; names take none.
    pub capacity_bytes: u64,
    /// A sector that was never synced, or whose write was in flight at the cut, may be half new.
    pub torn_sectors: bool,
    /// A new directory is durable only after [`Disk::sync_dir`] of its parent.
    pub volatile_dirs: bool,
    /// A sync that fails may lose the file's length as well as its sectors.
    pub volatile_lengths: bool,
}

impl Default for SimDiskOptions {
    fn default() -> SimDiskOptions {
        SimDiskOptions {
            capacity_bytes: 1 << 40,
            torn_sectors: true,
            volatile_dirs: false,
            volatile_lengths: false,
        }
    }
}

/// The simulated disk. Clones are the same disk.
#[derive(Clone)]
pub struct SimDisk {
    /// Everything, under one lock: operations happen one after another, as the trace says.
    world: Arc<Mutex<World>>,
}

struct World {
    options: SimDiskOptions,
    /// Set by a power cut or a crash: every later call fails.
    dead: bool,
    names: Names,
    files: BTreeMap<u64, Content>,
    next_file: u64,
    locked: BTreeSet<u64>,
    faults: Faults,
    /// Sync sites called so far.
    sites: BTreeSet<&'static str>,
    /// Those that are switched off.
    sites_off: BTreeSet<String>,
    /// How often each file was written: its stamp.
    writes: BTreeMap<u64, i64>,
    trace: Vec<String>,
    /// Rolling FNV-1a of the trace.
    digest: u64,
    /// File and sectors of the write that the crash interrupted.
    in_flight: Option<(u64, Range<u64>)>,
    /// Draws for what a failed sync leaves behind.
    seed: u64,
}

#[derive(Default)]
struct Faults {
    crash_at: Option<u64>,
    /// The power fails right behind the next durable write.
    crash_behind: bool,
    crashed_behind: bool,
    syncs: u64,
    fail_sync: Option<u64>,
    fail_sites: BTreeSet<String>,
    unreadable: Vec<(u64, Range<u64>)>,
}

/// What becomes of a call that should make something durable.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SyncFate {
    Works,
    SwitchedOff,
    Fails,
}

/// Of an `off_t`.
const FILE_BYTES_MAX: u64 = i64::MAX as u64;
const EIO: i32 = 5;
const DIGEST_START: u64 = 0xcbf2_9ce4_8422_2325;

fn digest(mut state: u64, bytes: &[u8]) -> u64 {
    for &byte in bytes {
        state = (state ^ byte as u64).wrapping_mul(0x0100_0000_01b3);
    }
    state
}

impl SimDisk {
    /// An empty disk of 1 TiB that holds only `/`. `seed` decides what failed syncs leave behind.
    pub fn new(seed: u64) -> SimDisk {
        SimDisk::with_options(seed, SimDiskOptions::default())
    }

    pub fn with_options(seed: u64, options: SimDiskOptions) -> SimDisk {
        SimDisk::from_world(World {
            options,
            dead: false,
            names: Names::new(),
            files: BTreeMap::new(),
            next_file: 1,
            locked: BTreeSet::new(),
            faults: Faults::default(),
            sites: BTreeSet::new(),
            sites_off: BTreeSet::new(),
            writes: BTreeMap::new(),
            trace: Vec::new(),
            digest: DIGEST_START,
            in_flight: None,
            seed,
        })
    }

    fn from_world(world: World) -> SimDisk {
        SimDisk { world: Arc::new(Mutex::new(world)) }
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.held()
    }

    /// Cuts the power: this disk and all its handles fail from now on, and the disk that comes
    /// back holds what was durable and whatever else `seed` lets survive. May be called again
    /// with another seed for another outcome of the same moment. Capacity, read errors and
    /// switched-off sites carry over; other faults and the trace start anew.
    pub fn power_cut(&self, seed: u64) -> SimDisk {
        let tears = self.world().options.torn_sectors;
        self.cut(seed, &Cut::seeded(seed, tears))
    }

    /// The power cut where nothing survives that was not synced.
    pub fn power_cut_losing_all(&self) -> SimDisk {
        self.cut(0, &Cut::worst())
    }

    /// A disk with what the worst power cut would leave now; this one goes on.
    pub fn durable_copy(&self) -> SimDisk {
        let was_dead = self.world().dead;
        let copy = self.power_cut_losing_all();
        self.world().dead = was_dead;
        copy
    }

    /// Ends the process but not the power: this disk and all its handles fail from now on, and the
    /// one returned shows everything that was written, durable or not. Locks are gone, and so are
    /// the faults that a power cut ends.
    pub fn process_kill(&self) -> SimDisk {
        let mut world = self.world();
        world.dead = true;
        SimDisk::from_world(World {
            options: world.options,
            dead: false,
            names: world.names.clone(),
            files: world.files.clone(),
            next_file: world.next_file,
            locked: BTreeSet::new(),
            faults: Faults { unreadable: world.faults.unreadable.clone(), ..Faults::default() },
            sites: world.sites.clone(),
            sites_off: world.sites_off.clone(),
            writes: world.writes.clone(),
            trace: Vec::new(),
            digest: DIGEST_START,
            in_flight: None,
            seed: world.seed,
        })
    }

    /// Gives up a disk that is not used any more: who still holds it (callbacks of processes that
    /// have ended hold each other) gets errors, and it takes no memory.
    pub fn forget(&self) {
        let mut world = self.world();
        world.dead = true;
        world.names = Names::new();
        world.files.clear();
        world.trace = Vec::new();
    }

    fn cut(&self, seed: u64, cut: &Cut) -> SimDisk {
        let mut world = self.world();
        world.dead = true;
        let names = world.names.survive(cut);
        let mut files = BTreeMap::new();
        for id in names.files().map(|(_, id)| id).collect::<BTreeSet<u64>>() {
            let in_flight = match &world.in_flight {
                Some((file, sectors)) if *file == id => sectors.clone(),
                _ => 0..0,
            };
            files.insert(id, world.files[&id].survive(cut, in_flight));
        }
        SimDisk::from_world(World {
            options: world.options,
            dead: false,
            names,
            files,
            next_file: world.next_file,
            locked: BTreeSet::new(),
            faults: Faults { unreadable: world.faults.unreadable.clone(), ..Faults::default() },
            sites: world.sites.clone(),
            sites_off: world.sites_off.clone(),
            writes: world.writes.clone(),
            trace: Vec::new(),
            digest: DIGEST_START,
            in_flight: None,
            seed: world.seed ^ seed.rotate_left(32),
        })
    }

    /// How many operations were done: calls that change something or make it durable. Reads,
    /// listings and locks on files that exist do not count.
    pub fn operations(&self) -> u64 {
        self.world().trace.len() as u64
    }

    /// The operation with this number (the first is 0) happens as far as the power lasts and
    /// fails; so does everything after it. Follow with [`SimDisk::power_cut`].
    pub fn crash_at(&self, operation: u64) {
        self.world().faults.crash_at = Some(operation);
    }

    /// The next durable write is durable, and fails: the power goes right behind it, before anybody
    /// hears of it.
    pub fn crash_behind_sync(&self) {
        self.world().faults.crash_behind = true;
    }

    /// Whether the power failed there.
    pub fn crashed_behind_sync(&self) -> bool {
        self.world().faults.crashed_behind
    }

    /// Whether the power is off, by a cut or by [`SimDisk::crash_at`].
    pub fn crashed(&self) -> bool {
        self.world().dead
    }

    /// One short line an operation.
    pub fn trace(&self) -> Vec<String> {
        self.world().trace.clone()
    }

    /// A digest of the trace, contents included: the same seed gives the same, byte for byte.
    pub fn digest(&self) -> u64 {
        self.world().digest
    }

    /// Every sync site called so far, sorted.
    pub fn sites(&self) -> Vec<&'static str> {
        self.world().sites.iter().copied().collect()
    }

    /// Makes a sync site a no-op that says Ok: a durable write becomes a plain one.
    pub fn disable_site(&self, site: &str) {
        self.world().sites_off.insert(site.to_owned());
    }

    /// Fails one sync, durable write or directory sync: the `nth` from now, the next one is 1.
    pub fn fail_sync(&self, nth: u64) {
        let mut world = self.world();
        world.faults.fail_sync = Some(world.faults.syncs + nth);
    }

    /// Fails every sync at this site.
    pub fn fail_syncs_at(&self, site: &str) {
        self.world().faults.fail_sites.insert(site.to_owned());
    }

    /// Fails reads that touch these bytes of the file, until it is removed; survives power cuts.
    pub fn fail_reads(&self, path: &Path, bytes: Range<u64>) -> io::Result<()> {
        let mut world = self.world();
        let id = world.names.file(path)?;
        world.faults.unreadable.push((id, bytes));
        Ok(())
    }

    /// Ends the failing of syncs and reads.
    pub fn heal(&self) {
        let mut world = self.world();
        world.faults.fail_sync = None;
        world.faults.fail_sites.clear();
        world.faults.unreadable.clear();
    }

    /// Flips bit `bit` (0 to 7) of byte `byte`, on the medium and in every cache.
    pub fn flip_bit(&self, path: &Path, byte: u64, bit: u32) -> io::Result<()> {
        let mut world = self.world();
        let id = world.names.file(path)?;
        let content = world.content(id);
        if byte >= content.len() || bit > 7 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("flip bit {bit} of byte {byte}: the file has {} bytes", content.len()),
            ));
        }
        content.flip_bit(byte, bit);
        Ok(())
    }

    /// Changes the capacity; what is stored stays.
    pub fn set_capacity(&self, bytes: u64) {
        self.world().options.capacity_bytes = bytes;
    }

    fn handle(&self, id: u64, path: &Path, access: Access) -> Arc<dyn File> {
        Arc::new(SimFile { disk: self.clone(), id, path: path.to_owned(), access })
    }
}

fn no_power() -> io::Error {
    io::Error::other("the simulated disk has no power")
}

impl World {
    fn alive(&self) -> io::Result<()> {
        if self.dead { Err(no_power()) } else { Ok(()) }
    }

    /// Counts and records an operation. True if the power fails during it: the caller lets it
    /// take its volatile effect, then calls [`World::end`].
    fn begin(&mut self, what: String) -> io::Result<bool> {
        self.alive()?;
        let crash = self.faults.crash_at == Some(self.trace.len() as u64);
        self.digest = digest(digest(self.digest, what.as_bytes()), b"\n");
        self.trace.push(what);
        self.dead = crash;
        Ok(crash)
    }

    fn end(&self) -> io::Result<()> {
        self.alive()
    }

    fn sync_at(&mut self, site: &'static str) -> SyncFate {
        self.sites.insert(site);
        self.faults.syncs += 1;
        if self.sites_off.contains(site) {
            SyncFate::SwitchedOff
        } else if self.faults.fail_sync == Some(self.faults.syncs)
            || self.faults.fail_sites.contains(site)
        {
            SyncFate::Fails
        } else {
            SyncFate::Works
        }
    }

    fn content(&mut self, id: u64) -> &mut Content {
        // Contents of removed files stay until the power cut: a handle may still be open.
        self.files.get_mut(&id).expect("a handle's file is kept")
    }

    fn free_sectors(&self) -> u64 {
        let used: u64 = self.names.files().map(|(_, id)| self.files[&id].sectors_used()).sum();
        (self.options.capacity_bytes / SECTOR_BYTES as u64).saturating_sub(used)
    }

    fn take_space(&mut self, id: u64, sectors: Range<u64>) -> io::Result<()> {
        let missing = self.content(id).sectors_missing(sectors);
        if missing > 0 && missing > self.free_sectors() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    fn drop_dirty(&mut self, id: u64, sectors: Range<u64>) {
        self.seed = self.seed.wrapping_add(1);
        let cut = Cut::seeded(self.seed, false);
        let length = self.options.volatile_lengths;
        self.content(id).drop_dirty(sectors, length, &cut);
    }

    fn make_file(&mut self, path: &Path) -> io::Result<u64> {
        let id = self.next_file;
        self.names.create(path, id)?;
        self.next_file += 1;
        self.files.insert(id, Content::default());
        Ok(id)
    }
}

impl Disk for SimDisk {
    fn create(&self, path: &Path, access: Access) -> io::Result<Arc<dyn File>> {
        let mut world = self.world();
        world.begin(format!("create {}", path.display()))?;
        let id = world.make_file(path)?;
        world.end()?;
        Ok(self.handle(id, path, access))
    }

    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn File>> {
        let world = self.world();
        world.alive()?;
        Ok(self.handle(world.names.file(path)?, path, access))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut world = self.world();
        world.begin(format!("rename {} {}", from.display(), to.display()))?;
        world.names.rename(from, to)?;
        world.end()
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut world = self.world();
        world.begin(format!("remove {}", path.display()))?;
        world.names.remove(path)?;
        world.end()
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let mut world = self.world();
        world.begin(format!("create_dir_all {}", path.display()))?;
        let volatile = world.options.volatile_dirs;
        world.names.create_dir_all(path, volatile)?;
        world.end()
    }

    fn list(&self, path: &Path) -> io::Result<Vec<Entry>> {
        let world = self.world();
        world.alive()?;
        let entries = world.names.list(path)?.into_iter().map(|(name, node)| match node {
            Node::Dir => Entry { name, is_dir: true, bytes: 0 },
            Node::File(id) => Entry { name, is_dir: false, bytes: world.files[&id].len() },
        });
        Ok(entries.collect())
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        let world = self.world();
        world.alive()?;
        Ok(world.names.get(path).is_some())
    }

    fn sync_dir(&self, path: &Path, site: &'static str) -> io::Result<()> {
        let mut world = self.world();
        let crash = world.begin(format!("sync_dir {} {site}", path.display()))?;
        let sync = world.sync_at(site);
        world.names.check_dir(path)?;
        match sync {
            _ if crash => world.end(),
            SyncFate::Works => {
                world.names.sync_dir(path);
                Ok(())
            }
            SyncFate::SwitchedOff => Ok(()),
            // The changes stay as they are: visible, and kept or lost at the power cut.
            SyncFate::Fails => Err(io::Error::from_raw_os_error(EIO)),
        }
    }

    fn space(&self, _path: &Path) -> io::Result<Space> {
        let world = self.world();
        world.alive()?;
        Ok(Space {
            free_bytes: world.free_sectors() * SECTOR_BYTES as u64,
            total_bytes: world.options.capacity_bytes,
            free_files: u64::MAX,
        })
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Lock>> {
        let mut world = self.world();
        world.alive()?;
        if world.names.get(path).is_none() {
            world.begin(format!("create {}", path.display()))?;
            world.make_file(path)?;
            world.end()?;
        }
        let id = world.names.file(path)?;
        if !world.locked.insert(id) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(Box::new(SimLock { disk: self.clone(), path: path.to_owned(), id }))
    }
}

/// Held until dropped.
struct SimLock {
    disk: SimDisk,
    path: PathBuf,
    id: u64,
}

impl Lock for SimLock {
    fn is_in_place(&self) -> io::Result<bool> {
        let world = self.disk.world();
        world.alive()?;
        Ok(world.names.file(&self.path).is_ok_and(|id| id == self.id))
    }
}

impl Drop for SimLock {
    fn drop(&mut self) {
        self.disk.world().locked.remove(&self.id);
    }
}

struct SimFile {
    disk: SimDisk,
    id: u64,
    /// The name it was opened by, for the trace.
    path: PathBuf,
    access: Access,
}

impl SimFile {
    /// What a real disk refuses: positions past the largest, direct I/O that is not aligned.
    fn check_range(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        if offset > FILE_BYTES_MAX - buf.len() as u64 {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let sector = SECTOR_BYTES as u64;
        let misaligned = |n: u64| !n.is_multiple_of(sector);
        if self.access == Access::Direct
            && [buf.as_ptr() as u64, buf.len() as u64, offset].into_iter().any(misaligned)
        {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "direct access to `{}`: {} bytes at {offset} are not whole, aligned sectors",
                    self.path.display(),
                    buf.len()
                ),
            ));
        }
        Ok(())
    }

    fn write(&self, buf: &[u8], offset: u64, site: Option<&'static str>) -> io::Result<()> {
        self.check_range(buf, offset)?;
        let mut world = self.disk.world();
        let crash = world.begin(format!(
            "{} {} {}+{} {:08x} {}",
            if site.is_some() { "write_durable" } else { "write" },
            self.path.display(),
            offset,
            buf.len(),
            crc32c(buf),
            site.unwrap_or("-")
        ))?;
        let sync = site.map_or(SyncFate::SwitchedOff, |site| world.sync_at(site));
        let sectors = sectors_of(offset, buf.len() as u64);
        world.take_space(self.id, sectors.clone())?;
        world.content(self.id).write(buf, offset);
        *world.writes.entry(self.id).or_default() += 1;
        if crash {
            world.in_flight = Some((self.id, sectors));
            return world.end();
        }
        match sync {
            SyncFate::SwitchedOff => {}
            SyncFate::Works => {
                world.content(self.id).harden_range(offset, buf.len() as u64);
                if std::mem::take(&mut world.faults.crash_behind) {
                    (world.dead, world.faults.crashed_behind) = (true, true);
                    return world.end();
                }
            }
            SyncFate::Fails => {
                world.drop_dirty(self.id, sectors);
                return Err(io::Error::from_raw_os_error(EIO));
            }
        }
        Ok(())
    }
}

impl File for SimFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.check_range(buf, offset)?;
        let mut world = self.disk.world();
        world.alive()?;
        let end = offset + buf.len() as u64;
        let bad = |(id, bytes): &(u64, Range<u64>)| {
            *id == self.id && bytes.start < end && offset < bytes.end
        };
        if world.faults.unreadable.iter().any(bad) {
            return Err(io::Error::from_raw_os_error(EIO));
        }
        Ok(world.content(self.id).read(buf, offset))
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.write(buf, offset, None)
    }

    fn write_at_durable(&self, buf: &[u8], offset: u64, site: &'static str) -> io::Result<()> {
        self.write(buf, offset, Some(site))
    }

    fn sync(&self, site: &'static str) -> io::Result<()> {
        let mut world = self.disk.world();
        let crash = world.begin(format!("sync {} {site}", self.path.display()))?;
        match world.sync_at(site) {
            _ if crash => world.end(),
            SyncFate::Works => {
                world.content(self.id).harden();
                Ok(())
            }
            SyncFate::SwitchedOff => Ok(()),
            SyncFate::Fails => {
                world.drop_dirty(self.id, 0..u64::MAX);
                Err(io::Error::from_raw_os_error(EIO))
            }
        }
    }

    fn len(&self) -> io::Result<u64> {
        let mut world = self.disk.world();
        world.alive()?;
        Ok(world.content(self.id).len())
    }

    fn stamp(&self) -> io::Result<Stamp> {
        let world = self.disk.world();
        world.alive()?;
        let written_ns = world.writes.get(&self.id).copied().unwrap_or(0);
        Ok(Stamp { inode: self.id, written_ns })
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        let mut world = self.disk.world();
        world.begin(format!("set_len {} {bytes}", self.path.display()))?;
        world.content(self.id).set_len(bytes);
        world.end()
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        let mut world = self.disk.world();
        world.begin(format!("allocate {} {bytes}", self.path.display()))?;
        world.take_space(self.id, sectors_of(0, bytes))?;
        world.content(self.id).reserve(bytes);
        world.end()
    }
}
