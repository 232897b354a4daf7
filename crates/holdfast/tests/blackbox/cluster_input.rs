//! What may be wrong with a node that joins: its directory, its number, the address it was told,
//! or who answers there. Each is a sentence that says so, and the cluster goes on.

use crate::cluster::Dev;
use crate::common::{Finished, SETTINGS, Scratch, binary, free_port, read_there};
use crate::told::Told;
use holdfast_base::codec::Encode;
use holdfast_client::{Client, ClientOptions, Endpoint, NewFile, Secret};
use holdfast_env::net::{Batch, Server, ServerConfig, Service, Who};
use holdfast_env::{RealClock, RealRng};
use holdfast_wire::peer::{OP_PEER_HELLO, Welcome};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout};
use std::sync::Arc;

/// A node that was started by hand.
pub struct Joined {
    data: PathBuf,
    child: Child,
    told: Told,
    _stdout: BufReader<ChildStdout>,
}

impl Joined {
    /// `secret` is the file that the node is given.
    pub fn start(data: &Path, join: &str, secret: &Path) -> Result<Joined, Finished> {
        let mut command = binary();
        command.arg("--secret").arg(secret);
        command.args(["--json", "node", "run", "--join", join, "--data"]).arg(data);
        let mut child = command.spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        if line.is_empty() {
            let done = child.wait_with_output().unwrap();
            let err = String::from_utf8(done.stderr).unwrap();
            return Err(Finished { code: done.status.code(), out: done.stdout, err });
        }
        let told = Told::by(child.stderr.take().unwrap());
        Ok(Joined { data: data.to_owned(), child, told, _stdout: stdout })
    }

    pub fn client(&self) -> Client {
        let socket = Endpoint::Unix(self.data.join("holdfast.sock"));
        Client::connect(&socket, &ClientOptions::default()).unwrap()
    }

    /// Waits until it ends by itself with this event, and gives the exit status and the sentence.
    fn ended(mut self, event: &'static str) -> (Option<i32>, String) {
        let code = self.child.wait().unwrap().code();
        (code, self.told.sentence_of(event))
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        match std::thread::panicking() {
            true => print!("{}", self.told.whole()),
            false => drop(self.told.judge()),
        }
    }
}

fn refused(joined: Result<Joined, Finished>) -> Finished {
    match joined {
        Err(finished) => finished,
        Ok(_) => panic!("it started"),
    }
}

fn settings(data: &Path, host: &str) {
    fs::create_dir_all(data).unwrap();
    let port = free_port();
    let text = SETTINGS.replace("native_port = 0", &format!("native_port = {port}"));
    fs::write(data.join("holdfast.toml"), format!("{text}host = \"{host}\"\n")).unwrap();
}

fn copy_directory(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (kind, to) = (entry.file_type().unwrap(), to.join(entry.file_name()));
        if kind.is_dir() {
            copy_directory(&entry.path(), &to);
        } else if kind.is_file() {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

#[test]
fn a_directory_of_another_version_is_refused_and_named() {
    let scratch = Scratch::new();
    let dev = Dev::start_plain(&scratch.path("dev"), 1);
    let data = scratch.path("old");
    settings(&data, "old");
    fs::write(data.join("HOLDFAST"), "Holdfast data directory, format 9\n").unwrap();
    refused(Joined::start(&data, &dev.address(1), &dev.data.join("secret"))).refused(&[
        "format 9",
        "format 1",
        "use the build that made it",
    ]);
}

/// A node of a later build.
struct Later;

impl Service for Later {
    fn handle(&self, batch: &mut Batch<'_>) {
        for i in 0..batch.len() {
            assert_eq!((batch.header(i).opcode, batch.who()), (OP_PEER_HELLO, &Who::Node));
            let welcome = Welcome { cluster: 7, log_host: "elsewhere:1".into(), data_format: 9 };
            batch.reply(i, |out| welcome.encode(out), ());
        }
    }
}

/// Somebody answers, but of a build that keeps its data in another form.
#[test]
fn a_cluster_of_another_version_is_not_joined() {
    let scratch = Scratch::new();
    let data = scratch.path("new");
    settings(&data, "new");
    let (secret, file) = (Secret::draw(&RealRng), scratch.path("secret"));
    fs::write(&file, secret.text()).unwrap();
    let config = ServerConfig {
        tcp: vec!["127.0.0.1:0".parse().unwrap()],
        secret: Some(secret),
        ..ServerConfig::default()
    };
    let clock = Arc::new(RealClock::new());
    let server = Server::start(config, Arc::new(Later), clock).unwrap();
    let (secret, address) = (file, server.tcp_addresses()[0].to_string());
    refused(Joined::start(&data, &address, &secret)).refused(&[
        &address,
        "format 9",
        "matching builds",
    ]);
}

#[test]
fn an_address_where_nobody_or_somebody_else_answers_is_named() {
    let scratch = Scratch::new();
    let data = scratch.path("lonely");
    settings(&data, "lonely");
    let secret = scratch.path("secret");
    fs::write(&secret, Secret::draw(&RealRng).text()).unwrap();
    let nobody = format!("127.0.0.1:{}", free_port());
    let told = refused(Joined::start(&data, &nobody, &secret));
    assert_eq!(told.code, Some(1), "{told:?}");
    for part in ["waits for the cluster", &nobody, "check the address"] {
        assert!(told.err.contains(part), "`{part}` is missing in {told:?}");
    }
    // Without certificates other machines are not joined.
    refused(Joined::start(&data, "192.0.2.1:7400", &secret))
        .refused(&["192.0.2.1:7400", "holdfast cert init"]);
}

/// A data directory was copied, and both are started: there is one node n2, the later one.
#[test]
fn of_two_nodes_with_one_number_the_earlier_one_ends() {
    let scratch = Scratch::new();
    let dev = Dev::start_plain(&scratch.path("dev"), 1);
    let (one, two) = (scratch.path("one"), scratch.path("two"));
    settings(&one, "twin");
    drop(Joined::start(&one, &dev.address(1), &dev.data.join("secret")).unwrap());
    copy_directory(&one, &two);
    settings(&two, "twin");
    let earlier = Joined::start(&one, &dev.address(1), &dev.data.join("secret")).unwrap();
    earlier.client().put("/by-one", b"one", &NewFile::default()).unwrap();
    let later = Joined::start(&two, &dev.address(1), &dev.data.join("secret")).unwrap();
    let (code, sentence) = earlier.ended("node.ends");
    assert_eq!(code, Some(1));
    for part in ["be node `n2`", "copies of one data directory"] {
        assert!(sentence.contains(part), "`{part}` is missing in: {sentence}");
    }
    later.client().put("/by-two", b"two", &NewFile::default()).unwrap();
    assert_eq!(read_there(&mut later.client(), "/by-one"), b"one");
    assert_eq!(read_there(&mut dev.client(1, &[]), "/by-two"), b"two");
}
