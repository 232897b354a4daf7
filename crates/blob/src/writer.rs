//! Receives an object or a part piece by piece, or several small objects at once. Pieces are stored as they fill; each is held in the
//! log, so that compaction leaves it alone until the whole is named. Dropped before that, it gives
//! everything back.

use crate::command::{Command, Condition, Refusal};
use crate::model::{Alternate, Head, Lock, Object, ObjectExtent, Pair, Part, Versioning};
use crate::needle::Trailer;
use crate::service::{Answer, Blobs, named};
use crate::{EXTENTS_MAX, NEEDLE_DATA_BYTES};
use holdfast_base::Error;
use holdfast_base::ids::Pointer;
use std::sync::Arc;

/// What is known of an object when its last byte has come.
#[derive(Clone, Debug, Default)]
pub struct NewObject {
    pub head: Head,
    pub etag: String,
    pub lock: Option<Lock>,
    pub hold: bool,
    pub condition: Condition,
    /// Stored with it, in one append.
    pub alternates: Vec<NewAlternate>,
}

/// A smaller picture of a photo, with its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewAlternate {
    pub size: u32,
    pub width: u32,
    pub height: u32,
    pub content_type: String,
    pub etag: String,
    pub bytes: Vec<u8>,
}

impl NewAlternate {
    /// Its needle, and what is said of it once that has a place.
    pub(crate) fn into_needle(
        self,
        (bucket, key): (&str, &str),
        version: u64,
    ) -> (Vec<u8>, Alternate) {
        let NewAlternate { size, width, height, content_type, etag, mut bytes } = self;
        let extent = ObjectExtent { pointer: Pointer::default(), bytes: bytes.len() as u32 };
        let alternate = Alternate { size, width, height, content_type, etag, extent };
        let (bucket, key) = (bucket.to_owned(), key.to_owned());
        let described = alternate.clone();
        Trailer::Alternate { bucket, key, version, alternate: described }.append_to(&mut bytes);
        (bytes, alternate)
    }
}

/// A whole small object of a batch.
#[derive(Clone, Debug)]
pub struct BatchObject {
    pub key: String,
    /// At most [`NEEDLE_DATA_BYTES`].
    pub data: Vec<u8>,
    pub new: NewObject,
}

/// An object whose last needles are about to be stored.
struct Unplaced {
    bucket: String,
    key: String,
    object: Object,
    /// Of the last needle that is the object's own.
    data_bytes: u32,
    condition: Condition,
    hold: u64,
}

impl Unplaced {
    /// With the needles to store: the object's last one, which describes it, and its alternates.
    fn new(
        blobs: &Blobs,
        (bucket, key): (&str, &str),
        mut data: Vec<u8>,
        (size, extents, hold): (u64, Vec<ObjectExtent>, u64),
        new: NewObject,
    ) -> Answer<(Unplaced, Vec<Vec<u8>>)> {
        let mut object = Object {
            version: blobs.draw_version(),
            // The fold decides; this is for who finds the needle alone.
            null: blobs.bucket(bucket)?.versioning() != Versioning::Enabled,
            modified_ms: blobs.now_ms(),
            size,
            etag: new.etag,
            head: new.head,
            extents,
            lock: new.lock,
            hold: new.hold,
            ..Object::default()
        };
        let data_bytes = data.len() as u32;
        let (bucket, key) = (bucket.to_owned(), key.to_owned());
        let described = object.clone();
        Trailer::Whole { bucket: bucket.clone(), key: key.clone(), object: described }
            .append_to(&mut data);
        let mut needles = vec![data];
        for alternate in new.alternates {
            let (needle, alternate) = alternate.into_needle((&bucket, &key), object.version);
            needles.push(needle);
            object.alternates.push(alternate);
        }
        let condition = new.condition;
        Ok((Unplaced { bucket, key, object, data_bytes, condition, hold }, needles))
    }

    /// The command that names it, now that its needles are at `pointers`.
    fn placed(self, pointers: &mut impl Iterator<Item = Pointer>) -> Answer<Command> {
        let Unplaced { bucket, key, mut object, data_bytes: bytes, condition, hold } = self;
        let mut next = || pointers.next().ok_or_else(|| Error::bug("a needle has no place"));
        let last = ObjectExtent { pointer: next()?, bytes };
        if bytes > 0 {
            object.extents.push(last);
        } else {
            object.manifest = Some(last);
        }
        for alternate in &mut object.alternates {
            alternate.extent.pointer = next()?;
        }
        Ok(Command::Put { bucket, key, object, condition, hold })
    }
}

impl Blobs {
    /// Stores several small objects of one bucket in one durable append, and names each for itself:
    /// Haystack's multi-write. Answers one by one.
    pub async fn put_batch(
        &self,
        bucket: &str,
        objects: Vec<BatchObject>,
    ) -> Answer<Vec<Answer<Object>>> {
        if objects.is_empty() {
            return Ok(Vec::new());
        }
        let (mut unplaced, mut needles) = (Vec::new(), Vec::new());
        for BatchObject { key, data, new } in objects {
            let whole = (data.len() as u64, Vec::new(), 0);
            let (one, more) = Unplaced::new(self, (bucket, &key), data, whole, new)?;
            unplaced.push(one);
            needles.extend(more);
        }
        let mut pointers = self.store(needles).await?.into_iter();
        let commands = unplaced.into_iter().map(|one| one.placed(&mut pointers));
        let outcomes = self.propose_all(&commands.collect::<Answer<Vec<_>>>()?).await?;
        Ok(outcomes.into_iter().map(named).collect())
    }
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
    extents: Vec<ObjectExtent>,
    /// What was stored already of an object that is wanted whole at its end.
    kept: Option<Vec<u8>>,
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
            kept: None,
        }
    }

    /// Keeps every byte, for [`Writer::whole`]; the caller bounds them.
    pub fn keep_whole(&mut self) {
        self.kept = Some(Vec::new());
    }

    /// Everything that was written since [`Writer::keep_whole`].
    pub fn whole(&self) -> Vec<u8> {
        [self.kept.as_deref().unwrap_or_default(), &self.buffer].concat()
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
        if let Some(kept) = &mut self.kept {
            kept.extend_from_slice(&self.buffer);
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
    async fn store(&mut self, trailer: &Trailer) -> Answer<ObjectExtent> {
        let mut needle = std::mem::take(&mut self.buffer);
        let bytes = needle.len() as u32;
        trailer.append_to(&mut needle);
        Ok(ObjectExtent { pointer: self.blobs.store_one(needle).await?, bytes })
    }

    /// Names the object; it is visible, and durable, when this answers.
    pub async fn finish(mut self, new: NewObject) -> Answer<Object> {
        let (data, extents) = (std::mem::take(&mut self.buffer), std::mem::take(&mut self.extents));
        let before = (self.size, extents, self.hold);
        let name = (self.bucket.as_str(), self.key.as_str());
        let (unplaced, needles) = Unplaced::new(&self.blobs, name, data, before, new)?;
        let pointers = self.blobs.store(needles).await?;
        let put = unplaced.placed(&mut pointers.into_iter())?;
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
