//! Views: what nodes know, folded from topics of the log. One fold for all of them ([`Fold`]); what a
//! command means only a [`View`] knows.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod fold;
pub mod items;

pub use fold::{
    Apart, Applied, Arrival, Context, ENVELOPE_BYTES, Fold, FoldOptions, FoldStatus, GoesOn,
    InRows, Keeping, Kept, Marked, Page, Position, PutRow, Request, RowsView,
    SESSION_OUTSTANDING_MAX, SESSIONS_MAX, SNAPSHOT_BLOCK_BYTES, SnapshotPart, SnapshotStore, View,
    damaged, front, not_open, position,
};
