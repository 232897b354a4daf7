//! What signatures of version 4 are made of, for every service: what signs a request makes one, what
//! checks it makes the same. Pure: the time is handed in.

use crate::hash::hex;
use s3s::crypto::{Checksum as _, Sha256};

/// Of the only kind of signature.
pub const ALGORITHM: &str = "AWS4-HMAC-SHA256";
/// What a scope ends with.
pub const TERMINATOR: &str = "aws4_request";

/// Where a signature holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope<'a> {
    /// `20261121`.
    pub day: &'a str,
    /// That the service is believed to be in.
    pub region: &'a str,
    /// `s3`, `dynamodb`.
    pub service: &'a str,
}

impl std::fmt::Display for Scope<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}/{}/{TERMINATOR}", self.day, self.region, self.service)
    }
}

/// The hash of some bytes, in hexadecimal.
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex(&sha256(bytes))
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(Sha256::checksum(bytes).as_ref());
    hash
}

/// RFC 2104 over SHA-256.
fn hmac(key: &[u8], text: &[u8]) -> [u8; 32] {
    const BLOCK: usize = 64;
    let mut block = [0u8; BLOCK];
    match key.len() <= BLOCK {
        true => block[..key.len()].copy_from_slice(key),
        false => block[..32].copy_from_slice(&sha256(key)),
    }
    let inner: Vec<u8> = block.iter().map(|b| b ^ 0x36).chain(text.iter().copied()).collect();
    let outer: Vec<u8> = block.iter().map(|b| b ^ 0x5c).chain(sha256(&inner)).collect();
    sha256(&outer)
}

/// The signature of a canonical request, in hexadecimal. `date` is as in `x-amz-date`:
/// `20261121T080000Z`.
pub fn signature(secret: &str, date: &str, scope: &Scope<'_>, canonical: &str) -> String {
    let hash = sha256_hex(canonical.as_bytes());
    let to_sign = format!("{ALGORITHM}\n{date}\n{scope}\n{hash}");
    let mut key = hmac(format!("AWS4{secret}").as_bytes(), scope.day.as_bytes());
    for part in [scope.region, scope.service, TERMINATOR] {
        key = hmac(&key, part.as_bytes());
    }
    hex(&hmac(&key, to_sign.as_bytes()))
}
