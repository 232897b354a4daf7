//! Photo buckets: an upload is scaled to the bucket's sizes on threads of their own, and a request
//! with `?size=` sees one of the pictures as if it were the object.

use crate::errors::OrS3;
use crate::hash::{hex, md5_of};
use crate::scale::{PHOTO_BYTES_MAX, PhotoSizes, scale};
use holdfast_base::Result;
use holdfast_blob::{Alternate, Bucket, Head, NewAlternate, Object};
use holdfast_env::{HoldMutex, runtime, tasks};
use hyper::Uri;
use s3s::{S3Result, s3_error};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

type Job = Box<dyn FnOnce() + Send>;

/// Threads that scale photos; they end with it. Decoding takes a core for a tenth of a second and
/// more, and the threads that serve have others to serve.
pub struct Scalers {
    jobs: Sender<Job>,
}

impl Scalers {
    /// So many threads.
    pub fn start(threads: usize) -> Result<Scalers> {
        let (jobs, waiting) = channel::<Job>();
        let waiting = Arc::new(Mutex::new(waiting));
        for _ in 0..threads {
            let waiting = waiting.clone();
            tasks::spawn("photos", move || {
                while let Some(job) = next(&waiting) {
                    job();
                }
            })?;
        }
        Ok(Scalers { jobs })
    }

    /// The smaller pictures of an upload to a photo bucket; none in other buckets.
    pub async fn scale(
        &self,
        sizes: Option<PhotoSizes>,
        photo: impl FnOnce() -> Vec<u8>,
    ) -> S3Result<Vec<NewAlternate>> {
        let Some(sizes) = sizes else { return Ok(Vec::new()) };
        let photo = photo();
        type Scaled = std::result::Result<Vec<NewAlternate>, String>;
        let scaled = runtime::answer(|done: Box<dyn FnOnce(Scaled) + Send>| {
            let job = move || {
                let etag = |bytes: &[u8]| hex(&md5_of(bytes));
                let scale = || scale(&photo, &sizes, &etag);
                // A photo that a decoder gives up on is refused as any broken one.
                let scaled = catch_unwind(AssertUnwindSafe(scale));
                done(scaled.unwrap_or_else(|_| Err("it cannot be decoded".to_owned())));
            };
            // Whoever ends hears that there is no answer.
            let _ = self.jobs.send(Box::new(job));
        });
        match scaled.await {
            Some(Ok(made)) => Ok(made),
            Some(Err(why)) => Err(s3_error!(
                InvalidRequest,
                "the bucket keeps photos in several sizes, and this is none that can be scaled: {why}"
            )),
            None => Err(s3_error!(ServiceUnavailable, "the node is ending")),
        }
    }
}

fn next(waiting: &Mutex<Receiver<Job>>) -> Option<Job> {
    waiting.held().recv().ok()
}

/// The sizes that a bucket keeps its photos in.
pub fn sizes(bucket: &Bucket) -> S3Result<Option<PhotoSizes>> {
    let Some(text) = bucket.document(PhotoSizes::DOCUMENT) else { return Ok(None) };
    let sizes = PhotoSizes::parse(text);
    sizes.map(Some).map_err(|e| s3_error!(InternalError, "read the bucket's photo sizes: {e}"))
}

/// Whether an upload of so many bytes can be scaled at all.
pub fn check_bytes(sizes: &Option<PhotoSizes>, bytes: u64) -> S3Result<()> {
    if sizes.is_some() && bytes > PHOTO_BYTES_MAX as u64 {
        return Err(s3_error!(EntityTooLarge, "a photo has at most {PHOTO_BYTES_MAX} bytes"));
    }
    Ok(())
}

/// The whole object, or the picture that `?size=` asks for.
pub fn sized(object: Object, uri: &Uri) -> S3Result<Object> {
    let mut pairs = uri.query().unwrap_or_default().split('&');
    let Some(size) = pairs.find_map(|pair| pair.strip_prefix("size=")) else { return Ok(object) };
    let asked = size.parse().ok();
    let Some(found) = object.alternates.iter().find(|one| Some(one.size) == asked) else {
        let sizes: Vec<String> = object.alternates.iter().map(|one| one.size.to_string()).collect();
        return Err(match sizes.is_empty() {
            true => s3_error!(InvalidArgument, "the object is kept in one size only"),
            false => {
                s3_error!(InvalidArgument, "`{size}` is none of its sizes: {}", sizes.join(", "))
            }
        });
    };
    let Alternate { content_type, etag, extent, .. } = found.clone();
    let head = Head { content_type, checksums: Vec::new(), ..object.head };
    Ok(Object {
        size: extent.bytes as u64,
        etag,
        head,
        parts: Vec::new(),
        extents: vec![extent],
        manifest: None,
        alternates: Vec::new(),
        ..object
    })
}

/// Reads an object whole; for photos, whose bytes are few enough.
pub async fn read_whole(blobs: &Arc<holdfast_blob::Blobs>, object: &Object) -> S3Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(object.size as usize);
    let mut reader = blobs.reader(object, 0..object.size);
    while let Some(piece) = reader.next().await {
        bytes.extend_from_slice(piece.or_s3()?.as_slice());
    }
    Ok(bytes)
}
