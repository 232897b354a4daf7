//! How the thread that asks peers greets each of them: both sides show their certificates, or prove
//! the secret, before any request goes out. What is said is the handshake's; this file moves its
//! bytes.

use super::{DIAL_NS, Identity, Peer, Reactor, State, token, watch};
use crate::net::Named;
use crate::net::link::Link;
use crate::net::proof::{Handshake, Role};
use crate::net::socket::Wait;
use crate::net::tls::{TlsClient, tls_error};
use crate::{RealRng, planted};
use holdfast_base::{Error, Result};
use std::io::{self, IoSlice};

impl Reactor {
    /// The way is there: greets, where there is something to show or to prove.
    pub(super) fn connected(&mut self, number: u32, link: Link) {
        let shared = self.shared.clone();
        let begun = match &shared.identity {
            Identity::Node { credentials: Some(credentials), .. } => {
                self.begin_tls(number, link, &credentials.client())
            }
            Identity::Node { secrets, .. } if secrets.is_empty() => {
                self.is_connected(number, link, None);
                Ok(())
            }
            Identity::Node { secrets, .. } => {
                let handshake = Handshake::new(secrets.clone(), Role::Node, &RealRng);
                self.begin_greeting(number, link, handshake)
            }
            Identity::Client { tls: Some(tls), .. } => self.begin_tls(number, link, tls),
            Identity::Client { token, tls: None } => token().and_then(|token| {
                self.begin_greeting(number, link, Handshake::with_token(&token, &RealRng))
            }),
        };
        if let Err(e) = begun {
            self.broken(number, &e);
        }
    }

    fn is_connected(&mut self, number: u32, link: Link, named: Option<Named>) {
        if let Some(peer) = self.peers.get_mut(&number) {
            peer.state = State::Connected { link, named };
            self.touched.push(number);
        }
    }

    fn begin_greeting(&mut self, number: u32, link: Link, handshake: Handshake) -> Result<()> {
        let until_ns = self.now_ns + DIAL_NS;
        let Some(peer) = self.peers.get_mut(&number) else { return Ok(()) };
        let (raw, token) = (link.socket.raw(), token(number, peer.attempt));
        peer.state = State::Greeting { link, handshake: Box::new(handshake), until_ns };
        peer.interest = libc::EPOLLIN as u32;
        watch(&self.epoll, libc::EPOLL_CTL_MOD, raw, peer.interest, token)?;
        self.say_greeting(number)
    }

    fn begin_tls(&mut self, number: u32, mut link: Link, tls: &TlsClient) -> Result<()> {
        let Some(peer) = self.peers.get_mut(&number) else { return Ok(()) };
        link.begin_tls(tls, &peer.route.address)?;
        peer.interest = libc::EPOLLIN as u32;
        let token = token(number, peer.attempt);
        watch(&self.epoll, libc::EPOLL_CTL_MOD, link.socket.raw(), peer.interest, token)?;
        peer.state = State::Shaking { link, until_ns: self.now_ns + DIAL_NS };
        Ok(())
    }

    /// One receive of a handshake of TLS.
    pub(super) fn shake(&mut self, number: u32) -> Result<()> {
        let Some(peer) = self.peers.get_mut(&number) else { return Ok(()) };
        let State::Shaking { link, .. } = &mut peer.state else { return Ok(()) };
        match link.shake(Wait::No) {
            Ok(false) => return Ok(()),
            Ok(true) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(e) => return Err(tls_error(e)),
        }
        let shared = self.shared.clone();
        let named = match &shared.identity {
            Identity::Node { .. } => Some(self.answers(number)?),
            // An authority that was named for this cluster alone has signed for the host.
            Identity::Client { .. } => None,
        };
        let Some(peer) = self.peers.get_mut(&number) else { return Ok(()) };
        let State::Shaking { link, .. } = std::mem::replace(&mut peer.state, State::Idle) else {
            return Ok(());
        };
        match &shared.identity {
            Identity::Node { .. } => self.is_connected(number, link, named),
            Identity::Client { token, .. } => {
                self.begin_greeting(number, link, Handshake::with_token(&token()?, &RealRng))?;
            }
        }
        Ok(())
    }

    /// Who has answered: a node of the same cluster, or nobody to be asked. That an authority of
    /// ours has signed for the host is not enough, for it may sign for others, too.
    fn answers(&self, number: u32) -> Result<Named> {
        let unknown = || Error::denied("agree on TLS: the server showed no certificate");
        let Some(Peer { state: State::Shaking { link, .. }, .. }) = self.peers.get(&number) else {
            return Err(unknown());
        };
        let Identity::Node { credentials: Some(credentials), .. } = &self.shared.identity else {
            return Err(unknown());
        };
        let named = credentials.identify(link.certificate().ok_or_else(unknown)?)?;
        if named.role != Role::Node && !planted!("net.any-server-is-a-node") {
            return Err(Error::denied(format!("ask `{}`: it is no node", named.name)));
        }
        credentials.check_standing(&named)?;
        Ok(named)
    }

    /// Sends what the handshake has to say: so little that a socket without anything else in it
    /// takes it whole.
    fn say_greeting(&mut self, number: u32) -> Result<()> {
        let Some(peer) = self.peers.get_mut(&number) else { return Ok(()) };
        let State::Greeting { link, handshake, .. } = &mut peer.state else { return Ok(()) };
        let said = handshake.output();
        match said.is_empty() || link.send(&[IoSlice::new(&said)], None, false)? == said.len() {
            true => Ok(()),
            false => Err(Error::retry("greet: the connection takes nothing")),
        }
    }

    /// One receive of a greeting's answer.
    pub(super) fn greet(&mut self, number: u32) -> Result<()> {
        let Some(peer) = self.peers.get_mut(&number) else { return Ok(()) };
        let State::Greeting { link, handshake, .. } = &mut peer.state else { return Ok(()) };
        let received = match link.receive(&mut self.buffer, Wait::No, &mut Vec::new()) {
            Ok(0) => return Err(Error::retry("it was closed")),
            Ok(received) => received,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(e) => return Err(e.into()),
        };
        if !handshake.received(&self.buffer[..received])? {
            return self.say_greeting(number);
        }
        if let State::Greeting { link, .. } = std::mem::replace(&mut peer.state, State::Idle) {
            self.is_connected(number, link, None);
        }
        Ok(())
    }
}
