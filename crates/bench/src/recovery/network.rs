//! A network of its own for the experiment: one network namespace a node, joined by a bridge, and
//! each node's link limited in both directions by the kernel (`tbf`, or `htb` where links honor
//! marks). All of it lives in a namespace of this process and goes with it. Needs root, `ip`, `tc`
//! and `unshare`.

use holdfast_base::{Error, Result};
use std::net::Ipv4Addr;
use std::process::Command;

/// What one queue lets through at once: above one large segment of a virtual link.
const BURST_BYTES: u64 = 64 << 10;
/// How long a packet may wait for its link before it is dropped: a switch's buffer, not a lake.
const QUEUE_MS: u64 = 100;

/// Set in the environment of a process that runs inside.
const INSIDE: &str = "HOLDFAST_BENCH_NETWORK";

/// The namespaces and their bridge.
pub struct Network {
    /// Counted from 0.
    pub nodes: usize,
    /// Links have a second queue behind the first, for what is marked as lower effort.
    lower_effort: bool,
}

/// Runs this very command again in namespaces of its own, unless it is there; answers how that
/// ended, and nothing inside.
pub fn enter() -> Result<Option<i32>> {
    if std::env::var_os(INSIDE).is_some() {
        return Ok(None);
    }
    let doing = "make a network for the experiment";
    let status = Command::new("unshare")
        .args(["--net", "--mount", "--propagation", "private", "--kill-child", "--fork"])
        .arg(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .env(INSIDE, "1")
        .status()
        .map_err(|e| {
            Error::invalid(format!("{doing}: `unshare` does not run ({e}): install util-linux"))
        })?;
    Ok(Some(status.code().unwrap_or(1)))
}

fn run(program: &str, words: &str) -> Result<()> {
    let doing = || format!("make a network for the experiment: `{program} {words}`");
    let output = Command::new(program)
        .args(words.split(' '))
        .output()
        .map_err(|e| Error::invalid(format!("{}: {e}: install iproute2", doing())))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Error::invalid(format!("{}: {}: run as root", doing(), said.trim())))
}

/// The namespace's name.
pub fn namespace(node: usize) -> String {
    format!("hf{node}")
}

/// Where a node listens, in its namespace.
pub fn address(node: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, 10 + node as u8)
}

/// What `tc` is told for one device.
fn queue(device: &str, bits: u64, lower_effort: bool) -> Vec<String> {
    if !lower_effort {
        let tbf = format!("tbf rate {bits}bit burst {BURST_BYTES} latency {QUEUE_MS}ms");
        return vec![format!("qdisc replace dev {device} root {tbf}")];
    }
    let limit_bytes = bits / 8 * QUEUE_MS / 1000;
    let class = |parent: &str, class: &str, rate: u64, priority: u32| {
        let rates = format!("rate {rate}bit ceil {bits}bit prio {priority}");
        let bursts = format!("burst {BURST_BYTES} cburst {BURST_BYTES}");
        format!("class add dev {device} parent {parent} classid {class} htb {rates} {bursts}")
    };
    let leaf = |class: &str, handle: &str| {
        format!("qdisc add dev {device} parent {class} handle {handle} bfifo limit {limit_bytes}")
    };
    vec![
        format!("qdisc replace dev {device} root handle 1: htb default 10"),
        class("1:", "1:1", bits, 0),
        class("1:1", "1:10", bits * 99 / 100, 0),
        class("1:1", "1:20", bits / 100, 1),
        leaf("1:10", "10:"),
        leaf("1:20", "20:"),
        // The six bits of the code point: 1.
        format!(
            "filter add dev {device} parent 1: protocol ip prio 1 u32 match ip dsfield 0x04 0xfc flowid 1:20"
        ),
    ]
}

impl Network {
    /// Makes a namespace and a link for each node; links are not limited yet.
    pub fn new(nodes: usize, lower_effort: bool) -> Result<Network> {
        run("mount", "-t tmpfs holdfast-netns /run")?;
        run("ip", "link set lo up")?;
        run("ip", "link add br0 type bridge")?;
        run("ip", "addr add 10.77.0.1/24 dev br0")?;
        run("ip", "link set br0 up")?;
        for node in 0..nodes {
            let ns = namespace(node);
            let within = format!("netns exec {ns} ip");
            run("ip", &format!("netns add {ns}"))?;
            run("ip", &format!("link add v{node} type veth peer name eth0 netns {ns}"))?;
            run("ip", &format!("link set v{node} master br0 up"))?;
            run("ip", &format!("{within} addr add {}/24 dev eth0", address(node)))?;
            run("ip", &format!("{within} link set eth0 up"))?;
            run("ip", &format!("{within} link set lo up"))?;
        }
        Ok(Network { nodes, lower_effort })
    }

    /// Limits every node's link to so many bytes a second each way.
    pub fn limit(&self, bytes_per_second: u64) -> Result<()> {
        for node in 0..self.nodes {
            for words in queue(&format!("v{node}"), bytes_per_second * 8, self.lower_effort) {
                run("tc", &words)?;
            }
            let ns = namespace(node);
            for words in queue("eth0", bytes_per_second * 8, self.lower_effort) {
                run("ip", &format!("netns exec {ns} tc {words}"))?;
            }
        }
        Ok(())
    }

    /// Takes the limits away again, so that starting the nodes does not wait for them.
    pub fn lift(&self) {
        for node in 0..self.nodes {
            // There may be none.
            let _ = run("tc", &format!("qdisc del dev v{node} root"));
            let ns = namespace(node);
            let _ = run("ip", &format!("netns exec {ns} tc qdisc del dev eth0 root"));
        }
    }
}
