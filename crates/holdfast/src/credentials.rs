//! What a node shows who it talks to over TLS, and whom it believes: its certificates, as they are
//! exchanged while it runs, and the names in those of others.

use holdfast_base::{Error, Result};
use holdfast_cert::{Certified, PeerName, Role};
use holdfast_env::net;
use holdfast_env::net::{Credentials, Named, TlsClient, server_of};
use holdfast_env::tls::{Certificates, TlsConfig};
use holdfast_node::Node;
use std::fmt;
use std::sync::{Arc, OnceLock, Weak};

/// A node's.
pub struct NodeCredentials {
    certificates: Arc<Certificates>,
    /// Who the node is, as its own certificate said when it started; nobody's of a certificate that
    /// serves clients and names no node, as public authorities sign them.
    own: Option<PeerName>,
    /// Knows what was revoked, once it is open.
    node: OnceLock<Weak<Node>>,
}

impl fmt::Debug for NodeCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeCredentials").field("own", &self.own).finish_non_exhaustive()
    }
}

impl NodeCredentials {
    /// Refuses a certificate of somebody who is no node, and one that names nobody for a node that
    /// `joins` others.
    pub fn new(certificates: Arc<Certificates>, joins: bool) -> Result<NodeCredentials> {
        let file = certificates.files().chain.clone();
        let doing = |e: Error| e.context(format_args!("use the certificate `{}`", file.display()));
        let own = match PeerName::of_certificate(&certificates.leaf_der()) {
            Ok(certified) if certified.who.role == Role::Node => Some(certified.who),
            Ok(certified) => {
                return Err(doing(Error::invalid(format!(
                    "it is of `{}`, no node: make one with `holdfast cert node`",
                    certified.who
                ))));
            }
            Err(_) if !joins => None,
            Err(e) => return Err(doing(e)),
        };
        Ok(NodeCredentials { certificates, own, node: OnceLock::new() })
    }

    /// Whether a renewed certificate is of the same node, and valid now: with another one it would
    /// be shut out at its next connection.
    pub fn check_renewed(&self, certificate: &[u8], now_s: i64) -> Result<()> {
        let Some(own) = &self.own else { return Ok(()) };
        let Certified { who, not_before_s, not_after_s, .. } =
            PeerName::of_certificate(certificate)?;
        if who != *own {
            return Err(Error::invalid(format!("it is of `{who}`, and this node is `{own}`")));
        }
        if !(not_before_s..=not_after_s).contains(&now_s) {
            return Err(Error::invalid("it is not valid now: look at its dates and at the clock"));
        }
        Ok(())
    }

    /// From now on the node's view says whose certificates were revoked.
    pub fn ask_node(&self, node: &Arc<Node>) {
        let _ = self.node.set(Arc::downgrade(node));
    }

    /// The node's name in its certificate.
    pub fn name(&self) -> Option<String> {
        self.own.as_ref().map(|own| own.name.clone())
    }
}

impl Credentials for NodeCredentials {
    fn server(&self) -> TlsConfig {
        server_of(&self.certificates)
    }

    fn client(&self) -> TlsClient {
        TlsClient::of(&self.certificates)
    }

    fn identify(&self, certificate: &[u8]) -> Result<Named> {
        let Certified { who, serial, not_after_s, .. } = PeerName::of_certificate(certificate)?;
        let Some(own) = &self.own else {
            return Err(Error::denied(format!(
                "know `{who}`: this node's own certificate names no cluster: prove the secret instead"
            )));
        };
        if who.cluster != own.cluster {
            return Err(Error::denied(format!(
                "know `{who}`: this node belongs to the cluster `{}`: check the address",
                own.cluster
            )));
        }
        let role = match who.role {
            Role::Node => net::Role::Node,
            Role::Client => net::Role::Client,
        };
        Ok(Named { role, name: who.name, serial, until_s: not_after_s })
    }

    fn generation(&self) -> u64 {
        self.certificates.generation()
    }

    fn check_standing(&self, named: &Named) -> Result<()> {
        let node = self.node.get().and_then(Weak::upgrade);
        node.map_or(Ok(()), |node| node.check_standing(named))
    }
}
