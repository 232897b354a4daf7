//! Clients with rules as a guest: tokens are made, used and revoked through any node while faults are
//! drawn. What rules do not cover is never done, by nobody, at no node; nor is what a token asks for
//! that was never given. A token that was revoked through a node is refused by that node from the
//! acknowledgement on, also after its restarts, and by all once they have caught up; one that stands
//! is taken by all then. Of a change in doubt all say the same. Most nodes let each client take little
//! a second: who asks for more waits and loses nothing, and nobody else waits for it. Half of them let
//! it have one or two connections: never more, and as many always.

use super::names::until_told;
use crate::SimNet;
use crate::task::Left;
use crate::unruly::UNKNOWN;
use crate::world::cell::SECOND;
use crate::world::client::new_file;
use crate::world::guest::{Guest, Lodging, Visitor, Work};
use holdfast_base::checksum::crc32c;
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::ids::Index;
use holdfast_base::rates::Allowance;
use holdfast_base::{Kind, Result};
use holdfast_cluster::topics::AUDIT_TOPIC;
use holdfast_env::net::{Named, PeerReply, token_serial};
use holdfast_env::secret::Token;
use holdfast_env::{HoldMutex, Rng, SeededRng};
use holdfast_node::Node;
use holdfast_wire::admin::{NewToken, Order};
use holdfast_wire::{self as wire, Call, file as msg, log};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

/// The first one makes and revokes tokens, the others use them.
const CLIENTS: usize = 3;
/// Tokens that stand at a time, about.
const STANDING: usize = 4;
/// Longer than any calendar jumps.
const TTL_S: u64 = 365 * 86_400;
/// Requests that one client sends at once, now and then: more than it may have answered in a second,
/// and in the end, with nothing in the way, few enough to be answered before anybody gives up.
const BURST: u64 = 10;
/// What no rule covers.
const ELSEWHERE: &str = "/tokens/elsewhere";

/// What is known of a token that was given.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Stands,
    /// It was asked to be revoked, and nobody knows whether it is.
    InDoubt,
    /// It was revoked through this node.
    RevokedAt(usize),
}

#[derive(Clone, Debug)]
struct Given {
    named: Named,
    state: State,
}

#[derive(Default)]
struct Tokens {
    given: Mutex<Vec<Given>>,
}

/// A guest of a schedule.
pub fn tokens() -> Arc<dyn Guest> {
    Arc::new(Tokens::default())
}

impl Guest for Tokens {
    fn open(&self, _: &Arc<Node>, _: &SimNet) -> Result<Lodging> {
        Ok(Lodging::nothing())
    }

    fn allowance(&self, rng: &SeededRng) -> Allowance {
        let drawn = rng.next_u64();
        let connections = [0, 0, 1, 2][(drawn / 3 % 4) as usize];
        match drawn % 3 {
            0 => Allowance { connections, ..Allowance::default() },
            drawn => {
                let bytes = if drawn == 1 { 0 } else { 4000 };
                Allowance { requests: 3 + rng.next_u64() % 4, bytes, connections }
            }
        }
    }

    fn clients(&self) -> usize {
        CLIENTS
    }

    fn work(self: Arc<Self>, visitor: Visitor, end_ns: u64) -> Work {
        Box::pin(async move {
            let gives = visitor.name().ends_with('0');
            let mut free = BTreeSet::new();
            let mut next = 0;
            while visitor.now_ns() < end_ns {
                visitor.think().await;
                visitor.count_operation();
                match (gives, visitor.below(3)) {
                    (true, 0) => self.revoke(&visitor, &mut free).await,
                    (true, _) => self.make(&visitor, &mut free, &mut next).await,
                    (false, 0) => self.steps_out(&visitor).await,
                    (false, _) if visitor.below(8) == 0 => self.hurry(&visitor).await,
                    (false, _) => self.write(&visitor).await,
                }
                if visitor.below(4) == 0 {
                    visitor.hang_up(visitor.any_gateway());
                }
            }
            // Others have their turn, and so has the last check.
            hang_up(&visitor);
        })
    }

    fn check(self: Arc<Self>, visitor: Visitor) -> Work {
        Box::pin(async move {
            self.check_trail(&visitor).await;
            if let Err(why) = self.check_limits(&visitor).await {
                return visitor.violate(&why);
            }
            hang_up(&visitor);
            let given = self.given.held().clone();
            for Given { named, state } in given {
                let mut told = BTreeSet::new();
                for gateway in 1..=visitor.gateways() {
                    let name = named.holder();
                    let ask = || may_write(&visitor, &named, gateway);
                    let taken = until_told(&visitor, (gateway, &name), ask).await;
                    // The next one may be of the same name, of which there may be one connection alone.
                    visitor.hang_up(gateway);
                    let Some(taken) = taken else { return };
                    told.insert(taken);
                    let fine = match state {
                        State::Stands => taken,
                        State::InDoubt => told.len() == 1,
                        State::RevokedAt(_) => !taken,
                    };
                    if !fine {
                        let what = if taken { "taken" } else { "refused" };
                        let why = format!("token `{name}`, {state:?}, is {what} at n{gateway}");
                        return visitor.violate(&why);
                    }
                }
                visitor.sometimes(told.contains(&true), "a token stood in the end");
                visitor.sometimes(told.contains(&false), "a token was revoked in the end");
            }
        })
    }
}

/// Leaves its places to others, and to another token of the same name.
fn hang_up(visitor: &Visitor) {
    (1..=visitor.gateways()).for_each(|gateway| visitor.hang_up(gateway));
}

type Answer = Result<PeerReply>;
/// Or what does not hold.
type Check = std::result::Result<(), String>;

/// Puts a file below `path`.
fn send_put(visitor: &Visitor, named: &Named, gateway: usize, path: &str) -> Left<Answer> {
    let content = visitor.below(1 << 32).to_bytes();
    let put = msg::Put { call: Call::default(), node: new_file(path), crc: crc32c(&content) };
    visitor.send_as(named, gateway, wire::OP_PUT, put.to_bytes(), Some(&content))
}

/// The same; whether it was allowed, if that is known.
async fn put(visitor: &Visitor, named: &Named, gateway: usize, path: &str) -> Option<bool> {
    match send_put(visitor, named, gateway, path).await {
        Ok(_) => Some(true),
        Err(e) if e.kind == Kind::Denied => Some(false),
        Err(e) => {
            visitor.note(&format!("does not know about `{path}`: {e}"));
            None
        }
    }
}

/// So many puts at once, each of a file of its own.
fn burst(visitor: &Visitor, named: &Named, gateway: usize) -> Vec<Left<Answer>> {
    let path = |i| format!("/tokens/{}/{}-{i}", named.name, visitor.name());
    (0..BURST).map(|i| send_put(visitor, named, gateway, &path(i))).collect()
}

async fn may_write(visitor: &Visitor, named: &Named, gateway: usize) -> Option<bool> {
    put(visitor, named, gateway, &format!("/tokens/{}/{}", named.name, visitor.name())).await
}

impl Tokens {
    /// Makes a token, of a name that had one before or of a new one.
    async fn make(&self, visitor: &Visitor, free: &mut BTreeSet<String>, next: &mut u64) {
        let stand = |given: &&Given| given.state == State::Stands;
        if self.given.held().iter().filter(stand).count() >= STANDING {
            return;
        }
        let name = free.pop_first().unwrap_or_else(|| {
            *next += 1;
            format!("t{next}")
        });
        let rules = vec![format!("fs:/tokens/{name}:rw")];
        let new = NewToken { name: name.clone(), rules, ttl_s: TTL_S };
        let gateway = visitor.any_gateway();
        let told = visitor.ask(gateway, wire::OP_TOKEN_CREATE, new.to_bytes(), None).await;
        let text = match told.and_then(|reply| Ok(String::from_bytes(&reply.meta)?)) {
            Ok(text) => text,
            // Nobody has the token, if there is one; its name is left alone.
            Err(e) => return visitor.note(&format!("does not know about a token `{name}`: {e}")),
        };
        let Some(token) = Token::parse(&text) else {
            return visitor.violate(&format!("n{gateway} gave no token, but `{text}`"));
        };
        visitor.note(&format!("was given a token `{name}`"));
        let named = Named::of_token(&token);
        self.given.held().push(Given { named, state: State::Stands });
    }

    /// The audit trail tells of what was asked for, and of nothing else. Where nobody can be told
    /// from a node, nothing is in it; a line may be lost with the log's host.
    async fn check_trail(&self, visitor: &Visitor) {
        let new = NewToken { name: "auditor".into(), rules: vec!["audit:r".into()], ttl_s: TTL_S };
        let told = visitor.ask(1, wire::OP_TOKEN_CREATE, new.to_bytes(), None).await;
        let Some(auditor) = told
            .ok()
            .and_then(|reply| String::from_bytes(&reply.meta).ok())
            .and_then(|text| Token::parse(&text))
        else {
            return;
        };
        let (named, mut lines, mut from) = (Named::of_token(&auditor), Vec::new(), Index(1));
        loop {
            let (topic, entries_max) = (AUDIT_TOPIC.to_owned(), 1000);
            let read = log::Read { topic, from, entries_max, wait: false }.to_bytes();
            let Ok(reply) = visitor.ask_as(&named, 1, wire::OP_LOG_READ, read, None).await else {
                return;
            };
            let Ok(log::Entries { entries }) = log::Entries::from_bytes(&reply.meta) else {
                return;
            };
            let Some(last) = entries.last() else { break };
            from = Index(last.index.0 + 1);
            let text = |entry: &log::Indexed| String::from_utf8_lossy(&entry.bytes).into_owned();
            lines.extend(entries.iter().map(text));
        }
        let by_whom = [r#""who":"secret""#, r#""who":"token "#];
        if let Some(line) = lines.iter().find(|line| !by_whom.iter().any(|who| line.contains(who)))
        {
            return visitor.violate(&format!("the audit trail tells of nobody: {line}"));
        }
        let tells_of = |operation: &str, given: &Given| {
            let (operation, name) =
                (format!(r#""operation":"{operation}""#), format!("`{}`", given.named.name));
            lines.iter().any(|line| line.contains(&operation) && line.contains(&name))
        };
        let given = self.given.held();
        visitor.sometimes(
            given.iter().all(|given| tells_of("token create", given)),
            "the audit trail told of every token that was given",
        );
        let mut revoked = given.iter().filter(|given| matches!(given.state, State::RevokedAt(_)));
        visitor.sometimes(
            revoked.any(|given| tells_of("token revoke", given)),
            "the audit trail told of a token that was revoked",
        );
    }

    async fn revoke(&self, visitor: &Visitor, free: &mut BTreeSet<String>) {
        let found = {
            let mut given = self.given.held();
            let mut stand = given.iter_mut().filter(|given| given.state == State::Stands);
            stand.next().map(|given| {
                // From now on it may be revoked any time.
                given.state = State::InDoubt;
                given.named.clone()
            })
        };
        let Some(named) = found else { return };
        let order = Order::RevokeToken { name: named.name.clone() };
        let gateway = visitor.any_gateway();
        match visitor.ask(gateway, wire::OP_ORDER, order.to_bytes(), None).await {
            Ok(_) => {
                visitor.note(&format!("revoked `{}` through n{gateway}", named.name));
                let mut given = self.given.held();
                let this = given.iter_mut().find(|given| given.named == named);
                this.expect("none is forgotten").state = State::RevokedAt(gateway);
                free.insert(named.name);
            }
            // Its name is left alone: the order may be on its way.
            Err(e) => visitor.note(&format!("does not know whether `{}` stands: {e}", named.name)),
        }
    }

    /// A client that asks for more than it may have in a second, whatever comes of it.
    async fn hurry(&self, visitor: &Visitor) {
        let Some(Given { named, .. }) = self.any(visitor) else { return };
        let gateway = visitor.any_gateway();
        for answer in burst(visitor, &named, gateway) {
            if let Err(e) = answer.await {
                visitor.note(&format!("was in a hurry, and heard: {e}"));
            }
        }
    }

    /// With nothing in the way, a client that asks for too much is answered all of it, and another
    /// one meanwhile. An engine of the log may be slow once, and twice, for whoever asks; who waits
    /// for another client waits each time.
    async fn check_limits(&self, visitor: &Visitor) -> Check {
        let attempts = if visitor.log_is_unruly() { 6 } else { 1 };
        let mut checked = Ok(());
        for _ in 0..attempts {
            checked = self.check_limits_once(visitor).await;
            if checked.is_ok() {
                break;
            }
        }
        checked
    }

    async fn check_limits_once(&self, visitor: &Visitor) -> Check {
        let stand = |given: &&Given| given.state == State::Stands;
        let names: Vec<Named> =
            self.given.held().iter().filter(stand).map(|given| given.named.clone()).collect();
        let [noisy, quiet, ..] = &names[..] else { return Ok(()) };
        let gateway = visitor.any_gateway();
        // Both have been heard of there.
        for named in [noisy, quiet] {
            let ask = || may_write(visitor, named, gateway);
            if until_told(visitor, (gateway, &named.name), ask).await != Some(true) {
                return Ok(());
            }
        }
        let begun_ns = visitor.now_ns();
        let answers = burst(visitor, noisy, gateway);
        let is_quiet_told = may_write(visitor, quiet, gateway).await;
        let quiet_ns = visitor.now_ns() - begun_ns;
        let mut broke = is_quiet_told.is_none();
        for (i, answer) in answers.into_iter().enumerate() {
            match answer.await {
                Ok(_) => {}
                // Between racks that are far from each other they do so to the end.
                Err(e) if e.message.contains("the connection broke") => broke = true,
                // The log's engine does not say, which is no limit of this node.
                Err(e) if e.message.contains(UNKNOWN) => broke = true,
                Err(e) => {
                    let name = &noisy.name;
                    return Err(format!("request {i} of `{name}` was slowed at n{gateway}: {e}"));
                }
            }
        }
        let slowed = visitor.now_ns() - begun_ns > SECOND;
        if !broke && slowed && quiet_ns > SECOND {
            return Err(format!(
                "`{}` waited {quiet_ns} ns at n{gateway}, where another client was in a hurry",
                quiet.name
            ));
        }
        visitor.sometimes(slowed && !broke, "a client was slowed and another one went on");
        Ok(())
    }

    /// One of those that were given, now or before.
    fn any(&self, visitor: &Visitor) -> Option<Given> {
        let given = self.given.held();
        let count = given.len() as u64;
        (count > 0).then(|| given[visitor.below(count) as usize].clone())
    }

    async fn write(&self, visitor: &Visitor) {
        let Some(Given { named, state }) = self.any(visitor) else { return };
        let gateway = match state {
            State::RevokedAt(gateway) if visitor.below(2) == 0 => gateway,
            _ => visitor.any_gateway(),
        };
        match (may_write(visitor, &named, gateway).await, &state) {
            (Some(true), State::RevokedAt(at)) if *at == gateway => visitor.violate(&format!(
                "token `{}` {} was taken at n{gateway}, through which it had been revoked",
                named.name, named.serial
            )),
            (Some(true), _) => visitor.sometimes(true, "a client with a token put a file"),
            (Some(false), State::RevokedAt(_)) => {
                visitor.sometimes(true, "a revoked token was refused");
            }
            _ => {}
        }
    }

    /// Asks for what a token's rules do not cover, or with a token that nobody gave.
    async fn steps_out(&self, visitor: &Visitor) {
        let Some(Given { named, .. }) = self.any(visitor) else { return };
        let gateway = visitor.any_gateway();
        let forged = visitor.below(2) == 0;
        let done = if forged {
            let serial = token_serial(visitor.below(u64::MAX));
            may_write(visitor, &Named { serial, ..named.clone() }, gateway).await
        } else {
            put(visitor, &named, gateway, ELSEWHERE).await
        };
        if done == Some(true) {
            let what = if forged { "a token that nobody gave" } else { "a path beyond the rules" };
            return visitor.violate(&format!("{what} of `{}` was taken at n{gateway}", named.name));
        }
        visitor.sometimes(done == Some(false), "what no rule covers was refused");
    }
}
