//! Global indexes that come and go while their table is used, over a node's tables: whatever is written meanwhile,
//! whenever the sweeper is another one, an index that is there has the rows that a fresh fold of the items gives.

#[path = "support/memory.rs"]
mod memory;
#[path = "support/node.rs"]
mod node;

use holdfast_base::random::Random;
use holdfast_dynamo::api::Api;
use holdfast_dynamo::form;
use holdfast_dynamo::index::{Index, Status};
use holdfast_dynamo::rows::{Rows, Span};
use holdfast_dynamo::table::Table;
use holdfast_dynamo::tables::Tables;
use holdfast_dynamo::value::Item;
use holdfast_env::trial::Trial;
use holdfast_env::{Budget, HoldMutex, Rng, SeededRng, runtime, tasks};
use memory::{Still, call};
use node::World;
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

const TABLE: &str = "used";
/// Of the store's clock.
const NOW_S: u64 = 1_700_000_000;

/// A node's tables, and operations over them; a sweeper of its own, which remembers nothing of the one before.
struct Used {
    rows: Arc<Tables>,
    api: Api,
}

impl Used {
    fn new(world: &World, seed: u64) -> Used {
        let rows = Tables::new(world.face.clone(), Arc::new(SeededRng::new(seed)));
        let machine = (Arc::new(Still) as _, Arc::new(SeededRng::new(seed + 1000)) as _);
        let api = Api::new(rows.clone(), machine, Budget::new(1 << 30));
        Used { rows, api }
    }

    fn done(&self, operation: &str, body: Json) -> Json {
        let told = call(&self.api, operation, body.clone());
        told.unwrap_or_else(|e| panic!("{operation} {body}: {e:?}"))
    }

    fn sweep(&self) {
        runtime::block_on(self.rows.sweep(NOW_S)).unwrap().unwrap();
    }

    fn table(&self) -> Table {
        let found = runtime::block_on(self.rows.table(TABLE, true)).unwrap().unwrap();
        Table::from_bytes(&found.unwrap().bytes).unwrap()
    }

    /// All rows of an index, or of the table.
    fn rows_of(&self, index: Option<u8>) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let (to, backwards, rows_max, bytes_max) = (None, false, 1000, usize::MAX);
        let span = Span { index, from: Vec::new(), to, backwards, rows_max, bytes_max };
        let found = runtime::block_on(self.rows.scan(TABLE, &span, true)).unwrap().unwrap();
        assert!(found.len() < 1000);
        found.into_iter().collect()
    }

    fn items(&self) -> Vec<Item> {
        self.rows_of(None).values().map(|bytes| form::from_bytes(bytes).unwrap()).collect()
    }

    fn status(&self, name: &str) -> Option<Status> {
        self.table().index(name).map(Index::status)
    }

    /// Each index that is there is a fresh fold of the items.
    fn check(&self) {
        let (table, items) = (self.table(), self.items());
        for index in table.indexes.iter().filter(|index| index.status() == Status::Active) {
            let fresh = items.iter().filter_map(|item| {
                Some((index.key(&table, item)?, form::to_bytes(&index.part(&table, item))))
            });
            assert_eq!(self.rows_of(Some(index.number)), fresh.collect(), "{}", index.name);
        }
    }
}

/// What somebody does while a sweeper has decided on a group, and has not sent it yet: each group's number is drawn.
#[derive(Default)]
struct Meanwhile(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Rng for Meanwhile {
    fn next_u64(&self) -> u64 {
        if let Some(done) = self.0.held().take() {
            tasks::spawn("meanwhile", done).unwrap().join();
        }
        holdfast_env::RealRng.next_u64()
    }
}

/// A sweep, in front of whose first group another node does something.
fn sweep_while(world: &World, what: impl FnOnce(Used) + Send + 'static) {
    let other = Used::new(world, 77);
    let meanwhile = Arc::new(Meanwhile::default());
    *meanwhile.0.held() = Some(Box::new(move || what(other)));
    let sweeper = Tables::new(world.face.clone(), meanwhile.clone());
    runtime::block_on(sweeper.sweep(NOW_S)).unwrap().unwrap();
    assert!(meanwhile.0.held().is_none(), "the sweep wrote nothing");
}

/// A table with one item, in which times may be over.
fn one_item(world: &World, time_s: u64) -> Used {
    let used = Used::new(world, 1);
    used.done("CreateTable", definition());
    let ttl = json!({"AttributeName": "t", "Enabled": true});
    used.done("UpdateTimeToLive", json!({"TableName": TABLE, "TimeToLiveSpecification": ttl}));
    let time = json!({"N": time_s.to_string()});
    let item = json!({"p": {"S": "x"}, "s": {"N": "1"}, "g": {"S": "a"}, "t": time});
    used.done("PutItem", json!({"TableName": TABLE, "Item": item}));
    used
}

fn attribute(name: &str, kind: &str) -> Json {
    json!({"AttributeName": name, "AttributeType": kind})
}

/// An index by `g` and, of the second kind, `h`.
fn create(name: &str, second: bool) -> Json {
    let mut schema = vec![json!({"AttributeName": "g", "KeyType": "HASH"})];
    let mut kinds = vec![attribute("g", "S")];
    let mut projection = json!({"ProjectionType": "ALL"});
    if second {
        schema.push(json!({"AttributeName": "h", "KeyType": "RANGE"}));
        kinds.push(attribute("h", "N"));
        projection = json!({"ProjectionType": "INCLUDE", "NonKeyAttributes": ["x"]});
    }
    json!({
        "TableName": TABLE, "AttributeDefinitions": kinds, "GlobalSecondaryIndexUpdates": [
            {"Create": {"IndexName": name, "KeySchema": schema, "Projection": projection}}
        ]
    })
}

fn delete(name: &str) -> Json {
    json!({
        "TableName": TABLE, "GlobalSecondaryIndexUpdates": [{"Delete": {"IndexName": name}}]
    })
}

fn definition() -> Json {
    json!({
        "TableName": TABLE, "BillingMode": "PAY_PER_REQUEST",
        "KeySchema": [
            {"AttributeName": "p", "KeyType": "HASH"}, {"AttributeName": "s", "KeyType": "RANGE"}
        ],
        "AttributeDefinitions": [attribute("p", "S"), attribute("s", "N")]
    })
}

fn key(random: &mut Random) -> Json {
    let (p, s) = (["x", "y", "z"][random.below(3) as usize], random.below(14));
    json!({"p": {"S": p}, "s": {"N": s.to_string()}})
}

/// An item; one in a few has an attribute that is no key of an index, or a time that is over.
fn item(random: &mut Random) -> Json {
    let mut item = key(random);
    match random.below(8) {
        0 => item["g"] = json!({"N": "1"}),
        1 => {}
        some => item["g"] = json!({"S": if some % 2 == 0 { "a" } else { "a\0" }}),
    }
    match random.below(8) {
        0 => item["h"] = json!({"S": "1"}),
        1 => {}
        _ => item["h"] = json!({"N": random.below(3).to_string()}),
    }
    for name in ["x", "y"] {
        item[name] = json!({"N": random.below(4).to_string()});
    }
    if random.below(6) == 0 {
        item["t"] = json!({"N": (NOW_S - 1).to_string()});
    }
    item
}

fn write(random: &mut Random) -> (&'static str, Json) {
    match random.below(8) {
        0..=2 => ("PutItem", json!({"TableName": TABLE, "Item": item(random)})),
        3 | 4 => {
            let update = ["SET g = :v", "REMOVE g", "SET x = :v"][random.below(3) as usize];
            let mut body =
                json!({"TableName": TABLE, "Key": key(random), "UpdateExpression": update});
            if update.contains(":v") {
                let value = ["a", "c"][random.below(2) as usize];
                body["ExpressionAttributeValues"] = json!({":v": {"S": value}});
            }
            ("UpdateItem", body)
        }
        5 => ("DeleteItem", json!({"TableName": TABLE, "Key": key(random)})),
        6 => {
            let list = json!([
                {"PutRequest": {"Item": item(random)}}, {"DeleteRequest": {"Key": key(random)}}
            ]);
            ("BatchWriteItem", json!({"RequestItems": {TABLE: list}}))
        }
        _ => {
            let list = json!([
                {"Put": {"TableName": TABLE, "Item": item(random)}},
                {"Delete": {"TableName": TABLE, "Key": key(random)}}
            ]);
            ("TransactWriteItems", json!({"TransactItems": list}))
        }
    }
}

/// Writes and sweeps, and starts of others in the sweeper's place, until no index comes or goes; how many writes were
/// done, and how many refused, is counted.
fn settle(world: &World, used: &mut Used, random: &mut Random, counts: &mut (u32, u32)) {
    while used.table().indexes.iter().any(|index| index.status() != Status::Active) {
        match random.below(6) {
            0 | 1 => used.sweep(),
            2 if random.below(3) == 0 => *used = Used::new(world, random.next()),
            _ => {
                let (operation, body) = write(random);
                match call(&used.api, operation, body) {
                    Ok(_) => counts.0 += 1,
                    Err(_) => counts.1 += 1,
                }
            }
        }
    }
}

#[test]
fn an_index_that_is_made_under_writes_is_a_fresh_fold_of_the_items() {
    let mut counts = (0, 0);
    for seed in 1..=6 {
        let _entered = Trial::drawn(seed).enter();
        let world = World::new();
        let mut used = Used::new(&world, seed);
        let mut random = Random::new(seed);
        used.done("CreateTable", definition());
        let ttl = json!({"AttributeName": "t", "Enabled": true});
        used.done("UpdateTimeToLive", json!({"TableName": TABLE, "TimeToLiveSpecification": ttl}));
        for _ in 0..60 {
            used.done("PutItem", json!({"TableName": TABLE, "Item": item(&mut random)}));
        }
        for round in 0..8u64 {
            let name = format!("by-{round}");
            used.done("UpdateTable", create(&name, round % 2 == 1));
            // One goes before it is there.
            let is_given_up = random.below(4) == 0;
            if is_given_up {
                used.sweep();
                used.done("UpdateTable", delete(&name));
            }
            settle(&world, &mut used, &mut random, &mut counts);
            used.check();
            assert_eq!(used.status(&name).is_none(), is_given_up);
            if round > 2 && !is_given_up {
                used.done("UpdateTable", delete(&name));
                settle(&world, &mut used, &mut random, &mut counts);
                used.check();
            }
        }
    }
    let (written, refused) = counts;
    assert!(written > 200 && refused > 20, "{written} written, {refused} refused");
}

/// How far an index is lies beside its rows: whoever goes on begins nothing anew, and the index is shown once it is
/// whole.
#[test]
fn who_is_killed_while_an_index_is_made_goes_on_where_it_was() {
    let _entered = Trial::new()
        .with(&holdfast_dynamo::tables::BACKFILL_PAGES, 1)
        .with(&holdfast_dynamo::tables::BACKFILL_ITEMS, 10)
        .enter();
    let world = World::new();
    let used = Used::new(&world, 1);
    used.done("CreateTable", definition());
    for s in 0..30 {
        let item = json!({"p": {"S": "x"}, "s": {"N": s.to_string()}, "g": {"S": "a"}});
        used.done("PutItem", json!({"TableName": TABLE, "Item": item}));
    }
    used.done("UpdateTable", create("by-g", false));
    let told = used.done("DescribeTable", json!({"TableName": TABLE}));
    let told = &told["Table"]["GlobalSecondaryIndexes"][0];
    assert_eq!((&told["IndexStatus"], &told["Backfilling"]), (&json!("CREATING"), &json!(true)));
    used.sweep();
    let number = used.table().index("by-g").unwrap().number;
    // Ten rows, and the place.
    assert_eq!(used.rows_of(Some(number)).len(), 11);
    let query = json!({
        "TableName": TABLE, "IndexName": "by-g", "KeyConditionExpression": "g = :g",
        "ExpressionAttributeValues": {":g": {"S": "a"}}
    });
    let fault = call(&used.api, "Query", query.clone()).unwrap_err();
    assert_eq!(
        fault.message, "Cannot read from backfilling global secondary index: by-g",
        "an index is shown once it is whole"
    );
    // An item that has its row already goes without being looked at again: whoever began anew would make it anew.
    let used = Used::new(&world, 2);
    for _ in 0..2 {
        used.sweep();
    }
    assert_eq!(used.rows_of(Some(number)).len(), 31);
    assert_eq!(used.status("by-g"), Some(Status::Creating));
    used.sweep();
    assert_eq!(used.status("by-g"), Some(Status::Active));
    used.check();
    let answer = used.done("Query", query);
    assert_eq!(answer["Count"], 30);
    let told = used.done("DescribeTable", json!({"TableName": TABLE}));
    let told = &told["Table"]["GlobalSecondaryIndexes"][0];
    assert_eq!((&told["IndexStatus"], &told["Backfilling"]), (&json!("ACTIVE"), &json!(null)));
}

/// An item that is written between the look at it and its row's making has the row that its writer has made.
#[test]
fn a_row_is_made_of_its_item_as_it_is() {
    let world = World::new();
    let used = one_item(&world, NOW_S + 1);
    used.done("UpdateTable", create("by-g", false));
    sweep_while(&world, |other| {
        let update = json!({
            "TableName": TABLE, "Key": {"p": {"S": "x"}, "s": {"N": "1"}},
            "UpdateExpression": "SET g = :g", "ExpressionAttributeValues": {":g": {"S": "b"}}
        });
        other.done("UpdateItem", update);
    });
    assert_eq!(used.status("by-g"), Some(Status::Active));
    used.check();
}

/// A sweeper that was asleep while an index went makes no rows of it: nobody would delete them.
#[test]
fn no_rows_are_made_of_an_index_that_is_gone() {
    let world = World::new();
    let used = one_item(&world, NOW_S + 1);
    used.done("UpdateTable", create("by-g", false));
    let number = used.table().index("by-g").unwrap().number;
    sweep_while(&world, |other| {
        other.done("UpdateTable", delete("by-g"));
        while other.status("by-g").is_some() {
            other.sweep();
        }
    });
    assert_eq!(used.status("by-g"), None);
    assert_eq!(used.rows_of(Some(number)), BTreeMap::new());
}

/// An item whose time is over goes with its row in an index that its sweeper has not heard of.
#[test]
fn an_item_whose_time_is_over_leaves_no_row_in_a_new_index() {
    let world = World::new();
    let used = one_item(&world, NOW_S - 1);
    sweep_while(&world, |other| {
        // Time stands for this one: its item stays.
        let off = json!({"AttributeName": "t", "Enabled": false});
        other.done("UpdateTimeToLive", json!({"TableName": TABLE, "TimeToLiveSpecification": off}));
        other.done("UpdateTable", create("by-g", false));
        while other.status("by-g") != Some(Status::Active) {
            other.sweep();
        }
        let on = json!({"AttributeName": "t", "Enabled": true});
        other.done("UpdateTimeToLive", json!({"TableName": TABLE, "TimeToLiveSpecification": on}));
    });
    used.check();
    assert_eq!(used.items().len(), 1);
    used.sweep();
    used.check();
    assert_eq!(used.items(), Vec::new());
}

/// An index for whose rows there is no room stays as it is, and whatever goes by itself goes all the same: that makes room.
#[test]
fn an_index_without_room_holds_nobody_up() {
    let world = World::within(100_000);
    let used = one_item(&world, NOW_S + 1);
    let mut other = definition();
    other["TableName"] = json!("used-behind");
    used.done("CreateTable", other);
    let ttl = json!({"AttributeName": "t", "Enabled": true});
    let ttl = json!({"TableName": "used-behind", "TimeToLiveSpecification": ttl});
    used.done("UpdateTimeToLive", ttl);
    let item = |s: u64, time_s: u64| {
        let (fill, time) = ("x".repeat(8000), time_s.to_string());
        json!({
            "p": {"S": "x"}, "s": {"N": s.to_string()}, "g": {"S": "a"}, "fill": {"S": fill},
            "t": {"N": time}
        })
    };
    for s in 0..6 {
        used.done("PutItem", json!({"TableName": TABLE, "Item": item(s, NOW_S + 1)}));
        used.done("PutItem", json!({"TableName": "used-behind", "Item": item(s, NOW_S - 1)}));
    }
    used.done("UpdateTable", create("by-g", false));
    let put =
        |s| call(&used.api, "PutItem", json!({"TableName": TABLE, "Item": item(s, NOW_S + 1)}));
    assert!((6..20).any(|s| put(s).is_err()), "there is room");
    used.sweep();
    assert_eq!(used.status("by-g"), Some(Status::Creating));
    let left = used.done("Scan", json!({"TableName": "used-behind"}));
    assert_eq!(left["Count"], 0, "what goes by itself waits for an index");
    used.sweep();
    assert_eq!(used.status("by-g"), Some(Status::Active));
    used.check();
}
