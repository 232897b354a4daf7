//! The blocking client: runs batches on a pool of servers. Without a thread of its own; one
//! client is one thread's.

use crate::batch::{Answer, Batch, NONE, Store};
use crate::fleet::absence::Absences;
use crate::fleet::{self, Counts, Outcome, Request, Transport};
use crate::links::{self, Links};
use crate::ring::{Hashing, Member, Ring};
use crate::route::RoutePlan;
use crate::window::Window;
use crate::wire::{BODY_BYTES, KEY_BYTES_MAX, Shape};
use holdfast_base::{Error, Result};
use holdfast_env::poll::{Events, Poller};
use holdfast_env::tls::{TlsTarget, TlsTrust};
use holdfast_env::{Clock, RealClock};
use std::sync::Arc;
use std::time::Duration;

mod servers;

pub use servers::Drops;

const EVENTS: usize = 256;

/// What becomes of a dead server's keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Failover {
    /// Their operations fail with [`Answer::Dead`] until it is back.
    #[default]
    None,
    /// The next server on the ring has them meanwhile. What that one keeps is old when it gets
    /// them the next time: give items a short expiry.
    NextServer,
}

#[derive(Clone, Debug)]
pub struct CacheClientOptions {
    pub hashing: Hashing,
    /// How gets travel; everything else goes over TCP.
    pub gets: Transport,
    /// Keys of one request. Servers of memcached 1.6 want 1 over UDP if values are longer than
    /// a datagram.
    pub keys_per_request: usize,
    pub failover: Failover,
    /// Where the servers speak TLS: what they are believed for. Gets go over TCP then.
    pub tls: Option<TlsTrust>,
    /// Waits without sleeping: for a client that has a core to itself.
    pub spin: bool,
    pub fleet: fleet::Settings,
}

impl Default for CacheClientOptions {
    fn default() -> CacheClientOptions {
        CacheClientOptions {
            hashing: Hashing::default(),
            gets: Transport::default(),
            keys_per_request: 100,
            failover: Failover::default(),
            tls: None,
            spin: false,
            fleet: fleet::Settings::default(),
        }
    }
}

/// One request over TCP.
#[derive(Clone, Copy)]
pub(crate) struct Ask<'a> {
    pub server: u32,
    pub shape: Shape,
    pub ticket: u64,
    pub bytes: &'a [u8],
    /// See [`fleet::Fleet::submit_unless_ended`].
    pub unless_ended: Option<u64>,
}

pub struct Client {
    options: CacheClientOptions,
    ring: Ring,
    /// Who has the keys of dead servers meanwhile, numbered behind those of `ring`; for lookasides.
    gutter: Option<Gutter>,
    links: Links,
    poller: Poller,
    events: Events,
    /// Chains of gets by server, with and without cas: first and last.
    chains: Vec<(u32, u32)>,
    active: Vec<u32>,
    request: Vec<u8>,
    /// Dead servers before the one that has a key meanwhile.
    passed: Vec<u32>,
    /// What single operations use.
    single: Batch,
}

struct Gutter {
    ring: Ring,
    /// Its first server.
    first: u32,
}

impl Client {
    /// A client of these servers, each `HOST:PORT` with ` WEIGHT` behind it or not. Connects when
    /// something is asked.
    pub fn new<S: AsRef<str>>(servers: &[S], options: CacheClientOptions) -> Result<Client> {
        let members =
            servers.iter().map(|s| Member::parse(s.as_ref())).collect::<Result<Vec<Member>>>()?;
        Client::with_clock(&members, options, Arc::new(RealClock::new()))
    }

    /// A client of all servers of a plan, numbered as they are there; each is spoken to as its pool says.
    pub fn of_plan(
        plan: &RoutePlan,
        options: CacheClientOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<Client> {
        Client::with_targets(&plan.members, plan.targets.clone(), options, clock)
    }

    pub fn with_clock(
        members: &[Member],
        options: CacheClientOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<Client> {
        let targets = match &options.tls {
            None => Vec::new(),
            Some(_) if options.gets == Transport::Udp => {
                return Err(Error::invalid(
                    "make a cache client: UDP has no TLS: send its gets over TCP",
                ));
            }
            Some(trust) => {
                let hosts = members.iter().map(|member| member.host.as_str());
                trust.targets(hosts)?.into_iter().map(Some).collect()
            }
        };
        Client::with_targets(members, targets, options, clock)
    }

    /// A client of these servers, and of those of a gutter, which are numbered behind them. Nothing that
    /// [`Client::run`] carries out goes to the gutter.
    pub(crate) fn with_gutter(
        members: &[Member],
        gutter: &[Member],
        options: CacheClientOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<Client> {
        let all = [members, gutter].concat();
        let mut client = Client::with_clock(&all, options, clock)?;
        if !gutter.is_empty() {
            let hashing = client.options.hashing;
            client.ring = Ring::new(members, hashing);
            let (ring, first) = (Ring::new(gutter, hashing), members.len() as u32);
            client.gutter = Some(Gutter { ring, first });
        }
        Ok(client)
    }

    fn with_targets(
        members: &[Member],
        targets: Vec<Option<TlsTarget>>,
        options: CacheClientOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<Client> {
        if members.is_empty() {
            return Err(Error::invalid("make a cache client: name at least one server"));
        }
        let addresses = members.iter().map(links::resolve).collect::<Result<Vec<_>>>()?;
        let failed = |e: std::io::Error| Error::from(e).context("make a cache client");
        let absences = Arc::new(Absences::new(members.len()));
        let links = Links::new(addresses, options.fleet, clock, 0, absences).with_tls(targets);
        Ok(Client {
            ring: Ring::new(members, options.hashing),
            gutter: None,
            chains: vec![(NONE, NONE); 2 * members.len()],
            links,
            poller: Poller::new().map_err(failed)?,
            events: Events::new(EVENTS),
            active: Vec::new(),
            request: Vec::new(),
            passed: Vec::new(),
            single: Batch::new(),
            options,
        })
    }

    pub fn counts(&self) -> Counts {
        self.links.fleet.counts
    }

    pub fn window(&self) -> &Window {
        self.links.fleet.window()
    }

    /// Carries a batch out: all servers at once, as fast as the window admits. Returns when each
    /// operation has its answer; fails only if this machine does.
    pub fn run(&mut self, batch: &mut Batch) -> Result<()> {
        batch.begin();
        self.refresh()?;
        self.submit(batch);
        self.complete(batch, |batch| batch.pending, settle)
    }

    /// Takes note of what happened since the last batch: connections that ended, servers that are back.
    pub(crate) fn refresh(&mut self) -> Result<()> {
        self.turn(Some(Duration::ZERO), &mut |_, _| ())
    }

    /// Sends what was submitted, and waits until all of it has its outcome.
    fn complete<S>(
        &mut self,
        state: &mut S,
        pending: fn(&S) -> usize,
        settle: impl Fn(&mut S, u64, Outcome<'_>),
    ) -> Result<()> {
        while pending(state) > 0 {
            self.links.advance(&self.poller, &mut |ticket, of| settle(state, ticket, of));
            if pending(state) == 0 {
                break;
            }
            let now = self.links.now_ns();
            let until = self.links.fleet.deadline_ns();
            let wait = until.map(|until| Duration::from_nanos(until.saturating_sub(now)));
            let wait = if self.options.spin { Some(Duration::ZERO) } else { wait };
            self.turn(wait, &mut |ticket, of| settle(state, ticket, of))?;
        }
        Ok(())
    }

    /// Waits for the sockets, and takes what they bring.
    fn turn(
        &mut self,
        wait: Option<Duration>,
        done: &mut impl FnMut(u64, Outcome<'_>),
    ) -> Result<()> {
        let failed = |e: std::io::Error| Error::from(e).context("wait for cache servers");
        self.poller.wait(&mut self.events, wait).map_err(failed)?;
        for i in 0..self.events.len() {
            self.links.event(self.events.get(i), done);
        }
        Ok(())
    }

    pub(crate) fn clock(&self) -> Arc<dyn Clock> {
        self.links.clock()
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.links.now_ns()
    }

    /// The server of a key, dead or not.
    pub(crate) fn server_of(&self, key: &[u8]) -> u32 {
        self.ring.find(key).expect("a client has a server")
    }

    /// The server that has a key now: its own, or one of the gutter while that is dead.
    pub(crate) fn place_of(&self, key: &[u8]) -> u32 {
        let own = self.server_of(key);
        match &self.gutter {
            Some(gutter) if !self.links.fleet.is_up(own) => {
                gutter.first + gutter.ring.find(key).expect("a gutter has a server")
            }
            _ => own,
        }
    }

    /// Whether a server is one of the gutter.
    pub(crate) fn is_gutter(&self, server: u32) -> bool {
        self.gutter.as_ref().is_some_and(|gutter| server >= gutter.first)
    }

    pub(crate) fn has_gutter(&self) -> bool {
        self.gutter.is_some()
    }

    pub(crate) fn are_all_up(&self) -> bool {
        self.links.fleet.are_all_up()
    }

    /// See [`fleet::Fleet::ended`].
    pub(crate) fn ended(&self, server: u32) -> u64 {
        self.links.fleet.ended(server)
    }

    /// Submits one request over TCP; [`Client::settle`] sends it.
    pub(crate) fn ask(&mut self, ask: &Ask<'_>) {
        let Ask { server, shape, ticket, bytes, unless_ended } = *ask;
        let transport = Transport::Tcp;
        let request = Request { server, transport, shape, keys: 0, ticket, bytes };
        match unless_ended {
            None => self.links.fleet.submit(request),
            Some(ended) => self.links.fleet.submit_unless_ended(request, ended),
        }
    }

    /// Waits until each of so many requests has its outcome.
    pub(crate) fn settle(
        &mut self,
        requests: usize,
        done: impl FnMut(u64, Outcome<'_>),
    ) -> Result<()> {
        self.complete(
            &mut (requests, done),
            |(pending, _)| *pending,
            |state, ticket, of| {
                state.0 -= 1;
                (state.1)(ticket, of);
            },
        )
    }

    /// Sleeps until then, and takes note of what the sockets bring.
    pub(crate) fn idle_until(&mut self, at_ns: u64) -> Result<()> {
        loop {
            let left = at_ns.saturating_sub(self.now_ns());
            if left == 0 {
                return Ok(());
            }
            self.turn(Some(Duration::from_nanos(left)), &mut |_, _| ())?;
        }
    }

    /// Puts everything of a batch into the core's queue.
    fn submit(&mut self, batch: &mut Batch) {
        for number in 0..batch.len() as u32 {
            let fleet = &mut self.links.fleet;
            let key = batch.key(number as usize);
            self.passed.clear();
            let passed = &mut self.passed;
            let server = match self.options.failover {
                Failover::None => self.ring.find(key),
                Failover::NextServer => self.ring.find_where(key, |server| {
                    let is_up = fleet.is_up(server);
                    if !is_up && !passed.contains(&server) {
                        passed.push(server);
                    }
                    is_up
                }),
            };
            if !batch.operation(number).is_get {
                // They must not come back with what they have of this key.
                for dead in self.passed.drain(..) {
                    fleet.owe(dead, [b"delete ", key, b"\r\n"].concat());
                }
            }
            let Some(server) = server else {
                batch.settle(number, Answer::Dead { maybe: false });
                continue;
            };
            let of = batch.operation(number);
            if !of.is_get {
                let (shape, ticket) = (Shape::Line, ticket(number, 0));
                let (transport, bytes) = (Transport::Tcp, batch.request(number));
                fleet.submit(Request { server, transport, shape, keys: 0, ticket, bytes });
                continue;
            }
            let place = server * 2 + u32::from(of.with_cas);
            let chain = &mut self.chains[place as usize];
            if chain.0 == NONE {
                *chain = (number, number);
                self.active.push(place);
            } else {
                batch.chain(chain.1, number);
                chain.1 = number;
            }
        }
        self.submit_gets(batch);
    }

    /// A request of each server's gets in turn, so that all servers have something to do.
    fn submit_gets(&mut self, batch: &mut Batch) {
        let most = match self.options.gets {
            Transport::Tcp => usize::MAX,
            Transport::Udp => BODY_BYTES - KEY_BYTES_MAX - b" \r\n".len(),
        };
        while !self.active.is_empty() {
            let (chains, request, options) = (&mut self.chains, &mut self.request, &self.options);
            let fleet = &mut self.links.fleet;
            self.active.retain(|place| {
                let chain = &mut chains[*place as usize];
                let (first, mut count) = (chain.0, 0);
                request.clear();
                request.extend_from_slice(if place % 2 == 1 { b"gets" } else { b"get" });
                let (mut at, mut last) = (first, first);
                while at != NONE && count < options.keys_per_request.max(1) && request.len() <= most
                {
                    request.push(b' ');
                    request.extend_from_slice(batch.key(at as usize));
                    (last, at) = (at, batch.operation(at).next);
                    count += 1;
                }
                request.extend_from_slice(b"\r\n");
                // The chain of this request ends here.
                batch.chain(last, NONE);
                chain.0 = at;
                let keys = count as u32;
                fleet.submit(Request {
                    server: place / 2,
                    transport: options.gets,
                    shape: Shape::Values,
                    keys,
                    ticket: ticket(first, keys),
                    bytes: request,
                });
                at != NONE
            });
        }
    }

    /// One operation.
    fn one(&mut self, fill: impl FnOnce(&mut Batch) -> Result<usize>) -> Result<Batch> {
        let mut batch = std::mem::take(&mut self.single);
        batch.clear();
        fill(&mut batch)?;
        self.run(&mut batch)?;
        Ok(batch)
    }

    /// The value of a key; nothing if it is not there, or its server does not answer.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let batch = self.one(|batch| batch.get(key))?;
        let data = batch.answer(0).data().map(<[u8]>::to_vec);
        self.single = batch;
        Ok(data)
    }

    /// The values of many keys, in their order.
    pub fn get_many<K: AsRef<[u8]>>(&mut self, keys: &[K]) -> Result<Vec<Option<Vec<u8>>>> {
        let batch = self.one(|batch| keys.iter().try_fold(0, |_, key| batch.get(key.as_ref())))?;
        let all = batch.answers().map(|answer| answer.data().map(<[u8]>::to_vec)).collect();
        self.single = batch;
        Ok(all)
    }

    /// Stores a value; see [`Batch::store`] for `expiry_s`.
    pub fn set(&mut self, key: &[u8], value: &[u8], expiry_s: i64) -> Result<()> {
        self.set_many(&[(key, value)], expiry_s)
    }

    /// Stores many values at once. Fails if one was not stored; the others may have been.
    pub fn set_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &mut self,
        items: &[(K, V)],
        expiry_s: i64,
    ) -> Result<()> {
        let batch = self.one(|batch| {
            items.iter().try_fold(0, |_, (key, value)| {
                batch.store(Store::Set, key.as_ref(), value.as_ref(), 0, expiry_s)
            })
        })?;
        let failed = batch.answers().enumerate().find(|(_, answer)| *answer != Answer::Done);
        let result = match failed {
            None => Ok(()),
            Some((number, answer)) => {
                let key = String::from_utf8_lossy(batch.key(number)).into_owned();
                Err(failure(&format!("store `{key}`"), answer))
            }
        };
        self.single = batch;
        result
    }

    /// Deletes a key; whether there was a value.
    pub fn delete(&mut self, key: &[u8]) -> Result<bool> {
        let batch = self.one(|batch| batch.delete(key))?;
        let result = match batch.answer(0) {
            Answer::Done => Ok(true),
            Answer::NotFound => Ok(false),
            other => Err(failure(&format!("delete `{}`", String::from_utf8_lossy(key)), other)),
        };
        self.single = batch;
        result
    }
}

/// What an operation failed with, as an error.
fn failure(doing: &str, answer: Answer<'_>) -> Error {
    match answer {
        Answer::Refused(line) => {
            Error::full(format!("{doing}: the server says `{}`", String::from_utf8_lossy(line)))
        }
        Answer::Dead { maybe: true } => {
            Error::retry(format!("{doing}: its server died meanwhile: it may or may not be done"))
        }
        _ => Error::retry(format!("{doing}: its server does not answer: try again later")),
    }
}

fn ticket(first: u32, keys: u32) -> u64 {
    u64::from(keys) << 32 | u64::from(first)
}

/// Hands an outcome to the operations that it is of. Those of an earlier batch cannot come:
/// a batch ends when all its operations have answers.
fn settle(batch: &mut Batch, ticket: u64, outcome: Outcome<'_>) {
    let (first, keys) = (ticket as u32, (ticket >> 32) as u32);
    let answer = match outcome {
        Outcome::Answer(answer) if keys > 0 => return batch.values(first, keys, answer),
        Outcome::Answer(line) => return batch.line(first, line),
        Outcome::Lost => Answer::Lost,
        Outcome::Dead { maybe } => Answer::Dead { maybe },
    };
    let mut at = first;
    for _ in 0..keys.max(1) {
        let next = batch.operation(at).next;
        batch.settle(at, answer);
        at = next;
        if at == NONE {
            break;
        }
    }
}
