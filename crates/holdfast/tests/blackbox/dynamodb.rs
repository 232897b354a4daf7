//! DynamoDB's API from outside: boto3, a node that is killed, items of a table that is gone.

use crate::common::{Node, Scratch, attempts, free_port};
use crate::memcached::{python, python_command};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

#[test]
fn boto3_works_with_tables_that_outlive_the_node() {
    let scratch = Scratch::new();
    let data = scratch.path("data");
    let (s3, port) = (free_port(), free_port());
    let settings = format!("s3_port = {s3}\ndynamodb_port = {port}\n");
    let node = Node::start_with(&data, &settings);
    let arguments = |phase: &str| {
        let mut arguments = arguments(&data, port);
        arguments.push(phase.to_owned());
        arguments
    };
    python("dynamodb.py", &arguments("write"));
    node.kill();
    let node = Node::start_with(&data, &settings);
    python("dynamodb.py", &arguments("read"));
    // Nobody else writes: in the end there is one row for the name, and one item.
    if node.client().table_describe("dynamodb").is_ok() {
        until_records(&node, "2", |records| records == 2);
    }
}

/// Where the port is, and who may do everything there.
fn arguments(data: &Path, port: u16) -> Vec<String> {
    let text = fs::read(data.join("credentials.json")).unwrap();
    let credentials: Value = serde_json::from_slice(&text).unwrap();
    let key = |name: &str| credentials[name].as_str().unwrap().to_owned();
    vec![format!("http://127.0.0.1:{port}"), key("access_key"), key("secret_key")]
}

/// Waits until there are so many rows, of everything.
fn until_records(node: &Node, wanted: &str, is_right: impl Fn(u64) -> bool) {
    let mut client = node.client();
    let mut records = || -> u64 {
        let info = client.table_describe("dynamodb").unwrap();
        info.tablets.iter().map(|tablet| tablet.records).sum()
    };
    let is_so = attempts().any(|()| is_right(records()));
    assert!(is_so, "{} records are there, not {wanted}", records());
}

/// An index is made while two clients write, the node is killed when some of its rows are there, and once more: in the end
/// it shows what the table has, and when it is deleted nothing of it is left.
#[test]
fn an_index_is_made_while_its_table_is_used_and_its_node_is_killed() {
    let scratch = Scratch::new();
    let data = scratch.path("data");
    let (s3, port) = (free_port(), free_port());
    let settings = format!("s3_port = {s3}\ndynamodb_port = {port}\n");
    let mut node = Node::start_with(&data, &settings);
    let Some(mut client) = python_command("dynamodb_indexes.py", &arguments(&data, port)) else {
        return;
    };
    let mut client = client.stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(client.stdout.take().unwrap()).lines();
    let mut next = || said.next().map(Result::unwrap).unwrap_or_default();
    assert_eq!(next(), "created");
    // Some three thousand items, the table's name, and rows.
    until_records(&node, "more than 3100", |records| records > 3100);
    // Items and their rows are written together, and so lie in one tablet.
    node.run(&["table", "split", "dynamodb", "--tablet", "0"])
        .refused(&["tablet 0 of table `dynamodb`", "all of DynamoDB's tables"]);
    for _ in 0..2 {
        node.kill_and_start();
    }
    let told = next();
    assert!(client.wait().unwrap().success(), "{told}");
    let items: u64 = told.strip_prefix("items ").unwrap().parse().unwrap();
    until_records(&node, &format!("{} and the name", items), |records| records == items + 1);
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
