//! How an item lies in a segment, and how the index points to it. Pure arithmetic.
//!
//! An item, at a multiple of 4:
//! ```text
//! word 0   key length: 8 | value length: 18 | marks: 6
//! word 1   the second it expires in; 0 for never
//! [u32 client flags]  if marked  [2 x u32 cas]  if marked  key  value  (padding to 4)
//! ```
//! A slot of the index: `tag: 16 | fetched: 1, cas seen: 1, frequency: 4, spare: 2 | place / 4: 40`.

pub use holdfast_cache_client::protocol::KEY_BYTES_MAX;

/// Longest value that is one item; longer ones are cut into pieces well below that.
pub const VALUE_BYTES_MAX: usize = (1 << 18) - 1;
pub const ALIGN: usize = 4;

/// Client flags are not 0, and stored.
pub const MARK_FLAGS: u32 = 1 << 26;
/// The cas is stored; otherwise it follows from the place.
pub const MARK_CAS: u32 = 1 << 27;
/// Invalidated by `md I`: readers are told, and one of them is asked to refresh it.
pub const MARK_STALE: u32 = 1 << 28;
/// Somebody was asked to refresh it.
pub const MARK_WON: u32 = 1 << 29;
/// The value is a list of pieces, see `large.rs`; or, with a key of [`PIECE_KEY_BYTES`] that no
/// client can name, a piece.
pub const MARK_LARGE: u32 = 1 << 30;
/// The key is shown in base64.
pub const MARK_BINARY: u32 = 1 << 31;

/// All marks.
pub const MARKS: u32 = 0x3f << 26;

/// The first two words of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub word: u32,
    pub expires: u32,
}

impl Head {
    pub fn new(key_len: usize, value_len: usize, marks: u32, expires: u32) -> Head {
        assert!(key_len <= KEY_BYTES_MAX && value_len <= VALUE_BYTES_MAX, "too long for an item");
        Head { word: key_len as u32 | (value_len as u32) << 8 | marks, expires }
    }

    #[inline(always)]
    pub fn key_len(self) -> usize {
        (self.word & 0xff) as usize
    }

    #[inline(always)]
    pub fn value_len(self) -> usize {
        (self.word >> 8) as usize & VALUE_BYTES_MAX
    }

    #[inline(always)]
    pub fn has(self, mark: u32) -> bool {
        self.word & mark != 0
    }

    /// Where the key starts, from the start of the item.
    #[inline(always)]
    pub fn key_at(self) -> usize {
        let flags = (self.word & MARK_FLAGS) / (MARK_FLAGS / 4);
        let cas = (self.word & MARK_CAS) / (MARK_CAS / 8);
        8 + flags as usize + cas as usize
    }

    #[inline(always)]
    pub fn value_at(self) -> usize {
        self.key_at() + self.key_len()
    }

    /// Bytes of the whole item, with padding.
    #[inline(always)]
    pub fn bytes(self) -> usize {
        (self.value_at() + self.value_len()).next_multiple_of(ALIGN)
    }

    #[inline(always)]
    pub fn is_expired(self, now: u32) -> bool {
        self.expires != 0 && self.expires <= now
    }
}

/// An entry of the index. 0 is an empty one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(pub u64);

const PLACE_BITS: u32 = 40;
const FETCHED: u64 = 1 << 40;
const CAS_SEEN: u64 = 1 << 41;
const FREQUENCY_SHIFT: u32 = 42;
pub const FREQUENCY_MAX: u64 = 15;
/// Largest arena that slots can point into.
pub const ARENA_BYTES_MAX: usize = ALIGN << PLACE_BITS;

/// The tag of a hash; never 0, which is an empty slot's.
#[inline(always)]
pub fn tag(hash: u64) -> u16 {
    ((hash >> 48) as u16).max(1)
}

impl Slot {
    pub fn new(hash: u64, place: usize) -> Slot {
        Slot(u64::from(tag(hash)) << 48 | (place / ALIGN) as u64)
    }

    #[inline(always)]
    pub fn place(self) -> usize {
        (self.0 & ((1 << PLACE_BITS) - 1)) as usize * ALIGN
    }

    /// The same entry for an item that moved.
    pub fn moved_to(self, place: usize) -> Slot {
        Slot(self.0 & !((1 << PLACE_BITS) - 1) | (place / ALIGN) as u64)
    }

    /// For what replaces the old entry's item: as often read, but not yet itself.
    pub fn with_counts_of(self, old: Slot) -> Slot {
        self.with_frequency(old.frequency())
    }

    pub fn is_fetched(self) -> bool {
        self.0 & FETCHED != 0
    }

    pub fn is_cas_seen(self) -> bool {
        self.0 & CAS_SEEN != 0
    }

    pub fn frequency(self) -> u64 {
        self.0 >> FREQUENCY_SHIFT & FREQUENCY_MAX
    }

    fn with_frequency(self, frequency: u64) -> Slot {
        Slot(self.0 & !(FREQUENCY_MAX << FREQUENCY_SHIFT) | frequency << FREQUENCY_SHIFT)
    }

    /// What a read makes of it, if anything: a count that grows ever more slowly (Morris 1978), so
    /// that a hot item's line is soon only read. `random` decides.
    #[inline(always)]
    pub fn read(self, random: u32) -> Option<Slot> {
        let frequency = self.frequency();
        if !self.is_fetched() {
            return Some(Slot(self.0 | FETCHED).with_frequency((frequency + 1).min(FREQUENCY_MAX)));
        }
        let due = frequency < FREQUENCY_MAX && random & ((1 << frequency) - 1) == 0;
        due.then(|| self.with_frequency(frequency + 1))
    }

    /// The same with counts that were kept somewhere else.
    pub fn with_counts(self, frequency: u64, is_fetched: bool, is_cas_seen: bool) -> Slot {
        let fetched = if is_fetched { FETCHED } else { 0 };
        let seen = if is_cas_seen { CAS_SEEN } else { 0 };
        Slot(self.with_frequency(frequency.min(FREQUENCY_MAX)).0 | fetched | seen)
    }

    pub fn cas_seen(self) -> Slot {
        Slot(self.0 | CAS_SEEN)
    }

    /// What remains of the count after an eviction passed by: the logarithmic count of half.
    pub fn aged(self) -> Slot {
        self.with_frequency(self.frequency().saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_keep_what_they_are_given() {
        for marks in [0, MARK_FLAGS, MARK_CAS, MARK_FLAGS | MARK_CAS | MARK_BINARY | MARK_LARGE] {
            let head = Head::new(250, VALUE_BYTES_MAX, marks, 7);
            assert_eq!((head.key_len(), head.value_len()), (250, VALUE_BYTES_MAX));
            assert_eq!(head.has(MARK_BINARY), marks & MARK_BINARY != 0);
            let extra = if head.has(MARK_FLAGS) { 4 } else { 0 };
            assert_eq!(head.key_at(), 8 + extra + if head.has(MARK_CAS) { 8 } else { 0 });
        }
        assert_eq!(Head::new(16, 100, 0, 0).bytes(), 124);
        assert!(Head::new(1, 1, 0, 7).is_expired(7) && !Head::new(1, 1, 0, 8).is_expired(7));
    }

    #[test]
    fn a_slot_counts_reads_ever_more_slowly() {
        let slot = Slot::new(0xffff_0000_0000_0000, ARENA_BYTES_MAX - ALIGN);
        assert_eq!(slot.place(), ARENA_BYTES_MAX - ALIGN);
        let once = slot.read(u32::MAX).unwrap();
        assert!(once.is_fetched() && once.frequency() == 1);
        assert_eq!(once.read(1), None);
        let mut slot = once;
        while let Some(next) = slot.read(0) {
            assert_eq!(next.frequency(), slot.frequency() + 1);
            slot = next;
        }
        assert_eq!((slot.frequency(), slot.place()), (FREQUENCY_MAX, ARENA_BYTES_MAX - ALIGN));
        assert_eq!(slot.aged().frequency(), FREQUENCY_MAX - 1);
        assert_eq!(slot.moved_to(8).place(), 8);
        assert_eq!(tag(0), 1);
    }
}
