//! The face: operations of the native protocol on topics of items, their views and rides. Runs on
//! threads of the server and never waits there: what may wait is done by the node's workers.

mod find;
mod sum;

use crate::carousel::Ticket;
use crate::rides::Wish;
use crate::scan::First;
use crate::views::{DiskFold, KeptView, RunView, Views, begins_anew, describe};
use holdfast_base::codec::{Decode, Encode, Reader as Bytes};
use holdfast_base::ids::{Index, SessionId};
use holdfast_base::limits::{ENTRY_BYTES_MAX, FRAME_META_BYTES_MAX};
use holdfast_base::rules::Access;
use holdfast_base::{Error, Kind, Result};
use holdfast_env::net::{Parts, PeerReply, Reply};
use holdfast_env::{planted, sometimes};
use holdfast_log::{Done, Mode};
use holdfast_node::{Held, Matter, Node};
use holdfast_server::{Face, Request, Right, Route, Told, Within, answer, ask_host};
use holdfast_view::items::{Catalog, Command, Reader, Sought, log_topic};
use holdfast_view::{ENVELOPE_BYTES, Request as Proposal};
use holdfast_wire::slab::{Collections, Fields, Range, Wanted};
use holdfast_wire::view::{self as msg, ViewKind, ViewName};
use holdfast_wire::{self as wire, Call};
use std::sync::Arc;

/// Keys of one read, and of one part of a scan.
const KEYS_MAX: usize = 1000;
/// Bytes of values in one answer; there is always room for one.
const ANSWER_BYTES_MAX: usize = FRAME_META_BYTES_MAX as usize / 2;
/// How long another node may take to make a topic.
const MAKE_MS: u32 = 10_000;
/// And how long it may take to ask all others for their rides, and to move a horizon.
const HORIZON_MS: u32 = 15_000;

/// Views of items, served by one node.
pub struct ViewFace {
    views: Arc<Views>,
    /// The view that the process is there for, if it is there for one.
    alone: Option<ViewName>,
}

type Answer = Result<(Vec<u8>, Parts)>;

fn coded(message: Result<impl Encode>) -> Answer {
    message.map(|message| (message.to_bytes(), Parts::None))
}

/// The topic is the first field of most requests.
fn topic_of(meta: &[u8]) -> Result<String> {
    String::decode(&mut Bytes::new(meta))
        .map_err(|e| Error::invalid(format!("use a topic of items: {e}: use matching builds")))
}

/// Whether rules allow this of the request's topic; no name stands for all of them.
fn allows(access: Access) -> impl Fn(&[u8], &Within) -> Result<()> + Send + Sync {
    move |meta, within: &Within| {
        let topic = topic_of(meta)?;
        let (name, what) = match topic.as_str() {
            "" => ("*".to_owned(), "use all topics".to_owned()),
            one => (log_topic(one)?, format!("use topic `{}`", one.escape_debug())),
        };
        let doing = |e: Error| e.context(what);
        within.rules.check_topic(&name, access).map_err(doing)
    }
}

fn change_told(meta: &[u8]) -> Told {
    let change = msg::Change::from_bytes(meta).ok()?;
    Some(("view change", change.topic))
}

fn session_told(meta: &[u8]) -> Told {
    Some(("view session", String::from_bytes(meta).ok()?))
}

fn make_told(meta: &[u8]) -> Told {
    let make = msg::Make::from_bytes(meta).ok()?;
    Some(("view collection", format!("{}: {}", make.topic, make.collection.name)))
}

fn horizon_told(meta: &[u8]) -> Told {
    let horizon = msg::Horizon::from_bytes(meta).ok()?;
    Some(("view horizon", format!("{} to {}", horizon.topic, horizon.index)))
}

fn mark_told(meta: &[u8]) -> Told {
    Some(("view mark", msg::Mark::from_bytes(meta).ok()?.topic))
}

fn run_told(meta: &[u8]) -> Told {
    Some(("view run", describe(&ViewName::from_bytes(meta).ok()?)))
}

fn stop_told(meta: &[u8]) -> Told {
    Some(("view stop", describe(&ViewName::from_bytes(meta).ok()?)))
}

impl Face for ViewFace {
    fn routes(self: Arc<Self>) -> Vec<Route> {
        let route = |opcode: u16, right: Right, serve: fn(Arc<ViewFace>, Request<'_>)| {
            let face = self.clone();
            Route::new(opcode, right, move |request| serve(face.clone(), request))
        };
        let read = |opcode, serve| {
            route(opcode, Right::Data, serve)
                .allows(allows(Access::Read))
                .answer_bytes(|_| FRAME_META_BYTES_MAX as u64)
        };
        let order = |opcode, serve| {
            route(opcode, Right::Admin, serve)
                .allows(|_, within| within.rules.check_admin(Access::Write))
        };
        let write = |opcode, serve| route(opcode, Right::Data, serve).allows(allows(Access::Write));
        vec![
            write(wire::OP_VIEW_SESSION, ViewFace::open_session)
                .audited(Matter::Data, session_told),
            write(wire::OP_VIEW_MAKE, ViewFace::make).audited(Matter::Data, make_told),
            write(wire::OP_VIEW_CHANGE, ViewFace::change).audited(Matter::Data, change_told),
            write(wire::OP_VIEW_HORIZON, ViewFace::horizon).audited(Matter::Data, horizon_told),
            write(wire::OP_VIEW_MARK, ViewFace::mark).audited(Matter::Data, mark_told),
            read(wire::OP_VIEW_CATALOG, ViewFace::catalog),
            read(wire::OP_VIEW_GET, ViewFace::get),
            read(wire::OP_VIEW_SCAN, ViewFace::scan),
            read(wire::OP_VIEW_FIND, ViewFace::find),
            read(wire::OP_VIEW_SUM, ViewFace::sum),
            read(wire::OP_VIEW_STATUS, ViewFace::status),
            order(wire::OP_VIEW_RUN, ViewFace::run).audited(Matter::Admin, run_told),
            order(wire::OP_VIEW_STOP, ViewFace::stop).audited(Matter::Admin, stop_told),
            read(wire::OP_RIDE_BEGIN, ViewFace::board),
            // Who names a ride has begun it: its number is drawn from 2^64.
            // It may wait for long, and takes no memory meanwhile: what is under way to a rider is
            // bounded there.
            route(wire::OP_RIDE_NEXT, Right::Known, ViewFace::next),
            route(wire::OP_RIDE_END, Right::Known, ViewFace::leave),
            read(wire::OP_RIDE_DOUBT, ViewFace::doubt),
        ]
    }
}

impl ViewFace {
    /// Serves these views. Where the process is there for one of them alone, nobody may have it run others,
    /// or end that one and leave a process that does nothing.
    pub fn new(views: Arc<Views>, alone: Option<ViewName>) -> Arc<ViewFace> {
        Arc::new(ViewFace { views, alone })
    }

    /// What is said in such a process to who wants another view run, or a view ended.
    fn check_is_no_other(&self, doing: &str, name: &ViewName) -> Result<()> {
        let Some(alone) = &self.alone else { return Ok(()) };
        let (asked, alone) = (describe(name), describe(alone));
        let follows = &self.views.node.log_host()?;
        Err(Error::invalid(format!(
            "{doing} view `{asked}`: asked was a process that keeps view `{alone}` alone, until it is \
             interrupted: of other views ask the node that it follows (`--server {follows}`), or another one"
        )))
    }

    /// Does what may wait, and answers.
    fn work(&self, reply: Reply, work: impl FnOnce() -> Answer + Send + 'static) {
        self.views.node.workers.run(move || answer(reply, work()));
    }

    /// Has `with` do something with a topic's catalog: at once where it is open.
    fn with_topic(
        self: &Arc<Self>,
        topic: String,
        reply: Reply,
        with: impl FnOnce(Arc<ViewFace>, Arc<crate::views::Topic>, Reply) + Send + 'static,
    ) {
        if let Some(fold) = self.views.known(&topic) {
            return with(self.clone(), fold, reply);
        }
        let face = self.clone();
        let workers = &self.views.node.workers;
        if workers.is_inline() {
            // Nobody waits here for the log's host: rounds open it.
            let later = format!("use topic `{topic}`: this node has not opened it yet");
            return answer(reply, Err(Error::retry(later)));
        }
        workers.run(move || match face.views.topic(&topic) {
            Ok(fold) => with(face, fold, reply),
            Err(e) => answer(reply, Err(e)),
        });
    }

    fn open_session(self: Arc<Self>, request: Request<'_>) {
        let Some((topic, reply)) = request.decode::<String>("open a session") else { return };
        self.with_topic(topic, reply, |face, fold, reply| {
            let node = face.views.node.clone();
            let opened = move |session: Result<SessionId>| {
                answer(reply, coded(session.map_err(|e| at_host(&node, e))));
            };
            // Synced: a session that a power cut takes back would share its id with a later one.
            fold.open_session(Mode::Synced, Box::new(opened));
        });
    }

    fn propose(&self, fold: &crate::views::Topic, call: Call, command: Vec<u8>, reply: Reply) {
        let node = self.views.node.clone();
        let applied = move |applied: Result<(Index, Vec<u8>)>| {
            // The result names the entry that was the first with this number.
            let changed = applied.and_then(|(_, first)| Ok(msg::Changed::from_bytes(&first)?));
            answer(reply, coded(changed.map_err(|e| at_host(&node, e))));
        };
        fold.propose(Proposal::of(call, command, Mode::Synced), Box::new(applied));
    }

    fn make(self: Arc<Self>, request: Request<'_>) {
        let meta = request.meta.to_vec();
        let Some((make, reply)) = request.decode::<msg::Make>("make a collection") else { return };
        let node = self.views.node.clone();
        if !node.answers_for_log() {
            return self.make_at_host(make.topic, meta, reply);
        }
        node.workers.clone().run(move || match self.views.make_topic(&make.topic) {
            Ok(fold) => {
                let command = Command::collection(&make.collection);
                self.propose(&fold, Call::default(), command, reply);
            }
            Err(e) => answer(reply, Err(e)),
        });
    }

    /// Who keeps the log makes topics. It is answered when it is known here, too: who made a collection and put
    /// something into it, both through this node, was told that there is none.
    fn make_at_host(self: Arc<Self>, topic: String, meta: Vec<u8>, reply: Reply) {
        let face = self.clone();
        let answered = move |answered: Result<PeerReply>| {
            let made = answered.and_then(|a| Ok((msg::Changed::from_bytes(&a.meta)?, a.meta)));
            let (changed, meta) = match made {
                Ok(made) => made,
                Err(e) => return answer(reply, Err(e)),
            };
            if planted!("ride.made-before-it-is-known-here") {
                return answer(reply, Ok((meta, Parts::None)));
            }
            face.with_topic(topic, reply, move |_, fold, reply| {
                let known = move |known: Result<()>| {
                    answer(reply, known.map(|()| (meta, Parts::None)));
                };
                fold.wake_at(changed.index, Box::new(known));
            });
        };
        let asked = (wire::OP_VIEW_MAKE, meta, Vec::new());
        ask_host(&self.views.node, asked, Some(MAKE_MS), answered);
    }

    fn change(self: Arc<Self>, request: Request<'_>) {
        let asked = request.decode_with_body::<msg::Change>("change items");
        let Some((msg::Change { topic, call }, body, reply)) = asked else { return };
        let body = body.into_vec();
        self.with_topic(topic, reply, move |face, fold, reply| {
            let command = Command::of_changes(&body);
            if command.len() + ENVELOPE_BYTES > ENTRY_BYTES_MAX {
                return answer(reply, Err(too_long(command.len())));
            }
            let checked = fold.read(|view, _| check_changes(view.catalog(), &command));
            if let Err(e) = checked.and_then(|checked| checked) {
                return answer(reply, Err(e));
            }
            face.propose(&fold, call, command, reply);
        });
    }

    fn horizon(self: Arc<Self>, request: Request<'_>) {
        let meta = request.meta.to_vec();
        let asked = request.decode::<msg::Horizon>("move the horizon");
        let Some((msg::Horizon { topic, call, index }, reply)) = asked else { return };
        // Rides of all nodes are asked for in one place: who looks after the log decides how far it goes.
        if !self.views.node.looks_after_log() {
            return self.ask_host(wire::OP_VIEW_HORIZON, meta, HORIZON_MS, reply);
        }
        let name = match log_topic(&topic) {
            Ok(name) => name,
            Err(e) => return answer(reply, Err(e)),
        };
        self.with_topic(topic, reply, move |face, fold, reply| {
            let (node, asked) = (face.views.node.clone(), name.clone());
            let decide = move |held: Result<Held>| {
                let held = match held {
                    Ok(held) => held,
                    Err(e) => return answer(reply, Err(e.context("move the horizon"))),
                };
                let until = match planted!("ride.horizon-past-a-ride") {
                    true => index,
                    false => face.views.node.bounded_by_holds(&name, index, &held),
                };
                if until < index {
                    sometimes!("a ride was in front of the horizon");
                }
                let now = fold.read(|view, applied| (view.catalog().horizon(), applied));
                if let Ok((horizon, index)) = now
                    && until <= horizon
                {
                    // It never goes back, and nothing is written down that changes nothing.
                    return answer(reply, coded(Ok(msg::Moved { index, horizon })));
                }
                ViewFace::move_horizon(&fold, call, until, reply);
            };
            node.ask_holds(&asked, decide);
        });
    }

    fn move_horizon(fold: &Arc<crate::views::Topic>, call: Call, until: Index, reply: Reply) {
        let moved = fold.clone();
        let applied = move |applied: Result<(Index, Vec<u8>)>| {
            let moved = applied.and_then(|(_, first)| {
                let msg::Changed { index } = msg::Changed::from_bytes(&first)?;
                let horizon = moved.read(|view, _| view.catalog().horizon())?;
                Ok(msg::Moved { index, horizon })
            });
            answer(reply, coded(moved));
        };
        fold.propose(Proposal::of(call, Command::horizon(until), Mode::Synced), Box::new(applied));
    }

    /// Has the node that looks after the log answer in the place of this one.
    fn ask_host(&self, opcode: u16, meta: Vec<u8>, deadline_ms: u32, reply: Reply) {
        let answered = move |answered: Result<PeerReply>| {
            answer(reply, answered.map(|answered| (answered.meta, Parts::None)));
        };
        ask_host(&self.views.node, (opcode, meta, Vec::new()), Some(deadline_ms), answered);
    }

    fn mark(self: Arc<Self>, request: Request<'_>) {
        let asked = request.decode::<msg::Mark>("ask for images");
        let Some((msg::Mark { topic, call }, reply)) = asked else { return };
        self.with_topic(topic, reply, move |face, fold, reply| {
            face.propose(&fold, call, Command::mark(), reply);
        });
    }

    fn catalog(self: Arc<Self>, request: Request<'_>) {
        let Some((topic, reply)) = request.decode::<String>("describe a topic") else { return };
        self.with_topic(topic, reply, |_, fold, reply| {
            let told = |catalog: &Catalog, applied: Index| {
                let collections = catalog.all().map(|(_, one)| one.clone()).collect();
                msg::Catalog { collections, horizon: catalog.horizon(), applied }
            };
            let now = fold.read(|view, applied| told(view.catalog(), applied));
            // Of one that has stopped as of the entry that it has come to: collections never go, and who reads as of
            // an earlier one, or rides an image, needs them.
            let applied = fold.status().applied;
            let catalog = now.unwrap_or_else(|_| fold.read_last(|v| told(v.catalog(), applied)));
            answer(reply, coded(Ok(catalog)));
        });
    }

    /// Has `read` answer from a view of the topic that has keys of all of these hashes, once it has reached
    /// an index.
    fn read_from(
        self: &Arc<Self>,
        (topic, hashes): (&str, &[u32]),
        (reached, at): (Index, Option<Index>),
        reply: Reply,
        read: impl FnOnce(&RunView) -> Answer + Send + 'static,
    ) {
        let views = self.views.of(topic);
        let has_all = |range: Range| hashes.iter().all(|hash| range.contains(*hash));
        let is_index = |view: &RunView| matches!(view.kept, KeptView::Index { .. });
        let has = |view: &&Arc<RunView>| has_all(view.range) && !is_index(view);
        // Memory answers soonest, and knows no earlier index.
        let is_disk = |view: &RunView| matches!(view.kept, KeptView::Disk { .. });
        let rank = |view: &&Arc<RunView>| is_disk(view) != at.is_some();
        let Some(view) = views.iter().filter(has).min_by_key(rank).cloned() else {
            let is_one = |name: &ViewName| {
                let is_index = matches!(name.kind, ViewKind::Index { .. });
                name.topic == topic && !is_index && has_all(Range::part(name.part, name.of))
            };
            let comes = self.views.comes(&format!("read topic `{topic}`"), is_one);
            return answer(reply, Err(comes.unwrap_or_else(|| no_view(topic))));
        };
        self.once_reached(view, reached.max(at.unwrap_or_default()), reply, read);
    }

    /// Has `read` answer from a view once it has reached an index.
    fn once_reached(
        self: &Arc<Self>,
        view: Arc<RunView>,
        reached: Index,
        reply: Reply,
        read: impl FnOnce(&RunView) -> Answer + Send + 'static,
    ) {
        if let Err(e) = self.views.check_is_there(&view.name.topic, reached) {
            return answer(reply, Err(e));
        }
        let face = self.clone();
        let waited = view.clone();
        let then = move |come: Result<()>| match come {
            Ok(()) => face.work(reply, move || read(&view).map_err(begins_anew)),
            Err(e) => answer(reply, Err(e)),
        };
        waited.wake_at(reached, Box::new(then) as Done<()>);
    }

    fn get(self: Arc<Self>, request: Request<'_>) {
        let Some((get, reply)) = request.decode::<msg::Get>("read items") else { return };
        if get.keys.is_empty() || get.keys.len() > KEYS_MAX {
            let wrong = format!("read items: {} keys: ask for 1 to {KEYS_MAX}", get.keys.len());
            return answer(reply, Err(Error::invalid(wrong)));
        }
        self.with_topic(get.topic.clone(), reply, move |face, fold, reply| {
            let hashes = catalog_at(&fold, get.at, |catalog| {
                let hash = |key: &msg::Key| {
                    catalog.check_for("read items", key.collection, &key.key)?;
                    Ok(catalog.hash(key.collection, &key.key))
                };
                get.keys.iter().map(hash).collect::<Result<Vec<u32>>>()
            });
            let hashes = match hashes.and_then(|hashes| hashes) {
                Ok(hashes) => hashes,
                Err(e) => return answer(reply, Err(e)),
            };
            let (topic, when) = (get.topic.clone(), (get.reached, get.at));
            face.read_from((&topic, &hashes), when, reply, move |view| {
                coded(read_keys(view, &get))
            });
        });
    }

    fn scan(self: Arc<Self>, request: Request<'_>) {
        let Some((scan, reply)) = request.decode::<msg::Scan>("seek items") else { return };
        self.with_topic(scan.topic.clone(), reply, move |face, fold, reply| {
            let hash = catalog_at(&fold, scan.at, |catalog| {
                catalog.hash_of_prefix(scan.collection, &scan.prefix)
            });
            let hash = match hash.and_then(|hash| hash) {
                Ok(hash) => hash,
                Err(e) => return answer(reply, Err(e)),
            };
            let (topic, when) = (scan.topic.clone(), (scan.reached, scan.at));
            face.read_from((&topic, &[hash]), when, reply, move |view| coded(seek(view, &scan)));
        });
    }

    fn run(self: Arc<Self>, request: Request<'_>) {
        let Some((name, reply)) = request.decode::<ViewName>("run a view") else { return };
        if let Err(e) = self.check_is_no_other("run", &name) {
            return answer(reply, Err(e));
        }
        let views = self.views.clone();
        self.work(reply, move || coded(views.run(&name)));
    }

    fn stop(self: Arc<Self>, request: Request<'_>) {
        let Some((name, reply)) = request.decode::<ViewName>("stop a view") else { return };
        if let Err(e) = self.check_is_no_other("stop", &name) {
            return answer(reply, Err(e));
        }
        let views = self.views.clone();
        self.work(reply, move || coded(views.stop(&name).map(|place| place.display().to_string())));
    }

    fn status(self: Arc<Self>, request: Request<'_>) {
        let Some((topic, reply)) = request.decode::<String>("describe views") else { return };
        let views = self.views.clone();
        self.work(reply, move || {
            let mut all = views.status();
            all.retain(|status| topic.is_empty() || status.view.topic == topic);
            coded(Ok(all))
        });
    }

    fn board(self: Arc<Self>, request: Request<'_>) {
        let Some((board, reply)) = request.decode::<msg::Board>("ride a view") else { return };
        let found = wish(&board).and_then(|wish| {
            let view = self.views.view(&board.view)?;
            self.views.check_is_there(&board.view.topic, board.reached)?;
            Ok((wish, view))
        });
        let (wish, view) = match found {
            Ok(found) => found,
            Err(e) => return answer(reply, Err(e)),
        };
        let KeptView::Disk { rides, .. } = &view.kept else {
            return answer(
                reply,
                Err(Error::invalid(format!(
                    "ride view `{}`: disk views alone are ridden",
                    describe(&board.view)
                ))),
            );
        };
        let rides = rides.clone();
        self.with_topic(board.view.topic.clone(), reply, move |face, fold, reply| {
            let checked = catalog_at(&fold, board.at, |catalog| check_fields(catalog, &wish));
            if let Err(e) = checked.and_then(|checked| checked) {
                return answer(reply, Err(e));
            }
            let clock = face.views.node.machine.clock.clone();
            let then = move |come: Result<()>| {
                if let Err(e) = come {
                    return answer(reply, Err(e));
                }
                // Who has asked again by now rides by that.
                let is_late =
                    reply.deadline_ns().is_some_and(|at_ns| at_ns <= clock.monotonic_ns());
                if is_late {
                    return answer(
                        reply,
                        Err(Error::retry("ride a view: the deadline has passed")),
                    );
                }
                let at_least = board.reached;
                let from = board.behind.as_ref().map(|last| First::behind(last).to_bytes());
                let ticket = match board.at {
                    Some(index) => Ticket::At { index, from },
                    None if board.dedicated => Ticket::Dedicated { at_least },
                    None => Ticket::Shared { at_least },
                };
                rides.board(wish, ticket, reply);
            };
            view.wake_at(board.reached, Box::new(then));
        });
    }

    fn next(self: Arc<Self>, request: Request<'_>) {
        let Some((next, reply)) = request.decode::<msg::Next>("ride on") else { return };
        match self.views.rides_of(next.ride) {
            Some(rides) => rides.next(next.ride, next.head as usize, reply),
            None => {
                answer(reply, Err(Error::not_found("ride on: there is no such ride (any more)")))
            }
        }
    }

    fn leave(self: Arc<Self>, request: Request<'_>) {
        let Some((ride, reply)) = request.decode::<u64>("end a ride") else { return };
        self.views.rides_of(ride).iter().for_each(|rides| rides.leave(ride));
        answer(reply, coded(Ok(())));
    }

    fn doubt(self: Arc<Self>, request: Request<'_>) {
        let asked = request.decode::<msg::Doubt>("doubt an image");
        let Some((msg::Doubt { view, index }, reply)) = asked else { return };
        answer(reply, coded(self.views.doubt(&view, index)));
    }
}

/// Reads a topic's catalog for who asks as of an entry, or of the present. The first is answered also where the topic
/// goes on with an entry that this build does not know: the views held what was before, and refused to say it.
fn catalog_at<R>(
    fold: &crate::views::Topic,
    at: Option<Index>,
    read: impl FnOnce(&Catalog) -> R,
) -> Result<R> {
    match at {
        Some(_) if !planted!("ride.stopped-topics-are-mute") => {
            Ok(fold.read_last(|topic| read(topic.catalog())))
        }
        _ => fold.read(|topic, _| read(topic.catalog())),
    }
}

fn too_long(bytes: usize) -> Error {
    Error::invalid(format!(
        "change items: the changes have {bytes} bytes, and one entry takes {}: send fewer at a time",
        ENTRY_BYTES_MAX - ENVELOPE_BYTES
    ))
}

/// What is not written for now, as the log does not answer, is told with whose that is.
fn at_host(node: &Node, e: Error) -> Error {
    match e.kind == Kind::Retry && !node.answers_for_log() {
        true => e.context("write to the log, at the node that keeps it"),
        false => e,
    }
}

fn no_view(topic: &str) -> Error {
    Error::not_found(format!(
        "read topic `{topic}`: this node runs no view of it that has all of these keys: `holdfast \
         view status` says who does, `holdfast view run` runs one"
    ))
}

/// As applying will, and that values of collections of JSON are JSON.
fn check_changes(catalog: &Catalog, command: &[u8]) -> Result<()> {
    for change in Command::changes(command)? {
        catalog.check(change.collection, change.key)?;
        let json = catalog.collection(change.collection).is_some_and(|one| one.json);
        if let Some(value) = change.value.filter(|_| json)
            && let Err(why) = check_json(value)
        {
            return Err(Error::invalid(format!(
                "change items: the value of key `{}` is no JSON ({why}), and its collection is of JSON",
                String::from_utf8_lossy(change.key).escape_debug()
            )));
        }
    }
    Ok(())
}

/// Says why a value is no JSON. JSON is text, too: whoever skips a string does not look at its bytes.
pub fn check_json(value: &[u8]) -> std::result::Result<(), String> {
    let text = std::str::from_utf8(value).map_err(|e| e.to_string())?;
    serde_json::from_str::<serde::de::IgnoredAny>(text).map(drop).map_err(|e| e.to_string())
}

fn read_keys(view: &RunView, get: &msg::Get) -> Result<msg::Got> {
    let mut bytes = 0;
    let mut add = |found: Option<msg::Found>| {
        bytes += found.as_ref().map_or(0, |found| found.value.len());
        match bytes > ANSWER_BYTES_MAX && get.keys.len() > 1 {
            true => Err(Error::invalid(format!(
                "read items: the values of {} keys are longer than {ANSWER_BYTES_MAX} bytes \
                 together: ask for fewer at a time",
                get.keys.len()
            ))),
            false => Ok(found),
        }
    };
    match &view.kept {
        KeptView::Disk { fold, rows, .. } => {
            check_goes_on(fold, get.at)?;
            let reader = Reader::new(rows.moment()?)?;
            let found = get.keys.iter().map(|key| {
                let found = reader.get(key.collection, &key.key, get.at)?;
                add(found.map(|found| msg::Found { index: found.index, value: found.value }))
            });
            Ok(msg::Got { found: found.collect::<Result<_>>()?, applied: reader.applied() })
        }
        KeptView::Memory { fold } => fold.read(|view, applied| {
            check_latest(get.at, applied)?;
            let found = get.keys.iter().map(|key| {
                let found = view.get(key.collection, &key.key);
                add(found.map(|(index, value)| msg::Found { index, value: value.to_vec() }))
            });
            Ok(msg::Got { found: found.collect::<Result<_>>()?, applied })
        })?,
        KeptView::Index { .. } => Err(no_view(&get.topic)),
    }
}

/// The latest of a view that has stopped is not the latest: what it had then is read by its entry alone.
fn check_goes_on(fold: &DiskFold, at: Option<Index>) -> Result<()> {
    match at {
        None if !planted!("ride.stopped-views-answer") => fold.read(|_, _| ()),
        _ => Ok(()),
    }
}

fn check_latest(at: Option<Index>, applied: Index) -> Result<()> {
    match at {
        Some(at) if at != applied => Err(Error::new(
            Kind::Unsupported,
            "read items as of an index: a memory view has the newest values alone: ask a node that runs \
             a disk view",
        )),
        _ => Ok(()),
    }
}

fn seek(view: &RunView, scan: &msg::Scan) -> Result<msg::Rows> {
    let keys_max = (scan.keys_max as usize).clamp(1, KEYS_MAX);
    let msg::Scan { collection, prefix, after, .. } = scan.clone();
    let sought = Sought { collection, prefix, after, keys_max, bytes_max: ANSWER_BYTES_MAX };
    match &view.kept {
        KeptView::Disk { fold, rows, .. } => {
            check_goes_on(fold, scan.at)?;
            let reader = Reader::new(rows.moment()?)?;
            let (found, more) = reader.scan(&sought, scan.at)?;
            let row = |(key, found): (Vec<u8>, holdfast_view::items::Found)| msg::Row {
                key,
                index: found.index,
                value: found.value,
            };
            let rows = found.into_iter().map(row).collect();
            Ok(msg::Rows { applied: reader.applied(), rows, more })
        }
        KeptView::Memory { fold } => fold.read(|view, applied| {
            check_latest(scan.at, applied)?;
            let after = sought.after.as_deref();
            let mut found = view.scan(sought.collection, &sought.prefix, after)?;
            let (mut rows, mut bytes) = (Vec::new(), 0);
            let mut next = found.next();
            while let Some((key, index, value)) = next {
                bytes += key.len() + value.len();
                if !rows.is_empty() && (rows.len() == keys_max || bytes > ANSWER_BYTES_MAX) {
                    break;
                }
                rows.push(msg::Row { key: key.to_vec(), index, value: value.to_vec() });
                next = found.next();
            }
            Ok(msg::Rows { applied, rows, more: next.is_some() })
        })?,
        KeptView::Index { .. } => Err(no_view(&scan.topic)),
    }
}

fn range(low: u64, high: u64) -> Result<Range> {
    match low <= high && high <= Range::ALL.high() {
        true => Ok(Range::new(low, high)),
        false => {
            let end = Range::ALL.high();
            Err(Error::invalid(format!("hashes from {low} to {high}: they go up to {end}")))
        }
    }
}

/// What a rider is sent.
fn wish(board: &msg::Board) -> Result<Wish> {
    let range = range(board.low, board.high).map_err(|e| e.context("ride a view"))?;
    let refuse = |why: &str| Err(Error::invalid(format!("ride a view: {why}")));
    match (board.at, &board.behind) {
        (None, Some(_)) => return refuse("who goes on says of which image: name its entry"),
        (Some(_), _) if board.dedicated => {
            return refuse("an image is read by each rider for itself: leave out `dedicated`");
        }
        (Some(_), Some(place))
            if u64::from(place.hash) != range.low() || place.index.0 == u64::MAX =>
        {
            return refuse("who goes on begins with the hash of the last item");
        }
        _ => {}
    }
    if board.below.is_some_and(|below| below <= board.since) {
        return refuse(
            "no entry is as late as `since` and below `below`: name a range with entries",
        );
    }
    if board.keys_only && board.fields.is_some() {
        return refuse("keys alone have no fields: leave out `keys_only`, or `fields`");
    }
    let fields = board.fields.as_deref().map(Fields::new).transpose();
    let fields = fields.map_err(|e| e.context("ride a view"))?.map(Arc::new);
    let collections = match &board.collections {
        None => Collections::All,
        Some(listed) => {
            let mut listed = listed.clone();
            listed.sort_unstable();
            listed.dedup();
            Collections::Listed(listed)
        }
    };
    let msg::Board { keys_only, versions, .. } = *board;
    let indices = board.since.0..board.below.map_or(u64::MAX, |below| below.0);
    Ok(Wish { wanted: Wanted { range, collections, keys_only, versions, indices }, fields })
}

/// Bytes have no fields.
fn check_fields(catalog: &Catalog, wish: &Wish) -> Result<()> {
    if wish.fields.is_none() {
        return Ok(());
    }
    let mut wanted = catalog.all().filter(|(number, _)| wish.wanted.collections.contains(*number));
    match wanted.find(|(_, one)| !one.json) {
        Some((_, one)) => Err(Error::invalid(format!(
            "ride fields of values: those of collection `{}` are bytes, which have none: name \
             collections of JSON, or ride whole values",
            one.name
        ))),
        None => Ok(()),
    }
}
