//! A node's chunks from their allocation to their seal: which stores they go to, raw ones made and
//! written, all of them sealed by the log's word and then by every replica. A chunk on one store
//! of this node takes the short way: no set, no messages.

use super::replicas::{ReplicaSet, Replicator, Wanted};
use super::{Node, RawGrant, allocation};
use holdfast_base::ids::{ChunkId, Durability, FileId, Generation, StoreId, Tier};
use holdfast_base::limits::CHUNK_BYTES;
use holdfast_base::node::StorageClass;
use holdfast_base::{Error, Kind, Result};
use holdfast_chunk::{ChunkSpec, Done, Store};
use holdfast_cluster::placement::{self, Ask, COPIES, Taken};
use holdfast_cluster::{Chunk, ChunkState};
use holdfast_cluster::{ChunkKind, ClusterView, Command, Outcome, StoreState};
use holdfast_env::planted;
use holdfast_wire::Call;
use std::sync::Arc;

/// How long a seal that the log did not take waits for its repetition.
const SEAL_AGAIN_MS: u64 = 1000;

/// Where a new chunk goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    pub tier: Tier,
    pub durability: Durability,
    pub replicas: Vec<StoreId>,
    /// Copies that it should have; repair makes up for those that are missing.
    pub copies: u8,
    pub capacity: u64,
}

/// Where a new chunk was made.
#[derive(Clone)]
pub(super) enum Writer {
    /// One store of this node.
    Alone(Store),
    /// Which may have ended already.
    Set(Arc<ReplicaSet>),
}

/// Where a chunk's bytes can be had.
pub enum Source {
    /// In a store of this node, and nowhere else.
    Own(Store),
    /// On several nodes, or on others.
    Replicas(Vec<StoreId>),
}

impl Node {
    /// Whether this node has stores, or keeps views alone.
    fn keeps_chunks(&self) -> bool {
        self.cluster.read_last(|view| view.keeps_chunks(self.id))
    }

    /// Stores for a new chunk of `tier` that takes `least_bytes` or more; `None`: none has room.
    pub(super) fn spot(
        &self,
        tier: Tier,
        durability: Durability,
        least_bytes: u64,
    ) -> Result<Option<Spot>> {
        let alone = |own: &super::OwnStore| {
            let (replicas, capacity) = (vec![own.id], own.chunk_bytes().max(least_bytes));
            Spot { tier, durability, replicas, copies: 1, capacity }
        };
        let (hosts, closed) = self.cluster.read(|view, _| {
            let closed = view.stores().filter(|(_, info)| info.state == StoreState::ReadOnly);
            (several_hosts(view, tier), closed.map(|(id, _)| id).collect::<Vec<StoreId>>())
        })?;
        let own = self.stores.for_chunk(tier, least_bytes, &closed);
        let is_closed = |own: &super::OwnStore| own.tier == tier && closed.contains(&own.id);
        if !hosts
            && own.is_none()
            && let Some(own) = self.stores.iter().find(|own| is_closed(own))
        {
            return Err(Error::read_only(format!(
                "place bytes on tier `{}`: store {} is to take none: say `holdfast node store {} writable`, or add a store",
                tier.name(),
                own.id,
                own.id.0
            )));
        }
        // Who keeps views alone has what is written through it on others, be it a single one.
        let alone_here = !hosts && self.keeps_chunks();
        if alone_here || (durability == Durability::Memory && own.is_some()) {
            return Ok(own.map(alone));
        }
        let copies = if hosts && durability == Durability::Durable { COPIES } else { 1 };
        let seed = self.machine.rng.next_u64();
        let ask = Ask { copies, tier, preferred: own.filter(|_| self.near).map(|_| self.id), seed };
        let (replicas, capacity) = self.cluster.read(|view, _| {
            let replicas = place_trusted(view, ask, &self.replicator)?;
            let sizes = replicas.iter().filter_map(|id| view.store(*id));
            let capacity = sizes.map(|info| self.stores.chunk_bytes_of(info.capacity)).min();
            Ok::<_, Error>((replicas, capacity.unwrap_or(CHUNK_BYTES).max(least_bytes)))
        })??;
        Ok(Some(Spot { tier, durability, replicas, copies: copies as u8, capacity }))
    }

    /// As [`Node::spot`], on the first tier of `class` that has room.
    pub(super) fn spot_of(&self, class: StorageClass) -> Result<Spot> {
        let mut refusal = None;
        for tier in class.tiers() {
            match self.spot(tier, class.durability(), 0) {
                Ok(Some(spot)) => return Ok(spot),
                Ok(None) => {}
                Err(e) => refusal = Some(e),
            }
        }
        Err(refusal.unwrap_or_else(|| self.stores.refusal(class)))
    }

    fn allocate_command(&self, kind: ChunkKind, owner: FileId, spot: &Spot) -> Command {
        let (node, replicas) = (self.id, spot.replicas.clone());
        let (tier, durability) = (spot.tier, spot.durability);
        if spot.copies as usize == replicas.len() {
            return Command::AllocateChunk { kind, owner, node, replicas, tier, durability };
        }
        let copies = spot.copies;
        Command::AllocateCopies { kind, owner, node, replicas, copies, tier, durability }
    }

    /// Allocates and makes the next raw chunk of an unclosed file.
    pub fn allocate_raw(
        self: &Arc<Node>,
        call: Call,
        file: FileId,
        class: StorageClass,
        done: Done<RawGrant>,
    ) {
        let spot = match self.spot_of(class) {
            Ok(spot) => spot,
            Err(e) => return done(Err(e)),
        };
        let node = self.clone();
        let made = move |spot: Spot, made: Result<(ChunkId, Writer)>| {
            let (chunk, writer) = match made {
                Ok(made) => made,
                Err(e) => return done(Err(e)),
            };
            if let Writer::Set(set) = writer {
                node.forget_old_sets();
                // One that has ended already refuses the first append: its writer seals and moves.
                node.replicator.keep_set(set);
            }
            let Spot { tier, durability, capacity, .. } = spot;
            done(Ok(RawGrant { chunk, tier, durability, capacity }));
        };
        self.allocate(call, ChunkKind::Raw, (file.shard(), file), spot, made);
    }

    /// Allocates a chunk of a shard and makes it on its stores. Calls back on a thread that may wait.
    pub(super) fn allocate(
        self: &Arc<Node>,
        call: Call,
        kind: ChunkKind,
        (shard, owner): (u16, FileId),
        spot: Spot,
        done: impl FnOnce(Spot, Result<(ChunkId, Writer)>) + Send + 'static,
    ) {
        let command = self.allocate_command(kind, owner, &spot);
        let durable = allocation(spot.tier, spot.durability);
        let node = self.clone();
        let allocated = move |outcome: Result<Outcome>| {
            let workers = node.workers.clone();
            // Making the chunk's file waits for the disk; this callback must not.
            workers.run(move || match outcome {
                Ok(Outcome::Chunk { chunk }) => node.make(chunk, kind, owner, spot, done),
                Ok(_) => {
                    let what = "allocate a chunk: the view answered something else";
                    done(spot, Err(Error::bug(what)));
                }
                Err(e) => done(spot, Err(e)),
            });
        };
        self.propose_in(shard, call, &command, durable, Box::new(allocated));
    }

    /// Makes a chunk on its stores. The repetition of a raw one's allocation that went through finds
    /// it there, on the stores that the first one chose.
    fn make(
        self: &Arc<Node>,
        chunk: ChunkId,
        kind: ChunkKind,
        owner: FileId,
        spot: Spot,
        done: impl FnOnce(Spot, Result<(ChunkId, Writer)>) + Send + 'static,
    ) {
        let raw = kind == ChunkKind::Raw;
        let fold = self.shard_of_chunk(chunk);
        let known = fold.and_then(|fold| {
            fold.read(|view, _| {
                let path = if raw { view.files_of(chunk, 1).pop() } else { None };
                (view.chunks().get(chunk).map(|c| c.replicas.clone()), path)
            })
        });
        let (replicas, path) = match known {
            Ok((known, path)) => (known.unwrap_or_else(|| spot.replicas.clone()), path),
            Err(e) => return done(spot, Err(e)),
        };
        let spec = match raw {
            true => ChunkSpec::new(chunk, holdfast_chunk::ChunkKind::Raw, owner.0),
            false => ChunkSpec::new(chunk, holdfast_chunk::ChunkKind::Packed, self.id.0 as u64),
        };
        let (durability, capacity_bytes) = (spot.durability, spot.capacity);
        let spec = ChunkSpec { durability, capacity_bytes, ..spec };
        if let Some(store) = self.alone(&replicas) {
            let hint = super::hint_of(path.as_deref().unwrap_or_default());
            let made = match store.create_with_hint(spec, hint) {
                Err(e) if e.kind == Kind::Exists && raw => Ok(()),
                made => made,
            };
            return done(spot, made.map(|()| (chunk, Writer::Alone(store.clone()))));
        }
        ReplicaSet::create(&self.replicator, spec, &replicas, move |set| {
            done(spot, Ok((chunk, Writer::Set(set))));
        });
    }

    /// The store of a chunk that no other node has a part in.
    pub(super) fn alone(&self, replicas: &[StoreId]) -> Option<&Store> {
        match replicas {
            [one] => self.stores.get(*one).map(|own| &own.store),
            _ => None,
        }
    }

    /// Where a chunk can be read; `None` for one that the view does not know (any more).
    pub fn source(&self, chunk: &Chunk) -> Source {
        match self.alone(&chunk.replicas) {
            Some(store) => Source::Own(store.clone()),
            None => Source::Replicas(chunk.replicas.clone()),
        }
    }

    /// Whether some of `replicas` is on a store that is not gone.
    pub fn is_within_reach(&self, replicas: &[StoreId]) -> bool {
        replicas.iter().any(|id| {
            self.stores.get(*id).is_some()
                || self.replicator.directory.place(*id).is_some_and(|place| !place.lost)
        })
    }

    /// Appends to an open raw chunk that is written through this node.
    pub fn append_raw(
        &self,
        chunk: ChunkId,
        at: u64,
        body: Vec<u8>,
        crcs: Vec<u32>,
        durability: Durability,
        done: Done<u64>,
    ) {
        if let Some(set) = self.replicator.open_set(chunk) {
            return set.append_raw(at, Arc::new(body), crcs, durability, done);
        }
        let known = self.read_chunk(chunk, |view, _| view.get(chunk).map(|c| c.replicas.clone()));
        match known {
            Ok(Some(replicas)) => match self.alone(&replicas) {
                Some(store) => store.append_raw(chunk, at, Box::new(body), crcs, durability, done),
                None => done(Err(Error::fenced(format!(
                    "append to chunk `{chunk}`: it is not written through this node (any more); \
                     seal it and go on in a new chunk"
                )))),
            },
            Ok(None) => done(Err(not_known("append to", chunk))),
            Err(e) => done(Err(e)),
        }
    }

    /// Acknowledged bytes of a raw chunk, as far as this node knows: what the seal says, or its
    /// own store or set while it is written here.
    pub fn chunk_length(&self, chunk: &Chunk) -> u64 {
        if chunk.state != ChunkState::Open {
            return chunk.length;
        }
        match self.alone(&chunk.replicas) {
            Some(store) => store.length(chunk.id).unwrap_or(0),
            None if planted!("node.open-read-past-acknowledged") => {
                let own = self.stores.holding(&chunk.replicas);
                own.and_then(|store| store.length(chunk.id).ok()).unwrap_or(0)
            }
            None => self.replicator.open_set(chunk.id).map_or(0, |set| set.acknowledged()),
        }
    }

    /// Whether this node can seal the chunk at its [`Node::chunk_length`]: it is the writer.
    pub fn writes(&self, chunk: &Chunk) -> bool {
        self.alone(&chunk.replicas).is_some() || self.replicator.open_set(chunk.id).is_some()
    }

    /// Reads a run of a raw chunk that has replicas on other nodes, cut at its known length.
    pub fn read_replicated(
        self: &Arc<Node>,
        chunk: &Chunk,
        generation: Generation,
        (offset, bytes): (u64, u32),
        done: Done<super::replicas::Answer>,
    ) {
        let end = self.chunk_length(chunk).min(offset.saturating_add(bytes as u64));
        let bytes = end.saturating_sub(offset) as u32;
        if bytes == 0 {
            return done(Ok(super::replicas::Answer::empty()));
        }
        let wanted = Wanted::Raw { chunk: chunk.id, generation, offset, bytes };
        self.replicator.read(&chunk.replicas, wanted, done);
    }

    /// Sets of chunks that were sealed or deleted by others have nothing to do any more.
    fn forget_old_sets(&self) {
        let open = self.replicator.open_chunks();
        let is_over = |chunk: &ChunkId| {
            let open = |known: &Chunk| known.state == ChunkState::Open;
            self.read_chunk(*chunk, |view, _| !view.get(*chunk).is_some_and(open)).unwrap_or(false)
        };
        for chunk in open.into_iter().filter(is_over) {
            self.replicator.forget_set(chunk);
        }
    }

    /// What a seal proposes: the chunk's replicas, without those that never had it.
    fn holders(&self, set: &ReplicaSet, replicas: Vec<StoreId>) -> Vec<StoreId> {
        let holders = set.holders();
        // With nothing in it, it is nowhere or anywhere.
        if holders.is_empty() { replicas } else { holders }
    }

    /// Proposes a chunk's seal, behind which an entry that needs it may be proposed at once; its
    /// stores follow later.
    pub fn seal_soon(self: &Arc<Node>, chunk: ChunkId, length: u64, durability: Durability) {
        let replicas =
            self.read_chunk(chunk, |view, _| view.get(chunk).map(|c| c.replicas.clone()));
        let Ok(Some(mut replicas)) = replicas else { return };
        if let Some(set) = self.replicator.forget_set(chunk) {
            replicas = self.holders(&set, replicas);
        }
        self.propose_seal(chunk, length, replicas, durability, Box::new(|_| ()));
    }

    /// Has the log decide a chunk's length, then makes its stores follow. Answers the length that
    /// the first seal decided, once a store of this node alone has followed.
    pub(super) fn propose_seal(
        self: &Arc<Node>,
        chunk: ChunkId,
        length: u64,
        replicas: Vec<StoreId>,
        durability: Durability,
        done: Done<u64>,
    ) {
        let node = self.clone();
        self.propose_own(
            Command::SealChunk { chunk, length, replicas },
            durability,
            Box::new(move |outcome| match outcome {
                Ok(Outcome::Sealed { length, replicas }) => {
                    let workers = node.workers.clone();
                    workers.run(move || done(node.follow_seal(chunk, length, &replicas)));
                }
                Ok(_) => done(Err(Error::bug("seal a chunk: the view answered something else"))),
                Err(e) => done(Err(e)),
            }),
        );
    }

    /// Seals a chunk's replicas as the log decided. Waits for an own store that is alone.
    fn follow_seal(
        self: &Arc<Node>,
        chunk: ChunkId,
        length: u64,
        replicas: &[StoreId],
    ) -> Result<u64> {
        if let Some(store) = self.alone(replicas) {
            store.seal(chunk, length).inspect_err(|e| {
                // The keeper may be at it, who has seen the entry too; he looks again in any case.
                if e.kind != Kind::Retry {
                    self.report_failure(format_args!("seal chunk `{chunk}` at {length}"), e);
                }
            })?;
            return Ok(length);
        }
        let node = self.clone();
        self.replicator.seal_replicas(chunk, length, replicas, move |report| {
            for (store, why) in report.short {
                // What lacks nothing is no loss: an empty chunk may never have been made there.
                if length > 0 {
                    node.report_finding(format!("seal chunk `{chunk}` on store `{store}`: {why}"));
                }
                let generation = Generation(0);
                let drop = Command::DropReplica { chunk, generation, store, lost: false };
                // Refused for the last one, whose loss is the leader's to find.
                node.propose_own(drop, Durability::Durable, Box::new(|_| ()));
            }
        });
        Ok(length)
    }

    /// What a writer's seal proposes: length, replicas and class. Ends the chunk's set, if it is
    /// written here.
    fn last_word(
        &self,
        chunk: ChunkId,
        acknowledged: u64,
    ) -> Result<(u64, Vec<StoreId>, Durability)> {
        let known = self.read_chunk(chunk, |view, _| {
            view.get(chunk).map(|known| (known.replicas.clone(), known.durability))
        })?;
        let (replicas, durability) = known.ok_or_else(|| not_known("seal", chunk))?;
        match self.replicator.forget_set(chunk) {
            // Not more than every replica has, whatever a client says.
            Some(set) => {
                let length = acknowledged.min(set.acknowledged());
                Ok((length, self.holders(&set, replicas), durability))
            }
            None => Ok((acknowledged, replicas, durability)),
        }
    }

    /// A writer gives up on a raw chunk, or is done with it: seals it at what it saw acknowledged,
    /// unless that was decided before. Answers the length that was decided.
    pub fn seal_for_writer(self: &Arc<Node>, chunk: ChunkId, acknowledged: u64, done: Done<u64>) {
        match self.last_word(chunk, acknowledged) {
            Ok((_, replicas, _)) if self.alone(&replicas).is_some() => {
                let node = self.clone();
                self.workers.run(move || done(node.seal(chunk, acknowledged)));
            }
            Ok((length, replicas, durability)) => {
                self.propose_seal(chunk, length, replicas, durability, done);
            }
            Err(e) => done(Err(e)),
        }
    }

    /// Has the log decide a chunk's length, and makes its stores follow. Waits for the log, and
    /// for an own store that is alone.
    pub fn seal(self: &Arc<Node>, chunk: ChunkId, length: u64) -> Result<u64> {
        let (length, replicas, durability) = self.last_word(chunk, length)?;
        let command = Command::SealChunk { chunk, length, replicas };
        match self.propose_and_wait(command, durability)? {
            Outcome::Sealed { length, replicas } => self.follow_seal(chunk, length, &replicas),
            _ => Err(Error::bug("seal a chunk: the view answered something else")),
        }
    }

    /// Seals a chunk whose writer has fallen silent: fences its replicas, proposes a length
    /// that holds all that was acknowledged, and has those that reach it follow. May be repeated;
    /// answers the length that the first seal decided.
    pub fn seal_silent(self: &Arc<Node>, chunk: ChunkId, done: Done<u64>) {
        let known = self.read_chunk(chunk, |view, _| view.get(chunk).cloned());
        let known = match known {
            Ok(Some(known)) => known,
            Ok(None) => return done(Err(not_known("seal", chunk))),
            Err(e) => return done(Err(e)),
        };
        if known.state != ChunkState::Open {
            return done(self.follow_seal(chunk, known.length, &known.replicas));
        }
        // If it is written here after all, that ends first.
        self.replicator.forget_set(chunk);
        match self.ended_in_memory(&known.replicas) {
            Ok(true) => return self.seal_ended(&known, done),
            Ok(false) => {}
            Err(e) => return done(Err(e)),
        }
        self.fence_and_seal(known, false, done);
    }

    /// `made`: it was made where nobody held it.
    fn fence_and_seal(self: &Arc<Node>, known: Chunk, made: bool, done: Done<u64>) {
        let (chunk, durability) = (known.id, known.durability);
        let kind = match known.kind {
            ChunkKind::Raw => holdfast_chunk::ChunkKind::Raw,
            ChunkKind::Packed => holdfast_chunk::ChunkKind::Packed,
        };
        let (node, replicas, asked) =
            (self.clone(), known.replicas.clone(), known.replicas.clone());
        let fenced = move |decision: Result<super::replicas::Decision>| match decision {
            // Sealed like this, its writer would make it behind the seal, and fill it.
            Ok(decision)
                if decision.replicas.is_empty() && !planted!("node.absent-chunk-sealed") =>
            {
                if made {
                    let why = "nobody holds it, and nobody can make it: look again";
                    return done(Err(Error::retry(format!("fence chunk `{chunk}`: {why}"))));
                }
                let owner = match known.kind {
                    ChunkKind::Raw => known.owner.0,
                    ChunkKind::Packed => known.node.0 as u64,
                };
                let spec = ChunkSpec { durability, ..ChunkSpec::new(chunk, kind, owner) };
                let spec = ChunkSpec { capacity_bytes: 1, ..spec };
                let again = node.clone();
                let then = move || again.fence_and_seal(known, true, done);
                node.replicator.make_to_fence(spec, &replicas, Box::new(then));
            }
            Ok(decision) => {
                let mut named = decision.replicas;
                named.extend(decision.unheard);
                let named = if named.is_empty() { replicas } else { named };
                node.propose_seal(chunk, decision.length, named, durability, done);
            }
            Err(e) => done(Err(e)),
        };
        self.replicator.fence_replicas(chunk, kind, &asked, Box::new(fenced));
    }

    /// Fixes a retired packed chunk's length: entry first, then the store.
    pub(super) fn seal_packed(self: &Arc<Node>, chunk: ChunkId, store: &Store) {
        let (node, store) = (self.clone(), store.clone());
        self.workers.run(move || {
            let sealed = store.length(chunk).and_then(|length| node.seal(chunk, length));
            if let Err(e) = sealed
                && e.kind != Kind::Retry
            {
                node.report_failure(format_args!("seal packed chunk `{chunk}`"), &e);
            }
        });
    }

    /// As [`Node::seal_packed`], of a chunk with several replicas. Tries again until the log takes
    /// it: nobody else seals for a node that lives.
    pub(super) fn seal_packed_set(self: &Arc<Node>, set: Arc<ReplicaSet>) {
        let (chunk, length) = (set.chunk(), set.end());
        let known = self.read_chunk(chunk, |view, _| {
            view.get(chunk).map(|known| (known.replicas.clone(), known.durability))
        });
        let Ok(Some((replicas, durability))) = known else { return };
        let replicas = self.holders(&set, replicas);
        let node = self.clone();
        let sealed = move |sealed: Result<u64>| match sealed {
            // Nothing will ever be named in it: it may go.
            Ok(0) => node.propose_own(
                Command::CloseChunk { chunk },
                Durability::Durable,
                Box::new(|_| ()),
            ),
            Ok(_) => {}
            Err(e) if e.kind == Kind::Retry => {
                let again = node.clone();
                let retry = move || again.seal_packed_set(set);
                node.replicator.peers.after(SEAL_AGAIN_MS, Box::new(retry));
            }
            Err(e) => node.report_failure(format_args!("seal packed chunk `{chunk}`"), &e),
        };
        self.propose_seal(chunk, length, replicas, durability, Box::new(sealed));
    }
}

fn not_known(doing: &str, chunk: ChunkId) -> Error {
    Error::not_found(format!("{doing} chunk `{chunk}`: the namespace knows no such chunk"))
}

/// Whether stores of a tier are on more than one host, so that chunks have several copies.
pub(super) fn several_hosts(view: &ClusterView, tier: Tier) -> bool {
    let mut hosts = view
        .stores()
        .filter(|(_, info)| info.tier == tier && info.state != holdfast_cluster::StoreState::Gone)
        .filter_map(|(_, info)| Some(view.node(info.node)?.host.as_str()));
    let first = hosts.next();
    hosts.any(|host| Some(host) != first)
}

/// Places a chunk on stores that have not failed this node lately, as long as there are enough.
fn place_trusted(view: &ClusterView, ask: Ask, with: &Replicator) -> Result<Vec<StoreId>> {
    let mut candidates = placement::candidates(view, ask.tier);
    candidates.retain(|candidate| !with.is_suspect(candidate.store));
    let mut taken = Taken::default();
    let mut chosen = Vec::new();
    while chosen.len() < ask.copies {
        let preferred = ask.preferred.filter(|_| chosen.is_empty());
        let next = placement::choose(&candidates, &taken, preferred, ask.seed);
        let Some(next) = next else { break };
        taken.hosts.insert(next.host.clone());
        taken.racks.insert(next.rack.clone());
        chosen.push(next.store);
    }
    let enough = placement::REPLICAS_MIN.min(ask.copies);
    if chosen.len() >= enough { Ok(chosen) } else { placement::place(view, ask) }
}
