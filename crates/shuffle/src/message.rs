//! The forms on the wire (docs/formats/shuffle.md): the native protocol's frames with opcodes of
//! their own, read and written on blocking sockets.

use crate::ledger::Sums;
use crate::limits::BLOCK_BYTES_MAX;
use holdfast_base::codec::{Decode, Encode, Reader};
use holdfast_base::frame::{self, Decoded, FrameKind, HEADER_BYTES, Header};
use holdfast_base::{Error, Result, codec_struct};
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
    Err(Error::decode(answer.header.status(), &answer.meta))
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
            e.encode(&mut said);
            (e.kind as u32, said)
        }
    };
    let write = |out: &mut Vec<u8>| out.extend_from_slice(&meta);
    frame::try_encode(&mut out, FrameKind::Response, to.opcode, to.request_id, status, 0, write)?;
    Ok(stream.write_all(&out)?)
}

/// What is answered to who begins.
pub struct Window {
    /// Bytes of blocks that may be under way.
    pub bytes: u64,
    /// Whether anything of the split is.
    pub wanted: bool,
}
codec_struct!(Window { bytes, wanted });

/// What is said of a block.
pub struct Block {
    pub partition: u32,
    /// CRC32C of its bytes.
    pub crc: u32,
}
codec_struct!(Block { partition, crc });

pub fn put_finish(out: &mut Vec<u8>, blocks: u64, sums: &[(u32, Sum)]) {
    blocks.encode(out);
    for (partition, sum) in sums {
        partition.encode(out);
        [sum.records, sum.bytes, sum.hash].iter().for_each(|number| number.encode(out));
    }
}

pub fn finish(meta: &[u8]) -> Result<(u64, Sums)> {
    let mut reader = Reader::new(meta);
    let blocks = u64::decode(&mut reader)?;
    let mut sums = Vec::new();
    while reader.remaining() > 0 {
        let partition = u32::decode(&mut reader)?;
        let mut number = || u64::decode(&mut reader);
        sums.push((partition, Sum { records: number()?, bytes: number()?, hash: number()? }));
    }
    Ok((blocks, sums))
}
