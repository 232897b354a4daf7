//! Opening a node's own stores: one a directory, and the region. A directory that holds no store, of
//! a node that lacks one which it had, gets none: as a rule its disk is not mounted, and a store made
//! there would fill the disk of the mount point, while what the right one holds counted as lost. The
//! node starts with the others and says so. Called once, by the start.

use super::{Machine, NodeConfig, OwnStore, Stores};
use holdfast_base::ids::{ChunkId, Generation, StoreId, Tier};
use holdfast_base::{Error, Result};
use holdfast_chunk::{Recovered, Store, StoreConfig};
use holdfast_cluster::StoreState;
use holdfast_env::region::Region;
use holdfast_env::{Disk, planted};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A chunk that a store has received in part.
pub(super) type Partial = (StoreId, ChunkId, Generation);

/// A disk store that the cluster knows of this node.
pub(super) struct Had {
    pub store: StoreId,
    pub state: StoreState,
    /// That the names have on it.
    pub chunks: usize,
}

/// What the cluster's view knows when the stores are opened.
#[derive(Default)]
pub(super) struct Before {
    /// Of this node.
    pub had: Vec<Had>,
    /// Of all nodes; nothing is known to a node that has no number yet.
    pub known: Option<BTreeSet<StoreId>>,
}

/// A directory for a store, and which one it holds, if any.
pub(super) type Place = (PathBuf, Option<StoreId>);

/// Looks what is in the directories. Two that hold one store are refused: one is a copy, and writes
/// would be split between them.
pub(super) fn places(disk: &dyn Disk, config: &NodeConfig) -> Result<Vec<Place>> {
    let mut places: Vec<Place> = Vec::new();
    if !config.keeps_chunks {
        return Ok(places);
    }
    for directory in std::iter::once(config.data.join("chunks")).chain(config.disks.iter().cloned())
    {
        let id = Store::id_in(disk, &directory)?;
        let same = places.iter().find(|(_, other)| id.is_some() && *other == id);
        if let Some((other, _)) = same
            && !planted!("node.two-copies-of-a-store-used")
        {
            if *other == directory {
                let why = format!("open stores: `{}` is named twice in `disks`", other.display());
                return Err(Error::invalid(why));
            }
            return Err(Error::invalid(format!(
                "open stores: `{}` and `{}` hold the same store: one is a copy of the other: take the \
                 older one out of `disks`",
                other.display(),
                directory.display()
            )));
        }
        places.push((directory, id));
    }
    Ok(places)
}

/// Opens what is there, makes what was never there, and leaves out what should be there and is not.
pub(super) fn open(
    machine: &Machine,
    config: &NodeConfig,
    region: Option<Arc<Region>>,
    (places, before): (Vec<Place>, &Before),
    findings: &mut Vec<String>,
) -> Result<(Stores, Vec<Partial>)> {
    let (mut stores, mut partial, mut left_out) = (Vec::new(), Vec::new(), Vec::new());
    let is_missing = |had: &&Had| {
        let is_here = places.iter().any(|(_, id)| *id == Some(had.store));
        had.state != StoreState::Gone && !is_here
    };
    let missing: Vec<&Had> = before.had.iter().filter(is_missing).collect();
    let is_gone =
        |id: StoreId| before.had.iter().any(|had| had.store == id && had.state == StoreState::Gone);
    let lacks: Vec<&Had> = missing.iter().copied().filter(|had| had.chunks > 0).collect();
    let is_unknown = |id| before.known.as_ref().is_some_and(|known| !known.contains(&id));
    let mut strangers = BTreeSet::new();
    for (directory, id) in &places {
        let Some(id) = id.filter(|id| is_unknown(*id)) else { continue };
        // A store that was just made is not known either, where a kill came between; it is empty.
        let is_strange = !lacks.is_empty() || Store::has_chunks(&*machine.disk, directory)?;
        if is_strange && !planted!("node.strange-store-used") {
            strangers.insert(id);
        }
    }
    if places.iter().all(|(_, id)| id.is_some_and(|id| !strangers.contains(&id))) {
        left_out.extend(lacks.into_iter().map(nowhere));
    }
    for (directory, id) in places {
        let why = match id {
            Some(id) if is_gone(id) => given_up(&directory, id),
            Some(id) if strangers.contains(&id) => strange(&directory, id, &missing),
            None if !missing.is_empty() && !planted!("node.unmounted-store-made-anew") => {
                not_mounted(&directory, &missing)
            }
            _ => {
                stores.push(open_one(machine, config, &directory, &mut partial, findings)?);
                continue;
            }
        };
        left_out.push(why);
    }
    if let Some(region) = region {
        assert!(config.keeps_chunks, "a region is a store");
        let (id, chunk_bytes_max) = (region.store(), config.chunk_bytes);
        let store = Store::in_region(region);
        let place = "memory".to_owned();
        stores.push(OwnStore { id, tier: Tier::Dram, place, store, chunk_bytes_max });
    }
    Ok((Stores::new(stores).without(left_out), partial))
}

fn open_one(
    machine: &Machine,
    config: &NodeConfig,
    directory: &Path,
    partial: &mut Vec<Partial>,
    findings: &mut Vec<String>,
) -> Result<OwnStore> {
    let place = directory.display().to_string();
    let store_config = StoreConfig {
        commit_threads: config.commit_threads,
        reserve_bytes: config.reserve_bytes,
        capacity_bytes: config.capacity_bytes,
        spare_file: config.commit_threads > 0,
        journal_segment_bytes: config.journal_segment_bytes,
        ..StoreConfig::new(directory)
    };
    let (store, found) = Store::open(machine.disk.clone(), machine.rng.clone(), store_config)
        .map_err(|e| e.context(format_args!("open store `{place}`")))?;
    describe(&place, &found, findings);
    partial.extend(found.partial.iter().map(|part| (found.store, part.0, part.1)));
    let (id, tier, chunk_bytes_max) = (found.store, Tier::Disk, config.chunk_bytes);
    Ok(OwnStore { id, tier, place, store, chunk_bytes_max })
}

fn named(missing: &[&Had]) -> String {
    let named = |had: &&Had| format!("store `{}` ({} chunks)", had.store.0, had.chunks);
    missing.iter().map(named).collect::<Vec<_>>().join(", ")
}

fn number(missing: &[&Had]) -> String {
    match missing {
        [one] => one.store.0.to_string(),
        _ => "NUMBER".to_owned(),
    }
}

fn not_mounted(directory: &Path, missing: &[&Had]) -> String {
    format!(
        "`{}` holds no store and is not used: this node had {}, which no directory of it holds now: is \
         its disk mounted? mount it and start the node again; if that disk is gone for good, say \
         `holdfast node store {} gone` and start the node again: a new store is made there",
        directory.display(),
        named(missing),
        number(missing)
    )
}

fn strange(directory: &Path, id: StoreId, missing: &[&Had]) -> String {
    if missing.is_empty() {
        return format!(
            "`{}` is not used: it holds store `{}` with chunks of another cluster, which this one does \
             not know: mount the right disk, or empty the directory if nobody needs what it holds, and \
             start the node again",
            directory.display(),
            id.0
        );
    }
    format!(
        "`{}` is not used: it holds store `{}`, which this cluster does not know, while this node had \
         {}, which no directory of it holds now: is the right disk mounted? mount it and start the \
         node again; if that disk is gone for good, say `holdfast node store {} gone` and start the \
         node again",
        directory.display(),
        id.0,
        named(missing),
        number(missing)
    )
}

fn nowhere(had: &Had) -> String {
    format!(
        "{} is in no directory of this node: name the one that holds it in `disks` and start the node \
         again; if it is gone for good, say `holdfast node store {} gone`",
        named(&[had]),
        had.store.0
    )
}

fn given_up(directory: &Path, id: StoreId) -> String {
    format!(
        "`{}` is not used: it holds store `{}`, which was said to be gone for good: see in `holdfast \
         doctor` whether chunks lack copies before you empty the directory or take it out of `disks`; \
         what they hold can be had from there by `holdfast doctor --rebuild-names`",
        directory.display(),
        id.0
    )
}

/// What a store's recovery found, in sentences. Whether a torn end was acknowledged is not said: that
/// of a process that ended within a write was not, that of a file which somebody cut was, and the
/// view tells which.
fn describe(place: &str, found: &Recovered, findings: &mut Vec<String>) {
    for cut in &found.cut_tails {
        findings.push(format!(
            "chunk `{}` in `{place}` ended within a write: {} torn bytes are kept in `{}`",
            cut.chunk,
            cut.bytes,
            cut.kept_as.display()
        ));
    }
    for damage in &found.damaged {
        findings.push(format!("chunk `{}` in `{place}` is damaged: {}", damage.chunk, damage.what));
    }
    for what in &found.journal_damage {
        findings.push(format!("the journal of `{place}` is damaged: {what}"));
    }
    findings.extend(found.mark_damage.iter().cloned());
    for (name, why) in &found.quarantined {
        findings.push(format!("`{name}` in `{place}` was moved to `quarantine`: {why}"));
    }
}
