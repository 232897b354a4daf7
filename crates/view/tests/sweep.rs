//! A key with very many versions, in the engine of real machines: while it is passed it takes no more
//! memory than one version, and once it is swept, no more room and time than a key with one.

use holdfast_base::codec::{Decode, Encode};
use holdfast_base::ids::Index;
use holdfast_base::stream::{Source, Writer};
use holdfast_env::rows::{Batch, Engine, Moment, RealEngine, Rows};
use holdfast_view::items::{Catalog, DiskView, MemoryView, Pass, stream, sweep};
use holdfast_view::{Context, RowsView, View};
use holdfast_wire::slab::{Hashed, Item, Range, hash};
use holdfast_wire::view::Collection;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

const KEY: &[u8] = b"counter";
const VALUE_BYTES: usize = 400;
/// Of what passes them: nothing near what they have together.
const PASSED_BYTES_MAX: u64 = 24 << 20;
/// What the engine keeps of what is written, until its tables are there.
const MEMTABLES_BYTES_MAX: u64 = 100 << 20;

/// A catalog with one collection and a horizon.
fn catalog(horizon: u64) -> Catalog {
    let collection = Collection { name: "c".to_owned(), hashed: Hashed::All, json: false };
    let mut bytes = Vec::new();
    vec![collection].encode(&mut bytes);
    Index(horizon).encode(&mut bytes);
    Index(0).encode(&mut bytes);
    Catalog::from_bytes(&bytes).unwrap()
}

/// Puts so many versions of one key into the rows, with this horizon.
fn fill(rows: &dyn Rows, versions: u64, horizon: u64) {
    let mut bytes = Vec::new();
    let mut piece = |more: &[u8]| {
        bytes.extend_from_slice(more);
        Ok(())
    };
    let mut out = Writer::new(1 << 16, &mut piece);
    stream::write(&mut out, &catalog(horizon), (Range::ALL, Index(versions)), |put| {
        for index in 1..=versions {
            let value = [index as u8; VALUE_BYTES];
            let hash = hash(Hashed::All, KEY);
            put(&Item { hash, collection: 1, key: KEY, index, value: Some(&value) })?;
        }
        Ok(())
    });
    out.finish().unwrap();
    let mut left = Some(bytes);
    let length = left.as_ref().map_or(0, Vec::len) as u64;
    let mut more = |out: &mut Vec<u8>| {
        let more = left.take();
        out.extend(more.iter().flatten().copied());
        Ok(more.is_some())
    };
    let mut batch = Batch::default();
    let mut source = Source::new(length, &mut more);
    DiskView::read(&Context::of("view/t"), &mut source, &mut |row, value| {
        batch.put(row, value);
        if batch.changes.len() >= 1000 {
            rows.write(std::mem::take(&mut batch))?;
        }
        Ok(())
    })
    .unwrap();
    rows.write(batch).unwrap();
}

fn count(rows: &dyn Rows) -> usize {
    let mut count = 0;
    let each = &mut |_: &[u8], _: &[u8]| {
        count += 1;
        Ok(true)
    };
    rows.scan(b"i", b"j", each).unwrap();
    count
}

#[expect(clippy::disallowed_methods, reason = "the engine's own files")]
fn bytes_below(directory: &Path) -> u64 {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
    let bytes = |entry: std::fs::DirEntry| match entry.path().is_dir() {
        true => bytes_below(&entry.path()),
        false => entry.metadata().map_or(0, |about| about.len()),
    };
    entries.map(bytes).sum()
}

/// What this process has in memory.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// How much more memory there is than when it began, at the most.
struct Growth {
    before: u64,
    most: u64,
    looked: u64,
}

impl Growth {
    fn new() -> Growth {
        Growth { before: resident(), most: 0, looked: 0 }
    }

    fn look(&mut self) {
        self.looked += 1;
        if self.looked.is_multiple_of(1000) {
            self.most = self.most.max(resident().saturating_sub(self.before));
        }
    }

    #[track_caller]
    fn is_below(&self, bytes: u64, what: &str) {
        println!("{what}: {} more bytes", self.most);
        assert!(self.most < bytes, "{what} took {} more bytes", self.most);
    }
}

/// What a view in memory holds that begins with what these rows have, as slabs, piece by piece.
fn booted(moment: Arc<dyn Moment>, versions: u64, growth: &mut Growth) -> MemoryView {
    let (send, receive) = std::sync::mpsc::sync_channel::<Vec<u8>>(4);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut piece = |more: &[u8]| {
                send.send(more.to_vec()).map_err(|_| holdfast_base::Error::retry("nobody takes it"))
            };
            let mut out = Writer::new(1 << 16, &mut piece);
            // As a disk view's snapshot and its images are written.
            let catalog = catalog(0);
            let mut pass = Pass::new(&*moment, &catalog, Range::ALL, None).unwrap();
            stream::write(&mut out, &catalog, (Range::ALL, Index(versions)), |put| {
                while pass.advance(&mut |item| put(item).map(|()| true))? {}
                Ok(())
            });
            out.finish().unwrap();
        });
        let mut more = |out: &mut Vec<u8>| {
            growth.look();
            let piece = receive.recv().ok();
            out.extend(piece.iter().flatten().copied());
            Ok(piece.is_some())
        };
        let mut source = Source::new(u64::MAX / 2, &mut more);
        MemoryView::restore(&Context::of("view/t"), &mut source).unwrap()
    })
}

/// Nothing that passes a key keeps its versions: rides and images, reads at any index, what a view begins
/// with, and sweeps. What a sweep has removed the engine gives back, in room and in time.
#[test]
#[expect(clippy::disallowed_methods, reason = "the engine's own files, and how long it takes")]
fn a_key_with_many_versions_is_passed_in_little_memory_and_gives_its_room_back() {
    let versions: u64 =
        std::env::var("HOLDFAST_VERSIONS").map_or(200_000, |versions| versions.parse().unwrap());
    let place = std::env::temp_dir().join(format!("holdfast-sweep-{}", std::process::id()));
    let rows: Arc<dyn Rows> = RealEngine.open_rows(&place, "rows", 1 << 20).unwrap();
    let timed = |what: &str, rows: &dyn Rows| {
        let begun = Instant::now();
        let found = count(rows);
        println!("{what}: {found} rows, {:?}, {} bytes", begun.elapsed(), bytes_below(&place));
        (found, bytes_below(&place))
    };
    fill(&*rows, versions, 0);
    let (found, full_bytes) = timed("filled", &*rows);
    assert_eq!(found as u64, versions);
    assert!(full_bytes > 2 * PASSED_BYTES_MAX, "{full_bytes} bytes say nothing of memory");

    let mut growth = Growth::new();
    let (moment, catalog) = (rows.moment().unwrap(), catalog(0));
    let mut pass = Pass::new(&*moment, &catalog, Range::ALL, None).unwrap();
    let mut seen = 0;
    while pass
        .advance(&mut |_| {
            growth.look();
            seen += 1;
            Ok(true)
        })
        .unwrap()
    {}
    assert_eq!(seen, versions);
    growth.is_below(PASSED_BYTES_MAX, "a ride of every version");

    let mut growth = Growth::new();
    drop(pass);
    let found = booted(moment, versions, &mut growth);
    let (index, value) = found.get(1, KEY).unwrap();
    assert_eq!((index.0, value[0]), (versions, versions as u8));
    growth.is_below(PASSED_BYTES_MAX, "a view that begins");

    fill(&*rows, 0, versions);
    let begun = Instant::now();
    let mut growth = Growth::new();
    while !sweep(&*rows, 4096).unwrap().expect("there is something to sweep").is_over {
        growth.looked = 999;
        growth.look();
    }
    println!("swept in {:?}", begun.elapsed());
    growth.is_below(MEMTABLES_BYTES_MAX, "a sweep");
    assert_eq!(timed("swept", &*rows).0, 1);
    let begun = Instant::now();
    assert!(rows.give_back().unwrap());
    println!("given back in {:?}", begun.elapsed());
    assert_eq!(timed("given back", &*rows).0, 1);
    rows.persist("here").unwrap();
    drop(rows);
    let rows = RealEngine.open_rows(&place, "rows", 1 << 20).unwrap();
    // Tables that nobody needs go with what the engine does next, at the latest with its next start.
    let (found, bytes) = timed("opened again", &*rows);
    assert_eq!(found, 1);
    drop(rows);
    std::fs::remove_dir_all(&place).unwrap();
    assert!(bytes < full_bytes / 2, "{bytes} of {full_bytes} bytes");
}
