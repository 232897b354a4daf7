//! The file face: directories, files and streams over the node's namespace, log and stores,
//! served over the native protocol. Keeps no state of its own: what must last is in a fold.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod bytes;
mod deeds;
mod face;
mod given;
mod reads;
mod within;
mod writes;

pub use face::FileFace;
