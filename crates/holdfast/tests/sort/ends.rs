//! How a sort ends that is not let to: by a signal from a terminal or from elsewhere, by a reader
//! that goes, by `kill -9`. Nothing of it is left; and what it writes is its owner's alone.

use super::{Scratch, holdfast, run};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const BINARY: &str = env!("CARGO_BIN_EXE_holdfast");
/// Whoever runs the tests may ignore signals, as a shell does for what it starts behind `&`; what
/// they start would ignore them, too, and never end.
const HEARS: &str = "--default-signal=INT,TERM,HUP";

/// A merge of `in` and a pipe that says nothing and stays open: it has made its files, and waits.
fn waiting(scratch: &Scratch) -> Child {
    scratch.write("in", b"a\nb\n");
    let mut command = Command::new("env");
    command.args([HEARS, BINARY, "sort", "-m", "-o", "out", "in", "-"]).current_dir(&scratch.0);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    until_made(scratch);
    child
}

/// Until the output has its temporary name.
fn until_made(scratch: &Scratch) {
    let temporary = |name: &String| name.starts_with(".out.") && !name.ends_with(".lock");
    while !scratch.names().iter().any(temporary) {
        std::thread::yield_now();
    }
}

fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status();
    assert!(sent.unwrap().success());
}

#[test]
fn a_signal_ends_a_sort_that_waits_and_nothing_is_left_of_it() {
    let scratch = Scratch::new("signals");
    for (name, number) in [("INT", 2), ("TERM", 15), ("HUP", 1)] {
        let mut child = waiting(&scratch);
        for name in scratch.names().iter().filter(|name| name.starts_with('.')) {
            let mode = fs::metadata(scratch.0.join(name)).unwrap().mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
        signal(&child, name);
        assert_eq!(ended_by(&mut child), Some(number), "{name}");
        assert_eq!(scratch.names(), ["in"], "{name}");
    }
}

/// A merge that was killed left its output's temporary name, and no merge to that output ever worked
/// again.
#[test]
fn a_merge_that_was_killed_is_followed_by_another() {
    let scratch = Scratch::new("killed");
    let mut child = waiting(&scratch);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(scratch.names().len() > 1);
    let merged = holdfast(&["-m", "-o", "out", "in", "-"], &scratch.0, b"c\n");
    assert!(merged.status.success(), "{merged:?}");
    assert_eq!(scratch.names(), ["in", "out"]);
}

/// The signal that ended `child`, whose input stays open: [`Child::wait`] would close it first.
fn ended_by(child: &mut Child) -> Option<i32> {
    let pipe = child.stdin.take();
    let status = child.wait().unwrap();
    drop(pipe);
    status.signal()
}

/// Signals were watched for after the thread that draws the bar had begun, which did not block
/// them: Ctrl-C ended the process by that thread, and nobody cleaned up.
#[test]
fn an_interrupt_from_the_terminal_cleans_up_too() {
    let scratch = Scratch::new("terminal");
    scratch.write("in", b"a\nb\n");
    let script = scratch.write("terminal.py", TERMINAL.as_bytes());
    for key in ["interrupt", "hangup"] {
        let command = [BINARY, "sort", "-m", "-o", "out", "in", "-"];
        let words = [&[HEARS, "python3", &script, key], &command[..]].concat();
        let ended = run("env", &words, &scratch.0, b"");
        let said = String::from_utf8_lossy(&ended.stdout).into_owned();
        let number = if key == "interrupt" { "2" } else { "1" };
        assert_eq!(said.trim(), number, "{key}: {ended:?}");
        assert_eq!(scratch.names(), ["in", "terminal.py"], "{key}");
    }
}

/// Runs a command on a terminal of its own; when its files are made, presses Ctrl-C, or closes the
/// terminal. Says by which signal the command ended. It reads from a pipe: what is read from a
/// terminal ends with it, and the command may be done before the signal comes.
const TERMINAL: &str = r#"
import glob, os, pty, sys
read, write = os.pipe()
pid, terminal = pty.fork()
if pid == 0:
    os.dup2(read, 0)
    os.execv(sys.argv[2], sys.argv[2:])
while not [name for name in glob.glob(".out.*") if not name.endswith(".lock")]:
    os.sched_yield()
if sys.argv[1] == "interrupt":
    os.write(terminal, b"\x03")
else:
    os.close(terminal)
print(os.WTERMSIG(os.waitpid(pid, 0)[1]))
"#;

#[test]
fn a_hangup_that_the_sort_was_told_to_ignore_does_not_end_it() {
    let scratch = Scratch::new("nohup");
    scratch.write("in", b"a\nb\n");
    let mut command = Command::new("sh");
    let script = "trap '' HUP; exec \"$0\" sort -m -o out in -";
    command.current_dir(&scratch.0).args(["-c", script, BINARY]).stdin(Stdio::piped());
    let mut child = command.spawn().unwrap();
    until_made(&scratch);
    signal(&child, "HUP");
    child.stdin.take().unwrap().write_all(b"aa\n").unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(fs::read(scratch.0.join("out")).unwrap(), b"a\naa\nb\n");
}

/// Files that `child` has open in `directory`.
fn open_in(child: &Child, directory: &Path) -> Vec<String> {
    let open = fs::read_dir(format!("/proc/{}/fd", child.id())).unwrap();
    let links = open.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
    let here = links.filter(|link| link.starts_with(directory));
    here.map(|link| link.display().to_string()).collect()
}

/// A sort to standard output left its files in the current directory, whatever TMPDIR said, and
/// nobody ever removed them.
#[test]
fn what_is_sorted_to_standard_output_has_files_that_nobody_sees_where_tmpdir_says() {
    let scratch = Scratch::new("unseen");
    let directories = ["here", "temp", "other"].map(|name| scratch.0.join(name));
    directories.iter().for_each(|directory| fs::create_dir(directory).unwrap());
    let [here, temp, other] = &directories;
    let block = b"one line of text that comes again and again\n".repeat(100_000);
    for (with, expected) in [(&[][..], temp), (&["-T", other.to_str().unwrap()], other)] {
        let mut command = Command::new(BINARY);
        command.current_dir(here).env("TMPDIR", temp).args(["sort", "-S", "32M"]).args(with);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // The pipe stays open: the sort waits for more than it has memory for.
        let mut child = command.spawn().unwrap();
        let mut pipe = child.stdin.take().unwrap();
        for _ in 0..10 {
            pipe.write_all(&block).unwrap();
        }
        while open_in(&child, expected).is_empty() {
            std::thread::yield_now();
        }
        let seen = || directories.iter().map(|d| fs::read_dir(d).unwrap().count()).sum::<usize>();
        assert_eq!(seen(), 0, "a file has a name");
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(seen(), 0, "a file was left");
    }
}

#[test]
fn a_reader_that_goes_ends_the_sort_and_leaves_nothing() {
    let scratch = Scratch::new("pipe");
    let big = b"one line of text that comes again and again\n".repeat(1_000_000);
    scratch.write("in", &big);
    let mut command = Command::new(BINARY);
    command.current_dir(&scratch.0).env("TMPDIR", &scratch.0).args(["sort", "-S", "32M", "in"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut first = [0; 10];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let _ = child.wait().unwrap();
    assert_eq!((&first, scratch.names()), (b"one line o", vec!["in".to_owned()]));
}

/// `sort f -o f` of a file that its owner alone may read made it one that everybody may.
#[test]
fn an_output_keeps_the_permissions_and_the_owner_of_what_it_replaces() {
    let scratch = Scratch::new("modes");
    let path = scratch.0.join("f");
    let of = |path: &Path| {
        let there = fs::metadata(path).unwrap();
        (there.mode() & 0o777, there.uid(), there.gid())
    };
    for (mode, words) in [
        (0o600, &["f", "-o", "f"][..]),
        (0o640, &["-S", "32M", "f", "-o", "f"]),
        (0o755, &["-m", "f", "-o", "f"]),
    ] {
        scratch.write("f", b"b\na\n");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        // Only the superuser gives files away.
        let _ = chown(&path, Some(4321), Some(8765));
        let before = of(&path);
        assert!(holdfast(words, &scratch.0, b"").status.success());
        assert_eq!(of(&path), before, "{words:?}");
        fs::remove_file(&path).unwrap();
    }
    // A new one is as any new file of this user.
    for mask in ["022", "077", "002"] {
        let script = format!("umask {mask}; echo a | \"$0\" sort -o ours; echo a > theirs");
        let mut command = Command::new("sh");
        command.current_dir(&scratch.0).args(["-c", &script, BINARY]).process_group(0);
        assert!(command.status().unwrap().success());
        assert_eq!(of(&scratch.0.join("ours")).0, of(&scratch.0.join("theirs")).0, "{mask}");
        fs::remove_file(scratch.0.join("ours")).unwrap();
        fs::remove_file(scratch.0.join("theirs")).unwrap();
    }
}
