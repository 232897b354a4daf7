//! Tablets that are split, from outside: by command, and while clients write and the node is killed.

use crate::cluster::Dev;
use crate::common::{Node, Scratch, attempts};
use crate::tables::{beside_writers, judge};
use holdfast_base::random::Random;
use holdfast_client::{Client, TableWrite};
use holdfast_wire::table::{Expect, Level, Record, TableInfo};
use std::collections::BTreeMap;

#[test]
fn a_tablet_is_split_by_command() {
    let scratch = Scratch::new();
    let data = scratch.path("data");
    let node = Node::start(&data);
    let t = |node: &Node, words: &[&str]| node.run(&[&["table"], words].concat());
    t(&node, &["create", "users"]).ok();
    for number in 0..30 {
        t(&node, &["put", "users", &format!("k{number:02}"), "v"]).ok();
    }
    let before = t(&node, &["scan", "users"]).ok();
    let told = t(&node, &["split", "users", "--tablet", "0"]).ok();
    assert!(told.contains("tablet 0: hashes 00000000 to 7fffffff"), "{told}");
    assert!(told.contains("tablet 1: hashes 80000000 to ffffffff"), "{told}");
    t(&node, &["split", "users", "--tablet", "1", "--at", "C0000000"]).ok();
    t(&node, &["split", "users", "--tablet", "1", "--at", "c0000000"]).ok();
    t(&node, &["split", "users", "--tablet", "0", "--at", "c0000001"]).refused(&[
        "users",
        "00000000 to 7fffffff",
        "c0000001",
    ]);
    // There is a border, and not of that tablet.
    t(&node, &["split", "users", "--tablet", "99", "--at", "80000000"]).refused(&["0 to 2"]);
    t(&node, &["split", "users", "--tablet", "1", "--at", "80000000"]).refused(&[
        "users",
        "80000000 to bfffffff",
        "without any",
    ]);
    t(&node, &["split", "users", "--tablet", "3"]).refused(&["users", "tablet 3", "3 of them"]);
    t(&node, &["split", "nobodys", "--tablet", "0"]).refused(&["nobodys", "table create"]);
    t(&node, &["create", "users"]).ok();
    t(&node, &["create", "users", "--tablets", "3"]).refused(&["timeline and of 1 tablets"]);
    assert_eq!(t(&node, &["scan", "users"]).ok(), before);
    let described = node.json(&["table", "describe", "users"]);
    let tablets = described[0]["tablets"].as_array().unwrap();
    let of = |name: &str| tablets.iter().map(|t| t[name].as_str().unwrap()).collect::<Vec<_>>();
    assert_eq!(of("first_hash"), ["00000000", "80000000", "c0000000"]);
    assert_eq!(of("last_hash"), ["7fffffff", "bfffffff", "ffffffff"]);
    node.kill();
    let node = Node::start(&data);
    assert_eq!(t(&node, &["scan", "users"]).ok(), before);
    assert_eq!(t(&node, &["put", "users", "k00", "w"]).ok(), "version 2\n");
    t(&node, &["drop", "users"]).ok();
    t(&node, &["create", "users", "--tablets", "2"]).ok();
    assert_eq!(t(&node, &["scan", "users"]).ok(), "");
    // Where it begins there is a border: it was said to be split, and was as before.
    t(&node, &["split", "users", "--tablet", "1", "--at", "ffffffff"]).ok();
    t(&node, &["split", "users", "--tablet", "2"]).refused(&["tablet 2", "ffffffff alone"]);
}

/// What leaves is in memory twice for a while: where there is no room for that nothing begins.
#[test]
fn a_split_without_room_is_refused_and_one_behind_it_is_not() {
    let scratch = Scratch::new();
    let node = Node::start_with(&scratch.path("data"), "tables_memory = \"1M\"\n");
    node.run(&["table", "create", "t"]).ok();
    let mut client = node.client();
    let value = holdfast_base::random::bytes(1, 10 << 10);
    let row = |number: u64| TableWrite {
        key: format!("k{number}").into_bytes(),
        value: Some(value.clone()),
        expect: Expect::Any,
    };
    client.table("t").write(&(0..90).map(row).collect::<Vec<_>>()).unwrap();
    node.run(&["table", "split", "t", "--tablet", "0"]).refused(&["`t`", "twice", "tables_memory"]);
    let info = client.table_describe("t").unwrap();
    assert!(info.tablets.len() == 1 && info.tablets[0].split.is_none(), "{info:?}");
    let delete = |row: TableWrite| TableWrite { value: None, ..row };
    client.table("t").write(&(0..45).map(row).map(delete).collect::<Vec<_>>()).unwrap();
    node.run(&["table", "split", "t", "--tablet", "0"]).ok();
    assert_eq!(node.json(&["table", "scan", "t"]).len(), 45);
}

/// The node that keeps the log splits it, whoever is asked, and the others follow both halves.
#[test]
fn three_nodes_have_both_halves_whoever_dies() {
    let scratch = Scratch::new();
    let dev = Dev::start(&scratch.path("dev"), 3);
    dev.run(2, &["table", "create", "t", "--mode", "strong"]).ok();
    let keys: Vec<String> = (0..20).map(|number| format!("k{number}")).collect();
    let put = |key: &String| TableWrite {
        key: key.clone().into_bytes(),
        value: Some(key.clone().into_bytes()),
        expect: Expect::Absent,
    };
    let all: Vec<TableWrite> = keys.iter().map(put).collect();
    dev.client(3, &[1, 2, 3]).table("t").write(&all).unwrap();
    let told = dev.run(3, &["table", "split", "t", "--tablet", "0"]).ok();
    assert!(told.contains("tablet 1: hashes 80000000"), "{told}");
    dev.order(&["kill", "1", "--hard"]).ok();
    dev.order(&["start", "1"]).ok();
    for node in 1..=3 {
        let mut client = dev.client(node, &[1, 2, 3]);
        for key in &keys {
            // Until the others have found out that it is back.
            let mut get = || client.table("t").get(key.as_bytes(), Level::Strong).ok();
            let record = attempts().find_map(|()| get()).unwrap().unwrap();
            assert_eq!((record.version, record.value), (1, key.clone().into_bytes()));
        }
    }
}

/// Several parts of a half lie between two kills.
fn fill(client: &mut Client) {
    let value = |number: u64| holdfast_base::random::bytes(number, 2000);
    let row = |number: u64| TableWrite {
        key: format!("much {number}").into_bytes(),
        value: Some(value(number)),
        expect: Expect::Any,
    };
    client.table("t").write(&(0..2000).map(row).collect::<Vec<_>>()).unwrap();
}

/// Where the node is killed: before the split is said to have begun, or while it is under way, or about its end.
fn is_at(info: &TableInfo, moment: u64, tablets: usize) -> bool {
    match moment {
        0 => true,
        1 => info.tablets[0].split.is_some() || info.tablets.len() > tablets,
        _ => info.tablets.len() > tablets,
    }
}

#[test]
fn what_was_acknowledged_is_there_once_whenever_a_split_is_killed() {
    let scratch = Scratch::new();
    let data = scratch.path("data");
    let mut random = Random::new(23);
    let mut node = Some(Node::start(&data));
    let first = node.as_ref().unwrap();
    first.run(&["table", "create", "t"]).ok();
    fill(&mut first.client());
    let clients = (0..3).map(|_| first.client()).collect();
    let all = beside_writers(clients, || {
        for round in 0..5 {
            let running = node.take().unwrap();
            let mut splits = running.client();
            let tablets = splits.table_describe("t").unwrap().tablets.len();
            let at = u32::MAX >> (round + 1);
            // Nobody hears what came of it, perhaps.
            let said = std::thread::spawn(move || splits.table_split("t", 0, Some(at)).is_ok());
            let (mut client, moment) = (running.client(), random.below(3));
            let looks = |client: &mut Client| client.table_describe("t").unwrap();
            let came = attempts().any(|()| is_at(&looks(&mut client), moment, tablets));
            assert!(came, "round {round}, {moment}");
            running.kill();
            node = Some(Node::start(&data));
            let mut client = node.as_ref().unwrap().client();
            said.join().unwrap();
            let info = client.table_split("t", 0, Some(at)).unwrap();
            assert_eq!(info.tablets.len(), tablets + 1, "round {round}, {moment}");
        }
    });
    let mut client = node.as_ref().unwrap().client();
    let keys = all.iter().flat_map(BTreeMap::keys).cloned();
    let read = |key: String| (client.table("t").get(key.as_bytes(), Level::Any).unwrap(), key);
    let found: BTreeMap<String, Option<Record>> = keys.map(read).map(|(r, key)| (key, r)).collect();
    judge(&all, |key| found[key].clone());
    for number in [0, 999, 1999] {
        let key = format!("much {number}");
        let record = client.table("t").get(key.as_bytes(), Level::Latest).unwrap().unwrap();
        assert_eq!(record.value, holdfast_base::random::bytes(number, 2000));
    }
}

/// Splits of drawn tablets, one behind another, under writers, while each of three nodes is killed in turn, the one that
/// keeps the log among them: what any node says in the end is what was acknowledged.
#[test]
fn three_nodes_say_what_was_acknowledged_however_often_it_is_split_and_they_die() {
    const ROUNDS: u16 = 9;
    let scratch = Scratch::new();
    let dev = Dev::start(&scratch.path("dev"), 3);
    dev.run(1, &["table", "create", "t"]).ok();
    let all_nodes = [1, 2, 3];
    fill(&mut dev.client(1, &all_nodes));
    let clients = all_nodes.map(|node| dev.patient_client(node, &all_nodes)).into();
    let mut random = Random::new(24);
    let all = beside_writers(clients, || {
        for round in 0..ROUNDS {
            let (dies, asked) = (1 + round % 3, 1 + (round + 1) % 3);
            let mut client = dev.patient_client(asked, &all_nodes);
            let info = client.table_describe("t").unwrap();
            let tablet = random.below(info.tablets.len() as u64) as u16;
            let of = &info.tablets[usize::from(tablet)];
            let at = of.first + 1 + (random.next() as u32) % (of.last - of.first);
            let said =
                std::thread::spawn(move || client.table_split("t", tablet, Some(at)).is_ok());
            dev.order(&["kill", &dies.to_string(), "--hard"]).ok();
            dev.order(&["start", &dies.to_string()]).ok();
            said.join().unwrap();
            let mut client = dev.patient_client(dies, &all_nodes);
            let mut split = || client.table_split("t", tablet, Some(at)).ok();
            let told = attempts().find_map(|()| split()).expect("it is split in the end");
            assert_eq!(told.tablets.len(), info.tablets.len() + 1, "round {round}");
        }
    });
    let mut found = Vec::new();
    for node in all_nodes {
        let told = dev.run(node, &["--json", "table", "scan", "t"]).ok();
        assert_eq!(told.lines().filter(|line| line.contains("\"much ")).count(), 2000);
        found.push(told);
    }
    assert!(found.windows(2).all(|two| two[0] == two[1]), "nodes say different things");
    let mut client = dev.patient_client(1, &all_nodes);
    let keys = all.iter().flat_map(BTreeMap::keys).cloned();
    let read = |key: String| (client.table("t").get(key.as_bytes(), Level::Any).unwrap(), key);
    let records: BTreeMap<String, Option<Record>> = keys.map(read).map(|(r, k)| (k, r)).collect();
    judge(&all, |key| records[key].clone());
}
