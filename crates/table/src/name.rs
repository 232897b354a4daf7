//! Tables' names, the topics of their tablets, and which tablet a key lies in. Pure.

use holdfast_base::checksum::crc32c;
use holdfast_base::random::mix;
use holdfast_base::{Error, Result};
use holdfast_cluster::topics::TABLES;
use std::borrow::Borrow;
use std::fmt;

/// Longest name of a table.
pub const NAME_BYTES_MAX: usize = 100;
/// The table in which all of DynamoDB's lie.
pub const DYNAMODB: &str = "dynamodb";

/// A table's name: `a-z 0-9 . _ -`, not beginning with a dot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TableName(String);

/// It is ordered as its text is.
impl Borrow<str> for TableName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl TableName {
    /// Refuses what is not one.
    pub fn new(name: &str) -> Result<TableName> {
        let wrong = if name.is_empty() {
            "is empty: name it"
        } else if name.len() > NAME_BYTES_MAX {
            "is longer than 100 bytes: shorten it"
        } else if name.starts_with('.')
            || name.bytes().any(|b| !matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-'))
        {
            "may hold only `a-z`, `0-9`, `.`, `_` and `-`, and not begin with `.`: rename it"
        } else {
            return Ok(TableName(name.to_owned()));
        };
        let shown: String = name.chars().take(NAME_BYTES_MAX).collect();
        Err(Error::invalid(format!("table `{}` {wrong}", shown.escape_debug())))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// What rights to the table are asked for by.
    pub fn family(&self) -> String {
        format!("{TABLES}/{}", self.0)
    }

    /// The topic of one of its tablets.
    pub fn topic(&self, tablet: u16) -> String {
        format!("{TABLES}/{}/{tablet}", self.0)
    }

    /// Whose topic that is, and which tablet's.
    pub fn of_topic(topic: &str) -> Option<(TableName, u16)> {
        let mut parts = topic.split('/');
        let (family, name, tablet) = (parts.next()?, parts.next()?, parts.next()?);
        let name = TableName::new(name).ok()?;
        let tablet = tablet.parse().ok()?;
        let whole = family == TABLES && name.topic(tablet) == topic;
        whole.then_some((name, tablet))
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// By what keys are divided among tablets.
pub fn hash_of(key: &[u8]) -> u32 {
    // The checksums of keys that differ in their ends alone lie close together.
    (mix(u64::from(crc32c(key))) >> 32) as u32
}

/// Which of so many tablets a key lies in where none was split: each has an equal range of the keys' hashes.
pub fn tablet_of(key: &[u8], tablets: u16) -> u16 {
    ((u64::from(hash_of(key)) * u64::from(tablets)) >> 32) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_says_whose_it_is_and_no_other_does() {
        let name = TableName::new("users.v2").unwrap();
        assert_eq!(TableName::of_topic(&name.topic(7)), Some((name, 7)));
        for other in
            ["table/users", "table/users/07", "table/users/x", "view/users/1", "table/u/1/2"]
        {
            assert_eq!(TableName::of_topic(other), None, "{other}");
        }
        for wrong in ["", ".x", "a/b", "Users", "a b", "é", &"x".repeat(101)] {
            assert!(TableName::new(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn keys_are_spread_over_all_tablets() {
        for tablets in [1, 2, 3, 64] {
            let mut counts = vec![0; usize::from(tablets)];
            for key in 0..6400u32 {
                let key = format!("user{key:05}");
                counts[usize::from(tablet_of(key.as_bytes(), tablets))] += 1;
            }
            let fair = 6400 / i32::from(tablets as i16);
            assert!(counts.iter().all(|count| (fair / 2..=2 * fair).contains(count)), "{counts:?}");
        }
    }
}
