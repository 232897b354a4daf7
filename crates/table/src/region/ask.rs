//! Clients' requests: where they go, what they wait for, how they are answered. A request is
//! decided where the record is at home; a read is served where it was asked, once enough shows.

use super::lead::State;
use super::split::Keys;
use super::{Effect, Region, START_SHIFT};
use crate::entry::{Asked, Body, Change, ChangeKind, Refusal};
use crate::ids::{Key, Place, RegionId, StreamId, Value};
use crate::message::{Answer, Asker, Expect, Level, Message, Op, Request};
use crate::record::Record;
use crate::sessions::{Known, Outcome};
use crate::tablet::{Covers, Mode, Showed};
use holdfast_env::trial::Knob;
use holdfast_env::{planted, sometimes};

/// Regions that a request may pass through.
const HOPS_MAX: u8 = 8;
/// Requests that wait here at once, and bytes of them: more are to ask again.
static PARKED_MAX: Knob = Knob::new("table.parked", 1 << 16, &[2, 10]);
static PARKED_BYTES_MAX: Knob = Knob::new("table.parked-bytes", 64 << 20, &[100, 1000]);
/// Bytes of a stream that are decided and do not show, for want of other regions: nothing more is decided.
static HIDDEN_BYTES_MAX: Knob = Knob::new("table.hidden-bytes", 256 << 20, &[300, 3000]);

/// A request of one of this region's clients.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    client: u64,
    request: Request,
    ticks: u32,
    /// The stream whose mark it waits for.
    marked_in: Option<StreamId>,
}

/// A request that waits.
#[derive(Clone, Debug)]
pub(super) struct Parked {
    asker: Asker,
    request: Request,
    hops: u8,
    /// Until this shows, or was cut off; none: until the next tick.
    until: Option<(StreamId, Place)>,
    ticks: u32,
}

impl Parked {
    fn bytes(&self) -> u64 {
        let value = match &self.request.op {
            Op::Write { value, .. } => value.as_ref().map_or(0, Vec::len),
            Op::Group { writes, .. } => {
                writes.iter().map(|w| size_of_val(w) + w.key.len() + w.value_bytes()).sum()
            }
            // Of a token each place.
            Op::Read(Level::Session(token)) => token.places().count() * size_of::<Place>(),
            Op::Read(_) | Op::Resolve { .. } => 0,
        };
        (size_of::<Parked>() + self.request.key.len() + value) as u64
    }
}

impl Region {
    pub(super) fn ask_for(&mut self, client: u64, mut request: Request) {
        if let Some(id) = request.resolves()
            && let Op::Resolve { said, .. } = &mut request.op
        {
            *said = self.says_at(&id);
        }
        self.tickets += 1;
        let ticket = self.start << START_SHIFT | self.tickets;
        let asker = Asker { region: self.me, ticket };
        let pending = Pending { client, request: request.clone(), ticks: 0, marked_in: None };
        self.pending.insert(ticket, pending);
        if let Some(asked) = request.asked() {
            self.writing.insert((asked.session, asked.sequence), ticket);
        }
        if let Op::Read(Level::Session(_)) = &request.op {
            self.reading_sessions.insert(ticket);
        }
        match &request.op {
            Op::Write { .. } | Op::Group { .. } | Op::Resolve { .. } => {
                self.dispatch(asker, request, 0, None)
            }
            Op::Read(Level::Any) => self.read_here(ticket),
            Op::Read(Level::Critical(version)) => {
                match self.shows_version(&request.key, *version) {
                    true => self.read_here(ticket),
                    false => self.dispatch(asker, request, 0, None),
                }
            }
            Op::Read(Level::Session(_)) => self.read_session(ticket),
            Op::Read(Level::Latest | Level::Strong) => self.read_newest(asker, request),
        }
    }

    fn read_newest(&mut self, asker: Asker, request: Request) {
        match self.mode() {
            Mode::Strong => self.read_strong(asker.ticket),
            Mode::Timeline => {
                let request = Request { op: Op::Read(Level::Latest), ..request };
                self.dispatch(asker, request, 0, None);
            }
        }
    }

    /// An absent key shows no version: whether it was forgotten or has yet to come, nobody knows here.
    fn shows_version(&self, key: &[u8], version: u64) -> bool {
        self.tablet.record(key).is_some_and(|record| record.version >= version)
    }

    /// Decides a request, or has it decided where the record is at home.
    pub(super) fn dispatch(
        &mut self,
        asker: Asker,
        request: Request,
        hops: u8,
        after: Option<(StreamId, Place)>,
    ) {
        if hops > HOPS_MAX {
            self.answer(asker, Answer::Retry("the record moves too fast"));
            return;
        }
        if let Some((stream, place)) = after
            && !self.tablet.passed(stream, place)
        {
            if planted!("table.moved-before-followed") && self.leads(StreamId::of(self.me)) {
                self.decide_write(StreamId::of(self.me), asker, request);
                return;
            }
            self.park(asker, request, hops, after);
            return;
        }
        if let Some(asked) = request.asked()
            && self.is_known(asker, asked)
        {
            return;
        }
        match self.keys_of(&request) {
            Keys::Here => {}
            Keys::Leaving => return self.park(asker, request, hops, None),
            Keys::Elsewhere => return self.is_elsewhere(asker),
        }
        let State { record, coming } = self.state(&request.key);
        let form_home = self.tablet.form().home;
        let home = record.as_ref().map_or(form_home, |record| record.home);
        match coming {
            // It moved by an entry that is not kept yet, or follows on what has not come yet.
            Some((stream, place, grounded)) if stream != home || !grounded => {
                self.park(asker, request, hops, Some((stream, place)));
            }
            _ if self.leads(home) => match self.may_be_cut_off(home, &request, record.as_ref()) {
                true => self.park(asker, request, hops, None),
                false => self.decide_request(home, asker, request),
            },
            _ => self.forward(home, asker, request, hops, record.as_ref()),
        }
    }

    fn forward(
        &mut self,
        home: StreamId,
        asker: Asker,
        request: Request,
        hops: u8,
        record: Option<&Record>,
    ) {
        let leader = self.leader(home);
        if leader == self.me {
            // It is being opened.
            self.park(asker, request, hops + 1, None);
            return;
        }
        let after = match record {
            Some(record) => Some((record.stream, record.place)),
            // Forgotten in a stream that is led here, perhaps: all of it says so.
            None => self.leads.keys().next().map(|id| (*id, self.tablet.shown(*id).place)),
        };
        let after = after.filter(|(_, place)| place.number > 0);
        self.send(leader, Message::Forward { asker, request, hops: hops + 1, after });
    }

    pub(super) fn park(
        &mut self,
        asker: Asker,
        request: Request,
        hops: u8,
        until: Option<(StreamId, Place)>,
    ) {
        let parked = Parked { asker, request, hops, until, ticks: 0 };
        let bytes = self.parked_bytes + parked.bytes();
        let many = self.parked.len() >= PARKED_MAX.size() || bytes > PARKED_BYTES_MAX.get();
        if many && !self.parked.is_empty() {
            PARKED_MAX.cross();
            self.answer(asker, Answer::Retry("too many requests wait"));
            return;
        }
        self.parked_bytes = bytes;
        self.parked.push(parked);
    }

    /// Takes up what waited for something that shows now; `all` that wait for nothing in particular.
    pub(super) fn unpark(&mut self, all: bool) {
        let mut waits = Vec::new();
        let mut ready_ones = Vec::new();
        for parked in std::mem::take(&mut self.parked) {
            let ready = match parked.until {
                Some((stream, place)) => self.tablet.passed(stream, place),
                None => all,
            };
            match ready {
                true => ready_ones.push(parked),
                false => waits.push(parked),
            }
        }
        self.parked_bytes = waits.iter().map(Parked::bytes).sum();
        self.parked = waits;
        for parked in ready_ones {
            self.dispatch(parked.asker, parked.request, parked.hops, None);
        }
    }

    /// Whether a request was decided before: it gets its first answer, here or where it waits.
    fn is_known(&mut self, asker: Asker, asked: Asked) -> bool {
        match self.tablet.sessions().known(asked) {
            Known::New => {
                let joins = self.joins(asker, asked);
                if joins {
                    sometimes!("a repetition joined its first request");
                }
                joins
            }
            Known::Done(known) => {
                sometimes!("a repetition got its first answer");
                let answer = Answer::Done {
                    outcome: known.outcome,
                    stream: known.stream,
                    place: known.place,
                };
                self.answer(asker, answer);
                true
            }
            Known::Stale => {
                self.answer(asker, Answer::Retry("its client went on"));
                true
            }
        }
    }

    fn decide_request(&mut self, home: StreamId, asker: Asker, request: Request) {
        match &request.op {
            Op::Write { .. } => self.decide_write(home, asker, request),
            Op::Read(Level::Critical(version)) if self.shows_version(&request.key, *version) => {
                self.tell_value(asker, &request.key);
            }
            Op::Read(Level::Session(token)) if self.tablet.covers(token) == Covers::Yes => {
                self.tell_value(asker, &request.key);
            }
            Op::Read(Level::Session(token)) if self.tablet.covers(token) == Covers::Branched => {
                self.answer(asker, Answer::Branched);
            }
            // The home may lack what another stream has lost with its log: it would go back unsaid.
            Op::Read(Level::Session(_)) if self.mode() == Mode::Timeline => {
                self.park(asker, request, 1, None);
            }
            Op::Read(_) => match self.mode() {
                Mode::Timeline => self.check_for(home, asker, request.key),
                Mode::Strong => self.answer_not_shown(asker),
            },
            Op::Group { .. } => self.decide_group(home, asker, request),
            Op::Resolve { .. } => self.resolve(home, asker, request),
        }
    }

    fn decide_write(&mut self, home: StreamId, asker: Asker, request: Request) {
        let Op::Write { asked, value, expect } = request.op else { return };
        if self.hides_too_much(home, asker) {
            return;
        }
        match self.next_version(request.key, value.map(Value::from), expect, asker.region) {
            Ok(change) => {
                if change.home != home {
                    sometimes!("a home moved");
                }
                self.decide(home, Body::Change(change), Some(asked), Some(asker));
            }
            Err(refusal) => self.refuse(home, (asked, asker), refusal),
        }
    }

    /// Whether whoever asked is told to wait until more of the stream shows.
    pub(super) fn hides_too_much(&mut self, home: StreamId, asker: Asker) -> bool {
        let stream = self.tablet.stream(home);
        let shown = self.tablet.shown(home).place.number;
        let is_much = stream.bytes_between(shown, stream.tail().number) > HIDDEN_BYTES_MAX.get();
        if is_much {
            HIDDEN_BYTES_MAX.cross();
            self.answer(asker, Answer::Retry("too much of its home is not kept yet"));
        }
        is_much
    }

    pub(super) fn refuse(&mut self, home: StreamId, of: (Asked, Asker), refusal: Refusal) {
        let (asked, asker) = of;
        let place = self.decide(home, Body::Refused(refusal), Some(asked), Some(asker));
        if planted!("table.refusal-told-at-once") {
            let (stream, outcome) = (home, Outcome::Refused(refusal));
            self.answer(asker, Answer::Done { outcome, stream, place });
        }
    }

    /// The record's next version, with this value, if the record is as expected.
    pub(super) fn next_version(
        &self,
        key: Key,
        value: Option<Value>,
        expect: Expect,
        origin: RegionId,
    ) -> Result<Change, Refusal> {
        let State { record, .. } = self.state(&key);
        let alive = record.as_ref().filter(|record| record.value.is_some());
        match (expect, alive) {
            (Expect::Absent, Some(record)) => return Err(Refusal::Found(record.version)),
            (Expect::Version(version), Some(record)) if record.version != version => {
                return Err(Refusal::Found(record.version));
            }
            (Expect::Version(_), None) => return Err(Refusal::Absent),
            _ if value.is_none() && alive.is_none() => return Err(Refusal::Absent),
            _ => {}
        }
        let moves = value.is_some();
        let kind = value.map_or(ChangeKind::Delete, ChangeKind::Put);
        Ok(match &record {
            Some(before) => Change {
                key,
                version: before.version + 1,
                after: before.version,
                // A tombstone stays where it is: it moves by being forgotten.
                home: if moves { before.home_after_write(origin) } else { before.home },
                origin,
                kind,
            },
            None => {
                let home = StreamId::of(origin);
                Change { key, version: self.floor() + 1, after: 0, home, origin, kind }
            }
        })
    }

    pub(super) fn answer(&mut self, asker: Asker, answer: Answer) {
        match asker.region == self.me {
            true => self.answer_ticket(asker.ticket, answer),
            false => {
                let ticket = asker.ticket;
                self.send(asker.region, Message::Answered { ticket, answer });
            }
        }
    }

    /// Whether an answer of another region is one to what was asked under this ticket.
    pub(super) fn fits(&self, ticket: u64, answer: &Answer) -> bool {
        let op = self.pending.get(&ticket).map(|pending| &pending.request.op);
        match answer {
            Answer::Done { .. } => {
                matches!(op, Some(Op::Write { .. } | Op::Group { .. } | Op::Resolve { .. }))
            }
            Answer::Value { .. } | Answer::Branched => matches!(op, Some(Op::Read(_))),
            Answer::Retry(_) => true,
            Answer::Elsewhere(_) | Answer::Split => false,
        }
    }

    /// What was asked is another tablet's to answer.
    fn is_elsewhere(&mut self, asker: Asker) {
        if asker.region != self.me {
            self.answer(asker, Answer::Retry("its key is another tablet's"));
        } else if let Some(pending) = self.pending.get(&asker.ticket) {
            let request = Box::new(pending.request.clone());
            self.answer_ticket(asker.ticket, Answer::Elsewhere(request));
        }
    }

    pub(super) fn answer_ticket(&mut self, ticket: u64, answer: Answer) {
        if ticket >> START_SHIFT != self.start {
            sometimes!("an answer of an earlier start came");
        }
        if let Some(pending) = self.pending.remove(&ticket) {
            if let Some(asked) = pending.request.asked() {
                let asked = (asked.session, asked.sequence);
                // A repetition may have come behind it.
                if self.writing.get(&asked) == Some(&ticket) {
                    self.writing.remove(&asked);
                }
            }
            self.reading_sessions.remove(&ticket);
            self.out.push(Effect::Answer { client: pending.client, answer });
        }
    }

    /// An entry that this region's client asked for is kept, as this region's own copy shows: nobody
    /// has to say so.
    pub(super) fn own_copy(&mut self, asked: Asked, answer: Answer) {
        let ticket = self.writing.get(&(asked.session, asked.sequence)).copied();
        if let Some(ticket) = ticket {
            sometimes!("an asker's copy made a majority");
            self.answer_ticket(ticket, answer);
        }
    }

    fn value(&self, key: &[u8]) -> Answer {
        let record = self.tablet.record(key);
        let found = record.and_then(|r| Some((r.version, r.value.clone()?)));
        Answer::Value { found, seen: self.tablet.seen_by(key) }
    }

    /// Of whoever has the key: it may have left since this was asked.
    fn tell_value(&mut self, asker: Asker, key: &[u8]) {
        match self.tablet.span().has(key) || planted!("table.read-behind-a-split") {
            true => {
                let answer = self.value(key);
                self.answer(asker, answer);
            }
            false => self.is_elsewhere(asker),
        }
    }

    fn read_here(&mut self, ticket: u64) {
        let Some(pending) = self.pending.get(&ticket) else { return };
        let key = pending.request.key.clone();
        self.tell_value(Asker { region: self.me, ticket }, &key);
    }

    /// Waits until what the client has seen shows here.
    fn read_session(&mut self, ticket: u64) {
        let Some(pending) = self.pending.get(&ticket) else { return };
        let Op::Read(Level::Session(token)) = &pending.request.op else { return };
        match self.tablet.covers(token) {
            Covers::Yes => self.read_here(ticket),
            Covers::Branched => self.answer_ticket(ticket, Answer::Branched),
            Covers::NotYet => {}
        }
    }

    fn read_strong(&mut self, ticket: u64) {
        let reads = |pending: &&mut Pending| matches!(pending.request.op, Op::Read(_));
        let Some(pending) = self.pending.get_mut(&ticket).filter(reads) else { return };
        let record = self.tablet.record(&pending.request.key);
        let stream = record.map_or(self.tablet.form().home, |record| record.home);
        pending.marked_in = Some(stream);
        if self.leads(stream) {
            match planted!("table.read-without-mark") {
                true => self.read_here(ticket),
                false => self.mark_for(stream, self.me, ticket),
            }
            return;
        }
        let leader = self.leader(stream);
        if leader != self.me {
            self.send(leader, Message::MarkAsked { stream, ticket });
        }
    }

    /// A home does not show what a read asked for.
    fn answer_not_shown(&mut self, asker: Asker) {
        match asker.region == self.me {
            true => self.read_is_not_shown(asker.ticket),
            false => self.send(asker.region, Message::NotShown { ticket: asker.ticket }),
        }
    }

    pub(super) fn read_is_not_shown(&mut self, ticket: u64) {
        self.read_strong(ticket);
    }

    /// The home still led when it was asked: what it shows is the newest.
    pub(super) fn read_checked(&mut self, id: StreamId, asker: Asker, key: Key) {
        let record = self.tablet.record(&key);
        if record.map_or(self.tablet.form().home, |record| record.home) == id {
            self.tell_value(asker, &key);
        } else {
            let request = Request { key, op: Op::Read(Level::Latest) };
            self.dispatch(asker, request, 1, None);
        }
    }

    pub(super) fn has_shown(&mut self, showed: &Showed) {
        self.lead_has_shown(showed);
        if let Body::Mark(tickets) = &showed.entry.body {
            let me = self.me;
            for (_, ticket) in tickets.iter().filter(|(region, _)| *region == me) {
                self.marked(showed.stream, *ticket);
            }
        }
        self.split_has_shown(&showed.entry.body);
    }

    /// More shows than before: reads that wait for what their clients have seen may have it. Once for all that shows
    /// at once: thousands of reads may wait while thousands of entries come.
    pub(super) fn read_sessions(&mut self) {
        let sessions: Vec<u64> = self.reading_sessions.iter().copied().collect();
        for ticket in sessions {
            self.read_session(ticket);
        }
    }

    /// A mark shows: reads that it serves are answered from what shows with it, if the records are
    /// still at home in its stream.
    fn marked(&mut self, stream: StreamId, up_to: u64) {
        let served: Vec<u64> = self
            .pending
            .range(..=up_to)
            .filter(|(ticket, p)| {
                p.marked_in == Some(stream) && **ticket >> START_SHIFT == up_to >> START_SHIFT
            })
            .map(|(ticket, _)| *ticket)
            .collect();
        for ticket in served {
            let Some(pending) = self.pending.get(&ticket) else { continue };
            let record = self.tablet.record(&pending.request.key);
            let home = record.map_or(self.tablet.form().home, |record| record.home);
            match home == stream {
                true => self.read_here(ticket),
                false => {
                    sometimes!("a record moved under a read");
                    self.read_strong(ticket);
                }
            }
        }
    }

    pub(super) fn tick_requests(&mut self) {
        self.unpark(true);
        let wait = self.settings.wait_ticks;
        let mut given_up = Vec::new();
        self.parked.retain_mut(|parked| {
            parked.ticks += 1;
            let waits = parked.ticks <= wait;
            if !waits {
                given_up.push(parked.asker);
            }
            waits
        });
        self.parked_bytes = self.parked.iter().map(Parked::bytes).sum();
        for asker in given_up {
            self.answer(asker, Answer::Retry("what it waits for does not come"));
        }
        let resend = self.settings.resend_ticks;
        let (mut late, mut again) = (Vec::new(), Vec::new());
        for (ticket, pending) in &mut self.pending {
            pending.ticks += 1;
            if pending.ticks > wait {
                late.push(*ticket);
            } else if pending.ticks.is_multiple_of(resend) {
                again.push(*ticket);
            }
        }
        for ticket in late {
            self.answer_ticket(ticket, Answer::Retry("its home does not answer"));
        }
        for ticket in again {
            self.ask_again(ticket);
        }
    }

    /// A read whose mark did not come, or which waited long enough for what its client has seen; a
    /// write that may have gone to a region that is lost: whoever leads now knows whether it came.
    fn ask_again(&mut self, ticket: u64) {
        let Some(pending) = self.pending.get(&ticket) else { return };
        let asker = Asker { region: self.me, ticket };
        match &pending.request.op {
            Op::Read(_) if pending.marked_in.is_some() => self.read_strong(ticket),
            Op::Write { .. }
            | Op::Group { .. }
            | Op::Resolve { .. }
            | Op::Read(Level::Session(_)) => {
                let request = pending.request.clone();
                self.dispatch(asker, request, 0, None);
            }
            Op::Read(_) => {}
        }
    }
}

#[cfg(test)]
impl Parked {
    /// As if it had waited for no time.
    pub(super) fn begin_anew(&mut self) {
        self.ticks = 0;
    }

    /// What tells it from another one.
    pub(super) fn key(&self, key: &mut Vec<u64>) {
        let sequence = self.request.asked().map_or(0, |asked| asked.sequence);
        key.extend([u64::from(self.asker.region.0), sequence, u64::from(self.hops)]);
        if let Some((stream, place)) = self.until {
            key.extend([u64::from(stream.0), place.epoch.0, place.number]);
        }
        key.push(u64::MAX);
    }
}
