//! What commands do that follow something until they are interrupted: they outlive the nodes that they ask.
//! `ride --follow` knows several nodes, and has its own way.

use holdfast_base::{Kind, Result};
use holdfast_command::output::aside;
use holdfast_env::tasks::Stop;
use std::time::Duration;

/// Before a node is asked again that does not answer.
const REST: Duration = Duration::from_millis(500);

/// Asks until there is an answer, and says once that there is none. What was read before stays read: whoever
/// follows asks for what comes next.
pub fn until_answered<T>(mut ask: impl FnMut() -> Result<T>) -> Result<T> {
    let mut is_told = false;
    loop {
        match ask() {
            Err(e) if e.kind == Kind::Retry => {
                if !std::mem::replace(&mut is_told, true) {
                    aside(format_args!("nobody answers for now, and is asked again: {e}"));
                }
                Stop::new().sleep_until_stop(REST);
            }
            answer => return answer,
        }
    }
}
