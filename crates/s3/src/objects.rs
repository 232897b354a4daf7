//! Objects: put, shown, got whole or in part, deleted.

use crate::access::Asked;
use crate::buckets::timestamp;
use crate::conditions::{ReadConditions, range_is_of};
use crate::errors::{OrS3, s3_failure};
use crate::forms::Form;
use crate::hash::{Algorithm, Expected};
use crate::incoming::{self, Incoming, PUT_BYTES_MAX, Sink, decoded_length, share};
use crate::outgoing::{self, Started};
use crate::photos;
use crate::scale::PHOTO_BYTES_MAX;
use crate::service::{Face, caller};
use crate::trail::Note;
use holdfast_blob::{
    Answer, Condition, Failure, Head, KEY_BYTES_MAX, NewObject, Object, Outcome, Pair, Refusal,
    Writer, version_name,
};
use hyper::HeaderMap;
use hyper::body::Bytes;
use s3s::dto::*;
use s3s::{Body, S3Request, S3Response, S3Result, s3_error};

/// Names and values of user metadata, together.
const METADATA_BYTES_MAX: usize = 2 << 10;

/// What requests ask for that is not here is refused by name, never ignored.
pub fn refuse(asked: &[(bool, &str)]) -> S3Result<()> {
    match asked.iter().find(|(asked, _)| *asked) {
        Some((_, what)) => Err(s3_error!(NotImplemented, "{what} is not implemented")),
        None => Ok(()),
    }
}

/// Headers that ask for encryption, of an object or of a copy's source: for any operation.
pub fn refuse_encryption(headers: &HeaderMap) -> S3Result<()> {
    match headers.keys().find(|name| name.as_str().contains("-server-side-encryption")) {
        Some(name) => {
            Err(s3_error!(NotImplemented, "server-side encryption (`{name}`) is not implemented"))
        }
        None => Ok(()),
    }
}

/// Refuses classes that there are not; those that there are mean the same.
pub fn check_storage_class(class: Option<&StorageClass>) -> S3Result<()> {
    match class.map(StorageClass::as_str) {
        None | Some(StorageClass::STANDARD | StorageClass::REDUCED_REDUNDANCY) => Ok(()),
        Some(other) => Err(s3_error!(InvalidStorageClass, "there is no storage class `{other}`")),
    }
}

/// User metadata, in order of the names.
pub fn metadata(metadata: Option<Metadata>) -> S3Result<Vec<Pair>> {
    let mut pairs: Vec<Pair> =
        metadata.into_iter().flatten().map(|(name, value)| Pair { name, value }).collect();
    pairs.sort_by(|a, b| a.name.cmp(&b.name));
    let bytes: usize = pairs.iter().map(|pair| pair.name.len() + pair.value.len()).sum();
    if bytes > METADATA_BYTES_MAX {
        return Err(s3_error!(
            MetadataTooLarge,
            "user metadata takes at most {METADATA_BYTES_MAX} bytes"
        ));
    }
    Ok(pairs)
}

/// Headers that are kept with an object and given back with it.
pub fn kept_headers(
    headers: [(&str, Option<String>); 5],
    expires: Option<&Timestamp>,
) -> Vec<Pair> {
    let mut kept: Vec<Pair> = headers
        .into_iter()
        .filter_map(|(name, value)| Some(Pair::new(name, value.filter(|v| !v.is_empty())?)))
        .collect();
    let mut text = Vec::new();
    if let Some(expires) = expires
        && expires.format(TimestampFormat::HttpDate, &mut text).is_ok()
        && let Ok(text) = String::from_utf8(text)
    {
        kept.push(Pair::new("expires", text));
    }
    kept
}

/// `aws-chunked` says how the body came, not what it is.
pub fn content_encoding(encoding: Option<String>) -> Option<String> {
    let encoding = encoding?;
    let kept: Vec<&str> = encoding
        .split(',')
        .map(str::trim)
        .filter(|e| *e != "aws-chunked" && !e.is_empty())
        .collect();
    Some(kept.join(","))
}

/// What a write depends on, decided with its entry.
pub fn condition(
    if_match: Option<&ETagCondition>,
    if_none_match: Option<&ETagCondition>,
) -> S3Result<Condition> {
    let if_absent = match if_none_match {
        None => false,
        Some(condition) if condition.is_any() => true,
        Some(_) => return Err(s3_error!(NotImplemented, "If-None-Match of a write is `*`")),
    };
    let if_match = if_match.map(|condition| match condition.as_etag() {
        Some(etag) => etag.value().to_owned(),
        None => "*".to_owned(),
    });
    Ok(Condition { if_match, if_absent })
}

/// As answers say it; nothing for the version `null`.
pub fn version_id(object: &Object) -> Option<String> {
    (!object.null).then(|| version_name(object))
}

/// As answers say it.
pub fn etag(object: &Object) -> Option<ETag> {
    Some(ETag::Strong(object.etag.clone()))
}

/// Stored checksums by their fields.
#[derive(Default)]
pub struct Sums {
    /// All of them in base64.
    pub crc32: Option<String>,
    pub crc32c: Option<String>,
    pub crc64nvme: Option<String>,
    pub sha1: Option<String>,
    pub sha256: Option<String>,
    /// Of the whole object, or of the checksums of its parts.
    pub kind: Option<ChecksumType>,
}

/// Sorts an object's checksums into their fields.
pub fn sums(checksums: &[Pair]) -> Sums {
    let mut sums = Sums::default();
    for pair in checksums {
        let composite = pair.value.contains('-');
        let kind = if composite { ChecksumType::COMPOSITE } else { ChecksumType::FULL_OBJECT };
        sums.kind = Some(ChecksumType::from_static(kind));
        let field = match pair.name.as_str() {
            "crc32" => &mut sums.crc32,
            "crc32c" => &mut sums.crc32c,
            "crc64nvme" => &mut sums.crc64nvme,
            "sha1" => &mut sums.sha1,
            "sha256" => &mut sums.sha256,
            _ => continue,
        };
        *field = Some(pair.value.clone());
    }
    sums
}

/// Stores an object, whole or not at all; an archive becomes one object a file.
pub async fn put_object(
    face: &Face,
    req: S3Request<PutObjectInput>,
) -> S3Result<S3Response<PutObjectOutput>> {
    let caller = caller(&req);
    let form = req.extensions.get::<Form>().cloned();
    let mut input = req.input;
    refuse_of_put(&input)?;
    let expected = expected_of_put(&mut input, &req.headers)?;
    let head = head_of_put(&mut input, form.as_ref())?;
    let condition = condition(input.if_match.as_ref(), input.if_none_match.as_ref())?;
    let bucket = face.blobs.bucket(&input.bucket).or_s3()?;
    let (lock, hold) = crate::locks::of_put(
        &bucket,
        input.object_lock_mode.as_ref(),
        input.object_lock_retain_until_date.as_ref(),
        input.object_lock_legal_hold_status.as_ref(),
        face.blobs.now_ms(),
    )?;
    let incoming = Incoming {
        body: input.body,
        content_length: decoded_length(&req.headers, input.content_length),
        expected,
        trailers: req.trailing_headers.as_ref(),
    };
    let mut new = NewObject { head, lock, hold, condition, ..NewObject::default() };
    if crate::batch::is_asked(&new.head.metadata) {
        let bucket = (input.bucket.as_str(), &bucket);
        let by = (&caller, &req.headers, &req.uri);
        return crate::batch::extract(face, by, bucket, new, incoming).await;
    }
    let expected_bytes = incoming.expected_bytes()?;
    let sizes = photos::sizes(&bucket)?;
    photos::check_bytes(&sizes, expected_bytes)?;
    let (_share, bytes_max) = match sizes {
        None => (share(face, expected_bytes)?, PUT_BYTES_MAX),
        // It is kept whole beside what is stored of it.
        Some(_) => (incoming::take(face, 2 * expected_bytes)?, PHOTO_BYTES_MAX as u64),
    };
    let mut writer = Writer::new(&face.blobs, &input.bucket, &input.key, expected_bytes);
    if sizes.is_some() {
        writer.keep_whole();
    }
    let hashed = incoming.receive(Sink::Writer(&mut writer), bytes_max).await?;
    new.alternates = face.scalers.scale(sizes, || writer.whole()).await?;
    new.etag = hashed.etag();
    new.head.checksums.extend(hashed.checksum);
    let object = writer.finish(new).await.or_s3()?;
    if let Some(extent) = object.extents.last() {
        face.hot.saw(extent.pointer.chunk);
    }
    let expiration = crate::lifecycle::expiration(&bucket, &input.key, &object);
    let mut answer = S3Response::new(PutObjectOutput { expiration, ..put_output(&object) });
    crate::native::point(&object, &mut answer.headers);
    if form.is_some() {
        // A form's answers show it as it is written, quoted.
        let quoted = format!("\"{}\"", object.etag);
        if let Ok(value) = quoted.parse() {
            answer.headers.insert(hyper::header::ETAG, value);
        }
        answer.output.e_tag = Some(ETag::Strong(quoted));
    }
    Ok(answer)
}

fn refuse_of_put(input: &PutObjectInput) -> S3Result<()> {
    refuse(&[
        // Fields of a form; headers are refused before.
        (input.server_side_encryption.is_some(), "server-side encryption"),
        (input.ssekms_key_id.is_some(), "server-side encryption"),
        (input.sse_customer_algorithm.is_some(), "server-side encryption with a customer's key"),
        (input.sse_customer_key.is_some(), "server-side encryption with a customer's key"),
        (input.write_offset_bytes.is_some(), "appending to an object"),
    ])?;
    crate::settings::check_object_acl(input.acl.as_ref())?;
    check_storage_class(input.storage_class.as_ref())
}

/// What the body's checksums should come to; takes them out of the request.
fn expected_of_put(input: &mut PutObjectInput, headers: &HeaderMap) -> S3Result<Expected> {
    let named = input.checksum_algorithm.as_ref().map(|a| a.as_str().to_owned());
    let sums = [
        input.checksum_crc32.take(),
        input.checksum_crc32c.take(),
        input.checksum_crc64nvme.take(),
        input.checksum_sha1.take(),
        input.checksum_sha256.take(),
    ];
    Expected::new(input.content_md5.take(), named.as_deref(), sums)?.announced(headers)
}

/// What is kept beside the bytes; takes it out of the request.
fn head_of_put(input: &mut PutObjectInput, form: Option<&Form>) -> S3Result<Head> {
    let headers = kept_headers(
        [
            ("cache-control", input.cache_control.take()),
            ("content-disposition", input.content_disposition.take()),
            ("content-encoding", content_encoding(input.content_encoding.take())),
            ("content-language", input.content_language.take()),
            ("x-amz-website-redirect-location", input.website_redirect_location.take()),
        ],
        input.expires.as_ref(),
    );
    let tags = match form {
        Some(form) => form.tags.clone(),
        None => crate::tags::parse_header(input.tagging.as_deref())?,
    };
    Ok(Head {
        content_type: input.content_type.take().unwrap_or_default(),
        headers,
        metadata: metadata(input.metadata.take())?,
        tags,
        ..Head::default()
    })
}

/// What is said of an object that was stored, but for when it expires.
fn put_output(object: &Object) -> PutObjectOutput {
    let sums = sums(&object.head.checksums);
    PutObjectOutput {
        e_tag: etag(object),
        version_id: version_id(object),
        checksum_crc32: sums.crc32,
        checksum_crc32c: sums.crc32c,
        checksum_crc64nvme: sums.crc64nvme,
        checksum_sha1: sums.sha1,
        checksum_sha256: sums.sha256,
        checksum_type: sums.kind,
        ..Default::default()
    }
}

/// What a reader sees of a version, or why it sees nothing.
pub fn visible(face: &Face, bucket: &str, key: &str, version: Option<&str>) -> S3Result<Object> {
    let object = face.blobs.object(bucket, key, version).or_s3()?;
    if !object.marker {
        return Ok(object);
    }
    let mut e = match version {
        Some(_) => s3_error!(MethodNotAllowed, "the version is a delete marker"),
        None => s3_failure(Failure::Refused(Refusal::NoSuchKey)),
    };
    let mut headers = HeaderMap::new();
    headers.insert("x-amz-delete-marker", hyper::header::HeaderValue::from_static("true"));
    if let Ok(name) = version_name(&object).parse() {
        headers.insert("x-amz-version-id", name);
    }
    e.set_headers(headers);
    Err(e)
}

/// The bytes that a request wants, and whether they are a part.
fn wanted(
    object: &Object,
    range: Option<&Range>,
    part: Option<i32>,
) -> S3Result<(std::ops::Range<u64>, bool)> {
    match (range, part) {
        (Some(_), Some(_)) => {
            Err(s3_error!(InvalidRequest, "ask for a range or for a part, not both"))
        }
        (Some(range), None) => Ok((range.check(object.size)?, true)),
        (None, None) => Ok((0..object.size, false)),
        (None, Some(part)) => {
            let sizes = match object.parts.is_empty() {
                true => std::slice::from_ref(&object.size),
                false => object.parts.as_slice(),
            };
            let at = usize::try_from(part).ok().and_then(|part| part.checked_sub(1));
            let Some((at, size)) = at.and_then(|at| Some((at, sizes.get(at)?))) else {
                return Err(s3_error!(InvalidRange, "the object has {} parts", sizes.len()));
            };
            let start: u64 = sizes[..at].iter().sum();
            Ok((start..start + size, true))
        }
    }
}

fn content_range(object: &Object, wanted: &std::ops::Range<u64>) -> Option<String> {
    (wanted.start < wanted.end)
        .then(|| format!("bytes {}-{}/{}", wanted.start, wanted.end - 1, object.size))
}

/// The fields that a get and a head have in common.
macro_rules! described {
    ($output:ident, $input:expr, $object:expr, $wanted:expr, $partial:expr) => {{
        let (object, input): (&Object, _) = ($object, $input);
        let header = |name: &str| {
            object.head.headers.iter().find(|p| p.name == name).map(|p| p.value.clone())
        };
        let whole = *$wanted == (0..object.size);
        let asked =
            input.checksum_mode.as_ref().is_some_and(|m| m.as_str() == ChecksumMode::ENABLED);
        let sums = if asked && whole { sums(&object.head.checksums) } else { Sums::default() };
        let metadata: Metadata =
            object.head.metadata.iter().map(|p| (p.name.clone(), p.value.clone())).collect();
        let (lock_mode, lock_until) = crate::locks::shown(object);
        $output {
            accept_ranges: Some("bytes".to_owned()),
            cache_control: header("cache-control"),
            content_disposition: header("content-disposition"),
            content_encoding: header("content-encoding"),
            content_language: header("content-language"),
            content_length: Some(($wanted.end - $wanted.start) as i64),
            content_range: content_range(object, $wanted).filter(|_| $partial),
            content_type: Some(match object.head.content_type.as_str() {
                "" => "binary/octet-stream".to_owned(),
                kind => kind.to_owned(),
            }),
            e_tag: etag(object),
            expires: header("expires")
                .and_then(|e| Timestamp::parse(TimestampFormat::HttpDate, &e).ok()),
            last_modified: Some(timestamp(object.modified_ms)),
            metadata: Some(metadata).filter(|m| !m.is_empty()),
            parts_count: input
                .part_number
                .filter(|_| !object.parts.is_empty())
                .map(|_| object.parts.len() as i32),
            version_id: input.version_id.clone().or_else(|| version_id(object)),
            website_redirect_location: header("x-amz-website-redirect-location"),
            object_lock_mode: lock_mode,
            object_lock_retain_until_date: lock_until,
            object_lock_legal_hold_status: object
                .hold
                .then(|| ObjectLockLegalHoldStatus::from_static(ObjectLockLegalHoldStatus::ON)),
            checksum_crc32: sums.crc32,
            checksum_crc32c: sums.crc32c,
            checksum_crc64nvme: sums.crc64nvme,
            checksum_sha1: sums.sha1,
            checksum_sha256: sums.sha256,
            checksum_type: sums.kind,
            ..Default::default()
        }
    }};
}

/// `x-amz-expiration`, of the current version.
fn expiration(face: &Face, bucket: &str, key: &str, object: &Object) -> Option<String> {
    crate::lifecycle::expiration(&face.blobs.bucket(bucket).ok()?, key, object)
}

/// Bytes of an object: from memory where it is hot, else from the stores.
async fn read(
    face: &Face,
    object: &Object,
    wanted: &std::ops::Range<u64>,
    headers: &HeaderMap,
) -> Answer<Body> {
    let whole = *wanted == (0..object.size);
    if whole && let Some(found) = face.hot.get(object) {
        return Ok(Body::from(found));
    }
    let reader = face.blobs.reader(object, wanted.clone());
    let started = outgoing::start(reader, wanted.end - wanted.start, &face.budget).await?;
    if whole
        && let Started::Whole(bytes) = &started
        && let Some(pointer) = face.hot.admits(object, headers)
    {
        // A copy: what is kept has its own limit, and this one's memory is the budget's.
        face.hot.keep(pointer, &Bytes::copy_from_slice(bytes));
    }
    Ok(started.into_body())
}

/// An object or a range of it, or one of a photo's sizes, under conditions.
pub async fn get_object(
    face: &Face,
    req: S3Request<GetObjectInput>,
) -> S3Result<S3Response<GetObjectOutput>> {
    let input = req.input;
    let found = visible(face, &input.bucket, &input.key, input.version_id.as_deref())?;
    let mut object = photos::sized(found, &req.uri)?;
    let conditions = ReadConditions {
        if_match: input.if_match.as_ref(),
        if_none_match: input.if_none_match.as_ref(),
        if_modified_since: input.if_modified_since.as_ref(),
        if_unmodified_since: input.if_unmodified_since.as_ref(),
    };
    conditions.check(&object)?;
    let range = |object: &Object| input.range.filter(|_| range_is_of(object, &req.headers));
    let (mut bytes, mut partial) = wanted(&object, range(&object).as_ref(), input.part_number)?;
    let mut body = read(face, &object, &bytes, &req.headers).await;
    if let Err(Failure::Failed(e)) = &body
        && e.kind == holdfast_base::Kind::NotFound
    {
        // Between the two it may have been replaced, and its chunk compacted.
        let found = visible(face, &input.bucket, &input.key, input.version_id.as_deref())?;
        object = photos::sized(found, &req.uri)?;
        conditions.check(&object)?;
        (bytes, partial) = wanted(&object, range(&object).as_ref(), input.part_number)?;
        body = read(face, &object, &bytes, &req.headers).await;
    }
    let body = match body {
        Ok(body) => body,
        // It is named, so its absence is no answer.
        Err(Failure::Failed(e)) if e.kind == holdfast_base::Kind::NotFound => {
            return Err(s3_error!(InternalError, "{}", e.message));
        }
        Err(e) => return Err(s3_failure(e)),
    };
    let mut output: GetObjectOutput = described!(GetObjectOutput, &input, &object, &bytes, partial);
    output.body = Some(StreamingBlob::from(body));
    if input.version_id.is_none() {
        output.expiration = expiration(face, &input.bucket, &input.key, &object);
    }
    output.tag_count = Some(object.head.tags.len() as i32).filter(|count| *count > 0);
    let mut answer = S3Response::new(output);
    crate::native::point(&object, &mut answer.headers);
    Ok(answer)
}

/// What [`get_object`] would say, without the bytes.
pub async fn head_object(
    face: &Face,
    req: S3Request<HeadObjectInput>,
) -> S3Result<S3Response<HeadObjectOutput>> {
    let input = req.input;
    let object = visible(face, &input.bucket, &input.key, input.version_id.as_deref())?;
    let object = photos::sized(object, &req.uri)?;
    let conditions = ReadConditions {
        if_match: input.if_match.as_ref(),
        if_none_match: input.if_none_match.as_ref(),
        if_modified_since: input.if_modified_since.as_ref(),
        if_unmodified_since: input.if_unmodified_since.as_ref(),
    };
    conditions.check(&object)?;
    let range = input.range.filter(|_| range_is_of(&object, &req.headers));
    let (bytes, partial) = wanted(&object, range.as_ref(), input.part_number)?;
    let mut output: HeadObjectOutput =
        described!(HeadObjectOutput, &input, &object, &bytes, partial);
    if input.version_id.is_none() {
        output.expiration = expiration(face, &input.bucket, &input.key, &object);
    }
    let mut answer = S3Response::new(output);
    if !object.head.tags.is_empty() {
        // The protocol's own answer to a head has no such field.
        answer.headers.insert("x-amz-tagging-count", object.head.tags.len().into());
    }
    crate::native::point(&object, &mut answer.headers);
    Ok(answer)
}

/// Removes an object, puts a marker over it where versions are kept, or removes one version.
pub async fn delete_object(
    face: &Face,
    req: S3Request<DeleteObjectInput>,
) -> S3Result<S3Response<DeleteObjectOutput>> {
    let input = req.input;
    let bypass = input.bypass_governance_retention.unwrap_or(false);
    let condition = condition(input.if_match.as_ref(), None)?;
    let version = input.version_id.as_deref();
    let outcome = delete(face, (&input.bucket, &input.key, version), condition, bypass).await?;
    let (version_id, marker) = deleted(outcome);
    let delete_marker = marker.then_some(true);
    Ok(S3Response::new(DeleteObjectOutput { delete_marker, version_id, ..Default::default() }))
}

/// Deletes a key, or one version of it, if the condition holds.
async fn delete(
    face: &Face,
    (bucket, key, version): (&str, &str, Option<&str>),
    condition: Condition,
    bypass: bool,
) -> S3Result<Outcome> {
    let Some(version) = version else {
        return face.blobs.delete(bucket, key, condition).await.or_s3();
    };
    if let Some(wanted) = condition.if_match {
        // A version stays what it is: what holds now holds when it is deleted.
        let found = face.blobs.object(bucket, key, Some(version)).or_s3()?;
        if wanted != "*" && wanted != found.etag {
            return Err(crate::errors::s3_failure(Failure::Refused(Refusal::PreconditionFailed)));
        }
    }
    face.blobs.delete_version(bucket, key, version, bypass).await.or_s3()
}

fn deleted(outcome: Outcome) -> (Option<String>, bool) {
    match outcome {
        Outcome::Deleted { version, marker } => (version, marker),
        _ => (None, false),
    }
}

/// Removes up to a thousand, each with its own outcome.
pub async fn delete_objects(
    face: &Face,
    req: S3Request<DeleteObjectsInput>,
) -> S3Result<S3Response<DeleteObjectsOutput>> {
    const KEYS_MAX: usize = 1000;
    let caller = caller(&req);
    let note = req.extensions.get::<Note>().cloned();
    let input = req.input;
    let bypass = input.bypass_governance_retention.unwrap_or(false);
    if input.delete.objects.is_empty() || input.delete.objects.len() > KEYS_MAX {
        return Err(s3_error!(MalformedXML, "name 1 to {KEYS_MAX} keys"));
    }
    for object in &input.delete.objects {
        // Before anything is deleted.
        if object.key.is_empty() {
            return Err(s3_error!(MalformedXML, "a key to delete has no bytes"));
        }
        refuse(&[
            (object.last_modified_time.is_some(), "`LastModifiedTime` of a key to delete"),
            (object.size.is_some(), "`Size` of a key to delete"),
        ])?;
    }
    let (mut gone, mut errors) = (Vec::new(), Vec::new());
    for object in input.delete.objects {
        let ObjectIdentifier { key, version_id, e_tag, .. } = object;
        let asked = Asked {
            operation: "DeleteObject",
            bucket: &input.bucket,
            key: &key,
            version: version_id.as_deref(),
            headers: &req.headers,
            uri: &req.uri,
            tags: &[],
        };
        let allowed = face.access.check_one(&caller, &asked);
        let done = match allowed {
            Err(e) => Err(e),
            // Those in a path the library refuses.
            Ok(()) if key.len() > KEY_BYTES_MAX => {
                Err(s3_error!(KeyTooLongError, "a key has {KEY_BYTES_MAX} bytes at most"))
            }
            Ok(()) => {
                let if_match = e_tag.map(|etag| etag.value().to_owned());
                let condition = Condition { if_match, if_absent: false };
                let place = (&*input.bucket, &*key, version_id.as_deref());
                delete(face, place, condition, bypass).await
            }
        };
        match done {
            Ok(outcome) => {
                let (version, marker) = deleted(outcome);
                gone.push(DeletedObject {
                    delete_marker: marker.then_some(true),
                    delete_marker_version_id: version.filter(|_| marker),
                    key: Some(key),
                    version_id,
                });
            }
            Err(e) => errors.push(Error {
                code: Some(e.code().as_str().to_owned()),
                key: Some(key),
                message: e.message().map(str::to_owned),
                version_id,
            }),
        }
    }
    if let Some(note) = note {
        let said = |text: &'_ Option<String>| text.clone().unwrap_or_default();
        let gone: Vec<String> = gone.iter().map(|one| said(&one.key)).collect();
        let kept: Vec<_> = errors.iter().map(|one| (said(&one.key), said(&one.code))).collect();
        let kept = kept.iter().map(|(key, code)| (key.as_str(), code.as_str()));
        note.removed(gone.iter().map(String::as_str), kept);
    }
    let quiet = input.delete.quiet.unwrap_or(false);
    Ok(S3Response::new(DeleteObjectsOutput {
        deleted: Some(gone).filter(|_| !quiet),
        errors: Some(errors).filter(|errors| !errors.is_empty()),
        ..Default::default()
    }))
}

/// What is known of an object beside its bytes, as far as it is asked for.
pub async fn get_object_attributes(
    face: &Face,
    req: S3Request<GetObjectAttributesInput>,
) -> S3Result<S3Response<GetObjectAttributesOutput>> {
    let input = req.input;
    let object = visible(face, &input.bucket, &input.key, input.version_id.as_deref())?;
    let asked = |name: &str| {
        // Some clients name several in one header.
        let mut all = input.object_attributes.iter().flat_map(|a| a.as_str().split(','));
        all.any(|a| a.trim() == name)
    };
    let sums = sums(&object.head.checksums);
    let checksum = Checksum {
        checksum_crc32: sums.crc32,
        checksum_crc32c: sums.crc32c,
        checksum_crc64nvme: sums.crc64nvme,
        checksum_sha1: sums.sha1,
        checksum_sha256: sums.sha256,
        checksum_type: sums.kind,
    };
    let after = input.part_number_marker.unwrap_or(0).max(0);
    let max = input.max_parts.unwrap_or(1000).clamp(0, 1000);
    let listed = object.parts.iter().zip(1..).filter(|(_, number)| *number > after);
    let parts: Vec<ObjectPart> = listed
        .take(max as usize)
        .map(|(size, number)| ObjectPart {
            part_number: Some(number),
            size: Some(*size as i64),
            ..Default::default()
        })
        .collect();
    let last = parts.last().and_then(|part| part.part_number).unwrap_or(after);
    let object_parts = GetObjectAttributesParts {
        is_truncated: Some((last as usize) < object.parts.len()),
        max_parts: Some(max),
        next_part_number_marker: Some(last),
        part_number_marker: Some(after),
        parts: Some(parts),
        total_parts_count: Some(object.parts.len() as i32),
    };
    let multipart = !object.parts.is_empty();
    Ok(S3Response::new(GetObjectAttributesOutput {
        checksum: Some(checksum)
            .filter(|_| asked(ObjectAttributes::CHECKSUM) && !object.head.checksums.is_empty()),
        e_tag: etag(&object).filter(|_| asked(ObjectAttributes::ETAG)),
        last_modified: Some(timestamp(object.modified_ms)),
        object_parts: Some(object_parts)
            .filter(|_| multipart && asked(ObjectAttributes::OBJECT_PARTS)),
        object_size: Some(object.size as i64).filter(|_| asked(ObjectAttributes::OBJECT_SIZE)),
        storage_class: asked(ObjectAttributes::STORAGE_CLASS)
            .then(|| StorageClass::from_static(StorageClass::STANDARD)),
        version_id: version_id(&object),
        ..Default::default()
    }))
}

/// The algorithm that a multipart upload was begun with.
pub fn algorithm(name: Option<&ChecksumAlgorithm>) -> S3Result<Option<Algorithm>> {
    let Some(name) = name else { return Ok(None) };
    match Algorithm::parse(name.as_str()) {
        Some(algorithm) => Ok(Some(algorithm)),
        None => Err(s3_error!(InvalidRequest, "checksum `{}` is not known", name.as_str())),
    }
}
