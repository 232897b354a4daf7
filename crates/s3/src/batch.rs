//! Batched uploads: a put of a tar archive that says `x-amz-meta-snowball-auto-extract: true` (AWS
//! Snowball's way, MinIO's too) becomes one object a file. Files that are small go into one durable
//! append together, as in Haystack's multi-write; the request's cost is shared by all of them.

use crate::access::{Asked, Caller};
use crate::errors::OrS3;
use crate::hash::{hex, md5_of};
use crate::incoming::{self, Incoming, Sink};
use crate::photos;
use crate::scale::PhotoSizes;
use crate::service::Face;
use holdfast_blob::{BatchObject, Bucket, NEEDLE_DATA_BYTES, NewObject, Pair, Writer};
use hyper::{HeaderMap, Uri};
use s3s::dto::{ETag, PutObjectOutput};
use s3s::{S3Response, S3Result, s3_error};
use std::io::Read;

const EXTRACT: &str = "snowball-auto-extract";
/// What is put in front of the names in the archive.
const PREFIXES: [&str; 2] = ["minio-snowball-prefix", "snowball-prefix"];
/// Of one archive: it is in memory.
pub const ARCHIVE_BYTES_MAX: u64 = 64 << 20;
/// Objects of one archive.
const OBJECTS_MAX: usize = 10_000;
/// Of one append: more is several.
const APPEND_BYTES: usize = 4 << 20;

/// Whether user metadata asks for an archive to be taken apart.
pub fn is_asked(metadata: &[Pair]) -> bool {
    metadata.iter().any(|pair| pair.name == EXTRACT && pair.value.eq_ignore_ascii_case("true"))
}

/// A file of an archive.
struct Packed {
    key: String,
    data: Vec<u8>,
}

/// The regular files of an archive, under their keys.
fn files(archive: &[u8], prefix: &str) -> Result<Vec<Packed>, String> {
    let mut found = Vec::new();
    let broken = |e: std::io::Error| format!("the archive cannot be read as tar: {e}");
    for entry in tar::Archive::new(archive).entries().map_err(broken)? {
        let mut entry = entry.map_err(broken)?;
        if !entry.header().entry_type().is_file() {
            continue;
        }
        if found.len() == OBJECTS_MAX {
            return Err(format!("an archive holds at most {OBJECTS_MAX} files: send several"));
        }
        let path = String::from_utf8(entry.path_bytes().into_owned());
        let path = path.map_err(|_| "a name in the archive is no UTF-8".to_owned())?;
        // A size that the archive does not hold is found by reading.
        let mut data = Vec::with_capacity(entry.size().min(archive.len() as u64) as usize);
        entry.read_to_end(&mut data).map_err(broken)?;
        let path = path.strip_prefix("./").unwrap_or(&path);
        found.push(Packed { key: format!("{prefix}{path}"), data });
    }
    Ok(found)
}

/// Receives an archive and stores its files, each as `new` says and under its own name.
pub async fn extract(
    face: &Face,
    (caller, headers, uri): (&Caller, &HeaderMap, &Uri),
    bucket: (&str, &Bucket),
    mut new: NewObject,
    archive: Incoming<'_>,
) -> S3Result<S3Response<PutObjectOutput>> {
    let expected = archive.content_length.unwrap_or(ARCHIVE_BYTES_MAX as i64).max(0) as u64;
    if expected > ARCHIVE_BYTES_MAX {
        return Err(s3_error!(
            EntityTooLarge,
            "an archive has at most {ARCHIVE_BYTES_MAX} bytes: send several"
        ));
    }
    // The archive, and its files beside it.
    let _share = incoming::take(face, 2 * expected)?;
    let mut bytes = Vec::with_capacity(expected as usize);
    let hashed = archive.receive(Sink::Memory(&mut bytes), ARCHIVE_BYTES_MAX).await?;
    let is_prefix = |pair: &Pair| PREFIXES.contains(&pair.name.as_str());
    let prefix = new.head.metadata.iter().find(|pair| is_prefix(pair));
    let prefix = prefix.map(|pair| pair.value.clone()).unwrap_or_default();
    let files = files(&bytes, &prefix).map_err(|why| s3_error!(InvalidRequest, "{why}"))?;
    drop(bytes);
    for file in &files {
        let asked = Asked {
            operation: "PutObject",
            bucket: bucket.0,
            key: &file.key,
            version: None,
            headers,
            uri,
            tags: &new.head.tags,
        };
        face.access.check_one(caller, &asked)?;
    }
    // What the archive is to become is not what its files are.
    new.head.metadata.retain(|pair| pair.name != EXTRACT && !is_prefix(pair));
    let storing = Storing { face, bucket: bucket.0, sizes: photos::sizes(bucket.1)?, new };
    storing.store(files).await?;
    let e_tag = Some(ETag::Strong(hashed.etag()));
    Ok(S3Response::new(PutObjectOutput { e_tag, ..Default::default() }))
}

/// Files on their way from an archive into a bucket.
struct Storing<'a> {
    face: &'a Face,
    bucket: &'a str,
    sizes: Option<PhotoSizes>,
    /// What is said of each.
    new: NewObject,
}

impl Storing<'_> {
    async fn store(&self, files: Vec<Packed>) -> S3Result<()> {
        let total = files.len();
        let mut failed = Vec::new();
        let (mut batch, mut bytes) = (Vec::new(), 0);
        for file in files {
            let key = file.key.clone();
            let object = match self.described(file).await {
                Ok(object) => object,
                Err(e) => {
                    failed.push(format!("`{key}`: {}", e.message().unwrap_or_default()));
                    continue;
                }
            };
            let taken = object.data.len()
                + object.new.alternates.iter().map(|one| one.bytes.len()).sum::<usize>();
            if bytes + taken > APPEND_BYTES {
                self.append(std::mem::take(&mut batch), &mut failed).await?;
                bytes = 0;
            }
            if object.data.len() > NEEDLE_DATA_BYTES {
                let BatchObject { key, data, new } = object;
                let size = data.len() as u64;
                let mut writer = Writer::new(&self.face.blobs, self.bucket, &key, size);
                writer.write(&data).await.or_s3()?;
                writer.finish(new).await.or_s3()?;
                continue;
            }
            bytes += taken;
            batch.push(object);
        }
        self.append(batch, &mut failed).await?;
        match failed.first() {
            None => Ok(()),
            Some(first) => Err(s3_error!(
                InvalidRequest,
                "{} of the archive's {total} files were not stored, the others were; the first: {first}",
                failed.len()
            )),
        }
    }

    async fn described(&self, file: Packed) -> S3Result<BatchObject> {
        photos::check_bytes(&self.sizes, file.data.len() as u64)?;
        let alternates = self.face.scalers.scale(self.sizes.clone(), || file.data.clone()).await?;
        let etag = hex(&md5_of(&file.data));
        let new = NewObject { etag, alternates, ..self.new.clone() };
        Ok(BatchObject { key: file.key, data: file.data, new })
    }

    async fn append(&self, batch: Vec<BatchObject>, failed: &mut Vec<String>) -> S3Result<()> {
        let keys: Vec<String> = batch.iter().map(|one| one.key.clone()).collect();
        let stored = self.face.blobs.put_batch(self.bucket, batch).await.or_s3()?;
        for (key, stored) in keys.into_iter().zip(stored) {
            if let Err(e) = stored {
                failed.push(format!("`{key}`: {}", holdfast_base::Error::from(e).message));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (name, data) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(data.len() as u64);
            header.set_mode(0o644);
            builder.append_data(&mut header, name, *data).unwrap();
        }
        builder.into_inner().unwrap()
    }

    #[test]
    fn files_come_out_under_their_keys() {
        let long = format!("{}/x.jpg", "d".repeat(300));
        let packed = archive(&[("a.txt", b"one"), ("b/ü.txt", b""), (&long, &[7; 2000])]);
        let found = files(&packed, "in/").unwrap();
        let keys: Vec<&str> = found.iter().map(|one| one.key.as_str()).collect();
        assert_eq!(keys, ["in/a.txt", "in/b/ü.txt", &format!("in/{long}")]);
        assert_eq!(found[0].data, b"one");
        assert_eq!(found[2].data, [7; 2000]);
    }

    #[test]
    fn an_archive_that_is_none_or_breaks_off_is_refused() {
        assert!(files(&[b'x'; 2048], "").is_err());
        let packed = archive(&[("a", &[1; 5000])]);
        assert!(files(&packed[..3000], "").is_err());
        assert!(files(b"", "").unwrap().is_empty());
    }
}
