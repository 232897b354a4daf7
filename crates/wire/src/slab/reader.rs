//! A slab as it was received, from whomever.

use super::header::{About, corrupt, pairs, read_header};
use super::record::{Pair, Walk, check};
use super::{Header, Indices, Received, What};
use holdfast_base::Result;
use holdfast_base::checksum::crc32c;
use holdfast_env::planted;
use std::ops;

/// The items of a slab whose every byte has been verified. It borrows what was received, and asks
/// for memory for the columns' descriptions alone.
#[derive(Debug)]
pub struct Reader<'a> {
    pub header: Header,
    whole: bool,
    columns: Vec<About>,
    pairs: Vec<Pair<'a>>,
    /// Of each pair.
    indices: Vec<Indices>,
}

impl<'a> Reader<'a> {
    /// `header` and `columns` are what [`Slab::header_bytes`](super::Slab::header_bytes) and
    /// [`Slab::columns`](super::Slab::columns) were. `Corrupt` says what is wrong with them,
    /// `Unsupported` that they are of another version.
    pub fn new(header: &[u8], columns: &'a [u8]) -> Result<Reader<'a>> {
        let (header, whole, described) = read_header(header)?;
        let mut rest = columns;
        let mut bytes = Vec::with_capacity(described.len());
        for about in &described {
            let of_one = rest.split_at_checked(about.bytes as usize);
            let (column, behind) = of_one.ok_or_else(|| corrupt("its columns end too early"))?;
            if crc32c(column) != about.crc && !planted!("slab.column-unverified") {
                let (collection, group, what) = (about.collection, about.group, about.what);
                let column = format!("{what:?} of {group:?} of collection {collection}");
                return Err(corrupt(&format!("the checksum of its column `{column}` is wrong")));
            }
            bytes.push((*about, column));
            rest = behind;
        }
        if !rest.is_empty() {
            return Err(corrupt("it goes on behind its columns"));
        }
        let pairs = pairs(bytes.into_iter()).map_err(corrupt)?;
        let indices = pairs.iter().map(|pair| check(&header, *pair).map_err(corrupt));
        let indices = indices.collect::<Result<Vec<_>>>()?;
        Ok(Reader { header, whole, columns: described, pairs, indices })
    }

    /// All items: collection by collection, first the older ones of all keys, then the newest ones,
    /// each in order of hash, key and index. So those of one key are in the log's order.
    pub fn items(&self) -> impl Iterator<Item = Received<'a>> + use<'a, '_> {
        self.pairs.iter().flat_map(|pair| {
            let mut walk = Walk::new(&self.header, *pair);
            std::iter::from_fn(move || {
                let step = walk.step().expect("a reader has verified every record");
                step.map(|step| step.received)
            })
        })
    }

    /// Whether keys came whose values were not sent.
    pub(super) fn lacks_values(&self) -> bool {
        self.pairs.iter().any(|pair| pair.values.is_none())
    }

    pub(super) fn is_whole(&self) -> bool {
        self.whole
    }

    /// The columns, the indices of their items, and where their bytes lie among those of all.
    pub(super) fn columns(&self) -> impl Iterator<Item = (About, Indices, ops::Range<usize>)> {
        let (mut end, mut pairs) = (0, 0);
        self.columns.iter().map(move |about| {
            let begin = end;
            end += about.bytes as usize;
            pairs += usize::from(about.what == What::Keys);
            (*about, self.indices[pairs - 1], begin..end)
        })
    }
}
