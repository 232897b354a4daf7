//! The map: which keys a changed row makes old, by table and columns. Read from TOML; pure.

use holdfast_base::{Error, Result};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// What a map looks like, for `--help`.
pub const EXAMPLE: &str = "\
A map of keys:

    [[keys]]
    table = \"shop.items\"
    key = \"item:{id}\"

    [[keys]]
    table = \"shop.prices\"
    key = \"price:{item_id}:{currency}\"

Of a table of Holdfast, `{key}` is a record's key, and other names are fields of its value, which is JSON:

    [[keys]]
    table = \"users\"
    key = \"user:{key}\"";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    keys: Vec<FileKey>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileKey {
    table: String,
    key: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Column(String),
}

/// A key with columns of a row in it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Template {
    parts: Vec<Part>,
}

impl Template {
    fn parse(text: &str) -> Result<Template> {
        let wrong = |why: &str| Err(Error::invalid(format!("read key `{text}`: {why}")));
        let (mut parts, mut rest) = (Vec::new(), text);
        while let Some(at) = rest.find(['{', '}']) {
            let (before, behind) = rest.split_at(at);
            if !before.is_empty() {
                parts.push(Part::Text(before.to_owned()));
            }
            let Some(behind) = behind.strip_prefix('{') else {
                return wrong("a `}` has no `{` before it");
            };
            let Some((column, behind)) = behind.split_once('}') else {
                return wrong("a `{` has no `}` behind it");
            };
            if column.is_empty() || column.contains('{') {
                return wrong("write `{COLUMN}` with the name of one column");
            }
            parts.push(Part::Column(column.to_owned()));
            rest = behind;
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.to_owned()));
        }
        if !parts.iter().any(|part| matches!(part, Part::Column(_))) {
            return wrong("name a column, `{id}` for one: else every row has the same key");
        }
        Ok(Template { parts })
    }

    fn columns(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            Part::Column(name) => Some(name.as_str()),
            Part::Text(_) => None,
        })
    }
}

/// The value of a column in one image of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cell {
    Null,
    Text(Vec<u8>),
}

/// Which rows of which tables are in which keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Map {
    tables: BTreeMap<String, Vec<Template>>,
}

impl Map {
    /// Reads a map of TOML's form, as [`EXAMPLE`] shows it.
    pub fn parse(text: &str) -> Result<Map> {
        Map::parse_of(text, |table| match table.split_once('.') {
            Some((schema, name)) if !schema.is_empty() && !name.is_empty() => Ok(()),
            _ => Err(Error::invalid(format!("read table `{table}`: write it as SCHEMA.TABLE"))),
        })
    }

    /// The same for one table, which has no schema.
    pub fn of_table(text: &str, followed: &str) -> Result<Map> {
        Map::parse_of(text, |table| match table == followed {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "read table `{table}`: table `{followed}` is followed: name that one alone"
            ))),
        })
    }

    fn parse_of(text: &str, check: impl Fn(&str) -> Result<()>) -> Result<Map> {
        let file: File = toml::from_str(text).map_err(|e| {
            let before = e.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            let line = before.matches('\n').count() + 1;
            Error::invalid(format!("line {line}: {}", e.message()))
        })?;
        let mut tables: BTreeMap<String, Vec<Template>> = BTreeMap::new();
        for FileKey { table, key } in file.keys {
            check(&table)?;
            tables.entry(table).or_default().push(Template::parse(&key)?);
        }
        if tables.is_empty() {
            return Err(Error::invalid("read the map: it has no `[[keys]]`: add some"));
        }
        Ok(Map { tables })
    }

    /// Tables by `SCHEMA.TABLE`, with the columns that their keys need.
    pub fn tables(&self) -> impl Iterator<Item = (&str, BTreeSet<&str>)> {
        self.tables.iter().map(|(table, templates)| {
            (table.as_str(), templates.iter().flat_map(Template::columns).collect())
        })
    }

    pub fn has(&self, table: &str) -> bool {
        self.tables.contains_key(table)
    }

    /// The keys of one image of a row. A column that is null is in no key, and neither is one whose text no
    /// server takes for a part of a key: nothing can be cached under it. Fails with the name of a column that
    /// the row does not have.
    pub fn keys(
        &self,
        table: &str,
        mut cell: impl FnMut(&str) -> Option<Cell>,
    ) -> std::result::Result<Vec<Vec<u8>>, String> {
        let mut keys = Vec::new();
        'template: for template in self.tables.get(table).into_iter().flatten() {
            let mut key = Vec::new();
            for part in &template.parts {
                match part {
                    Part::Text(text) => key.extend_from_slice(text.as_bytes()),
                    Part::Column(name) => match cell(name).ok_or_else(|| name.clone())? {
                        Cell::Null => continue 'template,
                        Cell::Text(text) => key.extend_from_slice(&text),
                    },
                }
            }
            if holdfast_cache_client::wire::is_key(&key) {
                keys.push(key);
            }
        }
        Ok(keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "[[keys]]\ntable = \"shop.prices\"\nkey = \"price:{item}:{currency}\"\n\
        [[keys]]\ntable = \"shop.prices\"\nkey = \"prices-of:{item}\"\n";

    #[test]
    fn the_map_that_help_shows_is_valid() {
        let (of_database, of_table) = EXAMPLE.split_once("Of a table").unwrap();
        let text = |example: &str| {
            let lines: Vec<&str> = example.lines().skip(1).map(str::trim_start).collect();
            lines.join("\n")
        };
        let map = Map::of_table(&text(of_table), "users").unwrap();
        assert_eq!(map.tables().count(), 1);
        let map = Map::parse(&text(of_database)).unwrap();
        let tables: Vec<_> = map.tables().collect();
        assert_eq!((tables[0].0, tables[1].0), ("shop.items", "shop.prices"));
        assert!(tables[1].1.contains("currency") && tables[1].1.contains("item_id"));
    }

    #[test]
    fn rows_are_in_their_keys_and_what_cannot_be_cached_is_in_none() {
        let map = Map::parse(TEXT).unwrap();
        let keys = |item: &str, currency: Option<&str>| {
            map.keys("shop.prices", |name| match name {
                "item" => Some(Cell::Text(item.into())),
                "currency" => Some(currency.map_or(Cell::Null, |text| Cell::Text(text.into()))),
                _ => None,
            })
            .unwrap()
        };
        assert_eq!(keys("7", Some("EUR")), [&b"price:7:EUR"[..], &b"prices-of:7"[..]]);
        assert_eq!(keys("7", None), [b"prices-of:7"]);
        assert_eq!(keys("7", Some("two words")), [b"prices-of:7"]);
        assert_eq!(keys(&"7".repeat(251), Some("EUR")), [b""; 0]);
        assert_eq!(map.keys("shop.others", |_| None), Ok(vec![]));
        assert_eq!(map.keys("shop.prices", |_| None), Err("item".to_owned()));
    }

    #[test]
    fn what_is_wrong_with_a_map_is_said() {
        let wrong = |text: &str, names: &[&str]| {
            let message = Map::parse(text).unwrap_err().message;
            assert!(names.iter().all(|name| message.contains(name)), "{message}");
        };
        wrong("", &["missing field", "keys"]);
        wrong("keys = []", &["`[[keys]]`"]);
        wrong(&TEXT.replace("shop.prices", "prices"), &["`prices`", "SCHEMA.TABLE"]);
        wrong(&TEXT.replace("{item}", "item"), &["name a column"]);
        wrong(&TEXT.replace("{item}", "{item"), &["`{COLUMN}`"]);
        wrong(&TEXT.replace("{item}", "item}"), &["`}`"]);
        wrong(&format!("{TEXT}color = 1"), &["line 7", "unknown field", "color"]);
    }
}
