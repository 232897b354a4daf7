//! The port: what it answers to whom, and in what form.

mod support {
    pub mod memory;
    pub mod port;
    pub use memory::*;
}

use crc_fast::{CrcAlgorithm, checksum};
use holdfast_env::Budget;
use serde_json::json;
use support::port::{Client, start, start_within};

#[test]
fn requests_are_answered_with_a_checksum_and_an_id() {
    let (_server, address) = start(1 << 30);
    let mut client = Client::connect(address).unwrap();
    let first = client.call("ListTables", b"{}").unwrap();
    assert_eq!((first.status, first.json()), (200, json!({"TableNames": []})));
    let sum = checksum(CrcAlgorithm::Crc32IsoHdlc, first.body.as_bytes()).to_string();
    assert_eq!(first.header("x-amz-crc32"), Some(sum.as_str()));
    assert_eq!(first.header("content-type"), Some("application/x-amz-json-1.0"));
    let second = client.call("DescribeEndpoints", b"{}").unwrap();
    assert_eq!(second.json()["Endpoints"][0]["Address"], json!(address.to_string()));
    assert_ne!(first.header("x-amzn-requestid"), second.header("x-amzn-requestid"));
    let error = client.call("DescribeTable", br#"{"TableName": "abc"}"#).unwrap();
    assert_eq!(error.status, 400);
    let kind = "com.amazonaws.dynamodb.v20120810#ResourceNotFoundException";
    assert_eq!(error.json()["__type"], kind);
}

#[test]
fn who_is_not_known_or_may_not_is_refused() {
    let (_server, address) = start(1 << 30);
    let mut client = Client::connect(address).unwrap();
    let kind = |answer: support::port::Answer| {
        answer.json()["__type"].as_str().unwrap_or_default().rsplit('#').next().unwrap().to_owned()
    };
    client.key = "STRANGER".into();
    assert_eq!(kind(client.call("ListTables", b"{}").unwrap()), "UnrecognizedClientException");
    // Nothing of what a stranger sends is looked at.
    assert_eq!(kind(client.call("ListTables", b"{").unwrap()), "UnrecognizedClientException");
    client.key = "READER".into();
    assert_eq!(client.call("ListTables", b"{}").unwrap().status, 200);
    assert_eq!(kind(client.call("CreateTable", b"{}").unwrap()), "AccessDeniedException");
    assert_eq!(kind(client.call("Nonsense", b"{}").unwrap()), "AccessDeniedException");
    client.key = support::port::ACCESS_KEY.into();
    assert_eq!(kind(client.call("Nonsense", b"{}").unwrap()), "UnknownOperationException");
    assert_eq!(kind(client.call("ListTables", b"{").unwrap()), "SerializationException");
    let deep = "[".repeat(100_000);
    assert_eq!(kind(client.call("Scan", deep.as_bytes()).unwrap()), "SerializationException");
}

#[test]
fn what_is_no_request_of_this_api_is_refused_in_front_of_its_body() {
    let (_server, address) = start(1 << 30);
    let ask = |text: &str| Client::connect(address).unwrap().raw(text.as_bytes()).unwrap();
    let healthy = ask("GET / HTTP/1.1\r\nhost: h\r\n\r\n");
    assert!(healthy.status == 200 && healthy.body.starts_with("healthy"));
    let json = "content-type: application/json";
    for head in ["GET /x", "PUT /", "POST /x", "DELETE /"] {
        let request =
            format!("{head} HTTP/1.1\r\nhost: h\r\n{json}\r\ncontent-length: 2\r\n\r\n{{}}");
        assert_eq!(ask(&request).status, 404, "{head}");
    }
    let unsigned = format!(
        "POST / HTTP/1.1\r\nhost: h\r\n{json}\r\nx-amz-target: DynamoDB_20120810.ListTables\r\n\
         content-length: 2\r\n\r\n{{}}"
    );
    assert!(ask(&unsigned).body.contains("MissingAuthenticationTokenException"));
    let untargeted =
        format!("POST / HTTP/1.1\r\nhost: h\r\n{json}\r\ncontent-length: 2\r\n\r\n{{}}");
    assert!(ask(&untargeted).body.contains("UnknownOperationException"));
    let large = Client::connect(address).unwrap().head("ListTables", b"", (16 << 20) + 1);
    assert_eq!(ask(&large).status, 413);
}

#[test]
fn a_body_that_no_memory_could_hold_is_refused() {
    let (_server, address) = start(4 << 20);
    let mut client = Client::connect(address).unwrap();
    assert_eq!(client.call("ListTables", b"{}").unwrap().status, 200);
    let large = client.head("ListTables", b"", 16_000_000);
    let refused = Client::connect(address).unwrap().raw(large.as_bytes()).unwrap();
    assert_eq!(refused.status, 413);
    assert_eq!(client.call("ListTables", b"{}").unwrap().status, 200);
}

/// Bodies of strangers took what all clients of the node may have together: a few connections that sent a
/// byte a second held up everybody, on every port. They are answered before a byte comes.
#[test]
fn a_stranger_is_answered_without_a_body() {
    let (_server, address) = start(64 << 20);
    let mut client = Client::connect(address).unwrap();
    let mut waiting = Vec::new();
    for _ in 0..40 {
        let mut stranger = Client::connect(address).unwrap();
        stranger.key = "NOBODY".into();
        let head = stranger.head("ListTables", b"", 1 << 20);
        assert_eq!(stranger.raw(head.as_bytes()).unwrap().status, 400);
        waiting.push(stranger);
    }
    assert_eq!(client.call("ListTables", b"{}").unwrap().status, 200);
}

/// A document of small values takes many times its bytes, which count before it is looked at.
#[test]
fn a_document_counts_for_what_it_takes() {
    let (_server, address) = start(64 << 20);
    let mut client = Client::connect(address).unwrap();
    let values = vec!["{\"\":0}"; 300_000].join(",");
    let body = format!("{{\"x\":[{values}]}}");
    let refused = client.call("ListTables", body.as_bytes()).unwrap();
    assert!(refused.status >= 500 && refused.body.contains("memory"), "{}", refused.body);
    assert_eq!(client.call("ListTables", b"{}").unwrap().status, 200);
}

/// What was done is said to be done, also where its answer is larger than what memory there is: clients
/// do again what is refused, and a counter would count twice.
#[test]
fn what_is_done_is_answered_whatever_it_takes() {
    let budget = Budget::new(64 << 20);
    let (_server, address) = start_within(budget.clone());
    let mut client = Client::connect(address).unwrap();
    let make = r#"{"TableName":"tab","KeySchema":[{"AttributeName":"k","KeyType":"HASH"}],
        "AttributeDefinitions":[{"AttributeName":"k","AttributeType":"S"}],
        "BillingMode":"PAY_PER_REQUEST"}"#;
    assert_eq!(client.call("CreateTable", make.as_bytes()).unwrap().status, 200);
    let mut update = |what: &str, value: &str| {
        let body = format!(
            r#"{{"TableName":"tab","Key":{{"k":{{"S":"a"}}}},"UpdateExpression":"{what}",
                "ExpressionAttributeValues":{{":v":{value}}},"ReturnValues":"ALL_NEW"}}"#
        );
        client.call("UpdateItem", body.as_bytes()).unwrap()
    };
    // A byte that six stand for in JSON.
    let piece = format!(r#"{{"S":"{}"}}"#, "\\u0001".repeat(10_000));
    for number in 0..39 {
        assert_eq!(update(&format!("SET a{number} = :v"), &piece).status, 200);
    }
    // Others have all but what a small request takes.
    let _others = budget.hold(budget.limit() - budget.used() - (3 << 20));
    let counted = update("ADD n :v", r#"{"N":"1"}"#);
    assert_eq!(counted.status, 200);
    assert!(counted.body.len() > 2 << 20, "{} bytes", counted.body.len());
    assert_eq!(counted.json()["Attributes"]["n"]["N"], "1");
}
