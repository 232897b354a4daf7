//! The cluster view: which cluster this is, which nodes and stores it has, in which state, who
//! leads, and which shard keeps a path. A fold of the cluster topic. It never decides who is
//! alive by a clock; entries say so, and beats are counted.

mod command;
mod identities;
mod leadership;
mod snapshot;
mod tokens;

#[cfg(test)]
mod tests;

pub use command::{ClusterCommand, ClusterOutcome, FreeSpace, NodeState, StartedStore, StoreState};
pub use identities::{NAME_BYTES_MAX, REVOKED_MAX, check_name};
pub use leadership::{BEATS_DEAD, CONTROLLERS_MAX, Controller, Leadership};
pub use tokens::{TOKENS_MAX, Token};

use self::identities::Identities;
use self::tokens::Tokens;
use holdfast_base::ids::{Index, NodeId, StoreId, Term, Tier};
use holdfast_base::rules::Rules;
use holdfast_base::units::MIB;
use holdfast_base::{Error, Result, path};
use holdfast_env::{planted, sometimes};
use holdfast_wire::admin::RecoverySettings;
use std::collections::{BTreeMap, BTreeSet};

/// The version of everything that this build writes below its data directory.
pub const DATA_FORMAT_VERSION: u32 = 1;

/// A larger budget for the foreground's p90 is no budget: answers take eleven times as long.
const P90_BUDGET_PERCENT_MAX: u32 = 1000;

/// A host label, a rack label or an address.
const LABEL_BYTES_MAX: usize = 255;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeInfo {
    /// Replicas go to different hosts.
    pub host: String,
    /// Replicas go to different racks while there are enough; empty where nobody said.
    pub rack: String,
    /// Of the native protocol: `host:port`.
    pub address: String,
    pub state: NodeState,
    /// Index of its last start; 0 before the first.
    pub incarnation: Index,
    pub draining: bool,
    /// Of its `JoinNode`; 0 for a node from before nodes joined.
    pub nonce: u64,
    /// Of its last `Start`; 0 before the first, and behind a start of a build before.
    pub start_nonce: u64,
}

impl NodeInfo {
    fn unstarted(host: String, rack: String, address: String, nonce: u64) -> NodeInfo {
        let (state, incarnation, draining) = (NodeState::Live, Index(0), false);
        NodeInfo { host, rack, address, state, incarnation, draining, nonce, start_nonce: 0 }
    }

    /// As people hear of it. A number that was given and never started under is nobody's, for the
    /// node that asked for it may have ended before it had written the number down.
    pub fn state_name(&self) -> &'static str {
        if self.incarnation == Index(0) { "joining" } else { self.state.name() }
    }

    /// Started at least once, and not lost.
    pub fn is_member(&self) -> bool {
        self.incarnation != Index(0) && self.state != NodeState::Lost
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreInfo {
    pub node: NodeId,
    pub tier: Tier,
    pub state: StoreState,
    pub capacity: u64,
    /// As its node last told; its capacity before that.
    pub free_mib: u32,
}

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
    /// 0 until the cluster is founded.
    id: u64,
    nodes: BTreeMap<NodeId, NodeInfo>,
    stores: BTreeMap<StoreId, StoreInfo>,
    leadership: Leadership,
    shards: ShardMap,
    recovery: RecoverySettings,
    identities: Identities,
    tokens: Tokens,
    /// Those that keep views alone, by their last start.
    view_nodes: BTreeSet<NodeId>,
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
            id: 0,
            nodes: BTreeMap::new(),
            stores: BTreeMap::new(),
            leadership: Leadership::default(),
            shards: ShardMap::default(),
            recovery: RecoverySettings::default(),
            identities: Identities::default(),
            tokens: Tokens::default(),
            view_nodes: BTreeSet::new(),
        }
    }

    pub fn data_format(&self) -> u32 {
        self.data_format
    }

    /// The cluster's id; `None` in a data directory from before clusters, until its next start.
    pub fn id(&self) -> Option<u64> {
        (self.id != 0).then_some(self.id)
    }

    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, &NodeInfo)> {
        self.nodes.iter().map(|(id, info)| (*id, info))
    }

    pub fn node(&self, node: NodeId) -> Option<&NodeInfo> {
        self.nodes.get(&node)
    }

    /// Whether a node may have stores. One that keeps views alone has none, takes no seat, and is missed
    /// by nobody when it is lost.
    pub fn keeps_chunks(&self, node: NodeId) -> bool {
        !self.view_nodes.contains(&node)
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

    /// How recovery is to share links; zeros where nobody has said anything.
    pub fn recovery(&self) -> RecoverySettings {
        self.recovery
    }

    /// The node whose certificates carry this name.
    pub fn number_of(&self, name: &str) -> Option<NodeId> {
        self.identities.number_of(name)
    }

    /// The name that a node's certificates carry; none where it has shown none.
    pub fn name_of(&self, node: NodeId) -> Option<&str> {
        self.identities.name_of(node)
    }

    /// Whether who holds a certificate of `name` may speak as this node.
    pub fn speaks_for(&self, name: &str, node: NodeId) -> bool {
        self.identities.speaks_for(name, node)
    }

    /// Whether the certificate with this number is worth nothing any more.
    pub fn is_revoked(&self, serial: &str) -> bool {
        self.identities.is_revoked(serial)
    }

    /// Certificates that were revoked, with the second since 1970 in which each ends by itself.
    pub fn revoked(&self) -> impl Iterator<Item = (&str, i64)> {
        self.identities.revoked()
    }

    /// What the client of this name may do, if it may do anything.
    pub fn token(&self, name: &str) -> Option<&Token> {
        self.tokens.get(name)
    }

    /// All clients with rights of their own, by name.
    pub fn tokens(&self) -> impl Iterator<Item = (&str, &Token)> {
        self.tokens.iter()
    }

    /// The live controller that queued first. It acts only once it has read a beat of its own
    /// that it sent after it saw itself lead, and has claimed both topics.
    pub fn leader(&self) -> Option<NodeId> {
        self.leadership.leader()
    }

    /// The leader's term.
    pub fn term(&self) -> Option<Term> {
        self.leadership.term()
    }

    /// The nodes whose beats decide who leads, by number.
    pub fn controllers(&self) -> impl Iterator<Item = (NodeId, &Controller)> {
        self.leadership.seats().iter().map(|(node, seat)| (*node, seat))
    }

    pub fn is_controller(&self, node: NodeId) -> bool {
        self.leadership.seats().contains_key(&node)
    }

    /// A controller that most of the other live ones have outlived by [`BEATS_DEAD`] beats.
    pub fn is_dead(&self, node: NodeId) -> bool {
        self.leadership.seats().get(&node).is_some_and(|seat| seat.dead)
    }

    /// A store and its node.
    fn whole(&self, store: StoreId) -> Option<(&StoreInfo, &NodeInfo)> {
        let info = self.stores.get(&store)?;
        Some((info, self.nodes.get(&info.node)?))
    }

    /// What it holds counts as a copy: it is there, and its node is not lost for good.
    pub fn store_holds(&self, store: StoreId) -> bool {
        self.whole(store).is_some_and(|(info, node)| {
            matches!(info.state, StoreState::Live | StoreState::ReadOnly)
                && node.state != NodeState::Lost
        })
    }

    /// As [`ClusterView::store_holds`], and it is to stay: repair makes up for all other copies.
    pub fn store_counts(&self, store: StoreId) -> bool {
        self.store_holds(store) && self.whole(store).is_some_and(|(_, node)| !node.draining)
    }

    /// Can be read from now.
    pub fn store_serves(&self, store: StoreId) -> bool {
        self.store_holds(store)
            && self.whole(store).is_some_and(|(_, node)| node.state == NodeState::Live)
    }

    /// Takes new replicas.
    pub fn store_takes(&self, store: StoreId) -> bool {
        self.store_serves(store)
            && self
                .whole(store)
                .is_some_and(|(info, node)| info.state == StoreState::Live && !node.draining)
    }

    /// Decodes and applies an entry; `Unsupported` means that the view must stop before it.
    pub fn apply_bytes(&mut self, index: Index, bytes: &[u8]) -> Result<ClusterOutcome> {
        self.apply(index, &ClusterCommand::from_entry(bytes)?)
    }

    /// Applies a command or refuses it whole.
    pub fn apply(&mut self, index: Index, command: &ClusterCommand) -> Result<ClusterOutcome> {
        match command {
            ClusterCommand::RegisterNode { node, host, address } => {
                self.register_node(*node, host, address)
            }
            ClusterCommand::RegisterStore { store, node, tier, capacity } => {
                self.register_store(*store, *node, *tier, *capacity)
            }
            ClusterCommand::SetStoreState { store, state } => self.set_store(*store, *state),
            ClusterCommand::SetDataFormat { version } => self.set_data_format(*version),
            ClusterCommand::FoundCluster { id } => self.found(*id),
            ClusterCommand::JoinNode { nonce, host, rack, address } => {
                self.join(*nonce, host, rack, address)
            }
            ClusterCommand::StartNode { node, host, rack, address, stores } => {
                let place = [host, rack, address].map(String::as_str);
                self.start(index, *node, place, (0, Some(stores)))
            }
            ClusterCommand::StartViewNode { node, host, rack, address } => {
                let place = [host, rack, address].map(String::as_str);
                self.start(index, *node, place, (0, None))
            }
            ClusterCommand::Start { node, nonce, after, host, rack, address, stores } => {
                if let Some(started) = self.started_by(*node, *nonce, *after)? {
                    return Ok(started);
                }
                let place = [host, rack, address].map(String::as_str);
                self.start(index, *node, place, (*nonce, stores.as_deref()))
            }
            ClusterCommand::Beat { node, incarnation, free } => {
                self.hear(*node, *incarnation, free)?;
                self.leadership.beat(index, *node, BEATS_DEAD);
                Ok(ClusterOutcome::Done {})
            }
            ClusterCommand::SetNode { node, incarnation, state } => {
                self.set_node(index, *node, *incarnation, *state)
            }
            ClusterCommand::Drain { node, on } => {
                let info = self.nodes.get_mut(node).ok_or_else(|| unknown("drain", *node))?;
                info.draining = *on;
                Ok(ClusterOutcome::Done {})
            }
            ClusterCommand::Resign { node, incarnation } => {
                self.check_incarnation("let go of the lead of", *node, *incarnation)?;
                self.leadership.resign(index, *node);
                Ok(ClusterOutcome::Done {})
            }
            ClusterCommand::Usage { node, incarnation, free } => {
                self.hear(*node, *incarnation, free)?;
                Ok(ClusterOutcome::Done {})
            }
            ClusterCommand::SetRecovery { settings } => {
                check_recovery(settings)?;
                self.recovery = *settings;
                Ok(ClusterOutcome::Done {})
            }
            ClusterCommand::BindName { node, name } => {
                if !self.nodes.contains_key(node) {
                    return Err(unknown("name", *node));
                }
                let nodes = &self.nodes;
                let has_started = |node| nodes.get(&node).is_some_and(|n| n.incarnation.0 != 0);
                let bound = self.identities.bind(*node, name, has_started);
                bound.map(|()| ClusterOutcome::Done {})
            }
            ClusterCommand::ReleaseName { name } => self.release_name(name),
            ClusterCommand::Revoke { serial, until_s, now_s } => {
                let revoked = self.identities.revoke(serial, *until_s, *now_s);
                revoked.map(|()| ClusterOutcome::Done {})
            }
            ClusterCommand::PutToken { name, id, until_s, now_s, rules } => {
                let token = Token { id: *id, until_s: *until_s, rules: Rules::parse(rules)? };
                self.tokens.put(name, token, *now_s).map(|()| ClusterOutcome::Done {})
            }
            ClusterCommand::RemoveToken { name } => {
                self.tokens.remove(name).map(|()| ClusterOutcome::Done {})
            }
        }
    }

    /// Of a node that runs never: it would be shut out with all that it holds, and if it keeps the
    /// log, with that.
    fn release_name(&mut self, name: &str) -> Result<ClusterOutcome> {
        if let Some(node) = self.identities.number_of(name)
            && let Some(info) = self.nodes.get(&node)
            && info.is_member()
            && info.state == NodeState::Live
        {
            return Err(Error::invalid(format!(
                "replace node `{name}`: it is node `{node}`, which is live: it would be shut out with all that it holds: stop it first"
            )));
        }
        self.identities.release(name).map(|()| ClusterOutcome::Done {})
    }

    fn register_node(&mut self, node: NodeId, host: &str, address: &str) -> Result<ClusterOutcome> {
        let doing = format!("register node `{node}`");
        check_label(&doing, "host label", host, 1)?;
        check_label(&doing, "address", address, 1)?;
        let fresh = NodeInfo::unstarted(String::new(), String::new(), String::new(), 0);
        let info = self.nodes.entry(node).or_insert(fresh);
        (info.host, info.address) = (host.to_owned(), address.to_owned());
        Ok(ClusterOutcome::Done {})
    }

    fn register_store(
        &mut self,
        store: StoreId,
        node: NodeId,
        tier: Tier,
        capacity: u64,
    ) -> Result<ClusterOutcome> {
        if !self.nodes.contains_key(&node) {
            return Err(Error::not_found(format!(
                "register store `{store}`: node `{node}` is not known: register it first"
            )));
        }
        self.check_store(store, tier)?;
        let free_mib = self.stores.get(&store).map_or(mib(capacity), |old| old.free_mib);
        self.keep_store(node, StartedStore { store, tier, capacity, free_mib });
        Ok(ClusterOutcome::Done {})
    }

    fn check_store(&self, store: StoreId, tier: Tier) -> Result<()> {
        match self.stores.get(&store) {
            Some(old) if old.state == StoreState::Gone => Err(gone(store)),
            Some(old) if old.tier != tier => Err(Error::invalid(format!(
                "register store `{store}`: it is on tier `{}`, not `{}`: make a new store",
                old.tier.name(),
                tier.name()
            ))),
            _ => Ok(()),
        }
    }

    /// Enters a store that was checked. What a person or a failure made of it stays; only what was
    /// absent is back.
    fn keep_store(&mut self, node: NodeId, started: StartedStore) {
        let StartedStore { store, tier, capacity, free_mib } = started;
        let state = match self.stores.get(&store).map(|old| old.state) {
            None | Some(StoreState::Absent) => StoreState::Live,
            Some(state) => state,
        };
        self.stores.insert(store, StoreInfo { node, tier, state, capacity, free_mib });
    }

    fn set_store(&mut self, store: StoreId, state: StoreState) -> Result<ClusterOutcome> {
        let info = self.stores.get_mut(&store).ok_or_else(|| {
            Error::not_found(format!("set the state of store `{store}`: it is not known"))
        })?;
        let back = info.state == StoreState::Gone && state != StoreState::Gone;
        if back && !planted!("cluster.gone-store-comes-back") {
            return Err(gone(store));
        }
        info.state = state;
        Ok(ClusterOutcome::Done {})
    }

    fn set_data_format(&mut self, version: u32) -> Result<ClusterOutcome> {
        if version < self.data_format {
            return Err(Error::invalid(format!(
                "set the data format to version {version}: it is at {} and never goes back",
                self.data_format
            )));
        }
        self.data_format = version;
        Ok(ClusterOutcome::Done {})
    }

    fn found(&mut self, id: u64) -> Result<ClusterOutcome> {
        if id == 0 {
            return Err(Error::invalid("found a cluster: its id is 0: draw another one"));
        }
        if self.id == 0 {
            self.id = id;
        }
        Ok(ClusterOutcome::Founded { id: self.id })
    }

    fn join(
        &mut self,
        nonce: u64,
        host: &str,
        rack: &str,
        address: &str,
    ) -> Result<ClusterOutcome> {
        if self.id == 0 || nonce == 0 {
            return Err(Error::invalid(
                "join a node: the cluster is not founded, or the node's nonce is 0: start the \
                 cluster's first node, and draw another nonce",
            ));
        }
        if let Some((node, _)) = self.nodes.iter().find(|(_, info)| info.nonce == nonce) {
            return Ok(ClusterOutcome::Joined { node: *node });
        }
        check_place("join a node", [host, rack, address])?;
        let last = self.nodes.last_key_value().map_or(0, |(node, _)| node.0);
        let Some(next) = last.checked_add(1) else {
            return Err(Error::full("join a node: every node number is drawn"));
        };
        let node = NodeId(next);
        let [host, rack, address] = [host, rack, address].map(str::to_owned);
        self.nodes.insert(node, NodeInfo::unstarted(host, rack, address, nonce));
        Ok(ClusterOutcome::Joined { node })
    }

    /// What a start that is in the log already answered. Refuses one that follows another start than the
    /// node's last: a late copy of an earlier one must not fence the process that came after it.
    fn started_by(&self, node: NodeId, nonce: u64, after: Index) -> Result<Option<ClusterOutcome>> {
        let doing = || format!("start node `{node}`");
        if nonce == 0 {
            return Err(Error::invalid(format!("{}: its nonce is 0: draw another one", doing())));
        }
        let last = self.nodes.get(&node).ok_or_else(|| unknown("start", node))?;
        let incarnation = last.incarnation;
        if last.start_nonce == nonce && !planted!("cluster.starts-again") {
            sometimes!("a start was in the log twice");
            return Ok(Some(ClusterOutcome::Started { incarnation }));
        }
        if incarnation != after && !planted!("cluster.late-start-counts") {
            sometimes!("a start came behind another one");
            return Err(Error::fenced(format!(
                "{}: this start follows the one at {after}, its last one was at {incarnation}: look \
                 again, and start behind that",
                doing()
            )));
        }
        Ok(None)
    }

    /// Of a node that keeps views alone without a list of stores.
    fn start(
        &mut self,
        index: Index,
        node: NodeId,
        place: [&str; 3],
        (nonce, listed): (u64, Option<&[StartedStore]>),
    ) -> Result<ClusterOutcome> {
        let stores = listed.unwrap_or_default();
        let doing = format!("start node `{node}`");
        check_place(&doing, place)?;
        for (i, started) in stores.iter().enumerate() {
            self.check_store(started.store, started.tier)?;
            if stores[..i].iter().any(|other| other.store == started.store) {
                return Err(Error::invalid(format!(
                    "{doing}: it has store `{}` twice: two of its directories are copies of one",
                    started.store
                )));
            }
        }
        let info = self.nodes.get_mut(&node).ok_or_else(|| unknown("start", node))?;
        [info.host, info.rack, info.address] = place.map(str::to_owned);
        (info.incarnation, info.state, info.start_nonce) = (index, NodeState::Live, nonce);
        for (store, info) in self.stores.iter_mut().filter(|(_, info)| info.node == node) {
            let here = stores.iter().any(|started| started.store == *store);
            match (info.tier, info.state) {
                _ if here => {}
                (_, StoreState::Gone) => {}
                // Memory does not outlive its process; a disk may be put back.
                (Tier::Dram, _) => info.state = StoreState::Gone,
                (Tier::Disk, _) => info.state = StoreState::Absent,
            }
        }
        stores.iter().for_each(|started| self.keep_store(node, *started));
        match listed {
            None if !planted!("cluster.view-node-sits") => drop(self.view_nodes.insert(node)),
            _ => drop(self.view_nodes.remove(&node)),
        }
        self.reseat(index);
        Ok(ClusterOutcome::Started { incarnation: index })
    }

    /// A node's own word, with its free space; one of an earlier process is refused.
    fn hear(&mut self, node: NodeId, incarnation: Index, free: &[FreeSpace]) -> Result<()> {
        self.check_incarnation("hear", node, incarnation)?;
        for FreeSpace { store, free_mib } in free {
            if let Some(info) = self.stores.get_mut(store).filter(|info| info.node == node) {
                info.free_mib = *free_mib;
            }
        }
        Ok(())
    }

    fn check_incarnation(&self, doing: &str, node: NodeId, incarnation: Index) -> Result<()> {
        let info = self.nodes.get(&node).ok_or_else(|| unknown(doing, node))?;
        let same = info.incarnation == incarnation || planted!("cluster.older-process-heard");
        if !same || incarnation == Index(0) {
            return Err(Error::fenced(format!(
                "{doing} node `{node}`: this is about its start at {incarnation}, its last one was \
                 at {}: only one process may be a node",
                info.incarnation
            )));
        }
        Ok(())
    }

    fn set_node(
        &mut self,
        index: Index,
        node: NodeId,
        incarnation: Index,
        state: NodeState,
    ) -> Result<ClusterOutcome> {
        self.check_incarnation("set the state of", node, incarnation)?;
        if let Some(info) = self.nodes.get_mut(&node) {
            info.state = state;
        }
        self.reseat(index);
        Ok(ClusterOutcome::Done {})
    }

    fn may_sit(&self) -> impl Iterator<Item = NodeId> {
        let members = self.nodes.iter().filter(|(_, info)| info.is_member());
        members.map(|(node, _)| *node).filter(|node| self.keeps_chunks(*node))
    }

    fn reseat(&mut self, index: Index) {
        let may_sit: Vec<NodeId> = self.may_sit().collect();
        self.leadership.reseat(index, may_sit.into_iter());
    }
}

fn check_recovery(settings: &RecoverySettings) -> Result<()> {
    if settings.alpha_per_mille > 1000 {
        return Err(Error::invalid(format!(
            "set recovery's alpha to {} thousandths: it is a share of a link: above 0 and up to 1",
            settings.alpha_per_mille
        )));
    }
    if settings.p90_budget_percent > P90_BUDGET_PERCENT_MAX {
        return Err(Error::invalid(format!(
            "let recovery slow answers down by {}%: use up to {P90_BUDGET_PERCENT_MAX}%",
            settings.p90_budget_percent
        )));
    }
    Ok(())
}

/// Whole MiB of a capacity, as far as it can be said.
fn mib(bytes: u64) -> u32 {
    u32::try_from(bytes / MIB).unwrap_or(u32::MAX)
}

fn check_place(doing: &str, [host, rack, address]: [&str; 3]) -> Result<()> {
    check_label(doing, "host label", host, 1)?;
    check_label(doing, "rack label", rack, 0)?;
    check_label(doing, "address", address, 1)
}

fn check_label(doing: &str, what: &str, label: &str, bytes_min: usize) -> Result<()> {
    if label.len() < bytes_min || label.len() > LABEL_BYTES_MAX {
        return Err(Error::invalid(format!(
            "{doing}: its {what} has {} bytes, give {bytes_min} to {LABEL_BYTES_MAX}",
            label.len()
        )));
    }
    Ok(())
}

fn unknown(doing: &str, node: NodeId) -> Error {
    Error::not_found(format!("{doing} node `{node}`: it is not known: let it join first"))
}

fn gone(store: StoreId) -> Error {
    Error::invalid(format!("change store `{store}`: it is gone for good: make a new store"))
}
