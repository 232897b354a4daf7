//! The log: topics of entries, appended, read and followed.

use crate::client::bytes_of;
use crate::errors::waiting;
use crate::pool::Pool;
use holdfast_base::ids::Index;
use holdfast_env::HoldMutex;
use holdfast_wire::log as msg;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Entries of one answer, at most.
const ENTRIES_MAX: u32 = 4096;

/// Topics of a node's log, over a client's connections.
#[pyclass(frozen, module = "holdfast._holdfast")]
pub struct Log {
    pool: Arc<Pool>,
}

impl Log {
    pub fn new(pool: Arc<Pool>) -> Log {
        Log { pool }
    }
}

/// An entry with its index.
type Indexed<'py> = (u64, Bound<'py, PyBytes>);

fn indexed<'py>(py: Python<'py>, entries: Vec<msg::Indexed>) -> Vec<Indexed<'py>> {
    let one = |entry: msg::Indexed| (entry.index.0, PyBytes::new(py, &entry.bytes));
    entries.into_iter().map(one).collect()
}

#[pymethods]
impl Log {
    /// Appends entries in their order, and returns the index of each; others' may lie between them.
    /// Makes the topic if there is none. Not `synced`: acknowledged before the sync.
    #[pyo3(signature = (topic, entries, *, synced=true))]
    fn append(
        &self,
        py: Python<'_>,
        topic: &str,
        entries: Vec<Bound<'_, PyAny>>,
        synced: bool,
    ) -> PyResult<Vec<u64>> {
        let entries = entries.iter().map(bytes_of).collect::<PyResult<Vec<_>>>()?;
        let indices = waiting(py, || {
            let mut client = self.pool.lend()?;
            match synced {
                true => client.log().append(topic, &entries),
                false => client.log().append_ordered(topic, &entries),
            }
        })?;
        Ok(indices.iter().map(|index| index.0).collect())
    }

    /// Reads a topic from an index on, without entries that repeat others.
    fn reader(&self, py: Python<'_>, topic: &str, start: u64) -> PyResult<LogReader> {
        let reader = waiting(py, || self.pool.lend()?.log().reader(topic, Index(start)))?;
        Ok(LogReader { pool: self.pool.clone(), reader: Mutex::new(reader) })
    }

    /// Gives up the entries before an index.
    fn trim(&self, py: Python<'_>, topic: &str, before: u64) -> PyResult<()> {
        waiting(py, || self.pool.lend()?.log().trim(topic, Index(before)))
    }

    /// How far a topic reaches.
    fn info(&self, py: Python<'_>, topic: &str) -> PyResult<TopicInfo> {
        Ok(TopicInfo::from(waiting(py, || self.pool.lend()?.log().info(topic))?))
    }

    /// The same of every topic.
    fn topics(&self, py: Python<'_>) -> PyResult<Vec<TopicInfo>> {
        let infos = waiting(py, || self.pool.lend()?.log().topics())?;
        Ok(infos.into_iter().map(TopicInfo::from).collect())
    }
}

/// Where somebody reads a topic.
#[pyclass(frozen, module = "holdfast._holdfast")]
pub struct LogReader {
    pool: Arc<Pool>,
    reader: Mutex<holdfast_client::LogReader>,
}

#[pymethods]
impl LogReader {
    /// The next durable entries, as many as fit into an answer, waiting for the first for so long;
    /// None at the end, and if none came. An empty list where all were repeats.
    #[pyo3(signature = (wait_s=0.0))]
    fn read<'py>(&self, py: Python<'py>, wait_s: f64) -> PyResult<Option<Vec<Indexed<'py>>>> {
        let wait = Duration::try_from_secs_f64(wait_s).unwrap_or_default();
        let read = || {
            let mut reader = self.reader.held();
            self.pool.reading(wait, |client| reader.read(&mut client.log(), ENTRIES_MAX, wait))
        };
        Ok(waiting(py, read)?.map(|entries| indexed(py, entries)))
    }
}

/// How far a topic reaches.
#[pyclass(frozen, get_all, module = "holdfast")]
pub struct TopicInfo {
    topic: String,
    /// The first index that can be read; equal to `next` when there is none.
    first: u64,
    /// Behind the last entry.
    next: u64,
    /// Entries below it survive a power cut.
    durable: u64,
    bytes: u64,
    segments: u64,
}

impl From<msg::Info> for TopicInfo {
    fn from(info: msg::Info) -> TopicInfo {
        TopicInfo {
            topic: info.topic,
            first: info.first.0,
            next: info.next.0,
            durable: info.durable.0,
            bytes: info.bytes,
            segments: u64::from(info.segments),
        }
    }
}

#[pymethods]
impl TopicInfo {
    fn __repr__(&self) -> String {
        format!("TopicInfo(topic={:?}, first={}, next={})", self.topic, self.first, self.next)
    }
}
