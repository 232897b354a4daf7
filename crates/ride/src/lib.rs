//! Rides: everything that a view holds at one index, streamed to whoever asks. [`carousel`] has
//! the core that decides how many riders share one pass over a view.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod carousel;
