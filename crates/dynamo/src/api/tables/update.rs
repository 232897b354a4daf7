//! UpdateTable: what a table's throughput is, and a global index that comes or goes while the table is used.

use super::indexes::{self, Definitions, Given, global_index, name_of, too_many};
use super::{Api, invalid, pairs, refuse, units_of};
use crate::fault::{Fault, Result, Type};
use crate::index::{GLOBAL_MAX, Index, Status, check_named_together};
use crate::json;
use crate::request::Request;
use crate::table::{KeyAttribute, Table};
use serde_json::{Value as Json, json};
use std::collections::BTreeSet;

const PART: &str = "GlobalSecondaryIndexUpdates";
const ONE_AT_A_TIME: &str = "Subscriber limit exceeded: Only 1 online index can be created or deleted simultaneously \
                             per table";

/// What is to become of one index.
enum Change<'a> {
    Create(Given<'a>),
    Delete(&'a str),
    /// It has other units of reading and of writing.
    Units(&'a str, (i64, i64)),
}

impl Change<'_> {
    fn name(&self) -> &str {
        match self {
            Change::Create(Given { name, .. }) | Change::Delete(name) | Change::Units(name, _) => {
                name
            }
        }
    }
}

/// What is asked for.
struct Wanted<'a> {
    billing: Option<&'static str>,
    throughput: Option<(i64, i64)>,
    definitions: Vec<(&'a str, &'a str)>,
    changes: Vec<Change<'a>>,
}

impl Api {
    pub(in crate::api) async fn update_table(&self, mut request: Request<'_>) -> Result<Json> {
        refuse(&request)?;
        for name in ["DeletionProtectionEnabled", "MultiRegionConsistency"] {
            if !matches!(request.get(name), None | Some(Json::Bool(false))) {
                return Err(Fault::validation(format!(
                    "The parameter '{name}' is not supported by Holdfast"
                )));
            }
        }
        let name = request.table()?;
        let wanted = Wanted::read(&mut request)?;
        request.check()?;
        wanted.check()?;
        if wanted.changes.iter().any(|change| matches!(change, Change::Create(_))) {
            self.check_together().await?;
        }
        let (table, old) = self.changed(name, |table| wanted.apply(table).map(Some)).await?;
        // As DynamoDB answers, whose changes take their time; of the next look it is active.
        Ok(json!({"TableDescription": table.unwrap_or(old).describe("UPDATING")}))
    }
}

impl<'a> Wanted<'a> {
    fn read(request: &mut Request<'a>) -> Result<Wanted<'a>> {
        let billing = request.word("BillingMode", &["", "PROVISIONED", "PAY_PER_REQUEST"])?;
        let throughput = match request.get("ProvisionedThroughput") {
            Some(given) => Some(units_of(request, "provisionedThroughput", given)?),
            None => None,
        };
        let definitions = match request.get("AttributeDefinitions") {
            Some(_) => pairs(request, "AttributeDefinitions", "AttributeType")?,
            None => Vec::new(),
        };
        for (at, (_, kind)) in definitions.iter().enumerate() {
            if !["B", "N", "S"].contains(kind) {
                let at = format!("attributeDefinitions.{}.member.attributeType", at + 1);
                request.tell(Some(kind), &at, "Member must satisfy enum value set: [B, N, S]");
            }
        }
        let mut changes = Vec::new();
        let list = request.get(PART).map(json::to_list).transpose()?;
        for (at, one) in list.into_iter().flatten().enumerate() {
            let place = format!("{PART}.{}.member", at + 1);
            changes.extend(change_of(request, one, &place)?);
        }
        let billing = Some(billing).filter(|billing| !billing.is_empty());
        Ok(Wanted { billing, throughput, definitions, changes })
    }

    fn check(&self) -> Result<()> {
        if self.billing.is_none() && self.throughput.is_none() && self.changes.is_empty() {
            return Err(Fault::validation(
                "At least one of ProvisionedThroughput, BillingMode, UpdateStreamEnabled, GlobalSecondaryIndexUpdates \
                 or SSESpecification or ReplicaUpdates is required",
            ));
        }
        if self.billing == Some("PROVISIONED") && self.throughput.is_none() {
            return Err(invalid(
                "ProvisionedThroughput must be specified when BillingMode is PROVISIONED",
            ));
        }
        let mut names = BTreeSet::new();
        for change in &self.changes {
            if !names.insert(change.name()) {
                return Err(invalid(format_args!(
                    "Only one global secondary index update per index is allowed simultaneously. Index: {}",
                    change.name()
                )));
            }
        }
        let online = |change: &&Change<'_>| !matches!(change, Change::Units(..));
        match self.changes.iter().filter(online).count() {
            0 | 1 => Ok(()),
            _ => Err(Fault::new(Type::LimitExceeded, ONE_AT_A_TIME)),
        }
    }

    /// The table as it is to be.
    fn apply(&self, mut table: Table) -> Result<Table> {
        let is_by_request = match self.billing {
            Some(billing) => billing == "PAY_PER_REQUEST",
            None => table.throughput.is_none(),
        };
        if is_by_request && self.throughput.is_some() {
            return Err(invalid(
                "Neither ReadCapacityUnits nor WriteCapacityUnits can be specified when BillingMode is PAY_PER_REQUEST",
            ));
        }
        if let Some((reads, writes)) =
            self.throughput.filter(|_| self.throughput == table.throughput)
        {
            return Err(Fault::validation(format!(
                "The provisioned throughput for the table will not change. The requested value equals the current \
                 value. Current ReadCapacityUnits provisioned for the table: {reads}. Requested ReadCapacityUnits: \
                 {reads}. Current WriteCapacityUnits provisioned for the table: {writes}. Requested \
                 WriteCapacityUnits: {writes}. Refer to the Amazon DynamoDB Developer Guide for current limits and \
                 how to request higher limits."
            )));
        }
        let was_by_request = table.throughput.is_none();
        match is_by_request {
            true => table.throughput = None,
            false => table.throughput = self.throughput.or(table.throughput),
        }
        for change in &self.changes {
            match change {
                Change::Create(given) => create(&mut table, &self.definitions, given)?,
                Change::Delete(name) => delete(&mut table, name)?,
                Change::Units(name, units) => {
                    let global = found(&mut table, name)?.global.as_mut();
                    global.into_iter().for_each(|global| global.throughput = Some(*units));
                }
            }
        }
        for index in &mut table.indexes {
            let Some(global) = &mut index.global else { continue };
            if is_by_request {
                global.throughput = None;
            } else if was_by_request && global.throughput.is_none() {
                return Err(invalid(format_args!(
                    "ProvisionedThroughput must be specified for index: {}",
                    index.name
                )));
            }
        }
        Ok(table)
    }
}

/// None where nothing is asked for, which is told.
fn change_of<'a>(
    request: &mut Request<'a>,
    one: &'a Json,
    place: &str,
) -> Result<Option<Change<'a>>> {
    let one = json::to_struct(one, "GlobalSecondaryIndexUpdate")?;
    let mut changes = Vec::new();
    for kind in ["Create", "Update", "Delete"] {
        let Some(part) = one.get(kind).filter(|part| !part.is_null()) else { continue };
        let part = json::to_struct(part, &format!("{kind}GlobalSecondaryIndexAction"))?;
        let place = format!("{place}.{}", kind.to_ascii_lowercase());
        changes.push(match kind {
            "Create" => Change::Create(indexes::given(request, part, &place)?),
            "Delete" => Change::Delete(name_of(request, part, &place)?),
            _ => {
                let name = name_of(request, part, &place)?;
                let at = format!("{place}.provisionedThroughput");
                match part.get("ProvisionedThroughput").filter(|given| !given.is_null()) {
                    Some(given) => Change::Units(name, units_of(request, &at, given)?),
                    None => {
                        request.tell(None, &at, "Member must not be null");
                        Change::Units(name, (0, 0))
                    }
                }
            }
        });
    }
    match changes.len() {
        0 | 1 => {}
        _ => {
            return Err(invalid(
                "Only one of GlobalSecondaryIndexUpdate.Update, GlobalSecondaryIndexUpdate.Create, \
                 GlobalSecondaryIndexUpdate.Delete may be given",
            ));
        }
    }
    changes.pop().map(Some).ok_or_else(|| {
        invalid(
            "One of GlobalSecondaryIndexUpdate.Update, GlobalSecondaryIndexUpdate.Create, \
             GlobalSecondaryIndexUpdate.Delete must not be null",
        )
    })
}

/// The global index of a name.
fn found<'t>(table: &'t mut Table, name: &str) -> Result<&'t mut Index> {
    let of = table.name.clone();
    let mut indexes = table.indexes.iter_mut();
    let found = indexes.find(|index| index.name == name && index.global.is_some());
    found.ok_or_else(|| {
        Fault::new(
            Type::ResourceNotFound,
            format!("Requested resource not found: Index {name} for table {of}"),
        )
    })
}

/// Refuses a second one that comes or goes.
fn check_alone(table: &Table, name: &str) -> Result<()> {
    let is_busy = |index: &Index| index.status() != Status::Active && index.name != name;
    match table.indexes.iter().any(is_busy) {
        true => Err(Fault::new(Type::LimitExceeded, ONE_AT_A_TIME)),
        false => Ok(()),
    }
}

fn create(table: &mut Table, definitions: &Definitions<'_>, given: &Given<'_>) -> Result<()> {
    check_alone(table, given.name)?;
    if table.index(given.name).is_some() {
        return Err(Fault::validation("Attempting to create an index which already exists"));
    }
    if table.indexes.iter().filter(|index| index.global.is_some()).count() >= GLOBAL_MAX {
        return Err(too_many());
    }
    // What is known of an attribute need not be said again, and cannot be another.
    let known: Vec<KeyAttribute> =
        table.keys().chain(table.indexes.iter().flat_map(Index::keys)).cloned().collect();
    let mut all = definitions.to_vec();
    for key in &known {
        match definitions.iter().find(|(name, _)| *name == key.name) {
            Some((name, kind)) if *kind != key.kind => {
                return Err(invalid(format_args!(
                    "Attribute {name} is of type {} in the table, and cannot be of type {kind} in an index",
                    key.kind
                )));
            }
            // Several keys may have it.
            _ if all.iter().any(|(name, _)| *name == key.name) => {}
            _ => all.push((key.name.as_str(), key.kind.as_str())),
        }
    }
    let index = global_index(table, &all, given, Status::Creating)?;
    let is_used =
        |(name, _): &(&str, &str)| known.iter().chain(index.keys()).any(|key| key.name == *name);
    if !definitions.iter().all(is_used) {
        return Err(invalid("Some AttributeDefinitions are not used"));
    }
    table.indexes.push(index);
    check_named_together(table)
}

fn delete(table: &mut Table, name: &str) -> Result<()> {
    check_alone(table, name)?;
    let index = found(table, name)?;
    if index.status() == Status::Deleting {
        return Err(Fault::new(
            Type::ResourceInUse,
            format!(
                "Attempt to change a resource which is still in use: Index is being deleted: {name}"
            ),
        ));
    }
    let global = index.global.as_mut();
    global.into_iter().for_each(|global| global.status = Status::Deleting);
    Ok(())
}
