//! Forks. A child has its parent's sockets, and none of its threads: were it to use them, each answer
//! would go to whichever of the two reads first. So what belongs to a process remembers which, and a
//! child leaves it alone: it does not even close it, which would tell the node.

use holdfast_base::{Error, Result};

/// A process, by its number.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Process(u32);

impl Process {
    /// The one that runs this.
    pub fn current() -> Process {
        Process(std::process::id())
    }

    pub fn is_current(self) -> bool {
        self == Process::current()
    }

    /// Refuses what another process has made.
    pub fn check(self, what: &str) -> Result<()> {
        match self.is_current() {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "use {what} from before a fork: make another one in this process"
            ))),
        }
    }
}
