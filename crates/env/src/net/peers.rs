//! How one server asks another: requests of the native protocol, answered by a callback. The seam
//! between a node and its cluster; the real one keeps a connection to each address, a simulation
//! delivers, delays and loses as it likes. Never retries: who calls decides what a failure means.

mod core;
mod dial;
mod driver;
#[cfg(test)]
mod tests;

pub use core::{Finished, PeerConnection};
pub use driver::{PEER_BYTES_MAX, PEER_REQUESTS_MAX, TcpPeers, TokenSource};

use holdfast_base::Result;
use std::sync::Arc;

/// A body that several requests, and a store, share.
pub type SharedBody = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// A request to another server.
#[derive(Clone)]
pub struct PeerRequest {
    pub opcode: u16,
    pub meta: Vec<u8>,
    pub body: Option<SharedBody>,
    /// How long the answer may take; past it the call fails with `Retry`.
    pub deadline_ms: u32,
}

/// Its answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerReply {
    pub meta: Vec<u8>,
    pub body: Vec<u8>,
}

/// Called exactly once, on any thread, but never from within the call that it was given to, with no
/// lock held. It must not block.
pub type PeerDone = Box<dyn FnOnce(Result<PeerReply>) + Send>;

pub trait Peers: Send + Sync + 'static {
    /// Sends `request` to the server at `address` (`host:port`). Requests to one address arrive
    /// in the order of the calls for as long as its connection lives; once it breaks, all that are
    /// outstanding fail. A failure of the way there or back, or of time, is `Retry`: whether the
    /// request was carried out is then unknown. An error that the server answered comes as it is.
    fn call(&self, address: &str, request: PeerRequest, done: PeerDone);

    /// As [`Peers::call`], over a connection of its own, whose bytes wait behind all others where
    /// the network tells them apart: for what is large and can wait.
    fn call_yielding(&self, address: &str, request: PeerRequest, done: PeerDone) {
        self.call(address, request, done);
    }

    /// Calls `then` after about so long: for hedges and limits.
    fn after(&self, ms: u64, then: Box<dyn FnOnce() + Send>);

    /// For callers that wait for a callback: lets a simulation go on to its next event, and says
    /// whether it did. `false`: the callback comes from another thread, so block. An error means
    /// that this node was ended meanwhile: the wait is over.
    fn step(&self) -> Result<bool> {
        Ok(false)
    }
}

/// Of a process that asks nobody: a node that is looked at, not run.
pub struct NoPeers;

impl Peers for NoPeers {
    fn call(&self, address: &str, _: PeerRequest, done: PeerDone) {
        done(Err(holdfast_base::Error::retry(format!("ask `{address}`: this node is alone"))));
    }

    fn after(&self, _: u64, _: Box<dyn FnOnce() + Send>) {}
}
