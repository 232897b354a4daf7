//! A fold's lock, which a thread takes once at a time: who reads within a read waits for ever behind a writer
//! that came between, and that happens too seldom for a test to meet it. So builds for tests look at every
//! read and write.

use std::ops::{Deref, DerefMut};

/// A guard of the lock, and in builds for tests the note that this thread has it.
pub(super) struct Held<G> {
    guard: G,
    #[cfg(debug_assertions)]
    _note: note::Note,
}

impl<G> Held<G> {
    /// The guard that `take` gets of the lock of the fold at this address. Builds for tests panic where the thread
    /// has it.
    pub fn of(fold: usize, take: impl FnOnce() -> G) -> Held<G> {
        #[cfg(debug_assertions)]
        let note = note::Note::of(fold);
        #[cfg(not(debug_assertions))]
        let _ = fold;
        Held {
            guard: take(),
            #[cfg(debug_assertions)]
            _note: note,
        }
    }
}

impl<G: Deref> Deref for Held<G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Held<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

#[cfg(debug_assertions)]
mod note {
    use std::cell::RefCell;

    thread_local! {
        /// The folds whose locks this thread has.
        static FOLDS: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    }

    pub struct Note(usize);

    impl Note {
        pub fn of(fold: usize) -> Note {
            FOLDS.with_borrow_mut(|folds| {
                assert!(
                    !folds.contains(&fold),
                    "a fold is read or written within a read of it by the same thread: do one after the other"
                );
                folds.push(fold);
            });
            Note(fold)
        }
    }

    impl Drop for Note {
        fn drop(&mut self) {
            FOLDS.with_borrow_mut(|folds| folds.retain(|fold| *fold != self.0));
        }
    }
}
