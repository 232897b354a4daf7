//! Who keeps the log, and so whom a node asks about it: it itself, another node, or brokers.

use super::Node;
use holdfast_base::{Error, Result};
use holdfast_log::{Direct, EmbeddedLog, Log, RemoteLog, SharedLog};
use std::sync::Arc;

/// Who keeps the log.
pub enum LogKeeper {
    /// This node.
    Here(Arc<EmbeddedLog>),
    /// The node at `host` (`host:port`).
    Node { log: Arc<RemoteLog>, host: String },
    /// Nobody of the cluster's: every node has it from brokers.
    Shared(Arc<dyn SharedLog>),
}

impl Node {
    /// The log, if this node keeps it.
    pub fn hosted(&self) -> Option<&Arc<EmbeddedLog>> {
        match &self.kept {
            LogKeeper::Here(log) => Some(log),
            _ => None,
        }
    }

    /// The log, if brokers keep it.
    pub fn shared(&self) -> Option<&Arc<dyn SharedLog>> {
        match &self.kept {
            LogKeeper::Shared(log) => Some(log),
            _ => None,
        }
    }

    /// Whether what clients ask of the log is answered here, and not by another node.
    pub fn answers_for_log(&self) -> bool {
        !matches!(self.kept, LogKeeper::Node { .. })
    }

    /// Whether it is this node that trims the log, lends snapshots first, and decides what one node decides
    /// for all: who keeps the log does, and where brokers do, who leads.
    pub fn looks_after_log(&self) -> bool {
        match self.kept {
            LogKeeper::Here(_) => true,
            LogKeeper::Node { .. } => false,
            LogKeeper::Shared(_) => self.leads(),
        }
    }

    /// Where the node is that [looks after the log](Node::looks_after_log): `host:port`. `Retry` while nobody
    /// leads who would.
    pub fn log_host(&self) -> Result<String> {
        match &self.kept {
            LogKeeper::Here(_) => Ok(self.address.clone()),
            LogKeeper::Node { host, .. } => Ok(host.clone()),
            LogKeeper::Shared(_) => {
                let leader =
                    self.cluster.read(|view, _| Some(view.node(view.leader()?)?.address.clone()));
                leader?.ok_or_else(|| {
                    Error::retry(
                        "ask who looks after the log: nobody leads the cluster now: ask again",
                    )
                })
            }
        }
    }

    /// Where the log is kept, for people and for nodes that join: the address of a node, or where brokers
    /// are (`kafka://...`).
    pub fn place_of_log(&self) -> String {
        match &self.kept {
            LogKeeper::Here(_) => self.address.clone(),
            LogKeeper::Node { host, .. } => host.clone(),
            LogKeeper::Shared(log) => log.place(),
        }
    }

    /// Whom to borrow a snapshot of: who looks after the log, unless that is this node.
    pub(super) fn lender(&self) -> Option<String> {
        self.log_host().ok().filter(|host| *host != self.address)
    }

    /// The log for clients, who read anywhere.
    pub fn log_for_clients(&self) -> Arc<dyn Log> {
        match &self.kept {
            LogKeeper::Shared(log) => Arc::new(Direct::new(log.another_reader())),
            _ => self.log.clone(),
        }
    }

    /// The log for one more reader: one that is far behind takes nothing from the others.
    pub fn another_reader(&self) -> Arc<dyn Log> {
        match &self.kept {
            LogKeeper::Here(_) => self.log.clone(),
            LogKeeper::Node { log, .. } => Arc::new(log.another_reader()),
            LogKeeper::Shared(log) => log.another_reader(),
        }
    }
}
