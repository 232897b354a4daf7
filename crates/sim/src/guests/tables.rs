//! A table of one region as a guest: clients write, test and set, delete, read and scan through any node, and write
//! pairs that stand or fall together, while faults are drawn and tablets are split under them. Every version of a
//! record has one value, whatever anybody saw of it; nothing acknowledged is lost; nobody reads what is older than
//! what was acknowledged before, nor half of a pair.

use crate::SimNet;
use crate::world::guest::{Guest, Lodging, Visitor, Work};
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::{Kind, Result};
use holdfast_env::HoldMutex;
use holdfast_node::Node;
use holdfast_table::face::TableFace;
use holdfast_table::name::hash_of;
use holdfast_table::regions::Regions;
use holdfast_wire::table::{
    self as msg, Expect, Found, GroupDo, GroupRow, GroupWritten, Level, Record, Row, TableMode,
    Written,
};
use holdfast_wire::{
    OP_TABLE_GROUP, OP_TABLE_MAKE, OP_TABLE_READ, OP_TABLE_READ_GROUP, OP_TABLE_SCAN,
    OP_TABLE_SPLIT, OP_TABLE_WRITE,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock, Mutex};

const CLIENTS: usize = 3;
const TABLE: &str = "shared";
const TABLETS: u16 = 2;
const KEYS: u64 = 4;
const ONE: &[u8] = b"one half";
/// How often something is tried again before it counts as in doubt.
const ATTEMPTS: usize = 40;
/// And once all faults are over.
const LAST_ATTEMPTS: usize = 200;

/// What is known of one key.
#[derive(Default)]
struct Known {
    /// Of each version that anybody was told of, the value; none of a deletion.
    versions: BTreeMap<u64, Option<Vec<u8>>>,
    /// The highest version that was acknowledged.
    acknowledged: u64,
    /// Deletions that are under way.
    deleting: usize,
    /// Values of writes whose clients gave up; none of deletions.
    in_doubt: BTreeSet<Option<Vec<u8>>>,
    /// Expected versions of writes that came through.
    won: BTreeSet<u64>,
}

struct Shared {
    mode: TableMode,
    keys: Mutex<BTreeMap<Vec<u8>, Known>>,
}

/// A guest of a schedule, a timeline table.
pub fn tables() -> Arc<dyn Guest> {
    Arc::new(Shared { mode: TableMode::Timeline, keys: Mutex::default() })
}

/// The same, a strong one.
pub fn strong_tables() -> Arc<dyn Guest> {
    Arc::new(Shared { mode: TableMode::Strong, keys: Mutex::default() })
}

/// One client's numbers.
struct Session {
    id: u64,
    next: u64,
}

fn key(number: u64) -> Vec<u8> {
    format!("key {number}").into_bytes()
}

/// Two records that are written as one alone. They lie in one tablet until it is split at a certain key.
fn pair() -> [Vec<u8>; 2] {
    static OTHER: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let names = (0u32..).map(|number| format!("other half {number}").into_bytes());
        let is_apart = |name: &Vec<u8>| {
            let (one, other) = (hash_of(ONE), hash_of(name));
            let parted = |at: u32| (one < at) != (other < at);
            let border = 1 << 31;
            !parted(border)
                && (0..KEYS).filter(|number| parted(hash_of(&key(*number)))).count() == 1
        };
        names.into_iter().find(is_apart).expect("hashes are all over")
    });
    [ONE.to_vec(), OTHER.clone()]
}

impl Shared {
    fn with<R>(&self, key: &[u8], with: impl FnOnce(&mut Known) -> R) -> R {
        with(self.keys.held().entry(key.to_vec()).or_default())
    }

    /// Somebody was told that a version has this value; what is wrong with that.
    fn learn(&self, key: &[u8], version: u64, value: Option<&[u8]>) -> Option<String> {
        let value = value.map(<[u8]>::to_vec);
        self.with(key, |known| {
            let before = known.versions.entry(version).or_insert_with(|| value.clone());
            let is_same = *before == value;
            let text = |value: &Option<Vec<u8>>| {
                format!("{:?}", value.as_ref().map(|v| String::from_utf8_lossy(v).into_owned()))
            };
            (!is_same).then(|| {
                let name = String::from_utf8_lossy(key).into_owned();
                format!("version {version} of {name} is {} and {}", text(before), text(&value))
            })
        })
    }
}

async fn write(shared: &Shared, visitor: &Visitor, session: &mut Session, row: Row) {
    let sequence = session.next;
    session.next += 1;
    let deletes = usize::from(row.value.is_none());
    let key = row.key.clone();
    shared.with(&key, |known| known.deleting += deletes);
    write_one(shared, visitor, session.id, sequence, row).await;
    shared.with(&key, |known| known.deleting -= deletes);
}

async fn write_one(shared: &Shared, visitor: &Visitor, session: u64, sequence: u64, row: Row) {
    let row = Row { sequence, ..row };
    let least = shared.with(&row.key, |known| known.acknowledged);
    let meta = msg::Write { table: TABLE.into(), session, below: sequence }.to_bytes();
    let body = vec![row.clone()].to_bytes();
    for attempt in 0..ATTEMPTS {
        let asked = visitor.ask(visitor.any_gateway(), OP_TABLE_WRITE, meta.clone(), Some(&body));
        let written = asked.await.and_then(|reply| Ok(Vec::<Written>::from_bytes(&reply.body)?));
        let written = match written {
            Ok(written) => written,
            Err(e) if matches!(e.kind, Kind::Invalid | Kind::Bug) => {
                return visitor.violate(&format!("a write was refused: {e}"));
            }
            Err(_) => {
                visitor.pause().await;
                continue;
            }
        };
        visitor.count_operation();
        visitor.sometimes(attempt > 0, "a write in doubt was repeated");
        match written[..] {
            [Written::Version { version }] => {
                if version <= least {
                    visitor.violate(&format!("version {version} was written behind {least}"));
                }
                if let Some(what) = shared.learn(&row.key, version, row.value.as_deref()) {
                    visitor.violate(&what);
                }
                shared.with(&row.key, |known| {
                    known.acknowledged = known.acknowledged.max(version);
                    if let Expect::Version { version } = row.expect
                        && !known.won.insert(version)
                    {
                        visitor.violate(&format!("two writers replaced version {version}"));
                    }
                });
            }
            [Written::Found { .. } | Written::Absent] => {
                visitor.sometimes(true, "a write was refused for what it found");
            }
            _ => visitor.violate("a write has no answer"),
        }
        return;
    }
    shared.with(&row.key, |known| known.in_doubt.insert(row.value));
}

/// Both halves, or none.
async fn write_pair(shared: &Shared, visitor: &Visitor, session: &mut Session, value: &[u8]) {
    let sequence = session.next;
    session.next += 1;
    let group = msg::Group { table: TABLE.into(), session: session.id, sequence, below: sequence };
    let put = |key| GroupRow { expect: Expect::Any, key, what: GroupDo::Put(value.to_vec()) };
    let (meta, body) = (group.to_bytes(), pair().map(put).to_vec().to_bytes());
    let least = pair().map(|key| shared.with(&key, |known| known.acknowledged));
    for _ in 0..ATTEMPTS {
        let asked = visitor.ask(visitor.any_gateway(), OP_TABLE_GROUP, meta.clone(), Some(&body));
        let written = asked.await.and_then(|reply| Ok(GroupWritten::from_bytes(&reply.body)?));
        visitor.count_operation();
        match written {
            Ok(GroupWritten::Versions { versions }) => {
                for ((key, version), least) in pair().iter().zip(versions).zip(least) {
                    if version <= least {
                        visitor.violate(&format!("a half has version {version} behind {least}"));
                    }
                    if let Some(what) = shared.learn(key, version, Some(value)) {
                        visitor.violate(&what);
                    }
                    shared.with(key, |known| {
                        known.acknowledged = known.acknowledged.max(version);
                    });
                }
                return visitor.sometimes(true, "a group was written");
            }
            Ok(GroupWritten::OtherTablet { .. }) => {
                return visitor.sometimes(true, "a split came between two records");
            }
            Ok(other) => return visitor.violate(&format!("a group came to {other:?}")),
            Err(e) if matches!(e.kind, Kind::Invalid | Kind::Bug) => {
                return visitor.violate(&format!("a group was refused: {e}"));
            }
            Err(_) => visitor.pause().await,
        }
    }
    pair().iter().for_each(|key| {
        shared.with(key, |known| known.in_doubt.insert(Some(value.to_vec())));
    });
}

/// As they show at one moment; halves that lie apart are refused.
async fn read_pair(shared: &Shared, visitor: &Visitor, level: Level) {
    let least = pair().map(|key| shared.with(&key, |known| known.acknowledged));
    let meta = msg::Read {
        table: TABLE.into(),
        level,
        keys: pair().to_vec(),
        seen: Vec::new(),
        forgot: 0,
    };
    let asked = visitor.ask(visitor.any_gateway(), OP_TABLE_READ_GROUP, meta.to_bytes(), None);
    let found = asked.await.and_then(|reply| Ok(Vec::<Option<Record>>::from_bytes(&reply.body)?));
    let Ok(found) = found else { return };
    for ((key, record), least) in pair().iter().zip(&found).zip(least) {
        if let Some(what) = judge(shared, key, least, record.as_ref()) {
            visitor.violate(&format!("{level:?} of a group: {what}"));
        }
    }
    if !found.windows(2).all(|two| is_whole(two[0].as_ref(), two[1].as_ref())) {
        visitor.violate(&format!("half of a group is read: {found:?}"));
    }
}

fn is_whole(one: Option<&Record>, other: Option<&Record>) -> bool {
    one.map(|record| &record.value) == other.map(|record| &record.value)
}

/// What is wrong with what a read has shown, if it began when `least` was acknowledged.
fn judge(shared: &Shared, key: &[u8], least: u64, record: Option<&Record>) -> Option<String> {
    let name = String::from_utf8_lossy(key).into_owned();
    match record {
        Some(Record { version, value }) => {
            if *version < least {
                return Some(format!("{name} was read at version {version}, behind {least}"));
            }
            shared.learn(key, *version, Some(value))
        }
        None => shared.with(key, |known| {
            // Somebody must have deleted it: at a later version than what was put.
            let deleted = known.versions.range(least..).any(|(_, value)| value.is_none());
            let fine =
                least == 0 || deleted || known.deleting > 0 || known.in_doubt.contains(&None);
            (!fine).then(|| format!("{name} was read as absent, behind version {least}"))
        }),
    }
}

async fn read(
    shared: &Shared,
    visitor: &Visitor,
    gateway: usize,
    level: Level,
    key: Vec<u8>,
) -> Option<Option<Record>> {
    let least = shared.with(&key, |known| known.acknowledged);
    let meta = msg::Read {
        table: TABLE.into(),
        level,
        keys: vec![key.clone()],
        seen: Vec::new(),
        forgot: 0,
    }
    .to_bytes();
    let reply = visitor.ask(gateway, OP_TABLE_READ, meta, None).await.ok()?;
    let found = Vec::<Option<Record>>::from_bytes(&reply.body).ok()?.pop()?;
    if let Some(what) = judge(shared, &key, least, found.as_ref()) {
        visitor.violate(&format!("{level:?}: {what}"));
    }
    Some(found)
}

async fn scan(shared: &Shared, visitor: &Visitor, gateway: usize) -> Option<Vec<Found>> {
    let least: Vec<(Vec<u8>, u64)> = (0..KEYS)
        .map(|number| (key(number), shared.with(&key(number), |known| known.acknowledged)))
        .collect();
    let scan = msg::Scan {
        table: TABLE.into(),
        from: Vec::new(),
        until: None,
        backwards: visitor.below(2) == 0,
        rows_max: 100,
    };
    let reply = visitor.ask(gateway, OP_TABLE_SCAN, scan.to_bytes(), None).await.ok()?;
    let mut found = msg::Page::from_bytes(&reply.body).ok()?.found;
    if scan.backwards {
        found.reverse();
    }
    if !found.is_sorted_by(|a, b| a.key < b.key) {
        visitor.violate("a scan is out of order");
    }
    for (key, least) in &least {
        let record = found.iter().find(|found| found.key == *key).map(|found| &found.record);
        if let Some(what) = judge(shared, key, *least, record) {
            visitor.violate(&format!("a scan: {what}"));
        }
    }
    Some(found)
}

/// Cuts a tablet at one of the keys, or where one begins already, seldom; whatever fails, it goes on.
async fn split(visitor: &Visitor) {
    let at = hash_of(&key(visitor.below(KEYS)));
    let tablet = visitor.below(u64::from(TABLETS) + KEYS) as u16;
    let split = msg::Split { table: TABLE.into(), tablet, at }.to_bytes();
    match visitor.ask(visitor.any_gateway(), OP_TABLE_SPLIT, split, None).await {
        Ok(_) => visitor.sometimes(true, "a tablet was split and served"),
        Err(e) if matches!(e.kind, Kind::Bug | Kind::Corrupt) => {
            visitor.violate(&format!("a tablet was not split: {e}"));
        }
        Err(_) => {}
    }
}

/// What came of making the table.
#[derive(PartialEq, Eq)]
enum Made {
    Yes,
    No,
    /// Brokers keep the log.
    Never,
}

async fn make(shared: &Shared, visitor: &Visitor) -> Made {
    let make =
        msg::Make { table: TABLE.into(), mode: shared.mode, tablets: TABLETS, everywhere: false }
            .to_bytes();
    for _ in 0..LAST_ATTEMPTS {
        match visitor.ask(visitor.any_gateway(), OP_TABLE_MAKE, make.clone(), None).await {
            Ok(_) => return Made::Yes,
            Err(e) if e.kind == Kind::Unsupported => return Made::Never,
            Err(e) if matches!(e.kind, Kind::Invalid | Kind::Bug | Kind::Exists) => {
                visitor.violate(&format!("a table was not made: {e}"));
                return Made::Never;
            }
            Err(_) => visitor.pause().await,
        }
    }
    Made::No
}

impl Guest for Shared {
    fn open(&self, node: &Arc<Node>, _: &SimNet) -> Result<Lodging> {
        let face = TableFace::new(node.clone(), 1 << 30, Regions::default());
        face.open_all();
        let rounds = face.clone();
        Ok(Lodging { face, round: Box::new(move || rounds.round()) })
    }

    fn clients(&self) -> usize {
        CLIENTS
    }

    fn work(self: Arc<Self>, visitor: Visitor, end_ns: u64) -> Work {
        Box::pin(async move {
            if make(&self, &visitor).await != Made::Yes {
                return;
            }
            let mut session = Session { id: visitor.below(u64::MAX), next: 1 };
            let mut written = 0;
            while visitor.now_ns() < end_ns {
                visitor.think().await;
                let (key, gateway) = (key(visitor.below(KEYS)), visitor.any_gateway());
                let level = match visitor.below(3) {
                    0 => Level::Any,
                    1 => Level::Latest,
                    _ => Level::Strong,
                };
                written += 1;
                let bytes = format!("{} {written}", visitor.name()).into_bytes();
                let value = Some(bytes.clone());
                let row = |expect, value| Row { sequence: 0, expect, key: key.clone(), value };
                match visitor.below(11) {
                    0..=2 => write(&self, &visitor, &mut session, row(Expect::Any, value)).await,
                    3 => write(&self, &visitor, &mut session, row(Expect::Any, None)).await,
                    4 => write(&self, &visitor, &mut session, row(Expect::Absent, value)).await,
                    5 => {
                        let Some(found) = read(&self, &visitor, gateway, level, key.clone()).await
                        else {
                            continue;
                        };
                        let expect = found
                            .map_or(Expect::Absent, |r| Expect::Version { version: r.version });
                        write(&self, &visitor, &mut session, row(expect, value)).await;
                    }
                    6 => _ = scan(&self, &visitor, gateway).await,
                    7 if visitor.below(3) == 0 => split(&visitor).await,
                    8 => write_pair(&self, &visitor, &mut session, &bytes).await,
                    9 => read_pair(&self, &visitor, level).await,
                    _ => _ = read(&self, &visitor, gateway, level, key).await,
                }
            }
        })
    }

    fn check(self: Arc<Self>, visitor: Visitor) -> Work {
        Box::pin(async move {
            match make(&self, &visitor).await {
                Made::Yes => {}
                Made::Never => return,
                Made::No => {
                    return visitor.violate("a table is not made, and nothing fails any more");
                }
            }
            let mut first: Option<Vec<Found>> = None;
            for gateway in 1..=visitor.gateways() {
                let mut found = None;
                for _ in 0..LAST_ATTEMPTS {
                    found = scan(&self, &visitor, gateway).await;
                    if found.is_some() {
                        break;
                    }
                    visitor.pause().await;
                }
                let Some(found) = found else {
                    return visitor.violate(&format!("node {gateway} does not answer"));
                };
                if first.as_ref().is_some_and(|first| *first != found) {
                    visitor.violate(&format!(
                        "node {gateway} answers {found:?}, another one {first:?}"
                    ));
                }
                first = Some(found);
            }
            let all = first.unwrap_or_default();
            let [one, other] = pair().map(|key| all.iter().find(|found| found.key == key));
            if !is_whole(one.map(|one| &one.record), other.map(|other| &other.record)) {
                visitor
                    .violate(&format!("in the end there is half of a group: {one:?}, {other:?}"));
            }
            let acknowledged = self.keys.held().values().any(|known| known.acknowledged > 0);
            visitor.sometimes(acknowledged, "a record was written");
        })
    }
}
