//! Who follows a table waits at its node, and is looked at when that table changes.

#[path = "node/mod.rs"]
mod world_of_one;

use holdfast_base::{Kind, Result};
use holdfast_env::trial::Trial;
use holdfast_wire::table as msg;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;
use world_of_one::{TABLE, World};

/// Who is not answered at all fails, and does not hang.
const PATIENCE: Duration = Duration::from_secs(60);
/// As long as anybody may.
const WAIT_MS: u32 = msg::CHANGES_WAIT_MS_MAX;
const NONE: [&[u8]; 0] = [];
const OTHER: &str = "other";
const LOOKED_AT: &str = "who waits for a table's changes was looked at";

/// By which [`World::is_quiet`] finds out.
const QUESTIONS: u64 = 4;

type Told = Result<Vec<msg::TabletChanges>>;

impl World {
    fn changes(&self, table: &str, from: Vec<msg::ChangesAt>, wait_ms: u32) -> Receiver<Told> {
        let (told, hears) = mpsc::channel();
        let asked = msg::Changes { table: table.into(), from, wait_ms, values: true };
        self.face.ask_changes(asked, move |changes| told.send(changes).unwrap());
        hears
    }

    fn now(&self, table: &str) -> Vec<msg::ChangesAt> {
        let told = self.changes(table, Vec::new(), 0).recv_timeout(PATIENCE).unwrap();
        told.unwrap().into_iter().map(|tablet| tablet.at).collect()
    }

    /// Until all that the workers have to do by now is done.
    fn is_quiet(&self) {
        // Each answer comes of a look behind all that was due before.
        (0..QUESTIONS).for_each(|_| drop(self.now(OTHER)));
    }
}

fn keys(told: Told) -> Vec<Vec<u8>> {
    told.unwrap().into_iter().flat_map(|tablet| tablet.changes).map(|change| change.key).collect()
}

/// A thousand followers of quiet tables were looked at with each write to any other table.
#[test]
fn who_follows_a_table_is_not_looked_at_for_another_one() {
    let entered = Trial::new().enter();
    let world = World::new(2);
    world.make(OTHER, 1);
    let hears = world.changes(TABLE, world.now(TABLE), WAIT_MS);
    // Each tablet says once how far it shows.
    world.pass(100);
    world.is_quiet();
    let looked = || entered.happened().get(LOOKED_AT).copied().unwrap_or(0);
    let before = looked();
    for sequence in 1..=40 {
        world.write(OTHER, sequence, b"k").unwrap();
        // Nor where time passes and nothing shows: less than it waits for.
        world.pass(100);
    }
    world.is_quiet();
    assert_eq!(
        looked() - before,
        QUESTIONS,
        "beside this test's own questions somebody was looked at"
    );
    assert!(hears.try_recv().is_err());
    world.write(TABLE, 41, b"a").unwrap();
    assert_eq!(keys(hears.recv_timeout(PATIENCE).unwrap()), [b"a".to_vec()]);
}

/// What shows while nobody waits is told at once; and whoever waits in vain is told so.
#[test]
fn who_follows_a_table_is_told_what_shows_whenever_it_does() {
    let world = World::new(2);
    world.make(OTHER, 1);
    let begin = world.now(TABLE);
    world.write(TABLE, 1, b"a").unwrap();
    let told = world.changes(TABLE, begin, WAIT_MS).recv_timeout(PATIENCE).unwrap().unwrap();
    let at: Vec<msg::ChangesAt> = told.iter().map(|tablet| tablet.at.clone()).collect();
    assert_eq!(keys(Ok(told)), [b"a".to_vec()]);
    let none = world.changes(TABLE, at.clone(), 0).recv_timeout(PATIENCE).unwrap();
    assert_eq!(keys(none), NONE);
    let waits = world.changes(TABLE, at, 300);
    (0..2).for_each(|_| world.pass(100));
    world.is_quiet();
    assert!(waits.try_recv().is_err(), "its time is not over");
    world.pass(100);
    assert_eq!(keys(waits.recv_timeout(PATIENCE).unwrap()), NONE);
    for sequence in 2..=20 {
        let hears = world.changes(TABLE, world.now(TABLE), WAIT_MS);
        let key = sequence.to_string();
        world.write(TABLE, sequence, key.as_bytes()).unwrap();
        assert_eq!(keys(hears.recv_timeout(PATIENCE).unwrap()), [key.into_bytes()]);
    }
}

/// They would wait until their time is over.
#[test]
fn who_follows_a_table_that_is_dropped_hears_of_it() {
    let world = World::new(2);
    let hears = world.changes(TABLE, world.now(TABLE), WAIT_MS);
    world.drop_table(TABLE);
    // Or while some of its tablets are there.
    let e = hears.recv_timeout(PATIENCE).unwrap().unwrap_err();
    assert!(matches!(e.kind, Kind::NotFound | Kind::Retry) && e.message.contains("dropped"), "{e}");
    let e = world.changes(TABLE, Vec::new(), WAIT_MS).recv_timeout(PATIENCE).unwrap().unwrap_err();
    assert!(e.kind == Kind::NotFound && e.message.contains("dropped"), "{e}");
}
