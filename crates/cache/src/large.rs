//! Large values: cut into pieces, each an item of its own under a key that no client can name; the
//! value's own item is the list. So they need no memory of another kind, and are evicted piece by
//! piece: a value of which a piece is gone is a miss.

use crate::store::{PIECE_KEY_BYTES, Store};

/// What a list is as bytes.
pub const LIST_BYTES: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Large {
    /// Never reused.
    pub id: u64,
    /// Of the whole value.
    pub bytes: u64,
}

impl Large {
    pub fn to_bytes(self) -> [u8; LIST_BYTES] {
        let mut bytes = [0; LIST_BYTES];
        bytes[..8].copy_from_slice(&self.id.to_le_bytes());
        bytes[8..].copy_from_slice(&self.bytes.to_le_bytes());
        bytes
    }

    /// From at least so many bytes.
    pub fn from_bytes(bytes: &[u8]) -> Large {
        let word = |at: usize| {
            bytes.get(at..).and_then(|b| b.first_chunk()).map_or(0, |c| u64::from_le_bytes(*c))
        };
        Large { id: word(0), bytes: word(8) }
    }

    /// The key of piece `n`.
    pub fn key(self, n: u32) -> [u8; PIECE_KEY_BYTES] {
        let mut key = [0; PIECE_KEY_BYTES];
        key[..8].copy_from_slice(&self.id.to_le_bytes());
        key[8..].copy_from_slice(&n.to_le_bytes());
        key
    }

    pub fn pieces(self, store: &Store) -> u32 {
        self.bytes.div_ceil(store.piece_bytes() as u64) as u32
    }
}
