//! How a connection begins: connected, sealed, and heard. What listens somewhere need not be a node, and a node
//! that was stopped still has its connections accepted: so no connection counts before something was said on it,
//! the greeting where there is something to prove, and else the answer to a ping.

use super::ClientOptions;
use super::core::{Core, Step};
use holdfast_base::{Error, Kind, Result};
use holdfast_env::net::{Endpoint, Handshake, Link, Role, Socket, TlsClient, Wait, tls_error};
use holdfast_env::{RealRng, planted};
use holdfast_wire::OP_PING;
use std::io::{self, IoSlice};

/// One receive of a greeting.
pub(super) const GREETING_BYTES: usize = 512;

/// What is said first, and has to be answered.
pub(super) enum Greeting {
    Proof(Handshake),
    Ping(Ping),
}

/// A question that every node answers at once, whoever asks.
pub(super) struct Ping {
    core: Core,
    /// To be sent.
    said: Vec<u8>,
    heard: Vec<u8>,
}

impl Greeting {
    /// Over a Unix socket the user is proof enough.
    pub fn new(endpoint: &Endpoint, options: &ClientOptions) -> Result<Greeting> {
        if matches!(endpoint, Endpoint::Tcp(_)) {
            if let Some(token) = &options.token {
                return Ok(Greeting::Proof(Handshake::with_token(token, &RealRng)));
            }
            if !options.secrets.is_empty() {
                let secrets = options.secrets.clone();
                return Ok(Greeting::Proof(Handshake::new(secrets, Role::Client, &RealRng)));
            }
        }
        Ping::new().map(Greeting::Ping)
    }

    /// Whether the server is to be heard before it counts.
    pub fn is_needed(&self) -> bool {
        matches!(self, Greeting::Proof(_)) || !planted!("client.connected-is-there")
    }

    /// What is to be sent now.
    pub fn output(&mut self) -> Vec<u8> {
        match self {
            Greeting::Proof(handshake) => handshake.output(),
            Greeting::Ping(ping) => std::mem::take(&mut ping.said),
        }
    }

    /// Takes what was received; true once the server was heard.
    pub fn received(&mut self, bytes: &[u8]) -> Result<bool> {
        match self {
            Greeting::Proof(handshake) => handshake.received(bytes),
            Greeting::Ping(ping) => ping.received(bytes),
        }
    }
}

impl Ping {
    fn new() -> Result<Ping> {
        let (mut core, mut said) = (Core::new(1), Vec::new());
        core.submit(&mut said, OP_PING, 0, 0, |_| {})?;
        Ok(Ping { core, said, heard: Vec::new() })
    }

    /// A refusal is an answer, too.
    fn received(&mut self, bytes: &[u8]) -> Result<bool> {
        self.heard.extend_from_slice(bytes);
        Ok(match self.core.next(&self.heard)? {
            Step::Need(_) => false,
            Step::Frame(_) => true,
        })
    }
}

/// A connection on which the server was heard, within the time to connect for each step.
pub(super) fn open(endpoint: &Endpoint, options: &ClientOptions) -> Result<Link> {
    let failed = |e: io::Error| connect_error(endpoint, &e);
    let mut link =
        Socket::connect(endpoint, options.connect_timeout).map(Link::new).map_err(failed)?;
    link.set_receive_timeout(Some(options.connect_timeout)).map_err(failed)?;
    if let (Some(tls), Endpoint::Tcp(address)) = (&options.tls, endpoint) {
        agree_on_tls(&mut link, tls, address)
            .map_err(|e| e.context(format!("connect to `{endpoint}`")))?;
    }
    Greeting::new(endpoint, options)
        .and_then(|mut greeting| greet(&mut link, &mut greeting))
        .map_err(|e| e.context(format!("connect to `{endpoint}`")))?;
    link.set_receive_timeout(options.read_timeout).map_err(failed)?;
    Ok(link)
}

fn agree_on_tls(link: &mut Link, tls: &TlsClient, address: &str) -> Result<()> {
    link.begin_tls(tls, address)?;
    while !link.shake(Wait::Yes).map_err(tls_error)? {}
    Ok(())
}

fn greet(link: &mut Link, greeting: &mut Greeting) -> Result<()> {
    let mut buffer = [0; GREETING_BYTES];
    while greeting.is_needed() {
        let said = greeting.output();
        if !said.is_empty() && link.send(&[IoSlice::new(&said)], None, false)? < said.len() {
            return Err(Error::retry("greet: the connection takes nothing"));
        }
        let received = link.receive(&mut buffer, Wait::Yes, &mut Vec::new()).map_err(unheard)?;
        if received == 0 {
            return Err(closed());
        }
        if greeting.received(&buffer[..received])? {
            return Ok(());
        }
    }
    Ok(())
}

/// Nothing was received.
pub(super) fn unheard(e: io::Error) -> Error {
    match e.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Error::retry(
            "no answer in time, though the connection was taken: is a node there, does it run, and is it not overloaded?",
        ),
        // The server may refuse the own certificate only now.
        io::ErrorKind::InvalidData => tls_error(e),
        _ => e.into(),
    }
}

pub(super) fn closed() -> Error {
    Error::retry("the server closed the connection")
}

pub(super) fn connect_error(endpoint: &Endpoint, e: &io::Error) -> Error {
    let (kind, why) = match e.kind() {
        io::ErrorKind::ConnectionRefused => {
            (Kind::Retry, "connection refused: is `holdfast up` running?".to_owned())
        }
        io::ErrorKind::NotFound if matches!(endpoint, Endpoint::Unix(_)) => {
            (Kind::Retry, "there is no such socket: is `holdfast up` running there?".to_owned())
        }
        io::ErrorKind::TimedOut => {
            (Kind::Retry, "no answer in time: check the address and the network".to_owned())
        }
        _ => (Error::from(io::Error::from(e.kind())).kind, format!("{e}: check the address")),
    };
    Error::new(kind, format!("connect to `{endpoint}`: {why}"))
}
