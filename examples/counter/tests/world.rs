//! Counters in the simulated world: additions through any node, while nodes are killed, cut off,
//! deposed and lose their power. Each addition that was acknowledged counts once.

use holdfast_base::codec::{Decode, Encode};
use holdfast_base::ids::{Sequence, SessionId};
use holdfast_base::{Kind, Result};
use holdfast_counter::{Add, Addition, CounterFace, OP_ADD, OP_OPEN, OP_READ};
use holdfast_node::Node;
use holdfast_sim::SimNet;
use holdfast_sim::world::guest::{Guest, Lodging, Visitor, Work};
use holdfast_sim::world::{Report, Schedule, run};
use holdfast_wire::Call;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const ATTEMPTS: usize = 40;
const NAME: &str = "visits";

/// What its clients were told.
#[derive(Default)]
struct Visits {
    acknowledged: AtomicU64,
    /// Nobody knows about these.
    in_doubt: AtomicU64,
}

impl Guest for Visits {
    fn open(&self, node: &Arc<Node>, _: &SimNet) -> Result<Lodging> {
        Ok(Lodging { face: CounterFace::open(node)?, round: Box::new(|| {}) })
    }

    fn clients(&self) -> usize {
        2
    }

    fn work(self: Arc<Self>, visitor: Visitor, end_ns: u64) -> Work {
        Box::pin(async move {
            let (mut session, mut number) = (None, 0);
            while visitor.now_ns() < end_ns {
                visitor.think().await;
                let Some(open) = session else {
                    let opened = visitor.ask(visitor.any_gateway(), OP_OPEN, Vec::new(), None);
                    session = opened.await.ok().and_then(|s| SessionId::from_bytes(&s.meta).ok());
                    number = 0;
                    continue;
                };
                number += 1;
                if !self.add_one(&visitor, open, number).await {
                    session = None;
                }
                self.read(&visitor, visitor.any_gateway()).await;
            }
        })
    }

    fn check(self: Arc<Self>, visitor: Visitor) -> Work {
        Box::pin(async move {
            let least = self.acknowledged.load(Ordering::Relaxed);
            let most = least + self.in_doubt.load(Ordering::Relaxed);
            let mut sums = Vec::new();
            for gateway in 1..=visitor.gateways() {
                // A node may be an entry behind for a moment.
                let mut sum = None;
                for _ in 0..ATTEMPTS {
                    sum = self.read(&visitor, gateway).await;
                    if sum.is_some_and(|sum| sum >= least && sums.iter().all(|s| *s == sum)) {
                        break;
                    }
                    visitor.pause().await;
                }
                sums.extend(sum);
            }
            let fine = |sum: &u64| (least..=most).contains(sum) && *sum == sums[0];
            if sums.len() < visitor.gateways() || !sums.iter().all(fine) {
                visitor.violate(&format!("{sums:?} are counted, of {least} to {most}"));
            }
            visitor.sometimes(least > 0, "a visit was counted");
        })
    }
}

impl Visits {
    /// Whether the session can go on.
    async fn add_one(&self, visitor: &Visitor, session: SessionId, number: u64) -> bool {
        let sequence = Sequence(number);
        let call = Call { session, sequence, acknowledged_below: sequence };
        let meta = Addition { call, add: Add::new(NAME, 1) }.to_bytes();
        for attempt in 0..ATTEMPTS {
            match visitor.ask(visitor.any_gateway(), OP_ADD, meta.clone(), None).await {
                Ok(_) => {
                    visitor.count_operation();
                    visitor.sometimes(attempt > 0, "an addition in doubt was repeated");
                    self.acknowledged.fetch_add(1, Ordering::Relaxed);
                    return true;
                }
                Err(e) if matches!(e.kind, Kind::Invalid | Kind::Bug) => {
                    visitor.violate(&format!("an addition was refused: {e}"));
                }
                // The session is over: nobody remembers what became of it.
                Err(e) if e.kind == Kind::Fenced => break,
                Err(_) => visitor.pause().await,
            }
        }
        self.in_doubt.fetch_add(1, Ordering::Relaxed);
        false
    }

    /// A sum that was never reached is wrong wherever it is read.
    async fn read(&self, visitor: &Visitor, gateway: usize) -> Option<u64> {
        let sum = visitor.ask(gateway, OP_READ, NAME.to_bytes(), None).await.ok()?;
        u64::from_bytes(&sum.meta).ok()
    }
}

fn with_visits(seed: u64, planted: &[&str]) -> Report {
    let guests: Vec<fn() -> Arc<dyn Guest>> = vec![|| Arc::new(Visits::default())];
    let planted = planted.iter().map(|bug| bug.to_string()).collect();
    let schedule = Schedule { guests, planted, ..Schedule::new(seed) };
    std::thread::scope(|scope| {
        // Waits nest, so a schedule wants a deep stack.
        let builder = std::thread::Builder::new().stack_size(256 << 20);
        builder.spawn_scoped(scope, || run(&schedule)).unwrap().join().unwrap()
    })
}

/// A check that never fails checks nothing.
#[test]
fn an_addition_that_counts_twice_is_noticed() {
    let noticed = (1..=6).any(|seed| {
        let report = with_visits(seed, &["view.answer-forgotten"]);
        report.violations.iter().any(|what| what.contains("are counted"))
    });
    assert!(noticed);
}

#[test]
fn what_was_acknowledged_counts_once_whatever_fails() {
    let mut repeated = false;
    for seed in 1..=3 {
        let report = with_visits(seed, &[]);
        assert_eq!(report.violations, Vec::<String>::new(), "seed {seed}");
        assert!(report.seen.contains_key("a visit was counted"), "{:?}", report.seen);
        repeated |= report.seen.contains_key("an addition in doubt was repeated");
    }
    assert!(repeated, "no addition was sent twice");
}
