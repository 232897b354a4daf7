//! A record and its hidden fields: home, version, where its last writes came from; and the rule by
//! which a home follows its users.

use crate::entry::{Change, ChangeKind};
use crate::ids::{Place, RegionId, StreamId, Value};
use holdfast_base::codec::{Decode, DecodeError, Encode, Reader, put_bytes};
use holdfast_env::trial::Knob;

/// Writes in a row from one other region that move a record's home there.
pub(crate) static RUN_TO_MOVE: Knob = Knob::new("table.run-to-move", 3, &[3]);
/// Each move among so many last versions doubles the run that the next one takes.
const VERSIONS_REMEMBERED: u64 = 100;
/// More doublings than that would outlast what is remembered.
pub(crate) const MOVES_REMEMBERED: usize = 6;

/// A record of one tablet, as of one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub version: u64,
    pub home: StreamId,
    /// None in a tombstone.
    pub value: Option<Value>,
    /// Where its version was decided.
    pub stream: StreamId,
    pub place: Place,
    /// The region that the last writes came from, and how many in a row.
    pub origin: RegionId,
    pub run: u64,
    /// The versions at which its home moved, of the last hundred.
    pub moves: Vec<u64>,
}

impl Encode for Record {
    fn encode(&self, out: &mut Vec<u8>) {
        self.version.encode(out);
        self.home.encode(out);
        put_value(out, self.value.as_ref());
        self.stream.encode(out);
        self.place.encode(out);
        self.origin.encode(out);
        self.run.encode(out);
        self.moves.encode(out);
    }
}

impl Decode for Record {
    fn decode(reader: &mut Reader<'_>) -> Result<Record, DecodeError> {
        Ok(Record {
            version: u64::decode(reader)?,
            home: StreamId::decode(reader)?,
            value: value_of(reader)?,
            stream: StreamId::decode(reader)?,
            place: Place::decode(reader)?,
            origin: RegionId::decode(reader)?,
            run: u64::decode(reader)?,
            moves: Vec::decode(reader)?,
        })
    }
}

/// A value, or that there is none.
pub(crate) fn put_value(out: &mut Vec<u8>, value: Option<&Value>) {
    value.is_some().encode(out);
    if let Some(value) = value {
        put_bytes(out, value);
    }
}

/// The inverse.
pub(crate) fn value_of(reader: &mut Reader<'_>) -> Result<Option<Value>, DecodeError> {
    Ok(match bool::decode(reader)? {
        true => Some(reader.bytes()?.into()),
        false => None,
    })
}

impl Record {
    /// What a record comes to by its next version. `before` is none where the key is absent.
    pub fn after(
        before: Option<&Record>,
        change: &Change,
        stream: StreamId,
        place: Place,
    ) -> Option<Record> {
        if change.kind == ChangeKind::Forget {
            return None;
        }
        let value = match (&change.kind, before) {
            (ChangeKind::Put(value), _) => Some(value.clone()),
            (ChangeKind::Move, Some(before)) => before.value.clone(),
            _ => None,
        };
        let mut moves = before.map_or(Vec::new(), |before| before.moves.clone());
        // An insert's home is its origin: nothing has moved.
        if before.is_some_and(|before| before.home != change.home) {
            moves.push(change.version);
        }
        moves.retain(|version| version + VERSIONS_REMEMBERED > change.version);
        let surplus = moves.len().saturating_sub(MOVES_REMEMBERED);
        moves.drain(..surplus);
        let run = match before {
            Some(before) if change.kind == ChangeKind::Move => before.run,
            Some(before) if before.origin == change.origin => before.run + 1,
            _ => 1,
        };
        Some(Record {
            version: change.version,
            home: change.home,
            value,
            stream,
            place,
            origin: change.origin,
            run,
            moves,
        })
    }

    /// Where the record is at home once `origin` has written it once more.
    pub fn home_after_write(&self, origin: RegionId) -> StreamId {
        let run = if origin == self.origin { self.run + 1 } else { 1 };
        let recent = self.moves.iter().filter(|at| *at + VERSIONS_REMEMBERED > self.version + 1);
        let wanted = RUN_TO_MOVE.get() << recent.count().min(MOVES_REMEMBERED);
        if run >= wanted { StreamId::of(origin) } else { self.home }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Epoch;

    fn write(before: Option<&Record>, origin: u8) -> Record {
        let origin = RegionId(origin);
        let version = before.map_or(1, |before| before.version + 1);
        let home = before.map_or(StreamId::of(origin), |b| b.home_after_write(origin));
        let after = version - 1;
        let kind = ChangeKind::Put([1].into());
        let change = Change { key: b"k".to_vec(), version, after, home, origin, kind };
        let place = Place::new(Epoch::new(1, RegionId(0)), version);
        Record::after(before, &change, StreamId(0), place).unwrap()
    }

    #[test]
    fn three_writes_in_a_row_from_another_region_move_a_home() {
        let mut record = write(None, 0);
        for (origin, home) in [(1, 0), (1, 0), (0, 0), (1, 0), (1, 0), (1, 1), (1, 1)] {
            record = write(Some(&record), origin);
            assert_eq!(record.home, StreamId(home), "{record:?}");
        }
    }

    /// A record that five regions write in turns of three would follow each of them at once, for
    /// ever: each move has to cost more than the one before.
    #[test]
    fn a_record_that_is_written_from_everywhere_comes_to_rest() {
        let mut record = write(None, 0);
        let mut moves = 0;
        for turn in 0..60 {
            for _ in 0..3 {
                let home = record.home;
                record = write(Some(&record), 1 + turn % 4);
                moves += u64::from(record.home != home);
            }
        }
        assert!((1..=3).contains(&moves), "{moves} moves in 180 writes");
        // Whoever really has the record now gets it in the end.
        for _ in 0..110 {
            record = write(Some(&record), 9);
        }
        assert_eq!(record.home, StreamId(9));
        assert!(record.moves.len() <= MOVES_REMEMBERED);
    }
}
