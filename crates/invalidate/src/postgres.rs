//! PostgreSQL as a source: its log by logical replication (the plugin `pgoutput`), what its catalog says, and
//! what it shows to who reads. The protocol is spoken here, as far as that needs it: decision 0026.

mod bytes;
mod catalog;
mod connection;
pub mod output;
mod proof;
pub mod rows;
mod seen;
mod slot;
mod source;
pub mod wire;

pub use connection::{Connection, Server, Texts};
pub use seen::{At, Seen, Snapshot};
pub use slot::{Slot, check_name, name_of, standing};
pub use source::Postgres;
