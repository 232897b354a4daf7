//! What the face refused or could not do, in S3's words.

use holdfast_base::{Error, Kind};
use holdfast_blob::{Failure, Refusal};
use s3s::{S3Error, S3ErrorCode};

/// A refusal by its code, trouble of the node's by [`failed`].
pub fn s3_failure(failure: Failure) -> S3Error {
    match failure {
        Failure::Refused(refusal) => refused(refusal),
        Failure::Failed(e) => failed(e),
    }
}

fn refused(refusal: Refusal) -> S3Error {
    let message = refusal.to_string();
    let code = match refusal {
        Refusal::NoSuchBucket => S3ErrorCode::NoSuchBucket,
        Refusal::BucketExists => S3ErrorCode::BucketAlreadyOwnedByYou,
        Refusal::BucketNotEmpty => S3ErrorCode::BucketNotEmpty,
        Refusal::NoSuchKey => S3ErrorCode::NoSuchKey,
        Refusal::NoSuchVersion => S3ErrorCode::NoSuchVersion,
        Refusal::NoSuchUpload => S3ErrorCode::NoSuchUpload,
        Refusal::InvalidPart(_) => S3ErrorCode::InvalidPart,
        Refusal::PreconditionFailed => S3ErrorCode::PreconditionFailed,
        Refusal::Locked => S3ErrorCode::AccessDenied,
        Refusal::NotLockable => S3ErrorCode::InvalidRequest,
        Refusal::ChunkClosed(_) | Refusal::Taken(_) => S3ErrorCode::ServiceUnavailable,
        Refusal::Invalid(_) => S3ErrorCode::InvalidArgument,
    };
    S3Error::with_message(code, message)
}

/// Trouble of the node's: what helps a client is whether to ask again.
pub fn failed(e: Error) -> S3Error {
    let code = match e.kind {
        Kind::Retry | Kind::Fenced | Kind::ReadOnly => S3ErrorCode::ServiceUnavailable,
        Kind::Invalid => S3ErrorCode::InvalidArgument,
        Kind::NotFound => S3ErrorCode::NoSuchKey,
        Kind::Full => {
            // Clients repeat what is answered with a 500 or with `InternalError`; asking again
            // does not help here.
            let code = S3ErrorCode::Custom("InsufficientStorage".into());
            let mut full = S3Error::with_message(code, e.message);
            full.set_status_code(hyper::StatusCode::INSUFFICIENT_STORAGE);
            return full;
        }
        _ => S3ErrorCode::InternalError,
    };
    S3Error::with_message(code, e.message)
}

/// As the protocol's results want it.
pub trait OrS3<T> {
    fn or_s3(self) -> Result<T, S3Error>;
}

impl<T> OrS3<T> for Result<T, Failure> {
    fn or_s3(self) -> Result<T, S3Error> {
        self.map_err(s3_failure)
    }
}

impl<T> OrS3<T> for Result<T, Error> {
    fn or_s3(self) -> Result<T, S3Error> {
        self.map_err(failed)
    }
}
