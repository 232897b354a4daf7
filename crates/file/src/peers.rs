//! What other nodes ask of this one: where the cluster is, its log, its stores. Who asks is
//! checked before anything is done, but for the first question of all.

use crate::FileService;
use holdfast_base::codec::{Decode, Encode, Reader};
use holdfast_base::ids::Index;
use holdfast_base::{Error, Result};
use holdfast_cluster::{DATA_FORMAT_VERSION, NAMESPACE_TOPIC};
use holdfast_env::net::{Body, PeerDone, PeerReply, PeerRequest, Reply, Response};
use holdfast_env::planted;
use holdfast_log::LogHost;
use holdfast_node::{is_peer_operation, is_snapshot_operation};
use holdfast_wire::log::Info;
use holdfast_wire::peer::{self, Sender, Welcome};
use holdfast_wire::peer_log::{Describe, OP_PEER_LOG_APPEND, OP_PEER_LOG_INFO};

/// How long the log's host may take to say how far the log is.
const CATCH_UP_MS: u32 = 5000;

/// Whether nodes alone ask this.
pub(crate) fn is_for_nodes(opcode: u16) -> bool {
    is_peer_operation(opcode)
        || is_snapshot_operation(opcode)
        || LogHost::knows(opcode)
        || matches!(opcode, peer::OP_PEER_HELLO | peer::OP_PEER_BEAT)
}

/// What a client hears that asks it.
pub(crate) fn not_a_node(opcode: u16) -> Error {
    Error::denied(format!(
        "carry out operation {opcode:#06x}: nodes of the cluster alone ask for it: connect as one"
    ))
}

fn said(message: &impl Encode) -> Result<PeerReply> {
    Ok(PeerReply { meta: message.to_bytes(), body: Vec::new() })
}

impl FileService {
    pub(crate) fn peer(&self, opcode: u16, meta: &[u8], body: Body<'_>, reply: Reply) {
        let done: PeerDone = Box::new(move |answer: Result<PeerReply>| {
            reply.send(match answer {
                Ok(PeerReply { meta, body }) => Response::ok(meta, body),
                Err(e) => Response::error(e),
            });
        });
        match opcode {
            peer::OP_PEER_HELLO => done(said(&self.welcome())),
            peer::OP_PEER_BEAT => done(self.heard(meta)),
            opcode if LogHost::knows(opcode) => self.peer_log(opcode, meta, body, done),
            opcode if is_snapshot_operation(opcode) => match self.admit(meta) {
                Ok(()) => {
                    let (node, meta) = (self.node.clone(), meta.to_vec());
                    let answer = move || done(node.answer_about_snapshots(opcode, &meta));
                    self.node.workers.run(answer);
                }
                Err(e) => done(Err(e)),
            },
            opcode => self.node.replicator.handle(opcode, meta, body.into_vec(), done),
        }
    }

    /// Answers once this node's view has everything that is in the log now.
    pub(crate) fn catch_up(&self, reply: Reply) {
        let done = move |reached: Result<()>| reply.finish(reached.map(|()| Vec::new()));
        if self.node.hosted.is_some() {
            // The log is here, and so is all of it.
            return done(Ok(()));
        }
        let (sender, topic) = (self.node.sender, NAMESPACE_TOPIC.to_owned());
        let request = PeerRequest {
            opcode: OP_PEER_LOG_INFO,
            meta: Describe { sender, topic }.to_bytes(),
            body: None,
            deadline_ms: CATCH_UP_MS,
        };
        let namespace = self.node.namespace.clone();
        let answered = move |answer: Result<PeerReply>| match answer
            .and_then(|answer| Ok(Info::from_bytes(&answer.meta)?))
        {
            Ok(_) if planted!("node.catch-up-waits-for-nothing") => done(Ok(())),
            Ok(info) => {
                namespace.wake_at(Index(info.durable.0.saturating_sub(1)), Box::new(done));
            }
            Err(e) => done(Err(e)),
        };
        self.node.machine.peers.call(&self.node.log_host, request, Box::new(answered));
    }

    fn welcome(&self) -> Welcome {
        Welcome {
            cluster: self.node.sender.cluster,
            log_host: self.node.log_host.clone(),
            data_format: DATA_FORMAT_VERSION,
        }
    }

    /// Answers the nodes that wait for entries: to be called before the server is shut down, which
    /// otherwise waits for them.
    pub fn release_peers(&self) {
        self.log_host.release();
    }

    fn admit(&self, meta: &[u8]) -> Result<()> {
        let sender = Sender::decode(&mut Reader::new(meta)).map_err(|e| {
            Error::invalid(format!("ask a node: {e}: use matching builds on all nodes"))
        })?;
        self.node.replicator.directory.admit(&sender)
    }

    fn heard(&self, meta: &[u8]) -> Result<PeerReply> {
        self.admit(meta)?;
        let beat = peer::Beat::from_bytes(meta)?;
        self.node.hear(&beat);
        Ok(PeerReply::default())
    }

    fn peer_log(&self, opcode: u16, meta: &[u8], body: Body<'_>, done: PeerDone) {
        if let Err(e) = self.admit(meta) {
            return done(Err(e));
        }
        if self.node.hosted.is_none() {
            return done(Err(Error::retry(format!(
                "use the log: this node does not keep it, `{}` does",
                self.node.log_host
            ))));
        }
        if opcode == OP_PEER_LOG_APPEND {
            // On this thread, which never waits for it: appends keep the order they were sent in.
            return self.log_host.serve(opcode, meta, body.as_slice(), done);
        }
        let (host, meta) = (self.log_host.clone(), meta.to_vec());
        self.node.workers.run(move || host.serve(opcode, &meta, &[], done));
    }
}
