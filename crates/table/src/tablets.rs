//! One tablet as a node has it: its view, and around that what its region decides. Carries out the
//! region's effects in their order: what it appends, whom it answers, what it says to other regions.

use crate::entry::{Asked, Entry};
use crate::face::changes::Watchers;
use crate::ids::{LogId, RegionId, StreamId};
use crate::message::{Answer, Message, Request};
use crate::name::TableName;
use crate::region::{Effect, Region, Sealing, Settings};
use crate::regions::Regions;
use crate::tablet::Tablet;
use crate::tablet::span::Half;
use crate::view::{Made, TabletView};
use holdfast_base::codec::Encode;
use holdfast_base::ids::Index;
use holdfast_base::random::mix;
use holdfast_base::{Error, Kind, Result};
use holdfast_env::{HoldMutex, planted};
use holdfast_log::{Done, Mode};
use holdfast_view::{Fold, Request as Proposal};
use holdfast_wire::Call;
use holdfast_wire::table::Told;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// Told an entry's index and result.
type Proposed = Done<(Index, Vec<u8>)>;

/// Who carries out effects. Another thread that has some leaves them to it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hand {
    Free,
    Busy,
    /// There may be more than it has seen.
    Again,
}

/// A tablet of this node.
pub struct OpenTablet {
    /// Its table, and which of its tablets it is.
    name: (TableName, u16),
    fold: Arc<Fold<TabletView>>,
    regions: Arc<Regions>,
    watchers: Arc<Watchers>,
    /// Drawn: what has shown has numbers of this one's alone.
    life: u64,
    /// As its region decides, where this node is to have one.
    settings: OnceLock<Settings>,
    /// An entry is on its way that says which start of the region this is.
    starting: AtomicBool,
    /// Of what it was made as: see [`OpenTablet::form`].
    form: Mutex<Option<u32>>,
    hand: Mutex<Hand>,
    /// Held by who carries out effects.
    carrying: Mutex<()>,
    waiting: Mutex<BTreeMap<u64, Done<Answer>>>,
    clients: AtomicU64,
    /// Why the last append failed; none once another one came through.
    failure: Mutex<Option<Error>>,
    /// What had shown when those who wait for it were told last: see [`Tablet::changes_mark`].
    told: AtomicU64,
}

impl OpenTablet {
    pub fn new(
        name: (TableName, u16),
        fold: Arc<Fold<TabletView>>,
        regions: Arc<Regions>,
        watchers: Arc<Watchers>,
        life: u64,
    ) -> Arc<OpenTablet> {
        Arc::new(OpenTablet {
            name,
            fold,
            regions,
            watchers,
            life,
            settings: OnceLock::new(),
            starting: AtomicBool::new(false),
            form: Mutex::default(),
            hand: Mutex::new(Hand::Free),
            carrying: Mutex::default(),
            waiting: Mutex::default(),
            clients: AtomicU64::new(0),
            failure: Mutex::default(),
            told: AtomicU64::new(0),
        })
    }

    pub fn fold(&self) -> &Arc<Fold<TabletView>> {
        &self.fold
    }

    /// Of the steps by which it shows what it shows: another one in each process, and where a tablet is made in the
    /// place of one that was dropped.
    pub fn life(&self, tablet: &Tablet) -> u64 {
        mix(self.life.wrapping_add(tablet.made_at()))
    }

    /// From here on its region decides on this node, once there is a tablet. One of several regions begins by an
    /// entry: see [`TabletView::decide`].
    pub fn decide(self: &Arc<Self>, settings: Settings) -> Result<()> {
        let settings = *self.settings.get_or_init(|| settings);
        let others = |made: Made| made.form.members.len() > 1;
        match self.fold.read(|view, _| view.made())?.is_some_and(others) {
            true => self.begin(settings),
            false => {
                self.fold.read(|view, _| view.decide(settings, None))?;
                self.carry_out();
            }
        }
        Ok(())
    }

    fn begin(self: &Arc<Self>, settings: Settings) {
        if self.starting.swap(true, Ordering::AcqRel) {
            return;
        }
        // It says nothing but that it is there: its index is the start's number.
        let stream = StreamId::of(self.regions.own());
        let entry = Entry::Checked { stream, epoch: stream.first_epoch() }.to_bytes();
        let tablet = self.clone();
        let done = move |result: Result<(Index, Vec<u8>)>| {
            match result {
                Ok((index, _)) => {
                    // A fold that has stopped says so to whoever asks.
                    let _ = tablet.fold.read(|view, _| view.decide(settings, Some(index)));
                }
                Err(e) => *tablet.failure.held() = Some(e),
            }
            tablet.starting.store(false, Ordering::Release);
            tablet.carry_out();
        };
        let entry = Proposal::of(Call::default(), entry, Mode::Synced);
        self.fold.propose_all(vec![(entry, Box::new(done))], Mode::Synced);
    }

    /// A message of another region, from its log, for a tablet that was made so.
    pub fn arrived(self: &Arc<Self>, from: RegionId, told: &Told, message: Message) {
        if self.form() == Some(told.form)
            && self.with_region(|region| region.arrived(from, LogId(told.log), message)).is_ok()
        {
            self.carry_out();
        }
    }

    /// How long ago its region has heard another one; nothing where it does not decide here, or never has.
    pub fn heard_ticks(&self, region: RegionId) -> Option<u32> {
        let heard = self.fold.read_last(|view| view.with_region(|own| own.heard_ticks(region)));
        heard.flatten()
    }

    /// What it was made as, the same in all its regions; each message has it, and it stays until it is dropped.
    fn form(&self) -> Option<u32> {
        let mut form = self.form.held();
        if form.is_none() {
            *form = self.fold.read_last(|view| view.made()).map(|made| made.checksum());
        }
        *form
    }

    /// It was dropped, or made again: nothing of the tablet before goes on. Whoever waits for that one hears so, and
    /// what it was about to append is appended before this returns, so in front of what is made next.
    pub fn begins_anew(&self) {
        drop(self.carrying.held());
        (*self.form.held(), *self.failure.held()) = (None, None);
        self.tell_all(&self.was_dropped());
        self.watchers.look(self.name.0.as_str());
    }

    fn was_dropped(&self) -> Error {
        Error::not_found(format!("use table `{}`: it was dropped meanwhile", self.name.0))
    }

    fn tell_all(&self, why: &Error) {
        let waiting = std::mem::take(&mut *self.waiting.held());
        waiting.into_values().for_each(|done| done(Err(why.clone())));
    }

    /// No region decides here: the fold has stopped, or the tablet was dropped by an entry of which nobody was told what
    /// it came to. Whoever waits would wait for ever. What was asked may be in the log all the same.
    fn nobody_decides(&self, why: Error) {
        let is_dropped = self.fold.read(|view, _| view.was_dropped()) == Ok(true);
        let why = match why.kind {
            _ if is_dropped => self.was_dropped(),
            Kind::Full => Error::retry(why.message),
            _ => why,
        };
        if !planted!("table.stopped-without-answers") {
            self.tell_all(&why);
        }
    }

    /// What this tablet was made as before it was dropped, if a message is of that one.
    pub fn dropped_as(&self, told: &Told) -> Option<Made> {
        match self.form() == Some(told.form) {
            true => None,
            false => self.fold.read_last(|view| view.dropped_as(told.form)),
        }
    }

    /// Asks for one record; `done` is called once, on any thread.
    pub fn ask(self: &Arc<Self>, request: Request, done: Done<Answer>) {
        self.begin_to_wait(done, |region, client| region.ask(client, request));
    }

    /// Whether it is known here what came of a request that has a number.
    pub fn knows(&self, asked: Option<Asked>) -> bool {
        let knows = |tablet: &Tablet| asked.is_some_and(|asked| tablet.sessions().knows(asked));
        self.fold.read_last(|view| view.look(knows)).unwrap_or(false)
    }

    /// See [`Region::split`]; as [`OpenTablet::ask`].
    pub fn split(self: &Arc<Self>, half: Half, done: Done<Answer>) {
        self.begin_to_wait(done, |region, client| region.split(client, half));
    }

    /// See [`Region::hand_over`]; as [`OpenTablet::ask`].
    pub fn hand_over(self: &Arc<Self>, child: u16, done: Done<Answer>) {
        self.begin_to_wait(done, |region, client| region.hand_over(client, child));
    }

    fn begin_to_wait(self: &Arc<Self>, done: Done<Answer>, ask: impl FnOnce(&mut Region, u64)) {
        let client = self.clients.fetch_add(1, Ordering::Relaxed);
        self.waiting.held().insert(client, done);
        let asked = self.with_region(|region| ask(region, client));
        match asked {
            Ok(()) => self.carry_out(),
            Err(e) => self.tell(client, Err(e)),
        }
    }

    /// See [`Region::seal`].
    pub fn seal(self: &Arc<Self>, lost: RegionId) -> Result<Sealing> {
        let sealing = self.with_region(|region| region.seal(lost))?;
        self.carry_out();
        sealing.map_err(|e| match e.kind {
            // It is not written down where the log takes nothing.
            Kind::Retry => self.retry(&e.message),
            _ => e,
        })
    }

    /// The region that an operator has called lost, if nothing was heard of it since.
    pub fn lost(&self) -> Option<RegionId> {
        self.fold.read_last(|view| view.look(Tablet::lost)).flatten()
    }

    /// Time passes.
    pub fn tick(self: &Arc<OpenTablet>) {
        let ticked = self.with_region(Region::tick);
        self.carry_out();
        if let (Err(_), Some(settings)) = (ticked, self.settings.get()) {
            // The entry that it was to begin with did not come through; or it has stopped, and says so where it is asked.
            let _ = self.decide(*settings);
        }
    }

    fn with_region<R>(&self, with: impl FnOnce(&mut Region) -> R) -> Result<R> {
        let with = self.fold.read(|view, _| view.with_region(with))?;
        with.ok_or_else(|| self.retry("ask a tablet: this node does not decide for it yet"))
    }

    /// Carries out what there is, in order: entries in another order than they were decided in would
    /// follow on nothing.
    fn carry_out(self: &Arc<Self>) {
        let anyone = planted!("table.effects-by-anyone");
        {
            let mut hand = self.hand.held();
            if *hand != Hand::Free && !anyone {
                *hand = Hand::Again;
                return;
            }
            *hand = Hand::Busy;
        }
        let carries = (!anyone).then(|| self.carrying.held());
        loop {
            loop {
                match self.with_region(Region::effects) {
                    Ok(effects) if effects.is_empty() => break,
                    // Another thread that has what was decided later is in front of this one.
                    Ok(effects) if anyone => {
                        std::thread::yield_now();
                        self.carry_out_these(effects);
                    }
                    Ok(effects) => self.carry_out_these(effects),
                    Err(e) => break self.nobody_decides(e),
                }
            }
            let mut hand = self.hand.held();
            if *hand == Hand::Busy {
                *hand = Hand::Free;
                break;
            }
            *hand = Hand::Busy;
        }
        drop(carries);
        self.tell_watchers();
    }

    /// Who follows the table is told where more shows than when they were told last, or nothing will.
    fn tell_watchers(&self) {
        if !self.watchers.are_there() {
            return;
        }
        let mark = self.fold.read(|view, _| view.look(Tablet::changes_mark));
        let is_news = match mark {
            Ok(Some(mark)) => self.told.swap(mark, Ordering::SeqCst) != mark,
            Ok(None) | Err(_) => true,
        };
        if is_news {
            self.watchers.look(self.name.0.as_str());
        }
    }

    fn carry_out_these(self: &Arc<Self>, effects: Vec<Effect>) {
        let mut appends: Vec<(Proposal, Proposed)> = Vec::new();
        for effect in effects {
            match effect {
                Effect::Append(entry) => {
                    let proposal = Proposal::of(Call::default(), entry, Mode::Synced);
                    let tablet = self.clone();
                    let done = move |result: Result<(Index, Vec<u8>)>| tablet.appended(result);
                    appends.push((proposal, Box::new(done)));
                }
                Effect::Answer { client, answer } => {
                    let answer = match answer {
                        Answer::Retry(why) => Err(self.retry(why)),
                        answer => Ok(answer),
                    };
                    self.tell(client, answer);
                }
                Effect::Send { to, message } => self.send(to, &message),
            }
        }
        if !appends.is_empty() {
            let mode =
                if planted!("table.acknowledged-unsynced") { Mode::Ordered } else { Mode::Synced };
            self.fold.propose_all(appends, mode);
        }
    }

    fn send(&self, to: RegionId, message: &Message) {
        // One after the other: who reads within a read waits for ever behind a writer between them.
        let (log, form) = (self.fold.read_last(TabletView::log), self.form());
        let (Some(log), Some(form)) = (log, form) else { return };
        let (table, tablet) = (self.name.0.to_string(), self.name.1);
        let told = Told { table, tablet, form, log: log.0, message: message.to_bytes() };
        self.regions.tell(to, told.to_bytes());
    }

    fn appended(self: &Arc<Self>, result: Result<(Index, Vec<u8>)>) {
        match result {
            Ok(_) => *self.failure.held() = None,
            Err(e) => {
                *self.failure.held() = Some(e);
                // A fold that has stopped answers whoever asks.
                if !planted!("table.failed-append-ignored") {
                    let _ = self.with_region(Region::append_failed);
                }
            }
        }
        self.carry_out();
    }

    /// Why a request came to nothing: what failed, if something did.
    fn retry(&self, why: &str) -> Error {
        match &*self.failure.held() {
            Some(e) => e.clone(),
            None => Error::retry(why),
        }
    }

    fn tell(&self, client: u64, answer: Result<Answer>) {
        let done = self.waiting.held().remove(&client);
        if let Some(done) = done {
            done(answer);
        }
    }
}
