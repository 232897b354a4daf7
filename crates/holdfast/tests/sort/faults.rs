//! Bad input and disks that are full or gone, with the real binary: one clear sentence, the input
//! as it was, no output under its name, no temporary file.

use super::mount::Mount;
use super::{Scratch, holdfast, refused, run};
use std::fs;

#[test]
fn what_cannot_be_sorted_is_refused_and_nothing_is_left_behind() {
    let scratch = Scratch::new("bad");
    scratch.write("in", b"b\na\n");
    let sort = |words: &[&str]| holdfast(words, &scratch.0, b"");
    refused(sort(&["missing"]), &["read `missing`"]);
    refused(sort(&["--record", "3", "in", "-o", "out"]), &["`in`", "4 bytes", "--record"]);
    refused(sort(&["--record", "0", "in"]), &["--record 0"]);
    refused(sort(&["--record", "4", "--record-key", "2:9", "in"]), &["bytes 2 to 11"]);
    refused(sort(&["--record", "4", "--record-key", "x", "in"]), &["OFFSET:LENGTH"]);
    refused(sort(&["--length-prefixed", "in", "-o", "out"]), &["`in`", "cut"]);
    refused(sort(&["-S", "1M", "in"]), &["--memory"]);
    refused(sort(&["-k", "0", "in"]), &["key `0`"]);
    refused(sort(&["-k", "1R", "in"]), &["random"]);
    refused(sort(&["--sort=random", "in"]), &["--sort=random", "version"]);
    refused(sort(&["in", "-o", "/proc/holdfast"]), &["/proc/holdfast"]);
    refused(sort(&["-n", "-d", "in"]), &["do not go"]);
    refused(sort(&["-t", "ab", "in"]), &["one character"]);
    refused(sort(&["in", "-o", "missing/out"]), &["missing/out"]);
    refused(sort(&["in", "-o", "."]), &["directory"]);
    refused(sort(&["check", "in"]), &["check `in`", "4 bytes"]);
    refused(sort(&["gen", "--records", "3", "in"]), &["make `in`"]);
    assert_eq!(scratch.names(), ["in"]);
    assert_eq!(fs::read(scratch.0.join("in")).unwrap(), b"b\na\n");
    // A name that is given twice is sorted as two inputs, into one of them.
    assert!(sort(&["in", "in", "-o", "in"]).status.success());
    assert_eq!(fs::read(scratch.0.join("in")).unwrap(), b"a\na\nb\nb\n");
}

#[test]
fn long_lines_and_nul_bytes_are_kept() {
    let scratch = Scratch::new("long");
    let mut text = vec![b'x'; 6 << 20];
    text.extend_from_slice(b"\n\0\0b\n\0\n");
    text.extend(vec![b'a'; 1 << 20]);
    text.push(b'\n');
    scratch.write("in", &text);
    for memory in ["64M", "1G"] {
        let ours = holdfast(&["-S", memory, "in", "-o", "out"], &scratch.0, b"");
        assert!(ours.status.success(), "{}", String::from_utf8_lossy(&ours.stderr));
        let expected = run("sort", &["in"], &scratch.0, b"").stdout;
        assert!(fs::read(scratch.0.join("out")).unwrap() == expected);
    }
    refused(
        holdfast(&["-S", "32M", "in", "-o", "out"], &scratch.0, b""),
        &["record of more than", "--memory"],
    );
    // A line of 100 MB, with what is given by default.
    let long = vec![b'm'; 100 << 20];
    scratch.write("in", &[&b"z\n"[..], &long, b"\na\n"].concat());
    let ours = holdfast(&["in", "-o", "out"], &scratch.0, b"");
    assert!(ours.status.success(), "{}", String::from_utf8_lossy(&ours.stderr));
    assert!(fs::read(scratch.0.join("out")).unwrap() == [b"a\n", &long[..], b"\nz\n"].concat());
}

#[test]
fn what_the_first_phase_finds_wrong_leaves_nothing_either() {
    let scratch = Scratch::new("wrong");
    let sort = |words: &[&str], stdin: &[u8]| holdfast(words, &scratch.0, stdin);
    let line = b"some line of text that comes again and again, so that memory does not suffice\n";
    let big = line.repeat(600_000);
    scratch.write("in", &big);
    let with = |more: &[&'static str]| [&["-S", "32M", "-o", "out"], more].concat();
    // One record of more than an eighth of the memory; a temporary directory that is not there.
    refused(sort(&with(&["--record", "7800000", "in"]), b""), &["record of more than", "--memory"]);
    refused(sort(&with(&["-T", "nowhere", "in"]), b""), &["temporary files", "`nowhere`"]);
    refused(
        sort(&with(&["--record", "7", "-"]), &big[..30_000_001]),
        &["standard input", "record"],
    );
    assert_eq!(scratch.names(), ["in"]);
    assert!(fs::read(scratch.0.join("in")).unwrap() == big);
}

#[test]
fn full_disks_are_said_before_anything_is_read_or_when_they_fill() {
    let scratch = Scratch::new("full");
    let small = scratch.0.join("small");
    let Some(_mount) = Mount::new(&small, "20m") else { return };
    let line = b"one line of text that comes again and again, so that memory does not suffice\n";
    let big = line.repeat(600_000);
    scratch.write("in", &big);
    let sort = |words: &[&str], stdin: &[u8]| {
        holdfast(&[&["-S", "32M"], words].concat(), &scratch.0, stdin)
    };
    // How long a pipe is nobody knows before.
    refused(sort(&["-T", "small", "-o", "out", "in"], b""), &["temporary files", "`small`"]);
    refused(sort(&["-T", "small", "-o", "out", "-"], &big), &["temporary file", "small"]);
    refused(sort(&["-o", "small/out", "-T", ".", "in"], b""), &["small/out"]);
    refused(sort(&["-o", "small/out", "-T", ".", "-"], &big), &["small/out"]);
    refused(sort(&["-m", "-o", "small/out", "in"], b""), &["small/out"]);
    assert_eq!(scratch.names(), ["in", "small"]);
    assert_eq!(fs::read_dir(&small).unwrap().count(), 0);
    assert!(fs::read(scratch.0.join("in")).unwrap() == big);
}
