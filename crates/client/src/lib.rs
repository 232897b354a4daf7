//! The Rust client: connections to a server, and the messages of the native protocol. Never
//! depends on a server crate; server crates take the messages from here.
#![forbid(unsafe_code)]

pub mod connection;
pub mod wire;

pub use connection::{Connection, Options, RequestId, Response};
pub use holdfast_env::net::Endpoint;
