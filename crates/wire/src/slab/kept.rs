//! Slabs where they are kept, in images: verified there, and read from there no further than somebody
//! needs them.

use super::header::{About, corrupt, pairs, read_header};
use super::reader::verified;
use super::record::check;
use super::{Column, Indices, Needs, Slab, header_bytes};
use holdfast_base::Result;
use std::ops::Range;
use std::sync::Arc;

/// What is read at first: the header of all but slabs of very many collections.
const FRONT_BYTES: usize = 4096;

/// Of a slab's header, which has the checksums of the columns: equal ones are of equal slabs.
pub fn checksum(header: &[u8]) -> u32 {
    let (_, crc) = header.split_last_chunk().expect("a header ends with its checksum");
    u32::from_le_bytes(*crc)
}

/// Whether these bytes are a slab, and as it was written: the [`checksum`] of its header. The items are
/// not looked at.
pub fn verify(bytes: &[u8]) -> Result<u32> {
    let (header, columns) = bytes.split_at(header_bytes(bytes)?.min(bytes.len()));
    let (_, _, described) = read_header(header)?;
    verified(&described, columns)?;
    Ok(checksum(header))
}

impl Slab {
    /// Takes what is needed of a slab that is kept, and so many bytes long: header and columns, as
    /// [`Slab::write`] writes them. `read` gives the bytes of a place in it. What was read is verified;
    /// `Corrupt` as for a [`Reader`](super::Reader).
    pub fn read(
        bytes: usize,
        needs: &Arc<Needs>,
        read: &mut dyn FnMut(Range<usize>) -> Result<Vec<u8>>,
    ) -> Result<Slab> {
        let mut front = read(0..bytes.min(FRONT_BYTES))?;
        let behind_header = header_bytes(&front)?;
        if behind_header > front.len() && behind_header <= bytes {
            front = read(0..behind_header)?;
        }
        front.truncate(behind_header);
        let (header, whole, described) = read_header(&front)?;
        let in_all: u64 = described.iter().map(|about| u64::from(about.bytes)).sum();
        match (in_all + behind_header as u64).cmp(&(bytes as u64)) {
            std::cmp::Ordering::Less => return Err(corrupt("it goes on behind its columns")),
            std::cmp::Ordering::Equal => {}
            std::cmp::Ordering::Greater => return Err(corrupt("its columns end too early")),
        }
        let is_needed =
            |about: &About| needs.need(about.collection).column(about.group, about.what);
        let (mut columns, mut at) = (Vec::new(), behind_header);
        for run in described.chunk_by(|one, next| is_needed(one) == is_needed(next)) {
            let run_bytes: usize = run.iter().map(|about| about.bytes as usize).sum();
            let place = at..at + run_bytes;
            at = place.end;
            if is_needed(&run[0]) {
                columns.extend(taken(run, Arc::new(read(place)?))?);
            }
        }
        let found = columns.iter().map(|column: &Column| (column.about, column.bytes()));
        let pairs = pairs(found).map_err(corrupt)?;
        let indices = pairs
            .iter()
            .map(|pair| check(&header, *pair))
            .collect::<std::result::Result<Vec<_>, _>>();
        let groups = columns.chunk_by_mut(|one, next| one.group() == next.group());
        for (group, indices) in groups.zip(indices.map_err(corrupt)?) {
            group.iter_mut().for_each(|column| column.indices = indices);
        }
        let needs = if whole { needs.clone() } else { Arc::new(Needs::nothing()) };
        Ok(Slab { header, needs, columns })
    }
}

/// Columns that were read together.
fn taken(run: &[About], bytes: Arc<Vec<u8>>) -> Result<Vec<Column>> {
    verified(run, &bytes)?;
    let mut end = 0;
    let column = |about: &About| {
        let at = end..end + about.bytes as usize;
        end = at.end;
        Column { about: *about, indices: Indices::NONE, bytes: bytes.clone(), at }
    };
    Ok(run.iter().map(column).collect())
}
