//! The view's core: what each command of the blobs topic changes in the index. Total and
//! deterministic: it reads rows and commands, no clock, setting or randomness; a command is applied
//! whole or refused whole. Holds no thread or lock, and does not know how many entries it has seen:
//! the fold, which is the same for all views, calls it and counts.

mod locks;
mod objects;
mod space;
mod uploads;

use crate::command::{BARE_VERSION, Command, Outcome, Refusal};
use crate::model::{Bucket, ChunkUse, Document};
use crate::{answer, rows};
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::ids::{ChunkId, Index};
use holdfast_base::{Error, Kind, Reason, Result};
use holdfast_env::planted;
use holdfast_env::rows::Batch;
use holdfast_view::{Applied, Page, RowsView};
use std::collections::BTreeMap;

/// The most buckets of one view: S3 lists them in one answer, without pages.
pub const BUCKETS_MAX: usize = 10_000;
/// Documents of one bucket, and bytes of each.
const DOCUMENTS_MAX: usize = 32;
const DOCUMENT_BYTES_MAX: usize = 64 << 10;

/// Ends a command: by its refusal, or because rows cannot be read.
pub(crate) enum Stop {
    Refused(Refusal),
    Failed(Error),
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Stop {
        Stop::Refused(refusal)
    }
}

impl From<Error> for Stop {
    fn from(e: Error) -> Stop {
        Stop::Failed(e)
    }
}

pub(crate) type Step<T = ()> = std::result::Result<T, Stop>;

/// The names of blobs: a view kept in rows ([`holdfast_view::InRows`]).
pub struct Names;

impl RowsView for Names {
    const NAME: &'static str = "blobs";
    const VERSION: u32 = 1;
    const BARE: Option<u8> = Some(BARE_VERSION);

    fn apply(rows: &Page<'_>, _: Index, command: &[u8], changes: &mut Batch) -> Result<Applied> {
        let command = match Command::from_command(command) {
            Ok(command) => command,
            Err(e) if e.kind == Kind::Unsupported => return Ok(Applied::UnknownVersion(e.message)),
            Err(e) => return Ok(Applied::Refused(e)),
        };
        let mut change = Change::new(rows);
        match change.apply(command) {
            Ok(outcome) => {
                *changes = change.finish();
                Ok(answer::applied(Ok(outcome)))
            }
            Err(Stop::Refused(refusal)) => Ok(answer::applied(Err(refusal))),
            Err(Stop::Failed(e)) => Err(e),
        }
    }

    fn describe(command: &[u8]) -> String {
        let named = Command::from_command(command).map(|command| command.name());
        named.unwrap_or_else(|_| format!("{} bytes", command.len()))
    }
}

pub(crate) fn decoded<T: Decode>(bytes: &[u8], what: &str) -> Result<T> {
    T::from_bytes(bytes).map_err(|e| {
        Error::corrupt(format!(
            "read {what} in the index of blobs: {e}: the next start folds it anew from the log"
        ))
        .because(Reason::Rows)
    })
}

/// Bytes of an access key, as S3 has it.
const ACCESS_KEY_BYTES_MAX: usize = 128;

/// The rows that one command changes: collected, and written only if nothing refuses it.
struct Change<'a> {
    index: &'a Page<'a>,
    batch: Batch,
    /// Written at the end: a command may touch a chunk many times.
    chunks: BTreeMap<ChunkId, ChunkUse>,
}

impl<'a> Change<'a> {
    fn new(index: &'a Page<'a>) -> Change<'a> {
        Change { index, batch: Batch::default(), chunks: BTreeMap::new() }
    }

    fn finish(mut self) -> Batch {
        for (chunk, used) in std::mem::take(&mut self.chunks) {
            self.batch.put(rows::chunk(chunk), used.to_bytes());
        }
        self.batch
    }

    /// A row as it was before this command.
    fn row<T: Decode>(&self, row: &[u8], what: &str) -> Step<Option<T>> {
        match self.index.get(row)? {
            Some(bytes) => Ok(Some(decoded(&bytes, what)?)),
            None => Ok(None),
        }
    }

    fn put(&mut self, row: Vec<u8>, value: &impl Encode) {
        self.batch.put(row, value.to_bytes());
    }

    fn is_empty(&self, prefix: &[u8]) -> Step<bool> {
        let mut empty = true;
        self.index.scan(prefix, &rows::behind(prefix), &mut |_, _| {
            empty = false;
            Ok(false)
        })?;
        Ok(empty)
    }

    fn bucket(&self, name: &str) -> Step<Bucket> {
        self.row(&rows::bucket(name), "a bucket")?.ok_or(Stop::Refused(Refusal::NoSuchBucket))
    }

    fn apply(&mut self, command: Command) -> Step<Outcome> {
        let panics = planted!("blob.versioning-panics");
        assert!(!panics || !matches!(command, Command::SetVersioning { .. }), "planted");
        match command {
            Command::CreateBucket { name, bucket } => self.create_bucket(&name, bucket)?,
            Command::DeleteBucket { name } => self.delete_bucket(&name)?,
            Command::SetVersioning { name, versioning } => {
                self.set_versioning(&name, versioning)?;
            }
            Command::SetDocument { name, document, text } => {
                self.set_document(&name, document, text)?;
            }
            Command::Put { bucket, key, object, condition, hold } => {
                return self.put_object(&bucket, &key, object, &condition, hold);
            }
            Command::Delete { bucket, key, version, now_ms, condition } => {
                return self.delete(&bucket, &key, version, now_ms, &condition);
            }
            Command::DeleteVersion { bucket, key, version, now_ms, bypass } => {
                return self.delete_version(&bucket, &key, &version, now_ms, bypass);
            }
            Command::BeginUpload { bucket, key, id, upload } => {
                self.begin_upload(&bucket, &key, id, &upload)?;
            }
            Command::PutPart { bucket, key, id, number, part, hold } => {
                self.put_part(&bucket, &key, id, number, &part, hold)?;
            }
            command @ Command::CompleteUpload { .. } => return self.complete_upload(command),
            Command::AbortUpload { bucket, key, id } => self.abort_upload(&bucket, &key, id)?,
            Command::Hold { id, now_ms, extents } => self.hold(id, now_ms, &extents)?,
            Command::ReleaseHold { id } => self.end_hold(id, &[])?,
            Command::SetHead { bucket, key, version, head } => {
                self.set_head(&bucket, &key, &version, head)?;
            }
            Command::SetLock { bucket, key, version, lock, hold, now_ms, bypass } => {
                self.set_lock(&bucket, &key, &version, (lock, hold), now_ms, bypass)?;
            }
            Command::CloseChunk { chunk } => self.chunk(chunk)?.closed = true,
            Command::ForgetChunk { chunk } => self.forget_chunk(chunk)?,
            Command::SetAccessKey { name, key: Some(key) } => {
                if !(1..=ACCESS_KEY_BYTES_MAX).contains(&name.len()) {
                    return Err(
                        Refusal::Invalid("the access key is empty or too long".into()).into()
                    );
                }
                self.put(rows::access_key(&name), &key);
            }
            Command::SetAccessKey { name, key: None } => {
                self.batch.remove(rows::access_key(&name));
            }
        }
        Ok(Outcome::Done)
    }

    fn create_bucket(&mut self, name: &str, bucket: Bucket) -> Step {
        if name.is_empty() || name.len() > 255 || name.as_bytes().contains(&0) {
            return Err(Refusal::Invalid(
                "the bucket's name is empty, too long or holds a zero byte".into(),
            )
            .into());
        }
        if self.index.get(&rows::bucket(name))?.is_some() {
            return Err(Refusal::BucketExists.into());
        }
        let mut count = 0;
        self.index.scan(&[rows::BUCKET], &[rows::BUCKET + 1], &mut |_, _| {
            count += 1;
            Ok(count < BUCKETS_MAX)
        })?;
        if count >= BUCKETS_MAX {
            let what = format!("there are {BUCKETS_MAX} buckets already: remove one");
            return Err(Refusal::Invalid(what).into());
        }
        self.put(rows::bucket(name), &bucket);
        Ok(())
    }

    fn delete_bucket(&mut self, name: &str) -> Step {
        self.bucket(name)?;
        // A key without a current version has no older ones either: two look-ups see everything.
        if !self.is_empty(&rows::currents(name))? || !self.is_empty(&rows::uploads(name))? {
            return Err(Refusal::BucketNotEmpty.into());
        }
        self.batch.remove(rows::bucket(name));
        Ok(())
    }

    fn set_versioning(&mut self, name: &str, versioning: u8) -> Step {
        let mut bucket = self.bucket(name)?;
        if bucket.lockable && versioning != 1 {
            let what = "versioning of a bucket with object lock cannot be suspended";
            return Err(Refusal::Invalid(what.into()).into());
        }
        bucket.versioning = versioning;
        self.put(rows::bucket(name), &bucket);
        Ok(())
    }

    fn set_document(&mut self, name: &str, document: String, text: Option<String>) -> Step {
        let mut bucket = self.bucket(name)?;
        bucket.documents.retain(|d| d.name != document);
        if let Some(text) = text {
            if text.len() > DOCUMENT_BYTES_MAX || bucket.documents.len() >= DOCUMENTS_MAX {
                let what = format!(
                    "a bucket has at most {DOCUMENTS_MAX} documents of {DOCUMENT_BYTES_MAX} bytes"
                );
                return Err(Refusal::Invalid(what).into());
            }
            bucket.documents.push(Document { name: document, text });
        }
        self.put(rows::bucket(name), &bucket);
        Ok(())
    }
}
