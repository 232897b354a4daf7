//! The views of a cluster: deterministic folds of a topic's entries, held in memory.
//! [`ClusterView`] knows nodes, stores and the shard map; [`Namespace`] knows directories, files
//! and chunks. Neither reads a clock, a setting or a random number, and neither knows who calls:
//! the log's runtime feeds entries, the faces read. What follows from a view is decided here, too,
//! in cores without threads: who is live, where copies go ([`placement`], [`repair`]), when a chunk
//! is rewritten ([`compaction`]). Never opens, sends or waits: the node does.
#![deny(unsafe_code)]

mod all;
pub mod borders;
pub mod chunks;
pub mod cluster;
pub mod command;
pub mod compaction;
pub mod digests;
pub mod holds;
pub mod images;
pub mod liveness;
pub mod moves;
pub mod names;
pub mod namespace;
pub mod placement;
pub mod repair;
pub mod retention;
pub mod topics;
mod views;

pub use all::{AllShards, SHARDS_MAX};
pub use chunks::{Chunk, ChunkState, Chunks, Debt};
pub use cluster::{
    ClusterCommand, ClusterOutcome, ClusterView, DATA_FORMAT_VERSION, FreeSpace, NodeState,
    StartedStore, StoreState, TOKENS_MAX, Token,
};
pub use command::{
    BLOBS, ChunkKind, Command, Location, Outcome, REPLICAS_MAX, RawExtent, Remainder,
};
pub use holdfast_base::node::{NodeKind, StorageClass};
pub use names::{FileInfo, Names};
pub use namespace::Namespace;
pub use topics::{BLOBS_TOPIC, CLUSTER_TOPIC, NAMESPACE_TOPIC};
