//! The header of a slab: what it is of, and what columns follow.

use super::record::Pair;
use super::{Header, sub_range};
use holdfast_base::checksum::crc32c;
use holdfast_base::codec::{Decode, Encode, Reader};
use holdfast_base::limits::FRAME_META_BYTES_MAX;
use holdfast_base::{Error, Result, codec_struct};

const MAGIC: [u8; 4] = *b"HFSL";
const VERSION: u16 = 1;
/// In front of the columns' descriptions.
const FIXED_BYTES: usize = 28;
pub(super) const ABOUT_BYTES: usize = 16;
const CRC_BYTES: usize = 4;

const BEGINS_INSIDE_KEY: u8 = 1;
const ENDS_INSIDE_KEY: u8 = 2;
/// Every column of the run is here.
const WHOLE: u8 = 4;

/// Of the items of one collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Group {
    /// Those that another one of their key follows, and deletions.
    Older = 0,
    Newest = 1,
}

/// Of the items of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum What {
    /// And index, and whether the item is a deletion.
    Keys = 0,
    Values = 1,
}

/// What a header says of one column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct About {
    pub collection: u16,
    pub group: Group,
    pub what: What,
    pub items: u32,
    pub bytes: u32,
    pub crc: u32,
}

struct Described {
    collection: u16,
    group: u8,
    what: u8,
    items: u32,
    bytes: u32,
    crc: u32,
}
codec_struct!(Described { collection, group, what, items, bytes, crc });

impl About {
    pub(super) fn new(
        collection: u16,
        group: Group,
        what: What,
        items: u32,
        bytes: &[u8],
    ) -> About {
        let length = u32::try_from(bytes.len()).expect("no column reaches 4 GiB");
        About { collection, group, what, items, bytes: length, crc: crc32c(bytes) }
    }

    /// Columns are in this order.
    fn place(&self) -> (u16, Group, What) {
        (self.collection, self.group, self.what)
    }
}

pub(super) fn corrupt(what: &str) -> Error {
    Error::corrupt(format!("read a slab: {what}: ask for it once more, or elsewhere"))
}

pub(super) fn write_header(
    header: &Header,
    whole: bool,
    columns: impl ExactSizeIterator<Item = About>,
) -> Vec<u8> {
    let mut flags = 0;
    for (set, flag) in [
        (header.begins_inside_key, BEGINS_INSIDE_KEY),
        (header.ends_inside_key, ENDS_INSIDE_KEY),
        (whole, WHOLE),
    ] {
        flags |= if set { flag } else { 0 };
    }
    let mut out = Vec::with_capacity(FIXED_BYTES + ABOUT_BYTES * columns.len() + CRC_BYTES);
    out.extend_from_slice(&MAGIC);
    VERSION.encode(&mut out);
    flags.encode(&mut out);
    sub_range(header.first_hash).encode(&mut out);
    header.index.encode(&mut out);
    header.first_hash.encode(&mut out);
    header.last_hash.encode(&mut out);
    (columns.len() as u32).encode(&mut out);
    for About { collection, group, what, items, bytes, crc } in columns {
        let (group, what) = (group as u8, what as u8);
        Described { collection, group, what, items, bytes, crc }.encode(&mut out);
    }
    crc32c(&out).encode(&mut out);
    out
}

/// How many bytes the header has that these begin with; they need not be all of it. Nothing is
/// verified, but that it may be a header.
pub fn header_bytes(bytes: &[u8]) -> Result<usize> {
    let fixed = bytes.get(..FIXED_BYTES).ok_or_else(|| corrupt("it ends inside its header"))?;
    if fixed[..4] != MAGIC {
        return Err(corrupt("it does not begin as one does"));
    }
    let version = u16::from_bytes(&fixed[4..6])?;
    if version != VERSION {
        return Err(Error::unsupported(format!(
            "read a slab: it has version {version}, this build reads version {VERSION}: use a build \
             that reads it"
        )));
    }
    let columns = u32::from_bytes(&fixed[24..])? as usize;
    let bytes = FIXED_BYTES + ABOUT_BYTES * columns + CRC_BYTES;
    // Whoever goes on to read so many bytes must not be led to ask for more memory than this.
    if bytes > FRAME_META_BYTES_MAX as usize {
        return Err(corrupt("its header is longer than any"));
    }
    Ok(bytes)
}

/// What a header says: of the run, whether every column is here, and of the columns.
pub(super) fn read_header(bytes: &[u8]) -> Result<(Header, bool, Vec<About>)> {
    if header_bytes(bytes)? != bytes.len() {
        return Err(corrupt("its header has another length"));
    }
    let (bytes, crc) = bytes.split_at(bytes.len() - CRC_BYTES);
    if u32::from_bytes(crc)? != crc32c(bytes) {
        return Err(corrupt("its header's checksum is wrong"));
    }
    let mut reader = Reader::new(&bytes[6..]);
    let (flags, byte) = (u8::decode(&mut reader)?, u8::decode(&mut reader)?);
    let index = u64::decode(&mut reader)?;
    let (first_hash, last_hash) = (u32::decode(&mut reader)?, u32::decode(&mut reader)?);
    if flags & !(BEGINS_INSIDE_KEY | ENDS_INSIDE_KEY | WHOLE) != 0 {
        return Err(corrupt("its header has a flag that none has"));
    }
    let one_sub_range = byte == sub_range(first_hash) && byte == sub_range(last_hash);
    if first_hash > last_hash || !one_sub_range {
        return Err(corrupt("its hashes are not of one sub-range"));
    }
    let described = Vec::<Described>::decode(&mut reader)?;
    reader.finish()?;
    let columns = described.into_iter().map(about).collect::<Result<Vec<About>>>()?;
    if !columns.is_sorted_by(|one, next| one.place() < next.place()) {
        return Err(corrupt("its columns are not in order"));
    }
    let header = Header {
        index,
        first_hash,
        last_hash,
        begins_inside_key: flags & BEGINS_INSIDE_KEY != 0,
        ends_inside_key: flags & ENDS_INSIDE_KEY != 0,
    };
    Ok((header, flags & WHOLE != 0, columns))
}

fn about(described: Described) -> Result<About> {
    let Described { collection, group, what, items, bytes, crc } = described;
    let group = [Group::Older, Group::Newest].into_iter().find(|known| *known as u8 == group);
    let what = [What::Keys, What::Values].into_iter().find(|known| *known as u8 == what);
    match (group, what) {
        (Some(group), Some(what)) if items > 0 => {
            Ok(About { collection, group, what, items, bytes, crc })
        }
        _ => Err(corrupt("it has a column of no kind that there is")),
    }
}

/// Puts keys and values of a group together. Refuses values without their keys.
pub(super) fn pairs<'a>(
    columns: impl Iterator<Item = (About, &'a [u8])>,
) -> Result<Vec<Pair<'a>>, &'static str> {
    let mut pairs: Vec<Pair<'a>> = Vec::with_capacity(columns.size_hint().0);
    for (About { collection, group, what, items, .. }, bytes) in columns {
        match what {
            What::Keys => pairs.push(Pair { collection, group, items, keys: bytes, values: None }),
            What::Values => {
                let keys = pairs.last_mut().filter(|keys| {
                    (keys.collection, keys.group, keys.items) == (collection, group, items)
                });
                keys.ok_or("it has values without their keys")?.values = Some(bytes);
            }
        }
    }
    Ok(pairs)
}
