//! A sum over records that does not depend on their order: equal before and after, or bytes were
//! lost, doubled or changed on the way. Not a defence against somebody who forges records.

const KEYS: [u64; 4] =
    [0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb, 0xd6e8_feb8_6659_fd93];

#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    product as u64 ^ (product >> 64) as u64
}

/// Of one record. Its words are multiplied independently of each other, so the processor works on
/// several at once.
#[inline]
pub fn hash(record: &[u8]) -> u64 {
    let (words, rest) = record.as_chunks::<16>();
    let (mut k0, mut k1) = (KEYS[0], KEYS[1]);
    let mut sum = fold(record.len() as u64 ^ KEYS[2], KEYS[3]);
    for word in words {
        let word = u128::from_le_bytes(*word);
        sum = sum.wrapping_add(fold(word as u64 ^ k0, (word >> 64) as u64 ^ k1));
        k0 = k0.wrapping_add(KEYS[2]);
        k1 = k1.wrapping_add(KEYS[3]);
    }
    if !rest.is_empty() {
        let word = match record.last_chunk::<16>() {
            // Overlapping what was summed already is cheaper than copying.
            Some(last) => u128::from_le_bytes(*last),
            None => {
                let mut last = [0; 16];
                last[..rest.len()].copy_from_slice(rest);
                u128::from_le_bytes(last)
            }
        };
        sum = sum.wrapping_add(fold(word as u64 ^ k0, (word >> 64) as u64 ^ k1));
    }
    fold(sum ^ KEYS[0], KEYS[1])
}

/// Number, bytes and hash of some records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    pub records: u64,
    pub bytes: u64,
    pub hash: u64,
}

impl Sum {
    #[inline]
    pub fn add(&mut self, record: &[u8]) {
        self.records += 1;
        self.bytes += record.len() as u64;
        self.hash = self.hash.wrapping_add(hash(record));
    }

    pub fn merge(&mut self, other: &Sum) {
        self.records += other.records;
        self.bytes += other.bytes;
        self.hash = self.hash.wrapping_add(other.hash);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_flipped_bit_and_any_length_changes_the_hash() {
        let bytes: Vec<u8> = (0..120u8).map(|i| i.wrapping_mul(37)).collect();
        for len in [0, 1, 8, 15, 16, 17, 31, 32, 100, 120] {
            let hash_of = hash(&bytes[..len]);
            for bit in 0..len * 8 {
                let mut other = bytes[..len].to_vec();
                other[bit / 8] ^= 1 << (bit % 8);
                assert_ne!(hash(&other), hash_of, "{len} bytes, bit {bit}");
            }
            let mut longer = bytes[..len].to_vec();
            longer.push(0);
            assert_ne!(hash(&longer), hash_of);
        }
    }

    #[test]
    fn the_sum_does_not_depend_on_the_order() {
        let (mut a, mut b) = (Sum::default(), Sum::default());
        ["one", "two", "two"].iter().for_each(|record| a.add(record.as_bytes()));
        ["two", "one", "two"].iter().for_each(|record| b.add(record.as_bytes()));
        assert_eq!(a, b);
        b.add(b"two");
        assert_ne!(a, b);
    }
}
