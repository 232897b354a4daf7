//! Names in a node's data directory that more than one command looks for. Secrets are in
//! [`crate::secrets`].

/// The settings of the node.
pub const SETTINGS: &str = "holdfast.toml";
/// Whom a node believes, if it has certificates.
pub const AUTHORITIES: &str = "tls/ca.pem";
/// The Unix socket of the native protocol.
pub const SOCKET: &str = "holdfast.sock";
