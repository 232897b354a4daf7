//! `holdfast table seal|branches|resolve`: a region that is lost, and what it had alone.

use super::one_line;
use crate::log::text_or_hex;
use clap::ValueEnum;
use holdfast_base::Result;
use holdfast_client::{self as client, Client};
use holdfast_command::output::{self, Output};
use serde_json::json;
use std::time::Duration;

/// See `--keep`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Keep {
    /// The record as it is
    Record,
    /// What the branch has, as the record's next version
    Branch,
}

pub(super) fn seal(
    client: &mut Client,
    (table, lost): (&str, u8),
    within: Duration,
    out: &mut Output,
) -> Result<()> {
    client.table(table).seal(lost, within, |waits| output::aside(waits))?;
    out.line(
        || format!("sealed: what is at home in region {lost} is led by a region that is there"),
        || json!({"table": table, "lost": lost, "sealed": true}),
    )
}

pub(super) fn list(client: &mut Client, table: &str, out: &mut Output) -> Result<()> {
    client.table(table).each_branch(None, |branch| {
        let line = || {
            let key = one_line(&branch.name.key);
            let value = match &branch.value {
                Some(value) => one_line(value),
                None => "(deleted)".to_owned(),
            };
            let (after, version) = (branch.after, branch.version);
            format!("{key}\t{}\t{after}..{version}\t{value}", branch.name.place())
        };
        let object = || {
            let value = branch.value.as_deref();
            let mut object = value.map_or(json!({"deleted": true}), text_or_hex);
            object["key"] = text_or_hex(&branch.name.key);
            object["branch"] = json!(branch.name.place());
            object["after"] = json!(branch.after);
            object["version"] = json!(branch.version);
            object
        };
        out.line(line, object)?;
        Ok(true)
    })
}

pub(super) fn resolve(
    client: &mut Client,
    (table, key): (&str, &str),
    keep: Keep,
    which: Option<&str>,
    out: &mut Output,
) -> Result<()> {
    let mut records = client.table(table);
    let branch = records.branch(key.as_bytes(), which)?;
    let (keep, kept) = match keep {
        Keep::Record => (client::Keep::Record, "the record"),
        Keep::Branch => (client::Keep::Branch, "the branch"),
    };
    records.resolve(&branch, keep)?;
    out.line(
        || format!("resolved: {kept} is kept"),
        || json!({"key": key, "branch": branch.name.place(), "resolved": true}),
    )
}
