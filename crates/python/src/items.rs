//! Topics of items: changes under a session, reads, and what runs of views. Rides are in `ride`.

use crate::client::bytes_of;
use crate::errors::{raised, waiting};
use crate::pool::Pool;
use crate::process::Process;
use crate::ride::{Asked, Ride};
use holdfast_base::ids::Index;
use holdfast_base::{Error, Result};
use holdfast_client::Client;
use holdfast_client::view::{Changes, ViewClient};
use holdfast_env::HoldMutex;
use holdfast_view::items::log_topic;
use holdfast_wire::slab::Hashed;
use holdfast_wire::view::{self as msg, Board};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use self_cell::{MutBorrow, self_cell};
use std::sync::{Arc, Mutex};

self_cell!(
    struct Session {
        owner: MutBorrow<Client>,
        #[covariant]
        dependent: ViewClient,
    }
);

/// A topic of items, and a session for its changes, which has a connection from the first one on.
#[pyclass(frozen, module = "holdfast._holdfast")]
pub struct Items {
    pool: Arc<Pool>,
    topic: String,
    process: Process,
    session: Mutex<Option<Session>>,
}

/// A key of a collection, by its number, and the value that it is given; none for a deletion.
type Given<'py> = (u16, Bound<'py, PyAny>, Option<Bound<'py, PyAny>>);
/// A key, the index of its version, and the value.
type Row<'py> = (Bound<'py, PyBytes>, u64, Bound<'py, PyBytes>);

impl Items {
    pub fn new(pool: Arc<Pool>, topic: &str) -> Result<Items> {
        log_topic(topic)?;
        let (topic, process) = (topic.to_owned(), Process::current());
        Ok(Items { pool, topic, process, session: Mutex::default() })
    }

    /// By any connection: what needs no session.
    fn reading<T>(&self, read: impl FnOnce(&mut ViewClient<'_>) -> Result<T>) -> Result<T> {
        read(&mut self.pool.lend()?.view(&self.topic))
    }

    /// By the session's connection, one call after another.
    fn writing<T>(&self, write: impl FnOnce(&mut ViewClient<'_>) -> Result<T>) -> Result<T> {
        self.process.check("a topic of items")?;
        let mut held = self.session.held();
        if held.is_none() {
            let client = MutBorrow::new(self.pool.connection()?);
            *held = Some(Session::new(client, |client| client.borrow_mut().view(&self.topic)));
        }
        let session = held.as_mut().expect("it was begun");
        session.with_dependent_mut(|_, view| write(view))
    }
}

/// Which part of a key is hashed, as the command line has it.
fn rule(text: &str) -> Result<Hashed> {
    let until = match text.strip_prefix("until=").map(str::as_bytes) {
        Some([byte]) => Some(Hashed::Until(*byte)),
        _ => None,
    };
    match text {
        "all" => Ok(Hashed::All),
        text => (text.parse().ok().filter(|bytes| *bytes > 0).map(Hashed::Bytes)).or(until).ok_or_else(|| {
            Error::invalid(format!(
                "make a collection with hashed=`{}`: give `all`, a number of bytes, or `until=` and one \
                 character",
                text.escape_debug()
            ))
        }),
    }
}

fn rule_text(hashed: Hashed) -> String {
    match hashed {
        Hashed::All => "all".to_owned(),
        Hashed::Bytes(bytes) => bytes.to_string(),
        Hashed::Until(byte) => format!("until={}", byte as char),
    }
}

fn kind_of(kind: &str, of: Option<(String, String)>) -> Result<msg::ViewKind> {
    match (kind, of) {
        ("disk", None) => Ok(msg::ViewKind::Disk {}),
        ("memory", None) => Ok(msg::ViewKind::Memory {}),
        ("index", Some((collection, field))) => Ok(msg::ViewKind::Index { collection, field }),
        _ => Err(Error::invalid(
            "run a view: choose `disk`, `memory`, or `index` with a collection and a field",
        )),
    }
}

#[pymethods]
impl Items {
    /// Makes a collection, and the topic if there is none; answers the index of the entry.
    fn make(&self, py: Python<'_>, name: String, hashed: &str, json: bool) -> PyResult<u64> {
        waiting(py, || {
            let collection = msg::Collection { name, hashed: rule(hashed)?, json };
            self.reading(|view| view.make(collection)).map(|index| index.0)
        })
    }

    /// Names of the collections in the order of their numbers, each with what of a key is hashed and
    /// whether its values are JSON; the horizon; and the last entry that the node has applied.
    #[expect(clippy::type_complexity, reason = "a row of a table")]
    fn catalog(&self, py: Python<'_>) -> PyResult<(Vec<(String, String, bool)>, u64, u64)> {
        let catalog = waiting(py, || self.reading(|view| view.catalog()))?;
        let of = |one: msg::Collection| (one.name, rule_text(one.hashed), one.json);
        let collections = catalog.collections.into_iter().map(of).collect();
        Ok((collections, catalog.horizon.0, catalog.applied.0))
    }

    /// Changes keys, all or none; answers the index.
    fn change(&self, py: Python<'_>, given: Vec<Given<'_>>) -> PyResult<u64> {
        let mut changes = Changes::default();
        for (collection, key, value) in &given {
            let key = bytes_of(key)?;
            match value.as_ref().map(bytes_of).transpose()? {
                Some(value) => changes.put(*collection, &key, &value),
                None => changes.delete(*collection, &key),
            }
        }
        waiting(py, || self.writing(|view| view.change(&changes)).map(|index| index.0))
    }

    /// Gives up versions that are older than those of an index; answers the entry that says so, and where
    /// the horizon is.
    fn trim(&self, py: Python<'_>, index: u64) -> PyResult<(u64, u64)> {
        let moved = waiting(py, || self.writing(|view| view.horizon(Index(index))))?;
        Ok((moved.index.0, moved.horizon.0))
    }

    /// Asks for an image of every disk view; answers the index of which it is.
    fn mark(&self, py: Python<'_>) -> PyResult<u64> {
        waiting(py, || self.writing(|view| view.mark()).map(|index| index.0))
    }

    /// Of each key its version's index and value, or None.
    #[expect(clippy::type_complexity, reason = "one a key")]
    fn get<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<(u16, Bound<'py, PyAny>)>,
        at: Option<u64>,
        reached: u64,
    ) -> PyResult<Vec<Option<(u64, Bound<'py, PyBytes>)>>> {
        let key = |(collection, key): &(u16, Bound<'py, PyAny>)| {
            Ok(msg::Key { collection: *collection, key: bytes_of(key)?.to_vec() })
        };
        let keys = keys.iter().map(key).collect::<PyResult<Vec<_>>>()?;
        let get = || self.reading(|view| view.get(keys, at.map(Index), Index(reached)));
        let got = waiting(py, get)?;
        let found = |found: msg::Found| (found.index.0, PyBytes::new(py, &found.value));
        Ok(got.found.into_iter().map(|one| one.map(found)).collect())
    }

    /// A page of keys that begin so, from the first one behind `after`; and whether there are more.
    #[expect(clippy::too_many_arguments, reason = "Python's are named")]
    fn scan<'py>(
        &self,
        py: Python<'py>,
        collection: u16,
        prefix: Vec<u8>,
        after: Option<Vec<u8>>,
        keys_max: u32,
        at: Option<u64>,
        reached: u64,
    ) -> PyResult<(Vec<Row<'py>>, bool)> {
        let (topic, at, reached) = (self.topic.clone(), at.map(Index), Index(reached));
        let scan = msg::Scan { topic, reached, at, collection, prefix, after, keys_max };
        let rows = waiting(py, || self.reading(|view| view.scan(&scan)))?;
        let row =
            |row: msg::Row| (PyBytes::new(py, &row.key), row.index.0, PyBytes::new(py, &row.value));
        Ok((rows.rows.into_iter().map(row).collect(), rows.more))
    }

    /// A page of keys whose value has this in a field now, by an index; and whether there are more.
    #[expect(clippy::too_many_arguments, reason = "Python's are named")]
    fn find<'py>(
        &self,
        py: Python<'py>,
        collection: String,
        field: String,
        value: Vec<u8>,
        after: Option<Vec<u8>>,
        keys_max: u32,
        reached: u64,
    ) -> PyResult<(Vec<Bound<'py, PyBytes>>, bool)> {
        let (topic, reached) = (self.topic.clone(), Index(reached));
        let find = msg::Find { topic, reached, collection, field, value, after, keys_max };
        let found = waiting(py, || self.reading(|view| view.find(&find)))?;
        let keys = found.keys.iter().map(|one| PyBytes::new(py, &one.key));
        Ok((keys.collect(), found.more))
    }

    /// Has the node run a view from now on.
    #[pyo3(signature = (kind, *, part=0, of=1, index=None))]
    fn run_view(
        &self,
        py: Python<'_>,
        kind: &str,
        part: u32,
        of: u32,
        index: Option<(String, String)>,
    ) -> PyResult<()> {
        waiting(py, || {
            let (topic, kind) = (self.topic.clone(), kind_of(kind, index)?);
            self.pool.lend()?.run_view(&msg::ViewName { topic, kind, part, of })
        })
    }

    /// Boards the node's views, or those of several nodes.
    #[pyo3(signature = (*, part, of, collections, names, keys_only, versions, since, below, fields, reached, at, follow, dedicated, servers, leave_out, apart, token))]
    #[expect(clippy::too_many_arguments, reason = "Python's are named")]
    fn ride(
        &self,
        py: Python<'_>,
        part: u32,
        of: u32,
        collections: Option<Vec<u16>>,
        names: Option<String>,
        keys_only: bool,
        versions: bool,
        since: u64,
        below: Option<u64>,
        fields: Option<Vec<String>>,
        reached: u64,
        at: Option<u64>,
        follow: bool,
        dedicated: bool,
        servers: Option<Vec<String>>,
        leave_out: Vec<String>,
        apart: Vec<String>,
        token: Option<String>,
    ) -> PyResult<Ride> {
        let of_part = Asked::board(&self.topic, part, of).map_err(|e| raised(py, e))?;
        let board = Board {
            collections,
            keys_only,
            versions,
            since: Index(since),
            below: below.map(Index),
            fields,
            reached: Index(reached),
            at: at.map(Index),
            dedicated,
            ..of_part
        };
        let asked = Asked { board, names, follow, servers, leave_out, apart, token };
        Ride::begin(py, &self.pool, asked)
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

impl Drop for Items {
    fn drop(&mut self) {
        let session = self.session.held().take();
        if !self.process.is_current() {
            std::mem::forget(session);
        }
    }
}

/// For errors that name a topic.
pub fn begun(py: Python<'_>, pool: &Arc<Pool>, topic: &str) -> PyResult<Items> {
    Items::new(pool.clone(), topic).map_err(|e| raised(py, e))
}
