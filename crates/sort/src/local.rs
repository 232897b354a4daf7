//! The threads of a sort, and the cores that they may run on.

use holdfast_env::sockets::pin_to_cores;
pub use holdfast_env::tasks::scoped;
use std::thread::{Scope, ScopedJoinHandle, available_parallelism};

/// What a thread does most of the time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Waits for disks.
    Waits,
    Computes,
}

/// One core in so many waits for disks where threads are pinned.
const WAITING_PART: usize = 8;

/// How the threads of a sort are started.
#[derive(Clone, Copy, Default)]
pub struct Crew {
    /// Threads that read and write have cores apart from those that sort, as TritonSort had it.
    pub pinned: bool,
}

impl Crew {
    /// Starts a thread called `name`. That the machine refuses to pin a thread costs time alone.
    pub fn scoped<'scope, T: Send + 'scope>(
        self,
        scope: &'scope Scope<'scope, '_>,
        name: &str,
        role: Role,
        work: impl FnOnce() -> T + Send + 'scope,
    ) -> ScopedJoinHandle<'scope, T> {
        scoped(scope, name, move || {
            let cores = available_parallelism().map_or(1, usize::from);
            if self.pinned && cores > 1 {
                let border = cores.div_ceil(WAITING_PART);
                let mine = if role == Role::Waits { 0..border } else { border..cores };
                let _ = pin_to_cores(mine);
            }
            work()
        })
    }
}
