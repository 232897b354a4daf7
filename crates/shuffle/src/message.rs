//! The forms on the wire (docs/formats/shuffle.md): the native protocol's frames with opcodes of
//! their own, read and written on blocking sockets.

use crate::ledger::{Attempt, Sums};
use crate::limits::BLOCK_BYTES_MAX;
use holdfast_base::codec::{Reader, put_bytes};
use holdfast_base::frame::{self, Decoded, FrameKind, HEADER_BYTES, Header};
use holdfast_base::{Error, Kind, Result};
use holdfast_sort::hash::Sum;
use std::io::{Read, Write};

/// Split and attempt; answered by the window, and whether anything of the split is wanted.
pub const OP_BEGIN: u16 = 0x0701;
/// A block of a partition; answered by its bytes, once it is written.
pub const OP_BLOCK: u16 = 0x0702;
/// The number of blocks and the sums; answered when all of them count.
pub const OP_FINISH: u16 = 0x0703;

/// A frame without its body.
pub struct Message {
    pub header: Header,
    pub meta: Vec<u8>,
}

/// Reads header and meta; none at the end of the stream.
pub fn read(stream: &mut impl Read) -> Result<Option<Message>> {
    let mut bytes = vec![0; HEADER_BYTES];
    // An end between two frames is an end; one within is a loss.
    match stream.read(&mut bytes[..1])? {
        0 => return Ok(None),
        _ => stream.read_exact(&mut bytes[1..])?,
    }
    loop {
        match frame::decode(&bytes)? {
            Decoded::NeedBytes(whole) => {
                let before = bytes.len();
                assert!(whole > before, "a frame that is there needs no more bytes");
                bytes.resize(whole, 0);
                stream.read_exact(&mut bytes[before..])?;
            }
            Decoded::Frame(header) if header.body_bytes as usize > BLOCK_BYTES_MAX => {
                return Err(Error::invalid(format!(
                    "receive a block of {} bytes: the limit is {BLOCK_BYTES_MAX}",
                    header.body_bytes
                )));
            }
            Decoded::Frame(header) => {
                bytes.drain(..HEADER_BYTES);
                return Ok(Some(Message { header, meta: bytes }));
            }
        }
    }
}

/// Reads an answer; an error that it carries is one.
pub fn read_answer(stream: &mut impl Read) -> Result<Message> {
    let gone = || Error::retry("send records: the receiver closed the connection");
    let answer = read(stream)?.ok_or_else(gone)?;
    if answer.header.status() == 0 {
        return Ok(answer);
    }
    let kind = u16::try_from(answer.header.status()).ok().and_then(Kind::from_code);
    let said = Reader::new(&answer.meta).str().unwrap_or("it gave no reason").to_owned();
    Err(Error::new(kind.unwrap_or(Kind::Bug), said))
}

/// Writes a request with its body.
pub fn ask(
    stream: &mut impl Write,
    opcode: u16,
    id: u64,
    meta: impl FnOnce(&mut Vec<u8>),
    body: &[u8],
) -> Result<()> {
    let mut out = Vec::new();
    frame::try_encode(&mut out, FrameKind::Request, opcode, id, 0, body.len() as u32, meta)?;
    stream.write_all(&out)?;
    Ok(stream.write_all(body)?)
}

/// Writes an answer.
pub fn answer(stream: &mut impl Write, to: &Header, result: Result<Vec<u8>>) -> Result<()> {
    let mut out = Vec::new();
    let (status, meta) = match result {
        Ok(meta) => (0, meta),
        Err(e) => {
            let mut said = Vec::new();
            put_bytes(&mut said, e.message.as_bytes());
            (e.kind as u32, said)
        }
    };
    let write = |out: &mut Vec<u8>| out.extend_from_slice(&meta);
    frame::try_encode(&mut out, FrameKind::Response, to.opcode, to.request_id, status, 0, write)?;
    Ok(stream.write_all(&out)?)
}

fn u64_of(reader: &mut Reader<'_>) -> Result<u64> {
    Ok(u64::from_le_bytes(reader.array()?))
}

fn u32_of(reader: &mut Reader<'_>) -> Result<u32> {
    Ok(u32::from_le_bytes(reader.array()?))
}

pub fn put_attempt(out: &mut Vec<u8>, attempt: Attempt) {
    out.extend_from_slice(&attempt.split.to_le_bytes());
    out.extend_from_slice(&attempt.id.to_le_bytes());
}

pub fn attempt(meta: &[u8]) -> Result<Attempt> {
    let mut reader = Reader::new(meta);
    let attempt = Attempt { split: u64_of(&mut reader)?, id: u64_of(&mut reader)? };
    reader.finish()?;
    Ok(attempt)
}

/// The window, and whether the split is wanted.
pub fn window(meta: &[u8]) -> Result<(u64, bool)> {
    let mut reader = Reader::new(meta);
    let window = u64_of(&mut reader)?;
    let [wanted] = reader.array()?;
    reader.finish()?;
    Ok((window, wanted != 0))
}

/// Partition and CRC32C of a block.
pub fn block(meta: &[u8]) -> Result<(u32, u32)> {
    let mut reader = Reader::new(meta);
    let block = (u32_of(&mut reader)?, u32_of(&mut reader)?);
    reader.finish()?;
    Ok(block)
}

pub fn granted(meta: &[u8]) -> Result<u64> {
    let mut reader = Reader::new(meta);
    let bytes = u64_of(&mut reader)?;
    reader.finish()?;
    Ok(bytes)
}

pub fn put_finish(out: &mut Vec<u8>, blocks: u64, sums: &[(u32, Sum)]) {
    out.extend_from_slice(&blocks.to_le_bytes());
    for (partition, sum) in sums {
        out.extend_from_slice(&partition.to_le_bytes());
        let numbers = [sum.records, sum.bytes, sum.hash];
        numbers.iter().for_each(|n| out.extend_from_slice(&n.to_le_bytes()));
    }
}

pub fn finish(meta: &[u8]) -> Result<(u64, Sums)> {
    let mut reader = Reader::new(meta);
    let blocks = u64_of(&mut reader)?;
    let mut sums = Vec::new();
    while reader.remaining() > 0 {
        let partition = u32_of(&mut reader)?;
        let (records, bytes) = (u64_of(&mut reader)?, u64_of(&mut reader)?);
        sums.push((partition, Sum { records, bytes, hash: u64_of(&mut reader)? }));
    }
    Ok((blocks, sums))
}
