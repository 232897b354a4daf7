//! The namespace view: directories, files and chunks of one shard, as a deterministic fold of the
//! shard's topic. Wholly in memory, about 80 bytes a small file. `apply` decides and is total: it
//! takes any command, reads no clock, setting or randomness, and refuses whole or applies whole.
//! The log's runtime calls `apply`, `snapshot` and `restore`; the file face calls the reads.

mod copies;
mod moves;
mod read;
mod snapshot;

#[cfg(test)]
mod tests;

pub(crate) use snapshot::{
    VERSION_BEFORE_ATTEMPTS, VERSION_BEFORE_COPIES, check_end, check_start, ensure,
};

use crate::borders::{Borders, DirAttributes, check_attributes, is_top, top};
use crate::chunks::Chunks;
use crate::command::Subject;
use crate::command::{BLOBS, REPLICAS_MAX};
use crate::names::Names;
use crate::{ChunkKind, Command, Outcome};
use holdfast_base::ids::{ChunkId, Durability, FileId, Index, NodeId, StoreId, Tier};
use holdfast_base::{Error, Result, path};
use holdfast_env::trial::Knob;
use std::fmt;

/// Nodes that one `Reclaim`, and freed things that one `Release`, may touch: what keeps an entry's
/// work, and so the pause of all other requests, to milliseconds. Larger budgets mean this one.
pub static STEPS_MAX: Knob = Knob::new("namespace.steps", 1 << 14, &[1, 2, 3]);

/// Permission bits, with set-user-id, set-group-id and sticky.
pub const MODE_MAX: u16 = 0o7777;

/// Names and chunks of one shard: one fold, so that an entry that names bytes counts them, too.
pub struct Namespace {
    names: Names,
    chunks: Chunks,
    borders: Borders,
}

/// A path in a message: shortened and without control characters.
pub(crate) struct Shown<'a>(pub &'a str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const CHARS_MAX: usize = 200;
        match self.0.char_indices().nth(CHARS_MAX) {
            Some((cut, _)) => write!(f, "`{}...`", self.0[..cut].escape_debug()),
            None => write!(f, "`{}`", self.0.escape_debug()),
        }
    }
}

impl Default for Namespace {
    fn default() -> Namespace {
        Namespace::new(0)
    }
}

impl Namespace {
    /// The empty namespace of a shard: a root directory of the default class.
    pub fn new(shard: u16) -> Namespace {
        let (names, chunks) = (Names::new(shard), Chunks::new(shard));
        Namespace { names, chunks, borders: Borders::new(shard) }
    }

    pub fn shard(&self) -> u16 {
        self.chunks.shard()
    }

    /// Decodes and applies an entry. `Unsupported` means that the view must stop before this
    /// entry; every other error is a refusal, and the next entry can be applied.
    pub fn apply_bytes(&mut self, index: Index, bytes: &[u8]) -> Result<Outcome> {
        self.apply(index, &Command::from_entry(bytes)?)
    }

    /// Applies a command whole, or refuses it and changes nothing.
    pub fn apply(&mut self, index: Index, command: &Command) -> Result<Outcome> {
        if let Command::Behind { numbers, command } = command {
            return match Command::from_entry(command)? {
                Command::Behind { .. } => Err(Error::invalid("a command is behind its moves once")),
                command => self.apply_behind(index, &command, numbers),
            };
        }
        self.apply_behind(index, command, &[])
    }

    fn apply_behind(
        &mut self,
        index: Index,
        command: &Command,
        numbers: &[Index],
    ) -> Result<Outcome> {
        let result = match self.check_borders(command, numbers) {
            Ok(()) => self.carry_out_noted(index, command),
            Err(e) => Err(e),
        };
        result.map_err(|e| e.context(Doing(command)))
    }

    /// Whether all that the command names is this shard's to change.
    fn check_borders(&self, command: &Command, numbers: &[Index]) -> Result<()> {
        use Command::*;
        let borders = &self.borders;
        let number = |at: usize| numbers.get(at).copied().unwrap_or(Index(0));
        if self.shard() == 0 && numbers.is_empty() && borders.is_plain() {
            return Ok(());
        }
        match command {
            Rename { from, to, .. } => {
                borders.check(from, number(0))?;
                borders.check_second(to, number(1))?;
                borders.check_whole(from)?;
                borders.check_whole(to)
            }
            Delete { path, .. } => {
                borders.check(path, number(0))?;
                borders.check_whole(path)
            }
            // The file was born here, and stays.
            Close { path, .. } | Salvage { path, .. } => borders.check_second(path, number(0)),
            // That of a directory that comes says itself what it is about.
            Forward { .. } | Own { .. } | Freeze { .. } | Copy { .. } => Ok(()),
            _ => match command.subject() {
                Subject::Path(path) => borders.check(path, number(0)),
                Subject::File(_) | Subject::Chunk(_) | Subject::Told {} => Ok(()),
            },
        }
    }

    fn carry_out(&mut self, index: Index, command: &Command) -> Result<Outcome> {
        let (names, chunks) = (&mut self.names, &mut self.chunks);
        match command {
            Command::MakeDir { .. } => names.make_dir(chunks, command),
            Command::Put { .. } => names.put(chunks, index, command),
            Command::Symlink { path, target, mtime } => names.symlink(chunks, path, target, *mtime),
            Command::Begin { path, class, mode, mtime } => names.begin(path, *class, *mode, *mtime),
            Command::AllocateChunk { kind, owner, node, replicas, tier, durability } => {
                let copies = replicas.len().min(REPLICAS_MAX) as u8;
                self.allocate((*kind, *owner), *node, replicas, copies, (*tier, *durability))
            }
            Command::AllocateCopies { kind, owner, node, replicas, copies, tier, durability } => {
                self.allocate((*kind, *owner), *node, replicas, *copies, (*tier, *durability))
            }
            Command::Close { .. } => names.close(chunks, index, command),
            Command::Abandon { file } => names.abandon(chunks, index, *file),
            Command::Salvage { file, path, extents } => {
                names.salvage(chunks, index, *file, path, extents)
            }
            Command::SealChunk { chunk, length, replicas } => {
                chunks.seal_chunk(*chunk, *length, replicas)
            }
            Command::Rename { from, to, replace } => {
                names.rename(chunks, index, from, to, *replace)
            }
            Command::Delete { path, recursive } => names.delete(chunks, index, path, *recursive),
            Command::Reclaim { budget } => Ok(names.reclaim(chunks, index, *budget)),
            Command::SetAttributes { path, mode, mtime, metadata } => {
                names.set_attributes(path, *mode, *mtime, metadata.as_deref())
            }
            Command::SetClass { path, class } => names.set_class(path, *class),
            Command::CloseChunk { chunk } => chunks.close_chunk(*chunk),
            Command::SwitchGeneration { chunk, generation, length, digest } => {
                chunks.switch_generation(index, *chunk, *generation, *length, *digest, None)
            }
            Command::SwitchReplicas { chunk, generation, length, digest, replicas } => {
                let replicas = Some(replicas.as_slice());
                chunks.switch_generation(index, *chunk, *generation, *length, *digest, replicas)
            }
            Command::AddReplica { chunk, generation, store } => {
                chunks.add_replica(*chunk, *generation, *store)
            }
            Command::DropReplica { chunk, generation, store, lost } => {
                chunks.drop_replica(*chunk, *generation, *store, *lost)
            }
            Command::Unlink { chunk, generation, store } => {
                chunks.unlink_replica(*chunk, *generation, *store)
            }
            Command::RaiseCopies { chunks: listed, copies } => chunks.raise_copies(listed, *copies),
            Command::Release { before, budget } => Ok(chunks.release(*before, *budget)),
            Command::FreeChunk { chunk } => chunks.free_face_chunk(*chunk),
            Command::BeginRewrite { chunk } => chunks.begin_rewrite(*chunk),
            Command::Rewrite { .. } => chunks.rewrite(index, command),
            Command::AdoptChunk { .. } => self.adopt_chunk(command),
            Command::AddShard { shard } => {
                self.borders.add(*shard).map(|()| Outcome::Shard { shard: *shard })
            }
            Command::Forward { dir, to } => self.forward(index, dir, *to),
            Command::Own { dir, number, attributes } => self.own(dir, *number, attributes),
            Command::Freeze { dir, to } => self.freeze(index, dir, *to),
            Command::Take { dir, stamp, part, nodes } => self.take(dir, *stamp, *part, nodes),
            Command::Depart { dir, freeze, parts } => self.depart(dir, *freeze, *parts),
            Command::Arrive { .. } => self.arrive(command),
            Command::Discard { dir, stamp } => self.discard(dir, *stamp),
            Command::Forget { budget } => Ok(names.forget(chunks, *budget)),
            Command::LetGo { from, first, debts } => chunks.let_go(index, *from, *first, debts),
            Command::LetGone { home, through } => chunks.pay(*home, *through),
            Command::Copy { dir, to } => self.copy(index, dir, *to),
            Command::Step { .. } => self.step(command),
            Command::Copied { dir, copy, through } => self.copied(dir, *copy, *through),
            Command::Still { dir, copy, still } => self.still(index, dir, *copy, *still),
            Command::Go { dir, copy, steps, changes } => self.go(dir, *copy, *steps, *changes),
            Command::Behind { .. } => Err(misrouted()),
        }
    }

    /// An empty directory goes to another shard. In shard 0 its name stays, for the root to be listed.
    fn forward(&mut self, index: Index, dir: &str, to: u16) -> Result<Outcome> {
        check_dir(dir)?;
        self.borders.check_kept(dir)?;
        self.borders.check_still(dir)?;
        self.borders.check_forward(to)?;
        let attributes = self.names.empty_dir(dir)?;
        if self.shard() != 0 {
            self.names.drop_dir(&mut self.chunks, index, dir);
        }
        self.borders.forward(index, top(dir), to, attributes);
        Ok(Outcome::Done {})
    }

    fn own(&mut self, dir: &str, number: Index, attributes: &DirAttributes) -> Result<Outcome> {
        check_dir(dir)?;
        check_attributes(attributes)?;
        if self.borders.check_own(top(dir), number)? {
            self.drop_arriving(top(dir));
            self.names.take_dir(&mut self.chunks, dir, attributes)?;
            self.borders.own(top(dir), number);
        }
        Ok(Outcome::Done {})
    }

    /// A raw chunk is made for a file that is being written, which is told of it.
    fn allocate(
        &mut self,
        (kind, owner): (ChunkKind, FileId),
        node: NodeId,
        replicas: &[StoreId],
        copies: u8,
        class: (Tier, Durability),
    ) -> Result<Outcome> {
        Chunks::check_new(replicas, copies)?;
        let writer = self.writer(kind, owner)?;
        let made = self.chunks.allocate((kind, owner), node, replicas, copies, class)?;
        self.hand_over(writer, made)
    }

    fn adopt_chunk(&mut self, command: &Command) -> Result<Outcome> {
        let Command::AdoptChunk { kind, owner, .. } = command else { return Err(misrouted()) };
        self.chunks.check_adopted(command)?;
        let writer = self.writer(*kind, *owner)?;
        let made = self.chunks.adopt(command)?;
        self.hand_over(writer, made)
    }

    /// The unclosed file that a raw chunk belongs to; of a packed one there is none.
    fn writer(&self, kind: ChunkKind, owner: FileId) -> Result<Option<u32>> {
        match kind {
            ChunkKind::Raw => self.names.find_unclosed(owner).map(Some),
            ChunkKind::Packed if owner != FileId(0) && owner != BLOBS => {
                Err(Error::invalid("a packed chunk belongs to a node, not to a file"))
            }
            ChunkKind::Packed => Ok(None),
        }
    }

    fn hand_over(&mut self, writer: Option<u32>, made: ChunkId) -> Result<Outcome> {
        if let Some(writer) = writer {
            self.names.give_chunk(writer, made);
        }
        Ok(Outcome::Chunk { chunk: made })
    }
}

/// Refuses what no shard is given.
fn check_dir(dir: &str) -> Result<()> {
    path::check(dir)?;
    match is_top(dir) {
        true => Ok(()),
        false => Err(Error::invalid("only a directory right below the root goes to a shard")),
    }
}

/// What a refused command was doing, as the start of a sentence.
struct Doing<'a>(&'a Command);

impl fmt::Display for Doing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Command::MakeDir { path, kind, .. } => {
                write!(f, "make {} {}", kind.name(), Shown(path))
            }
            Command::Put { path, .. } => write!(f, "put {}", Shown(path)),
            Command::Symlink { path, .. } => write!(f, "link {}", Shown(path)),
            Command::Begin { path, .. } => write!(f, "begin file {}", Shown(path)),
            Command::AllocateChunk { owner, .. } | Command::AllocateCopies { owner, .. } => {
                write!(f, "allocate a chunk for `{owner}`")
            }
            Command::Close { file, path, .. } => write!(f, "close `{file}` as {}", Shown(path)),
            Command::Abandon { file } => write!(f, "abandon `{file}`"),
            Command::Salvage { file, path, .. } => write!(f, "salvage `{file}` as {}", Shown(path)),
            Command::SealChunk { chunk, .. } => write!(f, "seal chunk `{chunk}`"),
            Command::Rename { from, to, .. } => {
                write!(f, "rename {} to {}", Shown(from), Shown(to))
            }
            Command::Delete { path, .. } => write!(f, "delete {}", Shown(path)),
            Command::Reclaim { .. } => f.write_str("reclaim deleted nodes"),
            Command::SetAttributes { path, .. } => write!(f, "set attributes of {}", Shown(path)),
            Command::SetClass { path, .. } => write!(f, "set the class of {}", Shown(path)),
            Command::CloseChunk { chunk } => write!(f, "close chunk `{chunk}`"),
            Command::SwitchGeneration { chunk, generation, .. }
            | Command::SwitchReplicas { chunk, generation, .. }
            | Command::Rewrite { chunk, generation, .. } => {
                write!(f, "switch chunk `{chunk}` to generation `{generation}`")
            }
            Command::BeginRewrite { chunk } => write!(f, "begin to rewrite chunk `{chunk}`"),
            Command::Unlink { chunk, generation, store } => {
                write!(f, "unlink chunk `{chunk}` generation `{generation}` from `{store}`")
            }
            Command::AddReplica { chunk, generation, store } => {
                write!(
                    f,
                    "count `{store}` as a replica of chunk `{chunk}` generation `{generation}`"
                )
            }
            Command::DropReplica { chunk, generation, store, .. } => {
                write!(f, "drop chunk `{chunk}` generation `{generation}` on `{store}`")
            }
            Command::RaiseCopies { copies, .. } => write!(f, "want {copies} copies"),
            Command::Release { before, .. } => write!(f, "release what was freed before {before}"),
            Command::FreeChunk { chunk } => write!(f, "free chunk `{chunk}`"),
            Command::AdoptChunk { chunk, .. } => write!(f, "adopt chunk `{chunk}`"),
            Command::AddShard { shard } => write!(f, "add shard {shard}"),
            Command::Forward { dir, to } => write!(f, "move {} to shard {to}", Shown(dir)),
            Command::Behind { .. } => f.write_str("carry out what was asked behind a move"),
            Command::Own { dir, .. } => write!(f, "take {} from another shard", Shown(dir)),
            Command::Freeze { dir, to } => write!(f, "move {} to shard {to}", Shown(dir)),
            Command::Take { dir, part, .. } => write!(f, "take part {part} of {}", Shown(dir)),
            Command::Depart { dir, .. } => write!(f, "let {} go", Shown(dir)),
            Command::Arrive { dir, .. } => write!(f, "take {} from another shard", Shown(dir)),
            Command::Discard { dir, .. } => write!(f, "discard parts of {}", Shown(dir)),
            Command::Forget { .. } => f.write_str("forget names that have left"),
            Command::LetGo { from, .. } => write!(f, "let bytes of shard {from} go"),
            Command::LetGone { home, .. } => write!(f, "note what shard {home} has let go"),
            Command::Copy { dir, to } => write!(f, "move {} to shard {to}", Shown(dir)),
            Command::Step { dir, step, .. } => write!(f, "take step {step} of {}", Shown(dir)),
            Command::Copied { dir, .. } => write!(f, "note what is copied of {}", Shown(dir)),
            Command::Still { dir, still: true, .. } => write!(f, "hold {} still", Shown(dir)),
            Command::Still { dir, .. } => write!(f, "let {} change again", Shown(dir)),
            Command::Go { dir, .. } => write!(f, "let {} go", Shown(dir)),
        }
    }
}

/// For commands that are handed on whole: a match that cannot fail said in one place.
pub(crate) fn misrouted() -> Error {
    Error::bug("the command reached the wrong part of the namespace")
}
