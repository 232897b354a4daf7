//! HTTP through `ureq`: a request is sent, its answer is read, over a connection that is kept.

use super::{Endpoint, Response};
use holdfast_base::{Error, Kind, Result};
use holdfast_env::tls::certificates_in;
use rustls::crypto::ring;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use ureq::http;
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Agent, SendBody};

const CONNECT: Duration = Duration::from_secs(10);
const SILENCE: Duration = Duration::from_secs(120);
/// An answer's head.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// What is read of a stream at a time.
const PART_BYTES: usize = 256 << 10;
/// Memory that an answer's length alone is trusted with.
const TRUSTED_BYTES: u64 = 16 << 20;

/// What is sent behind a head.
pub enum Body<'a> {
    Memory(&'a [u8]),
    /// So many bytes.
    Stream(u64, &'a mut dyn Read),
}

/// Where an answer's body goes.
pub enum Sink<'a> {
    /// All of it.
    Memory(&'a mut Vec<u8>),
    /// As it comes.
    Stream(&'a mut dyn Write),
}

/// Why there is no whole answer.
pub struct Failure {
    /// What to tell.
    pub error: Error,
    /// The connection ended before an answer began: nothing has gone to the sink.
    pub unanswered: bool,
}

/// One service, asked one thing after another: over one connection, as long as that is open.
pub struct Connection {
    endpoint: Endpoint,
    agent: Agent,
}

impl Connection {
    /// Connects with the first request; gives up after ten seconds, and on two minutes of silence
    /// later. A service that speaks TLS must show a certificate of an authority that the system
    /// trusts (`SSL_CERT_FILE` and `SSL_CERT_DIR` name others), or of one in the file
    /// `authorities`.
    pub fn new(endpoint: Endpoint, authorities: Option<&Path>) -> Result<Connection> {
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent("holdfast")
            .accept(ureq::config::AutoHeaderValue::None)
            .accept_encoding(ureq::config::AutoHeaderValue::None)
            // As the other commands, which ask a node: none is looked up in the environment.
            .proxy(None)
            .max_response_header_size(HEAD_BYTES_MAX)
            .timeout_connect(Some(CONNECT))
            .timeout_per_read(Some(SILENCE))
            .timeout_per_write(Some(SILENCE));
        if endpoint.tls {
            config = config.tls_config(tls(authorities)?);
        }
        Ok(Connection { endpoint, agent: config.build().new_agent() })
    }

    /// Sends a request to `target`, path and query. The answer's body goes to `to` if it is one of
    /// success, else into the response.
    pub fn exchange(
        &self,
        method: &str,
        target: &str,
        headers: &[(String, String)],
        body: Body<'_>,
        to: &mut Sink<'_>,
    ) -> std::result::Result<Response, Failure> {
        let scheme = if self.endpoint.tls { "https" } else { "http" };
        let mut request = http::Request::builder()
            .method(method)
            .uri(format!("{scheme}://{}{target}", self.endpoint.authority));
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let made = |e: http::Error| {
            let error = Error::invalid(format!("ask `{}`: {e}", self.endpoint.authority));
            Failure { error, unanswered: true }
        };
        let sent = match body {
            Body::Memory([]) if !matches!(method, "PUT" | "POST") => {
                self.agent.run(request.body(()).map_err(made)?)
            }
            Body::Memory(body) => self.agent.run(request.body(body).map_err(made)?),
            Body::Stream(bytes, body) => {
                let mut body = body.take(bytes);
                let request = request.header("content-length", bytes);
                self.agent.run(request.body(SendBody::from_reader(&mut body)).map_err(made)?)
            }
        };
        let answer = sent.map_err(|e| self.unanswered(e))?;
        self.receive(answer, to).map_err(|e| Failure { error: self.broken(e), unanswered: false })
    }

    fn receive(
        &self,
        answer: http::Response<ureq::Body>,
        to: &mut Sink<'_>,
    ) -> io::Result<Response> {
        let (head, body) = answer.into_parts();
        let mut response = Response { status: head.status.as_u16(), ..Response::default() };
        for (name, value) in &head.headers {
            let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
            response.headers.push((name.as_str().to_owned(), value));
        }
        let trusted = body.content_length().unwrap_or(0).min(TRUSTED_BYTES) as usize;
        let mut body = body.into_reader();
        match to {
            _ if !head.status.is_success() => {
                body.read_to_end(&mut response.body)?;
            }
            Sink::Memory(to) => {
                to.reserve(trusted);
                body.read_to_end(to)?;
            }
            Sink::Stream(to) => copy(&mut body, *to, trusted)?,
        }
        Ok(response)
    }

    fn unanswered(&self, e: ureq::Error) -> Failure {
        let unanswered = matches!(e, ureq::Error::Io(_) | ureq::Error::Protocol(_));
        let error = match e {
            ureq::Error::Io(e) => self.broken(e),
            e @ (ureq::Error::Timeout(_)
            | ureq::Error::HostNotFound
            | ureq::Error::ConnectionFailed
            | ureq::Error::Protocol(_)) => Error::retry(self.doing(&e)),
            e => Error::invalid(self.doing(&e)),
        };
        Failure { error, unanswered }
    }

    /// What is wrong with a certificate is not mended by asking again.
    fn broken(&self, e: io::Error) -> Error {
        let is_tls = e.get_ref().is_some_and(|e| e.is::<rustls::Error>());
        Error::new(if is_tls { Kind::Invalid } else { Kind::Retry }, self.doing(&e))
    }

    fn doing(&self, e: &dyn std::error::Error) -> String {
        format!("talk to `{}`: {e}", self.endpoint.authority)
    }
}

/// No more at a time than is worth a system call, and no more memory than a short body needs.
fn copy(from: &mut dyn Read, to: &mut dyn Write, trusted: usize) -> io::Result<()> {
    let mut part = vec![0; trusted.clamp(4 << 10, PART_BYTES)];
    loop {
        match from.read(&mut part)? {
            0 => return Ok(()),
            got => to.write_all(&part[..got])?,
        }
    }
}

/// The system's authorities, and those of a file, without which the system must have some.
fn tls(authorities: Option<&Path>) -> Result<TlsConfig> {
    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty() && authorities.is_none() {
        let why = found.errors.first().map_or("none is there".to_owned(), |e| e.to_string());
        return Err(Error::invalid(format!(
            "read the certificates that the system trusts: {why}; install them (the package is \
             often called ca-certificates), or name a file of them with `--ca` or in SSL_CERT_FILE"
        )));
    }
    let mut trusted = found.certs;
    if let Some(file) = authorities {
        trusted.extend(certificates_in(file)?);
    }
    let roots = trusted.iter().map(|der| Certificate::from_der(der).to_owned());
    Ok(TlsConfig::builder()
        .root_certs(RootCerts::from(roots))
        .unversioned_rustls_crypto_provider(Arc::new(ring::default_provider()))
        .build())
}
