//! Servers that count by their leases: each is looked at once a second, and no read waits for a look.
//! docs/decisions/0028 says what holds.

use super::Router;
use super::task::Task;
use crate::fleet::{Fleet, Outcome, Request, Transport};
use crate::lookaside::command;
use crate::lookaside::standing::{Given, LOOK_NS, Standing, nobody_gives};
use crate::route::plan::RoutePlan;
use crate::wire::Shape;
use holdfast_env::planted;

/// A server, and a lease that it may have.
struct Watch {
    server: u32,
    lease: usize,
    /// It was asked, and has not answered.
    is_asked: bool,
}

/// What is known of servers' leases.
pub struct Leases {
    watches: Vec<Watch>,
    /// By watch.
    standing: Standing,
    /// By lease and server: the number of the watch.
    watch_of: Vec<Vec<Option<u32>>>,
    /// By lease.
    given: Vec<Given>,
    /// A lease that nobody gives, which is to be told.
    untold: Option<usize>,
    /// Before then nobody is to be asked.
    due_ns: u64,
}

impl Leases {
    pub fn new(plan: &RoutePlan) -> Leases {
        let mut watches = Vec::new();
        let mut watch_of = vec![vec![None; plan.members.len()]; plan.leases.len()];
        for (lease, of) in watch_of.iter_mut().enumerate() {
            for server in plan.leased(lease) {
                of[server as usize] = Some(watches.len() as u32);
                watches.push(Watch { server, lease, is_asked: false });
            }
        }
        let due_ns = if watches.is_empty() { u64::MAX } else { 0 };
        let (standing, given) =
            (Standing::new(watches.len()), vec![Given::default(); watch_of.len()]);
        Leases { standing, watches, watch_of, given, untold: None, due_ns }
    }

    fn watch(&self, lease: Option<usize>, server: u32) -> Option<u32> {
        self.watch_of[lease?][server as usize]
    }

    /// Whether a server may be asked something for a pool of a lease. A dead one may: it is its gutter that will be.
    pub fn may_count(
        &mut self,
        lease: Option<usize>,
        server: u32,
        fleet: &Fleet,
        now_ns: u64,
    ) -> bool {
        let Some(watch) = self.watch(lease, server) else { return true };
        if !fleet.is_up(server) {
            return true;
        }
        let ended = fleet.ended(server);
        let is_asked = self.watches[watch as usize].is_asked;
        if !is_asked && self.standing.is_due(watch, ended, now_ns) {
            self.due_ns = 0;
        }
        self.standing.may_count(watch, ended, now_ns)
    }

    /// Whether what a server says counts that comes now.
    pub fn count(&self, lease: Option<usize>, server: u32, now_ns: u64) -> bool {
        let watch = self.watch(lease, server);
        watch.is_none_or(|watch| self.standing.counts(watch, now_ns))
            || planted!("cache.router-believes-late-answers")
    }
}

impl Router {
    /// When [`Router::look`] has something to do.
    pub fn next_look_ns(&self) -> u64 {
        self.leases.due_ns
    }

    /// Asks those servers for their leases that have not been asked lately.
    pub fn look(&mut self, fleet: &mut Fleet, now_ns: u64) {
        if now_ns < self.leases.due_ns {
            return;
        }
        self.leases.due_ns = u64::MAX;
        for number in 0..self.leases.watches.len() as u32 {
            let Watch { server, lease, is_asked } = self.leases.watches[number as usize];
            if is_asked {
                continue;
            }
            let ended = fleet.ended(server);
            if !fleet.is_up(server) || !self.leases.standing.is_due(number, ended, now_ns) {
                let due_ns = self.leases.standing.due_ns(number).max(now_ns + 1);
                let due_ns = if fleet.is_up(server) { due_ns } else { now_ns + LOOK_NS };
                self.leases.due_ns = self.leases.due_ns.min(due_ns);
                continue;
            }
            self.leases.watches[number as usize].is_asked = true;
            self.request.clear();
            command::look(&self.plan.leases[lease], &mut self.request);
            self.request.extend_from_slice(command::END);
            let ticket = self.keep(Task::Look { watch: number, ended, asked_ns: now_ns });
            let (transport, shape, bytes) = (Transport::Tcp, Shape::Quiet, &self.request[..]);
            let request = Request { server, transport, shape, keys: 0, ticket, bytes };
            // Over another connection it says nothing of who was asked before.
            fleet.submit_unless_ended(request, ended);
        }
    }

    /// What is to be told of a lease that nobody gives.
    pub fn take_warning(&mut self) -> Option<String> {
        let lease = self.leases.untold.take()?;
        Some(nobody_gives(&self.plan.leases[lease]))
    }

    /// A server has said whether it has a lease, or has said nothing.
    pub(super) fn looked(&mut self, watch: u32, ended: u64, asked_ns: u64, outcome: Outcome<'_>) {
        let of = &mut self.leases.watches[watch as usize];
        of.is_asked = false;
        let key = &self.plan.leases[of.lease];
        let has_lease = match outcome {
            Outcome::Answer(answer) => {
                let has_lease = command::has(answer, key);
                if self.leases.given[of.lease].looked(has_lease, asked_ns) {
                    self.leases.untold = Some(of.lease);
                }
                has_lease
            }
            Outcome::Lost | Outcome::Dead { .. } => false,
        };
        self.leases.standing.looked(watch, has_lease, ended, asked_ns);
        self.leases.due_ns = self.leases.due_ns.min(self.leases.standing.due_ns(watch));
    }
}
