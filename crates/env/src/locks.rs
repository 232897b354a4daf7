//! Taking a lock. A thread that panics ends its process, but for folds, which catch their panics
//! and stop: so nobody meets a lock whose holder has panicked, and whoever does goes no further.

use std::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

const POISONED: &str = "a thread has panicked while it held this lock";

/// `mutex.held()`.
pub trait HoldMutex {
    type Guard<'a>
    where
        Self: 'a;

    /// Waits for the lock and holds it. Panics if its last holder did.
    fn held(&self) -> Self::Guard<'_>;
}

/// `lock.held_shared()`, `lock.held_alone()`.
pub trait HoldRwLock {
    type Shared<'a>
    where
        Self: 'a;
    type Alone<'a>
    where
        Self: 'a;

    /// Waits for the lock and holds it beside other readers. Panics if its last writer did.
    fn held_shared(&self) -> Self::Shared<'_>;

    /// Waits for the lock and holds it alone. Panics if its last writer did.
    fn held_alone(&self) -> Self::Alone<'_>;
}

impl<T: ?Sized> HoldMutex for Mutex<T> {
    type Guard<'a>
        = MutexGuard<'a, T>
    where
        T: 'a;

    #[inline]
    #[track_caller]
    fn held(&self) -> MutexGuard<'_, T> {
        self.lock().expect(POISONED)
    }
}

impl<T: ?Sized> HoldRwLock for RwLock<T> {
    type Shared<'a>
        = RwLockReadGuard<'a, T>
    where
        T: 'a;
    type Alone<'a>
        = RwLockWriteGuard<'a, T>
    where
        T: 'a;

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

/// The same for locks whose holders take turns.
#[cfg(feature = "interleaved")]
mod interleaved {
    use super::{HoldMutex, HoldRwLock, POISONED};
    use crate::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

    impl<T> HoldMutex for Mutex<T> {
        type Guard<'a>
            = MutexGuard<'a, T>
        where
            T: 'a;

        fn held(&self) -> MutexGuard<'_, T> {
            self.lock().expect(POISONED)
        }
    }

    impl<T> HoldRwLock for RwLock<T> {
        type Shared<'a>
            = RwLockReadGuard<'a, T>
        where
            T: 'a;
        type Alone<'a>
            = RwLockWriteGuard<'a, T>
        where
            T: 'a;

        fn held_shared(&self) -> RwLockReadGuard<'_, T> {
            self.read().expect(POISONED)
        }

        fn held_alone(&self) -> RwLockWriteGuard<'_, T> {
            self.write().expect(POISONED)
        }
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
