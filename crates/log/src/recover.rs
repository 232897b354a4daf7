//! Opening a topic.

use std::path::PathBuf;

/// A torn tail that opening a topic has cut: bytes that were never acknowledged as durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutTail {
    pub topic: String,
    pub segment: PathBuf,
    /// Where the cut bytes began in the segment, and how many there were.
    pub offset: u64,
    pub bytes: u64,
    /// The file that keeps them.
    pub kept: PathBuf,
}
