//! Messages for people who look after a node.

use holdfast_base::codec_struct;
use holdfast_base::ids::{Index, NodeId, StoreId, Tier};

/// What a node says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    pub node: NodeId,
    pub version: String,
    pub uptime_ms: u64,
    pub files: u64,
    pub directories: u64,
    pub bytes: u64,
    pub unclosed: u64,
    pub index: Index,
    pub digest: u64,
    pub stores: Vec<Store>,
    /// What recovery cut, found damaged or set aside: one sentence each.
    pub findings: Vec<String>,
}
codec_struct!(Status {
    node,
    version,
    uptime_ms,
    files,
    directories,
    bytes,
    unclosed,
    index,
    digest,
    stores,
    findings
});

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    pub id: StoreId,
    pub tier: Tier,
    pub place: String,
    pub capacity_bytes: u64,
    pub used_bytes: u64,
    pub free_bytes: u64,
    pub chunks: u64,
    /// A write failed: reads only, until the next start.
    pub read_only: bool,
    pub scrubbed_bytes: u64,
    pub bad_blocks: u64,
}
codec_struct!(Store {
    id,
    tier,
    place,
    capacity_bytes,
    used_bytes,
    free_bytes,
    chunks,
    read_only,
    scrubbed_bytes,
    bad_blocks
});
