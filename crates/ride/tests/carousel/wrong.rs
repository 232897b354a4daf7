//! Scans that do not make what they made before end the rides that depend on them, and leave the
//! carousel as it was: it may be the engine's disk, or a mistake in the cutting of slabs.

use crate::stories::{MS, NOW, limits};
use crate::view::HEAD;
use holdfast_base::ids::Index;
use holdfast_base::{Error, Kind};
use holdfast_ride::carousel::{
    Boarding, Carousel, Effect, Reader, RiderId, ScanId, Slab, Span, Ticket,
};
use std::collections::BTreeMap;

const ALL: Span = Span { low: 0, high: HEAD };

/// A driver that makes what it is told to make.
struct Driver {
    core: Carousel,
    now: u64,
    scans: BTreeMap<Reader, ScanId>,
    ended: BTreeMap<RiderId, Option<Error>>,
    moved: usize,
}

impl Driver {
    fn new() -> Driver {
        let core = Carousel::new(limits(), vec![ALL]);
        let (scans, ended) = (BTreeMap::new(), BTreeMap::new());
        Driver { core, now: 0, scans, ended, moved: 0 }
    }

    fn join(&mut self, rider: u64, ticket: Ticket) {
        self.core.join(self.now, RiderId(rider), Boarding { span: ALL, ticket });
        self.look();
    }

    fn look(&mut self) {
        while let Some(effect) = self.core.next_effect() {
            match effect {
                Effect::Open { spin, .. } => self.core.opened(self.now, spin, Ok(Index(1))),
                Effect::Scan { scan, reader, .. } => {
                    self.scans.insert(reader, scan);
                }
                Effect::End { rider, result } => {
                    self.ended.insert(rider, result.err());
                }
                Effect::Moved { .. } => self.moved += 1,
                _ => {}
            }
        }
    }

    fn made(&mut self, reader: Reader, number: u64, joinable: bool, last: bool) {
        let scan = self.scans.remove(&reader).expect("a slab is under way");
        let slab = Slab { number, bytes: 10, joinable, first: vec![number as u8], last };
        self.core.made(self.now, scan, slab);
        self.look();
    }

    fn pull(&mut self, rider: u64) {
        self.core.pull(self.now, RiderId(rider), 0);
        self.look();
    }

    /// How a ride that ended badly did.
    fn kind(&self, rider: u64) -> Option<Kind> {
        self.ended.get(&RiderId(rider))?.as_ref().map(|error| error.kind)
    }
}

#[test]
fn a_shared_scan_that_is_out_of_order_or_begins_inside_a_key_fails() {
    for (number, joinable) in [(1, true), (0, false)] {
        let mut driver = Driver::new();
        driver.join(1, NOW);
        driver.pull(1);
        driver.made(Reader::Shared, number, joinable, false);
        assert_eq!(driver.kind(1), Some(Kind::Bug));
        // The next one rides.
        driver.join(2, NOW);
        driver.pull(2);
        driver.made(Reader::Shared, 0, true, true);
        assert_eq!(driver.ended.get(&RiderId(2)), Some(&None));
    }
}

#[test]
fn a_private_scan_that_leaves_a_slab_out_fails() {
    let mut driver = Driver::new();
    driver.join(1, Ticket::Dedicated { at_least: Index(0) });
    driver.pull(1);
    driver.pull(1);
    driver.made(Reader::Private(RiderId(1)), 0, true, false);
    driver.made(Reader::Private(RiderId(1)), 2, true, true);
    assert_eq!(driver.kind(1), Some(Kind::Bug));
}

/// Two riders on a head of four slabs. The second joined at slab 2, which is kept for it.
fn joined_at_2() -> Driver {
    let mut driver = Driver::new();
    driver.join(1, NOW);
    driver.pull(1);
    driver.made(Reader::Shared, 0, true, false);
    driver.join(2, NOW);
    driver.made(Reader::Shared, 1, false, false);
    driver.pull(1);
    driver.made(Reader::Shared, 2, true, false);
    driver.pull(1);
    driver
}

#[test]
fn a_lap_that_ends_where_the_one_before_did_not_fails() {
    let mut driver = joined_at_2();
    driver.pull(2);
    driver.made(Reader::Shared, 3, true, true);
    driver.pull(1);
    driver.pull(2);
    assert_eq!(driver.ended.get(&RiderId(1)), Some(&None));
    driver.pull(2);
    driver.made(Reader::Shared, 0, true, true);
    assert_eq!(driver.kind(2), Some(Kind::Bug));
}

#[test]
fn a_private_scan_that_ends_before_what_was_missed_fails() {
    let mut driver = joined_at_2();
    driver.pull(1);
    driver.now += 100 * MS;
    driver.core.tick(driver.now);
    driver.look();
    assert_eq!(driver.moved, 1);
    for (number, last) in [(2, false), (3, true)] {
        driver.pull(2);
        driver.made(Reader::Private(RiderId(2)), number, true, last);
    }
    driver.pull(2);
    driver.made(Reader::Private(RiderId(2)), 0, true, true);
    assert_eq!(driver.kind(2), Some(Kind::Corrupt));
}
