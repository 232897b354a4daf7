//! A whole node, driven as the file service drives it: bytes first, then the name. Every name that
//! was acknowledged leads to its bytes, what is in doubt is whole or absent, and what a writer was
//! told of an unclosed file can be salvaged.

use crate::chunk::{crcs, read_raw};
use crate::common::{Answer, Outcome, below, ensure, noise, powered};
use holdfast_base::checksum::crc32c;
use holdfast_base::ids::{ChunkId, Durability, FileId, NodeId, Pointer, Sequence, SessionId, Tier};
use holdfast_base::node::{NodeKind, StorageClass};
use holdfast_base::{Error, Result};
use holdfast_cluster::{Command, Location, Outcome as Made, RawExtent, Remainder};
use holdfast_env::net::NoPeers;
use holdfast_env::{Clock, Disk, Rng, SeededRng};
use holdfast_log::Mode;
use holdfast_node::{Keeper, KeeperOptions, Machine, Node, NodeConfig};
use holdfast_sim::SimDisk;
use holdfast_sim::powercut::{self, CutPlan, Layer, Life, Seen};
use holdfast_view::FoldOptions;
use holdfast_wire::Call;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Stands still unless it is told.
pub struct SimClock(pub AtomicU64);

impl Clock for SimClock {
    fn monotonic_ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn unix_ms(&self) -> u64 {
        1_700_000_000_000 + self.monotonic_ns() / 1_000_000
    }
}

pub type Files = BTreeMap<String, Vec<u8>>;

#[derive(Clone, Default)]
pub struct Model {
    /// Which node it is, since the first start that went well.
    id: Option<NodeId>,
    files: Files,
    /// What files become if the command in doubt was accepted.
    doubt: Option<Files>,
    /// Begun and not closed: what was acknowledged of each chunk's bytes.
    unclosed: BTreeMap<FileId, Vec<(ChunkId, Vec<u8>)>>,
    /// Of class `disk:memory`, by path: everything that was ever put there, and what a process that
    /// ends without a power cut leaves there.
    loose: BTreeMap<String, Vec<Vec<u8>>>,
    written: BTreeMap<String, Vec<u8>>,
    /// Of which the end is in doubt.
    ending: Option<FileId>,
    session: Option<SessionId>,
    sequence: u64,
}

pub struct NodeLayer;

/// Where the files of class `disk:memory` are.
const LOOSE: &str = "/loose";

pub fn config() -> NodeConfig {
    NodeConfig {
        reserve_bytes: 1 << 20,
        segment_bytes: 16 * 4096,
        journal_segment_bytes: 32 << 10,
        chunk_bytes: 96 << 10,
        fold: FoldOptions { snapshot_entries: 0, snapshot_bytes: 0 },
        ..NodeConfig::new("/data").without_threads()
    }
}

struct World<'a> {
    disk: &'a SimDisk,
    node: &'a Arc<Node>,
    clock: &'a SimClock,
    keeper: Keeper,
    rng: SeededRng,
}

impl Layer for NodeLayer {
    type Model = Model;

    fn live(&self, disk: &SimDisk, model: &mut Model, life: Life, seen: &mut Seen) -> Outcome<()> {
        let clock = Arc::new(SimClock(AtomicU64::new(0)));
        let rng = Arc::new(SeededRng::new(life.rng().next_u64()));
        let peers = Arc::new(NoPeers);
        let machine = Machine {
            disk: Arc::new(disk.clone()),
            engine: Arc::new(disk.clone()),
            clock: clock.clone(),
            rng,
            peers,
            meter: Arc::default(),
        };
        let marked = disk.exists(Path::new("/data/REACHED")).unwrap_or(false);
        let node = powered!(disk, "open the node", Node::open(machine, &config(), None));
        let stopped = node.stopped_views();
        ensure(stopped.is_empty() || disk.crashed(), || stopped.join(", "))?;
        seen.sometimes(marked, "log that was held against its mark");
        let id = *model.id.get_or_insert(node.id);
        ensure(node.id == id, || format!("it was node {id} and is {} now", node.id))?;
        powered!(disk, "check the node", check(disk, &node, model, seen)?);
        let options = KeeperOptions { grace_ms: 1000, ..KeeperOptions::default() };
        let keeper = Keeper::new(node.clone(), options);
        let mut world = World { disk, node: &node, clock: &clock, keeper, rng: life.rng() };
        for _ in 0..life.steps {
            powered!(disk, "work", world.step(model, seen)?);
        }
        powered!(disk, "check the node", check(disk, &node, model, seen)?);
        Ok(())
    }

    fn power_was_cut(&self, model: &mut Model) {
        // All else is durable once it is acknowledged.
        model.written.clear();
    }
}

impl World<'_> {
    fn path(&self) -> String {
        format!("/d{}/f{}", below(&self.rng, 2), below(&self.rng, 4))
    }

    fn step(&mut self, model: &mut Model, seen: &mut Seen) -> Outcome<Result<()>> {
        if model.session.is_none() {
            for parent in ["/d0", "/d1"] {
                if let Err(e) = self.make_parent(model, parent.to_owned()) {
                    return Ok(Err(e));
                }
            }
            let (answer, done) = Answer::new();
            self.node.shards.root().open_session(Mode::Synced, done);
            self.node.pump();
            return Ok(answer.get().map(|session| {
                model.session = Some(session);
            }));
        }
        let some = self.any(model);
        match (below(&self.rng, 16), some) {
            (0..=3, _) => self.put(model),
            (4..=5, _) => self.put_loose(model, seen),
            (6..=8, _) => self.stream(model, seen),
            (9..=10, Some(from)) => {
                let to = self.path();
                if to == from {
                    return Ok(Ok(()));
                }
                let mut after = model.files.clone();
                let bytes = after.remove(&from).unwrap_or_default();
                after.insert(to.clone(), bytes);
                self.change(model, Command::Rename { from, to, replace: true }, after)
            }
            (11..=12, Some(path)) => {
                let mut after = model.files.clone();
                after.remove(&path);
                self.change(model, Command::Delete { path, recursive: false }, after)
            }
            (13, _) => Ok(self.node.shards.root().snapshot_now().map(|_| ())),
            (14, _) => {
                // What recovery and retirement leave to do, and then the deleted bytes.
                self.node.retire();
                self.keep(seen)
            }
            _ => self.keep(seen),
        }
    }

    fn keep(&mut self, seen: &mut Seen) -> Outcome<Result<()>> {
        for _ in 0..4 {
            self.clock.0.fetch_add(2_000_000_000, Ordering::Relaxed);
            self.keeper.step(self.clock.monotonic_ns());
        }
        seen.sometimes(
            self.node
                .stores
                .iter()
                .any(|own| own.store.list().iter().any(|info| info.generation.0 > 0)),
            "compaction switch",
        );
        Ok(Ok(()))
    }

    fn any(&self, model: &Model) -> Option<String> {
        let count = model.files.len() as u64;
        let at = (count > 0).then(|| below(&self.rng, count))?;
        model.files.keys().nth(at as usize).cloned()
    }

    fn propose(&self, model: &mut Model, command: &Command, class: Durability) -> Result<Made> {
        model.sequence += 1;
        let call = Call {
            session: model.session.unwrap_or_default(),
            sequence: Sequence(model.sequence),
            acknowledged_below: Sequence(model.sequence),
        };
        let (answer, done) = Answer::new();
        self.node.propose(call, command, class, done);
        self.node.pump();
        answer.get()
    }

    /// Proposes what makes `after` of the files.
    fn change(&self, model: &mut Model, command: Command, after: Files) -> Outcome<Result<()>> {
        model.doubt = Some(after);
        match self.propose(model, &command, Durability::Durable) {
            Ok(_) => {
                model.files = model.doubt.take().unwrap_or_default();
                Ok(Ok(()))
            }
            Err(e) if self.disk.crashed() => Ok(Err(e)),
            Err(e) => Err(format!("{command:?}: {}", e.message)),
        }
    }

    fn pack(
        &self,
        class: StorageClass,
        owner: FileId,
        hint: &str,
        bytes: &[u8],
    ) -> Outcome<Result<Pointer>> {
        let (answer, done) = Answer::new();
        let body = Box::new(bytes.to_vec());
        self.node.pack(class, (0, owner), hint, body, crcs(0, bytes), done);
        self.node.pump();
        match answer.get() {
            Err(e) if !self.disk.crashed() => Err(format!("pack `{hint}`: {}", e.message)),
            answer => Ok(answer),
        }
    }

    fn put(&self, model: &mut Model) -> Outcome<Result<()>> {
        let path = self.path();
        let len = [0, 1, 700, 6000, 20_000][below(&self.rng, 5) as usize];
        let bytes = noise(self.rng.next_u64(), len);
        let location = match bytes.is_empty() {
            true => Location::Inline {},
            false => match self.pack(StorageClass::DEFAULT, FileId(0), &path, &bytes)? {
                Ok(pointer) => Location::Packed { pointer },
                Err(e) => return Ok(Err(e)),
            },
        };
        let mut after = model.files.clone();
        after.insert(path.clone(), bytes.clone());
        self.change(model, put_command(path, &bytes, None, location), after)
    }

    /// A file that is written and not synced before it is acknowledged.
    fn put_loose(&self, model: &mut Model, seen: &mut Seen) -> Outcome<Result<()>> {
        let path = format!("{LOOSE}/f{}", below(&self.rng, 3));
        let len = 1 + below(&self.rng, 9000) as usize;
        let bytes = noise(self.rng.next_u64(), len);
        let class = StorageClass::new(&[Tier::Disk], Durability::Memory);
        let class = class.unwrap_or(StorageClass::DEFAULT);
        model.written.remove(&path);
        model.loose.entry(path.clone()).or_default().push(bytes.clone());
        let pointer = match self.pack(class, FileId(0), &path, &bytes)? {
            Ok(pointer) => pointer,
            Err(e) => return Ok(Err(e)),
        };
        let location = Location::Packed { pointer };
        let command = put_command(path.clone(), &bytes, Some(class), location);
        match self.propose(model, &command, Durability::Memory) {
            Ok(_) => {
                seen.sometimes(true, "file that was not synced");
                model.written.insert(path, bytes);
                Ok(Ok(()))
            }
            Err(e) if self.disk.crashed() => Ok(Err(e)),
            Err(e) => Err(format!("put `{path}`: {}", e.message)),
        }
    }

    /// A large file: begun, written chunk by chunk, and mostly closed.
    fn stream(&self, model: &mut Model, seen: &mut Seen) -> Outcome<Result<()>> {
        let path = self.path();
        let begin = Command::Begin { path: path.clone(), class: None, mode: 0o644, mtime: 1 };
        let begun = self.propose(model, &begin, Durability::Durable);
        let file = match begun {
            Ok(Made::File { file }) => file,
            Ok(other) => return Err(format!("begin: {other:?}")),
            Err(e) => return Ok(Err(e)),
        };
        model.unclosed.insert(file, Vec::new());
        for _ in 0..1 + below(&self.rng, 2) {
            if let Err(e) = self.write_chunk(model, file)? {
                return Ok(Err(e));
            }
        }
        if below(&self.rng, 4) == 0 {
            seen.sometimes(true, "file left unclosed");
            return Ok(Ok(()));
        }
        let chunks = model.unclosed.get(&file).cloned().unwrap_or_default();
        let mut bytes: Vec<u8> = chunks.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
        let extents: Vec<RawExtent> = chunks
            .iter()
            .map(|(chunk, bytes)| RawExtent { chunk: *chunk, length: bytes.len() as u64 })
            .collect();
        for extent in &extents {
            self.node.seal_soon(extent.chunk, extent.length, Durability::Durable);
        }
        let mut remainder = None;
        if below(&self.rng, 2) == 0 {
            let end = noise(self.rng.next_u64(), 1 + below(&self.rng, 9000) as usize);
            let pointer = match self.pack(StorageClass::DEFAULT, file, "", &end)? {
                Ok(pointer) => pointer,
                Err(e) => return Ok(Err(e)),
            };
            seen.sometimes(true, "file with a remainder");
            remainder = Some(Remainder { pointer, length: end.len() as u64 });
            bytes.extend(end);
        }
        let mut after = model.files.clone();
        after.insert(path.clone(), bytes.clone());
        let close = Command::Close {
            file,
            path,
            size: bytes.len() as u64,
            crc: None,
            extents,
            remainder,
            mode: 0o644,
            mtime: 1,
            replace: true,
            metadata: Vec::new(),
        };
        model.ending = Some(file);
        let closed = self.change(model, close, after)?;
        if closed.is_ok() {
            model.ending = None;
            model.unclosed.remove(&file);
        }
        Ok(closed)
    }

    fn make_parent(&self, model: &mut Model, path: String) -> Result<()> {
        let make = Command::MakeDir {
            path,
            kind: NodeKind::Directory,
            mode: 0o755,
            mtime: 1,
            class: None,
            parents: true,
        };
        self.propose(model, &make, Durability::Durable).map(|_| ())
    }

    /// Allocates a chunk and appends to it until it has enough.
    fn write_chunk(&self, model: &mut Model, file: FileId) -> Outcome<Result<()>> {
        let (answer, done) = Answer::new();
        model.sequence += 1;
        let call = Call {
            session: model.session.unwrap_or_default(),
            sequence: Sequence(model.sequence),
            acknowledged_below: Sequence(model.sequence),
        };
        self.node.allocate_raw(call, file, StorageClass::DEFAULT, done);
        self.node.pump();
        let grant = match answer.get() {
            Ok(grant) => grant,
            Err(e) if self.disk.crashed() => return Ok(Err(e)),
            Err(e) => return Err(format!("allocate: {}", e.message)),
        };
        let Some(chunks) = model.unclosed.get_mut(&file) else { return Ok(Ok(())) };
        chunks.push((grant.chunk, Vec::new()));
        let Some((_, acknowledged)) = chunks.last_mut() else { return Ok(Ok(())) };
        let Some(own) = self.node.stores.iter().next() else { return Ok(Ok(())) };
        for _ in 0..1 + below(&self.rng, 2) {
            let body = noise(self.rng.next_u64(), 1 + below(&self.rng, 30_000) as usize);
            let at = acknowledged.len() as u64;
            let (answer, done) = Answer::<u64>::new();
            let sums = crcs(at, &body);
            let class = Durability::Durable;
            own.store.append_raw(grant.chunk, at, Box::new(body.clone()), sums, class, done);
            self.node.pump();
            match answer.get() {
                Ok(_) => acknowledged.extend_from_slice(&body),
                Err(e) if self.disk.crashed() => return Ok(Err(e)),
                Err(e) => return Err(format!("append: {}", e.message)),
            }
        }
        Ok(Ok(()))
    }
}

fn put_command(
    path: String,
    bytes: &[u8],
    class: Option<StorageClass>,
    location: Location,
) -> Command {
    Command::Put {
        path,
        kind: NodeKind::File,
        mode: 0o644,
        mtime: 1,
        size: bytes.len() as u64,
        crc: crc32c(bytes),
        class,
        location,
        replace: true,
        parents: true,
        metadata: Vec::new(),
    }
}

/// Every file below a directory but the loose ones, its bytes read and verified.
pub fn read_tree(node: &Node, path: &str, files: &mut Files) -> Result<()> {
    let page = node.shards.root().read(|view, _| view.list(path, None, 100))??;
    for entry in page.entries {
        let below = format!("{}/{}", path.trim_end_matches('/'), entry.name);
        if below == LOOSE {
            continue;
        }
        if entry.info.kind.is_container() {
            read_tree(node, &below, files)?;
            continue;
        }
        let Some(own) = node.stores.iter().next() else { continue };
        let bytes = match entry.info.location {
            Location::Inline {} => Vec::new(),
            Location::Packed { pointer } => own.store.read_needle(pointer)?.bytes.to_vec(),
            Location::Extents {} => {
                let parts = node.shards.root().read(|view, _| {
                    view.extents(entry.info.id).map(|(extents, rest)| (extents.to_vec(), rest))
                })?;
                let (extents, remainder) = parts.unwrap_or_default();
                let mut bytes = Vec::new();
                for extent in extents {
                    bytes.extend(read_raw(&own.store, extent.chunk, 0, extent.length)?);
                }
                if let Some(remainder) = remainder {
                    bytes.extend(own.store.read_needle(remainder.pointer)?.bytes.to_vec());
                }
                bytes
            }
        };
        if bytes.len() as u64 != entry.info.size {
            return Err(Error::corrupt(format!("`{below}` has {} bytes", bytes.len())));
        }
        files.insert(below, bytes);
    }
    Ok(())
}

/// Sizes, for messages.
fn brief(files: &Files) -> Vec<(&str, usize)> {
    files.iter().map(|(path, bytes)| (path.as_str(), bytes.len())).collect()
}

fn check(
    disk: &SimDisk,
    node: &Arc<Node>,
    model: &mut Model,
    seen: &mut Seen,
) -> Outcome<Result<()>> {
    let status = node.shards.root().status();
    seen.sometimes(status.snapshot.is_some(), "snapshot boot");
    let mut files = Files::new();
    if let Err(e) = read_tree(node, "/", &mut files) {
        if disk.crashed() {
            return Ok(Err(e));
        }
        return Err(format!("read the files: {}", e.message));
    }
    if let Some(after) = model.doubt.take_if(|after| *after == files) {
        seen.sometimes(after != model.files, "command in doubt went through");
        model.files = after;
        if let Some(file) = model.ending {
            model.unclosed.remove(&file);
        }
    }
    ensure(files == model.files, || {
        format!("found {:?} where {:?} should be", brief(&files), brief(&model.files))
    })?;
    (model.doubt, model.ending) = (None, None);
    if let Err(e) = check_loose(disk, node, model, seen)? {
        return Ok(Err(e));
    }
    check_unclosed(disk, node, model, seen)
}

/// What was only written may be gone after a power cut, or refuse to be read. It is never something
/// else than what was once put there, and the end of the process alone takes nothing.
fn check_loose(disk: &SimDisk, node: &Node, model: &Model, seen: &mut Seen) -> Outcome<Result<()>> {
    let Some(own) = node.stores.iter().next() else { return Ok(Ok(())) };
    for (path, versions) in &model.loose {
        let info = match node.shards.root().read(|view, _| view.lookup(path)) {
            Ok(info) => info,
            Err(e) => return Ok(Err(e)),
        };
        let found = match info.map(|info| info.location) {
            Some(Location::Packed { pointer }) => match own.store.read_needle(pointer) {
                Ok(read) => Some(read.bytes.to_vec()),
                Err(e) if disk.crashed() => return Ok(Err(e)),
                Err(_) => None,
            },
            _ => None,
        };
        seen.sometimes(found.is_none(), "file lost that was not synced");
        let known = found.as_ref().is_none_or(|bytes| versions.contains(bytes));
        ensure(known, || format!("`{path}` has bytes that nobody put there"))?;
        let kept = model.written.get(path).is_none_or(|bytes| Some(bytes) == found.as_ref());
        ensure(kept, || format!("`{path}` is not as it was written, and there was power"))?;
    }
    Ok(Ok(()))
}

fn check_unclosed(
    disk: &SimDisk,
    node: &Node,
    model: &Model,
    seen: &mut Seen,
) -> Outcome<Result<()>> {
    let unclosed = match node.shards.root().read(|view, _| view.unclosed()) {
        Ok(unclosed) => unclosed,
        Err(e) => return Ok(Err(e)),
    };
    for (file, chunks) in &model.unclosed {
        let known = unclosed.iter().find(|known| known.file == *file);
        let known = known.ok_or_else(|| format!("the unclosed file {file} is gone"))?;
        for (chunk, acknowledged) in chunks.iter().filter(|(_, bytes)| !bytes.is_empty()) {
            ensure(known.chunks.contains(chunk), || format!("{file} lost chunk {chunk}"))?;
            let Some(own) = node.stores.iter().next() else { continue };
            match read_raw(&own.store, *chunk, 0, u64::MAX >> 1) {
                Ok(bytes) => ensure(bytes.starts_with(acknowledged), || {
                    format!("{file}: {} of {} bytes", bytes.len(), acknowledged.len())
                })?,
                Err(e) if disk.crashed() => return Ok(Err(e)),
                Err(e) => return Err(format!("read unclosed {file}: {}", e.message)),
            }
            seen.sometimes(true, "recovery of open raw chunk");
        }
    }
    if disk.crashed() {
        // Housekeeping says so.
        return Ok(Err(Error::retry("power")));
    }
    let findings: Vec<String> = node.findings();
    let bad = findings.iter().find(|f| {
        !f.contains("ended within a write")
            && !f.contains("does not know")
            && !f.contains("quarantine")
            // The bytes that were written before the seal of a chunk whose class is `memory`.
            && !f.contains("of them can be verified; what is left is served")
    });
    ensure(bad.is_none(), || format!("a finding: {bad:?}"))?;
    Ok(Ok(()))
}

pub fn plan(seed: u64, steps: u64, stride: u64) -> CutPlan {
    CutPlan { seed, steps, stride, outcomes: 3 }
}

#[test]
fn a_node_keeps_its_promises_wherever_the_power_is_cut() {
    let mut seen = Seen::default();
    let mut outcomes = 0;
    outcomes += powercut::explore(&NodeLayer, plan(0, 6, 1), &mut seen).unwrap();
    for seed in 100..106 {
        outcomes += powercut::explore(&NodeLayer, plan(seed, 50, 29), &mut seen).unwrap();
    }
    println!("node: {outcomes} outcomes");
    seen.assert_all(&[
        "snapshot boot",
        "compaction switch",
        "recovery of open raw chunk",
        "file left unclosed",
        "file with a remainder",
        "file that was not synced",
        "file lost that was not synced",
        "command in doubt went through",
        "second cut",
        "log that was held against its mark",
    ]);
}

#[test]
fn no_sync_of_the_node_can_be_left_out() {
    let plans: Vec<CutPlan> = (0..10).map(|seed| plan(seed, 3, 3)).collect();
    crate::common::prove_sites(&NodeLayer, "node.", &plans);
}

/// A packed chunk was compacted, and before the old generation's readers were done all that was
/// left in it was deleted. Housekeeping proposed the unlink of the current generation first; the
/// entry went through, the store refused (an older file was there), and nobody came back for it.
#[test]
fn a_doomed_chunk_loses_its_old_generation_first() {
    for seed in 0..12 {
        powercut::undisturbed(&NodeLayer, plan(seed, 60, 1)).unwrap();
    }
}
