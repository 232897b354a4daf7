//! Topics of items, from the client's side: changes under a session, reads, and rides over views.

mod follow;
mod itinerary;
mod select;
mod together;

pub use follow::{Follow, Rode};
pub use itinerary::{Itinerary, Leg, what};
pub use select::{Candidate, Chosen, select};
pub use together::{Heard, ImageSums, Server, Together, all_disk_views, disk_views};

use crate::client::{Client, Ticket, decode, waits};
use crate::connection::Response;
use crate::patience::Patience;
use holdfast_base::codec::{Decode, Encode, put_bytes};
use holdfast_base::ids::{Index, Sequence, SessionId};
use holdfast_base::{Error, Kind, Result};
use holdfast_env::trial::Knob;
use holdfast_env::{Clock, RealClock};
use holdfast_wire::slab::{Range, Reader, Received, Sums};
use holdfast_wire::{self as wire, Call, view as msg};
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

/// Requests of a ride's head that are under way: the node makes the next slab while one travels.
const AHEAD: usize = 4;

/// The longest wait for an entry that one request asks for, in milliseconds; half of the time that a node
/// may be silent, if that is less.
static WAIT_MAX_MS: Knob = Knob::new("client.entry-wait-ms", 20_000, &[20]);

/// One topic of items, by one node.
pub struct ViewClient<'a> {
    client: &'a mut Client,
    topic: String,
    session: Option<SessionId>,
    sequence: u64,
    /// Numbers without an answer yet.
    unanswered: BTreeSet<u64>,
}

/// Changes that stand together: all or none.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    count: u32,
    bytes: Vec<u8>,
}

impl Changes {
    /// Gives a key of a collection, by the collection's number, a value.
    pub fn put(&mut self, collection: u16, key: &[u8], value: &[u8]) {
        self.add(collection, key, Some(value));
    }

    /// Deletes a key.
    pub fn delete(&mut self, collection: u16, key: &[u8]) {
        self.add(collection, key, None);
    }

    fn add(&mut self, collection: u16, key: &[u8], value: Option<&[u8]>) {
        self.count += 1;
        collection.encode(&mut self.bytes);
        put_bytes(&mut self.bytes, key);
        value.is_some().encode(&mut self.bytes);
        value.into_iter().for_each(|value| put_bytes(&mut self.bytes, value));
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// What they take of an entry, which has up to 1 MiB.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }
}

/// A change under way; see [`ViewClient::wait`].
#[must_use = "a change that nobody waits for may not be made"]
#[derive(Debug)]
pub struct Changing {
    ticket: Ticket,
    sequence: u64,
}

impl Client {
    /// A topic of items, by this client's connection.
    pub fn view(&mut self, topic: &str) -> ViewClient<'_> {
        ViewClient {
            client: self,
            topic: topic.to_owned(),
            session: None,
            sequence: 0,
            unanswered: BTreeSet::new(),
        }
    }

    /// Views that the node runs of a topic; an empty name stands for all topics.
    pub fn views(&mut self, topic: &str) -> Result<Vec<msg::ViewStatus>> {
        self.ask(wire::OP_VIEW_STATUS, &topic.to_owned())
    }

    /// Has the node run a view from now on.
    pub fn run_view(&mut self, name: &msg::ViewName) -> Result<()> {
        let ticket = self.submit_once(wire::OP_VIEW_RUN, name, &[])?;
        self.wait(ticket).map(drop)
    }

    /// Has the node end a view; answers which directory holds what is left of it.
    pub fn stop_view(&mut self, name: &msg::ViewName) -> Result<String> {
        let ticket = self.submit_once(wire::OP_VIEW_STOP, name, &[])?;
        decode(&self.wait(ticket)?)
    }
}

impl ViewClient<'_> {
    /// Makes a collection, and the topic if there is none. Made twice is made.
    pub fn make(&mut self, collection: msg::Collection) -> Result<Index> {
        let make = msg::Make { topic: self.topic.clone(), collection };
        let changed: msg::Changed = self.client.ask(wire::OP_VIEW_MAKE, &make)?;
        Ok(changed.index)
    }

    /// The topic's collections.
    pub fn catalog(&mut self) -> Result<msg::Catalog> {
        self.client.ask(wire::OP_VIEW_CATALOG, &self.topic.clone())
    }

    /// The number of a collection.
    pub fn collection(&mut self, name: &str) -> Result<u16> {
        self.collection_of(name).map(|(number, _)| number)
    }

    /// A collection by its name, and its number.
    pub fn collection_of(&mut self, name: &str) -> Result<(u16, msg::Collection)> {
        let mut collections = self.catalog()?.collections;
        let place = collections.iter().position(|one| one.name == name);
        place.map(|place| (place as u16 + 1, collections.swap_remove(place))).ok_or_else(|| {
            let names: Vec<_> = collections.iter().map(|one| one.name.as_str()).collect();
            Error::not_found(format!(
                "find collection `{}` of topic `{}`: it has {}",
                name.escape_debug(),
                self.topic,
                if names.is_empty() { "none".to_owned() } else { names.join(", ") }
            ))
        })
    }

    fn call(&mut self) -> Result<Call> {
        let session = match self.session {
            Some(session) => session,
            None => {
                let session = self.open_session()?;
                self.sequence = 0;
                *self.session.insert(session)
            }
        };
        self.sequence += 1;
        self.unanswered.insert(self.sequence);
        let lowest = self.unanswered.first().copied().unwrap_or(self.sequence);
        let (sequence, acknowledged_below) = (Sequence(self.sequence), Sequence(lowest));
        Ok(Call { session, sequence, acknowledged_below })
    }

    /// As patient as with changes: of two sessions that come of it, one ends unused.
    fn open_session(&mut self) -> Result<SessionId> {
        let topic = self.topic.clone();
        self.ask_again(wire::OP_VIEW_SESSION, &topic, true, Index(0))
    }

    /// Changes keys, and says at which index: readers at it or behind it see the change. A change
    /// that is sent again after a broken connection is made once.
    pub fn change(&mut self, changes: &Changes) -> Result<Index> {
        let changing = self.submit(changes)?;
        self.wait(changing)
    }

    /// As [`ViewClient::change`], for several under way at once.
    pub fn submit(&mut self, changes: &Changes) -> Result<Changing> {
        let call = self.call()?;
        let change = msg::Change { topic: self.topic.clone(), call };
        let count = changes.count.to_bytes();
        let body = [&count[..], &changes.bytes];
        let ticket = self.client.submit(wire::OP_VIEW_CHANGE, &change, &body)?;
        Ok(Changing { ticket, sequence: call.sequence.0 })
    }

    /// The answer to a [`ViewClient::submit`].
    pub fn wait(&mut self, changing: Changing) -> Result<Index> {
        let answer = self.client.wait(changing.ticket).and_then(|response| decode(&response));
        self.unanswered.remove(&changing.sequence);
        if answer.as_ref().is_err_and(|e: &Error| e.kind == Kind::Fenced) {
            // The session has ended: what comes next has another one.
            self.session = None;
        }
        answer.map(|changed: msg::Changed| changed.index)
    }

    /// Gives up versions that are older than those of an index, or of a ride that is in front of it: the
    /// answer says where the horizon is now.
    pub fn horizon(&mut self, index: Index) -> Result<msg::Moved> {
        let call = self.call()?;
        let horizon = msg::Horizon { topic: self.topic.clone(), call, index };
        let moved = self.client.ask(wire::OP_VIEW_HORIZON, &horizon);
        self.unanswered.remove(&call.sequence.0);
        moved
    }

    /// Asks for an image of every disk view, as of the entry that is answered.
    pub fn mark(&mut self) -> Result<Index> {
        let call = self.call()?;
        let mark = msg::Mark { topic: self.topic.clone(), call };
        let changed: Result<msg::Changed> = self.client.ask(wire::OP_VIEW_MARK, &mark);
        self.unanswered.remove(&call.sequence.0);
        changed.map(|changed| changed.index)
    }

    /// Keys' values, as of an index or the latest, by a view of the node that has reached an index.
    pub fn get(
        &mut self,
        keys: Vec<msg::Key>,
        at: Option<Index>,
        reached: Index,
    ) -> Result<msg::Got> {
        let get = msg::Get { topic: self.topic.clone(), reached, at, keys };
        self.ask_again(wire::OP_VIEW_GET, &get, at.is_none(), reached)
    }

    /// Keys that begin so, in their order, behind one of them or from the first on.
    pub fn scan(&mut self, scan: &msg::Scan) -> Result<msg::Rows> {
        self.ask_again(wire::OP_VIEW_SCAN, scan, scan.at.is_none(), scan.reached)
    }

    /// Keys that have this value in the field of an index now, in their order, behind one of them or
    /// from the first on: a page, by the node's part of the index that has the value. A key that
    /// gets or loses the value between two pages may be told or not.
    pub fn find(&mut self, find: &msg::Find) -> Result<msg::Havings> {
        self.ask_again(wire::OP_VIEW_FIND, find, true, find.reached)
    }

    /// What a view of the node holds.
    pub fn sum(&mut self, sum: &msg::Sum) -> Result<msg::Summed> {
        // A pass over many keys, which may take as long as it does.
        self.ask_again(wire::OP_VIEW_SUM, sum, true, Index(0))
    }

    /// What was changed by another node, this one may hear of later.
    fn ask_again<T: Decode>(
        &mut self,
        opcode: u16,
        message: &impl Encode,
        may_come: bool,
        reached: Index,
    ) -> Result<T> {
        let mut patience = Patience::default();
        loop {
            let answer = self.client.wait_for_entry(opcode, message, reached);
            match answer.and_then(|response| decode(&response)) {
                Err(e)
                    if e.kind == Kind::Retry
                        && may_come
                        && waits(&mut patience, &self.client.options) => {}
                other => return other,
            }
        }
    }
}

/// A ride over one view: slab after slab of what was asked for.
pub struct Ride<'a> {
    client: &'a mut Client,
    /// Of keys' hashes.
    range: Range,
    boarded: msg::Boarded,
    front: Vec<u8>,
    /// Requests under way, by head.
    asked: Vec<VecDeque<Ticket>>,
    over: bool,
    image_sums: Option<Sums>,
}

/// A slab as it was received.
#[derive(Clone, Debug)]
pub struct Slab {
    header: Vec<u8>,
    columns: Vec<u8>,
}

impl Slab {
    /// Where the last of its items lies; nothing where it has none.
    pub fn last(&self) -> Result<Option<msg::Place>> {
        let reader = Reader::new(&self.header, &self.columns)?;
        let last = reader.items().max_by_key(|i| (i.hash, i.collection, i.key, i.index));
        Ok(last.map(|item| msg::Place {
            hash: item.hash,
            collection: item.collection,
            key: item.key.to_vec(),
            index: Index(item.index),
        }))
    }

    /// Calls `each` for every item, those of one key in the log's order. `Corrupt` before the first
    /// call if a byte is not as it was sent.
    pub fn each(&self, mut each: impl FnMut(Received<'_>) -> Result<()>) -> Result<()> {
        Reader::new(&self.header, &self.columns)?.items().try_for_each(&mut each)
    }

    /// Calls `take` with all of it, verified, and with the entry that it is as of: to be summed up.
    pub fn whole(&self, take: impl FnOnce(Index, &Reader<'_>) -> Result<()>) -> Result<()> {
        let reader = Reader::new(&self.header, &self.columns)?;
        take(Index(reader.header.index), &reader)
    }

    /// Of the header and the columns.
    pub fn bytes(&self) -> usize {
        self.header.len() + self.columns.len()
    }

    /// Appends it, as a stream holds it.
    pub fn write(&self, out: &mut Vec<u8>) {
        (self.bytes() as u32).encode(out);
        out.extend_from_slice(&self.header);
        out.extend_from_slice(&self.columns);
    }
}

impl Client {
    /// The answer to a request that waits until a view has an entry, which may take for ever: asked in
    /// parts, of which each is answered in time, so that a node that waits is told from one that is gone.
    fn wait_for_entry(
        &mut self,
        opcode: u16,
        message: &impl Encode,
        reached: Index,
    ) -> Result<Response> {
        if reached == Index(0) {
            let ticket = self.submit(opcode, message, &[])?;
            return self.wait(ticket);
        }
        let clock = RealClock::new();
        let most_ms = self.wait_max(Duration::from_millis(WAIT_MAX_MS.get())).as_millis() as u64;
        loop {
            let begun_ns = clock.monotonic_ns();
            let ticket = self.submit_by(opcode, most_ms as u32, message, &[])?;
            let answer = self.wait(ticket);
            let waited_ms = (clock.monotonic_ns() - begun_ns) / 1_000_000;
            match answer {
                // Its deadline has passed, and nothing else was wrong.
                Err(e)
                    if e.kind == Kind::Retry
                        && waited_ms >= most_ms
                        && self.connection.failure().is_none() =>
                {
                    WAIT_MAX_MS.cross();
                }
                answer => return answer,
            }
        }
    }

    /// The answer of a view that has an entry. What was changed by another node, this one may hear of later.
    fn board_at(&mut self, board: &msg::Board, reached: Index) -> Result<Response> {
        let mut patience = Patience::default();
        loop {
            match self.wait_for_entry(wire::OP_RIDE_BEGIN, board, reached) {
                Err(e)
                    if e.kind == Kind::Retry
                        && self.connection.failure().is_none()
                        && waits(&mut patience, &self.options) => {}
                answer => return answer,
            }
        }
    }

    /// Rides a view of this node.
    pub fn ride(&mut self, board: &msg::Board) -> Result<Ride<'_>> {
        let response = match board.reached {
            Index(0) => {
                let ticket = self.submit_once(wire::OP_RIDE_BEGIN, board, &[])?;
                self.wait(ticket)?
            }
            reached => self.board_at(board, reached)?,
        };
        let boarded: msg::Boarded = decode(&response)?;
        let asked = (0..boarded.heads).map(|_| VecDeque::new()).collect();
        let (range, front) = (Range::new(board.low, board.high), response.into_body());
        let ride =
            Ride { client: self, range, boarded, front, asked, over: false, image_sums: None };
        // Dropped, it ends.
        ride.boarded.check_front(&ride.front)?;
        Ok(ride)
    }

    /// Tells the node that what came of its image of this entry is not what that says of itself: it reads the image
    /// by itself, and if that is so, nobody begins to ride it any more, and another one is made. A node of a build
    /// before this was asked refuses it.
    pub fn doubt(&mut self, view: &msg::ViewName, index: Index) -> Result<()> {
        let doubt = msg::Doubt { view: view.clone(), index };
        let ticket = self.submit_once(wire::OP_RIDE_DOUBT, &doubt, &[])?;
        self.wait(ticket).map(drop)
    }
}

impl Ride<'_> {
    /// What was said at its beginning.
    pub fn boarded(&self) -> &msg::Boarded {
        &self.boarded
    }

    /// What a fold needs besides items, to go on behind them.
    pub fn front(&self) -> &[u8] {
        &self.front
    }

    /// What it is of, for [`Follow`].
    pub fn rode(&self) -> Rode {
        Rode { range: self.range, boarded: self.boarded, front: self.front.clone() }
    }

    /// Behind the end, what the image of its entry says of all items of the view, by sub-range of the hashes:
    /// for [`Tally`](holdfast_wire::slab::Tally). Nothing where the node has none.
    pub fn image_sums(&self) -> Option<&Sums> {
        self.image_sums.as_ref()
    }

    /// The next slab; none at the end. A connection that breaks ends the ride.
    pub fn next_slab(&mut self) -> Result<Option<Slab>> {
        if self.over {
            return Ok(None);
        }
        for (head, asked) in (0..).zip(&mut self.asked) {
            while asked.len() < AHEAD {
                let next = msg::Next { ride: self.boarded.ride, head };
                asked.push_back(self.client.submit_once(wire::OP_RIDE_NEXT, &next, &[])?);
            }
        }
        // Of each head in the order in which it was asked for.
        let fronts: Vec<Ticket> = self.asked.iter().filter_map(|a| a.front().copied()).collect();
        let ticket = self.client.wait_any_of(|ticket| fronts.contains(&ticket));
        let ticket = ticket.ok_or_else(|| Error::bug("ride on: nothing was asked for"))?;
        let head = fronts.iter().position(|front| *front == ticket).unwrap_or_default();
        self.asked[head].pop_front();
        let response: Response = self.client.wait(ticket)?;
        if response.meta().is_empty() {
            self.over = true;
            self.leave();
            let ended = response.into_body();
            if !ended.is_empty() {
                self.image_sums = Some(msg::Ended::from_bytes(&ended)?.sums);
            }
            return Ok(None);
        }
        let header = response.meta().to_vec();
        Ok(Some(Slab { header, columns: response.into_body() }))
    }

    fn leave(&mut self) {
        for ticket in self.asked.iter_mut().flat_map(|asked| asked.drain(..)) {
            self.client.forget(ticket);
        }
        if let Ok(ticket) = self.client.submit_once(wire::OP_RIDE_END, &self.boarded.ride, &[]) {
            self.client.push();
            self.client.forget(ticket);
        }
    }
}

impl Drop for Ride<'_> {
    fn drop(&mut self) {
        if !self.over {
            self.leave();
        }
    }
}
