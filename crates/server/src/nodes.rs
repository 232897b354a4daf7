//! What other nodes ask of this one: where the cluster is, its log, its stores. Who asks is
//! checked before anything is done, but for the first question of all.

use crate::route::{Face, Request, Right, Route};
use holdfast_base::codec::{Decode, Encode, Reader};
use holdfast_base::ids::Index;
use holdfast_base::{Error, Result};
use holdfast_cluster::DATA_FORMAT_VERSION;
use holdfast_cluster::topics::namespace_topic;
use holdfast_env::net::{Body, PeerDone, PeerReply, Reply, Response};
use holdfast_env::planted;
use holdfast_log::{Info, LogHost};
use holdfast_node::{Node, PEER_OPERATIONS, SNAPSHOT_OPERATIONS};
use holdfast_wire::OP_CATCH_UP;
use holdfast_wire::peer::{self, Sender, Welcome};
use holdfast_wire::peer_log::{
    OP_PEER_LOG_APPEND, OP_PEER_LOG_COMPARE, OP_PEER_LOG_INFO, OP_PEER_LOG_REACHED,
};
use std::sync::Arc;

fn said(message: &impl Encode) -> Result<PeerReply> {
    Ok(PeerReply { meta: message.to_bytes(), body: Vec::new() })
}

/// What the nodes of a cluster ask of each other.
pub struct Nodes {
    node: Arc<Node>,
    log_host: Arc<LogHost>,
}

impl Face for Nodes {
    fn routes(self: Arc<Self>) -> Vec<Route> {
        type Serve = fn(&Nodes, u16, &[u8], Body<'_>, PeerDone);
        let route = |opcode: u16, serve: Serve| {
            let nodes = self.clone();
            let run = move |request: Request<'_>| {
                let Request { opcode, meta, body, reply, .. } = request;
                serve(&nodes, opcode, meta, body, done(reply));
            };
            Route::new(opcode, Right::Node, run)
        };
        let hello: Serve = |nodes, _, _, _, done| done(said(&nodes.welcome()));
        let beat: Serve = |nodes, _, meta, _, done| done(nodes.heard(meta));
        let reached: Serve = |nodes, _, meta, _, done| {
            done(nodes.admit_question(meta).map(|()| nodes.node.answer_reached()));
        };
        let served = [(peer::OP_PEER_HELLO, hello), (peer::OP_PEER_BEAT, beat)]
            .into_iter()
            .chain([(OP_PEER_LOG_REACHED, reached), (OP_PEER_LOG_COMPARE, Nodes::log)])
            .chain((OP_PEER_LOG_APPEND..=OP_PEER_LOG_INFO).map(|o| (o, Nodes::log as Serve)))
            .chain(SNAPSHOT_OPERATIONS.map(|opcode| (opcode, Nodes::snapshot as Serve)))
            .chain(PEER_OPERATIONS.map(|opcode| (opcode, Nodes::replica as Serve)));
        let mut routes: Vec<Route> = served.map(|(opcode, serve)| route(opcode, serve)).collect();
        let nodes = self.clone();
        let catch_up = move |request: Request<'_>| nodes.catch_up(request.reply);
        routes.push(Route::new(OP_CATCH_UP, Right::Known, catch_up));
        routes
    }
}

fn done(reply: Reply) -> PeerDone {
    Box::new(move |answer: Result<PeerReply>| {
        reply.send(match answer {
            Ok(PeerReply { meta, body }) => Response::ok(meta, body),
            Err(e) => Response::error(e),
        });
    })
}

/// Waits for all that is in the topics of these shards, one after the other.
fn catch_up_with(node: Arc<Node>, mut shards: Vec<u16>, done: Box<dyn FnOnce(Result<()>) + Send>) {
    if shards.is_empty() {
        return done(Ok(()));
    }
    let shard = shards.remove(0);
    let fold = match node.shards.get(shard) {
        Ok(fold) => fold.clone(),
        Err(e) => return done(Err(e)),
    };
    let log = node.log.clone();
    let reached = move |reached: Result<()>| match reached {
        Ok(()) => catch_up_with(node, shards, done),
        Err(e) => done(Err(e)),
    };
    let answered = move |asked: Result<Info>| match asked {
        Ok(_) if planted!("node.catch-up-waits-for-nothing") => reached(Ok(())),
        Ok(info) => fold.wake_at(Index(info.durable.0.saturating_sub(1)), Box::new(reached)),
        Err(e) => reached(Err(e)),
    };
    log.ask(&namespace_topic(shard), Box::new(answered));
}

impl Nodes {
    pub fn new(node: Arc<Node>) -> Nodes {
        let log_host = Arc::new(LogHost::new(node.log.clone()));
        Nodes { node, log_host }
    }

    fn replica(&self, opcode: u16, meta: &[u8], body: Body<'_>, done: PeerDone) {
        self.node.replicator.handle(opcode, meta, body.into_vec(), done);
    }

    fn snapshot(&self, opcode: u16, meta: &[u8], _: Body<'_>, done: PeerDone) {
        if let Err(e) = self.admit(meta) {
            return done(Err(e));
        }
        let (node, meta) = (self.node.clone(), meta.to_vec());
        self.node.workers.run(move || done(node.answer_about_snapshots(opcode, &meta)));
    }

    /// Answers once this node's view has everything that is in the log now.
    fn catch_up(&self, reply: Reply) {
        let done = move |reached: Result<()>| reply.finish(reached.map(|()| Vec::new()));
        if self.node.hosted().is_some() {
            // The log is here, and so is all of it.
            return done(Ok(()));
        }
        let shards = self.node.shards.all().map(|(shard, _)| shard).collect();
        catch_up_with(self.node.clone(), shards, Box::new(done));
    }

    fn welcome(&self) -> Welcome {
        let log_host = self.node.place_of_log();
        Welcome { cluster: self.node.sender.cluster, log_host, data_format: DATA_FORMAT_VERSION }
    }

    /// Answers the nodes that wait for entries.
    pub fn release(&self) {
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

    /// As [`Nodes::admit`]; also where the view of the cluster has stopped: what changes nothing is
    /// answered then, or two nodes whose logs differ would never find that out.
    fn admit_question(&self, meta: &[u8]) -> Result<()> {
        let admitted = self.admit(meta);
        if admitted.is_ok() || self.node.cluster.status().stopped.is_none() {
            return admitted;
        }
        match Sender::decode(&mut Reader::new(meta)) {
            Ok(sender) if sender.cluster == self.node.sender.cluster => Ok(()),
            _ => admitted,
        }
    }

    fn log(&self, opcode: u16, meta: &[u8], body: Body<'_>, done: PeerDone) {
        let asks = matches!(opcode, OP_PEER_LOG_INFO | OP_PEER_LOG_COMPARE);
        let admitted = if asks { self.admit_question(meta) } else { self.admit(meta) };
        if let Err(e) = admitted {
            return done(Err(e));
        }
        if self.node.hosted().is_none() {
            return done(Err(Error::retry(format!(
                "use the log: this node does not keep it, `{}` does",
                self.node.place_of_log()
            ))));
        }
        if let Err(e) = self.node.check_log_request(opcode, meta) {
            return done(Err(e));
        }
        if opcode == OP_PEER_LOG_APPEND {
            // On this thread, which never waits for it: appends keep the order they were sent in.
            return self.log_host.serve(opcode, meta, body.as_slice(), done);
        }
        let (host, meta) = (self.log_host.clone(), meta.to_vec());
        if opcode == OP_PEER_LOG_COMPARE {
            let (node, compare) = (self.node.clone(), meta.clone());
            let told = Box::new(move |answer| {
                node.compared_log(&compare, &answer);
                done(answer);
            });
            return self.node.workers.run(move || host.serve(opcode, &meta, &[], told));
        }
        self.node.workers.run(move || host.serve(opcode, &meta, &[], done));
    }
}
