//! Where one is in a row log. In MariaDB's: by its global transaction ids, which every copy of the log shares,
//! and by file and offset, which one server's own snapshots are told in. In PostgreSQL's: by a place in the log
//! of one database, which begins anew when another server takes over. Pure.

use holdfast_base::{Error, Result};
use std::collections::BTreeMap;
use std::fmt;

/// One transaction: its domain, the server that it was made on, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gtid {
    pub domain: u32,
    pub server: u32,
    pub sequence: u64,
}

/// Where the log of some kind of database is read on, as a topic keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Position {
    MariaDb(Gtids),
}

impl Position {
    /// As it prints.
    pub fn parse(text: &str) -> Result<Position> {
        Gtids::parse(text).map(Position::MariaDb)
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Position::MariaDb(gtids) => gtids.fmt(f),
        }
    }
}

/// The last transaction of each domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gtids {
    domains: BTreeMap<u32, (u32, u64)>,
}

impl Gtids {
    /// `0-1-100,1-2-7`, as MariaDB writes it; empty for the beginning.
    pub fn parse(text: &str) -> Result<Gtids> {
        let mut domains = BTreeMap::new();
        for one in text.split(',').map(str::trim).filter(|one| !one.is_empty()) {
            let mut numbers = one.split('-').map(str::parse::<u64>);
            let (Some(Ok(domain)), Some(Ok(server)), Some(Ok(sequence)), None) =
                (numbers.next(), numbers.next(), numbers.next(), numbers.next())
            else {
                return Err(Error::invalid(format!(
                    "read position `{text}`: `{one}` is no DOMAIN-SERVER-SEQUENCE"
                )));
            };
            let narrow = |number: u64| {
                u32::try_from(number).map_err(|_| {
                    Error::invalid(format!("read position `{text}`: {number} is too large"))
                })
            };
            domains.insert(narrow(domain)?, (narrow(server)?, sequence));
        }
        Ok(Gtids { domains })
    }

    pub fn is_empty(&self) -> bool {
        self.domains.is_empty()
    }

    /// Goes on behind a transaction.
    pub fn pass(&mut self, gtid: Gtid) {
        self.domains.insert(gtid.domain, (gtid.server, gtid.sequence));
    }

    /// Whether a transaction lies at or before it.
    pub fn covers(&self, gtid: Gtid) -> bool {
        self.domains.get(&gtid.domain).is_some_and(|(_, sequence)| *sequence >= gtid.sequence)
    }

    /// Whether all of `other` lies at or before it.
    pub fn covers_all(&self, other: &Gtids) -> bool {
        other.domains.iter().all(|(domain, (server, sequence))| {
            self.covers(Gtid { domain: *domain, server: *server, sequence: *sequence })
        })
    }
}

impl fmt::Display for Gtids {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (domain, (server, sequence))) in self.domains.iter().enumerate() {
            let comma = if number == 0 { "" } else { "," };
            write!(f, "{comma}{domain}-{server}-{sequence}")?;
        }
        Ok(())
    }
}

/// A place in one server's own files, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    pub file: String,
    pub offset: u64,
}

impl Place {
    /// Names are numbered (`bin.000009`), and the number grows out of its six digits.
    pub fn covers(&self, other: &Place) -> bool {
        let order = |place: &Place| {
            let number = place.file.rsplit_once('.').and_then(|(_, digits)| digits.parse().ok());
            (number.unwrap_or(0u64), place.offset)
        };
        order(self) >= order(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_read_printed_and_compared_by_domain() {
        let mut position = Gtids::parse("1-2-7, 0-1-100").unwrap();
        assert_eq!(position.to_string(), "0-1-100,1-2-7");
        let at = |domain, server, sequence| Gtid { domain, server, sequence };
        assert!(position.covers(at(0, 9, 100)) && !position.covers(at(0, 1, 101)));
        assert!(!position.covers(at(2, 1, 1)), "a domain that is not there yet");
        let before = position.clone();
        position.pass(at(2, 1, 1));
        position.pass(at(0, 3, 101));
        assert!(position.covers_all(&before) && !before.covers_all(&position));
        assert_eq!(position.to_string(), "0-3-101,1-2-7,2-1-1");
        assert_eq!(Gtids::parse("").unwrap(), Gtids::default());
        for wrong in ["0-1", "0-1-2-3", "a-1-2", "0-1-x", "9999999999-1-1"] {
            assert!(Gtids::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn places_are_in_the_order_of_their_files() {
        let at = |file: &str, offset| Place { file: file.to_owned(), offset };
        assert!(at("bin.000002", 4).covers(&at("bin.000001", 900)));
        assert!(!at("bin.000001", 899).covers(&at("bin.000001", 900)));
        assert!(at("bin.1000000", 4).covers(&at("bin.999999", 9)), "not as text");
    }
}
