//! Views of items beside a plain model: whatever is put, deleted and given up, in views of all keys
//! and of parts, on disk and in memory, begun from the log or from another view, all of them tell
//! the same.

#[path = "../../log/tests/common/mod.rs"]
mod common;

use common::*;
use holdfast_base::ids::{Index, Sequence, SessionId};
use holdfast_base::stream::{Source, Writer};
use holdfast_base::{Kind, Result};
use holdfast_env::rows::{Engine, MemoryRows, Moment, Rows};
use holdfast_env::trial::Trial;
use holdfast_env::{RealDisk, Rng, SeededRng};
use holdfast_log::*;
use holdfast_sim::SimDisk;
use holdfast_view::items::*;
use holdfast_view::*;
use holdfast_wire::slab::{Hashed, KEY_BYTES_MAX, Range};
use holdfast_wire::view::Collection;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};

const T: &str = "view/things";
const MANUAL: FoldOptions = FoldOptions { snapshot_entries: 0, snapshot_bytes: 0 };

type Disk = Fold<InRows<DiskView>>;
/// Collection and key.
type Key = (u16, Vec<u8>);
type Version = (u64, Option<Vec<u8>>);

/// The collection of which there is an index.
const INDEXED: &str = "c1";
/// What its field `f` may be, and what an index has of it then.
const FIELDS: [(&str, &[&str]); 10] = [
    (r#""x""#, &["x"]),
    (r#""y""#, &["y"]),
    ("7", &["7"]),
    (r#""7""#, &["7"]),
    (r#"["x", "y", "x"]"#, &["x", "y"]),
    (r#"["z", true, null, ["x"], {"f": "x"}, "\u0079"]"#, &["z", "true", "y"]),
    ("null", &[]),
    (r#"{"f": "x"}"#, &[]),
    ("[]", &[]),
    (r#""""#, &[""]),
];
const VALUES: [&str; 6] = ["x", "y", "z", "7", "true", ""];

fn json(field: usize) -> Vec<u8> {
    format!(r#"{{"g": ["x"], "f": {}}}"#, FIELDS[field].0).into_bytes()
}

/// Every version of every key, and up to where nobody may look any more.
#[derive(Clone, Default)]
struct Model {
    collections: Vec<Collection>,
    versions: BTreeMap<Key, Vec<Version>>,
    horizon: u64,
    applied: u64,
}

impl Model {
    fn at(&self, key: &Key, index: u64) -> Option<(u64, Vec<u8>)> {
        let version = self.versions.get(key)?.iter().rev().find(|(made, _)| *made <= index)?;
        Some((version.0, version.1.clone()?))
    }

    fn hash(&self, (collection, key): &Key) -> u32 {
        holdfast_wire::slab::hash(self.collections[*collection as usize - 1].hashed, key)
    }

    /// Keys whose newest value has this one in the indexed field, each with its entry.
    fn having(&self, value: &str) -> Vec<(Vec<u8>, u64)> {
        let number = self.collections.iter().position(|one| one.name == INDEXED);
        let Some(number) = number.map(|number| number as u16 + 1) else { return Vec::new() };
        let mut having = Vec::new();
        for key in self.versions.keys().filter(|key| key.0 == number) {
            let Some((index, found)) = self.at(key, self.applied) else { continue };
            let field = (0..FIELDS.len()).find(|field| json(*field) == found);
            if field.is_some_and(|field| FIELDS[field].1.contains(&value)) {
                having.push((key.1.clone(), index));
            }
        }
        having
    }

    /// What a pass shows, in its order: who asks at the horizon or later needs no more.
    fn shown(&self, range: Range) -> Vec<(u32, Key, u64, Option<Vec<u8>>)> {
        let mut shown = Vec::new();
        for (key, versions) in &self.versions {
            let hash = self.hash(key);
            if !range.contains(hash) {
                continue;
            }
            for (at, (index, value)) in versions.iter().enumerate() {
                let seen = *index > self.horizon
                    || value.is_some()
                        && versions.get(at + 1).is_none_or(|(next, _)| *next > self.horizon);
                if seen {
                    shown.push((hash, key.clone(), *index, value.clone()));
                }
            }
        }
        shown.sort();
        shown
    }
}

fn request(command: Vec<u8>) -> Request {
    let (session, none) = (SessionId(0), Sequence(0));
    Request { session, sequence: none, acknowledged_below: none, command, mode: Mode::Synced }
}

struct World {
    log: Arc<EmbeddedLog>,
    dir: Scratch,
}

impl World {
    fn context(range: Range, name: &str) -> Context {
        Context { range, name: name.to_owned(), ..Context::of(T) }
    }

    fn disk(&self, rows: &Arc<dyn Rows>, range: Range, arrival: Option<Arrival<'_, '_>>) -> Disk {
        let context = World::context(range, "disk").in_rows(rows.clone());
        let store = store(&self.dir.0, "disk");
        Fold::open_member_from(self.log.clone(), context, store, MANUAL, arrival).unwrap()
    }

    fn memory(&self, range: Range, arrival: Option<Arrival<'_, '_>>) -> Fold<MemoryView> {
        let context = World::context(range, "memory");
        let store = store(&self.dir.0, "memory");
        Fold::open_member_from(self.log.clone(), context, store, MANUAL, arrival).unwrap()
    }

    fn index(&self, i: u32, of: u32, arrival: Option<Arrival<'_, '_>>) -> Fold<IndexView> {
        let name = format!("index-{i}");
        let indexed = Indexed { collection: INDEXED.to_owned(), field: "f".to_owned() };
        let context = World::context(Range::part(i, of), &name);
        let context = Context { indexed: Some(indexed), ..context };
        let store = store(&self.dir.0, &name);
        Fold::open_member_from(self.log.clone(), context, store, MANUAL, arrival).unwrap()
    }

    fn send<V: View>(&self, fold: &Fold<V>, command: Vec<u8>) -> Result<u64> {
        let (send, receive) = mpsc::channel();
        fold.propose(request(command), Box::new(move |result| drop(send.send(result))));
        while self.log.pump() {}
        receive.try_recv().expect("an answer after the pump is dry").map(|(index, _)| index.0)
    }
}

fn store(dir: &Path, name: &str) -> SnapshotStore {
    SnapshotStore { disk: Arc::new(RealDisk), directory: dir.join("snapshots").join(name) }
}

/// The stream that a view of these rows gives, behind the fold's own part of it.
fn stream_of(moment: &dyn Moment) -> Vec<u8> {
    let (_, mut bytes) = front(moment).unwrap();
    let mut piece = |more: &[u8]| {
        bytes.extend_from_slice(more);
        Ok(())
    };
    let mut out = Writer::new(100, &mut piece);
    DiskView::write(moment, &mut out, &mut || Ok(())).unwrap();
    out.finish().unwrap();
    bytes
}

struct Draw(SeededRng);

impl Draw {
    fn below(&self, n: u64) -> u64 {
        self.0.next_u64() % n
    }

    /// Few keys, so that they come again; zero bytes and bytes of 255 among them.
    fn key(&self, collection: &Collection) -> Vec<u8> {
        let letters = [0, b'/', b'a', 255];
        let mut key: Vec<u8> =
            (0..1 + self.below(3)).map(|_| letters[self.below(4) as usize]).collect();
        if collection.hashed == Hashed::Until(b'/') && self.below(2) == 0 {
            key.push(b'/');
            key.push(letters[self.below(4) as usize]);
        }
        if self.below(200) == 0 {
            key.resize(KEY_BYTES_MAX, 7);
        }
        key
    }

    fn value(&self) -> Option<Vec<u8>> {
        match self.below(6) {
            0 => None,
            1 => Some(Vec::new()),
            2 | 3 => Some(json(self.below(FIELDS.len() as u64) as usize)),
            _ => Some(vec![self.below(256) as u8; self.below(60) as usize]),
        }
    }
}

/// One step of what may happen to the topic.
fn step(draw: &Draw, w: &World, fold: &Disk, model: &mut Model) {
    let rules = [Hashed::All, Hashed::Until(b'/'), Hashed::Bytes(1)];
    match draw.below(12) {
        0 => {
            let number = model.collections.len() % rules.len();
            let name = format!("c{}", draw.below(4));
            let new = Collection { name, hashed: rules[number], json: false };
            let made = w.send(fold, Command::collection(&new));
            match model.collections.iter().find(|one| one.name == new.name) {
                Some(one) => assert_eq!(made.is_ok(), *one == new, "made twice is made"),
                None => {
                    made.unwrap();
                    model.collections.push(new);
                }
            }
        }
        1 => {
            let wanted = draw.below(model.applied + 3);
            let index = w.send(fold, Command::horizon(Index(wanted))).unwrap();
            model.horizon = model.horizon.max(wanted.min(index));
        }
        2 => {
            let long = vec![1; KEY_BYTES_MAX + 1];
            let number = model.collections.len() as u16;
            for (collection, key) in
                [(number, &[][..]), (number, &long), (number + 1, b"k"), (0, b"k")]
            {
                let changes = [Change { collection, key, value: None }];
                let refused = w.send(fold, Command::change(changes.into_iter())).unwrap_err();
                assert!(matches!(refused.kind, Kind::Invalid | Kind::NotFound), "{refused}");
            }
        }
        _ if model.collections.is_empty() => {}
        _ => {
            let changes: Vec<(Key, Option<Vec<u8>>)> = (0..1 + draw.below(6))
                .map(|_| {
                    let number = draw.below(model.collections.len() as u64) as u16;
                    let key = draw.key(&model.collections[number as usize]);
                    ((number + 1, key), draw.value())
                })
                .collect();
            let borrowed = changes.iter().map(|((collection, key), value)| Change {
                collection: *collection,
                key,
                value: value.as_deref(),
            });
            let index = w.send(fold, Command::change(borrowed)).unwrap();
            for (key, value) in changes {
                let versions = model.versions.entry(key).or_default();
                // Of two changes in one entry the later one counts.
                versions.retain(|(made, _)| *made != index);
                versions.push((index, value));
            }
        }
    }
    model.applied = fold.applied().0;
}

/// Everything that can be asked of a disk view's rows.
fn check_disk(rows: &dyn Rows, range: Range, model: &Model, draw: &Draw, told: &str) {
    let moment = rows.moment().unwrap();
    let reader = Reader::new(moment.clone()).unwrap();
    assert_eq!((reader.applied().0, reader.catalog().horizon().0), (model.applied, model.horizon));
    let at = model.horizon + draw.below(model.applied + 1 - model.horizon);
    for key in model.versions.keys().filter(|key| range.contains(model.hash(key))) {
        for at in [None, Some(at), Some(model.horizon)] {
            let found = reader.get(key.0, &key.1, at.map(Index)).unwrap();
            let found = found.map(|found| (found.index.0, found.value));
            assert_eq!(
                found,
                model.at(key, at.unwrap_or(model.applied)),
                "{told}: {key:?} at {at:?}"
            );
        }
    }
    if model.horizon > 0 && !model.versions.is_empty() {
        let refused = reader.get(1, b"k", Some(Index(model.horizon - 1))).unwrap_err();
        assert!(refused.kind == Kind::Invalid && refused.message.contains("gone"), "{refused}");
    }
    let later = (Index(model.applied + 1), Kind::Retry);
    if !model.collections.is_empty() {
        assert_eq!(reader.get(1, b"k", Some(later.0)).unwrap_err().kind, later.1);
    }
    check_scans(&reader, range, model, at, draw, told);
    check_totals(&reader, range, model, at, told);
    let mut shown = Vec::new();
    let mut pass = Pass::new(&*moment, reader.catalog(), range, None).unwrap();
    let pauses = 1 + draw.below(4) as usize;
    while pass
        .advance(&mut |item| {
            let key = (item.collection, item.key.to_vec());
            shown.push((item.hash, key, item.index, item.value.map(<[u8]>::to_vec)));
            Ok(shown.len() % pauses != 0)
        })
        .unwrap()
    {}
    assert_eq!(shown, model.shown(range), "{told}: a pass");
    // From any item on, the same again.
    if let Some(at) = shown.len().checked_sub(1).map(|last| draw.below(last as u64 + 1) as usize) {
        let (hash, (collection, key), index, value) = &shown[at];
        let (hash, collection, index) = (*hash, *collection, *index);
        let value = value.as_deref();
        let item = holdfast_wire::slab::Item { hash, collection, key, index, value };
        let place = Pass::place(&item);
        let mut again = Vec::new();
        let mut pass = Pass::new(&*moment, reader.catalog(), range, Some(&place)).unwrap();
        while pass
            .advance(&mut |item| {
                again.push(item.index);
                Ok(true)
            })
            .unwrap()
        {}
        let wanted: Vec<u64> = shown[at..].iter().map(|(_, _, index, _)| *index).collect();
        assert_eq!(again, wanted, "{told}: a pass from item {at}");
    }
}

/// A few batches of a sweep, or all: after each whatever can be asked is answered as before, and in the
/// end the rows are those that can be seen. How many are gone.
fn check_sweep(rows: &dyn Rows, range: Range, model: &Model, draw: &Draw, told: &str) -> u64 {
    let steps = if draw.below(2) == 0 { usize::MAX } else { 1 + draw.below(4) as usize };
    let rows_max = SWEEP_ROWS_MIN + draw.below(9) as usize;
    let count = || {
        let mut count = 0;
        let each = &mut |_: &[u8], _: &[u8]| {
            count += 1;
            Ok(true)
        };
        rows.scan(b"i", b"j", each).unwrap();
        count
    };
    let before = count();
    for at in 0..steps {
        let step = sweep(rows, rows_max).unwrap();
        let Some(step) = step else {
            assert_eq!(count(), model.shown(range).len() as u64, "{told}: what is left");
            break;
        };
        let told = format!("{told}, batch {at} of a sweep");
        check_disk(rows, range, model, draw, &told);
        // A horizon that has moved meanwhile has a sweep of its own.
        assert!(step.horizon.0 <= model.horizon, "{told}");
    }
    before - count()
}

/// Sums as of an index and of the latest, of what the model shows.
fn check_totals(reader: &Reader, range: Range, model: &Model, at: u64, told: &str) {
    for at in [None, Some(at), Some(model.horizon)] {
        let until = at.unwrap_or(model.applied);
        let mut wanted = Totals::default();
        let shown = model.shown(range).into_iter().filter(|(_, _, index, _)| *index <= until);
        for (hash, key, index, value) in shown {
            let newest = model.at(&key, until).is_some_and(|(newest, _)| newest == index);
            let (collection, key, value) = (key.0, &*key.1, value.as_deref());
            let item = holdfast_wire::slab::Item { hash, collection, key, index, value };
            wanted.keys += u64::from(newest);
            wanted.sums.add(&item, newest);
        }
        let found = reader.totals(range, at.map(Index)).unwrap();
        assert!(found == wanted, "{told}: sums at {at:?}: {} and {}", found.keys, wanted.keys);
    }
}

fn check_scans(reader: &Reader, range: Range, model: &Model, at: u64, draw: &Draw, told: &str) {
    let mut prefixes = BTreeSet::new();
    for (collection, key) in model.versions.keys() {
        let all = (1..=key.len()).map(|bytes| (*collection, key[..bytes].to_vec()));
        prefixes.extend(all.filter(|(_, prefix)| prefix.len() < 9));
    }
    for (collection, prefix) in prefixes {
        let keys_max = 1 + draw.below(3) as usize;
        let mut sought =
            Sought { collection, prefix: prefix.clone(), after: None, keys_max, bytes_max: 100 };
        let hash = match reader.catalog().hash_of_prefix(collection, &prefix) {
            Ok(hash) => hash,
            Err(e) => {
                assert_eq!(reader.scan(&sought, None).unwrap_err(), e);
                continue;
            }
        };
        let mut found = Vec::new();
        loop {
            let (rows, more) = reader.scan(&sought, Some(Index(at))).unwrap();
            assert!(rows.len() <= keys_max && (!more || !rows.is_empty()));
            sought.after = rows.last().map(|(key, _)| key.clone());
            found.extend(rows.into_iter().map(|(key, found)| (key, (found.index.0, found.value))));
            if !more {
                break;
            }
        }
        let of_prefix =
            model.versions.keys().filter(|(of, key)| *of == collection && key.starts_with(&prefix));
        let wanted: Vec<_> = of_prefix
            .filter(|key| range.contains(model.hash(key)))
            .filter_map(|key| Some((key.1.clone(), model.at(key, at)?)))
            .collect();
        if range.contains(hash) {
            assert_eq!(found, wanted, "{told}: keys of {collection} that begin with {prefix:?}");
        }
    }
}

fn check_memory(view: &MemoryView, range: Range, model: &Model, told: &str) {
    let newest: BTreeMap<&Key, (u64, Vec<u8>)> = model
        .versions
        .keys()
        .filter(|key| range.contains(model.hash(key)))
        .filter_map(|key| Some((key, model.at(key, model.applied)?)))
        .collect();
    assert_eq!(view.len(), newest.len(), "{told}");
    let mut totals = Totals { keys: newest.len() as u64, ..Totals::default() };
    for (key, (index, value)) in &newest {
        let (hash, collection, index) = (model.hash(key), key.0, *index);
        let value = Some(&**value);
        let item = holdfast_wire::slab::Item { hash, collection, key: &key.1, index, value };
        totals.sums.add(&item, true);
    }
    assert!(view.totals(Range::ALL) == totals, "{told}: sums");
    for (key, (index, value)) in &newest {
        assert_eq!(view.get(key.0, &key.1), Some((Index(*index), &value[..])), "{told}: {key:?}");
    }
    let of_keys = model.versions.keys().map(|(collection, key)| (*collection, &key[..1]));
    let prefixes: BTreeSet<(u16, &[u8])> = of_keys
        .chain(model.versions.keys().map(|(collection, key)| (*collection, &**key)))
        .collect();
    for (collection, prefix) in prefixes {
        let Ok(hash) = view.catalog().hash_of_prefix(collection, prefix) else {
            assert!(view.scan(collection, prefix, None).is_err());
            continue;
        };
        let begins = |key: &&Key| key.0 == collection && key.1.starts_with(prefix);
        let wanted = newest.keys().copied().filter(|_| range.contains(hash));
        let wanted: Vec<&[u8]> = wanted.filter(begins).map(|key| &*key.1).collect();
        let absent = [prefix, &[0; 2]].concat();
        for after in [None, Some(prefix), wanted.first().copied(), Some(&*absent)] {
            let found = view.scan(collection, prefix, after).unwrap();
            let keys: Vec<&[u8]> = found.map(|(key, ..)| key).collect();
            let behind =
                wanted.iter().copied().filter(|key| after.is_none_or(|after| *key > after));
            let behind: Vec<&[u8]> = behind.collect();
            assert_eq!(keys, behind, "{told}: of {collection}, {prefix:?} behind {after:?}");
        }
    }
}

/// Parts of an index: each value is in one of them, with all keys that have it, and in no other one.
fn check_index(parts: &[Fold<IndexView>], model: &Model, told: &str) -> usize {
    let mut all = 0;
    for value in VALUES.iter().chain(&["X", "null"]) {
        let wanted = model.having(value);
        all += wanted.len();
        for (i, part) in (0..).zip(parts) {
            let has =
                Range::part(i, parts.len() as u32).contains(IndexView::hash(value.as_bytes()));
            let wanted = if has { &wanted[..] } else { &[] };
            let find = |view: &IndexView, after: Option<&[u8]>| -> Vec<(Vec<u8>, u64)> {
                let found = view.find(value.as_bytes(), after);
                found.map(|(key, index)| (key.to_vec(), index.0)).collect()
            };
            let found = part.read(|view, _| find(view, None)).unwrap();
            assert_eq!(found, wanted, "{told}: keys with `{value}` in part {i}");
            if let Some(at) = found.len().checked_sub(2) {
                let behind = part.read(|view, _| find(view, Some(&found[at].0))).unwrap();
                assert_eq!(behind, wanted[at + 1..], "{told}: of `{value}` behind {at}");
            }
        }
    }
    all
}

/// A part of an index ends, with or without a snapshot, and begins again.
fn begin_again(draw: &Draw, w: &World, parts: &mut [Fold<IndexView>]) {
    let (i, of) = (draw.below(parts.len() as u64) as usize, parts.len() as u32);
    if draw.below(2) == 0 {
        parts[i].snapshot_now().unwrap();
    }
    parts[i].end();
    parts[i] = w.index(i as u32, of, None);
    while w.log.pump() {}
}

/// A view that begins with what another one holds: its stream, and the entry that it is behind.
fn begun_with<T>(
    (bytes, applied, entry_crc, digest): (&[u8], Index, u32, u64),
    begin: impl FnOnce(Arrival<'_, '_>) -> T,
) -> T {
    let mut left = Some(bytes);
    let mut more = |out: &mut Vec<u8>| {
        let more = left.take();
        out.extend(more.iter().copied().flatten());
        Ok(more.is_some())
    };
    let mut source = Source::new(bytes.len() as u64, &mut more);
    begin(Arrival { applied, entry_crc, digest, source: &mut source })
}

#[test]
fn views_of_items_tell_what_a_plain_model_tells() {
    let (mut with_horizon, mut arrived, mut found, mut swept) = (0, 0, 0, 0);
    for seed in 0..24 {
        let trial = Trial::drawn(seed).enter();
        let draw = Draw(SeededRng::new(seed));
        let dir = Scratch::new("items");
        let w = World { log: Arc::new(open(&dir.0.join("log"), Drive::Pump)), dir };
        let of = 1 + draw.below(5) as u32;
        let part = Range::part(draw.below(of as u64) as u32, of);
        let mut simulated = SimDisk::new(seed);
        let open = |disk: &SimDisk| disk.open_rows(Path::new("/rows"), "rows", 0).unwrap();
        let mut rows: [Arc<dyn Rows>; 2] = [open(&simulated), Arc::new(MemoryRows::default())];
        let ranges = [Range::ALL, part];
        let mut folds = [0, 1].map(|i| w.disk(&rows[i], ranges[i], None));
        let mut memory = w.memory(part, None);
        let of_values = 1 + draw.below(3) as u32;
        let mut index: Vec<_> = (0..of_values).map(|i| w.index(i, of_values, None)).collect();
        let mut model = Model::default();
        for at in 0..120 {
            let told = format!("seed {seed}, step {at}");
            step(&draw, &w, &folds[0], &mut model);
            match draw.below(26) {
                20 => found += check_index(&index, &model, &told),
                21 if model.applied > 0 => begin_again(&draw, &w, &mut index),
                0 => {
                    for i in 0..2 {
                        check_disk(&*rows[i], ranges[i], &model, &draw, &told);
                    }
                    memory.read(|view, _| check_memory(view, part, &model, &told)).unwrap();
                }
                22..=25 => {
                    let i = draw.below(2) as usize;
                    swept += check_sweep(&*rows[i], ranges[i], &model, &draw, &told);
                }
                // The process ends; what was not persisted of the rows may be gone.
                1 => {
                    folds[0].end();
                    if draw.below(2) == 0 {
                        rows[0].persist("items.rows").unwrap();
                    }
                    simulated = simulated.power_cut(draw.below(1 << 32));
                    rows[0] = open(&simulated);
                    folds[0] = w.disk(&rows[0], ranges[0], None);
                    while w.log.pump() {}
                }
                // Others begin with what the whole view has.
                2 if model.applied > 0 => {
                    arrived += 1;
                    let bytes = stream_of(&*rows[0].moment().unwrap());
                    let status = folds[0].status();
                    let (applied, entry_crc) = folds[0].reached();
                    let whole = (&*bytes, applied, entry_crc, status.digest);
                    memory = begun_with(whole, |arrival| w.memory(part, Some(arrival)));
                    // In rows that hold something else already.
                    folds[1] = begun_with(whole, |arrival| w.disk(&rows[1], part, Some(arrival)));
                    assert_eq!(folds[1].status().digest, status.digest, "{told}");
                    // A part of an index needs what all keys have.
                    let i = draw.below(u64::from(of_values)) as u32;
                    let begin = |arrival: Arrival<'_, '_>| w.index(i, of_values, Some(arrival));
                    index[i as usize] = begun_with(whole, begin);
                    assert_eq!(index[i as usize].status().digest, status.digest, "{told}");
                }
                _ => {}
            }
        }
        with_horizon += (model.horizon > 0) as u32;
        let told = format!("seed {seed}, at the end");
        for i in 0..2 {
            check_disk(&*rows[i], ranges[i], &model, &draw, &told);
            assert_eq!(folds[i].status().digest, memory.status().digest, "{told}");
        }
        memory.read(|view, _| check_memory(view, part, &model, &told)).unwrap();
        found += check_index(&index, &model, &told);
        drop(trial);
    }
    assert!(with_horizon > 10 && arrived > 20, "{with_horizon} and {arrived}");
    assert!(found > 100, "{found}");
    assert!(swept > 100, "{swept}");
}

/// Whoever folds a page at once sees at each mark what was in front of it, and nothing behind it: else
/// images of one mark would hold different items.
#[test]
fn a_mark_shows_what_was_in_front_of_it_whatever_was_folded_with_it() {
    let dir = Scratch::new("items-marks");
    let log = Arc::new(open(&dir.0, Drive::Pump));
    log.create(T).unwrap();
    let world = World { log, dir };
    let writer = world.memory(Range::ALL, None);
    let collection = Collection { name: "c".to_owned(), hashed: Hashed::All, json: false };
    world.send(&writer, Command::collection(&collection)).unwrap();
    let mut marks = Vec::new();
    for round in 0..20u8 {
        let change = Change { collection: 1, key: &[round % 3 + 1], value: Some(&[round]) };
        world.send(&writer, Command::change([change].into_iter())).unwrap();
        if round % 3 == 0 {
            marks.push(world.send(&writer, Command::mark()).unwrap());
        }
    }
    let told = Arc::new(Mutex::new(Vec::new()));
    let slot = told.clone();
    let marked: Marked = Arc::new(move |index, moment: Arc<dyn Moment>| {
        slot.lock().unwrap().push((index, moment));
    });
    let rows: Arc<dyn Rows> = Arc::new(MemoryRows::default());
    let context = World::context(Range::ALL, "disk").in_rows(rows);
    let context = Context { marked: Some(marked), ..context };
    let store = store(&world.dir.0, "disk");
    let disk: Disk =
        Fold::open_member_from(world.log.clone(), context, store, MANUAL, None).unwrap();
    while world.log.pump() {}
    assert_eq!(disk.applied(), writer.applied());
    let told = told.lock().unwrap();
    assert_eq!(told.iter().map(|(index, _)| index.0).collect::<Vec<_>>(), marks);
    for (index, moment) in told.iter() {
        let position = position(&**moment).unwrap().unwrap();
        assert_eq!(position.applied, *index);
        let reader = Reader::new(moment.clone()).unwrap();
        assert_eq!(reader.catalog().mark(), *index);
    }
}
