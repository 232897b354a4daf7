//! The native protocol's server: reactor threads with epoll, frames parsed in place, one batch a
//! read handed to the [`Service`], answers gathered into one write. It never decides anything
//! about a request but whether its frame is sound, and never blocks but in epoll.
//!
//! Back-pressure: what a connection has received and not yet seen answered, and what it was sent
//! and has not yet taken, is bounded by `base::limits`; past that its socket is not read.

mod batch;
mod connection;
mod inline;
mod link;
mod listen;
mod mailbox;
mod message;
mod meter;
mod out;
mod parse;
mod peers;
mod proof;
mod reactor;
mod sealed;
mod server;
mod socket;
mod tls;
mod waits;

pub use batch::Batch;
pub use connection::{HALF_SENT_S, SLOW_S};
pub use inline::Inline;
pub use link::{Link, Pages};
pub use mailbox::{Reply, Witness};
pub use message::{Body, BodyPart, Parts, Response};
pub use meter::{Flow, Meter};
pub use peers::{
    Finished, NoPeers, PEER_BYTES_MAX, PEER_REQUESTS_MAX, PeerConnection, PeerDone, PeerReply,
    PeerRequest, Peers, SharedBody, TcpPeers, TokenSource,
};
pub use proof::{Guard, Handshake, Named, OP_HELLO, OP_PROVE, Role, Who, token_serial};
pub use server::{Counters, Server, ServerConfig};
pub use socket::{Endpoint, Socket, Wait};
pub use tls::{ALPN, TlsClient, server_of, tls_error};

use crate::clients::Seat;
use crate::region::RegionMut;
use crate::tls::TlsConfig;
use crate::trial::Knob;
use holdfast_base::frame::Header;
use holdfast_base::{Error, Result};
use std::fmt;

/// Answered by the server itself, with the request's meta and no body.
pub const OP_PING: u16 = 0x0001;
/// Answered by the server itself: a client's first request over the Unix socket, with the
/// descriptor of a [`crate::ring::Ring`]. After an answer without error everything goes through
/// the ring. Refused unless the server spins.
pub const OP_RING: u16 = 0x0005;
/// Answered by the server itself: what it sends over this connection from now on may wait behind
/// others' ([`Socket::yield_to_others`]).
pub const OP_YIELD: u16 = 0x000a;

/// One accepted connection; never reused in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// Where a request's body is received.
pub enum BodyTarget {
    /// Into a buffer of the server's, see [`Body`].
    Buffer,
    /// Straight into the region. The window's length must be the body's.
    Region(RegionMut),
    /// Nowhere: the body is read and dropped, then the error answered; `handle` never sees it.
    Refuse(Error),
}

/// What the server serves. Called on reactor threads, so nothing here may block: what takes time
/// is deferred ([`Batch::defer`]) and answered from another thread.
pub trait Service: Send + Sync + 'static {
    /// Where the body of this request goes, asked once its header and meta are verified. Not
    /// asked for requests without a body.
    fn body_target(&self, who: &Who, header: &Header, meta: &[u8]) -> BodyTarget {
        let _ = (who, header, meta);
        BodyTarget::Buffer
    }

    /// Requests that one read of one connection completed, in the order sent, at most
    /// [`BATCH_REQUESTS_MAX`]. Those neither answered nor deferred are answered as a bug.
    fn handle(&self, batch: &mut Batch<'_>);

    /// Whether whoever is connected may still ask anything: asked before each batch, because a
    /// connection outlives what it began with. An error ends it, so that a peer who has a better
    /// certificate by now shows that one.
    fn check_standing(&self, who: &Who) -> Result<()> {
        let _ = who;
        Ok(())
    }

    /// What counts this connection of `who`, asked once it is known. Nothing for those without
    /// limits; an error, which ends the connection, where they have too many already.
    fn seat(&self, who: &Who, now_ns: u64) -> Result<Option<Seat>> {
        let _ = (who, now_ns);
        Ok(None)
    }

    /// Why `who` may not ask for this at all: then nothing is kept of the request's body. Looks at
    /// the head of the request alone.
    fn refuses(&self, who: &Who, opcode: u16) -> Option<Error> {
        let _ = (who, opcode);
        None
    }

    /// Whether nodes alone ask for it, for whom there is memory when clients have used up theirs.
    /// Looks at the head of the request alone.
    fn is_for_nodes(&self, opcode: u16) -> bool {
        let _ = opcode;
        false
    }

    /// [`STALE`](holdfast_base::frame::STALE) if what is answered now may be old; asked once a batch.
    fn label(&self) -> u32 {
        0
    }

    fn connected(&self, connection: ConnectionId) {
        let _ = connection;
    }

    /// The connection is gone; answers to it go nowhere.
    fn disconnected(&self, connection: ConnectionId) {
        let _ = connection;
    }
}

/// What this process shows who it talks to over TLS, and whom it believes. What it answers may
/// change from call to call: certificates are renewed while connections are open.
pub trait Credentials: fmt::Debug + Send + Sync + 'static {
    /// For connections that are accepted. Clients may show a certificate.
    fn server(&self) -> TlsConfig;

    /// For connections to other nodes: shows the own certificate.
    fn client(&self) -> TlsClient;

    /// Who it is that holds `certificate` (DER), which one of our authorities has signed; `Denied`
    /// where it names nobody of this cluster.
    fn identify(&self, certificate: &[u8]) -> Result<Named>;

    /// Changes with the authorities that are believed: connections from before have to be made anew.
    fn generation(&self) -> u64 {
        0
    }

    /// Whether what was identified still stands, for those whom this process asks: see
    /// [`Service::check_standing`].
    fn check_standing(&self, named: &Named) -> Result<()> {
        let _ = named;
        Ok(())
    }
}

/// Connections of one server.
pub const CONNECTIONS_MAX: usize = 16384;
/// Requests of one batch; between batches the limits of the connection are looked at.
pub static BATCH_REQUESTS_MAX: Knob = Knob::new("net.batch-requests", 256, &[1, 2, 3]);
/// Bodies of one batch's requests, past which no more are added; and what the answers of one batch
/// should come to, see `Connection::batch_requests`.
pub static BATCH_BYTES: Knob = Knob::new("net.batch-bytes", 8 << 20, &[1, 100, 5000]);
/// One receive of small frames.
pub(crate) static RECEIVE_BYTES: Knob = Knob::new("net.receive", 512 << 10, &[1, 31, 33, 4096]);
/// What a peer may have sent of one request before it is known.
pub(crate) const STRANGER_BYTES_MAX: usize = 20 << 10;
/// A body of this size that is not yet complete is received where it belongs; a smaller one is
/// waited for in the buffer, and copied.
pub(crate) static DIRECT_BYTES_MIN: Knob = Knob::new("net.direct-body", 16 << 10, &[1, 2, 100]);
/// Read beyond a direct body, in the same call: the next frame's head and meta, as a rule.
pub(crate) static TAIL_BYTES: Knob = Knob::new("net.tail", 4 << 10, &[1, 32, 33]);
