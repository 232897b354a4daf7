//! Hours of categories in files, on a node: whoever dies between, and whatever its clock says.

mod common;

use common::{SECOND_NS, SEGMENT_BYTES, category};
use holdfast_base::{Error, Result};
use holdfast_node::{Keeper, Node};
use holdfast_scribe::face::ScribeFace;
use holdfast_scribe::gather::{Messages, Round};
use holdfast_scribe::hours::{HourFiles, HourWriter, Sink};
use holdfast_scribe::intake::Keeps;
use holdfast_sim::{Clocks, SimDisk};
use holdfast_wire::scribe as msg;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

const HOUR_MS: u64 = 3_600_000;
/// 2026-11-22 13:20 UTC.
const BEGIN_MS: u64 = 1_795_353_600_000;

/// Files that appear whole, and outlive the node; the next ones may not be written.
#[derive(Clone, Default)]
struct Kept {
    files: Arc<Mutex<BTreeMap<String, Vec<u8>>>>,
    fail: Arc<Mutex<u32>>,
}

impl HourFiles for Kept {
    fn write(&mut self, path: &str, write: &mut dyn FnMut(Sink<'_>) -> Result<()>) -> Result<()> {
        if self.files.lock().unwrap().contains_key(path) {
            return Ok(());
        }
        let mut bytes = Vec::new();
        write(&mut |some| {
            bytes.extend_from_slice(some);
            Ok(())
        })?;
        let mut fail = self.fail.lock().unwrap();
        if *fail > 0 {
            *fail -= 1;
            return Err(Error::retry("write a file: its node is away"));
        }
        self.files.lock().unwrap().insert(path.to_owned(), bytes);
        Ok(())
    }

    fn remove(&mut self, path: &str) -> Result<()> {
        self.files.lock().unwrap().remove(path);
        Ok(())
    }
}

struct World {
    disk: SimDisk,
    clocks: Arc<Clocks>,
    node: Arc<Node>,
    face: Arc<ScribeFace>,
    keeper: Keeper,
    files: Kept,
    writer: HourWriter<Kept>,
}

impl World {
    fn new() -> World {
        let clocks = Arc::new(Clocks::default());
        clocks.unix_ms.store(BEGIN_MS, Ordering::Relaxed);
        World::on(SimDisk::new(1), clocks, Kept::default())
    }

    fn on(disk: SimDisk, clocks: Arc<Clocks>, files: Kept) -> World {
        let (node, face, keeper) = common::opened(&disk, &clocks);
        let writer = HourWriter::new(face.clone(), files.clone());
        World { disk, clocks, node, face, keeper, files, writer }
    }

    /// A process that ends without a word, and the next one.
    fn restart(self) -> World {
        let World { disk, clocks, node, face, keeper, files, writer } = self;
        drop((keeper, writer, face, node));
        World::on(disk, clocks, files)
    }

    fn keep(&self, change: impl FnOnce(&mut msg::Keep)) -> msg::Kept {
        let mut keep = msg::Keep {
            category: "web".into(),
            retain_bytes: None,
            retain_ms: None,
            hold_bytes: None,
            hold_ms: None,
            hourly_files: None,
        };
        change(&mut keep);
        self.face.keep_for(&keep).unwrap()
    }

    fn send(&self, text: &str) {
        let mut round = Round::default();
        round.add(&Messages { messages: vec![(category(), text.as_bytes().to_vec())] });
        let not_kept = self.face.keep(&round.pack());
        assert!(not_kept[0].is_empty(), "{:?}", not_kept[0]);
    }

    /// The calendar goes on by so much, or back, and then there is a round.
    fn pass(&mut self, ms: i64) {
        let now_ms = self.clocks.unix_ms.load(Ordering::Relaxed).saturating_add_signed(ms);
        self.clocks.unix_ms.store(now_ms, Ordering::Relaxed);
        self.writer.round(now_ms);
    }

    /// Each file's lines, by its path.
    fn lines(&self) -> Vec<(String, String)> {
        let files = self.files.files.lock().unwrap();
        let lines = |bytes: &Vec<u8>| String::from_utf8(zstd::decode_all(&bytes[..]).unwrap());
        files.iter().map(|(path, bytes)| (path.clone(), lines(bytes).unwrap())).collect()
    }
}

fn file(name: &str, lines: &str) -> (String, String) {
    (format!("/scribe/web/2026-11-22/{name}.zst"), lines.to_owned())
}

#[test]
fn each_hour_becomes_a_file_when_it_is_over() {
    let mut world = World::new();
    world.send("before");
    let kept = world.keep(|keep| keep.hourly_files = Some(true));
    assert!(kept.hourly_files && kept.hours == 0);
    world.send("one\n");
    world.pass(1000);
    world.send("two");
    assert_eq!(world.lines(), [], "the hour is not over");
    world.pass(HOUR_MS as i64);
    let first = file("13", "one\ntwo\n");
    assert_eq!(world.lines(), std::slice::from_ref(&first));
    // An hour without messages has none.
    world.pass(HOUR_MS as i64);
    world.pass(HOUR_MS as i64);
    world.send("three");
    // What it was kept for is not asked for any more: what there is appears at once.
    let kept = world.keep(|keep| keep.hourly_files = Some(false));
    assert!(!kept.hourly_files && kept.hours_waiting == 1);
    world.pass(1000);
    let second = file("16", "three\n");
    assert_eq!(world.lines(), [first.clone(), second.clone()]);
    world.send("nobody writes it");
    world.pass(HOUR_MS as i64);
    assert_eq!(world.lines(), [first, second]);
    assert_eq!(world.keep(|_| {}).hours, 2);
}

/// A clock that was set an hour back had messages written into a file that was there already, or its lines lost.
#[test]
fn a_clock_that_is_set_back_writes_no_hour_twice() {
    let mut world = World::new();
    world.keep(|keep| keep.hourly_files = Some(true));
    world.send("one");
    world.pass(HOUR_MS as i64);
    world.send("two");
    world.pass(-(HOUR_MS as i64));
    world.send("three");
    world = world.restart();
    world.pass(1000);
    world.send("four");
    world.pass(HOUR_MS as i64);
    world.send("five");
    assert_eq!(world.lines(), [file("13", "one\n")]);
    world.pass(HOUR_MS as i64);
    assert_eq!(world.lines(), [file("13", "one\n"), file("14", "two\nthree\nfour\nfive\n")]);
}

/// The file was there, and its node died before it had said so; or could not write it at first.
#[test]
fn whoever_dies_between_writes_each_hour_once() {
    let mut world = World::new();
    world.keep(|keep| keep.hourly_files = Some(true));
    world.send("one");
    *world.files.fail.lock().unwrap() = 2;
    world.pass(HOUR_MS as i64);
    assert_eq!((world.lines(), world.keep(|_| {}).hours_waiting), (vec![], 1));
    world = world.restart();
    world.pass(1000);
    world.send("two");
    world.pass(1000);
    assert_eq!(world.lines(), [file("13", "one\n")]);
    // As one that was written and not said finds it.
    let (path, _) = file("14", "");
    world.files.files.lock().unwrap().insert(path, zstd::encode_all(&b"two\n"[..], 3).unwrap());
    world.pass(HOUR_MS as i64);
    assert_eq!(world.lines(), [file("13", "one\n"), file("14", "two\n")]);
    assert_eq!(world.keep(|_| {}).hours, 2);
}

#[test]
fn files_go_with_their_entries() {
    let mut world = World::new();
    world.keep(|keep| {
        (keep.hourly_files, keep.retain_bytes) = (Some(true), Some(2 * SEGMENT_BYTES));
    });
    for hour in 0..8 {
        for n in 0..12 {
            world.send(&format!("{hour} {n} {}", "x".repeat(n)));
        }
        world.pass(HOUR_MS as i64);
        for _ in 0..12 {
            let now_ns = world.clocks.monotonic_ns.fetch_add(SECOND_NS, Ordering::Relaxed);
            world.keeper.step(now_ns);
        }
    }
    world.pass(1000);
    let lines = world.lines();
    assert!(lines.len() < 8 && lines.len() > 1, "{}", lines.len());
    assert_eq!(lines.len() as u64, world.keep(|_| {}).hours);
    // Those that are there are the last ones, whole.
    assert_eq!(lines.last().unwrap().0, file("20", "").0);
    assert!(lines.iter().all(|(_, lines)| lines.lines().count() == 12), "{lines:?}");
    // None comes back.
    world = world.restart();
    world.pass(1000);
    assert_eq!(world.lines(), lines);
}
