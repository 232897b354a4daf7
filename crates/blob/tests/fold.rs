//! The view in rows in memory: what each command does to names, versions and live slots.

mod common;

use common::Topic;
use holdfast_base::codec::Decode;
use holdfast_base::ids::{ChunkId, Cookie, Pointer, Slot};
use holdfast_blob::{
    Alternate, Bucket, Command, Condition, Failure, Object, ObjectExtent, Outcome, Part, PartName,
    Refusal, Upload,
};
use holdfast_env::rows::{MemoryRows, Rows};
use std::sync::Arc;

fn extent(chunk: u64, slot: u32, bytes: u32) -> ObjectExtent {
    let pointer = Pointer { chunk: ChunkId(chunk), slot: Slot(slot), cookie: Cookie(7) };
    ObjectExtent { pointer, bytes }
}

fn object(version: u64, extents: &[ObjectExtent]) -> Object {
    let size = extents.iter().map(|e| e.bytes as u64).sum();
    let etag = format!("etag-{version}");
    Object { version, size, etag, extents: extents.to_vec(), ..Object::default() }
}

fn put(key: &str, object: Object) -> Command {
    let condition = Condition::default();
    Command::Put { bucket: "b".into(), key: key.into(), object, condition, hold: 0 }
}

fn delete(version: u64) -> Command {
    let condition = Condition::default();
    let (bucket, key) = ("b".into(), "k".into());
    Command::Delete { bucket, key, version, now_ms: 0, condition }
}

struct World {
    index: Arc<MemoryRows>,
    names: Topic,
}

impl World {
    fn new(versioning: u8) -> World {
        let index = Arc::new(MemoryRows::default());
        let names = Topic::new(index.clone());
        let world = World { index, names };
        let bucket = Bucket { versioning, ..Bucket::default() };
        world.ok(Command::CreateBucket { name: "b".into(), bucket });
        world
    }

    fn apply(&self, command: Command) -> Result<Outcome, Refusal> {
        self.names.apply(&command)
    }

    #[track_caller]
    fn ok(&self, command: Command) -> Outcome {
        self.apply(command).unwrap()
    }

    /// Live slots of all chunks, as (chunk, slot), from their rows.
    fn live(&self) -> Vec<(u64, u32)> {
        let mut live = Vec::new();
        let each = &mut |row: &[u8], _: &[u8]| {
            let chunk = u64::from_be_bytes(row[1..9].try_into().unwrap());
            live.push((chunk, u32::from_be_bytes(row[9..13].try_into().unwrap())));
            Ok(true)
        };
        self.index.scan(b"s", b"t", each).unwrap();
        live
    }

    /// The sums of a chunk: live slots and bytes.
    fn used(&self, chunk: u64) -> (u32, u64) {
        let row = [b"c".as_slice(), &chunk.to_be_bytes()].concat();
        let bytes = self.index.get(&row).unwrap().unwrap();
        let used = holdfast_blob::ChunkUse::from_bytes(&bytes).unwrap();
        (used.live, used.live_bytes)
    }
}

/// Commands that name an object, and say `text` where they say more.
fn of_object(bucket: &str, key: &str, text: &str) -> [Command; 7] {
    let (bucket, key) = (|| bucket.to_owned(), || key.to_owned());
    let (version, condition) = (|| text.to_owned(), Condition::default);
    let object = Object { etag: text.to_owned(), ..object(1, &[]) };
    let (upload, head) = (Upload::default(), Default::default());
    let (now_ms, bypass, lock) = (0, false, None);
    [
        Command::Put { bucket: bucket(), key: key(), object, condition: condition(), hold: 0 },
        Command::Delete {
            bucket: bucket(),
            key: key(),
            version: 7,
            now_ms,
            condition: condition(),
        },
        Command::BeginUpload { bucket: bucket(), key: key(), id: 3, upload },
        Command::AbortUpload { bucket: bucket(), key: key(), id: 3 },
        Command::SetHead { bucket: bucket(), key: key(), version: version(), head },
        Command::SetLock {
            bucket: bucket(),
            key: key(),
            version: version(),
            lock,
            hold: true,
            now_ms,
            bypass,
        },
        Command::DeleteVersion { bucket: bucket(), key: key(), version: version(), now_ms, bypass },
    ]
}

/// The others that have names in them.
fn of_name(name: &str) -> [Command; 6] {
    let name = || name.to_owned();
    [
        Command::CreateBucket { name: name(), bucket: Bucket::default() },
        Command::SetVersioning { name: name(), versioning: 1 },
        Command::SetDocument { name: name(), document: name(), text: Some(name()) },
        Command::DeleteBucket { name: name() },
        Command::SetAccessKey { name: name(), key: Some(Default::default()) },
        Command::SetAccessKey { name: name(), key: None },
    ]
}

/// Deletes took keys of any length: one of which no row can be stopped the view of the whole cluster in front of its
/// entry, at each start again. Whatever a command names, it is applied or refused, and the next one is applied.
#[test]
fn a_command_of_any_key_is_applied_or_refused_and_the_view_goes_on() {
    const LENGTHS: [usize; 12] =
        [0, 1, 127, 128, 129, 1024, 1025, 65_000, 65_533, 65_535, 65_536, 200_000];
    for versioning in 0..3 {
        let world = World::new(versioning);
        for text in LENGTHS.iter().flat_map(|n| ["x", "\0", "ü"].map(|c| c.repeat(*n))) {
            let of_objects = [(&*text, "k"), ("b", &*text)];
            let of_objects = of_objects.into_iter().flat_map(|(b, key)| of_object(b, key, &text));
            for command in of_objects.chain(of_name(&text)) {
                let _ = world.apply(command);
            }
            world.ok(put("next", object(9, &[])));
        }
        let each = &mut |row: &[u8], _: &[u8]| {
            let key = row.split(|byte| *byte == 0).nth(1).unwrap();
            assert!(key.len() <= holdfast_blob::KEY_BYTES_MAX, "{} bytes", key.len());
            Ok(true)
        };
        world.index.scan(b"o", b"p", each).unwrap();
    }
}

#[test]
fn an_overwrite_frees_what_it_replaces_and_a_delete_everything() {
    let world = World::new(0);
    world.ok(put("k", object(1, &[extent(1, 0, 10), extent(1, 1, 5)])));
    assert_eq!((world.live(), world.used(1)), (vec![(1, 0), (1, 1)], (2, 15)));
    world.ok(put("k", object(2, &[extent(2, 0, 3)])));
    assert_eq!((world.live(), world.used(1)), (vec![(2, 0)], (0, 0)));
    world.ok(delete(3));
    assert_eq!(world.live(), vec![]);
    world.ok(Command::DeleteBucket { name: "b".into() });
}

/// Each size of a photo is a needle of its own: it lives and goes with the photo.
#[test]
fn the_sizes_of_a_photo_live_and_go_with_it() {
    let world = World::new(0);
    let photo = |version: u64, slot: u32| {
        let alternate = |(size, slot)| Alternate {
            size,
            width: size,
            height: size,
            content_type: "image/jpeg".into(),
            etag: "e".into(),
            extent: extent(1, slot, 7),
        };
        let alternates = [(720, slot + 1), (75, slot + 2)].map(alternate).to_vec();
        Object { alternates, ..object(version, &[extent(1, slot, 100)]) }
    };
    world.ok(put("k", photo(1, 0)));
    assert_eq!((world.live(), world.used(1)), (vec![(1, 0), (1, 1), (1, 2)], (3, 114)));
    let taken = world.apply(put("other", object(2, &[extent(1, 2, 7)])));
    assert_eq!(taken, Err(Refusal::Taken(extent(1, 2, 7).pointer)));
    world.ok(put("k", photo(3, 3)));
    assert_eq!((world.live(), world.used(1)), (vec![(1, 3), (1, 4), (1, 5)], (3, 114)));
    world.ok(delete(4));
    assert_eq!((world.live(), world.used(1)), (vec![], (0, 0)));
}

#[test]
fn a_slot_is_named_once_and_never_in_a_closed_chunk() {
    let world = World::new(0);
    world.ok(put("k", object(1, &[extent(1, 0, 10)])));
    let again = world.apply(put("other", object(2, &[extent(1, 0, 10)])));
    assert_eq!(again, Err(Refusal::Taken(extent(1, 0, 10).pointer)));
    world.ok(Command::CloseChunk { chunk: ChunkId(1) });
    let late = world.apply(put("other", object(3, &[extent(1, 1, 10)])));
    assert_eq!(late, Err(Refusal::ChunkClosed(ChunkId(1))));
    assert!(
        world.apply(Command::ForgetChunk { chunk: ChunkId(1) }).is_err(),
        "something lives in it"
    );
    world.ok(delete(4));
    world.ok(Command::ForgetChunk { chunk: ChunkId(1) });
    assert_eq!(world.live(), vec![]);
}

/// A put was under way for longer than its gateway waited: its bytes were in a chunk, which was
/// closed, found empty and freed before the entry came to the log. The entry was accepted all the
/// same, and in place of the object that was acknowledged before the key had one without bytes.
#[test]
fn a_put_that_comes_when_its_chunk_is_gone_leaves_what_was_there() {
    let world = World::new(0);
    let before = object(1, &[extent(2, 0, 10)]);
    world.ok(put("k", before.clone()));
    world.ok(Command::CloseChunk { chunk: ChunkId(1) });
    world.ok(Command::ForgetChunk { chunk: ChunkId(1) });
    let late = world.apply(put("k", object(2, &[extent(1, 0, 10)])));
    assert_eq!(late, Err(Refusal::ChunkClosed(ChunkId(1))));
    assert_eq!((world.live(), world.used(2)), (vec![(2, 0)], (1, 10)));
}

#[test]
fn a_refused_command_changes_nothing() {
    let world = World::new(0);
    world.ok(put("k", object(1, &[extent(1, 0, 10)])));
    let mut conditional = put("k", object(2, &[extent(1, 1, 10)]));
    if let Command::Put { condition, .. } = &mut conditional {
        condition.if_absent = true;
    }
    assert_eq!(world.apply(conditional), Err(Refusal::PreconditionFailed));
    assert_eq!((world.live(), world.used(1)), (vec![(1, 0)], (1, 10)));
}

#[test]
fn unknown_entries_stop_the_view_and_garbage_does_not() {
    let world = World::new(0);
    for garbage in [&[2, 0, 0, 0, 0, 0, 0, 0, 0, 5, 1][..], &[2, 1], b"", &[1, 1, 0]] {
        world.names.append(garbage);
        assert_eq!(world.names.fold.status().stopped, None, "{garbage:?}");
    }
    let refused = world.names.propose(0, 0, &[3, 5, 1]).unwrap_err();
    assert!(matches!(refused, Failure::Refused(Refusal::Invalid(_))), "{refused:?}");
    let bare = [2, 0, 0, 0, 0, 0, 0, 0, 0, 200];
    for (unknown, name) in [(&[4, 1][..], "version 4"), (&[3, 200], "command 200"), (&bare, "200")]
    {
        let world = World::new(0);
        match unknown[0] {
            2 => world.names.append(unknown),
            _ => drop(world.names.propose(0, 0, unknown).unwrap_err()),
        }
        let stopped = world.names.fold.status().stopped.unwrap();
        assert_eq!(stopped.kind, holdfast_base::Kind::Unsupported, "{stopped}");
        assert!(stopped.message.contains(name), "{stopped}");
    }
}

#[test]
fn versions_stay_until_they_are_removed_by_name() {
    let world = World::new(1);
    world.ok(put("k", object(1, &[extent(1, 0, 1)])));
    world.ok(put("k", object(2, &[extent(1, 1, 2)])));
    let Outcome::Deleted { version: Some(marker), marker: true } = world.ok(delete(3)) else {
        panic!("a marker is put over it");
    };
    assert_eq!(world.used(1), (2, 3), "nothing is freed");
    let remove = |version: &str| Command::DeleteVersion {
        bucket: "b".into(),
        key: "k".into(),
        version: version.into(),
        now_ms: 0,
        bypass: false,
    };
    let busy = world.apply(Command::DeleteBucket { name: "b".into() });
    assert_eq!(busy, Err(Refusal::BucketNotEmpty));
    world.ok(remove(&marker));
    world.ok(remove("0000000000000002"));
    assert_eq!(world.live(), vec![(1, 0)], "the older one is current again");
    world.ok(remove("0000000000000002"));
    world.ok(remove("0000000000000001"));
    assert_eq!(world.live(), vec![]);
    world.ok(Command::DeleteBucket { name: "b".into() });
}

#[test]
fn a_suspended_bucket_has_one_null_version() {
    let world = World::new(0);
    world.ok(put("k", object(1, &[extent(1, 0, 1)])));
    world.ok(Command::SetVersioning { name: "b".into(), versioning: 1 });
    world.ok(put("k", object(2, &[extent(1, 1, 1)])));
    world.ok(Command::SetVersioning { name: "b".into(), versioning: 2 });
    assert_eq!(world.live(), vec![(1, 0), (1, 1)]);
    world.ok(put("k", object(3, &[extent(1, 2, 1)])));
    assert_eq!(world.live(), vec![(1, 1), (1, 2)], "the older null version is replaced");
    world.ok(put("k", object(4, &[extent(1, 3, 1)])));
    assert_eq!(world.live(), vec![(1, 1), (1, 3)]);
}

#[test]
fn a_locked_version_stays() {
    let world = World::new(0);
    let bucket = Bucket { versioning: 1, lockable: true, ..Bucket::default() };
    world.ok(Command::CreateBucket { name: "locked".into(), bucket });
    let mut kept = object(1, &[extent(1, 0, 1)]);
    kept.lock = Some(holdfast_blob::Lock { until_ms: 100, compliance: false });
    let condition = Condition::default();
    let (bucket, key) = ("locked".to_owned(), "k".to_owned());
    world.ok(Command::Put {
        bucket: bucket.clone(),
        key: key.clone(),
        object: kept,
        condition,
        hold: 0,
    });
    let remove = |now_ms, bypass| {
        let version = "0000000000000001".into();
        let (bucket, key) = (bucket.clone(), key.clone());
        world.apply(Command::DeleteVersion { bucket, key, version, now_ms, bypass })
    };
    assert_eq!(remove(99, false), Err(Refusal::Locked));
    assert!(remove(100, false).is_ok());
}

fn part(extents: &[ObjectExtent], etag: &str) -> Part {
    let size = extents.iter().map(|e| e.bytes as u64).sum();
    Part { size, etag: etag.into(), extents: extents.to_vec(), ..Part::default() }
}

#[test]
fn parts_become_an_object_without_being_freed_in_between() {
    let world = World::new(0);
    let (bucket, key): (String, String) = ("b".into(), "k".into());
    let upload = Upload::default();
    world.ok(Command::BeginUpload { bucket: bucket.clone(), key: key.clone(), id: 9, upload });
    let put_part = |number, part| Command::PutPart {
        bucket: "b".into(),
        key: "k".into(),
        id: 9,
        number,
        part,
        hold: 0,
    };
    world.ok(put_part(2, part(&[extent(1, 1, 20)], "two")));
    world.ok(put_part(1, part(&[extent(1, 0, 10)], "one")));
    world.ok(put_part(1, part(&[extent(1, 2, 11)], "one again")));
    world.ok(put_part(5, part(&[extent(1, 3, 50)], "not wanted")));
    assert_eq!(world.used(1), (3, 81));
    assert_eq!(world.apply(put_part(0, Part::default())), Err(Refusal::InvalidPart(0)));
    let complete = |names: &[(u16, &str)]| Command::CompleteUpload {
        bucket: "b".into(),
        key: "k".into(),
        id: 9,
        parts: names
            .iter()
            .map(|(number, etag)| PartName { number: *number, etag: (*etag).into() })
            .collect(),
        version: 1,
        now_ms: 5,
        etag: "whole-2".into(),
        checksums: vec![],
        manifest: Some(extent(2, 0, 100)),
        alternates: vec![],
        condition: Condition::default(),
    };
    assert_eq!(world.apply(complete(&[(1, "one"), (2, "two")])), Err(Refusal::InvalidPart(1)));
    assert_eq!(
        world.apply(complete(&[(2, "two"), (1, "one again")])),
        Err(Refusal::InvalidPart(1))
    );
    assert_eq!(world.apply(complete(&[(7, "x")])), Err(Refusal::InvalidPart(7)));
    assert_eq!(world.used(1), (3, 81), "refusals free nothing");
    let Outcome::Named(named) = world.ok(complete(&[(1, "one again"), (2, "two")])) else {
        panic!("it is named");
    };
    assert_eq!((named.size, named.parts.as_slice()), (31, [11, 20].as_slice()));
    assert_eq!(world.live(), vec![(1, 1), (1, 2), (2, 0)], "the part that nobody wanted is freed");
    let Outcome::Named(again) = world.ok(complete(&[(1, "one again"), (2, "two")])) else {
        panic!("asked again, it gives the first answer");
    };
    assert_eq!(again, named);
    world.ok(delete(2));
    assert_eq!(world.live(), vec![]);
}

#[test]
fn an_aborted_upload_gives_everything_back() {
    let world = World::new(0);
    let (bucket, key) = ("b".to_owned(), "k".to_owned());
    let upload = Upload::default();
    world.ok(Command::BeginUpload { bucket: bucket.clone(), key: key.clone(), id: 9, upload });
    let one = part(&[extent(1, 0, 10)], "one");
    let (b, k) = (bucket.clone(), key.clone());
    world.ok(Command::PutPart { bucket: b, key: k, id: 9, number: 1, part: one, hold: 0 });
    let abort = Command::AbortUpload { bucket, key, id: 9 };
    world.ok(abort.clone());
    assert_eq!((world.live(), world.apply(abort)), (vec![], Err(Refusal::NoSuchUpload)));
}

#[test]
fn a_hold_keeps_pieces_until_they_are_named_or_given_back() {
    let world = World::new(0);
    let hold =
        |extents: &[ObjectExtent]| Command::Hold { id: 4, now_ms: 0, extents: extents.to_vec() };
    world.ok(hold(&[extent(1, 0, 8)]));
    world.ok(hold(&[extent(1, 1, 8)]));
    assert_eq!(world.used(1), (2, 16));
    // The chunk is compacted meanwhile: what is held may still be named, new bytes may not.
    world.ok(Command::CloseChunk { chunk: ChunkId(1) });
    let named = object(1, &[extent(1, 0, 8), extent(2, 0, 2)]);
    let condition = Condition::default();
    let (bucket, key) = ("b".into(), "k".into());
    world.ok(Command::Put { bucket, key, object: named, condition, hold: 4 });
    assert_eq!(world.live(), vec![(1, 0), (2, 0)], "what the object does not name is freed");
    world.ok(Command::Hold { id: 5, now_ms: 0, extents: vec![extent(2, 1, 8)] });
    world.ok(Command::ReleaseHold { id: 5 });
    world.ok(Command::ReleaseHold { id: 5 });
    assert_eq!(world.live(), vec![(1, 0), (2, 0)]);
}
