//! The node under test: this very program as a process of its own, on a free port, with its data
//! in a directory that goes when the case ends.

use super::process::Process;
use super::tls;
use holdfast_base::Result;
use holdfast_client::{Client, ClientOptions, Endpoint};
use holdfast_command::files::{SETTINGS, SOCKET};
use holdfast_command::secrets;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Killed, and its directory deleted, when it is dropped.
pub struct Server {
    process: Process,
    tcp: String,
    /// The file of the CA of its certificates, if it has any.
    authority: Option<PathBuf>,
    socket: PathBuf,
    directory: PathBuf,
}

/// What the node is told.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Size of the memory tier, taken at the start.
    pub dram_bytes: u64,
    /// Threads that serve connections.
    pub reactors: usize,
    /// Those poll instead of sleeping.
    pub spin: bool,
    /// It has certificates, and is talked to over TLS.
    pub tls: bool,
    /// Where brokers keep its log (`kafka://...`), if they do.
    pub log: String,
    /// What its tables may have in memory, as its settings say it.
    pub tables_memory: String,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            dram_bytes: 0,
            reactors: 1,
            spin: false,
            tls: false,
            log: String::new(),
            tables_memory: "1G".to_owned(),
        }
    }
}

impl Server {
    /// Starts a node below `parent` and waits until it is ready.
    pub fn start(parent: &Path, settings: &Settings) -> Result<Server> {
        Server::start_with(parent, settings, None)
    }

    /// One more node of the cluster whose log brokers keep, as `first` is one.
    pub fn joining(parent: &Path, settings: &Settings, first: &Server) -> Result<Server> {
        Server::start_with(parent, settings, Some(&first.directory.join(secrets::FILE)))
    }

    fn start_with(parent: &Path, settings: &Settings, secret: Option<&Path>) -> Result<Server> {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let directory = parent.join(format!("holdfast-bench-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&directory)?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let Settings { dram_bytes, reactors, spin, tls, log, tables_memory } = settings;
        let authority = tls.then(|| tls::make(&directory)).transpose()?;
        secrets::trust(authority.as_deref())?;
        let config = format!(
            "native_port = {port}\nhttp_port = 0\ncache_port = 0\ns3_port = 0\ndram = \"{dram_bytes}\"\n\
             dram_populate = true\ngrace_ms = 0\nscrub = \"0\"\n\
             reactors = {reactors}\nspin = {spin}\nlog = \"{log}\"\n\
             tables_memory = \"{tables_memory}\"\n"
        );
        std::fs::write(directory.join(SETTINGS), config)?;
        let process = Process::up_with(&directory, secret).inspect_err(|_| {
            let _ = std::fs::remove_dir_all(&directory);
        })?;
        secrets::learn(&directory)?;
        let (tcp, socket) = (format!("127.0.0.1:{port}"), directory.join(SOCKET));
        Ok(Server { process, tcp, authority, socket, directory })
    }

    /// Ends it in order, has `meanwhile` at its directory, and starts it again: how long that took, until it
    /// was ready.
    pub fn restart(&mut self, meanwhile: impl FnOnce(&Path) -> Result<()>) -> Result<Duration> {
        self.process.wait_for_end()?;
        meanwhile(&self.directory)?;
        let began = Instant::now();
        self.process = Process::up(&self.directory)?;
        Ok(began.elapsed())
    }

    /// `HOST:PORT` of its native protocol.
    pub fn tcp(&self) -> &str {
        &self.tcp
    }

    /// Whom to believe who it is, where it speaks TLS.
    pub fn authority(&self) -> Option<&Path> {
        self.authority.as_deref()
    }

    /// The directory that goes with the node; limits of the disk are measured there.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Its Unix socket if `local`, else TCP on the loopback.
    pub fn endpoint(&self, local: bool) -> Result<Endpoint> {
        if local { Ok(Endpoint::Unix(self.socket.clone())) } else { Endpoint::parse(&self.tcp) }
    }

    /// A connection; a local one maps the region too, if there is one, and goes through a shared
    /// ring if both sides spin.
    pub fn connect(&self, local: bool, mapped: bool, spin: bool) -> Result<Client> {
        let options = ClientOptions { spin, ring: local && spin, ..secrets::options() };
        let mut client = Client::connect(&self.endpoint(local)?, &options)?;
        if local && mapped {
            client.map_region()?;
        }
        Ok(client)
    }

    /// User and system time of all its threads since the start.
    pub fn cpu_seconds(&self) -> f64 {
        self.process.cpu_seconds()
    }

    /// Bytes of memory of its own, the region not counted.
    pub fn memory_bytes(&self) -> u64 {
        self.process.memory_bytes()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Its data goes with it, so there is nothing to end in order.
        self.process.kill();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
