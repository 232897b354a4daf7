//! Errors as Python raises them: a class for each kind, defined in `holdfast.errors`, which also says
//! of which of Python's own each is one.

use holdfast_base::{Error, Kind};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

static CLASS_OF: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// What the client failed with, as Python's exception.
pub fn raised(py: Python<'_>, e: Error) -> PyErr {
    match class_of(py, e.kind) {
        Ok(class) => PyErr::from_type(class, e.message),
        Err(e) => e,
    }
}

fn class_of(py: Python<'_>, kind: Kind) -> PyResult<Bound<'_, PyType>> {
    let class_of = CLASS_OF.get_or_try_init(py, || -> PyResult<Py<PyAny>> {
        Ok(py.import("holdfast.errors")?.getattr("class_of")?.unbind())
    })?;
    Ok(class_of.bind(py).call1((kind.name(),))?.cast_into::<PyType>()?)
}

/// Does what may wait without the interpreter's lock.
pub fn waiting<T: Send>(
    py: Python<'_>,
    work: impl FnOnce() -> holdfast_base::Result<T> + Send,
) -> PyResult<T> {
    py.detach(work).map_err(|e| raised(py, e))
}
