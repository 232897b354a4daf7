//! The words of texts, and how often each is there. Pure.

use crate::keyed::Keyed;
use holdfast_base::{Error, Result};
use holdfast_sort::kernel::scan;
use std::convert::Infallible;

/// Words, each once and in no order, in the memory layout of Arrow: of 64 bits each are where the words begin, with
/// one more for the end of the last, and how often each is there.
#[derive(Debug)]
pub struct Counted {
    /// Where each begins.
    pub offsets: Vec<u8>,
    /// One behind the other.
    pub words: Vec<u8>,
    /// Of each.
    pub counts: Vec<u8>,
}

/// Counts what is between separators, also where that is nothing: a text without any is one word. Texts lie one
/// behind the other in `bytes`; `offsets` are where each begins, and the end of the last.
pub fn count(
    offsets: impl IntoIterator<Item = u64>,
    bytes: &[u8],
    separator: u8,
) -> Result<Counted> {
    let wrong = || Error::invalid("count words: offsets and bytes do not fit each other");
    let mut offsets = offsets.into_iter().map(|at| usize::try_from(at).unwrap_or(usize::MAX));
    let first = offsets.next().ok_or_else(wrong)?;
    let ends: Vec<usize> = offsets.collect();
    let last = ends.last().copied().unwrap_or(first);
    let bytes = bytes.get(first..last).ok_or_else(wrong)?;
    if !ends.is_sorted() || ends.first().is_some_and(|end| *end < first) {
        return Err(wrong());
    }
    let mut found = Keyed::new(0u64);
    let mut add = |word| {
        if let Some(times) = found.insert(word, 1) {
            *times += 1;
        }
    };
    // All texts are looked through as one; what they end with is looked for beside it.
    let mut begin = 0;
    let mut ends = ends.into_iter().map(|end| end - first).peekable();
    let Ok(_) = scan::records(bytes, separator, |_, behind| {
        while let Some(end) = ends.next_if(|end| *end < behind) {
            add(&bytes[begin..end]);
            begin = end;
        }
        add(&bytes[begin..behind - 1]);
        begin = behind;
        Ok::<_, Infallible>(())
    });
    for end in ends {
        add(&bytes[begin..end]);
        begin = end;
    }
    let mut counted = Counted { offsets: vec![0; 8], words: Vec::new(), counts: Vec::new() };
    let Ok(()) = found.each(|word, times| {
        counted.words.extend_from_slice(word);
        counted.offsets.extend_from_slice(&(counted.words.len() as u64).to_le_bytes());
        counted.counts.extend_from_slice(&times.to_le_bytes());
        Ok::<_, Infallible>(())
    });
    Ok(counted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_base::random::Random;
    use std::collections::BTreeMap;

    fn numbers(bytes: &[u8]) -> Vec<u64> {
        bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
    }

    /// Any texts of few letters, behind others that do not count and before some, have the words that the standard
    /// library's `split` finds, as often.
    #[test]
    fn words_are_those_of_the_standard_librarys_split() {
        for seed in 0..500 {
            let mut random = Random::new(seed);
            let separator = [' ', '\0'][random.below(2) as usize];
            let length = [4, 40, 200][random.below(3) as usize];
            let text = |random: &mut Random| -> String {
                let letters = ['a', 'b', 'c', 'd', ' ', '\0'];
                (0..random.below(length)).map(|_| letters[random.below(6) as usize]).collect()
            };
            let texts: Vec<String> = (0..random.below(20)).map(|_| text(&mut random)).collect();
            let mut told: BTreeMap<&[u8], u64> = BTreeMap::new();
            for word in texts.iter().flat_map(|text| text.split(separator)) {
                *told.entry(word.as_bytes()).or_default() += 1;
            }
            let mut bytes = text(&mut random);
            let mut offsets = vec![bytes.len() as u64];
            for text in &texts {
                bytes += text;
                offsets.push(bytes.len() as u64);
            }
            bytes += &text(&mut random);
            let counted = count(offsets, bytes.as_bytes(), separator as u8).unwrap();
            let (offsets, counts) = (numbers(&counted.offsets), numbers(&counted.counts));
            assert_eq!((offsets.len(), offsets[0]), (counts.len() + 1, 0), "seed {seed}");
            let words = offsets.windows(2).map(|at| &counted.words[at[0] as usize..at[1] as usize]);
            let found: BTreeMap<&[u8], u64> = words.zip(counts.iter().copied()).collect();
            assert_eq!(found.len(), counts.len(), "each once, seed {seed}");
            assert_eq!(found, told, "seed {seed}");
        }
    }

    #[test]
    fn offsets_that_do_not_fit_are_refused() {
        for offsets in [&[][..], &[3], &[0, 3], &[2, 1], &[0, 2, 1], &[1, 0, 2], &[0, u64::MAX]] {
            assert!(count(offsets.iter().copied(), b"ab", b' ').is_err(), "{offsets:?}");
        }
        assert!(count([2], b"ab", b' ').unwrap().words.is_empty());
    }
}
