//! Uploads in parts: begun, filled part by part, and completed into one object without moving a
//! byte, or given up.

use super::objects::is_key;
use super::{Change, Step};
use crate::command::{Command, Outcome, PartName, Refusal};
use crate::model::{Object, Part, Upload};
use crate::{EXTENTS_MAX, PARTS_MAX, rows};
use holdfast_env::planted;

impl Change<'_> {
    pub(super) fn begin_upload(
        &mut self,
        bucket: &str,
        key: &str,
        id: u64,
        upload: &Upload,
    ) -> Step {
        self.bucket(bucket)?;
        let row = rows::upload(bucket, key, id);
        if !is_key(key) || id == 0 || self.index.get(&row)?.is_some() {
            let what = "the key is empty or too long, or the upload's number is taken";
            return Err(Refusal::Invalid(what.into()).into());
        }
        self.put(row, upload);
        Ok(())
    }

    fn upload(&self, bucket: &str, key: &str, id: u64) -> Step<Upload> {
        let found = self.row(&rows::upload(bucket, key, id), "an upload")?;
        found.ok_or(super::Stop::Refused(Refusal::NoSuchUpload))
    }

    pub(super) fn put_part(
        &mut self,
        bucket: &str,
        key: &str,
        id: u64,
        number: u16,
        part: &Part,
        hold: u64,
    ) -> Step {
        self.upload(bucket, key, id)?;
        if number == 0 || number > PARTS_MAX {
            return Err(Refusal::InvalidPart(number).into());
        }
        let row = rows::part(id, number);
        if let Some(before) = self.row::<Part>(&row, "a part")?
            && !planted!("blob.replaced-part-lives")
        {
            self.free(&before.extents)?;
        }
        self.keep_held(&part.extents, hold)?;
        self.put(row, part);
        Ok(())
    }

    pub(super) fn complete_upload(&mut self, command: Command) -> Step<Outcome> {
        let Command::CompleteUpload {
            bucket,
            key,
            id,
            parts: wanted,
            version,
            now_ms,
            etag,
            checksums,
            manifest,
            alternates,
            condition,
        } = command
        else {
            return Err(Refusal::Invalid("the command reached the wrong part".into()).into());
        };
        let upload = match self.upload(&bucket, &key, id) {
            Ok(upload) => upload,
            Err(e) => {
                // Asked again: the first answer.
                let named = self.current(&bucket, &key)?.filter(|named| named.upload == id);
                return named.map(|named| Outcome::Named(Box::new(named))).ok_or(e);
            }
        };
        let mut head = upload.head;
        head.checksums = checksums;
        let (lock, hold) = (upload.lock, upload.hold);
        let mut object = Object {
            version,
            modified_ms: now_ms,
            etag,
            head,
            manifest,
            alternates,
            upload: id,
            lock,
            hold,
            ..Object::default()
        };
        self.gather(id, &wanted, &mut object)?;
        let added = object.manifest.iter().chain(object.alternates.iter().map(|a| &a.extent));
        self.keep(&added.copied().collect::<Vec<_>>())?;
        self.batch.remove(rows::upload(&bucket, &key, id));
        self.name(&bucket, &key, object, &condition)
    }

    fn parts(&self, id: u64) -> Step<Vec<(u16, Part)>> {
        let prefix = rows::parts(id);
        let mut parts = Vec::new();
        self.index.scan(&prefix, &rows::behind(&prefix), &mut |row, value| {
            let part: Part = super::decoded(value, "a part")?;
            parts.push((rows::parse_part(row).unwrap_or_default(), part));
            Ok(true)
        })?;
        Ok(parts)
    }

    /// Moves the wanted parts' extents to the object, and frees all others.
    fn gather(&mut self, id: u64, wanted: &[PartName], object: &mut Object) -> Step {
        let mut wanted = wanted.iter().peekable();
        for (number, part) in self.parts(id)? {
            self.batch.remove(rows::part(id, number));
            match wanted.next_if(|name| name.number == number) {
                Some(name) if name.etag != part.etag => {
                    return Err(Refusal::InvalidPart(number).into());
                }
                Some(_) => {
                    object.size += part.size;
                    object.parts.push(part.size);
                    object.extents.extend(part.extents);
                }
                None => self.free(&part.extents)?,
            }
        }
        // What is left was not uploaded, or is out of order.
        if let Some(name) = wanted.next() {
            return Err(Refusal::InvalidPart(name.number).into());
        }
        if object.parts.is_empty() || object.extents.len() > EXTENTS_MAX {
            let what = format!("an object has a part, and at most {EXTENTS_MAX} extents");
            return Err(Refusal::Invalid(what).into());
        }
        Ok(())
    }

    pub(super) fn abort_upload(&mut self, bucket: &str, key: &str, id: u64) -> Step {
        self.upload(bucket, key, id)?;
        for (number, part) in self.parts(id)? {
            self.free(&part.extents)?;
            self.batch.remove(rows::part(id, number));
        }
        self.batch.remove(rows::upload(bucket, key, id));
        Ok(())
    }
}
