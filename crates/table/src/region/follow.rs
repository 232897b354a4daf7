//! What other regions say: entries of their streams, how far they are, what they ask for.

use super::{Ack, Region};
use crate::entry::{Entry, StreamEntry};
use crate::ids::{Epoch, LogId, Place, RegionId, StreamId};
use crate::message::{Message, Position};
use crate::stream::Accepted;
use crate::tablet::Mode;

impl Region {
    pub(super) fn take(&mut self, from: RegionId, log: LogId, message: Message) {
        match message {
            Message::Forward { asker, request, hops, after } => {
                self.dispatch(asker, request, hops, after);
            }
            Message::Answered { ticket, answer } => {
                if self.fits(ticket, &answer) {
                    self.answer_ticket(ticket, answer);
                }
            }
            Message::NotShown { ticket } => self.read_is_not_shown(ticket),
            Message::MarkAsked { stream, ticket } => self.mark_for(stream, from, ticket),
            Message::Push { stream, under, before, entries, kept } => {
                let told = self.told_kept.entry(stream).or_default();
                *told = Place::new(under, kept).max(*told);
                let through = entries.last().map_or(before.number, |entry| entry.place.number);
                self.note_leader(from, log, stream, Place::new(under, through));
                self.pushed(stream, under, before, entries);
            }
            Message::Behind { stream, under, ends } => self.is_behind(from, stream, under, &ends),
            Message::Positions(positions) => {
                for position in positions {
                    self.note(from, log, position);
                }
            }
            Message::AskPromise { stream, epoch } => self.promise_asked(from, log, stream, epoch),
            Message::Promised { stream, epoch, tail, before } => {
                self.has_promised((from, log), stream, epoch, (tail, before));
            }
            Message::Refused { stream, promised } => self.refused(stream, promised),
            Message::Fetch { stream, epoch, ends } => self.fetch_asked(from, stream, epoch, &ends),
            Message::Forgotten { stream, up_to } => self.is_forgotten(from, stream, up_to),
            Message::ImageAsked { image, part } => self.image_asked(from, log, image, part),
            Message::ImagePart(part) => self.image_part(from, part),
            Message::Branch { branch, shown } => self.branch_told(branch, shown),
            Message::Fetched { stream, epoch, before, entries } => {
                if self.tablet.cuts_shown(stream, &entries) {
                    self.begins_anew(stream, from);
                } else if self.claims.get(&stream).is_some_and(|claim| claim.epoch == epoch) {
                    self.append(&Entry::Followed { stream, under: epoch, before, entries });
                }
            }
        }
    }

    /// Who pushes what is durable has it.
    fn note_leader(&mut self, from: RegionId, log: LogId, stream: StreamId, matched: Place) {
        let shown = self.acks.get(&(stream, from)).map_or(0, |ack| ack.shown);
        self.acknowledge(from, stream, Ack { log, matched, shown });
    }

    fn acknowledge(&mut self, from: RegionId, stream: StreamId, ack: Ack) {
        let known = self.acks.entry((stream, from)).or_insert(ack);
        if ack.log > known.log {
            *known = ack;
        } else if ack.log == known.log && ack.matched.epoch > known.matched.epoch {
            // It may show less than under the epoch before, of which the end was cut off.
            (known.matched, known.shown) = (ack.matched, ack.shown);
        } else if ack.log == known.log {
            known.matched = known.matched.max(ack.matched);
            known.shown = known.shown.max(ack.shown);
        }
    }

    fn note(&mut self, from: RegionId, log: LogId, position: Position) {
        let Position { stream, matched, shown, promised } = position;
        self.acknowledge(from, stream, Ack { log, matched, shown });
        self.leads_no_more(stream, promised);
        self.peer_is_at(from, log, stream, matched);
    }

    fn pushed(&mut self, stream: StreamId, under: Epoch, before: Place, entries: Vec<StreamEntry>) {
        let held = self.tablet.stream(stream);
        let promised = held.promised();
        if under < promised && !holdfast_env::planted!("table.old-epoch-accepted") {
            self.send(under.leader(), Message::Refused { stream, promised });
            return;
        }
        let on_the_way = self.on_the_way.get(&stream).map(|(place, _)| *place);
        if !held.holds(before) && on_the_way != Some(before) {
            let ends = held.epochs();
            self.send(under.leader(), Message::Behind { stream, under, ends });
            return;
        }
        if self.tablet.cuts_shown(stream, &entries) {
            self.begins_anew(stream, under.leader());
            return;
        }
        let last = entries.last().map_or(before, |entry| entry.place);
        let (place, appends) = self.on_the_way.entry(stream).or_default();
        (*place, *appends) = (last, *appends + 1);
        self.append(&Entry::Followed { stream, under, before, entries });
    }

    pub(super) fn followed(&mut self, stream: StreamId, under: Epoch, accepted: Accepted) {
        if let Some((_, appends)) = self.on_the_way.get_mut(&stream) {
            *appends = appends.saturating_sub(1);
            if *appends == 0 {
                self.on_the_way.remove(&stream);
            }
        }
        let leader = under.leader();
        if leader == self.me {
            // Fetched, to take the stream over.
            self.gather(stream);
            return;
        }
        match accepted {
            Accepted::Yes => {
                if self.leads.get(&stream).is_some_and(|lead| lead.epoch < under) {
                    self.stop_leading(stream);
                }
                let positions = Message::Positions(vec![self.position(stream)]);
                match self.mode() {
                    // Whoever asked for an entry counts who holds it.
                    Mode::Strong => self.broadcast(&positions),
                    Mode::Timeline => self.send(leader, positions),
                }
            }
            Accepted::Fenced => {
                let promised = self.promised_epoch(stream);
                self.send(leader, Message::Refused { stream, promised });
            }
            Accepted::Gap => {
                let ends = self.tablet.stream(stream).epochs();
                self.send(leader, Message::Behind { stream, under, ends });
            }
        }
    }

    fn fetch_asked(&mut self, from: RegionId, stream: StreamId, epoch: Epoch, ends: &[Place]) {
        let held = self.tablet.stream(stream);
        let (before, up_to) = (held.common(ends), held.forgotten_to());
        if before.number < up_to.number {
            self.send(from, Message::Forgotten { stream, up_to });
            return;
        }
        let (count, bytes) = (super::lead::BATCH.size(), super::lead::BATCH_BYTES.get());
        let entries = held.behind_within(before.number, count, bytes).to_vec();
        self.send(from, Message::Fetched { stream, epoch, before, entries });
    }
}
