//! Which keys of a map a changed record is in. Pure.

use crate::map::{Cell, Map};
use holdfast_wire::table::RecordChange;
use serde_json::Value;
use std::collections::BTreeSet;

/// What a map calls a record's key; all other columns are fields of its value.
pub const KEY: &str = "key";

/// Whether a map's keys are made of records' values.
pub fn needs_values(map: &Map) -> bool {
    map.tables().any(|(_, columns)| columns.iter().any(|column| *column != KEY))
}

/// The keys of these changes, for records as they were and as they are; or why nobody knows them.
pub fn keys_of(
    map: &Map,
    table: &str,
    changes: &[RecordChange],
) -> Result<BTreeSet<Vec<u8>>, String> {
    let with_values = needs_values(map);
    let mut all = BTreeSet::new();
    for change in changes {
        // Keys that are made of no field, whether there is a record or not.
        all.extend(keys(map, table, &change.key, &Value::Null)?);
        for value in [&change.before, &change.after].into_iter().flatten().filter(|_| with_values) {
            let value = serde_json::from_slice(value).map_err(|e| {
                let key = change.key.escape_ascii();
                format!("record `{key}` of table `{table}` is no JSON, and the map names its fields: {e}")
            })?;
            all.extend(keys(map, table, &change.key, &value)?);
        }
    }
    Ok(all)
}

fn keys(map: &Map, table: &str, key: &[u8], value: &Value) -> Result<Vec<Vec<u8>>, String> {
    let mut wrong = None;
    let cell = |name: &str| match field(name, key, value) {
        Some(cell) => Some(cell),
        None => {
            wrong = Some(name.to_owned());
            None
        }
    };
    map.keys(table, cell).map_err(|name| {
        let (key, name) = (key.escape_ascii(), wrong.unwrap_or(name));
        format!(
            "field `{name}` of record `{key}` of table `{table}` is neither a text nor a whole number: a reader's key \
             of it is not known"
        )
    })
}

/// What a reader makes of a field; nothing of what may be written in several ways.
fn field(name: &str, key: &[u8], value: &Value) -> Option<Cell> {
    if name == KEY {
        return Some(Cell::Text(key.to_vec()));
    }
    match value.get(name) {
        None | Some(Value::Null) => Some(Cell::Null),
        Some(Value::String(text)) => Some(Cell::Text(text.as_bytes().to_vec())),
        Some(Value::Number(number)) if number.is_i64() || number.is_u64() => {
            Some(Cell::Text(number.to_string().into_bytes()))
        }
        Some(Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAP: &str = "[[keys]]\ntable = \"users\"\nkey = \"user:{key}\"\n\
        [[keys]]\ntable = \"users\"\nkey = \"in:{city}:{plan}\"\n";

    fn change(before: Option<&str>, after: Option<&str>) -> RecordChange {
        let bytes = |value: Option<&str>| value.map(|value| value.as_bytes().to_vec());
        RecordChange { key: b"alice".to_vec(), before: bytes(before), after: bytes(after) }
    }

    fn told(change: RecordChange) -> Result<String, String> {
        let map = Map::of_table(MAP, "users").unwrap();
        assert!(needs_values(&map));
        let keys = keys_of(&map, "users", &[change])?;
        Ok(String::from_utf8(keys.into_iter().collect::<Vec<_>>().join(&b' ')).unwrap())
    }

    #[test]
    fn a_record_is_in_the_keys_of_what_it_was_and_what_it_is() {
        let oslo = r#"{"city":"Oslo","plan":7}"#;
        let both = told(change(Some(oslo), Some(r#"{"plan":-8,"city":"Bergen","x":[1]}"#)));
        assert_eq!(both.unwrap(), "in:Bergen:-8 in:Oslo:7 user:alice");
        assert_eq!(told(change(Some(oslo), None)).unwrap(), "in:Oslo:7 user:alice");
        // No field, or a null, is in no key of it; and so is a key that no server takes.
        for other in
            ["{}", "1", "[]", r#"{"city":null,"plan":1}"#, r#"{"city":"Ny Oslo","plan":1}"#]
        {
            assert_eq!(told(change(None, Some(other))).unwrap(), "user:alice", "{other}");
        }
        // What readers may write in several ways, or not at all.
        for other in ["1.0", "true", "[1]", "{}", "1e3", "18446744073709551616"] {
            let value = format!("{{\"city\":\"Oslo\",\"plan\":{other}}}");
            let why = told(change(None, Some(&value))).unwrap_err();
            assert!(why.contains("`plan`") && why.contains("`alice`"), "{why}");
        }
        assert!(told(change(Some("\u{1}"), None)).unwrap_err().contains("no JSON"));
    }

    #[test]
    fn a_map_of_keys_alone_needs_no_values() {
        let map = "[[keys]]\ntable = \"users\"\nkey = \"user:{key}\"\n";
        let map = Map::of_table(map, "users").unwrap();
        assert!(!needs_values(&map));
        let keys = keys_of(&map, "users", &[change(Some("\u{1}"), None)]).unwrap();
        assert_eq!(keys.into_iter().collect::<Vec<_>>(), [b"user:alice"]);
        let other = Map::of_table(MAP, "people").unwrap_err().message;
        assert!(other.contains("`users`") && other.contains("`people`"), "{other}");
    }
}
