//! The view's core: applies the entries of the blobs topic to the index, one after another. Total
//! and deterministic: it reads rows and entries, no clock, setting or randomness; a command is
//! applied whole or refused whole. Holds no thread or lock; the applier calls it.

mod locks;
mod objects;
mod space;
mod uploads;

use crate::command::{Command, Outcome, Refusal};
use crate::model::{Bucket, ChunkUse, Document};
use crate::{BLOBS_TOPIC, rows};
use holdfast_base::checksum::crc32c;
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::error::panic_text;
use holdfast_base::ids::{ChunkId, Index};
use holdfast_base::{Error, Kind, Result, codec_struct};
use holdfast_env::planted;
use holdfast_env::rows::{Batch, Rows};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The last entry that the rows contain, and its checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    pub index: Index,
    pub entry_crc: u32,
}
codec_struct!(Position { index, entry_crc });

/// Buckets of one view: a listing of them is one answer.
pub const BUCKETS_MAX: usize = 10_000;
/// Documents of one bucket, and bytes of each.
const DOCUMENTS_MAX: usize = 32;
const DOCUMENT_BYTES_MAX: usize = 64 << 10;

/// What an entry came to, and whose it was.
#[derive(Debug)]
pub struct Applied {
    pub mark: u64,
    pub result: std::result::Result<Outcome, Refusal>,
}

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

pub struct Fold {
    index: Arc<dyn Rows>,
    position: Position,
}

impl Fold {
    pub fn open(index: Arc<dyn Rows>) -> Result<Fold> {
        let position = match index.get(rows::POSITION)? {
            Some(bytes) => decoded(&bytes, "the view's position")?,
            None => Position::default(),
        };
        Ok(Fold { index, position })
    }

    pub fn position(&self) -> Position {
        self.position
    }

    /// Applies the entry at `index`; entries that the rows contain already are passed over. An
    /// error stops the view in front of the entry; so does a panic, which has changed no row: they
    /// change by one batch, at the end.
    pub fn apply(&mut self, index: Index, entry: &[u8]) -> Result<Option<Applied>> {
        let applied = catch_unwind(AssertUnwindSafe(|| self.apply_now(index, entry)));
        applied.unwrap_or_else(|panic| {
            let named = catch_unwind(|| Command::from_entry(entry).map(|(_, c)| c.name()).ok());
            let what = named.ok().flatten().unwrap_or_else(|| format!("{} bytes", entry.len()));
            Err(Error::bug(format!(
                "apply entry {index} of topic `{BLOBS_TOPIC}` ({what}): the view panicked ({}): it \
                 stops in front of this entry, which is kept; start a build that can apply it",
                panic_text(&*panic)
            )))
        })
    }

    fn apply_now(&mut self, index: Index, entry: &[u8]) -> Result<Option<Applied>> {
        if index <= self.position.index {
            return Ok(None);
        }
        let (mark, command) = match Command::from_entry(entry) {
            Ok((mark, command)) => (mark, Ok(command)),
            Err(e) if e.kind == Kind::Unsupported => return Err(e),
            Err(e) => (0, Err(Refusal::Invalid(e.message))),
        };
        let position = Position { index, entry_crc: crc32c(entry) };
        let (mut batch, result) = match command {
            Err(refusal) => (Batch::default(), Err(refusal)),
            Ok(command) => {
                let mut change = Change::new(&*self.index);
                match change.apply(command) {
                    Ok(outcome) => (change.finish(), Ok(outcome)),
                    Err(Stop::Refused(refusal)) => (Batch::default(), Err(refusal)),
                    Err(Stop::Failed(e)) => return Err(e),
                }
            }
        };
        batch.put(rows::POSITION.to_vec(), position.to_bytes());
        self.index.write(batch)?;
        self.position = position;
        Ok(Some(Applied { mark, result }))
    }
}

pub(crate) fn decoded<T: Decode>(bytes: &[u8], what: &str) -> Result<T> {
    T::from_bytes(bytes).map_err(|e| {
        Error::corrupt(format!(
            "read {what} in the index of blobs: {e}: the next start folds it anew from the log"
        ))
    })
}

/// The rows that one command changes.
struct Change<'a> {
    index: &'a dyn Rows,
    batch: Batch,
    /// Written at the end: a command may touch a chunk many times.
    chunks: BTreeMap<ChunkId, ChunkUse>,
}

impl<'a> Change<'a> {
    fn new(index: &'a dyn Rows) -> Change<'a> {
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
        // Versions that are not current are there only below a current one.
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
