//! What other nodes ask of this one's log. Who asks is checked before anything is done; a node
//! that belongs to no cluster is asked by nobody.

use crate::FileService;
use holdfast_base::codec::{Decode, Reader};
use holdfast_base::{Error, Result};
use holdfast_client::wire::peer::Sender;
use holdfast_client::wire::peer_log::OP_PEER_LOG_APPEND;
use holdfast_env::net::{Body, PeerReply, Reply, Response};

/// Whether a node may ask: of the same cluster, and not of an older start than is known. A node
/// that is starting does not know its incarnation yet, and says 0.
pub type Admit = dyn Fn(&Sender) -> Result<()> + Send + Sync;

impl FileService {
    /// Serves the nodes that `admit` lets in, too.
    pub fn with_peers(self, admit: Box<Admit>) -> FileService {
        FileService { admit: Some(admit), ..self }
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
        match &self.admit {
            Some(admit) => admit(&sender),
            None => Err(Error::invalid(format!(
                "answer node `{}` of cluster {:016x}: this node belongs to no cluster: check the \
                 address",
                sender.node, sender.cluster
            ))),
        }
    }

    pub(crate) fn peer_log(&self, opcode: u16, meta: &[u8], body: Body<'_>, reply: Reply) {
        if let Err(e) = self.admit(meta) {
            return reply.send(Response::error(e));
        }
        let done = Box::new(move |answer: Result<PeerReply>| {
            reply.send(match answer {
                Ok(PeerReply { meta, body }) => Response::ok(meta, body),
                Err(e) => Response::error(e),
            });
        });
        if opcode == OP_PEER_LOG_APPEND {
            // On this thread, which never waits for it: appends keep the order they were sent in.
            return self.log_host.serve(opcode, meta, body.as_slice(), done);
        }
        let (host, meta) = (self.log_host.clone(), meta.to_vec());
        self.node.workers.run(move || host.serve(opcode, &meta, &[], done));
    }
}
