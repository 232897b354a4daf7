//! Keys and their versions: one row for the current version of a key, one for each older one.
//! There is an older one only where there is a current one.

use super::{Change, Step};
use crate::command::{Condition, Outcome, Refusal};
use crate::model::{Head, Object, Versioning, version_name};
use crate::{EXTENTS_MAX, KEY_BYTES_MAX, rows};
use holdfast_base::codec::Encode;
use holdfast_env::planted;

impl Change<'_> {
    pub(super) fn current(&self, bucket: &str, key: &str) -> Step<Option<Object>> {
        self.row(&rows::current(bucket, key), "an object")
    }

    pub(super) fn put_object(
        &mut self,
        bucket: &str,
        key: &str,
        object: Object,
        condition: &Condition,
        hold: u64,
    ) -> Step<Outcome> {
        let extents: u64 = object.extents.iter().map(|e| e.bytes as u64).sum();
        let sized = extents >= object.size && object.extents.len() <= EXTENTS_MAX;
        if !is_key(key) || !sized || object.marker {
            let what = "the key is empty or too long, or the object's size is not its extents'";
            return Err(Refusal::Invalid(what.into()).into());
        }
        let all: Vec<_> = object.needles().copied().collect();
        self.keep_held(&all, hold)?;
        self.name(bucket, key, object, condition)
    }

    /// Makes an object, whose slots are live, the current version of its key.
    pub(super) fn name(
        &mut self,
        bucket: &str,
        key: &str,
        mut object: Object,
        condition: &Condition,
    ) -> Step<Outcome> {
        let known = self.bucket(bucket)?;
        let before = self.current(bucket, key)?;
        check(condition, before.as_ref())?;
        object.null = known.versioning() != Versioning::Enabled;
        self.supersede(bucket, key, before, object.null)?;
        self.put(rows::current(bucket, key), &object);
        Ok(Outcome::Named(Box::new(object)))
    }

    /// Makes room for a new current version: the old one becomes an older version, or is freed if
    /// the new one takes its name.
    fn supersede(&mut self, bucket: &str, key: &str, before: Option<Object>, null: bool) -> Step {
        let Some(before) = before else { return Ok(()) };
        if null && before.null {
            return self.free_object(&before);
        }
        if null && let Some(older) = self.older(bucket, key, "null")? {
            self.free_object(&older)?;
            self.batch.remove(rows::version(bucket, key, older.version));
        }
        self.put(rows::version(bucket, key, before.version), &before);
        Ok(())
    }

    pub(super) fn free_object(&mut self, object: &Object) -> Step {
        self.free(object.needles())
    }

    fn older(&self, bucket: &str, key: &str, version: &str) -> Step<Option<Object>> {
        Ok(crate::list::older_version(self.index, bucket, key, version)?)
    }

    /// A version by its name, and whether it is the current one.
    pub(super) fn version(&self, bucket: &str, key: &str, name: &str) -> Step<(Object, bool)> {
        let current = self.current(bucket, key)?;
        if let Some(current) = current.filter(|current| version_name(current) == name) {
            return Ok((current, true));
        }
        match self.older(bucket, key, name)? {
            Some(older) => Ok((older, false)),
            None => Err(Refusal::NoSuchVersion.into()),
        }
    }

    pub(super) fn put_version(&mut self, bucket: &str, key: &str, object: &Object, current: bool) {
        let row = match current {
            true => rows::current(bucket, key),
            false => rows::version(bucket, key, object.version),
        };
        self.batch.put(row, object.to_bytes());
    }

    pub(super) fn delete(
        &mut self,
        bucket: &str,
        key: &str,
        version: u64,
        now_ms: i64,
        condition: &Condition,
    ) -> Step<Outcome> {
        // Where nothing was put there may be a marker.
        if !is_key(key) && !planted!("blob.any-key-is-deleted") {
            return Err(Refusal::Invalid("the key is empty or too long".into()).into());
        }
        let known = self.bucket(bucket)?;
        let before = self.current(bucket, key)?;
        check(condition, before.as_ref())?;
        if known.versioning() == Versioning::Off {
            if let Some(before) = before {
                self.free_object(&before)?;
                self.batch.remove(rows::current(bucket, key));
            }
            return Ok(Outcome::Deleted { version: None, marker: false });
        }
        let null = known.versioning() == Versioning::Suspended;
        let marker =
            Object { version, null, marker: true, modified_ms: now_ms, ..Object::default() };
        self.supersede(bucket, key, before, null)?;
        self.put(rows::current(bucket, key), &marker);
        Ok(Outcome::Deleted { version: Some(version_name(&marker)), marker: true })
    }

    pub(super) fn delete_version(
        &mut self,
        bucket: &str,
        key: &str,
        name: &str,
        now_ms: i64,
        bypass: bool,
    ) -> Step<Outcome> {
        self.bucket(bucket)?;
        let (object, current) = match self.version(bucket, key, name) {
            Ok(found) => found,
            // What is gone already is gone.
            Err(super::Stop::Refused(Refusal::NoSuchVersion)) => {
                let version = Some(name.to_owned());
                return Ok(Outcome::Deleted { version, marker: false });
            }
            Err(e) => return Err(e),
        };
        if super::locks::is_locked(&object, now_ms, bypass) {
            return Err(Refusal::Locked.into());
        }
        self.free_object(&object)?;
        if !current {
            self.batch.remove(rows::version(bucket, key, object.version));
        } else if let Some(older) = self.newest_older(bucket, key)? {
            self.batch.remove(rows::version(bucket, key, older.version));
            self.put(rows::current(bucket, key), &older);
        } else {
            self.batch.remove(rows::current(bucket, key));
        }
        Ok(Outcome::Deleted { version: Some(name.to_owned()), marker: object.marker })
    }

    fn newest_older(&self, bucket: &str, key: &str) -> Step<Option<Object>> {
        let prefix = rows::versions(bucket, key);
        let mut found = None;
        self.index.scan(&prefix, &rows::behind(&prefix), &mut |_, value| {
            found = Some(super::decoded(value, "a version")?);
            Ok(false)
        })?;
        Ok(found)
    }

    pub(super) fn set_head(&mut self, bucket: &str, key: &str, name: &str, head: Head) -> Step {
        let (mut object, current) = self.version(bucket, key, name)?;
        if object.marker {
            return Err(Refusal::NoSuchKey.into());
        }
        object.head = head;
        self.put_version(bucket, key, &object, current);
        Ok(())
    }
}

/// Whether a key can be one. What is longer than a row of the index stopped the view of the whole cluster, for good.
pub(super) fn is_key(key: &str) -> bool {
    (1..=KEY_BYTES_MAX).contains(&key.len())
}

fn check(condition: &Condition, before: Option<&Object>) -> Step {
    let before = before.filter(|object| !object.marker);
    if condition.if_absent && before.is_some() {
        return Err(Refusal::PreconditionFailed.into());
    }
    match (&condition.if_match, before) {
        (Some(_), None) => Err(Refusal::NoSuchKey.into()),
        (Some(etag), Some(before)) if etag != "*" && *etag != before.etag => {
            Err(Refusal::PreconditionFailed.into())
        }
        _ => Ok(()),
    }
}
