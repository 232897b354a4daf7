//! What speaks memcached's protocol, a cache or a router, as a process of its own, and the clients
//! that people have for it.

use super::common::{binary, resident_bytes};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

pub struct Memcached {
    pub child: Child,
    pub tcp: SocketAddr,
    /// TCP's, where UDP is off.
    pub udp: SocketAddr,
    _stdout: BufReader<ChildStdout>,
}

impl Memcached {
    pub fn start(arguments: &[&str]) -> Memcached {
        let mut command = binary();
        command.arg("--json").args(arguments);
        Memcached::of(command)
    }

    pub fn of(mut command: Command) -> Memcached {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let ready: Value = serde_json::from_str(&line).unwrap();
        let address = |name: &str| ready[name][0].as_str()?.parse().ok();
        let tcp = address("tcp").unwrap();
        Memcached { tcp, udp: address("udp").unwrap_or(tcp), child, _stdout: stdout }
    }

    pub fn name(&self) -> String {
        self.tcp.to_string()
    }

    pub fn connect(&self) -> TcpStream {
        TcpStream::connect(self.tcp).unwrap()
    }

    #[track_caller]
    pub fn says(&self, request: &[u8], answer: &[u8]) {
        let mut stream = self.connect();
        stream.write_all(request).unwrap();
        let mut got = vec![0; answer.len()];
        stream.read_exact(&mut got).unwrap();
        assert_eq!(String::from_utf8_lossy(&got), String::from_utf8_lossy(answer));
    }

    /// Serves somebody else as if nothing were wrong.
    #[track_caller]
    pub fn is_well(&self) {
        let answer = b"STORED\r\nVALUE well 0 2\r\nok\r\nEND\r\n";
        self.says(b"set well 0 0 2\r\nok\r\nget well\r\n", answer);
    }

    pub fn stat(&self, name: &str) -> u64 {
        let mut stream = self.connect();
        stream.write_all(b"stats\r\n").unwrap();
        for line in BufReader::new(stream).lines() {
            let line = line.unwrap();
            if let Some(value) = line.strip_prefix(&format!("STAT {name} ")) {
                return value.parse().unwrap();
            }
            assert_ne!(line, "END", "no statistic `{name}`");
        }
        panic!("the statistics did not end");
    }

    /// Waits until a statistic is as wanted.
    pub fn wait_for(&self, name: &str, wanted: impl Fn(u64) -> bool) {
        while !wanted(self.stat(name)) {
            std::thread::yield_now();
        }
    }

    pub fn memory_bytes(&self) -> u64 {
        resident_bytes(self.child.id())
    }

    pub fn send(&self, signal: &str) {
        let done = Command::new("kill").args([signal, &self.child.id().to_string()]).status();
        assert!(done.unwrap().success());
    }

    /// Stops it, every thread: one that does not hear of it at once goes on to serve.
    pub fn stall(&self) {
        self.send("-STOP");
        let threads = format!("/proc/{}/task", self.child.id());
        let is_stalled = |thread: std::fs::DirEntry| {
            let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap();
            // Behind the name, which may hold anything.
            stat.rsplit_once(") ").unwrap().1.starts_with('T')
        };
        while !std::fs::read_dir(&threads).unwrap().all(|thread| is_stalled(thread.unwrap())) {
            std::thread::yield_now();
        }
    }

    pub fn signal(mut self, name: &str) -> i32 {
        self.send(name);
        self.child.wait().unwrap().code().unwrap()
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a script with the clients that people have; says so if they are not installed.
#[track_caller]
pub fn python(script: &str, arguments: &[String]) {
    let Some(mut command) = python_command(script, arguments) else { return };
    let done = command.output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// The same, to be run; none where clients are not installed.
pub fn python_command(script: &str, arguments: &[String]) -> Option<Command> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = root.join("../../target/clients/bin/python");
    if !python.exists() {
        eprintln!("SKIPPED: no clients in target/clients: run .ci/tools");
        return None;
    }
    let script = root.join("tests/blackbox").join(script);
    let mut command = Command::new(python);
    command.arg(script).args(arguments);
    Some(command)
}
