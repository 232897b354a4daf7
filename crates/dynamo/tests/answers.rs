//! Answers are as large as there is memory for them. An item of 400 KiB may be 18 MiB of JSON (numbers of 126 digits count
//! three bytes), and as a tree of values 140 MB (each `{"NULL": true}` counts one, and takes seven hundred): a page of
//! a thousand such values each took the memory of a machine, and nobody counted it.

#[path = "support/memory.rs"]
mod memory;

use holdfast_dynamo::ANSWER_BYTES;
use holdfast_dynamo::api::Api;
use holdfast_dynamo::fault::Type;
use holdfast_env::Budget;
use holdfast_env::trial::Trial;
use memory::{call, within};
use serde_json::{Value as Json, json};
use std::sync::Arc;

/// A table of one key.
fn table(budget: &Arc<Budget>) -> Api {
    let api = within(Arc::default(), budget.clone());
    let make = json!({
        "TableName": "tab", "BillingMode": "PAY_PER_REQUEST",
        "KeySchema": [{"AttributeName": "k", "KeyType": "HASH"}],
        "AttributeDefinitions": [{"AttributeName": "k", "AttributeType": "S"}]
    });
    call(&api, "CreateTable", make).unwrap();
    api
}

fn put(api: &Api, key: &str, attribute: Json) {
    let item = json!({"k": {"S": key}, "a": attribute});
    call(api, "PutItem", json!({"TableName": "tab", "Item": item})).unwrap();
}

fn key(key: &str) -> Json {
    json!({"k": {"S": key}})
}

fn keys(items: &Json) -> Vec<String> {
    let items = items.as_array().unwrap().iter();
    items.map(|item| item["k"]["S"].as_str().unwrap().to_owned()).collect()
}

/// All pages of a scan, by their keys, and the longest of them in bytes.
fn scanned(api: &Api) -> (Vec<Vec<String>>, usize) {
    let (mut pages, mut longest, mut start) = (Vec::new(), 0, Json::Null);
    loop {
        let ask = json!({"TableName": "tab", "ExclusiveStartKey": start});
        let page = call(api, "Scan", ask).unwrap();
        longest = longest.max(page["Items"].to_string().len());
        assert_eq!(page["Count"], page["ScannedCount"]);
        let found = keys(&page["Items"]);
        assert_eq!(page["Count"], found.len());
        if let Some(last) = found.last().filter(|_| page["LastEvaluatedKey"] != Json::Null) {
            assert_eq!(page["LastEvaluatedKey"], key(last));
        }
        pages.push(found);
        start = page["LastEvaluatedKey"].clone();
        if start == Json::Null {
            return (pages, longest);
        }
    }
}

fn sorted(pages: Vec<Vec<String>>) -> Vec<String> {
    let mut all = pages.concat();
    all.sort();
    all
}

#[test]
fn an_answer_ends_where_its_text_is_long_enough_and_goes_on_from_there() {
    const LIMIT: usize = 32 << 10;
    let _small = Trial::new().with(&ANSWER_BYTES, LIMIT as u64).enter();
    let budget = Budget::new(1 << 30);
    let api = table(&budget);
    let names = ["a", "b", "c", "d", "e", "f"];
    // 120 bytes as they count, 5,400 as they are written.
    let numbers = json!({"L": vec![json!({"N": "1e125"}); 40]});
    for name in names {
        put(&api, name, numbers.clone());
    }
    let (pages, longest) = scanned(&api);
    assert!(pages.len() == 1 && (LIMIT - 300..LIMIT).contains(&longest), "{longest}");
    put(&api, "g", numbers.clone());
    put(&api, "h", numbers);
    let (pages, longest) = scanned(&api);
    assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), [7, 1]);
    assert!((LIMIT..LIMIT + 6000).contains(&longest), "{longest}");
    assert_eq!(sorted(pages), ["a", "b", "c", "d", "e", "f", "g", "h"]);
    // A batch leaves keys for the next one.
    let wanted: Vec<Json> = "abcdefgh".chars().map(|name| key(&name.to_string())).collect();
    let ask = json!({"RequestItems": {"tab": {"Keys": wanted}}});
    let found = call(&api, "BatchGetItem", ask).unwrap();
    assert_eq!(keys(&found["Responses"]["tab"]), ["a", "b", "c", "d", "e", "f", "g"]);
    let rest = json!({"tab": {"Keys": [key("h")]}});
    assert_eq!(found["UnprocessedKeys"], rest);
    let found = call(&api, "BatchGetItem", json!({"RequestItems": rest})).unwrap();
    assert_eq!(
        (keys(&found["Responses"]["tab"]), &found["UnprocessedKeys"]),
        (vec!["h".into()], &json!({}))
    );
    // A transaction is one answer, or none.
    let get = |names: &str| {
        let one = |name: char| json!({"Get": {"TableName": "tab", "Key": key(&name.to_string())}});
        let all: Vec<Json> = names.chars().map(one).collect();
        call(&api, "TransactGetItems", json!({"TransactItems": all}))
    };
    assert_eq!(get("abcdef").unwrap()["Responses"].as_array().map(Vec::len), Some(6));
    let refused = get("abcdefg").unwrap_err();
    assert!(refused.kind == Type::Validation && refused.message.contains("fewer"), "{refused:?}");
    assert_eq!(budget.used(), 0);
}

/// Pages are shorter where others have the memory, and go on; what is read alone is refused as one that may come again.
#[test]
fn an_answer_takes_no_more_memory_than_there_is() {
    let budget = Budget::new(64 << 20);
    let api = table(&budget);
    let names: Vec<String> = (10..30).map(|number| number.to_string()).collect();
    for name in &names {
        put(&api, name, json!({"S": "x".repeat(20_000)}));
    }
    put(&api, "large", json!({"S": "x".repeat(300_000)}));
    assert_eq!(scanned(&api).0.len(), 1);
    let others = budget.hold(budget.limit() - 400_000);
    let delete = json!({"TableName": "tab", "Key": key("large"), "ReturnValues": "ALL_OLD"});
    let get = json!({"TableName": "tab", "Key": key("large")});
    let refused = call(&api, "GetItem", get.clone()).unwrap_err();
    assert_eq!(refused.kind, Type::ServiceUnavailable);
    let both = json!({"tab": {"Keys": [key("10"), key("large")]}});
    let found = call(&api, "BatchGetItem", json!({"RequestItems": both})).unwrap();
    assert_eq!(keys(&found["Responses"]["tab"]), ["10"]);
    let rest = json!({"tab": {"Keys": [key("large")]}});
    assert_eq!(found["UnprocessedKeys"], rest);
    let refused = call(&api, "BatchGetItem", json!({"RequestItems": rest})).unwrap_err();
    assert_eq!(refused.kind, Type::ServiceUnavailable);
    // What is done is told.
    assert_eq!(call(&api, "DeleteItem", delete).unwrap()["Attributes"]["k"]["S"], "large");
    let (pages, _) = scanned(&api);
    assert!(pages.len() > 1 && pages.iter().all(|page| !page.is_empty()), "{pages:?}");
    assert_eq!(sorted(pages), names);
    drop(others);
    assert_eq!(scanned(&api).0.len(), 1);
    assert_eq!(budget.used(), 0);
}
