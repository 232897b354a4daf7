//! External sort.
#![deny(unsafe_code)]

mod failure;
pub mod kernel;
pub mod split;
pub mod gray;
pub mod hash;
pub mod key;
mod local;
mod number;
pub mod order;
pub mod record;
