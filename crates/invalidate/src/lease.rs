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

/// A number that a server gave.
#[derive(Clone, Copy, Debug)]
struct Held {
    token: Token,
    /// Where the topic ended behind that.
    end: Index,
}

/// The leases of a pool's servers, by their numbers.
#[derive(Debug)]
pub struct Leases {
    lease_s: u32,
    asked_ns: Option<u64>,
    held: BTreeMap<u32, Held>,
}

impl Leases {
    /// Of so many seconds; 0 gives none.
    pub fn new(lease_s: u32) -> Leases {
        Leases { lease_s, asked_ns: None, held: BTreeMap::new() }
    }

    pub fn lease_s(&self) -> u32 {
        self.lease_s
    }

    /// Whether servers are to be asked for numbers now.
    pub fn is_due(&self, now_ns: u64) -> bool {
        let turn_ns = u64::from(self.lease_s) * 1_000_000_000 / TURNS;
        self.lease_s > 0
            && self.asked_ns.is_none_or(|asked| now_ns.saturating_sub(asked) >= turn_ns)
    }

    /// Servers were asked, and then the topic for its end. What they gave before counts no more.
    pub fn asked(
        &mut self,
        now_ns: u64,
        tokens: impl IntoIterator<Item = (u32, Option<Token>)>,
        end: Index,
    ) {
        self.asked_ns = Some(now_ns);
        let given = tokens.into_iter().filter_map(|(server, token)| Some((server, token?)));
        self.held = given.map(|(server, token)| (server, Held { token, end })).collect();
    }

    /// The leases to give: to servers that have confirmed all before that end. `told`: the first entry that a
    /// server has not confirmed, or nothing of one that is to be emptied.
    pub fn to_give(&mut self, told: impl Fn(u32) -> Option<Index>) -> Vec<(u32, Token)> {
        let is_good = |server: &u32, held: &mut Held| {
            told(*server).is_some_and(|next| next >= held.end)
                || planted!("invalidate.lease-before-told")
        };
        let good = self.held.extract_if(.., is_good);
        good.map(|(server, held)| (server, held.token)).collect()
    }
}

#[cfg(test)]
mod tests;
