//! One connection to a server, for one thread: requests are pipelined, answers matched by id.
//! What decides is in `core.rs`; this file moves bytes. After a failure every outstanding request
//! says so; [`Connection::reconnect`] sends those again that were kept. Never decides when to.

#[cfg(feature = "async")]
pub(crate) mod aio;
mod core;
mod intake;
mod opening;
mod silence;
#[cfg(test)]
mod tests;

use self::core::Core;
use self::intake::{Intake, Target};
use self::opening::open;
use self::silence::Silence;
pub use self::silence::Silent;
use holdfast_base::limits::{CONNECTION_REQUESTS_MAX, FRAME_BODY_BYTES_MAX};
use holdfast_base::{Error, Kind, Result};
use holdfast_env::net::{Endpoint, Link, OP_RING, TlsClient, Wait, tls_error};
use holdfast_env::ring::Ring;
use holdfast_env::secret::Token;
use holdfast_env::{Secrets, planted};
use holdfast_wire::OP_CATCH_UP;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// A body up to this size is copied behind its head and sent with the next flush.
const COPY_BYTES_MAX: usize = 4 << 10;
/// Pieces of a body that are sent without a copy.
const BODY_PIECES_MAX: usize = 63;
/// Unsent requests up to this size are gathered before a send is forced.
const SEND_BYTES_MAX: usize = 256 << 10;
/// Empty looks at the socket before a spinning receive sleeps: some 100 us.
const SPINS_MAX: u32 = 200;

/// The same without spinning: some 10 us. Answers of a server that is awake are back by then, and
/// being awake saves the wake-up, which costs both sides about as much.
const LINGER_LOOKS: u32 = 24;

/// Names a request of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// How a client connects, waits and tries again.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// For each address that is tried, and for each step of what is said first: until it was heard, nobody is there.
    pub connect_timeout: Duration,
    /// Longest silence of the server while an answer is awaited; nothing means for ever.
    pub read_timeout: Option<Duration>,
    /// Called once a silence in which the server does not answer either that it is there: ten seconds, if
    /// `read_timeout` is longer.
    pub silence_told: Option<fn(Silent<'_>)>,
    /// Look for answers for a while before sleeping: some microseconds less latency, a busy core.
    pub spin: bool,
    /// Over a Unix socket, move everything through shared memory that both sides poll: a few
    /// microseconds a round trip, for a core each. Refused by a server that does not spin. Over
    /// TCP this changes nothing.
    pub ring: bool,
    /// What is proved to a server over TCP, which answers nobody else: those of them that it
    /// knows. Over a Unix socket the user is proof enough.
    pub secrets: Secrets,
    /// Instead of a secret: whose token is proved, and what one may do is what it allows.
    pub token: Option<Token>,
    /// Over TCP, talk TLS: whom to believe, and what to show. Nothing else is sent before.
    pub tls: Option<TlsClient>,
    /// Requests without an answer; up to the server's own limit.
    pub outstanding_max: usize,
    /// Sent with each request; 0 for none.
    pub deadline_ms: u32,
    /// How often a client connects again before it gives up, and how often it sends one request
    /// again. Requests that change something are numbered, so a repetition gets the first answer.
    pub reconnects_max: u32,
    /// Other nodes of the same cluster: where to go on when the first one does not answer.
    pub others: Vec<Endpoint>,
    /// How long what a node refuses for now is sent again: its log or a directory moves, a home is being
    /// taken over, or too few stores are there. Twenty seconds by default, longer than any of these takes; with
    /// none of it the refusal is the answer.
    pub patience: Duration,
    /// Pause before the second attempt; it doubles with each, up to [`RECONNECT_PAUSE_MAX`].
    pub reconnect_pause: Duration,
}

/// The longest pause between two attempts to connect.
pub const RECONNECT_PAUSE_MAX: Duration = Duration::from_secs(2);

/// No attempt to connect again begins later than this after the first: each may take seconds where
/// hosts are silent, or where the log's is, which a node waits for before it says that it is level.
pub(crate) const RECOVER_MAX: Duration = Duration::from_secs(20);

impl Default for ClientOptions {
    fn default() -> ClientOptions {
        ClientOptions {
            connect_timeout: Duration::from_secs(5),
            read_timeout: Some(Duration::from_secs(60)),
            silence_told: None,
            spin: false,
            ring: false,
            secrets: Secrets::default(),
            token: None,
            tls: None,
            outstanding_max: CONNECTION_REQUESTS_MAX / 2,
            deadline_ms: 0,
            reconnects_max: 8,
            others: Vec::new(),
            patience: Duration::from_secs(20),
            reconnect_pause: Duration::from_millis(50),
        }
    }
}

/// An answer, or a part of one. Checksums of the body are the caller's work.
#[derive(Debug, Default)]
pub struct Response {
    meta: Vec<u8>,
    /// Empty if it went to the caller's own memory.
    body: Vec<u8>,
    body_bytes: usize,
    last: bool,
}

impl Response {
    #[cfg(test)]
    fn new(bytes: Vec<u8>, meta_bytes: usize, last: bool) -> Response {
        let (meta, body) = bytes.split_at(meta_bytes);
        Response { meta: meta.to_vec(), body: body.to_vec(), body_bytes: body.len(), last }
    }

    /// The answer's message, encoded.
    pub fn meta(&self) -> &[u8] {
        &self.meta
    }

    /// The body; empty after [`Connection::wait_into`].
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// As [`Response::body`], without a copy.
    pub fn into_body(self) -> Vec<u8> {
        self.body
    }

    /// Length of the body, wherever it went.
    pub fn body_bytes(&self) -> usize {
        self.body_bytes
    }

    /// Whether the answer ends here.
    pub fn is_last(&self) -> bool {
        self.last
    }
}

/// One connection to a node: requests go out in order, several at a time, and answers come back by
/// their ids.
pub struct Connection {
    endpoint: Endpoint,
    link: Link,
    options: ClientOptions,
    core: Core,
    /// Encoded and not yet sent.
    out: Vec<u8>,
    intake: Intake,
    linger: Linger,
    silence: Silence,
    /// A request is sent in part: nothing else may be sent before its end.
    is_sending: bool,
    /// Descriptors received and not yet taken, oldest first.
    fds: Vec<OwnedFd>,
}

impl Connection {
    /// With [`ClientOptions::default`].
    pub fn connect(endpoint: &Endpoint) -> Result<Connection> {
        Connection::connect_with(endpoint, ClientOptions::default())
    }

    /// Connects to `endpoint`, or else to the first of `options.others` that answers; `Retry` if
    /// none does.
    pub fn connect_with(endpoint: &Endpoint, mut options: ClientOptions) -> Result<Connection> {
        let (mut endpoint, mut tried) = (endpoint.clone(), 1 + options.others.len());
        let link = loop {
            let e = match open(&endpoint, &options) {
                Ok(link) => break link,
                Err(e) => e,
            };
            tried -= 1;
            if tried == 0 || e.kind != Kind::Retry {
                return Err(e);
            }
            // As whoever was connected: on to the next node.
            options.others.push(endpoint);
            endpoint = options.others.remove(0);
        };
        let mut connection = Connection {
            endpoint,
            link,
            core: Core::new(options.outstanding_max),
            options,
            out: Vec::new(),
            intake: Intake::new(),
            linger: Linger::default(),
            silence: Silence::new(),
            is_sending: false,
            fds: Vec::new(),
        };
        connection.begin_silence()?;
        connection.enter_ring_if_wanted()?;
        Ok(connection)
    }

    fn begin_silence(&mut self) -> Result<()> {
        let timeout = self.silence.begin(&self.options);
        Ok(self.link.set_receive_timeout(timeout)?)
    }

    fn enter_ring_if_wanted(&mut self) -> Result<()> {
        if self.options.ring && matches!(self.endpoint, Endpoint::Unix(_)) {
            return self.enter_ring();
        }
        Ok(())
    }

    /// Makes a ring, hands it to the server, and goes on through it.
    fn enter_ring(&mut self) -> Result<()> {
        let (ring, fd) = Ring::create()?;
        let id = self.core.submit(&mut self.out, OP_RING, 0, 0, |_| {})?;
        let request = std::mem::take(&mut self.out);
        match self.link.send(&[IoSlice::new(&request)], Some(fd.as_fd()), false) {
            Ok(sent) if sent == request.len() => {}
            // An empty socket takes so small a request as a whole.
            Ok(_) => self.fail(&io::ErrorKind::WriteZero.into()),
            Err(e) => self.fail(&e),
        }
        if let Err(e) = self.wait(id) {
            return Err(e.context(format!("connect to `{}`", self.endpoint)));
        }
        self.link.ring = Some(ring);
        Ok(())
    }

    /// Where it leads now: another node may have taken over.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// More nodes of the same cluster.
    pub(crate) fn add_others(&mut self, others: impl Iterator<Item = Endpoint>) {
        for other in others {
            if other != self.endpoint && !self.options.others.contains(&other) {
                self.options.others.push(other);
            }
        }
    }

    /// Requests whose answer has not come.
    pub fn outstanding(&self) -> usize {
        self.core.outstanding()
    }

    /// Sends one request and waits for its answer.
    pub fn call(
        &mut self,
        opcode: u16,
        meta: impl FnOnce(&mut Vec<u8>),
        body: &[&[u8]],
    ) -> Result<Response> {
        let id = self.submit(opcode, meta, body)?;
        self.wait(id)
    }

    /// Queues a request. A body of more than a few KiB is sent before this returns, from where it
    /// lies; everything else goes with the next flush or wait.
    pub fn submit(
        &mut self,
        opcode: u16,
        meta: impl FnOnce(&mut Vec<u8>),
        body: &[&[u8]],
    ) -> Result<RequestId> {
        self.queue(opcode, self.options.deadline_ms, false, meta, body)
    }

    /// As [`Connection::submit`], with a copy kept until the answer is taken, so that
    /// [`Connection::reconnect`] can send it again.
    pub fn submit_kept(
        &mut self,
        opcode: u16,
        deadline_ms: u32,
        meta: impl FnOnce(&mut Vec<u8>),
        body: &[&[u8]],
    ) -> Result<RequestId> {
        self.queue(opcode, deadline_ms, true, meta, body)
    }

    /// Once the request is registered, a failed send is found by whoever waits for the answer.
    fn queue(
        &mut self,
        opcode: u16,
        deadline_ms: u32,
        keep: bool,
        meta: impl FnOnce(&mut Vec<u8>),
        body: &[&[u8]],
    ) -> Result<RequestId> {
        let body_bytes: usize = body.iter().map(|piece| piece.len()).sum();
        check_body(body_bytes, body.len())?;
        let start = self.out.len();
        let id = self.core.submit(&mut self.out, opcode, deadline_ms, body_bytes as u32, meta)?;
        if keep {
            let mut frame = Vec::with_capacity(self.out.len() - start + body_bytes);
            frame.extend_from_slice(&self.out[start..]);
            body.iter().for_each(|piece| frame.extend_from_slice(piece));
            self.core.keep(id, frame);
        }
        if body_bytes <= COPY_BYTES_MAX {
            body.iter().for_each(|piece| self.out.extend_from_slice(piece));
            if self.out.len() >= SEND_BYTES_MAX {
                self.flush_quietly();
            }
        } else {
            let _ = self.send(body);
        }
        Ok(id)
    }

    /// Sends what is queued.
    pub fn flush(&mut self) -> Result<()> {
        self.send(&[])
    }

    /// The answer to `id`, or its next part. Errors of the server come as errors.
    pub fn wait(&mut self, id: RequestId) -> Result<Response> {
        self.ready(id, None);
        self.core.take(id).unwrap_or_else(|| Err(self.unready(id)))
    }

    /// Blocks until there is an answer to `id`, its body in `target` if that is given and takes
    /// it; the answer is not taken. After a failure every request has one.
    pub fn ready(&mut self, id: RequestId, target: Option<&mut [u8]>) {
        self.flush_quietly();
        let mut into = target.map(|memory| Target { id, memory });
        while self.core.is_awaited(id) {
            self.receive(into.as_mut());
        }
    }

    fn unready(&self, id: RequestId) -> Error {
        Error::bug(format!("wait for request {}: it ended without an answer", id.0))
    }

    /// As [`Connection::wait`], with the body received into the front of `target`.
    pub fn wait_into(&mut self, id: RequestId, target: &mut [u8]) -> Result<Response> {
        self.ready(id, Some(&mut *target));
        let answer = self.core.take(id).unwrap_or_else(|| Err(self.unready(id)));
        let mut response = answer?;
        if response.body_bytes > target.len() {
            return Err(too_long(response.body_bytes, target.len()));
        }
        let body = std::mem::take(&mut response.body);
        target[..body.len()].copy_from_slice(&body);
        Ok(response)
    }

    /// Blocks until there is an answer to one of the requests that `wanted` picks, the one that
    /// arrived first, and names it; none when nothing of them is outstanding.
    pub fn ready_any(&mut self, wanted: impl Fn(RequestId) -> bool) -> Option<RequestId> {
        self.flush_quietly();
        loop {
            if let Some(id) = self.core.first_arrived(&wanted) {
                return Some(id);
            }
            if self.core.outstanding() == 0 {
                return None;
            }
            self.receive(None);
        }
    }

    /// Whether the answer that came last is labelled: its node had not heard from the log for a
    /// while, so what it said may be old.
    pub fn is_stale(&self) -> bool {
        self.core.is_stale()
    }

    /// Why the connection is of no use any more.
    pub fn failure(&self) -> Option<&Error> {
        self.core.failure()
    }

    /// Nobody waits for the answer to `id` any more.
    pub fn forget(&mut self, id: RequestId) {
        self.core.forget(id);
    }

    /// Whether the connection broke before the answer to `id` came, and reconnecting would send
    /// it again.
    pub fn is_resendable(&self, id: RequestId) -> bool {
        self.core.is_resendable(id, self.options.reconnects_max)
    }

    /// The error that `wait` would answer now, and whether the request was sent more than once.
    pub fn error(&self, id: RequestId) -> Option<(&Error, bool)> {
        self.core.error(id)
    }

    /// Sends a kept request that was refused again, its meta changed; false if it was not kept.
    pub fn submit_again(&mut self, id: RequestId, change: impl FnOnce(&mut [u8])) -> bool {
        self.core.again(id, &mut self.out, change)
    }

    /// One attempt to connect anew. Kept requests without an answer are sent again, under the
    /// numbers that they had; the others have failed.
    pub fn reconnect(&mut self) -> Result<()> {
        let link = match open(&self.endpoint, &self.options) {
            Ok(link) => link,
            Err(e) => {
                // The next attempt goes to the next node.
                self.options.others.push(self.endpoint.clone());
                self.endpoint = self.options.others.remove(0);
                return Err(e);
            }
        };
        self.core.fail(Error::retry(format!("talk to `{}`: connected anew", self.endpoint)));
        self.link = link;
        self.out.clear();
        self.intake.clear();
        self.fds.clear();
        let mut again = Vec::new();
        self.core.revive(&mut again, self.options.reconnects_max);
        self.begin_silence()?;
        self.enter_ring_if_wanted()?;
        if !self.options.others.is_empty() {
            // Another node may not have seen yet what this client was told elsewhere.
            let id = self.core.submit(&mut self.out, OP_CATCH_UP, 0, 0, |_| {})?;
            if let Err(e) = self.wait(id) {
                let e = e.context(format!("go on at `{}`", self.endpoint));
                // What was to be sent again was not: nobody is to wait for its answer here.
                if !planted!("client.refused-is-awaited") {
                    self.core.fail(e.clone());
                }
                return Err(e);
            }
        }
        self.out = again;
        Ok(())
    }

    /// A failed send fails every outstanding request, so waiting finds out by itself.
    fn flush_quietly(&mut self) {
        let _ = self.send(&[]);
    }

    /// Sends all that is queued, then `body`. While the server does not take it, answers are
    /// received: two sides that only send would wait for each other for ever.
    fn send(&mut self, body: &[&[u8]]) -> Result<()> {
        if let Some(error) = self.core.failure() {
            return Err(error.clone());
        }
        // Every wait comes by here, most with nothing to send.
        if self.out.is_empty() && body.is_empty() {
            return Ok(());
        }
        self.is_sending = true;
        let sent = self.send_all(body);
        self.is_sending = false;
        sent
    }

    fn send_all(&mut self, body: &[&[u8]]) -> Result<()> {
        let out = std::mem::take(&mut self.out);
        let mut slices = [IoSlice::new(&[]); BODY_PIECES_MAX + 1];
        slices[0] = IoSlice::new(&out);
        for (slice, piece) in slices[1..].iter_mut().zip(body) {
            *slice = IoSlice::new(piece);
        }
        let mut rest = &mut slices[..body.len() + 1];
        let mut left: usize = rest.iter().map(|slice| slice.len()).sum();
        while left > 0 {
            match self.link.send(rest, None, false) {
                Ok(sent) => {
                    left -= sent;
                    IoSlice::advance_slices(&mut rest, sent);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    match self.link.wait_ready(true, self.options.read_timeout) {
                        Ok(true) => self.receive(None),
                        Ok(false) => {}
                        Err(e) => self.fail(&e),
                    }
                }
                Err(e) => {
                    // The server may have said why before it closed.
                    while self.core.failure().is_none() && self.core.outstanding() > 0 {
                        match self.receive_once(None, Wait::No) {
                            Ok(()) => {}
                            Err(_) => self.fail(&e),
                        }
                    }
                    self.fail(&e);
                }
            }
            if let Some(error) = self.core.failure() {
                return Err(error.clone());
            }
        }
        self.out = out;
        self.out.clear();
        Ok(())
    }

    /// Receives something; a failure is kept in the core, where every wait finds it.
    fn receive(&mut self, mut target: Option<&mut Target<'_>>) {
        let spins = match self.options.spin {
            true => SPINS_MAX,
            false => self.linger.looks(),
        };
        for _ in 0..spins {
            match self.receive_once(target.as_deref_mut(), Wait::No) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => std::hint::spin_loop(),
                Err(e) => return self.fail(&e),
                Ok(()) => {
                    self.is_heard();
                    return self.linger.paid();
                }
            }
        }
        match self.receive_once(target, Wait::Yes) {
            Ok(()) => self.is_heard(),
            Err(e) if is_silence(&e) && self.goes_on() => {}
            Err(e) => self.fail(&e),
        }
    }

    fn is_heard(&mut self) {
        if let Some(timeout) = self.silence.is_heard(&self.core, &self.options) {
            // A socket that takes no other time keeps the one that it has.
            let _ = self.link.set_receive_timeout(timeout);
        }
    }

    /// Whether a silence is not too long yet; the server may be asked whether it is there.
    fn goes_on(&mut self) -> bool {
        let Connection { silence, core, out, endpoint, options, is_sending, .. } = self;
        let out = (!*is_sending).then_some(out);
        let Some(timeout) = silence.goes_on(core, out, endpoint, options) else { return false };
        if !self.is_sending {
            self.flush_quietly();
        }
        self.link.set_receive_timeout(timeout).is_ok()
    }

    /// One call to the socket, and what it completed.
    fn receive_once(&mut self, target: Option<&mut Target<'_>>, wait: Wait) -> io::Result<()> {
        let parsed =
            self.intake.receive(&mut self.core, &mut self.link, &mut self.fds, target, wait)?;
        if let Err(error) = parsed {
            self.core.fail(error.context(format!("talk to `{}`", self.endpoint)));
        }
        Ok(())
    }

    fn fail(&mut self, e: &io::Error) {
        if self.link.ring.take().is_some() {
            // Why the server ended it comes over the socket, as the only frame.
            let mut word = [0; 4096];
            let received = self.link.socket.receive(&mut word, Wait::No, &mut self.fds);
            if let Err(error) = self.core.next(&word[..received.unwrap_or(0)]) {
                return self.core.fail(error.context(format!("talk to `{}`", self.endpoint)));
            }
        }
        if self.link.is_sealed() && e.kind() == io::ErrorKind::InvalidData {
            // The server may refuse the own certificate only now; it will again.
            let refused = tls_error(io::Error::new(e.kind(), e.to_string()));
            return self.core.fail(refused.context(format!("talk to `{}`", self.endpoint)));
        }
        let why = match e.kind() {
            io::ErrorKind::UnexpectedEof => "the server closed the connection".to_owned(),
            _ if is_silence(e) => "the server was silent for too long".to_owned(),
            _ => e.to_string(),
        };
        let message = format!("talk to `{}`: {why}: connect again and retry", self.endpoint);
        self.core.fail(Error::retry(message));
    }

    /// The oldest descriptor that the server passed and nobody took. It is there when the answer
    /// that it belongs to is.
    pub fn take_fd(&mut self) -> Option<OwnedFd> {
        (!self.fds.is_empty()).then(|| self.fds.remove(0))
    }
}

/// When to look for an answer before sleeping: as long as it pays. Each time that it did not, twice
/// as many waits go by until it is tried again, up to 31.
#[derive(Default)]
struct Linger {
    misses: u32,
    skip: u32,
}

impl Linger {
    /// Looks of the next wait, which is taken to be in vain until [`Linger::paid`].
    fn looks(&mut self) -> u32 {
        if self.skip > 0 {
            self.skip -= 1;
            return 0;
        }
        self.misses = (self.misses + 1).min(5);
        self.skip = (1 << self.misses) - 1;
        LINGER_LOOKS
    }

    fn paid(&mut self) {
        *self = Linger::default();
    }
}

fn check_body(bytes: usize, pieces: usize) -> Result<()> {
    if bytes <= FRAME_BODY_BYTES_MAX as usize && pieces <= BODY_PIECES_MAX {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "send a body of {bytes} bytes in {pieces} pieces: the limits are {FRAME_BODY_BYTES_MAX} \
         and {BODY_PIECES_MAX}: cut it"
    )))
}

/// Nothing came for as long as a receive waits.
fn is_silence(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

fn too_long(body_bytes: usize, room: usize) -> Error {
    Error::invalid(format!(
        "receive a body of {body_bytes} bytes: there is room for {room} only: make more"
    ))
}
