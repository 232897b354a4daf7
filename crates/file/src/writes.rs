//! Requests that change something: bytes first, then the entry that names them, then the answer.

use crate::face::FileFace;
use crate::reads::find;
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::ids::{ChunkId, Durability, FileId, SessionId};
use holdfast_base::node::{NodeKind, StorageClass};
use holdfast_base::{Error, Kind, Result, path};
use holdfast_cluster::{
    AllShards, ChunkKind, ChunkState, Command, Location, Outcome, RawExtent, Remainder,
};
use holdfast_env::net::{Parts, Reply, Response};
use holdfast_env::{HoldMutex, planted};
use holdfast_log::Mode;
use holdfast_server::{Request, answer};
use holdfast_wire::{Call, file as msg};
use std::sync::{Arc, Mutex};

/// Answers with the file that a command made.
fn file_of(outcome: Outcome) -> Result<FileId> {
    match outcome {
        Outcome::File { file } => Ok(file),
        other => Err(Error::bug(format!("make a file: the view answered `{other:?}`"))),
    }
}

fn reply_file(reply: Reply, outcome: Result<Outcome>) {
    answer(reply, outcome.and_then(file_of).map(|file| (file.to_bytes(), Parts::None)));
}

fn reply_done(reply: Reply, outcome: Result<Outcome>) {
    answer(reply, outcome.map(|_| (Vec::new(), Parts::None)));
}

/// A file that is being begun, and the directories above it: both are proposed at once, and answered when
/// both are known.
struct Beginning(Mutex<Option<Halves>>);

struct Halves {
    parents: Option<Result<()>>,
    begun: Option<Result<msg::Begun>>,
    reply: Reply,
}

impl Beginning {
    fn new(reply: Reply) -> Arc<Beginning> {
        Arc::new(Beginning(Mutex::new(Some(Halves { parents: None, begun: None, reply }))))
    }

    fn parents(&self, made: Result<()>) {
        self.told(|halves| halves.parents = Some(made));
    }

    fn begun(&self, begun: Result<msg::Begun>) {
        self.told(|halves| halves.begun = Some(begun));
    }

    fn told(&self, tell: impl FnOnce(&mut Halves)) {
        let mut held = self.0.held();
        let mut halves = held.take().expect("each half is told once");
        tell(&mut halves);
        let (Some(parents), Some(begun)) = (&halves.parents, &halves.begun) else {
            *held = Some(halves);
            return;
        };
        let begun = begun.clone().and_then(|begun| parents.clone().map(|()| begun));
        drop(held);
        answer(halves.reply, begun.map(|begun| (begun.to_bytes(), Parts::None)));
    }
}

impl FileFace {
    /// What `put` and `begin` must know before they write bytes for a new node, under one lock: its
    /// class is its own, or that of the nearest directory above; in tables, its kind is that of a
    /// value. Refuses early what `apply` would refuse anyway.
    fn prepare(&self, node: &mut msg::NewNode) -> Result<StorageClass> {
        path::check(&node.path)?;
        self.node.read_all(|all| {
            node.kind = data_kind(all, &node.path)?;
            check_new(all, node)?;
            Ok(class_of(all, node))
        })?
    }

    /// What a refusal comes to: the first answer, if this is a repetition of a request that was
    /// carried out and stands in its own way now.
    fn first_answer(&self, shard: Result<u16>, call: &Call, refusal: Error) -> Result<Outcome> {
        let first = shard.ok().and_then(|shard| self.node.known(shard, call));
        first.unwrap_or(Err(refusal)).and_then(|bytes| Ok(Outcome::from_bytes(&bytes)?))
    }

    /// The time a writer gave, or now: the choice is made here, before the entry.
    fn mtime(&self, given: i64) -> i64 {
        match given {
            msg::MTIME_NOW => self.node.machine.clock.unix_ms() as i64 * 1_000_000,
            given => given,
        }
    }

    pub(crate) fn put(&self, request: Request<'_>) {
        let Some((mut put, body, reply)) = request.decode_with_body::<msg::Put>("put") else {
            return;
        };
        let bytes = body.into_vec();
        let prepared = self
            .prepare(&mut put.node)
            .and_then(|class| Ok((class, checked_crcs(&bytes, put.crc, &put.node.path)?)))
            // Its bytes are not packed in vain while it has to be asked again.
            .and_then(|prepared| Ok((prepared, self.node.shard_to_write(&put.node.path)?)));
        let ((class, crcs), shard) = match prepared {
            Ok(prepared) => prepared,
            Err(e) => {
                return reply_file(
                    reply,
                    self.first_answer(self.node.shard_at(&put.node.path), &put.call, e),
                );
            }
        };
        let (node, size, crc) = (self.node.clone(), bytes.len() as u64, put.crc);
        let durability = class.durability();
        let mtime = self.mtime(put.node.mtime_ns);
        let hint = put.node.path.clone();
        let name = move |location: Result<Location>| {
            let location = match location {
                Ok(location) => location,
                Err(e) => {
                    let doing = format!("put `{}`", put.node.path.escape_debug());
                    return reply.send(Response::error(e.context(doing)));
                }
            };
            let msg::NewNode { path, kind, mode, replace, parents, metadata, class, .. } = put.node;
            let command = Command::Put {
                path,
                kind,
                mode,
                mtime,
                size,
                crc,
                class,
                location,
                replace,
                parents,
                metadata,
            };
            let done = Box::new(move |outcome| reply_file(reply, outcome));
            // Where its bytes are: if the directory was moved meanwhile, this is refused.
            node.propose_in(shard, put.call, &command, durability, done);
        };
        if bytes.is_empty() {
            return name(Ok(Location::Inline {}));
        }
        let packed = Box::new(move |pointer: Result<_>| {
            name(pointer.map(|pointer| Location::Packed { pointer }));
        });
        let bytes_in = if planted!("file.packed-in-the-first-shard") { 0 } else { shard };
        self.node.pack(class, (bytes_in, FileId(0)), &hint, Box::new(bytes), crcs, packed);
    }

    /// The end of a large file, packed beside small ones. Named by the file's close.
    pub(crate) fn remainder(&self, request: Request<'_>) {
        let has_rules = request.within.is_some();
        let Some((remainder, body, reply)) =
            request.decode_with_body::<msg::Remainder>("store a remainder")
        else {
            return;
        };
        let bytes = body.into_vec();
        let prepared = self.unclosed_class(remainder.file).and_then(|class| {
            Ok((class, checked_crcs(&bytes, remainder.crc, "the remainder of a file")?))
        });
        match prepared {
            Ok((class, crcs)) => {
                let (given, file) = (self.given.clone(), remainder.file);
                let done = Box::new(move |pointer: Result<holdfast_base::ids::Pointer>| {
                    if let (Ok(pointer), true) = (&pointer, has_rules) {
                        given.end(file, *pointer);
                    }
                    answer(reply, pointer.map(|p| (p.to_bytes(), Parts::None)));
                });
                self.node.pack(class, (file.shard(), file), "", Box::new(bytes), crcs, done);
            }
            Err(e) => reply.send(Response::error(e)),
        }
    }

    fn unclosed_class(&self, file: FileId) -> Result<StorageClass> {
        let info = self.node.shard_of_file(file)?.read(|view, _| view.info(file))?;
        info.map(|info| info.class).ok_or_else(|| {
            Error::not_found(format!(
                "write file `{file}`: it was closed or abandoned; begin it again"
            ))
        })
    }

    pub(crate) fn begin(&self, request: Request<'_>) {
        let Some((mut begin, reply)) = request.decode::<msg::Begin>("begin a file") else { return };
        let class = match self.prepare(&mut begin.node) {
            Ok(class) => class,
            Err(e) => {
                // The class is what the directory gives now; the file knows its own.
                let class = self.node.read_all(|all| class_of(all, &begin.node));
                let class = class.unwrap_or(StorageClass::DEFAULT);
                let shard = self.node.shard_at(&begin.node.path);
                let begun = self.first_answer(shard, &begin.call, e).and_then(file_of);
                let begun = begun.map(|file| msg::Begun { file, class });
                return answer(reply, begun.map(|begun| (begun.to_bytes(), Parts::None)));
            }
        };
        let beginning = Beginning::new(reply);
        match path::split(&begin.node.path) {
            Some((parent, _)) if begin.node.parents && parent != "/" => {
                let parents = Command::MakeDir {
                    path: parent.to_owned(),
                    kind: NodeKind::Directory,
                    mode: 0o755,
                    mtime: self.mtime(msg::MTIME_NOW),
                    class: None,
                    parents: true,
                };
                let (beginning, unheard) = (beginning.clone(), planted!("file.parents-unheard"));
                let made = Box::new(move |made: Result<Outcome>| match made {
                    // It may not be in the log: asked again, the file is the same.
                    Err(e) if e.kind == Kind::Retry && !unheard => beginning.parents(Err(e)),
                    // If it was refused, so is the close, with the reason.
                    _ => beginning.parents(Ok(())),
                });
                self.node.propose_own(parents, class.durability(), made);
            }
            _ => beginning.parents(Ok(())),
        }
        let command = Command::Begin {
            path: begin.node.path,
            class: begin.node.class,
            mode: begin.node.mode,
            mtime: self.mtime(begin.node.mtime_ns),
        };
        let done = Box::new(move |outcome: Result<Outcome>| {
            beginning.begun(outcome.and_then(file_of).map(|file| msg::Begun { file, class }));
        });
        self.node.propose(begin.call, &command, class.durability(), done);
    }

    pub(crate) fn allocate(&self, request: Request<'_>) {
        let Some((allocate, reply)) = request.decode::<msg::Allocate>("allocate a chunk") else {
            return;
        };
        let class = match self.unclosed_class(allocate.file) {
            Ok(class) => class,
            Err(e) => return reply.send(Response::error(e)),
        };
        let done = Box::new(move |grant: Result<holdfast_node::RawGrant>| {
            let grant = grant.map(|grant| msg::Grant {
                chunk: grant.chunk,
                tier: grant.tier,
                durability: grant.durability,
                capacity: grant.capacity,
            });
            answer(reply, grant.map(|grant| (grant.to_bytes(), Parts::None)));
        });
        self.node.allocate_raw(allocate.call, allocate.file, class, done);
    }

    /// Seals the file's chunks and names it, in one commit of the log; the stores follow.
    pub(crate) fn close(&self, request: Request<'_>) {
        let Some((close, reply)) = request.decode::<msg::Close>("close a file") else { return };
        let class = match self.unclosed_class(close.file) {
            Ok(class) => class,
            // A repeated close finds its file named: the view knows the first answer.
            Err(_) => StorageClass::DEFAULT,
        };
        let (mut extents, mut remainder, mut size) = (Vec::new(), None, 0u64);
        for extent in &close.extents {
            let Some(sum) = size.checked_add(extent.bytes()) else {
                return reply.send(Response::error(Error::invalid(
                    "close a file: its extents are longer than any file: give what was acknowledged",
                )));
            };
            size = sum;
            match *extent {
                msg::Extent::Raw { chunk, bytes, .. } if remainder.is_none() => {
                    extents.push(RawExtent { chunk, length: bytes });
                }
                msg::Extent::Packed { pointer, bytes } if remainder.is_none() => {
                    remainder = Some(Remainder { pointer, length: bytes });
                }
                _ => {
                    return reply.send(Response::error(Error::invalid(
                        "close a file: a packed extent is the last one, and the only one of its kind",
                    )));
                }
            }
        }
        if let Err(e) = self.check_sealed_by(close.file, &extents) {
            return reply_file(reply, self.first_answer(Ok(close.file.shard()), &close.call, e));
        }
        let durability = class.durability();
        for extent in &extents {
            self.node.seal_soon(extent.chunk, extent.length, durability);
        }
        let command = Command::Close {
            file: close.file,
            path: close.node.path,
            size,
            crc: None,
            extents,
            remainder,
            mode: close.node.mode,
            mtime: self.mtime(close.node.mtime_ns),
            replace: close.node.replace,
            metadata: close.node.metadata,
        };
        let done = Box::new(move |outcome| reply_file(reply, outcome));
        self.node.propose(close.call, &command, durability, done);
    }

    /// A chunk is sealed for its own file alone: the view refuses what names another's, and by then
    /// it would have been sealed short.
    fn check_sealed_by(&self, file: FileId, extents: &[RawExtent]) -> Result<()> {
        if planted!("file.seals-anybodys-chunk") {
            return Ok(());
        }
        self.node.read_all(|all| {
            extents.iter().try_for_each(|RawExtent { chunk, .. }| match all.chunk(*chunk)? {
                Some(known) if known.kind == ChunkKind::Raw && known.owner == file => Ok(()),
                Some(_) => Err(Error::invalid(format!(
                    "close file `{file}`: chunk `{chunk}` belongs to another file: name those that were allocated for this one"
                ))),
                None => Err(Error::not_found(format!(
                    "close file `{file}`: there is no chunk `{chunk}`: name those that were allocated for it"
                ))),
            })
        })?
    }

    pub(crate) fn change(&self, request: Request<'_>) {
        let Some((change, reply)) = request.decode::<msg::Change>("change a name") else { return };
        // Only a salvage looks before it says what it proposes.
        let shard = match &change.action {
            msg::Action::Salvage { file, .. } => file.shard(),
            _ => 0,
        };
        let command = match self.command_of(change.action) {
            Ok(command) => command,
            Err(e) => return reply_done(reply, self.first_answer(Ok(shard), &change.call, e)),
        };
        if let Command::SealChunk { chunk, length, .. } = command {
            // Of a packed one nobody but its node knows what is in it.
            let kind =
                self.node.read_chunk(chunk, |view, _| view.get(chunk).map(|known| known.kind));
            return match kind {
                Ok(Some(ChunkKind::Packed)) => reply.send(Response::error(Error::invalid(format!(
                    "seal chunk `{chunk}`: objects of many files are packed in it: its node seals it"
                )))),
                _ => self.seal_for_writer(chunk, length, reply),
            };
        }
        let durability = match self.durability_at(&command) {
            Ok(durability) => durability,
            Err(e) => return reply.send(Response::error(e)),
        };
        let done = Box::new(move |outcome| reply_done(reply, outcome));
        self.node.propose(change.call, &command, durability, done);
    }

    fn command_of(&self, action: msg::Action) -> Result<Command> {
        Ok(match action {
            msg::Action::Make { node } => Command::MakeDir {
                path: node.path,
                kind: node.kind,
                mode: node.mode,
                mtime: self.mtime(node.mtime_ns),
                class: node.class,
                parents: node.parents,
            },
            msg::Action::Symlink { path, target, mtime_ns } => {
                Command::Symlink { path, target, mtime: self.mtime(mtime_ns) }
            }
            msg::Action::Rename { from, to, replace } => Command::Rename { from, to, replace },
            msg::Action::Delete { path, recursive } => Command::Delete { path, recursive },
            msg::Action::SetAttributes { path, mode, mtime_ns, metadata } => {
                Command::SetAttributes { path, mode, mtime: mtime_ns, metadata }
            }
            msg::Action::SetClass { path, class } => Command::SetClass { path, class },
            msg::Action::Abandon { file } => Command::Abandon { file },
            msg::Action::Salvage { file, path } => self.salvage(file, path)?,
            msg::Action::Seal { chunk, acknowledged, .. } => {
                Command::SealChunk { chunk, length: acknowledged, replicas: Vec::new() }
            }
        })
    }

    /// Everything of an unclosed file that was acknowledged, in the order it was allocated.
    fn salvage(&self, file: FileId, path: String) -> Result<Command> {
        let extents = self.node.read_all(|all| {
            let unclosed = all
                .of_file(file)
                .ok()?
                .unclosed()
                .into_iter()
                .find(|unclosed| unclosed.file == file)?;
            let lengths = unclosed.chunks.into_iter().map(|chunk| {
                let known = all.chunk(chunk).ok().flatten();
                let silent = known.is_some_and(|known| {
                    known.state == ChunkState::Open && !self.node.writes(known)
                });
                (chunk, self.chunk_length(all, chunk), known.map(|known| known.state), silent)
            });
            Some(lengths.collect::<Vec<_>>())
        })?;
        let Some(extents) = extents else {
            return Err(Error::not_found(format!(
                "salvage file `{file}`: there is no such unclosed file; see `holdfast fs unclosed`"
            )));
        };
        let silent: Vec<ChunkId> =
            extents.iter().filter(|(.., silent)| *silent).map(|(chunk, ..)| *chunk).collect();
        if !silent.is_empty() {
            // Their writer was another node, or an earlier process of this one.
            silent.iter().for_each(|chunk| self.node.seal_silent(*chunk, Box::new(|_| ())));
            return Err(Error::retry(format!(
                "salvage file `{file}`: {} of its chunks are being sealed; ask again",
                silent.len()
            )));
        }
        for (chunk, length, state, _) in &extents {
            if *state == Some(ChunkState::Open) {
                self.node.seal_soon(*chunk, *length, Durability::Durable);
            }
        }
        let extents = extents
            .into_iter()
            .filter(|(_, length, ..)| *length > 0)
            .map(|(chunk, length, ..)| RawExtent { chunk, length })
            .collect();
        Ok(Command::Salvage { file, path, extents })
    }

    /// A writer gives up on a chunk: seals it at what it saw acknowledged, unless that was
    /// decided before.
    fn seal_for_writer(&self, chunk: ChunkId, acknowledged: u64, reply: Reply) {
        let done = move |sealed: Result<u64>| {
            let sealed = sealed.and_then(|length| {
                if length < acknowledged {
                    return Err(Error::corrupt(format!(
                        "seal chunk `{chunk}`: {acknowledged} bytes were acknowledged, {length} are left"
                    )));
                }
                Ok((Vec::new(), Parts::None))
            });
            answer(reply, sealed);
        };
        self.node.seal_for_writer(chunk, acknowledged, Box::new(done));
    }

    /// Names of `memory` files need no sync; everything else does.
    fn durability_at(&self, command: &Command) -> Result<Durability> {
        let path = match command {
            Command::MakeDir { path, class: None, .. } | Command::Symlink { path, .. } => path,
            Command::MakeDir { class: Some(class), .. } => return Ok(class.durability()),
            Command::SetAttributes { path, .. } | Command::Delete { path, .. } => path,
            _ => return Ok(Durability::Durable),
        };
        self.node.read_all(|all| {
            find(all, path, false)
                .map_or_else(|_| inherited(all, path), |info| info.class)
                .durability()
        })
    }

    pub(crate) fn open_session(&self, request: Request<'_>) {
        let (given, reply, within) = (self.given.clone(), request.reply, request.within);
        let done = Box::new(move |session: Result<SessionId>| {
            if let (Ok(session), Some(within)) = (&session, &within) {
                given.session(*session, &within.client);
            }
            answer(reply, session.map(|session| (session.to_bytes(), Parts::None)));
        });
        // Synced: a session that a power cut takes back would share its id with a later one.
        self.node.shards.root().open_session(Mode::Synced, done);
    }

    pub(crate) fn end_session(&self, request: Request<'_>) {
        let Some((session, reply)) = request.decode::<SessionId>("end a session") else { return };
        let done = Box::new(move |ended: Result<()>| {
            answer(reply, ended.map(|()| (Vec::new(), Parts::None)));
        });
        self.node.end_session(session, done);
    }
}

/// Checksums of the body's blocks, refused when the whole differs from what the client computed.
fn checked_crcs(bytes: &[u8], crc: u32, what: &str) -> Result<Vec<u32>> {
    let crcs = crate::bytes::block_crcs(bytes);
    if crate::bytes::combined(&crcs, bytes.len()) == crc {
        return Ok(crcs);
    }
    Err(Error::retry(format!(
        "store `{}`: the bytes were damaged on their way; send them again",
        what.escape_debug()
    )))
}

/// The class that a node at `path` inherits.
fn class_of(all: &AllShards<'_>, node: &msg::NewNode) -> StorageClass {
    node.class.unwrap_or_else(|| inherited(all, &node.path))
}

/// What a new data node becomes: values in tables are key-values.
fn data_kind(all: &AllShards<'_>, path: &str) -> Result<NodeKind> {
    let parent = match path::split(path) {
        Some((parent, _)) => all.lookup(parent)?,
        None => None,
    };
    Ok(match parent.is_some_and(|parent| parent.kind == NodeKind::Table) {
        true => NodeKind::KeyValue,
        false => NodeKind::File,
    })
}

fn check_new(all: &AllShards<'_>, node: &msg::NewNode) -> Result<()> {
    match all.lookup(&node.path)? {
        Some(there) if there.kind.is_container() => Err(Error::exists(format!(
            "put `{}`: a {} of that name exists; name a file below it",
            node.path.escape_debug(),
            there.kind.name()
        ))),
        // A key-value is replaced without being asked.
        Some(_) if !node.replace && node.kind != NodeKind::KeyValue => Err(Error::exists(format!(
            "put `{}`: it exists; ask to replace it (-f) or choose another name",
            node.path.escape_debug()
        ))),
        _ => Ok(()),
    }
}

pub(crate) fn inherited(all: &AllShards<'_>, path: &str) -> StorageClass {
    let mut above = path;
    while let Some((parent, _)) = path::split(above) {
        if let Ok(info) = find(all, parent, true) {
            return info.class;
        }
        above = parent;
    }
    StorageClass::DEFAULT
}
