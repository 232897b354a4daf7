//! The native protocol's server. Knows who asks and which face answers what: a face registers its
//! operations as [`Route`]s, and [`Native`] takes each request of a connection to its own. What
//! every node answers is here, too: other nodes ([`nodes`](mod@nodes)), people ([`admin`]) and
//! readers of the log ([`logs`]). Never knows what a face does; called on reactor threads.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod admin;
mod gather;
mod host;
mod logs;
mod native;
mod nodes;
mod route;
mod shards;
mod tails;

pub use gather::Gather;
pub use host::{ask_host, pass_on};
pub use native::Native;
pub use route::{
    AtOnce, Face, Later, Request, Right, Rights, Route, Told, Within, answer, beyond_rules, decoded,
};
pub use tails::{Place, Tails};
