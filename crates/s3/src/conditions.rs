//! RFC 9110's conditions of reads.

use holdfast_blob::Object;
use hyper::HeaderMap;
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
