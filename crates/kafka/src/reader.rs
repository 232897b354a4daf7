//! A topic as one reader follows it: a thread with a client of its own, which places itself where the
//! reader is, proves that the broker's topic is the one that was read, and fetches into the mirror as
//! long as that has room. An own append that the brokers have acknowledged right behind that is taken as
//! it is, and not fetched; a second thread calls whom that concerns, for the client library's thread has
//! other topics' answers to give.

use crate::broker::{Broker, Found, Place, found, one_partition};
use crate::client::Consumer;
use crate::record::Reading;
use holdfast_base::checksum::crc32c;
use holdfast_base::ids::Index;
use holdfast_base::{Error, Indices, Result};
use holdfast_env::HoldMutex;
use holdfast_log::feed::{ARRIVAL_MS, Calls, Entries, Feed};
use holdfast_log::{Done, Info};
use rdkafka::consumer::Consumer as _;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// How long one look for entries may take: an end, or another place to read from, waits for it.
const LOOK: Duration = Duration::from_millis(100);
/// After this the broker's topic is compared again with what was read: one that is deleted and made anew
/// under the same name tells no client.
const COMPARE: Duration = Duration::from_secs(60);
/// What was read last lies there, so it comes at once. Where it does not, the topic is another one by now, and waits for
/// an entry at the very place.
const PROOF: Duration = Duration::from_secs(5);
/// Pause after a failure; doubled with each further one.
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Handed over at once, at most.
const PAGE_ENTRIES: usize = 4096;
const PAGE_BYTES: usize = 1 << 20;

/// What a person does where the broker's topic is another one.
const WAY_OUT: &str = "bring the topic back as it was";

/// What a reader and its thread share.
pub struct Following {
    broker: Arc<Broker>,
    place: Place,
    /// Never held while anything is called.
    state: Mutex<State>,
    changed: Condvar,
    /// Wakes who calls.
    arrived: Condvar,
}

pub struct State {
    pub feed: Feed,
    /// Counts the places from which was to be read.
    round: u64,
    /// How far the topic went when it was asked last.
    info: Option<Info>,
    /// The last entry that was read here, and its CRC32C.
    last: Option<(Index, u32)>,
    /// Where somebody has read from: who reads has the entry in front of it.
    read_from: Index,
    /// What kept the last attempt from succeeding.
    pub trouble: Option<Error>,
    /// The topic is read on from an entry that it was proved to have, or from its front: since this round.
    reads_on: Option<u64>,
    /// To call, by the thread that does nothing else.
    arrived: Calls,
    /// When the oldest append was acknowledged whose entry has not arrived, and where the mirror was.
    arriving: Option<(Instant, Index)>,
    closed: bool,
}

/// Where a look ended.
enum Next {
    /// Goes on from where it is.
    On,
    /// Has to be placed anew.
    Place,
}

impl Following {
    pub fn new(broker: Arc<Broker>, place: Place) -> Following {
        let state = Mutex::new(State::new(&place.topic));
        let (changed, arrived) = (Condvar::new(), Condvar::new());
        Following { broker, place, state, changed, arrived }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.held()
    }

    /// Makes sure that the entry at `from` is here or on its way.
    pub fn want(&self, state: &mut State, from: Index) {
        if state.feed.refused().is_none() && state.feed.want(from) {
            state.round += 1;
            self.changed.notify_all();
        }
    }

    /// A page from there on, if it is here. What was read before may have made room.
    pub fn page(&self, from: Index, entries_max: usize, bytes_max: usize) -> Result<Entries> {
        let mut state = self.state();
        state.read_from = state.read_from.max(from);
        self.want(&mut state, from);
        let page = state.feed.page(from, entries_max, bytes_max);
        drop(state);
        self.changed.notify_all();
        page
    }

    /// An own append was acknowledged: `done` is called once its entries are here, which they are now
    /// where they come next.
    pub fn acknowledged(&self, indices: Indices, entries: Arc<Vec<Vec<u8>>>, done: Done<Indices>) {
        let mut state = self.state();
        // Who has never read needs nothing here.
        if !state.feed.is_wanted() {
            drop(state);
            return done(Ok(indices));
        }
        if state.comes_next(&indices) {
            let entries = Arc::unwrap_or_clone(entries);
            match state.push(indices.iter().zip(entries).collect()) {
                Ok(calls) => state.arrived.extend(calls),
                Err(e) => {
                    drop(state);
                    return done(Err(e));
                }
            }
        }
        let (calls, watch) = state.feed.appended(indices, done);
        if watch {
            let now = (Instant::now(), state.feed.next());
            state.arriving.get_or_insert(now);
        }
        if state.closed {
            drop(state);
            return call(calls);
        }
        state.arrived.extend(calls);
        let wakes = !state.arrived.is_empty();
        drop(state);
        if wakes {
            self.arrived.notify_one();
        }
    }

    /// What the second thread does until this is closed.
    pub fn call_arrived(&self) {
        loop {
            let idle = |state: &mut State| !state.closed && state.arrived.is_empty();
            let mut state = self.arrived.wait_while(self.state(), idle).expect("no holder panics");
            let calls = std::mem::take(&mut state.arrived);
            if calls.is_empty() {
                return;
            }
            drop(state);
            call(calls);
        }
    }

    /// Ends the topic here, and its thread.
    pub fn close(&self, e: Error) {
        let calls = {
            let mut state = self.state();
            state.closed = true;
            state.feed.end(e)
        };
        self.changed.notify_all();
        self.arrived.notify_all();
        call(calls);
    }

    /// What was said last, and what has arrived since.
    pub fn info(&self) -> Option<Info> {
        let state = self.state();
        let info = state.info?;
        let next = info.next.max(state.feed.end_seen());
        Some(Info { next, durable: next, ..info })
    }

    /// What the thread does until it is closed.
    pub fn run(&self) {
        let mut failures = 0;
        while let Some(round) = self.wait_for_work() {
            let followed = self.follow(round);
            let pause = {
                let mut state = self.state();
                if state.closed {
                    return;
                }
                match followed {
                    Ok(()) => {
                        failures = 0;
                        state.feed.is_in_doubt().then_some(PAUSE_MAX)
                    }
                    Err(e) => {
                        state.trouble = Some(e);
                        failures += 1;
                        Some((PAUSE * (1 << failures.min(10))).min(PAUSE_MAX))
                    }
                }
            };
            if failures > 1 {
                let calls = self.state().feed.give_up_arriving();
                call(calls);
            }
            if let Some(pause) = pause {
                let waits = self.changed.wait_timeout_while(self.state(), pause, |s| !s.closed);
                drop(waits.expect("no holder panics"));
            }
        }
    }

    /// The number of the place to read from, once there is one, and room; nothing at the end.
    fn wait_for_work(&self) -> Option<u64> {
        let idle =
            |state: &mut State| !state.closed && (!state.feed.has_room() || state.feed.has_ended());
        let state = self.changed.wait_while(self.state(), idle).expect("no holder panics");
        (!state.closed).then_some(state.round)
    }

    /// Reads from where the reader is, until it is elsewhere, has no room, or something fails.
    fn follow(&self, round: u64) -> Result<()> {
        self.state().reads_on = None;
        let anew = self.broker.is_anew(&self.place)?;
        let info = self.broker.info(&self.place)?;
        let (_, high) = self.broker.ends_of(&self.place.name)?;
        // Whoever leads the topic has answered: on a quiet one nothing else would say so.
        self.state().trouble = None;
        let Some((from, proof)) = self.compare(high, info, anew) else { return Ok(()) };
        let consumer = self.broker.clients.consumer(false)?;
        let doing = format!("follow topic `{}`", self.place.topic);
        let placed = consumer.assign(&one_partition(&self.place.name, from));
        placed.map_err(|e| self.broker.clients.error(&doing, &e))?;
        let begun = Instant::now();
        let mut proof = proof;
        self.state().reads_on = proof.is_none().then_some(round);
        loop {
            let page = self.look(&consumer)?;
            let mut calls = Calls::new();
            let next = {
                let mut state = self.state();
                if state.round != round || state.closed {
                    return Ok(());
                }
                self.take(&mut state, page, &mut proof, &mut calls)
            };
            call(calls);
            match next? {
                Next::Place => return Ok(()),
                Next::On if begun.elapsed() > proof.as_ref().map_or(COMPARE, |_| PROOF) => {
                    return Ok(());
                }
                Next::On => {}
            }
            if !self.state().feed.has_room() {
                // The client fetches no more than a little ahead meanwhile.
                let idle = |state: &mut State| {
                    !state.closed && state.round == round && !state.feed.has_room()
                };
                let waits = self.changed.wait_while(self.state(), idle);
                drop(waits.expect("no holder panics"));
            }
        }
    }

    /// Compares how far the topic goes with where the reader is. Where to read from, and what has to lie
    /// there first; nothing if the topic is not the one that was read.
    fn compare(&self, high: i64, info: Info, anew: bool) -> Option<(i64, Option<Proof>)> {
        let mut state = self.state();
        state.info = Some(info);
        let next = state.feed.next();
        let had = Index(state.read_from.0.saturating_sub(1));
        let had = state.last.map_or(had, |(last, _)| last.max(had));
        let calls = match state.last {
            _ if had >= info.next && had.0 > 0 => {
                let why = format!(
                    "the brokers' topic ends before entry {}, this node was at {had}",
                    info.next
                );
                state.feed.doubt(&why, WAY_OUT)
            }
            _ if next < info.first => state.feed.end_trimmed(info.first),
            Some((index, crc)) if index >= info.first && index < next => {
                return Some((self.place.offset(index), Some(Proof { index, crc })));
            }
            // Its id alone can tell.
            _ if anew => state.feed.doubt("the brokers' topic was deleted and made anew", WAY_OUT),
            // Nothing of it is here to compare: a fold compares what it has.
            _ => {
                let calls = state.feed.believe();
                drop(state);
                call(calls);
                return Some((self.place.offset(next).min(high), None));
            }
        };
        drop(state);
        call(calls);
        None
    }

    /// What comes within a look, up to a page.
    fn look(&self, consumer: &Consumer) -> Result<Vec<Found>> {
        let (mut page, mut bytes) = (Vec::new(), 0);
        let mut patience = LOOK;
        while page.len() < PAGE_ENTRIES && bytes < PAGE_BYTES {
            match consumer.poll(patience) {
                None => break,
                Some(Ok(message)) => {
                    let found = found(self.broker.log, &self.place.topic, &message);
                    bytes += found.entry.len();
                    page.push(found);
                    patience = Duration::ZERO;
                }
                Some(Err(e)) => {
                    let told = self
                        .broker
                        .clients
                        .error(format_args!("follow topic `{}`", self.place.topic), &e);
                    if is_of_the_place(&e) {
                        return Err(told);
                    }
                    // The client goes on by itself.
                    if e.rdkafka_error_code() != Some(RDKafkaErrorCode::GroupAuthorizationFailed) {
                        self.state().trouble = Some(told);
                    }
                    break;
                }
            }
        }
        Ok(page)
    }

    /// Takes what was fetched into the mirror.
    fn take(
        &self,
        state: &mut State,
        page: Vec<Found>,
        proof: &mut Option<Proof>,
        calls: &mut Calls,
    ) -> Result<Next> {
        if let Some((since, reached)) = state.arriving
            && since.elapsed() > Duration::from_millis(ARRIVAL_MS)
        {
            let (given_up, again) = state.feed.look_after(reached);
            calls.extend(given_up);
            state.arriving = again.map(|reached| (Instant::now(), reached));
        }
        let mut entries = Entries::new();
        for Found { offset, reading, entry } in page {
            let index = self.place.index(offset);
            match reading {
                Reading::Strange(_) => continue,
                Reading::Refused(why) => {
                    let e = Error::corrupt(format!(
                        "follow topic `{}`: the record at offset {offset} of `{}` is refused: {why}",
                        self.place.topic, self.place.name
                    ));
                    calls.extend(state.feed.end(e));
                    return Ok(Next::Place);
                }
                Reading::Entry { base } | Reading::Mark { base } if base != self.place.base => {
                    calls.extend(state.feed.doubt("its entries count from elsewhere", WAY_OUT));
                    return Ok(Next::Place);
                }
                Reading::Mark { .. } => continue,
                Reading::Entry { .. } => {}
            }
            if let Some(Proof { index: last, crc }) = proof.take() {
                if index != last || crc32c(&entry) != crc {
                    let why = format!("entry {last} of the brokers' topic is another one");
                    calls.extend(state.feed.doubt(&why, WAY_OUT));
                    return Ok(Next::Place);
                }
                calls.extend(state.feed.believe());
                state.reads_on = Some(state.round);
                continue;
            }
            if index >= state.feed.next() {
                entries.push((index, entry));
            }
        }
        calls.extend(state.push(entries)?);
        Ok(Next::On)
    }
}

impl State {
    fn new(topic: &str) -> State {
        State {
            feed: Feed::new(topic),
            round: 0,
            info: None,
            last: None,
            read_from: Index(0),
            trouble: None,
            reads_on: None,
            arrived: Calls::new(),
            arriving: None,
            closed: false,
        }
    }

    /// Whether these are the entries that would be fetched next, of the topic that is read here.
    fn comes_next(&self, indices: &Indices) -> bool {
        let reads_on = self.reads_on == Some(self.round) && self.feed.refused().is_none();
        let next = self.feed.next().0;
        reads_on
            && self.feed.has_room()
            && indices.iter().zip(next..).all(|(index, next)| index.0 == next)
    }

    /// Takes the entries that come next.
    fn push(&mut self, entries: Entries) -> Result<Calls> {
        if let Some((index, entry)) = entries.last() {
            if self.last.is_none_or(|(known, _)| known <= *index) {
                self.last = Some((*index, crc32c(entry)));
            }
            self.trouble = None;
        }
        self.feed.push(entries)
    }
}

/// The entry that was read last, which the topic must have.
struct Proof {
    index: Index,
    crc: u32,
}

/// Whether the client has to be placed anew after it.
fn is_of_the_place(e: &KafkaError) -> bool {
    use RDKafkaErrorCode as Code;
    matches!(
        e.rdkafka_error_code(),
        Some(
            Code::OffsetOutOfRange
                | Code::AutoOffsetReset
                | Code::UnknownTopicOrPartition
                | Code::UnknownTopic
                | Code::UnknownPartition
                | Code::UnknownTopicId
                | Code::TopicAuthorizationFailed
                | Code::Fatal
        )
    )
}

pub fn call(calls: Calls) {
    calls.into_iter().for_each(|call| call());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(first: u64, entries: usize) -> Indices {
        Indices::run(Index(first), entries)
    }

    /// An entry that is taken without being fetched must be the one that a fetch would bring.
    #[test]
    fn own_entries_are_taken_only_where_they_come_next_in_what_is_read() {
        let mut state = State::new("t");
        assert!(!state.comes_next(&own(1, 1)), "nobody reads");
        assert!(state.feed.want(Index(4)));
        state.round = 1;
        assert!(!state.comes_next(&own(4, 1)), "it was not compared yet with what was read");
        state.reads_on = Some(1);
        assert!(state.comes_next(&own(4, 1)) && state.comes_next(&own(4, 3)));
        for (first, entries) in [(3, 1), (3, 2), (5, 1)] {
            assert!(!state.comes_next(&own(first, entries)), "{first}");
        }
        let gap = Indices::of(vec![Index(4), Index(6)]).unwrap();
        assert!(!state.comes_next(&gap), "somebody's entry lies between");
        assert!(state.push(vec![(Index(4), vec![7])]).unwrap().is_empty());
        assert_eq!(state.last, Some((Index(4), crc32c(&[7]))));
        assert!(state.comes_next(&own(5, 1)) && !state.comes_next(&own(4, 1)));
        state.feed.doubt("another log", WAY_OUT);
        assert!(!state.comes_next(&own(5, 1)));
        state.feed.believe();
        assert!(state.comes_next(&own(5, 1)));
        state.round = 2;
        assert!(!state.comes_next(&own(5, 1)), "somebody reads from elsewhere");
    }
}
