//! A table's description: its key, and what was said of it when it was made. Pure.

use crate::fault::{Fault, Result};
use crate::value::{Item, Value};
use crate::{json, key};
use holdfast_base::{Error, Kind};
use serde_json::{Value as Json, json};

/// Of the description's form, docs/formats/dynamo.md.
const VERSION: u64 = 1;
const MISFIT: &str = "The provided key element does not match the schema";

/// An attribute of the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyAttribute {
    /// Its name.
    pub name: String,
    /// `S`, `N` or `B`.
    pub kind: String,
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
}

impl Table {
    /// The bytes that a store keeps.
    pub fn to_bytes(&self) -> Vec<u8> {
        let attribute = |key: &KeyAttribute| json!({"name": key.name, "type": key.kind});
        let document = json!({
            "version": VERSION, "name": self.name, "id": self.id, "created_ms": self.created_ms,
            "partition": attribute(&self.partition), "sort": self.sort.as_ref().map(attribute),
            "throughput": self.throughput, "ttl": self.ttl
        });
        document.to_string().into_bytes()
    }

    /// Reads the bytes that a store kept.
    pub fn from_bytes(bytes: &[u8]) -> holdfast_base::Result<Table> {
        let corrupt = || Error::new(Kind::Corrupt, "read a table's description: it is none");
        let document: Json = serde_json::from_slice(bytes).map_err(|_| corrupt())?;
        let version = document["version"].as_u64().ok_or_else(corrupt)?;
        if version != VERSION {
            return Err(Error::new(
                Kind::Unsupported,
                format!("read a table's description: it has version {version}, not {VERSION}"),
            ));
        }
        let text = |json: &Json| json.as_str().map(str::to_owned);
        let attribute = |json: &Json| {
            Some(KeyAttribute { name: text(&json["name"])?, kind: text(&json["type"])? })
        };
        let read = || {
            Some(Table {
                name: text(&document["name"])?,
                id: text(&document["id"])?,
                created_ms: document["created_ms"].as_u64()?,
                partition: attribute(&document["partition"])?,
                sort: match &document["sort"] {
                    Json::Null => None,
                    sort => Some(attribute(sort)?),
                },
                throughput: match &document["throughput"] {
                    Json::Null => None,
                    units => Some((units[0].as_i64()?, units[1].as_i64()?)),
                },
                ttl: text(&document["ttl"]),
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
        let kinds = keys().map(|k| json!({"AttributeName": k.name, "AttributeType": k.kind}));
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
        told
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
        };
        let golden = br#"{"created_ms":7,"id":"0","name":"orders","partition":{"name":"p","type":"S"},"sort":{"name":"s","type":"N"},"throughput":[1,2],"ttl":"t","version":1}"#;
        assert_eq!(table.to_bytes(), golden);
        assert_eq!(Table::from_bytes(golden).unwrap(), table);
        let plain = Table { sort: None, throughput: None, ttl: None, ..table };
        assert_eq!(Table::from_bytes(&plain.to_bytes()).unwrap(), plain);
        for (bytes, kind) in [
            (&b"{}"[..], Kind::Corrupt),
            (b"x", Kind::Corrupt),
            (br#"{"version":1}"#, Kind::Corrupt),
            (br#"{"version":2}"#, Kind::Unsupported),
        ] {
            assert_eq!(Table::from_bytes(bytes).unwrap_err().kind, kind);
        }
    }
}
