//! The command: `up` runs a node with counters, `add` and `read` ask one.
#![forbid(unsafe_code)]

use holdfast_base::codec::{Decode, Encode};
use holdfast_base::ids::{Sequence, SessionId};
use holdfast_base::{Error, Result};
use holdfast_client::{Connection, Endpoint};
use holdfast_counter::{Add, Addition, CounterFace, OP_ADD, OP_OPEN, OP_READ};
use holdfast_env::net::{NoPeers, Server, ServerConfig};
use holdfast_env::{Budget, RealClock, RealDisk, RealEngine, RealRng, signals};
use holdfast_node::{Machine, Node, NodeConfig};
use holdfast_server::Native;
use holdfast_wire::Call;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

const USAGE: &str = "holdfast-counter up DATA | add DATA NAME BY | read DATA NAME";
/// What the node may hold for its clients.
const CLIENTS_BYTES: u64 = 64 << 20;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["up", data] => up(Path::new(data)),
        ["add", data, name, by] => add(Path::new(data), name, by),
        ["read", data, name] => read(Path::new(data), name),
        _ => Err(Error::invalid(format!("use it as: {USAGE}"))),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            let _ = writeln!(std::io::stderr(), "holdfast-counter: {e}");
            ExitCode::FAILURE
        }
    }
}

fn up(data: &Path) -> Result<()> {
    signals::block_shutdown_signals();
    let machine = Machine {
        disk: Arc::new(RealDisk),
        engine: Arc::new(RealEngine),
        clock: Arc::new(RealClock::new()),
        rng: Arc::new(RealRng),
        peers: Arc::new(NoPeers),
        meter: Arc::default(),
    };
    let clock = machine.clock.clone();
    let node = Node::open(machine, &NodeConfig::new(data), None)?;
    let counters = CounterFace::open(&node)?;
    let native = Native::new(node.clone(), Budget::new(CLIENTS_BYTES), false).with(counters);
    let config = ServerConfig { unix: Some(socket(data)), ..ServerConfig::default() };
    let server = Server::start(config, Arc::new(native), clock)?;
    println!("ready");
    signals::wait_for_shutdown()?;
    drop(server);
    node.retire();
    Ok(())
}

fn socket(data: &Path) -> std::path::PathBuf {
    data.join("counters.sock")
}

fn connect(data: &Path) -> Result<Connection> {
    Connection::connect(&Endpoint::Unix(socket(data)))
}

fn add(data: &Path, name: &str, by: &str) -> Result<()> {
    let number = |_| Error::invalid(format!("add `{by}` to a counter: give a whole number"));
    let add = Add::new(name, by.parse().map_err(number)?);
    let mut connection = connect(data)?;
    let session = SessionId::from_bytes(connection.call(OP_OPEN, |_| {}, &[])?.meta())?;
    let (sequence, acknowledged_below) = (Sequence(1), Sequence(1));
    let call = Call { session, sequence, acknowledged_below };
    let sum = connection.call(OP_ADD, |meta| Addition { call, add }.encode(meta), &[])?;
    println!("{}", u64::from_bytes(sum.meta())?);
    Ok(())
}

fn read(data: &Path, name: &str) -> Result<()> {
    let sum = connect(data)?.call(OP_READ, |meta| name.encode(meta), &[])?;
    println!("{}", u64::from_bytes(sum.meta())?);
    Ok(())
}
