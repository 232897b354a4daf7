//! A cluster whose nodes know each other by certificates: it works while they are renewed, does
//! without a node whose certificate is revoked, and takes nobody for another one.

use crate::cluster_input::Joined;
use crate::common::{
    Finished, Node, SETTINGS, Scratch, attempts, binary, finish, free_port, options, read_there,
};
use holdfast_base::Kind;
use holdfast_client::{Client, ClientOptions, Endpoint, NewFile, TlsClient};
use holdfast_wire::admin::Cluster;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A cluster's authority and its nodes' directories.
struct Nodes {
    scratch: Scratch,
}

impl Nodes {
    fn new() -> Nodes {
        let nodes = Nodes { scratch: Scratch::new() };
        nodes.cert(&["init", "test", "--dir"], &nodes.scratch.path("tls")).ok();
        nodes
    }

    fn cert(&self, words: &[&str], path: &Path) -> Finished {
        finish(binary().arg("cert").args(words).arg(path), b"")
    }

    fn data(&self, name: &str) -> PathBuf {
        self.scratch.path(name)
    }

    fn issued(&self, name: &str) -> PathBuf {
        self.scratch.path("tls").join(format!("{name}.pem"))
    }

    fn ca(&self) -> PathBuf {
        self.scratch.path("tls/ca.pem")
    }

    /// A directory with settings and the certificate of `name`; answers where it listens.
    fn prepare(&self, directory: &str, name: &str) -> String {
        if !self.issued(name).exists() {
            let words = ["node", name, "--host", "127.0.0.1", "--dir"];
            self.cert(&words, &self.scratch.path("tls")).ok();
        }
        let (data, port) = (self.data(directory), free_port());
        fs::create_dir_all(data.join("tls")).unwrap();
        let text = SETTINGS.replace("native_port = 0", &format!("native_port = {port}"));
        let text = format!("{text}host = \"{directory}\"\nlost_ms = 600000\n");
        fs::write(data.join("holdfast.toml"), text).unwrap();
        self.install(directory, name);
        format!("127.0.0.1:{port}")
    }

    /// Puts the newest certificate of `name` in place, the key first: for a moment they do not fit.
    fn install(&self, directory: &str, name: &str) {
        let (from, to) = (self.issued(name), self.data(directory).join("tls"));
        let pairs =
            [(from.with_extension("key"), "node.key"), (from, "node.pem"), (self.ca(), "ca.pem")];
        for (from, name) in pairs {
            let new = to.join("new");
            fs::write(&new, fs::read(from).unwrap()).unwrap();
            fs::set_permissions(&new, fs::Permissions::from_mode(0o600)).unwrap();
            fs::rename(&new, to.join(name)).unwrap();
        }
    }

    fn renew(&self, directory: &str, name: &str) {
        self.cert(&["renew"], &self.issued(name)).ok();
        self.install(directory, name);
    }

    fn join(&self, directory: &str, host: &str) -> Result<Joined, Finished> {
        Joined::start(&self.data(directory), host, &self.data("n1").join("secret"))
    }

    /// Over TCP, with the secret, and TLS if it is `sealed`.
    fn client(&self, address: &str, sealed: bool) -> Client {
        let tls = sealed.then(|| TlsClient::load(&self.ca(), None).unwrap());
        let options = ClientOptions { tls, ..options(&self.data("n1")) };
        Client::connect(&Endpoint::parse(address).unwrap(), &options).unwrap()
    }
}

/// Asks until the answer is as it should be.
#[track_caller]
fn until(client: &mut Client, what: &str, good: impl Fn(&Cluster) -> bool) {
    for () in attempts() {
        if good(&client.cluster().unwrap()) {
            return;
        }
    }
    panic!("waited in vain until {what}: {:?}", client.cluster());
}

fn state_of<'a>(cluster: &'a Cluster, name: &str) -> &'a str {
    cluster.nodes.iter().find(|node| node.name == name).map_or("", |node| node.state.as_str())
}

#[test]
fn a_cluster_over_tls_goes_on_while_certificates_are_renewed_and_one_is_revoked() {
    let nodes = Nodes::new();
    let host = nodes.prepare("n1", "n1");
    let first = Node::start(&nodes.data("n1"));
    let addresses = ["n2", "n3", "n4"].map(|name| nodes.prepare(name, name));
    let others = ["n2", "n3", "n4"].map(|name| nodes.join(name, &host).unwrap());
    let mut asks = first.client();
    until(&mut asks, "all are live", |cluster| {
        ["n1", "n2", "n3", "n4"].iter().all(|name| state_of(cluster, name) == "live")
    });
    // Small and large, written through one node and read through all, sealed and on this machine
    // not.
    let large: Vec<u8> = (0..3_000_000u32).map(|i| (i / 3) as u8).collect();
    let mut writes = nodes.client(&addresses[0], true);
    writes.put("/small", b"a few bytes", &NewFile::default()).unwrap();
    writes.put("/large", &large, &NewFile::default()).unwrap();
    for (address, sealed) in addresses.iter().flat_map(|a| [(a, true), (a, false)]) {
        let mut reads = nodes.client(address, sealed);
        assert_eq!(read_there(&mut reads, "/small"), b"a few bytes", "{address} {sealed}");
        assert!(read_there(&mut reads, "/large") == large, "{address} {sealed}");
    }
    // Renewed under a client that has its connection: it goes on, and so do the nodes.
    for name in ["n1", "n2"] {
        nodes.renew(name, name);
    }
    for i in 0..50 {
        writes.put(&format!("/f{i}"), &large[..10_000 + i], &NewFile::default()).unwrap();
    }
    // A revoked node is as good as away, though it runs and holds its connections.
    let stolen = nodes.scratch.path("stolen.pem");
    fs::copy(nodes.issued("n4"), &stolen).unwrap();
    first.run(&["cert", "revoke", stolen.to_str().unwrap()]).ok();
    until(&mut asks, "the revoked one is away", |cluster| state_of(cluster, "n4") == "unavailable");
    writes.put("/without", b"four", &NewFile::default()).unwrap();
    assert_eq!(read_there(&mut nodes.client(&addresses[1], true), "/without"), b"four");
    // What is not its own is not taken for a renewal; with its own it is back, without a restart.
    nodes.install("n4", "n3");
    nodes.renew("n4", "n4");
    until(&mut asks, "it is back", |cluster| state_of(cluster, "n4") == "live");
    until(&mut asks, "everything has its copies", |cluster| cluster.recovery.short == 0);
    assert_eq!(read_there(&mut nodes.client(&addresses[2], true), "/f49"), large[..10_049]);
    drop(others);
    first.stop();
}

#[test]
fn a_certificate_makes_nobody_another_node() {
    let nodes = Nodes::new();
    let host = nodes.prepare("n1", "n1");
    let first = Node::start(&nodes.data("n1"));
    nodes.prepare("n2", "n2");
    let second = nodes.join("n2", &host).unwrap();
    // The same certificate in another directory is another node, which the cluster does not take.
    nodes.prepare("twin", "n2");
    let refused = |joined: Result<Joined, Finished>| joined.err().expect("it came in");
    refused(nodes.join("twin", &host)).refused(&["`n2`", "holdfast node replace n2"]);
    // One that lives is not replaced, least of all the one that keeps the log.
    for name in ["n1", "n2"] {
        first.run(&["node", "replace", name]).refused(&[name, "is live", "stop it first"]);
    }
    // Gone for good, and said so: its name is the next one's.
    drop(second);
    let mut asks = first.client();
    until(&mut asks, "it is away", |cluster| state_of(cluster, "n2") == "unavailable");
    first.run(&["node", "replace", "n2"]).ok();
    let twin = nodes.join("twin", &host).unwrap();
    until(&mut first.client(), "the new one is live", |cluster| state_of(cluster, "n2") == "live");
    drop(twin);
    // And who was replaced stays out, and hears why.
    refused(nodes.join("n2", &host)).refused(&["another node"]);
    // Another authority's, a client's, and none at all.
    let strange = Nodes::new();
    strange.prepare("n3", "n3");
    fs::copy(nodes.data("n1").join("secret"), strange.scratch.path("secret")).unwrap();
    let join = |data: &Path| Joined::start(data, &host, &strange.scratch.path("secret"));
    refused(join(&strange.data("n3"))).refused(&["TLS"]);
    nodes.cert(&["client", "someone", "--dir"], &nodes.scratch.path("tls")).ok();
    nodes.prepare("n4", "someone");
    refused(nodes.join("n4", &host)).refused(&["no node", "holdfast cert node"]);
    first.stop();
}

#[test]
fn who_connects_without_the_right_words_is_told_what_to_do() {
    let nodes = Nodes::new();
    let host = nodes.prepare("n1", "n1");
    let first = Node::start(&nodes.data("n1"));
    let secret = nodes.data("n1").join("secret").display().to_string();
    let ca = nodes.ca().display().to_string();
    let run = |words: &[&str]| finish(binary().args(["--server", &host]).args(words), b"");
    run(&["--cacert", &ca, "--secret", &secret, "fs", "ls"]).ok();
    run(&["--secret", &secret, "fs", "ls"]).ok();
    run(&["--cacert", &ca, "fs", "ls"]).refused(&["--secret"]);
    let other = Nodes::new().ca().display().to_string();
    run(&["--cacert", &other, "--secret", &secret, "fs", "ls"]).refused(&[&other]);
    let strange = Nodes::new();
    let wrong = strange.ca().display().to_string();
    run(&["--cacert", &wrong, "--secret", &secret, "fs", "ls"])
        .refused(&["certificate is refused"]);
    // A name that the certificate does not have.
    let named = host.replace("127.0.0.1", "localhost");
    let named = finish(
        binary().args(["--server", &named, "--cacert", &ca, "--secret", &secret, "fs", "ls"]),
        b"",
    );
    named.refused(&["certificate is refused"]);
    let plain =
        Node::start_with(&nodes.scratch.path("plain"), &format!("native_port = {}\n", free_port()));
    let address = plain.ready["native"].as_str().unwrap().to_owned();
    let e = Client::connect(
        &Endpoint::parse(&address).unwrap(),
        &ClientOptions {
            tls: Some(TlsClient::load(&nodes.ca(), None).unwrap()),
            reconnects_max: 0,
            ..ClientOptions::default()
        },
    );
    let e = e.err().expect("it speaks no TLS");
    assert!(e.kind == Kind::Denied && e.message.contains("no TLS"), "{e}");
    plain.stop();
    first.stop();
}
