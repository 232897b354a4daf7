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
    let direct = body.len() >= DIRECT_BYTES_MIN.size();
    if direct {
        DIRECT_BYTES_MIN.cross();
    }
    if body.end <= data.len() {
        Ok(Next::Request { header, meta, body })
    } else if direct {
        Ok(Next::Large { header, meta, body: body.start..data.len() })
    } else {
        Ok(Next::Need(body.end - at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Rng, SeededRng};

    /// A stream of requests, and where each ends.
    fn stream(rng: &SeededRng) -> (Vec<u8>, Vec<usize>) {
        let mut data = Vec::new();
        let mut ends = Vec::new();
        for id in 1..=1 + rng.next_u64() % 6 {
            let size = || [0, 1, 40, 3000, 16383, 16384, 40_000];
            let meta = size()[rng.next_u64() as usize % 7];
            let body = size()[rng.next_u64() as usize % 7];
            frame::encode(&mut data, FrameKind::Request, 9, id, 0, body as u32, |m| {
                m.resize(m.len() + meta, id as u8)
            });
            data.resize(data.len() + body, id as u8);
            ends.push(data.len());
        }
        (data, ends)
    }

    /// What must hold of any answer to any bytes; gives the place behind a whole request.
    fn check(data: &[u8], at: usize) -> Option<usize> {
        match next(data, at).ok()? {
            Next::Need(bytes) => {
                assert!(bytes > data.len() - at, "{bytes} bytes at {at} of {}", data.len());
                None
            }
            Next::Request { header, meta, body } => {
                assert_eq!((meta.start, body.start), (at + HEADER_BYTES, meta.end));
                assert_eq!(meta.len(), header.meta_bytes as usize);
                assert_eq!(body.len(), header.body_bytes as usize);
                assert!(body.end <= data.len());
                Some(body.end)
            }
            Next::Large { header, meta, body } => {
                assert_eq!((meta.start, body.start), (at + HEADER_BYTES, meta.end));
                assert!(body.end == data.len() && body.len() < header.body_bytes as usize);
                assert!(header.body_bytes as usize >= DIRECT_BYTES_MIN.size());
                None
            }
        }
    }

    #[test]
    fn every_prefix_of_sound_requests_gives_the_same_places() {
        let rng = SeededRng::new(1);
        for _ in 0..20 {
            let (data, ends) = stream(&rng);
            for cut in (0..data.len()).step_by(1 + rng.next_u64() as usize % 97) {
                let mut found = Vec::new();
                let mut at = 0;
                while at < cut
                    && let Some(end) = check(&data[..cut], at)
                {
                    found.push(end);
                    at = end;
                }
                let whole = ends.iter().filter(|end| **end <= cut).count();
                assert_eq!(found, ends[..whole], "cut at {cut}");
                assert!(at == cut || next(&data[..cut], at).is_ok(), "cut at {cut}");
            }
        }
    }

    #[test]
    fn damaged_and_random_bytes_are_refused_or_bounded_never_a_panic() {
        let rng = SeededRng::new(2);
        for _ in 0..3000 {
            let (mut data, _) = stream(&rng);
            for _ in 0..1 + rng.next_u64() % 4 {
                let place = rng.next_u64() as usize % data.len().min(400);
                match rng.next_u64() % 3 {
                    0 => data[place] ^= 1 << (rng.next_u64() % 8),
                    1 => data.truncate(place + 1),
                    _ => data[place..].iter_mut().take(8).for_each(|b| *b = rng.next_u64() as u8),
                }
            }
            let mut at = rng.next_u64() as usize % 3 * 16 % data.len();
            while at < data.len()
                && let Some(end) = check(&data, at)
            {
                assert!(end > at);
                at = end;
            }
        }
    }

    #[test]
    fn answers_and_reserved_ids_are_not_requests() {
        for (kind, id) in [(FrameKind::Response, 1), (FrameKind::Part, 1), (FrameKind::Request, 0)]
        {
            let mut data = Vec::new();
            frame::encode(&mut data, kind, 9, id, 0, 0, |_| {});
            assert!(next(&data, 0).is_err());
        }
    }
}
