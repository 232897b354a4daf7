//! Opening a node's own stores: one a directory, and the region. A directory that holds no store, of
//! a node that lacks one which it had, gets none: as a rule its disk is not mounted, and a store made
//! there would fill the disk of the mount point, while what the right one holds counted as lost. The
//! node starts with the others and says so. Called once, by the start.

use super::{Machine, NodeConfig, OwnStore, Stores};
use holdfast_base::Result;
use holdfast_base::ids::{ChunkId, Generation, StoreId, Tier};
use holdfast_chunk::{Recovered, Store, StoreConfig};
use holdfast_cluster::StoreState;
use holdfast_env::region::Region;
use holdfast_env::{Disk, planted};
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

fn directories(config: &NodeConfig) -> impl Iterator<Item = PathBuf> {
    std::iter::once(config.data.join("chunks")).chain(config.disks.iter().cloned())
}

/// Whether some directory holds no store, so that it matters which ones the node had.
pub(super) fn some_are_empty(disk: &dyn Disk, config: &NodeConfig) -> Result<bool> {
    for directory in directories(config) {
        if !Store::is_made(disk, &directory)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Opens what is there, makes what was never there, and leaves out what should be there and is not.
pub(super) fn open(
    machine: &Machine,
    config: &NodeConfig,
    region: Option<Arc<Region>>,
    had: &[Had],
    findings: &mut Vec<String>,
) -> Result<(Stores, Vec<Partial>)> {
    let (mut stores, mut partial, mut left_out) = (Vec::new(), Vec::new(), Vec::new());
    let (mut made, mut empty) = (Vec::new(), Vec::new());
    for directory in directories(config) {
        match Store::is_made(&*machine.disk, &directory)? {
            true => made.push(directory),
            false => empty.push(directory),
        }
    }
    for directory in made {
        let own = open_one(machine, config, &directory, &mut partial, findings)?;
        match had.iter().any(|had| had.store == own.id && had.state == StoreState::Gone) {
            true => left_out.push(given_up(&own)),
            false => stores.push(own),
        }
    }
    let is_missing = |had: &&Had| {
        had.state != StoreState::Gone && !stores.iter().any(|own: &OwnStore| own.id == had.store)
    };
    let missing: Vec<&Had> = had.iter().filter(is_missing).collect();
    for directory in empty {
        if missing.is_empty() || planted!("node.unmounted-store-made-anew") {
            stores.push(open_one(machine, config, &directory, &mut partial, findings)?);
        } else {
            left_out.push(not_mounted(&directory, &missing));
        }
    }
    if let Some(region) = region {
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

fn not_mounted(directory: &Path, missing: &[&Had]) -> String {
    let named = |had: &&Had| format!("store `{}` ({} chunks)", had.store.0, had.chunks);
    let stores: Vec<String> = missing.iter().map(named).collect();
    let number = match missing {
        [one] => one.store.0.to_string(),
        _ => "NUMBER".to_owned(),
    };
    format!(
        "`{}` is empty and not used: this node had {}, which no directory of it holds now: is its \
         disk mounted? mount it and start the node again; if that disk is gone for good, say \
         `holdfast node store {number} gone` and start the node again: a new store is made there",
        directory.display(),
        stores.join(", ")
    )
}

fn given_up(own: &OwnStore) -> String {
    format!(
        "`{}` is not used: it holds store `{}`, which was said to be gone for good: what it held was \
         made up for elsewhere: empty the directory, or take it out of `disks`, and start the node \
         again",
        own.place, own.id.0
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
