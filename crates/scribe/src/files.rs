//! Files of this machine to which stores of type `file` write lines: each synced before its client hears OK,
//! and followed by the next one by the hour, the day or its size. Never writes to a file again that an earlier
//! process began, and gives none of them up.

use crate::aside::Aside;
use crate::batch::Packed;
use crate::category::Category;
use crate::intake::{Keeps, NotKept, Unwritten};
use crate::stores::{FileStore, Lines, Place, Rotates};
use holdfast_base::text::utc;
use holdfast_base::{Error, Result};
use holdfast_env::disk::{Access, create_dir_durable};
use holdfast_env::{Clock, Disk, File, HoldMutex};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// Files that are written at the same time: categories come from whoever sends.
pub const PLACES_MAX: usize = 256;
/// Levels of directories whose names a first file makes durable: a category's, and its store's.
const LEVELS: usize = 2;
/// Numbers of one day's files have five digits, or more.
const NUMBER_DIGITS: usize = 5;

/// See the module.
pub struct Files {
    disk: Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
    stores: Vec<FileStore>,
    /// Held while lines are written: those of a file come in their order.
    open: Mutex<BTreeMap<Place, Open>>,
}

struct Open {
    /// Nothing after an error: whether the file's end is a whole line, nobody knows.
    file: Option<Arc<dyn File>>,
    path: PathBuf,
    bytes: u64,
    /// The hour or the day for which it is.
    period: String,
}

impl Files {
    /// Makes nothing yet.
    pub fn new(disk: Arc<dyn Disk>, clock: Arc<dyn Clock>, stores: Vec<FileStore>) -> Files {
        Files { disk, clock, stores, open: Mutex::default() }
    }

    /// Whether lines can be written there: a category that is known, or one for which there is room.
    pub fn knows_or_may(&self, place: &Place) -> bool {
        let open = self.open.held();
        open.contains_key(place) || open.len() < PLACES_MAX
    }

    /// Writes lines, synced on return; of which places it could not, and why. There a part may have been.
    pub fn write(&self, lines: &Lines<'_>) -> Unwritten {
        let now_s = (self.clock.unix_ms() / 1000) as i64;
        let mut open = self.open.held();
        let mut failed = BTreeMap::new();
        for (place, lines) in lines {
            if let Err(e) = self.write_to(&mut open, place, lines, now_s) {
                let path = self.directory(place);
                let e = e.context(format_args!("write lines to files in `{}`", path.display()));
                failed.insert((*place).clone(), Error::retry(e.message));
            }
        }
        failed
    }

    fn write_to(
        &self,
        open: &mut BTreeMap<Place, Open>,
        place: &Place,
        lines: &[&[u8]],
        now_s: i64,
    ) -> Result<()> {
        let store = &self.stores[place.store];
        if !open.contains_key(place) && open.len() >= PLACES_MAX {
            return Err(Error::invalid(format!("there are {PLACES_MAX} files already")));
        }
        let mut bytes = Vec::new();
        for line in lines {
            bytes.extend_from_slice(line);
            if store.adds_newlines {
                bytes.push(b'\n');
            }
        }
        let (date, period) = period(store.rotates, now_s);
        let is_over = |open: &Open| {
            open.file.is_none()
                || open.period != period
                || (open.bytes > 0 && open.bytes + bytes.len() as u64 > store.bytes_max)
        };
        let known = open.remove(place);
        let mut own = match known {
            // One that was taken away, by a cleaner or with its directory, would keep lines for nobody.
            Some(own) if !is_over(&own) && self.disk.exists(&own.path)? => own,
            _ => {
                let (file, path) = self.begin(place, &date)?;
                Open { file: Some(file), path, bytes: 0, period }
            }
        };
        let file = own.file.take().expect("it was begun");
        let written = file.write_at_durable(&bytes, own.bytes, "scribe lines");
        match &written {
            Ok(()) => {
                own.bytes += bytes.len() as u64;
                own.file = Some(file);
            }
            // Clients try again for as long as a disk is full: each attempt would leave a file behind.
            Err(_) if own.bytes == 0 => drop(self.disk.remove(&own.path)),
            Err(_) => {}
        }
        open.insert(place.clone(), own);
        Ok(written?)
    }

    fn directory(&self, place: &Place) -> PathBuf {
        self.stores[place.store].path.join(place.category.name())
    }

    /// Makes the next file of a date, with a name that is durable.
    fn begin(&self, place: &Place, date: &str) -> Result<(Arc<dyn File>, PathBuf)> {
        let store = &self.stores[place.store];
        let directory = self.directory(place);
        create_dir_durable(&*self.disk, &directory, LEVELS, "scribe directory")?;
        let base = store.base.as_deref().unwrap_or(place.category.name());
        let before = format!("{base}-{date}_");
        let names = self.disk.list(&directory)?;
        let number = |name: &str| name.strip_prefix(&before)?.parse::<u64>().ok();
        let last = names.iter().filter_map(|entry| number(&entry.name)).max();
        let number = last.map_or(0, |last| last.saturating_add(1));
        let path = directory.join(format!("{before}{number:0NUMBER_DIGITS$}"));
        let file = self.disk.create_private(&path, Access::Cached)?;
        if let Err(e) = self.disk.sync_dir(&directory, "scribe file's name") {
            let _ = self.disk.remove(&path);
            return Err(e.into());
        }
        Ok((file, path))
    }
}

/// What keeps messages, and files beside it.
pub struct WithFiles {
    pub others: Arc<dyn Keeps>,
    pub files: Files,
}

impl Keeps for WithFiles {
    fn knows_or_may(&self, category: &Category) -> bool {
        self.others.knows_or_may(category)
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.others.has_room(bytes)
    }

    fn keep(&self, groups: &[Vec<Packed>]) -> Vec<NotKept> {
        self.others.keep(groups)
    }

    fn keep_aside(&self, all: &[Aside<'_>]) {
        self.others.keep_aside(all);
    }

    fn may_write(&self, place: &Place) -> bool {
        self.files.knows_or_may(place)
    }

    fn write(&self, lines: &Lines<'_>) -> Unwritten {
        self.files.write(lines)
    }
}

/// The date in a file's name, and what has to change for the next one.
fn period(rotates: Rotates, now_s: i64) -> (String, String) {
    let now = utc(now_s, '_');
    let date = now[..10].to_owned();
    let period = match rotates {
        Rotates::Never => String::new(),
        Rotates::Daily => date.clone(),
        Rotates::Hourly => now[..13].to_owned(),
    };
    (date, period)
}
