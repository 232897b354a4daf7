//! The operations, each a request's document to an answer's. They keep nothing: what is decided of
//! an item is decided on the version that was read, and written only if that is still there.

mod batch;
mod consumed;
mod items;
mod pages;
mod tables;
mod transact;

use crate::answer::Answer;
use crate::fault::{Fault, Result, Type};
use crate::form;
use crate::index;
use crate::request::Request;
use crate::rows::{
    Expect, GROUP_BYTES_MAX, GROUP_WRITE_BYTES, GROUP_WRITES_MAX, GroupDo, GroupWrite,
    GroupWritten, Place, Rows, Written,
};
use crate::table::Table;
use crate::value::Item;
use consumed::{Consumed, Units, read_units};
use holdfast_env::{Budget, Clock, Rng, budget::Share, planted};
use serde_json::{Value as Json, json};
use std::ops::Deref;
use std::sync::Arc;

/// How often a write is decided anew because somebody else wrote the item meanwhile.
const ATTEMPTS_MAX: usize = 20;

/// Whether an operation only looks.
pub fn only_reads(operation: &str) -> bool {
    operation.starts_with("Describe")
        || operation.starts_with("List")
        || ["GetItem", "BatchGetItem", "TransactGetItems", "Query", "Scan"].contains(&operation)
}

/// Operations of DynamoDB that are not here, and are refused by their names.
const MISSING: &[&str] = &[
    "ExecuteStatement",
    "BatchExecuteStatement",
    "ExecuteTransaction",
    "TagResource",
    "UntagResource",
    "ListTagsOfResource",
    "CreateBackup",
    "DescribeContinuousBackups",
    "CreateGlobalTable",
    "DescribeGlobalTable",
    "EnableKinesisStreamingDestination",
    "ExportTableToPointInTime",
    "ImportTable",
    "PutResourcePolicy",
    "RestoreTableFromBackup",
    "UpdateContinuousBackups",
];

/// A table as it is described, in which version of its description: what is written by it is written only while it is
/// described so, since its indexes hang on that.
#[derive(Clone)]
struct Open {
    table: Table,
    version: u64,
}

impl Deref for Open {
    type Target = Table;

    fn deref(&self) -> &Table {
        &self.table
    }
}

impl Open {
    /// The write of a group that is refused once the table is described otherwise.
    fn check(&self) -> GroupWrite {
        GroupWrite {
            place: Place::Table(self.name.clone()),
            expect: Expect::Version(self.version),
            what: GroupDo::Check,
        }
    }
}

/// DynamoDB's operations over a store.
#[derive(Clone)]
pub struct Api {
    rows: Arc<dyn Rows>,
    clock: Arc<dyn Clock>,
    rng: Arc<dyn Rng>,
    budget: Arc<Budget>,
}

impl Api {
    /// Over a store. The clock says when tables are made, chance their ids; answers count in the budget.
    pub fn new(
        rows: Arc<dyn Rows>,
        (clock, rng): (Arc<dyn Clock>, Arc<dyn Rng>),
        budget: Arc<Budget>,
    ) -> Api {
        Api { rows, clock, rng, budget }
    }

    /// Carries out one operation: the answer's document, and the memory that it takes. `host` is what the client calls
    /// this server.
    pub async fn call(&self, operation: &str, body: &Json, host: &str) -> Result<(String, Share)> {
        let body = body.as_object();
        let body =
            body.ok_or_else(|| Fault::shape("Start of structure or map found where not expected"))?;
        // In front of what is said of its parameters.
        if MISSING.contains(&operation) {
            return Err(unknown(operation));
        }
        let request = Request::new(body)?;
        let answer = match operation {
            "GetItem" => self.get_item(request).await?,
            "PutItem" => self.put_item(request).await?,
            "UpdateItem" => self.update_item(request).await?,
            "DeleteItem" => self.delete_item(request).await?,
            "BatchGetItem" => self.batch_get(request).await?,
            "TransactGetItems" => self.transact_get(request).await?,
            "Query" => self.query(request).await?,
            "Scan" => self.scan(request).await?,
            _ => Answer::of(&self.budget, self.call_small(operation, request, host).await?),
        };
        Ok(answer.finish())
    }

    /// One whose answer has no items.
    async fn call_small(&self, operation: &str, request: Request<'_>, host: &str) -> Result<Json> {
        match operation {
            "CreateTable" => self.create_table(request).await,
            "DescribeTable" => self.describe_table(request).await,
            "ListTables" => self.list_tables(request).await,
            "DeleteTable" => self.delete_table(request).await,
            "UpdateTable" => self.update_table(request).await,
            "UpdateTimeToLive" => self.update_ttl(request).await,
            "DescribeTimeToLive" => self.describe_ttl(request).await,
            "DescribeLimits" => Ok(tables::limits()),
            "DescribeEndpoints" => {
                Ok(json!({"Endpoints": [{"Address": host, "CachePeriodInMinutes": 1440}]}))
            }
            "BatchWriteItem" => self.batch_write(request).await,
            "TransactWriteItems" => self.transact_write(request).await,
            _ => Err(unknown(operation)),
        }
    }

    async fn table(&self, name: &str) -> Result<Open> {
        self.table_as(name, false).await
    }

    async fn table_as(&self, name: &str, consistent: bool) -> Result<Open> {
        match self.rows.table(name, consistent).await? {
            Some(found) => {
                Ok(Open { table: Table::from_bytes(&found.bytes)?, version: found.version })
            }
            None => Err(not_found()),
        }
    }

    /// A table that is described otherwise by now; not another one of its name.
    async fn again(&self, open: &Open) -> Result<Open> {
        let now = self.table_as(&open.name, true).await?;
        if now.id == open.id { Ok(now) } else { Err(not_found()) }
    }

    async fn read(&self, table: &str, key: &[u8], consistent: bool) -> Result<Option<Item>> {
        let found = self.rows.read(table, key, consistent).await?;
        Ok(found.map(|found| form::from_bytes(&found.bytes)).transpose()?)
    }

    /// Decides on an item as it is, and writes what was decided if it still is so; else once more.
    /// What is decided is what the item becomes, none for no item, and what is answered.
    async fn change<T>(
        &self,
        mut table: Open,
        key: &[u8],
        decide: impl Fn(&Table, Option<&Item>) -> Result<(Option<Item>, T)> + Send + Sync,
    ) -> Result<T> {
        for _ in 0..ATTEMPTS_MAX {
            let found = self.rows.read(&table.name, key, true).await?;
            let expect = match &found {
                _ if planted!("dynamo.version-not-expected") => Expect::Any,
                Some(row) => Expect::Version(row.version),
                None => Expect::Absent,
            };
            let old = found.map(|found| form::from_bytes(&found.bytes)).transpose()?;
            let (new, answer) = decide(&table, old.as_ref())?;
            if let Some(new) = &new {
                index::check(&table, new)?;
            }
            if old.is_none() && new.is_none() {
                return Ok(answer);
            }
            let items = (old.as_ref(), new.as_ref());
            match self.write_item(&table, key, expect, items).await? {
                Wrote::Done => return Ok(answer),
                Wrote::OtherItem => {}
                Wrote::OtherTable => table = self.again(&table).await?,
            }
        }
        Err(too_busy())
    }

    /// Puts an item whatever is there.
    async fn put(&self, mut table: Open, key: &[u8], item: &Item) -> Result<()> {
        for _ in 0..ATTEMPTS_MAX {
            // Where there are indexes its rows hang on what is there.
            if !table.indexes.is_empty() {
                return self.change(table, key, |_, _| Ok((Some(item.clone()), ()))).await;
            }
            match self.write_item(&table, key, Expect::Any, (None, Some(item))).await? {
                Wrote::Done => return Ok(()),
                Wrote::OtherItem | Wrote::OtherTable => table = self.again(&table).await?,
            }
        }
        Err(too_busy())
    }

    /// Writes what an item becomes, and with it its rows in the table's indexes.
    async fn write_item(
        &self,
        table: &Open,
        key: &[u8],
        expect: Expect,
        (old, new): (Option<&Item>, Option<&Item>),
    ) -> Result<Wrote> {
        let bytes = new.map(form::to_bytes);
        // Where rows lie apart there are no indexes, and never will be.
        if !self.rows.is_one().await? {
            return Ok(match self.rows.write(&table.name, key, bytes, expect).await? {
                Written::Done => Wrote::Done,
                Written::Mismatch => Wrote::OtherItem,
            });
        }
        let what = bytes.map_or(GroupDo::Delete, GroupDo::Put);
        let place = Place::Row(table.name.clone(), key.to_vec());
        let mut writes = vec![table.check(), GroupWrite { place, expect, what }];
        if planted!("dynamo.described-otherwise") {
            writes.remove(0);
        }
        writes.extend(index::writes(table, old, new));
        check_size(&writes, "Item size has exceeded the maximum allowed size: the item")?;
        Ok(match self.rows.write_group(writes).await.map_err(transact::of_store)? {
            GroupWritten::Done => Wrote::Done,
            GroupWritten::Mismatch(0) => Wrote::OtherTable,
            GroupWritten::Mismatch(_) => Wrote::OtherItem,
        })
    }
}

/// What came of an item's write.
enum Wrote {
    Done,
    /// The item is not as it was read.
    OtherItem,
    /// The table is not described as it was.
    OtherTable,
}

/// Refuses what is too much to be written as one. `what` it is, so that a sentence begins with it.
fn check_size(writes: &[GroupWrite], what: &str) -> Result<()> {
    let bytes = |write: &GroupWrite| {
        let key = match &write.place {
            Place::Row(_, key) | Place::Index(_, _, key) => key.len(),
            Place::Table(name) | Place::Token(name) => name.len(),
        };
        let put = match &write.what {
            GroupDo::Put(bytes) => bytes.len(),
            GroupDo::Delete | GroupDo::Remove | GroupDo::Check => 0,
        };
        GROUP_WRITE_BYTES + key + put
    };
    let bytes: usize = writes.iter().map(bytes).sum();
    if bytes > GROUP_BYTES_MAX {
        return Err(Fault::validation(format!(
            "{what} and its rows in indexes are written as one, and are {bytes} bytes of {GROUP_BYTES_MAX}: let \
             indexes project less"
        )));
    }
    if writes.len() > GROUP_WRITES_MAX {
        return Err(Fault::validation(format!(
            "{what} and its rows in indexes are written as one, and are {} rows, with one for each table, of \
             {GROUP_WRITES_MAX}: write fewer items at once",
            writes.len()
        )));
    }
    Ok(())
}

fn not_found() -> Fault {
    Fault::new(Type::ResourceNotFound, "Requested resource not found")
}

fn too_busy() -> Fault {
    Fault::new(
        Type::ThroughputExceeded,
        "The item is written to by too many at once: send the request again in a moment",
    )
}

fn unknown(operation: &str) -> Fault {
    Fault::new(
        Type::UnknownOperation,
        format!("The operation '{operation}' is not supported by Holdfast"),
    )
}
