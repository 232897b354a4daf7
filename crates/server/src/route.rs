//! What a face registers: for each of its operations, who may ask, where the body of a request
//! goes, how much memory the answer may take, and what carries it out.

use holdfast_base::codec::Decode;
use holdfast_base::{Error, Result};
use holdfast_env::net::{Batch, Body, BodyTarget, Parts, Reply, Response, Who};
use std::ops::Range;
use std::sync::Arc;

/// Something that answers operations of its own. Its routes are asked for once.
pub trait Face {
    /// One for each operation; they keep the face.
    fn routes(self: Arc<Self>) -> Vec<Route>;
}

/// One request, to be answered through its reply from any thread.
pub struct Request<'a> {
    /// Of the wire's list; it has led here.
    pub opcode: u16,
    /// The request's message, encoded.
    pub meta: &'a [u8],
    /// Bytes behind the message; empty where there are none.
    pub body: Body<'a>,
    /// Takes the answer, once.
    pub reply: Reply,
}

/// Answers requests of a batch from memory. One value may stand behind several routes: requests
/// that follow each other and have the same one are handed to it together, so that it takes its
/// locks once.
pub trait AtOnce: Send + Sync {
    /// Answers each of these requests, or says that it takes longer: [`Later::wait`].
    fn answer(&self, batch: &mut Batch<'_>, run: Range<usize>, later: &mut Later);
}

/// Requests of a batch that wait for a disk or the log, and how many bytes each one's answer may
/// take.
#[derive(Default)]
pub struct Later(Vec<(usize, u64)>);

impl Later {
    /// The request is carried out by its route ([`Route::run`]) once locks are given back.
    pub fn wait(&mut self, i: usize, answer_bytes: u64) {
        self.0.push((i, answer_bytes));
    }

    pub(crate) fn into_requests(self) -> Vec<(usize, u64)> {
        self.0
    }
}

type Check = Box<dyn Fn(&[u8], Who) -> Result<()> + Send + Sync>;
type Target = Box<dyn Fn(&[u8], u32) -> BodyTarget + Send + Sync>;
type AnswerBytes = fn(&[u8]) -> u64;
type Run = Box<dyn Fn(Request<'_>) + Send + Sync>;

/// How one operation is answered.
pub struct Route {
    pub(crate) opcode: u16,
    pub(crate) for_nodes: bool,
    pub(crate) check: Option<Check>,
    pub(crate) target: Option<Target>,
    pub(crate) at_once: Option<Arc<dyn AtOnce>>,
    pub(crate) answer_bytes: AnswerBytes,
    pub(crate) run: Run,
}

impl Route {
    /// An operation that `run` carries out; it is called on a reactor thread and never waits.
    pub fn new(opcode: u16, run: impl Fn(Request<'_>) + Send + Sync + 'static) -> Route {
        Route {
            opcode,
            for_nodes: false,
            check: None,
            target: None,
            at_once: None,
            answer_bytes: |_| 0,
            run: Box::new(run),
        }
    }

    /// An operation that is always answered from memory.
    pub fn from_memory(opcode: u16, at_once: &Arc<impl AtOnce + 'static>) -> Route {
        let run = |request: Request<'_>| {
            request.reply.send(Response::error(Error::bug("answer from memory: it was put off")));
        };
        Route::new(opcode, run).at_once(at_once)
    }

    /// Asked first; [`Route::run`] only carries out what it puts off.
    pub fn at_once(self, at_once: &Arc<impl AtOnce + 'static>) -> Route {
        Route { at_once: Some(at_once.clone()), ..self }
    }

    /// Other nodes of the cluster alone may ask, and there is memory for them when clients have
    /// used up theirs.
    pub fn for_nodes(self) -> Route {
        Route { for_nodes: true, ..self }
    }

    /// Refuses a request by its meta and by who sent it, before anything is done for it.
    pub fn check(self, check: impl Fn(&[u8], Who) -> Result<()> + Send + Sync + 'static) -> Route {
        Route { check: Some(Box::new(check)), ..self }
    }

    /// Where the body of a request goes, by its meta and the body's length.
    pub fn target(
        self,
        target: impl Fn(&[u8], u32) -> BodyTarget + Send + Sync + 'static,
    ) -> Route {
        Route { target: Some(Box::new(target)), ..self }
    }

    /// Memory that the answer may take: known before the work is begun.
    pub fn answer_bytes(self, answer_bytes: AnswerBytes) -> Route {
        Route { answer_bytes, ..self }
    }
}

impl<'a> Request<'a> {
    /// The request's message and the reply to it; `None` when it was refused. `doing` names the
    /// operation in the refusal.
    pub fn decode<T: Decode>(self, doing: &str) -> Option<(T, Reply)> {
        self.decode_with_body(doing).map(|(message, _, reply)| (message, reply))
    }

    /// As [`Request::decode`], for requests that carry bytes.
    pub fn decode_with_body<T: Decode>(self, doing: &str) -> Option<(T, Body<'a>, Reply)> {
        match decoded(self.meta, doing) {
            Ok(message) => Some((message, self.body, self.reply)),
            Err(e) => {
                self.reply.send(Response::error(e));
                None
            }
        }
    }
}

/// Decodes a request's meta; the refusal names the operation.
pub fn decoded<T: Decode>(meta: &[u8], doing: &str) -> Result<T> {
    T::from_bytes(meta).map_err(|e| {
        Error::invalid(format!("{doing}: {e}: use matching builds of client and node"))
    })
}

/// Sends what a request came to.
pub fn answer(reply: Reply, result: Result<(Vec<u8>, Parts)>) {
    reply.send(match result {
        Ok((meta, parts)) => Response::ok(meta, parts),
        Err(e) => Response::error(e),
    });
}
