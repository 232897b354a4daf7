//! `cargo run -p holdfast-sim -- --seed S`: one schedule, with its trace if it fails.
//! `-- --schedules N [--seed FIRST]`: many on all cores; the first failing seed and how to repeat it.
#![forbid(unsafe_code)]

use holdfast_env::rules::Rule;
use holdfast_sim::world::cell::SECOND;
use holdfast_sim::world::{Report, SCHEDULES_FOR_ALL, SOMETIMES, Schedule, run};
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Waits nest: a suspended round holds its frames while others run.
const STACK_BYTES: usize = 256 << 20;

struct Options {
    seed: u64,
    schedules: Option<u64>,
    calm: bool,
    trace: bool,
    nodes: usize,
    threads: usize,
    /// How long clients work; faults begin within what comes before the last 25 of them.
    seconds: Option<u64>,
    /// Sync sites that do nothing, and rules that are broken: deliberate bugs.
    without: Vec<String>,
}

fn options() -> Result<Options, String> {
    let mut options = Options {
        seed: 1,
        schedules: None,
        calm: false,
        seconds: None,
        trace: false,
        nodes: 5,
        threads: std::thread::available_parallelism().map_or(1, |n| n.get()),
        without: Vec::new(),
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        if word == "--without" {
            options.without.extend(words.next());
            continue;
        }
        let mut number = || {
            let text = words.next().ok_or(format!("`{word}` wants a number"))?;
            text.parse::<u64>().map_err(|_| format!("`{word} {text}`: not a number"))
        };
        match word.as_str() {
            "--seed" => options.seed = number()?,
            "--schedules" => options.schedules = Some(number()?),
            "--nodes" => options.nodes = number()? as usize,
            "--threads" => options.threads = number()? as usize,
            "--seconds" => options.seconds = Some(number()?),
            "--calm" => options.calm = true,
            "--trace" => options.trace = true,
            _ => return Err(format!("`{word}` is not known: see docs/testing.md")),
        }
    }
    Ok(options)
}

fn schedule(options: &Options, seed: u64, trace: bool) -> Schedule {
    let schedule = match options.calm {
        true => Schedule::calm(seed),
        false => Schedule::new(seed),
    };
    let (work_ns, faults_ns) = match options.seconds {
        Some(seconds) => (seconds * SECOND, seconds.saturating_sub(25) * SECOND),
        None => (schedule.work_ns, schedule.faults_ns),
    };
    let rules_off = Rule::ALL.iter().filter(|(name, _)| options.without.iter().any(|w| w == name));
    let rules_off = rules_off.map(|(_, rule)| *rule).collect();
    let sites_off = options.without.clone();
    let nodes = options.nodes;
    let (trace, aloud) = (trace && !options.trace, options.trace);
    Schedule { nodes, trace, aloud, sites_off, rules_off, work_ns, faults_ns, ..schedule }
}

fn on_a_deep_stack<T: Send>(what: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().stack_size(STACK_BYTES);
        let thread = builder.spawn_scoped(scope, what);
        thread.expect("a thread can be had").join().expect("the world does not panic")
    })
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

fn one(options: &Options) -> ExitCode {
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
    report.violations.iter().for_each(|what| println!("VIOLATION: {what}"));
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn many(options: &Options, schedules: u64) -> ExitCode {
    let next = AtomicU64::new(options.seed);
    let failed: Mutex<Vec<Report>> = Mutex::default();
    let seen: Mutex<BTreeMap<&str, u64>> = Mutex::default();
    let (ran, operations, faults) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let work = || loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= options.seed + schedules {
            return;
        }
        let report = run(&schedule(options, seed, false));
        ran.fetch_add(1, Ordering::Relaxed);
        operations.fetch_add(report.operations, Ordering::Relaxed);
        faults.fetch_add(report.faults, Ordering::Relaxed);
        for (what, times) in &report.seen {
            *seen.lock().expect("no holder panics").entry(what).or_default() += times;
        }
        if let Some(what) = report.violations.first() {
            println!("seed {seed}: {what}");
            failed.lock().expect("no holder panics").push(report);
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
    let asked = schedules >= SCHEDULES_FOR_ALL && !options.calm && options.without.is_empty();
    let never = SOMETIMES.iter().filter(|what| asked && !seen.contains_key(**what));
    let never: Vec<_> = never.collect();
    println!(
        "{} schedules ran, {} operations, {} faults, {} failed",
        ran.into_inner(),
        operations.into_inner(),
        faults.into_inner(),
        failed.lock().expect("no holder panics").len()
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
