//! The cluster view: which nodes and stores exist, in which state, and which shard keeps a path.
//! A fold of the cluster topic. It never decides who is alive; entries say so.

use crate::command::{byte_enum, from_entry, to_entry};
use holdfast_base::checksum::crc32c;
use holdfast_base::codec::{Decode, DecodeError, Encode, Reader};
use holdfast_base::ids::{Index, NodeId, StoreId, Tier};
use holdfast_base::{Error, Result, codec_enum, codec_struct, path};
use std::collections::BTreeMap;

/// The version of everything that this build writes below its data directory.
pub const DATA_FORMAT_VERSION: u32 = 1;

const SNAPSHOT_MAGIC: [u8; 4] = *b"HFCV";
const SNAPSHOT_VERSION: u8 = 1;
/// A host label or an address.
const LABEL_BYTES_MAX: usize = 255;

byte_enum! {
    StoreState: "store state" {
        Live = 1 "live",
        /// Serves reads; something failed, or a person asked.
        ReadOnly = 2 "read-only",
        /// Never comes back; its replicas are lost.
        Gone = 3 "gone",
    }
}

/// One change of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterCommand {
    /// Adds a node, or changes where it is.
    RegisterNode {
        node: NodeId,
        host: String,
        address: String,
    },
    /// Adds a store, or tells its capacity or node anew (a disk may move). Its tier stays, and a
    /// store that is gone stays gone.
    RegisterStore {
        store: StoreId,
        node: NodeId,
        tier: Tier,
        capacity: u64,
    },
    SetStoreState {
        store: StoreId,
        state: StoreState,
    },
    /// Raises the data format's version, once every node can read it.
    SetDataFormat {
        version: u32,
    },
}
codec_enum!(ClusterCommand: "cluster command" {
    1 => RegisterNode { node, host, address },
    2 => RegisterStore { store, node, tier, capacity },
    3 => SetStoreState { store, state },
    4 => SetDataFormat { version },
});
const CLUSTER_TAG_MAX: u8 = 4;

impl ClusterCommand {
    pub fn to_entry(&self) -> Vec<u8> {
        to_entry(self)
    }

    pub fn from_entry(bytes: &[u8]) -> Result<ClusterCommand> {
        from_entry(bytes, CLUSTER_TAG_MAX, "cluster")
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeInfo {
    /// Replicas go to different hosts.
    pub host: String,
    /// Of the native protocol: `host:port`.
    pub address: String,
}
codec_struct!(NodeInfo { host, address });

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreInfo {
    pub node: NodeId,
    pub tier: Tier,
    pub state: StoreState,
    pub capacity: u64,
}
codec_struct!(StoreInfo { node, tier, state, capacity });

/// Which shard keeps a path: the one named for its first component, or else the default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardMap {
    default: u16,
    components: BTreeMap<String, u16>,
}

impl ShardMap {
    /// The shard of a checked path.
    pub fn shard_of(&self, path: &str) -> u16 {
        let first = path::components(path).next();
        first.and_then(|name| self.components.get(name)).copied().unwrap_or(self.default)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterView {
    data_format: u32,
    nodes: BTreeMap<NodeId, NodeInfo>,
    stores: BTreeMap<StoreId, StoreInfo>,
    shards: ShardMap,
}

impl Default for ClusterView {
    fn default() -> ClusterView {
        ClusterView::new()
    }
}

impl ClusterView {
    pub fn new() -> ClusterView {
        ClusterView {
            data_format: DATA_FORMAT_VERSION,
            nodes: BTreeMap::new(),
            stores: BTreeMap::new(),
            shards: ShardMap::default(),
        }
    }

    pub fn data_format(&self) -> u32 {
        self.data_format
    }

    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, &NodeInfo)> {
        self.nodes.iter().map(|(id, info)| (*id, info))
    }

    pub fn node(&self, node: NodeId) -> Option<&NodeInfo> {
        self.nodes.get(&node)
    }

    pub fn stores(&self) -> impl Iterator<Item = (StoreId, &StoreInfo)> {
        self.stores.iter().map(|(id, info)| (*id, info))
    }

    pub fn store(&self, store: StoreId) -> Option<&StoreInfo> {
        self.stores.get(&store)
    }

    pub fn shards(&self) -> &ShardMap {
        &self.shards
    }

    /// Decodes and applies an entry; `Unsupported` means that the view must stop before it.
    pub fn apply_bytes(&mut self, index: Index, bytes: &[u8]) -> Result<()> {
        self.apply(index, &ClusterCommand::from_entry(bytes)?)
    }

    /// Applies a command or refuses it whole.
    pub fn apply(&mut self, _index: Index, command: &ClusterCommand) -> Result<()> {
        match command {
            ClusterCommand::RegisterNode { node, host, address } => {
                for (what, label) in [("host label", host), ("address", address)] {
                    if label.is_empty() || label.len() > LABEL_BYTES_MAX {
                        return Err(Error::invalid(format!(
                            "register node `{node}`: its {what} has {} bytes, give 1 to \
                             {LABEL_BYTES_MAX}",
                            label.len()
                        )));
                    }
                }
                let info = NodeInfo { host: host.clone(), address: address.clone() };
                self.nodes.insert(*node, info);
                Ok(())
            }
            ClusterCommand::RegisterStore { store, node, tier, capacity } => {
                self.register_store(*store, *node, *tier, *capacity)
            }
            ClusterCommand::SetStoreState { store, state } => {
                let info = self.stores.get_mut(store).ok_or_else(|| {
                    Error::not_found(format!("set the state of store `{store}`: it is not known"))
                })?;
                if info.state == StoreState::Gone && *state != StoreState::Gone {
                    return Err(gone(*store));
                }
                info.state = *state;
                Ok(())
            }
            ClusterCommand::SetDataFormat { version } => {
                if *version < self.data_format {
                    return Err(Error::invalid(format!(
                        "set the data format to version {version}: it is at {} and never goes back",
                        self.data_format
                    )));
                }
                self.data_format = *version;
                Ok(())
            }
        }
    }

    fn register_store(
        &mut self,
        store: StoreId,
        node: NodeId,
        tier: Tier,
        capacity: u64,
    ) -> Result<()> {
        if !self.nodes.contains_key(&node) {
            return Err(Error::not_found(format!(
                "register store `{store}`: node `{node}` is not known: register it first"
            )));
        }
        let mut info = StoreInfo { node, tier, state: StoreState::Live, capacity };
        if let Some(old) = self.stores.get(&store) {
            if old.state == StoreState::Gone {
                return Err(gone(store));
            }
            if old.tier != tier {
                return Err(Error::invalid(format!(
                    "register store `{store}`: it is on tier `{}`, not `{}`: make a new store",
                    old.tier.name(),
                    tier.name()
                )));
            }
            info.state = old.state;
        }
        self.stores.insert(store, info);
        Ok(())
    }

    /// Writes the state's one byte form.
    pub fn snapshot(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&SNAPSHOT_MAGIC);
        out.push(SNAPSHOT_VERSION);
        self.data_format.encode(out);
        encode_map(&self.nodes, out);
        encode_map(&self.stores, out);
        self.shards.default.encode(out);
        encode_map(&self.shards.components, out);
        crc32c(&out[start..]).encode(out);
    }

    /// The inverse of [`ClusterView::snapshot`]; refuses everything else.
    pub fn restore(bytes: &[u8]) -> Result<ClusterView> {
        let body = crate::namespace::checked_body(bytes, SNAPSHOT_MAGIC, SNAPSHOT_VERSION)
            .map_err(|e| e.context("restore the cluster view"))?;
        let mut reader = Reader::new(body);
        let view = ClusterView {
            data_format: u32::decode(&mut reader)?,
            nodes: decode_map(&mut reader)?,
            stores: decode_map(&mut reader)?,
            shards: ShardMap {
                default: u16::decode(&mut reader)?,
                components: decode_map(&mut reader)?,
            },
        };
        reader.finish()?;
        match view.stores.iter().find(|(_, info)| !view.nodes.contains_key(&info.node)) {
            Some((store, info)) => Err(Error::corrupt(format!(
                "restore the cluster view: store `{store}` is on unknown node `{}`",
                info.node
            ))),
            None => Ok(view),
        }
    }
}

fn gone(store: StoreId) -> Error {
    Error::invalid(format!("change store `{store}`: it is gone for good: make a new store"))
}

fn encode_map<K: Encode, V: Encode>(map: &BTreeMap<K, V>, out: &mut Vec<u8>) {
    (map.len() as u32).encode(out);
    for (key, value) in map {
        key.encode(out);
        value.encode(out);
    }
}

/// Refuses keys out of order, so that each state has one byte form.
fn decode_map<K: Decode + Ord, V: Decode>(
    reader: &mut Reader<'_>,
) -> Result<BTreeMap<K, V>, DecodeError> {
    let mut map = BTreeMap::new();
    for _ in 0..u32::decode(reader)? {
        let key = K::decode(reader)?;
        if map.last_key_value().is_some_and(|(last, _)| *last >= key) {
            return Err(DecodeError::BadValue("order of keys"));
        }
        map.insert(key, V::decode(reader)?);
    }
    Ok(map)
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_base::Kind;

    fn register(store: u64, node: u32, tier: Tier) -> ClusterCommand {
        let (store, node) = (StoreId(store), NodeId(node));
        ClusterCommand::RegisterStore { store, node, tier, capacity: 9 }
    }

    fn view() -> ClusterView {
        let mut view = ClusterView::new();
        let (host, address) = ("h".to_owned(), "h:7400".to_owned());
        let node = ClusterCommand::RegisterNode { node: NodeId(1), host, address };
        view.apply(Index(1), &node).unwrap();
        view.apply(Index(2), &register(7, 1, Tier::Disk)).unwrap();
        view
    }

    #[test]
    fn a_store_needs_a_node_keeps_its_tier_and_stays_gone() {
        let mut view = view();
        let mut apply = |command| view.apply(Index(9), &command);
        assert_eq!(apply(register(8, 2, Tier::Disk)).unwrap_err().kind, Kind::NotFound);
        assert_eq!(apply(register(7, 1, Tier::Dram)).unwrap_err().kind, Kind::Invalid);
        let state = |state| ClusterCommand::SetStoreState { store: StoreId(7), state };
        apply(state(StoreState::ReadOnly)).unwrap();
        apply(register(7, 1, Tier::Disk)).unwrap();
        apply(state(StoreState::Gone)).unwrap();
        apply(state(StoreState::Gone)).unwrap();
        assert!(apply(state(StoreState::Live)).is_err());
        assert!(apply(register(7, 1, Tier::Disk)).unwrap_err().message.contains("gone for good"));
        assert!(apply(ClusterCommand::SetDataFormat { version: 0 }).is_err());
        assert_eq!(view.store(StoreId(7)).unwrap().state, StoreState::Gone);
        assert_eq!(view.shards().shard_of("/any/path"), 0);
    }

    #[test]
    fn registering_again_keeps_a_read_only_store_read_only() {
        let mut view = view();
        let (store, state) = (StoreId(7), StoreState::ReadOnly);
        view.apply(Index(3), &ClusterCommand::SetStoreState { store, state }).unwrap();
        view.apply(Index(4), &register(7, 1, Tier::Disk)).unwrap();
        assert_eq!(view.store(store).unwrap().state, state);
    }

    #[test]
    fn snapshots_come_back_and_damage_is_refused() {
        let view = view();
        let mut bytes = Vec::new();
        view.snapshot(&mut bytes);
        assert_eq!(ClusterView::restore(&bytes).as_ref(), Ok(&view));
        for cut in 0..bytes.len() {
            assert!(ClusterView::restore(&bytes[..cut]).is_err());
            for bit in 0..8 {
                let mut bad = bytes.clone();
                bad[cut] ^= 1 << bit;
                assert!(ClusterView::restore(&bad).is_err(), "byte {cut} bit {bit}");
                // With its checksum made right it is refused, or a state of its own.
                let end = bad.len() - 4;
                let crc = crc32c(&bad[..end]);
                bad[end..].copy_from_slice(&crc.to_le_bytes());
                if let Ok(lie) = ClusterView::restore(&bad) {
                    let mut again = Vec::new();
                    lie.snapshot(&mut again);
                    assert_eq!(again, bad);
                }
            }
        }
    }
}
