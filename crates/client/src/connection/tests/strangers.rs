//! Clients that take and give nothing back: what they cost, how they end, and that others are
//! served beside them.

use super::*;
use holdfast_env::Budget;
use holdfast_env::net::{BATCH_REQUESTS_MAX, HALF_SENT_S, SLOW_S};
use holdfast_env::trial::Trial;

const MIB: u64 = 1 << 20;

/// A server whose clients have the smallest budget there is.
fn small_world(name: &str, change: impl FnOnce(&mut ServerConfig)) -> (World, Arc<Budget>) {
    let budget = Budget::new(0);
    let world = world_with(name, |config| {
        config.budget = budget.clone();
        config.reactors = 1;
        change(config);
    });
    (world, budget)
}

/// A request whose answer takes `bytes`, which the service says before it makes them.
fn paid(id: u64, bytes: u64) -> Vec<u8> {
    request(PAID, id, &bytes.to_le_bytes(), b"")
}

/// What a good client does: it asks again when it is told to, which a loaded machine can bring
/// about for anybody who does not get on.
fn until_served<T>(world: &World, ask: impl Fn(&mut Connection) -> Result<T>) -> T {
    for _ in 0..8 {
        match ask(&mut world.connect()) {
            Ok(served) => return served,
            Err(e) => assert_eq!(e.kind, Kind::Retry, "{e}"),
        }
    }
    panic!("a good client was told to come again for ever");
}

/// What `raw` was told last, once the server has ended it.
fn last_words(mut raw: TcpStream) -> String {
    let mut bytes = Vec::new();
    let _ = raw.read_to_end(&mut bytes);
    let frames = frames_of(&bytes);
    frames.last().map(|(_, said)| String::from_utf8_lossy(said).into_owned()).unwrap_or_default()
}

/// 300 connections that asked for 60 MiB each and read nothing took 14.5 GB: nothing was counted
/// before the work was done, and each connection's own limit was all that there was.
#[test]
fn who_reads_nothing_gets_a_share_and_then_makes_way() {
    // Who waits for memory itself is given up late: it is not that which makes room here.
    let _trial = Trial::new().with(&SLOW_S, 1).with(&HALF_SENT_S, 600).enter();
    let (world, budget) = small_world("unread", |_| {});
    let greedy: Vec<TcpStream> = (0..100)
        .map(|_| {
            let mut raw = world.raw();
            let requests: Vec<u8> = (1..=8).flat_map(|id| paid(id, 4 * MIB)).collect();
            raw.write_all(&requests).unwrap();
            raw
        })
        .collect();
    for bytes in [100, 70_000, 3 * MIB] {
        let received = until_served(&world, |good| {
            let answer = good.call(PAID, |m| m.extend(bytes.to_le_bytes()), &[])?;
            Ok(answer.body().len() as u64)
        });
        assert_eq!(received, bytes);
        world.is_alive();
    }
    // As large as requests may be: there is room when those who do not read have made way.
    let body = pattern(FRAME_BODY_BYTES_MAX as usize);
    assert!(until_served(&world, |good| Ok(good.call(ECHO, |_| {}, &[&body])?.body() == body)));
    let counters = world.server.counters();
    assert!(budget.peak() <= budget.limit(), "{} of {}", budget.peak(), budget.limit());
    assert!(counters.stalled.load(Ordering::Relaxed) > 0);
    drop(greedy);
    while budget.used() > 0 {
        world.is_alive();
    }
}

/// 2,000 half-sent bodies took a gigabyte, and stayed for as long as their senders liked.
#[test]
fn half_a_request_takes_memory_from_the_budget_and_ends() {
    let _trial = Trial::new().with(&HALF_SENT_S, 2).enter();
    let (world, budget) = small_world("half", |_| {});
    let whole = request(ECHO, 1, b"meta", &vec![1; FRAME_BODY_BYTES_MAX as usize]);
    let halves: Vec<TcpStream> = (0..200)
        .map(|i| {
            let mut raw = world.raw();
            // Of a head, of a meta, of a body.
            raw.write_all(&whole[..[10, 34, 100_000][i % 3]]).unwrap();
            raw
        })
        .collect();
    world.is_alive();
    let mut good = world.connect();
    let body = pattern(MIB as usize);
    assert!(good.call(ECHO, |_| {}, &[&body]).unwrap().body() == body);
    for raw in halves {
        let said = last_words(raw);
        assert!(said.contains("the rest of a request") || said.contains("memory"), "{said}");
    }
    assert!(budget.peak() <= budget.limit(), "{} of {}", budget.peak(), budget.limit());
    while budget.used() > 0 {
        world.is_alive();
    }
    good.call(ECHO, |_| {}, &[]).unwrap();
}

/// Connections that did nothing kept everybody else out.
#[test]
fn idle_connections_make_way_and_busy_ones_do_not() {
    let (world, _) = small_world("idle", |config| config.connections_max = 8);
    let mut busy = world.connect();
    let waits = busy.submit(DEFER, |_| {}, &[]).unwrap();
    busy.flush().unwrap();
    let deferred = world.service.take_deferred(1);
    let mut used = world.connect();
    for _ in 0..50 {
        let _idle = world.raw();
        // Used between any two newcomers, so the idlest is always another one.
        used.call(ECHO, |_| {}, &[]).unwrap();
    }
    let idle: Vec<TcpStream> = (0..50).map(|_| world.raw()).collect();
    world.is_alive();
    let counters = world.server.counters();
    assert!(counters.made_way.load(Ordering::Relaxed) > 0);
    assert_eq!(counters.turned_away.load(Ordering::Relaxed), 0);
    assert!(world.server.connections() <= 8);
    deferred.into_iter().for_each(|(reply, _)| reply.finish(Ok(vec![7])));
    assert_eq!(busy.wait(waits).unwrap().meta(), [7], "it was at work all the time");
    drop(idle);
}

/// A reactor knows its own connections only: where all of those were at work, a newcomer was turned
/// away, though others had idle ones.
#[test]
fn idle_connections_of_another_reactor_make_way_too() {
    const REACTORS: usize = 3;
    let (world, _) = small_world("others", |config| {
        (config.connections_max, config.reactors) = (2 * REACTORS, REACTORS);
    });
    // They are given out in turn: all of one reactor are at work, those of the others are idle.
    let mut all: Vec<Connection> = (0..2 * REACTORS).map(|_| world.connect()).collect();
    all.iter_mut().for_each(|one| drop(one.call(ECHO, |_| {}, &[]).unwrap()));
    let mut waits = Vec::new();
    for busy in all.iter_mut().step_by(REACTORS) {
        waits.push(busy.submit(DEFER, |_| {}, &[]).unwrap());
        busy.flush().unwrap();
    }
    let deferred = world.service.take_deferred(2);
    let newcomers: Vec<Connection> = (0..REACTORS)
        .map(|_| {
            let mut newcomer = world.connect();
            newcomer.call(ECHO, |_| {}, &[]).unwrap();
            newcomer
        })
        .collect();
    let counters = world.server.counters();
    assert_eq!(counters.turned_away.load(Ordering::Relaxed), 0);
    assert_eq!(counters.made_way.load(Ordering::Relaxed), REACTORS as u64);
    deferred.into_iter().for_each(|(reply, _)| reply.finish(Ok(vec![7])));
    for (busy, waits) in all.iter_mut().step_by(REACTORS).zip(waits) {
        assert_eq!(busy.wait(waits).unwrap().meta(), [7], "it was at work all the time");
    }
    drop(newcomers);
}

/// Reads that had waited for their turn were done for clients that had long gone.
#[test]
fn work_for_a_client_that_left_is_not_wanted_any_more() {
    let (world, _) = small_world("left", |_| {});
    // Over TCP a peer that left looks like one that has said all and waits for its answers.
    let mut connection = Connection::connect(&world.unix).unwrap();
    connection.submit(DEFER, |_| {}, &[]).unwrap();
    connection.flush().unwrap();
    let deferred = world.service.take_deferred(1);
    assert!(deferred[0].0.is_wanted());
    drop(connection);
    world.service.wait_gone(1);
    assert!(!deferred[0].0.is_wanted());
}

/// Whatever waits for memory is answered when there is some, in full and once; a request that the
/// service had in its hands, one that had come as a whole, and bodies on their way.
#[test]
fn what_had_to_wait_for_memory_is_answered_when_there_is_some() {
    let (world, budget) = small_world("waits", |_| {});
    let rng = SeededRng::new(7);
    for left in [0, 1, 3 * MIB, 5 * MIB] {
        // Who has no memory at all hears nobody new, and answers nothing.
        let mut connection = world.connect();
        let others = budget.limit() - budget.used() - left;
        budget.change(0, others);
        let paused = world.server.counters().pauses.load(Ordering::Relaxed);
        let mut sent = Vec::new();
        for _ in 0..30 {
            let bytes = [0, 10, 5000, 20_000, 300_000][rng.next_u64() as usize % 5];
            sent.push(match rng.next_u64() % 2 {
                0 => {
                    let meta = (bytes as u64).to_le_bytes();
                    (connection.submit(PAID, |m| m.extend(meta), &[]).unwrap(), bytes)
                }
                _ => (connection.submit(ECHO, |_| {}, &[&pattern(bytes)]).unwrap(), bytes),
            });
        }
        // More than the sockets hold: it goes on when there is memory.
        let gives = std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                for (id, bytes) in sent {
                    assert_eq!(connection.wait(id).unwrap().body().len(), bytes);
                }
            });
            while left < MIB && world.server.counters().pauses.load(Ordering::Relaxed) == paused {
                std::thread::yield_now();
            }
            budget.change(others, 0);
            waits.join()
        });
        gives.unwrap();
        drop(connection);
        while budget.used() > 0 {
            std::thread::yield_now();
        }
    }
}

/// A read that waits for something to read takes no memory until there is something.
#[test]
fn what_comes_again_is_admitted_then_and_not_before() {
    let (world, budget) = small_world("again", |_| {});
    let mut raw = world.raw();
    raw.write_all(&request(PAID, 1, b"", b"")).unwrap();
    let (reply, _) = world.service.take_deferred(1).pop().unwrap();
    assert!(budget.used() < 1000, "{}", budget.used());
    let others = budget.limit() - budget.used();
    budget.change(0, others);
    let counters = world.server.counters();
    let paused = counters.pauses.load(Ordering::Relaxed);
    reply.again(MIB.to_le_bytes().to_vec());
    while counters.pauses.load(Ordering::Relaxed) == paused {
        std::thread::yield_now();
    }
    budget.change(others, 0);
    let mut answer = vec![0; HEADER_BYTES + MIB as usize];
    raw.read_exact(&mut answer).unwrap();
    let (header, body) = frames_of(&answer).pop().unwrap();
    assert_eq!((header.request_id, body.len() as u64), (1, MIB));
}

/// The sizes between which bytes are received, copied, batched and sent make borders in every
/// stream; drawn small, each byte of a frame comes to lie on each side of each.
#[test]
fn frames_cut_anywhere_by_limits_of_any_size_arrive_whole() {
    for seed in 0..60 {
        let _trial = Trial::drawn(seed).enter();
        let world = world_with(&format!("cut-{seed}"), |config| config.reactors = 1);
        let rng = SeededRng::new(seed);
        for endpoint in [&world.tcp, &world.unix] {
            let mut connection = Connection::connect(endpoint).unwrap();
            let mut sent = Vec::new();
            for i in 0..12u8 {
                let meta = vec![i; rng.next_u64() as usize % 70];
                let bytes = [0, 1, 39, 40, 41, 300, 2000][rng.next_u64() as usize % 7];
                let body = &pattern(bytes + i as usize)[i as usize..];
                let id = connection.submit(ECHO, |m| m.extend_from_slice(&meta), &[body]).unwrap();
                sent.push((id, meta, body.to_vec()));
            }
            for (id, meta, body) in sent {
                let answer = connection.wait(id).unwrap();
                assert!(answer.meta() == meta && answer.body() == body, "seed {seed}, {endpoint}");
            }
        }
    }
    assert_eq!(BATCH_REQUESTS_MAX.usual(), 256, "a trial ends with its guard");
}

/// Byte by byte, with the server's buffers at their usual sizes.
#[test]
fn a_request_may_arrive_in_two_pieces_cut_at_any_byte() {
    let world = world_with("bytes", |config| config.reactors = 1);
    let mut whole = request(ECHO, 1, b"m", &[3; 50]);
    whole.extend(request(ECHO, 2, b"", b""));
    let mut raw = world.raw();
    raw.set_nodelay(true).unwrap();
    for cut in 0..=whole.len() {
        raw.write_all(&whole[..cut]).unwrap();
        world.is_alive();
        raw.write_all(&whole[cut..]).unwrap();
        let mut answers = vec![0; whole.len()];
        raw.read_exact(&mut answers).unwrap();
        let frames = frames_of(&answers);
        assert_eq!(frames.len(), 2, "cut at {cut}");
        assert_eq!((frames[0].0.request_id, &frames[0].1[1..]), (1, &[3; 50][..]), "cut at {cut}");
    }
}
