//! How much each of many may take a second, so that one of them cannot take what belongs to all.
//! Each has a bucket of requests and one of bytes, into which as much flows a second as it may
//! take, and which hold a second of it; what was taken beyond is debt that has to flow in first.
//! Pure arithmetic: whoever asks brings the time, and does the waiting.

use crate::units::format_setting;
use std::collections::BTreeMap;

const SECOND_NS: u64 = 1_000_000_000;
/// How far [`Rates::slowed`] looks back.
pub const REMEMBERED_S: u64 = 60;
/// What somebody may owe and still wait for: less than clients wait for an answer (a minute, as a
/// rule), so that who owes more hears how long it takes, and not nothing.
pub const DEBT_NS_MAX: u64 = 30 * SECOND_NS;
/// A client is told of once in so long.
const TOLD_NS: u64 = 60 * SECOND_NS;
/// A full table forgets this share of its entries at once, so that a stranger with many addresses
/// has it sorted seldom.
const FORGOTTEN_SHARE: usize = 4;

/// What each may take; 0 where there is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowance {
    /// A second.
    pub requests: u64,
    /// A second.
    pub bytes: u64,
    /// At once.
    pub connections: u64,
}

/// Of what somebody took too much.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Limit {
    Requests,
    Bytes,
    Connections,
}

impl Limit {
    pub const ALL: [Limit; 3] = [Limit::Requests, Limit::Bytes, Limit::Connections];

    /// So much of it, for people: `5/s`, `10 MB/s`, `7`.
    pub fn amount(self, allowed: u64) -> String {
        match self {
            Limit::Requests => format!("{allowed}/s"),
            Limit::Bytes => format!("{}/s", format_setting(allowed)),
            Limit::Connections => allowed.to_string(),
        }
    }
}

impl Allowance {
    /// Of one kind.
    pub fn of(&self, limit: Limit) -> u64 {
        match limit {
            Limit::Requests => self.requests,
            Limit::Bytes => self.bytes,
            Limit::Connections => self.connections,
        }
    }

    /// Whether anybody may have to wait for it.
    pub fn has_rates(&self) -> bool {
        self.requests > 0 || self.bytes > 0
    }
}

/// What somebody wants to take ahead, as far as they know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// A request that brings so many bytes.
    Request { bytes: u64 },
    /// The answer to one that had its turn.
    Answer { bytes: u64 },
}

/// What somebody hears who wants to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// At once, with so many requests; never 0.
    Go {
        requests: u64,
    },
    Wait(Wait),
    /// It would take too long: not at all for now, and what is asked for meanwhile is refused.
    Refuse(Wait),
}

/// Why somebody has to wait, and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// From now on; never 0.
    pub ns: u64,
    pub limit: Limit,
    /// Nobody was told of this client for a minute.
    pub tell: bool,
}

/// Who was slowed by what within the last [`REMEMBERED_S`] seconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slowed<K> {
    pub key: K,
    pub limit: Limit,
    /// How many of these seconds, the one under way included.
    pub seconds: u64,
    /// For so much longer, if nothing more is taken.
    pub left_ns: u64,
}

#[derive(Clone, Debug)]
struct Bucket {
    /// Units times [`SECOND_NS`], so that no division loses any; below 0 is debt.
    level: i128,
    at_ns: u64,
}

impl Bucket {
    fn full(rate: u64, at_ns: u64) -> Bucket {
        Bucket { level: Bucket::brim(rate), at_ns }
    }

    fn brim(rate: u64) -> i128 {
        rate as i128 * SECOND_NS as i128
    }

    /// A clock that stands still, or goes back, brings nothing; one that jumps fills it once.
    fn flow(&mut self, rate: u64, now_ns: u64) {
        let passed_ns = now_ns.saturating_sub(self.at_ns) as i128;
        self.at_ns = self.at_ns.max(now_ns);
        let level = self.level.saturating_add(passed_ns.saturating_mul(rate as i128));
        self.level = level.min(Bucket::brim(rate));
    }

    fn take(&mut self, rate: u64, units: u64) {
        if rate > 0 {
            self.level = self.level.saturating_sub(units as i128 * SECOND_NS as i128);
        }
    }

    fn give_back(&mut self, rate: u64, units: u64) {
        if rate > 0 {
            let level = self.level.saturating_add(units as i128 * SECOND_NS as i128);
            self.level = level.min(Bucket::brim(rate));
        }
    }

    /// Until the bucket has come up to a level.
    fn wait_ns(&self, rate: u64, level: i128) -> u64 {
        let lacks = level.saturating_sub(self.level).max(0) as u128;
        match rate {
            0 => 0,
            rate => lacks.div_ceil(rate as u128).min(u64::MAX as u128) as u64,
        }
    }
}

/// In which of the last seconds something was so: a bit each, the lowest for the newest.
#[derive(Clone, Copy, Debug, Default)]
struct Minute {
    bits: u64,
    second: u64,
    /// It stays so until then.
    until_ns: u64,
}

impl Minute {
    fn advance(&mut self, now_ns: u64) {
        let now_s = (now_ns / SECOND_NS).max(self.second);
        let first = (self.second + 1).max((now_s + 1).saturating_sub(u64::BITS as u64));
        for second in first..=now_s {
            self.bits = self.bits << 1 | u64::from(second * SECOND_NS < self.until_ns);
        }
        self.second = now_s;
    }

    fn note(&mut self, now_ns: u64, until_ns: u64) {
        self.advance(now_ns);
        self.bits |= 1;
        self.until_ns = self.until_ns.max(until_ns);
    }

    fn seconds(mut self, now_ns: u64) -> u64 {
        self.advance(now_ns);
        (self.bits & ((1 << REMEMBERED_S) - 1)).count_ones() as u64
    }
}

#[derive(Clone, Debug)]
struct Entry {
    requests: Bucket,
    bytes: Bucket,
    connections: u64,
    /// By the places in [`Limit::ALL`].
    slowed: [Minute; 3],
    told_ns: Option<u64>,
}

impl Entry {
    fn new(allowed: &Allowance, now_ns: u64) -> Entry {
        Entry {
            requests: Bucket::full(allowed.requests, now_ns),
            bytes: Bucket::full(allowed.bytes, now_ns),
            connections: 0,
            slowed: [Minute::default(); 3],
            told_ns: None,
        }
    }

    fn flow(&mut self, allowed: &Allowance, now_ns: u64) {
        self.requests.flow(allowed.requests, now_ns);
        self.bytes.flow(allowed.bytes, now_ns);
    }

    /// Until there is a whole request, and bytes are not owed: how many the next one takes is known
    /// afterwards.
    fn wait_of_ns(&self, allowed: &Allowance, limit: Limit) -> u64 {
        match limit {
            Limit::Requests => self.requests.wait_ns(allowed.requests, SECOND_NS as i128),
            Limit::Bytes => self.bytes.wait_ns(allowed.bytes, 0),
            Limit::Connections => 0,
        }
    }

    fn wait_ns(&self, allowed: &Allowance) -> (u64, Limit) {
        let of = |limit| (self.wait_of_ns(allowed, limit), limit);
        let (requests, bytes) = (of(Limit::Requests), of(Limit::Bytes));
        if bytes.0 > requests.0 { bytes } else { requests }
    }

    /// Until nothing of it is worth remembering.
    fn full_in_ns(&self, allowed: &Allowance, now_ns: u64) -> u64 {
        let mut then = self.clone();
        then.flow(allowed, now_ns);
        let requests = then.requests.wait_ns(allowed.requests, Bucket::brim(allowed.requests));
        requests.max(then.bytes.wait_ns(allowed.bytes, Bucket::brim(allowed.bytes)))
    }

    fn slow(&mut self, limit: Limit, now_ns: u64, ns: u64) -> Wait {
        self.slowed[limit as usize].note(now_ns, now_ns.saturating_add(ns));
        let tell = self.told_ns.is_none_or(|told_ns| now_ns.saturating_sub(told_ns) >= TOLD_NS);
        if tell {
            self.told_ns = Some(now_ns);
        }
        Wait { ns: ns.max(1), limit, tell }
    }
}

/// What each of them has taken lately.
#[derive(Debug)]
pub struct Rates<K> {
    allowed: Allowance,
    entries: BTreeMap<K, Entry>,
    /// With more, those are forgotten whom it costs least. Whoever is connected is not.
    entries_max: usize,
}

impl<K: Ord + Clone> Rates<K> {
    /// `allowed` to each.
    pub fn new(allowed: Allowance, entries_max: usize) -> Rates<K> {
        Rates { allowed, entries: BTreeMap::new(), entries_max: entries_max.max(1) }
    }

    pub fn allowed(&self) -> &Allowance {
        &self.allowed
    }

    fn entry(&mut self, key: &K, now_ns: u64) -> &mut Entry {
        if !self.entries.contains_key(key) && self.entries.len() >= self.entries_max {
            self.forget(now_ns);
        }
        let allowed = self.allowed;
        let new = || Entry::new(&allowed, now_ns);
        let entry = self.entries.entry(key.clone()).or_insert_with(new);
        entry.flow(&allowed, now_ns);
        entry
    }

    /// Those whose buckets are full lose nothing; where all owe something, who owes least gains
    /// least.
    fn forget(&mut self, now_ns: u64) {
        let gone = self.entries.iter().filter(|(_, entry)| entry.connections == 0);
        let owes =
            |(key, entry): (&K, &Entry)| (entry.full_in_ns(&self.allowed, now_ns), key.clone());
        let mut owes: Vec<(u64, K)> = gone.map(owes).collect();
        owes.sort();
        for (_, key) in owes.iter().take((self.entries_max / FORGOTTEN_SHARE).max(1)) {
            self.entries.remove(key);
        }
    }

    /// Whether `key` may go on now, or has to wait, or owes more than [`DEBT_NS_MAX`]. Takes nothing:
    /// that is [`Rates::take`]'s, afterwards.
    pub fn turn(&mut self, key: &K, now_ns: u64) -> Turn {
        let allowed = self.allowed;
        let entry = self.entry(key, now_ns);
        match entry.wait_ns(&allowed) {
            (0, _) if allowed.requests == 0 => Turn::Go { requests: u64::MAX },
            (0, _) => {
                let whole = entry.requests.level / SECOND_NS as i128;
                Turn::Go { requests: whole as u64 }
            }
            (ns, limit) => wait_or_not(entry.slow(limit, now_ns, ns), DEBT_NS_MAX),
        }
    }

    /// Takes what was used, also what is not there.
    pub fn take(&mut self, key: &K, now_ns: u64, requests: u64, bytes: u64) {
        let allowed = self.allowed;
        let entry = self.entry(key, now_ns);
        entry.requests.take(allowed.requests, requests);
        entry.bytes.take(allowed.bytes, bytes);
    }

    /// Takes ahead what is wanted, whose turn is when the wait is over; what would wait longer than
    /// `longest_ns` takes nothing. So of many who come at once each has a turn of its own, and those
    /// for whom there is none know at once.
    pub fn reserve(&mut self, key: &K, now_ns: u64, longest_ns: u64, wanted: Wanted) -> Turn {
        let allowed = self.allowed;
        let entry = self.entry(key, now_ns);
        let (ns, limit) = match wanted {
            Wanted::Request { .. } => entry.wait_ns(&allowed),
            Wanted::Answer { .. } => (entry.wait_of_ns(&allowed, Limit::Bytes), Limit::Bytes),
        };
        let (requests, bytes) = match wanted {
            Wanted::Request { bytes } => (1, bytes),
            Wanted::Answer { bytes } => (0, bytes),
        };
        if ns <= longest_ns {
            entry.requests.take(allowed.requests, requests);
            entry.bytes.take(allowed.bytes, bytes);
        }
        match ns {
            0 => Turn::Go { requests: 1 },
            ns => {
                let noted = entry.slow(limit, now_ns, ns.min(longest_ns));
                wait_or_not(Wait { ns, ..noted }, longest_ns)
            }
        }
    }

    /// Gives back bytes that were taken ahead and came to nothing. Who was forgotten meanwhile has
    /// full buckets.
    pub fn give_back(&mut self, key: &K, bytes: u64) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.bytes.give_back(self.allowed.bytes, bytes);
        }
    }

    /// One connection more, which counts until [`Rates::disconnect`]. An error where it is one too
    /// many, which does not count.
    pub fn connect(&mut self, key: &K, now_ns: u64) -> Result<(), Wait> {
        let connections_max = self.allowed.connections;
        let entry = self.entry(key, now_ns);
        if connections_max > 0 && entry.connections >= connections_max {
            return Err(entry.slow(Limit::Connections, now_ns, 0));
        }
        entry.connections += 1;
        Ok(())
    }

    pub fn disconnect(&mut self, key: &K) {
        let entry = self.entries.get_mut(key);
        let entry = entry.filter(|entry| entry.connections > 0);
        entry.expect("who ends a connection has begun it").connections -= 1;
    }

    /// Who was slowed lately, and for how much longer.
    pub fn slowed(&self, now_ns: u64) -> Vec<Slowed<K>> {
        let mut all = Vec::new();
        for (key, entry) in &self.entries {
            let mut now = entry.clone();
            now.flow(&self.allowed, now_ns);
            for limit in Limit::ALL {
                let seconds = entry.slowed[limit as usize].seconds(now_ns);
                let left_ns = now.wait_of_ns(&self.allowed, limit);
                if seconds > 0 {
                    all.push(Slowed { key: key.clone(), limit, seconds, left_ns });
                }
            }
        }
        all
    }
}

fn wait_or_not(wait: Wait, longest_ns: u64) -> Turn {
    if wait.ns <= longest_ns { Turn::Wait(wait) } else { Turn::Refuse(wait) }
}

#[cfg(test)]
mod tests;
