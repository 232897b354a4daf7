//! A slab as it was received, from whomever.

use super::header::{About, corrupt, pairs, read_header};
use super::record::{Pair, Walk, check};
use super::{Header, Received};
use holdfast_base::Result;
use holdfast_base::checksum::crc32c;
use holdfast_env::planted;

/// The items of a slab whose every byte has been verified. It borrows what was received, and asks
/// for memory for the columns' descriptions alone.
#[derive(Debug)]
pub struct Reader<'a> {
    pub header: Header,
    pairs: Vec<Pair<'a>>,
}

/// Columns that lie one behind the other, as a header describes them; their checksums are compared.
pub(super) fn verified<'a>(described: &[About], bytes: &'a [u8]) -> Result<Vec<(About, &'a [u8])>> {
    let mut rest = bytes;
    let mut columns = Vec::with_capacity(described.len());
    for about in described {
        let of_one = rest.split_at_checked(about.bytes as usize);
        let (column, behind) = of_one.ok_or_else(|| corrupt("its columns end too early"))?;
        if crc32c(column) != about.crc && !planted!("slab.column-unverified") {
            let (collection, group, what) = (about.collection, about.group, about.what);
            let column = format!("{what:?} of {group:?} of collection {collection}");
            return Err(corrupt(&format!("the checksum of its column `{column}` is wrong")));
        }
        columns.push((*about, column));
        rest = behind;
    }
    match rest.is_empty() {
        true => Ok(columns),
        false => Err(corrupt("it goes on behind its columns")),
    }
}

impl<'a> Reader<'a> {
    /// `header` and `columns` are what [`Slab::header_bytes`](super::Slab::header_bytes) and
    /// [`Slab::columns`](super::Slab::columns) were. `Corrupt` says what is wrong with them,
    /// `Unsupported` that they are of another version.
    pub fn new(header: &[u8], columns: &'a [u8]) -> Result<Reader<'a>> {
        let (header, _, described) = read_header(header)?;
        let pairs = pairs(verified(&described, columns)?.into_iter()).map_err(corrupt)?;
        pairs.iter().try_for_each(|pair| check(&header, *pair).map(drop)).map_err(corrupt)?;
        Ok(Reader { header, pairs })
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
}
