//! Kafka brokers for tests and measurements: KRaft mode, controller and broker in one process, each with
//! ports and a directory of its own, killed with whoever started them. The jars come from Maven
//! (`make tools`); where they or Java are missing, that is said and nothing starts.
#![forbid(unsafe_code)]
#![expect(clippy::disallowed_methods, reason = "for tests and measurements alone, of real brokers")]

use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long a broker may take until it serves; a cold JVM on a busy machine takes a quarter of it.
const START: Duration = Duration::from_secs(120);
/// Between two looks whether it serves.
const LOOK: Duration = Duration::from_millis(50);
/// The id of every cluster here: each has a directory of its own.
const CLUSTER: &str = "aG9sZGZhc3QtYnJva2Vycw";

/// A Kafka cluster, or another one that was named in `HOLDFAST_TEST_KAFKA`.
pub struct Brokers {
    brokers: Vec<Broker>,
    /// `host:port,...` of all of them.
    addresses: String,
    directory: Option<PathBuf>,
    /// How their JVMs are started.
    machine: &'static [&'static str],
}

/// A small heap, and no time spent on optimising what lives for seconds.
const SHORT_LIVED: &[&str] =
    &["-Xmx384m", "-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"];
/// As Kafka's own scripts start a broker.
const MEASURED: &[&str] = &[
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
];

struct Broker {
    process: Option<Child>,
    port: u16,
    properties: PathBuf,
}

/// Where `make tools` puts the jars: beside the build, whichever directory that is in.
fn jars() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/kafka")
}

fn java(machine: &[&str], class: &str) -> Command {
    let mut java = Command::new("java");
    let classes = format!("{}/*", jars().display());
    java.args(machine).args(["-cp", &classes, class]).stdin(Stdio::null());
    java
}

/// Ports that nobody uses now. They are all held until all are drawn, so that none comes twice.
fn free_ports(count: usize) -> Vec<u16> {
    let held: Vec<TcpListener> =
        (0..count).map(|_| TcpListener::bind("127.0.0.1:0").expect("a loopback port")).collect();
    held.iter().map(|held| held.local_addr().expect("a bound port").port()).collect()
}

impl Brokers {
    /// Starts `count` brokers, with further `settings` (`name=value`); nothing, and that said, where there
    /// is no Java or no jar. One that is named in `HOLDFAST_TEST_KAFKA` (host:port) is taken instead of a
    /// single one.
    pub fn start(count: usize, settings: &[&str]) -> Option<Brokers> {
        if let Ok(addresses) = std::env::var("HOLDFAST_TEST_KAFKA")
            && count == 1
            && settings.is_empty()
        {
            let (brokers, machine) = (Vec::new(), SHORT_LIVED);
            return Some(Brokers { brokers, addresses, directory: None, machine });
        }
        Brokers::start_as(count, settings, SHORT_LIVED)
    }

    /// As [`Brokers::start`], with the JVMs' settings that Kafka's own scripts have, to be measured.
    pub fn start_to_measure(count: usize) -> Option<Brokers> {
        Brokers::start_as(count, &[], MEASURED)
    }

    fn start_as(
        count: usize,
        settings: &[&str],
        machine: &'static [&'static str],
    ) -> Option<Brokers> {
        let there = Command::new("java").arg("-version").stderr(Stdio::null()).status();
        if !there.is_ok_and(|status| status.success()) {
            eprintln!("SKIPPED: no Java here: install a JRE of version 17 or newer");
            return None;
        }
        if fs::read_dir(jars()).map_or(0, Iterator::count) == 0 {
            eprintln!("SKIPPED: Kafka's jars are not here: `make tools` gets them, with Maven");
            return None;
        }
        Some(Brokers::start_here(count, settings, machine))
    }

    fn start_here(count: usize, settings: &[&str], machine: &'static [&'static str]) -> Brokers {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let name = format!("holdfast-brokers-{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        let ports = free_ports(2 * count);
        let (clients, controllers) = ports.split_at(count);
        let voters: Vec<String> =
            (0..count).map(|id| format!("{id}@127.0.0.1:{}", controllers[id])).collect();
        let brokers = (0..count).map(|id| {
            let place = directory.join(format!("{id}"));
            fs::create_dir_all(&place).expect("make a broker's directory");
            let properties = place.join("server.properties");
            let (client, controller) = (clients[id], controllers[id]);
            let replicas = count.min(3);
            let mut text = format!(
                "process.roles=broker,controller\nnode.id={id}\n\
                 controller.quorum.voters={}\ncontroller.listener.names=C\n\
                 listeners=B://127.0.0.1:{client},C://127.0.0.1:{controller}\n\
                 advertised.listeners=B://127.0.0.1:{client}\n\
                 listener.security.protocol.map=B:PLAINTEXT,C:PLAINTEXT\n\
                 inter.broker.listener.name=B\nlog.dirs={}\n\
                 offsets.topic.num.partitions=1\n\
                 offsets.topic.replication.factor={replicas}\n\
                 transaction.state.log.replication.factor={replicas}\n\
                 transaction.state.log.num.partitions=1\ntransaction.state.log.min.isr=1\n\
                 group.initial.rebalance.delay.ms=0\n",
                voters.join(","),
                place.join("data").display()
            );
            settings.iter().for_each(|setting| text.extend([setting, "\n"]));
            fs::write(&properties, text).expect("write a broker's settings");
            let formatted = java(SHORT_LIVED, "kafka.tools.StorageTool")
                .args(["format", "-t", CLUSTER, "-c"])
                .arg(&properties)
                .output()
                .expect("run Kafka's storage tool");
            let said = String::from_utf8_lossy(&formatted.stderr).into_owned();
            assert!(formatted.status.success(), "format a broker's directory: {said}");
            Broker { process: None, port: client, properties }
        });
        let brokers: Vec<Broker> = brokers.collect();
        let addresses: Vec<String> =
            brokers.iter().map(|broker| format!("127.0.0.1:{}", broker.port)).collect();
        let addresses = addresses.join(",");
        let mut all = Brokers { brokers, addresses, directory: Some(directory), machine };
        (0..count).for_each(|id| all.launch(id));
        (0..count).for_each(|id| all.wait_for(id));
        all
    }

    /// `host:port,...` of all of them.
    pub fn addresses(&self) -> &str {
        &self.addresses
    }

    /// Whether they were started here, and may be killed.
    pub fn are_ours(&self) -> bool {
        !self.brokers.is_empty()
    }

    /// Their process numbers, by which their processor time and memory are known; of those that run.
    pub fn processes(&self) -> Vec<u32> {
        self.brokers.iter().filter_map(|broker| Some(broker.process.as_ref()?.id())).collect()
    }

    fn launch(&mut self, id: usize) {
        let broker = &mut self.brokers[id];
        let log = broker.properties.with_file_name("out.txt");
        let out = File::options().create(true).append(true).open(log).expect("a broker's output");
        let error = out.try_clone().expect("a broker's output");
        let mut command = java(self.machine, "kafka.Kafka");
        command.arg(&broker.properties).stdout(out).stderr(error);
        broker.process = Some(command.spawn().expect("start a broker"));
    }

    fn wait_for(&mut self, id: usize) {
        let begun = Instant::now();
        let address = SocketAddr::from(([127, 0, 0, 1], self.brokers[id].port));
        while TcpStream::connect(address).is_err() {
            let broker = &mut self.brokers[id];
            let ended = broker.process.as_mut().and_then(|process| process.try_wait().ok()?);
            let said = || fs::read_to_string(broker.properties.with_file_name("out.txt"));
            assert!(ended.is_none(), "broker {id} ended at its start: {said:?}", said = said());
            assert!(begun.elapsed() < START, "broker {id} does not serve: {said:?}", said = said());
            std::thread::sleep(LOOK);
        }
    }

    /// Gives a user rights on the topics of a prefix, in Kafka's words; asks in the name of whom `admin`
    /// says, a file of settings for Kafka's own tools.
    pub fn allow(&self, user: &str, rights: &[&str], prefix: &str, admin: &str) {
        let user = format!("User:{user}");
        let mut words = vec!["--add", "--allow-principal", &user];
        rights.iter().for_each(|right| words.extend(["--operation", right]));
        words.extend(["--topic", prefix, "--resource-pattern-type", "prefixed"]);
        self.administer("org.apache.kafka.tools.AclCommand", &words, admin);
    }

    /// Makes a user known by SCRAM-SHA-512, in the name of whom `admin` says.
    pub fn know(&self, user: &str, password: &str, admin: &str) {
        let secret = format!("SCRAM-SHA-512=[password={password}]");
        let words =
            ["--alter", "--add-config", &secret, "--entity-type", "users", "--entity-name", user];
        self.administer("kafka.admin.ConfigCommand", &words, admin);
    }

    fn administer(&self, class: &str, words: &[&str], admin: &str) {
        let place = self.directory.as_ref().expect("brokers that were started here");
        let file = place.join("admin.properties");
        fs::write(&file, admin).expect("write settings");
        let mut tool = java(SHORT_LIVED, class);
        tool.args(["--bootstrap-server", &self.addresses, "--command-config"]).arg(&file);
        let told = tool.args(words).output().expect("run Kafka's tool");
        let said = String::from_utf8_lossy(&told.stderr).into_owned();
        assert!(told.status.success(), "{class}: {said}");
    }

    /// Kills a broker as a power cut of its machine would, but for what its file system keeps.
    pub fn kill(&mut self, id: usize) {
        if let Some(mut process) = self.brokers[id].process.take() {
            process.kill().expect("kill a broker");
            process.wait().expect("wait for a broker");
        }
    }

    /// Starts a killed one again, on what it has, and waits until it has all that the others have: killed
    /// before, another one would take the second of two copies with it, and brokers take no writes then.
    pub fn restart(&mut self, id: usize) {
        self.launch(id);
        self.wait_for(id);
        let begun = Instant::now();
        while !self.are_in_sync() {
            assert!(begun.elapsed() < START, "the brokers do not get in sync");
        }
    }

    /// Whether each topic has all its copies; each question starts a JVM.
    fn are_in_sync(&self) -> bool {
        let words =
            ["--describe", "--under-replicated-partitions", "--bootstrap-server", &self.addresses];
        self.tool("TopicCommand", &words).is_ok_and(|told| told.is_empty())
    }

    /// Runs one of Kafka's own tools, by its class; what it prints, or what it says is wrong.
    pub fn tool(&self, class: &str, words: &[&str]) -> Result<String, String> {
        let done = java(self.machine, &format!("org.apache.kafka.tools.{class}"))
            .args(words)
            .output()
            .map_err(|e| format!("run Kafka's {class}: {e}"))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match done.status.success() {
            true => Ok(text(&done.stdout)),
            false => Err(text(&done.stdout) + &text(&done.stderr)),
        }
    }

    /// Stops a broker where it is, and lets it go on.
    pub fn pause(&self, id: usize) {
        self.signal(id, "-STOP");
    }

    /// See [`Brokers::pause`].
    pub fn resume(&self, id: usize) {
        self.signal(id, "-CONT");
    }

    fn signal(&self, id: usize, signal: &str) {
        let process = self.brokers[id].process.as_ref().expect("a broker that runs");
        let sent = Command::new("kill").args([signal, &process.id().to_string()]).status();
        assert!(sent.is_ok_and(|status| status.success()), "signal a broker");
    }
}

impl Drop for Brokers {
    fn drop(&mut self) {
        (0..self.brokers.len()).for_each(|id| self.kill(id));
        if let Some(directory) = &self.directory {
            let _ = fs::remove_dir_all(directory);
        }
    }
}
