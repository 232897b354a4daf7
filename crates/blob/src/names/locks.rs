//! Retention and legal hold of versions.

use super::{Change, Step};
use crate::command::Refusal;
use crate::model::{Lock, Object};

/// Whether a version may not be removed now.
pub(super) fn is_locked(object: &Object, now_ms: i64, bypass: bool) -> bool {
    object.hold
        || object.lock.is_some_and(|lock| lock.until_ms > now_ms && (lock.compliance || !bypass))
}

impl Change<'_> {
    pub(super) fn set_lock(
        &mut self,
        bucket: &str,
        key: &str,
        name: &str,
        (lock, hold): (Option<Lock>, bool),
        now_ms: i64,
        bypass: bool,
    ) -> Step {
        if !self.bucket(bucket)?.lockable {
            return Err(Refusal::NotLockable.into());
        }
        let (mut object, current) = self.version(bucket, key, name)?;
        if object.marker {
            return Err(Refusal::NoSuchKey.into());
        }
        // A lock that holds may be made longer by anybody, and otherwise changed only by who may
        // lift it.
        if let Some(old) = object.lock.filter(|old| old.until_ms > now_ms) {
            let other = lock
                .is_none_or(|new| new.until_ms < old.until_ms || new.compliance != old.compliance);
            if other && (old.compliance || !bypass) {
                return Err(Refusal::Locked.into());
            }
        }
        (object.lock, object.hold) = (lock, hold);
        self.put_version(bucket, key, &object, current);
        Ok(())
    }
}
