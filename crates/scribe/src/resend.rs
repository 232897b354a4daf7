//! Sends again what only one of several copies of a spool has: under an identity of its own, since a topic takes
//! no second chain of batches under the first one. That identity follows from the spool and from the first batch
//! that is this copy's alone, and so do the numbers: whoever is killed, or does it again, sends the same bytes, of
//! which each counts once. What is no copy's goes out as an agent would bring it. Reads the spool; changes nothing
//! of it but what its topics have.

use crate::batch::{self, Position, SpoolId, renumbered};
use crate::category::Category;
use crate::spool::Progress;
use crate::store::{Outgoing, Store};
use holdfast_base::ids::Index;
use holdfast_base::random::mix;
use holdfast_base::{Error, Kind, Result};
use holdfast_client::{Client, ScribePage};
use holdfast_env::{planted, sometimes};
use holdfast_wire::scribe as msg;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Batches of one request.
const WINDOW_BYTES: usize = 4 << 20;
/// Categories of one question.
const ASK_CATEGORIES: usize = 1000;
/// Copies that were made of copies, each of the one before, when that had messages of its own.
const COPIES_OF_COPIES_MAX: usize = 16;

const _: () = assert!(WINDOW_BYTES + batch::ENCODED_BYTES_MAX <= msg::APPEND_BYTES_MAX);
const _: () = assert!(ASK_CATEGORIES <= msg::ASK_CATEGORIES_MAX);

/// The topics of a cluster.
pub trait Topics {
    /// Where a spool is in each of these.
    fn ask(&mut self, spool: SpoolId, categories: &[Category]) -> Result<Vec<msg::Position>>;
    /// Brings batches of these categories; where the spool of each is then.
    fn append(&mut self, categories: Vec<String>, batches: &[&[u8]]) -> Result<Vec<msg::Position>>;
    /// Batches that a category took, from an entry on, 0 for the oldest; none at its end.
    fn read(&mut self, category: &Category, from: Index) -> Result<ScribePage>;
}

impl Topics for Client {
    fn ask(&mut self, spool: SpoolId, categories: &[Category]) -> Result<Vec<msg::Position>> {
        self.scribe_ask(spool.0, categories.iter().map(|one| one.name().to_owned()).collect())
    }

    fn append(&mut self, categories: Vec<String>, batches: &[&[u8]]) -> Result<Vec<msg::Position>> {
        self.scribe_append(categories, batches)
    }

    fn read(&mut self, category: &Category, from: Index) -> Result<ScribePage> {
        self.scribe_read(category.name(), from, Duration::ZERO)
    }
}

/// What came of one category.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Came {
    /// Its topic has all that the spool has: so many messages came under the spool's own identity now.
    Own { messages: u64 },
    /// So many messages were this copy's alone, and are in the topic under that identity; `before` of them were
    /// there already, since this was done before.
    Copied { messages: u64, before: u64, spool: SpoolId },
    /// Its topic takes nothing, or nobody knows what it lacks.
    Refused(String),
}

/// Of each category that a spool has something of.
pub type Outcome = BTreeMap<Category, Came>;

/// Brings out all that a spool has. Where the topic has nothing more that tells which messages the copies share,
/// all are sent with `repeat`, and none without.
pub fn resend(store: &Store, topics: &mut dyn Topics, repeat: bool) -> Result<Outcome> {
    let mut outcome = own(store, topics)?;
    let mut chains = chains(store, topics, repeat, &mut outcome)?;
    again(store, topics, &mut chains, &mut outcome)?;
    for (category, chain) in chains {
        sometimes!("what was a copied spool's alone was sent again");
        let Chain { spool, before, .. } = chain;
        outcome.insert(category, Came::Copied { messages: chain.messages(), before, spool });
    }
    Ok(outcome)
}

/// Sends what is no copy's, until it is there, or turns out to be one's.
fn own(store: &Store, topics: &mut dyn Topics) -> Result<Outcome> {
    let (mut brought, mut refused) = (BTreeMap::<Category, u64>::new(), BTreeMap::new());
    let spool = store.look(|core| core.id());
    let all: Vec<Category> = store.look(|core| core.categories().cloned().collect());
    for some in all.chunks(ASK_CATEGORIES) {
        for (category, position) in some.iter().zip(topics.ask(spool, some)?) {
            learn(store, category, &position, &mut refused);
            brought.insert(category.clone(), 0);
        }
    }
    loop {
        let without: BTreeSet<Category> = refused.keys().cloned().collect();
        let state = store
            .look(|core| (core.first_to_send(&without), core.pending(), core.copied().count()));
        let Some(from) = state.0 else { break };
        let (outgoing, _) = store.to_send(from, WINDOW_BYTES, &without)?;
        for (one, position) in outgoing.iter().zip(append(topics, &outgoing)?) {
            let messages = learn(store, &one.category, &position, &mut refused);
            *brought.entry(one.category.clone()).or_default() += messages;
        }
        let without: BTreeSet<Category> = refused.keys().cloned().collect();
        let is = store
            .look(|core| (core.first_to_send(&without), core.pending(), core.copied().count()));
        if is == state {
            return Err(Error::retry(
                "send what a spool has: its topics answer, and have no more than before: try again",
            ));
        }
    }
    let mut outcome: Outcome =
        brought.into_iter().map(|(of, messages)| (of, Came::Own { messages })).collect();
    outcome.extend(refused.into_iter().map(|(of, why)| (of, Came::Refused(why))));
    Ok(outcome)
}

/// Takes in where a spool is; how many messages more its topic is known to have.
fn learn(
    store: &Store,
    category: &Category,
    position: &msg::Position,
    refused: &mut BTreeMap<Category, String>,
) -> u64 {
    if !position.refused.is_empty() {
        refused.insert(category.clone(), position.refused.clone());
        return 0;
    }
    let delivered = |category| store.look(|core| core.delivered(category)).next;
    let before = delivered(category);
    let position = Position { next: position.next, checksum: position.checksum };
    if store.learn(category, position) == Progress::Behind {
        let why = "its topic has fewer of its messages than it had: another cluster answers, or a node that is behind";
        refused.insert(category.clone(), why.to_owned());
    }
    delivered(category) - before
}

/// One category of which several copies have sent under one identity: this copy's batches under some identity.
struct Chain {
    spool: SpoolId,
    /// How many of the spool's pending batches are in front of it.
    base: usize,
    /// In front of its first batch, and behind each.
    positions: Vec<Position>,
    /// Messages that its topic had before.
    before: u64,
}

impl Chain {
    fn messages(&self) -> u64 {
        self.positions.last().map_or(0, |last| last.next - Position::START.next)
    }

    fn is_on(&self, position: Position) -> bool {
        let at = self.positions.binary_search_by_key(&position.next, |one| one.next);
        at.is_ok_and(|at| self.positions[at] == position)
    }

    /// What of it the topic does not have, under an identity of its own; its positions are yet to be counted.
    fn without_shared(
        &self,
        topics: &mut dyn Topics,
        category: &Category,
        repeat: bool,
    ) -> Result<Chain> {
        let shared = match last_shared(topics, category, self.spool, &self.positions)? {
            _ if planted!("scribe.resent-from-the-beginning") => 0,
            Some(shared) => shared,
            None if repeat => 0,
            None => {
                return Err(Error::invalid(
                    "its topic has nothing more of what the copies of the spool share, so nobody knows which messages \
                     it lacks: with `--repeat` all that are in the spool are sent, and some may be there twice",
                ));
            }
        };
        // There may be nothing that it lacks.
        let first = self.positions.get(shared + 1).copied().unwrap_or(self.positions[shared]);
        let (spool, base) = (renewed(self.spool, first), self.base + shared);
        Ok(Chain { spool, base, positions: vec![Position::START], before: 0 })
    }
}

/// Of each category that was copied what its topic lacks, under the identity that this has.
fn chains(
    store: &Store,
    topics: &mut dyn Topics,
    repeat: bool,
    outcome: &mut Outcome,
) -> Result<BTreeMap<Category, Chain>> {
    let whole = |category: &Category| {
        let (spool, positions) = store.look(|core| (core.id(), core.positions(category)));
        (category.clone(), Chain { spool, base: 0, positions, before: 0 })
    };
    let copied: Vec<Category> = store.look(|core| core.copied().cloned().collect());
    let mut open: BTreeMap<Category, Chain> = copied.iter().map(whole).collect();
    let mut chains = BTreeMap::new();
    // A copy of a copy begins as that one does, and is told apart once both have been sent again.
    for _ in 0..COPIES_OF_COPIES_MAX {
        let mut next = BTreeMap::new();
        for (category, chain) in open {
            match chain.without_shared(topics, &category, repeat) {
                Ok(chain) => drop(next.insert(category, chain)),
                Err(e) if e.kind == Kind::Invalid => {
                    outcome.insert(category, Came::Refused(e.message));
                }
                Err(e) => return Err(e),
            }
        }
        walk(store, &mut next, &mut |chain, one| {
            chain.positions.push(batch::decode(&one.bytes)?.0.ends());
            Ok(())
        })?;
        open = BTreeMap::new();
        for (category, mut chain) in next {
            match &topics.ask(chain.spool, std::slice::from_ref(&category))?[..] {
                [is] if is.refused.is_empty() => {
                    let is = Position { next: is.next, checksum: is.checksum };
                    chain.before = is.next.saturating_sub(Position::START.next);
                    let rest = if chain.is_on(is) { &mut chains } else { &mut open };
                    rest.insert(category, chain);
                }
                [is] => drop(outcome.insert(category, Came::Refused(is.refused.clone()))),
                _ => return Err(Error::bug("ask where a spool is: no answer came to a question")),
            }
        }
        if open.is_empty() {
            break;
        }
        sometimes!("a copy of a copied spool was told from it");
    }
    outcome.extend(open.into_keys().map(|category| {
        let why =
            format!("more than {COPIES_OF_COPIES_MAX} copies of copies of it were sent again");
        (category, Came::Refused(why))
    }));
    Ok(chains)
}

/// The identity of what is one copy's alone, from the position behind its first batch: copies that differ have
/// different ones, and the same one has the same whenever it is asked.
fn renewed(spool: SpoolId, first: Position) -> SpoolId {
    SpoolId(mix(mix(spool.0 ^ mix(first.next)) ^ u64::from(first.checksum)).max(1))
}

/// The last of a spool's positions up to which its topic has its batches, by what the topic still has of them; by
/// number. Positions follow from all that came before, so what is equal once is equal in front of that.
fn last_shared(
    topics: &mut dyn Topics,
    category: &Category,
    spool: SpoolId,
    positions: &[Position],
) -> Result<Option<usize>> {
    let at: BTreeMap<(u64, u32), usize> = positions
        .iter()
        .enumerate()
        .map(|(at, position)| ((position.next, position.checksum), at))
        .collect();
    let [is] = &topics.ask(spool, std::slice::from_ref(category))?[..] else { return Ok(None) };
    let (mut shared, mut from) = (None, Index(0));
    loop {
        let page = topics.read(category, from)?;
        for (index, bytes) in &page.batches {
            let (head, _) = batch::decode(bytes)
                .map_err(|e| e.context(format_args!("read entry {index} of `{category}`")))?;
            if head.spool != spool {
                continue;
            }
            for position in [head.begins(), head.ends()] {
                let known = at.get(&(position.next, position.checksum)).copied();
                shared = shared.max(known);
            }
            // Behind that there is nothing of it, however many others go on meanwhile.
            if head.ends().next >= is.next {
                return Ok(shared);
            }
        }
        if page.batches.is_empty() && page.next == from {
            return Ok(shared);
        }
        from = page.next;
    }
}

/// Calls back with each batch of these chains, under the chain's identity, in the spool's order.
fn walk(
    store: &Store,
    chains: &mut BTreeMap<Category, Chain>,
    call: &mut dyn FnMut(&mut Chain, Outgoing) -> Result<()>,
) -> Result<()> {
    let of: BTreeSet<Category> = chains.keys().cloned().collect();
    // Batches that were passed, and where the next one begins.
    let mut at: BTreeMap<&Category, (usize, Position)> =
        of.iter().map(|category| (category, (0, Position::START))).collect();
    store.each_pending(&of, &mut |one| {
        let Some(chain) = chains.get_mut(&one.category) else { return Ok(()) };
        let (passed, next) = at.get_mut(&one.category).expect("it is one of them");
        *passed += 1;
        if *passed <= chain.base {
            return Ok(());
        }
        let bytes = renumbered(&one.bytes, chain.spool, *next);
        *next = batch::decode(&bytes)?.0.ends();
        call(chain, Outgoing { bytes, ..one })
    })
}

/// Sends what is this copy's alone. Categories that take nothing are chains no more.
fn again(
    store: &Store,
    topics: &mut dyn Topics,
    chains: &mut BTreeMap<Category, Chain>,
    outcome: &mut Outcome,
) -> Result<()> {
    let (mut window, mut bytes) = (Vec::new(), 0);
    let mut refused = BTreeMap::new();
    walk(store, chains, &mut |chain, one| {
        // All of it was sent, by another run of this.
        let is_there = batch::decode(&one.bytes)?.0.ends().next <= 1 + chain.before;
        if is_there || refused.contains_key(&one.category) {
            return Ok(());
        }
        bytes += 4 + one.bytes.len();
        window.push(one);
        if bytes >= WINDOW_BYTES {
            bytes = 0;
            send(topics, &std::mem::take(&mut window), &mut refused)?;
        }
        Ok(())
    })?;
    send(topics, &window, &mut refused)?;
    chains.retain(|category, _| !refused.contains_key(category));
    outcome.extend(refused.into_iter().map(|(of, why)| (of, Came::Refused(why))));
    Ok(())
}

/// One request.
fn send(
    topics: &mut dyn Topics,
    window: &[Outgoing],
    refused: &mut BTreeMap<Category, String>,
) -> Result<()> {
    for (one, position) in window.iter().zip(append(topics, window)?) {
        let ends = batch::decode(&one.bytes)?.0.ends();
        let is = Position { next: position.next, checksum: position.checksum };
        if !position.refused.is_empty() {
            refused.insert(one.category.clone(), position.refused);
        } else if is != ends && is.next <= ends.next && !refused.contains_key(&one.category) {
            // Another copy of a copy is sent again just now, or the answer is of a node that is behind.
            return Err(Error::retry(format!(
                "send `{}` again: its topic has message {} next, and not {}: try again",
                one.category, is.next, ends.next
            )));
        }
    }
    Ok(())
}

fn append(topics: &mut dyn Topics, outgoing: &[Outgoing]) -> Result<Vec<msg::Position>> {
    if outgoing.is_empty() {
        return Ok(Vec::new());
    }
    let categories: BTreeSet<&str> = outgoing.iter().map(|one| one.category.name()).collect();
    let batches: Vec<&[u8]> = outgoing.iter().map(|one| &one.bytes[..]).collect();
    topics.append(categories.into_iter().map(str::to_owned).collect(), &batches)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_that_differ_have_identities_that_do() {
        let at = |next, checksum| Position { next, checksum };
        let all = [
            renewed(SpoolId(1), at(2, 3)),
            renewed(SpoolId(1), at(2, 4)),
            renewed(SpoolId(1), at(3, 3)),
            renewed(SpoolId(2), at(2, 3)),
        ];
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
        assert_eq!(all[0], renewed(SpoolId(1), at(2, 3)));
        // It is written down in topics: another one would count what is there once more.
        assert_eq!(all[0].to_string(), "c4b72f8ce414b6da");
    }
}
