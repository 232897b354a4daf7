//! Taking a lock. A thread that panics ends its process, but for folds, which catch their panics
//! and stop: so nobody meets a lock whose holder has panicked, and whoever does goes no further.

use std::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

const POISONED: &str = "a thread has panicked while it held this lock";

/// `mutex.held()`.
pub trait HoldMutex<T: ?Sized> {
    /// Waits for the lock and holds it. Panics if its last holder did.
    fn held(&self) -> MutexGuard<'_, T>;
}

impl<T: ?Sized> HoldMutex<T> for Mutex<T> {
    #[inline]
    #[track_caller]
    fn held(&self) -> MutexGuard<'_, T> {
        self.lock().expect(POISONED)
    }
}

/// `lock.held_shared()`, `lock.held_alone()`.
pub trait HoldRwLock<T: ?Sized> {
    /// Waits for the lock and holds it beside other readers. Panics if its last writer did.
    fn held_shared(&self) -> RwLockReadGuard<'_, T>;

    /// Waits for the lock and holds it alone. Panics if its last writer did.
    fn held_alone(&self) -> RwLockWriteGuard<'_, T>;
}

impl<T: ?Sized> HoldRwLock<T> for RwLock<T> {
    #[inline]
    #[track_caller]
    fn held_shared(&self) -> RwLockReadGuard<'_, T> {
        self.read().expect(POISONED)
    }

    #[inline]
    #[track_caller]
    fn held_alone(&self) -> RwLockWriteGuard<'_, T> {
        self.write().expect(POISONED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::catch_unwind;

    #[test]
    fn a_lock_whose_holder_panicked_is_nobodys() {
        let lock = Mutex::new(1);
        *lock.held() += 1;
        assert_eq!(*lock.held(), 2);
        let panics = catch_unwind(|| {
            let _held = lock.held();
            panic!("while it is held");
        });
        assert!(panics.is_err() && catch_unwind(|| *lock.held()).is_err());
    }
}
