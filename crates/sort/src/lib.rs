//! External sort.
#![deny(unsafe_code)]

mod failure;
pub mod gray;
mod local;
