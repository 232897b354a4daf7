//! Other sorts on the same file with the same memory, and whether outputs are the same.

use holdfast_base::{Error, Result};
use std::io::Read;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// What another sort is asked for.
pub struct Request<'a> {
    pub input: &'a Path,
    pub output: &'a Path,
    pub temp: &'a Path,
    pub memory: u64,
    /// Lines by their third column instead of records by their first ten bytes.
    pub columns: bool,
}

/// Seconds that GNU sort takes, its output synced; none if there is no GNU sort.
pub fn gnu_sort(request: &Request<'_>) -> Result<Option<f64>> {
    let mut command = Command::new("sort");
    command.env("LC_ALL", "C").arg("-S").arg(request.memory.to_string() + "b");
    command.arg("--parallel=2").arg("-T").arg(request.temp);
    command.arg("-o").arg(request.output).arg(request.input);
    if request.columns {
        command.arg("-k3,3");
    }
    timed(command, request, "GNU sort")
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

/// The same of DuckDB in `python`.
pub fn duckdb(python: &str, request: &Request<'_>) -> Result<Option<f64>> {
    let mut command = Command::new(python);
    command.args(["-c", DUCKDB]).args([request.input, request.output, request.temp]);
    command.arg(request.memory.to_string());
    command.arg(if request.columns { "columns" } else { "records" });
    timed(command, request, "DuckDB")
}

fn timed(mut command: Command, request: &Request<'_>, name: &str) -> Result<Option<f64>> {
    holdfast_env::local::drop_cached(request.input)?;
    let start = Instant::now();
    let Ok(status) = command.status() else { return Ok(None) };
    if !status.success() {
        return Err(Error::retry(format!("run {name}: it ended with {status}")));
    }
    std::fs::File::open(request.output)?.sync_all()?;
    Ok(Some(start.elapsed().as_secs_f64()))
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
