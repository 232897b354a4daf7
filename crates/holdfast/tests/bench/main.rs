//! Every benchmark, at a size that measures nothing: that it runs to its end and says something.
//! `bench recovery` had failed for want of a directory, and nobody saw it until a result was needed.
#![forbid(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    reason = "these tests are the user of the binary: they own files and processes"
)]

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory that goes with the test. Beside the binary, so on a real file system.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("bench-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    /// `holdfast bench WORDS` in this directory.
    fn run(&self, words: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
        command.args(["--json", "bench"]).args(words.split(' ')).current_dir(&self.0);
        command.stdin(Stdio::null()).output().unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Kept for whoever looks into a failure.
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

/// It ends well, and each of its lines is a result.
#[track_caller]
fn runs(words: &str) -> Vec<Value> {
    results(words, Scratch::new().run(words))
}

#[track_caller]
fn results(words: &str, done: Output) -> Vec<Value> {
    let (out, err) =
        (String::from_utf8(done.stdout).unwrap(), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "bench {words}: {out}{err}");
    let lines: Vec<Value> = out.lines().map(|l| serde_json::from_str(l).expect(l)).collect();
    assert!(!lines.is_empty(), "bench {words} says nothing: {err}");
    lines
}

/// A stream, a look-up, a get and a list, in memory and on the disk.
#[test]
fn iobench_runs() {
    for (kind, class) in [("write", 1), ("getKey", 0), ("getFileAsync", 1), ("enumerateDir", 0)] {
        runs(&format!("iobench -t {kind} -c {class} -k 20 -w 2 -e 1 -b 4 --data data"));
    }
    // Limits of their own.
    for kind in ["write", "getKey", "handshake", "handshakeResumed"] {
        runs(&format!("iobench -t {kind} -k 20 -w 2 -e 1 --data data --transport tls"));
    }
}

#[test]
fn the_cache_s_table_runs() {
    let lines = runs("cache --keys 1000 --seconds 0.02 --memory 64 -e 1 --no-peer");
    assert!(lines.len() > 5, "{lines:?}");
}

#[test]
fn the_blobs_table_runs() {
    let lines = runs("blob --sizes 4K --batches 2 --clients 2 -n 20 -e 1 --dir .");
    assert!(lines.len() > 5, "{lines:?}");
}

#[test]
fn dynamodb_s_api_runs() {
    let lines = runs("dynamo -n 40 --clients 2 -e 1 --data . --dynalite none");
    assert!(lines.len() == 2 && lines.iter().all(|line| line["operations"] == 40.0), "{lines:?}");
}

/// The limit's CA was looked for in the file of the node's.
#[test]
fn gets_over_tls_run() {
    let lines = runs("blob -t tls --sizes 4K --clients 2 -n 20 -e 2 --dir .");
    assert!(lines.iter().any(|line| line["case"] == "s3 get 4.00KiB over TLS"), "{lines:?}");
}

#[test]
fn incast_and_the_scheduler_run() {
    runs("incast --servers 5 --rounds 2");
    runs("exchange --servers 3 --blocks 2 --buffer 64K --rate 400");
    runs("table -n 3 --records 200 -e 1 --many 2000 --taken 500 --split-records 2000 --data .");
    runs("scheduler --nodes 20 --chunks 100 -e 1");
}

#[test]
fn the_sort_runs() {
    runs("sort -s 4M -S 32M -e 1 --peer-repetitions 0");
}

/// Given a directory, it began its second cluster in that of the first, and ended.
#[test]
fn what_copies_cost_in_a_cluster_is_measured() {
    runs("cluster copies --nodes 3 --writers 2 --readers 2 --fill 1M -e 1 --data data");
}

/// It makes networks of its own, which only root may.
#[test]
fn the_recovery_of_a_node_is_measured() {
    let words =
        "recovery --nodes 4 --chunks 1 --link 10000000 --methods dayu -e 1 --data made/here";
    let done = Scratch::new().run(words);
    let err = String::from_utf8_lossy(&done.stderr);
    let may = ["run as root", "install iproute2", "install util-linux", "unshare failed"];
    if !done.status.success() && may.iter().any(|why| err.contains(why)) {
        eprintln!("SKIPPED: no networks may be made here: {err}");
        return;
    }
    results(words, done);
}
