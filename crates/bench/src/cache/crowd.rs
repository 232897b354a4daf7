//! What clients and items cost in memory: thousands of connections that wait, that have sent half
//! a command, that have got something; and a server full of items of 16 + 100 bytes.

use super::CacheBench;
use super::keys::{KEY_BYTES, fill};
use super::server::{Target, version};
use holdfast_base::{Error, Result};
use holdfast_command::output::{Output, aside};
use holdfast_env::{local, sockets};
use serde_json::json;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpStream};

/// Connections, if it is not said how many.
const CLIENTS: usize = 10_000;
/// Clients of one source address: it has some 28,000 ports.
const CLIENTS_PER_ADDRESS: usize = 20_000;
/// Descriptors beside the clients'.
const DESCRIPTORS: usize = 100;
/// Half a command of 80 bytes.
const HALF: &[u8] =
    b"set half-of-a-command 0 0 2000\r\nits value begins here and does not end for now...";
/// Bytes of an item's value, and the most that an item may take beyond its payload.
const VALUE_BYTES: usize = 100;
const ITEM_BYTES_WANTED: f64 = 24.0;

/// Which of the server's figures counts: what it has allocated, the items' memory apart.
const OWN: &str = "RssAnon";

/// Memory a client: as many of them as were asked for, or as descriptors allow.
pub fn run(options: &CacheBench, out: &mut Output) -> Result<()> {
    let wanted = if options.clients == 0 { CLIENTS } else { options.clients };
    let allowed = local::raise_descriptors((wanted + DESCRIPTORS) as u64)? as usize;
    let clients = wanted.min(allowed.saturating_sub(2 * DESCRIPTORS));
    if clients < wanted {
        aside(format_args!(
            "{wanted} clients need as many descriptors; this machine allows {allowed}: measuring {clients}"
        ));
    }
    let options = &CacheBench { clients, ..options.clone() };
    let ours = Target::ours(options, 1, &[])?;
    measure("holdfast", &ours, clients, out)?;
    if !options.no_peer
        && let Some(peer) = Target::peer(options)?
    {
        measure(&format!("memcached {}", version(&options.peer)), &peer, clients, out)?;
    }
    Ok(())
}

fn measure(name: &str, target: &Target, clients: usize, out: &mut Output) -> Result<()> {
    // Its buffers, which all connections share, are there from the first request on.
    drop(Crowd::connect(target, 1)?.after_a_get()?);
    let before = target.memory_bytes(OWN);
    let each = |now: u64| (now.saturating_sub(before)) as f64 / clients as f64;
    let crowd = Crowd::connect(target, clients)?;
    let idle = each(target.memory_bytes(OWN));
    let mut crowd = crowd.after_a_get()?;
    let used = each(target.memory_bytes(OWN));
    crowd.send(HALF)?;
    crowd.settle(target)?;
    let half = each(target.memory_bytes(OWN));
    out.line(
        || format!(
            "{name:<20} {clients} connections: {idle:.0} bytes each idle, {used:.0} after a get, {half:.0} with half a command"
        ),
        || json!({
            "case": format!("memory of {clients} connections, {name}"), "operations": clients,
            "idle_bytes": idle, "used_bytes": used, "half_command_bytes": half, "better": "lower",
        }),
    )
}

struct Crowd(Vec<TcpStream>);

impl Crowd {
    fn connect(target: &Target, clients: usize) -> Result<Crowd> {
        let mut streams = Vec::with_capacity(clients);
        for i in 0..clients {
            let from = Ipv4Addr::new(127, 0, 1, 1 + (i / CLIENTS_PER_ADDRESS) as u8);
            let stream = sockets::connect_tcp_from(IpAddr::V4(from), target.tcp)
                .map_err(|e| Error::from(e).context(format_args!("connect client {i}")))?;
            streams.push(stream);
        }
        let mut crowd = Crowd(streams);
        crowd.settle(target)?;
        Ok(crowd)
    }

    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.0.iter_mut().try_for_each(|stream| Ok(stream.write_all(bytes)?))
    }

    fn after_a_get(mut self) -> Result<Crowd> {
        self.send(b"get no-such-key\r\n")?;
        let mut answer = [0; 5];
        for stream in &mut self.0 {
            stream.read_exact(&mut answer)?;
        }
        Ok(self)
    }

    /// Until the server has taken what was sent before: it serves what comes in order.
    fn settle(&mut self, target: &Target) -> Result<()> {
        for _ in 0..3 {
            let mut last = TcpStream::connect(target.tcp)?;
            last.write_all(b"version\r\n")?;
            last.read_exact(&mut [0; 8])?;
        }
        Ok(())
    }
}

/// Bytes of memory an item, beyond its key and value; the program included.
pub fn items(options: &CacheBench, out: &mut Output) -> Result<()> {
    let payload = (KEY_BYTES + VALUE_BYTES) as f64;
    let mut measure = |name: &str, target: &Target| {
        fill(target.tcp, options.keys, VALUE_BYTES)?;
        let each = target.memory_bytes("VmRSS") as f64 / options.keys as f64 - payload;
        out.line(
            || format!(
                "{name:<20} {} items of {KEY_BYTES} + {VALUE_BYTES} bytes: {each:.1} bytes each beyond the payload",
                options.keys
            ),
            || json!({
                "case": format!("memory of an item, {name}"), "operations": options.keys,
                "bytes_beyond_payload": each, "limit": ITEM_BYTES_WANTED, "better": "lower",
            }),
        )
    };
    measure("holdfast", &Target::ours(options, 1, &[])?)?;
    if !options.no_peer
        && let Some(peer) = Target::peer(options)?
    {
        measure(&format!("memcached {}", version(&options.peer)), &peer)?;
    }
    Ok(())
}
