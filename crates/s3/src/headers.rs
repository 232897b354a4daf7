//! What headers of a request ask for, beside what each operation reads: the owner that a bucket must
//! have, and conditions and options that are not implemented. Those are refused by name: a delete
//! that ignores its condition deletes what the condition should have kept.

use hyper::HeaderMap;
use s3s::{S3Result, s3_error};

/// Headers that change what an operation does, each with the operations that do as they say.
const HONOURED: &[(&str, &[&str])] = &[
    (
        "if-match",
        &["CompleteMultipartUpload", "DeleteObject", "GetObject", "HeadObject", "PutObject"],
    ),
    ("if-none-match", &["CompleteMultipartUpload", "GetObject", "HeadObject", "PutObject"]),
    ("if-modified-since", &["GetObject", "HeadObject"]),
    ("if-unmodified-since", &["GetObject", "HeadObject"]),
    ("x-amz-bucket-object-lock-token", &[]),
    ("x-amz-bypass-governance-retention", &["DeleteObject", "DeleteObjects", "PutObjectRetention"]),
    ("x-amz-copy-source-if-match", COPIES),
    ("x-amz-copy-source-if-modified-since", COPIES),
    ("x-amz-copy-source-if-none-match", COPIES),
    ("x-amz-copy-source-if-unmodified-since", COPIES),
    ("x-amz-copy-source-range", &["UploadPartCopy"]),
    ("x-amz-if-match-initiated-time", &[]),
    ("x-amz-if-match-last-modified-time", &[]),
    ("x-amz-if-match-size", &[]),
    ("x-amz-mfa", &[]),
    ("x-amz-mp-object-size", &["CompleteMultipartUpload"]),
    ("x-amz-object-lock-legal-hold", LOCKED),
    ("x-amz-object-lock-mode", LOCKED),
    ("x-amz-object-lock-retain-until-date", LOCKED),
    ("x-amz-optional-object-attributes", &[]),
    ("x-amz-source-expected-bucket-owner", &[]),
    ("x-amz-tagging", &["CopyObject", "CreateMultipartUpload", "PutObject"]),
    ("x-amz-transition-default-minimum-object-size", &[]),
    ("x-amz-website-redirect-location", LOCKED),
    ("x-amz-write-offset-bytes", &[]),
];
const COPIES: &[&str] = &["CopyObject", "UploadPartCopy"];
/// Operations that make an object.
const LOCKED: &[&str] = &["CopyObject", "CreateMultipartUpload", "PutObject"];

/// Refuses what an operation would ignore, but for HTTP's own conditions (`if-...`) of a read: a
/// server may ignore those and answer in full, and the client is none the worse for it.
pub fn check(operation: &str, headers: &HeaderMap) -> S3Result<()> {
    let reads = ["Get", "Head", "List"].iter().any(|verb| operation.starts_with(verb));
    // A request has few headers.
    for name in headers.keys().map(|name| name.as_str()) {
        let is_condition = name.starts_with("if-");
        if !((is_condition && !reads) || name.starts_with("x-amz-")) {
            continue;
        }
        let honoured = HONOURED.iter().find(|(header, _)| *header == name);
        if honoured.is_some_and(|(_, operations)| !operations.contains(&operation)) {
            return Err(s3_error!(NotImplemented, "`{name}` of {operation} is not implemented"));
        }
    }
    // Buckets own their objects here, whoever puts them: who asks for that has it already.
    let ownership = headers.get("x-amz-object-ownership");
    if ownership.is_some_and(|value| value != "BucketOwnerEnforced") {
        return Err(s3_error!(NotImplemented, "`x-amz-object-ownership` is BucketOwnerEnforced"));
    }
    Ok(())
}

/// Whether a bucket belongs to whom the request says.
pub fn check_owner(owner: &str, headers: &HeaderMap) -> S3Result<()> {
    match headers.get("x-amz-expected-bucket-owner") {
        Some(expected) if expected.as_bytes() != owner.as_bytes() => {
            Err(s3_error!(AccessDenied, "the bucket is not that owner's"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::{HeaderName, HeaderValue};

    /// What S3's own pages list for each operation that changes something and is here, but for what
    /// is checked elsewhere for all of them (ACLs, encryption), checksums and lengths of
    /// bodies, and what describes an object.
    const DOCUMENTED: &[(&str, &str)] = &[
        ("AbortMultipartUpload", "x-amz-if-match-initiated-time"),
        ("CompleteMultipartUpload", "if-match if-none-match x-amz-mp-object-size"),
        (
            "CopyObject",
            "if-match if-none-match x-amz-copy-source-if-match x-amz-copy-source-if-modified-since \
             x-amz-copy-source-if-none-match x-amz-copy-source-if-unmodified-since \
             x-amz-object-lock-legal-hold x-amz-object-lock-mode \
             x-amz-object-lock-retain-until-date x-amz-source-expected-bucket-owner x-amz-tagging \
             x-amz-website-redirect-location",
        ),
        (
            "CreateMultipartUpload",
            "x-amz-object-lock-legal-hold x-amz-object-lock-mode \
             x-amz-object-lock-retain-until-date x-amz-tagging x-amz-website-redirect-location",
        ),
        (
            "DeleteObject",
            "if-match x-amz-bypass-governance-retention x-amz-if-match-last-modified-time \
             x-amz-if-match-size x-amz-mfa",
        ),
        ("DeleteObjects", "x-amz-bypass-governance-retention x-amz-mfa"),
        ("ListObjects", "x-amz-optional-object-attributes"),
        ("ListObjectsV2", "x-amz-optional-object-attributes"),
        ("ListObjectVersions", "x-amz-optional-object-attributes"),
        ("PutBucketLifecycleConfiguration", "x-amz-transition-default-minimum-object-size"),
        ("PutBucketVersioning", "x-amz-mfa"),
        (
            "PutObject",
            "if-match if-none-match x-amz-object-lock-legal-hold x-amz-object-lock-mode \
             x-amz-object-lock-retain-until-date x-amz-tagging x-amz-website-redirect-location \
             x-amz-write-offset-bytes",
        ),
        ("PutObjectLockConfiguration", "x-amz-bucket-object-lock-token"),
        ("PutObjectRetention", "x-amz-bypass-governance-retention"),
        (
            "UploadPartCopy",
            "x-amz-copy-source-if-match x-amz-copy-source-if-modified-since \
             x-amz-copy-source-if-none-match x-amz-copy-source-if-unmodified-since \
             x-amz-copy-source-range x-amz-source-expected-bucket-owner",
        ),
    ];

    /// Conditional deletes were carried out whatever their conditions. Every header that S3 documents
    /// for an operation is one of those that it honours, or is refused by its name; so is every
    /// condition on an operation for which S3 knows none.
    #[test]
    fn what_is_not_honoured_is_refused_by_name() {
        for (operation, documented) in DOCUMENTED {
            for name in documented.split_whitespace() {
                let row = HONOURED.iter().find(|(header, _)| *header == name);
                let (_, operations) = row.unwrap_or_else(|| panic!("`{name}` is in no list"));
                let honours = operations.contains(operation);
                let asked = HeaderMap::from_iter([(
                    HeaderName::try_from(name).unwrap(),
                    HeaderValue::from_static("1"),
                )]);
                match check(operation, &asked) {
                    Ok(()) => assert!(honours, "{operation} ignores `{name}`"),
                    Err(e) => assert!(!honours && e.message().unwrap().contains(name), "{name}"),
                }
            }
        }
        for name in ["if-match", "if-none-match", "if-modified-since", "if-unmodified-since"] {
            let asked = HeaderMap::from_iter([(
                HeaderName::try_from(name).unwrap(),
                HeaderValue::from_static("*"),
            )]);
            for operation in ["DeleteBucket", "DeleteObjects", "PutObjectTagging", "UploadPart"] {
                assert!(check(operation, &asked).is_err(), "{operation} {name}");
            }
            assert!(check("ListObjectsV2", &asked).is_ok());
        }
    }
}
