//! One bit flips, again and again, somewhere in what the nodes of a cluster keep on their disks:
//! chunks (open, sealed, raw, packed), snapshots, the log, the files that say who a node is. The
//! node starts anew, everything is read through it and scrubbed. Whatever is read is right or
//! refused; what was damaged is found, and made whole from another copy. The log alone has none:
//! there the damage is found and named, and the bit is put back by hand.

use holdfast_env::disk::Disk;
use holdfast_sim::SimDisk;
use holdfast_sim::powercut::mix;
use holdfast_sim::world::cell::{End, SECOND};
use holdfast_sim::world::scene::{Scene, Version};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const NODES: usize = 5;
const SMALL: u64 = 24;
const LARGE: u64 = 3;

/// What a file on a disk is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Structure {
    Chunk,
    OpenChunk,
    Snapshot,
    Log,
    Identity,
    StoreIdentity,
}

const STRUCTURES: [Structure; 6] = [
    Structure::Chunk,
    Structure::OpenChunk,
    Structure::Snapshot,
    Structure::Log,
    Structure::Identity,
    Structure::StoreIdentity,
];

fn structure(path: &Path) -> Option<Structure> {
    let text = path.to_str()?;
    let name = path.file_name()?.to_str()?;
    if text.contains("/quarantine/") || text.contains("/lost+found/") || name.starts_with("LOCK") {
        return None;
    }
    if text.contains("/log/") {
        return Some(Structure::Log);
    }
    if text.contains("/snapshots/") {
        return Some(Structure::Snapshot);
    }
    if text.contains("/chunks/") {
        return Some(match name {
            _ if name.ends_with(".chunk") => Structure::Chunk,
            _ if name.ends_with(".open") => Structure::OpenChunk,
            _ => Structure::StoreIdentity,
        });
    }
    Some(Structure::Identity)
}

fn files(disk: &SimDisk) -> Vec<(Structure, PathBuf, u64)> {
    let mut files = Vec::new();
    let mut directories = vec![PathBuf::from("/data")];
    while let Some(directory) = directories.pop() {
        for entry in disk.list(&directory).unwrap() {
            let path = directory.join(&entry.name);
            if entry.is_dir {
                directories.push(path);
                continue;
            }
            let bytes =
                disk.open(&path, holdfast_env::disk::Access::Cached).unwrap().len().unwrap();
            if let Some(kind) = structure(&path).filter(|_| bytes > 0) {
                files.push((kind, path, bytes));
            }
        }
    }
    files.sort();
    files
}

fn version(i: u64) -> Version {
    Version { seed: i, bytes: 500 + (i * 977 % 9000) as u32 }
}

fn large(i: u64) -> Version {
    Version { seed: 1000 + i, bytes: 250_000 + 50_000 * i as u32 }
}

fn paths() -> Vec<(String, Version)> {
    let small = (0..SMALL).map(|i| (format!("/s/{i}"), version(i)));
    small.chain((0..LARGE).map(|i| (format!("/l/{i}"), large(i)))).collect()
}

/// What one flip came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    /// Found, and whole again from other copies, or from the log.
    Repaired,
    /// Found and named, in the log's single copy.
    Named,
    /// In bytes that nothing interprets: every read is right, every scrub clean, every view equal.
    WithoutEffect,
}

struct Flips {
    scene: Scene,
    seed: u64,
    /// Findings of each node that are known already, those of earlier processes among them.
    known: Vec<BTreeSet<String>>,
}

impl Flips {
    fn new(seed: u64) -> Flips {
        let mut scene = Scene::new(seed, NODES);
        for (i, (path, version)) in paths().iter().enumerate() {
            let gateway = 1 + i % NODES;
            match version.bytes > 100_000 {
                true => scene.put_large(gateway, path, *version).unwrap(),
                false => scene.put(gateway, path, *version).unwrap(),
            }
        }
        Flips { scene, seed, known: vec![BTreeSet::new(); NODES] }
    }

    fn draw(&mut self) -> u64 {
        self.seed = mix(self.seed, 1);
        self.seed
    }

    fn whole(&self) {
        let whole = self.scene.until(300 * SECOND, |scene| scene.why_not_whole().is_none());
        assert_eq!(self.scene.broken(), Vec::<String>::new());
        assert!(whole, "not whole again: {:?}", self.scene.why_not_whole());
    }

    /// What node `number` has found since this was last asked.
    fn found(&mut self, number: usize) -> Vec<String> {
        let Some(node) = self.scene.node(number) else { return Vec::new() };
        let known = &mut self.known[number - 1];
        node.findings().into_iter().filter(|finding| known.insert(finding.clone())).collect()
    }

    /// Reads everything through a node: right, or refused.
    fn read_all(&self, number: usize) -> usize {
        let mut refused = 0;
        for (path, version) in paths() {
            match self.scene.read(number, &path) {
                Ok(Some(content)) => {
                    assert!(content == version.content(), "`{path}` at n{number} is another file");
                }
                Ok(None) => panic!("`{path}` is not there at n{number}"),
                Err(_) => refused += 1,
            }
        }
        refused
    }

    /// Flips one bit of a structure, and sees what comes of it.
    fn flip(&mut self, wanted: Structure) -> (Structure, Fate, String) {
        // Some write, so that there is always an open chunk, a tail of the log, a fresh snapshot.
        let i = self.draw() % SMALL;
        let gateway = 1 + self.draw() as usize % NODES;
        self.scene.put(gateway, &format!("/s/{i}"), version(i)).unwrap();
        self.whole();
        let number = match wanted {
            Structure::Log => 1,
            _ => 1 + self.draw() as usize % NODES,
        };
        (1..=NODES).for_each(|number| _ = self.found(number));
        self.scene.end(number, End::Kill);
        let disk = self.scene.disk(number);
        let all = files(&disk);
        let of_kind: Vec<_> = all.iter().filter(|(kind, ..)| *kind == wanted).collect();
        let any: Vec<_> = if of_kind.is_empty() { all.iter().collect() } else { of_kind };
        let nth = self.draw() as usize % any.len();
        let (kind, path, bytes) = any[nth].clone();
        let (byte, bit) = (self.draw() % bytes, self.draw() as u32 % 8);
        disk.flip_bit(&path, byte, bit).unwrap();
        let what = format!("n{number} {} byte {byte} of {bytes} bit {bit}", path.display());
        self.scene.start(number);
        let scene = &self.scene;
        scene.until(20 * SECOND, |s| s.node(number).is_some() || s.refused(number).is_some());
        if scene.node(number).is_none() {
            return (kind, self.refused(number, kind, &path, (byte, bit)), what);
        }
        let found = self.found_by_use(number);
        let (fate, what) = match found.first() {
            Some(found) => (Fate::Repaired, format!("{what}: {found}")),
            None => (Fate::WithoutEffect, what),
        };
        self.whole();
        for other in 1..=NODES {
            assert_eq!(self.read_all(other), 0, "after {what}, whole again");
        }
        // What a copy that was not needed in the end left behind is set aside in its own time.
        self.scene.until(60 * SECOND, |scene| scene.violations().is_empty());
        assert_eq!(self.scene.violations(), Vec::<String>::new(), "after {what}");
        (kind, fate, what)
    }

    /// The node runs: its snapshots are taken anew, reads and the scrub come by every stored byte.
    fn found_by_use(&mut self, number: usize) -> Vec<String> {
        self.read_all(number);
        // A scrub takes its time, and so does who reports; what the start found is there already.
        let known = &self.known[number - 1];
        let is_new = |finding: &String| !known.contains(finding);
        let said = |s: &Scene| s.node(number).is_none_or(|n| n.findings().iter().any(is_new));
        self.scene.until(40 * SECOND, said);
        self.found(number)
    }

    /// The node does not start, and says why. With the log it needs a person; any other node's
    /// disk is replaced.
    fn refused(
        &mut self,
        number: usize,
        kind: Structure,
        path: &Path,
        (byte, bit): (u64, u32),
    ) -> Fate {
        let why = self.scene.refused(number).unwrap_or_default();
        assert!(!why.is_empty(), "n{number} does not start, and says nothing");
        let fate = match number {
            1 => {
                self.scene.end(1, End::Kill);
                self.scene.disk(1).flip_bit(path, byte, bit).unwrap();
                if kind == Structure::Log { Fate::Named } else { Fate::Repaired }
            }
            _ => {
                self.scene.end(number, End::Erase);
                Fate::Repaired
            }
        };
        self.scene.start(number);
        self.whole();
        fate
    }
}

#[test]
fn a_flipped_bit_anywhere_is_found_and_never_served() {
    let asked = std::env::var("HOLDFAST_FLIPS").ok().and_then(|n| n.parse().ok());
    let flips: u64 = asked.unwrap_or(48);
    // Waits nest: a suspended round holds its frames while others run.
    let thread = std::thread::Builder::new().stack_size(256 << 20);
    let thread = thread.spawn(move || {
        let mut world = Flips::new(11);
        let mut fates: BTreeMap<(Structure, Fate), u64> = BTreeMap::new();
        for n in 0..flips {
            let (kind, fate, what) = world.flip(STRUCTURES[n as usize % STRUCTURES.len()]);
            *fates.entry((kind, fate)).or_default() += 1;
            println!("{n:>3} {fate:?}: {what}");
        }
        fates
    });
    let fates = thread.unwrap().join().expect("every flip came to a good end");
    println!("{flips} flips:");
    for ((kind, fate), count) in &fates {
        println!("  {count:>3} {kind:?} {fate:?}");
    }
    let sum = |of: Fate| fates.iter().filter(|((_, fate), _)| *fate == of).map(|(_, n)| n).sum();
    let (repaired, named, without): (u64, u64, u64) =
        (sum(Fate::Repaired), sum(Fate::Named), sum(Fate::WithoutEffect));
    assert_eq!(repaired + named + without, flips);
    assert!(repaired > flips / 4, "hardly anything was damaged");
}
