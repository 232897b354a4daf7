//! The seams between Holdfast and the machine: clock, randomness, disk, ordered rows, network,
//! memory regions, threads. The only crate that names libc; everything above takes these as
//! arguments, so that a simulation can stand in for the machine.

pub mod arena;
pub mod budget;
pub mod buf;
pub mod clients;
pub mod clock;
pub mod disk;
pub mod events;
pub mod local;
pub mod locks;
pub mod memory;
pub mod net;
pub mod poll;
pub mod region;
pub mod ring;
pub mod rng;
pub mod rows;
pub mod runtime;
pub mod secret;
pub mod signals;
pub mod sockets;
pub mod sync;
pub mod tasks;
pub mod tls;
pub mod trial;

pub use budget::{Asker, Budget};
pub use clients::Clients;
pub use clock::{Clock, RealClock};
pub use disk::{Disk, File, Overlay, RealDisk};
pub use locks::{HoldMutex, HoldRwLock};
pub use region::{Region, RegionMut, RegionSlice};
pub use rng::{RealRng, Rng, SeededRng};
pub use rows::{Engine, RealEngine, Rows};
pub use secret::{Secret, Secrets};
/// For [`event!`], which expands to it.
pub use tracing;
