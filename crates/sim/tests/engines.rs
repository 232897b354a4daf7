//! What every engine of the log promises, asked of each of them through the trait alone: the embedded one,
//! the same over a network, the unruly one, and that over a network. A plain model says what may be read:
//! an acknowledged entry at its index, in the order of the appends; others only as copies of what was sent.

use holdfast_base::ids::{Index, NodeId};
use holdfast_base::limits::ENTRY_BYTES_MAX;
use holdfast_base::{Error, Indices, Kind, Result};
use holdfast_env::net::{Named, PeerDone, PeerRequest};
use holdfast_env::{Rng, SeededRng};
use holdfast_log::{Done, Drive, EmbeddedLog, Log, LogHost, LogOptions, Mode, RemoteLog, Scope};
use holdfast_sim::unruly::UnrulyLog;
use holdfast_sim::{Life, Listener, SimDisk, SimNet};
use holdfast_wire::peer::Sender;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// One engine, and all that makes it go on.
struct World {
    net: SimNet,
    embedded: Arc<EmbeddedLog>,
    log: Arc<dyn Log>,
    /// Whether an acknowledged entry may be there again, and one that was refused.
    repeats: bool,
}

struct Server(LogHost);

impl Listener for Server {
    fn request(&self, _: Option<&Arc<Named>>, request: PeerRequest, reply: PeerDone) {
        let body = request.body.as_ref().map_or(&[][..], |body| (**body).as_ref());
        self.0.serve(request.opcode, &request.meta, body, reply);
    }
}

impl World {
    fn new(seed: u64, segment_bytes: u64, (unruly, remote): (bool, bool)) -> World {
        let net = SimNet::new(seed);
        let options = LogOptions { drive: Drive::Pump, segment_bytes, ..LogOptions::default() };
        let disk = Arc::new(SimDisk::new(seed));
        let embedded = Arc::new(EmbeddedLog::open(disk, Path::new("/log"), options).unwrap());
        let life = Life::default();
        let host: Arc<dyn Log> = match unruly {
            false => embedded.clone(),
            true => {
                let peers = net.peers("n1", &life);
                Arc::new(UnrulyLog::new(embedded.clone(), peers, SeededRng::new(seed)))
            }
        };
        TOPICS.iter().for_each(|topic| host.create(topic).unwrap());
        let log: Arc<dyn Log> = match remote {
            false => host,
            true => {
                net.listen("n1", Arc::new(Server(LogHost::new(host))));
                let sender = Sender { cluster: 1, node: NodeId(2), incarnation: Index(1) };
                Arc::new(RemoteLog::new(net.peers("n2", &life), "n1", sender))
            }
        };
        World { net, embedded, log, repeats: unruly }
    }

    /// Lets things happen until there is an answer.
    fn wait<T: Send + 'static>(&self, start: impl FnOnce(Done<T>)) -> Result<T> {
        let answer = Arc::new(Mutex::new(None));
        let slot = answer.clone();
        start(Box::new(move |result| {
            assert!(slot.lock().unwrap().replace(result).is_none(), "answered twice");
        }));
        for _ in 0..100_000 {
            while self.embedded.pump() {}
            if let Some(answer) = answer.lock().unwrap().take() {
                return answer;
            }
            assert!(self.net.step(), "nothing happens any more, and there is no answer");
        }
        panic!("no answer comes");
    }

    fn append(&self, topic: &str, entries: &[Vec<u8>], mode: Mode) -> Result<Indices> {
        self.wait(|done| self.log.append(topic, entries.to_vec(), mode, done))
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
            self.wait(|done| self.log.tail(topic, from, done)).unwrap();
            let page = self.log.read(topic, from, entries, bytes, Scope::Durable).unwrap();
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
const TOPICS: [&str; 4] = ["a", "a/b", "a-b", "a/b/c"];

fn each_engine(seed: u64, check: impl Fn(&World, &SeededRng)) {
    each_engine_of(64 << 10, seed, check);
}

fn each_engine_of(segment_bytes: u64, seed: u64, check: impl Fn(&World, &SeededRng)) {
    for engine in [(false, false), (false, true), (true, false), (true, true)] {
        let world = World::new(seed, segment_bytes, engine);
        check(&world, &SeededRng::new(seed));
    }
}

/// What was sent to a topic, and what of it was acknowledged, by index.
#[derive(Default)]
struct Plain {
    sent: Vec<Vec<u8>>,
    kept: BTreeMap<Index, Vec<u8>>,
    last: Index,
}

impl Plain {
    fn append(&mut self, world: &World, topic: &str, entries: Vec<Vec<u8>>, mode: Mode) {
        self.sent.extend(entries.iter().cloned());
        match world.append(topic, &entries, mode) {
            Ok(indices) => {
                assert_eq!(indices.count(), entries.len());
                assert!(indices.first() > self.last, "behind all that was acknowledged before");
                self.last = indices.last();
                self.kept.extend(indices.iter().zip(entries));
            }
            Err(e) => assert!(world.repeats && e.kind == Kind::Retry, "{e}"),
        }
    }

    /// What a reader gets from `from` on is what may be there.
    fn check(&self, world: &World, topic: &str, from: Index) {
        if self.last < from {
            return;
        }
        // What was ordered is durable once it is synced.
        world.embedded.sync(topic).unwrap();
        let read = world.all(topic, from, self.last);
        assert!(read.windows(2).all(|pair| pair[0].0 < pair[1].0), "in order");
        for (index, entry) in &read {
            match self.kept.get(index) {
                Some(kept) => assert_eq!(entry, kept, "entry {index} of `{topic}`"),
                None => {
                    assert!(world.repeats, "entry {index} of `{topic}` was never acknowledged");
                    assert!(self.sent.contains(entry), "entry {index} of `{topic}` was never sent");
                }
            }
        }
        let found = read.iter().filter(|(index, _)| self.kept.contains_key(index)).count();
        assert_eq!(found, self.kept.range(from..).count(), "of `{topic}` from {from} on");
    }
}

/// Random appends to topics beside each other, read from anywhere.
#[test]
fn what_was_acknowledged_is_read_in_order_and_nothing_that_was_not_sent() {
    for seed in 0..40 {
        each_engine(seed, |world, rng| {
            let below = |n: u64| rng.next_u64() % n;
            let mut topics: Vec<Plain> = TOPICS.iter().map(|_| Plain::default()).collect();
            for step in 0..120u64 {
                let at = below(TOPICS.len() as u64) as usize;
                let (topic, plain) = (TOPICS[at], &mut topics[at]);
                if below(4) == 0 {
                    let from = Index(1 + below(plain.last.0 + 2));
                    plain.check(world, topic, from);
                    continue;
                }
                let entry = |n: u64| {
                    let mut entry = format!("{at} {step} {n} ").into_bytes();
                    entry.resize(entry.len() + below(900) as usize, b'.');
                    entry
                };
                let entries = (0..1 + below(4)).map(entry).collect();
                let mode = if below(3) == 0 { Mode::Ordered } else { Mode::Synced };
                plain.append(world, topic, entries, mode);
            }
            for (topic, plain) in TOPICS.iter().zip(&topics) {
                plain.check(world, topic, Index(1));
            }
        });
    }
}

#[test]
fn a_page_has_an_entry_however_long_and_no_more_than_was_asked_for() {
    each_engine_of(4 << 20, 1, |world, _| {
        let mut plain = Plain::default();
        for bytes in [10, ENTRY_BYTES_MAX, 0, 10, 10, 10] {
            plain.append(world, "a", vec![vec![7; bytes]], Mode::Synced);
        }
        for from in (1..=plain.last.0).map(Index) {
            for (entries, bytes) in [(1, 1), (2, 1 << 30), (9, 20), (9, 1)] {
                let page = world.page("a", from, entries, bytes);
                assert!(page.len() <= entries && page[0].0 >= from);
                let sum: usize = page.iter().map(|(_, entry)| entry.len()).sum();
                assert!(page.len() == 1 || sum <= bytes, "{sum} bytes of {bytes}");
            }
        }
        plain.check(world, "a", Index(1));
    });
}

/// Whoever waits for the index in front of the end waits for an entry, not for a gap.
#[test]
fn in_front_of_the_end_there_is_an_entry() {
    for seed in 0..30 {
        each_engine(seed, |world, _| {
            let mut plain = Plain::default();
            for step in 0..30u8 {
                plain.append(world, "a", vec![vec![step]; 3], Mode::Synced);
                // A node that has read nothing yet has nothing to say.
                let _ = world.log.read("a", Index(1), 1, 1, Scope::Durable);
                let Ok(info) = world.log.info("a") else { continue };
                assert!(info.durable <= info.next && info.first <= info.durable);
                if info.durable > info.first {
                    let last = Index(info.durable.0 - 1);
                    assert_eq!(world.page("a", last, 1, 1)[0].0, last);
                }
            }
        });
    }
}

#[test]
fn a_tail_wakes_for_what_comes_and_not_before() {
    each_engine(3, |world, _| {
        let mut plain = Plain::default();
        while plain.kept.is_empty() {
            plain.append(world, "a", vec![b"one".to_vec()], Mode::Synced);
        }
        let woken = Arc::new(Mutex::new(None));
        let slot = woken.clone();
        // Copies of what was answered may still come; this is behind them all.
        let from = Index(plain.last.0 + 20);
        world.log.tail("a", from, Box::new(move |result| *slot.lock().unwrap() = Some(result)));
        while plain.last < from {
            let is_woken = woken.lock().unwrap().is_some();
            assert!(!is_woken || world.repeats, "woken at {}, for {from}", plain.last);
            plain.append(world, "a", vec![b"more".to_vec()], Mode::Synced);
        }
        world.wait(|done| world.log.tail("a", from, done)).unwrap();
        assert_eq!(*woken.lock().unwrap(), Some(Ok(())));
        plain.check(world, "a", Index(1));
    });
}

#[test]
fn what_is_trimmed_is_refused_and_indices_go_on() {
    each_engine(4, |world, _| {
        let mut plain = Plain::default();
        for _ in 0..200 {
            plain.append(world, "a", vec![vec![1; 2000]], Mode::Synced);
        }
        let (middle, last) = (Index(plain.last.0 / 2), plain.last);
        world.log.trim("a", middle).unwrap();
        let first = |world: &World| world.embedded.info("a").unwrap().first;
        // It is sent, where the log is another node's.
        while first(world) == Index(1) {
            assert!(world.net.step());
        }
        assert!(first(world) <= middle);
        let refused: Result<()> = world.wait(|done| {
            let read = world.embedded.read("a", Index(1), 1, 1, Scope::Durable);
            done(read.map(drop));
        });
        assert_eq!(refused.map_err(|e| e.kind), Err(Kind::Invalid));
        plain.append(world, "a", vec![b"behind".to_vec()], Mode::Synced);
        assert!(plain.last >= last);
        plain.check(world, "a", middle);
    });
}

#[test]
fn what_is_wrong_is_refused_by_every_engine() {
    each_engine(5, |world, _| {
        let kind = |result: Result<Indices>| result.map_err(|e: Error| e.kind);
        assert_eq!(kind(world.append("a", &[], Mode::Synced)), Err(Kind::Invalid));
        let long = vec![0; ENTRY_BYTES_MAX + 1];
        // An engine that fails over may say that first.
        let refused = || kind(world.append("a", std::slice::from_ref(&long), Mode::Synced));
        assert!((0..20).any(|_| refused() == Err(Kind::Invalid)));
        let unknown = || kind(world.append("nobody", &[b"x".to_vec()], Mode::Synced));
        assert!((0..20).any(|_| unknown() == Err(Kind::NotFound)));
        assert_eq!(world.log.create("../a").map_err(|e| e.kind), Err(Kind::Invalid));
    });
}
