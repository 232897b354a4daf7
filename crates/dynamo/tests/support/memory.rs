//! A store of rows in memory, for tests.
#![allow(dead_code, reason = "each test uses a part")]

use holdfast_base::{Error, Kind, Result};
use holdfast_dynamo::api::Api;
use holdfast_dynamo::fault::Fault;
use holdfast_dynamo::rows::{Expect, Rows, Span, Versioned, Written};
use holdfast_env::{Clock, SeededRng, runtime};
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

type Map<K> = BTreeMap<K, Versioned>;

#[derive(Default)]
pub struct State {
    version: u64,
    tables: Map<String>,
    rows: BTreeMap<String, Map<Vec<u8>>>,
}

/// All tables, behind one lock.
#[derive(Default)]
pub struct Memory {
    pub state: Mutex<State>,
    /// Rows that one scan gives at most, whatever it is asked for; 0 for as many as it likes.
    pub rows_max: usize,
    /// How many of the next writes find that somebody else was there.
    pub contended: Mutex<usize>,
    /// How many of the next writes are done before all others are to be sent again.
    pub full_after: Mutex<Option<usize>>,
}

fn put<K: Ord>(
    map: &mut Map<K>,
    key: K,
    bytes: Option<Vec<u8>>,
    expect: Expect,
    version: u64,
) -> Written {
    let fits = match (expect, map.get(&key)) {
        (Expect::Any, _) | (Expect::Absent, None) => true,
        (Expect::Version(version), Some(there)) => there.version == version,
        _ => false,
    };
    match (fits, bytes) {
        (false, _) => return Written::Mismatch,
        (true, Some(bytes)) => drop(map.insert(key, Versioned { version, bytes })),
        (true, None) => drop(map.remove(&key)),
    }
    Written::Done
}

impl Memory {
    fn rows<T>(&self, table: &str, use_it: impl FnOnce(&mut Map<Vec<u8>>, u64) -> T) -> Result<T> {
        let mut state = self.state.lock().unwrap();
        state.version += 1;
        let version = state.version;
        match state.rows.get_mut(table) {
            Some(rows) => Ok(use_it(rows, version)),
            None => Err(Error::new(Kind::NotFound, "no such table")),
        }
    }
}

#[async_trait::async_trait]
impl Rows for Memory {
    async fn read(&self, table: &str, key: &[u8], _: bool) -> Result<Option<Versioned>> {
        self.rows(table, |rows, _| rows.get(key).cloned())
    }

    async fn write(
        &self,
        table: &str,
        key: &[u8],
        bytes: Option<Vec<u8>>,
        expect: Expect,
    ) -> Result<Written> {
        if let Some(left) = self.full_after.lock().unwrap().as_mut() {
            *left = left.checked_sub(1).ok_or_else(|| Error::new(Kind::Retry, "busy"))?;
        }
        let mut contended = self.contended.lock().unwrap();
        if *contended > 0 && expect != Expect::Any {
            *contended -= 1;
            return Ok(Written::Mismatch);
        }
        self.rows(table, |rows, version| put(rows, key.to_vec(), bytes, expect, version))
    }

    async fn scan(&self, table: &str, span: &Span, _: bool) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        assert!(span.rows_max > 0 && span.bytes_max > 0);
        self.rows(table, |rows, _| {
            let inside = rows.range(span.from.clone()..);
            let inside = inside.take_while(|(key, _)| span.to.as_ref().is_none_or(|to| *key < to));
            let mut found: Vec<_> =
                inside.map(|(key, row)| (key.clone(), row.bytes.clone())).collect();
            if span.backwards {
                found.reverse();
            }
            let mut bytes = 0;
            let max = if self.rows_max == 0 { span.rows_max } else { self.rows_max };
            found.truncate(max.min(span.rows_max));
            let enough = |(_, row): &(Vec<u8>, Vec<u8>)| {
                let has_room = bytes < span.bytes_max;
                bytes += row.len();
                has_room
            };
            found.into_iter().take_while(enough).collect()
        })
    }

    async fn table(&self, name: &str) -> Result<Option<Versioned>> {
        Ok(self.state.lock().unwrap().tables.get(name).cloned())
    }

    async fn set_table(
        &self,
        name: &str,
        description: Option<Vec<u8>>,
        expect: Expect,
    ) -> Result<Written> {
        let mut state = self.state.lock().unwrap();
        state.version += 1;
        let (version, is_gone) = (state.version, description.is_none());
        let written = put(&mut state.tables, name.to_owned(), description, expect, version);
        if written == Written::Done {
            match is_gone {
                true => drop(state.rows.remove(name)),
                false => drop(state.rows.entry(name.to_owned()).or_default()),
            }
        }
        Ok(written)
    }

    async fn table_names(&self, after: &str, limit: usize) -> Result<Vec<String>> {
        let state = self.state.lock().unwrap();
        let behind = state.tables.keys().filter(|name| name.as_str() > after);
        Ok(behind.take(limit).cloned().collect())
    }
}

/// A clock that stands.
pub struct Still;

impl Clock for Still {
    fn monotonic_ns(&self) -> u64 {
        0
    }

    fn unix_ms(&self) -> u64 {
        1_700_000_000_123
    }
}

/// The API over a store.
pub fn api(rows: Arc<Memory>) -> Api {
    Api::new(rows, Arc::new(Still), Arc::new(SeededRng::new(1)))
}

/// One operation, carried out here.
pub fn call(api: &Api, operation: &str, body: Json) -> std::result::Result<Json, Fault> {
    runtime::block_on(api.call(operation, &body, "localhost:8000")).unwrap()
}
