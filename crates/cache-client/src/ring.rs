//! Ketama: which server of a pool a key belongs to, point for point as libmemcached decides it, so
//! that its clients and ours find each other's items. A server that comes or goes moves only the
//! keys between its points and the ones before them. Pure.

use holdfast_base::{Error, Result};
use md5::{Digest, Md5};
use std::fmt;

/// Memcached's port, which libmemcached leaves out of a server's name on the circle.
pub const PORT: u16 = 11211;
/// Points of a server of average weight, four from each digest (`KETAMA_WEIGHTED`).
const POINTS_WEIGHTED: usize = 160;
/// Points of each server, one from each hash (`KETAMA`).
const POINTS: usize = 100;
const WEIGHT_MAX: u32 = 1000;

/// One server of a pool: its name decides where it lies on the circle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub host: String,
    pub port: u16,
    pub weight: u32,
}

impl Member {
    /// `HOST`, `HOST:PORT`, `[V6]:PORT`, each with ` WEIGHT` behind it or not.
    pub fn parse(text: &str) -> Result<Member> {
        let wrong = |why: &str| {
            Error::invalid(format!(
                "read server `{text}`: {why}: write HOST:PORT or `HOST:PORT WEIGHT`"
            ))
        };
        let mut words = text.split_whitespace();
        let (place, weight) = (words.next().unwrap_or_default(), words.next());
        if words.next().is_some() {
            return Err(wrong("too many words"));
        }
        let weight = match weight.map(str::parse) {
            None => 1,
            Some(Ok(weight)) if (1..=WEIGHT_MAX).contains(&weight) => weight,
            Some(_) => return Err(wrong("a weight is a number from 1 to 1000")),
        };
        let (host, port) = match place.rsplit_once(':') {
            Some((host, port))
                if !host.ends_with(':') && (!host.contains(':') || host.ends_with(']')) =>
            {
                let port = port.parse().ok().filter(|port| *port != 0);
                (host, port.ok_or_else(|| wrong("a port is a number from 1 to 65535"))?)
            }
            _ => (place, PORT),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err(wrong("the host is missing"));
        }
        Ok(Member { host: host.to_owned(), port, weight })
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// Which of libmemcached's two circles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hashing {
    /// `MEMCACHED_BEHAVIOR_KETAMA_WEIGHTED`, and most other clients' ketama: MD5 throughout.
    #[default]
    Weighted,
    /// `MEMCACHED_BEHAVIOR_KETAMA` with its default hash, Jenkins' one-at-a-time.
    Ketama,
}

impl Hashing {
    pub fn parse(text: &str) -> Result<Hashing> {
        match text {
            "ketama_weighted" => Ok(Hashing::Weighted),
            "ketama" => Ok(Hashing::Ketama),
            _ => Err(Error::invalid(format!(
                "hash keys by `{text}`: give `ketama_weighted` or `ketama`, as libmemcached calls them"
            ))),
        }
    }

    /// Where a key lies on the circle.
    pub fn place(self, key: &[u8]) -> u32 {
        match self {
            Hashing::Weighted => words(key)[0],
            Hashing::Ketama => one_at_a_time(key),
        }
    }
}

/// MD5 as four little-endian words, which is how ketama takes it.
fn words(bytes: &[u8]) -> [u32; 4] {
    let digest = Md5::digest(bytes);
    std::array::from_fn(|i| {
        let at = 4 * i;
        u32::from_le_bytes([digest[at], digest[at + 1], digest[at + 2], digest[at + 3]])
    })
}

/// Jenkins' one-at-a-time hash.
fn one_at_a_time(bytes: &[u8]) -> u32 {
    let mut value = 0u32;
    for byte in bytes {
        value = value.wrapping_add(u32::from(*byte));
        value = value.wrapping_add(value << 10);
        value ^= value >> 6;
    }
    value = value.wrapping_add(value << 3);
    value ^= value >> 11;
    value.wrapping_add(value << 15)
}

/// The circle of one pool.
#[derive(Clone, Debug)]
pub struct Ring {
    /// Place on the circle and number of the server, in order.
    points: Vec<(u32, u32)>,
    hashing: Hashing,
    /// The only server there is: no key needs a hash.
    only: Option<u32>,
}

impl Ring {
    pub fn hashing(&self) -> Hashing {
        self.hashing
    }

    /// Servers are numbered as in `members`.
    pub fn new(members: &[Member], hashing: Hashing) -> Ring {
        let mut points = Vec::new();
        // libmemcached turns to weighted points as soon as a weight is given.
        let is_weighted = hashing == Hashing::Weighted || members.iter().any(|m| m.weight > 1);
        let total: u64 = members.iter().map(|m| u64::from(m.weight)).sum();
        for (number, member) in members.iter().enumerate() {
            let name = match member.port {
                PORT => member.host.clone(),
                port => format!("{}:{port}", member.host),
            };
            if !is_weighted {
                let place = |i| one_at_a_time(format!("{name}-{i}").as_bytes());
                points.extend((0..POINTS).map(|i| (place(i), number as u32)));
                continue;
            }
            // In single precision, as libmemcached reckons: another rounding moves keys.
            let share = member.weight as f32 / total as f32;
            let each = share * POINTS_WEIGHTED as f32 / 4.0 * members.len() as f32;
            let digests = (f64::from(each) + 1e-10).floor() as usize;
            for i in 0..digests {
                let places = words(format!("{name}-{i}").as_bytes());
                points.extend(places.map(|place| (place, number as u32)));
            }
        }
        points.sort_unstable();
        let only = (members.len() == 1).then_some(0);
        Ring { points, hashing, only }
    }

    /// The key's server; none if the pool is empty.
    pub fn find(&self, key: &[u8]) -> Option<u32> {
        self.find_where(key, |_| true)
    }

    /// The first server at or behind the key's place that `takes` it.
    pub fn find_where(&self, key: &[u8], mut takes: impl FnMut(u32) -> bool) -> Option<u32> {
        if let Some(only) = self.only {
            return takes(only).then_some(only);
        }
        let place = self.hashing.place(key);
        let at = self.points.partition_point(|(value, _)| *value < place);
        let (before, behind) = self.points.split_at(at);
        behind.iter().chain(before).map(|(_, number)| *number).find(|number| takes(*number))
    }
}

#[cfg(test)]
mod tests;
