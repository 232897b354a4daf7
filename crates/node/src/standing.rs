//! What a certificate is worth here: whether it still counts, and which node it speaks for. Asks the
//! cluster view, as far as this node has applied it, and this machine's calendar.

use super::Node;
use holdfast_base::codec::{Decode, Reader};
use holdfast_base::ids::NodeId;
use holdfast_base::{Error, Result};
use holdfast_env::net::{Named, Role};
use holdfast_env::{event, planted};
use holdfast_wire::peer::{OP_PEER_HELLO, Sender};

impl Node {
    /// Refuses who showed a certificate that was revoked or has ended meanwhile: asked before each
    /// batch of requests, for connections outlive both.
    pub fn check_standing(&self, named: &Named) -> Result<()> {
        let doing = || format!("answer `{}`", named.name);
        let now_s = (self.machine.clock.unix_ms() / 1000) as i64;
        if now_s > named.until_s && !planted!("node.ended-certificate-counts") {
            return Err(Error::denied(format!(
                "{}: its certificate {} has ended: renew it with `holdfast cert renew`",
                doing(),
                named.serial
            )));
        }
        match self.cluster.read(|view, _| view.is_revoked(&named.serial)) {
            Ok(false) => Ok(()),
            Ok(true) => Err(Error::denied(format!(
                "{}: its certificate {} was revoked: ask for another one",
                doing(),
                named.serial
            ))),
            // A view that has stopped says nothing. Other nodes are still needed for what other
            // views hold; everybody else waits until it can be known.
            Err(_) if named.role == Role::Node => Ok(()),
            Err(e) => Err(e.context(doing())),
        }
    }

    /// Refuses a message of a node whose connection has proved to be another one. `meta` begins
    /// with the sender, but of the first question of all.
    pub fn check_sender(&self, named: &Named, opcode: u16, meta: &[u8]) -> Result<()> {
        if opcode == OP_PEER_HELLO {
            return Ok(());
        }
        let claimed = Sender::decode(&mut Reader::new(meta))
            .map_err(|e| Error::invalid(format!("hear a node: {e}: use matching builds")))?
            .node;
        // Of a node that has no number yet: it may read and write the log, which is how it gets one.
        if claimed == NodeId(0) {
            return Ok(());
        }
        let known = self.cluster.read(|view, _| {
            let known = view.node(claimed).is_some();
            (known, view.speaks_for(&named.name, claimed))
        });
        match known {
            Ok((true, true)) => Ok(()),
            Ok((false, _)) => Err(Error::retry(format!(
                "hear node `{claimed}`: this node has not heard of it yet: ask again"
            ))),
            Ok((true, false)) => {
                let why = format!(
                    "hear node `{claimed}`: the certificate is of `{}`, which is another node",
                    named.name
                );
                event!(StolenNumber, why, node = self.id.0);
                Err(Error::denied(why))
            }
            // What cannot be known now was known when the connection was made: a certificate of a
            // node of this cluster.
            Err(_) => Ok(()),
        }
    }
}
