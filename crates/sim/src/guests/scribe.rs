//! Agents of Scribe as a guest: each has a spool of its own on a disk of its own, keeps messages there, and sends
//! batches through any node, or by one of two carriers, while faults are drawn, some of them by two ways. Agents
//! lose their power, also in the middle of a write; carriers are killed with all that they have. In the end whoever
//! reads the category, through whichever node, sees what was kept once, in its agent's order.

use crate::world::guest::{Guest, Lodging, Visitor, Work};
use crate::{SimDisk, SimNet};
use holdfast_base::checksum::crc32c;
use holdfast_base::codec::{Decode, Encode, put_bytes};
use holdfast_base::ids::Index;
use holdfast_base::random;
use holdfast_base::{Error, Result};
use holdfast_env::{HoldMutex, SeededRng};
use holdfast_log::Drive;
use holdfast_node::Node;
use holdfast_scribe::batch::{Messages as Read, Position};
use holdfast_scribe::carry::{Asked, Carrier, Outcome, Request, Told};
use holdfast_scribe::category::Category;
use holdfast_scribe::face::ScribeFace;
use holdfast_scribe::gather::{Messages, Round};
use holdfast_scribe::intake::Keeps;
use holdfast_scribe::spool::Progress;
use holdfast_scribe::store::{Bounds, SEGMENTS_MIN, Store};
use holdfast_wire::{self as wire, scribe as msg};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};

const CLIENTS: usize = 2;
const CARRIERS: usize = 2;
const CATEGORY: &str = "Shared";
/// Requests in which an agent brings out what it has, when the faults are over.
const ATTEMPTS: usize = 200;
/// Of a spool: a commit is a sector, so it gives files up all the time.
const SEGMENT_BYTES: u64 = 4 * 4096;
/// It is full when nothing has left it for some twenty of them.
const BOUND_BYTES: u64 = 2 * SEGMENTS_MIN * SEGMENT_BYTES;

/// One agent: its disk, and its process.
struct Agent {
    disk: SimDisk,
    /// Nothing while it does not run.
    store: Option<Store>,
    /// Texts in the order in which it was given them, and whether it said that it keeps them.
    said: Vec<(String, bool)>,
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

/// A guest of a schedule.
pub fn scribe() -> Arc<dyn Guest> {
    Arc::new(Agents::default())
}

fn category() -> Category {
    Category::new(CATEGORY).expect("its name is allowed")
}

fn open(disk: &SimDisk, seed: u64) -> Result<Store> {
    let bounds =
        Bounds { bound_bytes: BOUND_BYTES, segment_bytes: SEGMENT_BYTES, drive: Drive::Pump };
    Store::open(Arc::new(disk.clone()), Path::new("/spool"), bounds, &SeededRng::new(seed))
}

impl Agent {
    fn new(seed: u64) -> Result<Agent> {
        let disk = SimDisk::new(seed);
        let store = open(&disk, seed)?;
        Ok(Agent { disk, store: Some(store), said: Vec::new() })
    }

    fn store(&self) -> &Store {
        self.store.as_ref().expect("it runs")
    }

    /// A call: whether there was room, and it was kept.
    fn keep(&mut self, texts: Vec<String>) -> bool {
        let mut round = Round::default();
        let messages = texts.iter().map(|text| (category(), text.clone().into_bytes())).collect();
        let call = Messages { messages };
        if !self.store().has_room(call.cost()) {
            return false;
        }
        round.add(&call);
        let is_kept = self.store().keep(&round.pack()).iter().all(BTreeMap::is_empty);
        self.said.extend(texts.into_iter().map(|text| (text, is_kept)));
        is_kept
    }

    /// Its process, or its machine, goes down and comes up again.
    fn begin_again(&mut self, has_power: bool, seed: u64) -> Result<()> {
        let id = self.store().look(|core| core.id());
        self.store = None;
        self.disk = match has_power {
            true => self.disk.process_kill(),
            false => self.disk.power_cut(seed),
        };
        let store = open(&self.disk, seed)?;
        match store.look(|core| core.id()) == id {
            true => self.store = Some(store),
            false => return Err(Error::bug("begin a spool again: it has another identity")),
        }
        Ok(())
    }

    fn pending(&self) -> usize {
        self.store().look(|core| core.pending())
    }

    /// Batches that the topic is not known to have, some of them.
    fn to_send(&self, bytes_max: usize) -> Result<Vec<Vec<u8>>> {
        let none = BTreeSet::new();
        let Some(from) = self.store().look(|core| core.first_to_send(&none)) else {
            return Ok(Vec::new());
        };
        let (outgoing, _) = self.store().to_send(from, bytes_max, &none)?;
        Ok(outgoing.into_iter().map(|one| one.bytes).collect())
    }

    /// Whether what was read of it is what it keeps, in its order, and nothing twice.
    fn is_read(&self, texts: &[&String]) -> bool {
        let mut texts = texts.iter().peekable();
        let is_there = |(said, is_kept): &(String, bool)| {
            let is_next = texts.next_if(|text| **text == said).is_some();
            is_next || !is_kept
        };
        self.said.iter().all(is_there) && texts.peek().is_none()
    }
}

fn append(batches: &[Vec<u8>]) -> (Vec<u8>, Vec<u8>) {
    let mut body = Vec::new();
    batches.iter().for_each(|batch| put_bytes(&mut body, batch));
    (msg::Append { categories: vec![CATEGORY.to_owned()] }.to_bytes(), body)
}

impl Agents {
    fn agent(&self, visitor: &Visitor) -> Result<Arc<Mutex<Agent>>> {
        let agent = Arc::new(Mutex::new(Agent::new(visitor.below(u64::MAX))?));
        self.agents.held().insert(visitor.name().to_owned(), agent.clone());
        Ok(agent)
    }

    /// What an agent sends now; nothing where its disk does not say it, which is a broken promise.
    fn to_send(visitor: &Visitor, agent: &Mutex<Agent>, bytes_max: usize) -> Vec<Vec<u8>> {
        agent.held().to_send(bytes_max).unwrap_or_else(|e| {
            visitor.violate(&format!("a spool cannot be read: {e}"));
            Vec::new()
        })
    }
}

/// One request, and what is learned of it.
async fn send(visitor: &Visitor, agent: &Mutex<Agent>, most: usize) {
    let batches = Agents::to_send(visitor, agent, most);
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
    async fn send_by_carrier(
        &self,
        visitor: &Visitor,
        (name, agent): (&str, &Mutex<Agent>),
        most: usize,
    ) {
        let batches = Agents::to_send(visitor, agent, most);
        if batches.is_empty() {
            return;
        }
        let at = visitor.below(CARRIERS as u64) as usize;
        self.leave(visitor, at, name, &batches);
        if visitor.below(6) == 0 {
            self.leave(visitor, (at + 1) % CARRIERS, name, &batches);
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
    match agent.held().store().learn(&category(), position) {
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
            let agent = match self.agent(&visitor) {
                Ok(agent) => agent,
                Err(e) => return visitor.violate(&format!("a spool cannot begin: {e}")),
            };
            let mut number = 0;
            while visitor.now_ns() < end_ns && !visitor.is_over() {
                visitor.think().await;
                visitor.count_operation();
                let texts = (0..1 + visitor.below(3)).map(|_| {
                    number += 1;
                    // Long ones, of which files fill and are given up.
                    let long = random::bytes(visitor.below(u64::MAX), visitor.below(2000) as usize);
                    let hex: String = long.iter().map(|byte| format!("{byte:02x}")).collect();
                    format!("{} {number} {hex}", visitor.name())
                });
                let texts: Vec<String> = texts.collect();
                if let Err(e) = call(&visitor, &agent, texts) {
                    return visitor.violate(&format!("a spool cannot begin again: {e}"));
                }
                let most = 1 + visitor.below(20_000) as usize;
                match visitor.below(3) {
                    0 => send(&visitor, &agent, most).await,
                    _ => self.send_by_carrier(&visitor, (visitor.name(), &agent), most).await,
                }
            }
        })
    }

    fn check(self: Arc<Self>, visitor: Visitor) -> Work {
        Box::pin(async move {
            let agents: Vec<_> = self.agents.held().clone().into_iter().collect();
            for (name, agent) in &agents {
                for _ in 0..ATTEMPTS {
                    if agent.held().pending() == 0 {
                        break;
                    }
                    match visitor.below(2) {
                        0 => send(&visitor, agent, 1 << 16).await,
                        _ => self.send_by_carrier(&visitor, (name, agent), 1 << 16).await,
                    }
                    visitor.pause().await;
                }
                if agent.held().pending() > 0 {
                    visitor.violate("what a spool has does not reach its topic");
                }
            }
            if agents.iter().all(|(_, agent)| agent.held().said.iter().all(|(_, kept)| !kept)) {
                return;
            }
            for gateway in 1..=visitor.gateways() {
                let texts = match texts(&visitor, gateway).await {
                    Ok(texts) => texts,
                    Err(what) => return visitor.violate(&format!("node {gateway} {what}")),
                };
                let mut all = 0;
                for (name, agent) in &agents {
                    // No name is another's beginning.
                    let of = format!("{name} ");
                    let own: Vec<&String> =
                        texts.iter().filter(|text| text.starts_with(&of)).collect();
                    all += own.len();
                    if !agent.held().is_read(&own) {
                        let agent = agent.held();
                        let kept = agent.said.iter().filter(|(_, kept)| *kept).count();
                        let (read, said) = (own.len(), agent.said.len());
                        return visitor.violate(&format!(
                            "of {said} messages, {kept} of them kept, {read} are read, or in another order"
                        ));
                    }
                }
                if all != texts.len() {
                    return visitor.violate("there are messages of nobody's");
                }
            }
            visitor.sometimes(true, "log messages were read once");
        })
    }
}

/// An application's call, and what becomes of the agent's machine meanwhile.
fn call(visitor: &Visitor, agent: &Mutex<Agent>, texts: Vec<String>) -> Result<()> {
    let mut agent = agent.held();
    let fate = visitor.below(32);
    let has_some = agent.pending() > 0;
    if fate == 0 {
        // The power fails within the write, or right behind it.
        agent.disk.crash_at(agent.disk.operations() + 1 + visitor.below(8));
    }
    let is_kept = agent.keep(texts);
    visitor.sometimes(!is_kept && fate > 0, "a spool had no room");
    visitor.sometimes(!is_kept && fate == 0, "the power failed while a spool kept a message");
    if fate < 3 {
        visitor.sometimes(has_some, "a spool was replayed");
        agent.begin_again(fate == 2, visitor.below(u64::MAX))?;
    }
    Ok(())
}

/// All that a category has, as a node shows it.
async fn texts(
    visitor: &Visitor,
    gateway: usize,
) -> std::result::Result<Vec<String>, &'static str> {
    let (mut texts, mut from) = (Vec::new(), Index(1));
    loop {
        let Some((batches, next)) = until_told(visitor, gateway, from).await else {
            return Err("does not say what there is");
        };
        for bytes in batches {
            let messages = Read::of(&bytes).map_err(|_| "shows a batch that cannot be read")?;
            let text = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
            texts.extend(messages.iter().map(text));
        }
        if next == from {
            return Ok(texts);
        }
        from = next;
    }
}
