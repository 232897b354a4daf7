//! What every engine of the log promises, of the log on a real broker: the same checks as of the others.

use holdfast_base::Result;
use holdfast_base::ids::Index;
use holdfast_brokers::Brokers;
use holdfast_env::SeededRng;
use holdfast_kafka::{Expected, KafkaLog, Options};
use holdfast_log::{Done, Log, SharedLog};
use holdfast_sim::conformance::{self, Engine, TOPICS};
use std::sync::mpsc::channel;

struct World {
    log: KafkaLog,
}

impl World {
    fn new(brokers: &Brokers, prefix: &str) -> World {
        let (brokers, prefix) = (brokers.addresses().to_owned(), prefix.to_owned());
        let options = Options { brokers, prefix, settings: Default::default() };
        let log = KafkaLog::open(options, Expected::Any(7)).unwrap();
        TOPICS.iter().for_each(|topic| log.create(topic).unwrap());
        World { log }
    }
}

impl Engine for World {
    fn log(&self) -> &dyn Log {
        &self.log
    }

    fn repeats(&self) -> bool {
        false
    }

    fn wait<T: Send + 'static>(&self, start: impl FnOnce(Done<T>)) -> Result<T> {
        let (told, answer) = channel();
        start(Box::new(move |result| told.send(result).unwrap()));
        answer.recv().unwrap()
    }

    fn settle(&self, topic: &str) {
        self.log.sync(topic).unwrap();
    }

    fn first(&self, topic: &str) -> Index {
        self.wait(|done| self.log.ask(topic, done)).unwrap().first
    }

    fn read_below(&self, topic: &str) -> Result<()> {
        self.log.fetch(topic, Index(1), 1, 1).map(drop)
    }
}

/// One broker for all checks, each in a prefix of its own, of which some begin with another.
#[test]
fn a_broker_keeps_what_every_engine_promises() {
    let Some(brokers) = Brokers::start(1, &[]) else { return };
    for seed in 0..4 {
        let world = World::new(&brokers, &format!("c.{seed}"));
        let rng = SeededRng::new(seed);
        conformance::what_was_acknowledged_is_read_in_order_and_nothing_that_was_not_sent(
            &world, &rng, 60,
        );
    }
    conformance::a_page_has_an_entry_however_long_and_no_more_than_was_asked_for(&World::new(
        &brokers, "c.1-page",
    ));
    conformance::in_front_of_the_end_there_is_an_entry(&World::new(&brokers, "c"));
    conformance::a_tail_wakes_for_what_comes_and_not_before(&World::new(&brokers, "c.tail"));
    conformance::what_is_trimmed_is_refused_and_indices_go_on(&World::new(&brokers, "c.trim"));
    conformance::what_is_wrong_is_refused_by_every_engine(&World::new(&brokers, "c.wrong"));
}
