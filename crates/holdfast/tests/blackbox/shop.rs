//! A small shop beside a database of any kind: caches, a node, an invalidator, and those who read and write
//! prices while parts die.

use super::common::{Finished, Node, Scratch, binary, free_port, until};
use super::told::Told;
use holdfast_base::{Error, Result};
use holdfast_cache_client::{CacheClientOptions, Client, Lookaside, LookasideOptions};
use holdfast_env::{Rng, SeededRng};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub const ITEMS: u64 = 1000;

/// A connection to a database with `shop.items`, as those need it who read and write prices; nothing where the
/// database is away.
pub trait Rows {
    fn raise_price(&mut self, id: u64) -> Option<()>;
    /// No price if there is no such item.
    fn price(&mut self, id: u64) -> Option<Option<u64>>;
    fn prices(&mut self) -> Option<Vec<(u64, u64)>>;
    /// Twenty milliseconds.
    fn rest(&mut self) -> Option<()>;
    fn reconnect(&mut self);
}

pub fn price(sql: &mut impl Rows, id: u64) -> Result<Option<Vec<u8>>> {
    let price = sql.price(id);
    let price = price.ok_or_else(|| Error::retry("read a price: the database is away"))?;
    Ok(price.map(|price| price.to_string().into_bytes()))
}

/// A stand, and the database of its prices.
pub struct Shop<D> {
    pub stand: Stand,
    pub database: D,
}

impl<D> Deref for Shop<D> {
    type Target = Stand;
    fn deref(&self) -> &Stand {
        &self.stand
    }
}

impl<D> DerefMut for Shop<D> {
    fn deref_mut(&mut self) -> &mut Stand {
        &mut self.stand
    }
}

pub struct Cache {
    pub child: Child,
    pub port: u16,
}

impl Cache {
    pub fn start(port: u16) -> Cache {
        Cache::start_with(port, &[])
    }

    pub fn start_with(port: u16, more: &[&str]) -> Cache {
        let mut command = binary();
        command.args(["cache", "-m", "64", "-t", "1", "-p", &port.to_string()]).args(more);
        Cache::start_by(command, port)
    }

    /// Memcached in place of ours; nothing, and that said, where there is none.
    pub fn memcached(port: u16) -> Option<Cache> {
        let unpacked = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/debian/usr");
        let program = unpacked.join("bin/memcached");
        let program = if program.exists() { program } else { "/usr/bin/memcached".into() };
        if !program.exists() {
            eprintln!("SKIPPED: no memcached in target/debian: run .ci/tools");
            return None;
        }
        let mut command = std::process::Command::new(program);
        command.env("LD_LIBRARY_PATH", unpacked.join("lib/x86_64-linux-gnu"));
        // A test may run as root.
        command.args(["-u", "root", "-l", "127.0.0.1", "-t", "1", "-p", &port.to_string()]);
        Some(Cache::start_by(command, port))
    }

    fn start_by(mut command: std::process::Command, port: u16) -> Cache {
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let cache = Cache { child, port };
        until("the cache serves", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
        cache
    }

    pub fn kill_and_start(&mut self) {
        self.kill();
        *self = Cache::start(self.port);
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A running `holdfast invalidate run`.
pub struct Invalidator {
    child: Child,
    told: Option<Told>,
}

impl Invalidator {
    pub fn command(shop: &Stand, url: &str) -> std::process::Command {
        let mut command = binary();
        command.args(["--json", "--server"]).arg(format!("unix:{}", shop.node.socket().display()));
        command.args(["invalidate", "run", "--to", "main", "--from", url]);
        command.arg("--config").arg(&shop.routes).arg("--map").arg(&shop.map);
        command
    }

    pub fn start_by(mut command: std::process::Command) -> Invalidator {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let mut told = Told::by(child.stderr.take().unwrap());
        if !line.contains("ready") {
            panic!("the invalidator did not start: {line}{}", told.judge());
        }
        Invalidator { child, told: Some(told) }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The status with which it ends by itself.
    pub fn ended(&mut self) -> Option<i32> {
        let mut status = None;
        until("the invalidator ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap().code()
    }

    /// Kills it; what it told, which may be warnings and no errors.
    pub fn kill(mut self) -> Told {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.told.take().unwrap()
    }
}

impl Drop for Invalidator {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// All of the shop but its database.
pub struct Stand {
    pub node: Node,
    pub caches: Vec<Cache>,
    /// Those that have the keys of dead ones meanwhile.
    pub gutter: Vec<Cache>,
    pub routes: PathBuf,
    pub map: PathBuf,
}

impl Stand {
    pub fn start(scratch: &Scratch, text: &str) -> Stand {
        Stand::around(Node::start(&scratch.path("node")), scratch, text)
    }

    pub fn around(node: Node, scratch: &Scratch, text: &str) -> Stand {
        let caches: Vec<Cache> = (0..2).map(|_| Cache::start(free_port())).collect();
        let (routes, map) = (scratch.path("routes.toml"), scratch.path("map.toml"));
        std::fs::write(&map, text).unwrap();
        let stand = Stand { node, caches, gutter: Vec::new(), routes, map };
        stand.write_routes();
        stand
    }

    /// After other caches have taken the place of some.
    pub fn write_routes(&self) {
        self.write_routes_with("");
    }

    /// `more`: lines of the pool.
    pub fn write_routes_with(&self, more: &str) {
        let servers = self.servers().join("\", \"");
        let mut text =
            format!("default = \"main\"\n[pools.main]\nservers = [\"{servers}\"]\n{more}");
        if !self.gutter.is_empty() {
            let spare = addresses(&self.gutter).join("\", \"");
            text += &format!("\ngutter = \"spare\"\n[pools.spare]\nservers = [\"{spare}\"]\n");
        }
        std::fs::write(&self.routes, text).unwrap();
    }

    pub fn servers(&self) -> Vec<String> {
        addresses(&self.caches)
    }

    pub fn gutter(&self) -> Vec<String> {
        addresses(&self.gutter)
    }

    /// What each server lacks that is told what changes, when none lacks anything.
    pub fn nothing(&self) -> Vec<u64> {
        vec![0; self.caches.len() + self.gutter.len()]
    }

    pub fn lookaside(&self) -> Lookaside {
        let options = LookasideOptions::default();
        Lookaside::new(&self.servers(), CacheClientOptions::default(), options).unwrap()
    }

    pub fn client(&self) -> Client {
        Client::new(&self.servers(), CacheClientOptions::default()).unwrap()
    }

    pub fn status(&self) -> Option<(String, Vec<u64>)> {
        let Finished { code, out, .. } =
            self.node.run(&["--json", "invalidate", "status", "--to", "main"]);
        let lines: Vec<Value> = (code == Some(0))
            .then(|| String::from_utf8(out).unwrap())?
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let position = lines[0]["position"].as_str().unwrap().to_owned();
        let behind = lines[1..].iter().map(|l| l["entries_behind"].as_u64().unwrap()).collect();
        Some((position, behind))
    }
}

fn addresses(of: &[Cache]) -> Vec<String> {
    of.iter().map(|cache| format!("127.0.0.1:{}", cache.port)).collect()
}

/// Every second one is of few, so that they change while they are read.
pub fn draw(rng: &SeededRng) -> u64 {
    let number = rng.next_u64();
    if number.is_multiple_of(2) { number / 2 % HOT } else { number / 2 % ITEMS }
}

const HOT: u64 = 40;

/// What writers and readers have done, and whether they are to end.
#[derive(Default)]
pub struct Traffic {
    pub is_over: AtomicBool,
    written: AtomicU64,
    read: AtomicU64,
    /// Fills that came behind an invalidation.
    pub refused: AtomicU64,
}

impl Traffic {
    pub fn write(&self, seed: u64, sql: &mut impl Rows) {
        let rng = SeededRng::new(seed);
        while !self.is_over.load(Ordering::Relaxed) {
            let id = draw(&rng);
            match sql.raise_price(id) {
                Some(()) => drop(self.written.fetch_add(1, Ordering::Relaxed)),
                None => sql.reconnect(),
            }
        }
    }

    pub fn read(&self, seed: u64, sql: &mut impl Rows, servers: &[String]) {
        let rng = SeededRng::new(seed);
        let options = LookasideOptions { lease_s: 2, patience_ms: 50, ..Default::default() };
        let mut cache = Lookaside::new(servers, CacheClientOptions::default(), options).unwrap();
        while !self.is_over.load(Ordering::Relaxed) {
            let ids: Vec<u64> = (0..20).map(|_| draw(&rng)).collect();
            let keys: Vec<String> = ids.iter().map(|id| format!("item:{id}")).collect();
            let values = cache.get_many(&keys, |numbers| {
                let prices = numbers.iter().map(|number| price(sql, ids[*number])).collect();
                // A page is made of more than prices: time in which they change, and their keys go.
                let away = || Error::retry("make a page: the database is away");
                sql.rest().ok_or_else(away).and(prices)
            });
            match values {
                Ok(_) => drop(self.read.fetch_add(1, Ordering::Relaxed)),
                Err(_) => sql.reconnect(),
            }
        }
        let counts = cache.counts();
        assert!(counts.hits > 0 && counts.filled > 0, "{counts:?}");
        self.refused.fetch_add(counts.refused, Ordering::Relaxed);
    }

    /// Waits until so many more were written, and so many read.
    pub fn goes_on(&self, writes: u64, reads: u64) {
        let now = |of: &AtomicU64| of.load(Ordering::Relaxed);
        let (written, read) = (now(&self.written) + writes, now(&self.read) + reads);
        until("writers and readers go on", || {
            now(&self.written) >= written && now(&self.read) >= read
        });
    }
}

/// Whatever is cached is what the rows say.
#[track_caller]
pub fn assert_cached_is_true(shop: &Stand, sql: &mut impl Rows) {
    let (mut client, mut cached) = (shop.client(), 0);
    for (id, price) in sql.prices().unwrap() {
        let value = client.get(format!("item:{id}").as_bytes()).unwrap();
        // A promise that nobody fulfilled has no bytes.
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            assert_eq!(String::from_utf8_lossy(&value), price.to_string(), "item {id}");
            cached += 1;
        }
    }
    assert!(cached > 0, "something is cached at all");
}
