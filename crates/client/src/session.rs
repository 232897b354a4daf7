//! The numbers of requests that change something: which session and sequence each was sent under,
//! and what happens to them when the node ended the session. Pure: who opens a session and who
//! sends is the client's business, the blocking one's or the asynchronous one's.

use crate::connection::RequestId;
use holdfast_base::ids::{Sequence, SessionId};
use holdfast_wire::Call;
use std::collections::{BTreeSet, HashMap};

#[derive(Default)]
pub(crate) struct Session {
    id: Option<SessionId>,
    last_sequence: u64,
    /// The session's numbers without an answer yet; the lowest bounds what the node remembers.
    unanswered: BTreeSet<u64>,
    /// Under which number each request that changes something was sent.
    numbered: HashMap<RequestId, Numbered>,
}

struct Numbered {
    session: SessionId,
    sequence: u64,
    /// It has a second number, because the session of its first had ended.
    renewed: bool,
}

impl Session {
    /// A new session; the first one, or in place of one that the node has ended.
    pub fn opened(&mut self, id: SessionId) {
        self.id = Some(id);
        self.last_sequence = 0;
        self.unanswered.clear();
    }

    /// The session, which is over for this side.
    pub fn close(&mut self) -> Option<SessionId> {
        self.id.take()
    }

    /// The next number; none without a session.
    pub fn next(&mut self) -> Option<Call> {
        let session = self.id?;
        self.last_sequence += 1;
        let sequence = self.last_sequence;
        self.unanswered.insert(sequence);
        let lowest = self.unanswered.first().copied().unwrap_or(sequence);
        let acknowledged_below = Sequence(lowest);
        Some(Call { session, sequence: Sequence(sequence), acknowledged_below })
    }

    /// `request` went under this number, or did not go at all.
    pub fn submitted(&mut self, request: Option<RequestId>, call: &Call) {
        let Call { session, sequence, .. } = *call;
        match request {
            Some(request) => {
                let numbered = Numbered { session, sequence: sequence.0, renewed: false };
                self.numbered.insert(request, numbered);
            }
            None => _ = self.unanswered.remove(&sequence.0),
        }
    }

    pub fn answered(&mut self, request: RequestId) {
        if let Some(numbered) = self.numbered.remove(&request)
            && self.id == Some(numbered.session)
        {
            self.unanswered.remove(&numbered.sequence);
        }
    }

    /// `request` was refused for good under its number, and needs another one.
    pub fn refused(&mut self, request: RequestId) {
        if let Some(refused) = self.numbered.get(&request)
            && self.id == Some(refused.session)
        {
            self.unanswered.remove(&refused.sequence);
        }
    }

    /// Whether `request` may be sent any number of times: it has a number.
    pub fn is_numbered(&self, request: RequestId) -> bool {
        self.numbered.contains_key(&request)
    }

    /// Whether a refusal because of an ended session may be met with another number: it was not
    /// before. A second refusal is not answered with a third attempt.
    pub fn may_renew(&self, request: RequestId) -> bool {
        self.numbered.get(&request).is_some_and(|numbered| !numbered.renewed)
    }

    /// The node has ended the session that `request` was sent under; if it is the current one, a
    /// new one must be opened before the next number.
    pub fn ended(&mut self, request: RequestId) {
        if let Some(refused) = self.numbered.get(&request)
            && self.id == Some(refused.session)
        {
            self.id = None;
        }
    }

    /// `request` goes again, under this number.
    pub fn renewed(&mut self, request: RequestId, call: &Call) {
        let Call { session, sequence, .. } = *call;
        let numbered = Numbered { session, sequence: sequence.0, renewed: true };
        self.numbered.insert(request, numbered);
    }
}
