//! Certificates for measurements over TLS: those of a node under test, and two bare ends of
//! rustls' own streams, which our TLS is held against.

use holdfast_base::{Error, Result};
use holdfast_command::certificates::{CA, Issuer, TLS};
use holdfast_env::local;
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
const NAME: &str = "node-1";

/// Gives a node's data directory certificates, and answers the file of their authority.
pub fn make(data: &Path) -> Result<PathBuf> {
    let authority = data.join(TLS).join("authority");
    local::make_private_dir(&data.join(TLS))
        .map_err(|e| Error::from(e).context(format_args!("make `{}`", data.display())))?;
    Issuer::open(&authority, "bench")?.equip(data, NAME)?;
    Ok(authority.join(CA))
}

fn broken(e: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::other(e)
}

/// Two connected sockets as ends of one TLS 1.3 connection, whose handshake comes with the first
/// bytes.
pub fn pair(authority: &Path, (near, far): (TcpStream, TcpStream)) -> io::Result<(Near, Far)> {
    let issuer = Issuer::open(authority, "bench").map_err(|e| broken(e.message))?;
    let issued = issuer.issue(NAME).map_err(|e| broken(e.message))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = &[&rustls::version::TLS13];
    let certificate = |pem: &[u8]| CertificateDer::from_pem_slice(pem).map_err(broken);
    let key = PrivateKeyDer::from_pem_slice(&issued.key).map_err(broken)?;
    let server = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(versions)
        .map_err(broken)?
        .with_no_client_auth()
        .with_single_cert(vec![certificate(&issued.chain)?], key)
        .map_err(broken)?;
    let mut roots = RootCertStore::empty();
    roots.add(certificate(&issued.authorities)?).map_err(broken)?;
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
