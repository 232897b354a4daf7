//! Leases of servers, for readers who take values from those alone that were told what changed: which server is
//! asked for a number, and whose number is good for a lease. docs/decisions/0028 says why in this order. Pure.

use holdfast_base::ids::Index;
use holdfast_cache_client::lookaside::lookup::Token;
use holdfast_env::planted;
use std::collections::BTreeMap;

/// Seconds of the shortest lease: servers count whole ones, and one of a quarter is given each second.
pub const LEASE_S_MIN: u32 = 4;
/// Longer ones would be no bound, and dates to memcached.
pub const LEASE_S_MAX: u32 = 24 * 3600;
/// Leases are given so often while one lasts.
const TURNS: u64 = 4;
const S_NS: u64 = 1_000_000_000;

/// The leases of a pool's servers, by the numbers that they gave.
#[derive(Debug)]
pub struct Leases {
    lease_s: u32,
    grace_ns: u64,
    /// Behind the servers' answers: the numbers that are held were given before.
    given_ns: Option<u64>,
    held: BTreeMap<u32, Token>,
    /// Where the topic ended once it had what the database changed before the numbers were given.
    end: Option<Index>,
}

impl Leases {
    /// Of so many seconds; 0 gives none. `grace_s`: for how many seconds they are given though nobody knows that
    /// the topic has what the database changed.
    pub fn new(lease_s: u32, grace_s: u32) -> Leases {
        let grace_ns = u64::from(grace_s) * S_NS;
        Leases { lease_s, grace_ns, given_ns: None, held: BTreeMap::new(), end: None }
    }

    pub fn lease_s(&self) -> u32 {
        self.lease_s
    }

    fn lease_ns(&self) -> u64 {
        u64::from(self.lease_s) * S_NS
    }

    /// Whether servers are to be asked for numbers now. Those that wait for the database are kept for as long as
    /// they can be good: a log that is behind by less than a lease costs none.
    pub fn is_due(&self, now_ns: u64) -> bool {
        let after_ns = match self.end {
            Some(_) => self.lease_ns() / TURNS,
            None => self.lease_ns(),
        };
        let is_old = |given_ns| now_ns.saturating_sub(given_ns) >= after_ns;
        self.lease_s > 0 && self.given_ns.is_none_or(is_old)
    }

    /// Whether numbers wait for the database.
    pub fn is_unfenced(&self) -> bool {
        self.given_ns.is_some() && self.end.is_none()
    }

    /// Servers were asked; all that gave a number had given it by that moment. What they gave before counts no more.
    pub fn given(&mut self, now_ns: u64, tokens: impl IntoIterator<Item = (u32, Option<Token>)>) {
        (self.given_ns, self.end) = (Some(now_ns), None);
        let given = tokens.into_iter().filter_map(|(server, token)| Some((server, token?)));
        self.held = given.collect();
    }

    /// Whether the topic is to be asked for its end: it has what was changed before the numbers were given.
    /// `answered_ns`: the moment whose changes it has ([`crate::fence::Fence::answered_ns`]).
    pub fn is_fenced(&self, answered_ns: Option<u64>) -> bool {
        let Some(given_ns) = self.given_ns.filter(|_| self.end.is_none()) else { return false };
        let is_good = |answered_ns: u64| answered_ns.saturating_add(self.grace_ns) >= given_ns;
        answered_ns.is_some_and(is_good) || planted!("invalidate.lease-without-fence")
    }

    /// Where the topic ended then.
    pub fn ends(&mut self, end: Index) {
        self.end = Some(end);
    }

    /// The leases to give: to servers that have confirmed all before that end. `told`: the first entry that a
    /// server has not confirmed, or nothing of one that is to be emptied.
    pub fn to_give(&mut self, told: impl Fn(u32) -> Option<Index>) -> Vec<(u32, Token)> {
        let Some(end) = self.end else { return Vec::new() };
        let is_good = |server: &u32, _: &mut Token| {
            told(*server).is_some_and(|next| next >= end)
                || planted!("invalidate.lease-before-told")
        };
        self.held.extract_if(.., is_good).collect()
    }
}

#[cfg(test)]
mod tests;
