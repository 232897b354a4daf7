//! What a request costs whoever sends it: its turn among those of the same access key, or address,
//! and its bytes both ways. What is allowed is `env`'s to know, and whose the request is access
//! control's; a request of somebody without limits has no tab, or one that nobody writes on.

use bytes::Bytes;
use holdfast_base::rates::Turn;
use holdfast_env::clients::{Client, Clients};
use holdfast_env::{Clock, runtime};
use http_body::{Frame, SizeHint};
use hyper::HeaderMap;
use hyper::header::{HeaderValue, RETRY_AFTER};
use s3s::{Body, S3Result, StdError, s3_error};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

/// How long a request waits for its turn; one that would wait longer is refused at once, so that
/// places and connections are not full of those who wait.
const WAIT_NS_MAX: u64 = 2_000_000_000;

/// Goes with a request whose client may have limits.
pub struct Tab {
    clients: Arc<Clients>,
    clock: Arc<dyn Clock>,
    /// Whose it is, once that is known.
    client: OnceLock<Client>,
    /// Bytes from before.
    early_bytes: AtomicU64,
}

impl Tab {
    /// Of a request of which nothing is known yet.
    pub fn new(clients: Arc<Clients>, clock: Arc<dyn Clock>) -> Arc<Tab> {
        let (client, early_bytes) = (OnceLock::new(), AtomicU64::new(0));
        Arc::new(Tab { clients, clock, client, early_bytes })
    }

    /// Waits for the turn of a request that may be answered, or refuses it.
    pub async fn wait(&self, client: Client) -> S3Result<()> {
        if !self.clients.has_rates(&client) {
            return Ok(());
        }
        let now_ns = self.clock.monotonic_ns();
        match self.clients.reserve(&client, now_ns, WAIT_NS_MAX) {
            Turn::Go { .. } => {}
            Turn::Wait(wait) => runtime::sleep(Duration::from_nanos(wait.ns)).await,
            Turn::Refuse(wait) => {
                let limit = self.clients.limit(&client, wait.limit);
                let mut e = s3_error!(
                    SlowDown,
                    "Please reduce your request rate: {client} may take no more of this node than {limit}"
                );
                let seconds = HeaderValue::from(Duration::from_nanos(wait.ns).as_secs() + 1);
                e.set_headers(HeaderMap::from_iter([(RETRY_AFTER, seconds)]));
                return Err(e);
            }
        }
        let early_bytes = self.early_bytes.swap(0, Ordering::Relaxed);
        let client = self.client.get_or_init(|| client);
        self.clients.take(client, now_ns, 0, early_bytes);
        Ok(())
    }

    /// Takes note of bytes that came or went.
    pub fn bytes(&self, bytes: usize) {
        match self.client.get() {
            Some(client) => {
                self.clients.take(client, self.clock.monotonic_ns(), 0, bytes as u64);
            }
            None => drop(self.early_bytes.fetch_add(bytes as u64, Ordering::Relaxed)),
        }
    }

    /// The body of the answer, which is counted as it is sent.
    pub fn counts(self: Arc<Self>, body: Body) -> Body {
        if self.client.get().is_none() {
            return body;
        }
        match body.bytes() {
            Some(whole) => {
                self.bytes(whole.len());
                body
            }
            None => Body::http_body_unsync(Counted { body, tab: self }),
        }
    }
}

struct Counted {
    body: Body,
    tab: Arc<Tab>,
}

impl http_body::Body for Counted {
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StdError>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            self.tab.bytes(frame.data_ref().map_or(0, Bytes::len));
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        http_body::Body::size_hint(&self.body)
    }
}
