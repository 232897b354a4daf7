//! The real [`Peers`]: one thread with epoll that keeps a connection to each address. What a
//! connection says and what that means is the core's; this file dials, moves bytes, keeps time,
//! and calls back. Callbacks run on its thread: they must not wait.

mod greeting;

use super::core::{Finished, PeerConnection, kind_of};
use super::dial;
use super::{PeerDone, PeerRequest, Peers};
use crate::locks::HoldMutex;
use crate::net::link::Link;
use crate::net::mailbox::Mailbox;
use crate::net::meter::Meter;
use crate::net::proof::Handshake;
use crate::net::socket::Wait;
use crate::net::tls::{TlsClient, tls_error};
use crate::net::{Credentials, Named, OP_YIELD};
use crate::secret::Token;
use crate::{Clock, Secrets, tasks};
use holdfast_base::{Error, Result};
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::ThreadId;

/// Requests of one address that wait for an answer, or for its connection.
pub const PEER_REQUESTS_MAX: usize = 2048;
/// And their bytes.
pub const PEER_BYTES_MAX: u64 = 64 << 20;
/// Longest wait for a connection.
const DIAL_NS: u64 = 2_000_000_000;
/// After a failure nothing is dialled for so long; doubled with each further one.
const REST_NS: u64 = 20_000_000;
const REST_NS_MAX: u64 = 1_000_000_000;
/// One receive of small answers.
const RECEIVE_BYTES: usize = 256 << 10;
/// Read beyond a large body, in the same call.
const TAIL_BYTES: usize = 4 << 10;
const EVENTS_MAX: usize = 64;
const WAKE: u64 = u64::MAX;

/// Connections to other servers. Dropping it fails what is outstanding.
pub struct TcpPeers {
    shared: Arc<Shared>,
    thread: Option<tasks::Task>,
}

struct Shared {
    mailbox: Mailbox<Message>,
    /// By address: those that do not yield, and those that do. Held for a look-up only. Never
    /// shrinks: there are twice as many as a cluster has addresses.
    routes: Mutex<[HashMap<String, Arc<Route>>; 2]>,
    clock: Arc<dyn Clock>,
    meter: Option<Arc<Meter>>,
    identity: Identity,
    /// Set by the thread itself, before it calls anybody back.
    thread: OnceLock<ThreadId>,
}

/// Says the token that a connection begins with: asked for each, so that one that is given another token needs
/// no restart. On the thread that asks peers.
pub type TokenSource = Arc<dyn Fn() -> Result<Token> + Send + Sync>;

/// Who asks.
enum Identity {
    /// A node of the cluster that is asked.
    Node { secrets: Secrets, credentials: Option<Arc<dyn Credentials>> },
    /// A client of another cluster, whose nodes are believed by its authority.
    Client { token: TokenSource, tls: Option<TlsClient> },
}

/// An address and what its callers have under way.
struct Route {
    number: u32,
    address: String,
    yields: bool,
    requests: AtomicUsize,
    bytes: AtomicU64,
}

/// One request's part in the account of its route, given back when dropped.
struct Charged {
    route: Arc<Route>,
    bytes: u64,
}

impl Charged {
    fn new(route: &Arc<Route>, bytes: u64) -> Result<Charged> {
        let requests = route.requests.fetch_add(1, Ordering::Relaxed);
        let before = route.bytes.fetch_add(bytes, Ordering::Relaxed);
        let charged = Charged { route: route.clone(), bytes };
        // One request is let through whatever its size.
        if requests >= PEER_REQUESTS_MAX || (before > 0 && before + bytes > PEER_BYTES_MAX) {
            return Err(Error::retry(format!(
                "ask `{}`: {requests} requests of {before} bytes wait for it already: ask again \
                 later",
                route.address
            )));
        }
        Ok(charged)
    }
}

impl Drop for Charged {
    fn drop(&mut self) {
        self.route.requests.fetch_sub(1, Ordering::Relaxed);
        self.route.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

enum Message {
    Call(Charged, PeerRequest, PeerDone),
    Refused(PeerDone, Error),
    After(u64, Box<dyn FnOnce() + Send>),
    /// For one attempt to connect.
    Resolved(u32, u32, Result<Vec<SocketAddr>>),
    Shutdown,
}

impl TcpPeers {
    pub fn start(clock: Arc<dyn Clock>) -> Result<TcpPeers> {
        TcpPeers::guarded(clock, None, Secrets::default(), None)
    }

    /// As [`TcpPeers::start`]; `meter` counts what the connections carry. With credentials each of
    /// them is TLS between two certificates; otherwise it begins with a proof of the cluster's
    /// secret, if there is one.
    pub fn guarded(
        clock: Arc<dyn Clock>,
        meter: Option<Arc<Meter>>,
        secrets: Secrets,
        credentials: Option<Arc<dyn Credentials>>,
    ) -> Result<TcpPeers> {
        TcpPeers::known_as(clock, meter, Identity::Node { secrets, credentials })
    }

    /// Connections to servers of another cluster, to which this process is the client that the token
    /// names: inside TLS if the cluster has an authority.
    pub fn with_token(
        clock: Arc<dyn Clock>,
        meter: Option<Arc<Meter>>,
        token: TokenSource,
        tls: Option<TlsClient>,
    ) -> Result<TcpPeers> {
        TcpPeers::known_as(clock, meter, Identity::Client { token, tls })
    }

    fn known_as(
        clock: Arc<dyn Clock>,
        meter: Option<Arc<Meter>>,
        identity: Identity,
    ) -> Result<TcpPeers> {
        let doing = |e: io::Error| Error::from(e).context("start the thread that asks peers");
        let shared = Arc::new(Shared {
            mailbox: Mailbox::new(false).map_err(doing)?,
            routes: Mutex::default(),
            clock,
            meter,
            identity,
            thread: OnceLock::new(),
        });
        let reactor = Reactor::new(shared.clone()).map_err(doing)?;
        let thread = Some(tasks::spawn("peers", || reactor.run())?);
        Ok(TcpPeers { shared, thread })
    }

    fn send(&self, address: &str, yields: bool, request: PeerRequest, done: PeerDone) {
        let route = {
            let mut routes = self.shared.routes.held();
            match routes[usize::from(yields)].get(address) {
                Some(route) => route.clone(),
                None => {
                    let route = Arc::new(Route {
                        number: routes.iter().map(HashMap::len).sum::<usize>() as u32,
                        address: address.to_owned(),
                        yields,
                        requests: AtomicUsize::new(0),
                        bytes: AtomicU64::new(0),
                    });
                    routes[usize::from(yields)].insert(address.to_owned(), route.clone());
                    route
                }
            }
        };
        let body_bytes = request.body.as_ref().map_or(0, |body| (**body).as_ref().len());
        let message = match Charged::new(&route, (request.meta.len() + body_bytes) as u64) {
            Ok(charged) => Message::Call(charged, request, done),
            // Not here: the caller may hold what `done` wants.
            Err(e) => Message::Refused(done, e),
        };
        self.shared.mailbox.push(message);
    }
}

impl Peers for TcpPeers {
    fn call(&self, address: &str, request: PeerRequest, done: PeerDone) {
        self.send(address, false, request, done);
    }

    fn call_yielding(&self, address: &str, request: PeerRequest, done: PeerDone) {
        self.send(address, true, request, done);
    }

    fn after(&self, ms: u64, then: Box<dyn FnOnce() + Send>) {
        let at_ns = self.shared.clock.monotonic_ns().saturating_add(ms.saturating_mul(1_000_000));
        self.shared.mailbox.push(Message::After(at_ns, then));
    }
}

impl Drop for TcpPeers {
    fn drop(&mut self) {
        self.shared.mailbox.push(Message::Shutdown);
        let own = self.shared.thread.get() == Some(&std::thread::current().id());
        // A callback may have held the last reference: the thread ends by itself then.
        if let Some(thread) = self.thread.take().filter(|_| !own) {
            thread.join();
        }
    }
}

/// What the thread knows of one address.
struct Peer {
    route: Arc<Route>,
    core: PeerConnection,
    state: State,
    /// Counts attempts to connect, so that what belongs to an earlier one is told apart.
    attempt: u32,
    /// Attempts and connections that failed since the last answer.
    failures: u32,
    /// What epoll was told to watch.
    interest: u32,
}

enum State {
    Idle,
    Resolving {
        until_ns: u64,
    },
    Dialling {
        link: Link,
        others: Vec<SocketAddr>,
        until_ns: u64,
    },
    /// Connected; a handshake of TLS is under way.
    Shaking {
        link: Link,
        until_ns: u64,
    },
    /// Connected; both sides prove the secret, before any request.
    Greeting {
        link: Link,
        handshake: Box<Handshake>,
        until_ns: u64,
    },
    Connected {
        link: Link,
        /// Who answers, by their certificate.
        named: Option<Named>,
    },
    Resting {
        until_ns: u64,
        why: Error,
    },
}

/// Ordered by time, then by when it was asked for; the first one is the greatest.
struct Timer(u64, u64, Box<dyn FnOnce() + Send>);

impl Timer {
    fn key(&self) -> std::cmp::Reverse<(u64, u64)> {
        std::cmp::Reverse((self.0, self.1))
    }
}

impl PartialEq for Timer {
    fn eq(&self, other: &Timer) -> bool {
        self.key() == other.key()
    }
}
impl Eq for Timer {}
impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Timer) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Timer {
    fn cmp(&self, other: &Timer) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

struct Reactor {
    shared: Arc<Shared>,
    epoll: OwnedFd,
    /// By the route's number.
    peers: BTreeMap<u32, Peer>,
    timers: BinaryHeap<Timer>,
    timers_asked: u64,
    now_ns: u64,
    buffer: Vec<u8>,
    messages: Vec<Message>,
    /// Numbers of peers with something new to send.
    touched: Vec<u32>,
    /// Called at the end of each turn, when nothing is borrowed.
    finished: Finished,
    stopping: bool,
}

impl Reactor {
    fn new(shared: Arc<Shared>) -> io::Result<Reactor> {
        // SAFETY: no pointers; the result is checked.
        let epoll = match unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) } {
            -1 => return Err(io::Error::last_os_error()),
            // SAFETY: just made, and owned by nobody else.
            fd => unsafe { OwnedFd::from_raw_fd(fd) },
        };
        let reactor = Reactor {
            shared,
            epoll,
            peers: BTreeMap::new(),
            timers: BinaryHeap::new(),
            timers_asked: 0,
            now_ns: 0,
            buffer: vec![0; RECEIVE_BYTES],
            messages: Vec::new(),
            touched: Vec::new(),
            finished: Vec::new(),
            stopping: false,
        };
        let wake = reactor.shared.mailbox.raw();
        watch(&reactor.epoll, libc::EPOLL_CTL_ADD, wake, libc::EPOLLIN as u32, WAKE)?;
        Ok(reactor)
    }

    fn run(mut self) {
        let _ = self.shared.thread.set(std::thread::current().id());
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX];
        while !self.stopping {
            let timeout_ms = self.timeout_ms();
            // SAFETY: the pointer and count describe `events`, which outlives the call.
            let count = unsafe {
                let fd = self.epoll.as_raw_fd();
                libc::epoll_wait(fd, events.as_mut_ptr(), EVENTS_MAX as i32, timeout_ms)
            };
            self.now_ns = self.shared.clock.monotonic_ns();
            // Negative is EINTR: anything else would be a bug in the arguments.
            for event in &events[..count.max(0) as usize] {
                self.event(event.u64);
            }
            self.read_mailbox();
            self.limits();
            for number in std::mem::take(&mut self.touched) {
                self.flush(number);
            }
            self.call_back();
        }
        let why = Error::retry("this node is ending");
        for peer in self.peers.values_mut() {
            peer.core.fail(&why, &mut self.finished);
        }
        self.call_back();
    }

    /// Nothing is borrowed here, and no lock held.
    fn call_back(&mut self) {
        for (done, result) in self.finished.drain(..) {
            done(result);
        }
        while self.timers.peek().is_some_and(|timer| timer.0 <= self.now_ns) {
            if let Some(Timer(_, _, then)) = self.timers.pop() {
                then();
            }
        }
    }

    fn timeout_ms(&self) -> i32 {
        let limit = |peer: &Peer| {
            let state = match &peer.state {
                State::Resolving { until_ns }
                | State::Dialling { until_ns, .. }
                | State::Shaking { until_ns, .. }
                | State::Greeting { until_ns, .. } => Some(*until_ns),
                _ => None,
            };
            [state, peer.core.next_deadline_ns()].into_iter().flatten().min()
        };
        let limits = self.peers.values().filter_map(limit);
        let Some(next_ns) = limits.chain(self.timers.peek().map(|timer| timer.0)).min() else {
            return -1;
        };
        let wait_ns = next_ns.saturating_sub(self.shared.clock.monotonic_ns());
        wait_ns.div_ceil(1_000_000).min(i32::MAX as u64) as i32
    }

    fn read_mailbox(&mut self) {
        let mut messages = std::mem::take(&mut self.messages);
        self.shared.mailbox.take(&mut messages);
        for message in messages.drain(..) {
            match message {
                Message::Call(charged, request, done) => self.call(charged, request, done),
                Message::Refused(done, e) => self.finished.push((done, Err(e))),
                Message::After(at_ns, then) => {
                    self.timers_asked += 1;
                    self.timers.push(Timer(at_ns, self.timers_asked, then));
                }
                Message::Resolved(number, attempt, found) => {
                    let peer = self.peers.get(&number);
                    if peer.is_some_and(|peer| peer.attempt == attempt) {
                        self.dial(number, found);
                    }
                }
                Message::Shutdown => self.stopping = true,
            }
        }
        self.messages = messages;
    }

    fn call(&mut self, charged: Charged, request: PeerRequest, done: PeerDone) {
        let route = &charged.route;
        let number = route.number;
        let peer = self.peers.entry(number).or_insert_with(|| Peer {
            route: route.clone(),
            core: PeerConnection::new(&route.address),
            state: State::Idle,
            attempt: 0,
            failures: 0,
            interest: 0,
        });
        if let State::Connected { named: Some(named), .. } = &peer.state
            && let Identity::Node { credentials: Some(credentials), .. } = &self.shared.identity
            && let Err(e) = credentials.check_standing(named)
        {
            self.broken(number, &e);
        }
        let Some(peer) = self.peers.get_mut(&number) else { return };
        if let State::Resting { until_ns, why } = &peer.state
            && *until_ns > self.now_ns
        {
            let e = why.clone().context(format!("ask `{}`", route.address));
            return self.finished.push((done, Err(e)));
        }
        if route.yields && matches!(peer.state, State::Idle | State::Resting { .. }) {
            // The first request of each connection.
            let (opcode, deadline_ms) = (OP_YIELD, request.deadline_ms);
            let first = PeerRequest { opcode, meta: Vec::new(), body: None, deadline_ms };
            peer.core.submit_charged(self.now_ns, first, Box::new(drop), None, &mut self.finished);
        }
        let (now_ns, charge) = (self.now_ns, Some(Box::new(charged) as _));
        peer.core.submit_charged(now_ns, request, done, charge, &mut self.finished);
        match peer.state {
            State::Idle | State::Resting { .. } => self.resolve(number),
            State::Connected { .. } if !self.touched.contains(&number) => self.touched.push(number),
            _ => {}
        }
    }

    fn resolve(&mut self, number: u32) {
        let Some(peer) = self.peers.get_mut(&number) else { return };
        peer.attempt += 1;
        peer.state = State::Resolving { until_ns: self.now_ns + DIAL_NS };
        let (shared, attempt) = (self.shared.clone(), peer.attempt);
        dial::resolve(&peer.route.address, move |found| {
            shared.mailbox.push(Message::Resolved(number, attempt, found));
        });
    }

    /// Tries the last of the addresses, then the others.
    fn dial(&mut self, number: u32, found: Result<Vec<SocketAddr>>) {
        let Some(peer) = self.peers.get_mut(&number) else { return };
        let begun = found.and_then(|mut others| {
            let address =
                others.pop().ok_or_else(|| Error::retry("connect: no address is left"))?;
            let socket = dial::begin(address)
                .map_err(|e| Error::from(e).context(format!("connect to `{address}`")))?;
            peer.attempt += 1;
            peer.interest = libc::EPOLLOUT as u32;
            let token = token(number, peer.attempt);
            watch(&self.epoll, libc::EPOLL_CTL_ADD, socket.raw(), peer.interest, token)
                .map_err(|e| Error::from(e).context("watch a connection"))?;
            let until_ns = self.now_ns + DIAL_NS;
            peer.state = State::Dialling {
                link: Link::metered(socket, &self.shared.meter),
                others,
                until_ns,
            };
            Ok(())
        });
        if let Err(e) = begun {
            self.broken(number, &e);
        }
    }

    fn event(&mut self, event: u64) {
        if event == WAKE {
            return self.shared.mailbox.woken();
        }
        let (number, attempt) = (event as u32, (event >> 32) as u32);
        let Some(peer) = self.peers.get_mut(&number) else { return };
        // An event of a connection that was given up in this very turn.
        if peer.attempt != attempt {
            return;
        }
        match &mut peer.state {
            State::Dialling { link, others, .. } => match dial::outcome(&link.socket) {
                Ok(()) => {
                    let State::Dialling { link, .. } =
                        std::mem::replace(&mut peer.state, State::Idle)
                    else {
                        return;
                    };
                    if peer.route.yields {
                        link.socket.yield_to_others();
                    }
                    self.connected(number, link);
                }
                Err(_) if !others.is_empty() => {
                    let others = std::mem::take(others);
                    self.dial(number, Ok(others));
                }
                Err(e) => self.broken(number, &Error::from(e).context("connect")),
            },
            State::Shaking { .. } => {
                if let Err(e) = self.shake(number) {
                    self.broken(number, &e);
                }
            }
            State::Greeting { .. } => {
                if let Err(e) = self.greet(number) {
                    self.broken(number, &e);
                }
            }
            State::Connected { .. } => {
                if let Err(e) = self.receive_all(number) {
                    self.broken(number, &e);
                } else if !self.touched.contains(&number) {
                    self.touched.push(number);
                }
            }
            _ => {}
        }
    }

    /// One receive, and what else it has brought.
    fn receive_all(&mut self, number: u32) -> Result<()> {
        loop {
            self.receive(number)?;
            let state = self.peers.get(&number).map(|peer| &peer.state);
            if !matches!(state, Some(State::Connected { link, .. }) if link.has_more()) {
                return Ok(());
            }
        }
    }

    /// One receive, and what it completed.
    fn receive(&mut self, number: u32) -> Result<()> {
        let Some(peer) = self.peers.get_mut(&number) else { return Ok(()) };
        let State::Connected { link, .. } = &mut peer.state else { return Ok(()) };
        let (buffer, fds) = (&mut self.buffer, &mut Vec::new());
        let received = match peer.core.large_target() {
            Some((body, end)) => link
                .receive_append(body, end, &mut buffer[..TAIL_BYTES], Wait::No, fds)
                .map(|(appended, more)| (appended + more, more)),
            None => link.receive(buffer, Wait::No, fds).map(|received| (received, received)),
        };
        match received {
            Ok((0, _)) => Err(Error::retry("it was closed")),
            Ok((_, more)) => {
                peer.failures = 0;
                peer.core.received(self.now_ns, &buffer[..more], &mut self.finished)
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(()),
            // The other side may refuse the own certificate only now.
            Err(e) if link.is_sealed() => Err(tls_error(e)),
            Err(e) => Err(e.into()),
        }
    }

    fn flush(&mut self, number: u32) {
        let Some(peer) = self.peers.get_mut(&number) else { return };
        let State::Connected { link, .. } = &mut peer.state else { return };
        if let Err(e) = peer.core.out.flush(link) {
            return self.broken(number, &e.into());
        }
        let write = if peer.core.out.is_empty() { 0 } else { libc::EPOLLOUT as u32 };
        let wanted = libc::EPOLLIN as u32 | write;
        if wanted != peer.interest {
            peer.interest = wanted;
            let (raw, token) = (link.socket.raw(), token(number, peer.attempt));
            if let Err(e) = watch(&self.epoll, libc::EPOLL_CTL_MOD, raw, wanted, token) {
                self.broken(number, &e.into());
            }
        }
    }

    /// Deadlines of requests and of attempts to connect.
    fn limits(&mut self) {
        let mut broken = Vec::new();
        for (number, peer) in &mut self.peers {
            let silent = peer.core.expire(self.now_ns, &mut self.finished);
            let slow = match &peer.state {
                State::Resolving { until_ns }
                | State::Dialling { until_ns, .. }
                | State::Shaking { until_ns, .. }
                | State::Greeting { until_ns, .. } => *until_ns <= self.now_ns,
                _ => false,
            };
            match silent {
                Err(e) => broken.push((*number, e)),
                Ok(()) if slow => broken.push((*number, Error::retry("connect: no answer"))),
                Ok(()) => {}
            }
        }
        broken.into_iter().for_each(|(number, e)| self.broken(number, &e));
    }

    /// Ends a connection, or the attempt to make one, and lets the address rest.
    fn broken(&mut self, number: u32, why: &Error) {
        let Some(peer) = self.peers.get_mut(&number) else { return };
        peer.core.fail(why, &mut self.finished);
        peer.failures += 1;
        peer.attempt += 1;
        let rest_ns = REST_NS.saturating_mul(1 << (peer.failures - 1).min(16)).min(REST_NS_MAX);
        let kind = kind_of(why);
        let why = Error::new(kind, format!("its connection broke ({why}) and rests for a moment"));
        peer.state = State::Resting { until_ns: self.now_ns + rest_ns, why };
    }
}

fn token(number: u32, attempt: u32) -> u64 {
    (attempt as u64) << 32 | number as u64
}

fn watch(epoll: &OwnedFd, operation: i32, fd: RawFd, events: u32, token: u64) -> io::Result<()> {
    let mut event = libc::epoll_event { events, u64: token };
    // SAFETY: `event` outlives the call; a wrong descriptor is an error, not a danger.
    match unsafe { libc::epoll_ctl(epoll.as_raw_fd(), operation, fd, &mut event) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
