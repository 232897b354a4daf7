//! Copies within the service: the bytes are read and written again, so that each object has needles
//! of its own; nothing travels to the client.

use crate::access::Asked;
use crate::buckets::timestamp;
use crate::conditions::ReadConditions;
use crate::errors::OrS3;
use crate::hash::{Algorithm, Hashed, Hashes};
use crate::incoming;
use crate::objects;
use crate::photos;
use crate::service::{Face, caller};
use holdfast_blob::{Condition, Head, NewObject, Object, Writer, version_name};
use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result, s3_error};
use std::ops;

struct From {
    bucket: String,
    key: String,
    object: Object,
}

/// The version that a copy is made of; the caller must be allowed to read it.
fn source<T>(face: &Face, req: &S3Request<T>, source: &CopySource) -> S3Result<From> {
    let CopySource::Bucket { bucket, key, version_id } = source else {
        return Err(s3_error!(NotImplemented, "copying from an access point is not implemented"));
    };
    let asked = Asked {
        operation: "GetObject",
        bucket,
        key,
        version: version_id.as_deref(),
        headers: &req.headers,
        uri: &req.uri,
        tags: &[],
    };
    face.access.check_one(&caller(req), &asked)?;
    let object = objects::visible(face, bucket, key, version_id.as_deref())?;
    Ok(From { bucket: bucket.to_string(), key: key.to_string(), object })
}

/// Reads a range of an object and writes it.
async fn pour(
    face: &Face,
    from: &Object,
    wanted: ops::Range<u64>,
    algorithm: Option<Algorithm>,
    writer: &mut Writer,
) -> S3Result<Hashed> {
    let mut hashes = Hashes::new(algorithm);
    let mut reader = face.blobs.reader(from, wanted);
    while let Some(piece) = reader.next().await {
        let piece = piece.or_s3()?;
        hashes.update(piece.as_slice());
        writer.write(piece.as_slice()).await.or_s3()?;
    }
    Ok(hashes.finish())
}

/// Copies an object of up to 5 GiB here, with its description or another one.
pub async fn copy_object(
    face: &Face,
    req: S3Request<CopyObjectInput>,
) -> S3Result<S3Response<CopyObjectOutput>> {
    let from = source(face, &req, &req.input.copy_source)?;
    let mut input = req.input;
    crate::settings::check_object_acl(input.acl.as_ref())?;
    objects::check_storage_class(input.storage_class.as_ref())?;
    if from.object.size > incoming::PUT_BYTES_MAX {
        return Err(s3_error!(InvalidRequest, "an object of more than 5 GiB is copied in parts"));
    }
    ReadConditions {
        if_match: input.copy_source_if_match.as_ref(),
        if_none_match: input.copy_source_if_none_match.as_ref(),
        if_modified_since: input.copy_source_if_modified_since.as_ref(),
        if_unmodified_since: input.copy_source_if_unmodified_since.as_ref(),
    }
    .check(&from.object)
    .map_err(|_| s3_error!(PreconditionFailed, "the source is another one by now"))?;
    let mut head = head_of_copy(&from, &mut input)?;
    let stored = from.object.head.checksums.first().and_then(|sum| Algorithm::parse(&sum.name));
    let algorithm = objects::algorithm(input.checksum_algorithm.as_ref())?.or(stored);
    let bucket = face.blobs.bucket(&input.bucket).or_s3()?;
    let (lock, hold) = crate::locks::of_put(
        &bucket,
        input.object_lock_mode.as_ref(),
        input.object_lock_retain_until_date.as_ref(),
        input.object_lock_legal_hold_status.as_ref(),
        face.blobs.now_ms(),
    )?;
    let size = from.object.size;
    let sizes = photos::sizes(&bucket)?;
    photos::check_bytes(&sizes, size)?;
    let _share = incoming::share(face, size)?;
    let mut writer = Writer::new(&face.blobs, &input.bucket, &input.key, size);
    if sizes.is_some() {
        writer.keep_whole();
    }
    let hashed = pour(face, &from.object, 0..size, algorithm, &mut writer).await?;
    head.checksums = hashed.checksum.iter().cloned().collect();
    let condition = Condition::default();
    let alternates = face.scalers.scale(sizes, || writer.whole()).await?;
    let new = NewObject { head, etag: hashed.etag(), lock, hold, condition, alternates };
    let made = writer.finish(new).await.or_s3()?;
    let sums = objects::sums(&made.head.checksums);
    let copy_object_result = CopyObjectResult {
        e_tag: objects::etag(&made),
        last_modified: Some(timestamp(made.modified_ms)),
        checksum_crc32: sums.crc32,
        checksum_crc32c: sums.crc32c,
        checksum_crc64nvme: sums.crc64nvme,
        checksum_sha1: sums.sha1,
        checksum_sha256: sums.sha256,
        checksum_type: sums.kind,
    };
    Ok(S3Response::new(CopyObjectOutput {
        copy_object_result: Some(copy_object_result),
        expiration: crate::lifecycle::expiration(&bucket, &input.key, &made),
        copy_source_version_id: (!from.object.null).then(|| version_name(&from.object)),
        version_id: objects::version_id(&made),
        ..Default::default()
    }))
}

/// What is kept beside the bytes of a copy: the source's, or what the request says in its place,
/// which is taken out of it.
fn head_of_copy(from: &From, input: &mut CopyObjectInput) -> S3Result<Head> {
    let replace_head =
        input.metadata_directive.as_ref().is_some_and(|d| d.as_str() == MetadataDirective::REPLACE);
    let replace_tags =
        input.tagging_directive.as_ref().is_some_and(|d| d.as_str() == TaggingDirective::REPLACE);
    // An older version is copied over the current one to bring it back.
    let is_version = matches!(&input.copy_source, CopySource::Bucket { version_id: Some(_), .. });
    let same = from.bucket == input.bucket && from.key == input.key;
    if same && !is_version && !replace_head && !replace_tags {
        return Err(s3_error!(InvalidRequest, "a copy onto itself must change its metadata"));
    }
    let mut head = match replace_head {
        false => from.object.head.clone(),
        true => Head {
            content_type: input.content_type.take().unwrap_or_default(),
            headers: objects::kept_headers(
                [
                    ("cache-control", input.cache_control.take()),
                    ("content-disposition", input.content_disposition.take()),
                    ("content-encoding", objects::content_encoding(input.content_encoding.take())),
                    ("content-language", input.content_language.take()),
                    ("x-amz-website-redirect-location", input.website_redirect_location.take()),
                ],
                input.expires.as_ref(),
            ),
            metadata: objects::metadata(input.metadata.take())?,
            tags: from.object.head.tags.clone(),
            ..Head::default()
        },
    };
    if replace_tags {
        head.tags = crate::tags::parse_header(input.tagging.as_deref())?;
    }
    Ok(head)
}

/// Makes a part of an upload from a range of an object.
pub async fn upload_part_copy(
    face: &Face,
    req: S3Request<UploadPartCopyInput>,
) -> S3Result<S3Response<UploadPartCopyOutput>> {
    let from = source(face, &req, &req.input.copy_source)?;
    let input = req.input;
    let (id, number, upload) = crate::multipart::named_upload(
        face,
        &input.bucket,
        &input.key,
        &input.upload_id,
        input.part_number,
    )?;
    ReadConditions {
        if_match: input.copy_source_if_match.as_ref(),
        if_none_match: input.copy_source_if_none_match.as_ref(),
        if_modified_since: input.copy_source_if_modified_since.as_ref(),
        if_unmodified_since: input.copy_source_if_unmodified_since.as_ref(),
    }
    .check(&from.object)
    .map_err(|_| s3_error!(PreconditionFailed, "the source is another one by now"))?;
    let wanted = match &input.copy_source_range {
        None => 0..from.object.size,
        Some(range) => source_range(range, from.object.size)?,
    };
    if wanted.end - wanted.start > incoming::PUT_BYTES_MAX {
        return Err(s3_error!(EntityTooLarge, "a part has at most 5 GiB"));
    }
    let expected = wanted.end - wanted.start;
    let _share = incoming::share(face, expected)?;
    let mut writer = Writer::new(&face.blobs, &input.bucket, &input.key, expected);
    let algorithm = Algorithm::parse(&upload.algorithm);
    let hashed = pour(face, &from.object, wanted, algorithm, &mut writer).await?;
    let etag = hashed.etag();
    let checksums = hashed.checksum.into_iter().collect();
    let part = writer.finish_part(id, number, etag, checksums).await.or_s3()?;
    let sums = objects::sums(&part.checksums);
    Ok(S3Response::new(UploadPartCopyOutput {
        copy_part_result: Some(CopyPartResult {
            e_tag: Some(ETag::Strong(part.etag)),
            last_modified: Some(timestamp(part.modified_ms)),
            checksum_crc32: sums.crc32,
            checksum_crc32c: sums.crc32c,
            checksum_crc64nvme: sums.crc64nvme,
            checksum_sha1: sums.sha1,
            checksum_sha256: sums.sha256,
        }),
        copy_source_version_id: (!from.object.null).then(|| version_name(&from.object)),
        ..Default::default()
    }))
}

/// `bytes=FIRST-LAST`, both given, and inside the source.
fn source_range(text: &str, size: u64) -> S3Result<ops::Range<u64>> {
    let numbers = text.strip_prefix("bytes=").and_then(|range| range.split_once('-'));
    let parsed = numbers.and_then(|(a, b)| Some((a.parse::<u64>().ok()?, b.parse::<u64>().ok()?)));
    match parsed {
        Some((first, last)) if first <= last && last < size => Ok(first..last + 1),
        Some(_) => {
            Err(s3_error!(InvalidRange, "the range is not inside the source's {size} bytes"))
        }
        None => Err(s3_error!(InvalidArgument, "x-amz-copy-source-range is `bytes=FIRST-LAST`")),
    }
}
