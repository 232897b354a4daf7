//! Tables of records, which are in several regions at once: writes with conditions, reads as new as is asked
//! for, scans, and sessions that go along. What a session has seen is kept by the Rust client.

use crate::client::bytes_of;
use crate::errors::waiting;
use crate::pool::Pool;
use crate::process::Process;
use holdfast_base::{Error, Result};
use holdfast_client::{Client, Keep, SEALED_WITHIN, TableClient, TableWrite};
use holdfast_env::HoldMutex;
use holdfast_wire::table::{
    self as msg, BranchName, Expect, GroupDo, GroupRow, GroupWritten, Level, TableMode, Written,
};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use self_cell::{MutBorrow, self_cell};
use std::sync::{Arc, Mutex};

self_cell!(
    struct Session {
        owner: MutBorrow<Client>,
        #[covariant]
        dependent: TableClient,
    }
);

/// A table, and a session on it, which has a connection from its first call on.
#[pyclass(frozen, module = "holdfast._holdfast")]
pub struct Records {
    pool: Arc<Pool>,
    table: String,
    process: Process,
    session: Mutex<Option<Session>>,
}

/// A key, the value that it is given (none deletes it), and on what the write insists: nothing, 0 for no such
/// record, or a version.
type Given<'py> = (Bound<'py, PyAny>, Option<Bound<'py, PyAny>>, Option<u64>);
/// A key, the record's version, and its value.
type Row<'py> = (Bound<'py, PyBytes>, u64, Bound<'py, PyBytes>);
/// Of a branch: see `branches`.
type BranchRow<'py> = (Bound<'py, PyBytes>, String, u64, u64, Option<Bound<'py, PyBytes>>);

fn level_of(level: &str, version: Option<u64>) -> Result<Level> {
    match (level, version) {
        (_, Some(version)) => Ok(Level::Critical { version }),
        ("any", None) => Ok(Level::Any),
        ("latest", None) => Ok(Level::Latest),
        ("strong", None) => Ok(Level::Strong),
        ("session", None) => Ok(Level::Session),
        _ => Err(Error::invalid(format!(
            "read a record at level `{}`: choose `any`, `session`, `latest` or `strong`",
            level.escape_debug()
        ))),
    }
}

fn mode_of(mode: &str) -> Result<TableMode> {
    match mode {
        "timeline" => Ok(TableMode::Timeline),
        "strong" => Ok(TableMode::Strong),
        _ => Err(Error::invalid(format!(
            "make a table of mode `{}`: choose `timeline` or `strong`",
            mode.escape_debug()
        ))),
    }
}

impl Records {
    pub fn new(pool: Arc<Pool>, table: &str) -> Records {
        let (table, process) = (table.to_owned(), Process::current());
        Records { pool, table, process, session: Mutex::default() }
    }

    /// By the session's connection, one call after another.
    fn with<T>(&self, with: impl FnOnce(&mut TableClient<'_>) -> Result<T>) -> Result<T> {
        self.process.check("a table of records")?;
        let mut held = self.session.held();
        if held.is_none() {
            let client = MutBorrow::new(self.pool.connection()?);
            *held = Some(Session::new(client, |client| client.borrow_mut().table(&self.table)));
        }
        let session = held.as_mut().expect("it was begun");
        session.with_dependent_mut(|_, table| with(table))
    }
}

/// 0 is for no record.
fn expected(version: Option<u64>) -> Expect {
    match version {
        None => Expect::Any,
        Some(0) => Expect::Absent,
        Some(version) => Expect::Version { version },
    }
}

#[pymethods]
impl Records {
    /// Makes the table, or finds it made with the same words.
    fn make(
        &self,
        py: Python<'_>,
        mode: &str,
        tablets: u16,
        everywhere: bool,
    ) -> PyResult<RecordsInfo> {
        let made = waiting(py, || {
            let (table, mode) = (self.table.clone(), mode_of(mode)?);
            self.pool.lend()?.table_make(&msg::Make { table, mode, tablets, everywhere })
        })?;
        Ok(RecordsInfo::from(made))
    }

    /// Cuts a tablet in two at this hash, or in its middle, and answers once both are served.
    #[pyo3(signature = (tablet, at=None))]
    fn split(&self, py: Python<'_>, tablet: u16, at: Option<u32>) -> PyResult<RecordsInfo> {
        let split = || self.pool.lend()?.table_split(&self.table, tablet, at);
        Ok(RecordsInfo::from(waiting(py, split)?))
    }

    /// How the table is doing, as the node that is asked has it.
    fn describe(&self, py: Python<'_>) -> PyResult<RecordsInfo> {
        let described = waiting(py, || self.pool.lend()?.table_describe(&self.table))?;
        Ok(RecordsInfo::from(described))
    }

    /// Writes records, each decided by itself; answers of each whether it was made, and the version that the
    /// record has then; none if there is no such record.
    fn write(&self, py: Python<'_>, given: Vec<Given<'_>>) -> PyResult<Vec<(bool, Option<u64>)>> {
        let write = |(key, value, version): &Given<'_>| {
            let value = value.as_ref().map(bytes_of).transpose()?;
            let (key, value) = (bytes_of(key)?.to_vec(), value.map(|value| value.to_vec()));
            Ok(TableWrite { key, value, expect: expected(*version) })
        };
        let writes = given.iter().map(write).collect::<PyResult<Vec<_>>>()?;
        let written = waiting(py, || self.with(|table| table.write(&writes)))?;
        let told = |one: Written| match one {
            Written::Version { version } => (true, Some(version)),
            Written::Found { version } => (false, Some(version)),
            Written::Absent => (false, None),
        };
        Ok(written.into_iter().map(told).collect())
    }

    /// Writes records that stand or fall together; answers what came of it: "written" and each one's version, or why
    /// nothing was: which of them, from 0, is in the way, and the version that it has.
    fn write_together(
        &self,
        py: Python<'_>,
        given: Vec<(Given<'_>, bool)>,
    ) -> PyResult<(&'static str, Vec<u64>, u16, Option<u64>)> {
        let row = |((key, value, version), looks): &(Given<'_>, bool)| {
            let what = match value {
                _ if *looks => GroupDo::Check,
                Some(value) => GroupDo::Put(bytes_of(value)?.to_vec()),
                None => GroupDo::Delete,
            };
            Ok(GroupRow { expect: expected(*version), key: bytes_of(key)?.to_vec(), what })
        };
        let rows = given.iter().map(row).collect::<PyResult<Vec<_>>>()?;
        let written = waiting(py, || self.with(|table| table.write_together(&rows)))?;
        Ok(match written {
            GroupWritten::Versions { versions } => ("written", versions, 0, None),
            GroupWritten::Found { at, version } => ("unexpected", Vec::new(), at, Some(version)),
            GroupWritten::Absent { at } => ("unexpected", Vec::new(), at, None),
            GroupWritten::OtherHome { at } => ("home", Vec::new(), at, None),
            GroupWritten::OtherTablet { at } => ("tablet", Vec::new(), at, None),
        })
    }

    /// Of each key its record's version and value, or None; `together` as they show at one moment.
    #[expect(clippy::type_complexity, reason = "one a key")]
    #[pyo3(signature = (keys, level, version=None, together=false))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<Bound<'py, PyAny>>,
        level: &str,
        version: Option<u64>,
        together: bool,
    ) -> PyResult<Vec<Option<(u64, Bound<'py, PyBytes>)>>> {
        let key = |key: &Bound<'py, PyAny>| Ok(bytes_of(key)?.to_vec());
        let keys = keys.iter().map(key).collect::<PyResult<Vec<Vec<u8>>>>()?;
        let got = waiting(py, || {
            let level = level_of(level, version)?;
            self.with(|table| match together {
                true => table.get_together(&keys, level),
                false => table.get_all(&keys, level),
            })
        })?;
        let told = |one: msg::Record| (one.version, PyBytes::new(py, &one.value));
        Ok(got.into_iter().map(|one| one.map(told)).collect())
    }

    /// A page of records in order of their keys, and where the next one begins, if there may be one: `start`
    /// of it, or `end`, backwards.
    fn scan<'py>(
        &self,
        py: Python<'py>,
        start: Vec<u8>,
        end: Option<Vec<u8>>,
        backwards: bool,
        rows_max: u32,
    ) -> PyResult<(Vec<Row<'py>>, Option<Bound<'py, PyBytes>>)> {
        let scan = || self.with(|table| table.scan(&start, end.as_deref(), backwards, rows_max));
        let page = waiting(py, scan)?;
        let row = |found: msg::Found| {
            let msg::Record { version, value } = found.record;
            (PyBytes::new(py, &found.key), version, PyBytes::new(py, &value))
        };
        let rows = page.found.into_iter().map(row).collect();
        Ok((rows, page.next.map(|next| PyBytes::new(py, &next))))
    }

    /// Says that a region is lost, and waits until what is at home there is led by one that is there.
    fn seal(&self, py: Python<'_>, lost: u8) -> PyResult<()> {
        waiting(py, || self.with(|table| table.seal(lost, SEALED_WITHIN, |_| {})))
    }

    /// The next branches of a tablet behind one of them, none at the end: each one's key and place, the version
    /// that it began behind, the one that it came to, and its value.
    fn branches<'py>(
        &self,
        py: Python<'py>,
        tablet: u16,
        after: Option<(Vec<u8>, String)>,
    ) -> PyResult<Vec<BranchRow<'py>>> {
        let page = waiting(py, || {
            let after = after.map(|(key, place)| BranchName::at(key, &place)).transpose()?;
            self.with(|table| table.branches(tablet, after))
        })?;
        let row = |branch: msg::Branch| {
            let value = branch.value.map(|value| PyBytes::new(py, &value));
            let (key, place) = (PyBytes::new(py, &branch.name.key), branch.name.place());
            (key, place, branch.after, branch.version, value)
        };
        Ok(page.into_iter().map(row).collect())
    }

    /// Sees to a branch of a key, of several that of this place: the record stays as it is, or has from now on
    /// what the branch has.
    fn resolve(
        &self,
        py: Python<'_>,
        key: Bound<'_, PyAny>,
        keep: &str,
        place: Option<&str>,
    ) -> PyResult<()> {
        let key = bytes_of(&key)?.to_vec();
        waiting(py, || {
            let keep = match keep {
                "record" => Keep::Record,
                "branch" => Keep::Branch,
                _ => {
                    return Err(Error::invalid(format!(
                        "resolve a branch, and keep `{}`: choose `record` or `branch`",
                        keep.escape_debug()
                    )));
                }
            };
            self.with(|table| {
                let branch = table.branch(&key, place)?;
                table.resolve(&branch, keep)
            })
        })
    }

    /// What this session has seen, as a line of text.
    fn session(&self, py: Python<'_>) -> PyResult<String> {
        waiting(py, || self.with(|table| Ok(table.session())))
    }

    /// Goes on with what a session has seen.
    fn go_on(&self, py: Python<'_>, session: &str) -> PyResult<()> {
        waiting(py, || self.with(|table| table.go_on(session)))
    }

    /// Ends the session, and gives its connection back.
    fn close(&self, py: Python<'_>) {
        py.detach(|| {
            if self.process.is_current()
                && let Some(session) = self.session.held().take()
            {
                self.pool.give_back(session.into_owner().into_inner());
            }
        });
    }
}

impl Drop for Records {
    fn drop(&mut self) {
        let session = self.session.held().take();
        if !self.process.is_current() {
            std::mem::forget(session);
        }
    }
}

/// A table of records, as the node that was asked has it.
#[pyclass(frozen, get_all, module = "holdfast")]
pub struct RecordsInfo {
    table: String,
    /// "timeline" or "strong".
    mode: &'static str,
    /// The region that the node belongs to, and how many there are.
    region: u8,
    regions: u8,
    tablets: usize,
    /// Of each tablet the first hash of its keys, and the last one.
    hashes: Vec<(u32, u32)>,
    /// In all tablets, without those that are deleted.
    records: u64,
    /// Of keys and values.
    bytes: u64,
    /// Why tablets take nothing, of those that have stopped.
    stopped: Vec<String>,
}

impl From<msg::TableInfo> for RecordsInfo {
    fn from(info: msg::TableInfo) -> RecordsInfo {
        let mode = match info.mode {
            TableMode::Timeline => "timeline",
            TableMode::Strong => "strong",
        };
        let tablets = info.tablets.iter();
        RecordsInfo {
            mode,
            region: info.region,
            regions: info.regions,
            tablets: info.tablets.len(),
            hashes: tablets.clone().map(|tablet| (tablet.first, tablet.last)).collect(),
            records: tablets.clone().map(|tablet| tablet.records).sum(),
            bytes: tablets.clone().map(|tablet| tablet.bytes).sum(),
            stopped: tablets.map(|t| t.stopped.clone()).filter(|why| !why.is_empty()).collect(),
            table: info.table,
        }
    }
}

#[pymethods]
impl RecordsInfo {
    fn __repr__(&self) -> String {
        let RecordsInfo { table, mode, regions, records, .. } = self;
        format!("RecordsInfo(table={table:?}, mode={mode:?}, regions={regions}, records={records})")
    }
}
