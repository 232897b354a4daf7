//! Who may do what: secrets for the signatures, and a decision for each request. An administrator's
//! key may do everything; other keys what their user owns or a bucket's policy allows; requests
//! without a signature only what a policy allows.

use crate::errors::OrS3;
use crate::policy::{Ask, Policy, Verdict};
use holdfast_blob::{AccessKey, Blobs};
use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::{S3Auth, SecretKey};
use s3s::{S3Error, S3Result, s3_error};
use std::sync::Arc;

/// The document that a bucket's policy is.
pub const POLICY: &str = "policy";

pub struct Access {
    pub blobs: Arc<Blobs>,
}

/// Whose request it is; none for one without a signature. Kept with the request.
#[derive(Clone, Debug, Default)]
pub struct Caller {
    pub key: Option<AccessKey>,
}

impl Caller {
    pub fn user(&self) -> Option<&str> {
        self.key.as_ref().map(|key| key.user.as_str())
    }

    pub fn is_admin(&self) -> bool {
        self.key.as_ref().is_some_and(|key| key.admin)
    }
}

#[async_trait::async_trait]
impl S3Auth for Access {
    async fn get_secret_key(&self, name: &str) -> S3Result<SecretKey> {
        match self.blobs.access_key(name).or_s3()? {
            Some(key) => Ok(SecretKey::from(key.secret)),
            None => Err(s3_error!(InvalidAccessKeyId, "access key `{name}` is not known")),
        }
    }
}

#[async_trait::async_trait]
impl S3Access for Access {
    async fn check(&self, cx: &mut S3AccessContext<'_>) -> S3Result<()> {
        let key = match cx.credentials() {
            Some(credentials) => self.blobs.access_key(&credentials.access_key).or_s3()?,
            None => None,
        };
        let caller = Caller { key };
        let operation = cx.s3_op().name();
        let path = cx.s3_path();
        let (bucket, key) = (path.get_bucket_name(), path.get_object_key().unwrap_or_default());
        let decided = match bucket {
            // Which buckets are shown is decided one by one.
            None if caller.key.is_some() => Ok(()),
            None => Err(denied()),
            // Each key is checked for itself.
            Some(bucket) if operation == "DeleteObjects" => {
                self.blobs.bucket(bucket).map(drop).or_s3()
            }
            Some(bucket) => self.check_one(&caller, operation, bucket, key),
        };
        let decided = decided.and_then(|()| crate::settings::check_grant_headers(cx.headers()));
        cx.extensions_mut().insert(caller);
        decided
    }
}

pub fn denied() -> S3Error {
    s3_error!(AccessDenied, "Access Denied")
}

impl Access {
    /// Whether a caller may do an operation to a bucket or one of its keys.
    pub fn check_one(
        &self,
        caller: &Caller,
        operation: &str,
        bucket: &str,
        key: &str,
    ) -> S3Result<()> {
        if caller.is_admin() {
            return Ok(());
        }
        let action = action(operation);
        if let Some(own) = &caller.key {
            let elsewhere = !own.buckets.is_empty() && !own.buckets.iter().any(|b| b == bucket);
            if elsewhere || (own.read_only && !is_read(operation)) {
                return Err(denied());
            }
        }
        if operation == "CreateBucket" {
            return caller.key.as_ref().map(drop).ok_or_else(denied);
        }
        let found = self.blobs.bucket(bucket).or_s3()?;
        let verdict = match found.document(POLICY) {
            None => Verdict::Nothing,
            Some(text) => match Policy::parse(text, bucket) {
                Ok(policy) => {
                    policy.judge(&Ask { user: caller.user(), action: &action, bucket, key })
                }
                Err(_) => Verdict::Deny,
            },
        };
        let owns = caller
            .key
            .as_ref()
            .is_some_and(|own| own.user == found.owner || own.buckets.iter().any(|b| b == bucket));
        match verdict {
            Verdict::Deny => Err(denied()),
            Verdict::Allow => Ok(()),
            Verdict::Nothing if owns => Ok(()),
            Verdict::Nothing => Err(denied()),
        }
    }
}

fn is_read(operation: &str) -> bool {
    ["Get", "Head", "List"].iter().any(|start| operation.starts_with(start))
}

/// The name that policies know an operation by.
fn action(operation: &str) -> String {
    let name = match operation {
        "HeadObject" | "GetObjectAttributes" => "GetObject",
        "HeadBucket" | "ListObjects" | "ListObjectsV2" => "ListBucket",
        "ListObjectVersions" => "ListBucketVersions",
        "ListMultipartUploads" => "ListBucketMultipartUploads",
        "ListParts" => "ListMultipartUploadParts",
        "CreateMultipartUpload"
        | "UploadPart"
        | "UploadPartCopy"
        | "CompleteMultipartUpload"
        | "CopyObject"
        | "PostObject" => "PutObject",
        "PutBucketLifecycleConfiguration" | "DeleteBucketLifecycle" => "PutLifecycleConfiguration",
        "GetBucketLifecycleConfiguration" => "GetLifecycleConfiguration",
        "PutBucketCors" | "DeleteBucketCors" => "PutBucketCORS",
        "GetBucketCors" => "GetBucketCORS",
        other => other,
    };
    format!("s3:{name}")
}
