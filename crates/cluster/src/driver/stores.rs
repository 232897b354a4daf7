//! The stores of this node, and which of them takes the next bytes.

use holdfast_base::ids::{StoreId, Tier};
use holdfast_base::node::StorageClass;
use holdfast_base::{Error, Result};
use holdfast_chunk::Store;
use std::collections::BTreeMap;

pub struct OwnStore {
    pub id: StoreId,
    pub tier: Tier,
    /// The directory, or `memory`: for people.
    pub place: String,
    pub store: Store,
}

/// Every store that this process opened; fixed for its life.
pub struct Stores {
    by_id: BTreeMap<StoreId, OwnStore>,
}

impl Stores {
    pub fn new(stores: Vec<OwnStore>) -> Stores {
        Stores { by_id: stores.into_iter().map(|own| (own.id, own)).collect() }
    }

    pub fn iter(&self) -> impl Iterator<Item = &OwnStore> {
        self.by_id.values()
    }

    pub fn get(&self, id: StoreId) -> Option<&OwnStore> {
        self.by_id.get(&id)
    }

    /// The store of the first of `replicas` that is here.
    pub fn holding(&self, replicas: &[StoreId]) -> Option<&Store> {
        replicas.iter().find_map(|id| self.by_id.get(id)).map(|own| &own.store)
    }

    /// The store for `bytes` more of `class`: the first tier in its order that has room; within a
    /// tier the store with the most.
    pub fn place(&self, class: StorageClass, bytes: u64) -> Result<&OwnStore> {
        let mut full = false;
        let mut read_only = false;
        for tier in class.tiers() {
            let mut best: Option<(u64, &OwnStore)> = None;
            for own in self.by_id.values().filter(|own| own.tier == tier) {
                let usage = own.store.usage();
                if usage.read_only {
                    read_only = true;
                } else if usage.free_bytes < bytes {
                    full = true;
                } else if best.is_none_or(|(most, _)| usage.free_bytes > most) {
                    best = Some((usage.free_bytes, own));
                }
            }
            if let Some((_, own)) = best {
                return Ok(own);
            }
        }
        Err(if full {
            Error::full(format!(
                "place {bytes} bytes of class `{class}`: every store of it is full; delete something or add a store"
            ))
        } else if read_only {
            Error::read_only(format!(
                "place {bytes} bytes of class `{class}`: its stores take no writes since one failed; see `holdfast doctor`, then restart the node"
            ))
        } else {
            Error::invalid(format!(
                "place {bytes} bytes of class `{class}`: this node has no store of that tier: choose another class, or give the node one"
            ))
        })
    }
}
