//! A table with global indexes, and a local one, in a store in memory.
#![allow(dead_code, reason = "each test uses a part")]

use super::memory::{Memory, api, call};
pub use super::memory::{all_of, done};
use holdfast_dynamo::api::Api;
use holdfast_dynamo::fault::Fault;
use holdfast_dynamo::table::Table;
use holdfast_dynamo::{form, json as values};
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::sync::Arc;

pub const TABLE: &str = "indexed";
/// Name, partition key, sort key, projection.
pub const INDEXES: [(&str, &str, Option<&str>, &str); 4] = [
    ("by-a", "a", None, "KEYS_ONLY"),
    ("by-ab", "a", Some("b"), "ALL"),
    ("by-ba", "b", Some("a"), "INCLUDE"),
    ("by-s", "s", Some("b"), "ALL"),
];

pub fn refused(api: &Api, operation: &str, body: &Json) -> Fault {
    match call(api, operation, body.clone()) {
        Ok(told) => panic!("not refused: {operation} {body}: {told}"),
        Err(fault) => fault,
    }
}

pub fn attribute(name: &str, kind: &str) -> Json {
    json!({"AttributeName": name, "AttributeType": kind})
}

pub fn schema(partition: &str, sort: Option<&str>) -> Json {
    let mut schema = vec![json!({"AttributeName": partition, "KeyType": "HASH"})];
    schema.extend(sort.map(|sort| json!({"AttributeName": sort, "KeyType": "RANGE"})));
    json!(schema)
}

pub fn index((name, partition, sort, kind): (&str, &str, Option<&str>, &str)) -> Json {
    let mut projection = json!({"ProjectionType": kind});
    if kind == "INCLUDE" {
        projection["NonKeyAttributes"] = json!(["c"]);
    }
    json!({"IndexName": name, "KeySchema": schema(partition, sort), "Projection": projection})
}

pub fn definition() -> Json {
    json!({
        "TableName": TABLE, "BillingMode": "PAY_PER_REQUEST", "KeySchema": schema("p", Some("s")),
        "AttributeDefinitions": [
            attribute("p", "S"), attribute("s", "N"), attribute("a", "S"), attribute("b", "N")
        ],
        "LocalSecondaryIndexes": [index(("local", "p", Some("b"), "KEYS_ONLY"))],
        "GlobalSecondaryIndexes": INDEXES.map(index)
    })
}

pub fn memory(rows_max: usize) -> (Arc<Memory>, Api) {
    let rows = Arc::new(Memory { rows_max, ..Memory::default() });
    let api = api(rows.clone());
    done(&api, "CreateTable", definition());
    (rows, api)
}

pub fn items(api: &Api) -> Vec<Json> {
    all_of(api, "Scan", json!({"TableName": TABLE}))
}

pub fn described(rows: &Memory) -> Table {
    Table::from_bytes(&rows.state.lock().unwrap().tables[TABLE].bytes).unwrap()
}

/// Rows of all indexes are those of the items, made anew, and no others.
pub fn check_rows(rows: &Memory, all: &[Json]) {
    let described = described(rows);
    let state = rows.state.lock().unwrap();
    for index in &described.indexes {
        let fresh = all.iter().filter_map(|item| {
            let item = values::to_item(item).unwrap().value;
            let key = index.key(&described, &item)?;
            Some((key, form::to_bytes(&index.part(&described, &item))))
        });
        let kept = state.indexes.get(&(TABLE.to_owned(), index.number));
        let kept = kept.into_iter().flatten().map(|(key, row)| (key.clone(), row.bytes.clone()));
        assert_eq!(kept.collect::<BTreeMap<_, _>>(), fresh.collect(), "{}", index.name);
    }
}
