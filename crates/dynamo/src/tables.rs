//! A node's tables as the store of DynamoDB's: all of them lie in one table of the node, `dynamodb`. A row
//! of it for each name says which number the table of that name has, its description, and the numbers of
//! those before it whose items are still to go; items lie behind their table's number. So making a table
//! costs a row, and one that is made anew shows nothing of the one before. Behind all items lie the tokens of
//! transactions. All of it is one tablet, so that any items may be written together.

mod backfill;
mod sweep;

pub use backfill::{BACKFILL_ITEMS, BACKFILL_PAGES};

use crate::rows::{
    self, Expect, GroupDo, GroupWrite, GroupWritten, Place, Rows, Span, Versioned, Written,
};
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::ordered;
use holdfast_base::{Error, Kind, Result, codec_struct};
use holdfast_env::{HoldMutex, Rng, planted, runtime};
use holdfast_table::face::{Done, TableFace};
use holdfast_wire::table as msg;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// The node's table.
pub const TABLE: &str = holdfast_table::name::DYNAMODB;
/// Its tablets, for good: what is written together lies in one. Builds before this one have made eight.
const TABLETS: u16 = 1;
/// In front of names, of items, and of transactions' tokens.
const NAMES: u8 = 0;
const ITEMS: u8 = 1;
const TOKENS: u8 = 2;
/// In front of rows of indexes: a table's number, the index's, and a key.
const INDEXES: u8 = 3;
/// A table's number.
const NUMBER_BYTES: usize = 8;
/// What stands in front of an item's key.
const PREFIX_BYTES: usize = 1 + NUMBER_BYTES;
/// How often a request is sent again that nobody knows about, and how long it rests before.
const ATTEMPTS: usize = 40;
const REST: Duration = Duration::from_millis(50);
/// Rows of one page.
const PAGE_ROWS: u32 = 1000;

const _: () = {
    assert!(PREFIX_BYTES < rows::PREFIX_BYTES_MAX);
    assert!(rows::KEY_BYTES_MAX + rows::PREFIX_BYTES_MAX <= msg::KEY_BYTES_MAX);
    assert!(rows::GROUP_WRITES_MAX == msg::GROUP_WRITES_MAX);
    assert!(rows::GROUP_BYTES_MAX == msg::GROUP_BYTES_MAX);
    assert!(rows::GROUP_WRITE_BYTES == msg::GROUP_WRITE_BYTES + rows::PREFIX_BYTES_MAX);
};

/// What is kept of a name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Name {
    live: Option<Live>,
    /// Numbers of tables whose items are to go.
    gone: Vec<u64>,
}
codec_struct!(Name { live, gone });

/// The table of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Live {
    number: u64,
    /// Of its description.
    version: u64,
    description: Vec<u8>,
}
codec_struct!(Live { number, version, description });

/// What a name stands for.
#[derive(Clone, Copy)]
struct Known {
    /// Of the name's row.
    version: u64,
    number: u64,
}

/// See the module.
pub struct Tables {
    face: Arc<TableFace>,
    rng: Arc<dyn Rng>,
    /// The newest that was looked up of each name: every operation begins with that.
    known: Mutex<BTreeMap<String, Known>>,
    /// Whether the node's table has one tablet, once there is one.
    one: OnceLock<bool>,
    /// Where the look for items whose time is over goes on, by their table's number.
    looked: Mutex<BTreeMap<u64, Vec<u8>>>,
    /// And where the one for tokens does.
    looked_tokens: Mutex<Vec<u8>>,
}

fn name_key(name: &str) -> Vec<u8> {
    [&[NAMES], name.as_bytes()].concat()
}

fn item_key(number: u64, key: &[u8]) -> Vec<u8> {
    [&[ITEMS], &number.to_be_bytes()[..], key].concat()
}

/// The first key behind all items of a table.
fn end_of(number: u64) -> Vec<u8> {
    number.checked_add(1).map_or_else(|| vec![ITEMS + 1], |next| item_key(next, &[]))
}

/// As [`item_key`], of a row of an index.
fn index_key(number: u64, index: u8, key: &[u8]) -> Vec<u8> {
    [&[INDEXES], &number.to_be_bytes()[..], &[index], key].concat()
}

/// The rows of all indexes of a table.
fn indexes_of(number: u64) -> (Vec<u8>, Vec<u8>) {
    let from = [&[INDEXES], &number.to_be_bytes()[..]].concat();
    let until = ordered::after_prefix(&from).unwrap_or_default();
    (from, until)
}

fn token_key(token: &str) -> Vec<u8> {
    [&[TOKENS], token.as_bytes()].concat()
}

fn expected(expect: Expect) -> msg::Expect {
    match expect {
        Expect::Any => msg::Expect::Any,
        Expect::Absent => msg::Expect::Absent,
        Expect::Version(version) => msg::Expect::Version { version },
    }
}

fn versioned(record: msg::Record) -> Versioned {
    Versioned { version: record.version, bytes: record.value }
}

/// Rows of a range, page by page.
fn pages(from: Vec<u8>, until: Vec<u8>) -> msg::Scan {
    msg::Scan {
        table: TABLE.into(),
        from,
        until: Some(until),
        backwards: false,
        rows_max: PAGE_ROWS,
    }
}

fn no_table(name: &str) -> Error {
    Error::not_found(format!("find table `{name}`: there is none"))
}

impl Tables {
    /// Over the node's tables; numbers of tables and of requests are drawn.
    pub fn new(face: Arc<TableFace>, rng: Arc<dyn Rng>) -> Arc<Tables> {
        Arc::new(Tables {
            face,
            rng,
            known: Mutex::default(),
            one: OnceLock::new(),
            looked: Mutex::default(),
            looked_tokens: Mutex::default(),
        })
    }

    /// What a question to the node's tables comes to; asked again while nobody knows.
    async fn ask<T: Send + 'static>(&self, ask: impl Fn(Done<T>)) -> Result<T> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            let answer = runtime::answer(|done| ask(Box::new(done))).await;
            match answer.unwrap_or_else(|| Err(Error::retry("ask a table: nobody answers"))) {
                Err(e) if e.kind == Kind::Retry && attempt < ATTEMPTS => runtime::sleep(REST).await,
                answer => return answer,
            }
        }
    }

    async fn get(&self, key: Vec<u8>, level: msg::Level) -> Result<Option<msg::Record>> {
        let (table, keys, seen) = (TABLE.into(), vec![key], Vec::new());
        let read = msg::Read { table, level, keys, seen, forgot: 0 };
        match self.ask(|done| self.face.ask_read(read.clone(), done)).await {
            Ok(mut found) => Ok(found.pop().flatten()),
            // Nobody has made anything.
            Err(e) if e.kind == Kind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    async fn put(&self, rows: Vec<msg::Row>) -> Result<Vec<msg::Written>> {
        // Sent again it counts once.
        let session = self.rng.next_u64();
        let write = msg::Write { table: TABLE.into(), session, below: 1 };
        match self.ask(|done| self.face.ask_write(write.clone(), rows.clone(), done)).await {
            Err(e) if e.kind == Kind::NotFound => {
                let mode = msg::TableMode::Timeline;
                let make =
                    msg::Make { table: TABLE.into(), mode, tablets: TABLETS, everywhere: false };
                self.ask(|done| self.face.ask_make(make.clone(), done)).await?;
                self.ask(|done| self.face.ask_write(write.clone(), rows.clone(), done)).await
            }
            written => written,
        }
    }

    async fn put_group(&self, mut rows: Vec<msg::GroupRow>) -> Result<msg::GroupWritten> {
        if planted!("dynamo.swept-by-an-old-description") {
            let looks = |row: &&mut msg::GroupRow| row.what == msg::GroupDo::Check;
            for row in rows.iter_mut().filter(looks).filter(|row| row.key.starts_with(&[NAMES])) {
                (row.key, row.expect) = (vec![TOKENS], msg::Expect::Absent);
            }
        }
        // Sent again it counts once.
        let (session, table) = (self.rng.next_u64(), TABLE.into());
        let group = msg::Group { table, session, sequence: 1, below: 1 };
        self.ask(|done| self.face.ask_group(group.clone(), rows.clone(), done)).await
    }

    async fn put_one(
        &self,
        key: Vec<u8>,
        value: Option<Vec<u8>>,
        expect: msg::Expect,
    ) -> Result<msg::Written> {
        let row = msg::Row { sequence: 1, expect, key, value };
        let written = self.put(vec![row]).await?.pop();
        written.ok_or_else(|| Error::bug("write to a table: there is no answer"))
    }

    async fn page(&self, scan: msg::Scan) -> Result<msg::Page> {
        match self.ask(|done| self.face.ask_scan(scan.clone(), done)).await {
            Err(e) if e.kind == Kind::NotFound => Ok(msg::Page::default()),
            page => page,
        }
    }

    /// Names from a row's key on, with their rows and these rows' versions, and where to go on.
    async fn names(&self, from: Vec<u8>) -> Result<(Vec<(String, Name, u64)>, Option<Vec<u8>>)> {
        let msg::Page { found, next } = self.page(pages(from, vec![ITEMS])).await?;
        let name = |found: msg::Found| {
            let name = String::from_utf8_lossy(&found.key[1..]).into_owned();
            Ok((name, Name::from_bytes(&found.record.value)?, found.record.version))
        };
        Ok((found.into_iter().map(name).collect::<Result<_>>()?, next))
    }

    /// The row of a name, and its version.
    async fn name(&self, name: &str, level: msg::Level) -> Result<(Name, Option<u64>)> {
        match self.get(name_key(name), level).await? {
            None => Ok((Name::default(), None)),
            Some(record) => Ok((Name::from_bytes(&record.value)?, Some(record.version))),
        }
    }

    /// Puts a name's row in the place of one that it was made from; whether that was there still.
    async fn set_name(&self, name: &str, row: &Name, before: Option<u64>) -> Result<bool> {
        let expect = before.map_or(msg::Expect::Absent, |version| msg::Expect::Version { version });
        let value = (*row != Name::default()).then(|| row.to_bytes());
        if value.is_none() && before.is_none() {
            return Ok(true);
        }
        let written = self.put_one(name_key(name), value, expect).await?;
        Ok(matches!(written, msg::Written::Version { .. }))
    }

    /// The table that had this name when it was looked up last.
    async fn known(&self, name: &str) -> Result<Known> {
        if let Some(known) = self.known.held().get(name) {
            return Ok(*known);
        }
        match self.name(name, msg::Level::Any).await? {
            (Name { live: Some(live), .. }, Some(version)) => {
                Ok(Known { version, number: live.number })
            }
            _ => Err(no_table(name)),
        }
    }

    async fn number(&self, name: &str) -> Result<u64> {
        Ok(self.known(name).await?.number)
    }

    /// Rows for a group: what goes only if it is there is looked for, and has to be so still.
    async fn resolved(
        &self,
        rows: Vec<(Vec<u8>, msg::Expect, GroupDo)>,
    ) -> Result<Vec<msg::GroupRow>> {
        let unsure = rows.iter().filter(|(_, _, what)| *what == GroupDo::Remove);
        let mut unsure: Vec<Vec<u8>> = unsure.map(|(key, ..)| key.clone()).collect();
        let mut there = BTreeMap::new();
        while !unsure.is_empty() {
            let keys = unsure[..unsure.len().min(msg::READ_KEYS_MAX)].to_vec();
            let (table, level, seen) = (TABLE.into(), msg::Level::Latest, Vec::new());
            let read = msg::Read { table, level, keys, seen, forgot: 0 };
            let found = self.ask(|done| self.face.ask_read(read.clone(), done)).await?;
            if found.is_empty() {
                return Err(Error::bug("read rows of a table: none of them came"));
            }
            let read = unsure.drain(..found.len());
            there.extend(read.zip(found.into_iter().map(|found| found.map(|row| row.version))));
        }
        let row = |(key, expect, what): (Vec<u8>, msg::Expect, GroupDo)| {
            let (expect, what) = match (what, there.get(&key).copied().flatten()) {
                (GroupDo::Put(bytes), _) => (expect, msg::GroupDo::Put(bytes)),
                (GroupDo::Delete, _) => (expect, msg::GroupDo::Delete),
                (GroupDo::Check, _) => (expect, msg::GroupDo::Check),
                (GroupDo::Remove, Some(version)) => {
                    (msg::Expect::Version { version }, msg::GroupDo::Delete)
                }
                (GroupDo::Remove, None) => (msg::Expect::Absent, msg::GroupDo::Check),
            };
            msg::GroupRow { expect, key, what }
        };
        Ok(rows.into_iter().map(row).collect())
    }
}

fn done(written: &msg::Written, may_be_absent: bool) -> Written {
    match written {
        msg::Written::Version { .. } => Written::Done,
        // It is not there, as it was to be.
        msg::Written::Absent if may_be_absent => Written::Done,
        msg::Written::Found { .. } | msg::Written::Absent => Written::Mismatch,
    }
}

#[async_trait::async_trait]
impl Rows for Tables {
    async fn read(&self, table: &str, key: &[u8], consistent: bool) -> Result<Option<Versioned>> {
        let number = self.number(table).await?;
        let level = if consistent { msg::Level::Latest } else { msg::Level::Any };
        let found = self.get(item_key(number, key), level).await?;
        Ok(found.map(versioned))
    }

    async fn write(
        &self,
        table: &str,
        key: &[u8],
        bytes: Option<Vec<u8>>,
        expect: Expect,
    ) -> Result<Written> {
        let number = self.number(table).await?;
        let may_be_absent = bytes.is_none() && !matches!(expect, Expect::Version(_));
        let written = self.put_one(item_key(number, key), bytes, expected(expect)).await?;
        Ok(done(&written, may_be_absent))
    }

    async fn read_group(&self, keys: &[(String, Vec<u8>)]) -> Result<Vec<Option<Versioned>>> {
        let mut of_node = Vec::new();
        for (table, key) in keys {
            of_node.push(item_key(self.number(table).await?, key));
        }
        let (table, level, seen) = (TABLE.into(), msg::Level::Latest, Vec::new());
        let read = msg::Read { table, level, keys: of_node, seen, forgot: 0 };
        let found = self.ask(|done| self.face.ask_read_group(read.clone(), done)).await?;
        Ok(found.into_iter().map(|found| found.map(versioned)).collect())
    }

    async fn write_group(&self, writes: Vec<GroupWrite>) -> Result<GroupWritten> {
        // Of one description, and of one table therefore: a newer one may be known by now, of another.
        let mut described = BTreeMap::new();
        for (at, write) in writes.iter().enumerate() {
            if let Place::Table(name) = &write.place {
                let known = self.known(name).await?;
                if write.expect != Expect::Version(known.version) {
                    return Ok(GroupWritten::Mismatch(at));
                }
                described.insert(name.clone(), known.number);
            }
        }
        let number = async |name: &str| match described.get(name) {
            Some(number) => Ok(*number),
            None => self.number(name).await,
        };
        let mut rows = Vec::new();
        for GroupWrite { place, expect, what } in writes {
            let key = match place {
                Place::Row(table, key) => item_key(number(&table).await?, &key),
                Place::Index(table, index, key) => index_key(number(&table).await?, index, &key),
                Place::Table(name) => name_key(&name),
                Place::Token(token) => token_key(&token),
            };
            rows.push((key, expected(expect), what));
        }
        let rows = self.resolved(rows).await?;
        match self.put_group(rows).await? {
            msg::GroupWritten::Versions { .. } => Ok(GroupWritten::Done),
            msg::GroupWritten::Found { at, .. } | msg::GroupWritten::Absent { at } => {
                Ok(GroupWritten::Mismatch(usize::from(at)))
            }
            msg::GroupWritten::OtherTablet { .. } | msg::GroupWritten::OtherHome { .. } => {
                Err(Error::invalid(
                    "the items of this transaction lie in several tablets of the store, which an earlier build has \
                     made: write them one by one, or copy the tables to a store that this build makes",
                ))
            }
        }
    }

    async fn is_one(&self) -> Result<bool> {
        if let Some(one) = self.one.get() {
            return Ok(*one);
        }
        // Keys that nobody has, of which each would lie in one tablet of several.
        let keys = (0..64u8).map(|number| vec![TOKENS, number]).collect();
        let (table, level, seen) = (TABLE.into(), msg::Level::Any, Vec::new());
        let read = msg::Read { table, level, keys, seen, forgot: 0 };
        let one = match self.ask(|done| self.face.ask_read_group(read.clone(), done)).await {
            Err(e) if e.kind == Kind::Invalid => false,
            // It is to be made yet.
            Err(e) if e.kind == Kind::NotFound => return Ok(true),
            found => found.map(|_| true)?,
        };
        Ok(*self.one.get_or_init(|| one))
    }

    async fn token(&self, token: &str) -> Result<Option<Versioned>> {
        Ok(self.get(token_key(token), msg::Level::Latest).await?.map(versioned))
    }

    async fn scan(&self, table: &str, span: &Span, _: bool) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        // The node that answers has decided all that was acknowledged, and shows it.
        let number = self.number(table).await?;
        let key = |key: &[u8]| match span.index {
            Some(index) => index_key(number, index, key),
            None => item_key(number, key),
        };
        let end = || match span.index {
            Some(index) => {
                ordered::after_prefix(&index_key(number, index, &[])).unwrap_or_default()
            }
            None => end_of(number),
        };
        let prefix_bytes = PREFIX_BYTES + usize::from(span.index.is_some());
        let scan = msg::Scan {
            table: TABLE.into(),
            from: key(&span.from),
            until: Some(span.to.as_ref().map_or_else(end, |to| key(to))),
            backwards: span.backwards,
            rows_max: u32::try_from(span.rows_max).unwrap_or(u32::MAX),
        };
        let found = self.page(scan).await?.found;
        let mut bytes = 0;
        let fits = found.into_iter().take_while(|found| {
            let is_more = bytes < span.bytes_max;
            bytes += found.record.value.len();
            is_more
        });
        Ok(fits.map(|found| (found.key[prefix_bytes..].to_vec(), found.record.value)).collect())
    }

    async fn table(&self, name: &str, consistent: bool) -> Result<Option<Versioned>> {
        let level = if consistent { msg::Level::Latest } else { msg::Level::Any };
        let (Name { live, .. }, version) = self.name(name, level).await?;
        let mut all = self.known.held();
        let (Some(Live { number, description, .. }), Some(version)) = (live, version) else {
            all.remove(name);
            return Ok(None);
        };
        // Of two who look at once the one who is told later may have asked first.
        let known = all.entry(name.to_owned()).or_insert(Known { version, number });
        if known.version < version {
            *known = Known { version, number };
        }
        Ok(Some(Versioned { version, bytes: description }))
    }

    async fn set_table(
        &self,
        name: &str,
        description: Option<Vec<u8>>,
        expect: Expect,
    ) -> Result<Written> {
        for _ in 0..ATTEMPTS {
            let (mut row, before) = self.name(name, msg::Level::Latest).await?;
            let fits = match (expect, &row.live) {
                (Expect::Any, _) | (Expect::Absent, None) => true,
                (Expect::Version(version), Some(_)) => before == Some(version),
                (Expect::Absent, Some(_)) | (Expect::Version(_), None) => false,
            };
            if !fits {
                return Ok(Written::Mismatch);
            }
            let live = row.live.take();
            row.live = match (description.clone(), live) {
                (Some(description), Some(live)) => {
                    Some(Live { version: live.version + 1, description, ..live })
                }
                (Some(description), None) => {
                    let number = match planted!("dynamo.numbers-by-name") {
                        true => u64::from(holdfast_base::checksum::crc32c(name.as_bytes())),
                        false => self.rng.next_u64(),
                    };
                    Some(Live { number, version: 1, description })
                }
                (None, live) => {
                    row.gone.extend(live.map(|live| live.number));
                    None
                }
            };
            if self.set_name(name, &row, before).await? {
                return Ok(Written::Done);
            }
        }
        Err(Error::retry("change a table: others change it again and again: try again"))
    }

    async fn table_names(&self, after: &str, limit: usize) -> Result<Vec<String>> {
        let (mut names, mut from) = (Vec::new(), Some(ordered::next(&name_key(after))));
        while let Some(at) = from.filter(|_| names.len() < limit) {
            let (found, next) = self.names(at).await?;
            let live = found.into_iter().filter(|(_, row, _)| row.live.is_some());
            names.extend(live.map(|(name, ..)| name));
            from = next;
        }
        names.truncate(limit);
        Ok(names)
    }
}
