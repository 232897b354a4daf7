//! What a face registers: for each of its operations, which right it takes to ask, where the body
//! of a request goes, how much memory the answer may take, and what carries it out.

use holdfast_base::codec::Decode;
use holdfast_base::rules::Rules;
use holdfast_base::{Error, Result};
use holdfast_env::net::{Batch, Body, BodyTarget, Parts, Reply, Response, Role, Who};
use holdfast_node::Matter;
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
    /// Who asks, where that is a client with rules. They were asked already, by [`Route::allows`]: who
    /// looks names up once more asks once more.
    pub within: Option<Within>,
}

/// A client that may do what rules say and nothing else.
#[derive(Clone, Debug)]
pub struct Within {
    /// Who it is: its name, and which token or certificate of that name it has.
    pub client: String,
    /// What it may do.
    pub rules: Rules,
}

/// Answers requests of a batch from memory. One value may stand behind several routes: requests
/// that follow each other and have the same one are handed to it together, so that it takes its
/// locks once.
pub trait AtOnce: Send + Sync {
    /// Answers each of these requests, or says that it takes longer: [`Later::wait`].
    fn answer(&self, batch: &mut Batch<'_>, run: Range<usize>, later: &mut Later);

    /// As [`AtOnce::answer`], one request of a client with rules: what it asks for is looked up, and
    /// its right to it, under one lock. Who answers from memory and does not say otherwise refuses.
    fn answer_within(&self, batch: &mut Batch<'_>, i: usize, within: &Within, later: &mut Later) {
        let _ = (within, later);
        batch.reply_error(i, &beyond_rules());
    }
}

/// What a client with rules hears of an operation that no rule can allow.
pub fn beyond_rules() -> Error {
    Error::denied(
        "it is for those who may do everything: use the owner's socket, or the cluster's secret",
    )
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

/// What somebody must be allowed to do, to have an operation carried out. Each route names one, and
/// the table of routes asks for it, at one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// To be connected as somebody who is known: what tells nothing of what others keep.
    Known,
    /// To read and change what is stored.
    Data,
    /// To look after the cluster: see how it is doing, and give orders.
    Admin,
    /// To be another node of the cluster.
    Node,
}

impl Right {
    /// In the order of their bits.
    pub const ALL: [Right; 4] = [Right::Known, Right::Data, Right::Admin, Right::Node];

    /// As people and pages say it.
    pub fn name(self) -> &'static str {
        match self {
            Right::Known => "known",
            Right::Data => "data",
            Right::Admin => "admin",
            Right::Node => "node",
        }
    }

    fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// The rights of somebody. A client with a name has some that its rules say, request by request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights(u8);

impl Rights {
    /// What each identity may do: who proves the owner's secret, or is the owner, acts for the
    /// owner. A certificate gives no more than its role needs: nodes pass on what clients ask of
    /// the log, and give no orders.
    pub fn of(who: &Who) -> Rights {
        let rights: &[Right] = match who {
            Who::Owner | Who::Client => &[Right::Known, Right::Data, Right::Admin],
            // Proved the secret, as which one acts for the owner, too.
            Who::Node => &Right::ALL,
            Who::Named(named) => match named.role {
                Role::Node => &[Right::Known, Right::Data, Right::Node],
                Role::Client | Role::Token => &[Right::Known],
            },
        };
        Rights(rights.iter().fold(0, |bits, right| bits | right.bit()))
    }

    /// Whether this right is among them.
    pub fn allow(self, right: Right) -> bool {
        self.0 & right.bit() != 0
    }
}

type Check = Box<dyn Fn(&[u8], &Who) -> Result<()> + Send + Sync>;
type Allows = Box<dyn Fn(&[u8], &Within) -> Result<()> + Send + Sync>;
/// What a request does, in two or three words, and to what; nothing of one that cannot be read.
pub type Told = Option<(&'static str, String)>;
type Tells = Box<dyn Fn(&[u8]) -> Told + Send + Sync>;
type Matters = Box<dyn Fn(&[u8]) -> Matter + Send + Sync>;
type Target = Box<dyn Fn(&[u8], u32) -> BodyTarget + Send + Sync>;
type AnswerBytes = fn(&[u8]) -> u64;
type Run = Box<dyn Fn(Request<'_>) + Send + Sync>;

/// How one operation is answered.
pub struct Route {
    pub(crate) opcode: u16,
    pub(crate) right: Right,
    pub(crate) check: Option<Check>,
    pub(crate) allows: Option<Allows>,
    pub(crate) audited: Option<(Matters, Tells)>,
    pub(crate) target: Option<Target>,
    pub(crate) at_once: Option<Arc<dyn AtOnce>>,
    pub(crate) answer_bytes: AnswerBytes,
    pub(crate) run: Run,
}

impl Route {
    /// An operation that `run` carries out for those who have the right; it is called on a reactor
    /// thread and never waits. For [`Right::Node`] there is memory when clients have used up theirs.
    pub fn new(
        opcode: u16,
        right: Right,
        run: impl Fn(Request<'_>) + Send + Sync + 'static,
    ) -> Route {
        Route {
            opcode,
            right,
            check: None,
            allows: None,
            audited: None,
            target: None,
            at_once: None,
            answer_bytes: |_| 0,
            run: Box::new(run),
        }
    }

    /// An operation that is always answered from memory.
    pub fn from_memory(opcode: u16, right: Right, at_once: &Arc<impl AtOnce + 'static>) -> Route {
        let run = |request: Request<'_>| {
            request.reply.send(Response::error(Error::bug("answer from memory: it was put off")));
        };
        Route::new(opcode, right, run).at_once(at_once)
    }

    /// Asked first; [`Route::run`] only carries out what it puts off.
    pub fn at_once(self, at_once: &Arc<impl AtOnce + 'static>) -> Route {
        Route { at_once: Some(at_once.clone()), ..self }
    }

    /// Refuses a request by its meta and by who sent it, before anything is done for it.
    pub fn check(self, check: impl Fn(&[u8], &Who) -> Result<()> + Send + Sync + 'static) -> Route {
        Route { check: Some(Box::new(check)), ..self }
    }

    /// Whether a client with rules may have this request carried out. Without it none may: rules
    /// that nobody asks for allow nothing.
    pub fn allows(
        self,
        allows: impl Fn(&[u8], &Within) -> Result<()> + Send + Sync + 'static,
    ) -> Route {
        Route { allows: Some(Box::new(allows)), ..self }
    }

    /// Written down in the audit trail, with what it came to, before it is answered. `tells` names
    /// what is done by the request's meta, and nothing that is secret.
    pub fn audited(
        self,
        matter: Matter,
        tells: impl Fn(&[u8]) -> Told + Send + Sync + 'static,
    ) -> Route {
        self.audited_as(move |_| matter, tells)
    }

    /// As [`Route::audited`], where it is the single request that says what it changes.
    pub fn audited_as(
        self,
        matters: impl Fn(&[u8]) -> Matter + Send + Sync + 'static,
        tells: impl Fn(&[u8]) -> Told + Send + Sync + 'static,
    ) -> Route {
        Route { audited: Some((Box::new(matters), Box::new(tells))), ..self }
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
