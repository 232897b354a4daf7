//! What came of rides as of one entry, held against what images of that entry say of themselves: sub-range by
//! sub-range, wherever what was ridden begins and ends as images do. Asks nobody.

use super::{Range, Reader, Slab, Sums};
use holdfast_base::Result;
use std::cmp::Reverse;

/// Sums of what came, and of what was said to come.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    came: Sums,
    /// Of each range what one image of it says, once.
    said: Vec<(Range, Sums)>,
}

/// What a [`Tally`] comes to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tallied {
    /// Sub-ranges of which something else came than was said, in their order.
    pub differing: Vec<u8>,
    /// Those of which nothing was said that could be compared: no image begins and ends where what was ridden
    /// of it does.
    pub unsaid: Vec<u8>,
}

/// Ranges that do not overlap, in order, each made one with those that follow it without a gap.
pub fn runs(ranges: &[Range]) -> Vec<Range> {
    let mut all: Vec<Range> = ranges.iter().filter(|range| !range.is_empty()).copied().collect();
    all.sort_by_key(|range| range.low());
    let mut runs: Vec<Range> = Vec::new();
    for range in all {
        match runs.last_mut() {
            Some(last) if last.high() == range.low() => {
                *last = Range::new(last.low(), range.high())
            }
            _ => runs.push(range),
        }
    }
    runs
}

impl Tally {
    /// Of a ride that goes on, of which this came before.
    pub fn behind(came: Sums) -> Tally {
        Tally { came, said: Vec::new() }
    }

    /// A slab was received, with all values: older versions, too, or of all slabs the newest alone.
    pub fn came(&mut self, slab: &Reader<'_>) -> Result<()> {
        self.came.add_slab(slab)
    }

    /// The same, of one that was read here.
    pub fn read(&mut self, slab: &Slab) {
        self.came.add_made(slab);
    }

    /// An image of all of a range says this of its items.
    pub fn said(&mut self, range: Range, sums: &Sums) {
        if self.said.iter().all(|(of, _)| *of != range) {
            self.said.push((range, sums.clone()));
        }
    }

    /// What came, of all sub-ranges.
    pub fn sums(&self) -> &Sums {
        &self.came
    }

    /// Compares what came with what was said. Everything in these ranges was ridden, which do not overlap; older
    /// versions, too, where `all`.
    pub fn compared(&self, ridden: &[Range], all: bool) -> Tallied {
        let (runs, mut found) = (runs(ridden), Tallied::default());
        for s in 0..=u8::MAX {
            let pieces = runs.iter().map(|run| run.intersection(Range::of_sub_range(s)));
            let pieces = pieces.filter(|piece| !piece.is_empty());
            let said =
                pieces.map(|piece| self.said_of(s, piece)).try_fold((0u128, 0u128), |sum, said| {
                    let (newest, all) = said?;
                    Some((sum.0.wrapping_add(newest), sum.1.wrapping_add(all)))
                });
            let at = usize::from(s);
            let came = (self.came.newest()[at], self.came.all()[at]);
            match said {
                None => found.unsaid.push(s),
                Some(said) if said.0 != came.0 || all && said.1 != came.1 => {
                    found.differing.push(s)
                }
                Some(_) => {}
            }
        }
        found
    }

    /// What images say of a piece of a sub-range that lies side by side in them: of the newest items, and of
    /// all. Nothing where none begins or ends there.
    fn said_of(&self, s: u8, piece: Range) -> Option<(u128, u128)> {
        let (mut low, mut total) = (piece.low(), (0u128, 0u128));
        while low < piece.high() {
            let within = self
                .said
                .iter()
                .map(|(range, sums)| (range.intersection(Range::of_sub_range(s)), sums));
            let fits = within.filter(|(own, _)| own.low() == low && own.high() <= piece.high());
            let (own, sums) = fits
                .min_by_key(|(own, _)| Reverse(own.high()))
                .filter(|(own, _)| !own.is_empty())?;
            total.0 = total.0.wrapping_add(sums.newest()[usize::from(s)]);
            total.1 = total.1.wrapping_add(sums.all()[usize::from(s)]);
            low = own.high();
        }
        Some(total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slab::{Item, sub_range};
    use holdfast_base::random::{Random, mix};

    type Held = (u32, u64, bool);

    fn add(sums: &mut Sums, (hash, index, newest): Held) {
        let item = Item { hash, collection: 1, key: b"k", index, value: Some(b"v") };
        sums.add(&item, newest);
    }

    fn sums<'a>(items: impl Iterator<Item = &'a Held>) -> Sums {
        let mut sums = Sums::default();
        items.for_each(|item| add(&mut sums, *item));
        sums
    }

    /// Few sub-ranges, with borders of halves, thirds and quarters in them.
    fn hash(random: &mut Random) -> u32 {
        let border = [0, 1 << 31, (1u64 << 32) / 3, (1u64 << 32) / 4][random.below(4) as usize];
        (border + random.below(300)).saturating_sub(150).min(u64::from(u32::MAX)) as u32
    }

    /// Beside a plain model: whatever is ridden of whatever images, what was left out, doubled or changed is found
    /// where it lies, unless nothing was said of it; and nothing else is.
    #[test]
    fn what_is_missing_or_came_twice_is_found_wherever_something_was_said_of_it() {
        let (mut wrong, mut unsaid) = (0, 0);
        for seed in 0..500 {
            let mut random = Random::new(mix(seed));
            let mut items: Vec<Held> =
                (0..60).map(|index| (hash(&mut random), index + 1, random.below(3) > 0)).collect();
            let of = 1 + random.below(4) as u32;
            let ridden: Vec<Range> =
                (0..of).filter(|_| random.below(4) > 0).map(|part| Range::part(part, of)).collect();
            let mut tally = Tally::default();
            for _ in 0..1 + random.below(6) {
                let of = 1 + random.below(4) as u32;
                let range = Range::part(random.below(u64::from(of)) as u32, of);
                let held = items.iter().filter(|(hash, ..)| range.contains(*hash));
                tally.said(range, &sums(held));
            }
            let is_ridden = |hash: u32| ridden.iter().any(|range| range.contains(hash));
            items.retain(|(hash, ..)| is_ridden(*hash));
            let all = random.below(2) == 0;
            let mut differs = None;
            if !items.is_empty() && random.below(3) > 0 {
                let at = random.below(items.len() as u64) as usize;
                let item = items[at];
                match random.below(3) {
                    0 => drop(items.remove(at)),
                    1 => items.push(item),
                    _ => items[at].1 += 1000,
                }
                // Who asked for the newest alone is sent no others.
                differs = Some(sub_range(item.0)).filter(|_| all || item.2);
            }
            tally.came = sums(items.iter());
            let found = tally.compared(&ridden, all);
            unsaid += found.unsaid.len();
            match differs.filter(|s| !found.unsaid.contains(s)) {
                Some(s) => {
                    wrong += 1;
                    assert_eq!(found.differing, [s], "seed {seed}");
                }
                None => assert_eq!(found.differing, [0u8; 0], "seed {seed}"),
            }
        }
        assert!(wrong > 100 && unsaid > 1000, "{wrong} were wrong, {unsaid} unsaid");
    }

    #[test]
    fn images_side_by_side_say_what_is_between_their_borders_and_no_others() {
        let third = Range::part(1, 3);
        let items =
            [(third.low() as u32, 3, true), (third.high() as u32 - 1, 4, true), (7, 5, true)];
        let of = |range: Range| sums(items.iter().filter(|(hash, ..)| range.contains(*hash)));
        let mut tally = Tally { came: of(third), ..Tally::default() };
        // All of it is in there, and more.
        tally.said(Range::ALL, &of(Range::ALL));
        let borders = [sub_range(third.low() as u32), sub_range(third.high() as u32)];
        assert_eq!(tally.compared(&[third], true).unsaid, borders);
        tally.said(third, &of(third));
        assert_eq!(tally.compared(&[third], true), Tallied::default());
        // What comes from outside of what was asked for is not passed over.
        add(&mut tally.came, items[2]);
        assert_eq!(tally.compared(&[third], true).differing, [0]);
        let (low, high) =
            (Range::new(0, third.high()), Range::new(third.high(), Range::ALL.high()));
        let mut tally = Tally { came: of(Range::ALL), ..Tally::default() };
        tally.said(low, &of(low));
        assert_eq!(tally.compared(&[high, low], true).unsaid.len(), 256 - 0xaa);
        tally.said(high, &of(high));
        assert_eq!(tally.compared(&[high, low], true), Tallied::default());
    }
}
