//! A small world in orders that a seed draws: a database whose log runs ahead of what its replica shows, two
//! invalidators that follow it and begin anew at any time, a cache and its gutter that go and start again, and readers of
//! the replica who fill them. What decides is what is shipped (gate, entries, sender, the servers of a key, the rules of
//! a lookup); database, topic and the servers are plain models.

use holdfast_base::ids::Index;
use holdfast_cache_client::Member;
use holdfast_cache_client::lookaside::lookup::{Filled, Item, Lookup, Rules};
use holdfast_cache_client::route::{PoolPlan, RoutePlan};
use holdfast_env::{Rng, SeededRng};
use holdfast_invalidate::entry::Entry;
use holdfast_invalidate::gate::{Change, Gate, Mark};
use holdfast_invalidate::mariadb::{At, Seen};
use holdfast_invalidate::position::{Gtid, Gtids, Place, Position};
use holdfast_invalidate::rings;
use holdfast_invalidate::send::{Sender, What};
use std::collections::{BTreeMap, BTreeSet};

const KEY: &[u8] = b"item:1";
const MS: u64 = 1_000_000;
const SERVERS: usize = 2;
const RULES: Rules = Rules { gets_first: true, patience_ns: 3 * MS, takes_stale: false };
const STEPS: usize = 1500;
/// Of them, the last, in which nobody writes.
const REST_STEPS: usize = 150;
const SEEDS: u64 = 200;

/// What a server has of the one key.
#[derive(Clone)]
struct Stored {
    data: Vec<u8>,
    cas: u64,
    is_promised: bool,
}

#[derive(Default)]
struct Server {
    item: Option<Stored>,
    cas: u64,
    /// Nobody reaches it.
    is_away: bool,
    /// Connections to it that have ended.
    ended: u64,
    /// Of the last transaction whose invalidation was confirmed here.
    confirmed: u64,
}

impl Server {
    /// As memcached's `mg KEY v c N`; whether its asker may fill.
    fn ask(&mut self) -> (Stored, bool) {
        self.cas += 1;
        let (cas, is_new) = (self.cas, self.item.is_none());
        let promise = Stored { data: Vec::new(), cas, is_promised: false };
        let item = self.item.get_or_insert(promise);
        let before = item.clone();
        item.is_promised |= is_new;
        (before, is_new)
    }

    fn store(&mut self, data: &[u8], wanted: Option<u64>) -> Filled {
        if wanted.is_some_and(|cas| self.item.as_ref().is_none_or(|item| item.cas != cas)) {
            return Filled::Refused;
        }
        self.cas += 1;
        self.item = Some(Stored { data: data.to_vec(), cas: self.cas, is_promised: false });
        Filled::Stored
    }
}

/// One life of an invalidator, both threads.
struct Invalidator {
    read: u64,
    gate: Gate<At>,
    position: Position,
    sender: Option<Sender>,
}

struct Reader {
    lookup: Lookup,
    /// Which was asked last.
    server: usize,
    /// Its key's own server did not answer it.
    has_died: bool,
    /// Rows of before these must not be returned, by the server that they come from.
    least: [u64; SERVERS],
    is_reading: bool,
}

struct World {
    rng: SeededRng,
    plan: RoutePlan,
    with_tokens: bool,
    now_ns: u64,
    /// Transactions in the log, and those that the replica shows: each makes the row of its number.
    logged: u64,
    shown: u64,
    /// Nobody writes any more: what comes later makes up for nothing.
    is_over: bool,
    /// The replica applies nothing.
    is_held: bool,
    topic: Vec<Entry>,
    /// Up to which transaction each entry of the topic is.
    up_to: Vec<u64>,
    /// Transactions that the topic has.
    covered: BTreeSet<u64>,
    servers: [Server; SERVERS],
    invalidators: [Invalidator; 2],
    readers: [Reader; 3],
    seen: BTreeMap<&'static str, u64>,
}

fn gtids(sequence: u64) -> Gtids {
    Gtids::parse(&format!("0-1-{sequence}")).unwrap()
}

fn plan() -> RoutePlan {
    let pool = |name: &str| {
        let servers = vec![Member::parse(&format!("{name}:1")).unwrap()];
        PoolPlan { name: name.to_owned(), servers, ..PoolPlan::default() }
    };
    let main = PoolPlan { gutter: Some("spare".to_owned()), ..pool("main") };
    RoutePlan::new(vec![main, pool("spare")], Vec::new(), "main", 10).unwrap()
}

impl World {
    fn new(seed: u64, with_tokens: bool) -> World {
        let invalidator = || Invalidator {
            read: 0,
            gate: Gate::default(),
            position: Position::MariaDb(gtids(0)),
            sender: None,
        };
        let reader = || Reader {
            lookup: Lookup::new(1, RULES, 0),
            server: 0,
            has_died: false,
            least: [0; SERVERS],
            is_reading: false,
        };
        World {
            rng: SeededRng::new(seed),
            plan: plan(),
            with_tokens,
            now_ns: 0,
            logged: 0,
            shown: 0,
            is_over: false,
            is_held: false,
            // As it is when a pool is new to its topic.
            topic: vec![Entry::Empty { position: Position::MariaDb(gtids(0)), changed_s: 0 }],
            up_to: vec![0],
            covered: BTreeSet::from([0]),
            servers: Default::default(),
            invalidators: [invalidator(), invalidator()],
            readers: [reader(), reader(), reader()],
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
        let number = self.draw(2) as usize;
        match self.draw(80) {
            0 => self.begin_anew(number),
            60 => (0..2).for_each(|number| self.begin_anew(number)),
            61 => self.is_held = !self.is_held && self.draw(4) == 0,
            1 => {
                let of = &mut self.servers[number];
                (of.is_away, of.ended) = (!of.is_away, of.ended + 1);
            }
            // A process that starts has nothing.
            2 => {
                let (cas, ended) = (0, self.servers[number].ended + 1);
                self.servers[number] = Server { cas, ended, ..Server::default() };
            }
            3..9 if self.is_over => {}
            3..9 => self.logged += 1,
            9..20 if self.is_held => {}
            9..20 => self.shown = (self.shown + 1).min(self.logged),
            20..36 => self.watch(number),
            36..60 => self.deliver(number),
            _ => return self.read(self.draw(3) as usize),
        }
        Ok(())
    }

    /// Another life of an invalidator: it goes on behind what the topic says.
    fn begin_anew(&mut self, number: usize) {
        let read = *self.up_to.iter().rev().find(|up_to| **up_to != u64::MAX).unwrap();
        let position = Position::MariaDb(gtids(read));
        self.invalidators[number] =
            Invalidator { read, gate: Gate::default(), position, sender: None };
    }

    /// Reads the log, and brings what is visible to the topic.
    fn watch(&mut self, number: usize) {
        let is_unknown = self.draw(20) == 0;
        let of = &mut self.invalidators[number];
        if of.read < self.logged {
            of.read += 1;
            let gtid = Gtid { domain: 0, server: 1, sequence: of.read };
            let keys = (!is_unknown).then(|| vec![KEY.to_vec()]);
            of.gate.push(Change { mark: At { gtid, end: Place::default() }, changed_s: 0, keys });
        }
        let visible = of.gate.pass(&[Seen::Applied(gtids(self.shown))]);
        let waits = !of.gate.is_empty();
        for change in visible {
            let sequence = change.mark.gtid.sequence;
            let of = &mut self.invalidators[number];
            change.mark.pass(&mut of.position);
            let position = of.position.clone();
            self.topic.push(match change.keys {
                Some(keys) => Entry::Keys { position, changed_s: 0, keys },
                None => Entry::Empty { position, changed_s: 0 },
            });
            self.up_to.push(sequence);
            if !self.covered.insert(sequence) {
                self.count("overlapped");
            }
        }
        if waits {
            self.count("logged and not visible");
        }
    }

    /// As the driver begins: from the last entry that says how far servers have confirmed.
    fn sender(&self) -> Sender {
        let confirmed = self.topic.iter().rev().find_map(|entry| match entry {
            Entry::Confirmed { servers, .. } => Some(servers.clone()),
            _ => None,
        });
        let servers = rings::servers(&self.plan, 0).into_iter();
        let servers = servers.map(|of| (of, self.plan.members[of as usize].to_string()));
        let end = Index(self.topic.len() as u64);
        Sender::new(servers, &confirmed.unwrap_or_default(), Index(0), end)
    }

    fn deliver(&mut self, number: usize) {
        let mut sender = match self.invalidators[number].sender.take() {
            Some(sender) => sender,
            None => self.sender(),
        };
        match self.draw(6) {
            0..2 => {
                for _ in 0..self.draw(16) {
                    let Some(entry) = self.topic.get(sender.next().0 as usize) else { break };
                    sender.push(sender.next(), entry, |key| rings::holders(&self.plan, 0, key));
                }
            }
            2 => {
                let servers = sender.positions();
                self.topic.push(Entry::Confirmed { servers, rings: Vec::new() });
                self.up_to.push(u64::MAX);
            }
            _ => self.tell(&mut sender, self.draw(8) == 0),
        }
        self.invalidators[number].sender = Some(sender);
    }

    /// One server what it lacks; its answer may be lost.
    fn tell(&mut self, sender: &mut Sender, is_lost: bool) {
        let due = sender.due();
        if due.is_empty() {
            return;
        }
        let due = &due[self.draw(due.len() as u64) as usize];
        let of = &mut self.servers[due.server as usize];
        if of.is_away {
            return;
        }
        let is_emptied = due.what == What::Empty;
        if is_emptied || matches!(&due.what, What::Keys(keys) if !keys.is_empty()) {
            of.item = None;
        }
        if !is_lost {
            sender.confirmed(due);
            let told = sender.told(due.server).map_or(0, |next| next.0 as usize);
            let up_to = self.up_to[..told].iter().filter(|up_to| **up_to != u64::MAX);
            of.confirmed = of.confirmed.max(up_to.copied().max().unwrap_or(0));
        }
        if is_emptied {
            self.count("emptied");
        }
    }

    /// The next thing that a reader does, who reads rows from the replica.
    fn read(&mut self, number: usize) -> Result<(), String> {
        let with_tokens = self.with_tokens;
        if !self.readers[number].is_reading {
            let least = std::array::from_fn(|server| self.servers[server].confirmed);
            let mut lookup = Lookup::new(1, RULES, self.now_ns);
            // What is known to be dead is not asked at all; it may also die later.
            if self.servers[0].is_away && self.draw(2) == 0 {
                lookup.ask_only(0);
            }
            let (server, has_died, is_reading) = (0, false, true);
            self.readers[number] = Reader { lookup, server, has_died, least, is_reading };
            return Ok(());
        }
        let reader = &mut self.readers[number];
        if !reader.lookup.to_get().is_empty() {
            let of = &self.servers[0];
            let found = of.item.as_ref().filter(|_| !of.is_away);
            reader.lookup.got(0, found.map(|item| (&item.data[..], 0)), self.now_ns);
        } else {
            if let Some(at_ns) = reader.lookup.next_ask_ns() {
                self.now_ns = self.now_ns.max(at_ns);
            }
            if !reader.lookup.to_ask(self.now_ns).is_empty() {
                self.ask(number);
            } else if !reader.lookup.to_load().is_empty() {
                reader.lookup.loaded(0, Some(self.shown.to_string().into_bytes()));
            } else {
                let fill = reader.lookup.fills().pop().expect("it is loaded");
                let of = &mut self.servers[fill.server as usize];
                let is_over = of.is_away || fill.ended != of.ended;
                let wanted = fill.cas.filter(|_| with_tokens);
                let filled = match fill.value {
                    _ if is_over => Filled::Refused,
                    Some(value) => of.store(value, wanted),
                    None => panic!("a row is always there"),
                };
                reader.lookup.filled(0, filled);
                if filled == Filled::Refused && !is_over {
                    self.count("refused");
                }
            }
        }
        self.judge(number)
    }

    /// Asks the key's own server, or the gutter where that is known to be away.
    fn ask(&mut self, number: usize) {
        let is_away = self.servers[0].is_away;
        // Who has not heard of it asks the dead.
        let knows = self.readers[number].has_died || self.draw(2) == 0;
        let server = usize::from(is_away && knows);
        let (reader, of) = (&mut self.readers[number], &mut self.servers[server]);
        reader.server = server;
        reader.lookup.asked_at(0, server as u32, server == 1);
        if server == 0 && is_away {
            reader.has_died = true;
            reader.lookup.died(0, of.ended, self.now_ns);
            return self.count("moved");
        }
        let said = (!of.is_away).then(|| of.ask());
        let item = said.as_ref().map(|(item, is_won)| Item {
            data: &item.data,
            flags: 0,
            cas: item.cas,
            is_won: *is_won,
            is_promised: item.is_promised,
            is_stale: false,
        });
        reader.lookup.answered(0, item, of.ended, self.now_ns);
        if server == 1 {
            self.count("gutter");
        }
    }

    fn judge(&mut self, number: usize) -> Result<(), String> {
        let reader = &mut self.readers[number];
        if !reader.lookup.is_done() {
            return Ok(());
        }
        reader.is_reading = false;
        let lookup = std::mem::replace(&mut reader.lookup, Lookup::new(1, RULES, 0));
        let value = lookup.into_values().pop().flatten().unwrap_or_default();
        let (row, least) = (row_of(&value), reader.least[reader.server]);
        match row < least {
            true => Err(format!("row {row} was read after row {least} was confirmed")),
            false => Ok(()),
        }
    }

    /// Faults end, the replica shows everything, and all come to their ends: what is cached is the row.
    fn come_to_rest(&mut self) -> Result<(), String> {
        self.shown = self.logged;
        if self.draw(2) == 0 {
            (0..2).for_each(|number| self.begin_anew(number));
        }
        for of in &mut self.servers {
            (of.is_away, of.ended) = (false, of.ended + 1);
        }
        for number in 0..self.readers.len() {
            while self.readers[number].is_reading {
                self.read(number)?;
            }
        }
        while self.invalidators[0].read < self.logged {
            self.watch(0);
        }
        // What was read before, and waited.
        self.watch(0);
        let mut sender = match self.invalidators[0].sender.take() {
            Some(sender) => sender,
            None => self.sender(),
        };
        while let Some(entry) = self.topic.get(sender.next().0 as usize) {
            sender.push(sender.next(), entry, |key| rings::holders(&self.plan, 0, key));
        }
        while !sender.due().is_empty() {
            self.tell(&mut sender, false);
        }
        let missing: Vec<u64> = (0..=self.logged).filter(|of| !self.covered.contains(of)).collect();
        if !missing.is_empty() {
            return Err(format!("transactions {missing:?} are not in the topic"));
        }
        for (number, of) in self.servers.iter().enumerate() {
            let item = of.item.as_ref().filter(|item| !item.data.is_empty());
            if let Some(row) = item.map(|item| row_of(&item.data)).filter(|row| *row != self.logged)
            {
                return Err(format!("server {number} keeps row {row} of {}", self.logged));
            }
        }
        Ok(())
    }
}

fn row_of(value: &[u8]) -> u64 {
    String::from_utf8_lossy(value).parse().unwrap()
}

fn run(seed: u64, with_tokens: bool, seen: &mut BTreeMap<&'static str, u64>) -> Result<(), String> {
    let mut world = World::new(seed, with_tokens);
    let steps = (0..STEPS).try_for_each(|number| {
        world.is_over = number + REST_STEPS > STEPS;
        world.is_held &= !world.is_over;
        world.step()
    });
    let ended = steps.and_then(|()| world.come_to_rest());
    for (what, times) in world.seen {
        *seen.entry(what).or_default() += times;
    }
    ended.map_err(|e| format!("seed {seed}: {e}"))
}

#[test]
fn when_all_is_quiet_every_value_is_its_row_and_none_is_older_than_what_was_confirmed() {
    let mut seen = BTreeMap::new();
    for seed in 0..SEEDS {
        run(seed, true, &mut seen).unwrap();
    }
    for what in ["refused", "logged and not visible", "emptied", "overlapped", "gutter", "moved"] {
        assert!(seen.get(what).is_some_and(|times| *times > 50), "never {what}: {seen:?}");
    }
    let wrong = (0..SEEDS).filter(|seed| run(*seed, false, &mut seen).is_err()).count();
    assert!(wrong > 0, "the test sees what it is for");
}
