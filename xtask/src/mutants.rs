//! `cargo xtask mutants`: what the tests are worth. Every bug of the catalogue is planted in turn
//! (`holdfast_env::planted!`), and the test that the catalogue names must fail with it. The bugs
//! are at named points, so they outlive a restructuring; nothing is compiled for one of them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// A line a bug: name, what it breaks, what catches it; separated by tabs.
pub const CATALOGUE: &str = "planted-bugs.tsv";
/// What `holdfast_env::trial` reads.
const VARIABLE: &str = "HOLDFAST_PLANTED";
/// A test that hangs with a bug has caught it, but says so late.
const PATIENCE: Duration = Duration::from_secs(60);
/// A bug that shows only where threads meet in one order is missed once in a while: as often it is planted before it
/// counts as missed, and the line says so, for a test that needs it is one to be mended.
const TIMES: u32 = 3;

/// What must fail once a bug is planted.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Catcher {
    /// Tests of one test binary whose names contain the filter.
    Test { package: String, target: String, filter: String },
    /// Schedules of the simulation: so many, from this seed on; with as many shards beside the first.
    Schedules { count: u64, first: u64, shards: Option<u64> },
}

impl Catcher {
    /// Neither schedules of the simulation nor tests of the real binary.
    fn is_quick(&self) -> bool {
        matches!(self, Catcher::Test { package, .. } if package != "holdfast")
    }
}

/// Why a bug is not caught.
enum Miss {
    /// The tests passed with it.
    Passed(String),
    /// It could not be seen what they do with it.
    Failed(String),
}

impl From<&str> for Miss {
    fn from(why: &str) -> Miss {
        Miss::Failed(why.to_owned())
    }
}

impl From<String> for Miss {
    fn from(why: String) -> Miss {
        Miss::Failed(why)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bug {
    pub name: String,
    catcher: Catcher,
}

/// `--quick` leaves out those that only the simulation or the real binary shows; `--share N` plants one in N
/// of them, with each commit others; further arguments name the bugs to plant, none means all.
pub fn run(root: &Path, arguments: &[&str]) -> Result<(), String> {
    let (mut quick, mut share, mut wanted) = (false, 1, Vec::new());
    let mut words = arguments.iter().copied();
    while let Some(word) = words.next() {
        match word {
            "--quick" => quick = true,
            "--share" => {
                let number = words.next().and_then(|n| n.parse().ok()).filter(|n| *n > 0);
                share = number.ok_or("`--share`: give a number from 1 on")?;
            }
            name => wanted.push(name),
        }
    }
    let path = root.join(CATALOGUE);
    let text = fs::read_to_string(&path).map_err(|e| format!("read `{CATALOGUE}`: {e}"))?;
    let mut bugs = parse(&text)?;
    if let Some(name) = wanted.iter().find(|name| bugs.iter().all(|bug| bug.name != **name)) {
        return Err(format!("plant `{name}`: `{CATALOGUE}` has no such bug"));
    }
    bugs.retain(|bug| wanted.is_empty() || wanted.contains(&bug.name.as_str()));
    bugs.retain(|bug| !quick || bug.catcher.is_quick());
    if share > 1 {
        let commit = commit(root)?;
        bugs.retain(|bug| is_in_share(&commit, &bug.name, share));
        println!("mutants: one in {share}, by commit {commit}");
    }
    let binaries = Binaries::build(root, &bugs)?;
    let left = Mutex::new(bugs.iter().rev().collect::<Vec<_>>());
    let missed = Mutex::new(Vec::new());
    let work = || {
        while let Some(bug) = { left.lock().expect("no holder panics").pop() } {
            let started = Instant::now();
            let (mut verdict, mut times) = (binaries.plant(bug), 1);
            while matches!(verdict, Err(Miss::Passed(_))) && times < TIMES {
                (verdict, times) = (binaries.plant(bug), times + 1);
            }
            let seconds = started.elapsed().as_secs_f32();
            let (word, fine) = match &verdict {
                Ok(caught) => (*caught, true),
                Err(Miss::Passed(why) | Miss::Failed(why)) => (why.as_str(), false),
            };
            let tries = if times == 1 { String::new() } else { format!(", planted {times} times") };
            println!("{:50} {word} ({seconds:.1} s{tries})", bug.name);
            if !fine {
                missed.lock().expect("no holder panics").push(bug.name.clone());
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let missed = missed.into_inner().expect("no holder panics");
    println!("mutants: {} planted, {} caught", bugs.len(), bugs.len() - missed.len());
    match missed.is_empty() {
        true => Ok(()),
        false => Err(format!("mutants: not caught: {}", missed.join(", "))),
    }
}

/// The commit that is checked out.
fn commit(root: &Path) -> Result<String, String> {
    let said = Command::new("git").args(["rev-parse", "HEAD"]).current_dir(root).output();
    let said = said.map_err(|e| format!("ask git for the commit: {e}"))?;
    match said.status.success() {
        true => Ok(String::from_utf8_lossy(&said.stdout).trim().to_owned()),
        false => Err(format!("ask git for the commit: {}", String::from_utf8_lossy(&said.stderr))),
    }
}

/// Whether a bug is one of those that are planted at a commit: the same at each run, others at the next.
fn is_in_share(commit: &str, bug: &str, share: u64) -> bool {
    let bytes = commit.bytes().chain([b' ']).chain(bug.bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    (hash >> 32) % share == 0
}

/// The catalogue, in its order.
pub fn parse(text: &str) -> Result<Vec<Bug>, String> {
    let mut bugs: Vec<Bug> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let bug = parse_line(line).map_err(|e| format!("{CATALOGUE}:{}: {e}", number + 1))?;
        if bugs.iter().any(|other| other.name == bug.name) {
            return Err(format!("{CATALOGUE}:{}: `{}` is listed twice", number + 1, bug.name));
        }
        bugs.push(bug);
    }
    Ok(bugs)
}

fn parse_line(line: &str) -> Result<Bug, String> {
    let [name, what, catcher] = line.split('\t').collect::<Vec<_>>()[..] else {
        return Err("wants three columns, parted by tabs: name, what it breaks, catcher".into());
    };
    if name.is_empty() || what.is_empty() {
        return Err("a bug has a name and says what it breaks".into());
    }
    let number = |word: &str| word.parse::<u64>().map_err(|_| format!("`{word}`: not a number"));
    let catcher = match catcher.split(' ').collect::<Vec<_>>()[..] {
        ["sim", count] => Catcher::Schedules { count: number(count)?, first: 1, shards: None },
        ["sim", count, "from", first] => {
            Catcher::Schedules { count: number(count)?, first: number(first)?, shards: None }
        }
        ["sim", count, "from", first, "shards", shards] => {
            let shards = Some(number(shards)?);
            Catcher::Schedules { count: number(count)?, first: number(first)?, shards }
        }
        [package, target, filter] => Catcher::Test {
            package: package.to_owned(),
            target: target.to_owned(),
            filter: filter.to_owned(),
        },
        _ => {
            return Err(
                "the catcher is `sim COUNT [from SEED [shards N]]`, or a package, `lib` or \
                        the name of a test file, and a filter"
                    .into(),
            );
        }
    };
    Ok(Bug { name: name.to_owned(), catcher })
}

/// A built test binary, and the directory that its tests run in.
#[derive(Clone)]
struct Binary {
    executable: PathBuf,
    directory: PathBuf,
}

struct Binaries {
    /// By package and target.
    tests: BTreeMap<(String, String), Binary>,
    simulation: Option<PathBuf>,
    root: PathBuf,
}

impl Binaries {
    fn build(root: &Path, bugs: &[Bug]) -> Result<Binaries, String> {
        let mut tests = BTreeMap::new();
        if bugs.iter().any(|bug| matches!(bug.catcher, Catcher::Test { .. })) {
            // Like `make unit` does, so that nothing is built anew behind it.
            let built = cargo(root, &["test", "--workspace", "--no-run"])?;
            tests.extend(built.lines().filter_map(test_binary));
            // What only a feature makes a test: as `make interleaved` does.
            let features = "holdfast-interleaved/interleaved";
            let built = cargo(
                root,
                &[
                    "test",
                    "--workspace",
                    "--no-run",
                    "--features",
                    features,
                    "--test",
                    "interleaved",
                ],
            )?;
            tests.extend(built.lines().filter_map(test_binary));
        }
        let mut simulation = None;
        if bugs.iter().any(|bug| matches!(bug.catcher, Catcher::Schedules { .. })) {
            let built = cargo(root, &["build", "--workspace", "--bin", "holdfast-sim"])?;
            let executables = built.lines().filter_map(|line| field(line, "executable"));
            simulation = executables.map(PathBuf::from).next_back();
        }
        Ok(Binaries { tests, simulation, root: root.to_owned() })
    }

    /// How the bug was caught, or why it was not.
    fn plant(&self, bug: &Bug) -> Result<&'static str, Miss> {
        let mut command = match &bug.catcher {
            Catcher::Schedules { count, first, shards } => {
                let simulation = self.simulation.as_ref().ok_or("the simulation was not built")?;
                let mut command = Command::new(simulation);
                command.args(["--threads", "1", "--plant", &bug.name]);
                command.args(["--schedules", &count.to_string(), "--seed", &first.to_string()]);
                if let Some(shards) = shards {
                    command.args(["--shards", &shards.to_string()]);
                }
                command.current_dir(&self.root);
                command
            }
            Catcher::Test { package, target, filter } => {
                let key = (package.clone(), target.clone());
                let binary = self.tests.get(&key).ok_or("there is no such test binary")?;
                let mut command = Command::new(&binary.executable);
                command.args([filter, "--nocapture"]).env(VARIABLE, &bug.name);
                // As cargo sets it: see .cargo/config.toml.
                command.env("PROPTEST_RNG_SEED", "1");
                // What it finds is planted: nothing to be kept beside the tests' real finds.
                command.env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true");
                command.current_dir(&binary.directory);
                command
            }
        };
        let (output, success) = run_for(command.env("RUST_BACKTRACE", "0"))?;
        let Some(success) = success else { return Ok("caught: hangs") };
        let simulated = matches!(bug.catcher, Catcher::Schedules { .. });
        // A child process of a test says it to that test alone.
        let told = bug.catcher.is_quick();
        let reached = !told || output.contains(&format!("`{}`: reached", bug.name));
        let fell = match simulated {
            true => output.contains("the first that failed"),
            false => !success,
        };
        match (reached, fell) {
            (true, true) => Ok("caught"),
            (true, false) => Err(Miss::Passed("MISSED: everything passed".into())),
            (false, false) => Err(Miss::Passed("MISSED: its code was not reached".into())),
            (false, true) => Err(format!("FAILED for another reason:\n{output}").into()),
        }
    }
}

/// Runs a command to its end; what it printed, and whether it succeeded (`None`: it hung).
fn run_for(command: &mut Command) -> Result<(String, Option<bool>), String> {
    let piped = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().map_err(|e| format!("start {command:?}: {e}"))?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let read = |from: Option<Box<dyn std::io::Read + Send>>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            if let Some(mut from) = from {
                // What was read until then is judged.
                let _ = from.read_to_end(&mut bytes);
            }
            String::from_utf8_lossy(&bytes).into_owned()
        })
    };
    let out = read(out.map(|out| Box::new(out) as _));
    let err = read(err.map(|err| Box::new(err) as _));
    let deadline = Instant::now() + PATIENCE;
    let success = loop {
        match child.try_wait().map_err(|e| format!("wait for {command:?}: {e}"))? {
            Some(status) => break Some(status.success()),
            None if Instant::now() > deadline => {
                let _ = child.kill();
                let _ = child.wait();
                break None;
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    if success.is_none() {
        // Its children may hold the pipes for ever.
        return Ok((String::new(), None));
    }
    let text = |reader: std::thread::JoinHandle<String>| reader.join().unwrap_or_default();
    Ok((text(out) + &text(err), success))
}

/// Cargo's own account of what it built, a line a thing.
fn cargo(root: &Path, arguments: &[&str]) -> Result<String, String> {
    let mut command = crate::cargo(root);
    command.args(arguments).args(["--quiet", "--message-format", "json"]);
    command.stderr(Stdio::inherit());
    let output = command.output().map_err(|e| format!("run {command:?}: {e}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("run {command:?}: it failed, see above")),
    }
}

/// The value of a field whose value is a string without escapes.
fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = line.split_once(&format!("\"{name}\":\""))?;
    Some(rest.split_once('"')?.0)
}

fn test_binary(line: &str) -> Option<((String, String), Binary)> {
    let executable = PathBuf::from(field(line, "executable")?);
    let directory = Path::new(field(line, "manifest_path")?).parent()?.to_owned();
    // `...#name@version`, or `.../name#version` where the directory has the package's name.
    let package = match field(line, "package_id")?.rsplit_once('#')?.1.split_once('@') {
        Some((name, _)) => name.to_owned(),
        None => directory.file_name()?.to_str()?.to_owned(),
    };
    let (_, target) = line.split_once("\"target\":{")?;
    if !line.contains("\"test\":true},\"features\"") {
        // A binary beside the tests, not one of them.
        return None;
    }
    let target = match target.contains("\"kind\":[\"test\"]") {
        true => field(target, "name")?.to_owned(),
        false if target.contains("\"kind\":[\"bin\"]") => "bin".to_owned(),
        false => "lib".to_owned(),
    };
    Some(((package, target), Binary { executable, directory }))
}

/// Names of the bugs that are planted in this source.
pub fn planted(code: &str) -> impl Iterator<Item = &str> {
    let names = code.split("planted!(").skip(1);
    names.filter_map(|rest| rest.trim_start().strip_prefix('"')?.split('"').next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_catalogue_has_names_reasons_and_catchers() {
        let text =
            "# name\n\na.b\tbreaks\tsim 20\nc\tbreaks\tsim 1 from 22 shards 0\nd\tx\tp lib f\n";
        let bugs = parse(text).unwrap();
        assert_eq!(bugs[0].catcher, Catcher::Schedules { count: 20, first: 1, shards: None });
        assert_eq!(bugs[1].catcher, Catcher::Schedules { count: 1, first: 22, shards: Some(0) });
        let catcher =
            Catcher::Test { package: "p".into(), target: "lib".into(), filter: "f".into() };
        assert_eq!(bugs[2], Bug { name: "d".into(), catcher });
        for wrong in ["a\tb", "a\tb\tsim x", "a\tb\tc", "\tb\tsim 1", "a\tb\tsim 1\na\tb\tsim 1"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_cargo_says_of_a_test_binary_is_understood() {
        let line = r#"{"package_id":"path+file:///w/crates/recovery#holdfast-recovery@0.1.0","manifest_path":"/w/crates/recovery/Cargo.toml","target":{"kind":["test"],"name":"optima","test":true},"profile":{"test":true},"features":[],"executable":"/w/target/debug/deps/optima-63"}"#;
        let ((package, target), binary) = test_binary(line).unwrap();
        assert_eq!((package.as_str(), target.as_str()), ("holdfast-recovery", "optima"));
        assert_eq!(binary.directory, Path::new("/w/crates/recovery"));
        assert!(test_binary(r#"{"executable":null}"#).is_none());
        let short = line.replace("recovery#holdfast-recovery@0.1.0", "recovery#0.1.0");
        assert_eq!(test_binary(&short).unwrap().0.0, "recovery");
    }

    #[test]
    fn planted_bugs_are_found_in_code() {
        let code = r#"if planted!("a.b") || holdfast_env::planted!( "c" ) {}"#;
        assert_eq!(planted(code).collect::<Vec<_>>(), ["a.b", "c"]);
    }

    #[test]
    fn a_share_is_about_so_many_and_another_one_at_another_commit() {
        let chosen = |commit: &str| -> Vec<String> {
            let names = (0..3000).map(|number| format!("crate.bug-{number}"));
            names.filter(|name| is_in_share(commit, name, 3)).collect()
        };
        let (first, second) = (chosen("2f1a"), chosen("2f1b"));
        assert!((900..1100).contains(&first.len()), "{}", first.len());
        let both = first.iter().filter(|name| second.contains(name)).count();
        assert!((250..420).contains(&both), "{both} are in both");
        assert_eq!(chosen("2f1a"), first);
    }
}
