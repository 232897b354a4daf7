//! The log of a node that does not host it: appends go to the host, entries come from one
//! long-polled read a topic and reader into a mirror in memory, from which a fold is fed. No call blocks;
//! everything else happens in callbacks of [`Peers`]. Loses nothing by itself: what the mirror
//! lacks it fetches, from the place where the reader is.

mod following;
mod host;

pub use host::{LogHost, describe};

use crate::feed::{ARRIVAL_MS, Calls, unknown};
use crate::{Done, Info, Log, Mode, Scope, check_topic};
use following::Following;
use holdfast_base::checksum::crc32c;
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::ids::Index;
use holdfast_base::{Error, Indices, Kind, Result};
use holdfast_env::net::{PeerReply, PeerRequest, Peers};
use holdfast_env::{HoldMutex, planted};
use holdfast_wire::peer::Sender;
use holdfast_wire::{log as msg, peer_log as wire};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

const APPEND_MS: u32 = 10_000;
/// How long the host may take to say how far its log goes.
const ASK_MS: u32 = 5_000;
/// Pause after a second failure in a row; doubled with each further one. The first is followed by
/// a new attempt at once: it is the end of an idle poll, as a rule.
const PAUSE_MS: u64 = 10;
const PAUSE_MS_MAX: u64 = 1_000;
/// Between two attempts to find the log again that was read here.
const DOUBT_MS: u64 = 1_000;
/// A log hosted by another node, for one reader a topic.
pub struct RemoteLog {
    inner: Arc<Inner>,
    /// 0 for the first one, with which the others end.
    reader: u32,
}

/// Whose feed it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    topic: String,
    reader: u32,
}

struct Inner {
    peers: Arc<dyn Peers>,
    /// Never held while anything is called.
    state: Mutex<State>,
}

struct State {
    host: String,
    sender: Sender,
    topics: BTreeMap<Key, Following>,
    readers: u32,
    closed: bool,
}

impl State {
    fn topic(&mut self, key: &Key) -> &mut Following {
        self.topics.entry(key.clone()).or_insert_with(|| Following::new(&key.topic))
    }
}

impl RemoteLog {
    /// Uses the log of the node at `host`, in the name of `sender`.
    pub fn new(peers: Arc<dyn Peers>, host: &str, sender: Sender) -> RemoteLog {
        let state = State {
            host: host.to_owned(),
            sender,
            topics: BTreeMap::new(),
            readers: 0,
            closed: false,
        };
        RemoteLog { inner: Arc::new(Inner { peers, state: Mutex::new(state) }), reader: 0 }
    }

    /// The same log for another reader, wherever it is: what one has not read yet keeps no room from
    /// the others, and one that looks far back takes nothing from them.
    pub fn another_reader(&self) -> RemoteLog {
        let mut state = self.inner.lock();
        state.readers += 1;
        let reader =
            if planted!("log.readers-share-a-window") { self.reader } else { state.readers };
        RemoteLog { inner: self.inner.clone(), reader }
    }

    fn key(&self, topic: &str) -> Key {
        Key { topic: topic.to_owned(), reader: self.reader }
    }

    /// The host has moved, or another node has its log now. Positions are compared with it before
    /// anything of it is used.
    pub fn set_host(&self, host: &str) {
        let topics: Vec<Key> = {
            let mut state = self.inner.lock();
            if state.host == host {
                return;
            }
            state.host = host.to_owned();
            for here in state.topics.values_mut() {
                here.interrupt();
                here.compare_anew();
                here.failures = 0;
            }
            state.topics.keys().cloned().collect()
        };
        topics.iter().for_each(|topic| self.inner.go_on(topic));
    }

    /// Who asks from now on: a node knows its incarnation once it is in the log.
    pub fn set_sender(&self, sender: Sender) {
        self.inner.lock().sender = sender;
    }

    /// Why a topic gets no entries at the moment, if it does not.
    pub fn trouble(&self, topic: &str) -> Option<Error> {
        let state = self.inner.lock();
        let topic = state.topics.get(&self.key(topic))?;
        topic.feed.refused().or(topic.trouble.as_ref()).cloned()
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.held()
    }

    /// Sends the next request of a topic, unless one is under way or nobody wants it.
    fn go_on(self: &Arc<Self>, key: &Key) {
        let mut state = self.lock();
        let State { host, sender, topics, closed, .. } = &mut *state;
        let Some(here) = topics.get_mut(key).filter(|_| !*closed) else { return };
        if here.busy || here.feed.has_ended() {
            return;
        }
        // Who has no number yet has nothing to compare.
        here.proven |= sender.node.0 == 0;
        let Some((opcode, meta, deadline_ms)) = here.question(key, *sender) else { return };
        let key = key.clone();
        here.busy = true;
        here.round += 1;
        let (host, round, weak) = (host.clone(), here.round, Arc::downgrade(self));
        drop(state);
        let request = PeerRequest { opcode, meta, body: None, deadline_ms };
        let done = move |answer: Result<PeerReply>| {
            if let Some(inner) = weak.upgrade() {
                inner.answered(&key, round, opcode, answer);
            }
        };
        self.peers.call(&host, request, Box::new(done));
    }

    fn answered(self: &Arc<Self>, key: &Key, round: u64, opcode: u16, answer: Result<PeerReply>) {
        let mut calls = Calls::new();
        let mut pause_ms = 0;
        {
            let mut state = self.lock();
            let Some(topic) = state.topics.get_mut(key).filter(|topic| topic.round == round) else {
                return;
            };
            topic.busy = false;
            let taken = match opcode {
                wire::OP_PEER_LOG_READ => answer.and_then(|reply| topic.push(&reply)),
                wire::OP_PEER_LOG_COMPARE => topic.prove(answer.map(|_| ())),
                _ => answer.and_then(|reply| decode(&reply.meta)).map(|info| topic.compare(info)),
            };
            topic.trouble = taken.map(|called| calls = called).err();
            if let Some(e) = topic.trouble.take_if(|e| e.kind == Kind::Fenced) {
                // Another process is this node by now. The entry that says so will not be given
                // to this one, so it must not wait for it.
                calls.extend(topic.end(e));
            } else if topic.trouble.is_some() {
                topic.failures += 1;
                topic.compare_anew();
                if topic.failures > 1 {
                    calls.extend(topic.feed.give_up_arriving());
                    let pause = (PAUSE_MS << (topic.failures - 2).min(16)).min(PAUSE_MS_MAX);
                    // A host that knows its log to be another one says so to each read, and
                    // answers all that comes before one.
                    let refuses = topic.trouble.as_ref().is_some_and(|e| e.kind == Kind::Corrupt);
                    pause_ms = if refuses { DOUBT_MS } else { pause };
                    topic.busy = true;
                }
            } else if topic.feed.is_in_doubt() && opcode == wire::OP_PEER_LOG_COMPARE {
                topic.compare_anew();
                topic.busy = true;
                pause_ms = DOUBT_MS;
            }
        }
        if pause_ms == 0 {
            self.go_on(key);
        } else {
            let (weak, key) = (Arc::downgrade(self), key.clone());
            let then = move || resume(&weak, &key, round);
            self.peers.after(pause_ms, Box::new(then));
        }
        calls.into_iter().for_each(|call| call());
    }

    /// The host has the entries.
    fn appended(self: &Arc<Self>, key: &Key, indices: Indices, done: Done<Indices>) {
        let (calls, watch) = {
            let mut state = self.lock();
            if state.closed {
                drop(state);
                return done(Err(unknown(&key.topic)));
            }
            let topic = state.topic(key);
            if !topic.feed.is_wanted() {
                topic.want(indices.first());
            }
            topic.feed.appended(indices, done)
        };
        self.go_on(key);
        calls.into_iter().for_each(|call| call());
        if watch {
            self.watch(key, Index(0));
        }
    }

    /// Looks again later whether anything has arrived.
    fn watch(self: &Arc<Self>, key: &Key, reached: Index) {
        let (weak, key) = (Arc::downgrade(self), key.clone());
        let then = move || {
            let Some(inner) = weak.upgrade() else { return };
            let (calls, next) = {
                let mut state = inner.lock();
                let Some(topic) = state.topics.get_mut(&key) else { return };
                topic.feed.look_after(reached)
            };
            calls.into_iter().for_each(|call| call());
            if let Some(next) = next {
                inner.watch(&key, next);
            }
        };
        self.peers.after(ARRIVAL_MS, Box::new(then));
    }
}

/// A host that denies this node is as good as away: who appends through it, for a client, say, is not who is denied, and
/// asks again. It was told `Denied`, for this node's certificate that had been revoked meanwhile, of a change that had
/// been made.
fn as_away(e: Error) -> Error {
    match e.kind {
        Kind::Denied if !planted!("log.clients-denied-for-their-node") => {
            Error { kind: Kind::Retry, ..e }
        }
        _ => e,
    }
}

/// A pause is over.
fn resume(weak: &Weak<Inner>, key: &Key, round: u64) {
    let Some(inner) = weak.upgrade() else { return };
    {
        let mut state = inner.lock();
        let Some(here) = state.topics.get_mut(key).filter(|here| here.round == round) else {
            return;
        };
        here.busy = false;
    }
    inner.go_on(key);
}

fn decode<T: Decode>(meta: &[u8]) -> Result<T> {
    T::from_bytes(meta).map_err(|e| Error::bug(format!("use the log: the host's answer: {e}")))
}

impl Log for RemoteLog {
    /// Checks the name; the host makes its topics itself.
    fn create(&self, topic: &str) -> Result<()> {
        check_topic(topic)
    }

    /// Always synced at the host, whatever `mode` says: readers here see durable entries only, so
    /// an ordered one would be waited for until the host's background sync. `done` is called once
    /// the mirror holds the entries.
    fn append(&self, topic: &str, entries: Vec<Vec<u8>>, _: Mode, done: Done<Indices>) {
        if entries.is_empty() {
            return done(Err(Error::invalid(format!(
                "append to topic `{topic}`: no entries: pass at least one"
            ))));
        }
        let (host, sender, refused) = {
            let state = self.inner.lock();
            let topic = state.topics.get(&self.key(topic));
            let refused = topic.and_then(|topic| topic.feed.refused().cloned());
            (state.host.clone(), state.sender, refused)
        };
        if let Some(e) = refused {
            return done(Err(e));
        }
        let count = entries.len();
        let body = wire::encode_entries(&entries);
        let append = wire::Append { sender, topic: topic.to_owned(), crc: crc32c(&body) };
        let request = PeerRequest {
            opcode: wire::OP_PEER_LOG_APPEND,
            meta: append.to_bytes(),
            body: Some(Arc::new(body)),
            deadline_ms: APPEND_MS,
        };
        let (weak, key) = (Arc::downgrade(&self.inner), self.key(topic));
        let answered = move |answer: Result<PeerReply>| {
            let indices =
                answer.and_then(|reply| decode::<msg::Appended>(&reply.meta)?.indices(count));
            match (indices, weak.upgrade()) {
                (Ok(indices), Some(inner)) => inner.appended(&key, indices, done),
                (Ok(_), None) => done(Err(unknown(&key.topic))),
                (Err(e), _) => done(Err(as_away(e))),
            }
        };
        self.inner.peers.call(&host, request, Box::new(answered));
    }

    /// What the mirror has; nothing while it has not: ask [`Log::tail`] to be told. Only durable
    /// entries, for either scope. Reading far apart at the same time makes the mirror go back and
    /// forth: it is made for one reader a topic.
    fn read(
        &self,
        topic: &str,
        from: Index,
        entries_max: usize,
        bytes_max: usize,
        _: Scope,
    ) -> Result<Vec<(Index, Vec<u8>)>> {
        let key = self.key(topic);
        let page = {
            let mut state = self.inner.lock();
            let topic = state.topic(&key);
            if topic.feed.refused().is_none() {
                topic.want(from);
            }
            topic.feed.page(from, entries_max, bytes_max)
        };
        // What was read may have made room.
        self.inner.go_on(&key);
        page
    }

    /// An error means that the host has another log than the one that was read here, or that this
    /// log was dropped. A host out of reach is none: it is asked again until it answers.
    fn tail(&self, topic: &str, from: Index, wake: Done<()>) {
        let key = self.key(topic);
        let calls = {
            let mut state = self.inner.lock();
            let topic = state.topic(&key);
            if topic.feed.refused().is_none() {
                topic.want(from);
            }
            topic.feed.tail(from, wake)
        };
        self.inner.go_on(&key);
        calls.into_iter().for_each(|call| call());
    }

    fn recovers(&self, topic: &str, wake: Done<()>) {
        let key = self.key(topic);
        let calls = self.inner.lock().topic(&key).feed.recovers(wake);
        calls.into_iter().for_each(|call| call());
    }

    /// Nothing: what was acknowledged or read here is durable at the host.
    fn sync(&self, _: &str) -> Result<()> {
        Ok(())
    }

    /// Tells the host, and does not wait: a trim that is lost is made up for by the next one.
    fn trim(&self, topic: &str, before: Index) -> Result<()> {
        let (host, sender) = {
            let state = self.inner.lock();
            (state.host.clone(), state.sender)
        };
        let trim = wire::Trim { sender, topic: topic.to_owned(), before };
        let request = PeerRequest {
            opcode: wire::OP_PEER_LOG_TRIM,
            meta: trim.to_bytes(),
            body: None,
            deadline_ms: APPEND_MS,
        };
        self.inner.peers.call(&host, request, Box::new(|_| {}));
        Ok(())
    }

    /// What the host said last, and what has arrived since; `Retry` before it has said anything.
    fn info(&self, topic: &str) -> Result<Info> {
        let state = self.inner.lock();
        let topic_here = state.topics.get(&self.key(topic));
        let Some((here, info)) = topic_here.and_then(|here| Some((here, here.info.as_ref()?)))
        else {
            return Err(Error::retry(format!(
                "describe topic `{topic}`: the log's host `{}` has not answered yet: ask again",
                state.host
            )));
        };
        Ok(Info {
            first: info.first,
            next: info.next.max(here.feed.end_seen()),
            durable: info.durable.max(here.feed.end_seen()),
            bytes: info.bytes,
            segments: info.segments as usize,
        })
    }

    fn ask(&self, topic: &str, done: Done<Info>) {
        let (host, sender) = {
            let state = self.inner.lock();
            (state.host.clone(), state.sender)
        };
        let describe = wire::Describe { sender, topic: topic.to_owned() };
        let request = PeerRequest {
            opcode: wire::OP_PEER_LOG_INFO,
            meta: describe.to_bytes(),
            body: None,
            deadline_ms: ASK_MS,
        };
        let told = move |answer: Result<PeerReply>| {
            let info = answer.and_then(|reply| decode::<msg::Info>(&reply.meta));
            done(info.map(|info| Info {
                first: info.first,
                next: info.next,
                durable: info.durable,
                bytes: info.bytes,
                segments: info.segments as usize,
            }));
        };
        self.inner.peers.call(&host, request, Box::new(told));
    }

    /// Those that were used here.
    fn topics(&self) -> Vec<String> {
        let state = self.inner.lock();
        let own = state.topics.keys().filter(|key| key.reader == self.reader);
        own.map(|key| key.topic.clone()).collect()
    }
}

impl Drop for RemoteLog {
    fn drop(&mut self) {
        let mut calls = Calls::new();
        {
            let mut state = self.inner.lock();
            let all = self.reader == 0;
            state.closed |= all;
            for (Key { topic, reader }, following) in &mut state.topics {
                if all || *reader == self.reader {
                    let e = Error::retry(format!("tail topic `{topic}`: the log was closed"));
                    calls.extend(following.end(e));
                }
            }
            state.topics.retain(|key, _| all || key.reader != self.reader);
        }
        calls.into_iter().for_each(|call| call());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_base::ids::NodeId;
    use holdfast_env::net::PeerDone;
    use std::sync::mpsc;

    /// A host that lets nobody in any more.
    struct Closed;

    impl Peers for Closed {
        fn call(&self, _: &str, _: PeerRequest, done: PeerDone) {
            done(Err(Error::denied("ask `n1`: the connection broke (it was revoked)")));
        }

        fn after(&self, _: u64, _: Box<dyn FnOnce() + Send>) {}
    }

    #[test]
    fn who_is_denied_is_the_node_and_not_who_appends_through_it() {
        let sender = Sender { cluster: 1, node: NodeId(2), incarnation: Index(3) };
        let log = RemoteLog::new(Arc::new(Closed), "n1", sender);
        let (told, tells) = mpsc::channel();
        let done = Box::new(move |answer| told.send(answer).unwrap());
        log.append("t", vec![b"entry".to_vec()], Mode::Synced, done);
        let e = tells.try_recv().unwrap().unwrap_err();
        assert!(e.kind == Kind::Retry && e.message.contains("it was revoked"), "{e}");
    }
}
