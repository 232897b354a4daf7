//! Names of peers: `spiffe://CLUSTER/node/NAME` and `spiffe://CLUSTER/client/NAME`, after SPIFFE's
//! identities (X509-SVID). A name is read in one way or not at all: what could be spelled twice
//! (escapes, upper case, dots that walk) is refused, so that equal names are equal bytes.

use crate::read;
use holdfast_base::{Error, Result};
use std::fmt;

/// The longest name of a node or client: that of a label of DNS.
pub const NAME_BYTES_MAX: usize = 63;
/// The longest identity as a whole.
pub const URI_BYTES_MAX: usize = 255;
/// The longest name of a cluster that an authority is made for.
pub const CLUSTER_BYTES_MAX: usize = 175;

const SCHEME: &str = "spiffe://";
// Every name that is allowed fits behind every cluster that is made.
const _: () =
    assert!(SCHEME.len() + CLUSTER_BYTES_MAX + "/client/".len() + NAME_BYTES_MAX <= URI_BYTES_MAX);

/// What a peer is to the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// Serves, and speaks to other nodes.
    Node,
    /// Asks, with the rights that its name was given.
    Client,
}

impl Role {
    /// As identities spell it.
    pub fn word(self) -> &'static str {
        match self {
            Role::Node => "node",
            Role::Client => "client",
        }
    }
}

/// Who a peer is. Its text is the identity: `spiffe://CLUSTER/node/NAME`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerName {
    /// The trust domain: lower-case letters, digits, `.`, `-`, `_`.
    pub cluster: String,
    /// Node or client.
    pub role: Role,
    /// 1 to [`NAME_BYTES_MAX`] letters, digits, `.`, `-`, `_`; neither `.` nor `..`.
    pub name: String,
}

/// What a certificate says of its holder. Nothing of it is proved by this: whoever took the
/// certificate has verified its signature, its dates and what it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certified {
    /// Who the holder is.
    pub who: PeerName,
    /// The serial number as lower-case hexadecimal digits, without a leading byte of zeros.
    pub serial: String,
    /// The first second in which it is valid, since 1970.
    pub not_before_s: i64,
    /// The last second in which it is valid, since 1970.
    pub not_after_s: i64,
}

fn is_cluster(text: &str) -> bool {
    let allowed = |b: u8| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-' | b'_');
    !text.is_empty() && text.bytes().all(allowed)
}

fn is_name(text: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    let walks = matches!(text, "." | "..");
    (1..=NAME_BYTES_MAX).contains(&text.len()) && text.bytes().all(allowed) && !walks
}

/// Refuses what can be no cluster's name. `Invalid`.
pub(crate) fn check_cluster(text: &str) -> Result<()> {
    if is_cluster(text) && text.len() <= CLUSTER_BYTES_MAX {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "`{text}` is no name for a cluster: use 1 to {CLUSTER_BYTES_MAX} lower-case letters, digits, `.`, `-` and `_`"
    )))
}

/// The cluster of an authority, whose identity is the bare trust domain.
pub(crate) fn cluster_of(uri: &str) -> Option<&str> {
    let cluster = uri.strip_prefix(SCHEME)?;
    (is_cluster(cluster) && uri.len() <= URI_BYTES_MAX).then_some(cluster)
}

/// The identity of a cluster's authority.
pub(crate) fn cluster_uri(cluster: &str) -> String {
    format!("{SCHEME}{cluster}")
}

impl PeerName {
    /// A name as somebody has chosen it. `Invalid` with the rule where it breaks one.
    pub fn new(cluster: &str, role: Role, name: &str) -> Result<PeerName> {
        if !is_name(name) {
            return Err(Error::invalid(format!(
                "`{name}` is no name for a {}: use 1 to {NAME_BYTES_MAX} letters, digits, `.`, `-` and `_`",
                role.word()
            )));
        }
        let who = PeerName { cluster: cluster.to_owned(), role, name: name.to_owned() };
        match is_cluster(cluster) && who.to_string().len() <= URI_BYTES_MAX {
            true => Ok(who),
            false => Err(Error::invalid(format!("`{cluster}` is no name of a cluster"))),
        }
    }

    /// Reads an identity; `Denied` unless it is spelled as [`PeerName`] spells it.
    pub fn parse(uri: &str) -> Result<PeerName> {
        let parts = || {
            let (cluster, path) = uri.strip_prefix(SCHEME)?.split_once('/')?;
            let (role, name) = path.split_once('/')?;
            let role = [Role::Node, Role::Client].into_iter().find(|r| r.word() == role)?;
            let fits = uri.len() <= URI_BYTES_MAX && is_cluster(cluster) && is_name(name);
            fits.then(|| PeerName { cluster: cluster.to_owned(), role, name: name.to_owned() })
        };
        parts().ok_or_else(|| {
            // A peer's bytes, of which it may have sent many.
            let shown: String = uri.chars().take(NAME_BYTES_MAX).collect();
            let more = if shown.len() < uri.len() { "..." } else { "" };
            Error::denied(format!(
                "`{}{more}` is no identity: it must be `{SCHEME}CLUSTER/node/NAME` or `{SCHEME}CLUSTER/client/NAME`",
                holdfast_base::text::shown(&shown)
            ))
        })
    }

    /// Reads from a certificate (DER) who its holder is. `Denied` unless it has one URI as an
    /// alternative name, and that is an identity; so are bytes that are no certificate, whatever
    /// they are.
    pub fn of_certificate(der: &[u8]) -> Result<Certified> {
        let doing = |e: Error| e.context("read who a certificate is for");
        let certificate = read::parse(der).map_err(doing)?;
        read::certified(&certificate).map_err(doing)
    }
}

impl fmt::Display for PeerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}/{}", self.cluster, self.role.word(), self.name)
    }
}

#[cfg(test)]
mod tests;
