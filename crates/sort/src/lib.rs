//! External sort: every byte is read twice and written twice, or once and once when it fits into
//! memory, with reading, sorting and writing side by side. [`job::run`] is the whole of it; its
//! steps (sample, partition, sort a partition, merge) are functions of memory alone in [`pieces`],
//! made of [`split`], [`order`] and [`kernel`]. Never writes where it was not told to, and knows no
//! server.
#![deny(unsafe_code)]

mod deliver;
mod distribute;
mod failure;
mod general;
pub mod gray;
pub mod hash;
pub mod input;
pub mod job;
pub mod kernel;
pub mod key;
mod local;
mod manifest;
mod number;
pub mod order;
pub mod output;
pub mod pieces;
mod plan;
pub mod probe;
pub mod progress;
pub mod record;
mod run;
pub mod sorted;
mod source;
mod spill;
pub mod split;
mod version;

pub use plan::memory_bytes_min;
