//! Mappers and receivers over real sockets and files, against GNU sort's rule done in memory: what
//! comes out of all partitions is the input, sorted, whatever was torn, lost or done twice.

use holdfast_base::random::Random;
use holdfast_base::{Error, Kind};
use holdfast_env::disk::{Access, Disk};
use holdfast_env::{RealDisk, RealRng, Secret};
use holdfast_shuffle::ledger::Attempt;
use holdfast_shuffle::mapper::{Mapper, Target, Task};
use holdfast_shuffle::output::Pieces;
use holdfast_shuffle::receiver::{Config, Receiver};
use holdfast_shuffle::sorter::{self, Sorting};
use holdfast_sort::key::LineOptions;
use holdfast_sort::order::Order;
use holdfast_sort::pieces;
use holdfast_sort::record::Format;
use holdfast_sort::split::Splitters;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const LINES: Format = Format::Delimited(b'\n');

/// A directory that is gone with its owner.
struct Directory(PathBuf);

impl Directory {
    #[expect(clippy::disallowed_methods, reason = "a test's own directory")]
    fn new(name: &str) -> Directory {
        let path = std::env::temp_dir().join(format!("holdfast-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Directory(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A job with so many receivers, which share the partitions in turn.
struct World {
    directory: Directory,
    token: Secret,
    order: Order,
    splitters: Splitters,
    receivers: Vec<Receiver>,
    kept_bytes: u64,
}

impl World {
    fn new(name: &str, text: &[u8], partitions: usize, receivers: usize) -> World {
        let order = Order::lines(&LineOptions::default()).unwrap();
        let splitters =
            Splitters::new(LINES, &order, &pieces::sample(LINES, text, 2000), partitions);
        let (directory, token) = (Directory::new(name), Secret::draw(&RealRng));
        let mut world =
            World { directory, token, order, splitters, receivers: Vec::new(), kept_bytes: 20_000 };
        for n in 0..receivers {
            let receiver = world.receiver(n, receivers);
            world.receivers.push(receiver);
        }
        world
    }

    fn of(&self, n: usize, receivers: usize) -> Vec<u32> {
        (0..self.splitters.partitions() as u32).filter(|p| *p as usize % receivers == n).collect()
    }

    fn receiver(&self, n: usize, receivers: usize) -> Receiver {
        let config = Config {
            address: LOCAL,
            token: self.token.clone(),
            partitions: self.of(n, receivers),
            connections_max: 16,
            // Some of what arrives finds room there, and most does not.
            kept_bytes: self.kept_bytes,
        };
        Receiver::start(&RealDisk, &self.directory.0, config).unwrap()
    }

    fn targets(&self) -> Vec<Target> {
        let of = |n| self.of(n, self.receivers.len());
        let target = |(n, receiver): (usize, &Receiver)| Target {
            address: receiver.address(),
            partitions: of(n),
        };
        self.receivers.iter().enumerate().map(target).collect()
    }

    fn task(&self, split: u64, id: u64, targets: Vec<Target>) -> Task {
        Task {
            format: LINES,
            order: self.order.clone(),
            splitters: self.splitters.clone(),
            targets,
            token: self.token.clone(),
            attempt: Attempt { split, id },
            memory_bytes: 1 << 20,
        }
    }

    fn mapper(&self, split: u64, id: u64) -> Mapper {
        Mapper::begin(self.task(split, id, self.targets()), &RealRng).unwrap()
    }

    fn sort(&self, partition: u32, memory_bytes: u64) -> (Vec<u8>, bool) {
        let receiver = &self.receivers[partition as usize % self.receivers.len()];
        let out = Arc::new(Mutex::new(Vec::new()));
        let sink = {
            let out = out.clone();
            Pieces::new(move |bytes: &[u8]| {
                out.lock().unwrap().extend_from_slice(bytes);
                Ok(())
            })
        };
        let order = self.order.clone();
        let sorting = Sorting { format: LINES, order, memory_bytes, threads: 2 };
        let outgrew = sorter::sort(receiver, partition, &sorting, sink).unwrap().outgrew;
        (std::mem::take(&mut *out.lock().unwrap()), outgrew)
    }

    fn sorted(&self, memory_bytes: u64) -> Vec<u8> {
        let partitions = 0..self.splitters.partitions() as u32;
        partitions.flat_map(|p| self.sort(p, memory_bytes).0).collect()
    }
}

fn text(seed: u64, lines: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut text = Vec::new();
    for _ in 0..lines {
        let word = random.next() % 5000;
        // Some are empty, some are long, some are the same.
        let line = match random.next() % 20 {
            0 => String::new(),
            1 => format!("{word}").repeat(300),
            2..5 => "the same".to_owned(),
            _ => format!("{word} and {}", random.next() % 9),
        };
        text.extend_from_slice(line.as_bytes());
        text.push(b'\n');
    }
    text
}

fn sorted(text: &[u8]) -> Vec<u8> {
    let mut lines: Vec<&[u8]> = text.split_inclusive(|b| *b == b'\n').collect();
    lines.sort_by_key(|line| &line[..line.len() - 1]);
    lines.concat()
}

#[expect(clippy::disallowed_methods, reason = "a test's own file")]
fn write(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).unwrap();
}

/// Cuts a file anywhere, at the borders of records and of sectors and beside them: each record is
/// one split's, and only one's.
#[test]
fn a_file_that_is_cut_anywhere_comes_out_sorted() {
    let mut text = text(1, 3000);
    text.extend_from_slice(b"the last line has no end");
    let world = World::new("shuffle-cuts", &text, 5, 3);
    let path = world.directory.0.join("input");
    write(&path, &text);
    let mut random = Random::new(7);
    let line_end = text.iter().position(|b| *b == b'\n').unwrap() as u64 + 1;
    let mut cuts: Vec<u64> = (0..30).map(|_| random.next() % text.len() as u64).collect();
    cuts.extend([0, 1, line_end - 1, line_end, line_end + 1, 4095, 4096, 4097, text.len() as u64]);
    cuts.sort_unstable();
    cuts.dedup();
    let mut sum = 0;
    for (split, range) in cuts.windows(2).enumerate() {
        let mut mapper = world.mapper(split as u64, 1);
        mapper.file(&RealDisk, &path, range[0], range[1]).unwrap();
        let mapped = mapper.finish().unwrap();
        assert!(mapped.lost.iter().all(Option::is_none), "{:?}", mapped.lost);
        sum += mapped.sum.records;
    }
    text.push(b'\n');
    assert_eq!(sum, text.iter().filter(|b| **b == b'\n').count() as u64);
    let received: u64 = world.receivers.iter().map(|receiver| receiver.moved().0).sum();
    let written: u64 = world.receivers.iter().map(|receiver| receiver.moved().1).sum();
    assert!(written > 0 && received > written / 2, "some is kept, and some is not");
    assert!(world.sorted(64 << 20) == sorted(&text));
}

/// What fits the memory is neither written nor read, and comes out the same; what is finished makes room.
#[test]
fn what_fits_the_memory_stays_there() {
    let text = text(8, 5000);
    let mut world = World::new("shuffle-kept", &text, 5, 0);
    world.kept_bytes = text.len() as u64;
    let receiver = world.receiver(0, 1);
    world.receivers.push(receiver);
    let mut mapper = world.mapper(0, 1);
    mapper.push(&text).unwrap();
    mapper.finish().unwrap();
    assert!(world.sorted(64 << 20) == sorted(&text));
    assert_eq!(world.receivers[0].moved(), (text.len() as u64, 0, 0));
    let mut again = world.mapper(1, 1);
    again.push(&text).unwrap();
    again.finish().unwrap();
    let written = world.receivers[0].moved().1;
    assert!(written >= text.len() as u64, "there was no room left: {written}");
    (0..world.splitters.partitions() as u32).for_each(|p| world.receivers[0].forget(p));
    let mut third = world.mapper(2, 1);
    third.push(&text).unwrap();
    third.finish().unwrap();
    assert_eq!(world.receivers[0].moved().1, written, "what was finished made room");
}

/// Attempts that are dropped in the middle, and attempts at what is there already: neither shows.
#[test]
fn torn_and_repeated_attempts_leave_nothing() {
    let text = text(2, 20_000);
    let world = World::new("shuffle-torn", &text, 6, 2);
    let splits: Vec<&[u8]> = text.split_inclusive(|b| *b == b'\n').collect();
    let splits: Vec<Vec<u8>> = splits.chunks(4000).map(|lines| lines.concat()).collect();
    for (split, bytes) in splits.iter().enumerate() {
        let mut torn = world.mapper(split as u64, 1);
        torn.push(&bytes[..bytes.len() / 2]).unwrap();
        // Two attempts at once, of which the second to end counts for nothing.
        let (mut first, mut second) =
            (world.mapper(split as u64, 2), world.mapper(split as u64, 3));
        bytes.chunks(999).for_each(|part| first.push(part).unwrap());
        second.push(bytes).unwrap();
        drop(torn);
        for mapper in [first, second, world.mapper(split as u64, 4)] {
            let mut mapper = mapper;
            // The last of these hears that the split is there, and what it takes goes nowhere.
            mapper.end_input("the split").unwrap();
            let mapped = mapper.finish().unwrap();
            assert!(mapped.lost.iter().all(Option::is_none), "{:?}", mapped.lost);
        }
    }
    for receiver in &world.receivers {
        assert_eq!(receiver.splits(), (0..splits.len() as u64).collect::<Vec<_>>());
    }
    assert!(world.sorted(64 << 20) == sorted(&text));
}

/// A receiver goes away while it is sent to, and again before: the other one has its part, and a
/// new receiver gets what the old one had by mapping for it alone.
#[test]
fn a_lost_receiver_costs_its_own_partitions() {
    let text = text(3, 60_000);
    let mut world = World::new("shuffle-lost", &text, 4, 2);
    let mut mapper = world.mapper(0, 1);
    mapper.push(&text[..text.len() / 2]).unwrap();
    let targets = world.targets();
    drop(world.receivers.remove(1));
    mapper.push(&text[text.len() / 2..]).unwrap();
    let mapped = mapper.finish().unwrap();
    assert!(mapped.lost[0].is_none() && mapped.lost[1].is_some(), "{:?}", mapped.lost);
    // Nobody is there.
    let mapper = Mapper::begin(world.task(1, 1, targets), &RealRng).unwrap();
    let mapped = mapper.finish().unwrap();
    assert!(mapped.lost[0].is_none() && mapped.lost[1].is_some(), "{:?}", mapped.lost);
    let anew = world.receiver(1, 2);
    world.receivers.push(anew);
    let received = world.receivers[0].moved().0;
    let mut again =
        Mapper::begin(world.task(0, 2, world.targets()[1..].to_vec()), &RealRng).unwrap();
    again.push(&text).unwrap();
    assert!(again.finish().unwrap().lost[0].is_none());
    assert_eq!(world.receivers[0].moved().0, received, "what was there came again");
    assert!(world.sorted(64 << 20) == sorted(&text));
}

/// Most lines are equal, so one partition has most of the bytes, far more than memory.
#[test]
fn a_partition_that_outgrows_the_memory_is_sorted_all_the_same() {
    let mut text = text(4, 20_000);
    for i in 0..700_000u32 {
        text.extend_from_slice(
            format!("m{:07} a line with some length to it\n", i % 1000).as_bytes(),
        );
    }
    // Boundaries from its front alone, as if the sample had guessed wrong.
    let world = World::new("shuffle-outgrown", &text[..10_000], 3, 1);
    let mut mapper = world.mapper(0, 1);
    mapper.push(&text).unwrap();
    mapper.finish().unwrap();
    let parts: Vec<(Vec<u8>, bool)> =
        (0..world.splitters.partitions() as u32).map(|p| world.sort(p, 32 << 20)).collect();
    assert!(parts.iter().any(|part| part.1) && parts.iter().any(|part| !part.1));
    assert!(parts.into_iter().flat_map(|part| part.0).collect::<Vec<u8>>() == sorted(&text));
}

/// Somebody with another token neither sends nor learns anything.
#[test]
fn only_senders_of_the_same_job_are_heard() {
    let world = World::new("shuffle-token", &text(5, 100), 2, 1);
    let mut task = world.task(0, 1, world.targets());
    task.token = Secret::draw(&RealRng);
    let mapped = Mapper::begin(task, &RealRng).unwrap().finish().unwrap();
    let refused: &Error = mapped.lost[0].as_ref().unwrap();
    assert_eq!(refused.kind, Kind::Denied, "{refused:?}");
    assert!(world.receivers[0].splits().is_empty());
}

#[test]
fn bad_input_has_a_sentence() {
    let world = World::new("shuffle-bad", &text(6, 100), 2, 1);
    let mut task = world.task(0, 1, world.targets());
    task.format = Format::Fixed(10);
    task.order = Order::range(task.format, 0, Some(4), false).unwrap();
    let mut mapper = Mapper::begin(task, &RealRng).unwrap();
    mapper.push(b"0123456789abc").unwrap();
    let odd = mapper.end_input("data").unwrap_err();
    assert!(odd.message.contains("map `data`: its last record has 3 bytes instead of 10"));
    let mut task = world.task(0, 2, world.targets());
    task.memory_bytes = 4096;
    let little = Mapper::begin(task, &RealRng).err().unwrap();
    assert!(little.message.contains("give at least"), "{}", little.message);
    let mut long = world.mapper(0, 3);
    let line = vec![b'x'; 16 << 20];
    let refused = (0..5).find_map(|_| long.push(&line).err()).unwrap();
    assert!(refused.message.contains("a record of more than"), "{}", refused.message);
    // A split's number says nothing to whoever gave the files.
    let path = world.directory.0.join("one-line");
    RealDisk.create(&path, Access::Cached).unwrap().write_at(b"x", (65 << 20) - 1).unwrap();
    let refused = world.mapper(0, 4).file(&RealDisk, &path, 0, 65 << 20).unwrap_err();
    assert!(refused.message.contains("one-line`: map split 0: a record of"), "{}", refused.message);
    let gone = world.mapper(1, 1).file(&RealDisk, Path::new("/nowhere"), 0, 1).unwrap_err();
    assert!(gone.message.contains("/nowhere"), "{}", gone.message);
}
