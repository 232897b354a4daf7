//! Keeps caches honest: reads the row log of a database, or what shows in a table, waits until each change is visible to those who read
//! rows, writes the keys that it makes old to a topic, and has the topic's keys dropped by every server that
//! may hold them. What decides ([`map`], [`gate`], [`send`]) holds no connection; [`run`] drives it.
//! docs/invalidate.md says what holds, and why.
#![forbid(unsafe_code)]

pub mod ahead;
pub mod entry;
pub mod fence;
pub mod gate;
pub mod heat;
pub mod history;
pub mod lease;
pub mod map;
pub mod mariadb;
pub mod position;
pub mod postgres;
pub mod progress;
pub mod rings;
pub mod run;
pub mod send;
pub mod source;
pub mod status;
pub mod table;
mod tls;
