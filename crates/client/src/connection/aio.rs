//! The asynchronous driver of a connection: the same core, on the runtime of whoever connects. One
//! task moves the bytes and connects anew; requests are futures that wait for their answers, any
//! number of them, from any task. Never blocks; when to give up is said by the options.

use super::core::Core;
use super::intake::Intake;
use super::opening::{GREETING_BYTES, Greeting, closed, connect_error, unheard};
use super::{ClientOptions, RECONNECT_PAUSE_MAX, RECOVER_MAX, RequestId, Response, check_body};
use crate::patience::{Patience, is_for_now};
use holdfast_base::{Error, Kind, Reason, Result};
use holdfast_env::net::{Endpoint, Wait};
use holdfast_env::runtime::{self, AsyncLink, Timer};
use holdfast_env::{Clock, HoldMutex, RealClock};
use std::collections::HashMap;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

/// Requests wait for the socket from so many unsent bytes on.
const UNSENT_BYTES_MAX: usize = 4 << 20;
/// Receives and sends of one turn, so that other tasks of the runtime get theirs.
const CALLS_MAX: usize = 32;

/// A connection that many tasks share.
#[derive(Clone)]
pub(crate) struct AsyncConnection(Arc<Handle>);

/// The last one to go ends the task and with it the socket.
struct Handle(Arc<Mutex<State>>);

struct State {
    options: ClientOptions,
    endpoint: Endpoint,
    core: Core,
    /// Encoded and not yet sent, from `sent` on.
    out: Vec<u8>,
    sent: usize,
    health: Health,
    closed: bool,
    /// Those who wait for an answer.
    waiting: HashMap<RequestId, Waker>,
    /// Those who wait for room, or for the connection.
    crowd: Vec<Waker>,
    /// The task, while it waits.
    driver: Option<Waker>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Health {
    Up,
    /// The task connects anew.
    Connecting,
    /// It gave up, until somebody sends a request.
    Down,
}

/// A request that was sent. Dropped, its answer is dropped when it comes.
#[must_use = "the answer is dropped with it"]
pub(crate) struct Request {
    id: RequestId,
    handle: Arc<Handle>,
}

/// What ends an exchange of bytes.
enum End {
    Closed,
    Failed(Error),
}

impl Drop for Handle {
    fn drop(&mut self) {
        let mut state = lock(&self.0);
        state.closed = true;
        state.wake_driver();
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.held()
}

impl AsyncConnection {
    /// Connects, and starts the task on the runtime that this is called in.
    pub async fn connect(endpoint: &Endpoint, options: &ClientOptions) -> Result<AsyncConnection> {
        let link = open(endpoint, options).await?;
        let state = Arc::new(Mutex::new(State {
            options: options.clone(),
            endpoint: endpoint.clone(),
            core: Core::new(options.outstanding_max),
            out: Vec::new(),
            sent: 0,
            health: Health::Up,
            closed: false,
            waiting: HashMap::new(),
            crowd: Vec::new(),
            driver: None,
        }));
        // The task ends when the last handle is gone, or with the runtime.
        drop(runtime::spawn(drive(state.clone(), link))?);
        Ok(AsyncConnection(Arc::new(Handle(state))))
    }

    /// See [`ClientOptions::reconnect_pause`].
    pub fn reconnect_pause(&self) -> Duration {
        lock(&self.0.0).options.reconnect_pause
    }

    /// How long to rest before what was refused for now is asked again over this connection, which works;
    /// none once the options allow no more.
    pub fn rest_before(&self, patience: &mut Patience) -> Option<Duration> {
        let state = lock(&self.0.0);
        let works = state.health == Health::Up && state.core.failure().is_none();
        works.then(|| patience.next(&state.options)).flatten()
    }

    /// Sends a request, with a copy kept if it may be sent again. Waits while too much is on its
    /// way, and while the connection is made anew.
    pub async fn submit(
        &self,
        opcode: u16,
        meta: &[u8],
        body: &[u8],
        keep: bool,
    ) -> Result<Request> {
        check_body(body.len(), 1)?;
        let mut asked = false;
        let handle = &self.0;
        poll_fn(|cx| {
            let id = ready!(lock(&handle.0).poll_submit(cx, &mut asked, opcode, meta, body, keep));
            Poll::Ready(id.map(|id| Request { id, handle: handle.clone() }))
        })
        .await
    }
}

impl Request {
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// Returns when there is an answer, through broken connections; it is not taken.
    pub async fn ready(&self) {
        poll_fn(|cx| lock(&self.handle.0).poll_answer(cx, self.id)).await;
    }

    pub async fn answer(self) -> Result<Response> {
        self.ready().await;
        let answer = lock(&self.handle.0).core.take(self.id);
        let unready = || Error::bug("wait for a request: it ended without an answer");
        answer.unwrap_or_else(|| Err(unready()))
    }

    /// Whether the answer is a refusal because the session had ended, of a request that was
    /// certainly not carried out.
    pub fn is_fenced(&self) -> bool {
        let state = lock(&self.handle.0);
        state.core.error(self.id).is_some_and(|(e, in_doubt)| e.kind == Kind::Fenced && !in_doubt)
    }

    /// Whether it may succeed later, as it is.
    pub fn is_refused_for_now(&self) -> bool {
        let state = lock(&self.handle.0);
        state.core.error(self.id).is_some_and(|(e, _)| is_for_now(e))
    }

    /// Whether it succeeds as a new request with the same bytes: see [`Reason::WriteAgain`].
    pub fn wants_bytes_again(&self) -> bool {
        let state = lock(&self.handle.0);
        state.core.error(self.id).is_some_and(|(e, _)| e.is(Reason::WriteAgain))
    }

    /// Sends it again, its meta changed; false if it was not kept.
    pub fn again(&self, change: impl FnOnce(&mut [u8])) -> bool {
        let mut state = lock(&self.handle.0);
        let State { core, out, .. } = &mut *state;
        let again = core.again(self.id, out, change);
        state.wake_driver();
        again
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let mut state = lock(&self.handle.0);
        state.core.forget(self.id);
        state.waiting.remove(&self.id);
    }
}

impl State {
    fn poll_submit(
        &mut self,
        cx: &mut Context<'_>,
        asked: &mut bool,
        opcode: u16,
        meta: &[u8],
        body: &[u8],
        keep: bool,
    ) -> Poll<Result<RequestId>> {
        if self.health == Health::Down {
            if mem::replace(asked, true) {
                let failure = self.core.failure().cloned();
                let unknown = || Error::retry("send a request: there is no connection");
                return Poll::Ready(Err(failure.unwrap_or_else(unknown)));
            }
            self.health = Health::Connecting;
            self.wake_driver();
        }
        let full = self.core.outstanding() >= self.options.outstanding_max
            || self.out.len() - self.sent >= UNSENT_BYTES_MAX;
        let connecting = self.health == Health::Connecting || self.core.failure().is_some();
        // Who saw the attempts fail does not ask for more of them.
        *asked |= connecting;
        if full || connecting {
            self.crowd.push(cx.waker().clone());
            return Poll::Pending;
        }
        let (start, deadline_ms) = (self.out.len(), self.options.deadline_ms);
        let id =
            self.core.submit(&mut self.out, opcode, deadline_ms, body.len() as u32, |out| {
                out.extend_from_slice(meta);
            })?;
        self.out.extend_from_slice(body);
        if keep {
            self.core.keep(id, self.out[start..].to_vec());
        }
        self.wake_driver();
        Poll::Ready(Ok(id))
    }

    fn poll_answer(&mut self, cx: &mut Context<'_>, id: RequestId) -> Poll<()> {
        let comes_back =
            self.health != Health::Down && self.core.is_resendable(id, self.options.reconnects_max);
        if self.core.is_awaited(id) || comes_back {
            self.waiting.insert(id, cx.waker().clone());
            return Poll::Pending;
        }
        self.waiting.remove(&id);
        Poll::Ready(())
    }

    fn wake_driver(&mut self) {
        if let Some(driver) = self.driver.take() {
            driver.wake();
        }
    }

    /// Wakes those whose answers are there.
    fn wake_answered(&mut self) {
        let State { core, waiting, .. } = self;
        waiting.retain(|id, waker| {
            let awaited = core.is_awaited(*id);
            if !awaited {
                waker.wake_by_ref();
            }
            awaited
        });
        self.crowd.drain(..).for_each(Waker::wake);
    }

    fn unsent(&self) -> &[u8] {
        &self.out[self.sent..]
    }
}

async fn open(endpoint: &Endpoint, options: &ClientOptions) -> Result<AsyncLink> {
    let link = AsyncLink::connect(endpoint, options.connect_timeout).await;
    let mut link = link.map_err(|e| connect_error(endpoint, &e))?;
    if let (Some(tls), Endpoint::Tcp(address)) = (&options.tls, endpoint) {
        let agreed = link.agree_on_tls(tls, address, options.connect_timeout).await;
        agreed.map_err(|e| e.context(format!("connect to `{endpoint}`")))?;
    }
    let greeted =
        greet(&mut link, Greeting::new(endpoint, options)?, options.connect_timeout).await;
    greeted.map_err(|e| e.context(format!("connect to `{endpoint}`")))?;
    Ok(link)
}

async fn greet(
    link: &mut AsyncLink,
    mut greeting: Greeting,
    timeout: std::time::Duration,
) -> Result<()> {
    let mut buffer = [0; GREETING_BYTES];
    let mut timer = Timer::after(timeout);
    while greeting.is_needed() {
        let said = greeting.output();
        if !said.is_empty() {
            let parts = [IoSlice::new(&said)];
            let sent = poll_fn(|cx| link.poll_send(cx, |link| link.send(&parts, None, false)));
            if sent.await? < said.len() {
                return Err(Error::retry("greet: the connection takes nothing"));
            }
        }
        let received = poll_fn(|cx| {
            if timer.poll(cx).is_ready() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            link.poll_receive(cx, |link| link.receive(&mut buffer, Wait::No, &mut Vec::new()))
        });
        let received = received.await.map_err(unheard)?;
        if received == 0 {
            return Err(closed());
        }
        if greeting.received(&buffer[..received])? {
            return Ok(());
        }
    }
    Ok(())
}

/// The task: exchanges bytes, and connects anew when that fails.
async fn drive(state: Arc<Mutex<State>>, mut link: AsyncLink) {
    let mut intake = Intake::new();
    let timeout = lock(&state).options.read_timeout;
    loop {
        let mut silence = Silence { timeout, timer: None };
        let end =
            poll_fn(|cx| exchange(&mut lock(&state), &mut link, &mut intake, &mut silence, cx));
        let Err(End::Failed(error)) = end.await else { return };
        {
            let mut state = lock(&state);
            state.health = Health::Connecting;
            state.core.fail(error);
            state.wake_answered();
        }
        link = match reconnect(&state).await {
            Some(link) => link,
            None => return,
        };
        intake.clear();
        let mut state = lock(&state);
        let State { core, out, options, .. } = &mut *state;
        out.clear();
        core.revive(out, options.reconnects_max);
        (state.sent, state.health) = (0, Health::Up);
        state.wake_answered();
    }
}

/// A new link; none when nobody is left who wants one.
async fn reconnect(state: &Mutex<State>) -> Option<AsyncLink> {
    let (endpoint, options) = {
        let state = lock(state);
        (state.endpoint.clone(), state.options.clone())
    };
    loop {
        let (began, mut pause) = (RealClock::new(), options.reconnect_pause);
        for attempt in 0..options.reconnects_max {
            if attempt > 0 {
                if began.monotonic_ns() > RECOVER_MAX.as_nanos() as u64 {
                    break;
                }
                runtime::sleep(pause).await;
                pause = (pause * 2).min(RECONNECT_PAUSE_MAX);
            }
            if lock(state).closed {
                return None;
            }
            match open(&endpoint, &options).await {
                Ok(link) => return Some(link),
                Err(e) if e.kind == Kind::Retry => {}
                Err(_) => break,
            }
        }
        {
            let mut state = lock(state);
            state.health = Health::Down;
            state.waiting.drain().for_each(|(_, waker)| waker.wake());
            state.crowd.drain(..).for_each(Waker::wake);
        }
        poll_fn(|cx| {
            let mut state = lock(state);
            state.driver = Some(cx.waker().clone());
            let idle = state.health == Health::Down && !state.closed;
            if idle { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
    }
}

/// Measures the server's silence while answers are awaited.
struct Silence {
    timeout: Option<std::time::Duration>,
    timer: Option<Timer>,
}

impl Silence {
    fn poll(&mut self, cx: &mut Context<'_>, awaiting: bool, spoke: bool) -> Poll<()> {
        let Some(timeout) = self.timeout.filter(|_| awaiting) else {
            self.timer = None;
            return Poll::Pending;
        };
        let timer = self.timer.get_or_insert_with(|| Timer::after(timeout));
        if spoke {
            timer.restart(timeout);
        }
        timer.poll(cx)
    }
}

/// Sends and receives what can be. Ends with an error, always.
fn exchange(
    state: &mut State,
    link: &mut AsyncLink,
    intake: &mut Intake,
    silence: &mut Silence,
    cx: &mut Context<'_>,
) -> Poll<std::result::Result<(), End>> {
    if state.closed {
        return Poll::Ready(Err(End::Closed));
    }
    state.driver = Some(cx.waker().clone());
    let failed = |endpoint: &Endpoint, why: String| {
        let message = format!("talk to `{endpoint}`: {why}: connect again and retry");
        Poll::Ready(Err(End::Failed(Error::retry(message))))
    };
    let mut spoke = false;
    let mut calls = 0;
    while calls < CALLS_MAX {
        let State { core, .. } = &mut *state;
        let received = link
            .poll_receive(cx, |link| intake.receive(core, link, &mut Vec::new(), None, Wait::No));
        match received {
            Poll::Pending => break,
            Poll::Ready(Ok(Ok(()))) => spoke = true,
            Poll::Ready(Ok(Err(error))) => {
                let error = error.context(format!("talk to `{}`", state.endpoint));
                return Poll::Ready(Err(End::Failed(error)));
            }
            Poll::Ready(Err(e)) if e.kind() == io::ErrorKind::UnexpectedEof => {
                return failed(&state.endpoint, "the server closed the connection".to_owned());
            }
            Poll::Ready(Err(e)) => return failed(&state.endpoint, e.to_string()),
        }
        calls += 1;
    }
    while calls < CALLS_MAX && !state.unsent().is_empty() {
        let unsent = [IoSlice::new(&state.out[state.sent..])];
        match link.poll_send(cx, |link| link.send(&unsent, None, false)) {
            Poll::Pending => break,
            Poll::Ready(Ok(sent)) => state.sent += sent,
            Poll::Ready(Err(e)) => return failed(&state.endpoint, e.to_string()),
        }
        calls += 1;
    }
    if state.unsent().is_empty() {
        state.out.clear();
        state.sent = 0;
    }
    state.wake_answered();
    if silence.poll(cx, state.core.outstanding() > 0, spoke).is_ready() {
        return failed(&state.endpoint, "the server was silent for too long".to_owned());
    }
    if calls == CALLS_MAX {
        cx.waker().wake_by_ref();
    }
    Poll::Pending
}
