//! Records of CSV, as RFC 4180 has them, with line feeds alone for line ends, too: what is between
//! double quotes may hold commas, line ends and, each twice, double quotes. Lines of nothing are
//! passed over.

use super::{LINE_BYTES_MAX, PutEach, check_key, next_text, wrong};
use holdfast_base::{Error, Result};
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::io::BufRead;

const RIGHT: &str = "a record is fields with commas between them; one that holds a comma, a line end or \
                     a double quote stands in double quotes, and those in it are written twice";

/// Puts each record behind the first, by the text of its key's column.
pub fn read(input: &mut dyn BufRead, key: Option<&str>, put: &mut PutEach<'_>) -> Result<()> {
    let mut records = Records { input, number: 0, line: Vec::new() };
    let Some((_, columns)) = records.next()? else {
        return Err(Error::invalid("it is empty: the first record has to name the columns"));
    };
    let mut named = BTreeSet::new();
    for name in &columns {
        if !named.insert(name) {
            return Err(wrong(1, format!("names column `{name}` twice"), "each has another name"));
        }
    }
    let at = match key {
        None => 0,
        Some(key) => columns.iter().position(|name| name == key).ok_or_else(|| {
            Error::invalid(format!("there is no column `{key}`: it has `{}`", columns.join("`, `")))
        })?,
    };
    while let Some((number, mut fields)) = records.next()? {
        if fields.len() != columns.len() {
            let what = format!("begins a record of {} fields", fields.len());
            let right = format!("there are {} columns", columns.len());
            return Err(wrong(number, what, &right));
        }
        let key = std::mem::take(&mut fields[at]);
        if key.is_empty() {
            let what = format!("begins a record with nothing in column `{}`", columns[at]);
            return Err(wrong(number, what, "a key has at least one byte"));
        }
        let named = columns.iter().cloned().zip(fields.into_iter().map(Value::String));
        let others: Map<String, Value> =
            named.enumerate().filter(|(i, _)| *i != at).map(|(_, named)| named).collect();
        check_key(number, key.as_bytes())?;
        put(key.as_bytes(), Value::Object(others).to_string().as_bytes())?;
    }
    Ok(())
}

struct Records<'a> {
    input: &'a mut dyn BufRead,
    /// Of the last line that was read.
    number: u64,
    line: Vec<u8>,
}

impl Records<'_> {
    /// The next record, and the number of its first line.
    fn next(&mut self) -> Result<Option<(u64, Vec<String>)>> {
        let mut text = String::new();
        let first = loop {
            if !self.append(&mut text)? {
                return Ok(None);
            }
            if !text.is_empty() {
                break self.number;
            }
        };
        loop {
            match fields(&text) {
                Ok(Some(fields)) => return Ok(Some((first, fields))),
                Ok(None) => self.append_to_quotes(first, &mut text)?,
                Err(what) => return Err(wrong(self.number, what, RIGHT)),
            }
        }
    }

    /// Appends lines until one may close the field in quotes in which a record has ended: with an odd
    /// number of double quotes. Others are not looked at twice.
    fn append_to_quotes(&mut self, first: u64, text: &mut String) -> Result<()> {
        loop {
            // As it was: it is of the field.
            text.push_str(if self.line.ends_with(b"\r\n") { "\r\n" } else { "\n" });
            if text.len() > LINE_BYTES_MAX {
                let what = "begins a record that is too long";
                let right = format!("one has up to {LINE_BYTES_MAX} bytes");
                return Err(wrong(first, what, &right));
            }
            let from = text.len();
            if !self.append(text)? {
                return Err(wrong(first, "opens double quotes that nothing closes", RIGHT));
            }
            if text[from..].matches('"').count() % 2 == 1 {
                return Ok(());
            }
        }
    }

    /// Appends the next line without its end; false if there is none.
    fn append(&mut self, text: &mut String) -> Result<bool> {
        self.number += 1;
        let line = next_text(self.input, self.number, &mut self.line)?;
        text.push_str(line.unwrap_or_default());
        Ok(line.is_some())
    }
}

/// The fields of a record; none if it ends inside of quotes.
fn fields(text: &str) -> std::result::Result<Option<Vec<String>>, &'static str> {
    let mut fields = Vec::new();
    let mut rest = text;
    loop {
        let mut field = String::new();
        if let Some(mut quoted) = rest.strip_prefix('"') {
            rest = loop {
                let Some((part, behind)) = quoted.split_once('"') else { return Ok(None) };
                field.push_str(part);
                match behind.strip_prefix('"') {
                    Some(more) => quoted = more,
                    None => break behind,
                }
                field.push('"');
            };
            if !rest.is_empty() && !rest.starts_with(',') {
                return Err("has text behind closing double quotes");
            }
        } else {
            let end = rest.find(',').unwrap_or(rest.len());
            field.push_str(&rest[..end]);
            rest = &rest[end..];
            if field.contains('\r') {
                return Err(
                    "has a carriage return outside of double quotes: lines end with a line \
                            feed, with or without one in front of it",
                );
            }
            if field.contains('"') {
                return Err("has double quotes inside a field that does not begin with them");
            }
        }
        fields.push(field);
        match rest.strip_prefix(',') {
            Some(more) => rest = more,
            None => return Ok(Some(fields)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &[u8], key: Option<&str>) -> Result<Vec<(String, String)>> {
        let mut found = Vec::new();
        let string = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        read(&mut &*text, key, &mut |key, value| {
            found.push((string(key), string(value)));
            Ok(())
        })?;
        Ok(found)
    }

    #[test]
    fn records_are_objects_by_their_keys() {
        let text = b"\xef\xbb\xbfname,\"the \"\"id\"\"\",note\r\n\
            a,1,\r\n\
            \r\n\
            \"b,c\",2,\"two\nlines\"\"\"\n\
            \xc3\xa4,\"\",\" x \"";
        let by_name = of(text, None).unwrap();
        assert_eq!(by_name[0], ("a".into(), r#"{"note":"","the \"id\"":"1"}"#.into()));
        assert_eq!(
            by_name[1],
            ("b,c".into(), r#"{"note":"two\nlines\"","the \"id\"":"2"}"#.into())
        );
        assert_eq!(by_name[2], ("ä".into(), r#"{"note":" x ","the \"id\"":""}"#.into()));
        assert_eq!(by_name.len(), 3);
        let by_id = of(b"name,id\na,1\n", Some("id")).unwrap();
        assert_eq!(by_id, [("1".into(), r#"{"name":"a"}"#.into())]);
        assert_eq!(of(b"id\n", None).unwrap(), []);
    }

    /// Line ends of Windows in a field became line feeds.
    #[test]
    fn a_field_in_quotes_is_as_it_was_written() {
        let text = b"id,b\r\nx,\"1\r\n\r\n2\n3\"\r\ny,\"4\r5\"\r\n";
        let wanted = [("x", r#"{"b":"1\r\n\r\n2\n3"}"#), ("y", r#"{"b":"4\r5"}"#)];
        assert_eq!(of(text, None).unwrap(), wanted.map(|(key, value)| (key.into(), value.into())));
    }

    #[test]
    fn what_is_wrong_is_named_by_its_line() {
        for (text, named) in [
            (&b""[..], "empty"),
            (b"id,id\n", "`id` twice"),
            (b"id,b\n1,2\n1\n", "line 3 begins a record of 1 fields"),
            (b"id,b\n1,2,3\n", "of 3 fields"),
            (b"id,b\n,2\n", "line 2 begins a record with nothing in column `id`"),
            (b"id,b\n1,\"2\n3\n", "line 2 opens double quotes"),
            (b"id,b\n1,\"2\n3\" \n", "line 3 has text behind"),
            (b"id,b\n1,2\"\n", "line 2 has double quotes inside"),
            // Lines of old Macs were one record of names, and nothing behind it.
            (b"id,b\r1,2\r", "line 1 has a carriage return"),
            (b"id,b\n1,\xff\n", "line 2 is not UTF-8"),
        ] {
            let refused = of(text, None).unwrap_err();
            assert!(refused.message.contains(named), "{refused}");
        }
        assert!(of(b"id\n1\n", Some("no")).unwrap_err().message.contains("no column `no`"));
        let long_key = format!("id,b\n1,2\n{},3\n", "k".repeat(8193));
        let refused = of(long_key.as_bytes(), None).unwrap_err();
        assert!(refused.message.contains("line 3 has a key of 8193 bytes"), "{refused}");
        let long = format!("id,b\n1,\"{}\n", "x\n".repeat(LINE_BYTES_MAX / 2));
        let refused = of(long.as_bytes(), None).unwrap_err();
        assert!(refused.message.contains("line 2 begins a record that is too long"), "{refused}");
    }

    /// A table of 100,000 columns took minutes: each name was held against all in front of it.
    #[test]
    fn many_columns_and_many_lines_in_quotes_take_no_square_of_time() {
        let names: Vec<String> = (0..100_000).map(|n| n.to_string()).collect();
        let text = format!(
            "{}\n\"a\n{}\"{}\n",
            names.join(","),
            "\"\"\n".repeat(100_000),
            ",".repeat(99_999)
        );
        let found = of(text.as_bytes(), Some("99999"));
        assert!(found.unwrap_err().message.contains("line 2 begins a record with nothing"));
    }

    /// Whatever a record holds, it comes back as it was written down.
    #[test]
    fn what_is_quoted_comes_back() {
        let parts = ["", "a", ",", "\"", "\n", "\r\n", "ä", " ", "\"\"", ",\"\n"];
        for a in parts {
            for b in parts {
                let field = format!("{a}{b}x");
                let text = format!("\"k\",v\n1,\"{}\"\n", field.replace('"', "\"\""));
                let found = of(text.as_bytes(), None).unwrap();
                let value: Value = serde_json::from_str(&found[0].1).unwrap();
                assert_eq!((found.len(), &value["v"]), (1, &Value::String(field)), "{text:?}");
            }
        }
    }
}
