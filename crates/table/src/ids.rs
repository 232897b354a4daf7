//! What regions, logs and streams are called, and places in a stream.

use holdfast_base::codec::{Decode, DecodeError, Encode, Reader};
use std::fmt;
use std::sync::Arc;

/// A region: a cluster with its own log. Tablets have at most 255 of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionId(pub u8);

/// A home: the stream of what was decided about the records that are at home there. It is named
/// after the region that leads it first, and keeps that name whoever leads it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u8);

/// One region's log. A log that was erased, or that is older than it was, gets a higher number:
/// what the one before has promised is not known any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogId(pub u64);

/// Under what a stream is led: a round, and in its lowest byte the region that leads. So no two
/// regions ever lead one epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

/// A place in a stream. The later epoch is further, whatever the numbers say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Of the entry there.
    pub epoch: Epoch,
    /// From 1, without gaps; 0 is before the first entry.
    pub number: u64,
}

/// A record's key.
pub type Key = Vec<u8>;

/// A record's value: shared by the entry that brought it, the record, and whoever reads it.
pub type Value = Arc<[u8]>;

impl StreamId {
    /// The stream of this region's own decisions.
    pub fn of(region: RegionId) -> StreamId {
        StreamId(region.0)
    }

    /// Who leads it before anybody has taken it over.
    pub fn namesake(self) -> RegionId {
        RegionId(self.0)
    }

    /// The epoch in which every stream begins.
    pub fn first_epoch(self) -> Epoch {
        Epoch::new(1, self.namesake())
    }
}

impl Epoch {
    /// The epoch of this round and leader.
    pub fn new(round: u64, leader: RegionId) -> Epoch {
        assert!(round < 1 << 56, "round {round} exceeds 56 bits");
        Epoch(round << 8 | u64::from(leader.0))
    }

    /// Who leads it.
    pub fn leader(self) -> RegionId {
        RegionId(self.0 as u8)
    }

    /// How many epochs had to end before it.
    pub fn round(self) -> u64 {
        self.0 >> 8
    }
}

impl Place {
    /// The place of the entry with this epoch and number.
    pub fn new(epoch: Epoch, number: u64) -> Place {
        Place { epoch, number }
    }
}

impl fmt::Display for RegionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "region {}", self.0)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}/{}", self.epoch.round(), self.epoch.leader().0, self.number)
    }
}

macro_rules! coded {
    ($($name:ident)*) => {$(
        impl Encode for $name {
            fn encode(&self, out: &mut Vec<u8>) {
                self.0.encode(out);
            }
        }
        impl Decode for $name {
            fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
                Ok($name(Decode::decode(reader)?))
            }
        }
    )*};
}
coded!(RegionId StreamId LogId Epoch);

impl Encode for Place {
    fn encode(&self, out: &mut Vec<u8>) {
        self.epoch.encode(out);
        self.number.encode(out);
    }
}

impl Decode for Place {
    fn decode(reader: &mut Reader<'_>) -> Result<Place, DecodeError> {
        Ok(Place { epoch: Epoch::decode(reader)?, number: u64::decode(reader)? })
    }
}
