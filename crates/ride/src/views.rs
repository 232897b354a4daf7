//! The views of items that one node keeps: of each topic its catalog, which every node knows that
//! takes changes of it, and the views that somebody has asked this node to run. Opens and ends them;
//! which there are is written down, so that a start brings them back. Answers nobody.

mod names;
mod open;
mod rounds;
mod sweeper;
mod watched;

use crate::boot::{Boot, remove_left};
use crate::image::Image;
use crate::rides::{Rides, Whole};
use holdfast_base::ids::Index;
use holdfast_base::{Error, Kind, Result};
use holdfast_env::disk::{ReplaceSites, create_dir_durable, replace_file};
use holdfast_env::rows::{Moment, Rows};
use holdfast_env::trial::Knob;
use holdfast_env::{Budget, HoldMutex, planted};
use holdfast_log::Done;
use holdfast_node::{Beaten, Beats, IdleSessions, Node};
use holdfast_view::items::{Catalog, CatalogView, DiskView, IndexView, MemoryView, log_topic};
use holdfast_view::{Context, Fold, FoldStatus, InRows};
use holdfast_wire::slab::{FIELD_BYTES_MAX, PARTITIONS_MAX, Range};
use holdfast_wire::view::{self as msg, ViewKind, ViewName, ViewStatus};
pub use names::describe;
use names::{file_name, fold_name, read_name, written_name};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard};
use sweeper::Sweeper;
use watched::Damage;
pub(crate) use watched::begins_anew;

/// Views that one node runs.
pub const VIEWS_MAX: usize = 64;
const SITES: ReplaceSites = ReplaceSites { data: "views.name-data", name: "views.name-name" };
/// How long a session of a topic may be unused before it is ended.
const SESSION_IDLE_MS: u64 = 3_600_000;
/// A new view of a topic whose log has more bytes than this begins with images, if there are some.
pub static REPLAYED_BYTES_MAX: Knob =
    Knob::new("views.replayed-bytes-max", 64 << 20, &[1, 1000, 10_000]);

const STOPPED_MEANWHILE: &str = "it was stopped while it was being opened";

/// What each disk view may have.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Of its rows in memory.
    pub cache_bytes: u64,
    /// Of the last slabs of its heads, kept for riders that are behind.
    pub windows_bytes: u64,
    /// Ranges of which slabs are made side by side.
    pub heads: u32,
}

impl Settings {
    /// So many heads, no cache, and windows as large as they may be: for simulations.
    pub fn of(heads: u32) -> Settings {
        Settings { cache_bytes: 0, windows_bytes: u64::MAX, heads }
    }
}

/// What one node keeps.
pub struct Views {
    pub(crate) node: Arc<Node>,
    /// A directory for each view that is run.
    place: PathBuf,
    settings: Settings,
    budget: Arc<Budget>,
    kept: Mutex<Kept>,
    /// Held while a topic or a view is opened or ended: one at a time.
    opening: Mutex<()>,
}

#[derive(Default)]
struct Kept {
    topics: BTreeMap<String, Arc<Topic>>,
    /// Of the topics, where the log is kept here.
    idle: BTreeMap<String, IdleSessions>,
    /// Of the topics, where the log is kept here: the last mark that was asked for, or the entry behind
    /// which it was, and the bytes of the log then.
    marked: BTreeMap<String, (Index, u64)>,
    /// Of the topics, where the log is kept here: since when the newest mark lacks images, and when it was
    /// last asked for others for that.
    lacking: BTreeMap<String, Lacking>,
    /// Of the topics, where the log is kept elsewhere: where it began when the host was asked, and when
    /// that was.
    firsts: BTreeMap<String, (Index, u64)>,
    views: BTreeMap<PathBuf, Arc<RunView>>,
    /// Those that are to be opened, or are being opened: nobody opens one that was stopped meanwhile.
    coming: BTreeMap<PathBuf, ViewName>,
    /// Those that could not be opened: until they are, also while that is tried again.
    failed: BTreeMap<PathBuf, Failed>,
    /// Those that begin with images.
    booting: BTreeMap<PathBuf, (ViewName, Arc<Boot>)>,
    /// Where it is not known any more which view is kept, and what was reported of that.
    nameless: BTreeMap<PathBuf, String>,
    /// Those whose rows turned out to be damaged while they ran, and how: these are set aside before it is opened.
    damaged: BTreeMap<PathBuf, Error>,
    /// When each was last begun with images.
    booted_ns: BTreeMap<PathBuf, u64>,
}

/// A view that could not be opened.
#[derive(Clone, Debug)]
struct Failed {
    name: ViewName,
    why: Error,
    /// When that came out.
    at_ns: u64,
}

/// What is known of images that some view lost.
#[derive(Clone, Copy, Debug, Default)]
struct Lacking {
    since_ns: Option<u64>,
    asked_ns: Option<u64>,
}

/// A mark, and the rows as it has left them. The fold leaves it here, for who takes it when the fold is not
/// held any more.
pub type Marks = Mutex<Option<(Index, Arc<dyn Moment>)>>;

/// Every version, folded.
pub type DiskFold = Fold<InRows<DiskView>>;

/// A topic's catalog, folded.
pub type Topic = Fold<CatalogView>;

/// A view that runs.
pub struct RunView {
    /// Whose part of what it is.
    pub name: ViewName,
    /// Of keys' hashes.
    pub range: Range,
    /// What it keeps.
    pub kept: KeptView,
    /// From when an entry is in the log until it is read here.
    pub beats: Arc<Beats>,
}

/// What a view that runs keeps.
pub enum KeptView {
    /// Every version, on disk.
    Disk {
        /// Folds them.
        fold: Arc<DiskFold>,
        /// What readers read.
        rows: Arc<dyn Rows>,
        /// Its carousel.
        rides: Arc<Rides>,
        /// Removes what the horizon has passed.
        sweeper: Arc<Sweeper>,
        /// The last mark that its fold came to, until an image of it is begun.
        marks: Arc<Marks>,
        /// Of its rows, that somebody has met.
        damage: Damage,
        /// What the last round has made durable.
        durable: AtomicU64,
        /// When it was last tried to go on, after its rows had found no room.
        resumed_ns: AtomicU64,
    },
    /// The newest values, in memory.
    Memory {
        /// Folds them, and has them.
        fold: Arc<Fold<MemoryView>>,
    },
    /// Which keys have which value in a field, in memory.
    Index {
        /// Folds it, and has it.
        fold: Arc<Fold<IndexView>>,
    },
}

impl Kept {
    /// Whether somebody is just opening the view of this directory.
    fn is_tried(&self, place: &Path) -> bool {
        self.coming.contains_key(place) || self.booting.contains_key(place)
    }

    fn comes(&self, doing: &str, is_one: impl Fn(&ViewName) -> bool) -> Option<Error> {
        let booting = self.booting.values().map(|(name, boot)| (name, boot.progress()));
        let coming = self.coming.values().map(|name| (name, "it is being opened".to_owned()));
        let (name, how) = coming.chain(booting).find(|(name, _)| is_one(name))?;
        Some(Error::retry(format!(
            "{doing}: view `{}` does not answer here yet: {how}: ask again, or another node (`holdfast view \
             status`)",
            describe(name)
        )))
    }
}

impl RunView {
    /// How its fold is doing.
    pub fn status(&self) -> FoldStatus {
        match &self.kept {
            KeptView::Disk { fold, .. } => fold.status(),
            KeptView::Memory { fold } => fold.status(),
            KeptView::Index { fold } => fold.status(),
        }
    }

    /// See [`Fold::wake_at`]. Who comes to a view that its damaged rows have stopped, and that is not begun anew yet,
    /// hears what who read them does: to ask again.
    pub fn wake_at(&self, index: Index, done: Done<()>) {
        let done: Done<()> = Box::new(move |come| done(come.map_err(begins_anew)));
        match &self.kept {
            KeptView::Disk { fold, .. } => fold.wake_at(index, done),
            KeptView::Memory { fold } => fold.wake_at(index, done),
            KeptView::Index { fold } => fold.wake_at(index, done),
        }
    }

    /// Its images that are whole.
    pub fn images(&self) -> Vec<Whole> {
        match &self.kept {
            KeptView::Disk { rides, .. } => rides.images(),
            KeptView::Memory { .. } | KeptView::Index { .. } => Vec::new(),
        }
    }

    fn images_that_stay(&self) -> Vec<Whole> {
        match &self.kept {
            KeptView::Disk { rides, .. } => rides.images_that_stay(),
            KeptView::Memory { .. } | KeptView::Index { .. } => Vec::new(),
        }
    }

    /// See [`Rides::lost_image`]; `mark` is the topic's newest one.
    fn lost_image(&self, mark: Index) -> Index {
        match &self.kept {
            KeptView::Disk { fold, rides, marks, .. } => {
                let comes = marks.held().is_some();
                let has_come = fold.status().applied >= mark && !comes;
                rides.lost_image(if has_come { mark } else { Index(0) })
            }
            KeptView::Memory { .. } | KeptView::Index { .. } => Index(0),
        }
    }

    /// What somebody has met who read its rows.
    fn damage(&self) -> Option<&Error> {
        match &self.kept {
            KeptView::Disk { damage, .. } => damage.found(),
            KeptView::Memory { .. } | KeptView::Index { .. } => None,
        }
    }

    fn riders(&self) -> usize {
        match &self.kept {
            KeptView::Disk { rides, .. } => rides.riders(),
            KeptView::Memory { .. } | KeptView::Index { .. } => 0,
        }
    }

    fn end(&self) -> Result<()> {
        match &self.kept {
            KeptView::Disk { fold, rows, rides, sweeper, .. } => {
                sweeper.end();
                rides.end();
                fold.end();
                rows.persist("views.rows")
            }
            KeptView::Memory { fold } => {
                fold.end();
                Ok(())
            }
            KeptView::Index { fold } => {
                fold.end();
                Ok(())
            }
        }
    }
}

impl Views {
    /// Without a view yet: see [`Views::open_all`]. `place` is the directory for what they keep. What is
    /// under way to riders counts in `budget`.
    pub fn new(
        node: &Arc<Node>,
        place: &Path,
        settings: Settings,
        budget: &Arc<Budget>,
    ) -> Arc<Views> {
        Arc::new(Views {
            node: node.clone(),
            place: place.to_owned(),
            settings,
            budget: budget.clone(),
            kept: Mutex::default(),
            opening: Mutex::default(),
        })
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.held()
    }

    /// The topic's catalog, as this node folds it; opened with the first use.
    pub fn topic(&self, topic: &str) -> Result<Arc<Topic>> {
        self.topic_or(topic, |name| {
            let exists = self.node.has_topic(name)?;
            let none = || {
                Error::not_found(format!(
                    "find topic `{topic}`: there is none: make its first collection (`holdfast view \
                     create`)"
                ))
            };
            if exists { Ok(()) } else { Err(none()) }
        })
    }

    /// As [`Views::topic`], which is made if there is none: on the node that keeps the log alone.
    pub fn make_topic(&self, topic: &str) -> Result<Arc<Topic>> {
        self.topic_or(topic, |name| self.node.log.create(name))
    }

    fn topic_or(
        &self,
        topic: &str,
        prepare: impl FnOnce(&str) -> Result<()>,
    ) -> Result<Arc<Topic>> {
        let name = log_topic(topic)?;
        if let Some(fold) = self.kept().topics.get(topic) {
            return Ok(fold.clone());
        }
        let _one = self.opening.held();
        if let Some(fold) = self.kept().topics.get(topic) {
            return Ok(fold.clone());
        }
        prepare(&name)?;
        let fold = self.node.open_view::<CatalogView>(Context::of(&name))?;
        self.kept().topics.insert(topic.to_owned(), fold.clone());
        Ok(fold)
    }

    /// The topic's catalog, if it is open here.
    pub fn known(&self, topic: &str) -> Option<Arc<Topic>> {
        self.kept().topics.get(topic).cloned()
    }

    /// Runs a view from now on, also after the next start.
    pub fn run(self: &Arc<Views>, name: &ViewName) -> Result<()> {
        let doing = |e: Error| e.context(format_args!("run view `{}`", describe(name)));
        if name.of == 0 || name.of > PARTITIONS_MAX || name.part >= name.of {
            return Err(doing(Error::invalid(format!(
                "there is no part {} of {}: parts count from 0, and there are up to {PARTITIONS_MAX}",
                name.part, name.of
            ))));
        }
        let topic = self.topic(&name.topic).map_err(doing)?;
        let fits = || topic.read(|view, _| check_kind(view.catalog(), &name.kind)).flatten();
        if fits().is_err() && !planted!("ride.runs-before-the-catalog-is-there") {
            // The topic may be new here, and its catalog not read yet.
            self.catch_up(&name.topic, &topic).map_err(doing)?;
        }
        fits().map_err(doing)?;
        let place = self.place_of(name);
        {
            let mut kept = self.kept();
            let Kept { views, coming, booting, .. } = &*kept;
            if views.contains_key(&place) || kept.is_tried(&place) {
                return Err(doing(Error::exists("it runs here already")));
            }
            if views.len() + coming.len() + booting.len() >= VIEWS_MAX {
                let full = format!("this node runs {VIEWS_MAX} views, and takes no more");
                return Err(doing(Error::full(full)));
            }
            kept.coming.insert(place.clone(), name.clone());
        }
        if let Err(e) = self.write_down(name, &place) {
            // Nothing says that it is to run.
            self.kept().coming.remove(&place);
            return Err(doing(e));
        }
        self.begin(name, &place).map_err(|e| {
            self.could_not_open(name, &place, e.clone());
            match e.kind {
                Kind::Full => doing(Error::full(format!(
                    "{e}: it is tried again by itself, and runs once there is room (`holdfast view status`), or \
                     never after `holdfast view stop`"
                ))),
                _ => doing(e),
            }
        })
    }

    /// Waits until a topic's catalog has what was in the log when this was called.
    fn catch_up(&self, name: &str, topic: &Topic) -> Result<()> {
        let name = log_topic(name)?;
        let ends = self.node.wait_for(|done| self.node.ask_ends(&name, done))?;
        self.node.wait_for(|done| topic.wake_at(ends.last, done))
    }

    /// As [`Views::run`], of one that may run already, or may have run before the last start.
    pub fn keep_running(self: &Arc<Views>, name: &ViewName) -> Result<()> {
        match self.status().iter().any(|status| status.view == *name) {
            true => Ok(()),
            false => self.run(name),
        }
    }

    /// Has it run again after the next start; unless it was stopped meanwhile.
    fn write_down(&self, name: &ViewName, place: &Path) -> Result<()> {
        let _one = self.opening.held();
        if !self.kept().coming.contains_key(place) {
            return Err(Error::retry(STOPPED_MEANWHILE));
        }
        self.write_name(name, place)?;
        if let Some(finding) = self.kept().nameless.remove(place) {
            self.node.withdraw_finding(&finding);
        }
        Ok(())
    }

    fn write_name(&self, name: &ViewName, place: &Path) -> Result<()> {
        let disk = &*self.node.machine.disk;
        let write = || {
            create_dir_durable(disk, place, 2, "views.directory")?;
            replace_file(disk, &place.join("view"), &written_name(name), SITES)
        };
        write().map_err(|e| {
            let file = place.join("view");
            Error::from(e).context(format_args!("write `{}`, which has it run", file.display()))
        })
    }

    /// Opens a view, or has it begin with images where it has nothing and folding the log would take
    /// long, or is not possible.
    fn begin(self: &Arc<Views>, name: &ViewName, place: &Path) -> Result<()> {
        self.set_damaged_aside(name, place)?;
        let topic = log_topic(&name.topic)?;
        // As it is now: a view in front of the log's beginning would stop at once. Where the host is not
        // heard of, the log is folded as far as it goes.
        let asked = self.node.wait_for(|done| self.node.ask_ends(&topic, done));
        let (first, bytes) = self.node.log.info(&topic).map_or((1, 0), |i| (i.first.0, i.bytes));
        let first = asked.map_or(first, |asked| asked.first.0);
        let is_long = bytes > REPLAYED_BYTES_MAX.get();
        if is_long {
            REPLAYED_BYTES_MAX.cross();
        }
        let has_rows = self.node.machine.disk.exists(&place.join("rows"))?;
        let boots = match has_rows {
            true => first > 1 && self.kept_to(name, place)?.0 + 1 < first,
            false => is_long || first > 1,
        };
        match boots {
            true => {
                self.boot(name, place);
                Ok(())
            }
            false => {
                remove_left(&*self.node.machine.disk, place);
                self.open_view(name, place)
            }
        }
    }

    /// Has a view begin with images.
    pub(super) fn boot(self: &Arc<Views>, name: &ViewName, place: &Path) {
        let boot = Boot::new(self, name, place.to_owned());
        {
            let mut kept = self.kept();
            if kept.coming.remove(place).is_none() {
                // It was stopped meanwhile.
                return;
            }
            let now_ns = self.node.machine.clock.monotonic_ns();
            kept.booted_ns.insert(place.to_owned(), now_ns);
            kept.booting.insert(place.to_owned(), (name.clone(), boot.clone()));
        }
        boot.ask();
    }

    /// A view is open, or there were no images for it: then it folds the log, if that is whole.
    pub(crate) fn boot_ended(&self, name: &ViewName, place: &Path, result: Result<()>) {
        {
            let mut kept = self.kept();
            let stays = kept.booting.remove(place).is_some();
            if !stays || result.is_ok() {
                return;
            }
            kept.coming.insert(place.to_owned(), name.clone());
        }
        let is_trimmed = self.first_of(&name.topic).is_ok_and(|(first, _)| first.0 > 1);
        match result {
            Err(e) if is_trimmed => self.could_not_open(name, place, e),
            // It says itself why not.
            _ => drop(self.open_view(name, place)),
        }
    }

    /// Ends a view for good. What it kept on disk stays, and the answer says where.
    pub fn stop(&self, name: &ViewName) -> Result<PathBuf> {
        let place = self.place_of(name);
        let _one = self.opening.held();
        let (view, boot, others) = {
            let mut kept = self.kept();
            let failed = kept.failed.remove(&place).is_some();
            let coming = kept.coming.remove(&place).is_some();
            (kept.views.remove(&place), kept.booting.remove(&place), failed || coming)
        };
        if let Some((_, boot)) = &boot {
            boot.cancel();
        }
        if view.is_none() && boot.is_none() && !others {
            return Err(Error::not_found(format!(
                "stop view `{}`: this node does not run it",
                describe(name)
            )));
        }
        let disk = &*self.node.machine.disk;
        let file = place.join("view");
        // Where it is just being run, it is not written down yet.
        if disk.exists(&file)? {
            disk.remove(&file)?;
        }
        remove_left(disk, &place);
        view.map_or(Ok(()), |view| view.end())?;
        Ok(place)
    }

    fn place_of(&self, name: &ViewName) -> PathBuf {
        self.place.join(file_name(name))
    }

    /// Refuses an index that the log has not come to: a view would never reach it, or with an entry
    /// that nobody meant. One that has come is waited for.
    pub(crate) fn check_is_there(&self, topic: &str, index: Index) -> Result<()> {
        let next = self.node.log.info(&log_topic(topic)?)?.next;
        match index < next {
            true => Ok(()),
            false if index.0 == 0 => Ok(()),
            false => Err(Error::retry(format!(
                "read topic `{topic}` at entry {index}: as far as this node knows, the last one is {}",
                next.0.saturating_sub(1)
            ))),
        }
    }

    /// The views that run here of a topic.
    pub fn of(&self, topic: &str) -> Vec<Arc<RunView>> {
        let kept = self.kept();
        kept.views.values().filter(|view| view.name.topic == topic).cloned().collect()
    }

    /// One that runs here, by its name.
    pub fn view(&self, name: &ViewName) -> Result<Arc<RunView>> {
        let place = self.place_of(name);
        let kept = self.kept();
        if let Some(view) = kept.views.get(&place) {
            return Ok(view.clone());
        }
        if let Some(failed) = kept.failed.get(&place).filter(|_| !kept.is_tried(&place)) {
            return Err(failed.why.clone());
        }
        let whose = format!("find view `{}`", describe(name));
        Err(kept.comes(&whose, |coming| coming == name).unwrap_or_else(|| {
            Error::not_found(format!(
                "{whose}: this node does not run it: `holdfast view status` says who does"
            ))
        }))
    }

    /// `Retry` where a view is being opened that is one of these: it was answered as if there were none, and who
    /// asked a node that had just started gave up.
    pub(crate) fn comes(&self, doing: &str, is_one: impl Fn(&ViewName) -> bool) -> Option<Error> {
        self.kept().comes(doing, is_one)
    }

    /// An image of a view that runs here.
    pub(crate) fn image(&self, name: &ViewName, index: Index) -> Result<Arc<Image>> {
        let view = self.view(name)?;
        let found = match &view.kept {
            KeptView::Disk { rides, .. } => rides.image(index),
            KeptView::Memory { .. } | KeptView::Index { .. } => None,
        };
        let none = || {
            let name = describe(name);
            Error::not_found(format!("read an image of view `{name}`: there is none of {index}"))
        };
        found.ok_or_else(none)
    }

    /// An image of a view that runs here is wrong.
    pub(crate) fn distrust(&self, name: &ViewName, index: Index, e: &Error) {
        if let Ok(view) = self.view(name)
            && let KeptView::Disk { rides, .. } = &view.kept
        {
            rides.distrust_image(index, e);
        }
    }

    /// Somebody says that an image of a view that runs here is wrong: see [`Rides::doubt_image`].
    pub(crate) fn doubt(&self, name: &ViewName, index: Index) -> Result<()> {
        match self.view(name).as_deref() {
            Ok(RunView { kept: KeptView::Disk { rides, .. }, .. }) => rides.doubt_image(index),
            // There is no image that anybody could ride.
            _ => Ok(()),
        }
    }

    /// The carousel that a ride is on.
    pub(crate) fn rides_of(&self, ride: u64) -> Option<Arc<Rides>> {
        let kept = self.kept();
        kept.views.values().find_map(|view| match &view.kept {
            KeptView::Disk { rides, .. } if rides.has(ride) => Some(rides.clone()),
            _ => None,
        })
    }

    /// Bytes of slabs that rides over all disk views keep for riders that are behind.
    pub fn slabs_bytes(&self) -> u64 {
        let views: Vec<_> = self.kept().views.values().cloned().collect();
        let of_one = |view: &Arc<RunView>| match &view.kept {
            KeptView::Disk { rides, .. } => rides.slabs_bytes(),
            KeptView::Memory { .. } | KeptView::Index { .. } => 0,
        };
        views.iter().map(of_one).sum()
    }

    /// Of each disk view, by its name, the moments of its rows that rides keep.
    pub fn moments(&self) -> Vec<(String, usize)> {
        let views: Vec<_> = self.kept().views.values().cloned().collect();
        let of_one = |view: &Arc<RunView>| match &view.kept {
            KeptView::Disk { rides, .. } => Some((describe(&view.name), rides.moments())),
            KeptView::Memory { .. } | KeptView::Index { .. } => None,
        };
        views.iter().filter_map(of_one).collect()
    }

    /// How all of them are doing.
    pub fn status(&self) -> Vec<ViewStatus> {
        let (views, failed, coming, booting) = {
            let kept = self.kept();
            let failed = kept.failed.iter().filter(|(place, _)| !kept.is_tried(place));
            let failed: Vec<_> = failed.map(|(_, failed)| failed.clone()).collect();
            let coming: Vec<_> = kept.coming.values().cloned().collect();
            let booting: Vec<_> = kept.booting.values().cloned().collect();
            (kept.views.values().cloned().collect::<Vec<_>>(), failed, coming, booting)
        };
        let now_ns = self.node.machine.clock.monotonic_ns();
        let of_one = |view: &Arc<RunView>| {
            let FoldStatus { applied, stopped, .. } = view.status();
            let topic = log_topic(&view.name.topic).unwrap_or_default();
            let next = self.node.log.info(&topic).map_or(applied.0 + 1, |info| info.durable.0);
            let last = Index(next.saturating_sub(1).max(applied.0));
            let stopped = stopped.map_or_else(String::new, |e| e.message);
            let riders = view.riders() as u32;
            let images = view.images().into_iter();
            let images = images.map(|whole| msg::Image { index: whole.index, bytes: whole.bytes });
            let level = |ns: u64| now_ns.saturating_sub(ns) / 1_000_000;
            let level_ms = view.beats.told().level_ns.map(level);
            let (view, images, begins) = (view.name.clone(), images.collect(), String::new());
            ViewStatus { view, applied, last, riders, stopped, begins, images, level_ms }
        };
        let mut all: Vec<ViewStatus> = views.iter().map(of_one).collect();
        let not_open = |view: ViewName, stopped: String, begins: String| {
            let (none, images) = (Index(0), Vec::new());
            let (applied, last, level_ms) = (none, none, None);
            ViewStatus { view, applied, last, riders: 0, stopped, begins, images, level_ms }
        };
        let opens = || "it is being opened".to_owned();
        let failed = failed.into_iter();
        all.extend(
            failed.map(|Failed { name, why, .. }| not_open(name, why.message, String::new())),
        );
        all.extend(coming.into_iter().map(|view| not_open(view, String::new(), opens())));
        let booting = booting.into_iter().map(|(view, boot)| (view, boot.progress()));
        all.extend(booting.map(|(view, progress)| not_open(view, String::new(), progress)));
        all
    }

    /// Of each view that runs, by its name, what came of its beats, and how long ago it had all that the log
    /// had then.
    pub fn beaten(&self) -> Vec<(String, Beaten, Option<u64>)> {
        let now_ns = self.node.machine.clock.monotonic_ns();
        let views: Vec<_> = self.kept().views.values().cloned().collect();
        let of_one = |view: &Arc<RunView>| {
            let beaten = view.beats.told();
            let age_ns = beaten.level_ns.map(|level_ns| now_ns.saturating_sub(level_ns));
            (describe(&view.name), beaten, age_ns)
        };
        views.iter().map(of_one).collect()
    }

    /// Why views do not run, a sentence each; also of those that are just tried again, which may fail once more.
    pub fn stopped(&self) -> Vec<String> {
        let (views, failed) = {
            let kept = self.kept();
            let views: Vec<_> = kept.views.values().cloned().collect();
            let failed = kept.failed.values();
            (views, failed.map(|one| sentence(&one.name, &one.why)).collect::<Vec<_>>())
        };
        let stopped = |view: &Arc<RunView>| Some(sentence(&view.name, &view.status().stopped?));
        views.iter().filter_map(stopped).chain(failed).collect()
    }

    /// Of these, those that found no room when they were opened: for others it is enough to wait, or whoever ran
    /// them was told. Of views that run and stop the node says so, as of all its folds.
    pub fn without_room(&self) -> Vec<String> {
        let kept = self.kept();
        let failed = kept.failed.values().filter(|one| one.why.kind == Kind::Full);
        failed.map(|one| sentence(&one.name, &one.why)).collect()
    }

    /// Ends all of them, also when one cannot be ended in order.
    pub fn end(&self) -> Result<()> {
        let (views, topics) = {
            let mut kept = self.kept();
            kept.coming.clear();
            kept.booting.clear();
            (std::mem::take(&mut kept.views), std::mem::take(&mut kept.topics))
        };
        let ended = views.into_values().map(|view| view.end()).fold(Ok(()), Result::and);
        topics.into_values().for_each(|fold| fold.end());
        ended
    }
}

fn sentence(name: &ViewName, why: &Error) -> String {
    format!("view `{}`: {}", describe(name), why.message)
}

/// Whether there is something that such a view could keep.
fn check_kind(catalog: &Catalog, kind: &ViewKind) -> Result<()> {
    let ViewKind::Index { collection, field } = kind else { return Ok(()) };
    if field.is_empty() || field.len() > FIELD_BYTES_MAX {
        return Err(Error::invalid(format!(
            "the field's name has {} bytes: it has to have 1 to {FIELD_BYTES_MAX}",
            field.len()
        )));
    }
    let found = catalog.all().map(|(_, one)| one).find(|one| one.name == *collection);
    match found {
        Some(one) if one.json => Ok(()),
        Some(_) => Err(Error::invalid(format!(
            "the values of collection `{collection}` are bytes, which have no fields: put them into a \
             collection that is made with --values-json"
        ))),
        None => Err(Error::not_found(format!(
            "there is no collection `{}`: make it first (`holdfast view create`)",
            collection.escape_debug()
        ))),
    }
}
