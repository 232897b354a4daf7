//! A table's indexes: which rows an item has in them. An index's rows lie beside the items, ordered by the index's
//! key and the table's; each holds what the index projects. A local index has the table's partition key, a global one
//! any. Pure.

use crate::fault::{Fault, Result};
use crate::key;
use crate::rows::{Expect, GroupDo, GroupWrite, KEY_BYTES_MAX, Place};
use crate::table::{KeyAttribute, Table};
use crate::value::{Item, Value};
use crate::{form, json};
use holdfast_env::planted;
use serde_json::{Value as Json, json};

/// Local indexes of one table.
pub const LOCAL_MAX: usize = 5;
/// Global indexes of one table.
pub const GLOBAL_MAX: usize = 20;
/// Attributes that are no keys, and that one index projects by their names.
pub const NAMED_MAX: usize = 20;
/// Those of all indexes of a table together: a description, which each request reads, has to stay small.
pub const NAMED_TOGETHER_MAX: usize = 100;
/// Of the name of one.
const NAME_BYTES_MAX: usize = 255;

/// An index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Index {
    /// Its name.
    pub name: String,
    /// What its rows are known by: no other index of its table has it.
    pub number: u8,
    /// What its rows lie side by side by; of a local index the table's.
    pub partition: KeyAttribute,
    /// What its rows are ordered by, within a partition key.
    pub sort: Option<KeyAttribute>,
    /// What its rows hold.
    pub projection: Projection,
    /// What a global index has beside; none for a local one.
    pub global: Option<Global>,
}

/// What a global index has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Global {
    /// How far it is.
    pub status: Status,
    /// Units of reading and of writing, which limit nothing; none for payment by request.
    pub throughput: Option<(i64, i64)>,
}

/// How far a global index is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Whoever writes an item writes its row. Rows of items that were there before are made, one after the other.
    Creating,
    /// All rows are there.
    Active,
    /// Nobody writes rows; those that are there go.
    Deleting,
}

impl Status {
    /// As DynamoDB calls it.
    pub fn name(self) -> &'static str {
        match self {
            Status::Creating => "CREATING",
            Status::Active => "ACTIVE",
            Status::Deleting => "DELETING",
        }
    }

    fn of(name: &str) -> Option<Status> {
        [Status::Creating, Status::Active, Status::Deleting]
            .into_iter()
            .find(|status| status.name() == name)
    }
}

/// What an index's rows hold, beside the attributes of both keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Projection {
    /// The item.
    All,
    /// Nothing.
    KeysOnly,
    /// These.
    Include(Vec<String>),
}

impl Projection {
    /// As DynamoDB writes it.
    pub fn to_json(&self) -> Json {
        match self {
            Projection::All => json!({"ProjectionType": "ALL"}),
            Projection::KeysOnly => json!({"ProjectionType": "KEYS_ONLY"}),
            Projection::Include(names) => {
                json!({"ProjectionType": "INCLUDE", "NonKeyAttributes": names})
            }
        }
    }

    /// Reads what [`Projection::to_json`] wrote.
    pub fn from_json(json: &Json) -> Option<Projection> {
        let name = |name: &Json| name.as_str().map(str::to_owned);
        Some(match json["ProjectionType"].as_str()? {
            "ALL" => Projection::All,
            "KEYS_ONLY" => Projection::KeysOnly,
            "INCLUDE" => {
                let names = json["NonKeyAttributes"].as_array()?.iter().map(name);
                Projection::Include(names.collect::<Option<_>>()?)
            }
            _ => return None,
        })
    }
}

impl Index {
    /// How far it is; a local index is made with its table.
    pub fn status(&self) -> Status {
        self.global.map_or(Status::Active, |global| global.status)
    }

    /// The attributes of its own key.
    pub fn keys(&self) -> impl Iterator<Item = &KeyAttribute> {
        std::iter::once(&self.partition).chain(&self.sort)
    }

    /// The key of an item's row; none where the item has no row: it lacks an attribute of the index's key, or had one
    /// that is no key before there was the index.
    pub fn key(&self, table: &Table, item: &Item) -> Option<Vec<u8>> {
        for attribute in self.keys() {
            self.wrong(attribute, item.get(&attribute.name)?).is_none().then_some(())?;
        }
        self.bytes(table, item).filter(|key| key.len() <= KEY_BYTES_MAX)
    }

    /// The key of a row, however long.
    fn bytes(&self, table: &Table, item: &Item) -> Option<Vec<u8>> {
        let mut out = key::of_partition(item.get(&self.partition.name)?)?;
        if let Some(sort) = &self.sort {
            key::put_ended_sort(&mut out, item.get(&sort.name)?)?;
        }
        if self.global.is_some() {
            key::put_ended_sort(&mut out, item.get(&table.partition.name)?)?;
        }
        if let Some(sort) = &table.sort {
            key::put_sort(&mut out, item.get(&sort.name)?)?;
        }
        Some(out)
    }

    /// Whether its rows hold an attribute.
    pub fn has(&self, table: &Table, name: &str) -> bool {
        let is_key = self.keys().chain(table.keys()).any(|key| key.name == name);
        match &self.projection {
            Projection::All => true,
            Projection::KeysOnly => is_key,
            Projection::Include(names) => is_key || names.iter().any(|other| other == name),
        }
    }

    /// What its row holds of an item.
    pub fn part(&self, table: &Table, item: &Item) -> Item {
        let held = item.iter().filter(|(name, _)| self.has(table, name));
        held.map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    /// Refuses an item that cannot be in the index.
    fn check(&self, table: &Table, item: &Item) -> Result<()> {
        for attribute in self.keys() {
            let wrong = item.get(&attribute.name).and_then(|value| self.wrong(attribute, value));
            if let Some(why) = wrong {
                return Err(Fault::validation(why));
            }
        }
        match self.bytes(table, item).map_or(0, |key| key.len()) {
            ..=KEY_BYTES_MAX => Ok(()),
            bytes => Err(Fault::validation(format!(
                "One or more parameter values were invalid: The keys of the index and of the table are too long \
                 together: {bytes} bytes of {KEY_BYTES_MAX}, where a zero byte counts twice. IndexName: {}",
                self.name
            ))),
        }
    }

    /// Why a value is none of an attribute of its key.
    fn wrong(&self, attribute: &KeyAttribute, value: &Value) -> Option<String> {
        if value.kind() != attribute.kind {
            return Some(format!(
                "One or more parameter values were invalid: Type mismatch for Index Key {} Expected: {} Actual: {} \
                 IndexName: {}",
                attribute.name,
                attribute.kind,
                value.kind(),
                self.name
            ));
        }
        let (bytes, what) = match value {
            Value::S(text) => (text.len(), "string"),
            Value::B(bytes) => (bytes.len(), "binary"),
            _ => return None,
        };
        let is_partition = *attribute == self.partition;
        match bytes {
            0 => Some(format!(
                "One or more parameter values are not valid. A value specified for a secondary index key is not \
                 supported. The AttributeValue for a key attribute cannot contain an empty {what} value. IndexName: \
                 {}, IndexKey: {}",
                self.name, attribute.name
            )),
            bytes if is_partition && bytes > key::PARTITION_BYTES_MAX => Some(
                "One or more parameter values were invalid: Size of hashkey has exceeded the maximum size limit of2048 \
                 bytes"
                    .into(),
            ),
            bytes if !is_partition && bytes > key::SORT_BYTES_MAX => Some(
                "One or more parameter values were invalid: Aggregated size of all range keys has exceeded the size \
                 limit of 1024 bytes"
                    .into(),
            ),
            _ => None,
        }
    }
}

/// Refuses an item that cannot be in the table's indexes.
pub fn check(table: &Table, item: &Item) -> Result<()> {
    kept(table).try_for_each(|index| index.check(table, item))
}

/// The indexes whose rows are written with items.
fn kept(table: &Table) -> impl Iterator<Item = &Index> {
    table.indexes.iter().filter(|index| index.status() != Status::Deleting)
}

/// What becomes of an item's row in an index.
pub struct Change<'a> {
    /// The index.
    pub index: &'a Index,
    /// The row that was there: its key, and what it held.
    pub old: Option<(Vec<u8>, Item)>,
    /// The row that is to be there.
    pub new: Option<(Vec<u8>, Item)>,
}

/// The rows that change where an item becomes another one.
pub fn changes<'a>(
    table: &'a Table,
    old: Option<&'a Item>,
    new: Option<&'a Item>,
) -> impl Iterator<Item = Change<'a>> {
    let row = |index: &Index, item: Option<&Item>| {
        let item = item?;
        Some((index.key(table, item)?, index.part(table, item)))
    };
    let change = move |index| Change { index, old: row(index, old), new: row(index, new) };
    kept(table).map(change).filter(|change| change.old != change.new)
}

/// What becomes of the rows in all indexes where an item becomes another one. Nothing is expected of them: they are
/// written with the item alone, on its version.
pub fn writes(table: &Table, old: Option<&Item>, new: Option<&Item>) -> Vec<GroupWrite> {
    let mut writes = Vec::new();
    for Change { index, old, new } in changes(table, old, new) {
        let mut put = |key: Vec<u8>, what| {
            let place = Place::Index(table.name.clone(), index.number, key);
            writes.push(GroupWrite { place, expect: Expect::Any, what });
        };
        if let Some((key, _)) = old
            && new.as_ref().is_none_or(|(other, _)| *other != key)
            && !planted!("dynamo.index-keeps-old-rows")
        {
            // While rows are made nobody knows which are there.
            let is_there = index.status() == Status::Active;
            put(key, if is_there { GroupDo::Delete } else { GroupDo::Remove });
        }
        if let Some((key, part)) = new {
            put(key, GroupDo::Put(form::to_bytes(&part)));
        }
    }
    writes
}

fn attribute_json(key: &KeyAttribute) -> Json {
    json!({"name": key.name, "type": key.kind})
}

/// As a description of the table has it.
pub fn to_json(index: &Index) -> Json {
    let mut told = json!({
        "name": index.name, "sort": index.sort.as_ref().map(attribute_json),
        "projection": index.projection.to_json()
    });
    if let Some(Global { status, throughput }) = index.global {
        told["number"] = json!(index.number);
        told["partition"] = attribute_json(&index.partition);
        told["status"] = json!(status.name());
        told["throughput"] = json!(throughput);
    }
    told
}

/// A local index, by its place and the table's partition key.
pub fn local_from_json(json: &Json, number: u8, partition: &KeyAttribute) -> Option<Index> {
    Some(Index {
        name: json["name"].as_str()?.to_owned(),
        number,
        partition: partition.clone(),
        sort: Some(KeyAttribute::from_json(&json["sort"])?),
        projection: Projection::from_json(&json["projection"])?,
        global: None,
    })
}

/// A global index.
pub fn global_from_json(json: &Json) -> Option<Index> {
    Some(Index {
        name: json["name"].as_str()?.to_owned(),
        number: u8::try_from(json["number"].as_u64()?).ok()?,
        partition: KeyAttribute::from_json(&json["partition"])?,
        sort: match &json["sort"] {
            Json::Null => None,
            sort => Some(KeyAttribute::from_json(sort)?),
        },
        projection: Projection::from_json(&json["projection"])?,
        global: Some(Global {
            status: Status::of(json["status"].as_str()?)?,
            throughput: match &json["throughput"] {
                Json::Null => None,
                units => Some((units[0].as_i64()?, units[1].as_i64()?)),
            },
        }),
    })
}

/// As DynamoDB describes it.
pub fn describe(index: &Index, table: &Table) -> Json {
    let roles = ["HASH", "RANGE"].into_iter().zip(index.keys());
    let schema = roles.map(|(role, key)| json!({"AttributeName": key.name, "KeyType": role}));
    let mut told = json!({
        "IndexName": index.name,
        "IndexArn": format!(
            "arn:aws:dynamodb:us-east-1:000000000000:table/{}/index/{}", table.name, index.name
        ),
        "KeySchema": schema.collect::<Vec<_>>(),
        "Projection": index.projection.to_json(),
        // Nobody counts them.
        "ItemCount": 0, "IndexSizeBytes": 0
    });
    if let Some(Global { status, throughput }) = index.global {
        let (reads, writes) = throughput.unwrap_or((0, 0));
        told["IndexStatus"] = json!(status.name());
        told["ProvisionedThroughput"] = json!({
            "NumberOfDecreasesToday": 0, "ReadCapacityUnits": reads, "WriteCapacityUnits": writes
        });
        if status == Status::Creating {
            told["Backfilling"] = json!(true);
        }
    }
    told
}

fn check_named(names: &[String]) -> std::result::Result<(), String> {
    if !(1..=NAMED_MAX).contains(&names.len()) {
        let count = names.len();
        return Err(format!(
            "NonKeyAttributes of an index has 1 to {NAMED_MAX} names, not {count}"
        ));
    }
    match names.iter().find(|name| !(1..=NAME_BYTES_MAX).contains(&name.len())) {
        Some(name) => Err(format!(
            "a name of NonKeyAttributes has 1 to {NAME_BYTES_MAX} bytes, not {}",
            name.len()
        )),
        None => Ok(()),
    }
}

/// Refuses indexes that project too many attributes by name, together.
pub fn check_named_together(table: &Table) -> Result<()> {
    let named = |index: &Index| match &index.projection {
        Projection::Include(names) => names.len(),
        Projection::All | Projection::KeysOnly => 0,
    };
    match table.indexes.iter().map(named).sum() {
        ..=NAMED_TOGETHER_MAX => Ok(()),
        count => Err(Fault::validation(format!(
            "One or more parameter values were invalid: NonKeyAttributes of all indexes of a table are \
             {NAMED_TOGETHER_MAX} at most, not {count}"
        ))),
    }
}

/// The `Projection` of a request.
pub fn projection_of(given: Option<&Json>) -> Result<Projection> {
    let invalid = |why: String| {
        Fault::validation(format!("One or more parameter values were invalid: {why}"))
    };
    let Some(given) = given else { return Err(invalid("Unknown ProjectionType: null".into())) };
    let given = json::to_struct(given, "Projection")?;
    let names = match given.get("NonKeyAttributes").filter(|names| !names.is_null()) {
        Some(names) => {
            let names = json::to_list(names)?.iter();
            Some(
                names
                    .map(|name| json::to_text(name).map(str::to_owned))
                    .collect::<Result<Vec<_>>>()?,
            )
        }
        None => None,
    };
    if let Some(names) = &names {
        check_named(names).map_err(invalid)?;
    }
    let kind = given
        .get("ProjectionType")
        .filter(|kind| !kind.is_null())
        .map(json::to_text)
        .transpose()?;
    match (kind, names) {
        (None, _) => Err(invalid("Unknown ProjectionType: null".into())),
        (Some("INCLUDE"), Some(names)) => Ok(Projection::Include(names)),
        (Some("INCLUDE"), None) => {
            Err(invalid("ProjectionType is INCLUDE, but NonKeyAttributes is not specified".into()))
        }
        (Some(kind), Some(_)) => {
            Err(invalid(format!("ProjectionType is {kind}, but NonKeyAttributes is specified")))
        }
        (Some("ALL"), None) => Ok(Projection::All),
        (Some("KEYS_ONLY"), None) => Ok(Projection::KeysOnly),
        (Some(kind), None) => Err(invalid(format!("Unknown ProjectionType: {kind}"))),
    }
}
