//! The servers that keys were sent to, as a topic remembers them. Where a server goes, its keys become others',
//! which may have had them before it came, and were told nothing of them since. Pure.

use holdfast_cache_client::route::RoutePlan;
use holdfast_env::planted;
use std::collections::{BTreeMap, BTreeSet};

/// The pools that may hold a key of a pool: it, the one that has the keys of dead servers meanwhile, and the one that
/// is asked for what it misses.
fn pools(plan: &RoutePlan, pool: usize) -> impl Iterator<Item = usize> {
    let of = &plan.pools[pool];
    let gutter = of.gutter.filter(|_| !planted!("invalidate.gutter-forgotten"));
    [Some(pool), gutter, of.warm].into_iter().flatten()
}

/// All servers that are told what changed for a pool.
pub fn servers(plan: &RoutePlan, pool: usize) -> Vec<u32> {
    pools(plan, pool).flat_map(|pool| plan.pools[pool].servers()).collect()
}

/// Those of them that may hold a key.
pub fn holders(plan: &RoutePlan, pool: usize, key: &[u8]) -> Vec<u32> {
    pools(plan, pool).filter_map(|pool| plan.pools[pool].server(key)).collect()
}

/// A pool's servers as a topic keeps them, of each pool that may hold its keys `NAME HASHING SERVER WEIGHT SERVER
/// WEIGHT ...`.
pub fn describe(plan: &RoutePlan, pool: usize) -> Vec<String> {
    let describe = |pool: usize| {
        let pool = &plan.pools[pool];
        let mut text = format!("{} {:?}", pool.name, pool.hashing());
        for member in pool.servers().map(|number| &plan.members[number as usize]) {
            text += &format!(" {member} {}", member.weight);
        }
        text
    };
    pools(plan, pool).map(describe).collect()
}

/// One pool: how it hashes, and the weights of its servers.
struct Pool<'a> {
    hashing: &'a str,
    weights: BTreeMap<&'a str, &'a str>,
}

fn read(text: &str) -> Option<(&str, Pool<'_>)> {
    let mut words = text.split(' ');
    let (name, hashing) = (words.next()?, words.next()?);
    let mut weights = BTreeMap::new();
    while let (Some(server), Some(weight)) = (words.next(), words.next()) {
        weights.insert(server, weight);
    }
    Some((name, Pool { hashing, weights }))
}

impl Pool<'_> {
    /// Whether all have one weight: then a server's points on the circle do not hang on who else is there.
    fn is_even(&self) -> bool {
        let mut weights = self.weights.values();
        let first = weights.next();
        weights.all(|weight| Some(weight) == first)
    }

    /// Whether no server of `before` has a key now that it did not have then.
    fn only_grew(&self, before: &Pool<'_>) -> bool {
        let is_same = self.hashing == before.hashing;
        let stays = |(server, weight)| self.weights.get(server) == Some(weight);
        is_same
            && before.weights.iter().all(stays)
            && (self.weights.len() == before.weights.len() || self.is_even())
    }
}

/// The servers that may have keys now of which they were not told before. None where a topic remembers nothing.
pub fn gainers(before: &[String], now: &[String]) -> BTreeSet<String> {
    let mut gainers = BTreeSet::new();
    if before.is_empty() {
        return gainers;
    }
    let before: BTreeMap<&str, Pool<'_>> = before.iter().filter_map(|text| read(text)).collect();
    for (name, pool) in now.iter().filter_map(|text| read(text)) {
        let old = before.get(name).filter(|old| pool.only_grew(old));
        let is_known = |server: &str| old.is_some_and(|old| old.weights.contains_key(server));
        let new = pool.weights.keys().filter(|server| !is_known(server));
        gainers.extend(new.map(|server| (*server).to_owned()));
    }
    gainers
}

#[cfg(test)]
mod tests {
    /// A server came, and went again: the others had its keys from before, changed meanwhile, and showed them.
    #[test]
    fn who_may_have_keys_of_which_it_was_not_told() {
        let gainers = |before: &[&str], now: &[&str]| {
            let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
            let (before, now): (Vec<String>, Vec<String>) = (owned(before), owned(now));
            super::gainers(&before, &now).into_iter().collect::<Vec<_>>().join(" ")
        };
        let two = "main Weighted a:1 1 b:1 1";
        let three = "main Weighted a:1 1 b:1 1 c:1 1";
        assert_eq!(gainers(&[], &[two]), "");
        assert_eq!(gainers(&[two], &[two]), "");
        assert_eq!(gainers(&[two], &[three]), "c:1", "one more takes keys, and gives none");
        assert_eq!(gainers(&[three], &[two]), "a:1 b:1");
        assert_eq!(gainers(&[two], &["main Ketama a:1 1 b:1 1"]), "a:1 b:1");
        assert_eq!(gainers(&[two], &["main Weighted a:1 1 b:1 2"]), "a:1 b:1");
        let uneven = "main Weighted a:1 1 b:1 2";
        assert_eq!(gainers(&[uneven], &[uneven]), "");
        assert_eq!(gainers(&[uneven], &["main Weighted a:1 1 b:1 2 c:1 1"]), "a:1 b:1 c:1");
        let gutter = "spare Weighted g:1 1 a:1 1";
        assert_eq!(gainers(&[two], &[two, gutter]), "a:1 g:1", "in another part than before");
        assert_eq!(gainers(&[two, gutter], &[two]), "");
    }
}
