//! Which of several next hops is used. Each spool has an order of its own among them, by rendezvous (Thaler
//! and Ravishankar 1998): so spools share hops out evenly, and where one is away its spools go to all the
//! others, and nobody else's go elsewhere. A hop that failed rests, and is then tried again. Pure.

use holdfast_base::random::mix;
use std::fmt::Display;

/// How long a hop rests that failed; twice as long with each further time.
const REST_NS: u64 = 1_000_000_000;
/// The longest rest: one that is back is used again after so long.
const REST_NS_MAX: u64 = 64 * REST_NS;

/// See the module. The first way is the one that the spool likes best.
#[derive(Debug)]
pub struct Ways<T> {
    ways: Vec<Way<T>>,
}

#[derive(Debug)]
struct Way<T> {
    to: T,
    /// In a row.
    failures: u32,
    rests_until_ns: u64,
}

impl<T: Display> Ways<T> {
    /// In the order that `key` makes of their names.
    pub fn new(to: Vec<T>, key: u64) -> Ways<T> {
        let mut to: Vec<(u64, T)> = to.into_iter().map(|to| (weight(key, &to), to)).collect();
        // Two of one weight stay in the order in which they were named.
        to.sort_by_key(|(weight, _)| std::cmp::Reverse(*weight));
        let way = |(_, to)| Way { to, failures: 0, rests_until_ns: 0 };
        Ways { ways: to.into_iter().map(way).collect() }
    }

    /// The first that does not rest; where all do, the one that rests no longer than the others. Nothing
    /// where there is none.
    pub fn best(&self, now_ns: u64) -> Option<usize> {
        let rests = |way: &Way<T>| way.rests_until_ns.max(now_ns);
        (0..self.ways.len()).min_by_key(|at| rests(&self.ways[*at]))
    }

    /// What is there.
    pub fn to(&self, at: usize) -> &T {
        &self.ways[at].to
    }

    /// Nothing was to be had there.
    pub fn failed(&mut self, at: usize, now_ns: u64) {
        let way = &mut self.ways[at];
        let rest_ns = REST_NS.saturating_mul(1 << way.failures.min(16)).min(REST_NS_MAX);
        way.failures = way.failures.saturating_add(1);
        way.rests_until_ns = now_ns + rest_ns;
    }

    /// Something was brought there.
    pub fn worked(&mut self, at: usize) {
        let way = &mut self.ways[at];
        (way.failures, way.rests_until_ns) = (0, 0);
    }
}

fn weight(key: u64, to: &impl Display) -> u64 {
    to.to_string().bytes().fold(mix(key), |weight, byte| mix(weight ^ u64::from(byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn hops_are_shared_out_and_one_that_is_away_is_everybodys_burden() {
        let names = ["10.0.0.1:1464", "10.0.0.2:1464", "10.0.0.3:1464", "10.0.0.4:1464"];
        let (mut first, mut second) = ([0; 4], [[0; 4]; 4]);
        let place = |name: &str| names.iter().position(|one| *one == name).unwrap();
        for key in 0..4000 {
            let mut ways = Ways::new(names.to_vec(), key);
            let one = place(ways.to(ways.best(0).unwrap()));
            ways.failed(0, 0);
            first[one] += 1;
            second[one][place(ways.to(ways.best(0).unwrap()))] += 1;
        }
        assert!(first.iter().all(|n| (850..1150).contains(n)), "{first:?}");
        for (one, others) in second.iter().enumerate() {
            let shares = others.iter().enumerate().filter(|(at, _)| *at != one);
            assert!(shares.clone().all(|(_, n)| (230..440).contains(n)), "{others:?}");
        }
        // Where one is taken out, nobody else's first way changes.
        let fewer: Vec<_> = names[..3].to_vec();
        for key in 0..1000 {
            let before = *Ways::new(names.to_vec(), key).to(0);
            let after = *Ways::new(fewer.clone(), key).to(0);
            assert!(before == names[3] || before == after, "{key}");
        }
    }

    #[test]
    fn one_that_failed_rests_and_is_tried_again() {
        let mut ways = Ways::new(vec!["a", "b"], 7);
        assert_eq!(ways.best(0), Some(0));
        ways.failed(0, 0);
        assert_eq!((ways.best(0), ways.best(SECOND)), (Some(1), Some(0)));
        // It fails again, and rests for longer.
        ways.failed(0, SECOND);
        assert_eq!((ways.best(2 * SECOND), ways.best(3 * SECOND)), (Some(1), Some(0)));
        // Where all rest, nobody waits: the one whose rest is over first is tried.
        ways.failed(1, SECOND);
        assert_eq!(ways.best(SECOND), Some(1));
        (0..40).for_each(|_| ways.failed(0, 0));
        assert_eq!(ways.best(64 * SECOND), Some(0), "no rest is longer");
        ways.failed(0, 64 * SECOND);
        ways.worked(0);
        assert_eq!(ways.best(64 * SECOND), Some(0));
        assert_eq!(Ways::<&str>::new(vec![], 1).best(0), None);
    }
}
