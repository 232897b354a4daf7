//! The native service: sorts a batch's requests into those answered at once, under one shared
//! lock of the namespace, and those that wait for a disk or the log and are answered later.
//! Runs on reactor threads and never blocks.

use crate::peers::{is_for_nodes, not_a_node};
use holdfast_base::codec::Decode;
use holdfast_base::frame::{Header, STALE};
use holdfast_base::limits::FRAME_META_BYTES_MAX;
use holdfast_base::{Error, Result};
use holdfast_cluster::Namespace;
use holdfast_env::local::memory_bytes;
use holdfast_env::net::{
    Batch, Body, BodyTarget, ConnectionId, Parts, Reply, Response, Service, Who,
};
use holdfast_env::region::Region;
use holdfast_env::{Budget, planted};
use holdfast_log::LogHost;
use holdfast_node::Node;
use holdfast_wire as wire;
use std::sync::Arc;

/// Serves files, chunks and the log of one node.
pub struct FileService {
    pub(crate) node: Arc<Node>,
    /// The `dram` store's region, offered to co-located clients.
    pub(crate) region: Option<Arc<Region>>,
    pub(crate) started_ns: u64,
    pub(crate) tails: crate::logs::Tails,
    pub(crate) log_host: Arc<LogHost>,
    /// Takes orders that only a development cluster should.
    pub(crate) dev: bool,
    /// What this process may hold for its clients; to say how much it does.
    pub(crate) budget: Arc<Budget>,
}

/// What becomes of a request.
pub(crate) enum Answer {
    Now(Vec<u8>, Parts),
    /// Has to wait, and takes up to so many bytes for its answer: handed to
    /// [`FileService::later`] once the lock is given back.
    Later(u64),
}

impl FileService {
    pub fn new(node: Arc<Node>, region: Option<Arc<Region>>) -> FileService {
        let started_ns = node.machine.clock.monotonic_ns();
        let log_host = Arc::new(LogHost::new(node.log.clone()));
        let budget = Budget::new(Budget::default_bytes(memory_bytes()));
        let tails = Default::default();
        FileService { node, region, started_ns, tails, log_host, dev: false, budget }
    }

    pub fn with_budget(self, budget: Arc<Budget>) -> FileService {
        FileService { budget, ..self }
    }

    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Takes orders that only a development cluster should, too.
    pub fn for_development(self) -> FileService {
        FileService { dev: true, ..self }
    }

    /// Answers what the namespace and memory can answer.
    fn now(&self, view: &Namespace, header: &Header, meta: &[u8]) -> Result<Answer> {
        match header.opcode {
            wire::OP_GET => self.get(view, meta),
            wire::OP_LIST => self.list(view, meta),
            wire::OP_USAGE => self.usage(view, meta),
            wire::OP_EXTENTS => self.extents(view, meta),
            wire::OP_UNCLOSED => self.unclosed(view),
            wire::OP_CHUNK_READ => self.read_raw_now(view, meta),
            wire::OP_CHUNK_LOCATE => self.locate(view, meta),
            opcode => Ok(Answer::Later(answer_bytes(opcode, meta))),
        }
    }

    /// Starts what takes longer; the reply may be sent from any thread.
    fn later(&self, header: &Header, meta: &[u8], body: Body<'_>, reply: Reply) {
        match header.opcode {
            wire::OP_GET => self.get_from_disk(meta, reply),
            wire::OP_CHUNK_READ => self.read_raw_from_disk(meta, reply),
            wire::OP_CHUNK_READ_OBJECT => self.read_object(meta, reply),
            wire::OP_CHUNK_APPEND => self.append(meta, body, reply),
            wire::OP_PUT => self.put(meta, body, reply),
            wire::OP_REMAINDER => self.remainder(meta, body, reply),
            wire::OP_BEGIN => self.begin(meta, reply),
            wire::OP_ALLOCATE => self.allocate(meta, reply),
            wire::OP_CLOSE => self.close(meta, reply),
            wire::OP_CHANGE => self.change(meta, reply),
            wire::OP_OPEN_SESSION => self.open_session(reply),
            wire::OP_END_SESSION => self.end_session(meta, reply),
            wire::OP_STATUS => self.status(reply),
            wire::OP_HELD => self.held(reply),
            // The log is elsewhere: its host answers, through this node.
            wire::OP_LOG_APPEND..=wire::OP_LOG_INFO if self.node.hosted.is_none() => {
                match FileService::reads_owned(header.opcode, meta) {
                    true => self.read_owned(meta, reply),
                    false => self.ask_log_host(header.opcode, meta, reply),
                }
            }
            wire::OP_LOG_APPEND => self.log_append(meta, reply),
            wire::OP_LOG_READ => self.log_read(meta, reply),
            wire::OP_LOG_TRIM => self.log_trim(meta, reply),
            wire::OP_LOG_INFO => self.log_info(meta, reply),
            wire::OP_CATCH_UP => self.catch_up(reply),
            wire::OP_CLUSTER => self.cluster(reply),
            wire::OP_ORDER => self.order(meta, reply),
            wire::OP_NODES => self.nodes(reply),
            opcode if is_for_nodes(opcode) => self.peer(opcode, meta, body, reply),
            opcode => reply.send(Response::error(Error::unsupported(format!(
                "carry out operation {opcode:#06x}: this node does not know it; use matching builds"
            )))),
        }
    }
}

impl Service for FileService {
    fn body_target(&self, _: ConnectionId, header: &Header, meta: &[u8]) -> BodyTarget {
        if header.opcode == wire::OP_CHUNK_APPEND {
            return self.append_target(meta, header.body_bytes);
        }
        BodyTarget::Buffer
    }

    fn is_for_nodes(&self, opcode: u16) -> bool {
        is_for_nodes(opcode)
    }

    fn label(&self) -> u32 {
        if self.node.is_behind() { STALE } else { 0 }
    }

    fn handle(&self, batch: &mut Batch<'_>) {
        let mut later = Vec::new();
        let served = self.node.namespace.read(|view, _| {
            let mut looked_up = 0;
            for i in 0..batch.len() {
                let header = *batch.header(i);
                if header.opcode == wire::OP_LOOKUP {
                    // A run of look-ups waits for memory together, not one after another.
                    if i >= looked_up {
                        looked_up = self.lookup_run(view, batch, i);
                    }
                    continue;
                }
                if header.opcode == wire::OP_REGION {
                    self.offer_region(batch, i);
                    continue;
                }
                match self.now(view, &header, batch.meta(i)) {
                    Ok(Answer::Now(meta, parts)) => {
                        batch.reply(i, |out| out.extend_from_slice(&meta), parts)
                    }
                    Ok(Answer::Later(bytes)) => later.push((i, bytes)),
                    Err(e) => batch.reply_error(i, &e),
                }
            }
        });
        if let Err(e) = served {
            // The names' view has stopped: whoever asks for names is told why; the log, the cluster
            // and the other nodes have their answers.
            for i in 0..batch.len() {
                match batch.header(i).opcode {
                    wire::OP_REGION => self.offer_region(batch, i),
                    opcode if needs_names(opcode) => batch.reply_error(i, &e),
                    opcode => later.push((i, answer_bytes(opcode, batch.meta(i)))),
                }
            }
        }
        let is_owner = batch.who() == Who::Owner;
        for (i, answer_bytes) in later {
            let header = *batch.header(i);
            if is_for_nodes(header.opcode)
                && batch.who() != Who::Node
                && !planted!("file.clients-as-nodes")
            {
                batch.reply_error(i, &not_a_node(header.opcode));
                continue;
            }
            if let Err(e) = self.may_use_log(header.opcode, batch.meta(i), is_owner) {
                batch.reply_error(i, &e);
                continue;
            }
            // Else it comes again.
            let Some(reply) = batch.defer_expecting(i, answer_bytes) else { continue };
            let body = batch.take_body(i);
            self.later(&header, batch.meta(i), body, reply);
        }
    }
}

/// Memory that the answer to a request may take that has to wait: known before the work is begun.
fn answer_bytes(opcode: u16, meta: &[u8]) -> u64 {
    match opcode {
        // What cannot be decoded is refused with a sentence.
        wire::OP_CHUNK_READ_OBJECT => {
            request::<wire::chunk::ReadObject>(meta, "").map_or(0, |read| read.bytes as u64)
        }
        wire::OP_LOG_READ => FRAME_META_BYTES_MAX as u64,
        _ => 0,
    }
}

/// Whether an operation is answered by the namespace alone ([`FileService::now`]).
fn needs_names(opcode: u16) -> bool {
    matches!(
        opcode,
        wire::OP_LOOKUP
            | wire::OP_GET
            | wire::OP_LIST
            | wire::OP_USAGE
            | wire::OP_EXTENTS
            | wire::OP_UNCLOSED
            | wire::OP_CHUNK_READ
            | wire::OP_CHUNK_LOCATE
    )
}

/// Decodes a request's meta; the refusal names the operation.
pub(crate) fn request<T: Decode>(meta: &[u8], doing: &str) -> Result<T> {
    T::from_bytes(meta).map_err(|e| {
        Error::invalid(format!("{doing}: {e}: use matching builds of client and node"))
    })
}

/// Sends what a request came to.
pub(crate) fn answer(reply: Reply, result: Result<(Vec<u8>, Parts)>) {
    reply.send(match result {
        Ok((meta, parts)) => Response::ok(meta, parts),
        Err(e) => Response::error(e),
    });
}
