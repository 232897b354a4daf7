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
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Seconds that bare rustls takes to seal a byte, in answers of so many, over a connection whose other
/// end takes what is sealed at once: memory.
pub fn sealing_seconds(authority: &Path, block_bytes: usize) -> io::Result<f64> {
    let (mut near, mut far) = pair(authority, super::limits::tcp_pair()?)?;
    let hello = std::thread::spawn(move || near.read_exact(&mut [0]).map(|()| near));
    far.write_all(&[0])?;
    far.flush()?;
    let near = hello.join().map_err(|_| io::Error::other("the limit's other end panicked"))??;
    let (block, mut sealed) = (vec![0x5au8; block_bytes], Vec::new());
    let (start, mut blocks) = (Instant::now(), 0u32);
    while start.elapsed() < SEALING {
        let mut rest = &block[..];
        while !rest.is_empty() {
            let taken = far.conn.writer().write(rest)?;
            rest = &rest[taken..];
            while far.conn.wants_write() {
                far.conn.write_tls(&mut sealed)?;
            }
        }
        sealed.clear();
        blocks += 1;
    }
    drop(near);
    Ok(start.elapsed().as_secs_f64() / f64::from(blocks) / block_bytes as f64)
}

/// The client's end.
pub type Near = StreamOwned<ClientConnection, TcpStream>;
/// The server's.
pub type Far = StreamOwned<ServerConnection, TcpStream>;

const HOST: &str = "127.0.0.1";
const NAME: &str = "node-1";
/// How long a limit is measured.
const SEALING: Duration = Duration::from_millis(500);

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
