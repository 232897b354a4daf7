//! `holdfast table`: records with versions. Decides nothing about them.

mod branch;
mod load;
mod together;

use crate::log::text_or_hex;
use branch::Keep;
use clap::{Args, Subcommand, ValueEnum};
use holdfast_base::ordered::after_prefix;
use holdfast_base::units::format_bytes;
use holdfast_base::{Error, Result};
use holdfast_client::{Client, SEALED_WITHIN, TableClient, TableWrite};
use holdfast_command::output::{self, Output};
use holdfast_env::local;
use holdfast_wire::table::{
    Expect, Level, Make, Page, Record, RegionInfo, SplitInfo, TableInfo, TableMode, TabletInfo,
    VALUE_BYTES_MAX, Written,
};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// `holdfast table ...`.
#[derive(Subcommand, Debug)]
pub enum Table {
    /// Make a table; made twice with the same words, it is there
    Create {
        table: String,
        /// What the answer to a write waits for: the log of the record's home, or those of a majority of
        /// regions. With one region both are the same
        #[arg(long, value_enum, default_value = "timeline")]
        mode: Mode,
        /// Into how many tablets it is cut, each with a topic of its own. More come by `table split`, fewer never
        #[arg(long, default_value_t = 1)]
        tablets: u16,
        /// In this region alone, though the cluster knows of others
        #[arg(long)]
        here: bool,
    },
    /// List the tables
    Ls,
    /// Say how a table and each of its tablets are doing
    Describe { table: String },
    /// Write a record; the answer is its version
    Put {
        table: String,
        key: String,
        /// The value; else --file
        #[arg(required_unless_present = "file")]
        value: Option<String>,
        /// Read the value from a file, - for standard input
        #[arg(long, value_name = "PATH", conflicts_with = "value")]
        file: Option<PathBuf>,
        #[command(flatten)]
        only: Only,
        #[command(flatten)]
        session: Session,
    },
    /// Write several records that stand or fall together: all of them, or none
    ///
    /// FILE has a line of JSON for each: {"key": "a", "value": "1"} writes, {"key": "a", "delete": true} deletes, and
    /// {"key": "a", "check": true} only looks; each may insist on "if_version": 3 or "if_absent": true, and the last
    /// one must. They lie in one tablet, and are at home in one region; up to 128 of them, and 960 KiB.
    Write {
        table: String,
        /// - for standard input
        file: PathBuf,
        #[command(flatten)]
        session: Session,
    },
    /// Write the records of a file, each for itself: lines of JSON
    ///
    /// Lines are {"key": "a", "value": "1"}, or what `holdfast --json table scan` prints: so a scan is a copy, and this
    /// puts it back, with new versions. {"hex": "ff00"} stands for a key or a value that is no text. It may be said
    /// again after an error: what was loaded is written once more.
    Load {
        table: String,
        /// - for standard input
        file: PathBuf,
        /// Leave records alone that are there
        #[arg(long)]
        if_absent: bool,
    },
    /// Print a record's value
    Get {
        table: String,
        key: String,
        #[command(flatten)]
        level: Newness,
        #[command(flatten)]
        session: Session,
    },
    /// Delete a record
    Delete {
        table: String,
        key: String,
        /// Only if the record has this version
        #[arg(long, value_name = "VERSION")]
        if_version: Option<u64>,
        #[command(flatten)]
        session: Session,
    },
    /// Print records, in order of their keys
    Scan {
        table: String,
        /// Keys that begin with this
        #[arg(long, conflicts_with_all = ["from", "until"])]
        prefix: Option<String>,
        /// The first key
        #[arg(long)]
        from: Option<String>,
        /// The first key that is left out
        #[arg(long)]
        until: Option<String>,
        /// How many records
        #[arg(long, value_name = "COUNT")]
        limit: Option<u64>,
        /// From the last key to the first
        #[arg(long)]
        backwards: bool,
    },
    /// Cut a tablet of a table of one region in two, while it is used: the upper half of its hashes goes to a new
    /// tablet. Writes to that half wait until it is there
    ///
    /// Returns once both are served. What was begun goes on whoever waits, also behind a start: `table describe`
    /// shows it.
    Split {
        table: String,
        /// The tablet's number, as `table describe` shows it
        #[arg(long, value_name = "NUMBER")]
        tablet: u16,
        /// The first hash of the upper half, in hexadecimal digits; else the middle
        #[arg(long, value_name = "HASH", value_parser = hash)]
        at: Option<u32>,
    },
    /// Drop a table with all that it has, in all of its regions; one that is away drops it when it is back
    Drop { table: String },
    /// Go on without a region that is lost, in a timeline table: what is at home there can be written again,
    /// from where the furthest of the other regions has followed. What it had alone comes back as branches
    Seal {
        table: String,
        /// The region's number
        #[arg(long, value_name = "REGION")]
        lost: u8,
        /// How long to wait: for the region's silence, if it was heard within five seconds, and for promises of all
        /// others. Once it waits for those, it is carried out whoever waits
        #[arg(long, value_name = "SECONDS", default_value_t = SEALED_WITHIN.as_secs())]
        wait: u64,
    },
    /// List what sealed regions had alone: key, branch, versions, value
    Branches { table: String },
    /// See to a branch: it is one no more
    Resolve {
        table: String,
        key: String,
        /// The record as it is; or what the branch has, as the record's next version
        #[arg(long, value_enum)]
        keep: Keep,
        /// Which one, as `table branches` prints it, where the key has several
        #[arg(long)]
        branch: Option<String>,
    },
}

/// On what a put insists.
#[derive(Args, Debug)]
pub struct Only {
    /// Only if there is no such record
    #[arg(long, conflicts_with = "if_version")]
    if_absent: bool,
    /// Only if the record has this version: test and set
    #[arg(long, value_name = "VERSION")]
    if_version: Option<u64>,
}

/// What was seen before.
#[derive(Args, Debug)]
pub struct Session {
    /// Keep what is seen by this in a file, and show nothing older than what is in it, in whichever region
    #[arg(long, value_name = "FILE")]
    session: Option<PathBuf>,
}

/// A file of a session is one line, of at most 64 places.
const SESSION_BYTES_MAX: u64 = 64 << 10;

impl Session {
    /// Has a client go on with what the file says, if it is there.
    fn begin(&self, table: &mut TableClient<'_>) -> Result<()> {
        let Some(path) = &self.session else { return Ok(()) };
        let doing = |e: Error| e.context(format_args!("read the session in `{}`", path.display()));
        let text = match local::read_small(path, SESSION_BYTES_MAX) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(doing(e.into())),
        };
        table.go_on(&text).map_err(doing)
    }

    fn end(&self, table: &TableClient<'_>) -> Result<()> {
        let Some(path) = &self.session else { return Ok(()) };
        let text = format!("{}\n", table.session());
        local::write_private(path, text.as_bytes()).map_err(|e| {
            Error::from(e).context(format_args!("keep the session in `{}`", path.display()))
        })
    }
}

/// How new what is read must be.
#[derive(Args, Debug)]
#[group(multiple = false)]
pub struct Newness {
    /// This version or a later one
    #[arg(long, value_name = "VERSION")]
    at_least: Option<u64>,
    /// As new as the record's home shows
    #[arg(long)]
    latest: bool,
    /// As new as anything that anybody was told of
    #[arg(long)]
    strong: bool,
}

/// See `--mode`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Mode {
    /// The log of the record's home
    Timeline,
    /// The logs of a majority of regions
    Strong,
}

/// Carries out one of them.
pub fn run(client: &mut Client, command: &Table, out: &mut Output) -> Result<()> {
    match command {
        Table::Create { table, mode, tablets, here } => {
            let mode = match mode {
                Mode::Timeline => TableMode::Timeline,
                Mode::Strong => TableMode::Strong,
            };
            let make = Make { table: table.clone(), mode, tablets: *tablets, everywhere: !here };
            describe(&client.table_make(&make)?, false, out)
        }
        Table::Ls => client.tables()?.iter().try_for_each(|info| describe(info, false, out)),
        Table::Drop { table } => drop_table(client, table, out),
        Table::Split { table, tablet, at } => {
            describe(&client.table_split(table, *tablet, *at)?, true, out)
        }
        Table::Describe { table } => describe(&client.table_describe(table)?, true, out),
        Table::Put { table, key, value, file, only, session } => {
            let value = match (value, file) {
                (Some(value), _) => value.clone().into_bytes(),
                (None, Some(file)) => read_value(file)?,
                (None, None) => Vec::new(),
            };
            let expect = match (only.if_absent, only.if_version) {
                (true, _) => Expect::Absent,
                (_, Some(version)) => Expect::Version { version },
                _ => Expect::Any,
            };
            write(client, (table, key), Some(value), (expect, session), out)
        }
        Table::Write { table, file, session } => together::write(client, table, file, session, out),
        Table::Load { table, file, if_absent } => {
            load::load(client, (table, file), *if_absent, out)
        }
        Table::Delete { table, key, if_version, session } => {
            let expect = if_version.map_or(Expect::Any, |version| Expect::Version { version });
            write(client, (table, key), None, (expect, session), out)
        }
        Table::Get { table, key, level, session } => {
            let Newness { at_least, latest, strong } = *level;
            let level = match at_least {
                Some(version) => Level::Critical { version },
                None if latest => Level::Latest,
                None if strong => Level::Strong,
                None if session.session.is_some() => Level::Session,
                None => Level::Any,
            };
            let mut records = client.table(table);
            session.begin(&mut records)?;
            let record = records.get(key.as_bytes(), level)?;
            let kept = session.end(&records);
            print_value(&record.ok_or_else(|| none(table, key))?, out)?;
            kept
        }
        Table::Scan { table, prefix, from, until, limit, backwards } => {
            let (from, until) = match prefix {
                Some(prefix) => (prefix.clone().into_bytes(), after_prefix(prefix.as_bytes())),
                None => (
                    from.clone().unwrap_or_default().into_bytes(),
                    until.clone().map(String::into_bytes),
                ),
            };
            scan(client, table, (from, until), (*limit, *backwards), out)
        }
        Table::Seal { table, lost, wait } => {
            branch::seal(client, (table, *lost), Duration::from_secs(*wait), out)
        }
        Table::Branches { table } => branch::list(client, table, out),
        Table::Resolve { table, key, keep, branch } => {
            branch::resolve(client, (table, key), *keep, branch.as_deref(), out)
        }
    }
}

fn drop_table(client: &mut Client, table: &str, out: &mut Output) -> Result<()> {
    let away = client.table_drop(table)?.away;
    for region in &away {
        output::aside(format_args!(
            "region {region} cannot be reached, and drops it once it is back"
        ));
    }
    out.line(|| "dropped".to_owned(), || json!({"table": table, "dropped": true, "away": away}))
}

fn hash(text: &str) -> std::result::Result<u32, String> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_hexdigit());
    let hash = u32::from_str_radix(text, 16).ok().filter(|_| digits);
    hash.ok_or_else(|| "a hash has up to eight hexadecimal digits, as `80000000`".to_owned())
}

fn none(table: &str, key: &str) -> Error {
    let (table, key) = (table.escape_debug(), key.escape_debug());
    Error::not_found(format!("table `{table}` has no record `{key}`"))
}

fn read_value(path: &Path) -> Result<Vec<u8>> {
    // One more than there may be: the node says what is wrong with it.
    read_up_to(path, VALUE_BYTES_MAX + 1)
}

/// Not more than so many bytes of a file that the user named.
#[expect(clippy::disallowed_methods, reason = "a file that the user named")]
fn read_up_to(path: &Path, bytes_max: usize) -> Result<Vec<u8>> {
    let mut source: Box<dyn Read> = match path == Path::new("-") {
        true => Box::new(std::io::stdin()),
        false => {
            let named = |e: std::io::Error| {
                Error::from(e).context(format_args!("open `{}`", path.display()))
            };
            Box::new(File::open(path).map_err(named)?)
        }
    };
    let mut value = Vec::new();
    source.by_ref().take(bytes_max as u64).read_to_end(&mut value)?;
    Ok(value)
}

fn write(
    client: &mut Client,
    (table, key): (&str, &str),
    value: Option<Vec<u8>>,
    (expect, session): (Expect, &Session),
    out: &mut Output,
) -> Result<()> {
    let deletes = value.is_none();
    let wanted = TableWrite { key: key.as_bytes().to_vec(), value, expect };
    let mut records = client.table(table);
    session.begin(&mut records)?;
    let written = records.write(&[wanted])?.pop();
    // What was written is said whatever becomes of the session: nobody is to believe that it was not.
    let kept = session.end(&records);
    match written {
        Some(Written::Version { version }) => out.line(
            || match deletes {
                true => format!("deleted, at version {version}"),
                false => format!("version {version}"),
            },
            || json!({"key": key, "version": version, "deleted": deletes}),
        ),
        Some(Written::Found { version }) => {
            let (table, key) = (table.escape_debug(), key.escape_debug());
            Err(Error::exists(format!(
                "record `{key}` of table `{table}` has version {version}, and nothing was written: read it, and decide anew"
            )))
        }
        Some(Written::Absent) => Err(none(table, key)),
        None => Err(Error::bug("write to a table: there is no answer")),
    }?;
    kept
}

/// The value as it is where standard output is a file or a pipe; shown on a terminal.
fn print_value(record: &Record, out: &mut Output) -> Result<()> {
    if !out.is_json() && !std::io::stdout().is_terminal() {
        let mut raw = output::stdout();
        raw.write_all(&record.value)?;
        return Ok(raw.flush()?);
    }
    out.line(
        || String::from_utf8_lossy(&record.value).into_owned(),
        || versioned(&record.value, record.version),
    )
}

fn versioned(value: &[u8], version: u64) -> Value {
    let mut object = text_or_hex(value);
    object["version"] = json!(version);
    object
}

fn scan(
    client: &mut Client,
    table: &str,
    (mut from, mut until): (Vec<u8>, Option<Vec<u8>>),
    (limit, backwards): (Option<u64>, bool),
    out: &mut Output,
) -> Result<()> {
    let mut left = limit.unwrap_or(u64::MAX);
    while left > 0 {
        let rows_max = u32::try_from(left).unwrap_or(u32::MAX);
        let Page { found, next } =
            client.table(table).scan(&from, until.as_deref(), backwards, rows_max)?;
        left -= found.len() as u64;
        for found in &found {
            let record = &found.record;
            out.line(
                || {
                    let (key, value) = (one_line(&found.key), one_line(&record.value));
                    format!("{key}\t{}\t{value}", record.version)
                },
                || {
                    let mut object = versioned(&record.value, record.version);
                    object["key"] = text_or_hex(&found.key);
                    object
                },
            )?;
        }
        match next {
            Some(next) if backwards => until = Some(next),
            Some(next) => from = next,
            None => break,
        }
    }
    Ok(())
}

/// A record is one line.
fn one_line(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.replace('\\', "\\\\").replace('\n', "\\n").replace('\t', "\\t").replace('\r', "\\r")
}

fn describe(info: &TableInfo, each: bool, out: &mut Output) -> Result<()> {
    let mode = match info.mode {
        TableMode::Timeline => "timeline",
        TableMode::Strong => "strong",
    };
    let records: u64 = info.tablets.iter().map(|tablet| tablet.records).sum();
    let bytes: u64 = info.tablets.iter().map(|tablet| tablet.bytes).sum();
    let line = || {
        let mut line = format!(
            "{}  {mode}, region {} of {}, {} tablets, {records} records, {}",
            info.table,
            info.region,
            info.regions,
            info.tablets.len(),
            format_bytes(bytes)
        );
        for (number, tablet) in
            info.tablets.iter().enumerate().filter(|(_, t)| each || !t.stopped.is_empty())
        {
            line += &tablet_lines(info, number, tablet, each);
        }
        for other in info.others.iter().filter(|other| each || !other.trouble.is_empty()) {
            line += &format!("\n    region {}: {}", other.region, heard(other));
        }
        line
    };
    let object = || {
        let tablets: Vec<Value> = info.tablets.iter().map(|tablet| {
            json!({
                "applied": tablet.applied, "records": tablet.records, "tombstones": tablet.tombstones,
                "bytes": tablet.bytes, "sessions": tablet.sessions, "branches": tablet.branches,
                "stopped": tablet.stopped,
                "first_hash": format!("{:08x}", tablet.first), "last_hash": format!("{:08x}", tablet.last),
                "split": tablet.split.as_ref().map(|split| json!({
                    "at": format!("{:08x}", split.at), "into": split.into, "trouble": split.trouble,
                })),
                "streams": tablet.streams.iter().map(|stream| json!({
                    "home": stream.home, "leader": stream.leader, "held": stream.held,
                    "shown": stream.shown,
                })).collect::<Vec<_>>(),
            })
        }).collect();
        json!({
            "table": info.table, "mode": mode, "region": info.region, "regions": info.regions,
            "records": records, "bytes": bytes, "tablets": tablets,
            "others": info.others.iter().map(|other| json!({
                "region": other.region, "heard_ms": other.heard_ms, "called_lost": other.is_called_lost,
                "trouble": other.trouble,
            })).collect::<Vec<_>>(),
        })
    };
    out.line(line, object)
}

/// What people read of a tablet.
fn tablet_lines(info: &TableInfo, number: usize, tablet: &TabletInfo, each: bool) -> String {
    let state = match tablet.stopped.as_str() {
        "" => "serves".to_owned(),
        why => format!("stopped: {why}"),
    };
    let mut line = format!(
        "\n    tablet {number}: hashes {:08x} to {:08x}, {state}, at entry {}, {} records, {} tombstones, {}, {} sessions",
        tablet.first,
        tablet.last,
        tablet.applied,
        tablet.records,
        tablet.tombstones,
        format_bytes(tablet.bytes),
        tablet.sessions
    );
    if let Some(SplitInfo { at, into, trouble }) = &tablet.split {
        line += &format!("\n        is being split: tablet {into} gets hashes {at:08x} and above");
        if !trouble.is_empty() {
            line += &format!("; it waits: {trouble}");
        }
    }
    if tablet.branches > 0 {
        line += &format!(
            "\n        {} branches: what sealed regions had alone (`holdfast table branches {}`)",
            tablet.branches, info.table
        );
    }
    for stream in tablet.streams.iter().filter(|_| each && info.regions > 1) {
        line += &format!(
            "\n        home {}: led by region {}, {} entries held, {} shown",
            stream.home, stream.leader, stream.held, stream.shown
        );
    }
    line
}

/// When another region was heard, and whether it is called lost.
fn heard(other: &RegionInfo) -> String {
    let heard = match (other.trouble.as_str(), other.heard_ms) {
        ("", None) => "not heard yet".to_owned(),
        ("", Some(ms)) => format!("heard {ms} ms ago"),
        (trouble, _) => format!("cannot be reached: {trouble}"),
    };
    match other.is_called_lost {
        true => format!("{heard}, called lost (`holdfast table seal`)"),
        false => heard,
    }
}
