//! The views of a cluster: deterministic folds of a topic's entries, held in memory.
//! [`ClusterView`] knows nodes, stores and the shard map; [`Namespace`] knows directories, files
//! and chunks. Neither reads a clock, a setting or a random number, and neither knows who calls:
//! the log's runtime feeds entries, the file face reads. The driver ([`Node`], [`Keeper`]) opens a
//! node's stores, log and views, proposes, and makes the stores follow what the views accepted.
#![deny(unsafe_code)]

pub mod cluster;
pub mod command;
pub mod compaction;
mod driver;
mod growth;
pub mod liveness;
pub mod namespace;
pub mod placement;
pub mod repair;
pub mod topics;
mod views;

pub use cluster::{
    ClusterCommand, ClusterOutcome, ClusterView, DATA_FORMAT_VERSION, FreeSpace, NodeState,
    StartedStore, StoreState,
};
pub use command::{BLOBS, ChunkKind, Command, Extent, Location, Outcome, REPLICAS_MAX, Remainder};
pub use driver::{
    Condition, Cuts, FaceChunk, Identity, Keeper, KeeperOptions, Leader, Machine, Member,
    MemberOptions, Node, NodeConfig, OwnStore, RawGrant, RebuiltNames, Scrubbed, Source, Stores,
    Workers, is_peer_operation, is_snapshot_operation, replicas,
};
pub use holdfast_base::node::{NodeKind, StorageClass};
pub use namespace::{ChunkState, FileInfo, Namespace};
pub use topics::{BLOBS_TOPIC, CLUSTER_TOPIC, NAMESPACE_TOPIC};
