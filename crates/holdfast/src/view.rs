//! `holdfast view` and `holdfast ride`: topics of items, their views, and what comes of them by hand.

pub mod alone;
mod find;
mod load;
pub mod verify;

use clap::{Args, Subcommand};
use holdfast_base::ids::Index;
use holdfast_base::text::to_hex;
use holdfast_base::units::format_bytes;
use holdfast_base::{Error, Result};
use holdfast_client::Client;
use holdfast_client::view::Changes;
use holdfast_command::output::Output;
use holdfast_ride::describe;
use holdfast_wire::slab::{Hashed, PARTITIONS_MAX};
use holdfast_wire::view::{Collection, Key, Moved, Scan, ViewKind, ViewName, ViewStatus};
use serde_json::json;

/// `holdfast view ...`.
#[derive(Subcommand, Debug)]
pub enum View {
    /// Make a collection of a topic, and the topic with its first one
    Create {
        topic: String,
        collection: String,
        /// What of a key says where it lies: `all`, so many of its first bytes, or `until=C`, what is
        /// in front of a character. Keys that agree in it lie side by side, and can be sought
        #[arg(long, default_value = "all", value_name = "RULE", value_parser = rule)]
        hash: Hashed,
        /// Values are JSON
        #[arg(long = "values-json")]
        values_json: bool,
    },
    /// List the collections of a topic
    Info { topic: String },
    /// Give a key a value
    Put { topic: String, collection: String, key: String, value: String },
    /// Delete keys, all or none
    Delete {
        topic: String,
        collection: String,
        #[arg(required = true)]
        keys: Vec<String>,
    },
    /// Print keys' values, those that have one
    Get {
        topic: String,
        collection: String,
        #[arg(required = true)]
        keys: Vec<String>,
        /// As of this entry [default: the latest]
        #[arg(long, value_name = "INDEX")]
        at: Option<u64>,
        /// Not before the view has applied this entry
        #[arg(long, default_value_t = 0, hide_default_value = true, value_name = "INDEX")]
        reached: u64,
    },
    /// Print keys that begin alike, with their values, in their order
    Scan {
        topic: String,
        collection: String,
        prefix: String,
        /// As of this entry [default: the latest]
        #[arg(long, value_name = "INDEX")]
        at: Option<u64>,
        /// At most so many keys
        #[arg(short = 'n', long, default_value_t = u64::MAX, hide_default_value = true, value_name = "N")]
        count: u64,
    },
    /// Print the keys of which a field has this value now, or a list with it, in their order: by an index
    /// of the field, which one of the nodes runs that are named (`--server A,B`)
    Find {
        topic: String,
        collection: String,
        field: String,
        /// The text of a string; a number, `true` and `false` as they are written
        value: String,
        /// Not before the index has applied this entry
        #[arg(long, default_value_t = 0, hide_default_value = true, value_name = "INDEX")]
        reached: u64,
        /// At most so many keys
        #[arg(short = 'n', long, default_value_t = u64::MAX, hide_default_value = true, value_name = "N")]
        count: u64,
    },
    /// Compare what the views of a topic hold, also while it changes: those of the node, or of all nodes
    /// that are named (`--server A,B`). The exit status is 1 where they differ
    Verify { topic: String },
    /// Give up versions that are older than those of an entry
    Horizon { topic: String, index: u64 },
    /// Ask for an image of every disk view of a topic, as it is now
    #[command(long_about = "Ask for an image of every disk view of a topic, as it is now\n\n\
        A node asks by itself when many entries have come since the last one. Views that are new \
        begin with images, rides may (`holdfast ride --at`), and the log is trimmed up to those \
        that two nodes have.")]
    Mark { topic: String },
    /// Fill a topic
    #[command(subcommand)]
    Load(load::Load),
    /// Have the node run a view, also after its next start; or with --data run it here, as a process of
    /// its own that follows the node's cluster
    Run {
        kind: Kind,
        /// A topic of items: its first collection has made it (`view create`)
        topic: String,
        /// Which part of the keys, of an index which part of the values, counting from 0
        #[arg(default_value = "0/1", value_name = "PART/OF", value_parser = part)]
        part: Part,
        #[command(flatten)]
        indexed: Indexed,
        #[command(flatten)]
        alone: alone::Alone,
    },
    /// End a view that the node runs
    Stop {
        kind: Kind,
        /// The topic that it is a view of
        topic: String,
        /// Its part, as it was run
        #[arg(default_value = "0/1", value_name = "PART/OF", value_parser = part)]
        part: Part,
        #[command(flatten)]
        indexed: Indexed,
    },
    /// Say how the views of the node are doing
    Status,
}

/// What a view keeps.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Every version of every key, on disk
    Disk,
    /// The newest values, in memory
    Memory,
    /// Which keys have which value in one field of a collection of JSON, in memory
    Index,
}

/// What an index is of.
#[derive(Args, Debug)]
pub struct Indexed {
    /// The collection that is indexed
    #[arg(long, value_name = "NAME", required_if_eq("kind", "index"))]
    collection: Option<String>,
    /// The field of its values
    #[arg(long, value_name = "NAME", required_if_eq("kind", "index"))]
    field: Option<String>,
}

/// One of several parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    pub part: u32,
    pub of: u32,
}

/// Reads a part as it is written, `0/2`.
pub fn part(text: &str) -> std::result::Result<Part, String> {
    let parsed = || {
        let (part, of) = text.split_once('/')?;
        Some(Part { part: part.parse().ok()?, of: of.parse().ok()? })
    };
    let fits = |part: &Part| part.part < part.of && part.of <= PARTITIONS_MAX;
    parsed().filter(fits).ok_or_else(|| {
        format!(
            "a part is one word, as `0/2` for the first half, counting from 0; up to {PARTITIONS_MAX} parts"
        )
    })
}

fn rule(text: &str) -> std::result::Result<Hashed, String> {
    let until = |text: &str| match text.strip_prefix("until=")?.as_bytes() {
        [byte] => Some(Hashed::Until(*byte)),
        _ => None,
    };
    match text {
        "all" => Ok(Hashed::All),
        text => (text.parse().ok().filter(|bytes| *bytes > 0).map(Hashed::Bytes))
            .or_else(|| until(text))
            .ok_or_else(|| "`all`, a number of bytes, or `until=` and one character".to_owned()),
    }
}

fn name_of(kind: Kind, topic: &str, part: Part, indexed: &Indexed) -> Result<ViewName> {
    let Indexed { collection, field } = indexed;
    let kind = match (kind, collection, field) {
        (Kind::Disk, None, None) => ViewKind::Disk {},
        (Kind::Memory, None, None) => ViewKind::Memory {},
        (Kind::Index, Some(collection), Some(field)) => {
            ViewKind::Index { collection: collection.clone(), field: field.clone() }
        }
        _ => {
            return Err(Error::invalid(
                "name a view: --collection and --field say what an index is of: a view of another kind \
                 keeps all collections",
            ));
        }
    };
    Ok(ViewName { topic: topic.to_owned(), kind, part: part.part, of: part.of })
}

impl View {
    /// The view that is to run in this process, and how; none where a node is asked.
    pub fn alone(&self) -> Result<Option<(ViewName, &alone::Alone)>> {
        match self {
            View::Run { kind, topic, part, indexed, alone } if alone.data().is_some() => {
                Ok(Some((name_of(*kind, topic, *part, indexed)?, alone)))
            }
            _ => Ok(None),
        }
    }
}

/// A node that was named.
pub struct Node {
    /// As it was named.
    pub name: String,
    pub client: Client,
}

/// Carries out one `view` command, by the node that answers first, or by each one that was named.
pub fn run(
    connect: &dyn Fn() -> Result<Client>,
    each: &mut dyn Iterator<Item = Result<Node>>,
    command: &View,
    out: &mut Output,
) -> Result<()> {
    match command {
        View::Find { topic, collection, field, value, reached, count } => {
            let find = find::first([topic, collection, field, value], *reached);
            find::run(each, find, *count, out)
        }
        View::Verify { topic } => verify::run(each, topic, out),
        other => by_one(&mut connect()?, other, out),
    }
}

fn by_one(client: &mut Client, command: &View, out: &mut Output) -> Result<()> {
    match command {
        View::Find { .. } | View::Verify { .. } => unreachable!("they are asked of each node"),
        View::Create { topic, collection, hash, values_json } => {
            let (name, hashed, json) = (collection.clone(), *hash, *values_json);
            let index = client.view(topic).make(Collection { name, hashed, json })?;
            out.line(
                || format!("collection `{collection}` of topic `{topic}` is made by entry {index}"),
                || json!({"topic": topic, "collection": collection, "index": index.0}),
            )
        }
        View::Info { topic } => info(client, topic, out),
        View::Put { topic, collection, key, value } => {
            let (key, value) = (key.as_bytes(), value.as_bytes());
            change(client, topic, collection, |changes, of| changes.put(of, key, value), out)
        }
        View::Delete { topic, collection, keys } => {
            let all = |changes: &mut Changes, of| {
                keys.iter().for_each(|key| changes.delete(of, key.as_bytes()));
            };
            change(client, topic, collection, all, out)
        }
        View::Get { topic, collection, keys, at, reached } => {
            get(client, (topic, collection), keys, (at.map(Index), Index(*reached)), out)
        }
        View::Scan { topic, collection, prefix, at, count } => {
            scan(client, (topic, collection), prefix, at.map(Index), *count, out)
        }
        View::Mark { topic } => {
            let at = client.view(topic).mark()?;
            out.line(
                || {
                    format!(
                        "images are asked for as of entry {at}: `holdfast view status` shows them"
                    )
                },
                || json!({"topic": topic, "index": at.0}),
            )
        }
        View::Horizon { topic, index } => {
            let Moved { index: at, horizon } = client.view(topic).horizon(Index(*index))?;
            let why = match horizon.0 < *index {
                true => {
                    ": rides, or some that have just ended, or the end of the log, are in front of \
                         what was asked for"
                }
                false => "",
            };
            out.line(
                || format!("the horizon is {horizon} from entry {at} on{why}"),
                || json!({"topic": topic, "horizon": horizon.0, "index": at.0}),
            )
        }
        View::Load(load) => load::run(client, load, out),
        View::Run { kind, topic, part, indexed, .. } => {
            let name = name_of(*kind, topic, *part, indexed)?;
            client.run_view(&name)?;
            out.line(
                || format!("view `{}` runs", describe(&name)),
                || json!({"view": describe(&name), "runs": true}),
            )
        }
        View::Stop { kind, topic, part, indexed } => {
            let name = name_of(*kind, topic, *part, indexed)?;
            let left = client.stop_view(&name)?;
            out.line(
                || {
                    format!(
                        "view `{}` is stopped; `{left}` can be removed, if it is not the last that has \
                         images of a topic whose log was trimmed: `holdfast view status` says which \
                         there are",
                        describe(&name)
                    )
                },
                || json!({"view": describe(&name), "runs": false, "left": left}),
            )
        }
        View::Status => client.views("")?.iter().try_for_each(|status| print_status(status, out)),
    }
}

/// When a view was level last.
fn as_of(level_ms: Option<u64>) -> String {
    match level_ms {
        Some(ms) => format!(" as of {}.{} s ago", ms / 1000, ms % 1000 / 100),
        None => " not yet".to_owned(),
    }
}

fn print_status(status: &ViewStatus, out: &mut Output) -> Result<()> {
    let ViewStatus { view, applied, last, riders, stopped, begins, images, level_ms } = status;
    let behind = last.0.saturating_sub(applied.0);
    out.line(
        || {
            let state = match (stopped.as_str(), behind) {
                ("", _) if !begins.is_empty() => format!("begins: {begins}"),
                ("", 0) => format!("level{}", as_of(*level_ms)),
                ("", behind) => format!("{behind} entries behind, level{}", as_of(*level_ms)),
                (why, _) => format!("stopped: {why}"),
            };
            let images = match images.as_slice() {
                [] => String::new(),
                some => {
                    let some = some
                        .iter()
                        .map(|image| format!("{} ({})", image.index, format_bytes(image.bytes)));
                    format!(", images of {}", some.collect::<Vec<_>>().join(", "))
                }
            };
            format!("{}  at entry {applied}, {state}, {riders} riders{images}", describe(view))
        },
        || {
            json!({
                "topic": view.topic,
                "view": describe(view),
                "part": view.part,
                "of": view.of,
                "applied": applied.0,
                "behind": behind,
                "riders": riders,
                "images": images
                    .iter()
                    .map(|image| json!({"index": image.index.0, "bytes": image.bytes}))
                    .collect::<Vec<_>>(),
                "stopped": (!stopped.is_empty()).then_some(stopped),
                "begins": (!begins.is_empty()).then_some(begins),
                "level_ms": level_ms,
            })
        },
    )
}

fn info(client: &mut Client, topic: &str, out: &mut Output) -> Result<()> {
    let catalog = client.view(topic).catalog()?;
    for (number, collection) in (1..).zip(&catalog.collections) {
        let hashed = match collection.hashed {
            Hashed::All => "all of a key".to_owned(),
            Hashed::Bytes(bytes) => format!("the first {bytes} bytes of a key"),
            Hashed::Until(byte) => {
                format!("what is in front of `{}` in a key", (byte as char).escape_debug())
            }
        };
        let values = if collection.json { "JSON" } else { "bytes" };
        out.line(
            || format!("{number}  {}  hashes {hashed}; values are {values}", collection.name),
            || {
                json!({
                    "topic": topic,
                    "number": number,
                    "collection": collection.name,
                    "hashes": hashed,
                    "values": values,
                })
            },
        )?;
    }
    out.line(
        || format!("entries up to {}; versions from {} on", catalog.applied, catalog.horizon),
        || json!({"topic": topic, "applied": catalog.applied.0, "horizon": catalog.horizon.0}),
    )
}

fn change(
    client: &mut Client,
    topic: &str,
    collection: &str,
    add: impl FnOnce(&mut Changes, u16),
    out: &mut Output,
) -> Result<()> {
    let mut view = client.view(topic);
    let number = view.collection(collection)?;
    let mut changes = Changes::default();
    add(&mut changes, number);
    let index = view.change(&changes)?;
    out.line(|| format!("entry {index}"), || json!({"topic": topic, "index": index.0}))
}

/// A member of an object: bytes as text, or as hexadecimal digits, under a name that says so, where they
/// are none.
fn member(name: &str, bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => format!("\"{name}\":{}", json!(text)),
        Err(_) => {
            format!("\"{name}_hex\":\"{}\"", to_hex(bytes))
        }
    }
}

/// The same of a value. JSON stands as it is kept: whoever reads numbers and names otherwise than we do
/// gets them all.
fn value_member(of: &Collection, value: &[u8]) -> String {
    let json = std::str::from_utf8(value).ok().filter(|_| of.json);
    match json.filter(|text| serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()) {
        // Line ends lie between what JSON says, never within it.
        Some(text) => format!("\"value\":{}", text.replace(['\n', '\r'], " ")),
        None => member("value", value),
    }
}

/// On one line: what would begin another is escaped.
fn on_one_line(text: &str) -> String {
    let one = |c: char| match c.is_control() {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    text.chars().map(one).collect()
}

/// Prints one item; none of a value that was deleted.
pub fn print_item(
    of: &Collection,
    key: &[u8],
    index: u64,
    value: Option<&[u8]>,
    out: &mut Output,
) -> Result<()> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).escape_debug().to_string();
    out.line_of(
        || match value {
            Some(value) => {
                let value = on_one_line(&String::from_utf8_lossy(value));
                format!("{}  {index}  {value}", text(key))
            }
            None => format!("{}  {index}  (deleted)", text(key)),
        },
        || {
            let value = match value {
                Some(value) => value_member(of, value),
                None => "\"value\":null,\"deleted\":true".to_owned(),
            };
            let (name, key) = (member("collection", of.name.as_bytes()), member("key", key));
            format!("{{{name},{key},\"index\":{index},{value}}}")
        },
    )
}

fn get(
    client: &mut Client,
    (topic, collection): (&str, &str),
    keys: &[String],
    (at, reached): (Option<Index>, Index),
    out: &mut Output,
) -> Result<()> {
    let mut view = client.view(topic);
    let (collection, of) = view.collection_of(collection)?;
    let asked = keys.iter().map(|key| Key { collection, key: key.as_bytes().to_vec() });
    let got = view.get(asked.collect(), at, reached)?;
    let mut missing = Vec::new();
    for (key, found) in keys.iter().zip(got.found) {
        match found {
            Some(found) => print_item(&of, key.as_bytes(), found.index.0, Some(&found.value), out)?,
            None => missing.push(key.escape_debug().to_string()),
        }
    }
    match missing.is_empty() {
        true => Ok(()),
        false => Err(Error::not_found(format!(
            "get keys of topic `{topic}`: there is no `{}` at entry {}",
            missing.join("`, `"),
            at.unwrap_or(got.applied)
        ))),
    }
}

fn scan(
    client: &mut Client,
    (topic, collection): (&str, &str),
    prefix: &str,
    at: Option<Index>,
    mut left: u64,
    out: &mut Output,
) -> Result<()> {
    let mut view = client.view(topic);
    let (collection, of) = view.collection_of(collection)?;
    let mut scan = Scan {
        topic: topic.to_owned(),
        reached: Index(0),
        at,
        collection,
        prefix: prefix.as_bytes().to_vec(),
        after: None,
        keys_max: 0,
    };
    while left > 0 {
        scan.keys_max = u32::try_from(left).unwrap_or(u32::MAX);
        let found = view.scan(&scan)?;
        left = left.saturating_sub(found.rows.len() as u64);
        for row in &found.rows {
            print_item(&of, &row.key, row.index.0, Some(&row.value), out)?;
        }
        if !found.more {
            break;
        }
        // All parts of the answer show one moment.
        scan.at = scan.at.or(Some(found.applied));
        scan.after = found.rows.last().map(|row| row.key.clone());
    }
    Ok(())
}
