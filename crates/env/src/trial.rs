//! What a test changes in the code that it runs, and what that code tells it: internal limits drawn
//! small ([`Knob`]), bugs planted at named points ([`planted!`]), and things that happened
//! ([`sometimes!`]). Only builds with debug assertions ask any of it: in a release build a knob is
//! its usual value and a planted bug is `false`, decided by the compiler.
//!
//! A trial belongs to the thread that entered it and to all threads that are spawned from there by
//! [`crate::tasks::spawn`], so that tests beside it, in the same process, see nothing of it.

use crate::locks::HoldMutex;
use crate::rng::{Rng, SeededRng};
use holdfast_base::checksum::crc32c;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// Environment variable that plants one bug in a whole process, whatever trial it runs.
pub const PLANTED: &str = "HOLDFAST_PLANTED";

/// An internal size that makes a border in a structure: entries a block, slots a table, commits a
/// segment. A property that holds for five blocks of four entries should hold for five of 512, and
/// is far more often put to the test there.
#[derive(Debug)]
pub struct Knob {
    name: &'static str,
    usual: u64,
    small: &'static [u64],
}

impl Knob {
    /// A limit that is `usual` in every real process, and one of `small` in trials that draw it.
    pub const fn new(name: &'static str, usual: u64, small: &'static [u64]) -> Knob {
        assert!(!small.is_empty(), "a knob has values to draw");
        Knob { name, usual, small }
    }

    pub const fn usual(&self) -> u64 {
        self.usual
    }

    pub fn name(&self) -> &'static str {
        self.name
    }

    #[inline]
    pub fn get(&self) -> u64 {
        if cfg!(debug_assertions) { self.drawn() } else { self.usual }
    }

    #[inline]
    pub fn size(&self) -> usize {
        self.get() as usize
    }

    fn drawn(&self) -> u64 {
        let Some(trial) = current() else { return self.usual };
        let mut state = trial.state();
        let seed = trial.seed;
        let knob = state.knobs.entry(self.name).or_insert_with(|| Drawn {
            value: trial.set.get(self.name).copied().unwrap_or_else(|| self.draw(seed)),
            usual: self.usual,
            crossed: false,
        });
        knob.value
    }

    /// One of `small` for two of three seeds.
    fn draw(&self, seed: Option<u64>) -> u64 {
        let Some(seed) = seed else { return self.usual };
        let mixed = seed ^ u64::from(crc32c(self.name.as_bytes())) << 32;
        let drawn = SeededRng::new(mixed).next_u64();
        match drawn % 3 {
            0 => self.usual,
            _ => self.small[(drawn / 3 % self.small.len() as u64) as usize],
        }
    }

    /// Says that the border that this size makes was crossed: a block split, a window filled.
    #[inline]
    pub fn cross(&self) {
        if cfg!(debug_assertions)
            && let Some(trial) = current()
        {
            self.get();
            if let Some(knob) = trial.state().knobs.get_mut(self.name) {
                knob.crossed = true;
            }
        }
    }
}

/// What a test asks for; [`Trial::enter`] puts it into force.
#[derive(Debug, Default)]
pub struct Trial {
    seed: Option<u64>,
    set: BTreeMap<&'static str, u64>,
    planted: BTreeSet<String>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    knobs: BTreeMap<&'static str, Drawn>,
    happened: BTreeMap<&'static str, u64>,
    reached: BTreeSet<String>,
}

/// A knob that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drawn {
    pub value: u64,
    pub usual: u64,
    pub crossed: bool,
}

impl Trial {
    /// Every knob has its usual value.
    pub fn new() -> Trial {
        Trial::default()
    }

    /// The seed draws every knob, by its name: usual, or one of its small values.
    pub fn drawn(seed: u64) -> Trial {
        Trial { seed: Some(seed), ..Trial::default() }
    }

    /// This knob has this value.
    pub fn with(mut self, knob: &Knob, value: u64) -> Trial {
        self.set.insert(knob.name, value);
        self
    }

    /// This bug is in the code.
    pub fn planting(mut self, bug: &str) -> Trial {
        self.planted.insert(bug.to_owned());
        self
    }

    /// Puts it into force for this thread, and those that it spawns, until the answer is dropped.
    pub fn enter(self) -> Entered {
        let trial = Arc::new(self);
        let before = TRIAL.replace(Some(trial.clone()));
        Entered { trial, before }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.held()
    }
}

thread_local! {
    static TRIAL: RefCell<Option<Arc<Trial>>> = const { RefCell::new(None) };
}

/// A trial in force. Dropping it restores what was before.
#[derive(Debug)]
pub struct Entered {
    trial: Arc<Trial>,
    before: Option<Arc<Trial>>,
}

impl Entered {
    /// Every knob that was asked for so far.
    pub fn knobs(&self) -> BTreeMap<&'static str, Drawn> {
        self.trial.state().knobs.clone()
    }

    /// How often each thing that [`sometimes!`] names has happened.
    pub fn happened(&self) -> BTreeMap<&'static str, u64> {
        self.trial.state().happened.clone()
    }

    /// Whether the code came by the point where this bug is planted.
    pub fn reached(&self, bug: &str) -> bool {
        self.trial.state().reached.contains(bug)
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        TRIAL.set(self.before.take());
    }
}

fn current() -> Option<Arc<Trial>> {
    // A thread that ends has no trial any more.
    TRIAL.try_with(|trial| trial.borrow().clone()).ok().flatten()
}

/// The trial of this thread, for one that it spawns.
pub(crate) fn inherited() -> Option<Arc<Trial>> {
    if cfg!(debug_assertions) { current() } else { None }
}

/// Puts what [`inherited`] told into force, for as long as this thread lives.
pub(crate) fn inherit(trial: Option<Arc<Trial>>) {
    if trial.is_some() {
        TRIAL.set(trial);
    }
}

/// Whether a bug is planted here: see [`planted!`].
pub fn is_planted(bug: &str) -> bool {
    static EVERYWHERE: OnceLock<Option<String>> = OnceLock::new();
    let everywhere = EVERYWHERE.get_or_init(|| std::env::var(PLANTED).ok());
    if everywhere.as_deref() == Some(bug) {
        static TOLD: OnceLock<()> = OnceLock::new();
        // So that whoever runs the catalogue tells a bug that is not caught from one not reached.
        TOLD.get_or_init(|| eprintln!("planted bug `{bug}`: reached"));
        return true;
    }
    let Some(trial) = current() else { return false };
    let planted = trial.planted.contains(bug);
    if planted {
        trial.state().reached.insert(bug.to_owned());
    }
    planted
}

/// Takes note that something happened: see [`sometimes!`].
pub fn note(what: &'static str) {
    if let Some(trial) = current() {
        *trial.state().happened.entry(what).or_default() += 1;
    }
}

/// Whether a test has planted the bug of this name here; `false`, at no cost, in release builds.
/// The catalogue of planted bugs says what each does and which test must notice.
#[macro_export]
macro_rules! planted {
    ($bug:literal) => {
        cfg!(debug_assertions) && $crate::trial::is_planted($bug)
    };
}

/// Says that something rare happened, for trials that fail when it never does.
#[macro_export]
macro_rules! sometimes {
    ($what:literal) => {
        if cfg!(debug_assertions) {
            $crate::trial::note($what)
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    static BLOCK: Knob = Knob::new("test.block", 512, &[2, 3]);

    #[test]
    fn a_knob_is_usual_but_in_trials_that_draw_or_set_it() {
        assert_eq!(BLOCK.get(), 512);
        {
            let entered = Trial::new().with(&BLOCK, 7).enter();
            assert_eq!(BLOCK.get(), 7);
            BLOCK.cross();
            let drawn = Drawn { value: 7, usual: 512, crossed: true };
            assert_eq!(entered.knobs().get("test.block"), Some(&drawn));
        }
        assert_eq!(BLOCK.get(), 512);
        let values: BTreeSet<u64> = (0..64)
            .map(|seed| {
                let _entered = Trial::drawn(seed).enter();
                assert_eq!(BLOCK.get(), BLOCK.get());
                BLOCK.get()
            })
            .collect();
        assert_eq!(values, BTreeSet::from([2, 3, 512]));
    }

    #[test]
    fn a_bug_is_planted_in_a_trial_and_in_the_threads_that_it_spawns() {
        assert!(!planted!("test.bug"));
        let entered = Trial::new().planting("test.bug").enter();
        let inside = crate::tasks::spawn("trial", || {
            assert!(planted!("test.bug") && !planted!("test.other"));
            sometimes!("a thread took part");
        });
        inside.unwrap().join();
        assert_eq!(entered.happened().get("a thread took part"), Some(&1));
        assert!(entered.reached("test.bug") && !entered.reached("test.other"));
        drop(entered);
        assert!(!planted!("test.bug"));
    }
}
