//! A cache beside each region, as unkind as one can be: it has of each key all values that any reader may have stored
//! since the key was dropped last. Whoever follows the region's steps drops keys now and then; behind that, nothing is
//! cached but what shows. It outlives the region, which it knows by its place alone.

use super::world::World;
use crate::ids::{Key, LogId, StreamId, Value};
use crate::record::Record;
use crate::tablet::{Shown, Tablet};
use holdfast_base::random::Random;
use holdfast_env::sometimes;
use std::collections::{BTreeMap, BTreeSet};

/// Steps that are asked for at once.
const STEPS: u64 = 4;

/// Where the follower of a region is.
struct Place {
    /// Which start of the region knows `next`.
    start: u64,
    /// Whose places these are.
    log: LogId,
    next: u64,
    seen: Vec<(StreamId, Shown)>,
}

/// A version of a record, and its value; of one that is not there one that it may have had.
type Version = (u64, Option<Value>);

fn version(tablet: &Tablet, key: &[u8]) -> Version {
    let of = |record: &Record| (record.version, record.value.clone());
    tablet.record(key).map_or((tablet.floor(), None), of)
}

#[derive(Default)]
struct Cache {
    place: Option<Place>,
    /// The start that was looked at last, and how far the region showed then.
    looked: (u64, Vec<(StreamId, Shown)>),
    /// How far those before showed, since all was dropped.
    showed: BTreeMap<StreamId, u64>,
    stored: BTreeMap<Key, BTreeSet<Version>>,
}

impl Cache {
    /// Readers store what shows.
    fn fill(&mut self, tablet: &Tablet, start: u64) {
        let shown = tablet.form().streams().map(|id| (id, tablet.shown(id)));
        let looked = (start, shown.collect());
        let before = std::mem::replace(&mut self.looked, looked);
        if before.0 != start {
            for (stream, then) in before.1 {
                let showed = self.showed.entry(stream).or_default();
                *showed = then.place.number.max(*showed);
            }
        }
        for key in tablet.records().keys() {
            self.stored.entry(key.clone()).or_default();
        }
        for (key, stored) in &mut self.stored {
            stored.insert(version(tablet, key));
        }
    }

    fn drop_key(&mut self, key: &[u8]) {
        if let Some(stored) = self.stored.get_mut(key) {
            stored.clear();
        }
    }

    fn drop_all(&mut self, tablet: &Tablet, start: u64) {
        sometimes!("a cache was emptied");
        self.stored.values_mut().for_each(BTreeSet::clear);
        self.showed = BTreeMap::new();
        let now = tablet.changes_now();
        self.place = Some(Place { start, log: tablet.log(), next: now.next, seen: now.seen });
    }

    /// Takes steps, in as many parts as are wanted; false if there are more.
    fn follow(&mut self, tablet: &Tablet, start: u64, count: usize, parts: u64) -> bool {
        let Some(place) = &self.place else {
            self.drop_all(tablet, start);
            return true;
        };
        let first = match place.start == start {
            true => Some(place.next),
            false if place.log != tablet.log() => None,
            false => tablet.changes_resume(&place.seen),
        };
        let is_resumed = place.start != start;
        let mut next = first;
        for _ in 0..parts {
            let steps = next.and_then(|next| tablet.changes_behind(next, count, 1000));
            let Some(steps) = steps else {
                self.drop_all(tablet, start);
                return true;
            };
            if is_resumed {
                sometimes!("a cache outlived its region's start");
            }
            steps.changes.iter().for_each(|change| self.drop_key(&change.key));
            let log = tablet.log();
            self.place = Some(Place { start, log, next: steps.at.next, seen: steps.at.seen });
            next = Some(steps.at.next);
            if !steps.is_cut {
                return true;
            }
        }
        sometimes!("a cache was told a part");
        false
    }

    /// What is cached, and does not show, nor will.
    fn stale(&self, tablet: &Tablet) -> Option<String> {
        let shows_less =
            self.showed.iter().any(|(id, then)| tablet.shown(*id).place.number < *then);
        let is_stale = |(key, stored): &(&Key, &BTreeSet<Version>)| {
            let now = version(tablet, key);
            let same = |stored: &Version| *stored == now || (stored.1.is_none() && now.1.is_none());
            let at = tablet.record(key).map_or(0, |record| record.version);
            stored.iter().any(|stored| !(same(stored) || shows_less && stored.0 > at))
        };
        let (key, stored) = self.stored.iter().find(is_stale)?;
        Some(format!("{key:?} is cached as {stored:?}, and shows as {:?}", version(tablet, key)))
    }
}

/// The caches of all regions.
pub struct Caches {
    random: Random,
    caches: Vec<Cache>,
}

impl Caches {
    pub fn new(seed: u64, regions: u8) -> Caches {
        let caches = (0..regions).map(|_| Cache::default()).collect();
        Caches { random: Random::new(seed), caches }
    }

    /// Something has happened in a region; says what is wrong, if something is.
    pub fn look(&mut self, world: &World, at: usize) -> Result<(), String> {
        let Some(region) = world.region(at) else { return Ok(()) };
        let (tablet, cache) = (region.tablet(), &mut self.caches[at]);
        cache.fill(tablet, world.starts(at));
        if self.random.below(4) == 0 {
            let count = 1 + self.random.below(STEPS) as usize;
            let parts = if self.random.below(2) == 0 { 1 } else { u64::MAX };
            let is_told = cache.follow(tablet, world.starts(at), count, parts);
            if let Some(stale) = cache.stale(tablet).filter(|_| is_told) {
                return Err(format!("a cache beside region {at} is stale: {stale}"));
            }
        }
        Ok(())
    }
}
