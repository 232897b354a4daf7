//! The threads of a store and of a log under drawn orders of their steps.

/// What the store's other tests ask it with.
#[path = "../../../chunk/tests/common/mod.rs"]
mod common;
mod log;
mod store;
