//! A view of items as a stream: its catalog, then slab after slab, each behind its length, and a
//! length of 0 at the end. What snapshots hold, and what a view begins with that rides another.

use super::catalog::Catalog;
use holdfast_base::codec::{Decode, DecodeError, Encode};
use holdfast_base::ids::Index;
use holdfast_base::stream::{Source, Writer};
use holdfast_base::{Error, Result};
use holdfast_wire::slab::{self, Builder, Item, Needs, Range, Reader, Received, Slab};
use std::sync::Arc;

/// Takes the next item.
pub type PutItem<'a> = dyn FnMut(&Item<'_>) -> Result<()> + 'a;

/// Writes what `items` gives, in the order of items.
pub fn write(
    out: &mut Writer<'_>,
    catalog: &Catalog,
    (range, index): (Range, Index),
    items: impl FnOnce(&mut PutItem<'_>) -> Result<()>,
) {
    out.put(catalog);
    let mut builder = Builder::new(range, index.0, Arc::new(Needs::all()), false);
    let given = items(&mut |item| {
        builder.push(item).iter().for_each(|slab| put(out, slab));
        Ok(())
    });
    match given {
        Ok(()) => {
            builder.finish().iter().for_each(|slab| put(out, slab));
            end(out);
        }
        Err(e) => out.fail(e),
    }
}

/// Writes one slab.
pub fn put(out: &mut Writer<'_>, slab: &Slab) {
    out.put_with(|out| {
        let at = out.len();
        0u32.encode(out);
        slab.write(out);
        let bytes = (out.len() - at - 4) as u32;
        out[at..at + 4].copy_from_slice(&bytes.to_le_bytes());
    });
}

/// Writes that there are no more.
pub fn end(out: &mut Writer<'_>) {
    out.put(&0u32);
}

/// Reads a catalog, and item after item.
pub fn read(
    source: &mut Source<'_>,
    catalog: &mut Catalog,
    each: &mut dyn FnMut(Received<'_>) -> Result<()>,
) -> Result<()> {
    *catalog = source.get()?;
    read_items(source, each)
}

/// Reads item after item, behind a catalog that was read.
pub fn read_items(
    source: &mut Source<'_>,
    each: &mut dyn FnMut(Received<'_>) -> Result<()>,
) -> Result<()> {
    read_slabs(source, &mut |slab| slab.items().try_for_each(&mut *each))
}

/// Reads slab after slab, behind a catalog that was read.
pub fn read_slabs(
    source: &mut Source<'_>,
    each: &mut dyn FnMut(&Reader<'_>) -> Result<()>,
) -> Result<()> {
    loop {
        let mut read = Ok(());
        let bytes = source.get_with(|reader| {
            let bytes = u32::decode(reader)?;
            let slab = reader.take(bytes as usize)?;
            if bytes > 0 {
                read = open(slab).and_then(|slab| each(&slab));
            }
            Ok::<_, DecodeError>(bytes)
        })?;
        read?;
        if bytes == 0 {
            return Ok(());
        }
    }
}

/// A slab as it lies in a stream.
fn open(slab: &[u8]) -> Result<Reader<'_>> {
    let (header, columns) = slab
        .split_at_checked(slab::header_bytes(slab)?)
        .ok_or_else(|| Error::corrupt("read a slab: it ends inside its header"))?;
    Reader::new(header, columns)
}
