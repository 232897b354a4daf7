//! What a process knows of the log's topics: where each counts from, whether its settings are safe, and
//! appends that wait until that is known. One thread waits for brokers, so that nobody else has to.

use crate::broker::{Broker, Place};
use crate::client::ANSWER;
use crate::writer::Writer;
use holdfast_base::{Error, Indices, Kind, Result};
use holdfast_env::{HoldMutex, planted};
use holdfast_log::{Done, Info};
use std::collections::{BTreeMap, VecDeque};
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
    entries: Arc<Vec<Vec<u8>>>,
    done: Done<Indices>,
}

enum Topic {
    /// It is being asked for; who comes meanwhile keeps the order.
    Sought(Vec<Waits>),
    There {
        place: Place,
        /// The last offset that was acknowledged here.
        last: i64,
        /// Why nothing is appended, until that is as it should be.
        refused: Option<Error>,
        /// It was made anew: nothing of it is used any more.
        anew: bool,
    },
}

impl Topic {
    fn there(place: Place) -> Topic {
        Topic::There { place, last: -1, refused: None, anew: false }
    }

    fn refused(&self) -> Option<Error> {
        match self {
            Topic::There { place, anew: true, .. } => Some(made_anew(&place.topic)),
            Topic::There { refused, .. } => refused.clone(),
            Topic::Sought(_) => None,
        }
    }
}

/// Whether the offsets of one append lie behind the last that was acknowledged when it was begun, each
/// behind the one before. Acknowledgements of appends that are under way together come in any order:
/// those of a client that is being replaced lag behind those of the next.
fn go_on(mut last: i64, offsets: &[i64]) -> bool {
    offsets.iter().all(|offset| {
        let behind = *offset > std::mem::replace(&mut last, *offset);
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
        "use topic `{topic}`: it was deleted at the brokers and made anew, and all that was in it is gone: \
         stop all nodes, and bring it back as it was; where it is lost for good, start them again"
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
        let name = self.broker.name_of(topic)?;
        if !self.broker.is_there(&name)? {
            return Err(Error::not_found(format!("topic `{topic}` is not there: create it")));
        }
        let place = self.broker.place(topic)?;
        self.found(topic, place.clone());
        Ok(place)
    }

    /// Makes the topic, if it is not known to be there.
    pub fn make(&self, topic: &str) -> Result<()> {
        if let Some(known @ Topic::There { .. }) = self.topics.held().get(topic) {
            return known.refused().map_or(Ok(()), Err);
        }
        let name = self.broker.name_of(topic)?;
        self.broker.make(&name)?;
        // Not asked again whether it is there: another broker may not have heard of it yet.
        self.found(topic, self.broker.place(topic)?);
        Ok(())
    }

    /// Why nothing is appended to a topic.
    pub fn refused(&self, topic: &str) -> Option<Error> {
        self.topics.held().get(topic).and_then(Topic::refused)
    }

    /// Why topics are refused, of all that are.
    pub fn refusals(&self) -> Vec<Error> {
        self.topics.held().values().filter_map(Topic::refused).collect()
    }

    /// Refuses a topic that was made anew.
    pub fn check_same(&self, topic: &str) -> Result<()> {
        match self.topics.held().get(topic) {
            Some(Topic::There { anew: true, .. }) => Err(made_anew(topic)),
            _ => Ok(()),
        }
    }

    /// The topics that were used here.
    pub fn known(&self) -> Vec<String> {
        self.topics.held().keys().cloned().collect()
    }

    /// Hands entries to the brokers, and their indices to `done`. Does not wait.
    pub fn append(self: &Arc<Self>, topic: &str, entries: Arc<Vec<Vec<u8>>>, done: Done<Indices>) {
        let place = {
            let mut topics = self.topics.held();
            match topics.get_mut(topic) {
                Some(&mut ref known @ Topic::There { ref place, last, .. }) => {
                    match known.refused() {
                        Some(e) => Err(e),
                        None => Ok((place.clone(), last)),
                    }
                }
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
            Ok((place, last)) => self.write(&place, last, &entries, done),
            Err(e) => done(Err(e)),
        }
    }

    /// `last` is the last offset that was acknowledged before.
    fn write(self: &Arc<Self>, place: &Place, last: i64, entries: &[Vec<u8>], done: Done<Indices>) {
        let (topics, at) = (Arc::downgrade(self), place.clone());
        let reported = move |offsets: Result<Vec<i64>>| {
            let indices = offsets.and_then(|offsets| {
                let known = topics.upgrade();
                known.map_or(Ok(()), |topics| topics.acknowledged(&at.topic, last, &offsets))?;
                let indices = offsets.iter().map(|offset| at.index(*offset)).collect();
                Indices::of(indices).ok_or_else(|| made_anew(&at.topic))
            });
            done(indices);
        };
        self.writer.append(place, entries, Box::new(reported));
    }

    /// What is appended lies behind all that was acknowledged `before`: where it does not, the brokers'
    /// topic is another one than it was.
    fn acknowledged(&self, topic: &str, before: i64, offsets: &[i64]) -> Result<()> {
        let goes_on = go_on(before, offsets);
        if let Some(Topic::There { last, anew, .. }) = self.topics.held().get_mut(topic) {
            *last = offsets.iter().copied().fold(*last, i64::max);
            *anew |= !goes_on;
        }
        if goes_on { Ok(()) } else { Err(made_anew(topic)) }
    }

    /// The brokers have said where a topic is; who waits for that goes first, and says it again.
    fn found(&self, topic: &str, place: Place) {
        let mut topics = self.topics.held();
        match topics.get(topic) {
            Some(Topic::There { .. }) => {}
            Some(Topic::Sought(waiting)) if !waiting.is_empty() => {}
            _ => {
                topics.insert(topic.to_owned(), Topic::there(place));
            }
        }
    }

    /// Sends what waited for a topic, in order; only then is it there for everybody.
    fn find(self: &Arc<Self>, topic: &str) {
        let name = self.broker.name_of(topic);
        let place = name.and_then(|name| match self.broker.is_gone(&name)? {
            false => self.broker.place(topic),
            true => Err(Error::not_found(format!("topic `{topic}` is not there: create it"))),
        });
        loop {
            let waiting = {
                let mut topics = self.topics.held();
                match topics.get_mut(topic) {
                    Some(Topic::Sought(waiting)) if !waiting.is_empty() => std::mem::take(waiting),
                    Some(Topic::Sought(_)) => {
                        match place {
                            Ok(place) => topics.insert(topic.to_owned(), Topic::there(place)),
                            Err(_) => topics.remove(topic),
                        };
                        return;
                    }
                    _ => return,
                }
            };
            for Waits { entries, done } in waiting {
                match &place {
                    Ok(place) => self.write(place, -1, &entries, done),
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
            let mut due: Vec<String> = Vec::new();
            let mut backlog = VecDeque::new();
            loop {
                let is_busy = !backlog.is_empty() || !due.is_empty();
                match jobs.recv_timeout(if is_busy { Duration::ZERO } else { ROUND }) {
                    Ok(job) => backlog.push_back(job),
                    Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => {}
                }
                backlog.extend(jobs.try_iter());
                let Some(topics) = topics.upgrade() else { return };
                match backlog.pop_front() {
                    Some(Job::Find(topic)) => topics.find(&topic),
                    Some(Job::Ask(topic, done)) => topics.answer(&topic, done, &mut backlog),
                    Some(Job::End) => return,
                    None => {}
                }
                // A failure is tried again in the next round.
                let _ = topics.writer.mend();
                // One at a time: nobody else waits for all of them.
                if let Some(topic) = due.pop()
                    && !topics.check(&topic)
                {
                    due.clear();
                }
                if checked.elapsed() > CHECK {
                    (due, checked) = (topics.known(), Instant::now());
                    topics.broker.hear_what_was_said();
                }
            }
        }
    }

    /// Asks how far a topic goes, for all who want to know by now. While no broker answers, nobody waits
    /// for others' questions in front of his own: what one is told, all are who have waited as long.
    fn answer(&self, topic: &str, done: Done<Info>, backlog: &mut VecDeque<Job>) {
        let begun = Instant::now();
        let info = self.place(topic).and_then(|place| self.broker.info(&place));
        let unheard = match &info {
            Err(e) if e.kind == Kind::Retry && begun.elapsed() >= ANSWER => Some(e.clone()),
            _ => None,
        };
        done(info.clone());
        for job in std::mem::take(backlog) {
            match (job, &unheard) {
                (Job::Ask(other, done), _) if other == topic => done(info.clone()),
                (Job::Ask(other, done), Some(e)) => {
                    let e = e.clone();
                    done(Err(e.context(format_args!("describe topic `{other}`"))));
                }
                (job, _) => backlog.push_back(job),
            }
        }
    }

    /// Refuses appends to a topic whose settings have become unsafe, or that is gone, until it is as it
    /// should be; and to one that was made anew for good. False says that no broker answers.
    fn check(&self, topic: &str) -> bool {
        let place = match self.topics.held().get(topic) {
            Some(Topic::There { place, anew: false, .. }) => place.clone(),
            _ => return true,
        };
        let begun = Instant::now();
        // First of all: its settings are the brokers' own, as a rule.
        let is_anew = self.broker.is_anew(&place);
        let is_gone = match is_anew {
            Ok(true) => Ok(false),
            Ok(false) => self.broker.is_gone(&place.name),
            Err(ref e) => Err(e.clone()),
        };
        let why = match is_gone {
            Ok(false) => None,
            Ok(true) => Some(Error::corrupt(format!(
                "use topic `{topic}`: the brokers have it no more: bring it back"
            ))),
            Err(e) if e.kind == Kind::Retry => return begun.elapsed() < ANSWER,
            Err(e) => Some(e),
        };
        if let Some(Topic::There { refused, anew, .. }) = self.topics.held().get_mut(topic) {
            *anew |= is_anew.unwrap_or_default();
            *refused = why;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{Clients, Options};
    use holdfast_brokers::Brokers;

    /// A topic that was deleted and made anew takes appends without an error, from its front on.
    #[test]
    fn offsets_of_one_process_only_grow() {
        // Two were under way when a client was replaced, and the next one's answer came first: the topic
        // was taken for another one, for good.
        assert!(go_on(-1, &[11]) && go_on(-1, &[10]));
        assert!(go_on(-1, &[0, 1, 7]));
        assert!(go_on(7, &[]) && go_on(7, &[8]));
        for bad in [&[8][..], &[0], &[9, 9], &[10, 3]] {
            assert!(!go_on(8, bad), "{bad:?}");
        }
    }

    /// Nobody had appended to it or read it, so neither offsets nor entries could tell: appends to an empty
    /// topic were acknowledged whose entries were gone.
    #[test]
    fn a_topic_that_was_made_anew_is_known_by_its_id() {
        let Some(brokers) = Brokers::start(1, &[]) else { return };
        let address = format!("kafka://{}/ids", brokers.addresses());
        let clients = Clients::new(Options::parse(&address, BTreeMap::new()).unwrap());
        let broker = Arc::new(Broker::new(clients, 1).unwrap());
        let (topics, _jobs) = Topics::new(broker.clone()).unwrap();
        topics.make("t").unwrap();
        assert!(topics.check("t") && topics.refusals().is_empty());
        broker.remove("ids.t").unwrap();
        let gone = loop {
            assert!(topics.check("t"));
            if let Some(refused) = topics.refused("t") {
                break refused;
            }
        };
        assert!(gone.message.contains("have it no more"), "{gone}");
        // Then it is there again, with all that is asked of a topic.
        broker.make("ids.t").unwrap();
        assert!(topics.check("t"));
        let refused = topics.refused("t").unwrap();
        assert!(refused.message.contains("made anew"), "{refused}");
        assert!(topics.check_same("t").is_err() && topics.make("t").is_err());
        // It stays so, whatever its settings are.
        assert!(topics.check("t") && topics.refusals().len() == 1);
    }
}
