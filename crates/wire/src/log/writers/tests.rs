//! The rule for repeats beside a plain model of it, and what is taken for a numbered entry.

use super::*;
use holdfast_env::{Rng, SeededRng};

fn entry(writer: &str, number: u64, bytes: &[u8]) -> Vec<u8> {
    Numbered { writer, number, bytes }.encode()
}

/// The rule, word by word.
fn repeats(log: &[(u64, Option<(String, u64)>)], at: usize) -> bool {
    let (index, Some((writer, number))) = &log[at] else { return false };
    log[..at].iter().any(|(earlier, numbered)| {
        let reaches = |(of, n): &(String, u64)| of == writer && n >= number;
        earlier + WINDOW_ENTRIES >= *index && numbered.as_ref().is_some_and(reaches)
    })
}

/// Writers that repeat themselves at once, late, and beyond the window; entries of nobody; gaps.
#[test]
fn a_reader_leaves_out_what_the_rule_says_wherever_it_begins() {
    for seed in 1..=3 {
        let rng = SeededRng::new(seed);
        let (mut log, mut index) = (Vec::new(), 0);
        let mut next = [1u64; 4];
        for _ in 0..3000 {
            // Now and then a gap that takes a part of the window, or all but one of it.
            index += match rng.next_u64() % 200 {
                0 => WINDOW_ENTRIES - 1 + rng.next_u64() % 3,
                1..=9 => rng.next_u64() % 900 + 1,
                _ => 1,
            };
            let of = (rng.next_u64() % 5) as usize;
            let numbered = next.get_mut(of).map(|next| {
                let back = rng.next_u64() % 8;
                let number = if back < 5 { *next } else { next.saturating_sub(back).max(1) };
                *next = (*next).max(number + 1);
                (format!("w{of}"), number)
            });
            log.push((index, numbered));
        }
        let bytes: Vec<Vec<u8>> = log
            .iter()
            .map(|(index, numbered)| match numbered {
                Some((writer, number)) => entry(writer, *number, &index.to_le_bytes()),
                None => index.to_le_bytes().to_vec(),
            })
            .collect();
        let right: Vec<bool> = (0..log.len()).map(|at| repeats(&log, at)).collect();
        let begins = [0, 1, 17, 1499, 2990]
            .into_iter()
            .chain((0..20).map(|_| (rng.next_u64() % 3000) as usize));
        let mut dropped = 0;
        for begin in begins {
            let from = Index(log[begin].0);
            let mut rule = Repeats::default();
            for (at, (index, _)) in
                log.iter().enumerate().filter(|(_, (i, _))| *i >= look_from(from).0)
            {
                let found = rule.see(Index(*index), &bytes[at]);
                if at >= begin {
                    assert_eq!(found, right[at], "seed {seed}, from {from}, entry {index}");
                    dropped += u32::from(found);
                }
            }
            assert!(rule.writers() <= 4);
        }
        assert!(dropped > 100, "seed {seed}: {dropped}");
    }
}

#[test]
fn the_window_ends_where_it_says() {
    let first = entry("a", 7, b"x");
    for (behind, repeats) in [(1, true), (WINDOW_ENTRIES, true), (WINDOW_ENTRIES + 1, false)] {
        let mut rule = Repeats::default();
        assert!(!rule.see(Index(10), &first));
        assert_eq!(rule.see(Index(10 + behind), &first), repeats, "{behind} behind");
        assert_eq!(rule.last_of("a"), Some(7));
    }
    let mut rule = Repeats::default();
    rule.see(Index(10), &first);
    rule.see(Index(9 + WINDOW_ENTRIES), b"of nobody");
    assert_eq!(rule.last_of("a"), Some(7), "the next entry is still within");
    rule.see(Index(10 + WINDOW_ENTRIES), b"of nobody");
    assert_eq!((rule.last_of("a"), rule.writers()), (None, 0));
}

/// A thousand writers with one entry each, again and again: what is held is bounded by the window.
#[test]
fn what_a_reader_holds_is_bounded() {
    let mut rule = Repeats::default();
    for index in 1..=3 * WINDOW_ENTRIES {
        rule.see(Index(index), &entry(&format!("w{index}"), index, b""));
    }
    assert!(rule.writers() as u64 <= WINDOW_ENTRIES + 1, "{}", rule.writers());
    assert!(rule.seen.len() as u64 <= WINDOW_ENTRIES + 1, "{}", rule.seen.len());
}

/// An entry of nobody must stay what it is: one bit that is otherwise, and it is all bytes.
#[test]
fn a_numbered_entry_comes_back_and_nothing_else_is_taken_for_one() {
    let whole = entry("Collector-1.eu_west", 1 << 40, b"bytes");
    let numbered = Numbered::of(&whole).unwrap();
    assert_eq!((numbered.writer, numbered.number), ("Collector-1.eu_west", 1 << 40));
    assert_eq!((numbered.bytes, content(&whole)), (&b"bytes"[..], &b"bytes"[..]));
    assert_eq!(content(b"plain"), b"plain");
    let head = whole.len() - b"bytes".len();
    for bit in 0..head * 8 {
        let mut bad = whole.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(Numbered::of(&bad), None, "bit {bit}");
        assert_eq!(content(&bad), bad);
    }
    for cut in 0..head {
        assert_eq!(Numbered::of(&whole[..cut]), None, "cut at {cut}");
    }
    for wrong in ["", "a b", "é", "a/b", &"a".repeat(WRITER_BYTES_MAX + 1)] {
        assert!(check_writer(wrong).unwrap_err().message.contains("writer"), "{wrong}");
    }
    check_writer(&"a".repeat(WRITER_BYTES_MAX)).unwrap();
}

/// The bytes that are in topics: they are read for ever.
#[test]
fn the_golden_numbered_entry() {
    let hex: String = entry("w", 5, b"hi").iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, "8948464c570d0a01d85616bd050000000000000001776869");
}

/// Numbers near the end of what they are of panicked where they came in, or began at 0 again, so that
/// what was acknowledged was read by nobody.
#[test]
fn numbers_have_an_end_far_from_that_of_their_bytes() {
    assert_eq!(numbers(5, 3).unwrap(), 5..8);
    assert_eq!(numbers(NUMBER_MAX - 2, 2).unwrap().end, NUMBER_MAX);
    for (first, entries) in [(NUMBER_MAX - 2, 3), (NUMBER_MAX, 1), (u64::MAX, 1), (u64::MAX, 9)] {
        let refused = numbers(first, entries).unwrap_err();
        assert!(refused.message.contains("smaller ones"), "{refused}");
    }
}
