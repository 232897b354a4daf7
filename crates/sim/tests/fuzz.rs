//! Decoders against mutated input: what is refused is refused without a panic, and what is
//! accepted means one thing only. `make fuzz` runs these for longer.

#[path = "fuzz/invalidation.rs"]
mod invalidation;

use holdfast_base::checksum::crc32c;
use holdfast_base::codec::{Decode, DecodeError, Encode, Reader};
use holdfast_base::frame::{self, Decoded, FrameKind, HEADER_BYTES};
use holdfast_base::ids::{ChunkId, Cookie, Durability, Pointer, Slot, Tier};
use holdfast_base::limits::FRAME_META_BYTES_MAX;
use holdfast_base::{codec_enum, codec_struct};
use holdfast_chunk::{ChunkKind, ChunkSpec, Needle, Store, StoreConfig};
use holdfast_env::SeededRng;
use holdfast_env::disk::{Access, Disk, read_file};
use holdfast_env::trial::Trial;
use holdfast_log::{Drive, EmbeddedLog, Log, LogOptions, Mode, Scope};
use holdfast_sim::{SimDisk, fuzz};
use holdfast_wire::slab::{self, Builder, Item, Needs, Range, Slab, Wanted, select};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

#[test]
fn frames_are_refused_or_encode_to_the_same_bytes() {
    let frame = |kind, meta: &[u8], body_bytes| {
        let mut out = Vec::new();
        frame::encode(&mut out, kind, 0x0301, 77, 1500, body_bytes, |m| m.extend_from_slice(meta));
        out
    };
    let samples = [
        frame(FrameKind::Request, b"", 0),
        frame(FrameKind::Response, b"meta!", 9),
        frame(FrameKind::Part, &[7; 300], 4096),
    ];
    let mut accepted = 0;
    fuzz::run("frame", &samples, |input| match frame::decode(input) {
        Ok(Decoded::NeedBytes(n)) => {
            assert!(n > input.len() && n <= HEADER_BYTES + FRAME_META_BYTES_MAX as usize);
        }
        Ok(Decoded::Frame(h)) => {
            accepted += 1;
            let end = HEADER_BYTES + h.meta_bytes as usize;
            let mut again = Vec::new();
            frame::encode(
                &mut again,
                h.kind,
                h.opcode,
                h.request_id,
                h.deadline_or_status,
                h.body_bytes,
                |meta| meta.extend_from_slice(&input[HEADER_BYTES..end]),
            );
            assert_eq!(again, input[..end]);
        }
        Err(_) => {}
    });
    assert!(accepted > samples.len(), "no mutated frame was accepted: the fuzzer is too blunt");
}

#[derive(Debug, PartialEq)]
struct Inner {
    tier: Tier,
    durability: Durability,
    pointer: Pointer,
}
codec_struct!(Inner { tier, durability, pointer });

#[derive(Debug, PartialEq)]
enum Message {
    Named { name: String, inner: Option<Inner>, list: Vec<u16> },
    Nested { names: Vec<Option<String>>, flag: bool, number: i64 },
}
codec_enum!(Message: "message" {
    1 => Named { name, inner, list },
    9 => Nested { names, flag, number },
});

#[test]
fn messages_are_refused_or_encode_to_the_same_bytes() {
    let pointer = Pointer { chunk: ChunkId::new(1, 2), slot: Slot(3), cookie: Cookie(4) };
    let inner = Inner { tier: Tier::Disk, durability: Durability::Durable, pointer };
    let named = Message::Named { name: "é/name".into(), inner: Some(inner), list: vec![1, 2, 3] };
    let nested =
        Message::Nested { names: vec![None, Some("x".into())], flag: true, number: i64::MIN };
    let mut accepted = 0;
    fuzz::run("codec", &[named.to_bytes(), nested.to_bytes()], |input| {
        if let Ok(message) = Message::from_bytes(input) {
            accepted += 1;
            assert_eq!(message.to_bytes(), input);
        }
    });
    assert!(accepted > 100, "only {accepted} mutated messages were accepted");
}

#[test]
fn readers_never_go_past_the_end() {
    fuzz::run("reader", &[b"\x03\0\0\0abc\x02\0\0\0\xc3\xa9tail".to_vec()], |input| {
        let mut reader = Reader::new(input);
        let first = reader.bytes().map(<[u8]>::len);
        let second = reader.str().map(str::len);
        let rest = reader.remaining();
        if let (Ok(first), Ok(second)) = (first, second) {
            assert_eq!(4 + first + 4 + second + rest, input.len());
        }
        assert_eq!(reader.take(rest + 1), Err(DecodeError::Short));
        assert_eq!(reader.take(rest).map(<[u8]>::len), Ok(rest));
        assert_eq!(reader.finish(), Ok(()));
    });
}

/// Rounds of those targets that recover a whole file.
const RECOVERIES: u64 = 3_000;

/// The disk of `like`, with another content of one file.
fn replaced(like: &SimDisk, path: &Path, bytes: &[u8]) -> SimDisk {
    let disk = like.power_cut_losing_all();
    let file = disk.open(path, Access::Cached).unwrap();
    file.set_len(0).unwrap();
    file.write_at(bytes, 0).unwrap();
    file.sync("test.data").unwrap();
    disk
}

const CHUNK: ChunkId = ChunkId(7);

fn open_store(disk: &SimDisk) -> holdfast_base::Result<Store> {
    let config = StoreConfig {
        reserve_bytes: 1 << 20,
        commit_threads: 0,
        spare_file: false,
        journal_segment_bytes: 0,
        ..StoreConfig::new("/store")
    };
    Store::open(Arc::new(disk.clone()), Arc::new(SeededRng::new(1)), config).map(|(store, _)| store)
}

fn object(i: u32) -> (Needle, Vec<u8>) {
    let owner = holdfast_base::ids::FileId(i as u64);
    let needle = Needle { owner, cookie: Cookie(i + 9), flags: 2, hint: vec![b'h'; i as usize] };
    (needle, vec![i as u8; 1500 * i as usize])
}

/// A store with one packed chunk of four objects, in commits of two.
fn packed_chunk(sealed: bool) -> SimDisk {
    let disk = SimDisk::new(1);
    let store = open_store(&disk).unwrap();
    let spec = ChunkSpec::new(CHUNK, ChunkKind::Packed, 1);
    store.create(ChunkSpec { capacity_bytes: 24 << 10, ..spec }).unwrap();
    for i in 0..4 {
        let (needle, body) = object(i);
        let crcs = vec![holdfast_base::checksum::crc32c(&body)];
        let durable = Durability::Durable;
        store.append_needle(CHUNK, needle, Box::new(body), crcs, durable, Box::new(|_| ()));
        if i % 2 == 1 {
            store.pump();
        }
    }
    if sealed {
        store.seal(CHUNK, 4).unwrap();
    }
    drop(store);
    let end = disk.process_kill();
    // Everything on it becomes durable.
    end.sync_dir(Path::new("/store"), "test.name").unwrap();
    end
}

fn fuzz_chunk(target: &str, sealed: bool) {
    let disk = packed_chunk(sealed);
    let name = if sealed { "/store/c0.7.g0.chunk" } else { "/store/c0.7.g0.open" };
    let path = Path::new(name);
    let sample = read_file(&disk, path, 1 << 20).unwrap();
    let mut served = 0;
    fuzz::run_rounds(target, RECOVERIES, &[sample], |input| {
        let Ok(store) = open_store(&replaced(&disk, path, input)) else { return };
        for i in 0..8 {
            let pointer = Pointer { chunk: CHUNK, slot: Slot(i), cookie: Cookie(i + 9) };
            if let Ok(read) = store.read_needle(pointer) {
                assert_eq!((read.needle.clone(), read.bytes.to_vec()), object(i), "slot {i}");
                served += 1;
            }
        }
        if let Ok(length) = store.length(CHUNK) {
            let _ = store.seal(CHUNK, length);
        }
    });
    assert!(served > RECOVERIES, "only {served} objects survived: the fuzzer is too blunt");
}

#[test]
fn a_mutated_open_chunk_serves_what_was_written_or_nothing() {
    fuzz_chunk("open chunk", false);
}

#[test]
fn a_mutated_sealed_chunk_serves_what_was_written_or_nothing() {
    fuzz_chunk("sealed chunk", true);
}

#[test]
fn a_mutated_segment_gives_what_was_appended_or_nothing() {
    let disk = SimDisk::new(1);
    let open = |disk: &SimDisk| {
        let options =
            LogOptions { drive: Drive::Pump, segment_bytes: 32 << 10, ..LogOptions::default() };
        EmbeddedLog::open(Arc::new(disk.clone()), Path::new("/log"), options)
    };
    let entry = |i: u64| vec![i as u8; (i * 700) as usize];
    let append = |log: &EmbeddedLog, entries| {
        log.append("t", entries, Mode::Synced, Box::new(|_| ()));
        while log.pump() {}
    };
    let log = open(&disk).unwrap();
    log.create("t").unwrap();
    for first in [1, 3, 5] {
        append(&log, vec![entry(first), entry(first + 1)]);
    }
    drop(log);
    let path = Path::new("/log/topics/t/00000000000000000001.seg");
    let sample = read_file(&disk, path, 1 << 20).unwrap();
    let mut read = 0;
    fuzz::run_rounds("segment", RECOVERIES, &[sample], |input| {
        let log = open(&replaced(&disk, path, input)).unwrap();
        let from = holdfast_base::ids::Index(1);
        let entries = log.read("t", from, 100, 1 << 20, Scope::Written).unwrap_or_default();
        for (index, bytes) in &entries {
            assert_eq!(*bytes, entry(index.0), "entry {index}");
        }
        read += entries.len() as u64;
        append(&log, vec![entry(9)]);
    });
    assert!(read > RECOVERIES, "only {read} entries survived: the fuzzer is too blunt");
}

/// What the cache is told, cut anywhere and mutated: it answers or hangs up, keeps no more of a
/// command than it must, and serves another client as if nothing had been.
#[test]
fn the_cache_survives_whatever_clients_say() {
    /// Each has a cache of its own.
    const CACHE_ROUNDS: u64 = 10_000;
    /// The longest line, and half a value; a batch of keys that is not answered yet.
    const KEPT_BYTES_MAX: usize = 64 << 10;
    let settings = holdfast_cache::Settings {
        memory_bytes: 8 << 20,
        item_bytes_max: 64 << 10,
        shutdown_command: true,
        ..holdfast_cache::Settings::default()
    };
    let samples = [
        &b"set a 1 0 3\r\nabc\r\nget a b a\r\ngets a\r\ngat 10 a\r\ncas a 0 0 1 7\r\nx\r\n"[..],
        b"add n 0 0 1\r\n9\r\nincr n 5\r\ndecr n 99\r\ntouch n 5\r\nappend n 0 0 2\r\n12\r\ndelete n\r\n",
        b"ms k 3 F1 T30 c I\r\nabc\r\nmg k v f t s c N30 R20 q Oopaque k\r\nma k N0 J3 D2\r\nmd k I T5 x\r\nmn\r\n",
        b"mg Zm9v b v k\r\nms Zm9v 2 b MA\r\nhi\r\nme k\r\nflush_all 5 noreply\r\nstats items\r\nverbosity 1\r\n",
        b"set l 0 0 40000\r\nget \r\n\r\nquit\r\nshutdown graceful\r\nlru_crawler crawl all\r\n",
    ];
    let samples: Vec<Vec<u8>> = samples.iter().map(|sample| sample.to_vec()).collect();
    let clock: Arc<dyn holdfast_env::Clock> = Arc::new(holdfast_env::RealClock::new());
    let mut cut = 0usize;
    fuzz::run_rounds("cache", CACHE_ROUNDS, &samples, |input| {
        let mut cache = holdfast_cache::Local::new(settings.clone(), clock.clone()).unwrap();
        cut = cut % 61 + 1;
        let mut lives = true;
        for part in input.chunks(cut) {
            lives = lives && cache.say(part, |_| {});
            assert!(cache.kept_bytes() <= KEPT_BYTES_MAX, "{} bytes kept", cache.kept_bytes());
        }
        // On a connection of its own: a value that is still to come may take whatever follows.
        let mut answer = Vec::new();
        let another = b"set other 0 0 2\r\nok\r\nget other\r\n";
        assert!(cache.say_as_another(another, |part| answer.extend_from_slice(part)));
        assert_eq!(answer, b"STORED\r\nVALUE other 0 2\r\nok\r\nEND\r\n", "after {input:?}");
    });
}

/// Slabs of a few items, whole and selected from, as they are sent.
fn slabs() -> Vec<Vec<u8>> {
    let mut slabs = Vec::new();
    // Where limits can be drawn small some of them begin and end inside a key.
    for limit in [slab::SLAB_BYTES.usual(), 100] {
        let _entered = Trial::new().with(&slab::SLAB_BYTES, limit).enter();
        let mut builder = Builder::new(Range::new(0, 1 << 24), 99, Arc::new(Needs::all()), false);
        for hash in 0..4 {
            let key = b"key".as_slice();
            let item = |collection, index, value| Item { hash, collection, key, index, value };
            slabs.extend(builder.push(&item(1, 5, Some([7; 30].as_slice()))));
            slabs.extend(builder.push(&item(1, 70, (hash > 1).then_some(b"".as_slice()))));
            slabs.extend(builder.push(&item(9, 6, Some(b"other".as_slice()))));
        }
        slabs.extend(builder.finish());
    }
    let selections = [
        Wanted { keys_only: true, ..Wanted::all() },
        Wanted { versions: false, ..Wanted::all() },
        Wanted { indices: 70..80, ..Wanted::all() },
        Wanted { indices: 80..90, ..Wanted::all() },
    ];
    let selected = selections.map(|wanted| select(&slabs[0], &wanted));
    let bytes = |slab: Slab| {
        let mut bytes = Vec::new();
        slab.write(&mut bytes);
        bytes
    };
    slabs.into_iter().chain(selected).map(bytes).collect()
}

/// What a slab is of, and every item of it; nothing if it is refused.
fn items(bytes: &[u8]) -> Option<String> {
    let split = slab::header_bytes(bytes).ok()?.min(bytes.len());
    let (header, columns) = bytes.split_at(split);
    let reader = slab::Reader::new(header, columns).ok()?;
    let items: Vec<_> = reader.items().collect();
    Some(format!("{:?} {items:?}", reader.header))
}

#[test]
fn a_mutated_slab_has_the_items_that_were_encoded_or_none() {
    let samples = slabs();
    let encoded: BTreeSet<String> = samples.iter().map(|bytes| items(bytes).unwrap()).collect();
    let mut accepted = 0;
    fuzz::run("slab", &samples, |input| {
        if let Some(items) = items(input) {
            accepted += 1;
            assert!(encoded.contains(&items), "nobody encoded {items}");
        }
    });
    assert!(accepted > samples.len(), "no mutation came to nothing: the fuzzer is too blunt");
}

/// The slab with checksums that fit it.
fn sealed(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = bytes.to_vec();
    let split = slab::header_bytes(&bytes).ok().filter(|split| *split <= bytes.len())?;
    let (header, mut columns) = bytes.split_at_mut(split);
    let (described, crc) = header.split_at_mut(split - 4);
    for column in described[28..].chunks_mut(16) {
        let length = u32::from_bytes(&column[8..12]).unwrap() as usize;
        let (of_one, behind) = columns.split_at_mut_checked(length)?;
        column[12..].copy_from_slice(&crc32c(of_one).to_le_bytes());
        columns = behind;
    }
    crc.copy_from_slice(&crc32c(described).to_le_bytes());
    Some(bytes)
}

/// From a peer that is wrong about what it sends: what is accepted can be read to its end, and has
/// as many items as it says.
#[test]
fn a_mutated_slab_with_right_checksums_is_refused_or_read() {
    let samples = slabs();
    let mut accepted = 0;
    fuzz::run("sealed slab", &samples, |input| {
        let Some(input) = sealed(input) else { return };
        let image = input;
        let mut of_image = |at: std::ops::Range<usize>| Ok(image[at].to_vec());
        let read = Slab::read(image.len(), &Arc::new(Needs::all()), &mut of_image);
        let Ok(read) = read else { return };
        accepted += 1;
        let split = slab::header_bytes(&image).unwrap();
        let reader = slab::Reader::new(&image[..split], &image[split..]).unwrap();
        let described = image[28..split - 4].chunks(16).filter(|column| column[3] == 0);
        let said = described.map(|column| u32::from_bytes(&column[4..8]).unwrap() as usize);
        assert_eq!(reader.items().count(), said.sum::<usize>());
        let mut again = Vec::new();
        read.write(&mut again);
        assert!(again == image, "it is written otherwise than it was read");
    });
    assert!(accepted > 1000, "only {accepted} mutated slabs were accepted");
}

#[path = "../../dynamo/tests/support/memory.rs"]
mod memory;

#[test]
fn dynamos_items_are_refused_or_encode_to_the_same_bytes() {
    use holdfast_dynamo::{form, json};
    let item = |text: &str| {
        let json = serde_json::from_str(text).unwrap();
        form::to_bytes(&json::to_item(&json).unwrap().checked().unwrap())
    };
    let samples = [
        item(
            r#"{"p": {"S": "x"}, "n": {"N": "-12.5e-7"}, "b": {"B": "AAEC"}, "t": {"BOOL": true}}"#,
        ),
        item(
            r#"{"m": {"M": {"l": {"L": [{"NULL": true}, {"M": {}}]}}}, "ss": {"SS": ["a", "b"]}}"#,
        ),
        item(r#"{"ns": {"NS": ["1", "-2"]}, "bs": {"BS": ["AA==", "AQ=="]}, "z": {"N": "0"}}"#),
    ];
    let mut accepted = 0;
    fuzz::run("dynamo.form", &samples, |input| {
        if let Ok(item) = form::from_bytes(input) {
            accepted += 1;
            assert_eq!(form::to_bytes(&item), input);
        }
    });
    assert!(accepted > samples.len(), "no mutated item was accepted: the fuzzer is too blunt");
}

#[test]
fn dynamos_expressions_are_refused_or_mean_something() {
    use holdfast_dynamo::expression::{Placeholders, condition, projection, update};
    use holdfast_dynamo::{json, range};
    let item = |text: &str| {
        let json = serde_json::from_str(text).unwrap();
        json::to_item(&json).unwrap().checked().unwrap()
    };
    let (old, values) = (
        item(r#"{"a": {"N": "1"}, "b": {"L": [{"S": "x"}]}, "c": {"M": {"d": {"SS": ["a"]}}}}"#),
        item(r#"{":n": {"N": "2"}, ":s": {"S": "x"}, ":l": {"L": []}, ":t": {"SS": ["a"]}}"#),
    );
    let samples = [
        "a = :n AND (NOT c.d = :s OR size(b) >= :n) and b[0] IN (:s, :n)",
        "attribute_exists(#a) OR begins_with(b[0], :s) AND a BETWEEN :n AND :n",
        "SET a = a + :n, b[1] = if_not_exists(c.e, :s) REMOVE b[0] ADD e :n DELETE c.d :t",
        "SET b = list_append(b, :l), #a = (a - :n)",
        "a, b[0], c.d, #a",
        "contains(c.d, :s) or attribute_type(a, :s) or attribute_not_exists(b[3].c)",
    ];
    let samples = samples.map(|sample| sample.as_bytes().to_vec());
    let mut accepted = 0;
    fuzz::run("dynamo.expression", &samples, |input| {
        let text = String::from_utf8_lossy(input);
        let names = [("#a".to_owned(), "a".to_owned())].into();
        let mut given = Placeholders::new(Some(names), Some(values.clone()), |_| None).unwrap();
        if let Ok(condition) = condition::parse("Condition", &text, &mut given) {
            accepted += 1;
            condition.holds(&old);
            let _ = range::Keys::of(&condition);
        }
        let _ = projection::parse(&text, &mut given);
        if let Ok(update) = update::parse(&text, &mut given) {
            accepted += 1;
            let _ = update.apply(&mut old.clone());
        }
    });
    assert!(
        accepted > samples.len(),
        "no mutated expression was accepted: the fuzzer is too blunt"
    );
}

#[test]
fn dynamos_requests_are_refused_or_answered() {
    const OPERATIONS: [&str; 9] = [
        "CreateTable",
        "PutItem",
        "UpdateItem",
        "GetItem",
        "DeleteItem",
        "Query",
        "Scan",
        "BatchWriteItem",
        "BatchGetItem",
    ];
    let api = memory::api(Arc::default());
    let samples = [
        r#"0{"TableName": "abc", "BillingMode": "PAY_PER_REQUEST", "KeySchema": [{"AttributeName": "p", "KeyType": "HASH"}], "AttributeDefinitions": [{"AttributeName": "p", "AttributeType": "S"}]}"#,
        r#"1{"TableName": "abc", "Item": {"p": {"S": "x"}, "n": {"N": "1e3"}, "b": {"B": "AAEC"}, "l": {"L": [{"M": {}}]}}, "ReturnValues": "ALL_OLD"}"#,
        r##"2{"TableName": "abc", "Key": {"p": {"S": "x"}}, "UpdateExpression": "SET #n = n + :n", "ExpressionAttributeNames": {"#n": "n"}, "ExpressionAttributeValues": {":n": {"N": "1"}}}"##,
        r#"3{"TableName": "abc", "Key": {"p": {"S": "x"}}, "ConsistentRead": true, "ProjectionExpression": "n, l[0]"}"#,
        r#"4{"TableName": "abc", "Key": {"p": {"S": "x"}}, "ConditionExpression": "attribute_exists(n)"}"#,
        r#"5{"TableName": "abc", "KeyConditionExpression": "p = :p", "ExpressionAttributeValues": {":p": {"S": "x"}}, "Limit": 1, "ExclusiveStartKey": {"p": {"S": "x"}}}"#,
        r#"6{"TableName": "abc", "Segment": 0, "TotalSegments": 3, "Select": "COUNT"}"#,
        r#"7{"RequestItems": {"abc": [{"PutRequest": {"Item": {"p": {"S": "y"}}}}, {"DeleteRequest": {"Key": {"p": {"S": "x"}}}}]}}"#,
        r#"8{"RequestItems": {"abc": {"Keys": [{"p": {"S": "x"}}], "ConsistentRead": true}}}"#,
    ];
    let samples = samples.map(|sample| sample.as_bytes().to_vec());
    let mut answered = 0;
    fuzz::run_rounds("dynamo.request", 50_000, &samples, |input| {
        let Some((first, body)) = input.split_first() else { return };
        let operation = OPERATIONS[usize::from(first.wrapping_sub(b'0')) % OPERATIONS.len()];
        if let Ok(body) = serde_json::from_slice(body) {
            answered += usize::from(memory::call(&api, operation, body).is_ok());
        }
    });
    assert!(answered > samples.len(), "no mutated request was answered: the fuzzer is too blunt");
}
