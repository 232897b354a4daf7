//! A batch: messages of one category in their order, compressed once by whoever took them, and never
//! changed again: what a spool keeps, carriers carry and a topic's entry holds. docs/formats/scribe.md has
//! it byte by byte. Pure.

use super::category::{CATEGORY_BYTES_MAX, Category};
use holdfast_base::checksum::crc32c;
use holdfast_base::codec::{DecodeError, Reader};
use holdfast_base::{Error, Result};
use std::ops::Range;

/// One message: what is longer can never be taken.
pub const MESSAGE_BYTES_MAX: usize = 512 << 10;
/// Messages of a batch, before they are compressed, four bytes more counted for each.
pub const BATCH_BYTES_MAX: usize = 768 << 10;

/// In front of the category's name.
const HEAD_BYTES: usize = 35;
/// A batch as it travels: what cannot be compressed stays as it is.
pub const ENCODED_BYTES_MAX: usize = HEAD_BYTES + u8::MAX as usize + BATCH_BYTES_MAX;

const _: () = {
    assert!(4 + MESSAGE_BYTES_MAX <= BATCH_BYTES_MAX);
    assert!(CATEGORY_BYTES_MAX <= u8::MAX as usize);
};

/// Of such an entry of a category; there are others.
pub const VERSION: u8 = 1;
/// Where its checksum is, which is of all that is behind it.
const CHECKSUM: Range<usize> = 1..5;
/// From here on the checksum counts.
const CHECKED_FROM: usize = CHECKSUM.end;
/// What is in front of it, whose it is, and its first number.
const PREVIOUS: Range<usize> = 6..10;
const SPOOL: Range<usize> = 10..18;
const FIRST: Range<usize> = 18..26;
/// zstd's own default: a quarter of a core's time for each 100 MB/s.
const LEVEL: i32 = 3;
/// Smaller ones only become larger.
const COMPRESSED_FROM_BYTES: usize = 64;

/// Who keeps a batch until its topic has it: drawn when a spool's directory is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpoolId(pub u64);

impl SpoolId {
    /// Nobody keeps it, and it has no number: it is taken as often as it comes.
    pub const NONE: SpoolId = SpoolId(0);
}

impl std::fmt::Display for SpoolId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// How far a spool has come in a category.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The number of the next message.
    pub next: u64,
    /// The checksum of the batch in front of it; it follows from all that came before.
    pub checksum: u32,
}

impl Position {
    /// Before the first message.
    pub const START: Position = Position { next: 1, checksum: 0 };
}

/// How the messages are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Codec {
    Plain = 0,
    Zstd = 1,
}

/// What is in front of a batch's messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    pub category: Category,
    pub spool: SpoolId,
    /// Of its first message.
    pub first: u64,
    pub count: u32,
    /// Of the batch in front of it, of the same spool and category; 0 in front of the first one.
    pub previous: u32,
    pub checksum: u32,
    /// Messages and their lengths, before they were compressed.
    pub raw_bytes: u32,
    codec: Codec,
}

impl Head {
    /// Behind which it is next.
    pub fn begins(&self) -> Position {
        Position { next: self.first, checksum: self.previous }
    }

    /// Where its spool is once it is taken.
    pub fn ends(&self) -> Position {
        Position { next: self.first + u64::from(self.count), checksum: self.checksum }
    }
}

/// Whether a category's entry is a batch; there are others.
pub fn is_one(entry: &[u8]) -> bool {
    entry.first() == Some(&VERSION)
}

/// Reads a batch's head, and gives its messages as they are written. The checksum is not looked at.
pub fn decode(batch: &[u8]) -> Result<(Head, &[u8])> {
    parse(batch).map_err(|e| Error::from(e).context("read a batch of messages"))
}

fn parse(batch: &[u8]) -> Result<(Head, &[u8]), DecodeError> {
    let bad = DecodeError::BadValue;
    let mut reader = Reader::new(batch);
    if reader.array::<1>()? != [VERSION] {
        return Err(bad("version"));
    }
    let checksum = u32::from_le_bytes(reader.array()?);
    let codec = match reader.array::<1>()? {
        [0] => Codec::Plain,
        [1] => Codec::Zstd,
        _ => return Err(bad("codec")),
    };
    let previous = u32::from_le_bytes(reader.array()?);
    let spool = SpoolId(u64::from_le_bytes(reader.array()?));
    let first = u64::from_le_bytes(reader.array()?);
    let count = u32::from_le_bytes(reader.array()?);
    let raw_bytes = u32::from_le_bytes(reader.array()?);
    let [name_bytes] = reader.array()?;
    let category = Category::of_bytes(reader.take(usize::from(name_bytes))?);
    let category = category.map_err(|_| bad("category"))?;
    let payload = reader.take(reader.remaining())?;
    // Each message has four bytes of length, so its count is no larger than its bytes allow.
    let fits =
        raw_bytes as usize <= BATCH_BYTES_MAX && u64::from(count) * 4 <= u64::from(raw_bytes);
    if count == 0 || !fits || payload.len() > BATCH_BYTES_MAX {
        return Err(bad("length"));
    }
    let is_numbered = spool != SpoolId::NONE;
    if first.checked_add(u64::from(count)).is_none() || is_numbered == (first == 0) {
        return Err(bad("number"));
    }
    let head = Head { category, spool, first, count, previous, checksum, raw_bytes, codec };
    Ok((head, payload))
}

/// As [`decode`], of a batch that comes from somebody else: its checksum is right, and its messages can be
/// read. So nobody who keeps it meets one that cannot.
pub fn verify(batch: &[u8]) -> Result<(Head, Messages)> {
    let (head, payload) = decode(batch)?;
    if crc32c(&batch[CHECKED_FROM..]) != head.checksum {
        return Err(Error::corrupt(format!(
            "take a batch of `{}`: its checksum is another than its bytes': send it again",
            head.category
        )));
    }
    let messages = unpack(&head, payload)?;
    Ok((head, messages))
}

/// The messages of a batch, in their order.
#[derive(Debug)]
pub struct Messages(Vec<u8>);

impl Messages {
    pub fn of(batch: &[u8]) -> Result<Messages> {
        let (head, payload) = decode(batch)?;
        unpack(&head, payload)
    }

    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let mut reader = Reader::new(&self.0);
        std::iter::from_fn(move || reader.bytes().ok())
    }
}

fn unpack(head: &Head, payload: &[u8]) -> Result<Messages> {
    let doing = format_args!("unpack a batch of `{}`", head.category).to_string();
    let wrong = |what: &str| Error::corrupt(format!("{doing}: {what}: look at who sent it"));
    let raw = match head.codec {
        Codec::Plain => payload.to_vec(),
        Codec::Zstd => zstd::bulk::decompress(payload, head.raw_bytes as usize)
            .map_err(|e| wrong(&format!("its messages cannot be decompressed ({e})")))?,
    };
    if raw.len() != head.raw_bytes as usize {
        return Err(wrong("it has another length than it says"));
    }
    let mut reader = Reader::new(&raw);
    for _ in 0..head.count {
        reader.bytes().map_err(|_| wrong("it has fewer messages than it says"))?;
    }
    reader.finish().map_err(|_| wrong("it has more messages than it says"))?;
    Ok(Messages(raw))
}

/// Messages of one category that are to become a batch.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    count: u32,
    raw: Vec<u8>,
}

/// What a message takes of [`BATCH_BYTES_MAX`].
pub fn message_cost(message: &[u8]) -> usize {
    4 + message.len()
}

impl Builder {
    pub fn push(&mut self, message: &[u8]) {
        assert!(message.len() <= MESSAGE_BYTES_MAX, "long messages are refused where they come in");
        holdfast_base::codec::put_bytes(&mut self.raw, message);
        self.count += 1;
        assert!(self.raw.len() <= BATCH_BYTES_MAX, "who gathers messages counts their bytes");
    }

    /// Compresses them; what has no number yet.
    pub fn pack(self, category: Category) -> Packed {
        assert!(self.count > 0, "a batch has messages");
        let raw_bytes = self.raw.len() as u32;
        let compressed = match self.raw.len() {
            0..COMPRESSED_FROM_BYTES => None,
            // An error is one of memory, and the plain bytes are as good.
            _ => zstd::bulk::compress(&self.raw, LEVEL).ok(),
        };
        let (codec, payload) = match compressed.filter(|packed| packed.len() < self.raw.len()) {
            Some(packed) => (Codec::Zstd, packed),
            None => (Codec::Plain, self.raw),
        };
        Packed { category, count: self.count, raw_bytes, codec, payload }
    }
}

/// Messages that are compressed, and wait for their number.
#[derive(Clone, Debug)]
pub struct Packed {
    pub category: Category,
    pub count: u32,
    raw_bytes: u32,
    codec: Codec,
    payload: Vec<u8>,
}

impl Packed {
    /// The batch of a spool that is at `position`.
    pub fn number(&self, spool: SpoolId, position: Position) -> Vec<u8> {
        assert!(spool != SpoolId::NONE && position.next > 0, "a spool numbers from 1 on");
        self.encode(spool, position)
    }

    /// What its batch takes, at most, with its length in front.
    pub fn bytes(&self) -> usize {
        4 + HEAD_BYTES + u8::MAX as usize + self.payload.len()
    }

    /// A batch of nobody's.
    pub fn without_number(&self) -> Vec<u8> {
        self.encode(SpoolId::NONE, Position { next: 0, checksum: 0 })
    }

    fn encode(&self, spool: SpoolId, position: Position) -> Vec<u8> {
        let name = self.category.name().as_bytes();
        let mut out = Vec::with_capacity(HEAD_BYTES + name.len() + self.payload.len());
        out.push(VERSION);
        out.extend_from_slice(&[0; CHECKSUM.end - CHECKSUM.start]);
        out.push(self.codec as u8);
        out.extend_from_slice(&[0; FIRST.end - PREVIOUS.start]);
        out.extend_from_slice(&self.count.to_le_bytes());
        out.extend_from_slice(&self.raw_bytes.to_le_bytes());
        out.push(name.len() as u8);
        out.extend_from_slice(name);
        out.extend_from_slice(&self.payload);
        number(&mut out, spool, position);
        out
    }
}

/// Writes into a batch whose it is, and its numbers.
fn number(batch: &mut [u8], spool: SpoolId, at: Position) {
    batch[PREVIOUS].copy_from_slice(&at.checksum.to_le_bytes());
    batch[SPOOL].copy_from_slice(&spool.0.to_le_bytes());
    batch[FIRST].copy_from_slice(&at.next.to_le_bytes());
    let checksum = crc32c(&batch[CHECKED_FROM..]);
    batch[CHECKSUM].copy_from_slice(&checksum.to_le_bytes());
}

/// The same messages as the batch of another spool that is at a position; nobody's is at number 0. They are not
/// compressed anew: another build would make other bytes of them.
pub fn renumbered(batch: &[u8], spool: SpoolId, at: Position) -> Vec<u8> {
    let mut out = batch.to_vec();
    number(&mut out, spool, at);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(messages: &[&[u8]]) -> Packed {
        let mut builder = Builder::default();
        messages.iter().for_each(|message| builder.push(message));
        builder.pack(Category::new("web").unwrap())
    }

    #[test]
    fn the_bytes_stay_as_they_are_documented() {
        let batch = packed(&[b"a", b""]).number(SpoolId(0x0102), Position { next: 7, checksum: 9 });
        let hex: String = batch.iter().map(|byte| format!("{byte:02x}")).collect();
        let crc = crc32c(&batch[5..]).to_le_bytes().map(|byte| format!("{byte:02x}")).concat();
        assert_eq!(
            hex,
            format!(
                "01{crc}00090000000201000000000000070000000000000002000000090000000377656201000000610000\
                 0000"
            )
        );
    }

    #[test]
    fn messages_come_back_and_chains_follow() {
        let long = vec![b'x'; 100_000];
        let messages: [&[u8]; 4] = [b"one", b"", &long, b"\0\xff\n"];
        let first = packed(&messages).number(SpoolId(5), Position::START);
        assert!(first.len() < 1000, "it is compressed");
        let (head, _) = verify(&first).unwrap();
        assert_eq!((head.begins(), head.ends().next, head.count), (Position::START, 5, 4));
        let read = Messages::of(&first).unwrap();
        assert!(read.iter().eq(messages));
        let second = packed(&[b"x"]).number(SpoolId(5), head.ends());
        let other = packed(&[b"x"]).number(SpoolId(5), Position { checksum: 1, ..head.ends() });
        let [second, other] = [second, other].map(|batch| verify(&batch).unwrap().0);
        assert_eq!(second.begins(), head.ends());
        assert_ne!(second.checksum, other.checksum, "it follows from what came before");
    }

    #[test]
    fn a_batch_under_another_identity_is_what_that_one_would_have_made() {
        for text in ["short".to_owned(), "long ".repeat(5000)] {
            let packed = packed(&[text.as_bytes(), b""]);
            let first = packed.number(SpoolId(7), Position { next: 90, checksum: 3 });
            let at = Position { next: 0x0102_0304_0506, checksum: 0xdead_beef };
            let again = renumbered(&first, SpoolId(u64::MAX - 1), at);
            assert_eq!(again, packed.number(SpoolId(u64::MAX - 1), at));
            verify(&again).unwrap();
            let nobodys = renumbered(&again, SpoolId::NONE, Position { next: 0, checksum: 0 });
            assert_eq!(nobodys, packed.without_number());
        }
    }

    #[test]
    fn what_was_changed_or_cut_is_refused() {
        let long = b"some text that is long enough to be compressed ".repeat(9);
        for batch in [
            packed(&[b"hello", b"world"]).number(SpoolId(1), Position::START),
            packed(&[&long, &long]).without_number(),
        ] {
            assert!(verify(&batch).is_ok());
            for at in 0..batch.len() {
                assert!(verify(&batch[..at]).is_err(), "cut at {at}");
                for bit in 0..8 {
                    let mut changed = batch.clone();
                    changed[at] ^= 1 << bit;
                    assert!(verify(&changed).is_err(), "bit {bit} of {at}");
                }
            }
        }
    }

    /// A batch that says it is small and decompresses to more would take memory of everybody who reads it.
    #[test]
    fn what_is_in_it_is_bounded_by_what_it_says() {
        let bomb = zstd::bulk::compress(&vec![0; 64 << 20], 3).unwrap();
        let honest = packed(&[b"x"]);
        for (count, raw_bytes, payload) in [
            (1, 100, bomb.clone()),
            (1, u32::MAX, bomb.clone()),
            (u32::MAX, 100, vec![0; 100]),
            (2, 5, vec![1, 0, 0, 0, b'x']),
            (0, 0, vec![]),
        ] {
            let codec = if payload == bomb { Codec::Zstd } else { Codec::Plain };
            let wrong = Packed { count, raw_bytes, codec, payload, ..honest.clone() };
            assert!(verify(&wrong.number(SpoolId(1), Position::START)).is_err());
        }
    }
}
