//! The indexes of a table that is made, and one that a table gets later. Pure.

use super::{invalid, pairs_of, units_of};
use crate::fault::{Fault, Result};
use crate::index::{
    GLOBAL_MAX, Global, Index, LOCAL_MAX, Status, check_named_together, projection_of,
};
use crate::json;
use crate::request::Request;
use crate::table::{KeyAttribute, Table};
use serde_json::{Map, Value as Json};

/// Names of attributes, and their types.
pub(super) type Definitions<'a> = [(&'a str, &'a str)];

/// An index as it stands in the request.
pub(super) struct Given<'a> {
    pub name: &'a str,
    schema: Vec<(&'a str, &'a str)>,
    projection: Option<&'a Json>,
    throughput: Option<(i64, i64)>,
}

/// Indexes of a table that is made.
#[derive(Default)]
pub(super) struct AllGiven<'a> {
    local: Option<Vec<Given<'a>>>,
    global: Option<Vec<Given<'a>>>,
}

/// Their shapes; none where no index is asked for.
pub(super) fn read<'a>(request: &mut Request<'a>) -> Result<Option<AllGiven<'a>>> {
    let local = list(request, "LocalSecondaryIndexes", "LocalSecondaryIndex")?;
    let global = list(request, "GlobalSecondaryIndexes", "GlobalSecondaryIndex")?;
    let is_any = local.is_some() || global.is_some();
    Ok(is_any.then_some(AllGiven { local, global }))
}

fn list<'a>(request: &mut Request<'a>, name: &str, kind: &str) -> Result<Option<Vec<Given<'a>>>> {
    let Some(list) = request.get(name) else { return Ok(None) };
    let mut all = Vec::new();
    for (at, one) in json::to_list(list)?.iter().enumerate() {
        let one = json::to_struct(one, kind)?;
        all.push(given(request, one, &format!("{name}.{}.member", at + 1))?);
    }
    Ok(Some(all))
}

/// The shape of one.
pub(super) fn given<'a>(
    request: &mut Request<'a>,
    one: &'a Map<String, Json>,
    place: &str,
) -> Result<Given<'a>> {
    let part = |name: &str| one.get(name).filter(|part: &&Json| !part.is_null());
    for name in ["OnDemandThroughput", "WarmThroughput"] {
        if part(name).is_some() {
            return Err(Fault::validation(format!(
                "The parameter '{name}' is not supported by Holdfast"
            )));
        }
    }
    let name = name_of(request, one, place)?;
    let schema = schema_of(request, one, place)?;
    if part("Projection").is_none() {
        request.tell(None, &format!("{place}.projection"), "Member must not be null");
    }
    let throughput = match part("ProvisionedThroughput") {
        Some(given) => Some(units_of(request, &format!("{place}.provisionedThroughput"), given)?),
        None => None,
    };
    Ok(Given { name, schema, projection: part("Projection"), throughput })
}

/// The name of an index.
pub(super) fn name_of<'a>(
    request: &mut Request<'a>,
    one: &'a Map<String, Json>,
    place: &str,
) -> Result<&'a str> {
    let name = one.get("IndexName").filter(|name| !name.is_null());
    let name = name.map(json::to_text).transpose()?;
    match name {
        None => request.tell(None, &format!("{place}.indexName"), "Member must not be null"),
        Some(name) => request.check_table(&format!("{place}.indexName"), name),
    }
    Ok(name.unwrap_or_default())
}

fn schema_of<'a>(
    request: &mut Request<'a>,
    one: &'a Map<String, Json>,
    place: &str,
) -> Result<Vec<(&'a str, &'a str)>> {
    let at = format!("{place}.keySchema");
    let given = one.get("KeySchema").filter(|given| !given.is_null());
    let schema = pairs_of(request, &at, given, "KeyType")?;
    for (number, (_, kind)) in schema.iter().enumerate() {
        if !["HASH", "RANGE"].contains(kind) {
            let at = format!("{at}.{}.member.keyType", number + 1);
            request.tell(Some(kind), &at, "Member must satisfy enum value set: [HASH, RANGE]");
        }
    }
    if schema.len() > 2 {
        request.tell(Some("[...]"), &at, "Member must have length less than or equal to 2");
    }
    Ok(schema)
}

/// Puts the indexes into a table that is made, in DynamoDB's order of what may be wrong with them.
pub(super) fn check(
    table: &mut Table,
    definitions: &Definitions<'_>,
    given: AllGiven<'_>,
) -> Result<()> {
    if let Some(local) = given.local {
        if local.is_empty() {
            return Err(invalid("List of LocalSecondaryIndexes is empty"));
        }
        if table.sort.is_none() {
            return Err(invalid(
                "Table KeySchema does not have a range key, which is required when specifying a LocalSecondaryIndex",
            ));
        }
        for (number, one) in (0u8..).zip(&local) {
            let index = local_index(definitions, &table.partition, one, number)?;
            put(table, index)?;
        }
        if local.len() > LOCAL_MAX {
            return Err(invalid(format_args!(
                "Number of LocalSecondaryIndexes exceeds per-table limit of {LOCAL_MAX}"
            )));
        }
    }
    if let Some(global) = given.global {
        if global.is_empty() {
            return Err(invalid("List of GlobalSecondaryIndexes is empty"));
        }
        if global.len() > GLOBAL_MAX {
            return Err(too_many());
        }
        for one in &global {
            let index = global_index(table, definitions, one, Status::Active)?;
            put(table, index)?;
        }
    }
    check_named_together(table)?;
    let is_used = |(name, _): &(&str, &str)| {
        let keys = table.keys().chain(table.indexes.iter().flat_map(Index::keys));
        keys.into_iter().any(|key| key.name == *name)
    };
    match definitions.iter().all(is_used) {
        true => Ok(()),
        false => Err(invalid("Some AttributeDefinitions are not used")),
    }
}

pub(super) fn too_many() -> Fault {
    invalid(format_args!("GlobalSecondaryIndex count exceeds the per-table limit of {GLOBAL_MAX}"))
}

fn put(table: &mut Table, index: Index) -> Result<()> {
    if table.index(&index.name).is_some() {
        return Err(invalid(format_args!("Duplicate index name: {}", index.name)));
    }
    table.indexes.push(index);
    Ok(())
}

fn names(pairs: &Definitions<'_>) -> String {
    pairs.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}

/// Whether the key's attributes are defined, and in their roles.
fn check_schema(definitions: &Definitions<'_>, one: &Given<'_>) -> Result<()> {
    let is_defined = |name: &str| definitions.iter().any(|(other, _)| *other == name);
    if one.schema.iter().any(|(name, _)| !is_defined(name)) {
        return Err(invalid(format_args!(
            "Some index key attributes are not defined in AttributeDefinitions. Keys: [{}], AttributeDefinitions: [{}]",
            names(&one.schema),
            names(definitions)
        )));
    }
    if let [first, second] = one.schema[..]
        && first.0 == second.0
    {
        return Err(Fault::validation(
            "Both the Hash Key and the Range Key element in the KeySchema have the same name",
        ));
    }
    for (at, role, nth) in [(0, "HASH", "first"), (1, "RANGE", "second")] {
        if one.schema.get(at).is_some_and(|(_, kind)| *kind != role) {
            return Err(Fault::validation(format!(
                "Invalid KeySchema: The {nth} KeySchemaElement is not a {role} key type"
            )));
        }
    }
    Ok(())
}

fn attribute(definitions: &Definitions<'_>, name: &str) -> KeyAttribute {
    let kind = definitions.iter().find(|(other, _)| *other == name);
    KeyAttribute { name: name.to_owned(), kind: kind.map_or("", |(_, kind)| *kind).to_owned() }
}

fn local_index(
    definitions: &Definitions<'_>,
    partition: &KeyAttribute,
    one: &Given<'_>,
    number: u8,
) -> Result<Index> {
    check_schema(definitions, one)?;
    let [(hash, _), (range, _)] = one.schema[..] else {
        return Err(invalid(format_args!(
            "Index KeySchema does not have a range key for index: {}",
            one.name
        )));
    };
    if hash != partition.name {
        return Err(invalid(format_args!(
            "Index KeySchema does not have the same leading hash key as table KeySchema for index: {}. index hash key: \
             {hash}, table hash key: {}",
            one.name, partition.name
        )));
    }
    Ok(Index {
        name: one.name.to_owned(),
        number,
        partition: partition.clone(),
        sort: Some(attribute(definitions, range)),
        projection: projection_of(one.projection)?,
        global: None,
    })
}

/// A global index for a table, which takes a number of it.
pub(super) fn global_index(
    table: &mut Table,
    definitions: &Definitions<'_>,
    one: &Given<'_>,
    status: Status,
) -> Result<Index> {
    check_schema(definitions, one)?;
    let projection = projection_of(one.projection)?;
    match (one.throughput, table.throughput) {
        (Some(_), None) => {
            return Err(invalid(format_args!(
                "ProvisionedThroughput should not be specified for index: {} when BillingMode is PAY_PER_REQUEST",
                one.name
            )));
        }
        (None, Some(_)) => {
            return Err(invalid(format_args!(
                "ProvisionedThroughput is not specified for index: {}",
                one.name
            )));
        }
        _ => {}
    }
    let mut keys = one.schema.iter().map(|(name, _)| attribute(definitions, name));
    let partition = keys.next().ok_or_else(|| invalid("there is no key"))?;
    Ok(Index {
        name: one.name.to_owned(),
        partition,
        sort: keys.next(),
        projection,
        global: Some(Global { status, throughput: one.throughput }),
        number: table.take_number(),
    })
}
