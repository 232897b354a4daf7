//! What a blob's needle says of itself behind its data, so that names can be made again from the
//! chunks alone. docs/formats/blob.md.
//!
//! ```text
//!  0           data bytes
//!  +-----------+----------------+------------------+---------+
//!  | data ...  | description ...| its bytes (u32)  | "HFB1"  |
//!  +-----------+----------------+------------------+---------+
//! ```

use crate::model::{Alternate, Object};
use holdfast_base::checksum::crc32c;
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::limits::BLOCK_BYTES;
use holdfast_base::{Error, Result, codec_enum};

const MAGIC: [u8; 4] = *b"HFB1";
const FOOTER_BYTES: usize = 8;

/// The description of one needle.
#[expect(clippy::large_enum_variant, reason = "one at a time, on the stack")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trailer {
    /// The needle that completes an object. The object's extents are those written before; if this
    /// needle has data, it is the last one.
    Whole { bucket: String, key: String, object: Object },
    /// Data of an object or part that is completed by another needle.
    Piece { bucket: String, key: String },
    /// A smaller picture of the photo of this version; its extent is this needle.
    Alternate { bucket: String, key: String, version: u64, alternate: Alternate },
}
codec_enum!(Trailer: "description of a blob" {
    1 => Whole { bucket, key, object },
    2 => Piece { bucket, key },
    3 => Alternate { bucket, key, version, alternate },
});

impl Trailer {
    /// Puts the description behind the data.
    pub fn append_to(&self, data: &mut Vec<u8>) {
        let start = data.len();
        self.encode(data);
        let bytes = (data.len() - start) as u32;
        data.extend_from_slice(&bytes.to_le_bytes());
        data.extend_from_slice(&MAGIC);
    }

    /// The description of a needle, and how many bytes of it are data.
    pub fn of(needle: &[u8]) -> Result<(Trailer, usize)> {
        let wrong = |what: &str| Error::corrupt(format!("read a blob's description: {what}"));
        let footer =
            needle.len().checked_sub(FOOTER_BYTES).ok_or_else(|| wrong("it is too short"))?;
        let (rest, footer) = needle.split_at(footer);
        if footer[4..] != MAGIC {
            return Err(wrong("its end is not marked"));
        }
        let bytes = u32::from_le_bytes([footer[0], footer[1], footer[2], footer[3]]) as usize;
        let data =
            rest.len().checked_sub(bytes).ok_or_else(|| wrong("it is longer than its needle"))?;
        let trailer = Trailer::from_bytes(&rest[data..]).map_err(|e| wrong(&e.to_string()))?;
        Ok((trailer, data))
    }
}

/// CRC32C of each 64 KiB of a needle, as stores want them.
pub fn block_crcs(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks(BLOCK_BYTES as usize).map(crc32c).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ObjectExtent;
    use holdfast_base::ids::Pointer;

    #[test]
    fn a_needle_gives_its_description_and_data_back() {
        let object = Object { size: 5, etag: "e".into(), ..Object::default() };
        let whole = Trailer::Whole { bucket: "b".into(), key: "k/ü".into(), object };
        let piece = Trailer::Piece { bucket: "b".into(), key: "k".into() };
        let alternate = Alternate {
            size: 720,
            width: 720,
            height: 405,
            content_type: "image/jpeg".into(),
            etag: "e".into(),
            extent: ObjectExtent { pointer: Pointer::default(), bytes: 0 },
        };
        let alternate =
            Trailer::Alternate { bucket: "b".into(), key: "k".into(), version: 7, alternate };
        for trailer in [whole, piece, alternate] {
            for data in [&b""[..], b"12345"] {
                let mut needle = data.to_vec();
                trailer.append_to(&mut needle);
                let (found, bytes) = Trailer::of(&needle).unwrap();
                assert_eq!((found, bytes), (trailer.clone(), data.len()));
                for cut in 1..needle.len() {
                    assert!(Trailer::of(&needle[..needle.len() - cut]).is_err(), "{cut} cut off");
                }
            }
        }
    }
}
