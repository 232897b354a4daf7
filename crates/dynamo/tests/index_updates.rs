//! Global indexes that come and go, who writes by an older description of their table, and what does not fit into one
//! group or counts for it; over a store in memory.

mod support {
    pub mod globals;
    pub mod memory;
}

use holdfast_dynamo::fault::Type;
use holdfast_dynamo::index::Status;
use serde_json::{Value as Json, json};
use std::sync::Arc;
use support::globals::{
    TABLE, attribute, check_rows, definition, described, done, index, items, memory, refused,
};
use support::memory::{Memory, api};

fn create(name: &str) -> Json {
    json!({
        "TableName": TABLE, "AttributeDefinitions": [attribute("c", "N")],
        "GlobalSecondaryIndexUpdates": [{"Create": index((name, "c", Some("b"), "ALL"))}]
    })
}

fn delete(name: &str) -> Json {
    json!({"TableName": TABLE, "GlobalSecondaryIndexUpdates": [{"Delete": {"IndexName": name}}]})
}

#[test]
fn indexes_come_and_go_one_at_a_time() {
    let (rows, api) = memory(0);
    let update = |change: &dyn Fn(&mut Json)| {
        let mut body = create("by-c");
        change(&mut body);
        refused(&api, "UpdateTable", &body)
    };
    let updates = "GlobalSecondaryIndexUpdates";
    for (change, says) in [
        (
            &(|body: &mut Json| drop(body.as_object_mut().unwrap().remove(updates)))
                as &dyn Fn(&mut Json),
            "At least one of",
        ),
        (&|body| body[updates] = json!([{}]), "must not be null"),
        (
            &|body| body["AttributeDefinitions"] = json!([]),
            "Keys: [c, b], AttributeDefinitions: [p, s, b, a]",
        ),
        (&|body| body["AttributeDefinitions"] = json!([attribute("b", "S")]), "is of type N"),
        (
            &|body| {
                body["AttributeDefinitions"] = json!([attribute("c", "N"), attribute("z", "S")]);
            },
            "are not used",
        ),
        (&|body| body[updates][0]["Create"]["IndexName"] = json!("by-a"), "already exists"),
        (
            &|body| body[updates][0]["Create"]["IndexName"] = json!("x"),
            "greater than or equal to 3",
        ),
        (
            &|body| body[updates] = json!([body[updates][0].clone(), body[updates][0].clone()]),
            "Only one global secondary index update per index",
        ),
    ] {
        let fault = update(change);
        assert!(
            fault.kind == Type::Validation && fault.message.contains(says),
            "{says}: {fault:?}"
        );
    }
    let two = update(&|body| {
        let other = json!({"Delete": {"IndexName": "by-a"}});
        body[updates] = json!([body[updates][0].clone(), other]);
    });
    assert_eq!(two.kind, Type::LimitExceeded);
    assert_eq!(refused(&api, "UpdateTable", &delete("none")).kind, Type::ResourceNotFound);
    assert_eq!(refused(&api, "UpdateTable", &delete("local")).kind, Type::ResourceNotFound);
    let told = done(&api, "UpdateTable", create("by-c"));
    let told = &told["TableDescription"];
    assert_eq!(told["GlobalSecondaryIndexes"][4]["IndexStatus"], "CREATING");
    assert!(told["AttributeDefinitions"].as_array().unwrap().contains(&attribute("c", "N")));
    for body in [create("by-d"), delete("by-a")] {
        assert_eq!(refused(&api, "UpdateTable", &body).kind, Type::LimitExceeded);
    }
    let query = json!({"TableName": TABLE, "IndexName": "by-c"});
    assert_eq!(
        refused(&api, "Scan", &query).message,
        "Cannot read from backfilling global secondary index: by-c"
    );
    done(&api, "UpdateTable", delete("by-c"));
    assert_eq!(refused(&api, "UpdateTable", &delete("by-c")).kind, Type::ResourceInUse);
    assert!(refused(&api, "Scan", &query).message.contains("does not have the specified index"));
    assert_eq!(described(&rows).index("by-c").unwrap().status(), Status::Deleting);
    // Its key's attribute is any attribute again.
    let item = json!({"p": {"S": "x"}, "s": {"N": "1"}, "c": {"S": "x"}});
    done(&api, "PutItem", json!({"TableName": TABLE, "Item": item}));
}

#[test]
fn throughput_is_kept_and_told() {
    let (rows, api) = memory(0);
    let updates = "GlobalSecondaryIndexUpdates";
    let units = json!({"ReadCapacityUnits": 1, "WriteCapacityUnits": 2});
    let mut body = json!({
        "TableName": TABLE, "BillingMode": "PROVISIONED", "ProvisionedThroughput": units
    });
    let fault = refused(&api, "UpdateTable", &body);
    assert!(fault.message.contains("must be specified for index: by-a"), "{fault:?}");
    let given = described(&rows).indexes.into_iter().filter(|index| index.global.is_some());
    let given = given
        .map(|index| json!({"Update": {"IndexName": index.name, "ProvisionedThroughput": units}}));
    body[updates] = given.collect();
    let told = done(&api, "UpdateTable", body.clone());
    let told = &told["TableDescription"];
    assert_eq!(told["ProvisionedThroughput"]["WriteCapacityUnits"], 2);
    assert_eq!(told["GlobalSecondaryIndexes"][0]["ProvisionedThroughput"]["WriteCapacityUnits"], 2);
    assert!(refused(&api, "UpdateTable", &body).message.contains("will not change"));
    done(&api, "UpdateTable", json!({"TableName": TABLE, "BillingMode": "PAY_PER_REQUEST"}));
    assert_eq!(described(&rows).throughput, None);
}

/// A node that has slept knows a table as it was before it had an index. What it writes then has its rows, too, or the
/// index would lack them for ever: plain puts, which look at nothing, above all.
#[test]
fn who_knows_a_table_as_it_was_writes_rows_of_its_new_index() {
    let rows = Arc::new(Memory::default());
    let api = api(rows.clone());
    let mut plain = definition();
    for part in ["LocalSecondaryIndexes", "GlobalSecondaryIndexes"] {
        plain.as_object_mut().unwrap().remove(part);
    }
    plain["AttributeDefinitions"] = json!([attribute("p", "S"), attribute("s", "N")]);
    done(&api, "CreateTable", plain);
    let old = rows.state.lock().unwrap().tables[TABLE].clone();
    let mut body = create("by-c");
    body["AttributeDefinitions"] = json!([attribute("b", "N"), attribute("c", "N")]);
    done(&api, "UpdateTable", body);
    *rows.described.lock().unwrap() = Some(old);
    let item = |s: u32, c: u32| {
        json!({
            "p": {"S": "x"}, "s": {"N": s.to_string()}, "b": {"N": "0"}, "c": {"N": c.to_string()}
        })
    };
    let check = || {
        let all = items(&api);
        check_rows(&rows, &all);
        all.len()
    };
    for s in 0..4 {
        done(&api, "PutItem", json!({"TableName": TABLE, "Item": item(s, 1)}));
    }
    assert_eq!(check(), 4);
    let key = |s: u32| json!({"p": {"S": "x"}, "s": {"N": s.to_string()}});
    done(&api, "DeleteItem", json!({"TableName": TABLE, "Key": key(0)}));
    let update = json!({
        "TableName": TABLE, "Key": key(1), "UpdateExpression": "SET c = :c",
        "ExpressionAttributeValues": {":c": {"N": "7"}}
    });
    done(&api, "UpdateItem", update);
    assert_eq!(check(), 3);
    let list = json!([
        {"PutRequest": {"Item": item(5, 2)}}, {"DeleteRequest": {"Key": key(2)}}
    ]);
    done(&api, "BatchWriteItem", json!({"RequestItems": {TABLE: list}}));
    let list = json!([
        {"Put": {"TableName": TABLE, "Item": item(6, 2)}},
        {"Delete": {"TableName": TABLE, "Key": key(3)}}
    ]);
    done(&api, "TransactWriteItems", json!({"TransactItems": list}));
    assert_eq!(check(), 3);
    // What the index does not take is refused, though the description from before knows of none.
    let mut wrong = item(7, 1);
    wrong["c"] = json!({"S": "x"});
    let fault = refused(&api, "PutItem", &json!({"TableName": TABLE, "Item": wrong}));
    assert!(fault.message.contains("Type mismatch for Index Key c"), "{fault:?}");
}

/// What is written as one has a size: an item, and its rows. More is refused before anything is written.
#[test]
fn an_item_and_its_rows_fit_into_one_group_or_are_refused() {
    let rows = Arc::new(Memory::default());
    let api = api(rows.clone());
    let mut body = definition();
    let many = (0..20).map(|n| index((&format!("by-{n}"), "a", Some("b"), "ALL")));
    body["GlobalSecondaryIndexes"] = many.collect();
    done(&api, "CreateTable", body);
    let item = |s: u32, a: &str, bytes: usize| {
        json!({
            "p": {"S": "x"}, "s": {"N": s.to_string()}, "a": {"S": a}, "b": {"N": "1"},
            "d": {"S": "x".repeat(bytes)}
        })
    };
    let put = |item: Json| json!({"TableName": TABLE, "Item": item});
    // Twenty rows and the item's own.
    done(&api, "PutItem", put(item(1, "a", 46_000)));
    let fault = refused(&api, "PutItem", &put(item(2, "a", 47_000)));
    assert!(
        fault.kind == Type::Validation
            && fault.message.starts_with("Item size has exceeded the maximum allowed size"),
        "{fault:?}"
    );
    assert_eq!(items(&api).len(), 1);
    // Every key changes: forty-one rows for each item.
    let update = |s: u32| {
        json!({"Update": {
            "TableName": TABLE, "Key": {"p": {"S": "x"}, "s": {"N": s.to_string()}},
            "UpdateExpression": "SET a = :a", "ExpressionAttributeValues": {":a": {"S": "b"}}
        }})
    };
    for s in 2..5 {
        done(&api, "PutItem", put(item(s, "a", 10)));
    }
    done(&api, "TransactWriteItems", json!({"TransactItems": [update(2), update(3)]}));
    check_rows(&rows, &items(&api));
    let three = json!({"TransactItems": [
        update(4), put_of(put(item(5, "a", 10))), put_of(put(item(6, "a", 10))),
        put_of(put(item(7, "a", 10))), put_of(put(item(8, "a", 10)))
    ]});
    let fault = refused(&api, "TransactWriteItems", &three);
    assert!(
        fault.kind == Type::Validation && fault.message.contains("of 128: write fewer items"),
        "{fault:?}"
    );
    assert_eq!(items(&api).len(), 4);
    // Keys that are too long together.
    let long = |zeros: usize| {
        let mut item = item(9, &"\0".repeat(zeros), 0);
        item["p"] = json!({"S": "x".repeat(2048)});
        item
    };
    done(&api, "PutItem", put(long(2000)));
    let fault = refused(&api, "PutItem", &put(long(2048)));
    assert!(fault.message.contains("are too long together: 61"), "{fault:?}");
}

fn put_of(put: Json) -> Json {
    json!({ "Put": put })
}

#[test]
fn consumed_capacity_is_told_of_rows_in_indexes() {
    let (_, api) = memory(0);
    let item = |a: &str, d: usize| {
        json!({
            "p": {"S": "x"}, "s": {"N": "1"}, "a": {"S": a}, "b": {"N": "1"},
            "d": {"S": "x".repeat(d)}
        })
    };
    let put = |item: Json| {
        let body = json!({"TableName": TABLE, "Item": item, "ReturnConsumedCapacity": "INDEXES"});
        done(&api, "PutItem", body)["ConsumedCapacity"].clone()
    };
    let units = |number: f64| json!({"CapacityUnits": number});
    // A row in each index; those that project all have two KiB.
    let told = put(item("a", 1500));
    assert_eq!(told["Table"], units(2.0));
    assert_eq!(told["LocalSecondaryIndexes"], json!({"local": units(1.0)}));
    let of_globals = json!({
        "by-a": units(1.0), "by-ab": units(2.0), "by-ba": units(1.0), "by-s": units(2.0)
    });
    assert_eq!(told["GlobalSecondaryIndexes"], of_globals);
    assert_eq!(told["CapacityUnits"], 9.0);
    // Where a key changes a row goes and another one comes; where nothing does, nothing is written.
    let told = put(item("b", 1500));
    let of_globals = json!({
        "by-a": units(2.0), "by-ab": units(4.0), "by-ba": units(2.0), "by-s": units(2.0)
    });
    assert_eq!(told["GlobalSecondaryIndexes"], of_globals);
    assert_eq!(told["LocalSecondaryIndexes"], Json::Null);
    let told = put(item("b", 1500));
    assert_eq!(
        (&told["GlobalSecondaryIndexes"], &told["CapacityUnits"]),
        (&Json::Null, &json!(2.0))
    );
    let query = json!({
        "TableName": TABLE, "IndexName": "by-ab", "KeyConditionExpression": "a = :a",
        "ExpressionAttributeValues": {":a": {"S": "b"}}, "ReturnConsumedCapacity": "INDEXES"
    });
    let told = &done(&api, "Query", query)["ConsumedCapacity"];
    assert_eq!((&told["Table"], &told["CapacityUnits"]), (&units(0.0), &json!(0.5)));
    assert_eq!(told["GlobalSecondaryIndexes"], json!({"by-ab": units(0.5)}));
    let deleted = json!({
        "TableName": TABLE, "Key": {"p": {"S": "x"}, "s": {"N": "1"}},
        "ReturnConsumedCapacity": "TOTAL"
    });
    let told = &done(&api, "DeleteItem", deleted)["ConsumedCapacity"];
    assert_eq!(*told, json!({"TableName": TABLE, "CapacityUnits": 9.0}));
}
