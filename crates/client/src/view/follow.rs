//! A ride that goes on with the log: behind what was ridden comes each change from the next entry on. What
//! came by the ride and what comes here are together the log folded anew. Which entries count (none that
//! repeats another, or was refused) and what they change, the same fold decides that views have. Holds no
//! connection: it is given one with each call, so whoever follows goes on at any node.

use crate::client::Client;
use holdfast_base::ids::Index;
use holdfast_base::stream::read_all;
use holdfast_base::{Error, Result};
use holdfast_env::planted;
use holdfast_view::items::{Change, ChangesView, log_topic};
use holdfast_view::{Arrival, Context, GoesOn};
use holdfast_wire::slab::{Content, Fields, Range, Received};
use holdfast_wire::view::{Board, Boarded, Collection};
use std::time::Duration;

/// A part of what was ridden, as of one entry; see [`Ride::rode`](super::Ride::rode).
#[derive(Clone, Debug)]
pub struct Rode {
    /// Of keys' hashes.
    pub range: Range,
    /// What was said at the ride's beginning.
    pub boarded: Boarded,
    /// What a fold needs besides items, to go on.
    pub front: Vec<u8>,
}

/// What follows a ride.
pub struct Follow {
    /// Of items, and as the log has it.
    topic: String,
    log: String,
    fold: GoesOn<ChangesView>,
    /// Up to which entry each range was ridden.
    ridden: Vec<(Range, Index)>,
    collections: Option<Vec<u16>>,
    keys_only: bool,
    fields: Option<Fields>,
    since: Index,
    below: Option<Index>,
}

impl Follow {
    /// Behind rides, whose parts are as of different entries where views were level with different ones: the
    /// log is read behind the first of these. `asked` says what was asked for of all of them, and leaves as
    /// much of changes as of items: collections, keys alone, fields, `since` and `below`.
    pub fn new(asked: &Board, rode: &[Rode]) -> Result<Follow> {
        let topic = asked.view.topic.clone();
        let log = log_topic(&topic)?;
        let first = rode.iter().min_by_key(|rode| rode.boarded.index).ok_or_else(|| {
            Error::invalid(format!(
                "follow topic `{topic}`: nothing was ridden: ride a part of it first"
            ))
        })?;
        let Boarded { index: applied, entry_crc, digest, .. } = first.boarded;
        let fold = read_all(&first.front, |source| {
            let arrival = Arrival { applied, entry_crc, digest, source };
            GoesOn::new(&Context::of(&log), arrival)
        })?;
        let ridden = rode.iter().map(|rode| (rode.range, rode.boarded.index)).collect();
        let fields = asked.fields.as_deref().map(Fields::new).transpose()?;
        let Board { collections, keys_only, since, below, .. } = asked.clone();
        Ok(Follow { topic, log, fold, ridden, collections, keys_only, fields, since, below })
    }

    /// The entry that comes next.
    pub fn next(&self) -> Index {
        self.fold.next()
    }

    /// Whether nothing comes any more, as only changes below an entry were asked for.
    pub fn is_over(&self) -> bool {
        self.below.is_some_and(|below| below <= self.next())
    }

    /// A collection as the entries so far have left it: also one that was made since the ride.
    pub fn collection(&self, number: u16) -> Option<&Collection> {
        self.fold.view().catalog().collection(number)
    }

    /// Waits up to `wait` for entries, and calls `each` for every change that they come to: each key once an
    /// entry, in the log's order. False where none came. `Retry` says that the node does not answer, or has
    /// not heard from the log: ask again, it or another one; nothing is lost. Other errors, those of `each`
    /// among them, end it: an entry that was trimmed names the image to ride anew.
    pub fn read(
        &mut self,
        client: &mut Client,
        wait: Duration,
        mut each: impl FnMut(&Follow, Received<'_>) -> Result<()>,
    ) -> Result<bool> {
        let came = self.wait(client, wait)?;
        came.iter().try_for_each(|(index, entry)| self.take(*index, entry, &mut each))?;
        Ok(!came.is_empty())
    }

    /// The next entries, for [`Follow::take`]; nothing where none came in time, or it is over.
    pub fn wait(&self, client: &mut Client, wait: Duration) -> Result<Vec<(Index, Vec<u8>)>> {
        if self.is_over() {
            return Ok(Vec::new());
        }
        let entries = client.log().tail(&self.log, self.next(), wait);
        let entries =
            entries.map_err(|e| e.context(format_args!("follow topic `{}`", self.topic)))?;
        Ok(entries.into_iter().map(|entry| (entry.index, entry.bytes)).collect())
    }

    /// Takes the next entry, and calls `each` for every change that it comes to. One behind the end is passed
    /// over.
    pub fn take(
        &mut self,
        index: Index,
        entry: &[u8],
        each: &mut dyn FnMut(&Follow, Received<'_>) -> Result<()>,
    ) -> Result<()> {
        if self.is_over() {
            return Ok(());
        }
        // Behind a gap, as brokers leave them, a later one comes.
        if index < self.next() || planted!("client.follow-knows-no-gaps") && index > self.next() {
            return Err(Error::corrupt(format!(
                "follow topic `{}`: the node answered with entry {index} where {} was asked for",
                self.topic,
                self.next()
            )));
        }
        self.fold.take(index, entry)?;
        self.fold.view().of(index).try_for_each(|change| self.give(index, change, each))
    }

    fn give(
        &self,
        index: Index,
        change: Change<'_>,
        each: &mut dyn FnMut(&Follow, Received<'_>) -> Result<()>,
    ) -> Result<()> {
        let Change { collection, key, value } = change;
        let catalog = self.fold.view().catalog();
        let hash = catalog.hash(collection, key);
        let is_new = |(range, ridden): &(Range, Index)| range.contains(hash) && index > *ridden;
        let is_listed = self.collections.as_ref().is_none_or(|listed| listed.contains(&collection));
        if !is_listed || index < self.since || !self.ridden.iter().any(is_new) {
            return Ok(());
        }
        let fields_of = |value: &[u8], fields: &Fields| {
            let of = catalog.collection(collection);
            match of.filter(|of| !of.json) {
                Some(of) => Err(Error::invalid(format!(
                    "follow fields of values: those of collection `{}`, which is new, are bytes, and have \
                     none: name collections of JSON",
                    of.name
                ))),
                None => Ok(fields.of_value(value)),
            }
        };
        let projected = match (value, &self.fields) {
            (Some(value), Some(fields)) => Some(fields_of(value, fields)?),
            _ => None,
        };
        let content = match value {
            None => Content::Deleted,
            Some(_) if self.keys_only => Content::NotSent,
            Some(value) => Content::Value(projected.as_deref().unwrap_or(value)),
        };
        let newest = value.is_some();
        each(self, Received { hash, collection, key, index: index.0, newest, content })
    }
}
