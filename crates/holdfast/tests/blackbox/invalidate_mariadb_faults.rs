//! What goes wrong between MariaDB and the caches, beside what `invalidate.rs` kills: rows and tables that are not as
//! the log's reader has them, replicas that take over, caches that answer errors, a log that is not read for a while.

use super::common::{Scratch, signal, until};
use super::invalidate::{Shop, hits, shop};
use super::mariadb::{MariaDb, SETTINGS};
use super::memcached::Memcached;
use super::shop::{Invalidator, price};
use holdfast_cache_client::{CacheClientOptions, Client, Lookaside, LookasideOptions};

/// Which of some keys a change takes out of the caches, once the invalidator has come behind it.
fn gone(shop: &Shop, keys: &[&str], change: &[&str]) -> Vec<String> {
    let mut client = shop.client();
    keys.iter().for_each(|key| client.set(key.as_bytes(), b"x", 0).unwrap());
    let mut sql = shop.database.sql();
    change.iter().for_each(|text| sql.run(text));
    shop.settle();
    let is_gone = |key: &&&str| client.get(key.as_bytes()).unwrap().is_none();
    keys.iter().filter(is_gone).map(|key| (*key).to_owned()).collect()
}

/// The log has a row of 20 MB twice in one event, as it was and as it is: more than the driver took, which gave up
/// there, was tried again, and gave up there again, for ever. And a transaction of a million rows.
#[test]
fn a_row_of_20_mb_and_a_million_rows_stop_no_log() {
    let scratch = Scratch::new();
    let settings =
        [SETTINGS, &["--max-allowed-packet=32M", "--innodb-log-file-size=512M"]].concat();
    let Some(shop) = shop(&scratch, &settings) else { return };
    let mut sql = shop.database.sql();
    sql.run("ALTER TABLE shop.items ADD COLUMN pad LONGTEXT");
    let invalidator = shop.start();
    shop.settle();
    let keys = ["item:1", "name:n1", "other:1"];
    let long = "UPDATE shop.items SET pad = REPEAT('x', 20 << 20) WHERE id = 1";
    assert_eq!(gone(&shop, &keys, &[long]), keys[..2]);
    let short = "UPDATE shop.items SET price = 2 WHERE id = 1";
    assert_eq!(gone(&shop, &keys, &[short]), keys[..2]);
    let million = "INSERT INTO shop.items SELECT 2026, 1, 10000 + seq, NULL, 1, NULL FROM shop.seq_1_to_1000000";
    assert_eq!(gone(&shop, &keys, &[million]), keys, "nobody remembers so many");
    let again = "UPDATE shop.items SET price = 3 WHERE id = 1";
    assert_eq!(gone(&shop, &keys, &[again]), keys[..2]);
    invalidator.kill().judge();
}

/// A column more and a column that no key needs empty the pool once, for rows may have changed by that; a column of a
/// key that goes does so with each row, which has no such key any more, until the map is mended.
#[test]
fn columns_that_come_and_go_empty_the_pool_and_say_so() {
    let scratch = Scratch::new();
    let Some(shop) = shop(&scratch, SETTINGS) else { return };
    let invalidator = shop.start();
    shop.settle();
    let keys = ["item:1", "name:n1", "other:1"];
    let update = "UPDATE shop.items SET price = price + 1 WHERE id = 1";
    for text in [
        "ALTER TABLE shop.items ADD COLUMN more INT FIRST",
        "ALTER TABLE shop.items DROP COLUMN weight",
        "ALTER TABLE shop.items MODIFY id BIGINT UNSIGNED AFTER price",
    ] {
        assert_eq!(gone(&shop, &keys, &[text]), keys, "{text}");
        assert_eq!(gone(&shop, &keys, &[update]), keys[..2], "{text}");
    }
    assert_eq!(gone(&shop, &keys, &["ALTER TABLE shop.items DROP COLUMN name"]), keys);
    for _ in 0..2 {
        assert_eq!(gone(&shop, &keys, &[update]), keys);
    }
    let said = invalidator.kill().whole();
    assert!(said.contains("a table of the map was changed: `ALTER TABLE"), "{said}");
    assert!(said.contains("`shop.items` have no column `name`"), "{said}");
}

/// A replica takes over. One that has all that the topic has goes on in the same log: single keys are dropped. One that
/// was behind lacks what readers have seen: the pool is emptied, and then goes on.
#[test]
fn a_replica_that_takes_over_is_followed_and_one_that_lacks_something_empties_the_pool() {
    for is_behind in [false, true] {
        let scratch = Scratch::new();
        let Some(mut shop) = shop(&scratch, SETTINGS) else { return };
        let settings = [SETTINGS, &["--server-id=2", "--log-slave-updates"]].concat();
        let replica = MariaDb::start(&scratch.path("replica"), &settings).unwrap();
        let (mut old, mut new) = (shop.database.sql(), replica.sql());
        new.run(&format!(
            "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {}, MASTER_USER = 'root', \
             MASTER_USE_GTID = slave_pos",
            shop.database.port
        ));
        new.run("START SLAVE");
        let end = |sql: &mut super::mariadb::Sql| {
            sql.ask::<String>("SELECT @@GLOBAL.gtid_binlog_pos").unwrap().remove(0)
        };
        until("the replica has all of it", || end(&mut new) == end(&mut old));
        if is_behind {
            new.run("STOP SLAVE");
        }
        let first = shop.start();
        old.run("UPDATE shop.items SET price = 2 WHERE id < 10");
        shop.settle();
        first.kill().judge();
        if !is_behind {
            until("the replica has all of it", || end(&mut new) == end(&mut old));
            new.run("STOP SLAVE");
        }
        new.run("RESET SLAVE ALL");
        shop.database = replica;
        let keys = ["item:1", "name:n1", "other:1"];
        let mut client = shop.client();
        keys.iter().for_each(|key| client.set(key.as_bytes(), b"x", 0).unwrap());
        let second = shop.start();
        shop.settle();
        let is_emptied = keys.map(|key| client.get(key.as_bytes()).unwrap().is_none());
        assert_eq!(is_emptied, [is_behind; 3]);
        let update = "UPDATE shop.items SET price = 7 WHERE id = 1";
        assert_eq!(gone(&shop, &keys, &[update]), keys[..2], "behind: {is_behind}");
        let said = second.kill().whole();
        assert_eq!(said.contains("has no more what follows"), is_behind, "{said}");
    }
}

/// A cache that answers, and answers errors: a router whose server is silent. Nothing counts as dropped that was
/// refused; it is told, and dropped once it is taken.
#[test]
fn a_cache_that_answers_errors_has_dropped_nothing() {
    let scratch = Scratch::new();
    let Some(shop) = shop(&scratch, SETTINGS) else { return };
    let servers = shop.servers().join(",");
    let router =
        Memcached::start(&["route", "-p", "-1", "--patience", "100", "--servers", &servers]);
    let routes = format!("default = \"main\"\n[pools.main]\nservers = [\"{}\"]\n", router.name());
    std::fs::write(&shop.routes, routes).unwrap();
    let invalidator = shop.start();
    let mut sql = shop.database.sql();
    sql.run("UPDATE shop.items SET price = 2 WHERE id = 1");
    let lacks = |entries: fn(u64) -> bool| {
        shop.status().is_some_and(|(_, behind)| behind.len() == 1 && entries(behind[0]))
    };
    until("the router's servers were told", || lacks(|entries| entries == 0));
    let mut client = shop.client();
    let keys: Vec<String> = (0..100).map(|id| format!("item:{id}")).collect();
    keys.iter().for_each(|key| client.set(key.as_bytes(), b"2", 0).unwrap());
    let silent = shop.caches[0].child.id();
    signal(silent, "STOP");
    sql.run("UPDATE shop.items SET price = 3");
    until("status says what is lacking", || lacks(|entries| entries > 0));
    let mut through = Client::new(&[router.name()], CacheClientOptions::default()).unwrap();
    let key = keys.iter().find(|key| through.delete(key.as_bytes()).is_err());
    assert!(key.is_some(), "the router answers errors, and is there");
    assert!(lacks(|entries| entries > 0), "nothing of that was taken for done");
    signal(silent, "CONT");
    until("it is told what it lacks", || lacks(|entries| entries == 0));
    assert!(shop.client().get_many(&keys).unwrap().iter().all(Option::is_none));
    let said = invalidator.kill().whole();
    assert!(said.contains("it does not answer, or refuses"), "{said}");
}

/// A commit that waits for a semi-synchronous replica, which never comes, is in the log, and no SELECT shows it: its key
/// is dropped when one does, or whoever reads next would cache the old price by a token that is good.
#[test]
fn a_change_that_is_in_the_log_and_not_visible_drops_its_key_once_it_is() {
    let scratch = Scratch::new();
    let Some(shop) = shop(&scratch, SETTINGS) else { return };
    let metrics = scratch.path("pool.prom");
    let mut command = Invalidator::command(&shop, &shop.database.url());
    command.arg("--metrics").arg(&metrics);
    let invalidator = Invalidator::start_by(command);
    let (mut sql, mut writer) = (shop.database.sql(), shop.database.sql());
    let mut cache = shop.lookaside();
    let mut read = |sql: &mut super::mariadb::Sql| {
        let value = cache.get(b"item:1", || price(sql, 1)).unwrap().unwrap();
        String::from_utf8(value).unwrap()
    };
    shop.settle();
    assert_eq!(read(&mut sql), "1");
    sql.run("SET GLOBAL rpl_semi_sync_master_timeout = 3600000");
    sql.run("SET GLOBAL rpl_semi_sync_master_wait_point = 'AFTER_SYNC'");
    sql.run("SET GLOBAL rpl_semi_sync_master_enabled = ON");
    let commits =
        std::thread::spawn(move || writer.run("UPDATE shop.items SET price = 2 WHERE id = 1"));
    until("the change was read", || {
        let text = std::fs::read_to_string(&metrics).unwrap_or_default();
        let counts = ["waiting_transactions 1", "transactions_total 1"];
        counts.iter().any(|count| text.contains(&format!("holdfast_invalidate_{count}\n")))
    });
    for _ in 0..100 {
        assert_eq!(read(&mut sql), "1", "it is not visible");
    }
    assert!(!commits.is_finished(), "it waits");
    sql.run("SET GLOBAL rpl_semi_sync_master_enabled = OFF");
    commits.join().unwrap();
    shop.settle();
    assert_eq!(read(&mut sql), "2", "the old price is not kept");
    invalidator.kill().judge();
}

/// Without a grace a database that is silent for longer than a lease leaves all servers without one. With one, servers
/// are given leases as before.
#[test]
fn leases_go_on_for_a_grace_while_the_database_is_silent() {
    let scratch = Scratch::new();
    let Some(shop) = shop(&scratch, SETTINGS) else { return };
    let metrics = scratch.path("pool.prom");
    let is_told = || {
        let text = std::fs::read_to_string(&metrics).unwrap_or_default();
        text.lines().any(|line| {
            let count = line.strip_prefix("holdfast_invalidate_troubles ");
            count.is_some_and(|count| count != "0")
        })
    };
    let options =
        LookasideOptions { server_lease: Some("main".into()), ..LookasideOptions::default() };
    let clients = CacheClientOptions::default();
    let mut cache = Lookaside::new(&shop.servers(), clients, options).unwrap();
    let keys: Vec<String> = (0..20).map(|id| format!("item:{id}")).collect();
    for grace in ["0", "3600"] {
        let mut command = Invalidator::command(&shop, &shop.database.url());
        command.args(["--server-lease", "6", "--server-lease-grace", grace]);
        command.arg("--metrics").arg(&metrics);
        let invalidator = Invalidator::start_by(command);
        shop.settle();
        hits(&mut cache, &mut shop.database.sql(), "1");
        until("nothing is waited for", || !is_told());
        signal(shop.database.pid(), "STOP");
        until("it is told", is_told);
        if grace == "0" {
            until("all servers are left out", || {
                let before = cache.counts().left_out;
                cache
                    .get_many(&keys, |numbers| Ok(vec![Some(b"1".to_vec()); numbers.len()]))
                    .unwrap();
                cache.counts().left_out == before + 20
            });
        } else {
            // When it was given.
            let mut client = shop.client();
            let mut lease = || client.get(b"holdfast:invalidate:main").unwrap().unwrap_or_default();
            let before = lease();
            until("a lease is given again", || lease() > before);
            let hits = cache.counts().hits;
            cache.get_many(&keys, |_| panic!("nothing is loaded")).unwrap();
            assert_eq!(cache.counts().hits, hits + 20);
        }
        signal(shop.database.pid(), "CONT");
        invalidator.kill().judge();
    }
}
