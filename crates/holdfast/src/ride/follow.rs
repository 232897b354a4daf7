//! `holdfast ride --follow`: behind what was ridden, every change as the log has it, from the next entry
//! on, until the command is interrupted. What came by the ride and what comes here are together the log
//! folded anew. Which entries count, and of which keys, the same fold decides that views have.

use super::RideOptions;
use crate::view::{Node, print_item};
use holdfast_base::ids::Index;
use holdfast_base::stream::read_all;
use holdfast_base::{Error, Kind, Result};
use holdfast_client::Client;
use holdfast_command::output::{Output, aside};
use holdfast_env::tasks::Stop;
use holdfast_ride::log_topic;
use holdfast_view::items::{Change, ChangesView};
use holdfast_view::{Arrival, Context, GoesOn};
use holdfast_wire::slab::{Fields, Range};
use holdfast_wire::view::Boarded;
use std::time::Duration;

/// How long one node is asked for more before another one is, where several were named: one that is cut
/// off from the log hears of nothing.
const TAIL_WAIT: Duration = Duration::from_secs(20);
/// Before nodes are asked again of which none answers.
const REST: Duration = Duration::from_millis(500);

/// The nodes that were named, connected to anew.
pub type Nodes<'a> = &'a dyn Fn() -> Box<dyn Iterator<Item = Result<Node>> + 'a>;

/// A part of what was ridden, as of one entry.
pub struct Rode {
    /// Of keys' hashes.
    pub range: Range,
    pub boarded: Boarded,
    /// What a fold needs besides items, to go on.
    pub front: Vec<u8>,
}

/// Follows a topic behind a ride.
pub struct Follow<'a> {
    options: &'a RideOptions,
    topic: String,
    fold: GoesOn<ChangesView>,
    /// Up to which entry each range was ridden.
    ridden: Vec<(Range, Index)>,
    collections: Option<Vec<u16>>,
    fields: Option<Fields>,
}

/// Why nobody reads on at a node.
enum Ended {
    /// Another one may answer.
    Broke(Error),
    Failed(Error),
}

impl<'a> Follow<'a> {
    /// Parts are as of different entries where views were level with different ones: the log is read
    /// behind the first of these.
    pub fn new(
        options: &'a RideOptions,
        collections: Option<Vec<u16>>,
        rode: &[Rode],
    ) -> Result<Follow<'a>> {
        let topic = log_topic(&options.topic)?;
        let first = rode.iter().min_by_key(|rode| rode.boarded.index);
        let Some(Rode { boarded, front, .. }) = first else {
            return Err(Error::bug("follow a topic: nothing was ridden"));
        };
        let Boarded { index: applied, entry_crc, digest, .. } = *boarded;
        let fold = read_all(front, |source| {
            let arrival = Arrival { applied, entry_crc, digest, source };
            GoesOn::new(&Context::of(&topic), arrival)
        })?;
        let ridden = rode.iter().map(|rode| (rode.range, rode.boarded.index)).collect();
        let fields = options.fields.as_deref().map(Fields::new).transpose()?;
        Ok(Follow { options, topic, fold, ridden, collections, fields })
    }

    /// Prints changes until the command is interrupted, or cannot go on: where a node breaks off, at the
    /// next one.
    pub fn run(mut self, nodes: Nodes<'_>, out: &mut Output) -> Result<()> {
        // Until a round has shown how many there are.
        let (mut several, mut is_told) = (true, false);
        loop {
            let (mut asked, mut some_answer, mut silent) = (0, false, None);
            for node in nodes() {
                if node.as_ref().is_ok_and(|node| self.options.not.contains(&node.name)) {
                    continue;
                }
                asked += 1;
                let heard = match node {
                    Ok(mut node) => self.hear(&mut node.client, several, &mut some_answer, out),
                    Err(e) if e.kind == Kind::Retry => Err(Ended::Broke(e)),
                    Err(e) => Err(Ended::Failed(e)),
                };
                match heard {
                    Ok(()) => {}
                    Err(Ended::Broke(e)) => silent = Some(e),
                    Err(Ended::Failed(e)) => return Err(e),
                }
            }
            several = asked > 1;
            match silent.filter(|_| !some_answer) {
                None => is_told = false,
                Some(e) => {
                    if !std::mem::replace(&mut is_told, true) {
                        aside(format_args!("nobody answers for now, and all are asked again: {e}"));
                    }
                    Stop::new().sleep_until_stop(REST);
                }
            }
        }
    }

    /// Prints what a node tells, until it has nothing more for a while and there are others.
    fn hear(
        &mut self,
        client: &mut Client,
        several: bool,
        answers: &mut bool,
        out: &mut Output,
    ) -> std::result::Result<(), Ended> {
        loop {
            let entries = client.log().tail(&self.topic, self.fold.next(), TAIL_WAIT);
            let entries = entries.map_err(|e| match e.kind {
                Kind::Retry => Ended::Broke(e),
                _ => {
                    Ended::Failed(e.context(format_args!("follow topic `{}`", self.options.topic)))
                }
            })?;
            *answers = true;
            if entries.is_empty() && several {
                return Ok(());
            }
            for entry in entries {
                self.take(entry.index, &entry.bytes, out).map_err(Ended::Failed)?;
            }
        }
    }

    fn take(&mut self, index: Index, entry: &[u8], out: &mut Output) -> Result<()> {
        self.fold.take(index, entry)?;
        let view = self.fold.view();
        for change in view.of(index) {
            let hash = view.catalog().hash(change.collection, change.key);
            let is_new = |(range, ridden): &(Range, Index)| range.contains(hash) && index > *ridden;
            let listed = self.collections.as_ref();
            let is_wanted = listed.is_none_or(|listed| listed.contains(&change.collection));
            if is_wanted && self.ridden.iter().any(is_new) {
                self.print(index, change, out)?;
            }
        }
        Ok(())
    }

    fn print(&self, index: Index, change: Change<'_>, out: &mut Output) -> Result<()> {
        let of = self.fold.view().catalog().collection(change.collection);
        let of = of.ok_or_else(|| Error::bug("a change is of a collection that there is"))?;
        let left = match (change.value, &self.fields) {
            (Some(_), _) if self.options.keys_only => Some(Vec::new()),
            (Some(value), Some(fields)) => {
                if !of.json {
                    return Err(Error::invalid(format!(
                        "follow fields of values: those of collection `{}`, which is new, are bytes, and \
                         have none: name collections of JSON",
                        of.name
                    )));
                }
                Some(fields.of_value(value))
            }
            (value, _) => value.map(<[u8]>::to_vec),
        };
        print_item(of, change.key, index.0, left.as_deref(), out)
    }
}
