//! Simulated time and a simulated network: servers and their peers in one thread, driven by a
//! queue of events. Messages take time, connections break, ways are cut in one direction or both,
//! processes end while others wait for them. Same seed, same events in the same order; `digest`
//! says so. Never looks into a message.

use holdfast_base::{Error, Kind, Result};
use holdfast_env::net::{Named, PeerDone, PeerReply, PeerRequest, Peers};
use holdfast_env::{HoldMutex, Rng, SeededRng, sometimes};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// What listens at an address. `reply` may be called at once or later, within any event.
pub trait Listener: Send + Sync {
    fn request(&self, over: Over<'_>, request: PeerRequest, reply: PeerDone);

    /// Somebody's connection of this number has ended, and all before it.
    fn ended(&self, machine: &str, connection: u64) {
        let _ = (machine, connection);
    }
}

/// The connection that a request came over.
#[derive(Clone, Copy, Debug)]
pub struct Over<'a> {
    /// Whose address is at its other end.
    pub machine: &'a str,
    /// How many of this machine's connections to here had broken before.
    pub connection: u64,
    /// What it began with, if anything: a certificate, or a token.
    pub shown: Option<&'a Arc<Named>>,
}

/// A message on its way.
struct Sent {
    request: PeerRequest,
    shown: Option<Arc<Named>>,
}

/// How messages travel.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// A message takes between these, drawn for each.
    pub delay_ns: (u64, u64),
    /// Of a thousand messages, those whose connection breaks under them.
    pub breaks_per_mille: u64,
    /// Of a thousand messages that are on their way when their connection breaks, or their sender
    /// ends, those that arrive all the same: its receiver had them already and comes to them late.
    /// Nobody hears the answer; by then the sender may have asked somebody else.
    pub late_per_mille: u64,
}

/// What a way between two addresses adds to the weather, in this direction: a cell of the matrix of
/// delays of nodes that are not in one room.
#[derive(Clone, Copy, Debug, Default)]
pub struct Distance {
    /// A message takes longer by a time between these, drawn for each: the way, and its jitter.
    pub delay_ns: (u64, u64),
    /// Of a thousand messages, those whose connection breaks under them.
    pub breaks_per_mille: u64,
}

/// How late a message of a connection that broke arrives, at most.
const LATE_NS_MAX: u64 = 4_000_000_000;
/// How long it takes until the other end of a connection that broke hears of it, and how often it is tried
/// while nothing gets through.
const ENDED_NS: u64 = 1_000_000;
const UNHEARD_NS: u64 = 2_000_000_000;
/// Ways are not cut for longer than this many tries take.
const UNHEARD_MAX: u32 = 1000;

impl Default for Weather {
    fn default() -> Weather {
        Weather { delay_ns: (50_000, 400_000), breaks_per_mille: 0, late_per_mille: 300 }
    }
}

type Event = Box<dyn FnOnce() + Send>;
/// From and to.
type Way = (String, String);

/// The network and the clock. Clones are the same one.
#[derive(Clone)]
pub struct SimNet {
    /// Never held while an event runs.
    state: Arc<Mutex<State>>,
}

struct State {
    now_ns: u64,
    /// By time, then by the order they were made.
    events: BTreeMap<(u64, u64), Event>,
    next_event: u64,
    rng: SeededRng,
    weather: Weather,
    listeners: BTreeMap<String, Arc<dyn Listener>>,
    connections: BTreeMap<Way, Connection>,
    /// Ways that are longer than others.
    distances: BTreeMap<Way, Distance>,
    /// Messages of these ways vanish.
    cut: BTreeSet<Way>,
    /// Bytes a second of recovery's blocks from and to an address, and until when it is at it.
    narrow: BTreeMap<String, (u64, u64)>,
    digest: u64,
    /// Lines of what happened, while somebody wants them.
    trace: Option<Vec<String>>,
    /// Tell them as they happen, too.
    aloud: bool,
}

/// What was sent from one address to another since the connection last broke.
#[derive(Default)]
struct Connection {
    /// Counts breaks: messages of an earlier one are gone.
    epoch: u64,
    /// The last message arrives then; later ones do not overtake it. There and back.
    arrives_ns: [u64; 2],
    /// Calls without an answer, by their number.
    outstanding: BTreeMap<u64, PeerDone>,
    next_call: u64,
}

/// Whether a process still lives. Clones are the same process.
#[derive(Clone, Default)]
pub struct Life(Arc<AtomicBool>);

impl Life {
    pub fn end(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub fn has_ended(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl SimNet {
    pub fn new(seed: u64) -> SimNet {
        SimNet {
            state: Arc::new(Mutex::new(State {
                now_ns: 1_000_000_000,
                events: BTreeMap::new(),
                next_event: 0,
                rng: SeededRng::new(seed),
                weather: Weather::default(),
                listeners: BTreeMap::new(),
                connections: BTreeMap::new(),
                distances: BTreeMap::new(),
                cut: BTreeSet::new(),
                narrow: BTreeMap::new(),
                digest: seed,
                trace: None,
                aloud: false,
            })),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.held()
    }

    pub fn now_ns(&self) -> u64 {
        self.state().now_ns
    }

    pub fn digest(&self) -> u64 {
        self.state().digest
    }

    pub fn set_weather(&self, weather: Weather) {
        self.state().weather = weather;
    }

    /// Messages from one address to another take longer from now on.
    pub fn set_distance(&self, from: &str, to: &str, distance: Distance) {
        self.state().distances.insert((from.to_owned(), to.to_owned()), distance);
    }

    /// Keeps lines of what happens from now on.
    pub fn start_trace(&self) {
        self.state().trace = Some(Vec::new());
    }

    /// Prints lines of what happens from now on: for a schedule that does not end.
    pub fn trace_aloud(&self) {
        self.state().aloud = true;
    }

    pub fn take_trace(&self) -> Vec<String> {
        self.state().trace.replace(Vec::new()).unwrap_or_default()
    }

    /// Mixes something that happened into the digest, and into the trace if there is one.
    pub fn note(&self, what: &str) {
        self.state().note(what);
    }

    /// Runs `event` so many nanoseconds from now.
    pub fn after_ns(&self, ns: u64, event: impl FnOnce() + Send + 'static) {
        let mut state = self.state();
        let at = state.now_ns + ns;
        state.schedule(at, Box::new(event));
    }

    /// Runs the next event; false if there is none.
    pub fn step(&self) -> bool {
        let event = {
            let mut state = self.state();
            let Some(((at, _), event)) = state.events.pop_first() else { return false };
            state.now_ns = state.now_ns.max(at);
            event
        };
        event();
        true
    }

    /// Forgets everything that was to happen, and who holds it.
    pub fn clear(&self) {
        let (events, listeners, connections) = {
            let mut state = self.state();
            let events = std::mem::take(&mut state.events);
            let listeners = std::mem::take(&mut state.listeners);
            (events, listeners, std::mem::take(&mut state.connections))
        };
        drop((events, listeners, connections));
    }

    /// Recovery's blocks pass an address at so many bytes a second from now on; 0 for at once.
    pub fn narrow(&self, address: &str, bytes_per_second: u64) {
        let mut state = self.state();
        state.narrow.remove(address);
        if bytes_per_second > 0 {
            let now_ns = state.now_ns;
            state.narrow.insert(address.to_owned(), (bytes_per_second, now_ns));
        }
    }

    pub fn is_cut(&self, from: &str, to: &str) -> bool {
        self.state().cut.contains(&(from.to_owned(), to.to_owned()))
    }

    /// Whether messages vanish between two, one way or the other.
    pub fn are_apart(&self, a: &str, b: &str) -> bool {
        self.is_cut(a, b) || self.is_cut(b, a)
    }

    /// When the next event is due.
    pub fn next_ns(&self) -> Option<u64> {
        self.state().events.first_key_value().map(|((at, _), _)| *at)
    }

    /// Answers requests to `address` from now on.
    pub fn listen(&self, address: &str, listener: Arc<dyn Listener>) {
        self.state().listeners.insert(address.to_owned(), listener);
    }

    /// The process at `address` is gone: its connections break on both sides, and its own waits
    /// end by `life`.
    pub fn end(&self, address: &str, life: &Life) {
        life.end();
        let ways: Vec<Way> = {
            let mut state = self.state();
            state.listeners.remove(address);
            let of = |way: &&Way| way.0 == address || way.1 == address;
            state.connections.keys().filter(of).cloned().collect()
        };
        for way in ways {
            // What it waited for, nobody is there to hear.
            if way.0 == address {
                let gone = self.state().connections.get_mut(&way).map(|connection| {
                    connection.epoch += 1;
                    std::mem::take(&mut connection.outstanding)
                });
                drop(gone);
            } else {
                self.break_connection(&way, "the connection was reset");
            }
        }
    }

    /// Messages from `from` to `to` vanish until [`SimNet::heal`]. Whoever waits does so until its
    /// deadline.
    pub fn cut(&self, from: &str, to: &str) {
        self.state().cut.insert((from.to_owned(), to.to_owned()));
    }

    pub fn heal(&self, from: &str, to: &str) {
        self.state().cut.remove(&(from.to_owned(), to.to_owned()));
    }

    pub fn heal_all(&self) {
        self.state().cut.clear();
    }

    /// What the process at `address` reaches others by.
    pub fn peers(&self, address: &str, life: &Life) -> Arc<dyn Peers> {
        self.peers_named(address, None, life)
    }

    /// As [`SimNet::peers`]; its connections begin with a certificate or a token, if any.
    pub fn peers_named(&self, address: &str, shown: Option<Named>, life: &Life) -> Arc<dyn Peers> {
        self.peers_showing(address, Arc::new(Mutex::new(shown.map(Arc::new))), life)
    }

    /// As [`SimNet::peers_named`], of what may be exchanged.
    pub fn peers_showing(&self, address: &str, shows: Shows, life: &Life) -> Arc<dyn Peers> {
        let (net, from, life) = (self.clone(), address.to_owned(), life.clone());
        Arc::new(SimPeers { net, from, shows, begun: Arc::default(), life })
    }

    /// Calls of the process at `address` that wait for their answers.
    pub fn outstanding_of(&self, address: &str) -> usize {
        let state = self.state();
        let own = state.connections.iter().filter(|(way, _)| way.0 == address);
        own.map(|(_, connection)| connection.outstanding.len()).sum()
    }

    /// The process at `address` ends its connection to another one; the next call begins anew.
    pub fn hang_up(&self, address: &str, other: &str) {
        self.break_connection(&(address.to_owned(), other.to_owned()), "the connection was ended");
    }

    /// Fails every outstanding call of a connection; messages on their way are gone.
    fn break_connection(&self, way: &Way, why: &str) {
        let (epoch, failed) = {
            let mut state = self.state();
            let Some(connection) = state.connections.get_mut(way) else { return };
            connection.epoch += 1;
            (connection.epoch - 1, std::mem::take(&mut connection.outstanding))
        };
        self.tell_end(way.clone(), epoch, UNHEARD_MAX, ENDED_NS);
        for (_, done) in failed {
            let (why, to) = (why.to_owned(), way.1.clone());
            self.after_ns(1000, move || done(Err(Error::retry(format!("ask `{to}`: {why}")))));
        }
    }

    fn tell_end(&self, way: Way, epoch: u64, tries: u32, in_ns: u64) {
        let net = self.clone();
        self.after_ns(in_ns, move || {
            let listener = {
                let state = net.state();
                match state.cut.contains(&way) {
                    true => None,
                    false => Some(state.listeners.get(&way.1).cloned()),
                }
            };
            match listener {
                None if tries == 0 => {}
                None => net.tell_end(way, epoch, tries - 1, UNHEARD_NS),
                Some(listener) => {
                    listener.inspect(|listener| listener.ended(&way.0, epoch));
                }
            }
        });
    }

    fn deliver(&self, way: Way, epoch: u64, call: u64, sent: Sent) {
        let listener = {
            let mut state = self.state();
            if state.cut.contains(&way) {
                return;
            }
            if !state.is_current(&way, epoch) {
                drop(state);
                return self.deliver_late(way, epoch, sent);
            }
            state.note(&format!("{} > {} {:#06x}", way.0, way.1, sent.request.opcode));
            state.listeners.get(&way.1).cloned()
        };
        let Some(listener) = listener else {
            return self.break_connection(&way, "connection refused");
        };
        let (net, machine) = (self.clone(), way.0.clone());
        let reply = Box::new(move |answer| net.send_back(way, epoch, call, answer));
        let shown = sent.shown.as_ref();
        let over = Over { machine: &machine, connection: epoch, shown };
        listener.request(over, sent.request, reply);
    }

    /// A message of a connection that has broken meanwhile: gone, or late.
    fn deliver_late(&self, way: Way, epoch: u64, sent: Sent) {
        let mut state = self.state();
        if state.rng.next_u64() % 1000 >= state.weather.late_per_mille {
            return;
        }
        let at = state.now_ns + state.rng.next_u64() % LATE_NS_MAX;
        let net = self.clone();
        let arrive = move || {
            let listener = {
                let mut state = net.state();
                let opcode = sent.request.opcode;
                state.note(&format!("{} > {} {opcode:#06x}, late", way.0, way.1));
                state.listeners.get(&way.1).cloned()
            };
            if let Some(listener) = listener {
                sometimes!("a message of a broken connection arrived late");
                let shown = sent.shown.as_ref();
                let over = Over { machine: &way.0, connection: epoch, shown };
                listener.request(over, sent.request, Box::new(|_| ()));
            }
        };
        state.schedule(at, Box::new(arrive));
    }

    fn send_back(&self, way: Way, epoch: u64, call: u64, answer: Result<PeerReply>) {
        let mut state = self.state();
        if !state.is_current(&way, epoch) {
            return;
        }
        let at = state.arrival(&way, 1);
        let net = self.clone();
        let arrive = move || {
            let done = {
                let mut state = net.state();
                let back = (way.1.clone(), way.0.clone());
                if !state.is_current(&way, epoch) || state.cut.contains(&back) {
                    return;
                }
                let said = match &answer {
                    Ok(reply) => format!("{} bytes", reply.meta.len() + reply.body.len()),
                    Err(e) => format!("{:?}", e.kind),
                };
                state.note(&format!("{} < {} {said}", way.0, way.1));
                state.connections.get_mut(&way).and_then(|c| c.outstanding.remove(&call))
            };
            if let Some(done) = done {
                done(answer);
            }
        };
        state.schedule(at, Box::new(arrive));
    }
}

impl State {
    /// How long a block takes between two addresses, one block after the other.
    fn takes_ns(&mut self, ends: [&str; 2], bytes: u64) -> u64 {
        let now_ns = self.now_ns;
        let mut until_ns = now_ns;
        for end in ends {
            if let Some((bytes_per_second, busy_ns)) = self.narrow.get_mut(end) {
                *busy_ns = now_ns.max(*busy_ns) + bytes * 1_000_000_000 / *bytes_per_second;
                until_ns = until_ns.max(*busy_ns);
            }
        }
        until_ns - now_ns
    }

    fn schedule(&mut self, at_ns: u64, event: Event) {
        self.events.insert((at_ns, self.next_event), event);
        self.next_event += 1;
    }

    fn note(&mut self, what: &str) {
        for byte in what.bytes().chain(self.now_ns.to_le_bytes()) {
            self.digest = (self.digest ^ byte as u64).wrapping_mul(0x0100_0000_01b3);
        }
        if self.aloud {
            println!("{:>12} {what}", self.now_ns / 1000);
        }
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>12} {what}", self.now_ns / 1000));
        }
    }

    fn is_current(&self, way: &Way, epoch: u64) -> bool {
        self.connections.get(way).is_some_and(|connection| connection.epoch == epoch)
    }

    /// A number between these, both included.
    fn draw(&self, (least, most): (u64, u64)) -> u64 {
        least + self.rng.next_u64() % (most - least + 1)
    }

    /// When the next message of a way arrives; there is 0, back is 1.
    fn arrival(&mut self, way: &Way, direction: usize) -> u64 {
        let mut delay = self.draw(self.weather.delay_ns);
        // What way it is says who asked; an answer goes back.
        let distance = match direction {
            0 => self.distances.get(way),
            _ => self.distances.get(&(way.1.clone(), way.0.clone())),
        };
        if let Some(distance) = distance.copied() {
            delay += self.draw(distance.delay_ns);
        }
        let connection = self.connections.entry(way.clone()).or_default();
        let at = (self.now_ns + delay).max(connection.arrives_ns[direction] + 1);
        connection.arrives_ns[direction] = at;
        at
    }
}

/// The certificate or token that a process shows where it begins a connection; it may be exchanged
/// while it runs.
pub type Shows = Arc<Mutex<Option<Arc<Named>>>>;

/// Which connection to an address it was that began with what.
type Begun = BTreeMap<String, (u64, Arc<Named>)>;

struct SimPeers {
    net: SimNet,
    from: String,
    shows: Shows,
    /// What each connection began with, by its other end, and which of them it was.
    begun: Arc<Mutex<Begun>>,
    life: Life,
}

impl SimPeers {
    /// What the connection to `to` has shown: what it began with, as long as it lasts.
    fn shown(&self, to: &str, epoch: u64) -> Option<Arc<Named>> {
        let now = self.shows.held().clone()?;
        let mut begun = self.begun.held();
        match begun.get(to) {
            Some((of, named)) if *of == epoch => Some(named.clone()),
            _ => {
                begun.insert(to.to_owned(), (epoch, now.clone()));
                Some(now)
            }
        }
    }

    /// Whoever is refused because of what it showed connects again, and shows what it has by now.
    fn seen_to(&self, to: &str, shown: &Option<Arc<Named>>, done: PeerDone) -> PeerDone {
        let Some(shown) = shown.clone() else { return done };
        let (to, shows, begun) = (to.to_owned(), self.shows.clone(), self.begun.clone());
        Box::new(move |answer| {
            let is_refused = answer.as_ref().is_err_and(|e| e.kind == Kind::Denied);
            let was_exchanged = shows.held().as_ref().is_some_and(|now| now.serial != shown.serial);
            if is_refused && was_exchanged {
                begun
                    .held()
                    .retain(|other, (_, named)| *other != to || !Arc::ptr_eq(named, &shown));
            }
            done(answer);
        })
    }
}

impl Peers for SimPeers {
    fn call(&self, address: &str, request: PeerRequest, done: PeerDone) {
        if self.life.has_ended() {
            return;
        }
        let way = (self.from.clone(), address.to_owned());
        let mut state = self.net.state();
        let at = state.arrival(&way, 0);
        let far = state.distances.get(&way).map_or(0, |distance| distance.breaks_per_mille);
        let breaks = state.rng.next_u64() % 1000 < state.weather.breaks_per_mille + far;
        let deadline_ns = state.now_ns + request.deadline_ms as u64 * 1_000_000;
        let Some(connection) = state.connections.get_mut(&way) else { return };
        let (epoch, call) = (connection.epoch, connection.next_call);
        connection.next_call += 1;
        let shown = self.shown(address, epoch);
        connection.outstanding.insert(call, self.seen_to(address, &shown, done));
        if request.deadline_ms > 0 {
            let (net, way) = (self.net.clone(), way.clone());
            let late = move || {
                let done = {
                    let mut state = net.state();
                    state.connections.get_mut(&way).and_then(|c| c.outstanding.remove(&call))
                };
                if let Some(done) = done {
                    done(Err(Error::retry(format!("ask `{}`: no answer in time", way.1))));
                }
            };
            state.schedule(deadline_ns, Box::new(late));
        }
        let net = self.net.clone();
        state.schedule(
            at,
            Box::new(move || {
                if breaks {
                    net.break_connection(&way, "the connection broke");
                }
                net.deliver(way, epoch, call, Sent { request, shown });
            }),
        );
    }

    fn call_yielding(&self, address: &str, request: PeerRequest, done: PeerDone) {
        let (net, from, to) = (self.net.clone(), self.from.clone(), address.to_owned());
        let most_ns = match request.deadline_ms {
            0 => u64::MAX,
            ms => ms as u64 * 1_000_000,
        };
        let arrived = move |answer: Result<PeerReply>| {
            let bytes = answer.as_ref().map_or(0, |reply| reply.body.len() as u64);
            let takes_ns = net.state().takes_ns([&from, &to], bytes);
            match takes_ns {
                0 => done(answer),
                // Who asked waits no longer, however much is on its way in front of it.
                ns if ns > most_ns => {
                    let late = Error::retry(format!("ask `{to}`: no answer in time"));
                    net.after_ns(most_ns, move || done(Err(late)));
                }
                ns => net.after_ns(ns, move || done(answer)),
            }
        };
        self.call(address, request, Box::new(arrived));
    }

    fn after(&self, ms: u64, then: Box<dyn FnOnce() + Send>) {
        let life = self.life.clone();
        self.net.after_ns(ms * 1_000_000, move || {
            if !life.has_ended() {
                then();
            }
        });
    }

    fn step(&self) -> Result<bool> {
        if self.life.has_ended() {
            return Err(Error::retry("wait for an answer: this node was ended"));
        }
        if !self.net.step() {
            return Err(Error::bug("wait for an answer: nothing is on its way"));
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers with the request's meta; requests beginning with `!` never.
    struct Echo;

    impl Listener for Echo {
        fn request(&self, _: Over<'_>, request: PeerRequest, reply: PeerDone) {
            if !request.meta.starts_with(b"!") {
                reply(Ok(PeerReply { meta: request.meta, body: Vec::new() }));
            }
        }
    }

    type Heard = Arc<Mutex<Vec<String>>>;

    fn ask(peers: &Arc<dyn Peers>, to: &str, text: &str, heard: &Heard) {
        let request = PeerRequest {
            opcode: 1,
            meta: text.as_bytes().to_vec(),
            body: None,
            deadline_ms: 1000,
        };
        let (heard, text) = (heard.clone(), text.to_owned());
        let done = move |answer: Result<PeerReply>| {
            let said = match answer {
                Ok(reply) => String::from_utf8(reply.meta).unwrap(),
                Err(e) => format!("{text}: {}", e.message),
            };
            heard.lock().unwrap().push(said);
        };
        peers.call(to, request, Box::new(done));
    }

    fn run(net: &SimNet) {
        while net.step() {}
    }

    #[test]
    fn messages_of_a_way_keep_their_order_and_a_cut_loses_them() {
        let net = SimNet::new(7);
        let heard = Heard::default();
        net.listen("b", Arc::new(Echo));
        let a = net.peers("a", &Life::default());
        (0..20).for_each(|i| ask(&a, "b", &i.to_string(), &heard));
        run(&net);
        let wanted: Vec<String> = (0..20).map(|i| i.to_string()).collect();
        assert_eq!(std::mem::take(&mut *heard.lock().unwrap()), wanted);
        // The answer is lost as well as the request.
        for (from, to) in [("a", "b"), ("b", "a")] {
            net.cut(from, to);
            let before = net.now_ns();
            ask(&a, "b", "lost", &heard);
            run(&net);
            assert_eq!(heard.lock().unwrap().pop().unwrap(), "lost: ask `b`: no answer in time");
            assert_eq!(net.now_ns() - before, 1_000_000_000);
            net.heal_all();
        }
        ask(&a, "b", "again", &heard);
        run(&net);
        assert_eq!(*heard.lock().unwrap(), ["again"]);
    }

    #[test]
    fn an_ended_process_fails_those_who_wait_and_hears_nothing_more() {
        let net = SimNet::new(7);
        let (heard, life) = (Heard::default(), Life::default());
        net.listen("b", Arc::new(Echo));
        let (a, b) = (net.peers("a", &Life::default()), net.peers("b", &life));
        net.listen("a", Arc::new(Echo));
        ask(&a, "b", "!one", &heard);
        ask(&b, "a", "two", &heard);
        b.after(1, Box::new(|| panic!("it has ended")));
        net.end("b", &life);
        ask(&a, "b", "three", &heard);
        run(&net);
        let heard = heard.lock().unwrap();
        assert_eq!(heard.len(), 2, "{heard:?}");
        assert!(heard[0].contains("reset") && heard[1].contains("refused"), "{heard:?}");
        assert!(b.step().is_err());
    }

    #[test]
    fn a_break_fails_all_that_is_outstanding_and_the_same_seed_does_the_same() {
        let story = |seed| {
            let net = SimNet::new(seed);
            net.set_weather(Weather { breaks_per_mille: 300, ..Weather::default() });
            net.start_trace();
            net.listen("b", Arc::new(Echo));
            let (a, heard) = (net.peers("a", &Life::default()), Heard::default());
            (0..30).for_each(|i| ask(&a, "b", &i.to_string(), &heard));
            run(&net);
            let heard = heard.lock().unwrap().clone();
            assert_eq!(heard.len(), 30, "each once");
            assert!(heard.iter().any(|said| said.contains("broke")), "{heard:?}");
            (net.digest(), net.take_trace(), heard)
        };
        assert_eq!(story(3), story(3));
        assert_ne!(story(3).0, story(4).0);
    }
}
