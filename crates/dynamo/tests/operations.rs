//! Operations over a store in memory: what they answer, what they refuse, what they leave.

#[path = "support/memory.rs"]
mod support;

use holdfast_dynamo::api::Api;
use holdfast_dynamo::fault::Type;
use serde_json::{Value as Json, json};
use std::sync::Arc;
use support::{Memory, api, call, done};

fn refused(api: &Api, operation: &str, body: Json) -> (Type, String) {
    let fault = call(api, operation, body.clone()).expect_err(&format!("{operation} {body}"));
    (fault.kind, fault.message)
}

fn create(api: &Api, name: &str, sort: Option<&str>) {
    let mut body = json!({
        "TableName": name, "BillingMode": "PAY_PER_REQUEST",
        "KeySchema": [{"AttributeName": "p", "KeyType": "HASH"}],
        "AttributeDefinitions": [{"AttributeName": "p", "AttributeType": "S"}]
    });
    if let Some(kind) = sort {
        let push = |list: &mut Json, what: Json| list.as_array_mut().unwrap().push(what);
        push(&mut body["KeySchema"], json!({"AttributeName": "s", "KeyType": "RANGE"}));
        let definition = json!({"AttributeName": "s", "AttributeType": kind});
        push(&mut body["AttributeDefinitions"], definition);
    }
    done(api, "CreateTable", body);
}

fn put(api: &Api, table: &str, item: Json) {
    assert_eq!(done(api, "PutItem", json!({"TableName": table, "Item": item})), json!({}));
}

fn memory() -> (Arc<Memory>, Api) {
    let rows = Arc::new(Memory::default());
    (rows.clone(), api(rows))
}

#[test]
fn tables_come_and_go() {
    let (_, api) = memory();
    create(&api, "abc", None);
    create(&api, "abd", Some("N"));
    let told = done(&api, "DescribeTable", json!({"TableName": "abd"}));
    assert_eq!(told["Table"]["KeySchema"][1], json!({"AttributeName": "s", "KeyType": "RANGE"}));
    assert_eq!(told["Table"]["CreationDateTime"], json!(1_700_000_000.123));
    let listed = done(&api, "ListTables", json!({"Limit": 1}));
    assert_eq!(listed, json!({"TableNames": ["abc"], "LastEvaluatedTableName": "abc"}));
    let more = done(&api, "ListTables", json!({"ExclusiveStartTableName": "abc"}));
    assert_eq!(more, json!({"TableNames": ["abd"]}));
    put(&api, "abc", json!({"p": {"S": "x"}}));
    let again = json!({
        "TableName": "abc", "BillingMode": "PAY_PER_REQUEST",
        "KeySchema": [{"AttributeName": "p", "KeyType": "HASH"}],
        "AttributeDefinitions": [{"AttributeName": "p", "AttributeType": "S"}]
    });
    assert_eq!(refused(&api, "CreateTable", again.clone()).0, Type::ResourceInUse);
    let gone = done(&api, "DeleteTable", json!({"TableName": "abc"}));
    assert_eq!(gone["TableDescription"]["TableStatus"], "DELETING");
    assert_eq!(
        refused(&api, "DescribeTable", json!({"TableName": "abc"})).0,
        Type::ResourceNotFound
    );
    done(&api, "CreateTable", again);
    assert_eq!(done(&api, "Scan", json!({"TableName": "abc"}))["Count"], 0);
}

#[test]
fn a_tables_ttl_is_kept_in_its_description() {
    let (_, api) = memory();
    create(&api, "abc", None);
    let set = |enabled: bool, name: &str| {
        json!({
            "TableName": "abc",
            "TimeToLiveSpecification": {"Enabled": enabled, "AttributeName": name}
        })
    };
    let told = || {
        done(&api, "DescribeTimeToLive", json!({"TableName": "abc"}))["TimeToLiveDescription"]
            .clone()
    };
    assert_eq!(told(), json!({"TimeToLiveStatus": "DISABLED"}));
    assert!(refused(&api, "UpdateTimeToLive", set(false, "t")).1.contains("already disabled"));
    done(&api, "UpdateTimeToLive", set(true, "t"));
    assert_eq!(told(), json!({"TimeToLiveStatus": "ENABLED", "AttributeName": "t"}));
    assert!(refused(&api, "UpdateTimeToLive", set(true, "t")).1.contains("already enabled"));
    assert!(refused(&api, "UpdateTimeToLive", set(false, "u")).1.contains("different"));
    done(&api, "UpdateTimeToLive", set(false, "t"));
    assert_eq!(told(), json!({"TimeToLiveStatus": "DISABLED"}));
}

#[test]
fn writes_are_conditional_and_tell_what_was_there() {
    let (_, api) = memory();
    create(&api, "abc", None);
    put(&api, "abc", json!({"p": {"S": "x"}, "n": {"N": "1"}}));
    let (kind, _) = refused(
        &api,
        "PutItem",
        json!({
            "TableName": "abc", "Item": {"p": {"S": "x"}},
            "ConditionExpression": "attribute_not_exists(p)"
        }),
    );
    assert_eq!(kind, Type::ConditionalCheckFailed);
    let fault = call(
        &api,
        "DeleteItem",
        json!({
            "TableName": "abc", "Key": {"p": {"S": "x"}}, "ConditionExpression": "n > :n",
            "ExpressionAttributeValues": {":n": {"N": "5"}},
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD"
        }),
    )
    .unwrap_err();
    let told: Json = serde_json::from_str(&fault.to_text()).unwrap();
    assert_eq!(told["Item"]["n"], json!({"N": "1"}));
    let update = |returns: &str| {
        done(
            &api,
            "UpdateItem",
            json!({
                "TableName": "abc", "Key": {"p": {"S": "x"}}, "ReturnValues": returns,
                "UpdateExpression": "SET n = n + :n", "ExpressionAttributeValues": {":n": {"N": "0.5"}},
                "ReturnConsumedCapacity": "TOTAL"
            }),
        )
    };
    assert_eq!(update("UPDATED_NEW")["Attributes"], json!({"n": {"N": "1.5"}}));
    assert_eq!(update("UPDATED_OLD")["Attributes"], json!({"n": {"N": "1.5"}}));
    assert_eq!(update("ALL_OLD")["Attributes"], json!({"n": {"N": "2"}, "p": {"S": "x"}}));
    let none = update("NONE");
    assert_eq!(none, json!({"ConsumedCapacity": {"TableName": "abc", "CapacityUnits": 1.0}}));
    let old = done(
        &api,
        "DeleteItem",
        json!({
            "TableName": "abc", "Key": {"p": {"S": "x"}}, "ReturnValues": "ALL_OLD"
        }),
    );
    assert_eq!(old["Attributes"]["n"], json!({"N": "3"}));
    assert_eq!(
        done(&api, "GetItem", json!({"TableName": "abc", "Key": {"p": {"S": "x"}}})),
        json!({})
    );
    // An update makes the item that is not there.
    done(&api, "UpdateItem", json!({"TableName": "abc", "Key": {"p": {"S": "y"}}}));
    let got = done(&api, "GetItem", json!({"TableName": "abc", "Key": {"p": {"S": "y"}}}));
    assert_eq!(got, json!({"Item": {"p": {"S": "y"}}}));
}

#[test]
fn a_contended_write_is_decided_anew_and_given_up_in_the_end() {
    let (rows, api) = memory();
    create(&api, "abc", None);
    let add = json!({
        "TableName": "abc", "Key": {"p": {"S": "x"}}, "ReturnValues": "ALL_NEW",
        "UpdateExpression": "ADD n :n", "ExpressionAttributeValues": {":n": {"N": "1"}}
    });
    *rows.contended.lock().unwrap() = 5;
    assert_eq!(done(&api, "UpdateItem", add.clone())["Attributes"]["n"], json!({"N": "1"}));
    *rows.contended.lock().unwrap() = 1000;
    assert_eq!(refused(&api, "UpdateItem", add.clone()).0, Type::ThroughputExceeded);
    *rows.contended.lock().unwrap() = 0;
    assert_eq!(done(&api, "UpdateItem", add)["Attributes"]["n"], json!({"N": "2"}));
}

#[test]
fn queries_give_ranges_in_pages_forwards_and_backwards() {
    let rows = Arc::new(Memory { rows_max: 3, ..Memory::default() });
    let api = api(rows);
    create(&api, "abc", Some("N"));
    for i in -5..=5 {
        put(
            &api,
            "abc",
            json!({"p": {"S": "x"}, "s": {"N": (i * 3).to_string()}, "odd": {"BOOL": i % 2 != 0}}),
        );
        put(&api, "abc", json!({"p": {"S": "y"}, "s": {"N": i.to_string()}}));
    }
    let ask = |condition: &str, more: Json| {
        let mut body = json!({
            "TableName": "abc", "KeyConditionExpression": format!("p = :p{condition}"),
            "ExpressionAttributeValues": {":p": {"S": "x"}}
        });
        for (name, value) in more.as_object().unwrap() {
            match name.starts_with(':') {
                true => body["ExpressionAttributeValues"][name] = json!({"N": value}),
                false => body[name] = value.clone(),
            }
        }
        body
    };
    let sorts = |answer: &Json| -> Vec<i64> {
        let items = answer["Items"].as_array().unwrap().iter();
        items.map(|item| item["s"]["N"].as_str().unwrap().parse().unwrap()).collect()
    };
    let found = |condition: &str, more: Json| sorts(&done(&api, "Query", ask(condition, more)));
    assert_eq!(found("", json!({})), [-15, -12, -9, -6, -3, 0, 3, 6, 9, 12, 15]);
    assert_eq!(found(" AND s > :a", json!({":a": "9"})), [12, 15]);
    assert_eq!(found(" AND s >= :a", json!({":a": "9", "ScanIndexForward": false})), [15, 12, 9]);
    assert_eq!(found(" AND :a > s", json!({":a": "-9"})), [-15, -12]);
    assert_eq!(found(" AND s <= :a", json!({":a": "-9"})), [-15, -12, -9]);
    assert_eq!(found(" AND s = :a", json!({":a": "0.0"})), [0]);
    assert_eq!(found(" AND s BETWEEN :a AND :b", json!({":a": "-3", ":b": "3"})), [-3, 0, 3]);
    // Pages of all sizes give the same, either way.
    for (forward, limit) in (1..13).flat_map(|limit| [(true, limit), (false, limit)]) {
        let (mut all, mut start) = (Vec::new(), Json::Null);
        loop {
            let answer = done(
                &api,
                "Query",
                ask(
                    "",
                    json!({
                        "Limit": limit, "ScanIndexForward": forward, "ExclusiveStartKey": start
                    }),
                ),
            );
            all.extend(sorts(&answer));
            start = answer["LastEvaluatedKey"].clone();
            if start.is_null() {
                break;
            }
        }
        let mut expected: Vec<i64> = (-5..=5).map(|i| i * 3).collect();
        if !forward {
            expected.reverse();
        }
        assert_eq!(all, expected, "{limit}");
    }
    let mut filtered = ask("", json!({"Limit": 4, "FilterExpression": "odd = :t"}));
    filtered["ExpressionAttributeValues"][":t"] = json!({"BOOL": true});
    let answer = done(&api, "Query", filtered.clone());
    assert_eq!((sorts(&answer), &answer["ScannedCount"]), (vec![-15, -9], &json!(4)));
    filtered["Select"] = json!("COUNT");
    let counted = done(&api, "Query", filtered);
    assert_eq!((&counted["Count"], counted.get("Items")), (&json!(2), None));
    let outside = ask("", json!({"ExclusiveStartKey": {"p": {"S": "y"}, "s": {"N": "1"}}}));
    assert!(refused(&api, "Query", outside).1.contains("outside query boundaries"));
}

#[test]
fn segments_of_a_scan_share_a_table() {
    let (_, api) = memory();
    create(&api, "abc", None);
    for i in 0..100 {
        put(&api, "abc", json!({"p": {"S": i.to_string()}}));
    }
    for segments in [1, 2, 3, 7, 1000] {
        let mut all = Vec::new();
        for segment in 0..segments {
            let mut start = Json::Null;
            loop {
                let page = done(
                    &api,
                    "Scan",
                    json!({
                        "TableName": "abc", "Segment": segment, "TotalSegments": segments, "Limit": 9,
                        "ExclusiveStartKey": start
                    }),
                );
                all.extend(page["Items"].as_array().unwrap().iter().map(Json::to_string));
                start = page["LastEvaluatedKey"].clone();
                if start.is_null() {
                    break;
                }
            }
        }
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!((count, all.len()), (100, 100), "{segments}");
    }
    let start = json!({"p": {"S": "1"}});
    let wrong = (0..2).filter(|segment| {
        call(&api, "Scan", json!({
        "TableName": "abc", "Segment": segment, "TotalSegments": 2, "ExclusiveStartKey": start
    })).is_err()
    });
    assert_eq!(wrong.count(), 1);
}

#[test]
fn a_page_ends_at_a_mebibyte() {
    let (_, api) = memory();
    create(&api, "abc", Some("S"));
    for i in 0..5 {
        put(
            &api,
            "abc",
            json!({
                "p": {"S": "x"}, "s": {"S": i.to_string()}, "b": {"S": "x".repeat(300 << 10)}
            }),
        );
    }
    let page = done(&api, "Scan", json!({"TableName": "abc", "ReturnConsumedCapacity": "TOTAL"}));
    assert_eq!((&page["Count"], &page["LastEvaluatedKey"]["s"]["S"]), (&json!(4), &json!("3")));
    assert_eq!(page["ConsumedCapacity"]["CapacityUnits"], 150.5);
    let large = json!({"p": {"S": "x"}, "s": {"S": "l"}, "b": {"S": "x".repeat(400 << 10)}});
    let (kind, why) = refused(&api, "PutItem", json!({"TableName": "abc", "Item": large}));
    assert_eq!((kind, why.contains("Item size has exceeded")), (Type::Validation, true));
}

#[test]
fn batches_say_what_they_left() {
    let (rows, api) = memory();
    create(&api, "abc", None);
    let put = |i: usize| json!({"PutRequest": {"Item": {"p": {"S": i.to_string()}}}});
    let batch =
        |count: usize| json!({"RequestItems": {"abc": (0..count).map(put).collect::<Vec<_>>()}});
    *rows.full_after.lock().unwrap() = Some(3);
    let answer = done(&api, "BatchWriteItem", batch(5));
    assert_eq!(answer["UnprocessedItems"]["abc"], json!([put(3), put(4)]));
    assert_eq!(refused(&api, "BatchWriteItem", batch(5)).0, Type::ServiceUnavailable);
    *rows.full_after.lock().unwrap() = None;
    assert_eq!(done(&api, "BatchWriteItem", batch(25)), json!({"UnprocessedItems": {}}));
    assert_eq!(refused(&api, "BatchWriteItem", batch(26)).0, Type::Validation);
    let twice =
        json!({"RequestItems": {"abc": [put(1), {"DeleteRequest": {"Key": {"p": {"S": "1"}}}}]}});
    assert!(refused(&api, "BatchWriteItem", twice).1.contains("duplicates"));
    let key = |i: usize| json!({"p": {"S": i.to_string()}});
    let keys = |count: usize| (0..count).map(key).collect::<Vec<_>>();
    let got = done(
        &api,
        "BatchGetItem",
        json!({
            "RequestItems": {"abc": {"Keys": keys(100), "ProjectionExpression": "p"}}
        }),
    );
    assert_eq!(got["Responses"]["abc"].as_array().unwrap().len(), 25);
    let many = json!({"RequestItems": {"abc": {"Keys": keys(101)}}});
    assert_eq!(refused(&api, "BatchGetItem", many).0, Type::Validation);
}

#[test]
fn what_is_not_there_is_refused_by_its_name() {
    let (_, api) = memory();
    create(&api, "abc", Some("S"));
    for operation in ["ExecuteTransaction", "ExecuteStatement", "Nonsense", "getItem", ""] {
        let (kind, why) = refused(&api, operation, json!({}));
        assert!(kind == Type::UnknownOperation && why.contains(operation), "{operation}");
    }
    for name in ["Expected", "AttributeUpdates", "KeyConditions", "ScanFilter", "AttributesToGet"] {
        let (kind, why) = refused(&api, "Scan", json!({"TableName": "abc", name: {}}));
        assert!(kind == Type::Validation && why.contains(name), "{why}");
    }
    let (_, why) = refused(
        &api,
        "Query",
        json!({
            "TableName": "abc", "IndexName": "some", "KeyConditionExpression": "p = :p",
            "ExpressionAttributeValues": {":p": {"S": "x"}}
        }),
    );
    assert!(why.contains("does not have the specified index: some"));
    let (_, why) = refused(&api, "GetItem", json!({"Key": {}, "ReturnConsumedCapacity": "SOME"}));
    assert!(why.starts_with("2 validation errors detected: Value null at 'tableName'"), "{why}");
    assert_eq!(refused(&api, "Scan", json!([])).0, Type::Serialization);
}
