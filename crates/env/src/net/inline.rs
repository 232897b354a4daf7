//! One connection to a service without socket and thread: bytes of requests in, bytes of answers
//! out. For simulations, which deliver both as they like; what parses, batches and encodes is the
//! server's, and so is who has to wait for a turn. It knows none of the server's other limits, and
//! never calls by itself: deferred answers, deadlines and turns come out when asked for.

use super::batch::{Batch, BodyPlace, Meta, Request};
use super::connection::{Load, Waiting, answer, deadline_passed};
use super::mailbox::{DeferredKey, Mailbox, Message};
use super::out::{Address, Out};
use super::parse::{self, Next};
use super::proof::Who;
use super::reactor::input::{begin, is_full, push_whole};
use super::{BATCH_REQUESTS_MAX, ConnectionId, OP_PING, OP_RING, OP_YIELD, Service, waits};
use crate::budget::Asker;
use crate::clients::{self, Seat};
use crate::locks::HoldMutex;
use crate::{Clock, planted, sometimes};
use holdfast_base::frame::FrameKind;
use holdfast_base::{Error, Result};
use std::sync::{Arc, Mutex};

pub struct Inline {
    /// Who is at the other end.
    who: Who,
    service: Arc<dyn Service>,
    clock: Arc<dyn Clock>,
    id: ConnectionId,
    /// Deferred answers, until they are taken.
    mailbox: Arc<Mailbox>,
    /// Received and not parsed: while nothing is read of a client that waits for its turn; and a
    /// service that lets the simulation go on while it handles a request may well receive the next
    /// one.
    received: Mutex<Vec<u8>>,
    /// Away while the service handles a batch. Never held while anything is called.
    state: Mutex<Option<Box<State>>>,
}

#[derive(Default)]
struct State {
    /// The front of a frame that is not complete.
    stash: Vec<u8>,
    out: Out,
    waiting: Waiting,
    load: Load,
    requests: Vec<Request>,
    /// Of a client with limits.
    seat: Option<Seat>,
    /// Nothing is parsed before then; and since when what is in the stash waits.
    slowed_until_ns: Option<u64>,
    waits_since_ns: Option<u64>,
    /// The client owes more than anybody may: its requests are answered so.
    owes: Option<Error>,
    /// Why nothing is read any more.
    refused: Option<Error>,
}

impl Inline {
    /// `who` asks; `id` tells the service's connections apart: never the same one twice.
    pub fn connect(
        service: Arc<dyn Service>,
        clock: Arc<dyn Clock>,
        id: ConnectionId,
        who: Who,
    ) -> Result<Inline> {
        let mailbox = Mailbox::new(true).map_err(|e| Error::from(e).context("make a mailbox"))?;
        let seat = match &who {
            Who::Named(_) => service.seat(&who, clock.monotonic_ns())?,
            _ => None,
        };
        let state = State { seat, ..State::default() };
        service.connected(id);
        Ok(Inline {
            who,
            service,
            clock,
            id,
            mailbox: Arc::new(mailbox),
            received: Mutex::default(),
            state: Mutex::new(Some(Box::new(state))),
        })
    }

    /// Takes bytes in pieces of any size, and lets the service handle what is complete. An error
    /// means that the connection is of no use: the last answer says why.
    pub fn receive(&self, bytes: &[u8]) -> Result<()> {
        self.received.held().extend_from_slice(bytes);
        // Otherwise further up: whoever has it goes on until nothing is left.
        let Some(mut state) = self.lend() else { return Ok(()) };
        self.read(&mut state);
        let refused = state.refused.clone();
        self.give_back(state);
        refused.map_or(Ok(()), Err)
    }

    /// Handles what was received, as far as its client has a turn.
    fn read(&self, state: &mut State) {
        while state.refused.is_none()
            && state.slowed_until_ns.is_none()
            && !self.received.held().is_empty()
            && let Some(most) = self.turn(state)
        {
            let received = std::mem::take(&mut *self.received.held());
            let mut data = std::mem::take(&mut state.stash);
            data.extend_from_slice(&received);
            self.parse(state, &data, most);
            self.charge(state, 0, received.len());
        }
    }

    fn parse(&self, state: &mut State, data: &[u8], most: usize) {
        if let Err(e) = self.process(state, data, most) {
            self.refuse(state, e);
        }
    }

    fn refuse(&self, state: &mut State, why: Error) {
        state.out.push_error(Address::FINAL, &why);
        (state.refused, state.slowed_until_ns) = (Some(why), None);
    }

    /// What its client has used.
    fn charge(&self, state: &State, requests: usize, bytes: usize) {
        if let Some(seat) = state.seat.as_ref().filter(|seat| seat.has_rates) {
            seat.take(self.clock.monotonic_ns(), requests as u64, bytes as u64);
        }
    }

    /// How many requests the client may have handled now; nothing where it has to wait.
    fn turn(&self, state: &mut State) -> Option<usize> {
        state.owes = None;
        let seat = state.seat.as_ref().filter(|seat| seat.has_rates);
        let Some(seat) = seat else { return Some(usize::MAX) };
        let now_ns = self.clock.monotonic_ns();
        match seat.next(now_ns) {
            clients::Next::Take { requests } => Some(requests),
            clients::Next::Refuse(why) => {
                state.owes = Some(why);
                Some(usize::MAX)
            }
            clients::Next::Wait { until_ns } => {
                sometimes!("a client was slowed");
                state.slowed_until_ns = Some(until_ns);
                None
            }
        }
    }

    /// Goes on with what has waited for a turn, if it is time, and with what came meanwhile.
    fn go_on(&self, state: &mut State) {
        let Some(until_ns) = state.slowed_until_ns else { return };
        let now_ns = self.clock.monotonic_ns();
        if let Some(since_ns) = state.waits_since_ns {
            waits::expire(&mut state.stash, since_ns, now_ns, &mut state.out);
        }
        if until_ns > now_ns {
            return;
        }
        state.slowed_until_ns = None;
        if !state.stash.is_empty()
            && let Some(most) = self.turn(state)
        {
            let data = std::mem::take(&mut state.stash);
            self.parse(state, &data, most);
        }
        self.read(state);
    }

    /// Whoever is nobody any more hears nothing of what was to be answered.
    fn check_standing(&self, state: &mut State) {
        if state.refused.is_some() {
            return;
        }
        if let Err(e) = self.service.check_standing(&self.who)
            && !planted!("net.waiting-answers-go")
        {
            sometimes!("answers to a client that was revoked were dropped");
            state.out.take_bytes();
            self.refuse(state, e);
        }
    }

    /// Takes the answers that are there, deferred ones and those of passed deadlines too.
    pub fn take(&self) -> Vec<u8> {
        let Some(mut state) = self.lend() else { return Vec::new() };
        self.go_on(&mut state);
        let mut messages = Vec::new();
        self.mailbox.take(&mut messages);
        if !messages.is_empty() || !state.out.is_empty() {
            self.check_standing(&mut state);
        }
        for message in messages {
            let (key, response, last) = match message {
                Message::Answer { key, response, last } => (key, response, last),
                Message::Again { key, meta } => {
                    self.again(&mut state, key, meta);
                    continue;
                }
                Message::Accepted(..) | Message::Shutdown => continue,
            };
            let State { waiting, out, load, refused, .. } = &mut *state;
            let found = if last { waiting.remove(key) } else { waiting.get(key) };
            let Some(request) = found.filter(|request| !request.expired) else { continue };
            let mut to = request.to;
            if last {
                load.requests -= 1;
                load.bytes -= request.bytes;
            } else {
                to.kind = FrameKind::Part;
            }
            if refused.is_none() {
                answer(out, to, response);
            }
        }
        if state.waiting.next_deadline_ns.is_some() && state.refused.is_none() {
            let State { waiting, out, load, .. } = &mut *state;
            waiting.expire(self.clock.monotonic_ns(), |request| {
                load.requests -= 1;
                load.bytes -= request.bytes;
                out.push_error(request.to, &deadline_passed());
            });
        }
        if let Err(e) = self.hand_over(&mut state, &[]) {
            self.refuse(&mut state, e);
        }
        let bytes = state.out.take_bytes();
        self.charge(&state, 0, bytes.len());
        self.give_back(state);
        bytes
    }

    /// The request is handed over with the next batch.
    fn again(&self, state: &mut State, key: DeferredKey, meta: Vec<u8>) {
        let Some(request) = state.waiting.remove(key).filter(|request| !request.expired) else {
            return;
        };
        state.load.requests -= 1;
        state.load.bytes -= request.bytes;
        state.requests.push(request.again(meta, self.clock.monotonic_ns()));
    }

    /// When to ask for answers at the latest. May be too early.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        let state = self.state.held();
        let state = state.as_ref()?;
        let slowed = state.slowed_until_ns.map(|until_ns| {
            let since_ns = state.waits_since_ns.unwrap_or(until_ns);
            let passes_ns = waits::next_deadline_ns(&state.stash, since_ns);
            passes_ns.map_or(until_ns, |at| at.min(until_ns))
        });
        [state.waiting.next_deadline_ns, slowed].into_iter().flatten().min()
    }

    fn lend(&self) -> Option<Box<State>> {
        self.state.held().take()
    }

    fn give_back(&self, state: Box<State>) {
        *self.state.held() = Some(state);
    }

    /// Handles what is complete in `data`, at first so many requests, and keeps the rest.
    fn process(&self, state: &mut State, data: &[u8], most: usize) -> Result<()> {
        let (mut at, mut body_bytes) = (0, 0);
        let mut turn = Some(most);
        while at < data.len()
            && let Some(most) = turn
        {
            let next = parse::next(data, at);
            let most = most.min(BATCH_REQUESTS_MAX.size());
            if is_full(state.requests.len(), most, body_bytes) || next.is_err() {
                self.hand_over(state, data)?;
                body_bytes = 0;
                turn = self.turn(state);
                if turn.is_none() && next.is_ok() {
                    break;
                }
            }
            let Next::Request { header, meta, body } = next? else { break };
            at = body.end;
            body_bytes += body.len() as u64;
            let to = Address::of(&header);
            if let (Some(why), Some(seat)) = (&state.owes, &mut state.seat) {
                state.out.push_error(to, why);
                seat.refused(self.clock.monotonic_ns());
                continue;
            }
            match header.opcode {
                OP_PING | OP_YIELD => {
                    state.out.push(to, |m| m.extend_from_slice(&data[meta]), ().into());
                    self.charge(state, 1, 0);
                }
                OP_RING => {
                    state.out.push_error(to, &Error::unsupported("there is no ring in here"));
                }
                _ if body.is_empty() => {
                    let (meta, body) = (Meta::InData(meta), BodyPlace::Empty);
                    state.requests.push(Request::new(header, meta, body));
                }
                _ => {
                    let incoming = begin(&*self.service, &self.who, header, &data[meta.clone()]);
                    push_whole(&mut state.requests, &mut state.out, incoming, data, meta, body);
                }
            }
        }
        self.hand_over(state, data)?;
        state.stash = data[at..].to_vec();
        state.waits_since_ns = match turn {
            Some(_) => None,
            None => state.waits_since_ns.or(Some(self.clock.monotonic_ns())),
        };
        Ok(())
    }

    fn hand_over(&self, state: &mut State, data: &[u8]) -> Result<()> {
        if state.requests.is_empty() {
            return Ok(());
        }
        if let Err(e) = self.service.check_standing(&self.who) {
            state.requests.clear();
            return Err(e);
        }
        state.out.label = self.service.label();
        let mut batch = Batch {
            connection: self.id,
            who: &self.who,
            is_unix: false,
            remote: None,
            data,
            requests: &mut state.requests,
            out: &mut state.out,
            waiting: &mut state.waiting,
            slot: 0,
            load: &mut state.load,
            mailbox: &self.mailbox,
            clock: &*self.clock,
            now_ns: state.waits_since_ns,
            budget: None,
            asker: Asker::Client,
            counted_bytes: &mut 0,
            wanted: None,
            ended: None,
        };
        self.service.handle(&mut batch);
        batch.finish();
        let ended = batch.ended.take();
        self.charge(state, state.requests.len(), 0);
        state.requests.clear();
        ended.map_or(Ok(()), Err)
    }
}

impl Drop for Inline {
    fn drop(&mut self) {
        self.service.disconnected(self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::Clients;
    use crate::clock::Time;
    use crate::net::{
        Finished, Named, PeerConnection, PeerReply, PeerRequest, Reply, Response, Role,
    };
    use holdfast_base::Kind;
    use holdfast_base::rates::Allowance;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::sync::mpsc;

    const ECHO: u16 = 0x7001;
    const HOLD: u16 = 0x7002;
    const MS: u64 = 1_000_000;
    const S: u64 = 1000 * MS;

    #[derive(Default)]
    struct Mirror {
        clients: Option<Arc<Clients>>,
        revoked: AtomicBool,
        held: Mutex<Vec<Reply>>,
        batches: Mutex<Vec<usize>>,
        connections: AtomicU64,
    }

    impl Service for Mirror {
        fn seat(&self, who: &Who, now_ns: u64) -> Result<Option<Seat>> {
            match (who, &self.clients) {
                (Who::Named(named), Some(clients)) => clients.seat(&named.name, now_ns),
                _ => Ok(None),
            }
        }
        fn check_standing(&self, _: &Who) -> Result<()> {
            match self.revoked.load(Ordering::Relaxed) {
                true => Err(Error::denied("it was revoked")),
                false => Ok(()),
            }
        }
        fn handle(&self, batch: &mut Batch<'_>) {
            self.batches.lock().unwrap().push(batch.len());
            for i in 0..batch.len() {
                if batch.header(i).opcode == HOLD {
                    self.held.lock().unwrap().push(batch.defer(i));
                    continue;
                }
                let meta = batch.meta(i).to_vec();
                let body = batch.take_body(i).into_vec();
                batch.reply(i, |m| m.extend_from_slice(&meta), body);
            }
        }
        fn connected(&self, _: ConnectionId) {
            self.connections.fetch_add(1, Ordering::Relaxed);
        }
        fn disconnected(&self, _: ConnectionId) {
            self.connections.fetch_sub(1, Ordering::Relaxed);
        }
    }

    struct World {
        mirror: Arc<Mirror>,
        time: Arc<Time>,
        inline: Inline,
        peer: PeerConnection,
        finished: Finished,
    }

    type Answer = mpsc::Receiver<Result<PeerReply>>;

    impl World {
        fn new() -> World {
            World::with(Mirror::default(), Who::Node)
        }

        fn with(mirror: Mirror, who: Who) -> World {
            let (mirror, time) = (Arc::new(mirror), Arc::new(Time::default()));
            let inline = Inline::connect(mirror.clone(), time.clone(), ConnectionId(1), who);
            let (inline, peer) = (inline.unwrap(), PeerConnection::new("inline"));
            World { mirror, time, inline, peer, finished: Vec::new() }
        }

        /// A client that may take so much.
        fn limited(allowed: Allowance) -> World {
            let clients = Some(Clients::new(allowed, Allowance::default()));
            let (name, serial) = ("a".to_owned(), "1".to_owned());
            let named = Named { role: Role::Token, name, serial, until_s: i64::MAX };
            World::with(Mirror { clients, ..Mirror::default() }, Who::Named(Arc::new(named)))
        }

        fn ask(&mut self, opcode: u16, meta: &[u8], body: usize, deadline_ms: u32) -> Answer {
            let (sender, receiver) = mpsc::channel();
            let body = (body > 0).then(|| Arc::new(vec![7u8; body]) as _);
            let request = PeerRequest { opcode, meta: meta.to_vec(), body, deadline_ms };
            let done = Box::new(move |result| sender.send(result).unwrap());
            self.peer.submit(self.time.monotonic_ns(), request, done, &mut self.finished);
            receiver
        }

        /// Carries bytes both ways, in pieces.
        fn exchange(&mut self, piece: usize) {
            self.peer.take_output().chunks(piece).for_each(|part| {
                self.inline.receive(part).unwrap();
            });
            for part in self.inline.take().chunks(piece) {
                self.peer.received(1, part, &mut self.finished).unwrap();
            }
            self.finished.drain(..).for_each(|(done, result)| done(result));
        }
    }

    #[test]
    fn requests_in_pieces_of_any_size_are_answered() {
        for piece in [1, 33, 4000, usize::MAX] {
            let mut w = World::new();
            let answers: Vec<Answer> = [0, 10, 40_000, 0]
                .into_iter()
                .map(|body| w.ask(ECHO, b"meta", body, 1000))
                .collect();
            let ping = w.ask(OP_PING, b"p", 0, 1000);
            w.exchange(piece);
            for (answer, body) in answers.iter().zip([0, 10, 40_000, 0]) {
                let reply = answer.try_recv().unwrap().unwrap();
                assert!(reply.meta == b"meta" && reply.body == vec![7; body], "{piece}");
            }
            assert_eq!(ping.try_recv().unwrap().unwrap().meta, b"p");
        }
    }

    #[test]
    fn what_arrives_together_is_one_batch_up_to_its_limit() {
        let mut w = World::new();
        let answers: Vec<Answer> = (0..300).map(|_| w.ask(ECHO, b"", 0, 1000)).collect();
        w.exchange(usize::MAX);
        assert!(answers.iter().all(|answer| answer.try_recv().unwrap().is_ok()));
        assert_eq!(*w.mirror.batches.lock().unwrap(), [256, 44]);
    }

    #[test]
    fn deferred_answers_and_deadlines_come_out_when_asked_for() {
        let mut w = World::new();
        let (slow, held) = (w.ask(HOLD, b"", 0, 40), w.ask(HOLD, b"", 0, 60_000));
        w.exchange(usize::MAX);
        assert!(slow.try_recv().is_err() && held.try_recv().is_err());
        // The server is told a little less.
        assert_eq!(w.inline.next_deadline_ns(), Some(30 * MS));
        w.time.0.store(30 * MS, Ordering::Relaxed);
        w.exchange(usize::MAX);
        assert_eq!(slow.try_recv().unwrap().unwrap_err().kind, Kind::Retry);
        let replies = std::mem::take(&mut *w.mirror.held.lock().unwrap());
        replies.into_iter().for_each(|reply| reply.send(Response::ok(b"now".to_vec(), ())));
        w.exchange(usize::MAX);
        assert_eq!(held.try_recv().unwrap().unwrap().meta, b"now");
        assert!(slow.try_recv().is_err(), "answered once");
    }

    #[test]
    fn a_client_over_its_rate_waits_and_nothing_of_it_is_lost() {
        for piece in [1, 45, usize::MAX] {
            let mut w = World::limited(Allowance { requests: 3, ..Allowance::default() });
            let answers: Vec<Answer> = (0..8).map(|i| w.ask(ECHO, &[i], 0, 60_000)).collect();
            let late = w.ask(ECHO, b"late", 0, 1500);
            let told = |answers: &[Answer]| {
                answers.iter().filter(|answer| answer.try_recv().is_ok()).count()
            };
            w.exchange(piece);
            assert_eq!(told(&answers), 3, "pieces of {piece}");
            let next_ns = w.inline.next_deadline_ns().unwrap();
            assert!(next_ns <= S, "{next_ns}: a second's worth is there by then");
            w.time.0.store(S, Ordering::Relaxed);
            w.exchange(piece);
            assert_eq!(told(&answers[3..]), 3);
            w.time.0.store(2 * S, Ordering::Relaxed);
            w.exchange(piece);
            assert_eq!(told(&answers[6..]), 2);
            // Received in one piece, its deadline passed while it waited; else it was not read yet.
            let late = late.try_recv().unwrap();
            assert_eq!(late.is_err(), piece == usize::MAX, "{late:?}");
        }
    }

    #[test]
    fn who_owes_more_than_anybody_may_is_told_so_once_a_second() {
        let mut w = World::limited(Allowance { bytes: 100, ..Allowance::default() });
        let large = w.ask(ECHO, b"", 10_000, 1000);
        w.exchange(usize::MAX);
        assert!(large.try_recv().unwrap().is_ok());
        let told = w.ask(ECHO, b"", 0, 1000);
        w.exchange(usize::MAX);
        assert!(told.try_recv().unwrap().unwrap_err().message.contains("ask again in 20"));
        let again = w.ask(ECHO, b"", 0, 1000);
        w.exchange(usize::MAX);
        assert!(again.try_recv().is_err());
        w.time.0.store(S, Ordering::Relaxed);
        w.exchange(usize::MAX);
        assert!(again.try_recv().unwrap().unwrap_err().message.contains("ask again in 2"));
        assert_eq!(*w.mirror.batches.lock().unwrap(), [1], "the service sees nothing of it");
    }

    #[test]
    fn a_revoked_client_hears_nothing_of_what_was_answered_or_waits() {
        let mut w = World::limited(Allowance { requests: 10, ..Allowance::default() });
        let (answered, held) = (w.ask(ECHO, b"", 0, 0), w.ask(HOLD, b"", 0, 0));
        w.inline.receive(&w.peer.take_output()).unwrap();
        w.mirror.revoked.store(true, Ordering::Relaxed);
        let replies = std::mem::take(&mut *w.mirror.held.lock().unwrap());
        replies.into_iter().for_each(|reply| reply.send(Response::ok(b"now".to_vec(), ())));
        let e = w.peer.received(1, &w.inline.take(), &mut w.finished).unwrap_err();
        assert!(e.message.contains("it was revoked"), "{e}");
        assert!(w.finished.is_empty() && w.inline.take().is_empty());
        assert!(answered.try_recv().is_err() && held.try_recv().is_err());
        assert!(w.inline.receive(b"x").is_err());
    }

    #[test]
    fn nonsense_is_refused_with_the_reason_and_nothing_is_read_after_it() {
        let mut w = World::new();
        let answer = w.ask(ECHO, b"", 0, 1000);
        let mut bytes = w.peer.take_output();
        bytes.extend_from_slice(b"GET / HTTP/1.1\r\nand more than a header's length");
        assert!(w.inline.receive(&bytes).is_err());
        let e = w.peer.received(1, &w.inline.take(), &mut w.finished).unwrap_err();
        assert!(e.message.contains("does not speak"), "{e}");
        w.finished.drain(..).for_each(|(done, result)| done(result));
        assert!(answer.try_recv().unwrap().is_ok(), "what came before is answered");
        assert!(w.inline.receive(b"x").is_err());
        let World { mirror, inline, .. } = w;
        assert_eq!(mirror.connections.load(Ordering::Relaxed), 1);
        drop(inline);
        assert_eq!(mirror.connections.load(Ordering::Relaxed), 0);
    }
}
