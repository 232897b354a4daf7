//! The views of a cluster: deterministic folds of a topic's entries, held in memory.
//! [`ClusterView`] knows nodes, stores and the shard map; [`Namespace`] knows directories, files
//! and chunks. Neither reads a clock, a setting or a random number, and neither knows who calls:
//! the log's runtime feeds entries, the file face reads.
#![deny(unsafe_code)]

pub mod cluster;
pub mod command;
pub mod namespace;
mod views;

pub use cluster::{ClusterCommand, ClusterView};
pub use command::{ChunkKind, Command, Extent, Location, Outcome, Remainder};
pub use holdfast_base::node::{NodeKind, StorageClass};
pub use namespace::Namespace;
