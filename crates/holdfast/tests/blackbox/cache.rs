//! The cache from outside: real clients, and clients that misbehave.

use super::common::{Scratch, binary, finish};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

struct Cache {
    child: Child,
    tcp: SocketAddr,
    udp: SocketAddr,
    _stdout: BufReader<std::process::ChildStdout>,
}

impl Cache {
    fn start(arguments: &[&str]) -> Cache {
        let mut command = binary();
        // Port -1 is any that is free.
        command.args(["--json", "cache", "-p", "-1", "-U", "-1"]).args(arguments);
        let mut child = command.spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let ready: Value = serde_json::from_str(&line).unwrap();
        let address = |name: &str| ready[name][0].as_str().unwrap().parse().unwrap();
        Cache { tcp: address("tcp"), udp: address("udp"), child, _stdout: stdout }
    }

    fn connect(&self) -> TcpStream {
        TcpStream::connect(self.tcp).unwrap()
    }

    #[track_caller]
    fn says(&self, request: &[u8], answer: &[u8]) {
        let mut stream = self.connect();
        stream.write_all(request).unwrap();
        let mut got = vec![0; answer.len()];
        stream.read_exact(&mut got).unwrap();
        assert_eq!(String::from_utf8_lossy(&got), String::from_utf8_lossy(answer));
    }

    /// Serves somebody else as if nothing were wrong.
    #[track_caller]
    fn is_well(&self) {
        let answer = b"STORED\r\nVALUE well 0 2\r\nok\r\nEND\r\n";
        self.says(b"set well 0 0 2\r\nok\r\nget well\r\n", answer);
    }

    fn stat(&self, name: &str) -> u64 {
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
    fn wait_for(&self, name: &str, wanted: impl Fn(u64) -> bool) {
        while !wanted(self.stat(name)) {
            std::thread::yield_now();
        }
    }

    fn memory_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }

    fn signal(mut self, name: &str) -> i32 {
        let done = Command::new("kill").args([name, &self.child.id().to_string()]).status();
        assert!(done.unwrap().success());
        self.child.wait().unwrap().code().unwrap()
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn here(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/blackbox").join(name)
}

#[test]
fn pymemcache_and_libmemcached_agree_with_it() {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/clients/bin/python");
    if !python.exists() {
        eprintln!("SKIPPED: no clients in target/clients: run .ci/tools");
        return;
    }
    let cache = Cache::start(&["-I", "4m"]);
    let (host, port) = (cache.tcp.ip().to_string(), cache.tcp.port().to_string());
    let done = Command::new(python).arg(here("cache_clients.py")).args([&host, &port]).output();
    let done = done.unwrap();
    let err = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{err}");
    cache.is_well();
}

#[test]
fn memccapable_passes() {
    let cache = Cache::start(&[]);
    let (host, port) = (cache.tcp.ip().to_string(), cache.tcp.port().to_string());
    let Ok(done) = Command::new("memccapable").args(["-h", &host, "-p", &port, "-a"]).output()
    else {
        eprintln!("SKIPPED: memccapable is not installed: run .ci/tools");
        return;
    };
    let text = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success() && text.contains("All tests passed"), "{text}");
}

/// The frame of a UDP request.
fn datagram(id: u16, sequence: u16, total: u16, request: &[u8]) -> Vec<u8> {
    let words = [id, sequence, total, 0];
    let frame = words.iter().flat_map(|word| word.to_be_bytes());
    frame.chain(request.iter().copied()).collect()
}

#[test]
fn answers_over_udp_are_numbered_and_whole() {
    let cache = Cache::start(&[]);
    let (mut sets, mut get, mut answer) = (Vec::new(), b"get".to_vec(), Vec::new());
    for i in 0..100 {
        let value = format!("{i:03}").repeat(40);
        sets.extend_from_slice(format!("set k{i} 0 0 120 noreply\r\n{value}\r\n").as_bytes());
        get.extend_from_slice(format!(" k{i}").as_bytes());
        answer.extend_from_slice(format!("VALUE k{i} 0 120\r\n{value}\r\n").as_bytes());
    }
    sets.extend_from_slice(b"mn\r\n");
    cache.says(&sets, b"MN\r\n");
    get.extend_from_slice(b"\r\n");
    answer.extend_from_slice(b"END\r\n");
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(cache.udp).unwrap();
    // What is no request is not answered, or answered with an error; never more than that.
    socket.send(b"").unwrap();
    socket.send(b"1234567").unwrap();
    socket.send(&datagram(1, 1, 2, b"get k0\r\n")).unwrap();
    let mut buffer = vec![0; 65536];
    let got = socket.recv(&mut buffer).unwrap();
    assert_eq!(buffer[..8], [0, 1, 0, 0, 0, 1, 0, 0]);
    assert_eq!(&buffer[8..got], b"SERVER_ERROR multi-packet request not supported\r\n");
    // The same request twice is two answers.
    for id in [7, 7] {
        socket.send(&datagram(id, 0, 1, &get)).unwrap();
        let (mut parts, mut total) = (std::collections::BTreeMap::new(), 1);
        while parts.len() < total {
            let got = socket.recv(&mut buffer).unwrap();
            assert!(got <= 1400, "{got} bytes in one datagram");
            let word = |i: usize| u16::from_be_bytes([buffer[i], buffer[i + 1]]);
            assert_eq!((word(0), word(6)), (7, 0));
            total = word(4) as usize;
            assert!(parts.insert(word(2), buffer[8..got].to_vec()).is_none(), "a number twice");
        }
        assert_eq!(total, answer.len().div_ceil(1392));
        assert!(parts.into_values().collect::<Vec<_>>().concat() == answer);
    }
    cache.is_well();
}

#[test]
fn a_client_that_never_reads_is_ended_before_it_takes_the_memory() {
    let cache = Cache::start(&["-m", "64", "-t", "1"]);
    let value = vec![b'x'; 100_000];
    let mut sets = format!("set big 0 0 {}\r\n", value.len()).into_bytes();
    sets.extend_from_slice(&value);
    sets.extend_from_slice(b"\r\n");
    cache.says(&sets, b"STORED\r\n");
    let gets = b"get big big big big\r\n".repeat(4000);
    let greedy: Vec<TcpStream> = (0..40)
        .map(|_| {
            let mut stream = cache.connect();
            stream.set_nonblocking(true).unwrap();
            // As much as it takes.
            let _ = stream.write(&gets);
            stream
        })
        .collect();
    cache.is_well();
    let memory = cache.memory_bytes();
    assert!(memory < 140 << 20, "{memory} bytes");
    drop(greedy);
    cache.is_well();
    cache.wait_for("response_obj_bytes", |bytes| bytes == 0);
}

#[test]
fn half_commands_of_many_take_little_and_idle_clients_nothing() {
    let cache = Cache::start(&["-t", "1"]);
    let before = cache.stat("response_obj_bytes");
    let half: Vec<TcpStream> = (0..500)
        .map(|i| {
            let mut stream = cache.connect();
            stream.write_all(format!("set half-{i} 0 0 100\r\nabc").as_bytes()).unwrap();
            stream
        })
        .collect();
    cache.wait_for("curr_connections", |n| n > 500);
    let held = cache.stat("response_obj_bytes") - before;
    assert!(held < 500 * 1024, "{held} bytes are held for 500 half commands");
    cache.is_well();
    for (i, mut stream) in half.into_iter().enumerate() {
        stream.write_all(&[b'd'; 97]).unwrap();
        stream.write_all(format!("\r\nget half-{i}\r\n").as_bytes()).unwrap();
        let mut answer = [0; 8];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"STORED\r\n");
    }
}

#[test]
fn large_values_arrive_whole_and_abandoned_ones_go() {
    let cache = Cache::start(&["-m", "64", "-I", "16m"]);
    let value: Vec<u8> = (0..12_000_000u32).map(|i| (i / 7) as u8).collect();
    let mut request = format!("set large 3 0 {}\r\n", value.len()).into_bytes();
    request.extend_from_slice(&value);
    request.extend_from_slice(b"\r\nget large\r\n");
    let mut answer = format!("STORED\r\nVALUE large 3 {}\r\n", value.len()).into_bytes();
    answer.extend_from_slice(&value);
    answer.extend_from_slice(b"\r\nEND\r\n");
    let mut stream = cache.connect();
    let mut reader = stream.try_clone().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || stream.write_all(&request).unwrap());
        let mut got = vec![0; answer.len()];
        reader.read_exact(&mut got).unwrap();
        assert!(got == answer);
    });
    let items = cache.stat("curr_items");
    let mut gone = cache.connect();
    gone.write_all(format!("set gone 0 0 {}\r\n", 8_000_000).as_bytes()).unwrap();
    gone.write_all(&value[..4_000_000]).unwrap();
    drop(gone);
    cache.wait_for("curr_connections", |n| n <= 2);
    cache.wait_for("curr_items", |n| n == items);
    cache.says(b"get gone\r\n", b"END\r\n");
}

#[test]
fn what_cannot_be_served_is_said_in_one_sentence() {
    let cache = Cache::start(&[]);
    let port = cache.tcp.port().to_string();
    let refused = |arguments: &[&str], names: &[&str]| {
        finish(binary().arg("cache").args(arguments), b"").refused(names);
    };
    refused(&["-p", &port], &["listen on", "the port is taken"]);
    refused(&["-p", "-1", "-m", "1", "-I", "1k"], &["memory limit", "at least 2 MiB"]);
    refused(&["-p", "-1", "-Z"], &["-Z", "TLS"]);
    cache.is_well();
}

#[test]
fn signals_and_files_are_as_memcached_s() {
    let scratch = Scratch::new();
    let (socket, pid) = (scratch.path("cache.sock"), scratch.path("cache.pid"));
    let file = pid.display().to_string();
    let cache = Cache::start(&["-P", &file, "-A"]);
    let id = std::fs::read_to_string(&pid).unwrap();
    assert_eq!(id.trim(), cache.child.id().to_string());
    assert_eq!(cache.signal("-USR1"), 0);
    assert!(!pid.exists(), "the file with the process id goes with it");
    let mut child = binary().args(["cache", "-s"]).arg(&socket).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let mut stream = std::os::unix::net::UnixStream::connect(&socket).unwrap();
    stream.write_all(b"version\r\n").unwrap();
    let mut answer = [0; 8];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"VERSION ");
    Command::new("kill").arg(child.id().to_string()).status().unwrap();
    assert!(child.wait().unwrap().success());
    assert!(!socket.exists());
}
