//! What a certificate is worth here: whether it still counts, and which node it speaks for. Asks the
//! cluster view, as far as this node has applied it, and this machine's calendar.

use super::Node;
use holdfast_base::codec::{Decode, Reader};
use holdfast_base::ids::{Index, NodeId};
use holdfast_base::rules::Rules;
use holdfast_base::{Error, Reason, Result};
use holdfast_cluster::Token;
use holdfast_env::net::{Named, Role, token_serial};
use holdfast_env::{event, planted};
use holdfast_wire::peer::{OP_PEER_HELLO, Sender};
use holdfast_wire::peer_log::{OP_PEER_LOG_APPEND, OP_PEER_SNAPSHOT};
use std::ops::RangeInclusive;

/// What a node asks before it has a number: where the log is, the log itself, and the snapshots that
/// stand for what of it was trimmed.
const JOINING: RangeInclusive<u16> = OP_PEER_LOG_APPEND..=OP_PEER_SNAPSHOT;

impl Node {
    /// Refuses who showed a certificate, or proved a token, that was revoked or has ended meanwhile:
    /// asked before each batch of requests, for connections outlive both.
    pub fn check_standing(&self, named: &Named) -> Result<()> {
        let doing = || format!("answer `{}`", named.name);
        let now_s = (self.machine.clock.unix_ms() / 1000) as i64;
        if named.role == Role::Token {
            return match self.token_of(named) {
                Some(token) if now_s > token.until_s && !planted!("node.ended-token-counts") => {
                    Err(Error::denied(format!(
                        "{}: its token has ended: ask for another one (`holdfast token create`)",
                        doing()
                    )))
                }
                Some(_) => Ok(()),
                None => Err(Error::denied(format!(
                    "{}: its token was revoked, or this node has not heard of it yet: ask again, or for another one (`holdfast token create`)",
                    doing()
                ))
                .because(Reason::Unproved)),
            };
        }
        if now_s > named.until_s && !planted!("node.ended-certificate-counts") {
            return Err(Error::denied(format!(
                "{}: its certificate {} has ended: renew it with `holdfast cert renew`",
                doing(),
                named.serial
            )));
        }
        // Also of a view that has stopped: whoever can stop it would otherwise be back.
        if self.cluster.read_last(|view| view.is_revoked(&named.serial)) {
            return Err(Error::denied(format!(
                "{}: its certificate {} was revoked: ask for another one",
                doing(),
                named.serial
            )));
        }
        Ok(())
    }

    /// What a client with a name may do; nothing where nobody has said anything.
    pub fn rules_of(&self, named: &Named) -> Rules {
        let now_s = (self.machine.clock.unix_ms() / 1000) as i64;
        let counts = |token: &Token| now_s <= token.until_s;
        self.token_of(named).filter(counts).map(|token| token.rules).unwrap_or_default()
    }

    /// The token of the client's name. Who proved a token has what that one allows, and not what
    /// another one of the same name does.
    fn token_of(&self, named: &Named) -> Option<Token> {
        let token = self.cluster.read_last(|view| view.token(&named.name).cloned())?;
        let same = named.role != Role::Token || named.serial == token_serial(token.id);
        (same || planted!("node.any-token-of-the-name")).then_some(token)
    }

    /// Refuses a message of a node whose connection has proved to be another one. `meta` begins
    /// with the sender, but of the first question of all.
    pub fn check_sender(&self, named: &Named, opcode: u16, meta: &[u8]) -> Result<()> {
        if opcode == OP_PEER_HELLO {
            return Ok(());
        }
        let Sender { node: claimed, incarnation, .. } = Sender::decode(&mut Reader::new(meta))
            .map_err(|e| Error::invalid(format!("hear a node: {e}: use matching builds")))?;
        // A node that has no number yet reads and writes the log, which is how it gets one.
        let joins = JOINING.contains(&opcode) && incarnation == Index(0);
        if claimed == NodeId(0) && (joins || planted!("node.nobodys-number-admitted")) {
            return Ok(());
        }
        let (known, speaks) = self.cluster.read_last(|view| {
            (view.node(claimed).is_some(), view.speaks_for(&named.name, claimed))
        });
        if claimed != NodeId(0) && !known {
            return Err(Error::retry(format!(
                "hear node `{claimed}`: this node has not heard of it yet: ask again"
            )));
        }
        if known && speaks {
            return Ok(());
        }
        let why = format!(
            "hear node `{claimed}`: the certificate is of `{}`, which is another node",
            named.name
        );
        event!(StolenNumber, why, node = self.id.0);
        Err(Error::denied(why))
    }
}
