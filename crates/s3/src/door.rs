//! One HTTP connection and what its client must do to keep it: send its heads and bodies, take its
//! answers, make way when it does nothing while others wait at the door. For every port that speaks
//! HTTP; what is answered is the service's.

use holdfast_env::Budget;
use holdfast_env::runtime::{self, Activity, Busy, Places, Timer};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Headers of one request, and bytes of its head.
const HEADERS_MAX: usize = 100;
const HEAD_BYTES_MAX: usize = 64 << 10;
/// How long a client may take nothing of its answer while memory is short.
const STALL_SHORT: Duration = Duration::from_secs(5);

/// What a port demands of its connections.
pub struct Terms {
    /// For the whole head of a request, from the first byte or the answer before.
    pub head: Duration,
    /// Without a byte of a body or of an answer.
    pub stall: Duration,
    /// How many connections there may be, and who makes way for another.
    pub places: Arc<Places>,
    /// While it is short, nobody may stand still for long.
    pub budget: Arc<Budget>,
}

/// Serves a connection as a task of its own, until either side ends it.
pub fn serve<I, S, B>(io: TokioIo<I>, service: S, terms: &Terms)
where
    TokioIo<I>: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
    S: Service<Request<Incoming>, Response = Response<B>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    B: http_body::Body + Unpin + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let Some(place) = terms.places.enter() else { return };
    let activity = place.activity();
    let (stall, budget) = (terms.stall, terms.budget.clone());
    let io = Patient { io, stall, budget, activity: activity.clone(), still: None };
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        // A client that has said all it will say still gets its answer.
        .half_close(true)
        .header_read_timeout(terms.head)
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(io, Counting { service, activity });
    // A client that breaks off is no news, nor is a runtime that ends.
    let _ = runtime::spawn(async move {
        let (mut connection, mut ends) = (pin!(connection), pin!(place.ends()));
        std::future::poll_fn(|cx| match ends.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => connection.as_mut().poll(cx).map(drop),
        })
        .await;
    });
}

/// Tells which requests are under way, from their heads to the ends of their answers.
struct Counting<S> {
    service: S,
    activity: Activity,
}

type Answered<B, E> = Pin<Box<dyn Future<Output = Result<Response<Counted<B>>, E>> + Send>>;

impl<S, B> Service<Request<Incoming>> for Counting<S>
where
    S: Service<Request<Incoming>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = Response<Counted<B>>;
    type Error = S::Error;
    type Future = Answered<B, S::Error>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let busy = self.activity.begin();
        let answer = self.service.call(request);
        Box::pin(async move { Ok(answer.await?.map(|body| Counted { body, _busy: busy })) })
    }
}

/// The body of an answer; its request is over when this is gone.
struct Counted<B> {
    body: B,
    _busy: Busy,
}

impl<B: http_body::Body + Unpin> http_body::Body for Counted<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A connection that ends when its client does not take what it asked for.
struct Patient<I> {
    io: I,
    stall: Duration,
    budget: Arc<Budget>,
    activity: Activity,
    /// While nothing is taken: the next look, and for how long already.
    still: Option<(Timer, Duration)>,
}

impl<I: hyper::rt::Read + Unpin> hyper::rt::Read for Patient<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<std::io::Result<()>> {
        let read = Pin::new(&mut self.io).poll_read(cx, buf);
        if read.is_ready() {
            self.activity.moved();
        }
        read
    }
}

impl<I> Patient<I> {
    fn judge(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<std::io::Result<usize>>,
    ) -> Poll<std::io::Result<usize>> {
        if written.is_ready() {
            self.activity.moved();
            self.still = None;
            return written;
        }
        let look = STALL_SHORT.min(self.stall);
        loop {
            let (timer, still) =
                self.still.get_or_insert_with(|| (Timer::after(look), Duration::ZERO));
            if timer.poll(cx).is_pending() {
                return Poll::Pending;
            }
            *still += look;
            let short = self.budget.is_short();
            if short || *still >= self.stall {
                return Poll::Ready(Err(std::io::ErrorKind::TimedOut.into()));
            }
            timer.restart(look);
        }
    }
}

impl<I: hyper::rt::Write + Unpin> hyper::rt::Write for Patient<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(cx, buf);
        self.judge(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        self.judge(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
