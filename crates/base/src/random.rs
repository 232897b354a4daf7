//! The one generator whose numbers a seed decides: SplitMix64 (Steele, Lea, Flood 2014), which is
//! nine lines and the same on every machine and in every build. Placement, digests, plans and
//! recorded seeds depend on its numbers, so it is written out here and never changes; libraries
//! keep their generators free to. Not for secrets: those come from `env`'s.

/// One step from `state`, finalised: every bit that goes in reaches every bit that comes out.
#[inline]
pub fn mix(state: u64) -> u64 {
    let mut x = state.wrapping_add(STEP);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// An endless sequence of numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The same seed gives the same numbers.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    #[expect(clippy::should_implement_trait, reason = "an endless sequence is not an iterator")]
    #[inline]
    pub fn next(&mut self) -> u64 {
        let number = mix(self.0);
        self.0 = self.0.wrapping_add(STEP);
        number
    }

    /// In [0, n).
    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }
}

/// Bytes that repeat nowhere, decided by a seed: content for tests and benchmarks.
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random::new(mix(seed));
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&random.next().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_paper_for_ever() {
        let mut random = Random::new(1234567);
        let numbers = [0; 3].map(|_| random.next());
        assert_eq!(numbers, [6457827717110365317, 3203168211198807973, 9817491932198370423]);
        assert_eq!(mix(1234567), numbers[0]);
    }

    #[test]
    fn bytes_differ_from_seed_to_seed_and_begin_alike_for_one() {
        let some = bytes(1, 1001);
        assert_eq!(some.len(), 1001);
        assert_eq!(some[..10], bytes(1, 10));
        assert_ne!(some[..10], bytes(2, 10));
        // Not the sequence that a test with the same seed draws its decisions from.
        assert_ne!(some[..8], Random::new(1).next().to_le_bytes());
        assert!((0..1000).all(|_| Random::new(9).below(3) < 3));
    }
}
