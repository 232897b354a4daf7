//! Leading a stream: deciding what follows on what was decided, pushing what is durable, answering
//! what is kept. What is decided and does not show yet lies over the records that show.

use super::Region;
use crate::entry::{Asked, Body, Change, ChangeKind, Entry, StreamEntry};
use crate::ids::{Epoch, Key, LogId, Place, RegionId, StreamId};
use crate::message::{Answer, Asker, Message};
use crate::record::Record;
use crate::sessions::Outcome;
use crate::stream::Accepted;
use crate::tablet::branch::BranchId;
use crate::tablet::span::Half;
use crate::tablet::{Mode, Showed, Tablet};
use holdfast_base::limits::ENTRY_BYTES_MAX;
use holdfast_env::planted;
use holdfast_env::trial::Knob;
use holdfast_wire::table::{GROUP_BYTES_MAX, GROUP_WRITE_BYTES, KEY_BYTES_MAX, VALUE_BYTES_MAX};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// Entries of one message.
pub(super) static BATCH: Knob = Knob::new("table.batch", 256, &[1, 2, 3]);
/// Bytes of the entries of one message, if it is not a single one: they are one entry of the other
/// region's log.
pub(super) static BATCH_BYTES: Knob = Knob::new("table.batch-bytes", 512 << 10, &[1, 100, 300]);
/// Bytes of one stream that are on their way to one region, beside [`super::Settings::window`].
static WINDOW_BYTES: Knob = Knob::new("table.window-bytes", 16 << 20, &[1, 200, 1000]);

/// Tombstones of a stream that are looked through in a tick.
static FORGET: Knob = Knob::new("table.forget", 4096, &[1, 2, 3]);

/// What an entry of a log has around the entries of a stream: its envelope; version, two tags, stream, epoch,
/// place and count. And around the key and the value of one of them.
pub(super) const FOLLOWED_BYTES: usize = 40 + 3 + 1 + 8 + 16 + 4;
const NEXT_BYTES: usize = 4 + 8 + 8 + 1 + 1 + 1 + 4;
const CHANGE_BYTES: usize = 16 + 8 + 25 + 1 + NEXT_BYTES;
const BRANCH_BYTES: usize = 16 + 8 + 1 + 1 + 4 + 1 + 16 + 8 + 8 + 1 + 4;
const _: () = {
    let record = KEY_BYTES_MAX + VALUE_BYTES_MAX;
    assert!(FOLLOWED_BYTES + CHANGE_BYTES + record <= ENTRY_BYTES_MAX);
    assert!(FOLLOWED_BYTES + BRANCH_BYTES + record <= ENTRY_BYTES_MAX);
    assert!(
        FOLLOWED_BYTES + BRANCH_BYTES + CHANGE_BYTES + KEY_BYTES_MAX + record <= ENTRY_BYTES_MAX
    );
    assert!(FOLLOWED_BYTES + BATCH_BYTES.usual() as usize <= ENTRY_BYTES_MAX);
    assert!(NEXT_BYTES <= GROUP_WRITE_BYTES);
    assert!(FOLLOWED_BYTES + CHANGE_BYTES + GROUP_BYTES_MAX <= ENTRY_BYTES_MAX);
};

/// A key as it will be once everything decided shows.
#[derive(Clone, Debug)]
pub(super) struct Coming {
    pub place: Place,
    pub version: u64,
    /// None where the key is forgotten.
    pub record: Option<Record>,
    /// It follows on what shows: nothing is missing that another stream has yet to bring.
    pub grounded: bool,
}

/// How far another region follows.
#[derive(Clone, Copy, Debug, Default)]
struct Peer {
    log: LogId,
    /// What it has said under this epoch.
    matched: Option<u64>,
    /// The next entry to push; what lies between this and `has` is on its way.
    next: u64,
    /// Up to here it has said that it has the stream, or nothing was sent.
    has: u64,
    /// Where it has said that it is behind, since the last tick: of a window of pushes that do not
    /// follow each one says so, and the first one is answered.
    behind: Option<u64>,
    quiet_ticks: u32,
}

impl Peer {
    /// Nothing is on its way: `next` is what it is sent next.
    fn begin_at(&mut self, next: u64) {
        (self.next, self.has) = (next, next - 1);
    }
}

/// One stream that this region leads.
#[derive(Clone, Debug)]
pub(super) struct Lead {
    pub epoch: Epoch,
    /// The first number of the epoch.
    opened: u64,
    /// The last entry that was decided: it may be on its way into the topic.
    last: Place,
    coming: BTreeMap<Key, Coming>,
    asked: BTreeMap<(u64, u64), u64>,
    floor: u64,
    peers: BTreeMap<RegionId, Peer>,
    /// Who waits for which entry.
    answers: BTreeMap<u64, Vec<Asker>>,
    /// Reads that wait for the next mark: the highest ticket of each region.
    marks: BTreeMap<RegionId, u64>,
    /// A mark that is on its way into the topic.
    marking: Option<u64>,
    /// Reads that wait for the next check, and those that wait for the one on its way.
    checks: Vec<(Asker, Key)>,
    checking: Vec<(Asker, Key)>,
    /// Branches that were said and do not show yet.
    says: BTreeSet<BranchId>,
    /// And those that somebody has seen to.
    resolves: BTreeSet<BranchId>,
    /// Tombstones up to this one were looked through, of those that may be forgotten; none: from the first one on.
    looked_through: Option<Key>,
    /// A half of the tablet is leaving by what does not show yet.
    leaving: Option<Half>,
}

impl Lead {
    /// Whether a branch was said that does not show yet.
    pub(super) fn says(&self, branch: &BranchId) -> bool {
        self.says.contains(branch)
    }

    /// Whether somebody has seen to a branch by what does not show yet.
    pub(super) fn resolves(&self, branch: &BranchId) -> bool {
        self.resolves.contains(branch)
    }

    /// See the field.
    pub(super) fn leaving(&self) -> Option<Half> {
        self.leaving
    }

    fn of(tablet: &Tablet, id: StreamId, epoch: Epoch, peers: Vec<RegionId>) -> Lead {
        let stream = tablet.stream(id);
        let last = stream.tail();
        let next = last.number.max(1);
        let peer = Peer { next, has: next - 1, ..Peer::default() };
        let mut lead = Lead {
            epoch,
            opened: stream.first_of(epoch),
            last,
            coming: BTreeMap::new(),
            asked: BTreeMap::new(),
            floor: 0,
            peers: peers.into_iter().map(|region| (region, peer)).collect(),
            answers: BTreeMap::new(),
            marks: BTreeMap::new(),
            marking: None,
            checks: Vec::new(),
            checking: Vec::new(),
            says: BTreeSet::new(),
            resolves: BTreeSet::new(),
            looked_through: None,
            leaving: None,
        };
        for entry in stream.behind(tablet.shown(id).place.number, usize::MAX) {
            lead.lay_over(tablet, id, entry);
        }
        lead
    }

    fn lay_over(&mut self, tablet: &Tablet, id: StreamId, entry: &StreamEntry) {
        let number = entry.place.number;
        if let Some(asked) = entry.asked {
            self.asked.insert((asked.session, asked.sequence), number);
        }
        match &entry.body {
            Body::Branch(branch) => drop(self.says.insert(branch.id.clone())),
            Body::Resolves(of) => drop(self.resolves.insert(of.id.clone())),
            Body::Split(half) => self.leaving = Some(*half),
            Body::HandedOver { .. } => self.leaving = None,
            _ => {}
        }
        for change in entry.body.changes() {
            self.lay_change_over(tablet, id, entry.place, change);
        }
    }

    fn lay_change_over(&mut self, tablet: &Tablet, id: StreamId, place: Place, change: &Change) {
        let coming = self.coming.get(&change.key);
        let before = match coming {
            Some(coming) => coming.record.as_ref(),
            None => tablet.record(&change.key),
        };
        // After a start nothing may show yet: what this stream says of a record begins where another
        // one left it.
        let follows = before.map_or(0, |record| record.version) == change.after;
        let grounded = match coming {
            Some(coming) => {
                coming.grounded && (follows || planted!("table.start-decides-ungrounded"))
            }
            None => follows,
        };
        let record = Record::after(before, change, id, place);
        if record.is_none() {
            self.floor = self.floor.max(change.version);
        }
        let coming = Coming { place, version: change.version, record, grounded };
        self.coming.insert(change.key.clone(), coming);
    }
}

/// A key's state as this region would decide on it.
#[derive(Debug)]
pub(super) struct State {
    pub record: Option<Record>,
    /// Where its last version waits to show, and whether it follows on what shows.
    pub coming: Option<(StreamId, Place, bool)>,
}

impl Region {
    /// The streams that the topic says are this region's.
    pub(super) fn lead_what_is_opened(&mut self) {
        let opened: Vec<(StreamId, Epoch)> =
            self.tablet.streams().filter_map(|s| Some((s.id(), s.leading()?))).collect();
        for (stream, epoch) in opened {
            self.lead(stream, epoch);
        }
    }

    fn lead(&mut self, stream: StreamId, epoch: Epoch) {
        let peers = self.heard.keys().copied().collect();
        self.claims.remove(&stream);
        self.leads.insert(stream, Lead::of(&self.tablet, stream, epoch, peers));
    }

    /// What waited here is asked again by those who asked, or goes without an answer.
    pub(super) fn stop_leading(&mut self, stream: StreamId) {
        let Some(lead) = self.leads.remove(&stream) else { return };
        let waiting = lead.answers.into_values().flatten();
        let reads = lead.checks.into_iter().chain(lead.checking).map(|(asker, _)| asker);
        for asker in waiting.chain(reads).collect::<Vec<_>>() {
            self.answer(asker, Answer::Retry("another region leads"));
        }
        self.split_came_to(|| Answer::Retry("another region leads"));
    }

    pub(super) fn state(&self, key: &[u8]) -> State {
        let shown = self.tablet.record(key);
        let mut state = State { record: shown.cloned(), coming: None };
        let mut version = shown.map_or(0, |record| record.version);
        for (id, lead) in &self.leads {
            if let Some(coming) = lead.coming.get(key).filter(|c| c.version > version) {
                version = coming.version;
                let record = coming.record.clone();
                state = State { record, coming: Some((*id, coming.place, coming.grounded)) };
            }
        }
        state
    }

    /// Where a repeated request waits for its first answer already.
    pub(super) fn joins(&mut self, asker: Asker, asked: Asked) -> bool {
        for lead in self.leads.values_mut() {
            if let Some(number) = lead.asked.get(&(asked.session, asked.sequence)) {
                lead.answers.entry(*number).or_default().push(asker);
                return true;
            }
        }
        false
    }

    /// Decides what comes next in a stream that is led here, and appends it there.
    pub(super) fn decide(
        &mut self,
        id: StreamId,
        body: Body,
        asked: Option<Asked>,
        asker: Option<Asker>,
    ) -> Place {
        let lead = self.leads.get_mut(&id).expect("who decides leads");
        let place = Place::new(lead.epoch, lead.last.number + 1);
        let entry = StreamEntry { place, before: lead.last.epoch, asked, body };
        lead.last = place;
        lead.lay_over(&self.tablet, id, &entry);
        if let Some(asker) = asker {
            lead.answers.entry(place.number).or_default().push(asker);
        }
        self.append(&Entry::Decided { stream: id, entry });
        place
    }

    /// Inserts begin above this.
    pub(super) fn floor(&self) -> u64 {
        if planted!("table.insert-below-forgotten") {
            return 0;
        }
        let coming = self.leads.values().map(|lead| lead.floor).max().unwrap_or(0);
        coming.max(self.tablet.floor())
    }

    /// A decision of this region is in the topic, or was fenced.
    pub(super) fn decided(&mut self, id: StreamId, place: Place, opens: bool, accepted: Accepted) {
        if accepted != Accepted::Yes {
            if self.leads.get(&id).is_some_and(|lead| lead.epoch == place.epoch) {
                self.stop_leading(id);
            }
            return;
        }
        if opens {
            self.lead(id, place.epoch);
        }
        let Some(lead) = self.leads.get_mut(&id) else { return };
        if lead.marking == Some(place.number) {
            lead.marking = None;
        }
        self.mark(id);
        self.push_to_all(id);
        if self.mode() == Mode::Timeline {
            self.answer_through(id, place.number - 1, place.number);
        }
    }

    /// Answers what waited for these entries of a stream, here and as the asker's copy.
    pub(super) fn answer_through(&mut self, id: StreamId, behind: u64, through: u64) {
        let count = through.saturating_sub(behind) as usize;
        let entries = self.tablet.stream(id).behind(behind, count).to_vec();
        for entry in entries {
            let Some(outcome) = Outcome::of(&entry.body) else { continue };
            let answer = Answer::Done { outcome, stream: id, place: entry.place };
            let lead = self.leads.get_mut(&id);
            let askers = lead.and_then(|lead| lead.answers.remove(&entry.place.number));
            for asker in askers.into_iter().flatten() {
                self.answer(asker, answer.clone());
            }
            if let Some(asked) = entry.asked {
                self.own_copy(asked, answer);
            }
        }
    }

    /// More of a strong stream is kept than before.
    pub(super) fn is_kept(&mut self, id: StreamId, before: u64) {
        let through = self.tablet.stream(id).kept();
        self.answer_through(id, before, through);
    }

    /// Something shows: what lay over it goes.
    pub(super) fn lead_has_shown(&mut self, showed: &Showed) {
        let Some(lead) = self.leads.get_mut(&showed.stream) else { return };
        let number = showed.entry.place.number;
        match &showed.entry.body {
            Body::Branch(branch) => drop(lead.says.remove(&branch.id)),
            Body::Resolves(of) => drop(lead.resolves.remove(&of.id)),
            _ => {}
        }
        for change in showed.entry.body.changes() {
            if lead.coming.get(&change.key).is_some_and(|c| c.place.number == number) {
                lead.coming.remove(&change.key);
            }
        }
        if let Some(asked) = showed.entry.asked {
            lead.asked.remove(&(asked.session, asked.sequence));
        }
    }

    /// Of a stream that is led here everything shows up to there.
    pub(super) fn image_has_shown(&mut self, id: StreamId, number: u64) {
        if let Some(lead) = self.leads.get_mut(&id) {
            lead.coming.retain(|_, coming| coming.place.number > number);
            lead.asked.retain(|_, at| *at > number);
        }
    }

    /// A strong read waits for a mark that is appended from here on: one serves all that wait.
    pub(super) fn mark_for(&mut self, id: StreamId, region: RegionId, ticket: u64) {
        let Some(lead) = self.leads.get_mut(&id) else { return };
        let highest = lead.marks.entry(region).or_default();
        *highest = ticket.max(*highest);
        self.mark(id);
    }

    fn mark(&mut self, id: StreamId) {
        let Some(lead) = self.leads.get_mut(&id) else { return };
        if lead.marking.is_some() || lead.marks.is_empty() {
            return;
        }
        let tickets = std::mem::take(&mut lead.marks).into_iter().collect();
        lead.marking = Some(lead.last.number + 1);
        self.decide(id, Body::Mark(tickets), None, None);
    }

    /// A read of the newest waits for a check that is appended from here on.
    pub(super) fn check_for(&mut self, id: StreamId, asker: Asker, key: Key) {
        let Some(lead) = self.leads.get_mut(&id) else { return };
        lead.checks.push((asker, key));
        self.check(id);
    }

    fn check(&mut self, id: StreamId) {
        let Some(lead) = self.leads.get_mut(&id) else { return };
        if lead.checking.is_empty() && !lead.checks.is_empty() {
            lead.checking = std::mem::take(&mut lead.checks);
            let epoch = lead.epoch;
            self.append(&Entry::Checked { stream: id, epoch });
        }
    }

    pub(super) fn checked(&mut self, id: StreamId, epoch: Epoch, leads: bool) {
        let Some(lead) = self.leads.get_mut(&id).filter(|lead| lead.epoch == epoch) else { return };
        for (asker, key) in std::mem::take(&mut lead.checking) {
            match leads {
                true => self.read_checked(id, asker, key),
                false => self.answer(asker, Answer::Retry("another region leads")),
            }
        }
        self.check(id);
    }

    fn push_to_all(&mut self, id: StreamId) {
        let peers: Vec<RegionId> = self.heard.keys().copied().collect();
        for to in peers {
            self.push(id, to);
        }
    }

    fn push(&mut self, id: StreamId, to: RegionId) {
        let window = self.settings.window as u64;
        let Some(lead) = self.leads.get_mut(&id) else { return };
        let Some(peer) = lead.peers.get_mut(&to) else { return };
        let stream = self.tablet.stream(id);
        let under = lead.epoch;
        let gone = stream.forgotten_to().number;
        // What is not in memory it has, or says that it has not: it is asked by a push of nothing.
        let mut asks = peer.next <= gone;
        if asks {
            peer.begin_at(gone + 1);
        }
        let mut messages = Vec::new();
        while asks || peer.next <= stream.tail().number {
            let number = peer.next - 1;
            let entries = window.saturating_sub(number - peer.has);
            let bytes = WINDOW_BYTES.get().saturating_sub(stream.bytes_between(peer.has, number));
            if !asks && (entries == 0 || bytes == 0) {
                WINDOW_BYTES.cross();
                break;
            }
            let count = entries.min(BATCH.get()) as usize;
            let Some(epoch) = stream.epoch_at(number) else { break };
            let entries = stream.behind_within(number, count, bytes.min(BATCH_BYTES.get()));
            let entries = entries.to_vec();
            peer.next += entries.len() as u64;
            if count == BATCH.size() {
                BATCH.cross();
            }
            let before = Place::new(epoch, number);
            let kept = stream.kept();
            messages.push(Message::Push { stream: id, under, before, entries, kept });
            asks = false;
        }
        for message in messages {
            self.send(to, message);
        }
    }

    /// Another region says how far it has a stream: if this one leads it, it may need more.
    pub(super) fn peer_is_at(&mut self, from: RegionId, log: LogId, id: StreamId, matched: Place) {
        let Some(lead) = self.leads.get_mut(&id) else { return };
        let Some(peer) = lead.peers.get_mut(&from) else { return };
        if log > peer.log && !planted!("table.lost-log-still-matches") {
            // What another log of that region has had, this one may not have.
            (peer.log, peer.matched, peer.behind) = (log, None, None);
            peer.next = peer.next.min(lead.last.number.max(1));
            peer.has = peer.has.min(peer.next - 1);
        }
        if log < peer.log {
            return;
        }
        // Nobody has more of it than was pushed.
        if matched.epoch != lead.epoch || matched.number > lead.last.number {
            return;
        }
        if peer.matched.is_none_or(|known| known < matched.number) {
            peer.matched = Some(matched.number);
            peer.quiet_ticks = 0;
            peer.next = peer.next.max(matched.number + 1);
            peer.has = peer.has.max(matched.number);
        }
        self.push(id, from);
    }

    /// What was pushed did not follow on what another region holds: it gets what is behind the last
    /// place in common.
    pub(super) fn is_behind(&mut self, from: RegionId, id: StreamId, under: Epoch, ends: &[Place]) {
        let stream = self.tablet.stream(id);
        let (common, up_to) = (stream.common(ends).number, stream.forgotten_to());
        let Some(lead) = self.leads.get_mut(&id) else { return };
        let Some(peer) = lead.peers.get_mut(&from) else { return };
        if lead.epoch != under || peer.behind == Some(common) {
            return;
        }
        peer.behind = Some(common);
        peer.quiet_ticks = 0;
        if common < up_to.number {
            self.send(from, Message::Forgotten { stream: id, up_to });
            return;
        }
        peer.begin_at(common + 1);
        self.push(id, from);
    }

    pub(super) fn tick_leads(&mut self) {
        let ids: Vec<StreamId> = self.leads.keys().copied().collect();
        for id in ids {
            self.push_again(id);
            if self.mode() == Mode::Strong {
                self.admit(id);
            }
            self.forget(id);
        }
    }

    fn push_again(&mut self, id: StreamId) {
        let tail = self.tablet.stream(id).tail().number;
        let resend = self.settings.resend_ticks;
        let Some(lead) = self.leads.get_mut(&id) else { return };
        let mut again = Vec::new();
        for (region, peer) in &mut lead.peers {
            peer.behind = None;
            if peer.matched.is_some_and(|matched| matched >= tail) {
                continue;
            }
            peer.quiet_ticks += 1;
            if peer.quiet_ticks >= resend {
                peer.quiet_ticks = 0;
                peer.begin_at(peer.matched.map_or(tail.max(1), |matched| matched + 1));
                again.push(*region);
            }
        }
        for region in again {
            self.push(id, region);
        }
    }

    /// A region whose log is another one than is counted: it is admitted, and counts once it holds
    /// everything up to there. One change at a time, each kept before the next.
    fn admit(&mut self, id: StreamId) {
        let Some(lead) = self.leads.get(&id) else { return };
        let stream = self.tablet.stream(id);
        if stream.kept() < lead.opened.max(stream.members_since()) || lead.last != stream.tail() {
            return;
        }
        let (me, log, epoch) = (self.me, self.log, lead.epoch);
        for member in stream.members().to_vec() {
            let region = member.region;
            let heard = match region == me {
                true => log,
                false => self.heard.get(&region).map_or(member.log, |heard| heard.log),
            };
            if heard > member.log {
                self.decide(id, Body::Admit { region, log: heard }, None, None);
                return;
            }
            let ack = match region == me {
                true => Some((log, self.tablet.stream(id).matched())),
                false => self.acks.get(&(id, region)).map(|ack| (ack.log, ack.matched)),
            };
            let since = self.tablet.stream(id).members_since();
            let holds = ack.is_some_and(|(log, matched)| {
                log == member.log && matched.epoch == epoch && matched.number >= since
            });
            if !member.counts && holds {
                holdfast_env::sometimes!("a new log was admitted");
                self.decide(id, Body::Count { region, log: member.log }, None, None);
                return;
            }
        }
    }

    /// Tombstones at home in the stream that all regions show become the tablet's home's keys. Of very many, as there
    /// are once a region was away, some in each tick: neither looking through all of them nor deciding on all at once
    /// may keep others waiting.
    fn forget(&mut self, id: StreamId) {
        let by = |r: &RegionId| self.acks.get(&(id, *r)).map_or(0, |ack| ack.shown);
        let by_all = self.heard.keys().map(by).min().unwrap_or(u64::MAX);
        let Some(lead) = self.leads.get(&id) else { return };
        let behind = lead.looked_through.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let all = self.tablet.tombstones().range::<[u8], _>((behind, Bound::Unbounded));
        let at_once = match planted!("table.forgets-all-at-once") {
            true => usize::MAX,
            false => FORGET.size(),
        };
        let some: Vec<&Key> = all.take(at_once).collect();
        let looked_through = match some.len() == at_once {
            true => some.last().map(|key| (*key).clone()),
            false => None,
        };
        let old = some.into_iter().filter(|key| {
            // The tablet that gets it forgets it.
            if self.is_leaving(key) && !planted!("table.split-forgets-meanwhile") {
                return false;
            }
            let record = self.tablet.record(key);
            let shows = record.is_some_and(|r| r.stream == id && r.place.number <= by_all);
            shows && self.tablet.is_tombstone_of(key, id)
        });
        let old: Vec<Key> = old.cloned().collect();
        if looked_through.is_some() {
            FORGET.cross();
        }
        if let Some(lead) = self.leads.get_mut(&id) {
            lead.looked_through = looked_through;
        }
        for key in old {
            if planted!("table.tombstone-forgotten-alone") {
                self.tablet.forget_alone(&key);
                continue;
            }
            let State { record, coming } = self.state(&key);
            let Some(record) = record.filter(|_| coming.is_none()) else { continue };
            let change = Change {
                key,
                version: record.version + 1,
                after: record.version,
                home: self.tablet.form().home,
                origin: self.me,
                kind: ChangeKind::Forget,
            };
            self.decide(id, Body::Change(change), None, None);
        }
    }
}

#[cfg(test)]
impl Lead {
    /// As if all that it waits for were due, of these regions.
    pub(super) fn hurry(&mut self, resend_ticks: u32, is_due: impl Fn(RegionId) -> bool) {
        for (region, peer) in &mut self.peers {
            let ticks = if is_due(*region) { resend_ticks - 1 } else { 0 };
            (peer.quiet_ticks, peer.behind) = (ticks, None);
        }
        self.answers.clear();
    }

    /// What tells it from another one by what it has decided and does not show.
    pub(super) fn key_of_coming(&self, key: &mut Vec<u64>) {
        key.push(self.floor);
        for (of, coming) in &self.coming {
            key.extend([u64::from(of[0]), coming.version, u64::from(coming.grounded)]);
        }
        key.push(u64::MAX);
    }

    /// What tells it from another one of the same stream as held.
    pub(super) fn key(&self, key: &mut Vec<u64>) {
        key.extend([self.epoch.0, self.last.epoch.0, self.last.number]);
        for (region, peer) in &self.peers {
            let matched = peer.matched.map_or(0, |number| number + 1);
            key.extend([u64::from(region.0), peer.log.0, matched, peer.next, peer.has]);
        }
    }
}
