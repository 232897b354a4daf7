//! The native protocol's frame: a 32-byte header, a structured part (meta), a bulk part (body).
//! Pure: bytes in, headers out. Drivers in `env` and `client` read and write them.
//!
//! ```text
//!  0        4     5     6        8            16           20          24          28       32
//!  +--------+-----+-----+--------+------------+------------+-----------+-----------+--------+
//!  | "HFN1" | ver | kind| opcode | request id | deadline or| meta      | body      | CRC32C |
//!  |        |     |     |        |            | status     | bytes     | bytes     |        |
//!  +--------+-----+-----+--------+------------+------------+-----------+-----------+--------+
//!  | meta ... | body ... |
//! ```
//! The CRC covers the header's first 28 bytes and the meta. The body carries its own checksums in
//! the meta, one a block, because they are stored along with it and checked end to end.

use crate::checksum::crc32c;
use crate::limits::{FRAME_BODY_BYTES_MAX, FRAME_META_BYTES_MAX};
use std::fmt;

pub const MAGIC: [u8; 4] = *b"HFN1";
/// The protocol's version; a peer of another version is told so and refused.
pub const VERSION: u8 = 1;
pub const HEADER_BYTES: usize = 32;
/// In an answer's status: the node has not heard from the log for a while (it may be deposed, or cut
/// off), so what it says may be old.
pub const STALE: u32 = 1 << 31;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// Client to server; field 16 is the deadline in milliseconds from receipt, 0 for none.
    Request = 1,
    /// Server to client, the last one for its request; field 16 is 0 or an error [`crate::Kind`],
    /// with [`STALE`] or without.
    Response = 2,
    /// Server to client, more follow for the same request.
    Part = 3,
}

/// A decoded and verified header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub kind: FrameKind,
    pub opcode: u16,
    pub request_id: u64,
    /// Deadline in ms (request) or status (response, part).
    pub deadline_or_status: u32,
    pub meta_bytes: u32,
    pub body_bytes: u32,
}

impl Header {
    /// An answer's status without its label: 0, or the kind of an error.
    pub fn status(&self) -> u32 {
        self.deadline_or_status & !STALE
    }

    /// Whether an answer is labelled as possibly old.
    pub fn is_stale(&self) -> bool {
        self.deadline_or_status & STALE != 0
    }
}

/// Why a frame was refused. The connection cannot be trusted after any of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    NotHoldfast([u8; 4]),
    Version(u8),
    Kind(u8),
    MetaTooLong(u32),
    BodyTooLong(u32),
    Checksum,
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrameError::NotHoldfast(m) => write!(
                f,
                "the peer does not speak Holdfast's native protocol (it sent `{}`): check address and port",
                m.escape_ascii()
            ),
            FrameError::Version(v) => write!(
                f,
                "the peer speaks version {v} of the native protocol, this build speaks {VERSION}: use matching builds"
            ),
            FrameError::Kind(k) => {
                write!(f, "the peer sent a frame of unknown kind {k}: use matching builds")
            }
            FrameError::MetaTooLong(n) => {
                write!(
                    f,
                    "the peer announced {n} bytes of metadata, the limit is {FRAME_META_BYTES_MAX}"
                )
            }
            FrameError::BodyTooLong(n) => {
                write!(
                    f,
                    "the peer announced a body of {n} bytes, the limit is {FRAME_BODY_BYTES_MAX}"
                )
            }
            FrameError::Checksum => {
                f.write_str("a frame was damaged on its way (checksum mismatch): reconnect")
            }
        }
    }
}

impl From<FrameError> for crate::Error {
    fn from(e: FrameError) -> crate::Error {
        let kind = match e {
            FrameError::Version(_) | FrameError::Kind(_) => crate::Kind::Unsupported,
            FrameError::Checksum => crate::Kind::Corrupt,
            _ => crate::Kind::Invalid,
        };
        crate::Error::new(kind, e.to_string())
    }
}

/// What the front of a receive buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// At least this many bytes are needed before anything can be said.
    NeedBytes(usize),
    /// Header and meta are complete and verified: meta is `buf[HEADER_BYTES..][..meta_bytes]`,
    /// the body follows it.
    Frame(Header),
}

/// As [`try_encode`], for a meta that is known to fit.
pub fn encode(
    out: &mut Vec<u8>,
    kind: FrameKind,
    opcode: u16,
    request_id: u64,
    deadline_or_status: u32,
    body_bytes: u32,
    meta: impl FnOnce(&mut Vec<u8>),
) {
    let encoded = try_encode(out, kind, opcode, request_id, deadline_or_status, body_bytes, meta);
    assert!(encoded.is_ok(), "{encoded:?}");
}

/// Appends header and meta; `body_bytes` of body must follow on the wire. A meta that is too long
/// for a frame is refused, and leaves `out` as it was.
///
/// The meta is written by `meta` straight behind the header, so that no message is built twice.
pub fn try_encode(
    out: &mut Vec<u8>,
    kind: FrameKind,
    opcode: u16,
    request_id: u64,
    deadline_or_status: u32,
    body_bytes: u32,
    meta: impl FnOnce(&mut Vec<u8>),
) -> Result<(), crate::Error> {
    assert!(body_bytes <= FRAME_BODY_BYTES_MAX, "body of {body_bytes} bytes");
    let start = out.len();
    out.extend_from_slice(&[0; HEADER_BYTES]);
    meta(out);
    let meta_bytes = out.len() - start - HEADER_BYTES;
    if meta_bytes > FRAME_META_BYTES_MAX as usize {
        out.truncate(start);
        return Err(crate::Error::invalid(format!(
            "send {meta_bytes} bytes of metadata: the limit is {FRAME_META_BYTES_MAX}: ask for less"
        )));
    }
    let meta_bytes = meta_bytes as u32;
    let head = &mut out[start..start + HEADER_BYTES];
    head[0..4].copy_from_slice(&MAGIC);
    head[4] = VERSION;
    head[5] = kind as u8;
    head[6..8].copy_from_slice(&opcode.to_le_bytes());
    head[8..16].copy_from_slice(&request_id.to_le_bytes());
    head[16..20].copy_from_slice(&deadline_or_status.to_le_bytes());
    head[20..24].copy_from_slice(&meta_bytes.to_le_bytes());
    head[24..28].copy_from_slice(&body_bytes.to_le_bytes());
    let crc = frame_crc(&out[start..]);
    out[start + 28..start + 32].copy_from_slice(&crc.to_le_bytes());
    Ok(())
}

/// Decodes the frame at the front of `buf`, which may hold less or more than one.
pub fn decode(buf: &[u8]) -> Result<Decoded, FrameError> {
    let Some(head) = buf.first_chunk::<HEADER_BYTES>() else {
        // Garbage is told apart from the first bytes on, so that a wrong peer gets its answer.
        let n = buf.len().min(4);
        if buf[..n] != MAGIC[..n] {
            let mut m = [0; 4];
            m[..n].copy_from_slice(&buf[..n]);
            return Err(FrameError::NotHoldfast(m));
        }
        return Ok(Decoded::NeedBytes(HEADER_BYTES));
    };
    if head[0..4] != MAGIC {
        return Err(FrameError::NotHoldfast([head[0], head[1], head[2], head[3]]));
    }
    if head[4] != VERSION {
        return Err(FrameError::Version(head[4]));
    }
    let kind = match head[5] {
        1 => FrameKind::Request,
        2 => FrameKind::Response,
        3 => FrameKind::Part,
        k => return Err(FrameError::Kind(k)),
    };
    let u32_at =
        |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let header = Header {
        kind,
        opcode: u16::from_le_bytes([head[6], head[7]]),
        request_id: u32_at(8) as u64 | (u32_at(12) as u64) << 32,
        deadline_or_status: u32_at(16),
        meta_bytes: u32_at(20),
        body_bytes: u32_at(24),
    };
    if header.meta_bytes > FRAME_META_BYTES_MAX {
        return Err(FrameError::MetaTooLong(header.meta_bytes));
    }
    if header.body_bytes > FRAME_BODY_BYTES_MAX {
        return Err(FrameError::BodyTooLong(header.body_bytes));
    }
    let end = HEADER_BYTES + header.meta_bytes as usize;
    if buf.len() < end {
        return Ok(Decoded::NeedBytes(end));
    }
    if frame_crc(&buf[..end]) != u32_at(28) {
        return Err(FrameError::Checksum);
    }
    Ok(Decoded::Frame(header))
}

/// CRC of header and meta with the CRC field itself left out.
fn frame_crc(frame: &[u8]) -> u32 {
    // One pass over header and meta: the field's place is taken by the meta's own checksum, so
    // the two parts are bound together without a combine.
    let mut head = [0; HEADER_BYTES];
    head[..28].copy_from_slice(&frame[..28]);
    head[28..].copy_from_slice(&crc32c(&frame[HEADER_BYTES..]).to_le_bytes());
    crc32c(&head)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<u8> {
        let mut out = Vec::new();
        encode(&mut out, FrameKind::Request, 0x0301, 77, 1500, 9, |m| {
            m.extend_from_slice(b"meta!")
        });
        out
    }

    #[test]
    fn frames_come_back_at_every_split() {
        let frame = sample();
        for cut in 0..frame.len() {
            assert!(matches!(decode(&frame[..cut]), Ok(Decoded::NeedBytes(n)) if n > cut), "{cut}");
        }
        let header = Header {
            kind: FrameKind::Request,
            opcode: 0x0301,
            request_id: 77,
            deadline_or_status: 1500,
            meta_bytes: 5,
            body_bytes: 9,
        };
        assert_eq!(decode(&frame), Ok(Decoded::Frame(header)));
    }

    #[test]
    fn golden_bytes() {
        let hex: String = sample().iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(
            hex,
            concat!(
                "48464e31",
                "01",
                "01",
                "0103",
                "4d00000000000000",
                "dc050000",
                "05000000",
                "09000000",
                "413cb160",
                "6d65746121"
            )
        );
    }

    #[test]
    fn every_flipped_bit_is_refused() {
        let frame = sample();
        for bit in 0..frame.len() * 8 {
            let mut bad = frame.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            // A longer announced meta asks for more bytes; whatever comes, the CRC refuses it.
            match decode(&bad) {
                Err(_) => {}
                Ok(Decoded::NeedBytes(n)) => {
                    bad.resize(n, 0);
                    assert!(decode(&bad).is_err(), "bit {bit}");
                }
                Ok(Decoded::Frame(_)) => panic!("bit {bit} went unnoticed"),
            }
        }
    }

    #[test]
    fn garbage_says_what_is_wrong() {
        let mut frame = sample();
        assert_eq!(decode(b"GET / HTTP"), Err(FrameError::NotHoldfast(*b"GET ")));
        frame[4] = 9;
        assert_eq!(decode(&frame), Err(FrameError::Version(9)));
        let mut frame = sample();
        frame[24..28].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(decode(&frame), Err(FrameError::BodyTooLong(u32::MAX)));
        let mut frame = sample();
        frame[20..24].copy_from_slice(&(2u32 << 20).to_le_bytes());
        assert_eq!(decode(&frame), Err(FrameError::MetaTooLong(2 << 20)));
    }
}
