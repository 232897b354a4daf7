//! For developing only: the simulated disk that every crash test runs on, power cuts at every
//! operation, and the mutation fuzzer. Nothing here is shipped. Same seed, same outcome: a failing
//! seed is a one-line test.
#![forbid(unsafe_code)]

pub mod clocks;
pub mod conformance;
pub mod disk;
pub mod fuzz;
pub mod guests;
pub mod net;
pub mod powercut;
mod rows;
pub mod task;
pub mod unruly;
pub mod world;

pub use clocks::Clocks;
pub use disk::{SimDisk, SimDiskOptions};
pub use net::{Distance, Life, Listener, Over, SimNet, Weather};

/// Waits nest: a suspended round holds its frames while others run.
pub const STACK_BYTES: usize = 256 << 20;

/// Runs something on a thread of its own that has so much stack.
pub fn on_a_deep_stack<T: Send>(what: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().stack_size(STACK_BYTES);
        let thread = builder.spawn_scoped(scope, what);
        thread.expect("a thread can be had").join().expect("the world does not panic")
    })
}
