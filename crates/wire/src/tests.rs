//! Golden bytes: one of each message, as docs/formats/wire.md describes them. A change here is a
//! change of the protocol: it needs a new version.

use super::*;
use holdfast_base::Kind;
use holdfast_base::checksum::crc32c;
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::frame::{self, FrameKind};
use holdfast_base::ids::*;
use holdfast_base::node::{NodeKind, StorageClass};
use holdfast_env::net::{Handshake, Role};
use holdfast_env::{Rng, Secret};
use std::collections::BTreeMap;
use std::fmt::Debug;

const GOLDEN: &str = include_str!("golden/messages.txt");

#[derive(Default)]
struct Messages(Vec<(&'static str, String)>);

impl Messages {
    fn add<T: Encode + Decode + PartialEq + Debug>(&mut self, name: &'static str, message: T) {
        self.add_longer(name, message, &[]);
    }

    /// One that was as long as `before` in earlier builds, which is read still.
    fn add_longer<T: Encode + Decode + PartialEq + Debug>(
        &mut self,
        name: &'static str,
        message: T,
        before: &[usize],
    ) {
        let bytes = message.to_bytes();
        assert_eq!(T::from_bytes(&bytes).as_ref(), Ok(&message), "{name} comes back");
        for cut in (0..bytes.len()).filter(|cut| !before.contains(cut)) {
            assert!(T::from_bytes(&bytes[..cut]).is_err(), "{name} cut at {cut}");
        }
        self.0.push((name, bytes.iter().map(|byte| format!("{byte:02x}")).collect()));
    }
}

const CHUNK: ChunkId = ChunkId(0x0102_0304_0506_0708);
const POINTER: Pointer = Pointer { chunk: CHUNK, slot: Slot(0x11), cookie: Cookie(0x2233_4455) };
const CALL: Call =
    Call { session: SessionId(7), sequence: Sequence(8), acknowledged_below: Sequence(6) };

fn node() -> file::NewNode {
    file::NewNode {
        path: "/p".into(),
        kind: NodeKind::File,
        mode: 0o644,
        mtime_ns: -2,
        class: Some(StorageClass::DEFAULT),
        replace: true,
        parents: false,
        metadata: vec![0xaa],
    }
}

fn info() -> file::FileInfo {
    file::FileInfo {
        id: FileId(9),
        kind: NodeKind::Symlink,
        mode: 0o777,
        mtime_ns: 1,
        size: 10,
        class: StorageClass::DEFAULT,
        target: "/t".into(),
        metadata: vec![0xbb],
    }
}

fn extents() -> Vec<file::Extent> {
    let raw = file::Extent::Raw { chunk: CHUNK, generation: Generation(1), bytes: 2 };
    vec![raw, file::Extent::Packed { pointer: POINTER, bytes: 3 }]
}

fn piece() -> chunk::Piece {
    chunk::Piece { offset: 1, bytes: 2, frame_generation: 3 }
}

fn chunk_messages(m: &mut Messages) {
    let (offset, bytes) = (5, 6);
    let durability = Durability::Durable;
    m.add("chunk::Append", chunk::Append { chunk: CHUNK, at: 5, durability, crcs: vec![1, 2] });
    m.add("chunk::Read", chunk::Read { chunk: CHUNK, generation: Generation(4), offset, bytes });
    let file = FileId(9);
    m.add("chunk::ReadObject", chunk::ReadObject { pointer: POINTER, offset, bytes, file });
    m.add("chunk::ReadReply", chunk::ReadReply { crcs: vec![0xdead_beef] });
    m.add("chunk::RegionOffer", chunk::RegionOffer { store: StoreId(1), region_bytes: 2 });
    m.add("chunk::Located", chunk::Located { pieces: vec![piece()], crcs: vec![7] });
}

fn log_messages(m: &mut Messages) {
    let topic = || "t".to_owned();
    let entry = log::Entry { bytes: vec![1, 2] };
    m.add("log::Append", log::Append { topic: topic(), synced: true, entries: vec![entry] });
    m.add("log::Appended", log::Appended { first: Index(3), apart: vec![Index(3), Index(5)] });
    m.add("log::Read", log::Read { topic: topic(), from: Index(3), entries_max: 4, wait: true });
    let entries = vec![log::Indexed { index: Index(3), bytes: vec![5] }];
    m.add("log::Entries", log::Entries { entries });
    m.add("log::Trim", log::Trim { topic: topic(), before: Index(3) });
    let (first, next, durable) = (Index(1), Index(2), Index(3));
    m.add("log::Info", log::Info { topic: topic(), first, next, durable, bytes: 4, segments: 5 });
    let set = log::Set { topic: topic(), create: true, retain_bytes: Some(4), retain_ms: None };
    m.add("log::Set", set);
    m.add("log::Retention", log::Retention { bytes: 4, age_ms: 5 });
    m.add("log::Verify", log::Verify { topic: topic(), from: Index(3) });
    m.add("log::Verified", log::Verified { next: Index(3), entries: 4, bytes: 5 });
}

fn peer_log(m: &mut Messages) {
    let sender = peer::Sender { cluster: 1, node: NodeId(2), incarnation: Index(3) };
    let topic = || "t".to_owned();
    m.add("peer_log::Append", peer_log::Append { sender, topic: topic(), crc: 4 });
    let (from, entries_max, wait) = (Index(4), 5, true);
    let reader = 6;
    let read = peer_log::Read { sender, topic: topic(), from, entries_max, wait, reader };
    let before = read.to_bytes().len() - 4;
    m.add_longer("peer_log::Read", read, &[before]);
    m.add("peer_log::Entries", peer_log::Entries { crc: 4 });
    m.add("peer_log::Trim", peer_log::Trim { sender, topic: topic(), before: Index(4) });
    m.add("peer_log::Describe", peer_log::Describe { sender, topic: topic() });
    let digests = vec![peer_log::Digest { index: Index(5), digest: 6 }];
    let mut sums = slab::Sums::default();
    let (key, value) = (b"k", Some(&b"v"[..]));
    sums.add(&slab::Item { hash: 0x0700_0000, collection: 1, key, index: 3, value }, true);
    let images = vec![peer_log::Image { low: 1, high: 2, index: Index(5), sums }];
    let (covered, holds, lost) = (Index(4), vec![Index(5)], Index(6));
    let covered = peer_log::Covered { covered, withdrawn: true, digests, images, holds, lost };
    // As far as three earlier builds say something.
    m.add_longer("peer_log::Covered", covered, &[8, 29, 94]);
    let before = peer_log::Covered::from_bytes(&Index(4).to_bytes());
    assert_eq!(before, Ok(peer_log::Covered { covered: Index(4), ..Default::default() }));
    let (index, offset, bytes) = (Index(4), 5, 6);
    let reached = peer_log::Reached { topic: topic(), index: Index(5), crc: Some(6) };
    m.add("peer_log::Reached", reached.clone());
    m.add("peer_log::Compare", peer_log::Compare { sender, reached });
    let part = peer_log::Snapshot { sender, topic: topic(), index, offset, bytes };
    m.add("peer_log::Snapshot", part);
    m.add("peer_log::SnapshotPart", peer_log::SnapshotPart { index, bytes_total: 5, crc: 6 });
}

fn file_messages(m: &mut Messages) {
    let path = || "/p".to_owned();
    m.add("Call", CALL);
    m.add("file::Lookup", file::Lookup { path: path(), follow: true });
    m.add("file::FileInfo", info());
    m.add(
        "file::Get",
        file::Get { path: path(), follow: true, offset: 1, bytes_max: 2, locate: false },
    );
    let reply = |content| file::GetReply { info: info(), content };
    m.add("file::GetReply Body", reply(file::Content::Body { crc: 1 }));
    m.add("file::GetReply Mapped", reply(file::Content::Mapped { pieces: vec![piece()], crc: 1 }));
    m.add("file::GetReply Chunks", reply(file::Content::Chunks { extents: extents(), more: true }));
    m.add("file::NewNode", node());
    m.add("file::Put", file::Put { call: CALL, node: node(), crc: 1 });
    m.add("file::Begin", file::Begin { call: CALL, node: node() });
    m.add("file::Begun", file::Begun { file: FileId(9), class: StorageClass::DEFAULT });
    m.add("file::Allocate", file::Allocate { call: CALL, file: FileId(9) });
    let (tier, durability) = (Tier::Disk, Durability::Durable);
    m.add("file::Grant", file::Grant { chunk: CHUNK, tier, durability, capacity: 1 });
    m.add("file::Remainder", file::Remainder { file: FileId(9), crc: 1 });
    m.add(
        "file::Close",
        file::Close { call: CALL, file: FileId(9), node: node(), extents: extents() },
    );
    m.add("file::List", file::List { path: path(), after: "a".into(), entries_max: 1 });
    let entries = vec![file::Named { name: "n".into(), info: info() }];
    m.add("file::Page", file::Page { entries, more: true });
    m.add("file::Usage", file::Usage { files: 1, directories: 2, bytes: 3 });
    m.add("file::ExtentsOf", file::ExtentsOf { file: FileId(9), from: 1 });
    m.add("file::Unclosed", file::Unclosed { file: FileId(9), path: path(), bytes: 1 });
}

fn changes(m: &mut Messages) {
    let (path, file) = (|| "/p".to_owned(), FileId(9));
    let mut change = |name, action| m.add(name, file::Change { call: CALL, action });
    change("file::Change Make", file::Action::Make { node: node() });
    let target = "/t".to_owned();
    change("file::Change Symlink", file::Action::Symlink { path: path(), target, mtime_ns: 1 });
    let to = "/q".to_owned();
    change("file::Change Rename", file::Action::Rename { from: path(), to, replace: true });
    change("file::Change Delete", file::Action::Delete { path: path(), recursive: true });
    let attributes = file::Action::SetAttributes {
        path: path(),
        mode: Some(0o600),
        mtime_ns: None,
        metadata: Some(vec![1]),
    };
    change("file::Change SetAttributes", attributes);
    let class = StorageClass::DEFAULT;
    change("file::Change SetClass", file::Action::SetClass { path: path(), class });
    change("file::Change Abandon", file::Action::Abandon { file });
    change("file::Change Salvage", file::Action::Salvage { file, path: path() });
    change("file::Change Seal", file::Action::Seal { file, chunk: CHUNK, acknowledged: 1 });
}

fn status(m: &mut Messages) {
    let store = admin::Store {
        id: StoreId(1),
        tier: Tier::Dram,
        place: "m".into(),
        capacity_bytes: 2,
        used_bytes: 3,
        free_bytes: 4,
        chunks: 5,
        read_only: true,
        scrubbed_bytes: 6,
        fills_in_s: Some(8),
        bad_blocks: 7,
    };
    let status = admin::Status {
        node: NodeId(1),
        version: "v".into(),
        uptime_ms: 2,
        files: 3,
        directories: 4,
        bytes: 5,
        unclosed: 6,
        index: Index(7),
        digest: 8,
        stores: vec![store],
        findings: vec!["f".into()],
    };
    m.add("admin::Status", status);
    let rules = vec!["fs:/a:r".to_owned()];
    let (name, until_s, used_s) = ("a".to_owned(), 2, -1);
    let new = admin::NewToken { name: name.clone(), rules: rules.clone(), ttl_s: 1 };
    m.add("admin::NewToken", new);
    m.add("admin::TokenInfo", admin::TokenInfo { name, rules, until_s, used_s });
    let (client, limit, amount) = ("a".to_owned(), "b".to_owned(), "c".to_owned());
    let slowed = admin::Slowed { client, limit, allowed: 1, amount, seconds: 2, left_ms: 3 };
    m.add("admin::Slowed", slowed);
    let (directories, coming) = (vec!["a".to_owned()], vec!["b".to_owned()]);
    let (shard, index, files, bytes) = (1, Index(2), 3, 4);
    let (frozen, taken) = (
        vec![admin::Frozen { dir: "c".into(), to: 5 }],
        vec![admin::Taken { dir: "d".into(), parts: 6 }],
    );
    let moving = admin::Moving { frozen, taken, is_leaving: true, held: 7, owing: 8 };
    let part = admin::Shard { shard, index, files, bytes, directories, coming, moving };
    m.add("admin::Shard", part);
    m.add("admin::Order AddShard", admin::Order::AddShard { shard: 2 });
    let order = admin::Order::MoveDirectory { dir: "/a".into(), to: 1 };
    m.add("admin::Order MoveDirectory", order);
}

fn peer_chunks(m: &mut Messages) {
    let sender = peer::Sender { cluster: 1, node: NodeId(2), incarnation: Index(3) };
    let (store, chunk, durability) = (StoreId(4), CHUNK, Durability::Durable);
    m.add("peer::Sender", sender);
    let create = peer::Create { sender, store, chunk, kind: 1, owner: 5, capacity: 6, durability };
    m.add("peer::Create", create);
    let crcs = || vec![7];
    let append = peer::AppendRaw { sender, store, chunk, at: 5, durability, crcs: crcs() };
    m.add("peer::AppendRaw", append);
    let needle = peer::AppendNeedle {
        sender,
        store,
        chunk,
        slot: Slot(5),
        durability,
        owner: FileId(6),
        cookie: Cookie(7),
        flags: 8,
        hint: vec![9],
        crcs: crcs(),
    };
    m.add("peer::AppendNeedle", needle);
    m.add("peer::Appended", peer::Appended { position: 1, room: 2 });
    m.add("peer::Fence", peer::Fence { sender, store, chunk });
    m.add("peer::Seal", peer::Seal { sender, store, chunk, length: 5 });
    let (generation, offset, bytes) = (Generation(5), 6, 7);
    m.add("peer::ReadRaw", peer::ReadRaw { sender, store, chunk, generation, offset, bytes });
    m.add("peer::ReadNeedle", peer::ReadNeedle { sender, store, pointer: POINTER, offset, bytes });
    m.add("peer::Inventory", peer::Inventory { sender, store, from: chunk, entries_max: 5 });
    let held = peer::Held {
        chunk,
        generation,
        kind: 1,
        state: 2,
        length: 3,
        stored_bytes: 4,
        damaged: true,
    };
    m.add("peer::InventoryPage", peer::InventoryPage { entries: vec![held], more: true });
}

fn peer_copies(m: &mut Messages) {
    let sender = peer::Sender { cluster: 1, node: NodeId(2), incarnation: Index(3) };
    let (store, chunk, generation) = (StoreId(4), CHUNK, Generation(5));
    let (offset, bytes) = (6, 7);
    m.add("peer::Export", peer::Export { sender, store, chunk, generation, offset, bytes });
    m.add("peer::Exported", peer::Exported { bytes_total: 1, crc: 2 });
    let copy = peer::Copy {
        store,
        chunk,
        generation,
        source: StoreId(6),
        source_address: "a".into(),
        bytes_per_second: 7,
    };
    let plan = peer::CopyPlan {
        sender,
        epoch: Index(1),
        number: 2,
        look: true,
        alpha_per_mille: 3,
        floor_bytes_per_second: 4,
        rate_max: 5,
        rack: peer::Directions { out: 6, into: 7 },
        heard: 6,
        copies: vec![copy],
    };
    m.add("peer::CopyPlan", plan);
    let flight = peer::Flight {
        store,
        chunk,
        generation,
        source: StoreId(6),
        bytes_done: 7,
        bytes_total: 8,
        bytes_received: 9,
        age_ms: 10,
    };
    let failure = "f".to_owned();
    let ended = peer::Ended { number: 1, store, chunk, generation, bytes: 2, failure };
    let report = peer::Report {
        number: 1,
        link_bytes_per_second: 2,
        rack_bytes_per_second: 1,
        foreground: peer::Directions { out: 3, into: 4 },
        recovery: peer::Directions { out: 5, into: 6 },
        disks: vec![peer::DiskLoad {
            store,
            bytes_per_second: 7,
            foreground: 8,
            recovery: peer::Directions { out: 9, into: 10 },
            busy_per_mille: 11,
        }],
        answer_us_p90: 7,
        answers: 8,
        flights: vec![flight],
        ended: vec![ended],
    };
    m.add("peer::Report", report);
    m.add("peer::Compact", peer::Compact { sender, store, chunk, next: generation, live: vec![6] });
    m.add("peer::Compacted", peer::Compacted { needles: 1, stored_bytes: 2, digest: 3 });
    m.add("peer::Switch", peer::Switch { sender, store, chunk, generation });
    m.add("peer::Unlink", peer::Unlink { sender, store, chunk, generation, index: Index(6) });
}

fn view_messages(m: &mut Messages) {
    let topic = || "t".to_owned();
    let index = Index(5);
    let hashed = slab::Hashed::Until(b'/');
    let collection = view::Collection { name: "c".into(), hashed, json: true };
    let kind = view::ViewKind::Index { collection: "c".into(), field: "f".into() };
    let name = view::ViewName { topic: topic(), kind, part: 1, of: 2 };
    m.add("view::Make", view::Make { topic: topic(), collection: collection.clone() });
    m.add("view::Change", view::Change { topic: topic(), call: CALL });
    m.add("view::Mark", view::Mark { topic: topic(), call: CALL });
    m.add("view::Horizon", view::Horizon { topic: topic(), call: CALL, index });
    m.add("view::Moved", view::Moved { index, horizon: Index(4) });
    m.add("view::Changed", view::Changed { index });
    let all = view::Collection { hashed: slab::Hashed::All, json: false, ..collection.clone() };
    let bytes = view::Collection { hashed: slab::Hashed::Bytes(8), ..all.clone() };
    let collections = vec![collection, all, bytes];
    m.add("view::Catalog", view::Catalog { collections, horizon: Index(3), applied: index });
    m.add("view::ViewName disk", view::ViewName { kind: view::ViewKind::Disk {}, ..name.clone() });
    let memory = view::ViewKind::Memory {};
    m.add("view::ViewName memory", view::ViewName { kind: memory, ..name.clone() });
    let (applied, last, stopped) = (index, Index(6), "why".to_owned());
    let images = vec![view::Image { index, bytes: 9 }];
    let view = name.clone();
    let begins = "soon".into();
    let level_ms = Some(400);
    let status =
        view::ViewStatus { view, applied, last, riders: 2, stopped, begins, images, level_ms };
    m.add("view::ViewStatus", status);
    let key = view::Key { collection: 1, key: b"k".to_vec() };
    let (reached, at) = (index, Some(Index(4)));
    m.add("view::Get", view::Get { topic: topic(), reached, at, keys: vec![key] });
    let found = vec![Some(view::Found { index, value: b"v".to_vec() }), None];
    m.add("view::Got", view::Got { applied, found });
    let (prefix, after) = (b"k/".to_vec(), Some(b"k/a".to_vec()));
    let scan =
        view::Scan { topic: topic(), reached, at, collection: 1, prefix, after, keys_max: 9 };
    m.add("view::Scan", scan);
    let row = view::Row { key: b"k".to_vec(), index, value: b"v".to_vec() };
    m.add("view::Rows", view::Rows { applied, rows: vec![row], more: true });
    let find = view::Find {
        topic: topic(),
        reached,
        collection: "c".into(),
        field: "f".into(),
        value: b"v".to_vec(),
        after: Some(b"k".to_vec()),
        keys_max: 9,
    };
    m.add("view::Find", find);
    let keys = vec![view::Having { key: b"l".to_vec(), index }];
    m.add("view::Havings", view::Havings { applied, keys, more: true });
    let view = name.clone();
    m.add("view::Sum", view::Sum { view, low: 1, high: 1 << 32, reached, at });
    let mut sums = slab::Sums::default();
    let item = slab::Item { hash: 1 << 24, collection: 1, key: b"k", index: 5, value: Some(b"v") };
    sums.add(&item, true);
    m.add(
        "view::Summed",
        view::Summed { at: index, horizon: Index(3), keys: 1, sums: sums.clone() },
    );
    ride_messages(m, name, sums);
}

fn ride_messages(m: &mut Messages, name: view::ViewName, sums: slab::Sums) {
    let (index, reached) = (Index(5), Index(5));
    let board = view::Board {
        view: name.clone(),
        low: 1,
        high: 1 << 32,
        collections: Some(vec![1, 2]),
        keys_only: true,
        versions: false,
        since: Index(4),
        below: Some(Index(6)),
        fields: Some(vec!["f".into()]),
        reached,
        dedicated: true,
        at: Some(index),
        behind: Some(view::Place { hash: 1, collection: 2, key: b"k".to_vec(), index }),
    };
    m.add("view::Board", board);
    let horizon = Index(3);
    let (entry_crc, digest, front_crc) = (8, 9, Some(10));
    let boarded = view::Boarded { ride: 7, heads: 2, index, entry_crc, digest, horizon, front_crc };
    m.add_longer("view::Boarded", boarded, &[40]);
    m.add("view::Doubt", view::Doubt { view: name.clone(), index });
    m.add("view::Next", view::Next { ride: 7, head: 1 });
    m.add("view::Ended", view::Ended { sums: sums.clone() });
}

fn scribe_messages(m: &mut Messages) {
    let (category, categories, index) = ("c".to_owned(), vec!["c".to_owned()], Index(5));
    m.add("scribe::Append", scribe::Append { categories: categories.clone() });
    let positions =
        vec![scribe::Position { next: 5, checksum: 6, refused: "no".into(), never: true }];
    m.add("scribe::Positions", scribe::Positions { positions });
    m.add("scribe::Ask", scribe::Ask { spool: 7, categories });
    let drained = Some(scribe::Drained { next: 5, checksum: 6 });
    let words = vec![scribe::Word { category: category.clone(), knows: index, drained }];
    m.add("scribe::Say", scribe::Say { spool: 7, name: "h:/s".into(), words });
    let heard = vec![scribe::Heard { counts: true, entry: index, refused: "no".into() }];
    m.add("scribe::AllHeard", scribe::AllHeard { heard });
    let read = scribe::Read { category: category.clone(), from: index, bytes_max: 9, wait: true };
    m.add("scribe::Read", read);
    let keep = scribe::Keep {
        category: category.clone(),
        retain_bytes: Some(8),
        retain_ms: None,
        hold_bytes: None,
        hold_ms: Some(9),
        hourly_files: Some(true),
    };
    m.add("scribe::Keep", keep);
    let kept = scribe::Kept {
        retain_bytes: 9,
        retain_ms: 10,
        hold_bytes: 11,
        hold_ms: 12,
        hourly_files: true,
        hours: 13,
        hours_waiting: 14,
    };
    m.add("scribe::Kept", kept);
    let reader =
        scribe::Reader { category: category.clone(), reader: "r".into(), next: Some(index) };
    m.add("scribe::Reader", reader);
    let batches = vec![scribe::Indexed { index, bytes: 3 }];
    m.add("scribe::Batches", scribe::Batches { batches, next: Index(6) });
    let (first, next) = (Index(1), Index(2));
    let lost = scribe::LostSpool {
        spool: 7,
        name: "h:/s".into(),
        next: 8,
        by: 9,
        entry: index,
        unix_ms: 10,
    };
    let status = scribe::CategoryStatus {
        category,
        first,
        next,
        batches: 3,
        messages: 4,
        raw_bytes: 5,
        dropped: 6,
        spools: 7,
        log_bytes: 8,
        kept,
        readers: vec![scribe::ReaderAt { reader: "r".into(), next }],
        lost: 11,
        lost_spools: vec![lost],
    };
    m.add("scribe::CategoryStatus", status);
}

fn group_messages(m: &mut Messages) {
    let (name, key) = ("t".to_owned(), b"k".to_vec());
    let group = table::Group { table: name.clone(), session: 7, sequence: 8, below: 9 };
    m.add("table::Group", group);
    let row = |expect, what| table::GroupRow { expect, key: key.clone(), what };
    m.add("table::GroupRow put", row(table::Expect::Absent, table::GroupDo::Put(vec![1])));
    m.add("table::GroupRow delete", row(table::Expect::Any, table::GroupDo::Delete));
    let expect = table::Expect::Version { version: 9 };
    m.add("table::GroupRow check", row(expect, table::GroupDo::Check));
    let versions = table::GroupWritten::Versions { versions: vec![11, 0] };
    m.add("table::GroupWritten", versions);
    let found = table::GroupWritten::Found { at: 1, version: 11 };
    m.add("table::GroupWritten found", found);
    m.add("table::GroupWritten absent", table::GroupWritten::Absent { at: 1 });
    m.add("table::GroupWritten of another home", table::GroupWritten::OtherHome { at: 1 });
    m.add("table::GroupWritten of another tablet", table::GroupWritten::OtherTablet { at: 1 });
}

fn table_messages(m: &mut Messages) {
    let (name, key) = ("t".to_owned(), b"k".to_vec());
    let mode = table::TableMode::Strong;
    m.add("table::Make", table::Make { table: name.clone(), mode, tablets: 2, everywhere: true });
    let tablet = table::TabletInfo {
        applied: 1,
        records: 2,
        tombstones: 3,
        bytes: 4,
        sessions: 5,
        branches: 11,
        streams: vec![table::StreamInfo { home: 6, leader: 7, held: 8, shown: 9 }],
        stopped: "s".into(),
        first: 12,
        last: 13,
        split: Some(table::SplitInfo { at: 14, into: 15, trouble: "t".into() }),
    };
    let tablets = vec![tablet];
    let (heard_ms, trouble) = (Some(10), "w".to_owned());
    let others = vec![table::RegionInfo { region: 2, heard_ms, is_called_lost: true, trouble }];
    m.add(
        "table::TableInfo",
        table::TableInfo { table: name.clone(), mode, region: 1, regions: 3, tablets, others },
    );
    let prepare =
        table::Prepare { by: 1, region: 2, table: name.clone(), tablets: 1, after: vec![3] };
    m.add("table::Prepare", prepare);
    let prepared = table::Prepared { log: 4, known: vec![(5, 6)], made: vec![7] };
    m.add("table::Prepared", prepared);
    m.add("table::Adopt", table::Adopt { by: 1, table: name.clone(), tablets: vec![vec![2]] });
    m.add("table::Tell", table::Tell { by: 1 });
    let told = table::Told { table: name.clone(), tablet: 1, form: 2, log: 3, message: vec![4] };
    m.add("table::Told", told);
    m.add("table::Write", table::Write { table: name.clone(), session: 7, below: 8 });
    let expect = table::Expect::Version { version: 9 };
    m.add(
        "table::Row",
        table::Row { sequence: 10, expect, key: key.clone(), value: Some(vec![1]) },
    );
    let rest = [table::Expect::Any, table::Expect::Absent];
    for (name, expect) in ["table::Row of any", "table::Row of none"].into_iter().zip(rest) {
        m.add(name, table::Row { sequence: 10, expect, key: key.clone(), value: None });
    }
    m.add("table::Written", table::Written::Version { version: 11 });
    m.add("table::Written found", table::Written::Found { version: 11 });
    m.add("table::Written absent", table::Written::Absent);
    let level = table::Level::Critical { version: 12 };
    let seen = table::Seen { tablet: 1, stream: 2, epoch: 3, number: 4 };
    m.add("table::Seen", seen);
    m.add(
        "table::Read",
        table::Read {
            table: name.clone(),
            level,
            keys: vec![key.clone()],
            seen: vec![seen],
            forgot: 13,
        },
    );
    let levels =
        vec![table::Level::Any, table::Level::Latest, table::Level::Strong, table::Level::Session];
    m.add("table::Level, the others", levels);
    lost_regions_and_tables(m, &name, &key);
    let scan = table::Scan {
        table: name,
        from: key.clone(),
        until: Some(b"l".to_vec()),
        backwards: true,
        rows_max: 13,
    };
    m.add("table::Scan", scan);
    let record = table::Record { version: 14, value: vec![2] };
    let found = table::Found { key: key.clone(), record };
    m.add("table::Found", found.clone());
    m.add("table::Page", table::Page { found: vec![found], next: Some(key) });
}

fn lost_regions_and_tables(m: &mut Messages, name: &str, key: &[u8]) {
    m.add("table::Seal", table::Seal { table: name.to_owned(), lost: 2 });
    m.add("table::Sealed", table::Sealed { are_led: true, waits_for: vec![3], heard_for_ms: 4 });
    let branch = table::BranchName { key: key.to_vec(), stream: 1, epoch: 2, number: 3 };
    let (after, version, value) = (4, 5, Some(vec![6]));
    m.add("table::Branch", table::Branch { name: branch.clone(), after, version, value });
    let asked = table::Branches { table: name.to_owned(), tablet: 7, after: Some(branch.clone()) };
    m.add("table::Branches", asked);
    let (table, keep) = (name.to_owned(), Some(table::Expect::Version { version: 11 }));
    let resolve = table::Resolve { table, branch, session: 8, sequence: 9, below: 10, keep };
    m.add("table::Resolve", resolve);
    m.add("table::Split", table::Split { table: name.to_owned(), tablet: 1, at: 2 });
    m.add("table::DropTable", table::DropTable { table: name.to_owned() });
    m.add("table::Dropped", table::Dropped { away: vec![2] });
    let shown = table::ShownAt { stream: 1, epoch: 2, number: 3, digest: 4 };
    let at = table::ChangesAt { form: 5, life: 6, next: 7, seen: vec![shown] };
    let from = vec![at.clone()];
    let asked = table::Changes { table: name.to_owned(), from, values: true, wait_ms: 8 };
    m.add("table::Changes", asked);
    let (before, after) = (Some(vec![9]), None);
    let changes = vec![table::RecordChange { key: key.to_vec(), before, after }];
    m.add("table::TabletChanges", table::TabletChanges { at, changes });
    m.add("table::Gone", table::Gone { by: 1, table: name.to_owned(), tablets: vec![vec![2]] });
}

#[test]
fn every_message_has_its_golden_bytes() {
    let mut messages = Messages::default();
    chunk_messages(&mut messages);
    log_messages(&mut messages);
    file_messages(&mut messages);
    changes(&mut messages);
    status(&mut messages);
    peer_chunks(&mut messages);
    peer_copies(&mut messages);
    peer_log(&mut messages);
    view_messages(&mut messages);
    scribe_messages(&mut messages);
    table_messages(&mut messages);
    group_messages(&mut messages);
    let made: Vec<String> =
        messages.0.into_iter().map(|(name, bytes)| format!("{name}: {bytes}")).collect();
    let golden: Vec<&str> = GOLDEN.lines().collect();
    for (made, golden) in made.iter().zip(&golden) {
        assert_eq!(made, golden);
    }
    assert_eq!(made.len(), golden.len(), "all messages:\n{}", made.join("\n"));
}

const PAGE: &str = include_str!("../../../docs/formats/wire.md");

/// Name to bytes of the page's golden frames.
fn golden_frames() -> BTreeMap<String, Vec<u8>> {
    let section = PAGE.split("## Golden frames").nth(1).expect("the page has such a section");
    let block = section.split("```").nth(1).expect("with a block of frames");
    let mut frames = BTreeMap::new();
    let mut name = String::new();
    for line in block.lines().filter(|line| !line.is_empty()) {
        match line.strip_suffix(':') {
            Some(of) => name = of.to_owned(),
            None => {
                let digits = line.trim();
                let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
                let bytes = (0..digits.len()).step_by(2).map(byte);
                frames.entry(name.clone()).or_insert_with(Vec::new).extend(bytes);
            }
        }
    }
    frames
}

/// Bytes that are all the same.
struct Same;

impl Rng for Same {
    fn next_u64(&self) -> u64 {
        0x1111_1111_1111_1111
    }
}

/// The page said that a frame's checksum is of the header and the meta; it is of the header and the
/// meta's checksum. A client that was written from the page was refused. Here the page's frames are
/// made by this crate; `second_client.py` makes them from the page's words.
#[test]
fn the_pages_frames_are_this_crates() {
    let frames = golden_frames();
    let made = |kind, opcode, id, status, meta: &dyn Encode, body: &[u8]| {
        let mut out = Vec::new();
        frame::encode(&mut out, kind, opcode, id, status, body.len() as u32, |m| meta.encode(m));
        out.extend_from_slice(body);
        out
    };
    let (request, response) = (FrameKind::Request, FrameKind::Response);
    let call = |sequence| Call {
        session: SessionId(7),
        sequence: Sequence(sequence),
        acknowledged_below: Sequence(sequence),
    };
    let new = file::NewNode {
        kind: NodeKind::File,
        mode: 0o644,
        mtime_ns: 0,
        class: None,
        replace: true,
        parents: true,
        metadata: Vec::new(),
        ..node()
    };
    let put = file::Put { call: call(1), node: new, crc: crc32c(b"hello") };
    let (path, follow, offset, bytes_max, locate) = ("/p".to_owned(), true, 0, 1 << 20, false);
    let get = file::Get { path, follow, offset, bytes_max, locate };
    let list = file::List { path: "/".into(), after: String::new(), entries_max: 1000 };
    let no_file = "there is no such file".to_owned();
    let expected = [
        ("OPEN_SESSION", made(request, OP_OPEN_SESSION, 1, 0, &(), b"")),
        ("OPEN_SESSION answered", made(response, OP_OPEN_SESSION, 1, 0, &SessionId(7), b"")),
        ("PUT", made(request, OP_PUT, 2, 0, &put, b"hello")),
        ("GET", made(request, OP_GET, 3, 0, &get, b"")),
        ("LIST", made(request, OP_LIST, 4, 0, &list, b"")),
        ("GET refused", made(response, OP_GET, 3, Kind::NotFound as u32, &no_file, b"")),
    ];
    for (name, bytes) in &expected {
        assert_eq!(&frames[*name], bytes, "{name}");
    }
    // The greeting: what this client says, and believes.
    let secret = Secret::parse(&"07".repeat(32)).unwrap();
    let mut handshake = Handshake::new(secret.into(), Role::Client, &Same);
    assert_eq!(handshake.output(), frames["HELLO"]);
    assert_eq!(handshake.received(&frames["HELLO answered"]), Ok(false));
    assert_eq!(handshake.output(), frames["PROVE"]);
    assert_eq!(handshake.received(&frames["PROVE answered"]), Ok(true));
    assert_eq!(frames.len(), expected.len() + 4, "each frame of the page is one of these");
}

/// Two operations were missing from the page.
#[test]
fn every_operation_is_on_the_page() {
    let sources = [include_str!("lib.rs"), include_str!("peer.rs"), include_str!("peer_log.rs")];
    let constants = sources.iter().flat_map(|source| source.lines()).filter_map(|line| {
        let (name, number) = line.strip_prefix("pub const OP_")?.split_once(": u16 = ")?;
        Some((name, number.strip_suffix(';')?.strip_prefix("0x")?))
    });
    let mut seen = 0;
    for (name, number) in constants {
        assert!(PAGE.contains(&format!("| `0x{number}` | ")), "OP_{name} 0x{number}");
        seen += 1;
    }
    assert!(seen > 40, "{seen} operations are found in the sources");
}
