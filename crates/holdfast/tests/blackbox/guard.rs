//! Who gets in, and who does not: other users' eyes on every file, strangers over TCP, secrets in
//! what is kept and what is printed.

use crate::cluster::Dev;
use crate::common::{Node, Scratch, binary, bytes, finish, free_port, options};
use holdfast_base::Kind;
use holdfast_base::frame::{self, Decoded, FrameKind, HEADER_BYTES};
use holdfast_client::{Client, ClientOptions, Connection, Endpoint, NewFile, Secret};
use holdfast_env::RealRng;
use holdfast_wire::{self as wire, admin};
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Every file and directory at and below a place.
fn walk(place: &Path, found: &mut Vec<PathBuf>) {
    found.push(place.to_owned());
    if !place.symlink_metadata().unwrap().is_dir() {
        return;
    }
    for entry in fs::read_dir(place).unwrap() {
        walk(&entry.unwrap().path(), found);
    }
}

/// Nothing at or below a place gives a group or others any right.
#[track_caller]
fn is_private(place: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    walk(place, &mut found);
    let open = |path: &&PathBuf| path.symlink_metadata().is_ok_and(|m| m.mode() & 0o077 != 0);
    let open: Vec<&PathBuf> = found.iter().filter(open).collect();
    assert!(open.is_empty(), "others may use {open:?}");
    found
}

/// What a process of another user says to this command; nothing where this test may not become one.
fn as_nobody(words: &[&str]) -> Option<bool> {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).args(words);
    let done = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    // 127: it could not become that user, or there is no such program.
    done.ok().and_then(|status| status.code()).filter(|code| *code < 126).map(|code| code == 0)
}

/// Sends a frame to a Unix socket; fails where nothing comes back.
const PING: &str = "import socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
s.sendall(bytes.fromhex(sys.argv[2]))
sys.exit(not s.recv(32))";

/// A place that other users can reach, to see that it is the modes which keep them out.
struct Public(PathBuf);

impl Public {
    fn new(name: &str) -> Public {
        let path =
            std::env::temp_dir().join(format!("holdfast-eyes-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(path.join("for-all"), "read me").unwrap();
        fs::set_permissions(path.join("for-all"), fs::Permissions::from_mode(0o644)).unwrap();
        Public(path)
    }
}

impl Drop for Public {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn settings(data: &Path, port: u16, s3_port: u16) {
    fs::create_dir_all(data).unwrap();
    let text = format!(
        "native_port = {port}\nhttp_port = 0\ncache_port = 0\ns3_port = {s3_port}\n\
         dram = \"0\"\nworkers = 2\ncapacity = \"16GiB\"\nsnapshot_entries = 8\n"
    );
    fs::write(data.join("holdfast.toml"), text).unwrap();
}

fn blob(data: &Path, words: &[&str], stdin: &[u8]) -> String {
    finish(binary().args(["blob", "--data"]).arg(data).args(words), stdin).ok()
}

/// Log segments and chunks were 0644 in directories of 0755: every user of the machine could read
/// the secret keys of S3 in them, and objects past their policies.
#[test]
fn other_users_see_nothing_of_what_a_node_makes() {
    let public = Public::new("node");
    let data = public.0.join("data");
    settings(&data, 0, free_port());
    // A umask that gives everything away.
    fs::set_permissions(&data, fs::Permissions::from_mode(0o777)).unwrap();
    let open = || {
        format!(
            "umask 0; exec {} --json up --data {}",
            env!("CARGO_BIN_EXE_holdfast"),
            data.display()
        )
    };
    let node = Node::start_by(Command::new("sh").args(["-c", &open()]), &data);
    node.run(&["fs", "mkdir", "/d"]).ok();
    let tree = public.0.join("for-all");
    for i in 0..20 {
        node.run(&["fs", "put", tree.to_str().unwrap(), &format!("/d/{i}")]).ok();
    }
    let large = public.0.join("large");
    fs::write(&large, bytes(1, 20 << 20)).unwrap();
    node.run(&["fs", "put", large.to_str().unwrap(), "/large"]).ok();
    blob(&data, &["mb", "photos"], b"");
    blob(&data, &["put", large.to_str().unwrap(), "photos/large"], b"");
    blob(&data, &["put", tree.to_str().unwrap(), "photos/small"], b"");
    let found = is_private(&data);
    for part in [
        "chunks",
        "log/topics",
        "snapshots",
        "blobs",
        "credentials.json",
        "secret",
        "holdfast.sock",
    ] {
        let part = data.join(part);
        assert!(found.iter().any(|path| path.starts_with(&part)), "{part:?} is not looked at");
    }
    // A real process of another user, where this test may start one.
    let for_all = tree.to_str().unwrap().to_owned();
    if as_nobody(&["cat", &for_all]) == Some(true) {
        for path in found.iter().filter(|path| path.is_file()) {
            assert_eq!(as_nobody(&["cat", path.to_str().unwrap()]), Some(false), "{path:?}");
        }
        // Nor does one get in where somebody opened the way to the socket by hand.
        for (path, mode) in [(&data, 0o755), (&node.socket(), 0o666)] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
        let mut ping = Vec::new();
        frame::encode(&mut ping, FrameKind::Request, wire::OP_PING, 1, 0, 0, |_| {});
        let ping: String = ping.iter().map(|byte| format!("{byte:02x}")).collect();
        let socket = node.socket();
        let asks = ["/usr/bin/python3", "-c", PING, socket.to_str().unwrap(), &ping];
        let own = Command::new(asks[0]).args(&asks[1..]).status().unwrap();
        assert!(own.success(), "its own user reaches the node");
        assert_eq!(as_nobody(&asks), Some(false), "another user reaches the node");
    }
    node.kill();
    // What recovery makes is as private.
    let node = Node::start_by(Command::new("sh").args(["-c", &open()]), &data);
    is_private(&data);
    node.stop();
}

/// The directories of builds that made them for everybody are closed by the next start.
#[test]
fn a_directory_that_was_open_is_closed_by_the_next_start() {
    let scratch = Scratch::new();
    let data = scratch.path("data");
    settings(&data, 0, free_port());
    Node::start(&data).kill();
    let mut found = Vec::new();
    walk(&data, &mut found);
    for path in &found {
        let mode = if path.is_dir() { 0o755 } else { 0o644 };
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let node = Node::start(&data);
    let mode = |path: &Path| path.metadata().unwrap().mode() & 0o777;
    assert_eq!(mode(&data), 0o700);
    for secret in ["secret", "http-token", "credentials.json", "holdfast.toml"] {
        assert_eq!(mode(&data.join(secret)), 0o600, "{secret}");
    }
    node.stop();
}

#[test]
fn other_users_see_nothing_of_a_cluster() {
    let scratch = Scratch::new();
    let dev = Dev::start_with_s3(&scratch.path("dev"), 2);
    let mut client = dev.client(1, &[2]);
    client.put("/f", &bytes(1, 100_000), &NewFile::default()).unwrap();
    blob(&dev.data.join("node-2"), &["mb", "photos"], b"");
    let found = is_private(&dev.data);
    for part in ["dev.sock", "secret", "node-1/secret", "node-2/chunks", "node-2/blobs"] {
        let part = dev.data.join(part);
        assert!(found.iter().any(|path| path.starts_with(&part)), "{part:?} is not looked at");
    }
}

/// The files at and below a place that hold this text.
fn holds(place: &Path, what: &str) -> Vec<PathBuf> {
    let found = Command::new("grep").args(["-rlaF", "--", what]).arg(place).output().unwrap();
    assert!(found.status.code().is_some_and(|code| code < 2), "{found:?}");
    let mut files: Vec<PathBuf> =
        String::from_utf8(found.stdout).unwrap().lines().map(PathBuf::from).collect();
    files.sort();
    files
}

fn credentials(data: &Path) -> serde_json::Value {
    serde_json::from_str(&fs::read_to_string(data.join("credentials.json")).unwrap()).unwrap()
}

/// S3's secret keys were in clear in the entries of the blobs topic, in the index that is folded
/// from it, and on the terminal of whoever started the node.
#[test]
fn a_secret_key_is_in_clear_in_its_own_file_alone() {
    let scratch = Scratch::new();
    let data = scratch.path("data");
    settings(&data, 0, free_port());
    let node = Node::start(&data);
    let secret = credentials(&data)["secret_key"].as_str().unwrap().to_owned();
    let to = scratch.path("ann.json");
    let mut add = binary();
    add.args(["s3", "--data"]).arg(&data).args(["user", "add", "ann", "--to"]).arg(&to);
    let said = finish(&mut add, b"").ok();
    let ann: serde_json::Value = serde_json::from_str(&fs::read_to_string(&to).unwrap()).unwrap();
    let ann = ann["secret_key"].as_str().unwrap().to_owned();
    assert!(said.contains("ann.json") && !said.contains(&ann), "{said}");
    assert_eq!(to.metadata().unwrap().mode() & 0o777, 0o600);
    assert_eq!(holds(&data, &ann), [] as [PathBuf; 0]);
    assert_eq!(holds(&data, &secret), [data.join("credentials.json")]);
    // The keys still sign, here and after a restart.
    blob(&data, &["mb", "photos"], b"");
    node.stop();
    let mut up = binary();
    up.args(["up", "--data"]).arg(&data);
    let said = said_at_the_start(&mut up);
    assert!(said.contains("credentials.json") && !said.contains(&secret), "{said}");
    let own = fs::read_to_string(data.join("secret")).unwrap();
    assert!(!said.contains(own.trim()), "{said}");
}

/// Without the secret that sealed them no key could be read, S3 did not open, and making keys anew,
/// which is the way out, is asked of S3. The key of `credentials.json` is known from there.
#[test]
fn keys_are_made_anew_when_the_secret_is_lost() {
    let scratch = Scratch::new();
    let data = scratch.path("data");
    settings(&data, 0, free_port());
    let node = Node::start(&data);
    let user = |word: &str, to: &str| {
        let mut command = binary();
        command.args(["s3", "--data"]).arg(&data).args(["user", word, "ann"]);
        command.args((word == "add").then(|| scratch.path(to)).iter().flat_map(|to| {
            [std::ffi::OsStr::new("--to"), to.as_os_str()].map(|word| word.to_owned())
        }));
        finish(&mut command, b"").ok()
    };
    user("add", "before.json");
    blob(&data, &["mb", "photos"], b"");
    node.stop();
    fs::remove_file(data.join("secret")).unwrap();
    let node = Node::start(&data);
    blob(&data, &["mb", "more"], b"");
    user("rm", "");
    user("add", "after.json");
    let key = fs::read(scratch.path("after.json")).unwrap();
    fs::write(data.join("credentials.json"), key).unwrap();
    blob(&data, &["mb", "anns"], b"");
    node.stop();
}

/// What a node prints until it is ready.
fn said_at_the_start(command: &mut Command) -> String {
    let mut child = command.spawn().unwrap();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut said = String::new();
    while !said.contains("ready; press") {
        assert!(std::io::BufRead::read_line(&mut out, &mut said).unwrap() > 0, "{said}");
    }
    child.kill().unwrap();
    child.wait().unwrap();
    said
}

/// A directory as a build before there were secrets left it: its log and its index hold secret
/// keys in clear. The first start with this build seals them, and they go on signing.
#[test]
fn keys_that_an_earlier_build_wrote_in_clear_are_sealed_by_the_first_start() {
    if !cfg!(debug_assertions) {
        return;
    }
    let scratch = Scratch::new();
    let data = scratch.path("data");
    settings(&data, 0, free_port());
    // What this build writes when it is told to forget sealing is what that build wrote.
    let mut clear = binary();
    clear.env("HOLDFAST_PLANTED", "blob.secrets-in-clear");
    clear.args(["--json", "up", "--data"]).arg(&data);
    let node = Node::start_by(&mut clear, &data);
    blob(&data, &["mb", "photos"], b"");
    let file = scratch.path("file");
    fs::write(&file, "kept").unwrap();
    blob(&data, &["put", file.to_str().unwrap(), "photos/a"], b"");
    // It says on standard error that a bug is planted.
    node.kill();
    for of_this_build in ["secret", "http-token"] {
        fs::remove_file(data.join(of_this_build)).unwrap();
    }
    // Nor did that build note how far its log was; this one may have, before it was killed.
    let _ = fs::remove_file(data.join("REACHED"));
    let secret = credentials(&data)["secret_key"].as_str().unwrap().to_owned();
    let places = holds(&data, &secret);
    assert!(places.iter().any(|path| path.starts_with(data.join("log"))), "{places:?}");

    let node = Node::start(&data);
    assert_eq!(holds(&data, &secret), [data.join("credentials.json")]);
    assert_eq!(blob(&data, &["get", "photos/a", "-"], b""), "kept");
    blob(&data, &["put", file.to_str().unwrap(), "photos/b"], b"");
    node.stop();
    let node = Node::start(&data);
    assert_eq!(blob(&data, &["get", "photos/b", "-"], b""), "kept");
    node.stop();
}

fn frames(answer: &[u8]) -> BTreeMap<u64, (u32, String)> {
    let (mut found, mut at) = (BTreeMap::new(), 0);
    while let Ok(Decoded::Frame(header)) = frame::decode(&answer[at..]) {
        let meta = &answer[at + HEADER_BYTES..][..header.meta_bytes as usize];
        let text = String::from_utf8_lossy(meta.get(4..).unwrap_or_default()).into_owned();
        found.insert(header.request_id, (header.status(), text));
        at += HEADER_BYTES + (header.meta_bytes + header.body_bytes) as usize;
    }
    found
}

/// Every operation there could be, of a stranger: answered are a ping and the greeting.
fn ask_for_everything(port: u16) {
    for opcodes in (0..=u16::MAX).collect::<Vec<_>>().chunks(4096) {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let mut receiving = stream.try_clone().unwrap();
        let reader = std::thread::spawn(move || {
            let mut answer = Vec::new();
            receiving.read_to_end(&mut answer).unwrap();
            answer
        });
        let mut sent = Vec::new();
        for opcode in opcodes.iter().filter(|opcode| **opcode != wire::OP_PROVE) {
            let id = *opcode as u64 + 1;
            frame::encode(&mut sent, FrameKind::Request, *opcode, id, 0, 3, |m| m.extend([0; 40]));
            sent.extend_from_slice(b"abc");
        }
        stream.write_all(&sent).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let answers = frames(&reader.join().unwrap());
        for opcode in opcodes.iter().filter(|opcode| **opcode != wire::OP_PROVE) {
            let (status, text) = &answers[&(*opcode as u64 + 1)];
            let expected = match *opcode {
                wire::OP_PING => 0,
                wire::OP_HELLO => Kind::Unsupported as u32,
                _ => Kind::Denied as u32,
            };
            assert_eq!(*status, expected, "{opcode:#06x}: {text}");
            if expected == Kind::Denied as u32 {
                assert!(text.contains("--secret FILE"), "{opcode:#06x}: {text}");
            }
        }
    }
}

/// Over TCP anybody could read and change everything. Every operation there could be is asked for
/// by a stranger; none is answered but a ping and the greeting.
#[test]
fn strangers_over_tcp_are_answered_nothing_but_a_ping_and_the_greeting() {
    let scratch = Scratch::new();
    let (data, port) = (scratch.path("data"), free_port());
    settings(&data, port, 0);
    let node = Node::start(&data);
    let mut owner = node.client();
    owner.put("/f", b"private", &NewFile::default()).unwrap();
    ask_for_everything(port);
    // A proof without a greeting ends the connection, and so does a body that nobody will read.
    for (opcode, body) in [(wire::OP_PROVE, 0), (wire::OP_PUT, 16 << 20)] {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let mut sent = Vec::new();
        frame::encode(&mut sent, FrameKind::Request, opcode, 1, 0, body, |m| m.extend([0; 32]));
        sent.extend_from_slice(&vec![7; body as usize]);
        stream.write_all(&sent).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert_eq!(frames(&answer)[&1].0, Kind::Denied as u32);
    }
    // The client says so, too, and does not try again and again.
    let endpoint = Endpoint::parse(&format!("127.0.0.1:{port}")).unwrap();
    let mut stranger = Client::connect(&endpoint, &ClientOptions::default()).unwrap();
    let e = stranger.get("/f").unwrap_err();
    assert!(e.kind == Kind::Denied && e.message.contains("--secret FILE"), "{e}");
    let other =
        ClientOptions { secrets: Secret::draw(&RealRng).into(), ..ClientOptions::default() };
    let e = Client::connect(&endpoint, &other).err().expect("another secret is refused");
    assert!(e.kind == Kind::Denied && e.message.contains("not this server's"), "{e}");
    // Who has the secret is let in, on the command line and in a program; but not as a node.
    let mut known = Client::connect(&endpoint, &options(&data)).unwrap();
    assert_eq!(known.get("/f").unwrap(), b"private");
    let mut connection = Connection::connect_with(&endpoint, options(&data)).unwrap();
    for opcode in
        [wire::peer::OP_PEER_HELLO, wire::peer::OP_PEER_CREATE, wire::peer_log::OP_PEER_LOG_READ]
    {
        let e = connection.call(opcode, |_| {}, &[]).unwrap_err();
        assert!(e.kind == Kind::Denied && e.message.contains("nodes"), "{e}");
    }
    let server = format!("127.0.0.1:{port}");
    let secret = data.join("secret");
    let command = |secret: Option<&Path>| {
        let mut command = binary();
        command.current_dir(&scratch.0).args(["--server", &server]);
        command.args(secret.iter().flat_map(|file| [Path::new("--secret"), file]));
        finish(command.args(["fs", "cat", "/f"]), b"")
    };
    assert_eq!(command(Some(&secret)).ok(), "private");
    // In the directory above `data`, as in the first example of all, it is found.
    assert_eq!(command(None).ok(), "private");
    fs::write(scratch.path("other"), Secret::draw(&RealRng).text()).unwrap();
    command(Some(&scratch.path("other"))).refused(&[&server, "not this server's", "--secret FILE"]);
    command(Some(&scratch.path("none"))).refused(&["none"]);
    node.stop();
}

/// A name is other people's bytes: `ls` handed terminal escapes on to the terminal.
#[test]
fn names_are_shown_and_never_obeyed() {
    let scratch = Scratch::new();
    let node = Node::start(&scratch.path("data"));
    let mut client = node.client();
    let name = "/a\u{1b}[2J\u{9b}31m\r\nb";
    client.put(name, b"x", &NewFile::default()).unwrap();
    client.symlink("/link", "to\u{1b}]0;title\u{7}", 0).unwrap();
    let obeyed = |text: &str| text.chars().any(|c| c.is_control() && c != '\n');
    for words in [
        &["fs", "ls", "/"][..],
        &["fs", "ls", "-l", "-r", "/"],
        &["fs", "stat", name],
        &["fs", "du", name],
        &["fs", "stat", "/link"],
    ] {
        let text = node.run(words).ok();
        assert!(!obeyed(&text), "{words:?}: {text:?}");
        assert!(text.contains("\\u{1b}"), "{words:?}: {text:?}");
    }
    assert_eq!(node.run(&["fs", "ls", "/"]).ok().lines().count(), 2, "one line a name");
    let refusal = node.run(&["fs", "cat", "/no\u{1b}[2J"]);
    assert!(refusal.code == Some(1) && !obeyed(&refusal.err), "{refusal:?}");
    // Programs get the name as it is.
    let listed = node.json(&["fs", "ls", "/"]);
    assert!(listed.iter().any(|entry| entry["path"] == name), "{listed:?}");
    node.stop();
}

/// Any process of the machine could join, and had the cluster's chunks copied to it.
#[test]
fn a_node_without_the_clusters_secret_stays_outside() {
    let scratch = Scratch::new();
    let dev = Dev::start_plain(&scratch.path("dev"), 1);
    let join = |secret: Option<&Path>, data: &str| {
        let data = scratch.path(data);
        settings(&data, free_port(), 0);
        let mut command = binary();
        command.current_dir(&scratch.0);
        command.args(secret.iter().flat_map(|file| [Path::new("--secret"), file]));
        command.args(["node", "run", "--join", &dev.address(1), "--data"]).arg(&data);
        finish(&mut command, b"")
    };
    join(None, "one").refused(&["share a secret", "--secret FILE"]);
    fs::write(scratch.path("other"), Secret::draw(&RealRng).text()).unwrap();
    join(Some(&scratch.path("other")), "two").refused(&[&dev.address(1), "not this server's"]);
    let seen: admin::Cluster = dev.client(1, &[]).cluster().unwrap();
    assert_eq!(seen.nodes.len(), 1);
}

/// A second client was written from the documents, and refused: the page of frames was wrong. It
/// stays in the tests, in another language, so that the page has to be right.
#[test]
fn a_client_written_from_the_page_alone_greets_puts_gets_and_lists() {
    let scratch = Scratch::new();
    let (data, port) = (scratch.path("data"), free_port());
    settings(&data, port, 0);
    let node = Node::start(&data);
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut python = Command::new("python3");
    python.arg("-B").arg(root.join("tests/blackbox/second_client.py"));
    python.arg(root.join("../../docs/formats/wire.md"));
    python.args(["127.0.0.1", &port.to_string()]).arg(data.join("secret"));
    let said = finish(python.stdout(Stdio::piped()).stderr(Stdio::piped()), b"").ok();
    assert_eq!(said, "the page is right\n");
    assert_eq!(node.run(&["fs", "cat", "/pages/one"]).ok(), "written from the page alone");
    node.stop();
}
