//! For developing only: the simulated disk that every crash test runs on, power cuts at every
//! operation, and the mutation fuzzer. Nothing here is shipped. Same seed, same outcome: a failing
//! seed is a one-line test.
#![forbid(unsafe_code)]

pub mod disk;
pub mod fuzz;
pub mod guests;
pub mod net;
pub mod powercut;
mod rows;
pub mod task;
pub mod unruly;
pub mod world;

pub use disk::{SimDisk, SimDiskOptions};
pub use net::{Distance, Life, Listener, SimNet, Weather};
