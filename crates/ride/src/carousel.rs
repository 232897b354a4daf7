//! The carousel's core: which scan makes which slab of a view when, and who is sent what. Its
//! driver holds the engine, the images and the riders' connections, tells it what happened
//! ([`Carousel::join`], [`Carousel::made`], ...) and carries out the [`Effect`]s. It reads no
//! clock, sees no item of a view, and waits for nothing; nor does it know how slabs are encoded.
//!
//! A *spin* is one snapshot, so one index. Its *heads* are ranges of hashes, each scanned from its
//! beginning; riders join a head in lap 1 where a key begins, and what they missed comes by in lap
//! 2, which goes no further than that; or out of the spin's image, if one is being made. A rider
//! that holds others up for longer than it may is *moved*: it reads on by itself, from its own
//! place. Nobody is thrown off for being slow.
//!
//! A rider asks head by head, as each head is a stream of its own: a request for whichever head has
//! something would go to the fastest one, and the others' windows would fill with what nobody has
//! asked for. So nothing that happens on one head waits for another.
//!
//! [`laps`] moves heads on, [`private`] those that read by themselves, [`doors`] opens and closes
//! spins and lets riders in and out, [`spool`] has images written, [`allowance`] keeps the time.

mod allowance;
mod check;
mod doors;
mod error;
mod head;
mod laps;
mod private;
mod spool;
mod terms;

pub use terms::{
    Boarding, Effect, Held, Limits, PRIVATE_MAX, Place, Reader, RiderId, ScanId, Slab, Source,
    Span, SpinId, Ticket, WINDOW_BYTES,
};

use allowance::{Account, Timer};
use head::{Head, Seat, Who};
use holdfast_base::ids::Index;
use holdfast_base::{Error, Result};
use private::{Private, Turns};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// All spins over one view.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Carousel {
    limits: Limits,
    heads: Vec<Span>,
    now: u64,
    riders: BTreeMap<RiderId, Rider>,
    spins: BTreeMap<SpinId, Spin>,
    /// Until they are stopped, and have answered.
    scans: BTreeMap<ScanId, Scanning>,
    images: BTreeMap<Index, Image>,
    /// An image that waits for its spin.
    due: Option<Index>,
    /// Riders that wait for a spin, in the order in which they came.
    platform: VecDeque<RiderId>,
    turns: Turns,
    timers: BTreeSet<(u64, Timer)>,
    effects: VecDeque<Effect>,
    spins_begun: u64,
    scans_begun: u64,
    stir: Stir,
}

/// What has to be looked at again before an input is dealt with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Stir {
    heads: BTreeSet<(SpinId, usize)>,
    streams: BTreeSet<(RiderId, usize)>,
    spins: BTreeSet<SpinId>,
    images: BTreeSet<Index>,
    doors: bool,
}

/// What a rider stands on: what keeps its ride possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Ground {
    /// It waits for a spin.
    Platform,
    Spin(SpinId),
    /// It needs no snapshot: all that it still wants is in this image.
    Image(Index),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Rider {
    boarding: Boarding,
    ground: Ground,
    /// Its spin's snapshot was asked for before it came, and may be too old for it.
    is_late: bool,
    /// The heads that it is not through with.
    streams: BTreeMap<usize, Stream>,
    account: Account,
    /// When it last asked for something or was sent something.
    active_ns: u64,
    /// When it is looked at for being idle.
    watched_ns: Option<u64>,
}

/// A rider's way through one head.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Stream {
    /// Its spin is not there yet.
    Boarding {
        requests: u64,
    },
    /// It has a seat on the head.
    Shared,
    Private(Private),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Spin {
    /// None until its snapshot is there.
    index: Option<Index>,
    /// The index of the image that it was begun for.
    image: Option<Index>,
    /// It has one rider, which reads by itself.
    is_dedicated: bool,
    heads: Vec<Head>,
    /// Those that stand on it.
    riders: BTreeSet<RiderId>,
    spool: Spool,
    /// What the image's writer did to others.
    writer: Account,
    /// Scans of its snapshot that have not answered.
    under_way: usize,
}

/// How far a spin's image is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Spool {
    None,
    Writing,
    /// All slabs are written, the image is being synced.
    Sealing,
    Whole,
}

/// An image that somebody may read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Image {
    Written,
    Whole,
    /// It goes when its last reader has gone.
    Going,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Scanning {
    source: Source,
    head: usize,
    reader: Reader,
    is_busy: bool,
    is_stopped: bool,
}

impl Carousel {
    /// A carousel over a view whose range is divided among these heads.
    pub fn new(limits: Limits, heads: Vec<Span>) -> Carousel {
        assert!(limits.allowance_percent < 100, "who holds up others always comes to an end");
        assert!(limits.spins_max > 0 && limits.dedicated_max > 0 && limits.private_max > 0);
        assert!(
            limits.waited_ns <= limits.idle_ns,
            "who is waited for has no more time than others"
        );
        assert!(limits.window_bytes > 0, "a head keeps what it has just made");
        assert!(heads.windows(2).all(|pair| pair[0].high <= pair[1].low), "heads are in order");
        Carousel {
            limits,
            heads,
            now: 0,
            riders: BTreeMap::new(),
            spins: BTreeMap::new(),
            scans: BTreeMap::new(),
            images: BTreeMap::new(),
            due: None,
            platform: VecDeque::new(),
            turns: Turns::default(),
            timers: BTreeSet::new(),
            effects: VecDeque::new(),
            spins_begun: 0,
            scans_begun: 0,
            stir: Stir::default(),
        }
    }

    /// The next thing to do. The driver asks after each input, until there is nothing more.
    pub fn next_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Somebody comes.
    pub fn join(&mut self, now: u64, rider: RiderId, boarding: Boarding) {
        self.input(now, |core| core.let_in(rider, boarding));
    }

    /// A rider asks for one more slab of a head; it may do so before it was told that it rides.
    /// Who is through with the head, or whose ride is over, has asked in vain: false.
    pub fn pull(&mut self, now: u64, rider: RiderId, head: usize) -> bool {
        let mut is_due = false;
        self.input(now, |core| is_due = core.ask(rider, head));
        is_due
    }

    /// A rider has gone.
    pub fn leave(&mut self, now: u64, rider: RiderId) {
        self.input(now, |core| core.let_out(rider));
    }

    /// Answer to [`Effect::Open`]: the index of the snapshot.
    pub fn opened(&mut self, now: u64, spin: SpinId, index: Result<Index>) {
        self.input(now, |core| match index {
            Ok(index) => core.begin(spin, index),
            Err(error) => core.give_up_spin(spin, error),
        });
    }

    /// Answer to [`Effect::Scan`]: the driver holds the slab's bytes until they are forgotten.
    pub fn made(&mut self, now: u64, scan: ScanId, slab: Slab) {
        self.input(now, |core| {
            let Some(found) = core.answered(scan) else {
                let held = Held { scan, number: slab.number };
                core.effects.push_back(Effect::Forget { slab: held });
                return;
            };
            match (found.reader, found.source) {
                (Reader::Private(rider), source) => {
                    core.made_private(rider, found.head, source, scan, slab);
                }
                (Reader::Shared, Source::Snapshot(spin)) => {
                    core.made_shared(spin, found.head, scan, slab);
                }
                (Reader::Shared, Source::Image(_)) => unreachable!("images are read in private"),
            }
        });
    }

    /// Answer to [`Effect::Scan`]: no slab was made, and this scan will make no other.
    pub fn failed(&mut self, now: u64, scan: ScanId, error: Error) {
        self.input(now, |core| {
            let Some(found) = core.answered(scan) else { return };
            match (found.reader, found.source) {
                (Reader::Private(rider), _) => {
                    core.failed_private(rider, found.head, found.source, error)
                }
                (Reader::Shared, Source::Snapshot(spin)) => {
                    core.failed_shared(spin, found.head, error);
                }
                (Reader::Shared, Source::Image(_)) => unreachable!("images are read in private"),
            }
        });
    }

    /// An image of this index is to be made; the driver has taken the snapshot for it. It gets a
    /// spin as soon as there may be one more. Where an earlier one waits for its own, that one is
    /// not made.
    pub fn image_due(&mut self, now: u64, index: Index) {
        self.input(now, |core| core.want_image(index));
    }

    /// Answer to [`Effect::Spool`].
    pub fn spooled(&mut self, now: u64, spin: SpinId, head: usize, result: Result<()>) {
        self.input(now, |core| core.written(spin, head, result));
    }

    /// Answer to [`Effect::Seal`].
    pub fn sealed(&mut self, now: u64, spin: SpinId, result: Result<()>) {
        self.input(now, |core| core.image_sealed(spin, result));
    }

    /// There is a whole image of this index, which was made earlier.
    pub fn image_found(&mut self, now: u64, index: Index) {
        self.input(now, |core| {
            let before = core.images.insert(index, Image::Whole);
            assert!(before.is_none(), "an image is found once");
        });
    }

    /// Nobody is to begin to read this image any more: [`Effect::Remove`] follows when nobody does.
    pub fn image_retired(&mut self, now: u64, index: Index) {
        self.input(now, |core| core.retire_image(index));
    }

    /// Time has passed: see [`Carousel::next_wake`].
    pub fn tick(&mut self, now: u64) {
        self.input(now, |_| {});
    }

    fn input(&mut self, now: u64, deal: impl FnOnce(&mut Carousel)) {
        self.run_timers(now);
        deal(self);
        self.settle();
        // What is due at once.
        self.run_timers(now);
        self.check();
    }

    /// Looks at everything that was stirred, until it rests.
    fn settle(&mut self) {
        loop {
            if let Some((spin, head)) = self.stir.heads.pop_first() {
                self.turn(spin, head);
            } else if let Some((rider, head)) = self.stir.streams.pop_first() {
                self.read_on(rider, head);
            } else if let Some(image) = self.stir.images.pop_first() {
                self.remove_image(image);
            } else if let Some(spin) = self.stir.spins.pop_first() {
                self.close(spin);
            } else if std::mem::take(&mut self.stir.doors) {
                self.open_doors();
            } else {
                return;
            }
        }
    }

    fn ask(&mut self, rider: RiderId, head: usize) -> bool {
        let now = self.now;
        let Some(found) = self.riders.get_mut(&rider) else { return false };
        let Some(stream) = found.streams.get_mut(&head) else { return false };
        found.active_ns = now;
        match (stream, found.ground) {
            (Stream::Boarding { requests }, _) => *requests += 1,
            (Stream::Private(private), _) => {
                private.requests += 1;
                self.stir.streams.insert((rider, head));
            }
            (Stream::Shared, Ground::Spin(spin)) => {
                let open = self.spins.get_mut(&spin).expect("who sits is on a spin");
                let (slab, turns) = open.heads[head].ask(Who::Rider(rider));
                if let Some(slab) = slab {
                    self.effects.push_back(Effect::Send { rider, head, slab });
                }
                if turns {
                    self.stir.heads.insert((spin, head));
                }
            }
            (Stream::Shared, _) => unreachable!("seats are on spins"),
        }
        true
    }

    /// The seat of a rider whose stream is shared.
    fn seat(&self, rider: RiderId, head: usize) -> &Seat {
        let Ground::Spin(spin) = self.riders[&rider].ground else {
            unreachable!("seats are on spins")
        };
        let mut seats = self.spins[&spin].heads[head].seats.iter();
        seats.find(|seat| seat.who == Who::Rider(rider)).expect("who shares a head has a seat")
    }

    fn index_of(&self, rider: RiderId) -> Index {
        match self.riders[&rider].ground {
            Ground::Image(index) => index,
            Ground::Spin(spin) => self.spins[&spin].index.unwrap_or_default(),
            Ground::Platform => Index::default(),
        }
    }

    fn send(&mut self, rider: RiderId, head: usize, slab: Held) {
        if let Some(found) = self.riders.get_mut(&rider) {
            found.active_ns = self.now;
        }
        self.effects.push_back(Effect::Send { rider, head, slab });
    }

    /// Asks a scan for its next slab; a new one where there is none.
    fn scan(
        &mut self,
        open: Option<ScanId>,
        source: Source,
        head: usize,
        reader: Reader,
        at: Place,
    ) -> ScanId {
        let scan = open.unwrap_or(ScanId(self.scans_begun));
        if open.is_none() {
            self.scans_begun += 1;
            let fresh = Scanning { source, head, reader, is_busy: false, is_stopped: false };
            self.scans.insert(scan, fresh);
        }
        let found = self.scans.get_mut(&scan).expect("a scan is known until it is stopped");
        assert!(!found.is_busy && !found.is_stopped, "one slab of a scan is under way at a time");
        assert_eq!((found.source, found.head), (source, head), "a scan reads one thing");
        found.is_busy = true;
        if let Source::Snapshot(spin) = source {
            self.spins.get_mut(&spin).expect("a snapshot that is read is open").under_way += 1;
        }
        let at = open.is_none().then_some(at);
        self.effects.push_back(Effect::Scan { scan, source, head, at, reader });
        scan
    }

    /// A scan has answered. None if nobody waits for that any more.
    fn answered(&mut self, scan: ScanId) -> Option<Scanning> {
        let found = self.scans.get_mut(&scan).expect("the driver answers what it was asked");
        assert!(std::mem::take(&mut found.is_busy), "a scan answers once");
        let found = found.clone();
        if let Source::Snapshot(spin) = found.source {
            let open = self.spins.get_mut(&spin).expect("a snapshot that is read is open");
            open.under_way -= 1;
            self.stir.spins.insert(spin);
        }
        if found.is_stopped {
            self.forget_scan(scan, found.source);
            return None;
        }
        Some(found)
    }

    fn stop(&mut self, scan: ScanId) {
        self.effects.push_back(Effect::Stop { scan });
        let found = self.scans.get_mut(&scan).expect("a scan is stopped once");
        found.is_stopped = true;
        if !found.is_busy {
            let source = found.source;
            self.forget_scan(scan, source);
        }
    }

    fn forget_scan(&mut self, scan: ScanId, source: Source) {
        self.scans.remove(&scan);
        if let Source::Image(image) = source {
            self.stir.images.insert(image);
        }
    }
}
