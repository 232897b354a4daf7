//! The stores of this node, and which of them takes the next bytes.

use holdfast_base::Error;
use holdfast_base::ids::{StoreId, Tier};
use holdfast_base::limits::CHUNK_BYTES;
use holdfast_base::node::StorageClass;
use holdfast_base::units::MIB;
use holdfast_chunk::Store;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// A store holds at least this many chunks, or one large file would leave no room for another.
const CHUNKS_MIN: u64 = 16;
/// The smallest chunk of a small store.
const CHUNK_BYTES_MIN: u64 = 4 * MIB;

pub struct OwnStore {
    pub id: StoreId,
    pub tier: Tier,
    /// The directory, or `memory`: for people.
    pub place: String,
    pub store: Store,
    /// [`super::NodeConfig::chunk_bytes`].
    pub chunk_bytes_max: u64,
}

impl OwnStore {
    /// Capacity of a new chunk: smaller than usual where the store is small.
    pub fn chunk_bytes(&self) -> u64 {
        chunk_bytes(self.store.usage().capacity_bytes, self.chunk_bytes_max)
    }
}

/// Capacity of a new chunk in a store of so many bytes.
fn chunk_bytes(capacity: u64, chunk_bytes_max: u64) -> u64 {
    (capacity / CHUNKS_MIN / MIB * MIB).max(CHUNK_BYTES_MIN).min(chunk_bytes_max)
}

/// Every store that this process opened; fixed for its life.
pub struct Stores {
    by_id: BTreeMap<StoreId, OwnStore>,
    /// Why directories are not used, a sentence each.
    left_out: Vec<String>,
}

impl Stores {
    pub fn new(stores: Vec<OwnStore>) -> Stores {
        let by_id = stores.into_iter().map(|own| (own.id, own)).collect();
        Stores { by_id, left_out: Vec::new() }
    }

    /// And some directories are not used, for these reasons.
    pub fn without(self, left_out: Vec<String>) -> Stores {
        Stores { left_out, ..self }
    }

    /// Why directories of this node are not used as stores, until it is started again.
    pub fn left_out(&self) -> &[String] {
        &self.left_out
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

    /// Capacity of a new chunk in some node's store of `capacity` bytes.
    pub fn chunk_bytes_of(&self, capacity: u64) -> u64 {
        let max = self.by_id.values().map(|own| own.chunk_bytes_max).min();
        chunk_bytes(capacity, max.unwrap_or(CHUNK_BYTES))
    }

    /// The store of a tier for a new chunk that takes `least_bytes` or more: of those with room
    /// for a chunk the one with the most, and of several on one file system, which all have what
    /// it has, the emptiest. Those in `closed` take none.
    pub fn for_chunk(&self, tier: Tier, least_bytes: u64, closed: &[StoreId]) -> Option<&OwnStore> {
        let of_tier = self.by_id.values();
        let of_tier = of_tier.filter(|own| own.tier == tier && !closed.contains(&own.id));
        let room = of_tier.filter_map(|own| {
            let usage = own.store.usage();
            let fits = usage.takes_chunk(own.chunk_bytes().max(least_bytes));
            fits.then_some(((usage.free_bytes, Reverse(usage.used_bytes), own.id), own))
        });
        room.max_by_key(|(rank, _)| *rank).map(|(_, own)| own)
    }

    /// Why no store takes a chunk of `class`.
    pub fn refusal(&self, class: StorageClass) -> Error {
        let wanted = |own: &&OwnStore| class.tiers().any(|tier| tier == own.tier);
        let mut stores = self.by_id.values().filter(wanted).peekable();
        if stores.peek().is_none()
            && let Some(why) = self.left_out.first()
        {
            return Error::read_only(format!("place bytes of class `{class}`: {why}"));
        }
        if stores.peek().is_none() {
            return Error::invalid(format!(
                "place bytes of class `{class}`: this node has no store of that tier"
            ));
        }
        if stores.all(|own| own.store.usage().read_only) {
            return Error::read_only(format!(
                "place bytes of class `{class}`: its stores take no writes since one failed; see `holdfast doctor`, then restart the node"
            ));
        }
        let mut of_class = self.by_id.values().filter(wanted);
        if let Some(own) = of_class.find(|own| own.store.usage().free_files == 0) {
            return Error::full(format!(
                "place bytes of class `{class}`: the file system of `{}` takes no more files (its inodes are used up): remove files there or add a store",
                own.place
            ));
        }
        Error::full(format!(
            "place bytes of class `{class}`: every store of it is full; delete something or add a store"
        ))
    }
}
