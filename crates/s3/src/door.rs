//! One HTTP connection and what its client must do to keep it: shake hands where it speaks TLS, send
//! its heads and bodies, take its answers, make way when it does nothing while others wait at the
//! door. For every port that speaks HTTP; what is answered is the service's.

use holdfast_base::Result;
use holdfast_env::budget::Share;
use holdfast_env::runtime::{self, Activity, Busy, NO_TLS, Places, Runtime, Stream, Timer};
use holdfast_env::tls::{Certificates, ClientCertificates, TLS_BEGINS};
use holdfast_env::{Budget, planted};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::header::{CONNECTION, EXPECT, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Headers of one request, and bytes of its head.
const HEADERS_MAX: usize = 100;
const HEAD_BYTES_MAX: usize = 64 << 10;
/// What is spoken inside of TLS.
const ALPN: &[&[u8]] = &[b"http/1.1"];
/// What TLS holds of a connection at rest: measured as 40 KiB more than of a plain one.
pub const TLS_BYTES: u64 = 64 << 10;
/// And within a handshake, whose peer may make it keep a first message of 64 KiB: 120 KiB.
pub const TLS_HANDSHAKE_BYTES: u64 = 128 << 10;
/// Those at rest never hold more than this part of what the process may hold for all of its clients:
/// the idlest make way before.
const TLS_SHARE: u64 = 4;
/// How long a client may take nothing of its answer, or say nothing in a handshake, while memory is
/// short.
const STALL_SHORT: Duration = Duration::from_secs(5);

/// What a port demands of its connections.
pub struct Terms {
    /// Where there are some, a connection may speak TLS, and must if it comes from another machine.
    pub certificates: Option<Arc<Certificates>>,
    /// For a handshake; then for the whole head of a request, from the first byte or the answer
    /// before.
    pub head: Duration,
    /// Without a byte of a body or of an answer.
    pub stall: Duration,
    /// How many connections there may be, and who makes way for another.
    pub places: Arc<Places>,
    /// While it is short, nobody may stand still for long.
    pub budget: Arc<Budget>,
}

impl Terms {
    /// Those of a port that wants so many connections. `head` and `stall` are as in the fields.
    pub fn new(
        connections: usize,
        (head, stall): (Duration, Duration),
        certificates: Option<Arc<Certificates>>,
        budget: &Arc<Budget>,
    ) -> Arc<Terms> {
        let places = Places::new(places(connections, certificates.as_ref(), budget));
        Arc::new(Terms { certificates, head, stall, places, budget: budget.clone() })
    }
}

/// Serves a port by threads of its own: `service` is made for each connection, by where it comes from and
/// whether it is encrypted.
pub fn listen<S, B>(
    (name, address, threads): (&str, SocketAddr, usize),
    terms: &Arc<Terms>,
    service: impl Fn(IpAddr, bool) -> S + Clone + Send + 'static,
) -> Result<Vec<Runtime>>
where
    S: Service<Request<Incoming>, Response = Response<B>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    B: http_body::Body + Unpin + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let terms = terms.clone();
    runtime::serve_on_threads(name, address, threads, move |listener| {
        let (service, terms) = (service.clone(), terms.clone());
        async move {
            loop {
                let Ok((stream, peer)) = listener.accept().await else {
                    // Out of descriptors, or the client is gone again.
                    runtime::sleep(Duration::from_millis(10)).await;
                    continue;
                };
                // Without it, an answer's last bytes wait for the client's.
                let _ = stream.set_nodelay(true);
                let (service, address) = (service.clone(), peer.ip());
                serve(stream, address, move |is_encrypted| service(address, is_encrypted), &terms);
            }
        }
    })
}

/// How many connections a port has that wants `most`: TLS takes memory of each before anything is
/// known of its peer.
pub fn places(most: usize, certificates: Option<&Arc<Certificates>>, budget: &Budget) -> usize {
    let fit = usize::try_from(budget.limit() / TLS_SHARE / TLS_BYTES).unwrap_or(usize::MAX);
    if certificates.is_none() || planted!("s3.tls-memory-uncounted") { most } else { most.min(fit) }
}

/// Serves a connection from `peer` as a task of its own, until either side ends it. `service` is
/// made when it is known whether the connection is encrypted, which is its argument.
pub fn serve<S, B>(
    stream: impl Into<Stream>,
    peer: IpAddr,
    service: impl FnOnce(bool) -> S + Send + 'static,
    terms: &Terms,
) where
    S: Service<Request<Incoming>, Response = Response<B>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    B: http_body::Body + Unpin + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let Some(place) = terms.places.enter() else { return };
    let (stream, activity) = (stream.into(), place.activity());
    let (head, stall, budget) = (terms.head, terms.stall, terms.budget.clone());
    let certificates = terms.certificates.clone();
    let connection = async move {
        let begun = runtime::within(head, begin(stream, peer, (certificates, &budget))).await;
        let Some(Some((stream, _held))) = begun else { return };
        let service = service(stream.is_tls());
        let io = TokioIo::new(stream);
        let io = Patient { io, stall, budget, activity: activity.clone(), still: None };
        let served = http1::Builder::new()
            .timer(TokioTimer::new())
            // A client that has said all it will say still gets its answer.
            .half_close(true)
            .header_read_timeout(head)
            .max_headers(HEADERS_MAX)
            .max_buf_size(HEAD_BYTES_MAX)
            .serve_connection(io, Counting { service, activity });
        // A client that breaks off is no news.
        let _ = served.await;
    };
    // Nor is a runtime that ends.
    let _ = runtime::spawn(async move {
        let (mut connection, mut ends) = (pin!(connection), pin!(place.ends()));
        std::future::poll_fn(|cx| match ends.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => connection.as_mut().poll(cx),
        })
        .await;
    });
}

/// How a connection is to be spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Tls,
    Plain,
    /// It asks for TLS, and there are no certificates.
    NoTls,
    /// It comes from another machine, and would be plain where there is TLS.
    NeedsTls,
}

fn way(first: u8, has_certificates: bool, peer: IpAddr) -> Way {
    match (first == TLS_BEGINS, has_certificates) {
        (true, true) => Way::Tls,
        (true, false) => Way::NoTls,
        // An address of version 4 that is written as one of version 6 is what it was.
        (false, true)
            if !peer.to_canonical().is_loopback() && !planted!("s3.plain-for-everybody") =>
        {
            Way::NeedsTls
        }
        (false, _) => Way::Plain,
    }
}

/// Nothing where the connection is over, which it has been told. What TLS holds of it is counted.
async fn begin(
    stream: Stream,
    peer: IpAddr,
    (certificates, budget): (Option<Arc<Certificates>>, &Arc<Budget>),
) -> Option<(Stream, Option<Share>)> {
    let first = stream.first_byte().await?;
    match (way(first, certificates.is_some(), peer), certificates) {
        (Way::Tls, Some(certificates)) => {
            let config = certificates.server(ALPN, ClientCertificates::Ignored, false);
            let counted = !planted!("s3.tls-memory-uncounted");
            let mut held = counted.then(|| budget.hold(TLS_HANDSHAKE_BYTES));
            let stream = unless_short(budget, STALL_SHORT, stream.into_tls(config)).await??;
            held.iter_mut().for_each(|held| held.shrink(TLS_BYTES));
            Some((stream, held))
        }
        (Way::NeedsTls, _) => {
            let answer = needs_tls(&stream);
            stream.farewell(answer.as_bytes()).await;
            None
        }
        (Way::NoTls | Way::Tls, _) => {
            stream.farewell(&NO_TLS).await;
            None
        }
        (Way::Plain, _) => Some((stream, None)),
    }
}

/// What comes of it, unless it takes longer than `patience` and memory is short then.
async fn unless_short<T>(
    budget: &Budget,
    patience: Duration,
    future: impl Future<Output = T>,
) -> Option<T> {
    let mut future = pin!(future);
    loop {
        match runtime::within(patience, future.as_mut()).await {
            None if budget.is_short() => return None,
            None => {}
            done => return done,
        }
    }
}

fn needs_tls(stream: &Stream) -> String {
    let place = stream.local_address().map_or("...".to_owned(), |address| address.to_string());
    let why = format!("this port speaks TLS: use https://{place}\n");
    format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n{why}",
        why.len()
    )
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
        let awaits = Awaits::of(&request);
        let answer = self.service.call(request);
        Box::pin(async move {
            let mut response = answer.await?;
            if awaits.ends_with(response.status()) {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok(response.map(|body| Counted { body, _busy: busy }))
        })
    }
}

/// Whether a client waits for `100 Continue` before it sends a body.
#[derive(Clone, Copy)]
enum Awaits {
    No,
    /// To send one of no bytes, or one that nobody takes.
    Nothing,
    Something,
}

impl Awaits {
    fn of<B: http_body::Body>(request: &Request<B>) -> Awaits {
        let expects = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"100-continue");
        let takes_body = [Method::PUT, Method::POST].contains(request.method());
        match request.headers().get(EXPECT).is_some_and(expects) {
            false => Awaits::No,
            true if takes_body && request.body().size_hint().exact() != Some(0) => {
                Awaits::Something
            }
            true => Awaits::Nothing,
        }
    }

    /// Whether its connection ends with the answer. It gets this one without a word to go on, where there is nothing
    /// to go on with and where it is refused; then boto3 and the AWS command line take the answer's status for that of
    /// the next one on the same connection, and the next one's for a header: they hang, or believe that what was
    /// refused was stored. What does not come is no body, either, that could be passed over.
    fn ends_with(self, status: StatusCode) -> bool {
        match self {
            Awaits::No => false,
            Awaits::Nothing => !planted!("s3.goes-on-behind-nothing"),
            Awaits::Something => !status.is_success() && !planted!("s3.goes-on-behind-refusals"),
        }
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
        self.moved_if(read.is_ready());
        read
    }
}

impl<I> Patient<I> {
    fn moved_if(&self, has_moved: bool) {
        if has_moved {
            self.activity.moved();
        }
    }

    /// What came of writing, or the end of patience.
    fn judge<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<std::io::Result<T>>,
    ) -> Poll<std::io::Result<T>> {
        if written.is_ready() {
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
        self.moved_if(written.is_ready());
        self.judge(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        self.moved_if(written.is_ready());
        self.judge(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        // TLS has taken bytes that the client has not.
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        if planted!("s3.flush-waits-for-ever") {
            return flushed;
        }
        self.judge(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let ended = Pin::new(&mut self.io).poll_shutdown(cx);
        self.judge(cx, ended)
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "clients are played by hand")]
mod tests;
