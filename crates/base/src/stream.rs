//! Long sequences of values as bytes, in pieces: what is too large to be one piece of memory is
//! written and read value after value, in the same bytes that [`crate::codec`] makes of them. Pure:
//! who takes the pieces, and gives them, is a parameter.

use crate::checksum::{crc32c, crc32c_combine};
use crate::codec::{Decode, DecodeError, Encode, Reader};
use crate::{Error, Result};

/// Bytes of pieces where nobody else says how long they are.
const PIECE_BYTES: usize = 64 << 10;

/// A checksum over what has passed since it was begun, wherever the pieces end.
#[derive(Clone, Copy, Debug, Default)]
struct Running {
    crc: u32,
    /// Where it has come to in the buffer.
    at: usize,
}

impl Running {
    fn reach(&mut self, buffer: &[u8], at: usize) -> u32 {
        let more = &buffer[self.at..at];
        self.crc = crc32c_combine(self.crc, crc32c(more), more.len() as u64);
        self.at = at;
        self.crc
    }
}

/// Writes values; every `piece_bytes` of them are handed on.
pub struct Writer<'a> {
    piece: &'a mut dyn FnMut(&[u8]) -> Result<()>,
    piece_bytes: usize,
    buffer: Vec<u8>,
    running: Running,
    /// The first failure: what is put behind it is dropped.
    failed: Option<Error>,
}

impl<'a> Writer<'a> {
    /// Pieces have `piece_bytes`, but for the last one, which has at least one byte.
    pub fn new(piece_bytes: usize, piece: &'a mut dyn FnMut(&[u8]) -> Result<()>) -> Writer<'a> {
        assert!(piece_bytes > 0, "a piece has a byte");
        Writer { piece, piece_bytes, buffer: Vec::new(), running: Running::default(), failed: None }
    }

    pub fn put(&mut self, value: &(impl Encode + ?Sized)) {
        self.put_with(|out| value.encode(out));
    }

    /// Takes what `encode` appends: not the whole sequence, which would be in memory at once.
    pub fn put_with(&mut self, encode: impl FnOnce(&mut Vec<u8>)) {
        encode(&mut self.buffer);
        if self.buffer.len() >= self.piece_bytes {
            self.hand_on();
        }
    }

    /// What was to be put could not be read: the end fails with this.
    pub fn fail(&mut self, e: Error) {
        self.failed.get_or_insert(e);
    }

    /// Begins a checksum here.
    pub fn begin_crc(&mut self) {
        self.running = Running { crc: 0, at: self.buffer.len() };
    }

    /// The CRC32C of everything since it was begun.
    pub fn crc(&mut self) -> u32 {
        self.running.reach(&self.buffer, self.buffer.len())
    }

    fn hand_on(&mut self) {
        let whole = self.buffer.len() / self.piece_bytes * self.piece_bytes;
        let from = self.running.at;
        self.running.reach(&self.buffer, from.max(whole));
        for piece in self.buffer[..whole].chunks(self.piece_bytes) {
            if self.failed.is_none() {
                self.failed = (self.piece)(piece).err();
            }
        }
        self.buffer.drain(..whole);
        self.running.at -= whole;
    }

    /// Hands on what is left. Fails if any piece was not taken.
    pub fn finish(mut self) -> Result<()> {
        self.hand_on();
        match self.failed {
            Some(e) => Err(e),
            None if self.buffer.is_empty() => Ok(()),
            None => (self.piece)(&self.buffer),
        }
    }
}

/// Reads values from pieces.
pub struct Source<'a> {
    more: &'a mut dyn FnMut(&mut Vec<u8>) -> Result<bool>,
    buffer: Vec<u8>,
    at: usize,
    ended: bool,
    running: Running,
    bytes_max: u64,
}

impl<'a> Source<'a> {
    /// `more` appends the next piece, and says false when there is none. All of them have not more
    /// than `bytes_max`.
    pub fn new(
        bytes_max: u64,
        more: &'a mut dyn FnMut(&mut Vec<u8>) -> Result<bool>,
    ) -> Source<'a> {
        let running = Running::default();
        Source { more, buffer: Vec::new(), at: 0, ended: false, running, bytes_max }
    }

    pub fn get<T: Decode>(&mut self) -> Result<T> {
        self.get_with(T::decode)
    }

    /// Reads what `decode` decodes; it is called again, with more, where a piece has ended too early
    /// (`Short`).
    pub fn get_with<T>(
        &mut self,
        mut decode: impl FnMut(&mut Reader<'_>) -> std::result::Result<T, DecodeError>,
    ) -> Result<T> {
        loop {
            let rest = &self.buffer[self.at..];
            let mut reader = Reader::new(rest);
            match decode(&mut reader) {
                Ok(value) => {
                    self.at += rest.len() - reader.remaining();
                    return Ok(value);
                }
                // Twice as much each time: a long value is not decoded once a piece.
                Err(DecodeError::Short) => {
                    let wanted = 2 * rest.len();
                    if !self.pull(wanted)? {
                        return Err(DecodeError::Short.into());
                    }
                }
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Everything up to the end, for what is small.
    pub fn rest(&mut self) -> Result<Vec<u8>> {
        self.pull(usize::MAX)?;
        let rest = self.buffer.split_off(self.at);
        self.running.reach(&self.buffer, self.at);
        if !rest.is_empty() {
            self.running.crc = crc32c_combine(self.running.crc, crc32c(&rest), rest.len() as u64);
        }
        Ok(rest)
    }

    /// Has more than before in the buffer, `wanted` bytes of it if there are as many; false at the
    /// end.
    fn pull(&mut self, wanted: usize) -> Result<bool> {
        self.running.reach(&self.buffer, self.at);
        self.buffer.drain(..self.at);
        (self.at, self.running.at) = (0, 0);
        let before = self.buffer.len();
        while !self.ended && (self.buffer.len() < wanted || self.buffer.len() == before) {
            self.ended = !(self.more)(&mut self.buffer)?;
        }
        Ok(self.buffer.len() > before)
    }

    /// A bound of what is still to come: a count that says more is a lie.
    pub fn left_max(&self) -> u64 {
        self.bytes_max
    }

    /// Begins a checksum here.
    pub fn begin_crc(&mut self) {
        self.running = Running { crc: 0, at: self.at };
    }

    /// The CRC32C of everything read since it was begun.
    pub fn crc(&mut self) -> u32 {
        self.running.reach(&self.buffer, self.at)
    }

    /// Whether nothing is left.
    pub fn is_at_end(&mut self) -> Result<bool> {
        Ok(self.at == self.buffer.len() && !self.pull(1)?)
    }

    /// Refuses what is left over.
    pub fn finish(&mut self) -> Result<()> {
        match self.is_at_end()? {
            true => Ok(()),
            false => Err(DecodeError::Trailing.into()),
        }
    }
}

/// Appends what `write` writes to `out`.
pub fn collect(out: &mut Vec<u8>, write: impl FnOnce(&mut Writer<'_>)) {
    let mut piece = |bytes: &[u8]| {
        out.extend_from_slice(bytes);
        Ok(())
    };
    let mut writer = Writer::new(PIECE_BYTES, &mut piece);
    write(&mut writer);
    writer.finish().expect("memory takes every piece");
}

/// Has `read` read bytes that are in memory, all of them.
pub fn read_all<T>(bytes: &[u8], read: impl FnOnce(&mut Source<'_>) -> Result<T>) -> Result<T> {
    let mut pieces = bytes.chunks(PIECE_BYTES);
    let mut more = |out: &mut Vec<u8>| {
        let piece = pieces.next();
        out.extend_from_slice(piece.unwrap_or_default());
        Ok(piece.is_some())
    };
    let mut source = Source::new(bytes.len() as u64, &mut more);
    let value = read(&mut source)?;
    source.finish()?;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;

    fn written(piece_bytes: usize, texts: &[String]) -> (Vec<Vec<u8>>, u32) {
        let mut pieces = Vec::new();
        let mut piece = |bytes: &[u8]| {
            pieces.push(bytes.to_vec());
            Ok(())
        };
        let mut out = Writer::new(piece_bytes, &mut piece);
        out.put(&7u8);
        out.begin_crc();
        texts.iter().for_each(|text| out.put(text));
        let crc = out.crc();
        out.put(&crc);
        out.finish().unwrap();
        (pieces, crc)
    }

    /// Whatever the sizes of the values and of the pieces, on both sides.
    #[test]
    fn values_come_back_with_their_checksum_wherever_the_pieces_end() {
        let texts: Vec<String> = (0..40).map(|n| "x".repeat(n * 7 % 90)).collect();
        let mut plain = vec![7];
        texts.iter().for_each(|text| text.encode(&mut plain));
        let crc_of_all = crc32c(&plain[1..]);
        crc_of_all.encode(&mut plain);
        for piece_bytes in [1, 2, 5, 64, 1000, 100_000] {
            let (pieces, crc) = written(piece_bytes, &texts);
            assert_eq!((pieces.concat(), crc), (plain.clone(), crc_of_all));
            let (last, whole) = pieces.split_last().unwrap();
            assert!(whole.iter().all(|piece| piece.len() == piece_bytes) && !last.is_empty());
            let mut given = pieces.iter();
            let mut more = |out: &mut Vec<u8>| {
                let piece = given.next();
                out.extend(piece.into_iter().flatten());
                Ok(piece.is_some())
            };
            let mut source = Source::new(plain.len() as u64, &mut more);
            assert_eq!(source.get::<u8>(), Ok(7));
            source.begin_crc();
            for text in &texts {
                assert_eq!(source.get::<String>().as_ref(), Ok(text));
            }
            assert_eq!(source.crc(), crc);
            assert_eq!(source.get::<u32>(), Ok(crc));
            assert_eq!(source.finish(), Ok(()));
            assert_eq!(source.get::<u8>().unwrap_err().kind, Kind::Corrupt);
        }
    }

    #[test]
    fn what_is_left_over_is_refused_and_the_rest_counts_for_the_checksum() {
        let bytes: Vec<u8> = (0..200).collect();
        let left = read_all(&bytes, |source| source.get::<u64>());
        assert_eq!(left.unwrap_err().kind, Kind::Corrupt);
        let read = read_all(&bytes, |source| {
            source.begin_crc();
            source.get::<u64>()?;
            Ok((source.rest()?, source.crc()))
        });
        assert_eq!(read, Ok((bytes[8..].to_vec(), crc32c(&bytes))));
    }

    #[test]
    fn a_piece_that_is_not_taken_fails_the_end() {
        let mut piece = |_: &[u8]| Err(Error::full("no room"));
        let mut out = Writer::new(4, &mut piece);
        (0..10).for_each(|n: u64| out.put(&n));
        assert_eq!(out.finish().unwrap_err().kind, Kind::Full);
    }
}
