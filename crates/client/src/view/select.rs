//! Which views to ride: given those that there are, which part of the hash range to take from which.
//! Pure; the rules are Beam's: relevant parts only; more and smaller views before fewer and larger
//! ones, for their rates add up; of a chosen view all that is wanted; none that lags behind others,
//! and none that the caller leaves out; and rides on replicas that are set apart for them.

use holdfast_base::ids::Index;
use holdfast_base::{Error, Result};
use holdfast_wire::slab::Range;

/// A disk view that could be ridden.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Of keys' hashes.
    pub range: Range,
    /// The last entry that it has applied.
    pub applied: Index,
    /// Nothing else is asked of it: who can be ridden is ridden there first.
    pub is_apart: bool,
}

/// What to take from one of the candidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// Its place in the list.
    pub candidate: usize,
    /// Of keys' hashes.
    pub range: Range,
}

/// Entries that a view may be behind another one of the same keys and still be ridden.
const BEHIND_MAX: u64 = 10_000;

/// Covers `wanted`, each hash once. Of views with equal parts the first one in the list is taken: who
/// has many riders to spread lists them in another order for each. Fails where no view has a part.
pub fn select(candidates: &[Candidate], wanted: Range) -> Result<Vec<Chosen>> {
    let bytes = |range: Range| range.high() - range.low();
    // Whether another view could be ridden instead which is much further.
    let lags = |at: &usize| {
        let own = &candidates[*at];
        let instead = |other: &Candidate| {
            other.range.low() <= own.range.low()
                && own.range.high() <= other.range.high()
                && other.applied.0 > own.applied.0 + BEHIND_MAX
        };
        candidates.iter().any(instead)
    };
    let mut order: Vec<usize> = (0..candidates.len())
        .filter(|at| candidates[*at].range.overlaps(wanted))
        .filter(|at| !lags(at))
        .collect();
    order.sort_by_key(|at| (!candidates[*at].is_apart, bytes(candidates[*at].range)));
    // The smallest first, each with what is still missing.
    let mut missing = vec![wanted];
    let mut used = Vec::new();
    for at in order {
        let (rest, taken) = without(&missing, candidates[at].range);
        if taken {
            missing = rest;
            used.push(at);
        }
    }
    if let Some(hole) = missing.iter().find(|hole| !hole.is_empty()) {
        return Err(Error::not_found(format!(
            "choose views to ride: none has hashes from {} to {}: `holdfast view status` says which \
             there are, `holdfast view run disk` runs one",
            hole.low(),
            hole.high()
        )));
    }
    // Of those that are used, the largest first with all that it has; some are not needed then.
    used.sort_by_key(|at| (std::cmp::Reverse(bytes(candidates[*at].range)), *at));
    let mut missing = vec![wanted];
    let mut chosen = Vec::new();
    for at in used {
        let own = candidates[at].range;
        let parts =
            missing.iter().map(|hole| hole.intersection(own)).filter(|part| !part.is_empty());
        chosen.extend(parts.map(|range| Chosen { candidate: at, range }));
        missing = without(&missing, own).0;
    }
    Ok(chosen)
}

/// What is left of ranges without another one, and whether they had anything of it.
fn without(ranges: &[Range], other: Range) -> (Vec<Range>, bool) {
    let mut rest = Vec::new();
    let mut taken = false;
    for range in ranges {
        let both = range.intersection(other);
        if both.is_empty() {
            rest.push(*range);
            continue;
        }
        taken = true;
        rest.extend([Range::new(range.low(), both.low()), Range::new(both.high(), range.high())]);
    }
    rest.retain(|range| !range.is_empty());
    (rest, taken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_base::random::mix;

    fn of(parts: &[(u32, u32)]) -> Vec<Candidate> {
        let candidate = |(part, of): &(u32, u32)| Candidate {
            range: Range::part(*part, *of),
            applied: Index(7),
            is_apart: false,
        };
        parts.iter().map(candidate).collect()
    }

    fn places(candidates: &[Candidate], wanted: Range) -> Vec<usize> {
        let mut chosen: Vec<usize> =
            select(candidates, wanted).unwrap().iter().map(|one| one.candidate).collect();
        chosen.sort_unstable();
        chosen
    }

    #[test]
    fn smaller_views_are_ridden_first_and_what_is_ridden_is_used() {
        let quarters = [(0, 4), (1, 4), (2, 4), (3, 4)];
        let all = of(&[&[(0, 1)], &quarters[..]].concat());
        assert_eq!(places(&all, Range::ALL), [1, 2, 3, 4], "four at once");
        assert_eq!(places(&all, Range::part(1, 4)), [2], "the relevant one alone");
        // The half is ridden anyway: it gives all that it has.
        let some = of(&[(0, 4), (0, 2), (1, 2)]);
        assert_eq!(places(&some, Range::ALL), [1, 2]);
        assert_eq!(places(&some, Range::part(0, 8)), [0]);
        // A sixth lies in two quarters.
        assert_eq!(places(&of(&quarters), Range::part(1, 6)), [0, 1]);
        let hole = select(&of(&[(0, 4), (1, 2)]), Range::ALL).unwrap_err();
        assert!(hole.message.contains("1073741824 to 2147483648"), "{hole}");
        assert!(select(&[], Range::ALL).is_err());
    }

    #[test]
    fn laggards_are_left_out_where_another_view_has_their_keys() {
        let mut all = of(&[(0, 2), (1, 2), (0, 1)]);
        all[0].applied = Index(1);
        assert_eq!(places(&all, Range::ALL), [0, 1], "not far behind");
        all[2].applied = Index(2 + BEHIND_MAX);
        all[1].applied = all[2].applied;
        assert_eq!(places(&all, Range::ALL), [2]);
        assert_eq!(places(&all, Range::part(1, 2)), [1]);
        all.pop();
        assert_eq!(places(&all, Range::ALL), [0, 1], "nobody else has it");
    }

    #[test]
    fn replicas_that_are_set_apart_are_ridden_first() {
        let mut all = of(&[(0, 2), (0, 2), (1, 2)]);
        all[1].is_apart = true;
        assert_eq!(places(&all, Range::ALL), [1, 2]);
    }

    /// Whatever there is: each hash that is wanted is taken once, from a view that has it.
    #[test]
    fn every_hash_is_taken_once() {
        let mut chosen_of_several = 0;
        for seed in 0..2000u64 {
            let draw = |n: u64, below: u64| mix(seed << 8 | n) % below;
            let candidates: Vec<Candidate> = (0..1 + draw(0, 8))
                .map(|n| {
                    let of = 1 + draw(10 + n, 6) as u32;
                    Candidate {
                        range: Range::part(draw(20 + n, of as u64) as u32, of),
                        applied: Index(draw(30 + n, 3 * BEHIND_MAX)),
                        is_apart: draw(40 + n, 4) == 0,
                    }
                })
                .collect();
            let of = 1 + draw(1, 7) as u32;
            let wanted = Range::part(draw(2, of as u64) as u32, of);
            let chosen = select(&candidates, wanted);
            // Borders, and hashes between them.
            let borders = candidates.iter().flat_map(|one| [one.range.low(), one.range.high()]);
            let all: Vec<u64> = borders.chain([wanted.low(), wanted.high()]).collect();
            let hashes = all.iter().flat_map(|at| [at.checked_sub(1), Some(*at)]).flatten();
            for hash in hashes.filter_map(|hash| u32::try_from(hash).ok()) {
                let Ok(chosen) = &chosen else { continue };
                let takers = chosen.iter().filter(|one| one.range.contains(hash));
                assert!(takers.clone().all(|one| candidates[one.candidate].range.contains(hash)));
                assert_eq!(takers.count(), wanted.contains(hash) as usize, "seed {seed}, {hash}");
            }
            if let Err(e) = chosen {
                let somebody = |hash: u32| candidates.iter().any(|one| one.range.contains(hash));
                let hole = all.iter().filter_map(|at| u32::try_from(*at).ok());
                assert!(hole.filter(|h| wanted.contains(*h)).any(|h| !somebody(h)), "{e}");
            } else {
                chosen_of_several += (chosen.unwrap().len() > 1) as u32;
            }
        }
        assert!(chosen_of_several > 100, "{chosen_of_several}");
    }
}
