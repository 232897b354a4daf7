//! The cluster view as bytes, and back: docs/formats/cluster.md. The same state has one form. What
//! a build before clusters (version 1), before recovery's settings (2), before certificates (3),
//! before nodes that keep views alone (4) or before starts had nonces (5) wrote is read too.

use super::identities::Identities;
use super::tokens::Tokens;
use super::{ClusterView, Leadership, NodeInfo, NodeState, ShardMap, StoreInfo, mib};
use crate::StoreState;
use crate::namespace::{check_end, check_start};
use holdfast_base::codec::{Decode, DecodeError, Encode, Reader};
use holdfast_base::ids::{Index, NodeId, StoreId, Tier};
use holdfast_base::stream::{Source, Writer, collect, read_all};
use holdfast_base::{Error, Result, codec_struct};
use holdfast_wire::admin::RecoverySettings;
use std::collections::BTreeMap;

const MAGIC: [u8; 4] = *b"HFCV";
const VERSION: u8 = 6;
const VERSION_BEFORE_STARTS: u8 = 5;
const VERSION_BEFORE_VIEW_NODES: u8 = 4;
const VERSION_BEFORE_CERTIFICATES: u8 = 3;
/// Without what a person said about recovery.
const VERSION_BEFORE_RECOVERY: u8 = 2;
const VERSION_BEFORE_CLUSTERS: u8 = 1;

codec_struct!(NodeInfo { host, rack, address, state, incarnation, draining, nonce, start_nonce });
codec_struct!(StoreInfo { node, tier, state, capacity, free_mib });

struct OldNode {
    host: String,
    address: String,
}
codec_struct!(OldNode { host, address });

struct NodeBeforeStarts {
    host: String,
    rack: String,
    address: String,
    state: NodeState,
    incarnation: Index,
    draining: bool,
    nonce: u64,
}
codec_struct!(NodeBeforeStarts { host, rack, address, state, incarnation, draining, nonce });

impl NodeBeforeStarts {
    fn now(self) -> NodeInfo {
        let NodeBeforeStarts { host, rack, address, state, incarnation, draining, nonce } = self;
        NodeInfo { host, rack, address, state, incarnation, draining, nonce, start_nonce: 0 }
    }
}

struct OldStore {
    node: NodeId,
    tier: Tier,
    state: StoreState,
    capacity: u64,
}
codec_struct!(OldStore { node, tier, state, capacity });

impl ClusterView {
    /// Appends the state's one byte form.
    pub fn snapshot(&self, out: &mut Vec<u8>) {
        collect(out, |out| self.write(out));
    }

    /// Writes the state's one byte form, value after value.
    pub(crate) fn write(&self, out: &mut Writer<'_>) {
        out.begin_crc();
        out.put_with(|out| out.extend_from_slice(&MAGIC));
        out.put(&VERSION);
        out.put(&self.data_format);
        out.put(&self.id);
        out.put_with(|out| encode_map(&self.nodes, out));
        out.put_with(|out| encode_map(&self.stores, out));
        out.put_with(|out| self.leadership.encode(out));
        out.put(&self.shards.default);
        out.put_with(|out| encode_map(&self.shards.components, out));
        out.put(&self.recovery);
        out.put_with(|out| self.identities.encode(out));
        out.put_with(|out| self.tokens.encode(out));
        let view_nodes = self.view_nodes.iter().map(|node| (*node, ())).collect();
        out.put_with(|out| encode_map(&view_nodes, out));
        let crc = out.crc();
        out.put(&crc);
    }

    /// The inverse of [`ClusterView::snapshot`]; refuses everything else.
    pub fn restore(bytes: &[u8]) -> Result<ClusterView> {
        read_all(bytes, ClusterView::read)
    }

    /// The inverse of [`ClusterView::write`].
    pub(crate) fn read(source: &mut Source<'_>) -> Result<ClusterView> {
        ClusterView::read_parts(source).map_err(|e| e.context("restore the cluster view"))
    }

    fn read_parts(source: &mut Source<'_>) -> Result<ClusterView> {
        let version = check_start(source, MAGIC, VERSION_BEFORE_CLUSTERS..=VERSION)?;
        let mut view = ClusterView { data_format: source.get()?, ..Self::new() };
        if version == VERSION_BEFORE_CLUSTERS {
            view.restore_before_clusters(source)?;
        } else {
            view.id = source.get()?;
            view.nodes = match version > VERSION_BEFORE_STARTS {
                true => source.get_with(decode_map)?,
                false => {
                    let nodes: BTreeMap<NodeId, NodeBeforeStarts> = source.get_with(decode_map)?;
                    nodes.into_iter().map(|(id, node)| (id, node.now())).collect()
                }
            };
            view.stores = source.get_with(decode_map)?;
            view.leadership = source.get_with(Leadership::decode)?;
        }
        let (default, components) = (source.get()?, source.get_with(decode_map)?);
        view.shards = ShardMap { default, components };
        if version > VERSION_BEFORE_RECOVERY {
            view.recovery = source.get_with(RecoverySettings::decode)?;
        }
        if version > VERSION_BEFORE_CERTIFICATES {
            view.identities = source.get_with(Identities::decode)?;
            view.tokens = source.get_with(Tokens::decode)?;
        }
        if version > VERSION_BEFORE_VIEW_NODES {
            let view_nodes: BTreeMap<NodeId, ()> = source.get_with(decode_map)?;
            view.view_nodes = view_nodes.into_keys().collect();
        }
        check_end(source)?;
        view.check()?;
        Ok(view)
    }

    fn restore_before_clusters(&mut self, source: &mut Source<'_>) -> Result<()> {
        let nodes: BTreeMap<NodeId, OldNode> = source.get_with(decode_map)?;
        let stores: BTreeMap<StoreId, OldStore> = source.get_with(decode_map)?;
        let node = |old: OldNode| NodeInfo::unstarted(old.host, String::new(), old.address, 0);
        self.nodes = nodes.into_iter().map(|(id, old)| (id, node(old))).collect();
        let store = |old: OldStore| {
            let OldStore { node, tier, state, capacity } = old;
            StoreInfo { node, tier, state, capacity, free_mib: mib(capacity) }
        };
        self.stores = stores.into_iter().map(|(id, old)| (id, store(old))).collect();
        Ok(())
    }

    /// What a snapshot's parts say of each other.
    fn check(&self) -> Result<()> {
        super::check_recovery(&self.recovery)?;
        self.identities.check(|node| self.nodes.contains_key(&node))?;
        self.tokens.check()?;
        if let Some((store, info)) =
            self.stores.iter().find(|(_, info)| !self.nodes.contains_key(&info.node))
        {
            return Err(Error::corrupt(format!(
                "store `{store}` is on unknown node `{}`",
                info.node
            )));
        }
        let mut nonces: Vec<u64> = self.nodes.values().map(|node| node.nonce).collect();
        nonces.retain(|nonce| *nonce != 0);
        let count = nonces.len();
        nonces.sort_unstable();
        nonces.dedup();
        if nonces.len() != count {
            return Err(Error::corrupt("two nodes share a nonce"));
        }
        if let Some(node) = self.view_nodes.iter().find(|node| !self.nodes.contains_key(node)) {
            return Err(Error::corrupt(format!("unknown node `{node}` keeps views alone")));
        }
        let started = |info: &NodeInfo| info.incarnation != Index(0);
        let beginning = |info: &NodeInfo| info.state == NodeState::Live && info.start_nonce == 0;
        let idle = self.nodes.values().find(|info| !started(info) && !beginning(info));
        if let Some(info) = idle {
            return Err(Error::corrupt(format!(
                "the node at `{}` never started, and is {}, with nonce {} of a start",
                info.address,
                info.state.name(),
                info.start_nonce
            )));
        }
        // Who sits was decided entry by entry; that the seats are as full as they can be is not.
        let mut again = self.leadership.clone();
        again.reseat(Index(0), self.may_sit());
        if again != self.leadership {
            return Err(Error::corrupt("the controllers do not agree with the nodes"));
        }
        Ok(())
    }
}

pub(super) fn encode_map<K: Encode, V: Encode>(map: &BTreeMap<K, V>, out: &mut Vec<u8>) {
    (map.len() as u32).encode(out);
    for (key, value) in map {
        key.encode(out);
        value.encode(out);
    }
}

/// Refuses keys out of order, so that each state has one byte form.
pub(super) fn decode_map<K: Decode + Ord, V: Decode>(
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
