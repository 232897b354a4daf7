//! Bodies of requests and of answers, and where their bytes live.

use super::peers::SharedBody;
use crate::buf::AlignedBuf;
use crate::region::{RegionMut, RegionSlice};
use holdfast_base::{Error, Result};
use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

/// The body of a request.
pub enum Body<'a> {
    Empty,
    /// In the receive buffer, until the batch ends.
    Borrowed(&'a [u8]),
    Owned(Vec<u8>),
    /// Where `body_target` wanted it.
    Region(RegionMut),
}

impl Body<'_> {
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Body::Empty => &[],
            Body::Borrowed(bytes) => bytes,
            Body::Owned(bytes) => bytes,
            Body::Region(window) => window,
        }
    }

    /// The bytes, to keep; copied if they are in the receive buffer or the region.
    pub fn into_vec(self) -> Vec<u8> {
        match self {
            Body::Owned(bytes) => bytes,
            other => other.as_slice().to_vec(),
        }
    }
}

/// A piece of an answer's body. It is kept until the kernel has its bytes.
pub enum BodyPart {
    Owned(Vec<u8>),
    Region(RegionSlice),
    Shared(Arc<Vec<u8>>, Range<usize>),
    Aligned(Arc<AlignedBuf>, Range<usize>),
    /// What several peers are sent.
    Peers(SharedBody),
    /// Bytes, and what is dropped together with them: how somebody hears that the kernel has them, or
    /// that the connection is gone.
    Told(Arc<Vec<u8>>, Range<usize>, Arc<dyn Any + Send + Sync>),
}

impl BodyPart {
    /// Panics when a range is outside its buffer.
    pub fn as_slice(&self) -> &[u8] {
        match self {
            BodyPart::Owned(bytes) => bytes,
            BodyPart::Region(slice) => slice,
            BodyPart::Shared(bytes, range) | BodyPart::Told(bytes, range, _) => {
                &bytes[range.clone()]
            }
            BodyPart::Aligned(bytes, range) => &bytes[range.clone()],
            BodyPart::Peers(body) => (**body).as_ref(),
        }
    }
}

/// The body of an answer.
pub enum Parts {
    None,
    One(BodyPart),
    Many(Vec<BodyPart>),
}

impl Parts {
    pub(super) fn as_slice(&self) -> &[BodyPart] {
        match self {
            Parts::None => &[],
            Parts::One(part) => std::slice::from_ref(part),
            Parts::Many(parts) => parts,
        }
    }

    pub fn bytes(&self) -> usize {
        self.as_slice().iter().map(|part| part.as_slice().len()).sum()
    }
}

impl From<()> for Parts {
    fn from((): ()) -> Parts {
        Parts::None
    }
}

impl From<BodyPart> for Parts {
    fn from(part: BodyPart) -> Parts {
        Parts::One(part)
    }
}

impl From<Vec<BodyPart>> for Parts {
    fn from(parts: Vec<BodyPart>) -> Parts {
        Parts::Many(parts)
    }
}

impl From<RegionSlice> for Parts {
    fn from(slice: RegionSlice) -> Parts {
        Parts::One(BodyPart::Region(slice))
    }
}

impl From<Vec<u8>> for Parts {
    fn from(bytes: Vec<u8>) -> Parts {
        Parts::One(BodyPart::Owned(bytes))
    }
}

/// An answer made away from the reactor.
pub struct Response {
    pub(super) result: Result<()>,
    pub(super) meta: Vec<u8>,
    pub(super) body: Parts,
}

impl Response {
    pub fn ok(meta: Vec<u8>, body: impl Into<Parts>) -> Response {
        Response { result: Ok(()), meta, body: body.into() }
    }

    pub fn error(error: Error) -> Response {
        Response { result: Err(error), meta: Vec::new(), body: Parts::None }
    }
}
