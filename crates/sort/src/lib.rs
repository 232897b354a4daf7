//! External sort: every byte is read twice and written twice, or once and once when it fits into
//! memory, with reading, sorting and writing side by side. [`job::run`] is the whole of it; the
//! pieces (sample and boundaries in [`split`], orders in [`order`] and [`key`], sorting a partition
//! and merging in [`kernel`]) are functions of memory alone. Never writes where it was not told to,
//! and knows no server.
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
mod plan;
pub mod progress;
pub mod record;
mod run;
pub mod sorted;
mod spill;
pub mod split;
