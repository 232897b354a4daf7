//! Local indexes over a store in memory: after whatever was drawn, each has the rows that a fresh fold of the items
//! gives, and a query of it what a look at each item gives.

#[path = "support/memory.rs"]
mod support;

use holdfast_base::random::Random;
use holdfast_dynamo::api::Api;
use holdfast_dynamo::fault::Type;
use holdfast_dynamo::table::Table;
use holdfast_dynamo::{form, json as values};
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use support::{Memory, all_of, api, call, done};

const TABLE: &str = "indexed";
/// The attribute that each index is ordered by, its type, and what it projects.
const INDEXES: [(&str, &str, &str); 3] =
    [("all", "a", "ALL"), ("keys", "b", "KEYS_ONLY"), ("some", "a", "INCLUDE")];

fn definition() -> Json {
    let attribute = |name: &str, kind: &str| json!({"AttributeName": name, "AttributeType": kind});
    let schema = |sort: &str| {
        json!([
            {"AttributeName": "p", "KeyType": "HASH"}, {"AttributeName": sort, "KeyType": "RANGE"}
        ])
    };
    let index = |(name, sort, kind): (&str, &str, &str)| {
        let mut projection = json!({"ProjectionType": kind});
        if kind == "INCLUDE" {
            projection["NonKeyAttributes"] = json!(["c"]);
        }
        json!({"IndexName": name, "KeySchema": schema(sort), "Projection": projection})
    };
    json!({
        "TableName": TABLE, "BillingMode": "PAY_PER_REQUEST", "KeySchema": schema("s"),
        "AttributeDefinitions": [
            attribute("p", "S"), attribute("s", "N"), attribute("a", "S"), attribute("b", "N")
        ],
        "LocalSecondaryIndexes": INDEXES.map(index)
    })
}

fn memory(rows_max: usize) -> (Arc<Memory>, Api) {
    let rows = Arc::new(Memory { rows_max, ..Memory::default() });
    let api = api(rows.clone());
    done(&api, "CreateTable", definition());
    (rows, api)
}

/// Texts of which one begins another one.
const TEXTS: [&str; 5] = ["a", "a\0", "aa", "b", "é"];
const NUMBERS: [&str; 5] = ["-10", "-9.9", "0", "9.9", "10"];

struct Maker(Random);

impl Maker {
    fn below(&mut self, n: usize) -> usize {
        self.0.below(n as u64) as usize
    }

    fn key(&mut self) -> Json {
        let (p, s) = (["x", "y"][self.below(2)], ["1", "2", "3", "-4"][self.below(4)]);
        json!({"p": {"S": p}, "s": {"N": s}})
    }

    /// Attributes that indexes look at, and others; now and then of a type that an index does not take.
    fn item(&mut self) -> Json {
        let mut item = self.key();
        if self.below(4) > 0 {
            item["a"] = json!({"S": TEXTS[self.below(5)]});
        }
        if self.below(4) > 0 {
            item["b"] = json!({"N": NUMBERS[self.below(5)]});
        }
        for name in ["c", "d"] {
            if self.below(2) == 0 {
                item[name] = json!({"N": self.below(3).to_string()});
            }
        }
        match self.below(20) {
            0 => item["a"] = json!({"N": "1"}),
            1 => item["a"] = json!({"S": ""}),
            _ => {}
        }
        item
    }

    fn update(&mut self) -> Json {
        let what = match self.below(6) {
            0 => "REMOVE a",
            1 => "REMOVE b SET c = :n",
            2 => "SET a = :t, b = :n",
            3 => "ADD b :n",
            4 => "SET a = :n, b = :n",
            _ => "SET d = :n",
        };
        let mut values = json!({});
        if what.contains(":t") {
            values[":t"] = json!({"S": TEXTS[self.below(5)]});
        }
        if what.contains(":n") {
            values[":n"] = json!({"N": NUMBERS[self.below(5)]});
        }
        let mut body = json!({"TableName": TABLE, "Key": self.key(), "UpdateExpression": what});
        if values != json!({}) {
            body["ExpressionAttributeValues"] = values;
        }
        body
    }

    /// An operation, and its parameters.
    fn write(&mut self) -> (&'static str, Json) {
        let put = |maker: &mut Maker| json!({"TableName": TABLE, "Item": maker.item()});
        match self.below(10) {
            0..3 => ("PutItem", put(self)),
            3 => {
                let mut body = put(self);
                body["ConditionExpression"] = json!("attribute_exists(b)");
                ("PutItem", body)
            }
            4 | 5 => ("UpdateItem", self.update()),
            6 => ("DeleteItem", json!({"TableName": TABLE, "Key": self.key()})),
            7 => {
                let one = |maker: &mut Maker| match maker.below(3) {
                    0 => json!({"DeleteRequest": {"Key": maker.key()}}),
                    _ => json!({"PutRequest": {"Item": maker.item()}}),
                };
                let list = [one(self), one(self)];
                ("BatchWriteItem", json!({"RequestItems": {TABLE: list}}))
            }
            _ => {
                let one = |maker: &mut Maker| match maker.below(3) {
                    0 => json!({"Put": put(maker)}),
                    1 => json!({"Update": maker.update()}),
                    _ => json!({"Delete": {"TableName": TABLE, "Key": maker.key()}}),
                };
                ("TransactWriteItems", json!({"TransactItems": [one(self), one(self)]}))
            }
        }
    }
}

fn items(api: &Api) -> Vec<Json> {
    all_of(api, "Scan", json!({"TableName": TABLE}))
}

/// Rows of all indexes are those of the items, made anew, and no others.
fn check_rows(rows: &Memory, all: &[Json]) {
    let state = rows.state.lock().unwrap();
    let described = rows_of_table(&state.tables);
    for index in &described.indexes {
        let fresh: BTreeMap<Vec<u8>, Vec<u8>> = all
            .iter()
            .filter_map(|item| {
                let item = values::to_item(item).unwrap().value;
                let key = index.key(&described, &item)?;
                Some((key, form::to_bytes(&index.part(&described, &item))))
            })
            .collect();
        let kept = state.indexes.get(&(TABLE.to_owned(), index.number));
        let kept = kept.into_iter().flatten().map(|(key, row)| (key.clone(), row.bytes.clone()));
        assert_eq!(kept.collect::<BTreeMap<_, _>>(), fresh, "{}", index.name);
    }
}

fn rows_of_table(tables: &BTreeMap<String, holdfast_dynamo::rows::Versioned>) -> Table {
    Table::from_bytes(&tables[TABLE].bytes).unwrap()
}

/// A number of what orders an item: the place of its text, or of its number.
fn place(item: &Json, name: &str) -> Option<usize> {
    match (&item[name]["S"], &item[name]["N"]) {
        (Json::String(text), _) => TEXTS.iter().position(|other| other == text),
        (_, Json::String(number)) => {
            let value: f64 = number.parse().unwrap();
            Some(((value + 1000.0) * 100.0) as usize)
        }
        _ => None,
    }
}

/// What a query of a partition of an index is to show, looked for item by item.
fn expected(all: &[Json], (_, sort, kind): (&str, &str, &str), p: &str, from: usize) -> Vec<Json> {
    let fits =
        |item: &&Json| item["p"]["S"] == p && place(item, sort).is_some_and(|place| place >= from);
    let mut found: Vec<Json> = all.iter().filter(fits).cloned().collect();
    found.sort_by_key(|item| (place(item, sort), place(item, "s")));
    for item in &mut found {
        let held = |name: &String| {
            kind == "ALL"
                || ["p", "s", sort].contains(&name.as_str())
                || (kind == "INCLUDE" && name == "c")
        };
        item.as_object_mut().unwrap().retain(|name, _| held(name));
    }
    found
}

#[test]
fn indexes_are_a_fresh_fold_of_the_items() {
    for seed in 1..4 {
        let (rows, api) = memory(2);
        let mut maker = Maker(Random::new(seed));
        let (mut written, mut refused) = (0, 0);
        for step in 0..400 {
            let (operation, body) = maker.write();
            match call(&api, operation, body) {
                Ok(_) => written += 1,
                Err(_) => refused += 1,
            }
            let all = items(&api);
            check_rows(&rows, &all);
            if step % 10 > 0 {
                continue;
            }
            for index in INDEXES {
                let (p, at) = (["x", "y"][maker.below(2)], maker.below(5));
                let (low, from) = match index.1 {
                    "a" => (json!({"S": TEXTS[at]}), at),
                    _ => (
                        json!({"N": NUMBERS[at]}),
                        place(&json!({"b": {"N": NUMBERS[at]}}), "b").unwrap(),
                    ),
                };
                let forward = maker.below(2) == 0;
                let body = json!({
                    "TableName": TABLE, "IndexName": index.0, "Limit": 1 + maker.below(3),
                    "KeyConditionExpression": format!("p = :p AND {} >= :v", index.1),
                    "ExpressionAttributeValues": {":p": {"S": p}, ":v": low},
                    "ScanIndexForward": forward, "ConsistentRead": true
                });
                let mut found = all_of(&api, "Query", body);
                if !forward {
                    found.reverse();
                }
                assert_eq!(found, expected(&all, index, p, from), "{index:?} {low}");
            }
        }
        assert!(written > 150 && refused > 50, "{written} written, {refused} refused");
    }
}

#[test]
fn queries_of_an_index_take_every_condition_and_show_what_is_asked_for() {
    let (_, api) = memory(0);
    for (s, a) in TEXTS.iter().enumerate() {
        let item = json!({
            "p": {"S": "x"}, "s": {"N": s.to_string()}, "a": {"S": a}, "c": {"N": "1"}, "d": {"N": "2"}
        });
        done(&api, "PutItem", json!({"TableName": TABLE, "Item": item}));
    }
    let plain = json!({"TableName": TABLE, "Item": {"p": {"S": "x"}, "s": {"N": "9"}}});
    done(&api, "PutItem", plain);
    let query = |condition: &str, value: &str, more: Json| {
        let mut body = json!({
            "TableName": TABLE, "IndexName": "some", "KeyConditionExpression": format!("p = :p AND {condition}"),
            "ExpressionAttributeValues": {":p": {"S": "x"}, ":v": {"S": value}}
        });
        more.as_object().unwrap().iter().for_each(|(name, value)| body[name] = value.clone());
        done(&api, "Query", body)
    };
    for (condition, value, shows) in [
        ("a = :v", "a", vec!["0"]),
        ("a < :v", "aa", vec!["0", "1"]),
        ("a <= :v", "aa", vec!["0", "1", "2"]),
        ("a > :v", "a", vec!["1", "2", "3", "4"]),
        ("a >= :v", "a\0", vec!["1", "2", "3", "4"]),
        ("begins_with(a, :v)", "a", vec!["0", "1", "2"]),
        ("a BETWEEN :v AND :v", "b", vec!["3"]),
    ] {
        let found = query(condition, value, json!({}));
        let found = found["Items"].as_array().unwrap().iter().map(|item| &item["s"]["N"]);
        assert!(found.eq(shows.iter()), "{condition} {value}");
    }
    let first = |more: Json| query("a = :v", "a", more)["Items"][0].clone();
    let part = json!({"p": {"S": "x"}, "s": {"N": "0"}, "a": {"S": "a"}, "c": {"N": "1"}});
    let mut whole = part.clone();
    whole["d"] = json!({"N": "2"});
    assert_eq!(first(json!({})), part);
    assert_eq!(first(json!({"Select": "ALL_PROJECTED_ATTRIBUTES"})), part);
    assert_eq!(first(json!({"Select": "ALL_ATTRIBUTES"})), whole);
    assert_eq!(first(json!({"ProjectionExpression": "d"})), json!({"d": {"N": "2"}}));
    let scanned = done(&api, "Scan", json!({"TableName": TABLE, "IndexName": "all"}));
    assert_eq!((&scanned["Count"], &scanned["ScannedCount"]), (&json!(5), &json!(5)));
    let none = call(&api, "Scan", json!({"TableName": TABLE, "IndexName": "none"})).unwrap_err();
    assert!(none.message.contains("does not have the specified index: none"));
}

#[test]
fn a_table_tells_its_indexes_and_wrong_ones_are_refused() {
    let (_, api) = memory(0);
    let told = done(&api, "DescribeTable", json!({"TableName": TABLE}));
    let told = &told["Table"]["LocalSecondaryIndexes"];
    assert_eq!(told.as_array().unwrap().len(), 3);
    assert_eq!(
        told[2]["Projection"],
        json!({"ProjectionType": "INCLUDE", "NonKeyAttributes": ["c"]})
    );
    assert_eq!(told[1]["KeySchema"][1], json!({"AttributeName": "b", "KeyType": "RANGE"}));
    let with = |change: &dyn Fn(&mut Json)| {
        let mut body = definition();
        body["TableName"] = json!("other");
        change(&mut body);
        call(&api, "CreateTable", body).unwrap_err()
    };
    let index = "LocalSecondaryIndexes";
    for (change, says) in [
        (&(|body: &mut Json| body[index] = json!([])) as &dyn Fn(&mut Json), "is empty"),
        (
            &|body| drop(body["KeySchema"].as_array_mut().unwrap().pop()),
            "does not have a range key",
        ),
        (&|body| body[index][1]["IndexName"] = json!("all"), "Duplicate index name: all"),
        (
            &|body| drop(body[index][0]["KeySchema"].as_array_mut().unwrap().pop()),
            "a range key for index: all",
        ),
        (
            &|body| body[index][0]["KeySchema"][0]["AttributeName"] = json!("s"),
            "same leading hash key",
        ),
        (&|body| body[index][0]["KeySchema"][1]["AttributeName"] = json!("z"), "not defined"),
        (&|body| body[index][0]["Projection"] = json!({}), "Unknown ProjectionType: null"),
        (&|body| body[index][1]["Projection"]["NonKeyAttributes"] = json!(["c"]), "KEYS_ONLY, but"),
        (&|body| body[index].as_array_mut().unwrap().truncate(1), "are not used"),
        (
            &|body| {
                let one = body[index][0].clone();
                let many = (0..6).map(|n| {
                    let mut one = one.clone();
                    one["IndexName"] = json!(format!("all{n}"));
                    one
                });
                body[index] = many.collect();
            },
            "per-table limit of 5",
        ),
    ] {
        let fault = with(change);
        assert!(
            fault.kind == Type::Validation && fault.message.contains(says),
            "{says}: {fault:?}"
        );
    }
    let wrong =
        json!({"TableName": TABLE, "Item": {"p": {"S": "x"}, "s": {"N": "1"}, "a": {"N": "1"}}});
    let fault = call(&api, "PutItem", wrong).unwrap_err();
    assert!(
        fault
            .message
            .contains("Type mismatch for Index Key a Expected: S Actual: N IndexName: all")
    );
    let apart = support::api(Arc::new(Memory { apart: true, ..Memory::default() }));
    let fault = call(&apart, "CreateTable", definition()).unwrap_err();
    assert!(fault.kind == Type::Validation && fault.message.contains("several tablets"));
}
