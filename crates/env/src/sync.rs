//! Locks, condition variables, channels and threads of whatever is run under many orders of its
//! threads: the standard library's. Under the feature `interleaved`, which tests alone turn on, they
//! are shuttle's: threads take turns, and a seed decides at each lock, wait and start who goes on.

#[cfg(not(feature = "interleaved"))]
pub use std::{
    sync::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, mpsc},
    thread, thread_local,
};

#[cfg(feature = "interleaved")]
pub use shuttle::{
    sync::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, mpsc},
    thread, thread_local,
};
