//! The cache: memcached's protocols over TCP and UDP on a store that all threads share. Sockets,
//! clocks and memory come from `env`; the binary calls [`Server`].
#![forbid(unsafe_code)]

mod engine;
mod hash;
mod index;
mod item;
mod large;
mod local;
mod meta;
mod out;
mod reclaim;
pub mod report;
mod segments;
mod server;
mod session;
mod settings;
pub mod stats;
pub mod store;
mod text;
mod udp;
mod values;
mod warm;
mod worker;

pub use local::Local;
pub use server::Server;
pub use settings::{Ablation, Settings, Shared, UDP_REPLY_BYTES, VERSION};
pub use worker::IDLE_S;
