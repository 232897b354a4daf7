//! TLS for servers and clients with a loop of their own: received bytes become plain ones, plain ones become
//! bytes to send. It knows no socket and keeps nothing back: whatever is to be sent is handed out
//! at once, so that a server counts and bounds it like any other answer. Used by the
//! cache and its router. Beside
//! it [`certificates`]: what a node shows and believes, for all of its ports.

mod authority;
/// A node's certificates, exchanged while it runs.
pub mod certificates;

pub(crate) use authority::by_authority;
pub use certificates::{CertificateFiles, Certificates, Refreshed};

use holdfast_base::{Error, Result};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{
    ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection,
};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Plain bytes that one call of [`TlsSession::open`] may give beyond those it was given: the rest
/// of a record, most of which came before.
pub const RECORD_BYTES: usize = 18 << 10;

/// What a TLS connection begins with: a record of its handshake. No method of HTTP does, and no
/// command of the cache.
pub const TLS_BEGINS: u8 = 0x16;

/// Whether clients must show who they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientCertificates {
    #[default]
    Ignored,
    /// A wrong one is refused, none is not.
    Asked,
    Required,
}

/// What a server is told, as files of PEM.
#[derive(Clone, Debug, Default)]
pub struct TlsFiles {
    pub chain: PathBuf,
    pub key: PathBuf,
    /// Whose signature makes a client's certificate right.
    pub client_authorities: Option<PathBuf>,
    pub client_certificates: ClientCertificates,
    /// Refuses TLS 1.2.
    pub only_1_3: bool,
}

/// Certificates and keys, ready for connections.
#[derive(Clone)]
pub struct TlsConfig(Arc<ServerConfig>);

/// What TLS is computed with, suites in the order in which they are taken. AES with 128 bits goes
/// first, as everywhere that has no rule about 256: its hash is SHA-256, which processors have
/// instructions for, where that of the other is SHA-384, which they have none for; and it seals a byte
/// in fewer rounds.
pub fn provider() -> Arc<CryptoProvider> {
    use rustls::CipherSuite::*;
    let first = [
        TLS13_AES_128_GCM_SHA256,
        TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
    ];
    let mut provider = ring::default_provider();
    provider.cipher_suites.sort_by_key(|suite| !first.contains(&suite.suite()));
    Arc::new(provider)
}

fn pem<T: PemObject>(bytes: &[u8], file: &Path, what: &str) -> Result<Vec<T>> {
    let doing = |e: Error| e.context(format_args!("read {what} from `{}`", file.display()));
    let items: std::result::Result<Vec<T>, _> = T::pem_slice_iter(bytes).collect();
    match items {
        Ok(items) if !items.is_empty() => Ok(items),
        Ok(_) => Err(doing(Error::invalid(format!("there is none: give {what} as PEM")))),
        Err(e) => Err(doing(Error::invalid(format!("it is no PEM: {e}: give {what} as PEM")))),
    }
}

/// The certificates in a file of PEM, one at least.
pub fn certificates_in(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    pem_file(file, "certificates")
}

/// Whom a file of PEM says to believe.
pub(crate) fn roots_of(authorities: &Path) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates_in(authorities)? {
        roots.add(certificate).map_err(|e| {
            Error::invalid(format!("trust servers by `{}`: {e}", authorities.display()))
        })?;
    }
    Ok(roots)
}

/// Has libraries that bring no choice of their own compute TLS as all others here do.
pub fn install_provider() {
    // Whoever was first has installed the same.
    let _ = CryptoProvider::install_default((*provider()).clone());
}

/// Why a server's certificate is refused, if that is what ended a connection.
pub fn refused_certificate(e: &io::Error) -> Option<String> {
    match e.get_ref()?.downcast_ref::<rustls::Error>()? {
        rustls::Error::InvalidCertificate(why) => Some(why.to_string()),
        _ => None,
    }
}

pub(crate) fn pem_file<T: PemObject>(file: &Path, what: &str) -> Result<Vec<T>> {
    #[expect(clippy::disallowed_methods, reason = "this is the seam")]
    let bytes = std::fs::read(file).map_err(|e| {
        Error::from(e).context(format_args!("read {what} from `{}`", file.display()))
    })?;
    pem(&bytes, file, what)
}

impl From<Arc<ServerConfig>> for TlsConfig {
    fn from(config: Arc<ServerConfig>) -> TlsConfig {
        TlsConfig(config)
    }
}

impl TlsConfig {
    /// Reads the files; also called again when they were renewed.
    pub fn load(files: &TlsFiles) -> Result<TlsConfig> {
        let wrong = |e: &dyn std::fmt::Display| {
            let (chain, key) = (files.chain.display(), files.key.display());
            Error::invalid(format!("serve TLS with `{chain}` and `{key}`: {e}"))
        };
        let chain: Vec<CertificateDer<'static>> = pem_file(&files.chain, "certificates")?;
        let keys: Vec<PrivateKeyDer<'static>> = pem_file(&files.key, "a private key")?;
        let key = keys.into_iter().next().ok_or_else(|| wrong(&"there is no key"))?;
        let provider = provider();
        let versions = match files.only_1_3 {
            true => &[&rustls::version::TLS13][..],
            false => rustls::ALL_VERSIONS,
        };
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(versions)
            .map_err(|e| wrong(&e))?;
        let builder = match files.client_certificates {
            ClientCertificates::Ignored => builder.with_no_client_auth(),
            asked => builder.with_client_cert_verifier(files.client_verifier(asked, provider)?),
        };
        let mut config = builder.with_single_cert(chain, key).map_err(|e| wrong(&e))?;
        config.ignore_client_order = true;
        Ok(TlsConfig(Arc::new(config)))
    }

    pub(crate) fn rustls(&self) -> &Arc<ServerConfig> {
        &self.0
    }
}

impl TlsFiles {
    fn client_verifier(
        &self,
        asked: ClientCertificates,
        provider: Arc<CryptoProvider>,
    ) -> Result<Arc<dyn ClientCertVerifier>> {
        let Some(file) = &self.client_authorities else {
            return Err(Error::invalid(
                "ask clients for certificates: it is not said whose signature they need: give a file of certificates",
            ));
        };
        let wrong = |e: &dyn std::fmt::Display| {
            Error::invalid(format!("trust clients by `{}`: {e}", file.display()))
        };
        let mut roots = RootCertStore::empty();
        for certificate in pem_file(file, "certificates")? {
            roots.add(certificate).map_err(|e| wrong(&e))?;
        }
        client_verifier(Arc::new(roots), asked, provider).map_err(|e| wrong(&e))
    }
}

/// For clients that are asked; fails where there is no root.
fn client_verifier(
    roots: Arc<RootCertStore>,
    clients: ClientCertificates,
    provider: Arc<CryptoProvider>,
) -> std::result::Result<Arc<dyn ClientCertVerifier>, VerifierBuilderError> {
    let builder = WebPkiClientVerifier::builder_with_provider(roots, provider);
    match clients {
        ClientCertificates::Required => builder.build(),
        _ => builder.allow_unauthenticated().build(),
    }
}

/// What a client trusts and shows, as files of PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsTrust {
    /// Whose signature makes a server's certificate right.
    pub authorities: PathBuf,
    /// The client's own chain and key, for servers that ask.
    pub shows: Option<(PathBuf, PathBuf)>,
}

/// One server as a client of TLS sees it.
#[derive(Clone)]
pub struct TlsTarget {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl TlsTrust {
    /// Reads the files, for connections to all of `hosts`: names or addresses, which servers'
    /// certificates must be for.
    pub fn targets<'h>(&self, hosts: impl Iterator<Item = &'h str>) -> Result<Vec<TlsTarget>> {
        let file = self.authorities.display();
        let wrong = |e: &dyn std::fmt::Display| {
            Error::invalid(format!("speak TLS to servers by the authorities in `{file}`: {e}"))
        };
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|e| wrong(&e))?
            .with_root_certificates(roots_of(&self.authorities)?);
        let config = match &self.shows {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => {
                let keys: Vec<PrivateKeyDer<'static>> = pem_file(key, "a private key")?;
                let key = keys.into_iter().next().ok_or_else(|| wrong(&"there is no key"))?;
                let chain = certificates_in(chain)?;
                builder.with_client_auth_cert(chain, key).map_err(|e| wrong(&e))?
            }
        };
        let config = Arc::new(config);
        let target = |host: &str| {
            let name = ServerName::try_from(host.to_owned()).map_err(|e| wrong(&e))?;
            Ok(TlsTarget { config: config.clone(), name })
        };
        hosts.map(target).collect()
    }
}

/// One connection, of either side.
pub struct TlsSession(Box<Connection>);

/// What [`TlsSession::open`] came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    pub bytes: usize,
    /// The other side has said that it sends nothing more.
    pub ended: bool,
}

fn broken(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

impl TlsSession {
    pub fn new(config: &TlsConfig) -> io::Result<TlsSession> {
        Ok(TlsSession::of(ServerConnection::new(config.0.clone()).map_err(broken)?.into()))
    }

    /// Of a client. What it says first is appended to `sealed`.
    pub fn connect(target: &TlsTarget, sealed: &mut Vec<u8>) -> io::Result<TlsSession> {
        let connection = ClientConnection::new(target.config.clone(), target.name.clone());
        let mut session = TlsSession::of(connection.map_err(broken)?.into());
        session.hand_out(sealed)?;
        Ok(session)
    }

    fn of(mut connection: Connection) -> TlsSession {
        // What is written is taken out in the same call.
        connection.set_buffer_limit(None);
        TlsSession(Box::new(connection))
    }

    /// Whether both sides have yet to agree. What is sealed meanwhile waits for that.
    pub fn is_handshaking(&self) -> bool {
        self.0.is_handshaking()
    }

    /// Takes what was received. Plain bytes go to the start of `plain`, which must be longer than
    /// `received` by [`RECORD_BYTES`]; what has to be sent (the handshake, as a rule, or why the
    /// connection ends) is appended to `sealed`, also when this fails.
    pub fn open(
        &mut self,
        mut received: &[u8],
        plain: &mut [u8],
        sealed: &mut Vec<u8>,
    ) -> io::Result<Opened> {
        assert!(plain.len() >= received.len() + RECORD_BYTES, "too little room for plain bytes");
        let mut opened = Opened::default();
        while !received.is_empty() && !opened.ended {
            self.0.read_tls(&mut received)?;
            let state = self.0.process_new_packets();
            self.hand_out(sealed)?;
            let state = state.map_err(broken)?;
            let came = state.plaintext_bytes_to_read();
            self.0.reader().read_exact(&mut plain[opened.bytes..opened.bytes + came])?;
            opened.bytes += came;
            opened.ended = state.peer_has_closed();
        }
        Ok(opened)
    }

    /// Appends what must be sent for the other side to receive `plain`.
    pub fn seal(&mut self, plain: &[u8], sealed: &mut Vec<u8>) -> io::Result<()> {
        self.0.writer().write_all(plain)?;
        self.hand_out(sealed)
    }

    fn hand_out(&mut self, sealed: &mut Vec<u8>) -> io::Result<()> {
        while self.0.wants_write() {
            self.0.write_tls(sealed)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls").join(name)
    }

    fn files() -> TlsFiles {
        TlsFiles { chain: file("cert.pem"), key: file("key.pem"), ..TlsFiles::default() }
    }

    fn client(shows_certificate: bool) -> ClientConnection {
        let mut roots = RootCertStore::empty();
        for certificate in pem_file(&file("ca.pem"), "certificates").unwrap() {
            roots.add(certificate).unwrap();
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let config = if shows_certificate {
            let chain = pem_file(&file("cert.pem"), "certificates").unwrap();
            let key: PrivateKeyDer<'static> =
                pem_file(&file("key.pem"), "a key").unwrap().remove(0);
            builder.with_client_auth_cert(chain, key).unwrap()
        } else {
            builder.with_no_client_auth()
        };
        ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap()
    }

    /// Carries bytes both ways until nobody has more to say. What the server received; an error
    /// if it refuses.
    fn carry(
        client: &mut ClientConnection,
        server: &mut TlsSession,
        cut: usize,
    ) -> io::Result<Vec<u8>> {
        let mut got = Vec::new();
        loop {
            let mut sent = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut sent)?;
            }
            if sent.is_empty() {
                return Ok(got);
            }
            let mut back = Vec::new();
            for part in sent.chunks(cut) {
                let mut plain = vec![0; part.len() + RECORD_BYTES];
                let opened = server.open(part, &mut plain, &mut back)?;
                got.extend_from_slice(&plain[..opened.bytes]);
            }
            let mut rest = &back[..];
            while !rest.is_empty() {
                client.read_tls(&mut rest)?;
                client.process_new_packets().map_err(broken)?;
            }
        }
    }

    #[test]
    fn bytes_come_through_both_ways_however_they_are_cut() {
        let config = TlsConfig::load(&files()).unwrap();
        for cut in [1, 100, 70_000] {
            let (mut client, mut server) = (client(false), TlsSession::new(&config).unwrap());
            let sent: Vec<u8> = (0..60_000u32).map(|i| (i / 3) as u8).collect();
            carry(&mut client, &mut server, cut).unwrap();
            client.writer().write_all(&sent).unwrap();
            assert!(carry(&mut client, &mut server, cut).unwrap() == sent);
            let mut sealed = Vec::new();
            server.seal(&sent, &mut sealed).unwrap();
            let (mut rest, mut got) = (&sealed[..], vec![0; sent.len()]);
            let mut at = 0;
            while !rest.is_empty() {
                client.read_tls(&mut rest).unwrap();
                let came = client.process_new_packets().unwrap().plaintext_bytes_to_read();
                client.reader().read_exact(&mut got[at..at + came]).unwrap();
                at += came;
            }
            assert!(at == sent.len() && got == sent);
        }
    }

    #[test]
    fn our_client_and_our_server_understand_each_other() {
        let shows = Some((file("cert.pem"), file("key.pem")));
        let trust = TlsTrust { authorities: file("ca.pem"), shows };
        let [here, other] = &trust.targets(["localhost", "other.test"].into_iter()).unwrap()[..]
        else {
            panic!("two hosts are two targets")
        };
        let files = TlsFiles {
            client_authorities: Some(file("ca.pem")),
            client_certificates: ClientCertificates::Required,
            ..files()
        };
        let config = TlsConfig::load(&files).unwrap();
        let shake = |target: &TlsTarget| -> io::Result<Vec<u8>> {
            let (mut sent, mut back) = (Vec::new(), Vec::new());
            let mut plain = vec![0; 64 << 10];
            let mut client = TlsSession::connect(target, &mut sent)?;
            let mut server = TlsSession::new(&config)?;
            while client.is_handshaking() {
                server.open(&std::mem::take(&mut sent), &mut plain, &mut back)?;
                client.open(&std::mem::take(&mut back), &mut plain, &mut sent)?;
            }
            client.seal(b"get a", &mut sent)?;
            let opened = server.open(&sent, &mut plain, &mut back)?;
            Ok(plain[..opened.bytes].to_vec())
        };
        assert_eq!(shake(here).unwrap(), b"get a");
        assert!(shake(other).unwrap_err().to_string().contains("not valid for name"));
        let wrong = TlsTrust { authorities: file("key.pem"), shows: None };
        assert!(wrong.targets(["a"].into_iter()).err().unwrap().message.contains("key.pem"));
    }

    #[test]
    fn noise_is_refused_with_a_farewell() {
        let config = TlsConfig::load(&files()).unwrap();
        let mut server = TlsSession::new(&config).unwrap();
        let (mut plain, mut sealed) = (vec![0; 64 << 10], Vec::new());
        assert!(server.open(b"get a\r\n", &mut plain, &mut sealed).is_err());
        assert!(!sealed.is_empty(), "the client is not told");
    }

    #[test]
    fn clients_are_let_in_by_certificate_where_that_is_asked_for() {
        let of = |client_certificates| {
            let client_authorities = Some(file("ca.pem"));
            TlsConfig::load(&TlsFiles { client_authorities, client_certificates, ..files() })
                .unwrap()
        };
        for (certificates, shows, is_let_in) in [
            (ClientCertificates::Required, false, false),
            (ClientCertificates::Asked, false, true),
            (ClientCertificates::Required, true, true),
        ] {
            let mut server = TlsSession::new(&of(certificates)).unwrap();
            let done = carry(&mut client(shows), &mut server, 9999);
            assert_eq!(done.is_ok(), is_let_in, "{certificates:?} {shows}: {done:?}");
        }
    }

    #[test]
    fn wrong_files_are_named() {
        for (files, name) in [
            (TlsFiles { key: file("none.pem"), ..files() }, "none.pem"),
            (TlsFiles { key: file("cert.pem"), ..files() }, "cert.pem"),
            (TlsFiles { chain: file("key.pem"), ..files() }, "key.pem"),
            (TlsFiles { client_certificates: ClientCertificates::Required, ..files() }, "whose"),
        ] {
            let error = TlsConfig::load(&files).err().expect("it is wrong");
            assert!(error.message.contains(name), "{error}");
        }
    }
}
