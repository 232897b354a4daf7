//! Whoever follows a topic behind a ride: what the rows held at one entry, and what each later entry is
//! said to have changed, are together what the rows hold in the end. Under whichever sessions, repeats,
//! refusals and claims.

#[path = "../../log/tests/common/mod.rs"]
mod common;

use common::*;
use holdfast_base::codec::Encode;
use holdfast_base::ids::{Index, Sequence, SessionId, Term};
use holdfast_base::stream::read_all;
use holdfast_base::{Kind, Result};
use holdfast_env::rows::{MemoryRows, Rows};
use holdfast_env::{RealDisk, Rng, SeededRng};
use holdfast_log::*;
use holdfast_view::items::*;
use holdfast_view::*;
use holdfast_wire::slab::{Hashed, Range};
use holdfast_wire::view::Collection;
use std::collections::BTreeMap;
use std::sync::{Arc, mpsc};

const T: &str = "view/things";
const MANUAL: FoldOptions = FoldOptions { snapshot_entries: 0, snapshot_bytes: 0 };

type Disk = Fold<InRows<DiskView>>;
/// The newest value of each key, by collection and key.
type Newest = BTreeMap<(u16, Vec<u8>), (u64, Vec<u8>)>;

struct World {
    log: Arc<EmbeddedLog>,
    fold: Disk,
    rows: Arc<dyn Rows>,
    rng: SeededRng,
    /// Of each session, the last command under it, and its number.
    sessions: Vec<(SessionId, u64, Vec<u8>)>,
    repeats: u32,
    _dir: Scratch,
}

impl World {
    fn new(seed: u64) -> World {
        let dir = Scratch::new("changes");
        let log = Arc::new(open(&dir.0.join("log"), Drive::Pump));
        let rows: Arc<dyn Rows> = Arc::new(MemoryRows::default());
        let store = SnapshotStore { disk: Arc::new(RealDisk), directory: dir.0.join("snapshots") };
        let context = Context::of(T).in_rows(rows.clone());
        let fold = Fold::open_member(log.clone(), context, store, MANUAL).unwrap();
        let rng = SeededRng::new(seed);
        World { log, fold, rows, rng, sessions: Vec::new(), repeats: 0, _dir: dir }
    }

    fn below(&self, n: u64) -> u64 {
        self.rng.next_u64() % n
    }

    fn send(&self, session: SessionId, sequence: u64, command: Vec<u8>) -> Result<Index> {
        let (sequence, acknowledged_below) = (Sequence(sequence), Sequence(0));
        let mode = Mode::Synced;
        let request = Request { session, sequence, acknowledged_below, command, mode };
        let (send, receive) = mpsc::channel();
        self.fold.propose(request, Box::new(move |result| drop(send.send(result))));
        while self.log.pump() {}
        receive.try_recv().expect("an answer").map(|(index, _)| index)
    }

    fn changes(&self) -> Vec<u8> {
        let keys: Vec<Vec<u8>> =
            (0..1 + self.below(4)).map(|_| vec![b'a' + self.below(5) as u8]).collect();
        // Of a collection that is there, or not: then all of it is refused.
        let collection = 1 + self.below(3) as u16;
        let value = |n: u64| (!n.is_multiple_of(4)).then(|| vec![n as u8; n as usize % 7]);
        let values: Vec<Option<Vec<u8>>> = keys.iter().map(|_| value(self.below(256))).collect();
        let all = keys.iter().zip(&values);
        Command::change(all.map(|(key, value)| Change { collection, key, value: value.as_deref() }))
    }

    fn step(&mut self) {
        match self.below(12) {
            0 => {
                let (send, receive) = mpsc::channel();
                let opened = Box::new(move |session| drop(send.send(session)));
                self.fold.open_session(Mode::Synced, opened);
                while self.log.pump() {}
                self.sessions.push((receive.try_recv().unwrap().unwrap(), 0, Vec::new()));
            }
            1 => {
                self.fold.claim(Term::default(), Box::new(|_| ()));
                while self.log.pump() {}
            }
            2 => drop(self.send(SessionId(0), 0, Command::mark())),
            3 => {
                let name = format!("c{}", self.below(2));
                let new = Collection { name, hashed: Hashed::All, json: false };
                drop(self.send(SessionId(0), 0, Command::collection(&new)));
            }
            4..=6 if !self.sessions.is_empty() => {
                // Its client has not heard, and sends it again: late, behind others' changes.
                let at = self.below(self.sessions.len() as u64) as usize;
                let (session, sequence, command) = self.sessions[at].clone();
                if sequence > 0 && self.send(session, sequence, command).is_ok() {
                    self.repeats += 1;
                }
            }
            7..=9 if !self.sessions.is_empty() => {
                let at = self.below(self.sessions.len() as u64) as usize;
                let command = self.changes();
                let (session, sequence, last) = &mut self.sessions[at];
                (*sequence, *last) = (*sequence + 1, command.clone());
                let (session, sequence) = (*session, *sequence);
                let answered = self.send(session, sequence, command);
                assert!(answered.is_ok() || answered.is_err_and(|e| e.kind == Kind::NotFound));
            }
            _ => drop(self.send(SessionId(0), 0, self.changes())),
        }
    }

    fn newest(&self) -> Newest {
        let moment = self.rows.moment().unwrap();
        let reader = Reader::new(moment.clone()).unwrap();
        let mut newest = Newest::new();
        let mut pass = Pass::new(&*moment, reader.catalog(), Range::ALL, None).unwrap();
        while pass
            .advance(&mut |item| {
                let key = (item.collection, item.key.to_vec());
                // Of one key in the log's order.
                match item.value {
                    Some(value) => drop(newest.insert(key, (item.index, value.to_vec()))),
                    None => drop(newest.remove(&key)),
                }
                Ok(true)
            })
            .unwrap()
        {}
        newest
    }

    /// What a ride is begun with, now.
    fn follow(&self) -> GoesOn<ChangesView> {
        let moment = self.rows.moment().unwrap();
        let (position, mut front) = front(&*moment).unwrap();
        Reader::new(moment).unwrap().catalog().encode(&mut front);
        let Position { applied, entry_crc, digest, .. } = position;
        let begun = read_all(&front, |source| {
            let arrival = Arrival { applied, entry_crc, digest, source };
            GoesOn::new(&Context::of(T), arrival)
        });
        begun.unwrap()
    }
}

#[test]
fn what_was_held_and_what_each_entry_changed_are_the_log_folded_anew() {
    let mut repeats = 0;
    for seed in 0..40 {
        let mut w = World::new(seed);
        for _ in 0..1 + w.below(40) {
            w.step();
        }
        let (mut newest, mut tail) = (w.newest(), w.follow());
        w.repeats = 0;
        for _ in 0..40 {
            w.step();
        }
        repeats += w.repeats;
        let entries = w.log.read(T, tail.next(), usize::MAX, usize::MAX, Scope::Durable).unwrap();
        for (index, entry) in entries {
            let view = tail.take(index, &entry).unwrap();
            assert_eq!(view.of(Index(index.0 + 1)).count(), 0, "of another entry");
            for change in view.of(index) {
                let key = (change.collection, change.key.to_vec());
                match change.value {
                    Some(value) => drop(newest.insert(key, (index.0, value.to_vec()))),
                    None => drop(newest.remove(&key)),
                }
            }
        }
        assert_eq!(tail.next().0, w.fold.applied().0 + 1);
        assert_eq!(newest, w.newest(), "seed {seed}");
    }
    assert!(repeats > 20, "changes were sent again behind a ride: {repeats}");
}

#[test]
fn an_entry_of_a_later_build_is_named_and_nothing_behind_it_is_taken() {
    let w = World::new(1);
    drop(w.send(SessionId(0), 0, Command::mark()));
    let mut tail = w.follow();
    let next = tail.next();
    let e = tail.take(next, &[9, 9, 9]).unwrap_err();
    assert!(e.message.contains(&format!("entry {next}")), "{e}");
    assert_eq!(tail.next(), next);
    assert!(tail.take(next, &[1]).is_err());
}
