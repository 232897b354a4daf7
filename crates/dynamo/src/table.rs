//! A table's description: its key, and what was said of it when it was made. Pure.

use crate::fault::{Fault, Result};
use crate::index::{self, Index};
use crate::value::{Item, Value};
use crate::{json, key};
use holdfast_base::{Error, Kind};
use serde_json::{Value as Json, json};

/// Of the description's form, docs/formats/dynamo.md.
const VERSION: u64 = 1;
/// And of one that says of local indexes: whoever does not know of them must not write to the table.
const WITH_INDEXES: u64 = 2;
/// And of one with global indexes, or that had some.
const WITH_GLOBAL: u64 = 3;
/// The number of a table's first global index: those of local ones are their places.
pub const GLOBAL_FROM: u8 = 5;
const MISFIT: &str = "The provided key element does not match the schema";

/// An attribute of the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyAttribute {
    /// Its name.
    pub name: String,
    /// `S`, `N` or `B`.
    pub kind: String,
}

impl KeyAttribute {
    fn to_json(&self) -> Json {
        json!({"name": self.name, "type": self.kind})
    }

    /// As a description of the table has it.
    pub fn from_json(json: &Json) -> Option<KeyAttribute> {
        let text = |json: &Json| json.as_str().map(str::to_owned);
        Some(KeyAttribute { name: text(&json["name"])?, kind: text(&json["type"])? })
    }
}

/// A table.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Its name.
    pub name: String,
    /// No other table has it, also none of the same name.
    pub id: String,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: u64,
    /// The partition key.
    pub partition: KeyAttribute,
    /// The sort key.
    pub sort: Option<KeyAttribute>,
    /// Units of reading and of writing that it was made with; none for payment by request. They
    /// limit nothing.
    pub throughput: Option<(i64, i64)>,
    /// The attribute whose time in the past lets an item go.
    pub ttl: Option<String>,
    /// Its indexes, local ones first.
    pub indexes: Vec<Index>,
    /// The number of its next global index. Numbers are taken in turn, so that whoever still reads by one that is gone
    /// meets no other index.
    pub next_index: u8,
}

impl Table {
    /// The bytes that a store keeps.
    pub fn to_bytes(&self) -> Vec<u8> {
        let of = |is_global: bool| -> Vec<Json> {
            let all = self.indexes.iter().filter(|index| index.global.is_some() == is_global);
            all.map(index::to_json).collect()
        };
        let (local, global) = (of(false), of(true));
        let version = match self.next_index {
            GLOBAL_FROM if local.is_empty() => VERSION,
            GLOBAL_FROM => WITH_INDEXES,
            _ => WITH_GLOBAL,
        };
        let mut document = json!({
            "version": version, "name": self.name, "id": self.id, "created_ms": self.created_ms,
            "partition": self.partition.to_json(),
            "sort": self.sort.as_ref().map(KeyAttribute::to_json),
            "throughput": self.throughput, "ttl": self.ttl
        });
        if version >= WITH_INDEXES {
            document["indexes"] = json!(local);
        }
        if version >= WITH_GLOBAL {
            document["global"] = json!(global);
            document["next_index"] = json!(self.next_index);
        }
        document.to_string().into_bytes()
    }

    /// Reads the bytes that a store kept.
    pub fn from_bytes(bytes: &[u8]) -> holdfast_base::Result<Table> {
        let corrupt = || Error::new(Kind::Corrupt, "read a table's description: it is none");
        let document: Json = serde_json::from_slice(bytes).map_err(|_| corrupt())?;
        let version = document["version"].as_u64().ok_or_else(corrupt)?;
        if !(VERSION..=WITH_GLOBAL).contains(&version) {
            return Err(Error::new(
                Kind::Unsupported,
                format!(
                    "read a table's description: it has version {version}, not up to {WITH_GLOBAL}"
                ),
            ));
        }
        let text = |json: &Json| json.as_str().map(str::to_owned);
        let read = || {
            let partition = KeyAttribute::from_json(&document["partition"])?;
            Some(Table {
                name: text(&document["name"])?,
                id: text(&document["id"])?,
                created_ms: document["created_ms"].as_u64()?,
                sort: match &document["sort"] {
                    Json::Null => None,
                    sort => Some(KeyAttribute::from_json(sort)?),
                },
                throughput: match &document["throughput"] {
                    Json::Null => None,
                    units => Some((units[0].as_i64()?, units[1].as_i64()?)),
                },
                ttl: text(&document["ttl"]),
                indexes: indexes_of(&document, version, &partition)?,
                next_index: match version {
                    WITH_GLOBAL => u8::try_from(document["next_index"].as_u64()?).ok()?,
                    _ => GLOBAL_FROM,
                },
                partition,
            })
        };
        read().ok_or_else(corrupt)
    }

    /// As DynamoDB describes it.
    pub fn describe(&self, status: &str) -> Json {
        let keys = || std::iter::once(&self.partition).chain(&self.sort);
        let role = |i: usize| if i == 0 { "HASH" } else { "RANGE" };
        let schema = keys().enumerate();
        let schema = schema.map(|(i, k)| json!({"AttributeName": k.name, "KeyType": role(i)}));
        let mut defined: Vec<&KeyAttribute> = Vec::new();
        for key in keys().chain(self.indexes.iter().flat_map(Index::keys)) {
            if !defined.iter().any(|other| other.name == key.name) {
                defined.push(key);
            }
        }
        let kind = |k: &&KeyAttribute| json!({"AttributeName": k.name, "AttributeType": k.kind});
        let kinds = defined.iter().map(kind);
        let (reads, writes) = self.throughput.unwrap_or((0, 0));
        let mut told = json!({
            "TableName": self.name, "TableStatus": status, "TableId": self.id,
            "TableArn": format!("arn:aws:dynamodb:us-east-1:000000000000:table/{}", self.name),
            "CreationDateTime": self.created_ms as f64 / 1000.0,
            "KeySchema": schema.collect::<Vec<_>>(),
            "AttributeDefinitions": kinds.collect::<Vec<_>>(),
            "ProvisionedThroughput": {
                "NumberOfDecreasesToday": 0, "ReadCapacityUnits": reads, "WriteCapacityUnits": writes
            },
            // Nobody counts them.
            "ItemCount": 0, "TableSizeBytes": 0
        });
        if self.throughput.is_none() {
            told["BillingModeSummary"] = json!({"BillingMode": "PAY_PER_REQUEST"});
        }
        for (part, is_global) in
            [("LocalSecondaryIndexes", false), ("GlobalSecondaryIndexes", true)]
        {
            let all = self.indexes.iter().filter(|index| index.global.is_some() == is_global);
            let all: Vec<Json> = all.map(|one| index::describe(one, self)).collect();
            if !all.is_empty() {
                told[part] = json!(all);
            }
        }
        told
    }

    /// The index of a name.
    pub fn index(&self, name: &str) -> Option<&Index> {
        self.indexes.iter().find(|index| index.name == name)
    }

    /// A number for another global index.
    pub fn take_number(&mut self) -> u8 {
        loop {
            let number = self.next_index;
            self.next_index = number.checked_add(1).unwrap_or(GLOBAL_FROM + 1);
            if self.indexes.iter().all(|index| index.number != number) {
                return number;
            }
        }
    }

    /// The attributes of its key.
    pub fn keys(&self) -> impl Iterator<Item = &KeyAttribute> {
        std::iter::once(&self.partition).chain(&self.sort)
    }

    /// The bytes of a key that is given by itself.
    pub fn key_of(&self, key: &Item) -> Result<Vec<u8>> {
        if key.len() != self.keys().count() {
            return Err(Fault::validation(MISFIT));
        }
        for attribute in self.keys() {
            let found = key.get(&attribute.name).filter(|value| value.kind() == attribute.kind);
            let value = found.ok_or_else(|| Fault::validation(MISFIT))?;
            self.check_size(attribute, value, "were invalid:")?;
        }
        self.bytes(key)
    }

    /// The bytes of an item's key.
    pub fn key_of_item(&self, item: &Item) -> Result<Vec<u8>> {
        for attribute in self.keys() {
            let (name, kind) = (&attribute.name, &attribute.kind);
            let wrong = match item.get(name) {
                None => format!("Missing the key {name} in the item"),
                Some(value) if value.kind() != kind => format!(
                    "Type mismatch for key {name} expected: {kind} actual: {}",
                    value.kind()
                ),
                Some(value) => {
                    self.check_size(attribute, value, "are not valid.")?;
                    continue;
                }
            };
            return Err(Fault::validation(format!(
                "One or more parameter values were invalid: {wrong}"
            )));
        }
        index::check(self, item)?;
        self.bytes(item)
    }

    /// The key's attributes of an item.
    pub fn key_in(&self, item: &Item) -> Item {
        let found = |key: &KeyAttribute| Some((key.name.clone(), item.get(&key.name)?.clone()));
        self.keys().filter_map(found).collect()
    }

    fn bytes(&self, item: &Item) -> Result<Vec<u8>> {
        let sort = self.sort.as_ref().and_then(|sort| item.get(&sort.name));
        let partition = item.get(&self.partition.name);
        let bytes = partition.and_then(|partition| key::of(partition, sort));
        bytes.ok_or_else(|| Fault::validation(MISFIT))
    }

    fn check_size(&self, attribute: &KeyAttribute, value: &Value, are: &str) -> Result<()> {
        let (len, what) = match value {
            Value::S(text) => (text.len(), "string"),
            Value::B(bytes) => (bytes.len(), "binary"),
            _ => return Ok(()),
        };
        let is_partition = attribute == &self.partition;
        let wrong = match len {
            0 => format!(
                "One or more parameter values {are} The AttributeValue for a key attribute cannot \
                 contain an empty {what} value. Key: {}",
                attribute.name
            ),
            2049.. if is_partition => "One or more parameter values were invalid: Size of hashkey \
                                       has exceeded the maximum size limit of2048 bytes"
                .into(),
            1025.. if !is_partition => "One or more parameter values were invalid: Aggregated \
                                        size of all range keys has exceeded the size limit of \
                                        1024 bytes"
                .into(),
            _ => return Ok(()),
        };
        Err(Fault::validation(wrong))
    }
}

fn indexes_of(document: &Json, version: u64, partition: &KeyAttribute) -> Option<Vec<Index>> {
    let list = |name: &str, from: u64| match version >= from {
        true => document[name].as_array().map(Vec::as_slice),
        false => Some(&[][..]),
    };
    let local = (0u8..).zip(list("indexes", WITH_INDEXES)?);
    let local = local.map(|(number, json)| index::local_from_json(json, number, partition));
    let global = list("global", WITH_GLOBAL)?.iter().map(index::global_from_json);
    local.chain(global).collect()
}

/// Names that tables may have, as DynamoDB writes it.
pub const NAME_PATTERN: &str = "[a-zA-Z0-9_.-]+";

/// Whether a name fits [`NAME_PATTERN`].
pub fn is_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    !name.is_empty() && name.bytes().all(fits)
}

/// A structure of a request as an option; null is none.
pub fn part<'a>(json: &'a Json, name: &str) -> Result<Option<&'a serde_json::Map<String, Json>>> {
    match &json[name] {
        Json::Null => Ok(None),
        part => json::to_struct(part, name).map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::{Global, Projection, Status};

    /// Whoever still reads by the number of an index that is gone meets no other one.
    #[test]
    fn numbers_of_indexes_are_taken_in_turn() {
        let key = KeyAttribute { name: "p".into(), kind: "S".into() };
        let mut table = Table {
            name: "t".into(),
            id: "0".into(),
            created_ms: 0,
            partition: key.clone(),
            sort: None,
            throughput: None,
            ttl: None,
            indexes: Vec::new(),
            next_index: GLOBAL_FROM,
        };
        let mut taken = Vec::new();
        for round in 0..600 {
            let number = table.take_number();
            assert!(taken.iter().rev().take(200).all(|other| *other != number), "{round}");
            assert!(number >= GLOBAL_FROM && table.next_index != GLOBAL_FROM);
            taken.push(number);
            // One that stays keeps its number to itself.
            if round == 0 {
                table.indexes.push(Index {
                    name: "stays".into(),
                    number,
                    partition: key.clone(),
                    sort: None,
                    projection: Projection::All,
                    global: None,
                });
            }
            assert!(round == 0 || number != taken[0]);
        }
    }

    #[test]
    fn a_description_is_what_the_page_says() {
        let key = |name: &str, kind: &str| KeyAttribute { name: name.into(), kind: kind.into() };
        let table = Table {
            name: "orders".into(),
            id: "0".into(),
            created_ms: 7,
            partition: key("p", "S"),
            sort: Some(key("s", "N")),
            throughput: Some((1, 2)),
            ttl: Some("t".into()),
            indexes: Vec::new(),
            next_index: GLOBAL_FROM,
        };
        let golden = br#"{"created_ms":7,"id":"0","name":"orders","partition":{"name":"p","type":"S"},"sort":{"name":"s","type":"N"},"throughput":[1,2],"ttl":"t","version":1}"#;
        assert_eq!(table.to_bytes(), golden);
        assert_eq!(Table::from_bytes(golden).unwrap(), table);
        let plain = Table { sort: None, throughput: None, ttl: None, ..table.clone() };
        assert_eq!(Table::from_bytes(&plain.to_bytes()).unwrap(), plain);
        let local = |(number, (name, projection)): (u8, (&str, Projection))| Index {
            name: name.into(),
            number,
            partition: key("p", "S"),
            sort: Some(key("x", "S")),
            projection,
            global: None,
        };
        let named = [
            ("all", Projection::All),
            ("keys", Projection::KeysOnly),
            ("some", Projection::Include(vec!["a".into()])),
        ];
        let indexes = (0..).zip(named).map(local).collect();
        let indexed = Table { ttl: None, throughput: None, indexes, ..table };
        let golden = br#"{"created_ms":7,"id":"0","indexes":[{"name":"all","projection":{"ProjectionType":"ALL"},"sort":{"name":"x","type":"S"}},{"name":"keys","projection":{"ProjectionType":"KEYS_ONLY"},"sort":{"name":"x","type":"S"}},{"name":"some","projection":{"NonKeyAttributes":["a"],"ProjectionType":"INCLUDE"},"sort":{"name":"x","type":"S"}}],"name":"orders","partition":{"name":"p","type":"S"},"sort":{"name":"s","type":"N"},"throughput":null,"ttl":null,"version":2}"#;
        assert_eq!(String::from_utf8_lossy(&indexed.to_bytes()), String::from_utf8_lossy(golden));
        assert_eq!(Table::from_bytes(golden).unwrap(), indexed);
        let global = |number, name: &str, sort, status| Index {
            name: name.into(),
            number,
            partition: key("y", "B"),
            sort,
            projection: Projection::KeysOnly,
            global: Some(Global { status, throughput: (number == 6).then_some((3, 4)) }),
        };
        let mut indexes = vec![indexed.indexes[0].clone()];
        indexes.push(global(5, "by_y", None, Status::Active));
        indexes.push(global(6, "by_yz", Some(key("z", "N")), Status::Creating));
        let indexed = Table { indexes, next_index: 9, ..indexed };
        let golden = br#"{"created_ms":7,"global":[{"name":"by_y","number":5,"partition":{"name":"y","type":"B"},"projection":{"ProjectionType":"KEYS_ONLY"},"sort":null,"status":"ACTIVE","throughput":null},{"name":"by_yz","number":6,"partition":{"name":"y","type":"B"},"projection":{"ProjectionType":"KEYS_ONLY"},"sort":{"name":"z","type":"N"},"status":"CREATING","throughput":[3,4]}],"id":"0","indexes":[{"name":"all","projection":{"ProjectionType":"ALL"},"sort":{"name":"x","type":"S"}}],"name":"orders","next_index":9,"partition":{"name":"p","type":"S"},"sort":{"name":"s","type":"N"},"throughput":null,"ttl":null,"version":3}"#;
        assert_eq!(String::from_utf8_lossy(&indexed.to_bytes()), String::from_utf8_lossy(golden));
        assert_eq!(Table::from_bytes(golden).unwrap(), indexed);
        for (bytes, kind) in [
            (&b"{}"[..], Kind::Corrupt),
            (b"x", Kind::Corrupt),
            (br#"{"version":1}"#, Kind::Corrupt),
            (br#"{"version":2}"#, Kind::Corrupt),
            (br#"{"version":3}"#, Kind::Corrupt),
            (br#"{"version":4}"#, Kind::Unsupported),
        ] {
            assert_eq!(Table::from_bytes(bytes).unwrap_err().kind, kind);
        }
    }
}
