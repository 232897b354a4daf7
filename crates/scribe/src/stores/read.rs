//! Reads stores from TOML. Whatever is wrong is one sentence that names the store.

use super::{By, FileStore, Rotates, Store, Stores};
use crate::category::Category;
use holdfast_base::units::parse_bytes;
use holdfast_base::{Error, Result};
use serde::Deserialize;
use std::path::PathBuf;

/// What a file of stores looks like, for `--help`.
pub const EXAMPLE: &str = "\
A file of stores (--stores):

    [[store]]
    category = \"debug*\"               # a prefix; the longest decides, an exact name before all
    type = \"null\"                     # taken, counted and dropped

    [[store]]
    categories = [\"web\", \"search\"]
    type = \"multi\"                    # all of its stores
    stores = [
        { type = \"topic\" },
        { type = \"file\", file_path = \"/var/log/scribe\", rotate_period = \"hourly\", max_size = \"1G\" },
    ]

    [[store]]
    category = \"clicks\"               # clicks_000 to clicks_015
    type = \"bucket\"
    num_buckets = 16
    bucket_type = \"key_hash\"          # or \"random\"
    delimiter = \":\"                   # the key ends in front of it; without one it is the message

    [[store]]
    category = \"default\"              # of all others; without one, their topics
    type = \"topic\"";

/// Buckets have three digits.
pub(super) const BUCKETS_MAX: u32 = 1000;
/// As Scribe has it.
pub(super) const FILE_BYTES_MAX: u64 = 1_000_000_000;
/// Stores inside of stores.
const DEPTH_MAX: usize = 4;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    store: Vec<Table>,
}

/// A store, whatever its type is; which keys are of which type is asked later, for the sentence's sake.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Table {
    category: Option<String>,
    categories: Option<Vec<String>>,
    #[serde(rename = "type")]
    kind: Option<String>,
    file_path: Option<PathBuf>,
    base_filename: Option<String>,
    max_size: Option<String>,
    rotate_period: Option<String>,
    add_newlines: Option<bool>,
    num_buckets: Option<u32>,
    bucket_type: Option<String>,
    delimiter: Option<String>,
    store: Option<Box<Table>>,
    stores: Option<Vec<Table>>,
}

/// Keys of each type, beside those that all have.
const OF_TYPES: &[(&str, &[&str])] = &[
    ("topic", &[]),
    ("null", &[]),
    ("file", &["file_path", "base_filename", "max_size", "rotate_period", "add_newlines"]),
    ("multi", &["stores"]),
    ("bucket", &["num_buckets", "bucket_type", "delimiter", "store"]),
];

impl Table {
    /// Keys that were set, but for those that every store has.
    fn keys(&self) -> Vec<&'static str> {
        let all = [
            ("file_path", self.file_path.is_some()),
            ("base_filename", self.base_filename.is_some()),
            ("max_size", self.max_size.is_some()),
            ("rotate_period", self.rotate_period.is_some()),
            ("add_newlines", self.add_newlines.is_some()),
            ("num_buckets", self.num_buckets.is_some()),
            ("bucket_type", self.bucket_type.is_some()),
            ("delimiter", self.delimiter.is_some()),
            ("store", self.store.is_some()),
            ("stores", self.stores.is_some()),
        ];
        all.iter().filter(|(_, is_set)| *is_set).map(|(key, _)| *key).collect()
    }
}

impl Stores {
    /// Reads a file of stores.
    pub fn parse(text: &str) -> Result<Stores> {
        let file: File = toml::from_str(text)
            .map_err(|e| Error::invalid(format!("read stores: {}", e.to_string().trim_end())))?;
        let (mut stores, mut default) = (Stores::default(), None);
        for table in &file.store {
            let names = names(table)?;
            let doing = |e: Error| {
                e.context(format_args!("read the store of `{}`", names.join(" ").escape_debug()))
            };
            let store = read(table, &mut stores.files, 1).map_err(doing)?;
            for name in &names {
                let is_new = match (name.as_str(), name.strip_suffix('*')) {
                    ("default", _) => default.replace(store.clone()).is_none(),
                    (_, Some(prefix)) => {
                        check_prefix(prefix).map_err(doing)?;
                        let is_new = !stores.prefixes.iter().any(|(known, _)| known == prefix);
                        stores.prefixes.push((prefix.to_owned(), store.clone()));
                        is_new
                    }
                    (name, None) => {
                        let category = Category::new(name).map_err(doing)?;
                        stores.exact.insert(category, store.clone()).is_none()
                    }
                };
                if !is_new {
                    return Err(doing(Error::invalid(format!(
                        "`{name}` has a store already: write one of type `multi` for both"
                    ))));
                }
            }
        }
        stores.default = default.unwrap_or(Store::Topic);
        stores.prefixes.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.len()));
        Ok(stores)
    }
}

fn names(table: &Table) -> Result<Vec<String>> {
    match (&table.category, &table.categories) {
        (Some(one), None) => Ok(vec![one.clone()]),
        (None, Some(all)) if !all.is_empty() => Ok(all.clone()),
        (Some(one), Some(_)) => Err(Error::invalid(format!(
            "read the store of `{}`: it has `category` and `categories`: write one of them",
            one.escape_debug()
        ))),
        _ => Err(Error::invalid(
            "read a store: it has no category: write `category = \"NAME\"`, `\"PREFIX*\"` or `\"default\"`",
        )),
    }
}

fn check_prefix(prefix: &str) -> Result<()> {
    match prefix {
        "" => Err(Error::invalid("`*` is every category: write `default`")),
        prefix => Category::new(prefix).map(drop),
    }
}

fn read(table: &Table, files: &mut Vec<FileStore>, depth: usize) -> Result<Store> {
    let wrong = |what: String| Err(Error::invalid(what));
    if depth > DEPTH_MAX {
        return wrong(format!("there are more than {DEPTH_MAX} stores inside of each other"));
    }
    if depth > 1 && (table.category.is_some() || table.categories.is_some()) {
        return wrong(
            "a store inside of another has the other's category: leave its own out".into(),
        );
    }
    let kind = table.kind.as_deref().unwrap_or("topic");
    let Some((_, own)) = OF_TYPES.iter().find(|(name, _)| *name == kind) else {
        let all: Vec<&str> = OF_TYPES.iter().map(|(name, _)| *name).collect();
        let of = kind.escape_debug();
        return wrong(format!("there is no type `{of}`: write one of {}", all.join(", ")));
    };
    if let Some(other) = table.keys().into_iter().find(|key| !own.contains(key)) {
        return wrong(format!("a store of type `{kind}` has no `{other}`: leave it out"));
    }
    match kind {
        "null" => Ok(Store::Null),
        "file" => {
            files.push(file(table)?);
            Ok(Store::File(files.len() - 1))
        }
        "multi" => {
            let Some(stores) = table.stores.as_ref().filter(|stores| !stores.is_empty()) else {
                return wrong("it has no stores: write `stores = [{ type = ... }, ...]`".into());
            };
            let all = stores.iter().map(|store| read(store, files, depth + 1));
            all.collect::<Result<_>>().map(Store::Multi)
        }
        "bucket" => bucket(table, files, depth),
        _ => Ok(Store::Topic),
    }
}

fn file(table: &Table) -> Result<FileStore> {
    let Some(path) = &table.file_path else {
        return Err(Error::invalid("it has no `file_path`: write the directory of its files"));
    };
    if let Some(base) = &table.base_filename {
        Category::new(base).map_err(|_| {
            let base = base.escape_debug();
            Error::invalid(format!(
                "`base_filename` is `{base}`: write letters, digits, `.`, `_` and `-`"
            ))
        })?;
    }
    let size = table.max_size.as_deref().map(parse_bytes).transpose();
    let bytes_max = size.map_err(Error::invalid)?.unwrap_or(FILE_BYTES_MAX);
    if bytes_max == 0 {
        return Err(Error::invalid("`max_size` is 0: write how large a file may be"));
    }
    let rotates = match table.rotate_period.as_deref() {
        None | Some("never") => Rotates::Never,
        Some("hourly") => Rotates::Hourly,
        Some("daily") => Rotates::Daily,
        Some(other) => {
            let other = other.escape_debug();
            return Err(Error::invalid(format!(
                "`rotate_period` is `{other}`: write `hourly`, `daily` or `never`"
            )));
        }
    };
    let (path, base) = (path.clone(), table.base_filename.clone());
    let adds_newlines = table.add_newlines.unwrap_or(false);
    Ok(FileStore { path, base, bytes_max, rotates, adds_newlines })
}

fn bucket(table: &Table, files: &mut Vec<FileStore>, depth: usize) -> Result<Store> {
    let wrong = |what: String| Err(Error::invalid(what));
    let buckets = match table.num_buckets {
        Some(buckets @ 1..=BUCKETS_MAX) => buckets,
        Some(buckets) => {
            return wrong(format!("`num_buckets` is {buckets}: write 1 to {BUCKETS_MAX}"));
        }
        None => return wrong(format!("it has no `num_buckets`: write 1 to {BUCKETS_MAX}")),
    };
    let delimiter = match table.delimiter.as_deref().map(str::as_bytes) {
        None => None,
        Some([byte]) => Some(*byte),
        Some(_) => return wrong("`delimiter` is one character of ASCII".into()),
    };
    let by = match table.bucket_type.as_deref() {
        None | Some("key_hash") => By::Key(delimiter),
        Some("random") if delimiter.is_none() => By::Random,
        Some("random") => {
            return wrong("by chance nothing is looked at: leave `delimiter` out".into());
        }
        Some(other) => {
            let other = other.escape_debug();
            return wrong(format!("`bucket_type` is `{other}`: write `key_hash` or `random`"));
        }
    };
    let store = match &table.store {
        None => Store::Topic,
        Some(store) => read(store, files, depth + 1)?,
    };
    if has_bucket(&store) {
        return wrong("its store has buckets again: give this one more of them".into());
    }
    Ok(Store::Bucket { buckets, by, store: Box::new(store) })
}

fn has_bucket(store: &Store) -> bool {
    match store {
        Store::Bucket { .. } => true,
        Store::Multi(stores) => stores.iter().any(has_bucket),
        Store::Topic | Store::Null | Store::File(_) => false,
    }
}
