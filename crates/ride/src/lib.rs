//! Views of items, served: their topics and views on a node ([`Views`], [`ViewFace`]), and rides:
//! everything that a view holds at one index, streamed to whoever asks. [`carousel`] has the core that
//! decides how many riders share one pass over a view. docs/views.md says what must hold.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod boot;
pub mod carousel;
mod face;
mod image;
mod rides;
mod scan;
mod views;

pub use face::{ViewFace, check_json};
pub use rides::{ASKED_MAX, RIDERS_MAX, Whole};
pub use views::{KeptView, REPLAYED_BYTES_MAX, RunView, Settings, VIEWS_MAX, Views, describe};
