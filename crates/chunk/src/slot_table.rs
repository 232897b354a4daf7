//! From slot to offset in about two bytes an object: Elias-Fano (Elias 1974, Fano 1971) over the
//! offsets of the slots that are present, and a bitmap of those. Slot order is offset order.
//! Pure and immutable; a sealed packed chunk has one in memory.

use holdfast_env::planted;
use holdfast_env::trial::Knob;

/// Select samples: the position of every 512th one-bit of the upper half.
static SAMPLE: Knob = Knob::new("chunk.slot-sample", 512, &[1, 2, 5]);

#[derive(Clone, Debug, Default)]
pub struct SlotTable {
    slots: u32,
    /// One bit a slot, and for each word the number of ones before it. Both stay empty while all
    /// slots are present, which is the state of every chunk that was never compacted.
    present: Vec<u64>,
    present_before: Vec<u32>,
    count: u32,
    /// Low `low_bits` bits of each offset, packed.
    low: Vec<u64>,
    low_bits: u32,
    /// For the i-th offset a one at `(offset >> low_bits) + i`.
    high: Vec<u64>,
    samples: Vec<u32>,
}

impl SlotTable {
    /// `offsets[slot]` in slot order; `None` for slots that are gone. Offsets must increase.
    pub fn new(offsets: impl ExactSizeIterator<Item = Option<u32>>) -> SlotTable {
        let slots = offsets.len() as u32;
        let mut present = vec![0u64; slots.div_ceil(64) as usize];
        let mut values = Vec::new();
        for (slot, offset) in offsets.enumerate() {
            if let Some(offset) = offset {
                assert!(values.last().is_none_or(|&l| l < offset), "offsets increase with slots");
                values.push(offset);
                present[slot / 64] |= 1 << (slot % 64);
            }
        }
        let mut table = SlotTable { slots, count: values.len() as u32, ..SlotTable::default() };
        if table.count < slots {
            let mut before = 0;
            for word in &present {
                table.present_before.push(before);
                before += word.count_ones();
            }
            table.present = present;
        }
        table.encode(&values);
        table
    }

    fn encode(&mut self, values: &[u32]) {
        let Some(&last) = values.last() else { return };
        self.low_bits = (last / values.len() as u32).checked_ilog2().unwrap_or(0);
        let low_words = (values.len() * self.low_bits as usize).div_ceil(64);
        // One word more, so that reading two neighbours never leaves the vector.
        self.low = vec![0; low_words + 1];
        self.high = vec![0; ((last >> self.low_bits) as usize + values.len()).div_ceil(64)];
        for (i, &value) in values.iter().enumerate() {
            let low = (value & ((1 << self.low_bits) - 1)) as u64;
            let bit = i * self.low_bits as usize;
            self.low[bit / 64] |= low << (bit % 64);
            if bit % 64 + self.low_bits as usize > 64 {
                self.low[bit / 64 + 1] |= low >> (64 - bit % 64);
            }
            let one = (value >> self.low_bits) as usize + i;
            self.high[one / 64] |= 1 << (one % 64);
            if i % SAMPLE.size() == 0 {
                self.samples.push(one as u32);
                if i > 0 {
                    SAMPLE.cross();
                }
            }
        }
    }

    /// Slots present.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Offset of `slot`, and of the next slot present if there is one.
    pub fn get(&self, slot: u32) -> Option<(u32, Option<u32>)> {
        let i = self.rank_of(slot)?;
        let mut ones = self.ones_from(i);
        let offset = self.value(i, ones.next()?);
        Some((offset, ones.next().map(|bit| self.value(i + 1, bit))))
    }

    /// Slots present, in order, from `from` on.
    pub fn present_from(&self, from: u32) -> impl Iterator<Item = u32> + '_ {
        (from..self.slots).filter(|&slot| self.rank_of(slot).is_some())
    }

    /// How many present slots come before `slot`, if it is present itself.
    fn rank_of(&self, slot: u32) -> Option<usize> {
        if slot >= self.slots {
            return None;
        }
        if self.present.is_empty() {
            return Some(slot as usize);
        }
        let (word, bit) = (slot as usize / 64, slot % 64);
        if self.present[word] >> bit & 1 == 0 {
            return None;
        }
        let before = self.present[word] & ((1 << bit) - 1);
        Some((self.present_before[word] + before.count_ones()) as usize)
    }

    fn value(&self, i: usize, one: usize) -> u32 {
        let high = ((one - i) as u32) << self.low_bits;
        let bit = i * self.low_bits as usize;
        let mut low = self.low[bit / 64] >> (bit % 64);
        if bit % 64 + self.low_bits as usize > 64 && !planted!("chunk.slot-offset-across-words") {
            low |= self.low[bit / 64 + 1] << (64 - bit % 64);
        }
        high | (low as u32 & ((1 << self.low_bits) - 1))
    }

    /// Positions of the ones of `high`, beginning with the `i`-th.
    fn ones_from(&self, i: usize) -> impl Iterator<Item = usize> + '_ {
        let sample = SAMPLE.size();
        let start = self.samples.get(i / sample).map_or(self.high.len() * 64, |&s| s as usize);
        let mut skip = i % sample;
        let mut word_at = start / 64;
        let mut word = self.high.get(word_at).copied().unwrap_or(0) & (!0 << (start % 64));
        // Whole words first: a word holds up to 64 ones.
        while skip >= word.count_ones() as usize && word_at + 1 < self.high.len() {
            skip -= word.count_ones() as usize;
            word_at += 1;
            word = self.high[word_at];
        }
        (0..skip).for_each(|_| word &= word.wrapping_sub(1));
        std::iter::from_fn(move || {
            while word == 0 {
                word_at += 1;
                word = *self.high.get(word_at)?;
            }
            let one = word_at * 64 + word.trailing_zeros() as usize;
            word &= word - 1;
            Some(one)
        })
    }

    /// Memory it takes.
    pub fn bytes(&self) -> usize {
        size_of::<SlotTable>()
            + 8 * (self.present.len() + self.low.len() + self.high.len())
            + 4 * (self.present_before.len() + self.samples.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agrees_with_a_vector(
            steps in prop::collection::vec((0u32..5000, any::<bool>()), 0..3000),
            all in any::<bool>(),
            sample in prop::sample::select(vec![1u64, 2, 5, 512]),
        ) {
            let _trial = holdfast_env::trial::Trial::new().with(&SAMPLE, sample).enter();
            let mut at = 0;
            let model: Vec<Option<u32>> = steps
                .iter()
                .map(|&(step, there)| {
                    at += step + 1;
                    (all || there).then_some(at)
                })
                .collect();
            let table = SlotTable::new(model.iter().copied());
            prop_assert_eq!(table.count() as usize, model.iter().flatten().count());
            for (slot, &expected) in model.iter().enumerate() {
                let next = model[slot + 1..].iter().flatten().next().copied();
                prop_assert_eq!(table.get(slot as u32), expected.map(|o| (o, next)));
            }
            prop_assert_eq!(table.get(model.len() as u32), None);
        }
    }

    #[test]
    fn a_million_small_objects_take_less_than_three_bytes_each() {
        for (sizes, holes) in [(8..9u32, false), (8..500, false), (8..500, true)] {
            let mut random = holdfast_base::random::Random::new(1);
            let mut at = 512;
            let offsets: Vec<Option<u32>> = (0..1_000_000u32)
                .map(|slot| {
                    at += sizes.start + random.below((sizes.end - sizes.start).into()) as u32;
                    (!holes || slot % 10 != 0).then_some(at)
                })
                .collect();
            let table = SlotTable::new(offsets.iter().copied());
            let per_object = table.bytes() as f64 / table.count() as f64;
            assert!(per_object < 3.0, "{per_object} bytes an object");
            for slot in (0..1_000_000).step_by(997) {
                assert_eq!(table.get(slot).map(|(o, _)| o), offsets[slot as usize]);
            }
        }
    }
}
