//! The hash of a key: folded multiplications (the wyhash family), with a secret from the start of
//! the process, so that nobody outside can choose keys that share a bucket.

/// The secret.
#[derive(Clone, Copy, Debug)]
pub struct Hasher {
    seed: u64,
}

const A: u64 = 0xa076_1d64_78bd_642f;
const B: u64 = 0xe703_7ed1_a0b4_28db;

#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

#[inline(always)]
fn word(bytes: &[u8]) -> u64 {
    bytes.first_chunk::<8>().map_or(0, |chunk| u64::from_le_bytes(*chunk))
}

impl Hasher {
    pub fn new(seed: u64) -> Hasher {
        Hasher { seed: fold(seed ^ A, B) }
    }

    #[inline(always)]
    pub fn hash(&self, key: &[u8]) -> u64 {
        let len = key.len();
        let (a, b, mut state) = match len {
            17.. => {
                let mut state = self.seed;
                let mut rest = key;
                while rest.len() > 16 {
                    state = fold(word(rest) ^ A, word(&rest[8..]) ^ state);
                    rest = &rest[16..];
                }
                (word(&key[len - 16..]), word(&key[len - 8..]), state)
            }
            8.. => (word(key), word(&key[len - 8..]), self.seed),
            4.. => {
                let half = |bytes: &[u8]| {
                    bytes.first_chunk::<4>().map_or(0, |c| u64::from(u32::from_le_bytes(*c)))
                };
                (half(key), half(&key[len - 4..]), self.seed)
            }
            1.. => {
                let (first, middle, last) = (key[0], key[len / 2], key[len - 1]);
                let all = u64::from(first) << 16 | u64::from(middle) << 8 | u64::from(last);
                (all, 0, self.seed)
            }
            0 => (0, 0, self.seed),
        };
        state ^= len as u64;
        fold(B ^ state, fold(a ^ B, b ^ state) ^ A)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_byte_and_the_length_count() {
        let hasher = Hasher::new(1);
        for len in 1..60 {
            let key = vec![b'a'; len];
            let mut seen = HashSet::from([hasher.hash(&key), hasher.hash(&key[1..])]);
            assert_eq!(seen.len(), 2, "{len}");
            for i in 0..len {
                let mut other = key.clone();
                other[i] ^= 1;
                assert!(seen.insert(hasher.hash(&other)), "byte {i} of {len}");
            }
        }
        assert_ne!(Hasher::new(1).hash(b"key"), Hasher::new(2).hash(b"key"));
    }

    #[test]
    fn numbered_keys_spread_over_low_and_high_bits() {
        let hasher = Hasher::new(7);
        let (mut low, mut high) = ([0u32; 256], [0u32; 256]);
        for i in 0..256 * 256 {
            let hash = hasher.hash(format!("key-{i:012}").as_bytes());
            low[hash as usize & 255] += 1;
            high[(hash >> 56) as usize] += 1;
        }
        for count in low.iter().chain(&high) {
            assert!((150..370).contains(count), "{count} of 256 expected");
        }
    }
}
