//! The same messages as the batch of another spool, or of nobody's. Where a batch says whose it is,
//! docs/formats/scribe.md has. Pure.

use crate::batch::{Position, SpoolId};
use holdfast_base::checksum::crc32c;
use std::ops::Range;

/// Where a batch says what is in front of it, whose it is, and its first number.
const PREVIOUS: Range<usize> = 6..10;
const SPOOL: Range<usize> = 10..18;
const FIRST: Range<usize> = 18..26;
/// And its checksum, of all that is behind it.
const CHECKSUM: Range<usize> = 1..5;

/// A batch as one of a spool that is at a position; nobody's is at number 0. Messages are not compressed anew:
/// another build would make other bytes of them.
pub fn renumbered(bytes: &[u8], spool: SpoolId, at: Position) -> Vec<u8> {
    let mut out = bytes.to_vec();
    out[PREVIOUS].copy_from_slice(&at.checksum.to_le_bytes());
    out[SPOOL].copy_from_slice(&spool.0.to_le_bytes());
    out[FIRST].copy_from_slice(&at.next.to_le_bytes());
    let checksum = crc32c(&out[CHECKSUM.end..]);
    out[CHECKSUM].copy_from_slice(&checksum.to_le_bytes());
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{self, Builder};
    use crate::category::Category;

    #[test]
    fn a_batch_under_another_identity_is_what_that_one_would_have_made() {
        for text in ["short".to_owned(), "long ".repeat(5000)] {
            let mut builder = Builder::default();
            builder.push(text.as_bytes());
            builder.push(b"");
            let packed = builder.pack(Category::new("web").unwrap());
            let first = packed.number(SpoolId(7), Position { next: 90, checksum: 3 });
            let at = Position { next: 0x0102_0304_0506, checksum: 0xdead_beef };
            let again = renumbered(&first, SpoolId(u64::MAX - 1), at);
            assert_eq!(again, packed.number(SpoolId(u64::MAX - 1), at));
            batch::verify(&again).unwrap();
            let nobodys = renumbered(&again, SpoolId::NONE, Position { next: 0, checksum: 0 });
            assert_eq!(nobodys, packed.without_number());
        }
    }
}
