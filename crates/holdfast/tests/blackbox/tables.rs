//! Tables from outside: commands and clients, a node that is killed while they write, three nodes, and what
//! people do wrong.

use crate::cluster::Dev;
use crate::common::{Node, Scratch, attempts, bytes};
use holdfast_client::{Client, TableWrite};
use holdfast_wire::table::{Expect, Level, Record, Written};
use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

fn put(key: &str, value: &[u8], expect: Expect) -> TableWrite {
    TableWrite { key: key.as_bytes().to_vec(), value: Some(value.to_vec()), expect }
}

#[test]
fn records_are_written_read_and_scanned_by_command() {
    let scratch = Scratch::new();
    let node = Node::start(&scratch.path("data"));
    let t = |words: &[&str]| node.run(&[&["table"], words].concat());
    t(&["create", "users", "--tablets", "3"]).ok();
    t(&["create", "users", "--tablets", "3"]).ok();
    t(&["create", "users", "--mode", "strong"]).refused(&["users", "timeline and of 3 tablets"]);
    // It was out of use for good: the attempt had added tablets to it.
    t(&["create", "users", "--tablets", "5"]).refused(&["users", "timeline and of 3 tablets"]);
    t(&["create", "users", "--tablets", "2"]).refused(&["users", "timeline and of 3 tablets"]);
    assert_eq!(node.json(&["table", "ls"]).len(), 1);
    assert_eq!(t(&["put", "users", "alice", "one"]).ok(), "version 1\n");
    assert_eq!(t(&["put", "users", "alice", "two", "--if-version", "1"]).ok(), "version 2\n");
    t(&["put", "users", "alice", "3", "--if-version", "1"]).refused(&["alice", "version 2"]);
    t(&["put", "users", "alice", "3", "--if-absent"]).refused(&["alice", "version 2"]);
    assert_eq!(t(&["get", "users", "alice"]).ok(), "two");
    for level in ["--latest", "--strong", "--at-least=2"] {
        assert_eq!(t(&["get", "users", "alice", level]).ok(), "two", "{level}");
    }
    t(&["get", "users", "alice", "--at-least", "3"]).refused(&["version 3", "has version 2"]);
    t(&["get", "users", "bob"]).refused(&["bob"]);
    t(&["delete", "users", "alice", "--if-version", "1"]).refused(&["version 2"]);
    t(&["delete", "users", "alice"]).ok();
    t(&["delete", "users", "alice"]).refused(&["alice"]);
    t(&["get", "users", "alice"]).refused(&["alice"]);

    for number in 0..40 {
        t(&["put", "users", &format!("k{number:02}"), &format!("line\n{number}")]).ok();
    }
    let scanned = t(&["scan", "users", "--from", "k05", "--until", "k15"]).ok();
    let keys: Vec<&str> = scanned.lines().map(|line| line.split('\t').next().unwrap()).collect();
    let wanted: Vec<String> = (5..15).map(|number| format!("k{number:02}")).collect();
    assert_eq!(keys, wanted, "{scanned}");
    assert!(scanned.lines().next().unwrap().ends_with("line\\n5"), "{scanned}");
    let last = t(&["scan", "users", "--prefix", "k", "--backwards", "--limit", "2"]).ok();
    assert!(last.starts_with("k39\t") && last.lines().count() == 2, "{last}");
    let described = node.json(&["table", "describe", "users"]);
    assert_eq!((&described[0]["records"], &described[0]["region"]), (&40.into(), &0.into()));

    let large = scratch.path("large");
    fs::write(&large, bytes(1, 900 << 10)).unwrap();
    let large = large.to_str().unwrap();
    t(&["put", "users", "large", "--file", large]).ok();
    assert!(t(&["get", "users", "large"]).out == fs::read(large).unwrap());
    fs::write(large, bytes(1, (900 << 10) + 1)).unwrap();
    t(&["put", "users", "large", "--file", large]).refused(&["921601 bytes", "921600"]);
    t(&["put", "users", "", "x"]).refused(&["key is empty"]);
    t(&["put", "users", &"k".repeat(6145), "x"]).refused(&["6145 bytes"]);
    t(&["get", "nobodys", "x"]).refused(&["nobodys", "table create"]);
    t(&["create", "../x"]).refused(&["../x"]);
    t(&["create", "many", "--tablets", "65"]).refused(&["65 tablets", "1 to 64"]);
    // Its topics are the tables' own.
    node.run(&["log", "append", "table/users/0", "x"]).refused(&["table/users/0"]);
    node.run(&["log", "trim", "table/users/0", "2"]).refused(&["table/users/0"]);
}

/// What a scan printed is put into another table, bytes that are no text and records of all sizes with it; a wrong line
/// leaves what is in front of it, and is named.
#[test]
fn a_scan_is_a_copy_that_is_loaded_again() {
    let scratch = Scratch::new();
    let node = Node::start(&scratch.path("data"));
    let t = |words: &[&str]| node.run(&[&["table"], words].concat());
    t(&["create", "from"]).ok();
    t(&["create", "to", "--tablets", "3"]).ok();
    let mut client = node.client();
    let mut table = client.table("from");
    let record = |at: usize| {
        let key = [&b"k\xff\0\n\""[..at % 6], at.to_string().as_bytes()].concat();
        TableWrite { key, value: Some(bytes(at as u64, at * at % 3000)), expect: Expect::Any }
    };
    let mut wanted: Vec<_> = (0..2500).map(record).collect();
    wanted.push(TableWrite { value: Some(bytes(1, 900 << 10)), ..record(2500) });
    table.write(&wanted).unwrap();
    let copy = scratch.path("copy");
    fs::write(&copy, node.run(&["--json", "table", "scan", "from"]).ok()).unwrap();
    let copy = copy.to_str().unwrap();
    t(&["put", "to", "k0", "older"]).ok();
    t(&["load", "to", copy]).ok();
    let scan = |client: &mut Client, table: &str| {
        let (mut all, mut from) = (BTreeMap::new(), Some(Vec::new()));
        while let Some(first) = from {
            let page = client.table(table).scan(&first, None, false, 1000).unwrap();
            all.extend(page.found.into_iter().map(|found| (found.key, found.record.value)));
            from = page.next;
        }
        all
    };
    let (from, mut to) = (scan(&mut client, "from"), scan(&mut client, "to"));
    assert_eq!(from.len(), wanted.len());
    to.remove(&b"k0"[..]);
    assert!(from == to, "{} records, and {} of the copy", from.len(), to.len());

    let again = t(&["load", "to", copy, "--if-absent"]).ok();
    assert_eq!(again, "0 records loaded, 2501 were there\n");
    let wrong = scratch.path("wrong");
    fs::write(&wrong, "{\"key\": \"x\", \"value\": \"1\"}\n{\"key\": \"y\"}\n").unwrap();
    let wrong = wrong.to_str().unwrap();
    t(&["load", "to", wrong]).refused(&["wrong", "line 2", "no value"]);
    t(&["load", "to", "/nowhere"]).refused(&["/nowhere"]);
    t(&["load", "nobodys", copy]).refused(&["nobodys", "table create", "lines 1 to"]);
}

#[test]
fn a_group_is_written_by_command_or_not_at_all() {
    let scratch = Scratch::new();
    let node = Node::start(&scratch.path("data"));
    let file = scratch.path("group");
    node.run(&["table", "create", "t"]).ok();
    let write = |lines: &str| {
        fs::write(&file, lines).unwrap();
        node.run(&["table", "write", "t", file.to_str().unwrap()])
    };
    let absent = "{\"key\": \"c\", \"check\": true, \"if_absent\": true}\n";
    // A key may be what no shell can pass.
    let first =
        "{\"key\": \"a\\u0000\\n\", \"value\": \"1\"}\n{\"key\": \"b\", \"value\": \"\\t\"}\n";
    let told = write(&[first, absent].concat()).ok();
    assert_eq!(told, "a\\0\\n: version 1\nb: version 1\nc: looked at, and absent\n");
    let wrong = "{\"key\": \"b\", \"delete\": true, \"if_version\": 2}\n";
    write(&["{\"key\": \"d\", \"value\": \"1\"}\n", wrong].concat()).refused(&[
        "record `b`",
        "version 1",
        "nothing was written",
    ]);
    let deletes = "{\"key\": \"b\", \"delete\": true}\n{\"key\": \"a\\u0000\\n\", \"check\": true, \"if_version\": 1}";
    assert_eq!(write(deletes).ok(), "b: deleted, at version 2\na\\0\\n: looked at, version 1\n");
    assert_eq!(node.json(&["table", "scan", "t"]).len(), 1);
    write("").refused(&["0 records"]);
    write("{\"key\": \"a\"}").refused(&["line 1", "say one of"]);
}

/// It was written, and who was told only of the session would write it once more.
#[test]
fn what_was_written_is_said_where_a_session_cannot_be_kept() {
    let scratch = Scratch::new();
    let node = Node::start(&scratch.path("data"));
    node.run(&["table", "create", "t"]).ok();
    let nowhere = scratch.path("no directory/session");
    let nowhere = nowhere.to_str().unwrap();
    let group = scratch.path("group");
    fs::write(&group, "{\"key\": \"k\", \"value\": \"v\"}").unwrap();
    for (words, said) in [
        (&["put", "t", "k", "v"][..], "version 1\n"),
        (&["write", "t", group.to_str().unwrap()], "k: version 2\n"),
        (&["get", "t", "k"], "v"),
        (&["delete", "t", "k"], "deleted, at version 3\n"),
    ] {
        let told = node.run(&[&["table"], words, &["--session", nowhere]].concat());
        assert_eq!((told.code, String::from_utf8(told.out).unwrap().as_str()), (Some(1), said));
        assert!(told.err.contains("keep the session"), "{}", told.err);
    }
}

/// A table lies in memory: it takes no more of it than the settings say, and goes on when records go.
#[test]
fn a_table_that_has_no_more_room_refuses_and_goes_on() {
    let scratch = Scratch::new();
    let node = Node::start_with(&scratch.path("data"), "tables_memory = \"1M\"\n");
    node.run(&["table", "create", "t"]).ok();
    let mut client = node.client();
    let value = bytes(2, 400 << 10);
    let keys = ["a", "b", "c"];
    for key in keys {
        client.table("t").write(&[put(key, &value, Expect::Any)]).unwrap();
    }
    let full = client.table("t").write(&[put("d", &value, Expect::Any)]).unwrap_err();
    assert!(full.message.contains("tables_memory"), "{full}");
    // Less in its place makes room, too.
    client.table("t").write(&[put("a", b"less", Expect::Any)]).unwrap();
    let delete = TableWrite { key: b"b".to_vec(), value: None, expect: Expect::Any };
    client.table("t").write(&[delete]).unwrap();
    client.table("t").write(&[put("d", &value, Expect::Any)]).unwrap();
    let found =
        client.table("t").get_all(&keys.map(|key| key.as_bytes().to_vec()), Level::Any).unwrap();
    assert_eq!(found.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false, true]);
}

/// Writes until it is told to end: what was acknowledged, by key.
fn writes(mut client: Client, writer: u64, ends: &AtomicBool) -> BTreeMap<String, Vec<u64>> {
    let mut acknowledged: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    let mut table = client.table("t");
    for number in 0u64.. {
        if ends.load(Ordering::Relaxed) {
            break;
        }
        let keys = [format!("own {writer}"), format!("shared {}", number % 5)];
        let writes = keys.each_ref().map(|key| put(key, &number.to_le_bytes(), Expect::Any));
        let Ok(written) = table.write(&writes) else { continue };
        for (key, written) in keys.into_iter().zip(written) {
            let Written::Version { version } = written else { panic!("{written:?}") };
            acknowledged.entry(key).or_default().push(version);
        }
    }
    acknowledged
}

/// What each client was told of what it wrote beside `work`. They end where that fails, too.
pub fn beside_writers(
    clients: Vec<Client>,
    work: impl FnOnce(),
) -> Vec<BTreeMap<String, Vec<u64>>> {
    struct Ends<'a>(&'a AtomicBool);
    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let end = Ends(&ends);
        let write = |(writer, client)| {
            let ends = &ends;
            scope.spawn(move || writes(client, writer, ends))
        };
        let threads: Vec<_> = (0..).zip(clients).map(write).collect();
        work();
        drop(end);
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Each acknowledged write is one version, whatever was repeated; nothing goes.
#[track_caller]
pub fn judge(all: &[BTreeMap<String, Vec<u64>>], read: impl Fn(&str) -> Option<Record>) {
    let mut by_key: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for (key, versions) in all.iter().flatten() {
        assert!(versions.is_sorted_by(|a, b| a < b), "{key}: {versions:?}");
        by_key.entry(key).or_default().extend(versions);
    }
    assert!(by_key.len() > 5, "{by_key:?}");
    for (key, mut versions) in by_key {
        let count = versions.len();
        versions.sort_unstable();
        versions.dedup();
        assert_eq!(versions.len(), count, "{key}: two writes got one version");
        let record = read(key).unwrap_or_else(|| panic!("{key} is not there"));
        assert!(record.version >= *versions.last().unwrap(), "{key}: {record:?}");
    }
}

#[test]
fn what_was_acknowledged_is_there_once_whenever_the_node_is_killed() {
    let scratch = Scratch::new();
    let data = scratch.path("data");
    let mut node = Some(Node::start(&data));
    let first = node.as_ref().unwrap();
    first.run(&["table", "create", "t", "--tablets", "2"]).ok();
    let clients = (0..3).map(|_| first.client()).collect();
    let all = beside_writers(clients, || {
        for round in 0..3 {
            // Some writes lie between two kills.
            let running = node.take().unwrap();
            let mut client = running.client();
            let grew = |client: &mut Client| client.table_describe("t").unwrap().tablets[0].applied;
            let before = grew(&mut client);
            assert!(attempts().any(|()| grew(&mut client) > before + 20), "round {round}");
            running.kill();
            node = Some(Node::start(&data));
        }
    });
    let mut client = node.as_ref().unwrap().client();
    let keys = all.iter().flat_map(BTreeMap::keys).cloned();
    let read = |key: String| (client.table("t").get(key.as_bytes(), Level::Any).unwrap(), key);
    let found: BTreeMap<String, Option<Record>> = keys.map(read).map(|(r, key)| (key, r)).collect();
    judge(&all, |key| found[key].clone());
}

#[test]
fn three_nodes_serve_a_table_whoever_is_asked_and_whoever_dies() {
    let scratch = Scratch::new();
    let dev = Dev::start(&scratch.path("dev"), 3);
    dev.run(2, &["table", "create", "t", "--mode", "strong"]).ok();
    let clients = (1..=3).map(|node| dev.client(node, &[1, 2, 3])).collect();
    let all = beside_writers(clients, || {
        // It keeps the log.
        dev.order(&["kill", "1", "--hard"]).ok();
        dev.order(&["start", "1"]).ok();
        dev.order(&["kill", "3", "--hard"]).ok();
        dev.order(&["start", "3"]).ok();
        let mut client = dev.client(2, &[1, 2, 3]);
        let grew =
            |client: &mut Client| client.table_describe("t").map_or(0, |t| t.tablets[0].applied);
        let before = grew(&mut client);
        assert!(attempts().any(|()| grew(&mut client) > before + 50), "nobody writes any more");
    });
    for node in 1..=3 {
        judge(&all, |key| {
            let mut client = dev.client(node, &[]);
            client.table("t").get(key.as_bytes(), Level::Strong).unwrap()
        });
    }
}
