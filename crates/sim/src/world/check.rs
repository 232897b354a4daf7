//! The promises, checked: while the schedule runs by samples, after it from every side.

use super::cell::{Cell, SECOND};
use super::client::Client;
use super::{World, locked};
use crate::SimDisk;
use crate::task::spawn;
use holdfast_base::ids::{Index, NodeId, StoreId, Tier};
use holdfast_base::{Error, Result};
use holdfast_chunk::{Store, StoreConfig};
use holdfast_cluster::Chunk;
use holdfast_cluster::moves::unfinished;
use holdfast_cluster::topics::namespace_topic;
use holdfast_cluster::{
    CLUSTER_TOPIC, ChunkState, ClusterView, Location, Namespace, NodeState, repair,
};
use holdfast_env::{Disk, SeededRng};
use holdfast_log::{Log, Scope};
use holdfast_node::Node;
use holdfast_view::{Context, Fold, FoldOptions, FoldStatus, SnapshotStore, View};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Everything is whole again so long after the faults stopped, at most.
const WHOLE_WITHIN_NS: u64 = 90 * SECOND;

/// A store follows what the log decided of its chunks within this.
const FOLLOWS_WITHIN_NS: u64 = 30 * SECOND;

/// A store of a copy of a disk.
pub(super) fn open_store(disk: &SimDisk, id: StoreId) -> Result<Store> {
    for place in ["/data/chunks", "/disk-2"] {
        if !disk.exists(Path::new(place))? {
            continue;
        }
        let config = StoreConfig {
            commit_threads: 0,
            spare_file: false,
            reserve_bytes: 1 << 20,
            ..StoreConfig::new(place)
        };
        let store = Store::open(Arc::new(disk.clone()), Arc::new(SeededRng::new(1)), config)?.0;
        if store.usage().store == id {
            return Ok(store);
        }
    }
    Err(Error::not_found("that store is not on this disk"))
}

impl World {
    /// The cell that has a store now, whoever lived there before.
    pub(super) fn cell_of(&self, store: StoreId) -> Option<&Arc<Cell>> {
        let node = self.cells.iter().find_map(|cell| cell.node())?;
        let of = node.cluster.read(|view, _| view.store(store).map(|info| info.node)).ok()??;
        let ids = locked(&self.shared.ids);
        self.cells.iter().find(|cell| ids.get(&cell.number) == Some(&of))
    }

    /// Whether every chunk has copies on two other disks.
    pub(super) fn can_lose(&self, victim: &Arc<Cell>) -> bool {
        let Some(host) = self.host() else { return false };
        let chunks = host.gather_chunks(|view| {
            let kept = view.iter().filter(|chunk| chunk.state != ChunkState::Doomed);
            // What is in memory is promised to nobody.
            let kept = kept.filter(|chunk| chunk.tier == Tier::Disk);
            kept.map(|chunk| chunk.replicas.clone()).collect::<Vec<_>>()
        });
        let whole = |replicas: &Vec<StoreId>| {
            let others = replicas.iter().filter_map(|store| self.cell_of(*store));
            others.filter(|cell| cell.number != victim.number).count() >= 2
        };
        chunks.is_ok_and(|chunks| chunks.iter().all(whole))
    }

    /// Some sealed chunk's file.
    pub(super) fn sealed_file(&self, cell: &Arc<Cell>) -> Option<PathBuf> {
        let directory = Path::new("/data/chunks");
        let entries = cell.disk().list(directory).ok()?;
        let sealed: Vec<_> =
            entries.into_iter().filter(|entry| entry.name.ends_with(".chunk")).collect();
        let nth = holdfast_env::Rng::next_u64(&self.rng) % sealed.len().max(1) as u64;
        sealed.get(nth as usize).map(|entry| directory.join(&entry.name))
    }

    /// A small file was acknowledged as durable a moment ago: two disks have it, whatever else
    /// they lose.
    pub(super) fn check_synced(&self, gateway: usize, path: &str) {
        let Some(node) = self.cells[gateway - 1].node() else { return };
        let found = node.read_all(|all| {
            let info = all.lookup(path).ok()??;
            let Location::Packed { pointer } = info.location else { return None };
            Some((pointer, all.chunk(pointer.chunk).ok()??.replicas.clone()))
        });
        let Ok(Some((pointer, replicas))) = found else { return };
        if self.schedule.nodes < 2 {
            return;
        }
        let synced = replicas.iter().filter(|store| {
            let Some(cell) = self.cell_of(**store) else { return false };
            let disk = cell.disk().durable_copy();
            open_store(&disk, **store).is_ok_and(|store| store.read_needle(pointer).is_ok())
        });
        let (synced, of) = (synced.count(), replicas.len());
        self.shared.sometimes(synced == 3, "an acknowledged write was on three disks");
        if synced < 2 {
            self.shared.violate(format!(
                "`{path}` was acknowledged, and is synced on {synced} disks (of {of} replicas of {})",
                pointer.chunk
            ));
        }
    }

    /// What a node has been through, for those who want to know that it happened.
    pub(super) fn look_at(&self, node: &Arc<Node>) {
        self.shared.sometimes(node.is_behind(), "answers were labelled as possibly old");
        let told = node.leader.recovery();
        self.shared.sometimes(told.copies_made > 0, "a chunk was copied");
        let states = node.cluster.read(|view, _| {
            let lost = view.nodes().any(|(_, info)| info.state == NodeState::Lost);
            (lost, view.leader().is_some_and(|leader| leader.0 != 1))
        });
        let (lost, other_leads) = states.unwrap_or_default();
        self.shared.sometimes(lost, "a node was lost");
        self.shared.sometimes(other_leads, "another node led");
        let seals = node.gather_chunks(|view| Some(view.iter().any(|c| !c.dropped.is_empty())));
        self.shared.sometimes(seals.unwrap_or_default().contains(&true), "a replica was dropped");
        let generations =
            node.gather_chunks(|view| Some(view.iter().any(|chunk| chunk.generation.0 > 0)));
        let generations = generations.unwrap_or_default().contains(&true);
        self.shared.sometimes(generations, "a chunk was compacted");
        let held = node.gather_chunks(|view| {
            let kept = |chunk: &Chunk| chunk.generation.0 > 0 && view.is_held(chunk.id);
            Some(view.iter().any(kept))
        });
        let held = held.unwrap_or_default().contains(&true);
        self.shared.sometimes(held, "a held slot survived a compaction");
    }

    /// After the faults: nothing is short, nothing differs, nothing is gone.
    pub(super) fn check_quiet(self: &Arc<World>) {
        self.wait_until_whole();
        // What is damaged and was not read since is found, and made good from the other copies.
        self.cells.iter().filter_map(|cell| cell.process()).for_each(|process| process.scrub());
        self.run_for(3 * SECOND);
        self.wait_until_whole();
        if self.shared.is_over() {
            return;
        }
        self.check_models();
        if let Err(what) = self.check_named() {
            self.shared.violate(what);
        }
        for (number, guest) in self.shared.guests.iter().enumerate() {
            let visitor = self.visitor(number, "check");
            self.finish(guest.clone().check(visitor), "checking a guest");
        }
        if !self.shared.is_over() {
            self.check_replicas_soon();
            self.check_views();
            self.check_findings();
        }
    }

    fn wait_until_whole(&self) {
        let since_ns = self.net.now_ns();
        let mut told = String::new();
        while let Some(why) = self.why_not_whole() {
            if self.shared.is_over() {
                return;
            }
            if why != told {
                self.net.note(&format!("not whole yet: {why}"));
                told.clone_from(&why);
            }
            if self.net.now_ns() > since_ns + WHOLE_WITHIN_NS {
                return self.shared.violate(format!("not whole in time: {why}"));
            }
            self.run_for(SECOND);
        }
        self.net.note("whole again");
    }

    pub(super) fn why_not_whole(&self) -> Option<String> {
        for cell in &self.cells {
            let Some(node) = cell.node() else {
                return Some(format!("{} does not run: {:?}", cell.address, cell.refused()));
            };
            let read_only = node.stores.iter().any(|own| own.store.usage().read_only);
            if read_only {
                return Some(format!("a store of {} is read-only", cell.address));
            }
        }
        let host = self.host()?;
        let silent = host.cluster.read(|view, _| {
            let ids = locked(&self.shared.ids);
            // A node whose disk was erased is another one now, and must have been missed.
            let expected = |id: &NodeId| match ids.values().any(|now| now == id) {
                true => NodeState::Live,
                false => NodeState::Lost,
            };
            // A number that was asked for and never used is nobody's.
            let mut used = view.nodes().filter(|(_, info)| info.incarnation != Index(0));
            let other = used.find(|(id, info)| info.state != expected(id));
            other.map(|(id, info)| (id, info.state))
        });
        if let Ok(Some((id, state))) = silent {
            return Some(format!("node {id} does not count as what it is, but as {state:?}"));
        }
        match host.read_all(unfinished) {
            Ok(moves) if moves.is_empty() => {}
            Ok(moves) => return Some(format!("a move is not finished: {:?}", moves[0])),
            Err(e) => return Some(e.to_string()),
        }
        let short = host.read_all_chunks(|shards| {
            host.cluster.read(|view, _| repair::tasks(shards, view)).unwrap_or_default()
        });
        match short {
            Ok(short) if short.is_empty() => {}
            Ok(short) => return Some(format!("{} chunks are short: {:?}", short.len(), short[0])),
            Err(e) => return Some(e.to_string()),
        }
        // Last, for whatever else goes on adds entries, and others see those that are durable.
        let applied = |node: &Node| -> Vec<Index> {
            node.shards.all().map(|(_, fold)| fold.applied()).collect()
        };
        let reached = applied(&host);
        let behind = |cell: &&Arc<Cell>| cell.node().is_some_and(|node| applied(&node) != reached);
        let behind = self.cells.iter().find(behind)?;
        let at = applied(&*behind.node()?);
        Some(format!("{} is at {at:?}, the log's host at {reached:?}", behind.address))
    }

    /// Every name through every gateway: what was acknowledged, the same everywhere.
    fn check_models(self: &Arc<World>) {
        let world = self.clone();
        let checked = async move {
            for number in 0..world.models.len() {
                let paths = locked(&world.models[number]).paths();
                let nodes = world.schedule.nodes;
                let client =
                    Client::new(number, 1, nodes, &world.net, &world.shared, &world.models);
                for path in paths {
                    for gateway in 1..=nodes {
                        world.check_file(&client, number, gateway, &path).await;
                    }
                }
            }
        };
        self.finish(checked, "reading everything");
    }

    /// Lets the world go on until this is done.
    fn finish(&self, what: impl Future<Output = ()> + Send + 'static, doing: &str) {
        let done = Arc::new(AtomicBool::new(false));
        let noticed = done.clone();
        spawn(&self.net, async move {
            what.await;
            noticed.store(true, Ordering::Relaxed);
        });
        let until_ns = self.net.now_ns() + 600 * SECOND;
        while !done.load(Ordering::Relaxed) && !self.shared.is_over() {
            if self.net.now_ns() > until_ns {
                return self.shared.violate(format!("{doing} takes for ever"));
            }
            self.net.step();
        }
    }

    async fn check_file(&self, client: &Client, number: usize, gateway: usize, path: &str) {
        let mut found = Err(Error::retry("not asked"));
        for _ in 0..5 {
            found = client.read(gateway, path).await;
            if found.is_ok() {
                break;
            }
        }
        let found = match found {
            Ok(found) => found,
            Err(e) => return self.shared.violate(format!("read `{path}` at n{gateway}: {e}")),
        };
        let mut model = locked(&self.models[number]);
        if !model.allows(path, found.as_deref()) {
            let (bytes, wanted) = (found.as_ref().map(Vec::len), model.describe(path));
            return self.shared.violate(format!(
                "`{path}` has {bytes:?} bytes at n{gateway} in the end, not {wanted}"
            ));
        }
        model.saw(path, found.as_deref());
    }

    /// Compaction goes on meanwhile: a store may be about to follow, each within its time.
    fn check_replicas_soon(&self) {
        let (mut last, mut since_ns) = (String::new(), self.net.now_ns());
        while let Err(e) = self.check_replicas() {
            if e != last {
                (last, since_ns) = (e, self.net.now_ns());
            }
            if self.net.now_ns() > since_ns + FOLLOWS_WITHIN_NS || self.shared.is_over() {
                return self.shared.violate(last);
            }
            self.run_for(SECOND);
        }
    }

    /// Every counted replica of a sealed chunk holds the same bytes, and no file lies about that an
    /// entry has let go.
    pub(super) fn check_replicas(&self) -> std::result::Result<(), String> {
        let Some(host) = self.host() else { return Ok(()) };
        self.check_leaks(&host)?;
        let chunks: Vec<Chunk> = host
            .gather_chunks(|view| {
                // What was sealed empty may be nowhere.
                let kept = view.iter().filter(|chunk| chunk.is_kept() && chunk.length > 0);
                kept.cloned().collect::<Vec<_>>()
            })
            .unwrap_or_default();
        for chunk in chunks {
            let mut first: Option<(StoreId, Vec<Vec<u8>>)> = None;
            for store in &chunk.replicas {
                let Some(cell) = self.cell_of(*store) else { continue };
                let Some(node) = cell.node() else { continue };
                let content = match self.content(&node, *store, &chunk) {
                    Ok(content) => content,
                    Err(e) => {
                        return Err(format!("chunk `{}` on {}: {e}", chunk.id, cell.address));
                    }
                };
                match &first {
                    None => first = Some((*store, content)),
                    Some((_, before)) if *before == content => {}
                    Some((before, _)) => {
                        return Err(format!(
                            "chunk `{}` differs between stores `{before}` and `{store}`",
                            chunk.id
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    fn check_leaks(&self, host: &Node) -> std::result::Result<(), String> {
        for node in self.cells.iter().filter_map(|cell| cell.node()) {
            for own in node.stores.iter() {
                let list = own.store.list().into_iter();
                let files = list.flat_map(|info| {
                    let beside = own.store.other_generations(info.chunk);
                    let all = beside.into_iter().chain([info.generation]);
                    all.map(move |generation| (info.chunk, generation))
                });
                for (chunk, generation) in files {
                    let leaked = host.read_chunk(chunk, |view, _| match view.get(chunk) {
                        Some(known) => {
                            generation <= known.generation
                                && !view.names_replica(chunk, generation, own.id)
                        }
                        None => view.was_allocated(chunk),
                    });
                    if leaked.unwrap_or_default() {
                        return Err(format!(
                            "store `{}` keeps chunk `{chunk}` generation `{generation}`, which no \
                             entry names: it has {:?} and others {:?}, the log {:?}",
                            own.id,
                            own.store.list_from(chunk, 1),
                            own.store.other_generations(chunk),
                            host.read_chunk(chunk, |view, _| {
                                let known = view.get(chunk)?;
                                let (old, dropped) = (known.old.clone(), known.dropped.clone());
                                Some((known.generation, known.replicas.clone(), old, dropped))
                            })
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    fn content(&self, node: &Node, store: StoreId, chunk: &Chunk) -> Result<Vec<Vec<u8>>> {
        let own = node.stores.get(store).ok_or_else(|| Error::bug("no such store there"))?;
        if chunk.kind == holdfast_cluster::ChunkKind::Raw {
            let mut content = Vec::new();
            let mut at = 0;
            while at < chunk.length {
                let part = (chunk.length - at).min(64 << 10);
                let read = own.store.read_raw(chunk.id, chunk.generation, at, part)?;
                at += read.bytes.len().max(1) as u64;
                content.push(read.bytes.to_vec());
            }
            return Ok(content);
        }
        let info = own.store.list().into_iter().find(|info| info.chunk == chunk.id);
        let info = info.ok_or_else(|| Error::not_found("it is not there"))?;
        if info.generation != chunk.generation {
            let (has, wanted) = (info.generation, chunk.generation);
            return Err(Error::not_found(format!("generation {has} is there, not {wanted}")));
        }
        Ok(vec![info.length.to_le_bytes().to_vec(), info.needles.to_le_bytes().to_vec()])
    }

    /// All views are the same, and the same as the log folded anew.
    pub(super) fn check_views(&self) {
        self.keep_log();
        let Some(host) = self.host() else { return };
        let of_all = |node: &Node| {
            let shards = node.shards.all();
            let shards = shards.map(|(shard, fold)| (namespace_topic(shard), fold.status()));
            let cluster = (CLUSTER_TOPIC.to_owned(), node.cluster.status());
            shards.chain([cluster]).collect::<Vec<_>>()
        };
        for (at, (topic, _)) in of_all(&host).into_iter().enumerate() {
            let shard = u16::try_from(at).unwrap_or_default();
            let fresh = match topic == CLUSTER_TOPIC {
                true => self.new_fold::<ClusterView>(Context::of(&topic)),
                false => self.new_fold::<Namespace>(Context { shard, ..Context::of(&topic) }),
            };
            let fresh = match fresh {
                Ok(fresh) => fresh,
                Err(e) => return self.shared.violate(format!("fold `{topic}` anew: {e}")),
            };
            self.check_stale(&topic, &fresh);
            for cell in &self.cells {
                let Some(node) = cell.node() else { continue };
                match of_all(&node).iter().find(|(of, _)| *of == topic) {
                    Some((_, status)) => self.compare(cell, &topic, status, &fresh),
                    None => self.shared.violate(format!("{} has no `{topic}`", cell.address)),
                }
            }
        }
    }

    /// What the log says of deposed leaders, read without a view: each of their commands was refused.
    fn check_stale(&self, topic: &str, fresh: &FoldStatus) {
        let (mut next, mut claim, mut stale) = (Index(1), 0, 0);
        let (mut term, mut late) = ((0, 0), 0);
        // Of each node that numbers entries: below what all are answered, and those seen from there on.
        let mut numbered: BTreeMap<u64, (u64, BTreeSet<u64>)> = BTreeMap::new();
        while let Ok(entries) = self.archive.log.read(topic, next, 4096, 1 << 20, Scope::Durable)
            && let Some((last, _)) = entries.last()
        {
            next = Index(last.0 + 1);
            for (index, entry) in &entries {
                // docs/formats/log.md: version, kind (4 is a claim, 5 one for a term; 16 more where a
                // node has numbered it), six zeros, the claim it is under.
                let field = |n: usize| {
                    let bytes = entry.get(8 + 8 * n..16 + 8 * n)?;
                    Some(u64::from_le_bytes(bytes.try_into().ok()?))
                };
                let Some((kind, under)) = entry.get(1).zip(field(0)) else { continue };
                let is_claim = matches!(kind & 0x0f, 4 | 5);
                if !is_claim && under != 0 && under != claim {
                    stale += 1;
                    continue;
                }
                let is_new = match (kind & 0x10 != 0, field(1), field(2), field(3)) {
                    (true, Some(node), Some(number), Some(below)) => {
                        let (answered, seen) = numbered.entry(node).or_default();
                        let is_late = number < *answered;
                        *answered = below.max(*answered);
                        !is_late && seen.insert(number)
                    }
                    _ => true,
                };
                // A term: the entry at which its leader queued, and its number.
                let leader = entry.get(48..52).and_then(|bytes| bytes.try_into().ok());
                let of = field(4).zip(leader.map(u32::from_le_bytes));
                let of = of.filter(|_| kind & 0x0f == 5);
                let is_late = of.is_some_and(|of| of < term);
                if is_claim && is_new && !is_late {
                    (claim, term) = (index.0, of.unwrap_or(term));
                }
                late += (is_claim && is_late) as u64;
            }
        }
        self.shared.sometimes(stale > 0, "a deposed leader's command was refused");
        self.shared.sometimes(late > 0, "a claim for a term that was over was refused");
        if fresh.epoch.0 != claim {
            self.shared.violate(format!(
                "topic `{topic}` was claimed last at {claim}, its view takes commands of the claim at {}",
                fresh.epoch
            ));
        }
        if stale != fresh.fenced {
            self.shared.violate(format!(
                "topic `{topic}` has {stale} commands of deposed leaders, its view refuses {}",
                fresh.fenced
            ));
        }
    }

    fn compare(&self, cell: &Cell, what: &str, status: &FoldStatus, fresh: &FoldStatus) {
        if let Some(e) = &status.stopped {
            let at = &cell.address;
            return self.shared.violate(format!("the {what} view of {at} has stopped: {e}"));
        }
        let same = status.digest == fresh.digest;
        if status.applied == fresh.applied && !same {
            self.shared.violate(format!(
                "the {what} view of {} differs from the log folded anew, at {}",
                cell.address, status.applied
            ));
        }
        self.shared.sometimes(status.applied == fresh.applied && same, "a view equals its replay");
    }

    fn new_fold<V: View>(&self, context: Context) -> Result<FoldStatus> {
        let disk = Arc::new(SimDisk::new(1));
        let snapshots = SnapshotStore { disk, directory: PathBuf::from("/fresh") };
        let options = FoldOptions { snapshot_entries: 0, snapshot_bytes: 0 };
        let log = self.archive.log.clone();
        let fold = Fold::<V>::open_follower(log, context, snapshots, options)?;
        Ok(fold.status())
    }

    /// What nodes found is what the faults did.
    fn check_findings(&self) {
        for cell in &self.cells {
            if let Some(node) = cell.node() {
                self.shared.keep_findings(cell.number, &node);
            }
        }
        for (cell, finding) in locked(&self.shared.findings).iter() {
            // On the unlucky node's media anything may be damaged.
            let torn = finding.contains("were acknowledged") && *cell != self.unlucky + 1;
            let lost = finding.contains("no copy left") || torn;
            // Nothing that happens here is a reason not to open a shard that was added.
            if lost || finding.starts_with("open shard ") {
                self.shared.violate(format!("n{cell} found: {finding}"));
            }
        }
    }
}
