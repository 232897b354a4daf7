//! What is sorted, opened: files that are cut into lanes, or a stream of which the front is read
//! before anything is planned.

use crate::distribute::Lane;
use crate::input::{self, Filled, Input, Opened};
use crate::job::Job;
use crate::record::Format;
use holdfast_base::Result;
use holdfast_base::limits::SECTOR_BYTES;
use holdfast_base::units::MIB;
use holdfast_env::buf::AlignedBuf;
use holdfast_env::disk::Disk;

/// What of a stream is read before deciding, as a part of the memory: as much again is needed to
/// distribute it.
const PRIME_PART: u64 = 3;
/// A stream that does not end early is taken for so many times the memory.
const STREAM_MEMORIES: u64 = 16;

/// The input, opened.
pub(crate) enum Source {
    Files(Vec<Opened>),
    /// The blocks that were read so far, and what is left to read.
    Stream {
        primed: Vec<Filled>,
        pieces: Vec<input::Piece>,
    },
}

/// Opens what `job` sorts, which loses its inputs.
pub(crate) fn open(disk: &dyn Disk, job: &mut Job) -> Result<Source> {
    let inputs = std::mem::take(&mut job.inputs);
    let mut files = Vec::new();
    let mut pieces = Vec::new();
    let streams = inputs.iter().any(|input| matches!(input, Input::Stream(..)));
    for input in inputs {
        match input {
            Input::File(path) => files.push(input::open(disk, &path)?),
            Input::Stream(name, stream) => {
                pieces.extend(input::lanes(&files, 1, job.format)?.into_iter().flatten());
                files.clear();
                pieces.push(input::Piece::Stream { name: name.into(), stream });
            }
        }
    }
    if !streams {
        return Ok(Source::Files(files));
    }
    pieces.extend(input::lanes(&files, 1, job.format)?.into_iter().flatten());
    prime(pieces, job.memory_bytes)
}

/// Reads from the front until a part of the memory is full.
fn prime(mut pieces: Vec<input::Piece>, memory_bytes: u64) -> Result<Source> {
    let block_bytes = (memory_bytes / PRIME_PART / 16).clamp(SECTOR_BYTES as u64, MIB) as usize;
    let most = memory_bytes / PRIME_PART / block_bytes as u64;
    let mut primed = Vec::new();
    while let Some(piece) = pieces.first_mut()
        && (primed.len() as u64) < most
    {
        let (filled, done) = piece.fill(AlignedBuf::zeroed(block_bytes))?;
        primed.push(filled);
        if done {
            pieces.remove(0);
        }
    }
    Ok(Source::Stream { primed, pieces })
}

impl Source {
    /// Bytes of the input and whether that is known, or else a guess.
    pub fn bytes(&self, job: &Job) -> (u64, bool) {
        match self {
            Source::Files(files) => (files.iter().map(|file| file.bytes).sum(), true),
            Source::Stream { primed, pieces } if pieces.is_empty() => {
                (primed.iter().map(|block| (block.end - block.start) as u64).sum(), true)
            }
            Source::Stream { .. } => (job.memory_bytes * STREAM_MEMORIES, false),
        }
    }

    /// Memory that holds what was read before planning.
    pub fn primed_bytes(&self) -> u64 {
        match self {
            Source::Files(_) => 0,
            Source::Stream { primed, .. } => primed.iter().map(|b| b.block.len() as u64).sum(),
        }
    }

    /// How many records may need a delimiter.
    pub fn files(&self) -> usize {
        match self {
            Source::Files(files) => files.len(),
            Source::Stream { primed, .. } => primed.iter().filter(|b| b.ends.is_some()).count(),
        }
    }

    pub fn sample(&self, format: Format, bytes: u64) -> Result<Vec<Vec<u8>>> {
        // Enough for as many partitions as that many bytes could come to.
        let wanted = (bytes / (4 * MIB)).clamp(16, 256) as usize;
        match self {
            Source::Files(files) => input::sample_files(files, format, wanted),
            Source::Stream { primed, .. } => {
                let mut sample = Vec::new();
                // Blocks of other formats start anywhere in a record: the first has to do.
                let looked = match format {
                    Format::Delimited(_) => primed.len(),
                    _ => primed.len().min(1),
                };
                let (each, room) = input::share(wanted, looked.max(1));
                for block in &primed[..looked] {
                    let bytes = &block.block[block.start..block.end];
                    let start = match format {
                        Format::Delimited(d) => memchr::memchr(d, bytes).map_or(0, |i| i + 1),
                        _ => 0,
                    };
                    input::take_sample(&bytes[start..], format, each, room, &mut sample);
                }
                Ok(sample)
            }
        }
    }

    pub fn lanes(self, lanes: usize, format: Format) -> Result<Vec<Lane>> {
        match self {
            Source::Files(files) => {
                let lanes = input::lanes(&files, lanes, format)?.into_iter();
                Ok(lanes.map(|pieces| Lane { primed: Vec::new(), pieces }).collect())
            }
            Source::Stream { primed, pieces } => Ok(vec![Lane { primed, pieces }]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stream of fixed records is sampled from its first block alone, which had only its share
    /// of the sample's memory: a few hundred records for all boundaries.
    #[test]
    fn a_stream_of_fixed_records_has_a_whole_sample() {
        let filled = || {
            let block = AlignedBuf::zeroed(4 << 20);
            Filled { start: 0, end: block.len(), block, ends: None }
        };
        let primed = (0..8).map(|_| filled()).collect();
        let source = Source::Stream { primed, pieces: Vec::new() };
        let sample = source.sample(Format::Fixed(100), 1 << 30).unwrap();
        assert!(sample.len() > 10_000, "{}", sample.len());
    }
}
