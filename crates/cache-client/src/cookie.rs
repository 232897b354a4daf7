//! Reads of one's own writes, where a region reads a replica that is behind: whoever writes gives the user a
//! cookie, and while that says so, the user's reads go to the region that is written to. Pure; an application
//! sets and reads the cookie. What it looks like, and how Python's is the same: docs/cache-client.md.
//!
//! It is not signed: whoever forges one sends reads of their own elsewhere, for at most twice the lifetime.

use holdfast_base::{Error, Result};
use std::collections::BTreeMap;
use std::fmt;

/// Before the fields of each cookie.
const VERSION: &str = "1";
/// A position of some dozen domains.
const TEXT_BYTES_MAX: usize = 512;

/// How far a database's log is, as far as one position can be compared with another.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Position {
    /// MariaDB's: the last transaction of each domain, with the server that made it.
    Gtids(BTreeMap<u32, (u32, u64)>),
    /// PostgreSQL's: bytes since the beginning of its log.
    Lsn(u64),
}

fn decimal<T: std::str::FromStr>(text: &str) -> Option<T> {
    // `parse` takes a plus.
    let is_digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_digits)
}

fn half_of_lsn(text: &str) -> Option<u64> {
    let is_hex = (1..=8).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit());
    u64::from_str_radix(text, 16).ok().filter(|_| is_hex)
}

impl Position {
    /// As the database says it, with `separator` between transactions of several domains.
    fn parse(text: &str, separator: char) -> Option<Position> {
        if let Some((high, low)) = text.split_once('/') {
            return Some(Position::Lsn(half_of_lsn(high)? << 32 | half_of_lsn(low)?));
        }
        let mut domains = BTreeMap::new();
        for one in text.split(separator) {
            let mut numbers = one.trim().split('-');
            let (domain, server) = (decimal(numbers.next()?)?, decimal(numbers.next()?)?);
            let sequence = decimal(numbers.next()?)?;
            if numbers.next().is_some() || domains.insert(domain, (server, sequence)).is_some() {
                return None;
            }
        }
        Some(Position::Gtids(domains))
    }

    /// Whether all of `other` lies at or before it; never, of another kind of database.
    fn covers(&self, other: &Position) -> bool {
        match (self, other) {
            (Position::Lsn(here), Position::Lsn(there)) => here >= there,
            (Position::Gtids(here), Position::Gtids(there)) => there
                .iter()
                .all(|(domain, (_, n))| here.get(domain).is_some_and(|(_, reached)| reached >= n)),
            _ => false,
        }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Position::Lsn(lsn) => write!(f, "{:X}/{:X}", lsn >> 32, *lsn as u32),
            Position::Gtids(domains) => {
                for (number, (domain, (server, sequence))) in domains.iter().enumerate() {
                    // A comma is no part of a cookie.
                    let between = if number == 0 { "" } else { "_" };
                    write!(f, "{between}{domain}-{server}-{sequence}")?;
                }
                Ok(())
            }
        }
    }
}

/// What a user carries after a write. Its text (`to_string`) is a cookie's value: `1.SECONDS`, or
/// `1.SECONDS.POSITION`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cookie {
    /// Seconds since 1970 by the clock of whoever wrote.
    written_s: u64,
    position: Option<Position>,
}

impl Cookie {
    /// Something was written now, in seconds since 1970.
    pub fn written(now_s: u64) -> Cookie {
        Cookie { written_s: now_s, position: None }
    }

    /// The same, at a position as the database says it: of MariaDB `@@last_gtid`, or several such with commas, of
    /// PostgreSQL `pg_current_wal_insert_lsn()`, asked behind the commit. The detour ends when the replica is there.
    pub fn written_at(now_s: u64, position: &str) -> Result<Cookie> {
        let found = Position::parse(position, ',').ok_or_else(|| {
            Error::invalid(format!(
                "make a cookie of position `{position}`: give MariaDB's, 0-1-100, or PostgreSQL's, 16/B374D848"
            ))
        })?;
        let cookie = Cookie { written_s: now_s, position: Some(found) };
        match cookie.to_string().len() {
            ..=TEXT_BYTES_MAX => Ok(cookie),
            _ => Err(Error::invalid(format!(
                "make a cookie: it is longer than {TEXT_BYTES_MAX} bytes: give the transaction that was written, \
                 and not all of the log"
            ))),
        }
    }

    /// Reads a cookie's value; nothing of what is none.
    pub fn parse(text: &str) -> Option<Cookie> {
        if text.len() > TEXT_BYTES_MAX {
            return None;
        }
        let mut fields = text.splitn(3, '.');
        if fields.next() != Some(VERSION) {
            return None;
        }
        let written_s = decimal(fields.next()?)?;
        let position = match fields.next() {
            Some(text) => Some(Position::parse(text, '_')?),
            None => None,
        };
        Some(Cookie { written_s, position })
    }

    /// What the user carries who also carries an `earlier` one, from a write to another domain of MariaDB's log:
    /// both writes are waited for. In one domain, and in PostgreSQL, the later position says it all.
    pub fn behind(mut self, earlier: &Cookie) -> Cookie {
        if let (Some(Position::Gtids(domains)), Some(Position::Gtids(of))) =
            (&mut self.position, &earlier.position)
        {
            for (domain, gtid) in of {
                domains.entry(*domain).or_insert(*gtid);
            }
        }
        self
    }

    /// Whether the user's reads go to the region of the writes: for `lifetime_s` seconds behind the write, and no
    /// longer than until the `replica` of this region is there. That is its position as it says it, MariaDB's
    /// `@@gtid_slave_pos` or PostgreSQL's `pg_last_wal_replay_lsn()`, if it was asked.
    pub fn detours(&self, now_s: u64, lifetime_s: u64, replica: Option<&str>) -> bool {
        // Clocks differ; one that is further ahead than a lifetime is none.
        if now_s.abs_diff(self.written_s) >= lifetime_s {
            return false;
        }
        let reached = replica.and_then(|text| Position::parse(text, ','));
        match (&self.position, reached) {
            (Some(written), Some(reached)) => !reached.covers(written),
            _ => true,
        }
    }
}

impl fmt::Display for Cookie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{VERSION}.{}", self.written_s)?;
        self.position.as_ref().map_or(Ok(()), |position| write!(f, ".{position}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Read by Python's tests, too, so that a cookie that one language made says the same in the other.
    const CASES: &str = include_str!("../../../python/tests/cookies.tsv");

    #[test]
    fn cookies_are_those_of_python() {
        let (mut made, mut read) = (0, 0);
        for line in CASES.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let fields: Vec<&str> = line.split('\t').collect();
            match fields[..] {
                ["make", now_s, position, text] => {
                    let now_s = now_s.parse().unwrap();
                    let cookie = match position {
                        "-" => Ok(Cookie::written(now_s)),
                        position => Cookie::written_at(now_s, position),
                    };
                    let said = cookie.as_ref().map_or("refused".to_owned(), Cookie::to_string);
                    assert_eq!(said, text, "{line}");
                    if let Ok(cookie) = cookie {
                        assert_eq!(Cookie::parse(&said), Some(cookie), "{line}");
                    }
                    made += 1;
                }
                ["detours", text, now_s, lifetime_s, replica, expected] => {
                    let replica = Some(replica).filter(|text| *text != "-");
                    let said = Cookie::parse(text).map_or("none", |cookie| {
                        let (now_s, lifetime_s) = (now_s.parse(), lifetime_s.parse());
                        match cookie.detours(now_s.unwrap(), lifetime_s.unwrap(), replica) {
                            true => "yes",
                            false => "no",
                        }
                    });
                    assert_eq!(said, expected, "{line}");
                    read += 1;
                }
                ["behind", later, earlier, text] => {
                    let of = |text| Cookie::parse(text).unwrap();
                    assert_eq!(of(later).behind(&of(earlier)).to_string(), text, "{line}");
                }
                _ => panic!("{line}"),
            }
        }
        assert!(made >= 8 && read >= 20, "{made} {read}");
    }

    #[test]
    fn a_cookie_is_bounded_and_fits_into_a_header() {
        let many: Vec<String> = (0..100).map(|domain| format!("{domain}-1-1000000")).collect();
        assert!(Cookie::written_at(1, &many.join(",")).unwrap_err().message.contains("512"));
        assert_eq!(Cookie::parse(&format!("1.1.{}", many.join("_"))), None);
        let text = Cookie::written_at(1, "1-2-7, 0-1-100").unwrap().to_string();
        let may = |b: u8| b.is_ascii_alphanumeric() || b"-._/".contains(&b);
        assert!(text.bytes().all(may), "{text}: RFC 6265 has no comma, space or quote");
    }
}
