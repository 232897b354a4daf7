//! DynamoDB's JSON form of values, both ways. What has the wrong shape is refused at once, what has
//! a wrong value is noted: of a whole request, shapes are told before values. Pure.

use crate::decimal::Decimal;
use crate::fault::{Fault, Result};
use crate::value::{Item, NAME_BYTES_MAX, NESTING_MAX, Value};
use serde_json::{Map, Value as Json};
use std::collections::BTreeSet;

/// What was read, and the first thing that is wrong with its values.
#[derive(Clone, Debug, PartialEq)]
pub struct Read<T> {
    /// As far as it is right.
    pub value: T,
    /// DynamoDB's sentence.
    pub wrong: Option<String>,
}

impl<T> Read<T> {
    /// The value, if nothing is wrong with it.
    pub fn checked(self) -> Result<T> {
        match self.wrong {
            Some(wrong) => Err(Fault::validation(wrong)),
            None => Ok(self.value),
        }
    }
}

/// Reads an item or a key.
pub fn to_item(json: &Json) -> Result<Read<Item>> {
    let mut reader = Reader { wrong: None };
    let value = reader.item(json, "AttributeValue", 0)?;
    Ok(Read { value, wrong: reader.wrong })
}

/// Reads one value.
pub fn to_value(json: &Json) -> Result<Read<Value>> {
    let mut reader = Reader { wrong: None };
    let value = reader.value(json, 0)?;
    Ok(Read { value, wrong: reader.wrong })
}

/// Writes an item or a key.
pub fn put_item(out: &mut String, item: &Item) {
    let pair = |out: &mut String, (name, value): (&String, &Value)| {
        put_text(out, name);
        out.push(':');
        put_value(out, value);
    };
    put_all(out, ['{', '}'], item, pair);
}

/// Writes one value.
pub fn put_value(out: &mut String, value: &Value) {
    out.push('{');
    put_text(out, value.kind());
    out.push(':');
    put_content(out, value);
    out.push('}');
}

/// Writes a value without its type.
pub fn put_content(out: &mut String, value: &Value) {
    match value {
        Value::S(text) => put_text(out, text),
        Value::N(number) => put_number(out, number),
        Value::B(bytes) => put_bytes(out, bytes),
        Value::Bool(truth) => out.push_str(if *truth { "true" } else { "false" }),
        Value::Null => out.push_str("true"),
        Value::M(map) => put_item(out, map),
        Value::L(list) => put_all(out, LIST, list, put_value),
        Value::Ss(set) => put_all(out, LIST, set, |out, text| put_text(out, text)),
        Value::Ns(set) => put_all(out, LIST, set, put_number),
        Value::Bs(set) => put_all(out, LIST, set, |out, bytes| put_bytes(out, bytes)),
    }
}

/// What stands around a list.
pub const LIST: [char; 2] = ['[', ']'];

/// Writes several, with what stands around them.
pub fn put_all<T>(
    out: &mut String,
    [begin, end]: [char; 2],
    all: impl IntoIterator<Item = T>,
    put: impl Fn(&mut String, T),
) {
    out.push(begin);
    for (at, one) in all.into_iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        put(out, one);
    }
    out.push(end);
}

/// Writes a string, in quotes.
pub fn put_text(out: &mut String, text: &str) {
    out.push('"');
    // What needs no escape goes as it is, at once.
    let mut from = 0;
    for (at, byte) in text.bytes().enumerate() {
        let escape = match byte {
            b'"' => "\\\"",
            b'\\' => "\\\\",
            b'\n' => "\\n",
            b'\r' => "\\r",
            b'\t' => "\\t",
            0x08 => "\\b",
            0x0c => "\\f",
            0..0x20 => "",
            _ => continue,
        };
        out.push_str(&text[from..at]);
        match escape {
            "" => out.push_str(&format!("\\u{byte:04x}")),
            escape => out.push_str(escape),
        }
        from = at + 1;
    }
    out.push_str(&text[from..]);
    out.push('"');
}

fn put_number(out: &mut String, number: &Decimal) {
    out.push('"');
    out.push_str(&number.to_string());
    out.push('"');
}

fn put_bytes(out: &mut String, bytes: &[u8]) {
    out.push('"');
    base64_simd::STANDARD.encode_append(bytes, out);
    out.push('"');
}

/// What is said of something that is there in the wrong shape. `collection` is said of a list.
pub fn wrong_shape(json: &Json, kind: &str, collection: &str) -> Fault {
    let what = match json {
        Json::Bool(true) => "TRUE_VALUE",
        Json::Bool(false) => "FALSE_VALUE",
        Json::Number(number) if number.is_f64() => "DECIMAL_VALUE",
        Json::Number(_) => "NUMBER_VALUE",
        Json::String(_) => "STRING_VALUE",
        Json::Array(_) => {
            return Fault::shape(format!("Unrecognized collection type {collection}"));
        }
        Json::Object(_) | Json::Null => {
            return Fault::shape("Start of structure or map found where not expected");
        }
    };
    Fault::shape(format!("{what} cannot be converted to {kind}"))
}

/// A string of a request.
pub fn to_text(json: &Json) -> Result<&str> {
    json.as_str().ok_or_else(|| wrong_shape(json, "String", "class java.lang.String"))
}

/// A truth value of a request; some words stand for one.
pub fn to_bool(json: &Json) -> Result<bool> {
    match json {
        Json::Bool(truth) => Ok(*truth),
        Json::String(text) => match text.to_ascii_uppercase().as_str() {
            "TRUE" | "1" | "YES" => Ok(true),
            "FALSE" | "0" | "NO" => Ok(false),
            _ => Err(Fault::shape("Unexpected token received from parser")),
        },
        _ => Err(wrong_shape(json, "Boolean", "class java.lang.Boolean")),
    }
}

/// A whole number of a request; fractions are cut off.
pub fn to_integer(json: &Json) -> Result<i64> {
    match json {
        Json::Number(number) => {
            Ok(number.as_i64().or(number.as_f64().map(|float| float.floor() as i64)).unwrap_or(0))
        }
        _ => Err(wrong_shape(json, "Integer", "class java.lang.Integer")),
    }
}

/// A list of a request.
pub fn to_list(json: &Json) -> Result<&[Json]> {
    match json {
        Json::Array(list) => Ok(list),
        Json::Object(_) => Err(Fault::shape("Start of structure or map found where not expected")),
        _ => Err(Fault::shape("Unexpected field type")),
    }
}

/// A map of a request, whose values DynamoDB calls `kind`.
pub fn to_map<'a>(json: &'a Json, kind: &str) -> Result<&'a Map<String, Json>> {
    match json {
        Json::Object(map) => Ok(map),
        Json::Array(_) => {
            let package = if kind.contains('.') { "" } else { "com.amazonaws.dynamodb.v20120810." };
            Err(Fault::shape(format!(
                "Unrecognized collection type java.util.Map<java.lang.String, {package}{kind}>"
            )))
        }
        _ => Err(Fault::shape("Unexpected field type")),
    }
}

/// A structure of a request, which DynamoDB calls `kind`.
pub fn to_struct<'a>(json: &'a Json, kind: &str) -> Result<&'a Map<String, Json>> {
    match json {
        Json::Object(map) => Ok(map),
        Json::Array(_) => Err(Fault::shape(format!(
            "Unrecognized collection type class com.amazonaws.dynamodb.v20120810.{kind}"
        ))),
        _ => Err(Fault::shape("Unexpected value type in payload")),
    }
}

struct Reader {
    wrong: Option<String>,
}

impl Reader {
    fn note(&mut self, wrong: impl Into<String>) {
        if self.wrong.is_none() {
            self.wrong = Some(wrong.into());
        }
    }

    fn item(&mut self, json: &Json, kind: &str, depth: usize) -> Result<Item> {
        let map = to_map(json, kind)?;
        let there = map.iter().filter(|(_, value)| !value.is_null());
        if there.clone().any(|(name, _)| name.len() > NAME_BYTES_MAX) {
            self.note(format!(
                "One or more parameter values were invalid: Attribute name is too large, must have at most \
                 {NAME_BYTES_MAX} bytes"
            ));
        }
        there.map(|(name, value)| Ok((name.clone(), self.value(value, depth)?))).collect()
    }

    /// Each type that is there is read, so that all shapes are looked at; the last one stays.
    fn value(&mut self, json: &Json, depth: usize) -> Result<Value> {
        const KINDS: [&str; 10] = ["S", "B", "N", "BOOL", "NULL", "BS", "NS", "SS", "L", "M"];
        let map = to_struct(json, "AttributeValue")?;
        if depth > NESTING_MAX {
            self.note(
                "Nesting Levels have exceeded supported limits: Attributes in the item have \
                 nested levels beyond supported limit",
            );
            return Ok(Value::Null);
        }
        let mut found = None;
        let mut count = 0;
        for kind in KINDS {
            if let Some(value) = map.get(kind).filter(|value| !value.is_null()) {
                count += 1;
                found = Some(self.kind(kind, value, depth)?);
            }
        }
        match count {
            0 => self.note(
                "Supplied AttributeValue is empty, must contain exactly one of the supported \
                 datatypes",
            ),
            1 => {}
            _ => self.note(
                "Supplied AttributeValue has more than one datatypes set, must contain exactly \
                 one of the supported datatypes",
            ),
        }
        Ok(found.unwrap_or(Value::Null))
    }

    fn kind(&mut self, kind: &str, json: &Json, depth: usize) -> Result<Value> {
        Ok(match kind {
            "S" => Value::S(to_text(json)?.to_owned()),
            "B" => Value::B(to_bytes(json)?),
            "N" => Value::N(self.number(to_text(json)?)),
            "BOOL" => Value::Bool(to_bool(json)?),
            "NULL" => {
                if !to_bool(json)? {
                    self.note(
                        "One or more parameter values were invalid: Null attribute value types \
                         must have the value of true",
                    );
                }
                Value::Null
            }
            "BS" => self.byte_set(to_list(json)?)?,
            "NS" => self.number_set(to_list(json)?)?,
            "SS" => self.string_set(to_list(json)?)?,
            "L" => {
                let list = to_list(json)?.iter();
                Value::L(list.map(|value| self.value(value, depth + 1)).collect::<Result<_>>()?)
            }
            _ => Value::M(self.item(json, "AttributeValue", depth + 1)?),
        })
    }

    fn number(&mut self, text: &str) -> Decimal {
        Decimal::parse(text).unwrap_or_else(|wrong| {
            self.note(wrong.message(text));
            Decimal::ZERO
        })
    }

    fn byte_set(&mut self, list: &[Json]) -> Result<Value> {
        let bytes = list.iter().map(to_bytes).collect::<Result<Vec<_>>>()?;
        let set: BTreeSet<Vec<u8>> = bytes.into_iter().collect();
        if list.is_empty() {
            self.note("One or more parameter values were invalid: Binary sets should not be empty");
        } else if set.len() < list.len() {
            self.note(format!(
                "One or more parameter values were invalid: Input collection {}of type BS \
                 contains duplicates.",
                told(list)
            ));
        }
        Ok(Value::Bs(set))
    }

    fn number_set(&mut self, list: &[Json]) -> Result<Value> {
        let texts = list.iter().map(to_text).collect::<Result<Vec<_>>>()?;
        if list.is_empty() {
            self.note("One or more parameter values were invalid: An number set  may not be empty");
        }
        let set: BTreeSet<Decimal> = texts.into_iter().map(|text| self.number(text)).collect();
        if set.len() < list.len() {
            self.note("Input collection contains duplicates");
        }
        Ok(Value::Ns(set))
    }

    fn string_set(&mut self, list: &[Json]) -> Result<Value> {
        let texts = list.iter().map(to_text).collect::<Result<Vec<_>>>()?;
        let set: BTreeSet<String> = texts.into_iter().map(str::to_owned).collect();
        if list.is_empty() {
            self.note("One or more parameter values were invalid: An string set  may not be empty");
        } else if set.len() < list.len() {
            self.note(format!(
                "One or more parameter values were invalid: Input collection {} contains \
                 duplicates.",
                told(list)
            ));
        }
        Ok(Value::Ss(set))
    }
}

fn told(list: &[Json]) -> String {
    let texts: Vec<&str> = list.iter().filter_map(Json::as_str).collect();
    format!("[{}]", texts.join(", "))
}

fn to_bytes(json: &Json) -> Result<Vec<u8>> {
    let text = match json {
        Json::String(text) => text,
        Json::Array(_) => {
            return Err(Fault::shape("Unrecognized collection type class java.nio.ByteBuffer"));
        }
        Json::Object(_) => {
            return Err(Fault::shape("Start of structure or map found where not expected"));
        }
        _ => {
            return Err(Fault::shape("only base-64-encoded strings are convertible to bytes"));
        }
    };
    if !text.len().is_multiple_of(4) {
        return Err(Fault::shape(format!(
            "Base64 encoded length is expected a multiple of 4 bytes but found: {}",
            text.len()
        )));
    }
    let bytes = base64_simd::STANDARD.decode_to_vec(text.as_bytes());
    bytes.map_err(|_| Fault::shape("Invalid last non-pad Base64 character dectected"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::Type;
    use serde_json::json;

    #[test]
    fn strings_are_written_as_the_library_writes_them() {
        let all: String = (0..0x180u32).filter_map(char::from_u32).collect();
        for text in [&all, "", "\u{2028}\u{ffff}\u{10ffff}", "plain", "\"", "a\\"] {
            let mut out = String::new();
            put_text(&mut out, text);
            assert_eq!(out, Json::from(text).to_string());
        }
    }

    #[test]
    fn values_come_back_in_their_canonical_form() {
        let given = json!({
            "s": {"S": "\u{0}x"}, "n": {"N": "01.50e1"}, "b": {"B": "AAEC"}, "t": {"BOOL": true},
            "z": {"NULL": true}, "m": {"M": {"l": {"L": [{"N": "1"}, {"S": ""}]}}},
            "ss": {"SS": ["b", "a"]}, "ns": {"NS": ["10", "9"]}, "bs": {"BS": ["/w==", ""]},
            "left": null
        });
        let item = to_item(&given).unwrap().checked().unwrap();
        let mut text = String::new();
        put_item(&mut text, &item);
        let written: Json = serde_json::from_str(&text).unwrap();
        // As the library writes it.
        assert_eq!(text, written.to_string());
        assert_eq!(written["n"], json!({"N": "15"}));
        assert_eq!(written["ss"], json!({"SS": ["a", "b"]}));
        assert_eq!(written["ns"], json!({"NS": ["9", "10"]}));
        assert_eq!(written["left"], Json::Null);
        assert_eq!(to_item(&written).unwrap().checked().unwrap(), item);
    }

    #[test]
    fn wrong_values_are_told_as_dynamodb_tells_them() {
        let told = |value: Json| to_value(&value).unwrap().wrong.unwrap_or_default();
        for (value, part) in [
            (json!({}), "is empty, must contain exactly one"),
            (json!({"S": "a", "N": "1"}), "more than one datatypes set"),
            (json!({"N": ""}), "cannot be converted to a numeric value"),
            (json!({"N": "b"}), "cannot be converted to a numeric value: b"),
            (json!({"N": "1e126"}), "Number overflow"),
            (json!({"NULL": false}), "must have the value of true"),
            (json!({"SS": []}), "An string set  may not be empty"),
            (json!({"SS": ["a", "a"]}), "Input collection [a, a] contains duplicates."),
            (json!({"NS": ["1", "1.0"]}), "Input collection contains duplicates"),
            (json!({"BS": ["", ""]}), "of type BS contains duplicates."),
            (json!({"L": [{"M": {"a": {"N": "x"}}}]}), "numeric value: x"),
        ] {
            assert!(told(value.clone()).contains(part), "{value}: {}", told(value.clone()));
        }
        let named = |bytes: usize| told(json!({"M": {"x".repeat(bytes): {"S": ""}}}));
        assert!(named(65_535).is_empty() && named(65_536).contains("at most 65535 bytes"));
        let nested = |levels: usize| (0..levels).fold(json!({"S": "x"}), |v, _| json!({"L": [v]}));
        assert_eq!(told(nested(32)), "");
        assert!(told(nested(33)).contains("Nesting Levels"));
    }

    #[test]
    fn wrong_shapes_are_refused_before_wrong_values() {
        for value in [
            json!(1),
            json!([]),
            json!({"S": 1}),
            json!({"B": "a"}),
            json!({"B": "a==="}),
            json!({"L": {}}),
            json!({"M": []}),
            json!({"SS": "a"}),
            json!({"BOOL": 1}),
            json!({"N": "x", "SS": [1]}),
            json!({"N": 1}),
        ] {
            assert_eq!(to_value(&value).unwrap_err().kind, Type::Serialization, "{value}");
        }
    }
}
