//! Leading a stream that nobody leads any more: promises of a majority, the furthest tail, the
//! entry that opens the epoch. And giving one up.

use super::lead::{BATCH, BATCH_BYTES};
use super::{Policy, Region};
use crate::entry::{Body, Entry, StreamEntry};
use crate::ids::{Epoch, LogId, Place, RegionId, StreamId};
use crate::message::Message;
use crate::stream::Accepted;
use crate::tablet::Mode;
use holdfast_env::{planted, sometimes};
use std::collections::BTreeMap;

/// Ticks between those in which two regions first ask for the same stream.
const TURN_TICKS: u32 = 4;
/// Round trips by which a region that takes a stream over may fetch what it lacks, while another one leads.
const FETCHES_MAX: u64 = 4;
/// So often the wait is doubled of who has taken a stream from a region that is not lost.
const DOUBLINGS_MAX: u32 = 7;

/// A stream that is being taken over.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    pub epoch: Epoch,
    /// Who has promised, from which log, and the last entry that it holds.
    promises: BTreeMap<RegionId, (LogId, Place)>,
    /// One of the others had promised nobody else since this region led: it was not sealed off.
    told: bool,
    opening: bool,
    ticks: u32,
}

/// Which log has asked for the epoch that was promised last, and what was promised before.
#[derive(Clone, Copy, Debug)]
pub(super) struct PromisedTo {
    epoch: Epoch,
    log: LogId,
    before: Epoch,
}

impl Claim {
    pub(super) fn has_promised(&self, region: RegionId) -> bool {
        self.promises.contains_key(&region)
    }
}

impl Region {
    pub(super) fn tick_claims(&mut self) {
        let ids: Vec<StreamId> = self.tablet.form().streams().collect();
        for stream in ids {
            if let Some(claim) = self.claims.get_mut(&stream) {
                claim.ticks += 1;
                if claim.ticks > 4 * self.settings.resend_ticks.max(5) {
                    self.give_up(stream);
                } else if claim.ticks.is_multiple_of(self.settings.resend_ticks) {
                    self.ask_for_promises(stream);
                    self.gather(stream);
                }
                continue;
            }
            let leader = self.leader(stream);
            if self.heard.get(&leader).is_some_and(|h| h.ticks_ago < self.settings.resend_ticks) {
                self.yielded.remove(&stream);
            }
            let cooling = self.cooling.entry(stream).or_default();
            *cooling = cooling.saturating_sub(1);
            if *cooling == 0 && self.wants(stream) {
                self.claim(stream, self.promised_epoch(stream));
            }
        }
    }

    /// Whether this region should lead a stream that it does not lead.
    fn wants(&self, stream: StreamId) -> bool {
        // What it lacks is on its way as an image.
        if self.leads.contains_key(&stream) || self.taking.is_some() {
            return false;
        }
        let leader = self.leader(stream);
        if leader == self.me {
            // Opened by a log that is gone, or claimed in vain.
            return true;
        }
        if self.mode() == Mode::Timeline && self.lost == Some(leader) {
            return !self.may_be_sealed_off();
        }
        if self.mode() == Mode::Timeline || self.settings.policy == Policy::Wait {
            return stream == StreamId::of(self.me) && self.is_well(leader, stream);
        }
        let regions = self.tablet.form().members.len() as u32;
        // The one behind the lost one is the first.
        let turn = (u32::from(self.me.0) + 2 * regions - u32::from(leader.0) - 1) % regions;
        let patience = self.settings.silence_ticks + TURN_TICKS * turn;
        let silent = self.heard.get(&leader).map_or(0, |heard| heard.ticks_ago);
        let counts = self.tablet.stream(stream).counts(self.me, self.log);
        (silent > patience && counts)
            || (stream == StreamId::of(self.me) && counts && self.is_well(leader, stream))
    }

    /// Whether the region has followed its own stream, which another one leads, for long enough to
    /// take it back without a gap.
    fn is_well(&self, leader: RegionId, id: StreamId) -> bool {
        let stream = self.tablet.stream(id);
        let theirs = self.acks.get(&(id, leader)).map(|ack| ack.matched);
        self.up_ticks > self.settings.return_ticks
            && self.heard.values().all(|heard| heard.ticks_ago < self.settings.resend_ticks)
            && stream.matched().epoch == stream.promised()
            && theirs.is_some_and(|theirs| theirs <= stream.matched())
    }

    /// Claims a stream in the epoch of this region's behind one.
    fn claim(&mut self, stream: StreamId, above: Epoch) {
        let epoch = Epoch::new(above.round() + 1, self.me);
        let claim =
            Claim { epoch, promises: BTreeMap::new(), told: false, opening: false, ticks: 0 };
        self.claims.insert(stream, claim);
        self.append(&Entry::Promised { stream, epoch });
    }

    /// Whether a region would have to fetch so much before it could lead that everybody would wait for it. Of one that
    /// is not heard nobody knows.
    fn is_far_behind(&self, region: RegionId, id: StreamId) -> bool {
        let Some(ack) = self.acks.get(&(id, region)) else { return false };
        let stream = self.tablet.stream(id);
        let (has, tail) = (ack.matched.number, stream.tail().number);
        let far = tail.saturating_sub(has) > FETCHES_MAX * BATCH.get()
            || stream.bytes_between(has, tail) > FETCHES_MAX * BATCH_BYTES.get();
        let heard = self.heard.get(&region);
        let heard = heard.is_some_and(|heard| heard.ticks_ago < self.settings.resend_ticks);
        far && heard && self.mode() == Mode::Strong && !planted!("table.yields-to-whom-lags")
    }

    /// A region that was cut off has claimed what it heard nothing of, in vain, and has promised itself not to take
    /// anything of this leader's epoch any more. It comes back without all that was written meanwhile: to lead it would
    /// have to fetch that first, while nobody leads. So this one goes on, in an epoch behind the one that is claimed, which
    /// the other one follows as it followed before.
    fn reclaim(&mut self, stream: StreamId, above: Epoch) {
        if self.claims.contains_key(&stream) {
            return;
        }
        sometimes!("a leader went on before one that came back without the stream");
        self.stop_leading(stream);
        self.claim(stream, above);
    }

    fn give_up(&mut self, stream: StreamId) {
        self.claims.remove(&stream);
        // Regions come back at different times, so that one of them finds nobody in its way.
        let turn = u32::from(self.me.0) + 1;
        let wait = self.settings.resend_ticks + TURN_TICKS * turn;
        let cooling = self.cooling.entry(stream).or_default();
        *cooling = wait.max(*cooling);
    }

    /// Another region leads what this one has led or claimed. If that is one which is not heard here, it is not
    /// lost: only the way between the two is, and both of them reach a majority. They would take the stream from
    /// each other as fast as promises come, for as long as the way is cut, and nobody could write. So its namesake has
    /// it back soon, and whoever else claims it waits twice as long each time, until it hears who leads.
    fn yield_to_another(&mut self, stream: StreamId) {
        if planted!("table.takes-streams-in-turns") {
            return;
        }
        let wait = match stream == StreamId::of(self.me) {
            true => self.settings.return_ticks,
            false => {
                let times = self.yielded.entry(stream).or_default();
                *times = (*times + 1).min(DOUBLINGS_MAX);
                (self.settings.resend_ticks << *times) + TURN_TICKS * u32::from(self.me.0)
            }
        };
        let cooling = self.cooling.entry(stream).or_default();
        *cooling = wait.max(*cooling);
    }

    fn ask_for_promises(&mut self, stream: StreamId) {
        let Some(claim) = self.claims.get(&stream) else { return };
        if !claim.promises.contains_key(&self.me) {
            return;
        }
        let epoch = claim.epoch;
        let missing: Vec<RegionId> =
            self.heard.keys().filter(|r| !claim.promises.contains_key(r)).copied().collect();
        for to in missing {
            self.send(to, Message::AskPromise { stream, epoch });
        }
    }

    /// Another region wants to lead.
    pub(super) fn promise_asked(
        &mut self,
        from: RegionId,
        log: LogId,
        stream: StreamId,
        epoch: Epoch,
    ) {
        let promised = self.promised_epoch(stream);
        if epoch > promised && self.leads.contains_key(&stream) && self.is_far_behind(from, stream)
        {
            self.reclaim(stream, epoch);
            return;
        }
        // The same epoch again, of a log that is not known to have asked for it before: one that has
        // lost its own promise may ask for what it has opened already.
        let known = self.promised_to.get(&stream).copied();
        let again = known.is_some_and(|known| (known.epoch, known.log) == (epoch, log))
            || planted!("table.epoch-asked-again");
        if epoch < promised || (epoch == promised && !again) {
            self.send(from, Message::Refused { stream, promised });
            return;
        }
        let before = match known {
            Some(known) if known.epoch == epoch => known.before,
            known => known.map_or(promised, |known| known.epoch.max(promised)),
        };
        self.promised_to.insert(stream, PromisedTo { epoch, log, before });
        if epoch == promised {
            let tail = self.tablet.stream(stream).tail();
            self.send(from, Message::Promised { stream, epoch, tail, before });
        } else if planted!("table.promise-not-logged") {
            self.tablet.promise_unlogged(stream, epoch);
            self.promised(stream, epoch, Accepted::Yes);
        } else {
            self.append(&Entry::Promised { stream, epoch });
        }
    }

    /// The entry of a promise was applied: of this region's own claim, or of another one's.
    pub(super) fn promised(&mut self, stream: StreamId, epoch: Epoch, accepted: Accepted) {
        let held = self.tablet.stream(stream);
        let (promised, tail) = (held.promised(), held.tail());
        if promised > epoch {
            self.refused(stream, promised);
            return;
        }
        // A promise that was appended twice is one.
        let mine = self.leads.contains_key(&stream) || self.claims.contains_key(&stream);
        if accepted == Accepted::Yes {
            self.stop_leading(stream);
        }
        if epoch.leader() != self.me {
            if mine && accepted == Accepted::Yes {
                self.yield_to_another(stream);
            }
            if self.claims.get(&stream).is_some_and(|claim| claim.epoch < epoch) {
                sometimes!("two takeovers met");
                self.give_up(stream);
            }
            let known = self.promised_to.get(&stream).filter(|known| known.epoch == epoch);
            let before = known.map_or(epoch, |known| known.before);
            self.send(epoch.leader(), Message::Promised { stream, epoch, tail, before });
            return;
        }
        let log = self.log;
        if let Some(claim) = self.claims.get_mut(&stream).filter(|claim| claim.epoch == epoch) {
            claim.promises.insert(self.me, (log, tail));
            self.ask_for_promises(stream);
            self.gather(stream);
        }
    }

    pub(super) fn has_promised(
        &mut self,
        (from, log): (RegionId, LogId),
        stream: StreamId,
        epoch: Epoch,
        (tail, before): (Place, Epoch),
    ) {
        let led = self.tablet.stream(stream).matched().epoch;
        let Some(claim) = self.claims.get_mut(&stream) else { return };
        if claim.epoch != epoch || !claim.promises.contains_key(&self.me) {
            return;
        }
        claim.promises.insert(from, (log, tail));
        let told_by = self.told_by.entry((stream, from)).or_default();
        if before <= led || *told_by == before {
            *told_by = epoch;
            claim.told = true;
        }
        self.gather(stream);
    }

    /// Goes on with a claim: fetches the furthest tail, and opens the epoch once a majority has
    /// promised. Who counts is what the furthest tail says.
    pub(super) fn gather(&mut self, stream: StreamId) {
        let Some(claim) = self.claims.get(&stream) else { return };
        if claim.opening || !claim.promises.contains_key(&self.me) {
            return;
        }
        let key =
            |(_, (_, place)): &(&RegionId, &(LogId, Place))| match planted!("table.tail-by-number")
            {
                true => Place::new(Epoch::default(), place.number),
                false => *place,
            };
        let Some((furthest, (_, best))) = claim.promises.iter().max_by_key(key) else { return };
        let held = self.tablet.stream(stream);
        let (epoch, furthest) = (claim.epoch, *furthest);
        let enough = match self.mode() {
            Mode::Strong => {
                let counted = |(r, (log, _)): &(&RegionId, &(LogId, Place))| held.counts(**r, *log);
                claim.promises.iter().filter(counted).count() >= held.majority()
            }
            // What one of them alone has followed must not be lost. Of a log that has only failed to append there is no
            // such thing; but whether others have sealed its stream, which all but it have promised, one of them says: by
            // what it had promised before, for it may not hold yet what was opened by that.
            Mode::Timeline => {
                let own = held.is_own(self.me) && !planted!("table.full-disk-waits-for-all");
                let all = self.tablet.form().regions().all(|region| {
                    let lost = self.lost == Some(region);
                    let one = planted!("table.sealed-by-one") && self.lost.is_some();
                    claim.promises.contains_key(&region) || lost || one
                });
                (own && claim.told) || all
            }
        };
        let tail = held.tail();
        let further = match planted!("table.tail-by-number") {
            true => best.number > tail.number,
            false => *best > tail,
        };
        if further && furthest != self.me {
            let ends = held.epochs();
            self.send(furthest, Message::Fetch { stream, epoch, ends });
            return;
        }
        if !enough {
            return;
        }
        let place = Place::new(epoch, tail.number + 1);
        let entry = StreamEntry { place, before: tail.epoch, asked: None, body: Body::Open };
        if let Some(claim) = self.claims.get_mut(&stream) {
            claim.opening = true;
        }
        self.append(&Entry::Decided { stream, entry });
    }

    /// Somebody has promised a later epoch than this region asks or leads under.
    pub(super) fn refused(&mut self, stream: StreamId, promised: Epoch) {
        if self.claims.get(&stream).is_some_and(|claim| claim.epoch <= promised) {
            if promised.leader() != self.me {
                sometimes!("two takeovers met");
                self.yield_to_another(stream);
            }
            self.give_up(stream);
        }
        self.leads_no_more(stream, promised);
    }

    /// A later epoch was promised elsewhere: a region that leads stops by an entry, and so it is the
    /// same for all who fold its topic. So does one that only believes to lead; and one whose log has
    /// lost an epoch that it has opened, for nobody else will claim the stream of who is alive.
    pub(super) fn leads_no_more(&mut self, stream: StreamId, promised: Epoch) {
        let known = self.promised_epoch(stream);
        let far = promised.leader() != self.me && self.is_far_behind(promised.leader(), stream);
        if promised > known && self.leads.contains_key(&stream) && far {
            self.reclaim(stream, promised);
            return;
        }
        if promised > known && (known.leader() == self.me || promised.leader() == self.me) {
            self.append(&Entry::Promised { stream, epoch: promised });
        }
    }
}

#[cfg(test)]
impl Claim {
    /// As if it had waited for an answer as long as it does.
    pub(super) fn hurry(&mut self, resend_ticks: u32) {
        self.ticks = resend_ticks - 1;
    }

    /// What tells it from another one.
    pub(super) fn key(&self, key: &mut Vec<u64>) {
        key.extend([self.epoch.0, u64::from(self.told), u64::from(self.opening)]);
        for (region, (log, tail)) in &self.promises {
            key.extend([u64::from(region.0), log.0, tail.epoch.0, tail.number]);
        }
    }
}

#[cfg(test)]
impl PromisedTo {
    pub(super) fn key(&self, key: &mut Vec<u64>) {
        key.extend([self.epoch.0, self.log.0, self.before.0]);
    }
}
