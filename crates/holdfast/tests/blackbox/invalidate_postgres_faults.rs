//! What a PostgreSQL does to who follows it: locks that are held, commits that wait, a publication that changes
//! while others write, texts that cannot be sent, silence, a standby that takes over, a connection that is cut.

use super::common::{Scratch, finish, free_port, signal, until};
use super::invalidate_postgres::{MAP, Shop, shop};
use super::postgres::{SETTINGS, Sql};
use super::shop::{Cache, ITEMS, Invalidator, Rows, price};
use holdfast_cache_client::Client;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A number of the file that an invalidator writes.
fn metric(path: &Path, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("holdfast_invalidate_")?.strip_prefix(name))?;
    line.trim().parse().ok()
}

/// Catalog functions that list partitions lock them. Whoever held such a lock, as VACUUM FULL does for an hour,
/// held up the keys of every table, and nobody was told.
#[test]
fn a_partition_that_somebody_locks_holds_up_no_key() {
    let scratch = Scratch::new();
    let Some(shop) = shop(&scratch, SETTINGS) else { return };
    let (mut sql, mut locks) = (shop.database.sql(), shop.database.sql());
    for text in [
        "CREATE TABLE shop.parts (id int PRIMARY KEY, n int) PARTITION BY RANGE (id)",
        "CREATE TABLE shop.parts_1 PARTITION OF shop.parts FOR VALUES FROM (0) TO (10)",
        "ALTER PUBLICATION holdfast_main ADD TABLE shop.parts",
    ] {
        sql.run(text);
    }
    let map = format!("{MAP}[[keys]]\ntable = \"shop.parts\"\nkey = \"part:{{id}}\"\n");
    std::fs::write(&shop.map, map).unwrap();
    let invalidator = shop.start();
    shop.settle();
    locks.run("BEGIN");
    locks.run("LOCK TABLE shop.parts_1 IN ACCESS EXCLUSIVE MODE");
    // A second look at the catalog is behind the first of them, if not before it.
    for price in 2..4 {
        shop.drops(&["item:1"], || {
            sql.run(&format!(
                "UPDATE shop.items SET price = {price} WHERE id = 1; SELECT pg_sleep(1)"
            ));
        });
    }
    invalidator.kill().judge();
    // Nor does it keep one from starting.
    let invalidator = shop.start();
    shop.drops(&["item:1"], || sql.run("UPDATE shop.items SET price = 4 WHERE id = 1"));
    locks.run("COMMIT");
    invalidator.kill().judge();
}

/// Rows that come to a table in ways that no log tells: by a table that inherits from it, and by what it is a
/// part of, under whose name a publication tells of it from then on.
#[test]
fn a_table_that_becomes_a_part_or_gets_one_empties_the_pool_and_is_told() {
    let scratch = Scratch::new();
    let Some(shop) = shop(&scratch, SETTINGS) else { return };
    let mut sql = shop.database.sql();
    sql.run("CREATE TABLE shop.all_marks (LIKE shop.marks INCLUDING ALL) PARTITION BY RANGE (id)");
    sql.run("ALTER PUBLICATION holdfast_main ADD TABLE shop.all_marks");
    for (changes, back, trouble) in [
        (
            &["CREATE TABLE shop.more () INHERITS (shop.items)"][..],
            "DROP TABLE shop.more",
            "other tables inherit from it",
        ),
        (
            &["ALTER TABLE shop.all_marks ATTACH PARTITION shop.marks DEFAULT"],
            "ALTER TABLE shop.all_marks DETACH PARTITION shop.marks",
            "does not have it",
        ),
    ] {
        let invalidator = shop.start();
        shop.settle();
        shop.drops(&["other:1"], || changes.iter().for_each(|text| sql.run(text)));
        shop.drops(&["other:1"], || sql.run(back));
        shop.settle();
        let said = invalidator.kill().whole();
        assert!(said.contains("invalidate.waits") && said.contains(trouble), "{trouble}: {said}");
    }
}

/// A table was left out of the publication, and came back while a transaction had written to it: that is decoded
/// by what the publication was, its rows are left out, and it commits behind the order to empty. What was cached
/// between the two was old for good.
#[test]
fn who_wrote_while_a_publication_changed_leaves_nothing_old_behind() {
    let scratch = Scratch::new();
    let Some(shop) = shop(&scratch, SETTINGS) else { return };
    let (mut sql, mut writer) = (shop.database.sql(), shop.database.sql());
    let invalidator = shop.start();
    shop.settle();
    let mut client = shop.client();
    let mut emptied = |change: &mut dyn FnMut()| {
        client.set(b"other:1", b"x", 0).unwrap();
        change();
        until("the pool is emptied", || client.get(b"other:1").unwrap().is_none());
    };
    emptied(&mut || sql.run("ALTER PUBLICATION holdfast_main DROP TABLE shop.items"));
    writer.run("BEGIN");
    writer.run("UPDATE shop.items SET price = 5 WHERE id = 1");
    emptied(&mut || sql.run("ALTER PUBLICATION holdfast_main ADD TABLE shop.items"));
    let mut cache = shop.lookaside();
    let mut read = |sql: &mut Sql| {
        let value = cache.get(b"item:1", || price(sql, 1)).unwrap().unwrap();
        String::from_utf8(value).unwrap()
    };
    assert_eq!(read(&mut sql), "1");
    writer.run("COMMIT");
    until("the new price is read", || read(&mut sql) == "5");
    shop.settle();
    // It is as it was again: single keys go.
    assert_eq!(
        shop.gone(&["item:2", "other:1"], || sql.run("DELETE FROM shop.items WHERE id = 2")),
        ["item:2"]
    );
    invalidator.kill().judge();
}

/// With `synchronous_standby_names = '*'` the reader of the log counts as a standby: each commit of the shop
/// waited for it, and it waited until the commit was visible.
#[test]
fn a_primary_whose_commits_would_wait_for_the_invalidator_is_refused() {
    let scratch = Scratch::new();
    let Some(shop) = shop(&scratch, SETTINGS) else { return };
    let mut sql = shop.database.sql();
    let mut set = |to: &str| {
        sql.run(to);
        sql.run("SELECT pg_reload_conf()");
    };
    let mut invalidator = shop.start();
    shop.settle();
    // The first one that connected is the first standby of those whom `*` means.
    let _standby = shop.database.standby(&scratch.path("standby"));
    set("ALTER SYSTEM SET synchronous_standby_names = '*'");
    assert_eq!(invalidator.ended(), Some(1));
    let said = invalidator.kill().whole();
    assert!(said.contains("`synchronous_standby_names` is `*`"), "{said}");
    // Whoever waited goes on.
    shop.database.sql().run("UPDATE shop.items SET price = 2 WHERE id = 1");
    finish(&mut Invalidator::command(&shop, &shop.database.url()), b"")
        .refused(&["synchronous_standby_names", "ANY"]);
    set("ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (*)'");
    until("any standby will do", || {
        shop.database.sql().one("SHOW synchronous_standby_names") == "ANY 1 (*)"
    });
    let invalidator = shop.start();
    shop.drops(&["item:1"], || {
        shop.database.sql().run("UPDATE shop.items SET price = 3 WHERE id = 1");
    });
    invalidator.kill().judge();
    set("ALTER SYSTEM RESET synchronous_standby_names");
}

/// One row whose text is none in its database's encoding stopped the log for good. Where a database has no
/// encoding, texts are bytes; where one cannot be sent, the pool is emptied and reading goes on behind it.
#[test]
fn a_text_that_cannot_be_sent_stops_no_log() {
    let scratch = Scratch::new();
    let Some(shop) = shop(&scratch, SETTINGS) else { return };
    for (encoding, odd) in [("SQL_ASCII", "ff"), ("WIN1252", "81")] {
        let name = encoding.to_lowercase();
        let make = format!("CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0");
        shop.database.sql().run(&make);
        let url = shop.database.url().replace("/postgres", &format!("/{name}"));
        let mut sql = Sql::at(&url);
        for text in [
            "CREATE SCHEMA shop",
            "CREATE TABLE shop.items (id bigint PRIMARY KEY, name text, note text)",
            "ALTER TABLE shop.items REPLICA IDENTITY FULL",
            "CREATE TABLE shop.marks (id int PRIMARY KEY, n int)",
            &format!(
                "CREATE PUBLICATION holdfast_{name} FOR TABLE shop.items, shop.marks \
                 WITH (publish_via_partition_root = true)"
            ),
        ] {
            sql.run(text);
        }
        let mut command = Invalidator::command(&shop, &url);
        command.args(["--slot", &format!("holdfast_{name}")]);
        let invalidator = Invalidator::start_by(command);
        shop.drops(&["item:1"], || sql.run("INSERT INTO shop.items (id) VALUES (1)"));
        shop.drops(&["item:2", "name:x"], || {
            sql.run(&format!(
                "INSERT INTO shop.items VALUES (2, 'x', convert_from('\\x{odd}', '{encoding}'))"
            ));
        });
        shop.drops(&["item:3"], || sql.run("INSERT INTO shop.items (id) VALUES (3)"));
        let said = invalidator.kill().whole();
        let is_emptied = said.contains("cannot tell what a row is");
        assert_eq!(is_emptied, encoding != "SQL_ASCII", "{said}");
    }
}

/// A publication that is dropped while it is read fails every decoding. The slot was taken for lost, made anew,
/// failed at the next change, and so on: all caches were emptied over and over.
#[test]
fn a_publication_that_is_dropped_ends_the_invalidator_with_what_is_missing() {
    let scratch = Scratch::new();
    let Some(shop) = shop(&scratch, SETTINGS) else { return };
    let mut sql = shop.database.sql();
    let mut invalidator = shop.start();
    shop.settle();
    sql.run("DROP PUBLICATION holdfast_main");
    sql.run("UPDATE shop.items SET price = 2 WHERE id = 1");
    assert_eq!(invalidator.ended(), Some(1));
    let said = invalidator.kill().whole();
    assert!(said.contains("CREATE PUBLICATION holdfast_main"), "{said}");
    assert!(said.matches("invalidate.emptied").count() <= 2, "as it was new, and once: {said}");
}

/// A server that says nothing, though its connection stands: it is told, and another connection is tried.
#[test]
fn a_database_that_falls_silent_is_told_and_asked_anew() {
    let scratch = Scratch::new();
    let Some(shop) = shop(&scratch, SETTINGS) else { return };
    let mut sql = shop.database.sql();
    let invalidator = shop.start();
    shop.settle();
    // Who asks what a snapshot holds; this test's connections have the same name.
    let asked = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND \
                 pid <> pg_backend_pid() AND (query LIKE '%pg_current_snapshot%' \
                 OR query LIKE '%pg_replication_slots%')";
    let mut process = None;
    until("it asks", || {
        process = sql.ask(asked).unwrap().pop();
        process.is_some()
    });
    let process: u32 = process.unwrap()[0].as_ref().unwrap().parse().unwrap();
    signal(process, "STOP");
    shop.drops(&["item:1"], || sql.run("UPDATE shop.items SET price = 2 WHERE id = 1"));
    signal(process, "CONT");
    let said = invalidator.kill().whole();
    assert!(said.contains("does not answer"), "{said}");
}

/// A slot is made behind all transactions that run, and one that was prepared and forgotten runs for ever:
/// nobody was told what was waited for.
#[test]
fn a_forgotten_transaction_that_a_slot_waits_for_is_told() {
    let scratch = Scratch::new();
    let Some(shop) = shop(&scratch, &["wal_level=logical", "max_prepared_transactions=2"]) else {
        return;
    };
    let mut sql = shop.database.sql();
    sql.run("BEGIN");
    sql.run("UPDATE shop.items SET price = 2 WHERE id = 1");
    sql.run("PREPARE TRANSACTION 'forgotten'");
    let metrics = scratch.path("pool.prom");
    let mut command = Invalidator::command(&shop, &shop.database.url());
    command.arg("--metrics").arg(&metrics);
    let invalidator = std::thread::scope(|scope| {
        let starts = scope.spawn(|| Invalidator::start_by(command));
        until("it is told", || metric(&metrics, "troubles") == Some(1));
        sql.run("ROLLBACK PREPARED 'forgotten'");
        starts.join().unwrap()
    });
    // What is prepared is in the log when it is committed, and not before.
    let key = ["item:1"];
    let prepared = || {
        sql.run("BEGIN");
        sql.run("UPDATE shop.items SET price = 3 WHERE id = 1");
        sql.run("PREPARE TRANSACTION 'sold'");
    };
    assert_eq!(shop.gone(&key, prepared), [""; 0]);
    assert_eq!(shop.gone(&key, || sql.run("COMMIT PREPARED 'sold'")), key);
    let said = invalidator.kill().whole();
    assert!(said.contains("prepared and not ended"), "{said}");
}

/// The log is bounded in its database, and outlived by who is away; a standby takes over. Either empties the
/// pool, and single keys go on.
#[test]
fn a_slot_that_was_given_up_and_a_standby_that_took_over_empty_the_pool() {
    let scratch = Scratch::new();
    let settings = ["wal_level=logical", "max_slot_wal_keep_size=16MB", "max_wal_size=32MB"];
    let Some(shop) = shop(&scratch, &settings) else { return };
    let mut sql = shop.database.sql();
    let invalidator = shop.start();
    shop.settle();
    invalidator.kill().judge();
    shop.client().set(b"item:1", b"old", 0).unwrap();
    sql.run("UPDATE shop.items SET price = 2 WHERE id = 1");
    let status = "SELECT wal_status FROM pg_replication_slots WHERE slot_name = 'holdfast_main'";
    until("the slot is given up", || {
        sql.run("SELECT pg_switch_wal()");
        sql.run("UPDATE shop.marks SET n = n + 1");
        sql.run("CHECKPOINT");
        sql.one(status) == "lost"
    });
    let invalidator = shop.start();
    shop.settle();
    assert_eq!(shop.client().get(b"item:1").unwrap(), None);
    let said = invalidator.kill().whole();
    assert!(said.contains("max_slot_wal_keep_size"), "{said}");

    let standby = shop.database.standby(&scratch.path("standby"));
    let Shop { stand, database } = shop;
    drop(database);
    standby.promote();
    let shop = Shop { stand, database: standby };
    let invalidator = shop.start();
    shop.settle();
    let mut sql = shop.database.sql();
    assert_eq!(
        shop.gone(&["item:1", "other:1"], || sql
            .run("UPDATE shop.items SET price = 3 WHERE id = 1")),
        ["item:1"]
    );
    let said = invalidator.kill().whole();
    assert!(said.contains("slot was dropped") || said.contains("promoted"), "{said}");
}

/// A server was added to the pool, and taken out again. The others had its keys from before; while it had them,
/// they changed, and nobody told the others: they showed the old values for good.
#[test]
fn a_server_that_came_and_went_leaves_no_old_value_with_the_others() {
    let scratch = Scratch::new();
    let Some(mut shop) = shop(&scratch, SETTINGS) else { return };
    let invalidator = shop.start();
    shop.settle();
    let mut client = shop.client();
    let keys: Vec<String> = (0..ITEMS).map(|id| format!("item:{id}")).collect();
    keys.iter().for_each(|key| client.set(key.as_bytes(), b"1", 0).unwrap());
    // Nothing that is known goes while the pool stays, or grows.
    invalidator.kill().judge();
    let invalidator = shop.start();
    shop.settle();
    let cached = |client: &mut Client| {
        client.get_many(&keys).unwrap().iter().filter(|value| value.is_some()).count()
    };
    assert_eq!(cached(&mut client), keys.len());
    invalidator.kill().judge();
    let two = std::fs::read_to_string(&shop.routes).unwrap();
    let third = Cache::start(free_port());
    let three = two.replace("servers = [", &format!("servers = [\"127.0.0.1:{}\", ", third.port));
    std::fs::write(&shop.routes, three).unwrap();
    shop.caches.push(third);
    let invalidator = shop.start();
    shop.settle();
    assert_eq!(cached(&mut client), keys.len());
    shop.database.sql().run("UPDATE shop.items SET price = 2");
    shop.settle();
    invalidator.kill().judge();
    assert!(cached(&mut client) > 0, "some are the third one's by now");
    std::fs::write(&shop.routes, two).unwrap();
    shop.caches.pop();
    let invalidator = shop.start();
    shop.settle();
    assert_eq!(cached(&mut client), 0);
    let said = invalidator.kill().whole();
    assert!(said.contains("servers of the pool went"), "{said}");
}

/// Every connection to the database is cut after some bytes, anywhere in a message: what came half is read again.
#[test]
fn connections_that_are_cut_anywhere_lose_no_key() {
    let scratch = Scratch::new();
    let Some(shop) = shop(&scratch, SETTINGS) else { return };
    let (is_whole, cuts, port) = (AtomicBool::new(false), AtomicU64::new(0), free_port());
    let way = TcpListener::bind(("127.0.0.1", port)).unwrap();
    let to = shop.database.port;
    let url = shop.database.url().replace(&to.to_string(), &port.to_string());
    let mut sql = shop.database.sql();
    std::thread::scope(|scope| {
        let (is_whole, cuts) = (&is_whole, &cuts);
        scope.spawn(move || {
            for (number, from) in (0..).zip(way.incoming()) {
                let (from, to) = (from.unwrap(), TcpStream::connect(("127.0.0.1", to)).unwrap());
                if from.peek(&mut [0]).unwrap_or(0) == 0 {
                    return;
                }
                let (back, forth) = (to.try_clone().unwrap(), from.try_clone().unwrap());
                scope.spawn(move || carry(from, to, u64::MAX));
                let bytes = match is_whole.load(Ordering::Relaxed) {
                    true => u64::MAX,
                    false => 700 + 997 * number,
                };
                scope.spawn(move || {
                    carry(back, forth, bytes);
                    cuts.fetch_add(1, Ordering::Relaxed);
                });
            }
        });
        let invalidator = Invalidator::start_by(Invalidator::command(&shop, &url));
        let begun = cuts.load(Ordering::Relaxed);
        let mut cache = shop.lookaside();
        for round in 0.. {
            let (id, key) = (round % 20, format!("item:{}", round % 20));
            cache.get(key.as_bytes(), || price(&mut sql, id)).unwrap();
            sql.raise_price(id).unwrap();
            if cuts.load(Ordering::Relaxed) > begun + 8 {
                break;
            }
        }
        is_whole.store(true, Ordering::Relaxed);
        shop.settle();
        let said = invalidator.kill().whole();
        // Whoever connects and says nothing ends it.
        drop(TcpStream::connect(("127.0.0.1", port)));
        assert_eq!(said.matches("invalidate.emptied").count(), 1, "as it was new: {said}");
    });
    let mut cache = shop.lookaside();
    for id in 0..20 {
        let key = format!("item:{id}");
        let cached = cache.get(key.as_bytes(), || price(&mut sql, id)).unwrap();
        assert_eq!(cached, price(&mut sql, id).unwrap(), "{key}");
    }
}

/// Carries bytes until there are no more, or so many were carried; then both sides are cut.
fn carry(mut from: TcpStream, mut to: TcpStream, bytes: u64) {
    let (mut buffer, mut rest) = ([0; 4096], bytes);
    while rest > 0
        && let Ok(got) = from.read(&mut buffer)
    {
        let some = (got as u64).min(rest) as usize;
        rest -= some as u64;
        if got == 0 || to.write_all(&buffer[..some]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
