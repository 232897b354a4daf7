//! A small shop: MariaDB, caches beside it, and an invalidator between, killed in turn. What is cached is what
//! the rows say.

use super::common::{Finished, Node, Scratch, binary, finish, free_port, signal};
use super::mariadb::{MariaDb, SETTINGS, Sql, until};
use super::told::Told;
use holdfast_base::{Error, Result};
use holdfast_cache_client::{CacheClientOptions, Client, Lookaside, LookasideOptions};
use holdfast_env::{Rng, SeededRng};
use serde_json::Value;
use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const ITEMS: u64 = 1000;

struct Cache {
    child: Child,
    port: u16,
}

impl Cache {
    fn start(port: u16) -> Cache {
        let mut command = binary();
        command.args(["cache", "-m", "64", "-t", "1", "-p", &port.to_string()]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let cache = Cache { child, port };
        until("the cache serves", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
        cache
    }

    fn kill_and_start(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        *self = Cache::start(self.port);
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A running `holdfast invalidate run`.
struct Invalidator {
    child: Child,
    told: Option<Told>,
}

impl Invalidator {
    fn command(shop: &Shop, url: &str) -> std::process::Command {
        let mut command = binary();
        command.args(["--json", "--server"]).arg(format!("unix:{}", shop.node.socket().display()));
        command.args(["invalidate", "run", "--to", "main", "--from", url]);
        command.arg("--config").arg(&shop.routes).arg("--map").arg(&shop.map);
        command
    }

    fn start(shop: &Shop) -> Invalidator {
        Invalidator::start_by(Invalidator::command(shop, &shop.database.url()))
    }

    fn start_by(mut command: std::process::Command) -> Invalidator {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let mut told = Told::by(child.stderr.take().unwrap());
        if !line.contains("ready") {
            panic!("the invalidator did not start: {line}{}", told.judge());
        }
        Invalidator { child, told: Some(told) }
    }

    /// Kills it; what it told, which may be warnings and no errors.
    fn kill(mut self) -> Told {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.told.take().unwrap()
    }
}

impl Drop for Invalidator {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Shop {
    node: Node,
    database: MariaDb,
    caches: Vec<Cache>,
    routes: PathBuf,
    map: PathBuf,
}

const MAP: &str = "[[keys]]\ntable = \"shop.items\"\nkey = \"item:{id}\"\n\
    [[keys]]\ntable = \"shop.items\"\nkey = \"name:{name}\"\n";

fn shop(scratch: &Scratch, settings: &[&str]) -> Option<Shop> {
    let database = MariaDb::start(&scratch.path("db"), settings)?;
    let mut sql = database.sql();
    sql.run("CREATE DATABASE shop");
    // Types in front of the key whose signs the log describes, or does not.
    sql.run(
        "CREATE TABLE shop.items (made YEAR, weight DECIMAL(8,2), id BIGINT UNSIGNED PRIMARY KEY, \
         name VARCHAR(40), price BIGINT NOT NULL)",
    );
    let rows: Vec<String> = (0..ITEMS).map(|id| format!("(2026, 1.5, {id}, 'n{id}', 1)")).collect();
    sql.run(&format!("INSERT INTO shop.items VALUES {}", rows.join(",")));
    let node = Node::start(&scratch.path("node"));
    let caches: Vec<Cache> = (0..2).map(|_| Cache::start(free_port())).collect();
    let (routes, map) = (scratch.path("routes.toml"), scratch.path("map.toml"));
    let servers: Vec<String> = caches.iter().map(|c| format!("\"127.0.0.1:{}\"", c.port)).collect();
    let text = format!("default = \"main\"\n[pools.main]\nservers = [{}]\n", servers.join(", "));
    std::fs::write(&routes, text).unwrap();
    std::fs::write(&map, MAP).unwrap();
    Some(Shop { node, database, caches, routes, map })
}

impl Shop {
    fn servers(&self) -> Vec<String> {
        self.caches.iter().map(|cache| format!("127.0.0.1:{}", cache.port)).collect()
    }

    fn lookaside(&self) -> Lookaside {
        let options = LookasideOptions::default();
        Lookaside::new(&self.servers(), CacheClientOptions::default(), options).unwrap()
    }

    fn client(&self) -> Client {
        Client::new(&self.servers(), CacheClientOptions::default()).unwrap()
    }

    fn status(&self) -> Option<(String, Vec<u64>)> {
        let Finished { code, out, .. } =
            self.node.run(&["--json", "invalidate", "status", "--to", "main"]);
        let lines: Vec<Value> = (code == Some(0))
            .then(|| String::from_utf8(out).unwrap())?
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let position = lines[0]["position"].as_str().unwrap().to_owned();
        let behind = lines[1..].iter().map(|l| l["entries_behind"].as_u64().unwrap()).collect();
        Some((position, behind))
    }

    /// Waits until every server has confirmed what the database has.
    fn settle(&self) {
        let end = self.database.sql().ask::<String>("SELECT @@GLOBAL.gtid_binlog_pos").unwrap();
        until("every server has confirmed every change", || {
            self.status() == Some((end[0].clone(), vec![0; self.caches.len()]))
        });
    }
}

fn price(sql: &mut Sql, id: u64) -> Result<Option<Vec<u8>>> {
    let rows = sql.ask::<u64>(&format!("SELECT price FROM shop.items WHERE id = {id}"));
    let rows = rows.ok_or_else(|| Error::retry("read a price: the database is away"))?;
    Ok(rows.first().map(|price| price.to_string().into_bytes()))
}

/// The race that deletes lose, with real parts: a reader misses and reads the old price, the price changes and
/// its key is dropped, the reader stores what it read. Plain sets keep the old price for good.
#[test]
fn a_price_that_changes_while_it_is_read_is_not_kept_and_with_plain_sets_it_is() {
    let scratch = Scratch::new();
    let Some(shop) = shop(&scratch, SETTINGS) else { return };
    let _invalidator = Invalidator::start(&shop);
    let (mut sql, mut other) = (shop.database.sql(), shop.database.sql());
    let mut cache = shop.lookaside();
    // An id that is negative to who takes the column for signed; the name is a key, too, old and new.
    let large = u64::MAX - 7;
    sql.run(&format!("INSERT INTO shop.items VALUES (2026, 1, {large}, 'before', 1)"));
    shop.settle();
    for (id, key) in [(7, "item:7".to_owned()), (large, format!("item:{large}"))] {
        let old = cache.get(key.as_bytes(), || {
            let old = price(&mut sql, id);
            other.run(&format!("UPDATE shop.items SET price = 2 WHERE id = {id}"));
            shop.settle();
            old
        });
        assert_eq!(old.unwrap().unwrap(), b"1");
        assert_eq!(cache.get(key.as_bytes(), || price(&mut sql, id)).unwrap().unwrap(), b"2");
    }
    assert_eq!(cache.counts().refused, 2);

    let mut plain = shop.client();
    let old = price(&mut sql, 8).unwrap().unwrap();
    other.run("UPDATE shop.items SET price = 2 WHERE id = 8");
    shop.settle();
    plain.set(b"item:8", &old, 0).unwrap();
    shop.settle();
    assert_eq!(plain.get(b"item:8").unwrap().unwrap(), b"1", "an old price, for good");

    // Keys of the row as it was, and as it is; of a row that goes; and what says nothing of rows.
    for key in ["name:before", "name:after", "name:n9", "item:9"] {
        plain.set(key.as_bytes(), b"x", 0).unwrap();
    }
    other.run(&format!("UPDATE shop.items SET name = 'after' WHERE id = {large}"));
    other.run("DELETE FROM shop.items WHERE id = 9");
    shop.settle();
    for key in ["name:before", "name:after", "name:n9", "item:9"] {
        assert_eq!(plain.get(key.as_bytes()).unwrap(), None, "{key}");
    }
    plain.set(b"item:10", b"x", 0).unwrap();
    other.run("SET SESSION binlog_format = STATEMENT");
    other.run("UPDATE shop.items SET price = 3 WHERE id = 10");
    until("a pool is emptied", || plain.get(b"item:10").unwrap().is_none());
}

/// Every second one is of few, so that they change while they are read.
fn draw(rng: &SeededRng) -> u64 {
    let number = rng.next_u64();
    if number.is_multiple_of(2) { number / 2 % HOT } else { number / 2 % ITEMS }
}

const HOT: u64 = 40;

/// What writers and readers have done, and whether they are to end.
#[derive(Default)]
struct Traffic {
    is_over: AtomicBool,
    written: AtomicU64,
    read: AtomicU64,
    /// Fills that came behind an invalidation.
    refused: AtomicU64,
}

impl Traffic {
    fn write(&self, seed: u64, port: u16) {
        let (rng, mut sql) = (SeededRng::new(seed), Sql::to(port));
        while !self.is_over.load(Ordering::Relaxed) {
            let id = draw(&rng);
            let text = format!("UPDATE shop.items SET price = price + 1 WHERE id = {id}");
            match sql.ask::<mysql_async::Row>(&text) {
                Some(_) => drop(self.written.fetch_add(1, Ordering::Relaxed)),
                None => sql = Sql::to(port),
            }
        }
    }

    fn read(&self, seed: u64, port: u16, servers: &[String]) {
        let (rng, mut sql) = (SeededRng::new(seed), Sql::to(port));
        let options = LookasideOptions { lease_s: 2, patience_ms: 50, ..Default::default() };
        let mut cache = Lookaside::new(servers, CacheClientOptions::default(), options).unwrap();
        while !self.is_over.load(Ordering::Relaxed) {
            let ids: Vec<u64> = (0..20).map(|_| draw(&rng)).collect();
            let keys: Vec<String> = ids.iter().map(|id| format!("item:{id}")).collect();
            let values = cache.get_many(&keys, |numbers| {
                let prices = numbers.iter().map(|number| price(&mut sql, ids[*number])).collect();
                // A page is made of more than prices: time in which they change, and their keys go.
                let rest = sql.ask::<mysql_async::Row>("DO SLEEP(0.02)");
                rest.map_or_else(
                    || Err(Error::retry("make a page: the database is away")),
                    |_| prices,
                )
            });
            match values {
                Ok(_) => drop(self.read.fetch_add(1, Ordering::Relaxed)),
                Err(_) => sql = Sql::to(port),
            }
        }
        let counts = cache.counts();
        assert!(counts.hits > 0 && counts.filled > 0, "{counts:?}");
        self.refused.fetch_add(counts.refused, Ordering::Relaxed);
    }

    /// Waits until so many more were written, and so many read.
    fn goes_on(&self, writes: u64, reads: u64) {
        let now = |of: &AtomicU64| of.load(Ordering::Relaxed);
        let (written, read) = (now(&self.written) + writes, now(&self.read) + reads);
        until("writers and readers go on", || {
            now(&self.written) >= written && now(&self.read) >= read
        });
    }
}

/// Writers and readers, while the invalidator, each cache and the database are killed in turn.
#[test]
fn when_all_is_quiet_every_cached_price_is_its_row_s() {
    let scratch = Scratch::new();
    let Some(mut shop) = shop(&scratch, SETTINGS) else { return };
    let mut invalidator = Some(Invalidator::start(&shop));
    let traffic = Traffic::default();
    let (port, servers) = (shop.database.port, shop.servers());
    std::thread::scope(|scope| {
        let (traffic, servers) = (&traffic, &servers);
        for seed in 0..2 {
            scope.spawn(move || traffic.write(seed, port));
            scope.spawn(move || traffic.read(100 + seed, port, servers));
        }
        for round in 0..2 {
            for cache in 0..2 {
                traffic.goes_on(50, 50);
                shop.caches[cache].kill_and_start();
            }
            traffic.goes_on(100, 0);
            invalidator.take().unwrap().kill().judge();
            traffic.goes_on(100, 0);
            if round == 0 {
                // Both at once: the invalidator finds a database that was just repaired.
                shop.database.kill_and_start();
            }
            invalidator = Some(Invalidator::start(&shop));
            traffic.goes_on(100, 0);
            shop.database.kill_and_start();
            traffic.goes_on(500, 50);
        }
        traffic.is_over.store(true, Ordering::Relaxed);
    });
    shop.settle();
    assert_cached_is_true(&shop);
    assert!(traffic.refused.into_inner() > 0, "a price changed while it was read");
}

#[track_caller]
fn assert_cached_is_true(shop: &Shop) {
    let (mut client, mut sql, mut cached) = (shop.client(), shop.database.sql(), 0);
    let rows = sql.ask::<(u64, u64)>("SELECT id, price FROM shop.items").unwrap();
    for (id, price) in rows {
        let value = client.get(format!("item:{id}").as_bytes()).unwrap();
        // A promise that nobody fulfilled has no bytes.
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            assert_eq!(String::from_utf8_lossy(&value), price.to_string(), "item {id}");
            cached += 1;
        }
    }
    assert!(cached > 0, "something is cached at all");
}

/// A region reads a replica that is behind: the key of a change that the replica does not show is dropped
/// later, or the next reader fills the old price with a token that is good.
#[test]
fn a_key_is_dropped_when_the_replica_that_is_read_shows_the_change() {
    let scratch = Scratch::new();
    let Some(shop) = shop(&scratch, SETTINGS) else { return };
    let replica = MariaDb::start(&scratch.path("replica"), &["--server-id=2"]).unwrap();
    let (mut primary, mut region) = (shop.database.sql(), replica.sql());
    region.run(&format!(
        "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {}, MASTER_USER = 'root', \
         MASTER_USE_GTID = slave_pos",
        shop.database.port
    ));
    region.run("START SLAVE");
    until("the replica has applied something", || {
        region.ask::<String>("SELECT @@GLOBAL.gtid_slave_pos").unwrap() != [String::new()]
    });
    let mut command = Invalidator::command(&shop, &shop.database.url());
    command.args(["--reads", &replica.url()]);
    let invalidator = Invalidator::start_by(command);
    shop.settle();
    let mut cache = shop.lookaside();
    let mut read = |region: &mut Sql| {
        let value = cache.get(b"item:1", || price(region, 1)).unwrap().unwrap();
        String::from_utf8(value).unwrap()
    };
    assert_eq!(read(&mut region), "1");
    for new in 2..5 {
        region.run("STOP SLAVE SQL_THREAD");
        primary.run(&format!("UPDATE shop.items SET price = {new} WHERE id = 1"));
        until("the log's readers have the change", || {
            let idle = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE \
                        COMMAND = 'Binlog Dump' AND STATE LIKE '%waiting for more updates%'";
            primary.ask::<u64>(idle).unwrap() == [2]
        });
        for _ in 0..200 {
            assert_eq!(read(&mut region), (new - 1).to_string());
        }
        region.run("START SLAVE SQL_THREAD");
        shop.settle();
        assert_eq!(read(&mut region), new.to_string(), "the key was dropped, and not too soon");
    }
    invalidator.kill().judge();
}

/// What cannot work is refused with the setting's name, before a pool is touched.
#[test]
fn a_database_whose_log_says_too_little_is_refused_by_the_setting_s_name() {
    let scratch = Scratch::new();
    let Some(shop) = shop(&scratch, SETTINGS) else { return };
    let mut sql = shop.database.sql();
    let refused = |names: &[&str]| {
        finish(&mut Invalidator::command(&shop, &shop.database.url()), b"").refused(names);
    };
    for (setting, wrong, right) in [
        ("binlog_format", "STATEMENT", "ROW"),
        ("binlog_row_image", "MINIMAL", "FULL"),
        ("binlog_row_metadata", "NO_LOG", "FULL"),
        ("log_bin_compress", "1", "0"),
    ] {
        sql.run(&format!("SET GLOBAL {setting} = {wrong}"));
        refused(&[setting, "set"]);
        sql.run(&format!("SET GLOBAL {setting} = {right}"));
    }
    let write = |text: &str| std::fs::write(&shop.map, text).unwrap();
    write(&MAP.replace("{name}", "{title}"));
    refused(&["`shop.items`", "no column `title`"]);
    write(&MAP.replace("{name}", "{weight}"));
    refused(&["`weight`", "decimal"]);
    write(&MAP.replace("shop.items", "shop.goods"));
    refused(&["`shop.goods`", "there is none"]);
    sql.run("CREATE TABLE shop.makers (id BIGINT UNSIGNED PRIMARY KEY)");
    sql.run(
        "CREATE TABLE shop.goods (id INT PRIMARY KEY, name INT, maker BIGINT UNSIGNED, CONSTRAINT made_by \
         FOREIGN KEY (maker) REFERENCES shop.makers (id) ON DELETE CASCADE)",
    );
    refused(&["`shop.goods`", "`made_by`", "`makers`", "RESTRICT"]);
    write("keys = 1");
    refused(&["read the map", "map.toml"]);
    write(MAP);
    let at = |url: &str| finish(&mut Invalidator::command(&shop, url), b"");
    at("http://127.0.0.1").refused(&["mysql://"]);
    let mut other = Invalidator::command(&shop, &shop.database.url());
    assert_eq!(finish(other.args(["--stale", "99999999"]), b"").code, Some(2));
    let mut other = Invalidator::command(&shop, &shop.database.url());
    let unread = ["--metrics", "/tmp/metrics.txt"];
    finish(other.args(unread), b"").refused(&["`/tmp/metrics.txt`", "`.prom`"]);
    let mut other = Invalidator::command(&shop, &shop.database.url());
    let itself = ["--reads", &shop.database.url()];
    finish(other.args(itself), b"").refused(&["`127.0.0.1:", "applied nothing", "`--reads`"]);
    assert_eq!(shop.status(), None, "nothing was written");
}

/// An invalidator that was away for longer than the database keeps its log.
#[test]
fn a_log_that_was_purged_empties_the_pool_and_says_so() {
    let scratch = Scratch::new();
    let Some(shop) = shop(&scratch, SETTINGS) else { return };
    let mut sql = shop.database.sql();
    let first = Invalidator::start(&shop);
    sql.run("UPDATE shop.items SET price = 2 WHERE id = 1");
    shop.settle();
    assert!(first.kill().sentence_of("invalidate.emptied").contains("new to this topic"));
    let mut client = shop.client();
    for id in 0..100 {
        client.set(format!("item:{id}").as_bytes(), b"1", 0).unwrap();
    }
    // What the killed one had open is purged once the database notices that it is gone.
    until("the log is purged", || {
        sql.run("UPDATE shop.items SET price = price + 1 WHERE id = 1");
        sql.run("FLUSH BINARY LOGS");
        let logs = sql.ask::<(String, u64)>("SHOW BINARY LOGS").unwrap();
        sql.run(&format!("PURGE BINARY LOGS TO '{}'", logs.last().unwrap().0));
        sql.ask::<(String, u64)>("SHOW BINARY LOGS").unwrap().len() == 1
    });
    let second = Invalidator::start(&shop);
    until("every server is emptied", || {
        (0..100).all(|id| client.get(format!("item:{id}").as_bytes()).unwrap().is_none())
    });
    sql.run("UPDATE shop.items SET price = 5 WHERE id = 3");
    shop.settle();
    let said = second.kill().sentence_of("invalidate.emptied");
    assert!(said.contains("has no more what follows"), "{said}");
}

/// A server that hears nothing for a while, and two invalidators of one pool: what it missed reaches it, others
/// do not wait, and `status` says who lacks what.
#[test]
fn a_server_that_was_away_is_told_what_it_missed_and_two_invalidators_do_no_harm() {
    let scratch = Scratch::new();
    let Some(shop) = shop(&scratch, SETTINGS) else { return };
    let invalidators = [Invalidator::start(&shop), Invalidator::start(&shop)];
    let mut sql = shop.database.sql();
    sql.run("UPDATE shop.items SET price = 2");
    shop.settle();
    let mut client = shop.client();
    let keys: Vec<String> = (0..100).map(|id| format!("item:{id}")).collect();
    for key in &keys {
        client.set(key.as_bytes(), b"2", 0).unwrap();
    }
    let away = shop.caches[0].child.id();
    signal(away, "STOP");
    for id in 0..100 {
        sql.run(&format!("UPDATE shop.items SET price = 3 WHERE id = {id}"));
    }
    until("status says who is behind", || {
        let behind = shop.status().unwrap().1;
        behind.contains(&0) && behind.iter().any(|entries| *entries > 0)
    });
    signal(away, "CONT");
    shop.settle();
    let mut other = shop.client();
    assert!(other.get_many(&keys).unwrap().iter().all(Option::is_none));
    for one in invalidators {
        one.kill().judge();
    }
}

/// A primary key that changes, and a transaction of more keys than anybody remembers; the file of metrics
/// counts them, and whoever may read it still may once it was replaced.
#[test]
fn keys_that_change_go_on_both_sides_and_too_many_at_once_empty_the_pool() {
    let scratch = Scratch::new();
    let Some(shop) = shop(&scratch, SETTINGS) else { return };
    let metrics = scratch.path("pool.prom");
    std::fs::write(&metrics, "").unwrap();
    std::fs::set_permissions(&metrics, Permissions::from_mode(0o644)).unwrap();
    let mut command = Invalidator::command(&shop, &shop.database.url());
    let invalidator = Invalidator::start_by({
        command.arg("--metrics").arg(&metrics);
        command
    });
    let (mut sql, mut client) = (shop.database.sql(), shop.client());
    shop.settle();
    for key in ["item:5", "item:5005", "item:6", "other:1"] {
        client.set(key.as_bytes(), b"x", 0).unwrap();
    }
    sql.run("UPDATE shop.items SET id = 5005 WHERE id = 5");
    // Taken back in part: what stays of it counts, and nothing ends too soon.
    sql.run("START TRANSACTION");
    sql.run("SAVEPOINT part");
    sql.run("UPDATE shop.items SET price = 9 WHERE id = 7");
    sql.run("ROLLBACK TO SAVEPOINT part");
    sql.run("UPDATE shop.items SET price = 9 WHERE id = 6");
    sql.run("COMMIT");
    shop.settle();
    for key in ["item:5", "item:5005", "item:6"] {
        assert_eq!(client.get(key.as_bytes()).unwrap(), None, "{key}");
    }
    assert!(client.get(b"other:1").unwrap().is_some(), "keys that are in no row stay");
    sql.run(
        "INSERT INTO shop.items SELECT 2026, 1, 10000 + seq, NULL, 1 FROM shop.seq_1_to_120000",
    );
    shop.settle();
    assert_eq!(client.get(b"other:1").unwrap(), None);
    let servers = shop.servers().into_iter().map(|server| format!("{{server=\"{server}\"}} 0"));
    let names = ["server_entries_behind", "server_lag_seconds", "server_to_be_emptied"];
    let mut lines: Vec<String> =
        servers.flat_map(|server| names.map(|name| format!("{name}{server}"))).collect();
    // Item 5 before and after, item 6, and their names; once as the topic was new.
    lines.extend(
        ["keys_total 5", "emptied_total 2", "troubles 0", "lag_seconds 0"].map(String::from),
    );
    until("the file says so", || {
        let text = std::fs::read_to_string(&metrics).unwrap();
        let has =
            |line: &String| text.lines().any(|of| of == format!("holdfast_invalidate_{line}"));
        lines.iter().all(has)
    });
    let mode = std::fs::metadata(&metrics).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o644);
    let mut told = invalidator.kill();
    let said = told.whole();
    assert!(said.contains("more than 100000 keys"), "{said}");
    sql.run("UPDATE shop.items SET price = 2 WHERE id = 1");
    let _second = Invalidator::start(&shop);
    shop.settle();
}
