//! The exchange of a sort or a MapReduce over many machines. A [`mapper::Mapper`] cuts records into
//! partitions and sends blocks of them; a [`receiver::Receiver`] writes what arrives front to back
//! into one file; [`sorter`] sorts one partition of it. Who runs where, and what is done again, is
//! decided elsewhere (`python/holdfast`, on Ray): nothing here starts a process or tries twice.
//!
//! The cores are [`credit`], [`ledger`], [`fold`] and [`words`]; the forms on the wire are in docs/formats/shuffle.md.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod credit;
pub mod fold;
pub mod kept;
mod keyed;
pub mod ledger;
pub mod limits;
pub mod mapper;
mod message;
pub mod output;
pub mod pairs;
pub mod receiver;
mod sender;
pub mod simulated;
pub mod sorter;
mod spool;
pub mod words;
