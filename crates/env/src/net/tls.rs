//! TLS under the frames of one connection, at either end, 1.3 between our own programs: received bytes become plain ones,
//! plain ones become records. A core: it knows no socket, and is asked by [`super::Link`], which
//! moves the bytes. It stands on rustls' buffered interface: the unbuffered one panics when it is
//! asked anything more after a stranger's noise.

use crate::tls::{Certificates, ClientCertificates, TlsConfig, by_authority, roots_of};
use crate::tls::{pem_file, provider};
use holdfast_base::{Error, Kind, Result};
use rustls::AlertDescription;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use std::io::{BufRead, Write};
use std::path::Path;
use std::sync::Arc;
use std::{fmt, io};

/// What a record of TLS begins with when a client opens a connection: a handshake. No frame of
/// ours does.
pub(super) const CLIENT_HELLO: u8 = 0x16;
/// Plain bytes of one record.
pub(super) const RECORD_BYTES: usize = 16 << 10;
/// What a record adds to them, at most: head, content type, tag.
pub(super) const RECORD_EXTRA_BYTES: usize = HEAD_BYTES + 1 + 16;
/// A record as it travels, with what RFC 8446 lets others add to it.
pub(super) const SEALED_RECORD_BYTES: usize = HEAD_BYTES + RECORD_BYTES + 256;
/// The protocol that both sides agree on (ALPN), so that a certificate for it opens no other.
pub const ALPN: &[u8] = b"holdfast/1";
/// What a client that begins with TLS hears from a server that has no certificates: a fatal alert,
/// `protocol_version`, as a record.
pub(super) const NO_TLS_HERE: [u8; 7] = [0x15, 0x03, 0x03, 0x00, 0x02, 0x02, 0x46];

/// What a client believes and shows over TLS.
#[derive(Clone)]
pub struct TlsClient(pub(crate) Arc<rustls::ClientConfig>);

impl fmt::Debug for TlsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsClient")
    }
}

impl TlsClient {
    /// Believes servers whose certificates one of `authorities` has signed (a file of PEM), and
    /// shows a certificate of its own, if it has one: the files of its chain and of its key.
    pub fn load(authorities: &Path, shown: Option<(&Path, &Path)>) -> Result<TlsClient> {
        let wrong = |e: &dyn fmt::Display| {
            Error::invalid(format!("trust servers by `{}`: {e}", authorities.display()))
        };
        let builder = rustls::ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|e| wrong(&e))?
            .with_root_certificates(roots_of(authorities)?);
        let mut config = match shown {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => {
                let certificates = pem_file(chain, "certificates")?;
                let keys = pem_file::<PrivateKeyDer<'static>>(key, "a private key")?;
                let first = keys.into_iter().next().ok_or_else(|| wrong(&"there is no key"))?;
                builder.with_client_auth_cert(certificates, first).map_err(|e| {
                    let (chain, key) = (chain.display(), key.display());
                    Error::invalid(format!("show `{chain}` with the key `{key}`: {e}"))
                })?
            }
        };
        config.alpn_protocols = vec![ALPN.to_vec()];
        Ok(TlsClient(Arc::new(config)))
    }

    /// Of servers of other protocols, which name none by ALPN and may not know TLS 1.3: believes those
    /// whose certificates one of `authorities` (a file of PEM) has signed, for the host that is connected
    /// to, or, with `any_name`, for whatever host.
    pub fn of_others(authorities: &Path, any_name: bool) -> Result<TlsClient> {
        let wrong = |e: &dyn fmt::Display| {
            Error::invalid(format!("trust servers by `{}`: {e}", authorities.display()))
        };
        let builder = rustls::ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|e| wrong(&e))?;
        let roots = roots_of(authorities)?;
        let builder = match any_name {
            true => builder.dangerous().with_custom_certificate_verifier(by_authority(roots)),
            false => builder.with_root_certificates(roots),
        };
        Ok(TlsClient(Arc::new(builder.with_no_client_auth())))
    }

    /// Of certificates that are exchanged while the process runs: ask again for each connection.
    pub fn of(certificates: &Certificates) -> TlsClient {
        let mut config = (*certificates.client()).clone();
        config.alpn_protocols = vec![ALPN.to_vec()];
        TlsClient(Arc::new(config))
    }
}

/// What a port of the native protocol needs of certificates: clients may show one.
pub fn server_of(certificates: &Certificates) -> TlsConfig {
    certificates.server(&[ALPN], ClientCertificates::Asked, true).into()
}

/// The name that the certificate of whoever answers at `address` (`host:port`) must carry.
pub(super) fn server_name(address: &str) -> Result<ServerName<'static>> {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    ServerName::try_from(host.to_owned()).map_err(|_| {
        Error::invalid(format!(
            "connect to `{address}`: `{host}` is no host name that a certificate can carry"
        ))
    })
}

/// One connection's TLS.
pub(super) struct Tls {
    connection: Box<rustls::Connection>,
    /// The peer has said that it sends nothing more.
    pub is_ended: bool,
    records: Records,
}

fn broken(e: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, e)
}

impl Tls {
    pub fn server(config: &Arc<rustls::ServerConfig>) -> io::Result<Tls> {
        let connection = rustls::ServerConnection::new(config.clone()).map_err(broken)?;
        Ok(Tls::new(connection.into()))
    }

    /// Greets the server that has a certificate for `name`: there is something to be sent.
    pub fn client(
        config: &Arc<rustls::ClientConfig>,
        name: ServerName<'static>,
    ) -> io::Result<Tls> {
        let connection = rustls::ClientConnection::new(config.clone(), name).map_err(broken)?;
        Ok(Tls::new(connection.into()))
    }

    fn new(mut connection: rustls::Connection) -> Tls {
        // Who seals bounds how much it is at a time, and how often.
        connection.set_buffer_limit(None);
        Tls { connection: Box::new(connection), is_ended: false, records: Records::default() }
    }

    pub fn is_server(&self) -> bool {
        matches!(*self.connection, rustls::Connection::Server(_))
    }

    /// Whether the handshake is over, so that bytes may be sealed.
    pub fn is_ready(&self) -> bool {
        !self.connection.is_handshaking()
    }

    /// The certificate that the peer has proved to hold, as DER; nothing if it showed none.
    pub fn certificate(&self) -> Option<&[u8]> {
        let chain = self.connection.peer_certificates().filter(|_| self.is_ready())?;
        chain.first().map(|certificate| certificate.as_ref())
    }

    /// Bytes of a record that has not come whole.
    pub fn unopened_bytes(&self) -> usize {
        self.records.begun
    }

    /// Opens what was received, and gives away each piece of plain bytes. There may be something to be
    /// sent then, also after an error, which says why the connection ends.
    pub fn open(&mut self, mut received: &[u8], give: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        self.records.pass(received);
        while !received.is_empty() && !self.is_ended {
            self.connection.read_tls(&mut received)?;
            let state = self.connection.process_new_packets().map_err(said)?;
            let (mut left, mut plain) = (state.plaintext_bytes_to_read(), self.connection.reader());
            while left > 0 {
                let piece = plain.fill_buf()?;
                give(piece);
                let bytes = piece.len();
                plain.consume(bytes);
                left -= bytes;
            }
            self.is_ended = state.peer_has_closed();
        }
        Ok(())
    }

    /// Makes records of `plain`, which are to be sent.
    pub fn seal(&mut self, plain: &[u8]) -> io::Result<()> {
        self.connection.writer().write_all(plain)
    }

    /// Whether records are to be sent.
    pub fn wants_write(&self) -> bool {
        self.connection.wants_write()
    }

    /// Writes records, by one call, and says how many bytes of them were taken; the rest stays.
    pub fn write_to(&mut self, way: &mut dyn Write) -> io::Result<usize> {
        self.connection.write_tls(way)
    }

    /// Says that nothing more comes.
    pub fn end(&mut self) {
        self.connection.send_close_notify();
    }
}

/// Where records end in a stream: each says in its head of five bytes how long it is.
#[derive(Default)]
struct Records {
    head: [u8; HEAD_BYTES],
    /// Bytes of the record that has begun, its head included.
    begun: usize,
}

const HEAD_BYTES: usize = 5;

impl Records {
    fn pass(&mut self, mut bytes: &[u8]) {
        while let Some(&next) = bytes.first() {
            if self.begun < HEAD_BYTES {
                self.head[self.begun] = next;
                self.begun += 1;
                bytes = &bytes[1..];
            } else {
                let whole = HEAD_BYTES + u16::from_be_bytes([self.head[3], self.head[4]]) as usize;
                let part = bytes.len().min(whole - self.begun);
                self.begun += part;
                bytes = &bytes[part..];
            }
            let length = u16::from_be_bytes([self.head[3], self.head[4]]) as usize;
            if self.begun >= HEAD_BYTES && self.begun == HEAD_BYTES + length {
                self.begun = 0;
            }
        }
    }
}

/// What a handshake came to, for whoever asked: a peer that is refused, or refuses, stays so until
/// somebody has changed something.
pub fn tls_error(e: io::Error) -> Error {
    match e.kind() {
        io::ErrorKind::InvalidData => Error::new(Kind::Denied, format!("agree on TLS: {e}")),
        io::ErrorKind::UnexpectedEof => {
            Error::retry("agree on TLS: the server closed the connection")
        }
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            Error::retry("agree on TLS: no answer in time: check the address and the network")
        }
        _ => Error::from(e).context("agree on TLS"),
    }
}

/// What went wrong, in a sentence for whoever connected.
fn said(e: rustls::Error) -> io::Error {
    let text = match &e {
        rustls::Error::InvalidCertificate(why) => {
            format!("the peer's certificate is refused: {why}")
        }
        rustls::Error::AlertReceived(AlertDescription::ProtocolVersion) => {
            "the server speaks no TLS there, or no TLS 1.3".to_owned()
        }
        rustls::Error::AlertReceived(why) => format!("the peer refused the connection: {why:?}"),
        rustls::Error::InvalidMessage(_) => "the peer does not speak TLS".to_owned(),
        rustls::Error::NoCertificatesPresented => "the peer shows no certificate".to_owned(),
        other => other.to_string(),
    };
    broken(text)
}
