//! Views of items: what entries of one topic make of keys and values, in collections. The same
//! commands make a catalog, a view of every version in rows, one of the newest values in memory, and
//! an index; all of them accept and refuse the same entries. Called by the face that serves them and
//! by whoever builds a view of their own; never opens a connection or a file.

mod catalog;
mod changes;
mod command;
mod disk;
mod index;
mod memory;
mod pass;
mod rows;
pub mod stream;
mod sums;
mod sweep;
mod values;

pub use catalog::{COLLECTIONS_MAX, Catalog, CatalogView, NAME_BYTES_MAX, is_name, log_topic};
pub use changes::ChangesView;
pub use command::{Change, Command};
pub use disk::{DiskView, Found, Keyed, Reader, Sought};
pub use index::{IndexView, Indexed};
pub use memory::MemoryView;
pub use pass::{EachItem, Pass};
pub use sums::Totals;
pub use sweep::{SWEEP_ROWS_MIN, SweepStep, sweep};
