//! Files that are open. Each holds a connection of its own, and the stream that borrows it.

use crate::client::bytes_of;
use crate::errors::{raised, waiting};
use crate::info::FileInfo;
use crate::pool::Pool;
use crate::process::Process;
use holdfast_base::limits::{BLOCK_BYTES, SLICE_BYTES};
use holdfast_base::node::NodeKind;
use holdfast_base::{Error, Result};
use holdfast_client::{Client, FileReader, FileWriter, NewFile};
use holdfast_env::HoldMutex;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView, PySlice};
use self_cell::{MutBorrow, self_cell};
use std::sync::{Arc, Mutex};

self_cell!(
    struct Reading {
        owner: MutBorrow<Client>,
        #[covariant]
        dependent: FileReader,
    }
);

type MaybeWriter<'a> = Option<FileWriter<'a>>;

self_cell!(
    struct Writing {
        owner: MutBorrow<Client>,
        #[covariant]
        dependent: MaybeWriter,
    }
);

/// A file or multifile that is read.
#[pyclass(frozen, module = "holdfast._holdfast")]
pub struct Reader {
    pool: Arc<Pool>,
    info: holdfast_wire::file::FileInfo,
    process: Process,
    reading: Mutex<Option<Reading>>,
}

fn is_closed() -> Error {
    Error::invalid("use a file: it was closed")
}

impl Reader {
    /// Opens it over a connection of its own.
    pub fn open(pool: &Arc<Pool>, path: &str) -> Result<Reader> {
        let client = MutBorrow::new(pool.connection()?);
        // One whose file is not there is as good as before.
        let opened = Reading::try_new_or_recover(client, |client| client.borrow_mut().open(path));
        match opened {
            Ok(reading) => {
                let info = reading.borrow_dependent().info().clone();
                let (pool, process) = (pool.clone(), Process::current());
                Ok(Reader { pool, info, process, reading: Mutex::new(Some(reading)) })
            }
            Err((client, e)) => {
                pool.give_back(client.into_inner());
                Err(e)
            }
        }
    }

    fn with<T>(&self, with: impl FnOnce(&mut FileReader<'_>) -> Result<T>) -> Result<T> {
        self.process.check("a file")?;
        let mut reading = self.reading.held();
        let reading = reading.as_mut().ok_or_else(is_closed)?;
        reading.with_dependent_mut(|_, reader| with(reader))
    }

    fn is_bag(&self) -> bool {
        self.info.kind == NodeKind::MultiFile
    }

    /// Bytes from `start` up to `end` or the file's, as a read-only memoryview. Of mapped memory only whole
    /// blocks have checksums, so there those around its ends are read with it, and not shown.
    pub fn buffer<'py>(
        &self,
        py: Python<'py>,
        start: u64,
        end: Option<u64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let size = self.info.size;
        let end = end.unwrap_or(size).min(size);
        let start = start.min(end);
        let block = if self.pool.is_mapped() && start < end { BLOCK_BYTES } else { 1 };
        let from = start / block * block;
        let until = end.next_multiple_of(block).min(size);
        let bytes = self.read_at(py, from, until - from)?;
        let view = PyMemoryView::from(&bytes)?;
        let (first, behind) = (isize::try_from(start - from)?, isize::try_from(end - from)?);
        view.get_item(PySlice::new(py, first, behind, 1))
    }

    /// Bytes of so many that are known to be there, filled in place.
    fn filled<'py>(
        &self,
        py: Python<'py>,
        bytes: usize,
        fill: impl FnOnce(&mut FileReader<'_>, &mut [u8]) -> Result<()> + Send,
    ) -> PyResult<Bound<'py, PyBytes>> {
        PyBytes::new_with(py, bytes, |out| waiting(py, || self.with(|reader| fill(reader, out))))
    }
}

#[pymethods]
impl Reader {
    /// What was opened; a multifile's size is the number of its files.
    #[getter]
    fn info(&self) -> FileInfo {
        FileInfo::from(self.info.clone())
    }

    /// Where the stream is.
    #[getter]
    fn position(&self, py: Python<'_>) -> PyResult<u64> {
        waiting(py, || self.with(|reader| Ok(reader.position())))
    }

    /// Goes on from another place.
    fn seek(&self, py: Python<'_>, position: u64) -> PyResult<()> {
        waiting(py, || self.with(|reader| reader.seek(position)))
    }

    /// The next bytes of the stream, which is read ahead: as many as are asked for, unless it ends;
    /// with -1 all that are left. Of a multifile, at least one if there is one.
    fn read<'py>(&self, py: Python<'py>, bytes: i64) -> PyResult<Bound<'py, PyBytes>> {
        if self.is_bag() {
            let read = waiting(py, || {
                self.with(|reader| match usize::try_from(bytes) {
                    Err(_) => reader.read_to_end(),
                    Ok(bytes) => {
                        let mut out = vec![0; bytes.min(SLICE_BYTES as usize)];
                        let read = reader.read(&mut out)?;
                        out.truncate(read);
                        Ok(out)
                    }
                })
            })?;
            return Ok(PyBytes::new(py, &read));
        }
        let position = self.position(py)?;
        let left = self.info.size.saturating_sub(position);
        let bytes = u64::try_from(bytes).unwrap_or(left).min(left);
        self.filled(py, usize::try_from(bytes)?, |reader, out| {
            // Somebody else may have read meanwhile: this is what was announced.
            reader.seek(position)?;
            let mut done = 0;
            while done < out.len() {
                // Larger ones are received in place.
                let end = out.len().min(done + SLICE_BYTES as usize);
                match reader.read(&mut out[done..end])? {
                    0 => return Err(Error::corrupt("read a file: it ends before its length")),
                    read => done += read,
                }
            }
            Ok(())
        })
    }

    /// Bytes from any place, up to the end; what is read ahead stays as it is.
    fn read_at<'py>(
        &self,
        py: Python<'py>,
        position: u64,
        bytes: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        if self.is_bag() {
            let wrong = "read a multifile from a place: open one of its files";
            return Err(raised(py, Error::invalid(wrong)));
        }
        let position = position.min(self.info.size);
        let bytes = bytes.min(self.info.size - position);
        self.filled(py, usize::try_from(bytes)?, |reader, out| reader.read_exact_at(out, position))
    }

    /// Gives the connection back. Closed twice is closed.
    pub fn close(&self, py: Python<'_>) {
        py.detach(|| {
            if self.process.is_current()
                && let Some(reading) = self.reading.held().take()
            {
                self.pool.give_back(reading.into_owner().into_inner());
            }
        });
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if !self.process.is_current() {
            std::mem::forget(self.reading.held().take());
        }
    }
}

/// A file that is written, which nobody sees before its close.
#[pyclass(frozen, module = "holdfast._holdfast")]
pub struct Writer {
    pool: Arc<Pool>,
    process: Process,
    writing: Mutex<Option<Writing>>,
}

impl Writer {
    /// Starts it over a connection of its own.
    pub fn create(
        pool: &Arc<Pool>,
        path: &str,
        new: &NewFile,
        size: Option<u64>,
    ) -> Result<Writer> {
        let client = MutBorrow::new(pool.connection()?);
        let created = Writing::try_new_or_recover(client, |client| {
            let client = client.borrow_mut();
            match size {
                Some(size) => client.create_sized(path, new, size).map(Some),
                None => client.create(path, new).map(Some),
            }
        });
        match created {
            Ok(writing) => {
                let (pool, process) = (pool.clone(), Process::current());
                Ok(Writer { pool, process, writing: Mutex::new(Some(writing)) })
            }
            Err((client, e)) => {
                pool.give_back(client.into_inner());
                Err(e)
            }
        }
    }

    fn with<T>(&self, with: impl FnOnce(&mut FileWriter<'_>) -> Result<T>) -> Result<T> {
        self.process.check("a file")?;
        let mut writing = self.writing.held();
        let writing = writing.as_mut().ok_or_else(is_closed)?;
        writing.with_dependent_mut(|_, writer| with(writer.as_mut().ok_or_else(is_closed)?))
    }

    /// Ends it one way or the other, and gives the connection back.
    fn end<T>(&self, end: impl FnOnce(FileWriter<'_>) -> Result<T>) -> Result<T> {
        self.process.check("a file")?;
        let mut writing = self.writing.held().take().ok_or_else(is_closed)?;
        let ended = writing
            .with_dependent_mut(|_, writer| writer.take().ok_or_else(is_closed).and_then(end));
        self.pool.give_back(writing.into_owner().into_inner());
        ended
    }
}

#[pymethods]
impl Writer {
    /// Takes all of it, and returns before it is acknowledged.
    fn write(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<usize> {
        let data = bytes_of(data)?;
        waiting(py, || self.with(|writer| writer.write(&data)))?;
        Ok(data.len())
    }

    /// Returns when every byte so far is acknowledged.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        waiting(py, || self.with(|writer| writer.flush()))
    }

    /// Names the file: everything is acknowledged when this returns its id.
    fn close(&self, py: Python<'_>) -> PyResult<u64> {
        waiting(py, || self.end(|writer| Ok(writer.close()?.0)))
    }

    /// Forgets the file, and frees what it took.
    fn abandon(&self, py: Python<'_>) -> PyResult<()> {
        waiting(py, || self.end(|writer| writer.abandon()))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if !self.process.is_current() {
            std::mem::forget(self.writing.held().take());
        }
    }
}
