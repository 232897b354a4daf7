//! The images of one disk view, as its carousel's driver keeps them: those that are there, that are
//! being written, and the moments that wait for a spin. What is written when, and who reads it, the
//! core decides.

use super::doubts::{DOUBT_REST_NS, Doubted, Doubts};
use super::{Job, Kept, Rides, Shown, State};
use crate::carousel::{Held, SpinId};
use crate::image::{self, About, Image, Seal};
use crate::views::describe;
use holdfast_base::ids::Index;
use holdfast_base::{Error, Kind, Result};
use holdfast_env::rows::Moment;
use holdfast_env::{event, planted, sometimes};
use holdfast_node::{EntryAt, Node};
use holdfast_wire::slab::{Needs, Sums};
use holdfast_wire::view::ViewName;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Images that are kept beside the one that the log begins with.
const IMAGES_KEPT: usize = 2;
/// How long an image is told to nobody before it goes: for longer than what a node said of its images
/// is used by whoever trims the log.
const LEAVING_NS: u64 = 60_000_000_000;

#[derive(Default)]
pub(super) struct Images {
    /// Moments of marks that wait for their spin.
    moments: BTreeMap<Index, Arc<dyn Moment>>,
    /// Those that are being written, by their spin.
    pub drafts: BTreeMap<SpinId, Arc<Image>>,
    /// Those that the core knows, and those of spins.
    pub known: BTreeMap<Index, Arc<Image>>,
    /// Those that were found, of which the log has not said yet whether they are its own: used for nothing. And
    /// whether it is being asked.
    unproven: BTreeMap<Index, (Arc<Image>, bool)>,
    /// Those that go when their last reader has gone.
    retiring: BTreeSet<Index>,
    /// Those that nobody is told of any more, and since when.
    leaving: BTreeMap<Index, u64>,
    /// Those that somebody doubts, and when they were read for that.
    doubts: Doubts,
    /// Those that were read since they differ from others of their marks: once.
    compared: BTreeSet<Index>,
    /// The newest mark whose image was given up, or damaged.
    lost: Index,
}

impl Images {
    pub fn take_moment(&mut self, index: Index) -> Arc<dyn Moment> {
        self.moments.remove(&index).expect("a moment is kept for its image")
    }

    /// A mark's image is not made, or is there no more.
    fn lose(&mut self, index: Index) {
        self.lost = self.lost.max(index);
    }

    /// Nobody needs it any more, or it never came to be.
    pub fn remove(&mut self, index: Index) -> Option<Job> {
        self.moments.remove(&index);
        self.retiring.remove(&index);
        self.leaving.remove(&index);
        self.compared.remove(&index);
        self.doubts.forget(index);
        self.known.remove(&index).map(Job::Remove)
    }
}

/// An image that is whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whole {
    /// Its mark.
    pub index: Index,
    /// Of its slabs.
    pub bytes: u64,
    /// The sums of its items, by sub-range of the hashes; images of format 1 have none.
    pub sums: Option<Arc<Sums>>,
}

impl State {
    /// A spin was begun for an image; without one where no file could be made.
    pub(super) fn begin_image(
        &mut self,
        spin: SpinId,
        draft: Option<std::result::Result<Image, Index>>,
    ) {
        let Some(draft) = draft else { return };
        let image = match draft {
            Ok(image) => image,
            Err(index) => return self.images.lose(index),
        };
        let image = Arc::new(image);
        self.images.known.insert(image.index(), image.clone());
        if self.ended {
            // Without a draft it is given up with its first slab.
            return image.give_up();
        }
        self.images.drafts.insert(spin, image);
        self.know_needs();
    }

    /// Nobody is to begin to read an image any more. False where it is not whole, or going already.
    fn retire(&mut self, now: u64, index: Index) -> bool {
        let image = self.images.known.get(&index);
        let goes = image.is_some_and(|image| image.sealed().is_some())
            && self.images.retiring.insert(index);
        if goes {
            self.core.image_retired(now, index);
        }
        goes
    }

    /// The core has given an image up: its writer held up riders, or something failed, which was said.
    pub(super) fn abandon(&mut self, spin: SpinId) {
        // Where something failed, that was told, and it is no draft any more.
        if let Some(image) = self.images.drafts.remove(&spin) {
            self.images.lose(image.index());
            let why = format!("image `{}` is not made", image.path().display());
            event!(ImageGivenUp, why);
        }
        self.know_needs();
    }

    /// A slab of an image could not be read: if it is damaged, nobody begins to read it any more.
    pub(super) fn distrust(&mut self, now: u64, index: Index, e: &Error) {
        if e.kind == Kind::Corrupt && self.retire(now, index) {
            self.images.lose(index);
            event!(ImageGivenUp, e);
        }
    }

    pub(super) fn spool(
        &mut self,
        spin: SpinId,
        head: usize,
        held: Held,
        now: u64,
        jobs: &mut Vec<Job>,
    ) {
        let kept = self.slabs.get(&held).expect("what is to be written is held").clone();
        match self.images.drafts.get(&spin) {
            Some(image) => jobs.push(Job::Spool(spin, head, image.clone(), kept)),
            None => self.core.spooled(now, spin, head, Err(Error::full("there is no file"))),
        }
    }
}

impl Rides {
    /// Takes note of the images that lie in the view's directory, before anybody rides.
    pub fn find_images(&self) -> Result<()> {
        let disk = &self.node.machine.disk;
        let (named, left) = image::list(&**disk, &self.place)?;
        let mut lost = left;
        for index in named {
            match Image::open(disk, &self.place, index) {
                Ok(image) => match image.check_is_ours(&self.view, &self.node) {
                    Ok(()) => {
                        let unproven = (Arc::new(image), false);
                        self.state().images.unproven.insert(index, unproven);
                    }
                    // It may be another cluster's only copy.
                    Err(e) => event!(ImageGivenUp, e),
                },
                Err(e) => {
                    event!(ImageGivenUp, e);
                    lost.push(index);
                    if e.kind == Kind::Corrupt {
                        image::remove(&**disk, &self.place, index)?;
                    }
                }
            }
        }
        self.input(|state, _, _| {
            lost.into_iter().for_each(|index| state.images.lose(index));
            None
        });
        self.prove_images();
        Ok(())
    }

    /// Asks whoever keeps the log whether images that were found are of it. Where it does not answer, the next
    /// call asks again.
    pub fn prove_images(&self) {
        let mut asks = Vec::new();
        for (index, (_, is_asked)) in &mut self.state().images.unproven {
            if !std::mem::replace(is_asked, true) {
                asks.push(*index);
            }
        }
        for index in asks {
            let weak = self.own.clone();
            let told = move |entry: Result<EntryAt>| {
                if let Some(own) = weak.upgrade() {
                    own.proved(index, entry);
                }
            };
            self.node.ask_entry(&self.topic, index, told);
        }
    }

    /// The log has said what it has at an image's mark.
    fn proved(&self, index: Index, entry: Result<EntryAt>) {
        self.input(|state, now, _| {
            let (image, is_asked) = state.images.unproven.get_mut(&index)?;
            *is_asked = false;
            let believes = planted!("ride.images-of-another-log")
                || planted!("ride.elsewhere-images-are-ours") && self.node.hosted().is_none();
            match entry.map(|entry| image.check_is_at(entry)) {
                // Asked again.
                Err(_) => {}
                Ok(Err(e)) if !believes => {
                    event!(ImageGivenUp, e);
                    state.images.unproven.remove(&index);
                }
                Ok(_) => {
                    let (image, _) = state.images.unproven.remove(&index)?;
                    state.images.known.insert(index, image);
                    state.core.image_found(now, index);
                }
            }
            None
        });
    }

    /// An image is to be made of this moment, which shows the view behind a mark.
    pub fn mark(&self, index: Index, moment: Arc<dyn Moment>) {
        self.input(|state, now, _| {
            let Images { known, moments, unproven, .. } = &state.images;
            let newest = known.keys().chain(moments.keys()).chain(unproven.keys()).max();
            // A mark is folded again after a start.
            if newest.is_none_or(|newest| *newest < index) && !state.ended {
                state.images.moments.insert(index, moment);
                state.core.image_due(now, index);
            }
            None
        });
    }

    /// Those that are whole, the oldest first.
    pub fn images(&self) -> Vec<Whole> {
        let state = self.state();
        let whole = |(index, image): (&Index, &Arc<Image>)| {
            let (index, bytes) = (*index, image.bytes());
            let stays = !state.images.retiring.contains(&index);
            let image = Some(image).filter(|_| stays)?;
            let unsealed = || {
                let sums = Some(Arc::default());
                planted!("ride.unverified-image-counts").then_some(Seal { sums })
            };
            image.sealed().or_else(unsealed).map(|Seal { sums }| Whole { index, bytes, sums })
        };
        state.images.known.iter().filter_map(whole).collect()
    }

    /// The newest mark of which the view should have an image, and has none, nor will have one by itself;
    /// 0 for none. `mark` is the newest one that the view has come to: a view that began with what others
    /// have was never asked for an image of it.
    pub fn lost_image(&self, mark: Index) -> Index {
        let mark = if planted!("ride.begins-without-an-image") { Index(0) } else { mark };
        let should = self.state().images.lost.max(mark);
        let counts = |whole: &Whole| whole.index >= should && whole.sums.is_some();
        let is_there = self.images().iter().any(counts);
        let state = self.state();
        let Images { drafts, moments, unproven, .. } = &state.images;
        let drafts = drafts.values().map(|image| image.index());
        // One that was found may be the log's own.
        let mut comes = moments.keys().chain(unproven.keys()).copied().chain(drafts);
        if is_there || comes.any(|index| index >= should) { Index(0) } else { should }
    }

    /// As [`Rides::images`], without those that leave: what others may rely on.
    pub fn images_that_stay(&self) -> Vec<Whole> {
        let mut images = self.images();
        let state = self.state();
        images.retain(|whole| !state.images.leaving.contains_key(&whole.index));
        images
    }

    /// Gives up images that nobody needs to begin with: older ones than what the log begins with
    /// (`first`, as it was at `known_ns`), and those between the one that does and the newest two.
    /// Those are told to nobody for a while first: whoever trims the log may just rely on one of them,
    /// which then is what the log begins with.
    pub fn retire_images(&self, first: Index, known_ns: u64) {
        let all: Vec<Index> = self.images().into_iter().map(|whole| whole.index).collect();
        let surplus = surplus(&all, first);
        self.input(|state, now, _| {
            state.images.leaving.retain(|index, _| surplus.contains(index));
            for index in surplus {
                state.images.leaving.entry(index).or_insert(now);
            }
            let left = |since: u64| known_ns.saturating_sub(since) >= LEAVING_NS;
            let old = all.into_iter().filter(|index| *index < first);
            let leaving = state.images.leaving.iter();
            let leaving = leaving.filter(|(_, since)| left(**since)).map(|(index, _)| *index);
            for index in old.chain(leaving).collect::<Vec<_>>() {
                state.retire(now, index);
            }
            None
        });
    }

    /// Images that somebody has removed count no more: the log is trimmed behind those that there are.
    pub fn look_for_images(&self) {
        for Whole { index, .. } in self.images() {
            if let Some(image) = self.image(index).filter(|image| !image.is_there()) {
                let gone =
                    format!("image `{}`, or a part of it, was removed", image.path().display());
                self.distrust_image(index, &Error::corrupt(gone));
            }
        }
    }

    /// An image is wrong: nobody begins to read it any more.
    pub fn distrust_image(&self, index: Index, e: &Error) {
        self.input(|state, now, _| {
            state.distrust(now, index, e);
            None
        });
    }

    /// Somebody who rode says that what came of an image is not what that says of itself. Anybody may say so, and
    /// what came may have changed on its way: the image counts as what it is for who reads it here. An error where
    /// it was read a moment ago, with what came of that, and is not read again for now.
    pub fn doubt_image(&self, index: Index) -> Result<()> {
        // Of one that is gone nobody begins to read anything.
        let Some(image) = self.image(index) else { return Ok(()) };
        let mut rests = None;
        self.input(|state, now, _| {
            if state.images.retiring.contains(&index) {
                return None;
            }
            match state.images.doubts.doubt(index, now) {
                Doubted::Look => Some(Job::Reread(image)),
                Doubted::IsLookedAt => None,
                Doubted::Rests(ago_ns, found) => {
                    rests = Some((ago_ns, found));
                    None
                }
            }
        });
        rests.map_or(Ok(()), |(ago_ns, found)| Err(self.rests(index, ago_ns, found)))
    }

    /// What who doubts an image is told that was read `ago_ns` ago.
    fn rests(&self, index: Index, ago_ns: u64, found: Result<()>) -> Error {
        let seconds = |ns: u64| ns.div_ceil(1_000_000_000);
        let (of, ago, left) =
            (describe(&self.view), ago_ns / 1_000_000_000, seconds(DOUBT_REST_NS - ago_ns));
        let found = match found {
            Ok(()) => "is what it says of itself: look at the memory of the rider's machine, and at the way \
                       to it"
                .to_owned(),
            Err(e) => format!("nobody knows yet what it is ({e}): look at its disk"),
        };
        Error::retry(format!(
            "look at the image of entry {index} of view `{of}`: it was read {ago} s ago, and {found}; it is not \
             read again before {left} s have passed"
        ))
    }

    /// Images of these marks are not what other nodes have of them.
    pub fn compare_images(&self, differing: BTreeSet<Index>) {
        for index in differing {
            if self.image(index).is_none() || self.state().images.compared.contains(&index) {
                continue;
            }
            // One that rests is compared with a later round.
            if self.doubt_image(index).is_ok() {
                self.state().images.compared.insert(index);
            }
        }
    }

    pub(super) fn reread(&self, image: &Image) -> Vec<Job> {
        let (index, read) = (image.index(), image.reread());
        self.tell(|state, now, _| {
            if let Err(e) = &read {
                sometimes!("an image that somebody doubted was wrong");
                state.distrust(now, index, e);
            }
            // It may have gone meanwhile.
            if state.images.known.contains_key(&index) {
                state.images.doubts.looked(index, now, read);
            }
            None
        })
    }

    /// The image of an index, for a view of the same node that begins with it.
    pub fn image(&self, index: Index) -> Option<Arc<Image>> {
        let image = self.state().images.known.get(&index).cloned();
        image.filter(|image| image.sealed().is_some())
    }

    /// Or the mark of the image that could not be begun.
    pub(super) fn begin_image(&self, shown: &Shown) -> std::result::Result<Image, Index> {
        let (position, front) = (shown.position, shown.front.clone());
        let log = Some(self.node.sender.cluster);
        let about = About { log, view: self.view.clone(), position, front };
        let made = Image::create(&self.node.machine.disk, &self.place, about, &self.heads);
        made.map_err(|e| {
            event!(ImageGivenUp, e);
            shown.position.applied
        })
    }

    pub(super) fn spool(&self, spin: SpinId, head: usize, image: &Image, kept: &Kept) -> Vec<Job> {
        let written = || {
            let Some(slab) = &kept.slab else { return image.write(head, None, kept.last) };
            let again = match slab.needs_all() {
                true => None,
                false => kept.made_again(Needs::all())?,
            };
            let slab = again.as_ref().unwrap_or(slab);
            image.write(head, Some((slab, &kept.first)), kept.last)
        };
        let written = written();
        self.tell(|state, now, _| {
            if let Err(e) = &written
                && let Some(image) = state.images.drafts.remove(&spin)
            {
                state.images.lose(image.index());
                event!(ImageGivenUp, e);
            }
            state.core.spooled(now, spin, head, written);
            None
        })
    }

    pub(super) fn seal(&self, spin: SpinId, image: &Image) -> Vec<Job> {
        let sealed = image.seal();
        self.tell(|state, now, _| {
            match &sealed {
                Ok(_) => event!(
                    ImageMade,
                    format_args!("`{}`, {} bytes", image.path().display(), image.bytes())
                ),
                Err(_) if state.ended => {}
                Err(e) => event!(ImageGivenUp, e),
            }
            state.images.drafts.remove(&spin);
            if sealed.is_err() {
                state.images.lose(image.index());
            }
            state.core.sealed(now, spin, sealed.map(drop));
            state.know_needs();
            None
        })
    }

    pub(super) fn remove(&self, image: &Image) -> Vec<Job> {
        if let Err(e) = image.remove() {
            event!(ImageGivenUp, e);
        }
        Vec::new()
    }
}

impl Image {
    /// See [`Image::check_is_of`].
    pub(crate) fn check_is_ours(&self, view: &ViewName, node: &Node) -> Result<()> {
        match planted!("ride.images-of-another-log") {
            true => Ok(()),
            false => self.check_is_of(view, node.sender.cluster),
        }
    }
}

/// Of all images of a view, in their order, those between what the log begins with and the newest.
fn surplus(all: &[Index], first: Index) -> Vec<Index> {
    let from = all.partition_point(|index| *index < first) + 1;
    let until = all.len().saturating_sub(IMAGES_KEPT);
    all.get(from..until.max(from)).unwrap_or_default().to_vec()
}
