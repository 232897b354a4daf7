//! Names in a node's data directory that more than one command looks for, and files that users name. Secrets are in
//! [`crate::secrets`].

use holdfast_base::{Error, Result};
use std::io::Read;
use std::path::Path;

/// What a text that somebody has written may take: a device has no end.
const TEXT_BYTES_MAX: u64 = 64 << 20;

/// What a file that the user named says.
#[expect(clippy::disallowed_methods, reason = "a file that the user named")]
pub fn read_text(file: &Path) -> Result<String> {
    let mut bytes = Vec::new();
    std::fs::File::open(file)?.take(TEXT_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > TEXT_BYTES_MAX {
        return Err(Error::invalid("it is longer than 64 MiB: name another file"));
    }
    String::from_utf8(bytes).map_err(|_| Error::invalid("it is not UTF-8"))
}

/// The settings of the node.
pub const SETTINGS: &str = "holdfast.toml";
/// Whom a node believes, if it has certificates.
pub const AUTHORITIES: &str = "tls/ca.pem";
/// The Unix socket of the native protocol.
pub const SOCKET: &str = "holdfast.sock";
