//! `holdfast bench table`: what requests of tables over regions cost by distance, in virtual time:
//! the production core of crate `table` between regions with published round trips. Each figure is
//! beside its formula, which a network and a log that do only what must be done would take. And what
//! a table of one region costs that a node serves ([`served`]).

mod apart;
mod following;
mod records;
mod served;
mod sizes;
mod split;
mod takeover;

use super::report::{Figure, Report, Sample, asked, rounded};
use clap::Args;
use holdfast_base::{Error, Result};
use holdfast_command::output::Output;
use holdfast_table::sim::distance::Distance;
use holdfast_table::sim::figures::{self, Cell, Loss};
use holdfast_table::sim::world::Costs;
use holdfast_table::tablet::Mode;
use serde_json::{Value, json};
use served::Served;
use std::path::PathBuf;
use std::time::Duration;

const CASES: [&str; 12] = [
    "cells",
    "five",
    "mix",
    "moved",
    "loss",
    "puts",
    "gets",
    "sizes",
    "split",
    "apart",
    "following",
    "takeover",
];

/// What `bench table` is asked for.
#[derive(Args, Debug, Clone)]
pub struct TableBench {
    /// cells, five, mix, moved, loss, in virtual time; puts, gets, sizes, split, of a node; apart, following,
    /// takeover, of processes that are regions; or `all`
    #[arg(short = 't', long = "type", default_value = "all", value_name = "CASE")]
    pub kind: String,
    /// Requests of each cell; the mix takes 400 times as many
    #[arg(short = 'n', long, default_value_t = 50, value_name = "N")]
    pub requests: usize,
    /// Microseconds of a durable append
    #[arg(long, default_value_t = 1_000, value_name = "US")]
    pub append: u64,
    /// Microseconds between a client and its region, there and back
    #[arg(long, default_value_t = 200, value_name = "US")]
    pub local: u64,
    /// Percent of the writes of the mix that come from the record's home
    #[arg(long, default_value_t = 85, value_name = "PERCENT")]
    pub at_home: u64,
    /// Clients that put at once
    #[arg(long, default_value_t = 64, value_name = "N")]
    pub clients: u64,
    /// Records that are put, and got, in each repetition
    #[arg(long, default_value_t = 20_000, value_name = "N")]
    pub records: u64,
    /// Tablets of the node's table
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub tablets: u16,
    /// Records of the larger table of `sizes`
    #[arg(long, default_value_t = 20_000_000, value_name = "N")]
    pub many: u64,
    /// Records of the region that is lost in `takeover`
    #[arg(long, default_value_t = 1_000_000, value_name = "N")]
    pub taken: u64,
    /// Records of the tablet that is split, and those that are followed
    #[arg(long, default_value_t = 200_000, value_name = "N")]
    pub split_records: u64,
    /// Repetitions of puts and gets; the median is printed, with the spread
    #[arg(short = 'e', long = "repetitions", default_value_t = 5, value_name = "N")]
    pub repetitions: usize,
    /// Directory below which the node keeps its data [default: this one]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
}

/// Runs the cases that were asked for.
pub fn run(options: &TableBench, out: &mut Output) -> Result<()> {
    let costs = Costs { append_us: options.append, local_us: options.local, ..Costs::default() };
    if options.requests == 0
        || options.local == 0
        || options.at_home > 100
        || options.clients == 0
        || options.records == 0
        || options.many == 0
        || options.taken == 0
        || options.split_records < 100
    {
        return Err(Error::invalid(
            "measure tables: give at least one request, client, record and microsecond to a region, a hundred \
             records to split, and at most 100 percent at home",
        ));
    }
    for case in asked(&options.kind, &CASES)? {
        match case {
            "cells" => cells(options, &costs, &Distance::three(), &Cell::ALL, out)?,
            "five" => {
                let strong = [Cell::StrongWrite, Cell::StrongRead];
                cells(options, &costs, &Distance::five(), &strong, out)?;
            }
            "mix" => mix(options, &costs, out)?,
            "moved" => moved(&costs, out)?,
            "loss" => loss(&costs, out)?,
            "puts" => Served::start(options)?.puts(out)?,
            "sizes" => sizes::run(options, out)?,
            "split" => split::run(options, out)?,
            "following" => following::run(options, out)?,
            "takeover" => takeover::run(options, out)?,
            "apart" => apart::run(options, out)?,
            _ => Served::start(options)?.gets(out)?,
        }
    }
    Ok(())
}

fn failed(what: &str) -> impl Fn(String) -> Error + '_ {
    move |why| Error::bug(format!("measure {what}: {why}"))
}

/// A row: latencies beside a formula's, in microseconds.
fn row(
    case: String,
    latencies_us: Vec<u64>,
    formula_us: f64,
    (reach, is_virtual): (Value, bool),
    out: &mut Output,
) -> Result<()> {
    let seconds = latencies_us.iter().sum::<u64>() as f64 / 1e6;
    let mut sorted = latencies_us.clone();
    sorted.sort_unstable();
    let p999 = part(&sorted, 0.999);
    let nanoseconds = latencies_us.iter().map(|us| us * 1_000).collect();
    let sample = Sample::of_run(
        latencies_us.len() as u64,
        0,
        Duration::from_secs_f64(seconds),
        (0.0, 0.0),
        nanoseconds,
    );
    let mut report = Report {
        case,
        figure: Figure::MicrosecondsP50,
        limit_name: "the formula".to_owned(),
        limits: vec![formula_us],
        peer: None,
        samples: vec![sample],
    };
    let mut line = report.line();
    line["latency_us"]["p999"] = rounded(p999);
    line["reach"] = reach;
    line["virtual"] = json!(is_virtual);
    let text = report.text();
    out.line(|| text, || line)
}

/// A row of one figure, beside what it should be.
fn figure(
    case: &str,
    value: f64,
    unit: &str,
    (name, limit): (&str, f64),
    (reach, is_virtual): (Option<f64>, bool),
    out: &mut Output,
) -> Result<()> {
    let ratio = if limit == 0.0 { value } else { value / limit };
    let reached = reach.map_or(String::new(), |reach| format!("  (reach: {reach})"));
    let text = format!(
        "{case:<52} {} {unit}  {} of {name} {}{reached}",
        rounded(value),
        rounded(ratio),
        rounded(limit)
    );
    out.line(
        || text,
        || {
            json!({
                "case": case,
                "value": rounded(value),
                "limit": {"name": name, "value": rounded(limit), "unit": unit},
                "ratio_to_limit": rounded(ratio),
                "reach": reach,
                "better": "lower",
                "virtual": is_virtual,
            })
        },
    )
}

fn part(sorted: &[u64], part: f64) -> f64 {
    let at = ((sorted.len() as f64 * part) as usize).min(sorted.len().saturating_sub(1));
    sorted.get(at).map_or(0.0, |us| *us as f64)
}

fn cells(
    options: &TableBench,
    costs: &Costs,
    distance: &Distance,
    kinds: &[Cell],
    out: &mut Output,
) -> Result<()> {
    let regions = distance.regions();
    for kind in kinds {
        for m in 0..regions {
            for c in 0..regions {
                // At home, what was written shows.
                if *kind == Cell::CriticalAbsent && c == m {
                    continue;
                }
                let name = format!(
                    "{}, {regions} regions: {} from {}",
                    kind.name(),
                    distance.name(m),
                    distance.name(c)
                );
                let measured = figures::cell(*kind, distance, costs, (c, m), options.requests);
                let formula = kind.formula_us(distance, costs, c, m) as f64;
                let latencies = measured.map_err(failed(&name))?;
                row(name, latencies, formula, (json!(1.05), true), out)?;
            }
        }
    }
    Ok(())
}

fn mix(options: &TableBench, costs: &Costs, out: &mut Output) -> Result<()> {
    let distance = Distance::three();
    let count = options.requests * 400;
    let of = |mode| {
        let mut latencies = figures::mix(mode, &distance, costs, options.at_home, count)
            .map_err(failed("a mix of writes"))?;
        latencies.sort_unstable();
        Ok::<_, Error>(latencies)
    };
    let (timeline, strong) = (of(Mode::Timeline)?, of(Mode::Strong)?);
    let at_home = options.at_home;
    for (name, quantile, reach) in [
        ("p50", 0.5, None),
        ("p90", 0.9, None),
        ("p99", 0.99, Some(1.05)),
        ("p99.9", 0.999, Some(1.05)),
    ] {
        let case = format!("strong write, {at_home}% at home, {name}");
        let limit = ("a timeline write's", part(&timeline, quantile));
        let value = part(&strong, quantile);
        figure(&case, value, "us", limit, (reach, true), out)?;
    }
    Ok(())
}

fn moved(costs: &Costs, out: &mut Output) -> Result<()> {
    const WRITES: usize = 6;
    let remote = figures::moved(&Distance::three(), costs, WRITES)
        .map_err(failed("records whose users moved"))?;
    for (i, percent) in remote.iter().enumerate() {
        let case = format!("users moved: writes {} of a record that are remote", i + 1);
        let reach = (i >= 3).then_some(0.05);
        figure(&case, *percent, "percent", ("all", 100.0), (reach, true), out)?;
    }
    Ok(())
}

fn loss(costs: &Costs, out: &mut Output) -> Result<()> {
    let Loss { read_any_us, write_us, write_formula_us, takeover_us, takeover_formula_us } =
        figures::loss(&Distance::three(), costs);
    let us = |us: u64| us as f64;
    for (case, value, limit, reach) in [
        ("Virginia lost: read any in Ireland", read_any_us.1, ("before", read_any_us.0), 1.0),
        (
            "Oregon's strong write at home, before",
            write_us.0,
            ("the formula", write_formula_us.0),
            1.1,
        ),
        (
            "Virginia lost: Oregon's strong write at home",
            write_us.1,
            ("the formula over survivors", write_formula_us.1),
            1.1,
        ),
        (
            "Virginia lost: until its record is written again",
            takeover_us,
            ("the formula", takeover_formula_us),
            (us(takeover_formula_us) + 1e6) / us(takeover_formula_us),
        ),
    ] {
        let reach = (reach * 1000.0).round() / 1000.0;
        figure(case, us(value), "us", (limit.0, us(limit.1)), (Some(reach), true), out)?;
    }
    Ok(())
}
