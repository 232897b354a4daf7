//! What stands between a database and its readers: a node with the topic, two caches, and an invalidator.

use crate::process::{Process, free_port};
use holdfast_base::{Error, Kind, Result};
use holdfast_cache_client::{Answer, Batch, CacheClientOptions, Client as CacheClient};
use holdfast_client::{Client, Endpoint};
use holdfast_command::files::{SETTINGS, SOCKET};
use holdfast_command::secrets;
use holdfast_invalidate::run::Connect;
use holdfast_invalidate::status;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

pub const POOL: &str = "main";
const CACHES: usize = 2;
/// Before it is said that keys are not dropped.
const PATIENCE: Duration = Duration::from_secs(300);
const LOOK: Duration = Duration::from_millis(50);

/// Killed when dropped, and what the node kept is the directory's.
pub struct Stand {
    pub node: Process,
    _caches: Vec<Process>,
    servers: Vec<String>,
    directory: PathBuf,
}

impl Stand {
    /// `map`: as `--map` reads it.
    pub fn start(directory: PathBuf, map: &str) -> Result<Stand> {
        let data = directory.join("node");
        std::fs::create_dir_all(&data)?;
        let settings = "native_port = 0\nhttp_port = 0\ncache_port = 0\ns3_port = 0\ndram = \"0\"\nscrub = \"0\"\n";
        std::fs::write(data.join(SETTINGS), settings)?;
        let node = Process::up(&data)?;
        let (mut caches, mut servers) = (Vec::new(), Vec::new());
        for _ in 0..CACHES {
            let port = free_port()?.to_string();
            let mut command = Command::new(std::env::current_exe()?);
            command.args(["--json", "cache", "-m", "64", "-t", "1", "-p", &port]);
            caches.push(Process::start(&mut command)?);
            servers.push(format!("127.0.0.1:{port}"));
        }
        let routes = format!(
            "default = \"{POOL}\"\n[pools.{POOL}]\nservers = [\"{}\"]\n",
            servers.join("\", \"")
        );
        std::fs::write(directory.join("routes.toml"), routes)?;
        std::fs::write(directory.join("map.toml"), map)?;
        Ok(Stand { node, _caches: caches, servers, directory })
    }

    /// Of the node.
    pub fn client(&self) -> Result<Client> {
        (self.connect())()
    }

    /// How the node is reached.
    pub fn connect(&self) -> Connect {
        let endpoint = Endpoint::Unix(self.socket());
        Arc::new(move || Client::connect(&endpoint, &secrets::options()))
    }

    pub fn cache(&self) -> Result<CacheClient> {
        CacheClient::new(&self.servers, CacheClientOptions::default())
    }

    fn socket(&self) -> PathBuf {
        self.directory.join("node").join(SOCKET)
    }

    /// Waits until both caches have confirmed all that the topic has: whoever is stopped before that leaves an order to
    /// empty them behind.
    pub fn until_told(&self) -> Result<()> {
        let (mut client, began) = (self.client()?, Instant::now());
        loop {
            match status::standing(&mut client, POOL, 0) {
                Ok(all)
                    if all.servers.len() == CACHES
                        && all.servers.iter().all(|of| of.entries == 0) =>
                {
                    return Ok(());
                }
                Err(e) if e.kind != Kind::NotFound => return Err(e),
                _ if began.elapsed() > PATIENCE => {
                    return Err(Error::retry(
                        "wait until caches are told what changed: they are not",
                    ));
                }
                _ => thread::sleep(LOOK),
            }
        }
    }

    /// An invalidator that follows a database, once it reads its log; keys wait for what `reads` shows.
    pub fn invalidator(&self, from: &str, reads: Option<&str>) -> Result<Process> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--json").arg("--server").arg(format!("unix:{}", self.socket().display()));
        command.args(["invalidate", "run", "--to", POOL, "--from", from]);
        command.arg("--config").arg(self.directory.join("routes.toml"));
        command.arg("--map").arg(self.directory.join("map.toml"));
        if let Some(reads) = reads {
            command.args(["--reads", reads]);
        }
        Process::start(&mut command)
    }
}

/// Whether the servers say that they have none of these keys. A get that is not answered says nothing, though to a
/// reader it is a miss.
pub fn are_gone(cache: &mut CacheClient, keys: &[String]) -> Result<bool> {
    let mut gets = Batch::new();
    for key in keys {
        gets.get(key.as_bytes())?;
    }
    cache.run(&mut gets)?;
    Ok(gets.answers().all(|answer| matches!(answer, Answer::Miss)))
}

/// Waits until none of these keys is cached, and asks without a rest or with one.
pub fn until_gone(cache: &mut CacheClient, keys: &[String], rest: Duration) -> Result<()> {
    let began = Instant::now();
    while !are_gone(cache, keys)? {
        if began.elapsed() > PATIENCE {
            return Err(Error::retry("wait for keys to be dropped: they are not"));
        }
        if !rest.is_zero() {
            thread::sleep(rest);
        }
    }
    Ok(())
}
