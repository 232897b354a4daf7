//! The messages of the native protocol: what the meta of each opcode's frames holds. And [`slab`]s,
//! the form in which a view's items travel. No connection. docs/formats/wire.md lists the opcodes;
//! the codec writes fields in order.

#![forbid(unsafe_code)]

pub mod admin;
pub mod chunk;
pub mod file;
pub mod log;
pub mod peer;
pub mod peer_log;
pub mod scribe;
pub mod slab;
pub mod table;
#[cfg(test)]
mod tests;
pub mod view;

use holdfast_base::codec_struct;
use holdfast_base::ids::{Sequence, SessionId};

/// `PING`: answered with an empty message; measures the path.
pub const OP_PING: u16 = 0x0001;
/// `OPEN_SESSION`: empty; answered with a [`SessionId`].
pub const OP_OPEN_SESSION: u16 = 0x0002;
/// `END_SESSION`: a [`SessionId`]; answered empty.
pub const OP_END_SESSION: u16 = 0x0003;
/// `STATUS`: empty; answered with [`admin::Status`].
pub const OP_STATUS: u16 = 0x0004;
/// `RING`: empty, over a Unix socket only and with the descriptor of a ring, see
/// docs/formats/ring.md; answered empty.
pub const OP_RING: u16 = holdfast_env::net::OP_RING;
/// `YIELD`: empty; answered empty. What is answered over this connection from now on is marked as
/// lower effort: recovery's blocks wait behind others' bytes where the network tells them apart.
pub const OP_YIELD: u16 = holdfast_env::net::OP_YIELD;

/// `HELLO`: version, role and nonce; answered with the server's nonce and proof, see
/// docs/formats/wire.md. Over TCP nothing else but a ping is answered before it and `PROVE`.
pub const OP_HELLO: u16 = holdfast_env::net::OP_HELLO;
/// `PROVE`: the client's proof; answered empty.
pub const OP_PROVE: u16 = holdfast_env::net::OP_PROVE;

/// `CLUSTER`: empty; answered with [`admin::Cluster`].
pub const OP_CLUSTER: u16 = 0x0006;
/// `ORDER`: [`admin::Order`]; answered empty.
pub const OP_ORDER: u16 = 0x0007;

/// `CATCH_UP`: empty; answered empty once the node's view has all that was durable in the log when
/// it was asked.
pub const OP_CATCH_UP: u16 = 0x0008;

/// `NODES`: empty; answered with a list of text, where the cluster's other nodes listen that live:
/// a client goes on there when the one that it talks to dies.
pub const OP_NODES: u16 = 0x0009;

/// `HELD`: empty; answered with [`admin::Held`].
pub const OP_HELD: u16 = 0x000b;

/// `TOKEN_CREATE`: [`admin::NewToken`]; answered with the token's text, which is told once.
pub const OP_TOKEN_CREATE: u16 = 0x000c;

/// `TOKENS`: empty; answered with a list of [`admin::TokenInfo`].
pub const OP_TOKENS: u16 = 0x000d;
/// `SLOWED`: empty; answered with a list of [`admin::Slowed`].
pub const OP_SLOWED: u16 = 0x000e;

/// `LOG_HOST`: empty; answered with a text, the address of the node that keeps the log which this one
/// follows, or that of the brokers (`kafka://...`); empty where it keeps the log itself.
pub const OP_LOG_HOST: u16 = 0x000f;

/// `SHARDS`: empty; answered with a list of [`admin::Shard`].
pub const OP_SHARDS: u16 = 0x0012;

/// `REGION`: empty, over a Unix socket only; answered with [`chunk::RegionOffer`] and the
/// region's descriptor.
pub const OP_REGION: u16 = 0x0101;
/// `APPEND`: [`chunk::Append`] and the bytes; answered with the acknowledged length (u64).
pub const OP_CHUNK_APPEND: u16 = 0x0102;
/// `READ`: [`chunk::Read`]; answered with [`chunk::ReadReply`] and the bytes.
pub const OP_CHUNK_READ: u16 = 0x0103;
/// `LOCATE`: [`chunk::Read`]; answered with [`chunk::Located`], for a mapped region.
pub const OP_CHUNK_LOCATE: u16 = 0x0104;
/// `READ_OBJECT`: [`chunk::ReadObject`]; answered as `READ`.
pub const OP_CHUNK_READ_OBJECT: u16 = 0x0105;

/// `LOG_APPEND`: [`log::Append`]; answered with [`log::Appended`].
pub const OP_LOG_APPEND: u16 = 0x0201;
/// `LOG_READ`: [`log::Read`]; answered with [`log::Entries`].
pub const OP_LOG_READ: u16 = 0x0202;
/// `LOG_TRIM`: [`log::Trim`]; answered empty.
pub const OP_LOG_TRIM: u16 = 0x0203;
/// `LOG_INFO`: a topic name, or an empty one for all; answered with a list of [`log::Info`].
pub const OP_LOG_INFO: u16 = 0x0204;
/// `LOG_SET`: [`log::Set`]; answered with [`log::Retention`], as it is from now on.
pub const OP_LOG_SET: u16 = 0x0206;
/// `LOG_RETENTION`: a topic name; answered with [`log::Retention`].
pub const OP_LOG_RETENTION: u16 = 0x0207;
/// `LOG_VERIFY`: [`log::Verify`]; answered with [`log::Verified`], or with what cannot be read.
pub const OP_LOG_VERIFY: u16 = 0x0208;

/// `LOOKUP`: [`file::Lookup`]; answered with [`file::FileInfo`].
pub const OP_LOOKUP: u16 = 0x0301;
/// `GET`: [`file::Get`]; answered with [`file::GetReply`] and, for a small file, its bytes.
pub const OP_GET: u16 = 0x0302;
/// `PUT`: [`file::Put`] and the bytes; answered with the [`FileId`](holdfast_base::ids::FileId).
pub const OP_PUT: u16 = 0x0303;
/// `BEGIN`: [`file::Begin`]; answered with [`file::Begun`].
pub const OP_BEGIN: u16 = 0x0304;
/// `ALLOCATE`: [`file::Allocate`]; answered with [`file::Grant`].
pub const OP_ALLOCATE: u16 = 0x0305;
/// `CLOSE`: [`file::Close`]; answered with the file's id.
pub const OP_CLOSE: u16 = 0x0306;
/// `LIST`: [`file::List`]; answered with [`file::Page`].
pub const OP_LIST: u16 = 0x0307;
/// `CHANGE`: [`file::Change`]; answered empty. Every other change of the namespace.
pub const OP_CHANGE: u16 = 0x0308;
/// `USAGE`: a path; answered with [`file::Usage`].
pub const OP_USAGE: u16 = 0x0309;
/// `EXTENTS`: [`file::ExtentsOf`]; answered with a list of [`file::Extent`].
pub const OP_EXTENTS: u16 = 0x030a;
/// `UNCLOSED`: empty; answered with a list of [`file::Unclosed`].
pub const OP_UNCLOSED: u16 = 0x030b;
/// `REMAINDER`: [`file::Remainder`] and the bytes: the end of a large file, packed; answered with
/// its [`Pointer`](holdfast_base::ids::Pointer).
pub const OP_REMAINDER: u16 = 0x030c;

/// `VIEW_SESSION`: a topic of items; answered with a [`SessionId`], under which changes are numbered.
pub const OP_VIEW_SESSION: u16 = 0x0501;
/// `VIEW_MAKE`: [`view::Make`]; answered with [`view::Changed`]. Made twice is made.
pub const OP_VIEW_MAKE: u16 = 0x0502;
/// `VIEW_CHANGE`: [`view::Change`] and the changes; answered with [`view::Changed`].
pub const OP_VIEW_CHANGE: u16 = 0x0503;
/// `VIEW_HORIZON`: [`view::Horizon`]; answered with [`view::Changed`].
pub const OP_VIEW_HORIZON: u16 = 0x0504;
/// `VIEW_CATALOG`: a topic; answered with [`view::Catalog`].
pub const OP_VIEW_CATALOG: u16 = 0x0505;
/// `VIEW_GET`: [`view::Get`]; answered with [`view::Got`].
pub const OP_VIEW_GET: u16 = 0x0506;
/// `VIEW_SCAN`: [`view::Scan`]; answered with [`view::Rows`].
pub const OP_VIEW_SCAN: u16 = 0x0507;
/// `VIEW_RUN`: [`view::ViewName`]; answered empty once the view is open.
pub const OP_VIEW_RUN: u16 = 0x0508;
/// `VIEW_STOP`: [`view::ViewName`]; answered with the directory that the view has left.
pub const OP_VIEW_STOP: u16 = 0x0509;
/// `VIEW_STATUS`: a topic, or an empty name for all; answered with a list of [`view::ViewStatus`],
/// those of the node.
pub const OP_VIEW_STATUS: u16 = 0x050a;
/// `VIEW_FIND`: [`view::Find`]; answered with [`view::Havings`].
pub const OP_VIEW_FIND: u16 = 0x050b;
/// `VIEW_SUM`: [`view::Sum`]; answered with [`view::Summed`].
pub const OP_VIEW_SUM: u16 = 0x050c;
/// `VIEW_MARK`: [`view::Mark`]; answered with [`view::Changed`], the entry that images are made of.
pub const OP_VIEW_MARK: u16 = 0x050f;
/// `RIDE_BEGIN`: [`view::Board`]; answered with [`view::Boarded`] and what it says of the body.
pub const OP_RIDE_BEGIN: u16 = 0x0510;
/// `RIDE_NEXT`: [`view::Next`]; answered with a slab's header and its columns, see
/// docs/formats/slab.md, or empty at the end of the ride.
pub const OP_RIDE_NEXT: u16 = 0x0511;
/// `RIDE_END`: a ride's number; answered empty.
pub const OP_RIDE_END: u16 = 0x0512;
/// `RIDE_DOUBT`: [`view::Doubt`]; answered empty, before anybody has looked.
pub const OP_RIDE_DOUBT: u16 = 0x0513;

/// `SCRIBE_APPEND`: [`scribe::Append`] and the batches; answered with [`scribe::Positions`].
pub const OP_SCRIBE_APPEND: u16 = 0x0601;
/// `SCRIBE_ASK`: [`scribe::Ask`]; answered with [`scribe::Positions`].
pub const OP_SCRIBE_ASK: u16 = 0x0602;
/// `SCRIBE_READ`: [`scribe::Read`]; answered with [`scribe::Batches`] and the batches.
pub const OP_SCRIBE_READ: u16 = 0x0603;
/// `SCRIBE_STATUS`: empty; answered with a list of [`scribe::CategoryStatus`].
pub const OP_SCRIBE_STATUS: u16 = 0x0604;
/// `SCRIBE_KEEP`: [`scribe::Keep`]; answered with [`scribe::Kept`].
pub const OP_SCRIBE_KEEP: u16 = 0x0605;
/// `SCRIBE_READER`: [`scribe::Reader`]; answered with where it reads on, an optional index.
pub const OP_SCRIBE_READER: u16 = 0x0606;
/// `SCRIBE_SAY`: [`scribe::Say`]; answered with [`scribe::AllHeard`].
pub const OP_SCRIBE_SAY: u16 = 0x0607;

/// `TABLE_MAKE`: [`table::Make`]; answered with [`table::TableInfo`].
pub const OP_TABLE_MAKE: u16 = 0x0701;
/// `TABLE_LIST`: empty; answered with a list of [`table::TableInfo`].
pub const OP_TABLE_LIST: u16 = 0x0702;
/// `TABLE_DESCRIBE`: a table's name; answered with [`table::TableInfo`].
pub const OP_TABLE_DESCRIBE: u16 = 0x0703;
/// `TABLE_WRITE`: [`table::Write`] and rows; answered with a body, what came of each.
pub const OP_TABLE_WRITE: u16 = 0x0704;
/// `TABLE_READ`: [`table::Read`]; answered with a body, an optional record for each key.
pub const OP_TABLE_READ: u16 = 0x0705;
/// `TABLE_SCAN`: [`table::Scan`]; answered with a body, [`table::Page`].
pub const OP_TABLE_SCAN: u16 = 0x0706;
/// `TABLE_PREPARE`: [`table::Prepare`]; answered with a list of [`table::Prepared`], one a tablet.
pub const OP_TABLE_PREPARE: u16 = 0x0707;
/// `TABLE_ADOPT`: [`table::Adopt`]; answered with [`table::TableInfo`].
pub const OP_TABLE_ADOPT: u16 = 0x0708;
/// `TABLE_TELL`: [`table::Tell`] and a list of [`table::Told`]; answered empty.
pub const OP_TABLE_TELL: u16 = 0x0709;
/// `TABLE_SEAL`: [`table::Seal`]; answered with [`table::Sealed`].
pub const OP_TABLE_SEAL: u16 = 0x070a;
/// `TABLE_BRANCHES`: [`table::Branches`]; answered with a body, a list of [`table::Branch`].
pub const OP_TABLE_BRANCHES: u16 = 0x070b;
/// `TABLE_RESOLVE`: [`table::Resolve`]; answered empty.
pub const OP_TABLE_RESOLVE: u16 = 0x070c;
/// `TABLE_DROP`: [`table::DropTable`]; answered with [`table::Dropped`].
pub const OP_TABLE_DROP: u16 = 0x070d;
/// `TABLE_GONE`: [`table::Gone`]; answered empty.
pub const OP_TABLE_GONE: u16 = 0x070e;

/// `TABLE_GROUP`: [`table::Group`] and rows that stand or fall together; answered with a body,
/// [`table::GroupWritten`].
pub const OP_TABLE_GROUP: u16 = 0x070f;
/// `TABLE_READ_GROUP`: [`table::Read`], of keys of one tablet as they show at one moment; answered as `TABLE_READ`,
/// with all of them.
pub const OP_TABLE_READ_GROUP: u16 = 0x0710;
/// `TABLE_CHANGES`: [`table::Changes`]; answered with a body, a list of [`table::TabletChanges`].
pub const OP_TABLE_CHANGES: u16 = 0x0711;
/// `TABLE_SPLIT`: [`table::Split`]; answered with [`table::TableInfo`].
pub const OP_TABLE_SPLIT: u16 = 0x0712;

/// In front of every request that changes something: whose it is and its number, so that a
/// repetition gets the first answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Call {
    pub session: SessionId,
    pub sequence: Sequence,
    /// Every answer below this number has arrived; the server may forget them.
    pub acknowledged_below: Sequence,
}
codec_struct!(Call { session, sequence, acknowledged_below });
