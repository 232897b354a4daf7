//! The entries of an invalidation topic, byte by byte as docs/formats/invalidate.md describes them. Pure.

use crate::position::Position;
use holdfast_base::Result;
use holdfast_base::codec::{Decode, DecodeError, Encode, Reader, put_bytes};
use holdfast_base::ids::Index;
use holdfast_base::limits::ENTRY_BYTES_MAX;
use holdfast_cache_client::wire::KEY_BYTES_MAX;

const VERSION: u8 = 1;

/// Keys of one entry.
pub const KEYS_MAX: usize = 2000;
/// Room for the rest of an entry: a position of some hundred domains.
const REST_BYTES: usize = 64 << 10;
const _: () = assert!(KEYS_MAX * (KEY_BYTES_MAX + 4) + REST_BYTES <= ENTRY_BYTES_MAX);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Rows changed that are in these keys, and the change is visible. `position` lies behind the last
    /// transaction whose keys are all in the topic.
    Keys { position: Position, changed_s: u64, keys: Vec<Vec<u8>> },
    /// Nobody knows which keys changed up to this position: servers are emptied.
    Empty { position: Position, changed_s: u64 },
    /// How far servers have confirmed, as the index of the first entry that they have not; and the pools by which
    /// keys were sent to them ([`crate::rings`]), if that was written down.
    Confirmed { servers: Vec<(String, Index)>, rings: Vec<String> },
}

impl Encode for Entry {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(VERSION);
        match self {
            Entry::Keys { position, changed_s, keys } => {
                out.push(1);
                position.to_string().encode(out);
                changed_s.encode(out);
                (keys.len() as u32).encode(out);
                keys.iter().for_each(|key| put_bytes(out, key));
            }
            Entry::Empty { position, changed_s } => {
                out.push(2);
                position.to_string().encode(out);
                changed_s.encode(out);
            }
            Entry::Confirmed { servers, rings } => {
                out.push(4);
                (servers.len() as u32).encode(out);
                for (server, next) in servers {
                    server.encode(out);
                    next.0.encode(out);
                }
                (rings.len() as u32).encode(out);
                rings.iter().for_each(|ring| ring.encode(out));
            }
        }
    }
}

impl Decode for Entry {
    fn decode(reader: &mut Reader<'_>) -> std::result::Result<Entry, DecodeError> {
        if u8::decode(reader)? != VERSION {
            return Err(DecodeError::BadValue("version"));
        }
        let position = |reader: &mut Reader<'_>| {
            Position::parse(reader.str()?).map_err(|_| DecodeError::BadValue("position"))
        };
        Ok(match u8::decode(reader)? {
            1 => {
                let (position, changed_s) = (position(reader)?, u64::decode(reader)?);
                let count = u32::decode(reader)?;
                let keys = (0..count).map(|_| Ok(reader.bytes()?.to_vec()));
                Entry::Keys {
                    position,
                    changed_s,
                    keys: keys.collect::<std::result::Result<_, _>>()?,
                }
            }
            2 => Entry::Empty { position: position(reader)?, changed_s: u64::decode(reader)? },
            kind @ (3 | 4) => {
                let count = u32::decode(reader)?;
                let servers =
                    (0..count).map(|_| Ok((reader.str()?.to_owned(), Index(u64::decode(reader)?))));
                let servers = servers.collect::<std::result::Result<_, DecodeError>>()?;
                let count = if kind == 3 { 0 } else { u32::decode(reader)? };
                let rings = (0..count).map(|_| Ok(reader.str()?.to_owned()));
                let rings = rings.collect::<std::result::Result<_, DecodeError>>()?;
                Entry::Confirmed { servers, rings }
            }
            _ => return Err(DecodeError::BadValue("kind of entry")),
        })
    }
}

impl Entry {
    pub fn read(index: Index, bytes: &[u8]) -> Result<Entry> {
        Entry::from_bytes(bytes).map_err(|e| {
            holdfast_base::Error::from(e)
                .context(format_args!("read entry {index} of the invalidation topic"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read_as_they_were_written_and_never_half() {
        let position = Position::parse("0-1-100").unwrap();
        let entries = [
            Entry::Keys {
                position: position.clone(),
                changed_s: 7,
                keys: vec![b"a".to_vec(), b"bc".to_vec()],
            },
            Entry::Empty { position, changed_s: 8 },
            Entry::Confirmed {
                servers: vec![("h:1".to_owned(), Index(9))],
                rings: vec!["main Weighted h:1 1".to_owned()],
            },
        ];
        for entry in entries {
            let bytes = entry.to_bytes();
            assert_eq!(Entry::from_bytes(&bytes).unwrap(), entry);
            for cut in 0..bytes.len() {
                assert!(Entry::from_bytes(&bytes[..cut]).is_err(), "{cut}");
            }
        }
        assert!(Entry::from_bytes(&[2, 1]).is_err(), "another version");
        let keys = [&[1, 1, 0, 0, 0, 0][..], &[0; 8], &[0xff; 4]].concat();
        assert!(Entry::from_bytes(&keys).is_err(), "a count without keys takes no memory");
        let bytes = Entry::Keys {
            position: Position::parse("0-1-1").unwrap(),
            changed_s: 0x0102,
            keys: vec![b"k".to_vec()],
        };
        let golden: &[u8] = b"\x01\x01\x05\0\0\x000-1-1\x02\x01\0\0\0\0\0\0\x01\0\0\0\x01\0\0\0k";
        assert_eq!(bytes.to_bytes(), golden);
        let position = Position::parse("pg-7-1-5-00000000deadbeef-16/B374D848").unwrap();
        let bytes = Entry::Empty { position, changed_s: 0x0102 }.to_bytes();
        let golden: &[u8] =
            b"\x01\x02\x25\0\0\0pg-7-1-5-00000000deadbeef-16/B374D848\x02\x01\0\0\0\0\0\0";
        assert_eq!(bytes, golden);
        assert!(Entry::from_bytes(golden).is_ok());
        // As it was written before pools were.
        let old: &[u8] = b"\x01\x03\x01\0\0\0\x03\0\0\0h:1\x09\0\0\0\0\0\0\0";
        let servers = vec![("h:1".to_owned(), Index(9))];
        let entry = Entry::Confirmed { servers: servers.clone(), rings: Vec::new() };
        assert_eq!(Entry::from_bytes(old).unwrap(), entry);
        let entry = Entry::Confirmed { servers, rings: vec!["m W h:1 1".to_owned()] };
        let rings: &[u8] = b"\x01\0\0\0\x09\0\0\0m W h:1 1";
        assert_eq!(entry.to_bytes(), [b"\x01\x04", &old[2..], rings].concat());
    }
}
