mod leases;
mod stalled;

use super::command::{self, Command, Parsed};
use super::plan::{PoolPlan, RoutePlan};
use super::recent::Recent;
use super::router::Router;
use crate::fleet::{self, Fleet, Outcome};
use crate::ring::Member;
use crate::wire::{self, Scan, Shape};
use holdfast_env::{Rng, SeededRng};
use std::sync::Arc;

const MS: u64 = 1_000_000;
const MAIN: u32 = 0;
const GUTTER: u32 = 1;
const WARM: u32 = 2;

/// A router over three servers, each a pool, and what a driver would do for it.
struct World {
    plan: Arc<RoutePlan>,
    router: Router,
    fleet: Fleet,
    now_ns: u64,
}

impl World {
    fn new() -> World {
        let pool = |name: &str, gutter: Option<&str>, warm: Option<&str>| PoolPlan {
            name: name.into(),
            servers: vec![Member { host: name.into(), port: 1, weight: 1 }],
            gutter: gutter.map(str::to_owned),
            warm_from: warm.map(str::to_owned),
            ..PoolPlan::default()
        };
        let pools = vec![
            pool("main", Some("gutter"), Some("warm")),
            pool("gutter", None, None),
            pool("warm", None, None),
        ];
        World::of(pools)
    }

    fn of(pools: Vec<PoolPlan>) -> World {
        let plan = Arc::new(RoutePlan::new(pools, Vec::new(), "main", 10).unwrap());
        let fleet = Fleet::new(plan.members.len(), fleet::Settings::default());
        let router = Router::new(plan.clone(), Arc::new(Recent::default()));
        World { plan, router, fleet, now_ns: 10_000 * MS }
    }

    /// The server of a key.
    fn server_of(&self, key: &str) -> u32 {
        let pool = self.plan.pool(key.as_bytes());
        self.plan.pools[pool].server(key.as_bytes()).unwrap()
    }

    /// Gives up what has not come in time.
    fn expire(&mut self) {
        let router = &mut self.router;
        self.fleet.expire(self.now_ns, &mut |t, of| router.settle(t, of, self.now_ns));
        self.advance();
    }

    /// Starts a command; its reply's number.
    fn ask(&mut self, text: &str) -> u32 {
        let Parsed::Command(of, used) = command::parse(text.as_bytes(), 1000) else {
            panic!("{text}")
        };
        assert_eq!(used, text.len());
        let (router, fleet) = (&mut self.router, &mut self.fleet);
        let reply = match of {
            Command::Get { verb, keys } => router.get(fleet, (0, 0), &verb, keys, self.now_ns),
            Command::Keyed(of) => router.keyed(fleet, (0, 0), of, self.now_ns),
            Command::Flush { line, is_mute } => router.flush(fleet, (0, 0), &line, is_mute),
            other => panic!("{other:?}"),
        };
        self.advance();
        reply
    }

    fn advance(&mut self) {
        loop {
            let router = &mut self.router;
            router.look(&mut self.fleet, self.now_ns);
            self.fleet.pump(self.now_ns, &mut |t, of| router.settle(t, of, self.now_ns));
            if !self.router.follow(&mut self.fleet, self.now_ns) {
                return;
            }
        }
    }

    /// What a server was asked; empty if nothing.
    fn asked(&mut self, server: u32) -> String {
        if self.fleet.connects(server) {
            self.fleet.connected(server);
        }
        let out = String::from_utf8_lossy(self.fleet.output(server)).into_owned();
        self.fleet.output_sent(server, out.len());
        out
    }

    fn answers(&mut self, server: u32, text: &str) {
        let router = &mut self.router;
        self.fleet.received(server, self.now_ns, text.as_bytes(), &mut |t, of: Outcome<'_>| {
            router.settle(t, of, self.now_ns)
        });
        self.advance();
    }

    fn dies(&mut self, server: u32) {
        let router = &mut self.router;
        self.fleet
            .disconnected(server, self.now_ns, &mut |t, of| router.settle(t, of, self.now_ns));
        self.advance();
    }

    /// The answer, which must be whole.
    #[track_caller]
    fn said(&mut self, reply: u32) -> String {
        while self.router.take_whole().is_some() {}
        assert!(self.router.is_ready(reply), "it still waits for servers");
        String::from_utf8(self.router.close(reply)).unwrap()
    }
}

#[test]
fn what_may_have_been_done_is_not_done_again_elsewhere() {
    for (text, again) in [
        ("get a\r\n", true),
        ("set a 0 0 1\r\nx\r\n", true),
        ("delete a\r\n", true),
        ("ms a 1\r\nx\r\n", true),
        ("incr a 1\r\n", false),
        ("append a 0 0 1\r\nx\r\n", false),
        ("ma a\r\n", false),
    ] {
        let mut world = World::new();
        let reply = world.ask(text);
        assert!(!world.asked(MAIN).is_empty());
        world.dies(MAIN);
        assert_eq!(!world.asked(GUTTER).is_empty(), again, "{text}");
        if !again {
            let said = world.said(reply);
            assert!(said.starts_with("SERVER_ERROR") && said.contains("may or may not"), "{said}");
            // Now it is known to be dead, and cannot have done it.
            world.ask(text);
            assert!(world.asked(GUTTER).starts_with(&text[..4]), "{text}");
        }
    }
}

#[test]
fn a_miss_is_filled_from_the_warm_pool_with_the_rest_of_its_lifetime() {
    let mut world = World::new();
    let reply = world.ask("get a b c\r\n");
    assert_eq!(world.asked(MAIN), "get a b c\r\n");
    world.answers(MAIN, "VALUE b 0 1\r\nB\r\nEND\r\n");
    assert_eq!(world.asked(WARM).matches("mg ").count(), 2);
    world.answers(WARM, "VA 2 f7 t500\r\ncc\r\nEN\r\n");
    let said = world.said(reply);
    assert!(
        said.starts_with("VALUE b 0 1\r\nB\r\nVALUE ") && said.ends_with(" 7 2\r\ncc\r\nEND\r\n"),
        "{said}"
    );
    let filled = world.asked(MAIN);
    assert!(filled == "add c 7 500 2\r\ncc\r\n" || filled == "add a 7 500 2\r\ncc\r\n", "{filled}");
}

/// The race that would bring a deleted value back: read in the warm pool before the delete,
/// added to the cold one after it.
#[test]
fn what_was_deleted_meanwhile_is_not_added() {
    let mut world = World::new();
    let get = world.ask("get a\r\n");
    world.asked(MAIN);
    world.answers(MAIN, "END\r\n");
    assert_eq!(world.asked(WARM), "mg a f t v\r\n");
    let delete = world.ask("delete a\r\n");
    assert_eq!(world.asked(MAIN), "delete a\r\n");
    world.answers(MAIN, "NOT_FOUND\r\n");
    assert_eq!(world.asked(WARM), "delete a\r\n");
    world.answers(WARM, "VA 1 f0 t-1\r\nx\r\n");
    assert_eq!(world.said(get), "VALUE a 0 1\r\nx\r\nEND\r\n", "it was there when it was read");
    assert_eq!(world.asked(MAIN), "", "nothing is added");
    world.answers(WARM, "DELETED\r\n");
    assert_eq!(world.said(delete), "NOT_FOUND\r\n");
}

#[test]
fn a_change_that_failed_leaves_the_warm_pool_alone() {
    for (text, answer, deletes) in [
        ("set a 0 0 1\r\nx\r\n", "STORED\r\n", true),
        ("add a 0 0 1\r\nx\r\n", "NOT_STORED\r\n", false),
        ("incr a 1\r\n", "NOT_FOUND\r\n", false),
        ("incr a 1\r\n", "8\r\n", true),
        ("delete a\r\n", "NOT_FOUND\r\n", true),
        ("touch a 1\r\n", "TOUCHED\r\n", false),
        ("ms a 1 q\r\nx\r\n", "MN\r\n", true),
        ("ms a 1 q\r\nx\r\n", "NS\r\nMN\r\n", false),
    ] {
        let mut world = World::new();
        let reply = world.ask(text);
        world.asked(MAIN);
        world.answers(MAIN, answer);
        assert_eq!(world.asked(WARM) == "delete a\r\n", deletes, "{text}");
        if deletes {
            world.answers(WARM, "NOT_FOUND\r\n");
        }
        assert_eq!(world.said(reply), answer.trim_end_matches("MN\r\n"));
    }
}

#[test]
fn a_flush_reaches_every_pool_but_the_warm_one() {
    let mut world = World::new();
    let reply = world.ask("flush_all 5 noreply\r\n");
    assert_eq!(
        (world.asked(MAIN), world.asked(GUTTER)),
        ("flush_all 5\r\n".into(), "flush_all 5\r\n".into())
    );
    assert_eq!(world.asked(WARM), "");
    world.answers(MAIN, "OK\r\n");
    world.answers(GUTTER, "OK\r\n");
    assert_eq!(world.said(reply), "", "noreply");
}

/// Random changes to valid texts: parsers may refuse, never read outside or panic.
#[test]
fn whatever_bytes_come_parsers_stay_within_them() {
    let texts: [&[u8]; 8] = [
        b"VALUE a 0 3\r\nxyz\r\nVALUE bb 7 0 9\r\n\r\nEND\r\n",
        b"VA 3 f1 t-1\r\nabc\r\nMN\r\n",
        b"set key 1 2 3 noreply\r\nabc\r\nget a b c\r\n",
        b"cas key 1 2 3 99\r\nabc\r\n",
        b"ms key 3 T5 q\r\nabc\r\nmn\r\n",
        b"gat 10 a b\r\ntouch a 1\r\nincr a 1\r\n",
        b"flush_all 10 noreply\r\nstats\r\nversion\r\n",
        b"mg key v t f q k O1\r\nmd key q\r\nma key N0\r\n",
    ];
    let rng = SeededRng::new(7);
    let draw = |n: usize| (rng.next_u64() % n as u64) as usize;
    for _ in 0..60_000 {
        let mut bytes = texts[draw(texts.len())].to_vec();
        for _ in 0..draw(4) {
            let at = draw(bytes.len());
            match draw(4) {
                0 => bytes[at] = rng.next_u64() as u8,
                1 if bytes.len() > 1 => {
                    bytes.remove(at);
                }
                1 | 2 => bytes.insert(at, b" \r\n09-"[draw(6)]),
                _ => bytes.truncate(at.max(1)),
            }
        }
        for shape in [Shape::Values, Shape::Line, Shape::Meta, Shape::Quiet] {
            if let Ok(Some(end)) = Scan::default().end(shape, &bytes) {
                assert!((1..=bytes.len()).contains(&end));
            }
        }
        for value in wire::values(&bytes) {
            assert!(value.block.len() <= bytes.len());
        }
        match command::parse(&bytes, 100) {
            Parsed::Command(Command::Keyed(of), used) => {
                assert!(used <= bytes.len() && (1..=wire::KEY_BYTES_MAX).contains(&of.key.len()));
                assert!(!of.key.iter().any(|b| matches!(b, b' ' | b'\n' | 0)));
                let mut out = Vec::new();
                of.request(Some(5), &mut out);
                assert!(!out[..out.len() - of.value.len()].starts_with(b"\r\n"));
            }
            Parsed::Command(_, used) => assert!((1..=bytes.len()).contains(&used)),
            Parsed::Say(_, used) | Parsed::TooLarge(_, used) => assert!(used > 0),
            Parsed::Short | Parsed::Close(_) => {}
        }
    }
}
