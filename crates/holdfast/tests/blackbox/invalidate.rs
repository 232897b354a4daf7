//! A small shop: MariaDB, caches beside it, and an invalidator between, killed in turn. What is cached is what
//! the rows say.

use super::common::{Scratch, finish, free_port, signal, until};
use super::mariadb::{MariaDb, SETTINGS, Sql};
use super::memcached::Memcached;
use super::shop::{
    self, Cache, ITEMS, Invalidator, Rows, Stand, Traffic, assert_cached_is_true, price,
};
use holdfast_cache_client::{CacheClientOptions, Client, Lookaside, LookasideOptions};
use std::fs::Permissions;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::Ordering;

pub type Shop = shop::Shop<MariaDb>;

impl Rows for Sql {
    fn raise_price(&mut self, id: u64) -> Option<()> {
        let text = format!("UPDATE shop.items SET price = price + 1 WHERE id = {id}");
        self.ask::<mysql_async::Row>(&text).map(drop)
    }

    fn price(&mut self, id: u64) -> Option<Option<u64>> {
        let rows = self.ask::<u64>(&format!("SELECT price FROM shop.items WHERE id = {id}"))?;
        Some(rows.first().copied())
    }

    fn prices(&mut self) -> Option<Vec<(u64, u64)>> {
        self.ask("SELECT id, price FROM shop.items")
    }

    fn rest(&mut self) -> Option<()> {
        self.ask::<mysql_async::Row>("DO SLEEP(0.02)").map(drop)
    }

    fn reconnect(&mut self) {
        *self = Sql::to(self.port);
    }
}

const MAP: &str = "[[keys]]\ntable = \"shop.items\"\nkey = \"item:{id}\"\n\
    [[keys]]\ntable = \"shop.items\"\nkey = \"name:{name}\"\n";

pub fn shop(scratch: &Scratch, settings: &[&str]) -> Option<Shop> {
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
    Some(Shop { stand: Stand::start(scratch, MAP), database })
}

impl Shop {
    pub fn start(&self) -> Invalidator {
        Invalidator::start_by(Invalidator::command(self, &self.database.url()))
    }

    /// Waits until every server has confirmed what the database has: also what who was killed had begun to commit,
    /// which the database ends in its own time.
    pub fn settle(&self) {
        let mut sql = self.database.sql();
        until("every server has confirmed every change", || {
            let end = sql.ask::<String>("SELECT @@GLOBAL.gtid_binlog_pos").unwrap();
            self.status() == Some((end[0].clone(), self.nothing()))
        });
    }
}

/// A replica of the shop's database, which has the shop.
pub fn replica_of(shop: &Shop, scratch: &Scratch) -> MariaDb {
    let replica = MariaDb::start(&scratch.path("replica"), &["--server-id=2"]).unwrap();
    let (mut primary, mut sql) = (shop.database.sql(), replica.sql());
    sql.run(&format!(
        "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {}, MASTER_USER = 'root', \
         MASTER_USE_GTID = slave_pos",
        shop.database.port
    ));
    sql.run("START SLAVE");
    let end = primary.ask::<String>("SELECT @@GLOBAL.gtid_binlog_pos").unwrap();
    until("the replica has applied all of it", || {
        sql.ask::<String>("SELECT @@GLOBAL.gtid_slave_pos").unwrap() == end
    });
    replica
}

/// The race that deletes lose, with real parts: a reader misses and reads the old price, the price changes and
/// its key is dropped, the reader stores what it read. Plain sets keep the old price for good.
#[test]
fn a_price_that_changes_while_it_is_read_is_not_kept_and_with_plain_sets_it_is() {
    let scratch = Scratch::new();
    let Some(shop) = shop(&scratch, SETTINGS) else { return };
    let _invalidator = shop.start();
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

/// Writers and readers, while the invalidator, each cache and the database are killed in turn.
#[test]
fn when_all_is_quiet_every_cached_price_is_its_row_s() {
    let scratch = Scratch::new();
    let Some(mut shop) = shop(&scratch, SETTINGS) else { return };
    let mut invalidator = Some(shop.start());
    let traffic = Traffic::default();
    let (port, servers) = (shop.database.port, shop.servers());
    std::thread::scope(|scope| {
        let (traffic, servers) = (&traffic, &servers);
        for seed in 0..2 {
            scope.spawn(move || traffic.write(seed, &mut Sql::to(port)));
            scope.spawn(move || traffic.read(100 + seed, &mut Sql::to(port), servers));
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
            invalidator = Some(shop.start());
            traffic.goes_on(100, 0);
            shop.database.kill_and_start();
            traffic.goes_on(500, 50);
        }
        traffic.is_over.store(true, Ordering::Relaxed);
    });
    shop.settle();
    assert_cached_is_true(&shop, &mut shop.database.sql());
    assert!(traffic.refused.into_inner() > 0, "a price changed while it was read");
}

/// A region reads a replica that is behind: the key of a change that the replica does not show is dropped
/// later, or the next reader fills the old price with a token that is good.
#[test]
fn a_key_is_dropped_when_the_replica_that_is_read_shows_the_change() {
    let scratch = Scratch::new();
    let Some(shop) = shop(&scratch, SETTINGS) else { return };
    let replica = replica_of(&shop, &scratch);
    let (mut primary, mut region) = (shop.database.sql(), replica.sql());
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

/// Statements that change tables, as programs write them: behind comments, and of a whole schema. They were not
/// seen, and what was cached of their rows stayed for good.
#[test]
fn a_table_that_goes_behind_a_comment_or_with_its_schema_empties_the_pool() {
    let scratch = Scratch::new();
    let Some(shop) = shop(&scratch, SETTINGS) else { return };
    let invalidator = shop.start();
    let (mut sql, mut client) = (shop.database.sql(), shop.client());
    for text in ["/* page 7 */ TRUNCATE TABLE shop.items", "-- the end\nDROP DATABASE shop"] {
        shop.settle();
        client.set(b"item:1", b"1", 0).unwrap();
        sql.run(text);
        until(text, || client.get(b"item:1").unwrap().is_none());
    }
    invalidator.kill().judge();
}

/// A server that says nothing, though its connections stand: it is told, and read anew when it is there.
#[test]
fn a_mariadb_that_falls_silent_is_told_and_read_anew() {
    let scratch = Scratch::new();
    let Some(shop) = shop(&scratch, SETTINGS) else { return };
    let metrics = scratch.path("pool.prom");
    let mut command = Invalidator::command(&shop, &shop.database.url());
    command.arg("--metrics").arg(&metrics);
    let invalidator = Invalidator::start_by(command);
    shop.settle();
    signal(shop.database.pid(), "STOP");
    until("it is told", || {
        let text = std::fs::read_to_string(&metrics).unwrap_or_default();
        text.contains("holdfast_invalidate_troubles 1")
    });
    signal(shop.database.pid(), "CONT");
    let mut client = shop.client();
    client.set(b"item:1", b"1", 0).unwrap();
    shop.database.sql().run("UPDATE shop.items SET price = 2 WHERE id = 1");
    until("keys are dropped again", || client.get(b"item:1").unwrap().is_none());
    let said = invalidator.kill().whole();
    assert!(said.contains("does not answer"), "{said}");
}

/// An invalidator that was away for longer than the database keeps its log.
#[test]
fn a_log_that_was_purged_empties_the_pool_and_says_so() {
    let scratch = Scratch::new();
    let Some(shop) = shop(&scratch, SETTINGS) else { return };
    let mut sql = shop.database.sql();
    let first = shop.start();
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
    let second = shop.start();
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
    let invalidators = [shop.start(), shop.start()];
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

/// The prices of twenty items.
fn prices(cache: &mut Lookaside, sql: &mut impl Rows) -> Vec<String> {
    let keys: Vec<String> = (0..20).map(|id| format!("item:{id}")).collect();
    let values = cache.get_many(&keys, |numbers| {
        numbers.iter().map(|number| price(sql, *number as u64)).collect()
    });
    values.unwrap().into_iter().flatten().map(|price| String::from_utf8(price).unwrap()).collect()
}

/// Whether a server has no lease, and nothing that holds its place.
pub fn has_none(port: u16) -> bool {
    let mut server = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    server.write_all(b"get holdfast:invalidate:main\r\n").unwrap();
    let mut answer = [0; 5];
    server.read_exact(&mut answer).unwrap();
    answer == *b"END\r\n"
}

/// Waits until all of them are hits; they never are another price meanwhile. They were, for an invalidator that
/// came back gave leases before it had read what the database changed while it was away.
pub fn hits(cache: &mut Lookaside, sql: &mut impl Rows, price: &str) {
    until("all servers have leases, and all keys are hits", || {
        let before = cache.counts().hits;
        assert_eq!(prices(cache, sql), vec![price; 20]);
        cache.counts().hits == before + 20
    });
}

/// A server that the invalidator does not reach, and readers do, went on serving old prices: with leases, readers
/// leave it out until it was told what it missed. Our cache and memcached are servers of one pool.
#[test]
fn a_server_that_is_told_nothing_is_left_out_by_readers_who_look_at_leases() {
    let scratch = Scratch::new();
    let Some(mut shop) = shop(&scratch, SETTINGS) else { return };
    if let Some(memcached) = Cache::memcached(free_port()) {
        shop.stand.caches[1] = memcached;
        shop.write_routes();
    }
    let mut command = Invalidator::command(&shop, &shop.database.url());
    command.args(["--server-lease", "4"]);
    let invalidator = Invalidator::start_by(command);
    shop.settle();
    let (mut sql, mut plain) = (shop.database.sql(), shop.client());
    let options =
        LookasideOptions { server_lease: Some("main".into()), ..LookasideOptions::default() };
    let (servers, clients) = (shop.servers(), CacheClientOptions::default());
    let mut cache = Lookaside::new(&servers, clients, options).unwrap();
    hits(&mut cache, &mut sql, "1");

    signal(invalidator.pid(), "STOP");
    sql.run("UPDATE shop.items SET price = 2");
    let ports: Vec<u16> = shop.caches.iter().map(|cache| cache.port).collect();
    until("no server has a lease", || ports.iter().all(|port| has_none(*port)));
    until("readers look", || prices(&mut cache, &mut sql) == vec!["2"; 20]);
    assert!(cache.counts().left_out > 0);
    let keys: Vec<String> = (0..20).map(|id| format!("item:{id}")).collect();
    let old = plain.get_many(&keys).unwrap();
    assert!(old.iter().all(|value| value.as_deref() == Some(b"1")), "who does not look: {old:?}");
    signal(invalidator.pid(), "CONT");
    hits(&mut cache, &mut sql, "2");

    shop.caches[0].kill_and_start();
    hits(&mut cache, &mut sql, "2");
    invalidator.kill().judge();
}

/// The same for those who read and store through a router: by one that looks at leases, no price is served that was
/// another one, whoever is stopped or killed; by one that does not, the old one is.
#[test]
fn a_router_that_looks_at_leases_serves_nothing_of_a_server_that_is_told_nothing() {
    let scratch = Scratch::new();
    let Some(mut shop) = shop(&scratch, SETTINGS) else { return };
    shop.write_routes_with("server_lease = \"main\"\n");
    let mut command = Invalidator::command(&shop, &shop.database.url());
    command.args(["--server-lease", "4"]);
    let invalidator = Invalidator::start_by(command);
    shop.settle();
    // On a busy machine a server may be silent for long, and is not dead. Each thread looks for itself: of one, all
    // clients see the same.
    let routes = shop.routes.display().to_string();
    let route = |from: &[&str]| {
        Memcached::start(
            &[&["route", "-p", "-1", "-t", "1", "--patience", "20000"][..], from].concat(),
        )
    };
    let router = route(&["--config", &routes]);
    let plain_router = route(&["--servers", &shop.servers().join(",")]);
    let client = |of: &Memcached| Client::new(&[of.name()], CacheClientOptions::default()).unwrap();
    let (mut cache, mut plain) = (client(&router), client(&plain_router));
    let keys: Vec<String> = (0..20).map(|id| format!("item:{id}")).collect();
    // Stores what the rows say, until all of it is there; never is it anything else.
    let filled = |cache: &mut Client, price: &str| {
        until("all servers have leases, and all keys are hits", || {
            let values = cache.get_many(&keys).unwrap();
            assert!(values.iter().flatten().all(|value| value == price.as_bytes()), "{values:?}");
            let missed = keys.iter().zip(&values).filter(|(_, value)| value.is_none());
            missed.for_each(|(key, _)| drop(cache.set(key.as_bytes(), price.as_bytes(), 0)));
            values.iter().all(Option::is_some)
        });
    };
    filled(&mut cache, "1");

    signal(invalidator.pid(), "STOP");
    shop.database.sql().run("UPDATE shop.items SET price = 2");
    let ports: Vec<u16> = shop.caches.iter().map(|cache| cache.port).collect();
    until("no server has a lease", || ports.iter().all(|port| has_none(*port)));
    until("the router looks", || cache.get_many(&keys).unwrap().iter().all(Option::is_none));
    let old = plain.get_many(&keys).unwrap();
    assert!(old.iter().all(|value| value.as_deref() == Some(b"1")), "who does not look: {old:?}");
    router.says(b"set item:0 0 0 1\r\n2\r\nget item:0\r\n", b"NOT_STORED\r\nEND\r\n");
    assert_eq!(plain.get(b"item:0").unwrap(), None, "what it should have replaced is gone");
    signal(invalidator.pid(), "CONT");
    filled(&mut cache, "2");

    shop.caches[0].kill_and_start();
    filled(&mut cache, "2");
    invalidator.kill().judge();
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
    let _second = shop.start();
    shop.settle();
}
