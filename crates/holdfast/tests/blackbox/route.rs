//! The cache's client and router against real servers, some of which die.

use super::common::{Scratch, binary, finish, free_port, resident_bytes};
use super::memcached::{Memcached, python};
use holdfast_cache_client::{
    Answer, Batch, CacheClientOptions, Client, Failover, Store, Transport,
};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};

/// A cache whose TCP and UDP ports are one number.
fn cache() -> Memcached {
    cache_at(free_port())
}

fn cache_at(port: u16) -> Memcached {
    let port = port.to_string();
    Memcached::start(&["cache", "-t", "1", "-I", "4m", "-m", "128", "-p", &port, "-U", &port])
}

fn route(arguments: &[&str]) -> Memcached {
    // On a busy machine a server may be silent for long, and is not dead.
    let patient = ["route", "-p", "-1", "-I", "4M", "--patience", "20000"];
    Memcached::start(&[&patient, arguments].concat())
}

fn caches(count: usize) -> (Vec<Memcached>, Vec<String>) {
    let all: Vec<Memcached> = (0..count).map(|_| cache()).collect();
    let names = all.iter().map(Memcached::name).collect();
    (all, names)
}

#[test]
fn pymemcache_and_libmemcached_work_through_a_router() {
    let (_caches, names) = caches(3);
    // What is lost over UDP is a miss, but not before so many tries.
    for transport in [&[][..], &["--udp", "--retries", "200"]] {
        let servers = names.join(",");
        let router = route(&[&["--servers", &servers][..], transport].concat());
        let place = [router.tcp.ip().to_string(), router.tcp.port().to_string()];
        python("cache_clients.py", &place);
    }
}

#[test]
fn libmemcached_and_a_router_find_each_other_s_items() {
    let (_caches, names) = caches(4);
    for hashing in ["ketama_weighted", "ketama"] {
        let router = route(&["--servers", &names.join(","), "--hashing", hashing]);
        let mut arguments = vec![hashing.to_owned(), router.name()];
        arguments.extend(names.iter().cloned());
        python("ketama_clients.py", &arguments);
    }
}

/// Every one of these is on some server, and on each server are some.
fn keys(count: usize) -> Vec<String> {
    (0..count).map(|i| format!("key-{i}")).collect()
}

fn options(gets: Transport) -> CacheClientOptions {
    let mut options = CacheClientOptions { gets, ..CacheClientOptions::default() };
    // A busy machine makes answers late: what is lost here should be lost for a reason.
    options.fleet.retries = 10;
    options.fleet.window.timeout_least_ns = 50_000_000;
    options
}

#[test]
fn multigets_and_multisets_go_to_all_servers_and_come_back_whole() {
    let (_caches, names) = caches(3);
    for gets in [Transport::Tcp, Transport::Udp] {
        let mut client = Client::new(&names, options(gets)).unwrap();
        let keys = keys(1000);
        let items: Vec<(String, Vec<u8>)> = keys
            .iter()
            .enumerate()
            .map(|(i, key)| (key.clone(), format!("{i} ").repeat(i % 300).into_bytes()))
            .collect();
        client.set_many(&items, 0).unwrap();
        let got = client.get_many(&keys).unwrap();
        for ((key, value), got) in items.iter().zip(got) {
            assert_eq!(got.as_deref(), Some(&value[..]), "{key} by {gets:?}");
        }
        assert_eq!(client.get(b"missing").unwrap(), None);
        assert!(client.delete(b"key-7").unwrap() && !client.delete(b"key-7").unwrap());
        let mut batch = Batch::new();
        let add = batch.store(Store::Add, b"key-8", b"x", 0, 0).unwrap();
        let number = batch.store(Store::Set, b"n", b"41", 5, 100).unwrap();
        client.run(&mut batch).unwrap();
        assert_eq!((batch.answer(add), batch.answer(number)), (Answer::NotStored, Answer::Done));
        batch.clear();
        let (count, gets) = (batch.increment(b"n", 1).unwrap(), batch.gets(b"key-8").unwrap());
        let touch = batch.touch(b"nothing", 1).unwrap();
        client.run(&mut batch).unwrap();
        assert_eq!(batch.answer(count), Answer::Number(42));
        assert_eq!(batch.answer(touch), Answer::NotFound);
        let Answer::Hit { cas, data, .. } = batch.answer(gets) else { panic!("a hit") };
        assert_eq!(data, b"8 ".repeat(8));
        batch.clear();
        let stale = batch.store(Store::Cas(cas + 1), b"key-8", b"x", 0, 0).unwrap();
        client.run(&mut batch).unwrap();
        assert_eq!(batch.answer(stale), Answer::Exists);
        assert!(batch.get(b"a key").is_err() && batch.get(&[b'k'; 251]).is_err());
        assert_eq!(client.window().outstanding(), 0);
    }
}

#[test]
fn the_client_reads_what_memcached_says_over_udp() {
    let port = free_port().to_string();
    let started = Command::new("memcached")
        .args(["-l", "127.0.0.1", "-u", "nobody", "-t", "1", "-p", &port, "-U", &port])
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut child) = started else {
        eprintln!("SKIPPED: memcached is not installed");
        return;
    };
    let name = format!("127.0.0.1:{port}");
    while TcpStream::connect(&name).is_err() && child.try_wait().unwrap().is_none() {}
    let mut client = Client::new(&[&name], options(Transport::Udp)).unwrap();
    let keys = keys(300);
    let items: Vec<(&String, &String)> = keys.iter().map(|key| (key, key)).collect();
    client.set_many(&items, 0).unwrap();
    // Version 1.6 answers each key of a get in a datagram that says 0 of 1.
    let got = client.get_many(&keys).unwrap();
    let _ = child.kill();
    let _ = child.wait();
    assert!(keys.iter().zip(got).all(|(key, got)| got.as_deref() == Some(key.as_bytes())));
}

#[test]
fn a_killed_server_s_keys_fail_or_move_and_come_back_with_it() {
    for (failover, gets) in
        [(Failover::None, Transport::Udp), (Failover::NextServer, Transport::Tcp)]
    {
        let (mut caches, names) = caches(3);
        let mut client =
            Client::new(&names, CacheClientOptions { failover, ..options(gets) }).unwrap();
        let keys = keys(300);
        let items: Vec<(&String, &String)> = keys.iter().map(|key| (key, key)).collect();
        client.set_many(&items, 0).unwrap();
        let port = caches[1].tcp.port();
        caches[1].kill();
        // The first of these may find out that it is dead.
        let hits = |client: &mut Client| client.get_many(&keys).unwrap().iter().flatten().count();
        let found = (hits(&mut client), hits(&mut client));
        assert!(found.0 < 300 && found.1 > 100, "{found:?}");
        if failover == Failover::NextServer {
            client.set_many(&items, 10).unwrap();
            assert_eq!(hits(&mut client), 300);
        } else {
            let error = client.set_many(&items, 10).unwrap_err().message;
            assert!(error.contains("its server does not answer"), "{error}");
        }
        caches[1] = cache_at(port);
        // Asked again after a pause; until then its keys fail at once.
        while client.set_many(&items, 0).is_err() || hits(&mut client) < 300 {}
        drop(caches);
        let mut batch = Batch::new();
        for key in &keys {
            batch.get(key.as_bytes()).unwrap();
        }
        client.run(&mut batch).unwrap();
        client.run(&mut batch).unwrap();
        assert!(batch.answers().all(|answer| answer == Answer::Dead { maybe: false }));
    }
}

#[test]
fn a_dead_server_s_keys_live_in_the_gutter_until_it_is_back() {
    let (mut caches, names) = caches(2);
    let gutter = cache();
    let (servers, spare) = (names.join(","), gutter.name());
    let arguments = ["--servers", &servers, "--gutter", &spare, "-t", "1"];
    let router = route(&arguments);
    let mut client = Client::new(&[router.name()], options(Transport::Tcp)).unwrap();
    let keys = keys(100);
    let items: Vec<(&String, &String)> = keys.iter().map(|key| (key, key)).collect();
    client.set_many(&items, 0).unwrap();
    assert_eq!(gutter.stat("curr_items"), 0);
    let port = caches[0].tcp.port();
    caches[0].kill();
    // Every store succeeds, and every key can be read: half of them in the gutter.
    client.set_many(&items, 0).unwrap();
    assert!(client.get_many(&keys).unwrap().iter().all(Option::is_some));
    let moved = gutter.stat("curr_items");
    assert!((10..90).contains(&moved), "{moved}");
    while router.stat("route_servers_dead") != 1 {}
    assert!(client.delete(b"key-1").unwrap());
    assert_eq!(client.get(b"key-1").unwrap(), None);
    // What went to the gutter expires soon.
    let mut batch = Batch::new();
    batch.get(b"key-2").unwrap();
    caches[0] = cache_at(port);
    while router.stat("route_servers_dead") != 0 {}
    client.set_many(&items, 0).unwrap();
    assert_eq!(gutter.stat("curr_items"), moved - u64::from(gutter.stat("delete_hits") > 0));
}

/// A server that was stalled, not dead, answered with 105 of 300 old values when it went on, though
/// newer ones had been set meanwhile, in the gutter. What was changed elsewhere is deleted there
/// before it is used again.
#[test]
fn a_server_that_was_stalled_serves_nothing_old_when_it_goes_on() {
    let (main, gutter) = (cache(), cache());
    let (server, spare) = (main.name(), gutter.name());
    let ports = ["route", "-p", "-1", "-t", "2", "--patience", "300"];
    let pools = ["--servers", &server, "--gutter", &spare];
    let router = Memcached::start(&[&ports[..], &pools[..]].concat());
    // Two threads serve them, as a rule.
    let mut clients: Vec<Client> =
        (0..4).map(|_| Client::new(&[router.name()], patient(Transport::Tcp)).unwrap()).collect();
    let keys = keys(300);
    let items = |value: &'static str| keys.iter().map(|k| (k, value)).collect::<Vec<_>>();
    clients[0].set_many(&items("old"), 0).unwrap();
    main.stall();
    clients[1].set_many(&items("new"), 0).unwrap();
    for key in &keys[..50] {
        clients[2].delete(key.as_bytes()).unwrap();
    }
    router.wait_for("route_servers_dead", |dead| dead == 1);
    let look = |clients: &mut Vec<Client>| {
        for client in clients {
            for (i, value) in client.get_many(&keys).unwrap().into_iter().enumerate() {
                let expected = value.is_none() || i >= 50 && value.as_deref() == Some(b"new");
                assert!(expected, "{} is {value:?}", keys[i]);
            }
        }
    };
    look(&mut clients);
    main.send("-CONT");
    while router.stat("route_servers_dead") != 0 {
        look(&mut clients);
    }
    look(&mut clients);
    let mut direct = Client::new(&[main.name()], patient(Transport::Tcp)).unwrap();
    let left = direct.get_many(&keys).unwrap();
    assert!(left.iter().all(|value| value.as_deref() != Some(b"old")), "{left:?}");
    // It is used again.
    clients[3].set(b"key-7", b"newest", 0).unwrap();
    assert_eq!(direct.get(b"key-7").unwrap().as_deref(), Some(&b"newest"[..]));
}

/// A client of servers that may be stalled for a while, and are not dead.
fn patient(gets: Transport) -> CacheClientOptions {
    let mut options = options(gets);
    options.fleet.patience_ns = 60_000_000_000;
    options
}

#[test]
fn a_cold_pool_takes_over_from_a_warm_one() {
    let (_cold, cold_names) = caches(2);
    let (_warm, warm_names) = caches(3);
    let (servers, warm_from) = (cold_names.join(","), warm_names.join(","));
    let router = route(&["--servers", &servers, "--warm-from", &warm_from, "-t", "1"]);
    let mut warm = Client::new(&warm_names, options(Transport::Tcp)).unwrap();
    let mut cold = Client::new(&cold_names, options(Transport::Tcp)).unwrap();
    let mut client = Client::new(&[router.name()], options(Transport::Tcp)).unwrap();
    let keys = keys(50);
    let mut batch = Batch::new();
    for key in &keys {
        batch.store(Store::Set, key.as_bytes(), key.as_bytes(), 7, 1000).unwrap();
    }
    warm.run(&mut batch).unwrap();
    // Deleted through the router before anybody read it: it must not come back.
    assert!(!client.delete(b"key-0").unwrap());
    assert_eq!((client.get(b"key-0").unwrap(), warm.get(b"key-0").unwrap()), (None, None));
    client.set(b"key-1", b"new", 0).unwrap();
    assert_eq!(client.get(b"key-1").unwrap().unwrap(), b"new");
    assert_eq!(warm.get(b"key-1").unwrap(), None);
    assert!(client.get_many(&keys[2..]).unwrap().iter().all(Option::is_some));
    // The copies are on their way; the router's next answer from there comes behind them.
    while cold.get_many(&keys[2..]).unwrap().iter().any(Option::is_none) {}
    let mut batch = Batch::new();
    batch.get(b"key-2").unwrap();
    cold.run(&mut batch).unwrap();
    assert_eq!(batch.answer(0), Answer::Hit { data: b"key-2", flags: 7, cas: 0 });
    let mut stream = TcpStream::connect(&cold_names[0]).unwrap();
    let mut line = String::new();
    for key in &keys[2..] {
        line += &format!("mg {key} t q\r\n");
    }
    line += "mn\r\n";
    stream.write_all(line.as_bytes()).unwrap();
    for line in BufReader::new(stream).lines() {
        let line = line.unwrap();
        if line == "MN" {
            break;
        }
        let ttl: u32 = line.strip_prefix("HD t").unwrap().parse().unwrap();
        assert!((900..=1000).contains(&ttl), "{line}: as long as the original");
    }
    assert_eq!(router.stat("route_warm_hits"), 48);
}

#[test]
fn clients_of_a_router_that_misbehave_harm_themselves_alone() {
    let (_caches, names) = caches(2);
    let router = route(&["--servers", &names.join(","), "-t", "1"]);
    let well = || {
        router.says(
            b"set well 0 0 2\r\nok\r\nget well\r\n",
            b"STORED\r\nVALUE well 0 2\r\nok\r\nEND\r\n",
        );
    };
    well();
    // Half a command, a line without end, a value that is too long, one without its end.
    let mut half = router.connect();
    half.write_all(b"set half 0 0 10\r\nabc").unwrap();
    router.says(&[b'x'; 3000], b"CLIENT_ERROR line too long\r\n");
    let long = [b"set long 0 0 5000000\r\n".to_vec(), vec![b'x'; 5_000_002], b"mn\r\n".to_vec()];
    router.says(&long.concat(), b"SERVER_ERROR object too large for cache\r\nMN\r\n");
    router.says(b"set bad 0 0 1\r\nxyz\r\n", b"CLIENT_ERROR bad data chunk\r\n");
    router.says(
        &[b"get ", &[b'k'; 251][..], b"\r\n"].concat(),
        b"CLIENT_ERROR bad command line format\r\n",
    );
    // Very many keys in one get; the end of the input before the answer.
    let many: String = (0..100_000).map(|i| format!(" k{i}")).collect();
    router.says(format!("get{many} well\r\n").as_bytes(), b"VALUE well 0 2\r\nok\r\nEND\r\n");
    let mut stream = router.connect();
    stream.write_all(b"get well\r\n").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "VALUE well 0 2\r\nok\r\nEND\r\n");
    // Clients that never read, one of them gone before its answers are there.
    let value = vec![b'v'; 1 << 20];
    let set = [b"set big 0 0 1048576\r\n", &value[..], b"\r\n"].concat();
    router.says(&set, b"STORED\r\n");
    let greedy: Vec<TcpStream> = (0..20)
        .map(|_| {
            let mut stream = router.connect();
            stream.set_nonblocking(true).unwrap();
            let _ = stream.write(&b"get big\r\n".repeat(5000));
            stream
        })
        .collect();
    well();
    let kib = resident_bytes(router.child.id()) >> 10;
    assert!(kib < 400 << 10, "{kib} KiB for clients that do not read");
    drop(greedy);
    well();
    half.write_all(b"defghij\r\nget half\r\n").unwrap();
    let expected = b"STORED\r\nVALUE half 0 10\r\nabcdefghij\r\nEND\r\n";
    let mut got = vec![0; expected.len()];
    half.read_exact(&mut got).unwrap();
    assert_eq!(got, expected);
}

#[test]
fn what_a_router_cannot_do_is_said_in_one_sentence() {
    let scratch = Scratch::new();
    let refused = |arguments: &[&str], names: &[&str]| {
        finish(binary().arg("route").args(arguments), b"").refused(names);
    };
    refused(&["--config", "/nonexistent"], &["/nonexistent", "No such file"]);
    refused(&["--servers", "a:0"], &["`a:0`", "1 to 65535"]);
    refused(&["--servers", "a:1,a:1"], &["twice"]);
    refused(&["--servers", "nobody.invalid:1", "-p", "-1"], &["nobody.invalid"]);
    refused(&["--servers", "127.0.0.1:1", "-t", "0"], &["1 to 256"]);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    refused(&["--servers", "127.0.0.1:1", "-p", &port], &["listen on", "the port is taken"]);
    let file = scratch.path("routes.toml");
    std::fs::write(&file, "default = \"a\"\n[pools.b]\nservers = [\"x\"]\n").unwrap();
    refused(&["--config", &file.display().to_string()], &["routes.toml", "pool `a`", "`b`"]);
    std::fs::write(&file, "default = \"b\"\n[pools.b]\nservers = [\"x\"]\n").unwrap();
    let fine = finish(binary().args(["route", "--check", "--config"]).arg(&file), b"");
    assert!(fine.ok().contains("valid"));
}

#[test]
fn with_every_server_dead_gets_miss_and_stores_say_why() {
    let port = free_port();
    let router = route(&["--servers", &format!("127.0.0.1:{port}")]);
    router.says(b"get a b\r\n", b"END\r\n");
    router
        .says(b"set a 0 0 1\r\nx\r\n", b"SERVER_ERROR the server of this key does not answer\r\n");
    router.says(b"mg a v\r\nmg a v q\r\nmn\r\n", b"EN\r\nMN\r\n");
    router.says(b"flush_all\r\n", b"SERVER_ERROR a server was not flushed");
    router.says(b"version\r\n", b"VERSION 1.6.18-holdfast-route");
}

/// A name that nobody gives leases of: everything is a miss for ever, which looks like a cache that is merely empty.
/// The router says so, once, and by which name; one whose servers have leases says nothing, whatever it waits for.
#[test]
fn a_router_whose_servers_get_no_leases_says_so_once() {
    let (servers, names) = caches(2);
    for server in &servers {
        // As an invalidator gives one: what counts is that it is there.
        server.says(b"set holdfast:invalidate:main 0 0 1\r\n1\r\n", b"STORED\r\n");
    }
    let start = |pool: &str| {
        let mut command = binary();
        command.args(["--json", "route", "-p", "-1", "-t", "2", "--patience", "20000"]);
        command.args(["--servers", &names.join(","), "--server-lease", pool]);
        Memcached::of(command)
    };
    let (mut right, mut wrong) = (start("main"), start("mian"));
    let mut told = BufReader::new(wrong.child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let unleased = |line: &String| line.contains("\"cache.unleased\"");
    // The first behind ten seconds, during which nobody had one.
    let line = told.find(unleased).expect("it is told before the router ends");
    for part in ["`mian`", "--to mian --server-lease", "`server_lease`"] {
        assert!(line.contains(part), "{part} is missing in: {line}");
    }
    // Looked at again and again, it is not told again.
    let looks = || servers.iter().map(|server| server.stat("cmd_get")).sum::<u64>();
    let before = looks();
    while looks() < before + 20 {
        std::thread::yield_now();
    }
    wrong.kill();
    assert_eq!(told.filter(unleased).count(), 0, "once, whatever the threads");
    right.kill();
    let mut said = String::new();
    right.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(!said.contains("cache.unleased"), "{said}");
}
