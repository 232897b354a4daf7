//! What the layers share.

use holdfast_base::{Error, Result};
use holdfast_env::{Rng, SeededRng};
use holdfast_sim::powercut::{self, CutPlan, Layer};
use holdfast_sim::{SimDisk, SimDiskOptions};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

/// An `Err` is a broken promise.
pub type Outcome<T> = std::result::Result<T, String>;

/// `None` when the call failed because the power is off: the life ends, nothing is broken.
pub fn unless_cut<T>(disk: &SimDisk, what: &str, result: Result<T>) -> Outcome<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(_) if disk.crashed() => Ok(None),
        Err(e) => Err(format!("{what}: {}", e.message)),
    }
}

/// Unwraps a call's result; ends the life where the power went away.
macro_rules! powered {
    ($disk:expr, $what:expr, $result:expr) => {
        match crate::common::unless_cut($disk, $what, $result)? {
            Some(value) => value,
            None => return Ok(()),
        }
    };
}
pub(crate) use powered;

/// A callback and where its answer will be.
pub struct Answer<T>(Arc<Mutex<Option<Result<T>>>>);

impl<T: Send + 'static> Answer<T> {
    #[expect(clippy::type_complexity, reason = "a callback and its answer")]
    pub fn new() -> (Answer<T>, Box<dyn FnOnce(Result<T>) + Send>) {
        let slot = Arc::new(Mutex::new(None));
        let answer = Answer(slot.clone());
        (answer, Box::new(move |result| *slot.lock().unwrap() = Some(result)))
    }

    /// The answer, once.
    pub fn take(&self) -> Option<Result<T>> {
        self.0.lock().unwrap().take()
    }

    /// The answer that must have come by now.
    pub fn get(&self) -> Result<T> {
        self.take().unwrap_or_else(|| Err(Error::bug("the callback was not called")))
    }
}

/// A number below `end`.
pub fn below(rng: &SeededRng, end: u64) -> u64 {
    rng.next_u64() % end
}

/// Bytes that a seed decides.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    holdfast_base::random::bytes(seed, len)
}

/// A disk whose failing syncs lose the file's length as well, for every other seed.
pub fn failing_disk(seed: u64) -> SimDisk {
    let volatile_lengths = seed.is_multiple_of(2);
    SimDisk::with_options(seed, SimDiskOptions { volatile_lengths, ..SimDiskOptions::default() })
}

/// `check` failed: a promise is broken.
pub fn ensure(holds: bool, broken: impl FnOnce() -> String) -> Outcome<()> {
    if holds { Ok(()) } else { Err(broken()) }
}

/// Leaves each sync site whose name begins with `family` out in turn, and panics about those that
/// are not missed.
pub fn prove_sites<L: Layer>(layer: &L, family: &str, plans: &[CutPlan]) {
    prove_sites_but(layer, family, plans, &[]);
}

/// As [`prove_sites`], but for sites that these plans are not known to miss.
pub fn prove_sites_but<L: Layer>(layer: &L, family: &str, plans: &[CutPlan], unproved: &[&str]) {
    let mut sites = BTreeSet::new();
    for plan in plans {
        sites.extend(powercut::sites(layer, *plan).unwrap());
    }
    sites.retain(|site| site.starts_with(family) && !unproved.contains(site));
    assert!(!sites.is_empty(), "no sync of {family} was called");
    let mut idle = Vec::new();
    for site in sites {
        match powercut::prove_site(layer, plans, site) {
            Some(broken) => println!("{site}: without it, {broken}"),
            None => idle.push(site),
        }
    }
    assert!(idle.is_empty(), "nothing is lost without the syncs at {idle:?}: why are they there?");
}
