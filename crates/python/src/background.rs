//! The thread that moves the bytes of asynchronous clients: one a process, started by the first of them.

use crate::process::Process;
use holdfast_base::Result;
use holdfast_env::HoldMutex;
use holdfast_env::runtime::Background;
use std::future::Future;
use std::sync::{Arc, Mutex};

static BACKGROUND: Mutex<Option<(Process, Arc<Background>)>> = Mutex::new(None);

/// The process's own: a child has none of its parent's threads.
pub fn background() -> Result<Arc<Background>> {
    let mut background = BACKGROUND.held();
    if let Some((process, found)) = &*background {
        if process.is_current() {
            return Ok(found.clone());
        }
        // There is no thread to wait for.
        std::mem::forget(background.take());
    }
    let started = Arc::new(Background::start("holdfast-python")?);
    *background = Some((Process::current(), started.clone()));
    Ok(started)
}

/// What a future comes to on that thread.
pub fn wait_for<T: Send + 'static>(
    future: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    background()?.wait_for(future)
}
