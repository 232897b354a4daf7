//! Operations on tables.

use super::Api;
use crate::fault::{Fault, Result, Type};
use crate::json;
use crate::request::Request;
use crate::rows::{Expect, Written};
use crate::table::{KeyAttribute, Table};
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

fn invalid(why: impl std::fmt::Display) -> Fault {
    Fault::validation(format!("One or more parameter values were invalid: {why}"))
}

impl Api {
    pub(super) async fn create_table(&self, mut request: Request<'_>) -> Result<Json> {
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
        let name = request.table()?;
        let billing = request.word("BillingMode", &["PROVISIONED", "PAY_PER_REQUEST"])?;
        let throughput = throughput(&mut request, billing == "PAY_PER_REQUEST")?;
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
        request.check()?;
        let throughput = throughput.checked()?;
        let (partition, sort) = keys(&definitions, &schema)?;
        let id = [self.rng.next_u64(), self.rng.next_u64()].map(|half| format!("{half:016x}"));
        let id = id.concat();
        let id =
            format!("{}-{}-4{}-{}-{}", &id[..8], &id[8..12], &id[13..16], &id[16..20], &id[20..]);
        let created_ms = self.clock.unix_ms();
        let name = name.to_owned();
        let table = Table { name, id, created_ms, partition, sort, throughput, ttl: None };
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
        let (version, table) = self.named(name).await?;
        match self.rows.set_table(name, None, Expect::Version(version)).await? {
            Written::Done => Ok(json!({"TableDescription": table.describe("DELETING")})),
            Written::Mismatch => Err(in_use(name)),
        }
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
        let (version, mut table) = self.named(name).await?;
        match (&table.ttl, enabled) {
            (Some(_), true) => return Err(Fault::validation("TimeToLive is already enabled")),
            (None, false) => return Err(Fault::validation("TimeToLive is already disabled")),
            (Some(now), false) if now != attribute => {
                return Err(Fault::validation(format!(
                    "TimeToLive is active on a different AttributeName: current AttributeName is \
                     {now}"
                )));
            }
            _ => {}
        }
        table.ttl = enabled.then(|| attribute.to_owned());
        let expect = Expect::Version(version);
        match self.rows.set_table(name, Some(table.to_bytes()), expect).await? {
            Written::Done => Ok(json!({"TimeToLiveSpecification": wanted})),
            Written::Mismatch => Err(in_use(name)),
        }
    }

    /// A table that somebody asks for by its name, with its version.
    async fn named(&self, name: &str) -> Result<(u64, Table)> {
        match self.rows.table(name).await? {
            Some(found) => Ok((found.version, Table::from_bytes(&found.bytes)?)),
            None => Err(Fault::new(
                Type::ResourceNotFound,
                format!("Requested resource not found: Table: {name} not found"),
            )),
        }
    }
}

fn in_use(name: &str) -> Fault {
    Fault::new(
        Type::ResourceInUse,
        format!(
            "Attempt to change a resource which is still in use: Table is being updated: {name}"
        ),
    )
}

/// Pairs of an attribute's name and something else of it.
fn pairs<'a>(request: &mut Request<'a>, name: &str, kind: &str) -> Result<Vec<(&'a str, &'a str)>> {
    let Some(list) = request.get(name) else {
        request.tell(None, name, "Member must not be null");
        return Ok(Vec::new());
    };
    let list = json::to_list(list)?;
    if list.is_empty() && name == "KeySchema" {
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
    let given = json::to_struct(given, "ProvisionedThroughput")?;
    let mut units = |name: &str| -> Result<i64> {
        let at = format!("provisionedThroughput.{name}");
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
    let both = (units("ReadCapacityUnits")?, units("WriteCapacityUnits")?);
    read(Some(both), is_by_request.then_some(NEITHER))
}

/// The key that definitions and schema describe.
fn keys(
    definitions: &[(&str, &str)],
    schema: &[(&str, &str)],
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
    if schema.len() != definitions.len() {
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
