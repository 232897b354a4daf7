//! Buckets: made, shown, versioned, removed.

use crate::REGION;
use crate::access::Asked;
use crate::errors::OrS3;
use crate::service::{Face, caller};
use holdfast_blob::{Command, Failure, Refusal, Versioning};
use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result, s3_error};
use std::time::{Duration, SystemTime};

/// Milliseconds since 1970 in s3s' type; what is before counts as 1970.
pub fn timestamp(ms: i64) -> Timestamp {
    Timestamp::from(SystemTime::UNIX_EPOCH + Duration::from_millis(ms.max(0) as u64))
}

/// The inverse of [`timestamp`]; 0 for what cannot be written.
pub fn milliseconds(timestamp: &Timestamp) -> i64 {
    let mut text = Vec::new();
    if timestamp.format(TimestampFormat::EpochSeconds, &mut text).is_err() {
        return 0;
    }
    let text = String::from_utf8(text).unwrap_or_default();
    text.parse::<f64>().map_or(0, |seconds| (seconds * 1000.0) as i64)
}

/// A user in the form of S3's answers: the name is the id.
pub fn owner(user: &str) -> Owner {
    Owner { display_name: Some(user.to_owned()), id: Some(user.to_owned()) }
}

/// Makes a bucket of the caller's. Making one's own again changes nothing.
pub async fn create_bucket(
    face: &Face,
    req: S3Request<CreateBucketInput>,
) -> S3Result<S3Response<CreateBucketOutput>> {
    let user = caller(&req).user().unwrap_or_default().to_owned();
    let input = req.input;
    crate::settings::check_bucket_acl(input.acl.as_ref())?;
    check_name(&input.bucket)?;
    let lockable = input.object_lock_enabled_for_bucket.unwrap_or(false);
    match face.blobs.create_bucket(&input.bucket, &user, lockable).await {
        Ok(()) => {}
        Err(Failure::Refused(Refusal::BucketExists)) => {
            let found = face.blobs.bucket(&input.bucket).or_s3()?;
            if found.owner != user {
                return Err(s3_error!(
                    BucketAlreadyExists,
                    "bucket `{}` is somebody else's",
                    input.bucket
                ));
            }
            // In this region one's own bucket may be made again, and stays what it is.
            if lockable && !found.lockable {
                return Err(s3_error!(
                    BucketAlreadyOwnedByYou,
                    "bucket `{}` is yours already, without object lock",
                    input.bucket
                ));
            }
        }
        Err(e) => return Err(crate::errors::s3_failure(e)),
    }
    let location = Some(format!("/{}", input.bucket));
    Ok(S3Response::new(CreateBucketOutput { location }))
}

/// Beyond what the library asks of names: each label of one is a host name's.
fn check_name(bucket: &str) -> S3Result<()> {
    match bucket.split('.').any(|label| label.starts_with('-') || label.ends_with('-')) {
        true => Err(s3_error!(InvalidBucketName, "no hyphen stands beside a period")),
        false => Ok(()),
    }
}

/// Removes an empty bucket, and with it uploads that nobody completed.
pub async fn delete_bucket(
    face: &Face,
    req: S3Request<DeleteBucketInput>,
) -> S3Result<S3Response<DeleteBucketOutput>> {
    let bucket = &req.input.bucket;
    // Uploads that nobody will complete any more do not keep a bucket.
    let query = holdfast_blob::ListQuery { max: 1000, ..Default::default() };
    let empty = face.blobs.list_versions(bucket, &query, &Default::default()).or_s3()?;
    if empty.versions.is_empty() {
        for (key, id, _) in face.blobs.list_uploads(bucket, &query, None).or_s3()?.uploads {
            face.blobs.abort_upload(bucket, &key, id).await.or_s3()?;
        }
    }
    face.blobs.delete_bucket(bucket).await.or_s3()?;
    Ok(S3Response::new(DeleteBucketOutput {}))
}

/// Whether a bucket is there, and its region.
pub async fn head_bucket(
    face: &Face,
    req: S3Request<HeadBucketInput>,
) -> S3Result<S3Response<HeadBucketOutput>> {
    face.blobs.bucket(&req.input.bucket).or_s3()?;
    let bucket_region = Some(REGION.to_owned());
    Ok(S3Response::new(HeadBucketOutput { bucket_region, ..Default::default() }))
}

/// The region, which is S3's first and said by an empty answer.
pub async fn get_bucket_location(
    face: &Face,
    req: S3Request<GetBucketLocationInput>,
) -> S3Result<S3Response<GetBucketLocationOutput>> {
    face.blobs.bucket(&req.input.bucket).or_s3()?;
    // The first region is said by nothing.
    Ok(S3Response::new(GetBucketLocationOutput { location_constraint: None }))
}

/// A page of the buckets that the caller may list, by name.
pub async fn list_buckets(
    face: &Face,
    req: S3Request<ListBucketsInput>,
) -> S3Result<S3Response<ListBucketsOutput>> {
    let caller = caller(&req);
    let input = req.input;
    let prefix = input.prefix.clone().unwrap_or_default();
    let after = input.continuation_token.clone().unwrap_or_default();
    let max = input.max_buckets.unwrap_or(10_000).clamp(1, 10_000) as usize;
    let mut shown: Vec<Bucket> = face
        .blobs
        .buckets()
        .or_s3()?
        .into_iter()
        .filter(|(name, _)| name.starts_with(&prefix) && *name > after)
        .filter(|(name, _)| {
            let asked = Asked {
                operation: "ListObjects",
                bucket: name,
                key: "",
                version: None,
                headers: &req.headers,
                uri: &req.uri,
                tags: &[],
            };
            face.access.check_one(&caller, &asked).is_ok()
        })
        .take(max + 1)
        .map(|(name, bucket)| Bucket {
            bucket_region: input.bucket_region.as_ref().map(|_| REGION.to_owned()),
            creation_date: Some(timestamp(bucket.created_ms)),
            name: Some(name),
        })
        .collect();
    let more = shown.len() > max;
    shown.truncate(max);
    let continuation_token = shown.last().filter(|_| more).and_then(|last| last.name.clone());
    Ok(S3Response::new(ListBucketsOutput {
        buckets: Some(shown),
        continuation_token,
        owner: Some(owner(caller.user().unwrap_or_default())),
        prefix: input.prefix,
    }))
}

/// Whether versions are kept: never said, enabled or suspended.
pub async fn get_bucket_versioning(
    face: &Face,
    req: S3Request<GetBucketVersioningInput>,
) -> S3Result<S3Response<GetBucketVersioningOutput>> {
    let bucket = face.blobs.bucket(&req.input.bucket).or_s3()?;
    let status = match bucket.versioning() {
        Versioning::Off => None,
        Versioning::Enabled => Some(BucketVersioningStatus::ENABLED),
        Versioning::Suspended => Some(BucketVersioningStatus::SUSPENDED),
    };
    let status = status.map(BucketVersioningStatus::from_static);
    Ok(S3Response::new(GetBucketVersioningOutput { status, ..Default::default() }))
}

/// Has versions kept from now on, or not; those that are there stay.
pub async fn put_bucket_versioning(
    face: &Face,
    req: S3Request<PutBucketVersioningInput>,
) -> S3Result<S3Response<PutBucketVersioningOutput>> {
    let input = req.input;
    let wanted = input.versioning_configuration.status.as_ref().map(|status| status.as_str());
    let versioning = match wanted {
        Some(BucketVersioningStatus::ENABLED) => Versioning::Enabled,
        Some(BucketVersioningStatus::SUSPENDED) => Versioning::Suspended,
        _ => {
            return Err(s3_error!(
                IllegalVersioningConfigurationException,
                "the status is `Enabled` or `Suspended`"
            ));
        }
    };
    if face.blobs.bucket(&input.bucket).or_s3()?.lockable && versioning == Versioning::Suspended {
        return Err(s3_error!(InvalidBucketState, "a bucket with object lock keeps its versions"));
    }
    let command = Command::SetVersioning { name: input.bucket, versioning: versioning as u8 };
    face.blobs.propose(&command).await.or_s3()?;
    Ok(S3Response::new(PutBucketVersioningOutput {}))
}
