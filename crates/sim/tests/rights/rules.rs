//! Clients with rules, against every operation there is: each request is sent once about what the
//! rules cover and once about its like that they do not. An operation of the page's table that this
//! file does not know fails, so none is added without a decision about such clients.

use super::*;
use holdfast_base::codec::Decode;
use holdfast_base::ids::{
    ChunkId, Cookie, Durability, FileId, Generation, Pointer, SessionId, Slot,
};
use holdfast_base::ids::{Sequence, Tier};
use holdfast_base::node::{NodeKind, StorageClass};
use holdfast_cluster::{ChunkKind, Command, Location, Outcome};
use holdfast_wire::file::{Action, NewNode};
use holdfast_wire::{self as wire, Call, admin, chunk, file, log, scribe, slab, table, view};

const TOKEN: u64 = 7;

impl World {
    fn do_it(&self, command: Command) -> Outcome {
        // What names none is the first one's.
        let shard = self.node.shard_of(&command).unwrap_or(0);
        let done = |done| {
            self.node.propose_in(shard, Call::default(), &command, Durability::Durable, done);
        };
        self.node.wait_for(done).unwrap()
    }

    fn make_token(&self, name: &str, id: u64, rules: &[&str]) {
        self.change(ClusterCommand::PutToken {
            name: name.to_owned(),
            id,
            until_s: 1000,
            now_s: 0,
            rules: rules.iter().map(|rule| (*rule).to_owned()).collect(),
        });
    }

    /// A directory with one file of each kind.
    pub fn fill(&self, root: &'static str) -> Part {
        // A topic of items of the same name, with a view to be ridden.
        self.views.make_topic(&root[1..]).unwrap();
        self.views.run(&disk_view(&root[1..])).unwrap();
        let path = |name: &str| format!("{root}/{name}");
        let store = self.node.stores.iter().next().unwrap().id;
        let allocate = |kind, owner| {
            let outcome = self.do_it(Command::AllocateChunk {
                kind,
                owner,
                node: NodeId(1),
                replicas: vec![store],
                tier: Tier::Disk,
                durability: Durability::Durable,
            });
            let Outcome::Chunk { chunk } = outcome else { panic!("{outcome:?}") };
            chunk
        };
        let put = |path: String, location: Location, size| {
            let outcome = self.do_it(Command::Put {
                path,
                kind: NodeKind::File,
                mode: 0o644,
                mtime: 1,
                size,
                crc: 0,
                class: None,
                location,
                replace: false,
                parents: true,
                metadata: Vec::new(),
            });
            let Outcome::File { file } = outcome else { panic!("{outcome:?}") };
            file
        };
        let packed = allocate(ChunkKind::Packed, FileId(0));
        let pointer = Pointer { chunk: packed, slot: Slot(0), cookie: Cookie(5) };
        let small = put(path("small"), Location::Packed { pointer }, 100);
        put(path("empty"), Location::Inline {}, 0);
        let begun =
            self.do_it(Command::Begin { path: path("begun"), class: None, mode: 0o644, mtime: 1 });
        let Outcome::File { file: begun } = begun else { panic!("{begun:?}") };
        Part { root, small, pointer, begun, raw: allocate(ChunkKind::Raw, begun) }
    }
}

/// What a directory has to ask about.
pub struct Part {
    root: &'static str,
    small: FileId,
    pointer: Pointer,
    begun: FileId,
    raw: ChunkId,
}

fn disk_view(topic: &str) -> view::ViewName {
    view::ViewName { topic: topic.to_owned(), kind: view::ViewKind::Disk {}, part: 0, of: 1 }
}

fn call() -> Call {
    Call { session: SessionId(0), sequence: Sequence(0), acknowledged_below: Sequence(0) }
}

fn new_node(path: String) -> NewNode {
    NewNode {
        path,
        kind: NodeKind::File,
        mode: 0o644,
        mtime_ns: 1,
        class: None,
        replace: true,
        parents: true,
        metadata: Vec::new(),
    }
}

fn change(action: Action) -> Vec<u8> {
    file::Change { call: call(), action }.to_bytes()
}

impl Part {
    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.root)
    }

    /// Requests that are about this part alone: the operation, its message, and whether it changes
    /// anything.
    fn requests(&self) -> Vec<(u16, Vec<u8>, bool)> {
        let small = self.path("small");
        let run = chunk::Read { chunk: self.raw, generation: Generation(0), offset: 0, bytes: 1 };
        let object = |file| {
            chunk::ReadObject { pointer: self.pointer, offset: 0, bytes: 1, file }.to_bytes()
        };
        let append = chunk::Append {
            chunk: self.raw,
            at: 0,
            durability: Durability::Durable,
            crcs: Vec::new(),
        };
        let get = |path: &str, follow| {
            let path = path.to_owned();
            file::Get { path, follow, offset: 0, bytes_max: 1000, locate: false }.to_bytes()
        };
        let new = || new_node(self.path("new"));
        let close =
            file::Close { call: call(), file: self.begun, node: new(), extents: Vec::new() };
        let topic = || self.root[1..].to_owned();
        let read =
            log::Read { topic: topic(), from: Index(1), entries_max: 1, wait: false }.to_bytes();
        let entries = vec![log::Entry { bytes: b"one".to_vec() }];
        let append_entry = log::Append { topic: topic(), synced: true, entries };
        let (looks, changes) = (false, true);
        let (retain_bytes, retain_ms) = (Some(1 << 30), None);
        let set = log::Set { topic: topic(), create: false, retain_bytes, retain_ms };
        let mut all = vec![
            (wire::OP_CHUNK_APPEND, append.to_bytes(), changes),
            (wire::OP_CHUNK_READ, run.to_bytes(), looks),
            (wire::OP_CHUNK_LOCATE, run.to_bytes(), looks),
            (wire::OP_CHUNK_READ_OBJECT, object(self.small), looks),
            (wire::OP_LOG_APPEND, append_entry.to_bytes(), changes),
            (wire::OP_LOG_READ, read, looks),
            (wire::OP_LOG_TRIM, log::Trim { topic: topic(), before: Index(0) }.to_bytes(), changes),
            (wire::OP_LOG_INFO, topic().to_bytes(), looks),
            (wire::OP_LOG_SET, set.to_bytes(), changes),
            (wire::OP_LOG_RETENTION, topic().to_bytes(), looks),
            (wire::OP_LOG_VERIFY, log::Verify { topic: topic(), from: Index(1) }.to_bytes(), looks),
            (wire::OP_LOOKUP, file::Lookup { path: small.clone(), follow: true }.to_bytes(), looks),
            (
                wire::OP_LOOKUP,
                file::Lookup { path: small.clone(), follow: false }.to_bytes(),
                looks,
            ),
            (wire::OP_GET, get(&small, true), looks),
            (wire::OP_GET, get(&self.path("empty"), false), looks),
            (wire::OP_PUT, file::Put { call: call(), node: new(), crc: 0 }.to_bytes(), changes),
            (wire::OP_BEGIN, file::Begin { call: call(), node: new() }.to_bytes(), changes),
            (
                wire::OP_ALLOCATE,
                file::Allocate { call: call(), file: self.begun }.to_bytes(),
                changes,
            ),
            (wire::OP_CLOSE, close.to_bytes(), changes),
            (
                wire::OP_LIST,
                file::List { path: self.root.to_owned(), after: String::new(), entries_max: 9 }
                    .to_bytes(),
                looks,
            ),
            (wire::OP_USAGE, self.root.to_owned().to_bytes(), looks),
            (wire::OP_EXTENTS, file::ExtentsOf { file: self.begun, from: 0 }.to_bytes(), looks),
            (wire::OP_REMAINDER, file::Remainder { file: self.begun, crc: 0 }.to_bytes(), changes),
        ];
        all.extend(self.items());
        all.extend(self.category());
        all.extend(self.table());
        all
    }

    /// Requests about a category of the part's name.
    fn category(&self) -> Vec<(u16, Vec<u8>, bool)> {
        let category = self.root[1..].to_owned();
        let categories = vec![category.clone()];
        let read = scribe::Read { category, from: Index(1), bytes_max: 1, wait: false };
        let ask = scribe::Ask { spool: 1, categories: categories.clone() };
        let named = categories[0].clone();
        let word = scribe::Word { category: named.clone(), knows: Index(0), drained: None };
        let say = scribe::Say { spool: 1, name: "a".to_owned(), words: vec![word] };
        let reader = |next| {
            let (category, reader) = (named.clone(), "r".to_owned());
            scribe::Reader { category, reader, next }
        };
        let keep = scribe::Keep {
            category: categories[0].clone(),
            retain_bytes: Some(0),
            retain_ms: None,
            hold_bytes: None,
            hold_ms: None,
            hourly_files: None,
        };
        vec![
            (wire::OP_SCRIBE_APPEND, scribe::Append { categories }.to_bytes(), true),
            (wire::OP_SCRIBE_ASK, ask.to_bytes(), false),
            (wire::OP_SCRIBE_SAY, say.to_bytes(), true),
            (wire::OP_SCRIBE_READ, read.to_bytes(), false),
            (wire::OP_SCRIBE_KEEP, keep.to_bytes(), true),
            (wire::OP_SCRIBE_READER, reader(None).to_bytes(), false),
            (wire::OP_SCRIBE_READER, reader(Some(Index(1))).to_bytes(), true),
        ]
    }

    /// Requests about a table of the part's name.
    fn table(&self) -> Vec<(u16, Vec<u8>, bool)> {
        let table = || self.root[1..].to_owned();
        let make = table::Make {
            table: table(),
            mode: table::TableMode::Timeline,
            tablets: 1,
            everywhere: false,
        };
        let write = table::Write { table: table(), session: 1, below: 1 };
        let read = table::Read {
            table: table(),
            level: table::Level::Any,
            keys: vec![b"k".to_vec()],
            seen: Vec::new(),
            forgot: 0,
        };
        let group = table::Group { table: table(), session: 1, sequence: 1, below: 1 };
        let (from, until, rows_max) = (Vec::new(), None, 1);
        let seal = table::Seal { table: table(), lost: 1 };
        let branches = table::Branches { table: table(), tablet: 0, after: None };
        let branch = table::BranchName { key: b"k".to_vec(), stream: 0, epoch: 1, number: 1 };
        let resolve = table::Resolve {
            table: table(),
            branch,
            session: 1,
            sequence: 1,
            below: 1,
            keep: None,
        };
        let changes = table::Changes { table: table(), from: Vec::new(), values: true, wait_ms: 0 };
        let scan = table::Scan { table: table(), from, until, backwards: false, rows_max };
        vec![
            (wire::OP_TABLE_MAKE, make.to_bytes(), true),
            (wire::OP_TABLE_DESCRIBE, table().to_bytes(), false),
            (wire::OP_TABLE_WRITE, write.to_bytes(), true),
            (wire::OP_TABLE_GROUP, group.to_bytes(), true),
            (wire::OP_TABLE_READ, read.to_bytes(), false),
            (wire::OP_TABLE_READ_GROUP, read.to_bytes(), false),
            (wire::OP_TABLE_SCAN, scan.to_bytes(), false),
            (wire::OP_TABLE_CHANGES, changes.to_bytes(), false),
            (wire::OP_TABLE_SEAL, seal.to_bytes(), true),
            (wire::OP_TABLE_BRANCHES, branches.to_bytes(), false),
            (wire::OP_TABLE_RESOLVE, resolve.to_bytes(), true),
            (
                wire::OP_TABLE_SPLIT,
                table::Split { table: table(), tablet: 0, at: 1 }.to_bytes(),
                true,
            ),
            (wire::OP_TABLE_DROP, table::DropTable { table: table() }.to_bytes(), true),
        ]
    }

    /// Requests about a topic of items of the part's name.
    fn items(&self) -> Vec<(u16, Vec<u8>, bool)> {
        let topic = || self.root[1..].to_owned();
        let (looks, changes) = (false, true);
        let collection =
            view::Collection { name: "c".into(), hashed: slab::Hashed::Until(b'/'), json: false };
        let key = view::Key { collection: 1, key: b"k".to_vec() };
        let (reached, at) = (Index(0), None);
        let get_item = view::Get { topic: topic(), reached, at, keys: vec![key] };
        let scan = view::Scan {
            topic: topic(),
            reached,
            at,
            collection: 1,
            prefix: b"k/".to_vec(),
            after: None,
            keys_max: 1,
        };
        let board = view::Board {
            view: disk_view(&topic()),
            low: 0,
            high: 1,
            collections: None,
            keys_only: true,
            versions: false,
            since: Index(0),
            below: None,
            fields: None,
            reached,
            dedicated: false,
            at: None,
            behind: None,
        };
        let mark = view::Mark { topic: topic(), call: call() };
        let find = view::Find {
            topic: topic(),
            reached,
            collection: "c".into(),
            field: "f".into(),
            value: b"v".to_vec(),
            after: None,
            keys_max: 1,
        };
        let sum = view::Sum { view: disk_view(&topic()), low: 0, high: 1, reached, at };
        let horizon = view::Horizon { topic: topic(), call: call(), index: Index(0) };
        let doubt = view::Doubt { view: disk_view(&topic()), index: Index(9) };
        vec![
            (wire::OP_VIEW_CATALOG, topic().to_bytes(), looks),
            (wire::OP_VIEW_SESSION, topic().to_bytes(), changes),
            (wire::OP_VIEW_MAKE, view::Make { topic: topic(), collection }.to_bytes(), changes),
            (
                wire::OP_VIEW_CHANGE,
                view::Change { topic: topic(), call: call() }.to_bytes(),
                changes,
            ),
            (wire::OP_VIEW_HORIZON, horizon.to_bytes(), changes),
            (wire::OP_VIEW_MARK, mark.to_bytes(), changes),
            (wire::OP_VIEW_GET, get_item.to_bytes(), looks),
            (wire::OP_VIEW_SCAN, scan.to_bytes(), looks),
            (wire::OP_VIEW_FIND, find.to_bytes(), looks),
            (wire::OP_VIEW_SUM, sum.to_bytes(), looks),
            (wire::OP_VIEW_STATUS, topic().to_bytes(), looks),
            (wire::OP_RIDE_BEGIN, board.to_bytes(), looks),
            (wire::OP_RIDE_DOUBT, doubt.to_bytes(), looks),
        ]
    }

    pub fn all_requests(&self) -> Vec<(u16, Vec<u8>, bool)> {
        let named = self.changes().into_iter();
        let named = named.map(|action| (wire::OP_CHANGE, change(action), true));
        self.requests().into_iter().chain(named).collect()
    }

    /// Changes of names, which one operation carries out.
    fn changes(&self) -> Vec<Action> {
        let (file, chunk, path) = (self.begun, self.raw, self.path("small"));
        let class = StorageClass::DEFAULT;
        let (mode, mtime_ns, metadata) = (Some(0o600), None, None);
        vec![
            Action::Make { node: new_node(self.path("new")) },
            Action::SetAttributes { path: path.clone(), mode, mtime_ns, metadata },
            Action::Salvage { file, path: self.path("saved") },
            Action::Abandon { file },
            Action::SetClass { path, class },
            Action::Seal { file, chunk, acknowledged: 0 },
            Action::Delete { path: self.path("none"), recursive: true },
        ]
    }
}

/// Of two parts, or of no part: for those who may do everything.
fn for_others(own: &Part, other: &Part) -> Vec<(u16, Vec<u8>)> {
    let rename = |from: String, to: String| change(Action::Rename { from, to, replace: true });
    let object = chunk::ReadObject { pointer: other.pointer, offset: 0, bytes: 1, file: own.small };
    let close = |file: FileId, path: String| {
        file::Close { call: call(), file, node: new_node(path), extents: Vec::new() }.to_bytes()
    };
    let packed =
        chunk::Read { chunk: own.pointer.chunk, generation: Generation(0), offset: 0, bytes: 1 };
    let link = Action::Symlink { path: own.path("l"), target: "/out".into(), mtime_ns: 1 };
    let salvage = Action::Salvage { file: own.begun, path: other.path("s") };
    vec![
        (wire::OP_REGION, Vec::new()),
        (wire::OP_UNCLOSED, Vec::new()),
        (wire::OP_LOG_INFO, String::new().to_bytes()),
        (wire::OP_SCRIBE_STATUS, Vec::new()),
        (wire::OP_TABLE_LIST, Vec::new()),
        (wire::OP_VIEW_STATUS, String::new().to_bytes()),
        (wire::OP_CHANGE, rename(own.path("small"), other.path("new"))),
        (wire::OP_CHANGE, rename(other.path("small"), own.path("new"))),
        (wire::OP_CHANGE, rename(own.path("link"), own.path("moved"))),
        (wire::OP_CHANGE, change(link)),
        (wire::OP_CHANGE, change(salvage)),
        (wire::OP_CLOSE, close(own.begun, other.path("new"))),
        (wire::OP_CLOSE, close(other.begun, own.path("new"))),
        (wire::OP_CHUNK_READ, packed.to_bytes()),
        (wire::OP_CHUNK_READ_OBJECT, object.to_bytes()),
        (
            wire::OP_LIST,
            file::List { path: "/".into(), after: String::new(), entries_max: 9 }.to_bytes(),
        ),
        // Over a link that an administrator made.
        (wire::OP_LOOKUP, file::Lookup { path: own.path("link/small"), follow: false }.to_bytes()),
        (wire::OP_LOOKUP, file::Lookup { path: own.path("link"), follow: true }.to_bytes()),
        (wire::OP_USAGE, own.path("link").to_bytes()),
    ]
}

/// Of a region of tables in several.
fn of_region(by: u8) -> Vec<(u16, Vec<u8>)> {
    let prepare =
        table::Prepare { by, region: 0, table: "t".into(), tablets: 1, after: Vec::new() };
    let adopt = table::Adopt { by, table: "t".into(), tablets: Vec::new() };
    vec![
        (wire::OP_TABLE_PREPARE, prepare.to_bytes()),
        (wire::OP_TABLE_ADOPT, adopt.to_bytes()),
        (wire::OP_TABLE_TELL, table::Tell { by }.to_bytes()),
        (
            wire::OP_TABLE_GONE,
            table::Gone { by, table: "t".into(), tablets: Vec::new() }.to_bytes(),
        ),
    ]
}

pub fn of_admin() -> Vec<(u16, Vec<u8>, bool)> {
    let order = admin::Order::RevokeToken { name: "nobody".into() };
    let new = admin::NewToken { name: "b".into(), rules: Vec::new(), ttl_s: 1 };
    vec![
        (wire::OP_STATUS, Vec::new(), false),
        (wire::OP_CLUSTER, Vec::new(), false),
        (wire::OP_HELD, Vec::new(), false),
        (wire::OP_SLOWED, Vec::new(), false),
        (wire::OP_LOG_HOST, Vec::new(), false),
        (wire::OP_TOKENS, Vec::new(), false),
        (wire::OP_SHARDS, Vec::new(), false),
        (wire::OP_ORDER, order.to_bytes(), true),
        (wire::OP_TOKEN_CREATE, new.to_bytes(), true),
        (wire::OP_VIEW_RUN, disk_view("in").to_bytes(), true),
        (wire::OP_VIEW_STOP, disk_view("in").to_bytes(), true),
    ]
}

fn client(name: &str, id: u64) -> Who {
    let serial = holdfast_env::net::token_serial(id);
    Who::Named(Arc::new(Named { role: Role::Token, name: name.into(), serial, until_s: i64::MAX }))
}

/// What two parts come to, for a client that may change the first.
#[test]
fn rules_allow_what_they_cover_of_every_operation_and_nothing_else() {
    let world = World::new();
    let (own, other) = (world.fill("/in"), world.fill("/inside"));
    world.do_it(Command::Symlink { path: "/in/link".into(), target: "/inside".into(), mtime: 1 });
    world.do_it(Command::Symlink { path: "/in/near".into(), target: "small".into(), mtime: 1 });
    world.make_token(
        "reads",
        TOKEN,
        &["fs:/in:r", "log:in:r", "log:view/in:r", "log:scribe/in:r", "log:table/in:r", "admin:r"],
    );
    world.make_token(
        "writes",
        TOKEN,
        &[
            "fs:/in:rw",
            "log:in:rw",
            "log:view/in:rw",
            "log:scribe/in:rw",
            "log:table/in:rw",
            "admin:rw",
        ],
    );
    world.make_token(
        "elsewhere",
        TOKEN,
        &[
            "fs:/in/small/below:rw",
            "log:i:rw",
            "log:view/i:rw",
            "log:scribe/i:rw",
            "log:table/i:rw",
        ],
    );

    let page = page();
    let by_rule = |right: &str| matches!(right, "data" | "admin");
    let mut unseen: Vec<u16> =
        page.iter().filter(|(_, right)| by_rule(right)).map(|(opcode, _)| *opcode).collect();
    let mut denied = |who: &str, opcode: u16, meta: &[u8]| {
        unseen.retain(|o| *o != opcode);
        let answer = ask(&world.connect(client(who, TOKEN)), opcode, meta);
        answer.is_some_and(|(kind, _)| kind == Kind::Denied)
    };
    for who in ["reads", "writes", "elsewhere"] {
        for (opcode, meta, _) in other.all_requests() {
            assert!(denied(who, opcode, &meta), "{who} {opcode:#06x} of another");
        }
        for (i, (opcode, meta)) in for_others(&own, &other).into_iter().enumerate() {
            let is_object = opcode == wire::OP_CHUNK_READ_OBJECT;
            // The file is its own, and the object is not that file's: it hears that.
            assert!(denied(who, opcode, &meta) || is_object, "{who} {opcode:#06x}, {i}");
        }
    }
    // What looks first: what changes may take away what is asked for.
    let mut requests: Vec<_> = own.all_requests().into_iter().chain(of_admin()).collect();
    requests.sort_by_key(|(_, _, changes)| *changes);
    for (opcode, meta, changes) in &requests {
        assert!(denied("elsewhere", *opcode, meta), "elsewhere {opcode:#06x}");
        assert_eq!(denied("reads", *opcode, meta), *changes, "reads {opcode:#06x}");
    }
    for (opcode, meta, _) in &requests {
        assert!(!denied("writes", *opcode, meta), "writes {opcode:#06x}");
    }
    world.make_token("region", TOKEN, &["region:1:rw"]);
    for (by, who) in [(1, "region"), (2, "region"), (1, "writes")] {
        for (opcode, meta) in of_region(by) {
            let may = (by, who) == (1, "region");
            assert_eq!(denied(who, opcode, &meta), !may, "{who} as region {by}: {opcode:#06x}");
        }
    }
    for (opcode, meta, _) in &requests {
        assert!(denied("region", *opcode, meta), "region {opcode:#06x}");
    }
    let near = file::Lookup { path: "/in/near".into(), follow: true }.to_bytes();
    assert!(!denied("reads", wire::OP_LOOKUP, &near), "a link that stays inside");
    assert_eq!(unseen, [0u16; 0], "operations without a decision about clients with rules");
}

/// The object of a file that may be read is that file's: else its id would open all objects.
#[test]
fn an_object_is_read_as_part_of_its_own_file_alone() {
    let world = World::new();
    let (own, other) = (world.fill("/in"), world.fill("/out"));
    world.make_token("a", TOKEN, &["fs:/in:r"]);
    let read = |pointer: Pointer, file: FileId| {
        let meta = chunk::ReadObject { pointer, offset: 0, bytes: 1, file }.to_bytes();
        ask(&world.connect(client("a", TOKEN)), wire::OP_CHUNK_READ_OBJECT, &meta).unwrap()
    };
    let (kind, said) = read(other.pointer, own.small);
    assert!(kind == Kind::NotFound && said.contains("open it again"), "{said}");
    let (_, said) = read(own.pointer, own.small);
    assert!(!said.contains("open it again"), "{said}");
    assert_eq!(read(other.pointer, other.small).0, Kind::Denied);
}

/// Rights of a name were those of whoever was given the name later.
#[test]
fn a_token_is_worth_what_it_was_made_for_until_it_ends_or_is_revoked_over_open_connections_too() {
    let world = World::new();
    world.fill("/in");
    world.make_token("a", TOKEN, &["fs:/in:r"]);
    let connection = world.connect(client("a", TOKEN));
    let lookup = file::Lookup { path: "/in/small".into(), follow: true }.to_bytes();
    assert_eq!(ask(&connection, wire::OP_LOOKUP, &lookup), None);
    world.calendar.0.store(1_000_999, Ordering::Relaxed);
    assert_eq!(ask(&connection, wire::OP_LOOKUP, &lookup), None, "the last second counts");
    world.calendar.0.store(1_001_000, Ordering::Relaxed);
    assert!(ended(&connection, wire::OP_LOOKUP).contains("has ended"));
    world.calendar.0.store(0, Ordering::Relaxed);
    // Two count at most, until they are gone.
    drop(connection);
    let connection = world.connect(client("a", TOKEN));
    world.change(ClusterCommand::RemoveToken { name: "a".into() });
    assert!(ended(&connection, wire::OP_LOOKUP).contains("was revoked"));
    world.make_token("a", TOKEN + 1, &["fs:/in:rw"]);
    drop(connection);
    // Also one that nobody has ever asked with.
    let connection = world.connect(client("a", TOKEN));
    assert!(ended(&connection, wire::OP_LOOKUP).contains("was revoked"));
    drop(connection);
    let connection = world.connect(client("a", TOKEN + 1));
    assert_eq!(ask(&connection, wire::OP_LOOKUP, &lookup), None);
    // A certificate of the name is its holder, and no other name's.
    let certified = world.connect(named(Role::Client, "a"));
    assert_eq!(ask(&certified, wire::OP_LOOKUP, &lookup), None);
    let other = world.connect(named(Role::Client, "b"));
    assert_eq!(ask(&other, wire::OP_LOOKUP, &lookup).unwrap().0, Kind::Denied);
}

/// A close sealed all chunks that it named before anybody looked whose they are: what was
/// acknowledged of another's upload, and of every object in a packed chunk, was gone.
#[test]
fn a_file_is_closed_over_its_own_chunks_alone() {
    let world = World::new();
    let (own, other) = (world.fill("/in"), world.fill("/out"));
    world.make_token("a", TOKEN, &["fs:/:rw"]);
    let close = |who: Who, chunks: &[(ChunkId, u64)]| {
        let raw = |(chunk, bytes): &(ChunkId, u64)| file::Extent::Raw {
            chunk: *chunk,
            generation: Generation(0),
            bytes: *bytes,
        };
        let extents = chunks.iter().map(raw).collect();
        let node = new_node("/in/new".into());
        let close = file::Close { call: call(), file: own.begun, node, extents };
        ask(&world.connect(who), wire::OP_CLOSE, &close.to_bytes()).unwrap()
    };
    for who in [Who::Owner, client("a", TOKEN)] {
        for chunk in [other.raw, own.pointer.chunk] {
            let (kind, said) = close(who.clone(), &[(chunk, 1)]);
            assert!(
                kind == Kind::Invalid && said.contains("were allocated for this one")
                    || kind == Kind::Denied,
                "{said}"
            );
        }
        let (kind, said) = close(who, &[(own.raw, u64::MAX), (own.raw, 2)]);
        assert!(kind == Kind::Invalid && said.contains("longer than any file"), "{said}");
    }
    let seal = Action::Seal { file: own.begun, chunk: own.pointer.chunk, acknowledged: 0 };
    let (kind, said) = ask(&world.connect(Who::Owner), wire::OP_CHANGE, &change(seal)).unwrap();
    assert!(kind == Kind::Invalid && said.contains("packed"), "{said}");
}

/// Sessions are numbers that are easy to guess: with another's and its next number a client took its
/// requests from it, and their answers were those to its own.
#[test]
fn a_client_with_rules_uses_sessions_that_it_opened_itself() {
    let world = World::new();
    world.fill("/in");
    world.make_token("a", TOKEN, &["fs:/in:rw"]);
    world.make_token("b", TOKEN, &["fs:/in:rw"]);
    let open = |who: Who| {
        let connection = world.connect(who);
        let mut request = Vec::new();
        let opcode = wire::OP_OPEN_SESSION;
        frame::encode(&mut request, FrameKind::Request, opcode, 7, 0, 0, |_| ());
        connection.receive(&request).unwrap();
        world.node.pump();
        let answer = connection.take();
        let Ok(Decoded::Frame(header)) = frame::decode(&answer) else { panic!("no session") };
        let meta = &answer[HEADER_BYTES..HEADER_BYTES + header.meta_bytes as usize];
        SessionId::from_bytes(meta).unwrap()
    };
    let (of_a, of_owner) = (open(client("a", TOKEN)), open(Who::Owner));
    let fenced = |who: &str, session: SessionId| {
        let call = Call { session, ..call() };
        let put = file::Put { call, node: new_node("/in/new".into()), crc: 0 };
        let end = session.to_bytes();
        let requests = [(wire::OP_PUT, put.to_bytes()), (wire::OP_END_SESSION, end)];
        requests.map(|(opcode, meta)| {
            let answer = ask(&world.connect(client(who, TOKEN)), opcode, &meta);
            answer.is_some_and(|(kind, said)| kind == Kind::Fenced && said.contains("open one"))
        })
    };
    assert_eq!(fenced("b", of_a), [true, true]);
    assert_eq!(fenced("a", of_owner), [true, true]);
    assert_eq!(fenced("a", SessionId(of_owner.0 + 1000)), [true, true]);
    assert_eq!(fenced("a", of_a), [false, false]);
}
