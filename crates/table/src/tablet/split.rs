//! A tablet of one region that is split: its upper half goes to another tablet, as pieces in that one's topic. What goes
//! is still from the entry on that says so, so it is the same whenever it is read; what is left of a tablet goes on
//! beside it. docs/tables.md has the whole of it.

use super::span::{Half, Span};
use super::{Form, Shown, Tablet, record_bytes};
use crate::ids::{Key, LogId, RegionId};
use crate::name::hash_of;
use crate::record::Record;
use crate::sessions::SessionImage;
use crate::stream::StreamImage;
use holdfast_base::codec::{Decode, DecodeError, Encode, Reader, put_bytes};
use holdfast_base::random::mix;
use holdfast_base::{Error, Result, codec_struct};
use holdfast_env::trial::Knob;
use holdfast_env::{planted, sometimes};
use std::ops::Bound;

/// Bytes of the pieces of one entry, if it is not a single one.
pub(crate) static PIECES_BYTES: Knob = Knob::new("table.split-bytes", 512 << 10, &[1, 100, 1000]);

/// Something that a tablet begins with which is cut off another one's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// The highest version that was forgotten.
    Floor(u64),
    /// The stream goes on where the other one's showed: so places that clients have seen lie in it.
    Stream {
        head: StreamImage,
        shown: Shown,
    },
    Record {
        key: Key,
        record: Record,
    },
    /// With its turn: sessions go on at the other tablet meanwhile, and are not read in order of their turns.
    Session {
        turn: u64,
        session: SessionImage,
    },
}

/// Some of them, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pieces {
    /// Drawn: of two that were begun, the second takes nothing of the first one's.
    pub attempt: u64,
    /// From 0.
    pub number: u64,
    pub is_last: bool,
    pub pieces: Vec<Piece>,
}
codec_struct!(Pieces { attempt, number, is_last, pieces });

impl Encode for Piece {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Piece::Floor(version) => {
                1u8.encode(out);
                version.encode(out);
            }
            Piece::Stream { head, shown } => {
                2u8.encode(out);
                head.encode(out);
                shown.place.encode(out);
                shown.digest.encode(out);
            }
            Piece::Record { key, record } => {
                3u8.encode(out);
                put_bytes(out, key);
                record.encode(out);
            }
            Piece::Session { turn, session } => {
                4u8.encode(out);
                turn.encode(out);
                session.encode(out);
            }
        }
    }
}

impl Decode for Piece {
    fn decode(reader: &mut Reader<'_>) -> Result<Piece, DecodeError> {
        Ok(match u8::decode(reader)? {
            1 => Piece::Floor(u64::decode(reader)?),
            2 => Piece::Stream {
                head: StreamImage::decode(reader)?,
                shown: Shown { place: Decode::decode(reader)?, digest: u64::decode(reader)? },
            },
            3 => Piece::Record { key: reader.bytes()?.to_vec(), record: Record::decode(reader)? },
            4 => Piece::Session { turn: u64::decode(reader)?, session: Decode::decode(reader)? },
            _ => return Err(DecodeError::BadValue("piece of a tablet")),
        })
    }
}

/// Up to where the pieces were read.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Cursor {
    Begin,
    Floor,
    Stream,
    Record(Key),
    /// By its number.
    Session(u64),
}

/// A tablet that begins with pieces of another one, and is not whole yet.
#[derive(Clone, Debug)]
pub struct Growing {
    attempt: u64,
    /// The number of what comes next.
    next: u64,
    span: Span,
    tablet: Box<Tablet>,
}

impl Growing {
    pub fn new(form: &Form, region: RegionId, log: LogId, span: Span) -> Growing {
        let tablet = Box::new(Tablet::made(form, region, log));
        Growing { attempt: 0, next: 0, span, tablet }
    }

    /// As a snapshot has it, behind its attempt and number.
    pub(crate) fn restored(attempt: u64, next: u64, span: Span, tablet: Tablet) -> Growing {
        Growing { attempt, next, span, tablet: Box::new(tablet) }
    }

    pub fn attempt(&self) -> u64 {
        self.attempt
    }

    pub fn next(&self) -> u64 {
        self.next
    }

    pub fn span(&self) -> &Span {
        &self.span
    }

    pub fn tablet(&self) -> &Tablet {
        &self.tablet
    }

    /// Takes the pieces that come next, or the first ones of another attempt: what there was goes. Whether it is whole
    /// with them; nothing where they are neither.
    ///
    /// # Errors
    /// A piece is not of this tablet; nothing is taken.
    pub fn take(&mut self, index: u64, pieces: Pieces) -> Result<Option<bool>> {
        let of_others = |piece: &Piece| match piece {
            Piece::Record { key, .. } => !self.span.has(key),
            Piece::Stream { head, .. } => !self.tablet.streams.contains_key(&head.id),
            Piece::Floor(_) | Piece::Session { .. } => false,
        };
        if pieces.pieces.iter().any(of_others) {
            return Err(Error::invalid("take pieces of a tablet: one of them is another tablet's"));
        }
        if pieces.number == 0 {
            let Tablet { form, region, log, .. } = &*self.tablet;
            *self = Growing::new(form, *region, *log, self.span.clone());
            self.attempt = pieces.attempt;
        }
        let is_of_another = self.attempt != pieces.attempt;
        if self.next != pieces.number || (is_of_another && !planted!("table.split-of-two-attempts"))
        {
            return Ok(None);
        }
        self.next += 1;
        self.tablet.applied = index;
        let Pieces { is_last, pieces, .. } = pieces;
        pieces.into_iter().for_each(|piece| self.tablet.add_piece(piece));
        Ok(Some(is_last || planted!("table.split-whole-too-soon")))
    }

    /// The tablet, once it is whole.
    pub fn into_tablet(self) -> Box<Tablet> {
        let mut tablet = self.tablet;
        tablet.span = self.span;
        tablet.changes.begin_cut_off(&tablet.shown);
        tablet
    }
}

impl Tablet {
    /// Which keys it has.
    pub fn span(&self) -> &Span {
        &self.span
    }

    pub(crate) fn take_span(&mut self, span: Span) {
        self.span = span;
    }

    /// Keys and values of the records from this hash on.
    pub fn bytes_from(&self, at: u32) -> u64 {
        let from = self.records.iter().filter(|(key, _)| hash_of(key) >= at);
        from.map(|(key, record)| record_bytes(key, record)).sum()
    }

    pub(super) fn begin_to_leave(&mut self, half: Half) {
        if self.has_others() || !self.span.begin_to_leave(half) {
            return;
        }
        sometimes!("a tablet was split");
    }

    pub(super) fn hand_over(&mut self, child: u16) {
        let Some(Half { at, .. }) = self.span.leave(child) else { return };
        let mut bytes = 0;
        self.records.retain(|key, record| {
            let stays = hash_of(key) < at;
            bytes += if stays { 0 } else { record_bytes(key, record) };
            stays
        });
        self.bytes -= bytes;
        self.tombstones.retain(|key| hash_of(key) < at);
    }

    fn add_piece(&mut self, piece: Piece) {
        match piece {
            Piece::Floor(version) => self.floor = version,
            Piece::Stream { head, shown } => {
                let id = head.id;
                if let Some(stream) = self.streams.get_mut(&id) {
                    stream.begin_with(head, shown.place.number);
                }
                self.shown.insert(id, shown);
            }
            Piece::Record { key, record } => self.put_record(key, record),
            Piece::Session { turn, session } => self.sessions.add_at(turn, session),
        }
    }

    /// The pieces of what is leaving, behind a place, together not more than `bytes_max`, one at least; where they end;
    /// and whether there is none behind them.
    fn pieces(&self, at: u32, mut cursor: Cursor, bytes_max: u64) -> (Vec<Piece>, Cursor, bool) {
        let (mut pieces, mut bytes) = (Vec::new(), 0);
        while let Some((piece, next)) = self.piece_behind(at, &cursor) {
            bytes += piece.to_bytes().len() as u64;
            if bytes > bytes_max && !pieces.is_empty() {
                PIECES_BYTES.cross();
                return (pieces, cursor, false);
            }
            pieces.push(piece);
            cursor = next;
        }
        (pieces, cursor, true)
    }

    fn piece_behind(&self, at: u32, cursor: &Cursor) -> Option<(Piece, Cursor)> {
        match cursor {
            Cursor::Begin => {
                let floor = if planted!("table.split-without-floor") { 0 } else { self.floor };
                Some((Piece::Floor(floor), Cursor::Floor))
            }
            Cursor::Floor => {
                let (id, stream) = self.streams.first_key_value()?;
                let shown = self.shown[id];
                let head = stream.image_up_to(shown.place);
                Some((Piece::Stream { head, shown }, Cursor::Stream))
            }
            Cursor::Stream => self.record_piece(at, Bound::Unbounded),
            Cursor::Record(key) => self.record_piece(at, Bound::Excluded(key.as_slice())),
            Cursor::Session(id) => self.session_piece(Bound::Excluded(*id)),
        }
    }

    fn record_piece(&self, at: u32, from: Bound<&[u8]>) -> Option<(Piece, Cursor)> {
        let mut records = self.records.range::<[u8], _>((from, Bound::Unbounded));
        match records.find(|(key, _)| hash_of(key) >= at) {
            Some((key, record)) => {
                let piece = Piece::Record { key: key.clone(), record: record.clone() };
                Some((piece, Cursor::Record(key.clone())))
            }
            None => self.session_piece(Bound::Unbounded),
        }
    }

    /// All sessions, in order of their numbers, so that it ends however many go on meanwhile: what came of requests for
    /// keys that are leaving is known since before they were, whatever came of others since.
    fn session_piece(&self, from: Bound<u64>) -> Option<(Piece, Cursor)> {
        if planted!("table.split-without-results") {
            return None;
        }
        let (turn, session) = self.sessions.first(from)?;
        let next = Cursor::Session(session.id);
        Some((Piece::Session { turn, session }, next))
    }
}

/// What there is of the tablet that gets a half.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Growth {
    None,
    Grows { span: Span, attempt: u64, next: u64 },
    Whole(Span),
}

/// What is to be done next for a split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// The tablet of this number begins, with this span.
    Begin(u16, Span),
    /// It is given these pieces.
    Give(u16, Pieces),
    /// It is whole: the half is handed over to it.
    HandOver(u16),
}

/// Carries on a split from wherever it is: a start begins with another one of these.
#[derive(Clone, Debug)]
pub struct Splitting {
    attempt: u64,
    /// Of the pieces that come next, and where they begin.
    number: u64,
    from: Cursor,
    /// They were given, and where they end. What came of that may not be known: they are given again as they were, or
    /// others might begin where these do not end.
    given: Option<(Pieces, Cursor)>,
}

impl Splitting {
    /// `attempt` is drawn.
    pub fn new(attempt: u64) -> Splitting {
        Splitting { attempt, number: 0, from: Cursor::Begin, given: None }
    }

    /// What is to be done next, for what there is of both tablets; nothing where nothing is being given away.
    ///
    /// # Errors
    /// The tablet that gets the half is another one.
    pub fn next(&mut self, parent: &Tablet, growth: &Growth) -> Result<Option<Next>> {
        let Some(half) = parent.span.leaving else { return Ok(None) };
        let wanted = Span::between(half.at, parent.span.last);
        Ok(Some(match growth {
            Growth::Whole(span) if *span == wanted => Next::HandOver(half.child),
            Growth::Whole(_) => {
                return Err(Error::corrupt(format!(
                    "split a tablet: tablet {} is to get a half of it, and has other keys",
                    half.child
                )));
            }
            Growth::Grows { span, attempt, next } if *span == wanted => {
                Next::Give(half.child, self.pieces(parent, half.at, (*attempt, *next)))
            }
            Growth::None | Growth::Grows { .. } => Next::Begin(half.child, wanted),
        }))
    }

    fn pieces(&mut self, parent: &Tablet, at: u32, (attempt, next): (u64, u64)) -> Pieces {
        let came = attempt == self.attempt && next == self.number + 1;
        if let Some((_, end)) = self.given.take_if(|_| came) {
            self.number += 1;
            self.from = end;
        }
        if self.number > 0 && (attempt, next) != (self.attempt, self.number) {
            sometimes!("what was given of a half began anew");
            *self = Splitting::new(mix(self.attempt));
        }
        if let Some((given, _)) = &self.given {
            return given.clone();
        }
        let (pieces, end, is_last) = parent.pieces(at, self.from.clone(), PIECES_BYTES.get());
        let pieces = Pieces { attempt: self.attempt, number: self.number, is_last, pieces };
        self.given = Some((pieces.clone(), end));
        pieces
    }
}

#[cfg(test)]
impl Splitting {
    /// What tells it from another one.
    pub(crate) fn key(&self) -> (u64, u64) {
        (self.attempt, self.number << 1 | u64::from(self.given.is_some()))
    }
}

#[cfg(test)]
pub(crate) mod plain;
#[cfg(test)]
mod tests;
