//! The file face's operations: what memory answers, under one shared lock of the names for all
//! that follow each other, and what waits for a disk or the log.

use crate::{deeds, given::Given, within};
use holdfast_base::Result;
use holdfast_base::limits::FRAME_BODY_BYTES_MAX;
use holdfast_cluster::AllShards;
use holdfast_env::net::{Batch, Parts};
use holdfast_env::region::Region;
use holdfast_node::{Matter, Node};
use holdfast_server::{AtOnce, Face, Later, Request, Right, Route, Within, decoded};
use holdfast_wire as wire;
use std::ops::Range;
use std::sync::Arc;

/// Serves files and chunks of one node.
pub struct FileFace {
    pub(crate) node: Arc<Node>,
    /// The `dram` store's region, offered to co-located clients.
    pub(crate) region: Option<Arc<Region>>,
    pub(crate) given: Arc<Given>,
}

/// What the namespace and memory answer to a request.
pub(crate) enum Answer {
    Now(Vec<u8>, Parts),
    /// Has to wait, and takes up to so many bytes for its answer.
    Later(u64),
}

impl FileFace {
    /// Over a node that is open; `region` is that of its `dram` store, if it has one.
    pub fn new(node: Arc<Node>, region: Option<Arc<Region>>) -> FileFace {
        FileFace { node, region, given: Arc::default() }
    }

    /// Answers what the namespace and memory can answer.
    fn now(&self, all: &AllShards<'_>, opcode: u16, meta: &[u8]) -> Result<Answer> {
        match opcode {
            wire::OP_GET => self.get(all, meta),
            wire::OP_LIST => self.list(all, meta),
            wire::OP_USAGE => self.usage(all, meta),
            wire::OP_EXTENTS => self.extents(all, meta),
            wire::OP_UNCLOSED => self.unclosed(all),
            wire::OP_CHUNK_READ => self.read_raw_now(all, meta),
            _ => self.locate(all, meta),
        }
    }
}

/// Answered by the names' view.
struct ByNames(Arc<FileFace>);

impl AtOnce for ByNames {
    fn answer(&self, batch: &mut Batch<'_>, run: Range<usize>, later: &mut Later) {
        let ByNames(face) = self;
        let served = face.node.read_all(|all| {
            let mut looked_up = run.start;
            for i in run.clone() {
                let opcode = batch.header(i).opcode;
                if opcode == wire::OP_LOOKUP {
                    // A run of look-ups waits for memory together, not one after another.
                    if i >= looked_up {
                        looked_up = face.lookup_run(all, batch, i..run.end);
                    }
                    continue;
                }
                let answer = face.now(all, opcode, batch.meta(i));
                give(batch, i, answer, later);
            }
        });
        if let Err(e) = served {
            // The names' view has stopped: whoever asks for names is told why; the log, the cluster
            // and the other nodes have their answers.
            run.for_each(|i| batch.reply_error(i, &e));
        }
    }

    fn answer_within(&self, batch: &mut Batch<'_>, i: usize, within: &Within, later: &mut Later) {
        let ByNames(face) = self;
        let opcode = batch.header(i).opcode;
        // Under one lock: between two a link on the way could come to lead elsewhere.
        let answered = face.node.read_all(|all| {
            if let Err(e) = within::check(all, &face.given, opcode, batch.meta(i), within) {
                return batch.reply_error(i, &e);
            }
            if opcode == wire::OP_LOOKUP {
                face.lookup_run(all, batch, i..i + 1);
                return;
            }
            let answer = face.now(all, opcode, batch.meta(i));
            give(batch, i, answer, later);
        });
        if let Err(e) = answered {
            batch.reply_error(i, &e);
        }
    }
}

fn give(batch: &mut Batch<'_>, i: usize, answer: Result<Answer>, later: &mut Later) {
    match answer {
        Ok(Answer::Now(meta, parts)) => batch.reply(i, |out| out.extend_from_slice(&meta), parts),
        Ok(Answer::Later(bytes)) => later.wait(i, bytes),
        Err(e) => batch.reply_error(i, &e),
    }
}

/// The region's descriptor, passed with the answer.
struct OffersRegion(Arc<FileFace>);

impl AtOnce for OffersRegion {
    fn answer(&self, batch: &mut Batch<'_>, run: Range<usize>, _: &mut Later) {
        run.for_each(|i| self.0.offer_region(batch, i));
    }
}

impl Face for FileFace {
    fn routes(self: Arc<Self>) -> Vec<Route> {
        let (by_names, offers_region) =
            (Arc::new(ByNames(self.clone())), Arc::new(OffersRegion(self.clone())));
        let with = |opcode: u16, right: Right, serve: fn(&FileFace, Request<'_>)| {
            let face = self.clone();
            Route::new(opcode, right, move |request| serve(&face, request))
        };
        let within = |route: Route, opcode: u16| {
            let face = self.clone();
            route.allows(move |meta, client| {
                face.node.read_all(|all| within::check(all, &face.given, opcode, meta, client))?
            })
        };
        let looked_up = |opcode| within(Route::from_memory(opcode, Right::Data, &by_names), opcode);
        let route = |opcode, serve| within(with(opcode, Right::Data, serve), opcode);
        let receiver = self.clone();
        vec![
            looked_up(wire::OP_LOOKUP),
            looked_up(wire::OP_LIST),
            looked_up(wire::OP_USAGE),
            looked_up(wire::OP_EXTENTS),
            looked_up(wire::OP_UNCLOSED),
            looked_up(wire::OP_CHUNK_LOCATE),
            route(wire::OP_GET, FileFace::get_from_disk).at_once(&by_names),
            route(wire::OP_CHUNK_READ, FileFace::read_raw_from_disk).at_once(&by_names),
            Route::from_memory(wire::OP_REGION, Right::Data, &offers_region),
            route(wire::OP_CHUNK_READ_OBJECT, FileFace::read_object).answer_bytes(|meta| {
                // What cannot be decoded is refused with a sentence.
                let read = decoded::<wire::chunk::ReadObject>(meta, "");
                // So is what asks for more than fits.
                read.map_or(0, |read| read.bytes.min(FRAME_BODY_BYTES_MAX) as u64)
            }),
            route(wire::OP_CHUNK_APPEND, FileFace::append)
                .target(move |meta, body_bytes| receiver.append_target(meta, body_bytes)),
            route(wire::OP_PUT, FileFace::put).audited(Matter::Data, deeds::put),
            route(wire::OP_REMAINDER, FileFace::remainder),
            route(wire::OP_BEGIN, FileFace::begin).audited(Matter::Data, deeds::begin),
            route(wire::OP_ALLOCATE, FileFace::allocate),
            route(wire::OP_CLOSE, FileFace::close).audited(Matter::Data, deeds::close),
            route(wire::OP_CHANGE, FileFace::change).audited(Matter::Data, deeds::change),
            with(wire::OP_OPEN_SESSION, Right::Known, FileFace::open_session),
            within(
                with(wire::OP_END_SESSION, Right::Known, FileFace::end_session),
                wire::OP_END_SESSION,
            ),
        ]
    }
}
