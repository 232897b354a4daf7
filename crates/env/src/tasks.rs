//! Threads of the server, and the flag that ends them. Nothing here decides; every long-lived
//! thread of every crate is spawned here, so that each has a name and none dies unnoticed.

use crate::locks::HoldMutex;
use crate::sync::thread::{self, Builder, JoinHandle};
use crate::sync::{Condvar, Mutex};
use crate::{event, trial};
use holdfast_base::{Error, Result};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Exit status of a process one of whose threads panicked (EX_SOFTWARE of sysexits.h).
pub const EXIT_PANIC: i32 = 70;

/// A named thread. Dropping it does not end the thread; [`Task::join`] waits for its end.
pub struct Task {
    handle: JoinHandle<()>,
}

impl Task {
    pub fn join(self) {
        // A panic never arrives here: it ended the process.
        let _ = self.handle.join();
    }

    /// Whether the caller runs on this thread, which cannot wait for its own end.
    pub fn is_current(&self) -> bool {
        self.handle.thread().id() == thread::current().id()
    }
}

/// Runs `work` on a thread of its own, called `name` (the kernel keeps the first 15 bytes).
///
/// A panic in it is told as an event and ends the process with status 70: a server that
/// lost one of its threads would hang some requests for ever, while a restart recovers by design.
pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<Task> {
    let thread_name = name.to_owned();
    let trial = trial::inherited();
    let guarded = move || {
        trial::inherit(trial);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
            if cfg!(feature = "interleaved") {
                // The run ends with it, and says which order of its threads led there.
                resume_unwind(panic);
            }
            let told =
                format_args!("thread `{thread_name}` panicked (see above): this process ends");
            event!(ThreadPanicked, told, thread = thread_name.as_str());
            // SAFETY: _exit takes no pointers. Unlike exit it runs no handlers, which could wait
            // for a lock that the panicked thread holds.
            unsafe { libc::_exit(EXIT_PANIC) }
        }
    };
    let handle = Builder::new()
        .name(name.to_owned())
        .spawn(guarded)
        .map_err(|e| Error::from(e).context(format_args!("start thread `{name}`")))?;
    Ok(Task { handle })
}

/// As [`spawn`] for a thread that ends before its scope does, and whose panic ends whoever joins
/// it. A machine that cannot start one more thread ends the process.
pub fn scoped<'scope, T: Send + 'scope>(
    scope: &'scope std::thread::Scope<'scope, '_>,
    name: &str,
    work: impl FnOnce() -> T + Send + 'scope,
) -> std::thread::ScopedJoinHandle<'scope, T> {
    let trial = trial::inherited();
    let work = move || {
        trial::inherit(trial);
        work()
    };
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn_scoped(scope, work)
        .expect("a thread can be started")
}

/// A request to stop that many threads can wait for. Clones are the same flag.
#[derive(Clone, Default)]
pub struct Stop {
    shared: Arc<StopShared>,
}

#[derive(Default)]
struct StopShared {
    /// Read without the lock by loops that only look; set under `lock`.
    set: AtomicBool,
    /// Orders the setting of `set` against the waiters' last look, so that no wake is lost.
    lock: Mutex<()>,
    /// Waited on by `wait` and `sleep_until_stop`, notified once by `request`.
    changed: Condvar,
}

impl Stop {
    pub fn new() -> Stop {
        Stop::default()
    }

    /// Asks everybody to stop; it cannot be taken back.
    pub fn request(&self) {
        let _guard = self.shared.lock.held();
        self.shared.set.store(true, Ordering::Release);
        self.shared.changed.notify_all();
    }

    pub fn is_requested(&self) -> bool {
        self.shared.set.load(Ordering::Acquire)
    }

    /// Blocks until the stop is requested.
    pub fn wait(&self) {
        let guard = self.shared.lock.held();
        let _guard = self
            .shared
            .changed
            .wait_while(guard, |()| !self.is_requested())
            .expect("no holder of this lock panics");
    }

    /// Sleeps for `time` or until the stop is requested; says whether it was.
    pub fn sleep_until_stop(&self, time: Duration) -> bool {
        let guard = self.shared.lock.held();
        let _guard = self
            .shared
            .changed
            .wait_timeout_while(guard, time, |()| !self.is_requested())
            .expect("no holder of this lock panics");
        self.is_requested()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_wakes_every_sleeper() {
        let stop = Stop::new();
        assert!(!stop.sleep_until_stop(Duration::ZERO));
        let sleepers: Vec<Task> = (0..2)
            .map(|i| {
                let stop = stop.clone();
                spawn(&format!("sleeper-{i}"), move || {
                    assert!(stop.sleep_until_stop(Duration::from_secs(3600)));
                    stop.wait();
                })
                .unwrap()
            })
            .collect();
        stop.request();
        sleepers.into_iter().for_each(Task::join);
        assert!(stop.is_requested());
    }
}
