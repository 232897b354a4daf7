//! External sort.
#![deny(unsafe_code)]

mod failure;
pub mod kernel;
mod distribute;
mod deliver;
pub mod input;
pub mod output;
mod run;
pub mod progress;
pub mod sorted;
mod spill;
mod plan;
pub mod split;
pub mod gray;
pub mod hash;
pub mod key;
pub mod job;
mod local;
mod number;
pub mod order;
pub mod record;
