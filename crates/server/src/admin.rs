//! What a node says of itself and of its cluster, and what people order.

use crate::route::{Face, Request, Right, Route, Told, answer};
use crate::shards::{add_shard, answer_shards, move_directory};
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::ids::{StoreId, Tier};
use holdfast_base::limits::FRAME_BODY_BYTES_MAX;
use holdfast_base::rules::Access;
use holdfast_base::units::format_bytes;
use holdfast_base::{Error, Result};
use holdfast_cluster::chunks::ShortChunk;
use holdfast_cluster::{
    Chunk, ChunkState, ClusterCommand, ClusterView, NodeState, StoreState, TOKENS_MAX,
};
use holdfast_env::clients::Slowed;
use holdfast_env::net::{Parts, Reply};
use holdfast_env::planted;
use holdfast_env::{Asker, Budget, Clients, HoldMutex, Secret};
use holdfast_node::{Condition, Matter, Node};
use holdfast_wire::admin::TOKEN_TTL_MAX_S;
use holdfast_wire::{self as wire, admin as msg};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};

/// What has to find memory for the node to do all of its work.
const LARGEST_REQUEST: u64 = FRAME_BODY_BYTES_MAX as u64;

fn token_told(meta: &[u8]) -> Told {
    let msg::NewToken { name, rules, ttl_s } = msg::NewToken::from_bytes(meta).ok()?;
    Some(("token create", format!("`{name}` for {ttl_s} s: {}", rules.join(" "))))
}

/// As the command's options say it; those that nobody has set are left out.
fn recovery(settings: &msg::RecoverySettings) -> String {
    let msg::RecoverySettings {
        p90_budget_percent,
        alpha_per_mille,
        floor_bytes_per_second,
        rate_max,
    } = *settings;
    let said = [
        (p90_budget_percent > 0, format!("--p90-budget {p90_budget_percent}")),
        (alpha_per_mille > 0, format!("--alpha {}", f64::from(alpha_per_mille) / 1000.0)),
        (floor_bytes_per_second > 0, format!("--b-min {floor_bytes_per_second}")),
        (rate_max > 0, format!("--rate {rate_max}")),
    ];
    let said: Vec<String> = said.into_iter().filter(|(is, _)| *is).map(|(_, text)| text).collect();
    if said.is_empty() { "as it is by itself".to_owned() } else { said.join(" ") }
}

/// As the commands are called that send them.
fn order_told(meta: &[u8]) -> Told {
    Some(match msg::Order::from_bytes(meta).ok()? {
        msg::Order::Drain { node, on: true } => ("node drain", format!("node {}", node.0)),
        msg::Order::Drain { node, on: false } => ("node drain --off", format!("node {}", node.0)),
        msg::Order::ConfirmLost { nodes } => {
            let nodes: Vec<String> = nodes.iter().map(|node| node.0.to_string()).collect();
            ("node confirm-lost", format!("nodes {}", nodes.join(", ")))
        }
        msg::Order::Recovery { settings } => ("recovery set", recovery(&settings)),
        msg::Order::Cut { address, heal: false } => ("dev cut", address),
        msg::Order::Cut { address, heal: true } => ("dev heal", address),
        msg::Order::SetStore { store, writable } => {
            let state = if writable { "takes chunks" } else { "takes none" };
            ("node store", format!("{store} {state}"))
        }
        msg::Order::GiveUpStore { store } => ("node store", format!("{store} gone")),
        msg::Order::ReplaceNode { name } => ("node replace", format!("`{name}`")),
        msg::Order::Revoke { serial, .. } => ("cert revoke", format!("certificate {serial}")),
        msg::Order::RevokeToken { name } => ("token revoke", format!("`{name}`")),
        msg::Order::AddShard { shard } => ("shard add", shard.to_string()),
        msg::Order::MoveDirectory { dir, to } => ("shard move", format!("`{dir}` to shard {to}")),
    })
}

/// Adds chunks of which copies do not answer, each with how many do.
fn add_away<'a>(away: &mut msg::Away, chunks: impl Iterator<Item = (&'a Chunk, usize)>) {
    for (chunk, live) in chunks {
        let silent = chunk.replicas.len() - live;
        // One that came back, or was drained away, is made again or was never there.
        if silent > 0 {
            away.copies += silent as u64;
            away.bytes += chunk.length.max(chunk.live_bytes) * silent as u64;
            away.chunks += 1;
            away.chunks_of_one += u64::from(live == 1);
            away.chunks_of_none += u64::from(live == 0);
        }
    }
}

/// What is said of the node, and what people order.
pub struct Admin {
    node: Arc<Node>,
    started_ns: u64,
    /// Takes orders that only a development cluster should.
    dev: bool,
    /// What this process may hold for its clients; to say how much it does.
    pub budget: Arc<Budget>,
    /// What they have taken lately.
    clients: OnceLock<Arc<Clients>>,
    /// From which tokens follow.
    secret: OnceLock<Secret>,
    /// When each client with rules asked last, in seconds since 1970. Names that no token has any
    /// more are left out when they are shown.
    heard: Mutex<BTreeMap<String, i64>>,
}

impl Face for Admin {
    fn routes(self: Arc<Self>) -> Vec<Route> {
        let route = |opcode: u16, right: Right, serve: fn(&Admin, Request<'_>)| {
            let admin = self.clone();
            Route::new(opcode, right, move |request| serve(&admin, request))
        };
        let looks = |opcode: u16, serve: fn(&Admin, Request<'_>)| {
            route(opcode, Right::Admin, serve)
                .allows(|_, within| within.rules.check_admin(Access::Read))
        };
        let orders = |opcode: u16, serve: fn(&Admin, Request<'_>), tells: fn(&[u8]) -> Told| {
            route(opcode, Right::Admin, serve)
                .allows(|_, within| within.rules.check_admin(Access::Write))
                .audited(Matter::Admin, tells)
        };
        vec![
            looks(wire::OP_STATUS, |admin, request| admin.status(request.reply)),
            looks(wire::OP_HELD, |admin, request| admin.held(request.reply)),
            looks(wire::OP_SLOWED, |admin, request| admin.slowed(request.reply)),
            looks(wire::OP_LOG_HOST, |admin, request| admin.log_host(request.reply)),
            looks(wire::OP_CLUSTER, |admin, request| admin.cluster(request.reply)),
            looks(wire::OP_SHARDS, |admin, request| answer_shards(&admin.node, request.reply)),
            looks(wire::OP_TOKENS, |admin, request| admin.tokens(request.reply)),
            route(wire::OP_NODES, Right::Known, |admin, request| admin.nodes(request.reply)),
            orders(wire::OP_ORDER, Admin::order, order_told),
            orders(wire::OP_TOKEN_CREATE, Admin::create_token, token_told),
        ]
    }
}

impl Admin {
    pub fn new(node: Arc<Node>, budget: Arc<Budget>, dev: bool) -> Admin {
        let started_ns = node.machine.clock.monotonic_ns();
        let (clients, secret, heard) = (OnceLock::new(), OnceLock::new(), Mutex::default());
        Admin { node, started_ns, dev, budget, clients, secret, heard }
    }

    pub fn knows_clients(&self, clients: &Arc<Clients>) {
        let _ = self.clients.set(clients.clone());
    }

    /// Without any limits where nobody has said any.
    pub fn clients(&self) -> &Arc<Clients> {
        self.clients.get_or_init(Clients::without_limits)
    }

    pub fn makes_tokens_of(&self, secret: &Secret) {
        let _ = self.secret.set(secret.clone());
    }

    fn now_s(&self) -> i64 {
        (self.node.machine.clock.unix_ms() / 1000) as i64
    }

    /// A client with rules asks something.
    pub fn heard_from(&self, name: &str) {
        let (now_s, mut heard) = (self.now_s(), self.heard.held());
        if let Some(last) = heard.get_mut(name) {
            *last = now_s;
            return;
        }
        if heard.len() == TOKENS_MAX {
            // Of many that were made and revoked since the start.
            heard.clear();
        }
        heard.insert(name.to_owned(), now_s);
    }

    fn tokens(&self, reply: Reply) {
        let heard = self.heard.held().clone();
        let tokens = self.node.cluster.read(|view, _| {
            let tokens = view.tokens().map(|(name, token)| msg::TokenInfo {
                name: name.to_owned(),
                rules: token.rules.texts(),
                until_s: token.until_s,
                used_s: heard.get(name).copied().unwrap_or(0),
            });
            tokens.collect::<Vec<_>>()
        });
        answer(reply, tokens.map(|tokens| (tokens.to_bytes(), Parts::None)));
    }

    fn create_token(&self, request: Request<'_>) {
        let doing = "make a token";
        let Some((new, reply)) = request.decode::<msg::NewToken>(doing) else { return };
        let msg::NewToken { name, rules, ttl_s } = new;
        let Some(secret) = self.secret.get() else {
            return answer(
                reply,
                Err(Error::unsupported(format!("{doing}: this node has no secret"))),
            );
        };
        if !(1..=TOKEN_TTL_MAX_S).contains(&ttl_s) {
            let why = format!("{doing}: it lasts 1 s to {TOKEN_TTL_MAX_S} s: name another time");
            return answer(reply, Err(Error::invalid(why)));
        }
        let now_s = self.now_s();
        let until_s = now_s.saturating_add_unsigned(ttl_s);
        let id = self.node.machine.rng.next_u64();
        let token = secret.token(&name, id);
        let command = ClusterCommand::PutToken { name, id, until_s, now_s, rules };
        let done = move |result: Result<()>| {
            // Told once, and kept nowhere.
            answer(reply, result.map(|()| (token.text().to_bytes(), Parts::None)));
        };
        self.node.propose_cluster(&command, Box::new(done));
    }

    pub fn status_now(&self) -> holdfast_base::Result<msg::Status> {
        let node = &self.node;
        let fold = node.shards.root().status();
        let counted = node.read_all(|all| {
            let unclosed = all.iter().map(|shard| shard.unclosed().len() as u64).sum();
            (all.totals(), unclosed)
        });
        // Of a view that has stopped nothing is known; the findings say so.
        let (totals, unclosed) = counted.unwrap_or_default();
        let stores = node
            .stores
            .iter()
            .map(|own| {
                let usage = own.store.usage();
                let scrub = node.scrubbed(own.id);
                msg::Store {
                    id: own.id,
                    tier: own.tier,
                    place: own.place.clone(),
                    capacity_bytes: usage.capacity_bytes,
                    used_bytes: usage.used_bytes,
                    free_bytes: usage.free_bytes,
                    chunks: usage.chunks,
                    read_only: usage.read_only,
                    scrubbed_bytes: scrub.bytes,
                    bad_blocks: scrub.bad,
                    fills_in_s: node.fills_in_s(own.id),
                }
            })
            .collect();
        let uptime_ns = node.machine.clock.monotonic_ns() - self.started_ns;
        Ok(msg::Status {
            node: node.id,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_ms: uptime_ns / 1_000_000,
            files: totals.files,
            directories: totals.directories,
            bytes: totals.bytes,
            unclosed,
            index: fold.applied,
            digest: fold.digest,
            stores,
            findings: node.findings(),
        })
    }

    /// What keeps this node from all of its work; empty is well.
    pub fn conditions(&self) -> Vec<Condition> {
        let mut all = self.node.conditions();
        if !self.budget.would_admit(0, LARGEST_REQUEST, Asker::Client) {
            let sentence = format!(
                "{} of the {} that clients may have are held: large requests wait until others \
                 have taken their answers (`clients_memory`)",
                format_bytes(self.budget.used()),
                format_bytes(self.budget.limit())
            );
            all.push(Condition::new("memory", sentence));
        }
        all
    }

    fn held(&self, reply: Reply) {
        let condition = |c: &Condition| format!("{}: {}", c.name, c.sentence);
        let held = msg::Held {
            limit_bytes: self.budget.limit(),
            held_bytes: self.budget.used(),
            peak_bytes: self.budget.peak(),
            refused: self.budget.refused(),
            conditions: self.conditions().iter().map(condition).collect(),
        };
        answer(reply, Ok((held.to_bytes(), Parts::None)));
    }

    /// Who was slowed within the last minute.
    pub fn slowed_now(&self) -> Vec<Slowed> {
        self.clients().slowed(self.node.machine.clock.monotonic_ns())
    }

    fn slowed(&self, reply: Reply) {
        let slowed = self.slowed_now().into_iter().map(|one| msg::Slowed {
            client: one.client,
            limit: one.limit.to_owned(),
            allowed: one.allowed,
            amount: one.amount,
            seconds: one.seconds,
            left_ms: one.left_ms,
        });
        answer(reply, Ok((slowed.collect::<Vec<_>>().to_bytes(), Parts::None)));
    }

    fn log_host(&self, reply: Reply) {
        let node = &self.node;
        let place = if node.hosted().is_some() { String::new() } else { node.place_of_log() };
        answer(reply, Ok((place.to_bytes(), Parts::None)));
    }

    fn status(&self, reply: Reply) {
        answer(reply, self.status_now().map(|status| (status.to_bytes(), Parts::None)));
    }

    /// Chunks that are short of copies, how many are still open with a copy gone, and what does not answer: of all
    /// shards that this node has, as their views have it last.
    fn copies_now(&self) -> (Vec<ShortChunk>, u64, msg::Away) {
        let node = &self.node;
        let (mut short, mut ending, mut away) = (Vec::new(), 0, msg::Away::default());
        let is = |of: fn(&ClusterView, StoreId) -> bool, store| {
            node.cluster.read(|view, _| of(view, store)).unwrap_or(false)
        };
        let counts = |store| is(ClusterView::store_counts, store);
        let serves = |store| is(ClusterView::store_serves, store);
        for (_, fold) in node.shards.all() {
            let is_left_out = planted!("server.stopped-shards-are-whole");
            if is_left_out && fold.status().stopped.is_some() {
                continue;
            }
            fold.read_last(|view| {
                let chunks = view.chunks();
                // Still open with a replica gone: sealed in a moment, and short then.
                let open = chunks.iter().filter(|chunk| chunk.state == ChunkState::Open);
                ending += open.filter(|c| !c.replicas.iter().all(|s| counts(*s))).count() as u64;
                // Memory that has gone with its process leaves nothing to copy: a finding tells of it.
                let in_memory = |id| chunks.get(id).is_some_and(|c| c.tier == Tier::Dram);
                let of_shard = chunks.short(counts).into_iter();
                short.extend(of_shard.filter(|short| short.live > 0 || !in_memory(short.chunk)));
                let unserved = chunks.short(serves).into_iter();
                let unserved = unserved.filter_map(|s| Some((chunks.get(s.chunk)?, s.live)));
                add_away(&mut away, unserved);
            });
        }
        (short, ending, away)
    }

    fn cluster_now(&self) -> Result<msg::Cluster> {
        let node = &self.node;
        let fold = node.shards.root().status();
        let mut replicas: BTreeMap<StoreId, u64> = BTreeMap::new();
        // Also of views that have stopped: a store is not empty because nobody here knows what it holds.
        for (_, fold) in node.shards.all() {
            fold.read_last(|view| {
                for store in view.chunks().iter().flat_map(|chunk| &chunk.replicas) {
                    *replicas.entry(*store).or_default() += 1;
                }
            });
        }
        let (short, ending, away) = self.copies_now();
        node.cluster.read(|view, index| {
            let stores = |of| {
                let own = view.stores().filter(move |(_, info)| info.node == of);
                own.map(|(id, info)| msg::ClusterStore {
                    id,
                    tier: info.tier,
                    state: info.state.name().to_owned(),
                    free_mib: info.free_mib as u64,
                    replicas: replicas.get(&id).copied().unwrap_or(0),
                })
                .collect()
            };
            let nodes = view.nodes().map(|(id, info)| msg::ClusterNode {
                node: id,
                host: info.host.clone(),
                rack: info.rack.clone(),
                address: info.address.clone(),
                state: info.state_name().to_owned(),
                controller: view.is_controller(id),
                draining: info.draining,
                stores: stores(id),
                name: view.name_of(id).unwrap_or_default().to_owned(),
            });
            let mut recovery = node.leader.recovery();
            // As this view has it now: the leader looks at it now and then.
            recovery.short = short.len() as u64 + ending;
            recovery.short_of_one = short.iter().filter(|short| short.live == 1).count() as u64;
            recovery.away = away;
            recovery.settings = view.recovery();
            recovery.bytes_per_second = recovery.settings.rate_max;
            recovery.confirm_lost = node.unconfirmed();
            msg::Cluster {
                cluster: node.sender.cluster,
                node: node.id,
                leader: view.leader(),
                index,
                namespace_digest: fold.digest,
                namespace_index: fold.applied,
                nodes: nodes.collect(),
                recovery,
            }
        })
    }

    fn cluster(&self, reply: Reply) {
        answer(reply, self.cluster_now().map(|cluster| (cluster.to_bytes(), Parts::None)));
    }

    fn nodes(&self, reply: Reply) {
        let addresses = self.node.cluster.read(|view, _| {
            let live = view.nodes().filter(|(id, info)| {
                *id != self.node.id && info.state == NodeState::Live && info.is_member()
            });
            live.map(|(_, info)| info.address.clone()).collect::<Vec<String>>()
        });
        answer(reply, addresses.map(|addresses| (addresses.to_bytes(), Parts::None)));
    }

    fn state_of(&self, store: StoreId) -> Result<Option<StoreState>> {
        self.node.cluster.read(|view, _| view.store(store).map(|info| info.state))
    }

    /// A store whose node started without it would count as one that holds its chunks.
    fn check_is_there(&self, store: StoreId) -> Result<()> {
        match self.state_of(store)? {
            Some(StoreState::Absent) => Err(Error::invalid(format!(
                "set the state of store `{store}`: its node started without it: mount its disk and \
                 start that node again, or say `holdfast node store {} gone`",
                store.0
            ))),
            _ => Ok(()),
        }
    }

    /// What a store holds that is in use would count as lost.
    fn check_is_away(&self, store: StoreId) -> Result<()> {
        match self.state_of(store)? {
            Some(state @ (StoreState::Live | StoreState::ReadOnly)) => {
                Err(Error::invalid(format!(
                    "give up store `{store}`: it is `{}`: only one that its node started without can \
                     be given up: drain the node, or start it without that disk",
                    state.name()
                )))
            }
            _ => Ok(()),
        }
    }

    fn order(&self, request: Request<'_>) {
        let Some((order, reply)) = request.decode::<msg::Order>("carry out an order") else {
            return;
        };
        let node = &self.node;
        let propose = |reply: Reply, command: ClusterCommand| {
            let done = |result: Result<()>| {
                answer(reply, result.map(|()| (Vec::new(), Parts::None)));
            };
            node.propose_cluster(&command, Box::new(done));
        };
        let done = match order {
            msg::Order::Drain { node: drained, on } => {
                return propose(reply, ClusterCommand::Drain { node: drained, on });
            }
            msg::Order::SetStore { store, writable } => {
                if let Err(e) = self.check_is_there(store) {
                    return answer(reply, Err(e));
                }
                let state = if writable { StoreState::Live } else { StoreState::ReadOnly };
                return propose(reply, ClusterCommand::SetStoreState { store, state });
            }
            msg::Order::GiveUpStore { store } => {
                if let Err(e) = self.check_is_away(store) {
                    return answer(reply, Err(e));
                }
                let state = StoreState::Gone;
                return propose(reply, ClusterCommand::SetStoreState { store, state });
            }
            msg::Order::ReplaceNode { name } => {
                return propose(reply, ClusterCommand::ReleaseName { name });
            }
            msg::Order::Revoke { serial, until_s } => {
                let now_s = self.now_s();
                return propose(reply, ClusterCommand::Revoke { serial, until_s, now_s });
            }
            msg::Order::RevokeToken { name } => {
                return propose(reply, ClusterCommand::RemoveToken { name });
            }
            msg::Order::AddShard { shard } => return add_shard(node, shard, reply),
            msg::Order::MoveDirectory { dir, to } => return move_directory(node, dir, to, reply),
            msg::Order::ConfirmLost { nodes } => node.confirm_lost(&nodes),
            msg::Order::Recovery { settings } => {
                return propose(reply, ClusterCommand::SetRecovery { settings });
            }
            msg::Order::Cut { address, heal } if self.dev => {
                node.cuts().set(&address, !heal);
                Ok(())
            }
            msg::Order::Cut { .. } => Err(Error::invalid(
                "cut connections: this node belongs to no development cluster (`dev = true`)",
            )),
        };
        answer(reply, done.map(|()| (Vec::new(), Parts::None)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_of_recovery_is_told_as_the_command_says_it() {
        let told = |settings| order_told(&msg::Order::Recovery { settings }.to_bytes()).unwrap().1;
        let some = msg::RecoverySettings {
            alpha_per_mille: 800,
            rate_max: 100 << 20,
            ..msg::RecoverySettings::default()
        };
        assert_eq!(told(some), "--alpha 0.8 --rate 104857600");
        assert_eq!(told(msg::RecoverySettings::default()), "as it is by itself");
    }
}
