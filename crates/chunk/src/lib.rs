//! One node's stores. A [`Store`] is one directory (tier `disk`) or one memory region (tier
//! `dram`) that holds chunks: raw ones read by byte offset, packed ones read by slot. It never
//! knows names and never decides what lives; services call it, the cluster's log commands it.
//! Bytes on disk are described in docs/formats/chunk.md.
#![forbid(unsafe_code)]

mod api;
mod aside;
mod commit;
mod compact;
mod disk;
mod dram;
mod format;
mod index;
mod journal;
mod journal_format;
mod load;
mod names;
mod open;
mod proven;
mod read;
mod recover;
mod replay;
mod scrub;
mod seal;
mod sealed;
mod slot_table;
mod spare;
mod store;
mod transfer;
mod writeback;

pub use api::*;
pub use aside::QUARANTINE_S;
pub use scrub::{ScrubCursor, ScrubStep, Scrubber};
/// Public for those who count its instructions and bytes; a store makes its own.
pub use slot_table::SlotTable;
pub use store::Store;
pub use transfer::{Exported, Import};

/// Longest hint of a needle; a name fits.
pub const NEEDLE_HINT_BYTES_MAX: usize = 255;
