//! A small mutation fuzzer for decoders: seeded changes of valid samples, fed to a check that
//! must not panic. It knows nothing of formats and watches no coverage; what it finds, it prints
//! as a seed that replays. `cargo test` runs a fixed number of rounds, `make fuzz` runs longer.

use holdfast_env::{Clock, RealClock, RealRng, Rng, SeededRng};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Rounds of a target in an ordinary test run.
const ROUNDS: u64 = 100_000;
/// When set, targets run for this many seconds from a random seed instead.
const SECONDS: &str = "HOLDFAST_FUZZ_SECONDS";
/// Changes stacked in one round.
const CHANGES_MAX: u64 = 4;
/// Inputs do not grow past this.
const INPUT_BYTES_MAX: usize = 1 << 16;
/// Values at the borders of lengths, counts and flags.
const INTERESTING: [u64; 10] =
    [0, 1, 0x7f, 0x80, 0xff, 0xffff, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, u64::MAX];

/// Runs `check` on mutations of `samples`. A panic in it is reported with the seed for [`once`]
/// and the input, then goes on.
pub fn run(target: &str, samples: &[Vec<u8>], check: impl FnMut(&[u8])) {
    run_rounds(target, ROUNDS, samples, check);
}

/// As [`run`], for checks that take their time: so many rounds in an ordinary test run.
pub fn run_rounds(target: &str, rounds: u64, samples: &[Vec<u8>], mut check: impl FnMut(&[u8])) {
    for sample in samples {
        check(sample);
    }
    let seconds = std::env::var(SECONDS).ok().and_then(|text| text.parse::<u64>().ok());
    let Some(seconds) = seconds else {
        for seed in 0..rounds {
            once(target, seed, samples, &mut check);
        }
        return;
    };
    let clock = RealClock::new();
    let first = RealRng.next_u64();
    let mut rounds = 0;
    while clock.monotonic_ns() < seconds * 1_000_000_000 {
        once(target, first.wrapping_add(rounds), samples, &mut check);
        rounds += 1;
    }
    println!("fuzz {target}: {rounds} rounds from seed {first}");
}

/// One round: `check` on the mutation that `seed` makes of `samples`.
pub fn once(target: &str, seed: u64, samples: &[Vec<u8>], check: &mut impl FnMut(&[u8])) {
    let input = mutate(&SeededRng::new(seed), samples);
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| check(&input))) {
        eprintln!("fuzz {target}: seed {seed} panics with input `{}`", input.escape_ascii());
        resume_unwind(panic);
    }
}

/// A sample with one to four changes.
fn mutate(rng: &dyn Rng, samples: &[Vec<u8>]) -> Vec<u8> {
    let any = |below: usize| (rng.next_u64() % below.max(1) as u64) as usize;
    let mut bytes = samples[any(samples.len())].clone();
    for _ in 0..=rng.next_u64() % CHANGES_MAX {
        let at = any(bytes.len() + 1);
        let len = any((bytes.len() - at).min(64) + 1);
        match any(6) {
            0 if at < bytes.len() => bytes[at] ^= 1 << any(8),
            1 if at < bytes.len() => bytes[at] = rng.next_u64() as u8,
            2 => bytes.truncate(at),
            3 => {
                let copy = bytes[at..at + len].to_vec();
                let to = any(bytes.len() + 1);
                bytes.splice(to..to, copy);
            }
            4 => {
                let other = &samples[any(samples.len())];
                bytes.truncate(at);
                bytes.extend_from_slice(&other[any(other.len() + 1)..]);
            }
            _ => {
                let value = INTERESTING[any(INTERESTING.len())].to_le_bytes();
                let width = [1, 2, 4, 8][any(4)].min(bytes.len() - at);
                bytes[at..at + width].copy_from_slice(&value[..width]);
            }
        }
        bytes.truncate(INPUT_BYTES_MAX);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_same_seed_gives_the_same_input() {
        let samples = [b"hello".to_vec(), b"world, and more of it".to_vec()];
        let inputs = |from: u64| -> Vec<Vec<u8>> {
            (from..from + 500).map(|seed| mutate(&SeededRng::new(seed), &samples)).collect()
        };
        assert_eq!(inputs(0), inputs(0));
        let distinct: BTreeSet<Vec<u8>> = inputs(0).into_iter().collect();
        assert!(distinct.len() > 300, "only {} of 500 differ", distinct.len());
        assert!(distinct.iter().any(|input| input.len() < 5));
        assert!(distinct.iter().any(|input| input.len() > 21));
    }

    #[test]
    fn a_decoder_that_trusts_a_length_is_caught() {
        let found = catch_unwind(|| {
            run("trusting", &[vec![3, 1, 2, 3]], |input| {
                if let Some((&len, rest)) = input.split_first() {
                    let _ = &rest[..len as usize];
                }
            });
        });
        assert!(found.is_err());
    }

    #[test]
    fn no_samples_are_no_reason_to_panic() {
        mutate(&SeededRng::new(1), &[Vec::new()]);
    }
}
