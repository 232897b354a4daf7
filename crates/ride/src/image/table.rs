//! The file that gives an image its name: docs/formats/image.md. Pure.

use super::About;
use holdfast_base::checksum::crc32c;
use holdfast_base::codec::{Decode, DecodeError, Encode, Reader};
use holdfast_base::{Error, Result, codec_struct};
use holdfast_view::Position;
use holdfast_wire::slab::Sums;
use holdfast_wire::view::ViewName;

const VERSION: u16 = 2;

/// Where a slab lies in the file of its part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub offset: u64,
    pub bytes: u32,
    pub first_hash: u32,
    pub last_hash: u32,
    /// Its first row.
    pub row: Vec<u8>,
}
codec_struct!(Entry { offset, bytes, first_hash, last_hash, row });

/// A part as the table describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Described {
    pub low: u64,
    pub high: u64,
    pub bytes: u64,
    pub slabs: Vec<Entry>,
}
codec_struct!(Described { low, high, bytes, slabs });

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Table {
    pub about: About,
    /// Of its items; tables of version 1 have none.
    pub sums: Option<Sums>,
    pub parts: Vec<Described>,
}

impl Table {
    /// All of its file.
    pub fn written(&self) -> Vec<u8> {
        let About { log, view, position, front } = &self.about;
        let mut out = VERSION.to_bytes();
        log.expect("what is written here is of a log").encode(&mut out);
        view.encode(&mut out);
        position.encode(&mut out);
        front.encode(&mut out);
        self.sums.as_ref().expect("what is written here was summed up").encode(&mut out);
        self.parts.encode(&mut out);
        crc32c(&out).encode(&mut out);
        out
    }

    /// `Corrupt` where it is not as it was written, `Unsupported` where a later build has written it.
    pub fn read(bytes: &[u8]) -> Result<Table> {
        let intact = bytes.split_last_chunk::<4>();
        let intact = intact.filter(|(table, crc)| crc32c(table).to_le_bytes() == **crc);
        let Some((table, _)) = intact else {
            return Err(Error::corrupt("its table is damaged"));
        };
        let mut reader = Reader::new(table);
        match u16::decode(&mut reader) {
            Ok(later) if later > VERSION => Err(Error::unsupported(format!(
                "its table has version {later}, this build reads up to {VERSION}: it is of a later build"
            ))),
            version => version
                .and_then(|version| Table::behind_version(version, reader))
                .map_err(|e| Error::corrupt(format!("its table is damaged: {e}"))),
        }
    }

    fn behind_version(
        version: u16,
        mut reader: Reader<'_>,
    ) -> std::result::Result<Table, DecodeError> {
        let log = if version == 1 { None } else { Some(u64::decode(&mut reader)?) };
        let about = About {
            log,
            view: ViewName::decode(&mut reader)?,
            position: Position::decode(&mut reader)?,
            front: Vec::decode(&mut reader)?,
        };
        let sums = match version {
            1 => {
                // Of the newest items and of all: nothing to compare parts by.
                reader.array::<32>()?;
                None
            }
            _ => Some(Sums::decode(&mut reader)?),
        };
        let parts = Vec::decode(&mut reader)?;
        reader.finish()?;
        Ok(Table { about, sums, parts })
    }
}
