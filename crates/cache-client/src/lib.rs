//! The cache's client side, for any memcached server: ketama, multigets and multisets fanned out,
//! gets over UDP or TCP, one window for all that is outstanding; and the router, which puts the
//! same behind a memcached port. What decides (`ring`, `window`, `fleet`) holds no socket.
#![forbid(unsafe_code)]

mod assembly;
mod batch;
mod client;
mod cookie;
pub mod fleet;
pub mod incast;
pub mod links;
pub mod lookaside;
pub mod protocol;
pub mod ring;
pub mod route;
pub mod window;
pub mod wire;

pub use batch::{Answer, Batch, Store};
pub use client::{CacheClientOptions, Client, Drops, Failover};
pub use cookie::Cookie;
pub use fleet::Transport;
pub use lookaside::{Invalidated, Lookaside, LookasideCounts, LookasideOptions};
pub use ring::{Hashing, Member, Ring};
