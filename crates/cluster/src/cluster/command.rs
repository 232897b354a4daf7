//! What the cluster topic's entries say, and what applying one answers: docs/formats/cluster.md.
//! Every choice is in the entry, and no entry carries a time; the fold makes no choice.

use crate::command::{byte_enum, from_entry, to_entry};
use holdfast_base::codec::{Decode, DecodeError, Encode, Reader};
use holdfast_base::ids::{Index, NodeId, StoreId, Tier};
use holdfast_base::{Result, codec_enum, codec_struct};
use holdfast_wire::admin::RecoverySettings;

byte_enum! {
    StoreState: "store state" {
        Live = 1 "live",
        /// Serves reads; something failed, or a person asked.
        ReadOnly = 2 "read-only",
        /// Never comes back; its replicas are lost.
        Gone = 3 "gone",
        /// Its node started without it. What it held counts as missing until a start brings it.
        Absent = 4 "absent",
    }
}

byte_enum! {
    NodeState: "node state" {
        Live = 1 "live",
        /// Silent for seconds: routed around; its replicas still count.
        Unavailable = 2 "unavailable",
        /// Silent for minutes: its replicas are copied elsewhere.
        Lost = 3 "lost",
    }
}

/// A store as its node finds it at a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartedStore {
    pub store: StoreId,
    pub tier: Tier,
    pub capacity: u64,
    pub free_mib: u32,
}
codec_struct!(StartedStore { store, tier, capacity, free_mib });

/// Free space of one store, for placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeSpace {
    pub store: StoreId,
    pub free_mib: u32,
}
codec_struct!(FreeSpace { store, free_mib });

/// One change of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterCommand {
    /// Adds a node, or changes where it is. From before nodes joined; `JoinNode` and `StartNode`
    /// say the same and more.
    RegisterNode {
        node: NodeId,
        host: String,
        address: String,
    },
    /// Adds a store, or tells its capacity or node anew (a disk may move). Its tier stays, and a
    /// store that is gone stays gone.
    RegisterStore {
        store: StoreId,
        node: NodeId,
        tier: Tier,
        capacity: u64,
    },
    SetStoreState {
        store: StoreId,
        state: StoreState,
    },
    /// Raises the data format's version, once every node can read it.
    SetDataFormat {
        version: u32,
    },
    /// Names the cluster. The first one decides, later ones are told what it decided. Answers
    /// `Founded`.
    FoundCluster {
        id: u64,
    },
    /// Gives a node its number. The same nonce gets the same number. Answers `Joined`.
    JoinNode {
        nonce: u64,
        host: String,
        rack: String,
        address: String,
    },
    /// As `Start`, whatever the node's start before was. From builds whose log repeated nothing.
    StartNode {
        node: NodeId,
        host: String,
        rack: String,
        address: String,
        stores: Vec<StartedStore>,
    },
    /// A controller lives, and has so much free space. The only entry that leadership counts.
    Beat {
        node: NodeId,
        incarnation: Index,
        free: Vec<FreeSpace>,
    },
    /// What the leader knows of a node. About another incarnation than this it is refused.
    SetNode {
        node: NodeId,
        incarnation: Index,
        state: NodeState,
    },
    /// A draining node gets no new chunks, and its replicas are moved elsewhere.
    Drain {
        node: NodeId,
        on: bool,
    },
    /// Free space of a node that is no controller.
    Usage {
        node: NodeId,
        incarnation: Index,
        free: Vec<FreeSpace>,
    },
    /// How recovery shares links with the foreground, as a person wants it.
    SetRecovery {
        settings: RecoverySettings,
    },
    /// A node's certificates carry this name: who shows one speaks for that node and no other.
    BindName {
        node: NodeId,
        name: String,
    },
    /// The node of this name is gone for good: the next one that joins with its certificate is
    /// another node.
    ReleaseName {
        name: String,
    },
    /// A certificate is worth nothing from here on. It ends by itself at `until_s`; what has ended
    /// before `now_s`, the proposer's time, makes room where there is none. Both in seconds since
    /// 1970.
    Revoke {
        serial: String,
        until_s: i64,
        now_s: i64,
    },
    /// The client of this name may do this until `until_s`, with the token of this id or a
    /// certificate. Refused while it has another token; `now_s`, the proposer's time, tells which
    /// have ended. Both in seconds since 1970. The rules are as people write them.
    PutToken {
        name: String,
        id: u64,
        until_s: i64,
        now_s: i64,
        rules: Vec<String>,
    },
    /// The client of this name may do nothing from here on.
    RemoveToken {
        name: String,
    },
    /// A controller queues last from here on: another one leads, at once, where there is one. Said
    /// by a node that ends in order or is drained.
    Resign {
        node: NodeId,
        incarnation: Index,
    },
    /// As `StartNode`, of a node that keeps views alone.
    StartViewNode {
        node: NodeId,
        host: String,
        rack: String,
        address: String,
    },
    /// A node's process begins: this entry's index is its incarnation, and earlier ones are fenced. The
    /// node is live, and has exactly these stores; none at all where it keeps views alone, and takes no
    /// seat. Refused unless the node's start before was at `after`; the same nonce again, drawn by the
    /// process, changes nothing. Answers `Started`.
    Start {
        node: NodeId,
        nonce: u64,
        after: Index,
        host: String,
        rack: String,
        address: String,
        stores: Option<Vec<StartedStore>>,
    },
}
codec_enum!(ClusterCommand: "cluster command" {
    1 => RegisterNode { node, host, address },
    2 => RegisterStore { store, node, tier, capacity },
    3 => SetStoreState { store, state },
    4 => SetDataFormat { version },
    5 => FoundCluster { id },
    6 => JoinNode { nonce, host, rack, address },
    7 => StartNode { node, host, rack, address, stores },
    8 => Beat { node, incarnation, free },
    9 => SetNode { node, incarnation, state },
    10 => Drain { node, on },
    11 => Usage { node, incarnation, free },
    12 => SetRecovery { settings },
    13 => Resign { node, incarnation },
    14 => BindName { node, name },
    15 => ReleaseName { name },
    16 => Revoke { serial, until_s, now_s },
    17 => PutToken { name, id, until_s, now_s, rules },
    18 => RemoveToken { name },
    19 => StartViewNode { node, host, rack, address },
    20 => Start { node, nonce, after, host, rack, address, stores },
});
const CLUSTER_TAG_MAX: u8 = 20;

impl ClusterCommand {
    pub fn to_entry(&self) -> Vec<u8> {
        to_entry(self)
    }

    pub fn from_entry(bytes: &[u8]) -> Result<ClusterCommand> {
        from_entry(bytes, CLUSTER_TAG_MAX, "cluster")
    }
}

/// What an accepted command answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterOutcome {
    Done {},
    /// The cluster's id, as the first `FoundCluster` decided it.
    Founded {
        id: u64,
    },
    Joined {
        node: NodeId,
    },
    Started {
        incarnation: Index,
    },
}
codec_enum!(ClusterOutcome: "cluster outcome" {
    1 => Done {},
    2 => Founded { id },
    3 => Joined { node },
    4 => Started { incarnation },
});

impl ClusterOutcome {
    /// The result's bytes. `Done` has none: what had no result before has none for ever, because
    /// the fold's digest covers results.
    pub fn to_result(self) -> Vec<u8> {
        match self {
            ClusterOutcome::Done {} => Vec::new(),
            other => other.to_bytes(),
        }
    }

    /// The inverse of [`ClusterOutcome::to_result`].
    pub fn from_result(bytes: &[u8]) -> Result<ClusterOutcome, DecodeError> {
        if bytes.is_empty() {
            return Ok(ClusterOutcome::Done {});
        }
        let mut reader = Reader::new(bytes);
        let outcome = ClusterOutcome::decode(&mut reader)?;
        reader.finish()?;
        Ok(outcome)
    }
}
