//! The cluster view as bytes, and back: docs/formats/cluster.md. The same state has one form. What
//! a build before clusters (version 1) or before recovery's settings (2) wrote is read too.

use super::{ClusterView, Leadership, NodeInfo, NodeState, ShardMap, StoreInfo, mib};
use crate::StoreState;
use holdfast_base::checksum::crc32c;
use holdfast_base::codec::{Decode, DecodeError, Encode, Reader};
use holdfast_base::ids::{Index, NodeId, StoreId, Tier};
use holdfast_base::{Error, Result, codec_struct};
use holdfast_wire::admin::RecoverySettings;
use std::collections::BTreeMap;

const MAGIC: [u8; 4] = *b"HFCV";
const VERSION: u8 = 3;
/// Without what a person said about recovery.
const VERSION_BEFORE_RECOVERY: u8 = 2;
const VERSION_BEFORE_CLUSTERS: u8 = 1;

codec_struct!(NodeInfo { host, rack, address, state, incarnation, draining, nonce });
codec_struct!(StoreInfo { node, tier, state, capacity, free_mib });

struct OldNode {
    host: String,
    address: String,
}
codec_struct!(OldNode { host, address });

struct OldStore {
    node: NodeId,
    tier: Tier,
    state: StoreState,
    capacity: u64,
}
codec_struct!(OldStore { node, tier, state, capacity });

impl ClusterView {
    /// Writes the state's one byte form.
    pub fn snapshot(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&MAGIC);
        out.push(VERSION);
        self.data_format.encode(out);
        self.id.encode(out);
        encode_map(&self.nodes, out);
        encode_map(&self.stores, out);
        self.leadership.encode(out);
        self.shards.default.encode(out);
        encode_map(&self.shards.components, out);
        self.recovery.encode(out);
        crc32c(&out[start..]).encode(out);
    }

    /// The inverse of [`ClusterView::snapshot`]; refuses everything else.
    pub fn restore(bytes: &[u8]) -> Result<ClusterView> {
        let doing = |e: Error| e.context("restore the cluster view");
        let versions = VERSION_BEFORE_CLUSTERS..=VERSION;
        let (version, body) =
            crate::namespace::checked_body(bytes, MAGIC, versions).map_err(doing)?;
        let mut reader = Reader::new(body);
        let mut view = ClusterView { data_format: u32::decode(&mut reader)?, ..Self::new() };
        if version == VERSION_BEFORE_CLUSTERS {
            view.restore_before_clusters(&mut reader)?;
        } else {
            view.id = u64::decode(&mut reader)?;
            view.nodes = decode_map(&mut reader)?;
            view.stores = decode_map(&mut reader)?;
            view.leadership = Leadership::decode(&mut reader)?;
        }
        view.shards =
            ShardMap { default: u16::decode(&mut reader)?, components: decode_map(&mut reader)? };
        if version > VERSION_BEFORE_RECOVERY {
            view.recovery = RecoverySettings::decode(&mut reader)?;
        }
        reader.finish()?;
        view.check().map_err(doing)?;
        Ok(view)
    }

    fn restore_before_clusters(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        let nodes: BTreeMap<NodeId, OldNode> = decode_map(reader)?;
        let stores: BTreeMap<StoreId, OldStore> = decode_map(reader)?;
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
        let started = |info: &NodeInfo| info.incarnation != Index(0);
        let idle = self.nodes.values().find(|info| !started(info) && info.state != NodeState::Live);
        if let Some(info) = idle {
            return Err(Error::corrupt(format!(
                "the node at `{}` never started, and is {}",
                info.address,
                info.state.name()
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
