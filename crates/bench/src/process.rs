//! A node under test: this very program as a process of its own. Also reads what processes used.

use holdfast_base::{Error, Result};
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

/// What processor time is counted in by the kernel: USER_HZ, 100 on every Linux.
const TICKS_PER_SECOND: f64 = 100.0;

/// A port that nobody has now.
pub fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Killed when it is dropped.
pub struct Process {
    child: Child,
    /// Kept open: a node whose output nobody reads would end.
    _output: BufReader<ChildStdout>,
}

impl Process {
    /// `holdfast up` over the settings and data in `directory`.
    pub fn up(directory: &Path) -> Result<Process> {
        Process::up_with(directory, None)
    }

    /// As [`Process::up`], of one more node of a cluster, which has this file's secret.
    pub fn up_with(directory: &Path, secret: Option<&Path>) -> Result<Process> {
        let mut command = Command::new(std::env::current_exe()?);
        if let Some(secret) = secret {
            command.arg("--secret").arg(secret);
        }
        Process::start(command.args(["--json", "up", "--data"]).arg(directory))
    }

    /// Runs a command that starts a node, and waits until the node is ready.
    pub fn start(command: &mut Command) -> Result<Process> {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let Some(output) = child.stdout.take() else {
            return Err(Error::bug("start a node: its output is not ours"));
        };
        let mut process = Process { child, _output: BufReader::new(output) };
        let mut line = String::new();
        process._output.read_line(&mut line)?;
        let said: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
        if said["event"] != "ready" {
            return Err(Error::retry(
                "start a node to measure: it ended at once, see its message above",
            ));
        }
        Ok(process)
    }

    /// Of the process, for the kernel.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// User and system time of all its threads since the start.
    pub fn cpu_seconds(&self) -> f64 {
        cpu_seconds(&format!("/proc/{}/stat", self.id()))
    }

    /// Bytes of memory of its own, what it maps of files not counted.
    pub fn memory_bytes(&self) -> u64 {
        let status = read(&format!("/proc/{}/status", self.id()));
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let kib = line.and_then(|l| l.trim().trim_end_matches(" kB").parse::<u64>().ok());
        kib.unwrap_or(0) << 10
    }

    /// Ends it in order.
    pub fn end(mut self) -> Result<()> {
        self.wait_for_end()
    }

    /// As [`Process::end`], of one in whose place another is put.
    pub fn wait_for_end(&mut self) -> Result<()> {
        holdfast_env::signals::terminate(self.id())?;
        self.child.wait()?;
        Ok(())
    }

    /// As if its power had failed; once is enough.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// User and system time of this process: the client's.
pub fn own_cpu_seconds() -> f64 {
    cpu_seconds("/proc/self/stat")
}

/// Of children that have ended and were waited for.
pub fn ended_children_cpu_seconds() -> f64 {
    ticks("/proc/self/stat", 13) / TICKS_PER_SECOND
}

/// User and system time of all threads. A process that is gone has used none.
pub fn cpu_seconds(path: &str) -> f64 {
    ticks(path, 11) / TICKS_PER_SECOND
}

/// Two fields together of those behind the name, which may hold anything in its parentheses:
/// utime and stime are the 12th and 13th, the same of children the next two.
fn ticks(path: &str, skipped: usize) -> f64 {
    let stat = read(path);
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks = fields.split_whitespace().skip(skipped).take(2);
    ticks.filter_map(|t| t.parse::<f64>().ok()).sum()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}
