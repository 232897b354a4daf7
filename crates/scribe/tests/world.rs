//! Agents of Scribe as a guest of the simulated world: each numbers messages, keeps them, and sends batches
//! through any node, or by one of two carriers, while faults are drawn, some of them by two ways, and begins
//! again now and then. Carriers are killed with all that they have. In the end a reader of the category,
//! through whichever node, sees each message once, in its agent's order.

use holdfast_base::Result;
use holdfast_base::checksum::crc32c;
use holdfast_base::codec::{Decode, Encode, put_bytes};
use holdfast_base::ids::Index;
use holdfast_env::HoldMutex;
use holdfast_node::Node;
use holdfast_scribe::batch::{self, Messages as Read, Position, SpoolId};
use holdfast_scribe::carry::{Asked, Carrier, Outcome, Request, Told};
use holdfast_scribe::category::Category;
use holdfast_scribe::face::ScribeFace;
use holdfast_scribe::gather::{Messages, Round};
use holdfast_scribe::spool::{Kept, Progress, Spool, decode_entry};
use holdfast_sim::world::guest::{Guest, Lodging, Visitor, Work};
use holdfast_sim::world::{Report, Schedule, run};
use holdfast_sim::{SimNet, on_a_deep_stack};
use holdfast_wire::{self as wire, scribe as msg};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

const CLIENTS: usize = 2;
const CARRIERS: usize = 2;
const CATEGORY: &str = "Shared";
/// Requests in which an agent brings out what it has, when the faults are over.
const ATTEMPTS: usize = 200;

/// One agent: what is on its disk, and its process.
struct Agent {
    name: String,
    log: Vec<(Index, Vec<u8>)>,
    spool: Spool,
    /// Texts that it has kept, in their order.
    told: Vec<String>,
}

#[derive(Default)]
struct Agents {
    agents: Mutex<BTreeMap<String, Arc<Mutex<Agent>>>>,
    carriers: [Mutex<Carrying>; CARRIERS],
}

/// A carrier's process: it has nothing else.
#[derive(Default)]
struct Carrying {
    /// Who waits is an agent, by its name.
    core: Carrier<String>,
    /// Which process it is.
    life: u64,
}

fn with_agents(seed: u64, planted: &[&str]) -> Report {
    let guests: Vec<fn() -> Arc<dyn Guest>> = vec![|| Arc::new(Agents::default())];
    let planted = planted.iter().map(|bug| bug.to_string()).collect();
    let schedule = Schedule { guests, planted, ..Schedule::new(seed) };
    on_a_deep_stack(|| run(&schedule))
}

/// Batches come twice, late and by two ways, through nodes that die.
#[test]
fn messages_of_agents_are_read_once_and_in_their_order() {
    let seeds = std::env::var("HOLDFAST_SCRIBE_SEEDS").ok().and_then(|n| n.parse().ok());
    let mut seen = BTreeSet::new();
    for seed in 1..=seeds.unwrap_or(4) {
        let report = with_agents(seed, &[]);
        assert_eq!(report.violations, Vec::<String>::new(), "seed {seed}");
        seen.extend(report.seen.into_keys());
    }
    for what in [
        "a spool was replayed",
        "a batch went by two ways",
        "a batch went by two carriers",
        "a carrier gathered batches of two spools",
        "a carrier was erased with batches in it",
        "an answer came to a carrier that was gone",
        "messages were read once",
    ] {
        assert!(seen.contains(what), "{what}: {seen:?}");
    }
}

/// What a carrier says is of each spool's own; that one which answers early is noticed as well, the catalogue of
/// planted bugs shows.
#[test]
fn a_carrier_that_mixes_up_spools_is_noticed() {
    let mixes_up = |seed| with_agents(seed, &["scribe.carrier-mixes-up-spools"]);
    assert!((1..=4).any(|seed| !mixes_up(seed).violations.is_empty()));
}

/// A check that never fails checks nothing.
#[test]
fn batches_that_were_dropped_and_are_shown_are_noticed() {
    let noticed = (1..=4).any(|seed| {
        let report = with_agents(seed, &["scribe.dropped-batches-shown"]);
        report.violations.iter().any(|what| what.contains("are read"))
    });
    assert!(noticed);
}

fn category() -> Category {
    Category::new(CATEGORY).expect("its name is allowed")
}

impl Agent {
    fn new(name: &str) -> Agent {
        let id = SpoolId(u64::from(crc32c(name.as_bytes())) + 1);
        let (name, spool) = (name.to_owned(), Spool::new(id));
        let mut agent = Agent { name, log: Vec::new(), spool, told: Vec::new() };
        let mark = agent.spool.mark();
        let index = agent.append(mark);
        agent.spool.marked(index);
        agent
    }

    fn append(&mut self, entry: Vec<u8>) -> Index {
        let index = Index(self.log.len() as u64 + 1);
        self.log.push((index, entry));
        index
    }

    fn keep(&mut self, texts: Vec<String>) {
        let mut round = Round::default();
        for text in &texts {
            round.add(&Messages { messages: vec![(category(), text.clone().into_bytes())] });
        }
        for numbered in self.spool.number(&round.pack()) {
            let index = self.append(numbered.entry.clone());
            self.spool.kept(index, &numbered);
        }
        self.told.extend(texts);
    }

    fn begin_again(&mut self) -> std::result::Result<(), String> {
        let mut spool = Spool::opening();
        for (index, entry) in &self.log {
            spool.recover(*index, entry).map_err(|e| e.message)?;
        }
        self.spool = spool;
        Ok(())
    }

    /// Batches that the topic is not known to have, some of them.
    fn to_send(&self, most: usize) -> Vec<Vec<u8>> {
        let mut batches = Vec::new();
        let from = self.spool.first_to_send(&BTreeSet::new()).unwrap_or(Index(u64::MAX));
        for (index, entry) in self.log.iter().filter(|(index, _)| *index >= from) {
            let Ok(Kept::Group(group)) = decode_entry(entry) else { continue };
            let wanted = |bytes: &&&[u8]| {
                batch::decode(bytes).is_ok_and(|(head, _)| self.spool.wants_to_send(*index, &head))
            };
            batches.extend(group.iter().filter(wanted).map(|bytes| bytes.to_vec()));
        }
        batches.truncate(most);
        batches
    }
}

fn append(batches: &[Vec<u8>]) -> (Vec<u8>, Vec<u8>) {
    let mut body = Vec::new();
    batches.iter().for_each(|batch| put_bytes(&mut body, batch));
    (msg::Append { categories: vec![CATEGORY.to_owned()] }.to_bytes(), body)
}

impl Agents {
    fn agent(&self, visitor: &Visitor) -> Arc<Mutex<Agent>> {
        let begin = || Arc::new(Mutex::new(Agent::new(visitor.name())));
        self.agents.held().entry(visitor.name().to_owned()).or_insert_with(begin).clone()
    }
}

/// One request, and what is learned of it.
async fn send(visitor: &Visitor, agent: &Mutex<Agent>, most: usize) {
    let batches = agent.held().to_send(most);
    if batches.is_empty() {
        return;
    }
    let (meta, body) = append(&batches);
    let gateway = visitor.any_gateway();
    if visitor.below(6) == 0 {
        // By another way as well; whoever comes second is dropped.
        let other = visitor.any_gateway();
        let _ = visitor.ask(other, wire::OP_SCRIBE_APPEND, meta.clone(), Some(&body)).await;
        visitor.sometimes(true, "a batch went by two ways");
    }
    let answer = visitor.ask(gateway, wire::OP_SCRIBE_APPEND, meta, Some(&body)).await;
    let Ok(positions) = answer.and_then(|reply| Ok(msg::Positions::from_bytes(&reply.meta)?))
    else {
        return;
    };
    for position in positions.positions {
        learn(visitor, agent, &position);
    }
}

impl Agents {
    /// As [`send`], by a carrier, which has batches of other agents, too. Some are left with it for whoever
    /// comes next, and some die with it.
    async fn send_by_carrier(&self, visitor: &Visitor, agent: &Mutex<Agent>, most: usize) {
        let batches = agent.held().to_send(most);
        let name = agent.held().name.clone();
        if batches.is_empty() {
            return;
        }
        let at = visitor.below(CARRIERS as u64) as usize;
        self.leave(visitor, at, &name, &batches);
        if visitor.below(6) == 0 {
            self.leave(visitor, (at + 1) % CARRIERS, &name, &batches);
            visitor.sometimes(true, "a batch went by two carriers");
            self.carry(visitor, (at + 1) % CARRIERS).await;
        }
        // Others come to it meanwhile.
        visitor.pause().await;
        match visitor.below(6) {
            0 => {
                let mut carrier = self.carriers[at].held();
                let has_some = carrier.core.waiting_bytes() > 0;
                visitor.sometimes(has_some, "a carrier was erased with batches in it");
                *carrier = Carrying { life: carrier.life + 1, ..Carrying::default() };
            }
            1 => {}
            _ => self.carry(visitor, at).await,
        }
    }

    fn leave(&self, visitor: &Visitor, at: usize, name: &str, batches: &[Vec<u8>]) {
        let (meta, body) = append(batches);
        let meta = msg::Append::from_bytes(&meta).expect("it was just made");
        let asked = match Asked::append(meta, body) {
            Ok(asked) => asked,
            Err(e) => return visitor.violate(&e.message),
        };
        let from = u64::from(crc32c(name.as_bytes()));
        let told = self.carriers[at].held().core.take(from, asked, name.to_owned());
        self.tell(visitor, told);
    }

    /// One round of a carrier's. What it hears when it is gone, nobody hears.
    async fn carry(&self, visitor: &Visitor, at: usize) {
        let (round, life) = {
            let mut carrier = self.carriers[at].held();
            let Some(round) = carrier.core.next_round() else { return };
            (round, carrier.life)
        };
        let Request::Append { categories, bodies, .. } = round.request() else { return };
        let (meta, body) = (msg::Append { categories }.to_bytes(), bodies.concat());
        visitor.sometimes(bodies.len() > 1, "a carrier gathered batches of two spools");
        let gateway = visitor.any_gateway();
        let answer = visitor.ask(gateway, wire::OP_SCRIBE_APPEND, meta, Some(&body)).await;
        let positions = answer.and_then(|reply| Ok(msg::Positions::from_bytes(&reply.meta)?));
        let answers = |all: msg::Positions| all.positions.into_iter().map(Told::Position).collect();
        let told = {
            let mut carrier = self.carriers[at].held();
            if carrier.life != life {
                visitor.sometimes(true, "an answer came to a carrier that was gone");
                return;
            }
            carrier.core.came(round, positions.map(answers))
        };
        self.tell(visitor, told);
    }

    fn tell(&self, visitor: &Visitor, told: Vec<(String, Outcome)>) {
        for (name, outcome) in told {
            let agent = self.agents.held()[&name].clone();
            for told in outcome.into_iter().flatten() {
                match told {
                    Told::Position(position) => learn(visitor, &agent, &position),
                    Told::Heard(_) => visitor.violate("a batch was answered as a word"),
                }
            }
        }
    }
}

fn learn(visitor: &Visitor, agent: &Mutex<Agent>, position: &msg::Position) {
    if !position.refused.is_empty() {
        return visitor.violate(&format!("a batch was refused: {}", position.refused));
    }
    let position = Position { next: position.next, checksum: position.checksum };
    match agent.held().spool.learn(&category(), position) {
        Progress::Has(_) | Progress::Behind => {}
        Progress::Copied => visitor.violate(&format!("at {position:?} it is a copy's")),
    }
}

async fn page(visitor: &Visitor, gateway: usize, from: Index) -> Option<(Vec<Vec<u8>>, Index)> {
    let (category, bytes_max) = (CATEGORY.to_owned(), 1 << 16);
    let read = msg::Read { category, from, bytes_max, wait: false };
    let reply = visitor.ask(gateway, wire::OP_SCRIBE_READ, read.to_bytes(), None).await.ok()?;
    let batches = msg::Batches::from_bytes(&reply.meta).ok()?;
    let mut rest = &reply.body[..];
    let mut read = Vec::new();
    for indexed in batches.batches {
        let (batch, behind) = rest.split_at_checked(indexed.bytes as usize)?;
        read.push(batch.to_vec());
        rest = behind;
    }
    Some((read, batches.next))
}

async fn until_told(
    visitor: &Visitor,
    gateway: usize,
    from: Index,
) -> Option<(Vec<Vec<u8>>, Index)> {
    for _ in 0..ATTEMPTS {
        match page(visitor, gateway, from).await {
            None => visitor.pause().await,
            told => return told,
        }
    }
    None
}

impl Guest for Agents {
    fn open(&self, node: &Arc<Node>, _: &SimNet) -> Result<Lodging> {
        let face = ScribeFace::new(node.clone());
        face.open_all()?;
        Ok(Lodging { face, round: Box::new(|| {}) })
    }

    fn clients(&self) -> usize {
        CLIENTS
    }

    fn work(self: Arc<Self>, visitor: Visitor, end_ns: u64) -> Work {
        Box::pin(async move {
            let agent = self.agent(&visitor);
            let mut number = 0;
            while visitor.now_ns() < end_ns {
                visitor.think().await;
                visitor.count_operation();
                let texts = (0..1 + visitor.below(3)).map(|_| {
                    number += 1;
                    format!("{} {number}", visitor.name())
                });
                let texts: Vec<String> = texts.collect();
                agent.held().keep(texts);
                if visitor.below(8) == 0 {
                    let pending = agent.held().spool.pending() > 0;
                    visitor.sometimes(pending, "a spool was replayed");
                    let again = agent.held().begin_again();
                    if let Err(what) = again {
                        visitor.violate(&what);
                    }
                }
                let most = 1 + visitor.below(4) as usize;
                match visitor.below(3) {
                    0 => send(&visitor, &agent, most).await,
                    _ => self.send_by_carrier(&visitor, &agent, most).await,
                }
            }
        })
    }

    fn check(self: Arc<Self>, visitor: Visitor) -> Work {
        Box::pin(async move {
            let agents: Vec<_> = self.agents.held().values().cloned().collect();
            for agent in &agents {
                for _ in 0..ATTEMPTS {
                    if agent.held().spool.first_to_send(&BTreeSet::new()).is_none() {
                        break;
                    }
                    match visitor.below(2) {
                        0 => send(&visitor, agent, 16).await,
                        _ => self.send_by_carrier(&visitor, agent, 16).await,
                    }
                    visitor.pause().await;
                }
                if agent.held().spool.pending() > 0 {
                    visitor.violate("what a spool has does not reach its topic");
                }
            }
            let told: Vec<Vec<String>> =
                agents.iter().map(|agent| agent.held().told.clone()).collect();
            if told.iter().all(Vec::is_empty) {
                return;
            }
            for gateway in 1..=visitor.gateways() {
                let mut texts = Vec::new();
                let mut from = Index(1);
                loop {
                    let Some((batches, next)) = until_told(&visitor, gateway, from).await else {
                        return visitor
                            .violate(&format!("node {gateway} does not say what there is"));
                    };
                    for bytes in batches {
                        let Ok(messages) = Read::of(&bytes) else {
                            return visitor.violate("a batch cannot be read");
                        };
                        let text = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
                        texts.extend(messages.iter().map(text));
                    }
                    if next == from {
                        break;
                    }
                    from = next;
                }
                let all: usize = told.iter().map(Vec::len).sum();
                let in_order = agents.iter().zip(&told).all(|(_, told)| {
                    let own = texts.iter().filter(|text| told.contains(text));
                    own.eq(told.iter())
                });
                if texts.len() != all || !in_order {
                    let what = format!("of {all} messages {} are read", texts.len());
                    return visitor.violate(&format!("{what}, in order: {in_order}"));
                }
            }
            visitor.sometimes(true, "messages were read once");
        })
    }
}
