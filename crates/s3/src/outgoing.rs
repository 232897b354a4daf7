//! An object's bytes as the body of an answer: one piece if it is small, else piece by piece as the
//! client takes them.

use bytes::Bytes;
use holdfast_base::Error;
use holdfast_blob::{Answer, ObjectReader, READ_BYTES};
use holdfast_env::budget::{Budget, Share};
use holdfast_env::runtime;
use http_body::{Frame, SizeHint};
use s3s::Body;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// What the store read, as the body owns it, and the memory that it takes.
struct Owned {
    read: holdfast_chunk::Bytes,
    _share: Option<Share>,
}

impl AsRef<[u8]> for Owned {
    fn as_ref(&self) -> &[u8] {
        self.read.as_slice()
    }
}

/// Without a copy; for what is small and counted elsewhere.
pub fn bytes_of(read: holdfast_chunk::Bytes) -> Bytes {
    Bytes::from_owner(Owned { read, _share: None })
}

fn paid(read: holdfast_chunk::Bytes, share: Share) -> Bytes {
    Bytes::from_owner(Owned { read, _share: Some(share) })
}

/// Time between two attempts to have memory for the next piece.
const MEMORY_WAIT: Duration = Duration::from_millis(10);

/// Waits for memory for the next piece, then reads it. Whoever does not take what is read waits
/// with what it has, so that others get on.
async fn next_piece(mut reader: ObjectReader, budget: Arc<Budget>) -> Step {
    let share = loop {
        match budget.take(READ_BYTES) {
            Some(share) => break share,
            None => runtime::sleep(MEMORY_WAIT).await,
        }
    };
    let read = reader.next().await.map(|read| read.map(|read| paid(read, share)));
    (reader, read)
}

type Step = (ObjectReader, Option<Answer<Bytes>>);

enum State {
    Idle(ObjectReader),
    Reading(Pin<Box<dyn Future<Output = Step> + Send>>),
    Over,
}

/// A body that is read from the stores while it is sent.
pub struct Outgoing {
    state: State,
    budget: Arc<Budget>,
    left: u64,
}

/// What was wanted of an object, as far as it was read.
pub enum Started {
    /// Read and checked.
    Whole(Bytes),
    /// Read while it is sent: a bad block then ends the connection.
    Streamed(Body),
}

impl Started {
    /// As an answer's body.
    pub fn into_body(self) -> Body {
        match self {
            Started::Whole(bytes) => Body::from(bytes),
            Started::Streamed(body) => body,
        }
    }
}

/// The bytes of a reader, of which there are `bytes`. What fits into one read is read now, so that
/// trouble with it is an answer and not a broken connection; so is it when there is no memory.
pub async fn start(mut reader: ObjectReader, bytes: u64, budget: &Arc<Budget>) -> Answer<Started> {
    let Some(share) = budget.take(bytes.min(READ_BYTES)) else {
        return Err(Error::retry("read an object: other clients have all memory for now").into());
    };
    let first = match reader.next().await {
        None => return Ok(Started::Whole(Bytes::new())),
        Some(first) => paid(first?, share),
    };
    if first.len() as u64 == bytes {
        return Ok(Started::Whole(first));
    }
    let rest = Outgoing {
        state: State::Idle(reader),
        budget: budget.clone(),
        left: bytes - first.len() as u64,
    };
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
                State::Idle(reader) => {
                    let next = next_piece(reader, self.budget.clone());
                    self.state = State::Reading(Box::pin(next));
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
                        return Poll::Ready(Some(Ok(Frame::data(read))));
                    }
                },
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
