//! A carrier's driver: a port of the native protocol, on which agents send what they would send to a node,
//! and a thread that brings it to the next hop. What waits is in memory alone; [`crate::carry`] decides.

use crate::carry::{Asked, Carrier, Outcome, Request, Round, Told};
use crate::door::More;
use crate::hops::{Hop, Hops};
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::{Error, Kind, Result};
use holdfast_env::net::{
    Batch, ConnectionId, Credentials, Reply, Response, Server, ServerConfig, Service, Who,
};
use holdfast_env::tasks::{self, Stop};
use holdfast_env::{Budget, Clock, HoldMutex, Secret, event};
use holdfast_wire::{self as wire, scribe as msg};
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Beside Scribe's own.
pub const PORT: u16 = 1464;
/// Agents of one carrier; for further ones those that do least make way.
pub const CONNECTIONS_MAX: usize = 4096;
/// Until the next hop is tried again that could not be reached.
const REST: Duration = Duration::from_millis(500);
/// Threads of the port: they move bytes, and one brings them on.
const REACTORS: usize = 2;

/// Where a carrier listens, and who may send to it.
pub struct Settings {
    pub listen: SocketAddr,
    /// What agents prove.
    pub secret: Secret,
    /// For agents on other machines.
    pub credentials: Option<Arc<dyn Credentials>>,
    /// What may be held for agents.
    pub budget: Arc<Budget>,
}

/// A running carrier.
pub struct Carries {
    server: Server,
    shared: Arc<Shared>,
}

struct Shared {
    /// What waits; held for a look or a change. Closed by its own `end`.
    core: Mutex<Core>,
    /// Something waits, or the end.
    wake: Condvar,
    hops: Hops,
    stop: Stop,
}

#[derive(Default)]
struct Core {
    carrier: Carrier<Reply>,
    /// Why nothing gets on, while nothing does.
    trouble: Option<String>,
}

impl Carries {
    /// Carries to the best of `hops` until it is ended.
    pub fn start(settings: Settings, hops: Hops, clock: Arc<dyn Clock>) -> Result<Carries> {
        let (core, wake, stop) = (Mutex::default(), Condvar::new(), Stop::new());
        let shared = Arc::new(Shared { core, wake, hops, stop });
        let config = ServerConfig {
            tcp: vec![settings.listen],
            reactors: REACTORS,
            connections_max: CONNECTIONS_MAX,
            secret: Some(settings.secret),
            credentials: settings.credentials,
            budget: settings.budget,
            ..ServerConfig::default()
        };
        let server = Server::start(config, shared.clone(), clock)
            .map_err(|e| e.context("carry for other agents"))?;
        let runs = shared.clone();
        // It ends with the process where a next hop is silent just then: it knows nothing that is lost.
        drop(tasks::spawn("scribe-carry", move || runs.run())?);
        Ok(Carries { server, shared })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.server.tcp_addresses()[0]
    }

    /// What it counts, as fb303 names it, and why nothing gets on, for as long as anybody asks.
    pub fn more(&self) -> impl Fn() -> More + Send + Sync + 'static {
        let shared = self.shared.clone();
        move || shared.more()
    }

    /// Takes nothing more; agents hear it, and go elsewhere.
    pub fn end(self) {
        self.shared.stop.request();
        let told = self.shared.core.held().carrier.end();
        self.shared.wake.notify_all();
        tell(told);
        self.server.shutdown();
    }
}

/// Whether somebody may ask for this here.
fn refusal(who: &Who, opcode: u16) -> Option<Error> {
    let doing = format!("carry out operation {opcode:#06x}");
    match (who, opcode) {
        (Who::Client, wire::OP_SCRIBE_APPEND | wire::OP_SCRIBE_ASK | wire::OP_SCRIBE_SAY) => None,
        (Who::Client, _) => Some(Error::unsupported(format!(
            "{doing}: here an agent carries messages of Scribe, and does nothing else: ask a node"
        ))),
        _ => Some(Error::denied(format!(
            "{doing}: a carrier knows no rights of tokens or certificates: prove its secret (`--secret FILE`)"
        ))),
    }
}

fn read(opcode: u16, meta: &[u8], body: Vec<u8>) -> Result<Asked> {
    let wrong = |e| Error::invalid(format!("carry batches: {e}: use matching builds"));
    match opcode {
        wire::OP_SCRIBE_ASK => Asked::ask(msg::Ask::from_bytes(meta).map_err(wrong)?),
        wire::OP_SCRIBE_SAY => Asked::say(msg::Say::from_bytes(meta).map_err(wrong)?),
        _ => Asked::append(msg::Append::from_bytes(meta).map_err(wrong)?, body),
    }
}

fn tell(told: Vec<(Reply, Outcome)>) {
    for (reply, outcome) in told {
        reply.finish(outcome.map(encode));
    }
}

/// All answers of a request are of one kind, and none at all has the same bytes in both.
fn encode(answers: Vec<Told>) -> Vec<u8> {
    let (mut positions, mut heard) = (Vec::new(), Vec::new());
    for told in answers {
        match told {
            Told::Position(position) => positions.push(position),
            Told::Heard(word) => heard.push(word),
        }
    }
    match heard.is_empty() {
        true => msg::Positions { positions }.to_bytes(),
        false => msg::AllHeard { heard }.to_bytes(),
    }
}

impl Service for Shared {
    fn refuses(&self, who: &Who, opcode: u16) -> Option<Error> {
        refusal(who, opcode)
    }

    fn handle(&self, batch: &mut Batch<'_>) {
        let from = batch.connection().0;
        for i in 0..batch.len() {
            let opcode = batch.header(i).opcode;
            if let Some(e) = refusal(batch.who(), opcode) {
                batch.reply_error(i, &e);
                continue;
            }
            let reply = batch.defer(i);
            let body = batch.take_body(i).into_vec();
            match read(opcode, batch.meta(i), body) {
                Ok(asked) => {
                    let told = self.core.held().carrier.take(from, asked, reply);
                    tell(told);
                }
                Err(e) => reply.send(Response::error(e)),
            }
        }
        self.wake.notify_all();
    }

    fn disconnected(&self, connection: ConnectionId) {
        self.core.held().carrier.gone(connection.0);
    }
}

impl Shared {
    fn run(&self) {
        let mut hop = None;
        while let Some(round) = self.next() {
            let answer = self.carry(&mut hop, &round);
            let away = answer.as_ref().err().filter(|e| e.kind == Kind::Retry).cloned();
            let mut core = self.core.held();
            let mut told = core.carrier.came(round, answer);
            match &away {
                None => core.gets_on(),
                Some(e) => {
                    core.waits(&e.message);
                    // They may go elsewhere meanwhile.
                    told.extend(core.carrier.give_back(e));
                }
            }
            drop(core);
            tell(told);
            if away.is_some() {
                self.hops.failed(&mut hop);
                self.stop.sleep_until_stop(REST);
            }
        }
    }

    /// Waits for something to carry; nothing at the end.
    fn next(&self) -> Option<Round<Reply>> {
        let mut core = self.core.held();
        loop {
            if self.stop.is_requested() {
                return None;
            }
            if let Some(round) = core.carrier.next_round() {
                return Some(round);
            }
            core = self.wake.wait(core).expect("nobody panics who holds it");
        }
    }

    /// Of kind `Retry` is everything but what is wrong with the request.
    fn carry(&self, hop: &mut Option<Hop>, round: &Round<Reply>) -> Outcome {
        let away = |e: Error| Error::retry(e.message);
        let client = self.hops.reach(hop, |_| Ok(())).map_err(away)?;
        let positions = |all: Vec<msg::Position>| all.into_iter().map(Told::Position).collect();
        let answer = match round.request() {
            Request::Ask(ask) => {
                client.scribe_ask(ask.spool, ask.categories.clone()).map(positions)
            }
            Request::Say(say) => {
                client.scribe_say(say).map(|all| all.into_iter().map(Told::Heard).collect())
            }
            Request::Append { categories, bodies, count } => {
                client.scribe_carry(categories, &bodies, count).map(positions)
            }
        };
        match answer {
            Ok(answers) => {
                self.hops.worked(hop);
                Ok(answers)
            }
            Err(e) if crate::carry::is_of_the_request(&e) => Err(e),
            Err(e) => Err(away(e)),
        }
    }

    fn more(&self) -> More {
        let core = self.core.held();
        let counts = [
            ("batches carried", core.carrier.carried() as i64),
            ("bytes to carry", core.carrier.waiting_bytes() as i64),
            ("next hop away from carrier", i64::from(core.trouble.is_some())),
        ];
        let counters =
            counts.map(|(name, count)| (format!("scribe_overall:{name}"), count)).to_vec();
        More { counters, details: core.trouble.iter().cloned().collect() }
    }
}

impl Core {
    fn waits(&mut self, why: &str) {
        if self.trouble.is_none() {
            event!(ScribeWaits, why);
        }
        self.trouble = Some(why.to_owned());
    }

    fn gets_on(&mut self) {
        if self.trouble.take().is_some() {
            event!(ScribeGoesOn, "messages of other agents are carried again");
        }
    }
}
