//! Any combination of options that GNU sort takes, drawn from a seed, on lines made for them: the
//! same bytes, or both refuse. One test an option found nothing about `-h -f`.

use super::{Random, Scratch, holdfast, run};
use std::process::Output;

const SEEDS: u64 = 400;

/// Parts of lines, but for not-a-numbers, which GNU sort 9.1 orders by bytes that nobody set: numbers, suffixes of both cases, months, versions, blanks, bytes that count for
/// nothing in some order.
const PARTS: [&str; 43] = [
    "", "0", "-0", "1", "-1", "2", "10", "9", "007", "1.5", "-.5", "1e3", "1E2", "0x1F", "inf",
    "1K", "1k", "2M", "2m", "3g", "3G", "-1t", "-1T", "5P", "1Ki", "jan", "JAN", "Feb", "dEc", "a",
    "A", "b", "aB", "Ab", "v1.10", "v1.9", "a-b", "a b", "\u{1}a", "\u{e4}", "~", "_", "Zz",
];
const SEPARATORS: [&str; 6] = [" ", " ", "\t", ":", "  ", ","];
const LETTERS: [&str; 10] = ["b", "d", "f", "g", "h", "i", "M", "n", "r", "V"];

fn one<'a>(random: &mut Random, of: &[&'a str]) -> &'a str {
    of[random.below(of.len() as u64) as usize]
}

fn lines(random: &mut Random, end: u8) -> Vec<u8> {
    let mut text = Vec::new();
    for _ in 0..[1, 5, 60, 200][random.below(4) as usize] {
        for _ in 0..random.below(5) {
            text.extend_from_slice(one(random, &PARTS).as_bytes());
            text.extend_from_slice(one(random, &SEPARATORS).as_bytes());
        }
        text.push(end);
    }
    if random.below(3) == 0 {
        text.pop();
    }
    text
}

/// Letters that go together, most of the time.
fn letters(random: &mut Random, most: u64) -> String {
    let mut letters = String::new();
    for _ in 0..random.below(most + 1) {
        let letter = one(random, &LETTERS);
        // Two kinds, or one with a filter, are refused by both: seldom, so that most sort.
        let kinds = |letters: &str| letters.chars().filter(|c| "ghMnV".contains(*c)).count();
        let filtered = letters.contains(['d', 'i']);
        let clashes = kinds(&letters) > 0 && "dighMnV".contains(letter)
            || filtered && "ghMn".contains(letter);
        if !clashes || random.below(12) == 0 {
            letters.push_str(letter);
        }
    }
    letters
}

fn place(random: &mut Random, least: u64) -> String {
    match random.below(3) {
        0 => format!("{}.{}", 1 + random.below(4), least + random.below(4)),
        _ => format!("{}", 1 + random.below(4)),
    }
}

fn options(random: &mut Random) -> Vec<String> {
    let mut words = Vec::new();
    let globals = letters(random, 3);
    words.extend(globals.chars().map(|letter| format!("-{letter}")));
    for _ in 0..random.below(4) {
        let mut key = place(random, 1) + &letters(random, 3);
        if random.below(3) > 0 {
            key += &format!(",{}{}", place(random, 0), letters(random, 1));
        }
        words.push(format!("-k{key}"));
    }
    if random.below(3) == 0 {
        words.push(format!("-t{}", one(random, &[":", " ", "\t", ",", "a", "\\0"])));
    }
    let others = ["-s", "-u", "-r"];
    words.extend(others.iter().filter(|_| random.below(4) == 0).map(|word| word.to_string()));
    words
}

#[test]
fn any_options_together_give_what_gnu_sort_gives() {
    let scratch = Scratch::new("options");
    let mut sorted = 0;
    for seed in 0..SEEDS {
        let mut random = Random::new(seed);
        let mut words = options(&mut random);
        let end = if random.below(8) == 0 { 0 } else { b'\n' };
        if end == 0 {
            words.push("-z".to_owned());
        }
        words.push(scratch.write("in", &lines(&mut random, end)));
        let words: Vec<&str> = words.iter().map(|word| &word[..]).collect();
        let expected = run("sort", &words, &scratch.0, b"");
        let ours = holdfast(&words, &scratch.0, b"");
        let note = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(
            ours.status.success(),
            expected.status.success(),
            "seed {seed}: {words:?}: {} {}",
            note(&ours),
            note(&expected)
        );
        assert!(ours.stdout == expected.stdout, "seed {seed}: {words:?}: other bytes");
        sorted += u64::from(ours.status.success());
    }
    assert!(sorted > SEEDS / 2, "{sorted} were sorted");
}
