//! The client of asyncio: each call is awaited, any number of them over one connection. A call that is
//! cancelled gives up its answer; what it asked for may still be carried out.

use crate::background::background;
use crate::client::{bytes_of, container, new_file};
use crate::errors::raised;
use crate::info::{Entry, FileInfo, Usage};
use crate::log::TopicInfo;
use crate::process::Process;
use crate::ranges;
use crate::stream;
use holdfast_base::ids::Index;
use holdfast_base::{Error, Result};
use holdfast_client::NewFile;
use holdfast_client::aio;
use holdfast_env::HoldMutex;
use holdfast_wire::file::{Action, MTIME_NOW};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyBytes;
use std::future::Future;
use std::sync::Mutex;

static DELIVER: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// An asyncio future of the running loop, for what a future of the background's comes to.
pub fn awaited<'py, T: Send + 'static>(
    py: Python<'py>,
    future: impl Future<Output = Result<T>> + Send + 'static,
    told: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
) -> PyResult<Bound<'py, PyAny>> {
    let events = py.import("asyncio")?.call_method0("get_running_loop")?;
    let awaited = events.call_method0("create_future")?;
    let deliver = DELIVER.get_or_try_init(py, || -> PyResult<Py<PyAny>> {
        Ok(py.import("holdfast.aio")?.getattr("_deliver")?.unbind())
    })?;
    let (events, waiting) = (events.unbind(), awaited.clone().unbind());
    let deliver = deliver.clone_ref(py);
    let background = background().map_err(|e| raised(py, e))?;
    background.spawn(async move {
        let came = future.await;
        Python::attach(|py| {
            let told = came.map_err(|e| raised(py, e)).and_then(|came| told(py, came));
            let (value, error) = match told {
                Ok(value) => (Some(value), None),
                Err(e) => (None, Some(e.into_value(py))),
            };
            // A loop that was closed waits for nothing any more.
            let _ =
                events.call_method1(py, "call_soon_threadsafe", (deliver, waiting, value, error));
        });
    });
    Ok(awaited)
}

/// Asynchronous calls over one connection of its own, which is made by [`AsyncClient::connect`].
#[pyclass(frozen, module = "holdfast._holdfast")]
pub struct AsyncClient {
    process: Process,
    /// None once it was closed.
    client: Mutex<Option<aio::AsyncClient>>,
}

impl AsyncClient {
    /// Connects as a blocking client would.
    pub fn connect<'py>(py: Python<'py>, pool: &crate::pool::Pool) -> PyResult<Bound<'py, PyAny>> {
        let (node, options) = (pool.node().clone(), pool.options());
        let connected = async move { aio::AsyncClient::connect(&node, &options).await };
        awaited(py, connected, |py, client| {
            let client = Mutex::new(Some(client));
            AsyncClient { process: Process::current(), client }.into_py_any(py)
        })
    }

    fn client(&self, py: Python<'_>) -> PyResult<aio::AsyncClient> {
        let client = self.process.check("a client of asyncio").and_then(|()| {
            let client = self.client.held().clone();
            client.ok_or_else(|| Error::invalid("use a client: it was closed"))
        });
        client.map_err(|e| raised(py, e))
    }
}

pub fn none<T>(py: Python<'_>, _: T) -> PyResult<Py<PyAny>> {
    Ok(py.None())
}

pub type Awaited<'py> = PyResult<Bound<'py, PyAny>>;

#[pymethods]
impl AsyncClient {
    /// Ends its session, and takes no more calls; those that are under way, and files that are open, go on.
    fn close<'py>(&self, py: Python<'py>) -> Awaited<'py> {
        let client = self.client(py)?;
        self.client.held().take();
        awaited(py, async move { client.close().await }, none)
    }

    /// The whole of a file, verified.
    fn get<'py>(&self, py: Python<'py>, path: String) -> Awaited<'py> {
        let client = self.client(py)?;
        let told = |py: Python<'_>, bytes: Vec<u8>| PyBytes::new(py, &bytes).into_py_any(py);
        awaited(py, async move { client.get(&path).await }, told)
    }

    /// Bytes of files, each `(path, start, end)`, all asked for at once.
    fn get_ranges<'py>(&self, py: Python<'py>, parts: Vec<ranges::Part>) -> Awaited<'py> {
        let client = self.client(py)?;
        let told = |py: Python<'_>, parts: Vec<Vec<u8>>| {
            let parts: Vec<_> = parts.iter().map(|part| PyBytes::new(py, part)).collect();
            parts.into_py_any(py)
        };
        awaited(py, async move { ranges::of(&client, &parts).await }, told)
    }

    /// Stores a whole file of any size.
    #[pyo3(signature = (path, data, *, replace=false, parents=false, mode=0o644, mtime_ns=None, storage_class=None, metadata=None))]
    #[expect(clippy::too_many_arguments, reason = "Python's are named")]
    fn put<'py>(
        &self,
        py: Python<'py>,
        path: String,
        data: &Bound<'py, PyAny>,
        replace: bool,
        parents: bool,
        mode: u16,
        mtime_ns: Option<i64>,
        storage_class: Option<&str>,
        metadata: Option<&[u8]>,
    ) -> Awaited<'py> {
        let data = bytes_of(data)?;
        let metadata = metadata.unwrap_or_default();
        let new = new_file(replace, parents, mode, mtime_ns, storage_class, metadata)
            .map_err(|e| raised(py, e))?;
        let client = self.client(py)?;
        let put = async move { store(&client, &path, &data, &new).await };
        awaited(py, put, |py, id| id.into_py_any(py))
    }

    /// Opens a file, which is read in any order.
    fn open_reader<'py>(&self, py: Python<'py>, path: String) -> Awaited<'py> {
        let client = self.client(py)?;
        awaited(py, async move { client.open(&path).await }, |py, reader| {
            stream::AsyncReader::new(reader).into_py_any(py)
        })
    }

    /// Starts a file, which appears when it is closed.
    #[pyo3(signature = (path, *, replace=false, parents=false, mode=0o644, mtime_ns=None, storage_class=None, metadata=None))]
    #[expect(clippy::too_many_arguments, reason = "Python's are named")]
    fn create(
        &self,
        py: Python<'_>,
        path: &str,
        replace: bool,
        parents: bool,
        mode: u16,
        mtime_ns: Option<i64>,
        storage_class: Option<&str>,
        metadata: Option<&[u8]>,
    ) -> PyResult<stream::AsyncWriter> {
        let metadata = metadata.unwrap_or_default();
        let client = self.client(py)?;
        let created = new_file(replace, parents, mode, mtime_ns, storage_class, metadata)
            .and_then(|new| client.create(path, &new));
        created.map(stream::AsyncWriter::new).map_err(|e| raised(py, e))
    }

    /// Appends entries to a topic of the log, synced; answers the index of each.
    fn log_append<'py>(
        &self,
        py: Python<'py>,
        topic: String,
        entries: Vec<Bound<'py, PyAny>>,
    ) -> Awaited<'py> {
        let bytes = |entry: &Bound<'py, PyAny>| bytes_of(entry).map(|bytes| bytes.to_vec());
        let entries = entries.iter().map(bytes).collect::<PyResult<Vec<_>>>()?;
        let client = self.client(py)?;
        awaited(py, async move { client.log_append(&topic, entries).await }, |py, indices| {
            let indices: Vec<u64> = indices.iter().map(|index| index.0).collect();
            indices.into_py_any(py)
        })
    }

    /// How far a topic of the log reaches.
    fn log_info<'py>(&self, py: Python<'py>, topic: String) -> Awaited<'py> {
        let client = self.client(py)?;
        let info = async move {
            let info = client.log_info(&topic).await?;
            info.ok_or_else(|| Error::not_found(format!("describe topic `{topic}`: there is none")))
        };
        awaited(py, info, |py, info| TopicInfo::from(info).into_py_any(py))
    }

    /// Reads a topic of the log from an index on, without entries that repeat others.
    fn log_reader<'py>(
        &self,
        py: Python<'py>,
        topic: String,
        start: u64,
        first: u64,
    ) -> Awaited<'py> {
        let client = self.client(py)?;
        let reader = async move { client.log_reader(&topic, Index(start), Index(first)).await };
        awaited(py, reader, |py, reader| stream::AsyncLogReader::new(reader).into_py_any(py))
    }

    /// What is known of a name; of a symbolic link, of the link itself unless it is followed.
    #[pyo3(signature = (path, *, follow=false))]
    fn stat<'py>(&self, py: Python<'py>, path: String, follow: bool) -> Awaited<'py> {
        let client = self.client(py)?;
        let stat = async move {
            match follow {
                true => client.stat_followed(&path).await,
                false => client.stat(&path).await,
            }
        };
        awaited(py, stat, |py, info| FileInfo::from(info).into_py_any(py))
    }

    /// A page of a directory in the order of names, from the first one behind `after`; and whether
    /// there are more.
    #[pyo3(signature = (path, after=String::new()))]
    fn list_page<'py>(&self, py: Python<'py>, path: String, after: String) -> Awaited<'py> {
        let client = self.client(py)?;
        awaited(py, async move { client.list(&path, &after).await }, |py, page| {
            let entries = page.entries.into_iter().map(|named| Entry::new(py, named));
            (entries.collect::<PyResult<Vec<Entry>>>()?, page.more).into_py_any(py)
        })
    }

    /// Bytes, files and directories below a path, all together.
    fn usage<'py>(&self, py: Python<'py>, path: String) -> Awaited<'py> {
        let client = self.client(py)?;
        let usage = async move { client.usage(&path).await };
        awaited(py, usage, |py, usage| Usage::from(usage).into_py_any(py))
    }

    /// Makes a directory, or a "table" or "multifile".
    #[pyo3(signature = (path, *, kind="directory", parents=false, mode=0o755, storage_class=None))]
    fn make_dir<'py>(
        &self,
        py: Python<'py>,
        path: String,
        kind: &str,
        parents: bool,
        mode: u16,
        storage_class: Option<&str>,
    ) -> Awaited<'py> {
        let client = self.client(py)?;
        let new = container(kind, parents, mode, storage_class).map_err(|e| raised(py, e))?;
        awaited(py, async move { client.make_dir(&path, &new).await }, none)
    }

    /// Moves a name with all that is below it, in one step.
    #[pyo3(signature = (old, new, *, replace=false))]
    fn rename<'py>(
        &self,
        py: Python<'py>,
        old: String,
        new: String,
        replace: bool,
    ) -> Awaited<'py> {
        let client = self.client(py)?;
        awaited(py, async move { client.rename(&old, &new, replace).await }, none)
    }

    /// Removes a name; a directory with entries only if `recursive`.
    #[pyo3(signature = (path, *, recursive=false))]
    fn delete<'py>(&self, py: Python<'py>, path: String, recursive: bool) -> Awaited<'py> {
        let client = self.client(py)?;
        awaited(py, async move { client.delete(&path, recursive).await }, none)
    }

    /// Makes a name that stands for `target`, which need not be there.
    fn symlink<'py>(&self, py: Python<'py>, target: String, path: String) -> Awaited<'py> {
        let client = self.client(py)?;
        let action = Action::Symlink { path, target, mtime_ns: MTIME_NOW };
        awaited(py, async move { client.act(action).await }, none)
    }

    /// Changes what is kept beside a name; what is `None` stays.
    #[pyo3(signature = (path, *, mode=None, mtime_ns=None, metadata=None))]
    fn set_attributes<'py>(
        &self,
        py: Python<'py>,
        path: String,
        mode: Option<u16>,
        mtime_ns: Option<i64>,
        metadata: Option<Vec<u8>>,
    ) -> Awaited<'py> {
        let client = self.client(py)?;
        let action = Action::SetAttributes { path, mode, mtime_ns, metadata };
        awaited(py, async move { client.act(action).await }, none)
    }
}

/// Whole in one request if it is small enough, else as a stream.
async fn store(client: &aio::AsyncClient, path: &str, data: &[u8], new: &NewFile) -> Result<u64> {
    use holdfast_base::limits::PACKED_BYTES_MAX;
    if data.len() as u64 <= PACKED_BYTES_MAX {
        return Ok(client.put(path, data, new).await?.0);
    }
    let mut writer = client.create(path, new)?;
    writer.write(data).await?;
    let closed: Result<_, Error> = writer.close().await;
    Ok(closed?.0)
}
