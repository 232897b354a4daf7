//! What a process knows of the log's topics: where each counts from, whether its settings are safe, and
//! appends that wait until that is known. One thread waits for brokers, so that nobody else has to.

use crate::broker::{Broker, Place};
use crate::record;
use crate::writer::Writer;
use holdfast_base::{Error, Indices, Kind, Result};
use holdfast_env::{HoldMutex, planted};
use holdfast_log::{Done, Info};
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Between two looks at the client library, and at all topics' settings.
const ROUND: Duration = Duration::from_millis(500);
const CHECK: Duration = Duration::from_secs(60);
/// Appends that wait for their topic to be found, at most.
const WAITING_MAX: usize = 1024;

/// What the thread does for others.
pub enum Job {
    Find(String),
    Ask(String, Done<Info>),
    End,
}

struct Waits {
    entries: Vec<Vec<u8>>,
    done: Done<Indices>,
}

enum Topic {
    /// It is being asked for; who comes meanwhile keeps the order.
    Sought(Vec<Waits>),
    There {
        place: Place,
        /// The last offset that was acknowledged here.
        last: i64,
        /// Why nothing is appended.
        refused: Option<Error>,
    },
}

/// Whether these offsets lie behind the last one, each behind the one before, which they move on.
fn go_on(last: &mut i64, offsets: &[i64]) -> bool {
    offsets.iter().all(|offset| {
        let behind = *offset > std::mem::replace(last, (*last).max(*offset));
        behind || planted!("kafka.offsets-go-back")
    })
}

/// All topics, as they are known here.
pub struct Topics {
    pub broker: Arc<Broker>,
    pub writer: Writer,
    /// Never held while anything is called.
    topics: Mutex<BTreeMap<String, Topic>>,
    jobs: Sender<Job>,
}

fn made_anew(topic: &str) -> Error {
    Error::corrupt(format!(
        "append to topic `{topic}`: the brokers gave an entry a place that was taken: the topic was \
         removed and made anew, and all that was in it is gone: stop all nodes, and bring it back"
    ))
}

impl Topics {
    pub fn new(broker: Arc<Broker>) -> Result<(Topics, Receiver<Job>)> {
        let writer = Writer::new(broker.clients.clone(), broker.log)?;
        let (jobs, received) = channel();
        Ok((Topics { broker, writer, topics: Mutex::default(), jobs }, received))
    }

    /// Where a topic is that is there; asks the brokers the first time.
    pub fn place(&self, topic: &str) -> Result<Place> {
        if let Some(Topic::There { place, .. }) = self.topics.held().get(topic) {
            return Ok(place.clone());
        }
        let name = record::name_of(&self.broker.clients.options.prefix, topic)?;
        if !self.broker.is_there(&name)? {
            return Err(Error::not_found(format!("topic `{topic}` is not there: create it")));
        }
        let place = self.broker.place(topic)?;
        self.found(topic, place.clone());
        Ok(place)
    }

    /// Makes the topic, if it is not known to be there.
    pub fn make(&self, topic: &str) -> Result<()> {
        if let Some(Topic::There { refused, .. }) = self.topics.held().get(topic) {
            return refused.clone().map_or(Ok(()), Err);
        }
        let name = record::name_of(&self.broker.clients.options.prefix, topic)?;
        self.broker.make(&name)?;
        // Not asked again whether it is there: another broker may not have heard of it yet.
        self.found(topic, self.broker.place(topic)?);
        Ok(())
    }

    /// Why nothing is appended to a topic.
    pub fn refused(&self, topic: &str) -> Option<Error> {
        match self.topics.held().get(topic) {
            Some(Topic::There { refused, .. }) => refused.clone(),
            _ => None,
        }
    }

    /// The topics that were used here.
    pub fn known(&self) -> Vec<String> {
        self.topics.held().keys().cloned().collect()
    }

    /// Hands entries to the brokers, and their indices to `done`. Does not wait.
    pub fn append(self: &Arc<Self>, topic: &str, entries: Vec<Vec<u8>>, done: Done<Indices>) {
        let place = {
            let mut topics = self.topics.held();
            match topics.get_mut(topic) {
                Some(Topic::There { refused: Some(e), .. }) => Err(e.clone()),
                Some(Topic::There { place, .. }) => Ok(place.clone()),
                Some(Topic::Sought(waiting)) if waiting.len() >= WAITING_MAX => {
                    Err(Error::retry(format!(
                        "append to topic `{topic}`: {WAITING_MAX} appends wait for the brokers to \
                         answer: ask again"
                    )))
                }
                Some(Topic::Sought(waiting)) => return waiting.push(Waits { entries, done }),
                None => {
                    let waiting = vec![Waits { entries, done }];
                    topics.insert(topic.to_owned(), Topic::Sought(waiting));
                    // Nobody listens at the end alone, which answers all that wait.
                    let _ = self.jobs.send(Job::Find(topic.to_owned()));
                    return;
                }
            }
        };
        match place {
            Ok(place) => self.write(&place, &entries, done),
            Err(e) => done(Err(e)),
        }
    }

    fn write(self: &Arc<Self>, place: &Place, entries: &[Vec<u8>], done: Done<Indices>) {
        let (topics, at) = (Arc::downgrade(self), place.clone());
        let reported = move |offsets: Result<Vec<i64>>| {
            let indices = offsets.and_then(|offsets| {
                let known = topics.upgrade();
                known.map_or(Ok(()), |topics| topics.acknowledged(&at.topic, &offsets))?;
                let indices = offsets.iter().map(|offset| at.index(*offset)).collect();
                Indices::of(indices).ok_or_else(|| made_anew(&at.topic))
            });
            done(indices);
        };
        self.writer.append(place, entries, Box::new(reported));
    }

    /// Of the appends of one process, later ones lie further back: where they do not, the brokers' topic
    /// is another one than it was.
    fn acknowledged(&self, topic: &str, offsets: &[i64]) -> Result<()> {
        let mut topics = self.topics.held();
        if let Some(Topic::There { last, refused, .. }) = topics.get_mut(topic)
            && !go_on(last, offsets)
        {
            let e = made_anew(topic);
            *refused = Some(e.clone());
            return Err(e);
        }
        Ok(())
    }

    /// The brokers have said where a topic is; who waits for that goes first, and says it again.
    fn found(&self, topic: &str, place: Place) {
        let mut topics = self.topics.held();
        match topics.get(topic) {
            Some(Topic::There { .. }) => {}
            Some(Topic::Sought(waiting)) if !waiting.is_empty() => {}
            _ => {
                let there = Topic::There { place, last: -1, refused: None };
                topics.insert(topic.to_owned(), there);
            }
        }
    }

    /// Sends what waited for a topic, in order; only then is it there for everybody.
    fn find(self: &Arc<Self>, topic: &str) {
        let name = record::name_of(&self.broker.clients.options.prefix, topic);
        let place = name.and_then(|name| match self.broker.is_there(&name)? {
            true => self.broker.place(topic),
            false => Err(Error::not_found(format!("topic `{topic}` is not there: create it"))),
        });
        loop {
            let waiting = {
                let mut topics = self.topics.held();
                match topics.get_mut(topic) {
                    Some(Topic::Sought(waiting)) if !waiting.is_empty() => std::mem::take(waiting),
                    Some(Topic::Sought(_)) => {
                        match place {
                            Ok(place) => {
                                let there = Topic::There { place, last: -1, refused: None };
                                topics.insert(topic.to_owned(), there)
                            }
                            Err(_) => topics.remove(topic),
                        };
                        return;
                    }
                    _ => return,
                }
            };
            for Waits { entries, done } in waiting {
                match &place {
                    Ok(place) => self.write(place, &entries, done),
                    Err(e) => {
                        done(Err(e.clone().context(format_args!("append to topic `{topic}`"))))
                    }
                }
            }
        }
    }

    /// Asks the brokers how far a topic goes.
    pub fn ask(&self, topic: &str, done: Done<Info>) {
        if let Err(unsent) = self.jobs.send(Job::Ask(topic.to_owned(), done))
            && let Job::Ask(topic, done) = unsent.0
        {
            done(Err(Error::retry(format!("describe topic `{topic}`: the log was closed"))));
        }
    }

    /// Ends the thread.
    pub fn end(&self) {
        let _ = self.jobs.send(Job::End);
    }

    /// What the thread does.
    pub fn chores(self: &Arc<Self>, jobs: Receiver<Job>) -> impl FnOnce() + Send + 'static {
        // Weak: what it keeps alive would never end.
        let topics = Arc::downgrade(self);
        move || {
            let mut checked = Instant::now();
            loop {
                let job = jobs.recv_timeout(ROUND);
                let Some(topics) = topics.upgrade() else { return };
                match job {
                    Ok(Job::Find(topic)) => topics.find(&topic),
                    Ok(Job::Ask(topic, done)) => {
                        let place = topics.place(&topic);
                        done(place.and_then(|place| topics.broker.info(&place)));
                    }
                    Ok(Job::End) | Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => {}
                }
                // A failure is tried again in the next round.
                let _ = topics.writer.mend();
                if checked.elapsed() > CHECK {
                    topics.check_all();
                    checked = Instant::now();
                }
            }
        }
    }

    /// Refuses appends to topics whose settings have become unsafe, or that are gone, until they are as
    /// they should be.
    fn check_all(&self) {
        for topic in self.known() {
            let Ok(name) = record::name_of(&self.broker.clients.options.prefix, &topic) else {
                continue;
            };
            let why = match self.broker.is_gone(&name) {
                Ok(false) => None,
                Ok(true) => Some(Error::corrupt(format!(
                    "append to topic `{topic}`: the brokers have it no more: bring it back"
                ))),
                Err(e) if e.kind == Kind::Retry => continue,
                Err(e) => Some(e),
            };
            if let Some(Topic::There { refused, .. }) = self.topics.held().get_mut(&topic) {
                let anew = refused.as_ref().is_some_and(|e| e.message == made_anew(&topic).message);
                if !anew {
                    *refused = why;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A topic that was deleted and made anew takes appends without an error, from its front on.
    #[test]
    fn offsets_of_one_process_only_grow() {
        let mut last = -1;
        assert!(go_on(&mut last, &[0, 1, 7]) && last == 7);
        assert!(go_on(&mut last, &[]) && go_on(&mut last, &[8]));
        for bad in [&[8][..], &[0], &[9, 9], &[10, 3]] {
            let mut at = last;
            assert!(!go_on(&mut at, bad), "{bad:?}");
            assert!(at >= last);
        }
    }
}
