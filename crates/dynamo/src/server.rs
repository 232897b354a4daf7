//! DynamoDB's port: connections as S3's port keeps them, `POST /` with a target, a signature and a
//! JSON body, and an answer with its checksum and an id. Decides nothing about items.

use crate::answer::no_memory;
use crate::api::{Api, only_reads};
use crate::fault::{Fault, Result, Type};
use crate::users::{Head, Keys};
use crc_fast::{CrcAlgorithm, checksum};
use holdfast_env::budget::Share;
use holdfast_env::runtime::{self, Runtime};
use holdfast_env::tls::Certificates;
use holdfast_env::{Budget, Clock, RealRng, Rng, event};
use holdfast_s3::door::{self, Terms};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HOST, HeaderName, HeaderValue};
use hyper::service::Service;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use serde_json::Value as Json;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

/// Bytes of a request's body.
pub const BODY_BYTES_MAX: usize = 16 << 20;
/// What is held for a body, in bodies: as it came, as a document, as items, as an answer.
const BODY_COPIES: u64 = 8;
/// What a value of a parsed document takes, besides its own bytes.
const VALUE_BYTES: u64 = 128;
/// Of an answer that go out at once.
const FRAME_BYTES: usize = 64 << 10;
const TARGET: &str = "DynamoDB_20120810";
const JSON: &str = "application/x-amz-json-1.0";

/// What clients may take.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections at once; for further ones those that do least make way.
    pub connections: usize,
    /// What this process may hold for all of its clients, on whatever port.
    pub budget: Arc<Budget>,
    /// For the whole head of a request.
    pub head: Duration,
    /// Without a byte of a body or of an answer.
    pub stall: Duration,
    /// That serve connections.
    pub threads: usize,
}

/// Serves until it is dropped.
pub struct Server {
    runtimes: Vec<Runtime>,
}

#[derive(Clone)]
struct Door {
    api: Api,
    keys: Arc<dyn Keys>,
    clock: Arc<dyn Clock>,
    limits: Arc<Limits>,
    ids: Arc<AtomicU64>,
}

impl Server {
    /// Listens on `address`. Where there are certificates, other machines must speak TLS.
    pub fn start(
        address: SocketAddr,
        (api, keys, clock): (Api, Arc<dyn Keys>, Arc<dyn Clock>),
        limits: Limits,
        certificates: Option<Arc<Certificates>>,
    ) -> holdfast_base::Result<Server> {
        let within = (limits.head, limits.stall);
        let terms = Terms::new(limits.connections, within, certificates, &limits.budget);
        let threads = limits.threads;
        let ids = Arc::new(AtomicU64::new(RealRng.next_u64()));
        let door = Door { api, keys, clock, limits: Arc::new(limits), ids };
        let runtimes =
            door::listen(("dynamo", address, threads), &terms, move |_, _| door.clone())?;
        Ok(Server { runtimes })
    }

    /// Where it listens, with the port that was found for port 0.
    pub fn address(&self) -> Option<SocketAddr> {
        self.runtimes.first().map(Runtime::address)
    }
}

type Served = Pin<
    Box<dyn Future<Output = std::result::Result<Response<Whole>, Infallible>> + Send + 'static>,
>;

impl Service<Request<Incoming>> for Door {
    type Response = Response<Whole>;
    type Error = Infallible;
    type Future = Served;

    fn call(&self, request: Request<Incoming>) -> Served {
        let door = self.clone();
        Box::pin(async move { Ok(door.serve(request).await) })
    }
}

impl Door {
    async fn serve(self, request: Request<Incoming>) -> Response<Whole> {
        let (head, body) = request.into_parts();
        if head.method == Method::GET && head.uri.path() == "/" {
            // Asked by what watches over ports.
            let told = "healthy: dynamodb.us-east-1.amazonaws.com ";
            return self.answer(StatusCode::OK, "text/plain", told.into(), None);
        }
        let kind = head.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let kind = kind.unwrap_or_default().split(';').next().unwrap_or_default().trim();
        let is_json = [JSON, "application/json"].contains(&kind);
        if head.method != Method::POST || head.uri.path() != "/" || !is_json {
            let told = "<UnknownOperationException/>\n";
            return self.answer(StatusCode::NOT_FOUND, "text/plain", told.into(), None);
        }
        let kind = if kind == JSON { JSON } else { "application/json" };
        // Of a stranger no body is waited for: it would take memory that others could use.
        let asked = match self.look_at(&head.headers) {
            Ok(asked) => asked,
            Err(fault) => return self.refuse(fault, kind),
        };
        let (body, mut share) = match self.receive(body).await {
            Ok(received) => received,
            Err(Received::TooLarge) => {
                let why = Fault::shape(
                    "The body is larger than 16777216 bytes, or than this node has memory for",
                )
                .to_text();
                let status = StatusCode::PAYLOAD_TOO_LARGE;
                return self.answer(status, kind, why, None);
            }
            Err(Received::NoMemory) => {
                return self.refuse(no_memory(), kind);
            }
            Err(Received::Broken) => {
                return self.refuse(Fault::shape("The body did not come to its end"), kind);
            }
        };
        match self.carry_out(&head.headers, asked, &body, &mut share).await {
            Ok((answer, share)) => self.answer(StatusCode::OK, kind, answer, Some(share)),
            Err(fault) => self.refuse(fault, kind),
        }
    }

    /// What is looked at in which order is this: the target's form, who asks; with the body, whether it
    /// is theirs, its syntax, whether they may, what is asked.
    fn look_at<'h>(&self, headers: &'h HeaderMap) -> Result<(&'h str, Head<'h>)> {
        let target = text(headers, HeaderName::from_static("x-amz-target"));
        let operation = target.strip_prefix(TARGET).and_then(|rest| rest.strip_prefix('.'));
        let Some(operation) = operation else {
            return Err(Fault::new(
                Type::UnknownOperation,
                format!("The target '{target}' is not one of {TARGET}"),
            ));
        };
        Ok((operation, Head::read(headers, &*self.keys, self.clock.unix_ms())?))
    }

    async fn carry_out(
        &self,
        headers: &HeaderMap,
        (operation, head): (&str, Head<'_>),
        body: &[u8],
        share: &mut Share,
    ) -> Result<(String, Share)> {
        let key = head.check(headers, body)?;
        // Nobody's body is not looked at. A document takes many times its bytes where its values are
        // small.
        let values = body.iter().filter(|byte| matches!(byte, b',' | b':' | b'[' | b'{')).count();
        if !share.grow(values as u64 * VALUE_BYTES) {
            return Err(no_memory());
        }
        let parsed: Json =
            serde_json::from_slice(body).map_err(|_| Fault::shape("The body is not JSON"))?;
        let may = if only_reads(operation) { key.reads } else { key.writes };
        if !may {
            return Err(Fault::new(
                Type::AccessDenied,
                format!("This access key may not perform dynamodb:{operation}"),
            ));
        }
        self.api.call(operation, &parsed, text(headers, HOST)).await
    }

    /// The whole body, and the memory that is held for it.
    async fn receive(&self, mut body: Incoming) -> std::result::Result<(Vec<u8>, Share), Received> {
        let most = body.size_hint().upper().unwrap_or(BODY_BYTES_MAX as u64);
        let budget = &self.limits.budget;
        if most > BODY_BYTES_MAX as u64 || most * BODY_COPIES > budget.request_bytes_max() {
            return Err(Received::TooLarge);
        }
        let share = budget.take(most * BODY_COPIES).ok_or(Received::NoMemory)?;
        let mut whole = Vec::new();
        loop {
            let next = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx));
            let frame = match runtime::within(self.limits.stall, next).await {
                Some(Some(Ok(frame))) => frame,
                Some(None) => return Ok((whole, share)),
                Some(Some(Err(_))) | None => return Err(Received::Broken),
            };
            if let Some(data) = frame.data_ref() {
                if whole.len() + data.len() > BODY_BYTES_MAX {
                    return Err(Received::TooLarge);
                }
                whole.extend_from_slice(data);
            }
        }
    }

    fn refuse(&self, fault: Fault, kind: &'static str) -> Response<Whole> {
        let status = StatusCode::from_u16(fault.kind.status()).unwrap_or(StatusCode::BAD_REQUEST);
        let failed = (fault.kind == Type::InternalServerError).then(|| fault.message.clone());
        // There may be an item in it, or a hundred.
        let text = fault.to_text();
        let share = self.limits.budget.hold(text.len() as u64);
        let answer = self.answer(status, kind, text, Some(share));
        if let Some(why) = failed {
            let id = answer.headers().get("x-amzn-requestid");
            let id = id.and_then(|id| id.to_str().ok()).unwrap_or_default();
            event!(RequestFailed, why, request = id);
        }
        answer
    }

    fn answer(
        &self,
        status: StatusCode,
        kind: &'static str,
        body: String,
        share: Option<Share>,
    ) -> Response<Whole> {
        // Odd, so that all numbers come before one comes again.
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let id = self.ids.fetch_add(STEP, Ordering::Relaxed);
        let sum = checksum(CrcAlgorithm::Crc32IsoHdlc, body.as_bytes());
        let mut response = Response::new(Whole { bytes: Some(body.into()), _share: share });
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        for (name, value) in
            [("x-amzn-requestid", format!("{id:016X}")), ("x-amz-crc32", sum.to_string())]
        {
            if let Ok(value) = HeaderValue::try_from(value) {
                headers.insert(HeaderName::from_static(name), value);
            }
        }
        response
    }
}

fn text(headers: &HeaderMap, name: HeaderName) -> &str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// Why there is no body.
enum Received {
    TooLarge,
    NoMemory,
    Broken,
}

/// An answer's body: in pieces, so that its memory counts until the last one goes.
pub struct Whole {
    bytes: Option<Bytes>,
    /// Until it is sent.
    _share: Option<Share>,
}

impl http_body::Body for Whole {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, Infallible>>> {
        let Some(mut bytes) = self.bytes.take() else { return Poll::Ready(None) };
        let piece = bytes.split_to(bytes.len().min(FRAME_BYTES));
        self.bytes = Some(bytes).filter(|bytes| !bytes.is_empty());
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}
