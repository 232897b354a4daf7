//! Guests that come with Holdfast: see [`crate::world::guest`].

mod blobs;
mod items;
mod memory;
mod names;
mod overtaken;
mod scribe;
mod tables;
mod tokens;
mod writers;

use crate::world::guest::Guest;
use std::sync::Arc;

pub use blobs::blobs;
pub use items::items;
pub use memory::memory;
pub use overtaken::overtaken;
pub use scribe::scribe;
pub use tables::{strong_tables, tables};
pub use tokens::tokens;
pub use writers::writers;

/// Makes a guest, of each schedule anew.
pub type Make = fn() -> Arc<dyn Guest>;

/// All of them, by name.
pub const ALL: [(&str, Make); 8] = [
    ("blobs", blobs),
    ("items", items),
    ("memory", memory),
    ("scribe", scribe),
    ("strong-tables", strong_tables),
    ("tables", tables),
    ("tokens", tokens),
    ("writers", writers),
];
