//! A cluster of real processes: files go in, nodes are killed and their disks erased, files come
//! out, from any node that is left.

use crate::common::{
    Finished, Scratch, attempts, binary, bytes, finish, options, read_there, signal,
};
use crate::told::Told;
use holdfast_base::ids::NodeId;
use holdfast_client::{Client, ClientOptions, Endpoint, NewFile};
use holdfast_wire::admin::Cluster;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command};
use std::sync::atomic::{AtomicU16, Ordering};

const STEP: u16 = 100;

/// A running `holdfast dev`.
pub struct Dev {
    pub data: PathBuf,
    port: u16,
    pub child: Child,
    told: Told,
    _stdout: BufReader<ChildStdout>,
}

/// A port that is free, and so are those of the other nodes. No two tests are given the same.
fn free_ports(nodes: u16) -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    loop {
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        // Fourteen clusters interleave within one range of ports.
        let port = 14_000 + next / 14 * 1000 + next % 14 * 7;
        if (0..nodes).all(|i| free(port + STEP * i)) {
            return port;
        }
    }
}

impl Dev {
    pub fn start(data: &Path, nodes: u16) -> Dev {
        Dev::start_with(data, nodes, (0, with_tls()), &[])
    }

    /// Without certificates, whatever the others have: nodes that have none join it.
    pub fn start_plain(data: &Path, nodes: u16) -> Dev {
        Dev::start_with(data, nodes, (0, false), &[])
    }

    /// With S3 on every node; its credentials are in the node's data directory.
    pub fn start_with_s3(data: &Path, nodes: u16) -> Dev {
        Dev::start_with(data, nodes, (free_ports(nodes), with_tls()), &[])
    }

    /// With a log that brokers keep.
    pub fn start_on(data: &Path, nodes: u16, log: &str) -> Dev {
        Dev::start_with(data, nodes, (0, with_tls()), &["--log", log])
    }

    fn start_with(data: &Path, nodes: u16, (s3_port, tls): (u16, bool), more: &[&str]) -> Dev {
        let port = free_ports(nodes);
        let mut child = binary()
            .args(["--json", "dev", "--http-port", "0", "--lost-ms", "4000"])
            .args(["--s3-port", &s3_port.to_string()])
            .args(["--nodes", &nodes.to_string(), "--port", &port.to_string(), "--data"])
            .arg(data)
            .args(tls.then_some("--tls"))
            .args(more)
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let mut told = Told::by(child.stderr.take().unwrap());
        assert!(line.contains("ready"), "{line}{}", told.whole());
        Dev { data: data.to_owned(), port, child, told, _stdout: stdout }
    }

    pub fn address(&self, node: u16) -> String {
        format!("127.0.0.1:{}", self.port + STEP * (node - 1))
    }

    pub fn client(&self, node: u16, others: &[u16]) -> Client {
        self.client_with(node, others, options(&self.data))
    }

    /// One that asks again for longer than others do: of a node that is killed while others keep the machine busy.
    pub fn patient_client(&self, node: u16, others: &[u16]) -> Client {
        let patience = std::time::Duration::from_secs(60);
        self.client_with(node, others, ClientOptions { patience, ..options(&self.data) })
    }

    fn client_with(&self, node: u16, others: &[u16], options: ClientOptions) -> Client {
        let endpoint = |node: &u16| Endpoint::parse(&self.address(*node)).unwrap();
        let others = others.iter().map(endpoint).collect();
        Client::connect(&endpoint(&node), &ClientOptions { others, ..options }).unwrap()
    }

    /// `holdfast dev WORDS` for this cluster.
    pub fn order(&self, words: &[&str]) -> Finished {
        finish(binary().args(["dev", "--data"]).arg(&self.data).args(words), b"")
    }

    /// `holdfast`, let in by a node.
    pub fn command(&self, node: u16) -> Command {
        let mut command = binary();
        command.args(["--server", &self.address(node), "--secret"]).arg(self.data.join("secret"));
        command
    }

    pub fn run(&self, node: u16, words: &[&str]) -> Finished {
        finish(self.command(node).args(words), b"")
    }

    /// Whether a node's process runs.
    pub fn runs(&self, node: u16) -> bool {
        let listed = self.order(&["status"]).ok();
        listed.lines().any(|l| l.starts_with(&format!("node-{node} ")) && l.contains(" pid "))
    }

    /// Asks a node until `good` says so.
    #[track_caller]
    pub fn until(&self, node: u16, what: &str, good: impl Fn(&Cluster) -> bool) {
        let mut client = self.client(node, &[]);
        for () in attempts() {
            if good(&client.cluster().unwrap()) {
                return;
            }
        }
        panic!("waited in vain until {what}: {:?}", client.cluster());
    }

    pub fn until_repaired(&self, lost: u32) {
        self.until(1, "every chunk has its copies again", |cluster| {
            let node = cluster.nodes.iter().find(|node| node.node == NodeId(lost));
            let recovery = &cluster.recovery;
            node.is_some_and(|node| node.state == "lost")
                && (recovery.short, recovery.lost) == (0, 0)
        });
    }
}

/// `make test-tls`: the same stories, between nodes that have certificates.
fn with_tls() -> bool {
    std::env::var_os("HOLDFAST_TEST_TLS").is_some()
}

impl Drop for Dev {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            signal(self.child.id(), "TERM");
            let _ = self.child.wait();
        }
        match std::thread::panicking() {
            true => print!("{}", self.told.whole()),
            false => drop(self.told.judge()),
        }
    }
}

/// Small files and one that takes a chunk of its own.
pub fn make_tree(root: &Path) {
    for i in 0..60u64 {
        let dir = root.join(format!("d{}", i % 4));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(format!("f{i}")), bytes(i, (i * 997) as usize)).unwrap();
    }
    fs::write(root.join("large"), bytes(99, 20 << 20)).unwrap();
}

#[track_caller]
pub fn assert_same(dev: &Dev, node: u16, scratch: &Scratch, name: &str) {
    let out = scratch.path(name);
    dev.run(node, &["fs", "get", "-r", "/tree", out.to_str().unwrap()]).ok();
    let tree = scratch.path("tree");
    let mut diff = std::process::Command::new("diff");
    let diff = finish(
        diff.arg("-r")
            .arg(&tree)
            .arg(&out)
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped()),
        b"",
    );
    assert_eq!(diff.code, Some(0), "{diff:?}");
}

#[test]
fn a_cluster_loses_nodes_and_disks_and_no_file() {
    let scratch = Scratch::new();
    let dev = Dev::start(&scratch.path("dev"), 4);
    nodes_and_disks_are_lost(&dev, &scratch, |_| ());
}

/// What four nodes bear, whoever keeps the log. `meanwhile` is called with the number of each of the 96
/// pieces of a stream.
pub fn nodes_and_disks_are_lost(dev: &Dev, scratch: &Scratch, mut meanwhile: impl FnMut(usize)) {
    make_tree(&scratch.path("tree"));
    dev.run(1, &["fs", "put", "-r", scratch.path("tree").to_str().unwrap(), "/tree"]).ok();
    assert_same(dev, 4, scratch, "before");

    // A client's node dies under a stream; it goes on at another one.
    let streamed = bytes(7, 6 << 20);
    let mut client = dev.client(3, &[2, 1]);
    let mut writer = client.create("/streamed", &NewFile::default()).unwrap();
    for (i, piece) in streamed.chunks(64 << 10).enumerate() {
        if i == 40 {
            dev.order(&["kill", "3", "--hard"]).ok();
        }
        meanwhile(i);
        writer.write(piece).unwrap();
    }
    writer.close().unwrap();
    assert_eq!(client.get("/streamed").unwrap(), streamed);
    drop(client);

    // Its disk is gone for good; every chunk gets its copies on those that are left.
    dev.order(&["erase", "3"]).ok();
    dev.until_repaired(3);
    dev.order(&["kill", "4", "--hard"]).ok();
    dev.order(&["erase", "4"]).ok();
    assert_same(dev, 2, scratch, "two left");

    // A node with the old one's name and an empty disk joins as another one.
    dev.order(&["start", "3"]).ok();
    dev.until_repaired(4);
    assert_same(dev, 3, scratch, "three again");
    assert_eq!(read_there(&mut dev.client(3, &[]), "/streamed"), streamed);
    let listed = dev.run(2, &["node", "ls"]).ok();
    let states: Vec<&str> = listed.lines().map(|l| l.split_whitespace().nth(1).unwrap()).collect();
    assert_eq!(states, ["live", "live", "lost", "lost", "live"], "{listed}");
}

#[test]
fn orders_to_a_cluster_that_make_no_sense_are_refused() {
    let scratch = Scratch::new();
    finish(binary().args(["dev", "--data"]).arg(scratch.path("none")).arg("status"), b"")
        .refused(&["ask the cluster in", "holdfast dev --nodes N"]);
    let dev = Dev::start_plain(&scratch.path("dev"), 2);
    dev.order(&["kill", "3"]).refused(&["node-3", "node-1 to node-2"]);
    dev.order(&["erase", "1"]).refused(&["erase node-1", "kill 1"]);
    dev.order(&["start", "2"]).refused(&["runs already"]);
    dev.order(&["cut", "1", "1"]).refused(&["from itself"]);
    dev.run(1, &["node", "show", "7"]).refused(&["`n7`", "node ls"]);
    dev.run(2, &["node", "confirm-lost", "1"]).refused(&["does not lead"]);
    // A directory of one cluster does not join another.
    let other = Dev::start_plain(&scratch.path("other"), 1);
    let data = scratch.path("dev").join("node-2");
    dev.order(&["kill", "2"]).ok();
    let join = other.address(1);
    let mut command = binary();
    command.arg("--secret").arg(other.data.join("secret"));
    finish(command.args(["node", "run", "--join", &join, "--data"]).arg(&data), b"")
        .refused(&["belongs to", "check the address"]);
}
