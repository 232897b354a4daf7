//! Streams of the client of asyncio: files, and the log. Each call is awaited.

use crate::aio::{Awaited, awaited, none};
use crate::client::bytes_of;
use crate::errors::raised;
use crate::info::FileInfo;
use crate::process::Process;
use holdfast_base::{Error, Result};
use holdfast_client::aio;
use holdfast_env::HoldMutex;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::{Arc, Mutex};

/// Entries of one answer, at most.
const ENTRIES_MAX: u32 = 4096;

/// What one call at a time may have.
struct Lending<T> {
    process: Process,
    what: &'static str,
    lent: Mutex<Option<T>>,
}

impl<T> Lending<T> {
    fn new(what: &'static str, value: T) -> Arc<Lending<T>> {
        Arc::new(Lending { process: Process::current(), what, lent: Mutex::new(Some(value)) })
    }

    fn take(&self, py: Python<'_>) -> PyResult<T> {
        let take = || {
            self.process.check(self.what)?;
            self.lent.held().take().ok_or_else(|| {
                Error::invalid(format!("use {}: it was closed, or another call has it", self.what))
            })
        };
        take().map_err(|e| raised(py, e))
    }

    fn give_back(&self, value: T) {
        *self.lent.held() = Some(value);
    }
}

impl<T> Drop for Lending<T> {
    fn drop(&mut self) {
        if !self.process.is_current() {
            std::mem::forget(self.lent.held().take());
        }
    }
}

/// A file that is read in any order, by any number of calls at once.
#[pyclass(frozen, module = "holdfast._holdfast")]
pub struct AsyncReader {
    process: Process,
    reader: Arc<aio::AsyncReader>,
}

impl AsyncReader {
    pub fn new(reader: aio::AsyncReader) -> AsyncReader {
        AsyncReader { process: Process::current(), reader: Arc::new(reader) }
    }
}

#[pymethods]
impl AsyncReader {
    /// What was opened.
    #[getter]
    fn info(&self) -> FileInfo {
        FileInfo::from(self.reader.info().clone())
    }

    /// Bytes from any place, up to the end.
    fn read_at<'py>(&self, py: Python<'py>, position: u64, bytes: u64) -> Awaited<'py> {
        self.process.check("a file").map_err(|e| raised(py, e))?;
        let reader = self.reader.clone();
        let position = position.min(reader.info().size);
        let bytes = usize::try_from(bytes.min(reader.info().size - position))?;
        awaited(py, async move { reader.read_at(position, bytes).await }, |py, bytes| {
            PyBytes::new(py, &bytes).into_py_any(py)
        })
    }
}

/// A file that is written, which nobody sees before its close.
#[pyclass(frozen, module = "holdfast._holdfast")]
pub struct AsyncWriter {
    writer: Arc<Lending<aio::AsyncWriter>>,
}

impl AsyncWriter {
    pub fn new(writer: aio::AsyncWriter) -> AsyncWriter {
        AsyncWriter { writer: Lending::new("a file", writer) }
    }
}

#[pymethods]
impl AsyncWriter {
    /// Takes all of the bytes. Returns before they are acknowledged.
    fn write<'py>(&self, py: Python<'py>, data: &Bound<'py, PyAny>) -> Awaited<'py> {
        let data = bytes_of(data)?;
        let (lending, mut writer) = (self.writer.clone(), self.writer.take(py)?);
        let write = async move {
            let written = writer.write(&data).await;
            lending.give_back(writer);
            written.map(|()| data.len())
        };
        awaited(py, write, |py, written| written.into_py_any(py))
    }

    /// Returns when every byte so far is acknowledged.
    fn flush<'py>(&self, py: Python<'py>) -> Awaited<'py> {
        let (lending, mut writer) = (self.writer.clone(), self.writer.take(py)?);
        let flush = async move {
            let flushed: Result<()> = writer.flush().await;
            lending.give_back(writer);
            flushed
        };
        awaited(py, flush, none)
    }

    /// Names the file, whose id it answers.
    fn close<'py>(&self, py: Python<'py>) -> Awaited<'py> {
        let writer = self.writer.take(py)?;
        awaited(py, async move { writer.close().await }, |py, id| id.0.into_py_any(py))
    }

    /// Forgets the file.
    fn abandon<'py>(&self, py: Python<'py>) -> Awaited<'py> {
        let writer = self.writer.take(py)?;
        awaited(py, async move { writer.abandon().await }, none)
    }
}

/// Where somebody reads a topic.
#[pyclass(frozen, module = "holdfast._holdfast")]
pub struct AsyncLogReader {
    reader: Arc<Lending<aio::AsyncLogReader>>,
}

impl AsyncLogReader {
    pub fn new(reader: aio::AsyncLogReader) -> AsyncLogReader {
        AsyncLogReader { reader: Lending::new("a reader of the log", reader) }
    }
}

#[pymethods]
impl AsyncLogReader {
    /// The next entries; None at the end, or where it waits and none came for a while. An empty list
    /// where all were repeats.
    fn read<'py>(&self, py: Python<'py>, wait: bool) -> Awaited<'py> {
        let (lending, mut reader) = (self.reader.clone(), self.reader.take(py)?);
        let read = async move {
            let entries = reader.read(ENTRIES_MAX, wait).await;
            lending.give_back(reader);
            entries
        };
        awaited(py, read, |py, entries| {
            let one = |entry: holdfast_wire::log::Indexed| {
                (entry.index.0, PyBytes::new(py, &entry.bytes).unbind())
            };
            entries.map(|all| all.into_iter().map(one).collect::<Vec<_>>()).into_py_any(py)
        })
    }
}
