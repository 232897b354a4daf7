//! Two threads of a router, a server that stalls and wakes, and its gutter, as a model: no get may
//! answer a value that had been replaced or deleted before it was asked. Every order in which bytes
//! arrive, connections are read and time passes is drawn by seed, and so are the limits.

use super::{GUTTER, MAIN, MS};
use crate::fleet::absence::{Absences, OWED_BATCH, OWED_MAX};
use crate::fleet::{self, Closing, Fleet};
use crate::ring::Member;
use crate::route::command::{self, Command, Parsed};
use crate::route::plan::{PoolPlan, RoutePlan};
use crate::route::recent::Recent;
use crate::route::router::Router;
use holdfast_env::trial::Trial;
use holdfast_env::{Rng, SeededRng};
use std::collections::BTreeMap;
use std::sync::Arc;

const KEYS: usize = 4;
const THREADS: usize = 2;

/// A connection as its server sees it.
#[derive(Default)]
struct Connection {
    thread: usize,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    /// The router sends nothing more.
    is_half_closed: bool,
    /// The server has read all of it, and closed it.
    is_closed: bool,
    is_draining: bool,
}

#[derive(Default)]
struct Peer {
    items: BTreeMap<String, String>,
    connections: Vec<Connection>,
    is_stalled: bool,
}

impl Peer {
    /// Carries out what one connection has brought.
    fn serve(&mut self, number: usize) {
        let connection = &mut self.connections[number];
        let bytes = std::mem::take(&mut connection.inbox);
        let text = String::from_utf8(bytes).unwrap();
        let mut lines = text.split_terminator("\r\n");
        while let Some(line) = lines.next() {
            let words: Vec<&str> = line.split(' ').collect();
            let answer = match words[..] {
                ["set", key, ..] => {
                    self.items.insert(key.to_owned(), lines.next().unwrap().to_owned());
                    "STORED\r\n".to_owned()
                }
                ["delete", key] => match self.items.remove(key) {
                    Some(_) => "DELETED\r\n".to_owned(),
                    None => "NOT_FOUND\r\n".to_owned(),
                },
                ["get", key] => match self.items.get(key) {
                    Some(value) => format!("VALUE {key} 0 {}\r\n{value}\r\nEND\r\n", value.len()),
                    None => "END\r\n".to_owned(),
                },
                ["flush_all"] => {
                    self.items.clear();
                    "OK\r\n".to_owned()
                }
                ["version"] => "VERSION 1\r\n".to_owned(),
                _ => panic!("a server was asked {line}"),
            };
            connection.outbox.extend_from_slice(answer.as_bytes());
        }
        connection.is_closed = connection.is_half_closed;
    }
}

struct Thread {
    router: Router,
    fleet: Fleet,
    /// Commands that wait for their answers, by reply: which operation each is.
    asked: Vec<(u32, usize)>,
}

/// A command of a client, by when it was asked and answered.
struct Operation {
    key: usize,
    asked: usize,
    answered: Option<usize>,
    /// The value that it sets; none to delete it.
    sets: Option<Option<String>>,
}

struct World {
    rng: SeededRng,
    threads: Vec<Thread>,
    peers: [Peer; 2],
    absences: Arc<Absences>,
    epoch: u64,
    now_ns: u64,
    step: usize,
    operations: Vec<Operation>,
    hits: usize,
    absent: usize,
    /// No server stalls any more.
    is_calm: bool,
}

impl World {
    fn new(seed: u64) -> World {
        let pool = |name: &str, gutter: Option<&str>| PoolPlan {
            name: name.into(),
            servers: vec![Member { host: name.into(), port: 1, weight: 1 }],
            gutter: gutter.map(str::to_owned),
            ..PoolPlan::default()
        };
        let pools = vec![pool("main", Some("gutter")), pool("gutter", None)];
        let plan = Arc::new(RoutePlan::new(pools, Vec::new(), "main", 10).unwrap());
        let absences = Arc::new(Absences::new(2));
        let threads = (0..THREADS).map(|_| Thread {
            router: Router::new(plan.clone(), Arc::new(Recent::default())),
            fleet: Fleet::sharing(2, fleet::Settings::default(), absences.clone()),
            asked: Vec::new(),
        });
        World {
            rng: SeededRng::new(seed),
            threads: threads.collect(),
            peers: Default::default(),
            absences,
            epoch: 0,
            now_ns: 10_000 * MS,
            step: 0,
            operations: Vec::new(),
            hits: 0,
            absent: 0,
            is_calm: false,
        }
    }

    fn draw(&self, n: usize) -> usize {
        (self.rng.next_u64() % n as u64) as usize
    }

    fn ask(&mut self, thread: usize) {
        let (key, number) = (self.draw(KEYS), self.operations.len());
        let (text, sets) = match self.draw(5) {
            0 | 1 => (format!("get k{key}\r\n"), None),
            2 => (format!("delete k{key}\r\n"), Some(None)),
            _ => {
                let value = format!("v{number}");
                let text = format!("set k{key} 0 5 {}\r\n{value}\r\n", value.len());
                (text, Some(Some(value)))
            }
        };
        self.operations.push(Operation { key, asked: self.step, answered: None, sets });
        let Parsed::Command(of, _) = command::parse(text.as_bytes(), 1000) else { panic!() };
        let Thread { router, fleet, asked } = &mut self.threads[thread];
        let reply = match of {
            Command::Get { verb, keys } => router.get(fleet, (0, 0), &verb, keys, self.now_ns),
            Command::Keyed(of) => router.keyed(fleet, (0, 0), of, self.now_ns),
            other => panic!("{other:?}"),
        };
        asked.push((reply, number));
    }

    /// What a thread's driver does.
    fn drive(&mut self, thread: usize) {
        let Thread { router, fleet, .. } = &mut self.threads[thread];
        loop {
            fleet.expire(self.now_ns, &mut |t, of| router.settle(t, of, self.now_ns));
            fleet.pump(self.now_ns, &mut |t, of| router.settle(t, of, self.now_ns));
            if !router.follow(fleet, self.now_ns) {
                break;
            }
        }
        for server in [MAIN, GUTTER] {
            let all = &mut self.peers[server as usize].connections;
            let mine = all.iter_mut().find(|c| c.thread == thread && !c.is_draining);
            match (fleet.closes(server), mine) {
                (Some(closing), Some(mine)) => {
                    (mine.is_half_closed, mine.is_draining) = (true, true);
                    if closing == Closing::Now {
                        mine.thread = usize::MAX;
                    }
                }
                (Some(Closing::Drain), None) => fleet.drained(server),
                _ => {}
            }
            if fleet.connects(server) {
                all.push(Connection { thread, ..Connection::default() });
                fleet.connected(server);
            }
            if let Some(mine) = all.iter_mut().find(|c| c.thread == thread && !c.is_draining) {
                mine.inbox.extend_from_slice(fleet.output(server));
                let sent = fleet.output(server).len();
                fleet.output_sent(server, sent);
            }
        }
        self.answer(thread);
    }

    /// Bytes of a server reach a thread.
    fn receive(&mut self, thread: usize, server: u32) {
        let all = &mut self.peers[server as usize].connections;
        let Thread { router, fleet, .. } = &mut self.threads[thread];
        if let Some(mine) = all.iter_mut().find(|c| c.thread == thread && !c.is_draining) {
            let bytes = std::mem::take(&mut mine.outbox);
            if !bytes.is_empty() {
                fleet.received(server, self.now_ns, &bytes, &mut |t, of| {
                    router.settle(t, of, self.now_ns)
                });
            }
        }
        all.retain(|c| {
            let is_over = c.is_draining && c.is_closed;
            if is_over && c.thread == thread {
                fleet.drained(server);
            }
            !(is_over && (c.thread == thread || c.thread == usize::MAX))
        });
        self.drive(thread);
    }

    /// Hands answers to their clients, and looks at them.
    fn answer(&mut self, thread: usize) {
        let Thread { router, asked, .. } = &mut self.threads[thread];
        while router.take_whole().is_some() {}
        let (ready, rest) = asked.iter().partition(|(reply, _)| router.is_ready(*reply));
        *asked = rest;
        let ready: Vec<(u32, usize)> = ready;
        for (reply, number) in ready {
            let said = String::from_utf8(self.threads[thread].router.close(reply)).unwrap();
            if said.contains("ERROR") {
                // The gutter was not heard of for long, either: it may or may not be done.
                continue;
            }
            self.operations[number].answered = Some(self.step);
            if self.operations[number].sets.is_none() {
                self.look(number, &said);
            }
        }
    }

    /// A get's answer: its value must not have been replaced before the get was asked.
    fn look(&mut self, number: usize, said: &str) {
        let Some(value) = said.split("\r\n").nth(1).filter(|_| said.starts_with("VALUE")) else {
            return;
        };
        self.hits += 1;
        let get = &self.operations[number];
        let wrote = Some(Some(value.to_owned()));
        let writer = self.operations.iter().find(|o| o.sets == wrote).unwrap();
        let Some(written) = writer.answered else { return };
        let newer = self.operations.iter().find(|o| {
            o.key == get.key
                && o.sets.is_some()
                && o.asked > written
                && o.answered.is_some_and(|at| at < get.asked)
        });
        if let Some(newer) = newer {
            let (now, since) = (&newer.sets, newer.answered);
            panic!(
                "`{value}` of step {written} is served, though {now:?} was answered at {since:?}"
            );
        }
    }

    /// The gutter's items expire between two absences.
    fn expire_gutter(&mut self) {
        let epoch = self.absences.epoch(MAIN);
        if epoch != self.epoch {
            self.absent += usize::from(self.absences.is_away(MAIN));
            self.epoch = epoch;
            self.peers[GUTTER as usize].items.clear();
        }
    }

    fn deaths(&self) -> u64 {
        self.threads.iter().map(|thread| thread.fleet.counts.servers_died).sum()
    }

    /// As [`World::turn`], with the time that the dead need to be asked again, and a server that
    /// reads what was given up before that counts as lost.
    fn turn_without_stalls(&mut self) {
        self.turn();
        let peer = &mut self.peers[0];
        peer.is_stalled = false;
        if self.step.is_multiple_of(100) {
            (0..peer.connections.len()).for_each(|number| peer.serve(number));
        }
    }

    fn turn(&mut self) {
        self.step += 1;
        let (thread, server) = (self.draw(THREADS), self.draw(2));
        match self.draw(24) {
            0..=5 => self.ask(thread),
            6..=8 => self.drive(thread),
            9..=15 => {
                let peer = &mut self.peers[server];
                if !peer.is_stalled && !peer.connections.is_empty() {
                    let number = (self.rng.next_u64() % peer.connections.len() as u64) as usize;
                    // Those that were given up come late, behind many commands of new ones.
                    if !peer.connections[number].is_draining
                        || self.rng.next_u64().is_multiple_of(40)
                    {
                        peer.serve(number);
                    }
                }
            }
            16..=20 => self.receive(thread, server as u32),
            // Answers come in time while nothing stalls.
            21 => self.now_ns += if self.is_calm { 4 * MS } else { 20 * MS },
            _ if self.is_calm => {}
            _ => match (self.peers[0].is_stalled, self.draw(12)) {
                (false, 0) => self.peers[0].is_stalled = true,
                // Until somebody has given it up.
                (true, 0) => self.now_ns += 600 * MS,
                (true, 1) => self.peers[0].is_stalled = false,
                _ => {}
            },
        }
        self.expire_gutter();
    }
}

/// A thread that took a server for dead changed its keys elsewhere, though another thread had brought
/// it up to date: so the other lost it again, and then the first one, forty times a second for as
/// long as clients wrote. Once all servers are well, and what was lost is found again, none dies.
#[test]
fn a_server_that_is_back_for_one_thread_is_back_for_all() {
    let mut died = 0;
    for seed in 0..60 {
        let trial = Trial::drawn(seed).enter();
        let mut world = World::new(seed);
        (0..2000).for_each(|_| world.turn());
        world.peers[0].is_stalled = false;
        (0..8000).for_each(|_| world.turn_without_stalls());
        world.is_calm = true;
        (0..2000).for_each(|_| world.turn());
        let before = world.deaths();
        (0..6000).for_each(|_| world.turn());
        assert_eq!(world.deaths(), before, "seed {seed}: one after another, with all servers well");
        assert!(world.threads.iter().all(|thread| thread.fleet.is_up(MAIN)), "seed {seed}");
        died += before;
        drop(trial);
    }
    assert!(died > 100, "{died} died");
}

/// A server that was stalled, not dead, served old values when it woke: what had been set or deleted
/// meanwhile was in the gutter, and it knew nothing of it. Deletes were known to be lost so, sets
/// were not.
#[test]
fn a_server_that_was_stalled_serves_nothing_old_when_it_is_back() {
    let (mut hits, mut absent) = (0, 0);
    let mut crossed = [false; 2];
    for seed in 0..150 {
        let trial = Trial::drawn(seed).enter();
        let mut world = World::new(seed);
        for _ in 0..4000 {
            world.turn();
        }
        hits += world.hits;
        absent += world.absent;
        for (crossed, knob) in crossed.iter_mut().zip([&OWED_MAX, &OWED_BATCH]) {
            *crossed |= trial.knobs().get(knob.name()).is_some_and(|drawn| drawn.crossed);
        }
    }
    assert!(hits > 5_000 && absent > 100 && crossed == [true; 2], "{hits} {absent} {crossed:?}");
}
