//! What an index knows a JSON value by: the text of one of its fields, or of each element of a list.

use super::fields::find;
use serde_json::value::RawValue;
use std::borrow::Cow;

/// Bytes of a value that is indexed; a longer one is in no index. It is asked for in a request.
pub const INDEXED_BYTES_MAX: usize = 8 << 10;

/// Calls `each` for what an index of this field has of a value: a string's text; a number, `true` and
/// `false` as they are written; of a list each of its elements by the same rule, as often as it is
/// there. All else is in no index: what is no JSON object, `null`, objects, lists in lists, and what
/// is longer than [`INDEXED_BYTES_MAX`]. Of a field that an object names twice the last counts.
pub fn values(value: &[u8], field: &str, each: &mut dyn FnMut(&[u8])) {
    let Some(Some(raw)) = find(value, &[field]).pop() else { return };
    if raw.get().starts_with('[') {
        let elements: Vec<&RawValue> = serde_json::from_str(raw.get()).unwrap_or_default();
        elements.into_iter().for_each(|element| scalar(element, each));
    } else {
        scalar(raw, each);
    }
}

fn scalar(raw: &RawValue, each: &mut dyn FnMut(&[u8])) {
    let text = match raw.get().as_bytes()[0] {
        b'[' | b'{' | b'n' => return,
        // A string may be written that no text has: half of a pair of surrogates.
        b'"' => match serde_json::from_str::<String>(raw.get()) {
            Ok(text) => Cow::Owned(text),
            Err(_) => return,
        },
        _ => Cow::Borrowed(raw.get()),
    };
    if text.len() <= INDEXED_BYTES_MAX {
        each(text.as_bytes());
    }
}

/// A JSON object with a list of these in the field, of which [`values`] gives the same again. It is no
/// longer than the value that they were taken from, but for the list's brackets.
pub fn object_of<'a>(field: &str, values: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let written = |text: &str| serde_json::to_string(text).expect("text can be written");
    let mut out = format!("{{{}:[", written(field));
    for (at, value) in values.enumerate() {
        let text = std::str::from_utf8(value).expect("what JSON has is text");
        let bare = serde_json::from_str::<&RawValue>(text);
        let is_bare =
            bare.is_ok_and(|raw| raw.get() == text && !text.starts_with(['"', '[', '{', 'n']));
        out.push_str(if at > 0 { "," } else { "" });
        match is_bare {
            true => out.push_str(text),
            false => out.push_str(&written(text)),
        }
    }
    out.push_str("]}");
    out.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(value: &str) -> Vec<String> {
        let mut found = Vec::new();
        values(value.as_bytes(), "f", &mut |v| found.push(String::from_utf8(v.to_vec()).unwrap()));
        found
    }

    #[test]
    fn a_field_is_known_by_its_text() {
        let long = format!(r#"{{"f":"{}"}}"#, "x".repeat(INDEXED_BYTES_MAX + 1));
        let none = [
            "",
            "{",
            "[]",
            "7",
            r#"{"f":null}"#,
            r#"{"f":{"f":1}}"#,
            r#"{"f":[["a"],{},null]}"#,
            r#"{"f":"\ud800"}"#,
            r#"{"F":"a"}"#,
            r#"{"g":{"f":"a"}}"#,
            r#"{"f":"a"} x"#,
            &long,
        ];
        for value in none {
            assert_eq!(of(value), Vec::<String>::new(), "{value}");
        }
        for (value, known) in [
            (r#"{"f":"a"}"#, &["a"][..]),
            (r#" { "g" : [1] , "f" : "" } "#, &[""]),
            (r#"{"f":"\u00e4\n\"/"}"#, &["ä\n\"/"]),
            (r#"{"f":1.50}"#, &["1.50"]),
            (r#"{"f":"1.50"}"#, &["1.50"]),
            (r#"{"f":[true, false,"a" ,-1e3,"a",null]}"#, &["true", "false", "a", "-1e3", "a"]),
            (r#"{"f":"a","f":"b"}"#, &["b"]),
            (r#"{"\u0066":"a"}"#, &["a"]),
        ] {
            assert_eq!(of(value), known, "{value}");
        }
    }

    /// A view that keeps the values alone gives them to the next one as an object.
    #[test]
    fn values_come_back_from_the_object_that_is_made_of_them() {
        let values =
            ["", "a", "17", "-0.5e7", "true", "null", "nul", " 17", "17 ", "\"", "ä\n", "[1]"];
        let made = object_of("f\"", values.iter().map(|value| value.as_bytes()));
        let mut found = Vec::new();
        super::values(&made, "f\"", &mut |v| found.push(String::from_utf8(v.to_vec()).unwrap()));
        assert_eq!(found, values);
        let numbers = [b"1".as_slice(); 1000];
        assert!(object_of("f", numbers.into_iter()).len() <= r#"{"f":[]}"#.len() + 2 * 1000);
    }
}
