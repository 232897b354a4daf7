//! The node under test: this very program as a process of its own, on a free port, with its data
//! in a directory that goes when the case ends. Also reads what processes used.

use crate::config::FILE;
use holdfast_base::{Error, Result};
use holdfast_client::{Client, Endpoint, Options};
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

/// What processor time is counted in by the kernel: USER_HZ, 100 on every Linux.
const TICKS_PER_SECOND: f64 = 100.0;

pub struct Server {
    child: Child,
    /// Kept open: a node whose output nobody reads would end.
    _output: BufReader<ChildStdout>,
    tcp: String,
    socket: PathBuf,
    directory: PathBuf,
}

/// What the node is told.
pub struct Settings {
    pub dram_bytes: u64,
    pub reactors: usize,
    pub spin: bool,
}

impl Server {
    /// Starts a node below `parent` and waits until it is ready.
    pub fn start(parent: &Path, settings: &Settings) -> Result<Server> {
        let directory = parent.join(format!("holdfast-bench-{}", std::process::id()));
        std::fs::create_dir_all(&directory)?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let Settings { dram_bytes, reactors, spin } = settings;
        let config = format!(
            "native_port = {port}\nhttp_port = 0\ncache_port = 0\ns3_port = 0\ndram = \"{dram_bytes}\"\n\
             dram_populate = true\ngrace_ms = 0\nscrub = \"0\"\n\
             reactors = {reactors}\nspin = {spin}\n"
        );
        std::fs::write(directory.join(FILE), config)?;
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--json", "up", "--data"])
            .arg(&directory)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let Some(output) = child.stdout.take() else {
            return Err(Error::bug("start a node: its output is not ours"));
        };
        let mut output = BufReader::new(output);
        let mut line = String::new();
        output.read_line(&mut line)?;
        let ready: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
        let server = Server {
            child,
            _output: output,
            tcp: format!("127.0.0.1:{port}"),
            socket: directory.join(crate::config::SOCKET),
            directory,
        };
        // Dropping it removes what was made.
        if ready["event"] != "ready" {
            return Err(Error::retry(
                "start a node to measure: it ended at once, see its message above",
            ));
        }
        Ok(server)
    }

    /// The directory that goes with the node; limits of the disk are measured there.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    pub fn endpoint(&self, local: bool) -> Result<Endpoint> {
        if local { Ok(Endpoint::Unix(self.socket.clone())) } else { Endpoint::parse(&self.tcp) }
    }

    /// A connection; a local one maps the region too, if there is one, and goes through a shared
    /// ring if both sides spin.
    pub fn connect(&self, local: bool, mapped: bool, spin: bool) -> Result<Client> {
        let options = Options { spin, ring: local && spin, ..Options::default() };
        let mut client = Client::connect(&self.endpoint(local)?, &options)?;
        if local && mapped {
            client.map_region()?;
        }
        Ok(client)
    }

    pub fn cpu_seconds(&self) -> f64 {
        cpu_seconds(&format!("/proc/{}/stat", self.child.id()))
    }

    /// Bytes of memory of its own, the region not counted.
    pub fn memory_bytes(&self) -> u64 {
        memory_bytes(self.child.id())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Its data goes with it, so there is nothing to end in order.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Bytes of a process's anonymous memory.
pub fn memory_bytes(pid: u32) -> u64 {
    let status = read(&format!("/proc/{pid}/status"));
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|l| l.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

pub fn own_cpu_seconds() -> f64 {
    cpu_seconds("/proc/self/stat")
}

/// User and system time of all threads. A process that is gone has used none.
pub fn cpu_seconds(path: &str) -> f64 {
    let stat = read(path);
    // The name in parentheses may hold anything; utime and stime are fields 14 and 15.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks = fields.split_whitespace().skip(11).take(2);
    ticks.filter_map(|t| t.parse::<f64>().ok()).sum::<f64>() / TICKS_PER_SECOND
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}
