//! A timeline table's region that is lost: an operator says so, and its streams go on without it from where
//! the furthest of the others has followed. It comes back by an image; what it had beside that it says to
//! all, as branches.

use super::Region;
use super::lead::{BATCH, BATCH_BYTES, Lead};
use crate::entry::{Body, Entry, Refusal, Resolution};
use crate::ids::{Place, RegionId, StreamId};
use crate::message::{Asker, Expect, Message, Op, Request};
use crate::record::Record;
use crate::tablet::Mode;
use crate::tablet::branch::{Branch, BranchId};
use holdfast_base::{Error, Result};
use holdfast_env::planted;

/// How far an operator's word has come that a region is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sealing {
    /// All its streams are led by a region that is there.
    Done,
    /// It is in the topic, and goes on from there. The promises of these are missing; of none, where another region
    /// is to lead and does not yet.
    Waits(Vec<RegionId>),
    /// The region was heard a moment ago, and is not lost before so many ticks more without a word of it. Nothing is
    /// kept of this.
    Heard { ticks: u32 },
}

impl Region {
    /// The streams of a lost region are to go on without it: an operator says so. To be asked again until it is done,
    /// by who wants to know; the topic has it, so a start goes on with it. It holds until something is heard of the
    /// lost one, or another one is called lost: all but one have to promise.
    ///
    /// # Errors
    /// `Invalid` where it is no other region, or the table is strong and needs nobody to say so; `Retry` while this
    /// region starts, or writes it down.
    pub fn seal(&mut self, lost: RegionId) -> Result<Sealing> {
        let Some(heard) = self.heard.get(&lost) else {
            return Err(Error::invalid(format!("{lost} is none of the table's other regions")));
        };
        if self.mode() == Mode::Strong {
            let why = "the table is strong: what is at home in a lost region is led by another one without this";
            return Err(Error::invalid(why));
        }
        if !self.is_ready() {
            return Err(Error::retry("the region starts: ask again"));
        }
        let ticks = (self.settings.silence_ticks + 1).saturating_sub(heard.ticks_ago);
        if ticks > 0 {
            return Ok(Sealing::Heard { ticks });
        }
        if self.may_be_sealed_off() {
            return Err(Error::retry(
                "another region has claimed what this one has led, and what became of that is not known here yet: \
                 say it again, or in another region",
            ));
        }
        if self.tablet.lost() != Some(lost) {
            self.call_lost(lost, true);
            return Err(Error::retry(
                "it is being written down that the region is lost: ask again",
            ));
        }
        self.heed_lost();
        let is_led = |stream: StreamId| {
            let held = self.tablet.stream(stream);
            let leader = held.promised().leader();
            match leader == self.me {
                true => self.leads(stream),
                false => leader != lost && held.matched().epoch == held.promised(),
            }
        };
        match self.tablet.form().streams().all(is_led) {
            true => Ok(Sealing::Done),
            false => Ok(Sealing::Waits(self.waits_for())),
        }
    }

    fn call_lost(&mut self, region: RegionId, is_lost: bool) {
        if !self.calling {
            self.calling = true;
            self.append(&Entry::Lost { region, is_lost });
        }
    }

    /// Another region is heard. In memory it is not lost from here on; until the topic says so, too, a start may take
    /// it for lost again, if it is as silent then as when an operator may say so.
    pub(super) fn is_not_lost(&mut self, region: RegionId) {
        if self.tablet.lost() == Some(region) {
            self.call_lost(region, false);
        }
    }

    /// What the topic says of a lost region holds once nothing is heard of it, as long as for an operator who says so:
    /// behind a start it may have come back meanwhile.
    pub(super) fn heed_lost(&mut self) {
        let silent = |lost: &RegionId| {
            let heard = self.heard.get(lost);
            heard.is_some_and(|heard| heard.ticks_ago > self.settings.silence_ticks)
        };
        let lost = self.tablet.lost().filter(silent);
        if lost.is_some() && !self.may_be_sealed_off() {
            self.lost = lost;
        }
    }

    /// Whether there is a stream that this region has led, and that another one has claimed since: what it has of that
    /// may be cut off. It takes over nothing before it knows, since what it decides would follow on that.
    pub(super) fn may_be_sealed_off(&self) -> bool {
        let may = |stream: StreamId| {
            let held = self.tablet.stream(stream);
            let (led, promised) = (held.matched().epoch.leader(), held.promised().leader());
            held.matched().number > 0 && led == self.me && promised != self.me
        };
        self.tablet.form().streams().any(may) && !planted!("table.seals-while-sealed-off")
    }

    /// Whose promise is missing for the streams that this region claims.
    fn waits_for(&self) -> Vec<RegionId> {
        let missing = |region: &RegionId| {
            let mut claims = self.claims.values();
            self.lost != Some(*region) && claims.any(|claim| !claim.has_promised(*region))
        };
        self.tablet.form().regions().filter(missing).collect()
    }

    /// Another region leads a stream that this one had gone on with alone, and shows: only an image takes
    /// that back.
    pub(super) fn begins_anew(&mut self, stream: StreamId, leader: RegionId) {
        if self.tablet.stream(stream).leading().is_none() {
            self.ask_for_image(leader);
        }
    }

    /// Whether a write follows on what this region has decided in another stream, and not all have that yet. A
    /// timeline table's region that leads a sealed stream beside its own may be sealed off in turn: what its streams
    /// have is pushed in no order, and the others would keep the one without the other, which waits for ever. So it is
    /// where it does not lead the other one any more: who claims that may come to nothing, and then it is sealed without
    /// what only this region has of it.
    pub(super) fn may_be_cut_off(
        &self,
        home: StreamId,
        request: &Request,
        record: Option<&Record>,
    ) -> bool {
        let is_write = request.asked().is_some();
        if self.mode() == Mode::Strong || !is_write || planted!("table.sealed-out-of-order") {
            return false;
        }
        if let Some(id) = request.resolves().filter(|id| id.stream != home) {
            let said = self.says_at(&id).number;
            if said > 0 && self.has_alone(id.stream).is_some_and(|from| said > from) {
                return true;
            }
        }
        let follows = |record: Option<&Record>| self.follows_on_what_it_has_alone(home, record);
        match &request.op {
            Op::Group { writes, .. } => {
                writes.iter().any(|write| follows(self.state(&write.key).record.as_ref()))
            }
            _ => follows(record),
        }
    }

    fn follows_on_what_it_has_alone(&self, home: StreamId, record: Option<&Record>) -> bool {
        match record {
            Some(record) if record.stream == home => false,
            Some(record) => {
                self.has_alone(record.stream).is_some_and(|from| record.place.number > from)
            }
            // It was forgotten there, perhaps.
            None => {
                let mut others = self.tablet.form().streams().filter(|stream| *stream != home);
                others.any(|stream| {
                    let forgets = |from| self.tablet.stream(stream).forgets_behind(from);
                    self.has_alone(stream).is_some_and(forgets)
                })
            }
        }
    }

    /// Of a stream that this region was the last to lead, as far as it knows: behind which number one of the others that
    /// are not lost may have nothing.
    fn has_alone(&self, stream: StreamId) -> Option<u64> {
        let led = self.tablet.stream(stream).matched().epoch;
        let leads = self.leads(stream) || !planted!("table.decides-on-what-it-led");
        if led.round() == 0 || led.leader() != self.me || !leads {
            return None;
        }
        let has = |region: &RegionId| match self.acks.get(&(stream, *region)) {
            Some(ack) if ack.matched.epoch == led => ack.matched.number,
            _ => 0,
        };
        let others = self.heard.keys().filter(|region| self.lost != Some(**region));
        others.map(has).min()
    }

    /// Has what was cut off while this region was away said to all, by whoever leads the stream that it is of.
    pub(super) fn say_branches(&mut self) {
        if !self.up_ticks.is_multiple_of(self.settings.resend_ticks) {
            return;
        }
        let mut bytes = 0;
        let fits = |branch: &&Branch| {
            let first = bytes == 0;
            bytes += branch.encoded_bytes() as u64;
            first || bytes <= BATCH_BYTES.get()
        };
        let unsaid = self.tablet.branches().unsaid().values().take(BATCH.size());
        let batch: Vec<Branch> = unsaid.take_while(fits).cloned().collect();
        for branch in batch {
            let leader = self.leader(branch.id.stream);
            match leader == self.me {
                true => self.say_branch(branch),
                false => {
                    let shown = self.tablet.shown(branch.id.stream).place.number;
                    self.send(leader, Message::Branch { branch, shown });
                }
            }
        }
    }

    /// Another region had a branch to say when it showed so much of the stream that the branch is of. Where that is said
    /// behind this, by another one that had it too, somebody may have seen to it already; and what everybody shows by
    /// now, the other one does.
    pub(super) fn branch_told(&mut self, branch: Branch, shown: u64) {
        let stream = self.tablet.stream(branch.id.stream);
        let was_said =
            shown < stream.forgotten_to().number || stream.says_at(&branch.id).number > shown;
        if !was_said || planted!("table.resolved-is-said-again") {
            self.say_branch(branch);
        }
    }

    /// Says a branch, where its stream is led.
    fn say_branch(&mut self, branch: Branch) {
        let stream = branch.id.stream;
        let says = |lead: &Lead| lead.says(&branch.id);
        let known = self.tablet.branches().said().contains_key(&branch.id);
        if !known && self.leads.get(&stream).is_some_and(|lead| !says(lead)) {
            self.decide(stream, Body::Branch(branch), None, None);
        }
    }

    /// Where a branch was said, as far as that is in memory here: what is not, every region shows.
    pub(super) fn says_at(&self, id: &BranchId) -> Place {
        let mut streams = self.tablet.streams();
        let stream = streams.find(|stream| stream.id() == id.stream);
        stream.map_or(Place::default(), |stream| stream.says_at(id))
    }

    /// Somebody has seen to a branch: whoever leads where its key is at home says so, with the record's next version if
    /// the branch is kept. So of two who see to it, one does, and no write comes between.
    pub(super) fn resolve(&mut self, home: StreamId, asker: Asker, request: Request) {
        let Some(id) = request.resolves() else { return };
        let Op::Resolve { asked, said, keep, .. } = request.op.clone() else { return };
        if !self.tablet.passed(id.stream, said) {
            return self.park(asker, request, 1, Some((id.stream, said)));
        }
        let is_resolved = self.leads.values().any(|lead| lead.resolves(&id))
            && !planted!("table.resolved-by-two");
        let branch = self.tablet.branches().said().get(&id).filter(|_| !is_resolved);
        let Some(value) = branch.map(|branch| branch.value.clone()) else {
            return self.refuse(home, (asked, asker), Refusal::NoBranch);
        };
        let is_deleted = value.is_none();
        let next = keep.map(|expect| {
            // What is deleted on both sides is so already.
            match self.next_version(id.key.clone(), value, expect, asker.region) {
                Err(Refusal::Absent) if is_deleted && expect == Expect::Absent => Ok(None),
                next => next.map(Some),
            }
        });
        match next.unwrap_or(Ok(None)) {
            Ok(change) => {
                let resolution = Resolution { said: self.says_at(&id), id, change };
                self.decide(home, Body::Resolves(resolution), Some(asked), Some(asker));
            }
            Err(refusal) => self.refuse(home, (asked, asker), refusal),
        }
    }
}
