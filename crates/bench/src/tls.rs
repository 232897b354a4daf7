//! Certificates for measurements over TLS: those of a node under test, and two bare ends of
//! rustls' own streams, which our TLS is held against.

use holdfast_base::{Error, Result};
use holdfast_cert::{Authority, Serial, Wanted, new_authority};
use holdfast_env::{Clock, RealClock, RealRng, Rng, local};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned,
};
use std::io;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The client's end.
pub type Near = StreamOwned<ClientConnection, TcpStream>;
/// The server's.
pub type Far = StreamOwned<ServerConnection, TcpStream>;

const HOST: &str = "127.0.0.1";
const CLUSTER: &str = "bench";
/// More than what a node warns of.
const DAYS: u32 = 60;

/// PEM of an authority, and of a certificate and key of a node on this machine.
struct Issued {
    authority: String,
    chain: String,
    key: Vec<u8>,
}

fn issue() -> Result<Issued> {
    let now_s = (RealClock::new().unix_ms() / 1000) as i64;
    let random = || {
        let mut serial = Serial::default();
        for piece in serial.chunks_mut(8) {
            piece.copy_from_slice(&RealRng.next_u64().to_le_bytes()[..piece.len()]);
        }
        serial
    };
    let made = new_authority(CLUSTER, DAYS, now_s, random())?;
    let authority = Authority::load(made.certificate.pem().as_bytes(), made.key.pem())?;
    let wanted = Wanted::node(CLUSTER, "node-1", &[HOST.to_owned()])?;
    let node = authority.issue(&wanted, Some(DAYS), now_s, random())?;
    Ok(Issued {
        authority: made.certificate.pem(),
        chain: node.certificate.pem(),
        key: node.key.pem().to_vec(),
    })
}

/// Makes a node's certificates in `directory`, and answers the file of their authority.
pub fn make(directory: &Path) -> Result<PathBuf> {
    let Issued { authority, chain, key } = issue()?;
    let write = |name: &str, bytes: &[u8]| {
        let file = directory.join(name);
        local::write_private(&file, bytes)
            .map(|()| file.clone())
            .map_err(|e| Error::from(e).context(format_args!("write `{}`", file.display())))
    };
    local::make_private_dir(directory)
        .map_err(|e| Error::from(e).context(format_args!("make `{}`", directory.display())))?;
    write("node.pem", chain.as_bytes())?;
    write("node.key", &key)?;
    write("ca.pem", authority.as_bytes())
}

fn broken(e: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::other(e)
}

/// Two connected sockets as ends of one TLS 1.3 connection, whose handshake comes with the first
/// bytes.
pub fn pair((near, far): (TcpStream, TcpStream)) -> io::Result<(Near, Far)> {
    let Issued { authority, chain, key } = issue().map_err(|e| broken(e.message))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = &[&rustls::version::TLS13];
    let certificate = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).map_err(broken);
    let key = PrivateKeyDer::from_pem_slice(&key).map_err(broken)?;
    let server = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(versions)
        .map_err(broken)?
        .with_no_client_auth()
        .with_single_cert(vec![certificate(&chain)?], key)
        .map_err(broken)?;
    let mut roots = RootCertStore::empty();
    roots.add(certificate(&authority)?).map_err(broken)?;
    let client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .map_err(broken)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(HOST).map_err(broken)?;
    let client = ClientConnection::new(Arc::new(client), name).map_err(broken)?;
    let server = ServerConnection::new(Arc::new(server)).map_err(broken)?;
    Ok((StreamOwned::new(client, near), StreamOwned::new(server, far)))
}
