//! An object's bytes as the body of an answer: one piece if it is small, else piece by piece as the
//! client takes them.

use bytes::Bytes;
use holdfast_blob::{Answer, ObjectReader};
use http_body::{Frame, SizeHint};
use s3s::Body;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// What the store read, as the body owns it.
struct Owned(holdfast_chunk::Bytes);

impl AsRef<[u8]> for Owned {
    fn as_ref(&self) -> &[u8] {
        self.0.as_slice()
    }
}

pub fn bytes_of(read: holdfast_chunk::Bytes) -> Bytes {
    Bytes::from_owner(Owned(read))
}

type Step = (ObjectReader, Option<Answer<holdfast_chunk::Bytes>>);

enum State {
    Idle(ObjectReader),
    Reading(Pin<Box<dyn Future<Output = Step> + Send>>),
    Over,
}

/// A body that is read from the stores while it is sent.
pub struct Outgoing {
    state: State,
    left: u64,
}

/// What was wanted of an object, as far as it was read.
pub enum Started {
    Whole(Bytes),
    Streamed(Body),
}

impl Started {
    pub fn into_body(self) -> Body {
        match self {
            Started::Whole(bytes) => Body::from(bytes),
            Started::Streamed(body) => body,
        }
    }
}

/// The bytes of a reader, of which there are `bytes`. What fits into one read is read now, so that
/// trouble with it is an answer and not a broken connection.
pub async fn start(mut reader: ObjectReader, bytes: u64) -> Answer<Started> {
    let first = match reader.next().await {
        None => return Ok(Started::Whole(Bytes::new())),
        Some(first) => bytes_of(first?),
    };
    if first.len() as u64 == bytes {
        return Ok(Started::Whole(first));
    }
    let rest = Outgoing { state: State::Idle(reader), left: bytes - first.len() as u64 };
    Ok(Started::Streamed(Body::http_body_unsync(Chained { first: Some(first), rest })))
}

/// A first piece that is there, then the rest.
struct Chained {
    first: Option<Bytes>,
    rest: Outgoing,
}

impl http_body::Body for Chained {
    type Data = Bytes;
    type Error = holdfast_base::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match self.first.take() {
            Some(first) => Poll::Ready(Some(Ok(Frame::data(first)))),
            None => Pin::new(&mut self.rest).poll_frame(cx),
        }
    }

    fn size_hint(&self) -> SizeHint {
        let first = self.first.as_ref().map_or(0, Bytes::len);
        SizeHint::with_exact(self.rest.left + first as u64)
    }
}

impl http_body::Body for Outgoing {
    type Data = Bytes;
    type Error = holdfast_base::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        loop {
            match std::mem::replace(&mut self.state, State::Over) {
                State::Over => return Poll::Ready(None),
                State::Idle(mut reader) => {
                    self.state = State::Reading(Box::pin(async move {
                        let read = reader.next().await;
                        (reader, read)
                    }));
                }
                State::Reading(mut reading) => match reading.as_mut().poll(cx) {
                    Poll::Pending => {
                        self.state = State::Reading(reading);
                        return Poll::Pending;
                    }
                    Poll::Ready((_, None)) => return Poll::Ready(None),
                    Poll::Ready((_, Some(Err(e)))) => return Poll::Ready(Some(Err(e.into()))),
                    Poll::Ready((reader, Some(Ok(read)))) => {
                        self.left = self.left.saturating_sub(read.len() as u64);
                        self.state = State::Idle(reader);
                        return Poll::Ready(Some(Ok(Frame::data(bytes_of(read)))));
                    }
                },
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
