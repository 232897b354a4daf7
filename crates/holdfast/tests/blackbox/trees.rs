//! A real tree goes in and comes out the same: bytes, modes, times, links; also after a kill and
//! after an orderly end.

use crate::common::{Node, Random, Scratch, bytes};
use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

/// What a path of a tree is; directories without their size, links by their target.
#[derive(Debug, PartialEq, Eq)]
enum Entry {
    Directory { mode: u32, mtime: (i64, i64) },
    File { mode: u32, mtime: (i64, i64), len: usize, sum: u32 },
    Link { target: PathBuf, mtime: (i64, i64) },
}

fn walk(root: &Path, at: &Path, found: &mut BTreeMap<PathBuf, Entry>) {
    let metadata = fs::symlink_metadata(at).unwrap();
    let (mode, mtime) = (metadata.mode() & 0o7777, (metadata.mtime(), metadata.mtime_nsec()));
    let name = at.strip_prefix(root).unwrap().to_owned();
    if metadata.is_dir() {
        found.insert(name, Entry::Directory { mode, mtime });
        for entry in fs::read_dir(at).unwrap() {
            walk(root, &entry.unwrap().path(), found);
        }
    } else if metadata.is_symlink() {
        found.insert(name, Entry::Link { target: fs::read_link(at).unwrap(), mtime });
    } else {
        let content = fs::read(at).unwrap();
        let sum = holdfast_base::checksum::crc32c(&content);
        found.insert(name, Entry::File { mode, mtime, len: content.len(), sum });
    }
}

fn tree(root: &Path) -> BTreeMap<PathBuf, Entry> {
    let mut found = BTreeMap::new();
    walk(root, root, &mut found);
    found
}

#[track_caller]
fn assert_same(expected: &Path, found: &Path) {
    let (expected, found) = (tree(expected), tree(found));
    for (name, entry) in &expected {
        assert_eq!(Some(entry), found.get(name), "{name:?}");
    }
    assert_eq!(expected.len(), found.len(), "nothing came that was not put");
}

fn set_time(path: &Path, seconds: i64, nanoseconds: u32) {
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let time = if seconds < 0 { UNIX_EPOCH - whole } else { UNIX_EPOCH + whole };
    let time = time + Duration::from_nanos(nanoseconds as u64);
    File::open(path).unwrap().set_modified(time).unwrap();
}

/// Everything that is legal and unusual.
fn build(root: &Path) {
    fs::create_dir_all(root.join("empty directory")).unwrap();
    let mut deep = root.to_owned();
    for depth in 0..60 {
        deep.push(format!("d{depth}"));
    }
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("bottom"), "deep").unwrap();
    odd_names(root);
    sizes(root);
    many_files(root);
    links(root);
    modes(root);
    times(root);
    set_time(&root.join("empty directory"), -5, 5);
    set_time(&root.join("links"), 77, 7);
    set_time(&root.join("d0"), 0, 0);
}

/// What a shell or a terminal could trip over.
fn odd_names(root: &Path) {
    let names = root.join("names");
    fs::create_dir(&names).unwrap();
    let longest = "n".repeat(255);
    let odd = [
        " ",
        "  two  ",
        "-rf",
        "--help",
        "a\nb",
        "a\tb",
        "quote\"'`",
        "\\",
        "*?[x]",
        "$HOME",
        "...",
        ".hidden",
        "%2F",
        "ümlaut",
        "日本語",
        "👩‍🚀",
        "a\u{301}",
        "\u{7f}\u{1b}[31m",
        "~",
        "#",
        &longest,
    ];
    for name in odd {
        fs::write(names.join(name), name).unwrap();
    }
}

/// Around every border of what is inline, packed, a slice and a chunk.
fn sizes(root: &Path) {
    let sizes = root.join("sizes");
    fs::create_dir(&sizes).unwrap();
    let (kib, mib) = (1usize << 10, 1usize << 20);
    fs::write(sizes.join("0"), "").unwrap();
    let large = bytes(1, 101 * mib + 12_345);
    for boundary in [1, 64 * kib, 512 * kib, mib, 16 * mib] {
        for size in [boundary - 1, boundary, boundary + 1] {
            fs::write(sizes.join(size.to_string()), &large[size / 3..][..size]).unwrap();
        }
    }
    fs::write(sizes.join("a chunk"), &large[..64 * mib]).unwrap();
    fs::write(sizes.join("a chunk and more"), &large[5..][..64 * mib + 1]).unwrap();
    fs::write(sizes.join("large"), &large).unwrap();
}

/// So many that a directory takes pages.
fn many_files(root: &Path) {
    let mut random = Random::new(7);
    let many = root.join("many");
    fs::create_dir(&many).unwrap();
    for i in 0..500 {
        let len = random.below(9000) as usize;
        fs::write(many.join(format!("f{i:03}")), bytes(i, len)).unwrap();
    }
}

/// Those that lead somewhere, nowhere and in a circle.
fn links(root: &Path) {
    let links = root.join("links");
    fs::create_dir(&links).unwrap();
    symlink("../names/...", links.join("file")).unwrap();
    symlink("../sizes", links.join("directory")).unwrap();
    symlink("no/such/thing", links.join("dangling")).unwrap();
    symlink("loop", links.join("loop")).unwrap();
    symlink("/etc/hostname", links.join("absolute")).unwrap();
}

/// With bits of every kind.
fn modes(root: &Path) {
    let modes = root.join("modes");
    fs::create_dir(&modes).unwrap();
    for mode in [0o000, 0o400, 0o644, 0o755, 0o777, 0o1777, 0o2755, 0o4755] {
        let path = modes.join(format!("{mode:o}"));
        fs::write(&path, "m").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    }
    fs::create_dir(modes.join("private")).unwrap();
    fs::set_permissions(modes.join("private"), Permissions::from_mode(0o700)).unwrap();
}

/// Before 1970, far away, and with nanoseconds.
fn times(root: &Path) {
    let times = root.join("times");
    fs::create_dir(&times).unwrap();
    let odd = [
        (0, 0),
        (0, 1),
        (1, 0),
        (-1, 0),
        (-1, 999_999_999),
        (-86_400 * 365 * 30, 123_456_789),
        (951_782_400, 1),
        (4_102_444_800, 999_999_999),
    ];
    for (i, (seconds, nanoseconds)) in odd.into_iter().enumerate() {
        let path = times.join(i.to_string());
        fs::write(&path, "t").unwrap();
        set_time(&path, seconds, nanoseconds);
    }
}

#[test]
fn a_tree_comes_back_the_same_also_after_a_kill_and_after_an_end() {
    let scratch = Scratch::new();
    let (source, data) = (scratch.path("source"), scratch.path("data"));
    build(&source);
    let node = Node::start(&data);
    node.run(&["fs", "put", "-r", source.to_str().unwrap(), "/tree"]).ok();
    let fetch = |node: &Node, name: &str| {
        let to = scratch.path(name);
        node.run(&["fs", "get", "-r", "/tree", to.to_str().unwrap()]).ok();
        assert_same(&source, &to);
        fs::remove_dir_all(&to).unwrap();
    };
    fetch(&node, "at once");
    let before = node.json(&["status"]).remove(0);
    node.kill();

    let node = Node::start(&data);
    fetch(&node, "after a kill");
    let after = node.json(&["status"]).remove(0);
    for key in ["files", "directories", "bytes"] {
        assert_eq!(before[key], after[key], "{key}");
    }
    assert_eq!(after["findings"], serde_json::json!([]));
    node.stop();

    let node = Node::start(&data);
    fetch(&node, "after an end");
    node.stop();
}

#[test]
fn a_tree_merges_into_one_that_is_there_only_with_force() {
    let scratch = Scratch::new();
    let source = scratch.path("source");
    fs::create_dir_all(source.join("d")).unwrap();
    fs::write(source.join("d/f"), "one").unwrap();
    symlink("d/f", source.join("l")).unwrap();
    let node = Node::start(&scratch.path("data"));
    let (local, out) = (source.to_str().unwrap(), scratch.path("out"));
    node.run(&["fs", "put", "-r", local, "/t"]).ok();
    // The second time the target is a directory: it goes below, as with cp.
    node.run(&["fs", "put", "-r", local, "/t"]).ok();
    assert_eq!(node.run(&["fs", "cat", "/t/source/d/f"]).ok(), "one");

    fs::write(source.join("d/f"), "two").unwrap();
    node.run(&["fs", "put", "-r", local, "/t"]).refused(&["/t/source/", "-f"]);
    assert_eq!(node.run(&["fs", "cat", "/t/source/d/f"]).ok(), "one");
    node.run(&["fs", "put", "-r", "-f", local, "/t"]).ok();
    assert_eq!(node.run(&["fs", "cat", "/t/source/d/f"]).ok(), "two");

    node.run(&["fs", "get", "-r", "/t/source", out.to_str().unwrap()]).ok();
    assert_same(&source, &out);
    node.run(&["fs", "get", "-r", "/t/source/d/f", out.to_str().unwrap()]).ok();
    node.run(&["fs", "get", "/t/source/d/f", out.to_str().unwrap()])
        .refused(&["/t/source/d/f", "-f"]);
}
