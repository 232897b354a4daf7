//! A small S3 client for the tools: one connection, requests one after another, each signed
//! (Signature Version 4). Blocking; for command lines and benchmarks, not for services.

mod http;
mod sign;
mod xml;

pub use sign::Signer;
pub use xml::{element, elements};

use crate::REGION;
use crate::credentials::Credentials;
use crate::hash::hex;
use holdfast_base::{Error, Kind, Result};
use holdfast_env::{Clock, RealClock};
use http::{Body, Connection, Sink};
use s3s::crypto::{Checksum as _, Sha256};
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;

/// Where a service is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Whether it is spoken to over TLS.
    pub tls: bool,
    /// `host:port`, as in the `Host` header.
    pub authority: String,
}

impl Endpoint {
    /// Reads `http://HOST[:PORT][/]`, `https://HOST[:PORT][/]` or `HOST:PORT`.
    pub fn parse(text: &str) -> Result<Endpoint> {
        let wrong = |why: &str| Error::invalid(format!("use endpoint `{text}`: {why}"));
        let (tls, rest) = match text.split_once("://") {
            Some(("https", rest)) => (true, rest),
            Some(("http", rest)) => (false, rest),
            None => (false, text),
            Some(_) => return Err(wrong("give it as http://HOST:PORT or https://HOST:PORT")),
        };
        let rest = rest.trim_end_matches('/');
        let is_authority = rest.parse::<ureq::http::uri::Authority>().is_ok();
        if !is_authority || rest.contains('@') {
            return Err(wrong("give it as http://HOST:PORT or https://HOST:PORT"));
        }
        Ok(Endpoint { tls, authority: rest.to_owned() })
    }
}

/// One request. `path` is `/`, `/BUCKET` or `/BUCKET/KEY`, not encoded.
#[derive(Clone, Debug, Default)]
pub struct Request<'a> {
    /// `GET`, `PUT` and so on.
    pub method: &'a str,
    /// As above; it is encoded where the request is signed.
    pub path: String,
    /// Names and values, not encoded, in any order.
    pub query: Vec<(&'a str, String)>,
    /// All of them are signed.
    pub headers: Vec<(&'a str, String)>,
    /// In one piece; [`Client::upload`] streams one.
    pub body: &'a [u8],
}

impl<'a> Request<'a> {
    /// A request without query, headers or body.
    pub fn new(method: &'a str, path: impl Into<String>) -> Request<'a> {
        Request { method, path: path.into(), ..Request::default() }
    }

    /// With one more parameter of the query.
    pub fn with(mut self, name: &'a str, value: impl Into<String>) -> Request<'a> {
        self.query.push((name, value.into()));
        self
    }
}

/// A whole answer.
#[derive(Debug, Default)]
pub struct Response {
    /// As HTTP numbers them.
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    /// In one piece; empty where it went elsewhere.
    pub body: Vec<u8>,
}

impl Response {
    /// The first header of that name, which is given in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// The body as text; bytes that are none are replaced.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The answer, if it is one of success.
    pub fn ok(self, doing: impl std::fmt::Display) -> Result<Response> {
        if (200..300).contains(&self.status) {
            return Ok(self);
        }
        let text = self.text();
        let code = element(&text, "Code").unwrap_or_default();
        let message = element(&text, "Message").unwrap_or_default();
        let what = format!("{doing}: the service answered {} {code}: {message}", self.status);
        Err(match self.status {
            404 => Error::not_found(what),
            409 => Error::exists(what),
            503 => Error::retry(what),
            507 => Error::full(what),
            _ => Error::invalid(what),
        })
    }
}

/// One connection to a service that speaks S3, made when it is needed and kept.
pub struct Client {
    authority: String,
    signer: Signer,
    clock: Arc<dyn Clock>,
    connection: Connection,
    /// There may be a connection that the service has closed since.
    used: bool,
    /// Empty, with memory for an answer.
    spare: Vec<u8>,
}

impl Client {
    /// A client of the service that credentials name, which goes by the machine's clock.
    pub fn of(credentials: &Credentials) -> Result<Client> {
        Client::in_region(credentials, REGION)
    }

    /// A client of a service that takes only requests which were signed for its region.
    pub fn in_region(credentials: &Credentials, region: &str) -> Result<Client> {
        Client::trusting(credentials, region, None)
    }

    /// As [`Client::in_region`], and trusts the authorities in a file of PEM beside the system's.
    pub fn trusting(
        credentials: &Credentials,
        region: &str,
        authorities: Option<&Path>,
    ) -> Result<Client> {
        let signer = Signer {
            access_key: credentials.access_key.clone(),
            secret_key: credentials.secret_key.clone(),
            region: region.to_owned(),
        };
        let endpoint = Endpoint::parse(&credentials.endpoint)?;
        Client::connected(endpoint, signer, Arc::new(RealClock::new()), authorities)
    }

    /// Connects with the first request; fails if the endpoint speaks TLS and this machine trusts
    /// no authority.
    pub fn new(endpoint: Endpoint, signer: Signer, clock: Arc<dyn Clock>) -> Result<Client> {
        Client::connected(endpoint, signer, clock, None)
    }

    fn connected(
        endpoint: Endpoint,
        signer: Signer,
        clock: Arc<dyn Clock>,
        authorities: Option<&Path>,
    ) -> Result<Client> {
        let authority = endpoint.authority.clone();
        let connection = Connection::new(endpoint, authorities)?;
        Ok(Client { authority, signer, clock, connection, used: false, spare: Vec::new() })
    }

    /// Sends a request whose body is in memory, and reads the whole answer.
    pub fn send(&mut self, request: &Request<'_>) -> Result<Response> {
        let hash = hex(Sha256::checksum(request.body).as_ref());
        let mut answer = std::mem::take(&mut self.spare);
        let sent = self.exchange(request, &hash, None, &mut Sink::Memory(&mut answer));
        sent.map(|response| with_body(response, answer))
    }

    /// Gives an answer's memory back for the next one.
    pub fn recycle(&mut self, mut body: Vec<u8>) {
        body.clear();
        self.spare = body;
    }

    /// Sends a body as it is read, without its hash in the signature; `bytes` of it.
    pub fn upload(
        &mut self,
        request: &Request<'_>,
        bytes: u64,
        body: &mut dyn Read,
    ) -> Result<Response> {
        let mut answer = Vec::new();
        let sink = &mut Sink::Memory(&mut answer);
        let response = self.exchange(request, "UNSIGNED-PAYLOAD", Some((bytes, body)), sink)?;
        Ok(with_body(response, answer))
    }

    /// Writes the answer's body, if it is one of success, as it comes.
    pub fn download(&mut self, request: &Request<'_>, to: &mut dyn Write) -> Result<Response> {
        let hash = hex(Sha256::checksum(&[]).as_ref());
        self.exchange(request, &hash, None, &mut Sink::Stream(to))
    }

    /// With the request's own body, or one that is read only once.
    fn exchange(
        &mut self,
        request: &Request<'_>,
        hash: &str,
        stream: Option<(u64, &mut dyn Read)>,
        to: &mut Sink<'_>,
    ) -> Result<Response> {
        let signed = self.signer.sign(request, &self.authority, hash, self.clock.unix_ms());
        let kept = std::mem::replace(&mut self.used, true);
        let again = kept && stream.is_none();
        let (method, target, headers) = (request.method, &signed.target, &signed.headers);
        let body = match stream {
            Some((bytes, body)) => Body::Stream(bytes, body),
            None => Body::Memory(request.body),
        };
        match self.connection.exchange(method, target, headers, body, to) {
            // The service may have closed a connection that was not used for a while. Only what
            // can be sent again is, and only if nothing of an answer has gone to `to`.
            Err(failure) if failure.unanswered && again && failure.error.kind == Kind::Retry => {
                let body = Body::Memory(request.body);
                self.connection.exchange(method, target, headers, body, to)
            }
            other => other,
        }
        .map_err(|failure| failure.error)
    }
}

/// With the body of success; that of an error is in the response already.
fn with_body(mut response: Response, answer: Vec<u8>) -> Response {
    if response.body.is_empty() {
        response.body = answer;
    }
    response
}

#[cfg(test)]
mod tests;
