//! What commands share: what they print and draw, where a data directory keeps what they look for,
//! what they prove to nodes, and the clusters of processes that they start. Never reads a command
//! line, and decides nothing about data.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod certificates;
pub mod chart;
pub mod distance;
pub mod files;
mod local_cluster;
pub mod output;
pub mod secrets;
pub mod supervisor;

pub use local_cluster::LocalCluster;
