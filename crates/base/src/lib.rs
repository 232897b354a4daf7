//! What every other crate agrees on: ids, units, limits, checksums, codecs, errors.
//! Pure: nothing here reads a clock, a file or a socket.
#![forbid(unsafe_code)]

pub mod checksum;
pub mod codec;
pub mod error;
pub mod frame;
pub mod ids;
pub mod indices;
pub mod limits;
pub mod node;
pub mod ordered;
pub mod path;
pub mod random;
pub mod rates;
pub mod rules;
pub mod stream;
pub mod text;
pub mod units;

pub use error::{Error, Kind, Reason, Result};
pub use indices::Indices;
