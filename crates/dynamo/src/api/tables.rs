//! Operations on tables.

mod indexes;
mod update;

use super::{ATTEMPTS_MAX, Api};
use crate::fault::{Fault, Result, Type};
use crate::json;
use crate::request::Request;
use crate::rows::{Expect, Written};
use crate::table::{GLOBAL_FROM, KeyAttribute, Table};
use serde_json::{Value as Json, json};

/// What no table of this store has.
const REFUSED: [&str; 7] = [
    "StreamSpecification",
    "SSESpecification",
    "Tags",
    "TableClass",
    "ResourcePolicy",
    "OnDemandThroughput",
    "WarmThroughput",
];

/// Of the name of a key's attribute.
const ATTRIBUTE_BYTES_MAX: usize = 255;

/// What an account may have elsewhere; here nothing of it limits anything.
pub fn limits() -> Json {
    json!({
        "AccountMaxReadCapacityUnits": 80_000, "AccountMaxWriteCapacityUnits": 80_000,
        "TableMaxReadCapacityUnits": 40_000, "TableMaxWriteCapacityUnits": 40_000
    })
}

/// Refuses what no table of this store has.
fn refuse(request: &Request<'_>) -> Result<()> {
    for name in REFUSED {
        let asks = match request.get(name) {
            None => false,
            // What says that there is none is no wish.
            Some(Json::Array(list)) => !list.is_empty(),
            Some(Json::Object(map)) => map
                .iter()
                .any(|(name, value)| name.ends_with("nabled") && *value == Json::Bool(true)),
            Some(other) => *other != Json::String("STANDARD".into()),
        };
        if asks {
            return Err(Fault::validation(format!(
                "The parameter '{name}' is not supported by Holdfast"
            )));
        }
    }
    Ok(())
}

fn invalid(why: impl std::fmt::Display) -> Fault {
    Fault::validation(format!("One or more parameter values were invalid: {why}"))
}

impl Api {
    pub(super) async fn create_table(&self, mut request: Request<'_>) -> Result<Json> {
        refuse(&request)?;
        let name = request.table()?;
        let billing = request.word("BillingMode", &["PROVISIONED", "PAY_PER_REQUEST"])?;
        let is_by_request = billing == "PAY_PER_REQUEST";
        let throughput = throughput(&mut request, is_by_request)?;
        let definitions = pairs(&mut request, "AttributeDefinitions", "AttributeType")?;
        let schema = pairs(&mut request, "KeySchema", "KeyType")?;
        for (at, (_, kind)) in definitions.iter().enumerate() {
            if !["B", "N", "S"].contains(kind) {
                let at = format!("attributeDefinitions.{}.member.attributeType", at + 1);
                request.tell(Some(kind), &at, "Member must satisfy enum value set: [B, N, S]");
            }
        }
        for (at, (_, kind)) in schema.iter().enumerate() {
            if !["HASH", "RANGE"].contains(kind) {
                let at = format!("keySchema.{}.member.keyType", at + 1);
                request.tell(Some(kind), &at, "Member must satisfy enum value set: [HASH, RANGE]");
            }
        }
        if schema.len() > 2 {
            request.tell(
                Some("[...]"),
                "keySchema",
                "Member must have length less than or equal to 2",
            );
        }
        let given = indexes::read(&mut request)?;
        request.check()?;
        let throughput = throughput.checked()?;
        let (partition, sort) = keys(&definitions, &schema, given.is_some())?;
        let id = [self.rng.next_u64(), self.rng.next_u64()].map(|half| format!("{half:016x}"));
        let id = id.concat();
        let id =
            format!("{}-{}-4{}-{}-{}", &id[..8], &id[8..12], &id[13..16], &id[16..20], &id[20..]);
        let created_ms = self.clock.unix_ms();
        let (name, ttl, indexes) = (name.to_owned(), None, Vec::new());
        let next_index = GLOBAL_FROM;
        let mut table =
            Table { name, id, created_ms, partition, sort, throughput, ttl, indexes, next_index };
        if let Some(given) = given {
            indexes::check(&mut table, &definitions, given)?;
            self.check_together().await?;
        }
        match self.rows.set_table(&table.name, Some(table.to_bytes()), Expect::Absent).await? {
            Written::Done => Ok(json!({"TableDescription": table.describe("ACTIVE")})),
            Written::Mismatch => Err(Fault::new(
                Type::ResourceInUse,
                format!("Table already exists: {}", table.name),
            )),
        }
    }

    pub(super) async fn describe_table(&self, mut request: Request<'_>) -> Result<Json> {
        let name = request.table()?;
        request.check()?;
        Ok(json!({"Table": self.named(name).await?.1.describe("ACTIVE")}))
    }

    pub(super) async fn list_tables(&self, mut request: Request<'_>) -> Result<Json> {
        let limit = request.number("Limit", 1, 100)?.unwrap_or(100);
        let after = request.text("ExclusiveStartTableName")?;
        if let Some(after) = after {
            request.check_table("exclusiveStartTableName", after);
        }
        request.check()?;
        let limit = usize::try_from(limit).unwrap_or(1);
        let mut names = self.rows.table_names(after.unwrap_or_default(), limit + 1).await?;
        let mut answer = json!({});
        if names.len() > limit {
            names.truncate(limit);
            answer["LastEvaluatedTableName"] = json!(names.last());
        }
        answer["TableNames"] = json!(names);
        Ok(answer)
    }

    pub(super) async fn delete_table(&self, mut request: Request<'_>) -> Result<Json> {
        let name = request.table()?;
        request.check()?;
        let (_, table) = self.changed(name, |_| Ok(None)).await?;
        Ok(json!({"TableDescription": table.describe("DELETING")}))
    }

    pub(super) async fn describe_ttl(&self, mut request: Request<'_>) -> Result<Json> {
        let name = request.table()?;
        request.check()?;
        let told = match self.named(name).await?.1.ttl {
            Some(ttl) => json!({"TimeToLiveStatus": "ENABLED", "AttributeName": ttl}),
            None => json!({"TimeToLiveStatus": "DISABLED"}),
        };
        Ok(json!({"TimeToLiveDescription": told}))
    }

    pub(super) async fn update_ttl(&self, mut request: Request<'_>) -> Result<Json> {
        let name = request.table()?;
        let Some(wanted) = request.get("TimeToLiveSpecification") else {
            request.tell(None, "TimeToLiveSpecification", "Member must not be null");
            request.check()?;
            return Err(Fault::validation("The TimeToLiveSpecification is missing"));
        };
        let wanted_map = json::to_struct(wanted, "TimeToLiveSpecification")?;
        let attribute = wanted_map.get("AttributeName").map(json::to_text).transpose()?;
        let enabled = wanted_map.get("Enabled").map(json::to_bool).transpose()?;
        let place = "timeToLiveSpecification.attributeName";
        match attribute {
            None => request.tell(None, place, "Member must not be null"),
            Some("") => {
                request.tell(Some(""), place, "Member must have length greater than or equal to 1");
            }
            Some(name) if name.len() > 255 => {
                request.tell(
                    Some(name),
                    place,
                    "Member must have length less than or equal to 255",
                );
            }
            Some(_) => {}
        }
        if enabled.is_none() {
            request.tell(None, "timeToLiveSpecification.enabled", "Member must not be null");
        }
        request.check()?;
        let (attribute, enabled) = (attribute.unwrap_or_default(), enabled.unwrap_or(false));
        let change = |mut table: Table| {
            match (&table.ttl, enabled) {
                (Some(_), true) => {
                    return Err(Fault::validation("TimeToLive is already enabled"));
                }
                (None, false) => return Err(Fault::validation("TimeToLive is already disabled")),
                (Some(now), false) if now != attribute => {
                    return Err(Fault::validation(format!(
                        "TimeToLive is active on a different AttributeName: current AttributeName \
                         is {now}"
                    )));
                }
                _ => {}
            }
            table.ttl = enabled.then(|| attribute.to_owned());
            Ok(Some(table))
        };
        self.changed(name, change).await?;
        Ok(json!({"TimeToLiveSpecification": wanted}))
    }

    /// Changes a table's description, to none where it goes: what it is now, and was.
    async fn changed(
        &self,
        name: &str,
        change: impl Fn(Table) -> Result<Option<Table>> + Send + Sync,
    ) -> Result<(Option<Table>, Table)> {
        for _ in 0..ATTEMPTS_MAX {
            let (version, old) = self.named(name).await?;
            let new = change(old.clone())?;
            let (bytes, expect) = (new.as_ref().map(Table::to_bytes), Expect::Version(version));
            if self.rows.set_table(name, bytes, expect).await? == Written::Done {
                return Ok((new, old));
            }
        }
        Err(Fault::new(
            Type::ResourceInUse,
            format!(
                "Attempt to change a resource which is still in use: Table is being updated: {name}"
            ),
        ))
    }

    /// Refuses indexes where an item and its rows would lie apart.
    async fn check_together(&self) -> Result<()> {
        match self.rows.is_one().await? {
            true => Ok(()),
            false => Err(Fault::validation(
                "The store was made by an earlier build, of several tablets, and an item cannot be written together \
                 with its rows in indexes there: make the table without, or in a store that this build makes",
            )),
        }
    }

    /// A table that somebody asks for by its name, with its version.
    async fn named(&self, name: &str) -> Result<(u64, Table)> {
        match self.rows.table(name, false).await? {
            Some(found) => Ok((found.version, Table::from_bytes(&found.bytes)?)),
            None => Err(Fault::new(
                Type::ResourceNotFound,
                format!("Requested resource not found: Table: {name} not found"),
            )),
        }
    }
}

/// Pairs of an attribute's name and something else of it.
fn pairs<'a>(request: &mut Request<'a>, name: &str, kind: &str) -> Result<Vec<(&'a str, &'a str)>> {
    let given = request.get(name);
    pairs_of(request, name, given, kind)
}

/// Those of a part of a request.
fn pairs_of<'a>(
    request: &mut Request<'a>,
    name: &str,
    given: Option<&'a Json>,
    kind: &str,
) -> Result<Vec<(&'a str, &'a str)>> {
    let Some(list) = given else {
        request.tell(None, name, "Member must not be null");
        return Ok(Vec::new());
    };
    let list = json::to_list(list)?;
    if list.is_empty() && name.ends_with("eySchema") {
        request.tell(Some("[]"), name, "Member must have length greater than or equal to 1");
    }
    let mut pairs = Vec::new();
    for (at, pair) in list.iter().enumerate() {
        let pair = json::to_struct(pair, name)?;
        let mut text = |part: &str| -> Result<&'a str> {
            match pair.get(part).filter(|text| !text.is_null()) {
                Some(text) => json::to_text(text),
                None => {
                    let at = format!("{name}.{}.member.{part}", at + 1);
                    request.tell(None, &at, "Member must not be null");
                    Ok("")
                }
            }
        };
        pairs.push((text("AttributeName")?, text(kind)?));
    }
    Ok(pairs)
}

fn throughput(
    request: &mut Request<'_>,
    is_by_request: bool,
) -> Result<json::Read<Option<(i64, i64)>>> {
    const BOTH: &str = "One or more parameter values were invalid: ReadCapacityUnits and \
                        WriteCapacityUnits must both be specified when BillingMode is PROVISIONED";
    const NEITHER: &str = "One or more parameter values were invalid: Neither ReadCapacityUnits \
                           nor WriteCapacityUnits can be specified when BillingMode is \
                           PAY_PER_REQUEST";
    let read = |value, wrong: Option<&str>| Ok(json::Read { value, wrong: wrong.map(Into::into) });
    let Some(given) = request.get("ProvisionedThroughput") else {
        return read(None, (!is_by_request).then_some(BOTH));
    };
    let both = units_of(request, "provisionedThroughput", given)?;
    read(Some(both), is_by_request.then_some(NEITHER))
}

/// Units of reading and of writing of a part of a request.
fn units_of<'a>(request: &mut Request<'a>, place: &str, given: &'a Json) -> Result<(i64, i64)> {
    let given = json::to_struct(given, "ProvisionedThroughput")?;
    let mut units = |name: &str| -> Result<i64> {
        let at = format!("{place}.{}{}", name[..1].to_ascii_lowercase(), &name[1..]);
        let number = given.get(name).filter(|n| !n.is_null()).map(json::to_integer).transpose()?;
        match number {
            None => request.tell(None, &at, "Member must not be null"),
            Some(number) if number < 1 => request.tell(
                Some(&number.to_string()),
                &at,
                "Member must have value greater than or equal to 1",
            ),
            Some(_) => {}
        }
        Ok(number.unwrap_or(0))
    };
    Ok((units("ReadCapacityUnits")?, units("WriteCapacityUnits")?))
}

/// The key that definitions and schema describe.
fn keys(
    definitions: &[(&str, &str)],
    schema: &[(&str, &str)],
    has_indexes: bool,
) -> Result<(KeyAttribute, Option<KeyAttribute>)> {
    if definitions
        .iter()
        .chain(schema)
        .any(|(name, _)| !(1..=ATTRIBUTE_BYTES_MAX).contains(&name.len()))
    {
        return Err(invalid(format_args!(
            "the name of a key's attribute has 1 to {ATTRIBUTE_BYTES_MAX} bytes"
        )));
    }
    let names =
        |pairs: &[(&str, &str)]| pairs.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    if schema.len() > definitions.len() {
        return Err(Fault::validation(
            "Invalid KeySchema: Some index key attribute have no definition",
        ));
    }
    let kind = |name: &str| definitions.iter().find(|(other, _)| *other == name);
    if schema.iter().any(|(name, _)| kind(name).is_none()) {
        return Err(invalid(format_args!(
            "Some index key attributes are not defined in AttributeDefinitions. Keys: [{}], \
             AttributeDefinitions: [{}]",
            names(schema),
            names(definitions)
        )));
    }
    if let [one, other] = schema
        && one.0 == other.0
    {
        return Err(Fault::validation(
            "Both the Hash Key and the Range Key element in the KeySchema have the same name",
        ));
    }
    for (at, role, nth) in [(0, "HASH", "first"), (1, "RANGE", "second")] {
        if schema.get(at).is_some_and(|(_, kind)| *kind != role) {
            return Err(Fault::validation(format!(
                "Invalid KeySchema: The {nth} KeySchemaElement is not a {role} key type"
            )));
        }
    }
    if schema.len() != definitions.len() && !has_indexes {
        return Err(invalid(
            "Number of attributes in KeySchema does not exactly match number of attributes \
             defined in AttributeDefinitions",
        ));
    }
    let mut made = schema
        .iter()
        .filter_map(|(name, _)| kind(name))
        .map(|(name, kind)| KeyAttribute { name: (*name).to_owned(), kind: (*kind).to_owned() });
    let partition = made.next().ok_or_else(|| invalid("there is no key"))?;
    Ok((partition, made.next()))
}
