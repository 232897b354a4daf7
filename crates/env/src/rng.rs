//! Randomness: cookies, store ids, session ids. Never for placement inside a fold.

use crate::locks::HoldMutex;
use holdfast_base::random::Random;
use std::sync::Mutex;

pub trait Rng: Send + Sync + 'static {
    fn next_u64(&self) -> u64;
}

/// The kernel's generator.
pub struct RealRng;

impl Rng for RealRng {
    fn next_u64(&self) -> u64 {
        let mut bytes = [0u8; 8];
        // SAFETY: the pointer and length describe `bytes`, which outlives the call.
        let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        // Reads of up to 256 bytes are never cut short once the pool is initialised (getrandom(2)).
        assert_eq!(got, 8, "the kernel's random number generator failed");
        u64::from_le_bytes(bytes)
    }
}

/// The same seed gives the same numbers, everywhere: [`Random`] for whoever shares it.
pub struct SeededRng {
    state: Mutex<Random>,
}

impl SeededRng {
    pub fn new(seed: u64) -> SeededRng {
        SeededRng { state: Mutex::new(Random::new(seed)) }
    }
}

impl Rng for SeededRng {
    fn next_u64(&self) -> u64 {
        self.state.held().next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_repeat_and_the_kernel_does_not() {
        let (a, b) = (SeededRng::new(1234567), SeededRng::new(1234567));
        assert_eq!(a.next_u64(), 6457827717110365317);
        assert_eq!(b.next_u64(), 6457827717110365317);
        assert_ne!(RealRng.next_u64(), RealRng.next_u64());
    }
}
