//! A thread's connections that speak TLS, and those whose first byte has yet to say whether they do.
//! Plain bytes go to the thread's input and come from its answers, as without it.

use super::{Connection, INPUT_BYTES, Worker};
use holdfast_env::sockets;
use holdfast_env::tls::{RECORD_BYTES, TLS_BEGINS, TlsSession};
use std::io;
use std::net::IpAddr;

/// One receive over TLS: with a record that came in parts, less than a receive has room for.
const TLS_RECEIVE_BYTES: usize = 64 << 10;
const _: () = assert!(TLS_RECEIVE_BYTES + RECORD_BYTES <= INPUT_BYTES / 2);
/// What a client on another machine hears that does not speak TLS where others do.
const NEEDS_TLS: &[u8] =
    b"CLIENT_ERROR this port speaks TLS to other machines: connect with TLS and a certificate\r\n";

/// Whether a client is on another machine.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Away(bool);

impl Away {
    pub fn of(peer: IpAddr) -> Away {
        // An address of version 4 that is written as one of version 6 is what it was.
        Away(!peer.to_canonical().is_loopback())
    }
}

impl Worker {
    /// The TLS of a connection that listener `i` brought, if it is to have some.
    pub(super) fn begin_tls(&self, i: usize) -> io::Result<Option<TlsSession>> {
        let settings = &self.shared.settings;
        if settings.tls.is_none() || i >= settings.tcp.len() {
            return Ok(None);
        }
        self.shared.tls().map(|config| TlsSession::new(&config)).transpose()
    }

    /// Receives once over TLS, plain bytes to the input from `from` on. `WouldBlock` if none came.
    pub(super) fn receive_sealed(
        &mut self,
        connection: &mut Connection,
        from: usize,
        to: usize,
    ) -> io::Result<usize> {
        self.received.resize(TLS_RECEIVE_BYTES, 0);
        let n = sockets::receive(&connection.socket, &mut self.received)?;
        self.open_sealed(connection, n, (from, to))
    }

    /// Receives for the first time where the first byte says whether this is TLS.
    pub(super) fn receive_first(
        &mut self,
        connection: &mut Connection,
        from: usize,
        to: usize,
    ) -> io::Result<usize> {
        self.received.resize(TLS_RECEIVE_BYTES, 0);
        let n = sockets::receive(&connection.socket, &mut self.received)?;
        let Some(away) = connection.undecided.take().filter(|_| n > 0) else { return Ok(0) };
        match self.received[0] == TLS_BEGINS {
            true => {
                connection.tls = self.shared.tls_of_certificates(away.0)?;
                self.open_sealed(connection, n, (from, to))
            }
            // The connection ends, which a client that did not ask for an answer notices, too.
            false if away.0 => {
                let _ = sockets::send(&connection.socket, NEEDS_TLS);
                Ok(0)
            }
            false => {
                self.input[from..from + n].copy_from_slice(&self.received[..n]);
                Ok(n)
            }
        }
    }

    /// Takes the first `n` bytes that were received over TLS.
    fn open_sealed(
        &mut self,
        connection: &mut Connection,
        n: usize,
        (from, to): (usize, usize),
    ) -> io::Result<usize> {
        let Some(tls) = &mut connection.tls else { return Err(io::ErrorKind::InvalidInput.into()) };
        self.sealed.clear();
        let opened = tls.open(&self.received[..n], &mut self.input[from..to], &mut self.sealed);
        if opened.is_err() {
            self.engine.counters().ssl_handshake_errors.add(1);
        }
        // Also why the connection ends, if it does.
        if !self.sealed.is_empty() && !self.send_sealed(connection) {
            return Ok(0);
        }
        let opened = opened?;
        match opened.bytes {
            0 if n == 0 || opened.ended => Ok(0),
            0 => Err(io::ErrorKind::WouldBlock.into()),
            bytes => Ok(bytes),
        }
    }

    pub(super) fn send_sealed(&mut self, connection: &mut Connection) -> bool {
        let mut sealed = std::mem::take(&mut self.sealed);
        let lives = self.send(connection, &sealed);
        sealed.clear();
        sealed.shrink_to(2 * INPUT_BYTES);
        self.sealed = sealed;
        lives
    }
}
