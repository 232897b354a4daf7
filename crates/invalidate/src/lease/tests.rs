//! Leases in orders that a seed draws: an invalidator, a server that freezes, starts anew and is cut off from it,
//! a reader who stands still at times, and time. The cores are those that are shipped; the server is a plain
//! model of memcached. A plain set in place of a token shows what tokens are for.

use super::*;
use crate::entry::Entry;
use crate::position::{Gtids, Position};
use crate::send::{Due, Sender, What};
use holdfast_cache_client::lookaside::standing::{BELIEVED_NS, Standing};
use holdfast_env::{Rng, SeededRng};
use std::collections::VecDeque;

const S: u64 = 1_000_000_000;
const LEASE_NS: u64 = LEASE_S_MIN as u64 * S;
/// What holds.
const BOUND_NS: u64 = 2 * LEASE_NS + BELIEVED_NS;
/// When a request is given up, and its connection.
const PATIENCE_NS: u64 = S / 2;

#[derive(Clone, Debug)]
enum Request {
    Ask {
        asked_ns: u64,
    },
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

struct World {
    rng: SeededRng,
    now_ns: u64,
    with_tokens: bool,
    server: Server,
    /// When each row was made, and its change is in the topic.
    rows_ns: Vec<u64>,
    /// Invalidator and server.
    is_cut: bool,
    ended: u64,
    /// What is not answered yet, and since when.
    open: Option<u64>,
    sender: Sender,
    leases: Leases,
    reader: Standing,
    /// A look that is not answered yet.
    look_ns: Option<u64>,
    is_left_out: bool,
    seen: BTreeMap<&'static str, u64>,
}

impl World {
    fn new(seed: u64, with_tokens: bool) -> World {
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
            rows_ns: vec![0],
            is_cut: false,
            ended: 0,
            open: None,
            sender: Sender::new([(0, "s".to_owned())], &known, Index(0), Index(0)),
            leases: Leases::new(LEASE_S_MIN),
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

    fn end(&self) -> Index {
        Index(self.rows_ns.len() as u64 - 1)
    }

    fn step(&mut self) -> Result<(), String> {
        match self.draw(40) {
            0 => self.freeze_or_thaw(),
            1 => self.is_cut = !self.is_cut,
            2 => {
                // It is empty, and filled with what is there now.
                self.server.requests.clear();
                (self.server.lease, self.server.row) = (None, self.rows_ns.len() - 1);
                self.give_up();
            }
            3..6 => self.rows_ns.push(self.now_ns),
            6..14 => self.pass(),
            14..22 => self.serve(),
            22..32 => self.invalidate(),
            _ => return self.read(),
        }
        Ok(())
    }

    fn freeze_or_thaw(&mut self) {
        self.server.is_frozen = !self.server.is_frozen;
        if self.server.is_frozen && self.draw(2) == 0 {
            self.now_ns += self.draw(100) * S;
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

    fn pass(&mut self) {
        self.now_ns += self.draw(S);
        if !self.server.is_frozen {
            self.server.clock_ns = self.now_ns;
        }
    }

    fn give_up(&mut self) {
        (self.ended, self.open) = (self.ended + 1, None);
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
            Request::Ask { asked_ns } => {
                let token = Token { cas: self.server.ask(), ended: connection };
                if is_heard {
                    self.leases.asked(asked_ns, [(0, Some(token))], self.end());
                }
            }
            Request::Drop(due) => {
                self.server.row = self.rows_ns.len() - 1;
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
        if let Some((_, token)) = self.leases.to_give(|server| self.sender.told(server)).pop() {
            if token.ended == self.ended {
                self.send(Request::Store(self.with_tokens.then_some(token.cas)));
            }
        } else if self.leases.is_due(self.now_ns) {
            let asked_ns = self.now_ns;
            self.leases.asked(asked_ns, [], self.end());
            self.send(Request::Ask { asked_ns });
        } else if let Some(due) = self.sender.due().pop() {
            self.send(Request::Drop(due));
        } else {
            while self.sender.next() < self.end() {
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
        let Some(since_ns) = self.rows_ns.get(self.server.row + 1).copied() else { return Ok(()) };
        self.count("behind");
        match now_ns - since_ns {
            ..BOUND_NS => Ok(()),
            old_ns => Err(format!("a row was read that was old for {} ms", old_ns / 1_000_000)),
        }
    }
}

fn run(seed: u64, with_tokens: bool, seen: &mut BTreeMap<&'static str, u64>) -> Result<(), String> {
    let mut world = World::new(seed, with_tokens);
    let ended = (0..2000).try_for_each(|_| world.step());
    for (what, times) in world.seen {
        *seen.entry(what).or_default() += times;
    }
    ended.map_err(|e| format!("seed {seed}: {e}"))
}

#[test]
fn leases_bound_how_old_a_value_is_in_any_order_and_plain_sets_do_not() {
    let mut seen = BTreeMap::new();
    for seed in 0..1000 {
        run(seed, true, &mut seen).unwrap();
    }
    for what in ["given", "refused", "left out", "back", "behind"] {
        assert!(seen.get(what).is_some_and(|times| *times > 100), "never {what}: {seen:?}");
    }
    let wrong = (0..1000).filter(|seed| run(*seed, false, &mut seen).is_err()).count();
    assert!(wrong > 0, "the test sees what it is for");
}

#[test]
fn who_lacks_something_of_before_its_number_or_is_to_be_emptied_gets_no_lease() {
    let token = Some(Token { cas: 7, ended: 0 });
    let mut leases = Leases::new(8);
    assert!(leases.is_due(0) && !Leases::new(0).is_due(0));
    leases.asked(10 * S, [(0, token), (1, token), (2, token), (3, None)], Index(5));
    assert!(!leases.is_due(12 * S - 1) && leases.is_due(12 * S));
    let told = |server| [Some(Index(4)), Some(Index(5)), None][server as usize];
    let servers = |given: Vec<(u32, Token)>| given.iter().map(|(of, _)| *of).collect::<Vec<_>>();
    assert_eq!(servers(leases.to_give(told)), [1]);
    assert_eq!(servers(leases.to_give(|_| Some(Index(5)))), [0, 2], "each once");
    leases.asked(12 * S, [(0, token)], Index(9));
    leases.asked(14 * S, [], Index(9));
    assert!(leases.to_give(|_| Some(Index(9))).is_empty(), "an old number is not kept");
}
