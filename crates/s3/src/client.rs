//! A small S3 client for the tools: one connection, requests one after another, each signed
//! (Signature Version 4). Blocking; for command lines and benchmarks, not for services.

mod http;
mod sign;
mod xml;

pub use sign::Signer;
pub use xml::{element, elements};

use crate::hash::hex;
use holdfast_base::{Error, Result};
use holdfast_env::Clock;
use s3s::crypto::{Checksum as _, Sha256};
use std::io::{Read, Write};
use std::sync::Arc;

/// Where a service is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// `host:port`, as in the `Host` header.
    pub authority: String,
}

impl Endpoint {
    /// Reads `http://HOST[:PORT][/]` or `HOST:PORT`. Without TLS, which this client does not speak.
    pub fn parse(text: &str) -> Result<Endpoint> {
        let wrong = |why: &str| Error::invalid(format!("use endpoint `{text}`: {why}"));
        if text.starts_with("https://") {
            return Err(wrong("this client does not speak TLS; use http://"));
        }
        let rest = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
        if rest.is_empty() || rest.contains('/') {
            return Err(wrong("give it as http://HOST:PORT"));
        }
        Ok(Endpoint { authority: rest.to_owned() })
    }

    fn address(&self) -> String {
        let has_port =
            self.authority.rsplit_once(':').is_some_and(|(_, p)| p.parse::<u16>().is_ok());
        if has_port { self.authority.clone() } else { format!("{}:80", self.authority) }
    }
}

/// One request. `path` is `/`, `/BUCKET` or `/BUCKET/KEY`, not encoded.
#[derive(Clone, Debug, Default)]
pub struct Request<'a> {
    pub method: &'a str,
    pub path: String,
    pub query: Vec<(&'a str, String)>,
    pub headers: Vec<(&'a str, String)>,
    pub body: &'a [u8],
}

impl<'a> Request<'a> {
    pub fn new(method: &'a str, path: impl Into<String>) -> Request<'a> {
        Request { method, path: path.into(), ..Request::default() }
    }

    pub fn with(mut self, name: &'a str, value: impl Into<String>) -> Request<'a> {
        self.query.push((name, value.into()));
        self
    }
}

#[derive(Debug, Default)]
pub struct Response {
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Response {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

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

pub struct Client {
    endpoint: Endpoint,
    signer: Signer,
    clock: Arc<dyn Clock>,
    connection: Option<http::Connection>,
}

impl Client {
    pub fn new(endpoint: Endpoint, signer: Signer, clock: Arc<dyn Clock>) -> Client {
        Client { endpoint, signer, clock, connection: None }
    }

    /// Sends a request whose body is in memory, and reads the whole answer.
    pub fn send(&mut self, request: &Request<'_>) -> Result<Response> {
        let hash = hex(Sha256::checksum(request.body).as_ref());
        let mut body = request.body;
        let mut answer = Vec::new();
        let mut response =
            self.exchange(request, &hash, body.len() as u64, &mut body, &mut answer)?;
        // That of an error is in the response already.
        if response.body.is_empty() {
            response.body = answer;
        }
        Ok(response)
    }

    /// Sends a body as it is read, without its hash in the signature; `bytes` of it.
    pub fn upload(
        &mut self,
        request: &Request<'_>,
        bytes: u64,
        body: &mut dyn Read,
    ) -> Result<Response> {
        let mut answer = Vec::new();
        let mut response = self.exchange(request, "UNSIGNED-PAYLOAD", bytes, body, &mut answer)?;
        // That of an error is in the response already.
        if response.body.is_empty() {
            response.body = answer;
        }
        Ok(response)
    }

    /// Writes the answer's body, if it is one of success, as it comes.
    pub fn download(&mut self, request: &Request<'_>, to: &mut dyn Write) -> Result<Response> {
        let hash = hex(Sha256::checksum(&[]).as_ref());
        self.exchange(request, &hash, 0, &mut std::io::empty(), to)
    }

    fn exchange(
        &mut self,
        request: &Request<'_>,
        hash: &str,
        bytes: u64,
        body: &mut dyn Read,
        to: &mut dyn Write,
    ) -> Result<Response> {
        let head = self.head(request, hash, bytes);
        let kept = self.connection.is_some();
        let first = self.try_once(&head, request.method, bytes, body, to);
        match first {
            // The service may have closed a connection that was not used for a while. Only what
            // can be sent again is.
            Err(e)
                if kept
                    && bytes == request.body.len() as u64
                    && e.kind == holdfast_base::Kind::Retry =>
            {
                self.connection = None;
                let mut body = request.body;
                self.try_once(&head, request.method, bytes, &mut body, to)
            }
            other => other,
        }
    }

    fn try_once(
        &mut self,
        head: &[u8],
        method: &str,
        bytes: u64,
        body: &mut dyn Read,
        to: &mut dyn Write,
    ) -> Result<Response> {
        let doing =
            |e: std::io::Error| Error::retry(format!("talk to `{}`: {e}", self.endpoint.authority));
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => http::Connection::open(&self.endpoint.address()).map_err(doing)?,
        };
        connection.send(head, bytes, body).map_err(doing)?;
        let (response, keep) = connection.receive(method, to).map_err(doing)?;
        if keep {
            self.connection = Some(connection);
        }
        Ok(response)
    }

    fn head(&self, request: &Request<'_>, hash: &str, bytes: u64) -> Vec<u8> {
        let signed =
            self.signer.sign(request, &self.endpoint.authority, hash, self.clock.unix_ms());
        let mut head = format!("{} {} HTTP/1.1\r\n", request.method, signed.target);
        for (name, value) in &signed.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if bytes > 0 || matches!(request.method, "PUT" | "POST") {
            head.push_str(&format!("content-length: {bytes}\r\n"));
        }
        head.push_str("\r\n");
        head.into_bytes()
    }
}
