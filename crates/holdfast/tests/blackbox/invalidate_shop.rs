//! The whole shop at once: prices in MariaDB, read from a replica that is behind, cached by two servers, served by our
//! router. Its writers, invalidator, router and caches are killed in turn while readers read. No reader who began
//! behind a confirmed invalidation sees a price from before it; with plain gets and sets, readers do.

use super::common::{Scratch, free_port, until};
use super::invalidate::{Shop, replica_of, shop};
use super::mariadb::{SETTINGS, Sql};
use super::memcached::Memcached;
use super::shop::{Cache, ITEMS, Invalidator, Rows, assert_cached_is_true, draw, price};
use holdfast_base::codec::Decode;
use holdfast_base::ids::Index;
use holdfast_base::{Error, Result};
use holdfast_cache_client::{CacheClientOptions, Client, Lookaside, LookasideOptions};
use holdfast_client::{Client as NodeClient, ClientOptions, Endpoint};
use holdfast_env::SeededRng;
use holdfast_invalidate::entry::Entry;
use holdfast_invalidate::position::{Gtid, Gtids, Position};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Port and seed of a writer; only the process of one has it.
const WRITER: &str = "TEST_OF_SHOP_WRITER";
const TOPIC: &str = "invalidate.main";
/// Prices that one page of a reader has.
const PAGE: usize = 10;

/// Not a test by itself: what the process of a writer does, which the test below starts from this same program, and
/// kills. Raises two prices in one transaction, and says what they are once that is committed.
#[test]
fn a_process_that_writes() {
    let Ok(about) = std::env::var(WRITER) else { return };
    let (port, seed) = about.split_once(' ').unwrap();
    let (mut sql, rng) = (Sql::to(port.parse().unwrap()), SeededRng::new(seed.parse().unwrap()));
    while let Some(line) = raise_two(&mut sql, draw(&rng), draw(&rng)) {
        println!("{line}");
    }
}

/// Nothing where the database is away.
fn raise_two(sql: &mut Sql, first: u64, second: u64) -> Option<String> {
    // Always in one order: two writers never wait for each other.
    let ids = [first.min(second), first.max(second)];
    let mut line = String::new();
    sql.ask::<mysql_async::Row>("START TRANSACTION")?;
    for id in ids {
        sql.raise_price(id)?;
        line += &format!(" {id} {}", sql.price(id)??);
    }
    sql.ask::<mysql_async::Row>("COMMIT")?;
    let gtid = sql.ask::<String>("SELECT @@last_gtid")?.remove(0);
    Some(format!("wrote {gtid}{line} ."))
}

/// A transaction that its writer was told of: what its two prices are by it.
struct Written {
    gtid: Gtid,
    prices: [(u64, u64); 2],
}

impl Written {
    /// Nothing of a line that says something else, or was cut by its writer's end.
    fn parse(line: &str) -> Option<Written> {
        let line = line.strip_prefix("wrote ")?.strip_suffix(" .")?;
        let (gtid, prices) = line.split_once(' ')?;
        let numbers = |text: &str, at: char| -> Vec<u64> {
            text.split(at).map(|number| number.parse().unwrap()).collect()
        };
        let [domain, server, sequence] = numbers(gtid, '-')[..] else { return None };
        let gtid = Gtid { domain: domain as u32, server: server as u32, sequence };
        let [a, price_a, b, price_b] = numbers(prices, ' ')[..] else { return None };
        Some(Written { gtid, prices: [(a, price_a), (b, price_b)] })
    }
}

struct Writer {
    child: Child,
    reader: std::thread::JoinHandle<()>,
}

impl Writer {
    fn start(story: &Arc<Story>, port: u16, seed: u64) -> Writer {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "invalidate_shop::a_process_that_writes", "--nocapture"]);
        command.env(WRITER, format!("{port} {seed}")).stdin(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let story = story.clone();
        let reader = std::thread::spawn(move || {
            lines
                .map_while(|line| line.ok())
                .filter_map(|line| Written::parse(&line))
                .for_each(|written| story.wrote(written));
        });
        Writer { child, reader }
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.reader.join().unwrap();
    }
}

/// Where everybody is; those who die come back there.
struct Ways {
    node: Endpoint,
    servers: Vec<String>,
    gutter: Vec<String>,
    router: u16,
    primary: u16,
    replica: u16,
}

/// How readers fill what they miss.
#[derive(Clone, Copy, PartialEq)]
enum Tokens {
    /// By a lookaside: to the server that gave the token, over the connection that gave it.
    On,
    /// By plain sets through the router.
    Off,
}

/// What writers and readers have done, and what readers may see.
#[derive(Default)]
struct Story {
    is_over: AtomicBool,
    /// Transactions that are not confirmed.
    written: Mutex<Vec<Written>>,
    transactions: AtomicU64,
    /// By item: the price that a read may not fall behind if it begins now, for its key's invalidation was confirmed.
    floors: Vec<AtomicU64>,
    /// How often something was confirmed.
    confirmed: AtomicU64,
    /// By item, the last price that its writer was told.
    newest: Vec<AtomicU64>,
    pages: AtomicU64,
    /// Prices that the router had.
    hits: AtomicU64,
    /// Prices that were older than the newest, and not confirmed: the replica was behind.
    behind: AtomicU64,
    refused: AtomicU64,
    /// Questions to the gutter.
    gutter: AtomicU64,
    stale: Mutex<Vec<String>>,
}

/// Ends those who write and read, also when their test fails.
struct Ends<'a>(&'a Story);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

impl Story {
    fn new() -> Arc<Story> {
        let zeros = || (0..ITEMS).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Story { floors: zeros(), newest: zeros(), ..Story::default() })
    }

    fn goes_on(&self) -> bool {
        !self.is_over.load(Ordering::Relaxed)
    }

    fn wrote(&self, written: Written) {
        for (id, price) in written.prices {
            self.newest[id as usize].fetch_max(price, Ordering::Relaxed);
        }
        self.written.lock().unwrap().push(written);
        self.transactions.fetch_add(1, Ordering::Relaxed);
    }

    /// All servers have confirmed what lies at or before a position of the database's log.
    fn confirm(&self, position: &Gtids) {
        let mut written = self.written.lock().unwrap();
        for one in written.extract_if(.., |one| position.covers(one.gtid)) {
            for (id, price) in one.prices {
                self.floors[id as usize].fetch_max(price, Ordering::Relaxed);
            }
            self.confirmed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Follows the pool's topic, as what it says of servers is confirmed. Entries may be trimmed before they are read.
    fn audit(&self, ways: &Ways) {
        let servers = ways.servers.len() + ways.gutter.len();
        let mut client = NodeClient::connect(&ways.node, &ClientOptions::default()).unwrap();
        let mut next = Index(0);
        let mut positions: Vec<(Index, Gtids)> = Vec::new();
        while self.goes_on() {
            let read = client.log().tail(TOPIC, next, Duration::from_millis(100));
            let Ok(entries) = read else {
                next = client.log().info(TOPIC).map_or(next, |info| info.first.max(next));
                std::thread::park_timeout(Duration::from_millis(1));
                continue;
            };
            for entry in entries {
                next = Index(entry.index.0 + 1);
                match Entry::from_bytes(&entry.bytes).unwrap() {
                    Entry::Keys { position: Position::MariaDb(gtids), .. }
                    | Entry::Empty { position: Position::MariaDb(gtids), .. } => {
                        positions.push((entry.index, gtids));
                    }
                    Entry::Confirmed { servers: all, .. } if all.len() == servers => {
                        let least = all.into_iter().map(|(_, next)| next).min().unwrap();
                        let known = positions.partition_point(|(index, _)| *index < least);
                        if let Some((_, gtids)) = positions.drain(..known).next_back() {
                            self.confirm(&gtids);
                        }
                    }
                    _ => {}
                }
            }
        }
    }

    /// Holds the replica back, again and again, until others have written a hundred times.
    fn hold_back(&self, ways: &Ways) {
        let (mut replica, mut primary) = (Sql::to(ways.replica), Sql::to(ways.primary));
        let position = |sql: &mut Sql, name: &str| {
            let text = sql.ask::<String>(&format!("SELECT @@GLOBAL.{name}")).unwrap().remove(0);
            Gtids::parse(&text).unwrap()
        };
        while self.goes_on() {
            replica.run("STOP SLAVE SQL_THREAD");
            let held = self.transactions.load(Ordering::Relaxed) + 100;
            until("writers go on, or have ended", || {
                self.transactions.load(Ordering::Relaxed) >= held || !self.goes_on()
            });
            replica.run("START SLAVE SQL_THREAD");
            let end = position(&mut primary, "gtid_binlog_pos");
            until("the replica has what was written", || {
                position(&mut replica, "gtid_slave_pos").covers_all(&end)
            });
        }
    }

    /// Shows pages, and judges what is on them.
    fn read(&self, mut reader: Reader, seed: u64) {
        let rng = SeededRng::new(seed);
        while self.goes_on() {
            let ids: Vec<u64> = (0..PAGE).map(|_| draw(&rng)).collect();
            let now = |of: &[AtomicU64], id: u64| of[id as usize].load(Ordering::Relaxed);
            let floors: Vec<u64> = ids.iter().map(|id| now(&self.floors, *id)).collect();
            let shown = reader.page(&ids);
            for ((id, floor), price) in ids.into_iter().zip(floors).zip(shown) {
                let is_behind = price < now(&self.newest, id);
                self.behind.fetch_add(u64::from(is_behind), Ordering::Relaxed);
                if price < floor {
                    let stale = format!("item {id} at {price}, {floor} was confirmed");
                    self.stale.lock().unwrap().push(stale);
                }
            }
            self.pages.fetch_add(1, Ordering::Relaxed);
        }
        self.hits.fetch_add(reader.hits, Ordering::Relaxed);
        self.refused.fetch_add(reader.cache.counts().refused, Ordering::Relaxed);
        self.gutter.fetch_add(reader.cache.counts().gutter, Ordering::Relaxed);
    }

    /// Waits until so much more was written, shown and confirmed.
    fn comes_to(&self, transactions: u64, pages: u64, confirmed: u64) {
        let counts = [&self.transactions, &self.pages, &self.confirmed];
        let now = || counts.map(|count| count.load(Ordering::Relaxed));
        let wanted = [transactions, pages, confirmed];
        let before = now();
        until("writers, readers and confirmations go on", || {
            let goes = now().iter().zip(before).zip(wanted).all(|((now, was), n)| *now >= was + n);
            goes || !self.stale.lock().unwrap().is_empty()
        });
    }
}

struct Reader {
    tokens: Tokens,
    router: Client,
    cache: Lookaside,
    /// The replica, which this region reads.
    sql: Sql,
    hits: u64,
}

impl Reader {
    fn new(tokens: Tokens, ways: &Ways) -> Reader {
        let clients = CacheClientOptions::default;
        let gutter = ways.gutter.clone();
        let options =
            LookasideOptions { lease_s: 2, patience_ms: 50, gutter, ..Default::default() };
        Reader {
            tokens,
            router: Client::new(&[format!("127.0.0.1:{}", ways.router)], clients()).unwrap(),
            cache: Lookaside::new(&ways.servers, clients(), options).unwrap(),
            sql: Sql::to(ways.replica),
            hits: 0,
        }
    }

    /// The prices of items: of the router, and where that has none, or is away, of the database.
    fn page(&mut self, ids: &[u64]) -> Vec<u64> {
        let keys: Vec<String> = ids.iter().map(|id| format!("item:{id}")).collect();
        let mut values = self.router.get_many(&keys).unwrap_or(vec![None; ids.len()]);
        // One without bytes is the promise of who loads it.
        values.iter_mut().for_each(|value| *value = value.take().filter(|bytes| !bytes.is_empty()));
        let missed: Vec<usize> = (0..ids.len()).filter(|at| values[*at].is_none()).collect();
        self.hits += (ids.len() - missed.len()) as u64;
        let of = |at: &[usize]| -> Vec<u64> { at.iter().map(|at| ids[*at]).collect() };
        let missed_keys: Vec<&String> = missed.iter().map(|at| &keys[*at]).collect();
        let loaded = match self.tokens {
            Tokens::On => self.cache.get_many(&missed_keys, |numbers| {
                let at: Vec<usize> = numbers.iter().map(|number| missed[*number]).collect();
                load(&mut self.sql, &of(&at))
            }),
            Tokens::Off => load(&mut self.sql, &of(&missed)),
        };
        for (at, value) in missed.into_iter().zip(loaded.unwrap()) {
            if self.tokens == Tokens::Off {
                let _ = self.router.set(keys[at].as_bytes(), value.as_ref().unwrap(), 0);
            }
            values[at] = value;
        }
        let number = |value: Option<Vec<u8>>| String::from_utf8(value.unwrap()).unwrap().parse();
        values.into_iter().map(|value| number(value).unwrap()).collect()
    }
}

/// What the database has; and a page is made of more than prices: time in which they change, and their keys go.
fn load(sql: &mut Sql, ids: &[u64]) -> Result<Vec<Option<Vec<u8>>>> {
    let prices = ids.iter().map(|id| price(sql, *id)).collect();
    sql.rest().ok_or_else(|| Error::retry("make a page: the replica is away")).and(prices)
}

/// Has prices read, changed and audited while `then` is done.
fn meanwhile(story: &Arc<Story>, ways: &Ways, tokens: Tokens, then: impl FnOnce()) {
    story.is_over.store(false, Ordering::Relaxed);
    std::thread::scope(|scope| {
        let ends = Ends(story);
        scope.spawn(|| story.audit(ways));
        scope.spawn(|| story.hold_back(ways));
        for seed in 100..102 {
            scope.spawn(move || story.read(Reader::new(tokens, ways), seed));
        }
        then();
        drop(ends);
    });
}

/// All that dies.
struct Parts<'a> {
    story: &'a Arc<Story>,
    ways: &'a Ways,
    shop: Shop,
    reads: String,
    router: Option<Memcached>,
    invalidator: Option<Invalidator>,
    writers: Vec<Writer>,
}

impl Parts<'_> {
    fn start_router(&mut self) {
        let (port, routes) = (self.ways.router.to_string(), self.shop.routes.display().to_string());
        // On a busy machine a server may be silent for long, and is not dead.
        let words = ["route", "-p", &port, "-t", "1", "--patience", "20000", "--config", &routes];
        self.router = Some(Memcached::start(&words));
    }

    fn start_invalidator(&mut self) {
        let mut command = Invalidator::command(&self.shop, &self.shop.database.url());
        command.args(["--reads", &self.reads]);
        self.invalidator = Some(Invalidator::start_by(command));
    }

    fn start_writers(&mut self, seed: u64) {
        let start = |seed| Writer::start(self.story, self.ways.primary, seed);
        self.writers.extend([start(seed), start(seed + 1)]);
    }

    fn kill_writers(&mut self) {
        self.writers.drain(..).for_each(Writer::kill);
    }

    fn kill_invalidator(&mut self) {
        self.invalidator.take().unwrap().kill().judge();
    }

    /// Each by kill -9, and started anew after others went on without it.
    fn die_in_turn(&mut self, round: usize) {
        let story = self.story.clone();
        self.kill_writers();
        story.comes_to(0, 20, 0);
        self.start_writers(10 * round as u64);
        story.comes_to(50, 50, 50);
        self.kill_invalidator();
        story.comes_to(100, 50, 0);
        self.start_invalidator();
        story.comes_to(50, 50, 100);
        self.router.take().unwrap().kill();
        story.comes_to(50, 20, 0);
        self.start_router();
        story.comes_to(50, 50, 50);
        self.shop.caches[round % 2].kill_and_start();
        story.comes_to(50, 50, 50);
        // One that stays away: the gutter has its keys, and is told what changes.
        self.shop.caches[round % 2].kill();
        story.comes_to(100, 100, 0);
        let port = self.shop.caches[round % 2].port;
        self.shop.caches[round % 2] = Cache::start(port);
        story.comes_to(50, 50, 50);
        // Two at once: the next invalidator tells a cache that has lost what it had confirmed.
        self.kill_invalidator();
        self.shop.caches[1 - round % 2].kill_and_start();
        story.comes_to(50, 20, 0);
        self.start_invalidator();
        story.comes_to(50, 50, 100);
    }
}

#[test]
fn no_price_is_stale_while_each_part_dies_and_with_plain_sets_some_are() {
    let scratch = Scratch::new();
    let Some(mut shop) = shop(&scratch, SETTINGS) else { return };
    shop.gutter.push(Cache::start(free_port()));
    shop.write_routes();
    let replica = replica_of(&shop, &scratch);
    let (story, reads) = (Story::new(), replica.url());
    let ways = Ways {
        node: shop.node.endpoint(),
        servers: shop.servers(),
        gutter: shop.gutter(),
        router: free_port(),
        primary: shop.database.port,
        replica: replica.port,
    };
    let (router, invalidator, writers) = (None, None, Vec::new());
    let mut parts = Parts { story: &story, ways: &ways, shop, reads, router, invalidator, writers };
    parts.start_router();
    parts.start_invalidator();
    parts.start_writers(1);
    meanwhile(&story, &ways, Tokens::On, || {
        story.comes_to(50, 50, 50);
        (0..2).for_each(|round| parts.die_in_turn(round));
    });
    let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
    assert_eq!(*story.stale.lock().unwrap(), Vec::<String>::new());
    assert!(count(&story.hits) > 0, "the router had something");
    assert!(count(&story.behind) > 0, "what is not confirmed may be behind, and was");
    assert!(count(&story.refused) > 0, "a price changed while it was read");
    assert!(count(&story.gutter) > 0, "what a dead server had was asked for in the gutter");
    parts.kill_writers();
    parts.shop.settle();
    assert_cached_is_true(&parts.shop, &mut parts.shop.database.sql());

    parts.start_writers(1000);
    meanwhile(&story, &ways, Tokens::Off, || {
        until("with plain sets, stale prices are shown", || {
            !story.stale.lock().unwrap().is_empty()
        });
    });
    parts.kill_writers();
    parts.kill_invalidator();
}
