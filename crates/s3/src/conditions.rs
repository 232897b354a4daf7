//! RFC 9110's conditions of reads.

use holdfast_blob::Object;
use holdfast_env::planted;
use hyper::HeaderMap;
use hyper::header::IF_RANGE;
use s3s::dto::{ETagCondition, Timestamp, TimestampFormat};
use s3s::{S3Result, s3_error};

/// What a reader asks of a version before it wants its bytes.
pub struct ReadConditions<'a> {
    /// Refuses (412) a version with another ETag.
    pub if_match: Option<&'a ETagCondition>,
    /// Says "not modified" (304) of a version with this ETag.
    pub if_none_match: Option<&'a ETagCondition>,
    /// Says "not modified" of a version that is not younger.
    pub if_modified_since: Option<&'a Timestamp>,
    /// Refuses a version that is younger.
    pub if_unmodified_since: Option<&'a Timestamp>,
}

fn seconds(timestamp: &Timestamp) -> i64 {
    let mut text = Vec::new();
    let _ = timestamp.format(TimestampFormat::EpochSeconds, &mut text);
    let text = String::from_utf8(text).unwrap_or_default();
    text.split('.').next().and_then(|s| s.parse().ok()).unwrap_or_default()
}

/// Whether a range is wanted of this version: `If-Range` names the one of which a reader has a part already, by its
/// ETag or by when it was modified. Of any other one it wants the whole.
pub fn range_is_of(object: &Object, headers: &HeaderMap) -> bool {
    let Some(value) = headers.get(IF_RANGE).filter(|_| !planted!("s3.if-range-ignored")) else {
        return true;
    };
    let Ok(value) = value.to_str() else { return false };
    match value.strip_prefix('"') {
        Some(etag) => etag.strip_suffix('"') == Some(object.etag.as_str()),
        // A weak one, which none of an object is, is no date either.
        None => Timestamp::parse(TimestampFormat::HttpDate, value)
            .is_ok_and(|since| seconds(&since) == object.modified_ms.div_euclid(1000)),
    }
}

impl ReadConditions<'_> {
    /// Judges as HTTP does: `If-Match` before its date, `If-None-Match` before its own.
    pub fn check(&self, object: &Object) -> S3Result<()> {
        let is = |condition: &ETagCondition| {
            condition.as_etag().is_none_or(|etag| etag.value() == object.etag)
        };
        let modified = object.modified_ms.div_euclid(1000);
        let failed = match (self.if_match, self.if_unmodified_since) {
            (Some(etag), _) => !is(etag),
            (None, Some(since)) => modified > seconds(since),
            (None, None) => false,
        };
        if failed {
            return Err(s3_error!(PreconditionFailed, "the object is another one by now"));
        }
        let unchanged = match (self.if_none_match, self.if_modified_since) {
            (Some(etag), _) => is(etag),
            (None, Some(since)) => modified <= seconds(since),
            (None, None) => false,
        };
        if unchanged {
            let mut e = s3_error!(NotModified, "Not Modified");
            let mut headers = HeaderMap::new();
            if let Ok(etag) = format!("\"{}\"", object.etag).parse() {
                headers.insert(hyper::header::ETAG, etag);
            }
            e.set_headers(headers);
            return Err(e);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    /// A download that goes on was answered with a part of whatever object was there by then: half of one, and half of
    /// another.
    #[test]
    fn a_range_is_of_the_version_that_the_reader_has_a_part_of() {
        let object =
            Object { etag: "0123".into(), modified_ms: 1_700_000_000_999, ..Object::default() };
        let is_of = |value: &'static [u8]| {
            let value = HeaderValue::from_bytes(value).unwrap();
            range_is_of(&object, &HeaderMap::from_iter([(IF_RANGE, value)]))
        };
        assert!(range_is_of(&object, &HeaderMap::new()));
        assert!(is_of(b"\"0123\"") && is_of(b"Tue, 14 Nov 2023 22:13:20 GMT"));
        let others: [&[u8]; 10] = [
            b"\"0124\"",
            b"\"0123",
            b"0123",
            b"W/\"0123\"",
            b"\"0123\", \"0124\"",
            b"*",
            b"",
            b"\xff",
            b"Tue, 14 Nov 2023 22:13:19 GMT",
            // Of a date, too, only the same one is the same version.
            b"Tue, 14 Nov 2023 22:13:21 GMT",
        ];
        for other in others {
            assert!(!is_of(other), "{}", String::from_utf8_lossy(other));
        }
    }
}
