//! The log and the snapshots are gone, the stores are there: `doctor --rebuild-names` makes names
//! again, in a directory beside, which a node then serves.

use super::common::{Node, Scratch, binary, bytes, finish};
use super::photos::{client, put, send};
use super::s3::{blob, start};
use holdfast_client::{Client, NewFile};
use holdfast_s3::Request;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Every file below a directory with its bytes.
fn picture(dir: &Path, out: &mut BTreeMap<PathBuf, Vec<u8>>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => picture(&path, out),
            false => {
                // Sockets are nobody's bytes.
                if let Ok(bytes) = fs::read(&path) {
                    out.insert(path, bytes);
                }
            }
        }
    }
}

/// Puts files of all kinds; answers those that are found again by path, with what they hold.
fn fill(files: &mut Client, new: &NewFile) -> BTreeMap<String, Vec<u8>> {
    let replacing = NewFile { replace: true, ..new.clone() };
    let mut wanted = BTreeMap::new();
    for i in 0..60u64 {
        let (path, content) = (format!("/d{}/e/f{i}", i % 3), bytes(i, 1 + 700 * i as usize));
        files.put(&path, &content, new).unwrap();
        wanted.insert(path, content);
    }
    // Overwritten: the last version has the path. Renamed: it is where it was written. Deleted: it
    // is back.
    files.put("/d0/e/f0", b"again", &replacing).unwrap();
    wanted.insert("/d0/e/f0".into(), b"again".to_vec());
    files.rename("/d1/e/f1", "/moved", false).unwrap();
    files.delete("/d2/e/f2", false).unwrap();
    // Large ones: of several chunks with a packed end, of a stream, and one that nobody closed.
    files.make_dir("/large", new).unwrap();
    let film = bytes(99, (64 << 20) + 100_000);
    files.put_sized("/large/film", &film, new).unwrap();
    wanted.insert("/large/film".into(), film);
    let song = bytes(98, 3 << 20);
    let mut writer = files.create("/large/song", new).unwrap();
    writer.write(&song).unwrap();
    writer.close().unwrap();
    wanted.insert("/large/song".into(), song);
    let mut writer = files.create("/large/draft", new).unwrap();
    writer.append(b"acknowledged").unwrap();
    drop(writer);
    wanted.insert("/large/draft".into(), b"acknowledged".to_vec());
    wanted
}

#[test]
fn names_are_made_again_from_the_stores_when_the_log_is_lost() {
    let scratch = Scratch::new();
    let node = start(&scratch.path("data"));
    let mut files = node.client();
    let new = NewFile { parents: true, ..NewFile::default() };
    let wanted = fill(&mut files, &new);
    drop(files);
    blob(&node.data, &["mb", "box"], b"").ok();
    let mut s3 = client(&node.data);
    let keys = (0..20u64).map(|i| (format!("/box/k/{i}"), bytes(1000 + i, 1 + 3000 * i as usize)));
    let blobs: BTreeMap<String, Vec<u8>> = keys.collect();
    blobs.iter().for_each(|(key, content)| drop(put(&mut s3, key, content)));
    drop(s3);
    // As after a crash: chunks are open, and the journal has what their files miss.
    let data = node.kill();
    fs::remove_dir_all(data.join("log")).unwrap();
    fs::remove_dir_all(data.join("snapshots")).unwrap();
    let _ = fs::remove_dir_all(data.join("blobs"));
    let mut before = BTreeMap::new();
    picture(&data, &mut before);
    // The refusal was a bare "node is not known: let it join first", and left an empty log where the
    // right one was to be put back.
    for _ in 0..2 {
        let refused = Node::try_start(&data).err().expect("a node without its log");
        refused.refused(&["log is lost", "--rebuild-names", "--join"]);
    }
    let doctor = finish(binary().args(["doctor", "--data"]).arg(&data), b"");
    doctor.refused(&["log is lost", "--rebuild-names"]);
    assert!(!data.join("log").exists(), "nothing is made in its place");

    let into = scratch.path("again");
    let rebuild = |into: &Path| {
        let mut command = binary();
        command.args(["doctor", "--rebuild-names", "--data"]).arg(&data).arg("--into").arg(into);
        finish(&mut command, b"")
    };
    let told = rebuild(&into).ok();
    assert!(told.contains("Renames and deletions are unknown"), "{told}");
    assert!(told.contains("20 blobs"), "{told}");
    let mut after = BTreeMap::new();
    picture(&data, &mut after);
    assert!(before == after, "the original is only read");
    rebuild(&into).refused(&["again", "empty"]);
    rebuild(&data.join("inside")).refused(&["inside"]);

    let node = start(&into);
    let mut files = node.client();
    for (path, content) in &wanted {
        assert!(files.get(path).unwrap() == *content, "`{path}`");
    }
    // The first version of `f0` has one byte.
    let older = files.list("/recovered/older/d0/e", "").unwrap();
    assert_eq!(older.entries.len(), 1, "{older:?}");
    // It goes on: new chunks take no id that is there.
    files.put("/new", b"new", &new).unwrap();
    assert_eq!(files.get("/new").unwrap(), b"new");
    drop(files);
    let mut s3 = client(&into);
    for (key, content) in &blobs {
        assert!(send(&mut s3, Request::new("GET", key)).body == *content, "{key}");
    }
    drop(s3);
    let data = node.stop();
    let doctor = finish(binary().args(["doctor", "--data"]).arg(&data), b"").ok();
    assert!(doctor.ends_with("is well\n"), "{doctor}");
}
