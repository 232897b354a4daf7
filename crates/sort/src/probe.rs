//! What a disk can do: bytes a second that it reads and writes at the same time, front to back,
//! past the page cache. That is what a sort cannot beat. Called by the benchmark and the bar.

use crate::failure::Failure;
use crate::local;
use holdfast_base::{Error, Result};
use holdfast_env::buf::AlignedBuf;
use holdfast_env::disk::{Access, Disk, File};
use holdfast_env::{Clock, RealClock};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// Reads and writes under way at once, each.
const DEPTH: u64 = 4;
const BLOCK_BYTES: usize = 1 << 20;

/// Bytes a second, read and written together, of `bytes` each way in two files in `directory`,
/// which nobody sees.
pub fn mixed_bandwidth(disk: &dyn Disk, directory: &Path, bytes: u64) -> Result<f64> {
    let name = |what: &str| directory.join(format!("holdfast-probe-{}-{what}", std::process::id()));
    let paths = [name("from"), name("to")];
    measure(disk, &paths, bytes)
        .map_err(|e| e.context(format_args!("measure the disk of `{}`", directory.display())))
}

fn measure(disk: &dyn Disk, [from, to]: &[std::path::PathBuf; 2], bytes: u64) -> Result<f64> {
    let fresh = |path: &Path| -> Result<_> {
        let file = disk.create_unnamed(path, Access::Direct)?;
        file.allocate(bytes)?;
        Ok(file)
    };
    let source = fresh(from)?;
    each_block(&[(&*source, true)], bytes)?;
    source.sync("sort.probe")?;
    let target = fresh(to)?;
    let clock = RealClock::new();
    let start = clock.monotonic_ns();
    each_block(&[(&*source, false), (&*target, true)], bytes)?;
    target.sync("sort.probe")?;
    let seconds = (clock.monotonic_ns() - start) as f64 / 1e9;
    Ok(2.0 * bytes as f64 / seconds.max(1e-9))
}

/// Reads or writes (`true`) each file front to back, all at the same time.
fn each_block(files: &[(&dyn File, bool)], bytes: u64) -> Result<()> {
    let next: Vec<AtomicU64> = files.iter().map(|_| AtomicU64::new(0)).collect();
    let failure = &Failure::default();
    thread::scope(|scope| {
        for (&(file, write), next) in files.iter().zip(&next) {
            for _ in 0..DEPTH {
                local::scoped(scope, "sort-probe", move || {
                    failure.note(blocks(file, write, next, bytes));
                });
            }
        }
    });
    failure.result()
}

fn blocks(file: &dyn File, write: bool, next: &AtomicU64, bytes: u64) -> Result<()> {
    let mut block = AlignedBuf::zeroed(BLOCK_BYTES);
    block.fill(0x5a);
    loop {
        let at = next.fetch_add(block.len() as u64, Ordering::Relaxed);
        match (at >= bytes, write) {
            (true, _) => return Ok(()),
            (false, true) => file.write_at(&block, at)?,
            (false, false) => file.read_exact_at(&mut block, at).map_err(Error::from)?,
        }
    }
}
