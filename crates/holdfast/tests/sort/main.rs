//! `holdfast sort` from outside, beside GNU sort under LC_ALL=C: the same bytes for every option
//! that both have; and what it does about bad input.
#![allow(clippy::disallowed_methods, reason = "a test with files of its own")]

mod ends;
mod faults;
mod gnu;
mod memory;
#[path = "../support/mount.rs"]
mod mount;
mod options;

use gnu::corpus;
use holdfast_base::random::Random;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let name = format!("sort-{}-{name}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> String {
        let path = self.0.join(name);
        fs::write(&path, bytes).unwrap();
        path.display().to_string()
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(&self.0)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}

fn run(program: &str, words: &[&str], directory: &Path, stdin: &[u8]) -> Output {
    let mut command = Command::new(program);
    command.current_dir(directory).env("LC_ALL", "C").args(words);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || pipe.write_all(stdin));
        child.wait_with_output().unwrap()
    })
}

fn holdfast(words: &[&str], directory: &Path, stdin: &[u8]) -> Output {
    let words: Vec<&str> = std::iter::once("sort").chain(words.iter().copied()).collect();
    run(env!("CARGO_BIN_EXE_holdfast"), &words, directory, stdin)
}

/// Exit status 1 and one sentence with these words.
#[track_caller]
fn refused(output: Output, words: &[&str]) {
    let sentence = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{sentence}");
    assert_eq!(sentence.trim_end().lines().count(), 1, "{sentence}");
    for word in words {
        assert!(sentence.contains(word), "`{word}` is missing in: {sentence}");
    }
}

#[test]
fn several_inputs_merge_pipes_and_memory_too_small_for_all_give_the_same() {
    let scratch = Scratch::new("inputs");
    // More than the least memory that is taken, and without a newline at one end.
    let filler =
        b" and a tail as long as the lines of a log have, but without a field of its own\n";
    let lines = corpus(3, 300_000);
    let big: Vec<u8> =
        lines.split(|b| *b == b'\n').flat_map(|line| [line, filler].concat()).collect();
    assert!(big.len() > 20 << 20);
    let one = scratch.write("one", &big[..big.len() - 1]);
    let two = scratch.write("two", &corpus(4, 1000));
    for options in ["-k2,2 -s", "-u", "-k2,2n -u"] {
        let options: Vec<&str> = options.split_whitespace().collect();
        let words = [&options[..], &[&one[..], &two, "-o", "gnu"]].concat();
        assert!(run("sort", &words, &scratch.0, b"").status.success());
        let expected = fs::read(scratch.0.join("gnu")).unwrap();
        let words = [&options[..], &["-S", "32M", &one[..], &two, "-o", "ours"]].concat();
        let ours = holdfast(&words, &scratch.0, b"");
        assert!(ours.status.success(), "{ours:?}");
        assert!(fs::read(scratch.0.join("ours")).unwrap() == expected, "{options:?}");
        let words = [&options[..], &["-S", "32M", "-", &two]].concat();
        let ours = holdfast(&words, &scratch.0, &big);
        assert!(ours.stdout == expected, "{options:?} from a pipe");
    }
    for name in ["one", "two"] {
        assert!(holdfast(&["-o", name, name], &scratch.0, b"").status.success());
    }
    assert!(holdfast(&["-c", "one"], &scratch.0, b"").status.success());
    let merged = holdfast(&["-m", "one", "two"], &scratch.0, b"");
    assert!(merged.stdout == run("sort", &["-m", "one", "two"], &scratch.0, b"").stdout);
    let left: Vec<String> = scratch.names();
    assert_eq!(left, ["gnu", "one", "ours", "two"], "no temporary file is left");
}

#[test]
fn only_the_first_records_are_written_if_that_is_asked_for() {
    let scratch = Scratch::new("top");
    let filler = b" and a tail, so that there is more than fits into the memory of this sort\n";
    let lines = corpus(6, 300_000);
    let big: Vec<u8> =
        lines.split(|b| *b == b'\n').flat_map(|line| [line, filler].concat()).collect();
    scratch.write("in", &big);
    for options in ["-k2,2", "-k2,2n -u", "-f -s"] {
        let options: Vec<&str> = options.split_whitespace().collect();
        let all = run("sort", &[&options[..], &["in"]].concat(), &scratch.0, b"").stdout;
        let all: Vec<&[u8]> = all.split_inclusive(|b| *b == b'\n').collect();
        for (top, to) in [(0, "-"), (1, "-"), (1000, "out"), (100_000, "-"), (10_000_000, "out")] {
            let count = top.to_string();
            let words = [&options[..], &["-S", "32M", "--top", &count, "in"]].concat();
            let sorted = match to {
                "-" => holdfast(&words, &scratch.0, b"").stdout,
                _ => {
                    let ours = holdfast(&[&words[..], &["-o", to]].concat(), &scratch.0, b"");
                    assert!(ours.status.success(), "{ours:?}");
                    fs::read(scratch.0.join(to)).unwrap()
                }
            };
            assert!(sorted == all[..top.min(all.len())].concat(), "{options:?} --top {top}");
        }
    }
}

#[test]
fn files_are_named_in_a_list() {
    let scratch = Scratch::new("list");
    scratch.write("a b", b"2\n");
    scratch.write("c", b"1\n3");
    scratch.write("list", b"a b\0c\0");
    for words in [&["--files0-from=list"][..], &["--files0-from=-"]] {
        let expected = run("sort", words, &scratch.0, b"c\0");
        let ours = holdfast(words, &scratch.0, b"c\0");
        assert_eq!((ours.stdout, ours.status), (expected.stdout, expected.status));
    }
}

/// `kill -9` when so many bytes are in the temporary files and the output, then `--resume`.
#[test]
fn a_sort_that_was_killed_is_resumed() {
    let scratch = Scratch::new("kill");
    let gen_words = ["gen", "--records", "1500000", "--ascii", "data"];
    let made = String::from_utf8(holdfast(&gen_words, &scratch.0, b"").stdout).unwrap();
    let checksum = made.split_whitespace().last().unwrap();
    let words = ["--record", "100", "--record-key", "0:10", "-S", "48M", "-o", "sorted", "data"];
    for wanted in [1, 40 << 20, 200 << 20] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_holdfast"))
            .current_dir(&scratch.0)
            .arg("sort")
            .args(words)
            .spawn()
            .unwrap();
        let written = || {
            let io = fs::read_to_string(format!("/proc/{}/io", child.id())).unwrap_or_default();
            let line = io.lines().find_map(|line| line.strip_prefix("wchar: ").map(str::to_owned));
            line.map_or(u64::MAX, |bytes| bytes.parse::<u64>().unwrap())
        };
        while written() < wanted {
            std::thread::yield_now();
        }
        let _ = child.kill();
        let killed = !child.wait().unwrap().success();
        assert_eq!(killed, !scratch.0.join("sorted").exists());
        let ours = holdfast(&[&["--resume"][..], &words].concat(), &scratch.0, b"");
        assert!(ours.status.success(), "{wanted}: {ours:?}");
        let checked = holdfast(&["check", "sorted"], &scratch.0, b"");
        let said = String::from_utf8(checked.stdout).unwrap();
        assert!(said.contains(checksum) && said.contains("1500000 records"), "{said} {made}");
        assert_eq!(scratch.names(), ["data", "sorted"]);
        fs::remove_file(scratch.0.join("sorted")).unwrap();
    }
}

#[test]
fn records_of_the_benchmark_are_made_sorted_and_checked() {
    let scratch = Scratch::new("gray");
    for shape in [&["--ascii"][..], &["--skew"], &[]] {
        let words = [&["gen", "--records", "300000"], shape, &["data"]].concat();
        let made = String::from_utf8(holdfast(&words, &scratch.0, b"").stdout).unwrap();
        let checksum = made.split_whitespace().last().unwrap().to_owned();
        let words =
            ["--record", "100", "--record-key", "0:10", "-S", "32M", "-o", "sorted", "data"];
        assert!(holdfast(&words, &scratch.0, b"").status.success());
        let checked = holdfast(&["check", "sorted"], &scratch.0, b"");
        let said = String::from_utf8(checked.stdout).unwrap();
        assert!(said.contains(&checksum) && said.contains("300000 records"), "{said} {made}");
        refused(holdfast(&["check", "data"], &scratch.0, b""), &["check", "first is record"]);
        // The same in parts: one verdict, also of what is wrong between them.
        let parts = scratch.0.join("parts");
        fs::create_dir_all(&parts).unwrap();
        refused(holdfast(&["check", "parts"], &scratch.0, b""), &["parts in `parts`", "none"]);
        let sorted = fs::read(scratch.0.join("sorted")).unwrap();
        let (front, back) = sorted.split_at(123_456 * 100);
        for (first, second) in [("part-00000", "part-00001"), ("part-00001", "part-00000")] {
            fs::write(parts.join(first), front).unwrap();
            fs::write(parts.join(second), back).unwrap();
            fs::write(parts.join("_manifest"), b"no record").unwrap();
            let checked = holdfast(&["check", "parts"], &scratch.0, b"");
            let said = String::from_utf8(checked.stdout.clone()).unwrap();
            assert!(said.contains(&checksum) && said.contains("300000 records"), "{said} {made}");
            match first < second {
                true => assert!(checked.status.success(), "{checked:?}"),
                false => refused(checked, &["1 records are less", "first is record"]),
            }
        }
        fs::remove_dir_all(&parts).unwrap();
        fs::remove_file(scratch.0.join("data")).unwrap();
        fs::remove_file(scratch.0.join("sorted")).unwrap();
    }
}

#[test]
fn a_key_in_half_of_the_records_streams_through() {
    let scratch = Scratch::new("half");
    let mut random = Random::new(5);
    let mut lines = Vec::new();
    for _ in 0..400_000 {
        match random.below(2) {
            0 => lines.extend_from_slice(b"the same line again and again, in half of all places\n"),
            _ => lines.extend_from_slice(
                format!(
                    "{:016x} and some more bytes to fill the line up\n",
                    random.below(u64::MAX)
                )
                .as_bytes(),
            ),
        }
    }
    scratch.write("in", &lines);
    let expected = run("sort", &["in"], &scratch.0, b"").stdout;
    let ours = holdfast(&["--parallel", "2", "-S", "32M", "-o", "out", "in"], &scratch.0, b"");
    assert!(ours.status.success(), "{ours:?}");
    assert!(fs::read(scratch.0.join("out")).unwrap() == expected);
}

#[test]
fn a_pipe_whose_start_says_nothing_of_the_rest_goes_through_the_third_phase() {
    let scratch = Scratch::new("third");
    // In order already: the boundaries come from the first third of the memory, so that nearly
    // everything belongs behind the last of them.
    let lines: Vec<String> = (0..700_000)
        .map(|i| format!("{i:010} the same in every line, thirty bytes or so\n"))
        .collect();
    let lines = lines.concat();
    for unique in [&[][..], &["-u"]] {
        let words = [unique, &["-S", "32M", "-o", "out", "-"]].concat();
        let ours = holdfast(&words, &scratch.0, lines.as_bytes());
        assert!(ours.status.success(), "{ours:?}");
        assert!(fs::read(scratch.0.join("out")).unwrap() == lines.as_bytes());
    }
    assert_eq!(scratch.names(), ["out"]);
}
