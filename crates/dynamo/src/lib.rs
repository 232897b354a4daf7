//! DynamoDB's JSON API over any store of versioned rows: values and numbers, their JSON and
//! bytes, expressions. Never keeps state of its own, and knows no tablet or node.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod decimal;
pub mod expression;
pub mod fault;
pub mod form;
pub mod json;
pub mod key;
pub mod value;
