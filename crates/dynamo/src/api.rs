//! The operations, each a request's document to an answer's. They keep nothing: what is decided of
//! an item is decided on the version that was read, and written only if that is still there.

mod batch;
mod items;
mod pages;
mod tables;

use crate::fault::{Fault, Result, Type};
use crate::form;
use crate::request::Request;
use crate::rows::{Expect, Rows, Written};
use crate::table::Table;
use crate::value::{Item, item_bytes};
use holdfast_env::{Clock, Rng, planted};
use serde_json::{Value as Json, json};
use std::sync::Arc;

/// How often a write is decided anew because somebody else wrote the item meanwhile.
const ATTEMPTS_MAX: usize = 20;

/// Whether an operation only looks.
pub fn only_reads(operation: &str) -> bool {
    operation.starts_with("Describe")
        || operation.starts_with("List")
        || ["GetItem", "BatchGetItem", "Query", "Scan"].contains(&operation)
}

/// Operations of DynamoDB that are not here, and are refused by their names.
const MISSING: &[&str] = &[
    "TransactWriteItems",
    "TransactGetItems",
    "ExecuteStatement",
    "BatchExecuteStatement",
    "ExecuteTransaction",
    "UpdateTable",
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

/// DynamoDB's operations over a store.
#[derive(Clone)]
pub struct Api {
    rows: Arc<dyn Rows>,
    clock: Arc<dyn Clock>,
    rng: Arc<dyn Rng>,
}

impl Api {
    /// Over a store. The clock says when tables are made, chance their ids.
    pub fn new(rows: Arc<dyn Rows>, clock: Arc<dyn Clock>, rng: Arc<dyn Rng>) -> Api {
        Api { rows, clock, rng }
    }

    /// Carries out one operation. `host` is what the client calls this server.
    pub async fn call(&self, operation: &str, body: &Json, host: &str) -> Result<Json> {
        let body = body.as_object();
        let body =
            body.ok_or_else(|| Fault::shape("Start of structure or map found where not expected"))?;
        // In front of what is said of its parameters.
        if MISSING.contains(&operation) {
            return Err(unknown(operation));
        }
        let request = Request::new(body)?;
        match operation {
            "CreateTable" => self.create_table(request).await,
            "DescribeTable" => self.describe_table(request).await,
            "ListTables" => self.list_tables(request).await,
            "DeleteTable" => self.delete_table(request).await,
            "UpdateTimeToLive" => self.update_ttl(request).await,
            "DescribeTimeToLive" => self.describe_ttl(request).await,
            "DescribeLimits" => Ok(tables::limits()),
            "DescribeEndpoints" => {
                Ok(json!({"Endpoints": [{"Address": host, "CachePeriodInMinutes": 1440}]}))
            }
            "GetItem" => self.get_item(request).await,
            "PutItem" => self.put_item(request).await,
            "UpdateItem" => self.update_item(request).await,
            "DeleteItem" => self.delete_item(request).await,
            "BatchGetItem" => self.batch_get(request).await,
            "BatchWriteItem" => self.batch_write(request).await,
            "Query" => self.query(request).await,
            "Scan" => self.scan(request).await,
            _ => Err(unknown(operation)),
        }
    }

    async fn table(&self, name: &str) -> Result<Table> {
        match self.rows.table(name).await? {
            Some(found) => Ok(Table::from_bytes(&found.bytes)?),
            None => Err(Fault::new(Type::ResourceNotFound, "Requested resource not found")),
        }
    }

    async fn read(&self, table: &str, key: &[u8], consistent: bool) -> Result<Option<Item>> {
        let found = self.rows.read(table, key, consistent).await?;
        Ok(found.map(|found| form::from_bytes(&found.bytes)).transpose()?)
    }

    /// Decides on an item as it is, and writes what was decided if it still is so; else once more.
    /// What is decided is what the item becomes, none for no item, and what is answered.
    async fn change<T>(
        &self,
        table: &str,
        key: &[u8],
        decide: impl Fn(Option<&Item>) -> Result<(Option<Item>, T)> + Send + Sync,
    ) -> Result<T> {
        for _ in 0..ATTEMPTS_MAX {
            let found = self.rows.read(table, key, true).await?;
            let expect = match &found {
                _ if planted!("dynamo.version-not-expected") => Expect::Any,
                Some(row) => Expect::Version(row.version),
                None => Expect::Absent,
            };
            let old = found.map(|found| form::from_bytes(&found.bytes)).transpose()?;
            let (new, answer) = decide(old.as_ref())?;
            if old.is_none() && new.is_none() {
                return Ok(answer);
            }
            let bytes = new.as_ref().map(form::to_bytes);
            if self.rows.write(table, key, bytes, expect).await? == Written::Done {
                return Ok(answer);
            }
        }
        Err(Fault::new(
            Type::ThroughputExceeded,
            "The item is written to by too many at once: send the request again in a moment",
        ))
    }
}

fn unknown(operation: &str) -> Fault {
    Fault::new(
        Type::UnknownOperation,
        format!("The operation '{operation}' is not supported by Holdfast"),
    )
}

/// How much is said of what a request consumed.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Consumed(&'static str);

impl Consumed {
    fn of(request: &mut Request<'_>) -> Result<Consumed> {
        request.word("ReturnConsumedCapacity", &["NONE", "INDEXES", "TOTAL"]).map(Consumed)
    }

    fn is_wanted(self) -> bool {
        self.0 != "NONE"
    }

    fn tell(self, table: &str, units: f64) -> Json {
        let mut told = json!({"TableName": table, "CapacityUnits": units});
        if self.0 == "INDEXES" {
            told["Table"] = json!({"CapacityUnits": units});
        }
        told
    }

    /// Adds it to an answer that wants it.
    fn add(self, answer: &mut Json, table: &str, units: f64) {
        if self.is_wanted() {
            answer["ConsumedCapacity"] = self.tell(table, units);
        }
    }
}

/// Units of 4 KiB, a half of each where it need not be consistent.
fn read_units(bytes: usize, consistent: bool) -> f64 {
    let units = bytes.div_ceil(4 << 10).max(1) as f64;
    if consistent { units } else { units / 2.0 }
}

/// Units of 1 KiB, of the larger of both.
fn write_units(old: Option<&Item>, new: Option<&Item>) -> f64 {
    let bytes = [old, new].into_iter().flatten().map(item_bytes).max().unwrap_or(0);
    bytes.div_ceil(1 << 10).max(1) as f64
}
