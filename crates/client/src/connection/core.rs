//! Requests out, answers in, matched by id: the client's side of the protocol without a socket.
//! Never blocks, reads no clock; the driver moves the bytes.

use super::{RequestId, Response};
use holdfast_base::frame::{self, Decoded, FrameKind, HEADER_BYTES, Header};
use holdfast_base::{Error, Result};
use std::collections::VecDeque;

pub(super) struct Core {
    /// Id of `window`'s first request. Ids count up from 1; 0 is the server's last word.
    first_id: u64,
    /// Requests in the order sent, from the oldest that still matters.
    window: VecDeque<Request>,
    /// Ids with answers, in the order of arrival. Ids whose answers were taken stay until met.
    arrived: VecDeque<u64>,
    outstanding: usize,
    outstanding_max: usize,
    /// Why the connection cannot be used any more.
    failed: Option<Error>,
    /// The answer that came last is labelled as possibly old.
    stale: bool,
}

#[derive(Default)]
struct Request {
    opcode: u16,
    /// The last frame of the answer has come.
    complete: bool,
    /// The connection broke before its answer came.
    lost: bool,
    /// Nobody waits: answers are dropped.
    forgotten: bool,
    /// The whole frame, if it may be sent again, and how often that was done.
    kept: Option<Vec<u8>>,
    resends: u32,
    /// Answers not yet taken: one, unless it is streamed.
    first: Option<Result<Response>>,
    more: VecDeque<Result<Response>>,
}

impl Request {
    fn push(&mut self, answer: Result<Response>) {
        if self.forgotten {
            return;
        }
        if self.first.is_none() {
            self.first = Some(answer);
        } else {
            self.more.push_back(answer);
        }
    }

    fn pop(&mut self) -> Option<Result<Response>> {
        let answer = self.first.take();
        self.first = self.more.pop_front();
        answer
    }

    /// Kept, and no part of an answer has come: it can start from the beginning.
    fn is_whole_again(&self) -> bool {
        self.kept.is_some() && self.more.is_empty() && matches!(self.first, Some(Err(_)))
    }

    fn is_over(&self) -> bool {
        self.complete && self.first.is_none()
    }
}

/// What the front of the receive buffer holds.
pub(super) enum Step {
    /// So many bytes are needed.
    Need(usize),
    /// A verified frame of an outstanding request; meta and body follow the header.
    Frame(Header),
}

impl Core {
    pub fn new(outstanding_max: usize) -> Core {
        Core {
            first_id: 1,
            window: VecDeque::new(),
            arrived: VecDeque::new(),
            outstanding: 0,
            outstanding_max,
            failed: None,
            stale: false,
        }
    }

    pub fn is_stale(&self) -> bool {
        self.stale
    }

    pub fn outstanding(&self) -> usize {
        self.outstanding
    }

    pub fn failure(&self) -> Option<&Error> {
        self.failed.as_ref()
    }

    /// Appends a request's head and meta to `out`; `body_bytes` of body must follow.
    pub fn submit(
        &mut self,
        out: &mut Vec<u8>,
        opcode: u16,
        deadline_ms: u32,
        body_bytes: u32,
        meta: impl FnOnce(&mut Vec<u8>),
    ) -> Result<RequestId> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        if self.outstanding >= self.outstanding_max {
            return Err(Error::retry(format!(
                "send a request: {} are outstanding, the limit: wait for answers first",
                self.outstanding
            )));
        }
        let id = self.first_id + self.window.len() as u64;
        frame::try_encode(out, FrameKind::Request, opcode, id, deadline_ms, body_bytes, meta)?;
        self.window.push_back(Request { opcode, ..Request::default() });
        self.outstanding += 1;
        Ok(RequestId(id))
    }

    /// Keeps the frame of a request, so that it can be sent again.
    pub fn keep(&mut self, id: RequestId, frame: Vec<u8>) {
        if let Some(place) = self.place(id) {
            self.window[place].kept = Some(frame);
        }
    }

    /// Looks at the front of what was received. After an error the connection is of no use.
    pub fn next(&self, received: &[u8]) -> Result<Step> {
        let header = match frame::decode(received)? {
            Decoded::NeedBytes(bytes) => return Ok(Step::Need(bytes)),
            Decoded::Frame(header) => header,
        };
        if header.request_id == 0 && header.kind == FrameKind::Response {
            let meta = &received[HEADER_BYTES..HEADER_BYTES + header.meta_bytes as usize];
            return Err(
                Error::decode(header.status(), meta).context("the server ended the connection")
            );
        }
        let known = self.place(RequestId(header.request_id)).map(|i| &self.window[i]);
        match known {
            Some(request) if !request.complete && header.kind != FrameKind::Request => {
                if request.opcode != header.opcode {
                    return Err(Error::bug(format!(
                        "the server answered opcode {:#06x} to a request of {:#06x}",
                        header.opcode, request.opcode
                    )));
                }
                Ok(Step::Frame(header))
            }
            _ => Err(Error::bug(format!(
                "the server sent an answer to request {}, which is not outstanding: reconnect",
                header.request_id
            ))),
        }
    }

    /// Keeps a frame that [`Core::next`] announced.
    pub fn complete(&mut self, header: Header, response: Response) {
        let id = RequestId(header.request_id);
        let Some(place) = self.place(id) else { return };
        self.stale = header.is_stale();
        let answer = match header.status() {
            0 => Ok(response),
            _ => Err(Error::decode(header.status(), response.meta())),
        };
        self.push(place, answer, header.kind == FrameKind::Response);
        self.trim();
    }

    fn push(&mut self, place: usize, answer: Result<Response>, last: bool) {
        let request = &mut self.window[place];
        request.push(answer);
        if last {
            request.complete = true;
            self.outstanding -= 1;
        }
        self.arrived.push_back(self.first_id + place as u64);
    }

    pub fn has_answer(&self, id: RequestId) -> bool {
        self.place(id).is_some_and(|place| self.window[place].first.is_some())
    }

    /// Takes the next answer to `id`, if there is one.
    pub fn take(&mut self, id: RequestId) -> Option<Result<Response>> {
        let Some(place) = self.place(id) else {
            return Some(Err(Error::invalid(format!(
                "wait for request {}: its answer was taken before",
                id.0
            ))));
        };
        let answer = self.window[place].pop();
        self.trim();
        answer
    }

    /// Lets go of what is over.
    fn trim(&mut self) {
        while self.window.front().is_some_and(Request::is_over) {
            self.window.pop_front();
            self.first_id += 1;
        }
        // What was taken by id leaves its mark here; dropped from the front as it becomes stale.
        while let Some(&id) = self.arrived.front() {
            if self.has_answer(RequestId(id)) {
                break;
            }
            self.arrived.pop_front();
        }
    }

    /// Nobody waits for this answer any more.
    pub fn forget(&mut self, id: RequestId) {
        let Some(place) = self.place(id) else { return };
        let request = &mut self.window[place];
        *request = Request {
            opcode: request.opcode,
            complete: request.complete,
            forgotten: true,
            ..Request::default()
        };
        self.trim();
    }

    /// Whether the connection broke before the answer came, and the request can be sent again.
    pub fn is_resendable(&self, id: RequestId, resends_max: u32) -> bool {
        self.place(id).map(|place| &self.window[place]).is_some_and(|request| {
            request.lost && request.is_whole_again() && request.resends < resends_max
        })
    }

    /// The error that waits to be taken as the answer, and whether the request was sent more than
    /// once, so that an earlier copy may have been carried out.
    pub fn error(&self, id: RequestId) -> Option<(&Error, bool)> {
        let request = &self.window[self.place(id)?];
        match &request.first {
            Some(Err(e)) => Some((e, request.resends > 0)),
            _ => None,
        }
    }

    /// A new connection is there: appends to `out` every lost request that was kept. The others
    /// stay failed.
    pub fn revive(&mut self, out: &mut Vec<u8>, resends_max: u32) {
        self.failed = None;
        for request in &mut self.window {
            if !request.lost || !request.is_whole_again() || request.resends >= resends_max {
                continue;
            }
            let Some(frame) = &request.kept else { continue };
            out.extend_from_slice(frame);
            request.first = None;
            (request.lost, request.complete) = (false, false);
            request.resends += 1;
            self.outstanding += 1;
        }
        let arrived = std::mem::take(&mut self.arrived);
        self.arrived = arrived.into_iter().filter(|id| self.has_answer(RequestId(*id))).collect();
    }

    /// Sends a refused request again, its meta changed; false if it was not kept. Its answer is
    /// dropped.
    pub fn again(
        &mut self,
        id: RequestId,
        out: &mut Vec<u8>,
        change: impl FnOnce(&mut [u8]),
    ) -> bool {
        let Some(place) = self.place(id) else { return false };
        let request = &mut self.window[place];
        let Some(mut frame) = request.kept.take().filter(|_| request.complete) else {
            return false;
        };
        let Ok(Decoded::Frame(header)) = frame::decode(&frame) else { return false };
        let (meta, body) = frame[HEADER_BYTES..].split_at_mut(header.meta_bytes as usize);
        change(meta);
        let start = out.len();
        let Header { opcode, deadline_or_status, body_bytes, .. } = header;
        frame::encode(out, FrameKind::Request, opcode, id.0, deadline_or_status, body_bytes, |m| {
            m.extend_from_slice(meta);
        });
        out.extend_from_slice(body);
        request.kept = Some(out[start..].to_vec());
        (request.first, request.complete) = (None, false);
        self.outstanding += 1;
        true
    }

    /// The request whose answer arrived first, of those that `wanted` picks.
    pub fn first_arrived(&self, wanted: impl Fn(RequestId) -> bool) -> Option<RequestId> {
        let arrived = self.arrived.iter().map(|id| RequestId(*id));
        arrived.into_iter().find(|id| self.has_answer(*id) && wanted(*id))
    }

    /// Whether an answer to `id` is still to come.
    pub fn is_awaited(&self, id: RequestId) -> bool {
        self.place(id).is_some_and(|place| self.window[place].first.is_none())
    }

    /// Ends the connection: all that is outstanding fails, with `error` as the reason.
    pub fn fail(&mut self, error: Error) {
        if self.failed.is_some() {
            return;
        }
        for place in 0..self.window.len() {
            if !self.window[place].complete {
                self.window[place].lost = true;
                self.push(place, Err(error.clone()), true);
            }
        }
        self.failed = Some(error);
        self.trim();
    }

    fn place(&self, id: RequestId) -> Option<usize> {
        let place = usize::try_from(id.0.checked_sub(self.first_id)?).ok()?;
        self.window.get(place).filter(|request| !request.is_over()).map(|_| place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_base::Kind;

    fn answer(core: &mut Core, id: u64, kind: FrameKind, text: &str) {
        let mut bytes = Vec::new();
        frame::encode(&mut bytes, kind, 7, id, 0, 0, |m| m.extend_from_slice(text.as_bytes()));
        let Ok(Step::Frame(header)) = core.next(&bytes) else { panic!("{id} is outstanding") };
        core.complete(header, Response::new(bytes[HEADER_BYTES..].to_vec(), text.len(), true));
    }

    fn text(answer: Option<Result<Response>>) -> String {
        String::from_utf8(answer.unwrap().unwrap().meta().to_vec()).unwrap()
    }

    fn core(requests: usize) -> Core {
        let mut core = Core::new(requests);
        for _ in 0..requests {
            core.submit(&mut Vec::new(), 7, 0, 0, |_| {}).unwrap();
        }
        core
    }

    #[test]
    fn answers_match_requests_in_any_order() {
        let mut core = core(3);
        assert!(core.submit(&mut Vec::new(), 7, 0, 0, |_| {}).is_err(), "the limit is 3");
        answer(&mut core, 3, FrameKind::Response, "three");
        answer(&mut core, 1, FrameKind::Response, "one");
        assert!(core.take(RequestId(2)).is_none());
        assert_eq!(text(core.take(RequestId(1))), "one");
        assert!(core.take(RequestId(1)).unwrap().is_err(), "taken once");
        answer(&mut core, 2, FrameKind::Response, "two");
        assert_eq!(core.first_arrived(|_| true), Some(RequestId(3)));
        assert_eq!(core.first_arrived(|id| id.0 < 3), Some(RequestId(2)));
        assert_eq!(text(core.take(RequestId(3))), "three");
        assert_eq!(text(core.take(RequestId(2))), "two");
        assert!(core.first_arrived(|_| true).is_none());
        assert!(core.window.is_empty() && core.outstanding() == 0);
    }

    #[test]
    fn streamed_parts_keep_their_order() {
        let mut core = core(1);
        for part in ["a", "b"] {
            answer(&mut core, 1, FrameKind::Part, part);
        }
        assert_eq!(text(core.take(RequestId(1))), "a");
        answer(&mut core, 1, FrameKind::Response, "c");
        assert_eq!(text(core.take(RequestId(1))), "b");
        assert_eq!(text(core.take(RequestId(1))), "c");
    }

    #[test]
    fn a_failure_reaches_every_outstanding_request_and_no_other() {
        let mut core = core(2);
        answer(&mut core, 1, FrameKind::Response, "one");
        core.fail(Error::retry("connection reset"));
        assert_eq!(text(core.take(RequestId(1))), "one");
        assert_eq!(core.take(RequestId(2)).unwrap().unwrap_err().kind, Kind::Retry);
        assert!(core.submit(&mut Vec::new(), 7, 0, 0, |_| {}).is_err());
    }

    #[test]
    fn kept_requests_are_sent_again_and_the_others_stay_failed() {
        let mut core = Core::new(8);
        let mut frames = Vec::new();
        for i in 0..3u8 {
            let start = frames.len();
            let id = core.submit(&mut frames, 7, 0, 1, |m| m.push(i)).unwrap();
            frames.push(i);
            if i != 1 {
                core.keep(id, frames[start..].to_vec());
            }
        }
        core.fail(Error::retry("connection reset"));
        assert!(core.is_resendable(RequestId(1), 1) && !core.is_resendable(RequestId(2), 1));
        let mut out = Vec::new();
        core.revive(&mut out, 1);
        let half = HEADER_BYTES + 2;
        assert_eq!(out, [&frames[..half], &frames[2 * half..]].concat(), "the same bytes");
        assert_eq!(core.outstanding(), 2);
        assert!(core.take(RequestId(2)).unwrap().is_err());
        answer(&mut core, 3, FrameKind::Response, "three");
        assert_eq!(text(core.take(RequestId(3))), "three");
        core.fail(Error::retry("connection reset"));
        core.revive(&mut Vec::new(), 1);
        assert!(core.take(RequestId(1)).unwrap().is_err(), "once was the limit");
        assert!(core.window.is_empty() && core.arrived.is_empty());
    }

    #[test]
    fn a_message_that_no_server_takes_is_not_sent() {
        let (mut core, mut out) = (Core::new(1), vec![1]);
        let meta = |m: &mut Vec<u8>| {
            m.resize(m.len() + holdfast_base::limits::FRAME_META_BYTES_MAX as usize + 1, 0)
        };
        assert_eq!(core.submit(&mut out, 7, 0, 0, meta).unwrap_err().kind, Kind::Invalid);
        assert_eq!((out.len(), core.outstanding()), (1, 0));
    }

    #[test]
    fn forgotten_answers_leave_nothing_behind() {
        let mut core = core(3);
        answer(&mut core, 1, FrameKind::Response, "one");
        core.forget(RequestId(1));
        core.forget(RequestId(3));
        answer(&mut core, 3, FrameKind::Response, "three");
        core.forget(RequestId(2));
        assert_eq!(core.window.len(), 2, "2 has no answer yet");
        answer(&mut core, 2, FrameKind::Response, "two");
        assert!(core.window.is_empty() && core.arrived.is_empty() && core.outstanding() == 0);
    }

    #[test]
    fn a_refused_request_can_be_changed_and_sent_again() {
        let mut core = Core::new(1);
        let mut frame = Vec::new();
        let id = core.submit(&mut frame, 7, 5, 1, |m| m.push(b'a')).unwrap();
        frame.push(b'!');
        core.keep(id, frame);
        answer(&mut core, 1, FrameKind::Response, "refused");
        let mut out = Vec::new();
        assert!(core.again(id, &mut out, |meta| meta[0] = b'b'));
        let Ok(Decoded::Frame(header)) = frame::decode(&out) else { panic!("a whole frame") };
        assert_eq!((header.request_id, header.deadline_or_status, header.body_bytes), (1, 5, 1));
        assert_eq!(&out[HEADER_BYTES..], b"b!");
        answer(&mut core, 1, FrameKind::Response, "done");
        assert_eq!(text(core.take(id)), "done");
    }

    #[test]
    fn answers_nobody_asked_for_are_refused() {
        let core = core(1);
        let mut bytes = Vec::new();
        frame::encode(&mut bytes, FrameKind::Response, 7, 2, 0, 0, |_| {});
        assert!(core.next(&bytes).is_err());
        bytes.clear();
        frame::encode(&mut bytes, FrameKind::Response, 8, 1, 0, 0, |_| {});
        assert!(core.next(&bytes).is_err(), "another opcode");
    }
}
