//! What a request consumed, in DynamoDB's units: of its tables, and of their indexes.

use crate::answer::Answer;
use crate::fault::Result;
use crate::index::{self, Change};
use crate::request::Request;
use crate::table::Table;
use crate::value::{Item, item_bytes};
use serde_json::{Map, Value as Json, json};
use std::collections::BTreeMap;

/// How much is said of what a request consumed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Consumed(&'static str);

/// Units of one table.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Units {
    table: f64,
    local: BTreeMap<String, f64>,
    global: BTreeMap<String, f64>,
}

impl Units {
    /// Of the table's own rows.
    pub fn of_table(units: f64) -> Units {
        Units { table: units, ..Units::default() }
    }

    /// Beside them, of an index.
    pub fn of_index(mut self, index: &index::Index, units: f64) -> Units {
        let indexes = match index.global {
            None => &mut self.local,
            Some(_) => &mut self.global,
        };
        *indexes.entry(index.name.clone()).or_default() += units;
        self
    }

    /// Where an item became another one: units of 1 KiB, of the larger of both; and of each row of an index that was
    /// put, changed or deleted.
    pub fn of_write(table: &Table, old: Option<&Item>, new: Option<&Item>) -> Units {
        let mut units = Units::of_table(write_units([old, new].into_iter().flatten()));
        for Change { index, old, new } in index::changes(table, old, new) {
            let written = match (&old, &new) {
                (Some((one, old)), Some((other, new))) if one == other => write_units([old, new]),
                (old, new) => {
                    let rows = [old, new].into_iter().flatten();
                    rows.map(|(_, part)| write_units([part])).sum()
                }
            };
            units = units.of_index(index, written);
        }
        units
    }

    /// As a transaction counts it.
    pub fn twice(mut self) -> Units {
        self.table *= 2.0;
        self.local.values_mut().for_each(|units| *units *= 2.0);
        self.global.values_mut().for_each(|units| *units *= 2.0);
        self
    }

    pub fn add(&mut self, other: Units) {
        self.table += other.table;
        for (all, more) in [(&mut self.local, other.local), (&mut self.global, other.global)] {
            for (name, units) in more {
                *all.entry(name).or_default() += units;
            }
        }
    }
}

impl Consumed {
    pub fn of(request: &mut Request<'_>) -> Result<Consumed> {
        request.word("ReturnConsumedCapacity", &["NONE", "INDEXES", "TOTAL"]).map(Consumed)
    }

    pub fn is_wanted(self) -> bool {
        self.0 != "NONE"
    }

    pub fn tell(self, table: &str, units: &Units) -> Json {
        let of_indexes: f64 = units.local.values().chain(units.global.values()).sum();
        let mut told = json!({"TableName": table, "CapacityUnits": units.table + of_indexes});
        if self.0 == "INDEXES" {
            told["Table"] = json!({"CapacityUnits": units.table});
            for (part, all) in
                [("LocalSecondaryIndexes", &units.local), ("GlobalSecondaryIndexes", &units.global)]
            {
                let all = all.iter();
                let all = all.map(|(name, units)| (name.clone(), json!({"CapacityUnits": units})));
                let all: Map<String, Json> = all.collect();
                if !all.is_empty() {
                    told[part] = Json::Object(all);
                }
            }
        }
        told
    }

    /// Adds it to an answer that wants it.
    pub fn add(self, answer: &mut Answer, table: &str, units: impl FnOnce() -> Units) {
        if self.is_wanted() {
            answer.put("ConsumedCapacity", &self.tell(table, &units()));
        }
    }
}

/// Units of 4 KiB, a half of each where it need not be consistent.
pub(super) fn read_units(bytes: usize, consistent: bool) -> f64 {
    let units = bytes.div_ceil(4 << 10).max(1) as f64;
    if consistent { units } else { units / 2.0 }
}

/// Units of 1 KiB, of the largest.
fn write_units<'a>(items: impl IntoIterator<Item = &'a Item>) -> f64 {
    let bytes = items.into_iter().map(item_bytes).max().unwrap_or(0);
    bytes.div_ceil(1 << 10).max(1) as f64
}
