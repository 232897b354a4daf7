//! What every engine of the log promises ([`conformance`]), of those that run in one process: the embedded
//! one, the same over a network, the unruly one, and that over a network.

use holdfast_base::Result;
use holdfast_base::ids::{Index, NodeId};
use holdfast_env::SeededRng;
use holdfast_env::net::{PeerDone, PeerRequest};
use holdfast_log::{Done, Drive, EmbeddedLog, Log, LogHost, LogOptions, RemoteLog, Scope};
use holdfast_sim::conformance::{self, Engine, TOPICS};
use holdfast_sim::unruly::UnrulyLog;
use holdfast_sim::{Life, Listener, Over, SimDisk, SimNet};
use holdfast_wire::peer::Sender;
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
    fn request(&self, _: Over<'_>, request: PeerRequest, reply: PeerDone) {
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
}

impl Engine for World {
    fn log(&self) -> &dyn Log {
        &*self.log
    }

    fn repeats(&self) -> bool {
        self.repeats
    }

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

    fn settle(&self, topic: &str) {
        self.embedded.sync(topic).unwrap();
    }

    /// A trim is sent, where the log is another node's.
    fn first(&self, topic: &str) -> Index {
        loop {
            let first = self.embedded.info(topic).unwrap().first;
            if first > Index(1) {
                return first;
            }
            assert!(self.net.step());
        }
    }

    fn read_below(&self, topic: &str) -> Result<()> {
        self.embedded.read(topic, Index(1), 1, 1, Scope::Durable).map(drop)
    }
}

fn each_engine(seed: u64, segment_bytes: u64, check: impl Fn(&World)) {
    for engine in [(false, false), (false, true), (true, false), (true, true)] {
        check(&World::new(seed, segment_bytes, engine));
    }
}

#[test]
fn what_was_acknowledged_is_read_in_order_and_nothing_that_was_not_sent() {
    for seed in 0..40 {
        each_engine(seed, 64 << 10, |world| {
            let rng = SeededRng::new(seed);
            conformance::what_was_acknowledged_is_read_in_order_and_nothing_that_was_not_sent(
                world, &rng, 120,
            );
        });
    }
}

#[test]
fn a_page_has_an_entry_however_long_and_no_more_than_was_asked_for() {
    each_engine(
        1,
        4 << 20,
        conformance::a_page_has_an_entry_however_long_and_no_more_than_was_asked_for,
    );
}

#[test]
fn in_front_of_the_end_there_is_an_entry() {
    for seed in 0..30 {
        each_engine(seed, 64 << 10, conformance::in_front_of_the_end_there_is_an_entry);
    }
}

#[test]
fn a_tail_wakes_for_what_comes_and_not_before() {
    each_engine(3, 64 << 10, conformance::a_tail_wakes_for_what_comes_and_not_before);
}

#[test]
fn what_is_trimmed_is_refused_and_indices_go_on() {
    each_engine(4, 64 << 10, conformance::what_is_trimmed_is_refused_and_indices_go_on);
}

#[test]
fn what_is_wrong_is_refused_by_every_engine() {
    each_engine(5, 64 << 10, conformance::what_is_wrong_is_refused_by_every_engine);
}
