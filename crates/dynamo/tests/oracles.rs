//! Held against two other servers of the same API, moto's and dynalite, as processes on free ports:
//! where both give the same answer, or the same type of error, so does ours. Without them the test
//! says that it was skipped; `make dynamo` installs them and runs for longer.

mod support {
    pub mod global_requests;
    pub mod memory;
    pub mod port;
    pub mod requests;
    pub use memory::*;
}

use holdfast_base::random::Random;
use holdfast_dynamo::decimal::Decimal;
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use support::global_requests::global_table;
use support::port::{Client, start};
use support::requests::{Requests, TABLES, creation};

/// Requests in an ordinary run; `make dynamo` sets another number.
const REQUESTS: u64 = 500;
const REQUESTS_SET: &str = "HOLDFAST_DYNAMO_REQUESTS";
const SEED_SET: &str = "HOLDFAST_SEED";

/// A server that ends with the test.
struct Oracle {
    child: Child,
    address: SocketAddr,
}

impl Drop for Oracle {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Oracle {
    /// Starts a server that says `ready` when it listens.
    #[expect(clippy::disallowed_methods, reason = "a free port is asked for")]
    fn start(command: impl Fn(u16) -> Command, ready: &str) -> Oracle {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = command(port);
        // Both of its outputs into one pipe.
        let (reader, writer) = std::io::pipe().unwrap();
        command.stdin(Stdio::null()).stdout(writer.try_clone().unwrap()).stderr(writer);
        let child = command.spawn().unwrap();
        drop(command);
        let mut lines = BufReader::new(reader).lines();
        let mut said = String::new();
        let is_ready = lines.by_ref().any(|line| {
            said += &line.unwrap();
            said.contains(ready)
        });
        assert!(is_ready, "the other server ended: {said}");
        // So that it never waits for somebody to read what it says.
        holdfast_env::tasks::spawn("oracle", move || lines.for_each(drop)).unwrap();
        Oracle { child, address: SocketAddr::from(([127, 0, 0, 1], port)) }
    }
}

/// Where `make dynamo` installs them.
fn installed() -> Option<(PathBuf, PathBuf)> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("dynamo");
    let found = (target.join("node_modules/dynalite/cli.js"), target.join("moto/bin/python"));
    (found.0.exists() && found.1.exists()).then_some(found)
}

/// An answer in a form that does not depend on who gave it.
fn normal(json: &Json) -> Json {
    match json {
        Json::Object(map) => {
            let mut map = map.clone();
            if let Some(Json::String(number)) = map.get("N")
                && let Ok(number) = Decimal::parse(number)
            {
                return json!({"N": number.to_string()});
            }
            for kind in ["SS", "BS", "NS"] {
                if let Some(Json::Array(list)) = map.get_mut(kind) {
                    for number in list.iter_mut().filter(|_| kind == "NS") {
                        let parsed = Decimal::parse(number.as_str().unwrap_or_default());
                        *number = json!(parsed.unwrap_or_default().to_string());
                    }
                    list.sort_by_key(Json::to_string);
                }
            }
            map.iter().map(|(name, value)| (name.clone(), normal(value))).collect()
        }
        Json::Array(list) => list.iter().map(normal).collect(),
        other => other.clone(),
    }
}

/// What is compared: the answer, or the error's type.
fn told(operation: &str, client: &mut Client, body: &Json) -> Result<Json, String> {
    let answer = client.call(operation, body.to_string().as_bytes()).map_err(|e| e.to_string())?;
    let json = answer.json();
    if answer.status != 200 {
        let kind = json["__type"].as_str().unwrap_or_default();
        return Err(format!("{} {}", answer.status, kind.rsplit('#').next().unwrap_or_default()));
    }
    let mut answer = normal(&json);
    if let Json::Object(parts) = &mut answer {
        // Told by moto alone where nobody asked for it, or told where it is empty.
        for part in
            ["ConsumedCapacity", "ItemCollectionMetrics", "UnprocessedItems", "UnprocessedKeys"]
        {
            parts.retain(|name, value| {
                name != part || !(part == "ConsumedCapacity" || *value == json!({}))
            });
        }
    }
    let sort = |list: &mut Json| {
        if let Json::Array(list) = list {
            list.sort_by_key(Json::to_string);
        }
    };
    match operation {
        // The order of partition keys is everybody's own.
        "Scan" if answer.get("Items").is_some() => sort(&mut answer["Items"]),
        "BatchGetItem" => {
            if let Json::Object(tables) = &mut answer["Responses"] {
                tables.values_mut().for_each(sort);
            }
        }
        "DescribeTable" => answer = json!(answer["Table"]["KeySchema"]),
        "CreateTable" => answer = json!(answer["TableDescription"]["KeySchema"]),
        _ => {}
    }
    Ok(answer)
}

/// Starts dynalite.
fn start_dynalite(main: &Path) -> Oracle {
    let command = |port: u16| {
        let mut command = Command::new("node");
        command.arg(main).args(["--host", "127.0.0.1", "--port", &port.to_string()]);
        command.args(["--createTableMs", "1", "--deleteTableMs", "1"]);
        command
    };
    Oracle::start(command, "listening")
}

/// Starts moto's server.
fn start_moto(python: &Path) -> Oracle {
    let command = |port: u16| {
        let mut command = Command::new(python);
        let main = "import sys; from moto.server import main; main(sys.argv[1:])";
        command.args(["-c", main, "-H", "127.0.0.1", "-p", &port.to_string()]);
        command
    };
    Oracle::start(command, "Running on")
}

fn create(client: &mut Client) {
    TABLES.iter().for_each(|table| make(client, &creation(*table)));
}

fn number_of(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// Where we differ from both, on purpose, with the reason; docs/dynamodb.md lists them.
fn is_known(operation: &str, body: &Json) -> bool {
    // Both take no notice of it in a scan, whatever it is.
    operation == "Scan" && !matches!(body["ConsistentRead"], Json::Null | Json::Bool(_))
}

#[test]
fn where_both_others_agree_so_do_we() {
    let Some((dynalite, moto)) = installed() else {
        println!("!! SKIPPED: moto and dynalite are not installed, `make dynamo` does that");
        return;
    };
    let main = dynalite;
    let mut dynalite = start_dynalite(&main);
    let moto = start_moto(&moto);
    let (_server, ours) = start(1 << 30);
    let mut clients = [ours, dynalite.address, moto.address].map(|a| Client::connect(a).unwrap());
    clients.iter_mut().for_each(create);
    let seed = number_of(SEED_SET, 1);
    let mut requests = Requests { random: Random::new(seed) };
    let (mut wrong, mut agreed, mut ended) = (Vec::new(), 0, 0);
    let mut counts = BTreeMap::<String, u64>::new();
    let many = number_of(REQUESTS_SET, REQUESTS);
    for i in 0..many {
        let (operation, body) = if i % 3 == 2 { requests.wrong() } else { requests.right() };
        let [ours, dynalite_told, moto] =
            clients.each_mut().map(|client| told(operation, client, &body));
        if is_gone(&dynalite_told) {
            // Some requests that are right end it: a map that is set into itself, for one.
            ended += 1;
            assert!(ended < 2 + many / 500, "dynalite ended {ended} times, at last: {body}");
            dynalite = start_dynalite(&main);
            clients[1] = Client::connect(dynalite.address).unwrap();
            create(&mut clients[1]);
            TABLES.iter().for_each(|table| empty(&mut clients, *table));
            continue;
        }
        let (dynalite, same) = (&dynalite_told, dynalite_told == moto);
        agreed += u64::from(same);
        let outcome = if dynalite.is_ok() { "answered" } else { "refused" };
        *counts
            .entry(format!("{operation} {outcome}{}", if same { "" } else { ", not alike" }))
            .or_default() += 1;
        if same && ours != *dynalite && !is_known(operation, &body) {
            wrong.push(format!("{i}: {operation} {body}\n  ours: {ours:?}\n  both: {dynalite:?}"));
        }
        if !same && std::env::var("HOLDFAST_DYNAMO_SHOW").is_ok() {
            println!(
                "{i}: {operation} {body}\n  ours: {ours:?}\n  dynalite: {dynalite:?}\n  moto: {moto:?}"
            );
        }
        if operation == "CreateTable" {
            drop_table(&mut clients, &body["TableName"]);
        }
        if !same || ours != *dynalite {
            // Whatever was written may differ from here on.
            forget(&mut clients, operation, &body);
        }
    }
    println!(
        "oracles: {agreed} of {many} answers of the others alike, dynalite ended {ended} times, seed {seed}: {counts:?}"
    );
    let few = wrong.iter().take(20).cloned().collect::<Vec<_>>().join("\n");
    assert!(wrong.is_empty(), "{} of {agreed} differ from both, seed {seed}:\n{few}", wrong.len());
    assert!(agreed > many / 2, "the others agree on {agreed} of {many} only");
}

/// The answer to a transaction, or the codes of its reasons, or the error's type.
fn transaction_told(client: &mut Client, operation: &str, body: &Json) -> Result<Json, String> {
    let answer = client.call(operation, body.to_string().as_bytes()).map_err(|e| e.to_string())?;
    let json = answer.json();
    if answer.status == 200 {
        return Ok(normal(&json["Responses"]));
    }
    let kind = json["__type"].as_str().unwrap_or_default().rsplit('#').next().unwrap_or_default();
    let code = |reason: &Json| json!([reason["Code"], normal(&reason["Item"])]);
    match &json["CancellationReasons"] {
        Json::Array(reasons) => Err(reasons.iter().map(code).collect::<Json>().to_string()),
        _ => Err(format!("{} {kind}", answer.status)),
    }
}

/// Whether moto answers, or cancels for conditions alone: what is wrong with an expression or an item it finds, or
/// does not, in its own ways, and dynalite judges of that by single requests.
fn is_of_dynamodb(told: &Result<Json, String>) -> bool {
    let Err(why) = told else { return true };
    let known = [json!("None"), json!("ConditionalCheckFailed"), json!(null)];
    match serde_json::from_str::<Json>(why) {
        Ok(Json::Array(reasons)) => reasons.iter().all(|reason| known.contains(&reason[0])),
        _ => false,
    }
}

/// Where moto is wrong: to it what is not there is NULL, and it projects nothing of what is read together.
fn is_motos(operation: &str, body: &Json) -> bool {
    let part = if operation == "TransactGetItems" { "ProjectionExpression" } else { "NULL" };
    body.to_string().contains(part)
}

/// Local indexes: where both give the same answer, or the same type of error, so do we.
#[test]
fn local_indexes_are_those_of_both_others() {
    indexes_are_alike(&Requests::indexed_table(), Requests::indexed);
}

/// And global ones.
#[test]
fn global_indexes_are_those_of_both_others() {
    indexes_are_alike(&global_table(), Requests::global);
}

/// Of equal keys of a global index everybody has an order of his own; so which of them are on a page is his, too.
fn without_order(told: Result<Json, String>, body: &Json) -> Result<Json, String> {
    told.map(|mut told| {
        if body["TableName"] == "global" && told.get("Items").is_some() {
            match body.get("Limit") {
                Some(_) => told = json!([told["Count"], told["LastEvaluatedKey"].is_null()]),
                None => {
                    if let Json::Array(items) = &mut told["Items"] {
                        items.sort_by_key(Json::to_string);
                    }
                }
            }
        }
        told
    })
}

/// Makes a table, and waits until it is there.
fn make(client: &mut Client, table: &Json) {
    let made = client.call("CreateTable", table.to_string().as_bytes()).unwrap();
    assert_eq!(made.status, 200, "{}", made.body);
    let named = json!({"TableName": table["TableName"]}).to_string();
    while client.call("DescribeTable", named.as_bytes()).unwrap().json()["Table"]["TableStatus"]
        != "ACTIVE"
    {}
}

fn indexes_are_alike(table: &Json, next: fn(&mut Requests) -> (&'static str, Json)) {
    let Some((main, moto)) = installed() else {
        println!("!! SKIPPED: moto and dynalite are not installed, `make dynamo` does that");
        return;
    };
    let (mut dynalite, moto) = (start_dynalite(&main), start_moto(&moto));
    let (_server, ours) = start(1 << 30);
    let mut clients = [ours, dynalite.address, moto.address].map(|a| Client::connect(a).unwrap());
    clients.iter_mut().for_each(|client| make(client, table));
    let name = table["TableName"].as_str().unwrap();
    let seed = number_of(SEED_SET, 1);
    let mut requests = Requests { random: Random::new(seed) };
    let (mut wrong, mut counts) = (Vec::new(), BTreeMap::<String, u64>::new());
    let (many, mut ended) = (number_of(REQUESTS_SET, REQUESTS), 0);
    for i in 0..many {
        let (operation, body) = next(&mut requests);
        let [ours, dynalite_told, moto] =
            clients.each_mut().map(|client| without_order(told(operation, client, &body), &body));
        if is_gone(&dynalite_told) {
            ended += 1;
            assert!(ended < 2 + many / 500, "dynalite ended {ended} times, at last: {body}");
            dynalite = start_dynalite(&main);
            clients[1] = Client::connect(dynalite.address).unwrap();
            make(&mut clients[1], table);
            empty(&mut clients, (name, TABLES[1].1, TABLES[1].2));
            continue;
        }
        let same = dynalite_told == moto;
        *counts
            .entry(format!("{operation}{}", if same { "" } else { ", not alike" }))
            .or_default() += 1;
        if same && ours != moto {
            wrong.push(format!("{i}: {operation} {body}\n  ours: {ours:?}\n  both: {moto:?}"));
        }
        if !same || ours != moto {
            empty(&mut clients, (name, TABLES[1].1, TABLES[1].2));
        }
    }
    println!(
        "indexes of `{name}`: {many} from seed {seed}, dynalite ended {ended} times: {counts:?}"
    );
    let few = wrong.iter().take(10).cloned().collect::<Vec<_>>().join("\n");
    assert!(wrong.is_empty(), "{} differ from both, seed {seed}:\n{few}", wrong.len());
    assert!(counts.get("Query").is_some_and(|count| count * 10 > many), "{counts:?}");
}

/// dynalite has no transactions: what moto answers, or cancels for conditions, so do we.
#[test]
fn transactions_are_those_of_moto() {
    let Some((_, moto)) = installed() else {
        println!("!! SKIPPED: moto and dynalite are not installed, `make dynamo` does that");
        return;
    };
    let moto = start_moto(&moto);
    let (_server, ours) = start(1 << 30);
    let mut clients = [ours, moto.address].map(|address| Client::connect(address).unwrap());
    clients.iter_mut().for_each(create);
    let seed = number_of(SEED_SET, 1);
    let mut requests = Requests { random: Random::new(seed) };
    let (mut wrong, mut counts) = (Vec::new(), BTreeMap::<String, u64>::new());
    let many = number_of(REQUESTS_SET, REQUESTS);
    for i in 0..many {
        let (operation, body) = match i % 4 {
            3 => ("TransactGetItems", requests.gets()),
            _ => {
                let actions = requests.actions().into_iter();
                let items = actions.map(|(kind, body)| json!({kind: body})).collect::<Vec<_>>();
                ("TransactWriteItems", json!({"TransactItems": items}))
            }
        };
        let [ours, moto] =
            clients.each_mut().map(|client| transaction_told(client, operation, &body));
        let is_refused = ours.as_ref().is_err_and(|why| why.contains("ValidationException"));
        let is_known = is_of_dynamodb(&moto) && !is_refused && !is_motos(operation, &body);
        let what = match (&moto, is_known) {
            (_, false) => "not held against it",
            (Ok(_), _) => "answered",
            (Err(_), _) => "cancelled",
        };
        *counts.entry(format!("{operation} {what}")).or_default() += 1;
        if is_known && ours != moto {
            wrong.push(format!("{i}: {operation} {body}\n  ours: {ours:?}\n  moto: {moto:?}"));
        }
        if ours != moto {
            // Whatever was written may differ from here on.
            for (table, key) in
                TABLES.into_iter().flat_map(|t| Requests::keys(t).into_iter().map(move |k| (t, k)))
            {
                let gone = json!({"TableName": table.0, "Key": key}).to_string();
                for client in &mut clients {
                    assert_eq!(client.call("DeleteItem", gone.as_bytes()).unwrap().status, 200);
                }
            }
        }
    }
    println!("transactions: {many} from seed {seed}: {counts:?}");
    let few = wrong.iter().take(10).cloned().collect::<Vec<_>>().join("\n");
    assert!(wrong.is_empty(), "{} differ from moto, seed {seed}:\n{few}", wrong.len());
    for what in
        ["TransactGetItems answered", "TransactWriteItems answered", "TransactWriteItems cancelled"]
    {
        assert!(counts.get(what).is_some_and(|count| count * 20 > many), "{what}: {counts:?}");
    }
}

/// Drops a table that was made by the way, everywhere.
fn drop_table(clients: &mut [Client; 3], name: &Json) {
    let is_by_the_way = ["four", "five", "x"].iter().any(|by_the_way| name == by_the_way);
    let named = json!({"TableName": name}).to_string();
    for client in clients.iter_mut().filter(|_| is_by_the_way) {
        // Until it is gone: the others take their time to make one, and to drop it.
        while client.call("DeleteTable", named.as_bytes()).unwrap().json()["__type"]
            .as_str()
            .is_none_or(|kind| kind.ends_with("ResourceInUseException"))
        {}
    }
}

/// Empties the tables that the request may have written to, everywhere.
fn forget(clients: &mut [Client; 3], operation: &str, body: &Json) {
    if !["PutItem", "UpdateItem", "DeleteItem", "BatchWriteItem"].contains(&operation) {
        return;
    }
    for table in TABLES {
        if body["TableName"] == table.0 || body["RequestItems"].get(table.0).is_some() {
            empty(clients, table);
        }
    }
}

fn empty(clients: &mut [Client; 3], table: (&str, &str, Option<&str>)) {
    for key in Requests::keys(table) {
        let gone = json!({"TableName": table.0, "Key": key}).to_string();
        for client in clients.iter_mut() {
            assert_eq!(client.call("DeleteItem", gone.as_bytes()).unwrap().status, 200);
        }
    }
}

/// Whether there was no answer at all.
fn is_gone(told: &Result<Json, String>) -> bool {
    told.as_ref().is_err_and(|why| !why.starts_with(|first: char| first.is_ascii_digit()))
}
