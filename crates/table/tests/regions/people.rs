//! Who asks regions: those who make the table, again and again, from wherever they are; and clients, who write
//! and read and repeat what nobody answered. What each was told is kept for the check.

use crate::world::{REGIONS, TABLE, Visitor, World};
use crate::{KEYS, MS, SECOND};
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::{Error, Kind};
use holdfast_env::{HoldMutex, sometimes};
use holdfast_wire::table::{self as msg, Expect, Level, Row, TableMode, Written};
use holdfast_wire::{OP_TABLE_READ, OP_TABLE_SCAN, OP_TABLE_WRITE};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// How often something is tried before nobody knows what came of it.
const ATTEMPTS: usize = 6;
/// Once nothing fails any more.
const LAST_ATTEMPTS: usize = 60;
const DEADLINE_MS: u32 = 4000;

/// What a client asked of one record.
#[derive(Clone, Debug)]
pub enum Op {
    /// Nothing deletes it.
    Write {
        value: Option<u64>,
        expect: Expect,
    },
    Read(Level),
}

/// And was told.
#[derive(Clone, Debug)]
pub enum Answer {
    Written(Written),
    /// Version and value.
    Found(Option<(u64, u64)>),
}

/// A request as it ended.
#[derive(Clone, Debug)]
pub struct Told {
    pub session: u64,
    pub sequence: u64,
    pub region: u8,
    pub key: Vec<u8>,
    pub op: Op,
    pub begins_ns: u64,
    /// None: nobody has said what came of it.
    pub ends_ns: Option<u64>,
    pub answer: Option<Answer>,
}

/// What is known of all requests.
#[derive(Default)]
pub struct History {
    told: Mutex<Vec<Told>>,
    values: AtomicU64,
    /// Clients that have not ended.
    pub busy: AtomicU64,
    /// Of each region the number of the disk on which the table was made, as somebody was told.
    made: Mutex<BTreeMap<u8, u64>>,
}

impl History {
    pub fn told(&self) -> Vec<Told> {
        self.told.held().clone()
    }

    fn keep(&self, told: Told) {
        self.told.held().push(told);
    }
}

pub fn key(number: u64) -> Vec<u8> {
    format!("key {number}").into_bytes()
}

pub fn number(value: &[u8]) -> u64 {
    value.first_chunk().map_or(0, |number| u64::from_le_bytes(*number))
}

fn disks(world: &World) -> BTreeMap<u8, u64> {
    world.cells.iter().map(|c| (c.region, c.erased.load(Ordering::Relaxed))).collect()
}

/// Says that the table is to be made; whether it is.
pub async fn make(visitor: &Visitor, history: &History, region: u8) -> bool {
    let world = &visitor.world;
    let before = disks(world);
    let made = visitor.make(region).await;
    match made {
        Ok(info) => {
            let mut streams = info.tablets.iter().flat_map(|tablet| &tablet.streams);
            if streams.any(|stream| stream.leader != stream.home) {
                sometimes!("another region took a stream over");
            }
            if disks(world) == before {
                history.made.held().extend(before);
            }
            true
        }
        Err(e) => {
            world.net.note(&format!("{}: {e}", visitor.name));
            let own = matches!(e.kind, Kind::Retry | Kind::Full);
            if !own && disks(world) == before {
                world.shared.violate(format!("region {region} does not make a table: {e}"));
            }
            false
        }
    }
}

/// Makes the table at once and from time to time, from one region first and then from any: whoever was erased
/// gets it back so.
pub async fn operate(visitor: Visitor, history: Arc<History>, own: u8, end_ns: u64) {
    visitor.pause(0, 300 * MS).await;
    let (mut region, mut killed) = (own, false);
    while visitor.now_ns() < end_ns {
        let cell = &visitor.world.cells[usize::from(region)];
        let (was_up, lives) = (cell.is_up(), cell.lives.load(Ordering::Relaxed));
        let erased = history.made.held().values().sum::<u64>();
        if make(&visitor, &history, region).await {
            if killed {
                sometimes!("a create was killed in between and said again");
            }
            if disks(&visitor.world).values().sum::<u64>() > erased {
                sometimes!("an erased log was made again");
            }
            killed = false;
            visitor.pause(2 * SECOND, 6 * SECOND).await;
        } else {
            killed |= was_up && (!cell.is_up() || cell.lives.load(Ordering::Relaxed) != lives);
            visitor.pause(20 * MS, 500 * MS).await;
        }
        region = visitor.below(u64::from(REGIONS)) as u8;
    }
}

/// A client: its session, and what it has seen of each record.
pub struct Client {
    visitor: Visitor,
    history: Arc<History>,
    region: u8,
    session: u64,
    next: u64,
    seen: BTreeMap<Vec<u8>, u64>,
}

impl Client {
    pub fn new(visitor: Visitor, history: &Arc<History>, region: u8) -> Client {
        history.busy.fetch_add(1, Ordering::Relaxed);
        let session = visitor.below(u64::MAX);
        let seen = BTreeMap::new();
        Client { visitor, history: history.clone(), region, session, next: 1, seen }
    }

    pub async fn work(mut self, end_ns: u64) {
        while self.visitor.now_ns() < end_ns {
            self.visitor.pause(MS, 400 * MS).await;
            if self.visitor.below(24) == 0 {
                self.region = self.visitor.below(u64::from(REGIONS)) as u8;
            }
            let key = key(self.visitor.below(KEYS));
            let (kind, op) = (self.visitor.below(16), |value, expect| Op::Write { value, expect });
            let value = Some(1 + self.history.values.fetch_add(1, Ordering::Relaxed));
            let seen = self.seen.get(&key).copied();
            let op = match (kind, seen) {
                (0..4, _) => op(value, Expect::Any),
                (4, _) => op(None, Expect::Any),
                (5 | 6, _) => op(value, Expect::Absent),
                (7 | 8, Some(version)) => op(value, Expect::Version { version }),
                (9, Some(version)) => op(None, Expect::Version { version }),
                (10, Some(version)) => Op::Read(Level::Critical { version }),
                (11, _) => Op::Read(Level::Any),
                (12, _) => Op::Read(Level::Latest),
                _ => Op::Read(Level::Strong),
            };
            self.ask(key, op, ATTEMPTS).await;
        }
        self.history.busy.fetch_sub(1, Ordering::Relaxed);
    }

    /// Puts every record from its region; nothing may keep it from that.
    pub async fn put_all(mut self) {
        for number in 0..KEYS {
            let value = Some(1 + self.history.values.fetch_add(1, Ordering::Relaxed));
            let op = Op::Write { value, expect: Expect::Any };
            if !self.ask(key(number), op, LAST_ATTEMPTS).await {
                let what = format!("key {number} takes no write from region {}", self.region);
                self.visitor.world.shared.violate(what);
            }
        }
        self.history.busy.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether it was answered.
    async fn ask(&mut self, key: Vec<u8>, op: Op, attempts: usize) -> bool {
        let sequence = self.next;
        self.next += 1;
        let mut told = Told {
            session: self.session,
            sequence,
            region: self.region,
            key,
            op,
            begins_ns: self.visitor.now_ns(),
            ends_ns: None,
            answer: None,
        };
        for attempt in 0..attempts {
            if matches!(told.op, Op::Read(_)) {
                told.begins_ns = self.visitor.now_ns();
            }
            let disk = disks(&self.visitor.world)[&told.region];
            match self.once(&told).await {
                Ok(answer) => {
                    if attempt > 0 {
                        sometimes!("a request in doubt was repeated");
                    }
                    told.ends_ns = Some(self.visitor.now_ns());
                    self.learn(&told.key, &answer);
                    told.answer = Some(answer);
                    break;
                }
                Err(e) => self.failed(&told, disk, &e),
            }
            self.visitor.pause(5 * MS, 300 * MS).await;
            if self.visitor.below(3) == 0 {
                told.region = self.visitor.below(u64::from(REGIONS)) as u8;
            }
        }
        let answered = told.answer.is_some();
        if answered || matches!(told.op, Op::Write { .. }) {
            self.history.keep(told);
        }
        answered
    }

    fn learn(&mut self, key: &[u8], answer: &Answer) {
        let version = match answer {
            Answer::Written(Written::Version { version } | Written::Found { version }) => *version,
            Answer::Found(Some((version, _))) => *version,
            Answer::Written(Written::Absent) | Answer::Found(None) => return,
        };
        self.seen.insert(key.to_vec(), version);
    }

    fn failed(&mut self, told: &Told, disk: u64, e: &Error) {
        let world = &self.visitor.world;
        let is_same_disk = disks(world)[&told.region] == disk;
        let fine = match e.kind {
            Kind::Retry => true,
            Kind::Full => {
                sometimes!("a write was refused by a full disk");
                true
            }
            // It was never made there, or its log was erased since.
            Kind::NotFound => {
                !is_same_disk || self.history.made.held().get(&told.region) != Some(&disk)
            }
            // A version that went with a log.
            Kind::Invalid => {
                matches!(told.op, Op::Read(Level::Critical { .. }))
                    && world.shared.plan.mode == TableMode::Timeline
                    && disks(world).values().any(|erased| *erased > 0)
            }
            _ => false,
        };
        if e.kind == Kind::Invalid {
            self.seen.remove(&told.key);
        }
        if !fine {
            world.shared.violate(format!("{told:?} came to {:?}: {e}", e.kind));
        }
    }

    async fn once(&self, told: &Told) -> holdfast_base::Result<Answer> {
        match &told.op {
            Op::Write { value, expect } => {
                let value = value.map(|value| value.to_le_bytes().to_vec());
                let Told { session, sequence, key, .. } = told.clone();
                let meta = msg::Write { table: TABLE.into(), session, below: sequence };
                let body = vec![Row { sequence, expect: *expect, key, value }].to_bytes();
                let meta = meta.to_bytes();
                let asked =
                    self.visitor.ask(told.region, OP_TABLE_WRITE, meta, Some(body), DEADLINE_MS);
                let written = Vec::<Written>::from_bytes(&asked.await?.body)?;
                Ok(Answer::Written(written.into_iter().next().expect("a write has an answer")))
            }
            Op::Read(level) => {
                let keys = vec![told.key.clone()];
                let meta = msg::Read {
                    table: TABLE.into(),
                    level: *level,
                    keys,
                    seen: Vec::new(),
                    forgot: 0,
                }
                .to_bytes();
                let asked = self.visitor.ask(told.region, OP_TABLE_READ, meta, None, DEADLINE_MS);
                let found = Vec::<Option<msg::Record>>::from_bytes(&asked.await?.body)?;
                let found = found.into_iter().next().flatten();
                Ok(Answer::Found(found.map(|record| (record.version, number(&record.value)))))
            }
        }
    }
}

/// All records of a region: key, version and value.
pub async fn scan(
    visitor: &Visitor,
    region: u8,
) -> holdfast_base::Result<Vec<(Vec<u8>, u64, u64)>> {
    let scan = msg::Scan {
        table: TABLE.into(),
        from: Vec::new(),
        until: None,
        backwards: false,
        rows_max: 100,
    };
    let asked = visitor.ask(region, OP_TABLE_SCAN, scan.to_bytes(), None, DEADLINE_MS);
    let found = msg::Page::from_bytes(&asked.await?.body)?.found;
    let row = |found: msg::Found| (found.key, found.record.version, number(&found.record.value));
    Ok(found.into_iter().map(row).collect())
}
