use super::absence::OWED_MAX;
use super::*;
use crate::wire;
use holdfast_env::trial::Trial;

const US: u64 = 1000;
const MS: u64 = 1000 * US;

/// A fleet, a clock, and what came of the requests, by ticket.
struct World {
    fleet: Fleet,
    now: u64,
    done: Vec<(u64, String)>,
}

fn name(outcome: Outcome<'_>) -> String {
    match outcome {
        Outcome::Answer(answer) => String::from_utf8_lossy(answer).into_owned(),
        Outcome::Lost => "lost".to_owned(),
        Outcome::Dead { maybe } => format!("dead, maybe {maybe}"),
    }
}

impl World {
    fn new(servers: usize, change: impl FnOnce(&mut Settings)) -> World {
        let mut settings = Settings::default();
        change(&mut settings);
        World { fleet: Fleet::new(servers, settings), now: MS, done: Vec::new() }
    }

    fn ask(&mut self, server: u32, transport: Transport, ticket: u64, bytes: &[u8]) {
        let shape = if bytes.starts_with(b"get") { Shape::Values } else { Shape::Line };
        self.fleet.submit(Request { server, transport, shape, keys: 1, ticket, bytes });
        self.advance(0);
    }

    /// Moves the clock on, and lets the fleet look at it.
    fn advance(&mut self, ns: u64) {
        self.now += ns;
        let done = &mut self.done;
        self.fleet.expire(self.now, &mut |ticket, of| done.push((ticket, name(of))));
        self.fleet.pump(self.now, &mut |ticket, of| done.push((ticket, name(of))));
    }

    /// Ids of the datagrams that wait to be sent to a server.
    fn sent(&mut self, server: u32) -> Vec<u16> {
        let outbox = self.fleet.outbox(server);
        let datagrams = outbox.runs().flat_map(|(run, each)| run.chunks(each));
        let ids = datagrams.map(|d| u16::from_be_bytes([d[0], d[1]])).collect();
        outbox.clear();
        ids
    }

    fn datagram(&mut self, server: u32, id: u16, number: u16, count: u16, body: &[u8]) {
        let words = [id, number, count, 0];
        let frame = words.iter().flat_map(|word| word.to_be_bytes());
        let datagram: Vec<u8> = frame.chain(body.iter().copied()).collect();
        self.raw(server, &datagram);
    }

    fn raw(&mut self, server: u32, datagram: &[u8]) {
        let done = &mut self.done;
        self.fleet.datagram(server, self.now, datagram, &mut |t, of| done.push((t, name(of))));
    }

    /// What the driver would do: connects if that is wanted, and takes what is to be sent.
    fn stream(&mut self, server: u32) -> String {
        if self.fleet.closes(server) == Some(Closing::Drain) {
            self.fleet.drained(server);
        }
        if self.fleet.connects(server) {
            self.fleet.connected(server);
        }
        let out = String::from_utf8_lossy(self.fleet.output(server)).into_owned();
        self.fleet.output_sent(server, out.len());
        out
    }

    fn received(&mut self, server: u32, bytes: &[u8]) {
        let done = &mut self.done;
        self.fleet.received(server, self.now, bytes, &mut |t, of| done.push((t, name(of))));
    }

    fn hang_up(&mut self, server: u32) {
        let done = &mut self.done;
        self.fleet.disconnected(server, self.now, &mut |t, of| done.push((t, name(of))));
    }

    #[track_caller]
    fn came(&mut self, expected: &[(u64, &str)]) {
        let got: Vec<(u64, &str)> = self.done.iter().map(|(t, s)| (*t, s.as_str())).collect();
        assert_eq!(got, expected);
        self.done.clear();
    }
}

const HIT: &[u8] = b"VALUE a 0 1\r\nx\r\nEND\r\n";
const HIT_TEXT: &str = "VALUE a 0 1\r\nx\r\nEND\r\n";

#[test]
fn answers_find_their_requests_in_any_order_and_others_find_none() {
    let mut world = World::new(2, |_| ());
    for ticket in 0..3 {
        world.ask(0, Transport::Udp, ticket, b"get a\r\n");
    }
    let ids = world.sent(0);
    world.advance(100 * US);
    world.datagram(0, ids[2], 0, 1, HIT);
    world.datagram(0, ids[0], 0, 1, b"END\r\n");
    world.came(&[(2, HIT_TEXT), (0, "END\r\n")]);
    // Twice; never asked; asked of another server; no frame; nothing in it; not of an answer.
    world.datagram(0, ids[2], 0, 1, HIT);
    world.datagram(0, 999, 0, 1, HIT);
    world.datagram(1, ids[1], 0, 1, HIT);
    assert_eq!((world.fleet.counts.stray, world.fleet.counts.broken), (3, 0));
    world.raw(0, b"1234567");
    world.datagram(0, ids[1], 0, 1, b"");
    world.datagram(0, ids[1], 3, 2, HIT);
    world.datagram(0, ids[1], 0, 1, b"HELLO\r\n");
    assert_eq!((world.fleet.counts.stray, world.fleet.counts.broken), (3, 4));
    world.came(&[]);
    world.datagram(0, ids[1], 0, 1, b"END\r\n");
    world.came(&[]);
    world.advance(10 * MS);
    world.came(&[(1, "lost")]);
    assert_eq!((world.fleet.pending(), world.fleet.window().outstanding()), (0, 0));
}

#[test]
fn an_answer_in_parts_is_whole_when_the_last_part_is_there() {
    let mut world = World::new(1, |_| ());
    world.ask(0, Transport::Udp, 7, b"get a b\r\n");
    let id = world.sent(0)[0];
    world.datagram(0, id, 2, 3, b"\nEND\r\n");
    world.datagram(0, id, 0, 3, b"VALUE a 0 3\r\nx");
    world.datagram(0, id, 0, 3, b"VALUE a 0 3\r\nx");
    assert_eq!(world.fleet.window().outstanding(), 1);
    world.datagram(0, id, 1, 3, b"yz\r");
    world.came(&[(7, "VALUE a 0 3\r\nxyz\r\nEND\r\n")]);
    assert_eq!(world.fleet.counts.stray, 1);
}

#[test]
fn a_loss_is_seen_after_a_few_round_trips_and_a_hole_after_a_quarter_of_one() {
    let mut world = World::new(2, |s| s.window.timeout_least_ns = 0);
    for ticket in 0..20 {
        world.ask(0, Transport::Udp, ticket, b"get a\r\n");
        let id = world.sent(0)[0];
        world.advance(100 * US);
        world.datagram(0, id, 0, 1, b"END\r\n");
    }
    world.done.clear();
    world.ask(0, Transport::Udp, 1, b"get a\r\n");
    world.ask(1, Transport::Udp, 2, b"get a\r\n");
    let id = world.sent(1)[0];
    world.advance(90 * US);
    world.datagram(1, id, 0, 3, b"VALUE a 0 1\r\n");
    world.datagram(1, id, 2, 3, b"END\r\n");
    assert_eq!(world.fleet.deadline_ns(), Some(world.now + 90 * US / 4));
    world.advance(25 * US);
    world.came(&[(2, "lost")]);
    // What comes now is of no use.
    world.datagram(1, id, 1, 3, b"x\r\n");
    world.advance(50 * US);
    world.came(&[]);
    world.advance(50 * US);
    world.came(&[(1, "lost")]);
    assert_eq!((world.fleet.counts.stray, world.fleet.counts.lost), (1, 2));
}

/// A server that waited for a processor answered after the timeout: what came was dropped as
/// stray, and the window stayed cut as if the network had lost something.
#[test]
fn late_answers_undo_what_their_timeouts_did_to_the_window() {
    let mut world = World::new(2, |_| ());
    let ask = |world: &mut World| {
        (0..16).for_each(|ticket| {
            world.ask(ticket % 2, Transport::Udp, u64::from(ticket), b"get a\r\n")
        });
        let sent: Vec<(u32, u16)> =
            (0..2).flat_map(|s| world.sent(s).into_iter().map(move |id| (s, id))).collect();
        sent
    };
    for (server, id) in ask(&mut world) {
        world.advance(10 * US);
        world.datagram(server, id, 0, 1, HIT);
    }
    let (size, timeout) = (world.fleet.window().size(), world.fleet.window().timeout_ns());
    let sent = ask(&mut world);
    world.advance(5 * MS);
    assert!(world.fleet.window().size() < size);
    assert_eq!(world.fleet.counts.lost, 16);
    let (last, others) = sent.split_last().unwrap();
    others.iter().for_each(|(server, id)| world.datagram(*server, *id, 0, 1, HIT));
    assert!(world.fleet.window().size() < size, "one of them may be lost");
    world.datagram(last.0, last.1, 0, 1, HIT);
    assert_eq!(world.fleet.window().size(), size);
    assert!(world.fleet.window().timeout_ns() > timeout);
    assert_eq!((world.fleet.counts.late, world.fleet.counts.stray), (16, 0));
    world.datagram(last.0, last.1, 0, 1, HIT);
    assert_eq!(world.fleet.counts.stray, 1, "a second time it is nobody's");
}

#[test]
fn a_get_that_is_sent_again_has_a_new_id() {
    let mut world = World::new(1, |s| s.retries = 1);
    world.ask(0, Transport::Udp, 1, b"get a\r\n");
    let first = world.sent(0)[0];
    world.advance(50 * MS);
    let second = world.sent(0)[0];
    assert_ne!(first, second);
    world.datagram(0, first, 0, 1, b"END\r\n");
    world.came(&[]);
    world.advance(200 * MS);
    world.came(&[(1, "lost")]);
    assert_eq!((world.fleet.counts.retried, world.fleet.counts.lost), (1, 2));
}

#[test]
fn what_a_server_refuses_over_udp_is_asked_for_over_tcp() {
    let mut world = World::new(1, |_| ());
    world.ask(0, Transport::Udp, 1, b"get a\r\n");
    let id = world.sent(0)[0];
    world.datagram(0, id, 0, 1, b"SERVER_ERROR too long\r\n");
    world.advance(0);
    world.came(&[]);
    assert_eq!((world.stream(0).as_str(), world.sent(0)), ("get a\r\n", Vec::new()));
    assert_eq!(world.fleet.window().outstanding(), 1);
    world.received(0, HIT);
    world.came(&[(1, HIT_TEXT)]);
    // There it is the answer.
    world.ask(0, Transport::Tcp, 2, b"get a\r\n");
    world.received(0, b"SERVER_ERROR out of memory\r\n");
    world.came(&[(2, "SERVER_ERROR out of memory\r\n")]);
}

#[test]
fn one_window_is_for_all_servers() {
    let mut world = World::new(100, |_| ());
    for server in 0..100 {
        world.ask(server, Transport::Udp, u64::from(server), b"get a\r\n");
    }
    let asked = |world: &mut World| -> Vec<(u32, u16)> {
        (0..100).flat_map(|s| world.sent(s).into_iter().map(move |id| (s, id))).collect()
    };
    let first = asked(&mut world);
    assert_eq!(first.len(), 16);
    world.advance(100 * US);
    for (server, id) in first {
        world.datagram(server, id, 0, 1, HIT);
    }
    world.advance(0);
    assert_eq!(asked(&mut world).len(), 32, "twice as many: it was full");
    assert_eq!(world.fleet.window().outstanding(), 32);
}

#[test]
fn a_server_that_refuses_is_dead_until_it_answers_again() {
    let mut world = World::new(2, |_| ());
    world.ask(0, Transport::Tcp, 1, b"set a 0 0 1\r\nx\r\n");
    assert!(world.fleet.connects(0));
    world.hang_up(0);
    world.came(&[(1, "dead, maybe false")]);
    world.ask(0, Transport::Udp, 2, b"get a\r\n");
    world.came(&[(2, "dead, maybe false")]);
    assert!(world.sent(0).is_empty() && !world.fleet.is_up(0) && world.fleet.is_up(1));
    // Asked after a pause, and after a longer one.
    for pause in [50 * MS, 100 * MS, 200 * MS] {
        assert_eq!(world.fleet.deadline_ns(), Some(world.now + pause));
        world.advance(pause);
        assert!(world.fleet.connects(0));
        world.hang_up(0);
    }
    world.advance(400 * MS);
    assert_eq!(world.stream(0), "version\r\n");
    world.ask(0, Transport::Udp, 3, b"get a\r\n");
    world.came(&[(3, "dead, maybe false")]);
    world.received(0, b"VERSION 1.6\r\n");
    assert!(world.fleet.is_up(0));
    world.ask(0, Transport::Udp, 4, b"get a\r\n");
    assert_eq!(world.sent(0).len(), 1);
    assert_eq!(world.fleet.counts.servers_died, 1);
}

#[test]
fn a_silent_server_is_asked_over_tcp_before_it_is_given_up() {
    for answers in [true, false] {
        let mut world = World::new(1, |_| ());
        for ticket in 0..3 {
            world.ask(0, Transport::Udp, ticket, b"get a\r\n");
            world.advance(500 * MS);
        }
        world.came(&[(0, "lost"), (1, "lost"), (2, "lost")]);
        world.ask(0, Transport::Udp, 3, b"get a\r\n");
        assert_eq!(world.stream(0), "version\r\n");
        if answers {
            world.received(0, b"VERSION 1\r\n");
            world.advance(500 * MS);
            world.came(&[(3, "lost")]);
        } else {
            world.advance(500 * MS);
            world.came(&[(3, "lost")]);
        }
        assert_eq!(world.fleet.is_up(0), answers);
    }
}

#[test]
fn losses_of_one_dead_server_cost_the_others_one_cut() {
    let mut world = World::new(2, |s| s.losses_suspicious = 1000);
    world.ask(1, Transport::Udp, 0, b"get a\r\n");
    let id = world.sent(1)[0];
    world.advance(100 * US);
    world.datagram(1, id, 0, 1, b"END\r\n");
    let before = world.fleet.window().size();
    for ticket in 0..50 {
        world.ask(0, Transport::Udp, ticket, b"get a\r\n");
        world.advance(300 * MS);
    }
    assert_eq!(world.fleet.counts.lost, 50);
    assert_eq!(world.fleet.window().size(), before / 2.0);
}

#[test]
fn half_an_answer_and_the_end_may_have_been_carried_out() {
    let mut world = World::new(1, |_| ());
    world.ask(0, Transport::Tcp, 1, b"get a\r\n");
    world.ask(0, Transport::Tcp, 2, b"incr n 1\r\n");
    assert_eq!(world.stream(0), "get a\r\nincr n 1\r\n");
    world.received(0, b"VALUE a 0 1\r\n");
    world.received(0, b"x\r\nEN");
    world.came(&[]);
    world.received(0, b"D\r\n4");
    world.came(&[(1, HIT_TEXT)]);
    world.hang_up(0);
    world.came(&[(2, "dead, maybe true")]);
    assert_eq!((world.fleet.pending(), world.fleet.window().outstanding()), (0, 0));
}

#[test]
fn an_idle_connection_may_end_and_is_made_anew() {
    let mut world = World::new(1, |_| ());
    world.ask(0, Transport::Tcp, 1, b"delete a\r\n");
    assert_eq!(world.stream(0), "delete a\r\n");
    world.received(0, b"DELETED\r\n");
    world.hang_up(0);
    assert!(world.fleet.is_up(0));
    world.ask(0, Transport::Tcp, 2, b"delete a\r\n");
    assert_eq!(world.stream(0), "delete a\r\n");
    world.came(&[(1, "DELETED\r\n")]);
}

#[test]
fn an_answer_over_tcp_may_take_long_only_while_it_comes() {
    let mut world = World::new(1, |_| ());
    world.ask(0, Transport::Tcp, 1, b"get a\r\n");
    world.stream(0);
    world.received(0, b"VALUE a 0 100\r\n");
    for _ in 0..10 {
        world.advance(400 * MS);
        world.received(0, b"0123456789");
    }
    world.came(&[]);
    world.advance(500 * MS);
    world.came(&[(1, "dead, maybe true")]);
    assert_eq!(
        world.fleet.closes(0),
        Some(Closing::Drain),
        "what comes later would be taken for another answer"
    );
}

/// A server that reads a command otherwise than we do answers one too few or one too many, and from
/// then on everybody gets what was meant for somebody else. Nothing behind such an answer is taken.
#[test]
fn an_answer_that_fits_something_else_ends_the_connection() {
    for (asked, answered, came) in [
        (&b"delete a\r\n"[..], &b"STORED\r\n"[..], "dead, maybe true"),
        (b"set a 0 0 1\r\nx\r\n", b"DELETED\r\n", "dead, maybe true"),
        (b"set a 0 0 1\r\nx\r\n", b"17\r\n", "dead, maybe true"),
        (b"incr a 1\r\n", b"STORED\r\n", "dead, maybe true"),
        (b"touch a 1\r\n", b"DELETED\r\n", "dead, maybe true"),
        (b"get a\r\n", b"VALUE b 0 1\r\nx\r\nEND\r\n", "dead, maybe true"),
        (b"get a\r\n", HIT, HIT_TEXT),
        (b"incr a 1\r\n", b"17  \r\n", "17  \r\n"),
        (b"incr a 1\r\n", b"CLIENT_ERROR no number\r\n", "CLIENT_ERROR no number\r\n"),
        (b"set a 0 0 1\r\nx\r\n", b"SERVER_ERROR full\r\n", "SERVER_ERROR full\r\n"),
    ] {
        let mut world = World::new(1, |_| ());
        world.ask(0, Transport::Tcp, 1, asked);
        world.stream(0);
        world.received(0, answered);
        world.came(&[(1, came)]);
        let is_broken = came.starts_with("dead");
        let closes = world.fleet.closes(0).is_some();
        assert_eq!((world.fleet.is_up(0), closes), (!is_broken, is_broken));
    }
    // It may have taken the value for a command, and answer that as well.
    let mut world = World::new(1, |_| ());
    world.ask(0, Transport::Tcp, 1, b"set a 0 0 1\r\nx\r\n");
    world.ask(0, Transport::Tcp, 2, b"delete a\r\n");
    world.stream(0);
    world.received(0, b"ERROR\r\nNOT_FOUND\r\nDELETED\r\n");
    world.came(&[(1, "ERROR\r\n"), (2, "dead, maybe true")]);
    assert!(world.fleet.closes(0).is_some());
}

/// More changed keys than are remembered: the server is emptied. One that cannot be is not used.
#[test]
fn a_server_that_slept_through_too_much_is_emptied_or_left_alone() {
    let _trial = Trial::new().with(&OWED_MAX, 2).enter();
    let mut world = World::new(1, |_| ());
    world.ask(0, Transport::Tcp, 1, b"get a\r\n");
    world.stream(0);
    world.hang_up(0);
    for key in ["a", "b", "a", "c"] {
        world.fleet.owe(0, format!("delete {key}\r\n").into_bytes());
    }
    world.advance(60 * MS);
    assert_eq!(world.stream(0), "version\r\n");
    world.received(0, b"VERSION 1\r\n");
    assert_eq!(world.stream(0), "flush_all\r\n");
    world.received(0, b"CLIENT_ERROR flush_all not allowed\r\n");
    assert!(!world.fleet.is_up(0) && world.fleet.closes(0).is_some());
    world.advance(200 * MS);
    assert_eq!(world.stream(0), "version\r\n");
    world.received(0, b"VERSION 1\r\n");
    assert_eq!(world.stream(0), "flush_all\r\n");
    world.fleet.owe(0, b"delete d\r\n".to_vec());
    world.received(0, b"OK\r\n");
    assert_eq!(world.stream(0), "delete d\r\n");
    assert!(!world.fleet.is_up(0));
    world.received(0, b"NOT_FOUND\r\n");
    assert!(world.fleet.is_up(0));
    world.came(&[(1, "dead, maybe true")]);
    assert_eq!(world.fleet.pending(), 0);
}

/// A connection that was given up is waited for, but not for ever: its server may have lost it.
#[test]
fn a_connection_that_never_ends_keeps_a_server_away_for_a_while_only() {
    let mut world = World::new(1, |_| ());
    world.ask(0, Transport::Tcp, 1, b"set a 0 0 1\r\nx\r\n");
    world.stream(0);
    world.advance(600 * MS);
    assert_eq!(world.fleet.closes(0), Some(Closing::Drain));
    world.fleet.owe(0, b"delete a\r\n".to_vec());
    let mut waited_ms = 0;
    loop {
        world.advance(100 * MS);
        waited_ms += 100;
        match world.stream(0).as_str() {
            "" => {}
            "version\r\n" => world.received(0, b"VERSION 1\r\n"),
            "delete a\r\n" => break world.received(0, b"DELETED\r\n"),
            other => panic!("{other}"),
        }
        assert!(waited_ms < 60_000 && !world.fleet.is_up(0));
    }
    assert!(waited_ms >= 10_000 && world.fleet.is_up(0));
}

#[test]
fn a_hostile_server_gets_neither_memory_nor_a_wrong_answer_through() {
    let hostile: [&[u8]; 5] = [
        b"VALUE a 0 99999999999\r\n",
        b"VALUE a 0 -1\r\n",
        &[b'x'; wire::LINE_BYTES_MAX + 1],
        b"STAT a\r\n",
        b"VALUE a 0 1\r\nxyz\r\nEND\r\n",
    ];
    for bytes in hostile {
        let mut world = World::new(1, |s| s.answer_bytes_max = 10_000);
        world.ask(0, Transport::Tcp, 1, b"get a\r\n");
        world.stream(0);
        world.received(0, bytes);
        for _ in 0..20 {
            world.received(0, &[b'y'; 1000]);
        }
        world.came(&[(1, "dead, maybe true")]);
        assert!(world.fleet.counts.broken > 0, "{bytes:?}");
        assert!(!world.fleet.is_up(0));
    }
    // Bytes that nobody asked for.
    let mut world = World::new(1, |_| ());
    world.received(0, b"STORED\r\n");
    assert!(world.fleet.closes(0).is_some());
    // More datagrams than an answer may take.
    let mut world = World::new(1, |s| s.answer_bytes_max = 10_000);
    world.ask(0, Transport::Udp, 2, b"get a\r\n");
    let id = world.sent(0)[0];
    for number in 0..1000 {
        world.datagram(0, id, number, u16::MAX, &[b'x'; 1000]);
    }
    assert_eq!(world.fleet.counts.broken, 990);
    world.advance(200 * MS);
    world.came(&[(2, "lost")]);
    assert_eq!(world.fleet.window().outstanding(), 0);
}

#[test]
fn word_that_nobody_listens_fails_what_is_outstanding_there() {
    let mut world = World::new(2, |_| ());
    world.ask(0, Transport::Udp, 1, b"get a\r\n");
    world.ask(1, Transport::Udp, 2, b"get a\r\n");
    let done = &mut world.done;
    world.fleet.unreachable(0, world.now, &mut |t, of| done.push((t, name(of))));
    world.came(&[(1, "dead, maybe true")]);
    assert!(!world.fleet.is_up(0) && world.fleet.is_up(1));
}

/// Random faults, of a seed: whatever comes, each request has one outcome and the window is empty
/// when nothing is outstanding.
#[test]
fn every_request_has_one_outcome_whatever_servers_do() {
    use holdfast_env::{Rng, SeededRng};
    for seed in 0..30 {
        let rng = SeededRng::new(seed);
        let draw = |n: u64| rng.next_u64() % n;
        let mut world = World::new(4, |s| s.retries = (seed % 3) as u8);
        let mut ids: Vec<(u32, u16)> = Vec::new();
        for ticket in 0..500 {
            let server = draw(4) as u32;
            let transport = if draw(3) == 0 { Transport::Tcp } else { Transport::Udp };
            world.ask(server, transport, ticket, b"get a\r\n");
            for server in 0..4 {
                ids.extend(world.sent(server).into_iter().map(|id| (server, id)));
                world.stream(server);
            }
            for _ in 0..draw(4) {
                let Some((server, id)) = ids.get(draw(ids.len().max(1) as u64) as usize) else {
                    continue;
                };
                let (server, id) = (*server, id.wrapping_add((draw(20) == 0).into()));
                match draw(4) {
                    0 => world.datagram(server, id, 0, 2, b"VALUE a 0 1\r\nx\r\n"),
                    1 => world.datagram(server, id, 1, 2, b"END\r\n"),
                    _ => world.datagram(server, id, 0, 1, HIT),
                }
            }
            let server = draw(4) as u32;
            match draw(30) {
                0 => world.hang_up(server),
                1 => world.received(server, b"rubbish"),
                2..6 => world.received(server, HIT),
                6 => world.received(server, b"VERSION 1\r\n"),
                _ => {}
            }
            world.advance(draw(3 * MS));
        }
        for _ in 0..100 {
            world.advance(300 * MS);
        }
        let mut tickets: Vec<u64> = world.done.iter().map(|(ticket, _)| *ticket).collect();
        tickets.sort_unstable();
        assert_eq!(tickets, (0..500).collect::<Vec<u64>>(), "seed {seed}");
        assert_eq!(world.fleet.window().outstanding(), 0, "seed {seed}");
    }
}

/// A token is good for the server that gave it, as long as that one runs: what is sent with it goes over the
/// same connection or not at all.
#[test]
fn what_belongs_to_a_connection_is_not_sent_over_the_next() {
    let mut world = World::new(1, |_| ());
    let bound = |world: &mut World, ended, ticket| {
        let (transport, shape, bytes) = (Transport::Tcp, Shape::Meta, &b"ms a 1 C7\r\nx\r\n"[..]);
        let request = Request { server: 0, transport, shape, keys: 0, ticket, bytes };
        world.fleet.submit_unless_ended(request, ended);
        world.advance(0);
    };
    let ended = world.fleet.ended(0);
    world.ask(0, Transport::Tcp, 1, b"delete a\r\n");
    assert_eq!(world.stream(0), "delete a\r\n");
    world.received(0, b"NOT_FOUND\r\n");
    bound(&mut world, ended, 2);
    assert_eq!(world.stream(0), "ms a 1 C7\r\nx\r\n", "nothing has ended");
    world.received(0, b"HD\r\n");
    world.came(&[(1, "NOT_FOUND\r\n"), (2, "HD\r\n")]);

    // An idle connection ends, and nobody is dead for it.
    world.hang_up(0);
    bound(&mut world, ended, 3);
    world.came(&[(3, "dead, maybe false")]);
    assert_eq!((world.stream(0).as_str(), world.fleet.is_up(0)), ("", true));

    // One that ends with a question in it, and one that was given up for its silence.
    let ended = world.fleet.ended(0);
    world.ask(0, Transport::Tcp, 4, b"delete a\r\n");
    world.stream(0);
    world.hang_up(0);
    assert_ne!(world.fleet.ended(0), ended);
    world.advance(100 * MS);
    assert_eq!(world.stream(0), "version\r\n");
    world.received(0, b"VERSION 1\r\n");
    world.came(&[(4, "dead, maybe true")]);
    let ended = world.fleet.ended(0);
    world.ask(0, Transport::Tcp, 5, b"delete a\r\n");
    world.stream(0);
    world.advance(1000 * MS);
    world.came(&[(5, "dead, maybe true")]);
    assert_ne!(world.fleet.ended(0), ended);
}
