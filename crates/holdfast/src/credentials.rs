//! What a node shows who it talks to over TLS, and whom it believes: its certificates, as they are
//! exchanged while it runs, and the names in those of others.

use holdfast_base::{Error, Result};
use holdfast_cert::{Certified, PeerName, Role};
use holdfast_env::net;
use holdfast_env::net::{Credentials, Named, TlsClient, server_of};
use holdfast_env::tls::{Certificates, TlsConfig};
use std::sync::Arc;

/// A node's.
#[derive(Debug)]
pub struct NodeCredentials {
    certificates: Arc<Certificates>,
    /// Who the node is, as its own certificate said when it started.
    own: PeerName,
}

impl NodeCredentials {
    /// Refuses a certificate that is not of a node.
    pub fn new(certificates: Arc<Certificates>) -> Result<NodeCredentials> {
        let file = certificates.files().chain.clone();
        let doing = |e: Error| e.context(format_args!("use the certificate `{}`", file.display()));
        let own = PeerName::of_certificate(&certificates.leaf_der()).map_err(doing)?.who;
        if own.role != Role::Node {
            return Err(doing(Error::invalid(format!(
                "it is of `{own}`, no node: make one with `holdfast cert node`"
            ))));
        }
        Ok(NodeCredentials { certificates, own })
    }

    /// The node's name in its certificate.
    pub fn name(&self) -> &str {
        &self.own.name
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
        if who.cluster != self.own.cluster {
            return Err(Error::denied(format!(
                "know `{who}`: this node belongs to the cluster `{}`: check the address",
                self.own.cluster
            )));
        }
        let role = match who.role {
            Role::Node => net::Role::Node,
            Role::Client => net::Role::Client,
        };
        Ok(Named { role, name: who.name, serial, until_s: not_after_s })
    }
}
