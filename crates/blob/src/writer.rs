//! Receives an object or a part piece by piece. Pieces are stored as they fill; each is held in the
//! log, so that compaction leaves it alone until the whole is named. Dropped before that, it gives
//! everything back.

use crate::command::{Command, Condition, Refusal};
use crate::model::{Extent, Head, Lock, Object, Pair, Part, Versioning};
use crate::needle::Trailer;
use crate::service::{Answer, Blobs, named};
use crate::{EXTENTS_MAX, NEEDLE_DATA_BYTES};
use std::sync::Arc;

/// What is known of an object when its last byte has come.
#[derive(Clone, Debug, Default)]
pub struct NewObject {
    pub head: Head,
    pub etag: String,
    pub lock: Option<Lock>,
    pub hold: bool,
    pub condition: Condition,
}

/// An object or part that is being received.
pub struct Writer {
    blobs: Arc<Blobs>,
    bucket: String,
    key: String,
    buffer: Vec<u8>,
    size: u64,
    /// 0 until a piece was stored.
    hold: u64,
    extents: Vec<Extent>,
}

/// A description's bytes, but for what a client says in it.
const DESCRIPTION_BYTES: usize = 1024;

impl Writer {
    /// `expected_bytes`: what is likely to come; decides what memory is taken at once.
    pub fn new(blobs: &Arc<Blobs>, bucket: &str, key: &str, expected_bytes: u64) -> Writer {
        let room = expected_bytes.min(NEEDLE_DATA_BYTES as u64) as usize + DESCRIPTION_BYTES;
        Writer {
            blobs: blobs.clone(),
            bucket: bucket.to_owned(),
            key: key.to_owned(),
            buffer: Vec::with_capacity(room),
            size: 0,
            hold: 0,
            extents: Vec::new(),
        }
    }

    pub async fn write(&mut self, mut bytes: &[u8]) -> Answer<()> {
        self.size += bytes.len() as u64;
        while !bytes.is_empty() {
            if self.buffer.len() == NEEDLE_DATA_BYTES {
                self.store_piece().await?;
            }
            let room = NEEDLE_DATA_BYTES - self.buffer.len();
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.buffer.extend_from_slice(now);
            bytes = later;
        }
        Ok(())
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    async fn store_piece(&mut self) -> Answer<()> {
        if self.extents.len() == EXTENTS_MAX {
            let what = format!("an object has at most {EXTENTS_MAX} extents: use less bytes");
            return Err(Refusal::Invalid(what).into());
        }
        let (bucket, key) = (self.bucket.clone(), self.key.clone());
        let extent = self.store(&Trailer::Piece { bucket, key }).await?;
        if self.hold == 0 {
            self.hold = self.blobs.draw_id();
        }
        let (id, now_ms) = (self.hold, self.blobs.now_ms());
        self.blobs.propose(&Command::Hold { id, now_ms, extents: vec![extent] }).await?;
        self.extents.push(extent);
        Ok(())
    }

    /// Stores what was gathered with its description behind it.
    async fn store(&mut self, trailer: &Trailer) -> Answer<Extent> {
        let mut needle = std::mem::take(&mut self.buffer);
        let bytes = needle.len() as u32;
        trailer.append_to(&mut needle);
        Ok(Extent { pointer: self.blobs.store(needle).await?, bytes })
    }

    /// Names the object; it is visible, and durable, when this answers.
    pub async fn finish(mut self, new: NewObject) -> Answer<Object> {
        let object = Object {
            version: self.blobs.draw_version(),
            // The fold decides; this is for who finds the needle alone.
            null: self.blobs.bucket(&self.bucket)?.versioning() != Versioning::Enabled,
            modified_ms: self.blobs.now_ms(),
            size: self.size,
            etag: new.etag,
            head: new.head,
            extents: std::mem::take(&mut self.extents),
            lock: new.lock,
            hold: new.hold,
            ..Object::default()
        };
        let (bucket, key) = (self.bucket.clone(), self.key.clone());
        let described = object.clone();
        let whole = Trailer::Whole { bucket: bucket.clone(), key: key.clone(), object: described };
        let last = self.store(&whole).await?;
        let mut object = object;
        if last.bytes > 0 {
            object.extents.push(last);
        } else {
            object.manifest = Some(last);
        }
        let hold = self.hold;
        let condition = new.condition;
        let put = Command::Put { bucket, key, object, condition, hold };
        let object = named(self.blobs.propose(&put).await)?;
        self.hold = 0;
        Ok(object)
    }

    /// Adds what came to an upload, as its part of this number.
    pub async fn finish_part(
        mut self,
        id: u64,
        number: u16,
        etag: String,
        checksums: Vec<Pair>,
    ) -> Answer<Part> {
        let (bucket, key) = (self.bucket.clone(), self.key.clone());
        if !self.buffer.is_empty() {
            let (bucket, key) = (bucket.clone(), key.clone());
            let last = self.store(&Trailer::Piece { bucket, key }).await?;
            self.extents.push(last);
        }
        let part = Part {
            modified_ms: self.blobs.now_ms(),
            size: self.size,
            etag,
            checksums,
            extents: std::mem::take(&mut self.extents),
        };
        let hold = self.hold;
        let put = Command::PutPart { bucket, key, id, number, part: part.clone(), hold };
        self.blobs.propose(&put).await?;
        self.hold = 0;
        Ok(part)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if self.hold != 0 {
            // If this is lost, housekeeping ends the hold.
            self.blobs.propose_soon(&Command::ReleaseHold { id: self.hold });
        }
    }
}
