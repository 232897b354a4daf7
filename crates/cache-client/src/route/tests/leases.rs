//! Servers that count by leases: what a client of the router gets from one without, and a model of what a router
//! may serve.

use super::{MS, World};
use crate::fleet::Closing;
use crate::ring::Member;
use crate::route::plan::PoolPlan;
use holdfast_env::{Rng, SeededRng};
use std::collections::BTreeMap;

const S: u64 = 1000 * MS;
const HAS: &str = "VA 1 kholdfast:invalidate:shop f0 c1\r\n1\r\nMN\r\n";
/// A place that an invalidator holds, and no lease yet.
const HOLDS: &str = "VA 0 kholdfast:invalidate:shop f0 c1 Z\r\n\r\nMN\r\n";
const LOOK: &str = "mg holdfast:invalidate:shop q k v f c\r\nmn\r\n";
const HAS_NONE: &str = "MN\r\n";
const GUTTER: u32 = 2;
const WARM: u32 = 3;

/// A pool of two servers that count by leases, with a gutter, and with a warm pool or not.
fn world(has_warm: bool) -> World {
    let pool = |name: &str, servers: u16| PoolPlan {
        name: name.into(),
        servers: (1..=servers).map(|port| Member { host: name.into(), port, weight: 1 }).collect(),
        ..PoolPlan::default()
    };
    let main = PoolPlan {
        gutter: Some("gutter".into()),
        warm_from: has_warm.then(|| "warm".into()),
        server_lease: Some("shop".into()),
        ..pool("main", 2)
    };
    let world = World::of(vec![main, pool("gutter", 1), pool("warm", 1)]);
    assert_eq!(world.router.next_look_ns(), 0);
    world
}

/// A key of each of the two servers.
fn keys(world: &World) -> [String; 2] {
    [0, 1].map(|server| {
        let is_its = |key: &String| world.server_of(key) == server;
        (0..).map(|i| format!("k{i}")).find(is_its).unwrap()
    })
}

/// Servers are looked at, and say so.
fn looks(world: &mut World, said: &[(u32, &str)]) {
    world.advance();
    for (server, said) in said {
        assert_eq!(world.asked(*server), LOOK, "server {server}");
        world.answers(*server, said);
    }
}

#[test]
fn of_a_server_without_a_lease_nothing_is_read_and_nothing_is_stored_there() {
    for (text, asks, said) in [
        ("get KEY\r\n", "", "END\r\n"),
        ("gat 5 KEY KEY\r\n", "", "END\r\n"),
        ("mg KEY v\r\n", "", "EN\r\n"),
        ("mg KEY v k O7\r\n", "", "EN kKEY O7\r\n"),
        ("mg KEY v q\r\n", "", ""),
        ("set KEY 0 0 1\r\nx\r\n", "delete KEY\r\n", "NOT_STORED\r\n"),
        ("set KEY 0 0 1 noreply\r\nx\r\n", "delete KEY\r\n", ""),
        ("ms KEY 1 O9 T5\r\nx\r\n", "delete KEY\r\n", "NS O9\r\n"),
        ("ms KEY 1 q\r\nx\r\n", "delete KEY\r\n", "NS\r\n"),
        ("add KEY 0 0 1\r\nx\r\n", "", "NOT_STORED\r\n"),
        ("append KEY 0 0 1\r\nx\r\n", "", "NOT_STORED\r\n"),
        ("cas KEY 0 0 1 7\r\nx\r\n", "", "NOT_FOUND\r\n"),
        ("incr KEY 1\r\n", "", "NOT_FOUND\r\n"),
        ("ma KEY\r\n", "", "NF\r\n"),
        ("ma KEY q\r\n", "", ""),
        // They make nothing old.
        ("delete KEY\r\n", "delete KEY\r\n", "NOT_FOUND\r\n"),
        ("touch KEY 5\r\n", "touch KEY 5\r\n", "NOT_FOUND\r\n"),
    ] {
        for look in [None, Some(HAS_NONE), Some(HOLDS)] {
            let mut world = world(false);
            let key = keys(&world)[0].clone();
            let of_key = |text: &str| text.replace("KEY", &key);
            world.advance();
            assert_eq!(world.asked(0), LOOK);
            // A read does not wait for a look: until it is answered, there is no lease.
            look.into_iter().for_each(|said| world.answers(0, said));
            let reply = world.ask(&of_key(text));
            assert_eq!(world.asked(0), of_key(asks), "{text}");
            if look.is_none() {
                world.answers(0, HAS_NONE);
            }
            if !asks.is_empty() {
                world.answers(0, "NOT_FOUND\r\n");
            }
            assert_eq!(world.said(reply), of_key(said), "{text}");
            assert!(world.router.tally.left_out > 0 || asks == text.replace("noreply", ""));
        }
    }
}

/// Of a multiget, those keys are asked for whose server has a lease; and what comes when that may have ended is
/// not taken, though it was asked for in time.
#[test]
fn a_lease_that_ends_in_the_middle_of_a_multiget_is_not_believed() {
    let mut world = world(false);
    let [a, b] = keys(&world);
    looks(&mut world, &[(0, HAS), (1, HAS_NONE)]);
    let get = format!("get {a} {b}\r\n");
    let value = |key: &str| format!("VALUE {key} 0 1\r\nx\r\n");
    let reply = world.ask(&get);
    assert_eq!((world.asked(0), world.asked(1)), (format!("get {a}\r\n"), String::new()));
    world.answers(0, &format!("{}END\r\n", value(&a)));
    assert_eq!(world.said(reply), format!("{}END\r\n", value(&a)));

    world.now_ns += S;
    looks(&mut world, &[(0, HAS), (1, HAS)]);
    for (later_ns, is_taken) in [(2 * S - 1, true), (2 * S, false)] {
        let began_ns = world.now_ns;
        let (reply, meta) = (world.ask(&get), world.ask(&format!("mg {b} v\r\n")));
        assert_eq!(world.asked(0), format!("get {a}\r\n"));
        assert_eq!(world.asked(1), format!("get {b}\r\nmg {b} v\r\n"));
        world.answers(0, &format!("{}END\r\n", value(&a)));
        world.now_ns += later_ns;
        world.answers(1, &format!("{}END\r\nVA 1\r\nx\r\n", value(&b)));
        let (of_b, of_meta) =
            if is_taken { (value(&b), "VA 1\r\nx\r\n") } else { (String::new(), "EN\r\n") };
        assert_eq!(world.said(reply), format!("{}{of_b}END\r\n", value(&a)));
        assert_eq!(world.said(meta), of_meta);
        // Those that were looked at behind that do not answer: nothing is asked of them.
        world.now_ns = began_ns + 2 * S;
        let reply = world.ask(&get);
        assert_eq!((world.asked(0).as_str(), world.asked(1).as_str()), (LOOK, LOOK));
        assert_eq!(world.said(reply), "END\r\n");
        world.answers(0, HAS);
        world.answers(1, HAS);
    }
}

/// A server that starts anew counts its items' numbers anew, and is another process: what the one before said of
/// its lease is not believed.
#[test]
fn behind_another_connection_a_server_does_not_count_until_it_was_looked_at() {
    let mut world = world(false);
    let key = keys(&world)[0].clone();
    looks(&mut world, &[(0, HAS)]);
    world.dies(0);
    let get = format!("get {key}\r\n");
    let reply = world.ask(&get);
    assert_eq!(world.said(reply), "END\r\n");
    assert_eq!(world.asked(0), LOOK, "at once");
    world.answers(0, HAS);
    let reply = world.ask(&get);
    assert_eq!(world.asked(0), get);
    world.answers(0, "END\r\n");
    assert_eq!(world.said(reply), "END\r\n");
}

#[test]
fn the_gutter_and_the_warm_pool_count_by_leases_of_their_own() {
    for (lease, asks) in [(HAS, true), (HAS_NONE, false)] {
        let mut world = world(true);
        let [key, _] = keys(&world);
        looks(&mut world, &[(0, HAS), (1, HAS), (GUTTER, lease), (WARM, lease)]);
        let get = format!("get {key}\r\n");
        let reply = world.ask(&get);
        world.asked(0);
        world.answers(0, "END\r\n");
        assert_eq!(world.asked(WARM) == format!("mg {key} f t v\r\n"), asks);
        if asks {
            world.answers(WARM, "VA 1 f0 t-1\r\nx\r\n");
            assert_eq!(world.said(reply), format!("VALUE {key} 0 1\r\nx\r\nEND\r\n"));
            assert_eq!(world.asked(0), format!("add {key} 0 0 1\r\nx\r\n"));
            world.answers(0, "STORED\r\n");
        } else {
            assert_eq!(world.said(reply), "END\r\n");
        }

        let set = format!("set {key} 0 5 1\r\nx\r\n");
        let (get, set) = (world.ask(&get), world.ask(&set));
        world.asked(0);
        world.dies(0);
        let asked = world.asked(GUTTER);
        if asks {
            // Outcomes are followed from the last to the first.
            assert_eq!(asked, format!("set {key} 0 5 1\r\nx\r\nget {key}\r\n"));
            world.answers(GUTTER, "STORED\r\nEND\r\n");
            assert_eq!(world.asked(WARM), format!("delete {key}\r\n"));
            world.answers(WARM, "NOT_FOUND\r\n");
            assert_eq!(world.said(set), "STORED\r\n");
        } else {
            assert_eq!(asked, format!("delete {key}\r\n"), "nothing is read, nothing is stored");
            world.answers(GUTTER, "NOT_FOUND\r\n");
            assert_eq!(world.asked(WARM), format!("delete {key}\r\n"));
            world.answers(WARM, "NOT_FOUND\r\n");
            assert_eq!(world.said(set), "NOT_STORED\r\n");
        }
        assert_eq!(world.said(get), "END\r\n");
    }
}

/// A warm pool's value that came too late is neither served nor added, and nothing is added to a server that does
/// not count any more.
#[test]
fn what_the_warm_pool_says_too_late_is_not_added() {
    let mut world = world(true);
    let [key, _] = keys(&world);
    looks(&mut world, &[(0, HAS), (1, HAS), (WARM, HAS)]);
    let reply = world.ask(&format!("get {key}\r\n"));
    world.asked(0);
    world.answers(0, "END\r\n");
    world.asked(WARM);
    world.now_ns += 2 * S;
    world.answers(WARM, "VA 1 f0 t-1\r\nx\r\n");
    assert_eq!(world.said(reply), "END\r\n");
    assert_eq!(world.asked(0), LOOK);
}

/// Versions of a row, by when each was committed.
type Row = Vec<u64>;

/// A server of the model: what it has, until when it has a lease, and what it was not told.
#[derive(Default)]
struct Peer {
    items: BTreeMap<String, usize>,
    lease_until_ns: u64,
    /// Keys that changed, and it was not told.
    lacks: Vec<String>,
    is_cut: bool,
    inbox: String,
}

impl Peer {
    /// Answers what it was asked.
    fn serve(&mut self, now_ns: u64) -> String {
        let mut out = String::new();
        for line in std::mem::take(&mut self.inbox).split_terminator("\r\n") {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["mg", _, "q", ..] => {
                    let has = now_ns < self.lease_until_ns;
                    out.push_str(if has { HAS.strip_suffix("MN\r\n").unwrap() } else { "" });
                }
                ["mn"] => out.push_str("MN\r\n"),
                ["get", ..] => {
                    for key in &words[1..] {
                        if let Some(version) = self.items.get(*key) {
                            let value = version.to_string();
                            out.push_str(&format!("VALUE {key} 0 {}\r\n{value}\r\n", value.len()));
                        }
                    }
                    out.push_str("END\r\n");
                }
                ["version"] => out.push_str("VERSION 1\r\n"),
                _ => panic!("a server was asked {line}"),
            }
        }
        out
    }
}

const KEYS: usize = 6;
const LEASE_NS: u64 = 4 * S;

/// An invalidator that reaches a server or not, servers that start anew, rows that change, readers that fill what
/// they have just read, and a router whose gets and looks take their time.
struct Shop {
    rng: SeededRng,
    world: World,
    peers: [Peer; 3],
    rows: [Row; KEYS],
    /// By key: its server.
    homes: [usize; KEYS],
    /// Gets, when they were asked, and whether they are of one key.
    open: Vec<(u32, u64, bool)>,
    hits: usize,
    /// Values that were not the newest.
    old: usize,
    restarts: usize,
}

impl Shop {
    fn new(seed: u64) -> Shop {
        let world = world(false);
        Shop {
            rng: SeededRng::new(seed),
            homes: std::array::from_fn(|key| world.server_of(&format!("k{key}")) as usize),
            world,
            peers: Default::default(),
            rows: std::array::from_fn(|_| vec![0]),
            open: Vec::new(),
            hits: 0,
            old: 0,
            restarts: 0,
        }
    }

    fn draw(&self, n: usize) -> usize {
        (self.rng.next_u64() % n as u64) as usize
    }

    fn turn(&mut self) {
        let (server, key) = (self.draw(3), self.draw(KEYS));
        let now_ns = self.world.now_ns;
        match self.draw(16) {
            0 => self.world.now_ns += [MS, 100 * MS, 300 * MS, S, 3 * S][self.draw(5)],
            1 => {
                self.rows[key].push(now_ns);
                for peer in [self.homes[key], GUTTER as usize] {
                    self.peers[peer].lacks.push(format!("k{key}"));
                }
            }
            // The invalidator tells a server what it lacks, and gives it a lease.
            2..=4 if !self.peers[server].is_cut => {
                let peer = &mut self.peers[server];
                for key in std::mem::take(&mut peer.lacks) {
                    peer.items.remove(&key);
                }
                peer.lease_until_ns = now_ns + LEASE_NS;
            }
            5 => self.peers[server].is_cut = self.draw(3) > 0,
            6..=7 => {
                let version = self.rows[key].len() - 1;
                for peer in [self.homes[key], GUTTER as usize] {
                    self.peers[peer].items.insert(format!("k{key}"), version);
                }
            }
            8 if self.draw(12) == 0 => {
                let is_cut = self.peers[server].is_cut;
                self.peers[server] = Peer { is_cut, ..Peer::default() };
                self.world.dies(server as u32);
                self.restarts += 1;
            }
            8..=10 => {
                let keys: Vec<String> =
                    (0..1 + self.draw(3)).map(|_| format!("k{}", self.draw(KEYS))).collect();
                let reply = self.world.ask(&format!("get {}\r\n", keys.join(" ")));
                self.open.push((reply, now_ns, keys.len() == 1));
            }
            11..=13 => self.serve(server),
            _ => self.world.expire(),
        }
        self.judge();
    }

    /// A server answers all that it was asked, and that may be long on its way.
    fn serve(&mut self, server: usize) {
        let (world, peer, number) = (&mut self.world, &mut self.peers[server], server as u32);
        if let Some(closing) = world.fleet.closes(number) {
            peer.inbox.clear();
            if closing == Closing::Drain {
                world.fleet.drained(number);
            }
        }
        peer.inbox.push_str(&world.asked(number));
        let said = peer.serve(world.now_ns);
        world.now_ns += [0, 0, 0, 200 * MS, 3 * S][(self.rng.next_u64() % 5) as usize];
        if !said.is_empty() {
            world.answers(number, &said);
        }
    }

    /// No value is served that was replaced longer ago than a lease and a look are believed for.
    fn judge(&mut self) {
        while self.world.router.take_whole().is_some() {}
        let is_ready = |(reply, ..): &(u32, u64, bool)| self.world.router.is_ready(*reply);
        let (ready, rest): (Vec<_>, Vec<_>) = self.open.iter().copied().partition(is_ready);
        self.open = rest;
        for (reply, asked_ns, is_single) in ready {
            // Of several servers, one may have answered long before the other.
            let at_ns = if is_single { self.world.now_ns } else { asked_ns };
            let said = self.world.said(reply);
            let lines: Vec<&str> = said.split_terminator("\r\n").collect();
            for pair in lines.chunks_exact(2) {
                let key: usize = pair[0].split(' ').nth(1).unwrap()[1..].parse().unwrap();
                let version: usize = pair[1].parse().unwrap();
                self.hits += 1;
                let Some(replaced_ns) = self.rows[key].get(version + 1) else { continue };
                self.old += 1;
                assert!(
                    at_ns < replaced_ns + LEASE_NS + 2 * S,
                    "version {version} of k{key}, replaced at {replaced_ns}, is served at {at_ns}"
                );
            }
        }
    }
}

#[test]
fn no_value_is_older_than_a_lease_and_a_look() {
    let (mut hits, mut old, mut restarts) = (0, 0, 0);
    for seed in 0..200 {
        let mut shop = Shop::new(seed);
        (0..1500).for_each(|_| shop.turn());
        (hits, old, restarts) = (hits + shop.hits, old + shop.old, restarts + shop.restarts);
    }
    assert!(hits > 2000 && old > 200 && restarts > 200, "{hits} {old} {restarts}");
}

/// A name that nobody gives leases of was everlasting misses, and `route_left_out` alone said so.
#[test]
fn a_lease_that_no_server_has_is_told_once_until_one_has_had_it() {
    let mut world = world(false);
    let mut told = Vec::new();
    for second in 0..40 {
        // The gutter has its lease for five seconds.
        let gutter = if (20..25).contains(&second) { HAS } else { HAS_NONE };
        looks(&mut world, &[(0, HAS_NONE), (1, HOLDS), (GUTTER, gutter)]);
        told.extend(world.router.take_warning().map(|why| (second, why)));
        world.now_ns += S;
    }
    let seconds: Vec<u64> = told.iter().map(|(second, _)| *second).collect();
    assert_eq!(seconds, [10, 34]);
    assert!(told[0].1.contains("pool `shop`"), "{}", told[0].1);
}
