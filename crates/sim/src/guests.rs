//! Guests that come with Holdfast: see [`crate::world::guest`].

mod blobs;
mod memory;
mod names;
mod tokens;

use crate::world::guest::Guest;
use std::sync::Arc;

pub use blobs::blobs;
pub use memory::memory;
pub use tokens::tokens;

/// Makes a guest, of each schedule anew.
pub type Make = fn() -> Arc<dyn Guest>;

/// All of them, by name.
pub const ALL: [(&str, Make); 3] = [("blobs", blobs), ("memory", memory), ("tokens", tokens)];
