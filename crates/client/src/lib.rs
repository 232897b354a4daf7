//! The Rust client: a connection, a session, files by name, and streams. Never depends on a
//! server crate; server crates take the messages from here.
//!
//! ```no_run
//! use holdfast_client::{Client, ClientOptions, Endpoint, NewFile, Secret};
//!
//! # fn main() -> holdfast_base::Result<()> {
//! let secret = Secret::load("data/secret".as_ref())?;
//! let options = ClientOptions { secrets: secret.into(), ..ClientOptions::default() };
//! let mut client = Client::connect(&Endpoint::parse("127.0.0.1:7400")?, &options)?;
//! client.put("/greeting", b"hello", &NewFile::default())?;
//! assert_eq!(client.get("/greeting")?, b"hello");
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

#[cfg(feature = "async")]
pub mod aio;
mod client;
pub mod connection;
pub mod log;
mod patience;
mod region;
mod scribe;
mod session;
mod sight;
mod stream;
mod table;
pub mod view;

pub use client::{Client, NewFile, Ticket};
pub use connection::{ClientOptions, Connection, RequestId, Response, Silent};
pub use holdfast_env::net::{Endpoint, TlsClient};
pub use holdfast_env::secret::Token;
pub use holdfast_env::{Secret, Secrets};
pub use log::{LogClient, LogReader, LogWriter};
pub use scribe::{CategoryReader, ScribePage};
pub use stream::{FileReader, FileWriter, MultiStream, Run};
pub use table::{Keep, SEALED_WITHIN, TableClient, TableWrite};
pub use view::ViewClient;
