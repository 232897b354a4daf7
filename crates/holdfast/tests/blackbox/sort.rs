//! `holdfast sort` from and to files of a store: what is there afterwards, what is refused, and
//! that a sort whose node dies leaves nothing under the output's name.

use crate::common::{Node, Scratch, bytes};
use holdfast_client::NewFile;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

/// Lines, and the same sorted.
fn lines(seed: u64, count: usize) -> (Vec<u8>, Vec<u8>) {
    let random = bytes(seed, count * 8);
    let mut lines: Vec<String> = random
        .chunks_exact(8)
        .map(|c| {
            format!(
                "{:016x} and what else is in a line\n",
                u64::from_le_bytes(c.try_into().unwrap())
            )
        })
        .collect();
    let text = lines.concat().into_bytes();
    lines.sort_unstable();
    (text, lines.concat().into_bytes())
}

#[test]
fn files_of_the_store_are_sorted_into_the_store_and_out_of_it() {
    let scratch = Scratch::new();
    let node = Node::start(&scratch.path("data"));
    let mut client = node.client();
    // More than the memory, so that temporary files are needed; they lie where the command runs.
    let (text, sorted) = lines(1, 1_000_000);
    assert!(text.len() > 40 << 20);
    let mut writer = client.create("/in", &NewFile::default()).unwrap();
    writer.write(&text).unwrap();
    writer.close().unwrap();
    let temp = scratch.path("temp");
    std::fs::create_dir_all(&temp).unwrap();
    let temp = temp.display().to_string();
    let sort = |words: &[&str]| node.run(&[&["sort", "-S", "32M", "-T", &temp], words].concat());
    let read = |path: &str| node.run(&["fs", "cat", path]).out;
    sort(&["holdfast:///in", "-o", "holdfast:///out"]).ok();
    assert!(read("/out") == sorted);
    // An output that exists is replaced; an input may be the output; a local file beside one.
    let local = scratch.path("local").display().to_string();
    std::fs::write(&local, b"zz last\n").unwrap();
    sort(&["holdfast:///in", &local, "-o", "holdfast:///in"]).ok();
    assert!(read("/in") == [&sorted[..], b"zz last\n"].concat());
    sort(&["-r", "holdfast:///out", "-o", &local]).ok();
    let backwards = std::fs::read(&local).unwrap();
    let mut expected: Vec<&[u8]> = sorted.split_inclusive(|b| *b == b'\n').collect();
    expected.reverse();
    assert!(backwards == expected.concat());
    sort(&["-c", "holdfast:///out"]).ok();
    sort(&["-m", "holdfast:///out", "holdfast:///out", "-u", "-o", "holdfast:///merged"]).ok();
    assert!(read("/merged") == sorted);

    sort(&["holdfast:///missing", "-o", "holdfast:///no"]).refused(&["/missing"]);
    sort(&["--record", "7", "holdfast:///out", "-o", "holdfast:///no"])
        .refused(&["/out", "--record"]);
    sort(&["holdfast:///in", "-o", "holdfast:///in/no"]).refused(&["/in"]);
    assert!(client.stat("/no").is_err(), "no half output");
    assert_eq!(std::fs::read_dir(&temp).unwrap().count(), 0, "no temporary file is left");
    drop(client);
    node.stop();
}

#[test]
fn a_node_that_dies_in_the_middle_leaves_no_half_output() {
    let scratch = Scratch::new();
    let node = Node::start(&scratch.path("data"));
    node.client().put("/out", b"what was there\n", &NewFile::default()).unwrap();
    // The sort asks for its input after it has begun to write: what is merged flows through, and
    // says on standard error nothing; so the pipe is fed until the node is gone.
    let mut command: Command =
        node.command(&["sort", "-m", "-S", "32M", "-", "-o", "holdfast:///out"]);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    let block = b"all of these lines are the same, and there are many of them\n".repeat(20_000);
    // Several times what all buffers on the way hold: some of it is in the node.
    for _ in 0..100 {
        pipe.write_all(&block).unwrap();
    }
    let data = node.kill();
    // The command ends by itself: the end of its input or the broken connection, whatever it
    // notices first.
    let _ = (0..400).try_for_each(|_| pipe.write_all(&block));
    drop(pipe);
    let mut sentence = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut sentence).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{sentence}");
    assert!(sentence.contains("holdfast:///out"), "{sentence}");

    let node = Node::start(&data);
    assert_eq!(node.client().get("/out").unwrap(), b"what was there\n");
    node.stop();
}
