//! Other sorts on the same file with the same memory, and whether outputs are the same.

use crate::process::ended_children_cpu_seconds;
use holdfast_base::{Error, Result};
use holdfast_command::output::aside;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// What another sort is asked for.
pub struct Request<'a> {
    /// The file to sort.
    pub input: &'a Path,
    /// Where the sorted file goes.
    pub output: &'a Path,
    /// Directory for temporary files.
    pub temp: &'a Path,
    /// Bytes that the sort may use.
    pub memory: u64,
    /// Of [`super::inputs`].
    pub kind: &'a str,
}

/// Another sort, and its runs.
pub struct Peer {
    /// As its makers write it.
    pub name: &'static str,
    /// As the program says it.
    pub version: String,
    /// None is GNU sort.
    python: Option<PathBuf>,
    /// Of each run, its output synced.
    pub seconds: Vec<f64>,
    /// User and system time of each run.
    pub cpu_seconds: Vec<f64>,
}

/// The last word of what a command says first.
fn version(command: &mut Command) -> String {
    let said = command.output().map(|done| done.stdout).unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    let word = said.lines().next().and_then(|line| line.split_whitespace().last());
    word.unwrap_or("unknown").to_owned()
}

/// `sort` of the system, which keeps the order of equal keys.
pub fn gnu_sort() -> Peer {
    let version = version(Command::new("sort").arg("--version"));
    Peer { name: "GNU sort", version, python: None, seconds: Vec::new(), cpu_seconds: Vec::new() }
}

/// DuckDB in this Python, which promises no order of equal keys.
pub fn duckdb(python: &Path) -> Peer {
    let says = "import duckdb; print(duckdb.__version__)";
    let version = version(Command::new(python).args(["-c", says]));
    let python = Some(python.to_owned());
    Peer { name: "DuckDB", version, python, seconds: Vec::new(), cpu_seconds: Vec::new() }
}

/// The Python that has DuckDB: the one that is named, or one of an environment beside this binary,
/// which is made if it is missing.
pub fn python(named: &str) -> Result<PathBuf> {
    if !named.is_empty() {
        return Ok(PathBuf::from(named));
    }
    let home = std::env::current_exe()?.with_file_name("duckdb");
    let python = home.join("bin/python");
    let has = Command::new(&python).args(["-c", "import duckdb"]).output();
    if has.is_ok_and(|done| done.status.success()) {
        return Ok(python);
    }
    let run = |command: &mut Command| match command.output() {
        Ok(done) if done.status.success() => Ok(()),
        Ok(done) => Err(String::from_utf8_lossy(&done.stderr).trim().replace('\n', "; ")),
        Err(e) => Err(e.to_string()),
    };
    run(Command::new("python3").args(["-m", "venv"]).arg(&home))
        .and_then(|()| run(Command::new(&python).args(["-m", "pip", "install", "-q", "duckdb"])))
        .map_err(|e| Error::retry(format!("install DuckDB in `{}`: {e}", home.display())))?;
    Ok(python)
}

impl Peer {
    /// Runs it once, its output synced; false if it is not there or fails.
    pub fn run(&mut self, request: &Request<'_>) -> Result<bool> {
        let mut command = match &self.python {
            None => gnu_command(request),
            Some(python) => duckdb_command(python, request),
        };
        holdfast_env::local::drop_cached(request.input)?;
        let (start, cpu) = (Instant::now(), ended_children_cpu_seconds());
        let Ok(status) = command.status() else { return Ok(false) };
        if !status.success() {
            aside(format_args!("{} failed with {status}: it is left out", self.name));
            return Ok(false);
        }
        std::fs::File::open(request.output)?.sync_all()?;
        self.seconds.push(start.elapsed().as_secs_f64());
        self.cpu_seconds.push(ended_children_cpu_seconds() - cpu);
        Ok(true)
    }

    /// Whether its output must be ours, byte by byte: the order of equal keys is nobody's promise
    /// in DuckDB.
    pub fn keeps_order(&self, kind: &str) -> bool {
        self.python.is_none() || matches!(kind, "uniform" | "lines")
    }
}

fn gnu_command(request: &Request<'_>) -> Command {
    let mut command = Command::new("sort");
    command.env("LC_ALL", "C").arg("-S").arg(request.memory.to_string() + "b");
    command.arg("--parallel=2").arg("-T").arg(request.temp);
    command.arg("-o").arg(request.output).arg(request.input);
    match request.kind {
        // Keys differ: whole lines are in the order of their keys, and faster.
        "uniform" => &mut command,
        "lines" => command.arg("-k3,3"),
        _ => command.args(["-s", "-k1.1,1.10"]),
    };
    command
}

/// Lines through DuckDB: its arguments are input, output, directory, memory and `columns` or not.
const DUCKDB: &str = r#"
import sys, duckdb
source, target, temporary, memory, columns = sys.argv[1:]
c = duckdb.connect()
c.execute(f"set memory_limit='{memory}B'; set temp_directory='{temporary}'")
c.execute("set threads=2; set preserve_insertion_order=false")
key = "split_part(line, ' ', 3), line" if columns == "columns" else "substr(line, 1, 10)"
form = "header false, delimiter '\x01', quote '', escape ''"
c.execute(f"""copy (select line from read_csv('{source}', columns={{'line': 'VARCHAR'}},
    auto_detect=false, header=false, delim='\x01', quote='', escape='') order by {key})
    to '{target}' (format csv, {form})""")
"#;

fn duckdb_command(python: &Path, request: &Request<'_>) -> Command {
    let mut command = Command::new(python);
    command.args(["-c", DUCKDB]).args([request.input, request.output, request.temp]);
    command.arg(request.memory.to_string());
    command.arg(if request.kind == "lines" { "columns" } else { "records" });
    command
}

/// Whether files are equal, but for carriage returns, which DuckDB takes for parts of line ends.
pub fn same(a: &Path, b: &Path) -> Result<bool> {
    let mut files = [std::fs::File::open(a)?, std::fs::File::open(b)?];
    let mut blocks = [Vec::new(), Vec::new()];
    loop {
        for (file, block) in files.iter_mut().zip(&mut blocks) {
            if block.is_empty() {
                file.take(1 << 20).read_to_end(block)?;
                if block.is_empty() {
                    continue;
                }
                block.retain(|byte| *byte != b'\r');
            }
        }
        let common = blocks[0].len().min(blocks[1].len());
        if common == 0 || blocks[0][..common] != blocks[1][..common] {
            return Ok(blocks.iter().all(Vec::is_empty));
        }
        blocks.iter_mut().for_each(|block| drop(block.drain(..common)));
    }
}
