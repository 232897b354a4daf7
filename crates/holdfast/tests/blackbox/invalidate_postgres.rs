//! The small shop beside PostgreSQL: what is cached is what the rows say, while parts die, a standby is held
//! back, and the log does not tell all.

use super::common::{Scratch, finish, signal, until};
use super::invalidate::{has_none, hits};
use super::postgres::{Postgres, SETTINGS, Sql};
use super::shop::{self, ITEMS, Invalidator, Stand, Traffic, assert_cached_is_true, price};
use holdfast_cache_client::{CacheClientOptions, Lookaside, LookasideOptions};
use std::sync::atomic::Ordering;

pub type Shop = shop::Shop<Postgres>;

pub const MAP: &str = "[[keys]]\ntable = \"shop.items\"\nkey = \"item:{id}\"\n\
    [[keys]]\ntable = \"shop.items\"\nkey = \"name:{name}\"\n\
    [[keys]]\ntable = \"shop.marks\"\nkey = \"mark:{id}\"\n";

pub fn shop(scratch: &Scratch, settings: &[&str]) -> Option<Shop> {
    let database = Postgres::start(&scratch.path("db"), settings)?;
    let mut sql = database.sql();
    for text in [
        "CREATE SCHEMA shop",
        "CREATE TABLE shop.items (made date, weight numeric(8,2), id bigint PRIMARY KEY, name text, \
         price bigint NOT NULL, pad text)",
        // In the row, however long: then another column has to be stored apart.
        "ALTER TABLE shop.items ALTER pad SET STORAGE PLAIN, ALTER name SET STORAGE EXTERNAL",
        "ALTER TABLE shop.items REPLICA IDENTITY FULL",
        "CREATE TABLE shop.marks (id int PRIMARY KEY, n int)",
        "INSERT INTO shop.marks VALUES (0, 0)",
        "CREATE PUBLICATION holdfast_main FOR TABLE shop.items, shop.marks \
         WITH (publish_via_partition_root = true)",
    ] {
        sql.run(text);
    }
    sql.run(&format!(
        "INSERT INTO shop.items SELECT '2026-01-01', 1.5, n, 'n' || n, 1 FROM generate_series(0, {}) n",
        ITEMS - 1
    ));
    Some(Shop { stand: Stand::start(scratch, MAP), database })
}

/// The place in the log at a position's end.
fn lsn(text: &str) -> u64 {
    let (high, low) = text.rsplit('-').next().unwrap().split_once('/').unwrap();
    u64::from_str_radix(high, 16).unwrap() << 32 | u64::from_str_radix(low, 16).unwrap()
}

impl Shop {
    pub fn start(&self) -> Invalidator {
        Invalidator::start_by(Invalidator::command(self, &self.database.url()))
    }

    /// Waits until every server has confirmed what the database has: a change that is made now, and so all
    /// before it.
    pub fn settle(&self) {
        let mut sql = self.database.sql();
        let end = lsn(&sql.one("SELECT pg_current_wal_insert_lsn()"));
        sql.run("UPDATE shop.marks SET n = n + 1");
        until("every server has confirmed every change", || {
            self.status()
                .is_some_and(|(position, behind)| lsn(&position) > end && behind == self.nothing())
        });
    }

    /// Sets keys, and says which are gone once all changes are confirmed.
    pub fn gone(&self, keys: &[&str], change: impl FnOnce()) -> Vec<String> {
        let mut client = self.client();
        self.settle();
        keys.iter().for_each(|key| client.set(key.as_bytes(), b"x", 0).unwrap());
        change();
        self.settle();
        let is_gone = |key: &&&str| client.get(key.as_bytes()).unwrap().is_none();
        keys.iter().filter(is_gone).map(|key| (*key).to_owned()).collect()
    }

    /// Sets keys, and waits until a change has taken all of them away. What was before is confirmed.
    pub fn drops(&self, keys: &[&str], change: impl FnOnce()) {
        let mut client = self.client();
        keys.iter().for_each(|key| client.set(key.as_bytes(), b"x", 0).unwrap());
        change();
        until("keys are dropped", || {
            keys.iter().all(|key| client.get(key.as_bytes()).unwrap().is_none())
        });
    }
}

/// The race that deletes lose, and what a transaction makes old: rows as they were and as they are, a primary
/// key that changes, one that is rolled back in part, rows that a foreign key takes along, long values that did
/// not change, and more rows than anybody remembers.
#[test]
fn what_a_transaction_changes_goes_and_nothing_else() {
    let scratch = Scratch::new();
    let Some(shop) = shop(&scratch, SETTINGS) else { return };
    let mut sql = shop.database.sql();
    let metrics = scratch.path("pool.prom");
    let mut command = Invalidator::command(&shop, &shop.database.url());
    command.arg("--metrics").arg(&metrics);
    let invalidator = Invalidator::start_by(command);

    let (mut cache, mut other) = (shop.lookaside(), shop.database.sql());
    let old = cache.get(b"item:7", || {
        let old = price(&mut sql, 7);
        other.run("UPDATE shop.items SET price = 2 WHERE id = 7");
        shop.settle();
        old
    });
    assert_eq!(old.unwrap().unwrap(), b"1");
    assert_eq!(cache.get(b"item:7", || price(&mut sql, 7)).unwrap().unwrap(), b"2");
    assert_eq!(cache.counts().refused, 1);

    let keys =
        ["item:1", "item:2", "item:3", "item:5", "item:5005", "name:n1", "name:one", "other:1"];
    let gone = shop.gone(&keys, || {
        sql.run("UPDATE shop.items SET name = 'one' WHERE id = 1");
        sql.run("BEGIN");
        sql.run("UPDATE shop.items SET id = 5005 WHERE id = 5");
        sql.run("SAVEPOINT part");
        sql.run("UPDATE shop.items SET price = 9 WHERE id = 2");
        sql.run("ROLLBACK TO SAVEPOINT part");
        sql.run("COMMIT");
        sql.run("BEGIN");
        sql.run("DELETE FROM shop.items WHERE id = 3");
        sql.run("ROLLBACK");
    });
    assert_eq!(gone, ["item:1", "item:5", "item:5005", "name:n1", "name:one"]);

    // A column that is stored apart, and a key of the row that is not written when it does not change.
    let name = "long".repeat(50);
    sql.run(&format!(
        "UPDATE shop.items SET name = '{name}', pad = repeat('x', 2100) WHERE id = 8"
    ));
    let key = format!("name:{name}");
    let stored =
        "SELECT pg_relation_size(reltoastrelid) FROM pg_class WHERE oid = 'shop.items'::regclass";
    assert_ne!(sql.one(stored), "0", "the name is stored apart");
    shop.settle();
    shop.drops(&[&key, "item:8"], || sql.run("UPDATE shop.items SET price = 9 WHERE id = 8"));
    // Too many keys at once.
    shop.drops(&["other:1"], || {
        sql.run(
            "INSERT INTO shop.items SELECT NULL, 1, n, NULL, 1 FROM generate_series(10000, 110000) n",
        );
    });
    let says = |line: &str| {
        let text = std::fs::read_to_string(&metrics).unwrap_or_default();
        text.lines().any(|of| of.starts_with(line))
    };
    until("metrics say what happened", || {
        says("holdfast_invalidate_emptied_total 2") && says("holdfast_invalidate_troubles 0")
    });
    assert!(says("holdfast_invalidate_retained_bytes "));
    let mut told = invalidator.kill();
    let said = told.whole();
    assert!(said.contains("more than 100000 keys") && said.contains("new to this topic"), "{said}");
}

/// Writers and readers, while the invalidator, each cache and the database are killed in turn.
#[test]
fn with_postgresql_every_cached_price_is_its_row_s_when_all_is_quiet() {
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
            let said = invalidator.take().unwrap().kill().whole();
            let emptied = said.matches("invalidate.emptied").count();
            assert_eq!(emptied, usize::from(round == 0), "once, as it is new: {said}");
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
    let said = invalidator.take().unwrap().kill().whole();
    assert!(!said.contains("invalidate.emptied"), "the slot kept what was needed: {said}");
    assert_cached_is_true(&shop, &mut shop.database.sql());
    assert!(traffic.refused.into_inner() > 0, "a price changed while it was read");
}

/// A region reads a standby that is behind, and a commit that waits for a synchronous standby is in the log
/// before anybody sees it: keys go when those who are read show the change, and not before.
#[test]
fn a_key_is_dropped_when_the_standby_or_the_snapshot_shows_the_change() {
    let scratch = Scratch::new();
    let Some(shop) = shop(&scratch, SETTINGS) else { return };
    let standby = shop.database.standby(&scratch.path("standby"));
    let (mut primary, mut region) = (shop.database.sql(), standby.sql());
    let mut command = Invalidator::command(&shop, &shop.database.url());
    command.args(["--reads", &standby.url()]);
    let invalidator = Invalidator::start_by(command);
    shop.settle();
    let mut cache = shop.lookaside();
    let mut read = |sql: &mut Sql| {
        let value = cache.get(b"item:1", || price(sql, 1)).unwrap().unwrap();
        String::from_utf8(value).unwrap()
    };
    // How far the slot's reader was sent the log.
    let sent = "SELECT bool_and(sent_lsn >= pg_current_wal_flush_lsn()) FROM pg_stat_replication \
                WHERE application_name = 'holdfast invalidate'";
    assert_eq!(read(&mut region), "1");
    for new in 2..4 {
        region.run("SELECT pg_wal_replay_pause()");
        until("replay rests", || region.one("SELECT pg_get_wal_replay_pause_state()") == "paused");
        primary.run(&format!("UPDATE shop.items SET price = {new} WHERE id = 1"));
        until("the log's reader has the change", || primary.one(sent) == "t");
        for _ in 0..200 {
            assert_eq!(read(&mut region), (new - 1).to_string());
        }
        region.run("SELECT pg_wal_replay_resume()");
        shop.settle();
        assert_eq!(read(&mut region), new.to_string(), "the key was dropped, and not too soon");
    }
    invalidator.kill().judge();

    // The primary is read: a commit that waits for a standby which is not there is decoded, and not visible.
    let invalidator = shop.start();
    shop.settle();
    assert_eq!(read(&mut primary), "3");
    primary.run("ALTER SYSTEM SET synchronous_standby_names = 'nobody'");
    primary.run("SELECT pg_reload_conf()");
    until("commits wait", || primary.one("SHOW synchronous_standby_names") == "nobody");
    std::thread::scope(|scope| {
        let mut writer = shop.database.sql();
        let waits = scope.spawn(move || writer.ask("UPDATE shop.items SET price = 4 WHERE id = 1"));
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
        until("the commit waits", || primary.one(waiting) == "1");
        until("the log's reader has the change", || primary.one(sent) == "t");
        for _ in 0..200 {
            assert_eq!(
                read(&mut primary),
                "3",
                "dropped before it was visible: filled again, for good"
            );
        }
        primary.run("ALTER SYSTEM RESET synchronous_standby_names");
        primary.run("SELECT pg_reload_conf()");
        assert!(waits.join().unwrap().is_some());
    });
    shop.settle();
    assert_eq!(read(&mut primary), "4");
    invalidator.kill().judge();
}

/// What is done to the database, what the refusal names, and what takes it back.
const WRONG: &[(&str, &[&str], &str)] = &[
    (
        "ALTER TABLE shop.items REPLICA IDENTITY DEFAULT",
        &["`name`", "ALTER TABLE \"shop\".\"items\" REPLICA IDENTITY FULL"],
        "ALTER TABLE shop.items REPLICA IDENTITY FULL",
    ),
    (
        "ALTER PUBLICATION holdfast_main DROP TABLE shop.items",
        &["`shop.items`", "ALTER PUBLICATION holdfast_main ADD TABLE \"shop\".\"items\""],
        "ALTER PUBLICATION holdfast_main ADD TABLE shop.items",
    ),
    (
        "ALTER PUBLICATION holdfast_main SET TABLE shop.items WHERE (id > 5), shop.marks",
        &["leaves out", "WHERE"],
        "ALTER PUBLICATION holdfast_main SET TABLE shop.items, shop.marks",
    ),
    (
        "ALTER PUBLICATION holdfast_main SET (publish = 'insert, update')",
        &["ALTER PUBLICATION holdfast_main SET (publish = "],
        "ALTER PUBLICATION holdfast_main SET (publish = 'insert, update, delete, truncate')",
    ),
    (
        "ALTER PUBLICATION holdfast_main RENAME TO other",
        &["there is none", "CREATE PUBLICATION holdfast_main FOR TABLE \"shop\".\"items\""],
        "ALTER PUBLICATION other RENAME TO holdfast_main",
    ),
    (
        "SELECT pg_create_physical_replication_slot('other')",
        &["max_replication_slots"],
        "SELECT pg_drop_replication_slot('other')",
    ),
    (
        "SELECT pg_create_logical_replication_slot('holdfast_main', 'test_decoding')",
        &["`test_decoding`", "--slot"],
        "SELECT pg_drop_replication_slot('holdfast_main')",
    ),
];

/// What cannot work is refused by its name, with the statement that mends it, before a pool is touched.
#[test]
fn a_database_that_would_leave_changes_out_is_refused_with_what_mends_it() {
    let scratch = Scratch::new();
    let Some(mut shop) = shop(&scratch, &["wal_level=replica", "max_replication_slots=1"]) else {
        return;
    };
    let at = |shop: &Shop, url: &str| finish(&mut Invalidator::command(shop, url), b"");
    let url = shop.database.url();
    let refused = |shop: &Shop, names: &[&str]| at(shop, &url).refused(names);
    refused(&shop, &["`wal_level` is `replica`", "wal_level = logical"]);
    shop.database.restart_with(&["wal_level=logical", "max_replication_slots=1"]);
    let mut sql = shop.database.sql();
    for (wrong, names, right) in WRONG {
        sql.run(wrong);
        refused(&shop, names);
        sql.run(right);
    }
    let write = |text: &str| std::fs::write(&shop.map, text).unwrap();
    write(&MAP.replace("{name}", "{title}"));
    refused(&shop, &["`shop.items`", "no column `title`"]);
    write(&MAP.replace("{name}", "{weight}"));
    refused(&shop, &["`weight`", "numeric(8,2)", "`uuid`"]);
    write(&MAP.replace("shop.items", "shop.goods"));
    refused(&shop, &["`shop.goods`", "there is none"]);
    write(MAP);
    sql.run("CREATE ROLE reader LOGIN PASSWORD 'p@ss'");
    let reader = url.replace("owner", "reader:p%40ss");
    at(&shop, &reader).refused(&["REPLICATION"]);
    sql.run("ALTER ROLE reader REPLICATION");
    shop.database
        .set_hba("host all owner 127.0.0.1/32 trust\nhost all reader 127.0.0.1/32 scram-sha-256\n");
    let wrong = at(&shop, &reader.replace("p%40ss", "guess")).refused(&["`127.0.0.1:", "28P01"]);
    assert!(!wrong.contains("guess"), "{wrong}");
    at(&shop, "http://127.0.0.1").refused(&["mysql://", "postgres://"]);
    at(&shop, &url.replace("/postgres", "/none")).refused(&["3D000"]);
    let mut other = Invalidator::command(&shop, &url);
    finish(other.args(["--slot", "No"]), b"").refused(&["`No`", "--slot"]);
    let mut other = Invalidator::command(&shop, &url);
    finish(other.args(["--reads", "mysql://root@h"]), b"").refused(&["--reads", "another kind"]);
    let mut other = Invalidator::command(&shop, &url);
    finish(other.args(["--reads", &url]), b"").refused(&["`127.0.0.1:", "no standby", "--reads"]);
    assert_eq!(shop.status(), None, "nothing was written");

    reads_by_a_password(&shop, &reader);
    // The topic is of this kind of database now.
    at(&shop, "mysql://root@127.0.0.1:1").refused(&[
        "follows PostgreSQL",
        "MariaDB",
        "another name",
    ]);
}

fn reads_by_a_password(shop: &Shop, reader: &str) {
    let mut sql = shop.database.sql();
    // By SCRAM, by a role that may read the log and no rows; then by MD5.
    let invalidator = Invalidator::start_by(Invalidator::command(shop, reader));
    assert_eq!(
        shop.gone(&["item:1"], || sql.run("DELETE FROM shop.items WHERE id = 1")),
        ["item:1"]
    );
    invalidator.kill().judge();
    sql.run("SET password_encryption = 'md5'");
    sql.run("ALTER ROLE reader PASSWORD 'p@ss'");
    shop.database.set_hba("host all owner 127.0.0.1/32 trust\nhost all reader 127.0.0.1/32 md5\n");
    let invalidator = Invalidator::start_by(Invalidator::command(shop, reader));
    shop.drops(&["item:2"], || sql.run("DELETE FROM shop.items WHERE id = 2"));
    invalidator.kill().judge();
}

/// Nobody knows what changed: the slot was dropped, or moved by somebody else; tables changed in ways that the
/// log does not tell, while it was read and while nobody did. Each empties the pool, and says so.
#[test]
fn where_the_log_does_not_tell_the_pool_is_emptied_and_says_why() {
    let scratch = Scratch::new();
    let Some(shop) = shop(&scratch, SETTINGS) else { return };
    let mut sql = shop.database.sql();
    let mut emptied = |invalidator: Option<Invalidator>, change: &[&str], why: &str| {
        let mut client = shop.client();
        client.set(b"other:1", b"x", 0).unwrap();
        change.iter().for_each(|text| sql.run(text));
        let invalidator = invalidator.unwrap_or_else(|| shop.start());
        until(why, || client.get(b"other:1").unwrap().is_none());
        // What follows is told again; and confirmed, so that a later start tells none of it.
        shop.drops(&["item:1"], || sql.run("UPDATE shop.items SET price = 5 WHERE id = 1"));
        shop.settle();
        let said = invalidator.kill().whole();
        assert!(said.contains(why), "{why}: {said}");
        let is_read = "SELECT count(*) FROM pg_replication_slots WHERE active";
        until("nobody reads the slot", || sql.one(is_read) == "0");
    };
    let advance = "SELECT pg_replication_slot_advance('holdfast_main', pg_current_wal_lsn())";
    emptied(None, &[], "new to this topic");
    emptied(None, &["SELECT pg_drop_replication_slot('holdfast_main')"], "slot was dropped");
    emptied(None, &["UPDATE shop.marks SET n = 1", advance], "somebody else has confirmed");
    let rewrite = "ALTER TABLE shop.items ALTER price TYPE bigint USING price * 2, ADD more int";
    let shaped = "are not what they were";
    emptied(None, &[rewrite], shaped);
    emptied(Some(shop.start()), &["ALTER TABLE shop.items DROP more"], shaped);
    let swap = [
        "BEGIN",
        "ALTER TABLE shop.items RENAME TO old_items",
        "CREATE TABLE shop.items (LIKE shop.old_items INCLUDING ALL)",
        "ALTER TABLE shop.items REPLICA IDENTITY FULL",
        "INSERT INTO shop.items SELECT * FROM shop.old_items",
        "ALTER PUBLICATION holdfast_main ADD TABLE shop.items",
        "COMMIT",
    ];
    emptied(Some(shop.start()), &swap, shaped);
    let lacks = [
        "ALTER PUBLICATION holdfast_main DROP TABLE shop.items",
        "UPDATE shop.items SET price = 7 WHERE id = 1",
        "ALTER PUBLICATION holdfast_main ADD TABLE shop.items",
    ];
    emptied(Some(shop.start()), &lacks, shaped);
    let fill = "INSERT INTO shop.items SELECT NULL, 1, n, NULL, 1 FROM generate_series(0, 9) n";
    emptied(Some(shop.start()), &["TRUNCATE shop.items", fill], "truncated: `shop.items`");
}

/// A partitioned table is its partitions' rows; and one invalidator reads a slot while another waits for it.
#[test]
fn partitions_are_one_table_and_of_two_invalidators_one_waits() {
    let scratch = Scratch::new();
    let Some(shop) = shop(&scratch, SETTINGS) else { return };
    let mut sql = shop.database.sql();
    for text in [
        "CREATE TABLE shop.parts (region char(4), id uuid, n int, PRIMARY KEY (region, id)) \
         PARTITION BY LIST (region)",
        "CREATE TABLE shop.parts_eu PARTITION OF shop.parts FOR VALUES IN ('eu')",
        "CREATE TABLE shop.parts_us PARTITION OF shop.parts FOR VALUES IN ('us')",
        "ALTER PUBLICATION holdfast_main ADD TABLE shop.parts",
        "INSERT INTO shop.parts VALUES ('eu', '00000000-0000-0000-0000-00000000000a', 1)",
    ] {
        sql.run(text);
    }
    let map = format!("{MAP}[[keys]]\ntable = \"shop.parts\"\nkey = \"part:{{region}}:{{id}}\"\n");
    std::fs::write(&shop.map, map).unwrap();
    let first = shop.start();
    let (eu, us) = (
        "part:eu:00000000-0000-0000-0000-00000000000a",
        "part:us:00000000-0000-0000-0000-00000000000a",
    );
    let moved = || sql.run("UPDATE shop.parts SET region = 'us' WHERE region = 'eu'");
    assert_eq!(shop.gone(&[eu, us, "item:1"], moved), [eu, us]);
    let is_read = |shop: &Shop| {
        let url = shop.database.url();
        let status = ["--json", "invalidate", "status", "--to", "main", "--from", &url];
        let out = String::from_utf8(shop.node.run(&status).out).unwrap();
        let slot = out.lines().last().unwrap().to_owned();
        assert!(
            slot.contains("\"slot\":\"holdfast_main\"") && slot.contains("retained_bytes"),
            "{slot}"
        );
        slot.contains("\"is_read\":true")
    };
    assert!(is_read(&shop));

    let mut command = Invalidator::command(&shop, &shop.database.url());
    let metrics = scratch.path("second.prom");
    command.arg("--metrics").arg(&metrics);
    let second = std::thread::scope(|scope| {
        let second = scope.spawn(|| Invalidator::start_by(command));
        until("the second one waits", || {
            let text = std::fs::read_to_string(&metrics).unwrap_or_default();
            text.contains("holdfast_invalidate_troubles 1")
        });
        shop.drops(&["item:1"], || sql.run("DELETE FROM shop.items WHERE id = 1"));
        shop.settle();
        first.kill().judge();
        second.join().unwrap()
    });
    shop.drops(&["item:2"], || sql.run("DELETE FROM shop.items WHERE id = 2"));
    // A partition that goes takes rows along, and no word of that is in the log.
    shop.drops(&["other:1"], || sql.run("ALTER TABLE shop.parts DETACH PARTITION shop.parts_us"));
    let said = second.kill().whole();
    assert!(said.contains("another invalidator has it"), "{said}");
}

/// A commit that is not on the disk yet is seen, and not sent: a lease waits for it. What a transaction that stays
/// open has written behind it may never get there, and no lease waits for that.
#[test]
fn leases_wait_for_what_is_seen_and_not_for_what_a_quiet_database_never_sends() {
    let scratch = Scratch::new();
    let Some(shop) = shop(&scratch, SETTINGS) else { return };
    let mut command = Invalidator::command(&shop, &shop.database.url());
    command.args(["--server-lease", "4"]);
    let invalidator = Invalidator::start_by(command);
    shop.settle();
    let options =
        LookasideOptions { server_lease: Some("main".into()), ..LookasideOptions::default() };
    let mut cache =
        Lookaside::new(&shop.servers(), CacheClientOptions::default(), options).unwrap();
    let (mut sql, mut open) = (shop.database.sql(), shop.database.sql());
    hits(&mut cache, &mut sql, "1");
    signal(invalidator.pid(), "STOP");
    sql.run("SET synchronous_commit = off");
    sql.run("UPDATE shop.items SET price = 2");
    until("no server has a lease", || shop.caches.iter().all(|cache| has_none(cache.port)));
    open.run("BEGIN");
    open.run("UPDATE shop.marks SET n = n + 1");
    signal(invalidator.pid(), "CONT");
    hits(&mut cache, &mut sql, "2");
    invalidator.kill().judge();
}
