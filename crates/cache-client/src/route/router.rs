//! The router's core: turns commands into requests, and outcomes into answers or into requests to
//! another pool. Holds no socket and no clock.

mod leases;
mod reply;
mod task;
mod warm;

use super::command::{self, Keyed, Kind};
use super::plan::RoutePlan;
use super::recent::Recent;
use crate::fleet::{Fleet, Outcome, Request, Transport};
use crate::protocol::TOO_LARGE;
use crate::wire::{self, BODY_BYTES, KEY_BYTES_MAX, Shape};
use holdfast_env::trial::Knob;
use leases::Leases;
use reply::Reply;
use std::sync::Arc;
use task::{Next, Owned, Stage, Task};

/// Keys of one request to a server.
static KEYS_MAX: Knob = Knob::new("cache-client.route-keys", 100, &[1, 2, 7]);
const NO_GROUP: u32 = u32::MAX;

/// What a router did, for `stats`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub gets: u64,
    pub hits: u64,
    pub others: u64,
    /// Requests that went to a gutter pool.
    pub gutter: u64,
    /// Keys that a warm pool was asked for, and had.
    pub warm_gets: u64,
    pub warm_hits: u64,
    /// Gets without an answer in time.
    pub lost: u64,
    /// Keys that were not asked for, answers that were not believed, and stores that were refused, for their server
    /// has no lease.
    pub left_out: u64,
}

pub struct Router {
    plan: Arc<RoutePlan>,
    recent: Arc<Recent>,
    leases: Leases,
    tasks: Vec<Option<Task>>,
    free_tasks: Vec<u32>,
    replies: Vec<Reply>,
    free_replies: Vec<u32>,
    /// Outcomes that ask for more requests: those are made after the core has returned.
    next: Vec<Next>,
    /// Replies that became whole.
    whole: Vec<u32>,
    /// By server: which of the groups of the get at hand is its.
    group_of: Vec<u32>,
    request: Vec<u8>,
    pub tally: Tally,
}

struct Group {
    server: u32,
    pool: usize,
    keys: Vec<u8>,
    count: u32,
}

impl Router {
    pub fn new(plan: Arc<RoutePlan>, recent: Arc<Recent>) -> Router {
        Router {
            group_of: vec![NO_GROUP; plan.members.len()],
            leases: Leases::new(&plan),
            plan,
            recent,
            tasks: Vec::new(),
            free_tasks: Vec::new(),
            replies: Vec::new(),
            free_replies: Vec::new(),
            next: Vec::new(),
            whole: Vec::new(),
            request: Vec::new(),
            tally: Tally::default(),
        }
    }

    /// Keeps what an outcome will be for; its ticket.
    fn keep(&mut self, task: Task) -> u64 {
        let number = self.free_tasks.pop().unwrap_or_else(|| {
            self.tasks.push(None);
            self.tasks.len() as u32 - 1
        });
        self.tasks[number as usize] = Some(task);
        u64::from(number)
    }

    fn ask(
        &mut self,
        fleet: &mut Fleet,
        server: u32,
        transport: Transport,
        shape: Shape,
        keys: u32,
        task: Task,
    ) {
        let (ticket, bytes) = (self.keep(task), &self.request);
        fleet.submit(Request { server, transport, shape, keys, ticket, bytes });
    }

    pub fn get(
        &mut self,
        fleet: &mut Fleet,
        connection: (u32, u32),
        verb: &[u8],
        keys: &[u8],
        now_ns: u64,
    ) -> u32 {
        let reply = self.open(connection, true, false);
        self.tally.gets += keys.split(|b| *b == b' ').filter(|key| !key.is_empty()).count() as u64;
        self.gets(fleet, reply, None, verb, keys, now_ns);
        if self.replies[reply as usize].parts == 0 {
            self.whole.push(reply);
        }
        reply
    }

    /// Asks for keys, grouped by server: in their own pools, or in the gutter pool of the one
    /// that is named.
    fn gets(
        &mut self,
        fleet: &mut Fleet,
        reply: u32,
        dead: Option<usize>,
        verb: &[u8],
        keys: &[u8],
        now_ns: u64,
    ) {
        let plan = self.plan.clone();
        let mut groups: Vec<Group> = Vec::new();
        for key in keys.split(|b| *b == b' ').filter(|key| !key.is_empty()) {
            // No key has a NUL, and memcached would read the line up to there.
            if key.contains(&0) {
                continue;
            }
            let pool = dead.unwrap_or_else(|| plan.pool(key));
            let from = match dead {
                None => Some(pool),
                Some(pool) => plan.pools[pool].gutter,
            };
            let Some(server) = from.and_then(|from| plan.pools[from].server(key)) else { continue };
            if !self.leases.may_count(plan.pools[pool].lease, server, fleet, now_ns) {
                self.tally.left_out += 1;
                continue;
            }
            let at = self.group_of[server as usize];
            let group = match groups.get_mut(at as usize) {
                Some(group) if group.server == server => group,
                _ => {
                    self.group_of[server as usize] = groups.len() as u32;
                    groups.push(Group { server, pool, keys: Vec::new(), count: 0 });
                    let last = groups.len() - 1;
                    &mut groups[last]
                }
            };
            group.keys.push(b' ');
            group.keys.extend_from_slice(key);
            group.count += 1;
            // The next key of this server begins a new request.
            if u64::from(group.count) >= KEYS_MAX.get()
                || group.keys.len() + verb.len() > BODY_BYTES - KEY_BYTES_MAX - 3
            {
                KEYS_MAX.cross();
                self.group_of[server as usize] = NO_GROUP;
            }
        }
        for group in groups {
            let gets = plan.pools[group.pool].gets;
            let is_plain = verb == b"get" || verb == b"gets";
            let transport = if is_plain { gets } else { Transport::Tcp };
            self.request.clear();
            self.request.extend_from_slice(verb);
            self.request.extend_from_slice(&group.keys);
            self.request.extend_from_slice(b"\r\n");
            let stage = if dead.is_some() { Stage::Gutter } else { Stage::Main };
            self.tally.gutter += u64::from(dead.is_some());
            self.replies[reply as usize].parts += 1;
            let (server, pool, count) = (group.server, group.pool, group.count);
            let (verb, keys) = (verb.to_vec(), group.keys);
            let task = Task::Gets { reply, pool, stage, server, verb, keys };
            self.ask(fleet, server, transport, Shape::Values, count, task);
        }
    }

    pub fn keyed(
        &mut self,
        fleet: &mut Fleet,
        connection: (u32, u32),
        of: Keyed<'_>,
        now_ns: u64,
    ) -> u32 {
        let reply = self.open(connection, false, of.is_mute);
        self.tally.others += 1;
        let pool = self.plan.pool(of.key);
        if of.kind.is_write() && self.plan.pools[pool].warm.is_some() {
            self.recent.changed(of.key, now_ns);
        }
        self.replies[reply as usize].parts += 1;
        let owned = Owned {
            kind: of.kind,
            key: of.key.to_vec(),
            is_binary: of.is_binary,
            line: of.line,
            value: of.value.to_vec(),
            is_quiet: of.is_quiet,
        };
        self.send_keyed(fleet, (reply, pool, Stage::Main), owned, now_ns);
        reply
    }

    /// A value that is too long for its key: what it should have replaced is deleted.
    pub fn too_large(
        &mut self,
        fleet: &mut Fleet,
        connection: (u32, u32),
        of: Keyed<'_>,
        now_ns: u64,
    ) -> u32 {
        let number = self.keyed(fleet, connection, of, now_ns);
        let reply = &mut self.replies[number as usize];
        (reply.bytes, reply.is_fixed) = (TOO_LARGE.to_vec(), true);
        number
    }

    fn send_keyed(
        &mut self,
        fleet: &mut Fleet,
        (reply, pool, stage): (u32, usize, Stage),
        mut of: Owned,
        now_ns: u64,
    ) {
        let plan = self.plan.clone();
        let (to, expiry_s) = match stage {
            Stage::Main => (Some(pool), None),
            Stage::Gutter => (plan.pools[pool].gutter, Some(plan.gutter_expiry_s)),
        };
        let server = to.and_then(|to| plan.pools[to].server(&of.key));
        let lease = plan.pools[pool].lease;
        if let Some(server) = server
            && !self.leases.may_count(lease, server, fleet, now_ns)
            && let Some(refusal) = of.refusal()
        {
            self.tally.left_out += 1;
            self.append(reply, &refusal);
            if !matches!(of.kind, Kind::Set | Kind::MetaSet) {
                return self.part_done(reply);
            }
            // What it should have replaced must not be served when the server counts again.
            self.replies[reply as usize].is_fixed = true;
            of = of.into_delete();
        }
        if stage == Stage::Gutter && of.kind.is_write() {
            self.owe(fleet, pool, &of.key, of.is_binary);
        }
        let keyed = of.as_keyed();
        let shape = keyed.shape();
        self.request.clear();
        keyed.request(expiry_s, &mut self.request);
        self.tally.gutter += u64::from(stage == Stage::Gutter);
        match server {
            Some(server) => {
                let task = Task::Keyed { reply, pool, stage, server, of };
                self.ask(fleet, server, Transport::Tcp, shape, 0, task);
            }
            // A pool has servers, and a gutter was looked for before.
            None => self.part_done(reply),
        }
    }

    pub fn flush(
        &mut self,
        fleet: &mut Fleet,
        connection: (u32, u32),
        line: &[u8],
        is_mute: bool,
    ) -> u32 {
        let reply = self.open(connection, false, is_mute);
        self.replies[reply as usize].bytes.extend_from_slice(b"OK\r\n");
        for server in self.plan.clone().flushed() {
            self.request.clear();
            self.request.extend_from_slice(line);
            self.request.extend_from_slice(b"\r\n");
            self.replies[reply as usize].parts += 1;
            self.ask(fleet, server, Transport::Tcp, Shape::Line, 0, Task::Flush { reply });
        }
        reply
    }

    /// A request has an outcome. What is to be asked next waits for [`Router::follow`].
    pub fn settle(&mut self, ticket: u64, outcome: Outcome<'_>, now_ns: u64) {
        let Some(task) = self.tasks[ticket as usize].take() else { return };
        self.free_tasks.push(ticket as u32);
        self.tally.lost += u64::from(outcome == Outcome::Lost);
        match task {
            Task::Gets { reply, pool, server, .. }
                if self.is_late(pool, server, outcome, now_ns) =>
            {
                self.part_done(reply);
            }
            Task::Gets { reply, pool, stage, verb, keys, .. } => {
                self.gets_done((reply, pool, stage), verb, keys, outcome);
            }
            Task::Keyed { reply, pool, server, of, .. }
                if of.kind == Kind::MetaGet && self.is_late(pool, server, outcome, now_ns) =>
            {
                self.append(reply, &of.refusal().unwrap_or_default());
                self.part_done(reply);
            }
            Task::Keyed { reply, pool, stage, of, .. } => {
                self.keyed_done(reply, pool, stage, of, outcome)
            }
            Task::Warm { reply, pool, server, .. }
                if self.is_late(pool, server, outcome, now_ns) =>
            {
                self.part_done(reply);
            }
            Task::Warm { reply, pool, key, .. } => self.warm_done(reply, pool, key, outcome),
            Task::Look { watch, ended, asked_ns } => self.looked(watch, ended, asked_ns, outcome),
            Task::Flush { reply } => {
                if outcome != Outcome::Answer(b"OK\r\n") {
                    let bytes = &mut self.replies[reply as usize].bytes;
                    *bytes =
                        b"SERVER_ERROR a server was not flushed: try again when all are up\r\n"
                            .to_vec();
                }
                self.part_done(reply);
            }
            Task::Forget { reply, pool, key, is_binary } => {
                if matches!(outcome, Outcome::Dead { .. }) {
                    self.next.push(Next::Owe { pool, key, is_binary });
                }
                self.part_done(reply);
            }
            Task::Aside => {}
        }
    }

    /// Whether a server has answered that does not count any more: its lease may have ended since it was asked.
    fn is_late(&mut self, pool: usize, server: u32, outcome: Outcome<'_>, now_ns: u64) -> bool {
        let counts = self.leases.count(self.plan.pools[pool].lease, server, now_ns);
        let is_late = !counts && matches!(outcome, Outcome::Answer(_));
        self.tally.left_out += u64::from(is_late);
        is_late
    }

    fn gets_done(
        &mut self,
        (reply, pool, stage): (u32, usize, Stage),
        verb: Vec<u8>,
        keys: Vec<u8>,
        outcome: Outcome<'_>,
    ) {
        let of = &self.plan.pools[pool];
        if matches!(outcome, Outcome::Dead { .. }) && stage == Stage::Main && of.gutter.is_some() {
            self.next.push(Next::Gets { reply, pool, verb, keys });
            return;
        }
        let answer = match outcome {
            Outcome::Answer(answer) => answer,
            _ => b"",
        };
        let mut missed = of
            .warm
            .map(|_| keys.split(|b| *b == b' ').filter(|k| !k.is_empty()).collect::<Vec<_>>());
        for value in wire::values(answer) {
            self.tally.hits += 1;
            self.append(reply, value.block);
            if let Some(missed) = &mut missed
                && let Some(at) = missed.iter().position(|key| *key == value.key)
            {
                missed.swap_remove(at);
            }
        }
        // Only what a server of the pool itself says is a miss that a warm pool may fill.
        if stage == Stage::Main
            && answer.ends_with(b"END\r\n")
            && (verb == b"get" || verb == b"gets")
        {
            for key in missed.unwrap_or_default() {
                self.replies[reply as usize].parts += 1;
                self.next.push(Next::Warm { reply, pool, key: key.to_vec() });
            }
        }
        self.part_done(reply);
    }

    fn keyed_done(
        &mut self,
        reply: u32,
        pool: usize,
        stage: Stage,
        of: Owned,
        outcome: Outcome<'_>,
    ) {
        let plan = self.plan.clone();
        let answer = match outcome {
            Outcome::Answer(answer) if of.is_quiet => {
                answer.strip_suffix(b"MN\r\n").unwrap_or(answer)
            }
            Outcome::Answer(answer) => answer,
            Outcome::Dead { maybe }
                if stage == Stage::Main
                    && plan.pools[pool].gutter.is_some()
                    && (!maybe || of.kind.repeats()) =>
            {
                self.next.push(Next::Keyed { reply, pool, of });
                return;
            }
            Outcome::Dead { maybe: true } if !of.kind.repeats() => {
                b"SERVER_ERROR the server of this key died: it may or may not be done\r\n"
            }
            _ if of.kind == Kind::MetaGet && of.is_quiet => b"",
            _ if of.kind == Kind::MetaGet => b"EN\r\n",
            _ => b"SERVER_ERROR the server of this key does not answer\r\n",
        };
        self.append(reply, answer);
        if of.kind.is_delete() && matches!(outcome, Outcome::Dead { .. }) {
            let gutter = plan.pools[pool].gutter.filter(|_| stage == Stage::Gutter);
            let pool = gutter.unwrap_or(pool);
            let (key, is_binary) = (of.key.clone(), of.is_binary);
            self.next.push(Next::Owe { pool, key, is_binary });
        }
        let is_done = matches!(outcome, Outcome::Answer(_)) && !refuses(answer);
        if of.kind.is_write() && plan.pools[pool].warm.is_some() && (is_done || of.kind.is_delete())
        {
            // The answer waits until nobody can read the old value any more.
            let (key, is_binary) = (of.key, of.is_binary);
            self.next.push(Next::Forget { reply, pool, key, is_binary });
            return;
        }
        self.part_done(reply);
    }

    /// Makes the requests that outcomes asked for; whether there were any.
    pub fn follow(&mut self, fleet: &mut Fleet, now_ns: u64) -> bool {
        let had_some = !self.next.is_empty();
        while let Some(next) = self.next.pop() {
            match next {
                Next::Gets { reply, pool, verb, keys } => {
                    self.gets(fleet, reply, Some(pool), &verb, &keys, now_ns);
                    self.part_done(reply);
                }
                Next::Keyed { reply, pool, of } => {
                    self.send_keyed(fleet, (reply, pool, Stage::Gutter), of, now_ns);
                }
                Next::Warm { reply, pool, key } => {
                    self.ask_warm(fleet, (reply, pool), key, now_ns);
                }
                Next::Fill { pool, of } => self.fill(fleet, pool, &of, now_ns),
                Next::Owe { pool, key, is_binary } => self.owe(fleet, pool, &key, is_binary),
                Next::Forget { reply, pool, key, is_binary } => {
                    self.forget(fleet, reply, pool, (&key, is_binary));
                }
            }
        }
        had_some
    }

    /// What a server of a pool has of a key is old from now on, though it cannot be told yet.
    fn owe(&mut self, fleet: &mut Fleet, pool: usize, key: &[u8], is_binary: bool) {
        if let Some(server) = self.plan.pools[pool].server(key) {
            fleet.owe(server, command::delete_line(key, is_binary).0);
        }
    }
}

/// Whether a server did not carry a change out.
fn refuses(answer: &[u8]) -> bool {
    let refusals: [&[u8]; 7] =
        [b"NOT_", b"EXISTS", b"ERROR", b"SERVER_ERROR", b"CLIENT_ERROR", b"NS", b"EX"];
    answer.starts_with(b"NF") || refusals.iter().any(|refusal| answer.starts_with(refusal))
}
