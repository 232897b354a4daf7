//! S3 over the blob face: the protocol is s3s', everything that it means is here: limits, users and
//! policies, conditions, checksums, listings, settings of buckets. Also a small client, for the
//! tools. Never keeps state of its own: what it is told goes into the blob face's topic.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod access;
mod admin;
mod batch;
mod buckets;
mod client;
mod conditions;
mod copy;
mod cors;
mod credentials;
/// What every HTTP port does with a connection: its place, its patience, its memory.
pub mod door;
mod errors;
mod forms;
mod front;
mod hash;
mod headers;
mod host;
mod hot;
mod incoming;
mod lifecycle;
mod listing;
mod locks;
mod multipart;
mod native;
mod objects;
mod outgoing;
mod photos;
mod policy;
mod scale;
mod server;
mod service;
mod settings;
pub mod signature;
mod tab;
mod tags;
mod trail;

pub use client::{Client, Endpoint, Request, Response, Signer, element, elements};
pub use credentials::{Credentials, FILE as CREDENTIALS_FILE, find_or_make, random_key};
pub use host::Domain;
pub use hot::{Hot, HotCounts};
pub use lifecycle::Lifecycle;
pub use server::{CONNECTIONS_MAX, Entrance, Limits, Server};
pub use tags::percent_decode;

/// The one region there is, whatever a client calls it.
pub const REGION: &str = "us-east-1";
