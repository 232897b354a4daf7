//! Reads something back from every store of the cluster, now and then, and has one that fails time and
//! again take no more writes (Haystack's pitchfork). What it holds stays: scrub and repair see to
//! that; a person looks at the disk and makes it writable again. Runs on the leader.

use crate::model::{Object, ObjectExtent};
use crate::names::decoded;
use crate::rows;
use crate::service::Blobs;
use holdfast_base::ids::StoreId;
use holdfast_base::limits::BLOCK_BYTES;
use holdfast_base::{Error, Kind, Result};
use holdfast_cluster::{ClusterCommand, NodeState, StoreState};
use holdfast_node::replicas::Wanted;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Between two rounds; each reads once from every store that a sample of the objects leads to.
pub const PROBE_MS: u64 = 10_000;
/// Rows that one round looks at.
const SAMPLE: usize = 1024;
/// Failed reads, one after another, after which a store is not written to.
const FAILURES: u32 = 3;

pub struct Prober {
    blobs: Arc<Blobs>,
    next_ms: u64,
    /// The row that the next sample begins at.
    from: Vec<u8>,
    failures: BTreeMap<StoreId, u32>,
}

impl Prober {
    pub fn new(blobs: &Arc<Blobs>) -> Prober {
        let from = vec![rows::CURRENT];
        Prober { blobs: blobs.clone(), next_ms: 0, from, failures: BTreeMap::new() }
    }

    /// One round, when it is time. What it finds is among the node's findings.
    pub fn step(&mut self, now_ns: u64) {
        let now_ms = now_ns / 1_000_000;
        if now_ms < self.next_ms || !self.blobs.node.leads() {
            return;
        }
        self.next_ms = now_ms + PROBE_MS;
        if let Err(e) = self.round()
            && !matches!(e.kind, Kind::Retry | Kind::Fenced)
        {
            self.blobs.node.report_failure("read back from the stores", &e);
        }
    }

    fn round(&mut self) -> Result<()> {
        for (store, extent) in self.sample()? {
            match self.read(store, extent) {
                Ok(()) => drop(self.failures.remove(&store)),
                Err(e) if self.is_news(store, &extent, &e)? => self.failed(store, &e),
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// An object on each store that serves and is written to, as far as the next rows lead to one.
    fn sample(&mut self) -> Result<BTreeMap<StoreId, ObjectExtent>> {
        let mut found = Vec::new();
        let mut last = None;
        self.blobs.index.scan(&self.from, &[rows::CURRENT + 1], &mut |row, value| {
            let object: Object = decoded(value, "an object")?;
            found.extend(object.needles().next().copied());
            last = Some(row.to_vec());
            Ok(found.len() < SAMPLE)
        })?;
        self.from = match last.filter(|_| found.len() == SAMPLE) {
            Some(mut row) => {
                row.push(0);
                row
            }
            None => vec![rows::CURRENT],
        };
        let node = &self.blobs.node;
        let mut sample = BTreeMap::new();
        for extent in found {
            let replicas = node.read_chunk(extent.pointer.chunk, |view, _| {
                view.get(extent.pointer.chunk).map(|known| known.replicas.clone())
            })?;
            for store in replicas.unwrap_or_default() {
                sample.entry(store).or_insert(extent);
            }
        }
        let mut writable = Vec::new();
        for store in sample.keys() {
            if self.is_writable(*store)? {
                writable.push(*store);
            }
        }
        sample.retain(|store, _| writable.contains(store));
        Ok(sample)
    }

    fn read(&self, store: StoreId, extent: ObjectExtent) -> Result<()> {
        let bytes = extent.bytes.min(BLOCK_BYTES as u32);
        let wanted = Wanted::Object { pointer: extent.pointer, offset: 0, bytes };
        let node = &self.blobs.node;
        node.wait_for(|done| node.replicator.read(&[store], wanted, done)).map(drop)
    }

    /// A store that is written to, of a node that lives.
    fn is_writable(&self, store: StoreId) -> Result<bool> {
        self.blobs.node.cluster.read(|view, _| {
            view.store(store).is_some_and(|info| {
                let lives = view.node(info.node).map(|node| node.state);
                info.state == StoreState::Live && lives == Some(NodeState::Live)
            })
        })
    }

    /// Whether a failure says something of the store: not when its node is silent by now, which
    /// others judge, nor when the object is gone meanwhile.
    fn is_news(&self, store: StoreId, extent: &ObjectExtent, e: &Error) -> Result<bool> {
        if e.kind != Kind::NotFound {
            return self.is_writable(store);
        }
        let lives = self.blobs.index.get(&rows::slot(extent.pointer))?.is_some();
        let held = self.blobs.node.read_chunk(extent.pointer.chunk, |view, _| {
            view.get(extent.pointer.chunk).is_some_and(|known| known.replicas.contains(&store))
        })?;
        Ok(lives && held)
    }

    fn failed(&mut self, store: StoreId, e: &Error) {
        let failures = self.failures.entry(store).or_default();
        *failures += 1;
        if *failures < FAILURES {
            return;
        }
        self.failures.remove(&store);
        let node = self.blobs.node.clone();
        let said = format!(
            "store {store} failed {FAILURES} reads, one after another, and is written to no more: \
             look at its disk, then say `holdfast node store {} writable`; the last failure: {e}",
            store.0
        );
        let set = ClusterCommand::SetStoreState { store, state: StoreState::ReadOnly };
        let done = {
            let node = node.clone();
            Box::new(move |done: Result<()>| {
                // What is refused comes again in the next rounds.
                if done.is_ok() {
                    node.report_finding(said);
                }
            })
        };
        node.command_cluster(&set, done);
    }
}
