//! Named threads that end before their scope does.

use std::thread::{Builder, Scope, ScopedJoinHandle};

/// Starts a thread called `name`. A machine that cannot start one more thread ends the process:
/// nothing sensible can be sorted on it.
pub fn scoped<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    work: impl FnOnce() -> T + Send + 'scope,
) -> ScopedJoinHandle<'scope, T> {
    Builder::new().name(name.to_owned()).spawn_scoped(scope, work).expect("a thread can be started")
}
