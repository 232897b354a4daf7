//! Where one is in a row log. In MariaDB's: by its global transaction ids, which every copy of the log shares,
//! and by file and offset, which one server's own snapshots are told in. In PostgreSQL's: by a place in the log
//! of one database, which begins anew when another server takes over. In a table: [`TableAt`]. Pure.

use crate::table::TableAt;
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
    Postgres(PostgresAt),
    /// In what has shown, which has no log.
    Table(TableAt),
}

impl Position {
    /// As it prints.
    pub fn parse(text: &str) -> Result<Position> {
        if let Some(rest) = text.strip_prefix("table-") {
            return TableAt::parse(rest).map(Position::Table);
        }
        match text.strip_prefix("pg-") {
            Some(rest) => PostgresAt::parse(rest).map(Position::Postgres),
            None => Gtids::parse(text).map(Position::MariaDb),
        }
    }

    /// Whether all of a log that lies before `other` lies before it.
    pub fn covers(&self, other: &Position) -> bool {
        match (self, other) {
            (Position::MariaDb(at), Position::MariaDb(other)) => at.covers_all(other),
            (Position::Postgres(at), Position::Postgres(other)) => {
                at.origin == other.origin && at.lsn >= other.lsn
            }
            (Position::Table(at), Position::Table(other)) => at.covers(other),
            _ => false,
        }
    }

    /// What is followed from there.
    pub fn kind(&self) -> &'static str {
        match self {
            Position::MariaDb(_) => "MariaDB",
            Position::Postgres(_) => "PostgreSQL",
            Position::Table(_) => "a table",
        }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Position::MariaDb(gtids) => gtids.fmt(f),
            Position::Postgres(at) => write!(f, "pg-{at}"),
            Position::Table(at) => write!(f, "table-{at}"),
        }
    }
}

/// Digits alone: what reads numbers elsewhere takes a sign as well.
fn number<T: TryFrom<u64>>(text: &str, radix: u32) -> Option<T> {
    let is_one = !text.is_empty() && text.chars().all(|c| c.is_digit(radix));
    u64::from_str_radix(text, radix).ok().filter(|_| is_one)?.try_into().ok()
}

/// A place in PostgreSQL's log, in bytes since its beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lsn(pub u64);

impl Lsn {
    /// `16/B374D848`, as PostgreSQL writes it.
    pub fn parse(text: &str) -> Result<Lsn> {
        let half = |text: &str| number::<u32>(text, 16);
        let halves = text.split_once('/').and_then(|(high, low)| Some((half(high)?, half(low)?)));
        let (high, low) = halves.ok_or_else(|| {
            Error::invalid(format!("read place `{text}` of a log: write it as 16/B374D848"))
        })?;
        Ok(Lsn(u64::from(high) << 32 | u64::from(low)))
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 as u32)
    }
}

/// Whose log a place is in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// Drawn when a cluster of databases is made, and shared with its standbys.
    pub system: u64,
    /// Another one begins when a standby is promoted, or an older state is restored.
    pub timeline: u32,
    /// The database's number in the catalog.
    pub database: u32,
}

/// Where one is in PostgreSQL's log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PostgresAt {
    pub origin: Origin,
    /// A sum over what the catalog says of the tables of the map and their publication, when servers were told
    /// last; 0 when it is not known.
    pub shape: u64,
    /// Behind the last commit.
    pub lsn: Lsn,
}

impl PostgresAt {
    /// `SYSTEM-TIMELINE-DATABASE-SHAPE-LSN`.
    fn parse(text: &str) -> Result<PostgresAt> {
        let parts: Vec<&str> = text.split('-').collect();
        let wrong = || {
            Error::invalid(format!(
                "read position `pg-{text}`: it is no pg-SYSTEM-TIMELINE-DATABASE-SHAPE-LSN"
            ))
        };
        let [system, timeline, database, shape, lsn] = parts[..] else { return Err(wrong()) };
        let origin = Origin {
            system: number(system, 10).ok_or_else(wrong)?,
            timeline: number(timeline, 10).ok_or_else(wrong)?,
            database: number(database, 10).ok_or_else(wrong)?,
        };
        let shape = number(shape, 16).ok_or_else(wrong)?;
        Ok(PostgresAt { origin, shape, lsn: Lsn::parse(lsn)? })
    }
}

impl fmt::Display for PostgresAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Origin { system, timeline, database } = self.origin;
        write!(f, "{system}-{timeline}-{database}-{:016x}-{}", self.shape, self.lsn)
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
            let mut numbers = one.split('-').map(|part| number::<u64>(part, 10));
            let (Some(Some(domain)), Some(Some(server)), Some(Some(sequence)), None) =
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
            if domains.insert(narrow(domain)?, (narrow(server)?, sequence)).is_some() {
                return Err(Error::invalid(format!(
                    "read position `{text}`: domain {domain} is there twice, and nobody knows which one counts"
                )));
            }
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
    /// Whether it is one of the log's files. Their names are numbered (`bin.000009`), and the number grows out of its
    /// six digits. One without a number would be taken for the first of all.
    pub fn is_name(file: &[u8]) -> bool {
        let digits = file.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
        digits >= 6 && file[..file.len() - digits].ends_with(b".")
    }

    pub fn covers(&self, other: &Place) -> bool {
        let order = |place: &Place| {
            let number = place.file.rsplit_once('.').and_then(|(_, digits)| digits.parse().ok());
            (number.unwrap_or(0u64), place.offset)
        };
        order(self) >= order(other)
    }
}

#[cfg(test)]
mod fuzz;

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
    fn postgresql_s_positions_are_read_as_they_print() {
        let text = "pg-7301234567890123456-3-16384-00000000deadbeef-16/B374D848";
        let position = Position::parse(text).unwrap();
        let Position::Postgres(at) = &position else { panic!("{position:?}") };
        assert_eq!(at.origin, Origin { system: 7301234567890123456, timeline: 3, database: 16384 });
        assert_eq!((at.shape, at.lsn), (0xdeadbeef, Lsn(0x16_b374_d848)));
        assert_eq!((position.to_string().as_str(), position.kind()), (text, "PostgreSQL"));
        let later = Position::parse(&text.replace("B374D848", "B374D849")).unwrap();
        assert!(later.covers(&position) && position.covers(&position) && !position.covers(&later));
        let promoted = Position::parse(&text.replace("-3-16384", "-4-16384")).unwrap();
        assert!(!promoted.covers(&position), "places of one log are none of another's");
        assert!(!Position::MariaDb(Gtids::default()).covers(&position));
        assert!(Lsn::parse("1/0").unwrap() > Lsn::parse("0/FFFFFFFF").unwrap());
        for wrong in ["pg-", "pg-1-2-3-4", "pg-1-2-3-4-5", "pg-1-2-3-x-0/0", "pg-1-2-3-4-0/0-6"] {
            assert!(Position::parse(wrong).is_err(), "{wrong}");
        }
        for wrong in ["", "/", "0/", "/0", "0/+1", "0/100000000", "1/2/3"] {
            assert!(Lsn::parse(wrong).is_err(), "{wrong}");
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
