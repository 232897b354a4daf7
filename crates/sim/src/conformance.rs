//! What every engine of the log promises, asked of each of them through the trait alone. A plain model
//! says what may be read: an acknowledged entry at its index, in the order of the appends; others only as
//! copies of what was sent, and that only of engines that may repeat.

use holdfast_base::ids::Index;
use holdfast_base::limits::ENTRY_BYTES_MAX;
use holdfast_base::{Error, Indices, Kind, Result};
use holdfast_env::{Rng, SeededRng};
use holdfast_log::{Done, Log, Mode, Scope};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// One engine, and all that makes it go on. Its topics are [`TOPICS`], empty.
pub trait Engine {
    fn log(&self) -> &dyn Log;

    /// Whether an acknowledged entry may be there again, and one that was refused.
    fn repeats(&self) -> bool;

    /// Lets things happen until there is an answer; hands over what was called once.
    fn wait<T: Send + 'static>(&self, start: impl FnOnce(Done<T>)) -> Result<T>;

    /// What was ordered becomes durable.
    fn settle(&self, topic: &str);

    /// Waits until a trim has reached whoever keeps the log; the first index that is kept then.
    fn first(&self, topic: &str) -> Index;

    /// What a read of whoever keeps the log answers, below its first index.
    fn read_below(&self, topic: &str) -> Result<()>;

    fn append(&self, topic: &str, entries: &[Vec<u8>], mode: Mode) -> Result<Indices> {
        self.wait(|done| self.log().append(topic, entries.to_vec(), mode, done))
    }

    /// Some entries from there on, as a reader gets them who waits for the next one.
    fn page(
        &self,
        topic: &str,
        from: Index,
        entries: usize,
        bytes: usize,
    ) -> Vec<(Index, Vec<u8>)> {
        for _ in 0..1000 {
            self.wait(|done| self.log().tail(topic, from, done)).unwrap();
            let page = self.log().read(topic, from, entries, bytes, Scope::Durable).unwrap();
            if !page.is_empty() {
                return page;
            }
        }
        panic!("entries of `{topic}` from {from} on are announced, and do not come");
    }

    /// All entries from `from` to `last`, which is there.
    fn all(&self, topic: &str, from: Index, last: Index) -> Vec<(Index, Vec<u8>)> {
        let (mut all, mut next) = (Vec::new(), from);
        while next <= last {
            let page = self.page(topic, next, 5, 2000);
            next = Index(page.last().unwrap().0.0 + 1);
            all.extend(page);
        }
        all.retain(|(index, _)| *index <= last);
        all
    }
}

/// Names of which one begins with another, and the like.
pub const TOPICS: [&str; 4] = ["a", "a/b", "a-b", "a/b/c"];

/// What was sent to a topic, and what of it was acknowledged, by index.
#[derive(Default)]
struct Plain {
    sent: Vec<Vec<u8>>,
    kept: BTreeMap<Index, Vec<u8>>,
    last: Index,
}

impl Plain {
    fn append(&mut self, engine: &impl Engine, topic: &str, entries: Vec<Vec<u8>>, mode: Mode) {
        self.sent.extend(entries.iter().cloned());
        match engine.append(topic, &entries, mode) {
            Ok(indices) => {
                assert_eq!(indices.count(), entries.len());
                assert!(indices.first() > self.last, "behind all that was acknowledged before");
                self.last = indices.last();
                self.kept.extend(indices.iter().zip(entries));
            }
            Err(e) => assert!(engine.repeats() && e.kind == Kind::Retry, "{e}"),
        }
    }

    /// What a reader gets from `from` on is what may be there.
    fn check(&self, engine: &impl Engine, topic: &str, from: Index) {
        if self.last < from {
            return;
        }
        // What was ordered is durable once it is synced.
        engine.settle(topic);
        let read = engine.all(topic, from, self.last);
        assert!(read.windows(2).all(|pair| pair[0].0 < pair[1].0), "in order");
        for (index, entry) in &read {
            match self.kept.get(index) {
                Some(kept) => assert_eq!(entry, kept, "entry {index} of `{topic}`"),
                None => {
                    assert!(engine.repeats(), "entry {index} of `{topic}` was never acknowledged");
                    assert!(self.sent.contains(entry), "entry {index} of `{topic}` was never sent");
                }
            }
        }
        let found = read.iter().filter(|(index, _)| self.kept.contains_key(index)).count();
        assert_eq!(found, self.kept.range(from..).count(), "of `{topic}` from {from} on");
    }
}

/// Random appends to topics beside each other, read from anywhere.
pub fn what_was_acknowledged_is_read_in_order_and_nothing_that_was_not_sent(
    engine: &impl Engine,
    rng: &SeededRng,
    steps: u64,
) {
    let below = |n: u64| rng.next_u64() % n;
    let mut topics: Vec<Plain> = TOPICS.iter().map(|_| Plain::default()).collect();
    for step in 0..steps {
        let at = below(TOPICS.len() as u64) as usize;
        let (topic, plain) = (TOPICS[at], &mut topics[at]);
        if below(4) == 0 {
            let from = Index(1 + below(plain.last.0 + 2));
            plain.check(engine, topic, from);
            continue;
        }
        let entry = |n: u64| {
            let mut entry = format!("{at} {step} {n} ").into_bytes();
            entry.resize(entry.len() + below(900) as usize, b'.');
            entry
        };
        let entries = (0..1 + below(4)).map(entry).collect();
        let mode = if below(3) == 0 { Mode::Ordered } else { Mode::Synced };
        plain.append(engine, topic, entries, mode);
    }
    for (topic, plain) in TOPICS.iter().zip(&topics) {
        plain.check(engine, topic, Index(1));
    }
}

/// A page is no longer than was asked for, but for its first entry.
pub fn a_page_has_an_entry_however_long_and_no_more_than_was_asked_for(engine: &impl Engine) {
    let mut plain = Plain::default();
    for bytes in [10, ENTRY_BYTES_MAX, 0, 10, 10, 10] {
        plain.append(engine, "a", vec![vec![7; bytes]], Mode::Synced);
    }
    for from in (1..=plain.last.0).map(Index) {
        for (entries, bytes) in [(1, 1), (2, 1 << 30), (9, 20), (9, 1)] {
            let page = engine.page("a", from, entries, bytes);
            assert!(page.len() <= entries && page[0].0 >= from);
            let sum: usize = page.iter().map(|(_, entry)| entry.len()).sum();
            assert!(page.len() == 1 || sum <= bytes, "{sum} bytes of {bytes}");
        }
    }
    plain.check(engine, "a", Index(1));
}

/// Whoever waits for the index in front of the end waits for an entry, not for a gap.
pub fn in_front_of_the_end_there_is_an_entry(engine: &impl Engine) {
    let mut plain = Plain::default();
    for step in 0..30u8 {
        plain.append(engine, "a", vec![vec![step]; 3], Mode::Synced);
        // A node that has read nothing yet has nothing to say.
        let _ = engine.log().read("a", Index(1), 1, 1, Scope::Durable);
        let Ok(info) = engine.log().info("a") else { continue };
        assert!(info.durable <= info.next && info.first <= info.durable);
        if info.durable > info.first {
            let last = Index(info.durable.0 - 1);
            assert_eq!(engine.page("a", last, 1, 1)[0].0, last);
        }
    }
}

/// A tail waits for its own index.
pub fn a_tail_wakes_for_what_comes_and_not_before(engine: &impl Engine) {
    let mut plain = Plain::default();
    while plain.kept.is_empty() {
        plain.append(engine, "a", vec![b"one".to_vec()], Mode::Synced);
    }
    let woken = Arc::new(Mutex::new(None));
    let slot = woken.clone();
    // Copies of what was answered may still come; this is behind them all.
    let from = Index(plain.last.0 + 20);
    engine.log().tail("a", from, Box::new(move |result| *slot.lock().unwrap() = Some(result)));
    while plain.last < from {
        let is_woken = woken.lock().unwrap().is_some();
        assert!(!is_woken || engine.repeats(), "woken at {}, for {from}", plain.last);
        plain.append(engine, "a", vec![b"more".to_vec()], Mode::Synced);
    }
    engine.wait(|done| engine.log().tail("a", from, done)).unwrap();
    assert_eq!(*woken.lock().unwrap(), Some(Ok(())));
    plain.check(engine, "a", Index(1));
}

/// A trim gives up no more than it was told to.
pub fn what_is_trimmed_is_refused_and_indices_go_on(engine: &impl Engine) {
    let mut plain = Plain::default();
    for _ in 0..200 {
        plain.append(engine, "a", vec![vec![1; 2000]], Mode::Synced);
    }
    let (middle, last) = (Index(plain.last.0 / 2), plain.last);
    engine.log().trim("a", middle).unwrap();
    assert!(engine.first("a") <= middle);
    assert_eq!(engine.read_below("a").map_err(|e| e.kind), Err(Kind::Invalid));
    plain.append(engine, "a", vec![b"behind".to_vec()], Mode::Synced);
    assert!(plain.last >= last);
    plain.check(engine, "a", middle);
}

/// Bad input is told by its kind.
pub fn what_is_wrong_is_refused_by_every_engine(engine: &impl Engine) {
    let kind = |result: Result<Indices>| result.map_err(|e: Error| e.kind);
    assert_eq!(kind(engine.append("a", &[], Mode::Synced)), Err(Kind::Invalid));
    let long = vec![0; ENTRY_BYTES_MAX + 1];
    // An engine that fails over may say that first.
    let refused = || kind(engine.append("a", std::slice::from_ref(&long), Mode::Synced));
    assert!((0..20).any(|_| refused() == Err(Kind::Invalid)));
    let unknown = || kind(engine.append("nobody", &[b"x".to_vec()], Mode::Synced));
    assert!((0..20).any(|_| unknown() == Err(Kind::NotFound)));
    assert_eq!(engine.log().create("../a").map_err(|e| e.kind), Err(Kind::Invalid));
}
