//! `cargo run -p holdfast-sim -- --seed S`: one schedule, with its trace if it fails.
//! `-- --schedules N [--seed FIRST]`: many on all cores; the first failing seed and how to repeat it.
#![forbid(unsafe_code)]

use holdfast_base::error::panic_text;
use holdfast_env::HoldMutex;
use holdfast_env::trial::Drawn;
use holdfast_sim::guests;
use holdfast_sim::world::cell::SECOND;
use holdfast_sim::world::{
    Report, SCHEDULES_FOR_ALL, SCHEDULES_FOR_BORDERS, SOMETIMES, SOMETIMES_SMALL, Schedule, run,
};
use holdfast_sim::{STACK_BYTES, on_a_deep_stack};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// In so many schedules a limit has to be drawn small before one that was never crossed is a fault: some
/// are only asked for where something rare has happened, so that few schedules draw them at all.
const DRAWN_TO_BE_JUDGED: u64 = 5;

struct Arguments {
    seed: u64,
    schedules: Option<u64>,
    /// Behind the first `least`, schedules begin while this file is there.
    while_there: Option<PathBuf>,
    least: u64,
    calm: bool,
    repair: bool,
    trace: bool,
    /// Other than drawn.
    nodes: Option<usize>,
    shards: Option<u16>,
    threads: usize,
    /// How long clients work; faults begin within what comes before the last 25 of them.
    seconds: Option<u64>,
    /// Sync sites that do nothing: deliberate bugs.
    without: Vec<String>,
    /// Bugs that are planted by name.
    planted: Vec<String>,
    /// Beside those that are drawn.
    guests: Vec<guests::Make>,
    usual_limits: bool,
    unruly: bool,
    brokers: bool,
    orderly: bool,
}

fn options() -> Result<Arguments, String> {
    let mut options = Arguments {
        seed: 1,
        schedules: None,
        while_there: None,
        least: 0,
        calm: false,
        repair: false,
        seconds: None,
        trace: false,
        nodes: None,
        shards: None,
        threads: std::thread::available_parallelism().map_or(1, |n| n.get()),
        without: Vec::new(),
        planted: Vec::new(),
        guests: Vec::new(),
        usual_limits: false,
        unruly: false,
        brokers: false,
        orderly: false,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        if word == "--without" {
            options.without.extend(words.next());
            continue;
        }
        if word == "--while" {
            options.while_there = words.next().map(PathBuf::from);
            continue;
        }
        if word == "--plant" {
            options.planted.extend(words.next());
            continue;
        }
        if word == "--guest" {
            let name = words.next().unwrap_or_default();
            let known = guests::ALL.iter().find(|(known, _)| *known == name);
            options.guests.push(known.ok_or(format!("`--guest {name}`: no such guest"))?.1);
            continue;
        }
        let mut number = || {
            let text = words.next().ok_or(format!("`{word}` wants a number"))?;
            text.parse::<u64>().map_err(|_| format!("`{word} {text}`: not a number"))
        };
        match word.as_str() {
            "--seed" => options.seed = number()?,
            "--schedules" => options.schedules = Some(number()?),
            "--least" => options.least = number()?,
            "--nodes" => options.nodes = Some(number()? as usize),
            "--shards" => options.shards = Some(number()? as u16),
            "--threads" => options.threads = number()? as usize,
            "--seconds" => options.seconds = Some(number()?),
            "--calm" => options.calm = true,
            "--repair" => options.repair = true,
            "--usual-limits" => options.usual_limits = true,
            "--unruly" => options.unruly = true,
            "--brokers" => options.brokers = true,
            "--orderly" => options.orderly = true,
            "--trace" => options.trace = true,
            _ => return Err(format!("`{word}` is not known: see docs/testing.md")),
        }
    }
    Ok(options)
}

fn schedule(options: &Arguments, seed: u64, trace: bool) -> Schedule {
    let schedule = match (options.calm, options.repair) {
        (true, _) => Schedule::calm(seed),
        (_, true) => Schedule::repair(seed),
        _ => Schedule::new(seed),
    };
    let (work_ns, faults_ns) = match options.seconds {
        Some(seconds) => (seconds * SECOND, seconds.saturating_sub(25) * SECOND),
        None => (schedule.work_ns, schedule.faults_ns),
    };
    let guests = if options.guests.is_empty() { &schedule.guests } else { &options.guests };
    Schedule {
        guests: guests.clone(),
        nodes: options.nodes.unwrap_or(schedule.nodes),
        shards: options.shards.unwrap_or(schedule.shards),
        trace: trace && !options.trace,
        aloud: options.trace,
        sites_off: options.without.clone(),
        planted: options.planted.clone(),
        usual_limits: options.usual_limits,
        unruly: options.unruly || (schedule.unruly && !options.orderly),
        brokers: options.brokers || (schedule.brokers && !options.orderly),
        work_ns,
        faults_ns,
        ..schedule
    }
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(e) => {
            eprintln!("holdfast-sim: {e}");
            return ExitCode::from(2);
        }
    };
    match options.schedules {
        Some(schedules) => many(&options, schedules),
        None => one(&options),
    }
}

/// What the schedules drew for each internal limit.
#[derive(Default)]
struct Limits(Mutex<BTreeMap<&'static str, Limit>>);

#[derive(Clone, Copy, Default)]
struct Limit {
    usual: u64,
    /// Schedules in which it was smaller than usual, and those in which its border was crossed.
    small: u64,
    crossed: u64,
}

impl Limits {
    fn add(&self, knobs: &BTreeMap<&'static str, Drawn>) {
        let mut limits = self.0.held();
        for (name, drawn) in knobs {
            let limit = limits.entry(name).or_default();
            limit.usual = drawn.usual;
            limit.small += u64::from(drawn.value != drawn.usual);
            limit.crossed += u64::from(drawn.crossed);
        }
    }

    fn print(&self) {
        for (name, limit) in &*self.0.held() {
            let Limit { usual, small, crossed } = limit;
            println!(
                "limit {name}: {usual}, drawn small in {small} schedules, crossed in {crossed}"
            );
        }
    }

    fn never_crossed(&self) -> Vec<&'static str> {
        let limits = self.0.held();
        // Sockets are not simulated: what crosses their borders are the tests of `env` and `client`. Nor are other
        // regions, which streams of tables go to: those are a world of their own in `table`.
        const OF_REGIONS: [&str; 3] = ["table.batch", "table.settle-bytes", "table.settle-entries"];
        let simulated = |name: &str| !name.starts_with("net.") && !OF_REGIONS.contains(&name);
        let never = limits.iter().filter(|(name, limit)| {
            limit.crossed == 0 && limit.small >= DRAWN_TO_BE_JUDGED && simulated(name)
        });
        never.map(|(name, _)| *name).collect()
    }
}

fn one(options: &Arguments) -> ExitCode {
    let report = on_a_deep_stack(|| run(&schedule(options, options.seed, true)));
    let failed = !report.violations.is_empty();
    if failed {
        report.trace.iter().for_each(|line| println!("{line}"));
    }
    report.findings.iter().for_each(|(cell, what)| println!("n{cell} found: {what}"));
    println!(
        "seed {}: {} operations, {} faults {:?}, {} simulated seconds, digest {:016x}",
        report.seed,
        report.operations,
        report.faults,
        report.fault_kinds,
        report.simulated_ns / 1_000_000_000,
        report.digest
    );
    println!("seen: {:?}", report.seen);
    println!("limits: {:?}", report.knobs);
    report.violations.iter().for_each(|what| println!("VIOLATION: {what}"));
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn many(options: &Arguments, schedules: u64) -> ExitCode {
    let next = AtomicU64::new(options.seed);
    let failed: Mutex<Vec<Report>> = Mutex::default();
    let seen: Mutex<BTreeMap<&str, u64>> = Mutex::default();
    let limits = Limits::default();
    let (ran, operations, faults) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let work = || loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        let is_over = || options.while_there.as_ref().is_some_and(|file| !file.exists());
        let begun = seed - options.seed;
        if begun >= schedules || begun >= options.least && is_over() {
            return;
        }
        let schedule = schedule(options, seed, false);
        let ended = catch_unwind(AssertUnwindSafe(|| run(&schedule)));
        // Others go on, and the seed is told.
        let report = ended.unwrap_or_else(|panic| {
            let violations = vec![format!("panicked: {}", panic_text(&*panic))];
            Report { seed, violations, ..Report::default() }
        });
        ran.fetch_add(1, Ordering::Relaxed);
        operations.fetch_add(report.operations, Ordering::Relaxed);
        faults.fetch_add(report.faults, Ordering::Relaxed);
        for (what, times) in &report.seen {
            *seen.held().entry(what).or_default() += times;
        }
        limits.add(&report.knobs);
        if let Some(what) = report.violations.first() {
            println!("seed {seed}: {what}");
            failed.held().push(report);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..options.threads {
            let builder = std::thread::Builder::new().stack_size(STACK_BYTES);
            builder.spawn_scoped(scope, work).expect("a thread can be had");
        }
    });
    let seen = seen.into_inner().expect("no holder panics");
    println!("seen: {seen:#?}");
    limits.print();
    // Of a run that somebody else's time bounds it is not asked what happened: that would depend on the machine.
    let asked = options.while_there.is_none()
        && !options.calm
        && !options.repair
        && !options.orderly
        && options.without.is_empty()
        && options.planted.is_empty();
    let (all, some) = (schedules >= SCHEDULES_FOR_ALL, schedules >= SCHEDULES_FOR_BORDERS);
    // Usual sizes are too large for schedules of two minutes to cross: that is why they are drawn.
    let small = some && !options.usual_limits;
    let borders = if small { limits.never_crossed() } else { Vec::new() };
    let expected = SOMETIMES.iter().filter(|_| all);
    let expected = expected.chain(SOMETIMES_SMALL.iter().filter(|_| small)).copied();
    let never = expected.filter(|what| !seen.contains_key(what));
    let never: Vec<&str> = never.chain(borders).filter(|_| asked).collect();
    println!(
        "{} schedules ran, {} operations, {} faults, {} failed",
        ran.into_inner(),
        operations.into_inner(),
        faults.into_inner(),
        failed.held().len()
    );
    let failed = failed.into_inner().expect("no holder panics");
    match failed.iter().map(|report| report.seed).min() {
        None if never.is_empty() => ExitCode::SUCCESS,
        None => {
            println!("never happened, so nothing is known of it: {never:?}");
            ExitCode::FAILURE
        }
        Some(seed) => {
            println!("the first that failed: cargo run -p holdfast-sim -- --seed {seed}");
            ExitCode::FAILURE
        }
    }
}
