//! The views of items that one node keeps: of each topic its catalog, which every node knows that
//! takes changes of it, and the views that somebody has asked this node to run. Opens and ends them;
//! which there are is written down, so that a start brings them back. Answers nobody.

use crate::boot::Boot;
use crate::image::Image;
use crate::rides::{Rides, Whole};
use holdfast_base::checksum::crc32c;
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::ids::Index;
use holdfast_base::{Error, Kind, Result};
use holdfast_cluster::images::Image as HeldImage;
use holdfast_env::disk::{ReplaceSites, create_dir_durable, read_file, replace_file};
use holdfast_env::rows::{Moment, Rows};
use holdfast_env::trial::Knob;
use holdfast_env::{HoldMutex, event};
use holdfast_log::{Done, Mode};
use holdfast_node::{IdleSessions, Node};
use holdfast_view::items::{
    Catalog, CatalogView, Command, DiskView, IndexView, Indexed, MemoryView, NAME_BYTES_MAX,
    is_name,
};
use holdfast_view::{Arrival, Context, Fold, FoldStatus, InRows, Marked, OWN_ROWS, Request};
use holdfast_wire::Call;
use holdfast_wire::slab::{PARTITIONS_MAX, Range};
use holdfast_wire::view::{self as msg, ViewKind, ViewName, ViewStatus};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Views that one node runs.
pub const VIEWS_MAX: usize = 64;
/// In front of the topics' names in the log.
const FAMILY: &str = "view/";
const SITES: ReplaceSites = ReplaceSites { data: "views.name-data", name: "views.name-name" };
const VIEW_FILE_BYTES_MAX: u64 = 4096;
/// How long a session of a topic may be unused before it is ended.
const SESSION_IDLE_MS: u64 = 3_600_000;
/// What messages call a view's rows, in front of its name.
const ROWS: &str = "the rows of view";
/// Rows set aside as damaged that are kept of a view; of more, a person has heard.
const DAMAGED_MAX: u32 = 8;
/// Images are asked for when so many entries have come since the last ones, ...
static MARK_ENTRIES: Knob = Knob::new("views.mark-entries", 1_000_000, &[20, 100]);
/// ... or so many bytes.
const MARK_BYTES: u64 = 1 << 30;
/// A new view of a topic that has more entries than this begins with images, if there are some.
static REPLAYED_MAX: Knob = Knob::new("views.replayed-max", 100_000, &[1, 5, 50]);
/// Bytes of a field's name, of which there is an index: what is written down of a view has a limit.
const FIELD_BYTES_MAX: usize = 1000;

/// What one node keeps.
pub struct Views {
    pub(crate) node: Arc<Node>,
    /// A directory for each view that is run.
    place: PathBuf,
    cache_bytes: u64,
    heads: u32,
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
    /// Of the topics, where the log is kept elsewhere: where it began when the host was asked, and when
    /// that was.
    firsts: BTreeMap<String, (Index, u64)>,
    views: BTreeMap<PathBuf, Arc<RunView>>,
    /// Those that could not be opened, and why.
    failed: BTreeMap<PathBuf, (ViewName, Error)>,
    /// Those that are on their way.
    booting: BTreeMap<PathBuf, (ViewName, Arc<Boot>)>,
}

/// A mark, and the rows as it has left them. The fold leaves it here, and rounds take it: what follows
/// from it takes longer than a fold may be held.
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
        /// The last mark that its fold came to, until an image of it is begun.
        marks: Arc<Marks>,
        /// What the last round has made durable.
        durable: AtomicU64,
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

impl RunView {
    /// How its fold is doing.
    pub fn status(&self) -> FoldStatus {
        match &self.kept {
            KeptView::Disk { fold, .. } => fold.status(),
            KeptView::Memory { fold } => fold.status(),
            KeptView::Index { fold } => fold.status(),
        }
    }

    /// See [`Fold::wake_at`].
    pub fn wake_at(&self, index: Index, done: Done<()>) {
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

    fn riders(&self) -> usize {
        match &self.kept {
            KeptView::Disk { rides, .. } => rides.riders(),
            KeptView::Memory { .. } | KeptView::Index { .. } => 0,
        }
    }

    fn end(&self) -> Result<()> {
        match &self.kept {
            KeptView::Disk { fold, rows, rides, .. } => {
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

/// As people say it.
pub fn describe(name: &ViewName) -> String {
    let ViewName { topic, kind, part, of } = name;
    let kind = match kind {
        ViewKind::Disk {} => "disk".to_owned(),
        ViewKind::Memory {} => "memory".to_owned(),
        ViewKind::Index { collection, field } => format!("index of {collection}.{field}"),
    };
    format!("{topic} {kind} {part}/{of}")
}

/// The name in the log of a topic of items.
pub fn log_topic(topic: &str) -> Result<String> {
    if !is_name(topic) {
        return Err(Error::invalid(format!(
            "name a topic of items `{}`: it has to be of 1 to {NAME_BYTES_MAX} letters, digits, `.`, \
             `_` and `-`",
            topic.escape_debug()
        )));
    }
    Ok(format!("{FAMILY}{topic}"))
}

impl Views {
    /// Without a view yet: see [`Views::open_all`]. `place` is the directory for what they keep;
    /// each disk view has `cache_bytes` of its rows in memory, and makes slabs in `heads` ranges
    /// side by side.
    pub fn new(node: &Arc<Node>, place: &Path, cache_bytes: u64, heads: u32) -> Arc<Views> {
        Arc::new(Views {
            node: node.clone(),
            place: place.to_owned(),
            cache_bytes,
            heads,
            kept: Mutex::default(),
            opening: Mutex::default(),
        })
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.held()
    }

    /// Opens what ran when the node ended. One that cannot be opened says why, and is tried again
    /// with the next start.
    pub fn open_all(&self) -> Result<()> {
        let disk = &*self.node.machine.disk;
        if !disk.exists(&self.place)? {
            return Ok(());
        }
        for entry in disk.list(&self.place)? {
            let place = self.place.join(&entry.name);
            let file = place.join("view");
            if !disk.exists(&file)? {
                // It was stopped, or never begun.
                continue;
            }
            match read_name(&read_file(disk, &file, VIEW_FILE_BYTES_MAX)?) {
                Some(name) => drop(self.open_view(&name, &place)),
                None => self.node.report_finding(format!(
                    "`{}` does not say which view it keeps: it is damaged: remove `{}` and run the \
                     view again",
                    file.display(),
                    place.display()
                )),
            }
        }
        Ok(())
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
        let fits = topic.read(|view, _| check_kind(view.catalog(), &name.kind));
        fits.and_then(|fits| fits).map_err(doing)?;
        let place = self.place_of(name);
        {
            let kept = self.kept();
            if kept.views.contains_key(&place) || kept.booting.contains_key(&place) {
                return Err(doing(Error::exists("it runs here already")));
            }
            if kept.views.len() >= VIEWS_MAX {
                let full = format!("this node runs {VIEWS_MAX} views, and takes no more");
                return Err(doing(Error::full(full)));
            }
        }
        let disk = &*self.node.machine.disk;
        create_dir_durable(disk, &place, 2, "views.directory").map_err(|e| doing(e.into()))?;
        replace_file(disk, &place.join("view"), &written_name(name), SITES)
            .map_err(|e| doing(e.into()))?;
        let info = self.node.log.info(&log_topic(&name.topic)?)?;
        let first = self.first_of(&name.topic).map_or(info.first, |(first, _)| first);
        let entries = info.next.0.saturating_sub(first.0);
        let is_long = entries > REPLAYED_MAX.get();
        if is_long {
            REPLAYED_MAX.cross();
        }
        // One that was stopped goes on with what it kept.
        let is_new = !disk.exists(&place.join("rows"))?;
        if is_new && (is_long || first.0 > 1) {
            self.boot(name, &place);
            return Ok(());
        }
        self.open_view(name, &place).map_err(doing)
    }

    /// Has a view begin with images.
    fn boot(self: &Arc<Views>, name: &ViewName, place: &Path) {
        let boot = Boot::new(self, name, place.to_owned());
        {
            let mut kept = self.kept();
            kept.failed.remove(place);
            kept.booting.insert(place.to_owned(), (name.clone(), boot.clone()));
        }
        boot.ask();
    }

    /// A view is open, or there were no images for it: then it folds the log, if that is whole.
    pub(crate) fn boot_ended(&self, name: &ViewName, place: &Path, result: Result<()>) {
        let stays = self.kept().booting.remove(place).is_some();
        let Err(e) = result else { return };
        let is_trimmed = self.first_of(&name.topic).is_ok_and(|(first, _)| first.0 > 1);
        if stays && !is_trimmed {
            // It says itself why not.
            let _ = self.open_view(name, place);
        } else if stays {
            self.kept().failed.insert(place.to_owned(), (name.clone(), e));
        }
    }

    /// Where a topic's log begins, as far as this node knows, and since when: no entry before it is
    /// there any more.
    fn first_of(&self, topic: &str) -> Result<(Index, u64)> {
        if self.node.hosted.is_some() {
            let now_ns = self.node.machine.clock.monotonic_ns();
            return Ok((self.node.log.info(&log_topic(topic)?)?.first, now_ns));
        }
        let first = self.kept().firsts.get(topic).copied();
        first.ok_or_else(|| Error::retry("the log's host has not said yet where the log begins"))
    }

    /// Asks where the logs of topics begin, where that is another node's to know.
    fn ask_firsts(self: &Arc<Views>) {
        if self.node.hosted.is_some() {
            return;
        }
        let topics: Vec<String> = self.kept().topics.keys().cloned().collect();
        for topic in topics {
            let Ok(name) = log_topic(&topic) else { continue };
            let (weak, asked_ns) = (Arc::downgrade(self), self.node.machine.clock.monotonic_ns());
            self.node.ask_first(&name, move |first| {
                if let (Ok(first), Some(views)) = (first, weak.upgrade()) {
                    views.kept().firsts.insert(topic, (first, asked_ns));
                }
            });
        }
    }

    /// Views that the log has left behind begin again, with images.
    fn boot_again(self: &Arc<Views>) {
        let (views, failed) = {
            let kept = self.kept();
            let views = kept.views.iter().map(|(place, view)| (place.clone(), view.clone()));
            let failed = kept.failed.iter().map(|(place, (name, _))| (place.clone(), name.clone()));
            (views.collect::<Vec<_>>(), failed.collect::<Vec<_>>())
        };
        for (place, view) in views {
            let first = self.first_of(&view.name.topic);
            if first.is_ok_and(|(first, _)| first.0 > view.status().applied.0 + 1) {
                let _one = self.opening.held();
                self.kept().views.remove(&place);
                // What it kept goes when the images are there.
                let _ = view.end();
                drop(_one);
                self.boot(&view.name, &place);
            }
        }
        for (place, name) in failed {
            if self.first_of(&name.topic).is_ok_and(|(first, _)| first.0 > 1) {
                self.boot(&name, &place);
            }
        }
    }

    /// Ends a view for good. What it kept on disk stays, and the answer says where.
    pub fn stop(&self, name: &ViewName) -> Result<PathBuf> {
        let place = self.place_of(name);
        let _one = self.opening.held();
        let (view, others) = {
            let mut kept = self.kept();
            let failed = kept.failed.remove(&place).is_some();
            (kept.views.remove(&place), failed | kept.booting.remove(&place).is_some())
        };
        if view.is_none() && !others {
            return Err(Error::not_found(format!(
                "stop view `{}`: this node does not run it",
                describe(name)
            )));
        }
        self.node.machine.disk.remove(&place.join("view"))?;
        view.map_or(Ok(()), |view| view.end())?;
        Ok(place)
    }

    fn place_of(&self, name: &ViewName) -> PathBuf {
        let readable: String = describe(name)
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || "._".contains(c) { c } else { '-' })
            .take(NAME_BYTES_MAX + 50)
            .collect();
        self.place.join(format!("{readable}-{:08x}", crc32c(&name.to_bytes())))
    }

    fn open_view(&self, name: &ViewName, place: &Path) -> Result<()> {
        self.open_with(name, place, None)
    }

    /// Opens a view as it was left, or with what arrives.
    pub(crate) fn open_with(
        &self,
        name: &ViewName,
        place: &Path,
        arrival: Option<Arrival<'_, '_>>,
    ) -> Result<()> {
        let opened = self.topic(&name.topic).and_then(|_| {
            let _one = self.opening.held();
            if arrival.is_some() && !self.kept().booting.contains_key(place) {
                return Err(Error::retry("it was stopped meanwhile"));
            }
            self.open_once(name, place, arrival)
        });
        let mut kept = self.kept();
        match opened {
            Ok(view) => {
                event!(ViewRuns, describe(name));
                kept.failed.remove(place);
                kept.views.insert(place.to_owned(), Arc::new(view));
                Ok(())
            }
            Err(e) => {
                kept.failed.insert(place.to_owned(), (name.clone(), e.clone()));
                Err(e)
            }
        }
    }

    fn open_once(
        &self,
        name: &ViewName,
        place: &Path,
        arrival: Option<Arrival<'_, '_>>,
    ) -> Result<RunView> {
        let range = Range::part(name.part, name.of);
        let topic = log_topic(&name.topic)?;
        let context = Context { range, name: describe(name), ..Context::of(&topic) };
        let kept = match &name.kind {
            ViewKind::Disk {} => {
                let marks = Arc::new(Marks::default());
                let told = marks.clone();
                let marked: Marked = Arc::new(move |index, moment| {
                    *told.held() = Some((index, moment));
                });
                let context = Context { marked: Some(marked), ..context };
                let (fold, rows) = match (self.open_engine(name, place), arrival) {
                    (Ok(rows), Some(arrival)) => {
                        (self.open_rows(&rows, &context, Some(arrival))?, rows)
                    }
                    (opened, arrival) => {
                        let opened = opened
                            .and_then(|rows| Ok((self.open_rows(&rows, &context, None)?, rows)));
                        match opened {
                            // What they held is in the log, or arrives.
                            Err(e) if e.kind == Kind::Corrupt && is_of_rows(&e) => {
                                self.set_aside(name, place, &e)?;
                                let rows = self.open_engine(name, place)?;
                                (self.open_rows(&rows, &context, arrival)?, rows)
                            }
                            opened => opened?,
                        }
                    }
                };
                let (machine, workers) = (&self.node.machine, &self.node.workers);
                let of = (name, place.to_owned());
                let rides = Rides::new(of, rows.clone(), range, self.heads, machine, workers);
                rides.find_images()?;
                KeptView::Disk { fold, rows, rides, marks, durable: AtomicU64::new(0) }
            }
            ViewKind::Memory {} => {
                KeptView::Memory { fold: self.node.open_one_of_several(context, arrival)? }
            }
            ViewKind::Index { collection, field } => {
                let indexed = Indexed { collection: collection.clone(), field: field.clone() };
                let context = Context { indexed: Some(indexed), ..context };
                KeptView::Index { fold: self.node.open_one_of_several(context, arrival)? }
            }
        };
        Ok(RunView { name: name.clone(), range, kept })
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

    fn open_engine(&self, name: &ViewName, place: &Path) -> Result<Arc<dyn Rows>> {
        let what = format!("{ROWS} `{}`", describe(name));
        let engine = &self.node.machine.engine;
        engine.open_rows(&place.join("rows"), &what, self.cache_bytes)
    }

    fn open_rows(
        &self,
        rows: &Arc<dyn Rows>,
        context: &Context,
        arrival: Option<Arrival<'_, '_>>,
    ) -> Result<Arc<DiskFold>> {
        self.node.open_one_of_several(context.clone().in_rows(rows.clone()), arrival)
    }

    /// Moves damaged rows away, for people to look at.
    fn set_aside(&self, name: &ViewName, place: &Path, why: &Error) -> Result<()> {
        let disk = &*self.node.machine.disk;
        for number in 1..=DAMAGED_MAX {
            let aside = place.join(format!("rows.damaged-{number}"));
            if disk.exists(&aside)? {
                continue;
            }
            disk.rename(&place.join("rows"), &aside)?;
            self.node.report_finding(format!(
                "the rows of view `{}` were damaged ({why}): they are in `{}`, and were folded anew \
                 from the log; nothing is missing",
                describe(name),
                aside.display()
            ));
            return Ok(());
        }
        Err(Error::full(format!(
            "set the damaged rows of view `{}` aside: there are {DAMAGED_MAX} others in `{}`: look at \
             the disk, then remove them ({why})",
            describe(name),
            place.display()
        )))
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
        match (kept.views.get(&place), kept.failed.get(&place)) {
            (Some(view), _) => Ok(view.clone()),
            (None, Some((_, e))) => Err(e.clone()),
            (None, None) => Err(Error::not_found(format!(
                "find view `{}`: this node does not run it: `holdfast view status` says who does",
                describe(name)
            ))),
        }
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

    /// The carousel that a ride is on.
    pub(crate) fn rides_of(&self, ride: u64) -> Option<Arc<Rides>> {
        let kept = self.kept();
        kept.views.values().find_map(|view| match &view.kept {
            KeptView::Disk { rides, .. } if rides.has(ride) => Some(rides.clone()),
            _ => None,
        })
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
        let (views, failed, booting) = {
            let kept = self.kept();
            let failed: Vec<_> = kept.failed.values().cloned().collect();
            let booting: Vec<_> = kept.booting.values().cloned().collect();
            (kept.views.values().cloned().collect::<Vec<_>>(), failed, booting)
        };
        let of_one = |view: &Arc<RunView>| {
            let FoldStatus { applied, stopped, .. } = view.status();
            let topic = log_topic(&view.name.topic).unwrap_or_default();
            let next = self.node.log.info(&topic).map_or(applied.0 + 1, |info| info.durable.0);
            let last = Index(next.saturating_sub(1).max(applied.0));
            let stopped = stopped.map_or_else(String::new, |e| e.message);
            let riders = view.riders() as u32;
            let images = view.images().into_iter();
            let images = images.map(|whole| msg::Image { index: whole.index, bytes: whole.bytes });
            let (view, images) = (view.name.clone(), images.collect());
            ViewStatus { view, applied, last, riders, stopped, images }
        };
        let mut all: Vec<ViewStatus> = views.iter().map(of_one).collect();
        let none = Index(0);
        let booting = booting.into_iter().map(|(view, boot)| (view, boot.progress()));
        let failed = failed.into_iter().map(|(view, e)| (view, e.message));
        let failed: Vec<_> = failed.chain(booting).collect();
        all.extend(failed.into_iter().map(|(view, stopped)| ViewStatus {
            view,
            applied: none,
            last: none,
            riders: 0,
            stopped,
            images: Vec::new(),
        }));
        all
    }

    /// Now and then: rows are made durable, so that a start folds little of the log again; views that
    /// stopped for want of room go on once there is some; sessions that nobody uses end.
    pub fn round(self: &Arc<Views>) {
        self.end_sessions();
        self.ask_firsts();
        self.boot_again();
        self.tell_images();
        self.ask_for_images();
        let views: Vec<_> = self.kept().views.values().cloned().collect();
        for view in views {
            let KeptView::Disk { fold, rows, rides, marks, durable } = &view.kept else { continue };
            let marked = marks.held().take();
            if let Some((index, moment)) = marked {
                rides.mark(index, moment);
            }
            if let Ok((first, known_ns)) = self.first_of(&view.name.topic) {
                rides.retire_images(first, known_ns);
            }
            let applied = fold.status().applied.0;
            // A view at rest costs its disk nothing.
            if durable.load(Ordering::Relaxed) != applied {
                match rows.persist("views.rows") {
                    Ok(()) => durable.store(applied, Ordering::Relaxed),
                    Err(e) => self
                        .node
                        .report_failure(format_args!("keep view `{}`", describe(&view.name)), &e),
                }
            }
            // It says `Retry` as long as there is no room.
            match fold.resume() {
                Ok(true) => event!(ViewRuns, describe(&view.name)),
                Ok(false) => {}
                Err(e) if matches!(e.kind, Kind::Retry | Kind::Full) => {}
                Err(e) => {
                    self.node
                        .report_failure(format_args!("resume view `{}`", describe(&view.name)), &e);
                }
            }
        }
    }

    /// Says of each topic what there is of images.
    fn tell_images(&self) {
        let (views, topics) = {
            let kept = self.kept();
            let views: Vec<_> = kept.views.values().cloned().collect();
            (views, kept.topics.keys().cloned().collect::<Vec<_>>())
        };
        for topic in topics {
            let of_topic = views.iter().filter(|view| view.name.topic == topic);
            let image = |view: &Arc<RunView>| {
                let (low, high) = (view.range.low(), view.range.high());
                let whole = view.images_that_stay().into_iter();
                whole.map(move |w| HeldImage { low, high, index: w.index, sum: w.total.all })
            };
            let images = of_topic.flat_map(image).collect();
            if let Ok(name) = log_topic(&topic) {
                self.node.tell_images(&name, images);
            }
        }
    }

    /// Asks for images of topics of which many entries have come since the last ones: the log's host
    /// does, for all.
    fn ask_for_images(&self) {
        if self.node.hosted.is_none() {
            return;
        }
        let mut due = Vec::new();
        {
            let Kept { topics, marked, .. } = &mut *self.kept();
            for (name, fold) in topics.iter() {
                let read = fold.read(|view, applied| (view.catalog().mark(), applied));
                let info = log_topic(name).and_then(|topic| self.node.log.info(&topic));
                let (Ok((mark, applied)), Ok(info)) = (read, info) else { continue };
                let (asked, bytes) = marked.entry(name.clone()).or_insert((mark, info.bytes));
                let since = applied.0.saturating_sub(mark.max(*asked).0);
                // What was trimmed is not counted twice.
                *bytes = (*bytes).min(info.bytes);
                if since >= MARK_ENTRIES.get() || info.bytes - *bytes >= MARK_BYTES {
                    MARK_ENTRIES.cross();
                    (*asked, *bytes) = (applied, info.bytes);
                    due.push(fold.clone());
                }
            }
        }
        for fold in due {
            let mark = Request::of(Call::default(), Command::mark(), Mode::Ordered);
            // One that could not be made is asked for again, after as many entries.
            fold.propose(mark, Box::new(|_| ()));
        }
    }

    /// Ends sessions of topics that nobody uses any more: the log's host does, for all.
    fn end_sessions(&self) {
        if self.node.hosted.is_none() {
            return;
        }
        let now_ns = self.node.machine.clock.monotonic_ns();
        let mut ends = Vec::new();
        {
            let Kept { topics, idle, .. } = &mut *self.kept();
            for (name, fold) in topics.iter() {
                let idle = idle.entry(name.clone());
                let idle = idle.or_insert_with(|| IdleSessions::new(SESSION_IDLE_MS));
                let idle = idle.look(now_ns, || fold.sessions()).into_iter();
                ends.extend(idle.map(|session| (fold.clone(), session)));
            }
        }
        for (fold, session) in ends {
            // One that was used a moment ago gets a new one; one that could not be ended is looked
            // at again.
            fold.end_session(session, Mode::Ordered, Box::new(|_| ()));
        }
    }

    /// Why views do not run, a sentence each.
    pub fn stopped(&self) -> Vec<String> {
        let booting: Vec<ViewName> =
            self.kept().booting.values().map(|(name, _)| name.clone()).collect();
        let mut stopped = self.status();
        stopped.retain(|status| !status.stopped.is_empty() && !booting.contains(&status.view));
        let stopped = stopped.into_iter();
        stopped
            .map(|status| format!("view `{}`: {}", describe(&status.view), status.stopped))
            .collect()
    }

    /// Ends all of them, also when one cannot be ended in order.
    pub fn end(&self) -> Result<()> {
        let (views, topics) = {
            let mut kept = self.kept();
            kept.booting.clear();
            (std::mem::take(&mut kept.views), std::mem::take(&mut kept.topics))
        };
        let ended = views.into_values().map(|view| view.end()).fold(Ok(()), Result::and);
        topics.into_values().for_each(|fold| fold.end());
        ended
    }
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

/// Whether it is the rows that are damaged, or what the fold keeps of its own in them: not the log.
fn is_of_rows(e: &Error) -> bool {
    e.message.contains(ROWS) || e.message.contains(OWN_ROWS)
}

fn written_name(name: &ViewName) -> Vec<u8> {
    let mut bytes = name.to_bytes();
    let crc = crc32c(&bytes);
    crc.encode(&mut bytes);
    bytes
}

fn read_name(bytes: &[u8]) -> Option<ViewName> {
    let (name, crc) = bytes.split_last_chunk::<4>()?;
    let name = (crc32c(name).to_le_bytes() == *crc).then(|| ViewName::from_bytes(name))?;
    name.ok()
}
