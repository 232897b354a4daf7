//! Beside GNU sort under LC_ALL=C: the same bytes and the same exit status for every option that
//! both have, on text with corners, on real text, and on short random lines.

use super::{Random, Scratch, holdfast, run};
use std::fs;
use std::path::{Path, PathBuf};

/// Lines with what orders differ about: blanks, signs, points, suffixes, months, cases, bytes
/// beyond ASCII, fields that are missing, equal keys, empty lines.
pub fn corpus(seed: u64, lines: usize) -> Vec<u8> {
    let words: [&[u8]; 35] = [
        b"1e3",
        b"-2.5E-7",
        b"inf",
        b"0x1f",
        b"v1.10.2",
        b"v1.9",
        b"a~",
        b".hidden",
        b"x-1.2.tar.gz",
        b"a",
        b"A",
        b"b",
        b"ab",
        b"aB",
        b"zebra",
        b"Zebra",
        b"-1",
        b"-01.50",
        b"0",
        b"-0",
        b"1.5",
        b"10",
        b"9",
        b"2K",
        b"1M",
        b"-3G",
        b"jan",
        b"Feb",
        b"DEC",
        b"\xe4\xff",
        b"a-b",
        b"a.b",
        b"x\x01y",
        b"12345678901234567890.5",
        b".5",
    ];
    let blanks: [&[u8]; 5] = [b" ", b" ", b"  ", b"\t", b":"];
    let mut random = Random::new(seed);
    let mut text = Vec::new();
    for _ in 0..lines {
        for _ in 0..random.below(5) {
            if random.below(3) > 0 {
                text.extend_from_slice(blanks[random.below(5) as usize]);
            }
            text.extend_from_slice(words[random.below(35) as usize]);
            if random.below(4) == 0 {
                text.extend_from_slice(random.below(1000).to_string().as_bytes());
            }
        }
        text.push(b'\n');
    }
    text
}

/// The licence and sources of this repository: real text, whoever checked it out.
fn real_text() -> Vec<u8> {
    fn walk(directory: &Path, text: &mut Vec<u8>) {
        let mut paths: Vec<PathBuf> =
            fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        for path in paths {
            if path.is_dir() {
                walk(&path, text);
            } else if path.extension().is_some_and(|e| e == "rs" || e == "md") {
                text.extend(fs::read(&path).unwrap());
            }
        }
    }
    let mut text = Vec::new();
    walk(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../base")), &mut text);
    walk(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../sort")), &mut text);
    // Of words that begin as `nanoseconds` does, GNU sort makes not-a-numbers, and orders several by
    // bytes that nobody set.
    let is_number = |word: &str| !word.to_ascii_lowercase().starts_with("nan");
    let lines = String::from_utf8(text).unwrap();
    let lines = lines.lines().filter(|line| line.split_whitespace().all(is_number));
    lines.flat_map(|line| [line, "\n"]).collect::<String>().into_bytes()
}

const OPTIONS: &[&str] = &[
    "",
    "-r",
    "-u",
    "-f",
    "-f -u",
    "-f -s",
    "-n",
    "-n -r",
    "-n -u",
    "-n -s -r",
    "-h",
    "-h -r -s",
    "-M",
    "-M -u",
    "-d",
    "-d -f",
    "-i",
    "-i -r",
    "-b",
    "-b -r",
    "-k2",
    "-k2,2",
    "-k2,2 -s",
    "-k2,2 -u",
    "-k2n",
    "-k2,2nr -k1,1",
    "-k2b,2",
    "-k2.2b,2.3b",
    "-k1.2,1.3",
    "-k1.2,1.3 -s",
    "-k3,3M -k1f,1",
    "-k2,2h -r",
    "-k2d,3",
    "-k2,3i -f",
    "-t: -k2",
    "-t: -k2,2n -k1r",
    "-t: -k2.2,3.1 -u",
    "-b -k2,2 -k3n",
    "-n -k2 -k1,1r",
    "-r -k2,2 -k1n",
    "-z",
    "-z -k2 -f",
    "-g",
    "-g -r",
    "-g -u",
    "-k2g,2 -s",
    "--sort=general-numeric -k2,2",
    "-V",
    "-V -r",
    "-k2V,2 -k1,1",
    "-V -f -u",
    "--sort=version -s",
    "-f -f -b -b",
    "--sort=month -k2b",
    "-k2,2nr -k3,3M -k1,1g -s",
    "-C",
    "--check=quiet -k2",
    "-c",
    "-c -u",
    "-m",
];

#[test]
fn results_are_those_of_gnu_sort_for_every_option() {
    let scratch = Scratch::new("gnu");
    let mut real = real_text();
    real.pop();
    let inputs = [corpus(1, 3000), corpus(2, 40), real, b"".to_vec(), b"\n\nb\na".to_vec()];
    for (i, input) in inputs.iter().enumerate() {
        let name = scratch.write(&format!("in{i}"), input);
        for options in OPTIONS {
            let words: Vec<&str> = options.split_whitespace().chain([&name[..]]).collect();
            let expected = run("sort", &words, &scratch.0, b"");
            let ours = holdfast(&words, &scratch.0, b"");
            let note = String::from_utf8_lossy(&ours.stderr).into_owned();
            assert_eq!(ours.status.code(), expected.status.code(), "{options} {name}: {note}");
            assert!(ours.stdout == expected.stdout, "{options} {name}: other bytes");
        }
    }
}

/// One not-a-number: GNU sort 9.1 orders several by bytes that nobody set.
#[test]
fn general_numbers_are_ordered_with_what_is_no_number_and_not_a_number() {
    let scratch = Scratch::new("nan");
    let lines = "inf\n-inf\nx\nNaN\n\n0x1p-3\n-0\n 1e3 a\n+5\n-1e-5000\n1e5000\n\x0b7\n-x\ne5\n";
    let name = scratch.write("in", lines.as_bytes());
    for nan in ["NaN", "-nan", "nan(3)"] {
        scratch.write("in", lines.replace("NaN", nan).as_bytes());
        for options in ["-g", "-g -r", "-g -u", "-g -s"] {
            let words: Vec<&str> = options.split(' ').chain([&name[..]]).collect();
            let expected = run("sort", &words, &scratch.0, b"").stdout;
            assert!(holdfast(&words, &scratch.0, b"").stdout == expected, "{options} {nan}");
        }
    }
}

/// Letters of keys, and what random lines for them are made of.
const MEAN: [(&str, &[&str]); 10] = [
    ("", &["a", "b", "\0", "\u{e4}", " ", "\t", "1"]),
    (
        "n",
        &["0", "1", "5", "9", ".", "+", "-", ",", " ", "\t", "a", "\0", "00", "99999999999999999"],
    ),
    (
        "h",
        &["0", "1", "2", ".", "-", "+", " ", "K", "k", "M", "G", "T", "P", "E", "Z", "Y", "m", "i"],
    ),
    ("M", &["j", "A", "n", "jan", "FEB", "Mar", "dec", "MAY", "sep", " ", "\t", "1", "x", "\0"]),
    (
        "g",
        &[
            "0", "1", "7", ".", "e", "E", "-", "+", "0x", "p", "f", "inf", "infinity", " ",
            "\u{b}", "1e400", "e-5000", "x",
        ],
    ),
    (
        "V",
        &[".", ".", "..", "~", "a", "b", "A", "0", "1", "29", "-", "_", " ", "\0", ".tar", ".gz"],
    ),
    ("f", &["a", "A", "b", "B", "z", "Z", "_", "[", "`", "{", "^", " ", "\0", "\u{e4}"]),
    ("d", &["a", "B", "1", "-", ".", "\t", " ", "\u{1}", "_", "\0", "\u{e4}"]),
    ("i", &["a", "B", "1", "-", ".", "\t", " ", "\u{1}", "\u{7f}", "\0", "\u{e4}"]),
    ("b", &["a", "b", " ", "\t", "\u{b}", "\0"]),
];

fn mean_lines(random: &mut Random, alphabet: &[&str], end: u8) -> Vec<u8> {
    let mut text = Vec::new();
    for _ in 0..[3, 40, 300][random.below(3) as usize] {
        for _ in 0..random.below(8) {
            text.extend_from_slice(
                alphabet[random.below(alphabet.len() as u64) as usize].as_bytes(),
            );
        }
        if random.below(3) == 0 {
            text.extend_from_slice(b" 1a");
        }
        text.push(end);
    }
    if random.below(4) == 0 {
        text.pop();
    }
    text
}

#[test]
fn random_lines_of_mean_letters_come_in_the_order_of_gnu_sort() {
    const KEYS: [&str; 9] = ["", "", "2", "2,2", "1,1", "1.2,1.4", "2b,2", "1.3", "3,1.2"];
    let scratch = Scratch::new("mean");
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let (letter, alphabet) = MEAN[seed as usize % MEAN.len()];
        let mut words: Vec<String> = Vec::new();
        let filters = ["-f", "-d", "-i", "-b"];
        let filters =
            if "nhMg".contains(letter) && !letter.is_empty() { &filters[3..] } else { &filters };
        words.extend(filters.iter().filter(|_| random.below(5) == 0).map(|f| f.to_string()));
        words.extend(
            ["-r", "-s", "-u"].iter().filter(|_| random.below(3) == 0).map(|f| f.to_string()),
        );
        let key = KEYS[random.below(KEYS.len() as u64) as usize];
        let in_key = random.below(2) == 0 && !key.is_empty();
        if !key.is_empty() {
            words.extend([
                "-k".to_owned(),
                if in_key { format!("{key}{letter}") } else { key.to_owned() },
            ]);
        }
        if !letter.is_empty() && !in_key {
            words.push(format!("-{letter}"));
        }
        let zero = random.below(8) == 0;
        if zero {
            words.push("-z".to_owned());
        }
        let name =
            scratch.write("in", &mean_lines(&mut random, alphabet, if zero { 0 } else { b'\n' }));
        words.push(name);
        let words: Vec<&str> = words.iter().map(|word| &word[..]).collect();
        let expected = run("sort", &words, &scratch.0, b"");
        let ours = holdfast(&words, &scratch.0, b"");
        assert_eq!(
            ours.status.code() == Some(0),
            expected.status.success(),
            "seed {seed}: {words:?} {ours:?}"
        );
        assert!(ours.stdout == expected.stdout, "seed {seed}: {words:?}: other bytes");
    }
}

#[test]
fn the_benchmark_compares_outputs_and_proves_two_reads_and_two_writes() {
    let scratch = Scratch::new("bench");
    for kind in ["skew", "half", "lines"] {
        let words = ["--json", "bench", "sort", "-t", kind, "-s", "40M", "-S", "32M", "-e", "1"];
        let done = run(env!("CARGO_BIN_EXE_holdfast"), &words, &scratch.0, b"");
        assert!(done.status.success(), "{kind}: {done:?}");
        let line: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
        assert_eq!(line["peer"]["name"], "GNU sort", "{line}");
        for figure in ["reads_a_byte", "writes_a_byte"] {
            assert!(line[figure].as_f64().is_some_and(|times| times <= 2.02), "{figure}: {line}");
        }
    }
    assert!(scratch.names().is_empty());
}
