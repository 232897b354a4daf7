//! Views opened: as they were left, folded anew where their rows are damaged, or with what arrives.

use super::sweeper::Sweeper;
use super::watched::{Damage, Watched};
use super::{
    DiskFold, Failed, KeptView, Marks, RunView, STOPPED_MEANWHILE, Views, describe, fold_name,
    read_name,
};
use crate::rides::Rides;
use holdfast_base::ids::Index;
use holdfast_base::{Error, Kind, Reason, Result};
use holdfast_env::disk::{Disk, read_file};
use holdfast_env::rows::Rows;
use holdfast_env::{HoldMutex, event};
use holdfast_node::Node;
use holdfast_view::items::{Indexed, log_topic};
use holdfast_view::{Arrival, Context, Marked, position};
use holdfast_wire::slab::Range;
use holdfast_wire::view::{ViewKind, ViewName};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock, Weak};

/// Of the file that says which view a directory keeps.
const VIEW_FILE_BYTES_MAX: u64 = 4096;
/// Rows set aside as damaged that are kept of a view; of more, a person has heard.
const DAMAGED_MAX: u32 = 8;

/// What a fold calls at each mark: its image is begun at once, so that whoever rides next shares the pass
/// that it is written from. Marks that are found while the view is opened wait for the next round.
fn told_of_marks(marks: &Arc<Marks>, rides: &Arc<OnceLock<Weak<Rides>>>, node: &Node) -> Marked {
    let (marks, rides, peers) = (marks.clone(), rides.clone(), node.machine.peers.clone());
    Arc::new(move |index, moment| {
        *marks.held() = Some((index, moment));
        let (marks, rides) = (marks.clone(), rides.clone());
        // Elsewhere: the fold is held.
        let begin = move || {
            let rides = rides.get().and_then(Weak::upgrade);
            let marked = rides.and_then(|rides| Some((rides, marks.held().take()?)));
            if let Some((rides, (index, moment))) = marked {
                rides.mark(index, moment);
            }
        };
        peers.after(0, Box::new(begin));
    })
}

impl Views {
    /// Opens what ran when the node ended. One that cannot be opened says why, and is tried again with the next
    /// start, or before where that may help: see [`Views::open_again`].
    pub fn open_all(self: &Arc<Views>) -> Result<()> {
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
            match read_file(disk, &file, VIEW_FILE_BYTES_MAX).map(|bytes| read_name(&bytes)) {
                Ok(Some(name)) => drop(self.kept().coming.insert(place, name)),
                Ok(None) => self.report_nameless(place, &file, "is damaged"),
                Err(e) => self.report_nameless(place, &file, &format!("cannot be read ({e})")),
            }
        }
        // All are known before the first is opened, which may take long.
        let coming = self.kept().coming.clone();
        for (place, name) in coming {
            // Its catalog first: that says how long the log is.
            let opened = self.topic(&name.topic).and_then(|_| self.begin(&name, &place));
            if let Err(e) = opened {
                self.could_not_open(&name, &place, e);
            }
        }
        Ok(())
    }

    /// Others are opened all the same. What it keeps is good, and who runs it again has it go on.
    fn report_nameless(&self, place: PathBuf, file: &Path, why: &str) {
        let finding = format!(
            "`{}` {why}: nobody knows from it any more which view is kept beside it. Nothing else of that \
             view is lost: run it again (`holdfast view run`) with the words that it was run with before, \
             which its directory is named after: it goes on with what is there, so remove nothing",
            file.display()
        );
        self.node.report_finding(finding.clone());
        self.kept().nameless.insert(place, finding);
    }

    /// A view stays, and says why it does not run; unless it was stopped meanwhile.
    pub(super) fn could_not_open(&self, name: &ViewName, place: &Path, why: Error) {
        let mut kept = self.kept();
        if kept.coming.remove(place).is_some() {
            let at_ns = self.node.machine.clock.monotonic_ns();
            kept.failed.insert(place.to_owned(), Failed { name: name.clone(), why, at_ns });
        }
    }

    pub(super) fn open_view(&self, name: &ViewName, place: &Path) -> Result<()> {
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
            let is_wanted = {
                let kept = self.kept();
                match arrival {
                    Some(_) => kept.booting.contains_key(place),
                    None => kept.coming.contains_key(place),
                }
            };
            if !is_wanted {
                return Err(Error::retry(STOPPED_MEANWHILE));
            }
            let view = Arc::new(self.open_once(name, place, arrival)?);
            // Before anybody may stop it.
            let mut kept = self.kept();
            kept.failed.remove(place);
            kept.coming.remove(place);
            kept.views.insert(place.to_owned(), view);
            Ok(())
        });
        match opened {
            Ok(()) => event!(ViewRuns, describe(name)),
            Err(e) => {
                self.could_not_open(name, place, e.clone());
                return Err(e);
            }
        }
        Ok(())
    }

    fn open_once(
        &self,
        name: &ViewName,
        place: &Path,
        arrival: Option<Arrival<'_, '_>>,
    ) -> Result<RunView> {
        let range = Range::part(name.part, name.of);
        let topic = log_topic(&name.topic)?;
        let context = Context { range, name: fold_name(name), ..Context::of(&topic) };
        let kept = match &name.kind {
            ViewKind::Disk {} => {
                let marks = Arc::new(Marks::default());
                let begun: Arc<OnceLock<Weak<Rides>>> = Arc::default();
                let marked = told_of_marks(&marks, &begun, &self.node);
                let context = Context { marked: Some(marked), ..context };
                let damage = Damage::default();
                let (fold, rows) = self.open_disk((name, place), &context, &damage, arrival)?;
                let of = (name, &*topic, place.to_owned());
                let rides = Rides::new(
                    of,
                    rows.clone(),
                    range,
                    (self.settings.heads, self.settings.windows_bytes),
                    (&self.node, &self.budget),
                );
                rides.find_images()?;
                begun.get_or_init(|| Arc::downgrade(&rides));
                let sweeper = Sweeper::new(describe(name), rows.clone(), &self.node);
                KeptView::Disk {
                    fold,
                    rows,
                    rides,
                    sweeper,
                    marks,
                    damage,
                    durable: AtomicU64::new(0),
                    resumed_ns: AtomicU64::new(0),
                }
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
        Ok(RunView { name: name.clone(), range, kept, beats: Arc::default() })
    }

    /// The rows of a disk view and what folds them; made anew where they are damaged.
    fn open_disk(
        &self,
        (name, place): (&ViewName, &Path),
        context: &Context,
        damage: &Damage,
        arrival: Option<Arrival<'_, '_>>,
    ) -> Result<(Arc<DiskFold>, Arc<dyn Rows>)> {
        let open = |rows: Arc<dyn Rows>, arrival: Option<Arrival<'_, '_>>| {
            let rows: Arc<dyn Rows> = Arc::new(Watched { rows, damage: damage.clone() });
            let context = context.clone().in_rows(rows.clone());
            Ok((self.node.open_one_of_several(context, arrival)?, rows))
        };
        let (opened, arrival) = match (self.open_engine(name, place), arrival) {
            (Ok(rows), Some(arrival)) => return open(rows, Some(arrival)),
            (opened, arrival) => (opened.and_then(|rows| open(rows, None)), arrival),
        };
        match opened {
            // What they held is in the log, or arrives.
            Err(e) if e.is(Reason::Rows) => {
                self.set_aside(name, place, &e)?;
                open(self.open_engine(name, place)?, arrival)
            }
            opened => opened,
        }
    }

    /// The rows of a view that turned out to be damaged while it ran are set aside: when nobody reads them any
    /// more, before which it is `Retry`.
    pub(super) fn set_damaged_aside(&self, name: &ViewName, place: &Path) -> Result<()> {
        let Some(why) = self.kept().damaged.get(place).cloned() else { return Ok(()) };
        let is_there = self.node.machine.disk.exists(&place.join("rows"))?;
        match is_there.then(|| self.open_engine(name, place)) {
            Some(Err(e)) if e.kind == Kind::Retry => return Err(e),
            // They are closed again, whatever is wrong with them.
            _ => {}
        }
        self.set_aside(name, place, &why)?;
        self.kept().damaged.remove(place);
        Ok(())
    }

    /// The last entry that a view's rows have; damaged ones are set aside, and have none.
    pub(super) fn kept_to(&self, name: &ViewName, place: &Path) -> Result<Index> {
        let kept = self.open_engine(name, place).and_then(|rows| position(&*rows.moment()?));
        match kept {
            Err(e) if e.is(Reason::Rows) => {
                self.set_aside(name, place, &e)?;
                Ok(Index(0))
            }
            kept => Ok(kept?.map_or(Index(0), |position| position.applied)),
        }
    }

    fn open_engine(&self, name: &ViewName, place: &Path) -> Result<Arc<dyn Rows>> {
        let what = format!("the rows of view `{}`", describe(name));
        let (engine, disk, rows) =
            (&self.node.machine.engine, &*self.node.machine.disk, place.join("rows"));
        let are_new = !has_files(disk, &rows)?;
        let opened = engine.open_rows(&rows, &what, self.settings.cache_bytes);
        // What was made until there was no room holds nothing, and is no damage when it is tried again.
        if are_new && opened.as_ref().is_err_and(|e| e.kind == Kind::Full) {
            remove_files(disk, &rows)?;
        }
        opened
    }

    /// Moves damaged rows away, for people to look at.
    fn set_aside(&self, name: &ViewName, place: &Path, why: &Error) -> Result<()> {
        let disk = &*self.node.machine.disk;
        if !disk.exists(&place.join("rows"))? {
            self.node.report_finding(format!(
                "the rows of view `{}` are gone ({why}): they are folded anew from the log, or from images where \
                 that was trimmed",
                describe(name)
            ));
            return Ok(());
        }
        for number in 1..=DAMAGED_MAX {
            let aside = place.join(format!("rows.damaged-{number}"));
            if disk.exists(&aside)? {
                continue;
            }
            disk.rename(&place.join("rows"), &aside)?;
            self.node.report_finding(format!(
                "the rows of view `{}` were damaged ({why}): they are in `{}`, and are folded anew \
                 from the log, or from images where that was trimmed",
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
}

/// Whether there is a file below a directory.
fn has_files(disk: &dyn Disk, place: &Path) -> Result<bool> {
    if !disk.exists(place)? {
        return Ok(false);
    }
    for entry in disk.list(place)? {
        if !entry.is_dir || has_files(disk, &place.join(&entry.name))? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Removes all files below a directory.
fn remove_files(disk: &dyn Disk, place: &Path) -> Result<()> {
    for entry in disk.list(place)? {
        let path = place.join(&entry.name);
        match entry.is_dir {
            true => remove_files(disk, &path)?,
            false => disk.remove(&path)?,
        }
    }
    Ok(())
}
