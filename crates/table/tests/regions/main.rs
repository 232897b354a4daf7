//! Tables in three regions, each a cluster with a disk of its own, by production's driver, in virtual time and
//! from a seed: processes are killed at any moment, ways are cut and connections break with messages still on
//! their way, disks fill up, a log is erased and made again, and the table is made from several regions at once
//! and again and again. Then everything heals, and what clients were told is judged.

mod check;
mod faults;
mod people;
mod stories;
mod world;

use faults::Erasures;
use holdfast_env::HoldMutex;
use holdfast_env::trial::{Drawn, Trial};
use holdfast_sim::on_a_deep_stack;
use holdfast_sim::task::spawn;
use holdfast_wire::table::TableMode;
use people::{Client, History, operate, scan};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use world::{REGIONS, Visitor, World};

pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1000 * MS;
pub const KEYS: u64 = 5;
const CLIENTS: u64 = 6;
const WORK_NS: u64 = 40 * SECOND;
/// Healed, regions become quiet within this.
const QUIET_WITHIN_NS: u64 = 180 * SECOND;
/// No world lasts longer.
const LASTS_NS: u64 = 900 * SECOND;

#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub seed: u64,
    pub mode: TableMode,
    pub tablets: u16,
    /// What tables may have in memory in each region.
    pub memory_bytes: u64,
    /// Of each log: no entry is larger.
    pub segment_bytes: u64,
    /// Of a timeline table: regions are away for long, and operators say that they are lost. No log is lost then.
    pub seals: bool,
}

impl Plan {
    /// Of a seed: each mode in turn, one tablet or two.
    fn of(seed: u64) -> Plan {
        let mode = if seed.is_multiple_of(2) { TableMode::Strong } else { TableMode::Timeline };
        Plan {
            seed,
            mode,
            tablets: 1 + (seed / 2 % 2) as u16,
            memory_bytes: 1 << 30,
            segment_bytes: 64 << 10,
            seals: seed % 4 == 3,
        }
    }
}

/// What a world came to.
struct Report {
    violations: Vec<String>,
    digest: u64,
    requests: usize,
    answered: usize,
    seen: BTreeMap<&'static str, u64>,
    knobs: String,
    virtual_ns: u64,
    trace: Vec<String>,
}

/// Why a region is not at rest.
async fn restless(visitor: &Visitor) -> Option<String> {
    let mut held: Option<Vec<u64>> = None;
    for region in 0..REGIONS {
        let told = match visitor.describe(region).await {
            Ok(told) => told,
            Err(e) => return Some(format!("region {region} describes nothing: {e}")),
        };
        let cell = &visitor.world.cells[usize::from(region)];
        if cell.tablets().iter().any(|tablet| !tablet.branches().unsaid().is_empty()) {
            return Some(format!("region {region} has branches that nobody has said"));
        }
        if let Some(other) = told.others.iter().find(|other| !other.trouble.is_empty()) {
            return Some(format!("region {region} has trouble: {other:?}"));
        }
        for tablet in &told.tablets {
            let rests =
                |s: &holdfast_wire::table::StreamInfo| s.held == s.shown && s.leader == s.home;
            if tablet.tombstones > 0
                || !tablet.stopped.is_empty()
                || !tablet.streams.iter().all(rests)
            {
                return Some(format!("region {region}: {told:?}"));
            }
        }
        let own = told.tablets.iter().flat_map(|t| t.streams.iter().map(|s| s.held)).collect();
        if held.get_or_insert_with(|| Vec::clone(&own)) != &own {
            return Some(format!("region {region} holds {own:?}, region 0 {held:?}"));
        }
    }
    None
}

async fn become_quiet(visitor: &Visitor) {
    let until_ns = visitor.now_ns() + QUIET_WITHIN_NS;
    let mut why = None;
    while visitor.now_ns() < until_ns {
        why = restless(visitor).await;
        if why.is_none() || visitor.world.shared.is_broken() {
            return;
        }
        visitor.pause(SECOND / 2, SECOND).await;
    }
    let mut why = why.unwrap_or_default();
    for cell in &visitor.world.cells {
        for tablet in cell.tablets() {
            let streams: Vec<String> = tablet
                .streams()
                .map(|s| {
                    let members = s.members();
                    format!(
                        "{}: {} {:?} {:?} {members:?}",
                        s.id().0,
                        s.tail(),
                        s.promised(),
                        s.leading()
                    )
                })
                .collect();
            why += &format!("\n{}: log {:?}, {streams:#?}", cell.address, tablet.log());
        }
    }
    visitor.world.shared.violate(format!("nothing fails any more, and they do not rest: {why}"));
}

/// All that happens, until it was judged.
async fn live(world: Arc<World>, visitor: Visitor) {
    let (history, erasures) = (Arc::new(History::default()), Erasures::default());
    let end_ns = visitor.now_ns() + WORK_NS;
    let person = |name: String| Visitor::new(name, visitor.below(u64::MAX), &world);
    world.cells.iter().for_each(|cell| cell.start());
    for region in 0..REGIONS {
        let operator = person(format!("operator {region}"));
        // Whoever lost a log gets it back in the end, too.
        spawn(&world.net, operate(operator, history.clone(), region, end_ns));
    }
    for number in 0..CLIENTS {
        let region = (number % u64::from(REGIONS)) as u8;
        let client = Client::new(person(format!("client {number}")), &history, region);
        spawn(&world.net, client.work(end_ns));
    }
    let unlucky = person("fate".to_owned());
    spawn(&world.net, faults::happen(unlucky, erasures.clone(), end_ns - SECOND));
    visitor.pause(WORK_NS, WORK_NS).await;
    // What was drawn last is over by then.
    visitor.pause(12 * SECOND, 12 * SECOND).await;
    faults::heal(&world);
    wait_for_clients(&visitor, &history).await;
    let mut made = false;
    for _ in 0..60 {
        made = people::make(&visitor, &history, 0).await;
        if made || world.shared.is_broken() {
            break;
        }
        visitor.pause(SECOND / 2, SECOND).await;
    }
    if !made {
        return world.shared.violate("the table cannot be made".to_owned());
    }
    become_quiet(&visitor).await;
    for region in 0..REGIONS {
        let client = Client::new(person(format!("last client {region}")), &history, region);
        spawn(&world.net, client.put_all());
    }
    wait_for_clients(&visitor, &history).await;
    become_quiet(&visitor).await;
    if !world.shared.is_broken() {
        judge(&world, &visitor, &history, &erasures).await;
    }
    *world.told.held() = history.told();
}

async fn wait_for_clients(visitor: &Visitor, history: &History) {
    while history.busy.load(Ordering::Relaxed) > 0 {
        visitor.pause(SECOND / 4, SECOND / 2).await;
    }
}

async fn judge(world: &World, visitor: &Visitor, history: &History, erasures: &Erasures) {
    let mut shown = Vec::new();
    for region in 0..REGIONS {
        match scan(visitor, region).await {
            Ok(found) if region == 0 => shown = found,
            Ok(found) if found == shown => {}
            found => {
                let what = format!("T5: region {region} shows {found:?}, region 0 {shown:?}");
                return world.shared.violate(what);
            }
        }
    }
    let erasures = erasures.held().clone();
    if let Err(wrong) = check::all(world, &history.told(), &erasures, &shown) {
        world.shared.violate(wrong);
    }
}

fn run(plan: Plan, planted: &[&str], trace: bool) -> Report {
    run_story(plan, planted, trace, live)
}

/// A world in which this happens.
fn run_story<F: Future<Output = ()> + Send + 'static>(
    plan: Plan,
    planted: &[&str],
    trace: bool,
    story: impl FnOnce(Arc<World>, Visitor) -> F + Send + 'static,
) -> Report {
    let trial = planted.iter().fold(Trial::drawn(plan.seed), |trial, bug| trial.planting(bug));
    on_a_deep_stack(|| {
        let entered = trial.enter();
        let world = World::new(plan);
        if trace {
            world.net.start_trace();
        }
        let done = Arc::new(AtomicBool::new(false));
        let visitor = Visitor::new("somebody".to_owned(), plan.seed, &world);
        let (within, over) = (world.clone(), done.clone());
        spawn(&world.net, async move {
            story(within, visitor).await;
            over.store(true, Ordering::Relaxed);
        });
        while !done.load(Ordering::Relaxed) && !world.shared.is_broken() {
            assert!(world.net.step(), "nothing is on its way");
            assert!(world.net.now_ns() < LASTS_NS, "seed {}: it does not end", plan.seed);
        }
        let told = world.told.held();
        let report = Report {
            violations: world.shared.violations(),
            digest: world.net.digest(),
            requests: told.len(),
            answered: told.iter().filter(|told| told.answer.is_some()).count(),
            seen: entered.happened(),
            knobs: format!("{:?}", drawn_small(&entered.knobs())),
            virtual_ns: world.net.now_ns(),
            trace: world.net.take_trace(),
        };
        drop(told);
        world.forget();
        report
    })
}

fn drawn_small(knobs: &BTreeMap<&'static str, Drawn>) -> BTreeMap<&'static str, u64> {
    let small = knobs.iter().filter(|(_, drawn)| drawn.value != drawn.usual);
    small.map(|(name, drawn)| (*name, drawn.value)).collect()
}

/// What a run that never saw it says nothing about.
const SOMETIMES: &[&str] = &[
    "a create was killed in between and said again",
    "a log was erased",
    "a message of a broken connection arrived late",
    "a region came back with branches",
    "a region was told more than its way carries",
    "a request in doubt was repeated",
    "a write was refused by a full disk",
    "an answer of an earlier start came",
    "an erased log was made again",
    "another region took a stream over",
    "the power failed behind a sync",
];

fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// So many worlds see everything that has to happen.
const SEEDS: u64 = 20;

#[test]
fn three_regions_keep_every_promise_whatever_fails() {
    let (first, count) =
        (number("HOLDFAST_REGION_SEED", 0), number("HOLDFAST_REGION_SEEDS", SEEDS));
    let trace = std::env::var("HOLDFAST_REGION_TRACE").is_ok();
    let (mut seen, mut failed) = (BTreeMap::<&'static str, u64>::new(), Vec::new());
    for seed in first..first + count {
        let plan = Plan::of(seed);
        let report = run(plan, &[], trace);
        for line in &report.trace {
            println!("{line}");
        }
        println!(
            "seed {seed}, {:?}: {} requests, {} answered, {} virtual seconds",
            plan.mode,
            report.requests,
            report.answered,
            report.virtual_ns / SECOND
        );
        for (what, times) in report.seen {
            *seen.entry(what).or_default() += times;
        }
        if let Some(what) = report.violations.first() {
            println!("seed {seed}, {}: {what}", report.knobs);
            failed.push(seed);
        }
    }
    println!("{seen:#?}");
    assert!(failed.is_empty(), "seeds {failed:?} broke a promise");
    let missing: Vec<_> = SOMETIMES.iter().filter(|what| !seen.contains_key(*what)).collect();
    assert!(count < SEEDS || missing.is_empty(), "never happened: {missing:?}");
}

/// A timeline table whose region loses its log a second time: its third log had a number of the same height as
/// the second one, lower by chance in one of two, and whoever had heard the second heard the third no more.
#[test]
fn a_log_that_is_erased_twice_is_heard_again() {
    for seed in [319, 397] {
        assert_eq!(run(Plan::of(seed), &[], false).violations, Vec::<String>::new(), "seed {seed}");
    }
}

#[test]
fn the_same_seed_is_the_same_world() {
    let digest = |_| run(Plan::of(1), &[], false).digest;
    assert_eq!(digest(0), digest(1));
}
