//! DynamoDB's JSON API over a store of versioned rows ([`rows::Rows`]): values and numbers, their
//! JSON and their bytes, expressions, operations, and the port; and a node's tables as that store
//! ([`tables`]). Keeps no state of its own.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod answer;
pub use answer::ANSWER_BYTES;
pub mod api;
pub mod decimal;
pub mod expression;
pub mod fault;
pub mod form;
pub mod index;
pub mod json;
pub mod key;
pub mod range;
mod request;
pub mod rows;
pub mod server;
pub mod table;
pub mod tables;
pub mod token;
pub mod users;
pub mod value;
