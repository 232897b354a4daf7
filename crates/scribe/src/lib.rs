//! Scribe.
