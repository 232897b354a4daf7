//! Threads with rounds: those of roles that have a port, too, and the two without one: the keeper,
//! which scrubs, compacts and repairs, and the member, which gives signs of life and leads.

use super::{Context, Metrics, Role, seconds};
use holdfast_base::Result;
use holdfast_cluster::liveness::LivenessOptions;
use holdfast_env::tasks::{self, Stop, Task};
use holdfast_env::{Clock, event, local};
use holdfast_node::{Condition, Keeper, KeeperOptions, Member, MemberOptions, Node, Watch};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Unit;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Time between two rounds of housekeeping.
const KEEP: Duration = Duration::from_secs(1);
/// Time between two rounds of a member of a cluster: several a beat.
const MEMBER: Duration = Duration::from_millis(40);

/// A round that takes longer is stuck: the longest ones copy or read a chunk.
const ROUND_MAX: Duration = Duration::from_secs(300);

/// A thread that does something again and again until it is ended; it tells if a round is stuck.
pub struct Rounds {
    name: &'static str,
    task: Task,
    stop: Stop,
    clock: Arc<dyn Clock>,
    /// When the round that is under way began; 0 between two.
    began_ns: Arc<AtomicU64>,
}

impl Role for Rounds {
    fn health(&self) -> Option<Watch> {
        Some(self.watch())
    }

    fn end(self: Box<Self>) -> Result<()> {
        Rounds::end(*self);
        Ok(())
    }
}

impl Rounds {
    /// Calls `round` with the time until it is ended, with a rest before each call.
    pub fn start(
        context: &Context<'_>,
        (name, rest): (&'static str, Duration),
        mut round: impl FnMut(u64) + Send + 'static,
    ) -> Result<Rounds> {
        let (stop, began_ns) = (Stop::new(), Arc::new(AtomicU64::new(0)));
        let clock = context.node.machine.clock.clone();
        let own = (stop.clone(), began_ns.clone(), clock.clone());
        let task = tasks::spawn(name, move || {
            let (stop, began_ns, clock) = own;
            while !stop.sleep_until_stop(rest) {
                let now_ns = clock.monotonic_ns();
                began_ns.store(now_ns, Ordering::Relaxed);
                round(now_ns);
                began_ns.store(0, Ordering::Relaxed);
            }
        })?;
        Ok(Rounds { name, task, stop, clock, began_ns })
    }

    /// Tells a round that has taken longer than [`ROUND_MAX`].
    pub fn watch(&self) -> Watch {
        let (name, clock, began_ns) = (self.name, self.clock.clone(), self.began_ns.clone());
        Box::new(move || {
            let began_ns = began_ns.load(Ordering::Relaxed);
            stuck(name, began_ns, clock.monotonic_ns()).into_iter().collect()
        })
    }

    /// Waits for the round that is under way.
    pub fn end(self) {
        self.stop.request();
        self.task.join();
    }
}

fn stuck(name: &str, began_ns: u64, now_ns: u64) -> Option<Condition> {
    let taken = Duration::from_nanos(now_ns.saturating_sub(began_ns));
    (began_ns != 0 && taken > ROUND_MAX).then(|| {
        let sentence = format!(
            "the thread `{name}` has been in one round for {} s: look at the disks that it works \
             on, and at the network; a restart ends it",
            taken.as_secs()
        );
        Condition::new("thread", sentence)
    })
}

/// Rounds of what the node does for itself: scrubbing, deleting, giving memory back, and telling of
/// views that stopped.
pub fn keeper(context: &Context<'_>) -> Result<Option<Box<dyn Role>>> {
    let Context { config, node, .. } = *context;
    let mut keeper = Keeper::new(
        node.clone(),
        KeeperOptions {
            scrub_bytes_per_second: config.scrub_bytes(),
            grace_ms: config.grace_ms,
            unclosed_idle_ms: config.unclosed_hours.saturating_mul(3_600_000),
            ..KeeperOptions::default()
        },
    );
    node.watch(context.audit.watch());
    let (audit, audit_bytes) = (context.audit.clone(), config.audit_bytes());
    let (node, budget) = (node.clone(), context.budget.clone());
    let views = context.views.clone();
    let why_stopped = {
        let node = node.clone();
        move || [node.stopped_views(), views.without_room()].concat()
    };
    let mut told = why_stopped();
    told.iter().for_each(|why| event!(ViewStopped, why));
    let rounds = Rounds::start(context, ("keeper", KEEP), move |now_ns| {
        let stopped = why_stopped();
        for why in stopped.iter().filter(|why| !told.contains(why)) {
            event!(ViewStopped, why);
        }
        for why in told.iter().filter(|why| !stopped.contains(why)) {
            event!(ViewResumed, format_args!("it is so no more: {why}"));
        }
        told = stopped;
        keeper.step(now_ns);
        if let Err(e) = audit.keep_below(audit_bytes) {
            node.report_finding(format!("trim the audit trail: {e}"));
        }
        if budget.fell() {
            local::give_memory_back();
        }
    })?;
    Ok(Some(Box::new(rounds)))
}

/// Gives signs of life, and says how long those of a controller take.
struct MemberRole {
    rounds: Rounds,
    node: Arc<Node>,
}

impl Role for MemberRole {
    fn health(&self) -> Option<Watch> {
        Some(self.rounds.watch())
    }

    fn metrics(&self) -> Option<Metrics> {
        let node = self.node.clone();
        Some(Box::new(move |registry| {
            let beaten = node.beats.told();
            let (count, taken) = (Counter::<u64>::default(), Counter::<f64, AtomicU64>::default());
            count.inc_by(beaten.count);
            taken.inc_by(seconds(beaten.taken_ns));
            let last = Gauge::<f64, AtomicU64>::default();
            last.set(seconds(beaten.last_ns));
            let help = "Beats that this node, a controller, has appended to the log and read again";
            registry.register("log_beats", help, count);
            let help = "How long these beats took from their append until they were read";
            registry.register_with_unit("log_beat", help, Unit::Seconds, taken);
            let help = "How long the last of these beats took";
            registry.register_with_unit("log_beat_last", help, Unit::Seconds, last);
        }))
    }

    fn end(self: Box<Self>) -> Result<()> {
        self.rounds.end();
        Ok(())
    }
}

/// A node that may not be itself any more ends at once, so that nobody is answered by it.
pub fn member(context: &Context<'_>) -> Result<Option<Box<dyn Role>>> {
    let node = context.node.clone();
    let liveness = LivenessOptions { lost_ms: context.config.lost_ms };
    let mut member = Member::new(node.clone(), MemberOptions { liveness });
    let rounds = Rounds::start(context, ("member", MEMBER), move |now_ns| {
        if let Err(e) = member.step(now_ns) {
            event!(NodeEnds, e);
            std::process::exit(1);
        }
        if let Err(e) = node.leader.step(&node, now_ns) {
            node.report_finding(format!("lead the cluster: {e}"));
        }
    })?;
    Ok(Some(Box::new(MemberRole { rounds, node: context.node.clone() })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_that_does_not_end_is_told_and_one_that_rests_is_not() {
        let second = 1_000_000_000;
        assert_eq!(stuck("keeper", 0, 1_000_000 * second), None);
        assert_eq!(stuck("keeper", 5 * second, 305 * second), None);
        let condition = stuck("keeper", 5 * second, 306 * second).unwrap();
        assert!(condition.sentence.contains("`keeper`") && condition.sentence.contains("301 s"));
    }
}
