//! What Python is told of names.

use holdfast_base::node::NodeKind;
use holdfast_wire::file as msg;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// What is known of a name.
#[pyclass(frozen, module = "holdfast")]
pub struct FileInfo {
    info: msg::FileInfo,
}

impl From<msg::FileInfo> for FileInfo {
    fn from(info: msg::FileInfo) -> FileInfo {
        FileInfo { info }
    }
}

#[pymethods]
impl FileInfo {
    /// A number that no other file ever has: a file that is replaced gets a new one.
    #[getter]
    fn id(&self) -> u64 {
        self.info.id.0
    }

    /// "file", "directory", "symlink", "multifile", "table" or "key-value".
    #[getter]
    fn kind(&self) -> &'static str {
        self.info.kind.name()
    }

    /// Bytes of data; of a directory, multifile or table, entries.
    #[getter]
    fn size(&self) -> u64 {
        self.info.size
    }

    /// Permission bits, kept and not enforced.
    #[getter]
    fn mode(&self) -> u16 {
        self.info.mode
    }

    /// Nanoseconds since 1970-01-01 UTC, as the writer gave them.
    #[getter]
    fn mtime_ns(&self) -> i64 {
        self.info.mtime_ns
    }

    /// "disk", "disk:memory", "dram" or "dram,disk".
    #[getter]
    fn storage_class(&self) -> String {
        self.info.class.to_string()
    }

    /// Where a symbolic link points; empty for everything else.
    #[getter]
    fn target(&self) -> &str {
        &self.info.target
    }

    /// Bytes that the writer keeps with the name.
    #[getter]
    fn metadata<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.info.metadata)
    }

    fn is_file(&self) -> bool {
        matches!(self.info.kind, NodeKind::File | NodeKind::KeyValue)
    }

    fn is_dir(&self) -> bool {
        self.info.kind.is_container()
    }

    fn __repr__(&self) -> String {
        let (id, kind, size) = (self.id(), self.kind(), self.size());
        format!("FileInfo(id={id}, kind='{kind}', size={size})")
    }
}

/// A name in a directory.
#[pyclass(frozen, get_all, module = "holdfast")]
pub struct Entry {
    name: String,
    info: Py<FileInfo>,
}

impl Entry {
    pub fn new(py: Python<'_>, named: msg::Named) -> PyResult<Entry> {
        Ok(Entry { name: named.name, info: Py::new(py, FileInfo::from(named.info))? })
    }
}

#[pymethods]
impl Entry {
    fn __repr__(&self) -> String {
        format!("Entry(name={:?}, info={})", self.name, self.info.get().__repr__())
    }
}

/// What lies below a path.
#[pyclass(frozen, get_all, module = "holdfast")]
pub struct Usage {
    files: u64,
    directories: u64,
    bytes: u64,
}

impl From<msg::Usage> for Usage {
    fn from(usage: msg::Usage) -> Usage {
        let msg::Usage { files, directories, bytes } = usage;
        Usage { files, directories, bytes }
    }
}
