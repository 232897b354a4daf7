//! `holdfast doctor --rebuild-names`: a data directory beside one whose log is lost, with copies of
//! its stores and names made again from what is in them. The original is only read.

use crate::config::Config;
use crate::up;
use holdfast_base::units::MIB;
use holdfast_base::{Error, Result};
use holdfast_blob::{Blobs, BlobsOptions};
use holdfast_command::files::SETTINGS;
use holdfast_command::output::Output;
use holdfast_command::secrets;
use holdfast_env::buf::AlignedBuf;
use holdfast_env::disk::{Access, Disk, create_dir_durable};
use holdfast_node::{Node, RebuiltNames};
use serde_json::json;
use std::path::{Path, PathBuf};

/// Reasons printed in full; the rest is counted.
const REASONS_MAX: usize = 100;

/// Makes a data directory in `into`, which must be empty, with new names for all that the stores of
/// `data` hold, and says how much was found. `data` stays as it is.
pub fn run(data: &Path, into: &Path, out: &mut Output) -> Result<()> {
    holdfast_env::local::keep_private();
    let doing = |e: Error| {
        e.context(format_args!(
            "make the names of `{}` again in `{}`",
            data.display(),
            into.display()
        ))
    };
    let (rebuilt, blobs) = rebuild(data, into).map_err(doing)?;
    report(into, &rebuilt, &blobs, out)
}

fn rebuild(data: &Path, into: &Path) -> Result<(RebuiltNames, holdfast_blob::Rebuilt)> {
    let config = Config::load(data)?;
    if !config.join.is_empty() {
        return Err(Error::unsupported(format!(
            "its names are in the log of `{}`: repair that node's directory",
            config.join
        )));
    }
    if !config.log.is_empty() {
        return Err(Error::unsupported(format!(
            "brokers keep its log, at `{}`: names are there, and in the other nodes' snapshots",
            config.log
        )));
    }
    let machine = up::machine_alone();
    let disk = &*machine.disk;
    if !disk.exists(&data.join("chunks"))? {
        return Err(Error::not_found(format!("`{}` holds no stores", data.display())));
    }
    if into.starts_with(data) {
        return Err(Error::invalid("the new directory must not be inside the old one"));
    }
    // Nobody writes to it meanwhile.
    let _lock = disk.lock(&data.join("LOCK")).map_err(|e| match e.kind() {
        std::io::ErrorKind::WouldBlock => {
            Error::retry("another process uses the old directory: stop that one first")
        }
        _ => Error::from(e),
    })?;
    // Who could use the old directory can use the new one.
    let (secret, _) = secrets::of_node(data, None, "")?;
    Node::make_directory(disk, into)?;
    secrets::close(into)?;
    secrets::keep(into, &secret)?;
    copy_store(disk, &data.join("chunks"), &into.join("chunks"))?;
    let mut settings = Config::default();
    for (i, from) in config.disks.iter().enumerate() {
        let to = into.join(format!("disk-{}", i + 1));
        copy_store(disk, from, &to)?;
        settings.disks.push(to);
    }
    if !settings.disks.is_empty() {
        let places: Vec<String> =
            settings.disks.iter().map(|to| format!("{:?}", to.display().to_string())).collect();
        let text = format!("disks = [{}]\n", places.join(", "));
        let file = disk.create(&into.join(SETTINGS), Access::Cached)?;
        file.write_at_durable(text.as_bytes(), 0, "rebuild.settings")?;
    }
    let node = Node::open(machine, &up::node_config(&settings, into), None)?;
    let rebuilt = node.rebuild_names()?;
    let blobs = Blobs::open(&node, &BlobsOptions::new(into, secret))?;
    let again = blobs.rebuild()?;
    blobs.end()?;
    node.retire();
    Ok((rebuilt, again))
}

/// Copies a store's own files; what was set aside or cut stays where it is.
fn copy_store(disk: &dyn Disk, from: &Path, to: &Path) -> Result<()> {
    create_dir_durable(disk, to, 1, "rebuild.directory")?;
    for entry in disk.list(from)? {
        if entry.is_dir || entry.name == "LOCK" || entry.name.ends_with(".tmp") {
            continue;
        }
        let (from, to): (PathBuf, PathBuf) = (from.join(&entry.name), to.join(&entry.name));
        copy_file(disk, &from, &to)
            .map_err(|e| Error::from(e).context(format_args!("copy `{}`", from.display())))?;
    }
    Ok(disk.sync_dir(to, "rebuild.names")?)
}

fn copy_file(disk: &dyn Disk, from: &Path, to: &Path) -> std::io::Result<()> {
    let (from, to) = (disk.open(from, Access::Cached)?, disk.create(to, Access::Cached)?);
    let mut buf = AlignedBuf::zeroed(MIB as usize);
    let mut at = 0;
    loop {
        let got = from.read_at(&mut buf, at)?;
        if got == 0 {
            break;
        }
        to.write_at(&buf[..got], at)?;
        at += got as u64;
    }
    to.set_len(at)?;
    to.sync("rebuild.data")
}

fn report(
    into: &Path,
    rebuilt: &RebuiltNames,
    blobs: &holdfast_blob::Rebuilt,
    out: &mut Output,
) -> Result<()> {
    let reasons: Vec<&String> = rebuilt.refused.iter().chain(&blobs.refused).collect();
    for reason in reasons.iter().take(REASONS_MAX) {
        out.line(|| format!("- {reason}"), || json!({"finding": reason}))?;
    }
    let place = into.display().to_string();
    out.line(
        || {
            format!(
                "{} files have the path that they were written to, {} are below `/recovered`, {} \
                 blobs have their names; {} could not be read or named.\nRenames and deletions \
                 are unknown: files have the path of their writing, deleted ones are back, and of \
                 several versions the last one found has the path. Empty files, links, attributes \
                 and the buckets' settings are not in the stores.\nLook at it: holdfast up --data \
                 {place}",
                rebuilt.files,
                rebuilt.elsewhere,
                blobs.objects,
                reasons.len(),
            )
        },
        || {
            json!({
                "files": rebuilt.files, "elsewhere": rebuilt.elsewhere, "blobs": blobs.objects,
                "refused": reasons.len(), "data": place,
            })
        },
    )
}
