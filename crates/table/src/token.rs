//! What a client has seen of a tablet: a place in each stream, for each epoch of it. Whoever shows
//! all of it shows the client nothing older than it has seen.

use crate::ids::{Epoch, Place, StreamId};
use std::collections::BTreeMap;

/// At most one place a stream and epoch: a place of a later epoch does not say what became of one
/// of an earlier epoch, which may have been cut off. Joined, never replaced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Token {
    numbers: BTreeMap<(StreamId, Epoch), u64>,
}

impl Token {
    /// A token that asks for this place.
    pub fn of(stream: StreamId, place: Place) -> Token {
        let mut token = Token::default();
        token.see(stream, place);
        token
    }

    /// The client has seen this place, too.
    pub fn see(&mut self, stream: StreamId, place: Place) {
        if place.number > 0 {
            let known = self.numbers.entry((stream, place.epoch)).or_default();
            *known = place.number.max(*known);
        }
    }

    /// The client has seen all that `other` has.
    pub fn join(&mut self, other: &Token) {
        for (stream, place) in other.places() {
            self.see(stream, place);
        }
    }

    /// What it asks for.
    pub fn places(&self) -> impl Iterator<Item = (StreamId, Place)> {
        let place = |((stream, epoch), number): (&(StreamId, Epoch), &u64)| {
            (*stream, Place::new(*epoch, *number))
        };
        self.numbers.iter().map(place)
    }
}
