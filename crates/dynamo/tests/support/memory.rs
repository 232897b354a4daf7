//! A store of rows in memory, for tests.
#![allow(dead_code, reason = "each test uses a part")]

use holdfast_base::{Error, Kind, Result};
use holdfast_dynamo::api::Api;
use holdfast_dynamo::fault::Fault;
use holdfast_dynamo::rows::{
    Expect, GroupDo, GroupWrite, GroupWritten, Place, Rows, Span, Versioned, Written,
};
use holdfast_env::{Budget, Clock, SeededRng, runtime};
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

type Map<K> = BTreeMap<K, Versioned>;

#[derive(Clone, Default)]
pub struct State {
    version: u64,
    pub tables: Map<String>,
    rows: BTreeMap<String, Map<Vec<u8>>>,
    tokens: Map<String>,
    /// By table and index.
    pub indexes: BTreeMap<(String, u8), Map<Vec<u8>>>,
}

/// Of which table, its key, and its bytes.
type Row = (String, Vec<u8>, Vec<u8>);

/// All tables, behind one lock.
#[derive(Default)]
pub struct Memory {
    pub state: Mutex<State>,
    /// Rows that one scan gives at most, whatever it is asked for; 0 for as many as it likes.
    pub rows_max: usize,
    /// How many of the next writes find that somebody else was there.
    pub contended: Mutex<usize>,
    /// What whoever asks is told of a table, if it need not be the newest.
    pub described: Mutex<Option<Versioned>>,
    /// Rows that somebody else writes in front of the next groups.
    pub meanwhile: Mutex<Vec<Row>>,
    /// Whether no two rows can be written together.
    pub apart: bool,
    /// How many of the next writes are done before all others are to be sent again.
    pub full_after: Mutex<Option<usize>>,
}

fn fits(expect: Expect, there: Option<&Versioned>) -> bool {
    match (expect, there) {
        (Expect::Any, _) | (Expect::Absent, None) => true,
        (Expect::Version(version), Some(there)) => there.version == version,
        _ => false,
    }
}

fn put<K: Ord>(
    map: &mut Map<K>,
    key: K,
    bytes: Option<Vec<u8>>,
    expect: Expect,
    version: u64,
) -> Written {
    match (fits(expect, map.get(&key)), bytes) {
        (false, _) => return Written::Mismatch,
        (true, Some(bytes)) => drop(map.insert(key, Versioned { version, bytes })),
        (true, None) => drop(map.remove(&key)),
    }
    Written::Done
}

impl Memory {
    fn check_together(&self, count: usize) -> Result<()> {
        match self.apart && count > 1 {
            true => Err(Error::invalid("they lie in several tablets")),
            false => Ok(()),
        }
    }

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

    async fn read_group(&self, keys: &[(String, Vec<u8>)]) -> Result<Vec<Option<Versioned>>> {
        self.check_together(keys.len())?;
        let read =
            |(table, key): &(String, Vec<u8>)| self.rows(table, |rows, _| rows.get(key).cloned());
        keys.iter().map(read).collect()
    }

    async fn write_group(&self, writes: Vec<GroupWrite>) -> Result<GroupWritten> {
        self.check_together(writes.len())?;
        if let Some(left) = self.full_after.lock().unwrap().as_mut() {
            *left = left.checked_sub(1).ok_or_else(|| Error::new(Kind::Retry, "busy"))?;
        }
        // Who writes whatever is there hears of nobody.
        let is_of_a_version = |write: &GroupWrite| {
            matches!(write.place, Place::Row(..)) && write.expect != Expect::Any
        };
        let mut contended = self.contended.lock().unwrap();
        if *contended > 0
            && let Some(at) = writes.iter().position(is_of_a_version)
        {
            *contended -= 1;
            return Ok(GroupWritten::Mismatch(at));
        }
        if let Some((table, key, bytes)) = self.meanwhile.lock().unwrap().pop() {
            self.rows(&table, |rows, version| put(rows, key, Some(bytes), Expect::Any, version))?;
        }
        let mut state = self.state.lock().unwrap();
        state.version += 1;
        let version = state.version;
        let State { rows, tokens, indexes, tables, .. } = &mut *state;
        let before = (rows.clone(), tokens.clone(), indexes.clone());
        for (at, GroupWrite { place, expect, what }) in writes.into_iter().enumerate() {
            let there = match &place {
                Place::Row(table, key) => rows.get(table).and_then(|rows| rows.get(key)),
                Place::Index(table, index, key) => {
                    indexes.get(&(table.clone(), *index)).and_then(|rows| rows.get(key))
                }
                Place::Table(name) => tables.get(name),
                Place::Token(token) => tokens.get(token),
            };
            let (fits, is_there) = (fits(expect, there), there.is_some());
            let bytes = match what {
                GroupDo::Put(bytes) => Some(bytes),
                GroupDo::Delete => None,
                GroupDo::Remove if !is_there => continue,
                GroupDo::Remove => None,
                GroupDo::Check if fits => continue,
                GroupDo::Check => None,
            };
            if !fits || (bytes.is_none() && !is_there) {
                (*rows, *tokens, *indexes) = before;
                return Ok(GroupWritten::Mismatch(at));
            }
            match place {
                Place::Row(table, key) => {
                    put(rows.entry(table).or_default(), key, bytes, Expect::Any, version)
                }
                Place::Index(table, index, key) => {
                    let rows = indexes.entry((table, index)).or_default();
                    put(rows, key, bytes, Expect::Any, version)
                }
                Place::Table(name) => put(tables, name, bytes, Expect::Any, version),
                Place::Token(token) => put(tokens, token, bytes, Expect::Any, version),
            };
        }
        Ok(GroupWritten::Done)
    }

    async fn is_one(&self) -> Result<bool> {
        Ok(!self.apart)
    }

    async fn token(&self, token: &str) -> Result<Option<Versioned>> {
        Ok(self.state.lock().unwrap().tokens.get(token).cloned())
    }

    async fn scan(&self, table: &str, span: &Span, _: bool) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        assert!(span.rows_max > 0 && span.bytes_max > 0);
        let of_index = span.index.map(|index| {
            let state = self.state.lock().unwrap();
            state.indexes.get(&(table.to_owned(), index)).cloned().unwrap_or_default()
        });
        self.rows(table, |rows, _| {
            let rows = of_index.as_ref().unwrap_or(rows);
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

    async fn table(&self, name: &str, consistent: bool) -> Result<Option<Versioned>> {
        if let Some(old) = self.described.lock().unwrap().as_ref().filter(|_| !consistent) {
            return Ok(Some(old.clone()));
        }
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
                true => {
                    state.rows.remove(name);
                    state.indexes.retain(|(table, _), _| table != name);
                }
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
    within(rows, Budget::new(1 << 30))
}

/// The same, whose answers count in a budget.
pub fn within(rows: Arc<Memory>, budget: Arc<Budget>) -> Api {
    Api::new(rows, (Arc::new(Still), Arc::new(SeededRng::new(1))), budget)
}

/// One operation, carried out here.
pub fn call(api: &Api, operation: &str, body: Json) -> std::result::Result<Json, Fault> {
    let answered = runtime::block_on(api.call(operation, &body, "localhost:8000")).unwrap();
    answered.map(|(text, _)| serde_json::from_str(&text).unwrap())
}

/// The same, of what is right.
pub fn done(api: &Api, operation: &str, body: Json) -> Json {
    call(api, operation, body.clone()).unwrap_or_else(|e| panic!("{operation} {body}: {e:?}"))
}

/// The items of all pages.
pub fn all_of(api: &Api, operation: &str, mut body: Json) -> Vec<Json> {
    let mut all = Vec::new();
    loop {
        let page = done(api, operation, body.clone());
        all.extend(page["Items"].as_array().unwrap().iter().cloned());
        match &page["LastEvaluatedKey"] {
            Json::Null => return all,
            last => body["ExclusiveStartKey"] = last.clone(),
        }
    }
}
