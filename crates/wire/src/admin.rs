//! Messages for people who look after a node.

use holdfast_base::ids::{ChunkId, Index, NodeId, StoreId, Tier};
use holdfast_base::{codec_enum, codec_struct};

/// How a finding about a view that has stopped begins.
pub const STOPPED_VIEW: &str = "the view has stopped: topic";

/// How a finding begins about a directory that cannot go on from shard to shard.
pub const MOVE_WAITS: &str = "a move waits: ";

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
    /// What recovery cut, found damaged or set aside: one sentence each. Views that have stopped
    /// come first, and begin with [`STOPPED_VIEW`].
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

/// What a process holds for its clients, all connections together, and what keeps its node from
/// all of its work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    pub limit_bytes: u64,
    pub held_bytes: u64,
    /// Since the start.
    pub peak_bytes: u64,
    /// How often somebody had to wait, or to come again, since the start.
    pub refused: u64,
    /// `WORD: sentence` each; empty is well.
    pub conditions: Vec<String>,
}
codec_struct!(Held { limit_bytes, held_bytes, peak_bytes, refused, conditions });

/// A client that had to wait within the last minute, because it asked for more than it may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slowed {
    /// Its kind and name, for people.
    pub client: String,
    /// The setting.
    pub limit: String,
    /// Its value.
    pub allowed: u64,
    /// Its value, for people.
    pub amount: String,
    /// In how many of the last 60.
    pub seconds: u64,
    /// For so long it has to wait still, if it asks for nothing meanwhile.
    pub left_ms: u64,
}
codec_struct!(Slowed { client, limit, allowed, amount, seconds, left_ms });

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
    /// If it goes on as in the last day.
    pub fills_in_s: Option<u64>,
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
    bad_blocks,
    fills_in_s
});

/// The cluster as the answering node's view has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    pub cluster: u64,
    /// Who answers.
    pub node: NodeId,
    /// Who leads, if somebody does.
    pub leader: Option<NodeId>,
    /// The last entry of the cluster topic that the node has applied.
    pub index: Index,
    /// Running digest of the namespace view at [`Cluster::namespace_index`]: equal on all nodes.
    pub namespace_digest: u64,
    pub namespace_index: Index,
    pub nodes: Vec<ClusterNode>,
    /// Of the leader; zeros from others.
    pub recovery: Recovery,
}
codec_struct!(Cluster {
    cluster,
    node,
    leader,
    index,
    namespace_digest,
    namespace_index,
    nodes,
    recovery
});

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterNode {
    pub node: NodeId,
    pub host: String,
    pub rack: String,
    pub address: String,
    /// `live`, `unavailable` or `lost`.
    pub state: String,
    pub controller: bool,
    pub draining: bool,
    pub stores: Vec<ClusterStore>,
    /// In its certificate; empty if it has shown none.
    pub name: String,
}
codec_struct!(ClusterNode { node, host, rack, address, state, controller, draining, stores, name });

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterStore {
    pub id: StoreId,
    pub tier: Tier,
    /// `live`, `read-only` or `gone`.
    pub state: String,
    pub free_mib: u64,
    /// Replicas that the namespace counts on it.
    pub replicas: u64,
}
codec_struct!(ClusterStore { id, tier, state, free_mib, replicas });

/// How repair is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Chunks with fewer copies than wanted, and those of them with a single one left.
    pub short: u64,
    pub short_of_one: u64,
    /// Chunks without any copy that can be read.
    pub lost: u64,
    /// Copies under way, their bytes and how many of these are done.
    pub copies: u64,
    pub bytes_total: u64,
    pub bytes_done: u64,
    /// Since the leader leads.
    pub copies_made: u64,
    pub bytes_made: u64,
    pub copies_failed: u64,
    /// What one node may send, and receive, for repair at most; 0 for no such limit.
    pub bytes_per_second: u64,
    /// The leader waits for a person: so many nodes would be given up at once.
    pub confirm_lost: Vec<NodeId>,
    /// Still to be copied.
    pub bytes_left: u64,
    /// Received for nothing: progress of copies that were begun again elsewhere.
    pub bytes_resent: u64,
    /// What all links together leave for recovery, what the plan makes of it, and what was copied
    /// in the last seconds; bytes a second.
    pub ideal: u64,
    pub planned: u64,
    pub actual: u64,
    /// At the actual speed, or the planned one while nothing was measured.
    pub seconds_left: Option<u64>,
    /// Share of a link that foreground and recovery together may take now.
    pub alpha_per_mille: u32,
    pub settings: RecoverySettings,
    /// 90th percentile of nodes' answers to each other's readers, now and while nothing was
    /// copied; 0 where too few were seen.
    pub answer_us_p90: u32,
    pub answer_us_p90_quiet: u32,
    /// Tasks that do not get on, and why: the first of each reason's.
    pub slow: Vec<SlowTask>,
    /// Copies that count and cannot be reached now, for their nodes are silent or gone.
    pub away: Away,
}
codec_struct!(Recovery {
    short,
    short_of_one,
    lost,
    copies,
    bytes_total,
    bytes_done,
    copies_made,
    bytes_made,
    copies_failed,
    bytes_per_second,
    confirm_lost,
    bytes_left,
    bytes_resent,
    ideal,
    planned,
    actual,
    seconds_left,
    alpha_per_mille,
    settings,
    answer_us_p90,
    answer_us_p90_quiet,
    slow,
    away
});

/// Copies out of reach: they are at risk until their node is back, or counts as lost and they are
/// made again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Away {
    pub copies: u64,
    /// About what these take.
    pub bytes: u64,
    /// Chunks that they are of, and of these with one copy left within reach, and with none.
    pub chunks: u64,
    pub chunks_of_one: u64,
    pub chunks_of_none: u64,
}
codec_struct!(Away { copies, bytes, chunks, chunks_of_one, chunks_of_none });

/// What a person has said about recovery; 0 for what nobody has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoverySettings {
    /// By how much recovery may raise the 90th percentile of the foreground's answers; the leader
    /// finds alpha.
    pub p90_budget_percent: u32,
    /// Share of a link that foreground and recovery together may take.
    pub alpha_per_mille: u32,
    /// What recovery may take of a link in any case, bytes a second.
    pub floor_bytes_per_second: u64,
    /// What recovery may take of a link at most, bytes a second.
    pub rate_max: u64,
}
codec_struct!(RecoverySettings {
    p90_budget_percent,
    alpha_per_mille,
    floor_bytes_per_second,
    rate_max
});

/// Chunks whose copies wait or are slow, for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowTask {
    /// The first of them.
    pub chunk: ChunkId,
    pub count: u64,
    pub reason: String,
}
codec_struct!(SlowTask { chunk, count, reason });

/// A part of the names, as the node that is asked has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    pub shard: u16,
    /// The last entry of its topic that was applied; 0 where the node has not opened it.
    pub index: Index,
    pub files: u64,
    /// In its files.
    pub bytes: u64,
    /// Directories right below the root that it keeps; of shard 0, none: it keeps all others.
    pub directories: Vec<String>,
    /// Those that are on their way to it.
    pub coming: Vec<String>,
    pub moving: Moving,
}
codec_struct!(Shard { shard, index, files, bytes, directories, coming, moving });

/// What a shard has of directories that move with their content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moving {
    /// They take no changes until they are elsewhere.
    pub frozen: Vec<Frozen>,
    /// What was taken of those that come.
    pub taken: Vec<Taken>,
    /// Names that are elsewhere wait to be forgotten.
    pub is_leaving: bool,
    /// Slots and large chunks that names in other shards point to.
    pub held: u64,
    /// Of other shards' chunks, what nothing names any more and they have not heard of.
    pub owing: u64,
}
codec_struct!(Moving { frozen, taken, is_leaving, held, owing });

/// A directory that is to go to another shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frozen {
    pub dir: String,
    pub to: u16,
}
codec_struct!(Frozen { dir, to });

/// How much of a directory was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    pub dir: String,
    pub parts: u32,
}
codec_struct!(Taken { dir, parts });

/// What a person wants of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Move everything off a node, or stop doing so.
    Drain { node: NodeId, on: bool },
    /// Give up the nodes that the leader asks about.
    ConfirmLost { nodes: Vec<NodeId> },
    /// Set how recovery shares the links with the foreground.
    Recovery { settings: RecoverySettings },
    /// Only in development clusters, to the node itself: reach, or reach no more, an address.
    Cut { address: String, heal: bool },
    /// A store takes new chunks, or only serves those that it has.
    SetStore { store: StoreId, writable: bool },
    /// The node of this name is gone for good: the next one that joins with its certificate is
    /// another node.
    ReplaceNode { name: String },
    /// A certificate is worth nothing any more. It ends by itself at `until_s`, in seconds since
    /// 1970.
    Revoke { serial: String, until_s: i64 },
    /// The client of this name may do nothing any more.
    RevokeToken { name: String },
    /// A store whose node started without it never comes back.
    GiveUpStore { store: StoreId },
    /// One more shard, of this number: the next one. Nothing is done where it was added before.
    AddShard { shard: u16 },
    /// A directory right below the root goes to a shard with all that is in it; or, while it moves, stays
    /// where it is.
    MoveDirectory { dir: String, to: u16 },
}
codec_enum!(Order: "order" {
    1 => Drain { node, on },
    2 => ConfirmLost { nodes },
    3 => Recovery { settings },
    4 => Cut { address, heal },
    5 => SetStore { store, writable },
    6 => ReplaceNode { name },
    7 => Revoke { serial, until_s },
    8 => RevokeToken { name },
    9 => GiveUpStore { store },
    10 => AddShard { shard },
    11 => MoveDirectory { dir, to },
});

/// The longest that a token may last, in seconds: ten years. One that nobody has to think of again is
/// one that nobody revokes.
pub const TOKEN_TTL_MAX_S: u64 = 3650 * 86_400;

/// A token to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewToken {
    /// Of the client.
    pub name: String,
    /// What it may do, as people write it.
    pub rules: Vec<String>,
    /// Seconds from now on.
    pub ttl_s: u64,
}
codec_struct!(NewToken { name, rules, ttl_s });

/// What is told of a token; its key never is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenInfo {
    pub name: String,
    pub rules: Vec<String>,
    /// When it ends, in seconds since 1970.
    pub until_s: i64,
    /// When the node that was asked last heard from its client, in seconds since 1970; 0 for never
    /// since the node started.
    pub used_s: i64,
}
codec_struct!(TokenInfo { name, rules, until_s, used_s });
