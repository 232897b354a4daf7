//! Certificates for measurements over TLS: those of a node under test, and two bare ends of
//! rustls' own streams, which our TLS is held against.

use holdfast_base::{Error, Result};
use holdfast_command::certificates::{CA, Issuer, TLS};
use holdfast_env::local;
use holdfast_env::tls::provider;
use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, HandshakeKind, RootCertStore, ServerConfig, ServerConnection,
    StreamOwned,
};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Seconds that bare rustls takes to seal a byte, in answers of so many, over a connection whose other
/// end takes what is sealed at once: memory. Its CA is made in the directory `authority`.
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
const VERSIONS: &[&rustls::SupportedProtocolVersion] = &[&rustls::version::TLS13];
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
    let (client, server) = ends(authority)?;
    Ok((StreamOwned::new(connect(client)?, near), StreamOwned::new(accept(&server)?, far)))
}

fn connect(config: ClientConfig) -> io::Result<ClientConnection> {
    let name = ServerName::try_from(HOST).map_err(broken)?;
    ClientConnection::new(Arc::new(config), name).map_err(broken)
}

fn accept(config: &Arc<ServerConfig>) -> io::Result<ServerConnection> {
    ServerConnection::new(config.clone()).map_err(broken)
}

/// Both ends' terms, with a CA in the directory `authority`.
fn ends(authority: &Path) -> io::Result<(ClientConfig, Arc<ServerConfig>)> {
    let issuer = Issuer::open(authority, "bench").map_err(|e| broken(e.message))?;
    let issued = issuer.issue(NAME).map_err(|e| broken(e.message))?;
    let chain = CertificateDer::from_pem_slice(&issued.chain).map_err(broken)?;
    let key = PrivateKeyDer::from_pem_slice(&issued.key).map_err(broken)?;
    let mut server = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(VERSIONS)
        .map_err(broken)?
        .with_no_client_auth()
        .with_single_cert(vec![chain], key)
        .map_err(broken)?;
    server.ticketer = rustls::crypto::ring::Ticketer::new().map_err(broken)?;
    Ok((client_of(&issued.authorities)?, Arc::new(server)))
}

/// What believes a CA, as PEM.
fn client_of(authorities: &[u8]) -> io::Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authorities).map_err(broken)?).map_err(broken)?;
    let client = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(VERSIONS)
        .map_err(broken)?;
    Ok(client.with_root_certificates(roots).with_no_client_auth())
}

/// What shakes hands with a server that the CA in this file has a certificate for, each time anew or,
/// from the second time on, with what the time before left.
pub struct Shaker {
    config: ClientConfig,
    resumes: bool,
}

impl Shaker {
    pub fn new(authority: &Path, resumes: bool) -> io::Result<Shaker> {
        Ok(Shaker::of(client_of(&std::fs::read(authority)?)?, resumes))
    }

    fn of(mut config: ClientConfig, resumes: bool) -> Shaker {
        if !resumes {
            config.resumption = Resumption::disabled();
        }
        Shaker { config, resumes }
    }

    /// One handshake, and one message each way behind it: with the answer the server has done all
    /// of its work, and what resumes the session has come. Says whether this one was resumed.
    pub fn shake(&self, socket: TcpStream, message: &[u8], answer: &mut [u8]) -> io::Result<bool> {
        socket.set_nodelay(true)?;
        let mut near = StreamOwned::new(connect(self.config.clone())?, socket);
        near.write_all(message)?;
        near.flush()?;
        near.read_exact(answer)?;
        self.check(&near.conn)
    }

    fn check(&self, conn: &ClientConnection) -> io::Result<bool> {
        let resumed = conn.handshake_kind() == Some(HandshakeKind::Resumed);
        match resumed && !self.resumes {
            true => Err(io::Error::other("a session was resumed that nobody remembers")),
            false => Ok(resumed),
        }
    }
}

/// Handshakes a second of processor time, each with a message there and back, of a bare end of rustls
/// in memory whose peer takes no time.
pub fn handshakes(authority: &Path, message_bytes: usize, resumes: bool) -> io::Result<f64> {
    let (client, server) = ends(authority)?;
    let shaker = Shaker::of(client, resumes);
    let (mut spent, mut count) = (0.0, 0u32);
    while spent < SEALING.as_secs_f64() {
        let (mut near, mut far) = (connect(shaker.config.clone())?, accept(&server)?);
        let (mut answered, message) = (0, vec![7; message_bytes]);
        near.writer().write_all(&message)?;
        while answered < message_bytes {
            let mut sent = Vec::new();
            while near.wants_write() {
                near.write_tls(&mut sent)?;
            }
            let start = own_seconds();
            let said = answer(&mut far, &sent)?;
            spent += own_seconds() - start;
            let mut said = &said[..];
            while !said.is_empty() {
                near.read_tls(&mut said)?;
                near.process_new_packets().map_err(broken)?;
            }
            match near.reader().read(&mut vec![0; message_bytes]) {
                Ok(bytes) => answered += bytes,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(e),
            }
        }
        // The first one has nothing to resume.
        if shaker.check(&near)? == resumes {
            count += 1;
        } else {
            spent = 0.0;
        }
    }
    Ok(f64::from(count) / spent)
}

/// The same over sockets of loopback: the least that a server does whose peers connect and close, one
/// thread that waits for one connection at a time. Its processor time, the kernel's for it included.
pub fn handshakes_over_tcp(
    authority: &Path,
    message_bytes: usize,
    resumes: bool,
) -> io::Result<f64> {
    let (client, server) = ends(authority)?;
    let listener = TcpListener::bind((HOST, 0))?;
    let address = listener.local_addr()?;
    // Said before the port closes, so whoever is refused there knows why.
    let is_over = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        let serving = scope.spawn(move || -> io::Result<f64> {
            let own = || {
                let (user, system) = local::thread_cpu_seconds();
                user + system
            };
            let (mut start, mut count) = (0.0, 0u32);
            let mut message = vec![0; message_bytes];
            while count < 2 || own() - start < SEALING.as_secs_f64() {
                let (socket, _) = listener.accept()?;
                socket.set_nodelay(true)?;
                let mut far = StreamOwned::new(accept(&server)?, socket);
                far.read_exact(&mut message)?;
                far.write_all(&message)?;
                far.flush()?;
                // Until the peer has closed.
                let _ = far.read(&mut message);
                count += 1;
                if count == 1 {
                    // The first one has nothing to resume.
                    start = own();
                }
            }
            is_over.store(true, Ordering::SeqCst);
            Ok(f64::from(count - 1) / (own() - start))
        });
        let shaker = Shaker::of(client, resumes);
        let (message, mut answer) = (vec![7; message_bytes], vec![0; message_bytes]);
        while !serving.is_finished() {
            let shaken = TcpStream::connect(address)
                .and_then(|socket| shaker.shake(socket, &message, &mut answer));
            match shaken {
                Err(_) if is_over.load(Ordering::SeqCst) => break,
                shaken => shaken?,
            };
        }
        serving.join().map_err(|_| io::Error::other("the limit's other end panicked"))?
    })
}

/// Processor time of this process, which has one thread at work: as it is taken of the node's.
fn own_seconds() -> f64 {
    let (user, system) = local::cpu_seconds();
    user + system
}

/// What a server's end says to what it is sent, whose messages it echoes.
fn answer(far: &mut ServerConnection, mut sent: &[u8]) -> io::Result<Vec<u8>> {
    while !sent.is_empty() {
        far.read_tls(&mut sent)?;
        far.process_new_packets().map_err(broken)?;
    }
    let mut message = [0; 4096];
    match far.reader().read(&mut message) {
        Ok(bytes) => far.writer().write_all(&message[..bytes])?,
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
        Err(e) => return Err(e),
    }
    let mut said = Vec::new();
    while far.wants_write() {
        far.write_tls(&mut said)?;
    }
    Ok(said)
}
