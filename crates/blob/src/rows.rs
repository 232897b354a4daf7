//! Keys of the index's rows. A first byte says what the row is; keys of objects sort as S3 lists
//! them, and the versions of one key newest first. docs/formats/blob.md.

use holdfast_base::ids::{ChunkId, Pointer, Slot};
use holdfast_base::ordered;

pub const BUCKET: u8 = b'b';
pub const CURRENT: u8 = b'o';
const VERSION: u8 = b'v';
const UPLOAD: u8 = b'u';
const PART: u8 = b'p';
pub const HOLD: u8 = b'h';
const SLOT: u8 = b's';
pub const CHUNK: u8 = b'c';
pub const ACCESS_KEY: u8 = b'k';

fn start(kind: u8, bytes: usize) -> Vec<u8> {
    let mut row = Vec::with_capacity(1 + bytes);
    row.push(kind);
    row
}

pub fn bucket(name: &str) -> Vec<u8> {
    let mut row = start(BUCKET, name.len());
    row.extend_from_slice(name.as_bytes());
    row
}

pub fn access_key(name: &str) -> Vec<u8> {
    let mut row = start(ACCESS_KEY, name.len());
    row.extend_from_slice(name.as_bytes());
    row
}

/// In front of every current version of a bucket. Bucket names hold no zero byte.
pub fn currents(bucket: &str) -> Vec<u8> {
    in_bucket(CURRENT, bucket, 0)
}

pub fn current(bucket: &str, key: &str) -> Vec<u8> {
    let mut row = in_bucket(CURRENT, bucket, key.len());
    row.extend_from_slice(key.as_bytes());
    row
}

fn in_bucket(kind: u8, bucket: &str, more: usize) -> Vec<u8> {
    let mut row = start(kind, bucket.len() + 1 + more);
    row.extend_from_slice(bucket.as_bytes());
    row.push(0);
    row
}

/// In front of what a kind of row has of one key.
fn of_key(kind: u8, bucket: &str, key: &str) -> Vec<u8> {
    let mut row = in_bucket(kind, bucket, key.len() + 10);
    ordered::put(&mut row, key.as_bytes());
    row
}

/// In front of the versions of a key that are not current.
pub fn versions(bucket: &str, key: &str) -> Vec<u8> {
    of_key(VERSION, bucket, key)
}

/// Newest first.
pub fn version(bucket: &str, key: &str, version: u64) -> Vec<u8> {
    let mut row = versions(bucket, key);
    row.extend_from_slice(&(!version).to_be_bytes());
    row
}

pub fn uploads(bucket: &str) -> Vec<u8> {
    in_bucket(UPLOAD, bucket, 0)
}

pub fn uploads_of(bucket: &str, key: &str) -> Vec<u8> {
    of_key(UPLOAD, bucket, key)
}

pub fn upload(bucket: &str, key: &str, id: u64) -> Vec<u8> {
    let mut row = uploads_of(bucket, key);
    row.extend_from_slice(&id.to_be_bytes());
    row
}

/// Key and id of an upload's row.
pub fn parse_upload(row: &[u8], bucket: &str) -> Option<(String, u64)> {
    let rest = row.get(1 + bucket.len() + 1..)?;
    let (key, id) = ordered::take(rest)?;
    Some((String::from_utf8(key.into_owned()).ok()?, u64::from_be_bytes(id.try_into().ok()?)))
}

pub fn parts(upload: u64) -> Vec<u8> {
    let mut row = start(PART, 10);
    row.extend_from_slice(&upload.to_be_bytes());
    row
}

pub fn part(upload: u64, number: u16) -> Vec<u8> {
    let mut row = parts(upload);
    row.extend_from_slice(&number.to_be_bytes());
    row
}

pub fn parse_part(row: &[u8]) -> Option<u16> {
    Some(u16::from_be_bytes(row.get(9..11)?.try_into().ok()?))
}

pub fn hold(id: u64) -> Vec<u8> {
    let mut row = start(HOLD, 8);
    row.extend_from_slice(&id.to_be_bytes());
    row
}

pub fn parse_hold(row: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(row.get(1..9)?.try_into().ok()?))
}

/// In front of the live slots of a chunk.
pub fn slots(chunk: ChunkId) -> Vec<u8> {
    let mut row = start(SLOT, 12);
    row.extend_from_slice(&chunk.0.to_be_bytes());
    row
}

pub fn slot(pointer: Pointer) -> Vec<u8> {
    let mut row = slots(pointer.chunk);
    row.extend_from_slice(&pointer.slot.0.to_be_bytes());
    row
}

pub fn parse_slot(row: &[u8]) -> Option<Slot> {
    Some(Slot(u32::from_be_bytes(row.get(9..13)?.try_into().ok()?)))
}

pub fn chunk(chunk: ChunkId) -> Vec<u8> {
    let mut row = start(CHUNK, 8);
    row.extend_from_slice(&chunk.0.to_be_bytes());
    row
}

/// The first row behind all that begin with `prefix`; empty if there is none.
pub fn behind(prefix: &[u8]) -> Vec<u8> {
    ordered::after_prefix(prefix).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_a_key_are_apart_from_those_of_keys_that_begin_with_it() {
        let mut rows = [
            version("b", "a", 1),
            version("b", "a", 2),
            version("b", "a\0", 9),
            version("b", "a\u{1}", 9),
            version("b", "ab", 9),
        ];
        let ordered = [rows[1].clone(), rows[0].clone()];
        rows.sort();
        assert_eq!(rows[..2], ordered, "newest first, and in front of longer keys");
        assert!(rows[2..].iter().all(|row| !row.starts_with(&versions("b", "a"))));
    }

    #[test]
    fn an_uploads_row_gives_its_key_back() {
        for key in ["a", "a\0b", "", "ü/\u{10ffff}"] {
            let row = upload("bucket", key, u64::MAX - 1);
            assert_eq!(parse_upload(&row, "bucket"), Some((key.to_owned(), u64::MAX - 1)));
        }
        assert_eq!(parse_upload(b"u", "bucket"), None);
    }

    #[test]
    fn what_is_behind_a_prefix_is_behind_all_of_it() {
        assert_eq!(behind(b"ab"), b"ac");
        assert_eq!(behind(b"a\xff\xff"), b"b");
        assert!(behind(b"ab") > b"ab\xff\xff".to_vec());
    }
}
