//! What is done for views now and then: images begun, told of and asked for, rows made durable, views
//! that the log has left behind begun again, sessions ended.

use super::{Failed, Kept, KeptView, Lacking, RunView, SESSION_IDLE_MS, Views, describe};
use crate::rides::Whole;
use holdfast_base::ids::Index;
use holdfast_base::{Error, Kind, Result};
use holdfast_cluster::images::Image as HeldImage;
use holdfast_env::trial::Knob;
use holdfast_env::{HoldMutex, event, sometimes};
use holdfast_log::Mode;
use holdfast_node::{Ends, IdleSessions};
use holdfast_view::Request;
use holdfast_view::items::{Command, log_topic};
use holdfast_wire::Call;
use holdfast_wire::view::ViewName;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Images are asked for when so many entries have come since the last ones, ...
static MARK_ENTRIES: Knob = Knob::new("views.mark-entries", 1_000_000, &[5, 20]);
/// ... or so many bytes.
const MARK_BYTES: u64 = 256 << 20;
/// When a view has lost its image of the newest mark for so long, images are asked for again, ...
static LACKING_NS: Knob = Knob::new("views.lacking-ns", 60_000_000_000, &[1_000_000_000]);
/// ... at most so often: a disk that stays full or slow is not asked all the time.
static LACKING_AGAIN_NS: Knob =
    Knob::new("views.lacking-again-ns", 1_800_000_000_000, &[2_000_000_000]);
/// Before a view that found no room is tried once more, whether it was open by then or not.
const RESUME_NS: u64 = 10_000_000_000;
/// Before a view looks for images again.
const AGAIN_NS: u64 = 5_000_000_000;

impl Lacking {
    /// Whether images are to be asked for again, as a view has lost its image of the newest mark, or as none
    /// has.
    fn is_due(&mut self, lost: bool, now_ns: u64) -> bool {
        let since_ns = *self.since_ns.get_or_insert(now_ns);
        if !lost {
            self.since_ns = None;
            return false;
        }
        let rests = |asked: u64| {
            let rests = now_ns.saturating_sub(asked) < LACKING_AGAIN_NS.get();
            if !rests {
                LACKING_AGAIN_NS.cross();
            }
            rests
        };
        if now_ns.saturating_sub(since_ns) < LACKING_NS.get() || self.asked_ns.is_some_and(rests) {
            return false;
        }
        LACKING_NS.cross();
        (self.since_ns, self.asked_ns) = (None, Some(now_ns));
        true
    }
}

impl Views {
    /// Now and then: rows are made durable, so that a start folds little of the log again; views that
    /// stopped for want of room go on once there is some; sessions that nobody uses end.
    pub fn round(self: &Arc<Views>) {
        self.end_sessions();
        self.beat();
        self.look_for_files();
        self.begin_damaged_again();
        self.boot_again();
        self.open_again();
        self.tell_images();
        self.ask_for_images();
        let views: Vec<_> = self.kept().views.values().cloned().collect();
        for view in views {
            let KeptView::Disk { fold, rows, rides, sweeper, marks, durable, resumed_ns, .. } =
                &view.kept
            else {
                continue;
            };
            let marked = marks.held().take();
            if let Some((index, moment)) = marked {
                rides.mark(index, moment);
            }
            rides.prove_images();
            if let Ok(topic) = log_topic(&view.name.topic) {
                rides.compare_images(self.node.differing_images(&topic));
            }
            if let Ok((first, known_ns)) = self.first_of(&view.name.topic) {
                rides.retire_images(first, known_ns);
            }
            sweeper.round(self.horizon_of(&view.name.topic));
            let applied = fold.status().applied.0;
            // A view at rest costs its disk nothing.
            if durable.load(Ordering::Relaxed) != applied {
                match rows.persist("views.rows") {
                    Ok(()) => durable.store(applied, Ordering::Relaxed),
                    // There was no room; with its next entry the view stops, and goes on when there is some.
                    Err(e) if e.kind == Kind::Retry => {}
                    Err(e) => self
                        .node
                        .report_failure(format_args!("keep view `{}`", describe(&view.name)), &e),
                }
            }
            // It says `Retry` as long as there is no room. Where there was hardly some, it stops again.
            let now_ns = self.node.machine.clock.monotonic_ns();
            if now_ns - resumed_ns.load(Ordering::Relaxed).min(now_ns) < RESUME_NS {
                continue;
            }
            let resumed = fold.resume();
            if !matches!(resumed, Ok(false)) {
                resumed_ns.store(now_ns, Ordering::Relaxed);
            }
            match resumed {
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

    /// Somebody may remove the files of views that run: what is gone is told of, and made anew. The view
    /// answered as before, `doctor` found everything well, and it was not there any more after the next start;
    /// and the log was trimmed behind images that nobody had.
    fn look_for_files(&self) {
        let disk = &*self.node.machine.disk;
        let views: Vec<_> = self.kept().views.clone().into_iter().collect();
        for (place, view) in views {
            if let KeptView::Disk { rides, .. } = &view.kept {
                rides.look_for_images();
            }
            let file = place.join("view");
            // What cannot be looked at is not gone.
            if disk.exists(&file).unwrap_or(true) {
                continue;
            }
            let _one = self.opening.held();
            let runs = self.kept().views.get(&place).is_some_and(|own| Arc::ptr_eq(own, &view));
            if !runs {
                // It was stopped.
                continue;
            }
            let gone = format!(
                "`{}` was removed while view `{}` ran",
                file.display(),
                describe(&view.name)
            );
            let rows = place.join("rows");
            if let KeptView::Disk { damage, .. } = &view.kept
                && !disk.exists(&rows).unwrap_or(true)
            {
                damage.note(Error::corrupt(gone));
                continue;
            }
            self.node.report_finding(format!("{gone}: it was written again"));
            if let Err(e) = self.write_name(&view.name, &place) {
                let doing = format!("write down view `{}`", describe(&view.name));
                self.node.report_failure(doing, &e);
            }
        }
    }

    /// Views whose rows turned out to be damaged begin again, with the log or with images.
    fn begin_damaged_again(self: &Arc<Views>) {
        let damaged: Vec<_> = {
            let mut kept = self.kept();
            let Kept { views, coming, damaged, booted_ns, .. } = &mut *kept;
            let found = views.extract_if(.., |_, view| view.damage().is_some());
            let found: Vec<_> = found.collect();
            for (place, view) in &found {
                coming.insert(place.clone(), view.name.clone());
                damaged.extend(view.damage().map(|e| (place.clone(), e.clone())));
                booted_ns.remove(place);
            }
            found
        };
        for (place, view) in damaged {
            let name = view.name.clone();
            // Nothing of it is needed.
            let _ = view.end();
            drop(view);
            self.begin_at_leisure(name, place);
        }
    }

    fn begin_at_leisure(self: &Arc<Views>, name: ViewName, place: PathBuf) {
        let own = self.clone();
        // It may wait for the log's host, and read its rows.
        self.node.workers.run(move || {
            let begin = || {
                // It may be gone with what was damaged. Where it is there, a full disk has it not written again.
                if !own.node.machine.disk.exists(&place.join("view"))? {
                    own.write_down(&name, &place)?;
                }
                own.begin(&name, &place)
            };
            let begun = begin();
            if let Err(e) = begun {
                own.could_not_open(&name, &place, e);
            }
        });
    }

    /// Views that the log has left behind begin again, with images; and so do, after a while, those that
    /// found none.
    fn boot_again(self: &Arc<Views>) {
        let now_ns = self.node.machine.clock.monotonic_ns();
        let (views, failed) = {
            let mut kept = self.kept();
            let views = kept.views.iter().map(|(place, view)| (place.clone(), view.clone()));
            let views: Vec<_> = views.collect();
            let begun = |place: &PathBuf| kept.booted_ns.get(place).copied();
            let waited = |place: &PathBuf| begun(place).is_some_and(|ns| now_ns - ns > AGAIN_NS);
            let failed = kept.failed.iter();
            let failed = failed.filter(|(place, _)| waited(place) && !kept.is_tried(place));
            let failed = failed.map(|(place, failed)| (place.clone(), failed.name.clone()));
            let failed: Vec<_> = failed.collect();
            // Whoever stops one of them now finds it.
            kept.coming.extend(failed.iter().cloned());
            (views, failed)
        };
        for (place, view) in views {
            let first = self.first_of(&view.name.topic);
            if first.is_ok_and(|(first, _)| first.0 > view.status().applied.0 + 1) {
                let name = view.name.clone();
                {
                    let _one = self.opening.held();
                    {
                        let mut kept = self.kept();
                        if kept.views.remove(&place).is_none() {
                            continue;
                        }
                        // Whoever stops it now finds it.
                        kept.coming.insert(place.clone(), name.clone());
                    }
                    // What it kept goes when the images are there.
                    let _ = view.end();
                }
                // Its rows are closed with it.
                drop(view);
                self.boot(&name, &place);
            }
        }
        for (place, name) in failed {
            self.boot(&name, &place);
        }
    }

    /// Views that could not be opened for now are opened: rows that somebody still reads are closed when that
    /// ends, as those of a view that was stopped and run again at once; and where the disk was full, there may be
    /// room. Those that began with images begin with images again.
    fn open_again(self: &Arc<Views>) {
        let again: Vec<_> = {
            let mut kept = self.kept();
            let now_ns = self.node.machine.clock.monotonic_ns();
            let is_due = |failed: &Failed| match failed.why.kind {
                Kind::Retry => true,
                Kind::Full => now_ns.saturating_sub(failed.at_ns) >= RESUME_NS,
                _ => false,
            };
            let waits = |place: &PathBuf, failed: &Failed| {
                is_due(failed) && !kept.booted_ns.contains_key(place) && !kept.is_tried(place)
            };
            let again = kept.failed.iter().filter(|(place, failed)| waits(place, failed));
            let again = again.map(|(place, failed)| (place.clone(), failed.name.clone()));
            let again: Vec<_> = again.collect();
            kept.coming.extend(again.iter().cloned());
            again
        };
        for (place, name) in again {
            self.begin_at_leisure(name, place);
        }
    }

    /// Where a topic's log begins, as far as this node knows, and since when: no entry before it is
    /// there any more.
    pub(super) fn first_of(&self, topic: &str) -> Result<(Index, u64)> {
        if self.node.hosted().is_some() {
            let now_ns = self.node.machine.clock.monotonic_ns();
            return Ok((self.node.log.info(&log_topic(topic)?)?.first, now_ns));
        }
        let first = self.kept().firsts.get(topic).copied();
        first.ok_or_else(|| Error::retry("the log's host has not said yet where the log begins"))
    }

    /// As this node's catalog has it: a view may not have come there yet.
    fn horizon_of(&self, topic: &str) -> Index {
        let horizon =
            self.known(topic).and_then(|fold| fold.read(|v, _| v.catalog().horizon()).ok());
        horizon.unwrap_or_default()
    }

    /// Asks where the logs of topics begin and end, and has each view beat that has none under way: from
    /// the question until it has applied what was in the log then. Costs no entry, and no disk.
    fn beat(self: &Arc<Views>) {
        let (topics, views) = {
            let kept = self.kept();
            let views: Vec<_> = kept.views.values().cloned().collect();
            (kept.topics.keys().cloned().collect::<Vec<String>>(), views)
        };
        for topic in topics {
            let Ok(name) = log_topic(&topic) else { continue };
            let of_topic = views.iter().filter(|view| view.name.topic == topic);
            let beat = of_topic.filter(|view| view.beats.begin()).cloned().collect::<Vec<_>>();
            let (weak, clock) = (Arc::downgrade(self), self.node.machine.clock.clone());
            let asked_ns = clock.monotonic_ns();
            self.node.ask_ends(&name, move |ends| {
                let Ok(Ends { first, last }) = ends else {
                    return beat.iter().for_each(|view| view.beats.gave_up());
                };
                if let Some(views) = weak.upgrade() {
                    views.kept().firsts.insert(topic, (first, asked_ns));
                }
                for view in beat {
                    let (beats, clock) = (view.beats.clone(), clock.clone());
                    let come = move |come: Result<()>| match come {
                        Ok(()) => beats.came(asked_ns, clock.monotonic_ns()),
                        Err(_) => beats.gave_up(),
                    };
                    view.wake_at(last, Box::new(come));
                }
            });
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
                // One that cannot be compared with others does not count.
                whole.filter_map(move |Whole { index, sums, .. }| {
                    sums.map(|sums| HeldImage { low, high, index, sums })
                })
            };
            let images = of_topic.flat_map(image).collect();
            if let Ok(name) = log_topic(&topic) {
                self.node.tell_images(&name, images, self.lost_image(&topic));
            }
        }
    }

    /// The newest mark of a topic of which a view here should have an image, and has none, nor will have one
    /// by itself; 0 for none.
    pub fn lost_image(&self, topic: &str) -> Index {
        let mark = self.known(topic).and_then(|fold| fold.read(|v, _| v.catalog().mark()).ok());
        let mark = mark.unwrap_or_default();
        self.of(topic).iter().map(|view| view.lost_image(mark)).max().unwrap_or_default()
    }

    /// Asks for images of topics of which many entries have come since the last ones: the node does, for
    /// all, that looks after the log.
    fn ask_for_images(&self) {
        if !self.node.looks_after_log() {
            return;
        }
        let mut due = Vec::new();
        {
            let now_ns = self.node.machine.clock.monotonic_ns();
            let Kept { topics, marked, lacking, .. } = &mut *self.kept();
            for (name, fold) in topics.iter() {
                let read = fold.read(|view, applied| (view.catalog().mark(), applied));
                let info = log_topic(name).and_then(|topic| self.node.log.info(&topic));
                let (Ok((mark, applied)), Ok(info)) = (read, info) else { continue };
                let (asked, bytes) = marked.entry(name.clone()).or_insert((mark, info.bytes));
                let since = applied.0.saturating_sub(mark.max(*asked).0);
                // What was trimmed is not counted twice.
                *bytes = (*bytes).min(info.bytes);
                let lost = log_topic(name).map(|topic| self.node.lost_image(&topic));
                let lost = lost.is_ok_and(|lost| lost == mark && mark.0 > 0);
                let again = lacking.entry(name.clone()).or_default().is_due(lost, now_ns);
                let many = since >= MARK_ENTRIES.get() || info.bytes - *bytes >= MARK_BYTES;
                if many || again {
                    if many {
                        MARK_ENTRIES.cross();
                    } else {
                        sometimes!("images were asked for in the place of lost ones");
                    }
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

    /// Ends sessions of topics that nobody uses any more: the node that looks after the log does, for all.
    fn end_sessions(&self) {
        if !self.node.looks_after_log() {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_asked_for_again_once_in_a_while_and_not_for_a_moment_without() {
        let mut lacking = Lacking::default();
        let (wait, rest) = (LACKING_NS.usual(), LACKING_AGAIN_NS.usual());
        let mut due = |lost, at| lacking.is_due(lost, at);
        assert!(!due(true, 0) && !due(true, wait - 1));
        // It was there in between, or another mark was made.
        assert!(!due(false, wait) && !due(true, wait + 1) && !due(true, 2 * wait));
        assert!(due(true, 2 * wait + 1));
        // The disk is still full.
        assert!(!due(true, 2 * wait + 2) && !due(true, 2 * wait + rest));
        assert!(due(true, 2 * wait + 1 + rest));
    }
}
