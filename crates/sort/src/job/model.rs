//! Whole sorts against the simplest one there is, a stable sort of all records in memory: sizes of
//! records, places of keys, how many keys there are, memory, threads, files and streams, disks that
//! lag, kills and resumes are drawn from a seed, and all internal sizes with them.

use super::*;
use holdfast_env::disk::{Access, Entry, File, Lock, Space};
use holdfast_env::trial::Trial;
use holdfast_env::{Rng, SeededRng};
use holdfast_sim::SimDisk;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Cursor, Write};

const SEEDS: u64 = 64;
/// So many times smaller a machine.
const SMALLER: u64 = 16;
/// Of the least memory that a sort takes, in a machine that is not smaller.
const MEMORY: u64 = 32 << 20;
const DIRECTORIES: [&str; 4] = ["/in", "/out", "/t0", "/t1"];

/// Its temporary files are written a little later than it says: what reads them before the sort
/// knows that they are there reads zeros.
#[derive(Clone)]
struct Lagging {
    disk: SimDisk,
    lag: u64,
}

struct LaggingFile {
    file: Arc<dyn File>,
    lag: u64,
}

impl Lagging {
    fn wrap(&self, path: &Path, file: Arc<dyn File>) -> Arc<dyn File> {
        match path.starts_with("/t0") || path.starts_with("/t1") {
            true => Arc::new(LaggingFile { file, lag: self.lag }),
            false => file,
        }
    }
}

impl File for LaggingFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buf, offset)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        (0..self.lag).for_each(|_| thread::yield_now());
        self.file.write_at(buf, offset)
    }
    fn write_at_durable(&self, buf: &[u8], offset: u64, site: &'static str) -> io::Result<()> {
        self.file.write_at_durable(buf, offset, site)
    }
    fn sync(&self, site: &'static str) -> io::Result<()> {
        self.file.sync(site)
    }
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)
    }
    fn allocate(&self, bytes: u64) -> io::Result<()> {
        self.file.allocate(bytes)
    }
}

impl Disk for Lagging {
    fn create(&self, path: &Path, access: Access) -> io::Result<Arc<dyn File>> {
        Ok(self.wrap(path, self.disk.create(path, access)?))
    }
    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn File>> {
        Ok(self.wrap(path, self.disk.open(path, access)?))
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(path)
    }
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.disk.create_dir_all(path)
    }
    fn list(&self, path: &Path) -> io::Result<Vec<Entry>> {
        self.disk.list(path)
    }
    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.disk.exists(path)
    }
    fn sync_dir(&self, path: &Path, site: &'static str) -> io::Result<()> {
        self.disk.sync_dir(path, site)
    }
    fn space(&self, path: &Path) -> io::Result<Space> {
        self.disk.space(path)
    }
    fn lock(&self, path: &Path) -> io::Result<Box<dyn Lock>> {
        self.disk.lock(path)
    }
}

/// What a stream was given.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// One sort, as a seed draws it.
struct Case {
    format: Format,
    /// The bytes of a body that are compared.
    key: std::ops::Range<usize>,
    reverse: bool,
    unique: bool,
    first: Option<u64>,
    memory_bytes: u64,
    threads: usize,
    lag: u64,
    /// Whole records of each input, and whether it is a stream.
    inputs: Vec<(Vec<Vec<u8>>, bool)>,
    /// The last line of an input has no newline.
    bare: bool,
    to_stream: bool,
}

struct Draw(SeededRng);

impl Draw {
    fn below(&self, n: u64) -> u64 {
        self.0.next_u64() % n
    }

    fn one<T: Clone>(&self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize].clone()
    }

    fn bytes(&self, count: usize) -> Vec<u8> {
        // No newline among them.
        (0..count).map(|_| b' ' + self.below(90) as u8).collect()
    }
}

impl Case {
    fn draw(seed: u64) -> Case {
        let draw = Draw(SeededRng::new(seed));
        let memory_bytes = MEMORY / plan::SMALLER.get();
        let length = draw.one(&[1, 3, 8, 16, 100, 100, 1000, 4096, 4096, 20_000, 20_000]);
        let place = draw.one(&[0, 0, 1, 7, 100, 1599, 4095]).min(length - 1);
        let wide = draw.one(&[1, 4, 10, 11, 25]).min(length - place);
        let format = draw.one(&[
            Format::Fixed(length),
            Format::Fixed(length),
            Format::Prefixed,
            LINES,
            LINES,
        ]);
        let distinct = draw.one(&[1, 2, 3, 16, 16, 300, 100_000]);
        let keys: Vec<Vec<u8>> = (0..distinct).map(|_| draw.bytes(wide)).collect();
        let wanted = memory_bytes * draw.one(&[1, 4, 6, 10]) / 4;
        let inputs = draw.one(&[1, 1, 2, 3]);
        let piped = draw.one(&[false, false, false, true]);
        let input = |_| {
            let (mut records, mut bytes) = (Vec::new(), 0);
            while bytes < wanted / inputs && length > 1 || records.is_empty() {
                let mut body = draw.bytes(16.min(length));
                body.resize(length, b'.');
                if format != Format::Fixed(length) && draw.below(3) == 0 {
                    // Shorter, into the key or past it.
                    body.truncate(draw.below(length as u64 + 1) as usize);
                }
                let key = &keys[draw.below(distinct) as usize];
                let there = body.len().saturating_sub(place).min(key.len());
                if there > 0 {
                    body[place..place + there].copy_from_slice(&key[..there]);
                }
                let record = match format {
                    Format::Fixed(_) => body,
                    Format::Delimited(_) => [&body[..], b"\n"].concat(),
                    Format::Prefixed => [&(body.len() as u32).to_be_bytes()[..], &body].concat(),
                };
                bytes += record.len() as u64;
                records.push(record);
            }
            (records, piped && draw.below(2) == 0)
        };
        let inputs: Vec<(Vec<Vec<u8>>, bool)> = (0..inputs).map(input).collect();
        Case {
            format,
            key: place..place + wide,
            reverse: draw.below(3) == 0,
            unique: draw.below(4) == 0,
            first: draw.one(&[None, None, None, None, Some(0), Some(1), Some(500), Some(1 << 40)]),
            memory_bytes: memory_bytes + draw.one(&[0, 0, memory_bytes / 3, memory_bytes]),
            threads: draw.one(&[1, 2, 2, 3, 4]),
            lag: draw.one(&[0, 20, 200]),
            inputs,
            bare: format == LINES && draw.below(2) == 0,
            to_stream: draw.below(3) == 0,
        }
    }

    /// What is compared of a whole record.
    fn key_of<'a>(&self, record: &'a [u8]) -> &'a [u8] {
        let body = match self.format {
            Format::Fixed(_) => record,
            Format::Delimited(_) => &record[..record.len() - 1],
            Format::Prefixed => &record[4..],
        };
        &body[self.key.start.min(body.len())..self.key.end.min(body.len())]
    }

    fn model(&self) -> Vec<u8> {
        let mut records: Vec<&Vec<u8>> = self.inputs.iter().flat_map(|(all, _)| all).collect();
        records.sort_by(|a, b| {
            let order = self.key_of(a).cmp(self.key_of(b));
            if self.reverse { order.reverse() } else { order }
        });
        if self.unique {
            records.dedup_by(|b, a| self.key_of(a) == self.key_of(b));
        }
        let first = self.first.map_or(usize::MAX, |first| first as usize);
        records.into_iter().take(first).flatten().copied().collect()
    }

    /// The bytes of an input.
    fn bytes(&self, number: usize) -> Vec<u8> {
        let mut bytes = self.inputs[number].0.concat();
        // Behind an empty line there is none that lacks its newline.
        if self.bare && !bytes.ends_with(b"\n\n") && bytes != b"\n" {
            bytes.pop();
        }
        bytes
    }

    fn disk(&self) -> SimDisk {
        let disk = SimDisk::new(1);
        for directory in DIRECTORIES {
            disk.create_dir_all(Path::new(directory)).unwrap();
        }
        for number in 0..self.inputs.len() {
            let path = format!("/in/{number}");
            let file = disk.create(Path::new(&path), Access::Cached).unwrap();
            file.write_at(&self.bytes(number), 0).unwrap();
        }
        disk
    }

    fn run(&self, disk: &SimDisk, resume: bool) -> Result<(Report, Vec<u8>)> {
        let written = Written::default();
        let input = |(number, (_, stream)): (usize, &(_, bool))| match stream {
            true => Input::Stream(number.to_string(), Box::new(Cursor::new(self.bytes(number)))),
            false => Input::File(PathBuf::from(format!("/in/{number}"))),
        };
        let range = (self.key.start, Some(self.key.end));
        let job = Job {
            inputs: self.inputs.iter().enumerate().map(input).collect(),
            output: match self.to_stream {
                true => Output::Stream("out".to_owned(), Box::new(written.clone())),
                false => Output::File(PathBuf::from("/out/sorted")),
            },
            format: self.format,
            order: Order::range(self.format, range.0, range.1, self.reverse)?,
            unique: self.unique,
            memory_bytes: self.memory_bytes,
            temp: vec![PathBuf::from("/t0"), PathBuf::from("/t1")],
            threads: self.threads,
            pinned: false,
            first: self.first,
            resume,
        };
        let lagging = Lagging { disk: disk.clone(), lag: self.lag };
        let report = super::run(&lagging, job, &Progress::default())?;
        let mut bytes = written.0.lock().unwrap().clone();
        if !self.to_stream {
            let file = disk.open(Path::new("/out/sorted"), Access::Cached)?;
            bytes.resize(file.len()? as usize, 0);
            file.read_exact_at(&mut bytes, 0)?;
        }
        Ok((report, bytes))
    }

    #[track_caller]
    fn check(&self, note: &str, disk: &SimDisk, sorted: Result<(Report, Vec<u8>)>) -> Report {
        let note = format!(
            "{note}: {:?} by {:?}, reverse {}, unique {}, first {:?}, {} bytes of memory, {} threads",
            self.format,
            self.key,
            self.reverse,
            self.unique,
            self.first,
            self.memory_bytes,
            self.threads
        );
        let (report, bytes) = sorted.unwrap_or_else(|e| panic!("{note}: {e}"));
        let model = self.model();
        let differ = bytes.iter().zip(&model).position(|(a, b)| a != b);
        assert!(
            bytes == model,
            "{note}: {} bytes for {}, other from {differ:?} on",
            bytes.len(),
            model.len()
        );
        let left: Vec<String> = ["/out", "/t0", "/t1"]
            .iter()
            .flat_map(|directory| disk.list(Path::new(directory)).unwrap())
            .map(|entry| entry.name)
            .collect();
        assert_eq!(left, if self.to_stream { &[][..] } else { &["sorted"] }, "{note}");
        report
    }
}

const LINES: Format = Format::Delimited(b'\n');

/// Every internal size that makes a border.
const BORDERS: [&str; 16] = [
    "sort.deeper-from",
    "sort.kept-spare-blocks",
    "sort.memory-partitions-max",
    "sort.nearly-sorted",
    "sort.partitions-a-memory",
    "sort.partitions-max",
    "sort.pool-step",
    "sort.read-blocks",
    "sort.readers",
    "sort.sample-block",
    "sort.samples-a-partition",
    "sort.scan-bytes",
    "sort.scatter-from",
    "sort.smaller",
    "sort.stage-bytes",
    "sort.writers",
];

/// What all cases together have to come by.
#[derive(Default)]
struct Seen {
    asked: BTreeSet<&'static str>,
    crossed: BTreeSet<&'static str>,
    happened: BTreeMap<&'static str, u64>,
    resumed: u64,
}

fn sort_as_drawn(seed: u64, seen: &mut Seen) {
    let entered = Trial::drawn(seed).with(&plan::SMALLER, SMALLER).enter();
    let case = Case::draw(seed);
    let disk = case.disk();
    let before = disk.operations();
    let sorted = case.run(&disk, false);
    case.check(&format!("seed {seed}"), &disk, sorted);
    // The same, killed somewhere and resumed.
    let streams = case.to_stream || case.inputs.iter().any(|(_, stream)| *stream);
    if !streams {
        let operations = disk.operations() - before;
        let disk = case.disk();
        disk.crash_at(before + seed.wrapping_mul(7919) % operations);
        // How the threads share the work is not drawn: it may be over before.
        let _ = case.run(&disk, false);
        let left = disk.process_kill();
        let resumed = case.run(&left, true);
        let report = case.check(&format!("seed {seed}, resumed"), &left, resumed);
        seen.resumed += u64::from(report.resumed);
    }
    let knobs = entered.knobs();
    seen.asked.extend(knobs.keys());
    seen.crossed.extend(knobs.iter().filter(|(_, knob)| knob.crossed).map(|(name, _)| name));
    entered
        .happened()
        .into_iter()
        .for_each(|(what, n)| *seen.happened.entry(what).or_default() += n);
}

/// Sixteen distinct keys in large records, more than memory: those who sort did not wait for what
/// was still on its way to the temporary files, where a partition is copied because all of its
/// records are equal, or is split because it is too large. The sort blamed the hardware.
#[test]
fn whole_sorts_are_as_a_stable_sort_in_memory_whatever_is_drawn() {
    let mut seen = Seen::default();
    (0..SEEDS).for_each(|seed| sort_as_drawn(seed, &mut seen));
    let never: Vec<_> = seen.asked.difference(&seen.crossed).collect();
    assert!(never.is_empty(), "nothing came to the borders of {never:?}");
    assert_eq!(seen.crossed, BTreeSet::from(BORDERS));
    for what in [
        "a partition went through the third phase",
        "a partition of equal records was copied",
        "a record straddles three blocks",
    ] {
        assert!(seen.happened.contains_key(what), "it never happened: {what}");
    }
    assert!(seen.resumed > 0, "nothing was resumed");
}
