//! The folds of names and chunks that a node has: one a shard, each of a topic of its own. Says which of
//! them a command, a path or an id belongs to, and reads one of them or all. Decides nothing: which
//! directories a shard keeps is in the root's view, and what a command comes to is `apply`'s to say.

use super::Node;
use holdfast_base::ids::{ChunkId, FileId, Index, SessionId};
use holdfast_base::{Error, Kind, Result};
use holdfast_chunk::Done;
use holdfast_cluster::borders::shows_moves;
use holdfast_cluster::command::Subject;
use holdfast_cluster::topics::namespace_topic;
use holdfast_cluster::{AllShards, Chunks, Command, Namespace, SHARDS_MAX};
use holdfast_env::HoldMutex;
use holdfast_env::planted;
use holdfast_log::Mode;
use holdfast_view::{Context, Fold, not_open};
use holdfast_wire::Call;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// What a node folds of names and chunks. A shard that was opened stays open for as long as the node is.
pub struct ShardFolds {
    /// Shard 0's, which keeps the root directory, and with it the map of all others.
    root: Arc<Fold<Namespace>>,
    /// Shard `n` at `n - 1`: set once, when this node has opened it, each by itself.
    others: Box<[OnceLock<Arc<Fold<Namespace>>>]>,
    /// How many places of those may be set: none behind was ever. Grows before the place is set.
    reach: AtomicUsize,
    /// Those that could not be opened when that was tried last, and why. Changed while `opening` is held.
    unopened: Mutex<BTreeMap<u16, Error>>,
    /// Held while one is opened: a topic has one fold a node. Nothing else is locked before it.
    opening: Mutex<()>,
}

/// What a shard's fold is told of itself.
pub(crate) fn context_of(shard: u16) -> Context {
    Context { shard, ..Context::of(&namespace_topic(shard)) }
}

impl ShardFolds {
    pub(crate) fn new(root: Arc<Fold<Namespace>>) -> ShardFolds {
        let others = (1..SHARDS_MAX).map(|_| OnceLock::new()).collect();
        let (reach, unopened, opening) = Default::default();
        ShardFolds { root, others, reach, unopened, opening }
    }

    /// Shard 0's: of the root directory, of sessions' ids, and of what faces pack.
    pub fn root(&self) -> &Arc<Fold<Namespace>> {
        &self.root
    }

    /// A shard's. `Retry` for one that is not open here (yet), `NotFound` where there is none.
    pub fn get(&self, shard: u16) -> Result<&Arc<Fold<Namespace>>> {
        if shard == 0 {
            return Ok(&self.root);
        }
        let open = self.others.get(shard as usize - 1).and_then(OnceLock::get);
        open.ok_or_else(|| self.root.read(|root, _| root.no_shard(shard)).unwrap_or_else(|e| e))
    }

    /// Opens those that the root's view knows of and that are not. One that cannot be opened keeps none of
    /// the others closed: it is told of (`Node::unopened`) and tried again with the next call, which is soon.
    pub(crate) fn open_with(&self, open: impl Fn(u16) -> Result<Arc<Fold<Namespace>>>) {
        // Also of a view that has stopped: what is in the others does not go with it.
        let count = self.root.read_last(Namespace::shard_count);
        if self.missing(count).next().is_none() {
            return;
        }
        let _one = self.opening.held();
        for shard in self.missing(count).collect::<Vec<_>>() {
            match open(shard) {
                Ok(fold) => {
                    self.reach.fetch_max(shard as usize, Ordering::AcqRel);
                    let is_first = self.others[shard as usize - 1].set(fold).is_ok();
                    assert!(is_first, "shard {shard} was opened twice");
                    self.unopened.held().remove(&shard);
                }
                Err(e) => {
                    self.unopened.held().insert(shard, e);
                    if planted!("node.unopened-shard-keeps-others-closed") {
                        return;
                    }
                }
            }
        }
    }

    /// Of so many shards, those that are not open.
    fn missing(&self, count: u16) -> impl Iterator<Item = u16> {
        (1..count).filter(|shard| self.others[*shard as usize - 1].get().is_none())
    }

    /// Those that cannot be opened, each with the reason; not those that are only not there yet.
    pub(crate) fn unopened(&self) -> Vec<(u16, Error)> {
        let unopened = self.unopened.held();
        let lasting = unopened.iter().filter(|(_, e)| e.kind != Kind::Retry);
        lasting.map(|(shard, e)| (*shard, e.clone())).collect()
    }

    /// Whether all are open that the map knows of.
    pub(crate) fn is_whole(&self) -> bool {
        self.missing(self.root.read_last(Namespace::shard_count)).next().is_none()
    }

    /// Whether no other is open, so that all there is here is the root's.
    fn is_root_alone(&self) -> bool {
        self.reach.load(Ordering::Acquire) == 0
    }

    /// The places of those that may be open, in their order.
    fn reached(&self) -> &[OnceLock<Arc<Fold<Namespace>>>] {
        &self.others[..self.reach.load(Ordering::Acquire)]
    }

    /// The bytes of a command, as this node's map has it.
    pub(crate) fn entry_of(&self, command: &Command) -> Result<Vec<u8>> {
        match self.is_root_alone() {
            true => Ok(command.to_entry()),
            false => self.root.read(|root, _| command.to_entry_by(root.borders())),
        }
    }

    /// Those that are open, each with its number, the root's first.
    pub fn all(&self) -> impl Iterator<Item = (u16, &Arc<Fold<Namespace>>)> {
        let others = (1u16..).zip(self.reached());
        let open = others.filter_map(|(shard, fold)| Some((shard, fold.get()?)));
        std::iter::once((0, &self.root)).chain(open)
    }

    /// Those of them whose views go on.
    pub(crate) fn going(&self) -> impl Iterator<Item = (u16, &Arc<Fold<Namespace>>)> {
        self.all().filter(|(_, fold)| fold.status().stopped.is_none())
    }
}

/// A shard that the log says was added has its topic once whoever keeps the log has opened its own fold of it:
/// others who hear of the entry may be earlier.
pub(crate) fn not_yet(shard: u16, e: Error) -> Error {
    match e.kind {
        Kind::NotFound if !planted!("node.shard-opened-too-early-is-for-good") => Error::retry(
            format!("open shard {shard}: whoever keeps the log has not opened it yet: ask again"),
        ),
        _ => e,
    }
}

impl Node {
    /// Opens the folds of shards that were added since this was looked at last, and of those that could not
    /// be opened then. Waits for the log.
    pub fn open_shards(&self) {
        self.shards
            .open_with(|shard| self.open_view(context_of(shard)).map_err(|e| not_yet(shard, e)));
    }

    /// Which shards cannot be opened here, a sentence each: what is in them is not served by this node.
    pub fn unopened(&self) -> Vec<String> {
        let sentence = |(shard, e): (u16, Error)| {
            format!(
                "open shard {shard}: {e}: it is tried again by itself; until then its names are not served \
                 here, and all others are: look at what is wrong, or ask another node"
            )
        };
        self.shards.unopened().into_iter().map(sentence).collect()
    }

    /// Refuses a request of a session in a shard that is not the first's, whose topic has the sessions:
    /// who ended there does not begin here again. The shard's own view decides, this only sees to it
    /// that nobody comes with a number that no session ever had.
    pub(crate) fn check_session(&self, session: SessionId) -> Result<()> {
        let (open, applied) = self.shards.root.has_session(session);
        match open {
            true => Ok(()),
            false if session.0 > applied.0 => Err(Error::retry(format!(
                "use session `{session}`: this node has not heard of it yet: ask again"
            ))),
            false => Err(not_open(session)),
        }
    }

    /// What a request of a session came to, in the shard that is asked, or in another one that had its
    /// directory when it was carried out. That a shard did not have the directory is no answer.
    pub fn known(&self, shard: u16, call: &Call) -> Option<Result<Vec<u8>>> {
        let known = |of: u16, fold: &Arc<Fold<Namespace>>| {
            let known = fold.known(call.session, call.sequence);
            known.filter(|known| of == shard || !matches!(known, Err(e) if e.kind == Kind::Retry))
        };
        if planted!("node.answers-stay-behind") {
            return known(shard, self.shards.get(shard).ok()?);
        }
        self.shards.all().find_map(|(of, fold)| known(of, fold))
    }

    /// The first answer of a request that was carried out in another shard than the one that keeps its
    /// directory now; an error while it cannot be known here whether it was.
    pub(crate) fn known_elsewhere(
        &self,
        shard: u16,
        call: &Call,
        command: &Command,
    ) -> Result<Option<Vec<u8>>> {
        if call.session.0 == 0 || self.shards.is_root_alone() {
            return Ok(None);
        }
        for path in command.paths() {
            if !self.read_all(|all| shows_moves(all, path))? {
                return Err(Error::retry(
                    "this node does not have (yet) all that was done where the directory was: ask again",
                ));
            }
        }
        let here = self.shards.get(shard)?;
        if here.known(call.session, call.sequence).is_some() {
            return Ok(None);
        }
        self.known(shard, call).transpose()
    }

    /// Refuses what is asked of a directory that is moving, before it is in the log: there that would be the
    /// request's answer for good, also where the directory stays after all.
    pub(crate) fn check_still(&self, shard: u16, command: &Command) -> Result<()> {
        if self.shards.is_root_alone() {
            return Ok(());
        }
        let view = self.shards.get(shard)?;
        view.read(|view, _| command.paths().try_for_each(|path| view.borders().check_still(path)))?
    }

    /// Which shard keeps a path that something is to be written to; `Retry` while it is moving.
    pub fn shard_to_write(&self, path: &str) -> Result<u16> {
        let shard = self.shard_at(path)?;
        if !self.shards.is_root_alone() {
            self.shards.get(shard)?.read(|view, _| view.borders().check_still(path))??;
        }
        Ok(shard)
    }

    /// Ends a session in every shard. Answers once the first has, behind which nobody begins it anew in
    /// another; whoever leads ends what is left of it there.
    pub fn end_session(self: &Arc<Node>, session: SessionId, done: Done<()>) {
        let node = self.clone();
        let ended = move |ended: Result<()>| {
            if ended.is_ok() {
                for (_, fold) in node.shards.all().skip(1) {
                    fold.end_session(session, Mode::Ordered, Box::new(|_| ()));
                }
            }
            done(ended);
        };
        self.shards.root.end_session(session, Mode::Ordered, Box::new(ended));
    }

    /// Every open session with a mark that changes whenever it is used, in whichever shard.
    pub(crate) fn sessions(&self) -> Vec<(SessionId, u64)> {
        let mut all: BTreeMap<_, _> = self.shards.root.sessions().into_iter().collect();
        for (_, fold) in self.shards.all().skip(1) {
            for (session, mark) in fold.sessions() {
                // Each of them only grows.
                all.entry(session).and_modify(|sum| *sum += mark);
            }
        }
        all.into_iter().collect()
    }

    /// Sessions that are open in some shard and have ended in the first, each with the shard.
    pub(crate) fn sessions_left(&self) -> Vec<(u16, SessionId)> {
        let over = |session: &SessionId| {
            self.check_session(*session).is_err_and(|e| e.kind == Kind::Fenced)
        };
        let others = self.shards.going().filter(|(shard, _)| *shard != 0);
        let left = others.flat_map(|(shard, fold)| {
            let sessions = fold.sessions().into_iter().map(|(session, _)| session);
            sessions.filter(over).map(move |session| (shard, session)).collect::<Vec<_>>()
        });
        left.collect()
    }

    /// The fold that keeps a chunk, and what points into it.
    pub fn shard_of_chunk(&self, chunk: ChunkId) -> Result<&Arc<Fold<Namespace>>> {
        self.shards.get(chunk.shard())
    }

    /// The fold that keeps a file.
    pub fn shard_of_file(&self, file: FileId) -> Result<&Arc<Fold<Namespace>>> {
        self.shards.get(file.shard())
    }

    /// Which shard a command is for, as far as it says. What names nothing has to be told.
    pub fn shard_of(&self, command: &Command) -> Result<u16> {
        match command.subject() {
            Subject::Path(path) => self.shard_at(path),
            Subject::File(file) => Ok(file.shard()),
            Subject::Chunk(chunk) => Ok(chunk.shard()),
            Subject::Told {} => Err(Error::bug("the command says of no shard that it is for it")),
        }
    }

    /// Which shard keeps a path, as this node's view has it.
    pub fn shard_at(&self, path: &str) -> Result<u16> {
        match self.shards.is_root_alone() {
            true => Ok(0),
            false => self.shards.root.read(|root, _| root.shard_at(path)),
        }
    }

    /// Asks what one shard knows of its chunks, and of which entry.
    pub fn read_chunks<T>(&self, shard: u16, read: impl FnOnce(&Chunks, Index) -> T) -> Result<T> {
        self.shards.get(shard)?.read(|view, applied| read(view.chunks(), applied))
    }

    /// Asks what is known of one chunk. Every question about a chunk comes this way: whoever asks needs
    /// no names.
    pub fn read_chunk<T>(
        &self,
        chunk: ChunkId,
        read: impl FnOnce(&Chunks, Index) -> T,
    ) -> Result<T> {
        self.read_chunks(chunk.shard(), read)
    }

    /// Asks every shard whose view goes on for some of its chunks, one shard after the other.
    pub fn gather_chunks<T, I: IntoIterator<Item = T>>(
        &self,
        mut read: impl FnMut(&Chunks) -> I,
    ) -> Result<Vec<T>> {
        let mut all = Vec::new();
        // Without the map it is not known which there are.
        self.shards.root().read(|_, _| ())?;
        for (_, fold) in self.shards.going() {
            // One that has stopped meanwhile is left out, too.
            let found = fold.read(|view, _| read(view.chunks()));
            all.extend(found.into_iter().flatten());
        }
        Ok(all)
    }

    /// Asks all shards at once, as none of them changes meanwhile.
    pub fn read_all_chunks<T>(&self, read: impl FnOnce(&[&Chunks]) -> T) -> Result<T> {
        self.read_all(|all| read(&all.iter().map(Namespace::chunks).collect::<Vec<_>>()))
    }

    /// As [`Node::read_all_chunks`], of names and chunks. One that has stopped, or is not open here
    /// yet, is missing, but for the root's, without which nothing can be said.
    pub fn read_all<T>(&self, read: impl FnOnce(&AllShards<'_>) -> T) -> Result<T> {
        let shards = &self.shards;
        shards.root.read(|root, _| {
            if shards.is_root_alone() {
                return read(&AllShards::new(root, &[]));
            }
            let others: Vec<_> = shards.reached().iter().map(OnceLock::get).collect();
            let mut read = Some(read);
            let mut answer = None;
            held(root, &others, &[], &mut |all| answer = read.take().map(|read| read(all)));
            answer.expect("it was asked")
        })
    }
}

/// Holds one fold after the other, always in this order, and then asks.
fn held(
    root: &Namespace,
    folds: &[Option<&Arc<Fold<Namespace>>>],
    before: &[Option<&Namespace>],
    ask: &mut dyn FnMut(&AllShards<'_>),
) {
    let Some((first, rest)) = folds.split_first() else {
        return ask(&AllShards::new(root, before));
    };
    let mut on = |view: Option<&Namespace>| {
        let so_far: Vec<_> = before.iter().copied().chain([view]).collect();
        held(root, rest, &so_far, ask);
    };
    if !first.is_some_and(|fold| fold.read(|view, _| on(Some(view))).is_ok()) {
        on(None);
    }
}
