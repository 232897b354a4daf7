//! A small shop whose prices are records of a table, caches beside it, and an invalidator between, killed in turn.
//! What is cached is what the records say.

use super::common::{Node, Scratch, finish, free_port, until};
use super::shop::{ITEMS, Invalidator, Rows, Stand, Traffic, assert_cached_is_true, price};
use super::tables_regions::Regions;
use holdfast_client::{Client, ClientOptions, Endpoint, TableWrite};
use holdfast_wire::table::{Expect, Level, Record};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::Ordering;

const MAP: &str = "[[keys]]\ntable = \"items\"\nkey = \"item:{key}\"\n\
    [[keys]]\ntable = \"items\"\nkey = \"name:{name}\"\n";

/// Whoever reads and writes records, by the node's socket.
struct Records {
    socket: PathBuf,
    client: Option<Client>,
}

impl Records {
    fn to(stand: &Stand) -> Records {
        Records::at(&stand.node.socket())
    }

    fn at(socket: &Path) -> Records {
        let mut records = Records { socket: socket.to_owned(), client: None };
        records.reconnect();
        records
    }

    fn put(&mut self, id: u64, name: &str, price: u64) {
        self.write(id, Some((name, price)), Expect::Any).unwrap();
    }

    fn write(&mut self, id: u64, item: Option<(&str, u64)>, expect: Expect) -> Option<()> {
        let text = |(name, price)| format!("{{\"name\":\"{name}\",\"price\":{price}}}");
        let value = item.map(|item| text(item).into_bytes());
        let write = TableWrite { key: id.to_string().into_bytes(), value, expect };
        self.client.as_mut()?.table("items").write(&[write]).ok().map(drop)
    }

    fn item(&mut self, id: u64) -> Option<Option<Record>> {
        let key = id.to_string();
        self.client.as_mut()?.table("items").get(key.as_bytes(), Level::Any).ok()
    }
}

fn price_of(record: &Record) -> u64 {
    let item: Value = serde_json::from_slice(&record.value).unwrap();
    item["price"].as_u64().unwrap()
}

impl Rows for Records {
    fn raise_price(&mut self, id: u64) -> Option<()> {
        let Some(record) = self.item(id)? else { return Some(()) };
        let expect = Expect::Version { version: record.version };
        self.write(id, Some((&format!("n{id}"), price_of(&record) + 1)), expect)
    }

    fn price(&mut self, id: u64) -> Option<Option<u64>> {
        Some(self.item(id)?.as_ref().map(price_of))
    }

    fn prices(&mut self) -> Option<Vec<(u64, u64)>> {
        let mut prices = Vec::new();
        for id in 0..ITEMS {
            prices.extend(self.price(id)?.map(|price| (id, price)));
        }
        Some(prices)
    }

    fn rest(&mut self) -> Option<()> {
        // As many round trips as take about as long.
        (0..40).try_for_each(|_| self.item(0).map(drop))
    }

    fn reconnect(&mut self) {
        let endpoint = Endpoint::Unix(self.socket.clone());
        self.client = Client::connect(&endpoint, &ClientOptions::default()).ok();
    }
}

fn stand(scratch: &Scratch) -> Stand {
    let stand = Stand::start(scratch, MAP);
    make(&stand);
    stand
}

fn make(stand: &Stand) {
    stand.node.run(&["table", "create", "items", "--tablets", "3"]).ok();
    let mut records = Records::to(stand);
    (0..ITEMS).for_each(|id| records.put(id, &format!("n{id}"), 1));
}

fn invalidator(stand: &Stand) -> Invalidator {
    Invalidator::start_by(Invalidator::command(stand, "table:items"))
}

/// Waits until every server has confirmed what the table shows.
fn settle(stand: &Stand) {
    until("every server has confirmed every change", || {
        let words = ["--json", "invalidate", "status", "--to", "main", "--from", "table:items"];
        let said = stand.node.run(&words);
        let lines = String::from_utf8(said.out).unwrap();
        let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let behind = |line: &Value| {
            let of = |name: &str| line.get(name).cloned();
            of("entries_behind").or(of("changes_behind"))
        };
        let behind: Vec<Value> = lines.filter_map(|line| behind(&line)).collect();
        behind.len() == stand.caches.len() + 1 && behind.iter().all(|behind| *behind == 0)
    });
}

/// The race that deletes lose, with real parts: a reader misses and reads the old price, the price changes and its key
/// is dropped, the reader stores what it read. Plain sets keep the old price for good.
#[test]
fn a_record_that_changes_while_it_is_read_is_not_kept_and_with_plain_sets_it_is() {
    let scratch = Scratch::new();
    let stand = stand(&scratch);
    let invalidator = invalidator(&stand);
    let (mut records, mut other) = (Records::to(&stand), Records::to(&stand));
    let mut cache = stand.lookaside();
    settle(&stand);
    for id in 0..6 {
        let key = format!("item:{id}");
        let old = cache.get(key.as_bytes(), || {
            let old = price(&mut records, id);
            other.put(id, "changed", 2);
            settle(&stand);
            old
        });
        assert_eq!(old.unwrap().unwrap(), b"1");
        assert_eq!(cache.get(key.as_bytes(), || price(&mut records, id)).unwrap().unwrap(), b"2");
    }
    assert_eq!(cache.counts().refused, 6);

    let mut plain = stand.client();
    let old = price(&mut records, 8).unwrap().unwrap();
    other.put(8, "n8", 2);
    settle(&stand);
    plain.set(b"item:8", &old, 0).unwrap();
    settle(&stand);
    assert_eq!(plain.get(b"item:8").unwrap().unwrap(), b"1", "an old price, for good");

    // Keys of the record as it was, and as it is; of a record that goes, and that comes back.
    let keys = ["name:n7", "name:after", "name:n9", "item:9", "name:n10", "item:5000"];
    for key in keys {
        plain.set(key.as_bytes(), b"x", 0).unwrap();
    }
    plain.set(b"item:10", b"x", 0).unwrap();
    other.put(7, "after", 1);
    other.write(9, None, Expect::Any).unwrap();
    other.write(10, None, Expect::Any).unwrap();
    other.put(5000, "new", 1);
    settle(&stand);
    for key in keys {
        assert_eq!(plain.get(key.as_bytes()).unwrap(), None, "{key}");
    }
    assert_eq!(plain.get(b"item:10").unwrap(), None);
    plain.set(b"item:9", b"x", 0).unwrap();
    other.put(9, "back", 1);
    settle(&stand);
    assert_eq!(plain.get(b"item:9").unwrap(), None);

    // A name that readers may write in several ways.
    plain.set(b"item:11", b"x", 0).unwrap();
    let value = Some(b"{\"name\":1.50,\"price\":1}".to_vec());
    let write = TableWrite { key: b"12".to_vec(), value, expect: Expect::Any };
    records.client.as_mut().unwrap().table("items").write(&[write]).unwrap();
    until("a pool is emptied", || plain.get(b"item:11").unwrap().is_none());
    let said = invalidator.kill().whole();
    assert!(said.contains("field `name` of record `12`"), "{said}");
}

/// Writers and readers, while the invalidator, each cache and the node are killed in turn. Nothing is emptied by that
/// but the caches that were killed.
#[test]
fn when_all_is_quiet_every_cached_price_is_its_record_s() {
    let scratch = Scratch::new();
    let mut stand = stand(&scratch);
    let mut running = Some(invalidator(&stand));
    let traffic = Traffic::default();
    let servers = stand.servers();
    let socket = stand.node.socket();
    let mut said = String::new();
    std::thread::scope(|scope| {
        let (traffic, servers, socket) = (&traffic, &servers, &socket);
        for seed in 0..2 {
            scope.spawn(move || traffic.write(seed, &mut Records::at(socket)));
            scope.spawn(move || traffic.read(100 + seed, &mut Records::at(socket), servers));
        }
        for round in 0..2 {
            for cache in 0..2 {
                traffic.goes_on(50, 20);
                stand.caches[cache].kill_and_start();
            }
            traffic.goes_on(100, 0);
            said += &running.take().unwrap().kill().whole();
            traffic.goes_on(100, 0);
            if round == 0 {
                stand.node.kill_and_start();
            }
            running = Some(invalidator(&stand));
            traffic.goes_on(100, 0);
            stand.node.kill_and_start();
            traffic.goes_on(300, 20);
        }
        traffic.is_over.store(true, Ordering::Relaxed);
    });
    settle(&stand);
    assert_true(&stand, &mut Records::to(&stand));
    assert!(traffic.refused.into_inner() > 0, "a price changed while it was read");
    said += &running.take().unwrap().kill().whole();
    assert_emptied_once(&said);
}

/// Tablets are split under writers and readers, halves of halves, too, and the invalidator and the node are killed
/// between: who follows goes on, and nothing is emptied.
#[test]
fn a_cache_is_true_and_not_emptied_where_tablets_are_split() {
    let scratch = Scratch::new();
    let mut stand = stand(&scratch);
    let mut running = Some(invalidator(&stand));
    settle(&stand);
    let traffic = Traffic::default();
    let (servers, socket) = (stand.servers(), stand.node.socket());
    let mut said = String::new();
    std::thread::scope(|scope| {
        let (traffic, servers, socket) = (&traffic, &servers, &socket);
        for seed in 0..2 {
            scope.spawn(move || traffic.write(seed, &mut Records::at(socket)));
            scope.spawn(move || traffic.read(100 + seed, &mut Records::at(socket), servers));
        }
        for tablet in ["0", "3", "1", "4", "0", "2"] {
            traffic.goes_on(50, 0);
            stand.node.run(&["table", "split", "items", "--tablet", tablet]).ok();
            match tablet {
                // Before it is told of the other half, perhaps, and behind that.
                "3" => stand.node.kill_and_start(),
                "4" => {
                    said += &running.take().unwrap().kill().whole();
                    traffic.goes_on(50, 0);
                    running = Some(invalidator(&stand));
                }
                _ => {}
            }
        }
        traffic.goes_on(50, 0);
        traffic.is_over.store(true, Ordering::Relaxed);
    });
    settle(&stand);
    assert_true(&stand, &mut Records::to(&stand));
    said += &running.take().unwrap().kill().whole();
    assert_emptied_once(&said);
    let told = stand.node.run(&["table", "describe", "items"]).ok();
    assert!(told.contains("tablet 8: hashes"), "{told}");
}

/// Whatever is cached is what the records say. What was told again behind a start may have left nothing, so some are read
/// first: an old value that is cached stays.
#[track_caller]
fn assert_true(stand: &Stand, records: &mut Records) {
    let mut cache = stand.lookaside();
    for id in 0..50 {
        cache.get(format!("item:{id}").as_bytes(), || price(records, id)).unwrap();
    }
    assert_cached_is_true(stand, records);
}

/// Nobody had to empty the pool but for the first time.
#[track_caller]
fn assert_emptied_once(said: &str) {
    let emptied: Vec<&str> =
        said.lines().filter(|line| line.contains("invalidate.emptied")).collect();
    assert!(emptied.len() == 1 && emptied[0].contains("new to this topic"), "{emptied:#?}");
}

/// A strong table in three regions, with an invalidator and caches in one of them: written elsewhere while the homes of
/// half of its records are lost and taken over, and while the region itself is started anew.
#[test]
fn a_region_s_caches_are_true_to_what_it_shows_of_others_writes() {
    let mut regions = Regions::start(false);
    let scratch = Scratch::new();
    let mut stand = Stand::around(regions.nodes[1].take().unwrap(), &scratch, MAP);
    stand.node.run(&["table", "create", "items", "--mode", "strong", "--tablets", "2"]).ok();
    let mut records = Records::to(&stand);
    (0..60).for_each(|id| records.put(id, &format!("n{id}"), 1));
    let invalidator = invalidator(&stand);
    let traffic = Traffic::default();
    let (servers, own) = (stand.servers(), stand.node.socket());
    let others = [0, 2].map(|region| regions.node(region).socket());
    std::thread::scope(|scope| {
        let (traffic, servers, own) = (&traffic, &servers, &own);
        for (seed, other) in (0..).zip(&others) {
            scope.spawn(move || traffic.write(seed, &mut Records::at(other)));
        }
        scope.spawn(move || traffic.write(2, &mut Records::at(own)));
        scope.spawn(move || traffic.read(100, &mut Records::at(own), servers));
        traffic.goes_on(100, 20);
        regions.kill(0);
        traffic.goes_on(100, 20);
        stand.node.kill_and_start();
        traffic.goes_on(100, 20);
        regions.begin(0);
        traffic.goes_on(100, 20);
        traffic.is_over.store(true, Ordering::Relaxed);
    });
    let mut home = Records::at(&others[0]);
    let prices = |records: &mut Records| {
        let prices = records.prices();
        if prices.is_none() {
            records.reconnect();
        }
        prices
    };
    until("both regions show the same", || {
        let (there, here) = (prices(&mut home), prices(&mut records));
        there.is_some() && there == here
    });
    settle(&stand);
    assert_true(&stand, &mut records);
    assert_emptied_once(&invalidator.kill().whole());
}

/// Who follows asks any node, and so do readers: the one that shows answers both.
#[test]
fn a_node_that_follows_the_log_tells_what_shows_where_records_are_read() {
    let scratch = Scratch::new();
    let port = free_port();
    let first = Node::start_with(&scratch.path("first"), &format!("native_port = {port}\n"));
    Node::set(&scratch.path("second"), &format!("native_port = {}\n", free_port()));
    let second = Node::join(&scratch.path("second"), &first, port);
    let stand = Stand::around(second, &scratch, MAP);
    make(&stand);
    let invalidator = invalidator(&stand);
    let (mut records, mut other) = (Records::to(&stand), Records::at(&first.socket()));
    let mut cache = stand.lookaside();
    settle(&stand);
    for id in 0..20 {
        let key = format!("item:{id}");
        let mut read = || cache.get(key.as_bytes(), || price(&mut records, id)).unwrap().unwrap();
        assert_eq!(read(), b"1");
        other.put(id, "n", 2);
        settle(&stand);
        assert_eq!(read(), b"2");
    }
    invalidator.kill().judge();
}

/// An invalidator that was away goes on behind what it had told, and for more than a tablet keeps empties the pool.
#[test]
fn an_invalidator_that_was_away_for_more_than_is_kept_empties_the_pool() {
    let scratch = Scratch::new();
    let stand = stand(&scratch);
    let (mut client, mut records) = (stand.client(), Records::to(&stand));
    let first = invalidator(&stand);
    settle(&stand);
    first.kill().judge();
    for key in [b"item:1", b"item:2"] {
        client.set(key, b"1", 0).unwrap();
    }
    records.put(1, "n1", 2);
    let second = invalidator(&stand);
    until("it goes on", || client.get(b"item:1").unwrap().is_none());
    assert!(client.get(b"item:2").unwrap().is_some());
    settle(&stand);
    assert!(!second.kill().whole().contains("invalidate.emptied"));
    let large = "x".repeat(800 << 10);
    (1000..1030).for_each(|id| records.put(id, &large, 1));
    let third = invalidator(&stand);
    until("every server is emptied", || client.get(b"item:2").unwrap().is_none());
    let said = third.kill().sentence_of("invalidate.emptied");
    assert!(said.contains("is not known any more"), "{said}");
}

/// A table that goes takes with it what is cached of it; one that is made anew with the same words is another one, also
/// for an invalidator that was away meanwhile.
#[test]
fn a_table_that_is_dropped_and_made_anew_empties_the_pool() {
    let scratch = Scratch::new();
    let stand = stand(&scratch);
    let first = invalidator(&stand);
    let mut client = stand.client();
    settle(&stand);
    client.set(b"item:1", b"1", 0).unwrap();
    stand.node.run(&["table", "drop", "items"]).ok();
    until("the pool is emptied", || client.get(b"item:1").unwrap().is_none());
    client.set(b"item:2", b"1", 0).unwrap();
    make(&stand);
    until("it is emptied again", || client.get(b"item:2").unwrap().is_none());
    settle(&stand);
    let said = first.kill().whole();
    assert!(said.contains("was dropped: make it anew"), "{said}");

    client.set(b"item:3", b"1", 0).unwrap();
    stand.node.run(&["table", "drop", "items"]).ok();
    make(&stand);
    let second = invalidator(&stand);
    until("it is emptied by who was away", || client.get(b"item:3").unwrap().is_none());
    settle(&stand);
    let said = second.kill().sentence_of("invalidate.emptied");
    assert!(said.contains("table-items:"), "{said}");
}

/// A name that is misspelt, or a table that is still to be made: said at the first refusal, and once.
#[test]
fn a_table_that_is_not_there_is_named_and_waited_for() {
    let scratch = Scratch::new();
    let stand = Stand::start(&scratch, MAP);
    let mut command = Invalidator::command(&stand, "table:items");
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut told = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let waits = told.find(|line| line.contains("invalidate.waits")).unwrap();
    assert!(waits.contains("`items`") && waits.contains("table create items"), "{waits}");
    make(&stand);
    let mut ready = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    assert!(ready.contains("ready"), "{ready}");
    assert!(told.any(|line| line.contains("invalidate.goes-on")));
    settle(&stand);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(told.find(|line| line.contains("invalidate.waits")), None, "said once");
}

/// What cannot work is refused, before a pool is touched.
#[test]
fn a_source_that_does_not_fit_is_refused() {
    let scratch = Scratch::new();
    let stand = stand(&scratch);
    let refused = |from: &str, more: &[&str], names: &[&str]| {
        finish(Invalidator::command(&stand, from).args(more), b"").refused(names);
    };
    refused("table:people", &[], &["`items`", "`people`"]);
    refused("table:items", &["--reads", "table:items"], &["`--reads`", "leave them out"]);
    refused("tables:items", &[], &["mysql://", "table:NAME"]);
    assert_eq!(stand.status(), None, "nothing was written");
    let invalidator = invalidator(&stand);
    settle(&stand);
    invalidator.kill().judge();
    let map = MAP.replace("items", "people");
    std::fs::write(&stand.map, map).unwrap();
    refused("table:people", &[], &["table:people", "follows a table", "table-items:"]);
    std::fs::write(&stand.map, MAP.replace("items", "shop.items")).unwrap();
    refused("mysql://root@127.0.0.1:1", &[], &["follows a table", "MariaDB"]);
}
