//! Stanzas of Debian packages: lines `Field: value`, those that begin with a space go on with the one
//! before, and an empty line ends a stanza.

use super::{LINE_BYTES_MAX, PutEach, next_text, wrong};
use holdfast_base::Result;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::io::BufRead;

const RIGHT: &str = "a stanza is lines of `Field: value`, of which one is `Package`";

/// Fields that are taken as they are, by their names in small letters.
const PLAIN: [&str; 6] =
    ["version", "architecture", "section", "priority", "source", "installed-size"];
/// Fields that relate to packages: the names of those.
const RELATIONS: [&str; 5] = ["depends", "pre-depends", "recommends", "suggests", "provides"];

/// Puts each package by its name. Of several stanzas of a package the last one stays.
pub fn read(input: &mut dyn BufRead, put: &mut PutEach<'_>) -> Result<()> {
    let (mut line, mut number, mut bytes) = (Vec::new(), 0u64, 0);
    let mut stanza: BTreeMap<String, String> = BTreeMap::new();
    let mut last = String::new();
    loop {
        number += 1;
        let text = next_text(input, number, &mut line)?;
        let Some(text) = text.filter(|text| !text.is_empty()) else {
            if !stanza.is_empty() {
                let (key, value) = package(&stanza)
                    .ok_or_else(|| wrong(number, "ends a stanza without a package", RIGHT))?;
                put(key.as_bytes(), value.as_bytes())?;
            }
            stanza.clear();
            last.clear();
            bytes = 0;
            match text {
                Some(_) => continue,
                None => return Ok(()),
            }
        };
        bytes += text.len();
        if bytes > LINE_BYTES_MAX {
            let right = format!("one has up to {LINE_BYTES_MAX} bytes");
            return Err(wrong(number, "is of a stanza that is too long", &right));
        }
        if text.starts_with([' ', '\t']) {
            match stanza.get_mut(&last) {
                Some(value) => value.push_str(text),
                None => return Err(wrong(number, "goes on with no field", RIGHT)),
            }
            continue;
        }
        let (name, value) =
            text.split_once(':').ok_or_else(|| wrong(number, "has no colon", RIGHT))?;
        last = name.to_ascii_lowercase();
        stanza.insert(last.clone(), value.trim().to_owned());
    }
}

fn package(stanza: &BTreeMap<String, String>) -> Option<(&str, String)> {
    let name = stanza.get("package").filter(|name| !name.is_empty())?;
    let mut value = Map::new();
    for field in PLAIN {
        if let Some(text) = stanza.get(field) {
            value.insert(field.replace('-', "_"), Value::String(text.clone()));
        }
    }
    for field in RELATIONS {
        if let Some(text) = stanza.get(field) {
            value.insert(field.replace('-', "_"), names(text));
        }
    }
    Some((name, Value::Object(value).to_string()))
}

/// The packages that a relation names, each once, in its order: `a (>= 2) | b [amd64], c:any <!x>` is
/// a, b and c.
fn names(relation: &str) -> Value {
    let (mut names, mut known): (Vec<&str>, BTreeSet<&str>) = Default::default();
    for one in relation.split([',', '|']) {
        let one = one.trim();
        let end = one.find(|c: char| c.is_whitespace() || "(:[<".contains(c)).unwrap_or(one.len());
        if end > 0 && known.insert(&one[..end]) {
            names.push(&one[..end]);
        }
    }
    names.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Vec<(String, Value)>> {
        let mut found = Vec::new();
        read(&mut text.as_bytes(), &mut |key, value| {
            let key = String::from_utf8(key.to_vec()).unwrap();
            found.push((key, serde_json::from_slice(value).unwrap()));
            Ok(())
        })?;
        Ok(found)
    }

    #[test]
    fn a_stanza_is_a_package_with_the_names_that_it_relates_to() {
        let text = "Package: a\nVersion: 1:2-3\nDepends: libc6 (>= 2.14), b | c [amd64] | b (<< 9),\n \
            d:any <!nocheck>,\n\tlibc6\nPre-Depends: e\nDescription: text: with\n .\n  more\n\n\n\
            Package: z+\nSection: misc\nInstalled-Size: 7";
        let found = of(text).unwrap();
        let a = serde_json::json!({
            "version": "1:2-3", "depends": ["libc6", "b", "c", "d"], "pre_depends": ["e"]
        });
        let z = serde_json::json!({"section": "misc", "installed_size": "7"});
        assert_eq!(found, [("a".to_owned(), a), ("z+".to_owned(), z)]);
        assert_eq!(of("\n\n").unwrap(), []);
    }

    /// Each name was looked for among all in front of it: a stanza of the longest size took minutes.
    #[test]
    fn a_stanza_of_very_many_names_comes_to_its_end() {
        let names: Vec<String> = (0..120_000).map(|number| format!("{number:x}")).collect();
        let found = of(&format!("Package: a\nDepends: {}\n", names.join(","))).unwrap();
        assert_eq!(found[0].1["depends"].as_array().unwrap().len(), names.len());
    }

    #[test]
    fn what_is_wrong_is_named_by_its_line() {
        for (text, named) in [
            ("Package: a\nno field\n", "line 2 has no colon"),
            (" x\n", "line 1 goes on with no field"),
            ("Package: a\n\n x: y\n", "line 3 goes on with no field"),
            ("Version: 1\n\n", "line 2 ends a stanza without a package"),
            ("Package:\n", "line 2 ends a stanza without a package"),
        ] {
            let refused = of(text).unwrap_err();
            assert!(refused.message.contains(named), "{refused}");
        }
    }
}
