//! A client of the simulated cluster: sequential, with a directory of its own, through any node as
//! its gateway, going on at another one with the same session and number when one fails. Sends the
//! production messages; keeps its [`Model`], and says when an answer contradicts it.

use super::Shared;
use super::cell::{MS, SECOND};
use super::guest::{DEADLINE_MS, Visitor};
use super::model::{Change, Model, Version};
use crate::SimNet;
use crate::task::sleep;
use holdfast_base::checksum::crc32c;
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::ids::{FileId, Sequence, SessionId};
use holdfast_base::node::NodeKind;
use holdfast_base::{Error, Kind, Reason, Result};
use holdfast_env::net::PeerReply;
use holdfast_env::{HoldMutex, Rng};
use holdfast_wire::{self as wire, Call, chunk as bytes, file as msg};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};

/// A file as clients here make it: it replaces what is there, and its directories come with it.
pub fn new_file(path: &str) -> msg::NewNode {
    msg::NewNode {
        path: path.to_owned(),
        kind: NodeKind::File,
        mode: 0o644,
        mtime_ns: msg::MTIME_NOW,
        class: None,
        replace: true,
        parents: true,
        metadata: Vec::new(),
    }
}

/// How often a request is sent before its client gives up, and does not know.
const ATTEMPTS: u32 = 40;
const FILES: u64 = 8;
/// What a store says that has the chunk and not the object. Production clients ask again, for
/// another replica may have it; here no replica that counts may have lost it for a moment.
const LOST: &str = "holds no such object";
/// Bytes of one append, at most.
const PIECE_BYTES: u64 = 30_000;

pub struct Client {
    visitor: Visitor,
    gateway: usize,
    /// The gateway that acknowledged the last change, and those that have caught up since, as the
    /// production client asks of each that it goes on at: they must show it.
    shown_at: BTreeSet<usize>,
    session: Option<SessionId>,
    sequence: u64,
    models: Arc<Vec<Mutex<Model>>>,
    number: usize,
    /// A refused request, which is repeated behind the next change.
    kept: Option<Kept>,
}

/// A request that may be repeated: the session remembers its answer.
struct Kept {
    opcode: u16,
    meta: Vec<u8>,
    sequence: Sequence,
    answer: Error,
}

/// What became of a change.
pub(super) enum Fate {
    Done(PeerReply),
    /// It was not carried out.
    Refused(Error),
    /// Neither, and the same is to be tried as a new request.
    CutOff,
    Unknown,
}

impl Client {
    pub fn new(
        number: usize,
        seed: u64,
        nodes: usize,
        net: &SimNet,
        shared: &Arc<Shared>,
        models: &Arc<Vec<Mutex<Model>>>,
    ) -> Client {
        let visitor = Visitor::new(format!("c{number}"), seed, nodes, net, shared);
        Client {
            gateway: visitor.any_gateway(),
            visitor,
            shown_at: BTreeSet::new(),
            session: None,
            sequence: 1,
            models: models.clone(),
            number,
            kept: None,
        }
    }

    fn model(&self) -> MutexGuard<'_, Model> {
        self.models[self.number].held()
    }

    fn path(&self) -> String {
        format!("/{}/f{}", self.visitor.name, self.visitor.below(FILES))
    }

    fn elsewhere(&mut self) {
        self.gateway = self.visitor.any_gateway();
    }

    /// Works until `end_ns`.
    pub async fn run(mut self, end_ns: u64) {
        while self.visitor.net.now_ns() < end_ns {
            self.step().await;
            self.visitor.think().await;
            // A client stays with its gateway for a while.
            if self.visitor.below(8) == 0 {
                self.elsewhere();
            }
        }
        self.visitor.shared.client_ended();
    }

    async fn step(&mut self) {
        if self.session.is_none() && !self.open_session().await {
            return self.visitor.pause().await;
        }
        if self.visitor.shared.shards > 0 && self.visitor.below(24) == 0 {
            self.move_own().await;
        }
        match self.visitor.below(20) {
            0..=6 => self.put().await,
            7..=8 => self.write_large().await,
            9..=10 => self.delete().await,
            11..=12 => self.rename().await,
            13..=17 => self.read_own().await,
            _ => self.read_other().await,
        }
        self.visitor.shared.count_operation();
    }

    async fn open_session(&mut self) -> bool {
        match self.visitor.ask(self.gateway, wire::OP_OPEN_SESSION, Vec::new(), None).await {
            Ok(reply) => {
                self.session = SessionId::from_bytes(&reply.meta).ok();
                self.sequence = 1;
            }
            Err(_) => self.elsewhere(),
        }
        self.session.is_some()
    }

    /// Where its files are.
    pub(super) fn directory(&self) -> String {
        format!("/{}", self.visitor.name)
    }

    pub(super) fn paths(&self) -> Vec<String> {
        self.model().there().into_iter().collect()
    }

    /// Of its own, those that it began and gave up.
    pub(super) async fn unclosed(&self) -> Vec<FileId> {
        let below = format!("{}/", self.directory());
        let told = self.ask(wire::OP_UNCLOSED, Vec::new()).await;
        let files = told.and_then(|told| Ok(Vec::<msg::Unclosed>::from_bytes(&told.meta)?));
        let files = files.unwrap_or_default().into_iter();
        files.filter(|file| file.path.starts_with(&below)).map(|file| file.file).collect()
    }

    pub(super) fn one_time_of_three(&self) -> bool {
        self.visitor.below(3) == 0
    }

    pub(super) fn any_shard(&self) -> u16 {
        let shards = u64::from(self.visitor.shared.shards);
        if self.visitor.below(2) == 0 { 0 } else { 1 + self.visitor.below(shards) as u16 }
    }

    pub(super) async fn ask(&self, opcode: u16, meta: Vec<u8>) -> Result<PeerReply> {
        self.visitor.ask(self.gateway, opcode, meta, None).await
    }

    pub(super) fn note(&self, what: &str) {
        self.visitor.note(what);
    }

    pub(super) fn violate(&self, what: &str) {
        self.visitor.violate(what);
    }

    /// Sends a numbered request until somebody answers.
    pub(super) async fn change<M: Encode>(
        &mut self,
        opcode: u16,
        body: Option<&[u8]>,
        message: impl Fn(Call) -> M,
    ) -> Fate {
        let Some(session) = self.session else { return Fate::Unknown };
        let sequence = Sequence(self.sequence);
        self.sequence += 1;
        let acknowledged_below = self.kept.as_ref().map_or(sequence, |kept| kept.sequence);
        let meta = message(Call { session, sequence, acknowledged_below }).to_bytes();
        let mut unknown = false;
        for attempt in 0..ATTEMPTS {
            let reply = self.visitor.ask(self.gateway, opcode, meta.clone(), body).await;
            let e = match reply {
                Ok(reply) => {
                    self.visitor
                        .shared
                        .sometimes(unknown, "a change in doubt was repeated and answered");
                    return Fate::Done(reply);
                }
                Err(e) => e,
            };
            self.visitor
                .shared
                .sometimes(e.kind == Kind::Full, "a client was told that a disk is full");
            match e.kind {
                Kind::Bug => self.visitor.shared.violate(format!("{}: {e}", self.visitor.name)),
                Kind::Exists | Kind::NotFound | Kind::Invalid if !unknown => {
                    if self.kept.is_none() && body.is_none() {
                        let answer = e.clone();
                        self.kept = Some(Kept { opcode, meta, sequence, answer });
                    }
                    return Fate::Refused(e);
                }
                _ if e.is(Reason::SessionClosed) => {
                    (self.session, self.kept) = (None, None);
                    return Fate::Unknown;
                }
                // Its bytes were cut off by a seal: that is this number's answer for ever, and the
                // production client sends them again under the next one.
                _ if e.is(Reason::WriteAgain) => {
                    self.visitor
                        .shared
                        .sometimes(true, "bytes were sent again under another number");
                    return Fate::CutOff;
                }
                _ => unknown = true,
            }
            if attempt % 2 == 1 {
                self.elsewhere();
            }
            self.visitor.pause().await;
        }
        Fate::Unknown
    }

    /// Carries out a change of the directory, and keeps the model.
    pub(super) async fn carry_out<M: Encode>(
        &mut self,
        change: Change,
        opcode: u16,
        body: Option<&[u8]>,
        message: impl Fn(Call) -> M,
    ) {
        self.model().begin(&change);
        let mut fate = self.change(opcode, body, &message).await;
        for _ in 0..3 {
            if !matches!(fate, Fate::CutOff) {
                break;
            }
            fate = self.change(opcode, body, &message).await;
        }
        self.settle(&change, fate);
    }

    /// A refusal stays one, also where the request would succeed by now: the first answer counts.
    async fn repeat_kept(&mut self) {
        let Some(kept) = self.kept.take() else { return };
        let Kept { opcode, meta, answer, .. } = kept;
        let again = self.visitor.ask(self.gateway, opcode, meta, None).await;
        let same = match &again {
            Ok(_) => false,
            Err(e) if is_no_answer(e) => return,
            Err(e) => e.kind == answer.kind,
        };
        self.visitor.shared.sometimes(same, "a refusal was repeated behind a later change");
        if !same {
            let name = &self.visitor.name;
            let now = again.map(|reply| reply.meta.len());
            self.visitor
                .shared
                .violate(format!("{name} was refused ({answer}), and then told {now:?}"));
        }
    }

    fn settle(&mut self, change: &Change, fate: Fate) {
        match fate {
            Fate::Done(_) => {
                self.model().done(change);
                self.shown_at = BTreeSet::from([self.gateway]);
                self.visitor
                    .net
                    .note(&format!("{} did {change:?} at n{}", self.visitor.name, self.gateway));
                if let Change::Put(path, _) = change {
                    self.visitor.shared.acknowledged(self.gateway, path);
                }
            }
            Fate::Refused(e) => {
                let name = &self.visitor.name;
                self.visitor.net.note(&format!("{name} was refused {change:?}: {e}"));
                // Only what is not there cannot be renamed or deleted; nothing else is refused.
                let expected = match change {
                    Change::Put(..) => false,
                    Change::Delete(path) | Change::Rename(path, _) => {
                        self.model().allows(path, None) && e.kind == Kind::NotFound
                    }
                };
                if expected {
                    let (Change::Delete(path) | Change::Rename(path, _) | Change::Put(path, _)) =
                        change;
                    self.model().saw(path, None);
                } else if matches!(change, Change::Put(..)) && e.kind == Kind::Invalid {
                    // Too few stores: said before anything was done.
                    self.visitor.shared.sometimes(true, "a write was refused for want of stores");
                } else {
                    self.visitor.shared.violate(format!("{name}: {change:?} was refused: {e}"));
                }
            }
            Fate::Unknown | Fate::CutOff => {
                self.visitor
                    .net
                    .note(&format!("{} does not know about {change:?}", self.visitor.name));
                self.model().doubt(change);
                self.shown_at.clear();
                self.visitor.shared.sometimes(true, "a client gave up on a change");
            }
        }
    }

    async fn put(&mut self) {
        let path = self.path();
        self.put_at(path).await;
    }

    async fn put_at(&mut self, path: String) {
        let version =
            Version { seed: self.visitor.rng.next_u64(), bytes: self.visitor.below(12_000) as u32 };
        let content = version.content();
        let (node, crc) = (new_file(&path), crc32c(&content));
        let put = move |call| msg::Put { call, node: node.clone(), crc };
        self.carry_out(Change::Put(path, version), wire::OP_PUT, Some(&content), put).await;
    }

    /// Of a file that is there, or now and then of one that may not be: then it is made, and the
    /// deletion repeated.
    async fn delete(&mut self) {
        let path = match self.visitor.below(4) {
            0 => Some(self.path()),
            _ => self.model().any_path(self.visitor.rng.next_u64()),
        };
        let Some(path) = path else { return };
        let action = msg::Action::Delete { path: path.clone(), recursive: false };
        let message = move |call| msg::Change { call, action: action.clone() };
        self.carry_out(Change::Delete(path.clone()), wire::OP_CHANGE, None, message).await;
        if self.kept.is_some() {
            self.put_at(path).await;
            self.repeat_kept().await;
        }
    }

    async fn rename(&mut self) {
        let Some(from) = self.model().any_path(self.visitor.rng.next_u64()) else { return };
        let to = self.path();
        if from == to {
            return;
        }
        let action = msg::Action::Rename { from: from.clone(), to: to.clone(), replace: true };
        let message = move |call| msg::Change { call, action: action.clone() };
        self.carry_out(Change::Rename(from, to), wire::OP_CHANGE, None, message).await;
    }

    /// A file in chunks: each takes appends until one fails, is sealed at what was acknowledged,
    /// and followed by the next.
    async fn write_large(&mut self) {
        let path = self.path();
        let bytes = 30_000 + self.visitor.below(350_000) as u32;
        let version = Version { seed: self.visitor.rng.next_u64(), bytes };
        let content = version.content();
        let node = new_file(&path);
        let begin = {
            let node = node.clone();
            move |call| msg::Begin { call, node: node.clone() }
        };
        let Fate::Done(reply) = self.change(wire::OP_BEGIN, None, begin).await else { return };
        let Ok(begun) = msg::Begun::from_bytes(&reply.meta) else { return };
        let file = begun.file;
        let mut extents = Vec::new();
        let mut at = 0;
        while at < content.len() {
            let allocate = |call| msg::Allocate { call, file };
            let Fate::Done(reply) = self.change(wire::OP_ALLOCATE, None, allocate).await else {
                return;
            };
            let Ok(grant) = msg::Grant::from_bytes(&reply.meta) else { return };
            let Some(taken) = self.fill(file, grant, &content[at..]).await else { return };
            if taken > 0 {
                let (chunk, generation) = (grant.chunk, Default::default());
                extents.push(msg::Extent::Raw { chunk, generation, bytes: taken });
            }
            at += taken as usize;
        }
        let change = Change::Put(path, version);
        let close = |call| {
            let (node, extents) = (node.clone(), extents.clone());
            msg::Close { call, file, node, extents }
        };
        self.carry_out(change, wire::OP_CLOSE, None, close).await;
        self.visitor.shared.sometimes(extents.len() > 3, "a file went on in another chunk");
    }

    /// Appends to one chunk what it takes; `None` if nobody knows what it has.
    async fn fill(
        &mut self,
        file: holdfast_base::ids::FileId,
        grant: msg::Grant,
        content: &[u8],
    ) -> Option<u64> {
        // Some write as they get something, with pauses in which nodes come and go.
        let pause_ms = if self.visitor.below(4) == 0 { 700 } else { 0 };
        let (chunk, durability) = (grant.chunk, grant.durability);
        let mut at = 0u64;
        let end = (content.len() as u64).min(grant.capacity);
        while at < end {
            let piece = (1 + self.visitor.below(PIECE_BYTES)).min(end - at);
            let piece = &content[at as usize..][..piece as usize];
            let crcs = bytes::piece_crcs(at, piece);
            let append = bytes::Append { chunk, at, durability, crcs };
            let meta = append.to_bytes();
            match self.visitor.ask(self.gateway, wire::OP_CHUNK_APPEND, meta, Some(piece)).await {
                Ok(_) => {
                    at += piece.len() as u64;
                    if pause_ms > 0 {
                        sleep(&self.visitor.net, self.visitor.below(pause_ms) * MS).await;
                    }
                }
                Err(e) => {
                    self.visitor.net.note(&format!("{} cannot append: {e}", self.visitor.name));
                    // Whoever failed is asked again until the cluster knows.
                    self.visitor.pause().await;
                    return self.seal(file, chunk, at).await;
                }
            }
        }
        // One in three leaves the seal to the close.
        if self.visitor.below(3) > 0 { self.seal(file, chunk, at).await } else { Some(at) }
    }

    async fn seal(
        &mut self,
        file: holdfast_base::ids::FileId,
        chunk: holdfast_base::ids::ChunkId,
        acknowledged: u64,
    ) -> Option<u64> {
        let action = msg::Action::Seal { file, chunk, acknowledged };
        let message = move |call| msg::Change { call, action: action.clone() };
        match self.change(wire::OP_CHANGE, None, message).await {
            Fate::Done(_) => Some(acknowledged),
            Fate::Refused(e) => {
                self.visitor.shared.violate(format!("{}: seal {chunk}: {e}", self.visitor.name));
                None
            }
            Fate::Unknown | Fate::CutOff => None,
        }
    }

    /// A read of an own file, most often where it was changed, or where the gateway was asked to
    /// catch up: there it must show the change.
    async fn read_own(&mut self) {
        let path = self.path();
        let gateway = match self.shown_at.first() {
            Some(gateway) if self.visitor.below(2) == 0 => *gateway,
            _ => self.gateway,
        };
        let settled = !self.shown_at.is_empty();
        if settled && !self.shown_at.contains(&gateway) && self.visitor.below(4) > 0 {
            if self.visitor.ask(gateway, wire::OP_CATCH_UP, Vec::new(), None).await.is_err() {
                return self.elsewhere();
            }
            self.shown_at.insert(gateway);
            self.visitor.shared.sometimes(true, "a client read its own write at another gateway");
        }
        let Ok(found) = self.read(gateway, &path).await else {
            return self.elsewhere();
        };
        let found = found.as_deref();
        let mut model = self.model();
        let shown = self.shown_at.contains(&gateway);
        let fine = match shown {
            true => model.allows(&path, found),
            false => model.ever_allows(&path, found),
        };
        if !fine {
            let (bytes, wanted) = (found.map(<[u8]>::len), model.describe(&path));
            self.visitor.shared.violate(format!(
                "{} read `{path}` at n{gateway} (shown at {:?}): {bytes:?} bytes, not {wanted}",
                self.visitor.name, self.shown_at
            ));
        } else if shown {
            model.saw(&path, found);
        }
    }

    /// A read of another client's file: something that it wrote, or nothing.
    async fn read_other(&mut self) {
        let other = self.visitor.below(self.models.len() as u64) as usize;
        let path = format!("/c{other}/f{}", self.visitor.below(FILES));
        let Ok(found) = self.read(self.gateway, &path).await else {
            return self.elsewhere();
        };
        let model = self.models[other].held();
        if !model.ever_allows(&path, found.as_deref()) {
            let bytes = found.map(|found| found.len());
            let name = &self.visitor.name;
            self.visitor
                .shared
                .violate(format!("{name} read {bytes:?} bytes of `{path}`: never written"));
        }
    }

    /// A file's bytes through a gateway; `None`: there is no such file. An error decides nothing.
    pub async fn read(&self, gateway: usize, path: &str) -> Result<Option<Vec<u8>>> {
        let get = msg::Get {
            path: path.to_owned(),
            follow: true,
            offset: 0,
            bytes_max: 1 << 20,
            locate: false,
        };
        let reply = match self.visitor.ask(gateway, wire::OP_GET, get.to_bytes(), None).await {
            Err(e) if e.kind == Kind::NotFound || e.message.contains(LOST) => return Ok(None),
            other => other?,
        };
        let got = msg::GetReply::from_bytes(&reply.meta)?;
        let extents = match got.content {
            msg::Content::Body { .. } => return Ok(Some(reply.body)),
            msg::Content::Mapped { .. } => {
                return Err(Error::bug("a simulated client maps nothing"));
            }
            msg::Content::Chunks { extents, .. } => extents,
        };
        let mut content = Vec::new();
        for extent in extents {
            let msg::Extent::Raw { chunk, generation, bytes } = extent else { continue };
            let mut offset = 0;
            while offset < bytes {
                let part = (bytes - offset).min(64 << 10) as u32;
                let read = bytes::Read { chunk, generation, offset, bytes: part };
                let reply =
                    self.visitor.ask(gateway, wire::OP_CHUNK_READ, read.to_bytes(), None).await?;
                if reply.body.is_empty() {
                    return Err(Error::retry("read a file: the gateway knows no more of it yet"));
                }
                offset += reply.body.len() as u64;
                content.extend_from_slice(&reply.body);
            }
        }
        if content.len() as u64 != got.info.size {
            return Err(Error::corrupt(format!("`{path}`: {} bytes", content.len())));
        }
        Ok(Some(content))
    }
}

/// How long a client tries the same request, about.
pub const GIVES_UP_NS: u64 = ATTEMPTS as u64 * (DEADLINE_MS as u64 * MS + SECOND / 4);

/// Nobody knows, or can write it down now, or the session has ended.
fn is_no_answer(e: &Error) -> bool {
    matches!(e.kind, Kind::Retry | Kind::Fenced | Kind::Full | Kind::ReadOnly)
}
