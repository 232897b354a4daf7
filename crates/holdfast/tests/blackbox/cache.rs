//! The cache from outside: real clients, and clients that misbehave.

use super::common::{Scratch, binary, finish};
use super::memcached::{Memcached, python};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::path::Path;
use std::process::Command;

/// Port -1 is any that is free.
fn start(arguments: &[&str]) -> Memcached {
    Memcached::start(&[&["cache", "-p", "-1", "-U", "-1"], arguments].concat())
}

#[test]
fn pymemcache_and_libmemcached_agree_with_it() {
    let cache = start(&["-I", "4m"]);
    let place = [cache.tcp.ip().to_string(), cache.tcp.port().to_string()];
    python("cache_clients.py", &place);
    cache.is_well();
}

#[test]
fn memccapable_passes() {
    let cache = start(&[]);
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

/// A thread whose first answer was a value in pieces panicked, and an answer that filled the
/// buffer but was not longer than UDP's limit was waited for without an end.
#[test]
fn long_answers_over_udp_are_sent_or_refused_and_others_served() {
    let cache = start(&["-t", "1", "-I", "2m", "-o", "udp_reply=1000000"]);
    let ask = |name: &str| {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(cache.udp).unwrap();
        socket.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
        socket.send(&datagram(1, 0, 1, format!("get {name}\r\n").as_bytes())).unwrap();
        let mut buffer = vec![0; 65536];
        let got = socket.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[8..got]).into_owned()
    };
    let mut stream = TcpStream::connect(cache.tcp).unwrap();
    for (name, len) in [("longer", 1_500_000), ("long", 700_000), ("edge", 262_144 - 28)] {
        // Without an answer over TCP before.
        let set = format!("set {name} 0 0 {len} noreply\r\n{}\r\n", "v".repeat(len));
        stream.write_all(set.as_bytes()).unwrap();
        let answer = loop {
            let answer = ask(name);
            if answer != "END\r\n" {
                break answer;
            }
        };
        // More datagrams than a socket's buffer holds: the first one is there.
        match name {
            "longer" => {
                assert_eq!(answer, "SERVER_ERROR multi-packet request not supported\r\n");
            }
            _ => assert!(answer.starts_with(&format!("VALUE {name} 0 {len}\r\nvvv"))),
        }
        assert_eq!(ask("none"), "END\r\n", "the thread serves on");
    }
}

#[test]
fn answers_over_udp_are_numbered_and_whole() {
    let cache = start(&[]);
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
    let cache = start(&["-m", "64", "-t", "1"]);
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
    /// As many as the machine allows, at most.
    const CLIENTS: u64 = 10_000;
    const DESCRIPTORS: u64 = 300;
    let allowed = holdfast_env::local::raise_descriptors(CLIENTS + DESCRIPTORS).unwrap();
    let n = CLIENTS.min(allowed - DESCRIPTORS);
    let cache = start(&["-t", "1", "-c", &(n + 100).to_string()]);
    let before = cache.stat("response_obj_bytes");
    let half: Vec<TcpStream> = (0..n)
        .map(|i| {
            let mut stream = cache.connect();
            stream.write_all(format!("set half-{i} 0 0 9000\r\nabc").as_bytes()).unwrap();
            stream
        })
        .collect();
    cache.wait_for("curr_connections", |now| now > n);
    let held = cache.stat("response_obj_bytes") - before;
    assert!(held < n * 1024, "{held} bytes are held for {n} half commands");
    cache.is_well();
    for (i, mut stream) in half.into_iter().enumerate() {
        stream.write_all(&[b'd'; 8997]).unwrap();
        stream.write_all(format!("\r\nget half-{i}\r\n").as_bytes()).unwrap();
        let mut answer = [0; 8];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"STORED\r\n");
    }
}

#[test]
fn large_values_arrive_whole_and_abandoned_ones_go() {
    let cache = start(&["-m", "64", "-I", "16m"]);
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
    let cache = start(&[]);
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
    let cache = start(&["-P", &file, "-A"]);
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

#[test]
fn a_line_without_end_and_a_get_of_a_million_keys_take_no_memory() {
    let cache = start(&["-m", "64", "-t", "1"]);
    cache.says(b"set a 0 0 1\r\nx\r\n", b"STORED\r\n");
    let before = cache.memory_bytes();
    let mut endless = cache.connect();
    // It is hung up on long before the megabyte is through.
    let sent = endless.write_all(&vec![b'x'; 1 << 20]);
    let mut rest = Vec::new();
    assert!(sent.is_err() || endless.read_to_end(&mut rest).is_err() || rest.is_empty());
    let mut get = b"get".to_vec();
    get.extend_from_slice(&b" a".repeat(1_000_000));
    get.extend_from_slice(b"\r\n");
    let answer = b"VALUE a 0 1\r\nx\r\n";
    let mut stream = cache.connect();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    std::thread::scope(|scope| {
        scope.spawn(move || stream.write_all(&get).unwrap());
        let mut got = vec![0; answer.len()];
        for n in 0..1_000_000 {
            reader.read_exact(&mut got).unwrap();
            assert!(got == answer, "answer {n}");
            if n == 500_000 {
                cache.is_well();
            }
        }
        reader.read_exact(&mut got[..5]).unwrap();
        assert_eq!(&got[..5], b"END\r\n");
    });
    let more = cache.memory_bytes().saturating_sub(before);
    assert!(more < 16 << 20, "{more} bytes more");
}

#[test]
fn datagrams_of_noise_are_dropped_or_refused() {
    let cache = start(&["-t", "1"]);
    cache.says(b"set a 0 0 1\r\nx\r\n", b"STORED\r\n");
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(cache.udp).unwrap();
    // Cut anywhere, numbered wrongly, longer than any request.
    let whole = datagram(9, 0, 1, b"get a\r\n");
    for len in 0..whole.len() {
        socket.send(&whole[..len]).unwrap();
    }
    for (sequence, total) in [(0, 0), (1, 1), (0, 2), (7, 3), (65535, 65535)] {
        socket.send(&datagram(9, sequence, total, b"get a\r\n")).unwrap();
    }
    let long = format!("get{}\r\n", " kk".repeat(20_000));
    socket.send(&datagram(9, 0, 1, long.as_bytes())).unwrap();
    let mut state = 1u64;
    for round in 0..300 {
        let noise: Vec<u8> = (0..round)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 56) as u8
            })
            .collect();
        socket.send(&datagram(9, 0, 1, &noise)).unwrap();
        socket.send(&noise).unwrap();
    }
    // What nobody has received yet fills the socket, and then an answer is lost: ask again.
    socket.set_read_timeout(Some(std::time::Duration::from_millis(200))).unwrap();
    let mut buffer = vec![0; 65536];
    loop {
        let Ok(got) = socket.recv(&mut buffer) else {
            socket.send(&datagram(4711, 0, 1, b"get a\r\n")).unwrap();
            continue;
        };
        assert!((8..=1400).contains(&got), "a datagram of {got} bytes");
        if buffer[..8] == datagram(4711, 0, 1, b"")[..] {
            assert_eq!(&buffer[8..got], b"VALUE a 0 1\r\nx\r\nEND\r\n");
            break;
        }
    }
    cache.is_well();
}

#[test]
fn out_of_descriptors_clients_wait_until_others_leave() {
    // So many threads have some ninety descriptors, which leaves ten for clients: a thread that
    // has none of them must take its own up again when those of others leave.
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 100 && exec \"$0\" \"$@\""]).arg(binary().get_program());
    command.args(["--json", "cache", "-p", "-1", "-t", "28", "-c", "36"]);
    let cache = Memcached::of(command);
    let mut clients: Vec<TcpStream> = (0..30)
        .map(|_| {
            let mut stream = cache.connect();
            stream.write_all(b"mn\r\n").unwrap();
            stream
        })
        .collect();
    // The kernel gives each client to one thread; who is early is served.
    let answered = |stream: &mut TcpStream| {
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"MN\r\n");
    };
    // One after the other leaves, and each that waited gets its turn.
    while !clients.is_empty() {
        let ready = clients.iter().position(|stream| {
            stream.set_nonblocking(true).unwrap();
            let is_ready = stream.peek(&mut [0; 4]).is_ok();
            stream.set_nonblocking(false).unwrap();
            is_ready
        });
        match ready {
            Some(i) => answered(&mut clients.swap_remove(i)),
            None => std::thread::yield_now(),
        }
    }
    cache.is_well();
}

#[test]
fn items_survive_an_orderly_restart_and_nothing_survives_a_crash() {
    let scratch = Scratch::new();
    let file = scratch.path("items");
    let start = || start(&["-e", &file.display().to_string(), "-I", "4m"]);
    let cache = start();
    let large = "z".repeat(3_000_000);
    let sets = format!("set a 7 0 3\r\nabc\r\nset large 0 500 3000000\r\n{large}\r\n");
    cache.says(sets.as_bytes(), b"STORED\r\nSTORED\r\n");
    assert_eq!(cache.signal("-TERM"), 0);
    let cache = start();
    let answer = format!("VALUE a 7 3\r\nabc\r\nVALUE large 0 3000000\r\n{large}\r\nEND\r\n");
    cache.says(b"get a large\r\n", answer.as_bytes());
    drop(cache);
    let cache = start();
    cache.says(b"get a large\r\n", b"END\r\n");
    // While it runs nobody else may have the file.
    let other = ["cache", "-p", "-1", "-e", &file.display().to_string()];
    finish(binary().args(other), b"").refused(&["another cache uses it"]);
    cache.is_well();
}

#[test]
fn tls_serves_clients_of_tls_and_the_plain_port_the_others() {
    let pem = |name: &str| {
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../env/tests/tls");
        tests.join(name).display().to_string()
    };
    let mut command = binary();
    command.args(["--json", "cache", "-p", "-1", "-l", "127.0.0.1,notls:127.0.0.1:0", "-Z", "-o"]);
    command.arg(format!("ssl_chain_cert={},ssl_key={}", pem("cert.pem"), pem("key.pem")));
    let cache = Memcached::of(command);
    let [host, port] = [cache.tcp.ip().to_string(), cache.tcp.port().to_string()];
    python("cache_tls.py", &[host, port, pem("ca.pem")]);
    // Who does not speak TLS is told so in TLS' own words, and hung up on.
    let mut stream = cache.connect();
    stream.write_all(b"get a\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(answer.first().is_none_or(|byte| *byte == 21), "{answer:?}");
}
