//! Hashes of a body while it streams by: MD5 for the ETag, and the checksum that the client chose,
//! which is compared with what it says in a header or behind the body.

use crc_fast::CrcAlgorithm;
use holdfast_blob::Pair;
use holdfast_env::planted;
use hyper::{HeaderMap, StatusCode};
use s3s::crypto::{Checksum as _, Crc32, Crc32c, Crc64Nvme, Md5, Sha1, Sha256};
use s3s::{S3Error, S3ErrorCode, S3Result, s3_error};

/// The checksum that a client chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// The CRC of zlib, 4 bytes.
    Crc32,
    /// Castagnoli's, 4 bytes.
    Crc32c,
    /// NVMe's, 8 bytes; what clients of today choose.
    Crc64Nvme,
    /// 20 bytes.
    Sha1,
    /// 32 bytes.
    Sha256,
}

const ALL: [Algorithm; 5] =
    [Algorithm::Crc32, Algorithm::Crc32c, Algorithm::Crc64Nvme, Algorithm::Sha1, Algorithm::Sha256];

impl Algorithm {
    /// As stored, and behind `x-amz-checksum-`.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Crc32 => "crc32",
            Algorithm::Crc32c => "crc32c",
            Algorithm::Crc64Nvme => "crc64nvme",
            Algorithm::Sha1 => "sha1",
            Algorithm::Sha256 => "sha256",
        }
    }

    /// Any case.
    pub fn parse(name: &str) -> Option<Algorithm> {
        ALL.into_iter().find(|algorithm| algorithm.name().eq_ignore_ascii_case(name))
    }
}

enum Hasher {
    Crc32(Crc32),
    Crc32c(Crc32c),
    Crc64Nvme(Crc64Nvme),
    Sha1(Box<Sha1>),
    Sha256(Box<Sha256>),
}

impl Hasher {
    fn new(algorithm: Algorithm) -> Hasher {
        match algorithm {
            Algorithm::Crc32 => Hasher::Crc32(Crc32::new()),
            Algorithm::Crc32c => Hasher::Crc32c(Crc32c::new()),
            Algorithm::Crc64Nvme => Hasher::Crc64Nvme(Crc64Nvme::new()),
            Algorithm::Sha1 => Hasher::Sha1(Box::new(Sha1::new())),
            Algorithm::Sha256 => Hasher::Sha256(Box::new(Sha256::new())),
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Hasher::Crc32(hasher) => hasher.update(bytes),
            Hasher::Crc32c(hasher) => hasher.update(bytes),
            Hasher::Crc64Nvme(hasher) => hasher.update(bytes),
            Hasher::Sha1(hasher) => hasher.update(bytes),
            Hasher::Sha256(hasher) => hasher.update(bytes),
        }
    }

    fn finish(self) -> Vec<u8> {
        match self {
            Hasher::Crc32(hasher) => hasher.finalize().as_ref().to_vec(),
            Hasher::Crc32c(hasher) => hasher.finalize().as_ref().to_vec(),
            Hasher::Crc64Nvme(hasher) => hasher.finalize().as_ref().to_vec(),
            Hasher::Sha1(hasher) => hasher.finalize().as_ref().to_vec(),
            Hasher::Sha256(hasher) => hasher.finalize().as_ref().to_vec(),
        }
    }
}

/// What a client says of its body.
#[derive(Debug, Default)]
pub struct Expected {
    /// Base64.
    pub md5: Option<String>,
    /// Which checksum is computed beside MD5.
    pub algorithm: Option<Algorithm>,
    /// Base64; `None` if it comes behind the body.
    pub checksum: Option<String>,
    /// It was said to come behind the body.
    pub behind: bool,
}

impl Expected {
    /// From `Content-MD5`, the algorithm that is named, and the checksums in headers, in the order
    /// of [`Algorithm`]. Two checksums are refused.
    pub fn new(
        md5: Option<String>,
        named: Option<&str>,
        headers: [Option<String>; 5],
    ) -> S3Result<Expected> {
        if md5.as_ref().is_some_and(|md5| decode_base64(md5).is_none_or(|md5| md5.len() != 16)) {
            return Err(s3_error!(InvalidDigest, "Content-MD5 is not the base64 of 16 bytes"));
        }
        let mut expected = Expected { md5, ..Expected::default() };
        if let Some(name) = named {
            let algorithm = Algorithm::parse(name);
            expected.algorithm = Some(
                algorithm
                    .ok_or_else(|| s3_error!(InvalidRequest, "checksum `{name}` is not known"))?,
            );
        }
        for (algorithm, value) in ALL.into_iter().zip(headers) {
            let Some(value) = value else { continue };
            if expected.checksum.is_some() {
                return Err(s3_error!(InvalidRequest, "give one checksum, not several"));
            }
            expected.algorithm = Some(algorithm);
            expected.checksum = Some(value);
        }
        Ok(expected)
    }

    /// The algorithm whose checksum comes behind the body, as `x-amz-trailer` says.
    pub fn announced(mut self, headers: &HeaderMap) -> S3Result<Expected> {
        if self.checksum.is_none()
            && let Some(trailer) = headers.get("x-amz-trailer").and_then(|v| v.to_str().ok())
            && let Some(name) = trailer.trim().to_ascii_lowercase().strip_prefix("x-amz-checksum-")
        {
            let algorithm = Algorithm::parse(name);
            self.algorithm = Some(
                algorithm
                    .ok_or_else(|| s3_error!(InvalidRequest, "checksum `{name}` is not known"))?,
            );
            self.behind = true;
        }
        Ok(self)
    }
}

/// Hashes of a body that streams by.
pub struct Hashes {
    md5: Md5,
    chosen: Option<(Algorithm, Hasher)>,
}

/// What they came to.
pub struct Hashed {
    /// For the ETag.
    pub md5: [u8; 16],
    /// Name and base64 of the one that was chosen.
    pub checksum: Option<Pair>,
}

impl Hashes {
    /// MD5, and the checksum that was asked for.
    pub fn new(algorithm: Option<Algorithm>) -> Hashes {
        Hashes { md5: Md5::new(), chosen: algorithm.map(|a| (a, Hasher::new(a))) }
    }

    /// The next bytes of the body.
    pub fn update(&mut self, bytes: &[u8]) {
        self.md5.update(bytes);
        if let Some((_, hasher)) = &mut self.chosen {
            hasher.update(bytes);
        }
    }

    /// What the whole body came to.
    pub fn finish(self) -> Hashed {
        let mut md5 = [0; 16];
        md5.copy_from_slice(self.md5.finalize().as_ref());
        let checksum = self.chosen.map(|(algorithm, hasher)| {
            Pair::new(algorithm.name(), encode_base64(&hasher.finish()))
        });
        Hashed { md5, checksum }
    }
}

impl Hashed {
    /// The ETag of an object that came in one piece: its MD5.
    pub fn etag(&self) -> String {
        hex(&self.md5)
    }

    /// Refuses a body that is not what its client said.
    pub fn check(&self, expected: &Expected, trailers: Option<&HeaderMap>) -> S3Result<()> {
        if let Some(md5) = &expected.md5
            && *md5 != encode_base64(&self.md5)
        {
            return Err(s3_error!(BadDigest, "the body's MD5 is not the one in Content-MD5"));
        }
        let Some(computed) = &self.checksum else { return Ok(()) };
        let behind = trailers.and_then(|trailers| {
            let name = format!("x-amz-checksum-{}", computed.name);
            Some(trailers.get(name)?.to_str().ok()?.to_owned())
        });
        match expected.checksum.as_ref().or(behind.as_ref()) {
            Some(said) if *said != computed.value => Err(s3_error!(
                BadDigest,
                "the body's {} is not the one that came with it",
                computed.name
            )),
            // A body whose end somebody cut off would pass otherwise, with its chunks all in order.
            None if expected.behind && !planted!("s3.trailer-may-lack") => {
                let said = "the checksum that `x-amz-trailer` names did not come behind the body";
                let code = S3ErrorCode::Custom("MalformedTrailerError".into());
                let mut error = S3Error::with_message(code, said);
                error.set_status_code(StatusCode::BAD_REQUEST);
                Err(error)
            }
            _ => Ok(()),
        }
    }
}

/// The base64 checksum of some bytes.
pub fn checksum_of(algorithm: Algorithm, bytes: &[u8]) -> String {
    let mut hasher = Hasher::new(algorithm);
    hasher.update(bytes);
    encode_base64(&hasher.finish())
}

/// The checksum of a whole from those of its parts and their lengths, which CRCs allow; base64.
pub fn combined(algorithm: Algorithm, parts: &[(Vec<u8>, u64)]) -> Option<String> {
    let (crc, width) = match algorithm {
        Algorithm::Crc32 => (CrcAlgorithm::Crc32IsoHdlc, 4),
        Algorithm::Crc32c => (CrcAlgorithm::Crc32Iscsi, 4),
        Algorithm::Crc64Nvme => (CrcAlgorithm::Crc64Nvme, 8),
        Algorithm::Sha1 | Algorithm::Sha256 => return None,
    };
    let mut whole: Option<u64> = None;
    for (sum, bytes) in parts {
        if sum.len() != width {
            return None;
        }
        let sum = sum.iter().fold(0, |word, byte| word << 8 | *byte as u64);
        whole = Some(match whole {
            None => sum,
            Some(before) => crc_fast::checksum_combine(crc, before, sum, *bytes),
        });
    }
    Some(encode_base64(&whole?.to_be_bytes()[8 - width..]))
}

/// MD5 of bytes in memory.
pub fn md5_of(bytes: &[u8]) -> [u8; 16] {
    let mut md5 = [0; 16];
    md5.copy_from_slice(Md5::checksum(bytes).as_ref());
    md5
}

/// In lower case.
pub fn hex(bytes: &[u8]) -> String {
    hex_simd::encode_to_string(bytes, hex_simd::AsciiCase::Lower)
}

/// In either case; nothing for an odd number of digits.
pub fn decode_hex(text: &str) -> Option<Vec<u8>> {
    hex_simd::decode_to_vec(text).ok()
}

/// With padding.
pub fn encode_base64(bytes: &[u8]) -> String {
    base64_simd::STANDARD.encode_to_string(bytes)
}

/// With its padding or without it: clients send both.
pub fn decode_base64(text: &str) -> Option<Vec<u8>> {
    base64_simd::forgiving_decode_to_vec(text.as_bytes()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderName;

    #[test]
    fn a_wholes_crc_is_that_of_its_parts_combined() {
        let bytes: Vec<u8> = (0..1000u32).map(|i| (i * 7) as u8).collect();
        for algorithm in [Algorithm::Crc32, Algorithm::Crc32c, Algorithm::Crc64Nvme] {
            let parts: Vec<(Vec<u8>, u64)> = [&bytes[..700], &bytes[700..999], &bytes[999..]]
                .map(|part| {
                    let sum = decode_base64(&checksum_of(algorithm, part)).unwrap();
                    (sum, part.len() as u64)
                })
                .to_vec();
            assert_eq!(combined(algorithm, &parts), Some(checksum_of(algorithm, &bytes)));
        }
        assert_eq!(combined(Algorithm::Sha256, &[(vec![0; 32], 1)]), None);
        assert_eq!(combined(Algorithm::Crc32, &[(vec![0; 8], 1)]), None);
    }

    #[test]
    fn base64_and_hex_come_back() {
        for (bytes, text) in [
            (&b""[..], ""),
            (b"f", "Zg=="),
            (b"fo", "Zm8="),
            (b"foo", "Zm9v"),
            (b"foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(encode_base64(bytes), text);
            assert_eq!(decode_base64(text).as_deref(), Some(bytes));
            assert_eq!(decode_hex(&hex(bytes)).as_deref(), Some(bytes));
        }
        assert_eq!(decode_base64("Zg").as_deref(), Some(&b"f"[..]));
        assert_eq!(decode_base64("Z"), None);
        assert_eq!(decode_base64("Zm9*"), None);
        assert_eq!(decode_hex("0"), None);
    }

    #[test]
    fn a_body_is_compared_with_what_its_client_says() {
        let hashed = |algorithm| {
            let mut hashes = Hashes::new(algorithm);
            hashes.update(b"123456789");
            hashes.finish()
        };
        let whole = hashed(Some(Algorithm::Crc32c));
        assert_eq!(whole.etag(), "25f9e794323b453885f5181f1b624d0b");
        assert_eq!(whole.checksum.as_ref().unwrap().value, "4waSgw==");
        let none = [const { None }; 5];
        let md5 = |text: &str| Expected::new(Some(text.into()), None, none.clone());
        assert!(whole.check(&md5("JfnnlDI7RTiF9RgfG2JNCw==").unwrap(), None).is_ok());
        assert!(whole.check(&md5("JfnnlDI7RTiF9RgfG2JNCA==").unwrap(), None).is_err());
        assert!(md5("short").is_err());
        let mut headers = none.clone();
        headers[1] = Some("4waSgA==".into());
        assert!(whole.check(&Expected::new(None, None, headers).unwrap(), None).is_err());
        let mut behind = HeaderMap::new();
        behind.insert("x-amz-checksum-crc32c", "AAAAAA==".parse().unwrap());
        assert!(whole.check(&Expected::default(), Some(&behind)).is_err());
    }

    /// A checksum that was to come behind the body, and did not, was passed over.
    #[test]
    fn a_checksum_that_was_announced_must_come() {
        let mut headers = HeaderMap::new();
        headers.insert("x-amz-trailer", "x-amz-checksum-crc32c".parse().unwrap());
        let expected = Expected::default().announced(&headers).unwrap();
        let mut hashes = Hashes::new(expected.algorithm);
        hashes.update(b"123456789");
        let whole = hashes.finish();
        let said = |name: &'static str, value: &str| {
            HeaderMap::from_iter([(HeaderName::from_static(name), value.parse().unwrap())])
        };
        let came = |behind: Option<HeaderMap>| {
            let checked = whole.check(&expected, behind.as_ref());
            checked.map_err(|e| e.code().as_str().to_owned())
        };
        assert_eq!(came(Some(said("x-amz-checksum-crc32c", "4waSgw=="))), Ok(()));
        assert_eq!(came(Some(said("x-amz-checksum-crc32c", "4waSgA=="))), Err("BadDigest".into()));
        for lacks in [None, Some(HeaderMap::new()), Some(said("x-amz-checksum-crc32", "y/Q5Jg=="))]
        {
            assert_eq!(came(lacks), Err("MalformedTrailerError".into()));
        }
        headers.insert("x-amz-trailer", "x-amz-checksum-xxhash64".parse().unwrap());
        assert!(Expected::default().announced(&headers).is_err(), "nobody could compare it");
    }
}
