//! The log, served: append, read, tail, trim and info of topics. What clients may do with those that
//! folds own is decided in `holdfast_cluster::topics`.

use crate::route::{Face, Request, Right, Route, Told, Within, answer};
use crate::tails::{Place, Tails};
use holdfast_base::Indices;
use holdfast_base::codec::{Decode, Encode, Reader};
use holdfast_base::ids::Index;
use holdfast_base::limits::FRAME_META_BYTES_MAX;
use holdfast_base::rules::Access;
use holdfast_base::{Error, Kind, Reason, Result};
use holdfast_cluster::topics::{AUDIT_TOPIC, Use, check_audit, check_client, folded_by};
use holdfast_env::net::{Parts, PeerReply, PeerRequest, Reply, Response, Who};
use holdfast_env::planted;
use holdfast_log::{Done, Log, Mode, Scope, describe};
use holdfast_node::{Matter, Node};
use holdfast_wire::{self as wire, log as msg, peer_log};
use std::sync::Arc;

/// Entries of one answer, and their bytes: what fits into a frame's meta.
const READ_ENTRIES_MAX: usize = 4096;
const READ_BYTES_MAX: usize = FRAME_META_BYTES_MAX as usize / 2;

/// How long the host of the log may take where the client sets no deadline: tails ask again.
const HOST_MS: u32 = 60_000;

/// Bytes that one request verifies: some tenths of a second of a disk.
const VERIFY_BYTES_MAX: u64 = 64 << 20;
/// And of entries; then the client asks on.
const VERIFY_ENTRIES_MAX: u64 = 1 << 20;

fn entries(log: &dyn Log, read: &msg::Read) -> Result<msg::Entries> {
    let count = (read.entries_max as usize).clamp(1, READ_ENTRIES_MAX);
    let entries = log.read(&read.topic, read.from, count, READ_BYTES_MAX, Scope::Durable)?;
    let entries = entries.into_iter().map(|(index, bytes)| msg::Indexed { index, bytes }).collect();
    Ok(msg::Entries { entries })
}

/// Says also where to begin, where entries were trimmed and images are known.
fn told_where_to_begin(node: &Node, topic: &str, e: Error) -> Error {
    match node.where_to_begin(topic).filter(|_| e.is(Reason::Trimmed)) {
        Some(begin) => Error { message: format!("{}; {begin}", e.message), ..e },
        None => e,
    }
}

/// Reads on from an index, each entry by its checksum, as far as one request goes.
fn verify(log: &dyn Log, verify: &msg::Verify) -> Result<msg::Verified> {
    let first = log.info(&verify.topic)?.first;
    let next = verify.from.max(first);
    let mut verified = msg::Verified { next, entries: 0, bytes: 0 };
    while verified.bytes < VERIFY_BYTES_MAX && verified.entries < VERIFY_ENTRIES_MAX {
        let page = log.read(
            &verify.topic,
            verified.next,
            READ_ENTRIES_MAX,
            READ_BYTES_MAX,
            Scope::Durable,
        )?;
        let Some((last, _)) = page.last() else { break };
        verified.next = Index(last.0 + 1);
        verified.entries += page.len() as u64;
        verified.bytes += page.iter().map(|(_, entry)| entry.len() as u64).sum::<u64>();
    }
    Ok(verified)
}

fn send<T: Encode>(reply: Reply, result: Result<T>) {
    answer(reply, result.map(|message| (message.to_bytes(), Parts::None)));
}

/// Who folds a topic: as its name says, or as a face has opened a view of it.
fn owner(node: &Node, topic: &str) -> Option<&'static str> {
    folded_by(topic).or_else(|| node.folds(topic).then_some("the view of a face"))
}

/// The topic is the first field of each request.
fn topic_of(meta: &[u8]) -> Result<String> {
    String::decode(&mut Reader::new(meta))
        .map_err(|e| Error::invalid(format!("use the log: {e}: use matching builds")))
}

/// Whether rules allow this of the request's topic; no name stands for all of them.
fn allows(access: Access) -> impl Fn(&[u8], &Within) -> Result<()> + Send + Sync {
    move |meta, within: &Within| {
        let topic = topic_of(meta)?;
        let doing = |e: Error| e.context(format_args!("use the log `{}`", topic.escape_debug()));
        if topic == AUDIT_TOPIC {
            return within.rules.check_audit().map_err(doing);
        }
        within.rules.check_topic(if topic.is_empty() { "*" } else { &topic }, access).map_err(doing)
    }
}

/// Refuses what a client may not do with a topic.
fn check(
    node: &Arc<Node>,
    wanted: Use,
) -> impl Fn(&[u8], &Who) -> Result<()> + Send + Sync + use<> {
    let node = node.clone();
    move |meta, who: &Who| {
        let topic = topic_of(meta)?;
        if topic == AUDIT_TOPIC {
            // Nodes write it, and read it for those who may; of a client with rules those were asked.
            let is_named = matches!(who, Who::Named(_));
            return match who.is_node() {
                true => Ok(()),
                false => check_audit(wanted, *who == Who::Owner || is_named),
            };
        }
        check_client(&topic, owner(&node, &topic), wanted, *who == Who::Owner)
    }
}

/// The read, if it is one that waits for an entry.
fn waiting_read(meta: &[u8]) -> Option<msg::Read> {
    msg::Read::from_bytes(meta).ok().filter(|read| read.wait)
}

/// One that waits comes again when there is an entry.
fn answer_bytes(meta: &[u8]) -> u64 {
    match waiting_read(meta) {
        Some(_) if !planted!("file.tails-hold-memory") => 0,
        _ => FRAME_META_BYTES_MAX as u64,
    }
}

/// Who tries to change what the cluster itself keeps is after more than data.
fn matter(meta: &[u8]) -> Matter {
    let is_own = |topic: String| topic == AUDIT_TOPIC || folded_by(&topic).is_some();
    match topic_of(meta).is_ok_and(is_own) {
        true => Matter::Admin,
        false => Matter::Data,
    }
}

fn append_told(meta: &[u8]) -> Told {
    let append = msg::Append::from_bytes(meta).ok()?;
    let bytes: usize = append.entries.iter().map(|entry| entry.bytes.len()).sum();
    let what = format!("{}: {} entries, {bytes} bytes", append.topic, append.entries.len());
    Some(("log append", what))
}

fn trim_told(meta: &[u8]) -> Told {
    let trim = msg::Trim::from_bytes(meta).ok()?;
    Some(("log trim", format!("{} before {}", trim.topic, trim.before)))
}

fn set_told(meta: &[u8]) -> Told {
    let set = msg::Set::from_bytes(meta).ok()?;
    let limit = |name: &str, limit: Option<u64>, unit: &str| {
        limit.map_or(String::new(), |limit| format!(", {name} {limit} {unit}"))
    };
    let (bytes, age) =
        (limit("keep", set.retain_bytes, "bytes"), limit("keep", set.retain_ms, "ms"));
    let operation = if set.create { "log create" } else { "log set" };
    Some((operation, format!("{}{bytes}{age}", set.topic)))
}

/// The log's topics, for clients.
pub struct Logs {
    node: Arc<Node>,
    log: Arc<dyn Log>,
    tails: Tails<Waiting>,
}

impl Face for Logs {
    fn routes(self: Arc<Self>) -> Vec<Route> {
        let route = |opcode: u16, serve: fn(&Logs, Request<'_>)| {
            let logs = self.clone();
            Route::new(opcode, Right::Data, move |request| match logs.node.answers_for_log() {
                true => serve(&logs, request),
                // The log is elsewhere: its host answers, through this node.
                false => logs.pass_on(request),
            })
        };
        let node = &self.node;
        vec![
            route(wire::OP_LOG_APPEND, Logs::append)
                .check(check(node, Use::Change))
                .allows(allows(Access::Write))
                .audited_as(matter, append_told),
            route(wire::OP_LOG_READ, Logs::read)
                .check(check(node, Use::Read))
                .allows(allows(Access::Read))
                .answer_bytes(answer_bytes),
            route(wire::OP_LOG_TRIM, Logs::trim)
                .check(check(node, Use::Change))
                .allows(allows(Access::Write))
                .audited_as(matter, trim_told),
            route(wire::OP_LOG_INFO, Logs::info).allows(allows(Access::Read)),
            route(wire::OP_LOG_SET, Logs::set)
                .check(check(node, Use::Change))
                .allows(allows(Access::Write))
                .audited_as(matter, set_told),
            route(wire::OP_LOG_RETENTION, Logs::retention).allows(allows(Access::Read)),
            route(wire::OP_LOG_VERIFY, Logs::verify)
                .check(check(node, Use::Read))
                .allows(allows(Access::Read)),
        ]
    }
}

impl Logs {
    pub fn new(node: Arc<Node>) -> Logs {
        let log = node.log_for_clients();
        Logs { node, log, tails: Tails::default() }
    }

    fn pass_on(&self, request: Request<'_>) {
        let topic = String::decode(&mut Reader::new(request.meta));
        let owned = topic.is_ok_and(|topic| owner(&self.node, &topic).is_some());
        match request.opcode == wire::OP_LOG_READ && owned {
            true => self.read_owned(request),
            false => self.ask_log_host(request),
        }
    }

    /// Passes a client's request on to the node that keeps the log. One that waits asks for one entry
    /// there, and comes again when there is one.
    fn ask_log_host(&self, request: Request<'_>) {
        let Request { opcode, meta, reply, .. } = request;
        let now_ns = self.node.machine.clock.monotonic_ns();
        let left_ns = reply.deadline_ns().map(|deadline_ns| deadline_ns.saturating_sub(now_ns));
        let deadline_ms = left_ns.map_or(HOST_MS, |left_ns| (left_ns / 1_000_000) as u32);
        let waits = waiting_read(meta).filter(|_| opcode == wire::OP_LOG_READ);
        let meta = match &waits {
            Some(read) => msg::Read { entries_max: 1, ..read.clone() }.to_bytes(),
            None => meta.to_vec(),
        };
        let request = PeerRequest { opcode, meta, body: None, deadline_ms };
        let done = move |answered: Result<PeerReply>| match (answered, waits) {
            (Ok(_), Some(read)) => read_now(read, reply),
            (answered, _) => answer(reply, answered.map(|answered| (answered.meta, Parts::None))),
        };
        match self.node.log_host() {
            Ok(host) => self.node.machine.peers.call(&host, request, Box::new(done)),
            Err(e) => done(Err(e)),
        }
    }

    /// Reads a fold's topic for this node's owner, where another node keeps the log: that one knows
    /// nodes, and no owner of another. One that waits does so as in [`Logs::ask_log_host`].
    fn read_owned(&self, request: Request<'_>) {
        let Some((asked, reply)) = request.decode::<msg::Read>("read the log") else { return };
        if asked.wait {
            return self.wait_owned(asked, reply);
        }
        let (node, topic) = (self.node.clone(), asked.topic.clone());
        self.ask_owned(&asked, move |answered| {
            let entries = answered.map_err(|e| told_where_to_begin(&node, &topic, e));
            let entries = entries.and_then(|PeerReply { meta, body }| {
                let crc = peer_log::Entries::from_bytes(&meta)?.crc;
                let entries = peer_log::decode_indexed(&body, crc)?.into_iter();
                let entries = entries.map(|(index, bytes)| msg::Indexed { index, bytes });
                Ok(msg::Entries { entries: entries.collect() })
            });
            send(reply, entries);
        });
    }

    /// All who wait at one place ask the host as one: it takes a second question of one reader for the
    /// first one's end.
    fn wait_owned(&self, asked: msg::Read, reply: Reply) {
        let (node, now_ns) = (self.node.clone(), self.node.machine.clock.monotonic_ns());
        let one = msg::Read { entries_max: 1, ..asked.clone() };
        let ask = |place: &Place, wake: Done<()>| {
            let topic = place.0.clone();
            self.ask_owned(&one, move |answered| {
                wake(answered.map(drop).map_err(|e| told_where_to_begin(&node, &topic, e)));
            });
        };
        let place = (asked.topic.clone(), asked.from);
        self.tails.wait(place, (asked, reply), |w| is_over(w, now_ns), answer_waiting, ask);
    }

    fn ask_owned(
        &self,
        asked: &msg::Read,
        answered: impl FnOnce(Result<PeerReply>) + Send + 'static,
    ) {
        let msg::Read { topic, from, entries_max, wait } = asked.clone();
        // Of none of this node's own readers, who would have to ask again.
        let (sender, reader) = (self.node.sender, u32::MAX);
        let read = peer_log::Read { sender, topic, from, entries_max, wait, reader };
        let request = PeerRequest {
            opcode: peer_log::OP_PEER_LOG_READ,
            meta: read.to_bytes(),
            body: None,
            deadline_ms: HOST_MS,
        };
        match self.node.log_host() {
            Ok(host) => self.node.machine.peers.call(&host, request, Box::new(answered)),
            Err(e) => answered(Err(e)),
        }
    }

    fn append(&self, request: Request<'_>) {
        let Some((append, reply)) = request.decode::<msg::Append>("append to the log") else {
            return;
        };
        if let Err(e) = append.check() {
            return answer(reply, Err(e));
        }
        let mode = if append.synced { Mode::Synced } else { Mode::Ordered };
        let entries = append.entries.into_iter().map(|entry| entry.bytes).collect();
        let done = Box::new(move |indices: Result<Indices>| {
            send(reply, indices.map(|indices| msg::Appended::of(&indices)));
        });
        self.node.append_here(append.topic, entries, mode, done);
    }

    fn read(&self, request: Request<'_>) {
        let Some((read, reply)) = request.decode::<msg::Read>("read the log") else { return };
        let (log, tails) = (self.log.clone(), self.tails.clone());
        let (clock, node) = (self.node.machine.clock.clone(), self.node.clone());
        self.node.workers.run(move || match read.wait {
            // A tail: answered when there is an entry, or by the request's deadline.
            true => {
                let (place, now_ns) = ((read.topic.clone(), read.from), clock.monotonic_ns());
                let ask = |place: &Place, wake| log.tail(&place.0, place.1, wake);
                tails.wait(place, (read, reply), |w| is_over(w, now_ns), answer_waiting, ask);
            }
            false => {
                let entries = entries(&*log, &read);
                send(reply, entries.map_err(|e| told_where_to_begin(&node, &read.topic, e)));
            }
        });
    }

    fn trim(&self, request: Request<'_>) {
        let Some((trim, reply)) = request.decode::<msg::Trim>("trim the log") else { return };
        let log = self.log.clone();
        self.node.workers.run(move || {
            let trimmed = log.trim(&trim.topic, trim.before);
            answer(reply, trimmed.map(|()| (Vec::new(), Parts::None)));
        });
    }

    fn set(&self, request: Request<'_>) {
        let Some((set, reply)) = request.decode::<msg::Set>("set up a topic") else { return };
        let node = self.node.clone();
        self.node.workers.run(move || send(reply, node.set_topic(&set)));
    }

    fn retention(&self, request: Request<'_>) {
        let Some((topic, reply)) = request.decode::<String>("describe the log") else { return };
        let node = self.node.clone();
        self.node.workers.run(move || send(reply, node.retention(&topic)));
    }

    fn verify(&self, request: Request<'_>) {
        let Some((asked, reply)) = request.decode::<msg::Verify>("verify the log") else { return };
        let log = self.log.clone();
        self.node.workers.run(move || send(reply, verify(&*log, &asked)));
    }

    fn info(&self, request: Request<'_>) {
        let Some((topic, reply)) = request.decode::<String>("describe the log") else { return };
        let (log, shared) = (self.log.clone(), self.node.shared().is_some());
        // Brokers may have to be asked.
        self.node.workers.run(move || {
            // Brokers that are away know of no topic, which is no answer.
            let is_unknown = |e: &Error| shared && e.kind == Kind::Retry;
            let told = |topic: String| match describe(&*log, topic) {
                Err(e) if is_unknown(&e) => Some(Err(e)),
                described => described.ok().map(Ok),
            };
            let all = || log.topics().into_iter().filter_map(told).collect();
            let infos: Result<Vec<msg::Info>> = match topic.is_empty() {
                // One that is damaged does not hide the others: `doctor` names it.
                true => all(),
                false => describe(&*log, topic).map(|info| vec![info]),
            };
            send(reply, infos);
        });
    }
}

/// There is an entry: what has waited for one comes again as a read, which is admitted for the memory
/// that its answer takes.
fn read_now(read: msg::Read, reply: Reply) {
    reply.again(msg::Read { wait: false, ..read }.to_bytes());
}

type Waiting = (msg::Read, Reply);
/// What a read that waited comes to.
fn answer_waiting((read, reply): Waiting, woken: &Result<()>) {
    match woken {
        Ok(()) => read_now(read, reply),
        Err(e) => reply.send(Response::error(e.clone())),
    }
}

fn is_over((_, reply): &Waiting, now_ns: u64) -> bool {
    reply.deadline_ns().is_some_and(|end_ns| end_ns <= now_ns)
}
