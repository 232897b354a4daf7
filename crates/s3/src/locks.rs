//! Object lock: default retention of buckets, retention and legal hold of versions.

use crate::buckets::milliseconds;
use crate::errors::OrS3;
use crate::objects::visible;
use crate::service::Face;
use holdfast_blob::{Bucket, Lock, Object as Version};
use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result, s3_error};

/// The document of a bucket's default retention.
const LOCK: &str = "object-lock";
const DAY_MS: i64 = 24 * 3_600_000;
/// A default retention, at most.
const YEARS_MAX: i32 = 100;
const DAYS_MAX: i32 = 365 * YEARS_MAX;

fn compliance(mode: &str) -> S3Result<bool> {
    match mode {
        ObjectLockRetentionMode::COMPLIANCE => Ok(true),
        ObjectLockRetentionMode::GOVERNANCE => Ok(false),
        other => Err(s3_error!(MalformedXML, "retention mode `{other}` is not known")),
    }
}

/// What a new version is locked with: what the request says, or the bucket's default.
pub fn of_put(
    bucket: &Bucket,
    mode: Option<&ObjectLockMode>,
    until: Option<&Timestamp>,
    hold: Option<&ObjectLockLegalHoldStatus>,
    now_ms: i64,
) -> S3Result<(Option<Lock>, bool)> {
    let hold = match hold.map(ObjectLockLegalHoldStatus::as_str) {
        Some(ObjectLockLegalHoldStatus::ON) => true,
        None | Some(ObjectLockLegalHoldStatus::OFF) => false,
        Some(_) => return Err(s3_error!(InvalidArgument, "a legal hold is `ON` or `OFF`")),
    };
    if !bucket.lockable {
        if mode.is_some() || until.is_some() || hold {
            return Err(s3_error!(InvalidRequest, "the bucket was made without object lock"));
        }
        return Ok((None, false));
    }
    let lock = match (mode, until) {
        (Some(mode), Some(until)) => {
            Some(Lock { until_ms: future(until, now_ms)?, compliance: compliance(mode.as_str())? })
        }
        (None, None) => default_lock(bucket, now_ms),
        _ => return Err(s3_error!(InvalidArgument, "a retention mode goes with a date")),
    };
    Ok((lock, hold))
}

fn future(until: &Timestamp, now_ms: i64) -> S3Result<i64> {
    Some(milliseconds(until))
        .filter(|until_ms| *until_ms > now_ms)
        .ok_or_else(|| s3_error!(InvalidArgument, "the date until which to retain is past"))
}

/// Retentions and holds are asked of buckets that were made for them, and of no others.
fn check_lockable(face: &Face, bucket: &str) -> S3Result<()> {
    match face.blobs.bucket(bucket).or_s3()?.lockable {
        true => Ok(()),
        false => Err(s3_error!(InvalidRequest, "the bucket was made without object lock")),
    }
}

fn default_lock(bucket: &Bucket, now_ms: i64) -> Option<Lock> {
    let rule: ObjectLockRule = serde_json::from_str(bucket.document(LOCK)?).ok()?;
    let default = rule.default_retention?;
    let days = default.days.map(i64::from).or(default.years.map(|years| 365 * years as i64))?;
    let compliance = default.mode?.as_str() == ObjectLockRetentionMode::COMPLIANCE;
    Some(Lock { until_ms: now_ms + days * DAY_MS, compliance })
}

/// A version's lock as a get says it.
pub fn shown(object: &Version) -> (Option<ObjectLockMode>, Option<Timestamp>) {
    let Some(lock) = object.lock else { return (None, None) };
    let mode =
        if lock.compliance { ObjectLockMode::COMPLIANCE } else { ObjectLockMode::GOVERNANCE };
    (Some(ObjectLockMode::from_static(mode)), Some(crate::buckets::timestamp(lock.until_ms)))
}

/// Whether the bucket was made for locks, and what new objects get.
pub async fn get_object_lock_configuration(
    face: &Face,
    req: S3Request<GetObjectLockConfigurationInput>,
) -> S3Result<S3Response<GetObjectLockConfigurationOutput>> {
    let bucket = face.blobs.bucket(&req.input.bucket).or_s3()?;
    if !bucket.lockable {
        return Err(s3_error!(
            ObjectLockConfigurationNotFoundError,
            "the bucket was made without object lock"
        ));
    }
    let rule = bucket.document(LOCK).and_then(|text| serde_json::from_str(text).ok());
    let object_lock_enabled = Some(ObjectLockEnabled::from_static(ObjectLockEnabled::ENABLED));
    let configuration = ObjectLockConfiguration { object_lock_enabled, rule };
    Ok(S3Response::new(GetObjectLockConfigurationOutput {
        object_lock_configuration: Some(configuration),
    }))
}

/// Sets what new objects get; only of a bucket that was made for locks.
pub async fn put_object_lock_configuration(
    face: &Face,
    req: S3Request<PutObjectLockConfigurationInput>,
) -> S3Result<S3Response<PutObjectLockConfigurationOutput>> {
    let input = req.input;
    if !face.blobs.bucket(&input.bucket).or_s3()?.lockable {
        return Err(s3_error!(InvalidBucketState, "object lock is decided when a bucket is made"));
    }
    let Some(configuration) = input.object_lock_configuration else {
        return Err(s3_error!(MalformedXML, "give an ObjectLockConfiguration"));
    };
    let enabled = configuration.object_lock_enabled.as_ref().map(ObjectLockEnabled::as_str);
    if enabled != Some(ObjectLockEnabled::ENABLED) {
        return Err(s3_error!(MalformedXML, "ObjectLockEnabled is `Enabled`"));
    }
    let rule = configuration.rule;
    if let Some(rule) = &rule {
        let default = rule.default_retention.as_ref();
        let default =
            default.ok_or_else(|| s3_error!(MalformedXML, "a rule has a DefaultRetention"))?;
        let (length, max) = match (default.days, default.years) {
            (Some(days), None) => (days, DAYS_MAX),
            (None, Some(years)) => (years, YEARS_MAX),
            _ => return Err(s3_error!(MalformedXML, "give days or years")),
        };
        if !(1..=max).contains(&length) {
            return Err(s3_error!(
                InvalidArgument,
                "a retention is at least one day, and at most {YEARS_MAX} years"
            ));
        }
        compliance(default.mode.as_ref().map(|mode| mode.as_str()).unwrap_or_default())?;
    }
    crate::settings::set_document(face, &input.bucket, LOCK, rule.as_ref()).await?;
    Ok(S3Response::new(PutObjectLockConfigurationOutput::default()))
}

/// Until when a version is kept, and in which mode.
pub async fn get_object_retention(
    face: &Face,
    req: S3Request<GetObjectRetentionInput>,
) -> S3Result<S3Response<GetObjectRetentionOutput>> {
    let input = req.input;
    check_lockable(face, &input.bucket)?;
    let object = visible(face, &input.bucket, &input.key, input.version_id.as_deref())?;
    let Some(lock) = object.lock else {
        return Err(s3_error!(NoSuchObjectLockConfiguration, "the version is not retained"));
    };
    let mode = match lock.compliance {
        true => ObjectLockRetentionMode::COMPLIANCE,
        false => ObjectLockRetentionMode::GOVERNANCE,
    };
    let retention = ObjectLockRetention {
        mode: Some(ObjectLockRetentionMode::from_static(mode)),
        retain_until_date: Some(crate::buckets::timestamp(lock.until_ms)),
    };
    Ok(S3Response::new(GetObjectRetentionOutput { retention: Some(retention) }))
}

/// Keeps a version until a day. In compliance mode nobody shortens it, in governance who may pass
/// it over.
pub async fn put_object_retention(
    face: &Face,
    req: S3Request<PutObjectRetentionInput>,
) -> S3Result<S3Response<PutObjectRetentionOutput>> {
    let input = req.input;
    let object = visible(face, &input.bucket, &input.key, input.version_id.as_deref())?;
    let lock = match input.retention {
        Some(ObjectLockRetention { mode: Some(mode), retain_until_date: Some(until) }) => {
            let until_ms = future(&until, face.blobs.now_ms())?;
            Some(Lock { until_ms, compliance: compliance(mode.as_str())? })
        }
        Some(ObjectLockRetention { mode: None, retain_until_date: None }) | None => None,
        _ => return Err(s3_error!(MalformedXML, "a retention mode goes with a date")),
    };
    let bypass = input.bypass_governance_retention.unwrap_or(false);
    let wanted = (lock, object.hold);
    face.blobs.set_lock(&input.bucket, &input.key, &object, wanted, bypass).await.or_s3()?;
    Ok(S3Response::new(PutObjectRetentionOutput::default()))
}

/// Whether a version is held whatever its day.
pub async fn get_object_legal_hold(
    face: &Face,
    req: S3Request<GetObjectLegalHoldInput>,
) -> S3Result<S3Response<GetObjectLegalHoldOutput>> {
    let input = req.input;
    check_lockable(face, &input.bucket)?;
    let object = visible(face, &input.bucket, &input.key, input.version_id.as_deref())?;
    let status = match object.hold {
        true => ObjectLockLegalHoldStatus::ON,
        false => ObjectLockLegalHoldStatus::OFF,
    };
    let status = Some(ObjectLockLegalHoldStatus::from_static(status));
    Ok(S3Response::new(GetObjectLegalHoldOutput {
        legal_hold: Some(ObjectLockLegalHold { status }),
    }))
}

/// Holds a version, or lets it go.
pub async fn put_object_legal_hold(
    face: &Face,
    req: S3Request<PutObjectLegalHoldInput>,
) -> S3Result<S3Response<PutObjectLegalHoldOutput>> {
    let input = req.input;
    let object = visible(face, &input.bucket, &input.key, input.version_id.as_deref())?;
    let hold = match input.legal_hold.and_then(|hold| hold.status).as_ref().map(|s| s.as_str()) {
        Some(ObjectLockLegalHoldStatus::ON) => true,
        Some(ObjectLockLegalHoldStatus::OFF) => false,
        _ => return Err(s3_error!(MalformedXML, "a legal hold is `ON` or `OFF`")),
    };
    let wanted = (object.lock, hold);
    // The retention stays as it is, so that nothing is made weaker.
    face.blobs.set_lock(&input.bucket, &input.key, &object, wanted, false).await.or_s3()?;
    Ok(S3Response::new(PutObjectLegalHoldOutput::default()))
}
