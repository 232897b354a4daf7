//! Items as a guest: keys of a topic are put and deleted through any node under sessions, while
//! every node runs a disk view of one half of them, a half of an index of what their values are tagged
//! with, and some a view of all in memory. Rides go over both halves under the same faults: each shows
//! one index, each key once, and all that was acknowledged up to there. Images are asked for; views are
//! stopped and run anew, and begin with what other nodes have of them, while the log is trimmed; images are
//! damaged, and rows. The horizon moves, and passes no ride that goes on. In the end the index finds what
//! the rides bring.

mod convoys;
mod damage;
mod follows;
mod horizons;
mod marked;
mod rides;

use super::names::{Desk, until_told};
use crate::SimNet;
use crate::world::guest::{Guest, Lodging, Visitor, Work};
use damage::Damage;
use holdfast_base::codec::{Decode, Encode, put_bytes};
use holdfast_base::ids::{Index, Sequence, SessionId};
use holdfast_base::{Kind, Result};
use holdfast_env::{Budget, HoldMutex};
use holdfast_node::Node;
use holdfast_ride::{Settings, ViewFace, Views};
use holdfast_wire::slab::Hashed;
use holdfast_wire::{self as wire, Call, view as msg};
use horizons::Horizons;
use rides::Wish;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

const TOPIC: &str = "things";
/// As the log calls it.
const LOG_TOPIC: &str = "view/things";
/// The only collection.
const OF: u16 = 1;
const HALVES: u32 = 2;
const CLIENTS: usize = 3;
/// Rounds after which another view is run.
const TURN_ROUNDS: u32 = 8;
/// Values have one of so many tags, or none.
const TAGS: u64 = 4;
/// How often a client sends a change whose end it does not know, before it leaves the key alone.
const SENDS: usize = 6;

/// A key's version: the entry that made it, and its value, or that it was deleted.
type Version = (u64, Option<Vec<u8>>);
/// What a ride brought: of each key the entry that made its newest value, and the value.
type Shown = BTreeMap<Vec<u8>, (u64, Vec<u8>)>;
/// Values that a key may have; nothing for a deletion.
type MayBe = Vec<Option<Vec<u8>>>;

#[derive(Default)]
struct Items {
    /// What was acknowledged of each key, in the order of the entries.
    keys: Mutex<BTreeMap<Vec<u8>, Vec<Version>>>,
    /// Keys of which a change may have been made, and nobody was told.
    in_doubt: Mutex<BTreeMap<Vec<u8>, MayBe>>,
    horizons: Arc<Horizons>,
    damage: Damage,
}

/// A guest of a schedule.
pub fn items() -> Arc<dyn Guest> {
    Arc::new(Items::default())
}

fn name_of(kind: msg::ViewKind, part: u32, of: u32) -> msg::ViewName {
    msg::ViewName { topic: TOPIC.to_owned(), kind, part, of }
}

fn half(node: usize) -> msg::ViewName {
    name_of(msg::ViewKind::Disk {}, node as u32 % HALVES, HALVES)
}

fn half_of_index(node: usize) -> msg::ViewName {
    let (collection, field) = ("c".to_owned(), "tags".to_owned());
    name_of(msg::ViewKind::Index { collection, field }, node as u32 / 2 % HALVES, HALVES)
}

fn in_fifths(turn: u32) -> msg::ViewName {
    name_of(msg::ViewKind::Disk {}, turn % 5, 5)
}

fn in_memory() -> msg::ViewName {
    name_of(msg::ViewKind::Memory {}, 0, 1)
}

impl Guest for Items {
    fn open(&self, node: &Arc<Node>, _: &SimNet) -> Result<Lodging> {
        let heads = 1 + node.id.0 % 2;
        let budget = Budget::new(0);
        let views = Views::new(node, Path::new("/data/views"), Settings::of(heads), &budget);
        views.open_all()?;
        self.horizons.node_begins(node);
        let (rounds, node) = (views.clone(), node.clone());
        let (count, damage) = (AtomicU32::new(0), self.damage.clone());
        let horizons = self.horizons.clone();
        let round = move || {
            rounds.round();
            damage.round(&node);
            horizons.round(&node);
            // The host makes the topic when the first client asks for it.
            if rounds.topic(TOPIC).is_err() {
                return;
            }
            let _ = rounds.run(&half(node.id.0 as usize));
            // What is run anew has nothing of its own.
            let count = count.fetch_add(1, Ordering::Relaxed);
            let (turn, rests) = (count / TURN_ROUNDS, count % TURN_ROUNDS < 2);
            let own = half_of_index(node.id.0 as usize);
            let others = match node.id.0 {
                1 => vec![own.clone(), in_fifths(turn)],
                2 => vec![in_memory()],
                _ => vec![in_fifths(turn)],
            };
            if node.id.0 != 1 {
                let _ = rounds.run(&own);
            }
            for view in others {
                if !rests {
                    let _ = rounds.run(&view);
                } else if let Ok(place) = rounds.stop(&view) {
                    // It may have been on its way: what came so far goes with it.
                    let left = node.machine.disk.exists(&place.join("boot.tmp"));
                    assert!(!left.unwrap_or(false), "what `{view:?}` received stays");
                }
            }
        };
        Ok(Lodging { face: ViewFace::new(views, None), round: Box::new(round) })
    }

    fn clients(&self) -> usize {
        CLIENTS
    }

    fn work(self: Arc<Self>, visitor: Visitor, end_ns: u64) -> Work {
        Box::pin(async move {
            let mut desk = Desk::new(&visitor, "");
            let mut session = None;
            while visitor.now_ns() < end_ns {
                let (gateway, name) = desk.turn(&visitor).await;
                let sure = match visitor.below(13) {
                    12 => {
                        self.convoy(&visitor, gateway).await;
                        true
                    }
                    11 => {
                        self.follow(&visitor, gateway).await;
                        true
                    }
                    10 => {
                        self.horizons.ask(&visitor, gateway, self.last()).await;
                        true
                    }
                    9 => {
                        self.ride_marked(&visitor).await;
                        true
                    }
                    8 => {
                        self.mark(&visitor, gateway).await;
                        true
                    }
                    0 => {
                        let wish = Wish::draw(&visitor, self.last());
                        self.ride(&visitor, gateway, Index(0), &wish).await;
                        true
                    }
                    1..=2 => {
                        self.read(&visitor, gateway, name.as_bytes()).await;
                        true
                    }
                    _ => self.change(&visitor, gateway, &mut session, name.as_bytes()).await,
                };
                desk.over(&visitor, &name, sure);
            }
        })
    }

    fn check(self: Arc<Self>, visitor: Visitor) -> Work {
        Box::pin(async move {
            let last = self.last();
            if last.0 == 0 {
                return;
            }
            visitor.sometimes(true, "an item was changed");
            self.damage.look_at_rows(&visitor);
            // What each half holds is the same on all nodes that have it.
            let mut shown: BTreeMap<u32, Shown> = BTreeMap::new();
            for gateway in 1..=visitor.gateways() {
                let newest = Wish::newest();
                let ask = || self.ride(&visitor, gateway, last, &newest);
                let ridden = until_told(&visitor, (gateway, "all"), ask).await;
                let Some((of, items)) = ridden else { return };
                if *shown.entry(of).or_insert_with(|| items.clone()) != items {
                    return visitor.violate(&format!("half {of} is another one at n{gateway}"));
                }
            }
            if shown.len() != HALVES as usize {
                return visitor.violate("nobody has one of the halves");
            }
            let keys: Vec<Vec<u8>> = self.keys.held().keys().cloned().collect();
            for key in keys {
                let all = shown.values().find_map(|half| half.get(&key)).map(|(_, value)| value);
                let told = String::from_utf8_lossy(&key).into_owned();
                let mut answered = 0;
                for gateway in 1..=visitor.gateways() {
                    let ask = || self.read(&visitor, gateway, &key);
                    let found = until_told(&visitor, (gateway, &told), ask).await;
                    let Some(found) = found else { return };
                    let Answer::Is(found) = found else { continue };
                    answered += 1;
                    if found.as_ref() != all {
                        return visitor.violate(&format!("`{told}` is {found:?} and {all:?}"));
                    }
                }
                if answered == 0 {
                    return visitor.violate(&format!("no node has `{told}`"));
                }
            }
            let newest = shown.values().flatten();
            let newest = newest.map(|(key, (index, value))| (key.clone(), *index, value.clone()));
            self.check_index(&visitor, last, newest.collect()).await;
        })
    }
}

/// What a node says of a key.
enum Answer {
    Is(Option<Vec<u8>>),
    /// It runs no view that has it.
    Elsewhere,
}

/// How a node's disk views are doing, if it says.
async fn disks_of(visitor: &Visitor, gateway: usize) -> Option<Vec<msg::ViewStatus>> {
    let topic = TOPIC.to_owned().to_bytes();
    let status = visitor.ask(gateway, wire::OP_VIEW_STATUS, topic, None).await.ok()?;
    let mut views = Vec::<msg::ViewStatus>::from_bytes(&status.meta).expect("what was answered");
    views.retain(|one| one.view.kind == msg::ViewKind::Disk {});
    Some(views)
}

/// A session at some node's fold, and its last number.
struct Session {
    id: SessionId,
    sequence: u64,
}

fn changes(key: &[u8], value: Option<&[u8]>) -> Vec<u8> {
    let mut body = 1u32.to_bytes();
    OF.encode(&mut body);
    put_bytes(&mut body, key);
    value.is_some().encode(&mut body);
    value.into_iter().for_each(|value| put_bytes(&mut body, value));
    body
}

/// A value with a tag, or with two, or with none, and so many bytes beside.
fn tagged(visitor: &Visitor, bytes: usize) -> Vec<u8> {
    let tag = || format!("t{}", visitor.below(TAGS));
    let tags = match visitor.below(4) {
        0 => "null".to_owned(),
        1 => format!(r#"["{}", "{}"]"#, tag(), tag()),
        _ => format!(r#""{}""#, tag()),
    };
    let rest = char::from(b'a' + visitor.below(26) as u8).to_string().repeat(bytes);
    format!(r#"{{"tags": {tags}, "rest": "{rest}"}}"#).into_bytes()
}

impl Items {
    /// The last entry that was acknowledged; 0 for none.
    fn last(&self) -> Index {
        let keys = self.keys.held();
        Index(keys.values().filter_map(|versions| Some(versions.last()?.0)).max().unwrap_or(0))
    }

    /// Of each tag every node that has it finds the keys whose newest values have it, and one has it.
    async fn check_index(
        &self,
        visitor: &Visitor,
        reached: Index,
        newest: Vec<(Vec<u8>, u64, Vec<u8>)>,
    ) {
        for tag in (0..TAGS).map(|tag| format!("t{tag}")) {
            let written = format!(r#""{tag}""#);
            let has = |value: &[u8]| String::from_utf8_lossy(value).contains(&written);
            let mut wanted: Vec<(Vec<u8>, u64)> = newest
                .iter()
                .filter(|(_, _, value)| has(value))
                .map(|(key, index, _)| (key.clone(), *index))
                .collect();
            wanted.sort();
            let mut answered = 0;
            for gateway in 1..=visitor.gateways() {
                let ask = || self.find(visitor, gateway, reached, &tag);
                let Some(found) = until_told(visitor, (gateway, &tag), ask).await else { return };
                let Some(found) = found else { continue };
                answered += 1;
                if found != wanted {
                    let told = format!("`{tag}` is in {found:?} at n{gateway}, not {wanted:?}");
                    return visitor.violate(&told);
                }
            }
            if answered == 0 {
                return visitor.violate(&format!("no node has keys with `{tag}`"));
            }
            visitor.sometimes(!wanted.is_empty(), "keys were found by their tag");
        }
    }

    /// Keys with a tag, page by page, if the node says; nothing where its half of the index has none.
    async fn find(
        &self,
        visitor: &Visitor,
        gateway: usize,
        reached: Index,
        tag: &str,
    ) -> Option<Option<Vec<(Vec<u8>, u64)>>> {
        let mut all = Vec::new();
        let mut after = None;
        loop {
            let find = msg::Find {
                topic: TOPIC.to_owned(),
                reached,
                collection: "c".to_owned(),
                field: "tags".to_owned(),
                value: tag.as_bytes().to_vec(),
                after,
                keys_max: 1 + visitor.below(5) as u32,
            };
            let found = visitor.ask(gateway, wire::OP_VIEW_FIND, find.to_bytes(), None).await;
            let found = match found {
                Ok(reply) => msg::Havings::from_bytes(&reply.meta).expect("what was answered"),
                Err(e) if e.kind == Kind::NotFound => return Some(None),
                Err(e) => {
                    visitor.note(&format!("is not told by n{gateway} who has `{tag}`: {e}"));
                    return None;
                }
            };
            after = found.keys.last().map(|having| having.key.clone());
            all.extend(found.keys.into_iter().map(|having| (having.key, having.index.0)));
            if !found.more {
                return Some(Some(all));
            }
        }
    }

    /// Whether its end is known.
    async fn change(
        &self,
        visitor: &Visitor,
        mut gateway: usize,
        session: &mut Option<Session>,
        key: &[u8],
    ) -> bool {
        let value = match visitor.below(5) {
            0 => None,
            n => Some(tagged(visitor, [0, 5, 300, 3000][n as usize - 1])),
        };
        let Some(session) = ready(visitor, gateway, session).await else { return true };
        session.sequence += 1;
        let sequence = Sequence(session.sequence);
        let call = Call { session: session.id, sequence, acknowledged_below: sequence };
        let change = msg::Change { topic: TOPIC.to_owned(), call }.to_bytes();
        let body = changes(key, value.as_deref());
        self.in_doubt.held().entry(key.to_vec()).or_default().push(value.clone());
        for send in 0..SENDS {
            let done =
                visitor.ask(gateway, wire::OP_VIEW_CHANGE, change.clone(), Some(&body)).await;
            match done {
                Ok(reply) => {
                    let index = msg::Changed::from_bytes(&reply.meta).expect("an index").index;
                    visitor.note(&format!("changed {key:?} at {index}"));
                    visitor.sometimes(send > 0, "a change of items was sent again");
                    self.keys.held().entry(key.to_vec()).or_default().push((index.0, value));
                    self.in_doubt.held().remove(key);
                    return true;
                }
                Err(e) if e.kind == Kind::Retry => {
                    visitor.note(&format!("does not know of its change of {key:?}: {e}"));
                    visitor.pause().await;
                    gateway = visitor.any_gateway();
                }
                Err(e) => {
                    visitor.note(&format!("does not know of its change of {key:?}: {e}"));
                    // The log may take none for now, and a session may have ended.
                    if matches!(e.kind, Kind::Bug | Kind::Corrupt | Kind::Invalid) {
                        visitor.violate(&format!("a change of {key:?}: {e}"));
                    }
                    return false;
                }
            }
        }
        false
    }

    /// Asks for images.
    async fn mark(&self, visitor: &Visitor, gateway: usize) {
        let mark = msg::Mark { topic: TOPIC.to_owned(), call: Call::default() }.to_bytes();
        match visitor.ask(gateway, wire::OP_VIEW_MARK, mark, None).await {
            Ok(_) => visitor.sometimes(true, "images of items were asked for"),
            Err(e) if matches!(e.kind, Kind::Bug | Kind::Corrupt | Kind::Invalid) => {
                visitor.violate(&format!("a mark: {e}"));
            }
            Err(e) => visitor.note(&format!("does not know of its mark: {e}")),
        }
    }

    /// What a key holds, if anybody says.
    async fn read(&self, visitor: &Visitor, gateway: usize, key: &[u8]) -> Option<Answer> {
        let known = self.keys.held().get(key).and_then(|versions| versions.last().cloned());
        let reached = Index(known.as_ref().map_or(0, |(index, _)| *index));
        let keys = vec![msg::Key { collection: OF, key: key.to_vec() }];
        let get = msg::Get { topic: TOPIC.to_owned(), reached, at: None, keys };
        let got = match visitor.ask(gateway, wire::OP_VIEW_GET, get.to_bytes(), None).await {
            Ok(reply) => msg::Got::from_bytes(&reply.meta).expect("what was answered"),
            Err(e) if e.kind == Kind::NotFound => return Some(Answer::Elsewhere),
            Err(e) => {
                visitor.note(&format!("is not told by n{gateway} what {key:?} is: {e}"));
                return None;
            }
        };
        let found = got.found.into_iter().next().expect("one for the key");
        self.check_key(visitor, key, reached, found.as_ref().map(|f| (f.index.0, &*f.value)));
        Some(Answer::Is(found.map(|found| found.value)))
    }

    /// Whoever reads at an index or later sees what was acknowledged up to there, or what came later.
    fn check_key(&self, visitor: &Visitor, key: &[u8], at: Index, found: Option<(u64, &[u8])>) {
        let keys = self.keys.held();
        let versions = keys.get(key).map(Vec::as_slice).unwrap_or_default();
        let wanted = versions.iter().rev().find(|(index, _)| *index <= at.0);
        let in_doubt = self.in_doubt.held();
        let may_be = in_doubt.get(key).map(Vec::as_slice).unwrap_or_default();
        let fine = match (wanted, found) {
            (None, None) => true,
            (wanted, Some((index, value))) => {
                let first = wanted.map_or(0, |(index, _)| *index);
                let acknowledged =
                    versions.iter().any(|(i, v)| *i == index && v.as_deref() == Some(value));
                index >= first
                    && (acknowledged || may_be.iter().any(|v| v.as_deref() == Some(value)))
            }
            (Some((index, _)), None) => {
                versions.iter().any(|(i, v)| i >= index && v.is_none()) || may_be.contains(&None)
            }
        };
        if !fine {
            let found = found.map(|(index, value)| (index, value.len()));
            visitor.violate(&format!("{key:?} is {found:?} at {at}, not {wanted:?}"));
        }
    }
}

/// A session to send changes under; none where nobody gives one now.
async fn ready<'a>(
    visitor: &Visitor,
    gateway: usize,
    session: &'a mut Option<Session>,
) -> Option<&'a mut Session> {
    if session.is_none() {
        let collection = msg::Collection { name: "c".into(), hashed: Hashed::All, json: true };
        let make = msg::Make { topic: TOPIC.to_owned(), collection }.to_bytes();
        visitor.ask(gateway, wire::OP_VIEW_MAKE, make, None).await.ok()?;
        let topic = TOPIC.to_owned().to_bytes();
        let opened = visitor.ask(gateway, wire::OP_VIEW_SESSION, topic, None).await.ok()?;
        let id = SessionId::from_bytes(&opened.meta).expect("a session");
        *session = Some(Session { id, sequence: 0 });
    }
    session.as_mut()
}
