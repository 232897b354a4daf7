//! Whether a message can have come from a region that is right. It names streams, regions and places
//! of another process, perhaps of another build: all of it is held against the tablet's form and the
//! limits before anything is done with it.

use super::Region;
use super::lead::FOLLOWED_BYTES;
use crate::entry::{Body, Change, ChangeKind, Resolution, StreamEntry};
use crate::ids::{Epoch, Place, RegionId, StreamId};
use crate::message::{Answer, GroupWrite, Message, Op, Position, Request};
use crate::record::{MOVES_REMEMBERED, Record};
use crate::sessions::{Outcome, RESULTS_MAX, SessionImage};
use crate::stream::{StreamImage, follows};
use crate::tablet::branch::{Branch, BranchId};
use crate::tablet::image::{Item, Part};
use holdfast_base::codec::Encode;
use holdfast_base::limits::ENTRY_BYTES_MAX;
use holdfast_wire::table::{GROUP_WRITES_MAX, KEY_BYTES_MAX, VALUE_BYTES_MAX, group_bytes};
use std::collections::BTreeSet;

/// Rounds, numbers and versions are far below this, and stay so: whoever names a higher one has not
/// counted up to it, and whatever is added to a lower one does not overflow.
const COUNTED_MAX: u64 = 1 << 48;

impl Region {
    pub(super) fn is_sound(&self, from: RegionId, message: &Message) -> bool {
        match message {
            Message::Forward { asker, request, after, .. } => {
                self.is_region(asker.region)
                    && is_request(request)
                    && after.is_none_or(|(stream, place)| {
                        self.is_stream(stream) && self.is_place(place)
                    })
            }
            Message::Answered { answer, .. } => match answer {
                Answer::Done { stream, place, .. } => {
                    self.is_stream(*stream) && self.is_place(*place)
                }
                Answer::Value { .. } | Answer::Branched | Answer::Retry(_) => true,
                Answer::Elsewhere(_) | Answer::Split => false,
            },
            Message::NotShown { .. } | Message::ImageAsked { .. } => true,
            Message::MarkAsked { stream, .. } => self.is_stream(*stream),
            Message::Push { stream, under, before, entries, kept } => {
                self.is_stream(*stream)
                    && under.leader() == from
                    && *kept < COUNTED_MAX
                    && self.are_entries(*under, *before, entries)
            }
            Message::Behind { stream, under, .. } => {
                self.is_stream(*stream) && under.leader() == self.me
            }
            Message::Positions(positions) => {
                positions.len() <= self.tablet.form().members.len()
                    && positions.iter().all(|position| self.is_position(position))
            }
            Message::AskPromise { stream, epoch } | Message::Fetch { stream, epoch, .. } => {
                self.is_stream(*stream) && self.is_epoch(*epoch) && epoch.leader() == from
            }
            Message::Promised { stream, epoch, tail, before } => {
                self.is_stream(*stream)
                    && self.is_epoch(*before)
                    && epoch.leader() == self.me
                    && self.is_place(*tail)
            }
            Message::Refused { stream, promised } => {
                self.is_stream(*stream) && self.is_epoch(*promised)
            }
            Message::Fetched { stream, epoch, before, entries } => {
                self.is_stream(*stream)
                    && epoch.leader() == self.me
                    && self.are_entries(*epoch, *before, entries)
            }
            Message::Forgotten { stream, up_to } => {
                self.is_stream(*stream) && self.is_place(*up_to)
            }
            Message::Branch { branch, shown } => *shown < COUNTED_MAX && self.is_branch(branch),
            Message::ImagePart(part) => part.image.region == from && self.is_part(part),
        }
    }

    fn is_region(&self, region: RegionId) -> bool {
        region == self.me || self.heard.contains_key(&region)
    }

    fn is_stream(&self, stream: StreamId) -> bool {
        self.is_region(stream.namesake())
    }

    fn is_epoch(&self, epoch: Epoch) -> bool {
        self.is_region(epoch.leader()) && (1..COUNTED_MAX).contains(&epoch.round())
    }

    fn is_place(&self, place: Place) -> bool {
        let first = place == Place::default();
        first || (self.is_epoch(place.epoch) && place.number < COUNTED_MAX)
    }

    fn is_position(&self, position: &Position) -> bool {
        self.is_stream(position.stream)
            && self.is_place(position.matched)
            && self.is_epoch(position.promised)
    }

    /// Entries that follow on `before`, and are together one entry of a log.
    fn are_entries(&self, under: Epoch, before: Place, entries: &[StreamEntry]) -> bool {
        let bytes: u64 = entries.iter().map(StreamEntry::encoded_bytes).sum();
        self.is_epoch(under)
            && self.is_place(before)
            && follows(before, entries, under)
            && bytes + FOLLOWED_BYTES as u64 <= ENTRY_BYTES_MAX as u64
            && entries.iter().all(|entry| self.is_entry(entry))
    }

    fn is_entry(&self, entry: &StreamEntry) -> bool {
        self.is_epoch(entry.place.epoch)
            && entry.place.number < COUNTED_MAX
            && match &entry.body {
                Body::Open | Body::Refused(_) => true,
                Body::Change(change) => self.is_change(change),
                Body::Mark(tickets) => tickets.iter().all(|(region, _)| self.is_region(*region)),
                Body::Admit { region, .. } | Body::Count { region, .. } => self.is_region(*region),
                Body::Branch(branch) => self.is_branch(branch),
                Body::Resolved(id) => self.is_branch_id(id),
                Body::Resolves(Resolution { id, said, change }) => {
                    let is_own = |change: &Change| change.key == id.key && self.is_change(change);
                    self.is_branch_id(id)
                        && self.is_place(*said)
                        && change.as_ref().is_none_or(is_own)
                }
                Body::Group(changes) => {
                    let keys: BTreeSet<_> = changes.iter().map(|change| &change.key).collect();
                    keys.len() == changes.len()
                        && changes.len() <= GROUP_WRITES_MAX
                        && changes.iter().all(|change| self.is_change(change))
                }
                // A table of several regions is not split.
                Body::Split(_) | Body::HandedOver { .. } => false,
            }
    }

    fn is_change(&self, change: &Change) -> bool {
        let value = match &change.kind {
            ChangeKind::Put(value) => value.len(),
            ChangeKind::Delete | ChangeKind::Move | ChangeKind::Forget => 0,
        };
        is_key(&change.key)
            && value <= VALUE_BYTES_MAX
            && (1..COUNTED_MAX).contains(&change.version)
            && (change.after == 0 || change.after == change.version - 1)
            && self.is_stream(change.home)
            && self.is_region(change.origin)
    }

    fn is_part(&self, part: &Part) -> bool {
        part.to_bytes().len() + FOLLOWED_BYTES <= ENTRY_BYTES_MAX
            && part.number < COUNTED_MAX
            && part.items.iter().all(|item| match item {
                Item::Floor(version) => *version < COUNTED_MAX,
                Item::Stream { head, shown } => self.is_head(head) && self.is_place(shown.place),
                Item::Entry { stream, entry } => self.is_stream(*stream) && self.is_entry(entry),
                Item::Record { key, record } => is_key(key) && self.is_record(record),
                Item::Session(session) => self.is_session(session),
                Item::Branch(branch) => self.is_branch(branch),
            })
    }

    fn is_branch(&self, branch: &Branch) -> bool {
        self.is_branch_id(&branch.id)
            && (1..COUNTED_MAX).contains(&branch.version)
            && branch.after < branch.version
            && branch.value.as_ref().is_none_or(|value| value.len() <= VALUE_BYTES_MAX)
    }

    fn is_branch_id(&self, id: &BranchId) -> bool {
        is_key(&id.key) && self.is_stream(id.stream) && self.is_place(id.place)
    }

    fn is_head(&self, head: &StreamImage) -> bool {
        let forms = |of: &crate::stream::Members| {
            of.members.iter().map(|member| member.region).eq(self.tablet.form().regions())
        };
        let rises =
            |ends: &[Place]| ends[0].epoch < ends[1].epoch && ends[0].number < ends[1].number;
        self.is_stream(head.id)
            && self.is_epoch(head.promised)
            && head.forgotten.windows(2).all(rises)
            && head
                .forgotten
                .iter()
                .all(|end| self.is_place(*end) && end.number > 0 && end.epoch <= head.promised)
            && head.members.first().is_some_and(|first| first.from == 0)
            && head.members.iter().all(forms)
    }

    fn is_record(&self, record: &Record) -> bool {
        (1..COUNTED_MAX).contains(&record.version)
            && record.value.as_ref().is_none_or(|value| value.len() <= VALUE_BYTES_MAX)
            && self.is_stream(record.home)
            && self.is_stream(record.stream)
            && self.is_place(record.place)
            && self.is_region(record.origin)
            && record.run < COUNTED_MAX
            && record.moves.len() <= MOVES_REMEMBERED
            && record.moves.iter().all(|version| *version <= record.version)
    }

    fn is_session(&self, session: &SessionImage) -> bool {
        session.results.len() <= RESULTS_MAX
            && session.results.iter().all(|result| {
                let versions = match &result.result.outcome {
                    Outcome::Group(versions) => versions.len(),
                    _ => 0,
                };
                versions <= GROUP_WRITES_MAX
                    && self.is_stream(result.result.stream)
                    && self.is_place(result.result.place)
            })
    }
}

fn is_key(key: &[u8]) -> bool {
    (1..=KEY_BYTES_MAX).contains(&key.len())
}

fn is_request(request: &Request) -> bool {
    let value = match &request.op {
        Op::Write { value, .. } => value.as_ref().map_or(0, Vec::len),
        Op::Group { writes, .. } if !is_group(&request.key, writes) => return false,
        Op::Group { .. } | Op::Read(_) | Op::Resolve { .. } => 0,
    };
    is_key(&request.key) && value <= VALUE_BYTES_MAX
}

/// It is one entry of a log, whatever comes of it.
fn is_group(first: &[u8], writes: &[GroupWrite]) -> bool {
    let keys: BTreeSet<_> = writes.iter().map(|write| &write.key).collect();
    let sizes = writes.iter().map(|write| (write.key.len(), write.value_bytes()));
    (1..=GROUP_WRITES_MAX).contains(&writes.len())
        && writes[0].key == first
        && keys.len() == writes.len()
        && writes.iter().all(|write| is_key(&write.key) && write.value_bytes() <= VALUE_BYTES_MAX)
        && group_bytes(sizes).is_some()
}
