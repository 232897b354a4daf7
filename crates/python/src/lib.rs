//! The Rust client for Python. Classes here have the shapes of the Rust client's; what Python's users
//! expect on top of them (`open`, mappings, fsspec) is written in Python, in `python/holdfast`. Every
//! wait is without the interpreter's lock, so threads of one process wait for nodes side by side.
#![forbid(unsafe_code)]

mod aio;
mod background;
mod client;
mod columns;
mod errors;
mod files;
mod info;
mod items;
mod log;
mod pool;
mod process;
mod ranges;
mod records;
mod ride;
mod scribe;
mod shuffle;
mod stream;

use pyo3::prelude::*;

#[pymodule]
fn _holdfast(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<aio::AsyncClient>()?;
    module.add_class::<client::Client>()?;
    module.add_class::<files::Reader>()?;
    module.add_class::<files::Writer>()?;
    module.add_class::<info::FileInfo>()?;
    module.add_class::<info::Entry>()?;
    module.add_class::<info::Usage>()?;
    module.add_class::<items::Items>()?;
    module.add_class::<records::Records>()?;
    module.add_class::<records::RecordsInfo>()?;
    module.add_class::<ride::Ride>()?;
    module.add_class::<stream::AsyncReader>()?;
    module.add_class::<stream::AsyncWriter>()?;
    module.add_class::<stream::AsyncLogReader>()?;
    module.add_class::<log::Log>()?;
    module.add_class::<log::LogReader>()?;
    module.add_class::<log::TopicInfo>()?;
    module.add_class::<scribe::Scribe>()?;
    module.add_class::<scribe::CategoryReader>()?;
    module.add_class::<scribe::CategoryInfo>()?;
    module.add_class::<shuffle::Rules>()?;
    module.add_class::<shuffle::Mapper>()?;
    module.add_class::<shuffle::Receiver>()?;
    module.add_class::<shuffle::Sorted>()?;
    module.add_class::<columns::Folding>()?;
    module.add_function(wrap_pyfunction!(columns::cut_lines, module)?)?;
    module.add_function(wrap_pyfunction!(columns::count_words, module)?)?;
    module.add_function(wrap_pyfunction!(shuffle::draw_token, module)?)?;
    module.add_function(wrap_pyfunction!(shuffle::pair_boundary, module)?)?;
    module.add_function(wrap_pyfunction!(shuffle::disk_pace, module)?)?;
    shuffle::add_limits(module)
}
