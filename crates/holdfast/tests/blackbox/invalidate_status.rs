//! What is said of an invalidator and its pool: bytes that are lacking, keys a minute, and which change most.

use super::common::{Scratch, until};
use super::invalidate::{replica_of, shop};
use super::mariadb::{SETTINGS, Sql};
use super::shop::{Invalidator, Stand};
use serde_json::Value;

fn status(shop: &Stand, from: &str) -> Vec<Value> {
    shop.node.json(&["invalidate", "status", "--to", "main", "--from", from])
}

/// Where the database's log ends; it stays in one file.
fn end(sql: &mut Sql) -> u64 {
    let said = sql.ask::<(String, u64, String, String)>("SHOW MASTER STATUS");
    let (file, offset, ..) = said.unwrap().remove(0);
    assert!(file.ends_with(".000001"), "{file}");
    offset
}

#[test]
fn status_names_the_bytes_that_lack_and_the_keys_that_change_most() {
    let scratch = Scratch::new();
    let Some(shop) = shop(&scratch, SETTINGS) else { return };
    let (invalidator, mut sql, url) = (shop.start(), shop.database.sql(), shop.database.url());
    shop.settle();
    for _ in 0..10 {
        sql.run("UPDATE shop.items SET price = price + 1 WHERE id = 7");
        // One entry each: of changes that are visible at once, a key is in one.
        let at = sql.ask::<String>("SELECT @@GLOBAL.gtid_binlog_pos").unwrap().remove(0);
        until("it is in the topic", || shop.status().is_some_and(|(position, _)| position == at));
    }
    sql.run("UPDATE shop.items SET price = price + 1 WHERE id BETWEEN 100 AND 299");
    shop.settle();
    // What all servers have is no more needed, and stays all the same.
    let lines = status(&shop, &url);
    let hottest = |of: &str| -> Vec<(String, u64)> {
        let hot = lines[0][of].as_array().unwrap().iter();
        hot.map(|hot| (hot["name"].as_str().unwrap().to_owned(), hot["count"].as_u64().unwrap()))
            .collect()
    };
    let patterns = hottest("hottest_patterns");
    assert!(patterns.contains(&("item:#".to_owned(), 210)), "{patterns:?}");
    assert!(patterns.contains(&("name:n#".to_owned(), 210)), "{patterns:?}");
    let mut keys = hottest("hottest_keys");
    assert_eq!(keys.len(), 10);
    keys.truncate(2);
    keys.sort();
    assert_eq!(keys, [("item:7".to_owned(), 10), ("name:n7".to_owned(), 10)]);
    assert_eq!(lines[0]["counted"], 420);
    let (lately, seconds) = (lines[0]["keys"].as_u64().unwrap(), &lines[0]["seconds"]);
    assert!(lately <= 420 && (1..=60).contains(&seconds.as_u64().unwrap()), "{}", lines[0]);
    for line in &lines[1..] {
        assert_eq!(line["behind_bytes"], 0, "{line}");
    }
    assert_eq!(lines.len(), 4, "the pool, two servers, and the log");

    invalidator.kill().judge();
    let before = end(&mut sql);
    for _ in 0..3 {
        sql.run("UPDATE shop.items SET price = price + 1 WHERE id = 8");
    }
    let log = status(&shop, &url).pop().unwrap();
    assert_eq!(log["behind_bytes"], end(&mut sql) - before, "{log}");
    assert_eq!(log["is_cut"], false);
}

/// While the replica that is read does not show a change, the file of metrics says how much of the log that is.
#[test]
fn the_metrics_name_the_bytes_of_the_log_that_the_topic_lacks() {
    let scratch = Scratch::new();
    let Some(shop) = shop(&scratch, SETTINGS) else { return };
    let replica = replica_of(&shop, &scratch);
    let metrics = scratch.path("pool.prom");
    let mut command = Invalidator::command(&shop, &shop.database.url());
    command.args(["--reads", &replica.url()]).arg("--metrics").arg(&metrics);
    let invalidator = Invalidator::start_by(command);
    let (mut sql, mut region) = (shop.database.sql(), replica.sql());
    sql.run("UPDATE shop.items SET price = 2 WHERE id = 1");
    shop.settle();
    let says = |bytes: u64| {
        let line = format!("holdfast_invalidate_lag_bytes {bytes}");
        until(&line, || {
            let text = std::fs::read_to_string(&metrics).unwrap_or_default();
            text.lines().any(|of| of == line)
        });
    };
    says(0);
    region.run("STOP SLAVE SQL_THREAD");
    let before = end(&mut sql);
    (0..5).for_each(|id| sql.run(&format!("UPDATE shop.items SET price = 3 WHERE id = {id}")));
    says(end(&mut sql) - before);
    region.run("START SLAVE SQL_THREAD");
    says(0);
    invalidator.kill().judge();
}

/// What status says of PostgreSQL is what the server itself says of the topic's position, and of its slot's.
#[test]
fn status_names_the_bytes_of_postgresql_that_the_server_counts() {
    let scratch = Scratch::new();
    let Some(shop) = super::invalidate_postgres::shop(&scratch, super::postgres::SETTINGS) else {
        return;
    };
    let invalidator = shop.start();
    let (mut sql, url) = (shop.database.sql(), shop.database.url());
    shop.settle();
    invalidator.kill().judge();
    for _ in 0..3 {
        sql.run("UPDATE shop.items SET price = price + 1");
    }
    let (position, _) = shop.status().unwrap();
    let at = position.rsplit('-').next().unwrap().to_owned();
    let mut counted = || -> (u64, u64) {
        let of = |text: String| text.parse().unwrap();
        let lacks = format!("SELECT pg_wal_lsn_diff(pg_current_wal_flush_lsn(), '{at}')::bigint");
        let kept = "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint \
                    FROM pg_replication_slots WHERE slot_name = 'holdfast_main'";
        (of(sql.one(&lacks)), of(sql.one(kept)))
    };
    // A server writes something of its own now and then.
    until("nothing is written between two questions", || {
        let before = counted();
        let slot = shop.node.json(&["invalidate", "status", "--to", "main", "--from", &url]).pop();
        let said = |name: &str| slot.as_ref().unwrap()[name].as_u64().unwrap();
        let (told, after) = ((said("behind_bytes"), said("retained_bytes")), counted());
        assert!(before.0 > 100_000 && (before.0..=after.0).contains(&told.0), "{told:?}");
        assert!((before.1..=after.1).contains(&told.1), "{told:?}: {before:?} {after:?}");
        before == after && told == before
    });
}
