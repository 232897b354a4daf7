//! The first error of many threads: it is kept, and whoever looks stops.

use holdfast_base::{Error, Result};
use holdfast_env::HoldMutex;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Default)]
pub struct Failure {
    /// Read by loops that only look.
    set: AtomicBool,
    /// The first error; later ones are its consequences.
    first: Mutex<Option<Error>>,
}

impl Failure {
    pub fn note(&self, result: Result<()>) {
        if let Err(e) = result {
            self.set(e);
        }
    }

    pub fn set(&self, e: Error) {
        self.first.held().get_or_insert(e);
        self.set.store(true, Ordering::Release);
    }

    pub fn is_set(&self) -> bool {
        self.set.load(Ordering::Acquire)
    }

    pub fn result(&self) -> Result<()> {
        match &*self.first.held() {
            Some(e) => Err(e.clone()),
            None => Ok(()),
        }
    }
}
