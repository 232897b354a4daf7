//! The log over HTTP: `POST /log/TOPIC` appends, `GET /log/TOPIC` reads, or follows as a stream of
//! events. Whoever asks sends a token (`holdfast token create`), which is shown to the node's own
//! native port: who may do what, what a client may take, and what the audit trail hears of it are
//! decided there, as for every client. Keeps nothing between two requests.

use super::Door;
use crate::log::as_json;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Path, Request, State};
use axum::http::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use holdfast_base::ids::Index;
use holdfast_base::{Error, Kind, Reason, Result};
use holdfast_client::aio::{AsyncClient, AsyncLogReader};
use holdfast_client::{ClientOptions, Endpoint};
use holdfast_env::budget::{Asker, Budget, Share};
use holdfast_env::runtime::within;
use holdfast_env::secret::Token;
use holdfast_wire::log::writers::{Numbered, check_writer, numbers};
use holdfast_wire::log::{APPEND_BYTES_MAX, Indexed};
use http_body::Frame;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::json;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// For a body to come.
const BODY_PATIENCE: Duration = Duration::from_secs(60);
/// Entries of one read of the log; what is sent waits for its reader, a page at a time.
const PAGE_ENTRIES_MAX: u32 = 1000;
/// Around an entry, as JSON.
const ENTRY_TEXT_BYTES: usize = 40;
/// Entries of a read, where nobody says how many.
const COUNT: u64 = 1000;
/// How long the node may take; and how often somebody who follows a quiet topic hears that it is
/// there.
const DEADLINE_MS: u32 = 10_000;

const EVENT_STREAM: &str = "text/event-stream";
const LINES: &str = "application/x-ndjson";

/// What is said behind the `?`.
fn parameters(query: Option<&str>, known: &[&str]) -> Result<BTreeMap<String, String>> {
    let pairs = form_urlencoded::parse(query.unwrap_or("").as_bytes());
    let pair = |(name, value): (Cow<'_, str>, Cow<'_, str>)| match known.contains(&&*name) {
        true => Ok((name.into_owned(), value.into_owned())),
        false => Err(Error::invalid(format!(
            "ask for the log: it knows no `{}`: use {}",
            name.escape_debug(),
            known.join(", ")
        ))),
    };
    pairs.map(pair).collect()
}

/// A name alone asks for it, as `=1` does; `=0` does not, as if it were not there.
fn is_asked(asked: &BTreeMap<String, String>, name: &str) -> Result<bool> {
    match asked.get(name).map(String::as_str) {
        Some("" | "1") => Ok(true),
        None | Some("0") => Ok(false),
        Some(other) => Err(Error::invalid(format!(
            "ask for the log: `{name}` is `{}`: give 1 or 0",
            other.escape_debug()
        ))),
    }
}

fn number(name: &str, text: &str) -> Result<u64> {
    let wrong = |_| {
        let text = text.escape_debug();
        Error::invalid(format!("ask for the log: `{name}` is `{text}`: give a number"))
    };
    text.parse().map_err(wrong)
}

/// Who asks, by the native protocol.
async fn client(door: &Door, headers: &HeaderMap) -> Result<AsyncClient> {
    let given = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let (scheme, token) = given.and_then(|given| given.split_once(' ')).unwrap_or(("", ""));
    // Schemes have no case: RFC 9110, 11.1.
    let token = Token::parse(token.trim()).filter(|_| scheme.eq_ignore_ascii_case("bearer"));
    let Some(token) = token else {
        return Err(Error::denied(
            "use the log: send `Authorization: Bearer TOKEN`, with what `holdfast token create NAME --allow log:TOPIC:rw` printed",
        )
        .because(Reason::Unproved));
    };
    let Some(native) = door.native else {
        return Err(Error::unsupported(
            "use the log: the node's native port, which proves tokens, is switched off: set `native_port`",
        ));
    };
    let options = ClientOptions {
        token: Some(token),
        deadline_ms: DEADLINE_MS,
        // Whoever asked is told to come again.
        patience: Duration::ZERO,
        ..ClientOptions::default()
    };
    let endpoint = Endpoint::parse(&native.to_string())?;
    AsyncClient::connect(&endpoint, &options).await.map_err(|e| match e.kind {
        Kind::Denied => e.context("use the log").because(Reason::Unproved),
        _ => e,
    })
}

fn status(e: &Error) -> StatusCode {
    match e.kind {
        Kind::Denied if e.is(Reason::Unproved) => StatusCode::UNAUTHORIZED,
        Kind::Denied => StatusCode::FORBIDDEN,
        Kind::Invalid if e.is(Reason::TooLarge) => StatusCode::PAYLOAD_TOO_LARGE,
        Kind::Invalid if e.is(Reason::Trimmed) => StatusCode::GONE,
        Kind::Invalid => StatusCode::BAD_REQUEST,
        Kind::NotFound => StatusCode::NOT_FOUND,
        Kind::Exists => StatusCode::CONFLICT,
        Kind::Full => StatusCode::INSUFFICIENT_STORAGE,
        Kind::Unsupported => StatusCode::NOT_IMPLEMENTED,
        Kind::Retry | Kind::Fenced | Kind::ReadOnly => StatusCode::SERVICE_UNAVAILABLE,
        Kind::Corrupt | Kind::Bug => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

fn refused(e: &Error) -> Response {
    let (status, why) = (status(e), format!("{}\n", e.message));
    match status {
        StatusCode::UNAUTHORIZED => (status, [(WWW_AUTHENTICATE, "Bearer")], why).into_response(),
        _ => (status, why).into_response(),
    }
}

/// `POST /log/TOPIC`: the body is an entry, or with `lines=1` each of its lines is one.
pub async fn append(
    State(door): State<Door>,
    Path(topic): Path<String>,
    request: Request,
) -> Response {
    appended(&door, &topic, request).await.unwrap_or_else(|e| refused(&e))
}

/// The whole body, or what is answered in its place.
async fn whole(topic: &str, body: Body) -> std::result::Result<Bytes, (StatusCode, String)> {
    let refused = |status, why: &str| {
        Err((status, format!("append to topic `{}`: {why}\n", topic.escape_debug())))
    };
    match within(BODY_PATIENCE, Limited::new(body, APPEND_BYTES_MAX).collect()).await {
        Some(Ok(body)) => Ok(body.to_bytes()),
        Some(Err(e)) if e.is::<LengthLimitError>() => refused(
            StatusCode::PAYLOAD_TOO_LARGE,
            &format!("the body has more than {APPEND_BYTES_MAX} bytes: send less at a time"),
        ),
        Some(Err(e)) => refused(
            StatusCode::BAD_REQUEST,
            &format!("the body did not come whole ({e}): nothing was kept, send it again"),
        ),
        None => refused(
            StatusCode::REQUEST_TIMEOUT,
            "the body took longer than a minute: nothing was kept, send less at a time",
        ),
    }
}

async fn appended(door: &Door, topic: &str, request: Request) -> Result<Response> {
    let asked = parameters(request.uri().query(), &["lines", "writer", "number"])?;
    let lines = is_asked(&asked, "lines")?;
    let client = client(door, request.headers()).await?;
    let body = match whole(topic, request.into_body()).await {
        Ok(body) => body,
        Err(refused) => return Ok(refused.into_response()),
    };
    let entries = entries(&body, lines);
    let entries: Vec<Vec<u8>> = match (asked.get("writer"), asked.get("number")) {
        (None, None) => entries.into_iter().map(<[u8]>::to_vec).collect(),
        (Some(writer), Some(first)) => {
            check_writer(writer)?;
            let numbers = numbers(number("number", first)?, entries.len())?;
            let numbered = numbers.zip(entries);
            numbered.map(|(number, bytes)| Numbered { writer, number, bytes }.encode()).collect()
        }
        _ => {
            return Err(Error::invalid(format!(
                "append to topic `{topic}`: `writer` and `number` belong together: give both, or none"
            )));
        }
    };
    let indices = client.log_append(topic, entries).await?;
    let (first, last) = (indices.first(), indices.last());
    let said = json!({"topic": topic, "first": first.0, "last": last.0});
    Ok(([(CONTENT_TYPE, "application/json")], format!("{said}\n")).into_response())
}

/// A line feed at the end ends the last line, and begins none. An empty line is an entry without bytes, as
/// `holdfast log append` has it; a body without bytes has no line.
fn entries(body: &[u8], lines: bool) -> Vec<&[u8]> {
    match (lines, body) {
        (false, _) => vec![body],
        (true, []) => Vec::new(),
        (true, body) => {
            body.strip_suffix(b"\n").unwrap_or(body).split(|byte| *byte == b'\n').collect()
        }
    }
}

/// `GET /log/TOPIC`: from an index on, as lines of JSON; with `follow=1` as events, without end.
pub async fn read(
    State(door): State<Door>,
    Path(topic): Path<String>,
    request: Request,
) -> Response {
    begun(&door, &topic, request).await.unwrap_or_else(|e| refused(&e))
}

async fn begun(door: &Door, topic: &str, request: Request) -> Result<Response> {
    let asked = parameters(request.uri().query(), &["from", "count", "follow"])?;
    let follow = is_asked(&asked, "follow")?;
    let client = client(door, request.headers()).await?;
    let not_there = || Error::not_found(format!("read topic `{topic}`: there is none"));
    let info = client.log_info(topic).await?.ok_or_else(not_there)?;
    // Who was cut off goes on behind the last event that came.
    let last = request.headers().get("last-event-id").filter(|_| follow);
    let from = match (last, asked.get("from")) {
        (Some(last), _) => {
            Index(number("Last-Event-ID", last.to_str().unwrap_or("?"))?.saturating_add(1))
        }
        (None, Some(from)) => Index(number("from", from)?),
        (None, None) if follow => info.next,
        (None, None) => info.first,
    };
    let count = asked.get("count").map(|count| number("count", count)).transpose()?;
    let left = count.unwrap_or(if follow { u64::MAX } else { COUNT });
    let mut reader = client.log_reader(topic, from, info.first).await?;
    // What is wrong with the question is said by the status.
    let first = reader.read(page(left.max(1)), false).await?.filter(|_| left > 0);
    let bytes: usize = first.iter().flatten().map(text_bytes).sum();
    if !door.budget.would_admit(0, bytes as u64, Asker::Client) {
        return Err(no_room());
    }
    let kind = if follow { EVENT_STREAM } else { LINES };
    let (budget, next) = (door.budget.clone(), Next::Page(reader, first));
    let pages = Pages { follow, left, next, budget, waits: None };
    Ok(([(CONTENT_TYPE, kind), (CACHE_CONTROL, "no-store")], Body::new(pages)).into_response())
}

/// Of an entry as text, about: half of what it may be as `hex`.
fn text_bytes(entry: &Indexed) -> usize {
    entry.bytes.len() + ENTRY_TEXT_BYTES
}

fn no_room() -> Error {
    Error::retry(
        "read the log: what clients have not taken yet has used up `clients_memory`: ask again",
    )
}

fn page(left: u64) -> u32 {
    PAGE_ENTRIES_MAX.min(u32::try_from(left).unwrap_or(u32::MAX))
}

type Read = Result<Option<Vec<Indexed>>>;

enum Next {
    /// It was read already.
    Page(AsyncLogReader, Option<Vec<Indexed>>),
    Reads(Pin<Box<dyn Future<Output = (AsyncLogReader, Read)> + Send>>),
    End,
}

/// An answer that reads the log as it is taken: one page is held for a reader, however slow.
struct Pages {
    follow: bool,
    left: u64,
    next: Next,
    budget: Arc<Budget>,
    /// For the page that its reader is taking.
    waits: Option<Share>,
}

impl Pages {
    /// Takes the page's bytes from what all clients may hold, and gives back those of the one before.
    /// Refused where others hold it: the stream breaks off, and whoever follows begins behind its last
    /// event.
    fn admit(&mut self, bytes: usize) -> Result<()> {
        self.waits = None;
        self.waits = self.budget.take(bytes as u64);
        match self.waits {
            Some(_) => Ok(()),
            None => Err(no_room()),
        }
    }

    fn text(&mut self, entries: &[Indexed]) -> Bytes {
        self.left -= (entries.len() as u64).min(self.left);
        let event = |entry: &Indexed| match self.follow {
            true => {
                format!("id: {}\ndata: {}\n\n", entry.index, as_json(entry.index, &entry.bytes))
            }
            false => format!("{}\n", as_json(entry.index, &entry.bytes)),
        };
        Bytes::from(entries.iter().map(event).collect::<String>())
    }
}

impl HttpBody for Pages {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>>>> {
        loop {
            let (reader, entries) = match std::mem::replace(&mut self.next, Next::End) {
                Next::End => return Poll::Ready(None),
                Next::Page(reader, entries) => (reader, entries),
                Next::Reads(mut reads) => match reads.as_mut().poll(cx) {
                    Poll::Pending => {
                        self.next = Next::Reads(reads);
                        return Poll::Pending;
                    }
                    // A stream that breaks off shows that it is not whole.
                    Poll::Ready((_, Err(e))) => return Poll::Ready(Some(Err(e))),
                    Poll::Ready((reader, Ok(entries))) => (reader, entries),
                },
            };
            let text = match entries {
                Some(entries) => self.text(&entries),
                None if self.follow => Bytes::from_static(b": nothing new\n\n"),
                None => return Poll::Ready(None),
            };
            if self.left > 0 {
                let (mut reader, count, follow) = (reader, page(self.left), self.follow);
                self.next = Next::Reads(Box::pin(async move {
                    let entries = reader.read(count, follow).await;
                    (reader, entries)
                }));
            }
            // A page of repeats has no text, and an empty frame would end nothing and say nothing.
            if !text.is_empty() {
                if let Err(e) = self.admit(text.len()) {
                    self.next = Next::End;
                    return Poll::Ready(Some(Err(e)));
                }
                return Poll::Ready(Some(Ok(Frame::data(text))));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_an_entry_or_each_of_its_lines_is_one() {
        assert_eq!(entries(b"a\nb\n", false), [b"a\nb\n"]);
        assert_eq!(entries(b"", false), [b""]);
        assert_eq!(entries(b"a\nb\n", true), [b"a", b"b"]);
        assert_eq!(entries(b"a\n\nb", true), [&b"a"[..], b"", b"b"]);
        assert_eq!(entries(b"", true), Vec::<&[u8]>::new());
        // One empty line was no line, and two were two: what there is of a file's end decides nothing.
        assert_eq!(entries(b"\n", true), [b""]);
        assert_eq!(entries(b"\n\n", true), [b"", b""]);
        assert_eq!(entries(b"a\n\n", true), [&b"a"[..], b""]);
    }

    #[test]
    fn what_nobody_knows_is_refused_by_name() {
        let known = ["from", "count"];
        let asked = parameters(Some("from=3&count=4"), &known).unwrap();
        assert_eq!((asked["from"].as_str(), asked["count"].as_str()), ("3", "4"));
        assert!(parameters(None, &known).unwrap().is_empty());
        let e = parameters(Some("form=3"), &known).unwrap_err();
        assert!(e.message.contains("`form`") && e.message.contains("from, count"), "{e}");
        // As browsers and libraries write them.
        let asked = parameters(Some("from=%33&count"), &known).unwrap();
        assert_eq!(asked["from"], "3");
        let is = |query, name| is_asked(&parameters(Some(query), &known).unwrap(), name);
        for (query, wanted) in [("count", true), ("count=1", true), ("count=0", false), ("", false)]
        {
            assert_eq!(is(query, "count"), Ok(wanted), "{query}");
        }
        // Anything was taken for yes, `false` and `2` among it.
        for query in ["count=2", "count=false", "count=01", "count=%20"] {
            let e = is(query, "count").unwrap_err();
            assert!(e.message.contains("`count`") && e.message.contains("1 or 0"), "{e}");
        }
        assert!(number("from", "three").unwrap_err().message.contains("`three`"));
    }
}
