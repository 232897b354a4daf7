//! Names in a node's data directory that more than one command looks for, and files that users name. Secrets are in
//! [`crate::secrets`].

use holdfast_base::{Error, Result};
use std::path::Path;

/// What a file that the user named says.
#[expect(clippy::disallowed_methods, reason = "a file that the user named")]
pub fn read_text(file: &Path) -> Result<String> {
    String::from_utf8(std::fs::read(file)?).map_err(|_| Error::invalid("it is not UTF-8"))
}

/// The settings of the node.
pub const SETTINGS: &str = "holdfast.toml";
/// Whom a node believes, if it has certificates.
pub const AUTHORITIES: &str = "tls/ca.pem";
/// The Unix socket of the native protocol.
pub const SOCKET: &str = "holdfast.sock";
