//! `holdfast table seal|branches|resolve`: a region that is lost, and what it had alone.

use super::one_line;
use crate::log::text_or_hex;
use clap::ValueEnum;
use holdfast_base::{Error, Kind, Result};
use holdfast_client::{Client, TableWrite};
use holdfast_command::output::Output;
use holdfast_env::tasks::Stop;
use holdfast_wire::table::{Branch, BranchName, Expect, Level, Sealed, Written};
use serde_json::json;
use std::time::Duration;

/// Between two looks whether a lost region's homes are led.
const LOOK: Duration = Duration::from_millis(300);
/// So often: longer than promises take around the earth.
const LOOKS: u32 = 50;

/// See `--keep`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Keep {
    /// The record as it is
    Record,
    /// What the branch has, as the record's next version
    Branch,
}

pub(super) fn seal(client: &mut Client, table: &str, lost: u8, out: &mut Output) -> Result<()> {
    let mut waits_for = Vec::new();
    for _ in 0..LOOKS {
        let sealed: Sealed = client.table(table).seal(lost)?;
        if sealed.are_led {
            return out.line(
                || {
                    format!(
                        "sealed: what is at home in region {lost} is led by a region that is there"
                    )
                },
                || json!({"table": table, "lost": lost, "sealed": true}),
            );
        }
        waits_for = sealed.waits_for;
        Stop::new().sleep_until_stop(LOOK);
    }
    let others: Vec<String> = waits_for.iter().map(|region| format!("region {region}")).collect();
    let missing = match others.is_empty() {
        true => "another region is to lead it, and does not yet".to_owned(),
        false => format!("{} did not promise yet", others.join(", ")),
    };
    Err(Error::retry(format!(
        "seal what is at home in region {lost}: {missing}: say it again once all others can be reached"
    )))
}

/// All branches behind one of them, in order of tablets and keys; `see` says whether those of the tablet go on.
fn each(
    client: &mut Client,
    table: &str,
    after: Option<&BranchName>,
    mut see: impl FnMut(Branch) -> Result<bool>,
) -> Result<()> {
    let tablets = client.table_describe(table)?.tablets.len() as u16;
    for tablet in 0..tablets {
        let mut after = after.cloned();
        let mut goes_on = true;
        while goes_on {
            let page = client.table(table).branches(tablet, after)?;
            after = page.last().map(|branch| branch.name.clone());
            goes_on = after.is_some();
            for branch in page {
                goes_on = goes_on && see(branch)?;
            }
        }
    }
    Ok(())
}

/// Its name, as `--branch` takes it: home, epoch, number.
fn name(branch: &BranchName) -> String {
    let BranchName { stream, epoch, number, .. } = branch;
    format!("{stream}.{epoch}.{number}")
}

pub(super) fn list(client: &mut Client, table: &str, out: &mut Output) -> Result<()> {
    each(client, table, None, |branch| {
        let line = || {
            let key = one_line(&branch.name.key);
            let value = match &branch.value {
                Some(value) => one_line(value),
                None => "(deleted)".to_owned(),
            };
            let (after, version) = (branch.after, branch.version);
            format!("{key}\t{}\t{after}..{version}\t{value}", name(&branch.name))
        };
        let object = || {
            let value = branch.value.as_deref();
            let mut object = value.map_or(json!({"deleted": true}), text_or_hex);
            object["key"] = text_or_hex(&branch.name.key);
            object["branch"] = json!(name(&branch.name));
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
    let branch = find(client, (table, key), which)?;
    let mut records = client.table(table);
    if keep == Keep::Branch {
        let record = records.get(key.as_bytes(), Level::Latest)?;
        let version = record.as_ref().map(|record| record.version);
        let expect = version.map_or(Expect::Absent, |version| Expect::Version { version });
        let value = branch.value.clone();
        // What is deleted on both sides is so already.
        let write = (version.is_some() || value.is_some()).then(|| TableWrite {
            key: key.as_bytes().to_vec(),
            value,
            expect,
        });
        let written = records.write(write.as_slice())?;
        if !written.iter().all(|written| matches!(written, Written::Version { .. })) {
            let key = key.escape_debug();
            return Err(Error::exists(format!(
                "record `{key}` was written meanwhile, and the branch is as it was: look at both, and say it again"
            )));
        }
    }
    match records.resolve(&branch.name) {
        // Its value was written for nothing, or in the place of what they kept: nobody is told otherwise.
        Err(e) if keep == Keep::Branch && e.kind == Kind::NotFound => {
            let key = key.escape_debug();
            return Err(Error::exists(format!(
                "record `{key}` has what the branch had as its next version, but somebody else saw to the branch \
                 meanwhile, and may have kept the record: look at it"
            )));
        }
        resolved => resolved?,
    }
    let kept = if keep == Keep::Branch { "the branch" } else { "the record" };
    out.line(
        || format!("resolved: {kept} is kept"),
        || json!({"key": key, "branch": name(&branch.name), "resolved": true}),
    )
}

/// The branch of a key, of several the one with this name.
fn find(client: &mut Client, (table, key): (&str, &str), which: Option<&str>) -> Result<Branch> {
    let before = BranchName { key: key.as_bytes().to_vec(), stream: 0, epoch: 0, number: 0 };
    let mut found = Vec::new();
    each(client, table, Some(&before), |branch| {
        let same = branch.name.key == key.as_bytes();
        if same && which.is_none_or(|which| which == name(&branch.name)) {
            found.push(branch);
        }
        Ok(same)
    })?;
    let (shown_table, shown_key) = (table.escape_debug(), key.escape_debug());
    let names: Vec<String> = found.iter().map(|branch| name(&branch.name)).collect();
    match found.pop() {
        None => Err(Error::not_found(format!(
            "record `{shown_key}` of table `{shown_table}` has no such branch: look at `holdfast table branches`"
        ))),
        Some(branch) if found.is_empty() => Ok(branch),
        Some(_) => Err(Error::invalid(format!(
            "record `{shown_key}` has {} branches: name one by --branch: {}",
            names.len(),
            names.join(", ")
        ))),
    }
}
