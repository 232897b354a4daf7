//! What only the node that looks after the log can answer, asked by any other one in its place.

use crate::route::{Request, answer};
use holdfast_base::Result;
use holdfast_env::net::{Parts, PeerReply, PeerRequest};
use holdfast_node::Node;
use std::sync::Arc;

/// How long that node may take where nobody set a deadline.
const HOST_MS: u32 = 60_000;

/// Has the node that looks after the log answer a request, through this one.
pub fn pass_on(node: &Node, request: Request<'_>) {
    let Request { opcode, meta, body, reply, .. } = request;
    let now_ns = node.machine.clock.monotonic_ns();
    let left_ns = reply.deadline_ns().map(|end_ns| end_ns.saturating_sub(now_ns));
    let deadline_ms = left_ns.map(|left_ns| (left_ns / 1_000_000) as u32);
    let done = move |answered: Result<PeerReply>| {
        answer(reply, answered.map(|PeerReply { meta, body }| (meta, Parts::from(body))));
    };
    ask_host(node, (opcode, meta.to_vec(), body.into_vec()), deadline_ms, done);
}

/// Asks the node that looks after the log for an operation, with its message and body.
pub fn ask_host(
    node: &Node,
    (opcode, meta, body): (u16, Vec<u8>, Vec<u8>),
    deadline_ms: Option<u32>,
    done: impl FnOnce(Result<PeerReply>) + Send + 'static,
) {
    let body = (!body.is_empty()).then(|| Arc::new(body) as _);
    let deadline_ms = deadline_ms.unwrap_or(HOST_MS);
    let request = PeerRequest { opcode, meta, body, deadline_ms };
    match node.log_host() {
        Ok(host) => node.machine.peers.call(&host, request, Box::new(done)),
        Err(e) => done(Err(e)),
    }
}
