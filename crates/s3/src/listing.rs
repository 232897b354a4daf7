//! Listings of keys and versions.

use crate::buckets::{owner, timestamp};
use crate::errors::OrS3;
use crate::hash::{decode_base64, encode_base64};
use crate::objects::etag;
use crate::service::Face;
use holdfast_blob::{ListQuery, VersionMarker, version_name};
use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result, s3_error};

/// Keys of one page.
const KEYS_MAX: i32 = 1000;

/// As the client wants names: percent-encoded, if it says so.
pub fn encoded(name: String, encoding: Option<&EncodingType>) -> String {
    if encoding.is_none_or(|encoding| encoding.as_str() != EncodingType::URL) {
        return name;
    }
    percent_encode(&name, b"-_.~/*")
}

/// Percent-encodes all but letters, digits and `kept`.
pub fn percent_encode(text: &str, kept: &[u8]) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' => out.push(byte as char),
            _ if kept.contains(&byte) => out.push(byte as char),
            _ => {
                out.push('%');
                out.push_str(&crate::hash::hex(&[byte]).to_ascii_uppercase());
            }
        }
    }
    out
}

/// Common prefixes as answers list them; none instead of an empty list.
pub fn prefixes(found: Vec<String>, encoding: Option<&EncodingType>) -> Option<Vec<CommonPrefix>> {
    let prefix = |found: String| CommonPrefix { prefix: Some(encoded(found, encoding)) };
    Some(found.into_iter().map(prefix).collect::<Vec<_>>()).filter(|list| !list.is_empty())
}

/// An empty delimiter is none.
pub fn shown_delimiter(
    delimiter: Option<String>,
    encoding: Option<&EncodingType>,
) -> Option<String> {
    delimiter.filter(|d| !d.is_empty()).map(|d| encoded(d, encoding))
}

fn page(max: Option<i32>) -> S3Result<usize> {
    match max.unwrap_or(KEYS_MAX) {
        negative if negative < 0 => Err(s3_error!(InvalidArgument, "max-keys is not below 0")),
        max => Ok(max.min(KEYS_MAX) as usize),
    }
}

fn contents(
    found: Vec<(String, holdfast_blob::Object)>,
    encoding: Option<&EncodingType>,
    owner: Option<&Owner>,
) -> Vec<Object> {
    let shown = found.into_iter().map(|(key, object)| Object {
        e_tag: etag(&object),
        key: Some(encoded(key, encoding)),
        last_modified: Some(timestamp(object.modified_ms)),
        owner: owner.cloned(),
        size: Some(object.size as i64),
        storage_class: Some(ObjectStorageClass::from_static(ObjectStorageClass::STANDARD)),
        checksum_algorithm: object
            .head
            .checksums
            .first()
            .map(|sum| vec![ChecksumAlgorithm::from(sum.name.to_ascii_uppercase())]),
        ..Default::default()
    });
    shown.collect()
}

/// A page of current objects in order of their keys, continued by a token.
pub async fn list_objects_v2(
    face: &Face,
    req: S3Request<ListObjectsV2Input>,
) -> S3Result<S3Response<ListObjectsV2Output>> {
    let input = req.input;
    let owner = owner(&face.blobs.bucket(&input.bucket).or_s3()?.owner);
    let max = page(input.max_keys)?;
    let after = match input.continuation_token.as_ref().filter(|token| !token.is_empty()) {
        None => input.start_after.clone().unwrap_or_default(),
        Some(token) => {
            let key = decode_base64(token).and_then(|key| String::from_utf8(key).ok());
            key.ok_or_else(|| {
                s3_error!(InvalidArgument, "the continuation token is not one of ours")
            })?
        }
    };
    let query = ListQuery {
        prefix: input.prefix.clone().unwrap_or_default(),
        delimiter: input.delimiter.clone().unwrap_or_default(),
        after,
        max,
    };
    let listing = face.blobs.list(&input.bucket, &query).or_s3()?;
    let url = input.encoding_type.as_ref();
    let owner = Some(&owner).filter(|_| input.fetch_owner.unwrap_or(false));
    let count = listing.objects.len() + listing.prefixes.len();
    // A page of none goes nowhere.
    let next = listing.next.filter(|_| max > 0);
    Ok(S3Response::new(ListObjectsV2Output {
        contents: Some(contents(listing.objects, url, owner)).filter(|list| !list.is_empty()),
        common_prefixes: prefixes(listing.prefixes, url),
        is_truncated: Some(next.is_some()),
        next_continuation_token: next.map(|next| encode_base64(next.as_bytes())),
        key_count: Some(count as i32),
        max_keys: Some(max as i32),
        name: Some(input.bucket),
        prefix: Some(encoded(input.prefix.unwrap_or_default(), url)),
        delimiter: shown_delimiter(input.delimiter, url),
        start_after: input.start_after.map(|s| encoded(s, url)),
        continuation_token: input.continuation_token,
        encoding_type: input.encoding_type,
        ..Default::default()
    }))
}

/// As [`list_objects_v2`] in S3's older form, continued by the last key.
pub async fn list_objects(
    face: &Face,
    req: S3Request<ListObjectsInput>,
) -> S3Result<S3Response<ListObjectsOutput>> {
    let input = req.input;
    let owner = owner(&face.blobs.bucket(&input.bucket).or_s3()?.owner);
    let max = page(input.max_keys)?;
    let query = ListQuery {
        prefix: input.prefix.clone().unwrap_or_default(),
        delimiter: input.delimiter.clone().unwrap_or_default(),
        after: input.marker.clone().unwrap_or_default(),
        max,
    };
    let listing = face.blobs.list(&input.bucket, &query).or_s3()?;
    let url = input.encoding_type.as_ref();
    let next = listing.next.filter(|_| max > 0);
    let truncated = next.is_some();
    Ok(S3Response::new(ListObjectsOutput {
        contents: Some(contents(listing.objects, url, Some(&owner)))
            .filter(|list| !list.is_empty()),
        common_prefixes: prefixes(listing.prefixes, url),
        is_truncated: Some(truncated),
        // Without a delimiter the last key is the marker.
        next_marker: next.filter(|_| !query.delimiter.is_empty()).map(|next| encoded(next, url)),
        max_keys: Some(max as i32),
        name: Some(input.bucket),
        prefix: Some(encoded(input.prefix.unwrap_or_default(), url)),
        marker: Some(encoded(input.marker.unwrap_or_default(), url)),
        delimiter: shown_delimiter(input.delimiter, url),
        encoding_type: input.encoding_type,
        ..Default::default()
    }))
}

/// A page of all versions and delete markers, by key and newest first.
pub async fn list_object_versions(
    face: &Face,
    req: S3Request<ListObjectVersionsInput>,
) -> S3Result<S3Response<ListObjectVersionsOutput>> {
    let input = req.input;
    let owner = owner(&face.blobs.bucket(&input.bucket).or_s3()?.owner);
    let max = page(input.max_keys)?;
    let query = ListQuery {
        prefix: input.prefix.clone().unwrap_or_default(),
        delimiter: input.delimiter.clone().unwrap_or_default(),
        max,
        ..ListQuery::default()
    };
    let after = VersionMarker {
        key: input.key_marker.clone().unwrap_or_default(),
        version: input.version_id_marker.clone().unwrap_or_default(),
    };
    if after.key.is_empty() && !after.version.is_empty() {
        return Err(s3_error!(InvalidArgument, "a version-id-marker goes with a key-marker"));
    }
    let listing = face.blobs.list_versions(&input.bucket, &query, &after).or_s3()?;
    let url = input.encoding_type.as_ref();
    let (mut versions, mut markers) = (Vec::new(), Vec::new());
    for (key, object, current) in listing.versions {
        let (key, last_modified) = (Some(encoded(key, url)), Some(timestamp(object.modified_ms)));
        let (is_latest, version_id) = (Some(current), Some(version_name(&object)));
        if object.marker {
            let owner = Some(owner.clone());
            markers.push(DeleteMarkerEntry { is_latest, key, last_modified, owner, version_id });
        } else {
            versions.push(ObjectVersion {
                e_tag: etag(&object),
                is_latest,
                key,
                last_modified,
                owner: Some(owner.clone()),
                size: Some(object.size as i64),
                storage_class: Some(ObjectVersionStorageClass::from_static(
                    ObjectVersionStorageClass::STANDARD,
                )),
                version_id,
                ..Default::default()
            });
        }
    }
    let next = listing.next.filter(|_| max > 0);
    Ok(S3Response::new(ListObjectVersionsOutput {
        versions: Some(versions).filter(|list| !list.is_empty()),
        delete_markers: Some(markers).filter(|list| !list.is_empty()),
        common_prefixes: prefixes(listing.prefixes, url),
        is_truncated: Some(next.is_some()),
        next_version_id_marker: next
            .as_ref()
            .map(|next| next.version.clone())
            .filter(|v| !v.is_empty()),
        next_key_marker: next.map(|next| encoded(next.key, url)),
        max_keys: Some(max as i32),
        name: Some(input.bucket),
        prefix: Some(encoded(input.prefix.unwrap_or_default(), url)),
        key_marker: Some(encoded(input.key_marker.unwrap_or_default(), url)),
        version_id_marker: input.version_id_marker,
        delimiter: shown_delimiter(input.delimiter, url),
        encoding_type: input.encoding_type,
        ..Default::default()
    }))
}
