//! A table of Holdfast as a source: what has shown in it, as its node tells it. The node that reads records tells, and
//! tells what shows, so nothing has to wait until readers see it.

mod at;
pub mod keys;
mod source;

pub use at::TableAt;
pub use source::{Server, Table, behind};

/// How `--from` names one.
pub const SCHEME: &str = "table:";
