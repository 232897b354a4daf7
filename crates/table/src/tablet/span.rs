//! Which keys a tablet has: a range of their hashes; and to which tablets it has given those that it had. Pure.

use crate::name::hash_of;
use holdfast_base::codec_struct;

/// The upper part of a tablet's hashes, and the tablet that gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Half {
    /// The first hash of it.
    pub at: u32,
    pub child: u16,
}
codec_struct!(Half { at, child });

/// A tablet's range of hashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    pub first: u32,
    /// It has this one, too.
    pub last: u32,
    /// What is being given away: nothing is decided about it, and it is read here until it is.
    pub leaving: Option<Half>,
    /// What was given away, in order.
    pub left: Vec<Half>,
}
codec_struct!(Span { first, last, leaving, left });

impl Span {
    /// All hashes.
    pub fn whole() -> Span {
        Span::between(0, u32::MAX)
    }

    /// From one hash to another one, both included.
    pub fn between(first: u32, last: u32) -> Span {
        Span { first, last, leaving: None, left: Vec::new() }
    }

    /// Those of one of so many tablets, as a table is made: what [`crate::name::tablet_of`] says.
    pub fn of(tablet: u16, tablets: u16) -> Span {
        assert!(tablet < tablets, "tablet {tablet} of {tablets}");
        let border = |number: u64| (number << 32).div_ceil(u64::from(tablets));
        let first = border(u64::from(tablet)) as u32;
        Span::between(first, (border(u64::from(tablet) + 1) - 1) as u32)
    }

    /// Whether the tablet has the key.
    pub fn has(&self, key: &[u8]) -> bool {
        let is_all = (self.first, self.last) == (0, u32::MAX);
        is_all || (self.first..=self.last).contains(&hash_of(key))
    }

    /// Whether the key is being given away.
    pub fn is_leaving(&self, key: &[u8]) -> bool {
        self.leaving.is_some_and(|half| hash_of(key) >= half.at)
    }

    /// Whether it can be split there: of both parts something is left.
    pub fn can_be_split_at(&self, at: u32) -> bool {
        self.first < at && at <= self.last
    }

    /// Where its upper half begins; nothing where it has a single hash.
    pub fn middle(&self) -> Option<u32> {
        let at = self.first + (self.last - self.first) / 2 + 1;
        (self.first < self.last).then_some(at)
    }

    /// From here on this half is being given away; false where that cannot be.
    pub(super) fn begin_to_leave(&mut self, half: Half) -> bool {
        let can = self.leaving.is_none() && self.can_be_split_at(half.at);
        if can {
            self.leaving = Some(half);
        }
        can
    }

    /// The tablet of this number has the half that was being given to it, which is answered.
    pub(super) fn leave(&mut self, child: u16) -> Option<Half> {
        let half = self.leaving.take_if(|half| half.child == child)?;
        self.last = half.at - 1;
        self.left.push(half);
        Some(half)
    }
}

/// A table's tablets by their hashes, in order: first hash, last hash, number. It was made with so many; whatever was
/// given away since, the tablet knows that gave it.
///
/// # Errors
/// What `span_of` says of a tablet.
pub fn cut<E>(
    tablets: u16,
    mut span_of: impl FnMut(u16) -> Result<Span, E>,
) -> Result<Vec<(u32, u32, u16)>, E> {
    let mut left: Vec<u16> = (0..tablets).collect();
    let mut all = Vec::with_capacity(left.len());
    while let Some(number) = left.pop() {
        let span = span_of(number)?;
        // A tablet is numbered above the one that it was cut off.
        left.extend(span.left.iter().map(|half| half.child).filter(|child| *child > number));
        all.push((span.first, span.last, number));
    }
    all.sort_unstable();
    Ok(all)
}

/// Which of these tablets has a hash.
pub fn number_at(cut: &[(u32, u32, u16)], hash: u32) -> u16 {
    let behind = cut.partition_point(|(first, _, _)| *first <= hash);
    cut[behind.saturating_sub(1)].2
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::tablet_of;
    use holdfast_base::random::Random;
    use std::convert::Infallible;

    fn cut_of(tablets: u16, spans: &[Span]) -> Vec<(u32, u32, u16)> {
        cut(tablets, |number| Ok::<_, Infallible>(spans[usize::from(number)].clone())).unwrap()
    }

    /// Every hash is one tablet's, and as long as nothing was split the one of before.
    #[test]
    fn spans_of_a_table_that_was_made_are_its_tablets_keys() {
        let mut random = Random::new(1);
        for tablets in 1..=64 {
            let spans: Vec<Span> = (0..tablets).map(|tablet| Span::of(tablet, tablets)).collect();
            let all = cut_of(tablets, &spans);
            assert_eq!((all[0].0, all[all.len() - 1].1), (0, u32::MAX));
            assert!(all.windows(2).all(|two| two[0].1 + 1 == two[1].0), "{all:?}");
            for _ in 0..200 {
                let key = random.next().to_le_bytes();
                let number = number_at(&all, hash_of(&key));
                assert_eq!(number, tablet_of(&key, tablets));
                assert!(spans[usize::from(number)].has(&key));
            }
        }
    }

    /// Splits at drawn borders, of whichever tablet, down to tablets of one hash: each hash stays one tablet's, whose
    /// span says so, and nothing is split where one part would have nothing.
    #[test]
    fn whatever_is_split_each_hash_is_one_tablets() {
        for seed in 0..50 {
            let mut random = Random::new(seed);
            let tablets = 1 + random.below(3) as u16;
            let mut spans: Vec<Span> =
                (0..tablets).map(|tablet| Span::of(tablet, tablets)).collect();
            for _ in 0..40 {
                let (count, child) = (spans.len() as u64, spans.len() as u16);
                let parent = random.below(count) as usize;
                let width = u64::from(spans[parent].last - spans[parent].first);
                let at = match random.below(3) {
                    // The last hash alone, or all but the first.
                    0 => spans[parent].last,
                    1 => spans[parent].first + u32::from(width > 0),
                    _ => spans[parent].first + (random.next() % (width + 1)) as u32,
                };
                let can = at > spans[parent].first;
                let last = spans[parent].last;
                assert_eq!(spans[parent].begin_to_leave(Half { at, child }), can);
                assert_eq!(spans[parent].leave(child).is_some(), can);
                assert_eq!(spans[parent].leave(child), None, "twice");
                if can {
                    spans.push(Span::between(at, last));
                }
            }
            let all = cut_of(tablets, &spans);
            assert_eq!(all.len(), spans.len());
            assert_eq!((all[0].0, all[all.len() - 1].1), (0, u32::MAX));
            assert!(all.windows(2).all(|two| two[0].1 + 1 == two[1].0), "{all:?}");
            for (first, last, number) in &all {
                let span = &spans[usize::from(*number)];
                assert_eq!((*first, *last), (span.first, span.last));
                assert!([*first, *last].iter().all(|hash| number_at(&all, *hash) == *number));
            }
        }
    }

    #[test]
    fn the_middle_leaves_something_on_both_sides() {
        assert_eq!(Span::whole().middle(), Some(1 << 31));
        assert_eq!(Span::between(6, 7).middle(), Some(7));
        assert_eq!(Span::between(7, 7).middle(), None);
        let mut span = Span::between(6, 7);
        assert!(!span.begin_to_leave(Half { at: 6, child: 1 }));
        assert!(!span.begin_to_leave(Half { at: 8, child: 1 }));
        assert!(span.begin_to_leave(Half { at: 7, child: 1 }));
        assert!(!span.begin_to_leave(Half { at: 7, child: 2 }), "one at a time");
        assert_eq!(span.leave(2), None);
        assert_eq!(span.leave(1), Some(Half { at: 7, child: 1 }));
    }
}
