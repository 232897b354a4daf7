//! A node in a directory of its own, and the commands that talk to it.

use crate::told::Told;
use holdfast_base::Kind;
pub use holdfast_base::random::{Random, bytes};
use holdfast_client::{Client, ClientOptions, Endpoint, Secret};
use holdfast_wire::admin::Status;
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Memory would only take room here: its tests are elsewhere. A capacity of its own, because a
/// store that may fill a nearly full file system is rightly warned about.
pub const SETTINGS: &str = "native_port = 0\nhttp_port = 0\ncache_port = 0\ns3_port = 0\n\
    dram = \"0\"\nworkers = 2\ncapacity = \"16GiB\"\n";

/// A directory that goes with the test. Beside the binary, so on a real file system.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new() -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        tell_failures_at_once();
        let name = format!("bb-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

/// A run that is ended from outside, for it took too long, never comes to where failures are listed: each is also
/// said when it happens, past what keeps a test's output.
fn tell_failures_at_once() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let listed = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let thread = std::thread::current();
            let _ = writeln!(std::io::stderr(), "!! {}: {panic}", thread.name().unwrap_or("?"));
            listed(panic);
        }));
    });
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Kept for whoever looks into a failure.
        if !std::thread::panicking() {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}

/// What a finished command left.
#[derive(Debug)]
pub struct Finished {
    pub code: Option<i32>,
    pub out: Vec<u8>,
    pub err: String,
}

impl Finished {
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!((self.code, self.err.as_str()), (Some(0), ""));
        String::from_utf8(self.out).unwrap()
    }

    /// Exit status 1 and one sentence that names what it is about; answers it.
    #[track_caller]
    pub fn refused(self, names: &[&str]) -> String {
        assert_eq!(self.code, Some(1), "{self:?}");
        assert!(self.out.is_empty(), "nothing on standard output: {self:?}");
        let sentence = self.err.strip_prefix("holdfast: ").expect(&self.err).to_owned();
        assert_eq!(sentence.matches('\n').count(), 1, "one line: {sentence}");
        for name in names {
            assert!(sentence.contains(name), "`{name}` is missing in: {sentence}");
        }
        sentence
    }
}

/// What a process has in memory.
pub fn resident_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// `holdfast` with nothing of the environment that could change what it does.
pub fn binary() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
    // But for a bug that is planted in it.
    let changes = |name: &str| name.starts_with("HOLDFAST_") && name != "HOLDFAST_PLANTED";
    for (name, _) in std::env::vars().filter(|(name, _)| changes(name)) {
        command.env_remove(name);
    }
    command.env("HOLDFAST_EVENTS", "json");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub fn finish(command: &mut Command, stdin: &[u8]) -> Finished {
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        // A command that does not read its input closes it early.
        scope.spawn(move || pipe.write_all(stdin));
        let done = child.wait_with_output().unwrap();
        let err = String::from_utf8(done.stderr).unwrap();
        Finished { code: done.status.code(), out: done.stdout, err }
    })
}

/// A running `holdfast up`.
pub struct Node {
    pub data: PathBuf,
    /// The line that said it was ready.
    pub ready: Value,
    child: Child,
    stdout: BufReader<ChildStdout>,
    pub told: Told,
}

impl Node {
    /// Starts in `data` with [`SETTINGS`] unless it has settings already.
    pub fn start(data: &Path) -> Node {
        Node::try_start(data).unwrap_or_else(|failed| panic!("the node did not start: {failed:?}"))
    }

    pub fn start_with(data: &Path, settings: &str) -> Node {
        Node::set(data, settings);
        Node::start(data)
    }

    /// Starts a node with the settings in `data`, in the cluster of `first`, which listens on `port`.
    pub fn join(data: &Path, first: &Node, port: u16) -> Node {
        let mut command = binary();
        command.args(["--json", "node", "run", "--data"]).arg(data);
        command.args(["--join", &format!("127.0.0.1:{port}")]);
        command.arg("--secret").arg(first.data.join("secret"));
        Node::start_by(&mut command, data)
    }

    /// Writes settings: these, and those of [`SETTINGS`] that are not among them.
    pub fn set(data: &Path, settings: &str) {
        fs::create_dir_all(data).unwrap();
        // What is set twice is refused.
        let is_set =
            |line: &&str| line.split_once(" = ").is_some_and(|(k, _)| settings.contains(k));
        let others: Vec<&str> = SETTINGS.lines().filter(|line| !is_set(line)).collect();
        let text = format!("{}\n{settings}", others.join("\n"));
        fs::write(data.join("holdfast.toml"), text).unwrap();
    }

    pub fn try_start(data: &Path) -> Result<Node, Finished> {
        Node::spawn(data, &mut binary())
    }

    /// Starts a build that has this bug (`holdfast_env::planted!`).
    pub fn start_planting(data: &Path, bug: &str) -> Node {
        let started = Node::spawn(data, binary().env(holdfast_env::trial::PLANTED, bug));
        started.unwrap_or_else(|failed| panic!("the node did not start: {failed:?}"))
    }

    fn spawn(data: &Path, command: &mut Command) -> Result<Node, Finished> {
        // A directory that cannot take settings is the test's own.
        if fs::create_dir_all(data).is_ok() && !data.join("holdfast.toml").exists() {
            let _ = fs::write(data.join("holdfast.toml"), SETTINGS);
        }
        Node::launch(command.args(["--json", "up", "--data"]).arg(data), data)
    }

    /// By a command of the test's own that starts one in `data`.
    pub fn start_by(command: &mut Command, data: &Path) -> Node {
        command.env("HOLDFAST_EVENTS", "json");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Node::launch(command, data).unwrap_or_else(|e| panic!("the node did not start: {e:?}"))
    }

    fn launch(command: &mut Command, data: &Path) -> Result<Node, Finished> {
        let mut child = command.spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        if line.is_empty() {
            let done = child.wait_with_output().unwrap();
            let err = String::from_utf8(done.stderr).unwrap();
            return Err(Finished { code: done.status.code(), out: Vec::new(), err });
        }
        let ready: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(ready["event"], "ready", "{line}");
        let told = Told::by(child.stderr.take().unwrap());
        Ok(Node { data: data.to_owned(), ready, child, stdout, told })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn socket(&self) -> PathBuf {
        self.data.join("holdfast.sock")
    }

    pub fn endpoint(&self) -> Endpoint {
        Endpoint::Unix(self.socket())
    }

    pub fn client(&self) -> Client {
        Client::connect(&self.endpoint(), &ClientOptions::default()).unwrap()
    }

    pub fn command<S: AsRef<OsStr>>(&self, words: &[S]) -> Command {
        let mut command = binary();
        command.arg("--server").arg(format!("unix:{}", self.socket().display())).args(words);
        command
    }

    /// Runs `holdfast WORDS` against this node.
    pub fn run<S: AsRef<OsStr>>(&self, words: &[S]) -> Finished {
        finish(&mut self.command(words), b"")
    }

    /// As [`Node::run`] with `--json`: every line parsed.
    #[track_caller]
    pub fn json(&self, words: &[&str]) -> Vec<Value> {
        let words: Vec<&str> = std::iter::once("--json").chain(words.iter().copied()).collect();
        let text = self.run(&words).ok();
        text.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
    }

    /// Asks for the status until `good` says so: for what housekeeping does in its own time.
    #[track_caller]
    pub fn until(&self, what: &str, good: impl Fn(&Status) -> bool) -> Status {
        let mut client = self.client();
        for () in attempts() {
            let status = client.status().unwrap();
            if good(&status) {
                return status;
            }
        }
        panic!("waited in vain until {what}: {:?}", client.status());
    }

    /// The status with which it has ended by itself, if it has.
    pub fn ended(&mut self) -> Option<i32> {
        self.child.try_wait().unwrap().map(|status| status.code().expect("it was not killed"))
    }

    /// kill -9, and waits for the process to be gone.
    #[track_caller]
    pub fn kill(mut self) -> PathBuf {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.told.judge();
        self.data.clone()
    }

    /// kill -9; it must have told an event whose sentence has these words.
    #[track_caller]
    pub fn kill_and_be_told(&mut self, event: &str, words: &str) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let said = self.told.sentence_of(event);
        assert!(said.contains(words), "{said}");
    }

    /// kill -9, and starts again over what is there.
    pub fn kill_and_start(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let data = self.data.clone();
        *self = Node::start(&data);
    }

    /// SIGTERM; it must end in order, with exit status 0 and nothing but events on standard error.
    #[track_caller]
    pub fn stop(mut self) -> PathBuf {
        signal(self.child.id(), "TERM");
        let status = self.child.wait().unwrap();
        let mut out = String::new();
        self.stdout.read_to_string(&mut out).unwrap();
        assert_eq!((status.code(), self.told.judge().as_str()), (Some(0), ""), "{out}");
        assert!(out.contains("ending"), "{out}");
        self.data.clone()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        match std::thread::panicking() {
            true => print!("{}", self.told.whole()),
            false => drop(self.told.judge()),
        }
    }
}

/// Attempts at what comes in its own time. Between two of them the processor is left to those who bring it about, an
/// eighth of the time that it takes: many attempts are a process each, and at one a millisecond they were a third of
/// what all tests took. They end after five minutes: a bound for what would never come, and no judgement of anybody's
/// speed.
pub fn attempts() -> impl Iterator<Item = ()> {
    let begun = Instant::now();
    std::iter::once(()).chain(std::iter::from_fn(move || {
        let rest =
            (begun.elapsed() / 8).clamp(Duration::from_millis(1), Duration::from_millis(200));
        std::thread::park_timeout(rest);
        (begun.elapsed() < Duration::from_secs(300)).then_some(())
    }))
}

/// Asks until it is so.
#[track_caller]
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    assert!(attempts().any(|()| is_so()), "waited in vain until {what}");
}

/// A file's bytes, that was written through another node: this one may be behind by a moment, and says until then
/// that there is no such file.
#[track_caller]
pub fn read_there(client: &mut Client, path: &str) -> Vec<u8> {
    for () in attempts() {
        match client.get(path) {
            Err(e) if e.kind == Kind::NotFound => {}
            read => return read.unwrap(),
        }
    }
    panic!("waited in vain until `{path}` is there");
}

/// What lets a client in over TCP, from the directory that has the secret.
pub fn options(directory: &Path) -> ClientOptions {
    let secret = Secret::load(&directory.join("secret")).unwrap();
    ClientOptions { secrets: secret.into(), ..ClientOptions::default() }
}

pub fn signal(pid: u32, name: &str) {
    let sent = Command::new("sh").args(["-c", &format!("kill -{name} {pid}")]).status().unwrap();
    assert!(sent.success());
}

/// A port that is free, below those that the system gives away by itself: one of them, free a moment ago, may
/// be a connection's of another test the next.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let next = NEXT.fetch_add(1, Ordering::Relaxed).wrapping_add(std::process::id() * 97);
        let port = 22_000 + (next % 10_000) as u16;
        if TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], port))).is_ok() {
            return port;
        }
    }
}
