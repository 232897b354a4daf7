//! Where records come from: files cut into lanes that are read side by side, or one stream; and
//! the sample of them. Blocks arrive in the order of the input, a lane's after the one's before.

use crate::record::Format;
use holdfast_base::limits::SECTOR_BYTES;
use holdfast_base::{Error, Result};
use holdfast_env::buf::AlignedBuf;
use holdfast_env::disk::{Access, Disk, File, Stamp};
use holdfast_env::planted;
use holdfast_env::trial::Knob;
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;

/// One input of a sort.
pub enum Input {
    File(PathBuf),
    /// Read once, front to back; the name is for people.
    Stream(String, Box<dyn Read + Send>),
}

/// Records that a partition should have in the sample: with fewer, chance makes some too large.
static SAMPLES_A_PARTITION: Knob = Knob::new("sort.samples-a-partition", 600, &[1, 2, 10]);
static SAMPLE_BLOCK_BYTES: Knob = Knob::new("sort.sample-block", 64 << 10, &[4096, 8192]);
/// A sample reads no more than this part of the input.
const SAMPLE_PART: u64 = 400;
const SAMPLE_BLOCKS_MIN: u64 = 8;
const SAMPLE_BLOCKS_MAX: u64 = 512;
/// Of all sampled records.
const SAMPLE_BYTES_MAX: usize = 4 << 20;
/// What is looked through at a time for the end of the record that a lane would cut.
static SCAN_BYTES: Knob = Knob::new("sort.scan-bytes", 64 << 10, &[4096, 8192]);

/// Part of a file, or what is left of a stream.
pub(crate) enum Piece {
    File { name: Arc<str>, file: Arc<dyn File>, start: u64, end: u64, ends_file: bool },
    Stream { name: Arc<str>, stream: Box<dyn Read + Send> },
}

/// Bytes of the input.
pub(crate) struct Filled {
    pub block: AlignedBuf,
    pub start: usize,
    pub end: usize,
    /// The name of the file whose last bytes these are: a record ends here, whole or not.
    pub ends: Option<Arc<str>>,
}

/// A file of the input, open.
pub(crate) struct Opened {
    pub name: Arc<str>,
    pub file: Arc<dyn File>,
    pub bytes: u64,
    pub stamp: Stamp,
}

pub(crate) fn open(disk: &dyn Disk, path: &std::path::Path) -> Result<Opened> {
    let name: Arc<str> = path.display().to_string().into();
    let opened = disk.open_to_read(path, Access::Direct).and_then(|file| {
        let (bytes, stamp) = (file.len()?, file.stamp()?);
        Ok(Opened { name: name.clone(), file, bytes, stamp })
    });
    opened.map_err(|e| Error::from(e).context(format_args!("read `{name}`")))
}

fn failed(name: &str, e: std::io::Error) -> Error {
    Error::from(e).context(format_args!("read `{name}`"))
}

/// Cuts files into `lanes` of about the same length, at the borders of records.
pub(crate) fn lanes(files: &[Opened], lanes: usize, format: Format) -> Result<Vec<Vec<Piece>>> {
    let total: u64 = files.iter().map(|file| file.bytes).sum();
    let share = total.div_ceil(lanes as u64).max(1);
    let mut out: Vec<Vec<Piece>> = vec![Vec::new()];
    let mut room = share;
    for Opened { name, file, bytes, .. } in files {
        if let Format::Fixed(n) = format
            && bytes % n as u64 != 0
        {
            return Err(Error::invalid(format!(
                "sort `{name}`: its {bytes} bytes are no whole number of records of {n}: give the right `--record`"
            )));
        }
        let mut start = 0;
        while start < *bytes {
            let cut = if room < bytes - start && format != Format::Prefixed {
                border(name, &**file, start + room, *bytes, format)?
            } else {
                *bytes
            };
            assert!(start < cut && cut <= *bytes, "a lane gets bytes {start} to {cut} of {bytes}");
            let ends_file = cut == *bytes;
            let (name, file) = (name.clone(), file.clone());
            if let Some(lane) = out.last_mut() {
                lane.push(Piece::File { name, file, start, end: cut, ends_file });
            }
            room = room.saturating_sub(cut - start);
            start = cut;
            if room == 0 {
                out.push(Vec::new());
                room = share;
            }
        }
    }
    out.retain(|lane| !lane.is_empty());
    Ok(out)
}

/// The first border of records at `at` or after it.
fn border(name: &str, file: &dyn File, at: u64, bytes: u64, format: Format) -> Result<u64> {
    let delimiter = match format {
        Format::Fixed(n) => return Ok(at.next_multiple_of(n as u64).min(bytes)),
        Format::Prefixed => return Ok(bytes),
        Format::Delimited(delimiter) => delimiter,
    };
    let mut block = AlignedBuf::zeroed(SCAN_BYTES.size());
    // A delimiter right before `at` makes it a border.
    let mut at = at - 1;
    while at < bytes {
        let aligned = at / SECTOR_BYTES as u64 * SECTOR_BYTES as u64;
        let got = file.read_at(&mut block, aligned).map_err(|e| failed(name, e))?;
        let skip = (at - aligned) as usize;
        if got <= skip {
            break;
        }
        if let Some(i) = memchr::memchr(delimiter, &block[skip..got]) {
            let past = u64::from(!planted!("sort.lane-cuts-before-a-newline"));
            return Ok(at + i as u64 + past);
        }
        SCAN_BYTES.cross();
        at = aligned + got as u64;
    }
    Ok(bytes)
}

impl Piece {
    /// Reads the next bytes into `block`; true when there are no more.
    pub fn fill(&mut self, mut block: AlignedBuf) -> Result<(Filled, bool)> {
        match self {
            Piece::File { name, file, start, end, ends_file } => {
                let aligned = *start / SECTOR_BYTES as u64 * SECTOR_BYTES as u64;
                let wanted = (*end - aligned).min(block.len() as u64) as usize;
                let whole = wanted.next_multiple_of(SECTOR_BYTES);
                let got =
                    file.read_at(&mut block[..whole], aligned).map_err(|e| failed(name, e))?;
                if got < wanted {
                    return Err(Error::retry(format!(
                        "read `{name}`: it became shorter meanwhile: nobody may write to the input"
                    )));
                }
                let skip = (*start - aligned) as usize;
                *start = aligned + wanted as u64;
                let done = *start == *end;
                let ends = (done && *ends_file).then(|| name.clone());
                Ok((Filled { block, start: skip, end: wanted, ends }, done))
            }
            Piece::Stream { name, stream } => {
                let mut got = 0;
                while got < block.len() {
                    match stream.read(&mut block[got..]) {
                        Ok(0) => {
                            let ends = Some(name.clone());
                            return Ok((Filled { block, start: 0, end: got, ends }, true));
                        }
                        Ok(n) => got += n,
                        Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                        Err(e) => return Err(failed(name, e)),
                    }
                }
                Ok((Filled { block, start: 0, end: got, ends: None }, false))
            }
        }
    }
}

/// Whole records of blocks spread evenly over the files.
pub(crate) fn sample_files(
    files: &[Opened],
    format: Format,
    wanted: usize,
) -> Result<Vec<Vec<u8>>> {
    let total: u64 = files.iter().map(|file| file.bytes).sum();
    let block_bytes = SAMPLE_BLOCK_BYTES.get();
    let blocks = (total / SAMPLE_PART / block_bytes).clamp(SAMPLE_BLOCKS_MIN, SAMPLE_BLOCKS_MAX);
    if blocks * block_bytes < total {
        SAMPLE_BLOCK_BYTES.cross();
    }
    let mut sample = Vec::new();
    let mut buf = AlignedBuf::zeroed(block_bytes as usize);
    let (each, room) = share(wanted, blocks as usize);
    let mut before = u64::MAX;
    for i in 0..blocks {
        let mut at = (total as u128 * i as u128 / blocks as u128) as u64;
        let Some(Opened { name, file, bytes, .. }) = files.iter().find(|file| {
            let here = at < file.bytes;
            at -= if here { 0 } else { file.bytes };
            here
        }) else {
            break;
        };
        let at = at / block_bytes * block_bytes;
        if before == at && files.len() == 1 {
            continue;
        }
        before = at;
        let got = file.read_at(&mut buf, at).map_err(|e| failed(name, e))?;
        let skip = match format {
            _ if at == 0 => 0,
            Format::Fixed(n) => (at.next_multiple_of(n as u64) - at) as usize,
            Format::Delimited(d) => memchr::memchr(d, &buf[..got]).map_or(got, |i| i + 1),
            // Nothing says where a record starts.
            Format::Prefixed => break,
        };
        let end = (*bytes - at).min(got as u64) as usize;
        take_sample(&buf[skip.min(end)..end], format, each, room, &mut sample);
    }
    Ok(sample)
}

/// Of a sample for so many partitions: the records that each block gives, and the memory for them.
pub(crate) fn share(partitions: usize, blocks: usize) -> (usize, usize) {
    ((partitions * SAMPLES_A_PARTITION.size()).div_ceil(blocks), SAMPLE_BYTES_MAX / blocks)
}

/// Adds about `wanted` records of `bytes`, spread over them, which take no more memory than `room`:
/// its share of the sample's, lest the front of an input that is not alike throughout stood for all.
pub(crate) fn take_sample(
    bytes: &[u8],
    format: Format,
    wanted: usize,
    room: usize,
    sample: &mut Vec<Vec<u8>>,
) {
    let mut records = Vec::new();
    let mut at = 0;
    while let Some(n) = format.record_bytes(&bytes[at..]) {
        records.push(&bytes[at..at + n]);
        at += n;
    }
    let needs = |record: &[u8]| record.len() + size_of::<Vec<u8>>();
    let all: usize = records.iter().map(|record| needs(record)).sum();
    let step = (records.len() / wanted.max(1)).max(all.div_ceil(room.max(1))).max(1);
    if step > 1 {
        SAMPLES_A_PARTITION.cross();
    }
    let mut taken = 0;
    for record in records.iter().step_by(step) {
        // One in any case: of long records each block has few.
        if taken > 0 && taken + needs(record) > room {
            break;
        }
        taken += needs(record);
        sample.push(record.to_vec());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_sim::SimDisk;

    /// The sample's memory was used up by the first fifth of a large file, whose records then drew
    /// all boundaries: input that was sorted, or gensort's skew, overfilled the last partitions.
    #[test]
    fn the_end_of_a_large_file_is_sampled_as_its_front_is() {
        let (disk, path) = (SimDisk::new(1), std::path::Path::new("/in"));
        let file = disk.create(path, Access::Direct).unwrap();
        let bytes = 1_500_000_000;
        file.set_len(bytes).unwrap();
        // The last block that is looked at lies in what is marked.
        let mut marked = AlignedBuf::zeroed(4 * SAMPLE_BLOCK_BYTES.size());
        marked.fill(1);
        let blocks = bytes / SAMPLE_PART / SAMPLE_BLOCK_BYTES.get();
        let last = (bytes - bytes / blocks) / SAMPLE_BLOCK_BYTES.get() - 2;
        file.write_at(&marked, last * SAMPLE_BLOCK_BYTES.get()).unwrap();
        let opened = open(&disk, path).unwrap();
        let sample = sample_files(&[opened], Format::Fixed(100), 256).unwrap();
        let held: usize = sample.iter().map(|record| record.len() + size_of::<Vec<u8>>()).sum();
        assert!((SAMPLE_BYTES_MAX / 2..=SAMPLE_BYTES_MAX).contains(&held), "{held}");
        assert!(sample.iter().any(|record| record[50] == 1));
    }
}
