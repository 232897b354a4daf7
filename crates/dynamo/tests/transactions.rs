//! Transactions over a store in memory: all of one or nothing, reasons in order, tokens, and what they do held
//! against the same writes one by one.

mod support {
    pub mod memory;
    #[allow(dead_code, reason = "each test uses a part")]
    pub mod requests;
    pub use memory::*;
}

use holdfast_base::random::Random;
use holdfast_dynamo::api::Api;
use holdfast_dynamo::fault::{Fault, Type};
use holdfast_dynamo::{form, json as values};
use serde_json::{Value as Json, json};
use std::sync::{Arc, Mutex};
use support::requests::{Requests, TABLES, creation};
use support::{Memory, State, api, call, done};

fn create(api: &Api) {
    TABLES.into_iter().for_each(|table| drop(done(api, "CreateTable", creation(table))));
}

fn memory() -> (Arc<Memory>, Api) {
    let rows = Arc::new(Memory::default());
    let api = api(rows.clone());
    create(&api);
    (rows, api)
}

fn put(p: &str, n: u32) -> Json {
    json!({"Put": {"TableName": "one", "Item": {"p": {"S": p}, "n": {"N": n.to_string()}}}})
}

fn add(p: &str, n: i32) -> Json {
    json!({"Update": {
        "TableName": "one", "Key": {"p": {"S": p}}, "UpdateExpression": "SET n = n + :n",
        "ConditionExpression": "n + :n >= :z".replace("n + :n", "n"),
        "ExpressionAttributeValues": {":n": {"N": n.to_string()}, ":z": {"N": (-n).to_string()}},
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD"
    }})
}

fn transact(api: &Api, items: &[Json]) -> Result<Json, Fault> {
    call(api, "TransactWriteItems", json!({"TransactItems": items}))
}

fn number(api: &Api, p: &str) -> Option<String> {
    let body = json!({"TableName": "one", "Key": {"p": {"S": p}}});
    done(api, "GetItem", body)["Item"]["n"]["N"].as_str().map(str::to_owned)
}

#[test]
fn what_is_written_together_is_there_whole_or_not_at_all() {
    let (_, api) = memory();
    assert_eq!(transact(&api, &[put("a", 100), put("b", 0)]), Ok(json!({})));
    let check = json!({"ConditionCheck": {
        "TableName": "two", "Key": {"p": {"S": "x"}, "s": {"N": "1"}},
        "ConditionExpression": "attribute_not_exists(p)"
    }});
    assert_eq!(transact(&api, &[add("a", -60), check.clone(), add("b", 60)]), Ok(json!({})));
    assert_eq!((number(&api, "a"), number(&api, "b")), (Some("40".into()), Some("60".into())));
    let fault = transact(&api, &[check.clone(), add("b", 60), add("a", -60)]).unwrap_err();
    assert_eq!(fault.kind, Type::TransactionCanceled);
    let expected = json!({
        "__type": "com.amazonaws.dynamodb.v20120810#TransactionCanceledException",
        "Message": "Transaction cancelled, please refer cancellation reasons for specific reasons \
                    [None, None, ConditionalCheckFailed]",
        "CancellationReasons": [
            {"Code": "None"}, {"Code": "None"},
            {"Code": "ConditionalCheckFailed", "Message": "The conditional request failed",
             "Item": {"p": {"S": "a"}, "n": {"N": "40"}}}
        ]
    });
    assert_eq!(serde_json::from_str::<Json>(&fault.to_text()).unwrap(), expected);
    assert_eq!((number(&api, "a"), number(&api, "b")), (Some("40".into()), Some("60".into())));
    let delete = |p: &str| json!({"Delete": {"TableName": "one", "Key": {"p": {"S": p}}}});
    // One that is not there goes, too.
    assert_eq!(transact(&api, &[delete("a"), delete("none"), check]), Ok(json!({})));
    assert_eq!(number(&api, "a"), None);
    let told = call(
        &api,
        "TransactWriteItems",
        json!({"TransactItems": [put("a", 1), put("c", 1)], "ReturnConsumedCapacity": "TOTAL"}),
    );
    let units = json!([{"TableName": "one", "CapacityUnits": 4.0}]);
    assert_eq!(told.unwrap(), json!({"ConsumedCapacity": units}));
}

#[test]
fn what_is_read_together_is_in_order_and_says_what_is_not_there() {
    let (_, api) = memory();
    done(&api, "TransactWriteItems", json!({"TransactItems": [put("a", 1), put("b", 2)]}));
    let get = |p: &str| json!({"Get": {"TableName": "one", "Key": {"p": {"S": p}}}});
    let mut part = get("b");
    part["Get"]["ProjectionExpression"] = json!("n");
    let read = |items: &[Json]| {
        let body = json!({"TransactItems": items, "ReturnConsumedCapacity": "TOTAL"});
        call(&api, "TransactGetItems", body)
    };
    let expected = json!({
        "Responses": [{"Item": {"n": {"N": "2"}}}, {}, {"Item": {"p": {"S": "a"}, "n": {"N": "1"}}}],
        "ConsumedCapacity": [{"TableName": "one", "CapacityUnits": 6.0}]
    });
    assert_eq!(read(&[part, get("none"), get("a")]), Ok(expected));
    let twice = read(&[get("a"), get("a")]).unwrap_err();
    assert!(twice.message.contains("multiple operations on one item"), "{twice:?}");
    let misfit = json!({"Get": {"TableName": "two", "Key": {"p": {"S": "x"}}}});
    let fault = read(&[get("a"), misfit]).unwrap_err();
    assert_eq!(fault.kind, Type::TransactionCanceled);
    assert!(fault.message.ends_with("[None, ValidationError]"), "{fault:?}");
}

#[test]
fn transactions_do_what_their_items_do_one_by_one() {
    let (rows, api) = memory();
    let mut requests = Requests { random: Random::new(9) };
    let copy =
        |state: &State| Arc::new(Memory { state: Mutex::new(state.clone()), ..Memory::default() });
    let (mut made, mut cancelled, mut twice) = (0, 0, 0);
    for round in 0..3000 {
        let actions = requests.actions();
        // Each by itself, over what there was.
        let before = rows.state.lock().unwrap().clone();
        let trial = copy(&before);
        let mut expected = Vec::new();
        for (kind, body) in &actions {
            let (operation, over) = match *kind {
                "Put" => ("PutItem", trial.clone()),
                "Update" => ("UpdateItem", trial.clone()),
                "Delete" => ("DeleteItem", trial.clone()),
                _ => ("DeleteItem", copy(&before)),
            };
            expected.push(call(&support::api(over), operation, body.clone()).err());
        }
        let items: Vec<Json> = actions.iter().map(|(kind, body)| json!({*kind: body})).collect();
        let key = |body: &Json| {
            let whole = if body["Key"].is_null() { &body["Item"] } else { &body["Key"] };
            format!("{} {} {}", body["TableName"], whole["p"], whole["s"])
        };
        let mut keys: Vec<String> = actions.iter().map(|(_, body)| key(body)).collect();
        keys.sort();
        keys.dedup();
        let told = transact(&api, &items);
        let is_wrong = |fault: &Fault| fault.kind == Type::Validation;
        match told {
            Ok(_) => {
                made += 1;
                assert!(expected.iter().all(Option::is_none), "{round}: {items:?}: {expected:?}");
                assert_eq!(all(&api), all(&support::api(trial)), "{round}: {items:?}");
                continue;
            }
            Err(fault) if fault.kind == Type::TransactionCanceled => {
                cancelled += 1;
                assert_eq!(fault.reasons.len(), actions.len());
                for (reason, alone) in fault.reasons.iter().zip(&expected) {
                    match alone {
                        None => assert_eq!(reason.code, "None", "{round}: {items:?}"),
                        Some(alone) if alone.kind == Type::ConditionalCheckFailed => {
                            assert_eq!(reason.code, "ConditionalCheckFailed", "{round}: {items:?}");
                            assert_eq!(reason.item, alone.item);
                        }
                        Some(alone) => {
                            assert_eq!(reason.code, "ValidationError", "{round}: {items:?}");
                            assert_eq!(reason.message.as_ref(), Some(&alone.message));
                        }
                    }
                }
                assert!(expected.iter().any(Option::is_some), "{round}: {items:?}");
            }
            Err(fault) => {
                let is_twice = keys.len() < actions.len();
                twice += u32::from(is_twice);
                assert!(is_wrong(&fault), "{round}: {items:?}: {fault:?}");
                assert!(
                    is_twice || expected.iter().flatten().any(is_wrong),
                    "{items:?}: {fault:?}"
                );
            }
        }
        assert_eq!(all(&api), all(&support::api(copy(&before))), "nothing was written");
    }
    assert!(made > 400 && cancelled > 400 && twice > 100, "{made}, {cancelled}, {twice}");
}

fn all(api: &Api) -> Vec<Json> {
    TABLES.iter().map(|(name, ..)| done(api, "Scan", json!({"TableName": name}))).collect()
}

#[test]
fn a_token_is_one_transaction() {
    let (_, api) = memory();
    done(&api, "TransactWriteItems", json!({"TransactItems": [put("a", 1)]}));
    let with = |token: &str, items: &[Json]| {
        let body = json!({"TransactItems": items, "ClientRequestToken": token});
        call(&api, "TransactWriteItems", body)
    };
    assert_eq!(with("t", &[add("a", 2)]), Ok(json!({})));
    assert_eq!(with("t", &[add("a", 2)]), Ok(json!({})), "it is done");
    assert_eq!(number(&api, "a").unwrap(), "3", "once");
    let other = with("t", &[add("a", 4)]).unwrap_err();
    assert_eq!(other.kind, Type::IdempotentParameterMismatch);
    // What was cancelled was not made: its token stands for nothing.
    assert_eq!(with("u", &[add("a", -9)]).unwrap_err().kind, Type::TransactionCanceled);
    assert_eq!(with("u", &[add("a", -1)]), Ok(json!({})));
    assert_eq!(number(&api, "a").unwrap(), "2");
    for (token, must) in [("", "greater than or equal to 1"), (&"x".repeat(37), "equal to 36")] {
        let wrong = with(token, &[add("a", 1)]).unwrap_err();
        assert!(wrong.kind == Type::Validation && wrong.message.contains(must), "{wrong:?}");
    }
    assert_eq!(with(&"x".repeat(36), &[add("a", 1)]), Ok(json!({})));
}

#[test]
fn what_somebody_else_writes_meanwhile_is_decided_on() {
    let (rows, api) = memory();
    done(&api, "TransactWriteItems", json!({"TransactItems": [put("a", 1), put("b", 1)]}));
    let item = values::to_item(&json!({"p": {"S": "a"}, "n": {"N": "5"}})).unwrap().value;
    let key = holdfast_dynamo::key::of_partition(&item["p"]).unwrap();
    rows.meanwhile.lock().unwrap().push(("one".into(), key, form::to_bytes(&item)));
    assert_eq!(transact(&api, &[add("b", 1), add("a", 1)]), Ok(json!({})));
    assert_eq!((number(&api, "a").unwrap(), number(&api, "b").unwrap()), ("6".into(), "2".into()));
    *rows.contended.lock().unwrap() = 19;
    assert_eq!(transact(&api, &[add("b", 1), add("a", 1)]), Ok(json!({})));
    *rows.contended.lock().unwrap() = 20;
    let fault = transact(&api, &[add("b", 1), add("a", 1)]).unwrap_err();
    assert!(fault.message.ends_with("[TransactionConflict, None]"), "{fault:?}");
    assert_eq!((number(&api, "a").unwrap(), number(&api, "b").unwrap()), ("7".into(), "3".into()));
}

#[test]
fn items_that_lie_apart_are_refused_and_one_alone_is_not() {
    let rows = Arc::new(Memory { apart: true, ..Memory::default() });
    let api = api(rows);
    create(&api);
    let fault = transact(&api, &[put("a", 1), put("b", 1)]).unwrap_err();
    assert!(fault.kind == Type::Validation && fault.message.contains("several tablets"));
    assert_eq!(transact(&api, &[put("a", 1)]), Ok(json!({})));
    assert_eq!((number(&api, "a"), number(&api, "b")), (Some("1".into()), None));
}

#[test]
fn wrong_transactions_are_refused_before_anything_is_written() {
    let (_, api) = memory();
    let of = |kind: &str, inner: Json| json!({"TransactItems": [put("a", 1), {kind: inner}]});
    let key = json!({"p": {"S": "x"}});
    let reason = |code: &str| format!("[None, {code}]");
    for (body, kind, says) in [
        (json!({}), Type::Validation, "Value null at 'transactItems'".to_owned()),
        (json!({"TransactItems": []}), Type::Validation, "equal to 1".to_owned()),
        (json!({"TransactItems": vec![put("a", 1); 101]}), Type::Validation, "equal to 100".into()),
        (json!({"TransactItems": [1]}), Type::Serialization, "value type".into()),
        (json!({"TransactItems": [{}]}), Type::Validation, "only contain one of".into()),
        (
            json!({"TransactItems": [{"Put": put("a", 1)["Put"], "Delete": {"TableName": "one", "Key": key}}]}),
            Type::Validation,
            "only contain one of".into(),
        ),
        (
            of("Put", json!({"TableName": "one"})),
            Type::Validation,
            "Value null at 'transactItems.2.member.put.item'".into(),
        ),
        (
            of("Delete", json!({"Key": key})),
            Type::Validation,
            "Value null at 'transactItems.2.member.delete.tableName'".into(),
        ),
        (
            of("ConditionCheck", json!({"TableName": "one", "Key": key})),
            Type::Validation,
            "member.conditionCheck.conditionExpression'".into(),
        ),
        (
            of("Update", json!({"TableName": "one", "Key": key})),
            Type::Validation,
            "member.update.updateExpression'".into(),
        ),
        (
            of("Delete", json!({"TableName": "one", "Key": key, "ConditionExpression": "a ="})),
            Type::Validation,
            "Invalid ConditionExpression".into(),
        ),
        (of("Delete", json!({"TableName": "none", "Key": key})), Type::ResourceNotFound, "".into()),
        (
            of("Delete", json!({"TableName": "two", "Key": key})),
            Type::TransactionCanceled,
            reason("ValidationError"),
        ),
        (
            of("Put", json!({"TableName": "two", "Item": key})),
            Type::TransactionCanceled,
            reason("ValidationError"),
        ),
        (
            of("Update", json!({"TableName": "one", "Key": key, "UpdateExpression": "REMOVE p"})),
            Type::TransactionCanceled,
            reason("ValidationError"),
        ),
        (
            of("Update", json!({"TableName": "one", "Key": key, "UpdateExpression": "SET a = b"})),
            Type::TransactionCanceled,
            reason("ValidationError"),
        ),
        (
            json!({"TransactItems": [put("a", 1), add("a", 1)]}),
            Type::Validation,
            "multiple operations on one item".into(),
        ),
    ] {
        let fault = call(&api, "TransactWriteItems", body.clone()).expect_err(&body.to_string());
        assert!(fault.kind == kind && fault.message.contains(&says), "{body}: {fault:?}");
    }
    assert_eq!(number(&api, "a"), None);
}
