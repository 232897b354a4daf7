//! Global indexes over a store in memory: whatever was drawn, each has the rows that a fresh fold of the items gives, and
//! shows what a look at each item gives; and what is refused of a table and of a query.

mod support {
    pub mod globals;
    pub mod memory;
}

use holdfast_base::random::Random;
use holdfast_dynamo::api::Api;
use holdfast_dynamo::fault::Type;
use serde_json::{Value as Json, json};
use std::sync::Arc;
use support::globals::{
    INDEXES, TABLE, all_of, check_rows, definition, done, index, items, memory, refused, schema,
};
use support::memory::{self, Memory, call};

const TEXTS: [&str; 4] = ["a", "a\0", "b", "é"];
const NUMBERS: [&str; 4] = ["-10", "-9.9", "0", "10"];

fn key(random: &mut Random) -> Json {
    let (p, s) = (["x", "y"][random.below(2) as usize], random.below(6));
    json!({"p": {"S": p}, "s": {"N": s.to_string()}})
}

fn item(random: &mut Random) -> Json {
    let mut item = key(random);
    if random.below(5) > 0 {
        item["a"] = json!({"S": TEXTS[random.below(4) as usize]});
    }
    if random.below(5) > 0 {
        item["b"] = json!({"N": NUMBERS[random.below(4) as usize]});
    }
    for name in ["c", "d"] {
        item[name] = json!({"N": random.below(3).to_string()});
    }
    match random.below(20) {
        0 => item["a"] = json!({"N": "1"}),
        1 => item["a"] = json!({"S": ""}),
        2 => item["b"] = json!({"BOOL": true}),
        _ => {}
    }
    item
}

fn write(random: &mut Random) -> (&'static str, Json) {
    let put = |random: &mut Random| json!({"TableName": TABLE, "Item": item(random)});
    let delete = |random: &mut Random| json!({"TableName": TABLE, "Key": key(random)});
    match random.below(8) {
        0..=3 => ("PutItem", put(random)),
        4 => {
            let what = ["REMOVE a", "SET b = :n", "ADD b :n", "SET d = :n"];
            let what = what[random.below(4) as usize];
            let mut body =
                json!({"TableName": TABLE, "Key": key(random), "UpdateExpression": what});
            if what.contains(":n") {
                let n = NUMBERS[random.below(4) as usize];
                body["ExpressionAttributeValues"] = json!({":n": {"N": n}});
            }
            ("UpdateItem", body)
        }
        5 => ("DeleteItem", delete(random)),
        6 => {
            let list = json!([
                {"PutRequest": {"Item": item(random)}}, {"DeleteRequest": {"Key": key(random)}}
            ]);
            ("BatchWriteItem", json!({"RequestItems": {TABLE: list}}))
        }
        _ => {
            let list = [json!({"Put": put(random)}), json!({"Delete": delete(random)})];
            ("TransactWriteItems", json!({"TransactItems": list}))
        }
    }
}

/// A number by which values of an attribute are ordered.
fn place(item: &Json, name: &str) -> Option<i64> {
    match (&item[name]["S"], &item[name]["N"]) {
        (Json::String(text), _) => TEXTS.iter().position(|other| other == text).map(|at| at as i64),
        (_, Json::String(number)) => Some((number.parse::<f64>().unwrap() * 10.0) as i64),
        _ => None,
    }
}

/// What an index shows of the items that fit.
fn shown(
    all: &[Json],
    (_, partition, sort, kind): (&str, &str, Option<&str>, &str),
    fits: impl Fn(&Json) -> bool,
) -> Vec<String> {
    let is_there = |item: &&Json| {
        let is_text = |name: &str| (name == "a") == item[name]["S"].is_string();
        [Some(partition), sort]
            .into_iter()
            .flatten()
            .all(|name| is_text(name) && place(item, name).is_some())
    };
    let mut found: Vec<Json> =
        all.iter().filter(is_there).filter(|item| fits(item)).cloned().collect();
    found.sort_by_key(|item| sort.and_then(|sort| place(item, sort)));
    for item in &mut found {
        let held = |name: &String| {
            let is_key = ["p", "s", partition].contains(&name.as_str()) || sort == Some(name);
            kind == "ALL" || is_key || (kind == "INCLUDE" && name == "c")
        };
        item.as_object_mut().unwrap().retain(|name, _| held(name));
    }
    found.iter().map(Json::to_string).collect()
}

fn sorted(items: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut items: Vec<String> = items.into_iter().collect();
    items.sort();
    items
}

/// Queries of one partition, in pages of one to three, either way.
fn check_query(api: &Api, all: &[Json], random: &mut Random) {
    for index in INDEXES {
        let (name, partition, sort, _) = index;
        let Some(like) = all.get(random.below(all.len() as u64) as usize) else { continue };
        let Some(_) = place(like, partition) else { continue };
        let mut condition = format!("{partition} = :v");
        let mut given = json!({":v": like[partition]});
        let mut from = i64::MIN;
        if let Some((sort, place)) = sort.and_then(|sort| Some((sort, place(like, sort)?))) {
            condition += &format!(" AND {sort} >= :w");
            given[":w"] = like[sort].clone();
            from = place;
        }
        let forward = random.below(2) == 0;
        let body = json!({
            "TableName": TABLE, "IndexName": name, "Limit": 1 + random.below(3),
            "KeyConditionExpression": condition, "ExpressionAttributeValues": given,
            "ScanIndexForward": forward
        });
        let mut found = all_of(api, "Query", body);
        if !forward {
            found.reverse();
        }
        let places: Vec<_> =
            found.iter().map(|item| sort.and_then(|sort| place(item, sort))).collect();
        assert!(places.is_sorted(), "{name}: {found:?}");
        let expected = shown(all, index, |item| {
            item[partition] == like[partition]
                && sort.is_none_or(|sort| place(item, sort).is_some_and(|place| place >= from))
        });
        let found = found.iter().map(Json::to_string);
        assert_eq!(sorted(found), sorted(expected), "{name} {condition}");
    }
}

#[test]
fn global_indexes_are_a_fresh_fold_of_the_items() {
    for seed in 1..4 {
        let (rows, api) = memory(2);
        let mut random = Random::new(seed);
        let (mut written, mut refused) = (0, 0);
        for step in 0..300 {
            let (operation, body) = write(&mut random);
            match call(&api, operation, body) {
                Ok(_) => written += 1,
                Err(_) => refused += 1,
            }
            let all = items(&api);
            check_rows(&rows, &all);
            if step % 10 > 0 {
                continue;
            }
            check_query(&api, &all, &mut random);
            // A scan, in three segments.
            let index = INDEXES[random.below(4) as usize];
            let segment = |segment: usize| {
                let body = json!({
                    "TableName": TABLE, "IndexName": index.0, "Limit": 2, "Segment": segment,
                    "TotalSegments": 3
                });
                all_of(&api, "Scan", body)
            };
            let found = (0..3).flat_map(segment).map(|item| item.to_string());
            assert_eq!(sorted(found), sorted(shown(&all, index, |_| true)), "{index:?}");
        }
        assert!(written > 100 && refused > 10, "{written} written, {refused} refused");
    }
}

/// A query of an index, by a key that the one item has; and what is asked beside.
fn query_of(name: &str, more: &Json) -> Json {
    let (key, value) = match name {
        "by-ba" => ("b", json!({"N": "0"})),
        _ => ("a", json!({"S": "a"})),
    };
    let mut body = json!({
        "TableName": TABLE, "IndexName": name, "KeyConditionExpression": format!("{key} = :v"),
        "ExpressionAttributeValues": {":v": value}
    });
    for (name, value) in more.as_object().unwrap() {
        match (&mut body[name], value) {
            (Json::Object(all), Json::Object(more)) => all.extend(more.clone()),
            (part, value) => *part = value.clone(),
        }
    }
    body
}

fn one_item() -> (Api, Json) {
    let (_, api) = memory(0);
    let item = json!({
        "p": {"S": "x"}, "s": {"N": "1"}, "a": {"S": "a"}, "b": {"N": "0"}, "c": {"N": "1"},
        "d": {"N": "2"}
    });
    done(&api, "PutItem", json!({"TableName": TABLE, "Item": item}));
    (api, item)
}

fn filter(name: &str) -> Json {
    json!({
        "FilterExpression": format!("{name} = :f"), "ExpressionAttributeValues": {":f": {"N": "1"}}
    })
}

#[test]
fn a_global_index_shows_what_it_projects() {
    let (api, item) = one_item();
    let first =
        |name: &str, more: Json| done(&api, "Query", query_of(name, &more))["Items"][0].clone();
    let mut part = item.clone();
    part.as_object_mut().unwrap().remove("d");
    assert_eq!(first("by-ba", json!({})), part);
    assert_eq!(first("by-ba", json!({"Select": "ALL_PROJECTED_ATTRIBUTES"})), part);
    assert_eq!(first("by-ab", json!({"Select": "ALL_ATTRIBUTES"})), item);
    assert_eq!(first("by-ba", json!({"ProjectionExpression": "c"})), json!({"c": {"N": "1"}}));
    assert_eq!(first("by-ba", filter("c")), part);
    let counted = done(&api, "Query", query_of("by-a", &json!({"Select": "COUNT"})));
    assert_eq!((&counted["Count"], &counted["Items"]), (&json!(1), &Json::Null));
}

#[test]
fn what_a_global_index_lacks_is_refused() {
    let (api, _) = one_item();
    for (name, more, says) in [
        ("by-a", json!({"ConsistentRead": true}), "Consistent reads are not supported on global"),
        (
            "by-ba",
            json!({"Select": "ALL_ATTRIBUTES"}),
            "Select type ALL_ATTRIBUTES is not supported for global secondary index by-ba because",
        ),
        (
            "by-ba",
            json!({"ProjectionExpression": "d, c, e.f"}),
            "Global secondary index by-ba does not project [d, e]",
        ),
        ("by-ba", filter("d"), "does not project one or more filter attributes: [d]"),
        ("by-ba", filter("b"), "non-primary key attributes: Primary key attribute: b"),
        ("none", json!({}), "does not have the specified index: none"),
        (
            "by-a",
            json!({
                "KeyConditionExpression": "a = :v AND b = :w",
                "ExpressionAttributeValues": {":w": {"N": "1"}}
            }),
            "Query key condition not supported",
        ),
        (
            "by-ba",
            json!({"ExpressionAttributeValues": {":v": {"S": "a"}}}),
            "Condition parameter type does not match schema type",
        ),
        (
            "by-ba",
            json!({"ExclusiveStartKey": {"p": {"S": "x"}, "s": {"N": "1"}, "b": {"N": "0"}}}),
            "The provided starting key is invalid",
        ),
    ] {
        let fault = refused(&api, "Query", &query_of(name, &more));
        assert!(
            fault.kind == Type::Validation && fault.message.contains(says),
            "{says}: {fault:?}"
        );
    }
    let scan = json!({"TableName": TABLE, "IndexName": "by-a", "ConsistentRead": true});
    assert!(refused(&api, "Scan", &scan).message.contains("Consistent reads are not supported"));
    let nested = json!({
        "TableName": TABLE, "Key": {"p": {"S": "x"}, "s": {"N": "1"}},
        "UpdateExpression": "SET a.x = :v", "ExpressionAttributeValues": {":v": {"S": "a"}}
    });
    assert!(refused(&api, "UpdateItem", &nested).message.ends_with("not allowed: IndexKey: a"));
}

#[test]
fn a_table_tells_its_global_indexes_and_wrong_ones_are_refused() {
    let (_, api) = memory(0);
    let told = done(&api, "DescribeTable", json!({"TableName": TABLE}));
    let told = &told["Table"]["GlobalSecondaryIndexes"];
    assert_eq!(told.as_array().unwrap().len(), 4);
    assert_eq!(told[1]["KeySchema"], schema("a", Some("b")));
    assert_eq!(
        (&told[0]["IndexStatus"], &told[0]["Backfilling"]),
        (&json!("ACTIVE"), &json!(null))
    );
    assert_eq!(told[0]["KeySchema"], schema("a", None));
    let globals = "GlobalSecondaryIndexes";
    let units = json!({"ReadCapacityUnits": 3, "WriteCapacityUnits": 4});
    let mut provisioned = definition();
    provisioned["TableName"] = json!("provisioned");
    provisioned["BillingMode"] = json!("PROVISIONED");
    provisioned["ProvisionedThroughput"] = units.clone();
    let fault = refused(&api, "CreateTable", &provisioned);
    assert!(fault.message.contains("ProvisionedThroughput is not specified for index: by-a"));
    for at in 0..4 {
        provisioned[globals][at]["ProvisionedThroughput"] = units.clone();
    }
    let told = done(&api, "CreateTable", provisioned.clone());
    let told = &told["TableDescription"][globals][0]["ProvisionedThroughput"];
    assert_eq!((&told["ReadCapacityUnits"], &told["WriteCapacityUnits"]), (&json!(3), &json!(4)));
    let with = |change: &dyn Fn(&mut Json)| {
        let mut body = definition();
        body["TableName"] = json!("other");
        change(&mut body);
        refused(&api, "CreateTable", &body)
    };
    for (change, says) in [
        (&(|body: &mut Json| body[globals] = json!([])) as &dyn Fn(&mut Json), "is empty"),
        (&|body| body[globals][1]["IndexName"] = json!("by-a"), "Duplicate index name: by-a"),
        (&|body| body[globals][1]["IndexName"] = json!("local"), "Duplicate index name: local"),
        (&|body| body[globals][0]["KeySchema"] = schema("z", None), "not defined"),
        (&|body| body[globals][0]["KeySchema"] = schema("a", Some("a")), "have the same name"),
        (&|body| body[globals][0]["KeySchema"] = json!([]), "greater than or equal to 1"),
        (&|body| body[globals][0]["Projection"] = json!({}), "Unknown ProjectionType: null"),
        (
            &|body| {
                body[globals][0]["ProvisionedThroughput"] =
                    json!({"ReadCapacityUnits": 1, "WriteCapacityUnits": 1})
            },
            "should not be specified for index: by-a",
        ),
        (
            &|body| {
                let many = (0..21).map(|n| index((&format!("by-{n}"), "a", Some("b"), "ALL")));
                body[globals] = many.collect();
            },
            "exceeds the per-table limit of 20",
        ),
    ] {
        let fault = with(change);
        assert!(
            fault.kind == Type::Validation && fault.message.contains(says),
            "{says}: {fault:?}"
        );
    }
    let mut wrong = json!({"p": {"S": "x"}, "s": {"N": "1"}, "a": {"N": "1"}});
    for (value, says) in [
        (json!({"N": "1"}), "Type mismatch for Index Key a Expected: S Actual: N IndexName: by-a"),
        (json!({"S": ""}), "cannot contain an empty string value. IndexName: by-a, IndexKey: a"),
        (json!({"S": "x".repeat(2049)}), "Size of hashkey has exceeded"),
    ] {
        wrong["a"] = value;
        let put = json!({"TableName": TABLE, "Item": wrong});
        assert!(refused(&api, "PutItem", &put).message.contains(says), "{says}");
        let batch = json!({"RequestItems": {TABLE: [{"PutRequest": {"Item": wrong}}]}});
        assert!(refused(&api, "BatchWriteItem", &batch).message.contains(says), "{says}");
    }
    let apart = memory::api(Arc::new(Memory { apart: true, ..Memory::default() }));
    assert!(refused(&apart, "CreateTable", &definition()).message.contains("several tablets"));
}

/// A description may be read with each request: twenty indexes that named a thousand attributes each were taken, until the
/// row was too long for the store, which was told as a failure of the service.
#[test]
fn names_of_attributes_that_indexes_project_are_few_and_short() {
    let api = memory::api(Arc::default());
    let names = |from: usize, count: usize| -> Vec<String> {
        (from..from + count).map(|number| format!("n{number}")).collect()
    };
    let make = |table: &str, named: &[Vec<String>]| {
        let mut body = definition();
        body["TableName"] = json!(table);
        let some = named.iter().enumerate().map(|(at, names)| {
            let mut some = index((&format!("some-{at}"), "a", Some("b"), "ALL"));
            some["Projection"] = json!({"ProjectionType": "INCLUDE", "NonKeyAttributes": names});
            some
        });
        body["GlobalSecondaryIndexes"] = some.collect();
        body.as_object_mut().unwrap().remove("LocalSecondaryIndexes");
        body
    };
    let longest = vec!["x".repeat(255)];
    for (named, says) in [
        (vec![vec![]], "1 to 20 names, not 0"),
        (vec![names(0, 21)], "1 to 20 names, not 21"),
        (vec![vec![String::new()]], "1 to 255 bytes, not 0"),
        (vec![vec!["x".repeat(256)]], "1 to 255 bytes, not 256"),
        (
            vec![names(0, 20), names(0, 20), names(0, 20), names(0, 20), names(0, 20), longest],
            "100 at most, not 101",
        ),
    ] {
        let fault = refused(&api, "CreateTable", &make("one", &named));
        assert!(fault.kind == Type::Validation && fault.message.contains(says), "{fault:?}");
    }
    let most: Vec<Vec<String>> = (0..5).map(|at| names(20 * at, 20)).collect();
    done(&api, "CreateTable", make("one", &most));
    // So of one that comes later.
    let mut more = index(("more", "a", Some("b"), "ALL"));
    let mut create = |names: &[&str]| {
        more["Projection"] = json!({"ProjectionType": "INCLUDE", "NonKeyAttributes": names});
        json!({"TableName": "one", "GlobalSecondaryIndexUpdates": [{"Create": more}]})
    };
    let fault = refused(&api, "UpdateTable", &create(&["z"]));
    assert!(fault.message.contains("100 at most, not 101"), "{fault:?}");
    done(&api, "CreateTable", make("two", &most[..4]));
    let mut fits = create(&["z"]);
    fits["TableName"] = json!("two");
    done(&api, "UpdateTable", fits);
}
