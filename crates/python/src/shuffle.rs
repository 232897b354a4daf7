//! The kernels of jobs over many machines, for the actors of `holdfast.sort` and `holdfast.mapreduce`.
//! Bytes go from a mapper's process to a receiver's over sockets of their own; Python says what goes
//! where, and sees sums.

use crate::client::bytes_of;
use crate::columns::{self, Columns, number_of};
use crate::errors::{raised, waiting};
use holdfast_base::{Error, Result};
use holdfast_env::tasks;
use holdfast_env::{HoldMutex, RealDisk, RealRng, Secret};
use holdfast_shuffle::fold::{Fold, Neighbours, Number};
use holdfast_shuffle::ledger::Attempt;
use holdfast_shuffle::output::{FilePart, Pieces};
use holdfast_shuffle::sorter::{self, Sorting};
use holdfast_shuffle::{limits, mapper, pairs, receiver};
use holdfast_sort::hash::Sum;
use holdfast_sort::key::{Key, LineOptions};
use holdfast_sort::order::Order;
use holdfast_sort::pieces;
use holdfast_sort::probe;
use holdfast_sort::record::Format;
use holdfast_sort::split::Splitters;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver as Queue, sync_channel};
use std::sync::{Arc, Mutex};

/// Records, bytes and an order-independent hash.
type Sums = (u64, u64, u64);
/// A boundary, and whether the records equal to it have a partition of their own.
type Boundary = (Vec<u8>, bool);

fn sums(sum: Sum) -> Sums {
    (sum.records, sum.bytes, sum.hash)
}

fn token_of(text: &str) -> Result<Secret> {
    let wrong = || Error::invalid("use a job's token: it is 64 hexadecimal digits");
    Secret::parse(text).ok_or_else(wrong)
}

/// Draws the token of a job: who has it may send to the job's receivers.
#[pyfunction]
pub fn draw_token() -> String {
    Secret::draw(&RealRng).text().trim().to_owned()
}

/// Bytes a second that the disk of a directory reads and writes together, by `bytes` each way.
#[pyfunction]
pub fn disk_pace(py: Python<'_>, directory: PathBuf, bytes: u64) -> PyResult<f64> {
    waiting(py, || probe::mixed_bandwidth(&RealDisk, &directory, bytes))
}

/// The sample of a key: a boundary at it cuts no key in two.
#[pyfunction]
pub fn pair_boundary<'py>(py: Python<'py>, key: PyBackedBytes) -> Bound<'py, PyBytes> {
    PyBytes::new(py, &pairs::boundary(&key))
}

/// How input is cut into records, and their order.
#[pyclass(frozen, module = "holdfast._holdfast")]
pub struct Rules {
    format: Format,
    order: Order,
}

#[pymethods]
impl Rules {
    /// Records of `record` bytes, with a length in front (`prefixed`), or ended by the byte `delimiter`.
    /// Lines have GNU sort's `keys`, `separator` and `letters`; others the bytes `start` to `end`.
    #[new]
    #[pyo3(signature = (*, record=None, prefixed=false, delimiter=10, keys=Vec::new(), separator=None,
        letters="", stable=false, start=0, end=None))]
    #[expect(clippy::too_many_arguments, reason = "each is an option of the sort")]
    fn new(
        py: Python<'_>,
        record: Option<usize>,
        prefixed: bool,
        delimiter: u8,
        keys: Vec<String>,
        separator: Option<u8>,
        letters: &str,
        stable: bool,
        start: usize,
        end: Option<usize>,
    ) -> PyResult<Rules> {
        let format = match (record, prefixed) {
            (Some(bytes), false) => Format::Fixed(bytes),
            (None, true) => Format::Prefixed,
            _ => Format::Delimited(delimiter),
        };
        let order = || match format {
            Format::Fixed(0) => {
                Err(Error::invalid("sort records of 0 bytes: one has at least one"))
            }
            Format::Delimited(_) => Order::lines(&LineOptions {
                keys: keys.iter().map(|key| Key::parse(key)).collect::<Result<_>>()?,
                separator,
                letters: letters.to_owned(),
                stable,
            }),
            _ => Order::range(format, start, end, letters.contains('r')),
        };
        Ok(Rules { format, order: order().map_err(|e| raised(py, e))? })
    }

    /// About `wanted` whole records of `bytes`, spread over them.
    fn sample<'py>(
        &self,
        py: Python<'py>,
        bytes: PyBackedBytes,
        wanted: usize,
    ) -> Vec<Bound<'py, PyBytes>> {
        let sample = py.detach(|| pieces::sample(self.format, &bytes, wanted));
        sample.iter().map(|record| PyBytes::new(py, record)).collect()
    }

    /// Boundaries of about `wanted` partitions, and how many partitions they make.
    fn boundaries(
        &self,
        py: Python<'_>,
        sample: Vec<Vec<u8>>,
        wanted: usize,
    ) -> (Vec<Boundary>, usize) {
        py.detach(|| {
            let splitters = Splitters::new(self.format, &self.order, &sample, wanted);
            let of = |(body, alone): (&[u8], bool)| (body.to_vec(), alone);
            (splitters.boundaries().map(of).collect(), splitters.partitions())
        })
    }
}

/// One attempt at a split: takes its records, and sends them to the receivers of their partitions.
#[pyclass(frozen, module = "holdfast._holdfast")]
pub struct Mapper {
    mapper: Mutex<Option<mapper::Mapper>>,
}

fn ended() -> Error {
    Error::invalid("use a mapper: it is finished")
}

impl Mapper {
    fn with(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut mapper::Mapper) -> Result<()> + Send,
    ) -> PyResult<()> {
        waiting(py, || work(self.mapper.held().as_mut().ok_or_else(ended)?))
    }

    /// Takes whole records of pairs.
    pub fn push_records(&self, records: &[u8]) -> Result<()> {
        self.mapper.held().as_mut().ok_or_else(ended)?.push(records)
    }
}

#[pymethods]
impl Mapper {
    /// `targets` are pairs of a receiver's address and its partitions.
    #[new]
    #[pyo3(signature = (rules, boundaries, targets, *, token, split, attempt, memory))]
    #[expect(clippy::too_many_arguments, reason = "each is a part of the task")]
    fn new(
        py: Python<'_>,
        rules: &Rules,
        boundaries: Vec<Boundary>,
        targets: Vec<(String, Vec<u32>)>,
        token: &str,
        split: u64,
        attempt: u64,
        memory: u64,
    ) -> PyResult<Mapper> {
        let begin = || {
            let target = |(address, partitions): (String, Vec<u32>)| {
                let address = address.parse().map_err(|_| {
                    Error::invalid(format!("send to `{address}`: it is no address and port"))
                })?;
                Ok(mapper::Target { address, partitions })
            };
            let task = mapper::Task {
                format: rules.format,
                order: rules.order.clone(),
                splitters: Splitters::of(boundaries.into_iter(), &rules.order),
                targets: targets.into_iter().map(target).collect::<Result<_>>()?,
                token: token_of(token)?,
                attempt: Attempt { split, id: attempt },
                memory_bytes: memory,
            };
            mapper::Mapper::begin(task, &RealRng)
        };
        Ok(Mapper { mapper: Mutex::new(Some(waiting(py, begin)?)) })
    }

    /// Takes the records that begin in bytes `start` to `end` of a local file.
    fn file(&self, py: Python<'_>, path: PathBuf, start: u64, end: u64) -> PyResult<()> {
        self.with(py, |mapper| mapper.file(&RealDisk, &path, start, end))
    }

    /// Takes the next bytes of the split.
    fn push(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let bytes = bytes_of(data)?;
        self.with(py, |mapper| mapper.push(&bytes))
    }

    /// Says that the input `name` ends here.
    fn end_input(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.with(py, |mapper| mapper.end_input(name))
    }

    /// Takes pairs of key and value.
    fn push_pairs(
        &self,
        py: Python<'_>,
        given: Vec<(PyBackedBytes, PyBackedBytes)>,
    ) -> PyResult<()> {
        self.with(py, |mapper| {
            let mut bytes = Vec::new();
            for (key, value) in &given {
                pairs::put(&mut bytes, key, value)?;
            }
            mapper.push(&bytes)
        })
    }

    /// Takes rows of a key and a number, in Arrow's layout.
    fn push_columns(&self, py: Python<'_>, columns: Columns) -> PyResult<()> {
        waiting(py, || columns::push(self, &columns))
    }

    /// Waits until every receiver has its part. Returns the sums of the split, for each target what it
    /// lost its part by, and the bytes that were sent to it.
    fn finish(&self, py: Python<'_>) -> PyResult<(Sums, Vec<Option<String>>, Vec<u64>)> {
        let finish = || self.mapper.held().take().ok_or_else(ended)?.finish();
        let mapped = waiting(py, finish)?;
        let lost = mapped.lost.into_iter().map(|lost| lost.map(|e| e.message)).collect();
        Ok((sums(mapped.sum), lost, mapped.sent_bytes))
    }
}

/// Receives the blocks of some partitions, and sorts them.
#[pyclass(frozen, module = "holdfast._holdfast")]
pub struct Receiver {
    receiver: Mutex<Option<Arc<receiver::Receiver>>>,
}

impl Receiver {
    fn open(&self) -> Result<Arc<receiver::Receiver>> {
        let closed = || Error::invalid("use a receiver: it was closed");
        self.receiver.held().clone().ok_or_else(closed)
    }
}

fn sorting(rules: &Rules, memory_bytes: u64, threads: usize) -> Sorting {
    Sorting { format: rules.format, order: rules.order.clone(), memory_bytes, threads }
}

#[pymethods]
impl Receiver {
    /// Listens at a port of `address`, and keeps what comes in `kept_bytes` of memory and in a nameless file in
    /// `directory`.
    #[new]
    #[pyo3(signature = (directory, *, address, token, partitions, connections_max, kept_bytes=0))]
    fn new(
        py: Python<'_>,
        directory: PathBuf,
        address: &str,
        token: &str,
        partitions: Vec<u32>,
        connections_max: usize,
        kept_bytes: u64,
    ) -> PyResult<Receiver> {
        let start = || {
            let address = address
                .parse()
                .map_err(|_| Error::invalid(format!("receive at `{address}`: it is no address")))?;
            let token = token_of(token)?;
            let config =
                receiver::Config { address, token, partitions, connections_max, kept_bytes };
            receiver::Receiver::start(&RealDisk, &directory, config)
        };
        Ok(Receiver { receiver: Mutex::new(Some(Arc::new(waiting(py, start)?))) })
    }

    /// Where senders connect.
    #[getter]
    fn address(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.open().map_err(|e| raised(py, e))?.address().to_string())
    }

    /// Splits that are here whole.
    fn splits(&self, py: Python<'_>) -> PyResult<Vec<u64>> {
        Ok(self.open().map_err(|e| raised(py, e))?.splits())
    }

    /// The sums of what arrived of a partition.
    fn sum(&self, py: Python<'_>, partition: u32) -> PyResult<Sums> {
        Ok(sums(self.open().map_err(|e| raised(py, e))?.sum(partition)))
    }

    /// Gives up what arrived of a partition, which is finished.
    fn forget(&self, py: Python<'_>, partition: u32) -> PyResult<()> {
        self.open().map_err(|e| raised(py, e))?.forget(partition);
        Ok(())
    }

    /// Bytes that were received, written to the file, and read from it.
    fn moved(&self, py: Python<'_>) -> PyResult<(u64, u64, u64)> {
        Ok(self.open().map_err(|e| raised(py, e))?.moved())
    }

    /// Sorts a partition into the file `path`, which exists, from `offset` on, and makes it durable.
    /// Returns its sums, and whether it had outgrown the memory.
    #[expect(clippy::too_many_arguments, reason = "where to, and how")]
    fn sort_to(
        &self,
        py: Python<'_>,
        rules: &Rules,
        partition: u32,
        path: PathBuf,
        offset: u64,
        memory: u64,
        threads: usize,
    ) -> PyResult<(Sums, bool)> {
        let sort = || {
            let sink = FilePart::open(&RealDisk, &path, offset)?;
            let sorting = sorting(rules, memory, threads);
            let sorted = sorter::sort(&*self.open()?, partition, &sorting, sink)?;
            Ok((sums(sorted.sum), sorted.outgrew))
        };
        waiting(py, sort)
    }

    /// Sorts a partition, and hands out its bytes or pairs as they are asked for.
    fn sorted(
        &self,
        py: Python<'_>,
        rules: &Rules,
        partition: u32,
        memory: u64,
        threads: usize,
    ) -> PyResult<Sorted> {
        let start = || {
            let (out, queue) = sync_channel(1);
            let (receiver, sorting) = (self.open()?, sorting(rules, memory, threads));
            tasks::spawn("shuffle-sort", move || {
                let to = out.clone();
                let gone = || Error::retry("sort a partition: nobody wants it any more");
                let sink = Pieces::new(move |bytes: &[u8]| {
                    to.send(Ok(bytes.to_vec())).map_err(|_| gone())
                });
                if let Err(e) = sorter::sort(&receiver, partition, &sorting, sink) {
                    let _ = out.send(Err(e));
                }
            })?;
            Ok(Sorted {
                coming: Mutex::new(Coming { queue, bytes: Vec::new(), at: 0 }),
                folding: Mutex::default(),
            })
        };
        waiting(py, start)
    }

    /// Ends all connections, and gives the file up.
    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(self.receiver.held().take()));
    }
}

/// Bytes of the pairs that are handed out at once: as objects of Python they take several times as much.
const PAIRS_BYTES: usize = 256 << 10;

/// What comes out of a partition.
struct Coming {
    queue: Queue<Result<Vec<u8>>>,
    /// What came last, from where it is not handed out.
    bytes: Vec<u8>,
    at: usize,
}

impl Coming {
    /// Whole records in their order, and where each ends; none at the end.
    fn records(&mut self) -> Result<Option<(Vec<u8>, Vec<usize>)>> {
        loop {
            let mut ends = Vec::new();
            let mut end = self.at;
            while let Some(n) = Format::Prefixed.record_bytes(&self.bytes[end..])
                && (ends.is_empty() || end + n - self.at <= PAIRS_BYTES)
            {
                end += n;
                ends.push(end - self.at);
            }
            if !ends.is_empty() {
                let records = self.bytes[self.at..end].to_vec();
                self.at = end;
                return Ok(Some((records, ends)));
            }
            let Some(more) = self.queue.recv().ok().transpose()? else { return Ok(None) };
            self.bytes.drain(..self.at);
            self.at = 0;
            match self.bytes.is_empty() {
                true => self.bytes = more,
                false => self.bytes.extend_from_slice(&more),
            }
        }
    }
}

/// A partition's records in order.
#[pyclass(frozen, module = "holdfast._holdfast")]
pub struct Sorted {
    coming: Mutex<Coming>,
    /// Of whoever asks for folded ones.
    folding: Mutex<Option<Neighbours>>,
}

type Pair<'py> = (Bound<'py, PyBytes>, Bound<'py, PyBytes>);
/// Keys, each with its one number.
type Folded = Vec<(Vec<u8>, Number)>;
type ToldFolded<'py> = Vec<(Bound<'py, PyBytes>, Told)>;

/// A number as Python gets it.
#[derive(IntoPyObject)]
pub enum Told {
    Whole(i128),
    Float(f64),
}

impl Sorted {
    /// The next keys with all their numbers in one; none at the end.
    fn folded(&self, fold: Fold) -> Result<Option<Folded>> {
        let mut folding = self.folding.held();
        let neighbours = folding.get_or_insert_with(|| Neighbours::new(fold));
        let mut found = Vec::new();
        while found.is_empty() {
            let Some((all, ends)) = self.coming.held().records()? else {
                found.extend(neighbours.finish());
                break;
            };
            let mut start = 0;
            for end in ends {
                let (key, value) = pairs::parse(Format::Prefixed.body(&all[start..end]))?;
                let number = number_of(&key, value)?;
                found.extend(neighbours.push(key, number)?);
                start = end;
            }
        }
        Ok(if found.is_empty() { None } else { Some(found) })
    }
}

#[pymethods]
impl Sorted {
    /// The next bytes; none at the end.
    fn next_bytes<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let next = waiting(py, || self.coming.held().queue.recv().ok().transpose())?;
        Ok(next.map(|bytes| PyBytes::new(py, &bytes)))
    }

    /// The next keys, each with its one number by the fold of that name; none at the end.
    fn next_folded<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Option<ToldFolded<'py>>> {
        let found = waiting(py, || self.folded(Fold::named(name)?))?;
        let told = |(key, number): (Vec<u8>, Number)| match number {
            Number::Whole(number) => (PyBytes::new(py, &key), Told::Whole(number)),
            Number::Float(number) => (PyBytes::new(py, &key), Told::Float(number)),
        };
        Ok(found.map(|found| found.into_iter().map(told).collect()))
    }

    /// The next pairs of key and value; none at the end.
    fn next_pairs<'py>(&self, py: Python<'py>) -> PyResult<Option<Vec<Pair<'py>>>> {
        let next = || self.coming.held().records();
        let Some((all, ends)) = waiting(py, next)? else { return Ok(None) };
        let starts = std::iter::once(0).chain(ends.iter().copied());
        let pair = |(start, end): (usize, usize)| {
            let (key, value) = pairs::parse(Format::Prefixed.body(&all[start..end]))?;
            Ok((PyBytes::new(py, &key), PyBytes::new(py, value)))
        };
        let found: Result<Vec<Pair<'py>>> = starts.zip(ends.iter().copied()).map(pair).collect();
        found.map(Some).map_err(|e| raised(py, e))
    }
}

/// What a partition takes of a mapper's memory at least, and a receiver of a connection's.
pub fn add_limits(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("BLOCK_BYTES_MIN", limits::BLOCK_BYTES_MIN)?;
    module.add("BLOCK_BYTES_MAX", limits::BLOCK_BYTES_MAX)?;
    module.add("PARTITIONS_MAX", limits::PARTITIONS_MAX)
}
