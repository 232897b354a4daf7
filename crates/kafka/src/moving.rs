//! A log moves to brokers: what the embedded one keeps is copied there, and each entry keeps its index. So
//! whatever has read the log (views, their snapshots, readers' positions) goes on where it was. Nobody
//! appends to the old one meanwhile. What was interrupted is gone on with where it ended: how far a topic
//! came, its records say. The log is there for nodes once all of it is, and not before.

use crate::about;
use crate::broker::{Broker, Place};
use crate::client::{Clients, Options};
use crate::record::{Reading, check_prefix};
use crate::writer::{Writer, wait};
use holdfast_base::ids::Index;
use holdfast_base::{Error, Kind, Result};
use holdfast_log::{Log, Scope};

/// Copied at once, at most.
const PAGE_ENTRIES: usize = 4096;
const PAGE_BYTES: usize = 4 << 20;
/// So often a topic is gone on with where brokers lose an answer.
const ATTEMPTS: u32 = 10;

/// Copies one log.
pub struct Moving {
    broker: Broker,
    writer: Writer,
    log: u64,
}

/// What became of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Entries that were copied by this call; others were there.
    pub copied: u64,
    /// Where it begins and ends at the brokers now.
    pub first: Index,
    /// Behind the last one.
    pub next: Index,
}

impl Moving {
    /// Begins to copy log `log` to the brokers, or goes on. `begun_before` says that it may be there as a
    /// whole already.
    pub fn begin(options: Options, log: u64, begun_before: bool) -> Result<Moving> {
        check_prefix(&options.prefix)?;
        let clients = Clients::new(options);
        if let Some(there) =
            there(&of_no_log(&clients)?)?.filter(|there| *there != log || !begun_before)
        {
            return Err(taken(&clients.options, log, there));
        }
        let broker = Broker::new(clients.clone(), log)?;
        Ok(Moving { broker, writer: Writer::new(clients, log)?, log })
    }

    /// Copies what is not there yet of a topic of `from`, and checks what is.
    pub fn topic(&self, from: &dyn Log, topic: &str) -> Result<Moved> {
        let name = self.broker.name_of(topic)?;
        self.broker.make(&name)?;
        let (mut copied, mut attempts) = (0, 0);
        loop {
            match self.go_on(from, topic, &name, &mut copied) {
                Err(e) if e.kind == Kind::Retry && attempts < ATTEMPTS => {
                    attempts += 1;
                    self.writer.mend()?;
                }
                ended => return ended.map(|(first, next)| Moved { copied, first, next }),
            }
        }
    }

    /// All of it is there: nodes find it from here on.
    pub fn end(self) -> Result<()> {
        let broker = of_no_log(&self.broker.clients)?;
        let there = match there(&broker)? {
            Some(there) => there,
            None => about::begin(&broker, self.log)?,
        };
        match there {
            log if log == self.log => Ok(()),
            other => Err(taken(&self.broker.clients.options, self.log, other)),
        }
    }

    fn go_on(
        &self,
        from: &dyn Log,
        topic: &str,
        name: &str,
        copied: &mut u64,
    ) -> Result<(Index, Index)> {
        let (first, end) = from.info(topic).map(|info| (info.first, info.next))?;
        let place = self.place(topic, name, (first, end))?;
        let mut next = self.check(from, &place, (first, end))?;
        while next < end {
            let page = from.read(topic, next, PAGE_ENTRIES, PAGE_BYTES, Scope::Durable)?;
            let (indices, entries): (Vec<Index>, Vec<Vec<u8>>) = page.into_iter().unzip();
            let Some(last) = indices.last() else {
                return Err(Error::bug(format!("move topic `{topic}`: entry {next} is not there")));
            };
            let offsets = wait(|done| self.writer.append(&place, &entries, done))?;
            let places = offsets.iter().map(|offset| place.index(*offset));
            if !places.eq(indices.iter().copied()) {
                return Err(strange(&place));
            }
            *copied += entries.len() as u64;
            next = Index(last.0 + 1);
        }
        let info = self.broker.info(&place)?;
        match info.next == end {
            true => Ok((info.first, info.next)),
            false => Err(strange(&place)),
        }
    }

    /// Where the topic counts from at the brokers. An empty one begins so that each index stays what it is.
    fn place(&self, topic: &str, name: &str, (first, end): (Index, Index)) -> Result<Place> {
        let (low, high) = self.broker.ends_of(name)?;
        if high > 0 {
            if low == high {
                return Err(Error::invalid(format!(
                    "move topic `{topic}`: `{name}` had records and has none now: choose another prefix"
                )));
            }
            return self.broker.place(topic);
        }
        let mut place =
            Place { topic: topic.to_owned(), name: name.to_owned(), base: first.0 - 1, id: None };
        if first == end && first.0 > 1 {
            // Nothing is left of it to say so.
            place.base -= 1;
            let offsets = wait(|done| self.writer.mark(&place, done))?;
            if offsets != [0] {
                return Err(strange(&place));
            }
        }
        Ok(place)
    }

    /// How far the topic came, if what is there is what was copied.
    fn check(&self, from: &dyn Log, place: &Place, (first, end): (Index, Index)) -> Result<Index> {
        let next = self.broker.info(place)?.next;
        let refused = |why: &str| {
            Err(Error::invalid(format!(
                "move topic `{}`: `{}` at the brokers {why}: choose another prefix",
                place.topic, place.name
            )))
        };
        if next > end {
            return refused("goes further than this log");
        }
        if next < first {
            return refused("ends before what this log has kept: it was trimmed since");
        }
        let last = Index(next.0.saturating_sub(1));
        if last >= first {
            let here = from.read(&place.topic, last, 1, 1, Scope::Durable)?;
            let there = self.broker.scan(place, place.offset(last), |_| true)?;
            let there = there.into_iter().next().filter(|found| {
                found.reading == Reading::Entry { base: place.base }
                    && place.index(found.offset) == last
            });
            if there.map(|found| found.entry) != here.into_iter().next().map(|(_, entry)| entry) {
                return refused("has another entry than this log, or somebody else's");
            }
        }
        Ok(next)
    }
}

/// For the topic that says which log it is, whose records are of none.
fn of_no_log(clients: &Clients) -> Result<Broker> {
    Broker::new(clients.clone(), 0)
}

/// The number of the log that is there, if one is.
fn there(broker: &Broker) -> Result<Option<u64>> {
    match broker.is_there(&about::name_of(broker.prefix()))? {
        true => about::first(broker),
        false => Ok(None),
    }
}

/// There is a log already, and not the beginning of this one.
fn taken(Options { brokers, prefix, .. }: &Options, log: u64, by: u64) -> Error {
    let whose = match by == log {
        true => "this very log, moved from another copy of this directory".to_owned(),
        false => format!("log `{by:016x}`, this is `{log:016x}`"),
    };
    Error::invalid(format!(
        "move the log to the brokers `{brokers}`: under the prefix `{prefix}` there is {whose}: choose \
         another prefix"
    ))
}

/// An entry came to lie at another index than it had.
fn strange(place: &Place) -> Error {
    Error::invalid(format!(
        "move topic `{}`: somebody else writes into `{}` at the brokers, so entries came to lie \
         elsewhere: choose another prefix",
        place.topic, place.name
    ))
}
