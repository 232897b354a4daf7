//! One connection to a peer without its socket: requests become bytes to send, received bytes
//! become answers, matched by id; late answers are forgotten. Never blocks, reads no clock. The
//! driver moves the bytes between it and a socket, a simulation between it and an
//! [`Inline`](crate::net::Inline).

use super::{PeerDone, PeerReply, PeerRequest};
use crate::net::out::Out;
use crate::planted;
use holdfast_base::frame::{self, Decoded, FrameKind, HEADER_BYTES, Header};
use holdfast_base::{Error, Kind, Result};
use std::collections::{BTreeMap, BTreeSet};

/// Callbacks with what they are to be called with, once no lock is held.
pub type Finished = Vec<(PeerDone, Result<PeerReply>)>;

/// The server is told a deadline earlier by this much (at most a quarter), so that its own word
/// about it is here in time.
const DEADLINE_MARGIN_MS: u32 = 100;
/// A peer that owes an answer and has said nothing at all for so long is as good as gone: a host
/// that lost its power breaks no connection.
const SILENCE_NS: u64 = 5_000_000_000;

/// What keeps a request in the account of its address; counts until it is dropped.
pub(super) type Charge = Box<dyn Send>;

pub struct PeerConnection {
    /// For messages.
    address: String,
    pub(super) out: Out,
    /// Ids count up from 1; 0 is the server's last word.
    next_id: u64,
    /// Sent, or about to be, and not answered.
    waiting: BTreeMap<u64, Waiting>,
    /// (when, id) of those whose callers still wait.
    deadlines: BTreeSet<(u64, u64)>,
    /// When something came last.
    received_ns: u64,
    /// Something was answered: the other side has let this one in.
    has_answered: bool,
    /// The front of a frame whose head or meta is not complete.
    stash: Vec<u8>,
    /// A frame whose body is on its way.
    large: Option<Large>,
}

struct Waiting {
    opcode: u16,
    sent_ns: u64,
    deadline_ns: u64,
    /// Gone once the deadline has passed: what comes then is dropped.
    done: Option<PeerDone>,
    _charge: Option<Charge>,
}

struct Large {
    header: Header,
    reply: PeerReply,
}

impl Large {
    fn missing(&self) -> usize {
        self.header.body_bytes as usize - self.reply.body.len()
    }
}

impl PeerConnection {
    pub fn new(address: &str) -> PeerConnection {
        PeerConnection {
            address: address.to_owned(),
            out: Out::default(),
            next_id: 1,
            waiting: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            received_ns: 0,
            has_answered: false,
            stash: Vec::new(),
            large: None,
        }
    }

    /// Queues a request. One that exceeds a frame is refused, in `finished`.
    pub fn submit(
        &mut self,
        now_ns: u64,
        request: PeerRequest,
        done: PeerDone,
        finished: &mut Finished,
    ) {
        self.submit_charged(now_ns, request, done, None, finished);
    }

    pub(super) fn submit_charged(
        &mut self,
        now_ns: u64,
        request: PeerRequest,
        done: PeerDone,
        charge: Option<Charge>,
        finished: &mut Finished,
    ) {
        let PeerRequest { opcode, meta, body, deadline_ms } = request;
        let id = self.next_id;
        let told_ms = deadline_ms - DEADLINE_MARGIN_MS.min(deadline_ms / 4);
        // 0 would be no deadline at all.
        if let Err(e) = self.out.push_request(opcode, id, told_ms.max(1), &meta, body) {
            return finished.push((done, Err(e.context(format!("ask `{}`", self.address)))));
        }
        self.next_id += 1;
        let deadline_ns = now_ns + deadline_ms as u64 * 1_000_000;
        self.deadlines.insert((deadline_ns, id));
        let waiting =
            Waiting { opcode, sent_ns: now_ns, deadline_ns, done: Some(done), _charge: charge };
        self.waiting.insert(id, waiting);
    }

    /// Takes what is to be sent.
    pub fn take_output(&mut self) -> Vec<u8> {
        self.out.take_bytes()
    }

    /// Takes what was received, in pieces of any size. After an error the connection is of no
    /// use: [`PeerConnection::fail`] it.
    pub fn received(
        &mut self,
        now_ns: u64,
        mut data: &[u8],
        finished: &mut Finished,
    ) -> Result<()> {
        self.received_ns = now_ns;
        if let Some(mut large) = self.large.take() {
            let (body, rest) = data.split_at(large.missing().min(data.len()));
            large.reply.body.extend_from_slice(body);
            data = rest;
            if large.missing() > 0 {
                self.large = Some(large);
                return Ok(());
            }
            self.complete(&large.header, large.reply, finished);
        }
        if self.stash.is_empty() {
            return self.parse(data, finished);
        }
        let mut whole = std::mem::take(&mut self.stash);
        whole.extend_from_slice(data);
        self.parse(&whole, finished)
    }

    /// Where the rest of a large body is to be received, and its length then. The caller says
    /// with [`PeerConnection::received`] that it is done, and what came behind it.
    pub(super) fn large_target(&mut self) -> Option<(&mut Vec<u8>, usize)> {
        let large = self.large.as_mut()?;
        Some((&mut large.reply.body, large.header.body_bytes as usize))
    }

    fn parse(&mut self, data: &[u8], finished: &mut Finished) -> Result<()> {
        let mut at = 0;
        while let Decoded::Frame(header) = frame::decode(&data[at..])? {
            let meta_at = at + HEADER_BYTES;
            let body_at = meta_at + header.meta_bytes as usize;
            let meta = &data[meta_at..body_at];
            self.check(&header, meta)?;
            let end = body_at + header.body_bytes as usize;
            if end > data.len() {
                let mut body = Vec::with_capacity(header.body_bytes as usize);
                body.extend_from_slice(&data[body_at..]);
                self.large = Some(Large { header, reply: PeerReply { meta: meta.to_vec(), body } });
                return Ok(());
            }
            let reply = PeerReply { meta: meta.to_vec(), body: data[body_at..end].to_vec() };
            self.complete(&header, reply, finished);
            at = end;
        }
        self.stash = data[at..].to_vec();
        Ok(())
    }

    /// Refuses what no server says to these requests.
    fn check(&self, header: &Header, meta: &[u8]) -> Result<()> {
        let id = header.request_id;
        if id == 0 && header.kind == FrameKind::Response {
            return Err(Error::decode(header.status(), meta).context("it ended the connection"));
        }
        let asked = self.waiting.get(&id).map_or(header.opcode, |waiting| waiting.opcode);
        if header.kind != FrameKind::Response || id >= self.next_id || asked != header.opcode {
            return Err(Error::bug(format!(
                "it sent a frame for request {id}, opcode {:#06x}, that is no answer to anything \
                 it was asked: use matching builds",
                header.opcode
            )));
        }
        Ok(())
    }

    fn complete(&mut self, header: &Header, reply: PeerReply, finished: &mut Finished) {
        self.has_answered = true;
        // Not there: repeated, which is ignored.
        let Some(waiting) = self.waiting.remove(&header.request_id) else { return };
        // No callback: late, its caller was told so.
        let Some(done) = waiting.done else { return };
        self.deadlines.remove(&(waiting.deadline_ns, header.request_id));
        let result = match header.status() {
            0 => Ok(reply),
            _ => Err(Error::decode(header.status(), &reply.meta)),
        };
        finished.push((done, result));
    }

    pub fn next_deadline_ns(&self) -> Option<u64> {
        self.deadlines.first().map(|(deadline_ns, _)| *deadline_ns)
    }

    /// Fails what is due. An error means that the peer is silent and the connection of no use.
    pub fn expire(&mut self, now_ns: u64, finished: &mut Finished) -> Result<()> {
        let mut any = false;
        while let Some(&(deadline_ns, id)) = self.deadlines.first()
            && deadline_ns <= now_ns
        {
            any = true;
            self.deadlines.pop_first();
            let done = self.waiting.get_mut(&id).and_then(|waiting| waiting.done.take());
            let e = Error::retry(format!(
                "ask `{}`: no answer in time: what was asked may or may not have been done",
                self.address
            ));
            finished.extend(done.map(|done| (done, Err(e))));
        }
        let owed = self.waiting.values().find(|waiting| any && waiting.done.is_none());
        match owed {
            Some(owed)
                if self.received_ns <= owed.sent_ns && now_ns - owed.sent_ns >= SILENCE_NS =>
            {
                Err(Error::retry("it has said nothing for seconds"))
            }
            _ => Ok(()),
        }
    }

    /// The connection broke: everything outstanding fails, and what was not sent is dropped. Who was let in and is
    /// denied later, since what it proved was revoked, does not know of what it asked before: `Retry`, and the next
    /// connection tells.
    pub fn fail(&mut self, why: &Error, finished: &mut Finished) {
        let was_let_in = self.has_answered && !planted!("net.denied-in-doubt");
        let e = Error::new(
            if was_let_in { Kind::Retry } else { kind_of(why) },
            format!(
                "ask `{}`: the connection broke ({why}): what was asked may or may not have been done",
                self.address
            ),
        );
        for waiting in std::mem::take(&mut self.waiting).into_values() {
            finished.extend(waiting.done.map(|done| (done, Err(e.clone()))));
        }
        *self = PeerConnection::new(&self.address);
    }
}

/// What a broken connection means for whoever asked: to ask again, unless it has to be let in first.
pub(super) fn kind_of(why: &Error) -> Kind {
    if why.kind == Kind::Denied { Kind::Denied } else { Kind::Retry }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_base::codec::Encode;
    use std::sync::{Arc, mpsc};

    const MS: u64 = 1_000_000;

    struct World {
        core: PeerConnection,
        answers: mpsc::Receiver<(u64, Result<PeerReply>)>,
        sender: mpsc::Sender<(u64, Result<PeerReply>)>,
        finished: Finished,
    }

    impl World {
        fn new() -> World {
            let (sender, answers) = mpsc::channel();
            World { core: PeerConnection::new("n:1"), answers, sender, finished: Vec::new() }
        }

        fn ask(&mut self, now_ns: u64, name: u64, deadline_ms: u32, body: Option<Vec<u8>>) {
            let body = body.map(|bytes| Arc::new(bytes) as super::super::SharedBody);
            let request = PeerRequest { opcode: 7, meta: vec![name as u8], body, deadline_ms };
            let sender = self.sender.clone();
            let done = Box::new(move |result| sender.send((name, result)).unwrap());
            self.core.submit(now_ns, request, done, &mut self.finished);
        }

        fn answers(&mut self) -> Vec<(u64, Result<PeerReply>)> {
            self.finished.drain(..).for_each(|(done, result)| done(result));
            self.answers.try_iter().collect()
        }

        fn receive(&mut self, now_ns: u64, data: &[u8]) -> Result<()> {
            self.core.received(now_ns, data, &mut self.finished)
        }
    }

    fn answer(id: u64, meta: &str, body: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let bytes = body.len() as u32;
        frame::encode(&mut out, FrameKind::Response, 7, id, 0, bytes, |m| {
            m.extend_from_slice(meta.as_bytes())
        });
        out.extend_from_slice(body);
        out
    }

    #[test]
    fn answers_find_their_requests_in_any_order_and_any_pieces() {
        let body: Vec<u8> = (0..40_000).map(|i| i as u8).collect();
        let mut stream = answer(3, "three", b"");
        stream.extend(answer(1, "one", &body));
        stream.extend(answer(2, "two", &[9]));
        for piece in [1, 7, 33, 1000, 39_999, usize::MAX] {
            let mut w = World::new();
            (1..=3).for_each(|name| w.ask(0, name, 1000, None));
            for part in stream.chunks(piece.min(stream.len())) {
                w.receive(1, part).unwrap();
            }
            let answers = w.answers();
            let names: Vec<u64> = answers.iter().map(|(name, _)| *name).collect();
            assert_eq!(names, [3, 1, 2], "pieces of {piece}");
            assert!(answers[1].1.as_ref().unwrap().body == body);
            assert_eq!(answers[2].1.as_ref().unwrap().meta, b"two");
            assert_eq!(w.core.next_deadline_ns(), None);
        }
    }

    #[test]
    fn a_late_or_repeated_answer_is_forgotten_and_the_connection_goes_on() {
        let mut w = World::new();
        w.ask(0, 1, 10, None);
        w.ask(0, 2, 1000, None);
        w.core.expire(10 * MS, &mut w.finished).unwrap();
        let answers = w.answers();
        assert_eq!(answers.len(), 1);
        assert_eq!(answers[0].1.as_ref().unwrap_err().kind, Kind::Retry);
        w.receive(11 * MS, &answer(1, "late", b"")).unwrap();
        w.receive(11 * MS, &answer(2, "two", b"")).unwrap();
        w.receive(11 * MS, &answer(2, "two again", b"")).unwrap();
        let answers = w.answers();
        assert_eq!(answers.len(), 1);
        assert_eq!(answers[0].1.as_ref().unwrap().meta, b"two");
    }

    /// A node whose certificate was revoked was told `Denied` of what it had asked before and what was done.
    #[test]
    fn who_is_denied_later_is_in_doubt_of_what_was_asked_before() {
        let kinds = |w: &mut World| -> Vec<Kind> {
            let errors = w.answers().into_iter().filter_map(|(_, answer)| answer.err());
            errors.map(|e| e.kind).collect()
        };
        let denied = Error::denied("its certificate was revoked");
        let mut w = World::new();
        (1..=3).for_each(|name| w.ask(0, name, 1000, None));
        w.receive(1, &answer(1, "one", b"")).unwrap();
        w.core.fail(&denied, &mut w.finished);
        assert_eq!(kinds(&mut w), [Kind::Retry; 2]);
        // It asks again, and nothing was done of what is denied before anything else is said.
        w.ask(2, 4, 1000, None);
        w.core.fail(&denied, &mut w.finished);
        assert_eq!(kinds(&mut w), [Kind::Denied]);
    }

    #[test]
    fn a_failure_reaches_everything_outstanding_once() {
        let mut w = World::new();
        (1..=3).for_each(|name| w.ask(0, name, 1000, None));
        w.receive(1, &answer(2, "two", b"")).unwrap();
        w.core.fail(&Error::retry("reset"), &mut w.finished);
        let answers = w.answers();
        assert_eq!(answers.len(), 3);
        assert!(answers[0].1.is_ok());
        assert!(answers[1..].iter().all(|(_, r)| r.as_ref().unwrap_err().kind == Kind::Retry));
        assert_eq!(w.core.take_output(), b"", "what was not sent is dropped");
        w.core.fail(&Error::retry("reset"), &mut w.finished);
        assert!(w.answers().is_empty());
    }

    #[test]
    fn errors_of_the_server_come_as_they_are_and_nonsense_ends_the_connection() {
        let mut w = World::new();
        w.ask(0, 1, 1000, None);
        let mut refusal = Vec::new();
        let status = Kind::Fenced as u32;
        frame::encode(&mut refusal, FrameKind::Response, 7, 1, status, 0, |m| "no".encode(m));
        w.receive(1, &refusal).unwrap();
        assert_eq!(w.answers()[0].1, Err(Error::fenced("no")));
        assert_eq!(w.receive(1, &answer(5, "", b"")).unwrap_err().kind, Kind::Bug);
        let mut last = Vec::new();
        let status = Kind::Retry as u32;
        frame::encode(&mut last, FrameKind::Response, 0, 0, status, 0, |m| "full".encode(m));
        let e = w.receive(1, &last).unwrap_err();
        assert!(e.message.contains("full"), "{e}");
        assert!(w.receive(1, b"HTTP/1.1 400").is_err());
    }

    #[test]
    fn a_peer_that_is_silent_for_long_is_given_up_and_a_slow_one_is_not() {
        let mut w = World::new();
        w.ask(0, 1, 1000, None);
        w.core.expire(1000 * MS, &mut w.finished).unwrap();
        w.receive(2000 * MS, &answer(1, "late", b"")).unwrap();
        w.ask(2000 * MS, 2, 3000, None);
        w.ask(2100 * MS, 3, 20_000, None);
        w.core.expire(5000 * MS, &mut w.finished).unwrap();
        w.ask(6000 * MS, 4, 1000, None);
        assert!(w.core.expire(7000 * MS, &mut w.finished).is_err());
    }

    #[test]
    fn a_request_that_exceeds_a_frame_is_refused_at_once() {
        let mut w = World::new();
        w.ask(0, 1, 1000, Some(vec![0; (16 << 20) + 1]));
        assert_eq!(w.answers()[0].1.as_ref().unwrap_err().kind, Kind::Invalid);
        assert_eq!(w.core.take_output(), b"");
    }

    #[test]
    fn what_is_sent_is_what_a_server_reads() {
        let mut w = World::new();
        w.ask(0, 1, 1000, None);
        w.ask(0, 2, 8, Some(vec![5; 5000]));
        let sent = w.core.take_output();
        let Ok(Decoded::Frame(first)) = frame::decode(&sent) else { panic!("a whole frame") };
        assert_eq!((first.opcode, first.request_id, first.deadline_or_status), (7, 1, 900));
        let Ok(Decoded::Frame(second)) = frame::decode(&sent[33..]) else { panic!("a frame") };
        assert_eq!((second.request_id, second.deadline_or_status), (2, 6));
        assert_eq!(second.body_bytes, 5000);
        assert_eq!(sent[33 + 33..], [5; 5000]);
    }
}
