//! Uploads in parts.

use crate::buckets::{owner, timestamp};
use crate::errors::OrS3;
use crate::hash::{
    Algorithm, Expected, checksum_of, combined, decode_base64, decode_hex, hex, md5_of,
};
use crate::incoming::{self, Incoming, Sink};
use crate::listing::{encoded, prefixes, shown_delimiter};
use crate::objects;
use crate::photos;
use crate::service::Face;
use holdfast_blob::{Head, ListQuery, PARTS_MAX, Pair, PartName, Refusal, Upload, Writer};
use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result, s3_error};

/// Bytes of every part but the last one, at least.
const PART_BYTES_MIN: u64 = 5 << 20;

/// Begins an upload; what the object is to be described by is said here.
pub async fn create_multipart_upload(
    face: &Face,
    req: S3Request<CreateMultipartUploadInput>,
) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
    let input = req.input;
    crate::settings::check_object_acl(input.acl.as_ref())?;
    objects::check_storage_class(input.storage_class.as_ref())?;
    let bucket = face.blobs.bucket(&input.bucket).or_s3()?;
    let algorithm = objects::algorithm(input.checksum_algorithm.as_ref())?;
    let full = input.checksum_type.as_ref().map(|kind| kind.as_str() == ChecksumType::FULL_OBJECT);
    let full_object = full.unwrap_or(algorithm == Some(Algorithm::Crc64Nvme));
    if full_object && matches!(algorithm, Some(Algorithm::Sha1 | Algorithm::Sha256)) {
        return Err(s3_error!(
            InvalidRequest,
            "a checksum of the full object is a CRC: those of parts cannot be put together otherwise"
        ));
    }
    let (lock, hold) = crate::locks::of_put(
        &bucket,
        input.object_lock_mode.as_ref(),
        input.object_lock_retain_until_date.as_ref(),
        input.object_lock_legal_hold_status.as_ref(),
        face.blobs.now_ms(),
    )?;
    let headers = objects::kept_headers(
        [
            ("cache-control", input.cache_control),
            ("content-disposition", input.content_disposition),
            ("content-encoding", objects::content_encoding(input.content_encoding)),
            ("content-language", input.content_language),
            ("x-amz-website-redirect-location", input.website_redirect_location),
        ],
        input.expires.as_ref(),
    );
    let upload = Upload {
        begun_ms: face.blobs.now_ms(),
        head: Head {
            content_type: input.content_type.unwrap_or_default(),
            headers,
            metadata: objects::metadata(input.metadata)?,
            tags: crate::tags::parse_header(input.tagging.as_deref())?,
            ..Head::default()
        },
        lock,
        hold,
        algorithm: algorithm.map_or("", Algorithm::name).to_owned(),
        full_object,
    };
    let id = face.blobs.begin_upload(&input.bucket, &input.key, upload).await.or_s3()?;
    Ok(S3Response::new(CreateMultipartUploadOutput {
        bucket: Some(input.bucket),
        key: Some(input.key),
        upload_id: Some(format!("{id:016x}")),
        checksum_algorithm: input.checksum_algorithm,
        checksum_type: input.checksum_type,
        ..Default::default()
    }))
}

fn upload_id(text: &str) -> S3Result<u64> {
    let id = u64::from_str_radix(text, 16).ok().filter(|_| text.len() == 16);
    id.ok_or_else(|| s3_error!(NoSuchUpload, "there is no such upload"))
}

/// An upload that is under way, and a part's number.
pub fn named_upload(
    face: &Face,
    bucket: &str,
    key: &str,
    id: &str,
    number: i32,
) -> S3Result<(u64, u16, Upload)> {
    let number = u16::try_from(number).ok().filter(|n| (1..=PARTS_MAX).contains(n));
    let Some(number) = number else {
        return Err(s3_error!(InvalidArgument, "a part's number is 1 to {PARTS_MAX}"));
    };
    let id = upload_id(id)?;
    Ok((id, number, face.blobs.upload(bucket, key, id).or_s3()?))
}

/// Stores a part; a part of the same number is replaced.
pub async fn upload_part(
    face: &Face,
    req: S3Request<UploadPartInput>,
) -> S3Result<S3Response<UploadPartOutput>> {
    let input = req.input;
    let (id, number, upload) =
        named_upload(face, &input.bucket, &input.key, &input.upload_id, input.part_number)?;
    let named = input.checksum_algorithm.as_ref().map(|a| a.as_str().to_owned());
    let sums = [
        input.checksum_crc32,
        input.checksum_crc32c,
        input.checksum_crc64nvme,
        input.checksum_sha1,
        input.checksum_sha256,
    ];
    let mut expected =
        Expected::new(input.content_md5, named.as_deref(), sums)?.announced(&req.headers)?;
    // What the upload was begun with is computed for every part.
    let begun_with = Algorithm::parse(&upload.algorithm);
    let comes = expected.checksum.is_some() || expected.behind;
    if comes && begun_with.is_some() && expected.algorithm != begun_with {
        return Err(s3_error!(
            InvalidRequest,
            "the upload was begun with checksum `{}`",
            upload.algorithm
        ));
    }
    expected.algorithm = begun_with.or(expected.algorithm);
    let incoming = Incoming {
        body: input.body,
        content_length: incoming::decoded_length(&req.headers, input.content_length),
        expected,
        trailers: req.trailing_headers.as_ref(),
    };
    let expected_bytes = incoming.expected_bytes()?;
    let _share = incoming::share(face, expected_bytes)?;
    let mut writer = Writer::new(&face.blobs, &input.bucket, &input.key, expected_bytes);
    let hashed = incoming.receive(Sink::Writer(&mut writer), incoming::PUT_BYTES_MAX).await?;
    let etag = hashed.etag();
    let checksums = hashed.checksum.into_iter().collect();
    let part = writer.finish_part(id, number, etag, checksums).await.or_s3()?;
    let sums = objects::sums(&part.checksums);
    Ok(S3Response::new(UploadPartOutput {
        e_tag: Some(ETag::Strong(part.etag)),
        checksum_crc32: sums.crc32,
        checksum_crc32c: sums.crc32c,
        checksum_crc64nvme: sums.crc64nvme,
        checksum_sha1: sums.sha1,
        checksum_sha256: sums.sha256,
        ..Default::default()
    }))
}

/// Names the object, whole, from the parts that are listed, in one entry.
pub async fn complete_multipart_upload(
    face: &Face,
    req: S3Request<CompleteMultipartUploadInput>,
) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
    let input = req.input;
    let id = upload_id(&input.upload_id)?;
    let condition = objects::condition(input.if_match.as_ref(), input.if_none_match.as_ref())?;
    let parts = input.multipart_upload.and_then(|list| list.parts).unwrap_or_default();
    let names = names(parts)?;
    let (etag, checksums, size) = summed(face, &input.bucket, &input.key, id, &names)?;
    if input.mpu_object_size.is_some_and(|said| Some(said as u64) != size) {
        return Err(s3_error!(InvalidRequest, "the parts are not as long as was said"));
    }
    let whole = [
        ("crc32", input.checksum_crc32),
        ("crc32c", input.checksum_crc32c),
        ("crc64nvme", input.checksum_crc64nvme),
        ("sha1", input.checksum_sha1),
        ("sha256", input.checksum_sha256),
    ];
    for (name, said) in whole.into_iter().filter_map(|(name, said)| Some((name, said?))) {
        let computed = checksums.iter().find(|sum| sum.name == name);
        if computed.is_some_and(|sum| sum.value.split('-').next() != said.split('-').next()) {
            return Err(s3_error!(BadDigest, "the object's {name} is not the one that was said"));
        }
    }
    let place = (input.bucket.as_str(), input.key.as_str(), id);
    let sums = (etag, checksums);
    let mut alternates = Vec::new();
    let bucket = face.blobs.bucket(&input.bucket).or_s3()?;
    let sizes = photos::sizes(&bucket)?;
    if sizes.is_some()
        && let Some(photo) = face.blobs.described(place, &names, (&sums.0, &sums.1)).or_s3()?
    {
        photos::check_bytes(&sizes, photo.size)?;
        let bytes = photos::read_whole(&face.blobs, &photo).await?;
        alternates = face.scalers.scale(sizes, || bytes).await?;
    }
    let object =
        face.blobs.complete_upload(place, names, sums, condition, alternates).await.or_s3()?;
    let sums = objects::sums(&object.head.checksums);
    Ok(S3Response::new(CompleteMultipartUploadOutput {
        location: Some(format!("/{}/{}", input.bucket, input.key)),
        e_tag: objects::etag(&object),
        expiration: crate::lifecycle::expiration(&bucket, &input.key, &object),
        version_id: objects::version_id(&object),
        checksum_crc32: sums.crc32,
        checksum_crc32c: sums.crc32c,
        checksum_crc64nvme: sums.crc64nvme,
        checksum_sha1: sums.sha1,
        checksum_sha256: sums.sha256,
        checksum_type: sums.kind,
        bucket: Some(input.bucket),
        key: Some(input.key),
        ..Default::default()
    }))
}

/// The parts as named; in order, each once.
fn names(parts: Vec<CompletedPart>) -> S3Result<Vec<PartName>> {
    let mut names = Vec::with_capacity(parts.len());
    for part in parts {
        let number = part.part_number.and_then(|n| u16::try_from(n).ok());
        let number = number.filter(|n| (1..=PARTS_MAX).contains(n));
        let (Some(number), Some(etag)) = (number, part.e_tag) else {
            return Err(s3_error!(
                InvalidPart,
                "each part has a number of 1 to {PARTS_MAX} and an ETag"
            ));
        };
        if names.last().is_some_and(|last: &PartName| last.number >= number) {
            return Err(s3_error!(InvalidPartOrder, "name the parts in order, each once"));
        }
        names.push(PartName { number, etag: etag.value().to_owned() });
    }
    if names.is_empty() {
        return Err(s3_error!(MalformedXML, "name a part"));
    }
    Ok(names)
}

type Summed = (String, Vec<Pair>, Option<u64>);

/// The whole's ETag and checksums, from those of its parts; and its size. All parts but the last
/// one must have their least size.
fn summed(face: &Face, bucket: &str, key: &str, id: u64, names: &[PartName]) -> S3Result<Summed> {
    let (found, _) = face.blobs.list_parts(id, 0, PARTS_MAX as usize).or_s3()?;
    let upload = match face.blobs.upload(bucket, key, id) {
        Ok(upload) => upload,
        // Completed before: the view gives the first answer, or says that there is none.
        Err(_) => return Ok((String::new(), Vec::new(), None)),
    };
    let (mut md5s, mut sums, mut size) = (Vec::new(), Vec::new(), 0);
    let algorithm = Algorithm::parse(&upload.algorithm);
    for (at, name) in names.iter().enumerate() {
        let part = found.binary_search_by_key(&name.number, |(number, _)| *number);
        let part = part.ok().map(|at| &found[at].1).filter(|part| part.etag == name.etag);
        let Some(part) = part else {
            return Err(crate::errors::s3_failure(Refusal::InvalidPart(name.number).into()));
        };
        if part.size < PART_BYTES_MIN && at + 1 < names.len() {
            return Err(s3_error!(
                EntityTooSmall,
                "part {} has less than {PART_BYTES_MIN} bytes",
                name.number
            ));
        }
        size += part.size;
        md5s.extend(decode_hex(&part.etag).unwrap_or_default());
        let sum = part.checksums.iter().find(|sum| sum.name == upload.algorithm);
        let sum = sum.and_then(|sum| decode_base64(&sum.value)).unwrap_or_default();
        sums.push((sum, part.size));
    }
    let etag = format!("{}-{}", hex(&md5_of(&md5s)), names.len());
    let whole = algorithm.and_then(|algorithm| {
        let value = match upload.full_object {
            true => combined(algorithm, &sums)?,
            false => {
                let sums: Vec<u8> = sums.into_iter().flat_map(|(sum, _)| sum).collect();
                format!("{}-{}", checksum_of(algorithm, &sums), names.len())
            }
        };
        Some(Pair::new(algorithm.name(), value))
    });
    Ok((etag, whole.into_iter().collect(), Some(size)))
}

/// Gives an upload and its parts up.
pub async fn abort_multipart_upload(
    face: &Face,
    req: S3Request<AbortMultipartUploadInput>,
) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
    let input = req.input;
    let id = upload_id(&input.upload_id)?;
    face.blobs.abort_upload(&input.bucket, &input.key, id).await.or_s3()?;
    Ok(S3Response::new(AbortMultipartUploadOutput::default()))
}

/// Who began an upload is not kept: it is said to be the owner, as S3 says it of an account.
fn initiator(owner: &str) -> Initiator {
    Initiator { display_name: Some(owner.to_owned()), id: Some(owner.to_owned()) }
}

/// A page of an upload's parts by number.
pub async fn list_parts(
    face: &Face,
    req: S3Request<ListPartsInput>,
) -> S3Result<S3Response<ListPartsOutput>> {
    let input = req.input;
    let id = upload_id(&input.upload_id)?;
    let bucket = face.blobs.bucket(&input.bucket).or_s3()?;
    let upload = face.blobs.upload(&input.bucket, &input.key, id).or_s3()?;
    let max = input.max_parts.unwrap_or(1000).clamp(0, 1000);
    let after = input.part_number_marker.unwrap_or(0).clamp(0, PARTS_MAX as i32);
    let (parts, more) = face.blobs.list_parts(id, after as u16, max as usize).or_s3()?;
    let next = parts.last().map(|(number, _)| *number as i32).filter(|_| more);
    let shown = parts.into_iter().map(|(number, part)| {
        let sums = objects::sums(&part.checksums);
        Part {
            e_tag: Some(ETag::Strong(part.etag)),
            last_modified: Some(timestamp(part.modified_ms)),
            part_number: Some(number as i32),
            size: Some(part.size as i64),
            checksum_crc32: sums.crc32,
            checksum_crc32c: sums.crc32c,
            checksum_crc64nvme: sums.crc64nvme,
            checksum_sha1: sums.sha1,
            checksum_sha256: sums.sha256,
        }
    });
    let kind = if upload.full_object { ChecksumType::FULL_OBJECT } else { ChecksumType::COMPOSITE };
    let chosen = Algorithm::parse(&upload.algorithm);
    Ok(S3Response::new(ListPartsOutput {
        parts: Some(shown.collect()),
        is_truncated: Some(more),
        max_parts: Some(max),
        next_part_number_marker: next,
        part_number_marker: Some(after),
        owner: Some(owner(&bucket.owner)),
        initiator: Some(initiator(&bucket.owner)),
        storage_class: Some(StorageClass::from_static(StorageClass::STANDARD)),
        checksum_algorithm: chosen.map(|a| ChecksumAlgorithm::from(a.name().to_ascii_uppercase())),
        checksum_type: chosen.map(|_| ChecksumType::from_static(kind)),
        bucket: Some(input.bucket),
        key: Some(input.key),
        upload_id: Some(input.upload_id),
        ..Default::default()
    }))
}

/// A page of the uploads under way, by key.
pub async fn list_multipart_uploads(
    face: &Face,
    req: S3Request<ListMultipartUploadsInput>,
) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
    let input = req.input;
    let bucket = face.blobs.bucket(&input.bucket).or_s3()?;
    let max = input.max_uploads.unwrap_or(1000).clamp(0, 1000);
    let query = ListQuery {
        prefix: input.prefix.clone().unwrap_or_default(),
        delimiter: input.delimiter.clone().unwrap_or_default(),
        after: input.key_marker.clone().unwrap_or_default(),
        max: max as usize,
    };
    let after = input.upload_id_marker.as_deref().and_then(|id| u64::from_str_radix(id, 16).ok());
    let listing = face.blobs.list_uploads(&input.bucket, &query, after).or_s3()?;
    let url = input.encoding_type.as_ref();
    let uploads = listing.uploads.into_iter().map(|(key, id, upload)| MultipartUpload {
        initiated: Some(timestamp(upload.begun_ms)),
        initiator: Some(initiator(&bucket.owner)),
        key: Some(encoded(key, url)),
        owner: Some(owner(&bucket.owner)),
        storage_class: Some(StorageClass::from_static(StorageClass::STANDARD)),
        upload_id: Some(format!("{id:016x}")),
        ..Default::default()
    });
    Ok(S3Response::new(ListMultipartUploadsOutput {
        uploads: Some(uploads.collect()),
        common_prefixes: prefixes(listing.prefixes, url),
        is_truncated: Some(listing.next.is_some()),
        next_upload_id_marker: listing.next.as_ref().map(|(_, id)| format!("{id:016x}")),
        next_key_marker: listing.next.map(|(key, _)| encoded(key, url)),
        bucket: Some(input.bucket),
        delimiter: shown_delimiter(input.delimiter, url),
        key_marker: input.key_marker.map(|marker| encoded(marker, url)),
        max_uploads: Some(max),
        prefix: input.prefix.map(|prefix| encoded(prefix, url)),
        encoding_type: input.encoding_type,
        upload_id_marker: input.upload_id_marker,
        ..Default::default()
    }))
}
