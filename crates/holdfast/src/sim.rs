//! `holdfast sim recovery`: the figures of the Dayu paper, simulated. Reads the options, runs the
//! failures on all cores, prints one object a combination, and draws the picture.
#![expect(
    clippy::disallowed_methods,
    reason = "a tool that people run: it reads and writes the files that they name"
)]

mod figures;

use crate::cli::SimRecovery;
use figures::{Figure, Job};
use holdfast_base::{Error, Result};
use holdfast_bench::report::rounded;
use holdfast_command::files::read_text;
use holdfast_command::output::Output;
use holdfast_env::HoldMutex;
use holdfast_recovery::model::Params;
use holdfast_recovery::sim::{Ideal, Outcome, Setup, ideal, simulate};
use holdfast_recovery::trace::{Trace, parse_csv};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use std::io::IsTerminal;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Failures of one run.
const FAILURES_MAX: usize = 10_000;

/// One failure: the ideal and the outcome of each job.
type Recovered = Vec<(Ideal, Outcome)>;

/// What a job came to over all its failures.
struct Summary {
    job: Job,
    failures: usize,
    seconds: f64,
    seconds_spread: (f64, f64),
    ideal: Ideal,
    /// Means of the outcomes.
    interference: f64,
    stragglers: f64,
    restarted: f64,
    resent_mb: f64,
    moved_mb: f64,
    share_scheduled: f64,
    compute_s: f64,
    lost: f64,
}

/// Simulates what the options or a figure ask for, prints a line a job, and draws it where a
/// directory is named. `Invalid` for a cluster that cannot be simulated.
pub fn recovery(options: &SimRecovery, out: &mut Output) -> Result<()> {
    holdfast_bench::scheduler::check(options.nodes, options.chunks)?;
    if !(1..=FAILURES_MAX).contains(&options.failures) {
        let n = options.failures;
        return Err(Error::invalid(format!(
            "simulate `{n}` failures: use between 1 and {FAILURES_MAX}"
        )));
    }
    let figure = Figure::parse(options.figure.as_deref())?;
    let mut groups = figure.jobs(options)?;
    let recorded = match &options.trace {
        Some(path) => Some(read_trace(path, options.nodes)?),
        None => None,
    };
    let bar = progress(groups.iter().map(|(_, failures, jobs)| failures * jobs.len()).sum());
    let mut summaries = Vec::new();
    for (setup, failures, jobs) in groups.drain(..) {
        for summary in run(&setup, failures, jobs, recorded.as_ref(), bar.as_ref())? {
            out.line(|| summary.text(), || summary.json())?;
            summaries.push(summary);
        }
    }
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    match &options.plot {
        Some(directory) => draw(&figure, &summaries, directory),
        None => Ok(()),
    }
}

fn read_trace(path: &Path, nodes: usize) -> Result<Trace> {
    let doing = |e: Error| e.context(format_args!("read trace `{}`", path.display()));
    let text = read_text(path).map_err(doing)?;
    parse_csv(&text, nodes, 250.0).map_err(doing)
}

fn progress(jobs: usize) -> Option<ProgressBar> {
    if !std::io::stderr().is_terminal() {
        return None;
    }
    let style = "recoveries {bar:30} {pos}/{len} {eta} left";
    let style = ProgressStyle::with_template(style).ok()?;
    Some(ProgressBar::new(jobs as u64).with_style(style))
}

/// Runs each failure once for every job. A failure's trace and tasks are made once and shared.
fn run(
    setup: &Setup,
    failures: usize,
    jobs: Vec<Job>,
    recorded: Option<&Trace>,
    bar: Option<&ProgressBar>,
) -> Result<Vec<Summary>> {
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, Result<Recovered>)>> = Mutex::new(Vec::new());
    let one = |failure: usize| -> Result<Recovered> {
        let scenario = setup.scenario(failure as u64, recorded);
        let mut ideals: Vec<(Params, Ideal)> = Vec::new();
        let mut outcomes = Vec::new();
        for job in &jobs {
            let params = job.config.options.params;
            // The ideal depends on alpha and the least bandwidth alone.
            let same = |other: &Params| {
                (other.alpha, other.b_min_mb_s) == (params.alpha, params.b_min_mb_s)
            };
            let bound = match ideals.iter().find(|(other, _)| same(other)) {
                Some((_, bound)) => *bound,
                None => {
                    let bound = ideal(&scenario, &params);
                    ideals.push((params, bound));
                    bound
                }
            };
            outcomes.push((bound, simulate(&scenario, &job.config)?));
            if let Some(bar) = bar {
                bar.inc(1);
            }
        }
        Ok(outcomes)
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores.min(failures) {
            scope.spawn(|| {
                loop {
                    let failure = next.fetch_add(1, Ordering::Relaxed);
                    if failure >= failures {
                        break;
                    }
                    let result = one(failure);
                    done.held().push((failure, result));
                }
            });
        }
    });
    let mut done = done.into_inner().expect("no holder of this lock panics");
    // Sums of floats depend on their order.
    done.sort_by_key(|(failure, _)| *failure);
    let done: Vec<Recovered> = done.into_iter().map(|(_, result)| result).collect::<Result<_>>()?;
    Ok(jobs.into_iter().enumerate().map(|(at, job)| Summary::new(job, at, &done)).collect())
}

impl Summary {
    fn new(job: Job, at: usize, done: &[Recovered]) -> Summary {
        let outcomes = || done.iter().map(|all| &all[at]);
        let mean = |of: &dyn Fn(&(Ideal, Outcome)) -> f64| {
            outcomes().map(of).sum::<f64>() / done.len().max(1) as f64
        };
        let seconds = outcomes().map(|(_, outcome)| outcome.seconds);
        Summary {
            failures: done.len(),
            seconds: mean(&|(_, o)| o.seconds),
            seconds_spread: seconds.fold((f64::MAX, 0.0), |(a, b), s| (a.min(s), b.max(s))),
            ideal: Ideal {
                fluid_s: mean(&|(i, _)| i.fluid_s),
                feasible_s: mean(&|(i, _)| i.feasible_s),
            },
            interference: mean(&|(_, o)| o.interference),
            stragglers: mean(&|(_, o)| o.stragglers as f64),
            restarted: mean(&|(_, o)| o.restarted as f64),
            resent_mb: mean(&|(_, o)| o.resent_mb),
            moved_mb: mean(&|(_, o)| o.moved_mb),
            share_scheduled: mean(&|(_, o)| o.share_scheduled / o.plans.max(1) as f64),
            compute_s: mean(&|(_, o)| o.compute_s),
            lost: mean(&|(_, o)| o.lost as f64),
            job,
        }
    }

    fn text(&self) -> String {
        let job = &self.job;
        let label = format!("{} {} {}", job.algorithm, job.allocator, job.variant);
        if job.config.endless_s.is_some() {
            let tb = self.moved_mb / 1e6;
            return format!(
                "{label:<32} {:>6} nodes {tb:>8.1} TB in {:.0} s",
                job.nodes, self.seconds
            );
        }
        format!(
            "{label:<32} {:>7.2} s ({:.1} to {:.1}), {:.3} of ideal, {:.3} of feasible, \
             interference {:.2}%, {:.0} stragglers",
            self.seconds,
            self.seconds_spread.0,
            self.seconds_spread.1,
            self.seconds / self.ideal.fluid_s,
            self.seconds / self.ideal.feasible_s,
            100.0 * self.interference,
            self.stragglers
        )
    }

    fn json(&self) -> Value {
        let job = &self.job;
        let endless = job.config.endless_s.is_some();
        let ratio = |bound: f64| if endless { Value::Null } else { rounded(self.seconds / bound) };
        let params = &job.config.options.params;
        json!({
            "algorithm": job.algorithm,
            "allocator": job.allocator,
            "variant": job.variant,
            "seconds": rounded(self.seconds),
            "ratio_to_ideal": ratio(self.ideal.fluid_s),
            "ratio_to_feasible": ratio(self.ideal.feasible_s),
            "interference": rounded(self.interference),
            "stragglers": rounded(self.stragglers),
            "failures": self.failures,
            "spread": {"min": rounded(self.seconds_spread.0), "max": rounded(self.seconds_spread.1)},
            "ideal_seconds": rounded(self.ideal.fluid_s),
            "feasible_seconds": rounded(self.ideal.feasible_s),
            "restarted": rounded(self.restarted),
            "resent_bytes": rounded(self.resent_mb * 1e6),
            "bytes": rounded(self.moved_mb * 1e6),
            "share_scheduled": rounded(self.share_scheduled),
            "compute_seconds": rounded(self.compute_s),
            "lost": rounded(self.lost),
            "nodes": job.nodes,
            "alpha": rounded(f64::from(params.alpha)),
            "beta": rounded(f64::from(params.beta)),
        })
    }
}

fn draw(figure: &Figure, summaries: &[Summary], directory: &Path) -> Result<()> {
    let doing = |path: &Path, e: std::io::Error| {
        Error::from(e).context(format_args!("write figure `{}`", path.display()))
    };
    std::fs::create_dir_all(directory).map_err(|e| doing(directory, e))?;
    for (name, chart) in figure.charts(summaries) {
        for (extension, bytes) in [("svg", chart.svg().into_bytes()), ("png", chart.png()?)] {
            let path = directory.join(format!("{name}.{extension}"));
            std::fs::write(&path, bytes).map_err(|e| doing(&path, e))?;
        }
    }
    Ok(())
}
