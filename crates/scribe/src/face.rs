//! The face: what a node does with batches. The node that keeps the log opens a view of each category's
//! topic, appends batches, and answers where their spools are then; others pass requests on to it.

mod hours;
mod kept;
mod turns;
mod words;

use crate::batch::{self, Packed, Position, SpoolId};
use crate::category::Category;
use crate::intake::{Keeps, NotKept};
use crate::view::{self, CategoryView, decode_position};
use holdfast_base::codec::{Decode, DecodeError, Encode, Reader, put_bytes};
use holdfast_base::ids::Index;
use holdfast_base::rules::Access;
use holdfast_base::{Error, Kind, Result};
use holdfast_env::net::{Parts, PeerReply, Reply, Response};
use holdfast_env::{HoldMutex, planted, sometimes};
use holdfast_log::{Mode, Scope};
use holdfast_node::{Matter, Node};
use holdfast_server::{
    Face, Gather, Request, Right, Route, Tails, Told, Within, answer, ask_host, pass_on,
};
use holdfast_view::{ENVELOPE_BYTES, Fold};
use holdfast_wire::{self as wire, Call, scribe as msg};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use turns::Turns;

/// Categories of a cluster: each is a topic, with a file of 64 MiB and two threads.
pub const CATEGORIES_MAX: usize = 256;

/// Batches of this node's own door that are appended at once.
const AT_ONCE_MAX: usize = 64;

/// Entries of a topic that are looked at for one answer.
const LOOKED_AT_MAX: usize = msg::READ_BATCHES_MAX;

/// Told what came of an append: a position for each batch.
type Appended = Box<dyn FnOnce(Result<msg::Positions>) + Send>;

/// Categories, served by one node.
pub struct ScribeFace {
    node: Arc<Node>,
    /// Those that are open. Held while one is opened.
    folds: Mutex<BTreeMap<Category, Arc<Fold<CategoryView>>>>,
    /// In which appends go to their topics.
    turns: Arc<Turns>,
    tails: Tails<(msg::Read, Reply)>,
}

/// Whether rules allow this of each of the categories that a request names.
fn allows(
    access: Access,
    names: impl Fn(&[u8]) -> Result<Vec<String>, DecodeError> + Send + Sync,
) -> impl Fn(&[u8], &Within) -> Result<()> + Send + Sync {
    move |meta, within: &Within| {
        let wrong = |e| Error::invalid(format!("use a category: {e}: use matching builds"));
        names(meta).map_err(wrong)?.iter().try_for_each(|name| {
            let doing =
                |e: Error| e.context(format_args!("use category `{}`", name.escape_debug()));
            within.rules.check_topic(&Category::new(name)?.topic(), access).map_err(doing)
        })
    }
}

fn appended_to(meta: &[u8]) -> Result<Vec<String>, DecodeError> {
    msg::Append::from_bytes(meta).map(|append| append.categories)
}

fn asked_about(meta: &[u8]) -> Result<Vec<String>, DecodeError> {
    msg::Ask::from_bytes(meta).map(|ask| ask.categories)
}

fn read_from(meta: &[u8]) -> Result<Vec<String>, DecodeError> {
    msg::Read::from_bytes(meta).map(|read| vec![read.category])
}

fn append_told(meta: &[u8]) -> Told {
    let append = msg::Append::from_bytes(meta).ok()?;
    Some(("scribe append", append.categories.join(" ")))
}

fn answer_bytes(meta: &[u8]) -> u64 {
    match msg::Read::from_bytes(meta) {
        // It comes again when there is something.
        Ok(read) if read.wait => 0,
        _ => 2 * msg::READ_BYTES_MAX as u64,
    }
}

impl Face for ScribeFace {
    fn routes(self: Arc<Self>) -> Vec<Route> {
        let route = |opcode: u16, serve: fn(Arc<ScribeFace>, Request<'_>)| {
            let face = self.clone();
            Route::new(opcode, Right::Data, move |request| match face.node.answers_for_log() {
                true => serve(face.clone(), request),
                false => pass_on(&face.node, request),
            })
        };
        vec![
            route(wire::OP_SCRIBE_APPEND, ScribeFace::serve_append)
                .allows(allows(Access::Write, appended_to))
                .audited(Matter::Data, append_told),
            route(wire::OP_SCRIBE_ASK, ScribeFace::serve_ask)
                .allows(allows(Access::Read, asked_about)),
            route(wire::OP_SCRIBE_SAY, ScribeFace::serve_say)
                .allows(allows(Access::Write, words::said_in))
                .audited(Matter::Data, words::say_told),
            route(wire::OP_SCRIBE_READ, ScribeFace::serve_read)
                .allows(allows(Access::Read, read_from))
                .answer_bytes(answer_bytes),
            route(wire::OP_SCRIBE_KEEP, ScribeFace::serve_keep)
                .allows(allows(Access::Write, kept::kept_category))
                .audited(Matter::Data, kept::keep_told),
            route(wire::OP_SCRIBE_READER, ScribeFace::serve_reader)
                .allows(|meta, within| {
                    let moves =
                        msg::Reader::from_bytes(meta).is_ok_and(|asked| asked.next.is_some());
                    allows(if moves { Access::Write } else { Access::Read }, kept::reader_of)(
                        meta, within,
                    )
                })
                .audited(Matter::Data, kept::reader_told),
            route(wire::OP_SCRIBE_STATUS, ScribeFace::serve_status)
                .allows(|_, within| within.rules.check_topic("*", Access::Read)),
        ]
    }
}

impl ScribeFace {
    pub fn new(node: Arc<Node>) -> Arc<ScribeFace> {
        let (folds, turns, tails) = (Mutex::default(), Arc::default(), Tails::default());
        let face = Arc::new(ScribeFace { node, folds, turns, tails });
        let readers = Arc::downgrade(&face);
        face.node.readers_of_topics(Arc::new(move |topic, first| {
            readers.upgrade()?.needed_by_readers(&Category::of_topic(topic)?, first)
        }));
        face
    }

    /// Opens the categories that there are, where the log is kept; else there is nothing to open.
    pub fn open_all(&self) -> Result<()> {
        if !self.node.answers_for_log() {
            return Ok(());
        }
        let topics = self.node.log.topics();
        for category in topics.iter().filter_map(|topic| Category::of_topic(topic)) {
            if let Err(e) = self.fold(&category, false) {
                // One that is damaged leaves the others: `doctor` names it.
                self.node.view_failed(&category.topic(), &e);
            }
        }
        Ok(())
    }

    /// The view of a category, opened if it is not; made only where that was asked for.
    fn fold(&self, category: &Category, make: bool) -> Result<Arc<Fold<CategoryView>>> {
        let mut folds = self.folds.held();
        if let Some(fold) = folds.get(category) {
            return Ok(fold.clone());
        }
        if !self.node.has_topic(&category.topic())? {
            if !make {
                return Err(Error::not_found(format!(
                    "use category `{category}`: nothing was sent to it yet: `holdfast scribe status` \
                     lists those that there are"
                )));
            }
            if folds.len() >= CATEGORIES_MAX {
                return Err(Error::invalid(format!(
                    "make category `{category}`: there are {CATEGORIES_MAX} already: send to one of them"
                )));
            }
        }
        let fold = self.node.open_view(view::context(category))?;
        folds.insert(category.clone(), fold.clone());
        Ok(fold)
    }

    fn serve_append(self: Arc<Self>, request: Request<'_>) {
        let doing = "append to categories";
        let Some((append, body, reply)) = request.decode_with_body::<msg::Append>(doing) else {
            return;
        };
        let (face, body, turn) = (self.clone(), body.into_vec(), self.turns.enter());
        self.node.workers.run(move || {
            let done = move |positions: Result<msg::Positions>| {
                answer(reply, positions.map(|positions| (positions.to_bytes(), Parts::None)));
            };
            let batches = split(&append, &body);
            for (head, _) in batches.iter().flatten() {
                // Nobody waits for a view that is opened but its own. What comes of it, its turn hears.
                let _ = face.fold(&head.category, true);
            }
            turn.then(move || match batches {
                Ok(batches) => face.append(batches, Box::new(done)),
                Err(e) => done(Err(e)),
            });
        });
    }

    /// Appends batches that were looked at, where the log is kept.
    fn append(&self, batches: Vec<(batch::Head, Vec<u8>)>, done: Appended) {
        let gather = Gather::new(batches.len(), move |positions| {
            done(positions.map(|positions| msg::Positions { positions }));
        });
        for (at, (head, bytes)) in batches.into_iter().enumerate() {
            let gather = gather.clone();
            let fold = match self.fold(&head.category, true) {
                Ok(fold) => fold,
                Err(e) => {
                    gather.came(at, told(Err(e)));
                    continue;
                }
            };
            match fold.read(|view, _| view.position(head.spool)) {
                Ok(position) if has(&head, position) => {
                    sometimes!("a batch came that its topic has");
                    gather.came(at, told(Ok(position)));
                }
                Ok(_) => {
                    let request = holdfast_view::Request::of(Call::default(), bytes, Mode::Synced);
                    let proposed = move |result: Result<(Index, Vec<u8>)>| {
                        gather
                            .came(at, told(result.and_then(|(_, bytes)| decode_position(&bytes))));
                    };
                    fold.propose(request, Box::new(proposed));
                }
                Err(e) => gather.came(at, told(Err(e))),
            }
        }
    }

    fn serve_ask(self: Arc<Self>, request: Request<'_>) {
        let Some((ask, reply)) = request.decode::<msg::Ask>("ask about a spool") else { return };
        let face = self.clone();
        self.node.workers.run(move || {
            let position = |name: &String| {
                let fold = match face.fold(&Category::new(name)?, false) {
                    // Nothing was sent to it.
                    Err(e) if e.kind == Kind::NotFound => return told(Ok(Position::START)),
                    fold => fold?,
                };
                told(fold.read(|view, _| view.position(SpoolId(ask.spool))))
            };
            let positions: Result<Vec<_>> = match ask.categories.len() {
                0..=msg::ASK_CATEGORIES_MAX => ask.categories.iter().map(position).collect(),
                _ => Err(Error::invalid("ask about a spool: ask about fewer categories at once")),
            };
            let positions = positions.map(|positions| msg::Positions { positions });
            answer(reply, positions.map(|positions| (positions.to_bytes(), Parts::None)));
        });
    }

    fn serve_read(self: Arc<Self>, request: Request<'_>) {
        let Some((read, reply)) = request.decode::<msg::Read>("read a category") else { return };
        let face = self.clone();
        self.node.workers.run(move || match read.wait {
            true => face.wait(read, reply),
            false => {
                let batches = face.read(&read);
                answer(reply, batches.map(|(batches, body)| (batches.to_bytes(), body.into())));
            }
        });
    }

    /// Answers when there is an entry; then the read comes again, for the memory that it takes.
    fn wait(&self, read: msg::Read, reply: Reply) {
        let fold = Category::new(&read.category).and_then(|category| self.fold(&category, false));
        let fold = match fold {
            Ok(fold) => fold,
            Err(e) => return reply.send(Response::error(e)),
        };
        let now_ns = self.node.machine.clock.monotonic_ns();
        let is_over = move |waits: &(msg::Read, Reply)| {
            waits.1.deadline_ns().is_some_and(|end_ns| end_ns <= now_ns)
        };
        let woken = |(read, reply): (msg::Read, Reply), woken: &Result<()>| match woken {
            Ok(()) => reply.again(msg::Read { wait: false, ..read }.to_bytes()),
            Err(e) => reply.send(Response::error(e.clone())),
        };
        let place = (read.category.clone(), read.from);
        let ask = |place: &(String, Index), wake| fold.wake_at(place.1, wake);
        self.tails.wait(place, (read, reply), is_over, woken, ask);
    }

    fn read(&self, read: &msg::Read) -> Result<(msg::Batches, Vec<u8>)> {
        let category = Category::new(&read.category)?;
        let fold = self.fold(&category, false)?;
        let log = self.node.log_for_clients();
        let first = self.node.log.info(&category.topic())?.first;
        let (from, next, applied) = fold.read(|view, applied| {
            let from = match read.from {
                msg::FROM_NEXT => Index(applied.0 + 1),
                Index(0) => first,
                from => from,
            };
            (from, view.next_taken(from), applied)
        })?;
        if from < first {
            return Err(gone(&category, from, first));
        }
        let skips = planted!("scribe.read-skips") && next == Some(from) && read.from != Index(0);
        let next = next.map(|next| Index(next.0 + u64::from(skips)));
        let mut body = Vec::new();
        let Some(next) = next else {
            let next = from.max(Index(applied.0 + 1));
            return Ok((msg::Batches { batches: Vec::new(), next }, body));
        };
        let mut batches = msg::Batches { batches: Vec::new(), next };
        let bytes_max = (read.bytes_max as usize).min(msg::READ_BYTES_MAX);
        let page = log.read(&category.topic(), next, LOOKED_AT_MAX, bytes_max, Scope::Durable);
        let entries = match page {
            // It was given up meanwhile, and whoever asks for the oldest does not mind.
            Err(_)
                if read.from == Index(0) && self.node.log.info(&category.topic())?.first > next =>
            {
                return self.read(read);
            }
            page => page?,
        };
        let taken: Vec<bool> = fold.read(|view, applied| {
            let counts = |index: Index| {
                index <= applied
                    && (view.has_taken(index) || planted!("scribe.dropped-batches-shown"))
            };
            entries.iter().map(|(index, _)| counts(*index)).collect()
        })?;
        for ((index, entry), taken) in entries.iter().zip(taken) {
            // What comes behind was not applied here yet.
            if *index > applied {
                break;
            }
            batches.next = Index(index.0 + 1);
            let Some(bytes) =
                entry.get(ENVELOPE_BYTES..).filter(|bytes| taken && batch::is_one(bytes))
            else {
                continue;
            };
            batches.batches.push(msg::Indexed { index: *index, bytes: bytes.len() as u32 });
            body.extend_from_slice(bytes);
        }
        Ok((batches, body))
    }

    fn serve_status(self: Arc<Self>, request: Request<'_>) {
        let (face, reply) = (self.clone(), request.reply);
        self.node.workers.run(move || {
            let status = face.status();
            answer(reply, status.map(|status| (status.to_bytes(), Parts::None)));
        });
    }

    fn status(&self) -> Result<Vec<msg::CategoryStatus>> {
        self.open_others();
        let folds: Vec<_> =
            self.folds.held().iter().map(|(name, fold)| (name.clone(), fold.clone())).collect();
        let mut all = Vec::new();
        for (category, fold) in folds {
            let info = self.node.log.info(&category.topic())?;
            let kept = self.kept(&category)?;
            let one = fold.read(|view, applied| {
                let view::Totals { batches, messages, raw_bytes, dropped } = view.totals();
                let (lost, lost_spools) = words::lost_of(view);
                msg::CategoryStatus {
                    category: category.name().to_owned(),
                    first: info.first,
                    next: Index(applied.0 + 1),
                    batches,
                    messages,
                    raw_bytes,
                    dropped,
                    spools: view.spools() as u64,
                    log_bytes: info.bytes,
                    kept,
                    readers: view
                        .readers()
                        .map(|(name, next)| msg::ReaderAt { reader: name.to_owned(), next })
                        .collect(),
                    lost,
                    lost_spools,
                }
            });
            all.push(one?);
        }
        Ok(all)
    }
}

/// Who reads too late hears from where on there is something, as readers of other topics do.
fn gone(category: &Category, from: Index, first: Index) -> Error {
    Error::not_found(format!(
        "read category `{category}` from entry {from}: what is in front of entry {first} is given up, by how \
         long the category is kept: read from {first} on"
    ))
}

/// Whether a spool's batch is one that its topic has: no entry is needed to say so.
fn has(head: &batch::Head, position: Position) -> bool {
    head.spool != SpoolId::NONE && head.ends().next <= position.next
}

/// The batches of an append, each looked at whole.
fn split(append: &msg::Append, body: &[u8]) -> Result<Vec<(batch::Head, Vec<u8>)>> {
    let wrong = |what: &str| Error::invalid(format!("append to categories: {what}"));
    if body.len() > msg::APPEND_BYTES_MAX {
        return Err(wrong("the batches are too large together: send fewer at once"));
    }
    let named: BTreeSet<&str> = append.categories.iter().map(String::as_str).collect();
    let (mut reader, mut batches) = (Reader::new(body), Vec::new());
    while reader.remaining() > 0 {
        let bytes = reader.bytes().map_err(|_| wrong("the last batch is cut: send it again"))?;
        let (head, _) = batch::verify(bytes)?;
        if !named.contains(head.category.name()) {
            return Err(wrong("a batch is of a category that the request does not name: name it"));
        }
        batches.push((head, bytes.to_vec()));
        if batches.len() > msg::APPEND_BATCHES_MAX {
            return Err(wrong("there are too many batches: send fewer at once"));
        }
    }
    Ok(batches)
}

/// What a spool is told: where it is, or why its category takes nothing. Other categories go on then; an
/// error is for what is wrong with the node or its log.
fn told(position: Result<Position>) -> Result<msg::Position> {
    let refused =
        |e: Error, never| msg::Position { next: 0, checksum: 0, refused: e.message, never };
    match position {
        Ok(Position { next, checksum }) => {
            Ok(msg::Position { next, checksum, refused: String::new(), never: false })
        }
        Err(e) if is_about_one(&e) => {
            let never = e.kind == Kind::Invalid;
            Ok(refused(e, never))
        }
        Err(e) => Err(e),
    }
}

/// Whether an error is one of a single category: it never takes this, or its view has stopped.
fn is_about_one(e: &Error) -> bool {
    matches!(e.kind, Kind::Invalid | Kind::Corrupt | Kind::Unsupported | Kind::Bug)
}

/// A node as the first hop: what its own door takes becomes batches of nobody's spool, which are kept where
/// the log is.
impl Keeps for ScribeFace {
    fn knows_or_may(&self, category: &Category) -> bool {
        let folds = self.folds.held();
        folds.contains_key(category) || folds.len() < CATEGORIES_MAX
    }

    fn has_room(&self, _: usize) -> bool {
        // Its log refuses what it has no room for.
        true
    }

    fn keep(&self, groups: &[Vec<Packed>]) -> Vec<NotKept> {
        // One request after the other: what comes together stays in its order.
        let mut not_kept = vec![NotKept::new(); groups.len()];
        let mut some: Vec<(usize, &Packed)> = Vec::new();
        let mut bytes = 0;
        let all = groups.iter().enumerate();
        for (group, packed) in all.flat_map(|(at, group)| group.iter().map(move |one| (at, one))) {
            if bytes + batch::ENCODED_BYTES_MAX > msg::APPEND_BYTES_MAX || some.len() == AT_ONCE_MAX
            {
                self.keep_some(&std::mem::take(&mut some), &mut not_kept);
                bytes = 0;
            }
            some.push((group, packed));
            bytes += packed.bytes();
        }
        self.keep_some(&some, &mut not_kept);
        not_kept
    }
}

impl ScribeFace {
    /// Appends batches, each of a group, and says of the groups what was not kept.
    fn keep_some(&self, batches: &[(usize, &Packed)], not_kept: &mut [NotKept]) {
        let (positions, failed) = match self.append_own(batches) {
            Ok(positions) => (positions.positions, None),
            // Even if the same batches can never be taken together, each of them may be.
            Err(e) => (Vec::new(), Some(Error::retry(e.message))),
        };
        for (at, (group, packed)) in batches.iter().enumerate() {
            let e = match positions.get(at) {
                Some(position) if position.refused.is_empty() => continue,
                Some(position) if position.never => Error::invalid(&position.refused),
                Some(position) => Error::retry(&position.refused),
                None => failed.clone().unwrap_or_else(|| {
                    Error::bug("append to categories: there are fewer answers than batches")
                }),
            };
            not_kept[*group].insert(packed.category.clone(), e);
        }
    }

    fn append_own(&self, packed: &[(usize, &Packed)]) -> Result<msg::Positions> {
        let bytes: Vec<Vec<u8>> =
            packed.iter().map(|(_, packed)| packed.without_number()).collect();
        self.node.wait_for(|done: Appended| match self.node.answers_for_log() {
            true => {
                let batches = bytes.into_iter().map(|bytes| Ok((batch::decode(&bytes)?.0, bytes)));
                match batches.collect::<Result<Vec<_>>>() {
                    Ok(batches) => self.append(batches, done),
                    Err(e) => done(Err(e)),
                }
            }
            false => {
                let names: BTreeSet<&str> =
                    packed.iter().map(|(_, packed)| packed.category.name()).collect();
                let categories = names.into_iter().map(str::to_owned).collect();
                let mut body = Vec::new();
                bytes.iter().for_each(|batch| put_bytes(&mut body, batch));
                let meta = msg::Append { categories }.to_bytes();
                let answered = move |answered: Result<PeerReply>| {
                    done(answered.and_then(|reply| Ok(msg::Positions::from_bytes(&reply.meta)?)));
                };
                ask_host(&self.node, (wire::OP_SCRIBE_APPEND, meta, body), None, answered);
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Builder;

    /// A client's rights are asked for by the names in the request: a batch of another category would go
    /// past them.
    #[test]
    fn a_batch_of_a_category_that_is_not_named_is_refused() {
        let mut builder = Builder::default();
        builder.push(b"x");
        let batch = builder.pack(Category::new("theirs").unwrap()).without_number();
        let mut body = Vec::new();
        put_bytes(&mut body, &batch);
        let named = |names: &[&str]| {
            let categories = names.iter().map(|name| (*name).to_owned()).collect();
            split(&msg::Append { categories }, &body).map(|batches| batches.len())
        };
        assert_eq!(named(&["theirs", "own"]), Ok(1));
        assert!(named(&["own"]).unwrap_err().message.contains("does not name"));
        let cut = split(&msg::Append { categories: vec!["theirs".into()] }, &body[..9]);
        assert_eq!(cut.unwrap_err().kind, Kind::Invalid);
    }
}
