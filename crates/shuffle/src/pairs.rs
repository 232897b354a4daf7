//! Keys and values as records that sort by key: length-prefixed, the key in a form whose end shows
//! and whose order is that of its bytes, then the value. Pure.
//!
//! In a key, 0 is written as 0 255; 0 0 ends it. A boundary is a key and a single 0: less than all
//! records of that key, more than those of any lesser one, so that a key is in one partition.

use holdfast_base::{Error, Result};

const LENGTH_BYTES: usize = 4;

fn put_key(out: &mut Vec<u8>, key: &[u8]) {
    for (i, part) in key.split(|byte| *byte == 0).enumerate() {
        if i > 0 {
            out.extend_from_slice(&[0, 255]);
        }
        out.extend_from_slice(part);
    }
}

/// Adds the record of a pair.
pub fn put(out: &mut Vec<u8>, key: &[u8], value: &[u8]) -> Result<()> {
    let start = out.len();
    out.extend_from_slice(&[0; LENGTH_BYTES]);
    put_key(out, key);
    out.extend_from_slice(&[0, 0]);
    out.extend_from_slice(value);
    let bytes = out.len() - start - LENGTH_BYTES;
    if bytes > crate::limits::RECORD_BYTES_MAX {
        out.truncate(start);
        return Err(Error::invalid(format!(
            "map a pair of {bytes} bytes, of key `{}`: the limit is {}: make smaller values",
            crate::fold::shown(key),
            crate::limits::RECORD_BYTES_MAX
        )));
    }
    out[start..start + LENGTH_BYTES].copy_from_slice(&(bytes as u32).to_be_bytes());
    Ok(())
}

/// The boundary below all records of a key, as a record of the sample.
pub fn boundary(key: &[u8]) -> Vec<u8> {
    let mut out = vec![0; LENGTH_BYTES];
    put_key(&mut out, key);
    out.push(0);
    let bytes = (out.len() - LENGTH_BYTES) as u32;
    out[..LENGTH_BYTES].copy_from_slice(&bytes.to_be_bytes());
    out
}

/// Key and value of a record's body.
pub fn parse(body: &[u8]) -> Result<(Vec<u8>, &[u8])> {
    let mut key = Vec::new();
    let mut at = 0;
    loop {
        let ended = || Error::corrupt("read a pair: its key has no end");
        let zero = at + memchr::memchr(0, &body[at..]).ok_or_else(ended)?;
        key.extend_from_slice(&body[at..zero]);
        match body.get(zero + 1) {
            Some(0) => return Ok((key, &body[zero + 2..])),
            Some(255) => key.push(0),
            _ => return Err(ended()),
        }
        at = zero + 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All keys of up to four bytes of a small alphabet with the bytes that mean something: records
    /// come in the order of the keys, whatever the values, and no boundary cuts a key.
    #[test]
    fn pairs_sort_by_key_and_boundaries_cut_between_keys() {
        let alphabet = [0u8, 1, 254, 255];
        let mut keys: Vec<Vec<u8>> = vec![Vec::new()];
        let mut from = 0;
        for _ in 0..4 {
            let upto = keys.len();
            for i in from..upto {
                for byte in alphabet {
                    keys.push([&keys[i][..], &[byte]].concat());
                }
            }
            from = upto;
        }
        keys.sort();
        let body = |key: &[u8], value: &[u8]| {
            let mut out = Vec::new();
            put(&mut out, key, value).unwrap();
            assert_eq!(parse(&out[4..]).unwrap(), (key.to_vec(), value));
            out[4..].to_vec()
        };
        for pair in keys.windows(2) {
            let (low, high) = (&pair[0], &pair[1]);
            assert!(body(low, &[255; 9]) < body(high, b""), "{low:?} {high:?}");
            let boundary = &boundary(high)[4..];
            assert!(body(low, &[255; 9])[..] < *boundary, "{low:?} {high:?}");
            assert!(*boundary < body(high, b"")[..], "{high:?}");
        }
    }

    #[test]
    fn a_pair_that_is_too_long_is_named_by_its_key() {
        let value = vec![0; crate::limits::RECORD_BYTES_MAX];
        let mut out = b"before".to_vec();
        let refused = put(&mut out, b"suser 7", &value).unwrap_err();
        assert!(refused.message.contains("of key `user 7`"), "{}", refused.message);
        assert_eq!(out, b"before");
    }
}
