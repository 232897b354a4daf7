//! A table of Holdfast to measure with: records of the stand's node, whose log is the node's own.

use super::kind::{Items, Kind, PATIENCE};
use super::stand::Stand;
use holdfast_base::{Error, Result};
use holdfast_client::{Client, TableWrite};
use holdfast_invalidate::run::Connect;
use holdfast_invalidate::table::{self, SCHEME};
use holdfast_wire::table::{Expect, Level, Make, TableMode};
use std::path::Path;
use std::time::Instant;

const NAME: &str = "items";
/// What has shown in one is kept up to 2 MiB: all together keep what a repetition changes.
const TABLETS: u16 = 8;

pub struct Table {
    connect: Connect,
}

impl Kind for Table {
    const NAME: &'static str = "a table";
    const MAP: &'static str = "[[keys]]\ntable = \"items\"\nkey = \"item:{key}\"\n";
    type Source = table::Table;
    type Items = Records;

    fn start(_: &Path, _: &Path, stand: &Stand, items: u64) -> Result<Table> {
        let connect = stand.connect();
        let (table, mode) = (NAME.to_owned(), TableMode::Timeline);
        let make = Make { table, mode, tablets: TABLETS, everywhere: false };
        connect()?.table_make(&make)?;
        let made = Table { connect };
        made.items()?.raise(1, items, 1000)?;
        Ok(made)
    }

    fn replica(&self, _: &Path, _: &Path) -> Result<Option<Table>> {
        Ok(None)
    }

    fn url(&self) -> String {
        format!("{SCHEME}{NAME}")
    }

    fn server(&self) -> Result<table::Server> {
        Ok(table::Server {
            name: self.url(),
            table: NAME.to_owned(),
            connect: self.connect.clone(),
        })
    }

    fn items(&self) -> Result<Records> {
        Ok(Records { client: (self.connect)()?, price: 0 })
    }
}

/// A connection to the node.
pub struct Records {
    client: Client,
    /// The last one that was given to many.
    price: u64,
}

fn written(id: u64, price: u64) -> TableWrite {
    let value = Some(format!("{{\"price\":{price}}}").into_bytes());
    TableWrite { key: id.to_string().into_bytes(), value, expect: Expect::Any }
}

impl Items for Records {
    fn set_price(&mut self, id: u64, price: u64) -> Result<()> {
        self.client.table(NAME).write(&[written(id, price)]).map(drop)
    }

    fn until_price(&mut self, id: u64, price: u64) -> Result<Instant> {
        let (began, wanted) = (Instant::now(), written(id, price));
        let mut table = self.client.table(NAME);
        while began.elapsed() < PATIENCE {
            let sent = Instant::now();
            let record = table.get(&wanted.key, Level::Any)?;
            if record.is_some_and(|record| Some(record.value) == wanted.value) {
                return Ok(sent);
            }
        }
        Err(Error::retry("wait for a change: the node does not show it"))
    }

    /// Each record is a change of its own; `each` are written by one request.
    fn raise(&mut self, first: u64, last: u64, each: u64) -> Result<()> {
        self.price += 1;
        let all: Vec<TableWrite> = (first..=last).map(|id| written(id, self.price)).collect();
        let mut table = self.client.table(NAME);
        all.chunks(each.max(1000) as usize).try_for_each(|some| table.write(some).map(drop))
    }
}
