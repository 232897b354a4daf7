//! Dayu: which chunk is copied from where to where at what rate, planned slot by slot as pure
//! functions, and the flow-level simulator that judges the plans. No clock, no files, no threads:
//! the same input and seed give the same plan, byte for byte.
//!
//! Units, everywhere in this crate: sizes in MB (10^6 bytes), rates in MB/s, times in seconds.
//! f32 holds a chunk of 64 MB to 4 bytes, and lets a search look at twice as many nodes at once.
#![forbid(unsafe_code)]

pub mod fill;
#[cfg(feature = "milp")]
mod milp;
pub mod model;
pub mod plan;
pub mod random;
pub mod rates;
pub mod search;
pub mod select;
pub mod sim;
pub mod straggler;
pub mod trace;
