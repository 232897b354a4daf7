//! The rules in every order: two readers, a writer who invalidates, and a fault, step by step, against a
//! plain model of a server and a database. What plain gets and sets store for good in some of these orders
//! is what the rules are for, so those must be seen to do it.

use super::*;
use std::collections::{BTreeMap, BTreeSet};

const MS: u64 = 1_000_000;
const RULES: Rules = Rules { gets_first: false, patience_ns: 100 * MS, takes_stale: false };

#[derive(Clone, Debug)]
struct Stored {
    data: Vec<u8>,
    flags: u32,
    cas: u64,
    is_promised: bool,
    is_stale: bool,
}

/// What memcached's meta commands do to one key.
#[derive(Clone, Debug)]
struct Server {
    item: Option<Stored>,
    next_cas: u64,
}

impl Server {
    /// As a process that has just begun: it counts from the beginning.
    fn new() -> Server {
        Server { item: None, next_cas: 1 }
    }

    fn cas(&mut self) -> u64 {
        self.next_cas += 1;
        self.next_cas
    }

    /// `mg k v f c N`: the item, whether its asker won, and its cas.
    fn ask(&mut self) -> (Stored, bool) {
        let cas = self.cas();
        let mut has_made = false;
        let item = self.item.get_or_insert_with(|| {
            has_made = true;
            Stored { data: Vec::new(), flags: 0, cas, is_promised: false, is_stale: false }
        });
        let before = item.clone();
        let wins = has_made || item.is_stale && !item.is_promised;
        item.is_promised |= wins;
        (before, wins)
    }

    /// `ms k C`, or a set if there is no cas.
    fn set(&mut self, data: &[u8], wanted: Option<u64>) -> Filled {
        if wanted.is_some_and(|cas| self.item.as_ref().is_none_or(|item| item.cas != cas)) {
            return Filled::Refused;
        }
        let (cas, flags) = (self.cas(), if data.is_empty() { FILLED_EMPTY } else { 0 });
        let data = data.to_vec();
        self.item = Some(Stored { data, flags, cas, is_promised: false, is_stale: false });
        Filled::Stored
    }

    fn delete(&mut self, wanted: Option<u64>) {
        if self.item.as_ref().is_some_and(|item| wanted.is_none_or(|cas| cas == item.cas)) {
            self.item = None;
        }
    }

    /// `md k I`.
    fn mark(&mut self) {
        let cas = self.cas();
        if let Some(item) = &mut self.item {
            (item.cas, item.is_stale, item.is_promised) = (cas, true, false);
        }
    }
}

fn shown(item: &Stored, is_won: bool) -> Item<'_> {
    let Stored { data, flags, cas, is_promised, is_stale } = item;
    Item { data, flags: *flags, cas: *cas, is_won, is_promised: *is_promised, is_stale: *is_stale }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Actor {
    Reader(usize),
    Writer,
    /// Of the last change one server is told, own or gutter.
    Tell(usize),
    Fault,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Nothing,
    /// The server starts anew, without what it had, and every connection ends.
    Restart,
    /// Connections end, and the item is evicted.
    Broken,
    /// Nobody reaches the server, and the gutter has its keys, until it is back with what it had.
    Away,
    /// The same, and it is back as a process that has just begun.
    Gone,
    Back,
}

impl Fault {
    fn has_gutter(self) -> bool {
        matches!(self, Fault::Away | Fault::Gone)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Cache {
    /// By the rules; invalidations delete.
    Tokens,
    /// The same, and plain gets first.
    Gets,
    /// By the rules; invalidations mark.
    Marks,
    /// Plain gets and sets; invalidations delete.
    Plain,
}

/// A reader at work: asks, loads, fills, one step at a time.
#[derive(Clone, Debug)]
struct Reader {
    lookup: Lookup,
    ended: u64,
    /// Rows of before these must not be returned, by the server that they come from.
    least: [u64; 2],
    /// Takes the server for dead.
    knows: bool,
    loaded: Option<Vec<u8>>,
    reads_left: u32,
    has_begun: bool,
}

#[derive(Clone, Debug)]
struct World {
    cache: Cache,
    /// The key's own, and the gutter's.
    servers: [Server; 2],
    /// Connections of all readers that have ended.
    ended: [u64; 2],
    row: u64,
    /// Rows up to these are known to be invalid: their invalidation was confirmed.
    confirmed: [u64; 2],
    readers: [Reader; 2],
    writes_left: u32,
    untold: [bool; 2],
    has_gutter: bool,
    is_away: bool,
    fault: Fault,
    now_ns: u64,
    seen: BTreeMap<&'static str, u64>,
}

/// Of each reader.
const READS: [u32; 2] = [2, 1];
/// Of the readers that take steps in every order: each wait is one more step.
const SHORT: Rules = Rules { patience_ns: 2 * MS, ..RULES };
const WRITES: u32 = 2;

fn rules(cache: Cache) -> Rules {
    Rules { gets_first: cache == Cache::Gets, ..SHORT }
}

fn row_of(value: &[u8]) -> u64 {
    String::from_utf8_lossy(value).parse().unwrap()
}

impl World {
    fn new(cache: Cache, fault: Fault) -> World {
        let lookup = Lookup::new(1, rules(cache), 0);
        let reader = Reader {
            lookup,
            ended: 0,
            least: [0; 2],
            knows: false,
            loaded: None,
            reads_left: READS[0],
            has_begun: false,
        };
        World {
            cache,
            servers: [Server::new(), Server::new()],
            // As many, once its own server was lost: that alone tells no two servers apart.
            ended: [0, 1],
            row: 1,
            confirmed: [1; 2],
            readers: [reader.clone(), Reader { reads_left: READS[1], ..reader }],
            writes_left: if fault.has_gutter() { 1 } else { WRITES },
            untold: [false; 2],
            has_gutter: fault.has_gutter(),
            is_away: false,
            fault,
            now_ns: 0,
            seen: BTreeMap::new(),
        }
    }

    fn actors(&self) -> Vec<Actor> {
        let mut actors = Vec::new();
        for number in 0..2 {
            if self.readers[number].reads_left > 0 {
                actors.push(Actor::Reader(number));
            }
        }
        let told = (0..2).filter(|server| self.untold[*server] && !(self.is_away && *server == 0));
        let tells: Vec<Actor> = told.map(Actor::Tell).collect();
        if self.writes_left > 0 && tells.is_empty() {
            actors.push(Actor::Writer);
        }
        actors.extend(tells);
        if self.fault != Fault::Nothing {
            actors.push(Actor::Fault);
        }
        actors
    }

    fn step(&mut self, actor: Actor) -> Result<(), String> {
        match actor {
            Actor::Tell(server) => {
                match self.cache {
                    Cache::Marks => self.servers[server].mark(),
                    _ => self.servers[server].delete(None),
                }
                (self.untold[server], self.confirmed[server]) = (false, self.row);
            }
            Actor::Writer => {
                self.row += 1;
                self.writes_left -= 1;
                self.untold = [true, self.has_gutter];
            }
            Actor::Fault => self.fault(),
            Actor::Reader(number) if self.cache == Cache::Plain => {
                return self.read_plainly(number);
            }
            Actor::Reader(number) => return self.read(number),
        }
        Ok(())
    }

    fn fault(&mut self) {
        let (was, mut next) = (self.fault, Fault::Nothing);
        match was {
            Fault::Away | Fault::Gone => (self.is_away, next) = (true, Fault::Back),
            Fault::Back => {
                self.is_away = false;
                // The other one takes it for dead until its next read.
                self.readers[0].knows = false;
            }
            Fault::Broken => self.servers[0].item = None,
            Fault::Restart | Fault::Nothing => {}
        }
        if matches!(was, Fault::Restart | Fault::Gone) {
            self.servers[0] = Server::new();
        }
        self.ended[0] += u64::from(was != Fault::Back);
        self.fault = next;
    }

    fn begin(&mut self, number: usize) {
        let is_away = self.is_away;
        let reader = &mut self.readers[number];
        reader.has_begun = true;
        reader.least = self.confirmed;
        reader.ended = self.ended[0];
        reader.knows &= is_away;
        if reader.knows && self.cache != Cache::Plain {
            reader.lookup.ask_only(0);
        }
    }

    fn returned(&mut self, number: usize, value: &[u8]) -> Result<(), String> {
        let reader = &mut self.readers[number];
        let least = reader.least[reader.lookup.slots[0].server as usize];
        reader.reads_left -= 1;
        reader.lookup = Lookup::new(1, rules(self.cache), self.now_ns);
        reader.has_begun = false;
        let got = row_of(value);
        match got < least {
            true => Err(format!("row {got} was read after row {least} was confirmed")),
            false => Ok(()),
        }
    }

    fn count(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    /// The next thing that the rules want of one reader.
    fn read(&mut self, number: usize) -> Result<(), String> {
        if !self.readers[number].has_begun {
            self.begin(number);
        }
        if !self.readers[number].lookup.to_get().is_empty() {
            let found = self.servers[0].item.clone().filter(|_| !self.is_away);
            let now_ns = self.now_ns;
            self.readers[number].knows |= self.is_away;
            let lookup = &mut self.readers[number].lookup;
            lookup.got(0, found.as_ref().map(|item| (&item.data[..], item.flags)), now_ns);
            let is_promise = found.is_some() && !lookup.is_done();
            self.count(if is_promise { "promise" } else { "got" });
            return self.end_if_done(number);
        }
        // A reader that rests is a reader whose turn comes later.
        if let Some(at_ns) = self.readers[number].lookup.next_ask_ns() {
            self.now_ns = self.now_ns.max(at_ns);
        }
        let now_ns = self.now_ns;
        if !self.readers[number].lookup.to_ask(now_ns).is_empty() {
            let server = usize::from(self.readers[number].knows);
            let lookup = &mut self.readers[number].lookup;
            lookup.asked_at(0, server as u32, server == 1);
            if server == 0 && self.is_away {
                lookup.died(0, self.ended[0], now_ns);
                self.readers[number].knows = true;
                self.count("moved");
                return self.end_if_done(number);
            }
            let (item, wins) = self.servers[server].ask();
            lookup.answered(0, Some(shown(&item, wins)), self.ended[server], now_ns);
            if lookup.counts.waits > 0 {
                self.count("waited");
            }
        } else if !self.readers[number].lookup.to_load().is_empty() {
            let row = self.row.to_string().into_bytes();
            self.readers[number].lookup.loaded(0, Some(row));
        } else {
            let mut lookup = self.readers[number].lookup.clone();
            for fill in lookup.clone().fills() {
                assert_eq!(lookup.fills().len(), 1);
                let server = fill.server as usize;
                let is_over = fill.ended != self.ended[server];
                let filled = match fill.value {
                    // The driver sends it over the connection of its token, or not at all.
                    _ if is_over => Filled::Refused,
                    _ if server == 0 && self.is_away => Filled::Failed,
                    Some(value) => self.servers[server].set(value, fill.cas),
                    None => panic!("a row is always there"),
                };
                self.count(match filled {
                    Filled::Stored if server == 1 => "gutter",
                    Filled::Refused if is_over => "connection",
                    Filled::Refused => "refused",
                    _ => "filled",
                });
                lookup.filled(0, filled);
            }
            self.readers[number].lookup = lookup;
        }
        self.end_if_done(number)
    }

    fn end_if_done(&mut self, number: usize) -> Result<(), String> {
        if !self.readers[number].lookup.is_done() {
            return Ok(());
        }
        let value = self.readers[number].lookup.clone().into_values().remove(0).unwrap();
        self.returned(number, &value)
    }

    fn read_plainly(&mut self, number: usize) -> Result<(), String> {
        if let Some(value) = self.readers[number].loaded.take() {
            self.servers[0].set(&value, None);
            return self.returned(number, &value);
        }
        self.begin(number);
        match self.servers[0].item.clone() {
            Some(item) => self.returned(number, &item.data),
            None => {
                self.readers[number].loaded = Some(self.row.to_string().into_bytes());
                Ok(())
            }
        }
    }

    /// All is quiet: what the cache would answer is the row.
    fn end(&self) -> Result<(), String> {
        for (number, server) in self.servers.iter().enumerate() {
            let Some(item) = &server.item else { continue };
            let is_read =
                self.cache == Cache::Plain || shown(item, false).has_value() && !item.is_stale;
            if is_read && row_of(&item.data) != self.row {
                let old = row_of(&item.data);
                return Err(format!("row {old} stays at server {number}, row {} is", self.row));
            }
        }
        Ok(())
    }
}

/// What every order of the actors' steps comes to.
#[derive(Default)]
struct Found {
    /// Worlds that some order leads to. What comes behind one is looked at once: it depends on nothing else.
    worlds: BTreeSet<String>,
    wrong: Vec<String>,
    seen: BTreeMap<&'static str, u64>,
}

fn every_order(mut world: World, found: &mut Found) {
    for (what, times) in std::mem::take(&mut world.seen) {
        *found.seen.entry(what).or_default() += times;
    }
    if !found.worlds.insert(format!("{world:?}")) {
        return;
    }
    let actors = world.actors();
    if actors.is_empty() {
        found.wrong.extend(world.end().err());
    }
    for actor in actors {
        let mut next = world.clone();
        match next.step(actor) {
            Ok(()) => every_order(next, found),
            Err(wrong) => found.wrong.push(wrong),
        }
    }
}

#[test]
fn in_no_order_is_an_old_row_read_or_kept_and_plain_sets_keep_one() {
    for fault in [Fault::Nothing, Fault::Restart, Fault::Broken] {
        for cache in [Cache::Tokens, Cache::Gets, Cache::Marks, Cache::Plain] {
            let mut found = Found::default();
            every_order(World::new(cache, fault), &mut found);
            let Found { worlds, wrong, seen } = found;
            assert!(worlds.len() > 100, "{cache:?}, {fault:?}: {} worlds", worlds.len());
            if cache == Cache::Plain {
                assert!(!wrong.is_empty(), "{fault:?}: the test sees what it is for");
                continue;
            }
            assert_eq!(wrong.first(), None, "{cache:?}, {fault:?}, of {}", wrong.len());
            for what in ["filled", "refused", "waited"] {
                assert!(seen.contains_key(what), "{cache:?}, {fault:?}: never {what}: {seen:?}");
            }
            assert_eq!(seen.contains_key("connection"), fault != Fault::Nothing);
            let gets = ["got", "promise"].map(|what| seen.contains_key(what));
            assert_eq!(gets, [cache == Cache::Gets; 2], "{cache:?}, {fault:?}");
        }
    }
}

/// Own server and gutter count their tokens each by itself, and both are told what changed.
#[test]
fn in_no_order_is_an_old_row_read_or_kept_by_way_of_the_gutter() {
    for fault in [Fault::Away, Fault::Gone] {
        for cache in [Cache::Tokens, Cache::Gets, Cache::Marks] {
            let mut found = Found::default();
            every_order(World::new(cache, fault), &mut found);
            let Found { wrong, seen, .. } = found;
            assert_eq!(wrong.first(), None, "{cache:?}, {fault:?}, of {}", wrong.len());
            for what in ["filled", "refused", "waited", "connection", "gutter", "moved"] {
                assert!(seen.contains_key(what), "{cache:?}, {fault:?}: never {what}: {seen:?}");
            }
        }
    }
}

#[test]
fn of_many_readers_one_loads_and_the_others_wait_or_take_what_is_old() {
    let mut server = Server::new();
    server.set(b"1", None);
    server.mark();
    let mut readers: Vec<Lookup> =
        (0..100).map(|i| Lookup::new(1, Rules { takes_stale: i % 2 == 1, ..RULES }, 0)).collect();
    for reader in &mut readers {
        assert_eq!(reader.to_ask(0), [0]);
        let (item, wins) = server.ask();
        reader.answered(0, Some(shown(&item, wins)), 0, 0);
    }
    let loads = readers.iter().filter(|r| !r.to_load().is_empty()).count();
    assert_eq!((loads, readers.iter().filter(|r| r.is_done()).count()), (1, 50));
    readers[0].loaded(0, Some(b"2".to_vec()));
    let (value, cas) =
        readers[0].fills().first().map(|f| (f.value.unwrap().to_vec(), f.cas)).unwrap();
    assert_eq!(server.set(&value, cas), Filled::Stored);
    readers[0].filled(0, Filled::Stored);
    for reader in readers.iter_mut().skip(2).step_by(2) {
        let at_ns = reader.next_ask_ns().unwrap();
        assert_eq!((at_ns, reader.to_ask(at_ns - 1).len(), reader.to_ask(at_ns).len()), (MS, 0, 1));
        let (item, wins) = server.ask();
        reader.answered(0, Some(shown(&item, wins)), 0, at_ns);
        assert_eq!(reader.clone().into_values(), [Some(b"2".to_vec())]);
    }
    let values: Vec<_> = readers.into_iter().map(Lookup::into_values).collect();
    assert_eq!(
        (values[0][0].as_deref(), values[1][0].as_deref()),
        (Some(&b"2"[..]), Some(&b"1"[..]))
    );
}

#[test]
fn who_waits_too_long_loads_and_fills_nothing() {
    let mut server = Server::new();
    let _ = server.ask();
    let mut lookup = Lookup::new(1, RULES, 0);
    let (mut now_ns, mut questions) = (0, 0);
    while lookup.to_load().is_empty() {
        now_ns = lookup.next_ask_ns().unwrap();
        assert_eq!(lookup.to_ask(now_ns), [0]);
        let (item, wins) = server.ask();
        lookup.answered(0, Some(shown(&item, wins)), 0, now_ns);
        questions += 1;
    }
    assert!((100 * MS..140 * MS).contains(&now_ns), "{now_ns}");
    assert!(questions < 12, "{questions}");
    lookup.loaded(0, Some(b"1".to_vec()));
    assert!(lookup.is_done() && lookup.fills().is_empty());
    assert_eq!((lookup.counts.unguarded, lookup.counts.waits), (1, questions - 1));
}

#[test]
fn values_without_bytes_are_values_and_rows_that_are_not_there_give_their_token_back() {
    let mut server = Server::new();
    let ask = |server: &mut Server| {
        let mut lookup = Lookup::new(1, RULES, 0);
        lookup.to_ask(0);
        let (item, wins) = server.ask();
        lookup.answered(0, Some(shown(&item, wins)), 0, 0);
        lookup
    };
    let mut first = ask(&mut server);
    first.loaded(0, None);
    let fills: Vec<(bool, Option<u64>)> =
        first.fills().iter().map(|fill| (fill.value.is_none(), fill.cas)).collect();
    assert!(fills[0].0);
    server.delete(fills[0].1);
    first.filled(0, Filled::Stored);
    assert_eq!((first.counts.filled, first.into_values()), (0, vec![None]));

    let mut second = ask(&mut server);
    assert_eq!(second.counts.won, 1, "the next asker may fill");
    second.loaded(0, Some(Vec::new()));
    let cas = second.fills()[0].cas;
    assert_eq!(server.set(b"", cas), Filled::Stored);
    assert_eq!(ask(&mut server).into_values(), [Some(Vec::new())]);

    // The database is away: a promise is taken back, an old value stays for who takes it.
    server.mark();
    let mut third = ask(&mut server);
    third.load_failed();
    assert!(third.is_done() && third.fills().is_empty());
    let mut fourth = ask(&mut Server::new());
    fourth.load_failed();
    assert!(fourth.fills()[0].value.is_none());
}
