//! A view that begins with what others hold: it rides their images of one mark, part by part, into a
//! file, and goes on with the log behind the mark. Images of its own node it reads without a file. Who
//! breaks off is followed by another one that has an image of the same mark, from the last item on.
//! Nothing waits here: each answer leads to the next question. What was received counts for nothing
//! before all of it is there, and is what the images say of themselves: then it is begun anew, with others.

mod ahead;
mod here;

use crate::image::{self, Image};
use crate::views::{Views, describe};
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::ids::Index;
use holdfast_base::{Error, Kind, Result};
use holdfast_env::disk::{Access, Disk, File};
use holdfast_env::net::{PeerReply, PeerRequest};
use holdfast_env::{HoldMutex, event, planted, sometimes};
use holdfast_node::EntryAt;
use holdfast_view::Arrival;
use holdfast_view::items::log_topic;
use holdfast_wire::slab::{Range, Reader, Sums, Tallied, Tally, shown};
use holdfast_wire::view::{
    Board, Boarded, Doubt, Ended, Next, Place, ViewKind, ViewName, ViewStatus,
};
use holdfast_wire::{self as wire};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};

/// How long another node may take to answer.
const ANSWER_MS: u32 = 20_000;
/// What was received, in a view's directory.
const FILE: &str = "boot.tmp";
/// Of one read of what was received.
const READ_BYTES: usize = 1 << 20;

/// Who has an image.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Giver {
    Here,
    /// By its address.
    There(String),
}

impl fmt::Display for Giver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Giver::Here => f.write_str("this node"),
            Giver::There(address) => f.write_str(address),
        }
    }
}

/// An image that somebody has.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Offer {
    giver: Giver,
    view: ViewName,
    range: Range,
    index: Index,
}

/// What is ridden of one image.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Leg {
    offer: Offer,
    range: Range,
    /// Not before what lies behind this.
    behind: Option<Place>,
}

/// Images of one mark that have all of a range together: few of them. Nothing where there are none.
fn cover(stretch: &Stretch, index: Index, offers: &[Offer]) -> Option<Vec<Leg>> {
    let Stretch { range, behind } = stretch;
    let mut legs: Vec<Leg> = Vec::new();
    let mut low = behind.as_ref().map_or(range.low(), |place| u64::from(place.hash));
    while low < range.high() {
        let of_mark = offers.iter().filter(|offer| offer.index == index);
        let goes_on = of_mark.filter(|offer| offer.range.low() <= low && low < offer.range.high());
        // Of equal ones the one that is here, which `Giver` puts first.
        let end = |offer: &Offer| offer.range.high().min(range.high());
        let offer =
            goes_on.max_by(|a, b| end(a).cmp(&end(b)).then_with(|| b.giver.cmp(&a.giver)))?;
        let (from, behind) = (low, behind.clone().filter(|_| legs.is_empty()));
        low = end(offer);
        legs.push(Leg { offer: offer.clone(), range: Range::new(from, low), behind });
    }
    Some(legs)
}

/// As [`cover`], of the newest mark that will do.
fn newest(range: Range, offers: &[Offer]) -> Option<(Index, Vec<Leg>)> {
    let marks: BTreeSet<Index> = offers.iter().map(|offer| offer.index).collect();
    let all = Stretch { range, behind: None };
    marks.into_iter().rev().find_map(|mark| Some((mark, cover(&all, mark, offers)?)))
}

/// Hashes of which everything is still to come that lies behind a place.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stretch {
    range: Range,
    behind: Option<Place>,
}

/// A view that is on its way.
pub(crate) struct Boot {
    views: Weak<Views>,
    name: ViewName,
    /// What it rides.
    range: Range,
    place: PathBuf,
    /// What the view itself has left: its rows may be lost, and its images not.
    own: BTreeMap<Index, Arc<Image>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    offers: Vec<Offer>,
    /// Questions that are not answered.
    asked: usize,
    index: Index,
    /// What is left.
    legs: VecDeque<Leg>,
    /// The one that is being ridden, which of all it is, and what is left of it, head by head.
    leg: Option<Leg>,
    number: u64,
    heads: Vec<Stretch>,
    /// Heads that have something.
    open: usize,
    /// What the first leg said of the mark.
    begun: Option<(Boarded, Vec<u8>)>,
    /// What came, and what images say of it; and which ones were ridden.
    tally: Tally,
    ridden: Vec<Offer>,
    /// Why the images that were ridden before count for nothing.
    wrong: Option<Error>,
    file: Option<Arc<dyn File>>,
    bytes: u64,
    /// All of it is there, and the view has taken so many bytes of it.
    taken: Option<u64>,
    /// It came to its end, well or not, or nobody wants it any more.
    over: bool,
}

impl Boot {
    /// [`Views::boot_ended`] hears how it went.
    pub fn new(views: &Arc<Views>, name: &ViewName, place: PathBuf) -> Arc<Boot> {
        let range = match name.kind {
            // It is parted by value: what it keeps may lie anywhere.
            ViewKind::Index { .. } => Range::ALL,
            _ => Range::part(name.part, name.of),
        };
        let own = left_images(views, name, &place);
        let (views, name) = (Arc::downgrade(views), name.clone());
        Arc::new(Boot { views, name, range, place, own, state: Mutex::default() })
    }

    /// How far it is, for people.
    pub fn progress(&self) -> String {
        use holdfast_base::units::format_bytes;
        let state = self.state.held();
        if let Some(taken) = state.taken {
            let (index, taken, all) = (state.index, format_bytes(taken), format_bytes(state.bytes));
            return format!("it takes in what it has received of entry {index}: {taken} of {all}");
        }
        match &state.leg {
            None => "it looks for images to begin with".to_owned(),
            Some(leg) => {
                let from = &leg.offer.giver;
                let bytes = format_bytes(state.bytes);
                let view = describe(&leg.offer.view);
                format!(
                    "it begins with the image of entry {} of view `{view}` of {from}: {bytes} so far",
                    state.index
                )
            }
        }
    }

    /// Asks everybody.
    pub fn ask(self: &Arc<Boot>) {
        let Some(views) = self.views.upgrade() else { return };
        let topic = match log_topic(&self.name.topic) {
            Ok(topic) => topic,
            Err(e) => return self.end(Err(e)),
        };
        let neighbours = views.node.neighbours();
        // Of which one says how far this is.
        let here = offers(&Giver::Here, &views.status(), &self.name);
        {
            let mut state = self.state.held();
            state.offers = here;
            state.asked = neighbours.len() + self.own.len() + 1;
        }
        for (index, image) in &self.own {
            let (boot, index, image) = (self.clone(), *index, image.clone());
            let answered = move |entry: Result<EntryAt>| boot.proved(index, &image, entry);
            views.node.ask_entry(&topic, index, answered);
        }
        for address in neighbours {
            let (boot, giver) = (self.clone(), Giver::There(address.clone()));
            let answered = move |reply: Result<PeerReply>| {
                let said = reply.and_then(|r| Ok(Vec::<ViewStatus>::from_bytes(&r.meta)?));
                boot.told(said.map_or(Vec::new(), |said| offers(&giver, &said, &boot.name)));
            };
            let topic = self.name.topic.to_bytes();
            let request = request(wire::OP_VIEW_STATUS, topic);
            views.node.machine.peers.call(&address, request, Box::new(answered));
        }
        self.told(Vec::new());
    }

    /// The log has said what it has at the mark of an image that the view itself has left.
    fn proved(self: &Arc<Boot>, index: Index, image: &Image, entry: Result<EntryAt>) {
        let range = Range::part(self.name.part, self.name.of);
        let own = Offer { giver: Giver::Here, view: self.name.clone(), range, index };
        // What is wrong with it is said when the view is open.
        let is_ours = entry.and_then(|entry| image.check_is_at(entry)).is_ok();
        let is_ours = is_ours || planted!("ride.images-of-another-log");
        self.told(is_ours.then_some(own).into_iter().collect());
    }

    fn told(self: &Arc<Boot>, more: Vec<Offer>) {
        let goes_on = {
            let mut state = self.state.held();
            state.offers.extend(more);
            state.asked -= 1;
            state.asked == 0
        };
        if goes_on {
            self.work(Boot::choose);
        }
    }

    /// Does what may take long where there are threads for it.
    fn work(self: &Arc<Boot>, work: impl FnOnce(&Arc<Boot>) + Send + 'static) {
        if let Some(views) = self.views.upgrade() {
            let boot = self.clone();
            views.node.workers.run(move || work(&boot));
        }
    }

    fn choose(self: &Arc<Boot>) {
        let found = newest(self.range, &self.state.held().offers);
        let Some((index, legs)) = found else {
            let whose = describe(&self.name);
            let none = || {
                Error::not_found(format!(
                    "begin view `{whose}` with images: there are none of one entry that have all of it: \
                     start the nodes that have some, or run disk views of these keys and ask for images \
                     (`holdfast view mark`)"
                ))
            };
            let wrong = self.state.held().wrong.take();
            return self.end(Err(wrong.unwrap_or_else(none)));
        };
        self.state.held().index = index;
        if legs.iter().all(|leg| leg.offer.giver == Giver::Here) {
            let there_were = self.state.held().offers.len();
            match self.open_here(&legs) {
                // Some of these are not used any more.
                Ok(false) if self.state.held().offers.len() < there_were => {
                    return self.begin_anew();
                }
                Ok(false) => {}
                Ok(true) => return self.end(Ok(())),
                Err(e) => return self.end(Err(e)),
            }
        }
        let made = {
            let mut state = self.state.held();
            if state.over {
                // The file may be another one's by now.
                return;
            }
            state.legs = legs.into();
            self.create_file().map(|file| state.file = Some(file))
        };
        match made {
            Ok(()) => self.ride(),
            Err(e) => self.end(Err(e)),
        }
    }

    /// The view was stopped: what was received goes now, and what is still on its way is not taken.
    pub fn cancel(&self) {
        let mut state = self.state.held();
        if !std::mem::replace(&mut state.over, true) {
            state.number += 1;
            self.remove_file(&mut state);
        }
    }

    fn remove_file(&self, state: &mut State) {
        state.file = None;
        if let Some(views) = self.views.upgrade() {
            remove_left(&*views.node.machine.disk, &self.place);
        }
    }

    fn path(&self) -> PathBuf {
        self.place.join(FILE)
    }

    fn create_file(&self) -> Result<Arc<dyn File>> {
        let views = self.views.upgrade().ok_or_else(|| Error::retry("the node is ending"))?;
        let (disk, path) = (&views.node.machine.disk, self.path());
        let make = || {
            if disk.exists(&path)? {
                disk.remove(&path)?;
            }
            disk.create(&path, Access::Cached)
        };
        make().map_err(|e| Error::from(e).context(format_args!("make `{}`", path.display())))
    }

    /// Goes on with the next leg.
    fn ride(self: &Arc<Boot>) {
        let (leg, index, number) = {
            let mut state = self.state.held();
            if state.over {
                return;
            }
            state.number += 1;
            state.leg = state.legs.pop_front();
            let Some(leg) = state.leg.clone() else {
                drop(state);
                return self.arrive();
            };
            state.heads = vec![Stretch { range: leg.range, behind: leg.behind.clone() }];
            state.ridden.push(leg.offer.clone());
            (leg, state.index, state.number)
        };
        let address = match &leg.offer.giver {
            Giver::Here => return self.read_here(&leg, number),
            Giver::There(address) => address.clone(),
        };
        let board = Board {
            versions: self.wants_versions(),
            at: Some(index),
            behind: leg.behind.clone(),
            ..Board::of(leg.offer.view.clone(), leg.range)
        };
        let to = address.clone();
        self.call(&address, number, wire::OP_RIDE_BEGIN, board.to_bytes(), move |boot, reply| {
            let boarded = Boarded::from_bytes(&reply.meta)?;
            boarded.check_front(&reply.body)?;
            boot.boarded(boarded, reply.body)?;
            let heads = boot.divide(&leg, boarded.heads, number);
            heads
                .into_iter()
                .for_each(|(at, head)| boot.next(&to, (boarded.ride, head), at, number));
            Ok(())
        });
    }

    /// What of a leg is on which head; each place among `heads` with the head's number.
    fn divide(&self, leg: &Leg, heads: u32, number: u64) -> Vec<(usize, u32)> {
        let mut state = self.state.held();
        if state.number != number {
            return Vec::new();
        }
        let of_view = leg.offer.range.divided(heads);
        let on_leg = (0..).zip(of_view).filter(|(_, head)| head.overlaps(leg.range));
        let on_leg: Vec<(u32, Range)> = on_leg.collect();
        let stretch = |(at, (_, head)): (usize, &(u32, Range))| Stretch {
            range: Range::new(head.low().max(leg.range.low()), head.high().min(leg.range.high())),
            behind: leg.behind.clone().filter(|_| at == 0),
        };
        state.heads = on_leg.iter().enumerate().map(stretch).collect();
        state.open = on_leg.len();
        on_leg.iter().enumerate().map(|(at, (head, _))| (at, *head)).collect()
    }

    fn wants_versions(&self) -> bool {
        matches!(self.name.kind, ViewKind::Disk {})
    }

    /// Asks another node; an error of either side makes the boot look for another giver.
    fn call(
        self: &Arc<Boot>,
        address: &str,
        number: u64,
        opcode: u16,
        meta: Vec<u8>,
        then: impl FnOnce(&Arc<Boot>, PeerReply) -> Result<()> + Send + 'static,
    ) {
        let Some(views) = self.views.upgrade() else { return };
        let boot = self.clone();
        let answered = move |reply: Result<PeerReply>| {
            boot.work(move |boot| {
                if let Err(e) = reply.and_then(|reply| then(boot, reply)) {
                    boot.elsewhere(number, e);
                }
            });
        };
        let peers = &views.node.machine.peers;
        peers.call_yielding(address, request(opcode, meta), Box::new(answered));
    }

    /// All legs are of one entry of one log, or their images are not of one mark.
    fn boarded(&self, boarded: Boarded, front: Vec<u8>) -> Result<()> {
        let mut state = self.state.held();
        let index = state.index;
        let (first, _) = state.begun.get_or_insert((boarded, front));
        let same = (first.index, first.entry_crc, first.digest)
            == (boarded.index, boarded.entry_crc, boarded.digest);
        match same && boarded.index == index {
            true => Ok(()),
            false => Err(Error::corrupt(format!(
                "ride images of entry {index}: they are of different logs, or views have applied it \
                 otherwise"
            ))),
        }
    }

    /// Asks for more of a head, until there is no more.
    fn next(self: &Arc<Boot>, address: &str, (ride, head): (u64, u32), at: usize, number: u64) {
        let next = Next { ride, head };
        let to = address.to_owned();
        self.call(address, number, wire::OP_RIDE_NEXT, next.to_bytes(), move |boot, reply| {
            if reply.meta.is_empty() {
                // A node of a build before says nothing.
                if !reply.body.is_empty() {
                    boot.said(&Ended::from_bytes(&reply.body)?.sums, number);
                }
                boot.head_ended(number);
                return Ok(());
            }
            if boot.take(&reply.meta, &reply.body, at, number)? {
                boot.next(&to, (ride, head), at, number);
            }
            Ok(())
        });
    }

    /// Takes a slab. False where somebody else is asked for it by now. Its items are verified here, and
    /// once more where they are put into the view.
    fn take(&self, header: &[u8], columns: &[u8], at: usize, number: u64) -> Result<bool> {
        let reader = Reader::new(header, columns)?;
        let last = reader.items().max_by_key(|i| (i.hash, i.collection, i.key, i.index));
        let last = last.map(|item| Place {
            hash: item.hash,
            collection: item.collection,
            key: item.key.to_vec(),
            index: Index(item.index),
        });
        let mut bytes = ((header.len() + columns.len()) as u32).to_bytes();
        bytes.extend_from_slice(header);
        bytes.extend_from_slice(columns);
        let mut state = self.state.held();
        if state.number != number {
            return Ok(false);
        }
        let file = state.file.clone().ok_or_else(|| Error::bug("take a slab: there is no file"))?;
        file.write_at(&bytes, state.bytes)?;
        state.bytes += bytes.len() as u64;
        state.tally.came(&reader)?;
        if last.is_some() {
            state.heads[at].behind = last;
        }
        Ok(true)
    }

    /// The image of a leg says this of its items.
    fn said(&self, sums: &Sums, number: u64) {
        let mut state = self.state.held();
        if let Some(leg) = state.leg.clone().filter(|_| state.number == number) {
            state.tally.said(leg.offer.range, sums);
        }
    }

    fn head_ended(self: &Arc<Boot>, number: u64) {
        let is_over = {
            let mut state = self.state.held();
            if state.number != number {
                return;
            }
            state.open -= 1;
            state.open == 0
        };
        if is_over {
            self.ride();
        }
    }

    /// Goes on with somebody else who has an image of the same mark, from where this one ended.
    fn elsewhere(self: &Arc<Boot>, number: u64, e: Error) {
        let (offer, found) = {
            let mut state = self.state.held();
            let Some(leg) = state.leg.clone().filter(|_| state.number == number && !state.over)
            else {
                return;
            };
            // Answers of this leg that come yet are for nobody.
            state.number += 1;
            state.offers.retain(|offer| *offer != leg.offer);
            let left = state.heads.iter();
            let legs = left.map(|left| cover(left, state.index, &state.offers));
            let legs = legs.collect::<Option<Vec<_>>>().map(|legs| legs.into_iter().flatten());
            let found =
                legs.map(|legs| state.legs = legs.chain(std::mem::take(&mut state.legs)).collect());
            (leg.offer, found)
        };
        if e.kind == Kind::Corrupt {
            self.doubt(&offer);
        }
        match found {
            Some(()) => {
                sometimes!("a view that began with an image went on with another one");
                self.ride();
            }
            None => self.end(Err(e)),
        }
    }

    /// `Corrupt` where what came is not what the images say that they have: none of those that were ridden for
    /// it is used any more.
    fn check(&self) -> Result<()> {
        let mut state = self.state.held();
        let Tallied { differing, .. } = state.tally.compared(&[self.range], self.wants_versions());
        if differing.is_empty() || planted!("ride.begins-with-whatever-came") {
            return Ok(());
        }
        let (whose, index) = (describe(&self.name), state.index);
        let is_of =
            |offer: &Offer| differing.iter().any(|s| offer.range.overlaps(Range::of_sub_range(*s)));
        let mut wrong: Vec<Offer> =
            state.ridden.iter().filter(|offer| is_of(offer)).cloned().collect();
        wrong.sort_by(|a, b| (&a.giver, describe(&a.view)).cmp(&(&b.giver, describe(&b.view))));
        wrong.dedup();
        if wrong.is_empty() {
            // Something came that nobody was asked for. Nothing may be begun anew with the same images.
            wrong.clone_from(&state.ridden);
        }
        let of_one =
            |offer: &Offer| format!("of view `{}` of {}", describe(&offer.view), offer.giver);
        let images: Vec<String> = wrong.iter().map(of_one).collect();
        let e = Error::corrupt(format!(
            "begin view `{whose}` with images of entry {index}: what came of keys with hashes {} is not what \
             they say that they have ({}): they are not used for it; compare the views (`holdfast view \
             verify`), and look at the memory of their machines",
            shown(&differing),
            images.join(", ")
        ));
        state.offers.retain(|offer| !wrong.contains(offer));
        state.wrong = Some(e.clone());
        drop(state);
        if let Some(views) = self.views.upgrade() {
            views.node.report_finding(e.message.clone());
            match &wrong[..] {
                [Offer { giver: Giver::Here, view, index, .. }] => {
                    self.distrust(&views, view, *index, &e);
                }
                // Of several nobody knows which one it is, and what came of others may have changed on its way.
                _ => wrong.iter().for_each(|offer| self.doubt(offer)),
            }
        }
        Err(e)
    }

    /// Who has an image is to look whether it is what it says of itself. Nobody waits for that.
    fn doubt(&self, offer: &Offer) {
        let Some(views) = self.views.upgrade() else { return };
        sometimes!("a view that begins doubted an image that it was given");
        let Offer { giver, view, index, .. } = offer;
        match giver {
            // One that was just read for somebody else is what it was found to be.
            Giver::Here => drop(views.doubt(view, *index)),
            Giver::There(address) => {
                let doubt = Doubt { view: view.clone(), index: *index };
                let request = request(wire::OP_RIDE_DOUBT, doubt.to_bytes());
                views.node.machine.peers.call(address, request, Box::new(|_| ()));
            }
        }
    }

    /// An image of this node is wrong: nobody begins with it, or rides it, any more.
    fn distrust(&self, views: &Views, view: &ViewName, index: Index, e: &Error) {
        match self.own.get(&index).filter(|_| *view == self.name) {
            Some(own) => {
                event!(ImageGivenUp, e);
                if let Err(e) = own.remove() {
                    event!(ImageGivenUp, e);
                }
            }
            None => views.distrust(view, index, e),
        }
    }

    /// All that came counts for nothing: with what there is of others.
    fn begin_anew(self: &Arc<Boot>) {
        {
            let mut state = self.state.held();
            state.number += 1;
            (state.bytes, state.tally, state.begun) = Default::default();
            state.legs.clear();
            state.ridden.clear();
        }
        sometimes!("a view began anew, for what came was not what its images say");
        self.choose();
    }

    /// Everything is there.
    fn arrive(self: &Arc<Boot>) {
        if self.check().is_err() {
            return self.begin_anew();
        }
        let opened = || {
            let (file, bytes) = {
                let mut state = self.state.held();
                state.taken = Some(0);
                (state.file.take(), state.bytes)
            };
            let file = file.ok_or_else(nothing_ridden)?;
            file.write_at(&0u32.to_bytes(), bytes)?;
            let (total, mut at) = (bytes + 4, 0);
            self.open(total, &mut |out| {
                let piece = (total - at).min(READ_BYTES as u64) as usize;
                let begin = out.len();
                out.resize(begin + piece, 0);
                file.read_exact_at(&mut out[begin..], at)?;
                at += piece as u64;
                self.state.held().taken = Some(at);
                Ok(piece > 0)
            })
        };
        let opened = opened();
        self.end(opened);
    }

    /// Opens the view with slabs that are there: `more` appends the next ones of not more than so many
    /// bytes, as [`holdfast_view::items::stream`] has them behind a catalog. It is called ahead of the view,
    /// on another thread where there are threads.
    fn open(
        &self,
        bytes: u64,
        more: &mut (dyn FnMut(&mut Vec<u8>) -> Result<bool> + Send),
    ) -> Result<()> {
        let views = self.views.upgrade().ok_or_else(|| Error::retry("the node is ending"))?;
        let begun = self.state.held().begun.take();
        let (boarded, front) = begun.ok_or_else(nothing_ridden)?;
        let all = bytes + front.len() as u64;
        let open = |more: &mut ahead::More<'_>| {
            let mut front = Some(front);
            let mut more = |out: &mut Vec<u8>| match front.take() {
                Some(front) => {
                    out.extend_from_slice(&front);
                    Ok(true)
                }
                None => more(out),
            };
            let mut source = holdfast_base::stream::Source::new(all, &mut more);
            let Boarded { index: applied, entry_crc, digest, .. } = boarded;
            let arrival = Arrival { applied, entry_crc, digest, source: &mut source };
            views.open_with(&self.name, &self.place, Some(arrival))
        };
        match views.node.workers.is_inline() {
            true => open(more)?,
            false => ahead::ahead(more, open)?,
        }
        event!(ViewBooted, format_args!("`{}` at entry {}", describe(&self.name), boarded.index));
        sometimes!("a view began with images");
        Ok(())
    }

    fn end(self: &Arc<Boot>, result: Result<()>) {
        {
            let mut state = self.state.held();
            if std::mem::replace(&mut state.over, true) {
                return;
            }
            self.remove_file(&mut state);
        }
        let Some(views) = self.views.upgrade() else { return };
        views.boot_ended(&self.name, &self.place, result);
    }
}

/// Removes what was received for a view and is of no use any more; also what a node left that was killed
/// meanwhile.
pub(crate) fn remove_left(disk: &dyn Disk, place: &Path) {
    let path = place.join(FILE);
    if disk.exists(&path).unwrap_or(false) {
        // What stays is removed by the next one.
        let _ = disk.remove(&path);
    }
}

/// Images in a view's directory that are whole.
fn left_images(views: &Views, name: &ViewName, place: &Path) -> BTreeMap<Index, Arc<Image>> {
    let disk = &views.node.machine.disk;
    // What is damaged is said when the view is open.
    let indices = image::list(&**disk, place).unwrap_or_default().0.into_iter();
    let images = indices.filter_map(|index| Image::open(disk, place, index).ok());
    let own = images.filter(|image| image.check_is_ours(name, &views.node).is_ok());
    own.map(|image| (image.index(), Arc::new(image))).collect()
}

fn nothing_ridden() -> Error {
    Error::bug("begin with images: nothing was ridden")
}

fn request(opcode: u16, meta: Vec<u8>) -> PeerRequest {
    PeerRequest { opcode, meta, body: None, deadline_ms: ANSWER_MS }
}

/// What is said to be there of a topic.
fn offers(giver: &Giver, said: &[ViewStatus], name: &ViewName) -> Vec<Offer> {
    let of_topic = said.iter().filter(|status| status.view.topic == name.topic);
    let disks = of_topic.filter(|status| status.view.kind == ViewKind::Disk {});
    let of_view = disks.flat_map(|status| {
        status.images.iter().map(|image| Offer {
            giver: giver.clone(),
            view: status.view.clone(),
            range: Range::part(status.view.part, status.view.of),
            index: image.index,
        })
    });
    of_view.collect()
}
