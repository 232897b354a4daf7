//! Booting a fold: the newest valid snapshot, and proof that the log is the one it was taken of.

use super::blocks::Header;
use super::machine::Machine;
use super::place::Context;
use super::{Arrival, SnapshotStore, View, snapshot};
use holdfast_base::checksum::crc32c;
use holdfast_base::ids::Index;
use holdfast_base::{Error, Kind, Result};
use holdfast_env::planted;
use holdfast_log::{Info, Log, Scope};
use std::path::Path;

pub struct Booted<V> {
    pub machine: Machine<V>,
    pub snapshot: Option<Index>,
    /// Damaged snapshots that were passed over.
    pub reports: Vec<String>,
}

/// As [`boot`], with the state that arrives from elsewhere, if any does, instead of what is here.
pub fn boot_from<V: View>(
    context: &Context,
    store: &SnapshotStore,
    arrival: Option<Arrival<'_, '_>>,
) -> Result<Booted<V>> {
    let Some(Arrival { applied, entry_crc, digest, source }) = arrival else {
        return boot(context, store);
    };
    snapshot::prepare(store)?;
    let machine = Machine::read(context, source, (applied, entry_crc, digest), false);
    let machine = machine.map_err(|e| {
        e.context(format_args!("begin view `{}` of topic `{}`", V::NAME, context.topic))
    })?;
    Ok(Booted { machine, snapshot: None, reports: Vec::new() })
}

/// Loads what was kept with the view, or the newest valid snapshot if that is newer. The log is to be
/// checked against it before it is applied.
pub fn boot<V: View>(context: &Context, store: &SnapshotStore) -> Result<Booted<V>> {
    snapshot::prepare(store)?;
    snapshot::remove_left(store)?;
    let machine = Machine::kept(context)?;
    let mut booted = Booted { machine, snapshot: None, reports: Vec::new() };
    for index in snapshot::list(store)?.into_iter().rev() {
        if index <= booted.machine.applied {
            break;
        }
        match load::<V>(store, context, index) {
            Ok(machine) => {
                (booted.machine, booted.snapshot) = (machine, Some(index));
                break;
            }
            Err(e) if e.kind == Kind::Corrupt => booted.reports.push(e.message),
            Err(e) => return Err(e),
        }
    }
    Ok(booted)
}

fn load<V: View>(store: &SnapshotStore, context: &Context, index: Index) -> Result<Machine<V>> {
    let path = snapshot::path(store, index);
    if V::OUTLIVES {
        // What was kept goes when the first block is restored.
        snapshot::verify(&*store.disk, &path)?;
    }
    snapshot::read(store, index, |header, payload| {
        check_header::<V>(header, &context.topic, &path)?;
        let position = (header.index, header.entry_crc, header.digest);
        Machine::read(context, payload, position, header.has_term)
            .map_err(|e| e.context(format_args!("restore snapshot `{}`", path.display())))
    })
}

fn check_header<V: View>(header: &Header, topic: &str, path: &Path) -> Result<()> {
    if header.view != V::NAME || header.topic != topic {
        return Err(Error::invalid(format!(
            "boot view `{}` of topic `{topic}`: `{}` is a snapshot of view `{}` of topic `{}`: give each view a directory of its own",
            V::NAME,
            path.display(),
            header.view,
            header.topic
        )));
    }
    if !(V::READS_FROM..=V::VERSION).contains(&header.view_version) {
        return Err(Error::unsupported(format!(
            "boot view `{}`: snapshot `{}` has version {}, this build reads {}: use the build that wrote it",
            V::NAME,
            path.display(),
            header.view_version,
            V::VERSION
        )));
    }
    Ok(())
}

/// Refuses a log that does not hold what the machine has applied. False says that the log's own
/// entry at that place is not here yet; the entries behind it must not be applied before.
pub fn check_log<V: View>(
    log: &dyn Log,
    topic: &str,
    info: Option<Info>,
    machine: &Machine<V>,
) -> Result<bool> {
    let applied = machine.applied;
    let refuse = |why: String| {
        Err(Error::corrupt(format!(
            "boot view `{}`: {why}: log and snapshots are of different age or origin; restore both from one copy",
            V::NAME
        )))
    };
    if let Some(info) = info {
        if info.first.0 > applied.0 + 1 {
            return refuse(format!(
                "topic `{topic}` begins at entry {}, the newest valid snapshot ends at {applied}",
                info.first
            ));
        }
        if V::OUTLIVES && info.next <= applied {
            return Err(Error::corrupt(format!(
                "boot view `{}`: the log is older than the view: topic `{topic}` goes on at entry {}, \
                 and what is kept beside it holds entries up to {applied}: put back the log as it \
                 was; to go on without what is missing, remove what is kept beside it, snapshots \
                 that are newer than the log, too",
                V::NAME,
                info.next
            )));
        }
        if applied.0 > 0 && info.next <= applied {
            return refuse(format!(
                "topic `{topic}` ends before entry {}, the snapshot holds entries up to {applied}",
                info.next
            ));
        }
        if info.first > applied {
            return Ok(true);
        }
    }
    if applied.0 == 0 {
        return Ok(true);
    }
    match log.read(topic, applied, 1, 1, Scope::Written)?.first() {
        None => Ok(false),
        Some((index, entry))
            if *index == applied
                && (crc32c(entry) == machine.entry_crc || planted!("log.other-log-believed")) =>
        {
            Ok(true)
        }
        Some(_) => refuse(format!(
            "entry {applied} of topic `{topic}` is not the one that the snapshot contains"
        )),
    }
}
