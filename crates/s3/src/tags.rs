//! Tags of objects and buckets.

use crate::client::{element, elements};
use crate::errors::OrS3;
use crate::objects::{version_id, visible};
use crate::service::Face;
use holdfast_blob::{Head, Pair};
use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result, s3_error};

/// The document of a bucket's tags.
const TAGS: &str = "tagging";
const OBJECT_TAGS_MAX: usize = 10;
const BUCKET_TAGS_MAX: usize = 50;
const KEY_CHARS_MAX: usize = 128;
const VALUE_CHARS_MAX: usize = 256;

/// A set: each name once. Kept in order of the names.
fn set_of(mut tags: Vec<Pair>, max: usize) -> S3Result<Vec<Pair>> {
    tags.sort_by(|a, b| a.name.cmp(&b.name));
    if tags.len() > max {
        return Err(s3_error!(InvalidTag, "there are at most {max} tags"));
    }
    for (at, tag) in tags.iter().enumerate() {
        let long =
            tag.name.chars().count() > KEY_CHARS_MAX || tag.value.chars().count() > VALUE_CHARS_MAX;
        let twice = tags[..at].last().is_some_and(|before| before.name == tag.name);
        if tag.name.is_empty() || long || twice {
            return Err(s3_error!(
                InvalidTag,
                "a tag is named once, in 1 to {KEY_CHARS_MAX} characters, and has at most {VALUE_CHARS_MAX}"
            ));
        }
    }
    Ok(tags)
}

fn pairs(tagging: Tagging, max: usize) -> S3Result<Vec<Pair>> {
    let pair = |tag: Tag| Pair::new(tag.key.unwrap_or_default(), tag.value.unwrap_or_default());
    set_of(tagging.tag_set.into_iter().map(pair).collect(), max)
}

fn shown(pairs: &[Pair]) -> Vec<Tag> {
    let tag = |p: &Pair| Tag { key: Some(p.name.clone()), value: Some(p.value.clone()) };
    pairs.iter().map(tag).collect()
}

/// An object's tags, within S3's limits.
pub fn of_object(tagging: Tagging) -> S3Result<Vec<Pair>> {
    pairs(tagging, OBJECT_TAGS_MAX)
}

/// `a=b&c=d`, percent-encoded.
pub fn parse_header(text: Option<&str>) -> S3Result<Vec<Pair>> {
    let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(Vec::new()) };
    let tags: Vec<Pair> = text
        .split('&')
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Some(Pair::new(percent_decode(name)?, percent_decode(value)?))
        })
        .collect::<Option<_>>()
        .ok_or_else(|| s3_error!(InvalidArgument, "x-amz-tagging is not `NAME=VALUE&...`"))?;
    set_of(tags, OBJECT_TAGS_MAX)
}

/// A form's `tagging` field: the document of PutObjectTagging.
pub fn of_form(text: Option<&str>) -> S3Result<Vec<Pair>> {
    let Some(text) = text else { return Ok(Vec::new()) };
    let tags = elements(text, "Tag");
    let pair = |tag: &&str| Some(Pair::new(element(tag, "Key")?, element(tag, "Value")?));
    let tags: Option<Vec<Pair>> = tags.iter().map(pair).collect();
    let tags = tags.filter(|_| text.contains("<TagSet"));
    let tags = tags.ok_or_else(|| s3_error!(MalformedXML, "`tagging` is not a set of tags"))?;
    set_of(tags, OBJECT_TAGS_MAX)
}

/// Text from its percent-encoded form; nothing for what is not UTF-8, or half an escape.
pub fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'+' => bytes.push(b' '),
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                bytes.extend(crate::hash::decode_hex(std::str::from_utf8(&digits).ok()?)?);
            }
            byte => bytes.push(byte),
        }
    }
    String::from_utf8(bytes).ok()
}

async fn set(
    face: &Face,
    bucket: &str,
    key: &str,
    version: Option<&str>,
    tags: Vec<Pair>,
) -> S3Result<Option<String>> {
    let object = visible(face, bucket, key, version)?;
    let head = Head { tags, ..object.head.clone() };
    face.blobs.set_head(bucket, key, &object, head).await.or_s3()?;
    Ok(version_id(&object))
}

/// A version's tags.
pub async fn get_object_tagging(
    face: &Face,
    req: S3Request<GetObjectTaggingInput>,
) -> S3Result<S3Response<GetObjectTaggingOutput>> {
    let input = req.input;
    let object = visible(face, &input.bucket, &input.key, input.version_id.as_deref())?;
    let tag_set = shown(&object.head.tags);
    Ok(S3Response::new(GetObjectTaggingOutput { tag_set, version_id: version_id(&object) }))
}

/// Replaces a version's tags.
pub async fn put_object_tagging(
    face: &Face,
    req: S3Request<PutObjectTaggingInput>,
) -> S3Result<S3Response<PutObjectTaggingOutput>> {
    let input = req.input;
    let tags = of_object(input.tagging)?;
    let version_id =
        set(face, &input.bucket, &input.key, input.version_id.as_deref(), tags).await?;
    Ok(S3Response::new(PutObjectTaggingOutput { version_id }))
}

/// Removes a version's tags.
pub async fn delete_object_tagging(
    face: &Face,
    req: S3Request<DeleteObjectTaggingInput>,
) -> S3Result<S3Response<DeleteObjectTaggingOutput>> {
    let input = req.input;
    let version = input.version_id.as_deref();
    let version_id = set(face, &input.bucket, &input.key, version, Vec::new()).await?;
    Ok(S3Response::new(DeleteObjectTaggingOutput { version_id }))
}

/// A bucket's tags.
pub async fn get_bucket_tagging(
    face: &Face,
    req: S3Request<GetBucketTaggingInput>,
) -> S3Result<S3Response<GetBucketTaggingOutput>> {
    let tags: Option<Vec<Tag>> = crate::settings::document(face, &req.input.bucket, TAGS)?;
    let tag_set = tags.ok_or_else(|| s3_error!(NoSuchTagSet, "the bucket has no tags"))?;
    Ok(S3Response::new(GetBucketTaggingOutput { tag_set }))
}

/// Replaces a bucket's tags.
pub async fn put_bucket_tagging(
    face: &Face,
    req: S3Request<PutBucketTaggingInput>,
) -> S3Result<S3Response<PutBucketTaggingOutput>> {
    let input = req.input;
    let tags = shown(&pairs(input.tagging, BUCKET_TAGS_MAX)?);
    crate::settings::set_document(face, &input.bucket, TAGS, Some(&tags)).await?;
    Ok(S3Response::new(PutBucketTaggingOutput {}))
}

/// Removes a bucket's tags.
pub async fn delete_bucket_tagging(
    face: &Face,
    req: S3Request<DeleteBucketTaggingInput>,
) -> S3Result<S3Response<DeleteBucketTaggingOutput>> {
    crate::settings::set_document::<()>(face, &req.input.bucket, TAGS, None).await?;
    Ok(S3Response::new(DeleteBucketTaggingOutput {}))
}
