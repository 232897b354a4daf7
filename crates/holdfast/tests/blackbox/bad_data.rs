//! Data directories that a node must not or cannot use, and bytes that changed while it was away:
//! a clear sentence, and never a wrong byte.

use crate::common::{Finished, Node, Scratch, binary, bytes, finish};
use holdfast_base::Kind;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::SystemTime;

/// Every file, how long it is, and when it was written last.
fn as_it_is(data: &Path) -> Vec<(PathBuf, u64, SystemTime)> {
    let mut all = Vec::new();
    files(data, &mut all);
    all.sort();
    let about = |path: PathBuf| {
        let about = fs::metadata(&path).unwrap();
        (path, about.len(), about.modified().unwrap())
    };
    all.into_iter().map(about).collect()
}

/// Asked twice: it once cut what it had found to be torn, and the second time all was well.
fn doctor(data: &Path) -> Finished {
    let ask = || finish(binary().args(["doctor", "--data"]).arg(data), b"");
    let before = as_it_is(data);
    let told = ask();
    if !told.err.contains("another process uses it") {
        let again = ask();
        assert_eq!((told.code, &told.out, &told.err), (again.code, &again.out, &again.err));
        // Whoever reads of what was cut looks for it there.
        let found = !told.out.starts_with(b"-") || told.err.contains("nothing was written there");
        assert!(found, "{}", told.err);
        assert_eq!(as_it_is(data), before, "{}", told.err);
    }
    told
}

fn refused(data: &Path, names: &[&str]) {
    let place = data.display().to_string();
    let names: Vec<&str> = names.iter().copied().chain([place.as_str()]).collect();
    match Node::try_start(data) {
        Err(done) => _ = done.refused(&names),
        Ok(_) => panic!("the node started"),
    }
}

#[test]
fn a_directory_of_another_version_is_refused_untouched() {
    let scratch = Scratch::new();
    let data = Node::start(&scratch.path("data")).stop();
    let mark = data.join("HOLDFAST");
    let said = fs::read_to_string(&mark).unwrap();
    fs::write(&mark, "Holdfast data directory, format 99\n").unwrap();
    refused(&data, &["format 99", "use the build that made it"]);
    doctor(&data).refused(&["format 99"]);
    fs::write(&mark, said).unwrap();
    Node::start(&data).stop();
}

#[test]
fn a_directory_that_holds_something_else_is_refused_untouched() {
    let scratch = Scratch::new();
    let data = scratch.path("photos");
    fs::create_dir_all(&data).unwrap();
    fs::write(data.join("holiday.jpg"), "not ours").unwrap();
    refused(&data, &["holiday.jpg", "choose an empty one"]);
    assert!(!data.join("HOLDFAST").exists() && !data.join("chunks").exists());
    let file = scratch.path("file");
    fs::write(&file, "").unwrap();
    assert!(Node::try_start(&file).is_err_and(|done| done.code == Some(1)));
}

#[test]
fn a_directory_in_use_is_refused_to_the_second() {
    let scratch = Scratch::new();
    let data = scratch.path("data");
    let node = Node::start(&data);
    node.run(&["fs", "mkdir", "/d"]).ok();
    refused(&data, &["another process uses it", "--data"]);
    doctor(&data).refused(&["another process uses it"]);
    assert_eq!(node.run(&["fs", "ls"]).ok(), "d\n", "the first goes on");
    node.stop();
    assert!(doctor(&data).ok().ends_with("is well\n"));
}

/// Root writes anywhere, so the directory becomes a read-only mount, in a mount namespace of its
/// own that goes with the process.
#[test]
fn a_directory_that_cannot_be_written_is_named() {
    let scratch = Scratch::new();
    let data = Node::start(&scratch.path("data")).stop();
    let script = "mount --bind \"$1\" \"$1\" && mount -o remount,ro,bind \"$1\" || exit 77; \
                  exec \"$0\" up --data \"$1\"";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, env!("CARGO_BIN_EXE_holdfast")]).arg(&data);
    match command.output() {
        Ok(done) if [Some(0), Some(1)].contains(&done.status.code()) => {
            let err = String::from_utf8(done.stderr).unwrap();
            if err.starts_with("unshare") {
                return eprintln!("SKIPPED: no mount namespace may be made here: {err}");
            }
            let done = Finished { code: done.status.code(), out: done.stdout, err };
            done.refused(&[data.to_str().unwrap(), "Read-only"]);
        }
        other => eprintln!("SKIPPED: nothing may be mounted here: {other:?}"),
    }
    Node::start(&data).stop();
}

/// Flips one bit of a file.
fn flip(path: &Path, at: usize) {
    let mut content = fs::read(path).unwrap();
    content[at] ^= 4;
    fs::write(path, content).unwrap();
}

fn files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files(&path, found) } else { found.push(path) }
    }
    found.sort();
}

/// The chunk file that holds these bytes, and where.
fn holding(data: &Path, wanted: &[u8]) -> (PathBuf, usize) {
    let mut chunks = Vec::new();
    files(&data.join("chunks"), &mut chunks);
    let find = |path: PathBuf| {
        let content = fs::read(&path).unwrap();
        let at = content.windows(wanted.len()).position(|window| window == wanted)?;
        Some((path, at))
    };
    chunks.into_iter().find_map(find).expect("some chunk holds the bytes")
}

#[test]
fn a_flipped_bit_of_stored_bytes_is_never_served() {
    let (scratch, data, small, large) = two_flipped_bits();
    let node = Node::start(&data);
    let out = scratch.path("out");
    for name in ["/small", "/large"] {
        node.run(&["fs", "get", name, out.to_str().unwrap()]).refused(&["checksum"]);
        assert!(!out.exists(), "a file appears when it is whole");
        let done = node.run(&["fs", "cat", name]);
        assert_eq!(done.code, Some(1));
        assert!(large.starts_with(&done.out) || small.starts_with(&done.out), "a wrong byte");
    }
    assert_eq!(node.run(&["fs", "cat", "/beside"]).ok(), "beside it");
}

#[test]
fn doctor_names_the_chunks_whose_bytes_changed() {
    let (_scratch, data, ..) = two_flipped_bits();
    let done = doctor(&data);
    assert_eq!(done.code, Some(1), "{done:?}");
    let said = String::from_utf8(done.out).unwrap();
    assert_eq!(said.lines().filter(|line| line.contains("chunk `c")).count(), 2, "{said}");
}

/// A stopped node's directory with a bit flipped in `/small` and one in `/large`; `/beside` lies
/// in the same chunk as `/small`.
fn two_flipped_bits() -> (Scratch, PathBuf, Vec<u8>, Vec<u8>) {
    let scratch = Scratch::new();
    let node = Node::start(&scratch.path("data"));
    let (small, large) = (bytes(1, 3000), bytes(2, 18 << 20));
    let mut client = node.client();
    client.put("/small", &small, &Default::default()).unwrap();
    client.put("/beside", b"beside it", &Default::default()).unwrap();
    let mut writer = client.create("/large", &Default::default()).unwrap();
    writer.write(&large).unwrap();
    writer.close().unwrap();
    drop(client);
    // A start closes the chunks of the one before.
    let data = Node::start(&node.stop()).stop();
    assert!(doctor(&data).ok().ends_with("is well\n"));

    let (chunk, at) = holding(&data, &small[1000..1064]);
    flip(&chunk, at);
    let (raw, at) = holding(&data, &large[10 << 20..][..64]);
    flip(&raw, at + 64);
    (scratch, data, small, large)
}

#[test]
fn a_flipped_bit_of_the_log_stops_the_start_with_its_place() {
    let scratch = Scratch::new();
    let node = Node::start(&scratch.path("data"));
    for i in 0..200 {
        node.client().put(&format!("/f{i}"), b"x", &Default::default()).unwrap();
    }
    let data = node.kill();
    let mut segments = Vec::new();
    files(&data.join("log/topics"), &mut segments);
    let namespace = segments.iter().find(|path| {
        let named = path.to_str().unwrap().contains("namespace");
        let content = fs::read(path).unwrap();
        named && content.windows(5).any(|window| window == b"/f100")
    });
    let segment = namespace.expect("a segment holds the names").clone();
    let content = fs::read(&segment).unwrap();
    let at = content.windows(5).position(|window| window == b"/f100").unwrap();
    flip(&segment, at);
    let name = segment.file_name().unwrap().to_str().unwrap();
    // What was said to do, moving the topic away, ended in one refusal after another.
    refused(&data, &[name, "--rebuild-names", "starts anew when its directory is moved away"]);
    doctor(&data).refused(&[name]);
    flip(&segment, at);
    let node = Node::start(&data);
    assert_eq!(node.run(&["fs", "cat", "/f100"]).ok(), "x");
}

/// A topic of a user's own that was damaged took no entries any more, and all was said to be well.
#[test]
fn a_flipped_bit_of_a_users_topic_is_told_and_keeps_nobody_else() {
    let scratch = Scratch::new();
    let node = Node::start(&scratch.path("data"));
    for entry in ["one", "two", "three"] {
        node.run(&["log", "append", "mine/0", entry]).ok();
    }
    node.client().put("/f", b"x", &Default::default()).unwrap();
    let data = node.kill();
    let mut segments = Vec::new();
    files(&data.join("log/topics"), &mut segments);
    let mine = |path: &&PathBuf| {
        let content = fs::read(path).unwrap();
        content.windows(3).any(|window| window == b"two")
    };
    let segment = segments.iter().find(mine).expect("a segment holds the entries").clone();
    let at = fs::read(&segment).unwrap().windows(3).position(|window| window == b"two").unwrap();
    flip(&segment, at);
    let told = doctor(&data);
    let findings = String::from_utf8_lossy(&told.out);
    assert!(told.code == Some(1) && findings.contains("`mine/0`"), "{findings}{}", told.err);
    let node = Node::start(&data);
    let findings = node.until("the damage is told", |s| !s.findings.is_empty()).findings;
    assert!(findings[0].contains("mine/0") && findings.len() == 1, "{findings:?}");
    assert_eq!(node.run(&["fs", "cat", "/f"]).ok(), "x");
    node.run(&["log", "read", "mine/0"]).refused(&["is damaged at offset"]);
    let data = node.stop();
    flip(&segment, at);
    let node = Node::start(&data);
    assert!(node.run(&["log", "read", "mine/0"]).ok().contains("three"));
    node.stop();
}

/// A file in the middle of a topic was gone, and `doctor --data` said that all was well: a start looks
/// at the headers of the files that are there. One that is missing at the front is told by a start.
#[test]
fn a_missing_file_of_a_users_topic_is_told() {
    let scratch = Scratch::new();
    let node = Node::start(&scratch.path("data"));
    let mut client = node.client();
    let entry = vec![7; 500 << 10];
    // Three files, of 64 MiB each.
    for _ in 0..288 {
        client.log().append("mine/0", &[&entry]).unwrap();
    }
    drop(client);
    let data = node.stop();
    let mut segments = Vec::new();
    files(&data.join("log/topics/mine+0"), &mut segments);
    segments.retain(|path| path.extension().is_some_and(|e| e == "seg"));
    segments.sort();
    assert_eq!(segments.len(), 3, "{segments:?}");
    assert!(doctor(&data).ok().ends_with("is well\n"));
    let aside = scratch.path("aside");
    for (missing, words) in [(1, "are in no file"), (0, "entry 1 is missing")] {
        fs::rename(&segments[missing], &aside).unwrap();
        let told = doctor(&data);
        let findings = String::from_utf8_lossy(&told.out);
        let named = findings.contains("`mine/0`") && findings.contains(words);
        assert!(told.code == Some(1) && named, "{findings}{}", told.err);
        assert_eq!(findings.lines().count(), 1, "{findings}");
        fs::rename(&aside, &segments[missing]).unwrap();
    }
    assert!(doctor(&data).ok().ends_with("is well\n"));
}

/// With the newest snapshot damaged, the one before it and the log tell the same; with all of
/// them damaged, the log does, or it was trimmed, and that is said.
#[test]
fn a_flipped_bit_of_a_snapshot_loses_nothing() {
    let scratch = Scratch::new();
    let node = Node::start_with(&scratch.path("data"), "snapshot_entries = 60\n");
    let snapshots = || {
        let mut found = Vec::new();
        files(&node.data.join("snapshots/namespace-0"), &mut found);
        found.retain(|path| path.extension().is_none_or(|extension| extension != "tmp"));
        found
    };
    let mut client = node.client();
    for i in 0..200 {
        client.put(&format!("/f{i}"), format!("{i}").as_bytes(), &Default::default()).unwrap();
    }
    node.until("two snapshots are there", |_| snapshots().len() >= 2);
    drop(client);
    let found = snapshots();
    let data = node.kill();
    let middle = |path: &Path| fs::metadata(path).unwrap().len() as usize / 2;
    let newest = found.last().unwrap();
    flip(newest, middle(newest));
    let assert_whole = |node: &Node| {
        let mut client = node.client();
        for i in 0..200 {
            assert_eq!(client.get(&format!("/f{i}")).unwrap(), format!("{i}").as_bytes());
        }
    };
    let node = Node::start(&data);
    assert_whole(&node);
    let data = node.kill();
    let mut found = Vec::new();
    files(&data.join("snapshots/namespace-0"), &mut found);
    found.iter().filter(|path| *path != newest).for_each(|path| flip(path, middle(path)));
    match Node::try_start(&data) {
        // The log was trimmed meanwhile: the view stops, and says why to whoever asks.
        Ok(mut node) => match node.client().get("/f0") {
            Err(e) => {
                assert!(e.kind == Kind::Corrupt && e.message.contains("snapshot"), "{e}");
                node.told.announce("view.stopped");
            }
            Ok(_) => assert_whole(&node),
        },
        Err(done) => _ = done.refused(&[data.to_str().unwrap(), "snapshot"]),
    }
}

/// A pipe among the chunks: whoever opens one to read waits until somebody writes to it, and `doctor` waited for
/// ever. Whichever file it takes the place of, it is told, and nothing waits.
#[test]
fn a_pipe_in_the_place_of_a_file_is_told_and_nothing_waits_for_it() {
    let scratch = Scratch::new();
    let node = Node::start(&scratch.path("data"));
    let mut client = node.client();
    client.put("/f", &bytes(1, 3000), &Default::default()).unwrap();
    let mut writer = client.create("/large", &Default::default()).unwrap();
    writer.write(&bytes(2, 3 << 20)).unwrap();
    writer.close().unwrap();
    drop(client);
    let data = Node::start(&node.stop()).stop();
    let make_pipe = |path: &Path| {
        assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    };
    let bounded = |words: &[&str]| {
        let mut command = Command::new("timeout");
        command.args(["60", env!("CARGO_BIN_EXE_holdfast")]).args(words).arg(&data);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let done = finish(&mut command, b"");
        assert_ne!(done.code, Some(124), "it waits: {done:?}");
        done
    };
    // Names that no store gives, and one that some store may have given.
    let mut chunks = Vec::new();
    files(&data.join("chunks"), &mut chunks);
    let is_chunk = |path: &&PathBuf| path.extension().is_some_and(|end| end == "chunk");
    let real = chunks.iter().find(is_chunk).expect("there is a chunk");
    let id = real.file_name().unwrap().to_str().unwrap();
    let (chunk, ends) = id.split_once('.').unwrap();
    let (front, last) = chunk.split_at(chunk.len() - 1);
    let like_it = format!("{front}{}.{ends}", if last == "9" { "8" } else { "9" });
    for name in ["stranger", &like_it] {
        make_pipe(&real.with_file_name(name));
    }
    let told = doctor(&data);
    let said = String::from_utf8(told.out.clone()).unwrap();
    for name in ["stranger", &like_it] {
        let is_told = |line: &str| line.contains(name) && !line.contains("did not give it");
        assert!(said.lines().any(is_told), "{name}: {told:?}");
    }
    for name in ["stranger", &like_it] {
        fs::remove_file(real.with_file_name(name)).unwrap();
    }

    // In the place of each file that is there, but for those that a person writes. Which there are differs
    // by what the node came to in its short life, so it is asked of each: nothing is lost with a lock, with
    // what was reached last, or with space that is kept in reserve.
    let mut all = Vec::new();
    files(&data, &mut all);
    let holds_nothing = |path: &Path, name: &str| {
        ["LOCK", "REACHED"].contains(&name)
            || name.starts_with("spare-")
            || path.parent().is_some_and(|parent| parent.ends_with("log/reserve"))
    };
    let kept = scratch.path("kept");
    for path in &all {
        let name = path.file_name().unwrap().to_str().unwrap();
        if ["holdfast.toml", "secret", "http-token"].contains(&name) {
            continue;
        }
        fs::rename(path, &kept).unwrap();
        make_pipe(path);
        let done = bounded(&["doctor", "--data"]);
        let named = String::from_utf8(done.out).unwrap() + &done.err;
        if !holds_nothing(path, name) {
            assert!(
                done.code == Some(1) && named.contains(name),
                "{name}: {:?} {named}",
                done.code
            );
        }
        fs::remove_file(path).unwrap();
        fs::rename(&kept, path).unwrap();
    }
    assert!(doctor(&data).ok().ends_with("is well\n"));
}
