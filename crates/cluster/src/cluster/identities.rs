//! Who the certificates of a cluster are: which node's number belongs to which name, and which
//! certificates are worth nothing any more. Part of the cluster view; reads no clock.
//!
//! **Invariant:** a number that was bound to a name is never again anybody else's, and a name has
//! one number at a time: whoever holds the name's certificate speaks for that number alone.

use holdfast_base::codec::{DecodeError, Reader};
use holdfast_base::ids::NodeId;
use holdfast_base::{Error, Result, codec_struct};
use holdfast_env::planted;
use std::collections::BTreeMap;

use super::snapshot::{decode_map, encode_map};

/// Of a node's or client's name in its certificate.
pub const NAME_BYTES_MAX: usize = 63;
/// Of a certificate's number, in hexadecimal digits: 20 bytes, as RFC 5280 allows.
const SERIAL_DIGITS_MAX: usize = 40;
/// Certificates that are revoked and have not ended by themselves.
pub const REVOKED_MAX: usize = 4096;

/// The name that a number belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Binding {
    name: String,
    /// The name may be bound to another number; this one stays nobody's.
    released: bool,
}
codec_struct!(Binding { name, released });

/// What is known of the certificates of the cluster's nodes and clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Identities {
    bound: BTreeMap<NodeId, Binding>,
    /// When each ends by itself, in seconds since 1970: then it can be forgotten.
    revoked: BTreeMap<String, i64>,
}

/// Names of nodes and clients: what fits into a URI, a file's name and a line.
pub fn check_name(doing: &str, name: &str) -> Result<()> {
    let fits = (1..=NAME_BYTES_MAX).contains(&name.len());
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    if fits && name.bytes().all(plain) && !matches!(name, "." | "..") {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{doing}: `{}` is no name: use 1 to {NAME_BYTES_MAX} letters, digits, `.`, `-` and `_`",
        name.escape_debug()
    )))
}

impl Identities {
    pub fn number_of(&self, name: &str) -> Option<NodeId> {
        let mut found = self.bound.iter();
        found.find(|(_, of)| of.name == name && !of.released).map(|(node, _)| *node)
    }

    pub fn name_of(&self, node: NodeId) -> Option<&str> {
        self.bound.get(&node).filter(|of| !of.released).map(|of| of.name.as_str())
    }

    /// Whether who holds the certificate of `name` may speak as node `node`.
    pub fn speaks_for(&self, name: &str, node: NodeId) -> bool {
        match self.bound.get(&node) {
            Some(of) => (of.name == name && !of.released) || planted!("cluster.any-name-speaks"),
            // Of a cluster that had no certificates before: until the node has bound its name.
            None => self.number_of(name).is_none(),
        }
    }

    /// The same once more changes nothing. A number that nobody has started under gives its name up:
    /// its process ended before it had written the number down.
    pub fn bind(
        &mut self,
        node: NodeId,
        name: &str,
        has_started: impl Fn(NodeId) -> bool,
    ) -> Result<()> {
        let doing = "bind a node's certificate";
        check_name(doing, name)?;
        if let Some(of) = self.bound.get(&node) {
            if of.name == name && !of.released {
                return Ok(());
            }
            if of.released {
                return Err(Error::denied(format!(
                    "{doing}: node `{node}` was replaced (`holdfast node replace {}`), and its number is nobody's any more: start with an empty data directory to join as another node",
                    of.name
                )));
            }
            return Err(Error::denied(format!(
                "{doing}: node `{node}` is the one named `{}`, and not `{name}`: start it with its own certificate, or erase its data directory and let it join anew",
                of.name
            )));
        }
        let other = self.number_of(name);
        if let Some(other) = other.filter(|other| !has_started(*other)) {
            self.bound.entry(other).and_modify(|of| of.released = true);
        } else if let Some(other) = other {
            return Err(Error::denied(format!(
                "{doing}: `{name}` is node `{other}`: if that one is gone for good, say so with `holdfast node replace {name}`"
            )));
        }
        self.bound.insert(node, Binding { name: name.to_owned(), released: false });
        Ok(())
    }

    /// The node that has the name now is gone for good; the next one with its certificate is
    /// another.
    pub fn release(&mut self, name: &str) -> Result<()> {
        let node = self.number_of(name).ok_or_else(|| {
            Error::not_found(format!(
                "replace node `{}`: no node has that name: see `holdfast node ls`",
                name.escape_debug()
            ))
        })?;
        if let Some(of) = self.bound.get_mut(&node) {
            of.released = true;
        }
        Ok(())
    }

    pub fn is_revoked(&self, serial: &str) -> bool {
        self.revoked.contains_key(serial) && !planted!("cluster.revoked-still-served")
    }

    pub fn revoked(&self) -> impl Iterator<Item = (&str, i64)> {
        self.revoked.iter().map(|(serial, until_s)| (serial.as_str(), *until_s))
    }

    /// `now_s` is the proposer's: what has ended by then makes room where there is none. Not sooner:
    /// a calendar that is years ahead would make all revoked certificates good again.
    pub fn revoke(&mut self, serial: &str, until_s: i64, now_s: i64) -> Result<()> {
        let doing = "revoke a certificate";
        check_serial(serial)?;
        if !self.revoked.contains_key(serial) && self.revoked.len() >= REVOKED_MAX {
            if self.revoked.values().all(|until_s| *until_s >= now_s) {
                return Err(Error::full(format!(
                    "{doing}: {REVOKED_MAX} are revoked and have not ended: give the cluster another authority, so that these and all others are worth nothing"
                )));
            }
            self.revoked.retain(|_, until_s| *until_s >= now_s);
        }
        let kept = self.revoked.entry(serial.to_owned()).or_insert(until_s);
        *kept = (*kept).max(until_s);
        Ok(())
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        encode_map(&self.bound, out);
        encode_map(&self.revoked, out);
    }

    pub fn decode(reader: &mut Reader<'_>) -> Result<Identities, DecodeError> {
        Ok(Identities { bound: decode_map(reader)?, revoked: decode_map(reader)? })
    }

    /// What a snapshot says of itself; `is_node` knows the cluster's numbers.
    pub fn check(&self, is_node: impl Fn(NodeId) -> bool) -> Result<()> {
        let mut names: Vec<&str> = Vec::new();
        for (node, of) in &self.bound {
            check_name("read a node's name", &of.name)?;
            if !is_node(*node) {
                return Err(Error::corrupt(format!("unknown node `{node}` has a name")));
            }
            if !of.released {
                names.push(&of.name);
            }
        }
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        if names.len() != count {
            return Err(Error::corrupt("two nodes have one name"));
        }
        if self.revoked.len() > REVOKED_MAX {
            return Err(Error::corrupt("more certificates are revoked than may be"));
        }
        self.revoked.keys().try_for_each(|serial| check_serial(serial))
    }
}

fn check_serial(serial: &str) -> Result<()> {
    let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if (1..=SERIAL_DIGITS_MAX).contains(&serial.len()) && serial.bytes().all(digit) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "revoke a certificate: `{}` is no serial number: give up to {SERIAL_DIGITS_MAX} hexadecimal digits, as `holdfast cert check` prints them",
        serial.escape_debug()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_base::Kind;
    use holdfast_env::{Rng, SeededRng};

    const NAMES: [&str; 4] = ["a", "b", "node-3.example", "_"];

    /// Few names and numbers, so that they meet; the model keeps the whole story.
    #[test]
    fn a_number_is_never_two_names_and_a_name_never_two_numbers() {
        for seed in 0..200 {
            let rng = SeededRng::new(seed);
            let draw = |count: u64| (rng.next_u64() % count) as usize;
            let mut real = Identities::default();
            // Everything that was ever bound, and whether it still is.
            let mut story: Vec<(NodeId, &str, bool)> = Vec::new();
            for _ in 0..40 {
                let (node, name) = (NodeId(draw(5) as u32 + 1), NAMES[draw(4)]);
                let before = real.clone();
                let result = if draw(3) > 0 {
                    let taken = story.iter().any(|(n, of, now)| match *now {
                        true => (*n == node) != (*of == name),
                        false => *n == node,
                    });
                    let result = real.bind(node, name, |_| true);
                    assert_eq!(result.is_err(), taken, "seed {seed}: {node} {name} {story:?}");
                    if result.is_ok() && !story.contains(&(node, name, true)) {
                        story.push((node, name, true));
                    }
                    result
                } else {
                    let of = story.iter_mut().find(|(_, of, now)| *now && *of == name);
                    let result = real.release(name);
                    assert_eq!(result.is_ok(), of.is_some());
                    of.into_iter().for_each(|of| of.2 = false);
                    result
                };
                assert!(result.is_ok() || before == real, "refused, and changed");
                for node in (1..=6).map(NodeId) {
                    for name in NAMES {
                        let now = story.contains(&(node, name, true));
                        let free = !story.iter().any(|(n, _, _)| *n == node)
                            && !story.iter().any(|(_, of, now)| *now && *of == name);
                        assert_eq!(real.speaks_for(name, node), now || free, "{node} {name}");
                        assert_eq!(real.number_of(name) == Some(node), now);
                        assert_eq!(real.name_of(node) == Some(name), now);
                    }
                }
                let mut bytes = Vec::new();
                real.encode(&mut bytes);
                let again = Identities::decode(&mut Reader::new(&bytes)).unwrap();
                assert!(again == real && again.check(|_| true).is_ok());
            }
        }
    }

    /// A node that was killed while it joined was shut out: its name was bound to a number that it
    /// had not written down.
    #[test]
    fn a_number_that_nobody_started_under_gives_its_name_up() {
        let mut real = Identities::default();
        real.bind(NodeId(1), "a", |_| false).unwrap();
        real.bind(NodeId(2), "a", |_| false).unwrap();
        assert_eq!((real.number_of("a"), real.name_of(NodeId(1))), (Some(NodeId(2)), None));
        assert!(real.bind(NodeId(1), "b", |_| false).is_err(), "it is nobody's now");
        assert!(real.bind(NodeId(3), "a", |node| node == NodeId(2)).is_err());
        assert!(real.check(|_| true).is_ok());
    }

    #[test]
    fn what_is_revoked_stays_so_while_there_is_room() {
        let mut real = Identities::default();
        real.revoke("0a", 100, 50).unwrap();
        real.revoke("0b", 200, 50).unwrap();
        assert!(real.is_revoked("0a") && real.is_revoked("0b") && !real.is_revoked("0c"));
        // The last second still counts; a shorter time is no way to take it back.
        real.revoke("0a", 60, 100).unwrap();
        assert!(real.is_revoked("0a"));
        // By a calendar that is far ahead, too.
        real.revoke("0c", 300, i64::MAX).unwrap();
        assert!(real.is_revoked("0a") && real.is_revoked("0b") && real.is_revoked("0c"));
        for bad in ["", "0A", "xyz", "0b ", &"1".repeat(41)] {
            assert_eq!(real.revoke(bad, 300, 0).unwrap_err().kind, Kind::Invalid, "{bad}");
        }
        assert!(real.revoke(&"1".repeat(40), 300, 150).is_ok());
    }

    #[test]
    fn as_many_are_revoked_as_may_be_and_not_one_more() {
        let mut real = Identities::default();
        for i in 0..REVOKED_MAX {
            real.revoke(&format!("{i:04x}"), 100, 0).unwrap();
        }
        assert_eq!(real.revoke("ffff", 100, 0).unwrap_err().kind, Kind::Full);
        // One that is there may be said again, and those that have ended make room.
        real.revoke("0001", 100, 0).unwrap();
        real.revoke("ffff", 200, 101).unwrap();
        assert_eq!(real.revoked().count(), 1);
        assert!(real.check(|_| true).is_ok());
    }

    #[test]
    fn names_are_what_fits_everywhere() {
        for name in ["a", "node-1", "A.b_c-9", &"n".repeat(63)] {
            assert!(check_name("x", name).is_ok(), "{name}");
        }
        for name in ["", ".", "..", "a/b", "a b", "ä", "a\n", "a%", &"n".repeat(64)] {
            assert!(check_name("x", name).unwrap_err().message.contains("no name"), "{name}");
        }
    }
}
