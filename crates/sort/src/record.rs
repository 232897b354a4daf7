//! Where a record ends and what of it is compared. Pure.

use holdfast_base::{Error, Result};

/// How a file is cut into records. Output bytes are input bytes, whatever the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// So many bytes each.
    Fixed(usize),
    /// Each ends with this byte, which is not part of what is compared.
    Delimited(u8),
    /// A length of four bytes, big-endian, then so many bytes, which are what is compared.
    Prefixed,
}

const PREFIX_BYTES: usize = 4;

impl Format {
    /// Bytes of the record that `bytes` starts with, if all of it is there.
    #[inline]
    pub fn record_bytes(self, bytes: &[u8]) -> Option<usize> {
        let whole = match self {
            Format::Fixed(n) => n,
            Format::Delimited(delimiter) => crate::kernel::scan::find(delimiter, bytes)? + 1,
            Format::Prefixed => {
                let length: [u8; PREFIX_BYTES] = *bytes.first_chunk()?;
                PREFIX_BYTES + u32::from_be_bytes(length) as usize
            }
        };
        (whole <= bytes.len()).then_some(whole)
    }

    /// What of a whole record is compared.
    #[inline]
    pub fn body(self, record: &[u8]) -> &[u8] {
        match self {
            Format::Fixed(_) => record,
            Format::Delimited(_) => &record[..record.len() - 1],
            Format::Prefixed => &record[PREFIX_BYTES..],
        }
    }

    /// Makes a whole record of what the end of the input left: a line gets its delimiter.
    pub fn complete(self, rest: &mut Vec<u8>) -> Result<()> {
        match self {
            Format::Delimited(delimiter) => {
                rest.push(delimiter);
                Ok(())
            }
            Format::Fixed(n) => Err(Error::invalid(format!(
                "its last record has {} bytes instead of {n}: give the right `--record`",
                rest.len()
            ))),
            Format::Prefixed => Err(Error::invalid(format!(
                "its last record is cut: {} bytes are there of more",
                rest.len()
            ))),
        }
    }

    /// In words that tell formats apart.
    pub fn describe(self) -> String {
        match self {
            Format::Fixed(n) => format!("fixed {n}"),
            Format::Delimited(delimiter) => format!("delimited {delimiter}"),
            Format::Prefixed => "prefixed".to_owned(),
        }
    }
}
