//! The file face: directories, files and streams over the node's namespace, log and stores,
//! served over the native protocol. Keeps no state of its own: what must last is in a fold.
#![forbid(unsafe_code)]

mod admin;
mod bytes;
mod logs;
mod peers;
mod reads;
mod service;
mod writes;

pub use service::FileService;
