//! Leases in orders that a seed draws: a database whose log is read late and shows its changes later, an
//! invalidator that freezes or starts anew, a server that does so, too, and is cut off from it, a reader who stands
//! still at times, and time. The cores are those that are shipped; database and server are plain models of
//! MariaDB and memcached. A plain set in place of a token shows what tokens are for.

use super::*;
use crate::entry::Entry;
use crate::fence::{Ahead, Fence};
use crate::gate::{Change, Gate, Mark};
use crate::mariadb::{At, Seen};
use crate::position::{Gtid, Gtids, Place, Position};
use crate::send::{Due, Sender, What};
use holdfast_cache_client::lookaside::standing::{BELIEVED_NS, Standing};
use holdfast_env::{Rng, SeededRng};
use std::collections::VecDeque;

const S: u64 = 1_000_000_000;
const LEASE_NS: u64 = LEASE_S_MIN as u64 * S;
/// What holds, from the moment at which a row is visible in the database.
const BOUND_NS: u64 = 2 * LEASE_NS + BELIEVED_NS;
/// When a request is given up, and its connection.
const PATIENCE_NS: u64 = S / 2;

#[derive(Clone, Debug)]
enum Request {
    Ask,
    Drop(Due),
    /// For an item of this number, or whatever is there.
    Store(Option<u64>),
}

struct Lease {
    cas: u64,
    has_value: bool,
    expires_ns: u64,
}

/// A cache of one key.
struct Server {
    /// As of its last tick.
    clock_ns: u64,
    is_frozen: bool,
    /// Requests in its sockets, with the connection of each.
    requests: VecDeque<(u64, Request)>,
    lease: Option<Lease>,
    /// Which row is cached.
    row: usize,
    cas: u64,
}

impl Server {
    fn lease(&mut self) -> Option<&mut Lease> {
        self.lease.take_if(|lease| lease.expires_ns <= self.clock_ns);
        self.lease.as_mut()
    }

    fn put(&mut self, has_value: bool) -> u64 {
        self.cas += 1;
        let expires_ns = self.clock_ns + LEASE_NS;
        self.lease = Some(Lease { cas: self.cas, has_value, expires_ns });
        self.cas
    }

    fn ask(&mut self) -> u64 {
        match self.lease() {
            Some(lease) => lease.cas,
            None => self.put(false),
        }
    }

    fn store(&mut self, wanted: Option<u64>) -> bool {
        let found = self.lease().map(|lease| lease.cas);
        let is_good = wanted.is_none() || wanted == found;
        if is_good {
            self.put(true);
        }
        is_good
    }
}

/// The database, and what one life of the thread that watches it has of its log. Row 0 is there from the
/// beginning; each transaction, numbered from 1, makes the next one.
struct Database {
    /// When each row became visible.
    rows_ns: Vec<u64>,
    /// Transactions in its log, some of which nobody sees yet.
    logged: u64,
    /// Its log is not sent.
    is_behind: bool,
    /// Transactions that were read.
    read: u64,
    gate: Gate<At>,
    position: Position,
    ahead: Ahead,
}

fn gtids(sequence: u64) -> Gtids {
    Gtids::parse(&format!("0-1-{sequence}")).unwrap()
}

impl Database {
    fn new() -> Database {
        let position = Position::MariaDb(gtids(0));
        let (gate, ahead) = (Gate::default(), Ahead::default());
        Database { rows_ns: vec![0], logged: 0, is_behind: false, read: 0, gate, position, ahead }
    }

    /// The row that a SELECT sees.
    fn row(&self) -> usize {
        self.rows_ns.len() - 1
    }

    fn show(&mut self, now_ns: u64) {
        if self.row() < self.logged as usize {
            self.rows_ns.push(now_ns);
        }
    }

    /// The watching thread begins anew behind what the topic has.
    fn watch_anew(&mut self, topic: u64) {
        (self.read, self.position) = (topic, Position::MariaDb(gtids(topic)));
        (self.gate, self.ahead) = (Gate::default(), Ahead::default());
    }

    fn read_next(&mut self) {
        if !self.is_behind && self.read < self.logged {
            self.read += 1;
            let gtid = Gtid { domain: 0, server: 1, sequence: self.read };
            let mark = At { gtid, end: Place::default() };
            self.gate.push(Change { mark, changed_s: 0, keys: None });
        }
    }

    /// The changes that go to the topic.
    fn pass(&mut self) -> u64 {
        let visible = self.gate.pass(&[Seen::Applied(gtids(self.row() as u64))]);
        visible.iter().for_each(|change| change.mark.pass(&mut self.position));
        visible.len() as u64
    }
}

struct World {
    rng: SeededRng,
    now_ns: u64,
    with_tokens: bool,
    server: Server,
    database: Database,
    /// Entries of the topic: each is the change that made the row of its number plus one.
    topic: u64,
    fence: Fence,
    is_frozen: bool,
    grace_ns: u64,
    /// Invalidator and server.
    is_cut: bool,
    ended: u64,
    /// What is not answered yet, and since when.
    open: Option<u64>,
    /// Numbers are asked for.
    is_asking: bool,
    sender: Sender,
    leases: Leases,
    reader: Standing,
    /// A look that is not answered yet.
    look_ns: Option<u64>,
    is_left_out: bool,
    seen: BTreeMap<&'static str, u64>,
}

impl World {
    fn new(seed: u64, with_tokens: bool, grace_s: u32) -> World {
        let known = [("s".to_owned(), Index(0))];
        let server = Server {
            clock_ns: 0,
            is_frozen: false,
            requests: VecDeque::new(),
            lease: None,
            row: 0,
            cas: 0,
        };
        World {
            rng: SeededRng::new(seed),
            now_ns: 0,
            with_tokens,
            server,
            database: Database::new(),
            topic: 0,
            fence: Fence::default(),
            is_frozen: false,
            grace_ns: u64::from(grace_s) * S,
            is_cut: false,
            ended: 0,
            open: None,
            is_asking: false,
            sender: Sender::new([(0, "s".to_owned())], &known, Index(0), Index(0)),
            leases: Leases::new(LEASE_S_MIN, grace_s),
            reader: Standing::new(1),
            look_ns: None,
            is_left_out: false,
            seen: BTreeMap::new(),
        }
    }

    fn draw(&self, below: u64) -> u64 {
        self.rng.next_u64() % below
    }

    fn count(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    fn step(&mut self) -> Result<(), String> {
        match self.draw(60) {
            0 => self.freeze_or_thaw(),
            1 => self.is_cut = !self.is_cut && self.draw(4) == 0,
            2 => {
                // It is empty, and filled with what is there now.
                self.server.requests.clear();
                (self.server.lease, self.server.row) = (None, self.database.row());
                self.give_up();
            }
            3 => {
                self.is_frozen = !self.is_frozen && self.draw(4) == 0;
                if self.is_frozen && self.draw(2) == 0 {
                    self.pass_by(100 * S);
                }
            }
            4 => self.database.is_behind = !self.database.is_behind && self.draw(4) == 0,
            5 => self.database.watch_anew(self.topic),
            6..8 => self.database.logged += 1,
            8..14 => self.database.show(self.now_ns),
            14..22 => self.pass_by(S / 4),
            22..30 => self.serve(),
            30..38 if !self.is_frozen => self.watch(),
            38..50 if !self.is_frozen => self.invalidate(),
            30..50 => {}
            _ => return self.read(),
        }
        Ok(())
    }

    /// In the driver's order.
    fn watch(&mut self) {
        if let Some(asked_ns) = self.database.ahead.to_ask(&self.fence) {
            let end = Position::MariaDb(gtids(self.database.logged));
            self.database.ahead.ends(asked_ns, end);
        }
        self.database.ahead.passed(&self.database.position, &self.fence);
        match self.draw(2) {
            0 => (0..self.draw(4)).for_each(|_| self.database.read_next()),
            _ => self.topic += self.database.pass(),
        }
    }

    fn freeze_or_thaw(&mut self) {
        self.server.is_frozen = !self.server.is_frozen;
        if self.server.is_frozen && self.draw(2) == 0 {
            self.now_ns += self.draw(100 * S);
        } else if !self.server.is_frozen && self.draw(2) == 0 {
            // What lies in its sockets is carried out before its clock is set.
            while !self.server.requests.is_empty() {
                self.serve();
            }
        }
        if !self.server.is_frozen {
            self.server.clock_ns = self.now_ns;
        }
    }

    fn pass_by(&mut self, most_ns: u64) {
        self.now_ns += self.draw(most_ns);
        if !self.server.is_frozen {
            self.server.clock_ns = self.now_ns;
        }
    }

    fn give_up(&mut self) {
        (self.ended, self.open) = (self.ended + 1, None);
        // Numbers that were not given are none, and the driver goes on behind them.
        if std::mem::take(&mut self.is_asking) {
            self.leases.given(self.now_ns, []);
            self.fence.ask(self.now_ns);
        }
    }

    fn serve(&mut self) {
        if self.server.is_frozen {
            return;
        }
        let Some((connection, request)) = self.server.requests.pop_front() else { return };
        let is_heard = connection == self.ended && !self.is_cut;
        if is_heard {
            self.open = None;
        }
        match request {
            Request::Ask => {
                let token = Token { cas: self.server.ask(), ended: connection };
                if is_heard {
                    self.leases.given(self.now_ns, [(0, Some(token))]);
                    self.is_asking = false;
                    self.fence.ask(self.now_ns);
                }
            }
            Request::Drop(due) => {
                self.server.row = self.database.row();
                if due.what == What::Empty {
                    self.server.lease = None;
                }
                if is_heard {
                    self.sender.confirmed(&due);
                }
            }
            Request::Store(wanted) => {
                let is_stored = self.server.store(wanted);
                self.count(match is_stored {
                    true => "given",
                    false => "refused",
                });
            }
        }
    }

    fn send(&mut self, request: Request) {
        if self.is_cut {
            return self.give_up();
        }
        self.server.requests.push_back((self.ended, request));
        self.open = Some(self.now_ns);
    }

    fn invalidate(&mut self) {
        if let Some(since_ns) = self.open {
            if self.now_ns - since_ns >= PATIENCE_NS {
                self.give_up();
            }
            return;
        }
        // In the driver's order.
        if self.leases.is_fenced(self.fence.answered_ns()) {
            self.leases.ends(Index(self.topic));
        }
        if let Some((_, token)) = self.leases.to_give(|server| self.sender.told(server)).pop() {
            if token.ended == self.ended {
                self.send(Request::Store(self.with_tokens.then_some(token.cas)));
            }
        } else if self.leases.is_due(self.now_ns) {
            if self.leases.is_unfenced() {
                self.count("unfenced");
            }
            self.leases.given(self.now_ns, []);
            self.is_asking = true;
            self.send(Request::Ask);
        } else if let Some(due) = self.sender.due().pop() {
            self.send(Request::Drop(due));
        } else {
            while self.sender.next() < Index(self.topic) {
                let (position, keys) = (Position::MariaDb(Gtids::default()), vec![b"k".to_vec()]);
                let entry = Entry::Keys { position, changed_s: 0, keys };
                self.sender.push(self.sender.next(), &entry, |_| vec![0]);
            }
        }
    }

    /// The reader looks, if it has to, or takes what is cached.
    fn read(&mut self) -> Result<(), String> {
        let now_ns = self.now_ns;
        if self.server.is_frozen {
            // A look that waits is answered when it thaws.
            self.look_ns.get_or_insert(now_ns);
            return Ok(());
        }
        if self.look_ns.is_some() || self.reader.is_due(0, self.ended, now_ns) {
            let has_lease = self.server.lease().is_some_and(|lease| lease.has_value);
            self.reader.looked(0, has_lease, self.ended, self.look_ns.take().unwrap_or(now_ns));
        }
        if !self.reader.counts(0, now_ns) {
            self.is_left_out = true;
            self.count("left out");
            return Ok(());
        }
        if std::mem::take(&mut self.is_left_out) {
            self.count("back");
        }
        let next = self.database.rows_ns.get(self.server.row + 1);
        let Some(since_ns) = next.copied() else { return Ok(()) };
        self.count("behind");
        match now_ns - since_ns {
            old_ns if old_ns < BOUND_NS + self.grace_ns => {
                if old_ns > BOUND_NS {
                    self.count("behind by grace");
                }
                Ok(())
            }
            old_ns => Err(format!("a row was read that was old for {} ms", old_ns / 1_000_000)),
        }
    }
}

fn run(
    seed: u64,
    with_tokens: bool,
    grace_s: u32,
    seen: &mut BTreeMap<&'static str, u64>,
) -> Result<(), String> {
    let mut world = World::new(seed, with_tokens, grace_s);
    let ended = (0..4000).try_for_each(|_| world.step());
    for (what, times) in world.seen {
        *seen.entry(what).or_default() += times;
    }
    ended.map_err(|e| format!("seed {seed}: {e}"))
}

/// An invalidator that was frozen, or whose database did not send its log, gave leases for what the topic had: a
/// reader that had loaded new rows got old ones again.
#[test]
fn leases_bound_how_old_a_value_is_in_any_order_and_plain_sets_do_not() {
    let mut seen = BTreeMap::new();
    for seed in 0..1000 {
        run(seed, true, 0, &mut seen).unwrap();
    }
    for what in ["given", "refused", "left out", "back", "behind", "unfenced"] {
        assert!(seen.get(what).is_some_and(|times| *times > 100), "never {what}: {seen:?}");
    }
    let wrong = (0..1000).filter(|seed| run(*seed, false, 0, &mut seen).is_err()).count();
    assert!(wrong > 0, "the test sees what it is for");
}

#[test]
fn a_grace_lets_values_be_old_for_as_much_longer_and_no_more() {
    let mut seen = BTreeMap::new();
    for seed in 0..1000 {
        run(seed, true, 60, &mut seen).unwrap();
    }
    assert!(seen.get("behind by grace").is_some_and(|times| *times > 20), "{seen:?}");
}

#[test]
fn who_lacks_something_of_before_its_number_or_is_to_be_emptied_gets_no_lease() {
    let token = Some(Token { cas: 7, ended: 0 });
    let mut leases = Leases::new(8, 0);
    assert!(leases.is_due(0) && !Leases::new(0, 0).is_due(0));
    leases.given(10 * S, [(0, token), (1, token), (2, token), (3, None)]);
    assert!(leases.to_give(|_| Some(Index(9))).is_empty(), "nobody knows the topic's end");
    assert!(leases.is_fenced(Some(10 * S)));
    leases.ends(Index(5));
    assert!(!leases.is_fenced(Some(10 * S)), "the topic is asked once");
    assert!(!leases.is_due(12 * S - 1) && leases.is_due(12 * S));
    let told = |server| [Some(Index(4)), Some(Index(5)), None][server as usize];
    let servers = |given: Vec<(u32, Token)>| given.iter().map(|(of, _)| *of).collect::<Vec<_>>();
    assert_eq!(servers(leases.to_give(told)), [1]);
    assert_eq!(servers(leases.to_give(|_| Some(Index(5)))), [0, 2], "each once");
    leases.given(12 * S, [(0, token)]);
    leases.given(14 * S, []);
    leases.ends(Index(9));
    assert!(leases.to_give(|_| Some(Index(9))).is_empty(), "an old number is not kept");
}

/// Numbers that wait for the database were asked for again each quarter of a lease: a log that was behind by more
/// than that would never have given one.
#[test]
fn numbers_are_kept_until_the_log_was_read_or_the_lease_would_be_over() {
    let mut leases = Leases::new(8, 0);
    leases.given(10 * S, []);
    assert!(leases.is_unfenced() && !leases.is_due(18 * S - 1) && leases.is_due(18 * S));
    assert!(!leases.is_fenced(None) && !leases.is_fenced(Some(10 * S - 1)));
    assert!(leases.is_fenced(Some(10 * S)));
    leases.ends(Index(5));
    assert!(!leases.is_unfenced() && leases.is_due(17 * S), "at once, where the log was behind");
    let mut leases = Leases::new(8, 60);
    leases.given(100 * S, []);
    assert!(!leases.is_fenced(None) && !leases.is_fenced(Some(40 * S - 1)));
    assert!(leases.is_fenced(Some(40 * S)), "within the grace");
}
