//! One topic as a process has it that does not keep it: a mirror of its durable entries in memory, who
//! waits for one, and which of its own appends have not arrived yet. Where entries come from, another
//! node or a broker, and when they are asked for, is the engine's. Pure: what is to be called is handed
//! back, to be called once no lock is held.

mod mirror;

use crate::Done;
use holdfast_base::ids::Index;
use holdfast_base::{Error, Indices, Reason, Result};
use holdfast_env::planted;
pub use mirror::MIRROR_BYTES_MAX;
use mirror::{Mirror, Page};
use std::collections::BTreeMap;

/// An append whose entry does not arrive while nothing else does either is answered as unknown after one
/// to two times this.
pub const ARRIVAL_MS: u64 = 5_000;

/// Callbacks to call once the lock is given back.
pub type Calls = Vec<Box<dyn FnOnce() + Send>>;

/// Entries in order, each with its index.
pub type Entries = Vec<(Index, Vec<u8>)>;

/// One topic, for one reader: reading far apart at the same time makes the mirror go back and forth.
pub struct Feed {
    topic: String,
    /// From the first index that anybody wanted on.
    mirror: Option<Mirror>,
    /// Behind the last entry that was ever here: a mirror that begins anew, further in front, does not
    /// have it any more.
    reached: Index,
    tails: Vec<(Index, Done<()>)>,
    /// Acknowledged and not in the mirror yet, by the index of the last entry.
    arriving: BTreeMap<Index, (Indices, Done<Indices>)>,
    /// Somebody looks after `arriving`.
    watched: bool,
    /// The log is not the one that was mirrored here, as it is now: it is asked again until it is.
    doubt: Option<Error>,
    /// Who waits for that.
    recovers: Vec<Done<()>>,
    /// The topic cannot be followed any more.
    ended: Option<Error>,
}

impl Feed {
    /// Nothing of `topic` yet.
    pub fn new(topic: &str) -> Feed {
        Feed {
            topic: topic.to_owned(),
            mirror: None,
            reached: Index(0),
            tails: Vec::new(),
            arriving: BTreeMap::new(),
            watched: false,
            doubt: None,
            recovers: Vec::new(),
            ended: None,
        }
    }

    /// Which topic it is.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// Makes sure that the entry at `from` is here or on its way. True says that the mirror begins there
    /// now, and that whatever is under way belongs to the one before.
    pub fn want(&mut self, from: Index) -> bool {
        let from = Index(from.0.max(1));
        let begins = self.mirror.as_ref().is_none_or(|mirror| mirror.is_before(from));
        if begins {
            self.reached = self.reached.max(self.next());
            self.mirror = Some(Mirror::new(from));
        }
        begins
    }

    /// Whether anybody has wanted anything yet.
    pub fn is_wanted(&self) -> bool {
        self.mirror.is_some()
    }

    /// Whether the topic is given out no more, for ever.
    pub fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// Whether the log was found to be another one, for now.
    pub fn is_in_doubt(&self) -> bool {
        self.doubt.is_some()
    }

    /// Why nothing of the topic is given out.
    pub fn refused(&self) -> Option<&Error> {
        self.ended.as_ref().or(self.doubt.as_ref())
    }

    /// What is fetched next; 0 while nobody wants anything.
    pub fn next(&self) -> Index {
        self.mirror.as_ref().map_or(Index(0), Mirror::next)
    }

    /// Whether more is to be fetched.
    pub fn has_room(&self) -> bool {
        self.mirror.as_ref().is_some_and(Mirror::has_room)
    }

    /// Behind the last entry that is known to be there: never less than it was.
    pub fn end_seen(&self) -> Index {
        match planted!("log.mirror-forgets-the-end") {
            false => self.reached.max(self.next()),
            true => self.next(),
        }
    }

    /// Up to where somebody wants entries, or has had them.
    pub fn wanted(&self) -> Index {
        let seen = self.end_seen();
        self.tails.iter().map(|tail| tail.0).max().unwrap_or(seen).max(seen)
    }

    /// What the mirror has from `from` on; nothing while it has not. See [`Feed::want`], which was to be
    /// called before.
    pub fn page(&mut self, from: Index, entries_max: usize, bytes_max: usize) -> Result<Entries> {
        if let Some(e) = self.refused() {
            return Err(e.clone());
        }
        match self.mirror.as_mut().map(|mirror| mirror.page(from, entries_max, bytes_max)) {
            Some(Page::Entries(entries)) => Ok(entries),
            None | Some(Page::Later | Page::Before) => Ok(Vec::new()),
        }
    }

    /// Calls `wake` once there is an entry at or behind `from`. The call to make now, if it is one.
    pub fn tail(&mut self, from: Index, wake: Done<()>) -> Calls {
        let now = match self.refused() {
            Some(e) => Err(e.clone()),
            None if self.mirror.as_ref().is_some_and(|mirror| mirror.holds(from)) => Ok(()),
            None => {
                self.tails.push((from, wake));
                return Calls::new();
            }
        };
        vec![Box::new(move || wake(now))]
    }

    /// See [`Log::recovers`](crate::Log::recovers).
    pub fn recovers(&mut self, wake: Done<()>) -> Calls {
        match &self.ended {
            None if self.doubt.is_some() => {
                self.recovers.push(wake);
                Calls::new()
            }
            ended => {
                let now = ended.clone().map_or(Ok(()), Err);
                vec![Box::new(move || wake(now))]
            }
        }
    }

    /// An append was acknowledged: `done` is called once its entries are here. True asks for
    /// [`Feed::look_after`] every [`ARRIVAL_MS`] from now on.
    pub fn appended(&mut self, indices: Indices, done: Done<Indices>) -> (Calls, bool) {
        if self.refused().is_some() {
            let e = unknown(&self.topic);
            return (vec![Box::new(move || done(Err(e)))], false);
        }
        let last = indices.last();
        if last < self.next() {
            return (vec![Box::new(move || done(Ok(indices)))], false);
        }
        self.arriving.insert(last, (indices, done));
        (Calls::new(), !std::mem::replace(&mut self.watched, true))
    }

    /// Gives up what has not arrived, if nothing has since `reached` was answered. What to call, and where
    /// the mirror is by now, if it is to be looked after again.
    pub fn look_after(&mut self, reached: Index) -> (Calls, Option<Index>) {
        let next = self.next();
        let calls = if next == reached { self.give_up_arriving() } else { Calls::new() };
        self.watched = !self.arriving.is_empty();
        (calls, self.watched.then_some(next))
    }

    /// Appends whose entry did not come: whether it will is unknown.
    pub fn give_up_arriving(&mut self) -> Calls {
        let given_up = std::mem::take(&mut self.arriving).into_values();
        let call = |(_, done): (Indices, Done<Indices>)| -> Box<dyn FnOnce() + Send> {
            let e = unknown(&self.topic);
            Box::new(move || done(Err(e)))
        };
        given_up.map(call).collect()
    }

    /// Takes entries that were fetched from [`Feed::next`] on.
    pub fn push(&mut self, entries: Entries) -> Result<Calls> {
        self.mirror.as_mut().map_or(Ok(()), |mirror| mirror.push(entries))?;
        Ok(self.arrived())
    }

    /// Whom it concerns that entries are here.
    fn arrived(&mut self) -> Calls {
        let mut calls = Calls::new();
        let next = self.next();
        while let Some(first) = self.arriving.first_entry()
            && *first.key() < next
        {
            let (indices, done) = first.remove();
            calls.push(Box::new(move || done(Ok(indices))));
        }
        let mirror = &self.mirror;
        let here = |tail: &mut (Index, Done<()>)| {
            mirror.as_ref().is_some_and(|mirror| mirror.holds(tail.0))
        };
        for (_, wake) in self.tails.extract_if(.., here) {
            calls.push(Box::new(move || wake(Ok(()))));
        }
        calls
    }

    /// Gives nothing out any more.
    fn refuse(&mut self, e: &Error) -> Calls {
        let mut calls = self.give_up_arriving();
        for (_, wake) in std::mem::take(&mut self.tails) {
            let e = e.clone();
            calls.push(Box::new(move || wake(Err(e))));
        }
        calls
    }

    /// Ends the topic for good.
    pub fn end(&mut self, e: Error) -> Calls {
        let mut calls = self.refuse(&e);
        for wake in std::mem::take(&mut self.recovers) {
            let e = e.clone();
            calls.push(Box::new(move || wake(Err(e))));
        }
        self.ended = Some(e);
        calls
    }

    /// Ends the topic: the log begins behind where this reader is.
    pub fn end_trimmed(&mut self, first: Index) -> Calls {
        let why = format!(
            "follow topic `{}`: the log was trimmed up to entry {first} while this node, at {}, was away: \
             start it again, and it begins with a snapshot of another node",
            self.topic,
            self.next()
        );
        self.end(Error::corrupt(why).because(Reason::Overtaken))
    }

    /// Gives nothing out until the log is again the one that was read here. `instead` says what it is now,
    /// and `way_out` what a person does about it.
    pub fn doubt(&mut self, instead: &str, way_out: &str) -> Calls {
        let e = Error::corrupt(format!(
            "follow topic `{}`: {instead}: it is another log than this node has read, or an older copy \
             of it: {way_out}: this node goes on by itself then; only where that log is lost for good, start this node with an \
             empty directory",
            self.topic
        ))
        .because(Reason::OtherLog);
        let calls = self.refuse(&e);
        self.doubt = Some(e);
        calls
    }

    /// The log is the one that was read here.
    pub fn believe(&mut self) -> Calls {
        self.doubt = None;
        let recovered = std::mem::take(&mut self.recovers).into_iter();
        recovered.map(|wake| Box::new(move || wake(Ok(()))) as Box<dyn FnOnce() + Send>).collect()
    }
}

/// What is said of an append that may have been kept.
pub fn unknown(topic: &str) -> Error {
    Error::retry(format!(
        "append to topic `{topic}`: who keeps the log is out of reach: whether the entry was kept is \
         unknown, ask again"
    ))
}
