//! The client: names, small files, ranges. Streams are in `files`, the log in `log`.

use crate::background::wait_for;
use crate::errors::waiting;
use crate::files::{Reader, Writer};
use crate::info::{Entry, FileInfo, Usage};
use crate::items::Items;
use crate::log::Log;
use crate::pool::Pool;
use crate::ranges;
use crate::records::{Records, RecordsInfo};
use crate::scribe::Scribe;
use holdfast_base::node::NodeKind;
use holdfast_base::{Error, Result};
use holdfast_client::{ClientOptions, Endpoint, NewFile, Secret, Secrets, TlsClient, Token};
use holdfast_wire::file::{Action, MTIME_NOW};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyMemoryView};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Connections to a node, or to the first that answers of several. May be used by any number of threads
/// at once, each call over a connection of its own.
#[pyclass(frozen, module = "holdfast._holdfast")]
pub struct Client {
    pool: Arc<Pool>,
}

/// What is bytes already, or can be seen as bytes: `bytearray`, `memoryview`, arrays.
pub fn bytes_of(data: &Bound<'_, PyAny>) -> PyResult<PyBackedBytes> {
    if let Ok(bytes) = data.extract() {
        return Ok(bytes);
    }
    if data.is_instance_of::<pyo3::types::PyString>() {
        return Err(PyTypeError::new_err("write text: give bytes, or open the file as text"));
    }
    let seen = PyMemoryView::from(data)?;
    Ok(seen.call_method0("tobytes")?.extract()?)
}

/// As [`NewFile`]; a time of `None` is the node's own.
pub fn new_file(
    replace: bool,
    parents: bool,
    mode: u16,
    mtime_ns: Option<i64>,
    storage_class: Option<&str>,
    metadata: &[u8],
) -> Result<NewFile> {
    Ok(NewFile {
        kind: NodeKind::File,
        mode,
        mtime_ns: mtime_ns.unwrap_or(MTIME_NOW),
        class: storage_class.map(|text| text.parse().map_err(Error::invalid)).transpose()?,
        replace,
        parents,
        metadata: metadata.to_vec(),
    })
}

/// What holds other names.
pub fn container(
    kind: &str,
    parents: bool,
    mode: u16,
    storage_class: Option<&str>,
) -> Result<NewFile> {
    let kind = match kind {
        "directory" => NodeKind::Directory,
        "multifile" => NodeKind::MultiFile,
        "table" => NodeKind::Table,
        _ => {
            return Err(Error::invalid(format!(
                "make a `{}`: choose `directory`, `multifile` or `table`",
                kind.escape_debug()
            )));
        }
    };
    Ok(NewFile { kind, ..new_file(false, parents, mode, None, storage_class, &[])? })
}

#[pymethods]
impl Client {
    #[new]
    #[pyo3(signature = (servers, *, secret=None, token=None, ca=None, certificate=None, key=None, connections=16, patience_s=20.0, mapped=false))]
    #[expect(clippy::too_many_arguments, reason = "Python's are named")]
    fn new(
        py: Python<'_>,
        servers: Vec<String>,
        secret: Option<PathBuf>,
        token: Option<PathBuf>,
        ca: Option<PathBuf>,
        certificate: Option<PathBuf>,
        key: Option<PathBuf>,
        connections: usize,
        patience_s: f64,
        mapped: bool,
    ) -> PyResult<Client> {
        let connected = || {
            let nodes = servers.iter().map(|s| Endpoint::parse(s)).collect::<Result<Vec<_>>>()?;
            if nodes.is_empty() || connections == 0 {
                return Err(Error::invalid("connect: name a server, and allow for a connection"));
            }
            let shown = certificate.as_deref().zip(key.as_deref());
            if shown.is_none() && (certificate.is_some() || key.is_some()) {
                return Err(Error::invalid("connect: give a certificate and its key, or neither"));
            }
            let tls = ca.as_deref().map(|ca| TlsClient::load(ca, shown)).transpose()?;
            let secrets: Vec<Secret> =
                secret.as_deref().map(Secret::load).transpose()?.into_iter().collect();
            let patience = Duration::try_from_secs_f64(patience_s).map_err(|_| {
                Error::invalid(format!("be patient for {patience_s} seconds: give 0 or more"))
            })?;
            let options = ClientOptions {
                secrets: Secrets::new(secrets),
                token: token.as_deref().map(Token::load).transpose()?,
                tls,
                patience,
                ..ClientOptions::default()
            };
            Pool::connect(nodes, options, connections, mapped)
        };
        Ok(Client { pool: waiting(py, connected)? })
    }

    /// Ends the connections that are not in use. Files that are open go on.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.pool.close());
    }

    /// One round trip that does nothing: whether the node answers.
    fn ping(&self, py: Python<'_>) -> PyResult<()> {
        waiting(py, || self.pool.lend()?.ping())
    }

    /// The whole of a file, verified.
    fn get<'py>(&self, py: Python<'py>, path: &str) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = waiting(py, || self.pool.lend()?.get(path))?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Bytes of files, each `(path, start, end)` from the start up to the end or the file's, all asked
    /// for at once.
    fn get_ranges<'py>(
        &self,
        py: Python<'py>,
        ranges: Vec<ranges::Part>,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let parts = waiting(py, || {
            let client = self.pool.shared()?;
            wait_for(async move { ranges::of(&client, &ranges).await })
        })?;
        Ok(parts.iter().map(|part| PyBytes::new(py, part)).collect())
    }

    /// Bytes of a file from `start` up to `end` or the file's end, as a read-only memoryview of memory of
    /// this process.
    fn buffer<'py>(
        &self,
        py: Python<'py>,
        path: &str,
        start: u64,
        end: Option<u64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let reader = waiting(py, || Reader::open(&self.pool, path))?;
        let buffer = reader.buffer(py, start, end);
        reader.close(py);
        buffer
    }

    /// Stores a whole file, of any size; returns its id.
    #[pyo3(signature = (path, data, *, replace=false, parents=false, mode=0o644, mtime_ns=None, storage_class=None, metadata=None))]
    #[expect(clippy::too_many_arguments, reason = "Python's are named")]
    fn put(
        &self,
        py: Python<'_>,
        path: &str,
        data: &Bound<'_, PyAny>,
        replace: bool,
        parents: bool,
        mode: u16,
        mtime_ns: Option<i64>,
        storage_class: Option<&str>,
        metadata: Option<&[u8]>,
    ) -> PyResult<u64> {
        let data = bytes_of(data)?;
        let metadata = metadata.unwrap_or_default();
        waiting(py, || {
            let new = new_file(replace, parents, mode, mtime_ns, storage_class, metadata)?;
            Ok(self.pool.lend()?.put_sized(path, &data, &new)?.0)
        })
    }

    /// What is known of a name; of a symbolic link, of the link itself unless it is followed.
    #[pyo3(signature = (path, *, follow=false))]
    fn stat(&self, py: Python<'_>, path: &str, follow: bool) -> PyResult<FileInfo> {
        let stat = || {
            let mut client = self.pool.lend()?;
            if follow { client.stat_followed(path) } else { client.stat(path) }
        };
        Ok(FileInfo::from(waiting(py, stat)?))
    }

    /// A page of a directory in the order of names, from the first one behind `after`; and whether
    /// there are more.
    #[pyo3(signature = (path, after=""))]
    fn list_page(&self, py: Python<'_>, path: &str, after: &str) -> PyResult<(Vec<Entry>, bool)> {
        let page = waiting(py, || self.pool.lend()?.list(path, after))?;
        let entries = page.entries.into_iter().map(|named| Entry::new(py, named));
        Ok((entries.collect::<PyResult<Vec<Entry>>>()?, page.more))
    }

    /// Bytes, files and directories below a path, all together.
    fn usage(&self, py: Python<'_>, path: &str) -> PyResult<Usage> {
        Ok(Usage::from(waiting(py, || self.pool.lend()?.usage(path))?))
    }

    /// Makes a directory, or a "table" or "multifile".
    #[pyo3(signature = (path, *, kind="directory", parents=false, mode=0o755, storage_class=None))]
    fn make_dir(
        &self,
        py: Python<'_>,
        path: &str,
        kind: &str,
        parents: bool,
        mode: u16,
        storage_class: Option<&str>,
    ) -> PyResult<()> {
        waiting(py, || {
            let new = container(kind, parents, mode, storage_class)?;
            self.pool.lend()?.make_dir(path, &new)
        })
    }

    /// Moves a name with all that is below it, in one step; with `replace` over a file that is there.
    #[pyo3(signature = (old, new, *, replace=false))]
    fn rename(&self, py: Python<'_>, old: &str, new: &str, replace: bool) -> PyResult<()> {
        waiting(py, || self.pool.lend()?.rename(old, new, replace))
    }

    /// Removes a name; a directory with entries only if `recursive`.
    #[pyo3(signature = (path, *, recursive=false))]
    fn delete(&self, py: Python<'_>, path: &str, recursive: bool) -> PyResult<()> {
        waiting(py, || self.pool.lend()?.delete(path, recursive))
    }

    /// Makes a name that stands for `target`, which need not be there.
    fn symlink(&self, py: Python<'_>, target: &str, path: &str) -> PyResult<()> {
        waiting(py, || self.pool.lend()?.symlink(path, target, MTIME_NOW))
    }

    /// Changes what is kept beside a name; what is `None` stays.
    #[pyo3(signature = (path, *, mode=None, mtime_ns=None, metadata=None))]
    fn set_attributes(
        &self,
        py: Python<'_>,
        path: &str,
        mode: Option<u16>,
        mtime_ns: Option<i64>,
        metadata: Option<&[u8]>,
    ) -> PyResult<()> {
        let (path, metadata) = (path.to_owned(), metadata.map(<[u8]>::to_vec));
        let action = Action::SetAttributes { path, mode, mtime_ns, metadata };
        waiting(py, || self.pool.lend()?.act(action))
    }

    /// Opens a file or multifile for reading.
    fn open_reader(&self, py: Python<'_>, path: &str) -> PyResult<Reader> {
        waiting(py, || Reader::open(&self.pool, path))
    }

    /// Starts a file, which appears when it is closed. With a `size`, its end is packed with other
    /// small files.
    #[pyo3(signature = (path, *, size=None, replace=false, parents=false, mode=0o644, mtime_ns=None, storage_class=None, metadata=None))]
    #[expect(clippy::too_many_arguments, reason = "Python's are named")]
    fn open_writer(
        &self,
        py: Python<'_>,
        path: &str,
        size: Option<u64>,
        replace: bool,
        parents: bool,
        mode: u16,
        mtime_ns: Option<i64>,
        storage_class: Option<&str>,
        metadata: Option<&[u8]>,
    ) -> PyResult<Writer> {
        let metadata = metadata.unwrap_or_default();
        waiting(py, || {
            let new = new_file(replace, parents, mode, mtime_ns, storage_class, metadata)?;
            Writer::create(&self.pool, path, &new, size)
        })
    }

    /// A client of asyncio, to be awaited, of the same node.
    fn asynchronous<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        crate::aio::AsyncClient::connect(py, &self.pool)
    }

    /// A topic of items, and a session for its changes.
    fn items(&self, py: Python<'_>, topic: &str) -> PyResult<Items> {
        crate::items::begun(py, &self.pool, topic)
    }

    /// A table of records, and a session on it.
    fn records(&self, table: &str) -> Records {
        Records::new(self.pool.clone(), table)
    }

    /// The tables of records that there are.
    fn record_tables(&self, py: Python<'_>) -> PyResult<Vec<RecordsInfo>> {
        let tables = waiting(py, || self.pool.lend()?.tables())?;
        Ok(tables.into_iter().map(RecordsInfo::from).collect())
    }

    /// Scribe's categories, over this client's connections.
    #[getter]
    fn scribe(&self) -> Scribe {
        Scribe::new(self.pool.clone())
    }

    /// The node's log, over this client's connections.
    #[getter]
    fn log(&self) -> Log {
        Log::new(self.pool.clone())
    }
}
