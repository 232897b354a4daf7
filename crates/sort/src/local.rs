//! Named threads that end before their scope does, and the cores that they may run on.

use holdfast_env::sockets::pin_to_cores;
use std::thread::{Builder, Scope, ScopedJoinHandle, available_parallelism};

/// Starts a thread called `name`. A machine that cannot start one more thread ends the process:
/// nothing sensible can be sorted on it.
pub fn scoped<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    work: impl FnOnce() -> T + Send + 'scope,
) -> ScopedJoinHandle<'scope, T> {
    Builder::new().name(name.to_owned()).spawn_scoped(scope, work).expect("a thread can be started")
}

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
    /// As [`scoped`]. That the machine refuses to pin a thread costs time alone.
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
