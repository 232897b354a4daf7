//! Scribe's categories: log messages, read once and in their order, and who reads where.

use crate::errors::waiting;
use crate::pool::Pool;
use holdfast_base::ids::Index;
use holdfast_env::HoldMutex;
use holdfast_wire::scribe as msg;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Categories of a node, over a client's connections.
#[pyclass(frozen, module = "holdfast._holdfast")]
pub struct Scribe {
    pool: Arc<Pool>,
}

impl Scribe {
    pub fn new(pool: Arc<Pool>) -> Scribe {
        Scribe { pool }
    }
}

#[pymethods]
impl Scribe {
    /// Reads a category from an entry on; else one with a name from where the last of this name was, or from
    /// the oldest message; else from the next message, or from the oldest.
    #[pyo3(signature = (category, start, name, at_next))]
    fn reader(
        &self,
        py: Python<'_>,
        category: &str,
        start: Option<u64>,
        name: Option<&str>,
        at_next: bool,
    ) -> PyResult<CategoryReader> {
        let from = start.map(Index);
        let reader = waiting(py, || {
            let mut client = self.pool.lend()?;
            holdfast_client::CategoryReader::begin(&mut client, category, from, name, at_next)
        })?;
        Ok(CategoryReader { pool: self.pool.clone(), reader: Mutex::new(reader) })
    }

    /// Forgets where a reader with this name is.
    fn forget(&self, py: Python<'_>, category: &str, reader: &str) -> PyResult<()> {
        waiting(py, || self.pool.lend()?.scribe_move_reader(category, reader, Index(0)))
    }

    /// The categories that there are.
    fn categories(&self, py: Python<'_>) -> PyResult<Vec<CategoryInfo>> {
        let status = waiting(py, || self.pool.lend()?.scribe_status())?;
        Ok(status.into_iter().map(CategoryInfo::from).collect())
    }
}

/// Where somebody reads a category.
#[pyclass(frozen, module = "holdfast._holdfast")]
pub struct CategoryReader {
    pool: Arc<Pool>,
    reader: Mutex<holdfast_client::CategoryReader>,
}

/// A message with the index of its entry.
type Indexed<'py> = (u64, Bound<'py, PyBytes>);

#[pymethods]
impl CategoryReader {
    /// The next messages, each with the index of its entry, waiting for the first for so long; None at the end,
    /// and if none came. An empty list where all were repeats.
    #[pyo3(signature = (wait_s=0.0))]
    fn read<'py>(&self, py: Python<'py>, wait_s: f64) -> PyResult<Option<Vec<Indexed<'py>>>> {
        let wait = Duration::try_from_secs_f64(wait_s).unwrap_or_default();
        let read = || {
            let mut reader = self.reader.held();
            self.pool.reading(wait, |client| reader.read(client, wait))
        };
        let Some(entries) = waiting(py, read)? else { return Ok(None) };
        let mut messages = Vec::new();
        for (index, entry) in &entries {
            messages.extend(entry.iter().map(|message| (index.0, PyBytes::new(py, message))));
        }
        Ok(Some(messages))
    }

    /// What was read is taken: a reader with a name goes on behind it, whoever it is then.
    fn taken(&self, py: Python<'_>) -> PyResult<()> {
        waiting(py, || self.reader.held().taken(&mut *self.pool.lend()?))
    }
}

/// How a category is doing.
#[pyclass(frozen, get_all, module = "holdfast")]
pub struct CategoryInfo {
    category: String,
    /// The oldest entry that can be read, and the one that comes next.
    first: u64,
    next: u64,
    /// Since it began: messages, and their bytes.
    messages: u64,
    bytes: u64,
    /// What it takes in the log.
    log_bytes: u64,
    /// Spools that ever sent something, and those that are lost.
    spools: u64,
    lost: u64,
    /// Where each reader with a name goes on.
    readers: BTreeMap<String, u64>,
}

impl From<msg::CategoryStatus> for CategoryInfo {
    fn from(status: msg::CategoryStatus) -> CategoryInfo {
        let at = |at: msg::ReaderAt| (at.reader, at.next.0);
        CategoryInfo {
            category: status.category,
            first: status.first.0,
            next: status.next.0,
            messages: status.messages,
            bytes: status.raw_bytes,
            log_bytes: status.log_bytes,
            spools: status.spools,
            lost: status.lost,
            readers: status.readers.into_iter().map(at).collect(),
        }
    }
}

#[pymethods]
impl CategoryInfo {
    fn __repr__(&self) -> String {
        let CategoryInfo { category, first, next, messages, .. } = self;
        format!("CategoryInfo({category:?}, first={first}, next={next}, messages={messages})")
    }
}
