//! What a person is told of the log on brokers, whether a node runs or not: each topic's copies, settings
//! and indices, and what in it is no entry. Changes nothing.

use crate::about;
use crate::broker::{Broker, Copies};
use crate::client::{Clients, Options};
use crate::record::Reading;
use crate::safety;
use holdfast_base::ids::Index;
use holdfast_base::{Error, Kind, Result};
use holdfast_log::Info;

/// Runs of records that are no entries, which are kept of a topic at most: the others are counted.
const GAPS_MAX: usize = 100;

/// The log under a prefix.
#[derive(Debug)]
pub struct Examined {
    /// Which log it is; nothing where none has begun.
    pub log: Option<u64>,
    /// How many brokers answer for each other now.
    pub brokers: usize,
    /// Its topics; also the one that says which log it is, without an end.
    pub topics: Vec<ExaminedTopic>,
}

/// One topic of the log.
#[derive(Debug)]
pub struct ExaminedTopic {
    /// What it is called here; empty for the topic that says which log it is.
    pub topic: String,
    /// What it is called at the brokers.
    pub name: String,
    /// The id that brokers gave it when it was made, if they are not too old for that.
    pub id: Option<u128>,
    /// The index in front of its first offset.
    pub base: u64,
    /// How far it goes.
    pub ends: Option<Info>,
    /// Which broker leads it; -1 for none.
    pub leader: i32,
    /// Which brokers are to have it.
    pub replicas: Vec<i32>,
    /// Which of them have all of it.
    pub in_sync: Vec<i32>,
    /// How many partitions it has, of which the first is used.
    pub partitions: usize,
    /// What it holds, if it was read through.
    pub held: Option<Held>,
    /// What is wrong, in sentences.
    pub findings: Vec<String>,
}

/// What a topic holds.
#[derive(Debug, Default)]
pub struct Held {
    /// Records that are entries.
    pub entries: u64,
    /// What lies between them, from the front on: the first ones.
    pub gaps: Vec<Gap>,
    /// Runs behind those.
    pub gaps_more: u64,
}

/// A run of offsets without entries, for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The first offset, and the last one.
    pub first: i64,
    /// See `first`.
    pub last: i64,
    /// Why none of them is an entry.
    pub why: String,
}

impl Held {
    /// Nothing from `first` to `last` is an entry, for this reason.
    fn gap(&mut self, first: i64, last: i64, why: &str) {
        let is_full = self.gaps.len() == GAPS_MAX;
        match self.gaps.last_mut() {
            Some(gap) if gap.last + 1 == first && gap.why == why => gap.last = last,
            _ if is_full => self.gaps_more += 1,
            _ => self.gaps.push(Gap { first, last, why: why.to_owned() }),
        }
    }
}

/// Looks at the log under the options' prefix, at all its topics, or at one, which is read through. Waits
/// for brokers, and for all that it reads.
pub fn examine(options: Options, topic: Option<&str>) -> Result<Examined> {
    let clients = Clients::new(options);
    let log = about::look(&clients)?;
    let broker = Broker::new(clients, log.unwrap_or_default())?;
    let (names, brokers) = match topic {
        Some(topic) => (vec![topic.to_owned()], broker.count()?),
        None => (broker.topics()?, broker.count()?),
    };
    let mut topics = Vec::new();
    if topic.is_none() && log.is_some() {
        topics.push(of_name(&broker, String::new(), about::name_of(broker.prefix()))?);
    }
    for name in names {
        let at = broker.name_of(&name)?;
        let mut examined = of_name(&broker, name, at)?;
        read(&broker, &mut examined, topic.is_some());
        topics.push(examined);
    }
    Ok(Examined { log, brokers, topics })
}

/// Copies and settings.
fn of_name(broker: &Broker, topic: String, name: String) -> Result<ExaminedTopic> {
    let copies = match broker.copies(&name) {
        Err(e) if e.kind == Kind::NotFound => {
            return Err(Error::not_found(format!("topic `{topic}` is not there: create it")));
        }
        copies => copies?,
    };
    let mut findings = Vec::new();
    match broker.settings(&name) {
        Ok(settings) => findings.extend(safety::unsafe_for(&settings, copies.size())),
        Err(e) => findings.push(e.message),
    }
    let Copies { leader, replicas, in_sync, partitions, .. } = copies;
    let missing: Vec<String> = replicas
        .iter()
        .filter(|broker| !in_sync.contains(broker))
        .map(|broker| broker.to_string())
        .collect();
    if !missing.is_empty() {
        findings.push(format!(
            "broker {} lacks some of it: end no other broker until it has all of it",
            missing.join(" and ")
        ));
    }
    if leader < 0 {
        findings.push("no broker leads it: start those that have it".to_owned());
    }
    let id = broker.id_of(&name)?;
    let (base, ends, held) = (0, None, None);
    Ok(ExaminedTopic {
        topic,
        name,
        id,
        base,
        ends,
        leader,
        replicas,
        in_sync,
        partitions,
        held,
        findings,
    })
}

/// Where it begins and ends, and, if it is to be read through, what lies there.
fn read(broker: &Broker, examined: &mut ExaminedTopic, through: bool) {
    let read = (|| {
        let place = broker.place(&examined.topic)?;
        examined.base = place.base;
        examined.ends = Some(broker.info(&place)?);
        if !through {
            return Ok(());
        }
        let (low, high) = broker.ends_of(&place.name)?;
        let (mut held, mut next) = (Held::default(), low);
        let removed = "nothing: the end of a transaction, or it was removed";
        broker.each(&place, low, |found| {
            if found.offset > next {
                held.gap(next, found.offset - 1, removed);
            }
            next = found.offset + 1;
            match found.reading {
                Reading::Entry { base } if base == place.base => held.entries += 1,
                Reading::Entry { base } => {
                    let why = format!("an entry that counts from {base}: it stops who reads it");
                    held.gap(found.offset, found.offset, &why);
                }
                Reading::Mark { .. } => {
                    held.gap(found.offset, found.offset, "it says where the topic counts from");
                }
                Reading::Strange(why) => held.gap(found.offset, found.offset, why),
                Reading::Refused(why) => {
                    held.gap(found.offset, found.offset, &format!("{why}: it stops who reads it"));
                }
            }
            next >= high
        })?;
        if next < high {
            held.gap(next, high - 1, removed);
        }
        examined.held = Some(held);
        Ok::<(), Error>(())
    })();
    examined.findings.extend(read.err().map(|e| e.message));
}

impl ExaminedTopic {
    /// The index of what lies at an offset.
    pub fn index(&self, offset: i64) -> Index {
        Index(self.base + offset as u64 + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_one_reason_are_one_gap_and_only_so_many_are_kept() {
        let mut held = Held::default();
        held.gap(0, 0, "a");
        held.gap(1, 4, "a");
        held.gap(5, 5, "b");
        held.gap(9, 9, "b");
        let gap = |first, last, why: &str| Gap { first, last, why: why.to_owned() };
        assert_eq!(held.gaps, [gap(0, 4, "a"), gap(5, 5, "b"), gap(9, 9, "b")]);
        (0..200).for_each(|n| held.gap(100 + 2 * n, 100 + 2 * n, "c"));
        assert_eq!((held.gaps.len(), held.gaps_more), (GAPS_MAX, 103));
    }
}
