//! One tablet as a node has it: its view, and around that what its region decides. Carries out the
//! region's effects in their order: what it appends, and whom it answers.

use crate::message::{Answer, Request};
use crate::region::{Effect, Region, Settings};
use crate::view::TabletView;
use holdfast_base::ids::Index;
use holdfast_base::{Error, Result};
use holdfast_env::{HoldMutex, planted};
use holdfast_log::{Done, Mode};
use holdfast_view::{Fold, Request as Proposal};
use holdfast_wire::Call;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

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
    fold: Arc<Fold<TabletView>>,
    hand: Mutex<Hand>,
    waiting: Mutex<BTreeMap<u64, Done<Answer>>>,
    clients: AtomicU64,
    /// Why the last append failed; none once another one came through.
    failure: Mutex<Option<Error>>,
}

impl OpenTablet {
    pub fn new(fold: Arc<Fold<TabletView>>) -> Arc<OpenTablet> {
        Arc::new(OpenTablet {
            fold,
            hand: Mutex::new(Hand::Free),
            waiting: Mutex::default(),
            clients: AtomicU64::new(0),
            failure: Mutex::default(),
        })
    }

    pub fn fold(&self) -> &Arc<Fold<TabletView>> {
        &self.fold
    }

    /// From here on its region decides on this node, if there is a tablet yet.
    pub fn decide(self: &Arc<Self>, settings: Settings) -> Result<bool> {
        let decides = self.fold.read(|view, _| view.decide(settings))?;
        self.carry_out();
        Ok(decides)
    }

    /// Asks for one record; `done` is called once, on any thread.
    pub fn ask(self: &Arc<Self>, request: Request, done: Done<Answer>) {
        let client = self.clients.fetch_add(1, Ordering::Relaxed);
        self.waiting.held().insert(client, done);
        let asked = self.with_region(|region| region.ask(client, request));
        match asked {
            Ok(()) => self.carry_out(),
            Err(e) => self.tell(client, Err(e)),
        }
    }

    /// Time passes.
    pub fn tick(self: &Arc<OpenTablet>) {
        // One that has stopped says so where it is asked.
        if self.with_region(Region::tick).is_ok() {
            self.carry_out();
        }
    }

    fn with_region<R>(&self, with: impl FnOnce(&mut Region) -> R) -> Result<R> {
        let with = self.fold.read(|view, _| view.with_region(with))?;
        with.ok_or_else(|| Error::retry("ask a tablet: this node does not decide for it yet"))
    }

    /// Carries out what there is, in order: entries in another order than they were decided in would
    /// follow on nothing.
    fn carry_out(self: &Arc<Self>) {
        {
            let mut hand = self.hand.held();
            if *hand != Hand::Free && !planted!("table.effects-by-anyone") {
                *hand = Hand::Again;
                return;
            }
            *hand = Hand::Busy;
        }
        loop {
            while let Ok(effects) = self.with_region(Region::effects)
                && !effects.is_empty()
            {
                self.carry_out_these(effects);
            }
            let mut hand = self.hand.held();
            if *hand == Hand::Busy {
                *hand = Hand::Free;
                return;
            }
            *hand = Hand::Busy;
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
                Effect::Send { to, message } => {
                    unreachable!("a table has one region, and {message:?} is for {to}")
                }
            }
        }
        if !appends.is_empty() {
            let mode =
                if planted!("table.acknowledged-unsynced") { Mode::Ordered } else { Mode::Synced };
            self.fold.propose_all(appends, mode);
        }
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
