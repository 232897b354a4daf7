//! One flipped bit anywhere in a node's files: bytes are right or refused, and whatever is missing
//! was reported.

use crate::chunk::crcs;
use crate::common::{Answer, noise};
use crate::node::{Files, SimClock, config, read_tree};
use holdfast_base::checksum::crc32c;
use holdfast_base::ids::{Durability, FileId};
use holdfast_base::node::{NodeKind, StorageClass};
use holdfast_cluster::{Command, Location};
use holdfast_env::{Disk, Rng, SeededRng};
use holdfast_node::{Machine, Node};
use holdfast_sim::SimDisk;
use holdfast_wire::Call;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Flips tried in each file.
const FLIPS: u64 = 60;

fn open(disk: &SimDisk) -> holdfast_base::Result<Arc<Node>> {
    let machine = Machine {
        disk: Arc::new(disk.clone()),
        engine: Arc::new(disk.clone()),
        clock: Arc::new(SimClock(AtomicU64::new(0))),
        rng: Arc::new(SeededRng::new(3)),
        peers: Arc::new(holdfast_env::net::NoPeers),
        meter: Arc::default(),
    };
    Node::open(machine, &config(), None)
}

fn put(node: &Arc<Node>, path: &str, bytes: &[u8]) {
    let (pointer, done) = Answer::new();
    let (body, sums) = (Box::new(bytes.to_vec()), crcs(0, bytes));
    node.pack(StorageClass::DEFAULT, (0, FileId(0)), path, body, sums, done);
    node.pump();
    let command = Command::Put {
        path: path.to_owned(),
        kind: NodeKind::File,
        mode: 0o644,
        mtime: 1,
        size: bytes.len() as u64,
        crc: crc32c(bytes),
        class: None,
        location: Location::Packed { pointer: pointer.get().unwrap() },
        replace: false,
        parents: true,
        metadata: Vec::new(),
    };
    let (answer, done) = Answer::new();
    node.propose(Call::default(), &command, Durability::Durable, done);
    node.pump();
    answer.get().unwrap();
}

fn all_files(disk: &SimDisk, dir: &Path, out: &mut Vec<(PathBuf, u64)>) {
    for entry in disk.list(dir).unwrap() {
        let path = dir.join(&entry.name);
        if entry.is_dir {
            all_files(disk, &path, out);
        } else if entry.bytes > 0 {
            out.push((path, entry.bytes));
        }
    }
}

#[test]
fn a_flipped_bit_in_any_file_of_a_node_is_refused_or_reported_and_never_served() {
    let disk = SimDisk::new(1);
    let node = open(&disk).unwrap();
    let mut wanted = Files::new();
    for i in 0..24 {
        let (path, bytes) = (format!("/d/f{i}"), noise(i, 100 + 1500 * (i as usize % 7)));
        put(&node, &path, &bytes);
        wanted.insert(path, bytes);
        if i == 8 || i == 16 {
            node.shards.root().snapshot_now().unwrap();
        }
    }
    drop(node);
    let mut files = Vec::new();
    all_files(&disk.power_cut_losing_all(), Path::new("/data"), &mut files);
    let rng = SeededRng::new(7);
    let (mut refused, mut reported, mut harmless) = (0, 0, 0);
    for (path, len) in files {
        for _ in 0..FLIPS {
            let disk = disk.power_cut_losing_all();
            // Mostly where a file has its headers.
            let reach = if rng.next_u64().is_multiple_of(2) { len } else { len.min(9000) };
            let (byte, bit) = (rng.next_u64() % reach, (rng.next_u64() % 8) as u32);
            disk.flip_bit(&path, byte, bit).unwrap();
            let place = format!("bit {bit} of byte {byte} of `{}`", path.display());
            let Ok(node) = open(&disk) else {
                refused += 1;
                continue;
            };
            let mut found = Files::new();
            let read = read_tree(&node, "/", &mut found);
            for (path, bytes) in &found {
                assert_eq!(wanted.get(path), Some(bytes), "{place}: `{path}`");
            }
            let told = read.is_err()
                || !node.findings().is_empty()
                || !node.shards.root().status().reports.is_empty()
                || !node.cluster.status().reports.is_empty();
            assert!(told || found == wanted, "{place}: something is missing in silence");
            if told { reported += 1 } else { harmless += 1 }
        }
    }
    println!(
        "flips: {refused} refused, {reported} reported, {harmless} in bytes that hold nothing"
    );
    assert!(refused > 0 && reported > 0);
}
