//! Bodies on their way in: what is expected of them, what they may take, and what broke them off.

use crate::errors::OrS3;
use crate::hash::{Expected, Hashed, Hashes};
use crate::service::Face;
use futures_core::Stream;
use holdfast_blob::{NEEDLE_DATA_BYTES, Writer};
use holdfast_env::budget::{Budget, Share};
use hyper::{HeaderMap, StatusCode};
use s3s::dto::StreamingBlob;
use s3s::{S3Error, S3ErrorCode, S3Result, TrailingHeaders, s3_error};
use std::pin::Pin;
use std::sync::Arc;

/// Bytes of one put, and of one part; S3's own limit.
pub const PUT_BYTES_MAX: u64 = 5 << 30;

/// A body on its way in: what is expected of it, and the memory it may take.
pub struct Incoming<'a> {
    /// None for an empty one.
    pub body: Option<StreamingBlob>,
    /// As the client says it; none where pieces say their own lengths.
    pub content_length: Option<i64>,
    /// What its hashes must come to.
    pub expected: Expected,
    /// Fields behind the body, once it has been read.
    pub trailers: Option<&'a TrailingHeaders>,
}

/// Takes memory for a body that is stored as it comes.
pub fn share(face: &Face, expected_bytes: u64) -> S3Result<Share> {
    take(face, expected_bytes.min(NEEDLE_DATA_BYTES as u64))
}

/// Takes memory; asks the client to come again while others have it.
pub fn take(face: &Face, bytes: u64) -> S3Result<Share> {
    share_of(&face.budget, bytes)
}

/// As [`take`], for who has no face. What no request may ever have is refused for good.
pub fn share_of(budget: &Arc<Budget>, bytes: u64) -> S3Result<Share> {
    if bytes > budget.request_bytes_max() {
        return Err(s3_error!(
            EntityTooLarge,
            "this takes {bytes} bytes of memory, more than this node has for one request \
             (`clients_memory`)"
        ));
    }
    budget.take(bytes).ok_or_else(|| {
        s3_error!(SlowDown, "other clients have all memory for now: come again in a moment")
    })
}

/// Where a body goes.
pub enum Sink<'a> {
    /// Into chunks, as it comes.
    Writer(&'a mut Writer),
    /// In one piece, for what is taken apart afterwards.
    Memory(&'a mut Vec<u8>),
}

impl Sink<'_> {
    fn size(&self) -> u64 {
        match self {
            Sink::Writer(writer) => writer.size(),
            Sink::Memory(bytes) => bytes.len() as u64,
        }
    }

    async fn write(&mut self, piece: &[u8]) -> S3Result<()> {
        match self {
            Sink::Writer(writer) => writer.write(piece).await.or_s3(),
            Sink::Memory(bytes) => {
                bytes.extend_from_slice(piece);
                Ok(())
            }
        }
    }
}

impl Incoming<'_> {
    /// What the body says that it takes; refused beyond S3's limit of one request.
    pub fn expected_bytes(&self) -> S3Result<u64> {
        let bytes = self.content_length.unwrap_or(NEEDLE_DATA_BYTES as i64).max(0) as u64;
        if bytes > PUT_BYTES_MAX {
            return Err(s3_error!(
                EntityTooLarge,
                "one request brings at most {PUT_BYTES_MAX} bytes"
            ));
        }
        Ok(bytes)
    }

    /// Receives everything, and compares it with what the client said.
    pub async fn receive(self, mut sink: Sink<'_>, bytes_max: u64) -> S3Result<Hashed> {
        let mut hashes = Hashes::new(self.expected.algorithm);
        if let Some(mut body) = self.body {
            while let Some(piece) =
                std::future::poll_fn(|cx| Pin::new(&mut body).poll_next(cx)).await
            {
                let piece = piece.map_err(|e| broken(&*e))?;
                if sink.size() + piece.len() as u64 > bytes_max {
                    return Err(s3_error!(
                        EntityTooLarge,
                        "one request brings at most {bytes_max} bytes here"
                    ));
                }
                hashes.update(&piece);
                sink.write(&piece).await?;
            }
        }
        if self.content_length.is_some_and(|length| length.max(0) as u64 != sink.size()) {
            return Err(s3_error!(IncompleteBody, "the body is not as long as was said"));
        }
        let hashed = hashes.finish();
        let trailers = self.trailers.and_then(TrailingHeaders::take);
        hashed.check(&self.expected, trailers.as_ref())?;
        Ok(hashed)
    }
}

/// What broke a body off, from the protocol's words for it.
pub fn broken(e: &(dyn std::error::Error + Send + Sync)) -> S3Error {
    let said = e.to_string();
    if said.contains("Sha256Mismatch") {
        let code = S3ErrorCode::Custom("XAmzContentSHA256Mismatch".into());
        let mut error = S3Error::with_message(
            code,
            "the body's SHA-256 is not the one in x-amz-content-sha256",
        );
        error.set_status_code(StatusCode::BAD_REQUEST);
        return error;
    }
    if said.contains("SignatureMismatch") {
        return s3_error!(
            SignatureDoesNotMatch,
            "a chunk of the body is not signed as it should be"
        );
    }
    if said.contains("timed out") {
        return s3_error!(RequestTimeout, "the body did not go on: {said}");
    }
    s3_error!(IncompleteBody, "the body broke off: {said}")
}

/// What a body in signed chunks comes to, or what its plain length is.
pub fn decoded_length(headers: &HeaderMap, content_length: Option<i64>) -> Option<i64> {
    let decoded = headers.get("x-amz-decoded-content-length");
    let decoded = decoded.and_then(|value| value.to_str().ok()?.parse().ok());
    match headers
        .get("x-amz-content-sha256")
        .is_some_and(|v| v.as_bytes().starts_with(b"STREAMING"))
    {
        true => decoded,
        false => content_length,
    }
}
