//! The real code of log, fold, chunk store and node under power cuts: what was acknowledged is
//! there, what was not is whole or absent, and no sync can be left out.

mod chunk;
mod common;
mod fold;
mod log;
mod node;
