//! A cache beside a database: keys are read from the servers, and what is missing is loaded by who is told to
//! and filled with the token of its miss. Who changes rows invalidates their keys; docs/cache-client.md says
//! what holds then. Drives [`lookup`], which decides; blocks, as [`Client`] does.

pub mod command;
pub mod lookup;
pub mod standing;

use crate::batch::{self, Answer, Batch};
use crate::client::{Ask, CacheClientOptions, Client, Failover};
use crate::fleet::Outcome;
use crate::ring::Member;
use crate::wire::Shape;
use holdfast_base::{Error, Result};
use holdfast_env::{RealClock, event, planted};
pub use lookup::LookasideCounts;
use lookup::{Fill, Filled, Lookup, Rules};
use standing::{Given, Standing, lease_key, nobody_gives};
use std::sync::Arc;

/// What invalidations leave of a key, in all servers of a lookaside: as whoever invalidates was told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Invalidated {
    /// Nothing. So a plain get serves a hit, and what it does not find is asked for.
    #[default]
    Deleted,
    /// The old value, with a mark that plain gets do not see: every key is asked for on a line of its own.
    Marked {
        /// Takes an old value while another loads the new one.
        takes_stale: bool,
    },
}

/// How a [`Lookaside`] reads and fills.
#[derive(Clone, Debug)]
pub struct LookasideOptions {
    /// Seconds that filled values live; 0 is for ever.
    pub expiry_s: u32,
    /// Seconds for which one asker holds the right to fill a key. Servers count whole seconds.
    pub lease_s: u32,
    /// How long others wait for it before they load on their own, in milliseconds.
    pub patience_ms: u32,
    pub invalidated: Invalidated,
    /// One asker loads a value anew that has fewer seconds to live than this; 0 for never.
    pub refresh_s: u32,
    /// The pool by whose leases (`holdfast invalidate run --server-lease`) servers count: of one without, keys are
    /// loaded, and nothing is stored. Nothing has all count.
    pub server_lease: Option<String>,
    /// Servers that have the keys of dead ones meanwhile, as [`Client::new`] takes them. Whoever invalidates tells them
    /// everything, too (`gutter` of the pool in its file of routes), or what they have is old.
    pub gutter: Vec<String>,
    /// Seconds that values live there, if not less.
    pub gutter_expiry_s: u32,
}

impl Default for LookasideOptions {
    fn default() -> LookasideOptions {
        LookasideOptions {
            expiry_s: 0,
            lease_s: 10,
            patience_ms: 500,
            invalidated: Invalidated::Deleted,
            refresh_s: 0,
            server_lease: None,
            gutter: Vec::new(),
            gutter_expiry_s: 10,
        }
    }
}

/// A lease of one second may be over as soon as it was given.
const LEASE_S_MIN: u32 = 2;
/// Longer times to live are dates to memcached.
const EXPIRY_S_MAX: u32 = 30 * 24 * 3600;
/// Keys of one request.
const KEYS_PER_REQUEST: usize = 100;

/// What is read through it is never stored behind an invalidation that came between. One is one thread's.
pub struct Lookaside {
    client: Client,
    options: LookasideOptions,
    counts: LookasideCounts,
    request: Vec<u8>,
    gets: Batch,
    leases: Option<Leases>,
}

/// Servers that count by their leases, and the key of those.
struct Leases {
    key: Vec<u8>,
    standing: Standing,
    given: Given,
}

impl Lookaside {
    /// A cache of these servers, each as [`Client::new`] takes it: servers, and no router, which may lose its
    /// connection to a server without a word.
    pub fn new<S: AsRef<str>>(
        servers: &[S],
        client: CacheClientOptions,
        options: LookasideOptions,
    ) -> Result<Lookaside> {
        let wrong = |why: &str| Err(Error::invalid(format!("make a lookaside: {why}")));
        if options.lease_s < LEASE_S_MIN {
            return wrong("`lease_s` is too short: give 2 seconds or more");
        }
        let times = [options.expiry_s, options.lease_s, options.refresh_s, options.gutter_expiry_s];
        if times.iter().any(|s| *s > EXPIRY_S_MAX) {
            return wrong("a time is longer than 30 days: servers would take it for a date");
        }
        if options.gutter_expiry_s == 0 {
            return wrong("`gutter_expiry_s` is 0, which is for ever: give 1 second or more");
        }
        if client.failover != Failover::None {
            return wrong(
                "with `Failover::NextServer` a key has several servers: leave `failover` at `None`, keys of \
                 dead servers are loaded, or are in the `gutter`",
            );
        }
        let members =
            servers.iter().map(|s| Member::parse(s.as_ref())).collect::<Result<Vec<Member>>>()?;
        let gutter =
            options.gutter.iter().map(|s| Member::parse(s)).collect::<Result<Vec<Member>>>()?;
        let is_own = |of: &&Member| members.iter().any(|m| m.host == of.host && m.port == of.port);
        if let Some(both) = gutter.iter().find(is_own) {
            return wrong(&format!(
                "`{both}` is a server and in the gutter, too: its own keys have to go elsewhere when it is dead"
            ));
        }
        let leases = options.server_lease.as_deref().map(|pool| Leases {
            key: lease_key(pool),
            standing: Standing::new(members.len() + gutter.len()),
            given: Given::default(),
        });
        if let Some(Leases { key, .. }) = &leases {
            batch::check(key)?;
        }
        let client = Client::with_gutter(&members, &gutter, client, Arc::new(RealClock::new()))?;
        let counts = LookasideCounts::default();
        let (request, gets) = (Vec::new(), Batch::new());
        Ok(Lookaside { client, options, counts, request, gets, leases })
    }

    pub fn counts(&self) -> LookasideCounts {
        self.counts
    }

    /// The value of a key, from its server or from `load`, which reads the database: nothing if that has
    /// none. Fails if `load` does.
    pub fn get(
        &mut self,
        key: &[u8],
        mut load: impl FnMut() -> Result<Option<Vec<u8>>>,
    ) -> Result<Option<Vec<u8>>> {
        let mut values = self.get_many(&[key], |_| Ok(vec![load()?]))?;
        Ok(values.pop().flatten())
    }

    /// The values of many keys, in their order. `load` is given the numbers of keys to read from the
    /// database, and returns as many values; it may be called several times, for those who had to wait.
    pub fn get_many<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        mut load: impl FnMut(&[usize]) -> Result<Vec<Option<Vec<u8>>>>,
    ) -> Result<Vec<Option<Vec<u8>>>> {
        keys.iter().try_for_each(|key| batch::check(key.as_ref()))?;
        let invalidated = self.options.invalidated;
        let rules = Rules {
            // A get does not see how long a value has to live.
            gets_first: invalidated == Invalidated::Deleted && self.options.refresh_s == 0,
            patience_ns: u64::from(self.options.patience_ms) * 1_000_000,
            takes_stale: invalidated == Invalidated::Marked { takes_stale: true },
        };
        let mut lookup = Lookup::new(keys.len(), rules, self.client.now_ns());
        lookup.counts = self.counts;
        let result = self.drive(&mut lookup, keys, &mut load);
        self.counts = lookup.counts;
        result?;
        Ok(lookup.into_values())
    }

    fn drive<K: AsRef<[u8]>>(
        &mut self,
        lookup: &mut Lookup,
        keys: &[K],
        load: &mut impl FnMut(&[usize]) -> Result<Vec<Option<Vec<u8>>>>,
    ) -> Result<()> {
        self.look_at_leases()?;
        self.choose(lookup, keys)?;
        self.get_first(lookup, keys)?;
        while !lookup.is_done() {
            let asks = lookup.to_ask(self.client.now_ns());
            self.ask(lookup, keys, &asks)?;
            let loads = lookup.to_load();
            if !loads.is_empty() {
                match load(&loads) {
                    Ok(values) => {
                        assert_eq!(values.len(), loads.len(), "a value, or none, for each key");
                        for (number, value) in loads.iter().zip(values) {
                            lookup.loaded(*number, value);
                        }
                    }
                    Err(e) => {
                        lookup.load_failed();
                        self.fill(lookup, keys)?;
                        return Err(e);
                    }
                }
            }
            self.fill(lookup, keys)?;
            if let Some(at_ns) = lookup.next_ask_ns() {
                self.client.idle_until(at_ns)?;
            }
        }
        Ok(())
    }

    /// Asks those servers for their leases that have not been asked lately.
    fn look_at_leases(&mut self) -> Result<()> {
        let Some(leases) = &mut self.leases else { return Ok(()) };
        self.client.refresh()?;
        let now_ns = self.client.now_ns();
        let due =
            |server: &u32| leases.standing.is_due(*server, self.client.ended(*server), now_ns);
        let servers: Vec<u32> = (0..leases.standing.servers()).filter(due).collect();
        if servers.is_empty() {
            return Ok(());
        }
        let ended: Vec<u64> = servers.iter().map(|server| self.client.ended(*server)).collect();
        let have = self.client.have(&servers, &leases.key)?;
        for ((server, ended), has_lease) in servers.into_iter().zip(ended).zip(have) {
            leases.standing.looked(server, has_lease == Some(true), ended, now_ns);
            if has_lease.is_some_and(|has_lease| leases.given.looked(has_lease, now_ns)) {
                let why = nobody_gives(&leases.key);
                event!(CacheUnleased, why);
            }
        }
        Ok(())
    }

    /// Has the keys of servers loaded that do not count, and those of dead ones asked for in the gutter.
    fn choose<K: AsRef<[u8]>>(&mut self, lookup: &mut Lookup, keys: &[K]) -> Result<()> {
        let has_gutter = self.client.has_gutter();
        if has_gutter {
            // Which are dead now.
            self.client.refresh()?;
        }
        if self.all_count() && (!has_gutter || self.client.are_all_up()) {
            return Ok(());
        }
        for (number, key) in keys.iter().enumerate() {
            let server = self.client.place_of(key.as_ref());
            if !self.counts_now(server) {
                lookup.leave_out(number);
            } else if self.client.is_gutter(server) {
                lookup.ask_only(number);
            }
        }
        Ok(())
    }

    fn all_count(&self) -> bool {
        self.leases.as_ref().is_none_or(|leases| leases.standing.all_count(self.client.now_ns()))
    }

    /// Whether a server counts, of what it has just said.
    fn counts_now(&self, server: u32) -> bool {
        let now_ns = || self.client.now_ns();
        self.leases.as_ref().is_none_or(|leases| leases.standing.counts(server, now_ns()))
    }

    /// Takes what plain gets find, where that is good enough.
    fn get_first<K: AsRef<[u8]>>(&mut self, lookup: &mut Lookup, keys: &[K]) -> Result<()> {
        let numbers = lookup.to_get();
        if numbers.is_empty() {
            return Ok(());
        }
        self.gets.clear();
        for number in &numbers {
            self.gets.get(keys[*number].as_ref())?;
        }
        self.client.run(&mut self.gets)?;
        let (now_ns, all_count) = (self.client.now_ns(), self.all_count());
        for (number, answer) in numbers.iter().zip(self.gets.answers()) {
            let found = match answer {
                // What came too late to be believed is asked for again.
                Answer::Hit { .. }
                    if !all_count
                        && !self.counts_now(self.client.server_of(keys[*number].as_ref())) =>
                {
                    None
                }
                Answer::Hit { data, flags, .. } => Some((data, flags)),
                _ => None,
            };
            lookup.got(*number, found, now_ns);
        }
        Ok(())
    }

    /// Asks the servers of some keys, all at once; the gutter for those of dead ones.
    fn ask<K: AsRef<[u8]>>(
        &mut self,
        lookup: &mut Lookup,
        keys: &[K],
        numbers: &[usize],
    ) -> Result<()> {
        if numbers.is_empty() {
            return Ok(());
        }
        self.client.refresh()?;
        let mut by_server: Vec<(u32, usize)> = numbers
            .iter()
            .map(|number| (self.client.place_of(keys[*number].as_ref()), *number))
            .collect();
        by_server.sort_unstable();
        for (server, number) in &by_server {
            lookup.asked_at(*number, *server, self.client.is_gutter(*server));
        }
        let parts: Vec<&[(u32, usize)]> = by_server
            .chunk_by(|one, other| one.0 == other.0)
            .flat_map(|of| of.chunks(KEYS_PER_REQUEST))
            .collect();
        let mut ended = Vec::with_capacity(parts.len());
        for (ticket, part) in parts.iter().enumerate() {
            self.request.clear();
            let server = part[0].0;
            // In the gutter every value has little time left.
            let refresh_s = if self.client.is_gutter(server) { 0 } else { self.options.refresh_s };
            for (_, number) in *part {
                let lease_s = self.options.lease_s;
                command::ask(keys[*number].as_ref(), lease_s, refresh_s, &mut self.request);
            }
            self.request.extend_from_slice(command::END);
            ended.push(self.client.ended(server));
            self.client.ask(&Ask {
                server,
                shape: Shape::Quiet,
                ticket: ticket as u64,
                bytes: &self.request,
                unless_ended: None,
            });
        }
        let now_ns = self.client.now_ns();
        let leases = self.leases.as_ref().map(|leases| (&leases.standing, self.client.clock()));
        // A server of the gutter has nobody in its place.
        let may_move: Vec<bool> = parts
            .iter()
            .map(|part| self.client.has_gutter() && !self.client.is_gutter(part[0].0))
            .collect();
        self.client.settle(parts.len(), |ticket, outcome| {
            let (part, ended) = (parts[ticket as usize], ended[ticket as usize]);
            if matches!(outcome, Outcome::Dead { .. }) && may_move[ticket as usize] {
                part.iter().for_each(|(_, number)| lookup.died(*number, ended, now_ns));
                return;
            }
            let counts = leases
                .as_ref()
                .is_none_or(|(standing, clock)| standing.counts(part[0].0, clock.monotonic_ns()));
            let mut items = command::items(match outcome {
                Outcome::Answer(answer) if counts => answer,
                _ => &[],
            });
            let mut next = items.next();
            for (_, number) in part {
                // In order; what a server refused is missing.
                let item = next.filter(|(key, _)| *key == keys[*number].as_ref());
                if item.is_some() {
                    next = items.next();
                }
                lookup.answered(*number, item.map(|(_, item)| item), ended, now_ns);
            }
        })
    }

    /// How long a value lives in the gutter: its own server may be back any moment, and then nobody reads it there.
    fn gutter_expiry_s(&self) -> u32 {
        let LookasideOptions { expiry_s, gutter_expiry_s, .. } = self.options;
        if planted!("lookaside.gutter-for-ever") {
            return expiry_s;
        }
        if expiry_s == 0 { gutter_expiry_s } else { expiry_s.min(gutter_expiry_s) }
    }

    /// Stores what was loaded with tokens, and gives back those that are not used.
    fn fill<K: AsRef<[u8]>>(&mut self, lookup: &mut Lookup, keys: &[K]) -> Result<()> {
        let fills: Vec<Fill<'_>> = lookup.fills();
        let numbers: Vec<usize> = fills.iter().map(|fill| fill.number).collect();
        if numbers.is_empty() {
            return Ok(());
        }
        // Connections that ended while the database was read.
        self.client.refresh()?;
        for fill in &fills {
            let key = keys[fill.number].as_ref();
            self.request.clear();
            let expiry_s = match self.client.is_gutter(fill.server) {
                true => self.gutter_expiry_s(),
                false => self.options.expiry_s,
            };
            command::fill(fill, key, expiry_s, &mut self.request);
            self.client.ask(&Ask {
                server: fill.server,
                shape: Shape::Meta,
                ticket: fill.number as u64,
                bytes: &self.request,
                unless_ended: Some(fill.ended),
            });
        }
        drop(fills);
        self.client.settle(numbers.len(), |ticket, outcome| {
            let filled = match outcome {
                Outcome::Answer(answer) => command::filled(answer),
                Outcome::Dead { maybe: false } => Filled::Refused,
                Outcome::Dead { .. } | Outcome::Lost => Filled::Failed,
            };
            lookup.filled(ticket as usize, filled);
        })
    }
}
