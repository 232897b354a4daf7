//! Keys and numbers of a job that come in Arrow's columns: they become pairs without an object of Python's
//! for each.

use crate::client::bytes_of;
use crate::errors::{raised, waiting};
use crate::shuffle::Mapper;
use holdfast_base::{Error, Result};
use holdfast_env::HoldMutex;
use holdfast_shuffle::fold::{self, Fold, Number};
use holdfast_shuffle::{pairs, words};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use std::sync::Mutex;

/// Bytes of pairs that go to a mapper at once.
const PIECE_BYTES: usize = 1 << 20;

/// The keys of some rows and a number for each, in the memory layout of Arrow: `holdfast.tables.Columns`, which has
/// looked at the types.
#[derive(FromPyObject)]
pub struct Columns {
    /// `s` for text, `b` for bytes, `a` for whole numbers, which come as eight bytes each.
    kind: char,
    #[pyo3(from_py_with = bytes_of)]
    offsets: PyBackedBytes,
    #[pyo3(from_py_with = bytes_of)]
    keys: PyBackedBytes,
    #[pyo3(from_py_with = bytes_of)]
    numbers: PyBackedBytes,
    are_floats: bool,
}

fn longs(bytes: &[u8]) -> impl ExactSizeIterator<Item = u64> + '_ {
    bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word))
}

impl Columns {
    /// Hands on each row's key, in the bytes that keys have, and its number.
    fn each(&self, mut take: impl FnMut(&[u8], Number) -> Result<()>) -> Result<()> {
        let wrong = || Error::invalid("take columns: they do not fit each other");
        let number = |word: u64| match self.are_floats {
            true => Number::Float(f64::from_bits(word)),
            false => Number::Whole(word.cast_signed().into()),
        };
        let mut key = vec![self.kind as u8];
        if self.kind == 'a' {
            if self.keys.len() != self.numbers.len() {
                return Err(wrong());
            }
            for (whole, word) in longs(&self.keys).zip(longs(&self.numbers)) {
                key.truncate(1);
                key.extend_from_slice(&(whole ^ 1 << 63).to_be_bytes());
                take(&key, number(word))?;
            }
            return Ok(());
        }
        if self.offsets.len() != self.numbers.len() + 8 {
            return Err(wrong());
        }
        let ends = longs(&self.offsets).skip(1);
        for ((start, end), word) in longs(&self.offsets).zip(ends).zip(longs(&self.numbers)) {
            let found = self.keys.get(start as usize..end as usize).ok_or_else(wrong)?;
            key.truncate(1);
            key.extend_from_slice(found);
            take(&key, number(word))?;
        }
        Ok(())
    }
}

/// Sends pairs to a mapper, many at a time.
#[derive(Default)]
struct Sending {
    records: Vec<u8>,
    value: Vec<u8>,
}

impl Sending {
    fn add(&mut self, to: &Mapper, key: &[u8], number: Number) -> Result<()> {
        self.value.clear();
        number.put(&mut self.value);
        pairs::put(&mut self.records, key, &self.value)?;
        if self.records.len() >= PIECE_BYTES { self.send(to) } else { Ok(()) }
    }

    fn send(&mut self, to: &Mapper) -> Result<()> {
        to.push_records(&self.records)?;
        self.records.clear();
        Ok(())
    }
}

/// Makes pairs of all rows, and sends them.
pub fn push(to: &Mapper, columns: &Columns) -> Result<()> {
    let mut sending = Sending::default();
    columns.each(|key, number| sending.add(to, key, number))?;
    sending.send(to)
}

/// Folds numbers by their keys before a mapper gets them.
#[pyclass(frozen, module = "holdfast._holdfast")]
pub struct Folding {
    mapper: Py<Mapper>,
    table: Mutex<fold::Table>,
}

impl Folding {
    fn drain(&self, table: &mut fold::Table) -> Result<()> {
        let (mapper, mut sending) = (self.mapper.get(), Sending::default());
        table.drain(|key, number| sending.add(mapper, key, number))?;
        sending.send(mapper)
    }

    fn add(&self, table: &mut fold::Table, key: &[u8], number: Number) -> Result<()> {
        table.add(key, number)?;
        if table.is_full() { self.drain(table) } else { Ok(()) }
    }
}

#[pymethods]
impl Folding {
    /// For `mapper`, by the fold of that name, in about `memory` bytes.
    #[new]
    fn new(py: Python<'_>, mapper: Py<Mapper>, name: &str, memory: usize) -> PyResult<Folding> {
        let fold = Fold::named(name).map_err(|e| raised(py, e))?;
        Ok(Folding { mapper, table: Mutex::new(fold::Table::new(fold, memory)) })
    }

    /// As the mapper's.
    fn push_columns(&self, py: Python<'_>, columns: Columns) -> PyResult<()> {
        let push = || {
            let mut table = self.table.held();
            columns.each(|key, number| self.add(&mut table, key, number))
        };
        waiting(py, push)
    }

    /// As the mapper's; values are numbers.
    fn push_pairs(
        &self,
        py: Python<'_>,
        given: Vec<(PyBackedBytes, PyBackedBytes)>,
    ) -> PyResult<()> {
        let push = || {
            let mut table = self.table.held();
            for (key, value) in &given {
                self.add(&mut table, key, number_of(key, value)?)?;
            }
            Ok(())
        };
        waiting(py, push)
    }

    /// Sends what is left.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        waiting(py, || self.drain(&mut self.table.held()))
    }
}

/// A value that is to be folded.
pub fn number_of(key: &[u8], value: &[u8]) -> Result<Number> {
    Number::parse(value).ok_or_else(|| {
        Error::invalid(format!(
            "fold the values of key `{}`: one is no number of 128 bits: answer numbers, or give a function",
            fold::shown(key)
        ))
    })
}

/// Lines without their ends, and where each begins, as Arrow has an array of them: 32-bit offsets, one more
/// than lines, and bytes.
#[pyfunction]
pub fn cut_lines<'py>(
    py: Python<'py>,
    data: PyBackedBytes,
) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
    let cut = || {
        let mut offsets = vec![0; 4];
        let mut bytes = Vec::with_capacity(data.len());
        let mut begin = 0;
        for end in memchr::memchr_iter(b'\n', &data).chain(std::iter::once(data.len())) {
            // Behind the last line's end there is none.
            if end < data.len() || begin < end {
                bytes.extend_from_slice(&data[begin..end]);
                let at = i32::try_from(bytes.len())
                    .map_err(|_| Error::invalid("cut lines: they are longer than two gigabytes"))?;
                offsets.extend_from_slice(&at.to_le_bytes());
            }
            begin = end + 1;
        }
        Ok((offsets, bytes))
    };
    let (offsets, bytes) = waiting(py, cut)?;
    Ok((PyBytes::new(py, &offsets), PyBytes::new(py, &bytes)))
}

/// The words of texts that come in Arrow's layout, and how often each is there: [`words::Counted`].
#[pyfunction]
pub fn count_words<'py>(
    py: Python<'py>,
    offsets: Bound<'py, PyAny>,
    data: Bound<'py, PyAny>,
    separator: u8,
) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
    let (offsets, data) = (bytes_of(&offsets)?, bytes_of(&data)?);
    let found = waiting(py, || words::count(longs(&offsets), &data, separator))?;
    let bytes = |bytes: &[u8]| PyBytes::new(py, bytes);
    Ok((bytes(&found.offsets), bytes(&found.words), bytes(&found.counts)))
}
