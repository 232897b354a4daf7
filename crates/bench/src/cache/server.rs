//! Servers under load: our cache, a null server, the peer, each a process of its own that is pinned
//! to the first cores and ends with its value here.

use super::CacheBench;
use crate::process::free_port;
use holdfast_base::{Error, Result};
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// What servers accept beside a crowd.
const CONNECTIONS: usize = 4096;

fn connections(options: &CacheBench) -> String {
    (options.clients.max(CONNECTIONS) + 100).to_string()
}

/// A server under load; ends when dropped.
pub struct Target {
    child: Option<Child>,
    /// Where it answers the text protocol.
    pub tcp: SocketAddr,
    /// The same for datagrams.
    pub udp: SocketAddr,
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // It keeps nothing.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Target {
    /// Processor time since its start; 0 for somebody else's.
    pub fn cpu_seconds(&self) -> f64 {
        let stat = self.child.as_ref().map(|child| format!("/proc/{}/stat", child.id()));
        stat.map_or(0.0, |path| crate::process::cpu_seconds(&path))
    }

    /// Our cache with further options.
    pub fn ours(options: &CacheBench, threads: usize, more: &[&str]) -> Result<Target> {
        let port = free_port()?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--json", "cache", "--pin", "0", "-c", &connections(options)]);
        command.args(["-t", &threads.to_string(), "-m", &options.memory.to_string()]);
        command.args(["-p", &port.to_string(), "-U", &port.to_string()]).args(more);
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        if let Some(output) = child.stdout.take() {
            BufReader::new(output).read_line(&mut line)?;
        }
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let target = Target { child: Some(child), tcp: address, udp: address };
        if !line.contains("ready") {
            return Err(Error::retry("start a cache to measure: it ended at once, see above"));
        }
        Ok(target)
    }

    /// One that reads `request` bytes and answers `reply` bytes without looking anything up.
    pub fn null(options: &CacheBench, request: usize, reply: usize) -> Result<Target> {
        Target::ours(options, options.threads, &["--null", &format!("{request}:{reply}")])
    }

    /// Somebody else's.
    pub fn foreign(address: SocketAddr) -> Target {
        Target { child: None, tcp: address, udp: address }
    }

    /// Bytes of memory by the kernel's name: `VmRSS`, `RssAnon`.
    pub fn memory_bytes(&self, name: &str) -> u64 {
        let path = self.child.as_ref().map(|child| format!("/proc/{}/status", child.id()));
        let status = path.and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
        kib.unwrap_or(0) << 10
    }

    /// Nothing if it is not installed.
    pub fn peer(options: &CacheBench) -> Result<Option<Target>> {
        let port = free_port()?;
        let threads = options.threads.to_string();
        let cores =
            if options.threads > 1 { format!("0-{}", options.threads - 1) } else { "0".into() };
        let child = Command::new("taskset")
            .args(["-c", &cores, &options.peer, "-l", "127.0.0.1", "-c", &connections(options)])
            .args(["-m", &options.memory.to_string(), "-t", &threads, "-u", "nobody"])
            .args(["-p", &port.to_string(), "-U", &port.to_string()])
            .stdin(Stdio::null())
            .spawn();
        let Ok(mut child) = child else { return Ok(None) };
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        for _ in 0..200 {
            if TcpStream::connect(address).is_ok() {
                return Ok(Some(Target { child: Some(child), tcp: address, udp: address }));
            }
            if child.try_wait()?.is_some() {
                return Ok(None);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(None)
    }
}

/// What the peer says it is.
pub fn version(program: &str) -> &'static str {
    let output = Command::new(program).arg("-V").output();
    let text = output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
    let version = text.split_whitespace().last().unwrap_or("unknown").to_owned();
    // Once a run.
    Box::leak(version.into_boxed_str())
}
