//! How the thread that asks peers greets each of them: both sides show their certificates, or prove
//! the secret, before any request goes out. What is said is the handshake's; this file moves its
//! bytes.

use super::{DIAL_NS, Reactor, State, token, watch};
use crate::RealRng;
use crate::net::Credentials;
use crate::net::link::Link;
use crate::net::proof::{Handshake, Role};
use crate::net::socket::Wait;
use crate::net::tls::tls_error;
use holdfast_base::{Error, Result};
use std::io::{self, IoSlice};

impl Reactor {
    /// The way is there: greets, where there is something to show or to prove.
    pub(super) fn connected(&mut self, number: u32, link: Link) {
        if let Some(credentials) = self.shared.credentials.clone() {
            if let Err(e) = self.begin_tls(number, link, &*credentials) {
                self.broken(number, &e);
            }
            return;
        }
        let Some(peer) = self.peers.get_mut(&number) else { return };
        let secrets = self.shared.secrets.clone();
        if secrets.is_empty() {
            peer.state = State::Connected { link };
            return self.touched.push(number);
        }
        let handshake = Box::new(Handshake::new(secrets, Role::Node, &RealRng));
        let until_ns = self.now_ns + DIAL_NS;
        peer.state = State::Greeting { link, handshake, until_ns };
        peer.interest = libc::EPOLLIN as u32;
        let State::Greeting { link, .. } = &peer.state else { return };
        let (raw, token) = (link.socket.raw(), token(number, peer.attempt));
        let watched = watch(&self.epoll, libc::EPOLL_CTL_MOD, raw, peer.interest, token);
        if let Err(e) = watched.map_err(Error::from).and_then(|()| self.say_greeting(number)) {
            self.broken(number, &e);
        }
    }

    fn begin_tls(
        &mut self,
        number: u32,
        mut link: Link,
        credentials: &dyn Credentials,
    ) -> Result<()> {
        let Some(peer) = self.peers.get_mut(&number) else { return Ok(()) };
        link.begin_tls(&credentials.client(), &peer.route.address)?;
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
        if let State::Shaking { link, .. } = std::mem::replace(&mut peer.state, State::Idle) {
            peer.state = State::Connected { link };
            self.touched.push(number);
        }
        Ok(())
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
            peer.state = State::Connected { link };
            self.touched.push(number);
        }
        Ok(())
    }
}
