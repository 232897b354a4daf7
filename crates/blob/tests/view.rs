//! The view of blobs beside a plain model of it, over its whole life: sessions and their repeats,
//! power cuts that take rows back, snapshots that it goes on from, and what builds before have left.

mod common;

use common::{Topic, View};
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::ids::{ChunkId, Cookie, Pointer, SessionId, Slot};
use holdfast_blob::{
    Bucket, ChunkUse, Command, Condition, Object, ObjectExtent, Outcome, Part, PartName, Refusal,
    Upload, version_name,
};
use holdfast_env::rows::{Engine, MemoryRows, Rows};
use holdfast_env::trial::Trial;
use holdfast_env::{Rng, SeededRng};
use holdfast_log::Mode;
use holdfast_sim::SimDisk;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

type Answered = Result<Outcome, Refusal>;
type RowsMap = BTreeMap<Vec<u8>, Vec<u8>>;

/// The view as it can be told in a few lines: everything whole, what lives is counted anew each time.
#[derive(Clone, Default)]
struct Plain {
    buckets: BTreeMap<String, Bucket>,
    /// Versions by bucket and key, the current one first, then newest first.
    keys: BTreeMap<(String, String), Vec<Object>>,
    uploads: BTreeMap<(String, String, u64), Upload>,
    parts: BTreeMap<(u64, u16), Part>,
    holds: BTreeMap<u64, (i64, Vec<ObjectExtent>)>,
    closed: BTreeSet<ChunkId>,
}

impl Plain {
    fn live(&self) -> BTreeMap<(ChunkId, Slot), u32> {
        let objects = self.keys.values().flatten().flat_map(|object| &object.extents);
        let parts = self.parts.values().flat_map(|part| &part.extents);
        let held = self.holds.values().flat_map(|(_, extents)| extents);
        let all = objects.chain(parts).chain(held);
        all.map(|extent| ((extent.pointer.chunk, extent.pointer.slot), extent.bytes)).collect()
    }

    /// Whether these may be named; those of the hold are already.
    fn check(&self, extents: &[ObjectExtent], hold: u64) -> Result<(), Refusal> {
        let live = self.live();
        let held = self.holds.get(&hold).map(|(_, held)| held.as_slice()).unwrap_or_default();
        for extent in extents.iter().filter(|extent| !held.contains(extent)) {
            if live.contains_key(&(extent.pointer.chunk, extent.pointer.slot)) {
                return Err(Refusal::Taken(extent.pointer));
            }
            if self.closed.contains(&extent.pointer.chunk) {
                return Err(Refusal::ChunkClosed(extent.pointer.chunk));
            }
        }
        Ok(())
    }

    fn name(
        &mut self,
        (bucket, key): (&String, &String),
        mut object: Object,
        condition: &Condition,
    ) -> Answered {
        let versioning = self.buckets.get(bucket).ok_or(Refusal::NoSuchBucket)?.versioning;
        let versions = self.keys.get(&(bucket.clone(), key.clone())).cloned().unwrap_or_default();
        let current = versions.first().filter(|object| !object.marker);
        if condition.if_absent && current.is_some() {
            return Err(Refusal::PreconditionFailed);
        }
        if let Some(etag) = &condition.if_match {
            match current {
                None => return Err(Refusal::NoSuchKey),
                Some(current) if current.etag != *etag => return Err(Refusal::PreconditionFailed),
                _ => {}
            }
        }
        if object.marker && versioning == 0 {
            self.keys.remove(&(bucket.clone(), key.clone()));
            return Ok(Outcome::Deleted { version: None, marker: false });
        }
        object.null = if object.marker { versioning == 2 } else { versioning != 1 };
        let mut versions: Vec<Object> =
            versions.into_iter().filter(|old| !(object.null && old.null)).collect();
        versions.insert(0, object.clone());
        self.keys.insert((bucket.clone(), key.clone()), versions);
        if object.marker {
            return Ok(Outcome::Deleted { version: Some(version_name(&object)), marker: true });
        }
        Ok(Outcome::Named(Box::new(object)))
    }

    fn complete(&mut self, command: Command) -> Answered {
        let Command::CompleteUpload {
            bucket,
            key,
            id,
            parts,
            version,
            now_ms,
            etag,
            condition,
            ..
        } = command
        else {
            panic!("another command");
        };
        let name = (bucket.clone(), key.clone(), id);
        if !self.uploads.contains_key(&name) {
            let current = self.keys.get(&(bucket, key)).and_then(|versions| versions.first());
            let named = current.filter(|current| current.upload == id).cloned();
            return named.map(|o| Outcome::Named(Box::new(o))).ok_or(Refusal::NoSuchUpload);
        }
        let mut object =
            Object { version, modified_ms: now_ms, etag, upload: id, ..Object::default() };
        let mut last = 0;
        for wanted in &parts {
            let part = self.parts.get(&(id, wanted.number));
            let part = part.filter(|part| part.etag == wanted.etag && wanted.number > last);
            let part = part.ok_or(Refusal::InvalidPart(wanted.number))?;
            last = wanted.number;
            object.size += part.size;
            object.parts.push(part.size);
            object.extents.extend(&part.extents);
        }
        if parts.is_empty() {
            return Err(Refusal::Invalid(String::new()));
        }
        let mut after = self.clone();
        after.uploads.remove(&name);
        after.parts.retain(|(upload, _), _| *upload != id);
        let named = after.name((&bucket, &key), object, &condition)?;
        *self = after;
        Ok(named)
    }

    fn must_have(&self, bucket: &str) -> Result<(), Refusal> {
        self.buckets.contains_key(bucket).then_some(()).ok_or(Refusal::NoSuchBucket)
    }

    fn apply(&mut self, command: Command) -> Answered {
        match command {
            Command::CreateBucket { name, bucket } => {
                if self.buckets.contains_key(&name) {
                    return Err(Refusal::BucketExists);
                }
                self.buckets.insert(name, bucket);
            }
            Command::DeleteBucket { name } => {
                self.must_have(&name)?;
                let used = self.keys.keys().any(|(bucket, _)| *bucket == name)
                    || self.uploads.keys().any(|(bucket, _, _)| *bucket == name);
                if used {
                    return Err(Refusal::BucketNotEmpty);
                }
                self.buckets.remove(&name);
            }
            Command::SetVersioning { name, versioning } => {
                let bucket = self.buckets.get_mut(&name).ok_or(Refusal::NoSuchBucket)?;
                bucket.versioning = versioning;
            }
            Command::Put { bucket, key, object, condition, hold } => {
                self.check(&object.extents, hold)?;
                let named = self.name((&bucket, &key), object, &condition)?;
                self.holds.remove(&hold);
                return Ok(named);
            }
            Command::Delete { bucket, key, version, now_ms, condition } => {
                let marker =
                    Object { version, marker: true, modified_ms: now_ms, ..Object::default() };
                return self.name((&bucket, &key), marker, &condition);
            }
            Command::DeleteVersion { bucket, key, version, .. } => {
                self.must_have(&bucket)?;
                let versions = self.keys.entry((bucket, key)).or_default();
                let found = versions.iter().position(|object| version_name(object) == version);
                let marker = found.is_some_and(|at| versions.remove(at).marker);
                self.keys.retain(|_, versions| !versions.is_empty());
                return Ok(Outcome::Deleted { version: Some(version), marker });
            }
            Command::BeginUpload { bucket, key, id, upload } => {
                self.must_have(&bucket)?;
                if self.uploads.contains_key(&(bucket.clone(), key.clone(), id)) {
                    return Err(Refusal::Invalid(String::new()));
                }
                self.uploads.insert((bucket, key, id), upload);
            }
            Command::PutPart { bucket, key, id, number, part, hold } => {
                if !self.uploads.contains_key(&(bucket, key, id)) {
                    return Err(Refusal::NoSuchUpload);
                }
                self.check(&part.extents, hold)?;
                self.holds.remove(&hold);
                self.parts.insert((id, number), part);
            }
            Command::AbortUpload { bucket, key, id } => {
                self.uploads.remove(&(bucket, key, id)).ok_or(Refusal::NoSuchUpload)?;
                self.parts.retain(|(upload, _), _| *upload != id);
            }
            Command::Hold { id, now_ms, extents } => {
                self.check(&extents, 0)?;
                self.holds.entry(id).or_insert((now_ms, Vec::new())).1.extend(extents);
            }
            Command::ReleaseHold { id } => drop(self.holds.remove(&id)),
            Command::CloseChunk { chunk } => drop(self.closed.insert(chunk)),
            Command::ForgetChunk { chunk } => {
                if self.live().keys().any(|(of, _)| *of == chunk) {
                    return Err(Refusal::Invalid(String::new()));
                }
                self.closed.insert(chunk);
            }
            command => return self.complete(command),
        }
        Ok(Outcome::Done)
    }

    /// Its rows, but for those of chunks (docs/formats/blob.md).
    fn rows(&self) -> RowsMap {
        let mut rows = RowsMap::new();
        let row = |kind: u8, parts: &[&[u8]]| [&[kind], parts.concat().as_slice()].concat();
        for (name, bucket) in &self.buckets {
            rows.insert(row(b'b', &[name.as_bytes()]), bucket.to_bytes());
        }
        for ((bucket, key), versions) in &self.keys {
            let (bucket, key) = (bucket.as_bytes(), key.as_bytes());
            for (at, object) in versions.iter().enumerate() {
                let version = (!object.version).to_be_bytes();
                let name = match at {
                    0 => row(b'o', &[bucket, &[0], key]),
                    _ => row(b'v', &[bucket, &[0], key, &[0, 1], &version]),
                };
                rows.insert(name, object.to_bytes());
            }
        }
        for ((bucket, key, id), upload) in &self.uploads {
            let (bucket, key) = (bucket.as_bytes(), key.as_bytes());
            let name = row(b'u', &[bucket, &[0], key, &[0, 1], &id.to_be_bytes()]);
            rows.insert(name, upload.to_bytes());
        }
        for ((id, number), part) in &self.parts {
            rows.insert(row(b'p', &[&id.to_be_bytes(), &number.to_be_bytes()]), part.to_bytes());
        }
        for (id, (begun_ms, extents)) in &self.holds {
            let value = [begun_ms.to_bytes(), extents.to_bytes()].concat();
            rows.insert(row(b'h', &[&id.to_be_bytes()]), value);
        }
        for ((chunk, slot), bytes) in self.live() {
            let name = [&chunk.0.to_be_bytes()[..], &slot.0.to_be_bytes()].concat();
            rows.insert(row(b's', &[&name]), bytes.to_le_bytes().to_vec());
        }
        rows
    }
}

fn shown(rows: &dyn Rows) -> RowsMap {
    let mut all = RowsMap::new();
    rows.scan(&[1], &[255], &mut |row, value| {
        all.insert(row.to_vec(), value.to_vec());
        Ok(true)
    })
    .unwrap();
    all
}

/// The rows are the model's, and the sums of chunks are what lives in them.
fn compare(rows: &dyn Rows, plain: &Plain, at: &str) {
    let mut rows = shown(rows);
    let sums: RowsMap = rows.extract_if(.., |row, _| row[0] == b'c').collect();
    assert_eq!(rows, plain.rows(), "{at}");
    let mut used: BTreeMap<ChunkId, (u32, u64)> = BTreeMap::new();
    for ((chunk, _), bytes) in plain.live() {
        let sum = used.entry(chunk).or_default();
        *sum = (sum.0 + 1, sum.1 + bytes as u64);
    }
    let found = sums.iter().map(|(row, sum)| {
        let sum = ChunkUse::from_bytes(sum).unwrap();
        (ChunkId(u64::from_be_bytes(row[1..].try_into().unwrap())), sum)
    });
    let found: BTreeMap<ChunkId, ChunkUse> = found.collect();
    for chunk in used.keys().chain(found.keys()).chain(&plain.closed) {
        let (live, live_bytes) = used.get(chunk).copied().unwrap_or_default();
        let wanted = ChunkUse { live, live_bytes, closed: plain.closed.contains(chunk) };
        assert_eq!(found.get(chunk).copied().unwrap_or_default(), wanted, "{at}: chunk {chunk}");
    }
}

/// Draws commands about a few buckets, keys, uploads and chunks.
struct Draw {
    rng: SeededRng,
    versions: u64,
}

impl Draw {
    fn below(&self, n: u64) -> u64 {
        self.rng.next_u64() % n
    }

    /// Of few slots, so that some are taken; never one twice in a command.
    fn extents(&self) -> Vec<ObjectExtent> {
        let first = self.below(40) as u32;
        let extent = |slot| {
            let pointer =
                Pointer { chunk: ChunkId(1 + self.below(4)), slot: Slot(slot), cookie: Cookie(7) };
            ObjectExtent { pointer, bytes: 1 + slot }
        };
        (first..=first + self.below(3) as u32).map(extent).collect()
    }

    fn command(&mut self, plain: &Plain) -> Command {
        self.versions += 1;
        let version = self.versions;
        let (bucket, key) = (format!("b{}", self.below(2)), format!("k{}", self.below(3)));
        let (id, hold, now_ms) = (1 + self.below(2), self.below(3), version as i64);
        let chunk = ChunkId(1 + self.below(4));
        let condition = match self.below(8) {
            0 => Condition { if_absent: true, if_match: None },
            1 => {
                Condition { if_absent: false, if_match: Some(format!("e{}", self.below(version))) }
            }
            _ => Condition::default(),
        };
        let kind = self.below(24);
        // Uploads take several commands about one key.
        let (bucket, key) = match (14..=19).contains(&kind) && self.below(6) > 0 {
            true => ("b0".to_owned(), "k0".to_owned()),
            false => (bucket, key),
        };
        match kind {
            0..=1 => Command::CreateBucket { name: bucket, bucket: Bucket::default() },
            2 => Command::DeleteBucket { name: bucket },
            3 => Command::SetVersioning { name: bucket, versioning: 1 + self.below(2) as u8 },
            4..=9 => {
                let extents = self.extents();
                let size = extents.iter().map(|extent| extent.bytes as u64).sum();
                let etag = format!("e{version}");
                let object = Object { version, size, etag, extents, ..Object::default() };
                Command::Put { bucket, key, object, condition, hold }
            }
            10..=11 => Command::Delete { bucket, key, version, now_ms, condition },
            12..=13 => {
                let versions = plain.keys.get(&(bucket.clone(), key.clone()));
                let names: Vec<String> = versions.into_iter().flatten().map(version_name).collect();
                let at = self.below(1 + names.len() as u64) as usize;
                let version = names.get(at).cloned().unwrap_or_else(|| "null".to_owned());
                Command::DeleteVersion { bucket, key, version, now_ms, bypass: false }
            }
            14 => Command::BeginUpload { bucket, key, id, upload: Upload::default() },
            15..=16 => {
                let extents = self.extents();
                let size = extents.iter().map(|extent| extent.bytes as u64).sum();
                let etag = format!("p{version}");
                let part = Part { size, etag, extents, ..Part::default() };
                Command::PutPart { bucket, key, id, number: 1 + self.below(3) as u16, part, hold }
            }
            17..=18 => {
                let parts = plain.parts.range((id, 0)..(id + 1, 0));
                let named = parts.map(|((_, number), part)| {
                    let etag = if self.below(10) == 0 { "other" } else { part.etag.as_str() };
                    PartName { number: *number, etag: etag.to_owned() }
                });
                let parts = named.filter(|_| self.below(5) > 0).collect();
                let etag = format!("e{version}");
                let (checksums, alternates, manifest) = (vec![], vec![], None);
                Command::CompleteUpload {
                    bucket,
                    key,
                    id,
                    parts,
                    version,
                    now_ms,
                    etag,
                    checksums,
                    manifest,
                    alternates,
                    condition,
                }
            }
            19 => Command::AbortUpload { bucket, key, id },
            20..=21 => Command::Hold { id: 1 + self.below(2), now_ms, extents: self.extents() },
            22 if self.below(2) == 0 => Command::ReleaseHold { id: hold },
            22 => Command::CloseChunk { chunk },
            _ => Command::ForgetChunk { chunk },
        }
    }
}

/// The words of a refusal are for people.
fn wordless(answered: Answered) -> Answered {
    answered.map_err(|refusal| match refusal {
        Refusal::Invalid(_) => Refusal::Invalid(String::new()),
        refusal => refusal,
    })
}

struct World {
    topic: Topic,
    disk: SimDisk,
    rows: Arc<dyn Rows>,
    opened: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let disk = SimDisk::new(seed);
        let rows = disk.open_rows(Path::new("/rows"), "rows", 0).unwrap();
        World { topic: Topic::new(rows.clone()), disk, rows, opened: 0 }
    }

    /// The process ends, and its rows are what the power leaves of them.
    fn cut(self, seed: u64, persist: bool) -> World {
        let World { topic: Topic { fold, .. }, .. } = &self;
        fold.end();
        if persist {
            self.rows.persist("test.rows").unwrap();
        }
        let disk = self.disk.power_cut(seed);
        let rows = disk.open_rows(Path::new("/rows"), "rows", 0).unwrap();
        let fold = self.topic.open(rows.clone(), "first").unwrap();
        World { topic: Topic { fold, ..self.topic }, disk, rows, ..self }
    }

    /// Goes on with rows that a snapshot has made.
    fn restore(mut self) -> World {
        let snapshot = self.topic.fold.snapshot_now().unwrap();
        self.opened += 1;
        let name = format!("s{}", self.opened);
        let lent = |index, offset| self.topic.fold.snapshot_part(index, offset, 500);
        self.topic.snapshots(&name).install(lent).unwrap();
        let place = format!("/rows-{}", self.opened);
        let rows = self.disk.open_rows(Path::new(&place), "rows", 0).unwrap();
        let fold: View = self.topic.open(rows.clone(), &name).unwrap();
        let (was, is) = (self.topic.fold.status(), fold.status());
        assert_eq!((is.applied, is.digest, is.sessions), (snapshot, was.digest, was.sessions));
        assert_eq!(shown(&*rows), shown(&*self.rows));
        self
    }
}

/// Any commands, with repeats of what a client did not hear, power cuts that take rows back, and
/// snapshots at any place: rows and answers are the model's.
#[test]
fn the_view_is_what_a_plain_model_of_it_is() {
    let (mut accepted, mut refused) = (BTreeSet::new(), BTreeSet::new());
    for seed in 0..25 {
        let trial = Trial::drawn(seed).enter();
        let mut draw = Draw { rng: SeededRng::new(seed), versions: 0 };
        let mut world = World::new(seed);
        let mut plain = Plain::default();
        let session = world.topic.wait(|fold, done| fold.open_session(Mode::Synced, done)).unwrap();
        let (mut sequence, mut last) = (0, None);
        for step in 0..120 {
            let at = format!("seed {seed} step {step}");
            match draw.below(16) {
                0 => world = world.cut(draw.rng.next_u64(), draw.below(2) == 0),
                1 => world = world.restore(),
                2 => {
                    let Some((command, answered)) = &last else { continue };
                    let again = world.topic.apply_in(session.0, sequence, command);
                    assert_eq!(wordless(again), *answered, "{at}: the first answer");
                }
                _ => {
                    let command = draw.command(&plain);
                    sequence += 1;
                    let answered = wordless(world.topic.apply_in(session.0, sequence, &command));
                    let before = plain.clone();
                    let wanted = wordless(plain.apply(command.clone()));
                    if wanted.is_err() {
                        plain = before;
                    }
                    assert_eq!(answered, wanted, "{at}: {command:?}");
                    let seen = if wanted.is_ok() { &mut accepted } else { &mut refused };
                    seen.insert(command.name());
                    last = Some((command, answered));
                }
            }
            compare(&*world.rows, &plain, &at);
        }
        // From the first entry, in memory: the same.
        let rows: Arc<dyn Rows> = Arc::new(MemoryRows::default());
        let anew = world.topic.open(rows.clone(), "anew").unwrap();
        compare(&*rows, &plain, "anew");
        let (was, is) = (world.topic.fold.status(), anew.status());
        assert_eq!((is.applied, is.digest, is.sessions), (was.applied, was.digest, was.sessions));
        drop(trial);
    }
    assert!(accepted.len() >= 14 && refused.len() >= 9, "{accepted:?} {refused:?}");
}

/// A build from before there were envelopes has left its entries bare. They are what they were, to
/// whoever folds them, with entries in envelopes behind them.
#[test]
fn a_log_of_bare_entries_is_what_the_same_commands_are() {
    for seed in 0..10 {
        let mut draw = Draw { rng: SeededRng::new(seed), versions: 0 };
        let world = World::new(seed);
        let mut plain = Plain::default();
        for mark in 1..150 {
            let command = draw.command(&plain);
            let before = plain.clone();
            let wanted = wordless(plain.apply(command.clone()));
            if wanted.is_err() {
                plain = before;
            }
            match mark < 120 {
                true => world.topic.append(&command.to_bare(mark)),
                false => assert_eq!(wordless(world.topic.apply(&command)), wanted, "{command:?}"),
            }
        }
        compare(&*world.rows, &plain, "bare");
        let status = world.topic.fold.status();
        assert_eq!((status.stopped, status.applied.0, status.sessions), (None, 149, 0));
    }
}

/// What its client has heard, or what was ended, is not carried out again.
#[test]
fn a_repeat_that_comes_too_late_is_refused() {
    let world = World::new(1);
    let open = |fold: &View, done| fold.open_session(Mode::Synced, done);
    let session = world.topic.wait(open).unwrap();
    let make = |name: &str| {
        let (name, bucket) = (name.to_owned(), Bucket::default());
        Command::CreateBucket { name, bucket }.to_command()
    };
    for sequence in 1..=9 {
        world.topic.propose(session.0, sequence, &make(&format!("b{sequence}"))).unwrap();
    }
    // 9 has acknowledged what is below 6.
    assert!(world.topic.propose(session.0, 5, &make("late")).is_err());
    let end = |fold: &View, done| fold.end_session(SessionId(session.0), Mode::Synced, done);
    world.topic.wait(end).unwrap();
    assert!(world.topic.propose(session.0, 10, &make("later")).is_err());
    assert_eq!(shown(&*world.rows).len(), 9);
}
