//! `holdfast bench dynamo`: what requests of DynamoDB's API cost a node's processors, beside one that does nothing
//! and beside dynalite, on the same requests from the same clients.

use super::process::{Process, cpu_seconds, free_port, own_cpu_seconds};
use super::report::{Figure, Peer, Report, Sample, asked};
use clap::Args;
use holdfast_base::{Error, Result};
use holdfast_command::files::SETTINGS;
use holdfast_command::output::{Output, aside};
use holdfast_env::HoldMutex;
use holdfast_s3::signature::{Scope, sha256_hex, signature};
use holdfast_s3::{CREDENTIALS_FILE, Credentials};
use serde_json::json;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime};

const CASES: [&str; 2] = ["put", "get"];
const TABLE: &str = "bench";
/// Answers of a node and of the peer take seconds when something is wrong.
const PATIENCE: Duration = Duration::from_secs(30);

/// What `bench dynamo` is asked for.
#[derive(Args, Debug, Clone)]
pub struct DynamoBench {
    /// put, get, or `all`
    #[arg(short = 't', long = "type", default_value = "all", value_name = "CASE")]
    pub kind: String,
    /// Items, and requests of each repetition
    #[arg(short = 'n', long, default_value_t = 10_000, value_name = "N")]
    pub requests: u64,
    /// Bytes of an item's attribute
    #[arg(long, default_value_t = 1024, value_name = "BYTES")]
    pub value: usize,
    /// Connections with one request at a time each
    #[arg(long, default_value_t = 8, value_name = "N")]
    pub clients: u64,
    /// Repetitions; the median is printed, with the spread
    #[arg(short = 'e', long = "repetitions", default_value_t = 5, value_name = "N")]
    pub repetitions: usize,
    /// The peer, which `make dynamo` installs, and node runs in memory; left out where it is not there
    #[arg(long, default_value = "target/dynamo/node_modules/dynalite/cli.js", value_name = "FILE")]
    pub dynalite: PathBuf,
    /// Directory below which the node keeps its data [default: this one]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
}

/// A server that ends, and whose files go, when it is dropped.
struct Server {
    address: SocketAddr,
    credentials: Credentials,
    process: Running,
}

enum Running {
    Own { process: Process, directory: PathBuf },
    Peer(Child),
}

impl Drop for Running {
    fn drop(&mut self) {
        match self {
            Running::Own { process, directory } => {
                process.kill();
                let _ = std::fs::remove_dir_all(directory);
            }
            Running::Peer(child) => {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

fn local(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

impl Server {
    fn own(options: &DynamoBench) -> Result<Server> {
        let parent = options.data.clone().map_or_else(std::env::current_dir, Ok)?;
        let directory = parent.join(format!("holdfast-bench-{}", std::process::id()));
        std::fs::create_dir_all(&directory)?;
        let (port, s3_port) = (free_port()?, free_port()?);
        let settings = format!(
            "native_port = 0\nhttp_port = 0\ncache_port = 0\ns3_port = {s3_port}\ndynamodb_port = {port}\n\
             dram = \"0\"\nscrub = \"0\"\n"
        );
        std::fs::write(directory.join(SETTINGS), settings)?;
        let process = Process::up(&directory)?;
        let text = std::fs::read_to_string(directory.join(CREDENTIALS_FILE)).unwrap_or_default();
        let credentials = Credentials::parse(&text)
            .ok_or_else(|| Error::bug("the node that was started wrote no credentials"))?;
        Ok(Server {
            address: local(port),
            credentials,
            process: Running::Own { process, directory },
        })
    }

    /// It looks at no signature, and keeps nothing on a disk.
    fn peer(options: &DynamoBench) -> Result<Option<Server>> {
        if !options.dynalite.exists() {
            return Ok(None);
        }
        let port = free_port()?;
        let mut command = Command::new("node");
        command.arg(&options.dynalite).args(["--host", "127.0.0.1", "--port", &port.to_string()]);
        command.args(["--createTableMs", "1"]).stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.spawn().map_err(|e| {
            Error::from(e).context("run `node`, for the peer: install it, or name no `--dynalite`")
        })?;
        let [access_key, secret_key] = ["key", "secret"].map(str::to_owned);
        let credentials = Credentials { access_key, secret_key, endpoint: String::new() };
        Ok(Some(Server { address: local(port), credentials, process: Running::Peer(child) }))
    }

    fn cpu_seconds(&self) -> f64 {
        match &self.process {
            Running::Own { process, .. } => process.cpu_seconds(),
            Running::Peer(child) => cpu_seconds(&format!("/proc/{}/stat", child.id())),
        }
    }

    fn connect(&self) -> Result<Client<'_>> {
        let began = Instant::now();
        loop {
            match TcpStream::connect(self.address) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    stream.set_read_timeout(Some(PATIENCE))?;
                    return Ok(Client { server: self, stream, buffer: Vec::new() });
                }
                Err(e) if began.elapsed() > PATIENCE => return Err(e.into()),
                // The peer does not say when it listens.
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    /// Makes the table, and fills it.
    fn fill(&self, options: &DynamoBench) -> Result<()> {
        let mut client = self.connect()?;
        let table = json!({
            "TableName": TABLE, "BillingMode": "PAY_PER_REQUEST",
            "KeySchema": [{"AttributeName": "p", "KeyType": "HASH"}],
            "AttributeDefinitions": [{"AttributeName": "p", "AttributeType": "S"}],
        });
        client.call("CreateTable", &table.to_string())?;
        let described = json!({ "TableName": TABLE }).to_string();
        let began = Instant::now();
        while !client.call("DescribeTable", &described)?.contains("ACTIVE") {
            if began.elapsed() > PATIENCE {
                return Err(Error::retry("make a table to measure: it does not become active"));
            }
        }
        self.load("put", options).map(drop)
    }

    /// All clients at once.
    fn load(&self, case: &str, options: &DynamoBench) -> Result<Sample> {
        let each = (options.requests / options.clients).max(1);
        let latencies = Mutex::new(Vec::new());
        let cpu = (self.cpu_seconds(), own_cpu_seconds());
        let began = Instant::now();
        std::thread::scope(|scope| {
            let work = |first: u64| -> Result<()> {
                let (mut client, mut own) = (self.connect()?, Vec::new());
                for number in first..first + each {
                    let (operation, body) = request(case, number, options.value);
                    let sent = Instant::now();
                    client.call(operation, &body)?;
                    own.push(sent.elapsed().as_nanos() as u64);
                }
                latencies.held().append(&mut own);
                Ok(())
            };
            let start = |number| scope.spawn(move || work(number * each));
            let threads: Vec<_> = (0..options.clients).map(start).collect();
            let panicked = |_| Error::bug("a client of the benchmark panicked");
            threads.into_iter().try_for_each(|thread| thread.join().map_err(panicked)?)
        })?;
        let time = began.elapsed();
        let cpu = (self.cpu_seconds() - cpu.0, own_cpu_seconds() - cpu.1);
        let latencies = latencies.into_inner().expect("no holder of this lock panics");
        let count = each * options.clients;
        Ok(Sample::of_run(count, count * options.value as u64, time, cpu, latencies))
    }
}

/// A request of a case: operation and body.
fn request(case: &str, number: u64, value_bytes: usize) -> (&'static str, String) {
    let key = format!("user{number:08}");
    match case {
        "put" => {
            let value = "x".repeat(value_bytes);
            let item = json!({"p": {"S": key}, "v": {"S": value}});
            ("PutItem", json!({ "TableName": TABLE, "Item": item }).to_string())
        }
        "get" => ("GetItem", json!({ "TableName": TABLE, "Key": {"p": {"S": key}} }).to_string()),
        _ => ("DescribeEndpoints", "{}".to_owned()),
    }
}

struct Client<'a> {
    server: &'a Server,
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Client<'_> {
    /// Sends an operation, freshly signed, and answers its body.
    fn call(&mut self, operation: &str, body: &str) -> Result<String> {
        let head = self.head(operation, body);
        self.stream.write_all(&[head.as_bytes(), body.as_bytes()].concat())?;
        let answer = self.receive()?;
        match answer.split_once("\r\n\r\n") {
            Some((head, body)) if head.get(9..12) == Some("200") => Ok(body.to_owned()),
            _ => Err(Error::bug(format!("measure {operation}: the server answered: {answer}"))),
        }
    }

    fn head(&self, operation: &str, body: &str) -> String {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let date =
            holdfast_base::text::utc(now.as_secs() as i64, 'T').replace(['-', ':'], "") + "Z";
        let scope = Scope { day: &date[..8], region: "us-east-1", service: "dynamodb" };
        let (host, target) = (self.server.address, format!("DynamoDB_20120810.{operation}"));
        let names = "content-type;host;x-amz-date;x-amz-target";
        let kind = "application/x-amz-json-1.0";
        let lines =
            format!("content-type:{kind}\nhost:{host}\nx-amz-date:{date}\nx-amz-target:{target}\n");
        let canonical = format!("POST\n/\n\n{lines}\n{names}\n{}", sha256_hex(body.as_bytes()));
        let Credentials { access_key, secret_key, .. } = &self.server.credentials;
        let signature = signature(secret_key, &date, &scope, &canonical);
        format!(
            "POST / HTTP/1.1\r\nhost: {host}\r\ncontent-type: {kind}\r\nx-amz-date: {date}\r\n\
             x-amz-target: {target}\r\nauthorization: AWS4-HMAC-SHA256 Credential={access_key}/{scope}, \
             SignedHeaders={names}, Signature={signature}\r\ncontent-length: {}\r\n\r\n",
            body.len()
        )
    }

    /// One answer, whole.
    fn receive(&mut self) -> Result<String> {
        self.buffer.clear();
        let mut some = [0; 16 << 10];
        loop {
            let count = self.stream.read(&mut some)?;
            if count == 0 {
                return Err(Error::retry("the server ended the connection"));
            }
            self.buffer.extend_from_slice(&some[..count]);
            let text = String::from_utf8_lossy(&self.buffer);
            let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
            let head = head.to_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            if length
                .and_then(|n| n.parse::<usize>().ok())
                .is_none_or(|length| body.len() >= length)
            {
                return Ok(text.into_owned());
            }
        }
    }
}

/// Runs the cases that were asked for.
pub fn run(options: &DynamoBench, out: &mut Output) -> Result<()> {
    if options.requests == 0 || options.clients == 0 || options.repetitions == 0 {
        return Err(Error::invalid(
            "measure DynamoDB's API: give at least one request, client and repetition",
        ));
    }
    let cases = asked(&options.kind, &CASES)?;
    let own = Server::own(options)?;
    own.fill(options)?;
    let peer = Server::peer(options)?;
    match &peer {
        Some(peer) => peer.fill(options)?,
        None => aside(format_args!(
            "`{}` is not there, so nothing is measured beside it: `make dynamo` installs it",
            options.dynalite.display()
        )),
    }
    for case in cases {
        let (mut limits, mut peers, mut samples) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..options.repetitions {
            limits.push(own.load("nothing", options)?.server_cpu);
            samples.push(own.load(case, options)?);
            if let Some(peer) = &peer {
                peers.push(peer.load(case, options)?.server_cpu);
            }
        }
        let value = super::report::median(peers);
        let mut report = Report {
            case: format!(
                "{}Item of {} bytes, {} times",
                if case == "put" { "Put" } else { "Get" },
                options.value,
                options.requests
            ),
            figure: Figure::ServerCpuSeconds,
            limit_name: "requests that ask nothing".to_owned(),
            limits,
            peer: peer.as_ref().map(|_| Peer { name: "dynalite", version: "4.0.0", value }),
            samples,
        };
        report.tell(out)?;
    }
    Ok(())
}
