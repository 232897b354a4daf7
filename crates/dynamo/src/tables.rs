//! A node's tables as the store of DynamoDB's: all of them lie in one table of the node, `dynamodb`. A row
//! of it for each name says which number the table of that name has, its description, and the numbers of
//! those before it whose items are still to go; items lie behind their table's number. So making a table
//! costs a row, and one that is made anew shows nothing of the one before.

mod sweep;

use crate::rows::{Expect, Rows, Span, Versioned, Written};
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::ordered;
use holdfast_base::{Error, Kind, Result, codec_struct};
use holdfast_env::{HoldMutex, Rng, planted, runtime};
use holdfast_table::face::{Done, TableFace};
use holdfast_wire::table as msg;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The node's table.
pub const TABLE: &str = "dynamodb";
/// Its tablets, for good.
const TABLETS: u16 = 8;
/// In front of names, and in front of items.
const NAMES: u8 = 0;
const ITEMS: u8 = 1;
/// A table's number.
const NUMBER_BYTES: usize = 8;
/// What stands in front of an item's key.
const PREFIX_BYTES: usize = 1 + NUMBER_BYTES;
/// How often a request is sent again that nobody knows about, and how long it rests before.
const ATTEMPTS: usize = 40;
const REST: Duration = Duration::from_millis(50);
/// Rows of one page.
const PAGE_ROWS: u32 = 1000;

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

/// See the module.
pub struct Tables {
    face: Arc<TableFace>,
    rng: Arc<dyn Rng>,
    /// As each name was looked up last: every operation begins with that.
    numbers: Mutex<BTreeMap<String, u64>>,
    /// Where the look for items whose time is over goes on, by their table's number.
    looked: Mutex<BTreeMap<u64, Vec<u8>>>,
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
        Arc::new(Tables { face, rng, numbers: Mutex::default(), looked: Mutex::default() })
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

    /// Names from a row's key on, with their rows, and where to go on.
    async fn names(&self, from: Vec<u8>) -> Result<(Vec<(String, Name)>, Option<Vec<u8>>)> {
        let msg::Page { found, next } = self.page(pages(from, vec![ITEMS])).await?;
        let name = |found: msg::Found| {
            let name = String::from_utf8_lossy(&found.key[1..]).into_owned();
            Ok((name, Name::from_bytes(&found.record.value)?))
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

    /// The number of the table that had this name when it was looked up last.
    async fn number(&self, name: &str) -> Result<u64> {
        if let Some(number) = self.numbers.held().get(name) {
            return Ok(*number);
        }
        let live = self.name(name, msg::Level::Any).await?.0.live;
        live.map(|live| live.number).ok_or_else(|| no_table(name))
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
        Ok(found.map(|record| Versioned { version: record.version, bytes: record.value }))
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
        let expect = match expect {
            Expect::Any => msg::Expect::Any,
            Expect::Absent => msg::Expect::Absent,
            Expect::Version(version) => msg::Expect::Version { version },
        };
        let written = self.put_one(item_key(number, key), bytes, expect).await?;
        Ok(done(&written, may_be_absent))
    }

    async fn scan(&self, table: &str, span: &Span, _: bool) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        // The node that answers has decided all that was acknowledged, and shows it.
        let number = self.number(table).await?;
        let scan = msg::Scan {
            table: TABLE.into(),
            from: item_key(number, &span.from),
            until: Some(span.to.as_ref().map_or_else(|| end_of(number), |to| item_key(number, to))),
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
        Ok(fits.map(|found| (found.key[PREFIX_BYTES..].to_vec(), found.record.value)).collect())
    }

    async fn table(&self, name: &str) -> Result<Option<Versioned>> {
        let live = self.name(name, msg::Level::Any).await?.0.live;
        let mut numbers = self.numbers.held();
        let Some(Live { number, version, description }) = live else {
            numbers.remove(name);
            return Ok(None);
        };
        numbers.insert(name.to_owned(), number);
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
                (Expect::Version(version), Some(live)) => live.version == version,
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
            let live = found.into_iter().filter(|(_, row)| row.live.is_some());
            names.extend(live.map(|(name, _)| name));
            from = next;
        }
        names.truncate(limit);
        Ok(names)
    }
}
