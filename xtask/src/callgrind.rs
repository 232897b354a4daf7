//! `cargo xtask callgrind`: instructions a hot path takes, counted by valgrind, against recorded
//! baselines. Counts do not depend on the machine's load, so a regression shows in every build.
//!
//! Cost of a case = (instructions of N iterations - instructions of none) / N. Compilers differ,
//! and so do the kernels that a processor's features select: baselines name both. Valgrind offers
//! programs nothing beyond AVX2, so the wide kernels of newer processors never run here.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const BASELINES: &str = "callgrind-baselines.tsv";
const BINARY: &str = "release/holdfast-hotpaths";
/// A case fails when it grows by more than this.
const GROWTH_MAX_PERCENT: f64 = 5.0;

/// What was recorded, or is measured now.
#[derive(Clone, Debug, Default, PartialEq)]
struct Baselines {
    rustc: String,
    features: String,
    /// Instructions an iteration.
    cases: BTreeMap<String, f64>,
}

/// `--bless` records what is measured; further arguments name the cases to run, none means all.
pub fn run(root: &Path, arguments: &[&str]) -> Result<(), String> {
    let bless = arguments.contains(&"--bless");
    let wanted: Vec<&str> = arguments.iter().copied().filter(|a| *a != "--bless").collect();
    if let Some(option) = wanted.iter().find(|name| name.starts_with('-')) {
        return Err(format!("run callgrind: unknown option `{option}`, there is only --bless"));
    }
    let file = root.join(BASELINES);
    // Without the file nothing was recorded; the next message says what to do.
    let old = fs::read_to_string(&file).map(|text| parse(&text)).unwrap_or_default();
    let rustc = output(Command::new("rustc").arg("--version"))?.0.trim().to_owned();
    if !bless && old.rustc != rustc {
        return Err(format!(
            "compare instruction counts: the baselines are of `{}`, this is `{rustc}`: run \
             `cargo xtask callgrind --bless` on a known good commit first",
            old.rustc
        ));
    }
    output(crate::cargo(root).args([
        "build",
        "--quiet",
        "--release",
        "--package",
        "holdfast-hotpaths",
    ]))?;
    let features = output(valgrind(root, "none").arg("features"))?.0.trim().to_owned();
    if !bless && old.features != features {
        println!(
            "callgrind: SKIPPED, NOTHING WAS COMPARED: the baselines are of a processor with \
             `{}`, valgrind offers `{features}` here",
            old.features
        );
        return Ok(());
    }
    let mut new = Baselines { rustc, features, cases: BTreeMap::new() };
    for line in output(Command::new(binary(root)).arg("list"))?.0.lines() {
        let Some((name, iterations)) = line.split_once(' ') else { continue };
        if wanted.is_empty() || wanted.contains(&name) {
            let iterations: u32 = iterations.parse().map_err(|e| format!("read `{line}`: {e}"))?;
            new.cases.insert(name.to_owned(), cost(root, name, iterations)?);
        }
    }
    if let Some(name) = wanted.iter().find(|name| !new.cases.contains_key(**name)) {
        return Err(format!("count instructions of `{name}`: there is no such case"));
    }
    let (table, grown) = compare(&old, &new);
    print!("{table}");
    if bless {
        if !wanted.is_empty() {
            if (&old.rustc, &old.features) != (&new.rustc, &new.features) {
                return Err(
                    "bless single cases: the others are of another compiler or processor, \
                            bless them all"
                        .into(),
                );
            }
            let cases = old.cases.into_iter().chain(new.cases).collect();
            new.cases = cases;
        }
        return write(&file, &render(&new));
    }
    if grown.is_empty() {
        return Ok(());
    }
    Err(format!(
        "callgrind: {} grew by more than {GROWTH_MAX_PERCENT}% or has no baseline: make it \
         cheaper, or record the cost on purpose with `cargo xtask callgrind --bless`",
        grown.join(", ")
    ))
}

fn binary(root: &Path) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    root.join(target).join(BINARY)
}

fn valgrind(root: &Path, tool: &str) -> Command {
    let mut command = Command::new("valgrind");
    command.arg(format!("--tool={tool}"));
    if tool == "callgrind" {
        command.arg("--callgrind-out-file=/dev/null");
    }
    command.arg(binary(root));
    command
}

fn cost(root: &Path, name: &str, iterations: u32) -> Result<f64, String> {
    let count = |iterations: u32| {
        let (_, log) = output(valgrind(root, "callgrind").args([name, &iterations.to_string()]))?;
        collected(&log).ok_or_else(|| format!("count instructions of `{name}`: no count in {log}"))
    };
    let (some, none) = (count(iterations)?, count(0)?);
    Ok(some.saturating_sub(none) as f64 / iterations as f64)
}

/// The total in callgrind's `==123== Collected : 4567`.
fn collected(log: &str) -> Option<u64> {
    let (_, after) = log.split_once("Collected : ")?;
    after.split_whitespace().next()?.parse().ok()
}

fn output(command: &mut Command) -> Result<(String, String), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|e| format!("run `{name}`: {e}: is it installed?"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    if output.status.success() { Ok((out, err)) } else { Err(format!("run `{name}`: {err}")) }
}

/// The table for people, and the names of the cases that grew too much or are new.
fn compare(old: &Baselines, new: &Baselines) -> (String, Vec<String>) {
    let mut table = format!("{:<24} {:>12} {:>12} {:>8}\n", "case", "baseline", "now", "change");
    let mut grown = Vec::new();
    for (name, now) in &new.cases {
        let Some(was) = old.cases.get(name) else {
            let _ = writeln!(table, "{name:<24} {:>12} {now:>12.1} {:>8}", "-", "new");
            grown.push(format!("`{name}`"));
            continue;
        };
        let percent = (now / was - 1.0) * 100.0;
        let _ = writeln!(table, "{name:<24} {was:>12.1} {now:>12.1} {percent:>+7.1}%");
        if percent > GROWTH_MAX_PERCENT {
            grown.push(format!("`{name}`"));
        }
    }
    (table, grown)
}

fn render(baselines: &Baselines) -> String {
    let mut text = format!(
        "# Instructions an iteration; written by `cargo xtask callgrind --bless`.\n\
         rustc\t{}\nfeatures\t{}\n",
        baselines.rustc, baselines.features
    );
    for (name, cost) in &baselines.cases {
        let _ = writeln!(text, "case {name}\t{cost:.1}");
    }
    text
}

fn parse(text: &str) -> Baselines {
    let mut baselines = Baselines::default();
    for (key, value) in text.lines().filter_map(|line| line.split_once('\t')) {
        match (key.strip_prefix("case "), value.parse()) {
            (Some(name), Ok(cost)) => drop(baselines.cases.insert(name.to_owned(), cost)),
            _ if key == "rustc" => baselines.rustc = value.to_owned(),
            _ if key == "features" => baselines.features = value.to_owned(),
            _ => {}
        }
    }
    baselines
}

#[expect(clippy::disallowed_methods, reason = "a tool for people, not part of the system")]
fn write(file: &Path, text: &str) -> Result<(), String> {
    fs::write(file, text).map_err(|e| format!("write `{}`: {e}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn baselines(cases: &[(&str, f64)]) -> Baselines {
        let cases = cases.iter().map(|(name, cost)| (name.to_string(), *cost)).collect();
        Baselines { rustc: "rustc 1".into(), features: "x86_64 avx2".into(), cases }
    }

    #[test]
    fn baselines_come_back() {
        let some = baselines(&[("a", 12.5), ("b", 1e6)]);
        assert_eq!(parse(&render(&some)), some);
    }

    #[test]
    fn growth_beyond_the_limit_and_new_cases_fail() {
        let old = baselines(&[("gone", 1.0), ("same", 100.0), ("grown", 100.0), ("less", 100.0)]);
        let new = baselines(&[("same", 104.9), ("grown", 105.1), ("less", 50.0), ("new", 1.0)]);
        let (table, grown) = compare(&old, &new);
        assert_eq!(grown, ["`grown`", "`new`"]);
        assert!(table.contains("+4.9%") && table.contains("-50.0%"), "{table}");
    }

    #[test]
    fn the_total_is_read_from_the_log() {
        assert_eq!(collected("==1== \n==1== Collected : 4567\n==1==\n"), Some(4567));
        assert_eq!(collected("==1== nothing"), None);
    }
}
