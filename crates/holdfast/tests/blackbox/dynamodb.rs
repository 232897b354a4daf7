//! DynamoDB's API from outside: boto3, a node that is killed, items of a table that is gone.

use crate::common::{Node, Scratch, free_port};
use crate::memcached::python;
use serde_json::Value;
use std::fs;

#[test]
fn boto3_works_with_tables_that_outlive_the_node() {
    let scratch = Scratch::new();
    let data = scratch.path("data");
    let (s3, port) = (free_port(), free_port());
    let settings = format!("s3_port = {s3}\ndynamodb_port = {port}\n");
    let node = Node::start_with(&data, &settings);
    let text = fs::read(data.join("credentials.json")).unwrap();
    let credentials: Value = serde_json::from_slice(&text).unwrap();
    let key = |name: &str| credentials[name].as_str().unwrap().to_owned();
    let arguments = |phase: &str| {
        let endpoint = format!("http://127.0.0.1:{port}");
        [endpoint, key("access_key"), key("secret_key"), phase.to_owned()]
    };
    python("dynamodb.py", &arguments("write"));
    node.kill();
    let node = Node::start_with(&data, &settings);
    python("dynamodb.py", &arguments("read"));
    // Nobody else writes: in the end there is one row for the name, and one item.
    if node.client().table_describe("dynamodb").is_ok() {
        let mut client = node.client();
        let records = |client: &mut holdfast_client::Client| -> u64 {
            let info = client.table_describe("dynamodb").unwrap();
            info.tablets.iter().map(|tablet| tablet.records).sum()
        };
        // Every attempt is a round trip.
        let gone = (0..2_000_000).any(|_| records(&mut client) == 2);
        assert!(gone, "{} records are left", records(&mut client));
    }
}

/// Its users are those of S3.
#[test]
fn the_port_wants_that_of_s3() {
    let scratch = Scratch::new();
    let data = scratch.path("data");
    Node::set(&data, &format!("dynamodb_port = {}\n", free_port()));
    let refused = Node::try_start(&data).err().unwrap();
    assert!(
        refused.err.contains("dynamodb_port") && refused.err.contains("s3_port"),
        "{refused:?}"
    );
}
