//! Counters: a face that is as small as one can be and has all that a face has. A topic of the log
//! holds every addition, a view holds the sums, two operations serve them, a command asks. Built
//! and tested with everything else, so that the page that walks through it stays true.
#![forbid(unsafe_code)]

mod face;
mod view;

pub use face::{Addition, CounterFace, OP_ADD, OP_OPEN, OP_READ};
pub use view::{Add, Counters, NAME_BYTES_MAX};

/// The topic that holds the additions. Nobody but the view writes it: whoever folds a topic owns it.
pub const TOPIC: &str = "counters/0";
