//! Finds the requests in what was received. Pure: bytes in, places out.

use super::DIRECT_BYTES_MIN;
use holdfast_base::frame::{self, Decoded, FrameKind, HEADER_BYTES, Header};
use holdfast_base::{Error, Result};
use std::ops::Range;

/// What comes next in a buffer. Ranges are places in it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// So many bytes, counted from the frame's start, before anything can be done.
    Need(usize),
    /// A whole request.
    Request { header: Header, meta: Range<usize>, body: Range<usize> },
    /// A request whose body has begun (`body`, to the buffer's end) and is worth receiving where
    /// it belongs.
    Large { header: Header, meta: Range<usize>, body: Range<usize> },
}

/// Looks at the frame that starts at `at`. After an error the connection cannot be trusted.
pub(super) fn next(data: &[u8], at: usize) -> Result<Next> {
    let header = match frame::decode(&data[at..])? {
        Decoded::NeedBytes(bytes) => return Ok(Next::Need(bytes)),
        Decoded::Frame(header) => header,
    };
    if header.kind != FrameKind::Request {
        return Err(Error::invalid("the peer sent an answer where a request was due: reconnect"));
    }
    if header.request_id == 0 {
        return Err(Error::invalid("the peer sent request id 0, which is reserved: count from 1"));
    }
    let meta = at + HEADER_BYTES..at + HEADER_BYTES + header.meta_bytes as usize;
    let body = meta.end..meta.end + header.body_bytes as usize;
    if body.end <= data.len() {
        Ok(Next::Request { header, meta, body })
    } else if body.len() >= DIRECT_BYTES_MIN {
        Ok(Next::Large { header, meta, body: body.start..data.len() })
    } else {
        Ok(Next::Need(body.end - at))
    }
}
